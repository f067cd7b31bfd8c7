//! What holds in every cell, whatever its state and intervention.

use crate::support::{Follower, World, is_alive};
use mainstay_testkit::http::Client;
use mainstay_testkit::model::Recorded;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Checks the journal of a session that nothing runs for any more.
///
/// `sent` are the messages that were accepted, each with a text of its own, in their order.
#[track_caller]
pub(crate) fn check(world: &World, client: &Client, session: &str, follower: &Follower, sent: &[&str]) {
    check_given(&conversations(world), client, session, follower, sent);
}

/// As [`check`], where the [`conversations`] are known: reading them takes a while when there were many.
#[track_caller]
pub(crate) fn check_given(
    conversations: &[Vec<String>],
    client: &Client,
    session: &str,
    follower: &Follower,
    sent: &[&str],
) {
    dense(&follower.events);
    another_reader_sees_the_same(client, session, follower);
    pages_say_the_same(client, session, follower);
    everything_ended_once(&follower.events);
    everything_accepted_is_settled_once(&follower.events, sent);
    given_once(conversations, follower, sent);
    no_process_lives(&follower.events);
}

/// The user's messages in each request that the model got, oldest first.
pub(crate) fn conversations(world: &World) -> Vec<Vec<String>> {
    world.model.requests().iter().map(Recorded::user_messages).collect()
}

/// `seq` counts from 1 without a hole.
fn dense(events: &[Value]) {
    let mut next = 1;
    for event in events {
        let seq = event["seq"].as_u64().expect("seq");
        let first = event["first_seq"].as_u64().unwrap_or(seq);
        assert_eq!(first, next, "a hole or a repetition: {event}");
        next = seq + 1;
    }
}

/// A reader that comes only now sees the history that the one saw who was there all along.
fn another_reader_sees_the_same(client: &Client, session: &str, follower: &Follower) {
    let mut other = Follower::default();
    let mut sse = other.open(client, session);
    let last = follower.events.last().expect("a journal");
    other.until(&mut sse, "the last event", |event| event["seq"] == last["seq"]);
    assert_eq!(other.events, follower.events, "another reader sees another history");
}

/// And so does one who takes pages.
fn pages_say_the_same(client: &Client, session: &str, follower: &Follower) {
    const PAGE: usize = 50;
    let mut paged: Vec<Value> = Vec::new();
    let mut after = "1:0".to_owned();
    loop {
        let path = format!("/v1/sessions/{session}/events?after={after}&limit={PAGE}");
        let page = client.get(&path).expect("answers").expect_status(200).json();
        let events = page["events"].as_array().expect("events");
        paged.extend(events.iter().cloned());
        let Some(last) = events.last() else { break };
        after = format!("{}:{}", last["epoch"], last["seq"]);
    }
    assert_eq!(paged, follower.events, "the pages tell another history");
}

/// What begins with `began` ends exactly once with `ended`; a name may begin anew after its end.
fn ends(events: &[Value], began: &str, ended: &str, name: &str) {
    let mut open: BTreeSet<String> = BTreeSet::new();
    for event in events {
        let id = event[name].to_string();
        if event["type"] == began {
            assert!(open.insert(id), "it begins twice: {event}");
        } else if event["type"] == ended {
            assert!(open.remove(&id), "it ends twice, or never began: {event}");
        }
    }
    assert!(open.is_empty(), "{began} without {ended}: {open:?}");
}

fn everything_ended_once(events: &[Value]) {
    for (began, ended, name) in [
        ("turn.started", "turn.ended", "turn"),
        ("item.started", "item.completed", "item"),
        ("request.opened", "request.closed", "request"),
        ("task.started", "task.ended", "task"),
        ("child.started", "child.ended", "child"),
        ("control.asked", "control.ended", "control"),
    ] {
        ends(events, began, ended, name);
    }
    processes_left_once(events);
    let answered = events.iter().filter(|event| event["type"] == "request.answered");
    let answered: Vec<String> = answered.map(|event| event["request"].to_string()).collect();
    let distinct: BTreeSet<&String> = answered.iter().collect();
    assert_eq!(answered.len(), distinct.len(), "a request was answered twice");
}

/// A session has one process at a time and leaves it once: with its end, or by closing its thread in one that others use.
fn processes_left_once(events: &[Value]) {
    let mut has: Option<&Value> = None;
    for event in events {
        match event["type"].as_str().expect("a type") {
            "lease.reserved" => {
                assert!(has.is_none(), "it has a process already: {event}");
                has = Some(&event["process"]);
            }
            "process.started" | "process.exited" => {
                assert_eq!(has, Some(&event["process"]), "not its process: {event}");
            }
            "lease.released" => assert!(has.take().is_some(), "it has no process: {event}"),
            _ => {}
        }
    }
    assert!(has.is_none(), "it never left {has:?}");
}

fn everything_accepted_is_settled_once(events: &[Value], sent: &[&str]) {
    let mut settled: BTreeMap<String, usize> = BTreeMap::new();
    let mut texts: Vec<String> = Vec::new();
    for event in events {
        match event["type"].as_str().expect("a type") {
            "submission.accepted" => {
                settled.insert(event["submission"].to_string(), 0);
                texts.push(event["content"][0]["text"].as_str().expect("a text").to_owned());
            }
            "submission.taken" | "submission.rejected" | "submission.cancelled" | "submission.dropped" => {
                *settled.get_mut(&event["submission"].to_string()).expect("it was accepted") += 1;
            }
            _ => {}
        }
    }
    assert_eq!(texts, sent, "other messages were accepted than were sent");
    let open: Vec<_> = settled.iter().filter(|(_, ends)| **ends != 1).collect();
    assert!(open.is_empty(), "messages that were not settled exactly once: {open:?}");
}

/// The model is the witness: in every request each message stands once at most, and the last request, which has the
/// whole conversation, has exactly those that were taken.
fn given_once(conversations: &[Vec<String>], follower: &Follower, sent: &[&str]) {
    let taken = follower.of_type("submission.taken");
    let taken: Vec<&Value> = taken.iter().map(|event| &event["submission"]).collect();
    for messages in conversations {
        for text in sent {
            let times = messages.iter().filter(|message| message == text).count();
            assert!(times <= 1, "the model was given {text:?} {times} times: {messages:?}");
        }
    }
    let own = |messages: &&Vec<String>| messages.iter().any(|message| message == sent[0]);
    let last = conversations.iter().rev().find(own).expect("a request of the session's own");
    for accepted in follower.of_type("submission.accepted") {
        let text = accepted["content"][0]["text"].as_str().expect("a text");
        let there = last.iter().any(|message| message == text);
        let was_taken = taken.contains(&&accepted["submission"]);
        let id = &accepted["submission"];
        let about = || {
            let about = follower.events.iter().filter(|event| {
                event["submission"] == *id
                    || event["type"].as_str().is_some_and(|kind| kind.starts_with("turn."))
            });
            about.map(Value::to_string).collect::<Vec<_>>().join("\n")
        };
        assert_eq!(
            there,
            was_taken,
            "{text:?}: taken is {was_taken}, and the model has {last:?}\n{}",
            about()
        );
    }
}

fn no_process_lives(events: &[Value]) {
    let gone = |started: &Value| {
        events.iter().any(|event| event["type"] == "process.exited" && event["process"] == started["process"])
    };
    for started in events.iter().filter(|event| event["type"] == "process.started" && gone(event)) {
        let pid = crate::support::agent_pid(started);
        assert!(!is_alive(pid), "agent {pid} is said to be gone and is not");
    }
}
