//! Real faults: kill -9 of a writer, and disks that are really full.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{ALL, Home, append, commit, create, head, open, submit, until, wait};
use mainstay_store::{
    Degraded, LaneWrite, SessionKey, SqliteOptions, SqliteStore, Store, Urgency, WriteError, WriteOp,
};

/// Names the database for [`writes_until_it_is_killed`], which does nothing without it.
const CHILD_DATABASE: &str = "MAINSTAY_STORE_TEST_DATABASE";
const CHILD_LANES: usize = 3;

/// Not a test of its own: the process that the next test kills. Writes as several lanes and says on its standard
/// output what was acknowledged.
#[test]
fn writes_until_it_is_killed() {
    let Some(path) = std::env::var_os(CHILD_DATABASE) else {
        return;
    };
    let store = open(Path::new(&path), SqliteOptions::default()).store;
    std::thread::scope(|scope| {
        for lane in 0..CHILD_LANES {
            let store = &store;
            scope.spawn(move || {
                let id = format!("lane{lane}");
                let session = match store.session_by_id(&id).unwrap() {
                    Some(row) => row.key,
                    None => create(store, &id),
                };
                let mut head = head(store, session);
                loop {
                    let op = append(session, head, &format!("event {}", head + 1));
                    store.commit_blocking(LaneWrite::new(Urgency::Stream, vec![op])).unwrap();
                    head += 1;
                    // One write call per line, so that a kill cuts no line in two.
                    let line = format!("acknowledged {} {head}\n", session.0);
                    std::io::stdout().write_all(line.as_bytes()).unwrap();
                }
            });
        }
    });
}

#[test]
fn kill_9_of_a_writer_loses_nothing_acknowledged() {
    let home = Home::new();
    let mut acknowledged: BTreeMap<SessionKey, u64> = BTreeMap::new();
    for round in 1..=6_usize {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_until_it_is_killed", "--nocapture"])
            .env_clear()
            .env(CHILD_DATABASE, home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut note = |line: &str| {
            // The test harness talks on the same stream, sometimes on the same line.
            let Some((_, told)) = line.split_once("acknowledged ") else {
                return false;
            };
            let (session, seq) = told.split_once(' ').unwrap();
            let newest = acknowledged.entry(SessionKey(session.parse().unwrap())).or_default();
            *newest = (*newest).max(seq.parse().unwrap());
            true
        };
        let mut wanted = 40 * round;
        while wanted > 0 {
            let line = lines.next().expect("the child writes until it is killed");
            wanted -= usize::from(note(&line));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What it had said before the kill counts too.
        lines.for_each(|line| {
            note(&line);
        });

        let opened = open(&home.path(), SqliteOptions::default());
        assert_eq!(opened.rewound, None);
        for (session, newest) in &acknowledged {
            let rows = opened.store.events(*session, 1, 0, ALL).unwrap().rows;
            assert!(rows.len() as u64 >= *newest, "round {round}: {} of {newest}", rows.len());
            assert!((1..).zip(&rows).all(|(seq, row)| row.body == format!("event {seq}").as_bytes()));
            assert_eq!(head(&opened.store, *session), rows.len() as u64);
        }
    }
    assert_eq!(acknowledged.len(), CHILD_LANES);
}

/// A small file system of its own.
struct SmallDisk {
    folder: tempfile::TempDir,
}

impl SmallDisk {
    /// `None` where the machine does not allow it.
    fn mount(mebibytes: u32) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mebibytes}m,mode=0700"), "mainstay-test"])
            .arg(folder.path())
            .stderr(Stdio::null())
            .status();
        mounted.is_ok_and(|status| status.success()).then_some(Self { folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Takes all the space that is left.
    fn fill(&self) {
        let mut ballast = fs::File::create(self.path("ballast")).unwrap();
        let block = vec![7; 4096];
        while ballast.write_all(&block).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.path("ballast")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.folder.path()).status();
        // Not while unwinding: the first failure is the one to see.
        if !std::thread::panicking() {
            assert!(unmounted.is_ok_and(|status| status.success()));
        }
    }
}

#[test]
fn a_full_disk_loses_nothing_and_a_stop_goes_first() {
    const RESERVE: u64 = 1024 * 1024;
    let Some(disk) = SmallDisk::mount(16) else {
        eprintln!("SKIPPED: this machine does not let the test mount a tmpfs");
        return;
    };
    let options = SqliteOptions {
        // Longer than the test: what gathers is one group.
        stream_flush: Duration::from_secs(600),
        reserve_bytes: RESERVE,
        reserve_retry: Duration::from_millis(20),
        max_pages: None,
        checkpoint_pages: None,
    };
    let reserve = disk.path("test.db.reserve");
    let reserve_is_there = || fs::metadata(&reserve).is_ok_and(|found| found.len() == RESERVE);
    let store = open(&disk.path("test.db"), options.clone()).store;
    let sessions: Vec<_> = (0..31).map(|n| create(&store, &format!("s{n}"))).collect();
    let (stopped, streaming) = sessions.split_first().unwrap();
    until("the reserve is made", reserve_is_there);

    disk.fill();
    // Three times the reserve, so that not all of it can be written.
    let body = "x".repeat(100 * 1024);
    let streams: Vec<_> =
        streaming.iter().map(|session| submit(&store, Urgency::Stream, append(*session, 0, &body))).collect();
    let stop = submit(&store, Urgency::Stop, append(*stopped, 0, "stop"));
    wait(stop).unwrap();
    let outcomes: Vec<_> = streams.into_iter().map(wait).collect();
    assert!(!reserve_is_there());
    assert_eq!((store.stats().reserves_spent, store.stats().groups_undone), (1, 1));
    assert!(outcomes.contains(&Err(WriteError::DiskFull)), "{outcomes:?}");
    assert_eq!(store.degraded(), Some(Degraded::Failing(WriteError::DiskFull)));
    let check = |store: &SqliteStore| {
        assert_eq!(head(store, *stopped), 1);
        for (session, outcome) in streaming.iter().zip(&outcomes) {
            let rows = store.events(*session, 1, 0, ALL).unwrap().rows;
            assert_eq!(rows.len(), usize::from(outcome.is_ok()), "{outcome:?}");
        }
    };
    check(&store);

    // Space again: writes go on, and the reserve comes back by itself.
    disk.free();
    for (session, outcome) in streaming.iter().zip(&outcomes) {
        commit(&store, vec![append(*session, u64::from(outcome.is_ok()), "again")]);
    }
    until("the reserve is back", || store.degraded().is_none());
    assert!(reserve_is_there());
    drop(store);
    let store = open(&disk.path("test.db"), options).store;
    for (session, outcome) in streaming.iter().zip(&outcomes) {
        assert_eq!(head(&store, *session), 1 + u64::from(outcome.is_ok()));
    }
    drop(store);
}

#[test]
fn a_database_at_its_limit_is_full_and_small_writes_may_still_fit() {
    let home = Home::new();
    let options = SqliteOptions { max_pages: Some(120), ..SqliteOptions::default() };
    let store = home.open_with(options);
    let session = create(&store, "a");
    let body = "x".repeat(8 * 1024);
    let mut written = 0;
    let failure = loop {
        match wait(submit(&store, Urgency::Command, append(session, written, &body))) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(failure, WriteError::DiskFull);
    assert!(written > 10);
    assert_eq!(head(&store, session), written);
    assert_eq!(store.events(session, 1, 0, ALL).unwrap().rows.len() as u64, written);
    commit(&store, vec![WriteOp::StartEpoch { session, epoch: 2 }]);
    assert!(!matches!(store.degraded(), Some(Degraded::Failing(_))));
}
