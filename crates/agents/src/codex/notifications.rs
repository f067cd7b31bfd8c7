//! What the server tells: streamed text, items, turns, settings, and what belongs to no thread.

use super::{CodexAdapter, items, threads, warn};
use crate::adapter::Translated;
use crate::rpc;
use mainstay_core::agent::{NoticeLevel, TakenProof};
use mainstay_core::content::{ItemFields, ItemKind};
use mainstay_core::session::Spent;
use mainstay_core::work::Provenance;
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, ThreadId};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// A piece of streamed text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeltaParams<'a> {
    #[serde(borrow)]
    thread_id: Cow<'a, str>,
    #[serde(borrow)]
    turn_id: Cow<'a, str>,
    #[serde(borrow)]
    item_id: Cow<'a, str>,
    #[serde(borrow)]
    delta: Cow<'a, str>,
}

fn delta_kind(method: &str) -> Option<ItemKind> {
    match method {
        "item/agentMessage/delta" => Some(ItemKind::AgentMessage),
        "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => Some(ItemKind::AgentThought),
        "item/plan/delta" => Some(ItemKind::Plan),
        "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => Some(ItemKind::ToolCall),
        _ => None,
    }
}

/// Notifications that say nothing which is not said otherwise: lists of other clients, counters of what was read, the
/// whole diff of a turn whose changes are items.
const SILENT: [&str; 6] = [
    "thread/started",
    "thread/status/changed",
    "thread/readState/changed",
    "remoteControl/status/changed",
    "turn/diff/updated",
    "mcpServer/startupStatus/updated",
];

impl CodexAdapter {
    pub(super) fn notification(
        &mut self,
        bytes: &[u8],
        method: &str,
        params: Option<&RawValue>,
        out: &mut Translated,
    ) {
        if let Some(kind) = delta_kind(method)
            && let Ok(delta) = serde_json::from_str::<DeltaParams<'_>>(params.map_or("null", RawValue::get))
            && let Some(at) = self.sessions.of_thread(&delta.thread_id)
        {
            if !self.is_told_at_once(at) {
                self.keep_early(at, bytes);
                return;
            }
            self.retry_interrupt(at, out);
            let child = self.child_of(at, &delta.thread_id);
            let event = AgentEvent::ItemDelta {
                key: self.item_key(child.as_ref(), &delta.item_id),
                turn: child.is_none().then(|| ProviderTurn(delta.turn_id.into_owned())),
                kind,
                text: delta.delta.into_owned(),
            };
            out.say(&self.sessions.slot(at).session, event);
            return;
        }
        let params = rpc::body(params);
        let thread = params.get("threadId").and_then(Value::as_str);
        if let Some(at) = thread.and_then(|thread| self.sessions.of_thread(thread)) {
            let waits = method.starts_with("item/") && !self.is_told_at_once(at);
            if waits || !self.can_be_told(at) {
                self.keep_early(at, bytes);
                return;
            }
            let child = thread.and_then(|thread| self.child_of(at, thread));
            let modelled = match &child {
                Some(child) if self.of_child(at, child, method, &params, out) => Modelled::Yes,
                Some(_) if SILENT.contains(&method) => Modelled::Yes,
                Some(_) => Modelled::No,
                None => self.of_thread(at, method, params, out),
            };
            if modelled == Modelled::No {
                let frame = rpc::whole(bytes);
                out.say(
                    &self.sessions.slot(at).session,
                    AgentEvent::Unmodelled { name: method.to_owned(), frame },
                );
            }
            // After the record: it may have started the turn, or ended it.
            self.retry_interrupt(at, out);
            return;
        }
        match method {
            "configWarning" | "deprecationNotice" if thread.is_none() => {
                let message = params.get("summary").and_then(Value::as_str).unwrap_or(method).to_owned();
                out.say_all(AgentEvent::Notice { level: NoticeLevel::Info, message, provider: Some(params) });
            }
            "account/rateLimits/updated" => self.took_rate_limits(&params),
            "thread/started" => self.thread_began(&params, out),
            "thread/status/changed" | "thread/closed" => self.beside_changed(method, &params, out),
            _ if SILENT.contains(&method) => {}
            _ => match thread {
                Some(thread) => self.of_stranger(thread, bytes, method, &params, out),
                None => {
                    out.say_all(AgentEvent::Unmodelled { name: method.to_owned(), frame: rpc::whole(bytes) });
                }
            },
        }
    }

