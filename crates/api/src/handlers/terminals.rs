//! The agent's own terminal beside a session.

use super::NoQuery;
use crate::call::{Answer, Call, json};
use crate::{origin, stream};
use mainstay_host::TerminalPlan;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

/// How the agent's own terminal is started. As a stream this is the event `terminal`, and the stream ends after the event
/// `gone` when the process that the terminal talks to is not the session's any more.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TerminalView {
    /// Program and arguments.
    argv: Vec<String>,
    /// The whole environment, but for the variables that describe the terminal (`TERM` and its like).
    env: BTreeMap<String, String>,
    /// The folder to start it in.
    cwd: String,
    /// The conversation that it shows.
    thread: String,
    /// The process that it talks to.
    process: String,
}

impl From<TerminalPlan> for TerminalView {
    fn from(plan: TerminalPlan) -> Self {
        let TerminalPlan { argv, env, cwd, thread, process } = plan;
        Self { argv, env: env.into_iter().collect(), cwd, thread: thread.0, process }
    }
}

pub(crate) async fn terminal(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    // It answers the agent's questions.
    origin::refuse_agents(&call).await?;
    let session = call.session()?;
    let host = call.app.host.clone();
    if !call.wants_stream() {
        return json(200, &TerminalView::from(host.terminal(session).await?));
    }
    let (plan, attached) = host.attach_terminal(session).await?;
    let process = plan.process.clone();
    let first = serde_json::to_value(TerminalView::from(plan)).unwrap_or_default();
    let stop = call.app.stop.clone();
    Ok(stream::terminal(host, stop, session.to_owned(), process, first, attached))
}
