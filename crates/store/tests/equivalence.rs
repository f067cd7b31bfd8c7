//! The simulator trusts the store in memory: whatever is done to it and to the SQLite store, both answer the same and
//! hold the same.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{ALL, Home};
use mainstay_store::conformance::{event, new_process, new_session};
use mainstay_store::{
    Conflict, FeedEntry, IdRegistration, ItemEventQuery, ItemRow, LaneWrite, MemoryStore, NewEvent, NewInput,
    NewOperation, ProcessKey, ProcessRow, ProcessUpdate, QuarantinedRecord, SessionFilter, SessionKey,
    SessionUpdate, Store, Urgency, WriteError, WriteOp,
};

const SEEDS: u64 = 12;
const WRITES: usize = 200;
/// Small spaces, so that writes meet each other.
const SESSIONS: i64 = 4;
const PROCESSES: i64 = 3;

/// A reproducible source of choices (xorshift).
struct Choice(u64);

impl Choice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn maybe<T>(&mut self, value: T) -> Option<T> {
        self.one_in(2).then_some(value)
    }

    fn session(&mut self) -> SessionKey {
        SessionKey(1 + self.below(SESSIONS as u64).cast_signed())
    }

    fn process(&mut self) -> ProcessKey {
        ProcessKey(1 + self.below(PROCESSES as u64).cast_signed())
    }

    fn word(&mut self) -> String {
        ["alpha", "beta", "gamma", "delta"][usize::try_from(self.below(4)).unwrap()].to_owned()
    }

    fn body(&mut self) -> Vec<u8> {
        self.word().into_bytes()
    }

    /// Usually what fits the record, so that most writes are accepted and some are not.
    fn op(&mut self, store: &dyn Store) -> WriteOp {
        let session = self.session();
        let process = self.process();
        let row = store.session(session).unwrap();
        let (epoch, head, fence) = row.map_or((1, 0, 0), |row| (row.epoch, row.head, row.fence));
        let off = u64::from(self.one_in(8));
        match self.below(20) {
            0 if self.one_in(4) => WriteOp::StageSession(new_session(session, &self.word())),
            0 => WriteOp::CreateSession(new_session(session, &self.word())),
            1 | 2 => WriteOp::UpdateSession(SessionUpdate {
                key: session,
                at: self.below(99).cast_signed(),
                name: self.maybe(None),
                status: self.one_in(2).then(|| self.word()),
                reason: self.one_in(2).then(|| Some(self.word())),
                archived: self.maybe(true),
                deleted: self.one_in(9).then_some(true),
                fence: self.one_in(3).then(|| (fence + 1).saturating_sub(2 * off)),
                process: self.maybe(Some(process)),
                needs: self.maybe(true),
            }),
            3 if self.one_in(4) => WriteOp::PurgeSession { session },
            3 if self.one_in(4) => WriteOp::DropStaged { session },
            3 if self.one_in(4) => WriteOp::PublishSession {
                session,
                at: 5,
                name: self.maybe(self.0.to_string()),
                cwd: self.word(),
                archived: self.one_in(2),
                fence: 3,
                launch: self.body(),
            },
            3 => WriteOp::StartEpoch { session, epoch: epoch + 1 + off },
            4..=7 => {
                let run = self.below(3);
                let merged = NewEvent { first_seq: head + 1, ..event(head + 1 + run, Some(1), &self.word()) };
                let next = event(head + run + 2 + off, self.maybe(2), &self.word());
                let expect_head = head + u64::from(self.one_in(10));
                WriteOp::AppendEvents { session, epoch, expect_head, events: vec![merged, next] }
            }
            8 => WriteOp::UpsertItem(ItemRow {
                session,
                ordinal: self.below(5).cast_signed(),
                id: self.word(),
                turn: self.one_in(2).then(|| self.word()),
                kind: self.word(),
                state: self.word(),
                first_epoch: 1,
                first_seq: 1,
                last_epoch: epoch,
                last_seq: head,
                text_len: 3,
                body: self.body(),
            }),
            9 => WriteOp::PutSnapshot {
                session,
                epoch: epoch - u64::from(epoch > 1 && self.one_in(3)),
                seq: head,
                version: 1,
                body: self.body(),
            },
            10 => WriteOp::ClaimThread { scope: self.word(), thread: self.word(), session },
            11 => WriteOp::ReleaseThread { scope: self.word(), thread: self.word(), session },
            12 => WriteOp::CreateProcess(ProcessRow { token: self.word(), ..new_process(process) }),
            13 => WriteOp::UpdateProcess(ProcessUpdate {
                key: process,
                fence: None,
                state: self.one_in(2).then(|| self.word()),
                position: self.maybe(99),
                connection: self.maybe(3),
                last_input: self.maybe(4),
                ended_at: self.one_in(5).then_some(7),
                exit: self.one_in(5).then(|| self.body()),
            }),
            14 if self.one_in(4) => {
                WriteOp::DropAdapterState { process, scope: self.one_in(2).then(|| self.word()) }
            }
            14 => WriteOp::PutAdapterState { process, scope: self.word(), version: 2, body: self.body() },
            15 if self.one_in(4) => WriteOp::TrimInputs { process, up_to: self.below(100) },
            15 => WriteOp::PushInput(NewInput {
                process,
                n: self.below(300),
                connection: 1,
                urgent: self.one_in(2),
                payload: self.body(),
            }),
            16 => WriteOp::RegisterId(IdRegistration {
                kind: self.word().into(),
                id: self.word(),
                session,
                fingerprint: self.body(),
            }),
            17 => WriteOp::PutOperation(NewOperation {
                key: format!("{}{}", self.word(), self.below(20)),
                fingerprint: self.body(),
                at: 1,
                status: 200,
                response: self.body(),
            }),
            18 if self.one_in(4) => WriteOp::TrimFeed { up_to: self.below(20) },
            18 if self.one_in(9) => {
                WriteOp::AcknowledgeRewind { mark: self.below(300), feed: self.below(30) }
            }
            18 => WriteOp::AppendFeed(FeedEntry {
                at: 1,
                session,
                epoch,
                seq: head,
                kind: self.word().into(),
                body: self.body(),
            }),
            _ => WriteOp::Quarantine(QuarantinedRecord {
                session,
                process,
                position: 4,
                at: 5,
                reason: self.word(),
                record: self.body(),
            }),
        }
    }

    fn write(&mut self, store: &dyn Store) -> LaneWrite {
        let ops = (0..=self.below(3)).map(|_| self.op(store)).collect();
        let mut write = LaneWrite::new(Urgency::Command, ops);
        if self.one_in(2) {
            let session = self.session();
            let fence = store.session(session).unwrap().map_or(0, |row| row.fence);
            write = write.fenced(session, fence + u64::from(self.one_in(6)));
        }
        write
    }
}

