//! Tables, versions, and what every connection is told first.

use rusqlite::Connection;

use std::time::Duration;

/// "MNST": marks a database as ours.
pub(super) const APPLICATION_ID: i64 = 0x4d4e_5354;
/// Layout of the tables (`user_version`). Additive changes raise it; an older program may still write.
pub const SCHEMA_VERSION: i64 = 2;
/// What this program understands as a writer. A file whose `min_writer` is higher is opened read-only.
pub const WRITER_VERSION: i64 = 1;

/// How long to wait for a lock of another process (an operator's shell, a backup tool).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The WAL file is cut back to this after a checkpoint: a burst does not occupy the disk for ever.
const WAL_KEEP_BYTES: i64 = 16 * 1024 * 1024;
/// Page cache of a reader, in KiB. There are several, and the system caches the file anyway.
const READER_CACHE_KIB: i64 = 256;
/// Page cache of the writer, in KiB: the right edges of the trees that it appends to, not the database. A group that
/// needs more takes more while it lasts.
const WRITER_CACHE_KIB: i64 = 768;
/// More than there are different statements, so that none is ever prepared twice.
const STATEMENT_CACHE: usize = 128;

/// For the only connection that writes. Fails if the file cannot be in WAL mode (some network file systems).
pub(super) fn configure_writer(connection: &Connection) -> rusqlite::Result<()> {
    configure_both(connection)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Err(rusqlite::Error::SqliteFailure(
            rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN),
            Some(format!("the file system does not allow WAL mode (it gave {mode})")),
        ));
    }
    // FULL: in WAL mode, each commit is synced before it returns. The default auto-checkpoint is kept on purpose: a
    // WAL that only grows makes every sync dearer.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Savepoints keep the old pages of a group somewhere; memory is bounded by the size of a group.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.query_row(&format!("PRAGMA journal_size_limit = {WAL_KEEP_BYTES}"), [], |_| Ok(()))
}

pub(super) fn configure_reader(connection: &Connection) -> rusqlite::Result<()> {
    configure_both(connection)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "cache_size", -READER_CACHE_KIB)
}

fn configure_both(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    Ok(())
}

/// Makes the tables of a new database, in one transaction.
pub(super) fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         PRAGMA application_id = {APPLICATION_ID};
         PRAGMA user_version = {SCHEMA_VERSION};
         {TABLES}
         INSERT INTO meta (name, value) VALUES ('commit', 0), ('min_writer', {WRITER_VERSION});
         {ADDITIONS}
         COMMIT;"
    ))
}

/// Brings the tables of an older version up to this one, in one transaction. Additive: the older version can still
/// write to them.
pub(super) fn migrate(connection: &Connection) -> rusqlite::Result<()> {
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version >= SCHEMA_VERSION {
        return Ok(());
    }
    connection.execute_batch(&format!(
        "BEGIN IMMEDIATE;
         PRAGMA user_version = {SCHEMA_VERSION};
         {ADDITIONS}
         COMMIT;"
    ))
}

/// What version 2 has beside [`TABLES`].
const ADDITIONS: &str = "
INSERT OR IGNORE INTO meta (name, value) VALUES ('epoch_floor', 1), ('feed_floor', 0);
CREATE INDEX IF NOT EXISTS sessions_deleted ON sessions (key) WHERE deleted = 1;
";

