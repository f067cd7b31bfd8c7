//! A start that was refused for a cause that passes by itself is tried again, visibly, a few times.

use super::state::{OpenSubmission, Phase, Session, SubmissionState};
use super::{Moment, Out, START_RETRIES_MS};
use crate::content::Failure;
use crate::event::Event;

impl Session {
    /// Plans the next try, where the cause may pass by itself, something waits for the agent, and tries are left. False:
    /// somebody must look at it.
    pub(super) fn retry_start(
        &mut self,
        failure: &Failure,
        may_pass: bool,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> bool {
        let failed = self.start_retry.as_ref().map_or(0, |retry| retry.attempt);
        let pause = usize::try_from(failed).ok().and_then(|failed| START_RETRIES_MS.get(failed));
        let Some(pause) = pause.filter(|_| may_pass && self.something_waits()) else {
            return false;
        };
        let retrying = Event::StartRetrying {
            attempt: failed + 1,
            of: u32::try_from(START_RETRIES_MS.len()).unwrap_or(u32::MAX),
            failure: failure.clone(),
            next_at: moment.now.saturating_add(*pause),
        };
        self.emit(out, moment.now, retrying);
        true
    }

    fn something_waits(&self) -> bool {
        // A message that is with the process that is being ended may come back.
        let waits =
            |open: &OpenSubmission| open.waits() || matches!(open.state, SubmissionState::Delivered { .. });
        self.control_waits() || !self.cut_off_requests.is_empty() || self.submissions.iter().any(waits)
    }

    /// Whether the next try is not due yet. Where it is further away than any pause, the clock was set back meanwhile.
    pub(super) fn waits_to_retry(&self, moment: &Moment<'_>) -> bool {
        let longest = START_RETRIES_MS.into_iter().max().unwrap_or(0);
        let next = self.start_retry.as_ref().and_then(|retry| retry.next_at);
        next.is_some_and(|at| at > moment.now && at.saturating_sub(moment.now) <= longest)
    }

    /// When the start is tried again, where that is what everything waits for.
    pub(super) fn retry_due_at(&self) -> Option<i64> {
        let held_back = self.phase != Phase::Free
            || self.archived
            || self.unverifiable.is_some()
            || self.recovering.is_some();
        let next = self.start_retry.as_ref().and_then(|retry| retry.next_at);
        let message = self.budget_used_up().is_none() && self.submissions.iter().any(OpenSubmission::waits);
        next.filter(|_| !held_back && (message || self.control_waits() || !self.cut_off_requests.is_empty()))
    }
}
