//! What a session is: the fold of its journal.

use super::leaving::Leaving;
use super::limits::{Budget, Limits, Spent};
use crate::agent::{AgentEvent, AgentInfo};
use crate::content::{Answer, ContentBlock, Failure, ItemKind, Origin, PermissionOption};
use crate::digest::TextDigest;
use crate::event::{ImportedFrom, QueueReason, RequestDeadline, RequestEnd, SettlesBy, ThreadOrigin};
use crate::process::CloseOrder;
use crate::question::Question;
use crate::work::{ChildFields, Control, Goal, HistoryPoint, TaskFields, TaskKind, WorkEnd};
use crate::{
    ControlId, Cursor, Fence, ItemId, ItemKey, LaunchSnapshot, ProcessToken, ProviderTurn, RequestId,
    RequestKey, SessionId, SessionOptions, SubmissionId, TaskId, TaskKey, ThreadId, TurnId,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// A session's whole state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Session {
    /// Ours.
    pub id: SessionId,
    /// For people.
    pub name: Option<String>,
    /// Pinned for ever.
    pub launch: LaunchSnapshot,
    /// The file that it came from last; None: it was made here. Absent in the snapshots of all others, so these have not
    /// changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported: Option<ImportedFrom>,
    /// As they are to be: in force, or on their way.
    pub options: SessionOptions,
    /// What was in force before a change that the agent has not confirmed; None: nothing is unconfirmed.
    pub options_before: Option<SessionOptions>,
    /// What the living process was told last.
    pub options_told: Option<SessionOptions>,
    /// Put away by a user.
    pub archived: bool,
    /// Gone; only the id stays.
    pub deleted: bool,
    /// When it was created, Unix ms.
    pub created_at: i64,
    /// The journal's epoch.
    pub epoch: u64,
    /// The last event's seq.
    pub head: u64,
    /// The last won acquisition.
    pub fence: Fence,
    /// How far the lease is.
    pub phase: Phase,
    /// The process that the lease is for.
    pub process: Option<ProcessToken>,
    /// Why the process can be proven neither alive nor gone.
    pub unverifiable: Option<String>,
    /// An order to end the process, until it is gone.
    pub stopping: Option<CloseOrder>,
    /// The session leaves a process that goes on with others.
    pub leaving: Option<Leaving>,
    /// The highest fence under which a write was refused as stale.
    pub stale_refused: Option<Fence>,
    /// The next thread is made anew, in place of the chain's head.
    pub replace_thread: bool,
    /// The process that did not have a thread which was never used, and was asked for a new one in place of it.
    pub asked_to_replace: Option<ProcessToken>,
    /// Who the agent says it is.
    pub agent: Option<AgentInfo>,
    /// Threads, oldest first.
    pub chain: Vec<Link>,
    /// Links behind the first one that are not kept any more.
    pub chain_cut: u64,
    /// Runs of turns that rewinding dropped, oldest first.
    pub rewound: VecDeque<RewoundTurns>,
    /// Whether the chain's head ever took a message.
    pub thread_used: bool,
    /// Where in its history the next process takes the thread up, until it takes a message there: what came behind was
    /// rewound.
    pub resume_at: Option<String>,
    /// Messages that are not settled, in order.
    pub submissions: Vec<OpenSubmission>,
    /// What was queued before a stop waits.
    pub queue_paused: bool,
    /// Turns that run.
    pub turns: Vec<OpenTurn>,
    /// Turns so far.
    pub turn_count: u64,
    /// Those of them that came with an adopted conversation and ran elsewhere.
    pub brought_turns: u64,
    /// Items that are open.
    pub items: Vec<OpenItem>,
    /// Items so far.
    pub item_count: u64,
    /// Requests that nobody settled.
    pub requests: Vec<OpenRequest>,
    /// Requests so far.
    pub request_count: u64,
    /// Requests that nobody had answered when their process died, with the provider's keys of the calls that they are
    /// about: the next process is to ask them again.
    pub cut_off_requests: Vec<(RequestId, ItemKey)>,
    /// The latest settled requests, for late and repeated answers.
    pub closed_requests: VecDeque<ClosedRequest>,
    /// Finished item keys with their turns, for late frames. An agent may use a key again in a later turn.
    pub finished_items: VecDeque<(ItemKey, Option<TurnId>)>,
    /// Finished provider turns, for late frames.
    pub finished_turns: VecDeque<ProviderTurn>,
    /// Background tasks that live.
    pub tasks: Vec<OpenTask>,
    /// Tasks so far.
    pub task_count: u64,
    /// The latest ended tasks, for people and for late frames.
    pub ended_tasks: VecDeque<EndedTask>,
    /// Sub-agents' threads that work.
    pub children: Vec<OpenChild>,
    /// The latest that ended, for people.
    pub ended_children: VecDeque<EndedChild>,
    /// What the agent works towards over several turns.
    pub goal: Option<Goal>,
    /// What was asked of the agent beside messages and has not ended.
    pub controls: Vec<OpenControl>,
    /// Controls so far.
    pub control_count: u64,
    /// When a stop was asked for, Unix ms, while no turn is known yet.
    pub interrupt_pending: Option<i64>,
    /// A stop of all that runs stands, until new work is given: what shows itself late is stopped too.
    pub work_stopped: bool,
    /// Turns that ended in the threads of the chain, for branches and rewinding; oldest first.
    pub past_turns: VecDeque<PastTurn>,
    /// Budgets and default answers.
    pub limits: Limits,
    /// What was used, as the agent counts it.
    pub spent: Spent,
    /// What the agent's counters showed last.
    pub counter: Spent,
    /// They begin with each process anew.
    pub counts_by_process: bool,
    /// How long turns ran, in milliseconds.
    pub turn_ms: u64,
    /// Starts that were refused in a row for causes that pass.
    pub start_retry: Option<StartRetry>,
    /// The start waits until another process ends.
    pub awaits_capacity: bool,
    /// Deaths in the first turn of a process, in a row.
    pub first_turn_deaths: u32,
    /// Turns that this process has finished.
    pub turns_of_process: u64,
    /// Why the session cannot go on by itself.
    pub recovering: Option<Failure>,
    /// Frames that are not modelled: how many.
    pub unmodelled_count: u64,
    /// And bytes of them kept.
    pub unmodelled_bytes: u64,
    /// The message between its decision and `Handed`: never at rest, never in a snapshot.
    #[serde(skip)]
    pub(crate) handing: Option<Handing>,
    /// What the agent said meanwhile: never at rest, never in a snapshot.
    #[serde(skip)]
    pub(crate) deferred: VecDeque<AgentEvent>,
}

