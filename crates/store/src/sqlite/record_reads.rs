//! Reads of records: sessions, processes and what belongs to them.

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};

use super::readers::{Collect, bytes};
use crate::read::{
    AdapterStateRow, Counts, IdOwner, InputRow, OperationRow, Rows, SessionFilter, SessionRow,
};
use crate::write::{ProcessKey, ProcessRow, SessionKey};

/// Every select of a whole session begins with this. The joins are outer ones so that a session that lost its head
/// is a bad row and not an absent one.
const SESSION: &str = "
    SELECT key, id, agent, name, cwd, created_at, updated_at, status, reason, archived, deleted, needs, process,
           epoch, head, fence, launches.body
    FROM sessions
    LEFT JOIN heads ON heads.session = key
    LEFT JOIN launches ON launches.session = key";
const SESSIONS: Collect = Collect { table: "sessions", key_columns: 2 };

fn read_session(row: &Row<'_>) -> rusqlite::Result<SessionRow> {
    Ok(SessionRow {
        key: SessionKey(row.get(0)?),
        id: row.get(1)?,
        agent: row.get(2)?,
        name: row.get(3)?,
        cwd: row.get(4)?,
        created_at: row.get(5)?,
        updated_at: row.get(6)?,
        status: row.get(7)?,
        reason: row.get(8)?,
        archived: row.get(9)?,
        deleted: row.get(10)?,
        needs: row.get(11)?,
        process: row.get::<_, Option<i64>>(12)?.map(ProcessKey),
        epoch: row.get(13)?,
        head: row.get(14)?,
        fence: row.get(15)?,
        launch: bytes(row, 16)?,
    })
}

pub(super) fn session(reader: &Connection, key: SessionKey) -> rusqlite::Result<Option<SessionRow>> {
    let mut statement = reader.prepare_cached(&format!("{SESSION} WHERE key = ?1"))?;
    statement.query_row([key.0], read_session).optional()
}

pub(super) fn session_by_id(reader: &Connection, id: &str) -> rusqlite::Result<Option<SessionRow>> {
    let mut statement = reader.prepare_cached(&format!("{SESSION} WHERE id = ?1"))?;
    statement.query_row([id], read_session).optional()
}

pub(super) fn sessions(
    reader: &Connection,
    filter: &SessionFilter,
    after: Option<SessionKey>,
    limit: usize,
) -> rusqlite::Result<Rows<SessionRow>> {
    let SessionFilter { status, agent, archived, process, include_deleted } = filter;
    let mut conditions = Vec::new();
    let mut values = Vec::new();
    let mut with = |condition, value| {
        conditions.push(condition);
        values.push(value);
    };
    if let Some(after) = after {
        with("key < ?", Value::from(after.0));
    }
    if let Some(status) = status {
        with("status = ?", Value::from(status.clone()));
    }
    if let Some(agent) = agent {
        with("agent = ?", Value::from(agent.clone()));
    }
    if let Some(archived) = archived {
        with("archived = ?", Value::from(i64::from(*archived)));
    }
    if let Some(process) = process {
        with("process = ?", Value::from(process.0));
    }
    if !include_deleted {
        conditions.push("deleted = 0");
    }
    let condition =
        if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
    values.push(row_limit(limit));
    // A page of which every row is bad still moves on: the caller sees the keys of the bad rows.
    let mut statement = reader.prepare_cached(&format!("{SESSION}{condition} ORDER BY key DESC LIMIT ?"))?;
    SESSIONS.all(statement.query(params_from_iter(values))?, read_session)
}

/// The condition is that of the partial index `sessions_unrested`, word for word.
const UNRESTED: &str =
    "WHERE (process IS NOT NULL OR (deleted = 0 AND status NOT IN ('idle', 'closed'))) ORDER BY key";

pub(super) fn unrested_sessions(reader: &Connection) -> rusqlite::Result<Rows<SessionRow>> {
    let mut statement = reader.prepare_cached(&format!("{SESSION} {UNRESTED}"))?;
    SESSIONS.all(statement.query([])?, read_session)
}

const PROCESS: &str =
    "SELECT key, token, agent, profile, state, fence, created_at, position, connection, last_input,
    ended_at, exit FROM processes";

fn read_process(row: &Row<'_>) -> rusqlite::Result<ProcessRow> {
    Ok(ProcessRow {
        key: ProcessKey(row.get(0)?),
        token: row.get(1)?,
        agent: row.get(2)?,
        profile: bytes(row, 3)?,
        state: row.get(4)?,
        fence: row.get(5)?,
        created_at: row.get(6)?,
        position: row.get(7)?,
        connection: row.get(8)?,
        last_input: row.get(9)?,
        ended_at: row.get(10)?,
        exit: row.get(11)?,
    })
}

pub(super) fn unpurged_sessions(reader: &Connection, limit: usize) -> rusqlite::Result<Vec<SessionKey>> {
    let mut statement = reader.prepare_cached(UNPURGED)?;
    statement.query_map([row_limit(limit)], |row| row.get(0).map(SessionKey))?.collect()
}

