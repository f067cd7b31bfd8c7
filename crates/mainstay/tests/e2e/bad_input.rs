//! Bad input gets its problem document and changes nothing.

use crate::support::{DEADLINE, World};
use mainstay_testkit::http::Response;
use serde_json::json;

#[track_caller]
fn problem(response: &Response, status: u16, code: &str) {
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    let body = response.json();
    assert_eq!(body["code"], code, "{body}");
    assert!(body["detail"].as_str().is_some_and(|detail| detail.len() > 10), "no detail: {body}");
    assert!(body["retryable"].is_boolean() && body["side_effect_possible"].is_boolean(), "{body}");
}

#[test]
fn each_kind_of_bad_input_is_refused_with_its_code_and_changes_nothing() {
    let world = World::new();
    let host = world.start();
    let client = host.client();
    let cwd = world.workspace();
    let good = json!({ "agent": "scripted", "cwd": cwd });
    let session = client.post("/v1/sessions", &good).unwrap().expect_status(201).json();
    let id = session["id"].as_str().unwrap().to_owned();
    let before = client.get(&format!("/v1/sessions/{id}")).unwrap().json();

    problem(&client.get("/v1/sessions/none").unwrap(), 404, "session_unknown");
    problem(&client.get(&format!("/v1/sessions/{id}/events?after=soon")).unwrap(), 400, "invalid_cursor");
    problem(
        &client.post("/v1/sessions", &json!({ "agent": "nobody", "cwd": cwd })).unwrap(),
        404,
        "agent_unknown",
    );
    let missing = json!({ "agent": "scripted", "cwd": format!("{cwd}/not-there") });
    problem(&client.post("/v1/sessions", &missing).unwrap(), 422, "bad_folder");
    let outside = json!({ "agent": "scripted", "cwd": "/usr" });
    problem(&client.post("/v1/sessions", &outside).unwrap(), 403, "outside_roots");
    std::os::unix::fs::symlink("/usr", format!("{cwd}/way-out")).unwrap();
    let linked = json!({ "agent": "scripted", "cwd": format!("{cwd}/way-out") });
    problem(&client.post("/v1/sessions", &linked).unwrap(), 403, "outside_roots");
    let unknown_field = json!({ "agent": "scripted", "cwd": cwd, "colour": "red" });
    problem(&client.post("/v1/sessions", &unknown_field).unwrap(), 400, "invalid_body");
    let large = json!({ "content": "x".repeat(5 * 1024 * 1024) });
    problem(&client.post(&format!("/v1/sessions/{id}/messages"), &large).unwrap(), 413, "too_large");
    let empty = json!({ "content": "" });
    problem(&client.post(&format!("/v1/sessions/{id}/messages"), &empty).unwrap(), 422, "empty_content");
    let nothing = json!({ "option_id": "x" });
    problem(
        &client.post(&format!("/v1/sessions/{id}/requests/r/answer"), &nothing).unwrap(),
        404,
        "request_unknown",
    );
    let steer = json!({ "content": "x", "delivery": "steer" });
    problem(&client.post(&format!("/v1/sessions/{id}/messages"), &steer).unwrap(), 409, "no_turn");
    problem(&host.anonymous_client().get("/v1/sessions").unwrap(), 401, "unauthorized");
    problem(&host.anonymous_client().bearer("wrong").get("/v1/sessions").unwrap(), 401, "unauthorized");
    problem(
        &client.clone().header("Origin", "http://evil.example").get("/v1/sessions").unwrap(),
        403,
        "forbidden_origin",
    );
    problem(
        &client.clone().header("Host", "evil.example").get("/v1/sessions").unwrap(),
        403,
        "forbidden_host",
    );
    problem(&client.get("/v1/nothing").unwrap(), 404, "not_found");
    assert_eq!(host.anonymous_client().get("/health").unwrap().status, 200);

    let after = client.get(&format!("/v1/sessions/{id}")).unwrap().json();
    assert_eq!(before, after, "something changed");
    assert_eq!(client.get("/v1/sessions").unwrap().json()["sessions"].as_array().unwrap().len(), 1);
    world.end(host);
}

#[test]
fn a_cursor_ahead_of_everything_is_a_reset_not_silence() {
    let world = World::new();
    let host = world.start();
    let good = json!({ "agent": "scripted", "cwd": world.workspace() });
    let session = host.client().post("/v1/sessions", &good).unwrap().expect_status(201).json();
    let path = format!("/v1/sessions/{}/events", session["id"].as_str().unwrap());
    for (cursor, reason) in [("1:4000", "cursor_ahead"), ("7:1", "cursor_ahead"), ("0:1", "epoch_changed")] {
        let mut sse = host.client().events(&path, &[("Last-Event-ID", cursor)]).unwrap();
        let seen = sse.until(DEADLINE, |event| event.event == "reset");
        let reset = &seen.last().unwrap().data;
        assert_eq!(reset["reason"], reason, "{reset}");
        assert!(seen.last().unwrap().id.is_none(), "a marker carries no id");
    }
    world.end(host);
}

#[test]
fn an_agent_that_cannot_be_started_says_why_and_loses_no_message() {
    let world = World::new();
    world.home.write_config("[agents.missing]\nkind = \"acp\"\ncommand = [\"/nowhere/agent\"]\n");
    let host = world.start();
    let session = world.create(&host, "missing", "hello");
    let shown = mainstay_testkit::wait::wait_for(DEADLINE, || {
        let shown = crate::support::show(&host.client(), &session);
        (shown["status"] == "recovering").then_some(shown)
    });
    let shown = shown.expect("the session says that it cannot go on");
    assert!(shown["reason"].as_str().unwrap().contains("/nowhere/agent"), "{shown}");
    let queue =
        host.client().get(&format!("/v1/sessions/{session}/queue")).unwrap().expect_status(200).json();
    assert!(queue.to_string().contains("hello"), "the message is gone: {queue}");
    world.end(host);
}

#[test]
fn a_home_with_a_path_longer_than_a_socket_address_works() {
    let world = World::new();
    let long = world.home.root().join("x".repeat(100)).join("y".repeat(100));
    std::fs::create_dir_all(&long).unwrap();
    let long = long.display().to_string();
    let run = |arguments: &[&str]| {
        let mut command = world.home.command(crate::support::mainstay(), arguments);
        command
            .env("MAINSTAY_HOME", &long)
            .env("MAINSTAY_LISTEN", "127.0.0.1:0")
            .env("XDG_RUNTIME_DIR", &long);
        command.output().unwrap()
    };
    let done = run(&["run", "--agent", "demo", "--yes", "hello"]);
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(run(&["stop", "--host", "--kill"]).status.success());
    world.nothing_left();
}
