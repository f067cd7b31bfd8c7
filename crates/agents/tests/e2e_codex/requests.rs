//! Requests of the real Codex, of every kind that it can be made to ask.

use crate::harness::{context, select};
use crate::support::Real;
use mainstay_agents::ThreadContext;
use mainstay_core::SessionOptions;
use mainstay_core::content::Answer;
use mainstay_core::question::Chosen;
use mainstay_core::work::Control;
use mainstay_testkit::agents::sibling_binary;
use serde_json::json;
use std::collections::BTreeMap;

#[test]
fn a_question_is_answered_with_a_choice() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "SAY first");
    // Questions are asked in plan mode only.
    let changed = SessionOptions { mode: Some("plan".to_owned()), ..SessionOptions::default() };
    let control = Control::SetOptions { options: Box::new(changed.clone()), changed: Box::new(changed) };
    assert_eq!(real.control("s1", "k1", control)["state"], "done");
    real.send("s1", "m2", "ASK which colour? ;; SAY ok");
    let (key, opened) = real.request("s1");
    assert!(opened.contains("Question") && opened.contains("which colour?"), "{opened}");
    let chosen = Chosen { selected: vec!["Beta".to_owned()], text: None };
    real.answer("s1", &key, Answer::Answers { answers: BTreeMap::from([("q1".to_owned(), chosen)]) });
    real.turn_ended("s1");
    let told = real.model.requests().iter().any(|request| request.body.to_string().contains("Beta\\\""));
    assert!(told, "the model was not told the answer");
    real.end();
}

#[test]
fn more_rights_are_granted() {
    let mut real = Real::start_with("request_permissions_tool = true\nexec_permission_approvals = true");
    real.open("s1", SessionOptions::default());
    real.send(
        "s1",
        "m1",
        r#"TOOL request_permissions {"reason":"need it","permissions":{"file_system":{"write":["/srv/zz"]}}} ;; SAY ok"#,
    );
    let (key, opened) = real.request("s1");
    assert!(opened.contains("PermissionGrant \"need it\""), "{opened}");
    real.answer("s1", &key, select("turn"));
    assert!(real.turn_ended("s1").contains("Completed"));
    real.end();
}

fn with_mcp() -> Real {
    let mut real = Real::start();
    let server = sibling_binary("scripted-mcp").display().to_string();
    let context = ThreadContext {
        cwd: real.work().display().to_string(),
        mcp_servers: vec![json!({ "name": "mm", "command": server, "args": [], "env": [] })],
        ..context()
    };
    real.open_in("s1", context, SessionOptions::default());
    real
}

#[test]
fn an_mcp_server_of_the_session_is_started_and_its_tools_ask_as_far_as_they_are_allowed() {
    let mut real = with_mcp();
    real.send("s1", "m1", r#"TOOL mcp__mm.note {"text":"one"} ;; SAY ok"#);
    let (key, opened) = real.request("s1");
    assert!(opened.contains("Approval") && opened.contains("acceptForSession/AllowAlways"), "{opened}");
    real.answer("s1", &key, select("acceptForSession"));
    real.turn_ended("s1");
    let call =
        real.said.iter().find(|line| line.starts_with("s1: ItemCompleted") && line.contains("mm: note"));
    assert!(call.is_some_and(|line| line.contains("Completed")), "{:?}", real.said);
    // For the session: it is not asked again.
    real.turn("s1", "m2", r#"TOOL mcp__mm.note {"text":"two"} ;; SAY ok"#);
    assert_eq!(real.said.iter().filter(|line| line.contains("RequestOpened")).count(), 1, "{:?}", real.said);
    real.end();
}

#[test]
fn a_form_of_an_mcp_server_is_filled_in() {
    let mut real = with_mcp();
    real.send("s1", "m1", "TOOL mcp__mm.ask {} ;; SAY ok");
    let (key, _) = real.request("s1");
    real.tell(
        "s1",
        &mainstay_core::Decision::Answer {
            key: key.as_str().into(),
            answer: select("accept"),
            options: Vec::new(),
        },
    );
    let (key, opened) = real.request("s1");
    assert!(opened.contains("Elicitation \"Your name?\""), "{opened}");
    real.answer("s1", &key, Answer::Submit { content: Some(json!({ "name": "Ada" })) });
    real.turn_ended("s1");
    let call =
        real.said.iter().find(|line| line.starts_with("s1: ItemCompleted") && line.contains("mm: ask"));
    assert!(call.is_some_and(|line| line.contains("Ada")), "{:?}", real.said);
    real.end();
}

#[test]
fn a_patch_that_is_cancelled_is_declined_and_its_turn_interrupted() {
    let mut real = Real::start();
    real.open("s1", SessionOptions { sandbox: Some("read-only".to_owned()), ..SessionOptions::default() });
    real.send("s1", "m1", "PATCH note.txt hello ;; SAY never");
    let (key, opened) = real.request("s1");
    assert!(opened.contains("Change files"), "{opened}");
    let decision = mainstay_core::Decision::Answer {
        key: key.as_str().into(),
        answer: Answer::Cancel { message: None },
        options: Vec::new(),
    };
    real.tell("s1", &decision);
    assert!(real.turn_ended("s1").contains("Interrupted"));
    let closed = real
        .said
        .iter()
        .any(|line| line.starts_with("s1: ItemCompleted") && line.contains("ToolCall Declined"));
    assert!(closed, "{:?}", real.said);
    real.end();
}
