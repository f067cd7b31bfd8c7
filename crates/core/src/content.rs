//! Content and the vocabulary that the field (ACP) already has.

use crate::ThreadId;
use crate::question::Answers;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest content of one message, in bytes of JSON. Over it the message is refused (`too_large`): the agents
/// themselves refuse inputs above 1 MiB (Codex: 1,048,576 characters).
pub const MAX_CONTENT_BYTES: usize = 1024 * 1024;

/// An ACP content block. Only text is understood here; every other block is kept as it came and handed to agents
/// that declare they can take it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ContentBlock {
    /// Plain text or Markdown.
    Text {
        /// The text.
        text: String,
    },
    /// An image, base64.
    Image {
        /// The data, base64.
        data: String,
        /// Its MIME type.
        #[serde(rename = "mimeType")]
        mime_type: String,
    },
    /// A link to a resource.
    ResourceLink {
        /// The resource.
        uri: String,
        /// What to call it.
        name: String,
    },
}

impl ContentBlock {
    /// A text block.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text { text: text.into() }
    }
}

/// The text of a content, blocks joined by a line feed, what is not text left out.
#[must_use]
pub fn plain_text(content: &[ContentBlock]) -> String {
    let texts: Vec<&str> = content
        .iter()
        .filter_map(|block| match block {
            ContentBlock::Text { text } => Some(text.as_str()),
            ContentBlock::Image { .. } | ContentBlock::ResourceLink { .. } => None,
        })
        .collect();
    texts.join("\n")
}

/// How a message is to reach the agent (contract section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Start when idle, else steer where the agent can, else queue.
    #[default]
    Auto,
    /// Into the running turn.
    Steer,
    /// After what is running and queued.
    Queue,
    /// Interrupt what is running, then start.
    Interrupt,
}

/// What was done with a message, of the row in the delivery table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeliveryTaken {
    /// It starts a turn.
    Start,
    /// It steers the running turn.
    Steer,
    /// It waits in our queue.
    Queue,
    /// The running turn is interrupted for it.
    Interrupt,
}

/// What kind of thing an item of the timeline is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// What the user said.
    UserMessage,
    /// What the agent said.
    AgentMessage,
    /// What the agent thought (ACP `agent_thought_chunk`).
    AgentThought,
    /// A tool call (ACP `tool_call`).
    ToolCall,
    /// A plan.
    Plan,
    /// Something the agent or we want seen.
    Notice,
    /// A kind that this version does not model; its provider body is kept.
    Other,
}

impl ItemKind {
    /// Whether an open item of this kind ends with its turn. A command may go on after its turn (Codex, measured).
    #[must_use]
    pub const fn ends_with_turn(self) -> bool {
        !matches!(self, Self::ToolCall)
    }
}

/// ACP `ToolKind`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "ACP's own words")]
pub enum ToolKind {
    Read,
    Edit,
    Delete,
    Move,
    Search,
    Execute,
    Think,
    Fetch,
    SwitchMode,
    Other,
}

/// How an item stands. The first four are ACP's `ToolCallStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ItemStatus {
    /// Not started, or waiting for approval.
    Pending,
    /// Running.
    InProgress,
    /// Done.
    Completed,
    /// It failed.
    Failed,
    /// A person said no.
    Declined,
    /// It was cut off: the text or the work is not whole.
    Incomplete,
    /// The stream that brought it broke and the agent began anew: another item stands in its place.
    Abandoned,
}

/// What an item carries beside its text; ACP's field names where ACP has the field. Absent is not empty.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ItemFields {
    /// A line for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What the tool does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_kind: Option<ToolKind>,
    /// How it stands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ItemStatus>,
    /// ACP tool-call content or content blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Vec<Value>>,
    /// Files it touches: `{path, line?}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub locations: Option<Vec<Value>>,
    /// What the tool was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_input: Option<Value>,
    /// What the tool answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_output: Option<Value>,
    /// The submission that a user message came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub submission: Option<crate::SubmissionId>,
    /// The provider's own type of the item, where ours says less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_type: Option<String>,
    /// The sub-agent's thread that it belongs to; absent: the session's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<ThreadId>,
    /// Something of its text is missing, and known to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<bool>,
    /// Its process ended before its end was seen, and nothing shows that it never ran: what it was to do may be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub may_have_run: Option<bool>,
}

