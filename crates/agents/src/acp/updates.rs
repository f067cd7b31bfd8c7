//! `session/update`: text chunks on a fast path without any tree, everything else as values.

use super::AcpAdapter;
use super::open::Offer;
use super::state::{MAX_MESSAGE_ID_BYTES, MAX_OPEN_MESSAGES, Named, Run, SettingKind};
use crate::adapter::Translated;
use crate::rpc::{self, Text};
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::{ItemFields, ItemKind, ItemStatus, ToolKind};
use mainstay_core::{AgentEvent, ItemKey};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A text chunk. What does not fit this shape is read as a value.
#[derive(Deserialize)]
struct ChunkParams<'a> {
    #[serde(borrow, rename = "sessionId")]
    session_id: Cow<'a, str>,
    #[serde(borrow)]
    update: Chunk<'a>,
}

#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, rename = "sessionUpdate")]
    kind: Cow<'a, str>,
    #[serde(borrow, default, rename = "messageId")]
    message_id: Option<Text<'a>>,
    #[serde(borrow)]
    content: ChunkContent<'a>,
}

#[derive(Deserialize)]
struct ChunkContent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    text: Cow<'a, str>,
}

fn chunk_kind(update: &str) -> Option<ItemKind> {
    match update {
        "agent_message_chunk" => Some(ItemKind::AgentMessage),
        "agent_thought_chunk" => Some(ItemKind::AgentThought),
        "user_message_chunk" => Some(ItemKind::UserMessage),
        _ => None,
    }
}

impl AcpAdapter {
    pub(super) fn update(&mut self, bytes: &[u8], params: Option<&RawValue>, out: &mut Translated) {
        let text = params.map_or("null", RawValue::get);
        if let Ok(chunk) = serde_json::from_str::<ChunkParams<'_>>(text)
            && chunk.update.content.kind == "text"
            && let Some(kind) = chunk_kind(&chunk.update.kind)
            && let Some(at) = self.sessions.of_thread(&chunk.session_id)
        {
            let id = chunk.update.message_id.map(|id| id.0);
            self.text_chunk(at, kind, id.as_deref(), chunk.update.content.text.into_owned(), out);
            return;
        }
        let params = rpc::body(params);
        let thread = params.get("sessionId").and_then(Value::as_str).unwrap_or_default();
        let Some(at) = self.sessions.of_thread(thread) else {
            self.of_unknown_thread(bytes, "session/update", out);
            return;
        };
        let update = params.get("update").cloned().unwrap_or_default();
        let kind = update.get("sessionUpdate").and_then(Value::as_str).unwrap_or_default().to_owned();
        self.value_update(at, bytes, &kind, update, out);
    }

    fn text_chunk(
        &mut self,
        at: usize,
        kind: ItemKind,
        id: Option<&str>,
        text: String,
        out: &mut Translated,
    ) {
        if !self.takes_chunk(at, kind, out) || text.is_empty() {
            return;
        }
        let key = self.message_key(at, kind, id, out);
        let slot = self.sessions.slot(at);
        out.say(&slot.session, AgentEvent::ItemDelta { key, turn: slot.state.turn().cloned(), kind, text });
    }

    /// Whether a chunk of this kind is to be shown now.
    fn takes_chunk(&mut self, at: usize, kind: ItemKind, out: &mut Translated) -> bool {
        let state = &self.sessions.slot(at).state;
        // A replay of the history, or the agent's echo of the prompt that we sent: both stand in the journal.
        if state.muted || (kind == ItemKind::UserMessage && state.prompt.is_some()) {
            return false;
        }
        self.prove_taken(at, out);
        true
    }

    /// The key of the message that a chunk belongs to. Changes the state only where a message begins or ends.
    fn message_key(&mut self, at: usize, kind: ItemKind, id: Option<&str>, out: &mut Translated) -> ItemKey {
        let state = &self.sessions.slot(at).state;
        let Some(id) = id.filter(|id| !id.is_empty() && id.len() <= MAX_MESSAGE_ID_BYTES) else {
            if let Some(run) = state.run.as_ref().filter(|run| run.kind == kind) {
                return run.key.clone();
            }
            return self.begin_run(at, kind, out);
        };
        if state.run.is_none() && state.named.iter().any(|named| named.kind == kind && named.id == id) {
            return named_key(kind, id);
        }
        self.end_run(at, ItemStatus::Completed, out);
        let thread = self.sessions.change(at);
        if !thread.named.iter().any(|named| named.kind == kind && named.id == id) {
            let turn = thread.turn().cloned();
            thread.named.push(Named { kind, id: id.to_owned(), turn });
            if thread.named.len() > MAX_OPEN_MESSAGES {
                let oldest = thread.named.remove(0);
                self.complete_named(at, oldest, ItemStatus::Completed, out);
            }
        }
        named_key(kind, id)
    }

