//! Sub-agents: threads of their own, told under their session.

use crate::codex_bench::*;
use crate::harness::{Harness, select};
use mainstay_core::work::Control;
use serde_json::{Value, json};

fn of(thread: &str, mut frame: Value) -> Value {
    frame["params"]["threadId"] = json!(thread);
    frame
}

fn child_started(thread: &str, turn: &str, root: &str) -> Value {
    of(
        thread,
        event("turn/started", json!({ "turn": { "id": turn, "rootTurnId": root, "status": "inProgress" } })),
    )
}

fn spawned() -> Value {
    json!({ "type": "collabAgentToolCall", "id": "call_1", "tool": "spawnAgent", "status": "completed",
            "senderThreadId": "T", "receiverThreadIds": ["C"], "prompt": "look around" })
}

/// A session whose turn U1 runs, with the child C in its turn V1.
fn with_child() -> Harness {
    let mut harness = running();
    assert_eq!(harness.message(&child_started("C", "V1", "U1")), ["s1: ChildStarted C {}"]);
    harness
}

#[test]
fn a_child_is_known_by_the_root_of_its_turn_or_by_the_item_that_names_it() {
    let mut harness = running();
    let said = harness.message(&completed("U1", &spawned()));
    assert_eq!(said[1], r#"s1: ChildStarted C {"item_key":"call_1","title":"look around"}"#);
    assert_eq!(harness.message(&child_started("C", "V1", "U1")), Vec::<String>::new(), "it is known");

    // Its first words come before its parent's item.
    let mut harness = with_child();
    let said = harness.message(&completed("U1", &spawned()));
    assert_eq!(said[1], r#"s1: ChildUpdated C {"item_key":"call_1","title":"look around"}"#);

    let mut harness = running();
    let activity = json!({ "type": "subAgentActivity", "id": "call_2", "kind": "started", "agentThreadId": "D", "agentPath": "/d" });
    let said = harness.message(&completed("U1", &activity));
    assert_eq!(said[1], r#"s1: ChildStarted D {"item_key":"call_2","title":"/d"}"#);
}

#[test]
fn what_a_child_said_before_it_was_named_is_told_then() {
    let mut harness = running();
    let early = of("C", completed("V1", &json!({ "type": "agentMessage", "id": "a1", "text": "hi" })));
    assert_eq!(harness.message(&early), Vec::<String>::new());
    let mut asks = approval(5);
    asks["params"]["threadId"] = json!("C");
    asks["params"]["turnId"] = json!("V1");
    assert_eq!(harness.message(&asks), Vec::<String>::new(), "neither told nor refused");
    let said = harness.message(&completed("U1", &spawned()));
    assert!(said[1].starts_with("s1: ChildStarted C"), "{said:?}");
    assert_eq!(said[2], r#"s1: ItemCompleted C/a1 in - AgentMessage Completed "hi" child="C""#);
    assert!(said[3].starts_with("s1: RequestOpened 1:5 in - on C/c1 of child C Approval"), "{said:?}");
}

#[test]
fn what_has_no_room_before_it_is_named_is_refused_and_told() {
    let mut harness = running();
    let mut asks = approval(5);
    asks["params"]["threadId"] = json!("C");
    asks["params"]["reason"] = json!("x".repeat(20_000));
    let said = harness.message(&asks);
    assert!(said[0].starts_with("all: Notice Warning") && said[1].contains("-32601"), "{said:?}");
}

#[test]
fn items_and_requests_of_a_child_are_told_under_it_and_answered_through_its_session() {
    let mut harness = with_child();
    let item = json!({ "type": "commandExecution", "id": "c1", "command": "ls", "status": "inProgress" });
    let begun = of("C", event("item/started", json!({ "turnId": "V1", "item": item })));
    let said = harness.message(&begun);
    assert!(said[0].starts_with(r#"s1: ItemStarted C/c1 in - ToolCall child="C""#), "{said:?}");
    let delta = of(
        "C",
        event("item/commandExecution/outputDelta", json!({ "turnId": "V1", "itemId": "c1", "delta": "f" })),
    );
    assert_eq!(harness.message(&delta), [r#"s1: ItemDelta C/c1 in - ToolCall "f""#]);
    let mut asks = approval(5);
    asks["params"]["threadId"] = json!("C");
    asks["params"]["turnId"] = json!("V1");
    harness.message(&asks);
    harness.answer("s1", "1:5", select("accept"), Vec::new()).expect("is open");
    assert_eq!(harness.sent, [json!({ "id": 5, "result": { "decision": "accept" } })]);
    let resolved = of("C", event("serverRequest/resolved", json!({ "requestId": 5 })));
    assert_eq!(harness.message(&resolved), ["s1: RequestSettled 1:5 confirmed"]);
}

#[test]
fn a_child_ends_with_its_turn_and_may_work_anew_also_after_the_root() {
    let mut harness = with_child();
    assert_eq!(
        harness.message(&ended("U1", "completed")),
        ["s1: TurnEnded U1 Completed -"],
        "the child goes on"
    );
    let over = of("C", event("turn/completed", json!({ "turn": { "id": "V1", "status": "completed" } })));
    assert_eq!(harness.message(&over), ["s1: ChildEnded C Completed {}"]);
    assert_eq!(harness.message(&child_started("C", "V2", "U9")), ["s1: ChildStarted C {}"]);
    let cut = of("C", event("turn/completed", json!({ "turn": { "id": "V2", "status": "interrupted" } })));
    assert_eq!(harness.message(&cut), ["s1: ChildEnded C Stopped {}"]);
    assert_eq!(harness.message(&cut), Vec::<String>::new(), "once");
}

#[test]
fn a_child_is_stopped_by_its_own_thread_and_turn() {
    let mut harness = with_child();
    let said = harness.control("s1", "k1", Control::StopChild { thread: "C".into() });
    assert!(said[0].starts_with("send urgent"), "{said:?}");
    assert_eq!(harness.sent[0]["method"], "turn/interrupt");
    assert_eq!(harness.sent[0]["params"], json!({ "threadId": "C", "turnId": "V1" }));
    assert_eq!(
        answer(&mut harness, "turn/interrupt", &json!({})),
        [r#"s1: ControlEnded k1 {"state":"done"}"#]
    );
    let over = of("C", event("turn/completed", json!({ "turn": { "id": "V1", "status": "interrupted" } })));
    harness.message(&over);
    let said = harness.control("s1", "k2", Control::StopChild { thread: "C".into() });
    assert!(said[0].contains("refused") && harness.sent.is_empty(), "{said:?}");
}

#[test]
fn children_of_children_belong_to_the_same_session_and_name_their_parent() {
    let mut harness = with_child();
    let spawn = json!({ "type": "collabAgentToolCall", "id": "call_9", "tool": "spawnAgent", "status": "completed",
                        "receiverThreadIds": ["G"], "prompt": "deeper" });
    let said = harness.message(&of("C", completed("V1", &spawn)));
    assert_eq!(said[1], r#"s1: ChildStarted G {"item_key":"C/call_9","parent":"C","title":"deeper"}"#);
    assert_eq!(harness.message(&child_started("G", "W1", "U1")), Vec::<String>::new());
}

#[test]
fn working_children_are_taken_up_again_on_a_new_connection() {
    for (status, end) in [("completed", Some("s1: ChildEnded C Completed {}")), ("inProgress", None)] {
        let mut harness = with_child();
        reconnect(&mut harness);
        let resumed = harness
            .sent
            .iter()
            .find(|frame| frame["method"] == "thread/resume")
            .expect("the child is asked for");
        assert_eq!(resumed["params"]["threadId"], "C");
        answer(&mut harness, "thread/resume", &thread("C"));
        let item = json!({ "type": "agentMessage", "id": "a1", "text": "meanwhile", "completedAtMs": 3 });
        let turns = json!([{ "id": "V1", "status": status, "items": [item] }]);
        let said = history(&mut harness, &turns, &Value::Null);
        assert_eq!(said[0], r#"s1: ItemCompleted C/a1 in - AgentMessage Completed "meanwhile" child="C""#);
        assert_eq!(said.get(1).map(String::as_str), end);
    }
}

#[test]
fn children_of_two_sessions_of_one_process_are_kept_apart() {
    let mut harness = running();
    harness.bind("s2");
    harness.open("s2", None);
    answer(&mut harness, "thread/start", &thread("T2"));
    harness.message(&of("T2", started("U2")));
    assert_eq!(harness.message(&child_started("D", "W1", "U2")), ["s2: ChildStarted D {}"]);
    assert_eq!(harness.message(&child_started("C", "V1", "U1")), ["s1: ChildStarted C {}"]);
    let said = harness
        .message(&of("D", completed("W1", &json!({ "type": "agentMessage", "id": "a1", "text": "x" }))));
    assert!(said[0].starts_with("s2: ItemCompleted D/a1"), "{said:?}");
}

#[test]
fn a_childs_approval_comes_again_when_the_child_is_taken_up_again() {
    let mut harness = with_child();
    let mut asks = approval(5);
    asks["params"]["threadId"] = json!("C");
    asks["params"]["turnId"] = json!("V1");
    harness.message(&asks);
    reconnect(&mut harness);
    let (history_of_root, resume_of_child) =
        (harness.sent_id("thread/turns/list"), harness.sent_id("thread/resume"));
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [] }]);
    let said =
        harness.message(&json!({ "id": history_of_root, "result": { "data": turns, "nextCursor": null } }));
    assert_eq!(said, ["s1: ThreadOpened T resumed"], "the child was not asked yet");
    harness.message(&json!({ "id": resume_of_child, "result": thread("C") }));
    let history_of_child = harness.sent_id("thread/turns/list");
    asks["id"] = json!(1);
    assert_eq!(harness.message(&asks), Vec::<String>::new(), "it is the same request");
    let turns = json!([{ "id": "V1", "status": "inProgress", "items": [] }]);
    harness.message(&json!({ "id": history_of_child, "result": { "data": turns, "nextCursor": null } }));
    harness.answer("s1", "1:5", select("accept"), Vec::new()).expect("is open");
    assert_eq!(harness.sent, [json!({ "id": 1, "result": { "decision": "accept" } })]);
}
