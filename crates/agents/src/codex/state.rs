//! What the adapter remembers: one value for the connection, one per thread. Streamed text changes neither.

use super::bounds::{HISTORY_PAGE, SMALL_HISTORY_PAGE};
use super::catalogue::CatalogueRead;
use super::controls::After;
use crate::sessions::ThreadState;
use mainstay_core::content::{Failure, ItemKind};
use mainstay_core::work::ForkPoint;
use mainstay_core::{
    ControlId, ItemKey, ProviderTurn, SessionId, SessionOptions, SubmissionId, TaskKey, ThreadId,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};

/// Saved states of another version are dropped.
pub(super) const STATE_VERSION: u32 = 3;

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
    /// Without the turns' items: how they ended, and no more.
    #[serde(default)]
    pub(super) ends_only: bool,
}

impl Look {
    pub(super) const fn first(why: Lookup) -> Self {
        Self { why, page: 0, limit: HISTORY_PAGE, cursor: None, asked: 0, ends_only: false }
    }

    pub(super) fn next(&self, cursor: Value) -> Self {
        Self { page: self.page + 1, cursor: Some(cursor), ..self.clone() }
    }

    /// The same page with fewer turns, then with their ends only; None: it was that already.
    pub(super) fn smaller(&self) -> Option<Self> {
        if self.ends_only {
            None
        } else if self.limit > SMALL_HISTORY_PAGE {
            Some(Self { limit: SMALL_HISTORY_PAGE, ..self.clone() })
        } else {
            Some(Self { limit: HISTORY_PAGE, ends_only: true, ..self.clone() })
        }
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
    /// `thread/unarchive` of a thread that is to be taken up.
    Unarchive {
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
    /// Something beside messages.
    Control {
        session: SessionId,
        control: ControlId,
        after: After,
    },
    /// The newest turn after going back.
    RevertProof {
        session: SessionId,
        control: ControlId,
        turn: ProviderTurn,
    },
    /// `thread/unsubscribe`.
    Close {
        session: SessionId,
    },
    /// `model/list` and other reads that concern the process.
    Catalogue(CatalogueRead),
    /// `thread/read`, where the history could not tell whether a turn is over.
    StillRuns {
        session: SessionId,
        turn: ProviderTurn,
    },
    /// `thread/resume` of a sub-agent's thread on a new connection.
    ReattachChild {
        session: SessionId,
        child: ThreadId,
    },
    /// Its newest turn.
    ChildHistory {
        session: SessionId,
        child: ThreadId,
    },
    /// `thread/queue/list`.
    Queue {
        session: SessionId,
    },
    /// `thread/queue/delete` of the message with this id.
    Withdraw {
        session: SessionId,
        message: String,
    },
    /// The newest turn of a thread that another client began: without one it cannot be taken up.
    Beside {
        thread: ThreadId,
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
    /// `thread/backgroundTerminals/list`, so often, after a turn was interrupted.
    Background {
        session: SessionId,
        turn: ProviderTurn,
        child: Option<ThreadId>,
        looks: u32,
        /// The page of this look, from 0.
        #[serde(default)]
        page: u32,
    },
    /// What was asked for a session that has left: its answer concerns nobody.
    Forgotten,
}

impl Asked {
    pub(super) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Initialize | Self::Catalogue(_) | Self::Beside { .. } | Self::Forgotten => None,
            Self::Control { session, .. }
            | Self::RevertProof { session, .. }
            | Self::Close { session }
            | Self::Open { session }
            | Self::Queue { session }
            | Self::Withdraw { session, .. }
            | Self::Unarchive { session }
            | Self::Reattach { session }
            | Self::Status { session }
            | Self::StillRuns { session, .. }
            | Self::ReattachChild { session, .. }
            | Self::ChildHistory { session, .. }
            | Self::History { session, .. }
            | Self::StartTurn { session, .. }
            | Self::Steer { session, .. }
            | Self::Background { session, .. }
            | Self::Interrupt { session, .. } => Some(session),
        }
    }

    /// Whether a read: without its answer something is not known, and nothing is done or left undone.
    pub(super) const fn may_be_given_up(&self) -> bool {
        matches!(
            self,
            Self::Forgotten
                | Self::Status { .. }
                | Self::StillRuns { .. }
                | Self::History { .. }
                | Self::ChildHistory { .. }
                | Self::RevertProof { .. }
                | Self::Background { .. }
                | Self::Beside { .. }
                | Self::Queue { .. }
                | Self::Catalogue(_)
        )
    }

    /// Whether it is an order about this session's goal.
    pub(super) fn orders_goal_of(&self, session: &SessionId) -> bool {
        matches!(self, Self::Control { session: of, after: After::Goal { .. }, .. } if of == session)
    }

    /// For people.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Initialize => "initialize",
            Self::Open { .. } | Self::Unarchive { .. } => "opening the thread",
            Self::Reattach { .. } | Self::ReattachChild { .. } => "taking the thread up again",
            Self::Status { .. } | Self::StillRuns { .. } => "the thread's status",
            Self::History { .. } | Self::ChildHistory { .. } | Self::Beside { .. } => "the thread's history",
            Self::StartTurn { .. } | Self::Steer { .. } => "a message",
            Self::Interrupt { .. } => "a stop",
            Self::Background { .. } => "what runs in the background",
            Self::Control { .. } | Self::RevertProof { .. } => "an order",
            Self::Close { .. } => "leaving the thread",
            Self::Queue { .. } | Self::Withdraw { .. } => "the agent's own queue",
            Self::Catalogue(_) => "models and account",
            Self::Forgotten => "something for a session that left",
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
    /// As `next_id`, of interrupts, which count from [`super::bounds::INTERRUPT_IDS`].
    #[serde(default)]
    pub(super) interrupts: u64,
    pub(super) handshake: Handshake,
    /// It was said that the process is newer than what was tested.
    #[serde(default)]
    pub(super) newer_told: bool,
    pub(super) asked: BTreeMap<u64, InFlight>,
    /// Reads that wait until fewer are in flight.
    #[serde(default)]
    pub(super) waiting: VecDeque<Waiting>,
    /// Threads that no session has yet.
    #[serde(default)]
    pub(super) strangers: Vec<Stranger>,
    /// Threads that other clients of the process began, until a session has them.
    #[serde(default)]
    pub(super) beside: Vec<Beside>,
    /// The account's limits as they were last reported, in the server's shape.
    #[serde(default)]
    pub(super) rate_limits: Option<Value>,
    /// Orders of absent sessions whose end nobody heard.
    #[serde(default)]
    pub(super) unheard: Vec<(SessionId, ControlId)>,
}

/// A thread that another client of the process began.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Beside {
    pub(super) thread: ThreadId,
    pub(super) forked_from: Option<ThreadId>,
    pub(super) cwd: Option<String>,
    /// Looks since the last word of its status.
    pub(super) looks: u32,
    /// The host was told on this connection.
    pub(super) told: bool,
}

