//! The agent's process: interrupt, start, stop, recover.

use super::NoQuery;
use super::messages::done;
use crate::call::{Answer, Call};
use crate::mutation::{self, MakeBody};
use crate::origin;
use crate::problem::{Code, Problem};
use mainstay_core::process::CloseOrder;
use mainstay_core::session::{StopScope, StopTarget};
use mainstay_core::{Command, Reply, RequestId, SubmissionId, TurnId};
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

/// How far a stop reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// All that runs: goal, turns, requests, sub-agents, background work. What waits is paused.
    #[default]
    Session,
    /// The turn that runs, or the one that `target` names. What waits goes on after it.
    Turn,
    /// The request that `target` names: "no, and stop".
    Request,
    /// The task or sub-agent's thread that `target` names.
    Task,
    /// All tasks and sub-agents.
    Tasks,
}

impl InterruptBody {
    fn into_scope(self) -> Result<StopScope, Problem> {
        let unfit = |detail| Err(Problem::new(Code::InvalidBody, detail));
        match (self.scope, self.target) {
            (Scope::Session, None) => Ok(StopScope::Session),
            (Scope::Tasks, None) => Ok(StopScope::Tasks),
            (Scope::Turn, turn) => Ok(StopScope::Turn(turn.map(TurnId))),
            (Scope::Request, Some(request)) => Ok(StopScope::Request(RequestId(request))),
            (Scope::Task, Some(task)) => Ok(StopScope::Task(task)),
            (Scope::Session | Scope::Tasks, Some(_)) => {
                unfit("`target` goes with the scopes turn, request and task only")
            }
            (Scope::Request | Scope::Task, None) => unfit("the scopes request and task need a `target`"),
        }
    }
}

/// What was and was not stopped.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct InterruptView {
    /// The turn that is being interrupted.
    turn: Option<TurnId>,
    /// Messages that were withdrawn.
    withdrawn: Vec<SubmissionId>,
    /// A message is on its way, and its turn is stopped as soon as it is known.
    pending: bool,
    /// Messages wait in a queue that is paused now.
    queue_paused: bool,
    /// What the stop found, and what was done with each. `asked` is confirmed by the end event of the thing itself.
    targets: Vec<StopTarget>,
    /// Whether the store has it.
    recorded: bool,
    /// `epoch:seq` behind the stop.
    cursor: String,
}

pub(crate) async fn interrupt(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let body: InterruptBody = call.json()?;
    let scope = body.into_scope()?;
    let make = MakeBody::reply(|facts| {
        let (recorded, cursor) = (facts.recorded, facts.cursor.to_string());
        match facts.reply {
            Reply::Interrupted { turn, withdrawn, pending, queue_paused, targets } => InterruptView {
                turn: turn.clone(),
                withdrawn: withdrawn.clone(),
                pending: *pending,
                queue_paused: *queue_paused,
                targets: targets.clone(),
                recorded,
                cursor,
            },
            _ => InterruptView { recorded, cursor, ..InterruptView::default() },
        }
    });
    mutation::command(&call, Command::Interrupt(scope), 200, &make).await
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
    origin::refuse_agents(&call).await?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(text: &str) -> Result<StopScope, Code> {
        let body: InterruptBody = serde_json::from_str(text).expect("parses");
        body.into_scope().map_err(|problem| problem.code)
    }

    #[test]
    fn a_target_goes_with_the_scopes_that_have_one() {
        assert_eq!(scope("{}"), Ok(StopScope::Session));
        assert_eq!(scope(r#"{"scope":"turn"}"#), Ok(StopScope::Turn(None)));
        assert_eq!(scope(r#"{"scope":"turn","target":"t1"}"#), Ok(StopScope::Turn(Some(TurnId::from("t1")))));
        assert_eq!(scope(r#"{"scope":"task","target":"k1"}"#), Ok(StopScope::Task("k1".to_owned())));
        assert_eq!(scope(r#"{"scope":"task"}"#), Err(Code::InvalidBody));
        assert_eq!(scope(r#"{"scope":"tasks","target":"k1"}"#), Err(Code::InvalidBody));
    }
}
