//! One test for each rule of the Claude adapter.

use crate::harness::{Harness, Life, select};
use mainstay_agents::{AgentKind, CannotTell, InHistory};
use mainstay_core::agent::Decision;
use mainstay_core::content::Answer;
use mainstay_core::work::Control;
use mainstay_core::{ControlId, SessionOptions};
use serde_json::{Value, json};

const THREAD: &str = "c-1";

/// A process that answered `initialize`, with its session bound.
pub(crate) fn connected() -> Harness {
    connected_in(Life::NewEachStep)
}

fn connected_in(life: Life) -> Harness {
    let mut harness = Harness::new(AgentKind::Claude, life);
    harness.conversation = Some(THREAD.to_owned());
    harness.bind("s1");
    harness.connect();
    let asked: Vec<&Value> = harness.sent.iter().map(|frame| &frame["request"]["subtype"]).collect();
    assert_eq!(asked, ["get_binary_version", "initialize"]);
    answered(&mut harness, "version", &json!({"version": "1.2.3"}));
    let models = json!([
        {"value": "default", "resolvedModel": "big[1m]"},
        {"value": "small", "resolvedModel": "small-1", "supportedEffortLevels": ["low"]},
    ]);
    let ready = answered(&mut harness, "initialize", &json!({"models": models, "commands": []}));
    assert!(ready[0].starts_with("all: Ready claude 1.2.3 resumable"), "{ready:?}");
    harness
}

/// With its conversation open.
pub(crate) fn open() -> Harness {
    let mut harness = connected();
    let lines = harness.open("s1", None);
    assert_eq!(lines, [format!("s1: ThreadOpened {THREAD}")]);
    harness
}

pub(crate) fn answered(harness: &mut Harness, id: &str, response: &Value) -> Vec<String> {
    let response = json!({"subtype": "success", "request_id": id, "response": response});
    harness.message(&json!({"type": "control_response", "response": response}))
}

pub(crate) fn refused(harness: &mut Harness, id: &str, error: &str) -> Vec<String> {
    let response = json!({"subtype": "error", "request_id": id, "error": error});
    harness.message(&json!({"type": "control_response", "response": response}))
}

pub(crate) fn system(harness: &mut Harness, subtype: &str, more: Value) -> Vec<String> {
    let mut line = more;
    line["type"] = json!("system");
    line["subtype"] = json!(subtype);
    harness.message(&line)
}

fn state(harness: &mut Harness, state: &str) -> Vec<String> {
    system(harness, "session_state_changed", json!({"state": state}))
}

pub(crate) fn init(harness: &mut Harness, turn: &str) -> Vec<String> {
    let line = json!({"uuid": turn, "session_id": THREAD, "model": "big[1m]", "permissionMode": "default"});
    system(harness, "init", line)
}

fn echo(harness: &mut Harness, uuid: &str) -> Vec<String> {
    let message = json!({"role": "user", "content": "words"});
    harness.message(&json!({"type": "user", "isReplay": true, "uuid": uuid, "message": message}))
}

pub(crate) fn result(harness: &mut Harness, more: Value) -> Vec<String> {
    let mut line = more;
    line["type"] = json!("result");
    if line["subtype"].is_null() {
        line["subtype"] = json!("success");
        line["stop_reason"] = json!("end_turn");
    }
    harness.message(&line)
}

/// Without what is the same in every test.
pub(crate) fn brief(lines: &[String]) -> Vec<String> {
    let brief = |line: &String| {
        let line = line.strip_prefix("s1: ").unwrap_or(line);
        line.split(" usage=").next().unwrap_or_default().to_owned()
    };
    lines
        .iter()
        .map(brief)
        .filter(|line| !line.starts_with("Options ") && !line.starts_with("send "))
        .collect()
}

fn control(harness: &mut Harness, id: &str, control: Control) -> Vec<String> {
    let decision = Decision::Control { id: ControlId::from(id), control };
    let lines = harness.tell("s1", &decision).expect("can be told");
    brief(&lines)
}

