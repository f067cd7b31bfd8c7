//! Items between their beginning and their end: closed with their turn where the server leaves them open, and told to
//! be abandoned where the model's answer is made anew.

use super::bounds::MAX_OPEN_ITEMS;
use super::state::{OpenItem, OpenRequest, SaidItem};
use super::{CodexAdapter, items};
use crate::adapter::Translated;
use mainstay_core::content::{ItemFields, ItemKind, ItemStatus};
use mainstay_core::work::{TaskFields, TaskKind, WorkEnd};
use mainstay_core::{AgentEvent, ItemKey, TaskKey, ThreadId};
use serde_json::Value;

/// The longest title of a task, in characters.
const MAX_TITLE_CHARS: usize = 120;

impl CodexAdapter {
    /// A command that goes on after its turn is a task, which ends with the command.
    pub(super) fn tell_tasks(
        &mut self,
        at: usize,
        turn: &str,
        child: Option<&ThreadId>,
        out: &mut Translated,
    ) {
        let goes_on = |open: &OpenItem| open.outlives && !open.task && open.turn.as_str() == turn;
        if !self.sessions.slot(at).state.open_items.iter().any(goes_on) {
            return;
        }
        let session = self.sessions.slot(at).session.clone();
        for open in &mut self.sessions.change(at).open_items {
            if !goes_on(open) {
                continue;
            }
            open.task = true;
            let fields = TaskFields {
                item_key: Some(open.key.clone()),
                child: child.cloned(),
                ..TaskFields::default()
            };
            let (key, title) = (TaskKey::from(open.key.as_str()), open.title.clone());
            out.say(&session, AgentEvent::TaskStarted { key, kind: TaskKind::Shell, title, fields });
        }
    }

    /// The task of an item that is over, if it was told as one.
    pub(super) fn task_over(&self, at: usize, event: &AgentEvent) -> Option<AgentEvent> {
        let AgentEvent::ItemCompleted { key, status, .. } = event else { return None };
        let open = self.sessions.slot(at).state.open_items.iter().find(|of| of.key == *key && of.task)?;
        Some(task_ended(&open.key, *status))
    }

    pub(super) fn note_item(&mut self, at: usize, begins: bool, event: &AgentEvent, item: &Value) {
        let text = |name: &str| item.get(name).and_then(Value::as_str);
        match event {
            AgentEvent::ItemStarted { key, turn: Some(turn), kind, .. } if begins => {
                let open = &mut self.sessions.change(at).open_items;
                open.retain(|of| of.key != *key);
                if open.len() >= MAX_OPEN_ITEMS {
                    open.remove(0);
                }
                open.push(OpenItem {
                    key: key.clone(),
                    turn: turn.clone(),
                    kind: *kind,
                    outlives: items::outlives_turn(item),
                    declined: false,
                    process: text("processId").map(str::to_owned),
                    runs: false,
                    title: text("command").unwrap_or_default().chars().take(MAX_TITLE_CHARS).collect(),
                    task: false,
                });
            }
            AgentEvent::ItemCompleted { key, turn, kind, .. } => {
                let known = self.sessions.slot(at).state.open_items.iter().any(|of| of.key == *key);
                let said = is_said(*kind);
                if known || said {
                    let thread = self.sessions.change(at);
                    thread.open_items.retain(|of| of.key != *key);
                    if let Some(turn) =
                        turn.clone().filter(|_| said && thread.unsettled.len() < MAX_OPEN_ITEMS)
                    {
                        thread.unsettled.push(SaidItem { key: key.clone(), turn });
                    }
                }
            }
            _ => {}
        }
    }

    /// Somebody said no to it: where its end is not told, that is how it ended.
    pub(super) fn item_declined(&mut self, at: usize, key: &ItemKey) {
        if let Some(open) = self.sessions.change(at).open_items.iter_mut().find(|open| open.key == *key) {
            open.declined = true;
        }
    }

    /// The model's answer is complete: what it said is said once.
    pub(super) fn answer_complete(&mut self, at: usize, turn: &str) {
        let state = &self.sessions.slot(at).state;
        if state.unsettled.iter().any(|said| said.turn.as_str() == turn) || state.retries > 0 {
            let thread = self.sessions.change(at);
            thread.unsettled.retain(|said| said.turn.as_str() != turn);
            thread.retries = 0;
        }
    }

    /// The model's answer broke off and is made anew: what it had begun to say is abandoned, what it had said whole will
    /// be said again. Gives the keys of the latter.
    pub(super) fn answer_abandoned(&mut self, at: usize, turn: &str, out: &mut Translated) -> Vec<ItemKey> {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let mut abandoned = Vec::new();
        thread.open_items.retain(|open| {
            let ends = open.turn.as_str() == turn && is_said(open.kind);
            if ends {
                abandoned.push(open.clone());
            }
            !ends
        });
        let mut repeated = Vec::new();
        thread.unsettled.retain(|said| {
            let again = said.turn.as_str() == turn;
            if again {
                repeated.push(said.key.clone());
            }
            !again
        });
        thread.retries += 1;
        for open in abandoned {
            out.say(&session, cut(open, ItemStatus::Abandoned));
        }
        repeated
    }

    /// A turn is over: a tool call that can only have been cut off with it is said to be (measured: a patch that was
    /// cancelled, an MCP tool). A command may go on, unless its approval was still open: then it never ran, and the server
    /// tells no end of it (measured). What the model was saying ends with the turn by itself.
    pub(super) fn close_items_of(&mut self, at: usize, turn: &str, out: &mut Translated) {
        let state = &self.sessions.slot(at).state;
        if state.unsettled.is_empty() && state.open_items.is_empty() && state.retries == 0 {
            return;
        }
        // A request about a part of a command comes from one that runs.
        let asked_first = |of: &&OpenRequest| of.identity.part.is_none();
        let never_ran: Vec<ItemKey> = state
            .requests
            .values()
            .filter(asked_first)
            .filter_map(|request| request.identity.item.clone())
            .collect();
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        thread.unsettled.retain(|said| said.turn.as_str() != turn);
        thread.retries = 0;
        let mut over = Vec::new();
        thread.open_items.retain(|open| {
            let ends = open.turn.as_str() == turn && (!open.outlives || never_ran.contains(&open.key));
            if ends {
                over.push(open.clone());
            }
            !ends
        });
        for open in over.into_iter().filter(|open| !is_said(open.kind)) {
            let status = if open.declined { ItemStatus::Declined } else { ItemStatus::Incomplete };
            out.say(&session, cut(open, status));
        }
    }
}

/// Whether the model says it in its answer, as opposed to what comes of it.
const fn is_said(kind: ItemKind) -> bool {
    matches!(kind, ItemKind::AgentMessage | ItemKind::AgentThought | ItemKind::Plan)
}

/// The end of the task that a command was told as.
pub(super) fn task_ended(command: &ItemKey, status: ItemStatus) -> AgentEvent {
    let end = match status {
        ItemStatus::Completed => WorkEnd::Completed,
        ItemStatus::Declined | ItemStatus::Incomplete => WorkEnd::Stopped,
        _ => WorkEnd::Failed,
    };
    AgentEvent::TaskEnded { key: TaskKey::from(command.as_str()), end, fields: TaskFields::default() }
}

pub(super) fn cut(open: OpenItem, status: ItemStatus) -> AgentEvent {
    AgentEvent::ItemCompleted {
        key: open.key,
        turn: Some(open.turn),
        kind: open.kind,
        status,
        text: None,
        fields: ItemFields::default(),
    }
}
