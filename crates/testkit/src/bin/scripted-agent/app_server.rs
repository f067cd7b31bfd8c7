//! The app-server protocol, over WebSocket on a Unix socket: many threads in one process, which outlives its connections.

use crate::complain;
use crate::flavour::{Flavour, Said};
use crate::output::Output;
use crate::script::Ending;
use crate::stage::{Prompt, Scene, Stage, Turn};
use serde_json::{Value, json};
use std::io;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use tungstenite::protocol::Role;
use tungstenite::{Message, WebSocket};

/// The code of nearly all refusals of the real server.
const REFUSED: i64 = -32600;

pub(crate) struct AppServer;

/// Takes connections until a signal ends the process; the newest one counts.
pub(crate) fn listen(stage: &Arc<Stage>, path: &Path) -> io::Result<()> {
    // A first TERM drains and a second ends the real server; this one has nothing to drain.
    for stream in UnixListener::bind(path)?.incoming() {
        let mut connection = match tungstenite::accept(stream?) {
            Ok(connection) => connection,
            Err(error) => {
                complain(&format!("handshake: {error}"));
                continue;
            }
        };
        let writer = connection.get_ref().try_clone()?;
        stage.output.connect(WebSocket::from_raw_socket(writer, Role::Server, None));
        let stage = Arc::clone(stage);
        std::thread::spawn(move || {
            while let Ok(message) = connection.read() {
                if let Message::Text(text) = message {
                    match serde_json::from_str(&text) {
                        Ok(message) => stage.hear(message),
                        Err(error) => complain(&format!("not JSON: {error}")),
                    }
                }
            }
        });
    }
    Ok(())
}

fn notify(output: &Output, method: &str, params: Value) -> io::Result<()> {
    output.frame(&json!({ "method": method, "params": params, "emittedAtMs": 0 }))
}

fn status(stage: &Stage, thread: &str, status: &str) -> io::Result<()> {
    let status = json!({ "type": status, "activeFlags": [] });
    notify(&stage.output, "thread/status/changed", json!({ "threadId": thread, "status": status }))
}

fn turn_object(id: &str, status: &str) -> Value {
    json!({
        "id": id, "rootTurnId": id, "items": [], "itemsView": "notLoaded", "status": status, "error": null,
        "startedAt": 1, "completedAt": null, "durationMs": null,
    })
}

/// The item begins or completes, and stands in the history when it is complete.
fn item(stage: &Stage, thread: &str, turn: &str, completed: bool, mut item: Value) -> io::Result<()> {
    let method = if completed { "item/completed" } else { "item/started" };
    if completed {
        item["completedAtMs"] = json!(1);
        change_turn(stage, thread, turn, |kept| {
            if let Some(items) = kept.get_mut("items").and_then(Value::as_array_mut) {
                items.push(item.clone());
            }
        })?;
    }
    notify(&stage.output, method, json!({ "item": item, "threadId": thread, "turnId": turn }))
}

/// Changes a turn of the history, which is kept.
fn change_turn(stage: &Stage, thread: &str, turn: &str, change: impl FnOnce(&mut Value)) -> io::Result<()> {
    let turns = {
        let mut state = stage.state();
        let turns = state.threads.entry(thread.to_owned()).or_default();
        let is = |kept: &Value| kept.get("id").and_then(Value::as_str) == Some(turn);
        if let Some(kept) = turns.iter_mut().find(|kept| is(kept)) {
            change(kept);
        }
        turns.clone()
    };
    stage.kept.keep(thread, &turns)
}

/// The message of a user as an item: the proof that it was taken.
fn user_message(stage: &Stage, turn: &str, prompt: &Prompt) -> io::Result<()> {
    let message = json!({
        "type": "userMessage", "id": format!("user-{}", stage.fresh()), "clientId": prompt.client_id,
        "content": [{ "type": "text", "text": prompt.text }],
    });
    item(stage, &prompt.thread, turn, false, message.clone())?;
    item(stage, &prompt.thread, turn, true, message)
}

fn thread_object(stage: &Stage, thread: &str) -> Value {
    let status = if stage.running(thread).is_some() { "active" } else { "idle" };
    json!({ "id": thread, "sessionId": thread, "status": { "type": status, "activeFlags": [] }, "turns": [] })
}

fn command(id: &str, title: &str, status: &str) -> Value {
    json!({
        "type": "commandExecution", "id": id, "command": title, "cwd": "/", "status": status,
        "commandActions": [], "aggregatedOutput": null, "exitCode": null,
    })
}

