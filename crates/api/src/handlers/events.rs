//! Reading: a session's events, its timeline, the host feed.

use super::page_size;
use crate::call::{Answer, Call, json, raw_json};
use crate::problem::{Code, Problem};
use crate::stream::{self, RESET_ITEMS};
use mainstay_core::Cursor;
use mainstay_host::{FeedDelivered, Reset, ResetReason, subscription};
use mainstay_store::PageLimit;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json as value};

/// Events per page, unless asked otherwise.
const EVENTS_DEFAULT: usize = 500;
/// Events per page at most.
const EVENTS_MOST: usize = 5_000;
/// Bytes of events per page, beside a single larger one.
const EVENTS_BYTES: usize = 4 * 1024 * 1024;
/// Items per page, unless asked otherwise.
const ITEMS_DEFAULT: usize = 50;
/// Items per page at most.
const ITEMS_MOST: usize = 500;

/// Where to go on, and how far.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventsQuery {
    /// `epoch:seq` of the last event seen; absent: from the beginning. `Last-Event-ID` means the same and wins.
    #[serde(default)]
    after: Option<String>,
    /// Events per page, 1 to 5000; 500 if absent. Not for streams.
    #[serde(default)]
    limit: Option<usize>,
}

/// A page of events.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the page is written from stored lines; this is its shape for the document")]
pub(crate) struct EventPageView {
    /// Ascending, without a hole. Each as in the event schema.
    events: Vec<Value>,
    /// What to give as `after` for the next page.
    cursor: String,
    /// Where the journal stood.
    head: String,
    /// There is more behind `cursor`.
    more: bool,
    /// Begin anew: `{reason, epoch, cursor, page}`; then `events` is empty.
    reset: Option<Value>,
    /// Events that cannot be read.
    unreadable: Option<Vec<String>>,
}

pub(crate) async fn session(call: Call) -> Answer {
    let query: EventsQuery = call.query()?;
    let after = last_seen(&call, query.after)?.map(|text| stream::parse_cursor(&text)).transpose()?;
    let session = call.session()?;
    if call.wants_stream() {
        refuse_limit(query.limit)?;
        let subscription = call.app.host.subscribe(session, after).await?;
        let (host, stop) = (call.app.host.clone(), call.app.stop.clone());
        return Ok(stream::session_events(host, stop, session.to_owned(), subscription));
    }
    let rows = page_size(query.limit, EVENTS_DEFAULT, EVENTS_MOST)?;
    let row = call.app.host.session(session).await?;
    let head = Cursor { epoch: row.epoch, seq: row.head };
    let after = after.unwrap_or(Cursor { epoch: row.epoch, seq: 0 });
    if let Some(reason) = reset_reason(after, head) {
        let page = stream::timeline_page(&call.app.host, session, None, RESET_ITEMS).await?;
        let page = serde_json::to_value(page).unwrap_or_default();
        let reset = stream::reset_body(&Reset { reason, head }, page);
        let (cursor, head) = (head.to_string(), head.to_string());
        return json(
            200,
            &value!({ "events": [], "cursor": cursor, "head": head, "more": false, "reset": reset }),
        );
    }
    let key = row.key;
    let limit = PageLimit { rows, bytes: EVENTS_BYTES };
    let page = call.app.host.read(move |store| store.events(key, after.epoch, after.seq, limit)).await?;
    let cursor = Cursor { epoch: after.epoch, seq: page.rows.last().map_or(after.seq, |last| last.seq) };
    // The head was read before the page; what came between is in the page.
    let head = head.max(cursor);
    let mut tail = value!({ "cursor": cursor.to_string(), "head": head.to_string(), "more": page.more });
    if !page.bad.is_empty() {
        tail["unreadable"] = page.bad.iter().map(|bad| bad.key.as_str()).collect();
    }
    Ok(raw_json(200, write_page(page.rows.iter().map(|row| row.body.as_slice()), &tail)))
}

/// A page with `events` from lines that are JSON already, and the members of `tail`.
fn write_page<'a>(lines: impl Iterator<Item = &'a [u8]>, tail: &Value) -> Vec<u8> {
    let mut body = b"{\"events\":[".to_vec();
    for (place, line) in lines.enumerate() {
        if place > 0 {
            body.push(b',');
        }
        body.extend_from_slice(line);
    }
    body.extend_from_slice(b"],");
    let tail = tail.to_string();
    body.extend_from_slice(tail.strip_prefix('{').unwrap_or(&tail).as_bytes());
    body
}

/// Why a reader at `after` must begin anew, if it must.
fn reset_reason(after: Cursor, head: Cursor) -> Option<ResetReason> {
    if after.epoch > head.epoch || (after.epoch == head.epoch && after.seq > head.seq) {
        return Some(ResetReason::CursorAhead);
    }
    (after.epoch < head.epoch).then_some(ResetReason::EpochChanged)
}

