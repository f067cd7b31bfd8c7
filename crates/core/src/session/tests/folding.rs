//! The fold, read as readers read it: from any place, in any pages, some of them twice, with deltas in one row or in
//! many. It always comes to the state that live handling came to.

use super::any_order::{any_input, step};
use super::*;
use crate::TaskKey;
use crate::event::EpochReason;
use crate::work::{ChildFields, TaskFields};
use proptest::prelude::*;

/// Inputs of which `step` has none.
const MORE: u8 = 20;

/// What `step` leaves out.
fn more(bench: &mut Bench, what: u8, n: usize) {
    let turn = Some(ProviderTurn(format!("pt{}", n % 3)));
    let key = ItemKey(format!("k{}", n % 4));
    let process = bench.session.process.clone().unwrap_or_else(|| ProcessToken::from("none"));
    let value = || serde_json::json!({ "n": n });
    let agent = match what {
        0 => AgentEvent::TaskUpdated {
            key: TaskKey(format!("b{}", n % 3)),
            fields: TaskFields { tokens: Some(n as u64), ..TaskFields::default() },
        },
        1 => AgentEvent::ChildUpdated {
            thread: ThreadId(format!("child{}", n % 2)),
            fields: ChildFields { tokens: Some(n as u64), ..ChildFields::default() },
        },
        2 => AgentEvent::Plan(value()),
        3 => AgentEvent::Usage(value()),
        4 => AgentEvent::Commands(value()),
        5 => AgentEvent::Notice {
            level: crate::agent::NoticeLevel::Warning,
            message: "x".to_owned(),
            provider: None,
        },
        6 => AgentEvent::Unmodelled { name: "x".to_owned(), frame: value() },
        7 => AgentEvent::Retrying {
            turn,
            attempt: 1,
            of: None,
            failure: Failure::new(FailureCode::Network, "x"),
            next_at: None,
        },
        8 => AgentEvent::ItemUpdated { key, fields: ItemFields::default() },
        9 => AgentEvent::Name { name: Some(format!("name {n}")), by: Default::default() },
        10 => AgentEvent::ThreadSwitched { thread: ThreadId(format!("thread{n}")) },
        11 => AgentEvent::InputRejected {
            submission: bench
                .session
                .submissions
                .first()
                .map_or_else(|| SubmissionId::from("none"), |open| open.id.clone()),
            failure: Failure::new(FailureCode::AgentRefused, "x"),
        },
        other => {
            let input = match other {
                12 => Input::NewEpoch(EpochReason::StoreRewound),
                13 => Input::FenceAhead { known: crate::Fence(bench.session.fence.0 + n as u64 % 2) },
                14 => Input::Hold(Failure::new(FailureCode::Other, "x")),
                15 => Input::Process(ProcessFact::Adopted { process }),
                16 => Input::Process(ProcessFact::Exited {
                    process,
                    exit: ProcessExit {
                        strays: vec![crate::process::Stray { pid: 9, comm: "x".to_owned(), gone: false }],
                        ..ProcessExit::of(ExitCause::KeeperLost)
                    },
                }),
                17 if n.is_multiple_of(9) => Input::Command(Command::Delete),
                18 => Input::Command(Command::StartFresh),
                19 => Input::Command(Command::Update {
                    name: Some(Some(format!("n{n}"))),
                    options: None,
                    archived: None,
                    limits: None,
                }),
                _ => return,
            };
            let _taken_or_refused = bench.input(input);
            return;
        }
    };
    let _taken_or_refused = bench.input(Input::Agent(agent));
}

fn able() -> Bench {
    let mut bench = Bench::with(Capabilities {
        steer: true,
        set_options: true,
        goals: true,
        compact: true,
        rewind: true,
        shell: true,
        stop_tasks: true,
        stop_children: true,
        stop_background: true,
        ..capabilities()
    });
    bench.send("first");
    bench.start_process();
    bench.begin_turn("pt0", "first");
    bench
}

fn run(bench: &mut Bench, steps: &[u8]) {
    const STEPS: u8 = 54;
    for (n, what) in steps.iter().enumerate() {
        match what.checked_sub(STEPS) {
            None => step(bench, *what, n),
            Some(what) => more(bench, what, n),
        }
    }
}

