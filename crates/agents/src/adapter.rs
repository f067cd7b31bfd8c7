//! The adapter trait and what crosses it.

use crate::catalogue::{Catalogue, Model};
use mainstay_core::work::HistoryPoint;
use mainstay_core::{
    AgentEvent, Capabilities, Decision, ItemKey, ProviderTurn, RequestId, SessionId, SessionOptions,
    SubmissionId, ThreadId,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;

/// The most an adapter may keep per scope (one per connection, one per thread), in bytes. Over it the process is ended
/// with a typed failure: state that grows with the conversation belongs in the journal.
pub const MAX_STATE_BYTES: usize = 64 * 1024;

/// A record of the keeper's spool, as an adapter sees it.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The connection it came on, from 1.
    pub connection: u32,
    /// When the keeper took it, Unix ms.
    pub at: i64,
    /// What it is.
    pub incoming: Incoming<'a>,
}

/// What a record is.
#[derive(Debug, Clone, Copy)]
pub enum Incoming<'a> {
    /// The agent can be spoken to: its process runs (stdio, connection 1) or a WebSocket is open. The adapter answers
    /// with its handshake.
    Connected,
    /// The connection is gone; frames made for it that were not written never will be.
    Disconnected,
    /// One message of the agent: a line without its end, or a WebSocket text.
    Message(&'a [u8]),
    /// A message that was too long to keep: its length and its first bytes.
    Oversize {
        /// Its length in bytes.
        length: u64,
        /// Its beginning.
        head: &'a [u8],
    },
    /// An unterminated last line.
    Fragment(&'a [u8]),
}

/// Something the agent said, and to which session.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// The session; None: every session of the process.
    pub session: Option<SessionId>,
    /// What.
    pub event: AgentEvent,
}

/// A message for the agent, on the connection that the adapter last saw connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its bytes, without line end.
    pub payload: Vec<u8>,
    /// May overtake unwritten ones, and may go out though the store is full.
    pub urgent: bool,
    /// The submission whose message it carries.
    pub carries: Option<SubmissionId>,
}

/// A conversation that another client of the agent's process (its own terminal) began there. No session has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appeared {
    /// The provider's id of it.
    pub thread: ThreadId,
    /// The one that it is a branch of.
    pub forked_from: Option<ThreadId>,
    /// Its folder, where the agent says it.
    pub cwd: Option<String>,
}

/// What a record or a decision was translated to, in order.
#[derive(Debug, Default)]
pub struct Translated {
    /// For the sessions.
    pub said: Vec<Said>,
    /// For the agent.
    pub frames: Vec<Frame>,
    /// For the host: what a new session can be made of.
    pub appeared: Vec<Appeared>,
}

impl Translated {
    /// Says something to one session.
    pub fn say(&mut self, session: &SessionId, event: AgentEvent) {
        self.said.push(Said { session: Some(session.clone()), event });
    }

    /// Says something to every session of the process.
    pub fn say_all(&mut self, event: AgentEvent) {
        self.said.push(Said { session: None, event });
    }

    /// Sends a frame that carries no message.
    pub fn send(&mut self, frame: &Value) {
        self.frames.push(Frame { payload: frame.to_string().into_bytes(), urgent: false, carries: None });
    }

    /// Sends a frame that stops something.
    pub fn send_urgent(&mut self, frame: &Value) {
        self.frames.push(Frame { payload: frame.to_string().into_bytes(), urgent: true, carries: None });
    }

    /// Sends the frame that carries a submission's message. Exactly one frame may carry it.
    pub fn send_message(&mut self, frame: &Value, submission: &SubmissionId) {
        let carries = Some(submission.clone());
        self.frames.push(Frame { payload: frame.to_string().into_bytes(), urgent: false, carries });
    }
}

