//! Replays recorded conversations of real ACP agents through the adapter.
//!
//! As for Codex (see there): decisions from what the recording's client sent, ids translated by method. The recording's
//! client offered files and terminals, and sent prompts into running turns; what a session never does is left out
//! together with its answer. A process is replayed up to the point where its client loads a conversation that is open
//! in the same process, which a session never does either. Where a recording loads although the agent offers resuming,
//! the offer is taken out of the handshake, because the adapter prefers to resume.

use crate::harness::{Harness, Life, select};
use crate::recordings;
use mainstay_agents::AgentKind;
use mainstay_core::content::Answer;
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

struct Replay {
    harness: Harness,
    log: String,
    open: HashMap<String, VecDeque<u64>>,
    recorded: HashMap<String, (String, bool)>,
    opening: VecDeque<String>,
    threads: HashMap<String, String>,
    sessions: usize,
    submissions: usize,
    loads: bool,
}

/// Whether the rest of a process's recording can be replayed.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    Stop,
}

impl Replay {
    fn note(&mut self, head: &str, lines: &[String]) {
        writeln!(self.log, "{head}").expect("a string takes text");
        for line in lines {
            writeln!(self.log, "    {line}").expect("a string takes text");
        }
        for frame in self.harness.sent.clone() {
            if let (Some(method), Some(id)) = (frame["method"].as_str(), frame["id"].as_u64()) {
                self.open.entry(method.to_owned()).or_default().push_back(id);
            }
        }
    }

    fn client(&mut self, message: &Value) -> Next {
        let Some(method) = message["method"].as_str() else {
            self.client_answer(message);
            return Next::GoOn;
        };
        let params = &message["params"];
        let thread = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let session = self.threads.get(&thread).cloned();
        let told = match (method, session) {
            ("initialize", _) => Ok(self.harness.connect()),
            ("session/load" | "session/resume" | "session/fork", Some(_)) => return Next::Stop,
            ("session/new" | "session/load", None) => {
                self.sessions += 1;
                let session = format!("s{}", self.sessions);
                self.harness.bind(&session);
                self.opening.push_back(session.clone());
                let resume = (method == "session/load").then_some(thread.as_str());
                let lines = self.harness.open(&session, resume);
                if resume.is_some() {
                    // Its replay is about a thread that is known from now on.
                    self.threads.insert(thread, session);
                }
                Ok(lines)
            }
            ("session/prompt", Some(session)) => {
                self.submissions += 1;
                let prompt = params["prompt"][0]["text"].as_str().unwrap_or_default();
                self.harness.start(&session, &format!("m{}", self.submissions), prompt)
            }
            ("session/cancel", Some(session)) => Ok(self.harness.interrupt(&session, None)),
            _ => {
                self.recorded.insert(message["id"].to_string(), (method.to_owned(), false));
                return Next::GoOn;
            }
        };
        if message.get("id").is_some() {
            self.recorded.insert(message["id"].to_string(), (method.to_owned(), told.is_ok()));
        }
        match told {
            Ok(lines) => self.note(&format!("> {method}"), &lines),
            Err(error) => self.note(&format!("> {method}: {error}"), &[]),
        }
        Next::GoOn
    }

    fn client_answer(&mut self, message: &Value) {
        let outcome = &message["result"]["outcome"];
        let answer = match (outcome["outcome"].as_str(), outcome["optionId"].as_str()) {
            (Some("selected"), Some(option)) => select(option),
            (Some("cancelled"), _) => Answer::Cancel { message: None },
            // An answer to something that this adapter does not offer.
            _ => return,
        };
        let key = message["id"].to_string();
        let sessions: Vec<String> = (1..=self.sessions).map(|number| format!("s{number}")).collect();
        for session in sessions {
            if let Ok(lines) = self.harness.answer(&session, &key, answer.clone(), Vec::new()) {
                self.note("> answer", &lines);
                return;
            }
        }
        self.note("> answer: to no open request", &[]);
    }

    fn agent(&mut self, message: &Value) {
        if let Some(method) = message["method"].as_str() {
            let lines = self.harness.message(message);
            let what = message["params"]["update"]["sessionUpdate"].as_str().unwrap_or_default();
            self.note(format!("< {method} {what}").trim_end(), &lines);
            return;
        }
        let mut message = message.clone();
        let Some((method, ours)) = self.recorded.remove(&message["id"].to_string()) else { return };
        if !ours {
            return;
        }
        let Some(id) = self.open.get_mut(&method).and_then(VecDeque::pop_front) else { return };
        if self.loads
            && let Some(offers) = message.pointer_mut("/result/agentCapabilities/sessionCapabilities")
            && let Some(offers) = offers.as_object_mut()
        {
            offers.remove("resume");
        }
        if matches!(method.as_str(), "session/new" | "session/load") {
            let session = self.opening.pop_front().expect("an opening is waiting");
            if let Some(thread) = message.pointer("/result/sessionId").and_then(Value::as_str) {
                self.threads.insert(thread.to_owned(), session);
            }
        }
        message["id"] = json!(id);
        let lines = self.harness.message(&message);
        self.note(&format!("< answer to {method}"), &lines);
    }
}

fn replay(name: &str, process: &str, life: Life) -> String {
    let mut replay = Replay {
        harness: Harness::new(AgentKind::Acp, life),
        log: String::new(),
        open: HashMap::new(),
        recorded: HashMap::new(),
        opening: VecDeque::new(),
        threads: HashMap::new(),
        sessions: 0,
        submissions: 0,
        loads: process != "A",
    };
    for line in recordings::lines("acp", name) {
        if line["p"] != process {
            continue;
        }
        match line["d"].as_str() {
            Some(">") if replay.client(&line["m"]) == Next::Stop => break,
            Some("<") => replay.agent(&line["m"]),
            _ => {}
        }
    }
    replay.log
}

fn golden(name: &str) {
    let mut text = String::new();
    for process in ["A", "B"] {
        let straight = replay(name, process, Life::OneLife);
        let reborn = replay(name, process, Life::NewEachStep);
        let differs = straight.lines().zip(reborn.lines()).find(|(one, other)| one != other);
        assert!(
            straight == reborn,
            "an adapter made anew from its saved state says something else: {differs:?}"
        );
        write!(text, "process {process}\n{straight}").expect("a string takes text");
    }
    recordings::compare(&format!("acp-{name}"), &text);
}

#[test]
fn golden_acp_gemini() {
    golden("gemini");
}

#[test]
fn golden_acp_opencode() {
    golden("opencode");
}

#[test]
fn golden_acp_codex_acp() {
    golden("codex-acp");
}

#[test]
fn golden_acp_codex_acp_zed() {
    golden("codex-acp-zed");
}

#[test]
fn golden_acp_claude_agent_acp() {
    golden("claude-agent-acp");
}
