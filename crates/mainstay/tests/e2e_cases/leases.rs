//! Who may write: cases 18 to 23.

use crate::support::{DEADLINE, Follower, World, is, mainstay};
use mainstay_testkit::mainstay::{HostProcess, StartError};
use mainstay_testkit::wait::wait_for;
use std::sync::{Arc, Barrier};

/// 18 and 19: the holder is killed; the next one has the home at once and without a hand, whatever the timers say.
#[test]
fn a_killed_holder_is_followed_at_once() {
    let world = World::new();
    let mut host = world.start();
    for _ in 0..5 {
        host.kill9();
        // No retry, no wait: the lock went with its holder.
        host = world.start();
    }
    let session = world.create(&host, "scripted", "SAY hello");
    let follower = crate::support::follow_turn(&host.client(), &session);
    assert_eq!(follower.agent_text(), "hello");
    world.end(host);
}

/// 20 and 21: somebody deletes the lock's file under a living host. There is still one host.
#[test]
fn a_deleted_lock_does_not_make_two_hosts() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    std::fs::remove_file(world.home.mainstay_home().join("host.lock")).unwrap();
    match HostProcess::try_start(&world.home, mainstay(), &[]) {
        Err(StartError::Ended { status, stderr }) => {
            assert_eq!(status.code(), Some(4), "{stderr}");
        }
        Err(other) => panic!("{other}"),
        Ok(second) => panic!("two hosts have one home: {} and {}", host.pid(), second.pid()),
    }
    // The first one goes on as if nothing had been.
    crate::support::interrupt(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    world.end(host);
}

/// 23: ten hosts are started on one home at the same moment. One serves; the others say who.
#[test]
fn of_ten_hosts_that_start_at_once_one_serves() {
    let world = Arc::new(World::new());
    for round in 0..5 {
        let barrier = Arc::new(Barrier::new(10));
        let starts: Vec<_> = (0..10)
            .map(|_| {
                let (world, barrier) = (world.clone(), barrier.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    HostProcess::try_start(&world.home, mainstay(), &[])
                })
            })
            .collect();
        let started: Vec<_> = starts.into_iter().map(|start| start.join().unwrap()).collect();
        let (hosts, refused): (Vec<_>, Vec<_>) = started.into_iter().partition(Result::is_ok);
        assert_eq!(hosts.len(), 1, "round {round}: {refused:?}");
        let mut host = hosts.into_iter().flatten().next().unwrap();
        for start in refused {
            let Err(StartError::Ended { status, stderr }) = start else { panic!("round {round}: {start:?}") };
            assert_eq!(status.code(), Some(4), "round {round}: {stderr}");
        }
        let health = wait_for(DEADLINE, || host.socket_client().get("/health").ok());
        assert_eq!(health.expect("it answers").status, 200, "round {round}");
        host.kill9();
    }
    world.nothing_left();
}
