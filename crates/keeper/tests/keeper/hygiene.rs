//! What a keeper must not show, keep or hand on.

use std::os::fd::AsRawFd;
use std::path::Path;

use crate::support::{Home, wait_until};

const SECRET: &str = "sk-test-do-not-leak-4711";

fn descriptors(pid: i32) -> Vec<(i32, String)> {
    let mut found: Vec<(i32, String)> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("descriptors")
        .filter_map(|entry| {
            let path = entry.expect("entry").path();
            let number = path.file_name()?.to_str()?.parse().ok()?;
            Some((number, std::fs::read_link(&path).ok()?.to_string_lossy().into_owned()))
        })
        .collect();
    found.sort();
    found
}

#[test]
fn nothing_is_inherited_that_was_not_handed_over() {
    use rustix::fs::{Mode, OFlags, open};
    let home = Home::new();
    let leaked_path = home.path().join("leaked");
    // Without close-on-exec, as a careless ancestor leaves one.
    let leaked = open(&leaked_path, OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o600)).expect("open");
    assert!(leaked.as_raw_fd() > 2);
    let mut keeper = home.birth(&home.spec("echo ready; exec cat"));
    keeper.wait_message("ready");
    let (keeper_pid, agent_pid) = (keeper.keeper().pid, keeper.agent().pid);
    let own = descriptors(keeper_pid);
    assert!(!own.iter().any(|(_, target)| target.contains("leaked")), "{own:?}");
    assert_eq!((own[0].1.as_str(), own[1].1.as_str()), ("/dev/null", "/dev/null"), "{own:?}");
    assert!(own[2].1.ends_with("keeper.log"), "{own:?}");
    wait_until("the agent is what it was to become", || {
        std::fs::read_to_string(format!("/proc/{agent_pid}/comm")).is_ok_and(|comm| comm.trim() == "cat")
    });
    let agent: Vec<i32> = descriptors(agent_pid).iter().map(|(number, _)| *number).collect();
    assert_eq!(agent, [0, 1, 2]);
}

#[test]
fn a_secret_of_the_environment_reaches_the_agent_and_nothing_else() {
    let home = Home::new();
    let mut spec = home.spec("echo \"have ${#AGENT_KEY} $MAINSTAY_KEEPER_TOKEN\"; env | wc -l; exec cat");
    spec.env.push(("AGENT_KEY".to_owned(), SECRET.to_owned()));
    spec.argv.push(format!("--key={SECRET}"));
    let mut keeper = home.birth(&spec);
    keeper.wait_message(&format!("have {} {}", SECRET.len(), spec.token));
    let contains = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes());
    let mut looked_at = 0;
    let mut open = vec![keeper.folder.path.clone()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).expect("dir") {
            let entry = entry.expect("entry");
            let kind = entry.file_type().expect("type");
            if kind.is_dir() {
                open.push(entry.path());
            } else if kind.is_file() {
                looked_at += 1;
                assert!(!contains(&std::fs::read(entry.path()).expect("read")), "{:?}", entry.path());
            }
        }
    }
    assert!(looked_at >= 5, "lock, manifest, agent, inbox, spool: {looked_at}");
    for file in ["cmdline", "environ"] {
        let bytes = std::fs::read(format!("/proc/{}/{file}", keeper.keeper().pid)).expect("read");
        assert!(!contains(&bytes), "{file}");
    }
    let environment = std::fs::read(format!("/proc/{}/environ", keeper.keeper().pid)).expect("read");
    let variables = environment.split(|&byte| byte == 0).filter(|variable| !variable.is_empty());
    // The C library cuts its own variable into pieces in place.
    let mut own = variables.map(String::from_utf8_lossy);
    assert!(own.all(|text| text.starts_with("GLIBC_TUNABLES=") || text.starts_with("glibc.malloc.")));
    let manifest = keeper.folder.manifest().expect("readable").expect("there");
    assert_eq!(manifest.program, "/bin/sh");
    assert_eq!(manifest.argv_digest.len(), 40);
}

/// Memory of one process that no other shares, in KiB. Pages of the program's file are left out: they are shared with
/// the page cache (and a freshly linked program's count as "dirty" until they are written back).
fn anonymous_kib(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps");
    text.lines()
        .filter(|line| line.starts_with("Anonymous:"))
        .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
        .sum()
}

#[test]
fn an_idle_keeper_is_small_also_after_a_burst() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("while read -r line; do echo \"echo $line\"; done"));
    let mut n = 0;
    for (count, length) in [(1, 10), (200, 5_000), (1, 900_000), (1, 10)] {
        for _ in 0..count {
            n += 1;
            keeper.input(n, 1, &format!("{n} {}", "x".repeat(length)));
        }
        let expected = usize::try_from(n).expect("small");
        keeper.wait_seen("all answers", |seen| {
            seen.iter().filter_map(crate::support::Seen::text).count() == expected
        });
        // The written mark is the last thing that a turn of the keeper's loop does for an input.
        keeper.send(&mainstay_keeper::wire::ToKeeper::Ping);
        while keeper.answer() != mainstay_keeper::wire::ToHost::Pong {}
        let kib = anonymous_kib(keeper.keeper().pid);
        println!("private memory of a keeper after {count} messages of {length} bytes: {kib} KiB");
        assert!(kib <= 2 << 10, "{kib} KiB");
    }
}

#[test]
fn a_path_longer_than_a_socket_address_works() {
    let home = Home::with_long_path();
    assert!(home.path().as_os_str().len() > 200);
    let mut keeper = home.birth(&home.spec("while read -r line; do echo \"echo $line\"; done"));
    keeper.input(1, 1, "far away");
    keeper.wait_message("echo far away");
    assert!(Path::new(&keeper.folder.path).join("keeper.sock").exists());
}

#[test]
fn the_keeper_is_a_session_of_its_own_and_the_agent_a_group_of_its_own() {
    let home = Home::new();
    let mut keeper = home.birth(&home.spec("echo ready; exec cat"));
    keeper.wait_message("ready");
    let pid = |raw: i32| rustix::process::Pid::from_raw(raw).expect("a pid");
    let (keeper_pid, agent_pid) = (pid(keeper.keeper().pid), pid(keeper.agent().pid));
    assert_eq!(rustix::process::getsid(Some(keeper_pid)).expect("sid"), keeper_pid);
    assert_eq!(rustix::process::getsid(Some(agent_pid)).expect("sid"), keeper_pid);
    assert_eq!(rustix::process::getpgid(Some(agent_pid)).expect("pgid"), agent_pid);
}
