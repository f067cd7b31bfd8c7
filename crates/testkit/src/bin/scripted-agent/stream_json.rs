//! The stream-json control protocol: one conversation in one process, named in its arguments.

use crate::flavour::{Flavour, Said};
use crate::kept::append;
use crate::script::Ending;
use crate::stage::{Prompt, Scene, Stage, Turn};
use serde_json::{Value, json};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The folder of the account home in which the transcripts of all conversations stand.
const PROJECT: &str = "projects/scripted";

/// An answer about a call of a process that died: the real program looks the call up in the transcript, says it again, runs it
/// and goes on (measured).
const TAKEN_UP: &str = "taken up";

pub(crate) struct StreamJson {
    conversation: String,
    /// It is to be taken up, and there is none of this name.
    missing: bool,
    transcript: Option<PathBuf>,
}

impl StreamJson {
    pub(crate) fn new(begun: Option<String>, resumed: Option<String>) -> io::Result<Self> {
        let home = std::env::var_os("CLAUDE_CONFIG_DIR").map(|home| PathBuf::from(home).join(PROJECT));
        if let Some(home) = &home {
            std::fs::create_dir_all(home)?;
        }
        let conversation = resumed.clone().or(begun.clone()).unwrap_or_else(|| "none".to_owned());
        let transcript = home.map(|home| home.join(format!("{conversation}.jsonl")));
        let exists = transcript.as_ref().is_some_and(|path| path.is_file());
        if begun.is_some() && resumed.is_none() && exists {
            return Err(io::Error::other(format!("Session ID {conversation} is already in use.")));
        }
        Ok(Self { missing: resumed.is_some() && !exists, conversation, transcript })
    }

    fn line(&self, stage: &Stage, mut line: Value) -> io::Result<()> {
        if line.get("session_id").is_none() {
            line["session_id"] = json!(self.conversation);
        }
        line["uuid"] = json!(stage.fresh_name("line"));
        stage.output.frame(&line)
    }

    fn state(&self, stage: &Stage, state: &str) -> io::Result<()> {
        self.line(stage, json!({ "type": "system", "subtype": "session_state_changed", "state": state }))
    }

    fn event(&self, stage: &Stage, event: Value) -> io::Result<()> {
        self.line(stage, json!({ "type": "stream_event", "event": event, "parent_tool_use_id": null }))
    }

    fn row(&self, row: &Value) -> io::Result<()> {
        self.transcript.as_ref().map_or(Ok(()), |path| append(path, format!("{row}\n").as_bytes()))
    }

    fn assistant(&self, stage: &Stage, message: &str, block: Value) -> io::Result<()> {
        let message = json!({
            "id": message, "role": "assistant", "type": "message", "model": "scripted", "content": [block],
            "stop_reason": null, "usage": { "input_tokens": 1, "output_tokens": 1 },
        });
        self.row(&json!({ "type": "assistant", "uuid": stage.fresh_name("row"), "message": message }))?;
        self.line(stage, json!({ "type": "assistant", "message": message, "parent_tool_use_id": null }))
    }

    /// What came of a call, told and saved.
    fn result_of(&self, stage: &Stage, tool: &str, allowed: bool) -> io::Result<()> {
        let result = json!({
            "type": "tool_result", "tool_use_id": tool, "is_error": !allowed,
            "content": if allowed { "done" } else { "denied" },
        });
        let message = json!({ "role": "user", "content": [result] });
        self.row(&json!({ "type": "user", "uuid": stage.fresh_name("row"), "message": message }))?;
        self.line(stage, json!({ "type": "user", "message": message, "parent_tool_use_id": null }))
    }

