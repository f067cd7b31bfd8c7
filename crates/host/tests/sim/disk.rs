//! The store of the simulation: the memory store behind a queue, so that a commit takes as long as the seed says, and a
//! crash can come before it, after it, or between it and its acknowledgement.

use mainstay_store::{
    AdapterStateRow, BadRow, Committed, Counts, Degraded, EventPage, Fault, FeedRow, IdOwner, InputRow,
    ItemEventPage, ItemEventQuery, ItemRow, LaneWrite, MemoryStore, OperationRow, PageLimit, ProcessKey,
    ProcessRow, QuarantinePage, ReadError, Rows, SessionFilter, SessionKey, SessionRow, SnapshotRow, Store,
    StoreMode, StoreStats, WriteError,
};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

type Acknowledge = oneshot::Sender<Result<Committed, WriteError>>;

#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// What is durable: exactly what a host finds after a crash.
    pub(crate) durable: MemoryStore,
    queues: Mutex<Queues>,
    /// A session whose journal cannot be read.
    damaged: Mutex<Option<SessionKey>>,
}

#[derive(Debug, Default)]
struct Queues {
    /// Submitted, not durable.
    written: VecDeque<(LaneWrite, Acknowledge)>,
    /// Decided, not told.
    decided: VecDeque<(Result<Committed, WriteError>, Acknowledge)>,
}

