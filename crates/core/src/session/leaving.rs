//! Leaving a process that goes on with other sessions: what runs is told to end, told once more, and then it is said what
//! remains and whom the end of the process would cost. No step touches the work of the others.

use super::state::{Phase, Session};
use super::stops::Stopped;
use super::{LEAVE_PATIENCE_MS, Moment, Out, StopKind, StopState, StopTarget};
use crate::event::{Event, StopReach, StopStep};
use crate::process::CloseOrder;
use crate::{ProcessToken, SessionId};
use serde::{Deserialize, Serialize};

/// Sessions named in a status; of more it says how many.
const NAMED: usize = 5;

/// How far a session is that leaves a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaving {
    /// When the last step was done, Unix ms.
    pub since: i64,
    /// What was done.
    pub step: LeaveStep,
    /// The sessions that the process goes on with.
    pub others: Vec<SessionId>,
}

/// The steps of leaving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaveStep {
    /// What runs was told to end.
    Told,
    /// It was told once more.
    Pressed,
    /// It was said that nothing is left but to end the process.
    Blocked,
}

impl Session {
    /// The process that was to end for this session goes on with these.
    pub(super) fn goes_on(
        &mut self,
        process: ProcessToken,
        others: Vec<SessionId>,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some(order) = self.stopping else { return };
        let begins = match &self.leaving {
            Some(leaving) if leaving.others == others => return,
            leaving => leaving.is_none(),
        };
        self.emit(out, moment.now, Event::ProcessLeaving { process, others });
        // A session at rest has nothing that could be told to end.
        if begins && order != CloseOrder::Idle {
            self.end_work(moment, out);
        }
    }

    /// Tells everything of the session to end, all of which is aimed at its own ids.
    fn end_work(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let mut stopped = Stopped::default();
        self.pause_goal(&mut stopped, moment, out);
        self.stop_turns(None, StopReach::Session, &mut stopped, moment, out);
        self.stop_background_work(StopReach::Session, &mut stopped, moment, out);
        self.stop_agents_queue(moment, out);
    }

    /// When the next step of leaving is due.
    pub(super) fn leave_due_at(&self) -> Option<i64> {
        let leaving = self.leaving.as_ref().filter(|leaving| leaving.step != LeaveStep::Blocked)?;
        self.unverifiable.is_none().then(|| leaving.since.saturating_add(LEAVE_PATIENCE_MS))
    }

    pub(super) fn leave_overdue(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let Some(leaving) = self.leaving.clone() else { return };
        if leaving.step == LeaveStep::Told {
            let turn = self.turns.first().map(|turn| turn.id.clone());
            let waited_ms = LEAVE_PATIENCE_MS.unsigned_abs();
            let step = StopStep::Background;
            self.emit(out, moment.now, Event::StopEscalated { turn, waited_ms, step });
            return self.end_work(moment, out);
        }
        let remaining = self.remaining();
        self.emit(out, moment.now, Event::StopBlocked { remaining, others: leaving.others });
    }

    /// What did not end.
    fn remaining(&self) -> Vec<StopTarget> {
        let of = |kind, id: Option<&str>| StopTarget {
            kind,
            id: id.map(str::to_owned),
            state: StopState::Unsupported,
        };
        let mut remaining: Vec<StopTarget> =
            self.turns.iter().map(|turn| of(StopKind::Turn, Some(turn.id.as_str()))).collect();
        if self.turns.is_empty() && self.begins_unseen() {
            remaining.push(of(StopKind::Turn, None));
        }
        remaining.extend(self.children.iter().map(|child| of(StopKind::Child, Some(child.thread.as_str()))));
        remaining.extend(self.tasks.iter().map(|task| of(StopKind::Task, Some(task.id.as_str()))));
        remaining
    }

    /// Whether something of the session still works in a process that it leaves, or may show itself yet.
    #[must_use]
    pub fn works_on(&self) -> bool {
        let works = !self.turns.is_empty()
            || self.input_untaken()
            || !self.children.is_empty()
            || !self.tasks.is_empty();
        let blocked = self.leaving.as_ref().is_some_and(|leaving| leaving.step == LeaveStep::Blocked);
        // A command may become a task when its turn is over; the answer to what ends commands comes after that.
        let being_told = || self.controls.iter().any(|open| open.told && open.what.stops());
        works || (!blocked && (!self.items.is_empty() || being_told()))
    }

    /// Why a stop cannot go on by itself, for people.
    pub(super) fn stop_blocked(&self) -> Option<String> {
        let leaving = self.leaving.as_ref().filter(|leaving| leaving.step == LeaveStep::Blocked)?;
        let named: Vec<&str> = leaving.others.iter().take(NAMED).map(SessionId::as_str).collect();
        let more = leaving.others.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let what = if self.works_on() || self.phase == Phase::Opening {
            "the agent does not end what runs here"
        } else {
            "the agent does not let the conversation go"
        };
        Some(format!(
            "{what}; only the end of its process does, which ends the work of {}{more} too: stop with kill does that",
            named.join(", ")
        ))
    }
}
