//! What agents ask, and the answers.

use super::NoQuery;
use crate::call::{Answer as HttpAnswer, Call, json};
use crate::mutation::{self, MakeBody};
use crate::origin;
use crate::peer::Peer;
use crate::problem::{Code, Problem};
use crate::views::{RequestList, RequestView};
use mainstay_core::content::Answer;
use mainstay_core::question::Answers;
use mainstay_core::session::OpenRequest;
use mainstay_core::{Command, Cursor, Reply, RequestId};
use mainstay_host::HostError;
use mainstay_store::{PageLimit, SessionRow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Bytes of one opening event at the most; the journal gives one event whole, whatever its size.
const OPENING_BYTES: usize = 1;
/// The longest name of an answering client, in bytes; a longer one is cut.
const MAX_CLIENT_NAME: usize = 64;

pub(crate) async fn list(call: Call) -> HttpAnswer {
    call.query::<NoQuery>()?;
    let (row, session) = call.app.host.state(call.session()?).await?;
    let requests = fill(&call, row, &session.requests).await?;
    json(200, &RequestList { requests })
}

/// Puts in what only the opening events say; the state knows where each stands.
async fn fill(call: &Call, row: SessionRow, open: &[OpenRequest]) -> Result<Vec<RequestView>, HostError> {
    let mut requests: Vec<RequestView> = open.iter().map(RequestView::from).collect();
    let places: Vec<Cursor> = open.iter().map(|open| open.opened).collect();
    call.app
        .host
        .read(move |store| {
            for place in places {
                let limit = PageLimit { rows: 1, bytes: OPENING_BYTES };
                let page = store.events(row.key, place.epoch, place.seq - 1, limit)?;
                for event in &page.rows {
                    fill_one(&mut requests, &event.body);
                }
            }
            Ok(requests)
        })
        .await
}

fn fill_one(requests: &mut [RequestView], body: &[u8]) {
    let Ok(mut event) = serde_json::from_slice::<Value>(body) else { return };
    let Some(open) = requests
        .iter_mut()
        .find(|open| open.title.is_none() && event["request"].as_str() == Some(open.id.as_str()))
    else {
        return;
    };
    let mut take = |name: &str| event.get_mut(name).map(Value::take);
    (open.kind, open.title, open.item, open.details) =
        (take("kind"), take("title"), take("item"), take("details"));
    open.elicitation = take("elicitation");
}

/// An answer: an option, or no.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AnswerBody {
    /// The revision that the client saw. Absent: whatever it is, as long as nobody answered.
    #[serde(default)]
    revision: Option<u64>,
    /// One of the offered options.
    #[serde(default)]
    option_id: Option<String>,
    /// No; the work goes on without it.
    #[serde(default)]
    decline: bool,
    /// No, and stop.
    #[serde(default)]
    cancel: bool,
    /// With `decline` or `cancel`: why, for the agent.
    #[serde(default)]
    message: Option<String>,
    /// Answers to the questions, by question id.
    #[serde(default)]
    answers: Option<Answers>,
    /// A form or link accepted.
    #[serde(default)]
    accept: bool,
    /// With `accept`: what was filled in.
    #[serde(default)]
    content: Option<Value>,
}

impl AnswerBody {
    fn into_answer(self) -> Result<Answer, Problem> {
        let one =
            "give exactly one of `option_id`, `answers`, `accept: true`, `decline: true` and `cancel: true`";
        let given =
            [self.option_id.is_some(), self.answers.is_some(), self.accept, self.decline, self.cancel];
        if given.iter().filter(|given| **given).count() != 1 {
            return Err(Problem::new(Code::InvalidBody, one));
        }
        if self.content.is_some() && !self.accept {
            return Err(Problem::new(Code::InvalidBody, "`content` goes with `accept` only"));
        }
        if self.message.is_some() && (self.answers.is_some() || self.accept) {
            return Err(Problem::new(Code::InvalidBody, "`message` goes with `decline` or `cancel` only"));
        }
        if let Some(answers) = self.answers {
            return Ok(Answer::Answers { answers });
        }
        if self.accept {
            return Ok(Answer::Submit { content: self.content });
        }
        match (self.option_id, self.decline, self.cancel) {
            (Some(_), false, false) if self.message.is_some() => {
                Err(Problem::new(Code::InvalidBody, "`message` goes with `decline` or `cancel` only"))
            }
            (Some(option_id), false, false) => Ok(Answer::Select { option_id }),
            (None, true, false) => Ok(Answer::Decline { message: self.message }),
            (None, false, true) => Ok(Answer::Cancel { message: self.message }),
            _ => Err(Problem::new(Code::InvalidBody, one)),
        }
    }
}

/// The answer won.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AnswerTaken {
    /// The request.
    request: String,
    /// Its revision now.
    revision: u64,
    /// `epoch:seq` behind the answer.
    cursor: String,
}

pub(crate) async fn answer(call: Call) -> HttpAnswer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let body: AnswerBody = call.json()?;
    // Looked up, never made: it may be longer than what a client may name, since it begins with the session's id.
    let request = RequestId(call.param("request")?.to_owned());
    let revision = body.revision;
    let command = Command::Answer {
        request: request.clone(),
        revision,
        answer: body.into_answer()?,
        by: client_name(&call),
    };
    let make = MakeBody::reply(move |facts| {
        let revision = match facts.reply {
            Reply::Answered { revision, .. } => *revision,
            _ => 0,
        };
        AnswerTaken { request: request.0.clone(), revision, cursor: facts.cursor.to_string() }
    });
    mutation::command(&call, command, 200, &make).await
}

/// Who answers, for those who come too late: what the client calls itself, and how it reached us.
fn client_name(call: &Call) -> String {
    let agent = call.headers.get("user-agent").and_then(|value| value.to_str().ok()).unwrap_or("a client");
    let name: String = agent.chars().take(MAX_CLIENT_NAME).collect();
    match &call.peer {
        Peer::Tcp(_) => format!("{name} (tcp)"),
        Peer::Unix(peer) => match peer.pid {
            Some(pid) => format!("{name} (socket, pid {pid})"),
            None => format!("{name} (socket)"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Answer, Code> {
        let body: AnswerBody = serde_json::from_str(text).expect("parses");
        body.into_answer().map_err(|problem| problem.code)
    }

    #[test]
    fn exactly_one_answer_is_given() {
        assert_eq!(parse(r#"{"option_id":"a"}"#), Ok(Answer::Select { option_id: "a".to_owned() }));
        assert_eq!(
            parse(r#"{"decline":true,"message":"no"}"#),
            Ok(Answer::Decline { message: Some("no".to_owned()) })
        );
        assert_eq!(parse(r#"{"cancel":true}"#), Ok(Answer::Cancel { message: None }));
        assert_eq!(parse("{}"), Err(Code::InvalidBody));
        assert_eq!(parse(r#"{"option_id":"a","decline":true}"#), Err(Code::InvalidBody));
        assert_eq!(parse(r#"{"option_id":"a","message":"x"}"#), Err(Code::InvalidBody));
        assert_eq!(parse(r#"{"answers":{}}"#), Ok(Answer::Answers { answers: Answers::new() }));
        assert_eq!(parse(r#"{"accept":true}"#), Ok(Answer::Submit { content: None }));
        assert_eq!(parse(r#"{"accept":true,"decline":true}"#), Err(Code::InvalidBody));
        assert_eq!(parse(r#"{"decline":true,"content":{}}"#), Err(Code::InvalidBody));
    }
}
