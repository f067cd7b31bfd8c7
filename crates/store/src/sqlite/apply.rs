//! One lane write as SQL statements. Every rule is checked inside the transaction, against rows that nobody else
//! can change before it ends.

use rusqlite::{Connection, OptionalExtension, Params, params};

use super::failure::ApplyError;
use super::history;
use crate::error::{Conflict, WriteError};
use crate::write::{
    FeedEntry, FenceCheck, IdRegistration, ItemRow, LaneWrite, NewEvent, NewInput, NewOperation, NewSession,
    OPERATION_KEEP_MS, OPERATION_KEEP_ROWS, OPERATION_PRUNE_BATCH, PURGE_EVENT_ROWS, ProcessKey, ProcessRow,
    ProcessUpdate, QUARANTINE_MAX_BYTES, QUARANTINE_MAX_RECORDS, QuarantinedRecord, SessionKey,
    SessionUpdate, WriteOp, check_dense,
};

pub(super) type Applied = Result<(), ApplyError>;

/// What a transaction counts beside its rows; goes back with a refused write.
#[derive(Clone, Copy)]
pub(super) struct Counters {
    /// The number before this transaction's.
    pub(super) commit: u64,
    pub(super) feed_head: u64,
    pub(super) epoch_floor: u64,
}

pub(super) struct Applier<'a> {
    connection: &'a Connection,
    counters: Counters,
}

impl<'a> Applier<'a> {
    pub(super) fn new(connection: &'a Connection, counters: Counters) -> Self {
        Self { connection, counters }
    }

    pub(super) fn counters(&self) -> Counters {
        self.counters
    }

    pub(super) fn reset(&mut self, counters: Counters) {
        self.counters = counters;
    }

