//! What the tests of the SQLite store share.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mainstay_store::conformance::{event, new_session};
use mainstay_store::{
    Committed, LaneWrite, Opened, PageLimit, SessionKey, SqliteOptions, SqliteStore, Store, Urgency,
    WriteError, WriteOp,
};
use tokio::sync::oneshot;

pub(crate) const ALL: PageLimit = PageLimit { rows: usize::MAX, bytes: usize::MAX };
/// How long a condition may take at most; reached only by a defect.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) type Answer = oneshot::Receiver<Result<Committed, WriteError>>;

pub(crate) struct Home {
    pub(crate) folder: tempfile::TempDir,
}

impl Home {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("test.db")
    }

    pub(crate) fn open(&self) -> SqliteStore {
        self.open_with(SqliteOptions::default())
    }

    pub(crate) fn open_with(&self, options: SqliteOptions) -> SqliteStore {
        open(&self.path(), options).store
    }

    /// A connection that goes round the store, as an operator's shell does.
    pub(crate) fn raw(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.path()).unwrap()
    }
}

pub(crate) fn open(path: &Path, options: SqliteOptions) -> Opened {
    SqliteStore::open(path, options).unwrap()
}

pub(crate) fn create(store: &SqliteStore, id: &str) -> SessionKey {
    let key = store.allocate_session_key();
    commit(store, vec![WriteOp::CreateSession(new_session(key, id))]);
    key
}

pub(crate) fn commit(store: &SqliteStore, ops: Vec<WriteOp>) -> Committed {
    store.commit_blocking(LaneWrite::new(Urgency::Command, ops)).unwrap()
}

pub(crate) fn append(session: SessionKey, head: u64, body: &str) -> WriteOp {
    WriteOp::AppendEvents { session, epoch: 1, expect_head: head, events: vec![event(head + 1, None, body)] }
}

pub(crate) fn submit(store: &SqliteStore, urgency: Urgency, op: WriteOp) -> Answer {
    store.submit(LaneWrite::new(urgency, vec![op]))
}

pub(crate) fn wait(answer: Answer) -> Result<Committed, WriteError> {
    answer.blocking_recv().unwrap()
}

pub(crate) fn head(store: &SqliteStore, session: SessionKey) -> u64 {
    store.session(session).unwrap().unwrap().head
}

/// Polls a condition that nothing signals.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2)); // poll
    }
}
