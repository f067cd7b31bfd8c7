//! Files: foreign ones, damaged ones, newer ones, rewound ones, copies.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};

use common::{ALL, Home, append, commit, create, head, open, until};
use mainstay_store::conformance::event;
use mainstay_store::{
    BackupError, Degraded, LaneWrite, Mark, OpenError, ReadError, Rewound, SessionFilter, SqliteOptions,
    SqliteStore, Store, StoreMode, Urgency, WRITER_VERSION, WriteError, WriteOp,
};

fn open_error(home: &Home) -> OpenError {
    SqliteStore::open(home.path(), SqliteOptions::default()).unwrap_err()
}

#[test]
fn garbage_is_named_and_left_alone() {
    let home = Home::new();
    let sqlite_like = [&b"SQLite format 3\0"[..], &[0xAB; 8_000]].concat();
    for garbage in [&b"not a database"[..], &[0; 4096], &sqlite_like] {
        fs::write(home.path(), garbage).unwrap();
        match open_error(&home) {
            OpenError::Corrupt { path, .. } => assert_eq!(path, home.path()),
            other => panic!("{other}"),
        }
        assert_eq!(fs::read(home.path()).unwrap(), garbage);
        assert_eq!(fs::read_dir(home.folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}

#[test]
fn another_programs_database_is_not_touched() {
    let home = Home::new();
    let other = home.raw();
    other.execute_batch("PRAGMA application_id = 77; CREATE TABLE theirs (x)").unwrap();
    drop(other);
    let before = fs::read(home.path()).unwrap();
    assert!(matches!(open_error(&home), OpenError::NotOurs { application_id: 77, .. }));
    assert_eq!(fs::read(home.path()).unwrap(), before);
    home.raw().execute_batch("PRAGMA application_id = 0").unwrap();
    assert!(matches!(open_error(&home), OpenError::NotOurs { application_id: 0, .. }));
}

#[test]
fn a_creation_that_was_cut_short_is_begun_again() {
    let home = Home::new();
    fs::write(home.path(), b"").unwrap();
    drop(home.open());
    let cut = Home::new();
    cut.raw().execute_batch("PRAGMA journal_mode = WAL").unwrap();
    create(&cut.open(), "a");
}

#[test]
fn only_the_owner_can_read_it() {
    let home = Home::new();
    let store = home.open();
    create(&store, "a");
    until("the reserve is made", || home.folder.path().join("test.db.reserve").exists());
    for file in fs::read_dir(home.folder.path()).unwrap() {
        let file = file.unwrap();
        let mode = file.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}", file.path().display());
    }
}

#[test]
fn a_file_that_asks_for_a_newer_writer_is_read_only() {
    let home = Home::new();
    let session = create(&home.open(), "a");
    let newer = WRITER_VERSION + 1;
    home.raw().execute("UPDATE meta SET value = ?1 WHERE name = 'min_writer'", [newer]).unwrap();
    let before = fs::read(home.path()).unwrap();
    let store = home.open();
    assert!(matches!(store.mode(), StoreMode::ReadOnly { .. }));
    assert!(matches!(store.degraded(), Some(Degraded::ReadOnly { .. })));
    assert_eq!(store.session_by_id("a").unwrap().unwrap().key, session);
    let outcome = store.commit_blocking(LaneWrite::new(Urgency::Stop, vec![append(session, 0, "")]));
    assert!(matches!(outcome, Err(WriteError::ReadOnly { .. })), "{outcome:?}");
    drop(store);
    assert_eq!(fs::read(home.path()).unwrap(), before);
}

#[test]
fn a_newer_layout_that_allows_us_to_write_is_written() {
    let home = Home::new();
    let session = create(&home.open(), "a");
    home.raw()
        .execute_batch("PRAGMA user_version = 4711; ALTER TABLE sessions ADD COLUMN future TEXT")
        .unwrap();
    let store = home.open();
    commit(&store, vec![append(session, 0, "")]);
    create(&store, "b");
    drop(store);
    let version: i64 = home.raw().query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 4711);
}

#[test]
fn a_rewound_database_is_reported_until_it_is_acknowledged() {
    let home = Home::new();
    let backup = home.folder.path().join("backup.db");
    let store = home.open();
    let session = create(&store, "a");
    store.backup_to(&backup).unwrap();
    for head in 0..5 {
        commit(&store, vec![append(session, head, "")]);
    }
    drop(store);
    fs::rename(&backup, home.path()).unwrap();
    let reopen = || open(&home.path(), SqliteOptions::default());

    let opened = reopen();
    assert_eq!(opened.rewound, Some(Rewound { mark: 6, feed: 0, found: 1 }));
    // What is committed meanwhile hides nothing.
    commit(&opened.store, vec![append(session, 0, "")]);
    drop(opened);
    let opened = reopen();
    assert_eq!(opened.rewound, Some(Rewound { mark: 6, feed: 0, found: 2 }));
    let epoch = WriteOp::StartEpoch { session, epoch: 2 };
    let committed = commit(&opened.store, vec![epoch, WriteOp::AcknowledgeRewind { mark: 6, feed: 0 }]);
    assert_eq!(committed.commit, 7);
    drop(opened);
    let opened = reopen();
    assert_eq!((opened.rewound, opened.mark), (None, Mark::At { commit: 7, feed: 1 }));
}

#[test]
fn a_lost_mark_says_nothing_about_a_rewind() {
    let home = Home::new();
    let mark = home.folder.path().join("test.db.high_water");
    let reopen = || open(&home.path(), SqliteOptions::default());
    assert_eq!(reopen().mark, Mark::Absent);
    create(&home.open(), "a");
    fs::remove_file(&mark).unwrap();
    let opened = reopen();
    assert_eq!((opened.mark, opened.rewound), (Mark::Absent, None));
    create(&opened.store, "b");
    drop(opened);
    fs::write(&mark, "damaged").unwrap();
    let opened = reopen();
    assert_eq!((opened.mark, opened.rewound), (Mark::Unreadable, None));
    create(&opened.store, "c");
    drop(opened);
    assert_eq!(reopen().mark, Mark::At { commit: 3, feed: 0 });
}

#[test]
fn a_second_writer_is_noticed_and_nothing_more_is_written() {
    let home = Home::new();
    let store = home.open();
    let session = create(&store, "a");
    home.raw().execute_batch("UPDATE meta SET value = value + 1 WHERE name = 'commit'").unwrap();
    for _ in 0..2 {
        let outcome = store.commit_blocking(LaneWrite::new(Urgency::Command, vec![append(session, 0, "")]));
        assert_eq!(outcome, Err(WriteError::ForeignWriter { expected: 1, found: 2 }));
    }
    assert_eq!(head(&store, session), 0);
}

#[test]
fn one_bad_row_hides_no_other() {
    let home = Home::new();
    let store = home.open();
    let sessions: Vec<_> = (0..4).map(|n| create(&store, &format!("s{n}"))).collect();
    let events = (1..=5).map(|seq| event(seq, Some(1), "text")).collect();
    commit(&store, vec![WriteOp::AppendEvents { session: sessions[0], epoch: 1, expect_head: 0, events }]);
    let raw = home.raw();
    raw.execute("UPDATE sessions SET agent = x'ff', status = 'running' WHERE key = ?1", [sessions[1].0])
        .unwrap();
    raw.execute("DELETE FROM heads WHERE session = ?1", [sessions[2].0]).unwrap();
    raw.execute("UPDATE events SET fence = -1 WHERE seq = 3", []).unwrap();

    let list = store.sessions(&SessionFilter::default(), None, 99).unwrap();
    assert_eq!(list.rows.iter().map(|row| row.key).collect::<Vec<_>>(), [sessions[3], sessions[0]]);
    let bad: Vec<_> = list.bad.iter().map(|bad| (bad.table, bad.key.as_str())).collect();
    assert_eq!(bad, [("sessions", "3:s2"), ("sessions", "2:s1")]);
    assert_eq!(store.unrested_sessions().unwrap().bad.len(), 1);
    assert!(matches!(store.session(sessions[1]), Err(ReadError::Corrupt { .. })));

    let page = store.events(sessions[0], 1, 0, ALL).unwrap();
    assert_eq!(page.rows.iter().map(|row| row.seq).collect::<Vec<_>>(), [1, 2, 4, 5]);
    assert_eq!((page.bad.len(), page.bad[0].key.as_str()), (1, "1:3"));
    // And the others can be written.
    commit(&store, vec![append(sessions[3], 0, "")]);
}

#[test]
fn damaged_pages_are_a_typed_error_and_cost_only_what_they_held() {
    let home = Home::new();
    let store = home.open();
    let (big, small) = (create(&store, "big"), create(&store, "small"));
    let events = (1..=4_000).map(|seq| event(seq, None, &"x".repeat(400))).collect();
    commit(&store, vec![WriteOp::AppendEvents { session: big, epoch: 1, expect_head: 0, events }]);
    drop(store);
    // The tables were made first, so the back half of the file holds only events.
    let file = fs::File::options().read(true).write(true).open(home.path()).unwrap();
    let half = file.metadata().unwrap().len() / 2;
    file.write_all_at(&vec![0xEE; usize::try_from(half).unwrap()], half).unwrap();
    let store = home.open();
    match store.events(big, 1, 0, ALL) {
        Err(ReadError::Corrupt { .. }) => {}
        Ok(page) => assert!(!page.bad.is_empty() && page.rows.len() < 4_000),
        Err(other) => panic!("{other}"),
    }
    assert_eq!(store.sessions(&SessionFilter::default(), None, 9).unwrap().rows.len(), 2);
    // The damaged end of the one journal refuses, typed; the other session's neighbour in the group is not hurt.
    let damaged = store.submit(LaneWrite::new(Urgency::Stream, vec![append(big, 4_000, "")]));
    let healthy = store.submit(LaneWrite::new(
        Urgency::Stream,
        vec![WriteOp::ClaimThread { scope: "s".to_owned(), thread: "t".to_owned(), session: small }],
    ));
    let damaged = common::wait(damaged);
    assert!(matches!(damaged, Err(WriteError::Corrupt { .. })), "{damaged:?}");
    common::wait(healthy).unwrap();
}

#[test]
fn a_backup_is_whole_while_writers_go_on() {
    let home = Home::new();
    let store = home.open();
    let session = create(&store, "a");
    let backup = home.folder.path().join("backup.db");
    std::thread::scope(|scope| {
        let store = &store;
        let writer = scope.spawn(move || {
            for head in 0..300 {
                commit(store, vec![append(session, head, "text")]);
            }
        });
        until("some events are written", || head(store, session) > 20);
        store.backup_to(&backup).unwrap();
        writer.join().unwrap();
    });
    assert!(matches!(store.backup_to(&backup), Err(BackupError::Exists { .. })));
    let copy = open(&backup, SqliteOptions::default()).store;
    let copied = copy.events(session, 1, 0, ALL).unwrap().rows;
    assert!(copied.len() > 20);
    assert_eq!(copied.len() as u64, head(&copy, session));
    assert_eq!(head(&store, session), 300);
    drop(store);
    assert!(matches!(
        copy.backup_to(home.folder.path().join("absent").join("x.db")),
        Err(BackupError::Io { .. })
    ));
}

#[test]
fn a_database_of_the_first_version_is_brought_up_and_stays_readable_by_it() {
    let home = Home::new();
    let session = create(&home.open(), "a");
    home.raw()
        .execute_batch(
            "DELETE FROM meta WHERE name IN ('epoch_floor', 'feed_floor');
             DROP INDEX sessions_deleted;
             PRAGMA user_version = 1;",
        )
        .unwrap();
    let store = home.open();
    assert_eq!((store.epoch_floor(), store.feed_floor().unwrap()), (1, 0));
    commit(&store, vec![append(session, 0, ""), WriteOp::AcknowledgeRewind { mark: 9, feed: 9 }]);
    drop(store);
    let store = home.open();
    assert_eq!((store.epoch_floor(), store.feed_floor().unwrap()), (10, 10));
    let number = |sql: &str| home.raw().query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(number("PRAGMA user_version"), mainstay_store::SCHEMA_VERSION);
    assert_eq!(number("SELECT value FROM meta WHERE name = 'min_writer'"), 1);
}
