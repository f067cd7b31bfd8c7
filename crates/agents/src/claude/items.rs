//! `assistant` and `user` lines: whole blocks and results of tools, in ACP's words.

use super::state::MAX_ID_BYTES;
use super::{ClaudeAdapter, text};
use crate::adapter::Translated;
use mainstay_core::content::{ItemFields, ItemKind, ItemStatus, ToolKind};
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, ThreadId};
use serde_json::{Value, json};

/// How the agent marks what a local command printed.
const LOCAL_OUTPUT: [&str; 2] = ["<local-command-stdout>", "<local-command-stderr>"];
/// The name of the model in messages that no model wrote.
const NO_MODEL: &str = "<synthetic>";

impl ClaudeAdapter {
    pub(super) fn assistant(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let Some(message) = line.get("message") else { return };
        let of_sub_agent = line.get("parent_tool_use_id").is_some_and(|parent| !parent.is_null());
        let child = self.child_of(at, line);
        if let Some(error) = text(line, "error").filter(|_| !of_sub_agent)
            && let Some(turn) = &mut self.sessions.change(at).turn
        {
            turn.error = Some(error.chars().take(MAX_ID_BYTES).collect());
        }
        let id = text(message, "id").unwrap_or_default();
        let blocks = message.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        for (number, block) in blocks.iter().enumerate() {
            let kind = match text(block, "type").unwrap_or_default() {
                "tool_use" => {
                    let turn = self.turn_of_line(at, child.as_ref());
                    if let Some(event) = tool_started(block, turn, child.clone()) {
                        self.say(at, event, out);
                    }
                    continue;
                }
                "text" if text(message, "model") == Some(NO_MODEL) => ItemKind::Notice,
                "text" => ItemKind::AgentMessage,
                "thinking" => ItemKind::AgentThought,
                _ => ItemKind::Other,
            };
            let streaming = self.sessions.slot(at).state.streaming.as_ref();
            let streamed = streaming.is_some_and(|streaming| streaming.id == id);
            if streamed && !of_sub_agent && kind != ItemKind::Other {
                // Its text came already, and whether it is whole is told by what follows.
                continue;
            }
            self.whole_block(at, line, number, kind, block, out);
        }
    }

    /// A block that did not stream: of a sub-agent, or written by no model.
    fn whole_block(
        &self,
        at: usize,
        line: &Value,
        number: usize,
        kind: ItemKind,
        block: &Value,
        out: &mut Translated,
    ) {
        let Some(uuid) = text(line, "uuid").filter(|uuid| uuid.len() <= MAX_ID_BYTES) else {
            self.unmodelled(at, "assistant", line.clone(), out);
            return;
        };
        let words = text(block, "text").or_else(|| text(block, "thinking"));
        if words == Some("") {
            return;
        }
        let fields = ItemFields {
            content: (kind == ItemKind::Other).then(|| vec![block.clone()]),
            provider_type: (kind == ItemKind::Other)
                .then(|| text(block, "type").unwrap_or_default().to_owned()),
            ..ItemFields::default()
        };
        let key = ItemKey(format!("{uuid}.{number}"));
        let child = self.child_of(at, line);
        let turn = self.turn_of_line(at, child.as_ref());
        if child.is_some() {
            let begun = ItemFields { child, ..ItemFields::default() };
            let (key, turn) = (key.clone(), turn.clone());
            self.say(at, AgentEvent::ItemStarted { key, turn, kind, fields: begun }, out);
        }
        let (status, text) = (ItemStatus::Completed, words.map(str::to_owned));
        self.say(at, AgentEvent::ItemCompleted { key, turn, kind, status, text, fields }, out);
    }

    /// The turn that a line belongs to: what a sub-agent does by itself belongs to none.
    fn turn_of_line(&self, at: usize, child: Option<&ThreadId>) -> Option<ProviderTurn> {
        let thread = &self.sessions.slot(at).state;
        let alone = child.is_some_and(|child| thread.works_alone(child.as_str()));
        thread.turn_id().filter(|_| !alone)
    }

    pub(super) fn user(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let uuid = text(line, "uuid").unwrap_or_default();
        let content = line.pointer("/message/content").cloned().unwrap_or_default();
        if line.get("isReplay") == Some(&Value::Bool(true)) {
            self.replayed(at, uuid, &content, out);
            return;
        }
        let mut results = false;
        for block in content.as_array().map_or(&[][..], Vec::as_slice) {
            if text(block, "type") == Some("tool_result") {
                results = true;
                self.tool_result(at, block, line, out);
            }
        }
        if !results {
            // The agent's own words to its model: that it was interrupted, a summary, a sub-agent's prompt.
            self.unmodelled(at, "user", line.clone(), out);
        }
    }

    /// A message of the user, said again: ours, or what a local command printed.
    fn replayed(&mut self, at: usize, uuid: &str, content: &Value, out: &mut Translated) {
        let thread = &self.sessions.slot(at).state;
        if thread.input.as_ref().is_some_and(|input| input.submission.as_str() == uuid) {
            self.echoed(at, out);
            return;
        }
        let words = content.as_str().unwrap_or_default();
        let printed = LOCAL_OUTPUT.iter().find_map(|mark| words.strip_prefix(mark));
        // Without a turn it is the echo of a setting of ours. Anything else is a second echo.
        if let (Some(printed), Some(turn)) = (printed, thread.turn_id()) {
            let printed = printed.rsplit_once("</").map_or(printed, |(inside, _)| inside).trim();
            let completed = AgentEvent::ItemCompleted {
                key: ItemKey::from(uuid),
                turn: Some(turn),
                kind: ItemKind::Notice,
                status: ItemStatus::Completed,
                text: Some(printed.to_owned()),
                fields: ItemFields::default(),
            };
            if !printed.is_empty() {
                self.say(at, completed, out);
            }
        }
    }

