//! From decided events to rows: the serialized line that readers get is the line that is stored.

use mainstay_core::content::{ItemFields, ItemKind};
use mainstay_core::event::Event;
use mainstay_core::{ItemId, Session, Stamped, TurnId};
use mainstay_store::{FeedEntry, ItemRow, NewEvent, SessionKey, WriteOp};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A serialized event, shared by the ring and its readers.
#[derive(Debug, Clone)]
pub struct Line {
    /// The place it stands at.
    pub seq: u64,
    /// The first place it stands for.
    pub first_seq: u64,
    /// The event's type.
    pub kind: Cow<'static, str>,
    /// The JSON object.
    pub json: Arc<[u8]>,
}

/// The hot path's line, without serde's detour for flattened fields.
#[derive(Serialize)]
struct DeltaLine<'a> {
    epoch: u64,
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_seq: Option<u64>,
    at: i64,
    fence: u64,
    r#type: &'static str,
    item: &'a ItemId,
    offset: u64,
    text: &'a str,
}

/// Serializes an event as readers get it.
#[must_use]
pub(crate) fn line(stamped: &Stamped) -> Line {
    let json = match &stamped.event {
        Event::ItemDelta { item, offset, text } => serde_json::to_vec(&DeltaLine {
            epoch: stamped.epoch,
            seq: stamped.seq,
            first_seq: stamped.first_seq,
            at: stamped.at,
            fence: stamped.fence.0,
            r#type: "item.delta",
            item,
            offset: *offset,
            text,
        }),
        _ => serde_json::to_vec(stamped),
    };
    // These plain values serialize always; a reader of an empty line would see a damaged row, which is what it is.
    let json = json.unwrap_or_default();
    Line {
        seq: stamped.seq,
        first_seq: stamped.first_seq.unwrap_or(stamped.seq),
        kind: Cow::Borrowed(stamped.event.kind()),
        json: json.into(),
    }
}

/// What an item's row says beside its place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ItemBody {
    /// The folded fields.
    #[serde(flatten)]
    pub fields: ItemFields,
    /// Bytes of text, once completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The text's digest, once completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// The completed event carries the whole text.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replaced: bool,
}

/// Rows of open items, so that an update folds without a read.
#[derive(Debug, Default)]
pub(crate) struct OpenRows(BTreeMap<ItemId, (ItemRow, ItemBody)>);

impl OpenRows {
    /// Takes a row back from the store when a lane loads.
    pub(crate) fn put(&mut self, row: ItemRow) {
        let body = serde_json::from_slice(&row.body).unwrap_or_default();
        self.0.insert(ItemId(row.id.clone()), (row, body));
    }

    pub(crate) fn fold(&mut self, key: SessionKey, ordinal: i64, stamped: &Stamped) -> Option<ItemRow> {
        let place = (stamped.epoch, stamped.seq);
        match &stamped.event {
            Event::ItemStarted { item, turn, kind, fields, .. } => {
                let row = new_row(key, ordinal, item, turn.as_ref(), *kind, place);
                let body = ItemBody { fields: fields.clone(), ..ItemBody::default() };
                self.0.insert(item.clone(), (row, body));
                self.row(item, "open", place)
            }
            Event::ItemUpdated { item, fields } => {
                self.0.get_mut(item)?.1.fields.merge(fields.clone());
                self.row(item, "open", place)
            }
            Event::ItemCompleted { item, fields, bytes, digest, replaces, .. } => {
                let (row, body) = self.0.get_mut(item)?;
                body.fields.merge(fields.clone());
                body.bytes = Some(*bytes);
                body.digest = Some(digest.clone());
                body.replaced = *replaces;
                row.text_len = *bytes;
                let done = self.row(item, "completed", place);
                self.0.remove(item);
                done
            }
            _ => None,
        }
    }

    fn row(&mut self, item: &ItemId, state: &str, (epoch, seq): (u64, u64)) -> Option<ItemRow> {
        let (row, body) = self.0.get_mut(item)?;
        row.state = state.to_owned();
        (row.last_epoch, row.last_seq) = (epoch, seq);
        row.body = serde_json::to_vec(body).unwrap_or_default();
        Some(row.clone())
    }
}

