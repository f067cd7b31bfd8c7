//! Everything that leaves on standard output: whole lines, one writer at a time.

use std::io::{self, Write};
use std::sync::Mutex;
use std::sync::PoisonError;

use serde_json::{Value, json};

/// Bytes of prepared lines written at once by a burst: several pipes full, so that the reader sets the speed.
const BURST_BYTES: usize = 256 << 10;

/// Standard output.
#[derive(Debug, Default)]
pub(crate) struct Output {
    one_at_a_time: Mutex<()>,
}

impl Output {
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        let _turn = self.one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes)?;
        stdout.flush()
    }

    pub(crate) fn line(&self, message: &Value) -> io::Result<()> {
        self.bytes(format!("{message}\n").as_bytes())
    }

    pub(crate) fn answer(&self, id: &Value, result: Value) -> io::Result<()> {
        self.line(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    pub(crate) fn refuse(&self, id: &Value, code: i64, message: &str) -> io::Result<()> {
        self.line(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}))
    }

    pub(crate) fn update(&self, session: &str, update: Value) -> io::Result<()> {
        self.line(&update_message(session, update))
    }

    /// Sends one text chunk per delta as fast as the pipe takes them.
    pub(crate) fn burst(
        &self,
        session: &str,
        message_id: Option<&str>,
        deltas: impl Iterator<Item = String>,
    ) -> io::Result<()> {
        // The line is made once around a mark that its JSON cannot contain otherwise; deltas are digits and
        // spaces and need no escaping.
        const MARK: &str = "@delta@";
        let frame = format!("{}\n", update_message(session, text_chunk(MARK, message_id)));
        let (before, after) = frame.split_once(MARK).unwrap_or((&frame, ""));
        let mut lines = Vec::with_capacity(BURST_BYTES + frame.len());
        for delta in deltas {
            lines.extend_from_slice(before.as_bytes());
            lines.extend_from_slice(delta.as_bytes());
            lines.extend_from_slice(after.as_bytes());
            if lines.len() >= BURST_BYTES {
                self.bytes(&lines)?;
                lines.clear();
            }
        }
        self.bytes(&lines)
    }
}

fn update_message(session: &str, update: Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}})
}

/// A piece of the agent's text; pieces with one message id are one message.
pub(crate) fn text_chunk(text: &str, message_id: Option<&str>) -> Value {
    let mut update =
        json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}});
    if let Some(id) = message_id {
        update["messageId"] = json!(id);
    }
    update
}
