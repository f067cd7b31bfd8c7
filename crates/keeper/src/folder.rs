//! One folder per keeper: what stands in it, and the rules for making, listing and removing it.
//!
//! A folder appears under its final name with its lock already held (it is filled under a hidden name and
//! renamed), so whoever finds a folder with a free lock knows: no keeper, and none to come.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Names of what stands in a keeper folder.
pub mod names {
    pub const LOCK: &str = "lock";
    pub const MANIFEST: &str = "manifest.json";
    /// The agent's own identity, written by `keeper-exec` before it becomes the agent.
    pub const AGENT: &str = "agent.json";
    /// Why `keeper-exec` could not become the agent; with this file no instruction of the agent ever ran.
    pub const SPAWN_FAILED: &str = "spawn-failed.json";
    pub const SPOOL: &str = "spool";
    pub const INBOX: &str = "inbox";
    pub const EXIT: &str = "exit.json";
    pub const STDERR: &str = "stderr.log";
    pub const STDERR_OLD: &str = "stderr.1.log";
    pub const KEEPER_LOG: &str = "keeper.log";
    pub const SOCKET: &str = "keeper.sock";
    pub const THREADS: &str = "threads";
}

/// Longest token: it is a file name, and short enough for every log line.
pub const TOKEN_LIMIT: usize = 128;
/// Longest thread id that can be bound; longer ones are refused.
pub const THREAD_ID_LIMIT: usize = 1024;
/// A small JSON file larger than this is not one of ours and is refused as corrupt.
const SMALL_FILE_LIMIT: u64 = 1 << 20;
/// A looker holds the lock, shared, for microseconds. Removal waits this long for it before it says "busy".
const LOOKER_PATIENCE: Duration = Duration::from_millis(200);

// Names that no token can have, so folders in the making or in deletion are never listed.
const HALF_MADE: &str = ".new-";
const HALF_DELETED: &str = ".gone-";

/// The folder of all keepers of one home.
#[derive(Clone, Debug)]
pub struct KeepersDir {
    path: PathBuf,
}

/// The folder of one keeper. A value of this type says nothing about what exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeeperFolder {
    pub path: PathBuf,
    pub token: String,
}

/// A folder whose lock this process holds, before any keeper was started. Dropping it frees the lock, which
/// leaves a folder that probes as unused.
#[derive(Debug)]
pub struct ReservedFolder {
    pub(crate) folder: KeeperFolder,
    pub(crate) lock: File,
}

impl ReservedFolder {
    pub fn folder(&self) -> &KeeperFolder {
        &self.folder
    }
}

