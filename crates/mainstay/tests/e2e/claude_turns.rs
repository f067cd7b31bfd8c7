//! The real Claude Code, one turn of each kind.

use crate::support::{Follower, World, answer, follow_turn, interrupt, is, send, show};
use mainstay_testkit::model::expected_text;
use serde_json::Value;

#[test]
fn claude_five_thousand_deltas_arrive_contiguous_and_byte_identical() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "DELTAS 5000 8");
    let follower = follow_turn(&host.client(), &session);
    assert_eq!(follower.agent_text(), expected_text("DELTAS 5000 8"));
    let completed = follower.of_type("item.completed");
    assert!(completed.iter().all(|event| event["replaces"] != true), "a text had to be replaced");
    assert_eq!(world.model.requests_prompted_by("DELTAS 5000 8"), 1);
    world.end(host);
}

#[test]
fn claude_shows_the_message_before_its_answer_and_proves_it_by_the_echo() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "THINK let me see ;; SAY done");
    let follower = follow_turn(&host.client(), &session);
    let kinds: Vec<&str> =
        follower.of_type("item.started").iter().filter_map(|event| event["kind"].as_str()).collect();
    assert_eq!(kinds, ["user_message", "agent_thought", "agent_message"]);
    let taken = follower.of_type("submission.taken");
    assert_eq!(taken[0]["proof"], "replay_echo");
    let info = &follower.of_type("process.ready")[0]["info"];
    assert_eq!(info["name"], "claude");
    assert!(info["version"].as_str().unwrap().starts_with("2."), "{info}");
    let turn = follower.of_type("turn.ended")[0];
    assert_eq!((&turn["outcome"], &turn["stop_reason"]), (&"completed".into(), &"end_turn".into()));
    assert_eq!(follower.agent_text(), "done");
    let thought = follower.events.iter().find(|event| event["kind"] == "agent_thought").unwrap();
    assert!(follower.text_of(thought["item"].as_str().unwrap()).contains("let me see"));
    world.end(host);
}

fn approval(option: &str) -> (Follower, bool) {
    let world = World::new();
    let host = world.start();
    let marker = world.home.workspace().join("made-by-agent");
    let session = world.create(&host, "claude", "RUN touch made-by-agent ;; SAY after");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    assert_eq!(show(&host.client(), &session)["status"], "requires_action");
    assert!(!marker.exists(), "it ran before it was approved");
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), option).expect_status(200);
    let closed = follower.until(&mut sse, "the request's end", is("request.closed"));
    assert_eq!(closed["confirmed"], true);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let made = marker.exists();
    world.end(host);
    (follower, made)
}

#[test]
fn claude_an_approval_accepted_runs_the_command() {
    let (follower, made) = approval("allow");
    assert!(made, "the command did not run");
    assert_eq!(follower.agent_text(), "after");
}

#[test]
fn claude_an_approval_denied_does_not_run_the_command() {
    let (follower, made) = approval("deny");
    assert!(!made, "the command ran");
    let declined = follower.of_type("item.completed").iter().any(|event| event["status"] == "declined");
    assert!(declined, "no item says that it was declined");
    assert_eq!(follower.agent_text(), "after");
}

#[test]
fn claude_a_suggestion_is_named_for_what_it_grants_and_is_not_asked_for_again() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "RUN touch one.txt ;; RUN touch one.txt ;; SAY after");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    let offered = opened["options"].as_array().unwrap();
    let named = |part: &str| offered.iter().find(|option| option["name"].as_str().unwrap().contains(part));
    let rule = named("always allow Bash(touch one.txt)").expect("a rule, named");
    assert_eq!(rule["kind"], "allow_always");
    let mode = named("the mode acceptEdits, in this session").expect("a mode, named");
    let option = mode["option_id"].as_str().unwrap();
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), option).expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(follower.of_type("request.opened").len(), 1, "asked again");
    let options = follower.of_type("options.updated");
    assert_eq!(options.last().unwrap()["options"]["mode"], "acceptEdits");
    assert_eq!(follower.agent_text(), "after");
    world.end(host);
}

