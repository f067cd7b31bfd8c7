//! The writer thread: whatever waits becomes one transaction, and only a synced one is acknowledged.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rusqlite::Connection;

use super::Shared;
use super::apply::{Applier, Counters};
use super::failure::{ApplyError, write_error};
use super::high_water::HighWater;
use super::queue::{Pending, Turn};
use super::reserve::Reserve;
use crate::error::WriteError;
use crate::store::{Committed, Fault};
use crate::write::LaneWrite;

pub(super) struct Writer {
    connection: Connection,
    shared: Arc<Shared>,
    reserve: Reserve,
    high_water: HighWater,
    /// As of the newest committed transaction.
    committed: Counters,
}

struct CloseAtTheEnd(Arc<Shared>);

impl Drop for CloseAtTheEnd {
    fn drop(&mut self) {
        self.0.queue.abandon();
    }
}

/// A transaction that did not happen.
struct Undone {
    error: WriteError,
    /// Trying its writes alone, or again, makes sense.
    again: bool,
}

/// What each write of a committed (or needless) transaction gets, in order.
type Outcomes = Vec<Result<Committed, WriteError>>;

impl Writer {
    pub(super) fn new(
        connection: Connection,
        shared: Arc<Shared>,
        reserve: Reserve,
        high_water: HighWater,
        committed: Counters,
    ) -> Self {
        Self { connection, shared, reserve, high_water, committed }
    }

    pub(super) fn run(mut self) {
        // Also when this thread panics: nobody may wait for a writer that is gone.
        let _closed_at_the_end = CloseAtTheEnd(Arc::clone(&self.shared));
        loop {
            match self.shared.queue.next(self.reserve.next_try()) {
                Turn::Commit(group) => self.commit_group(group),
                Turn::Idle => {}
                Turn::End => break,
            }
            // Also under constant load, when no turn is ever idle.
            if self.reserve.next_try().is_some_and(|due| due <= std::time::Instant::now()) {
                let there = self.reserve.restore();
                self.shared.reserve_missing.store(!there, Ordering::Release);
            }
        }
    }

    /// Settles every write of the group.
    fn commit_group(&mut self, group: Vec<Pending>) {
        let writes: Vec<&LaneWrite> = group.iter().map(|pending| &pending.write).collect();
        match self.transact(&writes) {
            Ok(outcomes) => self.settle(group, outcomes),
            Err(undone) => {
                let relieved = self.relieve(&undone.error);
                // Alone, because one write may be what the disk or the file refuses; in the same order, so that a
                // stop still goes first.
                let again = undone.again && (group.len() > 1 || relieved);
                if again && group.len() > 1 {
                    self.shared.health().stats.groups_undone += 1;
                }
                for pending in group {
                    let outcome =
                        if again { self.commit_alone(&pending.write) } else { Err(undone.error.clone()) };
                    self.settle(vec![pending], vec![outcome]);
                }
            }
        }
    }

    fn commit_alone(&mut self, write: &LaneWrite) -> Result<Committed, WriteError> {
        let single = |outcomes: Outcomes| outcomes.into_iter().next().unwrap_or(Err(WriteError::Closed));
        match self.transact(&[write]) {
            Ok(outcomes) => single(outcomes),
            Err(undone) if undone.again && self.relieve(&undone.error) => {
                self.transact(&[write]).map_or_else(|undone| Err(undone.error), single)
            }
            Err(undone) => Err(undone.error),
        }
    }

    /// Gives up the reserve if that may help.
    fn relieve(&mut self, error: &WriteError) -> bool {
        let full = match error {
            WriteError::DiskFull => true,
            WriteError::Io { .. } => self.reserve.disk_is_short(),
            _ => false,
        };
        if !full {
            return false;
        }
        match self.reserve.give_up() {
            Ok(true) => {
                tracing::warn!("the disk is full; the store's reserve is given up");
                self.shared.reserve_missing.store(true, Ordering::Release);
                self.shared.health().stats.reserves_spent += 1;
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::error!(%error, "the disk is full and the store's reserve cannot be removed");
                false
            }
        }
    }

    fn settle(&self, group: Vec<Pending>, outcomes: Outcomes) {
        let mut health = self.shared.health();
        for outcome in &outcomes {
            let counter = match outcome {
                Ok(_) => &mut health.stats.committed_writes,
                Err(WriteError::Fenced { .. }) => &mut health.stats.fenced,
                Err(error) if error.is_refusal() => &mut health.stats.refused,
                Err(_) => &mut health.stats.failed,
            };
            *counter += 1;
        }
        drop(health);
        for (pending, outcome) in group.into_iter().zip(outcomes) {
            pending.settle(outcome);
        }
    }

