//! Requests of every kind: how they are put to people, what each answer says to the server and how far it reaches.

use crate::codex_bench::*;
use crate::harness::{Harness, select};
use mainstay_core::content::Answer;
use mainstay_core::question::Chosen;
use serde_json::{Value, json};
use std::collections::BTreeMap;

fn ask(method: &str, id: u64, mut params: Value) -> Value {
    params["threadId"] = json!("T");
    params["turnId"] = json!("U1");
    json!({ "id": id, "method": method, "params": params })
}

fn asked(request: &Value) -> (Harness, String) {
    let mut harness = running();
    let said = harness.message(request);
    assert_eq!(said.len(), 1, "{said:?}");
    (harness, said[0].clone())
}

fn decline() -> Answer {
    Answer::Decline { message: None }
}

fn cancel() -> Answer {
    Answer::Cancel { message: None }
}

/// The result that goes out for an answer.
fn result_of(request: &Value, answer: Answer) -> Value {
    let (mut harness, _) = asked(request);
    harness.answer("s1", "1:1", answer, Vec::new()).expect("is open");
    harness.sent[0]["result"].clone()
}

#[test]
fn more_rights_are_granted_for_a_turn_or_a_session_and_nothing_more_than_was_asked() {
    let wanted = json!({ "network": null, "fileSystem": { "read": null, "write": ["/zz"] } });
    let request = ask(
        "item/permissions/requestApproval",
        1,
        json!({ "itemId": "c1", "reason": "need it", "permissions": wanted }),
    );
    let (_, said) = asked(&request);
    assert!(
        said.starts_with(
            "s1: RequestOpened 1:1 in U1 on c1 PermissionGrant \"need it\" [turn/AllowOnce/\"Grant for this turn\" \
             session/AllowAlways/\"Grant for this session\" decline/RejectOnce/\"Grant nothing; the turn goes on\"]"
        ),
        "{said}"
    );
    let granted = json!({ "fileSystem": { "write": ["/zz"] } });
    assert_eq!(result_of(&request, select("turn")), json!({ "permissions": granted, "scope": "turn" }));
    assert_eq!(result_of(&request, select("session")), json!({ "permissions": granted, "scope": "session" }));
    assert_eq!(result_of(&request, decline()), json!({ "permissions": {}, "scope": "turn" }));
}

#[test]
fn a_no_that_stops_also_interrupts_where_the_server_has_no_word_for_it() {
    let request = ask(
        "item/permissions/requestApproval",
        1,
        json!({ "itemId": "c1", "permissions": { "network": {} } }),
    );
    let (mut harness, _) = asked(&request);
    harness.answer("s1", "1:1", cancel(), Vec::new()).expect("is open");
    assert_eq!(harness.sent[0]["result"], json!({ "permissions": {}, "scope": "turn" }));
    assert_eq!(harness.sent[1]["method"], "turn/interrupt");
    assert_eq!(harness.sent[1]["params"], json!({ "threadId": "T", "turnId": "U1" }));
}

fn questions() -> Value {
    ask(
        "item/tool/requestUserInput",
        1,
        json!({ "itemId": "c1", "isBlocking": true, "autoResolutionMs": 5_000, "questions": [
            { "id": "q1", "header": "Pick", "question": "which?", "isOther": true, "isSecret": false,
              "options": [{ "label": "Alpha", "description": "first" }, { "label": "Beta", "description": "second" }] },
            { "id": "q2", "header": "Say", "question": "what?", "isOther": false, "isSecret": true, "options": null } ] }),
    )
}

