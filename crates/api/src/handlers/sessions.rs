//! Sessions: made, listed, read, changed, deleted.

use super::{NoQuery, page_size};
use crate::call::{Answer, Call, json};
use crate::mutation::{self, MakeBody};
use crate::origin;
use crate::problem::{Code, Problem};
use crate::views::{Content, OptionsBody, OptionsPatch, SessionList, SessionView, present};
use mainstay_core::session::Limits;
use mainstay_core::work::ThreadSource;
use mainstay_core::{AgentName, Command, SessionId, SessionOptions, SubmissionId, ThreadId};
use mainstay_host::{Host, NewSessionRequest};
use mainstay_store::SessionFilter;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Sessions per page, unless asked otherwise.
const LIST_DEFAULT: usize = 50;
/// Sessions per page at most.
const LIST_MOST: usize = 500;
/// The longest name, in bytes. Over it: `invalid_body`.
const MAX_NAME_BYTES: usize = 512;

/// A provider's conversation.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AdoptBody {
    /// The provider's id of it.
    thread: String,
}

/// A session to be made. All but name and options is pinned for ever.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSessionBody {
    /// A registered agent.
    agent: String,
    /// The folder it works in: absolute, within the roots.
    cwd: String,
    /// For people.
    #[serde(default)]
    name: Option<String>,
    /// To begin with.
    #[serde(default)]
    options: OptionsBody,
    /// Budgets and default answers; what is not named is what the host's configuration says.
    #[serde(default)]
    limits: Limits,
    /// Further folders: absolute, within the roots.
    #[serde(default)]
    additional_directories: Vec<String>,
    /// As ACP names them.
    #[serde(default)]
    mcp_servers: Vec<Value>,
    /// For the agent, beside its own.
    #[serde(default)]
    instructions: Option<String>,
    /// CODEX_HOME and its like: absolute.
    #[serde(default)]
    account_home: Option<String>,
    /// Variables for the agent. Not supported yet.
    #[serde(default)]
    env: Option<BTreeMap<String, String>>,
    /// A provider's conversation to begin with, that no session has.
    #[serde(default)]
    adopt: Option<AdoptBody>,
    /// The session's id, unique for ever; the same id with the same content gives the same session.
    #[serde(default)]
    id: Option<String>,
    /// The first message.
    #[serde(default)]
    prompt: Option<Content>,
}

pub(crate) async fn create(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let body: NewSessionBody = call.json()?;
    if body.env.is_some_and(|env| !env.is_empty()) {
        return Err(unsupported("env"));
    }
    // What goes beyond an agent's defaults is the user's to give: an agent could give another one what it has not.
    let options: SessionOptions = body.options.into();
    if options != SessionOptions::default()
        || body.limits != Limits::default()
        || body.adopt.is_some()
        || body.account_home.is_some()
        || !body.mcp_servers.is_empty()
        || !body.additional_directories.is_empty()
    {
        origin::refuse_agents(&call).await?;
    }
    let source = match body.adopt {
        Some(AdoptBody { thread }) => Some(ThreadSource::Adopt { thread: ThreadId::parse(&thread)? }),
        None => None,
    };
    check_name(body.name.as_deref())?;
    let id = body.id.as_deref().map(SessionId::parse).transpose()?;
    // With an id of the caller's the first message's id follows from it, so that a late retry is the same message.
    let submission = match &id {
        Some(id) => SubmissionId::parse(&format!("{id}.m1"))?,
        None => SubmissionId(Host::fresh_id("msg")),
    };
    let request = NewSessionRequest {
        id,
        agent: AgentName::parse(&body.agent)
            .map_err(|error| Problem::new(Code::InvalidId, format!("agent: {error}")))?,
        cwd: body.cwd,
        name: body.name,
        options,
        limits: body.limits,
        additional_directories: body.additional_directories,
        mcp_servers: body.mcp_servers,
        instructions: body.instructions,
        account_home: body.account_home,
        source,
        prompt: body.prompt.map(|content| (submission, content.into_blocks())),
    };
    let make = MakeBody::Session { updated_at: call.app.host.now() };
    let operation = mutation::operation(&call, 201, &make)?;
    let host = call.app.host.clone();
    let (id, answered) =
        mutation::apart(&call.app, async move { host.create(request, operation).await }).await??;
    mutation::answer(&call, id.as_str(), answered, 201, &make).await
}

fn unsupported(what: &str) -> Problem {
    Problem::new(Code::Unsupported, format!("`{what}` is not supported by this version"))
        .with("capability", what)
}