#[test]
fn a_message_is_shown_before_its_proof_and_taken_by_its_echo() {
    let mut harness = open();
    harness.start("s1", "m1", "words").expect("can be told");
    assert_eq!(harness.sent[0]["uuid"], "m1");
    state(&mut harness, "running");
    let begun = brief(&init(&mut harness, "t1"));
    assert_eq!(begun[0], "TurnStarted t1 Unknown -");
    assert!(begun[1].starts_with("ItemStarted message:m1 in t1 UserMessage"), "{begun:?}");
    assert_eq!(brief(&echo(&mut harness, "m1")), ["TurnStarted t1 Message m1", "InputTaken m1 ReplayEcho"]);
    assert!(echo(&mut harness, "m1").is_empty(), "a second echo says nothing");
    assert_eq!(brief(&result(&mut harness, json!({}))), ["TurnEnded t1 Completed EndTurn"]);
}

#[test]
fn only_one_input_is_with_the_agent() {
    let mut harness = open();
    harness.start("s1", "m1", "words").expect("can be told");
    assert_eq!(harness.start("s1", "m2", "more"), Err(CannotTell::InputUntaken("s1".into())));
    assert_eq!(harness.steer("s1", "t1", "m2", "more"), Err(CannotTell::InputUntaken("s1".into())));
}

#[test]
fn a_turn_that_nobody_else_caused_proves_its_message_without_an_echo() {
    let mut harness = open();
    harness.start("s1", "m1", "/cost").expect("can be told");
    init(&mut harness, "t1");
    let ended = brief(&result(&mut harness, json!({})));
    let expected =
        ["TurnStarted t1 Message m1", "InputTaken m1 SolePrompt", "TurnEnded t1 Completed EndTurn"];
    assert_eq!(ended, expected);
}

#[test]
fn a_turn_about_a_task_proves_nothing_about_a_message() {
    let mut harness = open();
    state(&mut harness, "running");
    system(&mut harness, "task_notification", json!({"task_id": "b1", "status": "completed"}));
    harness.start("s1", "m1", "words").expect("can be told");
    assert_eq!(brief(&init(&mut harness, "t1")), ["TurnStarted t1 Unknown -"]);
    let ended =
        brief(&result(&mut harness, json!({"origin": {"kind": "task-notification"}, "subtype": "success"})));
    assert_eq!(ended, ["TurnStarted t1 Task -", "TurnEnded t1 Completed EndTurn"]);
    init(&mut harness, "t2");
    assert_eq!(brief(&echo(&mut harness, "m1")), ["TurnStarted t2 Message m1", "InputTaken m1 ReplayEcho"]);
}

#[test]
fn a_turn_about_a_task_is_known_as_one_where_nothing_else_can_have_caused_it() {
    let mut harness = open();
    state(&mut harness, "running");
    system(&mut harness, "task_notification", json!({"task_id": "b1", "status": "completed"}));
    assert_eq!(brief(&init(&mut harness, "t1")), ["TurnStarted t1 Task -"]);
    result(&mut harness, json!({}));
    state(&mut harness, "idle");
    // Of a command that was stopped while the agent was idle: no turn comes of it.
    system(&mut harness, "task_notification", json!({"task_id": "b2", "status": "stopped"}));
    harness.start("s1", "m1", "words").expect("can be told");
    let begun = brief(&init(&mut harness, "t2"));
    assert_eq!(begun[0], "TurnStarted t2 Unknown -");
    assert!(begun[1].starts_with("ItemStarted message:m1 in t2"), "{begun:?}");
}

#[test]
fn a_message_echoed_between_two_turns_is_of_the_next() {
    let mut harness = open();
    harness.start("s1", "m1", "words").expect("can be told");
    state(&mut harness, "running");
    init(&mut harness, "t1");
    echo(&mut harness, "m1");
    harness.steer("s1", "t1", "m2", "more").expect("can be told");
    result(&mut harness, json!({}));
    assert!(echo(&mut harness, "m2").is_empty(), "not before its turn is known");
    assert_eq!(brief(&init(&mut harness, "t2")), ["TurnStarted t2 Message m2", "InputTaken m2 ReplayEcho"]);
}

#[test]
fn an_echo_without_a_turn_proves_a_message_that_the_agent_knew() {
    let mut harness = open();
    harness.start("s1", "m1", "words").expect("can be told");
    assert_eq!(brief(&echo(&mut harness, "m1")), ["InputTaken m1 ReplayEcho"]);
}

