//! Sessions over HTTP: made once, read, streamed, ended.

use super::served::{Served, problem};
use mainstay_testkit::http::{Addr, Sse};
use serde_json::{Value, json};
use std::sync::Barrier;
use std::time::Duration;

const GENEROUS: Duration = Duration::from_secs(30);

fn ids(list: &Value) -> Vec<&str> {
    list["sessions"]
        .as_array()
        .expect("sessions")
        .iter()
        .filter_map(|session| session["id"].as_str())
        .collect()
}

#[test]
fn the_same_key_makes_one_session_and_gives_one_answer() {
    let served = Served::start();
    let body = json!({ "agent": "absent", "cwd": served.work(), "name": "one" });
    let barrier = Barrier::new(4);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let race = || {
            barrier.wait();
            served.client().post_once("/v1/sessions", "key-1", &body).expect("an answer")
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(race)).collect();
        threads.into_iter().map(|thread| thread.join().expect("joins")).collect()
    });
    let replays = answers.iter().filter(|answer| answer.header("idempotent-replay") == Some("true")).count();
    assert_eq!(replays, 3);
    for answer in &answers {
        assert_eq!((answer.status, &answer.body), (201, &answers[0].body));
    }
    let list = served.client().get("/v1/sessions").expect("an answer").json();
    assert_eq!(ids(&list), [answers[0].json()["id"].as_str().expect("an id")]);
    let other = served.client().post_once("/v1/sessions", "key-1", &json!({ "agent": "absent", "cwd": "/" }));
    problem(&other.expect("an answer"), 409, "operation_conflict");
    let malformed = served.client().post_once("/v1/sessions", "a b", &body);
    problem(&malformed.expect("an answer"), 400, "invalid_header");
}

#[test]
fn an_id_of_the_callers_is_the_same_session_for_ever() {
    let served = Served::start();
    let body = json!({ "agent": "absent", "cwd": served.work(), "id": "mine" });
    let first = served.client().post("/v1/sessions", &body).expect("an answer").expect_status(201).json();
    let again = served.client().post("/v1/sessions", &body).expect("an answer").expect_status(201).json();
    assert_eq!((&first["id"], &again["id"]), (&json!("mine"), &json!("mine")));
    let other = json!({ "agent": "absent", "cwd": served.work(), "id": "mine", "instructions": "x" });
    problem(&served.client().post("/v1/sessions", &other).expect("an answer"), 409, "id_conflict");
}

#[test]
fn a_session_is_listed_changed_and_deleted() {
    let served = Served::start();
    let client = served.client();
    let made: Vec<String> = (0..3).map(|_| served.session()).collect();
    let first = client.get("/v1/sessions?limit=2").expect("an answer").json();
    assert_eq!(ids(&first), [made[2].as_str(), made[1].as_str()]);
    let after = first["after"].as_str().expect("more");
    let second = client.get(&format!("/v1/sessions?limit=2&after={after}")).expect("an answer").json();
    assert_eq!(ids(&second), [made[0].as_str()]);
    let path = format!("/v1/sessions/{}", made[0]);
    let patch = json!({ "name": "renamed", "options": { "model": "m", "effort": "high" } });
    let patched = client.patch(&path, &patch).expect("an answer").expect_status(200).json();
    assert_eq!((&patched["name"], &patched["options"]["model"]), (&json!("renamed"), &json!("m")));
    let patched = client.patch(&path, &json!({ "options": { "model": null } })).expect("an answer").json();
    assert_eq!((&patched["options"]["model"], &patched["options"]["effort"]), (&Value::Null, &json!("high")));
    let read = client.get(&path).expect("an answer").json();
    assert_eq!(
        (&read["name"], &read["status"], &read["cursor"]),
        (&json!("renamed"), &json!("idle"), &patched["cursor"])
    );
    client.delete(&path).expect("an answer").expect_status(200);
    problem(&client.get(&path).expect("an answer"), 404, "session_unknown");
}

#[test]
fn a_stream_catches_up_goes_on_and_resumes() {
    let served = Served::start();
    let session = served.session();
    let path = format!("/v1/sessions/{session}/events");
    let mut sse = served.client().events(&path, &[]).expect("a stream");
    let past = sse.until(GENEROUS, |event| event.event == "caught_up");
    assert_eq!(past[0].event, "session.created");
    assert_eq!(past[0].id.as_deref(), Some("1:1"));
    assert_eq!(past[0].data["type"], "session.created");
    served
        .client()
        .patch(&format!("/v1/sessions/{session}"), &json!({ "name": "n" }))
        .expect("an answer")
        .expect_status(200);
    let live = sse.until(GENEROUS, |event| event.event == "session.updated");
    let last = live.last().and_then(|event| event.id.clone()).expect("an id");
    let mut resumed =
        Sse::open(&Addr::Unix(served.socket.clone()), &path, &[("last-event-id", "1:1")]).expect("a stream");
    let rest = resumed.until(GENEROUS, |event| event.event == "caught_up");
    assert_eq!(
        rest.iter().filter_map(|event| event.id.clone()).collect::<Vec<_>>(),
        std::slice::from_ref(&last)
    );
    let page = served.client().get(&format!("{path}?after=1:0&limit=1")).expect("an answer").json();
    assert_eq!(
        (&page["events"][0]["type"], &page["cursor"], &page["more"]),
        (&json!("session.created"), &json!("1:1"), &json!(true))
    );
    assert_eq!(page["head"], json!(last));
}

