//! An agent that speaks Claude Code's stream-json, as it was measured: it is told its conversation when it starts, takes a
//! message at the beginning of a turn or at a tool's end, echoes it late or never, ends turns with results that pair up
//! with nothing, works in the background, and keeps a transcript in which a message stands before the model has it.

use crate::agent::Truth;
use crate::chance::Chance;
use crate::transcript::Transcripts;
use serde_json::{Value, json};
use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;

/// What the agent does next in its turn.
#[derive(Debug, Clone, PartialEq)]
enum Act {
    Say,
    /// A tool that needs no leave; at its end what waits is taken into the turn.
    Tool,
    Ask,
    AskAndWithdraw,
    /// A command that goes on in the background.
    Background,
    Babble,
    Retry,
    Hang,
    Die,
    /// The connection to the model is lost in the middle of a message: it counts as whole.
    CutOff,
    End(Ending),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Ending {
    Done,
    Refusal,
    MaxTurns,
    ApiError,
}

/// What waits to be taken.
#[derive(Debug, Clone)]
struct Waiting {
    uuid: String,
    text: String,
}

impl Waiting {
    /// A local command of the agent: no message.
    fn is_command(&self) -> bool {
        self.text.starts_with('/')
    }
}

#[derive(Debug)]
struct Turn {
    id: String,
    acts: VecDeque<Act>,
    /// The open question, and the call that it is about.
    asked: Option<(String, String)>,
    /// Taken and not echoed.
    echo: Option<Waiting>,
    of_task: bool,
}

/// One agent process with its one conversation.
#[derive(Debug)]
pub(crate) struct Claude {
    token: String,
    pub(crate) alive: bool,
    chance: Chance,
    conversation: String,
    transcripts: Transcripts,
    /// Lines to be written, and what the model says by them.
    lines: VecDeque<(Value, Option<(String, String)>)>,
    /// It ends as soon as its lines are written.
    leaves: bool,
    queue: VecDeque<Waiting>,
    turn: Option<Turn>,
    works: bool,
    tasks: Vec<(String, String)>,
    model: String,
    mode: String,
    asked: u64,
    /// Questions that were answered, for ever.
    answered: BTreeSet<String>,
    spent: u64,
}

impl Claude {
    /// A process that is started with these arguments.
    pub(crate) fn new(
        token: &str,
        argv: &[String],
        home: PathBuf,
        truth: &mut Truth,
        chance: &mut Chance,
    ) -> Self {
        let value = |name: &str| argv.iter().find_map(|word| word.strip_prefix(name)).map(str::to_owned);
        let (resumed, named) = (value("--resume="), value("--session-id="));
        let forks = argv.iter().any(|word| word == "--fork-session");
        let conversation = named.clone().or_else(|| resumed.clone()).unwrap_or_default();
        let mut agent = Self {
            token: token.to_owned(),
            alive: true,
            chance: Chance::new(chance.next()),
            transcripts: Transcripts::of(home),
            lines: VecDeque::new(),
            leaves: false,
            queue: VecDeque::new(),
            turn: None,
            works: false,
            tasks: Vec::new(),
            model: "sim".to_owned(),
            mode: "default".to_owned(),
            asked: 0,
            answered: BTreeSet::new(),
            spent: 0,
            conversation,
        };
        if agent.conversation.is_empty() {
            truth.violations.push(format!("{token} was started without a conversation: {argv:?}"));
        }
        agent.hold(truth);
        match (resumed, named) {
            (Some(source), Some(branch)) if forks && agent.transcripts.exist(&source) => {
                agent.transcripts.branch(&source, &branch, value("--resume-session-at=").as_deref());
            }
            // The name is taken: it says so on stderr alone and is gone.
            (None, Some(name)) if agent.transcripts.exist(&name) => agent.leaves = true,
            (Some(resumed), _) if !agent.transcripts.exist(&resumed) => {
                let error = format!("No conversation found with session ID: {resumed}");
                agent.say(json!({ "type": "result", "subtype": "error_during_execution", "is_error": true,
                    "num_turns": 0, "errors": [error] }));
                agent.leaves = true;
            }
            _ => {}
        }
        agent
    }

    fn hold(&self, truth: &mut Truth) {
        let holder = truth.holders.insert(self.conversation.clone(), self.token.clone());
        if let Some(holder) = holder.filter(|holder| *holder != self.token) {
            let (conversation, token) = (&self.conversation, &self.token);
            truth.violations.push(format!("{conversation} is taken up by {token} beside {holder}"));
        }
    }

