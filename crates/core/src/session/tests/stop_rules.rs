//! Stops: how far each reaches, what it answers, and what follows where the agent does not react.

use super::*;
use crate::work::{Control, ControlEnd, Goal, GoalState, Provenance, TaskFields, TaskKind, WorkEnd};
use crate::{ControlId, TaskKey};

fn able() -> Capabilities {
    Capabilities {
        goals: true,
        stop_tasks: true,
        stop_children: true,
        stop_background: true,
        compact: true,
        ..capabilities()
    }
}

fn told(effects: &[Effect]) -> Vec<String> {
    let word = |effect: &Effect| match effect {
        Effect::Tell(Decision::Interrupt { turn }) => {
            format!("interrupt {}", turn.as_ref().map_or("?", ProviderTurn::as_str))
        }
        Effect::Tell(Decision::Control { control, .. }) => match control {
            Control::PauseGoal => "pause goal".to_owned(),
            Control::StopTask { key } => format!("stop task {key}"),
            Control::StopChild { thread } => format!("stop child {thread}"),
            Control::StopBackground => "clean".to_owned(),
            other => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    };
    effects.iter().map(word).collect()
}

impl Bench {
    fn working() -> Self {
        let mut bench = Self::with(able());
        bench.send("m1");
        bench.start_process();
        bench.begin_turn("pt1", "m1");
        bench.begin_task("b1");
        bench.begin_child("sub");
        bench
    }

    fn begin_task(&mut self, key: &str) -> Vec<Effect> {
        let (key, kind, fields) = (TaskKey::from(key), TaskKind::Shell, TaskFields::default());
        self.agent(AgentEvent::TaskStarted { key, kind, title: "sleep".to_owned(), fields })
    }

    fn begin_child(&mut self, thread: &str) -> Vec<Effect> {
        self.agent(AgentEvent::ChildStarted { thread: ThreadId::from(thread), fields: Default::default() })
    }

    fn pursue(&mut self) {
        let goal = Goal {
            objective: "all green".to_owned(),
            state: GoalState::Active,
            token_budget: None,
            tokens_used: None,
            seconds_used: None,
        };
        self.agent(AgentEvent::Goal { goal: Some(goal), by: Provenance::User });
    }

    fn stop(&mut self, scope: StopScope) -> (Vec<(StopKind, StopState)>, Vec<String>) {
        let (reply, effects) = self.input(Input::Command(Command::Interrupt(scope))).expect("never refused");
        let Reply::Interrupted { targets, .. } = reply else { panic!("{reply:?}") };
        (targets.iter().map(|target| (target.kind, target.state)).collect(), told(&effects))
    }

    fn tick_at(&mut self, now: i64) -> Vec<Effect> {
        self.now = now;
        let effects = self.must(Input::Tick);
        assert!(self.session.next_deadline().is_none_or(|next| next > now), "a tick must move the deadline");
        effects
    }
}

#[test]
fn a_session_stop_reaches_all_and_pauses_the_goal_first() {
    let mut bench = Bench::working();
    bench.pursue();
    bench.ask();
    let (targets, told) = bench.stop(StopScope::Session);
    assert_eq!(told, ["pause goal", "interrupt pt1", "stop child sub", "stop task b1", "clean"]);
    let kinds = [
        (StopKind::Goal, StopState::Asked),
        (StopKind::Request, StopState::Ended),
        (StopKind::Turn, StopState::Asked),
        (StopKind::Child, StopState::Asked),
        (StopKind::Task, StopState::Asked),
        (StopKind::Background, StopState::Asked),
    ];
    assert_eq!(targets, kinds);
    // Asked again, the controls are not asked twice.
    assert_eq!(bench.stop(StopScope::Session).1, ["interrupt pt1"]);
}

#[test]
fn a_turn_stop_leaves_background_work_and_the_queue_alone() {
    let mut bench = Bench::working();
    bench.send("m2");
    assert_eq!(bench.stop(StopScope::Turn(None)).1, ["interrupt pt1"]);
    assert!(!bench.session.queue_paused);
    let (targets, told) = bench.stop(StopScope::Turn(Some(TurnId::from("t9"))));
    assert_eq!((targets, told.len()), (vec![(StopKind::Turn, StopState::NotRunning)], 0));
    bench.end_turn("pt1", Outcome::Cancelled);
    assert!(bench.session.input_untaken(), "what waited goes on after the turn");
}

#[test]
fn one_task_one_child_and_one_request_are_stopped_alone() {
    let mut bench = Bench::working();
    let request = bench.ask();
    assert_eq!(bench.stop(StopScope::Task("k1".to_owned())).1, ["stop task b1"]);
    assert_eq!(bench.stop(StopScope::Task("sub".to_owned())).1, ["stop child sub"]);
    let (targets, _) = bench.stop(StopScope::Task("k7".to_owned()));
    assert_eq!(targets, [(StopKind::Task, StopState::NotRunning)]);
    let (targets, _) = bench.stop(StopScope::Request(request.clone()));
    assert_eq!(targets, [(StopKind::Request, StopState::Asked)]);
    let (targets, _) = bench.stop(StopScope::Request(request));
    assert_eq!(targets, [(StopKind::Request, StopState::NotRunning)]);
    assert_eq!(bench.session.turns[0].interrupted_at, None);
}

#[test]
fn what_the_agent_cannot_stop_is_said() {
    let mut bench = Bench::running();
    bench.begin_task("b1");
    let (targets, told) = bench.stop(StopScope::Tasks);
    assert_eq!((targets, told.len()), (vec![(StopKind::Task, StopState::Unsupported)], 0));
}

#[test]
fn work_that_shows_itself_after_the_stop_is_stopped_too_and_new_work_is_not() {
    let mut bench = Bench::working();
    bench.stop(StopScope::Session);
    assert_eq!(told(&bench.begin_child("late")), ["stop child late"]);
    assert_eq!(told(&bench.begin_task("late")), ["stop task late"]);
    bench.end_turn("pt1", Outcome::Cancelled);
    bench.send("m2");
    bench.begin_turn("pt2", "m2");
    assert!(bench.begin_child("new").is_empty());
}

#[test]
fn a_stop_before_the_turn_is_known_reaches_what_that_turn_starts() {
    let mut bench = Bench::with(able());
    bench.send("m1");
    bench.start_process();
    assert_eq!(bench.stop(StopScope::Session).1, ["interrupt ?"]);
    bench.begin_turn("pt1", "m1");
    assert_eq!(told(&bench.begin_child("late")), ["stop child late"]);
}

#[test]
fn an_agent_that_does_not_react_is_ended_after_its_time_and_what_came_after_the_stop_goes_on() {
    let mut bench = Bench::running();
    bench.now = 1_000;
    bench.stop(StopScope::Session);
    bench.send("m2");
    let due = 1_000 + INTERRUPT_PATIENCE_MS;
    assert_eq!(bench.session.next_deadline(), Some(due));
    assert!(bench.tick_at(due - 1).is_empty());
    assert!(matches!(bench.tick_at(due)[..], [Effect::Close { order: CloseOrder::Host }]));
    assert_eq!(bench.count("stop.escalated"), 1);
    assert!(bench.tick_at(due + 1).is_empty());
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Host }));
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "m2 was swept away: {effects:?}");
}

