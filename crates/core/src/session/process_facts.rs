//! What the host found out about the process, and the settlement of everything when it is proven gone.

use super::state::{OpenRequest, Phase, RequestState, Session, SubmissionState};
use super::{CRASH_LOOP_DEATHS, Moment, Out};
use crate::agent::NoticeLevel;
use crate::content::{Failure, FailureCode, Outcome};
use crate::event::{Event, LeaseEnd, QueueReason, RequestEnd, SettlesBy};
use crate::process::{CloseOrder, ExitCause, ProcessExit, ProcessFact};
use crate::work::Provenance;
use crate::{ProcessToken, Refusal, RequestId, SubmissionId, TurnId};

impl Session {
    pub(super) fn on_process(
        &mut self,
        fact: ProcessFact,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<(), Refusal> {
        match fact {
            ProcessFact::Started { process, agent } => {
                self.expect_process(&process, "Started")?;
                if self.phase != Phase::Reserved {
                    return Err(Refusal::illegal(self.phase.name(), "Started"));
                }
                self.emit(out, moment.now, Event::ProcessStarted { process, agent });
            }
            ProcessFact::Adopted { process } => {
                self.expect_process(&process, "Adopted")?;
                self.emit(out, moment.now, Event::ProcessAdopted { process });
                self.advance(moment, out);
            }
            ProcessFact::GoesOn { process, others } => {
                self.expect_process(&process, "GoesOn")?;
                self.goes_on(process, others, moment, out);
            }
            ProcessFact::Unverifiable { process, why } => {
                self.expect_process(&process, "Unverifiable")?;
                if self.unverifiable.as_ref() != Some(&why) {
                    self.emit(out, moment.now, Event::ProcessUnverifiable { process, why });
                }
            }
            ProcessFact::Exited { process, exit } => {
                self.expect_process(&process, "Exited")?;
                let stopping = self.stopping;
                let (cause, may_pass, failure) = (exit.cause, exit.may_pass, failure_of(&exit));
                self.settle_exit(exit, moment, out);
                self.go_on_after_exit((cause, may_pass), failure, stopping, moment, out);
            }
            ProcessFact::Connection { process, connection } => {
                self.expect_process(&process, "Connection")?;
                if connection.is_none() && self.phase != Phase::Free {
                    let message =
                        "the connection to the agent was lost; the agent works on and is being re-attached";
                    self.notice(NoticeLevel::Warning, message.to_owned(), moment, out);
                }
            }
            ProcessFact::AwaitsCapacity { process } => {
                self.expect_process(&process, "AwaitsCapacity")?;
                let waits = self.submissions.iter().find(|open| open.waits()).map(|open| open.id.clone());
                if let Some(submission) = waits.filter(|_| !self.awaits_capacity) {
                    let reason = QueueReason::Capacity;
                    self.emit(out, moment.now, Event::SubmissionQueued { submission, reason });
                }
            }
            ProcessFact::InputRefused { process, n, why } => {
                self.expect_process(&process, "InputRefused")?;
                let submission = self.submissions.iter().find_map(|open| match &open.state {
                    SubmissionState::Delivered { input, .. } if *input == n => Some(open.id.clone()),
                    _ => None,
                });
                let stopped = submission.clone().filter(|id| self.stopped_start(id));
                let by_user = matches!(self.stopping, Some(CloseOrder::User | CloseOrder::Kill));
                let held_back = submission.clone().filter(|_| by_user && stopped.is_none());
                self.emit(out, moment.now, Event::InputRefused { process, input: n, submission, why });
                if let Some(submission) = held_back {
                    let reason = QueueReason::Paused;
                    self.emit(out, moment.now, Event::SubmissionQueued { submission, reason });
                }
                if let Some(submission) = stopped {
                    // It never reached the agent, and a stop was meant for it.
                    self.emit(out, moment.now, Event::SubmissionCancelled { submission });
                }
            }
        }
        Ok(())
    }

    fn expect_process(&self, process: &ProcessToken, input: &str) -> Result<(), Refusal> {
        if self.process.as_ref() == Some(process) {
            return Ok(());
        }
        Err(Refusal::illegal(
            &format!("bound to {}", self.process.as_ref().map_or("no process", |own| own.as_str())),
            &format!("{input} of process {process}"),
        ))
    }

    /// Everything ends, once: items, requests, messages, turns, then the process and the lease.
    pub(super) fn settle_exit(&mut self, exit: ProcessExit, moment: &Moment<'_>, out: &mut Out) {
        let Some(process) = self.process.clone() else {
            return;
        };
        let again = self.to_ask_again(&exit, moment);
        self.cut_items(None, moment, out);
        self.close_requests(|_| true, RequestEnd::Lost, &again, moment, out);
        self.end_background(moment, out);
        self.lose_controls(moment, out);
        self.settle_submissions(&exit, moment, out);
        let ordered = exit.cause.ordered() || self.stopping.is_some();
        let failure = failure_of(&exit);
        let turns: Vec<(TurnId, bool)> =
            self.turns.iter().map(|turn| (turn.id.clone(), turn.interrupted_at.is_some())).collect();
        for (turn, asked_to_stop) in turns {
            let outcome = if ordered || asked_to_stop { Outcome::Interrupted } else { Outcome::Lost };
            self.end_turn(&turn, outcome, None, Some(failure.clone()), None, moment, out);
        }
        let strays = exit.strays.clone();
        let reason = match exit.cause {
            ExitCause::ReservationUnused => LeaseEnd::Unused,
            ExitCause::Abandoned => LeaseEnd::Abandoned,
            ExitCause::ThreadClosed => LeaseEnd::ThreadClosed,
            _ => LeaseEnd::ProcessGone,
        };
        if exit.cause != ExitCause::ThreadClosed {
            self.emit(out, moment.now, Event::ProcessExited { process: process.clone(), exit });
        }
        if !strays.is_empty() {
            self.emit(out, moment.now, Event::StraysFound { process, strays });
        }
        self.emit(out, moment.now, Event::LeaseReleased { reason });
    }

    /// Requests that nobody answered and that the next process is to ask again: of the session's own thread, about a call,
    /// of a process that nobody ended.
    fn to_ask_again(&self, exit: &ProcessExit, moment: &Moment<'_>) -> Vec<RequestId> {
        let ended_on_purpose = exit.cause.ordered()
            || self.stopping.is_some()
            || matches!(exit.cause, ExitCause::Abandoned | ExitCause::ThreadClosed);
        if !moment.capabilities.asks_again || ended_on_purpose || self.archived || self.deleted {
            return Vec::new();
        }
        let stopped = |open: &OpenRequest| {
            let turn = self.turns.iter().find(|turn| Some(&turn.id) == open.turn.as_ref());
            turn.is_some_and(|turn| turn.interrupted_at.is_some())
        };
        let unanswered = self.requests.iter().filter(|open| {
            open.state == RequestState::Pending
                && open.child.is_none()
                && open.call.is_some()
                && !open.elicits
                && !stopped(open)
        });
        unanswered.map(|open| open.id.clone()).collect()
    }

    fn settle_submissions(&mut self, exit: &ProcessExit, moment: &Moment<'_>, out: &mut Out) {
        let delivered: Vec<(SubmissionId, u64, bool)> = self
            .submissions
            .iter()
            .filter_map(|open| match &open.state {
                SubmissionState::Delivered { input, .. } => {
                    Some((open.id.clone(), *input, self.stop_meant(open)))
                }
                _ => None,
            })
            .collect();
        // A user who ended the process meant what it had.
        let by_user = matches!(self.stopping, Some(CloseOrder::User | CloseOrder::Kill));
        for (submission, input, stopped) in delivered {
            let steered = self.submission(&submission).is_some_and(|open| open.given_into.is_some());
            let event = if exit.proves_undelivered(input) && self.stopped_start(&submission) {
                Event::SubmissionCancelled { submission }
            } else if exit.proves_undelivered(input) {
                let paused = (stopped && steered) || by_user;
                let reason = if paused { QueueReason::Paused } else { QueueReason::Starting };
                Event::SubmissionQueued { submission, reason }
            } else {
                let settles_by =
                    if moment.capabilities.settles_by_history { SettlesBy::History } else { SettlesBy::User };
                Event::SubmissionDoubtful { submission, settles_by, stopped }
            };
            self.emit(out, moment.now, event);
        }
    }

    /// Whether a stop was meant for this message, which was to start a turn.
    fn stopped_start(&self, submission: &SubmissionId) -> bool {
        self.submission(submission).is_some_and(|open| open.given_into.is_none() && self.stop_meant(open))
    }

    /// `stopping`: the order that stood when the process ended. It counts however the process ended. `may_pass`: whether a
    /// start that failed may succeed another time.
    pub(super) fn go_on_after_exit(
        &mut self,
        (exit_cause, may_pass): (ExitCause, bool),
        failure: Failure,
        stopping: Option<CloseOrder>,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let cause = match stopping {
            Some(order @ (CloseOrder::User | CloseOrder::Kill)) => ExitCause::Ordered { order },
            _ => exit_cause,
        };
        match cause {
            // It paused what waited when it was given.
            ExitCause::Ordered { order: CloseOrder::User | CloseOrder::Kill } if stopping.is_some() => {
                self.advance(moment, out);
            }
            // A user's stop that came past this session pauses what waits.
            ExitCause::Ordered { order: CloseOrder::User | CloseOrder::Kill } => {
                self.cancel_waiting_controls(moment, out);
                if self.submissions.iter().any(super::OpenSubmission::waits) {
                    let paused = Event::SessionUpdated {
                        name: None,
                        options: None,
                        archived: None,
                        queue_paused: Some(true),
                        by: Provenance::Unknown,
                    };
                    self.emit(out, moment.now, paused);
                }
            }
            ExitCause::SpawnFailed => {
                if !self.retry_start(&failure, may_pass, moment, out) {
                    let recovering = Event::SessionRecovering {
                        failure: Some(failure),
                        start_fresh: false,
                        never_saved: false,
                    };
                    self.emit(out, moment.now, recovering);
                }
                self.advance(moment, out);
            }
            _ if self.first_turn_deaths >= CRASH_LOOP_DEATHS && self.recovering.is_none() => {
                let failure = Failure::new(
                    FailureCode::CrashLoop,
                    format!(
                        "the agent died in its first turn {} times in a row and is not started again by itself; the last time, {}",
                        self.first_turn_deaths, failure.message
                    ),
                );
                self.emit(
                    out,
                    moment.now,
                    Event::SessionRecovering {
                        failure: Some(failure),
                        start_fresh: false,
                        never_saved: false,
                    },
                );
                self.advance(moment, out);
            }
            _ => self.advance(moment, out),
        }
    }
}

/// The failure that a turn gets which ended because its process did.
pub(super) fn failure_of(exit: &ProcessExit) -> Failure {
    let how = match (exit.exit_code, exit.signal) {
        (_, Some(signal)) => format!(" (signal {signal})"),
        (Some(code), None) => format!(" (exit code {code})"),
        (None, None) => String::new(),
    };
    let (code, message) = match exit.cause {
        ExitCause::AgentLeft => (FailureCode::AgentExited, format!("the agent's process ended{how}")),
        ExitCause::Ordered { .. } | ExitCause::Linger => {
            (FailureCode::Stopped, "the agent's process was ended on an order".to_owned())
        }
        ExitCause::SpawnFailed => (
            FailureCode::SpawnFailed,
            format!(
                "the agent could not be started: {}",
                exit.spawn_error.as_deref().unwrap_or("no reason recorded")
            ),
        ),
        ExitCause::FolderDeleted => {
            (FailureCode::Stopped, "the keeper's folder was deleted, so it closed the agent".to_owned())
        }
        ExitCause::SpoolLimit => {
            (FailureCode::Limit, "the agent wrote more than the spool limit while nobody read".to_owned())
        }
        ExitCause::KeeperLost => {
            (FailureCode::KeeperLost, "the keeper was killed; the agent is proven gone".to_owned())
        }
        ExitCause::ReservationUnused => (FailureCode::Gone, "the agent never ran".to_owned()),
        ExitCause::Rebooted => (FailureCode::Gone, "the machine was started anew".to_owned()),
        ExitCause::Abandoned => (FailureCode::Gone, "a user gave the process up".to_owned()),
        ExitCause::ThreadClosed => (FailureCode::Gone, "the agent let the conversation go".to_owned()),
    };
    let tail = exit.stderr_tail.trim();
    let message = if tail.is_empty() { message } else { format!("{message}; its last words: {tail}") };
    Failure::new(code, message)
}
