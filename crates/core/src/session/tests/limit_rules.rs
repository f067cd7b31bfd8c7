//! Budgets, deadlines of requests, starts that are tried again, capacity, and what is owed.

use super::*;
use crate::ControlId;
use crate::content::DeliveryTaken;
use crate::question::{Answers, Chosen, Question};
use crate::work::{Control, ControlEnd, HistoryPoint};

fn limits(bench: &mut Bench, limits: Limits) {
    bench.must(Input::Command(Command::Update {
        name: None,
        options: None,
        archived: None,
        limits: Some(limits),
    }));
}

fn patience(after_ms: u64, answer: DefaultAnswer) -> Limits {
    Limits { requests: Some(RequestPolicy { after_ms, answer }), ..Limits::default() }
}

fn refuse_start(bench: &mut Bench, code: FailureCode) -> Vec<Effect> {
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    bench.agent(AgentEvent::Ready(AgentInfo::default()));
    bench.agent(AgentEvent::ThreadRefused { failure: Failure::new(code, "no room now") });
    bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Host }))
}

fn waits(bench: &Bench) -> Option<QueueReason> {
    match bench.session.submissions[0].state {
        SubmissionState::Accepted { waits } => waits,
        _ => None,
    }
}

impl Bench {
    fn tick(&mut self, now: i64) -> Vec<Effect> {
        self.now = now;
        let effects = self.must(Input::Tick);
        assert!(self.session.next_deadline().is_none_or(|next| next > now), "a tick must move the deadline");
        effects
    }
}

#[test]
fn a_start_refused_for_a_passing_cause_is_tried_again_on_the_schedule_and_then_waits_for_a_user() {
    let mut bench = Bench::new();
    bench.send("m1");
    for pause in START_RETRIES_MS {
        assert!(refuse_start(&mut bench, FailureCode::Overloaded).is_empty());
        assert_eq!(waits(&bench), Some(QueueReason::Retrying));
        let report = bench.session.status();
        assert_eq!(report.status, Status::Starting);
        assert!(report.reason.is_some_and(|reason| reason.contains("no room now")));
        let due = bench.now + pause;
        assert_eq!(bench.session.next_deadline(), Some(due));
        assert!(bench.tick(due - 1).is_empty());
        assert!(matches!(bench.tick(due)[..], [Effect::Acquire { .. }]));
    }
    refuse_start(&mut bench, FailureCode::Overloaded);
    assert_eq!(bench.session.status().status, Status::Recovering);
    assert_eq!(bench.session.next_deadline(), None);
}

#[test]
fn a_cause_that_stays_is_not_tried_again_and_a_users_command_tries_at_once() {
    let mut stays = Bench::new();
    stays.send("m1");
    refuse_start(&mut stays, FailureCode::SignIn);
    assert_eq!(stays.session.status().status, Status::Recovering);

    let mut passes = Bench::new();
    passes.send("m1");
    refuse_start(&mut passes, FailureCode::Network);
    assert!(matches!(passes.send("m2")[..], [Effect::Acquire { .. }]));
    // A start that worked forgets the ones that did not.
    passes.start_process();
    assert_eq!(passes.session.start_retry, None);
}

#[test]
fn a_process_that_the_machine_had_no_room_for_is_tried_again_and_one_that_cannot_be_started_is_not() {
    let unstarted = |may_pass| ProcessExit { may_pass, ..ProcessExit::of(ExitCause::SpawnFailed) };
    let mut stays = Bench::new();
    stays.send("m1");
    assert!(stays.exit(unstarted(false)).is_empty());
    assert_eq!(stays.session.status().status, Status::Recovering);

    let mut passes = Bench::new();
    passes.send("m1");
    for pause in START_RETRIES_MS {
        assert!(passes.exit(unstarted(true)).is_empty(), "not at once: it would fail in the same way");
        assert_eq!(passes.session.status().status, Status::Starting);
        let due = passes.now + pause;
        assert_eq!(passes.session.next_deadline(), Some(due));
        assert!(matches!(passes.tick(due)[..], [Effect::Acquire { .. }]));
    }
    passes.exit(unstarted(true));
    assert_eq!(passes.session.status().status, Status::Recovering);
}

