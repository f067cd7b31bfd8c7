//! One test for each rule of the Codex adapter within one connection.

use crate::codex_bench::*;
use crate::harness::{Harness, Life, context, select};
use mainstay_agents::{AgentKind, CannotTell, ThreadContext};
use mainstay_core::SessionOptions;
use mainstay_core::content::Answer;
use serde_json::{Value, json};

#[test]
fn a_thread_is_made_with_a_sandbox_and_a_policy() {
    let mut harness = connected();
    harness.open("s1", None);
    assert_eq!(
        harness.sent[0]["params"],
        json!({ "cwd": "/work", "approvalPolicy": "on-request", "sandbox": "workspace-write" })
    );
    let options = SessionOptions {
        model: Some("m".to_owned()),
        sandbox: Some("read-only".to_owned()),
        approval: Some("untrusted".to_owned()),
        tier: Some("fast".to_owned()),
        ..SessionOptions::default()
    };
    harness.open_with("s1", Some("T"), options, &[]);
    assert_eq!(
        harness.sent[0]["params"],
        json!({ "cwd": "/work", "approvalPolicy": "untrusted", "sandbox": "read-only", "model": "m",
                "serviceTier": "fast", "threadId": "T", "excludeTurns": true })
    );
    assert!(harness.sent[0].get("jsonrpc").is_none(), "Codex sends and needs no such field");
}

