//! One test for each rule of the ACP adapter.

use crate::harness::{Harness, Life, select};
use mainstay_agents::{AgentKind, CannotTell};
use mainstay_core::SessionOptions;
use mainstay_core::content::{Answer, OptionKind, PermissionOption};
use serde_json::{Value, json};

/// The capabilities of an agent that can resume.
fn resuming() -> Value {
    json!({ "loadSession": true, "sessionCapabilities": { "resume": {} } })
}

fn connected(capabilities: &Value) -> Harness {
    let mut harness = Harness::new(AgentKind::Acp, Life::NewEachStep);
    harness.bind("s1");
    harness.connect();
    let id = harness.sent_id("initialize");
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": {
        "protocolVersion": 1, "agentInfo": { "name": "a", "version": "1" }, "agentCapabilities": capabilities } });
    let said = harness.message(&answer);
    assert!(said.len() == 1 && said[0].starts_with("all: Ready a 1"), "{said:?}");
    harness
}

fn answer(harness: &mut Harness, method: &str, result: &Value) -> Vec<String> {
    let id = harness.sent_id(method);
    harness.message(&json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

fn refuse(harness: &mut Harness, method: &str, error: &Value) -> Vec<String> {
    let id = harness.sent_id(method);
    harness.message(&json!({ "jsonrpc": "2.0", "id": id, "error": error }))
}

fn update(update: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "T", "update": update } })
}

fn chunk(text: &str) -> Value {
    update(&json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } }))
}

fn kind_chunk(kind: &str, id: Option<&str>, text: &str) -> Value {
    let mut chunk = json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } });
    if let Some(id) = id {
        chunk["messageId"] = json!(id);
    }
    update(&chunk)
}

fn permission(id: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "sessionId": "T",
        "toolCall": { "toolCallId": "c1", "title": "touch x" },
        "options": [
            { "optionId": "always", "name": "Always", "kind": "allow_always" },
            { "optionId": "once", "name": "Once", "kind": "allow_once" },
            { "optionId": "odd", "name": "Odd", "kind": "allow_on_mondays" },
            { "optionId": "never", "name": "No", "kind": "reject_once" },
        ] } })
}

fn offered() -> Vec<PermissionOption> {
    let option = |id: &str, kind| PermissionOption { option_id: id.to_owned(), name: id.to_owned(), kind };
    vec![option("once", OptionKind::AllowOnce), option("never", OptionKind::RejectOnce)]
}

/// A session with the open thread T.
fn open() -> Harness {
    let mut harness = connected(&resuming());
    harness.open("s1", None);
    let said = answer(&mut harness, "session/new", &json!({ "sessionId": "T" }));
    assert_eq!(said, ["s1: Options {}", "s1: ThreadOpened T"]);
    harness
}

/// As [`open`], with the prompt m1 in flight; answers the id of its request.
fn prompting() -> (Harness, u64) {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    let id = harness.sent_id("session/prompt");
    (harness, id)
}