    pub(crate) fn die(&mut self, truth: &mut Truth) {
        self.alive = false;
        self.turn = None;
        truth.holders.retain(|_, holder| *holder != self.token);
    }

    pub(crate) fn works(&self) -> bool {
        let busy = self.turn.is_some() || !self.queue.is_empty() || !self.tasks.is_empty();
        busy || !self.lines.is_empty() || self.leaves
    }

    fn say(&mut self, line: Value) {
        self.lines.push_back((line, None));
    }

    fn respond(&mut self, id: &Value, response: Value) {
        let response = json!({ "subtype": "success", "request_id": id, "response": response });
        self.say(json!({ "type": "control_response", "response": response }));
    }

    fn state(&mut self, state: &str) {
        self.works = state != "idle";
        self.say(json!({ "type": "system", "subtype": "session_state_changed", "state": state }));
    }

    /// Takes one line.
    pub(crate) fn hear(&mut self, payload: &[u8], truth: &mut Truth) {
        let Ok(line) = serde_json::from_slice::<Value>(payload) else {
            truth.violations.push("the agent received what is no JSON and ended".to_owned());
            return self.die(truth);
        };
        match line["type"].as_str() {
            Some("user") => self.told(&line, truth),
            Some("control_request") => self.requested(&line, truth),
            Some("control_response") => self.decided(&line, truth),
            other => truth.violations.push(format!("the agent received a line of type {other:?}")),
        }
    }

    fn told(&mut self, line: &Value, truth: &mut Truth) {
        let uuid = line["uuid"].as_str().unwrap_or_default().to_owned();
        let text = line.pointer("/message/content").and_then(Value::as_str).unwrap_or_default().to_owned();
        let waiting = Waiting { uuid, text };
        if waiting.is_command() {
            return self.queue.push_back(waiting);
        }
        let untaken = self.queue.iter().any(|other| !other.is_command())
            || self.turn.as_ref().is_some_and(|turn| turn.echo.is_some());
        if untaken {
            truth.violations.push(format!("{} was given while another message is untaken", waiting.uuid));
        }
        if self.transcripts.has(&self.conversation, &waiting.uuid) {
            // It knows that message: only the echo comes. Nobody should have asked.
            truth.receive(&waiting.text);
            return self.echo(&waiting);
        }
        self.queue.push_back(waiting);
    }

    fn requested(&mut self, line: &Value, truth: &mut Truth) {
        let (id, request) = (&line["request_id"], &line["request"]);
        match request["subtype"].as_str().unwrap_or_default() {
            "initialize" => {
                let open: Vec<Value> = Vec::new();
                self.respond(
                    id,
                    json!({ "commands": [], "models": [], "pending_permission_requests": open }),
                );
            }
            "get_binary_version" => self.respond(id, json!({ "version": "2.1.197" })),
            "set_model" => {
                self.model = request["model"].as_str().unwrap_or("sim").to_owned();
                self.respond(id, Value::Null);
                let words =
                    format!("<local-command-stdout>Set model to {}</local-command-stdout>", self.model);
                let uuid = truth.name("loc");
                self.say(json!({ "type": "user", "uuid": uuid, "isReplay": true,
                    "message": { "role": "user", "content": words } }));
            }
            "set_permission_mode" => {
                self.mode = request["mode"].as_str().unwrap_or("default").to_owned();
                let mode = self.mode.clone();
                self.respond(id, json!({ "mode": mode }));
                self.say(
                    json!({ "type": "system", "subtype": "status", "status": null, "permissionMode": mode }),
                );
            }
            "apply_flag_settings" | "rename_session" => self.respond(id, Value::Null),
            "cancel_async_message" => {
                let wanted = request["message_uuid"].as_str().unwrap_or_default();
                let before = self.queue.len();
                self.queue.retain(|waiting| waiting.uuid != wanted);
                self.respond(id, json!({ "cancelled": self.queue.len() < before }));
            }
            "interrupt" => {
                self.respond(id, Value::Null);
                if self.turn.is_none() && !self.queue.is_empty() && self.chance.hits(1, 2) {
                    // Read in one go with its message: the turn begins and is cut.
                    self.begin(truth);
                }
                self.cut_turn(truth);
            }
            "stop_task" => {
                self.respond(id, json!({}));
                let wanted = request["task_id"].as_str().unwrap_or_default().to_owned();
                if let Some(place) = self.tasks.iter().position(|(task, _)| *task == wanted) {
                    self.tasks.remove(place);
                    self.say(json!({ "type": "system", "subtype": "task_updated", "task_id": wanted,
                        "patch": { "status": "killed" } }));
                    self.say(json!({ "type": "system", "subtype": "task_notification", "task_id": wanted,
                        "status": "stopped", "summary": "stopped" }));
                }
            }
            other => {
                let error = format!("Unsupported control request subtype: {other}");
                let response = json!({ "subtype": "error", "request_id": id, "error": error });
                self.say(json!({ "type": "control_response", "response": response }));
            }
        }
    }

