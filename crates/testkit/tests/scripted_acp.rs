//! The scripted ACP agent, spoken to directly.
#![expect(clippy::expect_used, reason = "test code: the helpers beside the tests panic like them")]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use mainstay_testkit::peer::{Line, Peer, is_answer};
use mainstay_testkit::{CLEAN_PATH, Containment, agents, stream_text, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

const GENEROUS: Duration = Duration::from_secs(30);

struct Agent {
    peer: Peer,
    session: String,
    folder: TempDir,
}

fn command(folder: &Path, env: &[(&str, &str)]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_scripted-acp"));
    command.env_clear().env("PATH", CLEAN_PATH).env("HOME", folder);
    command.env("SCRIPTED_LOG", folder.join("prompts.log")).envs(env.iter().copied()).current_dir(folder);
    command
}

impl Agent {
    fn start(env: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut peer = Peer::start(command(folder.path(), env));
        let hello = peer.request("initialize", json!({"protocolVersion": 1}), GENEROUS);
        assert_eq!(hello["result"]["protocolVersion"], 1);
        assert_eq!(hello["result"]["agentCapabilities"]["loadSession"], true);
        let new = peer.request("session/new", json!({"cwd": folder.path(), "mcpServers": []}), GENEROUS);
        let session = new["result"]["sessionId"].as_str().expect("a session id").to_owned();
        Self { peer, session, folder }
    }

    fn prompt(&mut self, script: &str) -> u64 {
        let prompt = json!([{"type": "text", "text": script}]);
        self.peer.ask("session/prompt", json!({"sessionId": self.session, "prompt": prompt}))
    }

    /// Plays a script to its end: the updates before the answer, and the answer.
    fn play(&mut self, script: &str) -> (Vec<Line>, Value) {
        let id = self.prompt(script);
        self.rest(id)
    }

    fn rest(&mut self, id: u64) -> (Vec<Line>, Value) {
        let mut lines = Vec::new();
        loop {
            match self.peer.next(GENEROUS).expect("the agent goes on") {
                Line::Json(message) if is_answer(&message, id) => return (lines, message),
                line => lines.push(line),
            }
        }
    }

    fn cancel(&mut self) {
        let params = json!({"sessionId": self.session});
        self.peer.notify("session/cancel", params);
    }
}

fn updates(lines: &[Line]) -> Vec<Value> {
    lines
        .iter()
        .filter_map(|line| match line {
            Line::Json(message) => message.pointer("/params/update").cloned(),
            Line::Other(_) => None,
        })
        .collect()
}

fn text(lines: &[Line]) -> String {
    updates(lines)
        .iter()
        .filter(|update| update["sessionUpdate"] == "agent_message_chunk")
        .map(|update| update["content"]["text"].as_str().expect("text").to_owned())
        .collect()
}

#[test]
fn text_verbs_say_exactly_their_text() {
    let mut agent = Agent::start(&[]);
    for (script, expected, one_message) in [
        ("SAY hello there", "hello there".to_owned(), true),
        ("DELTAS 300 8", stream_text::whole(300, 8), true),
        ("BURST 20000 16", stream_text::whole(20_000, 16), false),
        ("FRAMES 500 4", stream_text::whole(500, 4), true),
        ("what", "echo: what".to_owned(), true),
    ] {
        let (lines, answer) = agent.play(script);
        assert_eq!(answer["result"]["stopReason"], "end_turn", "{script}");
        assert!(text(&lines) == expected, "{script}: another text");
        let chunks = updates(&lines);
        let ids: std::collections::BTreeSet<_> =
            chunks.iter().map(|update| update["messageId"].as_str().unwrap_or("none")).collect();
        assert_eq!(ids.len(), 1, "{script}: {ids:?}");
        assert_eq!(!ids.contains("none"), one_message, "{script}");
    }
}

#[test]
fn a_gate_opens_before_or_after_the_agent_gets_there() {
    let mut agent = Agent::start(&[]);
    let gate = agent.folder.path().join("gate");
    let id = agent.prompt(&format!("SAY before ;; GATE {} ;; SAY after", gate.display()));
    agent.peer.wait_for(GENEROUS, "the first word", |message| message["method"] == "session/update");
    wait_until(GENEROUS, "the agent to stand at the gate", || gate.exists());
    agents::open_gate(&gate);
    assert_eq!(text(&agent.rest(id).0), "after");
    // Once open it stays open.
    let (lines, _) = agent.play(&format!("GATE {} ;; SAY again", gate.display()));
    assert_eq!(text(&lines), "again");
    let second = agent.folder.path().join("second");
    agents::open_gate(&second);
    let (lines, _) = agent.play(&format!("GATE {} ;; SAY at once", second.display()));
    assert_eq!(text(&lines), "at once");
}

#[test]
fn permission_is_asked_and_the_answer_said() {
    let mut agent = Agent::start(&[]);
    for (outcome, expected) in [
        (json!({"outcome": "selected", "optionId": "allow_always"}), "allowed:allow_always"),
        (json!({"outcome": "selected", "optionId": "reject_once"}), "denied"),
        (json!({"outcome": "cancelled"}), "denied"),
    ] {
        let id = agent.prompt("ASK may I");
        let question = agent
            .peer
            .wait_for(GENEROUS, "the question", |message| message["method"] == "session/request_permission");
        assert_eq!(question["params"]["toolCall"]["title"], "may I");
        assert_eq!(question["params"]["options"].as_array().expect("options").len(), 4);
        agent.peer.send(&json!({"jsonrpc": "2.0", "id": question["id"], "result": {"outcome": outcome}}));
        assert_eq!(text(&agent.rest(id).0), expected);
    }
}

#[test]
fn cancel_ends_a_turn_that_waits() {
    let mut agent = Agent::start(&[]);
    let gate = agent.folder.path().join("gate");
    for script in [
        "SAY x ;; HOLD".to_owned(),
        "SAY x ;; ASK may I".to_owned(),
        format!("SAY x ;; GATE {}", gate.display()),
    ] {
        let id = agent.prompt(&script);
        agent.peer.wait_for(GENEROUS, "the first word", |message| message["method"] == "session/update");
        agent.cancel();
        assert_eq!(agent.rest(id).1["result"]["stopReason"], "cancelled", "{script}");
    }
}

#[test]
fn a_second_process_replays_the_conversation() {
    let mut agent = Agent::start(&[]);
    agent.play("SAY one ;; SAY two");
    let mut second = Peer::start(command(agent.folder.path(), &[]));
    let params = json!({"sessionId": agent.session, "cwd": agent.folder.path(), "mcpServers": []});
    let loaded = second.request("session/load", params, GENEROUS);
    assert_eq!(loaded["result"], json!({}));
    let mut replayed = Vec::new();
    for _ in 0..3 {
        replayed.push(second.next(GENEROUS).expect("a replayed message"));
    }
    let shown: Vec<_> = updates(&replayed)
        .iter()
        .map(|update| (update["sessionUpdate"].clone(), update["content"]["text"].clone()))
        .collect();
    assert_eq!(
        shown,
        [
            (json!("user_message_chunk"), json!("SAY one ;; SAY two")),
            (json!("agent_message_chunk"), json!("one")),
            (json!("agent_message_chunk"), json!("two")),
        ]
    );
    let params = json!({"sessionId": "../../etc/passwd", "cwd": agent.folder.path(), "mcpServers": []});
    assert_eq!(second.request("session/load", params, GENEROUS)["error"]["code"], -32002);
}

#[test]
fn odd_output_is_as_odd_as_asked_for() {
    let mut agent = Agent::start(&[]);
    let (lines, _) =
        agent.play(r#"BADLINE ;; UNKNOWN_UPDATE ;; BIGLINE 100000 ;; RAW {"raw": 1} ;; TOOL hammer"#);
    assert_eq!(lines[0], Line::Other("this line is not JSON".to_owned()));
    assert_eq!(updates(&lines)[0]["sessionUpdate"], "mystery_update");
    assert_eq!(text(&lines).len(), 100_000);
    assert!(lines.contains(&Line::Json(json!({"raw": 1}))));
    assert_eq!(updates(&lines).last().expect("an update")["status"], "completed");

    let (_, answer) = agent.play("ERROR -32000 please sign in");
    assert_eq!(answer["error"], json!({"code": -32000, "message": "please sign in"}));
    let (_, _) = agent.play("LATE");
    let late = agent.peer.next(GENEROUS).expect("an update after the answer");
    assert_eq!(text(&[late]), "late");
}

#[test]
fn commands_run_in_the_agents_environment() {
    let mut agent = Agent::start(&[("CANARY", "sings")]);
    let (lines, _) = agent.play("RUN echo $CANARY; echo oops >&2; exit 3");
    let last = updates(&lines).pop().expect("an update");
    assert_eq!(last["content"][0]["content"]["text"], "sings\noops\n");
    assert_eq!((&last["status"], &last["rawOutput"]["exitCode"]), (&json!("failed"), &json!(3)));
}

#[test]
fn every_prompt_is_logged_even_if_it_is_never_answered() {
    let mut agent = Agent::start(&[]);
    agent.play("SAY a");
    agent.prompt("NEVER");
    let log = agent.folder.path().join("prompts.log");
    wait_until(GENEROUS, "both prompts in the log", || {
        fs::read_to_string(&log).is_ok_and(|text| text.lines().count() == 2)
    });
    let text = fs::read_to_string(&log).expect("the log");
    let second: Value = serde_json::from_str(text.lines().last().expect("a line")).expect("JSON");
    assert_eq!(second, json!({"pid": agent.peer.pid(), "session": agent.session, "prompt": "NEVER"}));
    let (_, answer) = agent.play("SAY while the first is open");
    assert_eq!(answer["error"]["code"], -32600);
}

#[test]
fn it_dies_and_survives_as_told() {
    let mut agent = Agent::start(&[]);
    agent.prompt("DIE 7");
    assert_eq!(agent.peer.wait(GENEROUS).code(), Some(7));

    let mut agent = Agent::start(&[]);
    agent.prompt("SEGV");
    let status = agent.peer.wait(GENEROUS);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(11));

    let mut agent = Agent::start(&[]);
    agent.peer.close_input();
    assert_eq!(agent.peer.wait(GENEROUS).code(), Some(0));

    let mut agent = Agent::start(&[]);
    let gate = agent.folder.path().join("gate");
    let id = agent
        .prompt(&format!("IGNORE_TERM ;; IGNORE_EOF ;; SAY ready ;; GATE {} ;; SAY alive", gate.display()));
    agent.peer.wait_for(GENEROUS, "ready", |message| message["method"] == "session/update");
    let pid = i32::try_from(agent.peer.pid()).ok().and_then(rustix::process::Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signal");
    agent.peer.close_input();
    agents::open_gate(&gate);
    assert_eq!(text(&agent.rest(id).0), "alive");
    assert!(agent.peer.is_running());

    let folder = tempfile::tempdir().expect("temporary folder");
    let mut peer = Peer::start(command(folder.path(), &[("SCRIPTED_DIE_AT", "new")]));
    peer.request("initialize", json!({"protocolVersion": 1}), GENEROUS);
    peer.ask("session/new", json!({"cwd": folder.path(), "mcpServers": []}));
    assert_eq!(peer.wait(GENEROUS).code(), Some(3));
}

#[test]
fn a_spawned_process_outlives_the_agent_and_is_seen() {
    let containment = Containment::enter();
    let mut agent = Agent::start(&[]);
    let fifo = agent.folder.path().join("end");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .expect("fifo");
    let (lines, _) = agent.play(&format!("SPAWN_HOLD read line < {}", fifo.display()));
    let said = text(&lines);
    let pid: i32 = said.trim_start_matches("spawned:").trim().parse().expect("a pid");
    agent.peer.close_input();
    assert_eq!(agent.peer.wait(GENEROUS).code(), Some(0));
    assert!(containment.leftovers().iter().any(|proc| proc.pid == pid), "the spawned process lives");
    assert_eq!(agent.peer.next(Duration::from_millis(1)), None);
    fs::write(&fifo, "\n").expect("end it");
    containment.assert_empty(GENEROUS);
}
