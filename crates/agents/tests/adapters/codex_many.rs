//! Many sessions bound to one Codex process: kept apart, and no one's trouble is another's.

use crate::codex_bench::*;
use crate::harness::{Harness, Life};
use mainstay_agents::{AgentKind, CannotTell};
use serde_json::{Value, json};

const SESSIONS: usize = 60;

fn of(thread: &str, mut frame: Value) -> Value {
    frame["params"]["threadId"] = json!(thread);
    frame
}

/// Sessions `s1` … `sN` with the open threads `T1` … `TN`.
fn many(count: usize) -> Harness {
    let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
    for number in 1..=count {
        harness.bind(&format!("s{number}"));
    }
    handshake(&mut harness);
    for number in 1..=count {
        harness.open(&format!("s{number}"), None);
        let said = answer(&mut harness, "thread/start", &thread(&format!("T{number}")));
        assert_eq!(said, [format!("s{number}: ThreadOpened T{number}")]);
    }
    harness
}

fn sent_of(harness: &Harness, method: &str) -> Vec<(u64, String)> {
    let of = |frame: &&Value| frame["method"] == method;
    let named = |frame: &Value| {
        (
            frame["id"].as_u64().unwrap_or_default(),
            frame["params"]["threadId"].as_str().unwrap_or_default().to_owned(),
        )
    };
    harness.sent.iter().filter(of).map(named).collect()
}

#[test]
fn at_most_fifty_requests_are_in_flight_and_all_threads_are_taken_up_again() {
    let mut harness = many(SESSIONS);
    harness.disconnect();
    handshake(&mut harness);
    let mut open = sent_of(&harness, "thread/resume");
    assert_eq!(open.len(), 50, "no more at once");
    let mut taken_up = Vec::new();
    while let Some((id, thread)) = open.pop() {
        harness.message(
            &json!({ "id": id, "result": { "thread": { "id": thread, "status": { "type": "idle" } } } }),
        );
        taken_up.push(thread);
        open.extend(sent_of(&harness, "thread/resume"));
        let histories = sent_of(&harness, "thread/turns/list");
        for (id, _) in histories {
            let said = harness.message(&json!({ "id": id, "result": { "data": [], "nextCursor": null } }));
            assert!(said.iter().any(|line| line.contains("ThreadOpened")), "{said:?}");
            open.extend(sent_of(&harness, "thread/resume"));
        }
        assert!(open.len() <= 50);
    }
    taken_up.sort();
    taken_up.dedup();
    assert_eq!(taken_up.len(), SESSIONS);
}

#[test]
fn a_lost_connection_puts_the_inputs_of_all_its_sessions_in_doubt_and_of_no_other() {
    let mut harness = many(3);
    harness.start("s1", "m1", "x").expect("can be told");
    harness.start("s2", "m2", "x").expect("can be told");
    harness.disconnect();
    handshake(&mut harness);
    for (id, thread) in sent_of(&harness, "thread/resume") {
        harness.message(
            &json!({ "id": id, "result": { "thread": { "id": thread, "status": { "type": "idle" } } } }),
        );
        let (id, _) = sent_of(&harness, "thread/turns/list")[0].clone();
        let said = harness.message(&json!({ "id": id, "result": { "data": [], "nextCursor": null } }));
        let unknown: Vec<&String> = said.iter().filter(|line| line.contains("InputUnknown")).collect();
        let expected = match thread.as_str() {
            "T1" => vec!["s1: InputUnknown m1"],
            "T2" => vec!["s2: InputUnknown m2"],
            _ => vec![],
        };
        assert_eq!(unknown, expected);
    }
}

#[test]
fn a_thread_that_answers_nothing_holds_no_other_back() {
    let mut harness = many(3);
    // The first one is wedged: its message and its stop are never answered.
    harness.start("s1", "m1", "x").expect("can be told");
    harness.message(&of("T1", started("U1")));
    harness.interrupt("s1", Some("U1"));
    for number in 2..=3 {
        let (session, turn) = (format!("s{number}"), format!("V{number}"));
        harness.start(&session, &format!("m{number}"), "x").expect("can be told");
        answer(&mut harness, "turn/start", &json!({ "turn": { "id": turn } }));
        let thread = format!("T{number}");
        assert_eq!(
            harness.message(&of(&thread, started(&turn))),
            [format!("{session}: TurnStarted {turn} Message m{number}")]
        );
        assert_eq!(
            harness.message(&of(&thread, ended(&turn, "completed")))[0],
            format!("{session}: TurnEnded {turn} Completed -")
        );
    }
}

