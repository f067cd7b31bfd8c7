//! Opening a database: what may be ours, what is certainly not, and what is left alone.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::apply::Counters;
use super::backup::beside;
use super::failure::is_damage;
use super::high_water::{self, HighWater, Mark, Rewound};
use super::journal_reads::FEED_HEAD;
use super::queue::Queue;
use super::readers::ReaderPool;
use super::reserve::{RESERVE_BYTES, Reserve};
use super::writer::Writer;
use super::{Health, Shared, SqliteStore, schema};
use crate::error::OpenError;
use crate::store::StoreMode;

/// Versions before 3.51.3 can corrupt a database whose WAL is reset at the wrong moment.
pub const MIN_SQLITE_VERSION: i32 = 3_051_003;
/// How often a missing reserve is tried for.
const RESERVE_RETRY: Duration = Duration::from_secs(5);
/// The first bytes of every SQLite file.
const HEADER: &[u8; 16] = b"SQLite format 3\0";

#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// How long writes may gather when only [`crate::Urgency::Stream`] writes wait; zero for not at all.
    pub stream_flush: Duration,
    /// Size of the reserve; 0 for none.
    pub reserve_bytes: u64,
    /// How often a missing reserve is tried for.
    pub reserve_retry: Duration,
    /// Pages that the database may have at most, for tests of a full disk.
    #[doc(hidden)]
    pub max_pages: Option<u32>,
    /// Pages of the WAL after which it is folded into the database, for tests that need that often.
    #[doc(hidden)]
    pub checkpoint_pages: Option<u32>,
}

impl Default for SqliteOptions {
    fn default() -> Self {
        Self {
            stream_flush: Duration::ZERO,
            reserve_bytes: RESERVE_BYTES,
            reserve_retry: RESERVE_RETRY,
            max_pages: None,
            checkpoint_pages: None,
        }
    }
}

/// An open store and what its surroundings say about it.
#[derive(Debug)]
pub struct Opened {
    pub store: SqliteStore,
    /// The high-water mark as found. Only [`Mark::At`] can prove or exclude a rewind.
    pub mark: Mark,
    /// Set when the mark proves that the database lost commits.
    pub rewound: Option<Rewound>,
}

/// What the database says about itself.
pub(super) struct Recorded {
    pub(super) min_writer: i64,
    pub(super) counters: Counters,
    max_session: i64,
    max_process: i64,
}

pub(super) fn open(path: &Path, options: SqliteOptions) -> Result<Opened, OpenError> {
    let found = rusqlite::version_number();
    if found < MIN_SQLITE_VERSION {
        return Err(OpenError::SqliteTooOld { found, needed: MIN_SQLITE_VERSION });
    }
    let existing = look_at_header(path)?;
    let connection = connect(path, existing)?;
    let failed = |source| failure(path, source);
    let recorded = match read_recorded(&connection, path) {
        Ok(Some(recorded)) => recorded,
        Ok(None) => {
            schema::configure_writer(&connection).map_err(failed)?;
            schema::create(&connection).map_err(failed)?;
            read_recorded(&connection, path)?.ok_or_else(|| OpenError::Corrupt {
                path: path.to_owned(),
                detail: "the tables that were just made are not there".to_owned(),
            })?
        }
        Err(error) => {
            // Closing must not fold a foreign or damaged database's WAL into its file.
            let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
            return Err(error);
        }
    };
    let mark_path = beside(path, ".high_water");
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Io { path, source }
    };
    let shared = Arc::new(Shared {
        queue: Queue::new(options.stream_flush),
        commit: AtomicU64::new(recorded.counters.commit),
        epoch_floor: AtomicU64::new(recorded.counters.epoch_floor),
        reserve_missing: AtomicBool::new(false),
        health: Mutex::new(Health::default()),
    });
    let (mode, mark, writer) = if recorded.min_writer > schema::WRITER_VERSION {
        let _ = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true);
        drop(connection);
        let why = format!(
            "the database asks for writer version {} and this program has {}",
            recorded.min_writer,
            schema::WRITER_VERSION
        );
        let mark = high_water::look(&mark_path).map_err(io(&mark_path))?;
        (StoreMode::ReadOnly { why }, mark, None)
    } else {
        schema::configure_writer(&connection).map_err(failed)?;
        schema::migrate(&connection).map_err(failed)?;
        if let Some(pages) = options.max_pages {
            connection
                .query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))
                .map_err(failed)?;
        }
        if let Some(pages) = options.checkpoint_pages {
            connection.pragma_update(None, "wal_autocheckpoint", pages).map_err(failed)?;
        }
        let (high_water, mark) = HighWater::open(&mark_path).map_err(io(&mark_path))?;
        let reserve = Reserve::find(beside(path, ".reserve"), options.reserve_bytes, options.reserve_retry);
        let writer = Writer::new(connection, Arc::clone(&shared), reserve, high_water, recorded.counters);
        let thread = std::thread::Builder::new()
            .name("store-writer".to_owned())
            .spawn(move || writer.run())
            .map_err(|source| OpenError::Thread { source })?;
        (StoreMode::ReadWrite, mark, Some(thread))
    };
    let rewound = match mark {
        Mark::At { commit: mark, feed } if mark > recorded.counters.commit => {
            Some(Rewound { mark, feed, found: recorded.counters.commit })
        }
        Mark::At { .. } | Mark::Absent | Mark::Unreadable => None,
    };
    let store = SqliteStore {
        path: path.to_owned(),
        mode,
        shared,
        readers: ReaderPool::new(path.to_owned()),
        writer: Mutex::new(writer),
        next_session: AtomicI64::new(recorded.max_session + 1),
        next_process: AtomicI64::new(recorded.max_process + 1),
    };
    Ok(Opened { store, mark, rewound })
}

