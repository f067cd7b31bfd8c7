//! Playing the steps of a script as one response stream.

use std::collections::BTreeMap;
use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::gates::{Gates, Passage};
use super::request::{self, Tool};
use super::script::{self, Pace, Step};
use super::stage::{Stage, Stop};
use super::wire::{peer_is_there, write_json};

/// Pieces that tool arguments are streamed in.
const ARGUMENT_DELTA_BYTES: usize = 400;
/// Beyond this much of a tool argument no deltas are sent, only the finished item.
const ARGUMENT_STREAMED_BYTES: usize = 4000;
/// How much of the last tool output the closing words quote.
const QUOTED_OUTPUT_CHARS: usize = 400;

/// How long the model waits for its sub-agents at once.
const WAIT_FOR_AGENTS_MS: u32 = 30_000;

/// How a response ended, seen from the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// As the script says; the connection may be kept (it was a JSON answer).
    Answered,
    /// As the script says; the stream is over and the connection with it.
    StreamOver,
    /// The client went away, or the server is being dropped.
    Abandoned,
}

/// What replies of one server share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) gates: Gates,
    next_id: AtomicUsize,
}

impl Shared {
    pub(crate) fn id(&self, prefix: &str) -> String {
        format!("{prefix}_mock_{:06}", self.next_id.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// The steps of `body`'s script that are still to be played, never empty.
pub(crate) fn remaining_steps(position: &request::Position) -> Vec<Step> {
    let steps = script::parse(&position.script);
    let mut outputs = position.outputs;
    let mut played = 0;
    while outputs > 0 && played < steps.len() {
        outputs = outputs.saturating_sub(steps[played].tool_calls());
        played += 1;
    }
    let remaining = steps[played..].to_vec();
    if !remaining.is_empty() {
        return remaining;
    }
    let quoted = position.last_output.as_ref().map_or_else(String::new, |output| {
        let start: String = output.chars().take(QUOTED_OUTPUT_CHARS).collect();
        format!(" Last tool output ({} bytes): {start}", output.len())
    });
    vec![Step::Message { chunks: crate::stream_text::words(&format!("done.{quoted}")), pace: Pace::AtOnce }]
}

/// Answers one model request of the Responses API. `attempt` counts from 1 how often this same request was made.
pub(crate) fn answer(
    stream: &TcpStream,
    shared: &Shared,
    body: &Value,
    steps: &[Step],
    attempt: usize,
) -> io::Result<Ended> {
    let play = |steps: &[Step]| play(stream, shared, body, steps);
    answer_with(stream, shared, steps, attempt, &http_error, &play)
}

/// How a protocol answers with an HTTP error: its status and, where the script names one, its kind.
type ErrorAnswer = dyn Fn(&TcpStream, u16, Option<&str>) -> io::Result<Ended>;

/// Takes the steps that act before there is a stream; then either `error` answers or `play` streams the rest.
pub(crate) fn answer_with(
    stream: &TcpStream,
    shared: &Shared,
    steps: &[Step],
    attempt: usize,
    error: &ErrorAnswer,
    play: &dyn Fn(&[Step]) -> io::Result<Ended>,
) -> io::Result<Ended> {
    let mut steps = steps;
    while let Some((first, rest)) = steps.split_first() {
        match first {
            Step::Wait(time) => {
                if shared.gates.pause(*time, || peer_is_there(stream)) == Passage::Abandoned {
                    return Ok(Ended::Abandoned);
                }
            }
            Step::Hold(name) => {
                if shared.gates.pass(name, false, || peer_is_there(stream)) == Passage::Abandoned {
                    return Ok(Ended::Abandoned);
                }
            }
            Step::HttpError { status, kind } => return error(stream, *status, kind.as_deref()),
            Step::HttpErrorFirst { attempts, status } if attempt <= *attempts => {
                return error(stream, *status, None);
            }
            Step::HttpErrorFirst { .. } => {}
            Step::CutFirst { attempts } if attempt <= *attempts => {
                return play(&[Step::Cut { chunks: vec!["cut ".to_owned(), "off ".to_owned()] }]);
            }
            Step::CutFirst { .. } => {}
            _ => break,
        }
        steps = rest;
    }
    play(steps)
}

fn http_error(stream: &TcpStream, status: u16, kind: Option<&str>) -> io::Result<Ended> {
    let mut error = json!({
        "message": format!("mock error {status}"),
        "type": kind.unwrap_or("mock_error"),
        "code": kind,
    });
    let mut headers = Vec::new();
    if status == 429 {
        headers.push(("retry-after", "1".to_owned()));
        if kind == Some("usage_limit_reached") {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
            error["plan_type"] = json!("plus");
            error["resets_at"] = json!(now + 3600);
            // As the provider reports an account's limits beside an answer.
            for (name, value) in [
                ("x-codex-primary-used-percent", "100".to_owned()),
                ("x-codex-primary-window-minutes", "300".to_owned()),
                ("x-codex-primary-reset-at", (now + 3600).to_string()),
            ] {
                headers.push((name, value));
            }
        }
    }
    write_json(stream, status, &headers, &json!({"error": error}))?;
    Ok(Ended::Answered)
}

fn play(stream: &TcpStream, shared: &Shared, body: &Value, steps: &[Step]) -> io::Result<Ended> {
    let mut reply = Reply {
        stage: Stage::begin(stream, shared)?,
        id: shared.id("resp"),
        model: body.get("model").cloned().unwrap_or(Value::Null),
        tools: request::tools(body),
        agents: request::agents(body),
        output: Vec::new(),
    };
    match reply.run(steps) {
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
    id: String,
    model: Value,
    tools: BTreeMap<String, Tool>,
    /// Sub-agents that earlier calls started.
    agents: Vec<String>,
    /// Finished items, repeated in `response.completed`.
    output: Vec<Value>,
}

impl Reply<'_> {
    fn run(&mut self, steps: &[Step]) -> Result<(), Stop> {
        let response = self.response("in_progress");
        self.stage.events.event("response.created", json!({"response": response}))?;
        for step in steps {
            self.step(step)?;
            if step.tool_calls() > 0 {
                break; // the rest follows the tool's output, in another request
            }
        }
        let mut response = self.response("completed");
        response["output"] = json!(self.output);
        response["usage"] = json!({
            "input_tokens": 100, "input_tokens_details": {"cached_tokens": 10},
            "output_tokens": 20, "output_tokens_details": {"reasoning_tokens": 5},
            "total_tokens": 120,
        });
        self.stage.events.event("response.completed", json!({"response": response}))?;
        Ok(self.stage.events.flush()?)
    }

    fn response(&self, status: &str) -> Value {
        json!({"id": self.id, "object": "response", "status": status, "model": self.model, "output": []})
    }

    fn step(&mut self, step: &Step) -> Result<(), Stop> {
        match step {
            Step::Message { chunks, pace } => self.message(chunks, pace, true),
            Step::Reasoning { chunks, pace } => self.reasoning(chunks, pace),
            Step::Shell { commands, escalated } => {
                commands.iter().try_for_each(|command| self.shell(command, *escalated))
            }
            Step::Patch(patch) => self.patch(patch),
            Step::Ask(question) => self.ask(question),
            Step::Spawn(script) => self.spawn(script),
            Step::WaitAgent => self.wait_for_agents(),
            Step::Tool { namespace, name, arguments } => {
                self.call(namespace.as_deref(), name, arguments.clone())
            }
            Step::Gate(name) | Step::Hold(name) => self.stage.stand_at(name, false),
            Step::Hang(time) => self.stage.hang(*time),
            Step::Wait(time) => self.stage.pause(*time),
            Step::Failed(code) => {
                let mut response = self.response("failed");
                response["error"] = json!({"code": code, "message": format!("mock failure: {code}")});
                self.stage.events.event("response.failed", json!({"response": response}))?;
                Err(Stop::Scripted)
            }
            Step::Cut { chunks } => {
                self.message(chunks, &Pace::AtOnce, false)?;
                Err(Stop::Scripted)
            }
            Step::NoComplete => {
                self.message(&["no ".to_owned(), "completed ".to_owned()], &Pace::AtOnce, true)?;
                Err(Stop::Scripted)
            }
            Step::StopWith(_) => Ok(()),
            // Errors before the stream mean nothing once it has begun.
            Step::Empty | Step::HttpError { .. } | Step::HttpErrorFirst { .. } | Step::CutFirst { .. } => {
                Ok(())
            }
        }
    }

    fn message(&mut self, chunks: &[String], pace: &Pace, finish: bool) -> Result<(), Stop> {
        let id = self.stage.shared.id("msg");
        let index = self.output.len();
        let mut item =
            json!({"type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": []});
        self.added(index, &item)?;
        let empty_part = json!({"type": "output_text", "text": "", "annotations": []});
        self.stage.events.event(
            "response.content_part.added",
            json!({"item_id": id, "output_index": index, "content_index": 0, "part": empty_part}),
        )?;
        for chunk in chunks {
            self.stage.keep_pace(pace)?;
            self.stage.events.event(
                "response.output_text.delta",
                json!({"item_id": id, "output_index": index, "content_index": 0, "delta": chunk}),
            )?;
            if *pace != Pace::AtOnce {
                self.stage.events.flush()?;
            }
        }
        if finish {
            item["status"] = json!("completed");
            item["content"] = json!([{"type": "output_text", "text": chunks.concat(), "annotations": []}]);
            self.done(index, item)?;
        }
        Ok(self.stage.events.flush()?)
    }

    fn reasoning(&mut self, chunks: &[String], pace: &Pace) -> Result<(), Stop> {
        let id = self.stage.shared.id("rs");
        let index = self.output.len();
        self.added(index, &json!({"type": "reasoning", "id": id, "summary": []}))?;
        let place = json!({"item_id": id, "output_index": index, "summary_index": 0});
        let mut part = place.clone();
        part["part"] = json!({"type": "summary_text", "text": ""});
        self.stage.events.event("response.reasoning_summary_part.added", part)?;
        for chunk in chunks {
            self.stage.keep_pace(pace)?;
            let mut delta = place.clone();
            delta["delta"] = json!(chunk);
            self.stage.events.event("response.reasoning_summary_text.delta", delta)?;
            self.stage.events.flush()?;
        }
        let summary = json!([{"type": "summary_text", "text": chunks.concat()}]);
        let item =
            json!({"type": "reasoning", "id": id, "summary": summary, "encrypted_content": "bW9jaw=="});
        self.done(index, item)
    }

    /// Uses whichever shell tool the agent offers.
    fn shell(&mut self, command: &str, escalated: bool) -> Result<(), Stop> {
        let mut arguments = json!({});
        if escalated {
            arguments["sandbox_permissions"] = json!("require_escalated");
            arguments["justification"] = json!("mock wants to run outside the sandbox");
        }
        if self.tools.contains_key("shell_command") && !self.tools.contains_key("exec_command") {
            arguments["command"] = json!(command);
            return self.function_call("shell_command", &arguments);
        }
        arguments["cmd"] = json!(command);
        if self.in_code_mode() {
            return self.custom_call("exec", &format!("text(await tools.exec_command({arguments}))"));
        }
        self.function_call("exec_command", &arguments)
    }

    fn patch(&mut self, patch: &str) -> Result<(), Stop> {
        match self.tools.get("apply_patch") {
            Some(tool) if tool.custom => self.custom_call("apply_patch", patch),
            Some(_) => self.function_call("apply_patch", &json!({"input": patch})),
            None if self.in_code_mode() => {
                self.custom_call("exec", &format!("text(await tools.apply_patch({}))", json!(patch)))
            }
            None => self.shell(&format!("apply_patch <<'EOP'\n{patch}\nEOP"), false),
        }
    }

    fn ask(&mut self, question: &str) -> Result<(), Stop> {
        let options = json!([
            { "label": "Alpha (Recommended)", "description": "first" },
            { "label": "Beta", "description": "second" },
        ]);
        let question = json!({ "id": "q1", "header": "Pick", "question": question, "options": options });
        self.function_call("request_user_input", &json!({ "questions": [question] }))
    }

    fn spawn(&mut self, script: &str) -> Result<(), Stop> {
        let mut arguments = json!({ "message": script });
        if self.takes("spawn_agent", "task_name") {
            arguments["task_name"] = json!(self.stage.shared.id("task"));
        }
        self.function_call("spawn_agent", &arguments)
    }

    fn wait_for_agents(&mut self) -> Result<(), Stop> {
        let name = if self.tools.contains_key("wait_agent") { "wait_agent" } else { "wait" };
        let mut arguments = json!({ "timeout_ms": WAIT_FOR_AGENTS_MS });
        for parameter in ["targets", "ids"] {
            if self.takes(name, parameter) {
                arguments[parameter] = json!(self.agents);
            }
        }
        self.function_call(name, &arguments)
    }

    fn takes(&self, tool: &str, parameter: &str) -> bool {
        self.tools.get(tool).is_some_and(|tool| tool.parameters.iter().any(|of| of == parameter))
    }

    /// Newer models get one JavaScript tool instead of the plain ones.
    fn in_code_mode(&self) -> bool {
        !self.tools.contains_key("exec_command") && self.tools.get("exec").is_some_and(|tool| tool.custom)
    }

    fn function_call(&mut self, name: &str, arguments: &Value) -> Result<(), Stop> {
        self.call(None, name, arguments.to_string())
    }

    fn call(&mut self, namespace: Option<&str>, name: &str, arguments: String) -> Result<(), Stop> {
        let mut item = json!({
            "type": "function_call", "id": self.stage.shared.id("fc"), "call_id": self.stage.shared.id("call"),
            "name": name, "arguments": arguments, "status": "completed",
        });
        let offered = self.tools.get(name).and_then(|tool| tool.namespace.clone());
        if let Some(namespace) = namespace.map(str::to_owned).or(offered) {
            item["namespace"] = json!(namespace);
        }
        self.tool_call(item, "arguments", "response.function_call_arguments.delta")
    }

    fn custom_call(&mut self, name: &str, input: &str) -> Result<(), Stop> {
        let item = json!({
            "type": "custom_tool_call", "id": self.stage.shared.id("ctc"), "call_id": self.stage.shared.id("call"),
            "name": name, "input": input, "status": "completed",
        });
        self.tool_call(item, "input", "response.custom_tool_call_input.delta")
    }

    fn tool_call(&mut self, item: Value, streamed_field: &str, delta_event: &str) -> Result<(), Stop> {
        let index = self.output.len();
        let text = item[streamed_field].as_str().unwrap_or_default().to_owned();
        let mut started = item.clone();
        started["status"] = json!("in_progress");
        started[streamed_field] = json!("");
        self.added(index, &started)?;
        let characters: Vec<char> = text.chars().take(ARGUMENT_STREAMED_BYTES).collect();
        for piece in characters.chunks(ARGUMENT_DELTA_BYTES) {
            let delta: String = piece.iter().collect();
            self.stage
                .events
                .event(delta_event, json!({"item_id": item["id"], "output_index": index, "delta": delta}))?;
        }
        self.done(index, item)
    }

    fn added(&mut self, index: usize, item: &Value) -> Result<(), Stop> {
        let payload = json!({"output_index": index, "item": item});
        Ok(self.stage.events.event("response.output_item.added", payload)?)
    }

    fn done(&mut self, index: usize, item: Value) -> Result<(), Stop> {
        self.stage.events.event("response.output_item.done", json!({"output_index": index, "item": item}))?;
        self.output.push(item);
        Ok(())
    }
}
