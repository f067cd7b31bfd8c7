use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use mainstay_keeper::wire::ToKeeper;
use mainstay_keeper::{AtLimit, ExitCause, Order, SignalName, SpoolReadError};

use crate::support::{Home, TestKeeper, to_group, wait_until};

const COUNTING: &str = "i=0; while :; do echo \"line $i\"; i=$((i+1)); done";

/// Waits until the spool has not grown for a while; answers its end.
fn wait_standstill(keeper: &mut TestKeeper) -> u64 {
    let mut last = (keeper.position, Instant::now());
    wait_until("the spool stands still", || {
        keeper.read();
        if keeper.position != last.0 {
            last = (keeper.position, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(300)
    });
    last.0
}

#[test]
fn a_full_spool_stops_the_agent_and_a_commit_lets_it_go_on_without_a_gap() {
    let home = Home::new();
    let mut spec = home.spec(COUNTING);
    spec.spool_limit = 200_000;
    spec.segment_size = 20_000;
    let mut keeper = home.birth(&spec);
    let first = wait_standstill(&mut keeper);
    assert!((200_000..200_000 + 600_000).contains(&first), "{first}");
    let segments = || std::fs::read_dir(keeper.folder.spool_path()).expect("dir").count();
    let before = segments();
    keeper.send(&ToKeeper::Committed { position: first });
    let second = wait_standstill(&mut keeper);
    assert!(second >= first + 200_000, "{second}");
    wait_until("what was committed is deleted", || {
        matches!(keeper.reader.read(0, 1000), Err(SpoolReadError::Gone { .. }))
    });
    let segments = std::fs::read_dir(keeper.folder.spool_path()).expect("dir").count();
    assert!(segments <= before + 2, "{before} segments became {segments}");
    for (number, text) in keeper.messages().iter().enumerate() {
        assert_eq!(*text, format!("line {number}"));
    }
    keeper.send(&ToKeeper::Close { order: Order::Kill });
    keeper.commit_all_read();
    keeper.wait_ended();
}

#[test]
fn an_agent_that_would_buffer_without_limit_is_ended() {
    let home = Home::new();
    let mut spec = home.spec(COUNTING);
    spec.spool_limit = 50_000;
    spec.at_limit = AtLimit::Buffers;
    spec.buffer_grace_ms = 100;
    spec.ladder = vec![to_group(SignalName::Term, 10_000)];
    let mut keeper = home.birth(&spec);
    let exit = keeper.wait_ended();
    assert_eq!(exit.cause, ExitCause::SpoolLimit);
    assert_eq!(exit.signal, Some(15));
}

#[test]
fn a_host_that_commits_in_time_sees_no_limit() {
    let home = Home::new();
    let mut spec = home.spec("i=0; while [ $i -lt 30000 ]; do echo \"line $i\"; i=$((i+1)); done");
    spec.spool_limit = 50_000;
    spec.at_limit = AtLimit::Buffers;
    let mut keeper = home.birth(&spec);
    wait_until("all lines came", || {
        keeper.read();
        let position = keeper.position;
        // The keeper may have left by then.
        let _ = keeper.link.send(&ToKeeper::Committed { position });
        keeper.messages().len() == 30_000
    });
    assert_eq!(keeper.wait_ended().cause, ExitCause::AgentLeft);
}

#[test]
fn small_records_flow_fast() {
    const COUNT: usize = 400_000;
    let home = Home::new();
    let script = format!("yes '{}' | head -n {COUNT}", "x".repeat(100));
    let keeper = home.birth(&home.spec(&script));
    let begun = Instant::now();
    let mut reader = mainstay_keeper::SpoolReader::open(keeper.folder.spool_path());
    let (mut position, mut count, mut reading) = (0, 0, Duration::ZERO);
    let mut batch = mainstay_keeper::Batch::default();
    wait_until("all records came", || {
        let before = Instant::now();
        reader.read_into(position, 256 << 10, &mut batch).expect("read");
        reading += before.elapsed();
        position = batch.next();
        count += batch.records().filter(|record| record.payload.len() == 100).count();
        count == COUNT
    });
    let whole = begun.elapsed();
    let rate = |time: Duration| (COUNT as f64 / time.as_secs_f64()) as u64;
    println!("agent to reader: {} records/s, reading alone: {} records/s", rate(whole), rate(reading));
    // An unoptimized build on a busy machine; an optimized one does many times that.
    assert!(rate(whole) > 10_000);
}

/// A file system of its own that is small enough to fill.
struct SmallDisk {
    point: tempfile::TempDir,
}

impl SmallDisk {
    fn mount() -> Option<Self> {
        let point = tempfile::tempdir().expect("temp folder");
        let status = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs"])
            .arg(point.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .stderr(std::process::Stdio::null())
            .status();
        status.is_ok_and(|status| status.success()).then_some(Self { point })
    }

    fn path(&self) -> &Path {
        self.point.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.point.path())
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .status();
    }
}

#[test]
fn a_full_disk_stops_the_reading_but_not_a_stop_and_loses_nothing() {
    let Some(disk) = SmallDisk::mount() else {
        println!("skipped: no file system can be mounted here");
        return;
    };
    let home = Home::new();
    let keepers = disk.path().join("keepers");
    std::os::unix::fs::symlink(&keepers, home.path().join("keepers")).expect("link");
    std::fs::create_dir(&keepers).expect("mkdir");
    let script = "read -r go; i=0; while [ $i -lt 20000 ]; do echo \"line $i of many\"; i=$((i+1)); done; \
                  while read -r line; do echo \"echo $line\"; [ \"$line\" = stop ] && exit 0; done";
    let spec = home.spec(script);
    let mut keeper = home.birth(&spec);
    let ballast = disk.path().join("ballast");
    // Half of the disk, so that the spool does not fit.
    std::fs::write(&ballast, vec![1; 600 << 10]).expect("ballast");
    keeper.input(1, 1, "go");
    keeper.wait_status("a spool fault", |status| status.spool_fault.is_some());
    keeper.read();
    let read_before = keeper.messages().len();
    assert!(read_before < 20_000);
    keeper.send(&ToKeeper::Urgent { id: 5, connection: 1, payload: b"stop".to_vec() });
    let mut answer = keeper.answer();
    while !matches!(answer, mainstay_keeper::wire::ToHost::UrgentWritten { .. }) {
        answer = keeper.answer();
    }
    std::fs::remove_file(&ballast).expect("room");
    let exit = keeper.wait_ended();
    assert_eq!(exit.exit_code, Some(0));
    let messages = keeper.messages();
    assert_eq!(messages.len(), 20_001);
    for (number, text) in messages.iter().take(20_000).enumerate() {
        assert_eq!(*text, format!("line {number} of many"));
    }
    assert_eq!(messages.last(), Some(&"echo stop"));
    drop(keeper);
    drop(home);
}
