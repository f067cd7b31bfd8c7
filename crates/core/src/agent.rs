//! The words between a session and an adapter: what an agent says ([`AgentEvent`]), what it is told ([`Decision`]).

use crate::content::{
    Answer, ContentBlock, Failure, ItemFields, ItemKind, ItemStatus, Origin, Outcome, PermissionOption,
    RequestKind, StopReason,
};
use crate::{ItemKey, ProviderTurn, RequestKey, SessionOptions, SubmissionId, ThreadId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an adapter can do. Code outside an adapter asks these, never a name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Capabilities {
    /// A message can go into a running turn.
    pub steer: bool,
    /// A conversation can be taken up again in another process.
    pub resume: bool,
    /// The agent says that an answer reached it. Without it an answer counts as given when it is durably on its way.
    pub confirms_answers: bool,
    /// Which proof makes a submission taken.
    pub proof: TakenProof,
    /// After a death the agent's own history can tell by id whether a message arrived.
    pub settles_by_history: bool,
    /// Images in messages.
    pub images: bool,
    /// A tool call may go on after its turn (Codex, measured); elsewhere an open one is cut with its turn.
    pub tools_outlive_turns: bool,
    /// One process can hold the threads of many sessions.
    #[serde(default)]
    pub shares_process: bool,
}

/// The proof by which an adapter calls a submission taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TakenProof {
    /// The user-message item that carries our client id (Codex).
    ClientId,
    /// The echo with our uuid (Claude).
    ReplayEcho,
    /// The first update of, or the answer to, the prompt that is alone in flight (ACP v1).
    SolePrompt,
    /// The provider's history shows it.
    History,
    /// A user said so.
    User,
}

/// Why an agent did not take an input into its running turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SteerRefusal {
    /// The turn was over, or another one runs.
    TurnOver,
    /// The turn runs and takes no input (it compacts or reviews).
    NotSteerable,
}

/// Who the agent says it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct AgentInfo {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it can take a conversation up again in another process; absent where it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumable: Option<bool>,
}

/// What an agent said, translated. Ids are the provider's; what the adapter could not model is kept in `Unmodelled`.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// The handshake is done: threads can be opened.
    Ready(AgentInfo),
    /// The thread is proven: it may be written to.
    ThreadOpened {
        /// Which.
        thread: ThreadId,
        /// Whether it was made or taken up again.
        resumed: bool,
    },
    /// The thread could not be opened.
    ThreadRefused {
        /// `ThreadMissing`, `ActiveWriter`, `SignIn` or another.
        failure: Failure,
    },
    /// The agent has the input.
    InputTaken {
        /// Which.
        submission: SubmissionId,
        /// By what proof.
        proof: TakenProof,
    },
    /// The agent refused the input; no turn comes of it.
    InputRejected {
        /// Which.
        submission: SubmissionId,
        /// Why.
        failure: Failure,
    },
    /// The agent refused to take the input into the running turn, and has it not: it can start a turn of its own.
    SteerRefused {
        /// Which.
        submission: SubmissionId,
        /// Why.
        why: SteerRefusal,
    },
    /// A doubtful input is proven not to be in the history.
    InputAbsent {
        /// Which.
        submission: SubmissionId,
    },
    /// Whether the agent has the input cannot be told by its history.
    InputUnknown {
        /// Which.
        submission: SubmissionId,
    },
    /// A turn runs. Sent again for a known turn it only fills in an unknown origin.
    TurnStarted {
        /// Which.
        turn: ProviderTurn,
        /// Whose, where shown.
        origin: Origin,
        /// The message that it answers, where shown.
        submission: Option<SubmissionId>,
    },
    /// A turn ended.
    TurnEnded {
        /// Which.
        turn: ProviderTurn,
        /// How.
        outcome: Outcome,
        /// In ACP's word, where there is one.
        stop_reason: Option<StopReason>,
        /// What went wrong.
        failure: Option<Failure>,
        /// Tokens and the like, as the agent counts them.
        usage: Option<Value>,
    },
    /// An item began. Sent again for an open item it is an update.
    ItemStarted {
        /// Which.
        key: ItemKey,
        /// In which turn; None: in no turn that is known.
        turn: Option<ProviderTurn>,
        /// What it is.
        kind: ItemKind,
        /// What it carries.
        fields: ItemFields,
    },
    /// More text. Begins the item where it is unknown and was never completed.
    ItemDelta {
        /// Which.
        key: ItemKey,
        /// In which turn.
        turn: Option<ProviderTurn>,
        /// What it is, where it begins here.
        kind: ItemKind,
        /// The text.
        text: String,
    },
    /// Changed fields.
    ItemUpdated {
        /// Which.
        key: ItemKey,
        /// The changed ones.
        fields: ItemFields,
    },
    /// It is done. Begins the item where it is unknown.
    ItemCompleted {
        /// Which.
        key: ItemKey,
        /// In which turn.
        turn: Option<ProviderTurn>,
        /// What it is, where it begins here.
        kind: ItemKind,
        /// How it ended.
        status: ItemStatus,
        /// The whole text as the provider has it; None where it gives none.
        text: Option<String>,
        /// The changed fields.
        fields: ItemFields,
    },
    /// The agent asks.
    RequestOpened(AskedByAgent),
    /// A request is settled: our answer is confirmed, or it was answered elsewhere, or it is void.
    RequestSettled {
        /// Which.
        key: RequestKey,
        /// True where the agent confirms that it is settled after an answer of ours.
        confirmed: bool,
    },
    /// The plan, whole (ACP plan entries).
    Plan(Value),
    /// Context and cost, as the agent counts them.
    Usage(Value),
    /// What is in force, as the agent reports it.
    Options(SessionOptions),
    /// Slash commands and the like, as the agent lists them.
    Commands(Value),
    /// Something to be seen.
    Notice {
        /// How urgent: `info`, `warning`, `error`.
        level: NoticeLevel,
        /// A sentence.
        message: String,
        /// The provider's own words.
        provider: Option<Value>,
    },
    /// A frame that this version does not model, as it came (the host bounds what is kept).
    Unmodelled {
        /// The frame's method or type.
        name: String,
        /// The frame.
        frame: Value,
    },
}

