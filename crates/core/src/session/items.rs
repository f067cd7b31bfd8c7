//! Items: begun once, completed once, their text as deltas with offsets.

use super::state::{OpenItem, OpenRequest, RequestState, Session};
use super::{MAX_OPEN_ITEMS, Moment, Out};
use crate::content::{ContentBlock, ItemFields, ItemKind, ItemStatus, plain_text};
use crate::digest::TextDigest;
use crate::event::Event;
use crate::{ItemId, ItemKey, ProviderTurn, SubmissionId, TurnId};
use serde_json::json;

impl Session {
    /// Whether a frame for this key is a late one: the item is finished, and the frame does not show a running turn
    /// other than the one that it was finished in.
    fn is_late(&self, key: &ItemKey, turn: Option<&TurnId>) -> bool {
        let finished = self.finished_items.iter().rev().find(|(done, _)| done == key);
        finished.is_some_and(|(_, finished_in)| turn.is_none() || turn == finished_in.as_ref())
    }

    pub(super) fn start_item(
        &mut self,
        key: Option<ItemKey>,
        turn: Option<TurnId>,
        kind: ItemKind,
        fields: ItemFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> ItemId {
        if self.items.len() >= MAX_OPEN_ITEMS
            && let Some(oldest) = self.items.first().map(|open| open.id.clone())
        {
            self.complete(&oldest, ItemStatus::Incomplete, None, ItemFields::default(), moment, out);
        }
        let item = ItemId(format!("i{}", self.item_count + 1));
        self.emit(out, moment.now, Event::ItemStarted { item: item.clone(), key, turn, kind, fields });
        item
    }

    fn our_turn(&self, turn: Option<&ProviderTurn>) -> Option<TurnId> {
        turn.and_then(|turn| self.turn_of(turn)).map(|turn| turn.id.clone())
    }

    /// The open item of a key, begun if it is new; None where it was completed before (a late frame).
    fn open_item(
        &mut self,
        key: &ItemKey,
        turn: Option<&ProviderTurn>,
        kind: ItemKind,
        fields: ItemFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Option<(ItemId, bool)> {
        if let Some(open) = self.item_by_key(key) {
            return Some((open.id.clone(), false));
        }
        let turn = self.our_turn(turn);
        if self.is_late(key, turn.as_ref()) {
            return None;
        }
        Some((self.start_item(Some(key.clone()), turn, kind, fields, moment, out), true))
    }

    pub(super) fn item_started(
        &mut self,
        key: &ItemKey,
        turn: Option<&ProviderTurn>,
        kind: ItemKind,
        fields: ItemFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        if let Some((item, false)) = self.open_item(key, turn, kind, fields.clone(), moment, out) {
            self.emit(out, moment.now, Event::ItemUpdated { item, fields });
        }
    }

    pub(super) fn item_delta(
        &mut self,
        key: &ItemKey,
        turn: Option<&ProviderTurn>,
        kind: ItemKind,
        text: String,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        if text.is_empty() {
            return;
        }
        let Some((item, _)) = self.open_item(key, turn, kind, ItemFields::default(), moment, out) else {
            return;
        };
        let offset = self.items.iter().rev().find(|open| open.id == item).map_or(0, |open| open.text.bytes());
        self.emit(out, moment.now, Event::ItemDelta { item, offset, text });
    }

    pub(super) fn item_updated(
        &mut self,
        key: &ItemKey,
        fields: ItemFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        if let Some(open) = self.item_by_key(key) {
            let item = open.id.clone();
            self.emit(out, moment.now, Event::ItemUpdated { item, fields });
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one agent event, and where they go")]
    pub(super) fn item_completed(
        &mut self,
        key: &ItemKey,
        turn: Option<&ProviderTurn>,
        kind: ItemKind,
        status: ItemStatus,
        text: Option<String>,
        fields: ItemFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some((item, _)) = self.open_item(key, turn, kind, fields.clone(), moment, out) else {
            return;
        };
        self.complete(&item, status, text, fields, moment, out);
    }

    /// Completes an open item. The provider's whole text wins over the folded deltas where they differ.
    pub(super) fn complete(
        &mut self,
        item: &ItemId,
        status: ItemStatus,
        text: Option<String>,
        mut fields: ItemFields,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some(open) = self.items.iter().find(|open| open.id == *item) else {
            return;
        };
        fields.status = Some(status);
        let folded = &open.text;
        let event = match text.map(|text| (TextDigest::of(&text), text)) {
            Some((whole, text)) if whole != *folded => Event::ItemCompleted {
                item: item.clone(),
                fields,
                bytes: whole.bytes(),
                digest: whole.finish(),
                text: Some(text),
                replaces: true,
            },
            _ => Event::ItemCompleted {
                item: item.clone(),
                fields,
                bytes: folded.bytes(),
                digest: folded.finish(),
                text: None,
                replaces: false,
            },
        };
        self.emit(out, moment.now, event);
    }

    /// Ends open items as cut off: those of a turn that end with it, or all (the process is gone).
    pub(super) fn cut_items(&mut self, of: Option<&TurnId>, moment: &Moment<'_>, out: &mut Out) {
        let tools_too = !moment.capabilities.tools_outlive_turns;
        let ends = |open: &&OpenItem| match of {
            Some(turn) => open.turn.as_ref() == Some(turn) && (tools_too || open.kind.ends_with_turn()),
            None => true,
        };
        // What waits for an answer has not run.
        let waits = |open: &OpenItem| {
            let about = |asked: &OpenRequest| asked.call.is_some() && asked.call == open.key;
            self.requests.iter().any(|asked| asked.state == RequestState::Pending && about(asked))
        };
        let may_have_run = |open: &OpenItem| of.is_none() && open.kind == ItemKind::ToolCall && !waits(open);
        let cut: Vec<(ItemId, bool)> =
            self.items.iter().filter(ends).map(|open| (open.id.clone(), may_have_run(open))).collect();
        for (item, may_have_run) in cut {
            let fields = ItemFields { may_have_run: may_have_run.then_some(true), ..ItemFields::default() };
            self.complete(&item, ItemStatus::Incomplete, None, fields, moment, out);
        }
    }

    /// Puts what the user said into the timeline, when the agent is proven to have it.
    pub(super) fn show_user_message(
        &mut self,
        submission: &SubmissionId,
        content: &[ContentBlock],
        turn: Option<TurnId>,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let blocks = content.iter().map(|block| json!(block)).collect();
        let fields = ItemFields {
            content: Some(blocks),
            submission: Some(submission.clone()),
            ..ItemFields::default()
        };
        let begun = self.item_by_key(&ItemKey::of_message(submission)).map(|open| open.id.clone());
        let (item, mut fields) = match begun {
            // Begun before the proof, where it stands in the timeline.
            Some(item) => (item, fields),
            None => {
                let item = self.start_item(None, turn, ItemKind::UserMessage, fields, moment, out);
                (item, ItemFields::default())
            }
        };
        // The text stands in `content`; as folded text the item has none, and says so by its length.
        let text = plain_text(content);
        let shown = TextDigest::of(&text);
        fields.status = Some(ItemStatus::Completed);
        let (bytes, digest) = (shown.bytes(), shown.finish());
        let completed = Event::ItemCompleted { item, fields, bytes, digest, text: None, replaces: false };
        self.emit(out, moment.now, completed);
    }
}
