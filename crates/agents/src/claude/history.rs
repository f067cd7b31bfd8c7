//! The history of a conversation, read from its transcript: what was said before this host had it.
//!
//! A transcript is a tree in the order of writing. Shown is the branch that ends at its last row, with what hangs beside
//! it: each block of a message, and each result of a tool, is a row of its own (measured).

use super::ClaudeAdapter;
use super::items::{result_content, tool_started};
use super::text;
use crate::adapter::Translated;
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::{ItemFields, ItemKind, ItemStatus};
use mainstay_core::{AgentEvent, ItemKey};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};

/// Items of a history that are shown; older ones are left out, with a notice. A conversation of months must not fill the
/// journal of a session that begins with it.
const MAX_SHOWN: usize = 2_000;
/// How texts begin that the program puts into user messages on its own.
const NOT_OF_THE_USER: [&str; 6] = [
    "<local-command-",
    "<command-",
    "<task-notification",
    "<bash-",
    "<system-reminder",
    "[Request interrupted",
];

impl ClaudeAdapter {
    /// Shows what a transcript holds, as items of no turn.
    pub(super) fn show_transcript(&self, at: usize, transcript: &[u8], out: &mut Translated) {
        let rows: Vec<Value> = transcript
            .split(|byte| *byte == b'\n')
            .filter_map(|line| serde_json::from_slice(line).ok())
            .collect();
        let mut events = Vec::new();
        let mut blocks_of: HashMap<String, usize> = HashMap::new();
        let mut open = BTreeSet::new();
        for row in branch(&rows) {
            show(row, &mut blocks_of, &mut open, &mut events);
        }
        for call in open {
            // Its result was never written.
            events.push(completed(ItemKey(call), ItemKind::ToolCall, ItemStatus::Incomplete, None, None));
        }
        let left_out = events.len().saturating_sub(MAX_SHOWN);
        if left_out > 0 {
            let message = format!("the conversation began earlier; {left_out} older entries are not shown");
            self.say(at, AgentEvent::Notice { level: NoticeLevel::Info, message, provider: None }, out);
        }
        for event in events.into_iter().skip(left_out) {
            self.say(at, event, out);
        }
    }
}

/// The rows of the branch that ends at the last row, and what hangs beside it, in the order of writing.
fn branch(rows: &[Value]) -> Vec<&Value> {
    let of_main = |row: &&Value| row.get("isSidechain") != Some(&Value::Bool(true));
    let by_uuid: HashMap<&str, &Value> =
        rows.iter().filter(of_main).filter_map(|row| Some((text(row, "uuid")?, row))).collect();
    let mut chain = BTreeSet::new();
    let mut messages = BTreeSet::new();
    let leaf = rows.iter().rev().filter(of_main).find_map(|row| text(row, "uuid"));
    let mut next = leaf;
    while let Some(uuid) = next.filter(|uuid| chain.insert(*uuid)) {
        let Some(row) = by_uuid.get(uuid) else { break };
        messages.extend(row.pointer("/message/id").and_then(Value::as_str));
        // A compaction begins a new chain that names the old one.
        next = text(row, "parentUuid").or_else(|| text(row, "logicalParentUuid"));
    }
    let in_message = |row: &Value| {
        row.pointer("/message/id").and_then(Value::as_str).is_some_and(|id| messages.contains(id))
    };
    let shown: Vec<&Value> = rows.iter().filter(of_main).collect();
    let calls: BTreeSet<&str> = shown
        .iter()
        .filter(|row| in_message(row))
        .flat_map(|row| blocks(row))
        .filter(|block| text(block, "type") == Some("tool_use"))
        .filter_map(|block| text(block, "id"))
        .collect();
    let answers = |row: &Value| {
        blocks(row).iter().any(|block| text(block, "tool_use_id").is_some_and(|call| calls.contains(call)))
    };
    shown
        .into_iter()
        .filter(|row| {
            text(row, "uuid").is_some_and(|uuid| chain.contains(uuid)) || in_message(row) || answers(row)
        })
        .collect()
}

