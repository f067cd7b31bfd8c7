//! An agent that speaks Codex's app-server protocol, as it was measured: threads outlive connections, an acknowledged
//! input may be lost, the history tells what was taken, and approvals come again on a new connection.

use crate::agent::{Truth, Turn};
use crate::chance::Chance;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

#[derive(Debug, Clone, PartialEq)]
enum Act {
    Start,
    /// Takes the oldest waiting input.
    Take,
    Say,
    Ask,
    Hang,
    Die,
    Complete,
}

#[derive(Debug)]
struct Running {
    id: String,
    started: bool,
    /// Accepted, not taken: client id and text.
    waiting: VecDeque<(String, String)>,
    acts: VecDeque<Act>,
    asked: Option<Approval>,
}

#[derive(Debug)]
struct Approval {
    item: String,
    /// The id under which it was asked last, on this connection.
    id: Option<u64>,
    /// Connections and ids under which it was asked; a host that could not read the first knows it by a later one.
    keys: Vec<String>,
}

/// A thread in the process's memory.
#[derive(Debug, Default)]
struct Loaded {
    subscribed: bool,
    running: Option<Running>,
}

/// One process with the threads of many sessions.
#[derive(Debug)]
pub(crate) struct Codex {
    token: String,
    pub(crate) alive: bool,
    connection: Option<u32>,
    threads: BTreeMap<String, Loaded>,
    /// Whose turn it is to go on.
    turn: usize,
    lines: VecDeque<Value>,
    ids: u64,
    /// Answered request ids of the present connection, by number.
    answered: BTreeMap<u64, String>,
}

const REFUSED: i64 = -32600;

impl Codex {
    pub(crate) fn new(token: &str) -> Self {
        Self {
            token: token.to_owned(),
            alive: true,
            connection: None,
            threads: BTreeMap::new(),
            turn: 0,
            lines: VecDeque::new(),
            ids: 0,
            answered: BTreeMap::new(),
        }
    }

    pub(crate) fn works(&self) -> bool {
        // What nobody listens to and waits for an answer waits for ever: a conversation that a user gave up (seed 104631).
        // One that a session still has is seen by its open turn.
        let goes_on = |thread: &Loaded| {
            thread.running.as_ref().is_some_and(|running| thread.subscribed || running.asked.is_none())
        };
        !self.lines.is_empty() || self.threads.values().any(goes_on)
    }

    pub(crate) fn connect(&mut self, number: u32) {
        self.connection = Some(number);
    }

    pub(crate) fn disconnect(&mut self) {
        self.connection = None;
        self.lines.clear();
        for thread in self.threads.values_mut() {
            thread.subscribed = false;
            if let Some(asked) = thread.running.as_mut().and_then(|running| running.asked.as_mut()) {
                asked.id = None;
            }
        }
    }

    /// The process is gone: its turns are cut.
    pub(crate) fn die(&mut self, truth: &mut Truth) {
        self.alive = false;
        self.disconnect();
        let threads: Vec<String> = self.threads.keys().cloned().collect();
        for thread in threads {
            self.end_turn(&thread, "interrupted", truth);
        }
        truth.holders.retain(|_, holder| *holder != self.token);
    }

    fn answer(&mut self, id: Value, result: Value) {
        self.lines.push_back(json!({ "id": id, "result": result }));
    }

    fn refuse(&mut self, id: Value, message: &str) {
        self.lines.push_back(json!({ "id": id, "error": { "code": REFUSED, "message": message } }));
    }

    /// Tells those who took the thread up.
    fn notify(&mut self, thread: &str, method: &str, params: Value) {
        if self.threads.get(thread).is_some_and(|thread| thread.subscribed) {
            self.lines.push_back(json!({ "method": method, "params": params }));
        }
    }

    fn notify_status(&mut self, thread: &str, status: &str) {
        let params = json!({ "threadId": thread, "status": { "type": status } });
        if self.connection.is_some() {
            self.lines.push_back(json!({ "method": "thread/status/changed", "params": params }));
        }
    }

    /// Lets threads go that nobody has taken up, in their own time.
    fn unload(&mut self, calm: bool, truth: &mut Truth) {
        self.turn += 1;
        if !calm && !self.turn.is_multiple_of(16) {
            return;
        }
        let left = |thread: &Loaded| !thread.subscribed && thread.running.is_none();
        for (name, _) in self.threads.extract_if(.., |_, thread| left(thread)) {
            truth.holders.remove(&name);
        }
    }

    /// Loads a thread and takes it up. A thread has one process that writes to it.
    fn take_up(&mut self, thread: &str, truth: &mut Truth) {
        let holder = truth.holders.insert(thread.to_owned(), self.token.clone());
        if let Some(holder) = holder.filter(|holder| *holder != self.token) {
            truth.violations.push(format!("{thread} is taken up by {} beside {holder}", self.token));
        }
        self.threads.entry(thread.to_owned()).or_default().subscribed = true;
    }

