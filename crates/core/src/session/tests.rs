use super::*;
use crate::agent::{AgentInfo, AskedByAgent, SteerRefusal, TakenProof};
use crate::content::{
    FailureCode, ItemFields, ItemKind, ItemStatus, OptionKind, Origin, Outcome, PermissionOption, RequestKind,
};
use crate::event::{QueueReason, RequestEnd, SettlesBy, StopStep, ThreadOrigin};
use crate::process::{ExitCause, ProcessExit, ProcessId};
use crate::refusal::RefusalCode;
use crate::work::Control;
use crate::{AgentName, Cursor, HostId, ItemKey, ProviderTurn, RequestKey};

mod any_order;
mod asked_again_rules;
mod background_rules;
mod control_rules;
mod folding;
mod imported;
mod leaving_rules;
mod limit_rules;
mod queue_rules;
mod record_rules;
mod request_rules;
mod stop_rules;
mod takeover_rules;

/// A session with its whole journal, so that every test also checks that state is the fold of it.
struct Bench {
    session: Session,
    journal: Vec<Stamped>,
    capabilities: Capabilities,
    tokens: u32,
    inputs: u64,
    now: i64,
}

fn capabilities() -> Capabilities {
    Capabilities {
        resume: true,
        confirms_answers: true,
        settles_by_history: true,
        tools_outlive_turns: true,
        ..Capabilities::bare(TakenProof::ClientId)
    }
}

fn launch() -> LaunchSnapshot {
    LaunchSnapshot {
        host: HostId::from("h"),
        agent: AgentName::from("a"),
        cwd: "/w".to_owned(),
        additional_directories: Vec::new(),
        account_home: None,
        mcp_servers: Vec::new(),
        instructions: None,
        env_names: Vec::new(),
        command: None,
        source: None,
        beside: None,
    }
}

impl Bench {
    fn new() -> Self {
        Self::with(capabilities())
    }

    fn with(capabilities: Capabilities) -> Self {
        let mut out = Out::default();
        let id = SessionId::from("s");
        let session = Session::create(id, None, launch(), SessionOptions::default(), 1, &mut out);
        Self { session, journal: out.events, capabilities, tokens: 0, inputs: 0, now: 10 }
    }

    /// Handles an input, hands messages over as a lane does, and checks the fold.
    fn input(&mut self, input: Input) -> Result<(Reply, Vec<Effect>), Refusal> {
        self.tokens += 1;
        let fresh = ProcessToken(format!("p{}", self.tokens));
        let moment = Moment { now: self.now, capabilities: &self.capabilities, fresh: &fresh };
        let before = self.session.clone();
        let mut out = Out::default();
        let reply = match self.session.handle(input, &moment, &mut out) {
            Ok(reply) => reply,
            Err(refusal) => {
                assert_eq!(self.session, before, "a refused input changed something");
                assert!(out.events.is_empty() && out.effects.is_empty());
                return Err(refusal);
            }
        };
        let effects = out.effects.clone();
        for effect in &effects {
            if let Effect::Tell(Decision::StartTurn { submission, .. } | Decision::Steer { submission, .. }) =
                effect
            {
                self.inputs += 1;
                let handed = Input::Handed { submission: submission.clone(), input: self.inputs };
                self.session.handle(handed, &moment, &mut out).expect("handed");
            }
        }
        self.journal.extend(out.events);
        self.check_fold();
        Ok((reply, effects))
    }

    fn must(&mut self, input: Input) -> Vec<Effect> {
        self.input(input).expect("taken").1
    }

    fn check_fold(&self) {
        let mut folded = Session::from_first(&self.journal[0]).expect("first");
        let (mut epoch, mut seq) = (1, 1);
        for stamped in &self.journal[1..] {
            if stamped.epoch != epoch {
                (epoch, seq) = (stamped.epoch, 0);
            }
            assert_eq!(stamped.first_seq.unwrap_or(stamped.seq), seq + 1, "the journal has a hole");
            seq = stamped.seq;
            let line = serde_json::to_string(stamped).expect("serializes");
            let read: Stamped = serde_json::from_str(&line).expect("reads back");
            assert_eq!(read, *stamped, "an event does not survive being stored: {line}");
            folded.apply(&read);
        }
        assert_eq!(folded, self.session, "the state is not the fold of the journal");
        let saved = serde_json::to_string(&self.session).expect("snapshot");
        assert_eq!(serde_json::from_str::<Session>(&saved).expect("loads"), self.session);
    }

