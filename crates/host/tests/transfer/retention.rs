//! What goes, when, and what a reader is told that comes too late.

use crate::journal::Written;
use crate::world::{DEADLINE, NOW, World, memory, sqlite};
use mainstay_core::Command;
use mainstay_host::retention::FEED_KEEP_ROWS;
use mainstay_host::{FeedDelivered, HostError, ResetReason, Retention};
use mainstay_store::{
    FeedEntry, LaneWrite, NewEvent, PURGE_EVENT_ROWS, SessionKey, Store, Urgency, WriteOp, conformance,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DAY_MS: i64 = 24 * 60 * 60 * 1_000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Polls a condition that nothing signals.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let give_up = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < give_up, "never happened: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await; // poll
    }
}

fn write(store: &dyn Store, ops: Vec<WriteOp>) {
    let write = LaneWrite::new(Urgency::Command, ops);
    tokio::task::block_in_place(|| store.commit_blocking(write)).expect("stored");
}

fn at_rest(world: &World, id: &str) -> SessionKey {
    Written::new(id, &world.work()).store(world.store.as_ref())
}

async fn deleted_sessions_lose_their_rows(store: Arc<dyn Store>) {
    let world = World::on(store);
    let key = at_rest(&world, "s1");
    let kept = at_rest(&world, "s2");
    // More than one batch.
    let more = |seq: u64| NewEvent { kind: "notice".into(), ..conformance::event(seq, None, &line(seq)) };
    let events = (2..=PURGE_EVENT_ROWS * 2 + 10).map(more).collect();
    write(
        world.store.as_ref(),
        vec![WriteOp::AppendEvents { session: key, epoch: 1, expect_head: 1, events }],
    );
    world.host.command("s1", Command::Delete, None).await.expect("deleted");
    until("its journal is gone", || !world.store.has_events(key).expect("read")).await;
    let row = world.store.session(key).expect("read").expect("its row stays");
    assert!(row.deleted && row.launch.is_empty(), "what it was launched with is gone too");
    assert!(matches!(world.host.session("s1").await, Err(HostError::SessionUnknown(_))));
    assert!(world.store.session_by_id("s1").expect("read").is_some(), "its id stays taken");
    assert!(world.store.has_events(kept).expect("read"));
}

