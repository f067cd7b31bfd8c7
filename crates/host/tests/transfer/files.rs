//! Out and in again.

use crate::journal::Written;
use crate::world::{World, memory, sqlite, sqlite_with};
use mainstay_core::event::LeftOut;
use mainstay_core::session::Phase;
use mainstay_core::{Event, Session, SessionId, Stamped};
use mainstay_host::transfer::{ImportError, ImportRequest, verify};
use mainstay_host::{HostError, timeline};
use mainstay_store::{Fault, PageLimit, SqliteOptions, Store, WriteError};
use std::sync::Arc;

const ALL: PageLimit = PageLimit { rows: usize::MAX, bytes: usize::MAX };

pub(crate) async fn exported(world: &World, session: &str) -> Vec<u8> {
    let mut export = world.host.export(session).await.expect("begins");
    let mut bytes = Vec::new();
    while let Some(piece) = export.next().await.expect("goes on") {
        bytes.extend(piece);
    }
    bytes
}

async fn import(world: &World, bytes: &[u8], request: ImportRequest) -> Result<String, ImportError> {
    let (id, _) = world.host.import(world.spooled(bytes), request, None).await?;
    Ok(id.0)
}

/// All lines of a session's journal, through its epochs.
pub(crate) fn lines(store: &dyn Store, id: &str) -> Vec<Vec<u8>> {
    let row = store.session_by_id(id).expect("read").expect("there");
    let mut lines = Vec::new();
    let mut epoch = 0;
    while let Some(next) = store.next_epoch(row.key, epoch).expect("read") {
        let page = store.events(row.key, next, 0, ALL).expect("read");
        lines.extend(page.rows.into_iter().map(|row| row.body));
        epoch = next;
    }
    lines
}

async fn state(world: &World, id: &str) -> Session {
    world.host.state(id).await.expect("loads").1
}

async fn goes_out_and_in(store: Arc<dyn Store>, other: Arc<dyn Store>) {
    let here = World::on(store);
    let written = Written::busy("s1", &here.work());
    written.store(here.store.as_ref());
    let file = exported(&here, "s1").await;
    assert_eq!(file, exported(&here, "s1").await, "the same journal gives the same bytes");
    let verified = verify(file.as_slice()).expect("whole");
    assert_eq!(verified.session, written.session);
    assert_eq!(verified.rows, written.events.len() as u64);

    // Beside the one it was made of: under a new id, and that one is as it was.
    let before = lines(here.store.as_ref(), "s1");
    let copy = import(&here, &file, ImportRequest::default()).await.expect("taken");
    assert_ne!(copy, "s1");
    assert_eq!(lines(here.store.as_ref(), "s1"), before);
    check_taken_over(&here, &copy, &written).await;
    assert_eq!(exported(&here, "s1").await, file);

    // Elsewhere: under its own id, and with what makes a late retry of a message the same message.
    let there = World::with(other, "other-host", mainstay_host::Retention::default());
    let elsewhere = ImportRequest { id: None, cwd: Some(there.work()) };
    let moved = import(&there, &file, elsewhere.clone()).await.expect("taken");
    assert_eq!(moved, "s1");
    check_taken_over(&there, "s1", &written).await;
    let session = state(&there, "s1").await;
    assert_eq!(session.launch.cwd, std::fs::canonicalize(there.work()).expect("there").display().to_string());
    assert_eq!(session.launch.account_home, None, "another machine's accounts are not this one's");
    let owner = there.store.id_owner("submission", "s1.m1").expect("read").expect("registered");
    assert_eq!(owner.session, there.store.session_by_id("s1").expect("read").expect("there").key);

    // And on from there: the whole history goes with it, whoever had it in between.
    let again = exported(&there, "s1").await;
    let back =
        import(&here, &again, ImportRequest { id: Some(SessionId::from("back")), ..elsewhere_here(&here) })
            .await
            .expect("taken");
    assert_eq!(back, "back");
    let came: Vec<Vec<u8>> = lines(here.store.as_ref(), "back");
    assert_eq!(came[..before.len()], before[..], "what was journaled is never written anew");
    let imports = came.iter().filter(|line| kind(line) == "session.imported").count();
    assert_eq!(imports, 2);

    // An id that is asked for and taken is a conflict, and nothing comes of it.
    let counts = here.store.counts().expect("read");
    let taken = ImportRequest { id: Some(SessionId::from("s1")), cwd: None };
    let refused = import(&here, &file, taken).await.expect_err("taken");
    assert!(matches!(refused, ImportError::Host(HostError::IdConflict { .. })), "{refused:?}");
    assert_eq!(here.store.counts().expect("read"), counts);
}

