//! A keeper or an agent killed with -9: the turn ends because of the death (every timer stands at an hour), nothing is
//! left, and the next message takes the thread up in a new process at the next fence.

use crate::support::{DEADLINE, Follower, World, agent_pid, is, is_alive, kill, send, show};
use mainstay_testkit::wait::wait_for;
use serde_json::Value;
use std::path::PathBuf;

fn keeper_pid(world: &World) -> i32 {
    let keepers: PathBuf = world.home.mainstay_home().join("keepers");
    let folder = std::fs::read_dir(keepers).unwrap().flatten().next().expect("a keeper's folder").path();
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    i32::try_from(manifest["keeper"]["pid"].as_i64().expect("the keeper's pid")).unwrap()
}

fn death(agent: &str, prompt: &str, kill_keeper: bool, next: &str) {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, agent, prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    world.model.release("g", 3);
    follower.until(&mut sse, "text", is("item.delta"));
    let agent_process = agent_pid(follower.of_type("process.started")[0]);
    if kill_keeper {
        kill(keeper_pid(&world));
    } else {
        kill(agent_process);
    }
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "lost", "{ended}");
    let code = if kill_keeper { "keeper_lost" } else { "agent_exited" };
    assert_eq!(ended["failure"]["code"], code, "{ended}");
    follower.until(&mut sse, "the lease's end", is("lease.released"));
    let gone = wait_for(DEADLINE, || (!is_alive(agent_process)).then_some(()));
    assert!(gone.is_some(), "the agent's process is still there");
    assert_eq!(show(&host.client(), &session)["status"], "idle");

    send(&host.client(), &session, next);
    let linked = follower.until(&mut sse, "the thread", is("thread.linked"));
    assert_eq!(linked["how"], "resumed", "{linked}");
    assert_eq!(linked["fence"], 2);
    let first = follower.of_type("thread.linked")[0]["thread"].clone();
    assert_eq!(linked["thread"], first, "another conversation was taken up");
    let ended = follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert!(follower.agent_text().ends_with("again"), "{}", follower.agent_text());
    world.end(host);
}

#[test]
fn codex_killed() {
    death("codex", "GATED 10 g", false, "SAY again");
}

#[test]
fn the_keeper_of_codex_killed() {
    death("codex", "GATED 10 g", true, "SAY again");
}

#[test]
fn an_acp_agent_killed() {
    death("scripted", "SAY part ;; HOLD", false, "SAY again");
}

#[test]
fn the_keeper_of_an_acp_agent_killed() {
    death("scripted", "SAY part ;; HOLD", true, "SAY again");
}

#[test]
fn a_keeper_killed_with_a_detached_tool_alive_leaves_nothing() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SPAWN sleep 1000 ;; SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", |event| {
        event["type"] == "item.delta" && event["text"].to_string().contains("part")
    });
    kill(keeper_pid(&world));
    follower.until(&mut sse, "the lease's end", is("lease.released"));
    assert!(!follower.of_type("strays.found").is_empty(), "the stray was not named");
    world.end(host);
}

#[test]
fn everything_killed_while_the_host_is_away_is_settled_by_the_next_host() {
    let world = World::new();
    let mut host = world.start();
    let session = world.create(&host, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    host.kill9();
    kill(keeper_pid(&world));
    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "lost");
    send(&host.client(), &session, "SAY again");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    world.end(host);
}
