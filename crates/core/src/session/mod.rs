//! The session: a pure state machine. `handle` decides, `apply` folds; state is the fold of the journal, so what is
//! not in an event does not exist.

mod agent_events;
mod apply;
mod background;
mod commands;
mod controls;
mod imported;
mod items;
mod leaving;
mod limits;
mod past;
mod process_facts;
mod queue;
mod start_retry;
mod state;
mod status;
mod stops;
mod takeover;
mod timers;

#[cfg(test)]
mod tests;

pub use leaving::{LeaveStep, Leaving};
pub use limits::{Budget, DefaultAnswer, Limits, Owed, OwedKind, RequestPolicy, Spent};
pub use past::Past;
pub use state::{
    ClosedRequest, EndedChild, EndedTask, Link, OpenChild, OpenControl, OpenItem, OpenRequest,
    OpenSubmission, OpenTask, OpenTurn, PastTurn, Phase, RequestState, Retrying, RewoundTurns, Session,
    StartRetry, SubmissionState,
};
pub use status::{Status, StatusReport};
pub use stops::{StopKind, StopScope, StopState, StopTarget};
pub use takeover::Takeover;

use crate::agent::{AgentEvent, Capabilities, Decision};
use crate::content::{Answer, ContentBlock, Delivery, DeliveryTaken, Failure};
use crate::event::{EpochReason, Event, Stamped};
use crate::process::{CloseOrder, ProcessFact};
use crate::work::Control;
use crate::{
    ControlId, Cursor, Fence, LaunchSnapshot, ProcessToken, Refusal, RequestId, SessionId, SessionOptions,
    SubmissionId, ThreadId, TurnId,
};
use serde::Serialize;

/// As many submissions may wait in one session. One more is refused (`queue_full`): the queue stands in every
/// snapshot.
pub const MAX_QUEUED: usize = 1_000;
/// Text of neighbouring deltas of one item that are decided in one batch is merged up to this many bytes, so that a
/// fast agent costs one row per run, not one per delta. A longer run continues in the next row.
pub const MERGED_DELTA_BYTES: usize = 16 * 1024;
/// Bytes of unmodelled frames kept per session; over it they are counted only.
pub const UNMODELLED_BYTES: u64 = 256 * 1024;
/// Keys of finished items, turns and requests remembered so that their late frames touch nothing. Older ones fall
/// out; a frame that late starts a new item, which shows it rather than loses it.
pub const REMEMBERED: usize = 256;
/// Items open at once. One more cuts the oldest, visibly: an agent that never ends its items must not make every
/// snapshot larger.
pub const MAX_OPEN_ITEMS: usize = 256;
/// Background tasks alive at once; one more ends the oldest as lost, visibly: as with items.
pub const MAX_OPEN_TASKS: usize = 256;
/// Sub-agents' threads at work at once; one more ends the oldest as lost, visibly.
pub const MAX_OPEN_CHILDREN: usize = 256;
/// Ended tasks and children that a session still lists, each. Older ones stand in the journal.
pub const ENDED_WORK_SHOWN: usize = 64;
/// Controls that may be on their way at once. One more is refused (`queue_full`): an agent that answers none of so many
/// does not get further ones.
pub const MAX_OPEN_CONTROLS: usize = 64;
/// Links of the thread chain kept; the oldest are cut and counted, the first stays: it says where the chain came from.
pub const CHAIN_LINKS: usize = 64;
/// A process that died in its first turn this often in a row is not started again without a user.
pub const CRASH_LOOP_DEATHS: u32 = 3;
/// Pauses before a start is tried again that was refused for a cause which passes by itself, in milliseconds. After the
/// last one a user must look at it.
pub const START_RETRIES_MS: [i64; 3] = [15_000, 60_000, 300_000];
/// Turns remembered by name, so that they can be branched from and rewound to. Older ones are refused (`turn_unknown`).
pub const PAST_TURNS: usize = 256;
/// How long an agent has to react to a stop, in milliseconds, before its process is ended: agents answer an interrupt
/// within a second (measured), and one that is busy with a slow tool gets more.
pub const INTERRUPT_PATIENCE_MS: i64 = 30_000;
/// How long each step of leaving a shared process may take, in milliseconds: first the ends of what was told to end, then
/// those of what was told once more, together with all that runs beside it. Codex ends a turn within a second (measured).
pub const LEAVE_PATIENCE_MS: i64 = 15_000;
/// Runs of turns that rewinding dropped, kept to be told apart. Of an older run only its events tell.
pub const REWOUND_RUNS: usize = 64;
/// The version of [`Session`]'s serialized form; a snapshot of another version is folded anew from the journal.
pub const SNAPSHOT_VERSION: u32 = 8;