fn new_row(
    session: SessionKey,
    ordinal: i64,
    item: &ItemId,
    turn: Option<&TurnId>,
    kind: ItemKind,
    (epoch, seq): (u64, u64),
) -> ItemRow {
    ItemRow {
        session,
        ordinal,
        id: item.0.clone(),
        turn: turn.map(|turn| turn.0.clone()),
        kind: serde_json::to_value(kind)
            .ok()
            .and_then(|kind| kind.as_str().map(str::to_owned))
            .unwrap_or_default(),
        state: String::new(),
        first_epoch: epoch,
        first_seq: seq,
        last_epoch: epoch,
        last_seq: seq,
        text_len: 0,
        body: Vec::new(),
    }
}

/// The ordinal that stands in an item's id (`i12` is the twelfth item of its session).
#[must_use]
pub(crate) fn ordinal_of(item: &ItemId) -> Option<i64> {
    item.0.strip_prefix('i')?.parse().ok()
}

/// What a batch of events of one session writes, and the lines that readers get.
#[derive(Debug, Default)]
pub(crate) struct Journaled {
    /// The operations.
    pub ops: Vec<WriteOp>,
    /// The lines, ascending.
    pub lines: Vec<Line>,
    /// True where there is nothing but streamed text.
    pub only_text: bool,
}

/// Makes the rows of a batch. `head_before` is the head that the store has.
#[must_use]
pub(crate) fn rows(
    key: SessionKey,
    session: &Session,
    (epoch_before, head_before): (u64, u64),
    events: &[Stamped],
    open: &mut OpenRows,
) -> Journaled {
    let mut made = Journaled { only_text: true, ..Journaled::default() };
    let mut run: Vec<NewEvent> = Vec::with_capacity(events.len());
    let mut items: BTreeMap<i64, ItemRow> = BTreeMap::new();
    let (mut epoch, mut head) = (epoch_before, head_before);
    for stamped in events {
        if stamped.epoch != epoch {
            flush(&mut made.ops, key, epoch, head, &mut run);
            made.ops.push(WriteOp::StartEpoch { session: key, epoch: stamped.epoch });
            // Readers of the former epoch get a reset; its last lines are in the store.
            made.lines.clear();
            (epoch, head) = (stamped.epoch, 0);
        }
        made.only_text &= matches!(stamped.event, Event::ItemDelta { .. });
        let line = line(stamped);
        let ordinal = stamped.event.item().and_then(ordinal_of);
        if let Some(ordinal) = ordinal
            && let Some(row) = open.fold(key, ordinal, stamped)
        {
            items.insert(ordinal, row);
        }
        if let Some(feed) = feed_entry(key, session, stamped) {
            made.ops.push(WriteOp::AppendFeed(feed));
        }
        run.push(NewEvent {
            first_seq: line.first_seq,
            seq: line.seq,
            at: stamped.at,
            fence: stamped.fence.0,
            kind: line.kind.clone(),
            item: ordinal,
            body: line.json.to_vec(),
        });
        made.lines.push(line);
    }
    flush(&mut made.ops, key, epoch, head, &mut run);
    made.ops.extend(items.into_values().map(WriteOp::UpsertItem));
    made
}

fn flush(ops: &mut Vec<WriteOp>, session: SessionKey, epoch: u64, head: u64, run: &mut Vec<NewEvent>) {
    if !run.is_empty() {
        ops.push(WriteOp::AppendEvents { session, epoch, expect_head: head, events: std::mem::take(run) });
    }
}

/// The host feed carries what a list of sessions shows: requests opened and closed, turns ended, sessions made and
/// gone. Status changes are added by the lane, which knows the status before.
fn feed_entry(key: SessionKey, session: &Session, stamped: &Stamped) -> Option<FeedEntry> {
    let shown = matches!(
        stamped.event,
        Event::SessionCreated { .. }
            | Event::SessionImported { .. }
            | Event::SessionDeleted {}
            | Event::RequestOpened { .. }
            | Event::RequestClosed { .. }
            | Event::TurnEnded { .. }
    );
    // A turn of the past of a conversation that was brought here: no process of this session had it.
    let of_the_past = matches!(stamped.event, Event::TurnEnded { .. }) && stamped.fence.0 == 0;
    (shown && !of_the_past).then(|| {
        let body = json!({ "session": session.id, "event": stamped });
        FeedEntry {
            at: stamped.at,
            session: key,
            epoch: stamped.epoch,
            seq: stamped.seq,
            kind: Cow::Borrowed(stamped.event.kind()),
            body: body.to_string().into_bytes(),
        }
    })
}
