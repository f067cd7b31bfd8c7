//! Time: the core has no clock. It says when it wants to be asked, and decides by the time that it is given.

use super::state::Session;
use super::{Moment, Out};

impl Session {
    /// When the session wants an [`super::Input::Tick`] next, Unix ms. After a tick at or behind that time it names a
    /// later one, or none.
    #[must_use]
    pub fn next_deadline(&self) -> Option<i64> {
        if self.deleted {
            // It may still be leaving a process that others use.
            return self.leave_due_at();
        }
        [
            self.escalates_at(),
            self.leave_due_at(),
            self.request_due_at(),
            self.retry_due_at(),
            self.turn_time_over_at(),
            self.stalled_at(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    pub(super) fn tick(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let due = |at: Option<i64>| at.is_some_and(|at| at <= moment.now);
        if due(self.escalates_at()) {
            self.escalate(moment, out);
        }
        if due(self.leave_due_at()) {
            self.leave_overdue(moment, out);
        }
        if due(self.turn_time_over_at()) {
            self.end_turn_time(moment, out);
        }
        if due(self.stalled_at()) {
            self.end_stalled(moment, out);
        }
        if due(self.request_due_at()) {
            self.answer_overdue(moment, out);
        }
        if due(self.retry_due_at()) {
            self.advance(moment, out);
        }
    }
}
