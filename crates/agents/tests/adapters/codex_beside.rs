//! Threads that another client of the process begins: told to the host when they can be taken up, and never mistaken for
//! one of ours, whichever comes first.

use crate::codex_bench::*;
use crate::harness::Harness;
use mainstay_agents::Appeared;
use mainstay_core::work::ForkPoint;
use mainstay_core::{Decision, SessionOptions, ThreadId};
use serde_json::{Value, json};

const UNWRITTEN: &str =
    "thread N is not materialized yet; thread/turns/list is unavailable before first user message";

fn announced(id: &str, forked_from: Option<&str>, ephemeral: bool) -> Value {
    let thread = json!({ "id": id, "forkedFromId": forked_from, "ephemeral": ephemeral, "cwd": "/w",
                         "parentThreadId": null });
    json!({ "method": "thread/started", "params": { "thread": thread } })
}

fn status(id: &str, status: &str) -> Value {
    json!({ "method": "thread/status/changed", "params": { "threadId": id, "status": { "type": status } } })
}

fn one_turn() -> Value {
    json!({ "data": [{ "id": "X1", "status": "inProgress", "items": [] }], "nextCursor": null })
}

fn appeared(id: &str, forked_from: Option<&str>) -> Vec<Appeared> {
    let (thread, forked_from) = (ThreadId::from(id), forked_from.map(ThreadId::from));
    vec![Appeared { thread, forked_from, cwd: Some("/w".to_owned()) }]
}

