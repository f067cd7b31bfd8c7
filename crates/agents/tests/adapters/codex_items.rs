//! Items of a turn: every type of the version, what stays open, what the model says again.

use crate::codex_bench::*;
use crate::harness::select;
use serde_json::{Value, json};

fn begun(turn: &str, item: &Value) -> Value {
    event("item/started", json!({ "turnId": turn, "item": item }))
}

fn message(id: &str, text: &str) -> Value {
    json!({ "type": "agentMessage", "id": id, "text": text })
}

fn retry(words: &str) -> Value {
    event(
        "error",
        json!({ "turnId": "U1", "willRetry": true,
                "error": { "message": words, "codexErrorInfo": { "responseStreamDisconnected": { "httpStatusCode": null } },
                           "additionalDetails": "stream closed" } }),
    )
}

#[test]
fn the_types_of_the_version_are_all_modelled() {
    let mut harness = running();
    for (item, said) in [
        (
            json!({ "type": "sleep", "id": "c", "durationMs": 1500 }),
            r#"ToolCall Completed provider_type="sleep" raw_input={"durationMs":1500} title="Wait 1500 ms""#,
        ),
        (
            json!({ "type": "subAgentActivity", "id": "c", "kind": "started", "agentThreadId": "C", "agentPath": "/a" }),
            r#"Notice Completed provider_type="subAgentActivity" raw_output={"agentPath":"/a","agentThreadId":"C","kind":"started"} title="/a: started""#,
        ),
        (
            json!({ "type": "hookPrompt", "id": "c", "fragments": [{ "text": "be kind", "hookRunId": "h" }] }),
            r#"Notice Completed "be kind" provider_type="hookPrompt""#,
        ),
        (
            json!({ "type": "functionCallOutput", "id": "c", "name": "f", "namespace": "n", "output": "out" }),
            r#"ToolCall Completed "out" provider_type="functionCallOutput" title="n.f""#,
        ),
        (
            json!({ "type": "imageView", "id": "c", "path": "/p.png" }),
            r#"ToolCall Completed locations=[{"path":"/p.png"}] provider_type="imageView" title="/p.png" tool_kind="read""#,
        ),
        (
            json!({ "type": "imageGeneration", "id": "c", "status": "completed", "revisedPrompt": "a cat", "result": "aGk=" }),
            r#"ToolCall Completed content=[{"content":{"data":"aGk=","mimeType":"image/png","type":"image"},"type":"content"}]"#,
        ),
        (
            json!({ "type": "dynamicToolCall", "id": "c", "namespace": "n", "tool": "t", "status": "completed", "success": true }),
            r#"ToolCall Completed provider_type="dynamicToolCall" raw_output={"success":true} title="n.t""#,
        ),
        (
            json!({ "type": "collabAgentToolCall", "id": "c", "tool": "wait", "status": "interrupted" }),
            r#"ToolCall Incomplete provider_type="collabAgentToolCall" title="wait""#,
        ),
    ] {
        let lines = harness.message(&completed("U1", &item));
        assert!(lines[0].starts_with(&format!("s1: ItemCompleted c in U1 {said}")), "{lines:?}");
    }
}

