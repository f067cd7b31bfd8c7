//! Replays recorded conversations of the real Codex through the adapter.
//!
//! What the recording's client sent becomes a decision where a session could have made it; what it sent besides
//! (reads, steering, settings) is left out together with its answer. Our request ids differ, so an answer of the
//! recording is given to the open request of ours with the same method and gets its id. The recording's client mostly
//! gave no client id with its messages: a user message without one gets the id of the submission that is in flight.
//! `thread/turns/list`, which the adapter asks and the recording's client did not, is answered with an empty history.

use crate::harness::{Harness, Life, select};
use crate::recordings;
use mainstay_agents::AgentKind;
use mainstay_core::content::Answer;
use mainstay_core::question::Chosen;
use mainstay_core::work::{Control, HistoryPoint};
use mainstay_core::{Decision, SessionOptions};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::fmt::Write;

struct Replay {
    harness: Harness,
    log: String,
    /// Our open requests by method.
    open: HashMap<String, VecDeque<u64>>,
    /// The recorded request behind a recorded id; true where ours answers to it.
    recorded: HashMap<String, (String, bool)>,
    /// Sessions that wait for the answer to their opening, in order.
    opening: VecDeque<String>,
    /// The session of a thread.
    threads: HashMap<String, String>,
    /// The submission in flight on a thread, for messages without a client id.
    in_flight: HashMap<String, String>,
    sessions: usize,
    submissions: usize,
    controls: usize,
}