fn blocks(row: &Value) -> &[Value] {
    row.pointer("/message/content").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn completed(
    key: ItemKey,
    kind: ItemKind,
    status: ItemStatus,
    words: Option<&str>,
    content: Option<Vec<Value>>,
) -> AgentEvent {
    let fields = ItemFields { content, ..ItemFields::default() };
    let text = words.map(str::to_owned);
    AgentEvent::ItemCompleted { key, turn: None, kind, status, text, fields }
}

fn show(
    row: &Value,
    blocks_of: &mut HashMap<String, usize>,
    open: &mut BTreeSet<String>,
    events: &mut Vec<AgentEvent>,
) {
    let Some(uuid) = text(row, "uuid") else { return };
    let said = |words: &str| {
        let content = vec![json!({ "type": "text", "text": words })];
        completed(ItemKey::from(uuid), ItemKind::UserMessage, ItemStatus::Completed, None, Some(content))
    };
    let own = |words: &str| !NOT_OF_THE_USER.iter().any(|start| words.trim_start().starts_with(start));
    match text(row, "type").unwrap_or_default() {
        "user" if row.get("isMeta") == Some(&Value::Bool(true)) => {}
        "user" => {
            if let Some(words) = row.pointer("/message/content").and_then(Value::as_str) {
                let summary = row.get("isCompactSummary") == Some(&Value::Bool(true));
                events.extend((!summary && own(words)).then(|| said(words)));
                return;
            }
            let texts: Vec<&str> = blocks(row)
                .iter()
                .filter(|block| text(block, "type") == Some("text"))
                .filter_map(|block| text(block, "text"))
                .filter(|words| own(words))
                .collect();
            events.extend((!texts.is_empty()).then(|| said(&texts.join("\n"))));
            for block in blocks(row).iter().filter(|block| text(block, "type") == Some("tool_result")) {
                let Some(call) = text(block, "tool_use_id") else { continue };
                open.remove(call);
                let failed = block.get("is_error") == Some(&Value::Bool(true));
                let status = if failed { ItemStatus::Failed } else { ItemStatus::Completed };
                let content = result_content(block.get("content"));
                events.push(completed(ItemKey::from(call), ItemKind::ToolCall, status, None, content));
            }
        }
        "attachment" => {
            let queued = row.get("attachment").filter(|it| text(it, "type") == Some("queued_command"));
            events.extend(queued.and_then(|it| text(it, "prompt")).filter(|words| own(words)).map(said));
        }
        "assistant" => {
            let message = row.pointer("/message/id").and_then(Value::as_str).unwrap_or(uuid);
            for block in blocks(row) {
                let number = blocks_of.entry(message.to_owned()).or_default();
                let key = ItemKey(format!("{message}.{number}"));
                *number += 1;
                match text(block, "type").unwrap_or_default() {
                    "text" => {
                        let (kind, words) = (ItemKind::AgentMessage, text(block, "text"));
                        events.push(completed(key, kind, ItemStatus::Completed, words, None));
                    }
                    "thinking" => {
                        let (kind, words) = (ItemKind::AgentThought, text(block, "thinking"));
                        events.push(completed(key, kind, ItemStatus::Completed, words, None));
                    }
                    "tool_use" => {
                        open.extend(text(block, "id").map(str::to_owned));
                        events.extend(tool_started(block, None, None));
                    }
                    _ => {}
                }
            }
        }
        "system" if text(row, "subtype") == Some("compact_boundary") => {
            let words = Some("The conversation was compacted");
            events.push(completed(ItemKey::from(uuid), ItemKind::Notice, ItemStatus::Completed, words, None));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(uuid: &str, parent: Option<&str>, more: Value) -> Value {
        let mut row = more;
        row["uuid"] = json!(uuid);
        row["parentUuid"] = json!(parent);
        row
    }

    fn user(uuid: &str, parent: Option<&str>, words: &str) -> Value {
        row(uuid, parent, json!({"type": "user", "message": {"content": words}}))
    }

    fn assistant(uuid: &str, parent: &str, id: &str, block: Value) -> Value {
        row(uuid, Some(parent), json!({"type": "assistant", "message": {"id": id, "content": [block]}}))
    }

    fn result(uuid: &str, parent: &str, call: &str) -> Value {
        let block = json!({"type": "tool_result", "tool_use_id": call, "content": "out"});
        row(uuid, Some(parent), json!({"type": "user", "message": {"content": [block]}}))
    }

    #[test]
    fn siblings_are_shown_and_an_abandoned_branch_is_not() {
        let call =
            |id: &str| json!({"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}});
        let said = |words: &str| json!({"type": "text", "text": words});
        let rows = [
            user("u1", None, "first"),
            assistant("a1", "u1", "msg_1", call("t1")),
            assistant("a2", "a1", "msg_1", call("t2")),
            result("r1", "a1", "t1"),
            result("r2", "a2", "t2"),
            assistant("a3", "r2", "msg_2", said("old words")),
            user("u2", Some("a3"), "abandoned"),
            assistant("a4", "u2", "msg_3", said("abandoned too")),
            user("m", Some("a3"), "<command-name>/cost</command-name>"),
            user("u3", Some("m"), "second"),
            assistant("a5", "u3", "msg_4", said("new words")),
        ];
        let uuids: Vec<&str> = branch(&rows).into_iter().filter_map(|row| text(row, "uuid")).collect();
        assert_eq!(uuids, ["u1", "a1", "a2", "r1", "r2", "a3", "m", "u3", "a5"]);
        let (mut events, mut open) = (Vec::new(), BTreeSet::new());
        for row in branch(&rows) {
            show(row, &mut HashMap::new(), &mut open, &mut events);
        }
        assert!(open.is_empty(), "every call has its result");
        let words = |event: &AgentEvent| match event {
            AgentEvent::ItemCompleted { kind, text, fields, .. } => {
                let content = fields.content.as_ref().and_then(|content| content[0]["text"].as_str());
                format!("{kind:?} {}", text.as_deref().or(content).unwrap_or("-"))
            }
            AgentEvent::ItemStarted { key, .. } => format!("call {key}"),
            other => format!("{other:?}"),
        };
        let shown: Vec<String> = events.iter().map(words).collect();
        let expected = [
            "UserMessage first",
            "call t1",
            "call t2",
            "ToolCall -",
            "ToolCall -",
            "AgentMessage old words",
            "UserMessage second",
            "AgentMessage new words",
        ];
        assert_eq!(shown, expected);
    }
}
