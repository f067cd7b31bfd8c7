//! What can go wrong, one enum per operation.
//!
//! `WriteError` is `Clone` because one failed transaction answers many writers, and because tests and the
//! simulator inject chosen errors; so it carries details as text instead of a source.

use std::path::PathBuf;

use crate::write::{ProcessKey, SessionKey};

/// Why a lane write was not committed. Nothing of it is in the store then, with one exception: an error injected
/// by [`crate::Fault::LoseAcknowledgement`], and a real loss of power around an I/O error, may leave it committed.
/// So after any error except the refusals the caller reads its state again before it goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The session's fence is not the one this write was made under (`found` is absent when there is no such
    /// session). The whole lane write is refused.
    #[error("session {session} is fenced: the write carries {expected}, the record says {found:?}")]
    Fenced { session: SessionKey, expected: u64, found: Option<u64> },
    /// The write contradicts what is recorded.
    #[error("the write contradicts the record")]
    Conflict(#[source] Conflict),
    /// The write names a row that does not exist.
    #[error("no {what} with key {key}")]
    Missing { what: &'static str, key: i64 },
    /// The write contradicts itself, for example with a hole in its own sequence. A defect of the caller.
    #[error("the write is malformed: {detail}")]
    Invalid { detail: String },
    /// One write is bigger than the queue may ever hold.
    #[error("a write of {bytes} bytes is over the limit of {limit}")]
    TooLarge { bytes: usize, limit: usize },
    /// No space left, after the reserve was given up.
    #[error("the disk is full")]
    DiskFull,
    #[error("the store could not write: {detail}")]
    Io { detail: String },
    #[error("the database is damaged: {detail}")]
    Corrupt { detail: String },
    /// The store takes no writes at all (see [`crate::StoreMode`]).
    #[error("the store is read-only: {why}")]
    ReadOnly { why: String },
    /// Another process wrote to the file while this one held it; nothing further may be written through here.
    #[error("another process wrote to the database (commit {found}, this writer was at {expected})")]
    ForeignWriter { expected: u64, found: u64 },
    /// The queue is full. Nothing was recorded; try again after a while.
    #[error("too many writes are waiting")]
    Overloaded,
    #[error("the store is closed")]
    Closed,
}

impl WriteError {
    /// True where the store decided against this write and is itself healthy: trying the same write again gives
    /// the same answer.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Fenced { .. }
                | Self::Conflict(_)
                | Self::Missing { .. }
                | Self::Invalid { .. }
                | Self::TooLarge { .. }
        )
    }

    /// The session because of which the write was refused, where that can be said.
    #[must_use]
    pub const fn session(&self) -> Option<SessionKey> {
        match self {
            Self::Fenced { session, .. } => Some(*session),
            Self::Conflict(conflict) => conflict.session(),
            _ => None,
        }
    }
}

/// What a write contradicts. Each variant carries what the caller needs next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Conflict {
    #[error("session id {id} is taken by session {owner}")]
    SessionId { id: String, owner: SessionKey },
    #[error("session key {key} is taken")]
    SessionKey { key: SessionKey },
    #[error("the journal of session {session} stands at {epoch}:{head}")]
    Head { session: SessionKey, epoch: u64, head: u64 },
    #[error("session {session} holds fence {found}; a fence never goes back")]
    FenceBack { session: SessionKey, found: u64 },
    #[error("item id {id} of session {session} belongs to ordinal {ordinal}")]
    ItemId { session: SessionKey, id: String, ordinal: i64 },
    #[error("thread {thread} is claimed by session {owner}")]
    Thread { thread: String, owner: SessionKey },
    #[error("{kind} id {id} is registered to session {owner} or to another content")]
    Id { kind: String, id: String, owner: SessionKey },
    #[error("operation {key} is recorded")]
    Operation { key: String },
    /// `key` is the process that has the key or else the token.
    #[error("key or token of process {key} is taken")]
    Process { key: ProcessKey },
    #[error("input {n} of process {process} is recorded or was trimmed")]
    Input { process: ProcessKey, n: u64 },
    #[error("session {session} is not being imported")]
    NotStaged { session: SessionKey },
    /// A rule of the schema that no typed check foresaw.
    #[error("a constraint of the database: {detail}")]
    Constraint { detail: String },
}

impl Conflict {
    /// The session whose own write it was, where that can be said: owners of what is taken are others.
    #[must_use]
    pub const fn session(&self) -> Option<SessionKey> {
        match self {
            Self::Head { session, .. } | Self::FenceBack { session, .. } | Self::ItemId { session, .. } => {
                Some(*session)
            }
            _ => None,
        }
    }
}

impl From<Conflict> for WriteError {
    fn from(conflict: Conflict) -> Self {
        Self::Conflict(conflict)
    }
}

/// Why a read gave nothing. A single unreadable row in a list is not an error: see [`crate::Rows::bad`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("the database is damaged: {detail}")]
    Corrupt { detail: String },
    #[error("the store could not read: {detail}")]
    Io { detail: String },
    #[error("the store is closed")]
    Closed,
}

/// Why a database was not opened. The file is untouched in every case except `Schema` and `Io`.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is no database, or is damaged where it would have to be read to open it.
    #[error("{} is damaged or no database: {detail}", path.display())]
    Corrupt { path: PathBuf, detail: String },
    /// A database, but another program's.
    #[error("{} belongs to another program (application id {application_id})", path.display())]
    NotOurs { path: PathBuf, application_id: i64 },
    /// The linked SQLite has known bugs that lose data.
    #[error("SQLite {found} is too old; {needed} or later is needed")]
    SqliteTooOld { found: i32, needed: i32 },
    #[error("cannot read or write {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot set up the database {}", path.display())]
    Database {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot start the writer thread")]
    Thread {
        #[source]
        source: std::io::Error,
    },
}

/// Why a copy was not put in the database's place. The database is as it was, unless the error says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// What was given is no whole database of ours.
    #[error("{} is not a backup that can be restored", path.display())]
    NotABackup {
        path: PathBuf,
        #[source]
        source: Box<OpenError>,
    },
    /// It is one, and damaged.
    #[error("{} is damaged: {detail}", path.display())]
    Damaged { path: PathBuf, detail: String },
    /// It was written by a newer version, which this program can only read.
    #[error("{} cannot be served by this version: {why}", path.display())]
    Newer { path: PathBuf, why: String },
    #[error("cannot copy {}", path.display())]
    Copy {
        path: PathBuf,
        #[source]
        source: Box<BackupError>,
    },
    #[error("cannot read or write {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Why a backup was not made. The unfinished copy is removed.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The target exists; a backup overwrites nothing.
    #[error("{} exists", path.display())]
    Exists { path: PathBuf },
    #[error("the store is closed")]
    Closed,
    /// There is no database to copy, or it cannot be read.
    #[error("cannot read the database {}", path.display())]
    Source {
        path: PathBuf,
        #[source]
        source: Box<OpenError>,
    },
    #[error("cannot write the backup {}", path.display())]
    Database {
        path: PathBuf,
        #[source]
        source: rusqlite::Error,
    },
    #[error("cannot sync the backup {}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}
