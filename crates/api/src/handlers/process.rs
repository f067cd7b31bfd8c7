//! The agent's process: interrupt, start, stop, recover.

use super::NoQuery;
use super::messages::done;
use crate::call::{Answer, Call};
use crate::mutation::{self, MakeBody};
use crate::problem::{Code, Problem};
use mainstay_core::process::CloseOrder;
use mainstay_core::{Command, Reply, SubmissionId, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What to interrupt.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InterruptBody {
    /// How far the stop reaches.
    #[serde(default)]
    scope: Scope,
    /// The turn, request or task that is meant. Only with those scopes.
    #[serde(default)]
    target: Option<String>,
}

/// How far a stop reaches. This version knows the whole session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    #[default]
    Session,
    Turn,
    Request,
    Task,
    Tasks,
}

/// What was and was not stopped.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct InterruptView {
    /// The turn that is being interrupted.
    turn: Option<TurnId>,
    /// Messages that were withdrawn.
    withdrawn: Vec<SubmissionId>,
    /// A message is on its way, and its turn is stopped as soon as it is known.
    pending: bool,
    /// Messages wait in a queue that is paused now.
    queue_paused: bool,
    /// Whether the store has it.
    recorded: bool,
    /// `epoch:seq` behind the stop.
    cursor: String,
}

pub(crate) async fn interrupt(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let body: InterruptBody = call.json()?;
    if body.scope != Scope::Session || body.target.is_some() {
        return Err(Problem::new(
            Code::Unsupported,
            "this version interrupts whole sessions: scope `session`, no target",
        )
        .with("capability", "interrupt_scope"));
    }
    let make = MakeBody::reply(|facts| {
        let (recorded, cursor) = (facts.recorded, facts.cursor.to_string());
        match facts.reply {
            Reply::Interrupted { turn, withdrawn, pending, queue_paused, targets: _ } => InterruptView {
                turn: turn.clone(),
                withdrawn: withdrawn.clone(),
                pending: *pending,
                queue_paused: *queue_paused,
                recorded,
                cursor,
            },
            _ => InterruptView {
                turn: None,
                withdrawn: Vec::new(),
                pending: false,
                queue_paused: false,
                recorded,
                cursor,
            },
        }
    });
    mutation::command(&call, Command::Interrupt(mainstay_core::session::StopScope::Session), 200, &make).await
}

pub(crate) async fn start(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    call.json::<NoBody>()?;
    mutation::command(&call, Command::Start, 202, &done()).await
}

/// Nothing.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoBody {}

/// How to end the agent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopBody {
    /// At once, without the gentle steps.
    #[serde(default)]
    kill: bool,
}

pub(crate) async fn stop(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let body: StopBody = call.json()?;
    let order = if body.kill { CloseOrder::Kill } else { CloseOrder::User };
    mutation::command(&call, Command::Stop { order }, 202, &done()).await
}

/// The way out of `recovering`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecoverBody {
    /// What to do.
    action: Recovery,
}

/// Ways out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Recovery {
    /// Look again. Not supported yet.
    Probe,
    /// Give the process or the failure up.
    Abandon,
    /// Begin a new conversation in place of one that cannot be taken up.
    StartFresh,
}

pub(crate) async fn recover(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let body: RecoverBody = call.json()?;
    let command = match body.action {
        Recovery::Probe => {
            return Err(Problem::new(
                Code::Unsupported,
                "an unverifiable process is looked at again every few seconds by itself; use abandon or start_fresh",
            )
            .with("capability", "recover"));
        }
        Recovery::Abandon => Command::Abandon,
        Recovery::StartFresh => Command::StartFresh,
    };
    mutation::command(&call, command, 200, &done()).await
}
