//! A stream-json agent for hosts that start a program named `claude`: it plays the steps of the scripted ACP agent
//! that the bench uses, in the other protocol.

use std::io::{self, BufRead, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use mainstay_testkit::stream_text;
use serde_json::{Value, json};

/// Bytes of prepared lines written at once by a burst.
const BURST_BYTES: usize = 256 << 10;

/// Bytes of one line around a text: the envelope of a text delta.
pub(crate) const LINE_BYTES: u64 = 190;

const SESSION: &str = "00000000-0000-4000-8000-000000000001";

/// One writer of whole lines.
#[derive(Debug, Default, Clone)]
struct Output(Arc<Mutex<()>>);

impl Output {
    fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let _one = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    fn line(&self, value: &Value) -> io::Result<()> {
        self.bytes(format!("{value}\n").as_bytes())
    }
}

/// Reads messages until the end of input.
pub(crate) fn serve() -> io::Result<()> {
    let output = Output::default();
    output.line(&json!({
        "type": "system", "subtype": "init", "session_id": SESSION, "model": "scripted", "cwd": ".",
        "tools": [], "mcp_servers": [], "permissionMode": "default", "apiKeySource": "none",
    }))?;
    let interrupted = Arc::new(AtomicBool::new(false));
    for line in io::stdin().lock().lines() {
        let Ok(message) = serde_json::from_str::<Value>(&line?) else { continue };
        match message["type"].as_str() {
            Some("user") => {
                let script = text_of(&message["message"]["content"]);
                let (output, interrupted) = (output.clone(), Arc::clone(&interrupted));
                interrupted.store(false, Ordering::SeqCst);
                std::thread::spawn(move || play(&output, &script, &interrupted));
            }
            Some("control_request") => {
                if message["request"]["subtype"] == "interrupt" {
                    interrupted.store(true, Ordering::SeqCst);
                }
                let response =
                    json!({ "subtype": "success", "request_id": message["request_id"], "response": {} });
                output.line(&json!({ "type": "control_response", "response": response }))?;
            }
            _ => {}
        }
    }
    // Not a return: a turn in another thread must not delay the end.
    std::process::exit(0);
}

fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(blocks) => blocks.iter().filter_map(|block| block["text"].as_str()).collect(),
        _ => String::new(),
    }
}

fn event(event: &Value) -> Value {
    json!({ "type": "stream_event", "session_id": SESSION, "parent_tool_use_id": null, "event": event })
}

fn delta(text: &str) -> Value {
    event(
        &json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } }),
    )
}

/// A client that no longer reads ends the process, as it ends real agents.
fn play(output: &Output, script: &str, interrupted: &AtomicBool) {
    if turn(output, script, interrupted).is_err() {
        std::process::exit(1);
    }
}

fn turn(output: &Output, script: &str, interrupted: &AtomicBool) -> io::Result<()> {
    let message =
        json!({ "id": "msg", "type": "message", "role": "assistant", "content": [], "model": "scripted" });
    output.line(&event(&json!({ "type": "message_start", "message": message })))?;
    let block = json!({ "type": "text", "text": "" });
    output.line(&event(&json!({ "type": "content_block_start", "index": 0, "content_block": block })))?;
    let words: Vec<&str> = script.split_whitespace().collect();
    let numbers: Vec<usize> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
    let said = match (words.first().copied(), numbers.as_slice()) {
        (Some("FRAMES"), [count, size]) => {
            burst(output, *count, *size)?;
            String::new()
        }
        (Some("STAMPS"), [count, every_us]) => {
            for stamp in stream_text::stamps(*count, Duration::from_micros(*every_us as u64)) {
                output.line(&delta(&stamp))?;
            }
            String::new()
        }
        (Some("HOLD"), _) => {
            while !interrupted.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(10));
            }
            String::new()
        }
        _ => {
            output.line(&delta(script))?;
            script.to_owned()
        }
    };
    output.line(&event(&json!({ "type": "content_block_stop", "index": 0 })))?;
    let content = json!([{ "type": "text", "text": said }]);
    let whole = json!({ "id": "msg", "type": "message", "role": "assistant", "content": content, "model": "scripted" });
    output.line(&json!({ "type": "assistant", "message": whole, "session_id": SESSION }))?;
    output.line(&event(&json!({ "type": "message_stop" })))?;
    output.line(&json!({
        "type": "result", "subtype": "success", "is_error": false, "result": said, "session_id": SESSION,
        "duration_ms": 1, "duration_api_ms": 1, "num_turns": 1, "total_cost_usd": 0,
        "usage": { "input_tokens": 1, "output_tokens": 1 },
    }))
}

fn burst(output: &Output, count: usize, size: usize) -> io::Result<()> {
    // The line is made once around a mark; deltas are digits and spaces and need no escaping.
    const MARK: &str = "@delta@";
    let frame = format!("{}\n", delta(MARK));
    let (before, after) = frame.split_once(MARK).unwrap_or((&frame, ""));
    let mut lines = Vec::with_capacity(BURST_BYTES + frame.len());
    for delta in stream_text::deltas(count, size) {
        lines.extend_from_slice(before.as_bytes());
        lines.extend_from_slice(delta.as_bytes());
        lines.extend_from_slice(after.as_bytes());
        if lines.len() >= BURST_BYTES {
            output.bytes(&lines)?;
            lines.clear();
        }
    }
    output.bytes(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_envelope_has_the_length_the_report_divides_by() {
        let length = format!("{}\n", delta("")).len() as u64;
        assert!(length.abs_diff(LINE_BYTES) <= 5, "{length}");
    }
}
