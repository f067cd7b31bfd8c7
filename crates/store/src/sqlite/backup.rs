//! Backup through SQLite's online backup API. Copying the files is not a backup: the WAL belongs to them.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use super::{SqliteStore, open, schema};
use crate::error::{BackupError, ReadError};

/// All pages in one step. A step holds one read view, so writers go on and never make the copy start again, which
/// they would between two steps.
const ALL_PAGES: i32 = -1;

pub(super) fn backup(store: &SqliteStore, target: &Path) -> Result<(), BackupError> {
    if target.symlink_metadata().is_ok() {
        return Err(BackupError::Exists { path: target.to_owned() });
    }
    let unfinished = beside(target, ".unfinished");
    let copied = copy_of_store(store, &unfinished).and_then(|()| publish(&unfinished, target));
    // Gone under both names or published under the right one: either way this name is no longer needed.
    let _ = fs::remove_file(&unfinished);
    copied
}

/// Copies the database at `source`, as it is at one moment, to `target`, also while a host serves it. Nothing is written
/// to it. The copy appears under its name only when it is complete and synced.
///
/// # Errors
/// See [`BackupError`]; `target` must not exist.
pub fn backup_file(source: &Path, target: &Path) -> Result<(), BackupError> {
    if target.symlink_metadata().is_ok() {
        return Err(BackupError::Exists { path: target.to_owned() });
    }
    open::check_source(source)
        .map_err(|error| BackupError::Source { path: source.to_owned(), source: Box::new(error) })?;
    let unfinished = beside(target, ".unfinished");
    let copied = copy_of_file(source, &unfinished).and_then(|()| publish(&unfinished, target));
    let _ = fs::remove_file(&unfinished);
    copied
}

fn copy_of_file(source: &Path, unfinished: &Path) -> Result<(), BackupError> {
    let database = |source| BackupError::Database { path: unfinished.to_owned(), source };
    make_room(unfinished)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let source = Connection::open_with_flags(source, flags).map_err(database)?;
    schema::configure_reader(&source).map_err(database)?;
    copy(&source, unfinished).map_err(database)?;
    sync(unfinished)
}

fn copy_of_store(store: &SqliteStore, unfinished: &Path) -> Result<(), BackupError> {
    let database = |source| BackupError::Database { path: unfinished.to_owned(), source };
    make_room(unfinished)?;
    match store.readers.with_connection(|source| copy(source, unfinished)) {
        Ok(done) => done.map_err(database)?,
        Err(ReadError::Closed) => return Err(BackupError::Closed),
        Err(ReadError::Corrupt { detail } | ReadError::Io { detail }) => {
            let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
            return Err(database(rusqlite::Error::SqliteFailure(failure, Some(detail))));
        }
    }
    sync(unfinished)
}

fn sync(unfinished: &Path) -> Result<(), BackupError> {
    let io = |source| BackupError::Io { path: unfinished.to_owned(), source };
    File::open(unfinished).and_then(|file| file.sync_all()).map_err(io)
}

/// Makes the file of the copy, for its owner only: it holds what people said to agents.
fn make_room(unfinished: &Path) -> Result<(), BackupError> {
    // What an interrupted backup left.
    match fs::remove_file(unfinished) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(BackupError::Io { path: unfinished.to_owned(), source });
        }
    }
    File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(unfinished)
        .map(drop)
        .map_err(|source| BackupError::Io { path: unfinished.to_owned(), source })
}

fn copy(source: &Connection, unfinished: &Path) -> rusqlite::Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut target = Connection::open_with_flags(unfinished, flags)?;
    let step = Backup::new(source, &mut target)?.step(ALL_PAGES)?;
    if step != StepResult::Done {
        let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
        return Err(rusqlite::Error::SqliteFailure(busy, Some("the database is locked".to_owned())));
    }
    // One file that needs no other beside it, also on a medium that cannot be written. Opening a store changes it back.
    target.query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))?;
    target.close().map_err(|(_, error)| error)
}

/// Gives the copy its name, unless somebody took the name meanwhile.
fn publish(unfinished: &Path, target: &Path) -> Result<(), BackupError> {
    fs::hard_link(unfinished, target).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => BackupError::Exists { path: target.to_owned() },
        _ => BackupError::Io { path: target.to_owned(), source },
    })?;
    sync_folder(target).map_err(|source| BackupError::Io { path: target.to_owned(), source })
}

/// Makes what happened to names beside `path` outlive a loss of power.
pub(super) fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)?.sync_all()
}

/// `path` with something added to its file name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