/// A thread that no session has yet.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Stranger {
    pub(super) thread: ThreadId,
    /// What it said, as it came.
    pub(super) frames: Vec<String>,
}

impl Stranger {
    pub(super) fn bytes(&self) -> usize {
        self.frames.iter().map(String::len).sum()
    }
}

/// A sub-agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Child {
    pub(super) thread: ThreadId,
    /// An item named it.
    #[serde(default)]
    pub(super) named: bool,
    /// The turn that runs in it.
    pub(super) turn: Option<ProviderTurn>,
    /// The turn of the session that its last turn came of; None: it had none yet.
    pub(super) root: Option<ProviderTurn>,
}

/// A request that waits for its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct InFlight {
    pub(super) what: Asked,
    /// The time of the first record after it was made; None: there was none yet.
    pub(super) since: Option<i64>,
    /// It was said that its answer is late.
    #[serde(default)]
    pub(super) late: bool,
}

/// A read that waits for its turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) what: Asked,
    pub(super) method: String,
    pub(super) params: Value,
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
    /// Make it as a branch.
    #[serde(default)]
    pub(super) fork: Option<ForkPoint>,
    pub(super) options: SessionOptions,
    /// It stood in the agent's archive and was taken out.
    #[serde(default)]
    pub(super) unarchived: bool,
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
    /// What it says, where it may have to be given once more, into another turn. Bounded by [`super::bounds::MAX_STEER_BYTES`].
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
    /// The server said that this turn runs in its place: it is stopped under this id. Looked for once.
    #[serde(default)]
    pub(super) found: Option<ProviderTurn>,
}

impl Interrupt {
    /// One that was not tried yet.
    pub(super) const fn of(turn: Option<ProviderTurn>, due: bool) -> Self {
        Self { turn, tries: 0, due, found: None }
    }
}

/// An item that began and has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenItem {
    pub(super) key: ItemKey,
    pub(super) turn: ProviderTurn,
    pub(super) kind: ItemKind,
    /// It may go on after its turn (a command, measured).
    pub(super) outlives: bool,
    /// Somebody said no to it.
    pub(super) declined: bool,
    /// The server's id of a command's process, by which it can be ended.
    pub(super) process: Option<String>,
    /// The server's list of what runs has named it: it began, and its end will be told.
    #[serde(default)]
    pub(super) runs: bool,
    /// Of a command, for people; cut.
    pub(super) title: String,
    /// Its turn is over and it goes on: it was told as a task.
    pub(super) task: bool,
}

/// A review that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Review {
    /// The turn, as its items and its end name it.
    pub(super) turn: ProviderTurn,
    /// The turn within it that its beginning names.
    pub(super) inner: Option<ProviderTurn>,
}

/// Something that the model said whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SaidItem {
    pub(super) key: ItemKey,
    pub(super) turn: ProviderTurn,
}