#[test]
fn questions_are_answered_together_by_choice_or_in_words() {
    let (_, said) = asked(&questions());
    assert!(
        said.starts_with("s1: RequestOpened 1:1 in U1 on c1 Question \"which?\" [] questions="),
        "{said}"
    );
    let chosen = |selected: &[&str], text: Option<&str>| Chosen {
        selected: selected.iter().map(|&label| label.to_owned()).collect(),
        text: text.map(str::to_owned),
    };
    let answers = BTreeMap::from([
        ("q1".to_owned(), chosen(&["Beta"], Some("rather both"))),
        ("q2".to_owned(), chosen(&[], Some("hush"))),
    ]);
    assert_eq!(
        result_of(&questions(), Answer::Answers { answers }),
        json!({ "answers": { "q1": { "answers": ["Beta", "rather both"] }, "q2": { "answers": ["hush"] } } })
    );
    assert_eq!(result_of(&questions(), decline()), json!({ "answers": {} }));
    let (mut harness, _) = asked(&questions());
    assert!(harness.answer("s1", "1:1", select("accept"), Vec::new()).is_err(), "it has no options");
}

#[test]
fn a_form_of_an_mcp_server_is_filled_in_or_refused() {
    let schema = json!({ "type": "object", "properties": { "name": { "type": "string" } } });
    let form = ask(
        "mcpServer/elicitation/request",
        1,
        json!({ "serverName": "mm", "mode": "form", "_meta": null, "message": "Who?", "requestedSchema": schema }),
    );
    let (_, said) = asked(&form);
    assert!(
        said.starts_with("s1: RequestOpened 1:1 in U1 on - Elicitation \"Who?\" [] form={\"mode\":\"form\""),
        "{said}"
    );
    let content = json!({ "name": "Ada" });
    assert_eq!(
        result_of(&form, Answer::Submit { content: Some(content.clone()) }),
        json!({ "action": "accept", "content": content, "_meta": null })
    );
    assert_eq!(result_of(&form, decline()), json!({ "action": "decline", "content": null, "_meta": null }));
    assert_eq!(result_of(&form, cancel()), json!({ "action": "cancel", "content": null, "_meta": null }));
    let link = ask(
        "mcpServer/elicitation/request",
        1,
        json!({ "serverName": "mm", "mode": "url", "message": "Sign in", "url": "https://x.test/", "elicitationId": "e1" }),
    );
    let (_, said) = asked(&link);
    assert!(said.contains(r#"form={"mode":"url","url":"https://x.test/"}"#), "{said}");
    let unknown = ask("mcpServer/elicitation/request", 1, json!({ "mode": "openai/userVerification" }));
    let said = running().message(&unknown);
    assert!(said[1].contains("-32601"), "{said:?}");
}

#[test]
fn an_mcp_tool_is_allowed_as_far_as_the_server_can_remember_it() {
    let tool = |persist: Value| {
        ask(
            "mcpServer/elicitation/request",
            1,
            json!({ "serverName": "mm", "mode": "form", "message": "Allow it?", "requestedSchema": {},
                    "_meta": { "codex_approval_kind": "mcp_tool_call", "persist": persist, "tool_name": "slow" } }),
        )
    };
    let all = tool(json!(["session", "always"]));
    let (_, said) = asked(&all);
    assert!(
        said.contains(
            "Approval \"Allow it?\" [accept/AllowOnce/\"Allow once\" acceptForSession/AllowAlways/\"Allow mm's slow in this \
             session\" acceptAlways/AllowAlways/\"Allow mm's slow for ever, in all sessions\" decline/RejectOnce"
        ),
        "{said}"
    );
    let (_, said) = asked(&tool(json!("session")));
    assert!(said.contains("acceptForSession/") && !said.contains("acceptAlways/"), "{said}");
    let meta = |option: &str| result_of(&all, select(option))["_meta"].clone();
    assert_eq!(meta("accept"), Value::Null);
    assert_eq!(meta("acceptForSession"), json!({ "persist": "session" }));
    assert_eq!(meta("acceptAlways"), json!({ "persist": "always" }));
    assert_eq!(result_of(&all, decline())["action"], "decline");
}

#[test]
fn a_host_is_allowed_or_denied_for_ever_only_on_purpose() {
    let rules = json!([{ "host": "a.test", "action": "allow" }, { "host": "a.test", "action": "deny" }]);
    let request = ask(
        "item/commandExecution/requestApproval",
        1,
        json!({ "itemId": "c1", "networkApprovalContext": { "host": "a.test", "protocol": "https" },
                "proposedNetworkPolicyAmendments": rules }),
    );
    let (_, said) = asked(&request);
    assert!(said.contains("Network access to a.test"), "{said}");
    assert!(said.contains("\"Allow network access to a.test for ever, in all sessions\""), "{said}");
    assert!(said.contains("applyNetworkPolicyAmendment:1/RejectAlways/"), "{said}");
    assert_eq!(
        result_of(&request, select("applyNetworkPolicyAmendment:1")),
        json!({ "decision": { "applyNetworkPolicyAmendment": {
            "network_policy_amendment": { "host": "a.test", "action": "deny" } } } })
    );
}

#[test]
fn a_tool_of_another_client_is_left_to_it_and_can_be_refused() {
    let request = ask("item/tool/call", 1, json!({ "callId": "d1", "tool": "theirs", "arguments": {} }));
    let (mut harness, said) = asked(&request);
    assert!(said.contains("on d1 Approval \"theirs (a tool of another client)\" [decline/"), "{said}");
    harness.answer("s1", "1:1", decline(), Vec::new()).expect("is open");
    assert_eq!(harness.sent[0]["result"]["success"], false);
    // Measured: no word of the server settles it; its item does.
    let item = json!({ "type": "dynamicToolCall", "id": "d1", "tool": "theirs", "status": "failed" });
    let said = harness.message(&completed("U1", &item));
    assert_eq!(said[1], "s1: RequestSettled 1:1 confirmed");
}

#[test]
fn requests_are_answered_in_any_order() {
    let mut harness = running();
    harness.message(&approval(0));
    let mut form = questions();
    form["id"] = json!(2);
    harness.message(&form);
    harness.message(&ask(
        "item/permissions/requestApproval",
        3,
        json!({ "itemId": "c3", "permissions": {} }),
    ));
    for (key, answer) in [("1:3", select("turn")), ("1:0", select("accept")), ("1:2", decline())] {
        harness.answer("s1", key, answer, Vec::new()).expect("is open");
        assert_eq!(harness.sent.len(), 1);
        let id = harness.sent[0]["id"].clone();
        let resolved = event("serverRequest/resolved", json!({ "requestId": id }));
        assert_eq!(harness.message(&resolved), [format!("s1: RequestSettled {key} confirmed")]);
    }
}

#[test]
fn a_request_that_is_not_asked_again_is_unconfirmed_and_can_be_answered() {
    let mut harness = running();
    harness.message(&approval(0));
    reconnect(&mut harness);
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [] }]);
    let said = history(&mut harness, &turns, &Value::Null);
    assert_eq!(said, ["s1: RequestUnconfirmed 1:0", "s1: ThreadOpened T resumed"]);
    harness.answer("s1", "1:0", select("accept"), Vec::new()).expect("is open all the same");
    assert!(harness.sent.is_empty());
    // It is asked again after all: the mark goes, and the answer with it.
    let said = harness.message(&approval(4));
    assert!(said[0].starts_with("s1: RequestOpened 1:0 in U1"), "{said:?}");
    assert_eq!(harness.sent, [json!({ "id": 4, "result": { "decision": "accept" } })]);
}

