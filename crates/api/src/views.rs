//! What clients send and get: the public shapes, apart from the internal ones.

use mainstay_core::content::{ContentBlock, DeliveryTaken, PermissionOption};
use mainstay_core::event::{ImportedFrom, QueueReason, RequestDeadline, SettlesBy};
use mainstay_core::question::Question;
use mainstay_core::session::{
    Limits, Link, OpenRequest, OpenSubmission, Owed, RequestState, RewoundTurns, Spent, SubmissionState,
};
use mainstay_core::work::{ChildFields, Goal, TaskFields, TaskKind, WorkEnd};
use mainstay_core::{Capabilities, Cursor, LaunchSnapshot, Session, SessionOptions, SubmissionId, TurnId};
use mainstay_host::catalog::AgentEntry;
use mainstay_store::SessionRow;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// A session.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionView {
    /// Its id.
    pub(crate) id: String,
    /// Its agent.
    pub(crate) agent: String,
    /// For people.
    pub(crate) name: Option<String>,
    /// The folder the agent works in.
    pub(crate) cwd: String,
    /// `idle`, `running`, `requires_action`, `starting`, `recovering` or `closed`.
    pub(crate) status: String,
    /// Why, where that helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// Unix ms.
    pub(crate) created_at: i64,
    /// Unix ms.
    pub(crate) updated_at: i64,
    /// Put away by a user.
    pub(crate) archived: bool,
    /// Somebody must answer or decide.
    pub(crate) needs: bool,
    /// Grows with every acquisition of the agent.
    pub(crate) fence: u64,
    /// Where its journal stands.
    pub(crate) cursor: Cursor,
    /// The file that it came from last. Only where one session is read, and only where it came from one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) imported: Option<ImportedFrom>,
    /// What it was created with; absent where it cannot be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) launch: Option<LaunchSnapshot>,
    /// As they are to be. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) options: Option<SessionOptions>,
    /// What was in force before a change that the agent has not confirmed. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) options_before: Option<SessionOptions>,
    /// Budgets and default answers. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limits: Option<Limits>,
    /// What was used, as the agent counts it. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spent: Option<Spent>,
    /// What is not finished, and so keeps the agent from rest. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owed: Option<Vec<Owed>>,
    /// The provider's conversation. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) thread: Option<String>,
    /// Its conversations so far, oldest first. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) chain: Option<ChainView>,
    /// Turns that the agent does not have any more because somebody went back behind them; the journal keeps what they were.
    /// Only where one session is read, and only where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rewound: Option<Vec<RewoundTurns>>,
    /// Messages that are not settled. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue_length: Option<usize>,
    /// Requests that wait for an answer. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) open_requests: Option<usize>,
    /// The turn that runs. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) turn: Option<TurnId>,
    /// The process that the session's fence belongs to. Only where one session is read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) process: Option<String>,
}

impl SessionView {
    /// From a record alone: lists load no session.
    pub(crate) fn of_row(row: SessionRow) -> Self {
        Self {
            imported: None,
            launch: serde_json::from_slice(&row.launch)
                .ok()
                .map(|launch: LaunchSnapshot| launch.without_secrets()),
            cursor: Cursor { epoch: row.epoch, seq: row.head },
            id: row.id,
            agent: row.agent,
            name: row.name,
            cwd: row.cwd,
            status: row.status,
            reason: row.reason,
            created_at: row.created_at,
            updated_at: row.updated_at,
            archived: row.archived,
            needs: row.needs,
            fence: row.fence,
            options: None,
            options_before: None,
            limits: None,
            spent: None,
            owed: None,
            thread: None,
            chain: None,
            rewound: None,
            queue_length: None,
            open_requests: None,
            turn: None,
            process: None,
        }
    }

    /// From a record and the loaded session.
    pub(crate) fn of_state(row: SessionRow, session: &Session) -> Self {
        Self { updated_at: row.updated_at, ..Self::of_session(session, row.updated_at) }
    }

