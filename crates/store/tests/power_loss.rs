//! The machine loses power: what was acknowledged is there, what was not is there whole or not at all.
//!
//! Images of the files are taken after every acknowledged commit, when everything up to it is synced (SQLite's own
//! `synchronous = FULL`; a unit test sees to it that the writer has it). Between two images the database wrote sectors that
//! a disk may have kept or not, in any combination, until it was told to sync. So from each pair of images disks are made
//! that kept any subset of them, and each must open as one of the two states:
//! * while a commit is being written: the old database file, and any subset of the changed sectors of the WAL;
//! * while a checkpoint is being written: the whole WAL, and any subset of the changed sectors of the database file.
//!
//! The shared-memory file is rebuilt from the WAL; the mark is not synced, and may be missing or older.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs;
use std::path::Path;

use common::{ALL, Home, commit, create, open};
use mainstay_store::conformance::event;
use mainstay_store::{FeedEntry, ItemRow, Mark, SessionKey, SqliteOptions, SqliteStore, Store, WriteOp};

/// What a disk writes at once or not at all. A page consists of several, so pages are torn too.
const SECTOR: usize = 512;
/// Commits, of which every third is large: together several checkpoints.
const COMMITS: u64 = 48;
/// Disks made from each pair of images, for each of the two moments.
const DISKS: u64 = 5;

/// A chain of choices; the same seed always gives the same ones.
struct Choice(u64);

impl Choice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[derive(Clone, Default)]
struct Image {
    database: Vec<u8>,
    wal: Vec<u8>,
    mark: Vec<u8>,
}

impl Image {
    fn take(home: &Home) -> Self {
        let read =
            |suffix: &str| fs::read(home.folder.path().join(format!("test.db{suffix}"))).unwrap_or_default();
        Self { database: read(""), wal: read("-wal"), mark: read(".high_water") }
    }

    fn put(&self, folder: &Path) {
        for side in ["", "-wal", "-shm", ".high_water", ".reserve"] {
            let _gone = fs::remove_file(folder.join(format!("test.db{side}")));
        }
        fs::write(folder.join("test.db"), &self.database).unwrap();
        if !self.wal.is_empty() {
            fs::write(folder.join("test.db-wal"), &self.wal).unwrap();
        }
        if !self.mark.is_empty() {
            fs::write(folder.join("test.db.high_water"), &self.mark).unwrap();
        }
    }
}

/// `old`, with some of the sectors in which `new` differs. What was never written of a longer file reads as zeros.
fn some_of(old: &[u8], new: &[u8], choice: &mut Choice) -> Vec<u8> {
    // None, all, all but one, few, many: the extremes are where mistakes live.
    let kind = choice.below(6);
    let changed: Vec<usize> = (0..new.len().div_ceil(SECTOR))
        .filter(|sector| {
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(new.len());
            old.get(range.clone()) != Some(&new[range])
        })
        .collect();
    let but_one = changed.get(usize::try_from(choice.below(changed.len().max(1) as u64)).unwrap()).copied();
    let mut disk = old.to_vec();
    // The length may have been kept without what is in it, and the other way about it is cut.
    if new.len() > old.len() && choice.below(2) == 0 {
        disk.resize(new.len(), 0);
    }
    for sector in changed {
        let kept = match kind {
            0 => false,
            1 => true,
            2 => Some(sector) != but_one,
            3 => choice.below(8) == 0,
            4 => choice.below(8) != 0,
            _ => choice.below(2) == 0,
        };
        if kept {
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(new.len());
            if disk.len() < range.end {
                disk.resize(range.end, 0);
            }
            disk[range.clone()].copy_from_slice(&new[range]);
        }
    }
    disk
}

/// Everything that is read after a start, as text.
fn state(store: &SqliteStore, sessions: &[SessionKey]) -> String {
    let mut state = vec![format!("{:?}", (store.commit_number(), store.feed_head().unwrap()))];
    for session in sessions {
        let row = store.session(*session).unwrap().unwrap();
        let page = store.events(*session, 1, 0, ALL).unwrap();
        assert!(page.bad.is_empty(), "{:?}", page.bad);
        let mut expected = 1;
        for event in &page.rows {
            assert_eq!(event.first_seq, expected, "a hole");
            expected = event.seq + 1;
        }
        assert_eq!(expected - 1, row.head, "the head is not where the journal ends");
        let sizes: Vec<(u64, usize)> = page.rows.iter().map(|row| (row.seq, row.body.len())).collect();
        state.push(format!("{:?}", (row.head, sizes, store.items(*session, None, 99).unwrap())));
    }
    state.push(format!("{:?}", store.feed(0, 9_999).unwrap()));
    state.join("\n")
}