#[test]
fn a_stop_takes_back_what_waits_and_stops_what_runs() {
    let mut harness = open();
    harness.start("s1", "m1", "words").expect("can be told");
    init(&mut harness, "t1");
    echo(&mut harness, "m1");
    harness.steer("s1", "t1", "m2", "more").expect("can be told");
    harness.interrupt("s1", Some("t1"));
    assert_eq!(harness.sent[0]["request"], json!({"subtype": "cancel_async_message", "message_uuid": "m2"}));
    assert_eq!(harness.sent[1]["request"], json!({"subtype": "interrupt"}));
    let withdrawn = answered(&mut harness, "withdraw:m2", &json!({"cancelled": true}));
    assert_eq!(brief(&withdrawn), ["SteerRefused m2 TurnOver"]);
    let aborted = json!({"subtype": "error_during_execution", "is_error": true, "terminal_reason": "aborted_streaming"});
    assert_eq!(brief(&result(&mut harness, aborted)), ["TurnEnded t1 Cancelled Cancelled"]);
}

#[test]
fn a_stop_before_the_turn_takes_the_message_back_or_stops_its_turn() {
    let mut harness = open();
    harness.start("s1", "m1", "words").expect("can be told");
    harness.interrupt("s1", None);
    let withdrawn = answered(&mut harness, "withdraw:m1", &json!({"cancelled": true}));
    assert_eq!(brief(&withdrawn), ["InputAbsent m1"]);

    harness.start("s1", "m2", "words").expect("can be told");
    harness.interrupt("s1", None);
    assert!(answered(&mut harness, "withdraw:m2", &json!({"cancelled": false})).is_empty());
    init(&mut harness, "t1");
    assert_eq!(harness.sent[0]["request"]["subtype"], "interrupt", "the first one may have come too early");
}

#[test]
fn the_history_settles_what_is_in_doubt() {
    let mut harness = connected();
    harness.learn_history("s1", &[("m1", InHistory::There), ("m2", InHistory::NotThere)]);
    let lines = harness.open_with("s1", Some(THREAD), SessionOptions::default(), &["m1", "m2", "m3"]);
    let expected = [
        "InputTaken m1 History".to_owned(),
        "InputAbsent m2".to_owned(),
        "InputUnknown m3".to_owned(),
        format!("ThreadOpened {THREAD} resumed"),
    ];
    assert_eq!(brief(&lines), expected);
}

#[test]
fn settings_are_in_force_before_the_conversation_is_used() {
    let options = SessionOptions {
        mode: Some("plan".to_owned()),
        model: Some("small".to_owned()),
        effort: Some("low".to_owned()),
        ..SessionOptions::default()
    };
    let mut harness = connected();
    assert!(brief(&harness.open_with("s1", None, options.clone(), &[])).is_empty());
    let asked: Vec<&Value> = harness.sent.iter().map(|frame| &frame["request"]).collect();
    assert_eq!(asked[0], &json!({"subtype": "set_permission_mode", "mode": "plan"}));
    assert_eq!(asked[1], &json!({"subtype": "set_model", "model": "small"}));
    assert_eq!(asked[2], &json!({"subtype": "apply_flag_settings", "settings": {"effortLevel": "low"}}));
    answered(&mut harness, "set-mode", &json!({"mode": "plan"}));
    answered(&mut harness, "set-model", &Value::Null);
    let opened = answered(&mut harness, "set-effort", &json!({}));
    assert_eq!(brief(&opened), [format!("ThreadOpened {THREAD}")]);
    // The same again is not asked again; the name that it was asked for by stays.
    let decision = Decision::StartTurn {
        submission: "m1".into(),
        content: vec![mainstay_core::ContentBlock::text("words")],
        options,
    };
    harness.tell("s1", &decision).expect("can be told");
    assert_eq!(harness.sent.len(), 1);
    let line = json!({"uuid": "t1", "session_id": THREAD, "model": "small-1", "permissionMode": "plan"});
    let lines = system(&mut harness, "init", line);
    assert!(!lines.iter().any(|line| line.contains("Options")), "{lines:?}");
}