#[test]
fn a_new_thread_is_told_once_as_soon_as_it_has_a_message() {
    let mut harness = open();
    assert_eq!(harness.message(&announced("N", None, false)), Vec::<String>::new(), "it has no message");
    let asked = harness.message(&status("N", "active"));
    assert!(asked[0].contains("thread/turns/list") && asked[0].contains(r#""threadId":"N""#), "{asked:?}");
    let again = refuse(&mut harness, "thread/turns/list", UNWRITTEN);
    assert!(again[0].contains("thread/turns/list"), "its message is just being written: {again:?}");
    answer(&mut harness, "thread/turns/list", &one_turn());
    assert_eq!(harness.appeared, appeared("N", None));
    assert_eq!(harness.message(&status("N", "idle")), Vec::<String>::new(), "told already");
    assert_eq!(harness.appeared, []);
    // A host that died before it made a session of it is told again.
    harness.disconnect();
    let sent = handshake(&mut harness);
    assert!(sent.iter().any(|line| line.contains("thread/turns/list")), "{sent:?}");
    let at = harness.sent.iter().position(|frame| frame["params"]["threadId"] == "N").expect("asked");
    let id = harness.sent[at]["id"].clone();
    harness.message(&json!({ "id": id, "result": one_turn() }));
    assert_eq!(harness.appeared, appeared("N", None));
}

#[test]
fn looks_for_the_message_are_bounded_and_begin_anew_with_the_next_word() {
    let mut harness = open();
    harness.message(&announced("N", None, false));
    harness.message(&status("N", "active"));
    let mut looks = 1;
    while !refuse(&mut harness, "thread/turns/list", UNWRITTEN).is_empty() {
        looks += 1;
        assert!(looks < 100, "it looks for ever");
    }
    assert!(harness.message(&status("N", "idle"))[0].contains("thread/turns/list"));
}

#[test]
fn a_branch_begins_with_messages_and_is_told_at_once() {
    let mut harness = open();
    let asked = harness.message(&announced("N", Some("T"), false));
    assert!(asked[0].contains("thread/turns/list"), "{asked:?}");
    answer(&mut harness, "thread/turns/list", &one_turn());
    assert_eq!(harness.appeared, appeared("N", Some("T")));
}

#[test]
fn what_is_never_saved_or_over_or_a_session_s_is_not_told() {
    let mut harness = open();
    harness.message(&announced("N", None, true));
    assert_eq!(harness.message(&status("N", "active")), Vec::<String>::new(), "it is never saved");
    harness.message(&announced("T", None, false));
    assert_eq!(harness.message(&status("T", "active")), Vec::<String>::new(), "it is the session's own");
    harness.message(&announced("G", None, false));
    harness.message(&status("G", "notLoaded"));
    assert_eq!(harness.message(&status("G", "active")), Vec::<String>::new(), "it was over before it began");
}

/// A second session that is about to make a branch of T.
fn forking() -> Harness {
    let mut harness = open();
    harness.bind("s2");
    let point = ForkPoint { session: "s1".into(), thread: "T".into(), last_turn: None };
    let decision = Decision::OpenThread {
        resume: None,
        options: SessionOptions::default(),
        doubtful: Vec::new(),
        fork: Some(Box::new(point)),
    };
    harness.tell("s2", &decision).expect("can be told");
    harness
}

#[test]
fn our_own_branch_is_nobody_else_s_whichever_comes_first() {
    let mut harness = forking();
    let id = harness.sent_id("thread/fork");
    let early = harness.message(&announced("N", Some("T"), false));
    assert_eq!(early, Vec::<String>::new(), "it may be the one that is to be answered");
    assert_eq!(harness.message(&status("N", "idle")), Vec::<String>::new());
    let said = harness.message(&json!({ "id": id, "result": thread("N") }));
    assert_eq!(said, ["s2: ThreadOpened N"], "no look at it");

    let mut harness = forking();
    answer(&mut harness, "thread/fork", &thread("N"));
    assert_eq!(harness.message(&announced("N", Some("T"), false)), Vec::<String>::new());
    assert_eq!(harness.message(&status("N", "idle")), Vec::<String>::new());
}

#[test]
fn another_client_s_branch_beside_ours_is_told_when_ours_is_known() {
    let mut harness = forking();
    let id = harness.sent_id("thread/fork");
    harness.message(&announced("N", Some("T"), false));
    harness.message(&announced("M", Some("T"), false));
    let said = harness.message(&json!({ "id": id, "result": thread("N") }));
    assert!(said.iter().any(|line| line.contains("thread/turns/list") && line.contains("\"M\"")), "{said:?}");
    answer(&mut harness, "thread/turns/list", &one_turn());
    assert_eq!(harness.appeared, appeared("M", Some("T")));
}

#[test]
fn a_thread_that_became_a_session_is_watched_no_more() {
    let mut harness = open();
    harness.message(&announced("N", None, false));
    harness.message(&status("N", "active"));
    answer(&mut harness, "thread/turns/list", &one_turn());
    harness.bind("s2");
    harness.open("s2", Some("N"));
    answer(&mut harness, "thread/resume", &thread("N"));
    let turns = json!([{ "id": "X1", "status": "inProgress", "items": [] }]);
    history(&mut harness, &turns, &Value::Null);
    harness.unbind("s2");
    assert_eq!(harness.message(&status("N", "active")), Vec::<String>::new());
    assert_eq!(harness.appeared, []);
}

#[test]
fn a_turn_of_a_message_in_the_agents_own_queue_says_so() {
    let mut harness = running();
    let queue = |ids: &[&str]| {
        let data: Vec<Value> = ids.iter().map(|id| json!({ "id": id, "clientUserMessageId": id })).collect();
        json!({ "data": data, "nextCursor": null })
    };
    assert!(harness.message(&event("thread/queue/changed", json!({})))[0].contains("thread/queue/list"));
    let said = answer(&mut harness, "thread/queue/list", &queue(&["q1", "q2"]));
    assert!(said.len() == 1 && said[0].contains("2 message(s)"), "{said:?}");
    harness.message(&ended("U1", "completed"));
    // It has left the queue when its turn shows it.
    harness.message(&event("thread/queue/changed", json!({})));
    assert_eq!(answer(&mut harness, "thread/queue/list", &queue(&["q2"])), Vec::<String>::new());
    assert_eq!(harness.message(&started("U2")), ["s1: TurnStarted U2 Unknown -"]);
    let said = harness.message(&completed("U2", &user_message("u2", Some("q1"))));
    assert_eq!(said[0], "s1: TurnStarted U2 Queue -", "{said:?}");
    harness.message(&ended("U2", "completed"));
    harness.message(&started("U3"));
    let said = harness.message(&completed("U3", &user_message("u3", Some("typed"))));
    assert_eq!(said[0], "s1: TurnStarted U3 Client -", "{said:?}");
}

/// As [`running`], with a message of another client in the agent's own queue.
fn queued() -> Harness {
    let mut harness = running();
    harness.message(&event("thread/queue/changed", json!({})));
    answer(&mut harness, "thread/queue/list", &in_queue(&["q1"]));
    harness
}

fn in_queue(ids: &[&str]) -> Value {
    let message = |id: &&str| {
        json!({ "id": id, "clientUserMessageId": format!("c-{id}"),
                "input": [{ "type": "text", "text": "what it says" }] })
    };
    json!({ "data": ids.iter().map(message).collect::<Vec<_>>(), "nextCursor": null })
}

#[test]
fn a_stop_withdraws_what_waits_in_the_agents_own_queue_and_keeps_what_it_says() {
    let mut harness = queued();
    let said = harness.interrupt("s1", Some("U1"));
    assert!(said.iter().any(|line| line.contains("turn/interrupt")), "{said:?}");
    let said = answer(&mut harness, "thread/queue/list", &in_queue(&["q1"]));
    assert!(
        said[0].contains("withdrawn") && said[0].contains("what it says"),
        "said before it is done: {said:?}"
    );
    assert!(said.len() == 2 && said[1].contains("thread/queue/delete"), "{said:?}");
    assert_eq!(harness.sent[0]["params"], json!({ "threadId": "T", "queuedSubmissionId": "q1" }));
    let delete = harness.sent_id("thread/queue/delete");
    // An answer that is older than the deletion tells nothing twice.
    harness.message(&event("thread/queue/changed", json!({})));
    assert_eq!(answer(&mut harness, "thread/queue/list", &in_queue(&["q1"])), Vec::<String>::new());
    // One that began before it could be withdrawn is stopped.
    harness.message(&ended("U1", "interrupted"));
    let said = harness.message(&started("U2"));
    assert!(said.iter().any(|line| line.contains("turn/interrupt") && line.contains("U2")), "{said:?}");
    harness.message(&ended("U2", "interrupted"));
    harness.message(&json!({ "id": delete, "result": {} }));
    answer(&mut harness, "thread/queue/list", &in_queue(&[]));
    assert_eq!(harness.message(&started("U3")), ["s1: TurnStarted U3 Unknown -"], "the stop is over");
}

#[test]
fn a_message_that_the_agent_does_not_withdraw_is_said_and_stops_nothing_later() {
    let mut harness = queued();
    harness.interrupt("s1", Some("U1"));
    answer(&mut harness, "thread/queue/list", &in_queue(&["q1"]));
    let said = refuse(&mut harness, "thread/queue/delete", "no such message");
    assert!(said.len() == 1 && said[0].contains("no such message"), "{said:?}");
    harness.message(&ended("U1", "interrupted"));
    assert_eq!(harness.message(&started("U2")), ["s1: TurnStarted U2 Unknown -"]);
}

#[test]
fn a_queue_that_cannot_be_read_at_a_stop_is_said_and_stops_nothing_later() {
    let mut harness = queued();
    harness.interrupt("s1", Some("U1"));
    let said = refuse(&mut harness, "thread/queue/list", "no");
    assert!(said.len() == 1 && said[0].contains("cannot be read"), "{said:?}");
    harness.message(&ended("U1", "interrupted"));
    assert_eq!(harness.message(&started("U2")), ["s1: TurnStarted U2 Unknown -"]);
}

#[test]
fn a_message_too_long_to_be_kept_stays_in_the_agents_own_queue() {
    let mut harness = queued();
    harness.interrupt("s1", Some("U1"));
    let long = json!({ "data": [{ "id": "q1", "clientUserMessageId": "c", "input": [{ "type": "text",
                       "text": "x".repeat(70_000) }] }], "nextCursor": null });
    let said = answer(&mut harness, "thread/queue/list", &long);
    assert!(said.len() == 1 && said[0].contains("too long"), "{said:?}");
}

#[test]
fn a_stop_with_an_empty_queue_asks_nothing_about_it() {
    let mut harness = running();
    let said = harness.interrupt("s1", Some("U1"));
    assert!(said.len() == 1 && said[0].contains("turn/interrupt"), "{said:?}");
}

#[test]
fn a_stop_withdraws_what_waits_in_the_agents_own_queue_though_nothing_runs() {
    let mut harness = queued();
    // Another client interrupts it: what waits goes on waiting.
    harness.message(&ended("U1", "interrupted"));
    let said = harness.tell("s1", &Decision::Interrupt { turn: None }).expect("can be told");
    assert!(said.len() == 1 && said[0].contains("thread/queue/list"), "{said:?}");
    let said = answer(&mut harness, "thread/queue/list", &in_queue(&["q1"]));
    assert!(said.len() == 2 && said[1].contains("thread/queue/delete"), "{said:?}");
    answer(&mut harness, "thread/queue/delete", &json!({}));
    answer(&mut harness, "thread/queue/list", &in_queue(&[]));
    assert_eq!(harness.message(&started("U2")), ["s1: TurnStarted U2 Unknown -"], "the stop is over");
}
