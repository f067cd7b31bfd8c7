//! What a newcomer does: one command, no key.

use crate::support::{DEADLINE, World, mainstay};
use std::process::Stdio;

#[test]
fn one_command_starts_a_host_streams_an_answer_asks_and_exits_zero() {
    let world = World::new();
    let mut run = world.home.command(mainstay(), &["run", "--agent", "demo", "--yes", "hello there"]);
    let done = run.env("MAINSTAY_LISTEN", "127.0.0.1:0").output().expect("runs");
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{:?}\n{out}\n{err}", done.status);
    assert!(out.len() > 20, "nothing was streamed: {out:?}");

    let list = world.home.command(mainstay(), &["ls", "--json"]).output().expect("runs");
    let list = String::from_utf8_lossy(&list.stdout).into_owned();
    assert!(list.contains("demo") && list.contains("idle"), "{list}");

    let stop = world.home.command(mainstay(), &["stop", "--host", "--kill"]).output().expect("runs");
    assert!(stop.status.success(), "{stop:?}");
    world.nothing_left();
}

#[test]
fn without_anybody_to_ask_the_request_stays_open_and_the_exit_code_says_so() {
    let world = World::new();
    let mut run = world.home.command(mainstay(), &["run", "--agent", "demo", "--json", "hello"]);
    let done = run.env("MAINSTAY_LISTEN", "127.0.0.1:0").stdin(Stdio::null()).output().expect("runs");
    assert_eq!(done.status.code(), Some(7), "{}", String::from_utf8_lossy(&done.stderr));
    let events = String::from_utf8_lossy(&done.stdout).into_owned();
    let request = events
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .find(|event| event["type"] == "request.opened")
        .expect("a request was opened");
    let request = request["request"].as_str().expect("its id");
    let session = request.split(".r").next().expect("a session");
    let answer =
        world.home.command(mainstay(), &["answer", session, request, "--yes"]).output().expect("runs");
    assert!(answer.status.success(), "{answer:?}");
    let again = world.home.command(mainstay(), &["answer", session, request, "--no"]).output().expect("runs");
    assert_eq!(again.status.code(), Some(4), "{again:?}");
    let stop = world.home.command(mainstay(), &["stop", "--host", "--kill"]).output().expect("runs");
    assert!(stop.status.success(), "{stop:?}");
    world.nothing_left();
}

#[test]
fn ps_shows_the_agent_with_no_host_and_a_second_host_names_the_first() {
    let world = World::new();
    let mut host = world.start();
    let session = world.create(&host, "scripted", "SAY hi ;; HOLD");
    let mut follower = crate::support::Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let started = follower.until(&mut sse, "the process", crate::support::is("process.started"));
    let pid = crate::support::agent_pid(&started);
    // It runs: before, there is nothing but a process that is about to become it.
    follower.until(&mut sse, "text", crate::support::is("item.delta"));

    let second = world
        .home
        .command(mainstay(), &["serve"])
        .env("MAINSTAY_LISTEN", "127.0.0.1:0")
        .output()
        .expect("runs");
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains(&host.pid().to_string()), "it does not name the first host: {said}");

    host.kill9();
    let ps = world.home.command(mainstay(), &["ps", "--json"]).output().expect("runs");
    let ps = String::from_utf8_lossy(&ps.stdout).into_owned();
    assert!(ps.contains(&pid.to_string()), "the agent is invisible: {ps}");
    drop(host);
    let host = world.start();
    world.end(host);
    assert!(
        mainstay_testkit::wait::wait_for(DEADLINE, || (!crate::support::is_alive(pid)).then_some(()))
            .is_some()
    );
}
