//! Backup through SQLite's online backup API. Copying the files is not a backup: the WAL belongs to them.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};

use super::SqliteStore;
use crate::error::{BackupError, ReadError};

/// All pages in one step. A step holds one read view, so writers go on and never make the copy start again, which
/// they would between two steps.
const ALL_PAGES: i32 = -1;

pub(super) fn backup(store: &SqliteStore, target: &Path) -> Result<(), BackupError> {
    if target.symlink_metadata().is_ok() {
        return Err(BackupError::Exists { path: target.to_owned() });
    }
    let unfinished = beside(target, ".unfinished");
    let copied = copy(store, &unfinished).and_then(|()| publish(&unfinished, target));
    // Gone under both names or published under the right one: either way this name is no longer needed.
    let _ = fs::remove_file(&unfinished);
    copied
}

fn copy(store: &SqliteStore, unfinished: &Path) -> Result<(), BackupError> {
    let database = |source| BackupError::Database { path: unfinished.to_owned(), source };
    // What an interrupted backup left.
    match fs::remove_file(unfinished) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => {
            return Err(BackupError::Io { path: unfinished.to_owned(), source });
        }
    }
    let copied = store.readers.with_connection(|source| -> rusqlite::Result<()> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut target = Connection::open_with_flags(unfinished, flags)?;
        let step = Backup::new(source, &mut target)?.step(ALL_PAGES)?;
        if step != StepResult::Done {
            let busy = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
            return Err(rusqlite::Error::SqliteFailure(busy, Some("the database is locked".to_owned())));
        }
        target.close().map_err(|(_, error)| error)
    });
    match copied {
        Ok(done) => done.map_err(database)?,
        Err(ReadError::Closed) => return Err(BackupError::Closed),
        Err(ReadError::Corrupt { detail } | ReadError::Io { detail }) => {
            let failure = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CANTOPEN);
            return Err(database(rusqlite::Error::SqliteFailure(failure, Some(detail))));
        }
    }
    let io = |source| BackupError::Io { path: unfinished.to_owned(), source };
    File::open(unfinished).and_then(|file| file.sync_all()).map_err(io)
}

/// Gives the copy its name, unless somebody took the name meanwhile.
fn publish(unfinished: &Path, target: &Path) -> Result<(), BackupError> {
    fs::hard_link(unfinished, target).map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => BackupError::Exists { path: target.to_owned() },
        _ => BackupError::Io { path: target.to_owned(), source },
    })?;
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(|source| BackupError::Io { path: target.to_owned(), source })
}

/// `path` with something added to its file name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
