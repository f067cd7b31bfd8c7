//! What is asked of the agent beside messages: capability, waiting, options, and that each ends once.

use super::*;
use crate::ControlId;
use crate::event::OptionsState;
use crate::work::{Control, ControlEnd, ForkPoint, ThreadSource};

fn able() -> Capabilities {
    Capabilities { set_options: true, goals: true, compact: true, ..capabilities() }
}

fn compact() -> Input {
    Input::Command(Command::Control(Control::Compact { instructions: None }))
}

fn asked(effects: &[Effect]) -> Vec<(ControlId, Control)> {
    let control = |effect: &Effect| match effect {
        Effect::Tell(Decision::Control { id, control }) => Some((id.clone(), control.clone())),
        _ => None,
    };
    effects.iter().filter_map(control).collect()
}

fn model(name: &str) -> SessionOptions {
    SessionOptions { model: Some(name.to_owned()), ..SessionOptions::default() }
}

fn refused() -> ControlEnd {
    ControlEnd::Refused { failure: Failure::new(FailureCode::AgentRefused, "no such model") }
}

impl Bench {
    fn running_with(capabilities: Capabilities) -> Self {
        let mut bench = Self::with(capabilities);
        bench.send("m1");
        bench.start_process();
        bench.begin_turn("pt1", "m1");
        bench
    }

    fn wish(&mut self, options: SessionOptions) -> Vec<Effect> {
        let options = Some(options);
        self.must(Input::Command(Command::Update { name: None, options, archived: None, limits: None }))
    }

    pub(super) fn control_ends(&mut self, control: &str, end: ControlEnd) -> Vec<Effect> {
        self.agent(AgentEvent::ControlEnded { control: ControlId::from(control), end })
    }

    fn options_states(&self) -> Vec<OptionsState> {
        let state = |stamped: &Stamped| match &stamped.event {
            Event::OptionsUpdated { state, .. } => Some(*state),
            _ => None,
        };
        self.journal.iter().filter_map(state).collect()
    }
}

#[test]
fn what_the_agent_cannot_do_is_refused_by_the_capability_s_name() {
    let mut bench = Bench::running();
    let refusal = bench.input(compact()).expect_err("refused");
    assert_eq!(refusal.code, RefusalCode::Unsupported);
    assert!(refusal.detail.contains("compact"), "{}", refusal.detail);
}

#[test]
fn compacting_waits_for_the_turn_and_holds_the_next_message_back() {
    let mut bench = Bench::running_with(able());
    assert_eq!(asked(&bench.must(compact())), []);
    bench.send("m2");
    let effects = bench.end_turn("pt1", Outcome::Completed);
    assert_eq!(asked(&effects).len(), 1);
    assert!(!bench.session.input_untaken(), "a message went beside the compaction");
    let waits = SubmissionState::Accepted { waits: Some(QueueReason::Control) };
    assert_eq!(bench.session.submissions[0].state, waits);
    bench.control_ends("c1", ControlEnd::Done);
    bench.control_ends("c1", ControlEnd::Done);
    assert!(bench.session.input_untaken());
    assert_eq!(bench.count("control.ended"), 1);
}

#[test]
fn a_control_starts_the_agent_and_ends_with_its_process() {
    let mut bench = Bench::with(able());
    let effects = bench.must(Input::Command(Command::Control(Control::SetGoal {
        objective: "all green".to_owned(),
        token_budget: None,
    })));
    assert!(matches!(effects.as_slice(), [Effect::Acquire { .. }]));
    assert!(!bench.session.nothing_owed());
    bench.start_process();
    assert!(bench.session.controls[0].told);
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    assert_eq!(bench.count("control.ended"), 1);
    assert!(bench.session.controls.is_empty());
}

#[test]
fn what_is_said_while_a_message_is_handed_over_is_decided_after_it() {
    let mut bench = Bench::with(able());
    bench.send("m1");
    bench.start_process();
    bench.begin_turn("pt1", "m1");
    bench.wish(model("b"));
    bench.send("m2");
    let ended = AgentEvent::TurnEnded {
        turn: ProviderTurn::from("pt1"),
        outcome: Outcome::Completed,
        stop_reason: None,
        failure: None,
        usage: None,
    };
    let fresh = ProcessToken::from("fresh");
    let moment = Moment { now: 10, capabilities: &bench.capabilities, fresh: &fresh };
    let mut out = Out::default();
    bench.session.handle(Input::Agent(ended), &moment, &mut out).expect("taken");
    assert!(bench.session.handing.is_some(), "m2 is being handed over");
    let refused = AgentEvent::ControlEnded { control: ControlId::from("c1"), end: refused() };
    bench.session.handle(Input::Agent(refused), &moment, &mut out).expect("kept");
    assert_eq!(bench.session.controls.len(), 1, "it was decided in between");
    let handed = Input::Handed { submission: SubmissionId::from("m2"), input: 9 };
    bench.session.handle(handed, &moment, &mut out).expect("handed");
    assert!(bench.session.controls.is_empty() && bench.session.deferred.is_empty());
    let kinds: Vec<&str> = out.events.iter().map(|stamped| stamped.event.kind()).collect();
    assert_eq!(kinds, ["turn.ended", "submission.delivered", "control.ended", "options.updated"]);
}