/// `Last-Event-ID`, which a reconnecting client sends beside its first address, else `after`.
fn last_seen(call: &Call, after: Option<String>) -> Result<Option<String>, Problem> {
    let header = call.header("last-event-id")?.filter(|id| !id.is_empty()).map(str::to_owned);
    Ok(header.or(after))
}

fn refuse_limit(limit: Option<usize>) -> Result<(), Problem> {
    match limit {
        None => Ok(()),
        Some(_) => Err(Problem::new(Code::InvalidQuery, "`limit` is for pages; a stream has no end")),
    }
}

/// Where to go on in the timeline.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ItemsQuery {
    /// `before` of the newer page; absent: the newest.
    #[serde(default)]
    before: Option<i64>,
    /// Items per page, 1 to 500; 50 if absent.
    #[serde(default)]
    limit: Option<usize>,
}

/// A page of the folded timeline.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the host makes the page; this is its shape for the document")]
pub(crate) struct ItemPageView {
    /// Newest first: `{id, ordinal, turn?, kind, state, text, text_from, …}` with the fields of the item events.
    items: Vec<Value>,
    /// What to give as `before` for the next older page; absent at the beginning.
    before: Option<i64>,
    /// Rows that cannot be read.
    unreadable: Option<Vec<String>>,
}

pub(crate) async fn items(call: Call) -> Answer {
    let query: ItemsQuery = call.query()?;
    let limit = page_size(query.limit, ITEMS_DEFAULT, ITEMS_MOST)?;
    let page = stream::timeline_page(&call.app.host, call.session()?, query.before, limit).await?;
    json(200, &page)
}

/// A page of the host feed.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "the page is written from stored lines; this is its shape for the document")]
pub(crate) struct FeedPageView {
    /// Ascending: `{position, at, type, session, …}`.
    events: Vec<Value>,
    /// What to give as `after` for the next page.
    position: u64,
    /// Where the feed stood.
    head: u64,
    /// There is more behind `position`.
    more: bool,
    /// Begin anew at `position`: the cursor was ahead of the feed (`cursor_ahead`), or entries behind it are gone
    /// (`cursor_expired`).
    reset: Option<Value>,
}

/// Where to go on in the feed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FeedQuery {
    /// The position of the last entry seen; absent: from the beginning. `Last-Event-ID` means the same and wins.
    #[serde(default)]
    after: Option<String>,
    /// Entries per page, 1 to 5000; 500 if absent. Not for streams.
    #[serde(default)]
    limit: Option<usize>,
}

pub(crate) async fn feed(call: Call) -> Answer {
    let query: FeedQuery = call.query()?;
    let after = match last_seen(&call, query.after)? {
        None => 0,
        Some(text) => text.parse::<u64>().map_err(|_| {
            Problem::new(Code::InvalidCursor, "a cursor of the feed is a whole number, its last position")
        })?,
    };
    let host = &call.app.host;
    if call.wants_stream() {
        refuse_limit(query.limit)?;
        return Ok(stream::feed_events(host.clone(), call.app.stop.clone(), host.feed(after)));
    }
    let limit = page_size(query.limit, EVENTS_DEFAULT, EVENTS_MOST)?;
    let head = host.feed_head();
    let page = host.read(move |store| subscription::feed_page(store, after, head, limit)).await?;
    let rows = match page {
        FeedDelivered::Entries(rows) => rows,
        FeedDelivered::Reset { reason, head } => {
            let reset = value!({ "reason": reason, "position": head });
            return json(
                200,
                &value!({ "events": [], "position": head, "head": head, "more": false, "reset": reset }),
            );
        }
    };
    let position = rows.last().map_or(after, |last| last.position);
    let head = head.max(position);
    let entries: Vec<Vec<u8>> = rows
        .iter()
        .map(|row| {
            let mut entry = Vec::with_capacity(row.body.len() + 64);
            stream::write_feed_entry(row, &mut entry);
            entry
        })
        .collect();
    let tail = value!({ "position": position, "head": head, "more": position < head });
    Ok(raw_json(200, write_page(entries.iter().map(Vec::as_slice), &tail)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_of_other_epochs_and_ahead_of_the_head_begin_anew() {
        let at = |epoch, seq| Cursor { epoch, seq };
        assert_eq!(reset_reason(at(2, 5), at(2, 5)), None);
        assert_eq!(reset_reason(at(2, 6), at(2, 5)), Some(ResetReason::CursorAhead));
        assert_eq!(reset_reason(at(3, 1), at(2, 5)), Some(ResetReason::CursorAhead));
        assert_eq!(reset_reason(at(1, 9), at(2, 5)), Some(ResetReason::EpochChanged));
    }

    #[test]
    fn pages_are_json_with_none_one_and_two_lines() {
        for lines in [vec![], vec![b"{}".as_slice()], vec![b"{}".as_slice(), b"{}".as_slice()]] {
            let page = write_page(lines.iter().copied(), &value!({ "more": false }));
            let page: Value = serde_json::from_slice(&page).expect("JSON");
            assert_eq!(page["events"].as_array().map(Vec::len), Some(lines.len()));
            assert_eq!(page["more"], false);
        }
    }
}