    fn send(&mut self, id: &str) -> Vec<Effect> {
        self.must(Input::Command(Command::Send {
            submission: SubmissionId::from(id),
            content: vec![ContentBlock::text("hello")],
            delivery: Delivery::Auto,
            resends: None,
        }))
    }

    fn agent(&mut self, event: AgentEvent) -> Vec<Effect> {
        self.must(Input::Agent(event))
    }

    fn process(&self) -> ProcessToken {
        self.session.process.clone().expect("a process")
    }

    fn start_process(&mut self) {
        let process = self.process();
        let agent = Some(ProcessId { boot_id: "b".to_owned(), pid: 7, start_time: 9 });
        self.must(Input::Process(ProcessFact::Started { process, agent }));
        self.agent(AgentEvent::Ready(AgentInfo::default()));
        let resumed = self.session.thread().is_some();
        self.agent(AgentEvent::ThreadOpened { thread: ThreadId::from("thread"), resumed });
    }

    /// A session whose first message is with the agent.
    fn delivered() -> Self {
        let mut bench = Self::new();
        bench.send("m1");
        bench.start_process();
        bench
    }

    /// A session whose first turn runs.
    fn running() -> Self {
        let mut bench = Self::delivered();
        bench.begin_turn("pt1", "m1");
        bench
    }

    fn begin_turn(&mut self, turn: &str, submission: &str) {
        let submission = SubmissionId::from(submission);
        self.agent(AgentEvent::TurnStarted {
            turn: ProviderTurn::from(turn),
            origin: Origin::Message,
            submission: Some(submission.clone()),
        });
        self.agent(AgentEvent::InputTaken { submission, proof: TakenProof::ClientId });
    }

    fn end_turn(&mut self, turn: &str, outcome: Outcome) -> Vec<Effect> {
        self.agent(AgentEvent::TurnEnded {
            turn: ProviderTurn::from(turn),
            outcome,
            stop_reason: None,
            failure: None,
            usage: None,
        })
    }

    fn ask(&mut self) -> RequestId {
        self.agent(AgentEvent::RequestOpened(AskedByAgent {
            turn: Some(ProviderTurn::from("pt1")),
            options: vec![
                PermissionOption {
                    option_id: "yes".to_owned(),
                    name: "Yes".to_owned(),
                    kind: OptionKind::AllowOnce,
                },
                PermissionOption {
                    option_id: "no".to_owned(),
                    name: "No".to_owned(),
                    kind: OptionKind::RejectOnce,
                },
            ],
            ..AskedByAgent::new(RequestKey::from("1:0"), RequestKind::Approval, "may I")
        }));
        self.session.requests.last().expect("open").id.clone()
    }

    fn answer(
        &mut self,
        request: &RequestId,
        option: &str,
        by: &str,
    ) -> Result<(Reply, Vec<Effect>), Refusal> {
        self.input(Input::Command(Command::Answer {
            request: request.clone(),
            revision: None,
            answer: Answer::Select { option_id: option.to_owned() },
            by: by.to_owned(),
        }))
    }

    fn exit(&mut self, exit: ProcessExit) -> Vec<Effect> {
        let process = self.process();
        self.must(Input::Process(ProcessFact::Exited { process, exit }))
    }

    fn kinds(&self) -> Vec<&'static str> {
        self.journal.iter().map(|stamped| stamped.event.kind()).collect()
    }

    fn count(&self, kind: &str) -> usize {
        self.kinds().iter().filter(|known| **known == kind).count()
    }

    fn delta(&mut self, text: &str) {
        self.agent(AgentEvent::ItemDelta {
            key: ItemKey::from("k"),
            turn: Some(ProviderTurn::from("pt1")),
            kind: ItemKind::AgentMessage,
            text: text.to_owned(),
        });
    }
}

#[test]
fn a_message_reserves_a_process_and_is_delivered_when_the_thread_is_proven() {
    let mut bench = Bench::new();
    let effects = bench.send("m1");
    assert!(matches!(&effects[..], [Effect::Acquire { fence: Fence(1), .. }]));
    assert_eq!(bench.session.status().status, Status::Starting);
    bench.start_process();
    assert_eq!(bench.session.phase, Phase::Held);
    assert!(bench.session.input_untaken());
    bench.begin_turn("pt1", "m1");
    assert_eq!(bench.session.status().status, Status::Running);
    bench.end_turn("pt1", Outcome::Completed);
    assert_eq!(bench.session.status().status, Status::Idle);
    assert_eq!(bench.count("turn.ended"), 1);
}