#[derive(Debug, Error)]
pub enum FolderError {
    #[error("the token is empty, too long or holds other than letters, digits, '-', '_' and '.'")]
    BadToken,
    #[error("a keeper folder with this token exists already")]
    Exists,
    #[error("the keeper's lock is held")]
    Busy,
    #[error("could not {doing}")]
    Io { doing: &'static str, source: io::Error },
    #[error("{name} is not what this version writes")]
    Malformed { name: &'static str, source: serde_json::Error },
    #[error("{name} is longer than any such file may be")]
    TooLong { name: &'static str },
    #[error("a thread id must be one line of at most {THREAD_ID_LIMIT} bytes")]
    BadThreadId,
}

pub(crate) fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> FolderError {
    move |source| FolderError::Io { doing, source }
}

impl KeepersDir {
    /// `path` is `HOME/keepers`. Nothing is made before the first reservation.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn folder(&self, token: &str) -> KeeperFolder {
        KeeperFolder { path: self.path.join(token), token: token.to_owned() }
    }

    /// Every keeper folder, by name. A folder of keepers that does not exist has none. Entries that are not
    /// folders or have names that no token can have are not ours and are left out.
    pub fn list(&self) -> Result<Vec<KeeperFolder>, FolderError> {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("list the keepers")(error)),
        };
        let mut folders = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed("list the keepers"))?;
            let Ok(token) = entry.file_name().into_string() else {
                continue;
            };
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            if is_folder && is_valid_token(&token) {
                folders.push(KeeperFolder { path: entry.path(), token });
            }
        }
        folders.sort_by(|left, right| left.token.cmp(&right.token));
        Ok(folders)
    }

    /// Deletes what crashed hosts left half made or half deleted; none of it was ever, or is any more, a keeper's
    /// folder. To be called by the one host of this home before it reserves anything.
    pub fn remove_leftovers(&self) -> Result<(), FolderError> {
        let entries = match std::fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(failed("list the keepers")(error)),
        };
        for entry in entries {
            let entry = entry.map_err(failed("list the keepers"))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(HALF_MADE) || name.starts_with(HALF_DELETED) {
                std::fs::remove_dir_all(entry.path()).map_err(failed("delete a leftover"))?;
            }
        }
        Ok(())
    }

    /// Makes the folder of a new keeper, its lock held by this process from the first moment it is visible.
    pub fn reserve(&self, token: &str) -> Result<ReservedFolder, FolderError> {
        if !is_valid_token(token) {
            return Err(FolderError::BadToken);
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.path)
            .map_err(failed("make the folder of keepers"))?;
        let folder = self.folder(token);
        if folder.path.symlink_metadata().is_ok() {
            return Err(FolderError::Exists);
        }
        // A leading dot is no token, so an unfinished folder of a crashed host is never listed.
        let hidden = self.path.join(format!("{HALF_MADE}{}-{token}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&hidden).map_err(failed("make the keeper's folder"))?;
        let made = fill_reserved(&hidden, &folder.path);
        if made.is_err() {
            // Best effort: a hidden leftover is invisible to every reader.
            let _ = std::fs::remove_dir_all(&hidden);
        }
        made.map(|lock| ReservedFolder { folder, lock })
    }
}

fn fill_reserved(hidden: &Path, target: &Path) -> Result<File, FolderError> {
    DirBuilder::new()
        .mode(0o700)
        .create(hidden.join(names::SPOOL))
        .map_err(failed("make the spool's folder"))?;
    let lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(hidden.join(names::LOCK))
        .map_err(failed("make the keeper's lock"))?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => FolderError::Busy,
        TryLockError::Error(source) => FolderError::Io { doing: "lock the keeper's lock", source },
    })?;
    // A rename onto an existing folder succeeds when that is empty; a keeper's folder never is.
    std::fs::rename(hidden, target).map_err(|source| match source.kind() {
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => FolderError::Exists,
        _ => FolderError::Io { doing: "name the keeper's folder", source },
    })?;
    Ok(lock)
}