#[test]
fn an_agent_that_reacts_is_left_alone() {
    let mut bench = Bench::running();
    bench.stop(StopScope::Session);
    bench.end_turn("pt1", Outcome::Cancelled);
    assert_eq!(bench.session.next_deadline(), None);
    // A stop of a message whose turn is never shown has its time too.
    bench.send("m2");
    bench.stop(StopScope::Session);
    assert_eq!(bench.session.next_deadline(), Some(bench.now + INTERRUPT_PATIENCE_MS));
}

#[test]
fn a_message_sent_after_a_users_stop_of_the_process_starts_the_next_one() {
    let mut bench = Bench::running();
    bench.send("m2");
    bench.must(Input::Command(Command::Stop { order: CloseOrder::User }));
    bench.send("m3");
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::User }));
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "{effects:?}");
    let paused: Vec<bool> = bench.session.submissions.iter().map(|open| open.paused).collect();
    assert_eq!(paused, [true, false]);
}

#[test]
fn a_message_that_a_users_stop_took_from_the_agent_is_held_back() {
    let mut bench = Bench::delivered();
    bench.must(Input::Command(Command::Stop { order: CloseOrder::User }));
    let exit = ProcessExit {
        last_started: Some(0),
        ..ProcessExit::of(ExitCause::Ordered { order: CloseOrder::User })
    };
    assert!(bench.exit(exit).is_empty());
    assert!(bench.session.submissions[0].paused);

    let mut refused = Bench::delivered();
    refused.must(Input::Command(Command::Stop { order: CloseOrder::User }));
    let process = refused.process();
    refused.must(Input::Process(ProcessFact::InputRefused { process, n: 1, why: "closing".to_owned() }));
    assert!(refused.session.submissions[0].paused);
}