#[test]
fn one_input_at_most_is_with_the_agent_and_untaken() {
    let mut bench = Bench::delivered();
    assert!(bench.send("m2").is_empty());
    assert_eq!(bench.count("submission.delivered"), 1);
    bench.begin_turn("pt1", "m1");
    assert_eq!(bench.count("submission.delivered"), 1, "a turn runs and cannot be steered");
    let effects = bench.end_turn("pt1", Outcome::Completed);
    assert!(matches!(&effects[..], [Effect::Tell(Decision::StartTurn { .. })]));
}

#[test]
fn frames_of_a_finished_turn_and_item_touch_nothing() {
    let mut bench = Bench::running();
    bench.delta("abc");
    bench.agent(AgentEvent::ItemCompleted {
        key: ItemKey::from("k"),
        turn: None,
        kind: ItemKind::AgentMessage,
        status: ItemStatus::Completed,
        text: Some("abc".to_owned()),
        fields: ItemFields::default(),
    });
    bench.end_turn("pt1", Outcome::Completed);
    let head = bench.session.head;
    bench.delta("late");
    bench.end_turn("pt1", Outcome::Failed);
    bench.agent(AgentEvent::TurnStarted {
        turn: ProviderTurn::from("pt1"),
        origin: Origin::Message,
        submission: None,
    });
    assert_eq!(bench.session.head, head);
}

#[test]
fn an_agent_may_use_a_key_again_in_a_later_turn_or_process() {
    let mut bench = Bench::running();
    bench.delta("abc");
    bench.end_turn("pt1", Outcome::Completed);
    bench.send("m2");
    bench.begin_turn("pt2", "m2");
    let again = AgentEvent::ItemDelta {
        key: ItemKey::from("k"),
        turn: Some(ProviderTurn::from("pt2")),
        kind: ItemKind::AgentMessage,
        text: "again".to_owned(),
    };
    bench.agent(again);
    assert_eq!(bench.session.items.len(), 1, "a new item, not a late frame");
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.send("m3");
    bench.start_process();
    bench.begin_turn("pt1", "m3");
    assert_eq!(bench.session.turns.len(), 1, "another process may count its turns from the beginning");
    bench.delta("once more");
    assert_eq!(bench.session.items.len(), 1);
}

#[test]
fn deltas_of_one_batch_are_merged_and_say_so() {
    let mut bench = Bench::running();
    let fresh = ProcessToken::from("f");
    let moment = Moment { now: 10, capabilities: &bench.capabilities, fresh: &fresh };
    let mut out = Out::default();
    for piece in ["a", "ü", "c"] {
        let event = AgentEvent::ItemDelta {
            key: ItemKey::from("k"),
            turn: None,
            kind: ItemKind::AgentMessage,
            text: piece.to_owned(),
        };
        bench.session.handle(Input::Agent(event), &moment, &mut out).expect("taken");
    }
    let [_, merged] = &out.events[..] else { panic!("not merged: {:?}", out.events) };
    assert_eq!(merged.first_seq, Some(merged.seq - 2));
    assert!(matches!(&merged.event, Event::ItemDelta { offset: 0, text, .. } if text == "aüc"));
    bench.journal.extend(out.events);
    bench.check_fold();
    assert_eq!(bench.session.items[0].text.bytes(), 4);
}

#[test]
fn a_provider_text_that_differs_replaces_the_folded_one() {
    let mut bench = Bench::running();
    bench.delta("abc");
    bench.agent(AgentEvent::ItemCompleted {
        key: ItemKey::from("k"),
        turn: None,
        kind: ItemKind::AgentMessage,
        status: ItemStatus::Completed,
        text: Some("abcd".to_owned()),
        fields: ItemFields::default(),
    });
    let last = bench.journal.last().expect("an event");
    assert!(matches!(&last.event, Event::ItemCompleted { text: Some(_), replaces: true, bytes: 4, .. }));
}