/// What is being imported is deleted too, and not to be purged.
const UNPURGED: &str = "SELECT key FROM sessions
    WHERE deleted = 1 AND process IS NULL AND status <> 'importing'
        AND EXISTS (SELECT 1 FROM events WHERE session = key)
    ORDER BY key LIMIT ?1";

pub(super) fn process(reader: &Connection, key: ProcessKey) -> rusqlite::Result<Option<ProcessRow>> {
    let mut statement = reader.prepare_cached(&format!("{PROCESS} WHERE key = ?1"))?;
    statement.query_row([key.0], read_process).optional()
}

pub(super) fn processes(reader: &Connection, live_only: bool) -> rusqlite::Result<Rows<ProcessRow>> {
    let condition = if live_only { " WHERE ended_at IS NULL" } else { "" };
    let mut statement = reader.prepare_cached(&format!("{PROCESS}{condition} ORDER BY key"))?;
    Collect { table: "processes", key_columns: 2 }.all(statement.query([])?, read_process)
}

pub(super) fn adapter_states(
    reader: &Connection,
    process: ProcessKey,
) -> rusqlite::Result<Rows<AdapterStateRow>> {
    let mut statement = reader.prepare_cached(
        "SELECT scope, version, body FROM adapter_states WHERE process = ?1 ORDER BY scope",
    )?;
    Collect { table: "adapter_states", key_columns: 1 }.all(statement.query([process.0])?, |row| {
        Ok(AdapterStateRow { scope: row.get(0)?, version: row.get(1)?, body: bytes(row, 2)? })
    })
}

pub(super) fn inputs(
    reader: &Connection,
    process: ProcessKey,
    after_n: u64,
) -> rusqlite::Result<Rows<InputRow>> {
    let mut statement = reader.prepare_cached(
        "SELECT process, n, connection, urgent, payload FROM inputs WHERE process = ?1 AND n > ?2 ORDER BY n",
    )?;
    Collect { table: "inputs", key_columns: 2 }.all(statement.query(params![process.0, after_n])?, |row| {
        Ok(InputRow {
            process: ProcessKey(row.get(0)?),
            n: row.get(1)?,
            connection: row.get(2)?,
            urgent: row.get(3)?,
            payload: bytes(row, 4)?,
        })
    })
}

pub(super) fn operation(reader: &Connection, key: &str) -> rusqlite::Result<Option<OperationRow>> {
    let mut statement = reader
        .prepare_cached("SELECT key, fingerprint, at, status, response FROM operations WHERE key = ?1")?;
    let read = |row: &Row<'_>| {
        Ok(OperationRow {
            key: row.get(0)?,
            fingerprint: bytes(row, 1)?,
            at: row.get(2)?,
            status: row.get(3)?,
            response: bytes(row, 4)?,
        })
    };
    statement.query_row([key], read).optional()
}

pub(super) fn id_owner(reader: &Connection, kind: &str, id: &str) -> rusqlite::Result<Option<IdOwner>> {
    let mut statement =
        reader.prepare_cached("SELECT session, fingerprint FROM ids WHERE kind = ?1 AND id = ?2")?;
    let read = |row: &Row<'_>| Ok(IdOwner { session: SessionKey(row.get(0)?), fingerprint: bytes(row, 1)? });
    statement.query_row([kind, id], read).optional()
}

pub(super) fn thread_owner(
    reader: &Connection,
    scope: &str,
    thread: &str,
) -> rusqlite::Result<Option<SessionKey>> {
    let mut statement =
        reader.prepare_cached("SELECT session FROM threads WHERE scope = ?1 AND thread = ?2")?;
    statement.query_row([scope, thread], |row| row.get(0).map(SessionKey)).optional()
}

pub(super) fn session_count(reader: &Connection) -> rusqlite::Result<u64> {
    reader.prepare_cached("SELECT count(*) FROM sessions")?.query_row([], |row| row.get(0))
}

pub(super) fn counts(reader: &Connection) -> rusqlite::Result<Counts> {
    let count = |table: &str| {
        reader.prepare_cached(&format!("SELECT count(*) FROM {table}"))?.query_row([], |row| row.get(0))
    };
    Ok(Counts {
        sessions: count("sessions")?,
        events: count("events")?,
        items: count("items")?,
        processes: count("processes")?,
        inputs: count("inputs")?,
        operations: count("operations")?,
        ids: count("ids")?,
        feed: count("feed")?,
        quarantined: count("quarantine")?,
    })
}

/// A limit as SQLite takes it.
pub(super) fn row_limit(limit: usize) -> Value {
    Value::from(i64::try_from(limit).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn a_start_looks_only_at_unrested_sessions() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        let plan = schema::plan(&connection, &format!("{SESSION} {UNRESTED}"));
        assert!(plan.contains("USING INDEX sessions_unrested"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }

    #[test]
    fn a_purge_looks_only_at_deleted_sessions() {
        let connection = Connection::open_in_memory().unwrap();
        schema::create(&connection).unwrap();
        let plan = schema::plan(&connection, UNPURGED);
        assert!(plan.contains("USING INDEX sessions_deleted"), "{plan}");
        assert!(plan.contains("USING PRIMARY KEY (session=?)"), "{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{plan}");
    }
}