    /// From a session alone, as it is when a command was decided.
    pub(crate) fn of_session(session: &Session, updated_at: i64) -> Self {
        let report = session.status();
        let needs = matches!(
            report.status,
            mainstay_core::Status::RequiresAction | mainstay_core::Status::Recovering
        );
        Self {
            id: session.id.0.clone(),
            agent: session.launch.agent.0.clone(),
            name: session.name.clone(),
            cwd: session.launch.cwd.clone(),
            status: report.status.as_str().to_owned(),
            reason: report.reason,
            created_at: session.created_at,
            updated_at,
            archived: session.archived,
            needs,
            fence: session.fence.0,
            cursor: Cursor { epoch: session.epoch, seq: session.head },
            imported: session.imported.clone(),
            launch: Some(session.launch.clone()),
            options: Some(session.options.clone()),
            options_before: session.options_before.clone(),
            limits: Some(session.limits.clone()),
            spent: Some(session.spent),
            owed: Some(session.owed()),
            thread: session.thread().map(|thread| thread.0.clone()),
            chain: Some(ChainView { links: session.chain.clone(), cut: session.chain_cut }),
            rewound: (!session.rewound.is_empty()).then(|| session.rewound.iter().cloned().collect()),
            queue_length: Some(session.submissions.len()),
            open_requests: Some(
                session.requests.iter().filter(|open| open.state == RequestState::Pending).count(),
            ),
            turn: session.turns.last().map(|turn| turn.id.clone()),
            process: session.process.as_ref().map(|process| process.0.clone()),
        }
    }
}

/// The conversations of a session.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChainView {
    /// The first one, which says where the session came from, and the latest.
    pub(crate) links: Vec<Link>,
    /// How many stood between the first one and the others and are not kept here; their events are in the journal.
    pub(crate) cut: u64,
}

/// A page of sessions, newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SessionList {
    pub(crate) sessions: Vec<SessionView>,
    /// What to give as `after` for the next page; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) after: Option<String>,
    /// Sessions whose records cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unreadable: Vec<String>,
}

/// A registered agent.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AgentView {
    /// Its name.
    pub(crate) name: String,
    /// Its protocol.
    pub(crate) kind: Value,
    /// Whether its program is there.
    pub(crate) installed: bool,
    /// The program that would be started.
    pub(crate) path: Option<String>,
    /// How to install it, where it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) install: Option<String>,
    /// Its version as last seen; null: not seen by this host, and looking would start it.
    pub(crate) version: Option<String>,
    /// `signed_in`, `signed_out` or `unknown`; telling more would need a start of the agent.
    pub(crate) sign_in: &'static str,
    /// What its adapter can do.
    pub(crate) capabilities: Capabilities,
}

impl From<AgentEntry> for AgentView {
    fn from(entry: AgentEntry) -> Self {
        Self {
            name: entry.name.0,
            kind: serde_json::to_value(entry.kind).unwrap_or_default(),
            installed: entry.installed,
            path: entry.path.map(|path| path.display().to_string()),
            install: entry.install,
            version: None,
            sign_in: "unknown",
            capabilities: entry.capabilities,
        }
    }
}

/// The registered agents.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AgentList {
    pub(crate) agents: Vec<AgentView>,
}

/// Text, or content blocks as ACP has them.
#[derive(Debug, Clone, JsonSchema)]
#[schemars(untagged)]
pub(crate) enum Content {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

impl Content {
    pub(crate) fn into_blocks(self) -> Vec<ContentBlock> {
        match self {
            Self::Text(text) => vec![ContentBlock::text(text)],
            Self::Blocks(blocks) => blocks,
        }
    }
}

impl<'de> Deserialize<'de> for Content {
    /// By hand, because an untagged enum's errors do not say what is wrong.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self::Text(text)),
            blocks @ Value::Array(_) => {
                Vec::<ContentBlock>::deserialize(blocks).map(Self::Blocks).map_err(D::Error::custom)
            }
            _ => Err(D::Error::custom("content is a string or an array of content blocks")),
        }
    }
}