#[test]
fn an_unconfirmed_request_closes_with_its_item_or_where_a_read_proves_it_gone() {
    let mut harness = running();
    harness.message(&approval(0));
    reconnect(&mut harness);
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [] }]);
    history(&mut harness, &turns, &Value::Null);
    let item = json!({ "type": "commandExecution", "id": "c1", "command": "x", "status": "completed" });
    let said = harness.message(&completed("U1", &item));
    assert_eq!(said[1], "s1: RequestSettled 1:0");

    let mut harness = running();
    harness.message(&approval(0));
    harness.disconnect();
    handshake(&mut harness);
    let nobody = json!({ "thread": { "id": "T", "status": { "type": "active", "activeFlags": [] } } });
    let said = answer(&mut harness, "thread/resume", &nobody);
    assert_eq!(said[0], "s1: RequestSettled 1:0", "the thread waits for nobody");
}

#[test]
fn a_long_answer_is_not_kept_and_the_request_stays_open_for_another() {
    let mut harness = running();
    let mut form = questions();
    form["id"] = json!(0);
    harness.message(&form);
    let text = Some("x".repeat(5_000));
    let answers = BTreeMap::from([("q2".to_owned(), Chosen { selected: Vec::new(), text })]);
    harness.answer("s1", "1:0", Answer::Answers { answers }, Vec::new()).expect("is open");
    harness.disconnect();
    handshake(&mut harness);
    answer(&mut harness, "thread/resume", &active_thread_that("waitingOnUserInput"));
    form["id"] = json!(9);
    assert_eq!(harness.message(&form), Vec::<String>::new(), "nothing is answered in its place");
    harness.answer("s1", "1:0", decline(), Vec::new()).expect("is open");
    assert_eq!(harness.sent[0]["id"], 9);
}

