//! The vocabulary of writes. All times are milliseconds since the Unix epoch; all bodies are opaque bytes.

use std::borrow::Cow;
use std::fmt;

/// How long an idempotency key is kept at least, in milliseconds (7 days, promised by the public contract).
pub const OPERATION_KEEP_MS: i64 = 7 * 24 * 60 * 60 * 1000;
/// How many idempotency keys are kept at least, however old (promised by the public contract).
pub const OPERATION_KEEP_ROWS: u64 = 100_000;
/// How many keys one [`WriteOp::PruneOperations`] removes at most, so that pruning never holds the writer for
/// long (about 20 ms). The rest goes with the next one.
pub const OPERATION_PRUNE_BATCH: u64 = 4_096;
/// Journal rows that one [`WriteOp::PurgeSession`] removes, so that purging never holds the writer for long (about
/// 50 ms).
pub const PURGE_EVENT_ROWS: u64 = 20_000;
/// Feed entries that one [`WriteOp::TrimFeed`] removes at most, for the same reason.
pub const FEED_TRIM_BATCH: u64 = 4_096;
/// The status of a session that is being imported. Nobody is shown it, and a host that starts removes what a former
/// one left of such a session.
pub const STAGED_STATUS: &str = "importing";
/// Quarantined records kept per session. Enough to see a pattern; the oldest is dropped and counted.
pub const QUARANTINE_MAX_RECORDS: u64 = 256;
/// Bytes of quarantined records kept per session: one maximal record and some small ones. The newest record is
/// always kept.
pub const QUARANTINE_MAX_BYTES: u64 = 4 * 1024 * 1024;

/// The internal number of a session. Given by [`crate::Store::allocate_session_key`]; never reused, never shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub i64);

/// The internal number of an agent process. Given by [`crate::Store::allocate_process_key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey(pub i64);

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ProcessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which write goes first when several wait. Order is kept inside a class and not between classes, so a lane
/// waits for one write before it submits the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Urgency {
    /// Somebody wants something to end. First in every queue, and has room of its own when the queue is full.
    Stop,
    /// Somebody waits for the answer.
    Command,
    /// Streamed output; may gather for the configured time before it is synced.
    Stream,
}

/// "I write for this session under this fence."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FenceCheck {
    pub session: SessionKey,
    pub fence: u64,
}

/// What one lane wants to be true at once: all of it is committed, or none.
#[derive(Clone, Debug)]
pub struct LaneWrite {
    pub urgency: Urgency,
    /// Checked before the first operation.
    pub fences: Vec<FenceCheck>,
    /// Applied in order.
    pub ops: Vec<WriteOp>,
}

impl LaneWrite {
    #[must_use]
    pub fn new(urgency: Urgency, ops: Vec<WriteOp>) -> Self {
        Self { urgency, fences: Vec::new(), ops }
    }

    #[must_use]
    pub fn fenced(mut self, session: SessionKey, fence: u64) -> Self {
        self.fences.push(FenceCheck { session, fence });
        self
    }

    /// Roughly what this write occupies while it waits, in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.fences.len() * size_of::<FenceCheck>() + self.ops.iter().map(WriteOp::weight).sum::<usize>()
    }
}

