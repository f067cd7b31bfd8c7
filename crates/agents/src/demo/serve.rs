//! The demo agent's dialogue: requests in, answers out, one thread per turn.

use super::turn;
use crate::rpc::{self, Dialect, Inbound};
use serde_json::{Value, json};
use std::collections::{HashMap, HashSet};
use std::io::{self, BufRead, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const RPC: Dialect = Dialect::Marked;
/// What the ids of its conversations begin with.
const SESSION_PREFIX: &str = "demo-";
/// The code for a request that cannot be served now.
const INVALID_REQUEST: i64 = -32600;

#[derive(Debug, Default)]
struct State {
    /// Conversations with a running turn.
    running: HashSet<String>,
    /// Conversations whose running turn is to stop.
    stopping: HashSet<String>,
    /// Answers to our requests, by id; None while they are open.
    answers: HashMap<u64, Option<Value>>,
    next_request: u64,
    tool_calls: u64,
    /// No more input: everything stops.
    closed: bool,
}

/// What the threads share.
#[derive(Debug)]
pub(super) struct Shared<W> {
    output: Mutex<W>,
    state: Mutex<State>,
    changed: Condvar,
    pub(super) pace: Duration,
}

/// The turn was told to stop.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stopped;

impl<W: Write> Shared<W> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a message. An output that is gone stops everything: nobody listens.
    pub(super) fn write(&self, message: &Value) {
        let mut line = message.to_string();
        line.push('\n');
        let mut output = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        let written = output.write_all(line.as_bytes()).and_then(|()| output.flush());
        drop(output);
        if written.is_err() {
            self.state().closed = true;
            self.changed.notify_all();
        }
    }

    /// The id of a new tool call: unique in its conversation, also when it is resumed in another process.
    pub(super) fn tool_call_id(&self) -> String {
        let mut state = self.state();
        state.tool_calls += 1;
        format!("call-{:x}-{}", now_nanos(), state.tool_calls)
    }

    pub(super) fn update(&self, session: &str, update: &Value) {
        self.write(&RPC.notification("session/update", json!({ "sessionId": session, "update": update })));
    }

    /// Waits, unless the turn is to stop.
    pub(super) fn pause(&self, session: &str, pause: Duration) -> Result<(), Stopped> {
        let until = Instant::now() + pause;
        let mut state = self.state();
        loop {
            if state.closed || state.stopping.contains(session) {
                return Err(Stopped);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Asks the client and waits for its answer, unless the turn is to stop.
    pub(super) fn ask(&self, session: &str, method: &str, params: Value) -> Result<Value, Stopped> {
        let mut state = self.state();
        let id = state.next_request;
        state.next_request += 1;
        state.answers.insert(id, None);
        drop(state);
        self.write(&RPC.request(id, method, params));
        let mut state = self.state();
        loop {
            if let Some(Some(answer)) = state.answers.get(&id) {
                let answer = answer.clone();
                state.answers.remove(&id);
                return Ok(answer);
            }
            if state.closed || state.stopping.contains(session) {
                state.answers.remove(&id);
                return Err(Stopped);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

pub(super) fn serve(input: impl BufRead, output: impl Write + Send, pace: Duration) -> io::Result<()> {
    let shared =
        Shared { output: Mutex::new(output), state: Mutex::default(), changed: Condvar::new(), pace };
    let mut made = 0_u64;
    thread::scope(|scope| {
        let read = input.split(b'\n').try_for_each(|line| {
            let line = line?;
            match rpc::read(&line) {
                Some(Inbound::Request { id, method, params }) => {
                    let params = rpc::body(params);
                    if method == "session/prompt" {
                        if let Some(session) = begin_turn(&shared, id.get(), &params) {
                            let (shared, id) = (&shared, id.get().to_owned());
                            scope.spawn(move || run_turn(shared, &session, &id, &params));
                        }
                    } else {
                        shared.write(&answer(id.get(), &method, &params, &mut made));
                    }
                }
                Some(Inbound::Notification { method, params }) if method == "session/cancel" => {
                    let params = rpc::body(params);
                    let session = params.get("sessionId").and_then(Value::as_str).unwrap_or_default();
                    let mut state = shared.state();
                    if state.running.contains(session) {
                        state.stopping.insert(session.to_owned());
                        shared.changed.notify_all();
                    }
                }
                Some(Inbound::Answer { id, result }) => {
                    let mut state = shared.state();
                    if let Some(open) = rpc::own_id(id).and_then(|id| state.answers.get_mut(&id)) {
                        // An error is an answer too: nothing was chosen.
                        *open = Some(result.map_or(Value::Null, rpc::body));
                        shared.changed.notify_all();
                    }
                }
                Some(Inbound::Notification { .. }) | None => {}
            }
            Ok(())
        });
        shared.state().closed = true;
        shared.changed.notify_all();
        read
    })
}

/// Enters a turn as running; None: it was refused.
fn begin_turn<W: Write>(shared: &Shared<W>, id: &str, params: &Value) -> Option<String> {
    let session = params.get("sessionId").and_then(Value::as_str).unwrap_or_default();
    let refusal = if !session.starts_with(SESSION_PREFIX) {
        Some((rpc::NOT_FOUND, "no such session"))
    } else if !shared.state().running.insert(session.to_owned()) {
        Some((INVALID_REQUEST, "a turn of this session is running"))
    } else {
        None
    };
    if let Some((code, message)) = refusal {
        shared.write(&RPC.refusal(id, code, message));
        return None;
    }
    Some(session.to_owned())
}

fn run_turn<W: Write>(shared: &Shared<W>, session: &str, id: &str, params: &Value) {
    let stop_reason = match turn::run(shared, session, params) {
        Ok(()) => "end_turn",
        Err(Stopped) => "cancelled",
    };
    let mut state = shared.state();
    state.running.remove(session);
    state.stopping.remove(session);
    drop(state);
    shared.write(&RPC.answer(id, json!({ "stopReason": stop_reason })));
}

fn answer(id: &str, method: &str, params: &Value, made: &mut u64) -> Value {
    let session = params.get("sessionId").and_then(Value::as_str).unwrap_or_default();
    match method {
        "initialize" => RPC.answer(
            id,
            json!({
                "protocolVersion": 1,
                "agentInfo": { "name": "mainstay-demo", "title": "Demo", "version": env!("CARGO_PKG_VERSION") },
                "agentCapabilities": { "loadSession": false, "sessionCapabilities": { "resume": {} } },
                "authMethods": [],
            }),
        ),
        "session/new" => {
            *made += 1;
            RPC.answer(id, json!({ "sessionId": format!("{SESSION_PREFIX}{:x}-{made}", now_nanos()) }))
        }
        "session/resume" if session.starts_with(SESSION_PREFIX) => RPC.answer(id, json!({})),
        "session/resume" => RPC.refusal(id, rpc::NOT_FOUND, "no such session"),
        _ => RPC.refusal(id, rpc::METHOD_NOT_FOUND, "the demo agent does not offer that method"),
    }
}

fn now_nanos() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos())
}