#[test]
fn a_command_whose_turn_ends_while_its_approval_is_open_never_ran() {
    let mut harness = running();
    let command =
        json!({ "type": "commandExecution", "id": "c1", "command": "touch made", "status": "inProgress" });
    harness.message(&event("item/started", json!({ "turnId": "U1", "item": command })));
    let runs =
        json!({ "type": "commandExecution", "id": "c2", "command": "sleep 9", "status": "inProgress" });
    harness.message(&event("item/started", json!({ "turnId": "U1", "item": runs })));
    harness.message(&ask("item/commandExecution/requestApproval", 1, json!({ "itemId": "c1" })));
    let of_part = json!({ "itemId": "c2", "approvalId": "p" });
    harness.message(&ask("item/commandExecution/requestApproval", 2, of_part));
    let said =
        harness.message(&event("turn/completed", json!({ "turn": { "id": "U1", "status": "interrupted" } })));
    assert!(said[0].starts_with("s1: ItemCompleted c1 in U1 ToolCall Incomplete"), "{said:?}");
    let tasks: Vec<&String> = said.iter().filter(|line| line.contains("TaskStarted")).collect();
    assert!(tasks.len() == 1 && tasks[0].contains("TaskStarted c2"), "only what runs is a task: {said:?}");
}

#[test]
fn a_command_that_was_allowed_and_stopped_at_once_is_over_where_the_server_does_not_list_it() {
    // Measured: one whose process was named may never have begun either.
    for (listed, named) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut harness = running();
        let mut command = json!({ "type": "commandExecution", "id": "c1", "command": "touch made", "status": "inProgress" });
        if named {
            command["processId"] = json!("7");
        }
        harness.message(&event("item/started", json!({ "turnId": "U1", "item": command })));
        harness.message(&ask("item/commandExecution/requestApproval", 1, json!({ "itemId": "c1" })));
        harness.answer("s1", "1:1", select("accept"), Vec::new()).expect("is open");
        harness.message(&event("serverRequest/resolved", json!({ "requestId": 1 })));
        let mut said = harness
            .message(&event("turn/completed", json!({ "turn": { "id": "U1", "status": "interrupted" } })));
        assert!(said[0].contains("TaskStarted c1"), "{said:?}");
        let mut looks = 0;
        while said.last().is_some_and(|line| line.contains("thread/backgroundTerminals/list")) {
            looks += 1;
            let running = json!([{ "itemId": "c1", "processId": "7", "command": "touch made" }]);
            let data = if listed { running } else { json!([]) };
            said = answer(&mut harness, "thread/backgroundTerminals/list", &json!({ "data": data }));
            said.extend(harness.wait());
        }
        if listed {
            assert_eq!((looks, said), (1, Vec::new()), "it runs");
        } else {
            assert!(
                looks > 1 && said[0].starts_with("s1: ItemCompleted c1 in U1 ToolCall Incomplete"),
                "{said:?}"
            );
            assert!(said[1].contains("TaskEnded c1"), "{said:?}");
        }
    }
}

