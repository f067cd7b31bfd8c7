//! The embedded store: one SQLite file in WAL mode with synchronous FULL.
//!
//! One writer thread owns the only connection that writes and turns whatever waits into one transaction (group
//! commit). Readers have connections of their own. Beside the database `x.db` stand `x.db-wal` and `x.db-shm`
//! (SQLite's own), `x.db.high_water` (see [`Mark`]) and `x.db.reserve` (space that is given up when the disk is
//! full).

mod apply;
mod backup;
mod failure;
mod high_water;
mod history;
mod inspect;
mod journal_reads;
#[cfg(test)]
mod many_sessions;
mod open;
mod queue;
mod readers;
mod record_reads;
mod reserve;
mod restore;
mod schema;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use crate::error::{BackupError, OpenError, ReadError, WriteError};
use crate::read::{
    AdapterStateRow, Counts, EventPage, FeedRow, IdOwner, InputRow, ItemEventPage, ItemEventQuery,
    OperationRow, PageLimit, QuarantinePage, Rows, SessionFilter, SessionRow, SnapshotRow,
};
use crate::store::{Committed, Degraded, Fault, Store, StoreMode, StoreStats};
use crate::write::{ItemRow, LaneWrite, ProcessKey, ProcessRow, SessionKey};

pub use backup::backup_file;
pub use high_water::{Mark, Rewound};
pub use inspect::{Inspection, Integrity, inspect_file, reserve_of, sqlite_version};
pub use open::{MIN_SQLITE_VERSION, Opened, SqliteOptions};
pub use reserve::RESERVE_BYTES;
pub use restore::{Restored, restore_file};
pub use schema::{SCHEMA_VERSION, WRITER_VERSION};

use queue::Queue;
use readers::ReaderPool;

/// A [`Store`] in one SQLite file. Dropping it closes it as [`Store::close`] does.
pub struct SqliteStore {
    path: PathBuf,
    mode: StoreMode,
    shared: Arc<Shared>,
    readers: ReaderPool,
    writer: Mutex<Option<JoinHandle<()>>>,
    next_session: AtomicI64,
    next_process: AtomicI64,
}

/// What the writer thread and the callers both see.
struct Shared {
    queue: Queue,
    /// Newest committed transaction.
    commit: AtomicU64,
    /// See [`Store::epoch_floor`].
    epoch_floor: AtomicU64,
    /// A try to have the reserve failed, or it was given up and is not back.
    reserve_missing: AtomicBool,
    health: Mutex<Health>,
}

#[derive(Default)]
struct Health {
    stats: StoreStats,
    /// Why the last transaction failed, until one succeeds.
    failing: Option<WriteError>,
    faults: std::collections::VecDeque<Fault>,
}

impl Shared {
    fn health(&self) -> MutexGuard<'_, Health> {
        lock(&self.health)
    }
}