#[test]
fn an_approval_is_answered_once_and_the_loser_is_told_who_won() {
    let mut bench = Bench::running();
    let request = bench.ask();
    assert_eq!(bench.session.status().status, Status::RequiresAction);
    let (_, effects) = bench.answer(&request, "yes", "anna").expect("first wins");
    assert!(matches!(&effects[..], [Effect::Tell(Decision::Answer { .. })]));
    let refusal = bench.answer(&request, "no", "ben").expect_err("second loses");
    assert_eq!(refusal.code, RefusalCode::AlreadyAnswered);
    assert_eq!(refusal.winner.expect("winner").1, "anna");
    bench.agent(AgentEvent::RequestSettled { key: RequestKey::from("1:0"), confirmed: true });
    let refusal = bench.answer(&request, "no", "ben").expect_err("still loses");
    assert_eq!(refusal.code, RefusalCode::AlreadyAnswered);
    assert_eq!(bench.count("request.closed"), 1);
    assert_eq!(bench.count("turn.waiting"), bench.count("turn.resumed"));
}

#[test]
fn an_answer_needs_an_option_that_was_offered_and_the_revision_that_is() {
    let mut bench = Bench::running();
    let request = bench.ask();
    assert_eq!(bench.answer(&request, "maybe", "x").expect_err("unknown").code, RefusalCode::OptionUnknown);
    let stale = Input::Command(Command::Answer {
        request,
        revision: Some(9),
        answer: Answer::Decline { message: None },
        by: "x".to_owned(),
    });
    let refusal = bench.input(stale).expect_err("stale");
    assert_eq!((refusal.code, refusal.revision), (RefusalCode::RevisionMismatch, Some(1)));
}

#[test]
fn an_agent_that_confirms_nothing_has_its_request_closed_with_the_answer() {
    let mut bench = Bench::with(Capabilities { confirms_answers: false, ..capabilities() });
    bench.send("m1");
    bench.start_process();
    bench.begin_turn("pt1", "m1");
    let request = bench.ask();
    bench.answer(&request, "no", "anna").expect("taken");
    assert!(bench.session.requests.is_empty());
    assert_eq!(bench.session.closed_requests[0].end, RequestEnd::Declined);
}

#[test]
fn a_stop_before_the_turn_is_known_waits_for_it() {
    let mut bench = Bench::delivered();
    let (reply, effects) =
        bench.input(Input::Command(Command::Interrupt(StopScope::Session))).expect("never refused");
    assert!(matches!(reply, Reply::Interrupted { turn: None, pending: true, .. }));
    assert!(matches!(&effects[..], [Effect::Tell(Decision::Interrupt { turn: None })]));
    bench.begin_turn("pt1", "m1");
    bench.end_turn("pt1", Outcome::Cancelled);
    let ended = bench.journal.iter().rev().find_map(|stamped| match &stamped.event {
        Event::TurnEnded { outcome, .. } => Some(*outcome),
        _ => None,
    });
    assert_eq!(ended, Some(Outcome::Interrupted));
}

#[test]
fn a_stop_before_anything_was_delivered_withdraws_the_message_and_pauses_the_rest() {
    let mut bench = Bench::new();
    bench.send("m1");
    bench.send("m2");
    let (reply, _) =
        bench.input(Input::Command(Command::Interrupt(StopScope::Session))).expect("never refused");
    let Reply::Interrupted { withdrawn, queue_paused, .. } = reply else { panic!("{reply:?}") };
    assert_eq!((withdrawn, queue_paused), (vec![SubmissionId::from("m1")], true));
    bench.start_process();
    assert_eq!(bench.count("submission.delivered"), 0, "the paused message waits");
    bench.must(Input::Command(Command::ResumeQueue));
    assert_eq!(bench.count("submission.delivered"), 1);
}

#[test]
fn the_death_of_the_process_ends_everything_once_and_the_next_message_takes_the_thread_up_at_the_next_fence()
{
    let mut bench = Bench::running();
    bench.delta("abc");
    let request = bench.ask();
    bench.exit(ProcessExit { signal: Some(9), ..ProcessExit::of(ExitCause::AgentLeft) });
    assert!(
        bench.session.items.is_empty() && bench.session.requests.is_empty() && bench.session.turns.is_empty()
    );
    assert_eq!(bench.session.closed_requests[0].end, RequestEnd::Lost);
    assert_eq!(bench.answer(&request, "yes", "x").expect_err("lost").code, RefusalCode::RequestClosed);
    assert_eq!((bench.session.phase, bench.session.fence), (Phase::Free, Fence(1)));
    let effects = bench.send("m2");
    assert!(matches!(&effects[..], [Effect::Acquire { fence: Fence(2), .. }]));
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    let effects = bench.agent(AgentEvent::Ready(AgentInfo::default()));
    assert!(
        matches!(&effects[..], [Effect::Tell(Decision::OpenThread { resume: Some(thread), .. })] if thread.as_str() == "thread")
    );
}

