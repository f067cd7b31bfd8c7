//! Sessions in numbers that nobody has: a page costs what a page holds.
#![expect(clippy::unwrap_used, reason = "a test: a broken precondition is a failed test")]

use mainstay_store::{
    LaneWrite, NewSession, SessionFilter, SessionUpdate, SqliteOptions, SqliteStore, Store, Urgency, WriteOp,
};
use std::time::{Duration, Instant};

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
/// Far above what a page takes (well under a millisecond) and far below what a look at every row of a million takes.
const PROMPT: Duration = Duration::from_millis(300);

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

/// The best of a few tries: other work of the machine is not what is measured.
fn best<T>(mut work: impl FnMut() -> T) -> Duration {
    let once = |work: &mut dyn FnMut() -> T| {
        let begun = Instant::now();
        drop(work());
        begun.elapsed()
    };
    (0..5).map(|_| once(&mut work)).min().unwrap()
}

fn pages_stay_small(count: usize) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("x.db"), SqliteOptions::default()).unwrap().store;
    fill(&store, count);
    let all = SessionFilter::default();
    let page = |after| store.sessions(&all, after, PAGE).unwrap().rows;
    let first = page(None);
    assert_eq!(first.len(), PAGE);
    assert!(best(|| page(None)) < PROMPT, "the first page");
    // In the middle, and at the end.
    for depth in [count / 2, PAGE + 1] {
        let after = mainstay_store::SessionKey(i64::try_from(depth).unwrap());
        assert!(!page(Some(after)).is_empty());
        assert!(best(|| page(Some(after))) < PROMPT, "the page behind {depth}");
    }
    let running = SessionFilter { status: Some("running".to_owned()), ..SessionFilter::default() };
    let found = store.sessions(&running, None, PAGE).unwrap().rows;
    assert!(!found.is_empty() && found.iter().all(|row| row.status == "running"));
    assert!(best(|| store.sessions(&running, None, PAGE).unwrap()) < PROMPT, "a filtered page");
    assert!(best(|| store.session_by_id("ses-0000000").unwrap()) < PROMPT, "one by its id");
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