    /// One transaction for all `writes`, refused ones left out. When it succeeds it is on disk.
    fn transact(&mut self, writes: &[&LaneWrite]) -> Result<Outcomes, Undone> {
        let fault = self.shared.health().faults.pop_front();
        let result = self.try_transact(writes, fault.as_ref());
        if result.is_err() && !self.connection.is_autocommit() {
            // SQLite ends some transactions itself and leaves others open. A rollback that fails leaves one open
            // too; then the next BEGIN fails, and so does every write, visibly.
            if let Err(error) = self.connection.execute_batch("ROLLBACK") {
                tracing::error!(%error, "a failed transaction could not be rolled back");
            }
        }
        match &result {
            Ok(outcomes) if outcomes.iter().any(Result::is_ok) => self.shared.health().failing = None,
            // Refusals alone touch no disk and prove nothing about it.
            Ok(_) => {}
            Err(undone) => {
                tracing::warn!(error = %undone.error, writes = writes.len(), "a transaction failed");
                self.shared.health().failing = Some(undone.error.clone());
            }
        }
        if matches!((&result, fault), (Ok(_), Some(Fault::LoseAcknowledgement))) {
            let error = WriteError::Io { detail: "injected: the acknowledgement was lost".to_owned() };
            return Err(Undone { error, again: false });
        }
        result
    }

    fn try_transact(&mut self, writes: &[&LaneWrite], fault: Option<&Fault>) -> Result<Outcomes, Undone> {
        let failed = |error: rusqlite::Error| Undone { error: write_error(&error), again: true };
        let execute = |sql: &str| {
            self.connection
                .prepare_cached(sql)
                .and_then(|mut statement| statement.execute([]))
                .map_err(failed)
        };
        execute("BEGIN IMMEDIATE")?;
        let mut applier = Applier::new(&self.connection, self.committed);
        // A refusal has to undo its own part only; alone in its transaction it undoes the transaction.
        let isolate = writes.len() > 1;
        let mut refusals = Vec::with_capacity(writes.len());
        for write in writes {
            if isolate {
                execute("SAVEPOINT lane")?;
            }
            let before = applier.counters();
            match applier.apply(write) {
                Ok(()) => refusals.push(None),
                Err(ApplyError::Refused(refusal)) => {
                    if isolate {
                        execute("ROLLBACK TO lane")?;
                    }
                    applier.reset(before);
                    refusals.push(Some(refusal));
                }
                Err(ApplyError::Database(error)) => return Err(Undone { error, again: true }),
            }
            if isolate {
                execute("RELEASE lane")?;
            }
        }
        let counters = applier.counters();
        match fault {
            Some(Fault::FailCommit(error)) => {
                return Err(Undone { error: error.clone(), again: false });
            }
            Some(Fault::EndTransaction(error)) => {
                return Err(Undone { error: error.clone(), again: true });
            }
            Some(Fault::LoseAcknowledgement) | None => {}
        }
        if refusals.iter().all(Option::is_some) {
            execute("ROLLBACK")?;
            return Ok(refusals.into_iter().flatten().map(Err).collect());
        }
        let commit = counters.commit + 1;
        self.number_transaction(commit)?;
        execute("COMMIT")?;

        self.committed = Counters { commit, ..counters };
        let marked = self.high_water.raise(commit, counters.feed_head);
        self.shared.epoch_floor.store(counters.epoch_floor, Ordering::Release);
        self.shared.commit.store(commit, Ordering::Release);
        self.shared.health().stats.transactions += 1;
        if let Err(error) = marked {
            self.shared.health().stats.mark_failures += 1;
            tracing::warn!(%error, "the high-water mark could not be written");
        }
        let committed = Committed { commit, feed_head: counters.feed_head };
        Ok(refusals.into_iter().map(|refusal| refusal.map_or(Ok(committed), Err)).collect())
    }

    /// Writes the transaction's number, and finds out whether another process wrote in between.
    fn number_transaction(&self, commit: u64) -> Result<(), Undone> {
        let failed = |error: rusqlite::Error| Undone { error: write_error(&error), again: true };
        let changed = self
            .connection
            .prepare_cached("UPDATE meta SET value = ?1 WHERE name = 'commit' AND value = ?2")
            .and_then(|mut statement| statement.execute([commit, self.committed.commit]))
            .map_err(failed)?;
        if changed == 1 {
            return Ok(());
        }
        let found = self
            .connection
            .query_row("SELECT value FROM meta WHERE name = 'commit'", [], |row| row.get(0))
            .map_err(failed)?;
        Err(Undone {
            error: WriteError::ForeignWriter { expected: self.committed.commit, found },
            again: false,
        })
    }
}
