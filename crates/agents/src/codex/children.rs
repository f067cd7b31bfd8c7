//! Sub-agents: threads of their own on the same connection. Their turns, items and requests are told under them, and
//! reached through the session whose turn made them.
//!
//! A child's first word may come before the item of its parent that names it. It is known by the root turn that its own
//! turn names, else by that item; until one of them came, what it says is kept, within a bound.

use super::bounds::{MAX_CHILDREN, MAX_STRANGER_BYTES};
use super::state::{Asked, Child, Stranger};
use super::{CodexAdapter, errors, items, notice_all, warn};
use crate::adapter::Translated;
use crate::rpc::{self, RpcError};
use mainstay_core::content::{ItemFields, ItemKind};
use mainstay_core::work::{ChildFields, WorkEnd};
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, ThreadId};
use serde_json::{Value, json};

/// The longest title of a child, in characters; a prompt can be long.
const MAX_TITLE_CHARS: usize = 120;

impl CodexAdapter {
    /// The child of a session that a thread is; None: it is the session's own.
    pub(super) fn child_of(&self, at: usize, thread: &str) -> Option<ThreadId> {
        let own = self.sessions.slot(at).state.thread.as_ref();
        own.is_none_or(|own| own.as_str() != thread).then(|| ThreadId::from(thread))
    }

    /// The key of an item: of a child's with its thread, because ids are told apart within one thread only.
    pub(super) fn item_key(&self, child: Option<&ThreadId>, item: &str) -> ItemKey {
        match child {
            Some(child) => ItemKey(format!("{child}/{item}")),
            None => ItemKey::from(item),
        }
    }

    /// Keeps a frame of a thread that no session has; false: it is none that could be a child's, or there is no room.
    pub(super) fn keep_stranger(&mut self, thread: &str, bytes: &[u8]) -> bool {
        let Ok(frame) = std::str::from_utf8(bytes) else { return false };
        let strangers = &mut self.change_connection().strangers;
        let kept: usize = strangers.iter().map(Stranger::bytes).sum();
        if kept + frame.len() > MAX_STRANGER_BYTES {
            return false;
        }
        let frame = frame.to_owned();
        match strangers.iter_mut().find(|stranger| stranger.thread.as_str() == thread) {
            Some(stranger) => stranger.frames.push(frame),
            None => strangers.push(Stranger { thread: ThreadId::from(thread), frames: vec![frame] }),
        }
        true
    }

    /// A thread begins a turn of which the root is named: the session whose turn that is has it as a child.
    pub(super) fn adopt_by_root(&mut self, thread: &str, root: &str, out: &mut Translated) -> Option<usize> {
        let has_root = |at: &usize| {
            let state = &self.sessions.slot(*at).state;
            state.runs(root)
                || state
                    .children
                    .iter()
                    .any(|child| child.root.as_ref().is_some_and(|of| of.as_str() == root))
        };
        let at = self.sessions.positions().find(has_root)?;
        self.adopt_child(at, &ThreadId::from(thread), None, ChildFields::default(), out);
        Some(at)
    }

    /// A thread is known to be a child: what it said before is read now.
    fn adopt_child(
        &mut self,
        at: usize,
        thread: &ThreadId,
        parent: Option<ThreadId>,
        fields: ChildFields,
        out: &mut Translated,
    ) {
        let session = self.sessions.slot(at).session.clone();
        let named = fields != ChildFields::default();
        let fields = ChildFields { parent, ..fields };
        let known = self.sessions.slot(at).state.children.iter().find(|child| child.thread == *thread);
        if let Some(child) = known {
            // Named once: at the beginning of an item, and again at its end.
            if named && !child.named {
                self.change_child(at, thread, |of| of.named = true);
                out.say(&session, AgentEvent::ChildUpdated { thread: thread.clone(), fields });
            }
            return;
        }
        let state = self.sessions.change(at);
        if state.children.len() >= MAX_CHILDREN {
            // The longest known that does nothing gives way; what it still says is then a stranger's.
            match state.children.iter().position(|child| child.turn.is_none()) {
                Some(idle) => {
                    state.children.remove(idle);
                }
                None => {
                    let message = "more sub-agents work at once than can be followed; one more is not shown";
                    warn(out, &session, message.to_owned(), Some(json!({ "thread": thread })));
                    return;
                }
            }
        }
        state.children.push(Child { thread: thread.clone(), named, turn: None, root: None });
        self.sessions.index_thread(at);
        out.say(&session, AgentEvent::ChildStarted { thread: thread.clone(), fields });
        let strangers = &mut self.change_connection().strangers;
        let said = strangers.iter().position(|stranger| stranger.thread == *thread);
        if let Some(said) = said.map(|said| strangers.remove(said)) {
            for frame in said.frames {
                self.message(frame.as_bytes(), out);
            }
        }
    }

