//! What a session has beside messages, turns and items: background tasks, sub-agents, the goal, and what is asked of the
//! agent beside messages.

use crate::content::Failure;
use crate::{ItemKey, ProviderTurn, SessionId, SessionOptions, SubmissionId, TaskKey, ThreadId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Who made something so. `Unknown` until shown; never guessed from order or time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Provenance {
    /// Somebody who uses this session, through this host.
    User,
    /// The agent by itself.
    Agent,
    /// This host by itself (a stop that pauses a goal, options restored at a start).
    Host,
    /// Another client of the same agent.
    Client,
    /// Nobody said.
    #[default]
    Unknown,
}

impl Provenance {
    /// Whether nobody said; such a mark is left out where it is written.
    #[must_use]
    pub const fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }
}

/// What kind of background work a task is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskKind {
    /// A command.
    Shell,
    /// A sub-agent; its own thread, where it has one, is a child.
    Agent,
    /// Something that watches.
    Monitor,
    /// A kind that this version does not model.
    Other,
}

/// How a running task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    /// Not started yet.
    Pending,
    /// It works.
    #[default]
    Running,
    /// It waits for something.
    Waiting,
}

/// How a task or a child ended. Each ends once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkEnd {
    /// It finished.
    Completed,
    /// It failed.
    Failed,
    /// It was stopped.
    Stopped,
    /// Its process is gone; how far it came is not known.
    Lost,
}

/// What a task carries beside its kind and title; absent: unchanged, or not said.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct TaskFields {
    /// How it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<TaskState>,
    /// A new title.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What came of it, or what it does now, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Tokens that it used so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The provider's key of the item that began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_key: Option<ItemKey>,
    /// The child thread that does it, or that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ThreadId>,
    /// What the provider says of it, as it says it; small.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Value>,
}

/// What a child (a sub-agent's thread) carries; absent: unchanged, or not said.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ChildFields {
    /// The thread that it is a child of; absent: the session's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ThreadId>,
    /// What to call it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The agent's kind of sub-agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// What it does now, or what came of it, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    /// Tokens that it used so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// The provider's key of the item that began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item_key: Option<ItemKey>,
}

/// How a goal stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum GoalState {
    /// The agent starts turns for it by itself.
    Active,
    /// It waits until somebody resumes it.
    Paused,
    /// The agent cannot go on with it by itself.
    Blocked,
    /// Its budget or the account's is used up.
    Limited,
    /// It is reached.
    Complete,
    /// A state that this version does not model.
    Other,
}

/// What the agent works towards over several turns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Goal {
    /// In words.
    pub objective: String,
    /// How it stands.
    pub state: GoalState,
    /// Tokens that it may use; absent: no bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_budget: Option<u64>,
    /// Tokens that it used so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_used: Option<u64>,
    /// Seconds that were worked on it so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds_used: Option<u64>,
}

/// Where a session's first thread comes from, if it is not made anew. Pinned with the launch snapshot, so that a
/// process that dies before the thread is proven is followed by one that tries the same again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "from", rename_all = "snake_case")]
pub enum ThreadSource {
    /// One that exists already; no other session has it.
    Adopt {
        /// Which.
        thread: ThreadId,
    },
    /// A branch of another session's thread; that one is not changed.
    Fork(ForkPoint),
}

/// Where a branch begins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ForkPoint {
    /// The session whose thread it is.
    pub session: SessionId,
    /// That thread.
    pub thread: ThreadId,
    /// The last turn that the branch has, and its place in the provider's history; absent: all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_turn: Option<HistoryPoint>,
}

/// A turn as the provider's history knows it. Adapters use the id that their provider has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryPoint {
    /// The provider's id of the turn.
    pub turn: ProviderTurn,
    /// The message that began it, where one of ours did: agents whose turns have no id of their own know that one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<SubmissionId>,
    /// The provider's key of the turn's last item, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_item: Option<ItemKey>,
}