    pub(crate) fn hear(&mut self, payload: &[u8], truth: &mut Truth, chance: &mut Chance) {
        let Ok(message) = serde_json::from_slice::<Value>(payload) else {
            truth.violations.push("the agent received what is no JSON".to_owned());
            return;
        };
        let params = message.get("params").cloned().unwrap_or_default();
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let thread = text("threadId");
        match (message.get("method").and_then(Value::as_str), message.get("id").cloned()) {
            (Some("initialize"), Some(id)) => {
                self.answer(id, json!({ "userAgent": "codex/0.171.0 (sim)" }));
            }
            (Some("initialized"), None) => {}
            (Some("thread/start"), Some(id)) => {
                let made = truth.new_thread();
                self.take_up(&made, truth);
                self.answer(id, json!({ "thread": { "id": made } }));
            }
            (Some("thread/resume"), Some(id)) => {
                if !truth.histories.contains_key(&thread) {
                    return self.refuse(id, &format!("no rollout found for thread id {thread}"));
                }
                if truth.holders.get(&thread).is_some_and(|holder| *holder != self.token) {
                    return self.refuse(id, &format!("thread {thread} already has an active writer"));
                }
                self.take_up(&thread, truth);
                self.answer(id, json!({ "thread": { "id": thread } }));
                self.ask_again(&thread);
            }
            (Some("thread/fork"), Some(id)) => {
                let last = text("lastTurnId");
                let Some(branch) = truth.branch(&thread, Some(last.as_str()).filter(|last| !last.is_empty()))
                else {
                    return self.refuse(id, &format!("no rollout found for thread id {thread}"));
                };
                self.take_up(&branch, truth);
                self.answer(id, json!({ "thread": { "id": branch } }));
            }
            (Some("thread/revert"), Some(id)) => {
                let before = text("beforeTurnId");
                let runs = self.threads.get(&thread).is_none_or(|thread| thread.running.is_some());
                if runs || !truth.revert(&thread, &before) {
                    return self.refuse(id, "the turn cannot be reverted to now");
                }
                self.answer(id, json!({}));
            }
            (Some("thread/unsubscribe"), Some(id)) => {
                let subscribed = self
                    .threads
                    .get_mut(&thread)
                    .is_some_and(|thread| std::mem::take(&mut thread.subscribed));
                let status = if subscribed { "unsubscribed" } else { "notSubscribed" };
                self.answer(id, json!({ "status": status }));
            }
            (Some("thread/read"), Some(id)) => {
                let status = match self.threads.get(&thread) {
                    None => "notLoaded",
                    Some(Loaded { running: Some(_), .. }) => "active",
                    Some(Loaded { running: None, .. }) => "idle",
                };
                self.answer(id, json!({ "thread": { "id": thread, "status": { "type": status } } }));
            }
            (Some("thread/turns/list"), Some(id)) => self.list(id, &thread, &params, truth),
            (Some("turn/start"), Some(id)) => {
                let Some(loaded) = self.threads.get_mut(&thread) else {
                    return self.refuse(id, "thread not found");
                };
                let input = (text("clientUserMessageId"), first_text(&params));
                if let Some(running) = &mut loaded.running {
                    running.waiting.push_back(input);
                    running.acts.push_front(Act::Take);
                    let turn = running.id.clone();
                    return self.answer(id, json!({ "turn": { "id": turn, "status": "inProgress" } }));
                }
                let turn = truth.new_turn();
                loaded.running = Some(Running {
                    id: turn.clone(),
                    started: false,
                    waiting: VecDeque::from([input]),
                    acts: script(chance),
                    asked: None,
                });
                self.answer(id, json!({ "turn": { "id": turn, "status": "inProgress" } }));
            }
            (Some("turn/steer"), Some(id)) => {
                let expected = text("expectedTurnId");
                let input = (text("clientUserMessageId"), first_text(&params));
                match self.threads.get_mut(&thread).and_then(|thread| thread.running.as_mut()) {
                    Some(running) if running.started && running.id == expected => {
                        running.waiting.push_back(input);
                        if chance.hits(3, 4) {
                            running.acts.push_front(Act::Take);
                        }
                        self.answer(id, json!({ "turnId": expected }));
                    }
                    Some(running) if running.started => {
                        let found = running.id.clone();
                        let why = format!("expected active turn id `{expected}` but found `{found}`");
                        self.refuse(id, &why);
                    }
                    _ => self.refuse(id, "no active turn to steer"),
                }
            }
            (Some("turn/interrupt"), Some(id)) => {
                let wanted = text("turnId");
                match self.threads.get(&thread).and_then(|thread| thread.running.as_ref()) {
                    Some(running) if running.started && running.id == wanted => {
                        self.answer(id, json!({}));
                        self.end_turn(&thread, "interrupted", truth);
                    }
                    _ => self.refuse(id, "no active turn to interrupt"),
                }
            }
            // The settings in force are told after the answer, by a word of their own.
            (Some("thread/settings/update"), Some(id)) => {
                if !self.threads.contains_key(&thread) {
                    return self.refuse(id, "thread not found");
                }
                self.answer(id, json!({}));
                // Now and then the server has another mind.
                let taken = if chance.hits(1, 8) { json!("another") } else { params["model"].clone() };
                let told = json!({ "threadId": thread, "threadSettings": { "model": taken } });
                self.notify(&thread, "thread/settings/updated", told);
            }
            // It has no commands in the background, no goal and no name: taken, and nothing comes of it.
            (
                Some(
                    "thread/backgroundTerminals/clean"
                    | "thread/backgroundTerminals/terminate"
                    | "thread/compact/start"
                    | "thread/goal/set"
                    | "thread/goal/clear"
                    | "thread/name/set",
                ),
                Some(id),
            ) => {
                self.answer(id, json!({}));
            }
            (Some("thread/goal/get"), Some(id)) => self.answer(id, json!({ "goal": null })),
            (None, Some(id)) => self.decided(&id, &message, truth),
            (method, id) => truth.violations.push(format!("the agent received {method:?} with id {id:?}")),
        }
    }