fn ops(session: SessionKey, head: u64, number: u64, choice: &mut Choice) -> (Vec<WriteOp>, u64) {
    let rows = if number.is_multiple_of(3) { 12 } else { 1 + choice.below(3) };
    let size = if number.is_multiple_of(3) { 4_000 } else { 60 };
    let events = (head + 1..=head + rows)
        .map(|seq| event(seq, Some(1), &"x".repeat(usize::try_from(size + seq % 50).unwrap())))
        .collect();
    let item = ItemRow {
        session,
        ordinal: 1,
        id: "i1".to_owned(),
        turn: None,
        kind: "agent_message".to_owned(),
        state: "open".to_owned(),
        first_epoch: 1,
        first_seq: 1,
        last_epoch: 1,
        last_seq: head + rows,
        text_len: 0,
        body: format!("{number}").into_bytes(),
    };
    let feed = FeedEntry { at: 1, session, epoch: 1, seq: head, kind: "x".into(), body: b"{}".to_vec() };
    let append = WriteOp::AppendEvents { session, epoch: 1, expect_head: head, events };
    (vec![append, WriteOp::UpsertItem(item), WriteOp::AppendFeed(feed)], head + rows)
}

#[test]
fn every_subset_of_unsynced_sectors_opens_as_one_of_two_states() {
    let home = Home::new();
    let options = SqliteOptions { reserve_bytes: 0, checkpoint_pages: Some(40), ..SqliteOptions::default() };
    let store = home.open_with(options.clone());
    let mut choice = Choice(11);
    let sessions = [create(&store, "a"), create(&store, "b")];
    let mut heads = [0, 0];
    let mut images = vec![(Image::take(&home), state(&store, &sessions))];
    for number in 0..COMMITS {
        let which = usize::try_from(choice.below(2)).unwrap();
        let (ops, head) = ops(sessions[which], heads[which], number, &mut choice);
        commit(&store, ops);
        heads[which] = head;
        images.push((Image::take(&home), state(&store, &sessions)));
    }
    drop(store);

    let crashed = Home::new();
    let (mut old_states, mut new_states, mut checkpoints) = (0, 0, 0);
    for pair in images.windows(2) {
        let [(before, old), (after, new)] = pair else { unreachable!() };
        let is_checkpoint = before.database != after.database;
        checkpoints += u32::from(is_checkpoint);
        for moment in ["commit", "checkpoint"] {
            if moment == "checkpoint" && !is_checkpoint {
                continue;
            }
            for _ in 0..DISKS {
                let mut disk = if moment == "commit" { before.clone() } else { after.clone() };
                match moment {
                    "commit" => disk.wal = some_of(&before.wal, &after.wal, &mut choice),
                    _ => disk.database = some_of(&before.database, &after.database, &mut choice),
                }
                if choice.below(3) == 0 {
                    disk.mark.clear();
                } else if choice.below(2) == 0 {
                    disk.mark.clone_from(&images[0].0.mark);
                }
                disk.put(crashed.folder.path());
                let opened = open(&crashed.path(), options.clone());
                assert_eq!(opened.rewound, None, "{moment}: the mark says more than was acknowledged");
                let found = state(&opened.store, &sessions);
                match (found == *old, found == *new) {
                    (true, _) if moment == "commit" => old_states += 1,
                    (_, true) => new_states += 1,
                    _ => panic!("{moment}: neither state:\n{found}\nbefore:\n{old}\nafter:\n{new}"),
                }
                // And it goes on.
                create(&opened.store, "next");
            }
        }
    }
    // Else this shows little.
    assert!(
        old_states > 20 && new_states > 20 && checkpoints >= 8,
        "{old_states} old, {new_states} new, {checkpoints} checkpoints"
    );
}

/// A disk that acknowledged a sync which it did not perform: the mark tells, where it was kept.
#[test]
fn a_disk_that_lied_about_a_sync_is_a_rewind() {
    let home = Home::new();
    let options = SqliteOptions { reserve_bytes: 0, ..SqliteOptions::default() };
    let store = home.open_with(options.clone());
    let session = create(&store, "a");
    commit(&store, vec![common::append(session, 0, "kept")]);
    let kept = Image::take(&home);
    for head in 1..4 {
        commit(&store, vec![common::append(session, head, "lost")]);
    }
    let lost = Image { mark: Image::take(&home).mark, ..kept };
    drop(store);
    let crashed = Home::new();
    lost.put(crashed.folder.path());
    let opened = open(&crashed.path(), options);
    assert_eq!(opened.mark, Mark::At { commit: 5, feed: 0 });
    let rewound = opened.rewound.unwrap();
    assert_eq!((rewound.mark, rewound.found), (5, 2));
}

/// The images rest on this: nothing is acknowledged before it is synced.
#[test]
fn the_wal_holds_what_was_acknowledged() {
    let home = Home::new();
    let store = home.open();
    let session = create(&store, "a");
    for head in 0..20 {
        let before = Image::take(&home);
        commit(&store, vec![common::append(session, head, &"y".repeat(300))]);
        let after = Image::take(&home);
        assert_ne!(before.wal, after.wal, "a commit was acknowledged that is not in the WAL");
    }
}
