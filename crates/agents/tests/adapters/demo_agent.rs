//! The demo agent, spoken with through pipes.

use mainstay_agents::demo;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

struct Client {
    to_agent: Option<PipeWriter>,
    from_agent: BufReader<PipeReader>,
    agent: Option<JoinHandle<std::io::Result<()>>>,
}

impl Client {
    fn start() -> Self {
        let (input, to_agent) = pipe().expect("a pipe");
        let (from_agent, output) = pipe().expect("a pipe");
        let agent = spawn(move || demo::run_paced(BufReader::new(input), output, Duration::ZERO));
        Self { to_agent: Some(to_agent), from_agent: BufReader::new(from_agent), agent: Some(agent) }
    }

    fn send(&mut self, message: &Value) {
        let to_agent = self.to_agent.as_mut().expect("the input is open");
        writeln!(to_agent, "{message}").expect("the agent reads");
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.from_agent.read_line(&mut line).expect("the agent writes");
        serde_json::from_str(&line).expect("a line is a message")
    }

    fn call(&mut self, method: &str, params: &Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params }));
        let answer = self.receive();
        assert_eq!(answer["id"], method);
        answer
    }

    fn session(&mut self) -> String {
        let answer = self.call("session/new", &json!({ "cwd": "/", "mcpServers": [] }));
        answer["result"]["sessionId"].as_str().expect("a session has an id").to_owned()
    }

    fn prompt(&mut self, session: &str, text: &str) {
        let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        self.send(&json!({ "jsonrpc": "2.0", "id": "turn", "method": "session/prompt", "params": params }));
    }

    /// Reads until the turn is answered; gives the text, the tool call's last status and the stop reason.
    fn finish(&mut self, option: Option<&str>) -> (String, Option<String>, String) {
        let (mut text, mut status) = (String::new(), None);
        loop {
            let message = self.receive();
            let update = &message["params"]["update"];
            match update["sessionUpdate"].as_str() {
                Some("agent_message_chunk") => {
                    text.push_str(update["content"]["text"].as_str().expect("text"));
                }
                Some("tool_call" | "tool_call_update") => {
                    status = update["status"].as_str().map(str::to_owned);
                }
                _ => {}
            }
            if message["method"] == "session/request_permission" {
                let outcome = match option {
                    Some(option) => json!({ "outcome": "selected", "optionId": option }),
                    None => json!({ "outcome": "cancelled" }),
                };
                self.send(
                    &json!({ "jsonrpc": "2.0", "id": message["id"], "result": { "outcome": outcome } }),
                );
            }
            if message["id"] == "turn" && message.get("method").is_none() {
                return (
                    text,
                    status,
                    message["result"]["stopReason"].as_str().expect("a reason").to_owned(),
                );
            }
        }
    }

    fn end(mut self) {
        drop(self.to_agent.take());
        self.agent.take().expect("runs").join().expect("does not panic").expect("reads to the end");
    }
}

#[test]
fn it_advertises_resume_only() {
    let mut client = Client::start();
    let answer = client.call("initialize", &json!({ "protocolVersion": 1 }));
    assert_eq!(answer["result"]["protocolVersion"], 1);
    assert_eq!(
        answer["result"]["agentCapabilities"],
        json!({ "loadSession": false, "sessionCapabilities": { "resume": {} } })
    );
    assert_eq!(client.call("session/load", &json!({ "sessionId": "demo-1" }))["error"]["code"], -32601);
    assert!(client.call("session/resume", &json!({ "sessionId": "demo-1" }))["result"].is_object());
    assert_eq!(client.call("session/resume", &json!({ "sessionId": "x" }))["error"]["code"], -32002);
    client.end();
}

#[test]
fn it_asks_once_and_goes_on_by_the_answer() {
    let mut client = Client::start();
    let session = client.session();
    let mut texts = Vec::new();
    for (option, status) in [(Some("allow"), "completed"), (Some("reject"), "failed"), (None, "failed")] {
        client.prompt(&session, "hello");
        let (text, last, reason) = client.finish(option);
        assert_eq!((last.as_deref(), reason.as_str()), (Some(status), "end_turn"));
        texts.push(text);
    }
    assert!(texts[0].starts_with("Hello!") && texts[0] != texts[1] && texts[1] == texts[2], "{texts:?}");
    client.end();
}

#[test]
fn it_runs_for_a_while_and_stops_when_told_to() {
    let mut client = Client::start();
    let session = client.session();
    client.prompt(&session, "please run for 3600 seconds");
    client.receive();
    client.prompt(&session, "a second prompt");
    let cancel = json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } });
    // The refusal of the second prompt has the same id; the first counting may come before it.
    let refused = loop {
        let message = client.receive();
        if message["id"] == "turn" {
            break message;
        }
    };
    assert!(refused["error"].is_object(), "{refused}");
    client.send(&cancel);
    let (_, _, reason) = client.finish(None);
    assert_eq!(reason, "cancelled");
    client.prompt(&session, "run for 0");
    let (text, _, reason) = client.finish(None);
    assert_eq!((text.as_str(), reason.as_str()), ("Counting for 0 seconds.\n\nDone.", "end_turn"));
    client.end();
}

#[test]
fn a_stop_while_it_waits_for_an_answer_ends_the_turn_and_its_tool_call() {
    let mut client = Client::start();
    let session = client.session();
    client.prompt(&session, "hello");
    while client.receive()["method"] != "session/request_permission" {}
    client.send(&json!({ "jsonrpc": "2.0", "method": "session/cancel", "params": { "sessionId": session } }));
    let (_, status, reason) = client.finish(None);
    assert_eq!((status.as_deref(), reason.as_str()), (Some("failed"), "cancelled"));
    client.end();
}

#[test]
fn the_end_of_input_ends_a_running_turn() {
    let mut client = Client::start();
    let session = client.session();
    client.prompt(&session, "run for 3600");
    client.receive();
    client.end();
}
