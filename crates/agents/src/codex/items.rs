//! Items of a turn, translated to ACP's words. No state: an item's id is unique in its thread.

use mainstay_core::content::{ItemFields, ItemKind, ItemStatus, ToolKind};
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, ThreadId};
use serde_json::{Value, json};

/// What an item is to us, and what it carries.
struct Translation {
    kind: ItemKind,
    fields: ItemFields,
    /// The whole text, where the provider has it.
    text: Option<String>,
}

/// An item began.
pub(super) fn started(turn: &str, item: &Value) -> Option<AgentEvent> {
    let key = ItemKey::from(item.get("id")?.as_str()?);
    let Translation { kind, mut fields, .. } = translate(item);
    fields.status = Some(status(item).unwrap_or(ItemStatus::InProgress));
    Some(AgentEvent::ItemStarted { key, turn: Some(ProviderTurn::from(turn)), kind, fields })
}

/// An item is done.
pub(super) fn completed(turn: &str, item: &Value) -> Option<AgentEvent> {
    let key = ItemKey::from(item.get("id")?.as_str()?);
    let Translation { kind, fields, text } = translate(item);
    let status = status(item).unwrap_or(ItemStatus::Completed);
    Some(AgentEvent::ItemCompleted { key, turn: Some(ProviderTurn::from(turn)), kind, status, text, fields })
}

/// Gives the item of an event a child's key.
pub(super) fn rename(event: &mut AgentEvent, child: &ThreadId) {
    if let AgentEvent::ItemStarted { key, .. } | AgentEvent::ItemCompleted { key, .. } = event {
        *key = ItemKey(format!("{child}/{key}"));
    }
}

/// Tells an item of a child: its turn is none of the session's.
pub(super) fn put_in_child(event: &mut AgentEvent, child: &ThreadId) {
    if let AgentEvent::ItemStarted { turn, fields, .. } | AgentEvent::ItemCompleted { turn, fields, .. } =
        event
    {
        *turn = None;
        fields.child = Some(child.clone());
    }
}

/// Both.
pub(super) fn put_under(event: &mut AgentEvent, child: &ThreadId) {
    rename(event, child);
    put_in_child(event, child);
}

/// What the user said, where it is not one of our submissions.
pub(super) fn foreign_user_message(turn: &str, item: &Value) -> Option<AgentEvent> {
    let key = ItemKey::from(item.get("id")?.as_str()?);
    let content =
        item.get("content").and_then(Value::as_array).map(|blocks| blocks.iter().map(block).collect());
    let fields = ItemFields { content, ..ItemFields::default() };
    let (kind, status) = (ItemKind::UserMessage, ItemStatus::Completed);
    Some(AgentEvent::ItemCompleted {
        key,
        turn: Some(ProviderTurn::from(turn)),
        kind,
        status,
        text: None,
        fields,
    })
}

/// A content block in ACP's form where it is text, else as it came.
fn block(block: &Value) -> Value {
    match (block.get("type").and_then(Value::as_str), block.get("text")) {
        (Some("text"), Some(text)) => json!({ "type": "text", "text": text }),
        _ => block.clone(),
    }
}

/// The changed files of a `fileChange` item or a patch update, as content.
pub(super) fn change_blocks(changes: &Value) -> Option<Vec<Value>> {
    Some(changes.as_array()?.iter().map(change_block).collect())
}

/// An ACP diff where old and new text are known; for an update the provider has only a unified diff, which is passed
/// on under a name of its own.
fn change_block(change: &Value) -> Value {
    let path = change.get("path").cloned().unwrap_or_default();
    let diff = change.get("diff").cloned().unwrap_or_default();
    match change.pointer("/kind/type").and_then(Value::as_str) {
        Some("add") => json!({ "type": "diff", "path": path, "oldText": null, "newText": diff }),
        Some("delete") => json!({ "type": "diff", "path": path, "oldText": diff, "newText": "" }),
        _ => json!({ "type": "diff", "path": path, "unifiedDiff": diff, "change": change.get("kind") }),
    }
}

/// A plan in ACP's form.
pub(super) fn plan_entries(steps: &Value) -> Option<Value> {
    let entry = |step: &Value| {
        let status = match step.get("status").and_then(Value::as_str) {
            Some("inProgress") => "in_progress",
            Some("completed") => "completed",
            _ => "pending",
        };
        json!({ "content": step.get("step"), "priority": "medium", "status": status })
    };
    Some(Value::Array(steps.as_array()?.iter().map(entry).collect()))
}

/// Whether an item of this type may go on after its turn: a command's output and end come later (measured).
pub(super) fn outlives_turn(item: &Value) -> bool {
    item.get("type").and_then(Value::as_str) == Some("commandExecution")
}

