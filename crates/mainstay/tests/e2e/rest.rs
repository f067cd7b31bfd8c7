//! Rest: what nothing is owed to is ended after a while and taken up again; what is owed something never is, and a
//! keeper that stands still settles nothing.

use crate::command_line::run;
use crate::keepers::{self, Stopped};
use crate::support::{
    DEADLINE, Follower, World, agent_pid, answer, interrupt, is, is_alive, kill, send, show,
};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_for;
use serde_json::json;

fn soon_at_rest() -> World {
    let world = World::new();
    crate::host_keys::set(&world, "rest_after", "\"200ms\"");
    world
}

/// A session of its own that is put to rest twice: a clock of the host's own rest timers, which began after whatever
/// happened before.
fn two_rests_pass(world: &World, host: &HostProcess) {
    let clock = world.create(host, "scripted", "SAY tick");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &clock);
    follower.until(&mut sse, "the first rest", is("lease.released"));
    send(&host.client(), &clock, "SAY tock");
    follower.until(&mut sse, "the second rest", is("lease.released"));
}

#[test]
fn an_idle_agent_is_put_to_rest_and_the_next_message_takes_its_thread_up() {
    for agent in ["scripted", "codex"] {
        let world = soon_at_rest();
        let host = world.start();
        let session = world.create(&host, agent, "SAY one");
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        follower.until(&mut sse, "the turn's end", is("turn.ended"));
        let exited = follower.until(&mut sse, "the rest", is("process.exited"));
        assert_eq!(exited["exit"]["cause"]["ordered"]["order"], "idle", "{exited}");
        follower.until(&mut sse, "the lease's end", is("lease.released"));
        let pid = agent_pid(follower.of_type("process.started")[0]);
        assert!(!is_alive(pid), "said to be gone, and is not");
        assert_eq!(show(&host.client(), &session)["status"], "idle");

        send(&host.client(), &session, "SAY two");
        let linked = follower.until(&mut sse, "the thread", is("thread.linked"));
        assert_eq!(linked["how"], "resumed", "{linked}");
        assert_eq!(linked["thread"], follower.of_type("thread.linked")[0]["thread"]);
        let ended = follower.until(&mut sse, "the next turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "completed");
        assert_eq!(follower.agent_text(), "onetwo");
        world.end(host);
    }
}

#[test]
fn a_session_with_an_open_request_is_never_put_to_rest() {
    let world = soon_at_rest();
    let host = world.start();
    let session = world.create(&host, "scripted", "ASK may I ;; SAY done");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the request", is("request.opened"));
    two_rests_pass(&world, &host);
    let pid = agent_pid(follower.of_type("process.started")[0]);
    assert!(is_alive(pid), "the agent that waits for an answer was ended");
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "allow_once").expect_status(200);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed");
    assert!(follower.of_type("process.exited").is_empty());
    // Now nothing is owed.
    let exited = follower.until(&mut sse, "the rest", is("process.exited"));
    assert_eq!(exited["exit"]["cause"]["ordered"]["order"], "idle", "{exited}");
    world.end(host);
}

#[test]
fn what_an_agent_left_running_holds_it_from_rest_and_is_shown() {
    let world = soon_at_rest();
    let host = world.start();
    let file = world.home.root().join("left-running");
    // The shell that starts it ends, so that nobody but the keeper has it.
    let run = format!(
        "RUN setsid -f sh -c 'echo $$ > {}; exec sleep 3600' </dev/null >/dev/null 2>&1",
        file.display()
    );
    let session = world.create(&host, "scripted", &run);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let read_pid = || std::fs::read_to_string(&file).ok()?.trim().parse::<i32>().ok();
    let left = wait_for(DEADLINE, read_pid).expect("its pid");
    two_rests_pass(&world, &host);
    let shown = show(&host.client(), &session);
    assert_eq!(shown["owed"], json!([{ "what": "descendants", "count": 1 }]), "{shown}");
    assert!(is_alive(agent_pid(follower.of_type("process.started")[0])), "it was put to rest");
    assert!(is_alive(left));
    kill(left);
    let exited = follower.until(&mut sse, "the rest", is("process.exited"));
    assert_eq!(exited["exit"]["cause"]["ordered"]["order"], "idle", "{exited}");
    world.end(host);
}

#[test]
fn a_keeper_that_stands_still_settles_nothing_and_goes_on() {
    let world = soon_at_rest();
    let host = world.start();
    let gate = world.home.root().join("gate");
    let session =
        world.create(&host, "scripted", &format!("SAY part ;; GATE {} ;; SAY whole", gate.display()));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    let stopped = Stopped::stop(keepers::pid(&world, &host.client(), &session));
    mainstay_testkit::agents::open_gate(&gate);
    two_rests_pass(&world, &host);
    let shown = show(&host.client(), &session);
    assert_eq!(shown["status"], "running", "silence was taken for an end: {shown}");
    drop(stopped);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!(follower.agent_text(), "partwhole");
    assert_eq!(follower.of_type("process.started").len(), 1);
    world.end(host);
}

#[test]
fn a_stop_is_answered_at_once_while_the_keeper_stands_still_and_obeyed_when_it_goes_on() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    let stopped = Stopped::stop(keepers::pid(&world, &host.client(), &session));
    let reply = interrupt(&host.client(), &session);
    assert_eq!((&reply["recorded"], &reply["turn"]), (&json!(true), &json!("t1")), "{reply}");
    host.client().post(&format!("/v1/sessions/{session}/stop"), &json!({})).unwrap().expect_status(202);
    assert_eq!(show(&host.client(), &session)["status"], "running", "nothing has ended yet");
    drop(stopped);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted", "{ended}");
    let exited = follower.until(&mut sse, "the exit", is("process.exited"));
    assert_eq!(exited["exit"]["cause"]["ordered"]["order"], "user", "{exited}");
    world.end(host);
}

#[test]
fn a_new_host_that_meets_a_keeper_that_stands_still_serves_the_others_and_settles_nothing() {
    let world = World::new();
    let mut host = world.start();
    let gate = world.home.root().join("gate");
    let session =
        world.create(&host, "scripted", &format!("SAY part ;; GATE {} ;; SAY whole", gate.display()));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    let stopped = Stopped::stop(keepers::pid(&world, &host.client(), &session));
    host.kill9();
    let host = world.start();
    let other = world.create(&host, "scripted", "SAY another");
    assert_eq!(crate::support::follow_turn(&host.client(), &other).agent_text(), "another");
    let mut sse = follower.open(&host.client(), &session);
    assert!(follower.of_type("turn.ended").is_empty());
    assert_ne!(show(&host.client(), &session)["status"], "idle");
    // It is said where somebody looks for what is wrong, until it answers again.
    let named = || {
        run(&world, &["doctor"]).out.lines().any(|line| line.starts_with("bad") && line.contains(&session))
    };
    assert!(wait_for(DEADLINE, || named().then_some(())).is_some(), "doctor does not say that it is stuck");
    drop(stopped);
    mainstay_testkit::agents::open_gate(&gate);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!(follower.agent_text(), "partwhole");
    assert_eq!(follower.of_type("process.started").len(), 1, "a second process was started");
    let idle = wait_for(DEADLINE, || (show(&host.client(), &session)["status"] == "idle").then_some(()));
    assert!(idle.is_some());
    assert!(!named(), "it is still said to be stuck");
    world.end(host);
}
