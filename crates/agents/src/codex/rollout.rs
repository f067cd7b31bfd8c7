//! Codex's own records of a thread (`sessions/…/rollout-….jsonl` in its home), read without an agent: which threads
//! there are to be adopted, and what was said in one. Nothing here writes, or opens a file: the caller has the bytes.
//!
//! A record may begin where another one stops ([`Base`]): a branch, or a thread that was taken back. A history is read
//! whole or not at all: what is too large, cut, or has an unknown form is an error, never a part.

use super::items;
use mainstay_core::content::{Failure, FailureCode, Origin, Outcome};
use mainstay_core::{AgentEvent, ProviderTurn, ThreadId};
use serde_json::{Map, Value, json};

/// The largest record that is read, in bytes. Measured: outputs of 5 MB make records of 15 MB.
pub const MAX_RECORD_BYTES: usize = 64 * 1024 * 1024;
/// The most items that are taken over from one thread.
pub const MAX_ITEMS: usize = 10_000;
/// The most records that one history is made of.
pub const MAX_RECORDS: usize = 32;

/// Where a record goes on from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base {
    /// The thread whose record it is: another one (a branch), or the same (it was taken back).
    pub thread: ThreadId,
    /// Lines of it with this ordinal or a higher one are not part of the history.
    pub before_ordinal: u64,
}

/// The first line of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The thread.
    pub thread: ThreadId,
    /// Its folder.
    pub cwd: Option<String>,
    /// When the record was begun, as the agent wrote it.
    pub started: Option<String>,
    /// Who made it (`codex_cli_rs`, an editor, …).
    pub originator: Option<String>,
    /// The thread that it is a sub-agent of; those are not adopted.
    pub parent: Option<ThreadId>,
    /// What it goes on from; None: it is whole.
    pub base: Option<Base>,
}

/// Why a history is not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    /// Over [`MAX_RECORD_BYTES`], [`MAX_ITEMS`] or [`MAX_RECORDS`].
    #[error("the thread's record is too large ({0})")]
    TooLarge(&'static str),
    /// The first line is no head.
    #[error("the thread's record has no readable beginning")]
    NoHead,
    /// A line in the middle cannot be read. (The last one may be cut: it is being written.)
    #[error("line {0} of the thread's record cannot be read")]
    Unreadable(usize),
    /// A record that this one goes on from is not there.
    #[error("the record of thread {0}, which this one goes on from, is not there")]
    BaseMissing(ThreadId),
}

/// A thread's history.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    /// The newest record's beginning.
    pub head: Head,
    /// What an adapter would have said of it live, in order; user messages as items. Only turns that are over: the last one
    /// may run still.
    pub said: Vec<AgentEvent>,
}

/// Reads the first line of a record; None: it is none.
#[must_use]
pub fn head(line: &[u8]) -> Option<Head> {
    let line: Value = serde_json::from_slice(line).ok()?;
    if line.get("type").and_then(Value::as_str) != Some("session_meta") {
        return None;
    }
    let meta = line.get("payload")?;
    let text = |name: &str| meta.get(name).and_then(Value::as_str).map(str::to_owned);
    let base = meta.get("history_base").filter(|base| !base.is_null()).and_then(|base| {
        Some(Base {
            thread: ThreadId::from(base.get("thread_id")?.as_str()?),
            before_ordinal: base.get("end_ordinal_exclusive")?.as_u64()?,
        })
    });
    let parent = text("parent_thread_id").map(ThreadId);
    Some(Head {
        thread: ThreadId(text("id")?),
        cwd: text("cwd"),
        started: text("timestamp"),
        originator: text("originator"),
        parent,
        base,
    })
}

/// The text of a line that holds a user's message; None: it holds none.
#[must_use]
pub fn user_message(line: &[u8]) -> Option<String> {
    let line: Value = serde_json::from_slice(line).ok()?;
    let item = line.get("payload")?.get("item")?;
    if item.get("type").and_then(Value::as_str) != Some("UserMessage") {
        return None;
    }
    let parts = item.get("content")?.as_array()?;
    let text: Vec<&str> = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
    Some(text.join(" "))
}