impl Flavour for AppServer {
    fn read(&self, message: &Value) -> Said {
        let Some(name) = message.get("method").and_then(Value::as_str).map(str::to_owned) else {
            let key = message.get("id").and_then(Value::as_u64).unwrap_or(u64::MAX);
            return Said::Answer { key, body: message.get("result").cloned().unwrap_or_default() };
        };
        if name != "turn/start" && name != "turn/steer" {
            return Said::Other { name };
        }
        let input = message.pointer("/params/input").and_then(Value::as_array);
        let texts = input.into_iter().flatten().filter_map(|part| part.get("text")?.as_str());
        let client_id = message.pointer("/params/clientUserMessageId").and_then(Value::as_str);
        let prompt = Prompt {
            thread: self.thread_of(message).unwrap_or_default(),
            text: texts.collect::<Vec<_>>().join("\n"),
            client_id: client_id.unwrap_or_default().to_owned(),
            message: message.clone(),
        };
        Said::Prompt { name, prompt }
    }

    fn thread_of(&self, message: &Value) -> Option<String> {
        message.pointer("/params/threadId").and_then(Value::as_str).map(str::to_owned)
    }

    fn react(&self, stage: &Arc<Stage>, name: &str, message: &Value) -> io::Result<()> {
        let thread = self.thread_of(message).unwrap_or_default();
        match name {
            "initialize" => {
                let answer = json!({
                    "userAgent": "scripted/0.171.0 (test)", "codexHome": "/", "platformFamily": "unix",
                    "platformOs": "linux",
                });
                self.answer(stage, message, answer)
            }
            "thread/start" => {
                let thread = stage.fresh_name("thread");
                {
                    let mut state = stage.state();
                    state.threads.insert(thread.clone(), Vec::new());
                    state.last_thread.clone_from(&thread);
                }
                let object = thread_object(stage, &thread);
                self.answer(stage, message, json!({ "thread": object, "model": "scripted" }))?;
                notify(&stage.output, "thread/started", json!({ "thread": object }))
            }
            "thread/resume" => {
                let loaded = stage.state().threads.get(&thread).cloned();
                // It is saved with its first turn.
                let loaded = loaded.filter(|turns| !turns.is_empty());
                let Some(mut turns) = loaded.or_else(|| stage.kept.conversation(&thread)) else {
                    let words = format!("no rollout found for thread id {thread}");
                    return self.refuse(stage, message, REFUSED, &words);
                };
                if stage.running(&thread).is_none() {
                    for turn in turns.iter_mut().filter(|turn| turn["status"] == "inProgress") {
                        turn["status"] = json!("interrupted");
                    }
                }
                stage.state().threads.insert(thread.clone(), turns);
                let object = thread_object(stage, &thread);
                self.answer(stage, message, json!({ "thread": object, "model": "scripted" }))
            }
            "thread/read" => {
                let object = thread_object(stage, &thread);
                self.answer(stage, message, json!({ "thread": object }))
            }
            "thread/turns/list" => {
                let mut turns = stage.state().threads.get(&thread).cloned().unwrap_or_default();
                turns.reverse();
                self.answer(stage, message, json!({ "data": turns, "nextCursor": null }))
            }
            "turn/interrupt" => {
                if !stage.cancel(&thread) {
                    return self.refuse(stage, message, REFUSED, "no active turn to interrupt");
                }
                self.answer(stage, message, json!({}))
            }
            "thread/unsubscribe" => self.answer(stage, message, json!({ "status": "unsubscribed" })),
            _ if message.get("id").is_some() => {
                self.refuse(stage, message, REFUSED, &format!("Invalid request: unknown variant {name}"))
            }
            _ => Ok(()),
        }
    }

    fn answer(&self, stage: &Stage, request: &Value, result: Value) -> io::Result<()> {
        stage.output.frame(&json!({ "id": request.get("id"), "result": result }))
    }

    fn refuse(&self, stage: &Stage, request: &Value, code: i64, words: &str) -> io::Result<()> {
        stage.output.frame(&json!({ "id": request.get("id"), "error": { "code": code, "message": words } }))
    }

