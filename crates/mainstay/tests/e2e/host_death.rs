//! `kill -9` of the host costs nothing: the agent is the same, the turn goes on, and a reader misses nothing.

use crate::support::{DEADLINE, Follower, World, agent_pid, answer, is, is_alive, send, try_answer};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::model::expected_text;
use std::collections::BTreeMap;

const PROMPT: &str = "GATED 40 text";

/// Counts where the kills hit.
#[derive(Default)]
struct Report(BTreeMap<&'static str, u32>);

impl Report {
    fn hit(&mut self, place: &'static str) {
        *self.0.entry(place).or_default() += 1;
    }
}

/// Waits for a host that a fault point ends.
fn dies(mut host: HostProcess, point: &str) {
    let status = host.wait(DEADLINE);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(status.signal(), Some(9), "the host did not die at {point}: {}", host.stderr());
}

#[test]
fn thirty_kills_of_the_host_lose_nothing_double_nothing_and_repeat_nothing() {
    let world = World::new();
    let mut report = Report::default();
    let mut follower = Follower::default();

    // While the session starts: each of the frames to the agent (initialize, initialized, thread/start, turn/start) is
    // once committed and not delivered, and once delivered and not acknowledged.
    let mut host = world.start_to_die_at("committed_not_delivered:1");
    let session = world.create(&host, "codex", PROMPT);
    dies(host, "committed_not_delivered:1");
    report.hit("committed and not delivered");
    for (point, place) in [
        ("delivered_not_acknowledged:1", "delivered and not acknowledged"),
        ("committed_not_delivered:1", "committed and not delivered"),
        ("delivered_not_acknowledged:1", "delivered and not acknowledged"),
        ("read_not_committed:1", "record read and not committed"),
    ] {
        let host = world.start_to_die_at(point);
        dies(host, point);
        report.hit(place);
    }
    // While it streams.
    for round in 0..16 {
        let (point, place) = match round % 4 {
            3 => ("", "between batches"),
            _ => ("read_not_committed:1", "record read and not committed"),
        };
        if point.is_empty() {
            host = world.start();
            let mut sse = follower.open(&host.client(), &session);
            world.model.release("text", 1);
            follower.until(&mut sse, "a delta", is("item.delta"));
            host.kill9();
        } else {
            let host = world.start_to_die_at(point);
            world.model.release("text", 1);
            dies(host, point);
        }
        report.hit(place);
    }
    host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    world.model.release("text", 100);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(follower.agent_text(), expected_text(PROMPT));

    // An open approval.
    send(&host.client(), &session, "RUNESC touch approved ;; SAY after");
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    let request = opened["request"].as_str().unwrap().to_owned();
    for _ in 0..8 {
        host.kill9();
        report.hit("approval open");
        host = world.start();
    }
    host.kill9();
    let host = world.start_to_die_at("answered_not_delivered:1");
    // The answer is committed; whether we are still told so before the host is gone is not what this is about.
    let _told_or_broken = try_answer(&host.client(), &session, &request, "accept");
    dies(host, "answered_not_delivered:1");
    report.hit("approval answered and not delivered");
    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(world.home.workspace().join("approved").exists(), "the approval did not reach the agent");
    let second = answer(&host.client(), &session, &request, "decline");
    assert_eq!(second.status, 409, "{}", second.text());
    assert_eq!(follower.of_type("request.answered").len(), 1);

    // The same agent all along, and the model got each prompt once.
    let started = follower.of_type("process.started");
    assert_eq!(started.len(), 1, "a second process was started");
    assert!(is_alive(agent_pid(started[0])), "the agent is gone");
    assert_eq!(world.model.requests_prompted_by(PROMPT), 1);
    send(&host.client(), &session, "SAY last");
    follower.until(&mut sse, "the last turn's end", is("turn.ended"));
    assert_eq!(world.model.user_messages_seen(PROMPT), 1);
    assert!(follower.agent_text().ends_with("last"));

    let mut whole = Follower::default();
    let mut again = whole.open(&host.client(), &session);
    whole.until(&mut again, "the last event", |event| *event == *follower.events.last().unwrap());
    assert_eq!(whole.events, follower.events, "another reader sees another history");

    let kills: u32 = report.0.values().sum();
    println!("{kills} kills of the host: {:?}", report.0);
    assert!(kills >= 30, "{kills}");
    world.end(host);
}

#[test]
fn a_detaching_stop_leaves_the_agent_at_work_for_the_next_host() {
    for by_signal in [true, false] {
        let world = World::new();
        let mut host = world.start();
        let session = world.create(&host, "codex", PROMPT);
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        world.model.release("text", 5);
        follower.until(&mut sse, "text", is("item.delta"));
        if by_signal {
            host.term();
        } else {
            let body = serde_json::json!({ "mode": "detach" });
            host.client().post("/v1/host/stop", &body).unwrap().expect_status(202);
        }
        assert!(host.wait(DEADLINE).success(), "{}", host.stderr());
        follower.until_broken(&mut sse);
        let pid = agent_pid(follower.of_type("process.started")[0]);
        assert!(is_alive(pid), "the agent did not outlive a detaching stop");
        world.model.release("text", 100);
        let host = world.start();
        let mut sse = follower.open(&host.client(), &session);
        follower.until(&mut sse, "the turn's end", is("turn.ended"));
        assert_eq!(follower.agent_text(), expected_text(PROMPT));
        assert!(is_alive(pid));
        assert_eq!(world.model.requests_prompted_by(PROMPT), 1);
        world.end(host);
    }
}
