//! What is asked of agents beside messages, over HTTP: here the agent can do none of it, and says so by capability.

use super::served::{Served, problem};
use serde_json::{Value, json};

#[test]
fn what_the_agent_cannot_do_is_refused_by_capability_and_changes_nothing() {
    let served = Served::start();
    let session = served.session();
    let at = |path: &str| format!("/v1/sessions/{session}/{path}");
    let before = served.mark();
    let client = served.client();
    for (path, body) in [
        ("compact", json!({})),
        ("clear", json!({})),
        ("review", json!({ "instructions": "look" })),
        ("fork", json!({})),
    ] {
        let refused = client.post(&at(path), &body).expect("an answer");
        assert_eq!(problem(&refused, 422, "unsupported")["capability"], path);
    }
    let goal = client
        .request("PUT", &at("goal"), &[], Some(json!({ "objective": "all green" }).to_string().as_bytes()))
        .expect("an answer");
    assert_eq!(problem(&goal, 422, "unsupported")["capability"], "goals");
    problem(&client.delete(&at("goal")).expect("an answer"), 422, "unsupported");
    let rewind = client.post(&at("rewind"), &json!({ "before": "t9" })).expect("an answer");
    assert_eq!(problem(&rewind, 422, "unsupported")["capability"], "rewind");
    problem(&client.post(&at("goal"), &json!({})).expect("an answer"), 405, "method_not_allowed");
    assert_eq!(served.mark(), before, "a refusal changed something");
}

#[test]
fn background_work_goals_limits_and_what_is_owed_can_be_read() {
    let served = Served::start();
    let session = served.session();
    let at = |path: &str| format!("/v1/sessions/{session}{path}");
    let read = |path: &str| served.client().get(&at(path)).expect("an answer").expect_status(200).json();
    assert_eq!(read("/tasks"), json!({ "tasks": [] }));
    assert_eq!(read("/children"), json!({ "children": [] }));
    assert_eq!(read("/goal"), json!({ "goal": null }));
    assert_eq!(read("")["owed"], json!([]));
    let limits = json!({ "max_turns": 3, "requests": { "after_ms": 60_000, "answer": "decline" } });
    let patched = served.client().patch(&at(""), &json!({ "limits": limits })).expect("an answer");
    assert_eq!(patched.expect_status(200).json()["limits"], limits);
    assert_eq!(read("")["limits"], limits);
    let bad = json!({ "limits": { "max_moons": 3 } });
    problem(&served.client().patch(&at(""), &bad).expect("an answer"), 400, "invalid_body");
    let options = json!({ "options": { "model": "m" } });
    let patched: Value =
        served.client().patch(&at(""), &options).expect("an answer").expect_status(200).json();
    assert_eq!((&patched["options"]["model"], &patched["options_before"]), (&json!("m"), &json!({})));
}

#[test]
fn a_conversation_is_brought_to_one_session_only() {
    let served = Served::start();
    let body = json!({ "agent": "absent", "cwd": served.work(), "adopt": { "thread": "theirs" } });
    let made = served.client().post("/v1/sessions", &body).expect("an answer").expect_status(201).json();
    assert_eq!(made["launch"]["source"], json!({ "from": "adopt", "thread": "theirs" }));
    problem(&served.client().post("/v1/sessions", &body).expect("an answer"), 409, "id_conflict");
}

#[test]
fn a_creation_that_adopts_can_be_sent_again_under_its_id() {
    let served = Served::start();
    let adopt = json!({ "thread": "theirs" });
    let mut body = json!({ "agent": "absent", "cwd": served.work(), "id": "ses_mine", "adopt": adopt });
    let create = |body: &Value| served.client().post("/v1/sessions", body).expect("an answer");
    let first = create(&body).expect_status(201).json();
    assert_eq!(create(&body).expect_status(201).json()["id"], first["id"]);
    body["id"] = json!("ses_other");
    problem(&create(&body), 409, "id_conflict");
}
