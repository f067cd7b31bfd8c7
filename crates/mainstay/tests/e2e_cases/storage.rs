//! Disks that are full, read-only or damaged, seen from outside: cases 31, 32, 37, 38, 41.

use crate::support::{DEADLINE, World, follow_turn, mainstay, show};
use mainstay_testkit::mainstay::{HostProcess, StartError};
use std::path::Path;

/// 41: a home that cannot be written. Nothing is promised, and the key that changes it is named.
#[test]
fn a_home_that_cannot_be_written_is_refused_before_anything_is_promised() {
    let world = World::new();
    // A file where a folder is wanted refuses also those whom no permission holds back.
    let blocked = world.home.root().join("blocked");
    std::fs::write(&blocked, "").unwrap();
    for home in [blocked.join("state").display().to_string(), "/proc/mainstay-state".to_owned()] {
        match HostProcess::try_start(&world.home, mainstay(), &[("MAINSTAY_HOME", &home)]) {
            Err(StartError::Ended { status, stderr }) => {
                assert!(!status.success());
                assert!(stderr.contains(&home) && stderr.contains("MAINSTAY_HOME"), "{stderr}");
            }
            other => panic!("{home}: {other:?}"),
        }
    }
    world.nothing_left();
}

/// 38: the database's file was emptied. The host starts and works; what was in it is gone, and is not said to be there.
#[test]
fn an_empty_file_where_the_database_should_be_stops_no_start() {
    let world = World::new();
    let mut host = world.start();
    let session = world.create(&host, "scripted", "SAY hello");
    follow_turn(&host.client(), &session);
    assert_eq!(show(&host.client(), &session)["status"], "idle");
    host.client().post("/v1/host/stop", &serde_json::json!({})).unwrap().expect_status(202);
    host.wait(DEADLINE);
    empty(&world.home.mainstay_home().join("mainstay.db"));
    let host = world.start();
    host.client().get(&format!("/v1/sessions/{session}")).unwrap().expect_status(404);
    let other = world.create(&host, "scripted", "SAY anew");
    assert_eq!(follow_turn(&host.client(), &other).agent_text(), "anew");
    world.end(host);
}

fn empty(database: &Path) {
    std::fs::write(database, "").unwrap();
    for side in ["-wal", "-shm"] {
        let mut name = database.as_os_str().to_owned();
        name.push(side);
        // There is none after a clean end.
        std::fs::remove_file(name).ok();
    }
}
