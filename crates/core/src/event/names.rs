//! What an event is called, and what it is about.

use super::Event;
use crate::ItemId;

impl Event {
    /// The type, as in the serialized tag.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::SessionCreated { .. } => "session.created",
            Self::SessionUpdated { .. } => "session.updated",
            Self::SessionImported { .. } => "session.imported",
            Self::SessionDeleted {} => "session.deleted",
            Self::LeaseReserved { .. } => "lease.reserved",
            Self::LeaseHeld { .. } => "lease.held",
            Self::LeaseRefused { .. } => "lease.refused",
            Self::LeaseReleased { .. } => "lease.released",
            Self::ProcessStarted { .. } => "process.started",
            Self::ProcessReady { .. } => "process.ready",
            Self::ProcessAdopted { .. } => "process.adopted",
            Self::ProcessUnverifiable { .. } => "process.unverifiable",
            Self::ProcessStopping { .. } => "process.stopping",
            Self::ProcessLeaving { .. } => "process.leaving",
            Self::ProcessExited { .. } => "process.exited",
            Self::StraysFound { .. } => "strays.found",
            Self::ThreadLinked { .. } => "thread.linked",
            Self::SubmissionAccepted { .. } => "submission.accepted",
            Self::SubmissionQueued { .. } => "submission.queued",
            Self::SubmissionChanged { .. } => "submission.changed",
            Self::SubmissionDelivered { .. } => "submission.delivered",
            Self::SubmissionTaken { .. } => "submission.taken",
            Self::SubmissionRejected { .. } => "submission.rejected",
            Self::SubmissionCancelled { .. } => "submission.cancelled",
            Self::SubmissionDropped { .. } => "submission.dropped",
            Self::SubmissionDoubtful { .. } => "submission.doubtful",
            Self::InputRefused { .. } => "input.refused",
            Self::TurnStarted { .. } => "turn.started",
            Self::TurnUpdated { .. } => "turn.updated",
            Self::TurnWaiting { .. } => "turn.waiting",
            Self::TurnResumed { .. } => "turn.resumed",
            Self::TurnEnded { .. } => "turn.ended",
            Self::ItemStarted { .. } => "item.started",
            Self::ItemDelta { .. } => "item.delta",
            Self::ItemUpdated { .. } => "item.updated",
            Self::ItemCompleted { .. } => "item.completed",
            Self::RequestOpened { .. } => "request.opened",
            Self::RequestAnswered { .. } => "request.answered",
            Self::RequestClosed { .. } => "request.closed",
            Self::InterruptRequested { .. } => "interrupt.requested",
            Self::StopEscalated { .. } => "stop.escalated",
            Self::StopBlocked { .. } => "stop.blocked",
            Self::RequestUpdated { .. } => "request.updated",
            Self::TurnRetrying { .. } => "turn.retrying",
            Self::TaskStarted { .. } => "task.started",
            Self::TaskUpdated { .. } => "task.updated",
            Self::TaskEnded { .. } => "task.ended",
            Self::ChildStarted { .. } => "child.started",
            Self::ChildUpdated { .. } => "child.updated",
            Self::ChildEnded { .. } => "child.ended",
            Self::GoalUpdated { .. } => "goal.updated",
            Self::ControlAsked { .. } => "control.asked",
            Self::ControlTold { .. } => "control.told",
            Self::ControlEnded { .. } => "control.ended",
            Self::PlanUpdated { .. } => "plan.updated",
            Self::UsageUpdated { .. } => "usage.updated",
            Self::OptionsUpdated { .. } => "options.updated",
            Self::CommandsUpdated { .. } => "commands.updated",
            Self::StartRetrying { .. } => "start.retrying",
            Self::LimitsUpdated { .. } => "limits.updated",
            Self::SpentUpdated { .. } => "spent.updated",
            Self::BudgetReached { .. } => "budget.reached",
            Self::ThreadRewound { .. } => "thread.rewound",
            Self::Notice { .. } => "notice",
            Self::SessionRecovering { .. } => "session.recovering",
            Self::ProviderFrame { .. } => "provider.frame",
            Self::EpochStarted { .. } => "epoch.started",
        }
    }

    /// The item that the event is about.
    #[must_use]
    pub const fn item(&self) -> Option<&ItemId> {
        match self {
            Self::ItemStarted { item, .. }
            | Self::ItemDelta { item, .. }
            | Self::ItemUpdated { item, .. }
            | Self::ItemCompleted { item, .. } => Some(item),
            _ => None,
        }
    }
}
