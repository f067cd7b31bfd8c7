//! The words between a session and an adapter: what an agent says ([`AgentEvent`]), what it is told ([`Decision`]).

use crate::content::{
    Answer, ContentBlock, Failure, ItemFields, ItemKind, ItemStatus, Origin, Outcome, PermissionOption,
    RequestKind, StopReason, ToolKind,
};
use crate::question::{Elicitation, Question};
use crate::session::Spent;
use crate::work::{
    ChildFields, Control, ControlEnd, ForkPoint, Goal, Provenance, TaskFields, TaskKind, WorkEnd,
};
use crate::{
    ControlId, ItemKey, ProviderTurn, RequestId, RequestKey, SessionOptions, SubmissionId, TaskKey, ThreadId,
};
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
    /// After a death a request that nobody had answered can be asked again, where the agent's own history shows that it
    /// is unanswered (Claude, measured).
    #[serde(default)]
    pub asks_again: bool,
    /// Images in messages.
    pub images: bool,
    /// A message given into a running turn that takes no more starts the next turn by itself (Claude, measured); elsewhere
    /// it may be lost with its turn, and is in doubt.
    #[serde(default)]
    pub steers_carry_over: bool,
    /// A tool call may go on after its turn (Codex, measured); elsewhere an open one is cut with its turn.
    pub tools_outlive_turns: bool,
    /// Options can be put in force without a message, and the agent says whether it took them.
    #[serde(default)]
    pub set_options: bool,
    /// Goals.
    #[serde(default)]
    pub goals: bool,
    /// The context can be shortened on request.
    #[serde(default)]
    pub compact: bool,
    /// The context can be emptied.
    #[serde(default)]
    pub clear: bool,
    /// A thread can be branched off.
    #[serde(default)]
    pub fork: bool,
    /// The latest turns can be dropped.
    #[serde(default)]
    pub rewind: bool,
    /// And the files that they changed put back.
    #[serde(default)]
    pub rewind_files: bool,
    /// The conversations that the agent keeps in its files can be listed, to be adopted.
    #[serde(default)]
    pub list_threads: bool,
    /// A review can be asked for.
    #[serde(default)]
    pub review: bool,
    /// A command can be run beside the model.
    #[serde(default)]
    pub shell: bool,
    /// The agent keeps the session's name.
    #[serde(default)]
    pub rename: bool,
    /// One background task can be stopped.
    #[serde(default)]
    pub stop_tasks: bool,
    /// What runs in a sub-agent's thread can be stopped.
    #[serde(default)]
    pub stop_children: bool,
    /// What was left running in the background can be stopped as a whole.
    #[serde(default)]
    pub stop_background: bool,
    /// The agent's own terminal can be attached to a running process.
    #[serde(default)]
    pub terminal: bool,
    /// One process holds the threads of several sessions, and a thread can be left without ending it.
    #[serde(default)]
    pub close_thread: bool,
    /// The agent has an archive of its own, and puts a thread there on request.
    #[serde(default)]
    pub archive_thread: bool,
    /// The agent keeps a queue of its own, which other clients of its process fill: a stop is for what waits there too.
    #[serde(default)]
    pub own_queue: bool,
}

impl Capabilities {
    /// An adapter that can do nothing beside what every adapter can.
    #[must_use]
    pub const fn bare(proof: TakenProof) -> Self {
        Self {
            steer: false,
            resume: false,
            confirms_answers: false,
            proof,
            settles_by_history: false,
            asks_again: false,
            images: false,
            steers_carry_over: false,
            tools_outlive_turns: false,
            set_options: false,
            goals: false,
            compact: false,
            clear: false,
            fork: false,
            rewind: false,
            rewind_files: false,
            list_threads: false,
            review: false,
            shell: false,
            rename: false,
            stop_tasks: false,
            stop_children: false,
            stop_background: false,
            terminal: false,
            close_thread: false,
            archive_thread: false,
            own_queue: false,
        }
    }

