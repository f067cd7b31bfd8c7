//! Whatever comes in whatever order: nothing panics, a refusal changes nothing, state stays the fold, and what
//! ended has ended once.

use super::*;
use crate::work::{Control, ControlEnd, Goal, GoalState, Provenance, TaskKind, WorkEnd};
use crate::{ControlId, TaskKey};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};

pub(super) fn any_input() -> impl Strategy<Value = u8> {
    0..56_u8
}

fn any_open(session: &Session, n: usize) -> Option<&OpenSubmission> {
    session.submissions.get(n % session.submissions.len().max(1))
}

pub(super) fn step(bench: &mut Bench, what: u8, n: usize) {
    let turn = ProviderTurn(format!("pt{}", n % 3));
    let key = ItemKey(format!("k{}", n % 4));
    let submission = bench.session.submissions.first().map(|open| open.id.clone());
    let process = bench.session.process.clone().unwrap_or_else(|| ProcessToken::from("none"));
    let agent = |event| Input::Agent(event);
    let fact = |fact| Input::Process(fact);
    let input = match what {
        0..=2 | 23 => Input::Command(Command::Send {
            submission: SubmissionId(format!("m{n}")),
            content: vec![ContentBlock::text("x")],
            delivery: match what {
                0 => Delivery::Auto,
                1 => Delivery::Queue,
                2 => Delivery::Interrupt,
                _ => Delivery::Steer,
            },
            resends: None,
        }),
        24 => agent(AgentEvent::SteerRefused {
            submission: submission.unwrap_or_else(|| SubmissionId::from("none")),
            why: if n.is_multiple_of(2) { SteerRefusal::TurnOver } else { SteerRefusal::NotSteerable },
        }),
        25 => agent(AgentEvent::InputAbsent {
            submission: submission.unwrap_or_else(|| SubmissionId::from("none")),
        }),
        29 => agent(AgentEvent::InputUnknown {
            submission: submission.unwrap_or_else(|| SubmissionId::from("none")),
        }),
        26 => {
            let of = any_open(&bench.session, n);
            let (submission, revision) =
                of.map_or((SubmissionId::from("none"), 1), |open| (open.id.clone(), open.revision));
            let before = any_open(&bench.session, n / 2).map(|open| Place::Before(open.id.clone()));
            Input::Command(Command::Edit {
                submission,
                revision: revision + u64::from(n.is_multiple_of(5)),
                content: Some(vec![ContentBlock::text("y")]),
                place: before.filter(|_| n.is_multiple_of(3)),
            })
        }
        27 => Input::Command(Command::SendNow {
            submission: any_open(&bench.session, n)
                .map_or_else(|| SubmissionId::from("none"), |open| open.id.clone()),
        }),
        28 => Input::Command(Command::Withdraw {
            submission: any_open(&bench.session, n)
                .map_or_else(|| SubmissionId::from("none"), |open| open.id.clone()),
        }),
        3 => Input::Command(Command::Interrupt(StopScope::Session)),
        4 => fact(ProcessFact::Started { process, agent: None }),
        5 => agent(AgentEvent::Ready(AgentInfo::default())),
        6 => agent(AgentEvent::ThreadOpened {
            thread: ThreadId::from("thread"),
            resumed: bench.session.thread().is_some(),
        }),
        7 => agent(AgentEvent::TurnStarted { turn, origin: Origin::Unknown, submission: None }),
        8 => agent(AgentEvent::TurnStarted { turn, origin: Origin::Message, submission }),
        9 => agent(AgentEvent::TurnEnded {
            turn,
            outcome: Outcome::Completed,
            stop_reason: None,
            failure: None,
            usage: None,
        }),
        10 => agent(AgentEvent::InputTaken {
            submission: submission.unwrap_or_else(|| SubmissionId::from("none")),
            proof: TakenProof::ClientId,
        }),
        11 | 12 => agent(AgentEvent::ItemDelta {
            key,
            turn: Some(turn),
            kind: ItemKind::AgentMessage,
            text: "é".repeat(n % 3),
        }),
        13 => agent(AgentEvent::ItemCompleted {
            key,
            turn: Some(turn),
            kind: ItemKind::ToolCall,
            status: ItemStatus::Completed,
            text: None,
            fields: ItemFields::default(),
        }),
        14 => agent(AgentEvent::RequestOpened(AskedByAgent {
            turn: Some(turn),
            ..AskedByAgent::new(RequestKey(format!("r{}", n % 3)), RequestKind::Approval, "")
        })),
        15 => agent(AgentEvent::RequestSettled { key: RequestKey(format!("r{}", n % 3)), confirmed: true }),
        16 => Input::Command(Command::Answer {
            request: bench.session.requests.first().map_or(RequestId::from("none"), |open| open.id.clone()),
            revision: None,
            answer: Answer::Decline { message: None },
            by: "x".to_owned(),
        }),
        17 => fact(ProcessFact::Exited {
            process,
            exit: ProcessExit { last_started: Some(n as u64 % 3), ..ProcessExit::of(ExitCause::AgentLeft) },
        }),
        18 => fact(ProcessFact::Unverifiable { process, why: "why".to_owned() }),
        19 => Input::Command(Command::Abandon),
        20 => Input::Command(Command::ResumeQueue),
        21 => Input::Command(Command::Withdraw {
            submission: submission.unwrap_or_else(|| SubmissionId::from("none")),
        }),
        22 => fact(ProcessFact::InputRefused { process, n: bench.inputs, why: "cut".to_owned() }),
        31 => agent(AgentEvent::TaskStarted {
            key: TaskKey(format!("b{}", n % 3)),
            kind: TaskKind::Shell,
            title: "x".to_owned(),
            fields: Default::default(),
        }),
        32 => agent(AgentEvent::TaskEnded {
            key: TaskKey(format!("b{}", n % 3)),
            end: WorkEnd::Completed,
            fields: Default::default(),
        }),
        33 => agent(AgentEvent::ChildStarted {
            thread: ThreadId(format!("child{}", n % 2)),
            fields: Default::default(),
        }),
        34 => agent(AgentEvent::ChildEnded {
            thread: ThreadId(format!("child{}", n % 2)),
            end: WorkEnd::Failed,
            fields: Default::default(),
        }),
        35 => Input::Command(Command::Control(match n % 3 {
            0 => Control::Compact { instructions: None },
            1 => Control::Shell { command: "x".to_owned() },
            _ => Control::SetGoal { objective: "x".to_owned(), token_budget: None },
        })),
        36 | 37 => agent(AgentEvent::ControlEnded {
            control: bench.session.controls.first().map_or(ControlId::from("c0"), |open| open.id.clone()),
            end: if n.is_multiple_of(2) {
                ControlEnd::Done
            } else {
                ControlEnd::Refused { failure: Failure::new(FailureCode::AgentRefused, "no") }
            },
        }),
        38 | 39 => Input::Command(Command::Update {
            name: None,
            options: Some(model(n % 3)),
            archived: (what == 39 && n.is_multiple_of(4)).then_some(n.is_multiple_of(8)),
            limits: None,
        }),
        40 => agent(AgentEvent::Options(model(n % 4))),
        41 => agent(AgentEvent::RequestUnconfirmed { key: RequestKey(format!("r{}", n % 3)) }),
        42 => agent(AgentEvent::ThreadClosed),
        43 => agent(AgentEvent::Goal {
            goal: n.is_multiple_of(2).then(|| Goal {
                objective: "x".to_owned(),
                state: GoalState::Active,
                token_budget: None,
                tokens_used: None,
                seconds_used: None,
            }),
            by: Provenance::Unknown,
        }),
        44 => Input::Command(Command::Interrupt(match n % 4 {
            0 => StopScope::Turn(None),
            1 => StopScope::Tasks,
            2 => StopScope::Task("k1".to_owned()),
            _ => {
                let open = bench.session.requests.first();
                StopScope::Request(open.map_or(RequestId::from("none"), |open| open.id.clone()))
            }
        })),
        45 | 46 => {
            let due = bench.session.next_deadline().filter(|_| what == 45).unwrap_or(bench.now + n as i64);
            // The clock may go backwards too.
            bench.now = if n.is_multiple_of(7) { bench.now - 5 } else { due };
            let tick = bench.input(Input::Tick);
            assert!(tick.is_ok(), "time is never refused");
            let next = bench.session.next_deadline();
            assert!(next.is_none_or(|next| next > bench.now), "the lane would turn round and round");
            return;
        }
        48 => Input::Command(Command::Update {
            name: None,
            options: None,
            archived: None,
            limits: Some(Limits {
                max_turns: n.is_multiple_of(2).then_some(n as u64 / 4),
                max_turn_ms: n.is_multiple_of(3).then_some(n as u64),
                max_tokens: n.is_multiple_of(5).then_some(50),
                max_cost_micros: None,
                max_stall_ms: n.is_multiple_of(7).then_some(n as u64),
                requests: Some(RequestPolicy { after_ms: n as u64, answer: DefaultAnswer::Cancel }),
            }),
        }),
        49 => agent(AgentEvent::Spent {
            counter: Spent { tokens: Some(n as u64), cost_micros: None },
            of_process: n.is_multiple_of(2),
        }),
        50 | 51 => agent(AgentEvent::ThreadRefused { failure: Failure::new(FailureCode::Network, "gone") }),
        52 => fact(ProcessFact::AwaitsCapacity { process }),
        53 => Input::Command(Command::Rewind {
            before: bench.session.past_turns.back().map_or(TurnId::from("t0"), |past| past.id.clone()),
            files: false,
        }),
        47 => Input::Command(Command::Stop { order: CloseOrder::User }),
        54 => fact(ProcessFact::GoesOn {
            process,
            others: (0..n % 3).map(|other| crate::SessionId(format!("s{other}"))).collect(),
        }),
        55 => Input::StaleWrite { carried: Fence(n as u64 % 5) },
        _ => Input::Wake,
    };
    // Refusals are part of the picture; `input` checks that they changed nothing.
    let _taken_or_refused = bench.input(input);
}

