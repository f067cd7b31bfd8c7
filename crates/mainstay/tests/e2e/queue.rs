//! The queue and steering on the real Codex.

use crate::support::{DEADLINE, Follower, World, agent_pid, answer, interrupt, is, kill, mainstay, show};
use mainstay_testkit::http::Client;
use mainstay_testkit::mainstay::HostProcess;
use serde_json::{Value, json};

/// Sends a message under an id; gives what was done with it.
fn give(client: &Client, session: &str, id: &str, content: &str, delivery: &str) -> String {
    let body = json!({ "id": id, "content": content, "delivery": delivery });
    let path = format!("/v1/sessions/{session}/messages");
    let submitted = client.post(&path, &body).expect("answers").expect_status(202).json();
    submitted["taken_as"].as_str().expect("taken_as").to_owned()
}

fn of(kind: &'static str, submission: &'static str) -> impl Fn(&Value) -> bool {
    move |event| event["type"] == kind && event["submission"] == submission
}

fn queue(client: &Client, session: &str) -> Value {
    client.get(&format!("/v1/sessions/{session}/queue")).expect("answers").expect_status(200).json()
}

/// The model was given this message, and once.
fn given_once(world: &World, content: &str) {
    assert_eq!(world.model.user_messages_seen(content), 1, "how often the model was given {content:?}");
}

#[test]
fn a_steer_during_text_goes_into_the_turn_and_the_model_sees_it_once() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "GATED 10 g");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    world.model.release("g", 3);
    follower.until(&mut sse, "text", is("item.delta"));
    assert_eq!(give(&host.client(), &session, "more", "SAY steered", "auto"), "steer");
    let delivered = follower.until(&mut sse, "the delivery", of("submission.delivered", "more"));
    let taken = follower.until(&mut sse, "the proof", of("submission.taken", "more"));
    assert_eq!((&taken["turn"], &taken["proof"]), (&delivered["steers"], &json!("client_id")));
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!((&ended["turn"], &ended["outcome"]), (&taken["turn"], &json!("completed")));
    assert_eq!(follower.of_type("turn.started").len(), 1, "it started no turn of its own");
    assert!(follower.agent_text().ends_with("steered"), "{}", follower.agent_text());
    given_once(&world, "SAY steered");
    world.end(host);
}

#[test]
fn a_message_that_follows_at_once_waits_for_the_first_and_goes_into_its_turn() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "GATED 10 g");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the delivery", is("submission.delivered"));
    assert_eq!(give(&host.client(), &session, "more", "SAY steered", "steer"), "steer");
    follower.until(&mut sse, "the proof", of("submission.taken", "more"));
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(follower.of_type("turn.started").len(), 1);
    given_once(&world, "GATED 10 g");
    given_once(&world, "SAY steered");
    world.end(host);
}

#[test]
fn a_steer_while_an_approval_is_open_is_taken_after_it() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "RUNESC touch made-by-agent ;; SAY after");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    assert_eq!(give(&host.client(), &session, "more", "SAY steered", "auto"), "steer");
    follower.until(&mut sse, "the delivery", of("submission.delivered", "more"));
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "accept").expect_status(200);
    follower.until(&mut sse, "the proof", of("submission.taken", "more"));
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed");
    given_once(&world, "SAY steered");
    world.end(host);
}