/// Looks whether `path` is a database of ours that can be read, without writing anything.
pub(super) fn check_source(path: &Path) -> Result<(), OpenError> {
    let none =
        || OpenError::Corrupt { path: path.to_owned(), detail: "there is no database in it".to_owned() };
    if !look_at_header(path)? {
        return Err(none());
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(|source| failure(path, source))?;
    read_recorded(&connection, path)?.ok_or_else(none).map(drop)
}

/// True when there is a database; false when there is no file or an empty one. Anything else is refused before
/// SQLite sees it.
pub(super) fn look_at_header(path: &Path) -> Result<bool, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(io(error)),
    };
    let mut header = Vec::with_capacity(HEADER.len());
    file.take(HEADER.len() as u64).read_to_end(&mut header).map_err(io)?;
    if header.is_empty() {
        return Ok(false);
    }
    if header != HEADER {
        return Err(OpenError::Corrupt {
            path: path.to_owned(),
            detail: "it does not begin like a database".to_owned(),
        });
    }
    Ok(true)
}

fn connect(path: &Path, existing: bool) -> Result<Connection, OpenError> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if !existing {
        create_private(path).map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    Connection::open_with_flags(path, flags).map_err(|source| failure(path, source))
}

/// Journals hold what people said to agents: only the owner may read them. SQLite gives its side files the same
/// permissions.
fn create_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    File::options().write(true).create(true).truncate(false).mode(0o600).open(path).map(drop)
}

/// `None`: a database without any table, as a crash during creation leaves it. Writes nothing.
pub(super) fn read_recorded(connection: &Connection, path: &Path) -> Result<Option<Recorded>, OpenError> {
    let number = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, i64>(0));
    let failed = |source| failure(path, source);
    let application_id = number("PRAGMA application_id").map_err(failed)?;
    if application_id != schema::APPLICATION_ID {
        if application_id == 0 && number("SELECT count(*) FROM sqlite_schema").map_err(failed)? == 0 {
            return Ok(None);
        }
        return Err(OpenError::NotOurs { path: path.to_owned(), application_id });
    }
    // A newer `user_version` with a `min_writer` that we satisfy is readable and writable: changes are additive.
    let unsigned = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, u64>(0));
    let read = || -> rusqlite::Result<Recorded> {
        Ok(Recorded {
            min_writer: number("SELECT value FROM meta WHERE name = 'min_writer'")?,
            counters: Counters {
                commit: unsigned("SELECT value FROM meta WHERE name = 'commit'")?,
                feed_head: unsigned(FEED_HEAD)?,
                // Absent in a database of version 1.
                epoch_floor: unsigned(
                    "SELECT coalesce((SELECT value FROM meta WHERE name = 'epoch_floor'), 1)",
                )?,
            },
            max_session: number("SELECT coalesce(max(key), 0) FROM sessions")?,
            max_process: number("SELECT coalesce(max(key), 0) FROM processes")?,
        })
    };
    match read() {
        Ok(recorded) => Ok(Some(recorded)),
        Err(rusqlite::Error::QueryReturnedNoRows) => Err(OpenError::Corrupt {
            path: path.to_owned(),
            detail: "its table of versions lacks a row".to_owned(),
        }),
        Err(source) => Err(failed(source)),
    }
}

pub(super) fn failure(path: &Path, source: rusqlite::Error) -> OpenError {
    let path: PathBuf = path.to_owned();
    if is_damage(&source) {
        return OpenError::Corrupt { path, detail: source.to_string() };
    }
    OpenError::Database { path, source }
}
