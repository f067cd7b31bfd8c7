//! The Agent Client Protocol, version 1.

use crate::flavour::{Flavour, Said};
use crate::script::Ending;
use crate::stage::{Prompt, Scene, Stage, Turn};
use serde_json::{Value, json};
use std::io;
use std::sync::Arc;

/// Agents of this protocol say so about a conversation that they do not have.
const NO_SESSION: i64 = -32002;

pub(crate) struct Acp;

fn update(stage: &Stage, thread: &str, update: Value) -> io::Result<()> {
    let params = json!({ "sessionId": thread, "update": update });
    stage.output.frame(&json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))
}

fn chunk(kind: &str, text: &str, message: Option<&str>) -> Value {
    let mut update = json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } });
    if let Some(id) = message {
        update["messageId"] = json!(id);
    }
    update
}

/// Adds to a conversation what a later load shows again.
fn remember(stage: &Stage, thread: &str, kind: &str, text: &str) -> io::Result<()> {
    let entries = {
        let mut state = stage.state();
        let entries = state.threads.entry(thread.to_owned()).or_default();
        entries.push(json!({ "kind": kind, "text": text }));
        entries.clone()
    };
    stage.kept.keep(thread, &entries)
}

impl Flavour for Acp {
    fn read(&self, message: &Value) -> Said {
        let Some(name) = message.get("method").and_then(Value::as_str).map(str::to_owned) else {
            let key = message.get("id").and_then(Value::as_u64).unwrap_or(u64::MAX);
            return Said::Answer { key, body: message.get("result").cloned().unwrap_or_default() };
        };
        if name != "session/prompt" {
            return Said::Other { name };
        }
        let blocks = message.pointer("/params/prompt").and_then(Value::as_array);
        let texts = blocks.into_iter().flatten().filter_map(|block| block.get("text")?.as_str());
        let prompt = Prompt {
            thread: self.thread_of(message).unwrap_or_default(),
            text: texts.collect::<Vec<_>>().join("\n"),
            client_id: String::new(),
            message: message.clone(),
        };
        Said::Prompt { name, prompt }
    }

    fn thread_of(&self, message: &Value) -> Option<String> {
        message.pointer("/params/sessionId").and_then(Value::as_str).map(str::to_owned)
    }

    fn react(&self, stage: &Arc<Stage>, name: &str, message: &Value) -> io::Result<()> {
        let thread = self.thread_of(message).unwrap_or_default();
        match name {
            "initialize" => {
                let answer = json!({
                    "protocolVersion": 1,
                    "agentCapabilities": { "loadSession": true, "promptCapabilities": {} },
                    "agentInfo": { "name": "scripted-agent", "version": env!("CARGO_PKG_VERSION") },
                    "authMethods": [],
                });
                self.answer(stage, message, answer)
            }
            "session/new" => {
                let thread = stage.fresh_name("session");
                stage.kept.keep(&thread, &[])?;
                {
                    let mut state = stage.state();
                    state.threads.insert(thread.clone(), Vec::new());
                    state.last_thread.clone_from(&thread);
                }
                self.answer(stage, message, json!({ "sessionId": thread }))
            }
            "session/load" => {
                let Some(entries) = stage.kept.conversation(&thread) else {
                    return self.refuse(stage, message, NO_SESSION, &format!("no session {thread}"));
                };
                for entry in &entries {
                    let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
                    update(stage, &thread, chunk(text("kind"), text("text"), None))?;
                }
                stage.state().threads.insert(thread, entries);
                self.answer(stage, message, json!({}))
            }
            "session/cancel" => {
                stage.cancel(&thread);
                Ok(())
            }
            _ if message.get("id").is_some() => {
                self.refuse(stage, message, -32601, &format!("no method {name}"))
            }
            _ => Ok(()),
        }
    }

    fn answer(&self, stage: &Stage, request: &Value, result: Value) -> io::Result<()> {
        stage.output.frame(&json!({ "jsonrpc": "2.0", "id": request.get("id"), "result": result }))
    }

    fn refuse(&self, stage: &Stage, request: &Value, code: i64, words: &str) -> io::Result<()> {
        let error = json!({ "code": code, "message": words });
        stage.output.frame(&json!({ "jsonrpc": "2.0", "id": request.get("id"), "error": error }))
    }

    fn begin(&self, stage: &Arc<Stage>, turn: &Turn) -> io::Result<()> {
        remember(stage, &turn.prompt.thread, "user_message_chunk", &turn.prompt.text)
    }

    fn beside(&self, stage: &Arc<Stage>, _running: &Arc<Turn>, prompt: Prompt) -> io::Result<()> {
        // Real agents differ here; a host that prompts twice has a fault that tests should see.
        self.refuse(stage, &prompt.message, -32600, "a prompt of this session is still open")
    }

    fn say(&self, stage: &Stage, scene: &Scene, pieces: &mut dyn Iterator<Item = String>) -> io::Result<()> {
        let id = format!("message-{}", stage.fresh());
        let mut said = String::new();
        for piece in pieces {
            if scene.is_cut() {
                break;
            }
            update(stage, &scene.thread, chunk("agent_message_chunk", &piece, Some(&id)))?;
            said.push_str(&piece);
        }
        remember(stage, &scene.thread, "agent_message_chunk", &said)
    }

    fn ask(&self, stage: &Stage, scene: &Scene, title: &str, key: u64) -> io::Result<()> {
        let option = |id: &str, name: &str| json!({ "optionId": id, "name": name, "kind": id });
        let call = json!({
            "toolCallId": format!("tool-{key}"), "title": title, "kind": "execute", "status": "pending",
        });
        let options = [option("allow_once", "Allow"), option("reject_once", "Reject")];
        let params = json!({ "sessionId": scene.thread, "toolCall": call, "options": options });
        let request = json!({
            "jsonrpc": "2.0", "id": key, "method": "session/request_permission", "params": params,
        });
        stage.output.frame(&request)
    }

    fn answered(
        &self,
        _stage: &Stage,
        _scene: &Scene,
        _title: &str,
        _key: u64,
        body: &Value,
    ) -> io::Result<bool> {
        let chosen = body.pointer("/outcome/optionId").and_then(Value::as_str);
        Ok(chosen.is_some_and(|option| option.starts_with("allow")))
    }

    fn tool(&self, stage: &Stage, scene: &Scene, title: &str, completes: bool) -> io::Result<()> {
        let id = format!("tool-{}", stage.fresh());
        let begun = json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": title, "kind": "other",
            "status": "in_progress",
        });
        update(stage, &scene.thread, begun)?;
        if !completes {
            return Ok(());
        }
        let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed" });
        update(stage, &scene.thread, done)
    }

    fn end(&self, stage: &Arc<Stage>, turn: &Turn, ending: &Ending) -> io::Result<()> {
        let reason = match ending {
            Ending::Completed => "end_turn",
            Ending::Cancelled => "cancelled",
            Ending::Failed(words) => return self.refuse(stage, &turn.prompt.message, -32603, words),
        };
        self.answer(stage, &turn.prompt.message, json!({ "stopReason": reason }))
    }
}