#[derive(Clone, Debug)]
pub enum WriteOp {
    /// Conflicts: `SessionId`, `SessionKey`. Starts with status `idle`, epoch 1, head 0, fence 0.
    CreateSession(NewSession),
    /// As [`WriteOp::CreateSession`], but deleted and with status [`STAGED_STATUS`]: its journal is written in pages
    /// that nobody sees, until a [`WriteOp::PublishSession`] makes all of it visible at once.
    StageSession(NewSession),
    /// Makes a staged session one like any other, idle and with these names. Conflict: `NotStaged`.
    PublishSession {
        session: SessionKey,
        /// Becomes `updated_at`.
        at: i64,
        name: Option<String>,
        cwd: String,
        archived: bool,
        fence: u64,
        launch: Vec<u8>,
    },
    /// Removes the oldest [`PURGE_EVENT_ROWS`] rows of a staged session's journal, and everything else of it with the
    /// last of them; then its key and its id were never used. Does nothing where there is no such session. Conflict:
    /// `NotStaged`.
    DropStaged {
        session: SessionKey,
    },
    /// Conflict: `FenceBack`.
    UpdateSession(SessionUpdate),
    /// Removes items, snapshot, launch, quarantine and thread claims of a session, and the oldest [`PURGE_EVENT_ROWS`] of
    /// its journal: do it again while [`crate::Store::has_events`]. Its row and its registered ids stay, because ids
    /// are unique for ever.
    PurgeSession {
        session: SessionKey,
    },
    /// `epoch` must be greater than the current one; head goes back to 0. Conflict: `Head`.
    StartEpoch {
        session: SessionKey,
        epoch: u64,
    },
    /// Adds to the journal. `epoch` and `expect_head` must be where the journal stands (conflict: `Head`) and the
    /// events must continue it without a hole (else `Invalid`).
    AppendEvents {
        session: SessionKey,
        epoch: u64,
        expect_head: u64,
        events: Vec<NewEvent>,
    },
    /// Inserts or replaces by (session, ordinal). Conflict: `ItemId`.
    UpsertItem(ItemRow),
    /// Only the newest is kept; an older one than the kept one changes nothing.
    PutSnapshot {
        session: SessionKey,
        epoch: u64,
        seq: u64,
        version: u32,
        body: Vec<u8>,
    },
    /// One session per provider conversation in a scope (agent and account home). The same session may claim
    /// again. Conflict: `Thread`.
    ClaimThread {
        scope: String,
        thread: String,
        session: SessionKey,
    },
    /// Does nothing unless `session` is the owner.
    ReleaseThread {
        scope: String,
        thread: String,
        session: SessionKey,
    },
    /// Conflict: `Process`.
    CreateProcess(ProcessRow),
    UpdateProcess(ProcessUpdate),
    /// Inserts or replaces by (process, scope).
    PutAdapterState {
        process: ProcessKey,
        scope: String,
        version: u32,
        body: Vec<u8>,
    },
    /// Without a scope: all of the process.
    DropAdapterState {
        process: ProcessKey,
        scope: Option<String>,
    },
    /// A decision to give the agent something (outbox row). Conflict: `Input`, also for a number that was trimmed.
    PushInput(NewInput),
    /// Forgets inputs up to and including `up_to`; those numbers can never be pushed again.
    TrimInputs {
        process: ProcessKey,
        up_to: u64,
    },
    /// The same registration again changes nothing. Conflict: `Id`.
    RegisterId(IdRegistration),
    /// Conflict: `Operation`.
    PutOperation(NewOperation),
    /// Removes idempotency keys that are older than [`OPERATION_KEEP_MS`] *and* not among the newest
    /// [`OPERATION_KEEP_ROWS`], oldest first, at most [`OPERATION_PRUNE_BATCH`].
    PruneOperations {
        now: i64,
    },
    /// Adds to the host feed at the next position.
    AppendFeed(FeedEntry),
    /// Forgets feed entries up to and including `up_to`, at most [`FEED_TRIM_BATCH`] of them: do it again while
    /// [`crate::Store::feed_floor`] is lower. A reader behind the floor has to begin anew.
    TrimFeed {
        up_to: u64,
    },
    /// Sets aside what a session could not digest, within [`QUARANTINE_MAX_RECORDS`] and
    /// [`QUARANTINE_MAX_BYTES`].
    Quarantine(QuarantinedRecord),
    /// Takes note of a rewind (see [`crate::Rewound`]), so that it is not reported again and no number is used twice:
    /// this transaction's commit number becomes greater than `mark`; the epoch floor (see
    /// [`crate::Store::epoch_floor`]) becomes greater than every epoch that any session has or lost; and the feed goes
    /// on behind every position that anybody may have seen, its floor right before that.
    AcknowledgeRewind {
        mark: u64,
        /// The newest position of the feed that was acknowledged.
        feed: u64,
    },
}

#[derive(Clone, Debug)]
pub struct NewSession {
    pub key: SessionKey,
    pub id: String,
    pub agent: String,
    pub name: Option<String>,
    pub cwd: String,
    pub created_at: i64,
    /// The immutable launch snapshot.
    pub launch: Vec<u8>,
}

/// Fields that are `None` stay as they are.
#[derive(Clone, Debug)]
pub struct SessionUpdate {
    pub key: SessionKey,
    /// Becomes `updated_at`.
    pub at: i64,
    pub name: Option<Option<String>>,
    pub status: Option<String>,
    pub reason: Option<Option<String>>,
    pub archived: Option<bool>,
    pub deleted: Option<bool>,
    pub fence: Option<u64>,
    pub process: Option<Option<ProcessKey>>,
    /// Somebody has to do something.
    pub needs: Option<bool>,
}

impl SessionUpdate {
    #[must_use]
    pub fn new(key: SessionKey, at: i64) -> Self {
        Self {
            key,
            at,
            name: None,
            status: None,
            reason: None,
            archived: None,
            deleted: None,
            fence: None,
            process: None,
            needs: None,
        }
    }
}

/// One row of the journal. It stands for the run `first_seq..=seq` (a merged run of deltas; usually both are equal).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEvent {
    pub first_seq: u64,
    pub seq: u64,
    pub at: i64,
    pub fence: u64,
    pub kind: Cow<'static, str>,
    /// Ordinal of the item this event belongs to.
    pub item: Option<i64>,
    pub body: Vec<u8>,
}

