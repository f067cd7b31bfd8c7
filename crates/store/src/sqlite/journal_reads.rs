//! Reads of what grows: journal, items, snapshots, feed, quarantine. Each costs what it returns.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::readers::{Collect, Next, bytes};
use super::record_reads::row_limit;
use crate::read::{
    EventPage, EventRow, FeedRow, ItemEventPage, ItemEventQuery, PageLimit, QuarantinePage, QuarantineRow,
    Rows, SnapshotRow,
};
use crate::write::{ItemRow, ProcessKey, SessionKey};

/// Journal rows that one page of an item's events may look at: a quiet item may span a long busy range. At the
/// bound the page ends with a place to go on from (about 20 ms of reading).
const ITEM_SCAN_ROWS: usize = 65_536;

const EVENT_COLUMNS: &str = "epoch, seq, coalesce(first_seq, seq), at, fence, kind, item, body";
const EVENTS: Collect = Collect { table: "events", key_columns: 2 };

fn read_event(row: &Row<'_>) -> rusqlite::Result<EventRow> {
    Ok(EventRow {
        epoch: row.get(0)?,
        seq: row.get(1)?,
        first_seq: row.get(2)?,
        at: row.get(3)?,
        fence: row.get(4)?,
        kind: row.get(5)?,
        item: row.get(6)?,
        body: bytes(row, 7)?,
    })
}

pub(super) fn events(
    reader: &Connection,
    session: SessionKey,
    epoch: u64,
    after_seq: u64,
    limit: PageLimit,
) -> rusqlite::Result<EventPage> {
    let mut statement = reader.prepare_cached(&format!(
        "SELECT {EVENT_COLUMNS} FROM events WHERE session = ?1 AND epoch = ?2 AND seq > ?3 ORDER BY seq"
    ))?;
    let mut page = EventPage::default();
    let mut used = 0_usize;
    let rows = statement.query(params![session.0, epoch, after_seq])?;
    EVENTS.each(rows, &mut page.bad, read_event, |event| {
        used = used.saturating_add(event.body.len());
        let full = page.rows.len() >= limit.rows || used > limit.bytes;
        if full && !page.rows.is_empty() {
            page.more = true;
            return Next::Stop;
        }
        page.rows.push(event);
        Next::Go
    })?;
    Ok(page)
}

pub(super) fn has_events(reader: &Connection, session: SessionKey) -> rusqlite::Result<bool> {
    reader.prepare_cached("SELECT 1 FROM events WHERE session = ?1 LIMIT 1")?.exists([session.0])
}

pub(super) fn next_epoch(
    reader: &Connection,
    session: SessionKey,
    after: u64,
) -> rusqlite::Result<Option<u64>> {
    let mut statement = reader.prepare_cached(
        "SELECT epoch FROM events WHERE session = ?1 AND epoch > ?2 ORDER BY epoch LIMIT 1",
    )?;
    statement.query_row(params![session.0, after], |row| row.get(0)).optional()
}

fn item_events_sql(backwards: bool) -> String {
    let direction = if backwards { "DESC" } else { "ASC" };
    format!(
        "SELECT {EVENT_COLUMNS} FROM events
         WHERE session = ?1 AND (epoch, seq) >= (?2, ?3) AND (epoch, seq) <= (?4, ?5)
         ORDER BY epoch {direction}, seq {direction}"
    )
}

pub(super) fn events_of_item(reader: &Connection, query: ItemEventQuery) -> rusqlite::Result<ItemEventPage> {
    let mut statement = reader.prepare_cached(&item_events_sql(query.backwards))?;
    let (from, to) = (query.from, query.to);
    let rows = statement.query(params![query.session.0, from.0, from.1, to.0, to.1])?;
    let mut page = ItemEventPage::default();
    let mut used = 0_usize;
    let mut looked_at = 0_usize;
    // Only rows of the item are read whole; of the others, only where they stand.
    let read = |row: &Row<'_>| {
        if row.get::<_, Option<i64>>(6)? == Some(query.ordinal) {
            read_event(row).map(Ok)
        } else {
            Ok(Err((row.get(0)?, row.get(1)?)))
        }
    };
    EVENTS.each(rows, &mut page.bad, read, |found: Result<EventRow, (u64, u64)>| {
        looked_at += 1;
        let place = match &found {
            Ok(event) => (event.epoch, event.seq),
            Err(place) => *place,
        };
        if looked_at > ITEM_SCAN_ROWS {
            page.resume = Some(place);
            return Next::Stop;
        }
        if let Ok(event) = found {
            used = used.saturating_add(event.body.len());
            if used > query.limit_bytes && !page.rows.is_empty() {
                page.resume = Some(place);
                return Next::Stop;
            }
            page.rows.push(event);
        }
        Next::Go
    })?;
    Ok(page)
}