fn model(n: usize) -> SessionOptions {
    SessionOptions { model: Some(format!("model {n}")), ..SessionOptions::default() }
}

pub(super) fn check_ends(journal: &[Stamped]) {
    let mut ended = HashSet::new();
    for stamped in journal {
        let thing = match &stamped.event {
            Event::TurnEnded { turn, .. } => format!("turn {turn}"),
            Event::ItemCompleted { item, .. } => format!("item {item}"),
            Event::RequestClosed { request, .. } => format!("request {request}"),
            Event::SubmissionTaken { submission, .. }
            | Event::SubmissionRejected { submission, .. }
            | Event::SubmissionDropped { submission }
            | Event::SubmissionCancelled { submission } => format!("submission {submission}"),
            Event::TaskEnded { task, .. } => format!("task {task}"),
            Event::ControlEnded { control, .. } => format!("control {control}"),
            Event::LeaseReleased { .. } => format!("lease {}", stamped.fence.0),
            _ => continue,
        };
        assert!(ended.insert(thing.clone()), "{thing} ended twice");
    }
}

/// A message goes to the agent again only if it is proven that it did not arrive.
fn check_deliveries(journal: &[Stamped]) {
    let mut with_agent = HashSet::new();
    for stamped in journal {
        match &stamped.event {
            Event::SubmissionDelivered { submission, .. } => {
                assert!(with_agent.insert(submission.clone()), "{submission} was delivered twice");
            }
            Event::SubmissionQueued { submission, .. } => {
                with_agent.remove(submission);
            }
            Event::InputRefused { submission: Some(submission), .. } => {
                with_agent.remove(submission);
            }
            _ => {}
        }
    }
}

