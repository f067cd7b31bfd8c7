//! A crash between any two steps of a start: no second process, no second delivery, nothing lost.

use crate::support::{DEADLINE, Follower, World, is};
use mainstay_testkit::wait::wait_for;

fn crash_at(point: &str) {
    const PROMPT: &str = "SAY once";
    let world = World::new();
    let mut host = world.start_to_die_at(point);
    let body = serde_json::json!({ "agent": "scripted", "cwd": world.workspace(), "prompt": PROMPT, "id": "the-session" });
    // The host may die before its answer arrives: then the caller asks again under the same id.
    let _answered_or_broken = host.client().post("/v1/sessions", &body);
    host.wait(DEADLINE);
    drop(host);

    let host = world.start();
    host.client().post("/v1/sessions", &body).unwrap().expect_status(201);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), "the-session");
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{point}: {ended}");
    assert_eq!(follower.agent_text(), "once", "{point}");
    assert_eq!(world.prompts_received(PROMPT), 1, "{point}: the agent got the prompt more than once");
    let keepers = world.home.mainstay_home().join("keepers");
    let one = wait_for(DEADLINE, || {
        let visible = std::fs::read_dir(&keepers).unwrap().flatten();
        (visible.filter(|entry| !entry.file_name().to_string_lossy().starts_with('.')).count() == 1)
            .then_some(())
    });
    assert!(one.is_some(), "{point}: a second keeper's folder stays");
    world.end(host);
}

#[test]
fn between_reservation_and_spawn() {
    crash_at("reserved_not_spawned");
}

#[test]
fn between_spawn_and_its_record() {
    crash_at("spawned_not_recorded");
}

#[test]
fn between_the_record_and_the_first_frame() {
    crash_at("recorded_no_frame");
}

#[test]
fn between_reading_and_committing() {
    for count in 1..=4 {
        crash_at(&format!("read_not_committed:{count}"));
    }
}

#[test]
fn between_commit_and_delivery() {
    for count in 1..=3 {
        crash_at(&format!("committed_not_delivered:{count}"));
    }
}

#[test]
fn between_delivery_and_acknowledgement() {
    for count in 1..=3 {
        crash_at(&format!("delivered_not_acknowledged:{count}"));
    }
}
