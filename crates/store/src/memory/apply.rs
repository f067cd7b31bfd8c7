//! One lane write against the tables in memory, undone as a whole when a part is refused.

use std::collections::BTreeMap;

use super::durable::{Durable, Head};
use crate::error::{Conflict, WriteError};
use crate::read::{
    AdapterStateRow, EventRow, FeedRow, IdOwner, OperationRow, QuarantineRow, SessionRow, SnapshotRow,
};
use crate::store::Committed;
use crate::write::{
    FeedEntry, FenceCheck, IdRegistration, ItemRow, LaneWrite, NewEvent, NewInput, NewOperation, NewSession,
    OPERATION_KEEP_MS, OPERATION_KEEP_ROWS, OPERATION_PRUNE_BATCH, PURGE_EVENT_ROWS, ProcessKey, ProcessRow,
    ProcessUpdate, QUARANTINE_MAX_BYTES, QUARANTINE_MAX_RECORDS, QuarantinedRecord, SessionKey,
    SessionUpdate, WriteOp, check_dense,
};

pub(super) type Applied = Result<(), WriteError>;
pub(super) type Undo = Box<dyn FnOnce(&mut Durable)>;
pub(super) type Table<K, V> = fn(&mut Durable) -> &mut BTreeMap<K, V>;

pub(super) fn apply(durable: &mut Durable, write: &LaneWrite) -> Result<Committed, WriteError> {
    let commit_before = durable.commit;
    let mut transaction = Transaction { durable, undo: Vec::new() };
    if let Err(refusal) = transaction.apply(write) {
        let Transaction { durable, undo } = transaction;
        for step in undo.into_iter().rev() {
            step(durable);
        }
        durable.commit = commit_before;
        return Err(refusal);
    }
    durable.commit += 1;
    Ok(Committed { commit: durable.commit, feed_head: durable.feed_head() })
}

pub(super) struct Transaction<'a> {
    pub(super) durable: &'a mut Durable,
    /// Applied backwards, these lead to the state before.
    pub(super) undo: Vec<Undo>,
}

