//! What the adapter remembers: one value for the connection, one per thread. Streamed text changes neither.

use crate::sessions::ThreadState;
use mainstay_core::content::Failure;
use mainstay_core::{ItemKey, ProviderTurn, SessionId, SessionOptions, SubmissionId, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Saved states of another version are dropped.
pub(super) const STATE_VERSION: u32 = 2;

/// Approvals of one thread that are open at once. One more is declined, with a notice: the state must stay small.
pub(super) const MAX_OPEN_REQUESTS: usize = 32;
/// The longest proposed rule, in bytes of JSON, that is offered for ever. A longer one is not offered.
pub(super) const MAX_AMENDMENT_BYTES: usize = 512;
/// Tries of one interrupt. Measured: 2 to 11 were needed. After the last one the user is told.
pub(super) const MAX_INTERRUPT_TRIES: u32 = 20;
/// Tries to take a thread up again on one connection. After the last one the thread is looked at again on the next
/// connection, and the user was told.
pub(super) const MAX_REATTACH_TRIES: u32 = 20;
/// The longest message, in bytes of JSON, that is kept to be given a second time where another turn runs than the one
/// that was expected. A longer one returns to the queue instead.
pub(super) const MAX_STEER_BYTES: usize = 16 * 1024;
/// Where the ids of interrupts begin. A stop goes out also where the store refuses to record it; its id is then forgotten
/// and given again. Its late answer may meet another interrupt, never a message.
pub(super) const INTERRUPT_IDS: u64 = 1 << 48;
/// Turns that are asked for at once: whole turns may be large.
pub(super) const HISTORY_PAGE: u32 = 10;
/// Turns that are asked for at once where a page could not be read: what was too long may then fit. Where it still
/// cannot be read, the question stays without an answer.
pub(super) const SMALL_HISTORY_PAGE: u32 = 2;
/// Pages that are read for one question. What is not found in them is not proven absent.
pub(super) const MAX_HISTORY_PAGES: u32 = 100;

/// How far the handshake is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) enum Handshake {
    /// Nothing was said on this connection.
    #[default]
    Unsaid,
    /// `initialize` is unanswered.
    Asked,
    /// Threads can be opened.
    Done,
    /// The server refused it: no thread can be opened.
    Failed(Failure),
}

/// What a look into the history is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Lookup {
    /// A thread is being opened: settle doubtful inputs, find out where its history ends.
    Opening,
    /// A connection was lost: find out what was missed.
    Reattach,
    /// A turn ended and the input it was started with was never seen.
    Settle,
}

/// A page of the history that is asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Look {
    pub(super) why: Lookup,
    /// From 0.
    pub(super) page: u32,
    /// Turns in it.
    pub(super) limit: u32,
    /// Where it begins; None: at the newest turn.
    pub(super) cursor: Option<Value>,
    /// The id of the request that asked for it: says nothing of an input that was given after it.
    #[serde(default)]
    pub(super) asked: u64,
}

impl Look {
    pub(super) const fn first(why: Lookup) -> Self {
        Self { why, page: 0, limit: HISTORY_PAGE, cursor: None, asked: 0 }
    }

    pub(super) fn next(&self, cursor: Value) -> Self {
        Self { page: self.page + 1, cursor: Some(cursor), ..self.clone() }
    }

    /// The same page with fewer turns; None: it was a small one already.
    pub(super) fn smaller(&self) -> Option<Self> {
        (self.limit > SMALL_HISTORY_PAGE).then(|| Self { limit: SMALL_HISTORY_PAGE, ..self.clone() })
    }
}

/// What an unanswered request of ours is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Asked {
    Initialize,
    /// `thread/start` or `thread/resume`.
    Open {
        session: SessionId,
    },
    /// `thread/resume` of an open thread on a new connection.
    Reattach {
        session: SessionId,
    },
    /// `thread/read` of a thread that cannot be taken up again yet.
    Status {
        session: SessionId,
    },
    /// `thread/turns/list`.
    History {
        session: SessionId,
        look: Look,
    },
    StartTurn {
        session: SessionId,
        submission: SubmissionId,
        /// The turn that ran when it was asked: the same one in the answer means that it was joined, not started.
        into: Option<ProviderTurn>,
    },
    Steer {
        session: SessionId,
        submission: SubmissionId,
        /// The turn that was expected to run.
        turn: ProviderTurn,
        /// It is the second try, with the turn that runs in place of the one that was named first.
        again: bool,
    },
    Interrupt {
        session: SessionId,
        turn: ProviderTurn,
    },
    /// `thread/unsubscribe`.
    Close {
        session: SessionId,
    },
}

impl Asked {
    pub(super) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Initialize => None,
            Self::Open { session }
            | Self::Reattach { session }
            | Self::Close { session }
            | Self::Status { session }
            | Self::History { session, .. }
            | Self::StartTurn { session, .. }
            | Self::Steer { session, .. }
            | Self::Interrupt { session, .. } => Some(session),
        }
    }
}

/// What belongs to the connection.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Connection {
    /// The open connection's number.
    pub(super) number: Option<u32>,
    /// The id of the next request; never begins anew, so that a late answer meets nobody else's question.
    pub(super) next_id: u64,
    /// As `next_id`, of interrupts, which count from [`INTERRUPT_IDS`].
    #[serde(default)]
    pub(super) interrupts: u64,
    pub(super) handshake: Handshake,
    pub(super) asked: BTreeMap<u64, Asked>,
}