/// Options as clients give them.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OptionsBody {
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    effort: Option<String>,
    #[serde(default)]
    tier: Option<String>,
    #[serde(default)]
    mode: Option<String>,
    /// In the agent's own words.
    #[serde(default)]
    sandbox: Option<String>,
    /// In the agent's own words.
    #[serde(default)]
    approval: Option<String>,
    /// In the agent's own words.
    #[serde(default)]
    personality: Option<String>,
    /// `off`, `on`, or the most tokens of one thought.
    #[serde(default)]
    thinking: Option<String>,
}

impl From<OptionsBody> for SessionOptions {
    fn from(body: OptionsBody) -> Self {
        Self {
            model: body.model,
            effort: body.effort,
            tier: body.tier,
            mode: body.mode,
            sandbox: body.sandbox,
            approval: body.approval,
            personality: body.personality,
            thinking: body.thinking,
        }
    }
}

/// Changed options: absent is unchanged, null takes the option away.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OptionsPatch {
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    model: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    effort: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    tier: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    mode: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    sandbox: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    approval: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    personality: Option<Option<String>>,
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    thinking: Option<Option<String>>,
}

impl OptionsPatch {
    /// The options with the changes made.
    pub(crate) fn apply(self, before: &SessionOptions) -> SessionOptions {
        let pick =
            |change: Option<Option<String>>, old: &Option<String>| change.unwrap_or_else(|| old.clone());
        SessionOptions {
            model: pick(self.model, &before.model),
            effort: pick(self.effort, &before.effort),
            tier: pick(self.tier, &before.tier),
            mode: pick(self.mode, &before.mode),
            sandbox: pick(self.sandbox, &before.sandbox),
            approval: pick(self.approval, &before.approval),
            personality: pick(self.personality, &before.personality),
            thinking: pick(self.thinking, &before.thinking),
        }
    }
}

/// Tells null from absent: called only where the field is there.
pub(crate) fn present<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<String>>, D::Error> {
    Option::<String>::deserialize(deserializer).map(Some)
}

/// An accepted message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Submitted {
    /// The message's id.
    pub(crate) submission: SubmissionId,
    /// What is done with it.
    pub(crate) taken_as: DeliveryTaken,
    /// `epoch:seq` behind its acceptance: events after it belong to what follows.
    pub(crate) cursor: String,
}

/// A changed message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Changed {
    /// The message's id.
    pub(crate) submission: SubmissionId,
    /// What the next edit names.
    pub(crate) revision: u64,
    /// `epoch:seq` behind the change.
    pub(crate) cursor: String,
}

/// A message that is not settled.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueuedView {
    /// Its id.
    id: String,
    /// What an edit names.
    revision: u64,
    /// `accepted`, `delivered` or `doubtful`.
    state: &'static str,
    /// It goes into the running turn, and starts one only where none runs.
    steers: bool,
    /// What it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<QueueReason>,
    /// What would settle the doubt.
    #[serde(skip_serializing_if = "Option::is_none")]
    settles_by: Option<SettlesBy>,
    /// Waits until the queue is resumed.
    paused: bool,
    /// What it says.
    content: Vec<ContentBlock>,
}

impl From<&OpenSubmission> for QueuedView {
    fn from(open: &OpenSubmission) -> Self {
        let (state, waits, settles_by) = match &open.state {
            SubmissionState::Accepted { waits } => ("accepted", *waits, None),
            SubmissionState::Delivered { .. } => ("delivered", None, None),
            SubmissionState::Doubtful { settles_by, .. } => ("doubtful", None, Some(*settles_by)),
        };
        Self {
            id: open.id.0.clone(),
            revision: open.revision,
            state,
            steers: open.steers,
            waits,
            settles_by,
            paused: open.paused,
            content: open.content.clone(),
        }
    }
}

/// The messages that are not settled, in order.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueView {
    pub(crate) queue: Vec<QueuedView>,
    /// What was queued before a stop waits until the queue is resumed.
    pub(crate) paused: bool,
}