/// What a session pins that an adapter needs when it opens the session's thread.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct ThreadContext {
    /// Absolute.
    pub cwd: String,
    /// Absolute.
    pub additional_directories: Vec<String>,
    /// As ACP names them.
    pub mcp_servers: Vec<Value>,
    /// Beside the agent's own.
    pub instructions: Option<String>,
    /// The conversation that the process was started for, where the protocol names it at the start.
    #[serde(default)]
    pub conversation: Option<String>,
    /// How much is shown of a conversation that was brought here with its past: what its history has beyond that is shown
    /// when it is opened, as far as it stands in one page. None: only what comes is shown.
    #[serde(default)]
    pub past: Option<Shown>,
    /// Variables of the agent's environment that the commands which it runs must not get.
    #[serde(default)]
    pub kept_from_commands: Vec<String>,
}

/// What the agent's own history, read from its files, says about a message in doubt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InHistory {
    /// It stands there.
    There,
    /// It does not; the process that may have had it is gone, so it never will.
    NotThere,
    /// The history could not be read, or not far enough back.
    Unknown,
}

/// A call that the agent's own history has without a result, and whose request a death cut off before anybody answered.
#[derive(Debug, Clone, PartialEq)]
pub struct UnansweredCall {
    /// The request of the process that died.
    pub request: RequestId,
    /// The provider's key of the call.
    pub call: ItemKey,
    /// The tool.
    pub tool: String,
    /// What it was given.
    pub input: Value,
}

/// A conversation as it stands in the agent's own files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SavedHistory {
    /// Its transcript, or the end of it.
    pub transcript: Vec<u8>,
    /// There is more before it.
    pub cut: bool,
    /// Its sub-agents.
    pub children: Vec<SavedChild>,
    /// Further sub-agents, whose files are too many, too large or unreadable.
    pub children_left_out: usize,
}

/// A sub-agent as it stands in the agent's own files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedChild {
    /// Its thread.
    pub thread: ThreadId,
    /// What it is; empty where that is not there.
    pub about: Vec<u8>,
    /// Its transcript.
    pub transcript: Vec<u8>,
}

/// What a session knows of its thread's history.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct KnownHistory {
    /// Its turns that ended there, the latest first.
    pub turns: Vec<HistoryPoint>,
    /// The ids of messages that stand there and that the session knows: its own, and those it showed before.
    pub messages: BTreeSet<String>,
}

/// A part of an adapter's state that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateChange {
    /// `connection`, or `thread:` and the session's id.
    pub scope: String,
    /// The new value; None: gone.
    pub body: Option<Vec<u8>>,
}

/// Why an adapter cannot carry a decision out now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CannotTell {
    /// The session is not bound to this process.
    #[error("session {0} is not bound to this process")]
    UnknownSession(SessionId),
    /// The thread is not open.
    #[error("session {0} has no open thread")]
    NoThread(SessionId),
    /// Another input is not taken yet.
    #[error("another input of session {0} is not taken yet")]
    InputUntaken(SessionId),
    /// The request is not open on this connection.
    #[error("request {0} is not open on this connection")]
    UnknownRequest(String),
    /// There is no connection now.
    #[error("the agent is not connected")]
    NotConnected,
    /// The agent has no such thing; its capabilities say so.
    #[error("the agent cannot do this (capability {0})")]
    Unsupported(&'static str),
}

/// How much of a thread's history the journal has.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Shown {
    /// Nothing: all of it is to be shown.
    Nothing,
    /// Everything up to this turn.
    UpTo(ProviderTurn),
    /// It cannot be told: only what comes is to be shown.
    Unknown,
}

/// A pure translator. One adapter serves one process; its sessions' threads are kept apart.
pub trait Adapter: Send + fmt::Debug {
    /// What this protocol can do.
    fn capabilities(&self) -> &Capabilities;

    /// The version of the saved state; a value of another version is dropped and the lane re-attaches.
    fn state_version(&self) -> u32;

    /// Makes a session known, before its first decision and again after each load. Idempotent; keeps restored state.
    fn bind(&mut self, session: &SessionId, context: ThreadContext);

    /// Forgets a session that left the process, and its saved state. What the agent still says of its thread is said to
    /// nobody. Idempotent.
    fn unbind(&mut self, session: &SessionId);

