//! The queue and the delivery table (contract section 3), row by row.

use super::*;
use crate::agent::SteerRefusal;

fn steering() -> Capabilities {
    Capabilities { steer: true, ..capabilities() }
}

/// A session whose first turn runs, of an agent that can be steered.
fn steerable() -> Bench {
    let mut bench = Bench::with(steering());
    bench.send("m1");
    bench.start_process();
    bench.begin_turn("pt1", "m1");
    bench
}

fn text(text: &str) -> Vec<ContentBlock> {
    vec![ContentBlock::text(text)]
}

fn give(id: &str, delivery: Delivery) -> Input {
    let submission = SubmissionId::from(id);
    Input::Command(Command::Send { submission, content: text(id), delivery, resends: None })
}

impl Bench {
    fn given(&mut self, id: &str, delivery: Delivery) -> (DeliveryTaken, Vec<Effect>) {
        let (reply, effects) = self.input(give(id, delivery)).expect("accepted");
        let Reply::Accepted { taken_as, .. } = reply else { panic!("{reply:?}") };
        (taken_as, effects)
    }

    fn edit(
        &mut self,
        id: &str,
        revision: u64,
        content: Option<&str>,
        place: Option<Place>,
    ) -> Result<u64, Refusal> {
        let (submission, content) = (SubmissionId::from(id), content.map(text));
        match self.input(Input::Command(Command::Edit { submission, revision, content, place }))?.0 {
            Reply::Changed { revision, .. } => Ok(revision),
            other => panic!("{other:?}"),
        }
    }

    fn send_now(&mut self, id: &str) -> Result<Vec<Effect>, Refusal> {
        Ok(self.input(Input::Command(Command::SendNow { submission: SubmissionId::from(id) }))?.1)
    }

    fn order(&self) -> Vec<&str> {
        self.session.submissions.iter().map(|open| open.id.as_str()).collect()
    }

    fn state_of(&self, id: &str) -> &SubmissionState {
        &self.session.submission(&SubmissionId::from(id)).expect("open").state
    }

    fn interrupt(&mut self) {
        self.must(Input::Command(Command::Interrupt(StopScope::Session)));
    }

    fn taken(&mut self, id: &str) -> Vec<Effect> {
        let submission = SubmissionId::from(id);
        self.agent(AgentEvent::InputTaken { submission, proof: TakenProof::ClientId })
    }

    fn absent(&mut self, id: &str) -> Vec<Effect> {
        self.agent(AgentEvent::InputAbsent { submission: SubmissionId::from(id) })
    }

    fn steer_refused(&mut self, id: &str, why: SteerRefusal) -> Vec<Effect> {
        self.agent(AgentEvent::SteerRefused { submission: SubmissionId::from(id), why })
    }
}

fn steers(effects: &[Effect], id: &str) -> bool {
    matches!(effects, [Effect::Tell(Decision::Steer { turn, submission, .. })]
        if turn.as_str() == "pt1" && submission.as_str() == id)
}

fn starts(effects: &[Effect], id: &str) -> bool {
    matches!(effects, [Effect::Tell(Decision::StartTurn { submission, .. })] if submission.as_str() == id)
}

#[test]
fn idle() {
    let idle = || {
        let mut bench = steerable();
        bench.end_turn("pt1", Outcome::Completed);
        bench
    };
    for delivery in [Delivery::Auto, Delivery::Queue, Delivery::Interrupt] {
        let (taken_as, effects) = idle().given("m2", delivery);
        assert_eq!(taken_as, DeliveryTaken::Start, "{delivery:?}");
        assert!(starts(&effects, "m2"), "{effects:?}");
    }
    let refusal = idle().input(give("m2", Delivery::Steer)).expect_err("nothing to steer");
    assert_eq!(refusal.code, RefusalCode::NoTurn);
}

#[test]
fn a_steerable_turn_runs() {
    for delivery in [Delivery::Auto, Delivery::Steer] {
        let (taken_as, effects) = steerable().given("m2", delivery);
        assert_eq!(taken_as, DeliveryTaken::Steer, "{delivery:?}");
        assert!(steers(&effects, "m2"), "{effects:?}");
    }
    let mut queued = steerable();
    assert_eq!(queued.given("m2", Delivery::Queue), (DeliveryTaken::Queue, Vec::new()));
    assert!(starts(&queued.end_turn("pt1", Outcome::Completed), "m2"));
    let (taken_as, effects) = steerable().given("m2", Delivery::Interrupt);
    assert_eq!(taken_as, DeliveryTaken::Interrupt);
    assert!(matches!(&effects[..], [Effect::Tell(Decision::Interrupt { .. })]), "{effects:?}");
}

