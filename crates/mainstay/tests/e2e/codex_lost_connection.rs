//! The connection to Codex is really lost while it asks: the request comes again on the next one, under another id, and is
//! answered once. A sub-agent's as well as the session's own.

use crate::keepers;
use crate::reattach::{CUT, any_holds};
use crate::support::{DEADLINE, Follower, World, agent_pid, answer, is, is_alive};
use mainstay_testkit::wait::wait_for;
use serde_json::json;

/// The first model's sub-agents stream while their parent asks.
const MODEL: &str = "gpt-5.4";

/// A session that asks, and whose connection is lost with no host there.
fn asked_and_cut(prompt: &str, file: &str) {
    let world = World::new();
    crate::host_keys::set(&world, "spool_limit", "\"2MiB\"");
    let mut host = world.start();
    let body = json!({ "agent": "codex", "cwd": world.workspace(), "prompt": prompt, "options": { "model": MODEL } });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().expect("an id").to_owned();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    world.model.wait_at_gate("g", DEADLINE);
    let spool = keepers::folder(&world, &host.client(), &session).join("spool");
    host.kill9();
    follower.until_broken(&mut sse);
    world.model.open("g");
    let was_cut = wait_for(DEADLINE, || any_holds(&spool, CUT).then_some(()));
    assert!(was_cut.is_some(), "the keeper did not cut the connection");

    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "word of the loss", |event| {
        event["type"] == "notice" && event["message"].to_string().contains("connection")
    });
    assert!(!world.home.workspace().join(file).exists(), "it ran before it was approved");
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "accept").expect_status(200);
    let closed = follower.until(&mut sse, "the request's end", is("request.closed"));
    assert_eq!((&closed["state"], &closed["confirmed"]), (&json!("answered"), &json!(true)), "{closed}");
    // A sub-agent may ask and work longer than its parent.
    if follower.of_type("turn.ended").is_empty() {
        follower.until(&mut sse, "the turn's end", is("turn.ended"));
    }
    if !follower.of_type("child.started").is_empty() && follower.of_type("child.ended").is_empty() {
        follower.until(&mut sse, "the child's end", is("child.ended"));
    }
    assert!(world.home.workspace().join(file).exists(), "the command did not run");
    assert_eq!(follower.of_type("request.opened").len(), 1, "it was shown as another request");
    assert!(is_alive(agent_pid(follower.of_type("process.started")[0])), "the agent was ended");
    world.end(host);
}

#[test]
fn a_childs_approval_is_answered_over_the_next_connection() {
    asked_and_cut(
        "SPAWN RUNESC touch made-by-child :: SAY child done ;; GATE g ;; DELTAS 60000 8 ;; SAY parent done",
        "made-by-child",
    );
}

#[test]
fn an_approval_is_answered_over_the_next_connection_though_a_child_filled_the_one_before() {
    asked_and_cut(
        "SPAWN GATE g :: DELTAS 60000 8 :: SAY child done ;; RUNESC touch made-by-parent ;; SAY parent done",
        "made-by-parent",
    );
}