    fn list(&mut self, id: Value, thread: &str, params: &Value, truth: &Truth) {
        let Some(turns) = truth.histories.get(thread).filter(|turns| !turns.is_empty()) else {
            let why = format!("thread {thread} is not materialized yet; send a message first");
            return self.refuse(id, &why);
        };
        let limit = params.get("limit").and_then(Value::as_u64).and_then(|limit| usize::try_from(limit).ok());
        let from = params.get("cursor").and_then(Value::as_u64).and_then(|at| usize::try_from(at).ok());
        let (limit, from) = (limit.unwrap_or(10), from.unwrap_or(0));
        let running = self.threads.get(thread).and_then(|thread| thread.running.as_ref());
        let running = running.map(|running| running.id.clone());
        // A turn that was cut off by its process's end, or copied by a fork while it ran, is an interrupted one (measured).
        let shown = |turn: &Turn| {
            let mut shown = turn.json();
            if shown["status"] == "inProgress" && shown["id"].as_str() != running.as_deref() {
                shown["status"] = "interrupted".into();
            }
            shown
        };
        let data: Vec<Value> = turns.iter().rev().skip(from).take(limit).map(shown).collect();
        let next = from + data.len();
        let cursor = (next < turns.len()).then_some(next);
        self.answer(id, json!({ "data": data, "nextCursor": cursor }));
    }

    /// Open approvals come again to whoever takes the thread up.
    fn ask_again(&mut self, thread: &str) {
        let Some(connection) = self.connection else { return };
        let Some(running) = self.threads.get_mut(thread).and_then(|thread| thread.running.as_mut()) else {
            return;
        };
        let Some(asked) = running.asked.as_mut().filter(|asked| asked.id.is_none()) else { return };
        let id = self.ids;
        self.ids += 1;
        asked.id = Some(id);
        asked.keys.push(format!("{connection}:{id}"));
        let params =
            json!({ "threadId": thread, "turnId": running.id, "itemId": asked.item, "command": "ls" });
        self.lines.push_back(
            json!({ "id": id, "method": "item/commandExecution/requestApproval", "params": params }),
        );
    }

    fn decided(&mut self, id: &Value, message: &Value, truth: &mut Truth) {
        let (Some(number), Some(decision)) =
            (id.as_u64(), message.pointer("/result/decision").and_then(Value::as_str))
        else {
            truth.violations.push(format!("an answer without a decision: {message}"));
            return;
        };
        if let Some(before) = self.answered.insert(number, decision.to_owned()) {
            truth.violations.push(format!("request {number} got {before} and {decision}"));
        }
        let answered = self.threads.iter_mut().find_map(|(name, thread)| {
            let asked = thread.running.as_mut()?.asked.take_if(|asked| asked.id == Some(number))?;
            Some((name.clone(), asked))
        });
        let Some((thread, asked)) = answered else { return };
        let first = asked.keys.first().cloned().unwrap_or_default();
        let name = (self.token.clone(), first);
        truth.also_asked.insert(name.clone(), asked.keys);
        truth.chosen.entry(name).or_default().push(decision.to_owned());
        let params = json!({ "threadId": thread, "requestId": number });
        self.notify(&thread, "serverRequest/resolved", params);
        if decision == "cancel" {
            self.end_turn(&thread, "interrupted", truth);
        }
    }