/// Everything that can be read.
fn image(store: &dyn Store) -> String {
    let mut image = Vec::new();
    let everything = SessionFilter { include_deleted: true, ..SessionFilter::default() };
    image.push(format!("{:#?}", store.sessions(&everything, None, 99).unwrap()));
    image.push(format!("{:#?}", store.sessions(&SessionFilter::default(), None, 99).unwrap()));
    image.push(format!("{:#?}", store.unrested_sessions().unwrap()));
    for session in (1..=SESSIONS).map(SessionKey) {
        let mut before = 0;
        while let Some(epoch) = store.next_epoch(session, before).unwrap() {
            image.push(format!("{epoch} {:#?}", store.events(session, epoch, 0, ALL).unwrap()));
            before = epoch;
        }
        for backwards in [false, true] {
            let (from, to) = ((1, 3), (3, 9));
            let query = ItemEventQuery { session, ordinal: 1, from, to, backwards, limit_bytes: 40 };
            image.push(format!("{:#?}", store.events_of_item(query).unwrap()));
        }
        image.push(format!("{:#?}", store.items(session, None, 99).unwrap()));
        image.push(format!("{:#?}", store.snapshot(session).unwrap()));
        image.push(format!("{:#?}", store.quarantine(session).unwrap()));
        image.push(format!("{:?}", (store.max_item_ordinal(session), store.has_events(session))));
    }
    image.push(format!("{:?}", (store.epoch_floor(), store.feed_floor(), store.unpurged_sessions(9))));
    image.push(format!("{:#?}", store.processes(false).unwrap()));
    image.push(format!("{:#?}", store.processes(true).unwrap()));
    for process in (1..=PROCESSES).map(ProcessKey) {
        image.push(format!("{:#?}", store.adapter_states(process).unwrap()));
        image.push(format!("{:#?}", store.inputs(process, 3).unwrap()));
    }
    for first in ["alpha", "beta", "gamma", "delta"] {
        for second in ["alpha", "beta", "gamma", "delta"] {
            image.push(format!("{:?}", store.id_owner(first, second).unwrap()));
            image.push(format!("{:?}", store.thread_owner(first, second).unwrap()));
            image.push(format!("{:?}", store.item(SessionKey(1), second).unwrap()));
        }
    }
    image.push(format!("{:#?}", store.feed(1, 99).unwrap()));
    image.push(format!("{:?}", (store.counts().unwrap(), store.commit_number(), store.feed_head().unwrap())));
    image.join("\n")
}