/// Reads a thread's history from its newest record; `find` gives the record that a base names (where a thread has
/// several, the newest one that was begun before the one that names it).
///
/// # Errors
/// [`RolloutError`]: then nothing is taken over.
pub fn read(newest: &[u8], mut find: impl FnMut(&Base) -> Option<Vec<u8>>) -> Result<Rollout, RolloutError> {
    let first = record_head(newest)?;
    let mut older: Vec<(Vec<u8>, u64)> = Vec::new();
    let mut base = first.base.clone();
    while let Some(of) = base {
        if older.len() + 1 >= MAX_RECORDS {
            return Err(RolloutError::TooLarge("records"));
        }
        let record = find(&of).ok_or_else(|| RolloutError::BaseMissing(of.thread.clone()))?;
        base = record_head(&record)?.base;
        older.push((record, of.before_ordinal));
    }
    let mut reading = Reading::default();
    for (record, before) in older.iter().rev() {
        reading.record(record, Some(*before))?;
    }
    reading.record(newest, None)?;
    reading.leave_out_open_turn();
    Ok(Rollout { head: first, said: reading.said })
}

fn record_head(record: &[u8]) -> Result<Head, RolloutError> {
    if record.len() > MAX_RECORD_BYTES {
        return Err(RolloutError::TooLarge("bytes"));
    }
    record.split(|byte| *byte == b'\n').next().and_then(head).ok_or(RolloutError::NoHead)
}

#[derive(Default)]
struct Reading {
    said: Vec<AgentEvent>,
    items: usize,
    running: Option<ProviderTurn>,
    /// Where what was said of the running turn begins.
    open_from: usize,
}

