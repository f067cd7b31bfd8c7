//! Backups of a served database, and putting one back.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use common::{Home, append, commit, create, head, open};
use mainstay_store::{
    BackupError, OpenError, RestoreError, SqliteOptions, Store, StoreMode, WRITER_VERSION, WriteOp,
    backup_file, restore_file,
};

fn file(home: &Home, name: &str) -> PathBuf {
    home.folder.path().join(name)
}

/// Names in the folder, sorted.
fn names(home: &Home) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(home.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.ends_with(".reserve"))
        .collect();
    names.sort();
    names
}

#[test]
fn a_backup_from_beside_a_serving_store_is_whole_and_for_its_owner_only() {
    let home = Home::new();
    let backup = file(&home, "copy.db");
    let store = home.open();
    let session = create(&store, "a");
    std::thread::scope(|scope| {
        let store = &store;
        let writer = scope.spawn(move || {
            for head in 0..200 {
                commit(store, vec![append(session, head, "text")]);
            }
        });
        common::until("some events are written", || head(store, session) > 20);
        backup_file(&home.path(), &backup).unwrap();
        writer.join().unwrap();
    });
    assert_eq!(fs::metadata(&backup).unwrap().permissions().mode() & 0o077, 0);
    let again = backup_file(&home.path(), &backup);
    assert!(matches!(again, Err(BackupError::Exists { .. })), "{again:?}");
    let copy = open(&backup, SqliteOptions::default()).store;
    assert!(head(&copy, session) > 20);
    drop(copy);
    let absent = backup_file(&file(&home, "absent"), &file(&home, "x"));
    assert!(matches!(absent, Err(BackupError::Source { .. })), "{absent:?}");
    fs::write(file(&home, "garbage"), "not a database").unwrap();
    let garbage = backup_file(&file(&home, "garbage"), &file(&home, "x"));
    let Err(BackupError::Source { source, .. }) = garbage else { panic!("{garbage:?}") };
    assert!(matches!(*source, OpenError::Corrupt { .. }), "{source:?}");
    assert!(!file(&home, "x").exists() && !file(&home, "x.unfinished").exists());
}

#[test]
fn a_restored_database_is_the_backup_and_the_old_one_is_kept() {
    let home = Home::new();
    let backup = file(&home, "copy.db");
    let store = home.open();
    let session = create(&store, "a");
    commit(&store, vec![append(session, 0, "in the backup")]);
    backup_file(&home.path(), &backup).unwrap();
    for head in 1..5 {
        commit(&store, vec![append(session, head, "behind it")]);
    }
    drop(store);
    let restored = restore_file(&backup, &home.path()).unwrap();
    assert_eq!((restored.commit, restored.acknowledged), (2, 6));
    let replaced = restored.replaced.unwrap();
    assert_eq!(head(&open(&replaced, SqliteOptions::default()).store, session), 5);
    let opened = open(&home.path(), SqliteOptions::default());
    let rewound = opened.rewound.unwrap();
    assert_eq!((rewound.mark, rewound.found, head(&opened.store, session)), (6, 2, 1));
    let (mark, feed) = (rewound.mark, rewound.feed);
    commit(&opened.store, vec![WriteOp::AcknowledgeRewind { mark, feed }]);
    let first = opened.store.epoch_floor();
    drop(opened);
    // Once more the same: no number comes again.
    restore_file(&backup, &home.path()).unwrap();
    let opened = open(&home.path(), SqliteOptions::default());
    let rewound = opened.rewound.unwrap();
    let (mark, feed) = (rewound.mark, rewound.feed);
    commit(&opened.store, vec![WriteOp::AcknowledgeRewind { mark, feed }]);
    assert!(opened.store.epoch_floor() > first, "{} after {first}", opened.store.epoch_floor());
}

#[test]
fn a_restoration_on_a_machine_that_never_had_it_counts_as_a_rewind_too() {
    let home = Home::new();
    let backup = file(&home, "copy.db");
    create(&home.open(), "a");
    backup_file(&home.path(), &backup).unwrap();
    let elsewhere = Home::new();
    let restored = restore_file(&backup, &elsewhere.path()).unwrap();
    assert_eq!((restored.commit, restored.replaced), (1, None));
    assert_eq!(names(&elsewhere), ["test.db", "test.db.high_water"]);
    let rewound = open(&elsewhere.path(), SqliteOptions::default()).rewound.unwrap();
    assert_eq!((rewound.mark, rewound.found), (2, 1));
}