impl Disk {
    pub(crate) fn on(durable: MemoryStore) -> Self {
        Self { durable, queues: Mutex::default(), damaged: Mutex::default() }
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the oldest submitted write durable, or refuses it. False: there is none.
    pub(crate) fn commit_one(&self) -> bool {
        let Some((write, acknowledge)) = self.queues().written.pop_front() else { return false };
        let outcome = self.durable.submit(write).try_recv().unwrap_or(Err(WriteError::Closed));
        self.queues().decided.push_back((outcome, acknowledge));
        true
    }

    /// Tells the outcome of a decided write: the oldest, or one of the next. False: there is none.
    pub(crate) fn acknowledge(&self, place: usize) -> bool {
        let mut queues = self.queues();
        let place = place.min(queues.decided.len().saturating_sub(1));
        let Some((outcome, acknowledge)) = queues.decided.remove(place) else { return false };
        drop(queues);
        // The host may be gone.
        let _told = acknowledge.send(outcome);
        true
    }

    /// From now on the host finds the session's journal damaged.
    pub(crate) fn damage(&self, session: SessionKey) {
        *self.damaged.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
    }

    /// Every journal can be read again.
    pub(crate) fn repair(&self) {
        *self.damaged.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn is_damaged(&self, session: SessionKey) -> bool {
        *self.damaged.lock().unwrap_or_else(PoisonError::into_inner) == Some(session)
    }
}

impl Store for Disk {
    fn submit(&self, write: LaneWrite) -> oneshot::Receiver<Result<Committed, WriteError>> {
        let (acknowledge, outcome) = oneshot::channel();
        self.queues().written.push_back((write, acknowledge));
        outcome
    }

    fn allocate_session_key(&self) -> SessionKey {
        self.durable.allocate_session_key()
    }
    fn allocate_process_key(&self) -> ProcessKey {
        self.durable.allocate_process_key()
    }
    fn commit_number(&self) -> u64 {
        self.durable.commit_number()
    }
    fn epoch_floor(&self) -> u64 {
        self.durable.epoch_floor()
    }

    fn mode(&self) -> StoreMode {
        self.durable.mode()
    }
    fn degraded(&self) -> Option<Degraded> {
        self.durable.degraded()
    }
    fn stats(&self) -> StoreStats {
        self.durable.stats()
    }
    fn session(&self, key: SessionKey) -> Result<Option<SessionRow>, ReadError> {
        self.durable.session(key)
    }
    fn session_by_id(&self, id: &str) -> Result<Option<SessionRow>, ReadError> {
        self.durable.session_by_id(id)
    }
    fn sessions(
        &self,
        filter: &SessionFilter,
        after: Option<SessionKey>,
        limit: usize,
    ) -> Result<Rows<SessionRow>, ReadError> {
        self.durable.sessions(filter, after, limit)
    }
    fn unrested_sessions(&self) -> Result<Rows<SessionRow>, ReadError> {
        self.durable.unrested_sessions()
    }
    fn unpurged_sessions(&self, limit: usize) -> Result<Vec<SessionKey>, ReadError> {
        self.durable.unpurged_sessions(limit)
    }

    fn snapshot(&self, session: SessionKey) -> Result<Option<SnapshotRow>, ReadError> {
        if self.is_damaged(session) {
            return Ok(None);
        }
        self.durable.snapshot(session)
    }
    fn events(
        &self,
        session: SessionKey,
        epoch: u64,
        after_seq: u64,
        limit: PageLimit,
    ) -> Result<EventPage, ReadError> {
        if self.is_damaged(session) {
            let bad = BadRow { table: "events", key: format!("{epoch}:1"), detail: "simulated".to_owned() };
            return Ok(EventPage { rows: Vec::new(), bad: vec![bad], more: false });
        }
        self.durable.events(session, epoch, after_seq, limit)
    }
    fn has_events(&self, session: SessionKey) -> Result<bool, ReadError> {
        self.durable.has_events(session)
    }
    fn next_epoch(&self, session: SessionKey, after: u64) -> Result<Option<u64>, ReadError> {
        self.durable.next_epoch(session, after)
    }

    fn events_of_item(&self, query: ItemEventQuery) -> Result<ItemEventPage, ReadError> {
        self.durable.events_of_item(query)
    }
    fn items(
        &self,
        session: SessionKey,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Rows<ItemRow>, ReadError> {
        self.durable.items(session, before, limit)
    }
    fn item(&self, session: SessionKey, id: &str) -> Result<Option<ItemRow>, ReadError> {
        self.durable.item(session, id)
    }
    fn max_item_ordinal(&self, session: SessionKey) -> Result<Option<i64>, ReadError> {
        self.durable.max_item_ordinal(session)
    }
    fn process(&self, key: ProcessKey) -> Result<Option<ProcessRow>, ReadError> {
        self.durable.process(key)
    }
    fn processes(&self, live_only: bool) -> Result<Rows<ProcessRow>, ReadError> {
        self.durable.processes(live_only)
    }
    fn adapter_states(&self, process: ProcessKey) -> Result<Rows<AdapterStateRow>, ReadError> {
        self.durable.adapter_states(process)
    }
    fn inputs(&self, process: ProcessKey, after_n: u64) -> Result<Rows<InputRow>, ReadError> {
        self.durable.inputs(process, after_n)
    }
    fn operation(&self, key: &str) -> Result<Option<OperationRow>, ReadError> {
        self.durable.operation(key)
    }
    fn id_owner(&self, kind: &str, id: &str) -> Result<Option<IdOwner>, ReadError> {
        self.durable.id_owner(kind, id)
    }
    fn thread_owner(&self, scope: &str, thread: &str) -> Result<Option<SessionKey>, ReadError> {
        self.durable.thread_owner(scope, thread)
    }
    fn feed(&self, after: u64, limit: usize) -> Result<Rows<FeedRow>, ReadError> {
        self.durable.feed(after, limit)
    }
    fn feed_floor(&self) -> Result<u64, ReadError> {
        self.durable.feed_floor()
    }

    fn feed_head(&self) -> Result<u64, ReadError> {
        self.durable.feed_head()
    }
    fn quarantine(&self, session: SessionKey) -> Result<QuarantinePage, ReadError> {
        self.durable.quarantine(session)
    }
    fn counts(&self) -> Result<Counts, ReadError> {
        self.durable.counts()
    }
    fn close(&self) {}
    fn inject(&self, fault: Fault) {
        self.durable.inject(fault);
    }
}
