//! A store in memory with the semantics of the durable one, for the simulator and for tests: deterministic and
//! synchronous (a submitted write is applied and answered before `submit` returns).

mod apply;
mod durable;
mod history;

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::error::{ReadError, WriteError};
use crate::read::{
    AdapterStateRow, Counts, EventPage, FeedRow, IdOwner, InputRow, ItemEventPage, ItemEventQuery,
    OperationRow, PageLimit, QuarantinePage, Rows, SessionFilter, SessionRow, SnapshotRow,
};
use crate::store::{Committed, Degraded, Fault, MAX_QUEUED_BYTES, Store, StoreMode, StoreStats};
use crate::write::{ItemRow, LaneWrite, ProcessKey, ProcessRow, SessionKey};

use durable::Durable;

/// A [`Store`] that lives as long as its value, or until [`MemoryStore::crash`].
#[derive(Debug, Default)]
pub struct MemoryStore {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    durable: Durable,
    /// Keys given out so far; at least the highest in use.
    last_session: i64,
    last_process: i64,
    stats: StoreStats,
    failing: Option<WriteError>,
    faults: VecDeque<Fault>,
    closed: bool,
}

impl MemoryStore {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a host finds that starts after this one died: everything committed, nothing else. This store is closed
    /// afterwards, so that a part of the dead host that still runs can change nothing.
    #[must_use]
    pub fn crash(&self) -> Self {
        let mut dead = self.inner();
        dead.closed = true;
        let durable = std::mem::take(&mut dead.durable);
        let inner = Inner {
            last_session: durable.last_session_key(),
            last_process: durable.last_process_key(),
            durable,
            ..Inner::default()
        };
        Self { inner: Mutex::new(inner) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A refused write is undone before anything can panic, so the data behind the lock is always whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, read: impl FnOnce(&Durable) -> T) -> Result<T, ReadError> {
        let inner = self.inner();
        if inner.closed { Err(ReadError::Closed) } else { Ok(read(&inner.durable)) }
    }
}

impl Inner {
    fn commit(&mut self, write: &LaneWrite) -> Result<Committed, WriteError> {
        if self.closed {
            return Err(WriteError::Closed);
        }
        let bytes = write.weight();
        if bytes > MAX_QUEUED_BYTES {
            return Err(WriteError::TooLarge { bytes, limit: MAX_QUEUED_BYTES });
        }
        let fault = self.faults.pop_front();
        if let Some(Fault::FailCommit(error) | Fault::EndTransaction(error)) = fault {
            self.failing = Some(error.clone());
            self.stats.failed += 1;
            return Err(error);
        }
        match apply::apply(&mut self.durable, write) {
            Ok(committed) => {
                self.failing = None;
                self.stats.transactions += 1;
                if fault.is_some() {
                    self.stats.failed += 1;
                    return Err(WriteError::Io {
                        detail: "injected: the acknowledgement was lost".to_owned(),
                    });
                }
                self.stats.committed_writes += 1;
                Ok(committed)
            }
            Err(refusal) => {
                match refusal {
                    WriteError::Fenced { .. } => self.stats.fenced += 1,
                    _ => self.stats.refused += 1,
                }
                Err(refusal)
            }
        }
    }
}

impl Store for MemoryStore {
    fn submit(&self, write: LaneWrite) -> oneshot::Receiver<Result<Committed, WriteError>> {
        let (answer, receiver) = oneshot::channel();
        let outcome = self.inner().commit(&write);
        // The receiver is in our hands, so it cannot be gone.
        let _ = answer.send(outcome);
        receiver
    }

    fn commit_blocking(&self, write: LaneWrite) -> Result<Committed, WriteError> {
        // Nothing to wait for, so unlike the trait's own this may be called anywhere.
        self.inner().commit(&write)
    }

    fn allocate_session_key(&self) -> SessionKey {
        let mut inner = self.inner();
        inner.last_session = inner.last_session.max(inner.durable.last_session_key()) + 1;
        SessionKey(inner.last_session)
    }

    fn allocate_process_key(&self) -> ProcessKey {
        let mut inner = self.inner();
        inner.last_process = inner.last_process.max(inner.durable.last_process_key()) + 1;
        ProcessKey(inner.last_process)
    }

    fn commit_number(&self) -> u64 {
        self.inner().durable.commit
    }

    fn epoch_floor(&self) -> u64 {
        self.inner().durable.epoch_floor()
    }

    fn mode(&self) -> StoreMode {
        StoreMode::ReadWrite
    }

    fn degraded(&self) -> Option<Degraded> {
        self.inner().failing.clone().map(Degraded::Failing)
    }

    fn stats(&self) -> StoreStats {
        self.inner().stats
    }

    fn session(&self, key: SessionKey) -> Result<Option<SessionRow>, ReadError> {
        self.read(|durable| durable.session(key))
    }

    fn session_by_id(&self, id: &str) -> Result<Option<SessionRow>, ReadError> {
        self.read(|durable| durable.session_ids.get(id).and_then(|key| durable.session(*key)))
    }

    fn sessions(
        &self,
        filter: &SessionFilter,
        after: Option<SessionKey>,
        limit: usize,
    ) -> Result<Rows<SessionRow>, ReadError> {
        self.read(|durable| good(durable.sessions(filter, after, limit)))
    }

    fn unrested_sessions(&self) -> Result<Rows<SessionRow>, ReadError> {
        self.read(|durable| good(durable.unrested_sessions()))
    }