/// Options that the server took, and has not told to be in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct PendingSettings {
    pub(super) control: ControlId,
    pub(super) wanted: SessionOptions,
}

/// What failed a turn, until the turn's end is said.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct TurnFailure {
    pub(super) turn: ProviderTurn,
    pub(super) failure: Failure,
}

/// A request of the server that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenRequest {
    /// The JSON text of its id on the open connection; None after a disconnect, until it is sent again.
    pub(super) id: Option<String>,
    pub(super) identity: RequestIdentity,
    pub(super) form: Form,
    /// What was answered, whole; given again where the request comes again.
    pub(super) answer: Option<Value>,
    /// It was answered. The answer may have been too long to be kept.
    pub(super) answered: bool,
    /// It was said that it may be void.
    pub(super) unconfirmed: bool,
}

/// By what a request is known again on another connection: never by its id, which is another one there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RequestIdentity {
    pub(super) method: String,
    /// The thread that asks, where it is a sub-agent's.
    pub(super) child: Option<ThreadId>,
    pub(super) turn: Option<ProviderTurn>,
    pub(super) item: Option<ItemKey>,
    /// What tells requests of one item or turn apart, where the server says it: an approval's id, the MCP server.
    pub(super) part: Option<String>,
}

/// What an answer to a request must look like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Form {
    /// A decision about a command or a patch.
    Decision {
        /// The rule that may be made for ever.
        amendment: Option<Value>,
        /// The rules about hosts that may be made for ever.
        network: Vec<Value>,
    },
    /// Rights beyond the sandbox: those that were asked for.
    Permissions(Value),
    /// Answers to questions.
    Answers,
    /// A form or a link of an MCP server.
    Elicitation,
    /// May an MCP tool run?
    McpTool,
    /// A call of a tool that another client has.
    ClientTool,
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
    /// Its sub-agents, in the order in which they became known.
    #[serde(default)]
    pub(super) children: Vec<Child>,
    /// In the order in which they began.
    #[serde(default)]
    pub(super) open_items: Vec<OpenItem>,
    /// Tries of the model's answer since it last was complete.
    #[serde(default)]
    pub(super) retries: u32,
    /// Options whose confirmation is to come.
    #[serde(default)]
    pub(super) settings: Vec<PendingSettings>,
    /// The turn of a review. The server starts it under another id, and ends it under this one (measured).
    #[serde(default)]
    pub(super) review: Option<Review>,
    /// There is a goal that the agent works towards by itself.
    #[serde(default)]
    pub(super) goal_active: bool,
    /// The digest of the goal that was told last.
    #[serde(default)]
    pub(super) goal_told: Option<String>,
    /// The goal is being paused: a turn that starts for it all the same is to be stopped.
    #[serde(default)]
    pub(super) goal_pausing: bool,
    /// Messages that completed in the model's answer which is not complete yet: a retried answer repeats them.
    #[serde(default)]
    pub(super) unsettled: Vec<SaidItem>,
    /// Messages that other clients put into the server's own queue, by their client ids.
    #[serde(default)]
    pub(super) queued: Vec<String>,
    /// How many were said to wait there.
    #[serde(default)]
    pub(super) queued_told: usize,
    /// A stop withdraws what waits there: a turn that one of them starts all the same is to be stopped.
    #[serde(default)]
    pub(super) queue_stopping: bool,
    /// The server's ids of those that are being withdrawn, so that none is told twice. At most
    /// [`super::bounds::MAX_QUEUED`].
    #[serde(default)]
    pub(super) withdrawn: Vec<String>,
    /// Interrupted turns, each with the sub-agent whose it is, of which it is being asked whether a command of theirs runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) looked_for: Vec<(ProviderTurn, Option<ThreadId>)>,
    /// Frames that came while the thread was being opened, as they came. They are read when it is open.
    #[serde(default)]
    pub(super) early: Vec<String>,
    /// Some of them had no room.
    #[serde(default)]
    pub(super) early_lost: bool,
    /// Its session was not here when something was answered, or when a connection began: see [`super::absent`].
    #[serde(default)]
    pub(super) missed: bool,
    /// By the key that the session knows.
    pub(super) requests: BTreeMap<String, OpenRequest>,
}

impl ThreadState for Thread {
    fn thread_id(&self) -> Option<&str> {
        self.thread.as_ref().map(ThreadId::as_str)
    }

    fn other_thread_ids(&self) -> Vec<&str> {
        self.children.iter().map(|child| child.thread.as_str()).collect()
    }
}

impl Thread {
    /// The server's id of the process of a command that goes on after its turn.
    pub(super) fn background_process(&self, key: &TaskKey) -> Option<&str> {
        let of = |open: &&OpenItem| open.task && open.key.as_str() == key.as_str();
        self.open_items.iter().find(of)?.process.as_deref()
    }

    pub(super) fn runs(&self, turn: &str) -> bool {
        self.running.as_ref().is_some_and(|running| running.turn.as_str() == turn)
    }
}
