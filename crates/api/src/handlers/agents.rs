//! The registered agents. Reading starts none.

use super::{NoQuery, page_size};
use crate::call::{Answer, Call, json};
use crate::problem::{Code, Problem};
use crate::views::{AgentList, AgentView, ThreadList};
use mainstay_core::AgentName;
use mainstay_host::catalog;
use mainstay_host::saved_threads::{Place, ThreadQuery};
use schemars::JsonSchema;
use serde::Deserialize;

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

/// Which of the saved conversations.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ThreadsQuery {
    /// Only those that work in this folder.
    #[serde(default)]
    cwd: Option<String>,
    /// `after` of the page before.
    #[serde(default)]
    after: Option<String>,
    /// Conversations per page, 1 to 200; 50 if absent. A page with `after` may have fewer.
    #[serde(default)]
    limit: Option<usize>,
}

/// Conversations per page.
const THREADS_DEFAULT: usize = 50;
/// The most of them: the head of each one's file is read.
const THREADS_MOST: usize = 200;

pub(crate) async fn threads(call: Call) -> Answer {
    let query: ThreadsQuery = call.query()?;
    let name = AgentName::parse(call.param("agent")?)?;
    let limit = page_size(query.limit, THREADS_DEFAULT, THREADS_MOST)?;
    let place = |after: String| {
        Place::parse(&after).ok_or_else(|| {
            Problem::new(Code::InvalidCursor, format!("after: {after:?} is no place in this list"))
        })
    };
    let query = ThreadQuery { cwd: query.cwd, after: query.after.map(place).transpose()?, limit };
    let page = call.app.host.saved_threads(name, query).await?;
    json(200, &ThreadList::from(page))
}

/// Looking for programs reads folders, which may be slow ones.
async fn blocking<T: Send + 'static>(look: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
    tokio::task::spawn_blocking(look)
        .await
        .map_err(|_| Problem::new(Code::ShuttingDown, "the host is shutting down"))
}