#[test]
fn what_cannot_be_restored_changes_nothing() {
    let home = Home::new();
    let store = home.open();
    let session = create(&store, "a");
    let events =
        (1..=2_000).map(|seq| mainstay_store::conformance::event(seq, None, &"x".repeat(400))).collect();
    commit(&store, vec![WriteOp::AppendEvents { session, epoch: 1, expect_head: 0, events }]);
    let copy = |name: &str| {
        backup_file(&home.path(), &file(&home, name)).unwrap();
        file(&home, name)
    };
    let (damaged, cut, newer) = (copy("damaged"), copy("cut"), copy("newer"));
    drop(store);
    let whole = fs::read(&damaged).unwrap();
    let mut bytes = whole.clone();
    let half = bytes.len() / 2;
    bytes[half..half + 8_192].fill(0xEE);
    fs::write(&damaged, bytes).unwrap();
    fs::write(&cut, &whole[..whole.len() / 3]).unwrap();
    rusqlite::Connection::open(&newer)
        .unwrap()
        .execute("UPDATE meta SET value = ?1 WHERE name = 'min_writer'", [WRITER_VERSION + 1])
        .unwrap();
    fs::write(file(&home, "garbage"), "not a database").unwrap();
    let before = (fs::read(home.path()).unwrap(), names(&home));
    for name in ["damaged", "cut", "newer", "garbage", "absent"] {
        let refused = restore_file(&file(&home, name), &home.path()).unwrap_err();
        let expected = match name {
            "damaged" | "cut" => {
                matches!(
                    refused,
                    RestoreError::Damaged { .. }
                        | RestoreError::NotABackup { .. }
                        | RestoreError::Copy { .. }
                )
            }
            "newer" => matches!(refused, RestoreError::Newer { .. }),
            _ => matches!(refused, RestoreError::NotABackup { .. }),
        };
        assert!(expected, "{name}: {refused:?}");
        assert_eq!(names(&home), before.1, "{name}");
        assert!(fs::read(home.path()).unwrap() == before.0, "{name}");
    }
    let opened = open(&home.path(), SqliteOptions::default());
    assert_eq!((opened.rewound, opened.store.mode()), (None, StoreMode::ReadWrite));
}

#[test]
fn a_damaged_database_is_put_aside_with_its_wal() {
    let home = Home::new();
    let backup = file(&home, "copy.db");
    let store = home.open();
    let session = create(&store, "a");
    backup_file(&home.path(), &backup).unwrap();
    drop(store);
    fs::write(home.path(), "no database any more").unwrap();
    fs::write(file(&home, "test.db-wal"), "its wal").unwrap();
    let restored = restore_file(&backup, &home.path()).unwrap();
    let replaced = restored.replaced.unwrap();
    assert_eq!(fs::read(&replaced).unwrap(), b"no database any more");
    assert_eq!(fs::read(file(&home, "test.db.replaced-1-wal")).unwrap(), b"its wal");
    assert_eq!(head(&home.open(), session), 0);
}

/// Each step of a restoration that was killed right behind it: the old database is whole, and the next one succeeds.
#[test]
fn what_a_killed_restoration_left_is_in_nobodys_way() {
    let home = Home::new();
    let backup = file(&home, "copy.db");
    let store = home.open();
    let session = create(&store, "a");
    backup_file(&home.path(), &backup).unwrap();
    commit(&store, vec![append(session, 0, "behind it")]);
    drop(store);
    // While it copied.
    for name in ["test.db.restoring", "test.db.restoring-wal", "test.db.restoring.unfinished"] {
        fs::write(file(&home, name), "half of something").unwrap();
    }
    // Behind the mark, before the exchange: one rewind too many is told, which harms nobody.
    let mark = file(&home, "test.db.high_water");
    fs::write(&mark, format!("{:020} {:020}\n", 9, 0)).unwrap();
    let opened = open(&home.path(), SqliteOptions::default());
    assert_eq!((opened.rewound.unwrap().mark, head(&opened.store, session)), (9, 1));
    drop(opened);
    // Behind the second name of the old one.
    fs::hard_link(home.path(), file(&home, "test.db.replaced-1")).unwrap();
    assert_eq!(head(&home.open(), session), 1);

    let restored = restore_file(&backup, &home.path()).unwrap();
    assert_eq!(restored.replaced, Some(file(&home, "test.db.replaced-2")));
    assert!(!names(&home).iter().any(|name| name.contains("restoring")), "{:?}", names(&home));
    assert_eq!(head(&home.open(), session), 0);
    assert_eq!(head(&open(&file(&home, "test.db.replaced-1"), SqliteOptions::default()).store, session), 1);
}
