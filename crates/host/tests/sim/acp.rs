//! An agent that speaks ACP.

use crate::agent::Truth;
use crate::chance::Chance;
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};

/// What an agent does next with its prompt.
#[derive(Debug, Clone, PartialEq)]
enum Act {
    Say,
    Tool,
    Ask,
    /// Says nothing until things are calm.
    Hang,
    /// The process ends.
    Die,
    /// Asks, and takes the question back.
    AskAndWithdraw,
    /// Says what nobody models.
    Babble,
    End(&'static str),
    /// Answers the prompt with an error.
    Fail,
}

/// What a line says in a turn.
#[derive(Debug)]
enum Said {
    Text {
        turn: String,
        text: String,
    },
    /// What nobody models, with its mark.
    Odd {
        turn: String,
        mark: String,
    },
}

#[derive(Debug)]
struct Prompt {
    rpc: Value,
    text: String,
    thread: String,
    acts: VecDeque<Act>,
    waits_for: Option<u64>,
    chunks: usize,
    cancelled: bool,
}

/// One agent process.
#[derive(Debug)]
pub(crate) struct Acp {
    token: String,
    pub(crate) alive: bool,
    /// Lines that are ready to be written.
    lines: VecDeque<(Value, Option<Said>)>,
    prompt: Option<Prompt>,
    requests: u64,
    open: BTreeSet<u64>,
    can_load: bool,
    deaf_to_cancel: bool,
}

impl Acp {
    pub(crate) fn new(token: &str, chance: &mut Chance) -> Self {
        Self {
            token: token.to_owned(),
            alive: true,
            lines: VecDeque::new(),
            prompt: None,
            requests: 0,
            open: BTreeSet::new(),
            can_load: true,
            deaf_to_cancel: chance.hits(1, 8),
        }
    }

    /// Whether the agent holds a prompt that it has not answered.
    pub(crate) fn works(&self) -> bool {
        self.prompt.is_some() || !self.lines.is_empty()
    }

    /// Whether a prompt runs that nobody has cancelled, and everything it said so far is written.
    pub(crate) fn runs_uncancelled(&self) -> bool {
        let cancelled =
            |prompt: &Prompt| prompt.cancelled || matches!(prompt.acts.front(), Some(Act::End("cancelled")));
        self.alive && self.lines.is_empty() && self.prompt.as_ref().is_some_and(|prompt| !cancelled(prompt))
    }

    fn line(&mut self, value: Value) {
        self.lines.push_back((value, None));
    }

