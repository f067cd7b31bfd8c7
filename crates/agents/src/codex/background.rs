//! Commands that go on after their turn, and whether they do: one that was allowed and stopped in the same moment never
//! began, and the server tells no end of it (measured), also where it had named its process. Its list of background
//! terminals tells.

use super::bounds::{
    BACKGROUND_LOOK_EVERY_MS, MAX_BACKGROUND_LOOKS, MAX_BACKGROUND_PAGES, MAX_LOOKED_FOR,
    MAX_NOTICE_OUTPUT_BYTES, MAX_OPEN_ITEMS,
};
use super::open_items::cut;
use super::state::{Asked, LookedFor, OpenItem};
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

/// The page of a look that is asked for.
pub(super) struct BackgroundPage {
    /// The interrupted turn.
    pub(super) turn: ProviderTurn,
    /// The sub-agent whose turn it is.
    pub(super) child: Option<ThreadId>,
    /// From 0.
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
        let state = &self.sessions.slot(at).state;
        if !state.open_items.iter().any(|open| may_never_have_begun(open, turn)) {
            return;
        }
        let wanted = LookedFor { turn: turn.clone(), child: child.cloned(), looks: 0, due: None };
        if !state.looked_for.iter().any(|of| of.is_about(turn, child)) {
            let looked_for = &mut self.sessions.change(at).looked_for;
            looked_for.push(wanted);
            let over = looked_for.len().saturating_sub(MAX_LOOKED_FOR);
            looked_for.drain(..over);
        }
        self.look(at, BackgroundPage { turn: turn.clone(), child: child.cloned(), page: 0 }, None, out);
    }

    /// The connection was lost, and with it the answers that were to come.
    pub(super) fn look_at_background_again(&mut self, at: usize, out: &mut Translated) {
        let asks = |asked: &Asked, wanted: &LookedFor| match asked {
            Asked::Background { session, turn, child, .. } => {
                *session == self.sessions.slot(at).session && wanted.is_about(turn, child.as_ref())
            }
            _ => false,
        };
        let wanted = self.sessions.slot(at).state.looked_for.clone();
        let lost: Vec<_> =
            wanted.into_iter().filter(|wanted| !self.asking().any(|asked| asks(asked, wanted))).collect();
        for LookedFor { turn, child, .. } in lost {
            self.look(at, BackgroundPage { turn, child, page: 0 }, None, out);
        }
    }

    /// When the next look is due, by the clock of the records.
    pub(super) fn next_background_look(&self) -> Option<i64> {
        let due = |at: usize| self.sessions.slot(at).state.looked_for.iter().filter_map(|of| of.due).min();
        self.sessions.positions().filter_map(due).min()
    }

    /// Takes the looks that are due. One that is further away than it was set was set by another clock.
    pub(super) fn take_due_looks(&mut self, now: i64, out: &mut Translated) {
        let is_due = |due: i64| due <= now || due > now.saturating_add(BACKGROUND_LOOK_EVERY_MS);
        for at in self.sessions.positions() {
            let looked_for = &self.sessions.slot(at).state.looked_for;
            let due: Vec<LookedFor> =
                looked_for.iter().filter(|of| of.due.is_some_and(is_due)).cloned().collect();
            for LookedFor { turn, child, .. } in due {
                self.look(at, BackgroundPage { turn, child, page: 0 }, None, out);
            }
        }
    }

    fn look(&mut self, at: usize, wanted: BackgroundPage, cursor: Option<&Value>, out: &mut Translated) {
        let BackgroundPage { turn, child, page } = wanted;
        if !self.goes_on_looking(at, &turn, child.as_ref()) || !self.ready() {
            return;
        }
        let slot = self.sessions.slot(at);
        let Some(thread) = child.clone().or_else(|| slot.state.thread.clone()) else { return };
        let mut params = json!({ "threadId": thread });
        if let Some(cursor) = cursor {
            params["cursor"] = cursor.clone();
        }
        let asked = Asked::Background { session: slot.session.clone(), turn, child, page };
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

    /// Whether something is looked for still; it is not awaited any more, because it is asked for now.
    fn goes_on_looking(&mut self, at: usize, turn: &ProviderTurn, child: Option<&ThreadId>) -> bool {
        let thread = self.sessions.change(at);
        let wanted = thread.open_items.iter().any(|open| may_never_have_begun(open, turn));
        thread.looked_for.retain_mut(|of| {
            let this = of.is_about(turn, child);
            if this {
                of.due = None;
            }
            wanted || !this
        });
        wanted
    }

    pub(super) fn background_told(
        &mut self,
        at: usize,
        asked: BackgroundPage,
        result: &Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let (turn, child) = (&asked.turn, asked.child.as_ref());
        let listed = result.as_ref().ok().and_then(|result| result.get("data")?.as_array());
        let running: Vec<(ItemKey, Option<String>)> = listed
            .into_iter()
            .flatten()
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
            if asked.page + 1 < MAX_BACKGROUND_PAGES {
                let further = BackgroundPage { page: asked.page + 1, ..asked };
                self.look(at, further, Some(cursor), out);
            }
            return;
        }
        if !self.goes_on_looking(at, turn, child) {
            return;
        }
        let next = self.at.saturating_add(BACKGROUND_LOOK_EVERY_MS);
        let thread = self.sessions.change(at);
        let Some(this) = thread.looked_for.iter_mut().find(|of| of.is_about(turn, child)) else { return };
        this.looks += 1;
        if this.looks < MAX_BACKGROUND_LOOKS {
            // One that is just ending is told by its item a moment later.
            this.due = Some(next);
            return;
        }
        if listed.is_none() {
            // What cannot be asked is not known to be over; it is asked again on the next connection.
            this.looks = 0;
            return;
        }
        let over: Vec<OpenItem> =
            thread.open_items.extract_if(.., |open| may_never_have_begun(open, turn)).collect();
        thread.looked_for.retain(|of| !of.is_about(turn, child));
        thread.given_up_items.extend(over.iter().map(|open| open.key.clone()));
        let too_many = thread.given_up_items.len().saturating_sub(MAX_OPEN_ITEMS);
        thread.given_up_items.drain(..too_many);
        let session = self.sessions.slot(at).session.clone();
        for open in over {
            let key = open.key.clone();
            let ended = cut(open, ItemStatus::Incomplete);
            out.say(&session, ended);
            out.say(&session, super::open_items::task_ended(&key, ItemStatus::Incomplete));
        }
    }
}
