//! Who is refused, and that a refusal changes nothing.

use super::served::{Served, problem};
use mainstay_testkit::http::Client;
use serde_json::{Value, json};

#[test]
fn strangers_are_refused_over_tcp() {
    let served = Served::start();
    let anonymous = served.anonymous();
    anonymous.get("/health").expect("an answer").expect_status(200);
    problem(&anonymous.get("/v1/info").expect("an answer"), 401, "unauthorized");
    problem(&anonymous.get("/nowhere").expect("an answer"), 401, "unauthorized");
    problem(&anonymous.bearer("another").get("/v1/info").expect("an answer"), 401, "unauthorized");
    let foreign_host = served.client().header("host", "evil.example:80").get("/health").expect("an answer");
    problem(&foreign_host, 403, "forbidden_host");
    let foreign_page =
        served.client().header("origin", "https://evil.example").get("/v1/info").expect("an answer");
    problem(&foreign_page, 403, "forbidden_origin");
    let own = format!("http://{}", served.address);
    served.client().header("origin", &own).get("/v1/info").expect("an answer").expect_status(200);
    served.socket_client().get("/v1/info").expect("an answer").expect_status(200);
}

#[test]
fn bad_input_gets_its_problem_and_changes_nothing() {
    let served = Served::start();
    let session = served.session();
    let client = served.client();
    let (work, outside) = (served.work(), served.folder.path().display().to_string());
    let missing = format!("{work}/missing");
    let before = served.mark();
    let at = |path: &str| format!("/v1/sessions/{session}/{path}");
    let get: [(&str, u16, &str); 9] = [
        ("/v1/sessions/ses_none", 404, "session_unknown"),
        ("/v1/sessions/a%20b", 400, "invalid_id"),
        ("/v1/agents/none", 404, "agent_unknown"),
        ("/v1/sessions?status=asleep", 400, "invalid_query"),
        ("/v1/sessions?colour=red", 400, "invalid_query"),
        ("/v1/sessions?limit=0", 400, "invalid_query"),
        ("/v1/sessions?after=ses_none", 400, "invalid_cursor"),
        ("/v1/events?after=x", 400, "invalid_cursor"),
        ("/nowhere", 404, "not_found"),
    ];
    for (path, status, code) in get {
        problem(&client.get(path).expect("an answer"), status, code);
    }
    problem(&client.get(&at("events?after=yesterday")).expect("an answer"), 400, "invalid_cursor");
    problem(&client.get(&at("events?limit=6000")).expect("an answer"), 400, "invalid_query");
    let refused = client.delete("/v1/info").expect("an answer");
    assert_eq!(problem(&refused, 405, "method_not_allowed")["allowed"], json!(["GET"]));
    let post: [(String, Value, u16, &str); 12] = [
        ("/v1/sessions".to_owned(), json!({ "agent": "none", "cwd": work }), 404, "agent_unknown"),
        ("/v1/sessions".to_owned(), json!({ "agent": "absent", "cwd": missing }), 422, "bad_folder"),
        ("/v1/sessions".to_owned(), json!({ "agent": "absent", "cwd": "work" }), 422, "bad_folder"),
        ("/v1/sessions".to_owned(), json!({ "agent": "absent", "cwd": outside }), 403, "outside_roots"),
        ("/v1/sessions".to_owned(), json!({ "agent": "absent" }), 400, "invalid_body"),
        (
            "/v1/sessions".to_owned(),
            json!({ "agent": "absent", "cwd": work, "id": "../x" }),
            400,
            "invalid_id",
        ),
        (
            "/v1/sessions".to_owned(),
            json!({ "agent": "absent", "cwd": work, "env": { "A": "b" } }),
            422,
            "unsupported",
        ),
        (at("messages"), json!({ "content": 3 }), 400, "invalid_body"),
        (at("messages"), json!({ "content": "x", "delivery": "pigeon" }), 400, "invalid_body"),
        (at("messages"), json!({ "content": "x", "delivery": "steer" }), 409, "no_turn"),
        (at("interrupt"), json!({ "scope": "task" }), 400, "invalid_body"),
        (at("requests/r1/answer"), json!({ "option_id": "x" }), 404, "request_unknown"),
    ];
    for (path, body, status, code) in &post {
        problem(&client.post(path, body).expect("an answer"), *status, code);
    }
    let unknown = client
        .post("/v1/sessions", &json!({ "agent": "absent", "cwd": work, "colour": "red" }))
        .expect("an answer");
    let document = problem(&unknown, 400, "invalid_body");
    assert!(document["detail"].as_str().is_some_and(|detail| detail.contains("colour")), "{document}");
    let large = json!({ "content": "x".repeat(5 * 1024 * 1024) });
    problem(&client.post(&at("messages"), &large).expect("an answer"), 413, "too_large");
    let typed = client
        .request("POST", &at("messages"), &[("content-type", "text/plain")], Some(b"x"))
        .expect("an answer");
    problem(&typed, 415, "unsupported_media_type");
    assert_eq!(served.mark(), before);
}

/// The routes that agents may not use, for a client.
fn not_for_agents(client: &Client, session: &str, work: &str) -> Vec<mainstay_testkit::http::Response> {
    let own = format!("/v1/sessions/{session}");
    let mut answers = vec![
        client.patch(&own, &json!({ "name": "mine" })),
        client.delete(&own),
        client.patch(&format!("{own}/queue/m1"), &json!({ "revision": 1, "content": "x" })),
        client.delete(&format!("{own}/queue/m1")),
    ];
    let posts = [
        ("requests/r1/answer", json!({ "option_id": "x" })),
        ("queue/m1/send", json!({})),
        ("clear", json!({})),
        ("rewind", json!({ "before": "t1" })),
        ("fork", json!({})),
        ("recover", json!({ "action": "abandon" })),
    ];
    answers.extend(posts.iter().map(|(path, body)| client.post(&format!("{own}/{path}"), body)));
    answers.push(client.post("/v1/host/stop", &json!({ "mode": "kill" })));
    let loosened = [
        ("options", json!({ "sandbox": "danger-full-access" })),
        ("mcp_servers", json!([{ "name": "x", "command": "/bin/true" }])),
        ("account_home", json!("/nowhere")),
        ("adopt", json!({ "thread": "theirs" })),
        ("additional_directories", json!([work])),
    ];
    for (field, value) in loosened {
        let mut body = json!({ "agent": "absent", "cwd": work });
        body[field] = value;
        answers.push(client.post("/v1/sessions", &body));
    }
    answers.into_iter().map(|response| response.expect("an answer")).collect()
}

#[test]
fn a_process_below_an_agent_may_read_and_not_decide() {
    let served = Served::start();
    let session = served.session();
    let before = served.mark();
    served.agents.lock().expect("unpoisoned").push(i32::try_from(std::process::id()).expect("a pid"));
    for client in [served.client(), served.socket_client()] {
        for refused in not_for_agents(&client, &session, &served.work()) {
            problem(&refused, 403, "from_agent");
        }
        client.get(&format!("/v1/sessions/{session}")).expect("an answer").expect_status(200);
    }
    assert!(!served.stop.is_asked());
    assert_eq!(served.mark(), before);
    // With the agents' defaults it may.
    let plain = json!({ "agent": "absent", "cwd": served.work() });
    served.client().post("/v1/sessions", &plain).expect("an answer").expect_status(201);
}