#[test]
fn refused_threads_are_classified_in_one_place() {
    for (message, code) in [
        ("no rollout found for thread id T", "thread_missing"),
        ("thread T already has an active writer", "active_writer"),
        ("codex account authentication required to do that", "sign_in"),
        ("session T is locked", "agent_refused"),
    ] {
        let mut harness = connected();
        harness.open("s1", Some("T"));
        let said = refuse(&mut harness, "thread/resume", message);
        assert!(said[0].starts_with("s1: ThreadRefused"), "{said:?}");
        assert!(said[0].contains(&format!(r#""code":"{code}""#)) && said[0].contains(message), "{said:?}");
        assert_eq!(harness.start("s1", "m1", "x"), Err(CannotTell::NoThread("s1".into())));
    }
}

#[test]
fn the_answer_names_the_turn_and_the_user_message_is_the_proof() {
    let mut harness = open();
    let sent = harness.start("s1", "m1", "hello").expect("can be told");
    assert!(sent[0].starts_with("send carries m1"), "{sent:?}");
    assert_eq!(
        harness.sent[0]["params"],
        json!({ "threadId": "T", "clientUserMessageId": "m1", "input": [{ "type": "text", "text": "hello" }] })
    );
    assert_eq!(harness.start("s1", "m2", "x"), Err(CannotTell::InputUntaken("s1".into())));
    running();
}

#[test]
fn a_turn_that_starts_before_the_answer_is_unknown_until_the_answer_names_it() {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    let id = harness.sent_id("turn/start");
    assert_eq!(harness.message(&started("U1")), ["s1: TurnStarted U1 Unknown -"]);
    let taken = completed("U1", &user_message("u1", Some("m1")));
    assert_eq!(harness.message(&taken), ["s1: InputTaken m1 ClientId"]);
    let named = json!({ "id": id, "result": { "turn": { "id": "U1" } } });
    assert_eq!(harness.message(&named), ["s1: TurnStarted U1 Message m1"]);
}

#[test]
fn a_message_that_joined_another_clients_turn_does_not_claim_it() {
    let mut harness = open();
    assert_eq!(harness.message(&started("V")), ["s1: TurnStarted V Unknown -"]);
    harness.start("s1", "m1", "hello").expect("can be told");
    assert_eq!(answer(&mut harness, "turn/start", &json!({ "turn": { "id": "V" } })), Vec::<String>::new());
    let taken = completed("V", &user_message("u1", Some("m1")));
    assert_eq!(harness.message(&taken), ["s1: InputTaken m1 ClientId"]);
}

#[test]
fn a_refused_message_is_rejected() {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    let said = refuse(&mut harness, "turn/start", "thread not found: T");
    assert!(said[0].starts_with("s1: InputRejected m1") && said[0].contains("agent_refused"), "{said:?}");
    assert!(harness.start("s1", "m2", "x").is_ok());
}

#[test]
fn another_clients_message_is_an_item() {
    let mut harness = running();
    assert_eq!(
        harness.message(&completed("U1", &user_message("u2", Some("theirs")))),
        [r#"s1: ItemCompleted u2 in U1 UserMessage Completed content=[{"text":"hello","type":"text"}]"#]
    );
    assert_eq!(
        harness.message(&completed("U1", &user_message("u1", Some("m1")))),
        Vec::<String>::new(),
        "our own again is neither"
    );
}

#[test]
fn ends_of_turns() {
    for (turn, end) in [
        (json!({ "id": "U1", "status": "completed" }), "Completed -"),
        (json!({ "id": "U1", "status": "interrupted", "error": null }), "Interrupted -"),
    ] {
        let mut harness = running();
        let said = harness.message(&event("turn/completed", json!({ "turn": turn })));
        assert_eq!(said, [format!("s1: TurnEnded U1 {end}")]);
    }
    for (info, end, code) in [
        (json!("usageLimitExceeded"), "Limit", "limit"),
        (json!("contextWindowExceeded"), "Limit", "limit"),
        (json!("other"), "Failed", "provider"),
        (json!({ "httpConnectionFailed": { "httpStatusCode": 503 } }), "Failed", "provider"),
        (json!({ "httpConnectionFailed": { "httpStatusCode": 401 } }), "Failed", "sign_in"),
        (json!("serverOverloaded"), "Failed", "overloaded"),
        (json!("unauthorized"), "Failed", "sign_in"),
    ] {
        let mut harness = running();
        let error = json!({ "message": "no luck", "codexErrorInfo": info });
        let turn = json!({ "id": "U1", "status": "failed", "error": error });
        let said = harness.message(&event("turn/completed", json!({ "turn": turn })));
        assert!(said[0].starts_with(&format!("s1: TurnEnded U1 {end} - ")), "{said:?}");
        assert!(said[0].contains(&format!(r#""code":"{code}""#)), "{said:?}");
    }
    let mut harness = running();
    let said = harness.message(&ended("U1", "evaporated"));
    assert!(said[0].contains("Failed") && said[0].contains("evaporated"), "{said:?}");
}

#[test]
fn a_retried_error_is_a_notice_and_the_last_one_is_kept_for_the_end() {
    let mut harness = running();
    let error = |retry: bool| {
        event(
            "error",
            json!({ "turnId": "U1", "willRetry": retry, "error": { "message": "cut", "codexErrorInfo": "other" } }),
        )
    };
    assert!(harness.message(&error(true))[0].starts_with("s1: Retrying U1 1 of None at None"));
    assert_eq!(harness.message(&error(false)), Vec::<String>::new());
    let said = harness.message(&ended("U1", "failed"));
    assert_eq!(said, [r#"s1: TurnEnded U1 Failed - {"code":"provider","message":"cut"}"#]);
}

#[test]
fn streamed_text_changes_no_state() {
    let mut harness = running();
    for (method, kind) in [
        ("item/agentMessage/delta", "AgentMessage"),
        ("item/reasoning/summaryTextDelta", "AgentThought"),
        ("item/reasoning/textDelta", "AgentThought"),
        ("item/plan/delta", "Plan"),
        ("item/commandExecution/outputDelta", "ToolCall"),
    ] {
        let delta = event(method, json!({ "turnId": "U1", "itemId": "i", "delta": "t\"x" }));
        assert_eq!(harness.message(&delta), [format!(r#"s1: ItemDelta i in U1 {kind} "t\"x""#)]);
        assert_eq!(harness.changed, Vec::<String>::new());
    }
}

#[test]
fn streamed_reasoning_reads_as_the_whole_does() {
    let mut harness = running();
    let part = |index: u64| {
        event(
            "item/reasoning/summaryPartAdded",
            json!({ "turnId": "U1", "itemId": "r", "summaryIndex": index }),
        )
    };
    assert_eq!(harness.message(&part(0)), Vec::<String>::new());
    assert_eq!(harness.message(&part(1)), [r#"s1: ItemDelta r in U1 AgentThought "\n\n""#]);
    let whole = json!({ "type": "reasoning", "id": "r", "summary": ["one", "two"], "content": ["inner"] });
    assert_eq!(
        harness.message(&completed("U1", &whole)),
        [r#"s1: ItemCompleted r in U1 AgentThought Completed "one\n\ntwo""#]
    );
    let raw = json!({ "type": "reasoning", "id": "r", "summary": [], "content": ["inner"] });
    assert!(harness.message(&completed("U1", &raw))[0].ends_with(r#"Completed "inner""#));
    let hidden = json!({ "type": "reasoning", "id": "r", "summary": [], "content": [] });
    assert!(harness.message(&completed("U1", &hidden))[0].ends_with("Completed"), "what streamed stays");
}

#[test]
fn items_of_all_kinds() {
    let mut harness = running();
    for (item, said) in [
        (
            json!({ "type": "commandExecution", "id": "c", "command": "ls", "cwd": "/w", "status": "declined",
                    "aggregatedOutput": null, "exitCode": null }),
            r#"ToolCall Declined provider_type="commandExecution" raw_input={"command":"ls","cwd":"/w"} title="ls" tool_kind="execute""#,
        ),
        (
            json!({ "type": "commandExecution", "id": "c", "command": "ls", "status": "completed",
                    "aggregatedOutput": "f\n", "exitCode": 0, "durationMs": 3 }),
            r#"ToolCall Completed "f\n" provider_type="commandExecution" raw_input={"command":"ls"} raw_output={"durationMs":3,"exitCode":0} title="ls" tool_kind="execute""#,
        ),
        (
            json!({ "type": "fileChange", "id": "c", "status": "completed",
                    "changes": [{ "path": "/a", "kind": { "type": "add" }, "diff": "x" }] }),
            r#"ToolCall Completed content=[{"newText":"x","oldText":null,"path":"/a","type":"diff"}] locations=[{"path":"/a"}] provider_type="fileChange" title="Change /a" tool_kind="edit""#,
        ),
        (
            json!({ "type": "fileChange", "id": "c", "status": "failed", "changes": [
                { "path": "/a", "kind": { "type": "update", "move_path": null }, "diff": "@@" },
                { "path": "/b", "kind": { "type": "delete" }, "diff": "old" }] }),
            r#"ToolCall Failed content=[{"change":{"move_path":null,"type":"update"},"path":"/a","type":"diff","unifiedDiff":"@@"},{"newText":"","oldText":"old","path":"/b","type":"diff"}] locations=[{"path":"/a"},{"path":"/b"}] provider_type="fileChange" title="Change 2 files" tool_kind="edit""#,
        ),
        (
            json!({ "type": "mcpToolCall", "id": "c", "server": "s", "tool": "t", "status": "failed",
                    "arguments": { "a": 1 }, "result": null, "error": { "message": "closed" } }),
            r#"ToolCall Failed provider_type="mcpToolCall" raw_input={"a":1} raw_output={"error":{"message":"closed"}} title="s: t" tool_kind="other""#,
        ),
        (
            json!({ "type": "webSearch", "id": "c", "query": "q" }),
            r#"ToolCall Completed provider_type="webSearch" raw_input={"query":"q"} title="q" tool_kind="search""#,
        ),
        (
            json!({ "type": "enteredReviewMode", "id": "c", "review": "look" }),
            r#"Notice Completed "look" provider_type="enteredReviewMode" title="A review began""#,
        ),
        (
            json!({ "type": "hologram", "id": "c", "x": 1 }),
            r#"Other Completed provider_type="hologram" raw_output={"id":"c","type":"hologram","x":1}"#,
        ),
    ] {
        let lines = harness.message(&completed("U1", &item));
        let cut: String = said.chars().take(100).collect();
        assert!(lines[0].starts_with(&format!("s1: ItemCompleted c in U1 {cut}")), "{lines:?}");
    }
}

#[test]
fn a_stop_before_the_turn_has_started_waits_for_it() {
    for answered_first in [true, false] {
        let mut harness = open();
        harness.start("s1", "m1", "hello").expect("can be told");
        let id = harness.sent_id("turn/start");
        let answer = json!({ "id": id, "result": { "turn": { "id": "U1" } } });
        if answered_first {
            harness.message(&answer);
        }
        assert_eq!(harness.interrupt("s1", None), Vec::<String>::new());
        if !answered_first {
            harness.message(&answer);
        }
        let said = harness.message(&started("U1"));
        assert_eq!(said[0], "s1: TurnStarted U1 Message m1");
        assert!(said[1].starts_with("send urgent") && said[1].contains("turn/interrupt"), "{said:?}");
        assert_eq!(harness.sent[0]["params"], json!({ "threadId": "T", "turnId": "U1" }));
    }
}

#[test]
fn a_stop_that_came_too_early_is_tried_at_each_next_record_and_not_for_ever() {
    let mut harness = running();
    harness.interrupt("s1", Some("U1"));
    let delta = event("item/agentMessage/delta", json!({ "turnId": "U1", "itemId": "i", "delta": "t" }));
    let mut tries = 1;
    loop {
        let said = refuse(&mut harness, "turn/interrupt", NO_ACTIVE_TURN);
        if let Some(said) = said.first() {
            assert!(said.starts_with("s1: Notice Warning") && said.contains(NO_ACTIVE_TURN), "{said}");
            break;
        }
        assert!(harness.message(&delta)[1].contains("turn/interrupt"), "the next record tries again");
        tries += 1;
    }
    assert_eq!(tries, 20);
    assert_eq!(harness.message(&delta).len(), 1);
}

#[test]
fn a_stop_of_a_turn_that_is_over_is_given_up_and_anothers_is_tried_once() {
    let mut harness = running();
    harness.interrupt("s1", Some("U1"));
    let id = harness.sent_id("turn/interrupt");
    harness.message(&ended("U1", "completed"));
    let late = json!({ "id": id, "error": { "code": -32600, "message": NO_ACTIVE_TURN } });
    assert_eq!(harness.message(&late), Vec::<String>::new());
    assert_eq!(harness.interrupt("s1", Some("U1")), Vec::<String>::new(), "nothing runs");
    assert_eq!(harness.interrupt("s1", None), Vec::<String>::new(), "nothing is coming");

    let mut harness = running();
    harness.interrupt("s1", Some("U1"));
    let other = "expected active turn id `U1` but found `U2`";
    let said = refuse(&mut harness, "turn/interrupt", other);
    assert!(
        said.len() == 1 && said[0].starts_with("send urgent"),
        "once more, under the id that runs: {said:?}"
    );
    assert_eq!(harness.sent[0]["params"], json!({ "threadId": "T", "turnId": "U2" }));
    let said = refuse(&mut harness, "turn/interrupt", "expected active turn id `U2` but found `U3`");
    assert!(said.len() == 1 && said[0].starts_with("s1: Notice Warning"), "no third try: {said:?}");
    let delta = event("item/agentMessage/delta", json!({ "turnId": "U1", "itemId": "i", "delta": "t" }));
    assert_eq!(harness.message(&delta).len(), 1);
}

#[test]
fn a_stop_under_the_id_that_the_refusal_names_ends_the_turn_and_is_asked_exactly_twice() {
    let mut harness = running();
    harness.interrupt("s1", Some("U1"));
    refuse(&mut harness, "turn/interrupt", "expected active turn id U1 but found U2");
    answer(&mut harness, "turn/interrupt", &json!({}));
    let said = harness.message(&ended("U1", "interrupted"));
    assert_eq!(said, ["s1: TurnEnded U1 Interrupted -"]);

    // Ended under the other id: the thread's status tells whether the one that was to stop is over too.
    let mut harness = running();
    harness.interrupt("s1", Some("U1"));
    refuse(&mut harness, "turn/interrupt", "expected active turn id U1 but found U2");
    answer(&mut harness, "turn/interrupt", &json!({}));
    let said = harness.message(&ended("U2", "interrupted"));
    assert!(said.iter().any(|line| line.contains("thread/read")), "{said:?}");
    let said = answer(&mut harness, "thread/read", &thread("T"));
    assert!(said.len() == 1 && said[0].starts_with("s1: TurnEnded U1 Lost"), "{said:?}");
}

#[test]
fn a_refusal_that_names_no_id_is_followed_by_no_guess() {
    for words in
        ["expected active turn id U1 but found none at all", "expected active turn id U1", "but found U2"]
    {
        let mut harness = running();
        harness.interrupt("s1", Some("U1"));
        let said = refuse(&mut harness, "turn/interrupt", words);
        assert!(said.len() == 1 && said[0].starts_with("s1: Notice Warning"), "{words}: {said:?}");
    }
}

#[test]
fn a_stop_stops_no_later_turn() {
    let mut harness = running();
    harness.interrupt("s1", Some("U1"));
    harness.message(&ended("U1", "interrupted"));
    assert_eq!(harness.message(&started("U2")), ["s1: TurnStarted U2 Unknown -"]);
}

#[test]
fn approvals_offer_what_works_and_say_how_far_it_reaches() {
    let mut harness = running();
    let said = harness.message(&approval(0));
    assert!(
        said[0].starts_with(
            "s1: RequestOpened 1:0 in U1 on c1 Approval \"git status\" [accept/AllowOnce/\"Allow once\" \
             acceptForSession/AllowAlways/\"Allow exactly this command in this session\" \
             acceptWithExecpolicyAmendment/AllowAlways/\"Allow commands that begin with `git status` for ever, in all sessions\" \
             decline/RejectOnce/\"Reject; the turn goes on\" cancel/Other/\"Reject and stop the turn\"]"
        ),
        "{said:?}"
    );
    let file = json!({ "id": 1, "method": "item/fileChange/requestApproval",
                       "params": { "threadId": "T", "turnId": "U1", "itemId": "f1" } });
    let said = harness.message(&file);
    assert!(said[0].contains("s1: RequestOpened 1:1 in U1 on f1 Approval \"Change files\""), "{said:?}");
    assert!(!said[0].contains("Amendment"), "{said:?}");
}

#[test]
fn answers_go_out_in_codex_words() {
    for (answer, decision) in [
        (select("accept"), json!("accept")),
        (select("acceptForSession"), json!("acceptForSession")),
        (
            select("acceptWithExecpolicyAmendment"),
            json!({ "acceptWithExecpolicyAmendment": { "execpolicy_amendment": ["git", "status"] } }),
        ),
        (Answer::Decline { message: None }, json!("decline")),
        (Answer::Cancel { message: None }, json!("cancel")),
    ] {
        let mut harness = running();
        harness.message(&approval(0));
        harness.answer("s1", "1:0", answer, Vec::new()).expect("is open");
        assert_eq!(harness.sent, [json!({ "id": 0, "result": { "decision": decision } })]);
        let resolved = event("serverRequest/resolved", json!({ "requestId": 0 }));
        assert_eq!(harness.message(&resolved), ["s1: RequestSettled 1:0 confirmed"]);
        assert_eq!(harness.message(&resolved), Vec::<String>::new());
    }
    let mut harness = running();
    harness.message(&approval(0));
    assert!(harness.answer("s1", "1:0", select("bogus"), Vec::new()).is_err());
    assert!(harness.answer("s1", "1:9", select("accept"), Vec::new()).is_err());
}

#[test]
fn an_approval_that_another_client_answered_is_settled_unconfirmed() {
    let mut harness = running();
    harness.message(&approval(0));
    let resolved = event("serverRequest/resolved", json!({ "requestId": 0 }));
    assert_eq!(harness.message(&resolved), ["s1: RequestSettled 1:0"]);
}

#[test]
fn what_cannot_be_put_to_anybody_is_refused_and_told() {
    let mut harness = running();
    for method in
        ["account/chatgptAuthTokens/refresh", "attestation/generate", "execCommandApproval", "new/thing"]
    {
        let said = harness.message(&json!({ "id": 4, "method": method, "params": { "threadId": "T" } }));
        assert!(said[0].starts_with("s1: Notice Warning") && said[0].contains(method), "{said:?}");
        assert!(said[1].contains("-32601"), "{said:?}");
    }
    let of_nobody = json!({ "id": 5, "method": "item/tool/requestUserInput", "params": {} });
    let said = harness.message(&of_nobody);
    assert!(said[0].starts_with("all: Notice Warning") && said[1].contains("-32601"), "{said:?}");
}

#[test]
fn known_noise_is_silent_and_unknown_frames_are_shown() {
    let mut harness = running();
    for method in
        ["thread/status/changed", "thread/readState/changed", "turn/diff/updated", "thread/goal/cleared"]
    {
        assert_eq!(harness.message(&event(method, json!({}))), Vec::<String>::new());
    }
    let said = harness.message(&event("thread/moon/changed", json!({})));
    assert!(said[0].starts_with("s1: Unmodelled thread/moon/changed"), "{said:?}");
    let said = harness.message(&json!({ "method": "account/moon", "params": {} }));
    assert!(said[0].starts_with("all: Unmodelled account/moon"), "{said:?}");
    let child = json!({ "method": "turn/started", "params": { "threadId": "child", "turn": { "id": "x" } } });
    assert_eq!(harness.message(&child), Vec::<String>::new(), "kept until somebody names it");
    let said = harness.disconnect();
    assert!(
        said[0].starts_with("all: Notice Warning") && said[0].contains("thread child is no session's"),
        "{said:?}"
    );
}

#[test]
fn what_the_server_has_in_force_is_told() {
    let mut harness = running();
    let settings = json!({ "threadSettings": { "model": "big", "effort": "high", "approvalPolicy": "untrusted",
                           "sandboxPolicy": { "type": "readOnly" }, "serviceTier": null } });
    let report = event("thread/settings/updated", settings);
    assert_eq!(
        harness.message(&report),
        [r#"s1: Options {"approval":"untrusted","effort":"high","model":"big","sandbox":"read-only"}"#]
    );
    assert_eq!(harness.message(&report), Vec::<String>::new(), "only changes");
    let usage = event("thread/tokenUsage/updated", json!({ "tokenUsage": { "total": 1 } }));
    assert_eq!(harness.message(&usage), [r#"s1: Usage {"total":1}"#]);
}

#[test]
fn a_turn_starts_with_the_options_that_are_not_in_force() {
    let mut harness = connected();
    harness.open("s1", None);
    let mut opened = thread("T");
    opened["model"] = json!("small");
    opened["approvalPolicy"] = json!("on-request");
    answer(&mut harness, "thread/start", &opened);
    let decision = mainstay_core::Decision::StartTurn {
        submission: "m1".into(),
        content: vec![mainstay_core::ContentBlock::text("x")],
        options: SessionOptions {
            model: Some("small".to_owned()),
            effort: Some("high".to_owned()),
            sandbox: Some("read-only".to_owned()),
            ..SessionOptions::default()
        },
    };
    harness.tell("s1", &decision).expect("can be told");
    let params = &harness.sent[0]["params"];
    assert_eq!((&params["effort"], &params["model"]), (&json!("high"), &Value::Null));
    assert_eq!(params["sandboxPolicy"], json!({ "type": "readOnly" }));
}

#[test]
fn an_unreadable_state_is_left_out() {
    let mut adapter = mainstay_agents::adapter(AgentKind::Codex);
    assert!(!adapter.restore("connection", b"{}x"));
    assert!(!adapter.restore("thread:s1", b"[]"));
    assert!(!adapter.restore("elsewhere", b"{}"));
    assert!(adapter.changes().is_empty());
}

#[test]
fn sessions_of_one_process_are_kept_apart() {
    let mut harness = running();
    harness.bind("s2");
    harness.open("s2", None);
    answer(&mut harness, "thread/start", &thread("T2"));
    let mut second = started("U2");
    second["params"]["threadId"] = json!("T2");
    assert_eq!(harness.message(&second), ["s2: TurnStarted U2 Unknown -"]);
    harness.message(&approval(0));
    assert!(
        harness.answer("s2", "1:0", select("accept"), Vec::new()).is_err(),
        "it is the other session's request"
    );
    assert!(harness.interrupt("s2", None)[0].contains(r#""turnId":"U2""#));
    harness.disconnect();
    let sent = handshake(&mut harness);
    let resumed: Vec<bool> =
        ["T", "T2"].map(|thread| sent.iter().any(|line| line.contains(&format!("\"{thread}\"")))).to_vec();
    assert_eq!(resumed, [true, true], "{sent:?}");
}

#[test]
fn open_approvals_are_bounded() {
    let mut harness = running();
    for id in 0..32 {
        assert!(harness.message(&approval(id))[0].contains("RequestOpened"));
    }
    let said = harness.message(&approval(32));
    assert!(
        said[0].starts_with("s1: Notice Warning") && said[1].contains(r#""decision":"decline""#),
        "{said:?}"
    );
}

#[test]
fn a_newer_version_is_spoken_with_and_said_to_be_newer_once() {
    let said_by = |version: &str| {
        let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
        harness.bind("s1");
        let greet = |harness: &mut Harness| {
            harness.connect();
            let id = harness.sent_id("initialize");
            let agent = format!("mainstay/{version} (Linux)");
            harness.message(&json!({ "id": id, "result": { "userAgent": agent } }))
        };
        let first = greet(&mut harness);
        assert!(first[0].starts_with(&format!("all: Ready codex {version}")), "{first:?}");
        harness.disconnect();
        let newer = |said: &[String]| said.iter().filter(|line| line.contains("is newer than")).count();
        (newer(&first), newer(&greet(&mut harness)))
    };
    assert_eq!(said_by("0.172.0"), (1, 0));
    assert_eq!(said_by("1.0.0-beta"), (1, 0));
    assert_eq!(said_by("0.171.3"), (0, 0));
    assert_eq!(said_by("0.99.0"), (0, 0));
    assert_eq!(said_by("strange"), (0, 0));
}

#[test]
fn a_thread_in_the_agents_archive_is_taken_out_once_to_be_taken_up() {
    let archived = "session T is archived. Run `codex unarchive T` to unarchive it first.";
    let mut harness = connected();
    harness.open("s1", Some("T"));
    let asked = refuse(&mut harness, "thread/resume", archived);
    assert!(asked.len() == 1 && asked[0].contains("thread/unarchive"), "{asked:?}");
    let again = answer(&mut harness, "thread/unarchive", &thread("T"));
    assert!(again[0].contains("thread/resume"), "{again:?}");
    let refused = refuse(&mut harness, "thread/resume", archived);
    assert!(refused[0].starts_with("s1: ThreadRefused"), "not for ever: {refused:?}");

    let mut harness = connected();
    harness.open("s1", Some("T"));
    refuse(&mut harness, "thread/resume", archived);
    let refused = refuse(&mut harness, "thread/unarchive", "no");
    assert!(refused[0].starts_with("s1: ThreadRefused"), "{refused:?}");
}

#[test]
fn what_is_the_agents_alone_is_kept_from_commands() {
    let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
    let context = ThreadContext { kept_from_commands: vec!["API_KEY".to_owned()], ..context() };
    harness.bind_in("s1", context);
    handshake(&mut harness);
    for resume in [None, Some("T")] {
        harness.open("s1", resume);
        assert_eq!(harness.sent[0]["method"], "config/read");
        // What is given takes the place of the user's own rules: they are given again.
        let config = json!({ "config": { "shell_environment_policy": { "exclude": ["USERS_*"] } } });
        answer(&mut harness, "config/read", &config);
        let config = &harness.sent[0]["params"]["config"];
        assert_eq!(config, &json!({ "shell_environment_policy.exclude": ["API_KEY", "USERS_*"] }));
    }
    // Also where the thread has to be taken up on another connection.
    let in_force = json!({ "thread": { "id": "T", "status": { "type": "idle" } }, "model": "m" });
    answer(&mut harness, "thread/resume", &in_force);
    history(&mut harness, &json!([]), &Value::Null);
    reconnect_anywhere(&mut harness);
    let config = &harness.sent.last().expect("a frame")["params"]["config"];
    assert_eq!(config, &json!({ "shell_environment_policy.exclude": ["API_KEY", "USERS_*"] }));
}

fn reconnect_anywhere(harness: &mut Harness) {
    harness.disconnect();
    let sent = handshake(harness);
    assert!(sent.last().is_some_and(|line| line.contains("thread/resume")), "{sent:?}");
}

#[test]
fn a_configuration_that_cannot_be_read_or_is_too_long_holds_no_thread_up() {
    let long = json!({ "config": { "shell_environment_policy": { "exclude": ["x".repeat(9_000)] } } });
    for told in [Err("no"), Ok(long)] {
        let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
        let context = ThreadContext { kept_from_commands: vec!["API_KEY".to_owned()], ..context() };
        harness.bind_in("s1", context);
        handshake(&mut harness);
        harness.open("s1", None);
        let said = match told {
            Err(message) => refuse(&mut harness, "config/read", message),
            Ok(config) => answer(&mut harness, "config/read", &config),
        };
        assert!(said[0].contains("does not hold here"), "{said:?}");
        let config = &harness.sent[0]["params"]["config"];
        assert_eq!(config, &json!({ "shell_environment_policy.exclude": ["API_KEY"] }));
    }
}