    /// The answer to a question of ours, or to what was never asked.
    fn decided(&mut self, line: &Value, truth: &mut Truth) {
        let id = line.pointer("/response/request_id").and_then(Value::as_str).unwrap_or_default().to_owned();
        let response = line.pointer("/response/response").cloned().unwrap_or_default();
        if !self.answered.insert(id.clone()) {
            truth.violations.push(format!("question {id} of {} was answered twice", self.token));
        }
        // Every answer is said again, also a late one.
        self.say(line.clone());
        let open = self.turn.as_mut().and_then(|turn| turn.asked.take_if(|(asked, _)| *asked == id));
        let Some((_, call)) = open else { return };
        let stops = response["interrupt"] == json!(true);
        let allowed = response["behavior"] == json!("allow");
        if !stops {
            let word = if allowed { "allow" } else { "deny" };
            truth.chosen.entry((self.token.clone(), id)).or_default().push(word.to_owned());
        }
        if allowed && !response["updatedInput"].is_object() {
            truth.violations.push(format!("an allow without the input: {line}"));
        }
        self.state("running");
        if stops {
            return self.cut_turn(truth);
        }
        self.tool_done(&call, !allowed);
        self.take_into_turn(truth);
    }

    fn tool_done(&mut self, call: &str, failed: bool) {
        let result =
            json!({ "type": "tool_result", "tool_use_id": call, "content": "ok", "is_error": failed });
        self.say(json!({ "type": "user", "message": { "role": "user", "content": [result] },
            "parent_tool_use_id": null }));
    }

    /// A tool is done: what waits goes to the model within the turn.
    fn take_into_turn(&mut self, truth: &mut Truth) {
        // The turn's own message was echoed with its first call.
        let Some(place) = self.queue.iter().position(|waiting| !waiting.is_command()) else { return };
        let Some(waiting) = self.queue.remove(place) else { return };
        let row = truth.name("att");
        self.transcripts.add_steered(&self.conversation, &row, &waiting.uuid, &waiting.text);
        truth.receive(&waiting.text);
        self.echo(&waiting);
    }

    fn echo(&mut self, waiting: &Waiting) {
        self.say(json!({ "type": "user", "uuid": waiting.uuid, "isReplay": true,
            "message": { "role": "user", "content": waiting.text } }));
    }

    fn echo_due(&mut self) {
        if let Some(due) = self.turn.as_mut().and_then(|turn| turn.echo.take()) {
            self.echo(&due);
        }
    }

    /// Ends the turn as an interrupt does.
    fn cut_turn(&mut self, truth: &mut Truth) {
        let Some(turn) = self.turn.take() else { return };
        let asked = turn.asked.is_some();
        if let Some((id, call)) = &turn.asked {
            self.say(json!({ "type": "control_cancel_request", "request_id": id }));
            self.tool_done(call, true);
        }
        self.say(json!({ "type": "user", "message": { "role": "user",
            "content": [{ "type": "text", "text": "[Request interrupted by user]" }] } }));
        let reason = if asked { "aborted_tools" } else { "aborted_streaming" };
        let more = json!({ "subtype": "error_during_execution", "is_error": true, "terminal_reason": reason,
            "errors": ["cut"] });
        self.result(&turn, more, truth);
    }

    fn result(&mut self, turn: &Turn, more: Value, truth: &mut Truth) {
        self.spent += 1;
        let mut line = json!({ "type": "result", "num_turns": 1, "uuid": truth.name("res"),
            "session_id": self.conversation, "total_cost_usd": 0.0, "modelUsage": {} });
        line["modelUsage"] = json!({ "sim": { "inputTokens": self.spent, "outputTokens": 1 } });
        if turn.of_task {
            line["origin"] = json!({ "kind": "task-notification" });
        }
        if let (Some(line), Some(more)) = (line.as_object_mut(), more.as_object()) {
            line.extend(more.clone());
        }
        self.say(line);
        if self.queue.is_empty() {
            self.state("idle");
        }
    }

    /// Goes one step on. Gives the next line of output, if there is one now.
    pub(crate) fn step(&mut self, calm: bool, truth: &mut Truth) -> Option<String> {
        if !self.alive {
            return None;
        }
        if self.lines.is_empty() {
            if self.leaves {
                self.leaves = false;
                self.die(truth);
                return None;
            }
            self.act(calm, truth);
        }
        let (line, said) = self.lines.pop_front()?;
        if let Some((turn, text)) = said {
            truth.said.entry(turn).or_default().push_str(&text);
        }
        Some(line.to_string())
    }