fn prompt_answer(id: u64, result: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

#[test]
fn the_handshake_offers_no_files_and_no_terminal() {
    let mut harness = Harness::new(AgentKind::Acp, Life::OneLife);
    harness.connect();
    let [frame] = harness.sent.as_slice() else { panic!("one frame, not {:?}", harness.sent) };
    assert_eq!(frame["params"]["protocolVersion"], 1);
    assert_eq!(
        frame["params"]["clientCapabilities"],
        json!({ "fs": { "readTextFile": false, "writeTextFile": false }, "terminal": false })
    );
}

#[test]
fn an_agent_says_whether_it_can_take_a_conversation_up_again() {
    for (capabilities, resumable) in [
        (resuming(), "resumable"),
        (json!({ "loadSession": true }), "resumable"),
        (json!({ "loadSession": false, "sessionCapabilities": { "resume": {} } }), "resumable"),
        (json!({ "loadSession": false, "sessionCapabilities": { "resume": null } }), "not resumable"),
        (json!({}), "not resumable"),
    ] {
        let mut harness = Harness::new(AgentKind::Acp, Life::NewEachStep);
        harness.connect();
        let result = json!({ "protocolVersion": 1, "agentInfo": { "name": "a", "version": "1" },
                             "agentCapabilities": capabilities });
        let said = answer(&mut harness, "initialize", &result);
        assert_eq!(said, [format!("all: Ready a 1 {resumable}")], "{capabilities}");
    }
}

#[test]
fn nothing_can_be_told_before_the_handshake_and_after_the_end() {
    let mut harness = Harness::new(AgentKind::Acp, Life::NewEachStep);
    harness.bind("s1");
    let open = mainstay_core::Decision::OpenThread {
        resume: None,
        options: SessionOptions::default(),
        doubtful: Vec::new(),
        fork: None,
    };
    assert_eq!(harness.tell("s1", &open), Err(CannotTell::NotConnected));
    harness.connect();
    assert_eq!(harness.tell("s1", &open), Err(CannotTell::NotConnected));
    assert_eq!(harness.tell("s9", &open), Err(CannotTell::UnknownSession("s9".into())));
    let mut harness = self::open();
    harness.disconnect();
    assert_eq!(harness.start("s1", "m1", "hello"), Err(CannotTell::NotConnected));
}

#[test]
fn an_agent_of_another_version_gets_no_thread_and_the_session_is_told_why() {
    let mut harness = Harness::new(AgentKind::Acp, Life::NewEachStep);
    harness.bind("s1");
    harness.connect();
    let said = answer(&mut harness, "initialize", &json!({ "protocolVersion": 2 }));
    assert_eq!(said[1], "all: Ready  ");
    let said = harness.open("s1", None);
    assert_eq!(said.len(), 1);
    assert!(said[0].starts_with("s1: ThreadRefused") && said[0].contains("version 1"), "{said:?}");
}

#[test]
fn a_prompt_is_taken_at_the_first_update_that_belongs_to_it() {
    let (mut harness, id) = prompting();
    // Out of any turn: no proof.
    for (message, said) in [
        (update(&json!({ "sessionUpdate": "usage_update", "used": 1 })), r#"s1: Usage {"used":1}"#),
        (
            update(&json!({ "sessionUpdate": "available_commands_update", "availableCommands": [] })),
            "s1: Commands []",
        ),
        (
            update(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "plan" })),
            r#"s1: Options {"mode":"plan"}"#,
        ),
    ] {
        assert_eq!(harness.message(&message), [said]);
    }
    let late =
        update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "old", "status": "completed" }));
    assert_eq!(
        harness.message(&late),
        [r#"s1: ItemCompleted old in - ToolCall Completed status="completed""#]
    );
    assert_eq!(
        harness.message(&chunk("hel")),
        [
            "s1: TurnStarted p.m1 Message m1",
            "s1: InputTaken m1 SolePrompt",
            r#"s1: ItemDelta p.m1.m1 in p.m1 AgentMessage "hel""#,
        ]
    );
    assert_eq!(harness.message(&chunk("lo")), [r#"s1: ItemDelta p.m1.m1 in p.m1 AgentMessage "lo""#]);
    assert_eq!(
        harness
            .message(&prompt_answer(id, &json!({ "stopReason": "end_turn", "usage": { "totalTokens": 3 } }))),
        [
            "s1: ItemCompleted p.m1.m1 in p.m1 AgentMessage Completed",
            r#"s1: TurnEnded p.m1 Completed EndTurn usage={"totalTokens":3}"#,
        ]
    );
}

#[test]
fn each_kind_of_first_update_proves_the_prompt() {
    for first in [
        kind_chunk("agent_thought_chunk", None, "hm"),
        update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "t" })),
        update(&json!({ "sessionUpdate": "plan", "entries": [] })),
        permission(&json!(0)),
    ] {
        let (mut harness, _) = prompting();
        let said = harness.message(&first);
        assert_eq!(said[..2], ["s1: TurnStarted p.m1 Message m1", "s1: InputTaken m1 SolePrompt"], "{first}");
    }
}