/// How far a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) enum Phase {
    #[default]
    Closed,
    Opening,
    Open,
}

/// A thread that is being opened; asked again on a new connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Opening {
    pub(super) resume: Option<ThreadId>,
    pub(super) options: SessionOptions,
    /// Not yet settled.
    pub(super) doubtful: Vec<SubmissionId>,
}

/// The input that was given and is not proven taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Input {
    pub(super) submission: SubmissionId,
    /// The id of the request that carried it.
    #[serde(default)]
    pub(super) request: u64,
    /// The turn that the answer named, or that it was to go into.
    pub(super) turn: Option<ProviderTurn>,
    /// It goes into a turn that runs, and starts none.
    #[serde(default)]
    pub(super) steers: bool,
    /// What it says, where it may have to be given once more, into another turn. Bounded by [`MAX_STEER_BYTES`].
    #[serde(default)]
    pub(super) kept: Option<Value>,
    /// Nothing that comes live can tell any more, only the history: the connection was lost before it was taken, or the
    /// turn that the answer named ended without it.
    pub(super) lost: bool,
    /// The newest ended turn when it was given: whatever it became is newer.
    pub(super) after: Option<ProviderTurn>,
}

/// Which message a turn answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Named {
    pub(super) turn: ProviderTurn,
    pub(super) submission: SubmissionId,
}

/// The turn that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Running {
    pub(super) turn: ProviderTurn,
    /// Its origin was said.
    pub(super) known: bool,
}

/// Somebody wants a turn stopped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Interrupt {
    /// Which; None: the one that our input is about to start.
    pub(super) turn: Option<ProviderTurn>,
    pub(super) tries: u32,
    /// The last try came too early: once more at the next record of the thread.
    pub(super) due: bool,
}

/// What failed a turn, until the turn's end is said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TurnFailure {
    pub(super) turn: ProviderTurn,
    pub(super) failure: Failure,
}

/// An approval that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenRequest {
    /// The JSON text of its id on the open connection; None after a disconnect, until it is sent again.
    pub(super) id: Option<String>,
    pub(super) method: String,
    pub(super) turn: ProviderTurn,
    pub(super) item: ItemKey,
    /// Tells approvals of one item apart, where the server does.
    pub(super) approval: Option<String>,
    /// The rule that may be made for ever.
    pub(super) amendment: Option<Value>,
    /// What was answered; given again where the request comes again.
    pub(super) answer: Option<Value>,
}

/// A thread that is not taken up on this connection. It may live in the server all the same: a thread without any
/// message cannot be resumed (measured), and neither can one whose first message is just being taken.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Detached {
    pub(super) tries: u32,
    /// It was seen doing nothing, and no word of it came since.
    pub(super) idle: bool,
    /// The server said that it is not loaded: it is asked for once more, and a refusal is the last word.
    pub(super) gone: bool,
    /// A word of it came while it was asked for: the answer may be older than the word.
    pub(super) word: bool,
}

/// How much of a thread's history the journal has.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) enum Seen {
    /// The thread is new: all of it is ours to show.
    #[default]
    FromTheStart,
    /// Everything up to the end of this turn.
    UpTo(ProviderTurn),
    /// It could not be asked: older turns are not shown.
    Unsure,
}

impl Seen {
    pub(super) fn up_to(&self) -> Option<&ProviderTurn> {
        match self {
            Self::UpTo(turn) => Some(turn),
            Self::FromTheStart | Self::Unsure => None,
        }
    }
}

/// What belongs to one session's thread.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Thread {
    pub(super) thread: Option<ThreadId>,
    pub(super) phase: Phase,
    pub(super) opening: Option<Opening>,
    /// What the session has as options: ours, with what the server reported.
    pub(super) options: SessionOptions,
    /// What the server has in force; None in a field: its own default.
    pub(super) in_force: SessionOptions,
    pub(super) input: Option<Input>,
    pub(super) named: Option<Named>,
    pub(super) running: Option<Running>,
    pub(super) seen: Seen,
    pub(super) detached: Option<Detached>,
    pub(super) last_taken: Option<SubmissionId>,
    /// The input that was given up on, because the history could not tell. Its user message may still come.
    pub(super) given_up: Option<SubmissionId>,
    pub(super) interrupt: Option<Interrupt>,
    pub(super) failure: Option<TurnFailure>,
    /// Ends of turns that came while the history of the time without a connection was being read: they wait for what
    /// the history has of those turns, else the session would close items whose text is still to come.
    #[serde(default)]
    pub(super) held_ends: Vec<Value>,
    /// By the key that the session knows.
    pub(super) requests: BTreeMap<String, OpenRequest>,
}

impl ThreadState for Thread {
    fn thread_id(&self) -> Option<&str> {
        self.thread.as_ref().map(ThreadId::as_str)
    }
}

impl Thread {
    pub(super) fn runs(&self, turn: &str) -> bool {
        self.running.as_ref().is_some_and(|running| running.turn.as_str() == turn)
    }
}
