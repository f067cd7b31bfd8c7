//! What the adapter remembers: one value for the connection, one for the conversation. Streamed text changes neither.

use crate::sessions::ThreadState;
use mainstay_core::content::{Failure, ItemKind};
use mainstay_core::{ControlId, ItemKey, ProviderTurn, SessionOptions, SubmissionId, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Saved states of another version are dropped.
pub(super) const STATE_VERSION: u32 = 1;

/// Requests of the agent that are open at once. The main conversation asks about the reading calls of one message together,
/// about others one at a time (measured); each background sub-agent may ask one more. One more is denied, with a notice:
/// it must be kept to be answered.
pub(super) const MAX_OPEN_REQUESTS: usize = 32;
/// Bytes of what open requests carry that are kept beside their ids. What does not fit is asked of the agent again when
/// the answer is there (a second `initialize` lists what is open); the state must stay small.
pub(super) const MAX_KEPT_REQUEST_BYTES: usize = 16 * 1024;
/// The longest id of a request, in bytes; the agent's own are UUIDs. One with a longer id is refused.
pub(super) const MAX_REQUEST_ID_BYTES: usize = 128;
/// Models of the agent's own list that are remembered; it lists five. Names of later ones are not checked.
pub(super) const MAX_MODELS: usize = 16;
/// Efforts of one model that are remembered, and the longest name of one, in bytes; a model has five.
pub(super) const MAX_EFFORTS: (usize, usize) = (8, 32);
/// Calls that a person declined and whose results are still to come. An older one shows as failed.
pub(super) const MAX_DECLINED: usize = 32;
/// Content blocks of one message that stream at once; the protocol has one. The oldest of more ends as it stands.
pub(super) const MAX_OPEN_BLOCKS: usize = 16;
/// Background tasks that run at once. Later ones are shown by their calls only.
pub(super) const MAX_TASKS: usize = 64;
/// The longest id of the agent's that becomes a key, in bytes. What has a longer one is passed on unmodelled.
pub(super) const MAX_ID_BYTES: usize = 128;

/// How far the handshake is.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(super) enum Handshake {
    /// Nothing was said.
    #[default]
    Unsaid,
    /// `initialize` is unanswered.
    Asked,
    /// The conversation can be opened.
    Done,
    /// The agent refused, or said that it has no such conversation: nothing can be opened.
    Failed(Failure),
}

/// A model of the agent's own list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Model {
    /// What it is asked for by.
    pub(super) value: String,
    /// What the agent then reports.
    pub(super) resolved: String,
    pub(super) efforts: Vec<String>,
}

/// What belongs to the connection, that is, to the process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Connection {
    /// The open connection's number.
    pub(super) number: Option<u32>,
    pub(super) handshake: Handshake,
    /// The program's version, where it said so.
    pub(super) version: String,
    pub(super) models: Vec<Model>,
}

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Setting {
    Mode,
    Model,
    Effort,
    McpServers,
    Thinking,
}

/// A control of which some settings are not answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenControl {
    pub(super) id: ControlId,
    pub(super) waits_for: Vec<Setting>,
    /// What it is to put in force.
    #[serde(default)]
    pub(super) asked: SessionOptions,
    /// It ended with a refusal, or is none but settings that went with a message; answers are still to come.
    #[serde(default)]
    pub(super) ended: bool,
}

/// A control that is a local command of the agent; the turn that it begins shows that it was taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Command {
    pub(super) control: ControlId,
}

/// A conversation that is being opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Opening {
    pub(super) resumed: bool,
    /// Settings that are not answered.
    pub(super) waits_for: Vec<Setting>,
}

/// A message that is not taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Input {
    pub(super) submission: SubmissionId,
    /// The running turn that it was given into; None where it starts one, also where its turn ended before.
    pub(super) into: Option<ProviderTurn>,
    /// Its echo came while the agent was between two turns: it is taken by the next.
    pub(super) echoed: bool,
    /// A stop was meant for it.
    pub(super) stopped: bool,
}

/// A turn that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) id: ProviderTurn,
    /// Somebody is known to have made it begin.
    pub(super) origin_known: bool,
    /// A stop was asked for.
    pub(super) stopped: bool,
    /// The kind of API error that the agent showed last.
    pub(super) error: Option<String>,
}

