//! The history of a conversation, read from its transcript: what was said before this host had it.
//!
//! A transcript is a tree in the order of writing. Shown is the branch that ends at its last row, with what hangs beside
//! it: each block of a message, and each result of a tool, is a row of its own (measured).

use super::ClaudeAdapter;
use super::items::{result_content, tool_started};
use super::text;
use crate::adapter::{KnownHistory, SavedChild, SavedHistory, Translated};
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::{ItemFields, ItemKind, ItemStatus};
use mainstay_core::work::{ChildFields, HistoryPoint, WorkEnd};
use mainstay_core::{AgentEvent, ItemKey, SubmissionId};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};

/// Items of a history that are shown; older ones are left out, with a notice. A conversation of months must not fill the
/// journal of a session that begins with it.
const MAX_SHOWN: usize = 2_000;
/// Items of one sub-agent that are shown; older ones are left out.
const MAX_SHOWN_OF_CHILD: usize = 200;
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
    pub(super) fn show_transcript(&self, at: usize, history: &SavedHistory, out: &mut Translated) {
        let transcript = &history.transcript;
        if history.cut {
            let message = format!(
                "the conversation's file is larger than what is read of it; only what the last {} bytes of it hold is shown",
                transcript.len()
            );
            self.say(at, AgentEvent::Notice { level: NoticeLevel::Warning, message, provider: None }, out);
        }
        let rows = rows_of(transcript);
        self.show_rows(at, branch(&rows).into_iter(), out);
        for child in &history.children {
            self.show_child(at, child, out);
        }
        if history.children_left_out > 0 {
            let message = format!("{} more sub-agents are not shown", history.children_left_out);
            self.say(at, AgentEvent::Notice { level: NoticeLevel::Info, message, provider: None }, out);
        }
    }

    /// A sub-agent that is over, with what it did.
    fn show_child(&self, at: usize, child: &SavedChild, out: &mut Translated) {
        let about: Value = serde_json::from_slice(&child.about).unwrap_or_default();
        let fields = ChildFields {
            title: text(&about, "description").map(str::to_owned),
            role: text(&about, "agentType").map(str::to_owned),
            item_key: text(&about, "toolUseId").map(ItemKey::from),
            ..ChildFields::default()
        };
        let thread = child.thread.clone();
        self.say(at, AgentEvent::ChildStarted { thread: thread.clone(), fields }, out);
        let mut events = Vec::new();
        let (mut blocks_of, mut open) = (HashMap::new(), BTreeSet::new());
        for row in &rows_of(&child.transcript) {
            show(row, &mut blocks_of, &mut open, &mut events);
        }
        for call in open {
            events.push(completed(ItemKey(call), ItemKind::ToolCall, ItemStatus::Incomplete, None, None));
        }
        // What it was told is the agent's word, not the user's.
        events.retain(|event| !of_user(event));
        let left_out = events.len().saturating_sub(MAX_SHOWN_OF_CHILD);
        for event in latest(events, left_out) {
            let begun = match &event {
                AgentEvent::ItemCompleted { key, kind, .. } if *kind != ItemKind::ToolCall => {
                    Some((key.clone(), *kind))
                }
                _ => None,
            };
            // An item of a sub-agent says from its beginning whose it is.
            let fields = || ItemFields { child: Some(thread.clone()), ..ItemFields::default() };
            if let Some((key, kind)) = begun {
                self.say(at, AgentEvent::ItemStarted { key, turn: None, kind, fields: fields() }, out);
            }
            let event = match event {
                AgentEvent::ItemStarted { key, turn, kind, fields } => {
                    let fields = ItemFields { child: Some(thread.clone()), ..fields };
                    AgentEvent::ItemStarted { key, turn, kind, fields }
                }
                other => other,
            };
            self.say(at, event, out);
        }
        let stopped = about.get("stoppedByUser") == Some(&Value::Bool(true));
        let end = if stopped { WorkEnd::Stopped } else { WorkEnd::Completed };
        self.say(at, AgentEvent::ChildEnded { thread, end, fields: ChildFields::default() }, out);
    }

    /// Says whether the branch that is taken up is the one that the session knows, and shows what somebody else said on it
    /// since: the program goes on from the row that was written last, whoever wrote it (measured).
    pub(super) fn show_what_changed(
        &self,
        at: usize,
        transcript: &[u8],
        known: &KnownHistory,
        out: &mut Translated,
    ) {
        let rows = rows_of(transcript);
        // Older ones may stand before what was read.
        let Some(place) = known.turns.iter().find_map(|turn| place_of(&rows, turn)) else { return };
        let on_it = branch(&rows);
        let is_on_it = on_it.iter().any(|row| std::ptr::eq(*row, &rows[place]));
        let after = |row: &&Value| rows[place + 1..].iter().any(|later| std::ptr::eq(later, *row));
        let is_known = |event: &AgentEvent| match event {
            AgentEvent::ItemCompleted { key, .. } => known.messages.contains(key.as_str()),
            _ => false,
        };
        let (mut foreign, mut familiar, mut shows) = (0, 0, false);
        let mut shown = Vec::new();
        for row in on_it.into_iter().filter(after) {
            let mut events = Vec::new();
            show(row, &mut HashMap::new(), &mut BTreeSet::new(), &mut events);
            let (known, new): (Vec<_>, Vec<_>) =
                events.iter().filter(|event| of_user(event)).partition(|event| is_known(event));
            familiar += known.len();
            foreign += new.len();
            // What is known, and what follows it, has its place in the session already.
            shows = if new.is_empty() { shows && known.is_empty() } else { true };
            if shows {
                shown.push(row);
            }
        }
        // Said once: where nothing came but what is known, it was said before.
        if !is_on_it && (foreign > 0 || familiar == 0) {
            let message = "the agent goes on from another branch of its history than the one of this session's last turn";
            self.warn_at(at, message.to_owned(), out);
        }
        if foreign > 0 {
            let message = format!(
                "somebody else went on with this conversation ({foreign} messages); what was said follows"
            );
            self.warn_at(at, message, out);
            self.show_rows(at, shown.into_iter(), out);
        }
    }

    fn show_rows<'a>(&self, at: usize, rows: impl Iterator<Item = &'a Value>, out: &mut Translated) {
        let mut events = Vec::new();
        let mut blocks_of: HashMap<String, usize> = HashMap::new();
        let mut open = BTreeSet::new();
        for row in rows {
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
        for event in latest(events, left_out) {
            self.say(at, event, out);
        }
    }
}