    fn begin_run(&mut self, at: usize, kind: ItemKind, out: &mut Translated) -> ItemKey {
        self.end_run(at, ItemStatus::Completed, out);
        let born = self.connection.born;
        let thread = self.sessions.change(at);
        thread.runs += 1;
        let turn = thread.turn().cloned();
        let key = match &turn {
            Some(turn) => ItemKey(format!("{turn}.m{}", thread.runs)),
            None => ItemKey(format!("b{born}.m{}", thread.runs)),
        };
        thread.run = Some(Run { kind, key: key.clone(), turn });
        key
    }

    /// Ends the message that is put together by order: another kind of thing follows it.
    fn end_run(&mut self, at: usize, status: ItemStatus, out: &mut Translated) {
        if self.sessions.slot(at).state.run.is_none() {
            return;
        }
        let Some(run) = self.sessions.change(at).run.take() else { return };
        let session = &self.sessions.slot(at).session;
        out.say(
            session,
            AgentEvent::ItemCompleted {
                key: run.key,
                turn: run.turn,
                kind: run.kind,
                status,
                text: None,
                fields: ItemFields::default(),
            },
        );
    }

    fn complete_named(&mut self, at: usize, named: Named, status: ItemStatus, out: &mut Translated) {
        let session = &self.sessions.slot(at).session;
        out.say(
            session,
            AgentEvent::ItemCompleted {
                key: named_key(named.kind, &named.id),
                turn: named.turn,
                kind: named.kind,
                status,
                text: None,
                fields: ItemFields::default(),
            },
        );
    }

    /// Completes every open message.
    pub(super) fn complete_messages(&mut self, at: usize, status: ItemStatus, out: &mut Translated) {
        self.end_run(at, status, out);
        if self.sessions.slot(at).state.named.is_empty() {
            return;
        }
        for named in std::mem::take(&mut self.sessions.change(at).named) {
            self.complete_named(at, named, status, out);
        }
    }

    fn value_update(&mut self, at: usize, bytes: &[u8], kind: &str, update: Value, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        // What stands is said also while a history is replayed.
        match kind {
            "available_commands_update" => {
                let commands = update.get("availableCommands").cloned().unwrap_or_default();
                out.say(&session, AgentEvent::Commands(commands));
                return;
            }
            "current_mode_update" => {
                if let Some(mode) = update.get("currentModeId").and_then(Value::as_str) {
                    self.options_changed(at, |options| options.mode = Some(mode.to_owned()), out);
                }
                return;
            }
            "config_option_update" => {
                let offer = Offer::read(&update);
                self.options_changed(
                    at,
                    |options| {
                        for kind in SettingKind::ALL {
                            if let Some(current) = offer.current(kind) {
                                kind.put(options, current);
                            }
                        }
                    },
                    out,
                );
                return;
            }
            "usage_update" => {
                out.say(&session, AgentEvent::Usage(without_tag(update)));
                return;
            }
            _ => {}
        }
        if self.sessions.slot(at).state.muted {
            return;
        }
        match kind {
            "tool_call" => {
                self.prove_taken(at, out);
                self.tool_call(at, &update, out);
            }
            // No proof that the prompt was taken: updates of a tool outlive its turn.
            "tool_call_update" => self.tool_call(at, &update, out),
            "plan" => {
                self.prove_taken(at, out);
                out.say(&session, AgentEvent::Plan(update.get("entries").cloned().unwrap_or_default()));
            }
            "notice" => out.say(&session, notice(update)),
            _ => match chunk_kind(kind) {
                Some(kind) => self.block_chunk(at, kind, &update, out),
                None => out.say(
                    &session,
                    AgentEvent::Unmodelled {
                        name: format!("session/update {kind}"),
                        frame: rpc::whole(bytes),
                    },
                ),
            },
        }
    }