    fn act(&mut self, calm: bool, truth: &mut Truth) {
        let Some(turn) = &mut self.turn else {
            if !self.queue.is_empty() {
                return self.begin(truth);
            }
            if !self.tasks.is_empty() && (calm || self.chance.hits(1, 4)) {
                self.task_ends(truth);
            }
            return;
        };
        if turn.asked.is_some() {
            return;
        }
        match turn.acts.front() {
            Some(Act::Hang) if !calm => return,
            Some(Act::Hang | Act::Die) if calm => {
                turn.acts.pop_front();
                return;
            }
            _ => {}
        }
        let Some(act) = turn.acts.pop_front() else { return };
        match act {
            Act::Hang => {}
            Act::Die => self.die(truth),
            Act::Say => self.message(true, truth),
            Act::CutOff => {
                self.message(false, truth);
                self.end(Ending::Done, truth);
            }
            Act::Tool => {
                let call = self.call(truth, json!({ "command": "ls" }));
                self.tool_done(&call, false);
                self.take_into_turn(truth);
            }
            Act::Background => {
                let (call, task) = (self.call(truth, json!({ "command": "sleep" })), truth.name("task"));
                self.say(json!({ "type": "system", "subtype": "task_started", "task_id": task,
                    "tool_use_id": call, "description": "waits", "task_type": "local_bash" }));
                self.tasks.push((task, call.clone()));
                self.tool_done(&call, false);
                self.take_into_turn(truth);
            }
            Act::Ask | Act::AskAndWithdraw => self.ask(act == Act::AskAndWithdraw, truth),
            Act::Babble => {
                self.say(json!({ "type": "weather", "sky": "blue" }));
                self.say(json!({ "type": "system", "subtype": "no_such_word" }));
                self.say(json!("no message at all"));
            }
            Act::Retry => self.say(json!({ "type": "system", "subtype": "api_retry", "attempt": 1,
                "max_retries": 10, "retry_delay_ms": 500.5, "error_status": 529, "error": "overloaded" })),
            Act::End(ending) => {
                if ending == Ending::Done && self.turn.as_ref().is_some_and(|turn| turn.echo.is_some()) {
                    // A turn that is answered has a message, before which the echo comes.
                    self.message(true, truth);
                }
                self.end(ending, truth);
            }
        }
    }

    /// Begins a turn with what waits.
    fn begin(&mut self, truth: &mut Truth) {
        let Some(next) = self.queue.pop_front() else { return };
        if !self.works {
            self.state("running");
        }
        if next.is_command() {
            return self.command(&next, truth);
        }
        self.transcripts.add(&self.conversation, &next.uuid, &next.text);
        truth.receive(&next.text);
        let acts = self.script();
        self.open_turn(acts, Some(next), false, truth);
    }

    fn open_turn(&mut self, acts: VecDeque<Act>, echo: Option<Waiting>, of_task: bool, truth: &mut Truth) {
        let id = truth.name("k.");
        self.init(&id);
        self.turn = Some(Turn { id, acts, asked: None, echo, of_task });
    }

    fn init(&mut self, id: &str) {
        self.say(json!({ "type": "system", "subtype": "init", "session_id": self.conversation,
            "model": self.model, "permissionMode": self.mode, "uuid": id }));
    }

    fn script(&mut self) -> VecDeque<Act> {
        let mut acts = VecDeque::new();
        for _ in 0..self.chance.below(5) {
            acts.push_back(match self.chance.below(16) {
                0..=4 => Act::Say,
                5 | 6 => Act::Tool,
                7..=9 => Act::Ask,
                10 => Act::AskAndWithdraw,
                11 => Act::Background,
                12 => Act::Babble,
                13 => Act::Retry,
                14 => Act::Hang,
                _ => Act::Die,
            });
        }
        acts.push_back(match self.chance.below(12) {
            0 => Act::End(Ending::Refusal),
            1 => Act::End(Ending::MaxTurns),
            2 => Act::End(Ending::ApiError),
            3 => Act::CutOff,
            _ => Act::End(Ending::Done),
        });
        acts
    }

