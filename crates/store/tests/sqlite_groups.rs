//! Group commit: what shares a transaction, in which order, and what a failed one costs.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{Home, append, commit, create, head, submit, wait};
use mainstay_store::conformance::event;
use mainstay_store::{
    Conflict, Fault, FeedEntry, LaneWrite, MAX_QUEUED_BYTES, MAX_QUEUED_WRITES, SessionKey, SqliteOptions,
    Store, Urgency, WriteError, WriteOp,
};

/// Longer than any test: a group that is complete before has been ended by something else.
const NEVER: Duration = Duration::from_secs(600);

fn gathering(stream_flush: Duration) -> SqliteOptions {
    SqliteOptions { stream_flush, ..SqliteOptions::default() }
}

fn feed(session: SessionKey, kind: &'static str) -> WriteOp {
    WriteOp::AppendFeed(FeedEntry { at: 1, session, epoch: 1, seq: 1, kind: kind.into(), body: vec![] })
}

#[test]
fn a_command_ends_the_wait_of_streams_and_shares_their_transaction() {
    let home = Home::new();
    let store = home.open_with(gathering(NEVER));
    let sessions: Vec<_> = (0..5).map(|n| create(&store, &format!("s{n}"))).collect();
    let mut answers: Vec<_> = sessions[..4]
        .iter()
        .map(|session| submit(&store, Urgency::Stream, append(*session, 0, "text")))
        .collect();
    answers.push(submit(&store, Urgency::Command, append(sessions[4], 0, "command")));
    let commits: Vec<_> = answers.into_iter().map(|answer| wait(answer).unwrap().commit).collect();
    assert!(commits.iter().all(|commit| *commit == 6), "{commits:?}");
    assert_eq!(store.commit_number(), 6);
}

#[test]
fn streams_alone_are_synced_when_they_gathered_long_enough() {
    let home = Home::new();
    let flush = Duration::from_millis(50);
    let store = home.open_with(gathering(flush));
    let session = create(&store, "a");
    let start = Instant::now();
    wait(submit(&store, Urgency::Stream, append(session, 0, "text"))).unwrap();
    assert!(start.elapsed() >= flush);
}

#[test]
fn a_full_group_does_not_wait() {
    let home = Home::new();
    let store = home.open_with(gathering(NEVER));
    let sessions: Vec<_> = (0..256).map(|n| create(&store, &format!("s{n}"))).collect();
    let answers: Vec<_> =
        sessions.iter().map(|key| submit(&store, Urgency::Stream, append(*key, 0, ""))).collect();
    for answer in answers {
        wait(answer).unwrap();
    }
}

#[test]
fn in_a_group_a_stop_goes_first_and_a_refusal_stands_alone() {
    let home = Home::new();
    let store = home.open_with(gathering(NEVER));
    let session = create(&store, "a");
    let streams = [(0, "kept"), (7, "refused"), (1, "kept")].map(|(expect_head, kind)| {
        let ops = vec![feed(session, kind), append(session, expect_head, "")];
        store.submit(LaneWrite::new(Urgency::Stream, ops))
    });
    let stop = submit(&store, Urgency::Stop, feed(session, "stop"));
    let stop = wait(stop).unwrap();
    let [first, refused, last] = streams.map(wait);
    assert_eq!((first, last), (Ok(stop), Ok(stop)));
    assert_eq!(refused, Err(WriteError::Conflict(Conflict::Head { session, epoch: 1, head: 1 })));
    assert_eq!(stop.feed_head, 3);
    let kinds: Vec<_> = store.feed(0, 9).unwrap().rows.into_iter().map(|row| row.kind).collect();
    assert_eq!(kinds, ["stop", "kept", "kept"]);
}

#[test]
fn a_group_that_the_database_ended_is_tried_one_by_one_with_the_stop_first() {
    let home = Home::new();
    let store = home.open_with(gathering(NEVER));
    let session = create(&store, "a");
    store.inject(Fault::EndTransaction(WriteError::Io { detail: "chosen".to_owned() }));
    let streams = ["x", "y"].map(|kind| submit(&store, Urgency::Stream, feed(session, kind)));
    let refused = submit(&store, Urgency::Stream, append(session, 7, ""));
    let stop = wait(submit(&store, Urgency::Stop, feed(session, "stop"))).unwrap();
    assert_eq!(stop.commit, 2);
    let commits = streams.map(|answer| wait(answer).unwrap().commit);
    assert_eq!(commits, [3, 4]);
    assert!(matches!(wait(refused), Err(WriteError::Conflict(_))));
    assert_eq!(store.stats().groups_undone, 1);
    assert_eq!(store.degraded(), None);
}

