//! Background tasks, sub-agents and goals: they outlive turns, are seen, and end once.

use super::*;
use crate::work::{ChildFields, Goal, GoalState, Provenance, TaskFields, TaskKind, WorkEnd};
use crate::{TaskKey, ThreadId};

impl Bench {
    fn start_task(&mut self, key: &str) {
        let title = "sleep 100".to_owned();
        let (key, kind, fields) = (TaskKey::from(key), TaskKind::Shell, TaskFields::default());
        self.agent(AgentEvent::TaskStarted { key, kind, title, fields });
    }

    fn end_task(&mut self, key: &str) {
        let (key, end, fields) = (TaskKey::from(key), WorkEnd::Completed, TaskFields::default());
        self.agent(AgentEvent::TaskEnded { key, end, fields });
    }

    fn start_child(&mut self, thread: &str) {
        let fields = ChildFields { title: Some("look around".to_owned()), ..ChildFields::default() };
        self.agent(AgentEvent::ChildStarted { thread: ThreadId::from(thread), fields });
    }
}

#[test]
fn a_task_outlives_its_turn_prevents_rest_and_ends_once() {
    let mut bench = Bench::running();
    bench.start_task("b1");
    bench.start_task("b1");
    bench.end_turn("pt1", Outcome::Completed);
    let report = bench.session.status();
    assert_eq!((report.status, report.reason.as_deref()), (Status::Running, Some("background")));
    assert!(!bench.session.nothing_owed(), "it would be put to rest beside its task");
    let fields = TaskFields { tokens: Some(7), ..TaskFields::default() };
    bench.agent(AgentEvent::TaskUpdated { key: TaskKey::from("b1"), fields });
    bench.end_task("b1");
    bench.end_task("b1");
    bench.start_task("b1");
    assert_eq!(bench.count("task.started"), 1, "a late frame began it anew");
    assert_eq!(bench.count("task.updated"), 1);
    assert_eq!(bench.count("task.ended"), 1);
    assert_eq!(bench.session.ended_tasks[0].fields.tokens, Some(7));
    assert!(bench.session.nothing_owed());
}

#[test]
fn tasks_and_children_end_with_their_process_and_the_next_one_may_use_the_keys_again() {
    let mut bench = Bench::running();
    bench.start_task("b1");
    bench.start_child("sub");
    bench.exit(ProcessExit::of(ExitCause::AgentLeft));
    assert_eq!(bench.session.ended_tasks[0].outcome, WorkEnd::Lost);
    assert_eq!(bench.session.ended_children[0].outcome, WorkEnd::Lost);
    bench.send("m2");
    bench.start_process();
    bench.start_task("b1");
    assert_eq!(bench.session.tasks.len(), 1);
}

#[test]
fn what_is_open_in_a_child_ends_with_it_and_what_is_open_beside_it_does_not() {
    let mut bench = Bench::running();
    bench.start_child("sub");
    for (key, child) in [("of child", Some(ThreadId::from("sub"))), ("own", None)] {
        bench.agent(AgentEvent::ItemStarted {
            key: ItemKey::from(key),
            turn: None,
            kind: ItemKind::AgentMessage,
            fields: ItemFields { child: child.clone(), ..ItemFields::default() },
        });
        bench.agent(AgentEvent::RequestOpened(AskedByAgent {
            child,
            ..AskedByAgent::new(RequestKey::from(key), RequestKind::Approval, "may I")
        }));
    }
    bench.agent(AgentEvent::ChildEnded {
        thread: ThreadId::from("sub"),
        end: WorkEnd::Completed,
        fields: ChildFields::default(),
    });
    assert_eq!(bench.session.items.len(), 1);
    assert_eq!(bench.session.requests.len(), 1);
    assert_eq!(bench.session.requests[0].child, None);
    assert_eq!(bench.session.closed_requests[0].end, RequestEnd::Cancelled);
    // A thread can work again.
    bench.start_child("sub");
    assert_eq!(bench.session.children.len(), 1);
    assert!(bench.session.ended_children.is_empty());
}

#[test]
fn live_tasks_and_children_are_bounded_visibly() {
    let mut bench = Bench::running();
    for n in 0..=MAX_OPEN_TASKS {
        bench.start_task(&format!("b{n}"));
    }
    assert_eq!(bench.session.tasks.len(), MAX_OPEN_TASKS);
    assert_eq!(bench.count("task.ended"), 1);
}

#[test]
fn a_goal_is_said_once_and_with_who_set_it() {
    let mut bench = Bench::running();
    let goal = Goal {
        objective: "all green".to_owned(),
        state: GoalState::Active,
        token_budget: None,
        tokens_used: None,
        seconds_used: None,
    };
    for _ in 0..2 {
        bench.agent(AgentEvent::Goal { goal: Some(goal.clone()), by: Provenance::User });
    }
    assert_eq!(bench.count("goal.updated"), 1);
    bench.agent(AgentEvent::Goal { goal: None, by: Provenance::Unknown });
    assert_eq!(bench.session.goal, None);
}

#[test]
fn a_retry_is_shown_until_new_work_shows() {
    let mut bench = Bench::running();
    let failure = Failure { resets_at: Some(99), ..Failure::new(FailureCode::Overloaded, "busy") };
    bench.agent(AgentEvent::Retrying {
        turn: Some(ProviderTurn::from("pt1")),
        attempt: 2,
        of: Some(5),
        failure,
        next_at: Some(20),
    });
    assert_eq!(bench.session.turns[0].retrying.as_ref().and_then(|retry| retry.resets_at), Some(99));
    assert!(bench.session.status().reason.is_some_and(|reason| reason.contains("busy")));
    bench.delta("on");
    assert_eq!(bench.session.turns[0].retrying, None);
}

#[test]
fn a_thread_that_is_let_go_settles_everything_without_an_exit() {
    let mut bench = Bench::running();
    bench.ask();
    bench.agent(AgentEvent::ThreadClosed);
    assert_eq!(bench.session.phase, Phase::Free);
    assert_eq!(bench.count("process.exited"), 0);
    assert_eq!(bench.count("turn.ended"), 1);
    assert_eq!(bench.count("request.closed"), 1);
    assert_eq!(bench.count("lease.released"), 1);
}

#[test]
fn a_thread_that_the_agent_changes_is_a_link_of_the_chain() {
    let mut bench = Bench::running();
    bench.agent(AgentEvent::ThreadSwitched { thread: ThreadId::from("emptied") });
    bench.agent(AgentEvent::ThreadSwitched { thread: ThreadId::from("emptied") });
    assert_eq!(bench.session.thread(), Some(&ThreadId::from("emptied")));
    assert_eq!(bench.session.chain.last().map(|link| link.how), Some(ThreadOrigin::Switched));
    assert_eq!(bench.session.chain.len(), 2);
}