fn any_steps() -> impl Strategy<Value = Vec<u8>> {
    let any = prop_oneof![2 => any_input(), 1 => 54..54 + MORE];
    proptest::collection::vec(any, 1..60)
}

/// Neighbouring deltas of one item as one row, as the journal stores them.
fn merged(journal: &[Stamped]) -> Vec<Stamped> {
    let mut rows: Vec<Stamped> = Vec::new();
    for stamped in journal {
        if let (Some(last), Event::ItemDelta { item, text, .. }) = (rows.last_mut(), &stamped.event)
            && last.epoch == stamped.epoch
            && let Event::ItemDelta { item: before, text: words, .. } = &mut last.event
            && before == item
        {
            words.push_str(text);
            last.first_seq.get_or_insert(last.seq);
            last.seq = stamped.seq;
            continue;
        }
        rows.push(stamped.clone());
    }
    rows
}

fn folded(journal: &[Stamped]) -> Session {
    let mut session = Session::from_first(&journal[0]).expect("first");
    journal[1..].iter().for_each(|stamped| session.apply(stamped));
    session
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_page_that_is_read_twice_changes_nothing(
        steps in any_steps(),
        from in any::<prop::sample::Index>(),
        to in any::<prop::sample::Index>(),
    ) {
        let mut bench = able();
        run(&mut bench, &steps);
        let journal = &bench.journal;
        let to = to.index(journal.len()) + 1;
        let from = from.index(to);
        let mut session = folded(&journal[..to]);
        let once = session.clone();
        journal[from..to].iter().for_each(|stamped| session.apply(stamped));
        prop_assert_eq!(&session, &once);
        journal[from..].iter().for_each(|stamped| session.apply(stamped));
        prop_assert_eq!(&session, &bench.session);
        // Rows of several deltas, read behind a place within one.
        let mut session = once;
        merged(journal).iter().for_each(|stamped| session.apply(stamped));
        prop_assert_eq!(&session, &bench.session);
        prop_assert_eq!(&folded(&merged(journal)), &bench.session);
    }
}

/// What random inputs hardly come to: work in the background that tells how far it is, and a turn that goes on after a
/// request.
#[test]
fn rarer_events_may_be_read_twice_too() {
    let mut bench = able();
    let key = TaskKey::from("b0");
    bench.agent(AgentEvent::TaskStarted {
        key: key.clone(),
        kind: crate::work::TaskKind::Shell,
        title: "x".to_owned(),
        fields: TaskFields::default(),
    });
    let thread = ThreadId::from("child0");
    bench.agent(AgentEvent::ChildStarted { thread: thread.clone(), fields: ChildFields::default() });
    for tokens in [3, 7] {
        let fields = TaskFields { tokens: Some(tokens), ..TaskFields::default() };
        bench.agent(AgentEvent::TaskUpdated { key: key.clone(), fields });
        let fields = ChildFields { tokens: Some(tokens), ..ChildFields::default() };
        bench.agent(AgentEvent::ChildUpdated { thread: thread.clone(), fields });
    }
    let request = RequestKey::from("1:0");
    bench.agent(AgentEvent::RequestOpened(AskedByAgent {
        turn: Some(ProviderTurn::from("pt0")),
        ..AskedByAgent::new(request.clone(), RequestKind::Approval, "may I")
    }));
    bench.agent(AgentEvent::RequestSettled { key: request, confirmed: true });
    for kind in ["task.updated", "child.updated", "turn.waiting", "turn.resumed"] {
        assert!(bench.count(kind) > 0, "{kind} is among {:?}", bench.kinds());
    }
    let journal = &bench.journal;
    for to in 1..=journal.len() {
        let once = folded(&journal[..to]);
        for from in 0..to {
            let mut session = once.clone();
            journal[from..to].iter().for_each(|stamped| session.apply(stamped));
            assert_eq!(session, once, "events {from} to {to} were read twice");
            journal[from..].iter().for_each(|stamped| session.apply(stamped));
            assert_eq!(session, bench.session, "events from {from} on were read again");
        }
    }
}
