//! What reads give back. Lists carry the rows that could not be read beside the good ones, because one bad row
//! must not hide the others.

use crate::write::{ProcessKey, SessionKey};

/// A list with its unreadable rows named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows<T> {
    pub rows: Vec<T>,
    pub bad: Vec<BadRow>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), bad: Vec::new() }
    }
}

/// A row that exists and cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    pub table: &'static str,
    /// The row's key as far as it can be told, else where in the list it stood.
    pub key: String,
    pub detail: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    pub key: SessionKey,
    pub id: String,
    pub agent: String,
    pub name: Option<String>,
    pub cwd: String,
    pub created_at: i64,
    pub updated_at: i64,
    pub status: String,
    pub reason: Option<String>,
    pub archived: bool,
    pub deleted: bool,
    pub needs: bool,
    pub process: Option<ProcessKey>,
    pub epoch: u64,
    /// The newest `seq` of the epoch; 0 when it has no event yet.
    pub head: u64,
    pub fence: u64,
    pub launch: Vec<u8>,
}

/// Which sessions to list; `None` means any.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    pub status: Option<String>,
    pub agent: Option<String>,
    pub archived: Option<bool>,
    pub process: Option<ProcessKey>,
    pub include_deleted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotRow {
    pub epoch: u64,
    pub seq: u64,
    pub version: u32,
    pub body: Vec<u8>,
}

/// How much a page may hold. A page always holds at least one row when there is one, whatever its size.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit {
    pub rows: usize,
    /// Bytes of bodies.
    pub bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    pub epoch: u64,
    pub first_seq: u64,
    pub seq: u64,
    pub at: i64,
    pub fence: u64,
    pub kind: String,
    pub item: Option<i64>,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPage {
    /// Ascending.
    pub rows: Vec<EventRow>,
    pub bad: Vec<BadRow>,
    /// The limit ended this page, not the journal.
    pub more: bool,
}

/// Events of one item between two places of the journal, both included.
#[derive(Clone, Copy, Debug)]
pub struct ItemEventQuery {
    pub session: SessionKey,
    pub ordinal: i64,
    /// (epoch, seq)
    pub from: (u64, u64),
    /// (epoch, seq)
    pub to: (u64, u64),
    /// Newest first.
    pub backwards: bool,
    /// Bytes of bodies; at least one row is given when there is one.
    pub limit_bytes: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ItemEventPage {
    /// In the asked direction.
    pub rows: Vec<EventRow>,
    pub bad: Vec<BadRow>,
    /// Where to go on: the next `from` (forwards) or the next `to` (backwards). Absent when the range is done. A
    /// page may be empty and still have one: the number of rows looked at is bounded too.
    pub resume: Option<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterStateRow {
    pub scope: String,
    pub version: u32,
    pub body: Vec<u8>,
}

/// An outbox row, as pushed.
pub type InputRow = crate::write::NewInput;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRow {
    pub key: String,
    pub fingerprint: Vec<u8>,
    pub at: i64,
    pub status: u16,
    pub response: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdOwner {
    pub session: SessionKey,
    pub fingerprint: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedRow {
    /// Dense from 1.
    pub position: u64,
    pub at: i64,
    pub session: SessionKey,
    pub epoch: u64,
    pub seq: u64,
    pub kind: String,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuarantineRow {
    pub process: ProcessKey,
    pub position: u64,
    pub at: i64,
    pub reason: String,
    pub record: Vec<u8>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuarantinePage {
    /// Oldest first.
    pub rows: Vec<QuarantineRow>,
    pub bad: Vec<BadRow>,
    /// How many older records were dropped to stay within the bounds.
    pub dropped: u64,
}

/// Row counts for diagnostics. Counting reads whole indexes: not for a hot path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub sessions: u64,
    pub events: u64,
    pub items: u64,
    pub processes: u64,
    pub inputs: u64,
    pub operations: u64,
    pub ids: u64,
    pub feed: u64,
    pub quarantined: u64,
}