    pub(super) fn apply(&mut self, write: &LaneWrite) -> Applied {
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
                history::stage(self.connection, new.key)
            }
            WriteOp::PublishSession { session, at, name, cwd, archived, fence, launch } => {
                let names =
                    history::Published { at: *at, name, cwd, archived: *archived, fence: *fence, launch };
                history::publish(self.connection, *session, &names)
            }
            WriteOp::DropStaged { session } => {
                if history::check_droppable(self.connection, *session)? {
                    self.purge_session(*session)?;
                    history::drop_emptied(self.connection, *session)?;
                }
                Ok(())
            }
            WriteOp::UpdateSession(update) => self.update_session(update),
            WriteOp::PurgeSession { session } => self.purge_session(*session),
            WriteOp::StartEpoch { session, epoch } => self.start_epoch(*session, *epoch),
            WriteOp::AppendEvents { session, epoch, expect_head, events } => {
                self.append_events(*session, *epoch, *expect_head, events)
            }
            WriteOp::UpsertItem(item) => self.upsert_item(item),
            WriteOp::PutSnapshot { session, epoch, seq, version, body } => {
                self.session_exists(*session)?;
                self.run(
                    "INSERT INTO snapshots (session, epoch, seq, version, body) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (session) DO UPDATE
                     SET epoch = excluded.epoch, seq = excluded.seq, version = excluded.version,
                         body = excluded.body
                     WHERE (excluded.epoch, excluded.seq) >= (snapshots.epoch, snapshots.seq)",
                    params![session.0, epoch, seq, version, body],
                )
            }
            WriteOp::ClaimThread { scope, thread, session } => self.claim_thread(scope, thread, *session),
            WriteOp::ReleaseThread { scope, thread, session } => self.run(
                "DELETE FROM threads WHERE scope = ?1 AND thread = ?2 AND session = ?3",
                params![scope, thread, session.0],
            ),
            WriteOp::CreateProcess(row) => self.create_process(row),
            WriteOp::UpdateProcess(update) => self.update_process(update),
            WriteOp::PutAdapterState { process, scope, version, body } => {
                if self.number("SELECT 1 FROM processes WHERE key = ?1", [process.0])?.is_none() {
                    return Err(missing_process(*process));
                }
                self.run(
                    "INSERT INTO adapter_states (process, scope, version, body) VALUES (?1, ?2, ?3, ?4)
                     ON CONFLICT (process, scope) DO UPDATE
                     SET version = excluded.version, body = excluded.body",
                    params![process.0, scope, version, body],
                )
            }
            WriteOp::DropAdapterState { process, scope } => self.run(
                "DELETE FROM adapter_states WHERE process = ?1 AND (?2 IS NULL OR scope = ?2)",
                params![process.0, scope],
            ),
            WriteOp::PushInput(input) => self.push_input(input),
            WriteOp::TrimInputs { process, up_to } => self.trim_inputs(*process, *up_to),
            WriteOp::RegisterId(registration) => self.register_id(registration),
            WriteOp::PutOperation(operation) => self.put_operation(operation),
            WriteOp::PruneOperations { now } => self.prune_operations(*now),
            WriteOp::AppendFeed(entry) => self.append_feed(entry),
            WriteOp::Quarantine(record) => self.quarantine(record),
            WriteOp::TrimFeed { up_to } => {
                history::trim_feed(self.connection, (*up_to).min(self.counters.feed_head))
            }
            WriteOp::AcknowledgeRewind { mark, feed } => {
                history::acknowledge_rewind(self.connection, &mut self.counters, *mark, *feed)
            }
        }
    }

    fn run(&self, sql: &str, params: impl Params) -> Applied {
        self.change(sql, params)?;
        Ok(())
    }

    /// Number of changed rows.
    fn change(&self, sql: &str, params: impl Params) -> Result<usize, ApplyError> {
        Ok(self.connection.prepare_cached(sql)?.execute(params)?)
    }

    fn number(&self, sql: &str, params: impl Params) -> Result<Option<i64>, ApplyError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        Ok(statement.query_row(params, |row| row.get(0)).optional()?)
    }

    fn unsigned(&self, sql: &str, params: impl Params) -> Result<Option<u64>, ApplyError> {
        let mut statement = self.connection.prepare_cached(sql)?;
        Ok(statement.query_row(params, |row| row.get(0)).optional()?)
    }

    fn check_fence(&self, check: FenceCheck) -> Applied {
        let found = self.unsigned("SELECT fence FROM heads WHERE session = ?1", [check.session.0])?;
        if found == Some(check.fence) {
            return Ok(());
        }
        Err(WriteError::Fenced { session: check.session, expected: check.fence, found }.into())
    }

    fn create_session(&self, new: &NewSession) -> Applied {
        if let Some(owner) = self.number("SELECT key FROM sessions WHERE id = ?1", [&new.id])? {
            return Err(Conflict::SessionId { id: new.id.clone(), owner: SessionKey(owner) }.into());
        }
        if self.number("SELECT key FROM sessions WHERE key = ?1", [new.key.0])?.is_some() {
            return Err(Conflict::SessionKey { key: new.key }.into());
        }
        self.run(
            "INSERT INTO sessions
                 (key, id, agent, name, cwd, created_at, updated_at, status, archived, deleted, needs)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, 'idle', 0, 0, 0)",
            params![new.key.0, new.id, new.agent, new.name, new.cwd, new.created_at],
        )?;
        self.run("INSERT INTO heads (session, epoch, head, fence) VALUES (?1, 1, 0, 0)", [new.key.0])?;
        self.run("INSERT INTO launches (session, body) VALUES (?1, ?2)", params![new.key.0, new.launch])
    }

    fn update_session(&self, update: &SessionUpdate) -> Applied {
        let key = update.key.0;
        if let Some(fence) = update.fence {
            let raise = "UPDATE heads SET fence = ?2 WHERE session = ?1 AND fence <= ?2";
            if self.change(raise, params![key, fence])? == 0 {
                let found = self.unsigned("SELECT fence FROM heads WHERE session = ?1", [key])?;
                return Err(match found {
                    Some(found) => Conflict::FenceBack { session: update.key, found }.into(),
                    None => missing_session(update.key),
                });
            }
        }
        // For nullable columns: one parameter says whether, the next says what.
        let changed = self.change(
            "UPDATE sessions SET
                 updated_at = ?2,
                 name = CASE WHEN ?3 THEN ?4 ELSE name END,
                 status = coalesce(?5, status),
                 reason = CASE WHEN ?6 THEN ?7 ELSE reason END,
                 archived = coalesce(?8, archived),
                 deleted = coalesce(?9, deleted),
                 process = CASE WHEN ?10 THEN ?11 ELSE process END,
                 needs = coalesce(?12, needs)
             WHERE key = ?1",
            params![
                key,
                update.at,
                update.name.is_some(),
                update.name.as_ref().and_then(Option::as_ref),
                update.status,
                update.reason.is_some(),
                update.reason.as_ref().and_then(Option::as_ref),
                update.archived,
                update.deleted,
                update.process.is_some(),
                update.process.flatten().map(|process| process.0),
                update.needs,
            ],
        )?;
        if changed == 0 { Err(missing_session(update.key)) } else { Ok(()) }
    }

    fn purge_session(&self, session: SessionKey) -> Applied {
        for sql in [
            "DELETE FROM items WHERE session = ?1",
            "DELETE FROM snapshots WHERE session = ?1",
            "DELETE FROM threads WHERE session = ?1",
            "DELETE FROM quarantine WHERE session = ?1",
            "DELETE FROM quarantine_dropped WHERE session = ?1",
            "UPDATE launches SET body = x'' WHERE session = ?1",
        ] {
            self.run(sql, [session.0])?;
        }
        let mut first_to_stay = self.connection.prepare_cached(
            "SELECT epoch, seq FROM events WHERE session = ?1 ORDER BY epoch, seq LIMIT 1 OFFSET ?2",
        )?;
        let boundary: Option<(u64, u64)> = first_to_stay
            .query_row(params![session.0, PURGE_EVENT_ROWS], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        match boundary {
            Some((epoch, seq)) => self.run(
                "DELETE FROM events WHERE session = ?1 AND (epoch, seq) < (?2, ?3)",
                params![session.0, epoch, seq],
            ),
            None => self.run("DELETE FROM events WHERE session = ?1", [session.0]),
        }
    }

    fn start_epoch(&self, session: SessionKey, epoch: u64) -> Applied {
        let changed = self.change(
            "UPDATE heads SET epoch = ?2, head = 0 WHERE session = ?1 AND epoch < ?2",
            params![session.0, epoch],
        )?;
        if changed == 1 { Ok(()) } else { Err(self.head_conflict(session)?) }
    }

    fn append_events(
        &self,
        session: SessionKey,
        epoch: u64,
        expect_head: u64,
        events: &[NewEvent],
    ) -> Applied {
        let head = check_dense(expect_head, events)?;
        let changed = self.change(
            "UPDATE heads SET head = ?4 WHERE session = ?1 AND epoch = ?2 AND head = ?3",
            params![session.0, epoch, expect_head, head],
        )?;
        if changed == 0 {
            return Err(self.head_conflict(session)?);
        }
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO events (session, epoch, seq, first_seq, at, fence, kind, item, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        for event in events {
            let first_seq = (event.first_seq != event.seq).then_some(event.first_seq);
            insert.execute(params![
                session.0,
                epoch,
                event.seq,
                first_seq,
                event.at,
                event.fence,
                event.kind,
                event.item,
                event.body,
            ])?;
        }
        Ok(())
    }

    /// Why a change of the head of `session` touched no row.
    fn head_conflict(&self, session: SessionKey) -> Result<ApplyError, ApplyError> {
        let mut statement =
            self.connection.prepare_cached("SELECT epoch, head FROM heads WHERE session = ?1")?;
        let found = statement.query_row([session.0], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        Ok(match found {
            Some((epoch, head)) => Conflict::Head { session, epoch, head }.into(),
            None => missing_session(session),
        })
    }

    fn upsert_item(&self, item: &ItemRow) -> Applied {
        let holder = self.number(
            "SELECT ordinal FROM items WHERE session = ?1 AND id = ?2",
            params![item.session.0, item.id],
        )?;
        if let Some(ordinal) = holder.filter(|ordinal| *ordinal != item.ordinal) {
            return Err(Conflict::ItemId { session: item.session, id: item.id.clone(), ordinal }.into());
        }
        self.session_exists(item.session)?;
        self.run(
            "INSERT INTO items (session, ordinal, id, turn, kind, state, first_epoch, first_seq, last_epoch,
                                last_seq, text_len, body)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)
             ON CONFLICT (session, ordinal) DO UPDATE
             SET id = excluded.id, turn = excluded.turn, kind = excluded.kind, state = excluded.state,
                 first_epoch = excluded.first_epoch, first_seq = excluded.first_seq,
                 last_epoch = excluded.last_epoch, last_seq = excluded.last_seq,
                 text_len = excluded.text_len, body = excluded.body",
            params![
                item.session.0,
                item.ordinal,
                item.id,
                item.turn,
                item.kind,
                item.state,
                item.first_epoch,
                item.first_seq,
                item.last_epoch,
                item.last_seq,
                item.text_len,
                item.body,
            ],
        )
    }

    fn claim_thread(&self, scope: &str, thread: &str, session: SessionKey) -> Applied {
        self.session_exists(session)?;
        self.run(
            "INSERT INTO threads (scope, thread, session) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
            params![scope, thread, session.0],
        )?;
        let owner = self
            .number("SELECT session FROM threads WHERE scope = ?1 AND thread = ?2", params![scope, thread])?
            .map(SessionKey);
        match owner {
            Some(owner) if owner != session => {
                Err(Conflict::Thread { thread: thread.to_owned(), owner }.into())
            }
            _ => Ok(()),
        }
    }

    fn create_process(&self, row: &ProcessRow) -> Applied {
        let holder = "SELECT key FROM processes WHERE key = ?1 OR token = ?2 ORDER BY key <> ?1 LIMIT 1";
        if let Some(key) = self.number(holder, params![row.key.0, row.token])? {
            return Err(Conflict::Process { key: ProcessKey(key) }.into());
        }
        self.run(
            "INSERT INTO processes (key, token, agent, profile, state, fence, created_at, position, connection,
                                    last_input, ended_at, exit)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
            params![
                row.key.0,
                row.token,
                row.agent,
                row.profile,
                row.state,
                row.fence,
                row.created_at,
                row.position,
                row.connection,
                row.last_input,
                row.ended_at,
                row.exit,
            ],
        )
    }

    fn update_process(&self, update: &ProcessUpdate) -> Applied {
        let changed = self.change(
            "UPDATE processes SET
                 state = coalesce(?2, state),
                 position = coalesce(?3, position),
                 connection = coalesce(?4, connection),
                 last_input = coalesce(?5, last_input),
                 ended_at = coalesce(?6, ended_at),
                 exit = coalesce(?7, exit),
                 fence = coalesce(?8, fence)
             WHERE key = ?1",
            params![
                update.key.0,
                update.state,
                update.position,
                update.connection,
                update.last_input,
                update.ended_at,
                update.exit,
                update.fence,
            ],
        )?;
        if changed == 0 { Err(missing_process(update.key)) } else { Ok(()) }
    }

    fn push_input(&self, input: &NewInput) -> Applied {
        let (process, n) = (input.process, input.n);
        let trimmed = self.unsigned("SELECT trimmed FROM processes WHERE key = ?1", [process.0])?;
        let Some(trimmed) = trimmed else {
            return Err(missing_process(process));
        };
        if n <= trimmed {
            return Err(Conflict::Input { process, n }.into());
        }
        let pushed = self.change(
            "INSERT INTO inputs (process, n, connection, urgent, payload) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO NOTHING",
            params![process.0, n, input.connection, input.urgent, input.payload],
        )?;
        if pushed == 1 { Ok(()) } else { Err(Conflict::Input { process, n }.into()) }
    }

    fn trim_inputs(&self, process: ProcessKey, up_to: u64) -> Applied {
        let found = self.change(
            "UPDATE processes SET trimmed = max(trimmed, ?2) WHERE key = ?1",
            params![process.0, up_to],
        )?;
        if found == 0 {
            return Err(missing_process(process));
        }
        self.run("DELETE FROM inputs WHERE process = ?1 AND n <= ?2", params![process.0, up_to])
    }

    fn register_id(&self, registration: &IdRegistration) -> Applied {
        let IdRegistration { kind, id, session, fingerprint } = registration;
        self.session_exists(*session)?;
        let inserted = self.change(
            "INSERT INTO ids (kind, id, session, fingerprint) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING",
            params![kind, id, session.0, fingerprint],
        )?;
        if inserted == 1 {
            return Ok(());
        }
        let mut statement = self
            .connection
            .prepare_cached("SELECT session, fingerprint = ?3 FROM ids WHERE kind = ?1 AND id = ?2")?;
        let (owner, same): (i64, bool) =
            statement.query_row(params![kind, id, fingerprint], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let owner = SessionKey(owner);
        if owner == *session && same {
            return Ok(());
        }
        Err(Conflict::Id { kind: kind.to_string(), id: id.clone(), owner }.into())
    }

    fn put_operation(&self, operation: &NewOperation) -> Applied {
        let inserted = self.change(
            "INSERT INTO operations (key, fingerprint, at, status, response) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT DO NOTHING",
            params![operation.key, operation.fingerprint, operation.at, operation.status, operation.response],
        )?;
        if inserted == 1 { Ok(()) } else { Err(Conflict::Operation { key: operation.key.clone() }.into()) }
    }

    fn prune_operations(&self, now: i64) -> Applied {
        // Both steps read only the index on time, which holds the row numbers too.
        let mut newest_to_go = self
            .connection
            .prepare_cached("SELECT at, n FROM operations ORDER BY at DESC, n DESC LIMIT 1 OFFSET ?1")?;
        let boundary: Option<(i64, i64)> =
            newest_to_go.query_row([OPERATION_KEEP_ROWS], |row| Ok((row.get(0)?, row.get(1)?))).optional()?;
        let Some((at, n)) = boundary else {
            return Ok(());
        };
        self.run(
            "DELETE FROM operations WHERE n IN (
                 SELECT n FROM operations WHERE (at, n) <= (?1, ?2) AND at < ?3 ORDER BY at, n LIMIT ?4)",
            params![at, n, now.saturating_sub(OPERATION_KEEP_MS), OPERATION_PRUNE_BATCH],
        )
    }

    fn append_feed(&mut self, entry: &FeedEntry) -> Applied {
        let position = self.counters.feed_head + 1;
        self.run(
            "INSERT INTO feed (position, at, session, epoch, seq, kind, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![position, entry.at, entry.session.0, entry.epoch, entry.seq, entry.kind, entry.body],
        )?;
        self.counters.feed_head = position;
        Ok(())
    }

    fn quarantine(&self, record: &QuarantinedRecord) -> Applied {
        let session = record.session.0;
        self.session_exists(record.session)?;
        self.run(
            "INSERT INTO quarantine (session, process, position, at, reason, size, record)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                session,
                record.process.0,
                record.position,
                record.at,
                record.reason,
                record.record.len() as u64,
                record.record,
            ],
        )?;
        // From the newest backwards: what no longer fits goes. The sums run over the index alone.
        let dropped = self.change(
            "DELETE FROM quarantine WHERE n IN (
                 SELECT n FROM (
                     SELECT n, row_number() OVER newest AS place, sum(size) OVER newest AS bytes
                     FROM quarantine WHERE session = ?1
                     WINDOW newest AS (ORDER BY n DESC))
                 WHERE place > 1 AND (place > ?2 OR bytes > ?3))",
            params![session, QUARANTINE_MAX_RECORDS, QUARANTINE_MAX_BYTES],
        )?;
        if dropped == 0 {
            return Ok(());
        }
        self.run(
            "INSERT INTO quarantine_dropped (session, records) VALUES (?1, ?2)
             ON CONFLICT (session) DO UPDATE SET records = records + excluded.records",
            params![session, dropped as u64],
        )
    }

    fn session_exists(&self, session: SessionKey) -> Applied {
        match self.number("SELECT 1 FROM sessions WHERE key = ?1", [session.0])? {
            Some(_) => Ok(()),
            None => Err(missing_session(session)),
        }
    }
}

pub(super) fn missing_session(session: SessionKey) -> ApplyError {
    WriteError::Missing { what: "session", key: session.0 }.into()
}

fn missing_process(process: ProcessKey) -> ApplyError {
    WriteError::Missing { what: "process", key: process.0 }.into()
}
