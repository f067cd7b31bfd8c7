//! Sessions in numbers that nobody has: a page costs what a page holds, counted in steps of SQLite's machine.

use super::{SqliteOptions, SqliteStore, record_reads};
use crate::{LaneWrite, NewSession, SessionFilter, SessionKey, SessionUpdate, Store, Urgency, WriteOp};
use rusqlite::Connection;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the usual run makes.
const SOME: usize = 20_000;
/// What the long mode makes.
const MILLION: usize = 1_000_000;
/// Sessions made in one transaction.
const GROUP: usize = 2_000;
/// One of so many has something to do.
const RUNS_EVERY: usize = 1_000;
/// A page of this size is what clients ask for.
const PAGE: usize = 50;
/// What a page of [`PAGE`] rows takes, and more than twice that (measured: 1,844 in a table of any size); a look at every row of the usual
/// run takes 100 times that.
const STEPS_OF_A_PAGE: u64 = 5_000;

fn fill(store: &SqliteStore, count: usize) {
    for group in 0..count.div_ceil(GROUP) {
        let first = group * GROUP;
        let mut ops = Vec::new();
        for number in first..count.min(first + GROUP) {
            let key = store.allocate_session_key();
            ops.push(WriteOp::CreateSession(NewSession {
                key,
                id: format!("ses-{number:07}"),
                agent: "demo".to_owned(),
                name: None,
                cwd: "/w".to_owned(),
                created_at: 1,
                // As large as real ones are: rows that are looked at in vain cost something.
                launch: vec![b'x'; 600],
            }));
            if number % RUNS_EVERY == 0 {
                let mut update = SessionUpdate::new(key, 2);
                update.status = Some("running".to_owned());
                ops.push(WriteOp::UpdateSession(update));
            }
        }
        store.commit_blocking(LaneWrite::new(Urgency::Command, ops)).unwrap();
    }
}

/// A connection that counts its steps.
struct Counted {
    reader: Connection,
    steps: Arc<AtomicU64>,
}

impl Counted {
    fn open(path: &std::path::Path) -> Self {
        let mut reader = Connection::open(path).unwrap();
        let steps = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&steps);
        let count = move || {
            counter.fetch_add(1, Ordering::Relaxed);
            false
        };
        reader.progress_handler(1, Some(count)).unwrap();
        Self { reader, steps }
    }

    /// Reads, and says how many steps that took.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> (T, u64) {
        let before = self.steps.load(Ordering::Relaxed);
        let found = read(&self.reader).unwrap();
        (found, self.steps.load(Ordering::Relaxed) - before)
    }
}

fn pages_stay_small(count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.db");
    let store = SqliteStore::open(&path, SqliteOptions::default()).unwrap().store;
    fill(&store, count);
    let counted = Counted::open(&path);
    let all = SessionFilter::default();
    let (first, steps) = counted.read(|reader| record_reads::sessions(reader, &all, None, PAGE));
    assert_eq!(first.rows.len(), PAGE);
    assert!(steps > 0 && steps < STEPS_OF_A_PAGE, "the first page: {steps}");
    // In the middle, and at the end.
    for depth in [count / 2, PAGE + 1] {
        let after = SessionKey(i64::try_from(depth).unwrap());
        let (page, steps) = counted.read(|reader| record_reads::sessions(reader, &all, Some(after), PAGE));
        assert_eq!(page.rows.len(), PAGE);
        assert!(steps < STEPS_OF_A_PAGE, "the page behind {depth}: {steps}");
    }
    let running = SessionFilter { status: Some("running".to_owned()), ..SessionFilter::default() };
    let few = count.div_ceil(RUNS_EVERY).min(PAGE);
    let (found, steps) = counted.read(|reader| record_reads::sessions(reader, &running, None, few));
    assert!(found.rows.len() == few && found.rows.iter().all(|row| row.status == "running"));
    assert!(steps < STEPS_OF_A_PAGE, "a filtered page: {steps}");
    let (one, steps) = counted.read(|reader| record_reads::session_by_id(reader, "ses-0000000"));
    assert!(one.is_some() && steps < STEPS_OF_A_PAGE, "one by its id: {steps}");
    // What a starting host and every look at the metrics read.
    assert_eq!(store.unrested_sessions().unwrap().rows.len(), count.div_ceil(RUNS_EVERY));
    assert_eq!(store.session_count().unwrap(), u64::try_from(count).unwrap());
    // Every one is there once, in order.
    let (mut seen, mut after) = (0, None);
    loop {
        let rows = store.sessions(&all, after, 5_000).unwrap().rows;
        let Some(last) = rows.last() else { break };
        assert!(rows.windows(2).all(|pair| pair[0].key > pair[1].key));
        seen += rows.len();
        after = Some(last.key);
    }
    assert_eq!(seen, count);
}

#[test]
fn a_page_of_many_sessions_costs_what_it_holds() {
    pages_stay_small(SOME);
}

#[test]
#[ignore = "makes a million sessions: the long mode runs it"]
fn a_page_of_a_million_sessions_costs_what_it_holds() {
    pages_stay_small(MILLION);
}
