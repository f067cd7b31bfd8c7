//! What is asked of an agent beside messages and answers, and what works beside its turns.

use super::NoQuery;
use crate::call::{Answer, Call, json};
use crate::mutation::{self, MakeBody};
use crate::origin;
use crate::problem::{Code, Problem};
use crate::views::{ChildList, Content, GoalView, TaskList};
use mainstay_core::session::Phase;
use mainstay_core::work::{Control, ForkPoint, ThreadSource};
use mainstay_core::{Command, ControlId, Reply, SessionId, SubmissionId, TurnId};
use mainstay_host::{Host, NewSessionRequest};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Asked of the agent, or waiting for it: `control.ended` says what became of it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Asked {
    /// Its id in the journal.
    control: Option<ControlId>,
    /// `epoch:seq` behind its events.
    cursor: String,
}

fn asked() -> MakeBody {
    MakeBody::reply(|facts| Asked {
        control: match facts.reply {
            Reply::Asked { control } => Some(control.clone()),
            _ => None,
        },
        cursor: facts.cursor.to_string(),
    })
}

async fn ask(call: &Call, control: Control) -> Answer {
    mutation::command(call, Command::Control(control), 202, &asked()).await
}

pub(crate) async fn tasks(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let (_, session) = call.app.host.state(call.session()?).await?;
    json(200, &TaskList::of(&session))
}

pub(crate) async fn children(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let (_, session) = call.app.host.state(call.session()?).await?;
    json(200, &ChildList::of(&session))
}

pub(crate) async fn goal(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let (_, session) = call.app.host.state(call.session()?).await?;
    json(200, &GoalView { goal: session.goal })
}

/// A new goal, or what is to become of the one there is: exactly one of `objective` and `state`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GoalBody {
    /// What to work towards, in words.
    #[serde(default)]
    objective: Option<String>,
    /// With `objective`: tokens that it may use.
    #[serde(default)]
    token_budget: Option<u64>,
    /// `paused` or `active`.
    #[serde(default)]
    state: Option<GoalWish>,
}

/// What is to become of the goal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum GoalWish {
    /// Go on with it.
    Active,
    /// Start no more turns for it.
    Paused,
}

impl GoalBody {
    fn into_control(self) -> Result<Control, Problem> {
        match (self.objective, self.state) {
            (Some(objective), None) if !objective.trim().is_empty() => {
                Ok(Control::SetGoal { objective, token_budget: self.token_budget })
            }
            (None, Some(GoalWish::Active)) if self.token_budget.is_none() => Ok(Control::ResumeGoal),
            (None, Some(GoalWish::Paused)) if self.token_budget.is_none() => Ok(Control::PauseGoal),
            _ => Err(Problem::new(
                Code::InvalidBody,
                "give an `objective` (with `token_budget`, if it has one) or a `state`",
            )),
        }
    }
}

pub(crate) async fn set_goal(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let body: GoalBody = call.json()?;
    ask(&call, body.into_control()?).await
}

pub(crate) async fn clear_goal(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    ask(&call, Control::ClearGoal).await
}

/// What to keep in mind.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InstructionsBody {
    /// For agents that take it.
    #[serde(default)]
    instructions: Option<String>,
}

pub(crate) async fn compact(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let InstructionsBody { instructions } = call.json()?;
    ask(&call, Control::Compact { instructions }).await
}

pub(crate) async fn review(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let InstructionsBody { instructions } = call.json()?;
    ask(&call, Control::Review { instructions }).await
}

pub(crate) async fn clear(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    call.json::<super::process::NoBody>()?;
    ask(&call, Control::Clear).await
}

pub(crate) async fn archive(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    call.json::<super::process::NoBody>()?;
    ask(&call, Control::ArchiveThread).await
}

/// How far back.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RewindBody {
    /// The first turn that goes, with all later ones.
    before: String,
    /// Whether the files that they changed are put back too.
    #[serde(default)]
    files: bool,
}