/// A message whose frames the lane is making.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Handing {
    pub(crate) submission: SubmissionId,
    /// The turn that it goes into; None: it starts one.
    pub(crate) steers: Option<TurnId>,
}

/// How far a lease is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nobody may write.
    Free,
    /// Reserved; no process is known to run.
    Reserved,
    /// The process runs.
    Spawned,
    /// The handshake is done and a thread is being opened.
    Opening,
    /// The thread is proven.
    Held,
}

impl Phase {
    /// Its name, for refusals.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Reserved => "reserved",
            Self::Spawned => "spawned",
            Self::Opening => "opening",
            Self::Held => "held",
        }
    }
}

/// A thread in the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Link {
    /// The provider's id.
    pub thread: ThreadId,
    /// How it came.
    pub how: ThreadOrigin,
}

/// A message that is not settled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenSubmission {
    /// Ours or the caller's.
    pub id: SubmissionId,
    /// What.
    pub content: Vec<ContentBlock>,
    /// How it stands.
    pub state: SubmissionState,
    /// Waits for the queue to be resumed.
    pub paused: bool,
    /// What an edit must name; from 1, grows with each change.
    pub revision: u64,
    /// Goes into the running turn where there is one, before those that start their own.
    pub steers: bool,
    /// The turn into which it was given last; None where it was given to start one, or not at all.
    pub given_into: Option<TurnId>,
}

impl OpenSubmission {
    /// Whether it is to be given to the agent as soon as that may be.
    #[must_use]
    pub const fn waits(&self) -> bool {
        !self.paused && matches!(self.state, SubmissionState::Accepted { .. })
    }
}

impl OpenSubmission {
    /// Whether it was given to the agent as this input.
    #[must_use]
    pub const fn delivered_as(&self, n: u64) -> bool {
        matches!(self.state, SubmissionState::Delivered { input, .. } if input == n)
    }
}

/// How an unsettled message stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum SubmissionState {
    /// Durable; the agent does not have it.
    Accepted {
        /// What it waits for, as last told.
        waits: Option<QueueReason>,
    },
    /// On its way, once.
    Delivered {
        /// To which process.
        process: ProcessToken,
        /// As which input.
        input: u64,
    },
    /// Nobody knows whether the agent has it.
    Doubtful {
        /// What settles it.
        settles_by: SettlesBy,
        /// A user's stop ended its turn.
        stopped: bool,
    },
}

/// A turn that runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTurn {
    /// Ours.
    pub id: TurnId,
    /// The provider's.
    pub provider: ProviderTurn,
    /// Whose.
    pub origin: Origin,
    /// The message that it answers.
    pub submission: Option<SubmissionId>,
    /// When it began, Unix ms.
    pub started_at: i64,
    /// An open request holds it.
    pub waiting: bool,
    /// When a stop was asked for, Unix ms.
    pub interrupted_at: Option<i64>,
    /// The agent tries something again by itself; None as soon as it shows new work.
    pub retrying: Option<Retrying>,
    /// The budget that stops it.
    pub budget: Option<Budget>,
    /// The provider's key of its last finished item.
    pub last_item: Option<ItemKey>,
}

