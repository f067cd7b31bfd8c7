//! Requests that a death of the agent cut off: the one that nobody answered is asked again, every other one is lost and its
//! call says that it may have run.

use super::*;
use crate::process::CloseOrder;

fn asks_again() -> Capabilities {
    Capabilities { asks_again: true, tools_outlive_turns: false, ..capabilities() }
}

impl Bench {
    /// A running turn whose call waits for an approval.
    fn waiting() -> (Self, RequestId) {
        let mut bench = Self::with(asks_again());
        bench.send("m1");
        bench.start_process();
        bench.begin_turn("pt1", "m1");
        bench.call("call-1", "pt1");
        let request = bench.ask_about("call-1", None);
        (bench, request)
    }

    fn call(&mut self, key: &str, turn: &str) {
        self.agent(AgentEvent::ItemStarted {
            key: ItemKey::from(key),
            turn: Some(ProviderTurn::from(turn)),
            kind: ItemKind::ToolCall,
            fields: ItemFields::default(),
        });
    }

    fn ask_about(&mut self, call: &str, recovers: Option<&RequestId>) -> RequestId {
        let option = |id: &str, kind| PermissionOption { option_id: id.into(), name: id.into(), kind };
        self.agent(AgentEvent::RequestOpened(AskedByAgent {
            turn: recovers.is_none().then(|| ProviderTurn::from("pt1")),
            item: Some(ItemKey::from(call)),
            options: vec![option("yes", OptionKind::AllowOnce), option("no", OptionKind::RejectOnce)],
            recovers: recovers.cloned(),
            ..AskedByAgent::new(RequestKey(format!("of:{call}")), RequestKind::Approval, "may I")
        }));
        self.session.requests.last().expect("open").id.clone()
    }

    /// The agent that follows one that died, as far as its thread is open; `again` are the calls that it asks again about.
    fn next_process(&mut self, again: &[(&RequestId, &str)]) {
        let process = self.process();
        self.must(Input::Process(ProcessFact::Started { process, agent: None }));
        self.agent(AgentEvent::Ready(AgentInfo::default()));
        for (request, call) in again {
            self.ask_about(call, Some(request));
        }
        self.agent(AgentEvent::ThreadOpened { thread: ThreadId::from("thread"), resumed: true });
    }

    fn closed(&self) -> Vec<(RequestEnd, bool)> {
        let closed = |stamped: &Stamped| match &stamped.event {
            Event::RequestClosed { state, asked_again, .. } => Some((*state, *asked_again)),
            _ => None,
        };
        self.journal.iter().filter_map(closed).collect()
    }

    fn calls_that_may_have_run(&self) -> usize {
        let marked = |stamped: &&Stamped| matches!(&stamped.event, Event::ItemCompleted { fields, .. } if fields.may_have_run == Some(true));
        self.journal.iter().filter(marked).count()
    }
}

#[test]
fn an_unanswered_request_is_asked_again_by_the_next_process_and_names_the_old_one() {
    let (mut bench, request) = Bench::waiting();
    let effects = bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
    assert_eq!(bench.closed(), [(RequestEnd::Lost, true)]);
    assert_eq!(bench.calls_that_may_have_run(), 0, "it waited, so it did not run");
    assert_eq!(bench.session.status().status, Status::Starting);
    bench.next_process(&[(&request, "call-1")]);
    let again = &bench.session.requests[0];
    assert_eq!(again.recovers.as_ref(), Some(&request));
    assert_eq!(bench.session.status().status, Status::RequiresAction);
    assert!(bench.session.cut_off_requests.is_empty());
    let again = again.id.clone();
    let (_, effects) = bench.answer(&again, "yes", "me").expect("answered");
    assert!(matches!(&effects[..], [Effect::Tell(Decision::Answer { .. })]), "{effects:?}");
}

#[test]
fn a_message_waits_for_the_answer_and_a_stop_takes_the_request_back() {
    let (mut bench, request) = Bench::waiting();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.next_process(&[(&request, "call-1")]);
    assert!(bench.send("m2").is_empty(), "it would take the request back");
    let reason = SubmissionState::Accepted { waits: Some(QueueReason::Request) };
    assert_eq!(bench.session.submissions[0].state, reason);
    bench.must(Input::Command(Command::Interrupt(StopScope::Session)));
    assert!(bench.session.requests.is_empty() && bench.session.submissions[0].paused);
    let effects = bench.must(Input::Command(Command::ResumeQueue));
    assert!(matches!(&effects[..], [Effect::Tell(Decision::StartTurn { .. })]), "{effects:?}");
}

#[test]
fn a_message_that_interrupts_takes_the_request_back_and_starts() {
    let (mut bench, request) = Bench::waiting();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.next_process(&[(&request, "call-1")]);
    let effects = bench.must(Input::Command(Command::Send {
        submission: SubmissionId::from("m2"),
        content: vec![ContentBlock::text("hello")],
        delivery: Delivery::Interrupt,
        resends: None,
    }));
    assert!(matches!(&effects[..], [Effect::Tell(Decision::StartTurn { .. })]), "{effects:?}");
    assert_eq!(bench.closed().last(), Some(&(RequestEnd::Cancelled, false)));
}

#[test]
fn an_answered_request_is_not_asked_again_and_its_call_may_have_run() {
    let (mut bench, request) = Bench::waiting();
    bench.answer(&request, "yes", "me").expect("answered");
    let effects = bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(bench.closed(), [(RequestEnd::Answered, false)]);
    assert_eq!(bench.calls_that_may_have_run(), 1);
}