    /// Of a thread that no session has: a sub-agent's, or another client's.
    fn of_stranger(
        &mut self,
        thread: &str,
        bytes: &[u8],
        method: &str,
        params: &Value,
        out: &mut Translated,
    ) {
        let root = params.pointer("/turn/rootTurnId").and_then(Value::as_str);
        if method == "turn/started"
            && let Some(root) = root
            && let Some(at) = self.adopt_by_root(thread, root, out)
        {
            self.of_child(at, &ThreadId::from(thread), method, params, out);
        } else if may_be_a_childs(method) {
            self.keep_stranger(thread, bytes);
        }
    }

    fn of_thread(&mut self, at: usize, method: &str, params: Value, out: &mut Translated) -> Modelled {
        let session = self.sessions.slot(at).session.clone();
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default();
        match method {
            "turn/started" => match params.pointer("/turn/id").and_then(Value::as_str) {
                Some(turn) => {
                    let root = params.pointer("/turn/rootTurnId").and_then(Value::as_str);
                    if !self.is_within_review(at, turn, root) {
                        self.turn_started(at, turn, out);
                    }
                }
                None => return Modelled::No,
            },
            "turn/completed" => match params.get("turn").filter(|turn| turn.get("id").is_some()) {
                Some(turn) if self.reads_what_was_missed(at) && self.hold_end(at, turn) => {}
                Some(turn) => self.turn_completed(at, turn, out),
                None => return Modelled::No,
            },
            "item/started" | "item/completed" => {
                let Some(item) = params.get("item") else { return Modelled::No };
                return self.item(at, method == "item/started", text("turnId"), item, out);
            }
            "item/reasoning/summaryPartAdded" => {
                // Written as it stands in the whole text, so that both are the same.
                if params.get("summaryIndex").and_then(Value::as_u64).is_some_and(|index| index > 0) {
                    let (key, turn) =
                        (ItemKey::from(text("itemId")), Some(ProviderTurn::from(text("turnId"))));
                    let (kind, text) = (ItemKind::AgentThought, items::SUMMARY_SEPARATOR.to_owned());
                    out.say(&session, AgentEvent::ItemDelta { key, turn, kind, text });
                }
            }
            "item/fileChange/patchUpdated" => {
                let content = params.get("changes").and_then(items::change_blocks);
                let fields = ItemFields { content, ..ItemFields::default() };
                out.say(&session, AgentEvent::ItemUpdated { key: ItemKey::from(text("itemId")), fields });
            }
            "thread/status/changed" => {
                let closed =
                    params.pointer("/status/type").and_then(Value::as_str) == Some(threads::NOT_LOADED);
                self.status_changed(at, closed, out);
            }
            "thread/closed" => self.status_changed(at, true, out),
            "serverRequest/resolved" => self.request_resolved(at, &params, out),
            "error" => self.error(at, &params, out),
            "warning" => {
                let message = text("message").to_owned();
                warn(out, &session, message, None);
            }
            "guardianWarning" => {
                let message = text("message").to_owned();
                warn(out, &session, message, None);
            }
            "model/rerouted" => {
                let message =
                    format!("the model was changed from {} to {}", text("fromModel"), text("toModel"));
                warn(out, &session, message, Some(params));
            }
            "item/mcpToolCall/progress" => {
                let content = vec![progress(text("message"))];
                let fields = ItemFields { content: Some(content), ..ItemFields::default() };
                out.say(&session, AgentEvent::ItemUpdated { key: ItemKey::from(text("itemId")), fields });
            }
            // Told with the turn that types it; the item is the one of the command. An empty input only looks at it.
            "item/commandExecution/terminalInteraction" if text("stdin").is_empty() => {}
            "item/commandExecution/terminalInteraction" => {
                let content = vec![json!({ "type": "terminal_input", "text": text("stdin") })];
                let fields = ItemFields { content: Some(content), ..ItemFields::default() };
                out.say(&session, AgentEvent::ItemUpdated { key: ItemKey::from(text("itemId")), fields });
            }
            "turn/plan/updated" => {
                let Some(steps) = params.get("plan").and_then(items::plan_entries) else {
                    return Modelled::No;
                };
                out.say(&session, AgentEvent::Plan(steps));
            }
            "account/rateLimits/updated" => self.took_rate_limits(&params),
            "thread/tokenUsage/updated" => {
                self.answer_complete(at, text("turnId"));
                let usage = params.get("tokenUsage").cloned().unwrap_or_default();
                if let Some(tokens) = usage.pointer("/total/totalTokens").and_then(Value::as_u64) {
                    let counter = Spent { tokens: Some(tokens), cost_micros: None };
                    out.say(&session, AgentEvent::Spent { counter, of_process: false });
                }
                out.say(&session, AgentEvent::Usage(usage));
            }
            "thread/settings/updated" => {
                let Some(settings) = params.get("threadSettings") else { return Modelled::No };
                self.took_options(at, settings, "sandboxPolicy", "effort", out);
                self.settle_settings(at, out);
            }
            "thread/goal/updated" => {
                if !self.goal_updated(at, &params, out) {
                    return Modelled::No;
                }
            }
            "thread/goal/cleared" => self.goal_cleared(at, out),
            "thread/queue/changed" => self.ask_queue(at, out),
            // Ours has no session any more when it is told (measured).
            "thread/archived" => {
                let message = "another client put the conversation into the agent's archive";
                warn(out, &session, message.to_owned(), None);
            }
            "thread/name/updated" => {
                let name = params.get("threadName").and_then(Value::as_str).filter(|name| !name.is_empty());
                let (name, by) = (name.map(str::to_owned), Provenance::Unknown);
                out.say(&session, AgentEvent::Name { name, by });
            }
            "mcpServer/startupStatus/updated" if text("status") == "failed" => {
                let message = format!("the MCP server {} could not be started", text("name"));
                warn(out, &session, message, Some(params));
            }
            _ if SILENT.contains(&method) => {}
            _ => return Modelled::No,
        }
        Modelled::Yes
    }