    /// Whether the adapter can carry this out.
    #[must_use]
    pub const fn can(&self, control: &Control) -> bool {
        match control {
            Control::SetOptions { .. } => self.set_options,
            Control::SetGoal { .. } | Control::PauseGoal | Control::ResumeGoal | Control::ClearGoal => {
                self.goals
            }
            Control::StopTask { .. } => self.stop_tasks,
            Control::StopChild { .. } => self.stop_children,
            Control::StopBackground => self.stop_background,
            Control::Compact { .. } => self.compact,
            Control::Clear => self.clear,
            Control::Rewind { files, .. } => self.rewind && (!*files || self.rewind_files),
            Control::Review { .. } => self.review,
            Control::Shell { .. } => self.shell,
            Control::Rename { .. } => self.rename,
            Control::ArchiveThread => self.archive_thread,
        }
    }
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
    /// An item began. Sent again for an open item it is an update. An item of a child is begun with this, so that its
    /// `fields.child` is known from the start.
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
    /// The connection on which this request was asked is gone, and the agent did not ask it again: it stays answerable,
    /// and shows that it may be void. Asked again (`RequestOpened` with the same key) the mark goes.
    RequestUnconfirmed {
        /// Which.
        key: RequestKey,
    },
    /// Background work began. Sent again for a running task it is an update.
    TaskStarted {
        /// The provider's id of it.
        key: TaskKey,
        /// What kind.
        kind: TaskKind,
        /// A line for people.
        title: String,
        /// What else is known.
        fields: TaskFields,
    },
    /// Something about it changed. Unknown tasks are left alone.
    TaskUpdated {
        /// Which.
        key: TaskKey,
        /// What changed.
        fields: TaskFields,
    },
    /// It ended. Unknown tasks are left alone.
    TaskEnded {
        /// Which.
        key: TaskKey,
        /// How.
        end: WorkEnd,
        /// What changed with it.
        fields: TaskFields,
    },
    /// A sub-agent's thread works. Sent again for one that works it is an update; for one that ended it works anew.
    ChildStarted {
        /// The provider's id of the thread.
        thread: ThreadId,
        /// What is known.
        fields: ChildFields,
    },
    /// Something about it changed. Unknown children are left alone.
    ChildUpdated {
        /// Which.
        thread: ThreadId,
        /// What changed.
        fields: ChildFields,
    },
    /// It works no more. Its open items and requests end with it.
    ChildEnded {
        /// Which.
        thread: ThreadId,
        /// How.
        end: WorkEnd,
        /// What changed with it.
        fields: ChildFields,
    },
    /// The goal, whole; None: there is none.
    Goal {
        /// The goal.
        goal: Option<Goal>,
        /// Who made it so, where shown.
        by: Provenance,
    },
    /// The agent, or another client of it, named the conversation.
    Name {
        /// The name; None: it has none.
        name: Option<String>,
        /// Who, where shown.
        by: Provenance,
    },
    /// The agent tries something again by itself; the turn goes on.
    Retrying {
        /// In which turn.
        turn: Option<ProviderTurn>,
        /// Which try comes next, from 1.
        attempt: u32,
        /// Of how many; None: not said, or without end.
        of: Option<u32>,
        /// Why the last one failed.
        failure: Failure,
        /// When the next one is made, Unix ms.
        next_at: Option<i64>,
    },
    /// Something asked of the agent beside messages has ended.
    ControlEnded {
        /// Which.
        control: ControlId,
        /// How. What it changed is said by its own event (`Options`, `Goal`, `TaskEnded`, …), before this one. Of one that
        /// needs an idle thread the end is said when its turn has begun, or where it has none, when the agent can take the
        /// next message: until then no message is given.
        end: ControlEnd,
    },
    /// The agent can go back for this control (a rewind), by taking its thread up again at this point of its own history:
    /// its process ends, and the next one begins there. Ends the control.
    GoesBack {
        /// The rewind.
        control: ControlId,
        /// The last row that stays, as the agent's history names it.
        at: String,
    },
    /// The agent has put the session's conversation into another thread, by itself or on request (an emptied context).
    /// What comes next belongs to the new one.
    ThreadSwitched {
        /// The new one.
        thread: ThreadId,
    },
    /// The agent let the thread go: after `CloseThread`, or by itself. Nothing more comes of it.
    ThreadClosed,
    /// The plan, whole (ACP plan entries).
    Plan(Value),
    /// Context and cost, as the agent counts them.
    Usage(Value),
    /// What the agent's counters show, for budgets; what it does not count is None.
    Spent {
        /// As counted since the counters began.
        counter: Spent,
        /// They begin with each process anew (Claude, measured); else they go on with the thread (Codex, measured).
        of_process: bool,
    },
    /// What is in force, as the agent reports it: what it does not report is None and stays as it was. It confirms what
    /// was asked for where it says the same.
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
    /// The sub-agent's thread that asks; None: the session's own.
    pub child: Option<ThreadId>,
    /// What kind of thing.
    pub kind: RequestKind,
    /// What is to be done, where an approval says so (`execute`, `edit`, `delete`, …).
    pub tool_kind: Option<ToolKind>,
    /// A line for people.
    pub title: String,
    /// The ways to answer by choosing one; each named for its reach.
    pub options: Vec<PermissionOption>,
    /// The questions, answered together.
    pub questions: Vec<Question>,
    /// The form or link.
    pub elicitation: Option<Elicitation>,
    /// When the agent goes on without an answer, Unix ms, where it says so.
    pub expires_at: Option<i64>,
    /// What it is about: command, folder, diff, reason, in the provider's shape.
    pub details: Value,
    /// The request of a process that died, which this one asks again.
    pub recovers: Option<RequestId>,
}

impl AskedByAgent {
    /// A request of which only this is known.
    #[must_use]
    pub fn new(key: RequestKey, kind: RequestKind, title: impl Into<String>) -> Self {
        Self {
            key,
            turn: None,
            item: None,
            child: None,
            kind,
            tool_kind: None,
            title: title.into(),
            options: Vec::new(),
            questions: Vec::new(),
            elicitation: None,
            expires_at: None,
            details: Value::Null,
            recovers: None,
        }
    }
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
        /// Make it as a branch of this one (capability `fork`); only where nothing is resumed.
        fork: Option<Box<ForkPoint>>,
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
    /// End the running turn, or the one that our last `StartTurn` is about to start. With capability `own_queue` also what
    /// waits in the agent's own queue, whether anything runs or not.
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
    /// Do this beside messages and answers; the agent's answer is [`AgentEvent::ControlEnded`] with the same id. Only
    /// what the capabilities name is ever asked.
    Control {
        /// Its id.
        id: ControlId,
        /// What.
        control: Control,
    },
    /// Leave the thread, in a process that goes on with others (capability `close_thread`). The agent's answer is
    /// [`AgentEvent::ThreadClosed`].
    CloseThread,
}

impl Decision {
    /// Whether the frames of this decision may overtake unwritten ones and go out though the store is full: they are
    /// idempotent and aimed at ids.
    #[must_use]
    pub const fn urgent(&self) -> bool {
        match self {
            Self::Interrupt { .. } => true,
            Self::Control { control, .. } => control.stops(),
            _ => false,
        }
    }
}