#[test]
fn a_delivered_message_is_doubtful_after_a_death_unless_it_is_proven_undelivered() {
    let mut doubtful = Bench::delivered();
    doubtful.exit(ProcessExit { last_started: Some(1), ..ProcessExit::of(ExitCause::AgentLeft) });
    assert_eq!(
        doubtful.session.submissions[0].state,
        SubmissionState::Doubtful { settles_by: SettlesBy::History, stopped: false }
    );
    assert_eq!(doubtful.session.status().status, Status::RequiresAction);
    assert_eq!(doubtful.session.phase, Phase::Free, "doubt alone starts nothing");

    let mut proven = Bench::delivered();
    let effects = proven.exit(ProcessExit { last_started: Some(0), ..ProcessExit::of(ExitCause::AgentLeft) });
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "it is given to a new process");
    assert!(matches!(
        proven.session.submissions[0].state,
        SubmissionState::Accepted { waits: Some(QueueReason::Starting) }
    ));
}

#[test]
fn doubt_is_settled_by_history_or_by_the_user() {
    let mut bench = Bench::delivered();
    bench.exit(ProcessExit { last_started: Some(1), ..ProcessExit::of(ExitCause::AgentLeft) });
    bench.must(Input::Command(Command::Start));
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    let effects = bench.agent(AgentEvent::Ready(AgentInfo::default()));
    let [Effect::Tell(Decision::OpenThread { doubtful, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(doubtful, &[SubmissionId::from("m1")]);
    bench.agent(AgentEvent::InputTaken { submission: SubmissionId::from("m1"), proof: TakenProof::History });
    assert!(bench.session.submissions.is_empty());
    assert_eq!(bench.count("submission.delivered"), 1, "never sent twice");
}

#[test]
fn a_message_that_a_reattached_agent_does_not_have_is_given_again_unless_it_was_stopped() {
    let absent = || AgentEvent::InputAbsent { submission: SubmissionId::from("m1") };
    let mut bench = Bench::delivered();
    bench.agent(absent());
    assert_eq!(bench.count("submission.delivered"), 2);

    let mut stopped = Bench::delivered();
    stopped.must(Input::Command(Command::Interrupt(StopScope::Session)));
    stopped.agent(absent());
    assert_eq!((stopped.count("submission.delivered"), stopped.count("submission.cancelled")), (1, 1));
}

#[test]
fn three_deaths_in_the_first_turn_wait_for_a_user() {
    let mut bench = Bench::new();
    bench.send("m1");
    for _ in 0..CRASH_LOOP_DEATHS {
        let process = bench.process();
        bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
        bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    }
    assert_eq!(bench.session.phase, Phase::Free);
    assert_eq!(bench.session.recovering.as_ref().map(|failure| failure.code), Some(FailureCode::CrashLoop));
    let effects = bench.send("m2");
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "a user's message tries again");
}

#[test]
fn a_resume_that_answers_with_another_thread_is_refused() {
    let mut bench = Bench::running();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.send("m2");
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    bench.agent(AgentEvent::Ready(AgentInfo::default()));
    let effects = bench.agent(AgentEvent::ThreadOpened { thread: ThreadId::from("other"), resumed: true });
    assert!(effects.contains(&Effect::Close { order: CloseOrder::Host }));
    assert_eq!(bench.session.thread().map(ThreadId::as_str), Some("thread"));
    assert_eq!(bench.session.status().status, Status::Recovering);
    assert_eq!(bench.count("submission.delivered"), 1, "nothing was sent to the stranger");
}

#[test]
fn a_stop_is_never_meant_for_what_comes_after_it() {
    let mut bench = Bench::delivered();
    bench.must(Input::Command(Command::Interrupt(StopScope::Session)));
    let failure = Failure::new(FailureCode::AgentRefused, "no");
    bench.agent(AgentEvent::InputRejected { submission: SubmissionId::from("m1"), failure });
    bench.send("m2");
    bench.exit(ProcessExit { last_started: Some(9), ..ProcessExit::of(ExitCause::AgentLeft) });
    assert!(matches!(bench.session.submissions[0].state, SubmissionState::Doubtful { stopped: false, .. }));
}

#[test]
fn a_message_for_a_session_whose_agent_is_being_ended_gets_the_next_process() {
    let mut bench = Bench::running();
    bench.end_turn("pt1", Outcome::Completed);
    let failure = Failure::new(FailureCode::SignIn, "sign in first");
    bench.agent(AgentEvent::ThreadRefused { failure });
    assert_eq!(bench.session.status().status, Status::Recovering);
    bench.send("m2");
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Host }));
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
}