#[test]
fn a_session_that_left_is_told_nothing_and_keeps_nothing() {
    let mut harness = many(3);
    harness.start("s2", "m2", "x").expect("can be told");
    let id = harness.sent_id("turn/start");
    harness.unbind("s2");
    assert_eq!(harness.changed, ["connection", "thread:s2"]);
    assert!(!harness.saved().contains_key("thread:s2"));
    harness.reload();
    assert_eq!(
        harness.message(&json!({ "id": id, "result": { "turn": { "id": "U2" } } })),
        Vec::<String>::new()
    );
    assert_eq!(harness.message(&of("T2", started("U2"))), Vec::<String>::new());
    assert_eq!(harness.start("s2", "m3", "x"), Err(CannotTell::UnknownSession("s2".into())));
    assert_eq!(
        harness.message(&of("T3", started("U3"))),
        ["s3: TurnStarted U3 Unknown -"],
        "the others are found"
    );
    harness.disconnect();
    handshake(&mut harness);
    let again: Vec<String> =
        sent_of(&harness, "thread/resume").into_iter().map(|(_, thread)| thread).collect();
    assert_eq!(again, ["T1", "T3"]);
}

#[test]
fn what_comes_before_a_session_is_bound_again_is_told_when_it_is() {
    let mut harness = many(2);
    harness.reload_without("s2");
    assert_eq!(harness.message(&of("T2", started("U2"))), Vec::<String>::new());
    assert_eq!(harness.message(&of("T1", started("U1"))), ["s1: TurnStarted U1 Unknown -"]);
    let mut asked = approval(7);
    asked["params"]["threadId"] = json!("T2");
    asked["params"]["turnId"] = json!("U2");
    assert_eq!(harness.message(&asked), Vec::<String>::new(), "neither told nor refused");
    harness.bind("s2");
    let said = harness.message(&of("T1", ended("U1", "completed")));
    assert_eq!(said[0], "s2: TurnStarted U2 Unknown -");
    assert!(said[1].starts_with("s2: RequestOpened 1:7 in U2"), "{said:?}");
    assert_eq!(said[2], "s1: TurnEnded U1 Completed -");
}

#[test]
fn what_comes_while_a_thread_is_opened_is_told_when_it_is_open() {
    let mut harness = connected();
    harness.open("s1", Some("T"));
    let id = harness.sent_id("thread/resume");
    assert_eq!(harness.message(&approval(3)), Vec::<String>::new());
    assert_eq!(harness.message(&started("U1")), Vec::<String>::new());
    harness.message(&json!({ "id": id, "result": thread("T") }));
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [] }]);
    let said = history(&mut harness, &turns, &Value::Null);
    assert_eq!(said[0], "s1: ThreadOpened T resumed");
    assert_eq!(said[1], "s1: TurnStarted U1 Unknown -");
    assert!(said[2].starts_with("s1: RequestOpened 1:3"), "{said:?}");
}

#[test]
fn what_was_asked_while_a_thread_was_opened_on_a_lost_connection_has_only_the_id_of_the_next() {
    let mut harness = connected();
    harness.open("s1", Some("T"));
    harness.message(&approval(3));
    harness.disconnect();
    handshake(&mut harness);
    let id = harness.sent_id("thread/resume");
    harness.message(&approval(7));
    harness.message(&json!({ "id": id, "result": thread("T") }));
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [] }]);
    let said = history(&mut harness, &turns, &Value::Null);
    let opened: Vec<_> = said.iter().filter(|line| line.contains("RequestOpened")).collect();
    assert!(opened.len() == 1 && opened[0].starts_with("s1: RequestOpened 2:7"), "{said:?}");
}

