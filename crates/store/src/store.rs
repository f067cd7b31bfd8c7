//! The trait every store implements, and what describes a store's health.

use std::fmt::Debug;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::error::{ReadError, WriteError};
use crate::read::{
    AdapterStateRow, Counts, EventPage, FeedRow, IdOwner, InputRow, ItemEventPage, ItemEventQuery,
    OperationRow, PageLimit, QuarantinePage, Rows, SessionFilter, SessionRow, SnapshotRow,
};
use crate::write::{ItemRow, LaneWrite, ProcessKey, ProcessRow, SessionKey};

/// Writes that may wait. A lane has one in flight and there are tens of lanes, so this is reached only when the
/// disk stalls; then writers are told [`WriteError::Overloaded`].
pub const MAX_QUEUED_WRITES: usize = 4_096;
/// Bytes that may wait, beside the count: the host's memory under a stalled disk stays bounded.
pub const MAX_QUEUED_BYTES: usize = 64 * 1024 * 1024;
/// Further writes that only [`crate::Urgency::Stop`] may queue: a stop is accepted when nothing else is.
pub const STOP_HEADROOM_WRITES: usize = 512;
/// Further bytes for the same reason.
pub const STOP_HEADROOM_BYTES: usize = 4 * 1024 * 1024;

/// The write is on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Number of the transaction: grows by one with each, in the whole store. Writes of one group share it.
    pub commit: u64,
    /// Newest position of the host feed after the *whole* transaction.
    pub feed_head: u64,
}

/// Whether the store takes writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreMode {
    ReadWrite,
    /// For example a file that a newer version wrote and that asks for a newer writer.
    ReadOnly {
        why: String,
    },
}

/// What keeps a store from being entirely well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Degraded {
    /// The last transaction failed and none has succeeded since.
    Failing(WriteError),
    /// Writes succeed, and the reserve for the next full disk is not there.
    NoReserve,
    ReadOnly {
        why: String,
    },
}

/// Counters since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Transactions committed.
    pub transactions: u64,
    /// Lane writes acknowledged as committed.
    pub committed_writes: u64,
    /// Lane writes refused because of a fence.
    pub fenced: u64,
    /// Lane writes refused for another reason than a fence.
    pub refused: u64,
    /// Lane writes that failed (disk, damage).
    pub failed: u64,
    /// Lane writes not taken because the queue was full.
    pub overloaded: u64,
    /// Groups that were undone and tried again one by one.
    pub groups_undone: u64,
    /// Times the reserve was given up.
    pub reserves_spent: u64,
    /// Times the high-water mark could not be written.
    pub mark_failures: u64,
    /// Lane writes waiting now.
    pub queued_writes: usize,
    /// Bytes waiting now.
    pub queued_bytes: usize,
}

/// A failure for the next transaction, for tests and the simulator. Each is used once, in the order of injection.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The transaction is undone and every write in it fails with this.
    FailCommit(WriteError),
    /// The transaction is undone as if the database had ended it: a group is tried again one by one, a write that
    /// stood alone fails with this.
    EndTransaction(WriteError),
    /// The transaction is committed, and its writers are told an I/O error.
    LoseAcknowledgement,
}

/// The answer to [`Store::commit`].
#[derive(Debug)]
#[must_use = "the write is submitted, and without this nobody learns what became of it"]
pub struct CommitFuture(oneshot::Receiver<Result<Committed, WriteError>>);

impl Future for CommitFuture {
    type Output = Result<Committed, WriteError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A sender that went away without an answer belongs to a writer that ended.
        Pin::new(&mut self.0).poll(context).map(|answer| answer.unwrap_or(Err(WriteError::Closed)))
    }
}

/// A durable store of sessions, journals and what belongs to them.
///
/// Reads block (they are short, and they read committed state only): async callers run them on a blocking pool.
/// A read that starts after a write was acknowledged sees that write.
pub trait Store: Send + Sync + Debug {
    /// Queues a write and returns at once, without any I/O. The receiver gives the outcome; dropping it does not
    /// withdraw the write.
    fn submit(&self, write: LaneWrite) -> oneshot::Receiver<Result<Committed, WriteError>>;

    /// [`Store::submit`] as a future. The write is submitted by the call, not by the first poll.
    fn commit(&self, write: LaneWrite) -> CommitFuture {
        CommitFuture(self.submit(write))
    }

    /// [`Store::submit`], and waits. Never call it on an async runtime's thread: it panics there.
    fn commit_blocking(&self, write: LaneWrite) -> Result<Committed, WriteError> {
        self.submit(write).blocking_recv().unwrap_or(Err(WriteError::Closed))
    }