    fn begin(&self, stage: &Arc<Stage>, turn: &Turn) -> io::Result<()> {
        let Prompt { thread, message, .. } = &turn.prompt;
        if message.get("method").and_then(Value::as_str) == Some("turn/steer") {
            stage.over(turn);
            return self.refuse(stage, message, REFUSED, "no active turn to steer");
        }
        let object = turn_object(&turn.id, "inProgress");
        {
            let mut state = stage.state();
            state.threads.entry(thread.clone()).or_default().push(object.clone());
        }
        self.answer(stage, message, json!({ "turn": object }))?;
        status(stage, thread, "active")?;
        notify(&stage.output, "turn/started", json!({ "threadId": thread, "turn": object }))?;
        user_message(stage, &turn.id, &turn.prompt)
    }

    fn beside(&self, stage: &Arc<Stage>, running: &Arc<Turn>, prompt: Prompt) -> io::Result<()> {
        let steer = prompt.message.get("method").and_then(Value::as_str) == Some("turn/steer");
        let answer = match steer {
            true => json!({ "turnId": running.id }),
            // Measured: it becomes part of the running turn.
            false => json!({ "turn": turn_object(&running.id, "inProgress") }),
        };
        self.answer(stage, &prompt.message, answer)?;
        user_message(stage, &running.id, &prompt)
    }

    fn say(&self, stage: &Stage, scene: &Scene, pieces: &mut dyn Iterator<Item = String>) -> io::Result<()> {
        let id = format!("message-{}", stage.fresh());
        let message = |text: &str| json!({ "type": "agentMessage", "id": id, "text": text, "phase": null });
        item(stage, &scene.thread, scene.turn_id(), false, message(""))?;
        let mut said = String::new();
        for piece in pieces {
            if scene.is_cut() {
                return Ok(());
            }
            let params = json!({
                "threadId": scene.thread, "turnId": scene.turn_id(), "itemId": id, "delta": piece,
            });
            notify(&stage.output, "item/agentMessage/delta", params)?;
            said.push_str(&piece);
        }
        item(stage, &scene.thread, scene.turn_id(), true, message(&said))
    }

    fn ask(&self, stage: &Stage, scene: &Scene, title: &str, key: u64) -> io::Result<()> {
        let id = format!("call-{key}");
        item(stage, &scene.thread, scene.turn_id(), false, command(&id, title, "inProgress"))?;
        let params = json!({
            "kind": "command", "threadId": scene.thread, "turnId": scene.turn_id(), "itemId": id,
            "startedAtMs": 1, "environmentId": "local", "reason": "scripted", "command": title, "cwd": "/",
            "commandActions": [], "availableDecisions": ["accept", "cancel"],
        });
        let method = "item/commandExecution/requestApproval";
        stage.output.frame(&json!({ "method": method, "id": key, "params": params }))
    }

    fn answered(
        &self,
        stage: &Stage,
        scene: &Scene,
        title: &str,
        key: u64,
        body: &Value,
    ) -> io::Result<bool> {
        let params = json!({ "threadId": scene.thread, "requestId": key });
        notify(&stage.output, "serverRequest/resolved", params)?;
        let allowed = body.get("decision").and_then(Value::as_str).is_some_and(|of| of.starts_with("accept"));
        let done = command(&format!("call-{key}"), title, if allowed { "completed" } else { "declined" });
        item(stage, &scene.thread, scene.turn_id(), true, done)?;
        Ok(allowed)
    }

    fn tool(&self, stage: &Stage, scene: &Scene, title: &str, completes: bool) -> io::Result<()> {
        let id = format!("call-{}", stage.fresh());
        item(stage, &scene.thread, scene.turn_id(), false, command(&id, title, "inProgress"))?;
        if !completes {
            return Ok(());
        }
        item(stage, &scene.thread, scene.turn_id(), true, command(&id, title, "completed"))
    }

    fn end(&self, stage: &Arc<Stage>, turn: &Turn, ending: &Ending) -> io::Result<()> {
        if turn.prompt.message.get("method").and_then(Value::as_str) == Some("turn/steer") {
            return Ok(());
        }
        let (word, error) = match ending {
            Ending::Completed => ("completed", Value::Null),
            Ending::Cancelled => ("interrupted", Value::Null),
            Ending::Failed(words) => ("failed", json!({ "message": words, "codexErrorInfo": "other" })),
        };
        let thread = &turn.prompt.thread;
        let ended = |kept: &mut Value| {
            kept["status"] = json!(word);
            kept["error"].clone_from(&error);
            kept["completedAt"] = json!(2);
        };
        change_turn(stage, thread, &turn.id, ended)?;
        status(stage, thread, "idle")?;
        let mut object = turn_object(&turn.id, word);
        ended(&mut object);
        notify(&stage.output, "turn/completed", json!({ "threadId": thread, "turn": object }))
    }
}