    /// An item of a parent may name its children.
    pub(super) fn children_named(
        &mut self,
        at: usize,
        parent: Option<&ThreadId>,
        item: &Value,
        out: &mut Translated,
    ) {
        let text = |name: &str| item.get(name).and_then(Value::as_str);
        let key = text("id").map(|id| self.item_key(parent, id));
        match text("type") {
            Some("collabAgentToolCall") if text("tool") == Some("spawnAgent") => {
                let title = text("prompt").map(|prompt| prompt.chars().take(MAX_TITLE_CHARS).collect());
                let threads =
                    item.get("receiverThreadIds").and_then(Value::as_array).cloned().unwrap_or_default();
                for thread in threads.iter().filter_map(Value::as_str) {
                    let fields =
                        ChildFields { title: title.clone(), item_key: key.clone(), ..ChildFields::default() };
                    self.adopt_child(at, &ThreadId::from(thread), parent.cloned(), fields, out);
                }
            }
            Some("subAgentActivity") if text("kind") == Some("started") => {
                if let Some(thread) = text("agentThreadId") {
                    let title = text("agentPath").map(|path| path.chars().take(MAX_TITLE_CHARS).collect());
                    let fields = ChildFields { title, item_key: key, ..ChildFields::default() };
                    self.adopt_child(at, &ThreadId::from(thread), parent.cloned(), fields, out);
                }
            }
            _ => {}
        }
    }

    /// What is told of a child. False: this version does not model it.
    pub(super) fn of_child(
        &mut self,
        at: usize,
        child: &ThreadId,
        method: &str,
        params: &Value,
        out: &mut Translated,
    ) -> bool {
        let session = self.sessions.slot(at).session.clone();
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default();
        match method {
            "turn/started" => {
                let Some(turn) = params.pointer("/turn/id").and_then(Value::as_str) else { return false };
                let root = params.pointer("/turn/rootTurnId").and_then(Value::as_str).map(ProviderTurn::from);
                let again = self.change_child(at, child, |of| {
                    let again = of.root.is_some();
                    of.turn = Some(ProviderTurn::from(turn));
                    of.root = root.or_else(|| Some(ProviderTurn::from(turn)));
                    again
                });
                if again == Some(true) {
                    // It works anew.
                    let fields = ChildFields::default();
                    out.say(&session, AgentEvent::ChildStarted { thread: child.clone(), fields });
                }
            }
            "turn/completed" => {
                let Some(turn) = params.get("turn") else { return false };
                self.child_turn_over(at, child, turn, out);
            }
            "item/started" | "item/completed" => {
                let Some(item) = params.get("item") else { return false };
                self.child_item(at, child, method == "item/started", text("turnId"), item, out);
            }
            "item/reasoning/summaryPartAdded" => {
                if params.get("summaryIndex").and_then(Value::as_u64).is_some_and(|index| index > 0) {
                    let key = self.item_key(Some(child), text("itemId"));
                    let (kind, text) = (ItemKind::AgentThought, items::SUMMARY_SEPARATOR.to_owned());
                    out.say(&session, AgentEvent::ItemDelta { key, turn: None, kind, text });
                }
            }
            "item/fileChange/patchUpdated" => {
                let content = params.get("changes").and_then(items::change_blocks);
                let fields = ItemFields { content, ..ItemFields::default() };
                let key = self.item_key(Some(child), text("itemId"));
                out.say(&session, AgentEvent::ItemUpdated { key, fields });
            }
            "serverRequest/resolved" => self.request_resolved(at, params, out),
            "thread/tokenUsage/updated" => {
                self.answer_complete(at, text("turnId"));
                let tokens = params.pointer("/tokenUsage/total/totalTokens").and_then(Value::as_u64);
                let fields = ChildFields { tokens, ..ChildFields::default() };
                out.say(&session, AgentEvent::ChildUpdated { thread: child.clone(), fields });
            }
            "error" => {
                let error = params.get("error").unwrap_or(&Value::Null);
                if params.get("willRetry") == Some(&Value::Bool(true)) {
                    let repeated = self.answer_abandoned(at, text("turnId"), out);
                    let tries = self.sessions.slot(at).state.retries;
                    out.say(&session, errors::retrying(None, tries, error, &repeated));
                } else {
                    let failure = self.turn_failure(error);
                    let message = format!("a sub-agent's turn failed: {}", failure.message);
                    warn(out, &session, message, failure.provider);
                }
            }
            "warning" => {
                warn(out, &session, text("message").to_owned(), Some(json!({ "thread": child })));
            }
            "thread/closed" => self.child_gone(at, child, out),
            "thread/status/changed" => {
                if params.pointer("/status/type").and_then(Value::as_str) == Some(super::threads::NOT_LOADED)
                {
                    self.child_gone(at, child, out);
                }
            }
            _ => return false,
        }
        true
    }

