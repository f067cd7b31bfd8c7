//! Commands that go on after their turn, and whether they do: one that was allowed and stopped in the same moment never
//! began, and the server tells no end of it (measured), also where it had named its process. Its list of background
//! terminals tells.

use super::bounds::{
    MAX_BACKGROUND_LOOKS, MAX_BACKGROUND_PAGES, MAX_LOOKED_FOR, MAX_NOTICE_OUTPUT_BYTES, MAX_OPEN_ITEMS,
};
use super::open_items::cut;
use super::state::{Asked, OpenItem};
use super::{CodexAdapter, warn};
use crate::adapter::Translated;
use crate::rpc::RpcError;
use mainstay_core::content::ItemStatus;
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, ThreadId};
use serde_json::{Value, json};

/// A command that is told as a task, and that the server never listed as running.
fn may_never_have_begun(open: &OpenItem, turn: &ProviderTurn) -> bool {
    open.task && !open.runs && open.turn == *turn
}

/// The end of a command's output, as far as a notice has room for it.
fn tail(output: &str) -> &str {
    let cut = output.len().saturating_sub(MAX_NOTICE_OUTPUT_BYTES);
    let cut = (cut..output.len()).find(|at| output.is_char_boundary(*at)).unwrap_or(output.len());
    &output[cut..]
}

/// What is asked, and how often it was.
pub(super) struct BackgroundLook {
    /// The interrupted turn.
    pub(super) turn: ProviderTurn,
    /// The sub-agent whose turn it is.
    pub(super) child: Option<ThreadId>,
    /// From 1.
    pub(super) looks: u32,
    /// The page of this look, from 0.
    pub(super) page: u32,
}

impl CodexAdapter {
    /// A turn was interrupted: asks which of its commands run, where that is not known.
    pub(super) fn look_at_background(
        &mut self,
        at: usize,
        turn: &ProviderTurn,
        child: Option<&ThreadId>,
        out: &mut Translated,
    ) {
        let wanted = (turn.clone(), child.cloned());
        let state = &self.sessions.slot(at).state;
        if !state.open_items.iter().any(|open| may_never_have_begun(open, turn)) {
            return;
        }
        if !state.looked_for.contains(&wanted) {
            let looked_for = &mut self.sessions.change(at).looked_for;
            looked_for.push(wanted);
            let over = looked_for.len().saturating_sub(MAX_LOOKED_FOR);
            looked_for.drain(..over);
        }
        self.look(
            at,
            BackgroundLook { turn: turn.clone(), child: child.cloned(), looks: 1, page: 0 },
            None,
            out,
        );
    }

    /// The connection was lost, and with it the answers that were to come.
    pub(super) fn look_at_background_again(&mut self, at: usize, out: &mut Translated) {
        let asks = |asked: &Asked, wanted: &(ProviderTurn, Option<ThreadId>)| match asked {
            Asked::Background { session, turn, child, .. } => {
                *session == self.sessions.slot(at).session && (turn, child) == (&wanted.0, &wanted.1)
            }
            _ => false,
        };
        let wanted = self.sessions.slot(at).state.looked_for.clone();
        let lost: Vec<_> =
            wanted.into_iter().filter(|wanted| !self.asking().any(|asked| asks(asked, wanted))).collect();
        for (turn, child) in lost {
            self.look(at, BackgroundLook { turn, child, looks: 1, page: 0 }, None, out);
        }
    }

    fn look(&mut self, at: usize, look: BackgroundLook, cursor: Option<&Value>, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        if !slot.state.open_items.iter().any(|open| may_never_have_begun(open, &look.turn)) {
            let wanted = (look.turn, look.child);
            self.sessions.change(at).looked_for.retain(|of| *of != wanted);
            return;
        }
        if !self.ready() {
            return;
        }
        let BackgroundLook { turn, child, looks, page } = look;
        let Some(thread) = child.clone().or_else(|| slot.state.thread.clone()) else { return };
        let mut params = json!({ "threadId": thread });
        if let Some(cursor) = cursor {
            params["cursor"] = cursor.clone();
        }
        let asked = Asked::Background { session: slot.session.clone(), turn, child, looks, page };
        self.read(asked, "thread/backgroundTerminals/list", params, out);
    }

    /// A command that was said never to have begun ended all the same: its item is over and is not shown twice, so what
    /// became of it is said beside it.
    pub(super) fn ended_after_all(
        &mut self,
        at: usize,
        event: &AgentEvent,
        item: &Value,
        out: &mut Translated,
    ) {
        let AgentEvent::ItemCompleted { key, status, .. } = event else { return };
        let slot = self.sessions.slot(at);
        if !slot.state.given_up_items.contains(key) {
            return;
        }
        let session = slot.session.clone();
        self.sessions.change(at).given_up_items.retain(|of| of != key);
        let how = if *status == ItemStatus::Completed { "with success" } else { "without success" };
        let message = format!("the command that was taken for incomplete ran, and ended {how}");
        let provider = json!({ "item": key, "status": item.get("status"), "exitCode": item.get("exitCode"),
                               "aggregatedOutput": item.get("aggregatedOutput").and_then(Value::as_str).map(tail) });
        warn(out, &session, message, Some(provider));
    }

    pub(super) fn background_told(
        &mut self,
        at: usize,
        look: BackgroundLook,
        result: &Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let last_look = look.looks >= MAX_BACKGROUND_LOOKS;
        let next = BackgroundLook { looks: look.looks + 1, page: 0, ..look };
        let listed = result.as_ref().ok().and_then(|result| result.get("data")?.as_array());
        let Some(listed) = listed else {
            // What cannot be asked is not known to be over; it is asked again on the next connection.
            if !last_look {
                self.look(at, next, None, out);
            }
            return;
        };
        let (turn, child) = (&next.turn, next.child.as_ref());
        let running: Vec<(ItemKey, Option<String>)> = listed
            .iter()
            .filter_map(|terminal| {
                let item = terminal.get("itemId").and_then(Value::as_str)?;
                let process = terminal.get("processId").and_then(Value::as_str).map(str::to_owned);
                Some((self.item_key(child, item), process))
            })
            .collect();
        let thread = self.sessions.change(at);
        for open in thread.open_items.iter_mut().filter(|open| may_never_have_begun(open, turn)) {
            if let Some((_, process)) = running.iter().find(|(key, _)| *key == open.key) {
                open.runs = true;
                if process.is_some() {
                    open.process.clone_from(process);
                }
            }
        }
        let more = result.as_ref().ok().and_then(|result| result.get("nextCursor"));
        if let Some(cursor) = more.filter(|cursor| !cursor.is_null()) {
            if look.page + 1 < MAX_BACKGROUND_PAGES {
                let further = BackgroundLook { looks: look.looks, page: look.page + 1, ..next };
                self.look(at, further, Some(cursor), out);
            }
            return;
        }
        if last_look {
            let over: Vec<OpenItem> =
                thread.open_items.extract_if(.., |open| may_never_have_begun(open, turn)).collect();
            let session = self.sessions.slot(at).session.clone();
            for open in over {
                let key = open.key.clone();
                let given_up = &mut self.sessions.change(at).given_up_items;
                given_up.push(key.clone());
                let too_many = given_up.len().saturating_sub(MAX_OPEN_ITEMS);
                given_up.drain(..too_many);
                let ended = cut(open, ItemStatus::Incomplete);
                out.say(&session, ended);
                out.say(&session, super::open_items::task_ended(&key, ItemStatus::Incomplete));
            }
        }
        // One that is just ending is told by its item a moment later.
        self.look(at, next, None, out);
    }
}