#[test]
fn a_full_queue_says_so_and_still_takes_a_stop() {
    let home = Home::new();
    let store = home.open();
    let session = create(&store, "a");
    // Another process holds the write lock: the disk "stalls" (for less than the writer waits for a lock).
    let blocker = home.raw();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut accepted = Vec::new();
    // The queue's bound, and one group that the writer may have taken out already.
    for _ in 0..MAX_QUEUED_WRITES + 256 + 1 {
        let mut answer = submit(&store, Urgency::Stream, feed(session, "stream"));
        match answer.try_recv() {
            Ok(outcome) => {
                assert_eq!(outcome, Err(WriteError::Overloaded));
                break;
            }
            Err(_) => accepted.push(answer),
        }
    }
    assert!(accepted.len() >= MAX_QUEUED_WRITES && accepted.len() <= MAX_QUEUED_WRITES + 256);
    assert_eq!(store.stats().overloaded, 1);
    let mut command = submit(&store, Urgency::Command, feed(session, "command"));
    assert_eq!(command.try_recv().unwrap(), Err(WriteError::Overloaded));
    let stop = submit(&store, Urgency::Stop, feed(session, "stop"));
    blocker.execute_batch("ROLLBACK").unwrap();
    wait(stop).unwrap();
    let accepted_writes = accepted.len() as u64;
    for answer in accepted {
        wait(answer).unwrap();
    }
    assert_eq!(store.feed_head().unwrap(), accepted_writes + 1);
    let stats = store.stats();
    assert_eq!((stats.queued_writes, stats.queued_bytes, stats.overloaded), (0, 0, 2));
}

#[test]
fn a_write_that_could_never_be_queued_is_too_large() {
    let home = Home::new();
    let store = home.open();
    let session = create(&store, "a");
    let body = "x".repeat(MAX_QUEUED_BYTES);
    let outcome = wait(submit(&store, Urgency::Stop, append(session, 0, &body)));
    assert!(matches!(outcome, Err(WriteError::TooLarge { .. })), "{outcome:?}");
    assert_eq!(head(&store, session), 0);
}

#[test]
fn a_number_that_the_database_cannot_hold_is_refused_alone() {
    let home = Home::new();
    let store = home.open_with(gathering(NEVER));
    let session = create(&store, "a");
    let huge = mainstay_store::NewEvent { fence: u64::MAX, ..event(1, None, "") };
    let bad = WriteOp::AppendEvents { session, epoch: 1, expect_head: 0, events: vec![huge] };
    let bad = submit(&store, Urgency::Stream, bad);
    let good = submit(&store, Urgency::Command, feed(session, "good"));
    assert!(matches!(wait(bad), Err(WriteError::Invalid { .. })));
    wait(good).unwrap();
    assert_eq!(head(&store, session), 0);
}

#[test]
fn closing_commits_what_waits() {
    let home = Home::new();
    let store = home.open_with(gathering(NEVER));
    let session = create(&store, "a");
    let answer = submit(&store, Urgency::Stream, append(session, 0, "text"));
    store.close();
    wait(answer).unwrap();
    assert!(!home.path().with_extension("db-wal").exists(), "the WAL is folded into the file");
    let store = home.open();
    assert_eq!(head(&store, session), 1);
    commit(&store, vec![append(session, 1, "")]);
}

#[tokio::test]
async fn commit_is_a_future() {
    let home = Home::new();
    let store = home.open();
    let key = store.allocate_session_key();
    let ops = vec![WriteOp::CreateSession(mainstay_store::conformance::new_session(key, "a"))];
    let committed = store.commit(LaneWrite::new(Urgency::Command, ops)).await.unwrap();
    assert_eq!(committed.commit, 1);
}