#[test]
fn a_try_that_a_clock_set_back_moved_further_away_than_any_pause_is_made() {
    let mut bench = Bench::new();
    bench.send("m1");
    refuse_start(&mut bench, FailureCode::Network);
    assert!(bench.must(Input::Wake).is_empty());
    bench.now -= 3_600_000;
    assert!(matches!(bench.must(Input::Wake)[..], [Effect::Acquire { .. }]));
}

#[test]
fn nothing_is_tried_again_for_a_message_that_is_withdrawn() {
    let mut bench = Bench::new();
    bench.send("m1");
    refuse_start(&mut bench, FailureCode::Network);
    bench.must(Input::Command(Command::Withdraw { submission: SubmissionId::from("m1") }));
    assert_eq!(bench.session.next_deadline(), None);
    assert_eq!(bench.session.status().status, Status::Idle);
}

#[test]
fn over_the_limit_of_processes_a_message_waits_and_says_so() {
    let mut bench = Bench::new();
    bench.send("m1");
    let process = bench.process();
    for _ in 0..2 {
        let process = process.clone();
        bench.must(Input::Process(ProcessFact::AwaitsCapacity { process }));
    }
    bench.send("m2");
    assert_eq!(waits(&bench), Some(QueueReason::Capacity));
    assert!(bench.session.status().reason.is_some_and(|reason| reason.contains("capacity")));
    bench.start_process();
    assert!(!bench.session.awaits_capacity);
}