    /// Translates one record. Never fails: what it cannot read it says (`Notice`, `Unmodelled`).
    fn ingest(&mut self, record: Record<'_>, out: &mut Translated);

    /// Learns what the agent's files say about messages in doubt, before it is told to open the thread. For protocols
    /// without a way to ask the agent itself.
    fn learn_history(&mut self, _session: &SessionId, _found: Vec<(SubmissionId, InHistory)>) {}

    /// Learns which calls the agent can be asked to ask about again (capability `asks_again`), before it is told to open the
    /// thread. It says so when the thread opens (`RequestOpened` that names the old request).
    fn learn_unanswered(&mut self, _session: &SessionId, _calls: Vec<UnansweredCall>) {}

    /// Learns where in the agent's own history a rewind goes back to, before it is told to go back; or why it cannot. For
    /// protocols that go back by a new start.
    fn learn_way_back(&mut self, _session: &SessionId, _way: Result<String, String>) {}

    /// Shows what the agent's own files say of a conversation that this session begins with.
    fn show_history(&mut self, _session: &SessionId, _history: &SavedHistory, _out: &mut Translated) {}

    /// Says what became of a conversation while no process of this session had it: `transcript` is the end of the agent's
    /// own file, `known` what the session knows of it. Where somebody else went on with it, or made another branch the
    /// one that is taken up, that is said and shown.
    fn show_changes(
        &mut self,
        _session: &SessionId,
        _transcript: &[u8],
        _known: &KnownHistory,
        _out: &mut Translated,
    ) {
    }

    /// Makes the frames of a decision. What the adapter knows without asking the agent it says at once (`said`), for
    /// example that a thread cannot be opened because the handshake failed.
    ///
    /// # Errors
    /// [`CannotTell`]; then no frame was made and no state changed.
    fn tell(
        &mut self,
        session: &SessionId,
        decision: &Decision,
        out: &mut Translated,
    ) -> Result<(), CannotTell>;

    /// Makes the state of a session's thread which another host opened in this process, whose own state is lost: open,
    /// without a connection. What re-attaches a thread on the next connection then does the rest. The session must be
    /// bound, and nothing ingested yet.
    ///
    /// # Errors
    /// [`CannotTell::Unsupported`] where the protocol knows no second connection to a living conversation;
    /// [`CannotTell::UnknownSession`].
    fn take_over(
        &mut self,
        _session: &SessionId,
        _thread: &ThreadId,
        _options: &SessionOptions,
        _shown: Shown,
    ) -> Result<(), CannotTell> {
        Err(CannotTell::Unsupported("adopt"))
    }

    /// Asks the agent what it offers (models, account, limits). False: it cannot be asked, or not now. The frames are
    /// like any other; when all of it is answered, [`Self::take_catalogue`] gives it.
    fn ask_catalogue(&mut self, out: &mut Translated) -> bool {
        let _ = out;
        false
    }

    /// As [`Self::ask_catalogue`], without what costs the agent more than a look at what it has in memory.
    fn ask_models(&mut self, out: &mut Translated) -> bool {
        let _ = out;
        false
    }

    /// Whether a session that was not here for a while, since it could not be loaded, is back and has missed something that
    /// the agent tells again only on a new connection.
    fn needs_new_connection(&self) -> bool {
        false
    }

    /// What the agent offered when it was asked before: options are checked against it until it says anew.
    fn know_models(&mut self, models: &[Model]) {
        let _ = models;
    }

    /// What the agent offers, once after it was asked and answered, or told by itself: absent parts are unchanged.
    fn take_catalogue(&mut self) -> Option<Catalogue> {
        None
    }

    /// The parts of the state that changed since the last call.
    fn changes(&mut self) -> Vec<StateChange>;

    /// Takes a saved part back. An unreadable part is left out: the answer is false, and the lane re-attaches.
    fn restore(&mut self, scope: &str, body: &[u8]) -> bool;
}