    /// The message of the transcript that has this call, if no result of it follows.
    fn unanswered(&self, tool: &str) -> Option<Value> {
        let text = std::fs::read_to_string(self.transcript.as_ref()?).ok()?;
        let mut found = None;
        for row in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let block = row.pointer("/message/content/0").cloned().unwrap_or_default();
            let is = |field: &str| block.get(field).and_then(Value::as_str) == Some(tool);
            if is("id") {
                found = row.get("message").cloned();
            } else if is("tool_use_id") {
                found = None;
            }
        }
        found
    }

    fn take_up(&self, stage: &Arc<Stage>, answer: &Value) -> io::Result<()> {
        let answer = answer.pointer("/response/response").cloned().unwrap_or_default();
        let tool = answer.get("toolUseID").and_then(Value::as_str).unwrap_or_default();
        let Some(message) = self.unanswered(tool) else { return Ok(()) };
        self.state(stage, "running")?;
        self.init(stage)?;
        self.line(stage, json!({ "type": "assistant", "message": message, "parent_tool_use_id": null }))?;
        let allowed = answer.get("behavior").and_then(Value::as_str) == Some("allow");
        self.result_of(stage, tool, allowed)?;
        self.line(stage, result_line())?;
        self.state(stage, "idle")
    }

    fn init(&self, stage: &Stage) -> io::Result<()> {
        let init = json!({
            "type": "system", "subtype": "init", "cwd": "/", "tools": [], "mcp_servers": [], "model": "scripted",
            "permissionMode": "default", "slash_commands": [], "claude_code_version": "2.1.197",
        });
        self.line(stage, init)
    }

    /// The message that began the turn, said again: the proof that it was taken. It comes late, before the first complete
    /// block, as from the real program.
    fn echo(&self, stage: &Stage, turn: &Turn) -> io::Result<()> {
        if turn.echoed.swap(true, Ordering::SeqCst) || turn.prompt.message == Value::Null {
            return Ok(());
        }
        let mut echo = turn.prompt.message.clone();
        echo["isReplay"] = json!(true);
        echo["session_id"] = json!(self.conversation);
        stage.output.frame(&echo)
    }

    fn echo_of(&self, stage: &Stage, scene: &Scene) -> io::Result<()> {
        scene.turn.as_ref().map_or(Ok(()), |turn| self.echo(stage, turn))
    }
}

/// Of a turn that ended well.
fn result_line() -> Value {
    json!({
        "type": "result", "subtype": "success", "is_error": false, "num_turns": 1, "result": "",
        "stop_reason": "end_turn", "terminal_reason": "completed", "total_cost_usd": 0.0,
        "usage": { "input_tokens": 1, "output_tokens": 1 }, "modelUsage": {}, "permission_denials": [],
    })
}

impl Flavour for StreamJson {
    fn read(&self, message: &Value) -> Said {
        let text = |pointer: &str| message.pointer(pointer).and_then(Value::as_str);
        match text("/type") {
            Some("control_response") if text("/response/response/toolUseID").is_some() => {
                Said::Other { name: TAKEN_UP.to_owned() }
            }
            Some("control_response") => {
                let id = text("/response/request_id").and_then(|id| id.strip_prefix("asked-"));
                let key = id.and_then(|id| id.parse().ok()).unwrap_or(u64::MAX);
                Said::Answer { key, body: message.get("response").cloned().unwrap_or_default() }
            }
            Some("user") => {
                let blocks = message.pointer("/message/content").and_then(Value::as_array);
                let texts = blocks.into_iter().flatten().filter_map(|block| block.get("text")?.as_str());
                let joined = || texts.collect::<Vec<_>>().join("\n");
                let prompt = Prompt {
                    thread: self.conversation.clone(),
                    text: text("/message/content").map_or_else(joined, str::to_owned),
                    client_id: text("/uuid").unwrap_or_default().to_owned(),
                    message: message.clone(),
                };
                Said::Prompt { name: "user".to_owned(), prompt }
            }
            _ => {
                let name = text("/request/subtype").or(text("/type")).unwrap_or_default();
                Said::Other { name: name.to_owned() }
            }
        }
    }

    fn opened(&self, stage: &Arc<Stage>) {
        stage.state().last_thread.clone_from(&self.conversation);
        if self.missing {
            let words = format!("No conversation found with session ID: {}", self.conversation);
            let line = json!({
                "type": "result", "subtype": "error_during_execution", "is_error": true, "errors": [words],
            });
            stage.survive(self.line(stage, line));
            std::process::exit(1);
        }
    }

    fn thread_of(&self, _message: &Value) -> Option<String> {
        Some(self.conversation.clone())
    }

    fn react(&self, stage: &Arc<Stage>, name: &str, message: &Value) -> io::Result<()> {
        let response = match name {
            "initialize" => json!({
                "commands": [], "agents": [], "models": [], "account": {}, "pid": std::process::id(),
                "output_style": "default", "available_output_styles": ["default"],
            }),
            "get_binary_version" => json!({ "version": "2.1.197" }),
            "set_permission_mode" => json!({ "mode": message.pointer("/request/mode") }),
            "cancel_async_message" => {
                let wanted = message.pointer("/request/message_uuid").and_then(Value::as_str);
                let mut state = stage.state();
                let before = state.waiting.len();
                state.waiting.retain(|prompt| Some(prompt.client_id.as_str()) != wanted);
                json!({ "cancelled": state.waiting.len() < before })
            }
            TAKEN_UP => return self.take_up(stage, message),
            "interrupt" => {
                stage.cancel(&self.conversation);
                json!({})
            }
            _ if message.get("request_id").is_none() => return Ok(()),
            _ => json!({}),
        };
        self.answer(stage, message, response)
    }

