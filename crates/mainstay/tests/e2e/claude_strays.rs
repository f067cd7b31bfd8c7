//! What a command of the real Claude Code left running, in a session of its own and without the keeper's token: it ends with
//! the agent, however that ends. The mark that the program itself gives its commands finds it where the keeper is gone too;
//! nobody else's process is touched.

use crate::keepers;
use crate::support::{DEADLINE, Follower, World, agent_pid, answer, is, is_alive, kill};
use mainstay_testkit::http::Sse;
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_until;
use rustix::process::{getpid, set_child_subreaper};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};

/// What the program calls its conversation in the environment of its commands.
const MARK: &str = "CLAUDE_CODE_SESSION_ID";

/// A session that has left a process, which has only the program's own mark.
struct Left {
    session: String,
    follower: Follower,
    sse: Sse,
    agent: i32,
    thread: String,
    stray: i32,
}

fn variables(pid: i32) -> Vec<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|byte| *byte == 0).map(|entry| String::from_utf8_lossy(entry).into_owned()).collect()
}

fn leave(world: &World, host: &HostProcess, file: &str) -> Left {
    let command = format!(
        "env -u MAINSTAY_KEEPER_TOKEN setsid sh -c 'echo $$ > {file}; exec sleep 1000' < /dev/null > /dev/null 2>&1 & \
         while [ ! -s {file} ]; do sleep 0.05; done"
    );
    let session = world.create(host, "claude", &format!("RUN {command} ;; SAY left"));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let agent = agent_pid(&follower.until(&mut sse, "the process", is("process.started")));
    let asked = follower.until(&mut sse, "the approval", is("request.opened"));
    answer(&host.client(), &session, asked["request"].as_str().expect("an id"), "allow").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let stray = std::fs::read_to_string(world.home.workspace().join(file)).expect("written");
    let stray = stray.trim().parse().expect("a pid");
    // The shell becomes `sleep` under the same number.
    wait_until(DEADLINE, "it is what it was left as", || {
        std::fs::read_to_string(format!("/proc/{stray}/comm")).is_ok_and(|name| name.trim() == "sleep")
    });
    let thread = follower.of_type("thread.linked")[0]["thread"].as_str().expect("an id").to_owned();
    let marks = variables(stray);
    assert!(marks.contains(&format!("{MARK}={thread}")), "the program marks its commands: {marks:?}");
    assert!(!marks.iter().any(|entry| entry.starts_with("MAINSTAY_KEEPER_TOKEN=")), "{marks:?}");
    Left { session, follower, sse, agent, thread, stray }
}

impl Left {
    /// Waits for the end of the agent's process; its stray is named with it, and gone.
    fn swept(&mut self) {
        let exited = self.follower.until(&mut self.sse, "the process's end", is("process.exited"));
        let strays = exited["exit"]["strays"].as_array().cloned().unwrap_or_default();
        let named = |stray: &&Value| stray["pid"] == self.stray;
        let named = strays.iter().find(named).unwrap_or_else(|| panic!("it is not named: {exited}"));
        assert_eq!(named["gone"], true, "{exited}");
        assert!(!is_alive(self.stray), "it lives on");
    }
}

/// A process with the mark of a conversation, which this test has started.
fn marked(conversation: &str) -> Child {
    let mut command = Command::new("/bin/sleep");
    command.arg("1000").env_clear().env(MARK, conversation).stdin(Stdio::null());
    command.spawn().expect("a process")
}

/// As [`marked`], of a program that is not there any more.
fn orphan(conversation: &str) -> i32 {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "/bin/sleep 1000 > /dev/null 2>&1 & echo $!"]).env_clear().env(MARK, conversation);
    let said = command.stdin(Stdio::null()).output().expect("a shell").stdout;
    String::from_utf8_lossy(&said).trim().parse().expect("a pid")
}

#[test]
fn claude_what_a_command_left_without_our_mark_ends_with_a_stop() {
    let world = World::new();
    let host = world.start();
    let mut left = leave(&world, &host, "stray");
    host.client().post(&format!("/v1/sessions/{}/stop", left.session), &json!({})).expect("answers");
    left.swept();
    world.end(host);
}

#[test]
fn claude_what_a_command_left_without_our_mark_ends_with_a_killed_agent() {
    let world = World::new();
    let host = world.start();
    let mut left = leave(&world, &host, "stray");
    kill(left.agent);
    left.swept();
    world.end(host);
}

#[test]
fn claude_what_a_command_left_is_found_by_the_programs_mark_where_the_keeper_is_gone_and_nobody_elses_is_touched()
 {
    let world = World::new();
    let host = world.start();
    let mut left = leave(&world, &host, "stray");
    let mut beside = leave(&world, &host, "stray-beside");
    // This test gathers orphans; where somebody lives who does, what is left is that one's.
    set_child_subreaper(None).expect("allowed");
    // The user's own: of another conversation, and of this one in a program that lives.
    let of_another = orphan("5d0c3d5e-8a57-4c43-9d2c-0b8d4c1f7a77");
    let mut living = marked(&left.thread);
    kill(keepers::pid(&world, &host.client(), &left.session));
    left.swept();
    let spared = [of_another, beside.stray, beside.agent].map(is_alive);
    let living_spared = living.try_wait().expect("looked at").is_none();
    set_child_subreaper(Some(getpid())).expect("allowed");
    kill(of_another);
    living.kill().expect("killed");
    living.wait().expect("waited for");
    assert_eq!(spared, [true; 3], "another conversation's process, and another session's, live on");
    assert!(living_spared, "what a living program started is that program's");
    host.client().post(&format!("/v1/sessions/{}/stop", beside.session), &json!({})).expect("answers");
    beside.swept();
    world.end(host);
}
