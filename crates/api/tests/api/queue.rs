//! The queue over HTTP. The agent cannot be started, so every message waits.

use super::served::{Served, problem};
use mainstay_testkit::http::Client;
use serde_json::{Value, json};

struct Queue {
    served: Served,
    session: String,
}

impl Queue {
    fn of(messages: &[&str]) -> Self {
        let served = Served::start();
        let session = served.session();
        let queue = Self { served, session };
        for id in messages {
            let body = json!({ "id": id, "content": format!("say {id}") });
            queue.client().post(&queue.at("messages"), &body).expect("an answer").expect_status(202);
        }
        queue
    }

    fn client(&self) -> Client {
        self.served.client()
    }

    fn at(&self, path: &str) -> String {
        format!("/v1/sessions/{}/{path}", self.session)
    }

    fn read(&self) -> Value {
        self.client().get(&self.at("queue")).expect("an answer").expect_status(200).json()
    }

    fn order(&self) -> Vec<String> {
        let read = self.read();
        let queue = read["queue"].as_array().expect("a queue");
        queue.iter().map(|queued| queued["id"].as_str().expect("an id").to_owned()).collect()
    }

    fn patch(&self, id: &str, body: &Value) -> mainstay_testkit::http::Response {
        self.client().patch(&self.at(&format!("queue/{id}")), body).expect("an answer")
    }
}

#[test]
fn a_message_is_edited_by_compare_and_set() {
    let queue = Queue::of(&["a", "b"]);
    let changed = queue.patch("b", &json!({ "revision": 1, "content": "new" })).expect_status(200).json();
    assert_eq!((&changed["submission"], &changed["revision"]), (&json!("b"), &json!(2)));
    let stale = queue.patch("b", &json!({ "revision": 1, "content": "other" }));
    assert_eq!(problem(&stale, 409, "revision_mismatch")["revision"], 2);
    let read = queue.client().get(&queue.at("queue/b")).expect("an answer").expect_status(200).json();
    assert_eq!((&read["content"][0]["text"], &read["revision"]), (&json!("new"), &json!(2)));
    problem(&queue.patch("b", &json!({ "revision": 2 })), 400, "invalid_body");
    problem(&queue.patch("b", &json!({ "content": "x" })), 400, "invalid_body");
    problem(&queue.patch("b", &json!({ "revision": 2, "content": "" })), 422, "empty_content");
    problem(&queue.patch("none", &json!({ "revision": 1, "content": "x" })), 404, "submission_unknown");
}

#[test]
fn messages_are_moved_sent_on_and_withdrawn() {
    let queue = Queue::of(&["a", "b", "c"]);
    queue.patch("c", &json!({ "revision": 1, "before": "a" })).expect_status(200);
    assert_eq!(queue.order(), ["c", "a", "b"]);
    queue.patch("c", &json!({ "revision": 2, "before": null })).expect_status(200);
    assert_eq!(queue.order(), ["a", "b", "c"]);
    problem(&queue.patch("c", &json!({ "revision": 3, "before": "none" })), 404, "submission_unknown");
    let send = queue.at("queue/b/send");
    let sent = queue.client().post(&send, &json!({})).expect("an answer").expect_status(200).json();
    assert_eq!(sent["revision"], 2);
    assert_eq!(queue.order(), ["b", "a", "c"]);
    queue.client().delete(&queue.at("queue/a")).expect("an answer").expect_status(200);
    assert_eq!(queue.order(), ["b", "c"]);
    problem(&queue.client().get(&queue.at("queue/a")).expect("an answer"), 404, "submission_unknown");
    problem(&queue.client().delete(&queue.at("queue/a")).expect("an answer"), 404, "submission_unknown");
    problem(
        &queue.client().post(&queue.at("queue/a/send"), &json!({})).expect("an answer"),
        404,
        "submission_unknown",
    );
}

#[test]
fn a_change_is_made_once_under_its_key() {
    let queue = Queue::of(&["a", "b"]);
    let send = queue.at("queue/b/send");
    let first = queue.client().post_once(&send, "key", &json!({})).expect("an answer").expect_status(200);
    let again = queue.client().post_once(&send, "key", &json!({})).expect("an answer").expect_status(200);
    assert_eq!((again.header("idempotent-replay"), &again.body), (Some("true"), &first.body));
    assert_eq!(queue.read()["queue"][0]["revision"], 2);
}

#[test]
fn a_steer_without_a_turn_is_refused_unless_it_says_what_else() {
    let queue = Queue::of(&[]);
    let steer = |id: &str, fallback: Option<&str>| {
        let mut body = json!({ "id": id, "content": "x", "delivery": "steer" });
        if let Some(fallback) = fallback {
            body["fallback"] = fallback.into();
        }
        queue.client().post(&queue.at("messages"), &body).expect("an answer")
    };
    problem(&steer("a", None), 409, "no_turn");
    let started = steer("b", Some("start")).expect_status(202).json();
    assert_eq!(started["taken_as"], "start");
    steer("b", Some("start")).expect_status(202);
    let queued = steer("c", Some("queue")).expect_status(202).json();
    assert_eq!(queued["taken_as"], "queue");
    assert_eq!(queue.order(), ["b", "c"]);
    problem(&steer("d", Some("interrupt")), 400, "invalid_body");
    let other = json!({ "content": "x", "delivery": "queue", "fallback": "start" });
    problem(&queue.client().post(&queue.at("messages"), &other).expect("an answer"), 400, "invalid_body");
}