#[test]
fn a_stopped_message_that_never_arrived_is_not_given_again() {
    let mut by_exit = Bench::delivered();
    by_exit.must(Input::Command(Command::Interrupt(StopScope::Session)));
    let effects =
        by_exit.exit(ProcessExit { last_started: Some(0), ..ProcessExit::of(ExitCause::AgentLeft) });
    assert!(effects.is_empty() && by_exit.session.submissions.is_empty(), "{effects:?}");

    let mut by_refusal = Bench::delivered();
    by_refusal.must(Input::Command(Command::Interrupt(StopScope::Session)));
    let process = by_refusal.process();
    by_refusal.must(Input::Process(ProcessFact::InputRefused { process, n: 1, why: "gone".to_owned() }));
    assert_eq!(by_refusal.count("submission.cancelled"), 1);
}

#[test]
fn a_users_stop_holds_however_the_process_ended() {
    let mut bench = Bench::running();
    bench.send("m2");
    bench.must(Input::Command(Command::Stop { order: CloseOrder::User }));
    let effects = bench.exit(ProcessExit::of(ExitCause::KeeperLost));
    assert!(effects.is_empty(), "{effects:?}");
    assert!(bench.session.queue_paused);
    let ended = bench.journal.iter().rev().find_map(|stamped| match &stamped.event {
        Event::TurnEnded { outcome, .. } => Some(*outcome),
        _ => None,
    });
    assert_eq!(ended, Some(Outcome::Interrupted));
}

#[test]
fn a_process_that_shows_itself_again_is_not_unverifiable_any_more() {
    let mut bench = Bench::running();
    bench.end_turn("pt1", Outcome::Completed);
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Unverifiable { process: process.clone(), why: "why".to_owned() }));
    bench.send("m2");
    let effects = bench.must(Input::Process(ProcessFact::Adopted { process }));
    assert!(
        matches!(&effects[..], [Effect::Tell(Decision::StartTurn { .. })]),
        "the queue goes on: {effects:?}"
    );
    assert!(bench.input(Input::Command(Command::Abandon)).is_err(), "it is known to be alive");
}

#[test]
fn an_archived_queue_goes_on_when_it_is_taken_out() {
    let mut bench = Bench::new();
    let archive =
        |archived| Command::Update { name: None, options: None, archived: Some(archived), limits: None };
    bench.send("m1");
    bench.exit(ProcessExit::of(ExitCause::ReservationUnused));
    bench.must(Input::Command(archive(true)));
    bench.exit(ProcessExit::of(ExitCause::ReservationUnused));
    assert!(bench.session.nothing_owed());
    let effects = bench.must(Input::Command(archive(false)));
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
}

#[test]
fn a_message_that_was_taken_for_lost_and_arrived_is_not_given_again() {
    let mut bench = Bench::delivered();
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::InputRefused { process, n: 1, why: "connection".to_owned() }));
    assert_eq!(bench.session.submissions.len(), 1, "it waits in the queue");
    bench.begin_turn("pt1", "m1");
    assert!(bench.session.submissions.is_empty());
    let effects = bench.end_turn("pt1", Outcome::Completed);
    assert!(effects.is_empty(), "it was given again: {effects:?}");
    assert_eq!((bench.count("submission.taken"), bench.count("submission.delivered")), (1, 1));
}

