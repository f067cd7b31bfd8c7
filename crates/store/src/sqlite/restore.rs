//! Putting a backup in the database's place.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

use super::backup::{backup_file, beside, sync_folder};
use super::high_water::{self, HighWater, Mark};
use super::{SqliteOptions, SqliteStore};
use crate::error::RestoreError;
use crate::store::{Store, StoreMode};

/// What a restoration did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The number of the newest transaction in the backup.
    pub commit: u64,
    /// The number of the newest transaction that was ever acknowledged here; not lower than `commit`.
    pub acknowledged: u64,
    /// Where the database stands that was there before. Absent where there was none.
    pub replaced: Option<PathBuf>,
}

/// Puts a copy of `backup` in the place of `database`, which nobody may have open. The old one is kept under another name.
/// Killed at any point this leaves the old or the new one, whole.
///
/// The next opening reports [`super::Rewound`], also where the lost mark could not tell: readers may have seen anything.
///
/// # Errors
/// See [`RestoreError`].
pub fn restore_file(backup: &Path, database: &Path) -> Result<Restored, RestoreError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| RestoreError::Io { path, source }
    };
    let new = beside(database, ".restoring");
    remove_with_side_files(&new).map_err(io(&new))?;
    let prepared = prepare(backup, &new);
    let commit = match prepared {
        Ok(commit) => commit,
        Err(error) => {
            // What is left of it is of no use; the first error is the one to tell.
            let _ = remove_with_side_files(&new);
            return Err(error);
        }
    };
    let mark_path = beside(database, ".high_water");
    let acknowledged = raise_mark(&mark_path, commit).map_err(io(&mark_path))?;
    let replaced = set_aside(database).map_err(io(database))?;
    fs::rename(&new, database).map_err(io(database))?;
    sync_folder(database).map_err(io(database))?;
    Ok(Restored { commit, acknowledged, replaced })
}

/// Makes a checked copy without side files; gives its commit number.
fn prepare(backup: &Path, new: &Path) -> Result<u64, RestoreError> {
    // Through SQLite, so that a backup that somebody opened since (and that has a WAL now) is copied whole.
    backup_file(backup, new).map_err(|source| match source {
        crate::BackupError::Source { path, source } => RestoreError::NotABackup { path, source },
        source => RestoreError::Copy { path: backup.to_owned(), source: Box::new(source) },
    })?;
    let not_ours = |source| RestoreError::NotABackup { path: backup.to_owned(), source: Box::new(source) };
    if let Some(detail) = damage(new).map_err(|source| not_ours(super::open::failure(new, source)))? {
        return Err(RestoreError::Damaged { path: backup.to_owned(), detail });
    }
    let opened = SqliteStore::open(new, SqliteOptions { reserve_bytes: 0, ..SqliteOptions::default() })
        .map_err(not_ours)?;
    if let StoreMode::ReadOnly { why } = opened.store.mode() {
        return Err(RestoreError::Newer { path: backup.to_owned(), why });
    }
    let commit = opened.store.commit_number();
    // Folds the WAL into the file and removes it.
    drop(opened);
    let io = |source| RestoreError::Io { path: new.to_owned(), source };
    for side in [".high_water", ".reserve"] {
        remove(&beside(new, side)).map_err(io)?;
    }
    File::open(new).and_then(|file| file.sync_all()).map_err(io)?;
    Ok(commit)
}

/// What SQLite finds wrong with the file.
fn damage(path: &Path) -> rusqlite::Result<Option<String>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    let said: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    Ok((said != "ok").then_some(said))
}

/// Sees to it that the next opening finds a rewind; gives what was acknowledged at most.
fn raise_mark(path: &Path, commit: u64) -> io::Result<u64> {
    let (mut mark, found) = HighWater::open(path)?;
    let (acknowledged, feed) = match found {
        Mark::At { commit: marked, feed } => (marked.max(commit), feed),
        Mark::Absent | Mark::Unreadable => (commit, 0),
    };
    mark.raise(acknowledged.max(commit + 1), feed)?;
    // Before the database is exchanged: without it a rewind would not show.
    mark.sync()?;
    sync_folder(path)?;
    debug_assert!(matches!(high_water::look(path), Ok(Mark::At { commit: marked, .. }) if marked > commit));
    Ok(acknowledged)
}

/// Gives the old database another name, with its WAL where there is one. Until the new one takes its place it stands under
/// both names, so that there is one at any time.
fn set_aside(database: &Path) -> io::Result<Option<PathBuf>> {
    match fs::symlink_metadata(database) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // A WAL without its database belongs to nothing, and must not be applied to the new one.
            remove_side_files(database)?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    // Opening and closing folds the WAL into the file. Where that fails the WAL goes with it.
    drop(SqliteStore::open(database, SqliteOptions { reserve_bytes: 0, ..SqliteOptions::default() }));
    let aside = free_name(database)?;
    fs::hard_link(database, &aside)?;
    for side in ["-wal", "-shm"] {
        match fs::rename(beside(database, side), beside(&aside, side)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(aside))
}

fn free_name(database: &Path) -> io::Result<PathBuf> {
    for number in 1..=MAX_REPLACED {
        let name = beside(database, &format!(".replaced-{number}"));
        if fs::symlink_metadata(&name).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Ok(name);
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        format!("{MAX_REPLACED} databases that were replaced are kept already; move some away"),
    ))
}

/// Databases kept that a restoration replaced. Each is whole and may be large; further ones are refused until somebody
/// has looked at them.
const MAX_REPLACED: u32 = 100;

fn remove_with_side_files(database: &Path) -> io::Result<()> {
    remove(database)?;
    for side in [".high_water", ".reserve"] {
        remove(&beside(database, side))?;
    }
    remove_side_files(database)
}

fn remove_side_files(database: &Path) -> io::Result<()> {
    remove(&beside(database, "-wal"))?;
    remove(&beside(database, "-shm"))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
