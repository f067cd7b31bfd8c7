//! How fast events become durable: the store beside a plain file that is written and synced in the same batches.
//!
//! `cargo run --release -p mainstay-store --example append [FOLDER] [ROWS]`
//!
//! Absolute rates are this disk's; the ratios are ours. Rounds of both alternate, so that a busy machine hits both.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a bench, not a library")]

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use mainstay_store::conformance::{event, new_session};
use mainstay_store::{LaneWrite, PageLimit, SessionKey, SqliteOptions, SqliteStore, Store, Urgency, WriteOp};

const ROUNDS: usize = 5;
/// A delta of some words in its envelope.
const BODY: &str =
    r#"{"item":"i-0123456789","offset":123456,"text":"and some words of streamed text, as they come"}"#;

fn main() {
    let mut args = std::env::args().skip(1);
    let parent = args.next().unwrap_or_else(|| ".".to_owned());
    let rows: u64 = args.next().map_or(100_000, |rows| rows.parse().unwrap());
    println!("{rows} rows of {} bytes, median of {ROUNDS} rounds", BODY.len());
    for (lanes, batch) in [(1, 1), (1, 16), (1, 256), (8, 1), (8, 32), (64, 1)] {
        // Small batches cost a sync each: fewer rows tell as much.
        let rows = rows.min(2_000 * batch * lanes);
        let mut rates: Vec<(f64, f64)> = (0..ROUNDS)
            .map(|_| {
                let folder = tempfile::tempdir_in(&parent).unwrap();
                let rate = |time: Duration| rows as f64 / time.as_secs_f64();
                let file = rate(plain_file(folder.path(), rows, lanes * batch));
                (rate(store(folder.path(), rows, lanes, batch)), file)
            })
            .collect();
        rates.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
        let (ours, file) = rates[ROUNDS / 2];
        println!(
            "{lanes:>3} lanes x {batch:>3} rows: store {ours:>9.0} rows/s, file {file:>9.0} rows/s, ratio {:.2}",
            ours / file
        );
    }
}

/// Each lane waits for its batch before it submits the next.
fn store(folder: &Path, rows: u64, lanes: u64, batch: u64) -> Duration {
    let store = SqliteStore::open(folder.join("bench.db"), SqliteOptions::default()).unwrap().store;
    let sessions: Vec<SessionKey> = (0..lanes)
        .map(|lane| {
            let key = store.allocate_session_key();
            let create = WriteOp::CreateSession(new_session(key, &format!("s{lane}")));
            store.commit_blocking(LaneWrite::new(Urgency::Command, vec![create])).unwrap();
            key
        })
        .collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for session in sessions {
            let store = &store;
            scope.spawn(move || {
                let mut head = 0;
                while head < rows / lanes {
                    let events = (head + 1..=head + batch).map(|seq| event(seq, Some(1), BODY)).collect();
                    let op = WriteOp::AppendEvents { session, epoch: 1, expect_head: head, events };
                    store.commit_blocking(LaneWrite::new(Urgency::Stream, vec![op])).unwrap();
                    head += batch;
                }
            });
        }
    });
    let elapsed = start.elapsed();
    if batch == 256 {
        drop(store);
        reopen(folder);
    }
    elapsed
}

/// What a starting host and a newly attached client wait for.
fn reopen(folder: &Path) {
    let start = Instant::now();
    let store = SqliteStore::open(folder.join("bench.db"), SqliteOptions::default()).unwrap().store;
    let opened = start.elapsed();
    let session = store.session_by_id("s0").unwrap().unwrap();
    let limit = PageLimit { rows: 200, bytes: usize::MAX };
    let page = store.events(session.key, 1, session.head - 200, limit).unwrap();
    assert_eq!(page.rows.len(), 200);
    println!("    open {opened:?}, open to the tail page {:?}", start.elapsed());
}

/// The physical limit: the bodies alone, one write and one sync per group.
fn plain_file(folder: &Path, rows: u64, group: u64) -> Duration {
    let mut file = std::fs::File::create(folder.join("plain")).unwrap();
    let start = Instant::now();
    let mut written = 0;
    while written < rows {
        let batch: Vec<u8> = (0..group).flat_map(|_| BODY.bytes()).collect();
        file.write_all(&batch).unwrap();
        file.sync_data().unwrap();
        written += group;
    }
    start.elapsed()
}