impl Transaction<'_> {
    fn apply(&mut self, write: &LaneWrite) -> Applied {
        for check in &write.fences {
            self.check_fence(*check)?;
        }
        for op in &write.ops {
            self.apply_op(op)?;
        }
        Ok(())
    }

    fn apply_op(&mut self, op: &WriteOp) -> Applied {
        match op {
            WriteOp::CreateSession(new) => self.create_session(new),
            WriteOp::StageSession(new) => {
                self.create_session(new)?;
                self.stage(new.key);
                Ok(())
            }
            WriteOp::PublishSession { .. } => self.publish(op),
            WriteOp::DropStaged { session } => self.drop_staged(*session),
            WriteOp::TrimFeed { up_to } => {
                self.trim_feed(*up_to);
                Ok(())
            }
            WriteOp::UpdateSession(update) => self.update_session(update),
            WriteOp::PurgeSession { session } => {
                self.purge_session(*session);
                Ok(())
            }
            WriteOp::StartEpoch { session, epoch } => self.start_epoch(*session, *epoch),
            WriteOp::AppendEvents { session, epoch, expect_head, events } => {
                self.append_events(*session, *epoch, *expect_head, events)
            }
            WriteOp::UpsertItem(item) => self.upsert_item(item),
            WriteOp::PutSnapshot { session, epoch, seq, version, body } => {
                self.session_exists(*session)?;
                let kept = self.durable.snapshots.get(session);
                if kept.is_none_or(|kept| (*epoch, *seq) >= (kept.epoch, kept.seq)) {
                    let row = SnapshotRow { epoch: *epoch, seq: *seq, version: *version, body: body.clone() };
                    self.set(|durable| &mut durable.snapshots, *session, Some(row));
                }
                Ok(())
            }
            WriteOp::ClaimThread { scope, thread, session } => self.claim_thread(scope, thread, *session),
            WriteOp::ReleaseThread { scope, thread, session } => {
                let place = (scope.clone(), thread.clone());
                if self.durable.threads.get(&place) == Some(session) {
                    self.set(|durable| &mut durable.threads, place, None);
                }
                Ok(())
            }
            WriteOp::CreateProcess(row) => self.create_process(row),
            WriteOp::UpdateProcess(update) => self.update_process(update),
            WriteOp::PutAdapterState { process, scope, version, body } => {
                self.process_exists(*process)?;
                let row = AdapterStateRow { scope: scope.clone(), version: *version, body: body.clone() };
                self.set(|durable| &mut durable.adapter_states, (*process, scope.clone()), Some(row));
                Ok(())
            }
            WriteOp::DropAdapterState { process, scope } => {
                let gone = |place: &(ProcessKey, String)| {
                    place.0 == *process && scope.as_ref().is_none_or(|scope| *scope == place.1)
                };
                self.remove_where(|durable| &mut durable.adapter_states, gone);
                Ok(())
            }
            WriteOp::PushInput(input) => self.push_input(input),
            WriteOp::TrimInputs { process, up_to } => self.trim_inputs(*process, *up_to),
            WriteOp::RegisterId(registration) => self.register_id(registration),
            WriteOp::PutOperation(operation) => self.put_operation(operation),
            WriteOp::PruneOperations { now } => {
                self.prune_operations(*now);
                Ok(())
            }
            WriteOp::AppendFeed(entry) => {
                self.append_feed(entry);
                Ok(())
            }
            WriteOp::Quarantine(record) => self.quarantine(record),
            WriteOp::AcknowledgeRewind { mark, feed } => {
                self.acknowledge_rewind(*mark, *feed);
                Ok(())
            }
        }
    }

    /// Inserts, replaces or (with `None`) removes, and remembers how to take it back.
    pub(super) fn set<K: Ord + Clone + 'static, V: 'static>(
        &mut self,
        table: Table<K, V>,
        key: K,
        value: Option<V>,
    ) {
        let old = exchange(table(self.durable), key.clone(), value);
        self.undo.push(Box::new(move |durable| {
            exchange(table(durable), key, old);
        }));
    }

    pub(super) fn remove_where<K: Ord + Clone + 'static, V: 'static>(
        &mut self,
        table: Table<K, V>,
        gone: impl Fn(&K) -> bool,
    ) {
        let keys: Vec<K> = table(self.durable).keys().filter(|key| gone(key)).cloned().collect();
        for key in keys {
            self.set(table, key, None);
        }
    }

    fn arrival(&mut self) -> u64 {
        self.durable.arrivals += 1;
        self.durable.arrivals
    }

    fn check_fence(&self, check: FenceCheck) -> Applied {
        let found = self.durable.heads.get(&check.session).map(|head| head.fence);
        if found == Some(check.fence) {
            return Ok(());
        }
        Err(WriteError::Fenced { session: check.session, expected: check.fence, found })
    }

    pub(super) fn head(&self, session: SessionKey) -> Result<Head, WriteError> {
        self.durable.heads.get(&session).copied().ok_or_else(|| missing_session(session))
    }

    fn create_session(&mut self, new: &NewSession) -> Applied {
        if let Some(owner) = self.durable.session_ids.get(&new.id) {
            return Err(Conflict::SessionId { id: new.id.clone(), owner: *owner }.into());
        }
        if self.durable.sessions.contains_key(&new.key) {
            return Err(Conflict::SessionKey { key: new.key }.into());
        }
        let head = Head { epoch: 1, head: 0, fence: 0 };
        let row = SessionRow {
            key: new.key,
            id: new.id.clone(),
            agent: new.agent.clone(),
            name: new.name.clone(),
            cwd: new.cwd.clone(),
            created_at: new.created_at,
            updated_at: new.created_at,
            status: "idle".to_owned(),
            reason: None,
            archived: false,
            deleted: false,
            needs: false,
            process: None,
            epoch: head.epoch,
            head: head.head,
            fence: head.fence,
            launch: new.launch.clone(),
        };
        self.set(|durable| &mut durable.session_ids, new.id.clone(), Some(new.key));
        self.set(|durable| &mut durable.heads, new.key, Some(head));
        self.set(|durable| &mut durable.sessions, new.key, Some(row));
        Ok(())
    }

    fn update_session(&mut self, update: &SessionUpdate) -> Applied {
        let head = self.head(update.key)?;
        if let Some(fence) = update.fence {
            if fence < head.fence {
                return Err(Conflict::FenceBack { session: update.key, found: head.fence }.into());
            }
            self.set(|durable| &mut durable.heads, update.key, Some(Head { fence, ..head }));
        }
        let row = self.durable.sessions.get(&update.key);
        let mut row = row.cloned().ok_or_else(|| missing_session(update.key))?;
        row.updated_at = update.at;
        replace(&mut row.name, &update.name);
        replace(&mut row.status, &update.status);
        replace(&mut row.reason, &update.reason);
        replace(&mut row.archived, &update.archived);
        replace(&mut row.deleted, &update.deleted);
        replace(&mut row.process, &update.process);
        replace(&mut row.needs, &update.needs);
        self.set(|durable| &mut durable.sessions, update.key, Some(row));
        Ok(())
    }

    pub(super) fn purge_session(&mut self, session: SessionKey) {
        let oldest = self.durable.events.range((session, 0, 0)..=(session, u64::MAX, u64::MAX));
        let limit = usize::try_from(PURGE_EVENT_ROWS).unwrap_or(usize::MAX);
        let places: Vec<_> = oldest.take(limit).map(|(place, _)| *place).collect();
        for place in places {
            self.set(|durable| &mut durable.events, place, None);
        }
        self.remove_where(|durable| &mut durable.items, |place| place.0 == session);
        self.remove_where(|durable| &mut durable.item_ids, |place| place.0 == session);
        self.remove_where(|durable| &mut durable.snapshots, |place| *place == session);
        self.remove_where(|durable| &mut durable.quarantine, |place| place.0 == session);
        self.remove_where(|durable| &mut durable.quarantine_dropped, |place| *place == session);
        let owned = self.durable.threads.iter().filter(|(_, owner)| **owner == session);
        let places: Vec<_> = owned.map(|(place, _)| place.clone()).collect();
        for place in places {
            self.set(|durable| &mut durable.threads, place, None);
        }
        if let Some(row) = self.durable.sessions.get(&session).cloned() {
            let row = SessionRow { launch: Vec::new(), ..row };
            self.set(|durable| &mut durable.sessions, session, Some(row));
        }
    }

    fn start_epoch(&mut self, session: SessionKey, epoch: u64) -> Applied {
        let head = self.head(session)?;
        if epoch <= head.epoch {
            return Err(Conflict::Head { session, epoch: head.epoch, head: head.head }.into());
        }
        self.set(|durable| &mut durable.heads, session, Some(Head { epoch, head: 0, ..head }));
        Ok(())
    }

    fn append_events(
        &mut self,
        session: SessionKey,
        epoch: u64,
        expect_head: u64,
        events: &[NewEvent],
    ) -> Applied {
        let new_head = check_dense(expect_head, events)?;
        let head = self.head(session)?;
        if (head.epoch, head.head) != (epoch, expect_head) {
            return Err(Conflict::Head { session, epoch: head.epoch, head: head.head }.into());
        }
        self.set(|durable| &mut durable.heads, session, Some(Head { head: new_head, ..head }));
        for event in events {
            let row = EventRow {
                epoch,
                first_seq: event.first_seq,
                seq: event.seq,
                at: event.at,
                fence: event.fence,
                kind: event.kind.to_string(),
                item: event.item,
                body: event.body.clone(),
            };
            self.durable.events.insert((session, epoch, event.seq), row);
        }
        // One step for all: behind the old head there was nothing.
        self.undo.push(Box::new(move |durable| {
            let first = (session, epoch, expect_head + 1);
            let appended: Vec<_> =
                durable.events.range(first..=(session, epoch, new_head)).map(|(place, _)| *place).collect();
            for place in appended {
                durable.events.remove(&place);
            }
        }));
        Ok(())
    }

    fn upsert_item(&mut self, item: &ItemRow) -> Applied {
        let id = (item.session, item.id.clone());
        if let Some(&ordinal) = self.durable.item_ids.get(&id).filter(|ordinal| **ordinal != item.ordinal) {
            return Err(Conflict::ItemId { session: item.session, id: item.id.clone(), ordinal }.into());
        }
        self.session_exists(item.session)?;
        let place = (item.session, item.ordinal);
        if let Some(old) = self.durable.items.get(&place).filter(|old| old.id != item.id) {
            let old_id = (old.session, old.id.clone());
            self.set(|durable| &mut durable.item_ids, old_id, None);
        }
        self.set(|durable| &mut durable.item_ids, id, Some(item.ordinal));
        self.set(|durable| &mut durable.items, place, Some(item.clone()));
        Ok(())
    }

    fn claim_thread(&mut self, scope: &str, thread: &str, session: SessionKey) -> Applied {
        self.session_exists(session)?;
        let place = (scope.to_owned(), thread.to_owned());
        match self.durable.threads.get(&place) {
            Some(owner) if *owner != session => {
                Err(Conflict::Thread { thread: place.1, owner: *owner }.into())
            }
            Some(_) => Ok(()),
            None => {
                self.set(|durable| &mut durable.threads, place, Some(session));
                Ok(())
            }
        }
    }

    fn create_process(&mut self, row: &ProcessRow) -> Applied {
        let by_key = self.durable.processes.contains_key(&row.key).then_some(row.key);
        let holder = by_key.or_else(|| self.durable.tokens.get(&row.token).copied());
        if let Some(key) = holder {
            return Err(Conflict::Process { key }.into());
        }
        self.set(|durable| &mut durable.tokens, row.token.clone(), Some(row.key));
        self.set(|durable| &mut durable.processes, row.key, Some(row.clone()));
        Ok(())
    }

    fn update_process(&mut self, update: &ProcessUpdate) -> Applied {
        let row = self.durable.processes.get(&update.key);
        let mut row = row.cloned().ok_or_else(|| missing_process(update.key))?;
        replace(&mut row.state, &update.state);
        replace(&mut row.position, &update.position);
        replace(&mut row.connection, &update.connection);
        replace(&mut row.last_input, &update.last_input);
        replace(&mut row.fence, &update.fence);
        row.ended_at = update.ended_at.or(row.ended_at);
        row.exit = update.exit.clone().or(row.exit);
        self.set(|durable| &mut durable.processes, update.key, Some(row));
        Ok(())
    }

    fn push_input(&mut self, input: &NewInput) -> Applied {
        let (process, n) = (input.process, input.n);
        self.process_exists(process)?;
        let trimmed = self.durable.trimmed.get(&process).copied().unwrap_or(0);
        if n <= trimmed || self.durable.inputs.contains_key(&(process, n)) {
            return Err(Conflict::Input { process, n }.into());
        }
        self.set(|durable| &mut durable.inputs, (process, n), Some(input.clone()));
        Ok(())
    }

    fn trim_inputs(&mut self, process: ProcessKey, up_to: u64) -> Applied {
        self.process_exists(process)?;
        let trimmed = self.durable.trimmed.get(&process).copied().unwrap_or(0).max(up_to);
        self.set(|durable| &mut durable.trimmed, process, Some(trimmed));
        self.remove_where(|durable| &mut durable.inputs, |place| place.0 == process && place.1 <= up_to);
        Ok(())
    }

    fn register_id(&mut self, registration: &IdRegistration) -> Applied {
        let IdRegistration { kind, id, session, fingerprint } = registration;
        self.session_exists(*session)?;
        let place = (kind.to_string(), id.clone());
        let wanted = IdOwner { session: *session, fingerprint: fingerprint.clone() };
        match self.durable.ids.get(&place) {
            Some(found) if *found == wanted => Ok(()),
            Some(found) => Err(Conflict::Id { kind: place.0, id: place.1, owner: found.session }.into()),
            None => {
                self.set(|durable| &mut durable.ids, place, Some(wanted));
                Ok(())
            }
        }
    }

    fn put_operation(&mut self, operation: &NewOperation) -> Applied {
        if self.durable.operations.contains_key(&operation.key) {
            return Err(Conflict::Operation { key: operation.key.clone() }.into());
        }
        let row = OperationRow {
            key: operation.key.clone(),
            fingerprint: operation.fingerprint.clone(),
            at: operation.at,
            status: operation.status,
            response: operation.response.clone(),
        };
        let arrival = self.arrival();
        self.set(|durable| &mut durable.operations, operation.key.clone(), Some((arrival, row)));
        Ok(())
    }

    fn prune_operations(&mut self, now: i64) {
        let surplus = (self.durable.operations.len() as u64).saturating_sub(OPERATION_KEEP_ROWS);
        let mut by_age: Vec<(i64, u64, String)> = self
            .durable
            .operations
            .iter()
            .map(|(key, (arrival, row))| (row.at, *arrival, key.clone()))
            .collect();
        by_age.sort_unstable();
        let most = usize::try_from(surplus.min(OPERATION_PRUNE_BATCH)).unwrap_or(usize::MAX);
        let cutoff = now.saturating_sub(OPERATION_KEEP_MS);
        for (_, _, key) in by_age.into_iter().take(most).filter(|(at, ..)| *at < cutoff) {
            self.set(|durable| &mut durable.operations, key, None);
        }
    }

    fn append_feed(&mut self, entry: &FeedEntry) {
        let position = self.durable.feed_head() + 1;
        let row = FeedRow {
            position,
            at: entry.at,
            session: entry.session,
            epoch: entry.epoch,
            seq: entry.seq,
            kind: entry.kind.to_string(),
            body: entry.body.clone(),
        };
        self.set(|durable| &mut durable.feed, position, Some(row));
    }

    fn quarantine(&mut self, record: &QuarantinedRecord) -> Applied {
        let session = record.session;
        self.session_exists(session)?;
        let row = QuarantineRow {
            process: record.process,
            position: record.position,
            at: record.at,
            reason: record.reason.clone(),
            record: record.record.clone(),
        };
        let arrival = self.arrival();
        self.set(|durable| &mut durable.quarantine, (session, arrival), Some(row));
        let mut bytes = 0_u64;
        let mut dropped = Vec::new();
        for (kept, (place, row)) in (0_u64..).zip(self.durable.quarantined(session).rev()) {
            bytes += row.record.len() as u64;
            if kept > 0 && (kept >= QUARANTINE_MAX_RECORDS || bytes > QUARANTINE_MAX_BYTES) {
                dropped.push(*place);
            }
        }
        if dropped.is_empty() {
            return Ok(());
        }
        let before = self.durable.quarantine_dropped.get(&session).copied().unwrap_or(0);
        let now = before + dropped.len() as u64;
        self.set(|durable| &mut durable.quarantine_dropped, session, Some(now));
        for place in dropped {
            self.set(|durable| &mut durable.quarantine, place, None);
        }
        Ok(())
    }

    fn session_exists(&self, session: SessionKey) -> Applied {
        self.head(session).map(drop)
    }

    fn process_exists(&self, process: ProcessKey) -> Applied {
        if self.durable.processes.contains_key(&process) { Ok(()) } else { Err(missing_process(process)) }
    }
}

fn exchange<K: Ord, V>(table: &mut BTreeMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => table.insert(key, value),
        None => table.remove(&key),
    }
}

fn replace<T: Clone>(field: &mut T, new: &Option<T>) {
    if let Some(new) = new {
        field.clone_from(new);
    }
}

fn missing_session(session: SessionKey) -> WriteError {
    WriteError::Missing { what: "session", key: session.0 }
}

fn missing_process(process: ProcessKey) -> WriteError {
    WriteError::Missing { what: "process", key: process.0 }
}
