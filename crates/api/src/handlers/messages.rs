//! Messages and the queue.

use super::NoQuery;
use crate::call::{Answer, Call, json};
use crate::mutation::{self, MakeBody};
use crate::problem::{Code, Problem};
use crate::views::{Content, Done, QueueView, QueuedView, Submitted};
use mainstay_core::content::{ContentBlock, Delivery, DeliveryTaken};
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
    /// With `delivery: steer`: what to do where no turn can be steered.
    #[serde(default)]
    fallback: Option<Fallback>,
    /// The message in doubt that this one sends again.
    #[serde(default)]
    resends: Option<String>,
}

/// What to do with a message that cannot steer.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Fallback {
    /// Start when idle, else queue.
    Auto,
    /// After what is running and queued.
    Queue,
    /// Interrupt what is running, then start.
    Interrupt,
}

impl From<Fallback> for Delivery {
    fn from(fallback: Fallback) -> Self {
        match fallback {
            Fallback::Auto => Self::Auto,
            Fallback::Queue => Self::Queue,
            Fallback::Interrupt => Self::Interrupt,
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

pub(crate) async fn withdraw(call: Call) -> Answer {
    call.query::<NoQuery>()?;
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