#[test]
fn a_stop_withdraws_what_waits_to_be_asked() {
    let mut bench = Bench::working();
    bench.must(Input::Command(Command::Control(Control::Compact { instructions: None })));
    let (targets, _) = bench.stop(StopScope::Session);
    assert!(targets.contains(&(StopKind::Control, StopState::Ended)));
    let ended = bench.journal.iter().any(|stamped| {
        let cancelled = Event::ControlEnded { control: ControlId::from("c1"), end: ControlEnd::Cancelled };
        stamped.event == cancelled
    });
    assert!(ended);
    bench.agent(AgentEvent::TaskEnded {
        key: TaskKey::from("b1"),
        end: WorkEnd::Stopped,
        fields: TaskFields::default(),
    });
    assert_eq!(bench.session.ended_tasks[0].outcome, WorkEnd::Stopped);
}

impl Bench {
    /// The agent was told to compact, and shows no turn yet.
    fn compacting() -> Self {
        let mut bench = Self::with(able());
        bench.must(Input::Command(Command::Control(Control::Compact { instructions: None })));
        bench.start_process();
        assert!(bench.session.control_occupies());
        bench
    }
}

#[test]
fn a_stop_while_a_control_has_not_begun_its_turn_is_for_that_turn() {
    let mut bench = Bench::compacting();
    let (targets, effects) = bench.stop(StopScope::Session);
    assert_eq!(
        (targets, effects),
        (vec![(StopKind::Turn, StopState::Asked)], vec!["interrupt ?".to_owned()])
    );
    // The agent may answer before it shows the turn.
    bench.control_ends("c1", ControlEnd::Done);
    let started =
        AgentEvent::TurnStarted { turn: ProviderTurn::from("ct"), origin: Origin::Unknown, submission: None };
    assert_eq!(told(&bench.agent(started)), ["interrupt ct"]);
    assert!(bench.session.turns[0].interrupted_at.is_some() && bench.session.interrupt_pending.is_none());
    bench.end_turn("ct", Outcome::Cancelled);
    assert_eq!(bench.session.status().status, Status::Idle);
}

#[test]
fn a_control_that_does_not_react_to_a_stop_ends_with_its_process() {
    let mut bench = Bench::compacting();
    bench.stop(StopScope::Turn(None));
    let due = bench.session.next_deadline().expect("escalates");
    let effects = bench.tick_at(due);
    assert!(effects.contains(&Effect::Close { order: CloseOrder::Host }), "{effects:?}");
}

#[test]
fn a_refused_control_takes_the_stop_that_was_meant_for_it_along() {
    let mut bench = Bench::compacting();
    bench.stop(StopScope::Turn(None));
    let failure = Failure::new(FailureCode::AgentRefused, "nothing to compact");
    bench.control_ends("c1", ControlEnd::Refused { failure });
    assert!(bench.session.interrupt_pending.is_none());
    bench.send("m1");
    bench.begin_turn("pt1", "m1");
    assert!(bench.session.turns[0].interrupted_at.is_none());
}

#[test]
fn a_stop_reaches_the_agents_own_queue_though_nothing_runs() {
    let interrupts = |effects: &[Effect]| {
        let told = |effect: &&Effect| matches!(effect, Effect::Tell(Decision::Interrupt { turn: None }));
        effects.iter().filter(told).count()
    };
    for own_queue in [false, true] {
        let mut bench = Bench::with(Capabilities { own_queue, ..capabilities() });
        bench.send("m1");
        bench.start_process();
        bench.begin_turn("pt1", "m1");
        bench.end_turn("pt1", Outcome::Completed);
        let stop = || Input::Command(Command::Interrupt(StopScope::Session));
        let journal = bench.journal.len();
        assert_eq!(interrupts(&bench.must(stop())), usize::from(own_queue));
        assert_eq!(bench.journal.len(), journal, "nothing ran here");
        // Where something runs, its own stop reaches the queue.
        bench.send("m2");
        assert_eq!(interrupts(&bench.must(stop())), 1);
    }
    let mut bench = Bench::with(Capabilities { own_queue: true, ..capabilities() });
    let effects = bench.must(Input::Command(Command::Interrupt(StopScope::Session)));
    assert_eq!(interrupts(&effects), 0, "there is no agent");
}
