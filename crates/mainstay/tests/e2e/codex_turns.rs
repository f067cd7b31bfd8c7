//! The real Codex, one turn of each kind.

use crate::support::{Follower, World, answer, follow_turn, interrupt, is, send, show};
use mainstay_testkit::model::expected_text;

#[test]
fn five_thousand_deltas_arrive_contiguous_and_byte_identical() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "DELTAS 5000 8");
    let follower = follow_turn(&host.client(), &session);
    assert_eq!(follower.agent_text(), expected_text("DELTAS 5000 8"));
    let deltas = follower.of_type("item.delta");
    let counted: u64 = deltas
        .iter()
        .map(|delta| {
            let seq = delta["seq"].as_u64().unwrap();
            seq - delta["first_seq"].as_u64().unwrap_or(seq) + 1
        })
        .sum();
    assert!(counted >= 4_990, "{counted} deltas in {} rows", deltas.len());
    let completed = follower.of_type("item.completed");
    assert!(completed.iter().all(|event| event["replaces"] != true), "a text had to be replaced");
    world.end(host);
}

#[test]
fn thinking_comes_as_a_thought() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "THINK let me see ;; SAY done");
    let follower = follow_turn(&host.client(), &session);
    let thought = follower.events.iter().find(|event| event["kind"] == "agent_thought").expect("a thought");
    assert!(follower.text_of(thought["item"].as_str().unwrap()).contains("let me see"));
    assert_eq!(follower.agent_text(), "done");
    world.end(host);
}

fn approval(option: &str) -> (Follower, bool) {
    let world = World::new();
    let host = world.start();
    let marker = world.home.workspace().join("made-by-agent");
    let session = world.create(&host, "codex", "RUNESC touch made-by-agent ;; SAY after");
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
fn an_approval_accepted_runs_the_command() {
    let (follower, made) = approval("accept");
    assert!(made, "the command did not run");
    assert_eq!(follower.agent_text(), "after");
}

#[test]
fn an_approval_declined_does_not_run_the_command() {
    let (follower, made) = approval("decline");
    assert!(!made, "the command ran");
    let declined = follower.of_type("item.completed").iter().any(|event| event["status"] == "declined");
    assert!(declined, "no item says that it was declined");
}

#[test]
fn a_patch_is_shown_with_its_diff_and_asks_where_it_must() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "PATCH note.txt hello ;; SAY patched");
    let follower = follow_turn(&host.client(), &session);
    let edit = follower.events.iter().find(|event| event["tool_kind"] == "edit").expect("an edit item");
    assert!(edit.to_string().contains("note.txt"));
    assert_eq!(std::fs::read_to_string(world.home.workspace().join("note.txt")).unwrap().trim(), "hello");
    world.end(host);
}

#[test]
fn an_interrupt_during_text_ends_the_turn_and_keeps_the_partial_text() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "GATED 10 g");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    world.model.release("g", 3);
    follower.until(&mut sse, "text", is("item.delta"));
    let reply = interrupt(&host.client(), &session);
    assert_eq!(reply["recorded"], true);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted");
    let item = follower.of_type("item.completed").last().unwrap()["status"].clone();
    assert_eq!(item, "incomplete", "the cut message must say so");
    assert!(!follower.agent_text().is_empty());
    send(&host.client(), &session, "SAY next");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("next"));
    world.end(host);
}

#[test]
fn an_interrupt_during_a_command_ends_the_turn() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "RUN sleep 1000 ;; SAY never");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the command", |event| {
        event["type"] == "item.started" && event["tool_kind"] == "execute"
    });
    interrupt(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted");
    world.end(host);
}

#[test]
fn an_interrupt_between_the_answer_to_turn_start_and_turn_started_is_not_lost() {
    // Sent as soon as the message is on its way: before, at or after the answer to turn/start, never after its text.
    for _ in 0..8 {
        let world = World::new();
        let host = world.start();
        let session = world.create(&host, "codex", "HOLD h ;; SAY never");
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        follower.until(&mut sse, "the delivery", is("submission.delivered"));
        interrupt(&host.client(), &session);
        let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "interrupted", "{ended}");
        world.end(host);
    }
}

#[test]
fn a_provider_error_fails_the_turn_with_the_providers_words_and_the_next_turn_works() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "ERR 400");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "failed");
    assert!(ended["failure"]["provider"].is_object(), "{ended}");
    send(&host.client(), &session, "SAY fine");
    let ended = follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed");
    assert_eq!(follower.of_type("process.started").len(), 1, "the failure cost more than its turn");
    world.end(host);
}