#[test]
fn a_turn_of_an_agent_that_cannot_be_steered_runs() {
    for delivery in [Delivery::Auto, Delivery::Steer, Delivery::Queue] {
        let mut bench = Bench::running();
        assert_eq!(bench.given("m2", delivery), (DeliveryTaken::Queue, Vec::new()), "{delivery:?}");
        assert!(starts(&bench.end_turn("pt1", Outcome::Completed), "m2"));
    }
    assert_eq!(Bench::running().given("m2", Delivery::Interrupt).0, DeliveryTaken::Interrupt);
}

#[test]
fn a_request_is_open() {
    for delivery in [Delivery::Auto, Delivery::Steer] {
        let mut bench = steerable();
        bench.ask();
        let (taken_as, effects) = bench.given("m2", delivery);
        assert_eq!(taken_as, DeliveryTaken::Steer);
        assert!(steers(&effects, "m2"), "{effects:?}");
        let mut other = Bench::running();
        other.ask();
        assert_eq!(other.given("m2", delivery).0, DeliveryTaken::Queue);
    }
    let mut bench = steerable();
    bench.ask();
    assert_eq!(bench.given("m2", Delivery::Queue).0, DeliveryTaken::Queue);
    assert_eq!(bench.given("m3", Delivery::Interrupt).0, DeliveryTaken::Interrupt);
    assert_eq!(bench.session.closed_requests[0].end, RequestEnd::Cancelled);
}

#[test]
fn stopped_with_a_paused_queue() {
    let paused = || {
        let mut bench = steerable();
        bench.given("old", Delivery::Queue);
        bench.interrupt();
        bench.end_turn("pt1", Outcome::Cancelled);
        assert_eq!(bench.session.status().reason.as_deref(), Some("queue paused"));
        bench
    };
    for delivery in [Delivery::Auto, Delivery::Interrupt] {
        let mut bench = paused();
        let (taken_as, effects) = bench.given("m2", delivery);
        assert_eq!(taken_as, DeliveryTaken::Start);
        assert!(starts(&effects, "m2"), "{effects:?}");
        bench.begin_turn("pt2", "m2");
        assert!(bench.end_turn("pt2", Outcome::Completed).is_empty(), "older ones stay paused");
    }
    assert_eq!(paused().input(give("m2", Delivery::Steer)).expect_err("no").code, RefusalCode::NoTurn);
    let mut queued = paused();
    assert_eq!(queued.given("m2", Delivery::Queue), (DeliveryTaken::Queue, Vec::new()));
    let effects = queued.must(Input::Command(Command::ResumeQueue));
    assert!(starts(&effects, "old"), "{effects:?}");
}

#[test]
fn a_message_sent_after_a_stop_is_not_swept_away_by_it() {
    let mut bench = steerable();
    bench.interrupt();
    assert_eq!(bench.given("m2", Delivery::Auto), (DeliveryTaken::Queue, Vec::new()));
    assert!(starts(&bench.end_turn("pt1", Outcome::Cancelled), "m2"));
}

#[test]
fn one_untaken_input_at_a_time_and_steering_ones_before_queued_ones() {
    let mut bench = Bench::with(steering());
    bench.send("m1");
    bench.start_process();
    assert_eq!(bench.given("queued", Delivery::Queue).0, DeliveryTaken::Queue);
    assert_eq!(bench.given("m2", Delivery::Auto), (DeliveryTaken::Steer, Vec::new()), "m1 is not taken yet");
    assert_eq!(bench.given("m3", Delivery::Steer), (DeliveryTaken::Steer, Vec::new()));
    let submission = SubmissionId::from("m1");
    bench.agent(AgentEvent::TurnStarted {
        turn: ProviderTurn::from("pt1"),
        origin: Origin::Message,
        submission: Some(submission),
    });
    assert!(steers(&bench.taken("m1"), "m2"));
    assert!(steers(&bench.taken("m2"), "m3"));
    assert!(bench.taken("m3").is_empty());
    assert_eq!(bench.order(), ["queued"]);
    let steered = bench.journal.iter().filter(
        |stamped| matches!(&stamped.event, Event::SubmissionTaken { turn: Some(turn), .. } if turn.0 == "t1"),
    );
    assert_eq!(steered.count(), 3, "all went into the one turn");
    assert!(starts(&bench.end_turn("pt1", Outcome::Completed), "queued"));
}

#[test]
fn a_steer_that_came_too_late_starts_a_turn() {
    let mut bench = steerable();
    bench.given("m2", Delivery::Auto);
    bench.given("m3", Delivery::Queue);
    assert!(bench.steer_refused("m2", SteerRefusal::TurnOver).is_empty(), "its end was not seen yet");
    assert_eq!(bench.order(), ["m2", "m3"]);
    assert!(starts(&bench.end_turn("pt1", Outcome::Completed), "m2"));
}