/// What the world is when an input is handled: time and what the pure core may not make itself.
#[derive(Debug, Clone)]
pub struct Moment<'a> {
    /// Unix time in milliseconds.
    pub now: i64,
    /// What the session's agent can do.
    pub capabilities: &'a Capabilities,
    /// A process token never used before, taken if this input acquires a process.
    pub fresh: &'a ProcessToken,
}

/// Everything that can reach a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// A client's command.
    Command(Command),
    /// The agent said something.
    Agent(AgentEvent),
    /// The host found something out about the process.
    Process(ProcessFact),
    /// The lane made the frames of the submission's `StartTurn` or `Steer`, as this input. Must follow it at once.
    Handed {
        /// Which.
        submission: SubmissionId,
        /// The number of the frame that carries the message.
        input: u64,
    },
    /// The lane could not make the frames.
    NotHanded {
        /// Which.
        submission: SubmissionId,
        /// Why it never can; None: it stays in the queue and is tried again at the next occasion.
        failure: Option<Failure>,
    },
    /// The host is there (again): go on with what is owed.
    Wake,
    /// Time has passed: what [`Session::next_deadline`] named may be due.
    Tick,
    /// The journal was rewound: begin a new epoch.
    NewEpoch(EpochReason),
    /// A keeper knows a later owner than this record does: the record is older than what was. The fence rises above it
    /// and a new epoch begins; where that was done before, nothing happens.
    FenceAhead {
        /// The fence that the keeper knows.
        known: Fence,
    },
    /// The store refused a write that carried this fence, which is not the record's any more.
    StaleWrite {
        /// That fence.
        carried: Fence,
    },
    /// A user binds the session to a living process that its journal does not know.
    TakeOver(Takeover),
    /// What the agent says cannot be recorded for this session: it cannot go on by itself.
    Hold(Failure),
}

/// What a client asks of a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Command {
    /// A message.
    Send {
        /// Its id.
        submission: SubmissionId,
        /// What.
        content: Vec<ContentBlock>,
        /// How.
        delivery: Delivery,
        /// The message it sends again.
        resends: Option<SubmissionId>,
    },
    /// Stop what runs.
    Interrupt(StopScope),
    /// Answer a request, by compare-and-set.
    Answer {
        /// Which.
        request: RequestId,
        /// The revision the client saw; None: whatever it is, as long as nobody answered.
        revision: Option<u64>,
        /// What.
        answer: Answer,
        /// Who answers, for the losers.
        by: String,
    },
    /// Withdraw a message that the agent does not have, or drop one in doubt.
    Withdraw {
        /// Which.
        submission: SubmissionId,
    },
    /// Change a message that the agent does not have, by compare-and-set.
    Edit {
        /// Which.
        submission: SubmissionId,
        /// The revision that the client saw.
        revision: u64,
        /// What it is to say; None: unchanged.
        content: Option<Vec<ContentBlock>>,
        /// Where it is to stand; None: unchanged.
        place: Option<Place>,
    },
    /// Move a message that the agent does not have to the front and lift its pause. Interrupts nothing.
    SendNow {
        /// Which.
        submission: SubmissionId,
    },
    /// Lift the pause that a stop sets.
    ResumeQueue,
    /// Start the agent though nothing is owed.
    Start,
    /// End the agent.
    Stop {
        /// On whose order.
        order: CloseOrder,
    },
    /// New name, options or mark; absent: unchanged.
    Update {
        /// The name; `Some(None)` takes it away.
        name: Option<Option<String>>,
        /// The options, whole.
        options: Option<SessionOptions>,
        /// The mark.
        archived: Option<bool>,
        /// Budgets and default answers, whole.
        limits: Option<Limits>,
    },
    /// Ask something of the agent beside messages and answers.
    Control(Control),
    /// Drop this turn and all later ones.
    Rewind {
        /// The first that goes.
        before: TurnId,
        /// Whether files are put back too.
        files: bool,
    },
    /// Delete the session.
    Delete,
    /// Put the session away, or delete it where it is put away already, because nothing happened to it for long. Refused
    /// where something did since it was looked at, or where something is owed.
    Age {
        /// Where its journal stood then.
        seen: Cursor,
    },
    /// Give up a process whose end cannot be proven, and its conversation with it (it may still write there), or a
    /// failure that holds the session.
    Abandon,
    /// Go on in a new conversation in place of one that cannot be taken up.
    StartFresh,
}