#[test]
fn an_answer_without_any_update_proves_the_prompt_and_ends_it() {
    for (result, ended) in [
        (json!({ "stopReason": "end_turn" }), "Completed EndTurn"),
        (json!({ "stopReason": "max_tokens" }), "Limit MaxTokens"),
        (json!({ "stopReason": "max_turn_requests" }), "Limit MaxTurnRequests"),
        (json!({ "stopReason": "refusal" }), "Refused Refusal"),
        (json!({ "stopReason": "cancelled" }), "Cancelled Cancelled"),
    ] {
        let (mut harness, id) = prompting();
        assert_eq!(
            harness.message(&prompt_answer(id, &result)),
            [
                "s1: TurnStarted p.m1 Message m1".to_owned(),
                "s1: InputTaken m1 SolePrompt".to_owned(),
                format!("s1: TurnEnded p.m1 {ended}"),
            ]
        );
    }
}

#[test]
fn an_unknown_stop_reason_is_a_failure_that_keeps_the_word() {
    let (mut harness, id) = prompting();
    let said = harness.message(&prompt_answer(id, &json!({ "stopReason": "tired" })));
    assert!(said[2].starts_with("s1: TurnEnded p.m1 Failed - ") && said[2].contains("tired"), "{said:?}");
    assert!(said[2].contains(r#""code":"protocol""#), "{said:?}");
}

#[test]
fn an_error_answer_ends_the_turn_and_asks_for_sign_in_by_its_code() {
    for (code, word) in [(-32603, "provider"), (400, "provider"), (-32000, "sign_in")] {
        let (mut harness, id) = prompting();
        harness.message(&chunk("partial"));
        let error =
            json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": "mock failure" } });
        let said = harness.message(&error);
        assert_eq!(said[0], "s1: ItemCompleted p.m1.m1 in p.m1 AgentMessage Incomplete");
        assert!(said[1].starts_with("s1: TurnEnded p.m1 Failed - "), "{said:?}");
        assert!(
            said[1].contains(&format!(r#""code":"{word}""#)) && said[1].contains("mock failure"),
            "{said:?}"
        );
    }
}

#[test]
fn a_second_prompt_waits() {
    let (mut harness, id) = prompting();
    assert_eq!(harness.start("s1", "m2", "more"), Err(CannotTell::InputUntaken("s1".into())));
    harness.message(&chunk("x"));
    assert_eq!(harness.start("s1", "m2", "more"), Err(CannotTell::InputUntaken("s1".into())));
    harness.message(&prompt_answer(id, &json!({ "stopReason": "end_turn" })));
    let sent = harness.start("s1", "m2", "more").expect("can be told");
    assert!(sent[0].starts_with("send carries m2 "), "{sent:?}");
}

#[test]
fn messages_without_ids_are_put_together_by_order() {
    let (mut harness, _) = prompting();
    harness.message(&kind_chunk("agent_thought_chunk", None, "think"));
    assert_eq!(
        harness.message(&chunk("a")),
        [
            "s1: ItemCompleted p.m1.m1 in p.m1 AgentThought Completed",
            r#"s1: ItemDelta p.m1.m2 in p.m1 AgentMessage "a""#,
        ]
    );
    let call =
        update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": "t", "kind": "execute" }));
    assert_eq!(
        harness.message(&call),
        [
            "s1: ItemCompleted p.m1.m2 in p.m1 AgentMessage Completed",
            r#"s1: ItemStarted c in p.m1 ToolCall title="t" tool_kind="execute""#,
        ]
    );
    assert_eq!(harness.message(&chunk("b")), [r#"s1: ItemDelta p.m1.m3 in p.m1 AgentMessage "b""#]);
}

#[test]
fn messages_with_ids_go_on_over_tool_calls_and_end_with_the_turn() {
    let (mut harness, id) = prompting();
    harness.message(&kind_chunk("agent_thought_chunk", Some("M"), "t"));
    assert_eq!(
        harness.message(&kind_chunk("agent_message_chunk", Some("M"), "a")),
        [r#"s1: ItemDelta M in p.m1 AgentMessage "a""#],
        "a thought and a message may share an id"
    );
    harness.message(&update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "c" })));
    assert_eq!(
        harness.message(&kind_chunk("agent_message_chunk", Some("M"), "b")),
        [r#"s1: ItemDelta M in p.m1 AgentMessage "b""#]
    );
    let said = harness.message(&prompt_answer(id, &json!({ "stopReason": "cancelled" })));
    assert_eq!(
        said[..2],
        [
            "s1: ItemCompleted thought:M in p.m1 AgentThought Incomplete",
            "s1: ItemCompleted M in p.m1 AgentMessage Incomplete",
        ]
    );
}

#[test]
fn streamed_text_changes_no_state() {
    for id in [None, Some("M")] {
        let (mut harness, _) = prompting();
        harness.message(&kind_chunk("agent_message_chunk", id, "a"));
        assert!(!harness.changed.is_empty(), "the first chunk begins the turn");
        harness.message(&kind_chunk("agent_message_chunk", id, "b"));
        assert_eq!(harness.changed, Vec::<String>::new());
    }
}

#[test]
fn the_agents_echo_of_our_prompt_is_dropped_and_another_clients_message_is_shown() {
    let (mut harness, id) = prompting();
    assert_eq!(harness.message(&kind_chunk("user_message_chunk", None, "hello")), Vec::<String>::new());
    harness.message(&prompt_answer(id, &json!({ "stopReason": "end_turn" })));
    assert_eq!(
        harness.message(&kind_chunk("user_message_chunk", Some("U"), "from elsewhere")),
        [r#"s1: ItemDelta user:U in - UserMessage "from elsewhere""#]
    );
}

#[test]
fn work_outside_a_turn_is_shown_in_no_turn_and_ends_before_the_next() {
    let mut harness = open();
    assert_eq!(
        harness.message(&chunk("background")),
        [r#"s1: ItemDelta b1000.m1 in - AgentMessage "background""#]
    );
    harness.start("s1", "m1", "hello").expect("can be told");
    assert_eq!(
        harness.message(&kind_chunk("agent_message_chunk", None, "answer")),
        [
            "s1: ItemCompleted b1000.m1 in - AgentMessage Completed",
            "s1: TurnStarted p.m1 Message m1",
            "s1: InputTaken m1 SolePrompt",
            r#"s1: ItemDelta p.m1.m2 in p.m1 AgentMessage "answer""#,
        ]
    );
}

#[test]
fn a_block_that_is_no_text_is_an_item_of_its_own() {
    let (mut harness, _) = prompting();
    harness.message(&chunk("see"));
    let image = update(
        &json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "image", "data": "AA==" } }),
    );
    assert_eq!(
        harness.message(&image),
        [
            "s1: ItemCompleted p.m1.m1 in p.m1 AgentMessage Completed".to_owned(),
            r#"s1: ItemCompleted p.m1.m2 in p.m1 AgentMessage Completed content=[{"data":"AA==","type":"image"}]"#.to_owned(),
        ]
    );
}

#[test]
fn tools_begin_with_their_first_word_and_end_with_a_final_status() {
    let (mut harness, _) = prompting();
    harness.message(&chunk("x"));
    let said = harness.message(&update(&json!({
        "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "in_progress", "kind": "teleport",
        "rawInput": { "a": 1 }, "locations": [{ "path": "/f" }], "content": null })));
    assert_eq!(
        said[1],
        r#"s1: ItemStarted c in p.m1 ToolCall locations=[{"path":"/f"}] provider_type="teleport" raw_input={"a":1} status="in_progress" tool_kind="other""#
    );
    let said = harness.message(&update(&json!({
        "sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "failed", "rawOutput": "no" })));
    assert_eq!(said, [r#"s1: ItemCompleted c in p.m1 ToolCall Failed raw_output="no" status="failed""#]);
}

#[test]
fn permissions_are_asked_and_answered_by_kind() {
    let ask = |id: &Value| {
        let (mut harness, _) = prompting();
        let said = harness.message(&permission(id));
        (harness, said)
    };
    let (mut harness, said) = ask(&json!("x\"1"));
    assert!(
        said[2].starts_with(
            r#"s1: RequestOpened "x\"1" in p.m1 on c1 Approval "touch x" [always/AllowAlways/"Always" once/AllowOnce/"Once" odd/Other/"Odd" never/RejectOnce/"No"]"#
        ),
        "{said:?}"
    );
    let sent = harness.answer("s1", r#""x\"1""#, select("odd"), offered()).expect("is open");
    assert_eq!(
        sent,
        [
            r#"send {"id":"x\"1","jsonrpc":"2.0","result":{"outcome":{"optionId":"odd","outcome":"selected"}}}"#
        ]
    );
    assert_eq!(
        harness.answer("s1", r#""x\"1""#, select("odd"), offered()),
        Err(CannotTell::UnknownRequest(r#""x\"1""#.to_owned())),
        "an answer is given once"
    );
    let cancelled = r#"send {"id":7,"jsonrpc":"2.0","result":{"outcome":{"outcome":"cancelled"}}}"#;
    for (answer, options, sent) in [
        (
            Answer::Decline { message: None },
            offered(),
            r#"send {"id":7,"jsonrpc":"2.0","result":{"outcome":{"optionId":"never","outcome":"selected"}}}"#,
        ),
        (Answer::Decline { message: None }, Vec::new(), cancelled),
        (Answer::Cancel { message: None }, offered(), cancelled),
    ] {
        let (mut harness, _) = ask(&json!(7));
        assert_eq!(harness.answer("s1", "7", answer, options).expect("is open"), [sent]);
    }
}

#[test]
fn a_stop_cancels_the_turn_and_its_permissions_ahead_of_everything() {
    let (mut harness, id) = prompting();
    harness.message(&permission(&json!(7)));
    assert_eq!(
        harness.interrupt("s1", Some("p.m1")),
        [
            r#"send urgent {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"T"}}"#,
            r#"send urgent {"id":7,"jsonrpc":"2.0","result":{"outcome":{"outcome":"cancelled"}}}"#,
        ]
    );
    let said = harness.message(&permission(&json!(8)));
    assert!(said[0].starts_with("s1: Notice Info"), "{said:?}");
    assert_eq!(
        said[1],
        r#"send urgent {"id":8,"jsonrpc":"2.0","result":{"outcome":{"outcome":"cancelled"}}}"#
    );
    assert_eq!(
        harness.message(&prompt_answer(id, &json!({ "stopReason": "cancelled" }))),
        ["s1: TurnEnded p.m1 Cancelled Cancelled"]
    );
}

#[test]
fn a_stop_that_overtook_its_prompt_is_said_again_when_the_turn_shows() {
    let (mut harness, _) = prompting();
    let cancel = r#"send urgent {"jsonrpc":"2.0","method":"session/cancel","params":{"sessionId":"T"}}"#;
    assert_eq!(harness.interrupt("s1", None), [cancel]);
    let said = harness.message(&chunk("x"));
    assert_eq!(said.last().map(String::as_str), Some(cancel));
    assert!(!harness.message(&chunk("y")).contains(&cancel.to_owned()), "once is enough");
}

#[test]
fn a_turn_that_ends_without_our_answer_leaves_no_request_open() {
    let (mut harness, id) = prompting();
    harness.message(&permission(&json!(7)));
    let said = harness.message(&prompt_answer(id, &json!({ "stopReason": "end_turn" })));
    assert_eq!(
        said,
        [
            "s1: TurnEnded p.m1 Completed EndTurn",
            r#"send {"id":7,"jsonrpc":"2.0","result":{"outcome":{"outcome":"cancelled"}}}"#,
        ]
    );
    assert!(harness.answer("s1", "7", select("once"), offered()).is_err());
}

#[test]
fn a_request_that_the_agent_takes_back_is_settled_unconfirmed() {
    let (mut harness, _) = prompting();
    harness.message(&permission(&json!("q")));
    let withdrawn = json!({ "jsonrpc": "2.0", "method": "$/cancel_request", "params": { "requestId": "q" } });
    assert_eq!(
        harness.message(&withdrawn),
        [
            r#"s1: RequestSettled "q""#,
            r#"send {"error":{"code":-32800,"message":"cancelled"},"id":"q","jsonrpc":"2.0"}"#,
        ]
    );
    assert_eq!(harness.message(&withdrawn), Vec::<String>::new());
}

#[test]
fn what_is_not_offered_is_refused_and_what_is_unknown_is_shown() {
    let mut harness = open();
    for method in ["fs/read_text_file", "terminal/create", "_own/thing"] {
        let said = harness.message(&json!({ "jsonrpc": "2.0", "id": 3, "method": method, "params": {} }));
        assert!(said[0].starts_with(&format!("all: Unmodelled {method}")), "{said:?}");
        assert!(said[1].contains("-32601"), "{said:?}");
    }
    let said = harness.message(&json!({ "jsonrpc": "2.0", "method": "_own/notification", "params": {} }));
    assert!(said[0].starts_with("all: Unmodelled _own/notification"), "{said:?}");
    let said = harness.message(&update(&json!({ "sessionUpdate": "cursor_update", "x": 1 })));
    assert!(said[0].starts_with("s1: Unmodelled session/update cursor_update"), "{said:?}");
    let said = harness.message(&json!({ "jsonrpc": "2.0", "id": 99, "result": {} }));
    assert!(said[0].starts_with("all: Unmodelled answer"), "{said:?}");
}

#[test]
fn unreadable_output_is_a_bounded_notice() {
    let mut harness = open();
    let line = "Ripgrep is not available. ".repeat(100);
    for said in [
        harness.raw(line.as_bytes()),
        harness.fragment(line.as_bytes()),
        harness.oversize(9, line.as_bytes()),
    ] {
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("all: Notice Warning") && said[0].contains("Ripgrep"), "{said:?}");
        assert!(said[0].len() < 400, "{said:?}");
    }
}

#[test]
fn updates_about_a_thread_that_is_being_made_wait_for_its_name() {
    let mut harness = connected(&resuming());
    harness.open("s1", None);
    let commands =
        update(&json!({ "sessionUpdate": "available_commands_update", "availableCommands": ["a"] }));
    let id = harness.sent_id("session/new");
    assert_eq!(harness.message(&commands), Vec::<String>::new());
    let named = json!({ "jsonrpc": "2.0", "id": id, "result": { "sessionId": "T" } });
    assert_eq!(harness.message(&named), ["s1: Options {}", "s1: ThreadOpened T", r#"s1: Commands ["a"]"#]);
}

#[test]
fn other_threads_are_shown_only_where_one_session_is_bound() {
    let mut harness = open();
    let other = json!({ "jsonrpc": "2.0", "method": "session/update", "params": {
        "sessionId": "other", "update": { "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "x" } } } });
    assert!(harness.message(&other)[0].starts_with("all: Unmodelled session/update"));
    harness.bind("s2");
    assert_eq!(harness.message(&other), Vec::<String>::new());
    let ask = json!({ "jsonrpc": "2.0", "id": 5, "method": "session/request_permission", "params": { "sessionId": "other" } });
    let said = harness.message(&ask);
    assert!(said[0].contains("-32602"), "never left unanswered: {said:?}");
}

#[test]
fn resuming_is_preferred_to_loading_and_a_load_is_muted() {
    let mut harness = connected(&resuming());
    let sent = harness.open("s1", Some("T"));
    assert!(sent[0].contains("session/resume"), "{sent:?}");
    let mut harness = connected(&json!({ "loadSession": true }));
    harness.open("s1", Some("T"));
    let id = harness.sent_id("session/load");
    for replayed in [
        kind_chunk("user_message_chunk", None, "old prompt"),
        chunk("old answer"),
        update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "c" })),
        update(&json!({ "sessionUpdate": "plan", "entries": [] })),
        update(&json!({ "sessionUpdate": "notice", "title": "old" })),
    ] {
        assert_eq!(harness.message(&replayed), Vec::<String>::new());
    }
    let usage = update(&json!({ "sessionUpdate": "usage_update", "used": 5 }));
    assert_eq!(harness.message(&usage), [r#"s1: Usage {"used":5}"#], "what stands is not history");
    let said = harness.message(&json!({ "jsonrpc": "2.0", "id": id, "result": null }));
    assert_eq!(said, ["s1: Options {}", "s1: ThreadOpened T resumed"]);
    assert_eq!(harness.message(&chunk("new")).len(), 1);
}

#[test]
fn an_agent_that_cannot_resume_says_that_the_thread_is_missing() {
    let mut harness = connected(&json!({}));
    let said = harness.open("s1", Some("T"));
    assert!(said[0].starts_with("s1: ThreadRefused") && said[0].contains("thread_missing"), "{said:?}");
}

#[test]
fn refused_threads_are_classified_by_what_was_asked() {
    let writer = json!({ "code": -32600, "message": "in use", "data": { "reason": "thread_active_writer" } });
    let old_writer = json!({ "code": -32603, "message": "Internal error", "data": { "details": "thread x already has an active writer" } });
    for (resume, error, code) in [
        (None, json!({ "code": -32000, "message": "sign in" }), "sign_in"),
        (None, json!({ "code": -32602, "message": "cwd" }), "agent_refused"),
        (Some("T"), json!({ "code": -32000, "message": "sign in" }), "sign_in"),
        (Some("T"), json!({ "code": -32002, "message": "not found" }), "thread_missing"),
        (Some("T"), json!({ "code": -32603, "message": "Internal error" }), "thread_missing"),
        (Some("T"), writer, "active_writer"),
        (Some("T"), old_writer, "active_writer"),
        (Some("T"), json!({ "code": 7, "message": "odd" }), "agent_refused"),
    ] {
        let mut harness = connected(&resuming());
        harness.open("s1", resume);
        let said =
            refuse(&mut harness, if resume.is_some() { "session/resume" } else { "session/new" }, &error);
        assert!(said[0].starts_with("s1: ThreadRefused"), "{said:?}");
        assert!(said[0].contains(&format!(r#""code":"{code}""#)), "{error}: {said:?}");
    }
}

#[test]
fn the_mode_is_set_before_the_thread_is_said_to_be_open() {
    let wanted = SessionOptions { mode: Some("default".to_owned()), ..SessionOptions::default() };
    let modes = |current: &str| json!({ "sessionId": "T", "modes": { "currentModeId": current, "availableModes": [] } });
    let opened = ["s1: Options {\"mode\":\"default\"}", "s1: ThreadOpened T"];

    let mut harness = connected(&resuming());
    harness.open_with("s1", None, wanted.clone(), &[]);
    let sent = answer(&mut harness, "session/new", &modes("auto"));
    assert_eq!(
        sent,
        [
            r#"send {"id":2,"jsonrpc":"2.0","method":"session/set_mode","params":{"modeId":"default","sessionId":"T"}}"#
        ]
    );
    assert_eq!(harness.start("s1", "m1", "x"), Err(CannotTell::NoThread("s1".into())));
    // The failed decision left no frames to look up: the id is the one above.
    assert_eq!(harness.message(&json!({ "jsonrpc": "2.0", "id": 2, "result": {} })), opened);

    let mut harness = connected(&resuming());
    harness.open_with("s1", None, wanted.clone(), &[]);
    assert_eq!(answer(&mut harness, "session/new", &modes("default")), opened, "nothing to set");

    let mut harness = connected(&resuming());
    harness.open_with("s1", None, wanted.clone(), &[]);
    answer(&mut harness, "session/new", &modes("auto"));
    let said =
        refuse(&mut harness, "session/set_mode", &json!({ "code": -32603, "message": "Invalid Mode" }));
    assert!(said[0].starts_with("s1: ThreadRefused") && said[0].contains("Invalid Mode"), "{said:?}");

    let mut harness = connected(&resuming());
    harness.open_with("s1", None, wanted, &[]);
    let said = answer(&mut harness, "session/new", &json!({ "sessionId": "T" }));
    assert!(said[0].starts_with("s1: Notice Warning"), "{said:?}");
    assert!(said.last().is_some_and(|last| last == "s1: ThreadOpened T"), "{said:?}");
}

#[test]
fn settings_without_modes_go_through_config_options() {
    let wanted = SessionOptions {
        mode: Some("plan".to_owned()),
        model: Some("big".to_owned()),
        ..SessionOptions::default()
    };
    let result = json!({ "sessionId": "T", "configOptions": [
        { "id": "agent-mode", "category": "mode", "currentValue": "build" },
        { "id": "the-model", "category": "model", "currentValue": "small" } ] });
    let mut harness = connected(&resuming());
    harness.open_with("s1", None, wanted, &[]);
    answer(&mut harness, "session/new", &result);
    assert_eq!(
        harness.sent[0]["params"],
        json!({ "sessionId": "T", "configId": "agent-mode", "value": "plan" })
    );
    answer(&mut harness, "session/set_config_option", &json!({}));
    assert_eq!(
        harness.sent[0]["params"],
        json!({ "sessionId": "T", "configId": "the-model", "value": "big" })
    );
    let said = refuse(
        &mut harness,
        "session/set_config_option",
        &json!({ "code": -32603, "message": "no such model" }),
    );
    assert!(said[0].contains("no such model"), "{said:?}");
    assert_eq!(said[1], r#"s1: Options {"mode":"plan","model":"small"}"#);
}

#[test]
fn a_disconnect_voids_what_was_in_flight() {
    let (mut harness, _) = prompting();
    harness.message(&permission(&json!(7)));
    assert_eq!(harness.disconnect(), Vec::<String>::new());
    harness.connect();
    let id = harness.sent_id("initialize");
    harness.message(&json!({ "jsonrpc": "2.0", "id": id, "result": { "protocolVersion": 1 } }));
    assert_eq!(harness.start("s1", "m2", "x"), Err(CannotTell::NoThread("s1".into())));
    assert!(harness.answer("s1", "7", select("once"), offered()).is_err());
}

#[test]
fn an_unreadable_state_is_left_out() {
    let mut adapter = mainstay_agents::adapter(AgentKind::Acp);
    assert!(!adapter.restore("connection", b"{}x"));
    assert!(!adapter.restore("thread:s1", b"[]"));
    assert!(!adapter.restore("elsewhere", b"{}"));
    assert!(adapter.changes().is_empty());
}

#[test]
fn sessions_of_one_process_are_kept_apart() {
    let mut harness = open();
    harness.bind("s2");
    harness.open("s2", None);
    answer(&mut harness, "session/new", &json!({ "sessionId": "T2" }));
    harness.start("s1", "m1", "one").expect("can be told");
    harness.start("s2", "m2", "two").expect("can be told");
    let mut second = chunk("x");
    second["params"]["sessionId"] = json!("T2");
    assert_eq!(harness.message(&second)[0], "s2: TurnStarted p.m2 Message m2");
    assert_eq!(harness.message(&chunk("y"))[0], "s1: TurnStarted p.m1 Message m1");
    harness.message(&permission(&json!(1)));
    assert!(
        harness.answer("s2", "1", select("once"), offered()).is_err(),
        "it is the other session's request"
    );
}

#[test]
fn open_requests_and_their_ids_are_bounded() {
    let (mut harness, _) = prompting();
    for id in 0..32 {
        assert!(harness.message(&permission(&json!(id))).iter().any(|line| line.contains("RequestOpened")));
    }
    let said = harness.message(&permission(&json!(32)));
    assert!(said[0].starts_with("s1: Notice") && said[1].contains("cancelled"), "{said:?}");
    let (mut harness, _) = prompting();
    let said = harness.message(&permission(&json!("x".repeat(300))));
    assert!(said.iter().all(|line| !line.contains("RequestOpened")), "{said:?}");
    assert!(said.iter().any(|line| line.contains("-32602")), "{said:?}");
}

#[test]
fn open_messages_are_bounded() {
    let (mut harness, _) = prompting();
    for number in 0..64 {
        harness.message(&kind_chunk("agent_message_chunk", Some(&format!("M{number}")), "a"));
    }
    let said = harness.message(&kind_chunk("agent_message_chunk", Some("M64"), "a"));
    assert_eq!(said[0], "s1: ItemCompleted M0 in p.m1 AgentMessage Completed");
    let long = "M".repeat(300);
    let said = harness.message(&kind_chunk("agent_message_chunk", Some(&long), "a"));
    assert!(said[0].starts_with("s1: ItemDelta p.m1.m1 "), "too long an id is none: {said:?}");
}