#[test]
fn a_turn_that_takes_no_input_leaves_the_message_in_the_queue_and_says_why() {
    let mut bench = steerable();
    bench.given("m2", Delivery::Steer);
    assert!(bench.steer_refused("m2", SteerRefusal::NotSteerable).is_empty());
    let waits = Some(QueueReason::NotSteerable);
    assert_eq!(*bench.state_of("m2"), SubmissionState::Accepted { waits });
    assert_eq!(bench.count("submission.rejected"), 0);
    assert!(starts(&bench.end_turn("pt1", Outcome::Completed), "m2"));
}

#[test]
fn a_steer_that_a_stop_lost_waits_paused_and_one_that_another_end_lost_is_given_again() {
    let mut stopped = steerable();
    stopped.given("m2", Delivery::Auto);
    stopped.interrupt();
    stopped.end_turn("pt1", Outcome::Cancelled);
    assert!(matches!(stopped.state_of("m2"), SubmissionState::Doubtful { stopped: true, .. }));
    assert_eq!(stopped.session.status().status, Status::Running, "nobody has to decide: it is looked up");
    assert!(stopped.absent("m2").is_empty(), "nothing runs after a stop by itself");
    assert_eq!(*stopped.state_of("m2"), SubmissionState::Accepted { waits: Some(QueueReason::Paused) });
    assert!(stopped.session.queue_paused);
    assert!(starts(&stopped.must(Input::Command(Command::ResumeQueue)), "m2"));

    let mut ended = steerable();
    ended.given("m2", Delivery::Auto);
    ended.end_turn("pt1", Outcome::Failed);
    assert!(starts(&ended.absent("m2"), "m2"));
}

#[test]
fn a_steer_that_was_refused_after_a_stop_waits_paused() {
    for ended_first in [true, false] {
        let mut bench = steerable();
        bench.given("m2", Delivery::Auto);
        bench.interrupt();
        if ended_first {
            bench.end_turn("pt1", Outcome::Cancelled);
        }
        assert!(bench.steer_refused("m2", SteerRefusal::TurnOver).is_empty());
        assert_eq!(*bench.state_of("m2"), SubmissionState::Accepted { waits: Some(QueueReason::Paused) });
    }
}

#[test]
fn a_steer_is_doubtful_after_a_death_and_queued_where_it_was_never_written() {
    let mut doubtful = steerable();
    doubtful.given("m2", Delivery::Auto);
    doubtful.exit(ProcessExit { last_started: Some(2), ..ProcessExit::of(ExitCause::AgentLeft) });
    assert!(matches!(doubtful.state_of("m2"), SubmissionState::Doubtful { stopped: false, .. }));
    let mut unwritten = steerable();
    unwritten.given("m2", Delivery::Auto);
    let effects =
        unwritten.exit(ProcessExit { last_started: Some(1), ..ProcessExit::of(ExitCause::AgentLeft) });
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
}

#[test]
fn what_waits_behind_a_doubt_goes_on_when_a_user_drops_it() {
    let mut bench = steerable();
    bench.given("m2", Delivery::Auto);
    bench.end_turn("pt1", Outcome::Completed);
    bench.must(Input::Command(Command::Withdraw { submission: SubmissionId::from("m2") }));
    let fresh = ProcessToken::from("f");
    let moment = Moment { now: 10, capabilities: &bench.capabilities, fresh: &fresh };
    let mut out = Out::default();
    bench.session.handle(give("m3", Delivery::Auto), &moment, &mut out).expect("accepted");
    // As where the adapter still waits for the history.
    let submission = SubmissionId::from("m3");
    bench
        .session
        .handle(Input::NotHanded { submission, failure: None }, &moment, &mut out)
        .expect("not handed");
    bench.journal.extend(out.events);
    assert!(starts(&bench.absent("m2"), "m3"));
}