/// An item as last folded. Its text stands in the deltas of the journal between `first` and `last`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRow {
    pub session: SessionKey,
    pub ordinal: i64,
    pub id: String,
    pub turn: Option<String>,
    pub kind: String,
    pub state: String,
    pub first_epoch: u64,
    pub first_seq: u64,
    pub last_epoch: u64,
    pub last_seq: u64,
    /// Bytes of UTF-8.
    pub text_len: u64,
    pub body: Vec<u8>,
}

/// One life of an agent process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessRow {
    pub key: ProcessKey,
    pub token: String,
    pub agent: String,
    pub profile: Vec<u8>,
    pub state: String,
    pub fence: u64,
    pub created_at: i64,
    /// Offset in the keeper's spool up to which records are committed.
    pub position: u64,
    pub connection: u32,
    pub last_input: u64,
    /// Absent while the process may live.
    pub ended_at: Option<i64>,
    pub exit: Option<Vec<u8>>,
}

/// Fields that are `None` stay as they are.
#[derive(Clone, Debug)]
pub struct ProcessUpdate {
    pub key: ProcessKey,
    pub state: Option<String>,
    pub fence: Option<u64>,
    pub position: Option<u64>,
    pub connection: Option<u32>,
    pub last_input: Option<u64>,
    pub ended_at: Option<i64>,
    pub exit: Option<Vec<u8>>,
}

impl ProcessUpdate {
    #[must_use]
    pub fn new(key: ProcessKey) -> Self {
        Self {
            key,
            state: None,
            fence: None,
            position: None,
            connection: None,
            last_input: None,
            ended_at: None,
            exit: None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInput {
    pub process: ProcessKey,
    pub n: u64,
    pub connection: u32,
    pub urgent: bool,
    pub payload: Vec<u8>,
}

/// Takes an id for ever.
#[derive(Clone, Debug)]
pub struct IdRegistration {
    /// `submission`, `request`, …: each kind has its own space of ids.
    pub kind: Cow<'static, str>,
    pub id: String,
    pub session: SessionKey,
    pub fingerprint: Vec<u8>,
}

/// A client's idempotency key and the answer it got.
#[derive(Clone, Debug)]
pub struct NewOperation {
    pub key: String,
    pub fingerprint: Vec<u8>,
    pub at: i64,
    pub status: u16,
    pub response: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct FeedEntry {
    pub at: i64,
    pub session: SessionKey,
    pub epoch: u64,
    pub seq: u64,
    pub kind: Cow<'static, str>,
    pub body: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct QuarantinedRecord {
    pub session: SessionKey,
    pub process: ProcessKey,
    /// Offset in the keeper's spool.
    pub position: u64,
    pub at: i64,
    pub reason: String,
    pub record: Vec<u8>,
}

/// What any operation occupies beside its payload; keeps a queue of tiny writes honest.
const OP_OVERHEAD: usize = 128;

impl WriteOp {
    fn weight(&self) -> usize {
        let payload = match self {
            Self::CreateSession(new) | Self::StageSession(new) => new.launch.len() + new.cwd.len(),
            Self::AppendEvents { events, .. } => {
                events.iter().map(|event| event.body.len() + size_of::<NewEvent>()).sum()
            }
            Self::UpsertItem(item) => item.body.len(),
            Self::PutSnapshot { body, .. } | Self::PutAdapterState { body, .. } => body.len(),
            Self::CreateProcess(row) => row.profile.len(),
            Self::PushInput(input) => input.payload.len(),
            Self::RegisterId(registration) => registration.fingerprint.len(),
            Self::PutOperation(operation) => operation.response.len() + operation.fingerprint.len(),
            Self::AppendFeed(entry) => entry.body.len(),
            Self::Quarantine(record) => record.record.len(),
            Self::PublishSession { launch, cwd, .. } => launch.len() + cwd.len(),
            Self::UpdateSession(_)
            | Self::DropStaged { .. }
            | Self::TrimFeed { .. }
            | Self::PurgeSession { .. }
            | Self::StartEpoch { .. }
            | Self::ClaimThread { .. }
            | Self::ReleaseThread { .. }
            | Self::UpdateProcess(_)
            | Self::DropAdapterState { .. }
            | Self::TrimInputs { .. }
            | Self::PruneOperations { .. }
            | Self::AcknowledgeRewind { .. } => 0,
        };
        OP_OVERHEAD + payload
    }
}

/// Checks that `events` continue a journal that stands at `expect_head`, and gives the new head.
pub(crate) fn check_dense(expect_head: u64, events: &[NewEvent]) -> Result<u64, crate::WriteError> {
    let mut head = expect_head;
    for event in events {
        if event.first_seq != head + 1 || event.seq < event.first_seq {
            return Err(crate::WriteError::Invalid {
                detail: format!("event {}..={} does not follow seq {head}", event.first_seq, event.seq),
            });
        }
        head = event.seq;
    }
    Ok(head)
}