/// A turn that ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastTurn {
    /// Ours.
    pub id: TurnId,
    /// As the provider's history knows it.
    pub point: HistoryPoint,
}

/// Turns that the agent does not have any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RewoundTurns {
    /// The first.
    pub from: TurnId,
    /// The last.
    pub to: TurnId,
}

/// A start that is to be tried again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartRetry {
    /// Which try comes next, from 1.
    pub attempt: u32,
    /// When, Unix ms; None: it is being made.
    pub next_at: Option<i64>,
    /// Why the last one failed.
    pub failure: Failure,
}

/// What the agent tries again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retrying {
    /// Which try comes next.
    pub attempt: u32,
    /// Why the last one failed.
    pub message: String,
    /// When a limit ends that is the cause, Unix ms.
    pub resets_at: Option<i64>,
    /// Since when it does nothing else, Unix ms.
    pub since: i64,
}

/// A background task that lives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenTask {
    /// Ours.
    pub id: TaskId,
    /// The provider's.
    pub key: TaskKey,
    /// What kind.
    pub kind: TaskKind,
    /// In which turn it began.
    pub turn: Option<TurnId>,
    /// Title, state, tokens.
    pub fields: TaskFields,
    /// When it began, Unix ms.
    pub started_at: i64,
}

/// A background task that ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedTask {
    /// Ours.
    pub id: TaskId,
    /// The provider's; None where its process is gone, since the next one may use the key again.
    pub key: Option<TaskKey>,
    /// What kind.
    pub kind: TaskKind,
    /// Title, tokens, what came of it.
    pub fields: TaskFields,
    /// How.
    pub outcome: WorkEnd,
    /// When it began, Unix ms.
    pub started_at: i64,
    /// When it ended, Unix ms.
    pub ended_at: i64,
}

/// A sub-agent's thread that works.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenChild {
    /// The provider's.
    pub thread: ThreadId,
    /// In which turn it began.
    pub turn: Option<TurnId>,
    /// Parent, title, tokens.
    pub fields: ChildFields,
    /// When it began, Unix ms.
    pub started_at: i64,
}

/// A sub-agent's thread that works no more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndedChild {
    /// The provider's.
    pub thread: ThreadId,
    /// Parent, title, tokens, what came of it.
    pub fields: ChildFields,
    /// How.
    pub outcome: WorkEnd,
    /// When it began, Unix ms.
    pub started_at: i64,
    /// When it ended, Unix ms.
    pub ended_at: i64,
}

/// Something asked of the agent beside messages that has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenControl {
    /// Ours.
    pub id: ControlId,
    /// What.
    pub what: Control,
    /// When it was asked, Unix ms.
    pub asked_at: i64,
    /// The agent was told; until then it waits.
    pub told: bool,
}

/// An item that is open.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenItem {
    /// Ours.
    pub id: ItemId,
    /// Its number in the session; orders the timeline.
    pub ordinal: u64,
    /// The provider's.
    pub key: Option<ItemKey>,
    /// In which turn.
    pub turn: Option<TurnId>,
    /// The sub-agent's thread that it belongs to.
    pub child: Option<ThreadId>,
    /// What it is.
    pub kind: ItemKind,
    /// Its text so far: length and digest, never the text.
    pub text: TextDigest,
}

/// A request that nobody settled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// Ours.
    pub id: RequestId,
    /// The provider's.
    pub key: RequestKey,
    /// What an answer must name.
    pub revision: u64,
    /// Where its opening stands in the journal: title and details are there, once.
    pub opened: Cursor,
    /// In which turn.
    pub turn: Option<TurnId>,
    /// The provider's key of the call that it is about.
    pub call: Option<ItemKey>,
    /// The request of a process that died, which it asks again.
    pub recovers: Option<RequestId>,
    /// The sub-agent's thread that asks.
    pub child: Option<ThreadId>,
    /// The ways to answer.
    pub options: Vec<PermissionOption>,
    /// The questions.
    pub questions: Vec<Question>,
    /// A form or a link is to be accepted.
    pub elicits: bool,
    /// Its connection is gone and the agent did not ask again.
    pub unconfirmed: bool,
    /// When this host answers by itself.
    pub deadline: Option<RequestDeadline>,
    /// Where the answer that won stands in the journal.
    pub answered: Option<Cursor>,
    /// How it stands.
    pub state: RequestState,
}