/// What an agent asks.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedByAgent {
    /// The provider's identity of the request.
    pub key: RequestKey,
    /// In which turn.
    pub turn: Option<ProviderTurn>,
    /// About which item.
    pub item: Option<ItemKey>,
    /// What kind of thing.
    pub kind: RequestKind,
    /// A line for people.
    pub title: String,
    /// The ways to answer.
    pub options: Vec<PermissionOption>,
    /// What it is about: command, folder, diff, reason, in the provider's shape.
    pub details: Value,
}

/// How urgent a notice is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words explain themselves")]
pub enum NoticeLevel {
    Info,
    Warning,
    Error,
}

/// What a session tells its agent. The adapter makes the frames.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Make a thread, or take one up again.
    OpenThread {
        /// The head of the chain; None: make one.
        resume: Option<ThreadId>,
        /// True: another process may have had it before (sandbox and policy must be given again).
        options: SessionOptions,
        /// Inputs whose arrival is in doubt: look for them in the history and say taken or absent.
        doubtful: Vec<SubmissionId>,
    },
    /// Give the agent a message that starts a turn. Only one is ever given and not yet taken.
    StartTurn {
        /// Which.
        submission: SubmissionId,
        /// What.
        content: Vec<ContentBlock>,
        /// With which options.
        options: SessionOptions,
    },
    /// Give the agent a message that goes into the running turn. The same bound holds: one input, untaken.
    Steer {
        /// Into which turn, and into no other.
        turn: ProviderTurn,
        /// Which.
        submission: SubmissionId,
        /// What.
        content: Vec<ContentBlock>,
    },
    /// End the running turn, or the one that our last `StartTurn` is about to start.
    Interrupt {
        /// Which, where its id is known.
        turn: Option<ProviderTurn>,
    },
    /// Answer a request.
    Answer {
        /// Which.
        key: RequestKey,
        /// What.
        answer: Answer,
        /// What was offered, so that a decline finds its option.
        options: Vec<PermissionOption>,
    },
}

impl Decision {
    /// Whether the frames of this decision may overtake unwritten ones and go out though the store is full: they are
    /// idempotent and aimed at ids.
    #[must_use]
    pub const fn urgent(&self) -> bool {
        matches!(self, Self::Interrupt { .. })
    }
}
