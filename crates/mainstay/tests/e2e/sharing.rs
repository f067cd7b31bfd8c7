//! Sessions of one launch profile share one Codex process: each has its own conversation in it, leaves it without
//! touching the others, and is settled by itself when the process is lost.

use crate::keepers::Stopped;
use crate::support::{
    DEADLINE, Follower, World, agent_pid, answer, interrupt, is, is_alive, kill, send, show,
};
use mainstay_testkit::http::Sse;
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::model::expected_text;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A session and who follows it.
struct Followed {
    session: String,
    follower: Follower,
    sse: Sse,
}

impl Followed {
    fn create(world: &World, host: &HostProcess, prompt: &str) -> Self {
        let session = world.create(host, "codex", prompt);
        let follower = Follower::default();
        let sse = follower.open(&host.client(), &session);
        Self { session, follower, sse }
    }

    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.follower.until(&mut self.sse, what, wanted)
    }

    fn reopen(&mut self, host: &HostProcess) {
        self.sse = self.follower.open(&host.client(), &self.session);
    }

    fn token(&self) -> Value {
        self.follower.of_type("process.started").last().expect("a process")["process"].clone()
    }

    fn pid(&self) -> i32 {
        agent_pid(self.follower.of_type("process.started").last().expect("a process"))
    }

    fn turns_ended(&self) -> usize {
        self.follower.of_type("turn.ended").len()
    }

    /// Sends a message and waits for the end of its turn.
    fn say(&mut self, host: &HostProcess, text: &str) {
        let before = self.follower.agent_text().len();
        send(&host.client(), &self.session, text).expect_status(202);
        let ended = self.until("the turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "completed", "{ended}");
        assert_eq!(&self.follower.agent_text()[before..], expected_text(text));
    }
}

fn keepers(world: &World) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(world.home.mainstay_home().join("keepers")).expect("the keepers' folder");
    folders.flatten().map(|entry| entry.path()).filter(|path| path.join("manifest.json").exists()).collect()
}