#[test]
fn age_takes_no_session_that_somebody_touched_meanwhile() {
    let mut bench = Bench::new();
    let seen =
        |bench: &Bench| Command::Age { seen: Cursor { epoch: bench.session.epoch, seq: bench.session.head } };
    let named = |name: &str| {
        let name = Some(Some(name.to_owned()));
        Input::Command(Command::Update { name, options: None, archived: None, limits: None })
    };
    let looked_at = seen(&bench);
    bench.must(named("still in use"));
    assert!(bench.input(Input::Command(looked_at)).is_err());
    let looked_at = seen(&bench);
    bench.must(Input::Command(looked_at));
    assert!(bench.session.archived && !bench.session.deleted);
    // Taken out and put away again between the look and the deletion.
    let looked_at = seen(&bench);
    for archived in [false, true] {
        let archive = Command::Update { name: None, options: None, archived: Some(archived), limits: None };
        bench.must(Input::Command(archive));
    }
    assert!(bench.input(Input::Command(looked_at)).is_err());
    let looked_at = seen(&bench);
    bench.must(Input::Command(looked_at));
    assert!(bench.session.deleted);
    let mut bench = Bench::running();
    let looked_at = seen(&bench);
    assert!(bench.input(Input::Command(looked_at)).is_err(), "an agent is at work");
}

#[test]
fn a_deleted_session_starts_nothing_any_more() {
    let mut bench = Bench::running();
    bench.send("m2");
    let effects = bench.must(Input::Command(Command::Delete));
    assert!(matches!(&effects[..], [Effect::Close { .. }]));
    assert_eq!(bench.session.stopping, Some(CloseOrder::User), "the order survives the host");
    assert!(bench.exit(ProcessExit::of(ExitCause::AgentLeft)).is_empty());
}

/// A session whose conversation was refused as gone; the process is being ended because of that.
fn refused_and_ending() -> Bench {
    let mut bench = Bench::running();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.send("m2");
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    bench.agent(AgentEvent::Ready(AgentInfo::default()));
    let failure = Failure::new(FailureCode::ThreadMissing, "no such conversation");
    let effects = bench.agent(AgentEvent::ThreadRefused { failure });
    assert!(
        effects.contains(&Effect::Close { order: CloseOrder::Host }),
        "a used thread is never replaced by itself"
    );
    bench
}

#[test]
fn a_conversation_that_is_gone_can_be_replaced_by_a_users_choice() {
    for chosen_before_the_end in [false, true] {
        let mut bench = refused_and_ending();
        let ended = ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Host });
        let effects = if chosen_before_the_end {
            assert!(bench.must(Input::Command(Command::StartFresh)).is_empty(), "the process is there still");
            bench.exit(ended)
        } else {
            bench.exit(ended);
            bench.must(Input::Command(Command::StartFresh))
        };
        assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
        let process = bench.process();
        bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
        let effects = bench.agent(AgentEvent::Ready(AgentInfo::default()));
        assert!(matches!(&effects[..], [Effect::Tell(Decision::OpenThread { resume: None, .. })]));
        bench.agent(AgentEvent::ThreadOpened { thread: ThreadId::from("new"), resumed: false });
        assert_eq!(bench.session.chain.last().map(|link| link.how), Some(ThreadOrigin::Replaced));
    }
}

#[test]
fn trying_again_while_a_refused_process_ends_is_a_try_with_the_next_one() {
    let mut bench = refused_and_ending();
    assert!(bench.must(Input::Command(Command::Abandon)).is_empty());
    assert!(bench.session.recovering.is_none());
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Host }));
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
    // One that lives and is not being ended is not given up.
    let mut bench = Bench::running();
    assert!(bench.input(Input::Command(Command::Abandon)).is_err());
    assert!(bench.input(Input::Command(Command::StartFresh)).is_err());
}

/// A session whose thread was opened and took no message, with another process that is asked for it.
fn opened_and_never_used() -> Bench {
    let mut bench = Bench::with(Capabilities { compact: true, ..capabilities() });
    bench.must(Input::Command(Command::Control(Control::Compact { instructions: None })));
    bench.start_process();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.send("m1");
    bench.open_again();
    bench
}

impl Bench {
    fn open_again(&mut self) -> Vec<Effect> {
        let process = self.process();
        self.must(Input::Process(ProcessFact::Started { process, agent: None }));
        self.agent(AgentEvent::Ready(AgentInfo::default()))
    }

    fn thread_missing(&mut self) -> Vec<Effect> {
        let failure = Failure::new(FailureCode::ThreadMissing, "no such conversation");
        self.agent(AgentEvent::ThreadRefused { failure })
    }
}

fn opens_anew(effects: &[Effect]) -> bool {
    effects.iter().any(|effect| matches!(effect, Effect::Tell(Decision::OpenThread { resume: None, .. })))
}