#[test]
fn a_conversation_in_another_mode_is_not_used() {
    let mode = |mode: &str| SessionOptions { mode: Some(mode.to_owned()), ..SessionOptions::default() };
    let mut harness = connected();
    let unknown = brief(&harness.open_with("s1", None, mode("no-such"), &[]));
    assert!(unknown[0].starts_with("ThreadRefused ") && unknown[0].contains("no-such"), "{unknown:?}");
    harness.open_with("s1", None, mode("bypassPermissions"), &[]);
    let no = brief(&refused(&mut harness, "set-mode", "not launched for it"));
    assert!(no[0].starts_with("ThreadRefused ") && no[0].contains("not launched for it"), "{no:?}");
    assert_eq!(harness.start("s1", "m1", "words"), Err(CannotTell::NoThread("s1".into())));
}

#[test]
fn another_conversation_than_the_process_was_started_for_is_refused() {
    let mut harness = connected();
    let lines = brief(&harness.open("s1", Some("c-2")));
    assert!(lines[0].starts_with("ThreadRefused ") && lines[0].contains("thread_missing"), "{lines:?}");
}

#[test]
fn what_is_offered_is_asked_for_again_without_a_conversation() {
    // What is told and not taken is in memory only.
    let mut harness = connected_in(Life::OneLife);
    assert!(harness.ask_catalogue());
    assert_eq!(harness.sent[0]["request"]["subtype"], "initialize");
    let models = json!([
        {"value": "default", "displayName": "Default", "supportedEffortLevels": ["low", "high"]},
        {"value": "small", "description": "fast"},
    ]);
    let answer = json!({"models": models, "account": {"tokenSource": "none"}});
    assert!(answered(&mut harness, "catalogue", &answer).is_empty());
    let catalogue = harness.catalogue().expect("told");
    let offered = catalogue.models.expect("listed");
    assert!(offered[0].default && offered[0].efforts == ["low", "high"], "{offered:?}");
    assert_eq!((offered[1].name.as_str(), offered[1].description.as_deref()), ("small", Some("fast")));
    assert_eq!(catalogue.account, Some(json!({"tokenSource": "none"})));
    assert_eq!(harness.catalogue(), None, "given once");
}

