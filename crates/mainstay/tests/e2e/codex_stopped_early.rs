//! A stop at any moment of a turn: what is said of its message is what the model has of it, and nothing stays open.

use crate::matrix::invariants;
use crate::support::{DEADLINE, World, answer, follow_turn, interrupt, is, send, show};
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::time::Duration;

/// Sends each text and stops its turn so much later (after an approval was given, where it asks for one); then all is
/// settled, and the session goes on.
fn stopped_at_any_moment(stops: impl Iterator<Item = (String, Duration)>) {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let session = world.create(&host, "codex", "SAY first");
    let mut follower = follow_turn(&client, &session);
    let mut sent = vec!["SAY first".to_owned()];
    let mut sse = follower.open(&client, &session);
    for (text, after) in stops {
        send(&client, &session, &text);
        if text.starts_with("RUNESC") {
            let opened = follower.until(&mut sse, "the approval", is("request.opened"));
            let request = opened["request"].as_str().expect("its id");
            answer(&client, &session, request, "accept").expect_status(200);
        }
        sent.push(text);
        std::thread::sleep(after); // fault
        interrupt(&client, &session);
        let mut last = Value::Null;
        let settled = wait_for(DEADLINE, || {
            last = show(&client, &session);
            (last["status"] == "idle" && last["queue_length"] == 0).then_some(())
        });
        if settled.is_none() {
            follower.until(&mut sse, "its rest", |event| event["type"] == "never");
        }
    }
    send(&client, &session, "SAY last");
    sent.push("SAY last".to_owned());
    follower.until(&mut sse, "the last message", |event| {
        event["type"] == "submission.accepted" && event["content"][0]["text"] == "SAY last"
    });
    follower.until(&mut sse, "the last turn's end", is("turn.ended"));
    client.post(&format!("/v1/sessions/{session}/stop"), &json!({})).expect("answers").expect_status(202);
    follower.until(&mut sse, "the end", is("lease.released"));
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    invariants::check(&world, &client, &session, &follower, &sent);
    world.end(host);
}

#[test]
fn a_message_that_was_stopped_early_is_taken_or_was_never_there() {
    stopped_at_any_moment(
        (0..60).map(|number| {
            (format!("HOLD never ;; SAY stopped {number}"), Duration::from_millis(number % 30))
        }),
    );
}

#[test]
fn a_command_that_was_stopped_at_any_moment_ends() {
    stopped_at_any_moment((0..60).map(|number| {
        let text = format!("RUN echo {number} >> ran ;; HOLD never ;; SAY stopped {number}");
        (text, Duration::from_millis(number * 7 % 160))
    }));
}

#[test]
fn a_command_that_was_stopped_as_soon_as_it_was_allowed_ends() {
    stopped_at_any_moment((0..24).map(|number| {
        let text = format!("RUNESC echo {number} >> ran ;; HOLD never ;; SAY stopped {number}");
        (text, Duration::from_millis(number % 8))
    }));
}