/// The data behind these locks is valid after every single statement, so a panic elsewhere does not taint it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SqliteStore {
    /// Opens the database at `path`, or creates it there; its folder must exist. Only one process may write to it,
    /// which the caller has to see to (the host's lock does).
    ///
    /// # Errors
    /// See [`OpenError`]. A file that asks for a newer writer is no error: the store is read-only then.
    pub fn open(path: impl AsRef<Path>, options: SqliteOptions) -> Result<Opened, OpenError> {
        open::open(path.as_ref(), options)
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Copies the whole database, as it is at one moment, to `target`. Writers go on meanwhile. The copy appears
    /// under its name only when it is complete and synced.
    ///
    /// [`restore_file`] puts a copy back.
    ///
    /// # Errors
    /// See [`BackupError`]; `target` must not exist.
    pub fn backup_to(&self, target: impl AsRef<Path>) -> Result<(), BackupError> {
        backup::backup(self, target.as_ref())
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .field("mode", &self.mode)
            .field("commit", &self.shared.commit.load(Ordering::Acquire))
            .finish_non_exhaustive()
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for SqliteStore {
    fn submit(&self, write: LaneWrite) -> oneshot::Receiver<Result<Committed, WriteError>> {
        if let StoreMode::ReadOnly { why } = &self.mode {
            let (answer, receiver) = oneshot::channel();
            // The receiver is in our hands, so it cannot be gone.
            let _ = answer.send(Err(WriteError::ReadOnly { why: why.clone() }));
            return receiver;
        }
        let (receiver, taken) = self.shared.queue.push(write);
        if !taken {
            self.shared.health().stats.overloaded += 1;
        }
        receiver
    }

    fn allocate_session_key(&self) -> SessionKey {
        SessionKey(self.next_session.fetch_add(1, Ordering::Relaxed))
    }

    fn allocate_process_key(&self) -> ProcessKey {
        ProcessKey(self.next_process.fetch_add(1, Ordering::Relaxed))
    }

    fn commit_number(&self) -> u64 {
        self.shared.commit.load(Ordering::Acquire)
    }

    fn epoch_floor(&self) -> u64 {
        self.shared.epoch_floor.load(Ordering::Acquire)
    }

    fn mode(&self) -> StoreMode {
        self.mode.clone()
    }

    fn degraded(&self) -> Option<Degraded> {
        if let StoreMode::ReadOnly { why } = &self.mode {
            return Some(Degraded::ReadOnly { why: why.clone() });
        }
        if let Some(error) = &self.shared.health().failing {
            return Some(Degraded::Failing(error.clone()));
        }
        self.shared.reserve_missing.load(Ordering::Acquire).then_some(Degraded::NoReserve)
    }

    fn stats(&self) -> StoreStats {
        let mut stats = self.shared.health().stats;
        (stats.queued_writes, stats.queued_bytes) = self.shared.queue.waiting();
        stats
    }

    fn session(&self, key: SessionKey) -> Result<Option<SessionRow>, ReadError> {
        self.readers.with(|reader| record_reads::session(reader, key))
    }

    fn session_by_id(&self, id: &str) -> Result<Option<SessionRow>, ReadError> {
        self.readers.with(|reader| record_reads::session_by_id(reader, id))
    }

    fn sessions(
        &self,
        filter: &SessionFilter,
        after: Option<SessionKey>,
        limit: usize,
    ) -> Result<Rows<SessionRow>, ReadError> {
        self.readers.with(|reader| record_reads::sessions(reader, filter, after, limit))
    }

    fn unrested_sessions(&self) -> Result<Rows<SessionRow>, ReadError> {
        self.readers.with(record_reads::unrested_sessions)
    }

    fn unpurged_sessions(&self, limit: usize) -> Result<Vec<SessionKey>, ReadError> {
        self.readers.with(|reader| record_reads::unpurged_sessions(reader, limit))
    }

    fn snapshot(&self, session: SessionKey) -> Result<Option<SnapshotRow>, ReadError> {
        self.readers.with(|reader| journal_reads::snapshot(reader, session))
    }

    fn events(
        &self,
        session: SessionKey,
        epoch: u64,
        after_seq: u64,
        limit: PageLimit,
    ) -> Result<EventPage, ReadError> {
        self.readers.with(|reader| journal_reads::events(reader, session, epoch, after_seq, limit))
    }

    fn has_events(&self, session: SessionKey) -> Result<bool, ReadError> {
        self.readers.with(|reader| journal_reads::has_events(reader, session))
    }

    fn next_epoch(&self, session: SessionKey, after: u64) -> Result<Option<u64>, ReadError> {
        self.readers.with(|reader| journal_reads::next_epoch(reader, session, after))
    }

    fn events_of_item(&self, query: ItemEventQuery) -> Result<ItemEventPage, ReadError> {
        self.readers.with(|reader| journal_reads::events_of_item(reader, query))
    }

    fn items(
        &self,
        session: SessionKey,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Rows<ItemRow>, ReadError> {
        self.readers.with(|reader| journal_reads::items(reader, session, before, limit))
    }

    fn item(&self, session: SessionKey, id: &str) -> Result<Option<ItemRow>, ReadError> {
        self.readers.with(|reader| journal_reads::item(reader, session, id))
    }

    fn max_item_ordinal(&self, session: SessionKey) -> Result<Option<i64>, ReadError> {
        self.readers.with(|reader| journal_reads::max_item_ordinal(reader, session))
    }

    fn process(&self, key: ProcessKey) -> Result<Option<ProcessRow>, ReadError> {
        self.readers.with(|reader| record_reads::process(reader, key))
    }

    fn processes(&self, live_only: bool) -> Result<Rows<ProcessRow>, ReadError> {
        self.readers.with(|reader| record_reads::processes(reader, live_only))
    }

    fn adapter_states(&self, process: ProcessKey) -> Result<Rows<AdapterStateRow>, ReadError> {
        self.readers.with(|reader| record_reads::adapter_states(reader, process))
    }

    fn inputs(&self, process: ProcessKey, after_n: u64) -> Result<Rows<InputRow>, ReadError> {
        self.readers.with(|reader| record_reads::inputs(reader, process, after_n))
    }

    fn operation(&self, key: &str) -> Result<Option<OperationRow>, ReadError> {
        self.readers.with(|reader| record_reads::operation(reader, key))
    }

    fn id_owner(&self, kind: &str, id: &str) -> Result<Option<IdOwner>, ReadError> {
        self.readers.with(|reader| record_reads::id_owner(reader, kind, id))
    }

    fn thread_owner(&self, scope: &str, thread: &str) -> Result<Option<SessionKey>, ReadError> {
        self.readers.with(|reader| record_reads::thread_owner(reader, scope, thread))
    }

    fn feed(&self, after: u64, limit: usize) -> Result<Rows<FeedRow>, ReadError> {
        self.readers.with(|reader| journal_reads::feed(reader, after, limit))
    }

    fn feed_head(&self) -> Result<u64, ReadError> {
        self.readers.with(journal_reads::feed_head)
    }

    fn feed_floor(&self) -> Result<u64, ReadError> {
        self.readers.with(journal_reads::feed_floor)
    }

    fn quarantine(&self, session: SessionKey) -> Result<QuarantinePage, ReadError> {
        self.readers.with(|reader| journal_reads::quarantine(reader, session))
    }

    fn counts(&self) -> Result<Counts, ReadError> {
        self.readers.with(record_reads::counts)
    }

    fn session_count(&self) -> Result<u64, ReadError> {
        self.readers.with(record_reads::session_count)
    }

    fn close(&self) {
        // Readers go first: the last connection folds the WAL into the file when it closes, and a read-only one
        // cannot.
        self.readers.close();
        self.shared.queue.close();
        let writer = lock(&self.writer).take();
        if let Some(writer) = writer
            && writer.join().is_err()
        {
            tracing::error!(path = %self.path.display(), "the store's writer thread had panicked");
        }
    }

    fn inject(&self, fault: Fault) {
        self.shared.health().faults.push_back(fault);
    }
}