    fn child_item(
        &mut self,
        at: usize,
        child: &ThreadId,
        begins: bool,
        turn: &str,
        item: &Value,
        out: &mut Translated,
    ) {
        let session = self.sessions.slot(at).session.clone();
        if item.get("type").and_then(Value::as_str) == Some("userMessage") {
            if !begins && let Some(mut event) = items::foreign_user_message(turn, item) {
                items::put_under(&mut event, child);
                out.say(&session, event);
            }
            return;
        }
        let event = if begins { items::started(turn, item) } else { items::completed(turn, item) };
        let Some(mut event) = event else { return };
        // Noted with its turn; told without it, because it is no turn of the session.
        items::rename(&mut event, child);
        let task = self.task_over(at, &event);
        self.note_item(at, begins, &event, item);
        self.ended_after_all(at, &event, item, out);
        items::put_in_child(&mut event, child);
        let over = match &event {
            AgentEvent::ItemCompleted { key, .. } => Some(key.clone()),
            _ => None,
        };
        out.say(&session, event);
        if let Some(task) = task {
            out.say(&session, task);
        }
        if let Some(key) = over {
            self.item_over(at, &key, out);
        }
        self.children_named(at, Some(child), item, out);
    }

    fn child_turn_over(&mut self, at: usize, child: &ThreadId, turn: &Value, out: &mut Translated) {
        let id = turn.get("id").and_then(Value::as_str).unwrap_or_default();
        self.close_items_of(at, id, out);
        self.tell_tasks(at, id, Some(child), out);
        self.forget_requests_of(at, Some(child), id);
        if turn.get("status").is_some_and(|status| status == "interrupted") {
            self.look_at_background(at, &id.into(), Some(child), out);
        }
        let was = self.change_child(at, child, |of| of.turn.take_if(|of| of.as_str() == id));
        if was.flatten().is_none() {
            return;
        }
        let end = match turn.get("status").and_then(Value::as_str) {
            Some("completed") => WorkEnd::Completed,
            Some("interrupted") => WorkEnd::Stopped,
            _ => WorkEnd::Failed,
        };
        let summary = turn.pointer("/error/message").and_then(Value::as_str).map(str::to_owned);
        let fields = ChildFields { summary, ..ChildFields::default() };
        let session = &self.sessions.slot(at).session;
        out.say(session, AgentEvent::ChildEnded { thread: child.clone(), end, fields });
    }

    /// The server has it no more.
    fn child_gone(&mut self, at: usize, child: &ThreadId, out: &mut Translated) {
        let worked = self.change_child(at, child, |of| of.turn.take()).flatten();
        if let Some(turn) = worked {
            self.close_items_of(at, turn.as_str(), out);
            self.forget_requests_of(at, Some(child), turn.as_str());
            let (end, fields) = (WorkEnd::Lost, ChildFields::default());
            let session = &self.sessions.slot(at).session;
            out.say(session, AgentEvent::ChildEnded { thread: child.clone(), end, fields });
        }
    }

    fn change_child<R>(
        &mut self,
        at: usize,
        thread: &ThreadId,
        change: impl FnOnce(&mut Child) -> R,
    ) -> Option<R> {
        let children = &mut self.sessions.change(at).children;
        children.iter_mut().find(|child| child.thread == *thread).map(change)
    }

    /// Takes the working children of a session up again on a new connection.
    pub(super) fn reattach_children(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let working: Vec<ThreadId> = slot
            .state
            .children
            .iter()
            .filter(|child| child.turn.is_some())
            .map(|child| child.thread.clone())
            .collect();
        let session = slot.session.clone();
        for child in working {
            let asked = Asked::ReattachChild { session: session.clone(), child: child.clone() };
            self.read(asked, "thread/resume", json!({ "threadId": child, "excludeTurns": true }), out);
        }
    }

    pub(super) fn child_reattached(
        &mut self,
        at: usize,
        child: &ThreadId,
        result: &Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        if result.is_err() {
            self.child_gone(at, child, out);
            return;
        }
        let session = self.sessions.slot(at).session.clone();
        let params = json!({ "threadId": child, "sortDirection": "desc", "itemsView": "full", "limit": 1 });
        let asked = Asked::ChildHistory { session, child: child.clone() };
        self.read(asked, "thread/turns/list", params, out);
    }

    /// What a child did while there was no connection.
    pub(super) fn child_history(
        &mut self,
        at: usize,
        child: &ThreadId,
        result: &Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let turn = result.as_ref().ok().and_then(|result| result.pointer("/data/0").cloned());
        let Some(turn) = turn else {
            self.child_gone(at, child, out);
            return;
        };
        // As with the session's own thread: what it asks again it has asked by now (measured).
        self.mark_unconfirmed(at, Some(child), out);
        let id = turn.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
        for item in turn.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice) {
            if super::history::is_done(item) {
                self.child_item(at, child, false, &id, item, out);
            }
        }
        if turn.get("status").and_then(Value::as_str) == Some("inProgress") {
            return;
        }
        // Another turn than the one that was seen: that one is over too.
        self.change_child(at, child, |of| of.turn = Some(ProviderTurn::from(id.as_str())));
        self.child_turn_over(at, child, &turn, out);
    }

    /// What came of threads that turned out to be nobody's is told when a connection ends, and then forgotten.
    pub(super) fn forget_strangers(&mut self, out: &mut Translated) {
        for stranger in std::mem::take(&mut self.change_connection().strangers) {
            let head = stranger.frames.first().map_or("", String::as_str);
            let message = format!("thread {} is no session's; what it said is not shown", stranger.thread);
            notice_all(out, &message, &rpc::head(head.as_bytes()));
        }
    }
}
