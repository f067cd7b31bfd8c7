//! Done once: idempotency keys, ids, and approvals that two clients answer at the same instant.

use crate::support::{Follower, World, is};
use serde_json::json;
use std::sync::{Arc, Barrier};

#[test]
fn the_same_key_gives_the_same_session_and_message_and_another_payload_a_conflict() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let body = json!({ "agent": "scripted", "cwd": world.workspace() });
    let first = client.post_once("/v1/sessions", "key-1", &body).unwrap().expect_status(201);
    let again = client.post_once("/v1/sessions", "key-1", &body).unwrap().expect_status(201);
    assert_eq!(first.json(), again.json());
    assert_eq!(again.header("idempotent-replay"), Some("true"));
    let other = json!({ "agent": "scripted", "cwd": world.workspace(), "name": "other" });
    let conflict = client.post_once("/v1/sessions", "key-1", &other).unwrap().expect_status(409);
    assert_eq!(conflict.json()["code"], "operation_conflict");
    assert_eq!(client.get("/v1/sessions").unwrap().json()["sessions"].as_array().unwrap().len(), 1);

    let session = first.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/sessions/{session}/messages");
    let message = json!({ "content": "SAY hi" });
    let first = client.post_once(&path, "key-2", &message).unwrap().expect_status(202);
    let again = client.post_once(&path, "key-2", &message).unwrap().expect_status(202);
    assert_eq!(first.json(), again.json());
    let follower = crate::support::follow_turn(&client, &session);
    assert_eq!(follower.of_type("submission.accepted").len(), 1);
    assert_eq!(world.prompts_received("SAY hi"), 1);
    world.end(host);
}

#[test]
fn many_clients_with_the_same_key_at_the_same_instant_make_one_session() {
    let world = World::new();
    let host = world.start();
    let body = json!({ "agent": "scripted", "cwd": world.workspace() });
    let barrier = Arc::new(Barrier::new(8));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (client, body, barrier) = (host.client(), body.clone(), barrier.clone());
            std::thread::spawn(move || {
                barrier.wait();
                client.post_once("/v1/sessions", "same", &body).unwrap().expect_status(201).json()["id"]
                    .to_string()
            })
        })
        .collect();
    let ids: std::collections::BTreeSet<String> =
        clients.into_iter().map(|client| client.join().unwrap()).collect();
    assert_eq!(ids.len(), 1, "{ids:?}");
    world.end(host);
}

#[test]
fn of_two_answers_at_the_same_instant_one_wins_and_the_other_is_told() {
    let world = World::new();
    let host = world.start();
    for _ in 0..5 {
        let session = world.create(&host, "scripted", "ASK may I");
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        let opened = follower.until(&mut sse, "the request", is("request.opened"));
        let request = opened["request"].as_str().unwrap().to_owned();
        let barrier = Arc::new(Barrier::new(2));
        let answers: Vec<_> = ["allow_once", "reject_once"]
            .map(|option| {
                let (client, session, request, barrier) =
                    (host.client(), session.clone(), request.clone(), barrier.clone());
                std::thread::spawn(move || {
                    barrier.wait();
                    crate::support::answer(&client, &session, &request, option)
                })
            })
            .into_iter()
            .map(|answer| answer.join().unwrap())
            .collect();
        let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [200, 409]);
        let loser = answers.iter().find(|answer| answer.status == 409).unwrap().json();
        assert_eq!(loser["code"], "already_answered");
        assert!(loser["winner"].is_object(), "the loser is not told who won: {loser}");
        follower.until(&mut sse, "the turn's end", is("turn.ended"));
        assert_eq!(follower.of_type("request.answered").len(), 1);
    }
    world.end(host);
}