#[test]
fn claude_an_interrupt_during_text_ends_the_turn_and_keeps_the_partial_text() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "GATED 10 g");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    world.model.release("g", 3);
    follower.until(&mut sse, "text", is("item.delta"));
    let reply = interrupt(&host.client(), &session);
    assert_eq!(reply["recorded"], true);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted");
    let message =
        follower.of_type("item.completed").into_iter().rev().find(|event| event["status"] != "completed");
    assert_eq!(message.expect("a cut message")["status"], "incomplete");
    assert!(!follower.agent_text().is_empty());
    send(&host.client(), &session, "SAY next");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("next"));
    world.end(host);
}

#[test]
fn claude_an_interrupt_during_a_command_ends_the_command() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "RUN sleep 1000 ;; SAY never");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the command", |event| {
        event["type"] == "item.updated" && event["raw_input"]["command"] == "sleep 1000"
    });
    interrupt(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted");
    world.end(host);
}

#[test]
fn claude_an_interrupt_with_an_open_request_cancels_it() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "RUN touch never ;; SAY never");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the approval", is("request.opened"));
    interrupt(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted");
    let closed = follower.of_type("request.closed");
    assert_eq!(closed.len(), 1);
    // By the stop itself, not by what the agent makes of it.
    assert_eq!(closed[0]["state"], "cancelled", "{}", closed[0]);
    assert!(!world.home.workspace().join("never").exists());
    world.end(host);
}

#[test]
fn claude_a_message_during_a_command_goes_into_the_turn() {
    let world = World::new();
    let host = world.start();
    let session =
        world.create(&host, "claude", "RUN touch started; while [ ! -e go ]; do sleep 0.1; done ;; SAY one");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "allow").expect_status(200);
    follower.until(&mut sse, "the request's end", is("request.closed"));
    send(&host.client(), &session, "and this too");
    follower.until(&mut sse, "the delivery", |event| {
        event["type"] == "submission.delivered" && event["steers"].is_string()
    });
    std::fs::write(world.home.workspace().join("go"), "").unwrap();
    let taken = follower.until(&mut sse, "the second message taken", is("submission.taken"));
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(follower.of_type("turn.started").len(), 1);
    assert_eq!(taken["turn"], follower.of_type("turn.started")[0]["turn"]);
    assert_eq!(world.model.user_messages_seen("and this too"), 1);
    world.end(host);
}

#[test]
fn claude_a_message_during_the_last_words_starts_the_next_turn() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "GATED 5 g");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    world.model.release("g", 2);
    follower.until(&mut sse, "text", is("item.delta"));
    send(&host.client(), &session, "SAY second");
    world.model.release("g", 3);
    follower.until(&mut sse, "the first turn's end", is("turn.ended"));
    follower.until(&mut sse, "the second turn's end", is("turn.ended"));
    assert!(follower.of_type("submission.doubtful").is_empty());
    assert!(follower.agent_text().ends_with("second"));
    assert_eq!(world.model.requests_prompted_by("SAY second"), 1);
    assert_eq!(world.model.user_messages_seen("SAY second"), 1);
    world.end(host);
}

#[test]
fn claude_a_message_cut_off_by_the_connection_is_incomplete_and_its_turn_failed() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "DISC 3");
    let follower = follow_turn(&host.client(), &session);
    let ended = follower.of_type("turn.ended")[0];
    assert_eq!((&ended["outcome"], &ended["failure"]["code"]), (&"failed".into(), &"network".into()));
    assert!(follower.of_type("item.completed").iter().any(|event| event["status"] == "incomplete"));
    world.end(host);
}

#[test]
fn claude_a_refused_request_fails_the_turn_with_its_kind() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "ERR 400");
    let follower = follow_turn(&host.client(), &session);
    let ended = follower.of_type("turn.ended")[0];
    assert_eq!(ended["outcome"], "failed");
    assert!(ended["failure"]["message"].as_str().unwrap().contains("400"), "{ended}");
    world.end(host);
}

#[test]
fn claude_a_local_command_is_taken_though_it_is_not_echoed() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "/cost");
    let follower = follow_turn(&host.client(), &session);
    let taken: Vec<&Value> = follower.of_type("submission.taken");
    assert_eq!(taken[0]["proof"], "sole_prompt");
    assert_eq!(follower.of_type("turn.ended")[0]["outcome"], "completed");
    assert!(world.model.requests().is_empty(), "the model was asked");
    world.end(host);
}