/// What is asked of the agent beside messages and answers. Each is asked once, under an id, and ends once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Control {
    /// Put these options in force (capability `set_options`).
    SetOptions {
        /// As they are to be, whole.
        options: Box<SessionOptions>,
        /// Only those that differ from what the agent has.
        changed: Box<SessionOptions>,
    },
    /// Work towards this (capability `goals`). Takes the place of another goal.
    SetGoal {
        /// In words.
        objective: String,
        /// Tokens that it may use; None: no bound.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_budget: Option<u64>,
    },
    /// Start no more turns for the goal by yourself.
    PauseGoal,
    /// Go on with a paused goal.
    ResumeGoal,
    /// There is no goal any more.
    ClearGoal,
    /// End one background task (capability `stop_tasks`).
    StopTask {
        /// Which.
        key: TaskKey,
    },
    /// End what runs in a child thread (capability `stop_children`).
    StopChild {
        /// Which.
        thread: ThreadId,
    },
    /// End commands that were left running, those without a task of their own too (capability `stop_background`).
    StopBackground,
    /// Shorten the context (capability `compact`).
    Compact {
        /// What to keep in mind, for agents that take it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instructions: Option<String>,
    },
    /// Begin with an empty context (capability `clear`). The thread may change: [`crate::AgentEvent::ThreadSwitched`].
    Clear,
    /// Drop this turn and all later ones (capability `rewind`).
    Rewind {
        /// The first turn that goes.
        before: HistoryPoint,
        /// Whether files are put back too (capability `rewind_files`).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        files: bool,
    },
    /// Review the work (capability `review`); a turn of its own.
    Review {
        /// What to look at, for people and agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        instructions: Option<String>,
    },
    /// Run this command as the user, beside the model (capability `shell`).
    Shell {
        /// The command line.
        command: String,
    },
    /// Tell the agent the session's name (capability `rename`).
    Rename {
        /// The name.
        name: String,
    },
    /// Put the thread away at the agent too (capability `archive_thread`); the session is archived when it is. The agent
    /// lets the thread go.
    ArchiveThread,
}

impl TaskFields {
    /// Takes over every field that `newer` has.
    pub fn merge(&mut self, newer: &Self) {
        take(&mut self.state, newer.state.as_ref());
        take(&mut self.title, newer.title.as_ref());
        take(&mut self.summary, newer.summary.as_ref());
        take(&mut self.tokens, newer.tokens.as_ref());
        take(&mut self.item_key, newer.item_key.as_ref());
        take(&mut self.child, newer.child.as_ref());
        take(&mut self.provider, newer.provider.as_ref());
    }
}

impl ChildFields {
    /// Takes over every field that `newer` has.
    pub fn merge(&mut self, newer: &Self) {
        take(&mut self.parent, newer.parent.as_ref());
        take(&mut self.title, newer.title.as_ref());
        take(&mut self.role, newer.role.as_ref());
        take(&mut self.summary, newer.summary.as_ref());
        take(&mut self.tokens, newer.tokens.as_ref());
        take(&mut self.item_key, newer.item_key.as_ref());
    }
}

fn take<T: Clone>(old: &mut Option<T>, new: Option<&T>) {
    if let Some(new) = new {
        *old = Some(new.clone());
    }
}

impl Control {
    /// Whether its frames may overtake others and go out though the store is full: it only stops things, and is aimed
    /// at ids.
    #[must_use]
    pub const fn stops(&self) -> bool {
        matches!(
            self,
            Self::PauseGoal | Self::StopTask { .. } | Self::StopChild { .. } | Self::StopBackground
        )
    }

    /// Whether it needs a thread in which nothing runs. Codex would end a running turn silently for these (measured).
    #[must_use]
    pub const fn needs_idle(&self) -> bool {
        matches!(
            self,
            Self::Compact { .. }
                | Self::Clear
                | Self::Rewind { .. }
                | Self::Review { .. }
                | Self::ArchiveThread
        )
    }

    /// The capability that it needs.
    #[must_use]
    pub const fn capability(&self) -> &'static str {
        match self {
            Self::SetOptions { .. } => "set_options",
            Self::SetGoal { .. } | Self::PauseGoal | Self::ResumeGoal | Self::ClearGoal => "goals",
            Self::StopTask { .. } => "stop_tasks",
            Self::StopChild { .. } => "stop_children",
            Self::StopBackground => "stop_background",
            Self::Compact { .. } => "compact",
            Self::Clear => "clear",
            Self::Rewind { files: true, .. } => "rewind_files",
            Self::Rewind { files: false, .. } => "rewind",
            Self::Review { .. } => "review",
            Self::Shell { .. } => "shell",
            Self::Rename { .. } => "rename",
            Self::ArchiveThread => "archive_thread",
        }
    }
}

/// How a control ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum ControlEnd {
    /// The agent says that it did it, or took it.
    Done,
    /// The agent refused.
    Refused {
        /// Why.
        failure: Failure,
    },
    /// It was withdrawn before the agent was told.
    Cancelled,
    /// The process or the connection went before the agent answered: whether it was done is not known.
    Lost,
}
