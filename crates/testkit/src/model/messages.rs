//! Anthropic's Messages API: reading where a request stands in its script, and playing steps as its events.

use std::io;
use std::net::TcpStream;

use serde_json::{Value, json};

use super::reply::{Ended, Shared, answer_with};
use super::request::Position;
use super::script::{Pace, Step};
use super::stage::{Stage, Stop};
use super::wire::write_json;

/// How texts begin that Claude Code puts into user messages on its own; they are no prompts.
const INJECTED: [&str; 8] = [
    "<system-reminder",
    "<command-",
    "<local-command-",
    "<task-notification",
    "<bash-",
    "[Request interrupted",
    "Continue from where you left off",
    "This session is being continued",
];
/// How a message begins that was given into a running turn, and what follows it.
const STEERED: (&str, &str) = ("The user sent a new message while you were working:\n", "\n\nIMPORTANT:");
/// What a request for a summary says.
const SUMMARY_WANTED: &str = "detailed summary";

/// Instructions for a summary that make it wait at [`SUMMARY_GATE`].
const HELD_SUMMARY: &str = "HOLD summary";
/// Where it waits.
const SUMMARY_GATE: &str = "summary";

fn messages(body: &Value) -> &[Value] {
    body.get("messages").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// How long the conversation is.
pub(crate) fn length(body: &Value) -> usize {
    messages(body).len()
}

fn blocks(message: &Value) -> Vec<Value> {
    match message.get("content") {
        Some(Value::String(text)) => vec![json!({"type": "text", "text": text})],
        Some(Value::Array(blocks)) => blocks.clone(),
        _ => Vec::new(),
    }
}

/// The user's own texts in one message.
fn own_texts(message: &Value) -> Vec<String> {
    let role = message.get("role").and_then(Value::as_str).unwrap_or_default();
    let texts = blocks(message).into_iter().filter_map(|block| Some(block.get("text")?.as_str()?.to_owned()));
    if role == "system" {
        let steered = texts.filter_map(|text| {
            let text = text.strip_prefix(STEERED.0)?;
            Some(text.split_once(STEERED.1).map_or(text, |(own, _)| own).to_owned())
        });
        return steered.collect();
    }
    if role != "user" {
        return Vec::new();
    }
    let own = texts.map(|text| text.trim().to_owned());
    own.filter(|text| !text.is_empty() && !INJECTED.iter().any(|start| text.starts_with(start))).collect()
}

/// The user messages of a request, injected ones left out, oldest first.
pub(crate) fn prompts(body: &Value) -> Vec<String> {
    messages(body).iter().flat_map(own_texts).collect()
}

/// Finds the script and the tool results that followed it.
pub(crate) fn position(body: &Value) -> Position {
    let messages = messages(body);
    let script = messages.iter().enumerate().rev().find_map(|(at, message)| {
        let is_user = message.get("role").is_some_and(|role| role == "user");
        let text = own_texts(message).pop().filter(|_| is_user)?;
        Some((at, text))
    });
    let (script, behind) = match script {
        Some((at, text)) => (text, &messages[at + 1..]),
        None => (String::new(), messages),
    };
    let results: Vec<Value> = behind
        .iter()
        .flat_map(blocks)
        .filter(|block| block.get("type").is_some_and(|kind| kind == "tool_result"))
        .collect();
    let last_output = results.last().and_then(|result| result.get("content")).map(|content| match content {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    Position { script, outputs: results.len(), last_output }
}

/// Answers one model request. `attempt` counts from 1 how often this same request was made.
pub(crate) fn answer(
    stream: &TcpStream,
    shared: &Shared,
    body: &Value,
    steps: &[Step],
    attempt: usize,
) -> io::Result<Ended> {
    let summary = prompts(body).last().is_some_and(|text| text.contains(SUMMARY_WANTED));
    let text = format!("<summary>\nsummary of {} messages\n</summary>", length(body));
    let mut summed_up = vec![Step::Message { chunks: vec![text], pace: Pace::AtOnce }];
    if prompts(body).last().is_some_and(|text| text.contains(HELD_SUMMARY)) {
        summed_up.insert(0, Step::Hold(SUMMARY_GATE.to_owned()));
    }
    let steps = if summary { summed_up.as_slice() } else { steps };
    let play = |steps: &[Step]| play(stream, shared, body, steps);
    answer_with(stream, shared, steps, attempt, &http_error, &play)
}

fn http_error(stream: &TcpStream, status: u16, kind: Option<&str>) -> io::Result<Ended> {
    let of_status = match status {
        400 => "invalid_request_error",
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        _ => "api_error",
    };
    let error = json!({"type": kind.unwrap_or(of_status), "message": format!("mock error {status}")});
    write_json(stream, status, &[], &json!({"type": "error", "error": error}))?;
    Ok(Ended::Answered)
}

fn play(stream: &TcpStream, shared: &Shared, body: &Value, steps: &[Step]) -> io::Result<Ended> {
    let model = body.get("model").cloned().unwrap_or(Value::Null);
    if body.get("stream") != Some(&Value::Bool(true)) {
        let text = json!([{"type": "text", "text": "mock"}]);
        let usage = json!({"input_tokens": 1, "output_tokens": 1});
        let whole = json!({
            "id": shared.id("msg"), "type": "message", "role": "assistant", "model": model,
            "content": text, "stop_reason": "end_turn", "stop_sequence": null, "usage": usage,
        });
        write_json(stream, 200, &[], &whole)?;
        return Ok(Ended::Answered);
    }
    let mut reply =
        Reply { stage: Stage::begin(stream, shared)?, blocks: 0, stop_reason: "end_turn".to_owned() };
    let played = reply.run(&model, steps);
    match played {
        Ok(()) => Ok(Ended::StreamOver),
        Err(Stop::Scripted) => {
            reply.stage.events.flush()?;
            Ok(Ended::StreamOver)
        }
        Err(Stop::Abandoned) => Ok(Ended::Abandoned),
        Err(Stop::Io(error)) => Err(error),
    }
}

struct Reply<'a> {
    stage: Stage<'a>,
    blocks: usize,
    stop_reason: String,
}

impl Reply<'_> {
    fn run(&mut self, model: &Value, steps: &[Step]) -> Result<(), Stop> {
        let usage = json!({
            "input_tokens": 100, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 10, "output_tokens": 1,
        });
        let message = json!({
            "id": self.stage.shared.id("msg"), "type": "message", "role": "assistant", "model": model,
            "content": [], "stop_reason": null, "stop_sequence": null, "usage": usage,
        });
        self.stage.events.event("message_start", json!({"message": message}))?;
        for step in steps {
            self.step(step)?;
            if step.tool_calls() > 0 {
                self.stop_reason = "tool_use".to_owned();
                break; // the rest follows the tool's result, in another request
            }
        }
        let delta = json!({"stop_reason": self.stop_reason, "stop_sequence": null});
        let usage = json!({"output_tokens": 20});
        self.stage.events.event("message_delta", json!({"delta": delta, "usage": usage}))?;
        self.stage.events.event("message_stop", json!({}))?;
        Ok(self.stage.events.flush()?)
    }

    fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Message { chunks, pace } => self.text(chunks, pace, true),
            Step::Reasoning { chunks, pace } => self.thinking(chunks, pace),
            Step::Shell { commands, .. } => commands.iter().try_for_each(|command| {
                self.tool("Bash", &json!({"command": command, "description": format!("mock: {command}")}))
            }),
            Step::Tool { name, arguments, .. } => {
                // A script whose input is no JSON is sent as text, for tools that refuse it.
                let input = serde_json::from_str(arguments).unwrap_or_else(|_| json!(arguments));
                self.tool(name, &input)
            }
            // Responses API only.
            Step::Ask(_) | Step::Spawn(_) | Step::WaitAgent => Ok(()),
            Step::StopWith(reason) => {
                self.stop_reason.clone_from(reason);
                Ok(())
            }
            Step::Gate(name) | Step::Hold(name) => self.stage.stand_at(name, false),
            Step::Hang(time) => self.stage.hang(*time),
            Step::Wait(time) => self.stage.pause(*time),
            Step::Failed(code) => {
                let error = json!({"type": code, "message": format!("mock failure: {code}")});
                self.stage.events.event("error", json!({"error": error}))?;
                Err(Stop::Scripted)
            }
            Step::Cut { chunks } => {
                self.text(chunks, &Pace::AtOnce, false)?;
                Err(Stop::Scripted)
            }
            Step::NoComplete => {
                self.text(&["no ".to_owned(), "completed ".to_owned()], &Pace::AtOnce, true)?;
                Err(Stop::Scripted)
            }
            Step::Patch(_)
            | Step::Empty
            | Step::HttpError { .. }
            | Step::HttpErrorFirst { .. }
            | Step::CutFirst { .. } => Ok(()),
        }
    }

    fn started(&mut self, block: &Value) -> Result<usize, Stop> {
        let index = self.blocks;
        self.blocks += 1;
        let payload = json!({"index": index, "content_block": block});
        self.stage.events.event("content_block_start", payload)?;
        Ok(index)
    }

    fn delta(&mut self, index: usize, delta: &Value) -> Result<(), Stop> {
        Ok(self.stage.events.event("content_block_delta", json!({"index": index, "delta": delta}))?)
    }

    fn stopped(&mut self, index: usize) -> Result<(), Stop> {
        Ok(self.stage.events.event("content_block_stop", json!({"index": index}))?)
    }

    fn text(&mut self, chunks: &[String], pace: &Pace, finish: bool) -> Result<(), Stop> {
        let index = self.started(&json!({"type": "text", "text": ""}))?;
        for chunk in chunks {
            self.stage.keep_pace(pace)?;
            self.delta(index, &json!({"type": "text_delta", "text": chunk}))?;
            if *pace != Pace::AtOnce {
                self.stage.events.flush()?;
            }
        }
        if finish { self.stopped(index) } else { Ok(()) }
    }

    fn thinking(&mut self, chunks: &[String], pace: &Pace) -> Result<(), Stop> {
        let index = self.started(&json!({"type": "thinking", "thinking": "", "signature": ""}))?;
        for chunk in chunks {
            self.stage.keep_pace(pace)?;
            self.delta(index, &json!({"type": "thinking_delta", "thinking": chunk}))?;
            self.stage.events.flush()?;
        }
        self.delta(index, &json!({"type": "signature_delta", "signature": "bW9jaw=="}))?;
        self.stopped(index)
    }

    fn tool(&mut self, name: &str, input: &Value) -> Result<(), Stop> {
        let id = self.stage.shared.id("toolu");
        let index = self.started(&json!({"type": "tool_use", "id": id, "name": name, "input": {}}))?;
        self.delta(index, &json!({"type": "input_json_delta", "partial_json": input.to_string()}))?;
        self.stopped(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_the_last_text_of_the_user_itself() {
        let text =
            |role: &str, text: &str| json!({"role": role, "content": [{"type": "text", "text": text}]});
        let body = json!({"messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>x</system-reminder>"},
                {"type": "text", "text": "RUN ls ;; SAY x"},
            ]},
            text("system", "Available agents"),
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "Bash", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "out"}]},
            text("system", "The user sent a new message while you were working:\nmore\n\nIMPORTANT: do it"),
        ]});
        let expected = Position {
            script: "RUN ls ;; SAY x".to_owned(),
            outputs: 1,
            last_output: Some("out".to_owned()),
        };
        assert_eq!(position(&body), expected);
        assert_eq!(prompts(&body), ["RUN ls ;; SAY x", "more"]);
    }
}
