//! What any [`Store`] must do, one function per property. Use [`crate::conformance_suite!`] in a test file to run
//! all of them against an implementation.
#![expect(clippy::unwrap_used, reason = "this is test code: it fails by panicking")]

mod guarantees;
mod journal;
mod records;

use std::borrow::Cow;

pub use guarantees::*;
pub use journal::*;
pub use records::*;

use tokio::sync::oneshot;

use crate::error::{Conflict, ReadError, WriteError};
use crate::read::{ItemEventQuery, PageLimit, SessionFilter};
use crate::store::{Committed, Degraded, Fault, Store};
use crate::write::{
    FEED_TRIM_BATCH, FeedEntry, IdRegistration, ItemRow, LaneWrite, NewEvent, NewInput, NewOperation,
    NewSession, OPERATION_KEEP_MS, OPERATION_KEEP_ROWS, OPERATION_PRUNE_BATCH, PURGE_EVENT_ROWS, ProcessKey,
    ProcessRow, ProcessUpdate, QUARANTINE_MAX_BYTES, QUARANTINE_MAX_RECORDS, QuarantinedRecord,
    STAGED_STATUS, SessionKey, SessionUpdate, Urgency, WriteOp,
};

/// A store under test, with its surroundings.
pub trait Subject {
    fn store(&self) -> &dyn Store;
    /// What a host does that starts again on the same data.
    fn restart(&mut self);
}