#[test]
fn a_new_name_is_told_to_an_agent_that_keeps_names() {
    let mut bench = Bench::running_with(Capabilities { rename: true, ..able() });
    let name = Some(Some("n".to_owned()));
    let named = Command::Update { name, options: None, archived: None, limits: None };
    let effects = bench.must(Input::Command(named));
    assert_eq!(asked(&effects), [(ControlId::from("c1"), Control::Rename { name: "n".to_owned() })]);
    // The agent says it too: nothing new.
    let events = bench.journal.len();
    bench.agent(AgentEvent::Name { name: Some("n".to_owned()), by: crate::work::Provenance::Client });
    assert_eq!(bench.journal.len(), events);
}

#[test]
fn what_waits_is_withdrawn_when_the_session_is_put_away_or_deleted() {
    let away = Command::Update { name: None, options: None, archived: Some(true), limits: None };
    for end in [away, Command::Delete] {
        let mut bench = Bench::running_with(able());
        bench.must(compact());
        bench.must(Input::Command(end));
        assert!(bench.session.controls.is_empty());
        bench.end_turn("pt1", Outcome::Completed);
        assert!(bench.session.nothing_owed(), "its agent would never rest");
    }
}

#[test]
fn what_waits_for_a_process_that_a_user_stops_is_withdrawn() {
    let mut bench = Bench::with(able());
    bench.must(compact());
    bench.must(Input::Command(Command::Stop { order: CloseOrder::User }));
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::User }));
    assert!(effects.is_empty(), "the stopped agent is started again: {effects:?}");
    assert!(bench.session.controls.is_empty());
}

#[test]
fn options_are_accepted_then_confirmed_by_the_agent() {
    let mut bench = Bench::running_with(able());
    let effects = bench.wish(model("b"));
    assert!(matches!(asked(&effects).as_slice(), [(_, Control::SetOptions { .. })]));
    assert_eq!(bench.options_states(), [OptionsState::Accepted]);
    // A report of the time before changes nothing of the wish, and what it says beside stands.
    bench.agent(AgentEvent::Options(SessionOptions { effort: Some("low".to_owned()), ..model("a") }));
    assert_eq!(bench.session.options.model.as_deref(), Some("b"));
    assert_eq!(bench.session.options.effort.as_deref(), Some("low"));
    bench.control_ends("c1", ControlEnd::Done);
    bench.agent(AgentEvent::Options(model("b")));
    assert_eq!(bench.session.options_before, None);
    assert_eq!(bench.options_states().last(), Some(&OptionsState::Confirmed));
}

#[test]
fn an_option_that_is_taken_back_is_gone_when_the_agent_has_answered_and_not_before() {
    let mut bench = Bench::running_with(able());
    let low = SessionOptions { effort: Some("low".to_owned()), ..model("a") };
    bench.agent(AgentEvent::Options(low.clone()));
    let effects = bench.wish(model("a"));
    let told = asked(&effects);
    let [(_, Control::SetOptions { options, .. })] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(**options, model("a"), "the agent is told all that is wished");
    // Reports of before it was answered.
    bench.agent(AgentEvent::Options(low.clone()));
    assert_eq!(bench.session.options, model("a"), "what was taken back came back");
    assert_eq!(bench.options_states().last(), Some(&OptionsState::Accepted));
    bench.control_ends("c1", ControlEnd::Done);
    assert_eq!((&bench.session.options, &bench.session.options_before), (&model("a"), &None));
    assert_eq!(bench.options_states().last(), Some(&OptionsState::Confirmed));
    // From here on a report is the truth.
    bench.agent(AgentEvent::Options(low.clone()));
    assert_eq!(bench.session.options, low);
    // One that is refused stays.
    bench.wish(model("a"));
    bench.control_ends("c2", refused());
    assert_eq!(bench.session.options, low);
    assert_eq!(bench.options_states().last(), Some(&OptionsState::Reverted));
}