    fn item(&mut self, at: usize, begins: bool, turn: &str, item: &Value, out: &mut Translated) -> Modelled {
        if item.get("type").and_then(Value::as_str) == Some("userMessage") {
            // It begins and ends at once; only the end is proof.
            if !begins {
                self.user_message(at, turn, item, TakenProof::ClientId, out);
            }
            return Modelled::Yes;
        }
        if begins && item.get("type").and_then(Value::as_str) == Some("enteredReviewMode") {
            self.review_began(at, turn, out);
        }
        let event = if begins { items::started(turn, item) } else { items::completed(turn, item) };
        let Some(event) = event else { return Modelled::No };
        self.turn_shows_origin(at, turn, false, out);
        let task = self.task_over(at, &event);
        self.note_item(at, begins, &event, item);
        self.ended_after_all(at, &event, item, out);
        let over = match &event {
            AgentEvent::ItemCompleted { key, .. } => Some(key.clone()),
            _ => None,
        };
        out.say(&self.sessions.slot(at).session, event);
        if let Some(task) = task {
            out.say(&self.sessions.slot(at).session, task);
        }
        if let Some(key) = over {
            self.item_over(at, &key, out);
        }
        self.children_named(at, None, item, out);
        Modelled::Yes
    }
}

/// What a sub-agent that is not named yet can say, and must not be lost. Everything else of a thread that no session has
/// (its name, its end) concerns nobody here.
fn may_be_a_childs(method: &str) -> bool {
    ["turn/", "item/"].iter().any(|head| method.starts_with(head)) || matches!(method, "error" | "warning")
}

/// What an MCP tool says of its progress, as content of its item.
fn progress(message: &str) -> Value {
    json!({ "type": "content", "content": { "type": "text", "text": message } })
}

#[derive(PartialEq, Eq)]
pub(super) enum Modelled {
    Yes,
    No,
}
