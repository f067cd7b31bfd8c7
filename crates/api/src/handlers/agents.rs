//! The registered agents. Reading starts none.

use super::process::NoBody;
use super::{NoQuery, page_size};
use crate::call::{Answer, Call, json};
use crate::problem::{Code, Problem};
use crate::views::{AgentList, AgentView};
use crate::{mutation, origin};
use mainstay_agents::Model;
use mainstay_core::AgentName;
use mainstay_host::{KeptThread, KeptThreads, KnownCatalogue, Seen, catalog};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Conversations per answer, unless asked otherwise.
const THREADS_DEFAULT: usize = 50;
/// Conversations per answer at most: each is a file of which the beginning is read.
const THREADS_MOST: usize = 500;

pub(crate) async fn list(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let host = call.app.host.clone();
    let agents = blocking(move || catalog::agents(host.config())).await?;
    json(200, &AgentList { agents: agents.into_iter().map(AgentView::from).collect() })
}

pub(crate) async fn get(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let name = AgentName::parse(call.param("agent")?)?;
    let host = call.app.host.clone();
    let agent = blocking(move || catalog::agent(host.config(), &name)).await??;
    json(200, &AgentView::from(agent))
}

/// Looking for programs reads folders, which may be slow ones.
async fn blocking<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(look)
        .await
        .map_err(|_| Problem::new(Code::ShuttingDown, "the host is shutting down"))
}

/// Where what is known comes from.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Source {
    /// The agent said it, when it ran.
    Agent,
    /// It never said it to this host; nothing is known.
    Unknown,
}

/// A model.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelView {
    /// What the option `model` names.
    id: String,
    /// For people.
    name: String,
    /// More for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// The agent does not show it in its own lists.
    hidden: bool,
    /// The one that is taken where none is named.
    default: bool,
    /// What the option `effort` takes; empty: the agent does not say.
    efforts: Vec<String>,
    /// The effort that is taken where none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_effort: Option<String>,
    /// What the option `tier` takes; empty: the agent does not say.
    tiers: Vec<String>,
}

impl From<Model> for ModelView {
    fn from(model: Model) -> Self {
        let Model { id, name, description, hidden, default, efforts, default_effort, tiers } = model;
        Self { id, name, description, hidden, default, efforts, default_effort, tiers }
    }
}

/// Models as last seen.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelsView {
    /// When they were listed, Unix ms; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_of: Option<i64>,
    /// By whom.
    source: Source,
    /// The agent's version when it was asked last.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Absent: not known, which is not the same as none.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<ModelView>>,
}

impl ModelsView {
    fn of(known: KnownCatalogue, hidden: bool) -> Self {
        let (as_of, source) = told(known.models.as_ref());
        let models = known.models.map(|seen| {
            seen.value.into_iter().filter(|model| hidden || !model.hidden).map(ModelView::from).collect()
        });
        Self { as_of, source, version: known.version, models }
    }
}

/// When something was seen, and by whom it was told.
fn told<T>(seen: Option<&Seen<T>>) -> (Option<i64>, Source) {
    (seen.map(|seen| seen.as_of), if seen.is_some() { Source::Agent } else { Source::Unknown })
}

/// A part that is passed on as the agent has it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PartView {
    /// When it was told, Unix ms; absent: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    as_of: Option<i64>,
    /// By whom.
    source: Source,
    /// As the agent has it; null: not known, or nobody.
    value: Value,
}

impl From<Option<Seen<Value>>> for PartView {
    fn from(seen: Option<Seen<Value>>) -> Self {
        let (as_of, source) = told(seen.as_ref());
        Self { as_of, source, value: seen.map(|seen| seen.value).unwrap_or_default() }
    }
}

/// The account.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AccountView {
    /// Who is signed in.
    account: PartView,
    /// What is left of the limits.
    rate_limits: PartView,
}

/// What the agent can use.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ToolsView {
    /// Skills.
    skills: PartView,
    /// MCP servers with their state.
    mcp_servers: PartView,
}

/// Which models.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ModelsQuery {
    /// Those too that the agent hides from its own lists.
    #[serde(default)]
    hidden: bool,
}

async fn known(call: &Call) -> Result<KnownCatalogue, Problem> {
    let name = AgentName::parse(call.param("agent")?)?;
    Ok(call.app.host.catalogue(&name).await?)
}

pub(crate) async fn models(call: Call) -> Answer {
    let ModelsQuery { hidden } = call.query()?;
    json(200, &ModelsView::of(known(&call).await?, hidden))
}

pub(crate) async fn refresh(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    call.json::<NoBody>()?;
    let name = AgentName::parse(call.param("agent")?)?;
    let host = call.app.host.clone();
    let known = mutation::apart(&call.app, async move { host.refresh_catalogue(&name).await }).await??;
    json(200, &ModelsView::of(known, true))
}

pub(crate) async fn account(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let known = known(&call).await?;
    json(200, &AccountView { account: known.account.into(), rate_limits: known.rate_limits.into() })
}

pub(crate) async fn tools(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let known = known(&call).await?;
    json(200, &ToolsView { skills: known.skills.into(), mcp_servers: known.mcp_servers.into() })
}

/// How many.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ThreadsQuery {
    /// 1 to 500; 50 if absent.
    #[serde(default)]
    limit: Option<usize>,
}

/// A conversation that the agent keeps.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ThreadView {
    /// The agent's id of it.
    thread: String,
    /// Its folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    /// As it was named last.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// The beginning of its first message.
    #[serde(skip_serializing_if = "Option::is_none")]
    preview: Option<String>,
    /// When it was begun, as the agent wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<String>,
    /// When its record was written last, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    updated_at: Option<i64>,
    /// What made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    originator: Option<String>,
    /// The agent has put it away.
    archived: bool,
    /// The session that has it: no other can adopt it.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    /// The pid of a living process of somebody else that has it open: end that before it is adopted.
    #[serde(skip_serializing_if = "Option::is_none")]
    open_in: Option<i32>,
}

/// Conversations, the newest first.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ThreadsView {
    /// They.
    threads: Vec<ThreadView>,
    /// There are more, or some could not be read.
    incomplete: bool,
}

pub(crate) async fn threads(call: Call) -> Answer {
    let query: ThreadsQuery = call.query()?;
    // What was said elsewhere is the user's.
    origin::refuse_agents(&call).await?;
    let limit = page_size(query.limit, THREADS_DEFAULT, THREADS_MOST)?;
    let name = AgentName::parse(call.param("agent")?)?;
    let KeptThreads { threads, incomplete } = call.app.host.threads(&name, limit).await?;
    let view = |kept: KeptThread| ThreadView {
        thread: kept.thread.0,
        cwd: kept.cwd,
        name: kept.name,
        preview: kept.preview,
        started: kept.started,
        updated_at: kept.updated_at,
        originator: kept.originator,
        archived: kept.archived,
        session: kept.session,
        open_in: kept.open_in,
    };
    json(200, &ThreadsView { threads: threads.into_iter().map(view).collect(), incomplete })
}