#[test]
fn options_are_set_and_confirmed() {
    let mut harness = open();
    let changed = SessionOptions { mode: Some("acceptEdits".to_owned()), ..SessionOptions::default() };
    let set = |changed: &SessionOptions| Control::SetOptions {
        options: Box::new(changed.clone()),
        changed: Box::new(changed.clone()),
    };
    assert!(control(&mut harness, "k1", set(&changed)).is_empty());
    let lines = answered(&mut harness, "set-mode", &json!({"mode": "acceptEdits"}));
    assert_eq!(brief(&lines), [r#"ControlEnded k1 {"state":"done"}"#]);
    assert!(lines[0].contains("acceptEdits"), "what it changed is said first: {lines:?}");
    assert_eq!(control(&mut harness, "k2", set(&changed)), [r#"ControlEnded k2 {"state":"done"}"#]);
    let unknown = SessionOptions { mode: Some("no-such".to_owned()), ..SessionOptions::default() };
    let lines = control(&mut harness, "k3", set(&unknown));
    assert!(lines[0].contains("refused") && harness.sent.is_empty(), "{lines:?}");
    let bypass = SessionOptions { mode: Some("bypassPermissions".to_owned()), ..SessionOptions::default() };
    control(&mut harness, "k4", set(&bypass));
    let lines = brief(&refused(&mut harness, "set-mode", "no"));
    assert!(
        lines.iter().any(|line| line.starts_with("ControlEnded k4") && line.contains("refused")),
        "{lines:?}"
    );
}

#[test]
fn one_answer_settles_one_change_of_a_setting() {
    let mut harness = open();
    let effort = |name: &str| SessionOptions { effort: Some(name.to_owned()), ..SessionOptions::default() };
    let set = |options: SessionOptions| Control::SetOptions {
        options: Box::new(options.clone()),
        changed: Box::new(options),
    };
    control(&mut harness, "k1", set(effort("low")));
    control(&mut harness, "k2", set(effort("medium")));
    control(&mut harness, "k3", set(effort("high")));
    let lines = brief(&refused(&mut harness, "set-effort", "no"));
    let ended = |lines: &[String]| -> Vec<String> {
        let of_control = |line: &&String| line.starts_with("ControlEnded");
        lines.iter().filter(of_control).map(|line| line.chars().take(15).collect()).collect()
    };
    assert_eq!(ended(&lines), ["ControlEnded k1"], "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("refused")), "{lines:?}");
    let lines = answered(&mut harness, "set-effort", &Value::Null);
    assert!(lines[0].contains("medium"), "what was answered is in force, not the newest wish: {lines:?}");
    assert_eq!(brief(&lines), [r#"ControlEnded k2 {"state":"done"}"#]);
    // The wish on its way still counts as asked for.
    assert_eq!(control(&mut harness, "k4", set(effort("high"))), [r#"ControlEnded k4 {"state":"done"}"#]);
    let lines = answered(&mut harness, "set-effort", &Value::Null);
    assert!(lines[0].contains("high"), "{lines:?}");
    assert_eq!(brief(&lines), [r#"ControlEnded k3 {"state":"done"}"#]);
}

#[test]
fn an_emptied_context_is_another_conversation() {
    let mut harness = open();
    control(&mut harness, "k1", Control::Clear);
    assert_eq!(harness.sent[0]["message"]["content"], "/clear");
    assert_eq!(harness.start("s1", "m1", "words"), Err(CannotTell::InputUntaken("s1".into())));
    let line = json!({"uuid": "t1", "session_id": "c-2", "model": "big[1m]", "permissionMode": "default"});
    let lines = brief(&system(&mut harness, "init", line));
    assert_eq!(
        lines,
        ["ThreadSwitched c-2", "TurnStarted t1 Unknown -", r#"ControlEnded k1 {"state":"done"}"#]
    );
    assert_eq!(brief(&result(&mut harness, json!({}))), ["TurnEnded t1 Completed EndTurn"]);
    harness.start("s1", "m1", "words").expect("can be told");
}

/// The simulator's seed 162: the turn of a task was taken for the command's, and the command's for the next message's.
#[test]
fn a_tasks_turn_and_a_messages_turn_are_not_the_commands() {
    let mut harness = open();
    let started = json!({"task_id": "b1", "task_type": "local_bash", "description": "sleep"});
    system(&mut harness, "task_started", started);
    control(&mut harness, "k1", Control::Clear);
    state(&mut harness, "running");
    system(&mut harness, "task_notification", json!({"task_id": "b1", "status": "completed"}));
    let init = |uuid: &str, session: &str| json!({"uuid": uuid, "session_id": session, "model": "big[1m]", "permissionMode": "default"});
    let lines = brief(&system(&mut harness, "init", init("t1", "c-1")));
    assert_eq!(lines, ["TurnStarted t1 Task -"]);
    result(&mut harness, json!({"origin": {"kind": "task-notification"}}));
    assert_eq!(harness.start("s1", "m1", "words"), Err(CannotTell::InputUntaken("s1".into())));
    let lines = brief(&system(&mut harness, "init", init("t2", "c-2")));
    assert_eq!(
        lines,
        ["ThreadSwitched c-2", "TurnStarted t2 Unknown -", r#"ControlEnded k1 {"state":"done"}"#]
    );
    result(&mut harness, json!({}));
    // And behind a message that is not taken.
    harness.start("s1", "m1", "words").expect("can be told");
    control(&mut harness, "k2", Control::Compact { instructions: None });
    let lines = brief(&system(&mut harness, "init", init("t3", "c-2")));
    assert!(lines.iter().all(|line| !line.starts_with("ControlEnded")), "{lines:?}");
    let lines = brief(&result(&mut harness, json!({})));
    assert!(lines.iter().any(|line| line.starts_with("InputTaken m1")), "{lines:?}");
    let lines = brief(&system(&mut harness, "status", json!({"status": "compacting", "uuid": "t4"})));
    assert_eq!(lines, ["TurnStarted t4 Unknown -", r#"ControlEnded k2 {"state":"done"}"#]);
}

#[test]
fn compaction_is_asked_for_in_the_agents_words_and_seen_to_begin() {
    let mut harness = open();
    control(&mut harness, "k1", Control::Compact { instructions: Some("the plan".to_owned()) });
    assert_eq!(harness.sent[0]["message"]["content"], "/compact the plan");
    let lines = brief(&system(&mut harness, "status", json!({"status": "compacting", "uuid": "t1"})));
    assert_eq!(lines, ["TurnStarted t1 Unknown -", r#"ControlEnded k1 {"state":"done"}"#]);
}

#[test]
fn one_task_is_stopped_by_its_id() {
    let mut harness = open();
    let started =
        json!({"task_id": "b1", "task_type": "local_bash", "description": "sleep", "tool_use_id": "toolu_1"});
    let lines = brief(&system(&mut harness, "task_started", started));
    assert!(lines[0].starts_with("TaskStarted b1 Shell"), "{lines:?}");
    control(&mut harness, "k1", Control::StopTask { key: "b1".into() });
    assert_eq!(harness.sent[0]["request"], json!({"subtype": "stop_task", "task_id": "b1"}));
    let over = json!({"task_id": "b1", "status": "stopped", "summary": "sleep"});
    let lines = brief(&system(&mut harness, "task_notification", over));
    assert!(lines[0].starts_with("TaskEnded b1 Stopped"), "{lines:?}");
    assert_eq!(
        brief(&answered(&mut harness, "control:k1", &json!({}))),
        [r#"ControlEnded k1 {"state":"done"}"#]
    );
}

fn can_use_tool(id: &str, tool: &str, input: &Value) -> Value {
    json!({"type": "control_request", "request_id": id, "request": {
        "subtype": "can_use_tool", "tool_name": tool, "input": input, "tool_use_id": format!("toolu_{id}"),
    }})
}

#[test]
fn an_allow_carries_the_input_and_is_confirmed_by_its_echo() {
    let mut harness = open();
    harness.message(&can_use_tool("r1", "Bash", &json!({"command": "ls"})));
    harness.answer("s1", "r1", select("allow"), Vec::new()).expect("is open");
    let sent = &harness.sent[0]["response"];
    assert_eq!(sent["response"], json!({"behavior": "allow", "updatedInput": {"command": "ls"}}));
    let echo = json!({"type": "control_response", "response": sent});
    assert_eq!(brief(&harness.message(&echo)), ["RequestSettled r1 confirmed"]);
    let late = harness.answer("s1", "r1", select("allow"), Vec::new());
    assert_eq!(late, Err(CannotTell::UnknownRequest("r1".to_owned())));
}

#[test]
fn an_answer_to_what_is_too_large_to_keep_asks_for_it_again() {
    let mut harness = open();
    let input = json!({"content": "x".repeat(30_000)});
    let asked = can_use_tool("r1", "Write", &input);
    harness.message(&asked);
    harness.answer("s1", "r1", select("allow"), Vec::new()).expect("is open");
    assert_eq!(harness.sent[0]["request"]["subtype"], "initialize");
    let response = json!({
        "subtype": "success", "request_id": "list-open", "response": {}, "pending_permission_requests": [asked],
    });
    let told = harness.message(&json!({"type": "control_response", "response": response}));
    assert!(brief(&told).is_empty(), "{told:?}");
    assert_eq!(harness.sent[0]["response"]["response"]["updatedInput"], input);

    harness.message(&can_use_tool("r2", "Write", &input));
    harness.answer("s1", "r2", select("allow"), Vec::new()).expect("is open");
    let gone = answered(&mut harness, "list-open", &json!({}));
    assert_eq!(brief(&gone), ["RequestSettled r2"], "withdrawn meanwhile");
}

#[test]
fn a_request_that_is_taken_back_is_settled_and_its_late_echo_says_nothing() {
    let mut harness = open();
    harness.message(&can_use_tool("r1", "Bash", &json!({"command": "ls"})));
    harness.answer("s1", "r1", select("deny"), Vec::new()).expect("is open");
    let sent = harness.sent[0].clone();
    assert_eq!(sent["response"]["response"]["behavior"], "deny");
    let back = harness.message(&json!({"type": "control_cancel_request", "request_id": "r1"}));
    assert_eq!(brief(&back), ["RequestSettled r1"]);
    assert!(harness.message(&sent).is_empty());
}

#[test]
fn a_denied_call_is_declined_and_a_cancelled_one_stops_the_turn() {
    let mut harness = open();
    harness.message(&can_use_tool("r1", "Bash", &json!({"command": "ls"})));
    let answer = Answer::Cancel { message: Some("not that".to_owned()) };
    harness.answer("s1", "r1", answer, Vec::new()).expect("is open");
    let sent = &harness.sent[0]["response"]["response"];
    assert_eq!(sent, &json!({"behavior": "deny", "message": "not that", "interrupt": true}));
    let block =
        json!({"type": "tool_result", "tool_use_id": "toolu_r1", "is_error": true, "content": "not that"});
    let lines = brief(&harness.message(&json!({"type": "user", "message": {"content": [block]}})));
    assert!(lines[0].contains("ToolCall Declined"), "{lines:?}");
}

#[test]
fn every_request_is_answered_also_those_of_kinds_that_are_not_known() {
    let mut harness = open();
    let mut asked = |request: Value| {
        harness.message(&json!({"type": "control_request", "request_id": "x", "request": request}));
        harness.sent[0]["response"].clone()
    };
    assert_eq!(asked(json!({"subtype": "hook_callback", "callback_id": "h"}))["response"], json!({}));
    let dialog = asked(json!({"subtype": "request_user_dialog"}));
    assert_eq!(dialog["response"], json!({"behavior": "cancelled"}));
    assert_eq!(asked(json!({"subtype": "of_tomorrow"}))["subtype"], "error");
}

#[test]
fn one_request_more_than_can_be_kept_is_denied() {
    let mut harness = open();
    for number in 0..32 {
        harness.message(&can_use_tool(&format!("r{number}"), "Bash", &json!({"command": "ls"})));
        assert!(harness.sent.is_empty());
    }
    harness.message(&can_use_tool("r32", "Bash", &json!({"command": "ls"})));
    assert_eq!(harness.sent[0]["response"]["response"]["behavior"], "deny");
}

/// As much as the bounds allow stays within what may be saved (the harness checks it after each step).
#[test]
fn the_state_is_bounded() {
    let mut harness = open();
    let long = |name: &str, number: usize| format!("{name}{number:0>width$}", width = 128 - name.len());
    for number in 0..40 {
        let id = long("r", number);
        let input = json!({"command": "x".repeat(700)});
        let mut asked = can_use_tool(&id, "Bash", &input);
        asked["request"]["tool_use_id"] = json!(long("toolu", number));
        harness.message(&asked);
    }
    for number in 0..100 {
        let (id, tool) = (long("b", number), long("toolu", number));
        let started =
            json!({"task_id": id, "task_type": "local_bash", "description": "d", "tool_use_id": tool});
        system(&mut harness, "task_started", started);
    }
    for number in 0..32 {
        harness.answer("s1", &long("r", number), select("deny"), Vec::new()).expect("is open");
    }
}

#[test]
fn streamed_text_changes_no_state_and_a_cut_message_is_incomplete() {
    let mut harness = open();
    harness.start("s1", "m1", "words").expect("can be told");
    init(&mut harness, "t1");
    let event = |event: Value| json!({"type": "stream_event", "event": event, "parent_tool_use_id": null});
    harness.message(&event(json!({"type": "message_start", "message": {"id": "msg_1"}})));
    let block = json!({"type": "text", "text": ""});
    harness.message(&event(json!({"type": "content_block_start", "index": 0, "content_block": block})));
    for piece in ["a", "ä", "\u{1f600}"] {
        let delta = json!({"type": "text_delta", "text": piece});
        let lines =
            harness.message(&event(json!({"type": "content_block_delta", "index": 0, "delta": delta})));
        assert!(lines[0].contains("ItemDelta msg_1.0"), "{lines:?}");
        assert!(harness.changed.is_empty(), "a delta changed {:?}", harness.changed);
    }
    let lines = brief(&result(&mut harness, json!({})));
    assert!(lines.contains(&"ItemCompleted msg_1.0 in t1 AgentMessage Incomplete".to_owned()), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("TurnEnded t1 Failed") && line.contains("network")));
}

#[test]
fn what_cannot_be_read_is_said() {
    let mut harness = open();
    let lines = harness.raw(b"no message");
    assert!(lines[0].contains("Notice Warning"), "{lines:?}");
    let lines = harness.message(&json!({"type": "of_tomorrow", "x": 1}));
    assert!(lines[0].contains("Unmodelled of_tomorrow"), "{lines:?}");
    assert!(harness.fragment(b"{\"type\":")[0].contains("cut off"));
    assert!(harness.oversize(70_000_000, b"{\"type\"")[0].contains("70000000 bytes"));
}