#[test]
fn refused_options_are_put_back_and_the_reason_is_shown() {
    let mut bench = Bench::running_with(able());
    bench.agent(AgentEvent::Options(model("a")));
    bench.wish(model("b"));
    bench.control_ends("c1", refused());
    assert_eq!(bench.session.options, model("a"));
    assert_eq!(bench.options_states().last(), Some(&OptionsState::Reverted));
}

#[test]
fn of_two_changes_the_newer_wins_and_the_older_ones_end_says_nothing_of_it() {
    let mut bench = Bench::running_with(able());
    bench.agent(AgentEvent::Options(model("a")));
    bench.wish(model("b"));
    bench.wish(model("c"));
    bench.control_ends("c1", refused());
    assert_eq!(bench.session.options, model("c"));
    bench.control_ends("c2", ControlEnd::Done);
    assert_eq!((&bench.session.options, &bench.session.options_before), (&model("c"), &None));
    // What was taken first is what a later refusal goes back to.
    bench.wish(model("d"));
    bench.wish(model("e"));
    bench.control_ends("c3", ControlEnd::Done);
    bench.control_ends("c4", refused());
    assert_eq!(bench.session.options, model("d"));
}

#[test]
fn options_changed_during_the_start_are_told_when_the_thread_is_held() {
    let mut bench = Bench::with(able());
    bench.send("m1");
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    bench.agent(AgentEvent::Ready(AgentInfo::default()));
    assert_eq!(asked(&bench.wish(model("b"))), []);
    let thread = ThreadId::from("thread");
    let effects = bench.agent(AgentEvent::ThreadOpened { thread, resumed: false });
    assert!(matches!(asked(&effects).as_slice(), [(_, Control::SetOptions { .. })]), "{effects:?}");
}

#[test]
fn without_the_capability_options_go_with_the_next_message_and_the_report_after_it_counts() {
    let mut bench = Bench::running();
    bench.agent(AgentEvent::Options(model("a")));
    assert_eq!(asked(&bench.wish(model("b"))), []);
    bench.agent(AgentEvent::Options(model("a")));
    assert_eq!(bench.session.options, model("b"), "a report of before the message put the wish back");
    bench.end_turn("pt1", Outcome::Completed);
    bench.send("m2");
    bench.agent(AgentEvent::Options(model("a")));
    assert_eq!(bench.session.options, model("a"));
    assert_eq!(bench.options_states().last(), Some(&OptionsState::Reverted));
}

#[test]
fn a_branch_is_tried_again_until_its_thread_is_proven() {
    let point =
        ForkPoint { session: SessionId::from("other"), thread: ThreadId::from("theirs"), last_turn: None };
    let launch = LaunchSnapshot { source: Some(ThreadSource::Fork(point.clone())), ..launch() };
    let mut out = Out::default();
    let id = SessionId::from("s");
    let session = Session::create(id, None, launch, SessionOptions::default(), 1, &mut out);
    let mut bench = Bench { session, journal: out.events, ..Bench::new() };
    let opening = |effects: &[Effect]| match effects {
        [Effect::Tell(Decision::OpenThread { resume, fork, .. })] => (resume.clone(), fork.clone()),
        other => panic!("{other:?}"),
    };
    bench.send("m1");
    for _ in 0..2 {
        let process = bench.process();
        bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
        let effects = bench.agent(AgentEvent::Ready(AgentInfo::default()));
        assert_eq!(opening(&effects), (None, Some(Box::new(point.clone()))));
        bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    }
    bench.start_process();
    assert_eq!(bench.session.chain[0].how, ThreadOrigin::Forked);
    bench.exit(ProcessExit::of(ExitCause::KeeperLost));
    bench.must(Input::Command(Command::Start));
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    let effects = bench.agent(AgentEvent::Ready(AgentInfo::default()));
    assert_eq!(opening(&effects), (Some(ThreadId::from("thread")), None));
}

/// A session with two ended turns that was rewound before the second, whose agent goes back by a new start.
fn rewound_by_start() -> Bench {
    let mut bench = Bench::with(able());
    bench.capabilities.rewind = true;
    bench.send("m1");
    bench.start_process();
    bench.begin_turn("pt1", "m1");
    bench.end_turn("pt1", Outcome::Completed);
    bench.send("m2");
    bench.begin_turn("pt2", "m2");
    bench.end_turn("pt2", Outcome::Completed);
    let rewind = Command::Rewind { before: TurnId::from("t2"), files: false };
    let effects = bench.must(Input::Command(rewind));
    assert!(matches!(asked(&effects).as_slice(), [(_, Control::Rewind { .. })]), "{effects:?}");
    let control = bench.session.controls[0].id.clone();
    let effects = bench.agent(AgentEvent::GoesBack { control, at: "row".to_owned() });
    assert!(effects.contains(&Effect::Close { order: crate::process::CloseOrder::Host }), "{effects:?}");
    bench
}