fn elsewhere_here(here: &World) -> ImportRequest {
    ImportRequest { id: None, cwd: Some(here.work()) }
}

fn kind(line: &[u8]) -> String {
    serde_json::from_slice::<Stamped>(line).expect("an event").event.kind().to_owned()
}

async fn check_taken_over(world: &World, id: &str, written: &Written) {
    let session = state(world, id).await;
    assert_eq!((session.id.as_str(), session.phase, &session.process), (id, Phase::Free, &None));
    assert!(session.turns.is_empty() && session.items.is_empty() && session.requests.is_empty());
    assert!(session.queue_paused && session.nothing_owed(), "nothing is sent by itself");
    assert!(session.replace_thread, "its conversation belongs to another session");
    assert_eq!(world.store.thread_owner("absent:default", "thread").expect("read"), None);
    let row = world.store.session_by_id(id).expect("read").expect("there");
    assert_eq!((row.deleted, row.process, row.epoch, row.head), (false, None, session.epoch, session.head));
    assert_eq!((row.status.as_str(), row.fence), ("idle", session.fence.0));

    let lines = lines(world.store.as_ref(), id);
    let original: Vec<Vec<u8>> =
        written.events.iter().map(|stamped| serde_json::to_vec(stamped).expect("serializes")).collect();
    assert_eq!(lines[..original.len()], original[..], "the events are kept to the byte");
    let epoch: Stamped = serde_json::from_slice(&lines[original.len()]).expect("an event");
    assert_eq!((epoch.seq, epoch.event.kind()), (1, "epoch.started"));
    let imported: Stamped = serde_json::from_slice(&lines[original.len() + 1]).expect("an event");
    let Event::SessionImported { session, from, launch, left_out } = imported.event else {
        panic!("{imported:?}")
    };
    assert_eq!((session.as_str(), from.session.as_str(), from.host.as_str()), (id, "s1", "that-host"));
    assert_eq!((from.head.epoch, from.head.seq), (written.session.epoch, written.session.head));
    assert_eq!((launch.instructions, launch.account_home), (None, None));
    assert_eq!(left_out, [LeftOut::AccountHome, LeftOut::Instructions]);

    // The timeline is there, with its texts.
    let page = world.host.read(move |store| timeline::page(store, &row, None, 50)).await.expect("read");
    let texts: Vec<(&str, &str)> =
        page.items.iter().map(|item| (item.state.as_str(), item.text.as_str())).collect();
    assert!(texts.contains(&("completed", "grüße to the world")), "{texts:?}");
    assert!(texts.contains(&("completed", "half a sen")), "{texts:?}");
    let feed = world.store.feed(0, 1_000).expect("read").rows;
    assert!(feed.iter().any(|entry| entry.kind == "session.imported"));
    assert!(feed.iter().all(|entry| entry.kind != "session.created"), "what is past is no news");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_out_and_in_with_the_store_in_memory() {
    goes_out_and_in(memory(), memory()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_goes_out_and_in_with_sqlite() {
    let folders = [tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder")];
    goes_out_and_in(sqlite(&folders[0]), sqlite(&folders[1])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_journal_of_many_epochs_comes_over_whole() {
    let here = World::on(memory());
    let mut written = Written::busy("s1", &here.work());
    for n in 0..3_000 {
        written.text("t2", "k2", &format!(" {n:06}"));
        if n % 1_000 == 999 {
            let (mut out, now) = (mainstay_core::Out::default(), 1_000);
            let reason = mainstay_core::event::EpochReason::FenceAhead;
            written.session.begin_epoch(reason, u64::try_from(n).expect("small"), now, &mut out);
            written.events.extend(out.events);
        }
    }
    written.store(here.store.as_ref());
    let file = exported(&here, "s1").await;
    let folder = tempfile::tempdir().expect("a folder");
    let there = World::on(sqlite(&folder));
    let request = ImportRequest { id: None, cwd: Some(there.work()) };
    import(&there, &file, request).await.expect("taken");
    let lines = lines(there.store.as_ref(), "s1");
    assert!(
        lines[..written.events.len()]
            .iter()
            .zip(&written.events)
            .all(|(line, stamped)| { *line == serde_json::to_vec(stamped).expect("serializes") })
    );
    // Loading folds all of it, with and without the snapshot.
    assert_eq!(state(&there, "s1").await.id.as_str(), "s1");
    let page = there
        .host
        .read(|store| {
            let row = store.session_by_id("s1")?.expect("there");
            timeline::page(store, &row, None, 1)
        })
        .await
        .expect("read");
    assert!(page.items[0].text.ends_with("002998 002999"), "{}", page.items[0].text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_leads_no_agent_where_no_session_may_go() {
    let here = World::on(memory());
    let outside = tempfile::tempdir().expect("a folder");
    let written = Written::busy("s1", &outside.path().display().to_string());
    written.store(here.store.as_ref());
    let file = exported(&here, "s1").await;
    let counts = here.store.counts().expect("read");
    let refused = import(&here, &file, ImportRequest::default()).await.expect_err("refused");
    assert!(
        matches!(refused, ImportError::Host(HostError::BadFolder { outside_roots: true, .. })),
        "{refused:?}"
    );
    // An agent that is not registered here cannot be served either.
    let other =
        String::from_utf8(file).expect("text").replace("\"agent\":\"absent\"", "\"agent\":\"unheard\"");
    let other = crate::damaged::sealed(other.lines().map(str::to_owned).collect());
    let refused = import(&here, &other, elsewhere_here(&here)).await.expect_err("refused");
    assert!(matches!(refused, ImportError::Host(HostError::AgentUnknown { .. })), "{refused:?}");
    assert_eq!(here.store.counts().expect("read"), counts);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_import_that_the_store_refuses_leaves_nothing() {
    let here = World::on(memory());
    let mut written = Written::busy("s1", &here.work());
    for n in 0..20_000 {
        // Each in a batch of its own, so that the journal is long.
        written.text("t2", "k2", &format!("{n:0100}"));
    }
    written.store(here.store.as_ref());
    let file = exported(&here, "s1").await;
    // The disk is full in the middle of it.
    let folder = tempfile::tempdir().expect("a folder");
    let options = SqliteOptions { max_pages: Some(400), reserve_bytes: 0, ..SqliteOptions::default() };
    let small = World::on(sqlite_with(&folder, options));
    let refused = import(&small, &file, elsewhere_here(&small)).await.expect_err("no room");
    assert!(matches!(refused, ImportError::Host(HostError::Storage(WriteError::DiskFull))), "{refused:?}");
    let counts = small.store.counts().expect("read");
    assert_eq!((counts.sessions, counts.events, counts.items, counts.ids), (0, 0, 0, 0));
    // The last transaction, too, may fail; and one whose acknowledgement is lost is no half of a session either.
    for fault in [Fault::FailCommit(WriteError::DiskFull), Fault::LoseAcknowledgement] {
        let there = World::on(memory());
        there.store.inject(fault.clone());
        import(&there, &file, elsewhere_here(&there)).await.expect_err("refused");
        let counts = there.store.counts().expect("read");
        assert_eq!((counts.sessions, counts.events, counts.items, counts.ids), (0, 0, 0, 0), "{fault:?}");
        import(&there, &file, elsewhere_here(&there)).await.expect("and then it is taken");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_host_that_died_left_of_an_import_is_removed_by_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = sqlite(&folder);
    let key = store.allocate_session_key();
    let stage = mainstay_store::WriteOp::StageSession(mainstay_store::NewSession {
        key,
        id: "s1".to_owned(),
        agent: "absent".to_owned(),
        name: None,
        cwd: "/".to_owned(),
        created_at: 1,
        launch: Vec::new(),
    });
    let events = (1..=30_000).map(|seq| mainstay_store::conformance::event(seq, None, "{}")).collect();
    let append = mainstay_store::WriteOp::AppendEvents { session: key, epoch: 1, expect_head: 0, events };
    let write = mainstay_store::LaneWrite::new(mainstay_store::Urgency::Command, vec![stage, append]);
    tokio::task::block_in_place(|| store.commit_blocking(write)).expect("stored");
    let world = World::on(store);
    crate::retention::until("the rest of the import is gone", || {
        world.store.session(key).expect("read").is_none() && !world.store.has_events(key).expect("read")
    })
    .await;
}