impl Replay {
    fn new(life: Life) -> Self {
        Self {
            harness: Harness::new(AgentKind::Codex, life),
            log: String::new(),
            open: HashMap::new(),
            recorded: HashMap::new(),
            opening: VecDeque::new(),
            threads: HashMap::new(),
            in_flight: HashMap::new(),
            sessions: 0,
            submissions: 0,
            controls: 0,
        }
    }

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
        self.answer_history();
    }

    fn answer_history(&mut self) {
        while let Some(id) = self.open.get_mut("thread/turns/list").and_then(VecDeque::pop_front) {
            let lines =
                self.harness.message(&json!({ "id": id, "result": { "data": [], "nextCursor": null } }));
            self.note("< (an empty history)", &lines);
        }
    }

    fn client(&mut self, message: &Value) {
        let Some(method) = message["method"].as_str() else {
            self.client_answer(message);
            return;
        };
        let params = &message["params"];
        let thread = params["threadId"].as_str().unwrap_or_default().to_owned();
        let session = self.threads.get(&thread).cloned();
        let text = |name: &str| params[name].as_str().map(str::to_owned);
        let told = match (method, session) {
            ("initialize", _) => Ok(self.harness.connect()),
            ("thread/start" | "thread/resume", _) => {
                self.sessions += 1;
                let session = format!("s{}", self.sessions);
                self.harness.bind(&session);
                let options = SessionOptions {
                    model: text("model"),
                    sandbox: text("sandbox"),
                    approval: text("approvalPolicy"),
                    ..SessionOptions::default()
                };
                self.opening.push_back(session.clone());
                let resume = (method == "thread/resume").then_some(thread.as_str());
                Ok(self.harness.open_with(&session, resume, options, &[]))
            }
            ("turn/start", Some(session)) => {
                self.submissions += 1;
                let submission =
                    text("clientUserMessageId").unwrap_or_else(|| format!("m{}", self.submissions));
                let prompt = params["input"][0]["text"].as_str().unwrap_or_default();
                let told = self.harness.start(&session, &submission, prompt);
                if told.is_ok() && params["clientUserMessageId"].is_null() {
                    self.in_flight.insert(thread, submission);
                }
                told
            }
            ("turn/interrupt", Some(session)) => {
                Ok(self.harness.interrupt(&session, params["turnId"].as_str()))
            }
            ("turn/steer", Some(session)) => {
                self.submissions += 1;
                let submission =
                    text("clientUserMessageId").unwrap_or_else(|| format!("m{}", self.submissions));
                let prompt = params["input"][0]["text"].as_str().unwrap_or_default();
                let turn = params["expectedTurnId"].as_str().unwrap_or_default();
                let told = self.harness.steer(&session, turn, &submission, prompt);
                if told.is_ok() && params["clientUserMessageId"].is_null() {
                    self.in_flight.insert(thread, submission);
                }
                told
            }
            ("thread/unsubscribe", Some(session)) => self.harness.tell(&session, &Decision::CloseThread),
            (_, Some(session)) if control(method, params).is_some() => {
                self.controls += 1;
                let id = format!("k{}", self.controls);
                let control = control(method, params).expect("was asked");
                self.harness.tell(&session, &Decision::Control { id: id.as_str().into(), control })
            }
            _ => {
                self.recorded.insert(message["id"].to_string(), (method.to_owned(), false));
                return;
            }
        };
        self.recorded.insert(message["id"].to_string(), (method.to_owned(), told.is_ok()));
        match told {
            Ok(lines) => self.note(&format!("> {method}"), &lines),
            Err(error) => self.note(&format!("> {method}: {error}"), &[]),
        }
    }

    fn client_answer(&mut self, message: &Value) {
        let Some(answer) = answer_of(message) else { return };
        let key = format!("1:{}", message["id"]);
        let sessions: Vec<String> = (1..=self.sessions).map(|number| format!("s{number}")).collect();
        let words = serde_json::to_string(&answer).expect("has a JSON form");
        for session in sessions {
            if let Ok(lines) = self.harness.answer(&session, &key, answer.clone(), Vec::new()) {
                self.note(&format!("> answer {words}"), &lines);
                return;
            }
        }
        self.note(&format!("> answer {words}: to no open request"), &[]);
    }

    fn server(&mut self, message: &Value) {
        if let Some(length) = message["_trimmed"].as_u64() {
            let head = message["head"].as_str().unwrap_or_default();
            if !head.starts_with(r#"{"id""#) {
                let lines = self.harness.oversize(length, head.as_bytes());
                self.note("< (trimmed)", &lines);
            }
            return;
        }
        let mut message = message.clone();
        let Some(method) = message["method"].as_str().map(str::to_owned) else {
            self.server_answer(message);
            return;
        };
        if let Some(item) = message.pointer_mut("/params/item")
            && item["type"] == "userMessage"
            && item["clientId"].is_null()
        {
            let thread = message["params"]["threadId"].as_str().unwrap_or_default().to_owned();
            if let Some(submission) = self.in_flight.get(&thread) {
                message["params"]["item"]["clientId"] = json!(submission);
            }
            if method == "item/completed" {
                self.in_flight.remove(&thread);
            }
        }
        let lines = self.harness.message(&message);
        self.note(&format!("< {method}"), &lines);
    }

    fn server_answer(&mut self, mut message: Value) {
        let Some((method, ours)) = self.recorded.remove(&message["id"].to_string()) else { return };
        if !ours {
            return;
        }
        // None: the adapter asked something less than the recording's client did (an interrupt that waits).
        let Some(id) = self.open.get_mut(&method).and_then(VecDeque::pop_front) else { return };
        if matches!(method.as_str(), "thread/start" | "thread/resume") {
            let session = self.opening.pop_front().expect("an opening is waiting");
            if let Some(thread) = message.pointer("/result/thread/id").and_then(Value::as_str) {
                self.threads.insert(thread.to_owned(), session);
            }
        }
        message["id"] = json!(id);
        let lines = self.harness.message(&message);
        self.note(&format!("< answer to {method}"), &lines);
    }
}

/// The answer of a person that makes what the recording's client answered.
fn answer_of(message: &Value) -> Option<Answer> {
    let result = &message["result"];
    if message.get("error").is_some() {
        return Some(Answer::Decline { message: None });
    }
    if let Some(scope) = result["scope"].as_str() {
        return Some(select(scope));
    }
    if let Some(answers) = result["answers"].as_object() {
        let chosen = |answer: &Value| {
            let words = answer["answers"].as_array().expect("answers are lists");
            let selected = words.iter().filter_map(|word| word.as_str().map(str::to_owned)).collect();
            Chosen { selected, text: None }
        };
        let answers = answers.iter().map(|(id, answer)| (id.clone(), chosen(answer))).collect();
        return Some(Answer::Answers { answers });
    }
    if let Some(action) = result["action"].as_str() {
        return Some(match (action, &result["content"]) {
            ("accept", Value::Object(fields)) if !fields.is_empty() => {
                Answer::Submit { content: Some(result["content"].clone()) }
            }
            ("accept", _) => select("accept"),
            ("cancel", _) => Answer::Cancel { message: None },
            _ => Answer::Decline { message: None },
        });
    }
    if result["success"].is_boolean() {
        return Some(Answer::Decline { message: None });
    }
    let option = match &result["decision"] {
        Value::String(word) => word.clone(),
        Value::Object(named) => named.keys().next().cloned().unwrap_or_default(),
        _ => return None,
    };
    Some(select(&option))
}