/// A message is changed only while the agent does not have it, and each change has the next revision: of an edit, a
/// withdrawal and a hand-over, one comes first and the others see it.
fn check_changes(journal: &[Stamped]) {
    let mut queued: HashMap<SubmissionId, u64> = HashMap::new();
    let mut away: HashMap<SubmissionId, u64> = HashMap::new();
    for stamped in journal {
        match &stamped.event {
            Event::SubmissionAccepted { submission, .. } => {
                queued.insert(submission.clone(), 1);
            }
            Event::SubmissionChanged { submission, revision, .. } => {
                let known = queued.insert(submission.clone(), *revision);
                assert_eq!(known, Some(revision - 1), "{submission} was changed by two at once");
            }
            Event::SubmissionDelivered { submission, .. } => {
                let revision = queued.remove(submission).expect("only what waits is delivered");
                away.insert(submission.clone(), revision);
            }
            Event::SubmissionQueued { submission, .. }
            | Event::InputRefused { submission: Some(submission), .. } => {
                if let Some(revision) = away.remove(submission) {
                    queued.insert(submission.clone(), revision);
                }
            }
            Event::SubmissionTaken { submission, .. }
            | Event::SubmissionRejected { submission, .. }
            | Event::SubmissionDropped { submission }
            | Event::SubmissionCancelled { submission } => {
                queued.remove(submission);
                away.remove(submission);
            }
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_order_of_inputs_keeps_the_invariants(
        steps in proptest::collection::vec(any_input(), 1..60),
        steer in any::<bool>(),
        // Half of them begin where a turn runs: few random orders come that far.
        running in any::<bool>(),
    ) {
        let able = running;
        let mut bench = Bench::with(Capabilities {
            steer,
            set_options: able,
            goals: able,
            compact: able,
            rewind: able,
            shell: able,
            stop_tasks: able,
            stop_children: !steer,
            stop_background: able,
            ..capabilities()
        });
        if running {
            bench.send("first");
            bench.start_process();
            bench.begin_turn("pt0", "first");
        }
        for (n, what) in steps.iter().enumerate() {
            step(&mut bench, *what, n);
        }
        check_ends(&bench.journal);
        check_changes(&bench.journal);
        check_deliveries(&bench.journal);
        let untaken = bench.session.submissions.iter()
            .filter(|open| matches!(open.state, SubmissionState::Delivered { .. })).count();
        prop_assert!(untaken <= 1);
        let fences: Vec<u64> = bench.journal.iter().map(|stamped| stamped.fence.0).collect();
        prop_assert!(fences.is_sorted());
    }
}
