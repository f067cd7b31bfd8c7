//! A session from a file: whatever was open where the file was made is ended, and nothing is sent by itself.

use super::any_order::{any_input, check_ends, step};
use super::*;
use crate::event::{ImportedFrom, LeftOut};
use crate::session::{DefaultAnswer, Limits};
use proptest::prelude::*;

/// What the host does with the fold of a file's journal.
fn take_over(bench: &mut Bench, at_least: u64) -> Vec<Effect> {
    let from = ImportedFrom {
        session: bench.session.id.clone(),
        host: HostId::from("h"),
        head: crate::Cursor { epoch: bench.session.epoch, seq: bench.session.head },
        digest: "sha256:00".to_owned(),
    };
    let fresh = ProcessToken::from("fresh");
    let moment = Moment { now: 20, capabilities: &bench.capabilities, fresh: &fresh };
    let mut out = Out::default();
    let launch = LaunchSnapshot { cwd: "/elsewhere".to_owned(), ..launch() };
    bench.session.become_imported(SessionId::from("here"), launch, from, at_least, &moment, &mut out);
    let mut folded = Session::from_first(&bench.journal[0]).expect("first");
    bench.journal.extend(out.events);
    bench.journal[1..].iter().for_each(|stamped| folded.apply(stamped));
    assert_eq!(folded, bench.session, "the state is not the fold of the journal");
    out.effects
}

fn check_nothing_runs(session: &Session) {
    assert!(session.turns.is_empty() && session.items.is_empty() && session.requests.is_empty());
    assert_eq!((session.phase, &session.process, &session.unverifiable), (Phase::Free, &None, &None));
    assert!(session.tasks.is_empty() && session.children.is_empty() && session.controls.is_empty());
    assert!(session.imported.is_some());
    assert!(session.nothing_owed(), "something would be sent by itself: {:?}", session.submissions);
    assert_eq!((session.id.as_str(), session.launch.cwd.as_str()), ("here", "/elsewhere"));
}

#[test]
fn what_was_open_ends_and_the_conversation_is_not_taken_up() {
    let mut bench = Bench::running();
    bench.must(Input::Command(Command::Send {
        submission: SubmissionId::from("m2"),
        content: vec![ContentBlock::text("later")],
        delivery: Delivery::Queue,
        resends: None,
    }));
    let effects = take_over(&mut bench, 40);
    assert_eq!(effects, [], "an import acts on nothing");
    check_nothing_runs(&bench.session);
    check_ends(&bench.journal);
    assert_eq!(bench.session.epoch, 40);
    assert!(bench.session.queue_paused, "the other session may have sent what waits");
    // When the user goes on, it is in a conversation of its own.
    let moment_token = ProcessToken::from("p9");
    let moment = Moment { now: 30, capabilities: &bench.capabilities, fresh: &moment_token };
    let mut out = Out::default();
    bench.session.handle(Input::Command(Command::ResumeQueue), &moment, &mut out).expect("taken");
    let process = bench.session.process.clone().expect("acquired");
    let started = Input::Process(ProcessFact::Started { process, agent: None });
    bench.session.handle(started, &moment, &mut out).expect("taken");
    out.effects.clear();
    bench
        .session
        .handle(Input::Agent(AgentEvent::Ready(AgentInfo::default())), &moment, &mut out)
        .expect("taken");
    let [Effect::Tell(Decision::OpenThread { resume, .. })] = &out.effects[..] else {
        panic!("{:?}", out.effects)
    };
    assert_eq!(*resume, None);
}

#[test]
fn what_loosens_a_session_is_not_taken_over_and_named() {
    let mut bench = Bench::new();
    bench.session.launch.mcp_servers = vec![serde_json::json!({ "name": "x" })];
    bench.session.launch.account_home = Some("/accounts".to_owned());
    // Pinned at the creation, so that the fold knows it too.
    let Event::SessionCreated { launch, .. } = &mut bench.journal[0].event else { panic!("no creation") };
    *launch = bench.session.launch.clone();
    let said = |text: &str| Some(text.to_owned());
    let options = SessionOptions {
        model: said("m"),
        effort: said("high"),
        mode: said("yolo"),
        sandbox: said("danger-full-access"),
        approval: said("never"),
        ..SessionOptions::default()
    };
    let policy = |answer| super::super::RequestPolicy { after_ms: 1, answer };
    let limits = |answer| Limits { max_turns: Some(3), requests: Some(policy(answer)), ..Limits::default() };
    let update = |options, limits| Command::Update { name: None, options, archived: None, limits };
    bench.must(Input::Command(update(Some(options), Some(limits(DefaultAnswer::AllowOnce)))));
    let before = bench.journal.len();
    take_over(&mut bench, 0);
    let left = bench.journal[before..].iter().find_map(|stamped| match &stamped.event {
        Event::SessionImported { left_out, .. } => Some(left_out.clone()),
        _ => None,
    });
    use LeftOut::{AccountHome, Approval, DefaultAnswer as Answer, McpServers, Mode, Sandbox};
    assert_eq!(left, Some(vec![AccountHome, McpServers, Mode, Sandbox, Approval, Answer]));
    let session = &bench.session;
    let kept = SessionOptions { model: said("m"), effort: said("high"), ..SessionOptions::default() };
    assert_eq!((&session.options, &session.options_before), (&kept, &None));
    assert_eq!(session.limits, Limits { max_turns: Some(3), ..Limits::default() });
    // One that only says no is no danger.
    let mut bench = Bench::new();
    bench.must(Input::Command(update(None, Some(limits(DefaultAnswer::Decline)))));
    take_over(&mut bench, 0);
    assert_eq!(bench.session.limits, limits(DefaultAnswer::Decline));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_session_can_be_taken_over_from_any_state(
        steps in proptest::collection::vec(any_input(), 1..50),
        running in any::<bool>(),
    ) {
        let mut bench = Bench::new();
        if running {
            bench.send("first");
            bench.start_process();
            bench.begin_turn("pt0", "first");
        }
        for (n, what) in steps.iter().enumerate() {
            step(&mut bench, *what, n);
        }
        let deleted = bench.session.deleted;
        take_over(&mut bench, 0);
        check_ends(&bench.journal);
        if !deleted {
            check_nothing_runs(&bench.session);
        }
        let epoch = bench.session.epoch;
        prop_assert_eq!(epoch, 2);
    }
}
