//! What the adapter remembers: one value for the connection, one per thread. Streamed text changes neither.

use crate::sessions::ThreadState;
use mainstay_core::content::{Failure, ItemKind};
use mainstay_core::{ItemKey, ProviderTurn, SessionId, SessionOptions, SubmissionId, ThreadId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Saved states of another version are dropped.
pub(super) const STATE_VERSION: u32 = 1;

/// Messages that the agent names and that are open at once in a turn. Over it the oldest is completed as it stands:
/// agents have one or two open, and the state must stay small.
pub(super) const MAX_OPEN_MESSAGES: usize = 64;
/// The longest message id that becomes an item key. A longer one is treated as absent, so that its chunks are put
/// together by their order; the state must stay small.
pub(super) const MAX_MESSAGE_ID_BYTES: usize = 256;
/// Permission requests of one thread that are open at once. One more is answered `cancelled`, with a notice.
pub(super) const MAX_OPEN_REQUESTS: usize = 32;
/// The longest id of a permission request, in bytes of JSON. One with a longer id is refused: the id must be kept to
/// be answered, and the state must stay small.
pub(super) const MAX_REQUEST_ID_BYTES: usize = 256;
/// Bytes of messages about a thread that is just being made, kept until the agent has named it. What does not fit is
/// passed on as unmodelled.
pub(super) const MAX_HELD_BYTES: usize = 32 * 1024;

/// How far the handshake is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) enum Handshake {
    /// Nothing was said.
    #[default]
    Unsaid,
    /// `initialize` is unanswered.
    Asked,
    /// Threads can be opened.
    Done,
    /// The agent refused it, or does not speak version 1: no thread can be opened.
    Failed(Failure),
}

/// What an unanswered request of ours is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Asked {
    Initialize,
    /// `session/new`, `session/resume` or `session/load`.
    Open {
        session: SessionId,
        resume: Option<ThreadId>,
        options: SessionOptions,
    },
    /// A setting of a thread that is being opened.
    Set {
        session: SessionId,
        setting: Setting,
    },
    Prompt {
        session: SessionId,
    },
}

impl Asked {
    pub(super) fn session(&self) -> Option<&SessionId> {
        match self {
            Self::Initialize => None,
            Self::Open { session, .. } | Self::Set { session, .. } | Self::Prompt { session } => {
                Some(session)
            }
        }
    }
}

/// The settings that a thread can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum SettingKind {
    Mode,
    Model,
    Effort,
}

impl SettingKind {
    pub(super) const ALL: [Self; 3] = [Self::Mode, Self::Model, Self::Effort];

    /// The word of ACP's config option categories.
    pub(super) const fn category(self) -> &'static str {
        match self {
            Self::Mode => "mode",
            Self::Model => "model",
            Self::Effort => "thought_level",
        }
    }

    pub(super) fn of(self, options: &SessionOptions) -> Option<&String> {
        match self {
            Self::Mode => options.mode.as_ref(),
            Self::Model => options.model.as_ref(),
            Self::Effort => options.effort.as_ref(),
        }
    }

    pub(super) fn put(self, options: &mut SessionOptions, value: String) {
        match self {
            Self::Mode => options.mode = Some(value),
            Self::Model => options.model = Some(value),
            Self::Effort => options.effort = Some(value),
        }
    }
}

/// A setting that must be made before a thread is used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Setting {
    pub(super) kind: SettingKind,
    pub(super) value: String,
    /// The config option to set; None: by `session/set_mode`.
    pub(super) config: Option<String>,
}

/// What belongs to the connection.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Connection {
    /// The open connection's number.
    pub(super) number: Option<u32>,
    /// When it was opened, Unix ms: makes keys of this process differ from those of an earlier one.
    pub(super) born: i64,
    /// The id of the next request.
    pub(super) next_id: u64,
    pub(super) handshake: Handshake,
    /// `session/load` is offered.
    pub(super) load: bool,
    /// `session/resume` is offered.
    pub(super) resume: bool,
    /// `additionalDirectories` is offered.
    pub(super) directories: bool,
    pub(super) asked: BTreeMap<u64, Asked>,
    /// Messages about a thread that the agent has not named yet.
    pub(super) held: Vec<String>,
}

/// A prompt that is not answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Prompt {
    pub(super) submission: SubmissionId,
    pub(super) turn: ProviderTurn,
    /// An update that belongs to it was seen.
    pub(super) taken: bool,
    /// Somebody wants it stopped.
    pub(super) interrupted: bool,
}

/// A message put together by the order of its chunks, because the agent gives it no id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) kind: ItemKind,
    pub(super) key: ItemKey,
    pub(super) turn: Option<ProviderTurn>,
}

/// A message that the agent names.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Named {
    pub(super) kind: ItemKind,
    pub(super) id: String,
    pub(super) turn: Option<ProviderTurn>,
}

/// A thread that is being opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Opening {
    pub(super) resumed: bool,
    /// Settings that are still to be made.
    pub(super) settings: Vec<Setting>,
}

/// What belongs to one session's thread.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Thread {
    pub(super) thread: Option<ThreadId>,
    /// It may be written to.
    pub(super) open: bool,
    pub(super) opening: Option<Opening>,
    /// `session/load` replays the history: it stands in the journal already.
    pub(super) muted: bool,
    /// What is in force, as far as the agent says.
    pub(super) options: SessionOptions,
    pub(super) prompt: Option<Prompt>,
    pub(super) run: Option<Run>,
    pub(super) named: Vec<Named>,
    /// Runs made so far.
    pub(super) runs: u64,
    /// Open permission requests by the JSON text of their ids, with the turn they belong to.
    pub(super) requests: BTreeMap<String, Option<ProviderTurn>>,
}

impl ThreadState for Thread {
    fn thread_id(&self) -> Option<&str> {
        self.thread.as_ref().map(ThreadId::as_str)
    }
}

impl Thread {
    /// The turn that updates belong to now.
    pub(super) fn turn(&self) -> Option<&ProviderTurn> {
        self.prompt.as_ref().filter(|prompt| prompt.taken).map(|prompt| &prompt.turn)
    }
}