#[test]
fn a_thread_that_was_never_saved_is_made_anew_by_the_same_process() {
    let mut bench = opened_and_never_used();
    assert!(opens_anew(&bench.thread_missing()));
    bench.agent(AgentEvent::ThreadOpened { thread: ThreadId::from("new"), resumed: false });
    assert_eq!(bench.session.chain.last().map(|link| link.how), Some(ThreadOrigin::Superseded));
    assert!(bench.session.asked_to_replace.is_none() && !bench.session.replace_thread);
    assert!(bench.session.input_untaken(), "what waited goes on");
}

#[test]
fn an_agent_that_refuses_a_new_thread_too_is_followed_by_one_other_and_then_by_a_user() {
    let mut bench = opened_and_never_used();
    assert!(opens_anew(&bench.thread_missing()));
    // It answers at once, and the same: it is not asked a second time.
    let effects = bench.thread_missing();
    assert!(
        !opens_anew(&effects) && effects.contains(&Effect::Close { order: CloseOrder::Host }),
        "{effects:?}"
    );
    assert!(bench.session.recovering.is_none());
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Host }));
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
    assert!(opens_anew(&bench.open_again()), "started for a new one");
    let effects = bench.thread_missing();
    assert!(
        !opens_anew(&effects) && effects.contains(&Effect::Close { order: CloseOrder::Host }),
        "{effects:?}"
    );
    assert!(bench.session.recovering.is_some());
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Host }));
    assert!(effects.is_empty(), "a user must look at it: {effects:?}");
}

#[test]
fn a_first_thread_that_the_agent_calls_missing_is_tried_under_another_name() {
    let mut bench = Bench::new();
    bench.send("m1");
    bench.open_again();
    assert!(opens_anew(&bench.thread_missing()));
    bench.thread_missing();
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Host }));
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
    assert!(bench.session.replace_thread, "the next process is started for a new one");
    bench.open_again();
    bench.thread_missing();
    assert!(bench.session.recovering.is_some());
}

#[test]
fn open_items_are_bounded_and_tools_end_with_their_turn_where_they_cannot_outlive_it() {
    let mut bench = Bench::with(Capabilities { tools_outlive_turns: false, ..capabilities() });
    bench.send("m1");
    bench.start_process();
    bench.begin_turn("pt1", "m1");
    for n in 0..=MAX_OPEN_ITEMS {
        bench.agent(AgentEvent::ItemStarted {
            key: ItemKey(format!("tool{n}")),
            turn: Some(ProviderTurn::from("pt1")),
            kind: ItemKind::ToolCall,
            fields: ItemFields::default(),
        });
    }
    assert_eq!(bench.session.items.len(), MAX_OPEN_ITEMS);
    bench.end_turn("pt1", Outcome::Completed);
    assert!(bench.session.items.is_empty());
}

#[test]
fn facts_of_another_process_are_illegal() {
    let mut bench = Bench::running();
    let fact = ProcessFact::Exited {
        process: ProcessToken::from("other"),
        exit: ProcessExit::of(ExitCause::AgentLeft),
    };
    assert_eq!(bench.input(Input::Process(fact)).expect_err("illegal").code, RefusalCode::IllegalInput);
}

#[test]
fn an_unverifiable_process_blocks_and_can_be_given_up() {
    let mut bench = Bench::running();
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Unverifiable { process, why: "no folder".to_owned() }));
    assert_eq!(bench.session.status().status, Status::Recovering);
    bench.send("m2");
    assert_eq!(bench.count("submission.delivered"), 1, "nothing goes to it");
    bench.must(Input::Command(Command::Abandon));
    assert!(matches!(bench.session.phase, Phase::Reserved), "the waiting message gets a new process");
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    let effects = bench.agent(AgentEvent::Ready(AgentInfo::default()));
    let [Effect::Tell(Decision::OpenThread { resume, .. })] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(*resume, None, "the given-up agent may still write to its thread");
    assert_eq!(bench.session.fence, Fence(2));
}

#[test]
fn a_new_epoch_counts_from_one() {
    let mut bench = Bench::new();
    let out = {
        let fresh = ProcessToken::from("f");
        let moment = Moment { now: 10, capabilities: &bench.capabilities, fresh: &fresh };
        let mut out = Out::default();
        bench.session.handle(Input::NewEpoch(EpochReason::StoreRewound), &moment, &mut out).expect("taken");
        out
    };
    assert_eq!((out.events[0].epoch, out.events[0].seq), (2, 1));
    assert_eq!((bench.session.epoch, bench.session.head), (2, 1));
}
