//! Reading server-sent events.

use std::io;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::body::Body;
use super::{Addr, Client, Response};

/// How many events a message about a missing one shows.
const SHOWN_EVENTS: usize = 5;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub struct SseEvent {
    /// The `id` field of this very event; markers have none.
    pub id: Option<String>,
    /// The `event` field; `message` when there was none.
    pub event: String,
    /// The `data` field as JSON, or as a JSON string where it is not JSON.
    pub data: Value,
}

/// An open event stream.
#[derive(Debug)]
pub struct Sse {
    body: Body,
    /// Decoded and not yet parsed, from `parsed` on.
    buffer: Vec<u8>,
    parsed: usize,
    /// Behind `parsed`, so many bytes were searched for the end of an event and have none.
    searched: usize,
    ended: bool,
}

impl Sse {
    /// Opens `path` with these headers.
    ///
    /// # Errors
    /// When the connection fails, or the status is not 200 (the message holds status and body).
    pub fn open(addr: &Addr, path: &str, headers: &[(&str, &str)]) -> io::Result<Self> {
        Client::new(addr.clone()).events(path, headers)
    }

    /// The next event; `None` when `deadline` passes first or the stream is over, see [`ended`](Self::ended).
    /// A passed deadline loses nothing: the next call goes on where this one stopped.
    pub fn next(&mut self, deadline: Duration) -> Option<SseEvent> {
        let give_up_at = Instant::now() + deadline;
        loop {
            if let Some(event) = self.parse() {
                return Some(event);
            }
            if self.ended {
                return None;
            }
            self.buffer.drain(..self.parsed);
            self.parsed = 0;
            match self.body.read_more(&mut self.buffer, give_up_at) {
                Ok(()) => self.ended = self.body.is_over(),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return None,
                // A host that was killed ends its streams this way.
                Err(_) => self.ended = true,
            }
        }
    }

    /// Appends the bytes of the stream as they come, for whoever counts instead of parsing; not to be mixed with
    /// [`next`](Self::next). Appends nothing when `limit` passes first or the stream is over.
    pub fn bytes(&mut self, content: &mut Vec<u8>, limit: Duration) {
        match self.body.read_more(content, Instant::now() + limit) {
            Ok(()) => self.ended = self.body.is_over(),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {}
            Err(_) => self.ended = true,
        }
    }

    /// Whether the server has ended the stream, in order or not.
    pub fn ended(&self) -> bool {
        self.ended
    }

    /// Reads events up to and including the first one that `is_last` accepts.
    ///
    /// # Panics
    /// When it does not come before `deadline`; the message shows the last events that did.
    #[track_caller]
    pub fn until(&mut self, deadline: Duration, mut is_last: impl FnMut(&SseEvent) -> bool) -> Vec<SseEvent> {
        let give_up_at = Instant::now() + deadline;
        let mut events = Vec::new();
        loop {
            let Some(event) = self.next(give_up_at.saturating_duration_since(Instant::now())) else {
                let last = &events[events.len().saturating_sub(SHOWN_EVENTS)..];
                panic!(
                    "the event waited for did not come within {deadline:?} (stream ended: {}); {} others came, \
                     the last: {last:#?}",
                    self.ended,
                    events.len()
                );
            };
            let last = is_last(&event);
            events.push(event);
            if last {
                return events;
            }
        }
    }

    /// Takes the next complete event out of the buffer.
    fn parse(&mut self) -> Option<SseEvent> {
        loop {
            let rest = &self.buffer[self.parsed..];
            // What was searched is not searched again: one event may come in thousands of pieces.
            let Some(found) = rest[self.searched..].windows(2).position(|pair| pair == b"\n\n") else {
                self.searched = rest.len().saturating_sub(1);
                return None;
            };
            let end = self.searched + found;
            self.searched = 0;
            let frame = String::from_utf8_lossy(&rest[..end]).into_owned();
            self.parsed += end + 2;
            if let Some(event) = parse_frame(&frame) {
                return Some(event);
            }
        }
    }
}

/// `None` for a frame of comments alone.
fn parse_frame(frame: &str) -> Option<SseEvent> {
    let mut id = None;
    let mut event = None;
    let mut data: Option<String> = None;
    for line in frame.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => id = Some(value.to_owned()),
            "event" => event = Some(value.to_owned()),
            "data" => match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            },
            _ => {}
        }
    }
    let data = data?;
    Some(SseEvent {
        id,
        event: event.unwrap_or_else(|| "message".to_owned()),
        data: serde_json::from_str(&data).unwrap_or(Value::String(data)),
    })
}

impl Client {
    /// Opens an event stream with this client's headers; `headers` come after, and replace, them.
    ///
    /// # Errors
    /// When the connection fails, or the status is not 200 (the message holds status and body).
    pub fn events(&self, path: &str, headers: &[(&str, &str)]) -> io::Result<Sse> {
        let give_up_at = Instant::now() + self.timeout;
        let streaming = self.clone().header("accept", "text/event-stream");
        let (head, mut body) = streaming.exchange("GET", path, headers, None, give_up_at)?;
        if head.status != 200 {
            let mut content = Vec::new();
            while !body.is_over() {
                body.read_more(&mut content, give_up_at)?;
            }
            let refusal = Response { status: head.status, headers: head.headers, body: content };
            return Err(io::Error::other(format!("status {}: {}", refusal.status, refusal.text())));
        }
        Ok(Sse { body, buffer: Vec::new(), parsed: 0, searched: 0, ended: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn frames_have_their_fields() {
        let event = parse_frame("id: 1:7\nevent: item.delta\ndata: {\"a\":\ndata: 1}").expect("an event");
        assert_eq!(
            event,
            SseEvent { id: Some("1:7".into()), event: "item.delta".into(), data: json!({"a": 1}) }
        );
        assert_eq!(parse_frame(": comment"), None);
        assert_eq!(parse_frame("data:plain").map(|event| event.data), Some(json!("plain")));
    }
}