#[test]
fn queued_messages_are_edited_withdrawn_sent_on_and_run_in_their_order() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let session = world.create(&host, "codex", "HOLD h ;; SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    follower.until(&mut sse, "the first turn", is("submission.taken"));
    for (id, content) in [("a", "SAY a"), ("b", "SAY b"), ("c", "SAY c"), ("d", "SAY d")] {
        assert_eq!(give(&client, &session, id, content, "queue"), "queue");
    }
    let at = |rest: &str| format!("/v1/sessions/{session}/queue/{rest}");
    let edit = json!({ "revision": 1, "content": "SAY edited" });
    client.patch(&at("b"), &edit).expect("answers").expect_status(200);
    client.delete(&at("c")).expect("answers").expect_status(200);
    client.post(&at("d/send"), &json!({})).expect("answers").expect_status(200);
    assert_eq!(show(&client, &session)["status"], "running", "sending on interrupts nothing");
    world.model.open("h");
    for turn in 1..=4 {
        let ended = follower.until(&mut sse, "a turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "completed", "turn {turn}: {ended}");
    }
    assert_eq!(follower.agent_text(), "firstdaedited");
    assert_eq!(queue(&client, &session)["queue"], json!([]));
    given_once(&world, "SAY edited");
    assert_eq!(world.model.user_messages_seen("SAY c"), 0);
    assert_eq!(world.model.user_messages_seen("SAY b"), 0);
    world.end(host);
}

#[test]
fn a_steer_that_an_interrupt_lost_waits_in_the_queue_and_is_given_when_the_user_wants_it() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let session = world.create(&host, "codex", "RUN sleep 1000 ;; SAY never");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    follower.until(&mut sse, "the command", |event| {
        event["type"] == "item.started" && event["tool_kind"] == "execute"
    });
    // Accepted at once, and taken only when the command returns.
    assert_eq!(give(&client, &session, "more", "SAY steered", "steer"), "steer");
    follower.until(&mut sse, "the delivery", of("submission.delivered", "more"));
    interrupt(&client, &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted");
    let queued = follower.until(&mut sse, "its return", of("submission.queued", "more"));
    assert_eq!(queued["reason"], "paused");
    assert_eq!(world.model.user_messages_seen("SAY steered"), 0);
    let waiting = queue(&client, &session);
    assert_eq!((&waiting["queue"][0]["id"], &waiting["paused"]), (&json!("more"), &json!(true)));
    let send = format!("/v1/sessions/{session}/queue/more/send");
    client.post(&send, &json!({})).expect("answers").expect_status(200);
    follower.until(&mut sse, "the proof", of("submission.taken", "more"));
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed");
    world.model.wait_requests(2, DEADLINE);
    given_once(&world, "SAY steered");
    world.end(host);
}

/// A session whose approval is open, with the message `more` given into the turn: accepted, and not taken before the
/// approval is answered. Gives the request.
fn steered_behind_an_approval(
    world: &World,
    host: &HostProcess,
    follower: &mut Follower,
) -> (String, String) {
    let session = world.create(host, "codex", "RUNESC touch made-by-agent ;; SAY after");
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    assert_eq!(give(&host.client(), &session, "more", "SAY steered", "auto"), "steer");
    follower.until(&mut sse, "the delivery", of("submission.delivered", "more"));
    (session, opened["request"].as_str().expect("a request").to_owned())
}

#[test]
fn a_host_killed_with_a_steer_under_way_gives_it_once() {
    let world = World::new();
    let mut host = world.start();
    let mut follower = Follower::default();
    let (session, request) = steered_behind_an_approval(&world, &host, &mut follower);
    host.kill9();
    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    answer(&host.client(), &session, &request, "accept").expect_status(200);
    follower.until(&mut sse, "the proof", of("submission.taken", "more"));
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed");
    assert_eq!(follower.of_type("turn.started").len(), 1);
    given_once(&world, "SAY steered");
    world.end(host);
}

#[test]
fn a_steer_that_its_agents_death_lost_is_proven_absent_and_given_again() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let mut follower = Follower::default();
    let (session, _) = steered_behind_an_approval(&world, &host, &mut follower);
    kill(agent_pid(follower.of_type("process.started")[0]));
    let mut sse = follower.open(&client, &session);
    let doubtful = follower.until(&mut sse, "the doubt", of("submission.doubtful", "more"));
    assert_eq!(doubtful["settles_by"], "history");
    follower.until(&mut sse, "the lease's end", is("lease.released"));
    assert_eq!(show(&client, &session)["status"], "requires_action");
    client.post(&format!("/v1/sessions/{session}/start"), &json!({})).expect("answers").expect_status(202);
    follower.until(&mut sse, "its return", of("submission.queued", "more"));
    follower.until(&mut sse, "the proof", of("submission.taken", "more"));
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    given_once(&world, "SAY steered");
    world.end(host);
}

#[test]
fn the_command_line_shows_and_changes_the_queue() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let session = world.create(&host, "codex", "HOLD h ;; SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    follower.until(&mut sse, "the first turn", is("submission.taken"));
    let run = |arguments: &[&str]| {
        let output = world.home.command(mainstay(), arguments).output().expect("runs");
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        (output.status.code(), said)
    };
    let send = |id: &str| run(&["send", &session, &format!("SAY {id}"), "--delivery", "queue", "--id", id]);
    for id in ["a", "b", "c"] {
        assert_eq!(send(id), (Some(0), format!("{id} (queue)")));
    }
    assert_eq!(run(&["queue", "edit", &session, "b", "SAY edited"]), (Some(0), "revision 2".to_owned()));
    let stale = run(&["queue", "edit", &session, "b", "SAY other", "--revision", "1"]);
    assert_eq!(stale.0, Some(4), "somebody was first");
    assert_eq!(run(&["queue", "move", &session, "a", "--last"]).0, Some(0));
    assert_eq!(run(&["queue", "rm", &session, "c"]), (Some(0), "withdrawn".to_owned()));
    assert_eq!(run(&["queue", "send", &session, "a"]), (Some(0), "revision 3".to_owned()));
    let (code, listed) = run(&["queue", "ls", &session]);
    let ids: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!((code, &ids[..]), (Some(0), &["a", "b"][..]), "{listed}");
    assert!(listed.contains("SAY edited"), "{listed}");
    interrupt(&client, &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(run(&["send", &session, "x", "--delivery", "steer"]).0, Some(4), "no turn runs");
    assert_eq!(run(&["queue", "resume", &session]), (Some(0), "resumed".to_owned()));
    for _ in 0..2 {
        follower.until(&mut sse, "a turn's end", is("turn.ended"));
    }
    assert!(follower.agent_text().ends_with("aedited"), "{}", follower.agent_text());
    world.end(host);
}