fn check_name(name: Option<&str>) -> Result<(), Problem> {
    match name {
        Some(name) if name.len() > MAX_NAME_BYTES => Err(Problem::new(
            Code::InvalidBody,
            format!("name: at most {MAX_NAME_BYTES} bytes, this one has {}", name.len()),
        )),
        _ => Ok(()),
    }
}

/// Which sessions, and from where.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// Only those with this status.
    #[serde(default)]
    status: Option<String>,
    /// Only those of this agent.
    #[serde(default)]
    agent: Option<String>,
    /// Only archived ones, or only others; absent: both.
    #[serde(default)]
    archived: Option<bool>,
    /// The last session of the page before.
    #[serde(default)]
    after: Option<String>,
    /// Sessions per page, 1 to 500; 50 if absent.
    #[serde(default)]
    limit: Option<usize>,
}

/// The words that `status` takes.
const STATUSES: [&str; 6] = ["idle", "running", "requires_action", "starting", "recovering", "closed"];

pub(crate) async fn list(call: Call) -> Answer {
    let query: ListQuery = call.query()?;
    let limit = page_size(query.limit, LIST_DEFAULT, LIST_MOST)?;
    if let Some(status) = &query.status
        && !STATUSES.contains(&status.as_str())
    {
        return Err(Problem::new(
            Code::InvalidQuery,
            format!("status is one of {}; got {status:?}", STATUSES.join(", ")),
        ));
    }
    let host = &call.app.host;
    let after = match query.after {
        Some(id) => {
            let wanted = id.clone();
            // Also a session deleted meanwhile marks its place.
            let row = host.read(move |store| store.session_by_id(&wanted)).await?;
            let row = row.ok_or_else(|| {
                Problem::new(Code::InvalidCursor, format!("after: there is no session {id:?}"))
            })?;
            Some(row.key)
        }
        None => None,
    };
    let filter = SessionFilter {
        status: query.status,
        agent: query.agent,
        archived: query.archived,
        ..SessionFilter::default()
    };
    let page = host.sessions(filter, after, limit).await?;
    let full = page.rows.len() + page.bad.len() >= limit;
    let sessions: Vec<SessionView> = page.rows.into_iter().map(SessionView::of_row).collect();
    let after = sessions.last().filter(|_| full).map(|last| last.id.clone());
    json(200, &SessionList { sessions, after, unreadable: page.bad.into_iter().map(|bad| bad.key).collect() })
}

pub(crate) async fn get(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let (row, session) = call.app.host.state(call.session()?).await?;
    let owed = call.app.host.owed(&row, &session).await?;
    json(200, &SessionView { owed: Some(owed), ..SessionView::of_state(row, &session) })
}

/// What is to change; absent is unchanged.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SessionPatch {
    /// The new name; null takes it away.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    name: Option<Option<String>>,
    /// Changed options; absent ones stay.
    #[serde(default)]
    options: Option<OptionsPatch>,
    /// Put away, or taken out again.
    #[serde(default)]
    archived: Option<bool>,
    /// Budgets and default answers, whole: what is not named has no bound.
    #[serde(default)]
    limits: Option<Limits>,
}

pub(crate) async fn update(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let patch: SessionPatch = call.json()?;
    check_name(patch.name.as_ref().and_then(|name| name.as_deref()))?;
    let _alone = call.app.changing.lock().await;
    let options = match patch.options {
        Some(changes) => {
            let (_, session) = call.app.host.state(call.session()?).await?;
            Some(changes.apply(&session.options))
        }
        None => None,
    };
    let make = MakeBody::Session { updated_at: call.app.host.now() };
    let command =
        Command::Update { name: patch.name, options, archived: patch.archived, limits: patch.limits };
    mutation::command(&call, command, 200, &make).await
}

/// A deleted session: only its id stays taken.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Deleted {
    /// Its id.
    id: String,
    /// Always true.
    deleted: bool,
}

pub(crate) async fn delete(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let id = call.session()?.to_owned();
    let make = MakeBody::reply(move |_| Deleted { id: id.clone(), deleted: true });
    let session = call.session()?;
    let answered = mutation::carry_out(&call, Command::Delete, 200, &make).await?;
    if answered.response.is_some() {
        return mutation::answer(&call, session, answered, 200, &make).await;
    }
    // Nothing is left to load.
    json(200, &Deleted { id: session.to_owned(), deleted: true })
}