/// A content block that streams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Block {
    pub(super) index: u64,
    pub(super) kind: ItemKind,
    pub(super) key: ItemKey,
}

/// The message that streams: without its `message_stop` it is not whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Streaming {
    pub(super) id: String,
    pub(super) open: Vec<Block>,
}

/// What kind of answer a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wants {
    /// May it use a tool?
    Permission,
    /// Answers to questions, as input of the tool that asks.
    Answers,
    /// May it leave planning and begin?
    PlanExit,
    /// A form of an MCP server.
    Form,
}

/// A request that nobody answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct OpenRequest {
    pub(super) wants: Wants,
    pub(super) turn: Option<ProviderTurn>,
    /// The call that it is about.
    pub(super) tool: Option<String>,
    /// What the agent asked, where it is small enough to be kept.
    pub(super) asked: Option<Value>,
    /// Another process asked it, which died; this one knows the call by its transcript alone.
    #[serde(default)]
    pub(super) of_transcript: bool,
}

/// An answer that waits for the agent to say again what it asked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub(super) key: String,
    pub(super) request: OpenRequest,
    pub(super) answer: mainstay_core::content::Answer,
}

/// Background work that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Task {
    /// The call that made it.
    pub(super) tool: Option<String>,
    /// A sub-agent; else a command.
    pub(super) agent: bool,
    /// Its call has been answered: it goes on by itself.
    pub(super) alone: bool,
}

/// What belongs to the conversation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Thread {
    pub(super) thread: Option<ThreadId>,
    /// It may be written to.
    pub(super) open: bool,
    pub(super) opening: Option<Opening>,
    /// What is in force, as far as the agent says.
    pub(super) options: SessionOptions,
    /// What it was asked to put in force last.
    pub(super) wanted: SessionOptions,
    /// The agent said that it works.
    pub(super) works: bool,
    /// A background task said that it is done, and no turn began since.
    pub(super) notified: bool,
    pub(super) input: Option<Input>,
    pub(super) command: Option<Command>,
    pub(super) controls: Vec<OpenControl>,
    pub(super) turn: Option<Turn>,
    pub(super) streaming: Option<Streaming>,
    /// Open requests by their ids.
    pub(super) requests: BTreeMap<String, OpenRequest>,
    pub(super) waiting: Vec<Waiting>,
    /// Answers that the agent has not echoed.
    pub(super) answered: Vec<String>,
    /// A call of a process that died, which an answer of ours makes the agent take up, and the request that was answered.
    #[serde(default)]
    pub(super) taken_up: Option<(String, String)>,
    /// Background work that runs, by the agent's ids.
    pub(super) tasks: BTreeMap<String, Task>,
    /// Calls that were declined.
    pub(super) declined: Vec<String>,
}

impl ThreadState for Thread {
    fn thread_id(&self) -> Option<&str> {
        self.thread.as_ref().map(ThreadId::as_str)
    }
}

impl Thread {
    pub(super) fn turn_id(&self) -> Option<ProviderTurn> {
        self.turn.as_ref().map(|turn| turn.id.clone())
    }

    /// Whether a control waits for the answer about this setting.
    pub(super) fn on_its_way(&self, setting: Setting) -> bool {
        self.controls.iter().any(|open| open.waits_for.contains(&setting))
    }

    /// A setting was refused: what is in force stays so, unless a newer wish is on its way.
    pub(super) fn no_longer_wanted(&mut self, setting: Setting, in_force: SessionOptions) {
        if self.on_its_way(setting) {
            return;
        }
        match setting {
            Setting::Mode => self.wanted.mode = in_force.mode,
            Setting::Model => self.wanted.model = in_force.model,
            Setting::Effort => self.wanted.effort = in_force.effort,
            Setting::Thinking => self.wanted.thinking = in_force.thinking,
            Setting::McpServers => {}
        }
    }

    /// Whether a sub-agent works by itself, in no turn.
    pub(super) fn works_alone(&self, agent: &str) -> bool {
        self.turn.is_none() || self.tasks.get(agent).is_some_and(|task| task.alone)
    }

    /// Bytes of what open requests carry.
    pub(super) fn kept_request_bytes(&self) -> usize {
        let open = self.requests.values().filter_map(|request| request.asked.as_ref());
        open.map(|asked| asked.to_string().len()).sum()
    }
}