/// The latest of them. The end of a call goes with its beginning: alone it would be shown as a call without a name.
fn latest(mut events: Vec<AgentEvent>, left_out: usize) -> Vec<AgentEvent> {
    events.drain(..left_out);
    let mut begun = BTreeSet::new();
    events.retain(|event| match event {
        AgentEvent::ItemStarted { key, .. } => {
            begun.insert(key.clone());
            true
        }
        AgentEvent::ItemCompleted { key, kind: ItemKind::ToolCall, .. } => begun.contains(key),
        _ => true,
    });
    events
}

fn rows_of(transcript: &[u8]) -> Vec<Value> {
    let lines = transcript.split(|byte| *byte == b'\n');
    lines.filter_map(|line| serde_json::from_slice(line).ok()).collect()
}

/// Where the last row of a turn that is known stands: its message, or its last item.
fn place_of(rows: &[Value], turn: &HistoryPoint) -> Option<usize> {
    let item = turn.last_item.as_ref().map(ItemKey::as_str);
    let message = item.map(|item| item.rsplit_once('.').map_or(item, |(name, _)| name));
    let is_it = |row: &Value| {
        let uuid = text(row, "uuid");
        let id = row.pointer("/message/id").and_then(Value::as_str);
        let calls = blocks(row).iter().any(|block| item.is_some() && text(block, "id") == item);
        (message.is_some() && (uuid == message || id == message))
            || calls
            || (uuid.is_some() && uuid == turn.submission.as_ref().map(SubmissionId::as_str))
    };
    rows.iter().rposition(|row| row.get("isSidechain") != Some(&Value::Bool(true)) && is_it(row))
}

