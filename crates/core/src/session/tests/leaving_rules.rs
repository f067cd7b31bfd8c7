//! Leaving a process that goes on with others, step by step, and what is said when nothing is left but its end.

use super::*;
use crate::work::{ControlEnd, Goal, GoalState, Provenance, TaskFields, TaskKind, WorkEnd};
use crate::{SessionId, TaskKey};

impl Bench {
    fn working_beside_others() -> Self {
        let mut bench = Self::with(Capabilities {
            goals: true,
            stop_tasks: true,
            stop_children: true,
            stop_background: true,
            close_thread: true,
            ..capabilities()
        });
        bench.send("m1");
        bench.start_process();
        bench.begin_turn("pt1", "m1");
        bench
    }

    fn stop_process_by(&mut self, order: CloseOrder) -> Vec<Effect> {
        self.must(Input::Command(Command::Stop { order }))
    }

    fn goes_on_with(&mut self, others: &[&str]) -> Vec<Effect> {
        let (process, others) = (self.process(), others.iter().map(|id| SessionId::from(*id)).collect());
        self.must(Input::Process(ProcessFact::GoesOn { process, others }))
    }

    fn task(&mut self, key: &str) -> Vec<Effect> {
        let (key, kind, fields) = (TaskKey::from(key), TaskKind::Shell, TaskFields::default());
        self.agent(AgentEvent::TaskStarted { key, kind, title: "sleep".to_owned(), fields })
    }

    fn due(&mut self, now: i64) -> Vec<Effect> {
        self.now = now;
        let effects = self.must(Input::Tick);
        assert!(self.session.next_deadline().is_none_or(|next| next > now), "a tick must move the deadline");
        effects
    }

    fn last(&self) -> &Event {
        &self.journal.last().expect("events").event
    }
}

fn interrupts(effects: &[Effect]) -> usize {
    effects.iter().filter(|effect| matches!(effect, Effect::Tell(Decision::Interrupt { .. }))).count()
}

fn controls(effects: &[Effect]) -> Vec<&'static str> {
    let control = |effect: &Effect| match effect {
        Effect::Tell(Decision::Control { control, .. }) => Some(control.capability()),
        _ => None,
    };
    effects.iter().filter_map(control).collect()
}

#[test]
fn what_runs_is_told_to_end_with_its_goal_and_its_background_and_a_late_task_too() {
    let mut bench = Bench::working_beside_others();
    bench.task("b1");
    bench.agent(AgentEvent::Goal {
        goal: Some(Goal {
            objective: "all green".to_owned(),
            state: GoalState::Active,
            token_budget: None,
            tokens_used: None,
            seconds_used: None,
        }),
        by: Provenance::User,
    });
    let request = bench.ask();
    bench.stop_process_by(CloseOrder::User);
    let effects = bench.goes_on_with(&["s2"]);
    assert_eq!(interrupts(&effects), 1, "{effects:?}");
    assert_eq!(controls(&effects), ["goals", "stop_tasks", "stop_background"]);
    assert!(bench.session.requests.iter().all(|open| open.id != request), "the request is still open");
    assert_eq!(controls(&bench.task("b2")), ["stop_tasks"], "a task that shows itself late");
    // The same again says nothing.
    assert!(bench.goes_on_with(&["s2"]).is_empty());
    assert_eq!(bench.count("process.leaving"), 1);
    assert!(bench.session.works_on());
    for key in ["b1", "b2"] {
        let key = TaskKey::from(key);
        bench.agent(AgentEvent::TaskEnded { key, end: WorkEnd::Stopped, fields: TaskFields::default() });
    }
    bench.end_turn("pt1", Outcome::Cancelled);
    // A command may yet show itself as a task, until what ends commands is answered.
    assert!(bench.session.works_on());
    for control in bench.session.controls.clone() {
        bench.agent(AgentEvent::ControlEnded { control: control.id, end: ControlEnd::Done });
    }
    assert!(!bench.session.works_on());
    let report = bench.session.status();
    assert_eq!(report.status, Status::Idle);
    assert!(report.reason.is_some_and(|reason| reason.contains("releasing")));
    bench.agent(AgentEvent::ThreadClosed);
    assert_eq!((bench.session.phase, bench.session.leaving.clone()), (Phase::Free, None));
    assert_eq!(bench.session.status().reason, None);
}

#[test]
fn an_agent_that_ends_nothing_is_pressed_and_then_it_is_said_what_only_its_end_would_end() {
    let mut bench = Bench::working_beside_others();
    bench.now = 1_000;
    bench.stop_process_by(CloseOrder::User);
    bench.send("m2");
    bench.goes_on_with(&["s2", "s3"]);
    assert_eq!(bench.session.next_deadline(), Some(1_000 + LEAVE_PATIENCE_MS));
    assert!(bench.due(999 + LEAVE_PATIENCE_MS).is_empty());
    let effects = bench.due(1_000 + LEAVE_PATIENCE_MS);
    assert_eq!(
        (interrupts(&effects), controls(&effects).len()),
        (1, 0),
        "clean was not answered: {effects:?}"
    );
    assert!(matches!(bench.last(), Event::StopEscalated { step: StopStep::Background, .. }));
    // One of the others left meanwhile.
    bench.goes_on_with(&["s3"]);
    assert!(bench.due(1_000 + 2 * LEAVE_PATIENCE_MS).is_empty());
    let Event::StopBlocked { remaining, others } = bench.last() else { panic!("{:?}", bench.last()) };
    assert_eq!(remaining.len(), 1);
    assert_eq!((remaining[0].kind, remaining[0].id.as_deref()), (StopKind::Turn, Some("t1")));
    assert_eq!(*others, [SessionId::from("s3")]);
    assert_eq!(bench.session.next_deadline(), None, "nothing is done to the others unasked");
    let report = bench.session.status();
    assert_eq!(report.status, Status::RequiresAction);
    let reason = report.reason.expect("a reason");
    assert!(reason.contains("s3") && reason.contains("kill"), "{reason}");

    // The way out that the user may choose.
    let effects = bench.stop_process_by(CloseOrder::Kill);
    assert!(matches!(&effects[..], [Effect::Close { order: CloseOrder::Kill }]), "{effects:?}");
    let effects = bench.exit(ProcessExit::of(ExitCause::Ordered { order: CloseOrder::Kill }));
    // Sent after the first stop, and held back by the second.
    assert!(effects.is_empty() && bench.session.submissions[0].paused, "{effects:?}");
    assert_eq!(bench.session.leaving, None);
}

#[test]
fn a_turn_that_ends_after_all_lets_the_session_leave() {
    let mut bench = Bench::working_beside_others();
    bench.now = 1_000;
    bench.stop_process_by(CloseOrder::User);
    bench.goes_on_with(&["s2"]);
    bench.due(1_000 + LEAVE_PATIENCE_MS);
    bench.due(1_000 + 2 * LEAVE_PATIENCE_MS);
    bench.send("m2");
    bench.end_turn("pt1", Outcome::Cancelled);
    assert!(!bench.session.works_on());
    let effects = bench.agent(AgentEvent::ThreadClosed);
    assert!(matches!(&effects[..], [Effect::Acquire { .. }]), "m2 was swept away: {effects:?}");
}

#[test]
fn a_session_at_rest_leaves_without_a_word_to_the_agent() {
    let mut bench = Bench::working_beside_others();
    bench.end_turn("pt1", Outcome::Completed);
    bench.stop_process_by(CloseOrder::Idle);
    assert!(bench.goes_on_with(&["s2"]).is_empty());
}
