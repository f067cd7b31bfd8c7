//! Too little memory (as `ENOMEM`), and no room in the keepers' folder alone: a typed outcome, or a death like a kill, after
//! which the next host has all that was acknowledged. Never a hang.

use crate::keepers;
use crate::support::{DEADLINE, Follower, World, is, is_alive, show};
use mainstay_testkit::agents::open_gate;
use mainstay_testkit::http::Client;
use mainstay_testkit::skipped;
use mainstay_testkit::small_disk::SmallDisk;
use mainstay_testkit::wait::wait_until;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::{Value, json};

/// What a process that is limited may still take.
const LEFT: u64 = 4 * 1024 * 1024;
/// One line of the agent; whoever reads it needs several times as much.
const LINE: usize = 20_000_000;

/// Lets a running process have no more address space than it has, and a little.
fn limit_memory(pid: i32) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).expect("its size");
    let kibibytes: u64 = size.trim().trim_end_matches("kB").trim().parse().expect("a number");
    let most = kibibytes * 1024 + LEFT;
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    prlimit(Pid::from_raw(pid), Resource::As, limit).expect("limited");
}

/// A session that stands at a gate, and says a long line and more behind it.
fn at_the_gate(world: &World, client: &Client, host: &mainstay_testkit::mainstay::HostProcess) -> Waiting {
    let gate = world.home.root().join("gate");
    let prompt = format!("SAY part ;; GATE {} ;; BIGLINE {LINE} ;; SAY after", gate.display());
    let session = world.create(host, "scripted", &prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(client, &session);
    follower.until(&mut sse, "text", is("item.delta"));
    Waiting { session, follower, gate, prompt }
}

struct Waiting {
    session: String,
    follower: Follower,
    gate: std::path::PathBuf,
    prompt: String,
}

#[test]
fn a_host_without_memory_loses_nothing_that_it_acknowledged() {
    let world = World::new();
    let mut host = world.start();
    let client = host.client();
    let Waiting { session, mut follower, gate, prompt } = at_the_gate(&world, &client, &host);
    let pid = i32::try_from(host.pid()).expect("a pid");
    limit_memory(pid);
    let mut acknowledged = Vec::new();
    for number in 0..20 {
        let path = format!("/v1/sessions/{session}/messages");
        let body =
            json!({ "content": format!("SAY m{number}"), "id": format!("m{number}"), "delivery": "queue" });
        match client.post(&path, &body) {
            Ok(answer) if answer.status == 202 => acknowledged.push(number),
            Ok(answer) => assert!(answer.json()["code"].is_string(), "{}", answer.text()),
            Err(_) => {
                wait_until(DEADLINE, "the end of a host that does not answer", || !is_alive(pid));
                break;
            }
        }
    }
    open_gate(&gate);
    // It got by, or died of it.
    let got_by = || show_if_alive(&client, &session).is_some_and(|shown| shown["status"] == "idle");
    wait_until(DEADLINE, "an end, of the work or of the host", || !is_alive(pid) || got_by());
    host.kill9();

    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    wait_until(DEADLINE, "all is done", || show(&host.client(), &session)["status"] == "idle");
    let mut all = Follower::default();
    let mut sse = all.open(&host.client(), &session);
    let turns = acknowledged.len() + 1;
    let count = std::cell::Cell::new(0);
    all.until(&mut sse, "all turns' ends", |event| {
        count.set(count.get() + usize::from(event["type"] == "turn.ended"));
        count.get() == turns
    });
    let said: String = acknowledged.iter().map(|number| format!("m{number}")).collect();
    let text = all.agent_text();
    assert_eq!(text.len(), "part".len() + LINE + "after".len() + said.len());
    assert!(text.starts_with("partxxx") && text.ends_with(&format!("xxxafter{said}")));
    assert_eq!(world.prompts_received(&prompt), 1);
    for number in acknowledged {
        assert_eq!(world.prompts_received(&format!("SAY m{number}")), 1, "message {number}");
    }
    world.end(host);
}

fn show_if_alive(client: &Client, session: &str) -> Option<Value> {
    let answer = client.get(&format!("/v1/sessions/{session}")).ok()?;
    (answer.status == 200).then(|| answer.json())
}

#[test]
fn a_keeper_without_memory_ends_its_turn_by_name_or_gets_by_and_the_session_goes_on() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let Waiting { session, mut follower, gate, prompt } = at_the_gate(&world, &client, &host);
    limit_memory(keepers::pid(&world, &client, &session));
    open_gate(&gate);
    let mut sse = follower.open(&client, &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(ended["outcome"] == "completed" || ended["outcome"] == "lost", "{ended}");
    if ended["outcome"] == "lost" {
        let exited = follower.until(&mut sse, "the exit", is("process.exited"));
        assert!(exited["exit"]["cause"].is_string() || exited["exit"]["cause"].is_object(), "{exited}");
    }
    crate::support::send(&client, &session, "SAY next");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("next"));
    assert_eq!(world.prompts_received(&prompt), 1, "a message that may have run was given again");
    world.end(host);
}

#[test]
fn without_room_in_the_keepers_folder_a_start_is_put_off_and_said_and_succeeds_later() {
    let world = World::new();
    let place = world.home.mainstay_home().join("keepers");
    std::fs::create_dir_all(&place).expect("a folder");
    let Some(disk) = SmallDisk::mount(&place, 8) else {
        return skipped::say(
            "short of room: the keepers' folder",
            "this machine does not let the test mount a tmpfs",
        );
    };
    let host = world.start();
    let client = host.client();
    let ballast = disk.fill(0);
    let session = world.create(&host, "scripted", "SAY at last");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let retrying = follower.until(&mut sse, "the plan", is("start.retrying"));
    assert_eq!(retrying["failure"]["code"], "spawn_failed", "{retrying}");
    // Once, and not again and again.
    assert_eq!(follower.of_type("lease.reserved").len(), 1);
    let shown = show(&client, &session);
    assert_eq!((&shown["status"], &shown["queue_length"]), (&json!("starting"), &json!(1)), "{shown}");
    std::fs::remove_file(ballast).expect("room again");
    // A user need not wait for the next try.
    client.post(&format!("/v1/sessions/{session}/start"), &json!({})).expect("answers").expect_status(202);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!(world.prompts_received("SAY at last"), 1);
    world.end(host);
    drop(disk);
}