#[test]
fn nothing_is_asked_again_after_a_stop_or_by_an_agent_that_cannot() {
    let (mut stopped, _) = Bench::waiting();
    stopped.must(Input::Command(Command::Stop { order: CloseOrder::User }));
    assert!(stopped.exit(ProcessExit::of(ExitCause::AgentLeft)).is_empty());
    assert_eq!(stopped.closed(), [(RequestEnd::Lost, false)]);

    let (mut other, _) = Bench::waiting();
    other.capabilities.asks_again = false;
    assert!(other.exit(ProcessExit::of(ExitCause::AgentLeft)).is_empty());
    assert_eq!(other.closed(), [(RequestEnd::Lost, false)]);
}

#[test]
fn a_death_before_the_conversation_is_open_leaves_one_request_to_ask_again() {
    for answered in [false, true] {
        let (mut bench, request) = Bench::waiting();
        bench.exit(ProcessExit::of(ExitCause::AgentLeft));
        let process = bench.process();
        bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
        bench.agent(AgentEvent::Ready(AgentInfo::default()));
        let again = bench.ask_about("call-1", Some(&request));
        if answered {
            bench.answer(&again, "yes", "me").expect("answered");
        }
        bench.exit(ProcessExit::of(ExitCause::AgentLeft));
        let left: Vec<&RequestId> =
            bench.session.cut_off_requests.iter().map(|(request, _)| request).collect();
        let expected = if answered { vec![] } else { vec![&again] };
        assert_eq!(left, expected, "answered: {answered}");
    }
}

#[test]
fn a_request_that_the_history_does_not_have_stays_lost() {
    let (mut bench, _) = Bench::waiting();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.next_process(&[]);
    assert!(bench.session.requests.is_empty() && bench.session.cut_off_requests.is_empty());
    let effects = bench.send("m2");
    assert!(matches!(&effects[..], [Effect::Tell(Decision::StartTurn { .. })]), "{effects:?}");
}

#[test]
fn an_agent_that_dies_each_time_it_asks_again_is_not_started_for_ever() {
    let (mut bench, mut request) = Bench::waiting();
    for _ in 0..CRASH_LOOP_DEATHS - 1 {
        bench.exit(ProcessExit::of(ExitCause::AgentLeft));
        bench.next_process(&[(&request, "call-1")]);
        request = bench.session.requests[0].id.clone();
    }
    assert!(bench.exit(ProcessExit::of(ExitCause::AgentLeft)).is_empty());
    assert_eq!(bench.session.recovering.as_ref().map(|failure| failure.code), Some(FailureCode::CrashLoop));
    bench.must(Input::Command(Command::Start));
    bench.next_process(&[(&request, "call-1")]);
    assert_eq!(bench.session.requests.len(), 1, "it is still to be answered");
}

#[test]
fn a_stop_while_a_request_waits_to_be_asked_again_starts_no_further_process() {
    for order in [CloseOrder::User, CloseOrder::Kill] {
        let (mut bench, _) = Bench::waiting();
        bench.exit(ProcessExit::of(ExitCause::AgentLeft));
        let process = bench.process();
        bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
        bench.must(Input::Command(Command::Stop { order }));
        let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order }));
        assert!(effects.is_empty(), "{effects:?}");
        assert!(bench.session.cut_off_requests.is_empty() && bench.session.nothing_owed());
    }
}

#[test]
fn an_interrupt_takes_back_what_waits_to_be_asked_again() {
    let (mut bench, request) = Bench::waiting();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.must(Input::Command(Command::Interrupt(StopScope::Session)));
    assert!(bench.session.cut_off_requests.is_empty() && bench.session.interrupt_pending.is_none());
    assert_eq!(bench.session.next_deadline(), None);
    // The agent had been told what to ask again before.
    let process = bench.process();
    bench.must(Input::Process(ProcessFact::Started { process, agent: None }));
    bench.agent(AgentEvent::Ready(AgentInfo::default()));
    bench.agent(AgentEvent::RequestOpened(AskedByAgent {
        item: Some(ItemKey::from("call-1")),
        recovers: Some(request),
        ..AskedByAgent::new(RequestKey("again".to_owned()), RequestKind::Approval, "may I")
    }));
    assert!(bench.session.requests.is_empty());
    assert_eq!(bench.closed().last(), Some(&(RequestEnd::Cancelled, false)));
}

#[test]
fn an_archived_session_asks_nothing_again_and_rests() {
    let (mut bench, _) = Bench::waiting();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.must(Input::Command(Command::Update {
        name: None,
        options: None,
        archived: Some(true),
        limits: None,
    }));
    assert!(bench.session.cut_off_requests.is_empty() && bench.session.nothing_owed());
}

#[test]
fn a_stop_frees_the_queue_of_an_answer_that_the_agent_never_takes_up() {
    let (mut bench, request) = Bench::waiting();
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    bench.next_process(&[(&request, "call-1")]);
    let again = bench.session.requests[0].id.clone();
    bench.answer(&again, "yes", "me").expect("answered");
    assert!(bench.send("m2").is_empty(), "the answer is not taken up");
    let effects = bench.must(Input::Command(Command::Interrupt(StopScope::Session)));
    assert!(matches!(&effects[..], [Effect::Tell(Decision::Interrupt { turn: None })]), "{effects:?}");
    assert!(bench.session.requests.is_empty());
    assert!(bench.session.next_deadline().is_some(), "it is taken further if the agent does not react");
    let effects = bench.must(Input::Command(Command::ResumeQueue));
    assert!(matches!(&effects[..], [Effect::Tell(Decision::StartTurn { .. })]), "{effects:?}");
}