/// A request that nobody settled.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RequestView {
    /// Its id.
    pub(crate) id: String,
    /// What an answer names.
    pub(crate) revision: u64,
    /// `pending` or `answering`.
    pub(crate) state: &'static str,
    /// Its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) turn: Option<TurnId>,
    /// The ways to answer.
    pub(crate) options: Vec<PermissionOption>,
    /// The questions; answered together, by `answers`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) questions: Vec<Question>,
    /// The sub-agent's thread that asks; absent: the session's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) child: Option<String>,
    /// Its connection is gone and the agent did not ask again: it may be void, and can be answered all the same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) unconfirmed: bool,
    /// When it is answered by itself, and with what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline: Option<RequestDeadline>,
    /// The answer that is on its way, and whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) winner: Option<Value>,
    /// `approval`, `question`, `elicitation` or `permission_grant`; absent where the opening event lies too far back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<Value>,
    /// A line for people; absent as `kind` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) title: Option<Value>,
    /// The form or link, accepted by `accept`; absent as `kind` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) elicitation: Option<Value>,
    /// About which item; absent as `kind` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) item: Option<Value>,
    /// What it is about, in the provider's shape; absent as `kind` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<Value>,
}

impl From<&OpenRequest> for RequestView {
    fn from(open: &OpenRequest) -> Self {
        let (state, winner) = match &open.state {
            RequestState::Pending => ("pending", None),
            RequestState::Answering { answer, by } => {
                ("answering", Some(serde_json::json!({ "answer": answer, "by": by })))
            }
        };
        Self {
            id: open.id.0.clone(),
            revision: open.revision,
            state,
            turn: open.turn.clone(),
            options: open.options.clone(),
            questions: open.questions.clone(),
            child: open.child.as_ref().map(|child| child.0.clone()),
            unconfirmed: open.unconfirmed,
            deadline: open.deadline.clone(),
            elicitation: None,
            winner,
            kind: None,
            title: None,
            item: None,
            details: None,
        }
    }
}

/// The requests that nobody settled.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RequestList {
    pub(crate) requests: Vec<RequestView>,
}

/// A background task.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TaskView {
    /// Its id.
    id: String,
    /// What kind.
    kind: TaskKind,
    /// How it ended; absent: it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<WorkEnd>,
    /// When it began, Unix ms.
    started_at: i64,
    /// When it ended, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<i64>,
    /// Title, state, tokens and what else is known.
    #[serde(flatten)]
    fields: TaskFields,
}

/// Background tasks: those that run, then the latest that ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TaskList {
    tasks: Vec<TaskView>,
}

impl TaskList {
    pub(crate) fn of(session: &Session) -> Self {
        let open = session.tasks.iter().map(|task| TaskView {
            id: task.id.0.clone(),
            kind: task.kind,
            outcome: None,
            started_at: task.started_at,
            ended_at: None,
            fields: task.fields.clone(),
        });
        let ended = session.ended_tasks.iter().rev().map(|task| TaskView {
            id: task.id.0.clone(),
            kind: task.kind,
            outcome: Some(task.outcome),
            started_at: task.started_at,
            ended_at: Some(task.ended_at),
            fields: task.fields.clone(),
        });
        Self { tasks: open.chain(ended).collect() }
    }
}

/// A sub-agent's thread. `parent` names the thread that it belongs to; absent: the session's own.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChildView {
    /// The provider's id of the thread.
    thread: String,
    /// How it ended; absent: it works.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<WorkEnd>,
    /// When it began, Unix ms.
    started_at: i64,
    /// When it ended, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    ended_at: Option<i64>,
    /// Parent, title, tokens and what else is known.
    #[serde(flatten)]
    fields: ChildFields,
    /// The threads that belong to it.
    children: Vec<Self>,
}

/// Sub-agents' threads as a tree: those that work, then the latest that ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChildList {
    children: Vec<ChildView>,
}

