//! A stop at any moment of a turn's beginning: what is said of its message is what the model has of it.

use crate::matrix::invariants;
use crate::support::{DEADLINE, World, follow_turn, interrupt, is, send, show};
use mainstay_testkit::wait::wait_until;
use serde_json::json;
use std::time::Duration;

const STOPS: u64 = 60;

#[test]
fn a_message_that_was_stopped_early_is_taken_or_was_never_there() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let session = world.create(&host, "codex", "SAY first");
    let mut follower = follow_turn(&client, &session);
    let mut sent = vec!["SAY first".to_owned()];
    for number in 0..STOPS {
        let text = format!("HOLD never ;; SAY stopped {number}");
        send(&client, &session, &text);
        sent.push(text);
        std::thread::sleep(Duration::from_millis(number % 30)); // fault
        interrupt(&client, &session);
        wait_until(DEADLINE, "it is settled", || {
            let shown = show(&client, &session);
            shown["status"] == "idle" && shown["queue_length"] == 0
        });
    }
    send(&client, &session, "SAY last");
    sent.push("SAY last".to_owned());
    let mut sse = follower.open(&client, &session);
    follower.until(&mut sse, "the last message", |event| {
        event["type"] == "submission.accepted" && event["content"][0]["text"] == "SAY last"
    });
    follower.until(&mut sse, "the last turn's end", is("turn.ended"));
    client.post(&format!("/v1/sessions/{session}/stop"), &json!({})).expect("answers").expect_status(202);
    follower.until(&mut sse, "the end", is("lease.released"));
    let cancelled = follower.of_type("submission.cancelled").len();
    println!("{cancelled} of {STOPS} were never there");
    let sent: Vec<&str> = sent.iter().map(String::as_str).collect();
    invariants::check(&world, &client, &session, &follower, &sent);
    world.end(host);
}