fn is_valid_token(token: &str) -> bool {
    !token.is_empty()
        && token.len() <= TOKEN_LIMIT
        && !token.starts_with('.')
        && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// What looking at a folder's lock showed.
#[derive(Debug)]
pub(crate) enum LockSight {
    /// Somebody holds it: a keeper lives, or is being born.
    Held,
    /// Nobody holds it, nor ever will: folders are born locked.
    Free,
    /// There is no such folder or no lock in it. This proves nothing.
    Missing {
        what: &'static str,
    },
    Unclear {
        why: String,
    },
}

impl KeeperFolder {
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    pub fn spool_path(&self) -> PathBuf {
        self.at(names::SPOOL)
    }

    /// Looks at the lock without creating anything. A shared try-lock on a descriptor of its own is given back
    /// at once; it cannot disturb a newborn, which is visible only with its lock already held.
    pub(crate) fn look_at_lock(&self) -> LockSight {
        let path = self.at(names::LOCK);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let what = if self.path.is_dir() { "lock" } else { "folder" };
                return LockSight::Missing { what };
            }
            Err(error) => {
                return LockSight::Unclear { why: format!("lock: {error}") };
            }
        };
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => LockSight::Held,
            Err(TryLockError::Error(error)) => LockSight::Unclear { why: format!("lock: {error}") },
            Ok(()) if is_still_at(&file, &path) => LockSight::Free,
            Ok(()) => LockSight::Unclear { why: "the lock file was exchanged meanwhile".to_owned() },
        }
    }

    /// Deletes the folder with everything in it. Refused with [`FolderError::Busy`] while the lock is held.
    /// Removing what does not exist is done already.
    pub fn remove(&self) -> Result<(), FolderError> {
        let path = self.at(names::LOCK);
        let lock = match File::open(&path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.path.exists() => return Ok(()),
            Err(error) => return Err(failed("open the keeper's lock")(error)),
        };
        let patience_ends = Instant::now() + LOOKER_PATIENCE;
        // Shared: a living keeper holds it alone and refuses this; and to a process that is just becoming an agent it
        // must not look as if its keeper lived. Of two removers the rename below lets one win.
        while let Err(error) = lock.try_lock_shared() {
            match error {
                TryLockError::WouldBlock if Instant::now() < patience_ends => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                TryLockError::WouldBlock => return Err(FolderError::Busy),
                TryLockError::Error(source) => {
                    return Err(FolderError::Io { doing: "lock the keeper's lock", source });
                }
            }
        }
        if !is_still_at(&lock, &path) {
            return Err(FolderError::Busy);
        }
        // Out of sight first: a half-deleted folder must not look like one whose agent never ran.
        let parent = self.path.parent().unwrap_or(Path::new("."));
        let doomed = parent.join(format!("{HALF_DELETED}{}-{}", std::process::id(), self.token));
        std::fs::rename(&self.path, &doomed).map_err(failed("set the keeper's folder aside"))?;
        std::fs::remove_dir_all(&doomed).map_err(failed("delete the keeper's folder"))
    }

    /// Binds a provider thread id to this keeper, for readers that work without a database.
    pub fn append_thread(&self, thread: &str) -> Result<(), FolderError> {
        if thread.is_empty() || thread.len() > THREAD_ID_LIMIT || thread.contains(['\n', '\0']) {
            return Err(FolderError::BadThreadId);
        }
        let mut file = OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(self.at(names::THREADS))
            .map_err(failed("open the list of threads"))?;
        // One write of one whole line: another appender cannot come between.
        file.write_all(format!("{thread}\n").as_bytes()).map_err(failed("append a thread"))
    }

    /// The bound thread ids in the order they were first bound. A torn last line is not one.
    pub fn threads(&self) -> Result<Vec<String>, FolderError> {
        let text = match std::fs::read(self.at(names::THREADS)) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed("read the list of threads")(error)),
        };
        let mut threads: Vec<String> = Vec::new();
        for line in text.split_inclusive('\n') {
            if let Some(thread) = line.strip_suffix('\n')
                && !threads.iter().any(|known| known == thread)
            {
                threads.push(thread.to_owned());
            }
        }
        Ok(threads)
    }

    /// Reads one of the folder's small JSON files; `None` when it is not there.
    pub(crate) fn read_json<T: DeserializeOwned>(
        &self,
        name: &'static str,
    ) -> Result<Option<T>, FolderError> {
        let path = self.at(name);
        let bytes = match std::fs::metadata(&path) {
            Ok(meta) if meta.len() > SMALL_FILE_LIMIT => return Err(FolderError::TooLong { name }),
            Ok(_) => std::fs::read(&path),
            Err(error) => Err(error),
        };
        match bytes {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map(Some)
                .map_err(|source| FolderError::Malformed { name, source }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed("read a keeper's file")(error)),
        }
    }

    /// Writes a small JSON file in one step: readers see the old one, none, or the whole new one, also after a
    /// loss of power.
    pub(crate) fn write_json<T: Serialize>(&self, name: &'static str, value: &T) -> Result<(), FolderError> {
        let bytes = serde_json::to_vec(value).map_err(|source| FolderError::Malformed { name, source })?;
        let temporary = self.at(&format!(".{name}.{}", std::process::id()));
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| {
                file.write_all(&bytes)?;
                file.sync_all()
            })
            .and_then(|()| std::fs::rename(&temporary, self.at(name)))
            .and_then(|()| File::open(&self.path)?.sync_all());
        if written.is_err() {
            // The error that matters is the first one.
            let _ = std::fs::remove_file(&temporary);
        }
        written.map_err(failed("write a keeper's file"))
    }
}

