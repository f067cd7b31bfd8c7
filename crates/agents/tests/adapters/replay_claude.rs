//! Replays recorded conversations of the real Claude Code through the adapter.
//!
//! What the recording's client sent becomes a decision where a session could have made it; what it sent besides
//! (settings, queries) is left out together with its answer, and so is a message while another is not taken. The
//! recording's client mostly gave its messages no uuid: an echo gets the one of the message in flight that says the
//! same. Request ids of ours say what they are for, so an answer of the recording is renamed.

use crate::harness::{Harness, Life, select};
use crate::recordings;
use mainstay_agents::{AgentKind, UnansweredCall};
use mainstay_core::content::Answer;
use mainstay_core::question::Chosen;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Write;

const SESSION: &str = "s1";

struct Replay {
    harness: Harness,
    log: String,
    resume: Option<String>,
    unanswered: Vec<UnansweredCall>,
    /// What the recording's own requests were, by their ids.
    recorded: HashMap<String, String>,
    initialized: bool,
    /// The message in flight: its id here and its words.
    in_flight: Option<(String, String)>,
    turn: Option<String>,
    messages: usize,
}

/// The calls of a process before that the recording's client answers as this host does: by ids that say so.
fn unanswered(lines: &[Value]) -> Vec<UnansweredCall> {
    let read = |line: &Value| {
        let response = &line["msg"]["response"];
        let call = response["request_id"].as_str()?.strip_prefix("again:")?;
        let printed = |line: &&Value| line["msg"]["message"]["content"][0]["id"] == call;
        let block = &lines.iter().find(printed)?["msg"]["message"]["content"][0];
        Some(UnansweredCall {
            request: "before".into(),
            call: call.into(),
            tool: block["name"].as_str()?.to_owned(),
            input: response["response"]["updatedInput"].clone(),
        })
    };
    lines.iter().filter_map(read).collect()
}

impl Replay {
    fn new(lines: &[Value], life: Life) -> Self {
        let mut harness = Harness::new(AgentKind::Claude, life);
        let argv = lines.iter().find_map(|line| line["note"].as_str()?.strip_prefix("argv: "));
        let resume = argv
            .and_then(|argv| argv.split_once("--resume "))
            .map(|(_, behind)| behind.split_whitespace().next().expect("an id follows --resume").to_owned());
        let resume = resume.filter(|_| argv.is_some_and(|argv| !argv.contains("--fork-session")));
        let named = lines.iter().find_map(|line| line["msg"]["session_id"].as_str());
        harness.conversation = resume.clone().or(named.map(str::to_owned)).or_else(|| Some("c-1".to_owned()));
        harness.bind(SESSION);
        Self {
            harness,
            log: String::new(),
            resume,
            unanswered: unanswered(lines),
            recorded: HashMap::new(),
            initialized: false,
            in_flight: None,
            turn: None,
            messages: 0,
        }
    }

    fn note(&mut self, head: &str, lines: &[String]) {
        if lines.is_empty() {
            return;
        }
        writeln!(self.log, "{head}").expect("a string takes text");
        for line in lines {
            writeln!(self.log, "    {line}").expect("a string takes text");
            if let Some(started) = line.strip_prefix("s1: TurnStarted ") {
                self.turn = started.split_whitespace().next().map(str::to_owned);
            }
            if line.starts_with("s1: TurnEnded ") {
                self.turn = None;
            }
            if line.starts_with("s1: InputTaken ") {
                self.in_flight = None;
            }
        }
    }

    fn client(&mut self, message: &Value) {
        match message["type"].as_str() {
            Some("user") => self.client_message(message),
            Some("control_request") => {
                let subtype = message["request"]["subtype"].as_str().unwrap_or_default().to_owned();
                let id = message["request_id"].as_str().unwrap_or_default().to_owned();
                if subtype == "initialize" && self.recorded.is_empty() {
                    let lines = self.harness.connect();
                    self.note("> (connected)", &lines);
                }
                if subtype == "interrupt" {
                    let lines = self.harness.interrupt(SESSION, self.turn.clone().as_deref());
                    self.note("> interrupt", &lines);
                }
                self.recorded.insert(id, subtype);
            }
            Some("control_response") => self.client_answer(&message["response"]),
            _ => {}
        }
    }

    fn client_message(&mut self, message: &Value) {
        let Some(words) = message["message"]["content"].as_str() else { return };
        self.messages += 1;
        let id = message["uuid"].as_str().map_or_else(|| format!("m{}", self.messages), str::to_owned);
        let told = match self.turn.clone() {
            Some(turn) => self.harness.steer(SESSION, &turn, &id, words),
            None => self.harness.start(SESSION, &id, words),
        };
        match told {
            Ok(lines) => {
                self.in_flight = Some((id.clone(), words.to_owned()));
                self.note(&format!("> message {id}"), &lines);
            }
            Err(error) => self.note(&format!("> message {id}"), &[error.to_string()]),
        }
    }

    fn client_answer(&mut self, response: &Value) {
        let key = response["request_id"].as_str().unwrap_or_default();
        let body = &response["response"];
        let message = body["message"].as_str().map(str::to_owned);
        let answer = match (body["behavior"].as_str(), body["action"].as_str()) {
            (Some("allow"), _) if body["updatedInput"]["answers"].is_object() => self.answers(body),
            (Some("allow"), _) if body["updatedPermissions"].is_array() => select("suggestion:0"),
            (Some("allow"), _) => select("allow"),
            (Some("deny"), _) if body["interrupt"] == true => Answer::Cancel { message },
            (Some("deny"), _) => Answer::Decline { message },
            (_, Some("decline")) => Answer::Decline { message: None },
            (_, Some("cancel")) => Answer::Cancel { message: None },
            (_, Some(_)) => Answer::Submit { content: Some(body["content"].clone()) },
            _ => return,
        };
        match self.harness.answer(SESSION, key, answer, Vec::new()) {
            Ok(lines) => self.note("> answer", &lines),
            Err(error) => self.note("> answer", &[error.to_string()]),
        }
    }