    /// A key that no session has or had.
    fn allocate_session_key(&self) -> SessionKey;
    /// A key that no process has or had.
    fn allocate_process_key(&self) -> ProcessKey;

    /// The number of the newest committed transaction; 0 for none.
    fn commit_number(&self) -> u64;
    /// Every session whose epoch is lower has to begin a new one, this or a greater one, before anything is added to its
    /// journal: the database was rewound, and readers may have seen what is gone. 1 where that never happened. A new
    /// session has to begin such an epoch too, since its id may have been another session's that is gone.
    fn epoch_floor(&self) -> u64;
    fn mode(&self) -> StoreMode;
    /// What is wrong now, the gravest first; `None` when all is well.
    fn degraded(&self) -> Option<Degraded>;
    fn stats(&self) -> StoreStats;

    fn session(&self, key: SessionKey) -> Result<Option<SessionRow>, ReadError>;
    fn session_by_id(&self, id: &str) -> Result<Option<SessionRow>, ReadError>;
    /// Newest first; `after` is the key of the last row of the page before.
    fn sessions(
        &self,
        filter: &SessionFilter,
        after: Option<SessionKey>,
        limit: usize,
    ) -> Result<Rows<SessionRow>, ReadError>;
    /// Sessions that a starting host has to look at: not deleted, and with a process or with a status other than
    /// `idle` and `closed`. Oldest first.
    fn unrested_sessions(&self) -> Result<Rows<SessionRow>, ReadError>;
    /// Deleted sessions without a process whose journal still holds something, oldest first.
    fn unpurged_sessions(&self, limit: usize) -> Result<Vec<SessionKey>, ReadError>;
    fn snapshot(&self, session: SessionKey) -> Result<Option<SnapshotRow>, ReadError>;

    /// The journal of one epoch from the first row whose `seq` is greater than `after_seq` (its `first_seq` need not
    /// be).
    fn events(
        &self,
        session: SessionKey,
        epoch: u64,
        after_seq: u64,
        limit: PageLimit,
    ) -> Result<EventPage, ReadError>;
    /// Whether the journal of a session holds anything, in any epoch.
    fn has_events(&self, session: SessionKey) -> Result<bool, ReadError>;
    /// The lowest epoch above `after` in which the journal holds anything.
    fn next_epoch(&self, session: SessionKey, after: u64) -> Result<Option<u64>, ReadError>;
    fn events_of_item(&self, query: ItemEventQuery) -> Result<ItemEventPage, ReadError>;

    /// Items with an ordinal below `before`, newest first.
    fn items(
        &self,
        session: SessionKey,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Rows<ItemRow>, ReadError>;
    fn item(&self, session: SessionKey, id: &str) -> Result<Option<ItemRow>, ReadError>;
    fn max_item_ordinal(&self, session: SessionKey) -> Result<Option<i64>, ReadError>;

    fn process(&self, key: ProcessKey) -> Result<Option<ProcessRow>, ReadError>;
    /// Oldest first. `live_only`: those without an end.
    fn processes(&self, live_only: bool) -> Result<Rows<ProcessRow>, ReadError>;
    fn adapter_states(&self, process: ProcessKey) -> Result<Rows<AdapterStateRow>, ReadError>;
    /// Outbox rows with a number above `after_n`, ascending.
    fn inputs(&self, process: ProcessKey, after_n: u64) -> Result<Rows<InputRow>, ReadError>;

    fn operation(&self, key: &str) -> Result<Option<OperationRow>, ReadError>;
    fn id_owner(&self, kind: &str, id: &str) -> Result<Option<IdOwner>, ReadError>;
    fn thread_owner(&self, scope: &str, thread: &str) -> Result<Option<SessionKey>, ReadError>;

    /// Feed entries behind position `after` and behind the floor, ascending.
    fn feed(&self, after: u64, limit: usize) -> Result<Rows<FeedRow>, ReadError>;
    fn feed_head(&self) -> Result<u64, ReadError>;
    /// Entries up to this position are gone: a reader whose position is lower has missed some of them.
    fn feed_floor(&self) -> Result<u64, ReadError>;
    fn quarantine(&self, session: SessionKey) -> Result<QuarantinePage, ReadError>;
    fn counts(&self) -> Result<Counts, ReadError>;
    /// Sessions on record, deleted ones too: without a look at every journal.
    fn session_count(&self) -> Result<u64, ReadError> {
        Ok(self.counts()?.sessions)
    }

    /// Takes no further writes, commits those that wait, and ends. Blocks until that is done; calling it again
    /// does nothing.
    fn close(&self);

    #[doc(hidden)]
    fn inject(&self, fault: Fault);
}
