//! Messages and the queue.

use super::NoQuery;
use crate::call::{Answer, Call, json};
use crate::mutation::{self, MakeBody};
use crate::origin;
use crate::problem::{Code, Problem};
use crate::views::{Changed, Content, Done, QueueView, QueuedView, Submitted, present};
use mainstay_core::content::{ContentBlock, Delivery, DeliveryTaken};
use mainstay_core::session::Place;
use mainstay_core::{Command, Reply, SubmissionId};
use mainstay_host::Host;
use schemars::JsonSchema;
use serde::Deserialize;

/// A message to the agent.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageBody {
    /// What it says.
    content: Content,
    /// The message's id, unique for ever; the same id with the same content is the same message.
    #[serde(default)]
    id: Option<String>,
    /// How it is to reach the agent.
    #[serde(default)]
    delivery: Delivery,
    /// With `delivery: steer`: what to do where no turn runs. Without it that is refused (`no_turn`). A turn that runs and
    /// cannot be steered is waited for in the queue.
    #[serde(default)]
    fallback: Option<Fallback>,
    /// The message in doubt that this one sends again.
    #[serde(default)]
    resends: Option<String>,
}

/// What to do with a message that finds no turn to steer.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fallback {
    /// Behind what is queued, also where the queue is paused.
    Queue,
    /// It starts a turn, also where the queue is paused.
    Start,
}

impl From<Fallback> for Delivery {
    fn from(fallback: Fallback) -> Self {
        match fallback {
            Fallback::Queue => Self::Queue,
            Fallback::Start => Self::Auto,
        }
    }
}

pub(crate) async fn send(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let body: MessageBody = call.json()?;
    let submission = match &body.id {
        Some(id) => SubmissionId::parse(id)?,
        None => SubmissionId(Host::fresh_id("msg")),
    };
    let resends = body.resends.as_deref().map(SubmissionId::parse).transpose()?;
    if body.fallback.is_some() && body.delivery != Delivery::Steer {
        return Err(Problem::new(Code::InvalidBody, "`fallback` goes with `delivery: \"steer\"` only"));
    }
    let message = Message { submission, content: body.content.into_blocks(), resends };
    match (message.give(&call, body.delivery).await, body.fallback) {
        // A retry of a message that fell back meets its own id under the other delivery.
        (Err(problem), Some(fallback)) if matches!(problem.code, Code::NoTurn | Code::IdConflict) => {
            message.give(&call, fallback.into()).await
        }
        (given, _) => given,
    }
}

struct Message {
    submission: SubmissionId,
    content: Vec<ContentBlock>,
    resends: Option<SubmissionId>,
}

impl Message {
    async fn give(&self, call: &Call, delivery: Delivery) -> Answer {
        let command = Command::Send {
            submission: self.submission.clone(),
            content: self.content.clone(),
            delivery,
            resends: self.resends.clone(),
        };
        mutation::command(call, command, 202, &submitted(self.submission.clone())).await
    }
}

fn submitted(submission: SubmissionId) -> MakeBody {
    MakeBody::reply(move |facts| {
        let taken_as = match facts.reply {
            Reply::Accepted { taken_as, .. } => *taken_as,
            // A replay by id does not say again what was done.
            _ => DeliveryTaken::Queue,
        };
        Submitted { submission: submission.clone(), taken_as, cursor: facts.cursor.to_string() }
    })
}

pub(crate) async fn queue(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let (_, session) = call.app.host.state(call.session()?).await?;
    json(
        200,
        &QueueView {
            queue: session.submissions.iter().map(QueuedView::from).collect(),
            paused: session.queue_paused,
        },
    )
}

pub(crate) async fn queued(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let submission = SubmissionId::parse(call.param("submission")?)?;
    let (_, session) = call.app.host.state(call.session()?).await?;
    match session.submissions.iter().find(|open| open.id == submission) {
        Some(open) => json(200, &QueuedView::from(open)),
        None => Err(Problem::new(
            Code::SubmissionUnknown,
            format!("session {} has no open message {submission}", session.id),
        )),
    }
}

/// A change of a message that the agent does not have. Absent fields are left as they are.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct QueuedPatch {
    /// The revision that was seen; another one is refused (`revision_mismatch`, with the current one).
    revision: u64,
    /// What it is to say.
    #[serde(default)]
    content: Option<Content>,
    /// The open message before which it is to stand; null: behind all others.
    #[serde(default, deserialize_with = "present")]
    #[schemars(with = "Option<String>")]
    before: Option<Option<String>>,
}

pub(crate) async fn edit(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let submission = SubmissionId::parse(call.param("submission")?)?;
    let body: QueuedPatch = call.json()?;
    let place = match body.before {
        None => None,
        Some(None) => Some(Place::Last),
        Some(Some(before)) => Some(Place::Before(SubmissionId::parse(&before)?)),
    };
    let content = body.content.map(Content::into_blocks);
    if content.is_none() && place.is_none() {
        return Err(Problem::new(Code::InvalidBody, "nothing to change: give `content`, `before` or both"));
    }
    let command = Command::Edit { submission: submission.clone(), revision: body.revision, content, place };
    mutation::command(&call, command, 200, &changed(submission)).await
}

pub(crate) async fn send_now(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let submission = SubmissionId::parse(call.param("submission")?)?;
    let command = Command::SendNow { submission: submission.clone() };
    mutation::command(&call, command, 200, &changed(submission)).await
}

fn changed(submission: SubmissionId) -> MakeBody {
    MakeBody::reply(move |facts| {
        let revision = match facts.reply {
            Reply::Changed { revision, .. } => *revision,
            _ => 0,
        };
        Changed { submission: submission.clone(), revision, cursor: facts.cursor.to_string() }
    })
}

pub(crate) async fn withdraw(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let submission = SubmissionId::parse(call.param("submission")?)?;
    mutation::command(&call, Command::Withdraw { submission }, 200, &done()).await
}

pub(crate) async fn resume_queue(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    mutation::command(&call, Command::ResumeQueue, 200, &done()).await
}

pub(crate) fn done() -> MakeBody {
    MakeBody::reply(|facts| Done { cursor: facts.cursor.to_string(), recorded: facts.recorded })
}
