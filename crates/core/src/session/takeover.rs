//! A living process that the journal does not know, after the database was restored from a copy or lost: whose fence
//! counts, and how a session is bound to it without disturbing the agent.

use super::state::{Phase, Session};
use super::{Moment, Out, Reply};
use crate::agent::NoticeLevel;
use crate::event::{EpochReason, Event, ThreadOrigin};
use crate::process::{ExitCause, ProcessExit, ProcessId};
use crate::{Fence, ProcessToken, Refusal, RefusalCode, ThreadId};

/// What the host found out about a keeper that no record claims, and that a user wants this session to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Takeover {
    /// Its token.
    pub process: ProcessToken,
    /// The agent that lives below it.
    pub agent: Option<ProcessId>,
    /// The highest fence that it was ever spoken to under.
    pub known: Fence,
    /// The conversation that its agent holds, which is this session's.
    pub thread: ThreadId,
    /// The process that the record names, where it is proven gone: this keeper was reserved for the same session under
    /// a later fence, and that happens only after the end of the one before was proven.
    pub gone: Option<ProcessToken>,
}

impl Session {
    /// The record is older than what a keeper knows: whatever was made under the fences in between must not be mixed up
    /// with what is made from now on.
    pub(super) fn raise_fence(&mut self, known: Fence, to: Fence, moment: &Moment<'_>, out: &mut Out) {
        if known >= self.fence {
            self.begin_epoch_under(to, EpochReason::FenceAhead, 0, moment.now, out);
        }
    }

    /// The thread counts as held and its connection as lost: what re-attaches a thread after a broken connection does
    /// the rest, and nothing is given to the agent before that is done.
    pub(super) fn take_over(
        &mut self,
        takeover: Takeover,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        let Takeover { process, agent, known, thread, gone } = takeover;
        if self.deleted {
            return Err(Refusal::new(
                RefusalCode::SessionClosed,
                format!("session {} is deleted; end the keeper instead", self.id),
            ));
        }
        self.refuse_closed()?;
        if self.phase != Phase::Free && (self.process.is_none() || self.process != gone) {
            return Err(Refusal::new(
                RefusalCode::SubmissionState,
                format!(
                    "session {} has a process of its own ({}); stop it or give it up first",
                    self.id,
                    self.process.as_ref().map_or("unknown", |process| process.as_str())
                ),
            ));
        }
        // The lease below is an acquisition of its own and raises it once more.
        self.raise_fence(known, known, moment, out);
        self.clear_recovering(moment, out);
        if self.phase != Phase::Free {
            self.settle_exit(ProcessExit::of(ExitCause::KeeperLost), moment, out);
        }
        let message = format!(
            "the session was bound again to the living agent of keeper {process}, which no record claimed; what was said meanwhile is read from the agent's own history"
        );
        self.notice(NoticeLevel::Warning, message, moment, out);
        let previous = self.thread().cloned();
        let how =
            if previous.as_ref() == Some(&thread) { ThreadOrigin::Resumed } else { ThreadOrigin::Adopted };
        let events = [
            Event::LeaseReserved { process: process.clone() },
            Event::ProcessStarted { process: process.clone(), agent },
            Event::ProcessAdopted { process: process.clone() },
            self.linked(thread.clone(), how, previous),
            Event::LeaseHeld { process, thread },
        ];
        for event in events {
            self.emit(out, moment.now, event);
        }
        Ok(Reply::Done)
    }
}
