//! A model on loopback for hosts that are agents themselves: it answers *chat completions* and *responses* with the
//! script that stands in double brackets in the newest message, in the words of the scripted agents.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use mainstay_testkit::stream_text;
use serde_json::{Value, json};

use crate::problem::Problem;

/// Bytes of prepared events written at once by a burst.
const BURST_BYTES: usize = 256 << 10;

/// How long `HOLD` holds: longer than anything waits.
const HOLD: Duration = Duration::from_secs(600);

/// A script as it is put into a message.
pub(crate) fn marked(script: &str) -> String {
    format!("[[{script}]]")
}

/// Starts one; it lives as long as the program.
pub(crate) fn start() -> Result<u16, Problem> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Problem::io("the model's port"))?;
    let port = listener.local_addr().map_err(Problem::io("the model's port"))?.port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || {
                // An agent that goes away in the middle has nobody to tell.
                serve(&connection).ok();
            });
        }
    });
    Ok(port)
}

/// One request on each connection.
fn serve(connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    if !first.starts_with("POST") {
        return whole(
            connection,
            &json!({ "object": "list", "data": [{ "id": "mock", "object": "model" }], "models": [] }),
        );
    }
    let responses = first.split(' ').nth(1).is_some_and(|path| path.ends_with("/responses"));
    // A title or a summary is asked for without tools; it is not the turn.
    let turn = body.get("tools").and_then(Value::as_array).is_some_and(|tools| !tools.is_empty());
    let script = if turn { script_in(&body.to_string()) } else { "SAY title".to_owned() };
    if !responses && body["stream"] != true {
        let message = json!({ "role": "assistant", "content": "ok" });
        let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
        return whole(
            connection,
            &json!({ "id": "x", "object": "chat.completion", "model": "mock", "choices": [choice] }),
        );
    }
    let mut stream = connection;
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")?;
    if responses { Responses.answer(stream, &script) } else { Chat.answer(stream, &script) }
}

fn whole(mut connection: &TcpStream, value: &Value) -> io::Result<()> {
    let body = value.to_string();
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
    connection.write_all(format!("{head} {}\r\n\r\n{body}", body.len()).as_bytes())
}

/// The newest script of a conversation.
fn script_in(body: &str) -> String {
    let begins = body.rfind("[[").map(|at| &body[at + 2..]);
    begins
        .and_then(|rest| rest.split_once("]]"))
        .map_or_else(|| "SAY hi".to_owned(), |(script, _)| script.to_owned())
}

/// How an API frames what is said.
trait Frames {
    fn before(&self) -> Vec<Value>;
    fn delta(&self, text: &str) -> Value;
    fn after(&self, said: &str) -> Vec<Value>;
    fn line(&self, value: &Value) -> String;
    fn end(&self) -> &'static str;

    fn answer(&self, mut stream: &TcpStream, script: &str) -> io::Result<()> {
        for value in self.before() {
            stream.write_all(self.line(&value).as_bytes())?;
        }
        let words: Vec<&str> = script.split_whitespace().collect();
        let numbers: Vec<usize> = words.iter().skip(1).filter_map(|word| word.parse().ok()).collect();
        let mut said = String::new();
        match (words.first().copied(), numbers.as_slice()) {
            (Some("FRAMES"), [count, size]) => {
                const MARK: &str = "@delta@";
                let frame = self.line(&self.delta(MARK));
                let (before, after) = frame.split_once(MARK).unwrap_or((&frame, ""));
                let mut lines = String::with_capacity(BURST_BYTES + frame.len());
                for delta in stream_text::deltas(*count, *size) {
                    lines.push_str(before);
                    lines.push_str(&delta);
                    lines.push_str(after);
                    said.push_str(&delta);
                    if lines.len() >= BURST_BYTES {
                        stream.write_all(lines.as_bytes())?;
                        lines.clear();
                    }
                }
                stream.write_all(lines.as_bytes())?;
            }
            (Some("STAMPS"), [count, every_us]) => {
                for stamp in stream_text::stamps(*count, Duration::from_micros(*every_us as u64)) {
                    stream.write_all(self.line(&self.delta(&stamp)).as_bytes())?;
                    said.push_str(&stamp);
                }
            }
            (Some("HOLD"), _) => std::thread::sleep(HOLD),
            _ => {
                said.push_str("hi");
                stream.write_all(self.line(&self.delta("hi")).as_bytes())?;
            }
        }
        for value in self.after(&said) {
            stream.write_all(self.line(&value).as_bytes())?;
        }
        stream.write_all(self.end().as_bytes())
    }
}

struct Chat;

impl Chat {
    fn chunk(delta: &Value, finish: Option<&str>) -> Value {
        let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish });
        json!({ "id": "x", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": [choice] })
    }
}

impl Frames for Chat {
    fn before(&self) -> Vec<Value> {
        vec![Self::chunk(&json!({ "role": "assistant", "content": "" }), None)]
    }

    fn delta(&self, text: &str) -> Value {
        Self::chunk(&json!({ "content": text }), None)
    }

    fn after(&self, _said: &str) -> Vec<Value> {
        let mut last = Self::chunk(&json!({}), Some("stop"));
        last["usage"] = json!({ "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 });
        vec![last]
    }

    fn line(&self, value: &Value) -> String {
        format!("data: {value}\n\n")
    }

    fn end(&self) -> &'static str {
        "data: [DONE]\n\n"
    }
}

struct Responses;

impl Frames for Responses {
    fn before(&self) -> Vec<Value> {
        let item = json!({ "type": "message", "role": "assistant", "id": "m1", "content": [] });
        vec![
            json!({ "type": "response.created", "response": { "id": "r1" } }),
            json!({ "type": "response.output_item.added", "output_index": 0, "item": item }),
        ]
    }

    fn delta(&self, text: &str) -> Value {
        json!({ "type": "response.output_text.delta", "item_id": "m1", "output_index": 0, "content_index": 0, "delta": text })
    }

    fn after(&self, said: &str) -> Vec<Value> {
        let content = json!([{ "type": "output_text", "text": said }]);
        let item = json!({ "type": "message", "role": "assistant", "id": "m1", "content": content });
        let usage = json!({
            "input_tokens": 1, "input_tokens_details": null, "output_tokens": 1, "output_tokens_details": null,
            "total_tokens": 2,
        });
        vec![
            json!({ "type": "response.output_item.done", "output_index": 0, "item": item }),
            json!({ "type": "response.completed", "response": { "id": "r1", "usage": usage } }),
        ]
    }

    fn line(&self, value: &Value) -> String {
        let kind = value["type"].as_str().unwrap_or_default();
        format!("event: {kind}\ndata: {value}\n\n")
    }

    fn end(&self) -> &'static str {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_script_of_a_body_is_played() {
        let body =
            json!({ "input": [marked("SAY a"), { "text": format!("<x>{}</x>", marked("FRAMES 5 24")) }] });
        assert_eq!(script_in(&body.to_string()), "FRAMES 5 24");
        assert_eq!(script_in("nothing"), "SAY hi");
    }
}
