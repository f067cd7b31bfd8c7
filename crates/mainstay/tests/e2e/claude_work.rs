//! The real Claude Code beyond plain turns: background commands, sub-agents, local commands that change the
//! conversation, options, plans, questions.

use crate::support::{Follower, World, answer, interrupt, is, send, show};
use mainstay_testkit::http::Sse;
use mainstay_testkit::mainstay::HostProcess;
use serde_json::{Value, json};

fn begin(world: &World, host: &HostProcess, prompt: &str) -> (String, Follower, Sse) {
    let session = world.create(host, "claude", prompt);
    let follower = Follower::default();
    let sse = follower.open(&host.client(), &session);
    (session, follower, sse)
}

fn create_with(world: &World, host: &HostProcess, options: &Value, prompt: &str) -> String {
    let body = json!({ "agent": "claude", "cwd": world.workspace(), "options": options, "prompt": prompt });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    made["id"].as_str().expect("an id").to_owned()
}

const BACKGROUND: &str = r#"TOOL Bash {"command":"while [ ! -e go ]; do sleep 0.1; done","run_in_background":true,"description":"waits"} ;; SAY started"#;

#[test]
fn claude_a_background_command_is_a_task_and_its_end_begins_a_turn() {
    let world = World::new();
    let host = world.start();
    let (session, mut follower, mut sse) = begin(&world, &host, BACKGROUND);
    let started = follower.until(&mut sse, "the task", is("task.started"));
    assert_eq!(started["kind"], "shell");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(show(&host.client(), &session)["status"], "running", "work goes on in the background");
    std::fs::write(world.home.workspace().join("go"), "").unwrap();
    let ended = follower.until(&mut sse, "the task's end", is("task.ended"));
    assert_eq!((&ended["task"], &ended["outcome"]), (&started["task"], &"completed".into()), "{ended}");
    let turn = follower.until(&mut sse, "a turn about it", is("turn.started"));
    assert_eq!(turn["origin"], "task");
    follower.until(&mut sse, "its end", is("turn.ended"));
    // Its input is still open, however many results it gave.
    send(&host.client(), &session, "SAY more");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("more"), "{}", follower.agent_text());
    assert_eq!(follower.of_type("process.started").len(), 1, "it was started again");
    world.end(host);
}