    /// Each answer names its question by the question's text; ours are named by their place.
    fn answers(&self, body: &Value) -> Answer {
        let questions = body["updatedInput"]["questions"].as_array().expect("questions");
        let answers = questions.iter().enumerate().filter_map(|(number, question)| {
            let words = body["updatedInput"]["answers"][question["question"].as_str()?].as_str()?;
            let chosen = Chosen { selected: words.split(", ").map(str::to_owned).collect(), text: None };
            Some((number.to_string(), chosen))
        });
        Answer::Answers { answers: answers.collect() }
    }

    fn agent(&mut self, message: &Value) {
        let mut message = message.clone();
        let kind = message["type"].as_str().unwrap_or_default().to_owned();
        if kind == "control_response" {
            let id = message["response"]["request_id"].as_str().unwrap_or_default().to_owned();
            match self.recorded.get(&id).map(String::as_str) {
                Some("initialize") if !self.initialized => {
                    message["response"]["request_id"] = json!("initialize");
                }
                Some(_) => return,
                None => {}
            }
        }
        if kind == "user"
            && message["isReplay"] == true
            && let Some((id, words)) = &self.in_flight
            && message["message"]["content"] == json!(words)
        {
            message["uuid"] = json!(id);
        }
        let lines = self.harness.message(&message);
        let subtype = message["subtype"].as_str().or_else(|| message["event"]["type"].as_str());
        self.note(&format!("< {kind} {}", subtype.unwrap_or_default()), &lines);
        if !self.initialized && lines.iter().any(|line| line.starts_with("all: Ready ")) {
            self.initialized = true;
            let resume = self.resume.clone();
            // Known for this opening alone: a host looks again at the next.
            self.harness.learn_unanswered(SESSION, std::mem::take(&mut self.unanswered));
            let lines = self.harness.open(SESSION, resume.as_deref());
            self.note("> (open)", &lines);
        }
    }
}

fn replay(name: &str, life: Life) -> String {
    let lines = recordings::lines("claude", name);
    let mut replay = Replay::new(&lines, life);
    for line in &lines {
        match line["dir"].as_str() {
            Some("in") if line["msg"].is_object() => replay.client(&line["msg"]),
            Some("out") if line["msg"].is_object() => replay.agent(&line["msg"]),
            _ => {}
        }
    }
    replay.log
}

fn golden(name: &str) {
    let straight = replay(name, Life::OneLife);
    let reborn = replay(name, Life::NewEachStep);
    let differs = straight.lines().zip(reborn.lines()).find(|(one, other)| one != other);
    assert!(straight == reborn, "an adapter made anew from its saved state says something else: {differs:?}");
    recordings::compare(&format!("claude-{name}"), &straight);
}

/// One golden replay for each recording.
macro_rules! goldens {
    ($($test:ident: $name:literal;)*) => {$(
        #[test]
        fn $test() {
            golden($name);
        }
    )*};
}

goldens! {
    golden_claude_s01_basic: "s01_basic";
    golden_claude_perm_allow: "perm_allow";
    golden_claude_perm_deny: "perm_deny";
    golden_claude_perm_interrupt: "perm_interrupt";
    golden_claude_parallel_perms: "parallel_perms";
    golden_claude_ask: "ask";
    golden_claude_elicit: "elicit";
    golden_claude_elicit_url: "elicit_url";
    golden_claude_interrupts: "interrupts";
    golden_claude_queue_mid: "queue_mid";
    golden_claude_queue_prio: "queue_prio";
    golden_claude_steer_tool: "steer_tool";
    golden_claude_compact: "compact";
    golden_claude_errors: "errors";
    golden_claude_subagents: "subagents";
    golden_claude_bg_bash: "bg_bash";
    golden_claude_misc_bg_interrupt: "misc_bg_interrupt";
    golden_claude_dedupe: "dedupe";
    golden_claude_resume_clean_2: "resume_clean_2";
    golden_claude_resume_unknown: "resume_clean_7";
    golden_claude_orphan_perm_2: "orphan_perm_2";
    golden_claude_orphan_perms_2: "orphan_perms_2";
    golden_claude_limits_maxturns: "limits_maxturns";
    golden_claude_limits_autocompact: "limits_autocompact";
    golden_claude_set_things: "set_things";
    golden_claude_extras_summaries: "extras_summaries";
    golden_claude_misc2_now_perm: "misc2_now_perm";
    golden_claude_misc2_ask_int: "misc2_ask_int";
}

/// Every recording that is there (all of the study's, where it is beside this project) is read to its end, says something, and leaves a state that can be saved (the harness checks it).
#[test]
fn every_recording_is_understood() {
    let folder = recordings::folder("claude");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("the recordings are there")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".jsonl").map(str::to_owned))
        .filter(|name| !name.starts_with("tui_"))
        .collect();
    names.sort();
    assert!(!names.is_empty());
    for name in names {
        let straight = replay(&name, Life::OneLife);
        assert_eq!(straight, replay(&name, Life::NewEachStep), "{name}: a new adapter says something else");
    }
}
