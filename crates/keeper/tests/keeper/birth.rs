use std::io::Write;
use std::path::{Path, PathBuf};

use mainstay_keeper::launch::{AfterBirth, BeforeBirth, BirthError, start_process};
use mainstay_keeper::probe::{AgentTrace, Probe};
use mainstay_keeper::ps::{AgentState, KeeperState, ps};
use mainstay_keeper::{ExitCause, FolderError, Order, birth, probe, reserve, start};

use crate::support::{Home, PROGRAM, wait_until};

#[test]
fn the_probe_says_what_is_proven_at_every_stage() {
    let home = Home::new();
    let spec = home.spec("exec cat");
    let folder = home.keepers().folder(&spec.token);
    assert!(matches!(probe(&folder), Probe::Indeterminate { .. }), "a missing folder is never unused");
    assert!(!folder.path.exists(), "looking made nothing");

    let reserved = reserve(&home.keepers(), &spec.token).expect("reserve");
    assert_eq!(probe(&folder), Probe::BeingBorn);
    let newborn = start(reserved, &spec, Path::new(PROGRAM), &["keeper"]).expect("start");
    let mut newborn = newborn;
    newborn.wait_ready(crate::support::PATIENCE).expect("ready");
    match probe(&folder) {
        Probe::Alive { manifest } => {
            assert_eq!(manifest.token, spec.token);
            assert_eq!(u32::try_from(manifest.keeper.pid), Ok(newborn.pid()));
            assert_eq!(manifest.process_fence, 7);
        }
        other => panic!("{other:?}"),
    }
    newborn.reap_in_background();
    let mut keeper = crate::support::TestKeeper::adopt(folder.clone());
    keeper.send(&mainstay_keeper::wire::ToKeeper::Close { order: Order::Idle });
    let exit = keeper.wait_ended();
    assert_eq!(exit.cause, ExitCause::Ordered { order: Order::Idle });
    assert!(matches!(probe(&folder), Probe::Ended { exit: recorded } if *recorded == exit));
    folder.remove().expect("remove");
    assert!(matches!(probe(&folder), Probe::Indeterminate { .. }));
}

#[test]
fn a_host_that_dies_after_reserving_leaves_an_unused_folder() {
    let home = Home::new();
    let spec = home.spec("exec cat");
    drop(reserve(&home.keepers(), &spec.token).expect("reserve"));
    let folder = home.keepers().folder(&spec.token);
    assert_eq!(probe(&folder), Probe::Unused);
    folder.remove().expect("remove");
}

#[test]
fn a_keeper_whose_spec_is_cut_off_leaves_without_starting_anything() {
    let home = Home::new();
    for bytes in [&b""[..], &[200, 0, 0, 0], b"\xc8\0\0\0{\"protocol_version\":1,"] {
        let spec = home.spec("touch started");
        let reserved = reserve(&home.keepers(), &spec.token).expect("reserve");
        let folder = reserved.folder().clone();
        let mut newborn = start_process(reserved, Path::new(PROGRAM), &["keeper"]).expect("start");
        assert_eq!(probe(&folder), Probe::BeingBorn, "the lock is the newborn's now");
        newborn.channel().write_all(bytes).expect("write");
        newborn.channel().shutdown(std::net::Shutdown::Write).expect("shutdown");
        assert!(matches!(newborn.wait_ready(crate::support::PATIENCE), Err(AfterBirth::Died)));
        let status = newborn.child().wait().expect("wait");
        assert!(!status.success());
        assert_eq!(probe(&folder), Probe::Unused);
        assert!(!home.path().join("started").exists());
    }
}

#[test]
fn a_newborn_is_not_disturbed_by_constant_looking() {
    let home = Home::new();
    let folders: Vec<_> = (0..10).map(|_| home.spec("exec cat")).collect();
    let keepers = home.keepers();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    for folder in keepers.list().expect("list") {
                        let seen = probe(&folder);
                        assert!(
                            matches!(seen, Probe::BeingBorn | Probe::Alive { .. }),
                            "a folder that is being filled was taken for {seen:?}"
                        );
                    }
                }
            });
        }
        for spec in &folders {
            birth(&keepers, spec, Path::new(PROGRAM), &["keeper"]).expect("birth");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn what_failed_before_the_process_existed_is_told_apart_from_after() {
    let home = Home::new();
    let spec = home.spec("exec cat");
    let missing = birth(&home.keepers(), &spec, Path::new("/nonexistent/program"), &["keeper"]);
    assert!(matches!(missing, Err(BirthError::Before(BeforeBirth::Io { .. }))), "{missing:?}");
    let taken = birth(&home.keepers(), &spec, Path::new(PROGRAM), &["keeper"]);
    assert!(
        matches!(taken, Err(BirthError::Before(BeforeBirth::Reserve(FolderError::Exists)))),
        "the folder of the first attempt is still there: {taken:?}"
    );
    let other = home.spec("exec cat");
    let died = birth(&home.keepers(), &other, Path::new("/bin/true"), &[]);
    assert!(matches!(died, Err(BirthError::After(_))), "{died:?}");
    assert_eq!(probe(&home.keepers().folder(&other.token)), Probe::Unused);
}

#[test]
fn an_agent_that_cannot_be_executed_is_a_typed_end() {
    let home = Home::new();
    let mut no_program = home.spec("");
    no_program.argv = vec!["/nonexistent/agent".to_owned()];
    let mut no_folder = home.spec("exec cat");
    no_folder.cwd = PathBuf::from("/nonexistent/folder");
    let mut no_command = home.spec("");
    no_command.argv = Vec::new();
    for (spec, expected) in [
        (no_program, (2, "execute the agent's program /nonexistent/agent: No such file or directory")),
        (no_folder, (2, "enter the working folder /nonexistent/folder: No such file or directory")),
        (no_command, (0, "find a program in the command: invalid input parameter")),
    ] {
        let folder = birth(&home.keepers(), &spec, Path::new(PROGRAM), &["keeper"]).expect("birth");
        wait_until("it has ended", || matches!(probe(&folder), Probe::Ended { .. }));
        let exit = folder.exit_record().expect("readable").expect("there");
        let (errno, what) = expected;
        assert_eq!(exit.cause, ExitCause::SpawnFailed { errno, what: what.to_owned() });
        std::fs::remove_file(folder.path.join("exit.json")).expect("remove");
        match probe(&folder) {
            Probe::KeeperGone { agent: AgentTrace::NeverRan } | Probe::Unused => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn ps_needs_no_host() {
    let home = Home::new();
    assert!(ps(home.path()).expect("ps").is_empty());
    let spec = home.spec("exec cat");
    let keeper = home.birth(&spec);
    keeper.folder.append_thread("thread-1").expect("append");
    let unused = home.spec("exec cat");
    drop(reserve(&home.keepers(), &unused.token).expect("reserve"));
    let agent = keeper.agent();
    wait_until("the agent named itself", || keeper.folder.agent_identity().is_ok_and(|it| it.is_some()));
    let rows = ps(home.path()).expect("ps");
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].keeper, rows[0].agent), (KeeperState::Alive, AgentState::Running));
    assert_eq!(rows[0].agent_identity.as_ref(), Some(&agent));
    assert_eq!(rows[0].threads, ["thread-1"]);
    assert_eq!((rows[0].label.as_str(), rows[0].fence), ("test agent", Some(7)));
    assert_eq!((rows[1].keeper, rows[1].agent), (KeeperState::Unused, AgentState::NotStarted));
}