#[test]
fn a_message_whose_answer_broke_off_is_abandoned_and_the_retry_is_told() {
    let mut harness = running();
    harness.message(&begun("U1", &message("a1", "")));
    let said = harness.message(&retry("Reconnecting... 1/2"));
    assert!(said[0].starts_with("s1: ItemCompleted a1 in U1 AgentMessage Abandoned"), "{said:?}");
    assert!(
        said[1].starts_with("s1: Retrying U1 1 of Some(2)") && said[1].contains("stream closed"),
        "{said:?}"
    );
    harness.message(&begun("U1", &message("a2", "")));
    harness.message(&completed("U1", &message("a2", "whole")));
    let said = harness.message(&retry("Reconnecting... 2/2"));
    assert_eq!(said.len(), 1, "a2 is whole: {said:?}");
    assert!(
        said[0].contains("Retrying U1 2 of Some(2)") && said[0].contains(r#""abandoned_items":["a2"]"#),
        "{said:?}"
    );
    // A complete answer is never said again.
    harness.message(&completed("U1", &message("a3", "whole")));
    harness.message(&event("thread/tokenUsage/updated", json!({ "turnId": "U1", "tokenUsage": {} })));
    let said = harness.message(&retry("Reconnecting... waiting for network"));
    assert!(said[0].contains("Retrying U1 1 of None") && !said[0].contains("abandoned"), "{said:?}");
}

#[test]
fn a_patch_that_was_cancelled_is_closed_with_its_turn_and_a_command_goes_on() {
    let mut harness = running();
    harness.message(&begun(
        "U1",
        &json!({ "type": "fileChange", "id": "f1", "status": "inProgress", "changes": [] }),
    ));
    harness.message(&begun(
        "U1",
        &json!({ "type": "commandExecution", "id": "c1", "command": "x", "status": "inProgress",
                 "processId": "7" }),
    ));
    harness.message(&begun(
        "U1",
        &json!({ "type": "mcpToolCall", "id": "t1", "server": "s", "tool": "t", "status": "inProgress" }),
    ));
    let asked = json!({ "id": 1, "method": "item/fileChange/requestApproval",
                        "params": { "threadId": "T", "turnId": "U1", "itemId": "f1" } });
    harness.message(&asked);
    harness.answer("s1", "1:1", select("cancel"), Vec::new()).expect("is open");
    assert_eq!(
        harness.message(&ended("U1", "interrupted")),
        [
            "s1: ItemCompleted f1 in U1 ToolCall Declined",
            "s1: ItemCompleted t1 in U1 ToolCall Incomplete",
            r#"s1: TaskStarted c1 Shell "x" {"item_key":"c1"}"#,
            "s1: TurnEnded U1 Interrupted -",
            r#"send {"id":3,"method":"thread/backgroundTerminals/list","params":{"threadId":"T"}}"#
        ]
    );
    let late =
        json!({ "type": "commandExecution", "id": "c1", "command": "x", "status": "failed", "exitCode": -1 });
    let said = harness.message(&completed("U1", &late));
    assert!(said[0].starts_with("s1: ItemCompleted c1 in U1 ToolCall Failed"), "{said:?}");
    assert_eq!(said[1], "s1: TaskEnded c1 Failed {}");
}

#[test]
fn a_plan_comes_as_acps_entries() {
    let mut harness = running();
    let steps = json!([{ "step": "look", "status": "completed" }, { "step": "do", "status": "inProgress" }, { "step": "tell", "status": "pending" }]);
    let plan = event("turn/plan/updated", json!({ "turnId": "U1", "explanation": null, "plan": steps }));
    assert_eq!(
        harness.message(&plan),
        [concat!(
            r#"s1: Plan [{"content":"look","priority":"medium","status":"completed"},{"content":"do","priority":"medium","status":"in_progress"},"#,
            r#"{"content":"tell","priority":"medium","…(179)"#
        )]
    );
}

#[test]
fn what_is_typed_into_a_command_is_told_of_its_item() {
    let mut harness = running();
    let typed = |stdin: &str| {
        event(
            "item/commandExecution/terminalInteraction",
            json!({ "turnId": "U2", "itemId": "c1", "processId": "7", "stdin": stdin }),
        )
    };
    assert_eq!(harness.message(&typed("")), Vec::<String>::new());
    assert_eq!(
        harness.message(&typed("y\n")),
        [r#"s1: ItemUpdated c1 content=[{"text":"y\n","type":"terminal_input"}]"#]
    );
}

#[test]
fn a_usage_limit_says_when_it_resets() {
    let mut harness = running();
    let limits = json!({ "rateLimits": {
        "primary": { "usedPercent": 100.0, "windowDurationMins": 300, "resetsAt": 1_796_036_041 },
        "secondary": { "usedPercent": 40.0, "windowDurationMins": 10_080, "resetsAt": 1_796_600_000 } } });
    let limits = json!({ "method": "account/rateLimits/updated", "params": limits });
    assert_eq!(harness.message(&limits), Vec::<String>::new());
    let error =
        json!({ "message": "You have hit your usage limit.", "codexErrorInfo": "usageLimitExceeded" });
    let turn = json!({ "id": "U1", "status": "failed", "error": error });
    let said = harness.message(&event("turn/completed", json!({ "turn": turn })));
    assert!(said[0].starts_with("s1: TurnEnded U1 Limit -"), "{said:?}");
    assert_eq!(harness.failures[0]["resets_at"], 1_796_036_041_000_i64, "{:?}", harness.failures);
}

#[test]
fn output_of_which_the_server_left_out_the_middle_has_a_gap() {
    for (bytes, gap) in [(1_000, false), (1024 * 1024 + 40, true)] {
        let mut harness = running();
        let item = json!({ "type": "commandExecution", "id": "c", "command": "x", "status": "completed",
                           "aggregatedOutput": "x".repeat(bytes) });
        let said = harness.message(&completed("U1", &item));
        assert_eq!(said[0].contains(" gap=true"), gap, "{said:?}");
    }
}