#[test]
fn both_stores_answer_and_hold_the_same() {
    let (mut accepted, mut refused) = (0, 0);
    for seed in 1..=SEEDS {
        let home = Home::new();
        let sqlite = home.open();
        let memory = MemoryStore::new();
        let mut choice = Choice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        // Most keys exist from the start, because a write to nobody is refused at once.
        let existing = LaneWrite::new(
            Urgency::Command,
            (1..SESSIONS)
                .map(|key| WriteOp::CreateSession(new_session(SessionKey(key), &format!("s{key}"))))
                .chain((1..PROCESSES).map(|key| WriteOp::CreateProcess(new_process(ProcessKey(key)))))
                .collect(),
        );
        for number in 0..WRITES {
            let write = if number == 0 { existing.clone() } else { choice.write(&memory) };
            let expected = memory.commit_blocking(write.clone());
            let found = sqlite.commit_blocking(write.clone());
            assert_eq!(found, expected, "seed {seed}, write {number}: {write:#?}");
            match &found {
                Ok(_) => accepted += 1,
                Err(WriteError::Conflict(Conflict::Constraint { detail })) => {
                    panic!("seed {seed}, write {number}: an untyped constraint: {detail}")
                }
                Err(_) => refused += 1,
            }
        }
        pretty_eq(&image(&sqlite), &image(&memory), seed);
        let stats = |store: &dyn Store| {
            let stats = store.stats();
            (stats.transactions, stats.committed_writes, stats.fenced, stats.refused, stats.failed)
        };
        assert_eq!(stats(&sqlite), stats(&memory), "seed {seed}");
        // And after both were started again.
        let memory = memory.crash();
        drop(sqlite);
        pretty_eq(&image(&home.open()), &image(&memory), seed);
    }
    // The choices have to reach both outcomes often, or this shows little.
    assert!(accepted > 300 && refused > 300, "{accepted} accepted, {refused} refused");
}

/// Names the first line that differs: the whole images are long.
fn pretty_eq(sqlite: &str, memory: &str, seed: u64) {
    for (number, (ours, theirs)) in sqlite.lines().zip(memory.lines()).enumerate() {
        assert_eq!(ours, theirs, "seed {seed}, line {number} of the image");
    }
    assert_eq!(sqlite.len(), memory.len(), "seed {seed}");
}