#[test]
fn an_agent_that_goes_back_by_a_new_start_is_started_at_the_point_until_it_takes_a_message_there() {
    let mut bench = rewound_by_start();
    assert!(bench.send("m3").is_empty(), "the process that knows the dropped turn gets nothing");
    let ended = |bench: &mut Bench, order| bench.exit(ProcessExit::of(ExitCause::Ordered { order }));
    let effects = ended(&mut bench, crate::process::CloseOrder::Host);
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
    assert_eq!(bench.session.resume_at.as_deref(), Some("row"));
    // One that dies before it has the message is followed by one that begins there too.
    bench.exit(ProcessExit { last_started: Some(0), ..ProcessExit::of(ExitCause::AgentLeft) });
    assert_eq!(bench.session.resume_at.as_deref(), Some("row"));
    bench.start_process();
    bench.begin_turn("pt3", "m3");
    assert_eq!(bench.session.resume_at, None, "the branch is the last one now");
    bench.end_turn("pt3", Outcome::Completed);
    let known: Vec<&str> = bench.session.past_turns.iter().map(|past| past.id.as_str()).collect();
    assert_eq!(known, ["t1", "t3"]);
}

#[test]
fn a_rewind_that_was_not_answered_rewinds_nothing() {
    let mut bench = rewound_by_start();
    let control = ControlId::from("c9");
    bench.agent(AgentEvent::GoesBack { control, at: "other".to_owned() });
    assert_eq!(bench.session.resume_at.as_deref(), Some("row"));
    assert_eq!(bench.count("thread.rewound"), 1);
}

#[test]
fn going_back_to_a_turn_that_is_not_known_any_more_ends_as_failed() {
    for by_start in [true, false] {
        let mut bench = Bench::with(able());
        bench.capabilities.rewind = true;
        bench.send("m1");
        bench.start_process();
        bench.begin_turn("pt1", "m1");
        bench.end_turn("pt1", Outcome::Completed);
        bench.must(Input::Command(Command::Rewind { before: TurnId::from("t1"), files: false }));
        let control = bench.session.controls[0].id.clone();
        bench.session.past_turns.clear();
        let (now, fresh) = (bench.now, ProcessToken::from("unused"));
        let moment = Moment { now, capabilities: &bench.capabilities, fresh: &fresh };
        let mut out = Out::default();
        let said = if by_start {
            AgentEvent::GoesBack { control, at: "row".to_owned() }
        } else {
            AgentEvent::ControlEnded { control, end: ControlEnd::Done }
        };
        bench.session.handle(Input::Agent(said), &moment, &mut out).expect("heard");
        let ended = |stamped: &Stamped| {
            matches!(&stamped.event, Event::ControlEnded { end: ControlEnd::Refused { .. }, .. })
        };
        assert!(out.events.iter().any(ended), "{:?}", out.events);
        assert!(bench.session.stopping.is_none() && bench.session.resume_at.is_none());
    }
}

#[test]
fn a_thread_that_the_agent_put_away_takes_its_session_with_it() {
    let mut bench = Bench::running_with(Capabilities { archive_thread: true, ..able() });
    let archive = || Input::Command(Command::Control(Control::ArchiveThread));
    assert!(asked(&bench.must(archive())).is_empty(), "a running turn would be cut off");
    bench.must(compact());
    let told = asked(&bench.end_turn("pt1", Outcome::Completed));
    assert_eq!(told, [(ControlId::from("c1"), Control::ArchiveThread)]);
    assert!(!bench.session.archived, "the agent has not done it");
    let effects = bench.control_ends("c1", ControlEnd::Done);
    assert!(bench.session.archived);
    assert!(effects.contains(&Effect::Close { order: CloseOrder::Host }), "{effects:?}");
    assert!(bench.session.controls.is_empty(), "what waited is asked of nobody any more");
    assert!(bench.input(archive()).is_err(), "it is away already");
}

#[test]
fn a_thread_that_the_agent_does_not_put_away_leaves_its_session_as_it_is() {
    for end in [refused(), ControlEnd::Lost] {
        let mut bench = Bench::running_with(Capabilities { archive_thread: true, ..able() });
        bench.end_turn("pt1", Outcome::Completed);
        bench.must(Input::Command(Command::Control(Control::ArchiveThread)));
        let effects = bench.control_ends("c1", end);
        assert!(!bench.session.archived && effects.is_empty(), "{effects:?}");
    }
}
