//! What is done to journals and feed as a whole: imports that nobody sees before they are complete, rewinds, retention.

use rusqlite::{Connection, OptionalExtension, params};

use super::apply::{Applied, Counters, missing_session};
use super::failure::ApplyError;
use crate::error::Conflict;
use crate::write::{FEED_TRIM_BATCH, STAGED_STATUS, SessionKey};

/// Takes a session that was just made out of everybody's sight.
pub(super) fn stage(connection: &Connection, session: SessionKey) -> Applied {
    connection
        .prepare_cached("UPDATE sessions SET deleted = 1, status = ?2 WHERE key = ?1")?
        .execute(params![session.0, STAGED_STATUS])?;
    Ok(())
}

/// What a published session is called.
pub(super) struct Published<'a> {
    pub(super) at: i64,
    pub(super) name: &'a Option<String>,
    pub(super) cwd: &'a str,
    pub(super) archived: bool,
    pub(super) fence: u64,
    pub(super) launch: &'a [u8],
}

pub(super) fn publish(connection: &Connection, session: SessionKey, as_what: &Published<'_>) -> Applied {
    match staged(connection, session)? {
        None => return Err(missing_session(session)),
        Some(false) => return Err(Conflict::NotStaged { session }.into()),
        Some(true) => {}
    }
    connection
        .prepare_cached(
            "UPDATE sessions
             SET deleted = 0, status = 'idle', updated_at = ?2, name = ?3, cwd = ?4, archived = ?5
             WHERE key = ?1",
        )?
        .execute(params![session.0, as_what.at, as_what.name, as_what.cwd, as_what.archived])?;
    connection
        .prepare_cached("UPDATE heads SET fence = ?2 WHERE session = ?1")?
        .execute(params![session.0, as_what.fence])?;
    connection
        .prepare_cached("UPDATE launches SET body = ?2 WHERE session = ?1")?
        .execute(params![session.0, as_what.launch])?;
    Ok(())
}

/// Whether there is a session to be dropped.
pub(super) fn check_droppable(connection: &Connection, session: SessionKey) -> Result<bool, ApplyError> {
    match staged(connection, session)? {
        None => Ok(false),
        Some(true) => Ok(true),
        Some(false) => Err(Conflict::NotStaged { session }.into()),
    }
}

/// Removes the last of a staged session, where its journal is empty.
pub(super) fn drop_emptied(connection: &Connection, session: SessionKey) -> Applied {
    if connection.prepare_cached("SELECT 1 FROM events WHERE session = ?1 LIMIT 1")?.exists([session.0])? {
        return Ok(());
    }
    // Its ids are registered by the transaction that publishes it, so it has none.
    for sql in [
        "DELETE FROM launches WHERE session = ?1",
        "DELETE FROM heads WHERE session = ?1",
        "DELETE FROM sessions WHERE key = ?1",
    ] {
        connection.prepare_cached(sql)?.execute([session.0])?;
    }
    Ok(())
}

/// `None`: there is no such session.
fn staged(connection: &Connection, session: SessionKey) -> rusqlite::Result<Option<bool>> {
    connection
        .prepare_cached("SELECT deleted = 1 AND status = ?2 FROM sessions WHERE key = ?1")?
        .query_row(params![session.0, STAGED_STATUS], |row| row.get(0))
        .optional()
}

pub(super) fn trim_feed(connection: &Connection, up_to: u64) -> Applied {
    let oldest: Option<u64> =
        connection.prepare_cached("SELECT min(position) FROM feed")?.query_row([], |row| row.get(0))?;
    let last = oldest.map_or(up_to, |oldest| up_to.min(oldest.saturating_add(FEED_TRIM_BATCH - 1)));
    connection.prepare_cached("DELETE FROM feed WHERE position <= ?1")?.execute([last])?;
    raise(connection, "feed_floor", last)
}

pub(super) fn acknowledge_rewind(
    connection: &Connection,
    counters: &mut Counters,
    mark: u64,
    feed: u64,
) -> Applied {
    counters.commit = counters.commit.max(mark);
    let highest: u64 = connection
        .prepare_cached("SELECT coalesce(max(epoch), 0) FROM heads")?
        .query_row([], |row| row.get(0))?;
    // Commit numbers grow through all rewinds, so a second rewind to the same backup gives another floor.
    counters.epoch_floor = (counters.commit + 1).max(highest + 1).max(counters.epoch_floor + 1);
    counters.feed_head = counters.feed_head.max(feed) + 1;
    connection.prepare_cached("DELETE FROM feed")?.execute([])?;
    raise(connection, "epoch_floor", counters.epoch_floor)?;
    raise(connection, "feed_floor", counters.feed_head)
}

fn raise(connection: &Connection, name: &str, value: u64) -> Applied {
    connection
        .prepare_cached("UPDATE meta SET value = max(value, ?2) WHERE name = ?1")?
        .execute(params![name, value])?;
    Ok(())
}
