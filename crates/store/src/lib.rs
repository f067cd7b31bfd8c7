//! The store: where everything a host has told anybody is on disk.
//!
//! [`Store`] is a narrow trait. Writes arrive as [`LaneWrite`]s, are checked against their fences *inside* the
//! transaction, and are acknowledged only when they are synced. Reads are blocking calls that cost what they
//! return. The store interprets nothing: event, item, snapshot and adapter bodies are opaque bytes, states and
//! kinds are the caller's words.
//!
//! Two implementations stand behind the trait and pass the same [`conformance`] suite: [`SqliteStore`] (one file,
//! WAL, synchronous FULL, group commit) and [`MemoryStore`] (deterministic and synchronous, for the simulator).
//!
//! Invariants that hold for both:
//! * `seq` is dense from 1 in each epoch of a session; a merged row stands for `first_seq..=seq`.
//! * A write whose fence does not match is refused whole and changes nothing.
//! * A refused write harms no other write of its group.
//! * Registered ids are unique for ever; an acknowledged rewind never uses a commit number twice.

pub mod conformance;
mod error;
mod memory;
mod read;
mod sqlite;
mod store;
mod write;

pub use error::{BackupError, Conflict, OpenError, ReadError, RestoreError, WriteError};
pub use memory::MemoryStore;
pub use read::{
    AdapterStateRow, BadRow, Counts, EventPage, EventRow, FeedRow, IdOwner, InputRow, ItemEventPage,
    ItemEventQuery, OperationRow, PageLimit, QuarantinePage, QuarantineRow, Rows, SessionFilter, SessionRow,
    SnapshotRow,
};
pub use sqlite::{
    Inspection, Integrity, MIN_SQLITE_VERSION, Mark, Opened, RESERVE_BYTES, Restored, Rewound,
    SCHEMA_VERSION, SqliteOptions, SqliteStore, WRITER_VERSION, backup_file, inspect_file, reserve_of,
    restore_file, sqlite_version,
};
pub use store::{
    CommitFuture, Committed, Degraded, Fault, MAX_QUEUED_BYTES, MAX_QUEUED_WRITES, STOP_HEADROOM_BYTES,
    STOP_HEADROOM_WRITES, Store, StoreMode, StoreStats,
};
pub use write::{
    FEED_TRIM_BATCH, FeedEntry, FenceCheck, IdRegistration, ItemRow, LaneWrite, NewEvent, NewInput,
    NewOperation, NewSession, OPERATION_KEEP_MS, OPERATION_KEEP_ROWS, OPERATION_PRUNE_BATCH,
    PURGE_EVENT_ROWS, ProcessKey, ProcessRow, ProcessUpdate, QUARANTINE_MAX_BYTES, QUARANTINE_MAX_RECORDS,
    QuarantinedRecord, STAGED_STATUS, SessionKey, SessionUpdate, Urgency, WriteOp,
};