#[test]
fn a_look_whether_a_command_runs_survives_a_refusal_a_second_page_and_a_lost_connection() {
    const LIST: &str = "thread/backgroundTerminals/list";
    let stopped = || {
        let mut harness = running();
        let command = json!({ "type": "commandExecution", "id": "c1", "command": "touch made", "status": "inProgress" });
        harness.message(&event("item/started", json!({ "turnId": "U1", "item": command })));
        harness.message(&event("turn/completed", json!({ "turn": { "id": "U1", "status": "interrupted" } })));
        harness
    };
    let asks = |said: &[String]| said.last().is_some_and(|line| line.contains(LIST));

    let mut harness = stopped();
    assert_eq!(refuse(&mut harness, LIST, "not now"), [""; 0]);
    let mut said = harness.wait();
    let mut looks = 1;
    while asks(&said) {
        looks += 1;
        said = answer(&mut harness, LIST, &json!({ "data": [] }));
        said.extend(harness.wait());
    }
    assert!(looks > 1 && said.iter().any(|line| line.contains("TaskEnded c1")), "{said:?}");

    let mut harness = stopped();
    let said = answer(&mut harness, LIST, &json!({ "data": [], "nextCursor": "more" }));
    assert!(asks(&said) && said[0].contains("more"), "{said:?}");
    let running = json!([{ "itemId": "c1", "processId": "7", "command": "touch made" }]);
    assert_eq!(answer(&mut harness, LIST, &json!({ "data": running })), [""; 0], "it is on the second page");

    // One that had just ended when the list was made.
    let mut harness = stopped();
    assert_eq!(answer(&mut harness, LIST, &json!({ "data": [] })), [""; 0]);
    let ended = json!({ "type": "commandExecution", "id": "c1", "command": "touch made", "status": "completed", "exitCode": 0 });
    let said = harness.message(&event("item/completed", json!({ "turnId": "U1", "item": ended })));
    assert!(said[0].starts_with("s1: ItemCompleted c1 in U1 ToolCall Completed"), "{said:?}");
    assert_eq!(harness.wait(), [""; 0], "nothing is looked for any more");

    // The time between two looks outlives the connection, and a clock that was put back.
    let mut harness = stopped();
    assert_eq!(answer(&mut harness, LIST, &json!({ "data": [] })), [""; 0]);
    harness.now -= 1_000_000;
    assert!(asks(&harness.time()), "that due time is of another clock");

    let mut harness = stopped();
    reconnect(&mut harness);
    let turns = json!([{ "id": "U1", "status": "interrupted", "items": [] }]);
    assert!(asks(&history(&mut harness, &turns, &Value::Null)), "the answer was lost with the connection");
}

#[test]
fn a_command_that_was_taken_for_never_begun_and_ends_after_all_is_told_once_and_truly() {
    const LIST: &str = "thread/backgroundTerminals/list";
    for (exit, how) in [(0, "with success"), (3, "without success")] {
        let mut harness = running();
        let mut command = json!({ "type": "commandExecution", "id": "c1", "command": "touch made", "status": "inProgress" });
        harness.message(&event("item/started", json!({ "turnId": "U1", "item": command })));
        let mut said = harness
            .message(&event("turn/completed", json!({ "turn": { "id": "U1", "status": "interrupted" } })));
        while said.last().is_some_and(|line| line.contains(LIST)) {
            said = answer(&mut harness, LIST, &json!({ "data": [] }));
            said.extend(harness.wait());
        }
        assert!(said[0].starts_with("s1: ItemCompleted c1 in U1 ToolCall Incomplete"), "{said:?}");
        command["status"] = json!(if exit == 0 { "completed" } else { "failed" });
        command["exitCode"] = json!(exit);
        command["aggregatedOutput"] = json!("é".repeat(5_000));
        let late = event("item/completed", json!({ "turnId": "U1", "item": command }));
        let said = harness.message(&late);
        // The session has the item already, and leaves a second end out.
        assert!(said.len() == 2 && said[1].starts_with("s1: ItemCompleted c1"), "{said:?}");
        assert!(said[0].contains("Notice") && said[0].contains(how), "{said:?}");
        assert!(said[0].len() < 5_000, "only the end of its output");
        let again = harness.message(&late);
        assert!(!again.iter().any(|line| line.contains("Notice")), "once: {again:?}");
    }
}
