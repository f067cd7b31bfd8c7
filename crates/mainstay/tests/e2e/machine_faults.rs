//! A machine that does not play along: a full disk, a home that cannot be written, too few descriptors, clients that hold
//! what others need, an agent that does not move. Each has a typed outcome, a stop works, and nothing acknowledged is lost.

use crate::command_line::run;
use crate::support::{DEADLINE, Follower, World, agent_pid, is, mainstay, show};
use mainstay_testkit::http::Client;
use mainstay_testkit::mainstay::{HostProcess, StartError};
use mainstay_testkit::skipped;
use mainstay_testkit::small_disk::SmallDisk;
use mainstay_testkit::wait::{wait_for, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a connection may take until the kernel's queue counts as full.
const FULL: Duration = Duration::from_secs(2);

/// A world whose home stands on a small disk of its own.
fn on_small_disk(test: &str, mebibytes: u32) -> Option<(World, SmallDisk)> {
    let world = World::new();
    let config = fs::read_to_string(world.home.mainstay_home().join("config.toml")).expect("a configuration");
    let disk = SmallDisk::mount(&world.home.mainstay_home(), mebibytes);
    let Some(disk) = disk else {
        skipped::say(test, "this machine does not let the test mount a tmpfs");
        return None;
    };
    world.home.write_config(&config);
    Some((world, disk))
}

/// The program, started by a shell that first narrows what it may have.
fn limited(world: &World, limit: &str) -> PathBuf {
    let script = world.home.root().join("limited-mainstay");
    let text = format!("#!/bin/sh\nulimit {limit}\nexec {} \"$@\"\n", mainstay().display());
    fs::write(&script, text).expect("written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("made a program");
    script
}

fn try_send(client: &Client, session: &str, id: &str, content: &str) -> (u16, Value) {
    let path = format!("/v1/sessions/{session}/messages");
    let body = json!({ "content": content, "id": id, "delivery": "queue" });
    let answer = client.post(&path, &body).expect("answers");
    (answer.status, answer.json())
}

#[test]
fn on_a_full_disk_messages_are_refused_by_name_and_stops_work() {
    let Some((world, disk)) = on_small_disk("machine faults: a full disk", 24) else { return };
    let host = world.start();
    let client = host.client();
    let session = world.create(&host, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    follower.until(&mut sse, "text", is("item.delta"));

    let reserve = world.home.mainstay_home().join("mainstay.db.reserve");
    wait_until(DEADLINE, "the reserve", || reserve.exists());
    let ballast = disk.fill(0);
    let filler = "x".repeat(200_000);
    let mut acknowledged = Vec::new();
    let refused = (0..200).find_map(|number| {
        let id = format!("msg-{number}");
        match try_send(&client, &session, &id, &filler) {
            (202, _) => {
                acknowledged.push(id);
                None
            }
            (status, problem) => Some((status, problem)),
        }
    });
    let (status, problem) = refused.expect("a disk that never fills up");
    assert_eq!((status, &problem["code"]), (503, &json!("storage_full")), "{problem}");
    assert_eq!(problem["retryable"], true, "{problem}");
    assert!(!acknowledged.is_empty(), "the reserve was worth nothing");
    // Reading goes on, and the host says what is wrong.
    assert_eq!(show(&client, &session)["id"], session.as_str());
    assert!(client.get("/v1/info").expect("answers").json()["degraded"].is_string());
    // Nothing of a refused message is kept: the same id is taken once there is room.
    let stopped = crate::support::interrupt(&client, &session);
    assert!(stopped["recorded"].is_boolean(), "{stopped}");

    fs::remove_file(ballast).expect("room again");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let again = wait_for(DEADLINE, || {
        let (status, answer) = try_send(&client, &session, "msg-after", "SAY after");
        (status == 202).then_some(answer)
    });
    again.expect("a disk with room takes messages");
    let mut kill = host;
    kill.kill9();
    // Whatever was acknowledged is there after a crash.
    let host = world.start();
    let mut all = Follower::default();
    let mut sse = all.open(&host.client(), &session);
    let last = "msg-after";
    all.until(&mut sse, "the last message", |event| {
        event["type"] == "submission.accepted" && event["submission"] == last
    });
    for id in &acknowledged {
        let kept = all.of_type("submission.accepted").iter().any(|event| event["submission"] == id.as_str());
        assert!(kept, "{id} was acknowledged and is lost");
    }
    world.end(host);
    drop(disk);
}

#[test]
fn a_home_that_cannot_be_written_is_refused_by_name() {
    let Some((world, disk)) = on_small_disk("machine faults: a read-only home", 24) else { return };
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY hello");
    crate::support::follow_turn(&host.client(), &session);
    world.end(host);
    let remounted = std::process::Command::new("mount").args(["-o", "remount,ro"]).arg(disk.place()).output();
    if !remounted.is_ok_and(|output| output.status.success()) {
        return skipped::say("machine faults: a read-only home", "the tmpfs cannot be made read-only");
    }
    match HostProcess::try_start(&world.home, mainstay(), &[]) {
        Err(StartError::Ended { status, stderr }) => {
            assert_eq!(status.code(), Some(1), "{stderr}");
            let home = world.home.mainstay_home().display().to_string();
            assert!(stderr.contains(&home) && stderr.contains("Read-only"), "{stderr}");
        }
        other => panic!("it started: {other:?}"),
    }
    // What only reads works.
    run(&world, &["ps"]).expect_code(0);
    let doctor = run(&world, &["doctor", "--json"]).expect_code(1).lines();
    assert!(doctor.iter().any(|finding| finding["code"] == "home.read_only"), "{doctor:?}");
    run(&world, &["run", "--agent", "scripted", "hi"]).expect_code(3);
    world.nothing_left();
}

#[test]
fn clients_that_hold_every_connection_do_not_keep_a_stop_out() {
    let world = World::new();
    let host = HostProcess::start(&world.home, &limited(&world, "-n 256"), &[]);
    let session = world.create(&host, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let socket = host.socket_client();
    let mut sse = follower.open(&socket, &session);
    follower.until(&mut sse, "text", is("item.delta"));
    // More than there is room for; none of them ever says anything.
    let hold = |_| TcpStream::connect_timeout(&host.listening, FULL).ok();
    let held: Vec<TcpStream> = (0..300).map_while(hold).collect();
    assert!(held.len() > 128, "{} connections", held.len());
    // The command line comes by the socket, which has its own room; and descriptors are left for agents and files.
    run(&world, &["interrupt", &session]).expect_code(0);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    run(&world, &["run", "--agent", "demo", "--yes", "hello"]).expect_code(0);
    let doctor = run(&world, &["doctor", "--json"]).lines();
    assert!(doctor.iter().any(|finding| finding["code"] == "host.ok"), "{doctor:?}");
    drop(held);
    // Room again over TCP too.
    let answers = || host.client().get("/health").is_ok_and(|answer| answer.status == 200);
    wait_until(DEADLINE, "TCP answers again", answers);
    drop(sse);
    world.end(host);
}

#[test]
fn a_host_with_very_few_descriptors_refuses_and_recovers() {
    let world = World::new();
    let host = HostProcess::start(&world.home, &limited(&world, "-n 48"), &[]);
    // As many as it can hold, and more: each with a process of its own.
    let client = host.socket_client();
    let sessions: Vec<String> = (0..12).map(|_| world.create(&host, "scripted", "SAY hello")).collect();
    // Whatever could not be started says why or is tried again; none is lost, and the host answers.
    for session in &sessions {
        wait_until(DEADLINE, "an end or a reason", || {
            let shown = show(&client, session);
            shown["status"] == "idle" || shown["reason"].is_string() || shown["status"] == "recovering"
        });
    }
    drop(client);
    let mut host = host;
    host.term();
    host.wait(DEADLINE);
    drop(host);
    let host = world.start();
    for session in &sessions {
        let shown = wait_for(DEADLINE, || {
            let shown = show(&host.client(), session);
            (shown["status"] == "idle").then_some(shown)
        });
        if shown.is_none() {
            // A start that failed for good holds its session until a user says so; its message is there all the same.
            assert!(show(&host.client(), session)["reason"].is_string(), "{}", show(&host.client(), session));
        }
        let kept =
            host.client().get(&format!("/v1/sessions/{session}/events?limit=50")).expect("answers").text();
        assert!(kept.contains("submission.accepted"), "the message of {session} is lost");
    }
    world.end(host);
}

#[test]
fn an_agent_that_is_stopped_can_be_ended() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let session = world.create(&host, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let started = follower.until(&mut sse, "the process", is("process.started"));
    follower.until(&mut sse, "text", is("item.delta"));
    let agent = Pid::from_raw(agent_pid(&started)).unwrap();
    kill_process(agent, Signal::STOP).unwrap();
    // Accepted at once; what it asks of the agent waits for the agent.
    crate::support::interrupt(&client, &session);
    let path = format!("/v1/sessions/{session}/stop");
    client.post(&path, &json!({ "kill": true })).expect("answers").expect_status(202);
    let ended = follower.until(&mut sse, "the process's end", is("process.exited"));
    assert!(ended["exit"].is_object(), "{ended}");
    wait_until(DEADLINE, "the agent is gone", || !crate::support::is_alive(agent_pid(&started)));
    world.end(host);
}

#[test]
fn a_host_that_was_stopped_goes_on_where_it_was() {
    let world = World::new();
    let host = world.start();
    let gate = world.home.root().join("gate");
    let session =
        world.create(&host, "scripted", &format!("SAY before ;; GATE {} ;; SAY after", gate.display()));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    host.signal(Signal::STOP);
    // What the agent says meanwhile, its keeper keeps.
    mainstay_testkit::agents::open_gate(&gate);
    let rows = run(&world, &["ps", "--json"]).expect_code(0).lines();
    let spool = spool_of(&world, rows[0]["token"].as_str().unwrap());
    wait_until(DEADLINE, "the agent's words in the spool", || holds(&spool, b"after"));
    host.signal(Signal::CONT);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(follower.agent_text().contains("after"), "{}", follower.agent_text());
    world.end(host);
}

fn spool_of(world: &World, token: &str) -> PathBuf {
    world.home.mainstay_home().join("keepers").join(token).join("spool")
}

fn holds(folder: &Path, text: &[u8]) -> bool {
    fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| {
        fs::read(entry.path()).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text))
    })
}