pub(super) fn snapshot(reader: &Connection, session: SessionKey) -> rusqlite::Result<Option<SnapshotRow>> {
    let mut statement =
        reader.prepare_cached("SELECT epoch, seq, version, body FROM snapshots WHERE session = ?1")?;
    let read = |row: &Row<'_>| {
        Ok(SnapshotRow { epoch: row.get(0)?, seq: row.get(1)?, version: row.get(2)?, body: bytes(row, 3)? })
    };
    statement.query_row([session.0], read).optional()
}

const ITEM: &str =
    "SELECT session, ordinal, id, turn, kind, state, first_epoch, first_seq, last_epoch, last_seq,
    text_len, body FROM items";

fn read_item(row: &Row<'_>) -> rusqlite::Result<ItemRow> {
    Ok(ItemRow {
        session: SessionKey(row.get(0)?),
        ordinal: row.get(1)?,
        id: row.get(2)?,
        turn: row.get(3)?,
        kind: row.get(4)?,
        state: row.get(5)?,
        first_epoch: row.get(6)?,
        first_seq: row.get(7)?,
        last_epoch: row.get(8)?,
        last_seq: row.get(9)?,
        text_len: row.get(10)?,
        body: bytes(row, 11)?,
    })
}

pub(super) fn items(
    reader: &Connection,
    session: SessionKey,
    before: Option<i64>,
    limit: usize,
) -> rusqlite::Result<Rows<ItemRow>> {
    let mut statement = reader.prepare_cached(&format!(
        "{ITEM} WHERE session = ?1 AND ordinal < ?2 ORDER BY ordinal DESC LIMIT ?3"
    ))?;
    let rows = statement.query(params![session.0, before.unwrap_or(i64::MAX), row_limit(limit)])?;
    Collect { table: "items", key_columns: 3 }.all(rows, read_item)
}

pub(super) fn item(reader: &Connection, session: SessionKey, id: &str) -> rusqlite::Result<Option<ItemRow>> {
    let mut statement = reader.prepare_cached(&format!("{ITEM} WHERE session = ?1 AND id = ?2"))?;
    statement.query_row(params![session.0, id], read_item).optional()
}

pub(super) fn max_item_ordinal(reader: &Connection, session: SessionKey) -> rusqlite::Result<Option<i64>> {
    let mut statement = reader.prepare_cached("SELECT max(ordinal) FROM items WHERE session = ?1")?;
    statement.query_row([session.0], |row| row.get(0))
}

/// Behind the floor nothing may be left.
pub(super) const FEED_HEAD: &str = "SELECT max(coalesce((SELECT max(position) FROM feed), 0),
    coalesce((SELECT value FROM meta WHERE name = 'feed_floor'), 0))";

pub(super) fn feed(reader: &Connection, after: u64, limit: usize) -> rusqlite::Result<Rows<FeedRow>> {
    let mut statement = reader.prepare_cached(
        "SELECT position, at, session, epoch, seq, kind, body FROM feed
         WHERE position > max(?1, (SELECT value FROM meta WHERE name = 'feed_floor'))
         ORDER BY position LIMIT ?2",
    )?;
    let rows = statement.query(params![after, row_limit(limit)])?;
    Collect { table: "feed", key_columns: 1 }.all(rows, |row| {
        Ok(FeedRow {
            position: row.get(0)?,
            at: row.get(1)?,
            session: SessionKey(row.get(2)?),
            epoch: row.get(3)?,
            seq: row.get(4)?,
            kind: row.get(5)?,
            body: bytes(row, 6)?,
        })
    })
}

pub(super) fn feed_head(reader: &Connection) -> rusqlite::Result<u64> {
    let mut statement = reader.prepare_cached(FEED_HEAD)?;
    statement.query_row([], |row| row.get(0))
}

pub(super) fn feed_floor(reader: &Connection) -> rusqlite::Result<u64> {
    let mut statement = reader.prepare_cached("SELECT value FROM meta WHERE name = 'feed_floor'")?;
    statement.query_row([], |row| row.get(0))
}

pub(super) fn quarantine(reader: &Connection, session: SessionKey) -> rusqlite::Result<QuarantinePage> {
    let dropped = reader
        .prepare_cached("SELECT records FROM quarantine_dropped WHERE session = ?1")?
        .query_row([session.0], |row| row.get(0))
        .optional()?
        .unwrap_or(0);
    let mut statement = reader.prepare_cached(
        "SELECT n, process, position, at, reason, record FROM quarantine WHERE session = ?1 ORDER BY n",
    )?;
    let collect = Collect { table: "quarantine", key_columns: 1 };
    let list = collect.all(statement.query([session.0])?, |row| {
        Ok(QuarantineRow {
            process: ProcessKey(row.get(1)?),
            position: row.get(2)?,
            at: row.get(3)?,
            reason: row.get(4)?,
            record: bytes(row, 5)?,
        })
    })?;
    Ok(QuarantinePage { rows: list.rows, bad: list.bad, dropped })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn an_items_events_are_found_by_their_range() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        for backwards in [false, true] {
            let plan = schema::plan(&connection, &item_events_sql(backwards));
            assert!(plan.contains("SEARCH events USING PRIMARY KEY (session=?"), "{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