    /// A piece of a message that is no text: an item of its own, because text has offsets and a block has none.
    fn block_chunk(&mut self, at: usize, kind: ItemKind, update: &Value, out: &mut Translated) {
        if !self.takes_chunk(at, kind, out) {
            return;
        }
        let key = self.begin_run(at, kind, out);
        self.sessions.change(at).run = None;
        let slot = self.sessions.slot(at);
        let content = update.get("content").cloned().map(|block| vec![block]);
        out.say(
            &slot.session,
            AgentEvent::ItemCompleted {
                key,
                turn: slot.state.turn().cloned(),
                kind,
                status: ItemStatus::Completed,
                text: None,
                fields: ItemFields { content, ..ItemFields::default() },
            },
        );
    }

    fn tool_call(&mut self, at: usize, update: &Value, out: &mut Translated) {
        let Some(id) = update.get("toolCallId").and_then(Value::as_str) else {
            let session = self.sessions.slot(at).session.clone();
            out.say(
                &session,
                AgentEvent::Unmodelled { name: "tool call without an id".to_owned(), frame: update.clone() },
            );
            return;
        };
        self.end_run(at, ItemStatus::Completed, out);
        let slot = self.sessions.slot(at);
        let (key, turn, kind) = (ItemKey::from(id), slot.state.turn().cloned(), ItemKind::ToolCall);
        let fields = tool_fields(update);
        // Begins the item where it is unknown, and updates it where it is open: an update may come without its call.
        let event = match fields.status {
            Some(status @ (ItemStatus::Completed | ItemStatus::Failed)) => {
                AgentEvent::ItemCompleted { key, turn, kind, status, text: None, fields }
            }
            _ => AgentEvent::ItemStarted { key, turn, kind, fields },
        };
        out.say(&slot.session, event);
    }
}

/// One id may name a message and the thought before it: they are two items.
fn named_key(kind: ItemKind, id: &str) -> ItemKey {
    match kind {
        ItemKind::AgentThought => ItemKey(format!("thought:{id}")),
        ItemKind::UserMessage => ItemKey(format!("user:{id}")),
        _ => ItemKey::from(id),
    }
}

fn tool_fields(update: &Value) -> ItemFields {
    let text = |name: &str| update.get(name).and_then(Value::as_str);
    let list = |name: &str| update.get(name).and_then(Value::as_array).cloned();
    let value = |name: &str| update.get(name).filter(|value| !value.is_null()).cloned();
    let kind = text("kind").map(|kind| (tool_kind(kind), kind));
    let unknown_kind = kind.and_then(|(known, word)| known.is_none().then_some(word));
    ItemFields {
        title: text("title").map(str::to_owned),
        tool_kind: kind.map(|(known, _)| known.unwrap_or(ToolKind::Other)),
        status: match text("status") {
            Some("pending") => Some(ItemStatus::Pending),
            Some("in_progress") => Some(ItemStatus::InProgress),
            Some("completed") => Some(ItemStatus::Completed),
            Some("failed") => Some(ItemStatus::Failed),
            _ => None,
        },
        content: list("content"),
        locations: list("locations"),
        raw_input: value("rawInput"),
        raw_output: value("rawOutput"),
        submission: None,
        provider_type: text("name").or(unknown_kind).map(str::to_owned),
        child: None,
        gap: None,
        may_have_run: None,
    }
}

fn tool_kind(word: &str) -> Option<ToolKind> {
    Some(match word {
        "read" => ToolKind::Read,
        "edit" => ToolKind::Edit,
        "delete" => ToolKind::Delete,
        "move" => ToolKind::Move,
        "search" => ToolKind::Search,
        "execute" => ToolKind::Execute,
        "think" => ToolKind::Think,
        "fetch" => ToolKind::Fetch,
        "switch_mode" => ToolKind::SwitchMode,
        "other" => ToolKind::Other,
        _ => return None,
    })
}

fn notice(update: Value) -> AgentEvent {
    let text = |name: &str| update.get(name).and_then(Value::as_str);
    let level = match text("severity") {
        Some("error") => NoticeLevel::Error,
        Some("warning") => NoticeLevel::Warning,
        _ => NoticeLevel::Info,
    };
    let message = text("title").or_else(|| text("message")).unwrap_or("the agent gave a notice").to_owned();
    AgentEvent::Notice { level, message, provider: Some(without_tag(update)) }
}

fn without_tag(mut update: Value) -> Value {
    if let Some(fields) = update.as_object_mut() {
        fields.remove("sessionUpdate");
    }
    update
}