#[test]
fn a_request_that_nobody_answers_gets_the_stated_default_in_time() {
    let mut bench = Bench::running();
    limits(&mut bench, patience(1_000, DefaultAnswer::AllowOnce));
    bench.ask();
    assert_eq!(bench.session.next_deadline(), Some(bench.now + 1_000));
    let effects = bench.tick(bench.now + 1_000);
    let [Effect::Tell(Decision::Answer { answer, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*answer, Answer::Select { option_id: "yes".to_owned() });
    // Late answers get what won.
    let request = bench.session.requests[0].id.clone();
    let refusal = bench.answer(&request, "no", "late").expect_err("too late");
    assert_eq!(refusal.winner.map(|winner| winner.1).as_deref(), Some("deadline"));
}

#[test]
fn without_a_policy_a_request_waits_for_ever() {
    let mut bench = Bench::running();
    bench.ask();
    assert_eq!(bench.session.next_deadline(), None);
}

#[test]
fn a_request_has_one_end_that_late_answers_are_told() {
    let mut bench = Bench::running();
    let request = bench.ask();
    bench.agent(AgentEvent::RequestSettled { key: RequestKey::from("1:0"), confirmed: false });
    for _ in 0..2 {
        let refusal = bench.answer(&request, "yes", "late").expect_err("over");
        assert_eq!(refusal.code, RefusalCode::RequestClosed);
        assert_eq!(refusal.ended, Some(RequestEnd::Superseded));
    }
}

#[test]
fn secrets_go_to_the_agent_and_not_into_the_journal() {
    let mut bench = Bench::running();
    let question = Question { id: "key".to_owned(), free_text: true, secret: true, ..Question::default() };
    bench.agent(AgentEvent::RequestOpened(AskedByAgent {
        questions: vec![question],
        ..AskedByAgent::new(RequestKey::from("1:0"), RequestKind::Question, "key?")
    }));
    let request = bench.session.requests[0].id.clone();
    let text = Some("hush".to_owned());
    let answers = Answers::from([("key".to_owned(), Chosen { selected: Vec::new(), text })]);
    let (revision, by) = (None, "me".to_owned());
    let answer = Command::Answer { request, revision, answer: Answer::Answers { answers }, by };
    let effects = bench.must(Input::Command(answer));
    assert!(format!("{effects:?}").contains("hush"));
    assert!(!format!("{:?}", bench.journal).contains("hush"));
}

#[test]
fn budgets_of_turns_and_tokens_hold_messages_back_and_say_which() {
    let mut bench = Bench::running();
    limits(&mut bench, Limits { max_turns: Some(1), ..Limits::default() });
    bench.end_turn("pt1", Outcome::Completed);
    bench.send("m2");
    assert_eq!(waits(&bench), Some(QueueReason::Budget));
    assert!(bench.session.status().reason.is_some_and(|reason| reason.contains("max_turns")));
    assert!(bench.session.nothing_owed(), "the agent may rest until somebody raises the budget");
    limits(&mut bench, Limits { max_turns: Some(2), ..Limits::default() });
    assert!(bench.session.input_untaken(), "a larger budget lets it go on");
}

#[test]
fn a_budget_that_is_reached_stops_the_turn_and_the_turn_says_limit() {
    let mut bench = Bench::running();
    limits(&mut bench, Limits { max_tokens: Some(100), ..Limits::default() });
    let spent = |tokens| AgentEvent::Spent {
        counter: Spent { tokens: Some(tokens), cost_micros: None },
        of_process: false,
    };
    assert!(bench.agent(spent(99)).is_empty());
    let effects = bench.agent(spent(100));
    assert!(matches!(effects[..], [Effect::Tell(Decision::Interrupt { .. })]), "{effects:?}");
    assert!(bench.agent(spent(101)).is_empty(), "it is stopped once");
    bench.end_turn("pt1", Outcome::Cancelled);
    let outcome = bench.journal.iter().rev().find_map(|stamped| match &stamped.event {
        Event::TurnEnded { outcome, .. } => Some(*outcome),
        _ => None,
    });
    assert_eq!(outcome, Some(Outcome::Limit));
}

#[test]
fn counters_that_begin_anew_are_summed_over_processes() {
    for (of_process, total) in [(true, 150), (false, 80)] {
        let mut bench = Bench::running();
        let spent = |tokens| AgentEvent::Spent {
            counter: Spent { tokens: Some(tokens), cost_micros: None },
            of_process,
        };
        bench.agent(spent(40));
        bench.agent(spent(70));
        bench.exit(ProcessExit::of(ExitCause::AgentLeft));
        bench.send("m2");
        bench.start_process();
        bench.agent(spent(80));
        assert_eq!(bench.session.spent.tokens, Some(total), "of a process: {of_process}");
    }
}

#[test]
fn the_time_that_turns_run_can_be_bounded() {
    let mut bench = Bench::running();
    limits(&mut bench, Limits { max_turn_ms: Some(5_000), ..Limits::default() });
    let began = bench.session.turns[0].started_at;
    assert_eq!(bench.session.next_deadline(), Some(began + 5_000));
    let effects = bench.tick(began + 5_000);
    assert!(matches!(effects[..], [Effect::Tell(Decision::Interrupt { .. })]), "{effects:?}");
    bench.end_turn("pt1", Outcome::Cancelled);
    assert_eq!(bench.session.turn_ms, 5_000);
    assert_eq!(bench.session.budget_used_up(), Some(Budget::TurnTime));
}

#[test]
fn what_is_owed_is_said_kind_by_kind() {
    let mut bench = Bench::running();
    bench.ask();
    bench.send("m2");
    let owed: Vec<(OwedKind, usize)> =
        bench.session.owed().into_iter().map(|owed| (owed.what, owed.count)).collect();
    assert_eq!(owed, [(OwedKind::Turn, 1), (OwedKind::Message, 1), (OwedKind::Request, 1)]);
    assert_eq!(Bench::new().session.owed(), []);
}

#[test]
fn a_rewind_names_a_turn_as_the_provider_knows_it_and_forgets_what_it_dropped() {
    let mut bench = Bench::with(Capabilities { rewind: true, ..capabilities() });
    bench.send("m1");
    bench.start_process();
    bench.begin_turn("pt1", "m1");
    bench.end_turn("pt1", Outcome::Completed);
    let (reply, _) = bench
        .input(Input::Command(Command::Send {
            submission: SubmissionId::from("m2"),
            content: vec![ContentBlock::text("x")],
            delivery: Delivery::Auto,
            resends: None,
        }))
        .expect("taken");
    assert!(matches!(reply, Reply::Accepted { taken_as: DeliveryTaken::Start, .. }));
    bench.begin_turn("pt2", "m2");
    bench.end_turn("pt2", Outcome::Completed);
    let rewind = |turn: &str| Input::Command(Command::Rewind { before: TurnId::from(turn), files: false });
    assert_eq!(bench.input(rewind("t9")).expect_err("unknown").code, RefusalCode::TurnUnknown);
    let effects = bench.must(rewind("t2"));
    let [Effect::Tell(Decision::Control { control: Control::Rewind { before, .. }, .. })] = &effects[..]
    else {
        panic!("{effects:?}")
    };
    let point = HistoryPoint {
        turn: ProviderTurn::from("pt2"),
        submission: Some(SubmissionId::from("m2")),
        last_item: None,
    };
    assert_eq!(*before, point);
    bench.agent(AgentEvent::ControlEnded { control: ControlId::from("c1"), end: ControlEnd::Done });
    assert_eq!(bench.count("thread.rewound"), 1);
    let known: Vec<&str> = bench.session.past_turns.iter().map(|past| past.id.as_str()).collect();
    assert_eq!(known, ["t1"]);
}

#[test]
fn a_turn_that_only_tries_again_for_too_long_is_stopped_and_says_why() {
    let retry = |attempt| AgentEvent::Retrying {
        turn: Some("U1".into()),
        attempt,
        of: None,
        failure: Failure::new(FailureCode::Network, "waiting for network"),
        next_at: None,
    };
    let mut bench = Bench::new();
    bench.send("m1");
    bench.start_process();
    bench.agent(AgentEvent::TurnStarted { turn: "U1".into(), origin: Origin::Message, submission: None });
    bench.now = 10_000;
    bench.agent(retry(1));
    assert_eq!(bench.session.next_deadline(), None, "no bound is set");
    limits(&mut bench, Limits { max_stall_ms: Some(5_000), ..Limits::default() });
    bench.now = 12_000;
    bench.agent(retry(2));
    assert_eq!(bench.session.next_deadline(), Some(15_000), "since the first try");
    // New work begins it anew.
    bench.agent(AgentEvent::ItemDelta {
        key: "i".into(),
        turn: Some("U1".into()),
        kind: ItemKind::AgentMessage,
        text: "x".to_owned(),
    });
    assert_eq!(bench.session.next_deadline(), None);
    bench.now = 20_000;
    bench.agent(retry(1));
    assert!(bench.tick(24_999).is_empty());
    let effects = bench.tick(25_000);
    assert!(matches!(effects[..], [Effect::Tell(Decision::Interrupt { .. })]), "{effects:?}");
    bench.agent(AgentEvent::TurnEnded {
        turn: "U1".into(),
        outcome: Outcome::Interrupted,
        stop_reason: None,
        failure: None,
        usage: None,
    });
    let ended = bench.journal.iter().rev().find_map(|stamped| match &stamped.event {
        Event::TurnEnded { outcome, failure, .. } => Some((*outcome, failure.clone())),
        _ => None,
    });
    let (outcome, failure) = ended.expect("it ended");
    assert_eq!(outcome, Outcome::Limit);
    assert!(failure.is_some_and(|failure| failure.message.contains("waiting for network")));
    // The next one starts: nothing is used up.
    assert_eq!(bench.session.budget_used_up(), None);
}

#[test]
fn turns_that_came_with_an_adopted_conversation_use_up_no_budget() {
    let mut bench = Bench::new();
    limits(&mut bench, Limits { max_turns: Some(1), ..Limits::default() });
    let turn = ProviderTurn::from("old");
    let (stop_reason, failure, usage) = (None, None, None);
    let past = Past::Whole(vec![
        AgentEvent::TurnStarted { turn: turn.clone(), origin: Origin::Client, submission: None },
        AgentEvent::TurnEnded { turn, outcome: Outcome::Completed, stop_reason, failure, usage },
    ]);
    let fresh = ProcessToken::from("unused");
    let moment = Moment { now: bench.now, capabilities: &bench.capabilities, fresh: &fresh };
    let mut out = Out::default();
    bench.session.begin_with_past(ThreadId::from("thread"), past, &moment, &mut out);
    bench.journal.extend(out.events);
    assert_eq!((bench.session.turn_count, bench.session.budget_used_up()), (1, None));
    bench.send("m1");
    bench.start_process();
    bench.begin_turn("pt1", "m1");
    bench.end_turn("pt1", Outcome::Completed);
    assert_eq!(bench.session.budget_used_up(), Some(Budget::Turns));
}