#[test]
fn cursors_that_cannot_be_served_are_reset_with_a_page() {
    let served = Served::start();
    let session = served.session();
    let path = format!("/v1/sessions/{session}/events");
    for (cursor, reason) in [("1:99", "cursor_ahead"), ("0:1", "epoch_changed"), ("7:1", "cursor_ahead")] {
        let mut sse = served.client().events(&path, &[("last-event-id", cursor)]).expect("a stream");
        let events = sse.until(GENEROUS, |event| event.event == "caught_up");
        assert_eq!((events[0].event.as_str(), &events[0].id), ("reset", &None));
        assert_eq!((&events[0].data["reason"], &events[0].data["epoch"]), (&json!(reason), &json!(1)));
        assert!(events[0].data["page"]["items"].is_array(), "{:?}", events[0]);
        let page = served.client().get(&format!("{path}?after={cursor}")).expect("an answer").json();
        assert_eq!(page["reset"]["reason"], reason);
    }
}

#[test]
fn the_feed_is_paged_and_streamed() {
    let served = Served::start();
    let session = served.session();
    let page = served.client().get("/v1/events").expect("an answer").json();
    assert_eq!((&page["events"][0]["session"], &page["events"][0]["position"]), (&json!(session), &json!(1)));
    let mut sse = served.client().events("/v1/events", &[]).expect("a stream");
    let past = sse.until(GENEROUS, |event| event.event == "caught_up");
    assert_eq!(past[0].id.as_deref(), Some("1"));
    let ahead = served.client().get("/v1/events?after=99").expect("an answer").json();
    assert_eq!(ahead["reset"]["reason"], "cursor_ahead");
}

#[test]
fn stopping_the_host_ends_its_streams_and_then_itself() {
    let mut served = Served::start();
    let session = served.session();
    let mut sse = served.client().events(&format!("/v1/sessions/{session}/events"), &[]).expect("a stream");
    sse.until(GENEROUS, |event| event.event == "caught_up");
    let stopping = served
        .socket_client()
        .post("/v1/host/stop", &json!({}))
        .expect("an answer")
        .expect_status(202)
        .json();
    assert_eq!(stopping["mode"], "close_idle");
    assert!(sse.next(GENEROUS).is_none() && sse.ended());
    assert!(served.ended());
    assert!(!served.socket.exists());
}

#[test]
fn every_route_of_the_document_is_served() {
    let served = Served::start();
    let client = served.client();
    let document = client.get("/openapi.json").expect("an answer").expect_status(200).json();
    let mut seen = 0;
    for (path, methods) in document["paths"].as_object().expect("paths") {
        if path == "/v1/host/stop" {
            continue;
        }
        let concrete = path.replace("{session}", "ses_none").replace("{agent}", "none");
        let concrete = concrete.replace("{request}", "r1").replace("{submission}", "m1");
        for method in methods.as_object().expect("methods").keys() {
            let body = (method != "get").then_some(b"{}".as_slice());
            let response = client.request(&method.to_uppercase(), &concrete, &[], body).expect("an answer");
            let code = if response.status >= 400 { response.json()["code"].clone() } else { Value::Null };
            assert!(code != "not_found" && code != "method_not_allowed", "{method} {path}: {code}");
            seen += 1;
        }
    }
    assert!(seen > 20, "{seen}");
    let metrics = client.get("/metrics").expect("an answer").expect_status(200).text();
    assert!(metrics.contains("mainstay_store_transactions_total "), "{metrics}");
}

#[test]
fn credentials_of_mcp_servers_stand_in_the_record_alone() {
    let served = Served::start();
    let client = served.client();
    let server = json!({
        "name": "notes", "command": "/bin/notes", "args": [], "env": [{ "name": "KEY", "value": "hidden-value" }],
    });
    let body = json!({ "agent": "absent", "cwd": served.work(), "id": "ses_a", "mcp_servers": [server] });
    let headers = [("content-type", "application/json"), ("idempotency-key", "k1")];
    let create = || {
        let body = body.to_string();
        client.request("POST", "/v1/sessions", &headers, Some(body.as_bytes())).expect("an answer")
    };
    // Also of a creation that is sent again, which is the same one.
    let mut shown = vec![create().expect_status(201), create().expect_status(201)];
    for path in ["", "/ses_a", "/ses_a/events", "/ses_a/export"] {
        shown.push(client.get(&format!("/v1/sessions{path}")).expect("an answer").expect_status(200));
    }
    for response in shown {
        let text = String::from_utf8(response.body).expect("text");
        assert!(text.contains("KEY") && !text.contains("hidden-value"), "{text}");
    }
    let row = served.runtime.block_on(served.host.session("ses_a")).expect("there");
    assert!(String::from_utf8(row.launch).expect("text").contains("hidden-value"));
}