#[test]
fn of_send_now_delete_edit_and_stop_one_comes_first_whatever_the_order() {
    let orders = (0..24_usize).map(|n| {
        let mut left = vec!["send", "delete", "edit", "stop"];
        [n / 6, n / 2 % 3, n % 2, 0].map(|at| left.remove(at))
    });
    for order in orders {
        // It waits paused, nothing runs.
        let mut bench = steerable();
        bench.given("a", Delivery::Queue);
        bench.interrupt();
        bench.end_turn("pt1", Outcome::Cancelled);
        for what in order {
            let fate = |bench: &Bench| {
                let cancelled = bench.count("submission.cancelled");
                (cancelled, bench.session.submissions.first().map(|open| open.state.clone()))
            };
            let before = fate(&bench);
            let went = match what {
                "send" => bench.send_now("a").map(|_| ()),
                "delete" => {
                    let submission = SubmissionId::from("a");
                    bench.input(Input::Command(Command::Withdraw { submission })).map(|_| ())
                }
                "edit" => bench.edit("a", 1, Some("edited"), None).map(|_| ()),
                _ => bench.input(Input::Command(Command::Interrupt(StopScope::Session))).map(|_| ()),
            };
            let expected = match (what, &before) {
                ("stop", _) => None,
                (_, (_, None)) => Some(RefusalCode::SubmissionUnknown),
                (_, (_, Some(SubmissionState::Delivered { .. }))) => Some(RefusalCode::SubmissionState),
                _ => None,
            };
            assert_eq!(went.map_err(|refusal| refusal.code).err(), expected, "{what} in {order:?}");
            if expected.is_some() {
                assert_eq!(fate(&bench), before, "a loser changed something: {what} in {order:?}");
            }
        }
        let delivered = bench.count("submission.delivered") - 1;
        let cancelled = bench.count("submission.cancelled");
        assert_eq!(delivered + cancelled, 1, "sent or deleted, never both: {order:?}");
    }
}

/// m1 runs; a, b and c wait.
fn three_queued() -> Bench {
    let mut bench = steerable();
    for id in ["a", "b", "c"] {
        bench.given(id, Delivery::Queue);
    }
    bench
}

#[test]
fn edits_are_compare_and_set() {
    let mut bench = three_queued();
    assert_eq!(bench.edit("b", 1, Some("new"), None).expect("edited"), 2);
    let stale = bench.edit("b", 1, Some("other"), None).expect_err("somebody was first");
    assert_eq!((stale.code, stale.revision), (RefusalCode::RevisionMismatch, Some(2)));
    assert_eq!(bench.session.submissions[1].content, text("new"));
    assert_eq!(bench.edit("b", 2, Some(""), None).expect_err("empty").code, RefusalCode::EmptyContent);
    assert_eq!(bench.edit("x", 1, None, None).expect_err("unknown").code, RefusalCode::SubmissionUnknown);
    let effects = bench.end_turn("pt1", Outcome::Completed);
    assert!(starts(&effects, "a"));
    let late = bench.edit("a", 1, Some("late"), None).expect_err("the agent has it");
    assert_eq!(late.code, RefusalCode::SubmissionState);
}

#[test]
fn messages_are_moved() {
    let mut bench = three_queued();
    let before = |id: &str| Some(Place::Before(SubmissionId::from(id)));
    bench.edit("c", 1, None, before("a")).expect("moved");
    assert_eq!(bench.order(), ["c", "a", "b"]);
    bench.edit("c", 2, None, Some(Place::Last)).expect("moved");
    assert_eq!(bench.order(), ["a", "b", "c"]);
    bench.edit("a", 1, Some("both"), before("c")).expect("moved and edited");
    assert_eq!(bench.order(), ["b", "a", "c"]);
    assert_eq!(bench.edit("a", 2, None, before("x")).expect_err("x").code, RefusalCode::SubmissionUnknown);
    assert_eq!(bench.edit("a", 2, None, before("a")).expect_err("a").code, RefusalCode::SubmissionState);
    assert!(starts(&bench.end_turn("pt1", Outcome::Completed), "b"));
}

#[test]
fn a_message_sent_now_comes_first_and_interrupts_nothing() {
    let mut bench = three_queued();
    assert!(bench.send_now("c").expect("moved").is_empty());
    assert_eq!(bench.order(), ["c", "a", "b"]);
    assert!(starts(&bench.end_turn("pt1", Outcome::Completed), "c"));
    assert_eq!(bench.send_now("c").expect_err("the agent has it").code, RefusalCode::SubmissionState);
    assert_eq!(bench.send_now("x").expect_err("unknown").code, RefusalCode::SubmissionUnknown);
}

#[test]
fn a_message_sent_now_leaves_the_pause_to_the_others() {
    let mut bench = three_queued();
    bench.interrupt();
    bench.end_turn("pt1", Outcome::Cancelled);
    assert!(starts(&bench.send_now("b").expect("goes"), "b"));
    bench.begin_turn("pt2", "b");
    assert!(bench.end_turn("pt2", Outcome::Completed).is_empty(), "a and c stay paused");
    assert!(starts(&bench.must(Input::Command(Command::ResumeQueue)), "a"));
}

#[test]
fn a_pause_ends_with_the_last_message_that_it_holds() {
    let mut bench = three_queued();
    bench.interrupt();
    bench.end_turn("pt1", Outcome::Cancelled);
    for id in ["a", "b"] {
        bench.must(Input::Command(Command::Withdraw { submission: SubmissionId::from(id) }));
        assert!(bench.session.queue_paused);
    }
    bench.send_now("c").expect("goes");
    assert!(!bench.session.queue_paused);
}
