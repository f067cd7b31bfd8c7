//! The registered agents. Reading starts none.

use super::NoQuery;
use crate::call::{Answer, Call, json};
use crate::problem::{Code, Problem};
use crate::views::{AgentList, AgentView};
use mainstay_core::AgentName;
use mainstay_host::catalog;

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