    fn end_turn(&mut self, thread: &str, status: &str, truth: &mut Truth) {
        let Some(running) = self.threads.get_mut(thread).and_then(|thread| thread.running.take()) else {
            return;
        };
        if let Some(asked) = &running.asked
            && let Some(id) = asked.id
        {
            let params = json!({ "threadId": thread, "requestId": id });
            self.notify(thread, "serverRequest/resolved", params);
        }
        if !running.started {
            // It was never more than an answer.
            return;
        }
        let Some(turn) = truth.turn(thread, &running.id) else { return };
        turn.status = status.to_owned();
        let body = json!({ "id": running.id, "status": status, "items": [], "error": null });
        self.notify(thread, "turn/completed", json!({ "threadId": thread, "turn": body }));
        self.notify_status(thread, "idle");
    }

    pub(crate) fn step(&mut self, calm: bool, truth: &mut Truth) -> Option<String> {
        if !self.alive {
            return None;
        }
        if self.lines.is_empty() || self.connection.is_none() {
            self.act(calm, truth);
        }
        if self.connection.is_some() {
            self.unload(calm, truth);
        }
        self.connection?;
        self.lines.pop_front().map(|line| line.to_string())
    }

    fn act(&mut self, calm: bool, truth: &mut Truth) {
        let able: Vec<String> = self
            .threads
            .iter()
            .filter(|(_, thread)| thread.running.as_ref().is_some_and(|running| running.asked.is_none()))
            .map(|(name, _)| name.clone())
            .collect();
        if able.is_empty() {
            return;
        }
        // Threads work beside each other: each goes on by one act, in its turn.
        self.turn += 1;
        let thread = able[self.turn % able.len()].clone();
        let Some(running) = self.threads.get_mut(&thread).and_then(|thread| thread.running.as_mut()) else {
            return;
        };
        let turn = running.id.clone();
        let Some(act) = running.acts.front().cloned() else { return };
        if act == Act::Hang && !calm {
            return;
        }
        running.acts.pop_front();
        let about = |item: &Value| json!({ "threadId": thread, "turnId": turn, "item": item });
        match act {
            Act::Hang => {}
            Act::Die if calm => {}
            Act::Die => self.die(truth),
            Act::Start => {
                running.started = true;
                truth.histories.entry(thread.clone()).or_default().push(Turn::begun(&turn));
                self.notify_status(&thread, "active");
                let body = json!({ "id": turn, "status": "inProgress" });
                self.notify(&thread, "turn/started", json!({ "threadId": thread, "turn": body }));
            }
            Act::Take => {
                let Some((client, text)) = running.waiting.pop_front() else { return };
                truth.receive(&text);
                let item = json!({ "type": "userMessage", "id": format!("u-{client}"), "clientId": client,
                    "content": [{ "type": "text", "text": text }], "completedAtMs": 1 });
                truth.complete(&thread, &turn, item.clone());
                self.notify(&thread, "item/started", about(&item));
                self.notify(&thread, "item/completed", about(&item));
            }
            Act::Say => {
                self.ids += 1;
                let id = format!("a-{}-{}", self.token, self.ids);
                let text = format!("[{id}]");
                let begun = json!({ "type": "agentMessage", "id": id, "text": "" });
                let done = json!({ "type": "agentMessage", "id": id, "text": text, "completedAtMs": 1 });
                self.notify(&thread, "item/started", about(&begun));
                for piece in [&text[..2], &text[2..]] {
                    let delta = json!({ "threadId": thread, "turnId": turn, "itemId": id, "delta": piece });
                    self.notify(&thread, "item/agentMessage/delta", delta);
                }
                truth.complete(&thread, &turn, done.clone());
                truth.said.entry(turn.clone()).or_default().push_str(&text);
                self.notify(&thread, "item/completed", about(&done));
            }
            Act::Ask => {
                self.ids += 1;
                let item = format!("c-{}", self.ids);
                running.asked = Some(Approval { item, id: None, keys: Vec::new() });
                if self.threads.get(&thread).is_some_and(|thread| thread.subscribed) {
                    self.ask_again(&thread);
                }
            }
            Act::Complete => self.end_turn(&thread, "completed", truth),
        }
    }
}

fn first_text(params: &Value) -> String {
    params.pointer("/input/0/text").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn script(chance: &mut Chance) -> VecDeque<Act> {
    let mut acts = VecDeque::from([Act::Start, Act::Take]);
    for _ in 0..chance.below(5) {
        acts.push_back(match chance.below(10) {
            0..=5 => Act::Say,
            6 | 7 => Act::Ask,
            8 => Act::Hang,
            _ => Act::Die,
        });
    }
    acts.push_back(Act::Complete);
    acts
}
