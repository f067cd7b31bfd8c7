//! What a session is doing, derived from its state, never set.

use super::RequestState;
use super::state::{Phase, Session, SubmissionState};
use crate::event::SettlesBy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The public status (ACP's words where it has them).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// Nothing runs.
    Idle,
    /// The agent works.
    Running,
    /// Somebody must answer or decide.
    RequiresAction,
    /// The agent is being started.
    Starting,
    /// The session cannot go on by itself.
    Recovering,
    /// Archived or deleted.
    Closed,
}

impl Status {
    /// As in the contract.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Running => "running",
            Self::RequiresAction => "requires_action",
            Self::Starting => "starting",
            Self::Recovering => "recovering",
            Self::Closed => "closed",
        }
    }
}

/// Status with its reason, where one helps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StatusReport {
    /// The status.
    pub status: Status,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Session {
    /// What the session is doing.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        let report =
            |status, reason: Option<&str>| StatusReport { status, reason: reason.map(str::to_owned) };
        if self.deleted {
            return report(Status::Closed, Some("deleted"));
        }
        if self.archived {
            return report(Status::Closed, Some("archived"));
        }
        if let Some(why) = &self.unverifiable {
            return report(Status::Recovering, Some(why));
        }
        if let Some(failure) = &self.recovering {
            return report(Status::Recovering, Some(&failure.message));
        }
        if let Some(why) = self.stop_blocked() {
            return report(Status::RequiresAction, Some(&why));
        }
        if self.requests.iter().any(|open| open.state == RequestState::Pending) {
            return report(Status::RequiresAction, Some("a request waits for an answer"));
        }
        let doubtful = |open: &super::OpenSubmission| matches!(open.state, SubmissionState::Doubtful { .. });
        if self.phase != Phase::Held && self.phase != Phase::Free {
            let why = self.awaits_capacity.then_some("as many processes as may run are running (capacity)");
            return report(Status::Starting, why);
        }
        if let Some(retrying) = self.turns.iter().find_map(|turn| turn.retrying.as_ref()) {
            let why = format!("trying again (attempt {}): {}", retrying.attempt, retrying.message);
            return report(Status::Running, Some(&why));
        }
        if !self.turns.is_empty() || self.input_untaken() {
            return report(Status::Running, None);
        }
        if !self.items.is_empty() || !self.tasks.is_empty() || !self.children.is_empty() {
            return report(Status::Running, Some("background"));
        }
        // Lost with its turn, as it seems: the adapter looks it up in the history, and nobody has to decide anything.
        let looked_up = |open: &super::OpenSubmission| {
            let by_history =
                matches!(open.state, SubmissionState::Doubtful { settles_by: SettlesBy::History, .. });
            self.phase == Phase::Held && open.given_into.is_some() && by_history
        };
        if self.submissions.iter().any(|open| doubtful(open) && !looked_up(open)) {
            return report(Status::RequiresAction, Some("whether a message reached the agent is not known"));
        }
        if self.submissions.iter().any(looked_up) {
            return report(Status::Running, Some("whether a message reached the agent is being looked up"));
        }
        if let Some(retry) = &self.start_retry
            && self.retry_due_at().is_some()
        {
            let (attempt, at) = (retry.attempt, retry.next_at.unwrap_or_default());
            let why =
                format!("try {attempt} of the start follows at {at} (Unix ms): {}", retry.failure.message);
            return report(Status::Starting, Some(&why));
        }
        if let Some(budget) = self.budget_used_up()
            && self.submissions.iter().any(super::OpenSubmission::waits)
        {
            let why = format!("a message waits: the session's budget {} is used up", budget.name());
            return report(Status::RequiresAction, Some(&why));
        }
        if !self.cut_off_requests.is_empty() {
            return report(
                Status::Starting,
                Some("a request that the agent's end cut off is to be asked again"),
            );
        }
        if self.control_waits() || self.control_occupies() {
            let words = if self.control_waits() {
                "something waits to be asked of the agent"
            } else {
                "the agent does something beside messages"
            };
            let status = if self.phase == Phase::Free { Status::Starting } else { Status::Running };
            return report(status, Some(words));
        }
        if self.submissions.iter().any(super::OpenSubmission::waits) {
            return report(Status::Starting, Some("a message waits for the agent"));
        }
        if self.leaving.is_some() {
            return report(Status::Idle, Some("releasing: the agent is letting the conversation go"));
        }
        if self.submissions.iter().any(|open| open.paused) {
            return report(Status::Idle, Some("queue paused"));
        }
        report(Status::Idle, None)
    }
}
