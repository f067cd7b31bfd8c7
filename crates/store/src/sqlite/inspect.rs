//! What a database file says about itself, looked at from outside: nothing is made, migrated or written.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::backup::beside;
use super::high_water::{self, Mark};
use super::{open, schema};
use crate::error::OpenError;

/// Steps of SQLite's machine between two looks at the time: some hundred microseconds.
const STEPS_PER_LOOK: i32 = 10_000;

/// What the pages of the file look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Integrity {
    /// Every page was looked at.
    Sound,
    /// The first complaint.
    Damaged { detail: String },
    /// The time was over before every page was looked at, and nothing was wrong until then.
    Unfinished,
}

/// What [`inspect_file`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Layout of the tables.
    pub schema_version: i64,
    /// What the file asks of its writers; this program offers [`super::WRITER_VERSION`].
    pub min_writer: i64,
    /// Transactions committed.
    pub commit: u64,
    /// Size of the file, without its WAL.
    pub bytes: u64,
    /// Size of the WAL; 0 for none.
    pub wal_bytes: u64,
    pub integrity: Integrity,
    /// The high-water mark: one above `commit` proves that transactions are missing.
    pub mark: Mark,
}

/// The version of SQLite that is linked into this program, as text.
#[must_use]
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// Where the reserve of a database stands, and how large a whole one is.
#[must_use]
pub fn reserve_of(path: &Path) -> (PathBuf, u64) {
    (beside(path, ".reserve"), super::RESERVE_BYTES)
}

/// Looks at the database at `path`, also while a host serves it, and at its pages for at most `patience`. `None`: there
/// is no database, or one without tables.
///
/// # Errors
/// See [`OpenError`]; a damaged page is no error but [`Integrity::Damaged`].
pub fn inspect_file(path: &Path, patience: Duration) -> Result<Option<Inspection>, OpenError> {
    if !open::look_at_header(path)? {
        return Ok(None);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |source| open::failure(path, source);
    let mut connection = Connection::open_with_flags(path, flags).map_err(failed)?;
    schema::configure_reader(&connection).map_err(failed)?;
    let Some(recorded) = open::read_recorded(&connection, path)? else { return Ok(None) };
    let schema_version = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed)?;
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
    let mark_path = beside(path, ".high_water");
    // Before the pages are looked at, which takes long: a living host raises the mark meanwhile.
    let mark = high_water::look(&mark_path).map_err(|source| OpenError::Io { path: mark_path, source })?;
    Ok(Some(Inspection {
        schema_version,
        min_writer: recorded.min_writer,
        commit: recorded.counters.commit,
        bytes: size(path),
        wal_bytes: size(&beside(path, "-wal")),
        integrity: check_pages(&mut connection, patience).map_err(failed)?,
        mark,
    }))
}

fn check_pages(connection: &mut Connection, patience: Duration) -> rusqlite::Result<Integrity> {
    let give_up = Instant::now() + patience;
    connection.progress_handler(STEPS_PER_LOOK, Some(move || Instant::now() >= give_up))?;
    let first: rusqlite::Result<String> = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0));
    match first {
        Ok(answer) if answer == "ok" => Ok(Integrity::Sound),
        Ok(detail) => Ok(Integrity::Damaged { detail }),
        Err(rusqlite::Error::SqliteFailure(failure, _))
            if failure.code == ErrorCode::OperationInterrupted =>
        {
            Ok(Integrity::Unfinished)
        }
        Err(rusqlite::Error::SqliteFailure(failure, detail))
            if failure.code == ErrorCode::DatabaseCorrupt =>
        {
            Ok(Integrity::Damaged { detail: detail.unwrap_or_else(|| failure.to_string()) })
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SqliteOptions, SqliteStore};
    use super::*;
    use crate::store::Store;

    fn made(folder: &Path) -> PathBuf {
        let path = folder.join("x.db");
        SqliteStore::open(&path, SqliteOptions::default()).expect("opens").store.close();
        path
    }

    #[test]
    fn a_sound_database_says_what_it_is() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(inspect_file(&folder.path().join("none.db"), Duration::ZERO).expect("looks"), None);
        let path = made(folder.path());
        let found = inspect_file(&path, Duration::from_secs(60)).expect("looks").expect("a database");
        assert_eq!(found.integrity, Integrity::Sound);
        assert_eq!(found.schema_version, super::super::SCHEMA_VERSION);
        assert_eq!(found.min_writer, super::super::WRITER_VERSION);
        assert!(found.bytes > 0, "{found:?}");
    }

    #[test]
    fn a_damaged_page_is_found_and_time_is_bounded() {
        use std::os::unix::fs::FileExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = made(folder.path());
        let file = std::fs::File::options().write(true).open(&path).expect("the file");
        let pages = file.metadata().expect("its size").len() / 4096;
        // Every page but the first, which says what the file is.
        for page in 1..pages {
            file.write_all_at(&[0x55; 64], page * 4096).expect("damages it");
        }
        drop(file);
        match inspect_file(&path, Duration::from_secs(60)) {
            Ok(Some(Inspection { integrity: Integrity::Damaged { detail }, .. })) => {
                assert!(!detail.is_empty());
            }
            // The tables that say the version are damaged too.
            Err(OpenError::Corrupt { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}
