//! The real Codex against the mock model, over standard input and output, with no host between.
#![expect(clippy::expect_used, reason = "test code: the helpers beside the tests panic like them")]

use std::process::Command;
use std::time::Duration;

use mainstay_testkit::model::expected_text;
use mainstay_testkit::peer::Peer;
use mainstay_testkit::{Containment, ModelServer, agents, codex_home};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Codex starts in well under a second; two tests and a build may share two cores.
const GENEROUS: Duration = Duration::from_secs(60);

struct Codex {
    peer: Peer,
    thread: String,
    /// Goes when the test is over.
    _folder: TempDir,
}

impl Codex {
    fn start(server: &ModelServer) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let home = codex_home(folder.path(), &server.base_url());
        let work = folder.path().join("work");
        std::fs::create_dir(&work).expect("workspace");
        let mut command = Command::new(agents::codex_binary());
        command.arg("app-server").env_clear().envs(home.env()).current_dir(&work);
        command.stderr(std::process::Stdio::null());
        let mut peer = Peer::start(command);
        let hello = peer.request(
            "initialize",
            json!({"clientInfo": {"name": "testkit", "title": "Testkit", "version": "0"}, "capabilities": {}}),
            GENEROUS,
        );
        assert!(hello["result"]["userAgent"].is_string(), "{hello}");
        peer.notify("initialized", json!({}));
        let started = peer.request(
            "thread/start",
            json!({"cwd": work, "sandbox": "workspace-write", "approvalPolicy": "on-request"}),
            GENEROUS,
        );
        let thread = started["result"]["thread"]["id"].as_str().expect("a thread id").to_owned();
        Self { peer, thread, _folder: folder }
    }

    fn begin(&mut self, prompt: &str) {
        let input = json!([{"type": "text", "text": prompt}]);
        let params = json!({"threadId": self.thread, "input": input, "clientUserMessageId": "m1"});
        let answer = self.peer.request("turn/start", params, GENEROUS);
        assert!(answer["result"]["turn"]["id"].is_string(), "{answer}");
    }

    fn wait(&mut self, method: &str) -> Value {
        self.peer.wait_for(GENEROUS, method, |message| message["method"] == method)
    }

    fn wait_agent_message(&mut self) -> String {
        let done = self.peer.wait_for(GENEROUS, "a finished message", |message| {
            message["method"] == "item/completed" && message["params"]["item"]["type"] == "agentMessage"
        });
        done["params"]["item"]["text"].as_str().expect("text").to_owned()
    }

    /// The deltas received so far and not yet asked for.
    fn deltas(&mut self, count: usize) -> String {
        (0..count)
            .map(|_| {
                let delta = self.wait("item/agentMessage/delta");
                delta["params"]["delta"].as_str().expect("text").to_owned()
            })
            .collect()
    }
}

#[test]
fn text_arrives_byte_for_byte() {
    let containment = Containment::enter();
    let server = ModelServer::start();
    let mut codex = Codex::start(&server);
    let script = "DELTAS 200 8";
    codex.begin(script);
    assert_eq!(codex.wait_agent_message(), expected_text(script));
    let turn = codex.wait("turn/completed");
    assert_eq!(turn["params"]["turn"]["status"], "completed", "{turn}");
    assert_eq!(codex.deltas(200), expected_text(script));
    assert_eq!(server.user_messages_seen(script), 1);
    assert_eq!(server.requests_prompted_by(script), 1);
    drop(codex);
    containment.assert_empty(GENEROUS);
}

#[test]
fn a_gated_stream_stands_still_until_released() {
    let server = ModelServer::start();
    let mut codex = Codex::start(&server);
    codex.begin("GATED 5 door");
    server.wait_at_gate("door", GENEROUS);
    server.release("door", 3);
    assert_eq!(codex.deltas(3), "0000000 0000001 0000002 ");
    server.wait_at_gate("door", GENEROUS);
    server.open("door");
    assert_eq!(codex.wait_agent_message(), expected_text("GATED 5 door"));
}

#[test]
fn an_escalated_command_asks_and_its_output_goes_back() {
    let server = ModelServer::start();
    let mut codex = Codex::start(&server);
    codex.begin("RUNESC echo ran-it ;; SAY finished");
    let approval = codex.wait("item/commandExecution/requestApproval");
    codex.peer.send(&json!({"id": approval["id"], "result": {"decision": "accept"}}));
    assert_eq!(codex.wait_agent_message(), "finished");
    codex.wait("turn/completed");
    let requests = server.requests();
    assert_eq!(requests.len(), 2, "one before and one after the command");
    assert!(requests[1].body["input"].to_string().contains("ran-it"));
}

#[test]
fn a_patch_is_applied_and_a_reasoning_item_shown() {
    let server = ModelServer::start();
    let mut codex = Codex::start(&server);
    let work = codex._folder.path().join("work");
    codex.begin("THINK about it ;; PATCH made.txt one\\ntwo ;; PATCHUPD made.txt two => 2 ;; SAY patched");
    assert_eq!(codex.wait_agent_message(), "patched");
    assert_eq!(std::fs::read_to_string(work.join("made.txt")).expect("the new file"), "one\n2\n");
    codex.wait("item/reasoning/summaryTextDelta");
}

#[test]
fn a_cut_stream_is_retried_and_a_refused_request_fails_the_turn() {
    let server = ModelServer::start();
    let mut codex = Codex::start(&server);
    codex.begin("DISCN 1 ;; SAY whole");
    assert_eq!(codex.wait_agent_message(), "whole");
    codex.wait("turn/completed");
    assert_eq!(server.requests_prompted_by("DISCN 1 ;; SAY whole"), 2);
    codex.begin("ERR 400");
    let turn = codex.wait("turn/completed");
    assert_eq!(turn["params"]["turn"]["status"], "failed", "{turn}");
}
