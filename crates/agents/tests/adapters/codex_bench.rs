//! The Codex side of a conversation, for the tests of the adapter's rules: its messages, and sessions that have come
//! to a certain point.

use crate::harness::{Harness, Life};
use mainstay_agents::AgentKind;
use serde_json::{Value, json};

pub(crate) const NO_ACTIVE_TURN: &str = "no active turn to interrupt";
pub(crate) const NO_ROLLOUT: &str = "no rollout found for thread id T";

pub(crate) fn handshake(harness: &mut Harness) -> Vec<String> {
    harness.connect();
    let id = harness.sent_id("initialize");
    harness.message(&json!({ "id": id, "result": { "userAgent": "mainstay/0.171.0 (Linux)" } }))
}

pub(crate) fn connected() -> Harness {
    let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
    harness.bind("s1");
    assert_eq!(
        handshake(&mut harness),
        ["all: Ready codex 0.171.0 resumable", r#"send {"method":"initialized"}"#]
    );
    harness
}

pub(crate) fn answer(harness: &mut Harness, method: &str, result: &Value) -> Vec<String> {
    let id = harness.sent_id(method);
    harness.message(&json!({ "id": id, "result": result }))
}

pub(crate) fn refuse(harness: &mut Harness, method: &str, message: &str) -> Vec<String> {
    let id = harness.sent_id(method);
    harness.message(&json!({ "id": id, "error": { "code": -32600, "message": message } }))
}

pub(crate) fn thread(id: &str) -> Value {
    json!({ "thread": { "id": id, "status": { "type": "idle" } } })
}

/// As `thread/read` shows it.
pub(crate) fn active_thread() -> Value {
    json!({ "thread": { "id": "T", "status": { "type": "active", "activeFlags": [] } } })
}

/// A session with the new, open thread T.
pub(crate) fn open() -> Harness {
    let mut harness = connected();
    harness.open("s1", None);
    assert_eq!(answer(&mut harness, "thread/start", &thread("T")), ["s1: ThreadOpened T"]);
    harness
}

pub(crate) fn event(method: &str, mut params: Value) -> Value {
    params["threadId"] = json!("T");
    json!({ "method": method, "params": params, "emittedAtMs": 1 })
}

pub(crate) fn started(turn: &str) -> Value {
    event("turn/started", json!({ "turn": { "id": turn, "status": "inProgress" } }))
}

pub(crate) fn ended(turn: &str, status: &str) -> Value {
    event("turn/completed", json!({ "turn": { "id": turn, "status": status, "error": null } }))
}

pub(crate) fn user_message(id: &str, client_id: Option<&str>) -> Value {
    json!({ "type": "userMessage", "id": id, "clientId": client_id, "completedAtMs": 2,
            "content": [{ "type": "text", "text": "hello", "text_elements": [] }] })
}

pub(crate) fn completed(turn: &str, item: &Value) -> Value {
    event("item/completed", json!({ "turnId": turn, "item": item }))
}

/// As [`open`], with the message m1 given and answered: its turn is U1, which has not started.
pub(crate) fn named() -> Harness {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    assert_eq!(answer(&mut harness, "turn/start", &json!({ "turn": { "id": "U1" } })), Vec::<String>::new());
    harness
}

/// As [`named`], with the turn running and the message taken.
pub(crate) fn running() -> Harness {
    let mut harness = named();
    assert_eq!(harness.message(&started("U1")), ["s1: TurnStarted U1 Message m1"]);
    let taken = completed("U1", &user_message("u1", Some("m1")));
    assert_eq!(harness.message(&taken), ["s1: InputTaken m1 ClientId"]);
    harness
}

pub(crate) fn approval(id: u64) -> Value {
    json!({ "id": id, "method": "item/commandExecution/requestApproval", "params": {
        "threadId": "T", "turnId": "U1", "itemId": "c1", "command": "git status",
        "proposedExecpolicyAmendment": ["git", "status"] } })
}

/// A new connection up to the answer of the thread's resumption; gives what was sent then.
pub(crate) fn reconnect(harness: &mut Harness) -> Vec<String> {
    harness.disconnect();
    let sent = handshake(harness);
    assert!(sent[2].contains("thread/resume") && sent[2].contains(r#""excludeTurns":true"#), "{sent:?}");
    answer(harness, "thread/resume", &active_thread_that("waitingOnApproval"))
}

pub(crate) fn active_thread_that(waits: &str) -> Value {
    json!({ "thread": { "id": "T", "status": { "type": "active", "activeFlags": [waits] } } })
}

pub(crate) fn history(harness: &mut Harness, turns: &Value, next: &Value) -> Vec<String> {
    answer(harness, "thread/turns/list", &json!({ "data": turns, "nextCursor": next }))
}
