//! Read-only connections, and lists that survive a bad row.

use std::path::PathBuf;
use std::sync::{Condvar, Mutex, PoisonError};

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};

use super::failure::{is_damage, read_error};
use super::{lock, schema};
use crate::error::ReadError;
use crate::read::BadRow;

/// Connections that read at the same time; further readers wait for one. Reads are short, the machine has few
/// cores, and each connection has a cache of its own.
const MAX_READERS: usize = 4;

#[derive(Debug)]
pub(super) struct ReaderPool {
    path: PathBuf,
    state: Mutex<PoolState>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    idle: Vec<Connection>,
    /// Idle ones and lent ones.
    open: usize,
    closed: bool,
}

impl ReaderPool {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, state: Mutex::default(), returned: Condvar::new() }
    }

    pub(super) fn with<T>(
        &self,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, ReadError> {
        self.with_connection(read)?.map_err(|error| read_error(&error))
    }

    /// Lends a connection; blocks while all are lent.
    pub(super) fn with_connection<T>(&self, read: impl FnOnce(&Connection) -> T) -> Result<T, ReadError> {
        let lent = self.lend()?;
        Ok(read(lent.connection()))
    }

    fn lend(&self) -> Result<Lent<'_>, ReadError> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return Err(ReadError::Closed);
            }
            if let Some(connection) = state.idle.pop() {
                return Ok(Lent { pool: self, connection: Some(connection) });
            }
            if state.open < MAX_READERS {
                state.open += 1;
                drop(state);
                // From here on the place in `open` belongs to `lent`, which gives it back also on failure.
                let mut lent = Lent { pool: self, connection: None };
                lent.connection = Some(self.connect().map_err(|error| read_error(&error))?);
                return Ok(lent);
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        schema::configure_reader(&connection)?;
        Ok(connection)
    }

    /// Closes all connections; waits for those that are lent.
    pub(super) fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.open -= state.idle.len();
        state.idle.clear();
        self.returned.notify_all();
        while state.open > 0 {
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct Lent<'a> {
    pool: &'a ReaderPool,
    connection: Option<Connection>,
}

impl Lent<'_> {
    #[expect(clippy::expect_used, reason = "`lend` gives no `Lent` without a connection")]
    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("a lent connection is there until it is dropped")
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.pool.state);
        match self.connection.take() {
            Some(connection) if !state.closed => state.idle.push(connection),
            closing => {
                drop(closing);
                state.open -= 1;
            }
        }
        drop(state);
        // All, because a `close` may wait beside readers.
        self.pool.returned.notify_all();
    }
}

/// Bad rows that one read names; further ones are counted in the last entry. More help nobody, and a damaged table may
/// have millions.
const MAX_BAD_ROWS: usize = 64;

/// Goes through the rows of a query and keeps the bad ones apart: a value that cannot be read costs its row, damage
/// in the file costs the rest of the list.
pub(super) struct Collect {
    pub(super) table: &'static str,
    /// How many leading columns are the key.
    pub(super) key_columns: usize,
}

/// What to do after a row.
pub(super) enum Next {
    Go,
    Stop,
}

impl Collect {
    /// `read` makes a row; `take` receives it and says whether to go on. Damage before the first row is an error.
    pub(super) fn each<T>(
        &self,
        mut rows: rusqlite::Rows<'_>,
        bad: &mut Vec<BadRow>,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
        mut take: impl FnMut(T) -> Next,
    ) -> rusqlite::Result<()> {
        let mut good_rows = false;
        let mut unnamed = 0_u64;
        let outcome = loop {
            let row = match rows.next() {
                Ok(Some(row)) => row,
                Ok(None) => break Ok(()),
                Err(error) if is_damage(&error) && (good_rows || !bad.is_empty()) => {
                    let key = "all behind the rows given".to_owned();
                    bad.push(BadRow { table: self.table, key, detail: error.to_string() });
                    break Ok(());
                }
                Err(error) => break Err(error),
            };
            match read(row) {
                Ok(value) => {
                    good_rows = true;
                    if matches!(take(value), Next::Stop) {
                        break Ok(());
                    }
                }
                Err(error) if is_damage(&error) && bad.len() < MAX_BAD_ROWS => {
                    bad.push(BadRow { table: self.table, key: self.key(row), detail: error.to_string() });
                }
                Err(error) if is_damage(&error) => unnamed += 1,
                Err(error) => break Err(error),
            }
        };
        if unnamed > 0 {
            let key = format!("{unnamed} further rows");
            bad.push(BadRow { table: self.table, key, detail: "not named one by one".to_owned() });
        }
        outcome
    }

    /// All rows.
    pub(super) fn all<T>(
        &self,
        rows: rusqlite::Rows<'_>,
        read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<crate::Rows<T>> {
        let mut list = crate::Rows::default();
        self.each(rows, &mut list.bad, read, |row| {
            list.rows.push(row);
            Next::Go
        })?;
        Ok(list)
    }

    fn key(&self, row: &Row<'_>) -> String {
        let part = |column| match row.get_ref(column) {
            Ok(ValueRef::Integer(number)) => number.to_string(),
            Ok(ValueRef::Text(text)) => String::from_utf8_lossy(text).into_owned(),
            Ok(other) => format!("{:?}", other.data_type()),
            Err(_) => "?".to_owned(),
        };
        (0..self.key_columns).map(part).collect::<Vec<_>>().join(":")
    }
}

/// A body. Text is taken too: an operator may have edited it by hand.
pub(super) fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    match row.get_ref(column)? {
        ValueRef::Blob(bytes) | ValueRef::Text(bytes) => Ok(bytes.to_vec()),
        other => Err(rusqlite::Error::InvalidColumnType(column, "body".to_owned(), other.data_type())),
    }
}
