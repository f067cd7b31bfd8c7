//! Commands over HTTP: idempotent, and with one response whether it is made in the transaction or after it.

use crate::app::App;
use crate::call::{Answer, Call, raw_json};
use crate::problem::{Code, Problem};
use crate::views::SessionView;
use axum::http::{HeaderValue, Response};
use mainstay_core::operation::Fingerprint;
use mainstay_core::{Command, Cursor, OperationKey, Reply};
use mainstay_host::{Answered, Operation};
use serde::Serialize;
use std::sync::Arc;
use tracing::Instrument;

/// The header of a response that was given before.
const REPLAY_HEADER: &str = "idempotent-replay";
/// Commands under way at once. One takes milliseconds, so this many wait only where the disk stalls; one more is refused
/// as `overloaded`.
pub(crate) const MAX_COMMANDS: usize = 512;

/// What most responses are made from.
pub(crate) struct Facts<'a> {
    pub(crate) reply: &'a Reply,
    pub(crate) cursor: Cursor,
    pub(crate) recorded: bool,
}

/// Writes a body from a reply.
type WriteReply = dyn Fn(&Facts<'_>) -> Vec<u8> + Send + Sync;

/// How the body of a successful response is made.
#[derive(Clone)]
pub(crate) enum MakeBody {
    /// From the reply alone, so that a stop is answered also where nothing can be read.
    Reply(Arc<WriteReply>),
    /// The session as it is behind the command's events.
    Session {
        /// When it was changed, Unix ms.
        updated_at: i64,
    },
}

impl MakeBody {
    /// From the reply, by a function that makes a serializable value.
    pub(crate) fn reply<T: Serialize>(make: impl Fn(&Facts<'_>) -> T + Send + Sync + 'static) -> Self {
        Self::Reply(Arc::new(move |facts| write(&make(facts))))
    }
}

/// These plain values serialize always.
fn write(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}

/// The fingerprint of a request.
pub(crate) fn fingerprint(call: &Call) -> Fingerprint {
    let path = call.uri.path_and_query().map_or_else(|| call.uri.path(), |path| path.as_str());
    Fingerprint::of(call.method.as_str(), path, &call.body)
}

/// The key under which a request wants to be known again, with its fingerprint.
pub(crate) fn named(call: &Call) -> Result<Option<(String, Fingerprint)>, Problem> {
    let Some(key) = call.header("idempotency-key")? else { return Ok(None) };
    let key = OperationKey::parse(key)
        .map_err(|error| Problem::new(Code::InvalidHeader, format!("Idempotency-Key: {error}")))?;
    Ok(Some((key.0, fingerprint(call))))
}

/// The operation that a request names, if it names one.
pub(crate) fn operation(call: &Call, status: u16, make: &MakeBody) -> Result<Option<Operation>, Problem> {
    let Some((key, fingerprint)) = named(call)? else { return Ok(None) };
    let make = make.clone();
    Ok(Some(Operation {
        key,
        fingerprint,
        respond: Box::new(move |reply, session, cursor| {
            let body = match make {
                MakeBody::Reply(make) => make(&Facts { reply, cursor, recorded: true }),
                MakeBody::Session { updated_at } => write(&SessionView::of_session(session, updated_at)),
            };
            (status, body)
        }),
    }))
}

/// Gives a session a command and answers with what `make` makes.
pub(crate) async fn command(call: &Call, command: Command, status: u16, make: &MakeBody) -> Answer {
    let answered = carry_out(call, command, status, make).await?;
    answer(call, call.session()?, answered, status, make).await
}

/// Gives a session a command.
pub(crate) async fn carry_out(
    call: &Call,
    command: Command,
    status: u16,
    make: &MakeBody,
) -> Result<Answered, Problem> {
    let operation = operation(call, status, make)?;
    let (host, session) = (call.app.host.clone(), call.session()?.to_owned());
    Ok(apart(&call.app, async move { host.command(&session, command, operation).await }).await??)
}

/// Carries a command out apart from the client's connection: a closed tab cannot cut it in half.
pub(crate) async fn apart<T: Send + 'static>(
    app: &App,
    command: impl Future<Output = T> + Send + 'static,
) -> Result<T, Problem> {
    let Ok(room) = app.commands.clone().try_acquire_owned() else {
        return Err(Problem::new(Code::Overloaded, format!("{MAX_COMMANDS} commands are under way already")));
    };
    let carrying_out = async move {
        let outcome = command.await;
        drop(room);
        outcome
    };
    let carried_out = tokio::spawn(carrying_out.in_current_span());
    let lost = || Problem::new(Code::Internal, "the command failed; see the host's log");
    carried_out.await.map_err(|_| Problem { side_effect_possible: true, ..lost() })
}

/// The response to what was carried out.
pub(crate) async fn answer(
    call: &Call,
    session: &str,
    answered: Answered,
    status: u16,
    make: &MakeBody,
) -> Answer {
    if let Some((status, body)) = answered.response.filter(|_| answered.recorded) {
        let mut response = raw_json(status, body);
        if answered.replayed {
            mark_replay(&mut response);
        }
        return Ok(response);
    }
    let body = match make {
        MakeBody::Reply(make) => {
            make(&Facts { reply: &answered.reply, cursor: answered.cursor, recorded: answered.recorded })
        }
        MakeBody::Session { .. } => {
            let (row, state) = call.app.host.state(session).await?;
            write(&SessionView::of_state(row, &state))
        }
    };
    Ok(raw_json(status, body))
}

/// Says that the response was given before.
pub(crate) fn mark_replay<B>(response: &mut Response<B>) {
    response.headers_mut().insert(REPLAY_HEADER, HeaderValue::from_static("true"));
}
