//! The journal's events. Their serialized form is public (contract section 3) and stored for ever: fields may be
//! added with a default, never changed in meaning.

mod names;
mod reasons;

pub use reasons::{
    EpochReason, ImportedFrom, LeaseEnd, LeftOut, OptionsState, QueueReason, RequestDeadline, RequestEnd,
    SettlesBy, StopReach, StopStep, ThreadOrigin,
};

use crate::agent::{AgentInfo, NoticeLevel, TakenProof};
use crate::content::{
    Answer, ContentBlock, Delivery, DeliveryTaken, Failure, ItemFields, ItemKind, Origin, Outcome,
    PermissionOption, RequestKind, StopReason, ToolKind,
};
use crate::process::{CloseOrder, ProcessExit, ProcessId, Stray};
use crate::question::{Elicitation, Question};
use crate::session::{Budget, Limits, Spent, StopTarget};
use crate::work::{ChildFields, Control, ControlEnd, Goal, Provenance, TaskFields, TaskKind, WorkEnd};
use crate::{
    ControlId, Cursor, Fence, ItemId, ItemKey, LaunchSnapshot, ProcessToken, ProviderTurn, RequestId,
    RequestKey, SessionId, SessionOptions, SubmissionId, TaskId, TaskKey, ThreadId, TurnId,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What happened. The tag is the event's type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type")]
pub enum Event {
    /// The session is there.
    #[serde(rename = "session.created")]
    SessionCreated {
        /// Its id.
        session: SessionId,
        /// Its name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        /// What pins it.
        launch: LaunchSnapshot,
        /// What it begins with.
        options: SessionOptions,
    },
    /// Name, options or the archived mark changed; absent: unchanged.
    #[serde(rename = "session.updated")]
    SessionUpdated {
        /// The new name; null takes it away.
        #[serde(default, skip_serializing_if = "Option::is_none", with = "double_option")]
        #[schemars(with = "Option<String>")]
        name: Option<Option<String>>,
        /// The new options, whole.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<SessionOptions>,
        /// The new mark.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        archived: Option<bool>,
        /// The queue pause, set by a stop and lifted on purpose.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queue_paused: Option<bool>,
        /// Who gave the name, where that is known.
        #[serde(default, skip_serializing_if = "Provenance::is_unknown")]
        by: Provenance,
    },
    /// What stands before this in the journal came from a file. From here on the session is one of this host: under this
    /// id, with this launch snapshot, without a process and, from its next start, with a conversation of its own.
    #[serde(rename = "session.imported")]
    SessionImported {
        /// Its id here.
        session: SessionId,
        /// What pins it here.
        launch: LaunchSnapshot,
        /// Where it came from.
        from: ImportedFrom,
        /// What was not taken over. Options and limits among it change by events of their own, behind this one.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left_out: Vec<LeftOut>,
    },
    /// The session is deleted; only its id stays taken.
    #[serde(rename = "session.deleted")]
    SessionDeleted {},
    /// The right to write is reserved at the event's fence, which is one above the one before; no process runs yet.
    #[serde(rename = "lease.reserved")]
    LeaseReserved {
        /// For which process.
        process: ProcessToken,
    },
    /// The thread is proven: the agent may be written to.
    #[serde(rename = "lease.held")]
    LeaseHeld {
        /// The process.
        process: ProcessToken,
        /// The thread.
        thread: ThreadId,
    },
    /// A write that carried an older fence than the record's was refused and changed nothing; said once for each fence.
    #[serde(rename = "lease.refused")]
    LeaseRefused {
        /// The fence that it carried.
        carried: Fence,
    },
    /// Nobody may write; the event's fence is over.
    #[serde(rename = "lease.released")]
    LeaseReleased {
        /// Why.
        reason: LeaseEnd,
    },
    /// The agent's process runs.
    #[serde(rename = "process.started")]
    ProcessStarted {
        /// Which.
        process: ProcessToken,
        /// Its identity.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<ProcessId>,
    },
    /// The agent finished its handshake.
    #[serde(rename = "process.ready")]
    ProcessReady {
        /// Which.
        process: ProcessToken,
        /// Who it says it is.
        info: AgentInfo,
    },
    /// A returning host took the process over; the agent never noticed.
    #[serde(rename = "process.adopted")]
    ProcessAdopted {
        /// Which.
        process: ProcessToken,
    },
    /// It can be proven neither alive nor gone.
    #[serde(rename = "process.unverifiable")]
    ProcessUnverifiable {
        /// Which.
        process: ProcessToken,
        /// Why.
        why: String,
    },
    /// It is being ended on an order.
    #[serde(rename = "process.stopping")]
    ProcessStopping {
        /// Which.
        process: ProcessToken,
        /// Whose order.
        order: CloseOrder,
    },
    /// It goes on with other sessions: this one ends its work there and leaves.
    #[serde(rename = "process.leaving")]
    ProcessLeaving {
        /// Which.
        process: ProcessToken,
        /// The sessions that it goes on with.
        others: Vec<SessionId>,
    },
    /// It is proven gone.
    #[serde(rename = "process.exited")]
    ProcessExited {
        /// Which.
        process: ProcessToken,
        /// How.
        exit: ProcessExit,
    },
    /// It left processes behind.
    #[serde(rename = "strays.found")]
    StraysFound {
        /// Which process did.
        process: ProcessToken,
        /// What it left.
        strays: Vec<Stray>,
    },
    /// The chain has a new head.
    #[serde(rename = "thread.linked")]
    ThreadLinked {
        /// The thread.
        thread: ThreadId,
        /// How it came.
        how: ThreadOrigin,
        /// The head before.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        previous: Option<ThreadId>,
        /// Links that the session's record does not keep any more, in all: those after the first one, where the chain
        /// came from. Their own events tell what they were.
        #[serde(default, skip_serializing_if = "is_zero")]
        cut: u64,
        /// Turns of its past that the journal shows next, which ran elsewhere: no budget counts them.
        #[serde(default, skip_serializing_if = "is_zero")]
        brought_turns: u64,
    },
    /// The message is durable.
    #[serde(rename = "submission.accepted")]
    SubmissionAccepted {
        /// Which.
        submission: SubmissionId,
        /// What.
        content: Vec<ContentBlock>,
        /// As asked.
        delivery: Delivery,
        /// As taken.
        taken_as: DeliveryTaken,
        /// The message that this one sends again.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resends: Option<SubmissionId>,
    },
    /// It waits, and for what.
    #[serde(rename = "submission.queued")]
    SubmissionQueued {
        /// Which.
        submission: SubmissionId,
        /// For what.
        reason: QueueReason,
    },
    /// A message that the agent does not have was edited, moved or sent on; absent: unchanged.
    #[serde(rename = "submission.changed")]
    SubmissionChanged {
        /// Which.
        submission: SubmissionId,
        /// What the next edit must name; one above the one before.
        revision: u64,
        /// What it says now.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        content: Option<Vec<ContentBlock>>,
        /// Its place among the messages that are not settled, from 0, after it was taken out of its old one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        position: Option<usize>,
        /// False: its pause is lifted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        paused: Option<bool>,
    },
    /// It is on its way to the agent, once.
    #[serde(rename = "submission.delivered")]
    SubmissionDelivered {
        /// Which.
        submission: SubmissionId,
        /// To which process.
        process: ProcessToken,
        /// As which input.
        input: u64,
        /// The running turn that it goes into; absent: it starts one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        steers: Option<TurnId>,
    },
    /// The agent has it, by proof.
    #[serde(rename = "submission.taken")]
    SubmissionTaken {
        /// Which.
        submission: SubmissionId,
        /// Which proof.
        proof: TakenProof,
        /// Into which turn, where known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
    },
    /// The agent refused it.
    #[serde(rename = "submission.rejected")]
    SubmissionRejected {
        /// Which.
        submission: SubmissionId,
        /// Why.
        failure: Failure,
    },
    /// It was withdrawn before the agent had it.
    #[serde(rename = "submission.cancelled")]
    SubmissionCancelled {
        /// Which.
        submission: SubmissionId,
    },
    /// A user gave it up while in doubt.
    #[serde(rename = "submission.dropped")]
    SubmissionDropped {
        /// Which.
        submission: SubmissionId,
    },
    /// Whether the agent has it is not known.
    #[serde(rename = "submission.doubtful")]
    SubmissionDoubtful {
        /// Which.
        submission: SubmissionId,
        /// What would settle it.
        settles_by: SettlesBy,
        /// A user's stop ended its turn: if it turns out that the agent never had it, it is not given again.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stopped: bool,
    },
    /// The keeper refused an input: it was never written. A message returns to the queue.
    #[serde(rename = "input.refused")]
    InputRefused {
        /// Which process.
        process: ProcessToken,
        /// Which input.
        input: u64,
        /// The message that it carried.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        submission: Option<SubmissionId>,
        /// Why.
        why: String,
    },
    /// The agent works.
    #[serde(rename = "turn.started")]
    TurnStarted {
        /// Which.
        turn: TurnId,
        /// The provider's id of it.
        provider_turn: ProviderTurn,
        /// Whose.
        origin: Origin,
        /// The message that it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        submission: Option<SubmissionId>,
    },
    /// Its origin is shown now.
    #[serde(rename = "turn.updated")]
    TurnUpdated {
        /// Which.
        turn: TurnId,
        /// Whose.
        origin: Origin,
        /// The message that it answers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        submission: Option<SubmissionId>,
    },
    /// It waits for an answer.
    #[serde(rename = "turn.waiting")]
    TurnWaiting {
        /// Which.
        turn: TurnId,
    },
    /// It goes on.
    #[serde(rename = "turn.resumed")]
    TurnResumed {
        /// Which.
        turn: TurnId,
    },
    /// It ended, once.
    #[serde(rename = "turn.ended")]
    TurnEnded {
        /// Which.
        turn: TurnId,
        /// How.
        outcome: Outcome,
        /// In ACP's word, where there is one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stop_reason: Option<StopReason>,
        /// What went wrong.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// Tokens and the like.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Value>,
        /// When it began, Unix ms.
        started_at: i64,
    },
    /// An item begins.
    #[serde(rename = "item.started")]
    ItemStarted {
        /// Which.
        item: ItemId,
        /// The provider's key of it; absent where we made the item.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key: Option<ItemKey>,
        /// In which turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// What it is.
        kind: ItemKind,
        /// What it carries.
        #[serde(flatten)]
        fields: ItemFields,
    },
    /// More text, from `offset` bytes on.
    #[serde(rename = "item.delta")]
    ItemDelta {
        /// Which.
        item: ItemId,
        /// Bytes of UTF-8 before this text.
        offset: u64,
        /// The text.
        text: String,
    },
    /// Changed fields.
    #[serde(rename = "item.updated")]
    ItemUpdated {
        /// Which.
        item: ItemId,
        /// The changed ones.
        #[serde(flatten)]
        fields: ItemFields,
    },
    /// It is done, once.
    #[serde(rename = "item.completed")]
    ItemCompleted {
        /// Which.
        item: ItemId,
        /// The changed fields, and `status`.
        #[serde(flatten)]
        fields: ItemFields,
        /// Bytes of UTF-8 of its text.
        bytes: u64,
        /// `sha256:…` of its text.
        digest: String,
        /// The whole text, only where it differs from the folded deltas.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        text: Option<String>,
        /// True where `text` replaces the folded deltas.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replaces: bool,
    },
    /// The agent asks.
    #[serde(rename = "request.opened")]
    RequestOpened {
        /// Which.
        request: RequestId,
        /// The provider's key of it, within its process.
        key: RequestKey,
        /// What an answer must name; grows with every change.
        revision: u64,
        /// Which process asks.
        process: ProcessToken,
        /// In which turn.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// About which item.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        item: Option<ItemId>,
        /// What kind of thing.
        kind: RequestKind,
        /// A line for people.
        title: String,
        /// The ways to answer.
        options: Vec<PermissionOption>,
        /// What it is about, in the provider's shape.
        details: Value,
        /// The sub-agent's thread that asks; absent: the session's own.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        child: Option<ThreadId>,
        /// What is to be done, where an approval says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tool_kind: Option<ToolKind>,
        /// The questions, answered together.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        questions: Vec<Question>,
        /// The form or link.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        elicitation: Option<Elicitation>,
        /// When the agent goes on without an answer, Unix ms, where it says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        expires_at: Option<i64>,
        /// When this host answers by itself, and what; absent: never.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline: Option<RequestDeadline>,
        /// The request of a process that died, which this one asks again; absent: it is asked for the first time.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recovers: Option<RequestId>,
    },
    /// Something beside its answer changed.
    #[serde(rename = "request.updated")]
    RequestUpdated {
        /// Which.
        request: RequestId,
        /// The revision, unchanged: what is asked is the same.
        revision: u64,
        /// True: its connection is gone and the agent did not ask again; it may be void and can be answered all the same.
        unconfirmed: bool,
    },
    /// Somebody answered; the answer is on its way.
    #[serde(rename = "request.answered")]
    RequestAnswered {
        /// Which.
        request: RequestId,
        /// The revision now.
        revision: u64,
        /// The answer that won.
        answer: Answer,
        /// Who gave it.
        by: String,
    },
    /// It is settled, once.
    #[serde(rename = "request.closed")]
    RequestClosed {
        /// Which.
        request: RequestId,
        /// The revision now.
        revision: u64,
        /// How it ended.
        state: RequestEnd,
        /// Whether the agent confirmed; absent where it cannot.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        confirmed: Option<bool>,
        /// Where the answer that won stands in the journal; absent: nobody here answered.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        answered: Option<Cursor>,
        /// Nobody had answered when its process died: the agent is started again, and where its history shows it
        /// unanswered too, it is asked again as a new request that names this one.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        asked_again: bool,
    },
    /// A stop was asked for and is on its way to the agent.
    #[serde(rename = "interrupt.requested")]
    InterruptRequested {
        /// The turn, where one is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// How far it reaches.
        #[serde(default)]
        reach: StopReach,
    },
    /// The agent did not react to a stop in its time: it is taken further.
    #[serde(rename = "stop.escalated")]
    StopEscalated {
        /// The turn, where one is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// How long was waited, in milliseconds.
        waited_ms: u64,
        /// What is done now.
        #[serde(default)]
        step: StopStep,
    },
    /// All that a stop can do without ending the process is done, and this remains. Ending the process would end the
    /// work of others too: that is done on an order only (`stop` with `kill`).
    #[serde(rename = "stop.blocked")]
    StopBlocked {
        /// What did not end; empty: only the agent's answer that it let the conversation go is missing.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        remaining: Vec<StopTarget>,
        /// The sessions that the process would end with it.
        others: Vec<SessionId>,
    },
    /// The agent tries something again by itself.
    #[serde(rename = "turn.retrying")]
    TurnRetrying {
        /// In which turn, where it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// Which try comes next, from 1.
        attempt: u32,
        /// Of how many; absent: not said, or without end.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        of: Option<u32>,
        /// Why the last one failed; `resets_at` is when a limit ends.
        failure: Failure,
        /// When the next one is made, Unix ms.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_at: Option<i64>,
    },
    /// Background work began.
    #[serde(rename = "task.started")]
    TaskStarted {
        /// Which.
        task: TaskId,
        /// The provider's id of it.
        key: TaskKey,
        /// What kind.
        kind: TaskKind,
        /// In which turn it began, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// Its title, and what else is known.
        #[serde(flatten)]
        fields: TaskFields,
    },
    /// Something about it changed.
    #[serde(rename = "task.updated")]
    TaskUpdated {
        /// Which.
        task: TaskId,
        /// The changed fields.
        #[serde(flatten)]
        fields: TaskFields,
    },
    /// It ended, once.
    #[serde(rename = "task.ended")]
    TaskEnded {
        /// Which.
        task: TaskId,
        /// How.
        outcome: WorkEnd,
        /// The changed fields.
        #[serde(flatten)]
        fields: TaskFields,
        /// When it began, Unix ms.
        started_at: i64,
    },
    /// A sub-agent's thread works.
    #[serde(rename = "child.started")]
    ChildStarted {
        /// The provider's id of the thread.
        child: ThreadId,
        /// In which turn it began, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnId>,
        /// What is known.
        #[serde(flatten)]
        fields: ChildFields,
    },
    /// Something about it changed.
    #[serde(rename = "child.updated")]
    ChildUpdated {
        /// Which.
        child: ThreadId,
        /// The changed fields.
        #[serde(flatten)]
        fields: ChildFields,
    },
    /// It works no more. A thread that works anew starts again.
    #[serde(rename = "child.ended")]
    ChildEnded {
        /// Which.
        child: ThreadId,
        /// How.
        outcome: WorkEnd,
        /// The changed fields.
        #[serde(flatten)]
        fields: ChildFields,
        /// When it began, Unix ms.
        started_at: i64,
    },
    /// The goal, whole.
    #[serde(rename = "goal.updated")]
    GoalUpdated {
        /// The goal; absent: there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        goal: Option<Goal>,
        /// Who made it so.
        #[serde(default, skip_serializing_if = "Provenance::is_unknown")]
        by: Provenance,
    },
    /// Something is asked of the agent beside messages and answers.
    #[serde(rename = "control.asked")]
    ControlAsked {
        /// Which.
        control: ControlId,
        /// What.
        #[serde(flatten)]
        what: Control,
        /// Who asks.
        by: Provenance,
    },
    /// The agent is told; until then it waited for the agent to start or to be idle.
    #[serde(rename = "control.told")]
    ControlTold {
        /// Which.
        control: ControlId,
    },
    /// It ended, once.
    #[serde(rename = "control.ended")]
    ControlEnded {
        /// Which.
        control: ControlId,
        /// How.
        #[serde(flatten)]
        end: ControlEnd,
    },
    /// The plan, whole.
    #[serde(rename = "plan.updated")]
    PlanUpdated {
        /// ACP plan entries.
        entries: Value,
        /// Who made it so.
        #[serde(default, skip_serializing_if = "Provenance::is_unknown")]
        by: Provenance,
    },
    /// Context and cost.
    #[serde(rename = "usage.updated")]
    UsageUpdated {
        /// As the agent counts.
        usage: Value,
    },
    /// What is in force, as the agent reports it.
    #[serde(rename = "options.updated")]
    OptionsUpdated {
        /// The options.
        options: SessionOptions,
        /// How far they are.
        #[serde(default)]
        state: OptionsState,
        /// Why they were put back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// Who made it so.
        #[serde(default, skip_serializing_if = "Provenance::is_unknown")]
        by: Provenance,
    },
    /// Slash commands and the like.
    #[serde(rename = "commands.updated")]
    CommandsUpdated {
        /// As the agent lists them.
        commands: Value,
    },
    /// The start was refused for a cause that passes by itself; it is tried again.
    #[serde(rename = "start.retrying")]
    StartRetrying {
        /// Which try comes next, from 1.
        attempt: u32,
        /// Of how many.
        of: u32,
        /// Why the last one failed.
        failure: Failure,
        /// When the next one is made, Unix ms; a user's command makes it at once.
        next_at: i64,
    },
    /// The session's budgets and default answers, whole.
    #[serde(rename = "limits.updated")]
    LimitsUpdated {
        /// The limits.
        limits: Limits,
    },
    /// What was used so far.
    #[serde(rename = "spent.updated")]
    SpentUpdated {
        /// Since the session began.
        #[serde(flatten)]
        spent: Spent,
        /// What the agent's counters showed.
        counter: Spent,
        /// They begin with each process anew.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        of_process: bool,
    },
    /// A budget is used up; the turn is being stopped.
    #[serde(rename = "budget.reached")]
    BudgetReached {
        /// Which.
        budget: Budget,
        /// The turn that it stops.
        turn: TurnId,
    },
    /// The agent dropped its latest turns; the journal keeps what they were, so the epoch and all cursors go on.
    #[serde(rename = "thread.rewound")]
    ThreadRewound {
        /// The first turn that it does not have any more.
        before: TurnId,
        /// Where the agent's next process takes the thread up, as its history names it; absent: the living one went back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        resume_at: Option<String>,
        /// The last one; absent in old journals: the latest turn until then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last: Option<TurnId>,
    },
    /// Something to be seen.
    #[serde(rename = "notice")]
    Notice {
        /// How urgent.
        level: NoticeLevel,
        /// A sentence.
        message: String,
        /// The provider's own words.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<Value>,
    },
    /// The session cannot go on by itself, or can again.
    #[serde(rename = "session.recovering")]
    SessionRecovering {
        /// Why; absent: it can go on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Failure>,
        /// A user chose to go on in a new conversation in place of the thread.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        start_fresh: bool,
        /// The agent does not have the thread, which never took a message: it goes on in a new conversation by itself.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        never_saved: bool,
    },
    /// A frame that this version does not model.
    #[serde(rename = "provider.frame")]
    ProviderFrame {
        /// Its method or type.
        name: String,
        /// The frame, or nothing where the session's bound for such frames is used up.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        frame: Option<Value>,
        /// Such frames so far.
        count: u64,
    },
    /// The journal begins anew; cursors of older epochs are reset.
    #[serde(rename = "epoch.started")]
    EpochStarted {
        /// Why.
        reason: EpochReason,
    },
}

/// An event with its place in the journal. A merged run of deltas stands at its last `seq` and carries `first_seq`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stamped {
    /// The epoch.
    pub epoch: u64,
    /// The place; dense from 1.
    pub seq: u64,
    /// The place of the first of a merged run of deltas; absent where the event stands for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_seq: Option<u64>,
    /// When it was decided, Unix ms.
    pub at: i64,
    /// The session's fence then.
    pub fence: Fence,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Absent, null and a value are three things.
mod double_option {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(
        value: &Option<Option<String>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().and_then(Option::as_ref).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Option<String>>, D::Error> {
        Option::<String>::deserialize(deserializer).map(Some)
    }
}