    /// Takes one message.
    pub(crate) fn hear(&mut self, payload: &[u8], truth: &mut Truth, chance: &mut Chance) {
        let Ok(message) = serde_json::from_slice::<Value>(payload) else {
            truth.violations.push("the agent received what is no JSON".to_owned());
            return;
        };
        let id = message.get("id").cloned();
        let params = message.get("params").cloned().unwrap_or_default();
        match (message.get("method").and_then(Value::as_str), id) {
            (Some("initialize"), Some(id)) => {
                let loads = self.can_load;
                self.line(json!({ "jsonrpc": "2.0", "id": id, "result": {
                    "protocolVersion": 1, "agentCapabilities": { "loadSession": loads },
                    "agentInfo": { "name": "sim", "version": "1" } } }));
            }
            (Some("session/new"), Some(id)) => {
                let thread = truth.new_thread();
                if chance.hits(1, 2) {
                    truth.saved.insert(thread.clone());
                }
                self.line(json!({ "jsonrpc": "2.0", "id": id, "result": { "sessionId": thread } }));
            }
            (Some("session/load"), Some(id)) => {
                let known = params
                    .get("sessionId")
                    .and_then(Value::as_str)
                    .is_some_and(|thread| truth.saved.contains(thread));
                self.line(if known {
                    json!({ "jsonrpc": "2.0", "id": id, "result": {} })
                } else {
                    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32602, "message": "not found" } })
                });
            }
            (Some("session/prompt"), Some(id)) => self.prompted(id, &params, truth, chance),
            (Some("session/cancel"), None) => {
                let Some(prompt) = &mut self.prompt else { return };
                prompt.cancelled = true;
                if self.deaf_to_cancel {
                    prompt.waits_for = None;
                    return;
                }
                prompt.waits_for = None;
                prompt.acts = VecDeque::from([Act::End("cancelled")]);
                if chance.hits(1, 3) {
                    prompt.acts.push_front(Act::Say);
                }
                self.open.clear();
            }
            (None, Some(id)) => self.answered(&id, &message, truth),
            (method, id) => {
                truth.violations.push(format!("the agent received {method:?} with id {id:?}"));
            }
        }
    }

    fn prompted(&mut self, rpc: Value, params: &Value, truth: &mut Truth, chance: &mut Chance) {
        let text = params.pointer("/prompt/0/text").and_then(Value::as_str).unwrap_or_default().to_owned();
        let thread = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        truth.receive(&text);
        if self.prompt.is_some() {
            truth.violations.push(format!("a second prompt ({text:?}) while one is open"));
        }
        truth.saved.insert(thread.clone());
        let mut acts = VecDeque::new();
        for _ in 0..chance.below(5) {
            acts.push_back(match chance.below(12) {
                0..=4 => Act::Say,
                5 => Act::Babble,
                6 => Act::Tool,
                7 => Act::AskAndWithdraw,
                8..=9 => Act::Ask,
                10 => Act::Hang,
                _ => Act::Die,
            });
        }
        acts.push_back(match chance.below(10) {
            0 => Act::End("refusal"),
            1 => Act::Fail,
            2 => Act::End("no such word"),
            _ => Act::End("end_turn"),
        });
        self.prompt = Some(Prompt { rpc, text, thread, acts, waits_for: None, chunks: 0, cancelled: false });
    }

    fn answered(&mut self, id: &Value, message: &Value, truth: &mut Truth) {
        let Some(number) = id.as_u64() else {
            truth.violations.push(format!("an answer to no request: {message}"));
            return;
        };
        if let Some(option) = message.pointer("/result/outcome/optionId").and_then(Value::as_str) {
            let chosen = truth.chosen.entry((self.token.clone(), number.to_string())).or_default();
            chosen.push(option.to_owned());
            if chosen.len() > 1 {
                truth.violations.push(format!("request {number} of {} got {chosen:?}", self.token));
            }
        }
        self.open.remove(&number);
        if let Some(prompt) = &mut self.prompt
            && prompt.waits_for == Some(number)
        {
            prompt.waits_for = None;
        }
    }

    /// Goes one step on. Gives the next line of output, if there is one now.
    pub(crate) fn step(&mut self, calm: bool, truth: &mut Truth) -> Option<String> {
        if !self.alive {
            return None;
        }
        if self.lines.is_empty() {
            self.act(calm);
        }
        let (line, said) = self.lines.pop_front()?;
        match said {
            Some(Said::Text { turn, text }) => truth.said.entry(turn).or_default().push_str(&text),
            Some(Said::Odd { turn, mark }) => truth.odd.entry(turn).or_default().push(mark),
            None => {}
        }
        Some(line.to_string())
    }

    fn act(&mut self, calm: bool) {
        let Some(prompt) = &mut self.prompt else { return };
        if prompt.waits_for.is_some() {
            return;
        }
        let update = |update: Value| {
            json!({ "jsonrpc": "2.0", "method": "session/update",
                "params": { "sessionId": prompt.thread, "update": update } })
        };
        match prompt.acts.front().cloned() {
            None => {}
            Some(Act::Hang | Act::Die) if calm => {
                prompt.acts.pop_front();
            }
            Some(Act::Hang) => {}
            Some(Act::Die) => {
                prompt.acts.pop_front();
                self.alive = false;
            }
            Some(Act::Say) => {
                let text = format!("[{} {}]", prompt.text, prompt.chunks);
                let line = update(json!({ "sessionUpdate": "agent_message_chunk",
                    "content": { "type": "text", "text": text } }));
                // The turn is named after the submission, as its text is.
                let said = Said::Text { turn: prompt.text.replacen("do ", "p.", 1), text };
                prompt.chunks += 1;
                prompt.acts.pop_front();
                self.lines.push_back((line, Some(said)));
            }
            Some(Act::Tool) => {
                let call = format!("call-{}-{}", prompt.text, prompt.chunks);
                prompt.chunks += 1;
                prompt.acts.pop_front();
                let begun = update(json!({ "sessionUpdate": "tool_call", "toolCallId": call,
                    "title": "look", "kind": "read", "status": "pending" }));
                let done = update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": call,
                    "status": "completed" }));
                self.line(begun);
                self.line(done);
            }
            Some(Act::Babble) => {
                prompt.acts.pop_front();
                let mark = format!("{} {}", prompt.text, prompt.chunks);
                prompt.chunks += 1;
                let odd = update(json!({ "sessionUpdate": "weather_update", "sky": mark }));
                let turn = prompt.text.replacen("do ", "p.", 1);
                self.lines.push_back((odd, Some(Said::Odd { turn, mark })));
                self.line(json!("no message at all"));
                self.line(json!({ "jsonrpc": "2.0", "id": 7_000_000, "result": {} }));
                self.line(json!({ "jsonrpc": "2.0", "method": "odd/thing", "params": {} }));
            }
            Some(Act::Fail) => {
                let error = json!({ "code": -32000, "message": "simulated" });
                let line = json!({ "jsonrpc": "2.0", "id": prompt.rpc, "error": error });
                self.prompt = None;
                self.line(line);
            }
            Some(act @ (Act::Ask | Act::AskAndWithdraw)) => {
                let number = self.requests;
                self.requests += 1;
                prompt.waits_for = (act == Act::Ask).then_some(number);
                prompt.acts.pop_front();
                let line = json!({ "jsonrpc": "2.0", "id": number, "method": "session/request_permission",
                    "params": { "sessionId": prompt.thread, "toolCall": { "toolCallId": "x", "title": "may I" },
                        "options": [
                            { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
                            { "optionId": "no", "name": "No", "kind": "reject_once" } ] } });
                self.open.insert(number);
                self.line(line);
                if act == Act::AskAndWithdraw {
                    let params = json!({ "requestId": number });
                    self.line(json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": params }));
                }
            }
            Some(Act::End(reason)) => {
                let line = json!({ "jsonrpc": "2.0", "id": prompt.rpc, "result": { "stopReason": reason } });
                self.prompt = None;
                self.line(line);
            }
        }
    }
}
