//! The host itself.

use super::NoQuery;
use crate::call::{Answer, Call, json};
use crate::origin;
use crate::problem::{Code, Problem};
use mainstay_host::ShutdownMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json as value;

/// How the host is to end.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HostStopBody {
    /// Absent: idle agents are closed; busy ones make it a 409 `busy`.
    #[serde(default)]
    mode: Option<Mode>,
}

/// What becomes of the agents.
#[derive(Debug, Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Mode {
    /// They work on; the next host takes them over.
    Detach,
    /// Idle ones are closed, busy ones work on.
    CloseIdle,
    /// All are ended.
    Kill,
}

impl From<Mode> for ShutdownMode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Detach => Self::Detach,
            Mode::CloseIdle => Self::CloseIdle,
            Mode::Kill => Self::Kill,
        }
    }
}

/// The host ends.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Stopping {
    /// How.
    mode: Mode,
}

pub(crate) async fn stop(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let body: HostStopBody = call.json()?;
    let mode = match body.mode {
        Some(mode) => mode,
        None => {
            let busy = call.app.host.busy_sessions().await?;
            if !busy.is_empty() {
                let busy: Vec<_> = busy
                    .into_iter()
                    .map(|row| value!({ "id": row.id, "name": row.name, "agent": row.agent, "status": row.status }))
                    .collect();
                return Err(Problem::new(
                    Code::Busy,
                    "sessions are busy; say whether their agents work on (`mode: detach`) or are ended (`mode: kill`)",
                )
                .with("busy", busy));
            }
            Mode::CloseIdle
        }
    };
    call.app.stop.ask(mode.into());
    json(202, &Stopping { mode })
}