#[test]
fn what_has_no_room_while_a_thread_is_opened_is_told_to_be_missing() {
    let mut harness = connected();
    harness.open("s1", Some("T"));
    let id = harness.sent_id("thread/resume");
    let long = "x".repeat(9_000);
    let delta = event("item/agentMessage/delta", json!({ "turnId": "U1", "itemId": "a", "delta": long }));
    for _ in 0..3 {
        assert_eq!(harness.message(&delta), Vec::<String>::new());
    }
    assert_eq!(harness.message(&approval(3)), Vec::<String>::new(), "a request has room of its own");
    harness.message(&json!({ "id": id, "result": thread("T") }));
    let said = history(&mut harness, &json!([]), &Value::Null);
    assert_eq!(said.iter().filter(|line| line.contains("ItemDelta")).count(), 1);
    assert!(said.iter().any(|line| line.contains("RequestOpened")), "{said:?}");
    assert!(said.last().is_some_and(|line| line.contains("more was said than can be kept")), "{said:?}");
}

#[test]
fn a_read_without_an_answer_is_given_up_and_a_message_is_only_said_to_be_late() {
    let mut harness = named();
    harness.message(&started("U1"));
    harness.message(&ended("U1", "failed"));
    assert_eq!(sent_of(&harness, "thread/turns/list").len(), 1);
    let other = json!({ "method": "remoteControl/status/changed", "params": {} });
    harness.message(&other);
    harness.now += 119_000;
    assert_eq!(harness.message(&other), Vec::<String>::new());
    harness.now += 2_000;
    harness.message(&other);
    assert_eq!(sent_of(&harness, "thread/turns/list").len(), 1, "asked anew, for less");

    let mut harness = open();
    harness.start("s1", "m1", "x").expect("can be told");
    // An hour without a record before it counts for nothing.
    harness.now += 3_600_000;
    assert_eq!(harness.message(&other), Vec::<String>::new());
    harness.now += 121_000;
    let said = harness.message(&other);
    assert!(said.len() == 1 && said[0].contains("has not answered for 120 s (a message)"), "{said:?}");
    harness.now += 500_000;
    assert_eq!(harness.message(&other), Vec::<String>::new(), "said once");
    assert_eq!(answer_of(&mut harness), ["s1: TurnStarted U1 Message m1"], "and taken all the same");
}

fn answer_of(harness: &mut Harness) -> Vec<String> {
    harness.message(&json!({ "id": 2, "result": { "turn": { "id": "U1" } } }));
    harness.message(&started("U1"))
}

#[test]
fn a_thread_that_the_server_unloaded_comes_back_with_its_sandbox() {
    let mut harness = connected();
    harness.open("s1", None);
    let mut opened = thread("T");
    opened["approvalPolicy"] = json!("on-request");
    opened["sandbox"] = json!({ "type": "workspaceWrite" });
    answer(&mut harness, "thread/start", &opened);
    harness.message(&event("thread/closed", json!({})));
    let params = &harness.sent[0]["params"];
    assert_eq!(
        (&params["sandbox"], &params["approvalPolicy"]),
        (&json!("workspace-write"), &json!("on-request"))
    );
}

#[test]
fn a_thread_that_is_full_of_everything_stays_within_the_state_that_may_be_kept() {
    // The harness checks the size after each step.
    let mut harness = running();
    for number in 0..100 {
        let item = json!({ "type": "commandExecution", "id": format!("call_{number:0>60}"), "command": "x".repeat(500),
                           "status": "inProgress", "processId": "123456" });
        harness.message(&event("item/started", json!({ "turnId": "U1", "item": item })));
        let said = json!({ "type": "agentMessage", "id": format!("msg_{number:0>60}"), "text": "x" });
        harness.message(&completed("U1", &said));
        let child = json!({ "turn": { "id": format!("{number:0>36}"), "rootTurnId": "U1" } });
        harness.message(&of(&format!("child-{number:0>36}"), event("turn/started", child)));
        let mut asks = approval(number);
        asks["params"]["itemId"] = json!(format!("call_{number:0>60}"));
        asks["params"]["proposedExecpolicyAmendment"] = json!(["x".repeat(500)]);
        asks["params"]["proposedNetworkPolicyAmendments"] = json!([{ "host": "h".repeat(480), "action": "allow" }, { "host": "i".repeat(480), "action": "deny" }]);
        let said = harness.message(&asks);
        if said[0].contains("RequestOpened") {
            let option = crate::harness::select("applyNetworkPolicyAmendment:1");
            harness.answer("s1", &format!("1:{number}"), option, Vec::new()).expect("is open");
        }
    }
    harness.steer("s1", "U1", "m2", &"x".repeat(15_000)).expect("can be told");
    let size = harness.saved()["thread:s1"].len();
    assert!(size > 30_000, "{size} bytes: the bounds were not reached");
}