#[test]
fn sessions_of_a_profile_share_a_process_and_each_has_its_own_conversation() {
    let world = World::new();
    let host = world.start();
    let prompts: Vec<String> =
        (0..10).map(|number| format!("GATED 5 g{number} ;; SAY number {number}")).collect();
    let mut sessions: Vec<Followed> =
        prompts.iter().map(|prompt| Followed::create(&world, &host, prompt)).collect();
    world.model.wait_requests(sessions.len(), DEADLINE);
    // All turns stand in the middle; they end in another order than they began.
    for number in (0..sessions.len()).rev() {
        world.model.open(&format!("g{number}"));
    }
    for (followed, prompt) in sessions.iter_mut().zip(&prompts) {
        let ended = followed.until("the turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "completed", "{ended}");
        assert_eq!(followed.follower.agent_text(), expected_text(prompt));
        assert_eq!(world.model.requests_prompted_by(prompt), 1, "{prompt}");
    }
    let token = sessions[0].token();
    assert!(sessions.iter().all(|followed| followed.token() == token), "they do not share one process");
    assert_eq!(keepers(&world).len(), 1);
    let threads: std::collections::BTreeSet<String> = sessions
        .iter()
        .map(|followed| followed.follower.of_type("thread.linked")[0]["thread"].to_string())
        .collect();
    assert_eq!(threads.len(), sessions.len(), "two sessions have one conversation");
    world.end(host);
}

#[test]
fn one_more_than_the_cap_gets_another_process_and_isolated_sessions_get_their_own() {
    for (key, value, processes) in [("sessions_per_process", "2", 2), ("isolation", "\"session\"", 3)] {
        let world = World::new();
        crate::host_keys::set_for_agent(&world, "codex", key, value);
        let host = world.start();
        let mut sessions: Vec<Followed> =
            (0..3).map(|_| Followed::create(&world, &host, "SAY hello")).collect();
        for followed in &mut sessions {
            followed.until("the turn's end", is("turn.ended"));
        }
        let tokens: std::collections::BTreeSet<String> =
            sessions.iter().map(|followed| followed.token().to_string()).collect();
        assert_eq!(tokens.len(), processes, "{key} = {value}");
        world.end(host);
    }
}

#[test]
fn a_session_that_is_stopped_leaves_the_process_and_the_others_go_on() {
    let world = World::new();
    let host = world.start();
    let mut stays = Followed::create(&world, &host, "GATED 20 stays");
    let mut goes = Followed::create(&world, &host, "GATED 20 goes");
    world.model.release("stays", 3);
    world.model.release("goes", 3);
    stays.until("text", is("item.delta"));
    goes.until("text", is("item.delta"));
    assert_eq!(stays.token(), goes.token());

    let path = format!("/v1/sessions/{}/stop", goes.session);
    host.client().post(&path, &json!({})).expect("an answer").expect_status(202);
    let ended = goes.until("the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted", "{ended}");
    let released = goes.until("the lease's end", is("lease.released"));
    assert_eq!(released["reason"], "thread_closed", "{released}");
    assert!(
        goes.follower.of_type("process.exited").is_empty(),
        "the process was ended under the other session"
    );
    assert_eq!(show(&host.client(), &goes.session)["status"], "idle");

    world.model.open("stays");
    let ended = stays.until("the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!(stays.follower.agent_text(), expected_text("GATED 20 stays"));
    assert!(is_alive(stays.pid()));

    // It comes back into the same process, to the same conversation.
    goes.say(&host, "SAY again");
    assert_eq!(goes.token(), stays.token());
    let linked = goes.follower.of_type("thread.linked");
    assert_eq!(linked[1]["how"], "resumed", "{:?}", linked[1]);
    assert_eq!(linked[0]["thread"], linked[1]["thread"]);

    // The last one to be stopped ends the process.
    for followed in [&mut goes, &mut stays] {
        let path = format!("/v1/sessions/{}/stop", followed.session);
        host.client().post(&path, &json!({})).expect("an answer").expect_status(202);
    }
    let exited = stays.until("the process's end", is("process.exited"));
    assert_eq!(exited["exit"]["cause"]["ordered"]["order"], "user", "{exited}");
    let pid = stays.pid();
    assert!(wait_for(DEADLINE, || (!is_alive(pid)).then_some(())).is_some());
    world.end(host);
}

#[test]
fn a_lost_process_settles_exactly_its_sessions() {
    let world = World::new();
    crate::host_keys::set_for_agent(&world, "codex", "sessions_per_process", "2");
    let host = world.start();
    let mut sessions: Vec<Followed> =
        (0..3).map(|number| Followed::create(&world, &host, &format!("GATED 20 g{number}"))).collect();
    for (number, followed) in sessions.iter_mut().enumerate() {
        world.model.release(&format!("g{number}"), 3);
        followed.until("text", is("item.delta"));
    }
    let alone = (0..3)
        .find(|at| (0..3).all(|other| *at == other || sessions[*at].token() != sessions[other].token()))
        .expect("one has a process of its own");
    let mut other = sessions.remove(alone);
    kill(sessions[0].pid());
    for followed in &mut sessions {
        let ended = followed.until("the turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "lost", "{ended}");
        followed.until("the lease's end", is("lease.released"));
        assert_eq!(followed.follower.of_type("process.exited").len(), 1);
    }
    assert_eq!(other.turns_ended(), 0);
    world.model.open(&format!("g{alone}"));
    let ended = other.until("the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert!(other.follower.of_type("process.exited").is_empty());
    for followed in &mut sessions {
        followed.say(&host, "SAY again");
    }
    world.end(host);
}

#[test]
fn a_killed_host_finds_all_sessions_of_a_process_again() {
    let world = World::new();
    let mut host = world.start();
    let prompts: Vec<String> = (0..4).map(|number| format!("GATED 40 g{number}")).collect();
    let mut sessions: Vec<Followed> =
        prompts.iter().map(|prompt| Followed::create(&world, &host, prompt)).collect();
    let mut asks = Followed::create(&world, &host, "RUNESC touch made-by-agent ;; SAY after");
    for (number, followed) in sessions.iter_mut().enumerate() {
        world.model.release(&format!("g{number}"), 8);
        followed.until("text", is("item.delta"));
    }
    let opened = asks.until("the approval", is("request.opened"));
    let pid = asks.pid();
    for round in 0..3 {
        host.kill9();
        for number in 0..sessions.len() {
            world.model.release(&format!("g{number}"), 8);
        }
        host = world.start();
        assert!(is_alive(pid), "round {round}");
        for followed in sessions.iter_mut().chain([&mut asks]) {
            followed.reopen(&host);
        }
    }
    for (number, followed) in sessions.iter_mut().enumerate() {
        world.model.open(&format!("g{number}"));
        let ended = followed.until("the turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "completed", "{ended}");
        assert_eq!(followed.follower.agent_text(), expected_text(&prompts[number]));
        assert_eq!(followed.pid(), pid);
        assert_eq!(world.model.requests_prompted_by(&prompts[number]), 1);
    }
    let request = opened["request"].as_str().expect("its id");
    answer(&host.client(), &asks.session, request, "accept").expect_status(200);
    let ended = asks.until("the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    world.end(host);
}

#[test]
fn ten_sessions_on_one_process_go_on_beside_one_that_is_wedged() {
    let world = World::new();
    let host = world.start();
    // Its model never answers.
    let mut wedged = Followed::create(&world, &host, "GATED 20 never");
    world.model.wait_at_gate("never", DEADLINE);
    wedged.until("its process", is("process.started"));
    let mut others: Vec<Followed> = (0..9).map(|_| Followed::create(&world, &host, "SAY one")).collect();
    for followed in &mut others {
        followed.until("the turn's end", is("turn.ended"));
        assert_eq!(followed.token(), wedged.token());
    }
    for followed in &mut others {
        followed.say(&host, "SAY two");
    }
    assert_eq!(wedged.turns_ended(), 0);
    interrupt(&host.client(), &wedged.session);
    let ended = wedged.until("the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted", "{ended}");
    world.end(host);
}

#[test]
fn a_process_that_ends_nothing_is_left_step_by_step_and_ended_for_others_only_on_an_order() {
    let world = World::new();
    let host = world.start();
    let mut stuck = Followed::create(&world, &host, "GATED 20 stuck");
    let mut other = Followed::create(&world, &host, "GATED 20 other");
    for (followed, gate) in [(&mut stuck, "stuck"), (&mut other, "other")] {
        world.model.release(gate, 3);
        followed.until("text", is("item.delta"));
    }
    assert_eq!(stuck.token(), other.token());
    let pid = stuck.pid();
    // It neither hears nor says anything any more.
    let stopped = Stopped::stop(pid);
    let path = format!("/v1/sessions/{}/stop", stuck.session);
    let stop = |kill: bool| {
        host.client().post(&path, &json!({ "kill": kill })).expect("an answer").expect_status(202);
    };
    stop(false);
    let leaving = stuck.until("who stays", is("process.leaving"));
    assert_eq!(leaving["others"], json!([other.session]), "{leaving}");
    let escalated = stuck.until("the next step", is("stop.escalated"));
    assert_eq!(escalated["step"], "background", "{escalated}");
    let blocked = stuck.until("what remains", is("stop.blocked"));
    assert_eq!(blocked["others"], json!([other.session]), "{blocked}");
    assert_eq!(blocked["remaining"][0]["kind"], "turn", "{blocked}");
    let shown = show(&host.client(), &stuck.session);
    assert_eq!(shown["status"], "requires_action", "{shown}");
    assert!(shown["reason"].as_str().expect("a reason").contains(&other.session), "{shown}");
    assert!(is_alive(pid));
    assert!(other.follower.of_type("process.exited").is_empty(), "the other session was touched unasked");
    assert_eq!(other.turns_ended(), 0);

    stop(true);
    // It is gone by the order; nothing is to be woken.
    std::mem::forget(stopped);
    for followed in [&mut stuck, &mut other] {
        followed.until("the lease's end", is("lease.released"));
        assert_eq!(followed.turns_ended(), 1);
    }
    assert!(wait_for(DEADLINE, || (!is_alive(pid)).then_some(())).is_some());
    other.say(&host, "SAY again");
    world.end(host);
}

#[test]
fn a_session_that_leaves_takes_its_background_along_and_nobody_elses() {
    let world = World::new();
    let host = world.start();
    let mut stays = Followed::create(&world, &host, "RUN sleep 1000 ;; SAY never");
    let mut goes = Followed::create(&world, &host, "RUN sleep 1000 ;; SAY never");
    for followed in [&mut stays, &mut goes] {
        followed
            .until("the command", |event| event["type"] == "item.started" && event["tool_kind"] == "execute");
    }
    assert_eq!(stays.token(), goes.token());
    let path = format!("/v1/sessions/{}/stop", goes.session);
    host.client().post(&path, &json!({})).expect("an answer").expect_status(202);
    let released = goes.until("the lease's end", is("lease.released"));
    assert_eq!(released["reason"], "thread_closed", "{released}");
    let (started, ended) = (goes.follower.of_type("task.started"), goes.follower.of_type("task.ended"));
    assert_eq!(started.len(), ended.len(), "{started:?} {ended:?}");
    assert!(ended.iter().all(|task| task["outcome"] != "lost"), "{ended:?}");
    let of_command = goes.follower.events.iter().rfind(|event| event["type"] == "item.completed");
    assert_ne!(of_command.expect("the command")["status"], "incomplete", "it was left running");
    assert_eq!(stays.turns_ended(), 0);
    assert!(is_alive(stays.pid()));
    world.end(host);
}

#[test]
fn sessions_are_put_to_rest_one_by_one() {
    let world = World::new();
    crate::host_keys::set(&world, "rest_after", "\"300ms\"");
    let host = world.start();
    let mut works = Followed::create(&world, &host, "GATED 20 works");
    world.model.wait_at_gate("works", DEADLINE);
    let mut rests = Followed::create(&world, &host, "SAY one");
    let released = rests.until("its rest", is("lease.released"));
    assert_eq!(released["reason"], "thread_closed", "{released}");
    assert_eq!(works.turns_ended(), 0);
    rests.say(&host, "SAY two");
    rests.until("its rest", is("lease.released"));
    world.model.open("works");
    let ended = works.until("the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    let exited = works.until("the process's rest", is("process.exited"));
    assert_eq!(exited["exit"]["cause"]["ordered"]["order"], "idle", "{exited}");
    world.end(host);
}