impl ItemFields {
    /// Takes over every field that `newer` has.
    pub fn merge(&mut self, newer: Self) {
        fn take<T>(old: &mut Option<T>, new: Option<T>) {
            if new.is_some() {
                *old = new;
            }
        }
        take(&mut self.title, newer.title);
        take(&mut self.tool_kind, newer.tool_kind);
        take(&mut self.status, newer.status);
        take(&mut self.content, newer.content);
        take(&mut self.locations, newer.locations);
        take(&mut self.raw_input, newer.raw_input);
        take(&mut self.raw_output, newer.raw_output);
        take(&mut self.submission, newer.submission);
        take(&mut self.provider_type, newer.provider_type);
        take(&mut self.child, newer.child);
        take(&mut self.gap, newer.gap);
        take(&mut self.may_have_run, newer.may_have_run);
    }
}

/// ACP `PermissionOptionKind`, and `Other` for one that this version does not know (kept, offered, never chosen by us).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "ACP's own words")]
pub enum OptionKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
    Other,
}

/// One way to answer an approval.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PermissionOption {
    /// The id to answer with; opaque.
    pub option_id: String,
    /// A line for people; names the reach of the option.
    pub name: String,
    /// What it does.
    pub kind: OptionKind,
}

/// What the agent asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// May I run this?
    Approval,
    /// Questions with answers.
    Question,
    /// A form or a link.
    Elicitation,
    /// More rights.
    PermissionGrant,
    /// May I leave planning and begin?
    PlanExit,
}

/// An answer of a person or a program to a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Answer {
    /// One of the offered options.
    Select {
        /// Its id.
        option_id: String,
    },
    /// Answers to its questions.
    Answers {
        /// By question id.
        answers: Answers,
    },
    /// An elicitation accepted.
    Submit {
        /// What was filled in; absent for a link.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Value>,
    },
    /// No; the work goes on without it.
    Decline {
        /// Why, for the agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// No, and stop.
    Cancel {
        /// Why, for the agent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
}

/// What went wrong, in our words, with the provider's own apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// Stable code.
    pub code: FailureCode,
    /// A sentence for people.
    pub message: String,
    /// What the provider said, as it said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Value>,
    /// When the limit that it is about ends, Unix ms, where the provider says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resets_at: Option<i64>,
}

impl Failure {
    /// A failure without provider words.
    #[must_use]
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), provider: None, resets_at: None }
    }
}

/// Stable codes of failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum FailureCode {
    /// The agent's process ended by itself.
    AgentExited,
    /// The keeper ended without a proven exit of the agent before it; the agent is proven gone now.
    KeeperLost,
    /// The process was ended on somebody's order.
    Stopped,
    /// The agent could not be started.
    SpawnFailed,
    /// The agent did not speak as its protocol says.
    Protocol,
    /// The model provider refused or failed.
    Provider,
    /// A limit of the account or the model.
    Limit,
    /// The provider is reachable and has no room now; it passes.
    Overloaded,
    /// The provider cannot be reached; it may pass.
    Network,
    /// The agent did not answer in its time; it may pass.
    Timeout,
    /// A budget of the session is used up.
    Budget,
    /// Sign-in is needed.
    SignIn,
    /// The conversation is held by another writer.
    ActiveWriter,
    /// The conversation is not there.
    ThreadMissing,
    /// The agent refused our request.
    AgentRefused,
    /// The agent died in its first turn too often.
    CrashLoop,
    /// The machine was started anew, or the process is otherwise proven gone.
    Gone,
    /// Anything else; the message says what.
    Other,
}

impl FailureCode {
    /// Whether the cause passes by itself, so that the same may be tried again without anybody.
    #[must_use]
    pub const fn is_transient(self) -> bool {
        matches!(self, Self::Overloaded | Self::Network | Self::Timeout)
    }
}

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The agent finished.
    Completed,
    /// It failed.
    Failed,
    /// Ended by the agent in answer to a refusal or a cancel of one of its requests.
    Cancelled,
    /// Ended on the user's order.
    Interrupted,
    /// The model refused.
    Refused,
    /// A limit was reached.
    Limit,
    /// The process is gone; how far the turn came is what the journal shows.
    Lost,
}

/// ACP `StopReason`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "ACP's own words")]
pub enum StopReason {
    EndTurn,
    MaxTokens,
    MaxTurnRequests,
    Refusal,
    Cancelled,
}

/// Who made a turn begin. Unknown until shown, set once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the contract's own words")]
pub enum Origin {
    Message,
    Goal,
    Queue,
    Task,
    Client,
    Agent,
    Unknown,
}