pub(crate) async fn rewind(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let RewindBody { before, files } = call.json()?;
    let before = TurnId::parse(&before)?;
    mutation::command(&call, Command::Rewind { before, files }, 202, &asked()).await
}

/// A branch: a new session that begins with this one's history.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkBody {
    /// The last turn that the branch has; absent: all of them.
    #[serde(default)]
    last_turn: Option<String>,
    /// The new session's id, unique for ever.
    #[serde(default)]
    id: Option<String>,
    /// The new session's name.
    #[serde(default)]
    name: Option<String>,
    /// Its first message.
    #[serde(default)]
    prompt: Option<Content>,
}

pub(crate) async fn fork(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let body: ForkBody = call.json()?;
    let host = call.app.host.clone();
    let (row, session) = host.state(call.session()?).await?;
    if !host.capabilities(&session.launch.agent)?.fork {
        return Err(Problem::new(Code::Unsupported, "this agent cannot branch a conversation off")
            .with("capability", "fork"));
    }
    let Some(thread) = session.thread().cloned() else {
        return Err(Problem::new(
            Code::SubmissionState,
            "the session has no conversation yet that could be branched",
        ));
    };
    let last_turn = match &body.last_turn {
        Some(turn) => Some(session.past_turn(&TurnId::parse(turn)?)?),
        None if session.phase == Phase::Held && !session.turns.is_empty() => {
            return Err(Problem::new(
                Code::SubmissionState,
                "a turn runs, so the end of the history is not there yet; name the last turn of the branch",
            ));
        }
        // What was rewound stands in the agent's file still.
        None if session.resume_at.is_some() => match session.past_turns.back() {
            Some(past) => Some(past.point.clone()),
            None => {
                return Err(Problem::new(
                    Code::SubmissionState,
                    "the session was rewound and has no turn left that it remembers; send it a message first",
                ));
            }
        },
        None => None,
    };
    let id = body.id.as_deref().map(SessionId::parse).transpose()?;
    let submission = match &id {
        Some(id) => SubmissionId::parse(&format!("{id}.m1"))?,
        None => SubmissionId(Host::fresh_id("msg")),
    };
    // The record has the credentials of its servers, which the state has not.
    let launch = mainstay_host::catalog::pinned(&row)?;
    let request = NewSessionRequest {
        id,
        agent: launch.agent,
        cwd: launch.cwd,
        name: body.name.or(session.name),
        options: session.options,
        // A branch is bound as what it branches off from.
        limits: session.limits,
        additional_directories: launch.additional_directories,
        mcp_servers: launch.mcp_servers,
        instructions: launch.instructions,
        account_home: launch.account_home,
        source: Some(ThreadSource::Fork(ForkPoint { session: session.id, thread, last_turn })),
        prompt: body.prompt.map(|content| (submission, content.into_blocks())),
    };
    let make = MakeBody::Session { updated_at: host.now() };
    let operation = mutation::operation(&call, 201, &make)?;
    let (id, answered) =
        mutation::apart(&call.app, async move { host.create(request, operation).await }).await??;
    mutation::answer(&call, id.as_str(), answered, 201, &make).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(text: &str) -> Result<Control, Code> {
        let body: GoalBody = serde_json::from_str(text).expect("parses");
        body.into_control().map_err(|problem| problem.code)
    }

    #[test]
    fn a_goal_is_set_or_changed_and_not_both() {
        let set = Control::SetGoal { objective: "x".to_owned(), token_budget: Some(5) };
        assert_eq!(control(r#"{"objective":"x","token_budget":5}"#), Ok(set));
        assert_eq!(control(r#"{"state":"paused"}"#), Ok(Control::PauseGoal));
        assert_eq!(control(r#"{"state":"active"}"#), Ok(Control::ResumeGoal));
        for wrong in [r#"{}"#, r#"{"objective":" "}"#, r#"{"objective":"x","state":"paused"}"#] {
            assert_eq!(control(wrong), Err(Code::InvalidBody), "{wrong}");
        }
    }
}