/// A place in the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Right before this message.
    Before(SubmissionId),
    /// Behind all others.
    Last,
}

/// What is to be done, after the transaction that holds the events is durable.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "a batch holds a handful; an allocation for each would cost more"
)]
pub enum Effect {
    /// Start a process for this session under the reserved fence.
    Acquire {
        /// Its token.
        process: ProcessToken,
        /// The fence.
        fence: Fence,
    },
    /// Tell the agent.
    Tell(Decision),
    /// End the process.
    Close {
        /// On whose order.
        order: CloseOrder,
    },
}

/// What a handled input decided, in order. One `Out` collects a whole batch of one session.
#[derive(Debug, Default)]
pub struct Out {
    /// Events, stamped, runs of deltas merged.
    pub events: Vec<Stamped>,
    /// Effects, in order.
    pub effects: Vec<Effect>,
}

/// The answer to a command.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// Nothing to say beside the events.
    Done,
    /// The message is accepted.
    Accepted {
        /// Which.
        submission: SubmissionId,
        /// What is done with it.
        taken_as: DeliveryTaken,
    },
    /// The message is changed.
    Changed {
        /// Which.
        submission: SubmissionId,
        /// Its revision now.
        revision: u64,
    },
    /// The answer won.
    Answered {
        /// Which request.
        request: RequestId,
        /// Its revision now.
        revision: u64,
    },
    /// Asked of the agent, or waiting for it.
    Asked {
        /// Under which id.
        control: ControlId,
    },
    /// What a stop stopped.
    Interrupted {
        /// The turn that is being interrupted.
        turn: Option<TurnId>,
        /// Messages that were withdrawn.
        withdrawn: Vec<SubmissionId>,
        /// True where a message is on its way and its turn is stopped as soon as it is known.
        pending: bool,
        /// True where messages wait in a queue that is paused now.
        queue_paused: bool,
        /// What was found, and what was done with it.
        targets: Vec<StopTarget>,
    },
}

impl Session {
    /// Makes a session. The first event of its journal is `session.created`.
    #[must_use]
    pub fn create(
        id: SessionId,
        name: Option<String>,
        launch: LaunchSnapshot,
        options: SessionOptions,
        now: i64,
        out: &mut Out,
    ) -> Self {
        let mut session = Self::empty(id.clone(), launch.clone());
        session.emit(out, now, Event::SessionCreated { session: id, name, launch, options });
        session
    }

    /// Decides. All checks come before the first event: a refused input changed nothing.
    ///
    /// # Errors
    /// [`Refusal`] with a stable code. `IllegalInput` means that host or adapter broke their part.
    pub fn handle(&mut self, input: Input, moment: &Moment<'_>, out: &mut Out) -> Result<Reply, Refusal> {
        if self.handing.is_some() {
            match input {
                Input::Handed { .. } | Input::NotHanded { .. } => {}
                // Said while what was decided before the message is told: its turn comes after the message.
                Input::Agent(event) => {
                    self.deferred.push_back(event);
                    return Ok(Reply::Done);
                }
                _ => return Err(Refusal::illegal("handing a message over", "any other input")),
            }
        }
        let reply = self.decide(input, moment, out)?;
        while self.handing.is_none()
            && self.phase != Phase::Free
            && let Some(event) = self.deferred.pop_front()
        {
            self.on_agent(event, moment, out)?;
        }
        if self.phase == Phase::Free {
            // Of a process whose end is settled.
            self.deferred.clear();
        }
        Ok(reply)
    }

