//! Commands that go on after their turn, and whether they do: one that was allowed and stopped in the same moment never
//! began, and the server tells no end of it (measured). Its list of background terminals tells.

use super::CodexAdapter;
use super::bounds::MAX_BACKGROUND_LOOKS;
use super::open_items::cut;
use super::state::{Asked, OpenItem};
use crate::adapter::Translated;
use crate::rpc::RpcError;
use mainstay_core::content::ItemStatus;
use mainstay_core::{ItemKey, ProviderTurn, ThreadId};
use serde_json::{Value, json};

/// A command that is told as a task, and of which the server never named the process.
fn may_never_have_begun(open: &OpenItem, turn: &ProviderTurn) -> bool {
    open.task && open.process.is_none() && open.turn == *turn
}

impl CodexAdapter {
    /// A turn was interrupted: asks which of its commands run, where that is not known.
    pub(super) fn look_at_background(
        &mut self,
        at: usize,
        turn: &ProviderTurn,
        child: Option<&ThreadId>,
        looks: u32,
        out: &mut Translated,
    ) {
        let slot = self.sessions.slot(at);
        if !self.ready() || !slot.state.open_items.iter().any(|open| may_never_have_begun(open, turn)) {
            return;
        }
        let Some(thread) = child.cloned().or_else(|| slot.state.thread.clone()) else { return };
        let asked = Asked::Background {
            session: slot.session.clone(),
            turn: turn.clone(),
            child: child.cloned(),
            looks: looks + 1,
        };
        self.read(asked, "thread/backgroundTerminals/list", json!({ "threadId": thread }), out);
    }

    pub(super) fn background_told(
        &mut self,
        at: usize,
        turn: &ProviderTurn,
        child: Option<&ThreadId>,
        looks: u32,
        result: &Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        // What cannot be asked, or not whole, is not known to be over.
        let Ok(result) = result else { return };
        let whole = result.get("nextCursor").is_none_or(Value::is_null);
        let Some(listed) = result.get("data").and_then(Value::as_array).filter(|_| whole) else { return };
        let running: Vec<(ItemKey, Option<String>)> = listed
            .iter()
            .filter_map(|terminal| {
                let item = terminal.get("itemId").and_then(Value::as_str)?;
                let process = terminal.get("processId").and_then(Value::as_str).map(str::to_owned);
                Some((self.item_key(child, item), process))
            })
            .collect();
        let mut over = Vec::new();
        let last_look = looks >= MAX_BACKGROUND_LOOKS;
        let thread = self.sessions.change(at);
        thread.open_items.retain_mut(|open| {
            if !may_never_have_begun(open, turn) {
                return true;
            }
            if let Some((_, process)) = running.iter().find(|(key, _)| *key == open.key) {
                open.process.clone_from(process);
                return true;
            }
            if last_look {
                over.push(open.clone());
            }
            !last_look
        });
        let session = self.sessions.slot(at).session.clone();
        for open in over {
            let key = open.key.clone();
            let ended = cut(open, ItemStatus::Incomplete);
            out.say(&session, ended);
            out.say(&session, super::open_items::task_ended(&key, ItemStatus::Incomplete));
        }
        // One that is just ending is told by its item a moment later.
        self.look_at_background(at, turn, child, looks, out);
    }
}