fn is_still_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), std::fs::symlink_metadata(path)) {
        (Ok(held), Ok(named)) => (held.dev(), held.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

/// Opens a folder so that sockets in it can be reached by `/proc/self/fd/N/NAME`, which fits into a socket
/// address however long the folder's own path is.
pub(crate) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keepers() -> (tempfile::TempDir, KeepersDir) {
        let home = tempfile::tempdir().expect("temp folder");
        let keepers = KeepersDir::new(home.path().join("keepers"));
        (home, keepers)
    }

    #[test]
    fn a_reserved_folder_is_private_listed_and_locked() {
        let (_home, keepers) = keepers();
        assert!(keepers.list().expect("list").is_empty());
        let reserved = keepers.reserve("one").expect("reserve");
        let folder = reserved.folder().clone();
        assert_eq!(std::fs::metadata(&folder.path).expect("meta").mode() & 0o777, 0o700);
        assert_eq!(keepers.list().expect("list"), vec![folder.clone()]);
        assert!(matches!(folder.look_at_lock(), LockSight::Held));
        assert!(matches!(folder.remove(), Err(FolderError::Busy)));
        assert!(matches!(keepers.reserve("one"), Err(FolderError::Exists)));
        drop(reserved);
        assert!(matches!(folder.look_at_lock(), LockSight::Free));
        folder.remove().expect("remove");
        assert!(matches!(folder.look_at_lock(), LockSight::Missing { what: "folder" }));
        folder.remove().expect("removing twice is done already");
        assert_eq!(std::fs::read_dir(keepers.path()).expect("dir").count(), 0, "nothing hidden is left");
    }

    #[test]
    fn leftovers_are_not_listed_and_can_be_removed() {
        let (_home, keepers) = keepers();
        keepers.remove_leftovers().expect("nothing there yet");
        let reserved = keepers.reserve("real").expect("reserve");
        for name in [".new-1-x", ".gone-1-y"] {
            std::fs::create_dir_all(keepers.path().join(name).join("spool")).expect("mkdir");
        }
        assert_eq!(keepers.list().expect("list"), vec![reserved.folder().clone()]);
        keepers.remove_leftovers().expect("remove");
        assert_eq!(std::fs::read_dir(keepers.path()).expect("dir").count(), 1);
    }

    #[test]
    fn looking_creates_no_lock() {
        let (_home, keepers) = keepers();
        let folder = keepers.folder("bare");
        std::fs::create_dir_all(&folder.path).expect("mkdir");
        assert!(matches!(folder.look_at_lock(), LockSight::Missing { what: "lock" }));
        assert!(!folder.at(names::LOCK).exists());
    }

    #[test]
    fn tokens_cannot_leave_the_folder() {
        let (_home, keepers) = keepers();
        for token in ["", ".hidden", "../up", "a/b", "white space", &"x".repeat(TOKEN_LIMIT + 1)] {
            assert!(matches!(keepers.reserve(token), Err(FolderError::BadToken)), "{token:?}");
        }
    }

    #[test]
    fn threads_keep_order_once_each_and_drop_a_torn_line() {
        let (_home, keepers) = keepers();
        let reserved = keepers.reserve("t").expect("reserve");
        let folder = reserved.folder();
        for thread in ["b", "a", "b"] {
            folder.append_thread(thread).expect("append");
        }
        assert!(matches!(folder.append_thread("two\nlines"), Err(FolderError::BadThreadId)));
        let mut file = OpenOptions::new().append(true).open(folder.at(names::THREADS)).expect("open");
        file.write_all(b"torn").expect("write");
        assert_eq!(folder.threads().expect("threads"), ["b", "a"]);
    }
}