/// What the recording's client asked, as a session asks it.
fn control(method: &str, params: &Value) -> Option<Control> {
    let text = |name: &str| params[name].as_str().map(str::to_owned);
    Some(match method {
        "thread/goal/set" => match (text("objective"), text("status").as_deref()) {
            (Some(objective), _) => Control::SetGoal { objective, token_budget: None },
            (None, Some("paused")) => Control::PauseGoal,
            (None, _) => Control::ResumeGoal,
        },
        "thread/goal/clear" => Control::ClearGoal,
        "thread/compact/start" => Control::Compact { instructions: None },
        "thread/shellCommand" => Control::Shell { command: text("command")? },
        "thread/name/set" => Control::Rename { name: text("name")? },
        "thread/backgroundTerminals/clean" => Control::StopBackground,
        "thread/revert" => {
            let turn = text("beforeTurnId")?.as_str().into();
            Control::Rewind { before: HistoryPoint { turn, submission: None, last_item: None }, files: false }
        }
        "thread/settings/update" => {
            let changed = SessionOptions {
                model: text("model"),
                effort: text("effort"),
                tier: text("serviceTier"),
                approval: text("approvalPolicy"),
                ..SessionOptions::default()
            };
            Control::SetOptions { options: Box::new(changed.clone()), changed: Box::new(changed) }
        }
        _ => return None,
    })
}

/// Replays what one client of a recording saw.
fn replay(name: &str, client: Option<&str>, life: Life) -> String {
    let mut replay = Replay::new(life);
    for line in recordings::lines("codex", name) {
        if line["conn"].as_str() != client {
            continue;
        }
        match line["dir"].as_str() {
            Some(">") => replay.client(&line["msg"]),
            Some("<") => replay.server(&line["msg"]),
            _ => {}
        }
    }
    replay.log
}

fn golden(name: &str, client: Option<&str>) {
    let straight = replay(name, client, Life::OneLife);
    let reborn = replay(name, client, Life::NewEachStep);
    let differs = straight.lines().zip(reborn.lines()).find(|(one, other)| one != other);
    assert!(straight == reborn, "an adapter made anew from its saved state says something else: {differs:?}");
    let client = client.map(|client| format!("-{}", client.to_lowercase())).unwrap_or_default();
    recordings::compare(&format!("codex-{name}{client}"), &straight);
}

#[test]
fn golden_codex_basic() {
    golden("basic", None);
}

#[test]
fn golden_codex_approvals() {
    golden("approvals", None);
}

#[test]
fn golden_codex_filechange() {
    golden("filechange", None);
}

#[test]
fn golden_codex_interrupt() {
    golden("interrupt", None);
}

#[test]
fn golden_codex_interrupt_late() {
    golden("interrupt_late", None);
}

#[test]
fn golden_codex_errors() {
    golden("errors", None);
}

#[test]
fn golden_codex_codemode() {
    golden("codemode", None);
}

#[test]
fn golden_codex_resume_in_another_process() {
    golden("resume", Some("B"));
    golden("resume", Some("C"));
}

#[test]
fn golden_codex_joined_with_an_open_approval() {
    golden("ws", Some("C"));
}

#[test]
fn golden_codex_steer() {
    golden("steer", None);
}

#[test]
fn golden_codex_userinput() {
    golden("userinput", None);
}

#[test]
fn golden_codex_mcp() {
    golden("mcp", None);
}

#[test]
fn golden_codex_subagents_v1() {
    golden("subagents_v1", None);
}

#[test]
fn golden_codex_subagents_v2() {
    golden("subagents_v2", None);
}

#[test]
fn golden_codex_threads() {
    golden("threads", None);
}

#[test]
fn golden_codex_background() {
    golden("background", None);
}

#[test]
fn golden_codex_dyntools() {
    golden("dyntools", None);
}

#[test]
fn golden_codex_queue() {
    golden("queue", None);
}

#[test]
fn golden_codex_compact_busy() {
    golden("compact_busy", None);
}

#[test]
fn golden_codex_denied_silent() {
    golden("denied_silent", None);
}