/// A notice, as it stands in a journal.
fn line(seq: u64) -> String {
    serde_json::json!({
        "epoch": 1, "seq": seq, "at": 1_000, "fence": 0, "type": "notice", "level": "info", "message": "x",
    })
    .to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_sessions_lose_their_rows_in_memory() {
    deleted_sessions_lose_their_rows(memory()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_sessions_lose_their_rows_in_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    deleted_sessions_lose_their_rows(sqlite(&folder)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_host_that_died_did_not_purge_is_purged_by_the_next() {
    let store = memory();
    let key = {
        let world = World::on(store.clone());
        let key = at_rest(&world, "s1");
        let mut update = mainstay_store::SessionUpdate::new(key, NOW);
        update.deleted = Some(true);
        write(store.as_ref(), vec![WriteOp::UpdateSession(update)]);
        key
    };
    let world = World::on(store);
    // A look comes with the next deletion, whoever's.
    at_rest(&world, "s2");
    world.host.command("s2", Command::Delete, None).await.expect("deleted");
    until("both journals are gone", || world.store.counts().expect("read").events == 0).await;
    assert!(world.store.session(key).expect("read").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_archived_and_then_deleted_by_age() {
    let retention = Retention {
        archive_after: Some(10 * DAY),
        delete_archived_after: Some(20 * DAY),
        ..Retention::default()
    };
    let world = World::with(memory(), "this-host", retention);
    // `store` says that they were changed at 2,000 ms.
    at_rest(&world, "old");
    let busy = Written::busy("busy", &world.work()).store(world.store.as_ref());
    let mut update = mainstay_store::SessionUpdate::new(busy, 2_000);
    update.status = Some("running".to_owned());
    write(world.store.as_ref(), vec![WriteOp::UpdateSession(update)]);
    let archived = |id: &str| world.store.session_by_id(id).expect("read").expect("there").archived;

    world.clock.set(2_000 + 10 * DAY_MS);
    world.host.let_age().await.expect("done");
    assert!(!archived("old"), "not a moment too early");
    world.clock.set(2_001 + 10 * DAY_MS);
    world.host.let_age().await.expect("done");
    assert!(archived("old") && !archived("busy"));
    // A user takes one out again: its age begins anew.
    world.clock.set(15 * DAY_MS);
    let unarchive = Command::Update { name: None, options: None, archived: Some(false), limits: None };
    world.host.command("old", unarchive, None).await.expect("taken");
    world.clock.set(24 * DAY_MS);
    world.host.let_age().await.expect("done");
    assert!(!archived("old"));
    world.clock.set(26 * DAY_MS);
    world.host.let_age().await.expect("done");
    assert!(archived("old"));
    world.clock.set(46 * DAY_MS);
    world.host.let_age().await.expect("done");
    assert!(world.host.session("old").await.is_ok());
    world.clock.set(46 * DAY_MS + 1);
    // What a round would do that read the row before its user was here.
    let row = world.host.session("old").await.expect("there");
    let seen = mainstay_core::Cursor { epoch: row.epoch, seq: row.head - 1 };
    let refused = world.host.command("old", Command::Age { seen }, None).await;
    assert!(matches!(refused, Err(HostError::Refused(_))), "{refused:?}");
    world.host.let_age().await.expect("done");
    assert!(matches!(world.host.session("old").await, Err(HostError::SessionUnknown(_))));
    assert!(world.host.session("busy").await.is_ok(), "what runs is not touched, however old");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_set_forward_ages_nothing() {
    let retention = Retention { archive_after: Some(10 * DAY), ..Retention::default() };
    let world = World::with(memory(), "this-host", retention);
    let key = at_rest(&world, "new");
    write(world.store.as_ref(), vec![WriteOp::UpdateSession(mainstay_store::SessionUpdate::new(key, NOW))]);
    let archived = || world.store.session_by_id("new").expect("read").expect("there").archived;
    world.clock.step(400 * DAY_MS);
    world.host.let_age().await.expect("done");
    assert!(!archived(), "a year did not pass");
    // Time that passes counts, by whatever clock.
    world.clock.set(NOW + 411 * DAY_MS);
    world.host.let_age().await.expect("done");
    assert!(archived());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_word_nothing_is_archived_or_deleted() {
    let world = World::on(memory());
    at_rest(&world, "old");
    world.clock.set(NOW * 2);
    world.host.let_age().await.expect("done");
    assert!(!world.host.session("old").await.expect("there").archived);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_feed_forgets_what_is_old_and_tells_readers_that_come_too_late() {
    let world = World::with(memory(), "this-host", Retention { keep_feed: DAY, ..Retention::default() });
    let key = at_rest(&world, "s1");
    let entry = |n: u64, at| {
        WriteOp::AppendFeed(FeedEntry {
            at,
            session: key,
            epoch: 1,
            seq: n,
            kind: "turn.ended".into(),
            body: b"{}".to_vec(),
        })
    };
    const OLD: u64 = 2_500;
    write(world.store.as_ref(), (1..=OLD).map(|n| entry(n, NOW - 2 * DAY_MS)).collect());
    write(world.store.as_ref(), vec![entry(0, NOW)]);
    world.host.let_age().await.expect("done");
    assert_eq!(world.store.feed_floor().expect("read"), 0, "the newest stay, however old");
    write(world.store.as_ref(), (0..FEED_KEEP_ROWS - 1).map(|n| entry(n, NOW - 2 * DAY_MS)).collect());
    world.host.let_age().await.expect("done");
    assert_eq!(world.store.feed_floor().expect("read"), OLD, "a young one keeps those behind it");

    // What a new host tells readers.
    let world = World::on(world.store.clone());
    let head = OLD + FEED_KEEP_ROWS;
    let pull = async |after| world.host.feed(after).pull().await.expect("read");
    for after in [1, OLD - 1] {
        let FeedDelivered::Reset { reason, head: at } = pull(after).await else { panic!("no reset") };
        assert_eq!((reason, at), (ResetReason::CursorExpired, head));
    }
    // Whoever has seen nothing, or all that is gone, misses nothing.
    for after in [0, OLD] {
        let FeedDelivered::Entries(rows) = pull(after).await else { panic!("a reset") };
        assert_eq!(rows[0].position, OLD + 1);
    }
    let FeedDelivered::Reset { reason, .. } = pull(head + 1).await else { panic!("no reset") };
    assert_eq!(reason, ResetReason::CursorAhead);
}
