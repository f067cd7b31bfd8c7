//! What the host's log says of a session's life: ids and outcomes, never what anybody said. A line of a request names the
//! session and the message that it made; these lines name the message with its turn, the turn with its approvals and the
//! process that they ran in, so that any one of the ids finds the rest.

use mainstay_core::event::{Event, Stamped};

/// One line, made when the event was decided and logged when it is durable.
#[derive(Debug, Default)]
pub(super) struct Told {
    kind: &'static str,
    epoch: u64,
    seq: u64,
    process: Option<String>,
    agent_pid: Option<i32>,
    submission: Option<String>,
    turn: Option<String>,
    request: Option<String>,
    outcome: Option<String>,
    /// When what ended began, Unix ms.
    started_at: Option<i64>,
}

/// What there is to tell of an event; nothing of most.
pub(super) fn told(stamped: &Stamped) -> Option<Told> {
    let mut told =
        Told { kind: stamped.event.kind(), epoch: stamped.epoch, seq: stamped.seq, ..Told::default() };
    match &stamped.event {
        Event::LeaseReserved { process }
        | Event::ProcessReady { process, .. }
        | Event::ProcessAdopted { process }
        | Event::ProcessUnverifiable { process, .. }
        | Event::ProcessStopping { process, .. }
        | Event::StraysFound { process, .. } => told.process = Some(process.to_string()),
        Event::ProcessStarted { process, agent } => {
            told.process = Some(process.to_string());
            told.agent_pid = agent.as_ref().map(|agent| agent.pid);
        }
        Event::ProcessExited { process, exit } => {
            told.process = Some(process.to_string());
            told.outcome = Some(format!("{:?}", exit.cause));
        }
        Event::SubmissionAccepted { submission, .. }
        | Event::SubmissionQueued { submission, .. }
        | Event::SubmissionRejected { submission, .. }
        | Event::SubmissionCancelled { submission, .. }
        | Event::SubmissionDropped { submission, .. }
        | Event::SubmissionDoubtful { submission, .. } => told.submission = Some(submission.to_string()),
        Event::SubmissionDelivered { submission, process, steers, .. } => {
            told.submission = Some(submission.to_string());
            told.process = Some(process.to_string());
            told.turn = steers.as_ref().map(ToString::to_string);
        }
        Event::SubmissionTaken { submission, turn, .. } => {
            told.submission = Some(submission.to_string());
            told.turn = turn.as_ref().map(ToString::to_string);
        }
        Event::TurnStarted { turn, submission, .. } => {
            told.turn = Some(turn.to_string());
            told.submission = submission.as_ref().map(ToString::to_string);
        }
        Event::TurnEnded { turn, outcome, started_at, .. } => {
            told.started_at = Some(*started_at);
            told.turn = Some(turn.to_string());
            told.outcome = Some(format!("{outcome:?}"));
        }
        Event::RequestOpened { request, process, turn, .. } => {
            told.request = Some(request.to_string());
            told.process = Some(process.to_string());
            told.turn = turn.as_ref().map(ToString::to_string);
        }
        Event::RequestAnswered { request, .. } => told.request = Some(request.to_string()),
        Event::RequestClosed { request, state, .. } => {
            told.request = Some(request.to_string());
            told.outcome = Some(format!("{state:?}"));
        }
        Event::SessionRecovering { .. } | Event::SessionDeleted {} | Event::EpochStarted { .. } => {}
        _ => return None,
    }
    Some(told)
}

impl Told {
    pub(super) fn log(&self, session: &str) {
        let Self { kind, epoch, seq, agent_pid, started_at, .. } = self;
        tracing::info!(
            target: "mainstay::story",
            session,
            cursor = format_args!("{epoch}:{seq}"),
            process = self.process.as_deref(),
            agent_pid,
            submission = self.submission.as_deref(),
            turn = self.turn.as_deref(),
            approval = self.request.as_deref(),
            outcome = self.outcome.as_deref(),
            started_at,
            "{kind}"
        );
    }
}