    /// A message of the model that streams; one that is cut off has no end.
    fn message(&mut self, whole: bool, truth: &mut Truth) {
        let Some(turn) = self.turn.as_ref().map(|turn| turn.id.clone()) else { return };
        let id = truth.name("msg_");
        let text = format!("[{id}]");
        let event = |event: Value| json!({ "type": "stream_event", "event": event });
        self.say(event(json!({ "type": "message_start", "message": { "id": id } })));
        let block = json!({ "type": "text", "text": "" });
        self.say(event(json!({ "type": "content_block_start", "index": 0, "content_block": block })));
        for piece in [&text[..2], &text[2..]] {
            let delta = json!({ "type": "text_delta", "text": piece });
            let line = event(json!({ "type": "content_block_delta", "index": 0, "delta": delta }));
            self.lines.push_back((line, Some((turn.clone(), piece.to_owned()))));
        }
        self.echo_due();
        let row = self.transcripts.answer(&self.conversation, truth.name("row"), &id);
        let message = json!({ "id": id, "model": self.model, "content": [{ "type": "text", "text": text }] });
        self.say(json!({ "type": "assistant", "uuid": row, "message": message, "parent_tool_use_id": null }));
        if whole {
            self.say(event(json!({ "type": "content_block_stop", "index": 0 })));
            self.say(event(json!({ "type": "message_stop" })));
        }
    }

    /// A call of a tool; gives its id.
    fn call(&mut self, truth: &mut Truth, input: Value) -> String {
        let (message, call) = (truth.name("msg_"), truth.name("toolu_"));
        self.echo_due();
        let row = self.transcripts.answer(&self.conversation, truth.name("row"), &message);
        let used = json!({ "type": "tool_use", "id": call, "name": "Bash", "input": input });
        self.say(json!({ "type": "assistant", "uuid": row, "parent_tool_use_id": null,
            "message": { "id": message, "model": self.model, "content": [used] } }));
        call
    }

    fn ask(&mut self, withdraws: bool, truth: &mut Truth) {
        let input = json!({ "command": "touch a" });
        let call = self.call(truth, input.clone());
        self.asked += 1;
        let id = format!("q-{}-{}", self.token, self.asked);
        self.state("requires_action");
        let request = json!({ "subtype": "can_use_tool", "tool_name": "Bash", "input": input,
            "tool_use_id": call });
        self.say(json!({ "type": "control_request", "request_id": id, "request": request }));
        if !withdraws {
            if let Some(turn) = &mut self.turn {
                turn.asked = Some((id, call));
            }
            return;
        }
        self.say(json!({ "type": "control_cancel_request", "request_id": id }));
        self.state("running");
        self.tool_done(&call, true);
    }

    fn end(&mut self, ending: Ending, truth: &mut Truth) {
        let Some(turn) = self.turn.take() else { return };
        let more = match ending {
            Ending::Done => json!({ "subtype": "success", "is_error": false, "result": "done",
                "stop_reason": "end_turn", "terminal_reason": "completed" }),
            Ending::Refusal => json!({ "subtype": "success", "is_error": false, "stop_reason": "refusal" }),
            Ending::MaxTurns => json!({ "subtype": "error_max_turns", "is_error": true }),
            Ending::ApiError => json!({ "subtype": "success", "is_error": true, "result": "API Error",
                "api_error_status": 500 }),
        };
        self.result(&turn, more, truth);
    }

    /// A command in the background is done: a turn about it begins by itself.
    fn task_ends(&mut self, truth: &mut Truth) {
        let (task, _) = self.tasks.remove(0);
        self.say(json!({ "type": "system", "subtype": "task_updated", "task_id": task,
            "patch": { "status": "completed" } }));
        self.state("running");
        self.say(json!({ "type": "system", "subtype": "task_notification", "task_id": task,
            "status": "completed", "summary": "done" }));
        let acts = VecDeque::from([Act::Say, Act::End(Ending::Done)]);
        self.open_turn(acts, None, true, truth);
    }

    /// A local command: a turn without the model and without an echo.
    fn command(&mut self, command: &Waiting, truth: &mut Truth) {
        let id = truth.name("k.");
        if command.text.starts_with("/clear") {
            truth.holders.remove(&self.conversation);
            self.conversation = truth.name("clear-");
            self.hold(truth);
            self.transcripts.begin(&self.conversation);
            self.init(&id);
        } else {
            self.say(json!({ "type": "system", "subtype": "status", "status": "compacting", "uuid": id }));
            self.init(&id);
            self.say(json!({ "type": "system", "subtype": "compact_boundary", "uuid": truth.name("cb"),
                "compact_metadata": { "trigger": "manual" } }));
        }
        let turn = Turn { id, acts: VecDeque::new(), asked: None, echo: None, of_task: false };
        self.result(&turn, json!({ "subtype": "success", "is_error": false, "num_turns": 0 }), truth);
    }
}