fn status(item: &Value) -> Option<ItemStatus> {
    Some(match item.get("status")?.as_str()? {
        "inProgress" | "in_progress" | "generating" => ItemStatus::InProgress,
        "completed" => ItemStatus::Completed,
        "failed" => ItemStatus::Failed,
        "declined" => ItemStatus::Declined,
        "interrupted" | "incomplete" => ItemStatus::Incomplete,
        _ => return None,
    })
}

fn text_of(item: &Value, name: &str) -> Option<String> {
    item.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn present(item: &Value, name: &str) -> Option<Value> {
    item.get(name).filter(|value| !value.is_null()).cloned()
}

/// The named fields that are there, as one object; None where none is.
fn gathered(item: &Value, names: &[&str]) -> Option<Value> {
    let fields: serde_json::Map<String, Value> =
        names.iter().filter_map(|name| Some(((*name).to_owned(), present(item, name)?))).collect();
    (!fields.is_empty()).then_some(Value::Object(fields))
}

fn translate(item: &Value) -> Translation {
    let provider_type = item.get("type").and_then(Value::as_str).unwrap_or_default();
    let plain = |kind, text| Translation { kind, fields: ItemFields::default(), text };
    match provider_type {
        "agentMessage" => Translation {
            // Questions that the model asked without waiting; the answer is an ordinary message.
            fields: ItemFields { raw_output: gathered(item, &["questions"]), ..ItemFields::default() },
            ..plain(ItemKind::AgentMessage, text_of(item, "text"))
        },
        "reasoning" => plain(ItemKind::AgentThought, reasoning_text(item)),
        "plan" => plain(ItemKind::Plan, text_of(item, "text")),
        "contextCompaction" => notice("The conversation was compacted", None, provider_type),
        "enteredReviewMode" => notice("A review began", text_of(item, "review"), provider_type),
        "exitedReviewMode" => notice("The review ended", text_of(item, "review"), provider_type),
        "commandExecution" => {
            let mut command = tool(
                provider_type,
                ToolKind::Execute,
                text_of(item, "command"),
                text_of(item, "aggregatedOutput"),
                gathered(item, &["command", "cwd", "commandActions", "source"]),
                gathered(item, &["exitCode", "durationMs"]),
            );
            // Longer output has its middle left out.
            let whole = command.text.as_ref().is_none_or(|text| text.len() < MAX_WHOLE_OUTPUT_BYTES);
            command.fields.gap = (!whole).then_some(true);
            command
        }
        "fileChange" => {
            let changes = item.get("changes").cloned().unwrap_or_default();
            let paths: Vec<&Value> = changes
                .as_array()
                .map_or(&[][..], Vec::as_slice)
                .iter()
                .filter_map(|change| change.get("path"))
                .collect();
            let title = match paths.as_slice() {
                [one] => format!("Change {}", one.as_str().unwrap_or("a file")),
                several => format!("Change {} files", several.len()),
            };
            let mut translation = tool(provider_type, ToolKind::Edit, Some(title), None, None, None);
            translation.fields.locations = Some(paths.iter().map(|path| json!({ "path": path })).collect());
            translation.fields.content = change_blocks(&changes);
            translation
        }
        "mcpToolCall" => {
            let name = |field| text_of(item, field).unwrap_or_default();
            let title = format!("{}: {}", name("server"), name("tool"));
            let output = present(item, "result").or_else(|| gathered(item, &["error"]));
            tool(provider_type, ToolKind::Other, Some(title), None, present(item, "arguments"), output)
        }
        "dynamicToolCall" => tool(
            provider_type,
            ToolKind::Other,
            named_tool(item, "namespace", "tool"),
            None,
            present(item, "arguments"),
            gathered(item, &["contentItems", "success", "durationMs"]),
        ),
        "functionCallOutput" => tool(
            provider_type,
            ToolKind::Other,
            named_tool(item, "namespace", "name"),
            text_of(item, "output"),
            None,
            present(item, "output").filter(|output| !output.is_string()),
        ),
        "collabAgentToolCall" => tool(
            provider_type,
            ToolKind::Other,
            text_of(item, "tool"),
            None,
            gathered(item, &["prompt", "model", "reasoningEffort"]),
            gathered(item, &["receiverThreadIds", "agentsStates"]),
        ),
        "subAgentActivity" => {
            let path = item.get("agentPath").and_then(Value::as_str).unwrap_or("a sub-agent");
            let kind = item.get("kind").and_then(Value::as_str).unwrap_or("changed");
            let mut activity = notice(&format!("{path}: {kind}"), None, provider_type);
            activity.fields.raw_output =
                gathered(item, &["agentThreadId", "agentPath", "kind", "model", "reasoningEffort"]);
            activity
        }
        "webSearch" => tool(
            provider_type,
            ToolKind::Search,
            text_of(item, "query"),
            None,
            gathered(item, &["query", "action"]),
            gathered(item, &["results"]),
        ),
        "imageView" => {
            let mut viewed = tool(provider_type, ToolKind::Read, text_of(item, "path"), None, None, None);
            viewed.fields.locations = text_of(item, "path").map(|path| vec![json!({ "path": path })]);
            viewed
        }
        "imageGeneration" => {
            let mut made = tool(
                provider_type,
                ToolKind::Other,
                text_of(item, "revisedPrompt").or_else(|| Some("Make an image".to_owned())),
                None,
                gathered(item, &["revisedPrompt", "transparentBackground", "inputImages"]),
                gathered(item, &["status", "failure", "savedPath", "generationId", "fileId"]),
            );
            made.fields.locations = text_of(item, "savedPath").map(|path| vec![json!({ "path": path })]);
            made.fields.content = text_of(item, "result").filter(|data| data.len() <= MAX_IMAGE_BYTES).map(|data| {
                vec![json!({ "type": "content", "content": { "type": "image", "data": data, "mimeType": "image/png" } })]
            });
            made
        }
        "sleep" => {
            let time = item.get("durationMs").and_then(Value::as_u64).unwrap_or_default();
            tool(
                provider_type,
                ToolKind::Other,
                Some(format!("Wait {time} ms")),
                None,
                gathered(item, &["durationMs"]),
                None,
            )
        }
        "hookPrompt" => notice("A hook added to the prompt", hook_text(item), provider_type),
        _ => Translation {
            kind: ItemKind::Other,
            fields: ItemFields {
                provider_type: Some(provider_type.to_owned()),
                raw_output: Some(item.clone()),
                ..ItemFields::default()
            },
            text: None,
        },
    }
}

/// The longest picture, in bytes of base64, that is put into the timeline. A longer one is named by its path or id only.
const MAX_IMAGE_BYTES: usize = 1024 * 1024;

/// The longest output, in bytes, that the server gives whole: of a longer one it keeps the first and the last half of
/// this (measured).
const MAX_WHOLE_OUTPUT_BYTES: usize = 1024 * 1024;

/// `namespace.tool`, or the tool alone.
fn named_tool(item: &Value, namespace: &str, tool: &str) -> Option<String> {
    let tool = text_of(item, tool)?;
    Some(match item.get(namespace).and_then(Value::as_str) {
        Some(namespace) => format!("{namespace}.{tool}"),
        None => tool,
    })
}

/// The fragments of a hook's prompt, one after the other.
fn hook_text(item: &Value) -> Option<String> {
    let fragments = item.get("fragments")?.as_array()?;
    let texts: Vec<&str> = fragments.iter().filter_map(|fragment| fragment.get("text")?.as_str()).collect();
    (!texts.is_empty()).then(|| texts.join("\n"))
}

/// The parts of the summary, else of the reasoning itself. None where there is neither: what streamed stays.
fn reasoning_text(item: &Value) -> Option<String> {
    let parts = |name: &str| {
        let parts = item.get(name)?.as_array()?;
        let texts: Vec<&str> =
            parts.iter().filter_map(|part| part.as_str().or_else(|| part.get("text")?.as_str())).collect();
        (!texts.is_empty()).then(|| texts.join(SUMMARY_SEPARATOR))
    };
    parts("summary").or_else(|| parts("content"))
}

/// What stands between the parts of a reasoning summary, streamed and whole alike.
pub(super) const SUMMARY_SEPARATOR: &str = "\n\n";

fn notice(title: &str, text: Option<String>, provider_type: &str) -> Translation {
    Translation {
        kind: ItemKind::Notice,
        fields: ItemFields {
            title: Some(title.to_owned()),
            provider_type: Some(provider_type.to_owned()),
            ..ItemFields::default()
        },
        text,
    }
}

fn tool(
    provider_type: &str,
    kind: ToolKind,
    title: Option<String>,
    text: Option<String>,
    raw_input: Option<Value>,
    raw_output: Option<Value>,
) -> Translation {
    Translation {
        kind: ItemKind::ToolCall,
        fields: ItemFields {
            title,
            tool_kind: Some(kind),
            raw_input,
            raw_output,
            provider_type: Some(provider_type.to_owned()),
            ..ItemFields::default()
        },
        text,
    }
}
