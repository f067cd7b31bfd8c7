//! What is asked beside messages: settings, goals, compaction, reviews, commands, going back, branching, leaving.

use crate::codex_bench::*;
use crate::harness::{Harness, Life, context};
use mainstay_agents::{AgentKind, ThreadContext};
use mainstay_core::work::{Control, ForkPoint, HistoryPoint};
use mainstay_core::{Decision, SessionOptions};
use serde_json::{Value, json};

const DONE: &str = r#"s1: ControlEnded k1 {"state":"done"}"#;

fn settings(model: &str) -> Value {
    event(
        "thread/settings/updated",
        json!({ "threadSettings": { "model": model, "approvalPolicy": "on-request",
        "sandboxPolicy": { "type": "workspaceWrite" }, "effort": "high" } }),
    )
}

fn set_options(changed: SessionOptions) -> Control {
    Control::SetOptions { options: Box::new(changed.clone()), changed: Box::new(changed) }
}

fn model(name: &str) -> SessionOptions {
    SessionOptions { model: Some(name.to_owned()), ..SessionOptions::default() }
}

#[test]
fn options_are_confirmed_by_what_the_server_has_in_force() {
    let mut harness = open();
    harness.control("s1", "k1", set_options(model("big")));
    assert_eq!(harness.sent[0]["method"], "thread/settings/update");
    assert_eq!(harness.sent[0]["params"], json!({ "threadId": "T", "model": "big" }));
    assert_eq!(answer(&mut harness, "thread/settings/update", &json!({})), Vec::<String>::new(), "accepted");
    let said = harness.message(&settings("big"));
    assert!(said[0].starts_with("s1: Options") && said[0].contains(r#""model":"big""#), "{said:?}");
    assert_eq!(said[1], DONE);

    let mut harness = open();
    harness.control("s1", "k1", set_options(model("big")));
    answer(&mut harness, "thread/settings/update", &json!({}));
    let said = harness.message(&settings("small"));
    assert!(
        said[1].starts_with(r#"s1: ControlEnded k1 {"failure""#) && said[1].contains("refused"),
        "{said:?}"
    );

    let mut harness = open();
    harness.control("s1", "k1", set_options(model("big")));
    let said = refuse(&mut harness, "thread/settings/update", "no");
    assert!(said[0].contains("ControlEnded k1") && said[0].contains("refused"), "{said:?}");
}

#[test]
fn options_of_which_nothing_changes_need_no_further_word() {
    let mut harness = open();
    harness.message(&settings("big"));
    harness.control("s1", "k1", set_options(model("big")));
    assert_eq!(answer(&mut harness, "thread/settings/update", &json!({})), [DONE]);
}

#[test]
fn every_option_has_its_word_and_a_sandbox_keeps_the_further_folders() {
    let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
    harness.bind_in("s1", ThreadContext { additional_directories: vec!["/more".to_owned()], ..context() });
    handshake(&mut harness);
    harness.open("s1", None);
    answer(&mut harness, "thread/start", &thread("T"));
    let changed = SessionOptions {
        model: Some("big".to_owned()),
        effort: Some("low".to_owned()),
        tier: Some("priority".to_owned()),
        mode: Some("plan".to_owned()),
        sandbox: Some("workspace-write".to_owned()),
        approval: Some("never".to_owned()),
        ..SessionOptions::default()
    };
    harness.control("s1", "k1", set_options(changed));
    assert_eq!(
        harness.sent[0]["params"],
        json!({ "threadId": "T", "model": "big", "effort": "low", "serviceTier": "priority", "approvalPolicy": "never",
                "sandboxPolicy": { "type": "workspaceWrite", "writableRoots": ["/more"] },
                "collaborationMode": { "mode": "plan", "settings": {
                    "model": "big", "reasoning_effort": "low", "developer_instructions": null } } })
    );
    let odd = SessionOptions { sandbox: Some("moon".to_owned()), ..SessionOptions::default() };
    let said = harness.control("s1", "k2", set_options(odd));
    assert!(said[0].contains("refused") && said[0].contains("moon") && harness.sent.is_empty(), "{said:?}");
}

fn goal(status: &str, turn: Option<&str>, tokens: u64) -> Value {
    event(
        "thread/goal/updated",
        json!({ "turnId": turn, "goal": { "threadId": "T", "objective": "win",
        "status": status, "tokenBudget": null, "tokensUsed": tokens, "timeUsedSeconds": 0 } }),
    )
}

#[test]
fn a_goal_is_set_paused_resumed_and_cleared() {
    let mut harness = open();
    for (control, method, params) in [
        (
            Control::SetGoal { objective: "win".to_owned(), token_budget: Some(9) },
            "thread/goal/set",
            json!({ "threadId": "T", "objective": "win", "status": "active", "tokenBudget": 9 }),
        ),
        (Control::PauseGoal, "thread/goal/set", json!({ "threadId": "T", "status": "paused" })),
        (Control::ResumeGoal, "thread/goal/set", json!({ "threadId": "T", "status": "active" })),
        (Control::ClearGoal, "thread/goal/clear", json!({ "threadId": "T" })),
    ] {
        harness.control("s1", "k1", control);
        assert_eq!((&harness.sent[0]["method"], &harness.sent[0]["params"]), (&json!(method), &params));
        assert_eq!(answer(&mut harness, method, &json!({})), [DONE]);
    }
}

#[test]
fn whose_a_goal_is_is_told_where_it_is_shown() {
    let mut harness = open();
    harness.control("s1", "k1", Control::SetGoal { objective: "win".to_owned(), token_budget: None });
    let said = answer(
        &mut harness,
        "thread/goal/set",
        &json!({ "goal": { "objective": "win", "status": "active" } }),
    );
    assert!(said[0].starts_with("s1: Goal User"), "{said:?}");
    assert_eq!(said[1], DONE);
    assert!(harness.message(&goal("active", Some("U1"), 7))[0].starts_with("s1: Goal Unknown"));
    assert_eq!(
        harness.message(&goal("active", Some("U1"), 7)),
        Vec::<String>::new(),
        "the same again is nothing new"
    );
    assert!(harness.message(&goal("complete", Some("U1"), 8))[0].starts_with("s1: Goal Agent"));
    assert_eq!(harness.message(&event("thread/goal/cleared", json!({}))), ["s1: Goal Unknown null"]);
    harness.message(&goal("active", None, 9));
    harness.control("s1", "k1", Control::ClearGoal);
    assert_eq!(answer(&mut harness, "thread/goal/clear", &json!({})), ["s1: Goal User null", DONE]);
    assert_eq!(harness.message(&event("thread/goal/cleared", json!({}))), Vec::<String>::new());
}

#[test]
fn a_turn_without_a_message_while_a_goal_is_active_is_the_goals() {
    let mut harness = open();
    harness.message(&goal("active", None, 0));
    assert_eq!(harness.message(&started("G1")), ["s1: TurnStarted G1 Unknown -"]);
    let item = json!({ "type": "agentMessage", "id": "a1", "text": "step" });
    let said = harness.message(&completed("G1", &item));
    assert_eq!(said[0], "s1: TurnStarted G1 Goal -");
    harness.message(&ended("G1", "completed"));
    // With a message it is another client's.
    harness.message(&started("G2"));
    let said = harness.message(&completed("G2", &user_message("u1", Some("theirs"))));
    assert_eq!(said[0], "s1: TurnStarted G2 Client -");
}

#[test]
fn a_turn_that_starts_for_a_goal_that_is_being_paused_is_stopped() {
    let mut harness = open();
    harness.message(&goal("active", None, 0));
    let said = harness.control("s1", "k1", Control::PauseGoal);
    assert!(said[0].starts_with("send urgent"), "{said:?}");
    let id = harness.sent_id("thread/goal/set");
    let said = harness.message(&started("G1"));
    assert!(said[1].starts_with("send urgent") && said[1].contains("turn/interrupt"), "{said:?}");
    harness.message(&ended("G1", "interrupted"));
    assert_eq!(harness.message(&json!({ "id": id, "result": {} })), [DONE]);
    assert_eq!(harness.message(&started("G2")).len(), 1, "only while it is being paused");
}

#[test]
fn compaction_and_review_interrupt_no_turn() {
    for (control, method) in [
        (Control::Compact { instructions: None }, "thread/compact/start"),
        (Control::Review { instructions: Some("look".to_owned()) }, "review/start"),
    ] {
        let mut harness = running();
        let said = harness.control("s1", "k1", control.clone());
        assert!(
            said[0].contains("refused") && said[0].contains("a turn runs") && harness.sent.is_empty(),
            "{said:?}"
        );
        harness.message(&ended("U1", "completed"));
        harness.control("s1", "k1", control);
        assert_eq!(answer(&mut harness, method, &json!({ "turn": { "id": "R1" } })), [DONE]);
    }
}

#[test]
fn commands_names_and_background_have_their_words() {
    let mut harness = open();
    for (control, method, params) in [
        (
            Control::Shell { command: "ls".to_owned() },
            "thread/shellCommand",
            json!({ "threadId": "T", "command": "ls" }),
        ),
        (
            Control::Rename { name: "n".to_owned() },
            "thread/name/set",
            json!({ "threadId": "T", "name": "n" }),
        ),
        (Control::StopBackground, "thread/backgroundTerminals/clean", json!({ "threadId": "T" })),
    ] {
        harness.control("s1", "k1", control);
        assert_eq!((&harness.sent[0]["method"], &harness.sent[0]["params"]), (&json!(method), &params));
        assert_eq!(answer(&mut harness, method, &json!({})), [DONE]);
    }
    let named = event("thread/name/updated", json!({ "threadName": "n" }));
    assert_eq!(harness.message(&named), [r#"s1: Name Unknown Some("n")"#]);
}

#[test]
fn a_command_that_goes_on_after_its_turn_is_a_task_that_can_be_stopped() {
    let mut harness = running();
    let item = json!({ "type": "commandExecution", "id": "c1", "command": "sleep", "processId": "77", "status": "inProgress" });
    harness.message(&event("item/started", json!({ "turnId": "U1", "item": item })));
    let said = harness.control("s1", "k0", Control::StopTask { key: "c1".into() });
    assert!(said[0].contains("refused"), "it is no task yet: {said:?}");
    let said = harness.message(&ended("U1", "completed"));
    assert_eq!(said[0], r#"s1: TaskStarted c1 Shell "sleep" {"item_key":"c1"}"#);
    harness.control("s1", "k1", Control::StopTask { key: "c1".into() });
    assert_eq!(harness.sent[0]["method"], "thread/backgroundTerminals/terminate");
    assert_eq!(harness.sent[0]["params"], json!({ "threadId": "T", "processId": "77" }));
}

#[test]
fn going_back_is_proven_by_the_history() {
    let before = HistoryPoint { turn: "U2".into(), submission: None, last_item: None };
    for (turns, done) in [
        (json!([{ "id": "U1", "status": "completed" }]), true),
        (json!([]), true),
        (json!([{ "id": "U2" }]), false),
    ] {
        let mut harness = open();
        harness.control("s1", "k1", Control::Rewind { before: before.clone(), files: false });
        assert_eq!(harness.sent[0]["params"], json!({ "threadId": "T", "beforeTurnId": "U2" }));
        assert_eq!(
            answer(&mut harness, "thread/revert", &thread("T")).len(),
            1,
            "only the question for proof"
        );
        let said = history(&mut harness, &turns, &Value::Null);
        assert_eq!(said == [DONE], done, "{said:?}");
    }
}

#[test]
fn a_control_that_was_open_when_the_connection_was_lost_is_lost() {
    let mut harness = open();
    harness.control("s1", "k1", Control::Compact { instructions: None });
    assert_eq!(harness.disconnect(), [r#"s1: ControlEnded k1 {"state":"lost"}"#]);
    let mut harness = open();
    harness.control("s1", "k1", set_options(model("big")));
    answer(&mut harness, "thread/settings/update", &json!({}));
    assert_eq!(harness.disconnect(), [r#"s1: ControlEnded k1 {"state":"lost"}"#]);
}

#[test]
fn a_thread_is_left_and_its_process_goes_on() {
    let mut harness = running();
    harness.tell("s1", &Decision::CloseThread).expect("can be told");
    assert_eq!(harness.sent[0]["method"], "thread/unsubscribe");
    assert_eq!(
        answer(&mut harness, "thread/unsubscribe", &json!({ "status": "unsubscribed" })),
        ["s1: ThreadClosed"]
    );
    assert!(harness.start("s1", "m2", "x").is_err());
    assert_eq!(harness.open("s1", Some("T")).len(), 1, "it can be taken up again");
    let mut harness = running();
    harness.disconnect();
    assert_eq!(harness.tell("s1", &Decision::CloseThread).expect("can be told"), ["s1: ThreadClosed"]);
}

#[test]
fn a_branch_is_made_at_a_turn_with_what_the_session_pins() {
    let mut harness = connected();
    let point = ForkPoint {
        session: "s0".into(),
        thread: "T0".into(),
        last_turn: Some(HistoryPoint { turn: "U3".into(), submission: None, last_item: None }),
    };
    let decision = Decision::OpenThread {
        resume: None,
        fork: Some(Box::new(point)),
        options: SessionOptions::default(),
        doubtful: Vec::new(),
    };
    harness.tell("s1", &decision).expect("can be told");
    assert_eq!(harness.sent[0]["method"], "thread/fork");
    assert_eq!(
        harness.sent[0]["params"],
        json!({ "threadId": "T0", "lastTurnId": "U3", "excludeTurns": true, "cwd": "/work",
                "approvalPolicy": "on-request", "sandbox": "workspace-write" })
    );
    let mut forked = thread("T9");
    forked["thread"]["forkedFromId"] = json!("T0");
    assert_eq!(answer(&mut harness, "thread/fork", &forked), ["s1: ThreadOpened T9"]);
    let announced = json!({ "method": "thread/started", "params": { "thread": forked["thread"] } });
    assert_eq!(harness.message(&announced), Vec::<String>::new(), "our own branch is nobody else's");
}

#[test]
fn servers_folders_and_instructions_are_handed_over_each_time() {
    let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
    let servers = vec![
        json!({ "name": "mm", "command": "/bin/mm", "args": ["-x"], "env": [{ "name": "K", "value": "v" }] }),
        json!({ "type": "http", "name": "web", "url": "https://x.test/mcp", "headers": [{ "name": "A", "value": "b" }] }),
        json!({ "type": "sse", "name": "old", "url": "https://x.test/sse" }),
        json!({ "name": "a.b", "command": "/bin/x" }),
    ];
    harness.bind_in(
        "s1",
        ThreadContext {
            cwd: "/work".to_owned(),
            additional_directories: vec!["/more".to_owned()],
            mcp_servers: servers,
            instructions: Some("be kind".to_owned()),
            ..ThreadContext::default()
        },
    );
    handshake(&mut harness);
    for resume in [None, Some("T")] {
        let said = harness.open("s1", resume);
        assert!(said[0].contains("takes no MCP servers of this kind: old, a.b"), "{said:?}");
        let params = &harness.sent[0]["params"];
        assert_eq!(params["developerInstructions"], "be kind");
        assert_eq!(params["runtimeWorkspaceRoots"], json!(["/work", "/more"]));
        assert_eq!(
            params["config"],
            json!({ "mcp_servers.mm": { "command": "/bin/mm", "args": ["-x"], "env": { "K": "v" } },
                    "mcp_servers.web": { "url": "https://x.test/mcp", "http_headers": { "A": "b" } } })
        );
    }
}

#[test]
fn what_the_agent_offers_is_read_on_demand_and_a_refused_part_is_absent() {
    let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
    harness.live_on();
    harness.bind("s1");
    assert!(!harness.ask_catalogue(), "not connected");
    handshake(&mut harness);
    assert!(harness.ask_catalogue());
    let sent: Vec<(Value, Value)> =
        harness.sent.iter().map(|frame| (frame["id"].clone(), frame["method"].clone())).collect();
    assert_eq!(sent.len(), 5);
    for (id, method) in sent {
        assert!(harness.catalogue().is_none());
        let message = match method.as_str() {
            Some("model/list") => json!({ "id": id, "result": { "data": [
                { "id": "x", "model": "big", "displayName": "Big", "description": "", "hidden": true, "isDefault": true,
                  "supportedReasoningEfforts": [{ "reasoningEffort": "low", "description": "" }],
                  "defaultReasoningEffort": "low", "serviceTiers": [{ "id": "priority", "name": "", "description": "" }] }] } }),
            Some("account/read") => {
                json!({ "id": id, "result": { "account": null, "requiresOpenaiAuth": false } })
            }
            _ => json!({ "id": id, "error": { "code": -32600, "message": "authentication required" } }),
        };
        harness.message(&message);
    }
    let catalogue = harness.catalogue().expect("all is answered");
    assert!(harness.catalogue().is_none(), "once");
    assert_eq!(
        serde_json::to_value(catalogue).expect("has a JSON form"),
        json!({ "models": [{ "id": "big", "name": "Big", "hidden": true, "default": true, "efforts": ["low"],
                             "default_effort": "low", "tiers": ["priority"] }],
                "account": { "account": null, "requiresOpenaiAuth": false } })
    );
}

#[test]
fn a_review_is_one_turn_though_it_begins_under_another_id_than_it_ends_under() {
    let mut harness = open();
    let entered = json!({ "type": "enteredReviewMode", "id": "e1", "review": "look" });
    let said = harness.message(&event("item/started", json!({ "turnId": "R", "item": entered })));
    assert_eq!(said[0], "s1: TurnStarted R Unknown -");
    assert_eq!(
        harness.interrupt("s1", Some("R")),
        Vec::<String>::new(),
        "it cannot be stopped before it has begun"
    );
    harness.message(&event("thread/status/changed", json!({ "status": { "type": "active" } })));
    assert!(harness.sent.is_empty());
    let mut harness = open();
    harness.message(&event("item/started", json!({ "turnId": "R", "item": entered })));
    let inner = json!({ "turn": { "id": "S", "rootTurnId": "R", "status": "inProgress" } });
    assert_eq!(harness.message(&event("turn/started", inner)), Vec::<String>::new(), "it has begun");
    harness.message(&completed("R", &user_message("u1", None)));
    harness.interrupt("s1", Some("R"));
    assert_eq!(harness.sent[0]["params"]["turnId"], "S", "that is what the server calls it");
    let said = harness.message(&ended("R", "interrupted"));
    assert_eq!(said.last().map(String::as_str), Some("s1: TurnEnded R Interrupted -"));
    assert!(harness.start("s1", "m1", "x").is_ok());
}

#[test]
fn an_effort_that_the_model_does_not_take_is_refused_where_the_models_are_known() {
    let mut harness = Harness::new(AgentKind::Codex, Life::OneLife);
    harness.bind("s1");
    handshake(&mut harness);
    harness.open("s1", None);
    answer(&mut harness, "thread/start", &thread("T"));
    let bogus = SessionOptions { effort: Some("bogus".to_owned()), ..model("big") };
    assert_eq!(
        harness.control("s1", "k1", set_options(bogus.clone())).len(),
        1,
        "nothing is known: it is asked"
    );
    harness.ask_catalogue();
    let sent: Vec<(Value, Value)> =
        harness.sent.iter().map(|frame| (frame["id"].clone(), frame["method"].clone())).collect();
    for (id, method) in sent {
        let efforts = json!([{ "reasoningEffort": "low", "description": "" }]);
        let message = match method.as_str() {
            Some("model/list") => json!({ "id": id, "result": { "data": [
                { "id": "big", "model": "big", "displayName": "Big", "supportedReasoningEfforts": efforts }] } }),
            _ => json!({ "id": id, "error": { "code": -32600, "message": "no" } }),
        };
        harness.message(&message);
    }
    let said = harness.control("s1", "k2", set_options(bogus));
    assert!(said[0].contains("refused") && said[0].contains("big takes the efforts low"), "{said:?}");
    let good = SessionOptions { effort: Some("low".to_owned()), ..model("big") };
    assert!(harness.control("s1", "k3", set_options(good))[0].contains("thread/settings/update"));
    let unlisted = SessionOptions { effort: Some("odd".to_owned()), ..model("mine") };
    assert!(harness.control("s1", "k4", set_options(unlisted))[0].contains("thread/settings/update"));
}

#[test]
fn a_thread_is_put_away_at_the_agent_and_gone() {
    let mut harness = open();
    harness.control("s1", "k1", Control::ArchiveThread);
    let archive = harness.sent_id("thread/archive");
    assert_eq!(harness.sent[0]["params"], json!({ "threadId": "T" }));
    // The server lets it go before it answers (measured).
    let not_loaded = event("thread/status/changed", json!({ "status": { "type": "notLoaded" } }));
    assert_eq!(harness.message(&not_loaded), Vec::<String>::new(), "it is no loss");
    let said = harness.message(&json!({ "id": archive, "result": {} }));
    assert_eq!(said, [r#"s1: ControlEnded k1 {"state":"done"}"#]);
    assert_eq!(harness.message(&event("thread/archived", json!({}))), Vec::<String>::new());
    assert!(harness.start("s1", "m1", "x").is_err());
    assert_eq!(harness.tell("s1", &Decision::CloseThread).expect("can be told"), ["s1: ThreadClosed"]);
}

#[test]
fn a_thread_that_works_is_not_put_away_and_one_that_the_agent_keeps_is_looked_at() {
    let mut harness = running();
    let said = harness.control("s1", "k1", Control::ArchiveThread);
    assert!(said.len() == 1 && said[0].contains("it would be cut off"), "{said:?}");
    let mut harness = open();
    harness.control("s1", "k1", Control::ArchiveThread);
    let said = refuse(&mut harness, "thread/archive", "not now");
    assert!(said[0].contains("refused") && said[0].contains("not now"), "{said:?}");
    assert!(said[1].contains("thread/resume"), "whether it is still there: {said:?}");
    let mut harness = open();
    let said = harness.message(&event("thread/archived", json!({})));
    assert!(said.len() == 1 && said[0].contains("another client"), "{said:?}");
}