#[test]
fn claude_a_message_beside_a_background_command_has_a_turn_of_its_own() {
    let world = World::new();
    let host = world.start();
    let (session, mut follower, mut sse) = begin(&world, &host, BACKGROUND);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    send(&host.client(), &session, "SAY beside");
    follower.until(&mut sse, "the second turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("beside"));
    assert!(follower.of_type("task.ended").is_empty(), "it was left alone");
    world.end(host);
}

const SUB_AGENT: &str = r#"TOOL Agent {"description":"helper","prompt":"RUN touch by-sub-agent ~~ SAY sub done","subagent_type":"general-purpose"} ;; SAY main done"#;

#[test]
fn claude_a_sub_agent_is_a_child_with_its_own_items_and_requests() {
    let world = World::new();
    let host = world.start();
    let (session, mut follower, mut sse) = begin(&world, &host, SUB_AGENT);
    let child = follower.until(&mut sse, "the child", is("child.started"));
    assert_eq!((&child["title"], &child["role"]), (&"helper".into(), &"general-purpose".into()), "{child}");
    let asked = follower.until(&mut sse, "its request", is("request.opened"));
    assert_eq!(asked["child"], child["child"], "{asked}");
    answer(&host.client(), &session, asked["request"].as_str().unwrap(), "allow").expect_status(200);
    let ended = follower.until(&mut sse, "its end", is("child.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let of_child: Vec<&Value> =
        follower.of_type("item.started").into_iter().filter(|item| item["child"] == child["child"]).collect();
    assert!(of_child.iter().any(|item| item["kind"] == "tool_call"), "{of_child:?}");
    assert!(world.home.workspace().join("by-sub-agent").exists());
    assert!(follower.agent_text().ends_with("main done"));
    world.end(host);
}

#[test]
fn claude_a_stop_ends_a_sub_agent_with_its_turn() {
    let world = World::new();
    let host = world.start();
    let (session, mut follower, mut sse) = begin(&world, &host, SUB_AGENT);
    follower.until(&mut sse, "its request", is("request.opened"));
    interrupt(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "interrupted");
    let child = follower.of_type("child.ended");
    assert_eq!(child.len(), 1, "the child ended with it");
    assert_eq!(child[0]["outcome"], "stopped");
    assert_eq!(follower.of_type("request.closed").len(), 1);
    assert!(!world.home.workspace().join("by-sub-agent").exists());
    world.end(host);
}

#[test]
fn claude_an_emptied_context_is_a_new_link_of_the_chain_and_is_taken_up_again() {
    let world = World::new();
    let host = world.start();
    let (session, mut follower, mut sse) = begin(&world, &host, "SAY first");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    send(&host.client(), &session, "/clear");
    let link = follower.until(&mut sse, "another conversation", is("thread.linked"));
    assert_ne!(link["thread"], follower.of_type("thread.linked")[0]["thread"]);
    follower.until(&mut sse, "the command's turn", is("turn.ended"));
    send(&host.client(), &session, "SAY second");
    follower.until(&mut sse, "the next turn", is("turn.ended"));
    host.client().post(&format!("/v1/sessions/{session}/stop"), &json!({})).expect("answers");
    follower.until(&mut sse, "the process's end", is("process.exited"));
    send(&host.client(), &session, "SAY third");
    let again = follower.until(&mut sse, "the same conversation", is("thread.linked"));
    assert_eq!((&again["thread"], &again["how"]), (&link["thread"], &"resumed".into()));
    follower.until(&mut sse, "the last turn", is("turn.ended"));
    let seen = world.model.requests().last().unwrap().user_messages();
    assert_eq!(seen, ["SAY second", "SAY third"], "the context was emptied");
    world.end(host);
}

#[test]
fn claude_compaction_is_seen_and_the_conversation_goes_on() {
    let world = World::new();
    let host = world.start();
    let (session, mut follower, mut sse) = begin(&world, &host, "SAY first");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    // The agent compacts nothing shorter.
    for more in ["SAY more", "SAY and more"] {
        send(&host.client(), &session, more);
        follower.until(&mut sse, "another turn's end", is("turn.ended"));
    }
    send(&host.client(), &session, "/compact");
    follower.until(&mut sse, "the compaction's turn", is("turn.ended"));
    let notices = follower.of_type("item.started");
    assert!(notices.iter().any(|item| item["provider_type"] == "compact_boundary"), "no sign of it");
    send(&host.client(), &session, "SAY second");
    follower.until(&mut sse, "the next turn", is("turn.ended"));
    assert_eq!(follower.of_type("thread.linked").len(), 1, "the conversation is the same");
    assert!(follower.agent_text().ends_with("second"));
    world.end(host);
}

#[test]
fn claude_options_are_in_force_from_the_first_message_on() {
    let world = World::new();
    let host = world.start();
    let options = json!({ "model": "sonnet", "mode": "acceptEdits", "effort": "low" });
    let session = create_with(&world, &host, &options, "RUN touch without-asking ;; SAY done");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(follower.of_type("request.opened").is_empty(), "edits are accepted");
    assert!(world.home.workspace().join("without-asking").exists());
    let body = &world.model.requests()[0].body;
    assert!(body["model"].as_str().unwrap().starts_with("claude-sonnet"), "{}", body["model"]);
    assert_eq!(show(&host.client(), &session)["options"]["model"], "sonnet", "the name asked for stays");
    world.end(host);
}

#[test]
fn claude_a_mode_that_it_does_not_have_is_refused_before_anything_is_sent() {
    let world = World::new();
    let host = world.start();
    let session = create_with(&world, &host, &json!({ "mode": "no-such" }), "SAY never");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let held = follower.until(&mut sse, "the refusal", is("session.recovering"));
    assert_eq!(held["failure"]["code"], "agent_refused", "{held}");
    assert!(world.model.requests().is_empty());
    world.end(host);
}

#[test]
fn claude_a_plan_is_left_with_consent_and_the_mode_is_the_one_before() {
    let world = World::new();
    let host = world.start();
    let prompt = r#"TOOL ExitPlanMode {"plan":"1. look"} ;; SAY begun"#;
    let session = create_with(&world, &host, &json!({ "mode": "plan" }), prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let asked = follower.until(&mut sse, "the question", is("request.opened"));
    assert_eq!(asked["kind"], "plan_exit", "{asked}");
    answer(&host.client(), &session, asked["request"].as_str().unwrap(), "allow").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let options = follower.of_type("options.updated");
    assert_eq!(options.last().unwrap()["options"]["mode"], "default");
    world.end(host);
}

#[test]
fn claude_instructions_reach_the_model() {
    let world = World::new();
    let host = world.start();
    let body = json!({
        "agent": "claude", "cwd": world.workspace(), "instructions": "Speak like a lighthouse.", "prompt": "SAY hi",
    });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().unwrap();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let system = world.model.requests()[0].body["system"].to_string();
    assert!(system.contains("Speak like a lighthouse."));
    world.end(host);
}

#[test]
fn claude_a_form_of_a_pinned_mcp_server_is_asked_and_declined() {
    let world = World::new();
    let host = world.start();
    let server = json!({
        "name": "forms",
        "command": mainstay_testkit::agents::sibling_binary("scripted-mcp"),
        "args": [],
        "env": [{ "name": "SCRIPTED_MCP", "value": "a pinned server" }],
    });
    let body = json!({
        "agent": "claude", "cwd": world.workspace(), "mcp_servers": [server],
        "prompt": "TOOL mcp__forms__ask {} ;; SAY done",
    });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().unwrap();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), session);
    let asked = follower.until(&mut sse, "permission for the tool", is("request.opened"));
    assert_eq!(asked["kind"], "approval", "{asked}");
    answer(&host.client(), session, asked["request"].as_str().unwrap(), "allow").expect_status(200);
    let form = follower.until(&mut sse, "the form", |event| event["kind"] == "elicitation");
    assert_eq!(form["elicitation"]["schema"]["required"], json!(["name"]), "{form}");
    let path = format!("/v1/sessions/{session}/requests/{}/answer", form["request"].as_str().unwrap());
    host.client().post(&path, &json!({ "decline": true })).expect("answers").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let result = follower.of_type("item.completed").iter().map(ToString::to_string).collect::<String>();
    assert!(result.contains("decline") && result.contains("from a pinned server"), "{result}");
    world.end(host);
}

/// A session that has asked for a page of its MCP server to be opened, and what was asked.
fn page_asked(world: &World, host: &HostProcess) -> (String, Follower, Sse, Value) {
    let server = json!({
        "name": "forms",
        "command": mainstay_testkit::agents::sibling_binary("scripted-mcp"),
        "args": [],
        "env": [],
    });
    let body = json!({
        "agent": "claude", "cwd": world.workspace(), "mcp_servers": [server],
        "prompt": "TOOL mcp__forms__visit {} ;; SAY done",
    });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().unwrap().to_owned();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let asked = follower.until(&mut sse, "permission for the tool", is("request.opened"));
    assert_eq!(asked["kind"], "approval", "{asked}");
    answer(&host.client(), &session, asked["request"].as_str().unwrap(), "allow").expect_status(200);
    let page = follower.until(&mut sse, "the page", |event| event["kind"] == "elicitation");
    assert_eq!(page["elicitation"]["url"], "https://example.test/sign-in", "{page}");
    assert_eq!(page["title"], "Sign in", "{page}");
    (session, follower, sse, page)
}

#[test]
fn claude_a_page_of_an_mcp_server_is_asked_for_and_the_call_goes_on_once_it_was_opened() {
    let world = World::new();
    let host = world.start();
    let (session, mut follower, mut sse, page) = page_asked(&world, &host);
    let path = format!("/v1/sessions/{session}/requests/{}/answer", page["request"].as_str().unwrap());
    host.client().post(&path, &json!({ "accept": true })).expect("answers").expect_status(200);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    let result = follower.of_type("item.completed").iter().map(ToString::to_string).collect::<String>();
    assert!(result.contains("visited"), "{result}");
    world.end(host);
}

#[test]
fn claude_a_page_of_an_mcp_server_that_is_declined_ends_the_call() {
    let world = World::new();
    let host = world.start();
    let (session, mut follower, mut sse, page) = page_asked(&world, &host);
    let path = format!("/v1/sessions/{session}/requests/{}/answer", page["request"].as_str().unwrap());
    host.client().post(&path, &json!({ "decline": true })).expect("answers").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let result = follower.of_type("item.completed").iter().map(ToString::to_string).collect::<String>();
    assert!(!result.contains("visited") && result.contains("declined"), "{result}");
    world.end(host);
}