/// What is written with every batch stands in small rows: `heads` apart from `sessions`, and `launches` apart from
/// both. The journal has no second index: an item's events are found by the range that its row names, and an index
/// would halve the rate of appends.
const TABLES: &str = "
CREATE TABLE meta (
    name TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE sessions (
    key INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    name TEXT,
    cwd TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    status TEXT NOT NULL,
    reason TEXT,
    archived INTEGER NOT NULL,
    deleted INTEGER NOT NULL,
    needs INTEGER NOT NULL,
    process INTEGER
);
CREATE INDEX sessions_by_status ON sessions (status, key);
CREATE INDEX sessions_by_agent ON sessions (agent, key);
CREATE INDEX sessions_by_process ON sessions (process, key) WHERE process IS NOT NULL;
CREATE INDEX sessions_unrested ON sessions (key)
    WHERE (process IS NOT NULL OR (deleted = 0 AND status NOT IN ('idle', 'closed')));

CREATE TABLE heads (
    session INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL,
    head INTEGER NOT NULL,
    fence INTEGER NOT NULL
);

CREATE TABLE launches (
    session INTEGER PRIMARY KEY REFERENCES sessions (key),
    body BLOB NOT NULL
);

CREATE TABLE events (
    session INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    first_seq INTEGER, -- NULL: the row stands for seq alone
    at INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    kind TEXT NOT NULL,
    item INTEGER,
    body BLOB NOT NULL,
    PRIMARY KEY (session, epoch, seq)
) WITHOUT ROWID;

CREATE TABLE items (
    session INTEGER NOT NULL REFERENCES sessions (key),
    ordinal INTEGER NOT NULL,
    id TEXT NOT NULL,
    turn TEXT,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    first_epoch INTEGER NOT NULL,
    first_seq INTEGER NOT NULL,
    last_epoch INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    text_len INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (session, ordinal),
    UNIQUE (session, id)
) WITHOUT ROWID;

CREATE TABLE snapshots (
    session INTEGER PRIMARY KEY REFERENCES sessions (key),
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    version INTEGER NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE threads (
    scope TEXT NOT NULL,
    thread TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES sessions (key),
    PRIMARY KEY (scope, thread)
) WITHOUT ROWID;
CREATE INDEX threads_by_session ON threads (session);

CREATE TABLE processes (
    key INTEGER PRIMARY KEY,
    token TEXT NOT NULL UNIQUE,
    agent TEXT NOT NULL,
    profile BLOB NOT NULL,
    state TEXT NOT NULL,
    fence INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    position INTEGER NOT NULL,
    connection INTEGER NOT NULL,
    last_input INTEGER NOT NULL,
    ended_at INTEGER,
    exit BLOB,
    trimmed INTEGER NOT NULL DEFAULT 0 -- inputs up to here were forgotten
);
CREATE INDEX processes_live ON processes (key) WHERE ended_at IS NULL;

CREATE TABLE adapter_states (
    process INTEGER NOT NULL REFERENCES processes (key),
    scope TEXT NOT NULL,
    version INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (process, scope)
);

CREATE TABLE inputs (
    process INTEGER NOT NULL REFERENCES processes (key),
    n INTEGER NOT NULL,
    connection INTEGER NOT NULL,
    urgent INTEGER NOT NULL,
    payload BLOB NOT NULL,
    PRIMARY KEY (process, n)
);

CREATE TABLE ids (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    session INTEGER NOT NULL REFERENCES sessions (key),
    fingerprint BLOB NOT NULL,
    PRIMARY KEY (kind, id)
) WITHOUT ROWID;

CREATE TABLE operations (
    n INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    fingerprint BLOB NOT NULL,
    at INTEGER NOT NULL,
    status INTEGER NOT NULL,
    response BLOB NOT NULL
);
CREATE INDEX operations_by_time ON operations (at);

CREATE TABLE feed (
    position INTEGER PRIMARY KEY,
    at INTEGER NOT NULL,
    session INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    kind TEXT NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE quarantine (
    n INTEGER PRIMARY KEY,
    session INTEGER NOT NULL REFERENCES sessions (key),
    process INTEGER NOT NULL,
    position INTEGER NOT NULL,
    at INTEGER NOT NULL,
    reason TEXT NOT NULL,
    size INTEGER NOT NULL,
    record BLOB NOT NULL
);
CREATE INDEX quarantine_by_session ON quarantine (session, n, size);

CREATE TABLE quarantine_dropped (
    session INTEGER PRIMARY KEY REFERENCES sessions (key),
    records INTEGER NOT NULL
);
";

/// How SQLite would run a statement.
#[cfg(test)]
pub(super) fn plan(connection: &Connection, sql: &str) -> String {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let parameters = vec![0; statement.parameter_count()];
    let steps =
        statement.query_map(rusqlite::params_from_iter(parameters), |row| row.get::<_, String>(3)).unwrap();
    steps.map(Result::unwrap).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_writer_syncs_every_commit() {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join("test.db")).unwrap();
        configure_writer(&connection).unwrap();
        let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0)).unwrap();
        assert_eq!(number("PRAGMA synchronous"), 2, "FULL");
        assert!(number("PRAGMA wal_autocheckpoint") > 0);
        let mode: String = connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(mode, "wal");
    }
}
