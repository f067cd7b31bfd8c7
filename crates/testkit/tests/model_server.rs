//! The mock model server over its wire, without an agent.
#![expect(clippy::expect_used, reason = "test code: the helpers beside the tests panic like them")]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use mainstay_testkit::ModelServer;
use mainstay_testkit::http::{Addr, Client, Response};
use mainstay_testkit::model::expected_text;
use serde_json::{Value, json};

const GENEROUS: Duration = Duration::from_secs(30);

fn client(server: &ModelServer) -> Client {
    let base = server.base_url();
    let address: SocketAddr =
        base.trim_start_matches("http://").trim_end_matches("/v1").parse().expect("an address");
    Client::new(Addr::Tcp(address))
}

fn user(text: &str) -> Value {
    json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]})
}

fn request(input: &[Value]) -> Value {
    json!({"model": "m", "prompt_cache_key": "c", "input": input,
           "tools": [{"type": "function", "name": "exec_command"}, {"type": "custom", "name": "apply_patch"}]})
}

fn ask(server: &ModelServer, input: &[Value]) -> Response {
    client(server).post("/v1/responses", &request(input)).expect("an answer")
}

fn events(response: &Response) -> Vec<Value> {
    let text = response.text();
    text.lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .map(|data| serde_json::from_str(data).expect("JSON data"))
        .collect()
}

fn kinds(response: &Response) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for event in events(response) {
        *counts.entry(event["type"].as_str().expect("a type").to_owned()).or_default() += 1;
    }
    counts
}

fn text(response: &Response) -> String {
    let deltas = events(response).into_iter().filter(|event| event["type"] == "response.output_text.delta");
    deltas.map(|event| event["delta"].as_str().expect("text").to_owned()).collect()
}

#[test]
fn streams_the_expected_text() {
    let server = ModelServer::start();
    for script in ["SAY hello world", "SAY hi x3", "DELTAS 3000 8", "SLOW 3 1ms", "BIG 100000", "hm?"] {
        let response = ask(&server, &[user(script)]);
        assert_eq!(text(&response), expected_text(script), "{script}");
        assert_eq!(kinds(&response)["response.completed"], 1, "{script}");
    }
    assert_eq!(server.requests().len(), 6);
    assert_eq!(server.abandoned_streams(), 0);
}

#[test]
fn tool_outputs_move_the_script_on() {
    let server = ModelServer::start();
    let script = "SAY first ;; PRUN a || b ;; SAY last";
    let first = ask(&server, &[user(script)]);
    assert_eq!(text(&first), "first");
    let calls: Vec<_> = events(&first)
        .into_iter()
        .filter(|event| {
            event["type"] == "response.output_item.done" && event["item"]["type"] == "function_call"
        })
        .map(|event| event["item"]["arguments"].as_str().expect("arguments").to_owned())
        .collect();
    assert_eq!(calls, [r#"{"cmd":"a"}"#, r#"{"cmd":"b"}"#]);

    let output = |text| json!({"type": "function_call_output", "call_id": "x", "output": text});
    let second = ask(&server, &[user(script), output("1"), output("2")]);
    assert_eq!(text(&second), "last");
    let after_the_end = ask(&server, &[user("RUN ls"), output("files")]);
    assert_eq!(text(&after_the_end), "done. Last tool output (5 bytes): files");
    assert_eq!(server.requests_prompted_by(script), 2);
}

#[test]
fn failures_come_as_scripted() {
    let server = ModelServer::start();
    assert_eq!(ask(&server, &[user("ERR 503")]).status, 503);
    let limited = ask(&server, &[user("ERR 429 usage_limit_reached")]);
    assert_eq!((limited.status, limited.header("retry-after")), (429, Some("1")));
    assert_eq!(limited.json()["error"]["plan_type"], "plus");

    let statuses: Vec<u16> = (0..3).map(|_| ask(&server, &[user("ERRN 2 500 ;; SAY ok")]).status).collect();
    assert_eq!(statuses, [500, 500, 200], "the third attempt goes on");

    let attempts: Vec<_> = (0..2).map(|_| ask(&server, &[user("DISCN 1 ;; SAY ok")])).collect();
    assert_eq!((text(&attempts[0]).as_str(), text(&attempts[1]).as_str()), ("cut off ", "ok"));
    assert!(!kinds(&attempts[0]).contains_key("response.completed"));

    assert_eq!(kinds(&ask(&server, &[user("FAILED rate_limit_exceeded")]))["response.failed"], 1);
    for script in ["DISC 2", "NOCOMPLETE", "FAILED x"] {
        let kinds = kinds(&ask(&server, &[user(script)]));
        assert!(!kinds.contains_key("response.completed"), "{script}: {kinds:?}");
    }
    let empty = kinds(&ask(&server, &[user("EMPTY")]));
    assert_eq!(empty.keys().collect::<Vec<_>>(), ["response.completed", "response.created"]);
}

#[test]
fn gates_hold_the_stream() {
    let server = ModelServer::start();
    let client = client(&server).header("content-type", "application/json");
    let body = request(&[user("SAY before ;; GATE door ;; GATED 3 step ;; SAY after")]);
    let reader = std::thread::spawn(move || client.post("/v1/responses", &body).expect("an answer"));

    server.wait_requests(1, GENEROUS);
    server.wait_at_gate("door", GENEROUS);
    server.open("door");
    server.wait_at_gate("step", GENEROUS);
    server.release("step", 2);
    server.wait_at_gate("step", GENEROUS);
    server.release("step", 1);
    let response = reader.join().expect("reader");
    assert_eq!(text(&response), "before0000000 0000001 0000002 after");
}

#[test]
fn counts_what_the_model_was_given() {
    let server = ModelServer::start();
    ask(&server, &[user("SAY a")]);
    ask(&server, &[user("SAY a"), user("<environment_context>"), user("SAY b"), user("SAY a")]);
    assert_eq!(server.user_messages_seen("SAY a"), 2);
    assert_eq!(server.user_messages_seen("SAY b"), 1);
    assert_eq!(server.requests_prompted_by("SAY a"), 2);
    assert_eq!(server.requests()[1].user_messages(), ["SAY a", "SAY b", "SAY a"]);
}

#[test]
fn a_client_that_leaves_is_noticed_at_a_gate() {
    let server = ModelServer::start();
    let impatient = client(&server).timeout(Duration::from_millis(50));
    for (count, script) in [(1, "HOLD never"), (2, "GATE never")] {
        impatient.post("/v1/responses", &request(&[user(script)])).expect_err("given up");
        mainstay_testkit::wait_until(GENEROUS, "the stream to be abandoned", || {
            server.abandoned_streams() == count
        });
    }
}

#[test]
fn a_held_request_is_recorded_and_unanswered() {
    let server = ModelServer::start();
    let client = client(&server);
    let reader = std::thread::spawn(move || {
        client.post("/v1/responses", &request(&[user("HOLD header ;; SAY ok")])).expect("an answer")
    });
    server.wait_at_gate("header", GENEROUS);
    assert_eq!(server.requests_prompted_by("HOLD header ;; SAY ok"), 1);
    server.open("header");
    assert_eq!(text(&reader.join().expect("reader")), "ok");
}
