//! Commands over HTTP: idempotent, and with one response whether it is made in the transaction or after it.

use crate::call::{Answer, Call, raw_json};
use crate::problem::{Code, Problem};
use axum::http::{HeaderValue, Response};
use mainstay_core::operation::Fingerprint;
use mainstay_core::{Command, Cursor, OperationKey, Reply, Session};
use mainstay_host::{Answered, Operation};
use serde::Serialize;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The header of a response that was given before.
const REPLAY_HEADER: &str = "idempotent-replay";

/// What a response is made from.
pub(crate) struct Facts<'a> {
    pub(crate) reply: &'a Reply,
    /// The session behind the command's events.
    pub(crate) session: &'a Session,
    pub(crate) cursor: Cursor,
    pub(crate) recorded: bool,
}

/// Makes the body of a successful response.
pub(crate) type MakeBody = Arc<dyn Fn(&Facts<'_>) -> Vec<u8> + Send + Sync>;

/// Wraps a function that makes a serializable value.
pub(crate) fn body_of<T: Serialize>(make: impl Fn(&Facts<'_>) -> T + Send + Sync + 'static) -> MakeBody {
    // These plain values serialize always.
    Arc::new(move |facts| serde_json::to_vec(&make(facts)).unwrap_or_default())
}

/// The operation that a request names, if it names one.
pub(crate) fn operation(call: &Call, status: u16, make: &MakeBody) -> Result<Option<Operation>, Problem> {
    let Some(key) = call.header("idempotency-key")? else { return Ok(None) };
    let key = OperationKey::parse(key)
        .map_err(|error| Problem::new(Code::InvalidHeader, format!("Idempotency-Key: {error}")))?;
    let path = call.uri.path_and_query().map_or_else(|| call.uri.path(), |path| path.as_str());
    let make = make.clone();
    Ok(Some(Operation {
        key: key.0,
        fingerprint: Fingerprint::of(call.method.as_str(), path, &call.body),
        respond: Box::new(move |reply, session, cursor| {
            (status, make(&Facts { reply, session, cursor, recorded: true }))
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
    Ok(apart(move || async move { host.command(&session, command, operation).await }).await??)
}

/// Drives a future that may not change threads: an operation's closure is not shared between threads, and the host
/// borrows it while it waits. One thread of the blocking pool per command in flight; further ones wait for a thread.
pub(crate) async fn apart<T: Send + 'static, F: Future<Output = T>>(
    begin: impl FnOnce() -> F + Send + 'static,
) -> Result<T, Problem> {
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(begin())).await.map_err(|_| Problem {
        side_effect_possible: true,
        ..Problem::new(Code::ShuttingDown, "the host is shutting down")
    })
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
    let (_, state) = call.app.host.state(session).await?;
    let facts = Facts {
        reply: &answered.reply,
        session: &state,
        cursor: answered.cursor,
        recorded: answered.recorded,
    };
    Ok(raw_json(status, make(&facts)))
}

fn mark_replay<B>(response: &mut Response<B>) {
    response.headers_mut().insert(REPLAY_HEADER, HeaderValue::from_static("true"));
}