impl Reading {
    fn record(&mut self, record: &[u8], before: Option<u64>) -> Result<(), RolloutError> {
        let lines: Vec<&[u8]> = record.split(|byte| *byte == b'\n').collect();
        let last = lines.iter().rposition(|line| !line.is_empty()).unwrap_or_default();
        for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
            let line: Value = match serde_json::from_slice(line) {
                Ok(line) => line,
                // It is being written.
                Err(_) if at == last => break,
                Err(_) => return Err(RolloutError::Unreadable(at + 1)),
            };
            let ordinal = line.get("ordinal").and_then(Value::as_u64);
            if let (Some(before), Some(ordinal)) = (before, ordinal)
                && ordinal >= before
            {
                break;
            }
            if line.get("type").and_then(Value::as_str) == Some("event_msg")
                && let Some(event) = line.get("payload")
            {
                self.event(event)?;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Value) -> Result<(), RolloutError> {
        let text = |name: &str| event.get(name).and_then(Value::as_str);
        let Some(turn) = text("turn_id").map(ProviderTurn::from) else { return Ok(()) };
        match text("type") {
            Some("task_started") => {
                self.end();
                self.running = Some(turn.clone());
                self.open_from = self.said.len();
                self.said.push(AgentEvent::TurnStarted { turn, origin: Origin::Unknown, submission: None });
            }
            Some("item_completed") => {
                let Some(item) = event.get("item").map(wire_item) else { return Ok(()) };
                self.items += 1;
                if self.items > MAX_ITEMS {
                    return Err(RolloutError::TooLarge("items"));
                }
                let is_user = item.get("type").and_then(Value::as_str) == Some("userMessage");
                let read = if is_user { items::foreign_user_message } else { items::completed };
                self.said.extend(read(turn.as_str(), &item));
            }
            Some("task_complete") => {
                let failure = event.get("error").filter(|error| !error.is_null()).map(|error| {
                    let words = error.get("message").and_then(Value::as_str).unwrap_or("the turn failed");
                    Failure { provider: Some(error.clone()), ..Failure::new(FailureCode::Provider, words) }
                });
                let outcome = if failure.is_some() { Outcome::Failed } else { Outcome::Completed };
                self.turn_over(turn, outcome, failure);
            }
            Some("turn_aborted") => self.turn_over(turn, Outcome::Interrupted, None),
            _ => {}
        }
        Ok(())
    }

    fn turn_over(&mut self, turn: ProviderTurn, outcome: Outcome, failure: Option<Failure>) {
        if self.running.take_if(|running| *running == turn).is_some() {
            self.said.push(AgentEvent::TurnEnded { turn, outcome, stop_reason: None, failure, usage: None });
        }
    }

    /// The last turn may run still. What became of it is told when the thread is opened.
    fn leave_out_open_turn(&mut self) {
        if self.running.take().is_some() {
            self.said.truncate(self.open_from);
        }
    }

    /// A turn without an end was cut with its process: the server itself shows such a one as interrupted (measured).
    fn end(&mut self) {
        if let Some(turn) = self.running.clone() {
            self.turn_over(turn, Outcome::Interrupted, None);
        }
    }
}

/// An item as the server tells it, from the form in which it is recorded: other names, and some parts in other shapes.
fn wire_item(recorded: &Value) -> Value {
    let Some(fields) = recorded.as_object() else { return recorded.clone() };
    let mut item: Map<String, Value> =
        fields.iter().map(|(name, value)| (camel(name), value.clone())).collect();
    let kind = fields.get("type").and_then(Value::as_str).unwrap_or_default();
    item.insert("type".to_owned(), Value::from(lower_first(kind)));
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            item.insert(name.to_owned(), value);
        }
    };
    match kind {
        "AgentMessage" => {
            let parts = fields.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let text: String = parts.iter().filter_map(|part| part.get("text")?.as_str()).collect();
            put("text", Some(Value::from(text)));
        }
        "Reasoning" => {
            put("summary", fields.get("summary_text").cloned());
            put("content", fields.get("raw_content").cloned());
        }
        "CommandExecution" => {
            let words: Vec<&str> = fields
                .get("command")
                .and_then(Value::as_array)
                .map_or(&[][..], Vec::as_slice)
                .iter()
                .filter_map(Value::as_str)
                .collect();
            put("command", (!words.is_empty()).then(|| Value::from(shell_words(&words))));
            let cwd = fields.get("cwd").and_then(Value::as_str);
            put("cwd", cwd.map(|cwd| Value::from(cwd.strip_prefix("file://").unwrap_or(cwd))));
            put("durationMs", fields.get("duration").and_then(milliseconds));
        }
        "FileChange" => {
            let changes = fields.get("changes").and_then(Value::as_object);
            put("changes", changes.map(|changes| changes.iter().map(file_change).collect()));
        }
        "McpToolCall" => put("durationMs", fields.get("duration").and_then(milliseconds)),
        _ => {}
    }
    Value::Object(item)
}

fn file_change((path, change): (&String, &Value)) -> Value {
    let text = |name: &str| change.get(name).cloned();
    let mut kind = json!({ "type": change.get("type") });
    if change.get("type").and_then(Value::as_str) == Some("update") {
        kind["move_path"] = text("move_path").unwrap_or_default();
    }
    json!({ "path": path, "kind": kind, "diff": text("unified_diff").or_else(|| text("content")) })
}

fn milliseconds(duration: &Value) -> Option<Value> {
    let part = |name: &str| duration.get(name)?.as_u64();
    Some(Value::from(part("secs")?.saturating_mul(1_000) + part("nanos")? / 1_000_000))
}

/// A command line as a person would type it.
fn shell_words(words: &[&str]) -> String {
    let plain = |word: &str| {
        !word.is_empty() && word.chars().all(|of| of.is_ascii_alphanumeric() || "-_./=:,@%+".contains(of))
    };
    let quoted = |word: &&str| {
        if plain(word) { (*word).to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let mut camel = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let mut letters = part.chars();
        camel.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        camel.push_str(letters.as_str());
    }
    camel
}

fn lower_first(name: &str) -> String {
    let mut letters = name.chars();
    letters.next().map_or_else(String::new, |first| first.to_ascii_lowercase().to_string() + letters.as_str())
}