    fn tool_result(&mut self, at: usize, block: &Value, line: &Value, out: &mut Translated) {
        let Some(id) = text(block, "tool_use_id").filter(|id| id.len() <= MAX_ID_BYTES) else { return };
        let thread = &self.sessions.slot(at).state;
        let failed = block.get("is_error") == Some(&Value::Bool(true));
        let declined = thread.declined.iter().any(|declined| declined == id);
        let status = match failed {
            false => ItemStatus::Completed,
            true if declined => ItemStatus::Declined,
            true if thread.turn.as_ref().is_some_and(|turn| turn.stopped) => ItemStatus::Incomplete,
            true => ItemStatus::Failed,
        };
        let child = self.child_of(at, line);
        let turn = self.turn_of_line(at, child.as_ref());
        self.call_answered(at, id);
        if declined {
            self.sessions.change(at).declined.retain(|declined| declined != id);
        }
        let fields = ItemFields {
            content: result_content(block.get("content")),
            raw_output: line.get("tool_use_result").filter(|result| !result.is_null()).cloned(),
            ..ItemFields::default()
        };
        let completed = AgentEvent::ItemCompleted {
            key: ItemKey::from(id),
            turn,
            kind: ItemKind::ToolCall,
            status,
            text: None,
            fields,
        };
        self.say(at, completed, out);
    }

    pub(super) fn compacted(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let Some(uuid) = text(line, "uuid").filter(|uuid| uuid.len() <= MAX_ID_BYTES) else { return };
        let fields = ItemFields {
            title: Some("The conversation was compacted".to_owned()),
            raw_output: line.get("compact_metadata").cloned(),
            provider_type: Some("compact_boundary".to_owned()),
            ..ItemFields::default()
        };
        let completed = AgentEvent::ItemCompleted {
            key: ItemKey::from(uuid),
            turn: self.sessions.slot(at).state.turn_id(),
            kind: ItemKind::Notice,
            status: ItemStatus::Completed,
            text: None,
            fields,
        };
        self.say(at, completed, out);
    }
}

/// What a tool answered, as ACP tool-call content.
pub(super) fn result_content(content: Option<&Value>) -> Option<Vec<Value>> {
    let wrapped = |block: Value| json!({ "type": "content", "content": block });
    match content? {
        Value::String(text) => Some(vec![wrapped(json!({ "type": "text", "text": text }))]),
        Value::Array(blocks) => Some(blocks.iter().cloned().map(wrapped).collect()),
        _ => None,
    }
}

/// A call of a tool, begun or filled in.
pub(super) fn tool_started(
    block: &Value,
    turn: Option<ProviderTurn>,
    child: Option<ThreadId>,
) -> Option<AgentEvent> {
    let id = text(block, "id").filter(|id| id.len() <= MAX_ID_BYTES)?;
    let name = text(block, "name").unwrap_or_default();
    let input = block.get("input").filter(|input| input.as_object().is_some_and(|input| !input.is_empty()));
    let fields = ItemFields {
        title: Some(tool_title(name, input)),
        tool_kind: Some(tool_kind(name)),
        status: Some(ItemStatus::InProgress),
        content: input.and_then(|input| tool_diff(name, input)),
        locations: input.and_then(tool_locations),
        raw_input: input.cloned(),
        provider_type: Some(name.to_owned()),
        child,
        ..ItemFields::default()
    };
    Some(AgentEvent::ItemStarted { key: ItemKey::from(id), turn, kind: ItemKind::ToolCall, fields })
}

/// The longest part of an input that stands in a title, in characters; the input is there whole beside it.
const MAX_TITLE_CHARS: usize = 200;

/// A line for people: the tool, and what it is about.
pub(super) fn tool_title(name: &str, input: Option<&Value>) -> String {
    let about = ["command", "file_path", "notebook_path", "pattern", "url", "query", "description", "skill"];
    let about = about.iter().find_map(|field| text(input?, field));
    match about {
        Some(about) => format!("{name}: {}", about.chars().take(MAX_TITLE_CHARS).collect::<String>()),
        None => name.to_owned(),
    }
}

pub(super) fn tool_kind(name: &str) -> ToolKind {
    match name {
        "Read" => ToolKind::Read,
        "Edit" | "Write" | "NotebookEdit" | "MultiEdit" => ToolKind::Edit,
        "Bash" | "BashOutput" | "KillShell" | "TaskOutput" | "TaskStop" => ToolKind::Execute,
        "Glob" | "Grep" | "ToolSearch" => ToolKind::Search,
        "WebFetch" | "WebSearch" => ToolKind::Fetch,
        "Task" | "Agent" => ToolKind::Think,
        "EnterPlanMode" | "ExitPlanMode" => ToolKind::SwitchMode,
        _ => ToolKind::Other,
    }
}

fn tool_locations(input: &Value) -> Option<Vec<Value>> {
    let path = text(input, "file_path").or_else(|| text(input, "notebook_path"))?;
    Some(vec![json!({ "path": path })])
}

/// ACP's diff of a call that writes a file.
fn tool_diff(name: &str, input: &Value) -> Option<Vec<Value>> {
    let path = text(input, "file_path")?;
    let diff = match name {
        // What stood there before is not told.
        "Write" => json!({ "type": "diff", "path": path, "newText": text(input, "content")? }),
        "Edit" => json!({
            "type": "diff",
            "path": path,
            "oldText": text(input, "old_string")?,
            "newText": text(input, "new_string")?,
        }),
        _ => return None,
    };
    Some(vec![diff])
}
