//! What the real Codex does beside one plain turn, as the journal shows it: sub-agents, background commands, MCP servers,
//! retries, options, and deaths of the host in the middle of them.

use crate::support::{Follower, World, answer, follow_turn, interrupt, is, send};
use mainstay_testkit::agents::sibling_binary;
use serde_json::{Value, json};

/// The model whose sub-agents are of the first kind.
const AGENTS_V1: &str = "gpt-5.4";
/// The model whose sub-agents are of the second kind.
const AGENTS_V2: &str = "gpt-6.2-sol";

fn create(
    world: &World,
    host: &mainstay_testkit::mainstay::HostProcess,
    more: &Value,
    prompt: &str,
) -> String {
    let mut body = json!({ "agent": "codex", "cwd": world.workspace(), "prompt": prompt });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    made["id"].as_str().expect("an id").to_owned()
}

fn of_model(name: &str) -> Value {
    json!({ "options": { "model": name } })
}

fn childs_approval(name: &str) {
    let world = World::new();
    let host = world.start();
    let prompt = "SPAWN RUNESC echo from-child :: SAY child done ;; WAITAGENT ;; SAY parent done";
    let session = create(&world, &host, &of_model(name), prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the child's approval", is("request.opened"));
    let started = follower.of_type("child.started")[0].clone();
    assert!(started["child"].is_string(), "{started}");
    assert_eq!(opened["child"], started["child"], "{opened}");
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "accept").expect_status(200);
    let closed = follower.until(&mut sse, "the request's end", is("request.closed"));
    assert_eq!(closed["confirmed"], true);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    if follower.of_type("child.ended").is_empty() {
        follower.until(&mut sse, "the child's end", is("child.ended"));
    }
    let of_child = |event: &&Value| event["type"] == "item.started" && event["child"] == started["child"];
    assert!(follower.events.iter().any(|event| of_child(&event)), "no item is told under the child");
    world.end(host);
}

#[test]
fn a_childs_approval_is_answered_through_its_session_v1() {
    childs_approval(AGENTS_V1);
}

#[test]
fn a_childs_approval_is_answered_through_its_session_v2() {
    childs_approval(AGENTS_V2);
}

#[test]
fn a_childs_approval_outlives_the_host() {
    let world = World::new();
    let mut host = world.start();
    let prompt = "SPAWN RUNESC touch made-by-child :: SAY child done ;; WAITAGENT ;; SAY parent done";
    let session = create(&world, &host, &of_model(AGENTS_V1), prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the child's approval", is("request.opened"));
    host.kill9();
    follower.until_broken(&mut sse);
    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "accept").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(world.home.workspace().join("made-by-child").exists(), "the command did not run");
    assert_eq!(follower.of_type("child.started").len(), 1);
    world.end(host);
}

#[test]
fn a_command_that_outlives_its_turn_is_a_task_until_it_ends() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "RUN sleep 1000 ;; SAY never");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the command", |event| {
        event["type"] == "item.started" && event["tool_kind"] == "execute"
    });
    interrupt(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    // A stop of the session reaches what its turn left behind.
    if follower.of_type("task.ended").is_empty() {
        follower.until(&mut sse, "the task's end", is("task.ended"));
    }
    let (started, ended) = (follower.of_type("task.started"), follower.of_type("task.ended"));
    assert_eq!((started.len(), ended.len()), (1, 1), "{started:?} {ended:?}");
    assert_eq!(started[0]["kind"], "shell");
    send(&host.client(), &session, "SAY next");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    world.end(host);
}

#[test]
fn an_mcp_server_of_the_session_is_asked_for_and_a_retry_is_told() {
    let world = World::new();
    let host = world.start();
    let server = sibling_binary("scripted-mcp").display().to_string();
    let more = json!({ "mcp_servers": [{ "name": "mm", "command": server, "args": [], "env": [] }] });
    let session = create(&world, &host, &more, r#"TOOL mcp__mm.note {"text":"one"} ;; SAY ok"#);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    let options: Vec<&str> = opened["options"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|option| option["option_id"].as_str())
        .collect();
    assert_eq!(options, ["accept", "acceptForSession", "acceptAlways", "decline", "cancel"]);
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "acceptForSession")
        .expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    send(&host.client(), &session, r#"TOOL mcp__mm.note {"text":"two"} ;; DISCN 1 ;; SAY recovered"#);
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert_eq!(follower.of_type("request.opened").len(), 1, "it was allowed for the session");
    let abandoned = |event: &&Value| event["type"] == "item.completed" && event["status"] == "abandoned";
    assert_eq!(
        follower.events.iter().filter(abandoned).count(),
        1,
        "the message that broke off is not marked"
    );
    assert!(follower.agent_text().ends_with("recovered"), "{}", follower.agent_text());
    world.end(host);
}

#[test]
fn further_folders_and_instructions_hold_also_after_the_agent_died() {
    let world = World::new();
    let host = world.start();
    let more_folder = world.home.workspace().parent().unwrap().join("more");
    std::fs::create_dir_all(&more_folder).unwrap();
    let more = json!({ "additional_directories": [more_folder.display().to_string()],
                       "instructions": "always be kind to cats" });
    // The temporary folder is writable in any case, so a patch there would show nothing: what the model is told does.
    let told = |world: &World| {
        let asked = world.model.requests().last().expect("a request").body.to_string();
        asked.contains("always be kind to cats")
            && asked.contains(&format!("<root>{}</root>", more_folder.display()))
    };
    let session = create(&world, &host, &more, "SAY one");
    let mut follower = follow_turn(&host.client(), &session);
    assert!(told(&world));
    let pid = crate::support::agent_pid(follower.of_type("process.started")[0]);
    crate::support::kill(pid);
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the agent's end", is("process.exited"));
    send(&host.client(), &session, "SAY two");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(told(&world), "it was lost with the process");
    world.end(host);
}

#[test]
fn changed_options_are_asked_of_the_agent_and_confirmed() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY first");
    let mut follower = follow_turn(&host.client(), &session);
    let path = format!("/v1/sessions/{session}");
    let changed = json!({ "options": { "model": "gpt-6.2-sol", "effort": "high" } });
    host.client().patch(&path, &changed).expect("answers").expect_status(200);
    let mut sse = follower.open(&host.client(), &session);
    let updated = follower.until(&mut sse, "the confirmation", |event| {
        event["type"] == "options.updated" && event["options"]["model"] == "gpt-6.2-sol"
    });
    assert_eq!(updated["options"]["effort"], "high", "{updated}");
    send(&host.client(), &session, "SAY second");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    let asked = world.model.requests().last().expect("a request").body.clone();
    assert_eq!((&asked["model"], &asked["reasoning"]["effort"]), (&json!("gpt-6.2-sol"), &json!("high")));
    world.end(host);
}