/// How an unsettled request stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum RequestState {
    /// Nobody answered.
    Pending,
    /// An answer won and is on its way.
    Answering {
        /// Which.
        answer: Answer,
        /// Whose.
        by: String,
    },
}

/// A settled request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClosedRequest {
    /// Ours.
    pub id: RequestId,
    /// How it ended.
    pub end: RequestEnd,
    /// Its last revision.
    pub revision: u64,
    /// The answer that won, and whose it was.
    pub winner: Option<(Answer, String)>,
}

impl Session {
    pub(crate) const fn empty(id: SessionId, launch: LaunchSnapshot) -> Self {
        Self {
            id,
            name: None,
            launch,
            imported: None,
            options: SessionOptions {
                model: None,
                effort: None,
                tier: None,
                mode: None,
                sandbox: None,
                thinking: None,
                approval: None,
                personality: None,
            },
            options_before: None,
            options_told: None,
            archived: false,
            deleted: false,
            created_at: 0,
            epoch: 1,
            head: 0,
            fence: Fence(0),
            phase: Phase::Free,
            process: None,
            unverifiable: None,
            stopping: None,
            leaving: None,
            stale_refused: None,
            replace_thread: false,
            asked_to_replace: None,
            agent: None,
            chain: Vec::new(),
            chain_cut: 0,
            rewound: VecDeque::new(),
            thread_used: false,
            resume_at: None,
            submissions: Vec::new(),
            queue_paused: false,
            turns: Vec::new(),
            turn_count: 0,
            brought_turns: 0,
            items: Vec::new(),
            item_count: 0,
            requests: Vec::new(),
            request_count: 0,
            cut_off_requests: Vec::new(),
            closed_requests: VecDeque::new(),
            finished_items: VecDeque::new(),
            finished_turns: VecDeque::new(),
            tasks: Vec::new(),
            task_count: 0,
            ended_tasks: VecDeque::new(),
            children: Vec::new(),
            ended_children: VecDeque::new(),
            goal: None,
            controls: Vec::new(),
            control_count: 0,
            interrupt_pending: None,
            work_stopped: false,
            past_turns: VecDeque::new(),
            limits: Limits {
                max_turns: None,
                max_turn_ms: None,
                max_tokens: None,
                max_cost_micros: None,
                max_stall_ms: None,
                requests: None,
            },
            spent: Spent { tokens: None, cost_micros: None },
            counter: Spent { tokens: None, cost_micros: None },
            counts_by_process: false,
            turn_ms: 0,
            start_retry: None,
            awaits_capacity: false,
            first_turn_deaths: 0,
            turns_of_process: 0,
            recovering: None,
            unmodelled_count: 0,
            unmodelled_bytes: 0,
            handing: None,
            deferred: VecDeque::new(),
        }
    }

    /// Begins a fold from the journal's first event.
    #[must_use]
    pub fn from_first(first: &crate::Stamped) -> Option<Self> {
        let crate::Event::SessionCreated { session, launch, .. } = &first.event else {
            return None;
        };
        let mut state = Self::empty(session.clone(), launch.clone());
        state.apply(first);
        Some(state)
    }

    pub(crate) fn turn_of(&self, provider: &ProviderTurn) -> Option<&OpenTurn> {
        self.turns.iter().find(|turn| turn.provider == *provider)
    }

    pub(crate) fn item_by_key(&self, key: &ItemKey) -> Option<&OpenItem> {
        self.items.iter().find(|item| item.key.as_ref() == Some(key))
    }

    pub(crate) fn submission(&self, id: &SubmissionId) -> Option<&OpenSubmission> {
        self.submissions.iter().find(|open| open.id == *id)
    }

    /// Whether a message is with the agent and not yet taken.
    #[must_use]
    pub fn input_untaken(&self) -> bool {
        self.submissions.iter().any(|open| matches!(open.state, SubmissionState::Delivered { .. }))
    }

    /// Whether the agent may be put to rest: nothing runs, waits or is open.
    #[must_use]
    pub fn nothing_owed(&self) -> bool {
        self.turns.is_empty()
            && self.requests.is_empty()
            && self.items.is_empty()
            && self.tasks.is_empty()
            && self.children.is_empty()
            && self.controls.is_empty()
            && (self.deleted
                || self.archived
                || (self.cut_off_requests.is_empty() && self.no_message_waits()))
    }

    fn no_message_waits(&self) -> bool {
        // What waits for a larger budget waits for a user, as what is paused does.
        let held_back = self.budget_used_up().is_some();
        let rests = |open: &OpenSubmission| {
            open.paused
                || matches!(open.state, SubmissionState::Doubtful { .. })
                || (held_back && matches!(open.state, SubmissionState::Accepted { .. }))
        };
        self.submissions.iter().all(rests)
    }
}
