//! Processes that commands of the real Codex left behind: in a session of their own, no child of anything that Codex has,
//! without the mark of their keeper. Only the conversation's id in their environment still tells whose they are.

use crate::keepers;
use crate::support::{DEADLINE, Follower, World, agent_pid, is, is_alive, kill, send};
use mainstay_testkit::http::Sse;
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A session whose command left a process behind.
struct Left {
    session: String,
    follower: Follower,
    sse: Sse,
    pid: i32,
}

/// The shell that starts it ends at once, so that it falls to whoever gathers orphans.
fn leaves_behind(file: &Path) -> String {
    format!(
        "RUN setsid -f env -u MAINSTAY_KEEPER_TOKEN sh -c 'echo $$ > {}; exec sleep 1000' </dev/null >/dev/null 2>&1 ;; SAY done",
        file.display()
    )
}

fn left_by_a_command(world: &World, host: &HostProcess, name: &str) -> Left {
    let file: PathBuf = world.home.root().join(name);
    // Of a sandboxed command nothing is left: it has its processes to itself, and they end with it (measured).
    let body = json!({ "agent": "codex", "cwd": world.workspace(), "prompt": leaves_behind(&file),
                       "options": { "sandbox": "danger-full-access", "approval": "never" } });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().expect("an id").to_owned();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let written = || std::fs::read_to_string(&file).ok()?.trim().parse::<i32>().ok();
    let pid = wait_for(DEADLINE, written).expect("its pid");
    let started =
        || std::fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| line.starts_with(b"sleep"));
    wait_for(DEADLINE, started).expect("it sleeps");
    let environment = std::fs::read(format!("/proc/{pid}/environ")).expect("its environment");
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("CODEX_THREAD_ID=") && !environment.contains("MAINSTAY_KEEPER_TOKEN"));
    Left { session, follower, sse, pid }
}

fn is_gone(pid: i32) -> bool {
    wait_for(DEADLINE, || (!is_alive(pid)).then_some(())).is_some()
}

#[test]
fn a_session_that_is_stopped_takes_along_what_its_commands_left_behind_and_nobody_elses() {
    let world = World::new();
    let host = world.start();
    let mut stays = left_by_a_command(&world, &host, "stays");
    let mut goes = left_by_a_command(&world, &host, "goes");
    let process = |left: &Left| left.follower.of_type("process.started")[0]["process"].clone();
    assert_eq!(process(&stays), process(&goes), "they share a process");
    let path = format!("/v1/sessions/{}/stop", goes.session);
    host.client().post(&path, &json!({})).expect("an answer").expect_status(202);
    let released = goes.follower.until(&mut goes.sse, "the lease's end", is("lease.released"));
    assert_eq!(released["reason"], "thread_closed", "{released}");
    assert!(is_gone(goes.pid), "what the stopped one left behind is still there");
    assert!(is_alive(stays.pid), "it was another conversation's");
    send(&host.client(), &stays.session, "SAY on").expect_status(202);
    stays.follower.until(&mut stays.sse, "the next turn's end", is("turn.ended"));
    // With the last one the process ends, and everything below it.
    let path = format!("/v1/sessions/{}/stop", stays.session);
    host.client().post(&path, &json!({})).expect("an answer").expect_status(202);
    stays.follower.until(&mut stays.sse, "the process's end", is("process.exited"));
    assert!(!is_alive(stays.pid), "it outlived its process");
    world.end(host);
}

/// Orphans of this test fall to the machine from now on, as they do outside of tests.
fn gather_no_orphans() {
    rustix::process::set_child_subreaper(None).expect("its own setting");
}

/// A process that only looks alike: of a conversation that this home does not have.
fn of_another_conversation() -> Child {
    let mut command = Command::new("sleep");
    command.arg("1000").env_clear().env("CODEX_THREAD_ID", "01a00000-0000-7000-8000-000000000000");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    command.spawn().expect("started")
}

#[test]
fn what_a_command_left_behind_is_ended_by_the_next_host_where_keeper_and_agent_were_killed() {
    let world = World::new();
    let mut host = world.start();
    let left = left_by_a_command(&world, &host, "left");
    let agent = agent_pid(left.follower.of_type("process.started")[0]);
    let keeper = keepers::pid(&world, &host.client(), &left.session);
    let mut other = of_another_conversation();
    host.kill9();
    gather_no_orphans();
    kill(keeper);
    if is_alive(agent) {
        // Its keeper's death may end it in between.
        let pid = rustix::process::Pid::from_raw(agent).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok();
    }
    assert!(is_gone(agent));
    assert!(is_alive(left.pid), "it went with the agent: nothing is shown");

    let host = world.start();
    let mut follower = left.follower;
    let mut sse = follower.open(&host.client(), &left.session);
    let found = follower.until(&mut sse, "the lease's end", is("lease.released"));
    let (gone, untouched) = (is_gone(left.pid), matches!(other.try_wait(), Ok(None)));
    other.kill().expect("ended");
    other.wait().expect("its end");
    if !gone {
        kill(left.pid);
    }
    assert!(gone, "it is still there: {found}");
    assert!(untouched, "it was another conversation's");
    let named = |event: &Value| {
        event["strays"].as_array().is_some_and(|all| all.iter().any(|stray| stray["pid"] == left.pid))
            || event.to_string().contains(&format!("\"pid\":{}", left.pid))
    };
    assert!(follower.events.iter().any(named), "what was ended is not named");
    world.end(host);
}