    fn answer(&self, stage: &Stage, request: &Value, result: Value) -> io::Result<()> {
        let response =
            json!({ "subtype": "success", "request_id": request.get("request_id"), "response": result });
        stage.output.frame(&json!({ "type": "control_response", "response": response }))
    }

    fn refuse(&self, stage: &Stage, request: &Value, _code: i64, words: &str) -> io::Result<()> {
        let response = json!({ "subtype": "error", "request_id": request.get("request_id"), "error": words });
        stage.output.frame(&json!({ "type": "control_response", "response": response }))
    }

    fn begin(&self, stage: &Arc<Stage>, turn: &Turn) -> io::Result<()> {
        let message = turn.prompt.message.get("message").cloned().unwrap_or_default();
        // Written before the model is asked, as by the real program.
        self.row(&json!({ "type": "user", "uuid": turn.prompt.client_id, "message": message }))?;
        self.state(stage, "running")?;
        self.init(stage)
    }

    fn beside(&self, stage: &Arc<Stage>, _running: &Arc<Turn>, prompt: Prompt) -> io::Result<()> {
        stage.state().waiting.push_back(prompt);
        Ok(())
    }

    fn say(&self, stage: &Stage, scene: &Scene, pieces: &mut dyn Iterator<Item = String>) -> io::Result<()> {
        let id = stage.fresh_name("msg");
        let message = json!({ "id": id, "type": "message", "role": "assistant", "content": [] });
        self.event(stage, json!({ "type": "message_start", "message": message }))?;
        let block = json!({ "type": "text", "text": "" });
        self.event(stage, json!({ "type": "content_block_start", "index": 0, "content_block": block }))?;
        let mut said = String::new();
        for piece in pieces {
            if scene.is_cut() {
                break;
            }
            let delta = json!({ "type": "text_delta", "text": piece });
            self.event(stage, json!({ "type": "content_block_delta", "index": 0, "delta": delta }))?;
            said.push_str(&piece);
        }
        self.echo_of(stage, scene)?;
        self.assistant(stage, &id, json!({ "type": "text", "text": said }))?;
        self.event(stage, json!({ "type": "content_block_stop", "index": 0 }))?;
        let delta = json!({ "stop_reason": "end_turn" });
        self.event(stage, json!({ "type": "message_delta", "delta": delta }))?;
        self.event(stage, json!({ "type": "message_stop" }))
    }

    fn ask(&self, stage: &Stage, scene: &Scene, title: &str, key: u64) -> io::Result<()> {
        self.echo_of(stage, scene)?;
        let (tool, input) = (format!("toolu-{key}"), json!({ "command": title }));
        let block = json!({ "type": "tool_use", "id": tool, "name": "Bash", "input": input });
        self.assistant(stage, &stage.fresh_name("msg"), block)?;
        let request = json!({
            "subtype": "can_use_tool", "tool_name": "Bash", "display_name": "Bash", "input": input,
            "description": title, "permission_suggestions": [], "tool_use_id": tool,
        });
        let id = format!("asked-{key}");
        stage.output.frame(&json!({ "type": "control_request", "request_id": id, "request": request }))
    }

    fn answered(
        &self,
        stage: &Stage,
        _scene: &Scene,
        _title: &str,
        key: u64,
        body: &Value,
    ) -> io::Result<bool> {
        // Our client's answer, said again.
        stage.output.frame(&json!({ "type": "control_response", "response": body }))?;
        let allowed = body.pointer("/response/behavior").and_then(Value::as_str) == Some("allow");
        self.result_of(stage, &format!("toolu-{key}"), allowed)?;
        Ok(allowed)
    }

    fn tool(&self, stage: &Stage, scene: &Scene, title: &str, completes: bool) -> io::Result<()> {
        self.echo_of(stage, scene)?;
        let tool = format!("toolu-{}", stage.fresh());
        let input = json!({ "command": title });
        let block = json!({ "type": "tool_use", "id": tool, "name": "Bash", "input": input });
        self.assistant(stage, &stage.fresh_name("msg"), block)?;
        if !completes {
            return Ok(());
        }
        self.result_of(stage, &tool, true)
    }

    fn end(&self, stage: &Arc<Stage>, turn: &Turn, ending: &Ending) -> io::Result<()> {
        let mut result = result_line();
        match ending {
            Ending::Completed => self.echo(stage, turn)?,
            Ending::Cancelled => {
                result["subtype"] = json!("error_during_execution");
                result["is_error"] = json!(true);
                result["terminal_reason"] = json!("aborted_streaming");
            }
            Ending::Failed(words) => {
                self.echo(stage, turn)?;
                result["is_error"] = json!(true);
                result["result"] = json!(words);
            }
        }
        self.line(stage, result)?;
        if stage.state().waiting.is_empty() { self.state(stage, "idle") } else { Ok(()) }
    }
}
