//! The folded timeline: items with their text, newest page first, each page O(page).

use crate::journal::ItemBody;
use mainstay_core::{Event, Stamped};
use mainstay_store::{ItemEventQuery, ItemRow, ReadError, SessionRow, Store};
use serde::Serialize;

/// Text given per item and page, in bytes. A longer text is given from its end, `text_from` says where it begins; the
/// whole is in the events.
pub const ITEM_TEXT_BYTES: usize = 256 * 1024;
/// Rows read for one item's text, as bytes of stored lines.
const ITEM_READ_BYTES: usize = 1024 * 1024;

/// An item as readers get it.
#[derive(Debug, Clone, Serialize)]
pub struct TimelineItem {
    /// Its id.
    pub id: String,
    /// Its place in the timeline.
    pub ordinal: i64,
    /// Its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<String>,
    /// What it is.
    pub kind: String,
    /// `open` or `completed`.
    pub state: String,
    /// Its folded text, or the end of it.
    pub text: String,
    /// Bytes of text before `text`.
    pub text_from: u64,
    /// What it carries beside.
    #[serde(flatten)]
    pub body: ItemBody,
}

/// A page of the timeline.
#[derive(Debug, Serialize)]
pub struct TimelinePage {
    /// Newest first.
    pub items: Vec<TimelineItem>,
    /// What to give as `before` for the next older page; absent at the beginning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<i64>,
    /// Rows that could not be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
}

/// Reads a page. Blocking.
///
/// # Errors
/// [`ReadError`].
pub fn page(
    store: &dyn Store,
    session: &SessionRow,
    before: Option<i64>,
    limit: usize,
) -> Result<TimelinePage, ReadError> {
    let rows = store.items(session.key, before, limit)?;
    let more = rows.rows.len() == limit && rows.rows.last().is_some_and(|oldest| oldest.ordinal > 1);
    let before = rows.rows.last().filter(|_| more).map(|oldest| oldest.ordinal);
    let unreadable = rows.bad.iter().map(|bad| bad.key.clone()).collect();
    let items = rows.rows.into_iter().map(|row| item(store, session, row)).collect::<Result<_, _>>()?;
    Ok(TimelinePage { items, before, unreadable })
}

fn item(store: &dyn Store, session: &SessionRow, row: ItemRow) -> Result<TimelineItem, ReadError> {
    let body: ItemBody = serde_json::from_slice(&row.body).unwrap_or_default();
    let (text, text_from) = text(store, session, &row)?;
    Ok(TimelineItem {
        id: row.id,
        ordinal: row.ordinal,
        turn: row.turn,
        kind: row.kind,
        state: row.state,
        text,
        text_from,
        body,
    })
}

/// The folded text, read backwards until there is enough of it. Deltas that overlap overwrite from their offset.
fn text(store: &dyn Store, session: &SessionRow, row: &ItemRow) -> Result<(String, u64), ReadError> {
    let to =
        if row.state == "completed" { (row.last_epoch, row.last_seq) } else { (session.epoch, session.head) };
    let mut query = ItemEventQuery {
        session: row.session,
        ordinal: row.ordinal,
        from: (row.first_epoch, row.first_seq),
        to,
        backwards: true,
        limit_bytes: ITEM_READ_BYTES,
    };
    let mut pieces: Vec<(u64, String)> = Vec::new();
    let mut bytes = 0;
    'reading: loop {
        let page = store.events_of_item(query)?;
        for event in &page.rows {
            let Ok(stamped) = serde_json::from_slice::<Stamped>(&event.body) else {
                continue;
            };
            match stamped.event {
                Event::ItemCompleted { text: Some(text), replaces: true, .. } => {
                    return Ok((text, 0));
                }
                Event::ItemDelta { offset, text, .. } => {
                    bytes += text.len();
                    pieces.push((offset, text));
                    if bytes >= ITEM_TEXT_BYTES {
                        break 'reading;
                    }
                }
                _ => {}
            }
        }
        match page.resume {
            Some(next) => query.to = next,
            None => break,
        }
    }
    let Some((from, _)) = pieces.last() else {
        return Ok((String::new(), 0));
    };
    let from = *from;
    let mut whole = Vec::with_capacity(bytes);
    for (offset, text) in pieces.into_iter().rev() {
        // An imported journal may say anything; what does not fit together is shown as it comes.
        whole.truncate(usize::try_from(offset.saturating_sub(from)).unwrap_or(usize::MAX));
        whole.extend_from_slice(text.as_bytes());
    }
    Ok((String::from_utf8_lossy(&whole).into_owned(), from))
}