    fn unpurged_sessions(&self, limit: usize) -> Result<Vec<SessionKey>, ReadError> {
        self.read(|durable| durable.unpurged_sessions(limit))
    }

    fn snapshot(&self, session: SessionKey) -> Result<Option<SnapshotRow>, ReadError> {
        self.read(|durable| durable.snapshots.get(&session).cloned())
    }

    fn events(
        &self,
        session: SessionKey,
        epoch: u64,
        after_seq: u64,
        limit: PageLimit,
    ) -> Result<EventPage, ReadError> {
        self.read(|durable| durable.events(session, epoch, after_seq, limit))
    }

    fn has_events(&self, session: SessionKey) -> Result<bool, ReadError> {
        self.read(|durable| {
            durable.events.range((session, 0, 0)..=(session, u64::MAX, u64::MAX)).next().is_some()
        })
    }

    fn next_epoch(&self, session: SessionKey, after: u64) -> Result<Option<u64>, ReadError> {
        let Some(first) = after.checked_add(1) else { return Ok(None) };
        self.read(|durable| {
            let behind = durable.events.range((session, first, 0)..=(session, u64::MAX, u64::MAX));
            behind.map(|((_, epoch, _), _)| *epoch).next()
        })
    }

    fn events_of_item(&self, query: ItemEventQuery) -> Result<ItemEventPage, ReadError> {
        self.read(|durable| durable.events_of_item(query))
    }

    fn items(
        &self,
        session: SessionKey,
        before: Option<i64>,
        limit: usize,
    ) -> Result<Rows<ItemRow>, ReadError> {
        self.read(|durable| {
            let range = (session, i64::MIN)..(session, before.unwrap_or(i64::MAX));
            good(durable.items.range(range).rev().take(limit).map(|(_, item)| item.clone()).collect())
        })
    }

    fn item(&self, session: SessionKey, id: &str) -> Result<Option<ItemRow>, ReadError> {
        self.read(|durable| {
            let ordinal = durable.item_ids.get(&(session, id.to_owned()))?;
            durable.items.get(&(session, *ordinal)).cloned()
        })
    }

    fn max_item_ordinal(&self, session: SessionKey) -> Result<Option<i64>, ReadError> {
        self.read(|durable| {
            let all = (session, i64::MIN)..=(session, i64::MAX);
            durable.items.range(all).next_back().map(|((_, ordinal), _)| *ordinal)
        })
    }

    fn process(&self, key: ProcessKey) -> Result<Option<ProcessRow>, ReadError> {
        self.read(|durable| durable.processes.get(&key).cloned())
    }

    fn processes(&self, live_only: bool) -> Result<Rows<ProcessRow>, ReadError> {
        self.read(|durable| {
            let wanted = |row: &&ProcessRow| !live_only || row.ended_at.is_none();
            good(durable.processes.values().filter(wanted).cloned().collect())
        })
    }

    fn adapter_states(&self, process: ProcessKey) -> Result<Rows<AdapterStateRow>, ReadError> {
        self.read(|durable| {
            let from = durable.adapter_states.range((process, String::new())..);
            good(from.take_while(|((owner, _), _)| *owner == process).map(|(_, row)| row.clone()).collect())
        })
    }

    fn inputs(&self, process: ProcessKey, after_n: u64) -> Result<Rows<InputRow>, ReadError> {
        self.read(|durable| {
            let from = durable.inputs.range((process, 0)..=(process, u64::MAX));
            good(from.map(|(_, row)| row).filter(|row| row.n > after_n).cloned().collect())
        })
    }

    fn operation(&self, key: &str) -> Result<Option<OperationRow>, ReadError> {
        self.read(|durable| durable.operations.get(key).map(|(_, row)| row.clone()))
    }

    fn id_owner(&self, kind: &str, id: &str) -> Result<Option<IdOwner>, ReadError> {
        self.read(|durable| durable.ids.get(&(kind.to_owned(), id.to_owned())).cloned())
    }

    fn thread_owner(&self, scope: &str, thread: &str) -> Result<Option<SessionKey>, ReadError> {
        self.read(|durable| durable.threads.get(&(scope.to_owned(), thread.to_owned())).copied())
    }

    fn feed(&self, after: u64, limit: usize) -> Result<Rows<FeedRow>, ReadError> {
        self.read(|durable| {
            let behind = durable.feed.range(after.max(durable.feed_floor).saturating_add(1)..);
            good(behind.take(limit).map(|(_, row)| row.clone()).collect())
        })
    }

    fn feed_head(&self) -> Result<u64, ReadError> {
        self.read(Durable::feed_head)
    }

    fn feed_floor(&self) -> Result<u64, ReadError> {
        self.read(|durable| durable.feed_floor)
    }

    fn quarantine(&self, session: SessionKey) -> Result<QuarantinePage, ReadError> {
        self.read(|durable| QuarantinePage {
            rows: durable.quarantined(session).map(|(_, row)| row.clone()).collect(),
            bad: Vec::new(),
            dropped: durable.quarantine_dropped.get(&session).copied().unwrap_or(0),
        })
    }

    fn counts(&self) -> Result<Counts, ReadError> {
        self.read(Durable::counts)
    }

    fn close(&self) {
        self.inner().closed = true;
    }

    fn inject(&self, fault: Fault) {
        self.inner().faults.push_back(fault);
    }
}

fn good<T>(rows: Vec<T>) -> Rows<T> {
    Rows { rows, bad: Vec::new() }
}
