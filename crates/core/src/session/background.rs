//! Background tasks, sub-agents' threads and the goal: they outlive turns and end with the process.

use super::state::Session;
use super::{MAX_OPEN_CHILDREN, MAX_OPEN_TASKS, Moment, Out};
use crate::content::ItemStatus;
use crate::event::{Event, RequestEnd};
use crate::work::{ChildFields, Goal, Provenance, TaskFields, TaskKind, WorkEnd};
use crate::{ItemId, TaskId, TaskKey, ThreadId, TurnId};

impl Session {
    fn task_of(&self, key: &TaskKey) -> Option<TaskId> {
        self.tasks.iter().find(|open| open.key == *key).map(|open| open.id.clone())
    }

    /// The turn that work begins in, which is only known where one turn runs.
    fn only_turn(&self) -> Option<TurnId> {
        match self.turns.as_slice() {
            [turn] => Some(turn.id.clone()),
            _ => None,
        }
    }

    pub(super) fn task_started(
        &mut self,
        key: TaskKey,
        kind: TaskKind,
        title: String,
        mut fields: TaskFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        fields.title = Some(title);
        if self.task_of(&key).is_some() {
            return self.task_updated(&key, fields, moment, out);
        }
        if self.ended_tasks.iter().any(|ended| ended.key.as_ref() == Some(&key)) {
            // The late frame of one that ended.
            return;
        }
        if self.tasks.len() >= MAX_OPEN_TASKS
            && let Some(oldest) = self.tasks.first().map(|open| open.id.clone())
        {
            self.end_task(oldest, WorkEnd::Lost, TaskFields::default(), moment, out);
        }
        let task = TaskId(format!("k{}", self.task_count + 1));
        let turn = self.only_turn();
        let started = Event::TaskStarted { task, key: key.clone(), kind, turn, fields };
        self.emit(out, moment.now, started);
        self.stop_late_task(key, moment, out);
    }

    pub(super) fn task_updated(
        &mut self,
        key: &TaskKey,
        fields: TaskFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some(open) = self.tasks.iter().find(|open| open.key == *key) else { return };
        let mut merged = open.fields.clone();
        merged.merge(&fields);
        if merged != open.fields {
            let task = open.id.clone();
            self.emit(out, moment.now, Event::TaskUpdated { task, fields });
        }
    }

    pub(super) fn task_ended(
        &mut self,
        key: &TaskKey,
        outcome: WorkEnd,
        fields: TaskFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        if let Some(task) = self.task_of(key) {
            self.end_task(task, outcome, fields, moment, out);
            self.advance(moment, out);
        }
    }

    fn end_task(
        &mut self,
        task: TaskId,
        outcome: WorkEnd,
        fields: TaskFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some(open) = self.tasks.iter().find(|open| open.id == task) else { return };
        let started_at = open.started_at;
        self.emit(out, moment.now, Event::TaskEnded { task, outcome, fields, started_at });
    }

    pub(super) fn child_started(
        &mut self,
        child: ThreadId,
        fields: ChildFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        if self.children.iter().any(|open| open.thread == child) {
            return self.child_updated(child, fields, moment, out);
        }
        if self.children.len() >= MAX_OPEN_CHILDREN
            && let Some(oldest) = self.children.first().map(|open| open.thread.clone())
        {
            self.child_ended(&oldest, WorkEnd::Lost, ChildFields::default(), moment, out);
        }
        let turn = self.only_turn();
        self.emit(out, moment.now, Event::ChildStarted { child: child.clone(), turn, fields });
        self.stop_late_child(child, moment, out);
    }

    pub(super) fn child_updated(
        &mut self,
        child: ThreadId,
        fields: ChildFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some(open) = self.children.iter().find(|open| open.thread == child) else { return };
        let mut merged = open.fields.clone();
        merged.merge(&fields);
        if merged != open.fields {
            self.emit(out, moment.now, Event::ChildUpdated { child, fields });
        }
    }

    /// Ends a child, and before it what is open in it.
    pub(super) fn child_ended(
        &mut self,
        child: &ThreadId,
        outcome: WorkEnd,
        fields: ChildFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some(open) = self.children.iter().find(|open| open.thread == *child) else { return };
        let started_at = open.started_at;
        let ends = |of: &Option<ThreadId>| of.as_ref() == Some(child);
        let cut: Vec<ItemId> = self
            .items
            .iter()
            // A command may go on after the thread that began it, as it may after a turn.
            .filter(|open| ends(&open.child))
            .filter(|open| !moment.capabilities.tools_outlive_turns || open.kind.ends_with_turn())
            .map(|open| open.id.clone())
            .collect();
        for item in cut {
            self.complete(&item, ItemStatus::Incomplete, None, Default::default(), moment, out);
        }
        let end = if outcome == WorkEnd::Lost { RequestEnd::Lost } else { RequestEnd::Cancelled };
        self.close_requests(|open| ends(&open.child), end, &[], moment, out);
        let ended = Event::ChildEnded { child: child.clone(), outcome, fields, started_at };
        self.emit(out, moment.now, ended);
    }

    /// The process is gone, and all that ran in it.
    pub(super) fn end_background(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let tasks: Vec<TaskId> = self.tasks.iter().map(|open| open.id.clone()).collect();
        for task in tasks {
            self.end_task(task, WorkEnd::Lost, TaskFields::default(), moment, out);
        }
        let children: Vec<ThreadId> = self.children.iter().map(|open| open.thread.clone()).collect();
        for child in children {
            self.child_ended(&child, WorkEnd::Lost, ChildFields::default(), moment, out);
        }
    }

    pub(super) fn goal_reported(
        &mut self,
        goal: Option<Goal>,
        by: Provenance,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        if goal != self.goal {
            self.emit(out, moment.now, Event::GoalUpdated { goal, by });
        }
    }
}