/// Makes one test per property. `$make` is a function that gives a fresh [`conformance::Subject`](Subject).
#[macro_export]
macro_rules! conformance_suite {
    ($make:path) => {
        $crate::conformance_suite! { @ $make:
            seq_is_dense, a_merged_row_stands_for_its_run, pages_end_where_the_limit_says,
            an_epoch_is_greater_than_the_one_before, an_old_fence_is_refused_whole, a_fence_never_goes_back,
            a_refusal_harms_no_neighbour, a_refused_write_leaves_nothing, ids_are_unique_for_ever,
            session_ids_are_unique, session_fields_change_one_by_one, sessions_are_paged_newest_first,
            only_unrested_sessions_are_unrested, threads_have_one_owner, the_newest_snapshot_is_kept,
            items_are_upserted_and_paged, item_text_reads_both_ways, processes_change_field_by_field,
            inputs_are_numbered_once, adapter_states_are_replaced_and_dropped, operations_are_recorded_once,
            operations_are_kept_as_promised, the_feed_is_dense, quarantine_is_bounded,
            a_purged_session_keeps_its_names, commit_numbers_grow_by_one, a_rewind_is_acknowledged_by_number,
            the_feed_goes_on_behind_a_floor, a_staged_session_is_seen_whole_or_not_at_all,
            what_was_acknowledged_survives_a_restart, injected_failures_do_what_they_say,
            a_closed_store_says_so, missing_rows_are_named, many_lanes_at_once_lose_nothing,
        }
    };
    (@ $make:path: $($property:ident),+ $(,)?) => {
        $(#[test] fn $property() { $crate::conformance::$property(&mut $make()); })+
    };
}

/// A session as most properties need one.
#[must_use]
pub fn new_session(key: SessionKey, id: &str) -> NewSession {
    NewSession {
        key,
        id: id.to_owned(),
        agent: "demo".to_owned(),
        name: None,
        cwd: "/somewhere".to_owned(),
        created_at: 1_000,
        launch: b"{\"launch\":true}".to_vec(),
    }
}

/// A process as most properties need one.
#[must_use]
pub fn new_process(key: ProcessKey) -> ProcessRow {
    ProcessRow {
        key,
        token: format!("token-{key}"),
        agent: "demo".to_owned(),
        profile: b"profile".to_vec(),
        state: "reserved".to_owned(),
        fence: 1,
        created_at: 5,
        position: 0,
        connection: 0,
        last_input: 0,
        ended_at: None,
        exit: None,
    }
}

/// An event that stands for `seq` alone.
#[must_use]
pub fn event(seq: u64, item: Option<i64>, body: &str) -> NewEvent {
    NewEvent {
        first_seq: seq,
        seq,
        at: 1_000,
        fence: 0,
        kind: Cow::Borrowed("item.delta"),
        item,
        body: body.as_bytes().to_vec(),
    }
}

fn append(session: SessionKey, expect_head: u64, events: Vec<NewEvent>) -> WriteOp {
    WriteOp::AppendEvents { session, epoch: 1, expect_head, events }
}

fn command(ops: Vec<WriteOp>) -> LaneWrite {
    LaneWrite::new(Urgency::Command, ops)
}

fn commit(store: &dyn Store, ops: Vec<WriteOp>) -> Committed {
    store.commit_blocking(command(ops)).unwrap()
}

fn refusal(store: &dyn Store, op: WriteOp) -> WriteError {
    store.commit_blocking(command(vec![op])).unwrap_err()
}

fn conflict(store: &dyn Store, op: WriteOp) -> Conflict {
    match refusal(store, op) {
        WriteError::Conflict(conflict) => conflict,
        other => panic!("expected a conflict, got {other}"),
    }
}

fn create(store: &dyn Store, id: &str) -> SessionKey {
    let key = store.allocate_session_key();
    commit(store, vec![WriteOp::CreateSession(new_session(key, id))]);
    key
}

fn create_process(store: &dyn Store) -> ProcessKey {
    let key = store.allocate_process_key();
    commit(store, vec![WriteOp::CreateProcess(new_process(key))]);
    key
}

fn fence(session: SessionKey, fence: u64) -> WriteOp {
    WriteOp::UpdateSession(SessionUpdate { fence: Some(fence), ..SessionUpdate::new(session, 2_000) })
}

fn wait(answer: oneshot::Receiver<Result<Committed, WriteError>>) -> Result<Committed, WriteError> {
    answer.blocking_recv().unwrap()
}

const ALL: PageLimit = PageLimit { rows: usize::MAX, bytes: usize::MAX };

/// (first_seq, seq) of all rows of an epoch.
fn runs(store: &dyn Store, session: SessionKey, epoch: u64) -> Vec<(u64, u64)> {
    let page = store.events(session, epoch, 0, ALL).unwrap();
    assert!(page.bad.is_empty() && !page.more);
    page.rows.iter().map(|row| (row.first_seq, row.seq)).collect()
}

fn registration(id: &str, session: SessionKey, fingerprint: &[u8]) -> IdRegistration {
    IdRegistration {
        kind: Cow::Borrowed("submission"),
        id: id.to_owned(),
        session,
        fingerprint: fingerprint.to_vec(),
    }
}

fn item(session: SessionKey, ordinal: i64, id: &str) -> ItemRow {
    ItemRow {
        session,
        ordinal,
        id: id.to_owned(),
        turn: Some("turn".to_owned()),
        kind: "message".to_owned(),
        state: "open".to_owned(),
        first_epoch: 1,
        first_seq: 1,
        last_epoch: 1,
        last_seq: 9,
        text_len: 12,
        body: b"{}".to_vec(),
    }
}

fn input(process: ProcessKey, n: u64) -> NewInput {
    NewInput {
        process,
        n,
        connection: 1,
        urgent: n.is_multiple_of(2),
        payload: format!("input {n}").into_bytes(),
    }
}

fn operation(key: &str, at: i64) -> NewOperation {
    NewOperation {
        key: key.to_owned(),
        fingerprint: b"request".to_vec(),
        at,
        status: 201,
        response: b"answer".to_vec(),
    }
}

fn feed_entry(session: SessionKey, seq: u64) -> FeedEntry {
    FeedEntry {
        at: 3,
        session,
        epoch: 1,
        seq,
        kind: Cow::Borrowed("turn.ended"),
        body: format!("feed {seq}").into_bytes(),
    }
}

fn quarantined(session: SessionKey, process: ProcessKey, size: usize) -> QuarantinedRecord {
    QuarantinedRecord {
        session,
        process,
        position: size as u64,
        at: 4,
        reason: "cannot be applied".to_owned(),
        record: vec![b'x'; size],
    }
}