fn of_user(event: &AgentEvent) -> bool {
    matches!(event, AgentEvent::ItemCompleted { kind: ItemKind::UserMessage, .. })
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
    // One that went into a running turn stands in a row with another uuid than its own (measured).
    let message = row.pointer("/attachment/source_uuid").and_then(Value::as_str).unwrap_or(uuid);
    let said = |words: &str| {
        let content = vec![json!({ "type": "text", "text": words })];
        completed(ItemKey::from(message), ItemKind::UserMessage, ItemStatus::Completed, None, Some(content))
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

    #[test]
    fn the_end_of_a_call_goes_with_its_beginning() {
        let call = json!({"type": "tool_use", "id": "t1", "name": "Bash", "input": {}});
        let rows = [assistant("a1", "u1", "msg_1", call), result("r1", "a1", "t1")];
        let mut events = Vec::new();
        for row in &rows {
            show(row, &mut HashMap::new(), &mut BTreeSet::new(), &mut events);
        }
        assert_eq!(events.len(), 2);
        assert_eq!(latest(events.clone(), 0), events);
        assert_eq!(latest(events, 1), []);
    }

    fn changes(rows: &[Value], known: &KnownHistory) -> Vec<String> {
        let transcript = rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        let (session, mut adapter) = (mainstay_core::SessionId::from("s"), ClaudeAdapter::new());
        adapter.sessions.bind(&session, crate::adapter::ThreadContext::default());
        let mut out = Translated::default();
        adapter.show_what_changed(0, transcript.as_bytes(), known, &mut out);
        let words = |event: &AgentEvent| match event {
            AgentEvent::Notice { message, .. } => message.clone(),
            AgentEvent::ItemCompleted { kind, text, .. } => {
                format!("{kind:?} {}", text.as_deref().unwrap_or("-"))
            }
            other => format!("{other:?}"),
        };
        out.said.iter().map(|said| words(&said.event)).collect()
    }

    fn known(message: &str) -> KnownHistory {
        let point = HistoryPoint { turn: "t".into(), submission: Some(message.into()), last_item: None };
        KnownHistory { turns: vec![point], messages: BTreeSet::from(["m3".to_owned(), "m4".to_owned()]) }
    }

    fn steered(uuid: &str, parent: &str, message: &str) -> Value {
        let attachment = json!({"type": "queued_command", "prompt": "into it", "source_uuid": message});
        row(uuid, Some(parent), json!({"type": "attachment", "attachment": attachment}))
    }

    #[test]
    fn what_somebody_else_said_is_shown_and_what_is_ours_is_not() {
        let said = |words: &str| json!({"type": "text", "text": words});
        let mut rows = vec![
            user("m1", None, "first"),
            assistant("a1", "m1", "msg_1", said("one")),
            user("m2", Some("a1"), "second"),
            assistant("a2", "m2", "msg_2", said("two")),
            user("m3", Some("a2"), "in doubt, and ours"),
        ];
        assert_eq!(changes(&rows, &known("m2")), [""; 0], "nothing happened");
        rows.push(steered("att", "m3", "m4"));
        assert_eq!(changes(&rows, &known("m2")), [""; 0], "ours, into a running turn");
        rows.push(user("x1", Some("att"), "from a terminal"));
        rows.push(assistant("a3", "x1", "msg_3", said("three")));
        let shown = changes(&rows, &known("m2"));
        assert!(shown[0].contains("somebody else went on"), "{shown:?}");
        assert_eq!(shown[1..], ["UserMessage -", "AgentMessage three"]);
        assert_eq!(changes(&rows, &known("m9")), [""; 0], "what is not known is not told");
        let mut shown_before = known("m2");
        shown_before.messages.insert("x1".to_owned());
        assert_eq!(changes(&rows, &shown_before), [""; 0], "it is told once");
        rows.push(steered("att2", "a3", "x2"));
        let shown = changes(&rows, &shown_before);
        assert!(shown[0].contains("(1 messages)"), "{shown:?}");
        assert_eq!(shown[1..], ["UserMessage -"], "what came since");
    }

    #[test]
    fn another_branch_is_said() {
        let said = |words: &str| json!({"type": "text", "text": words});
        let rows = [
            user("m1", None, "first"),
            assistant("a1", "m1", "msg_1", said("one")),
            user("m2", Some("a1"), "second"),
            assistant("a2", "m2", "msg_2", said("two")),
            user("x1", Some("a1"), "instead"),
            assistant("a3", "x1", "msg_3", said("three")),
        ];
        let shown = changes(&rows, &known("m2"));
        assert!(shown[0].contains("another branch") && shown[1].contains("somebody else"), "{shown:?}");
        assert_eq!(shown[2..], ["UserMessage -", "AgentMessage three"]);
    }
}