impl ChildList {
    pub(crate) fn of(session: &Session) -> Self {
        let open = session.children.iter().map(|child| ChildView {
            thread: child.thread.0.clone(),
            outcome: None,
            started_at: child.started_at,
            ended_at: None,
            fields: child.fields.clone(),
            children: Vec::new(),
        });
        let ended = session.ended_children.iter().rev().map(|child| ChildView {
            thread: child.thread.0.clone(),
            outcome: Some(child.outcome),
            started_at: child.started_at,
            ended_at: Some(child.ended_at),
            fields: child.fields.clone(),
            children: Vec::new(),
        });
        Self { children: tree(open.chain(ended).collect()) }
    }
}

/// Puts each under its parent. One whose parent is not listed, or that would close a circle, stands at the top.
fn tree(mut flat: Vec<ChildView>) -> Vec<ChildView> {
    let parent_of = |child: &ChildView| child.fields.parent.as_ref().map(|parent| parent.0.clone());
    loop {
        // A leaf: nobody that is left names it as a parent.
        let leaf = flat.iter().position(|child| {
            let own = parent_of(child).filter(|parent| *parent != child.thread);
            let has_parent = own.is_some_and(|parent| flat.iter().any(|other| other.thread == parent));
            let is_parent = flat.iter().any(|other| parent_of(other).as_deref() == Some(&child.thread));
            has_parent && !is_parent
        });
        let Some(leaf) = leaf else { break };
        let child = flat.remove(leaf);
        let parent = parent_of(&child);
        match flat.iter_mut().find(|other| Some(&other.thread) == parent.as_ref()) {
            Some(parent) => parent.children.push(child),
            None => flat.push(child),
        }
    }
    flat
}

/// What the agent works towards over several turns.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct GoalView {
    /// The goal; null: there is none.
    pub(crate) goal: Option<Goal>,
}

/// A command was carried out.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Done {
    /// `epoch:seq` behind its events.
    pub(crate) cursor: String,
    /// False for a stop that was carried out though the store refused to record it.
    pub(crate) recorded: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_a_text_or_blocks_and_says_what_else_is_wrong() {
        let text: Content = serde_json::from_str("\"hi\"").expect("text");
        assert_eq!(text.into_blocks(), [ContentBlock::text("hi")]);
        let blocks: Content = serde_json::from_str(r#"[{"type":"text","text":"hi"}]"#).expect("blocks");
        assert_eq!(blocks.into_blocks(), [ContentBlock::text("hi")]);
        let error = serde_json::from_str::<Content>(r#"[{"type":"text"}]"#).expect_err("no text");
        assert!(error.to_string().contains("text"), "{error}");
        assert!(serde_json::from_str::<Content>("3").is_err());
    }

    #[test]
    fn children_stand_under_their_parents_and_circles_lose_nobody() {
        let child = |thread: &str, parent: Option<&str>| ChildView {
            thread: thread.to_owned(),
            outcome: None,
            started_at: 0,
            ended_at: None,
            fields: ChildFields {
                parent: parent.map(mainstay_core::ThreadId::from),
                ..ChildFields::default()
            },
            children: Vec::new(),
        };
        let top = tree(vec![
            child("a", None),
            child("a1", Some("a")),
            child("a11", Some("a1")),
            child("lost", Some("gone")),
            child("x", Some("y")),
            child("y", Some("x")),
        ]);
        let names = |of: &[ChildView]| of.iter().map(|child| child.thread.clone()).collect::<Vec<_>>();
        assert_eq!(names(&top), ["a", "lost", "x", "y"]);
        assert_eq!(names(&top[0].children), ["a1"]);
        assert_eq!(names(&top[0].children[0].children), ["a11"]);
    }

    #[test]
    fn null_takes_an_option_away_and_absent_leaves_it() {
        let before = SessionOptions {
            model: Some("m".to_owned()),
            effort: Some("e".to_owned()),
            ..SessionOptions::default()
        };
        let patch: OptionsPatch = serde_json::from_str(r#"{"model": null, "mode": "plan"}"#).expect("parses");
        let after = patch.apply(&before);
        assert_eq!(
            (after.model, after.effort, after.mode),
            (None, Some("e".to_owned()), Some("plan".to_owned()))
        );
    }
}