    fn decide(&mut self, input: Input, moment: &Moment<'_>, out: &mut Out) -> Result<Reply, Refusal> {
        match input {
            Input::Command(command) => self.on_command(command, moment, out),
            Input::Agent(event) => self.on_agent(event, moment, out).map(|()| Reply::Done),
            Input::Process(fact) => self.on_process(fact, moment, out).map(|()| Reply::Done),
            Input::Handed { submission, input } => self.on_handed(submission, input, moment, out),
            Input::NotHanded { submission, failure } => {
                if self.handing.as_ref().is_none_or(|handing| handing.submission != submission) {
                    return Err(Refusal::illegal("not handing this message over", "NotHanded"));
                }
                self.handing = None;
                if let Some(failure) = failure {
                    self.emit(out, moment.now, Event::SubmissionRejected { submission, failure });
                    self.advance(moment, out);
                }
                Ok(Reply::Done)
            }
            Input::Wake => {
                self.advance(moment, out);
                Ok(Reply::Done)
            }
            Input::Tick => {
                self.tick(moment, out);
                Ok(Reply::Done)
            }
            Input::Hold(failure) => {
                self.hold(failure, moment, out);
                Ok(Reply::Done)
            }
            Input::NewEpoch(reason) => {
                self.begin_epoch(reason, 0, moment.now, out);
                Ok(Reply::Done)
            }
            Input::FenceAhead { known } => {
                self.raise_fence(known, known.next(), moment, out);
                Ok(Reply::Done)
            }
            Input::StaleWrite { carried } => {
                if carried < self.fence && self.stale_refused.is_none_or(|known| carried > known) {
                    self.emit(out, moment.now, Event::LeaseRefused { carried });
                }
                Ok(Reply::Done)
            }
            Input::TakeOver(takeover) => self.take_over(takeover, moment, out),
        }
    }

    fn on_handed(
        &mut self,
        submission: SubmissionId,
        input: u64,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        let (process, steers) = match (&self.handing, &self.process) {
            (Some(handing), Some(process)) if handing.submission == submission => {
                (process.clone(), handing.steers.clone())
            }
            _ => return Err(Refusal::illegal("not handing this message over", "Handed")),
        };
        self.handing = None;
        self.emit(out, moment.now, Event::SubmissionDelivered { submission, process, input, steers });
        Ok(Reply::Done)
    }

    /// Stamps an event, folds it, and puts it out; a delta that continues the run before it joins that run.
    pub(crate) fn emit(&mut self, out: &mut Out, now: i64, event: Event) {
        let fence = match event {
            Event::LeaseReserved { .. } => self.fence.next(),
            _ => self.fence,
        };
        self.emit_under(fence, out, now, event);
    }

    /// As [`Self::emit`], under a fence that may be a higher one than before.
    fn emit_under(&mut self, fence: Fence, out: &mut Out, now: i64, event: Event) {
        let seq = self.head + 1;
        self.apply_event(seq, now, fence, &event);
        if let Event::ItemDelta { item, text, .. } = &event
            && let Some(last) = out.events.last_mut()
            && let Event::ItemDelta { item: open, text: run, .. } = &mut last.event
            && open == item
            && run.len() + text.len() <= MERGED_DELTA_BYTES
        {
            run.push_str(text);
            last.first_seq.get_or_insert(last.seq);
            last.seq = seq;
            return;
        }
        out.events.push(Stamped {
            epoch: self.epoch,
            seq,
            first_seq: None,
            at: now,
            fence: self.fence,
            event,
        });
    }

    /// Begins a new epoch, `at_least` this one: the journal was rewound, or somebody may know another continuation of it.
    pub fn begin_epoch(&mut self, reason: EpochReason, at_least: u64, now: i64, out: &mut Out) {
        self.begin_epoch_under(self.fence, reason, at_least, now, out);
    }

    /// As [`Self::begin_epoch`], under a fence that may be a higher one than before.
    fn begin_epoch_under(
        &mut self,
        fence: Fence,
        reason: EpochReason,
        at_least: u64,
        now: i64,
        out: &mut Out,
    ) {
        self.epoch = (self.epoch + 1).max(at_least);
        self.head = 0;
        self.emit_under(fence, out, now, Event::EpochStarted { reason });
    }

    /// Folds one event of the journal. One that was folded before changes nothing: a reader may read a page again.
    pub fn apply(&mut self, stamped: &Stamped) {
        if (stamped.epoch, stamped.seq) <= (self.epoch, self.head) {
            return;
        }
        self.epoch = stamped.epoch;
        self.apply_event(stamped.seq, stamped.at, stamped.fence, &stamped.event);
    }

    /// The head of the thread chain.
    #[must_use]
    pub fn thread(&self) -> Option<&ThreadId> {
        self.chain.last().map(|link| &link.thread)
    }
}
