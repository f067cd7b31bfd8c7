//! Codex where something stands in its way: not installed, a broken configuration, no way to the provider; and what the
//! commands that it runs get to see of its environment.

use crate::support::{Follower, World, follow_turn, is, send, show};
use serde_json::{Value, json};
use std::fs;

/// Changes the host's configuration of Codex.
fn configure(world: &World, change: impl Fn(&str) -> String) {
    let path = world.home.mainstay_home().join("config.toml");
    let config = fs::read_to_string(&path).expect("the configuration");
    let changed = change(&config);
    assert_ne!(config, changed, "nothing was changed");
    fs::write(path, changed).expect("written");
}

fn codex_config(world: &World, change: impl Fn(&str) -> String) {
    let path = world.home.root().join("codex-home/codex/config.toml");
    let config = fs::read_to_string(&path).expect("the configuration");
    let changed = change(&config);
    assert_ne!(config, changed, "nothing was changed");
    fs::write(path, changed).expect("written");
}

#[test]
fn an_unreachable_provider_is_a_reason_to_be_seen_and_ends_the_turn_at_the_limit() {
    let world = World::new();
    configure(&world, |config| config.replace("[agents.codex]\n", "[agents.codex]\nstall_limit = \"4s\"\n"));
    // Nobody listens there: it waits for the network without end.
    codex_config(&world, |config| config.replace(&world.model.base_url(), "http://127.0.0.1:9/v1"));
    let host = world.start();
    let session = world.create(&host, "codex", "SAY never");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the first try", is("turn.retrying"));
    let shown = show(&host.client(), &session);
    assert_eq!(shown["limits"]["max_stall_ms"], 4_000, "{shown}");
    assert!(shown["reason"].as_str().is_some_and(|reason| reason.contains("trying again")), "{shown}");
    let reached = follower.until(&mut sse, "the limit", is("budget.reached"));
    assert_eq!(reached["budget"], "stall", "{reached}");
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(
        (&ended["outcome"], &ended["failure"]["code"]),
        (&json!("limit"), &json!("network")),
        "{ended}"
    );
    world.end(host);
}

#[test]
fn commands_see_the_session_s_marks_and_no_key_of_the_agent() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "RUN env ;; SAY done");
    let follower = follow_turn(&host.client(), &session);
    let output = follower.events.iter().map(Value::to_string).filter(|line| line.contains("CODEX_THREAD_ID"));
    let output = output.collect::<String>();
    assert!(output.contains("MAINSTAY_KEEPER_TOKEN"), "{output}");
    assert!(
        !follower.events.iter().any(|event| event.to_string().contains("MOCK_API_KEY=")),
        "a key was seen"
    );
    world.end(host);
    // Named for them, they get it.
    configure(&world, |config| {
        config.replace("[agents.codex]\n", "[agents.codex]\ncommand_env = [\"MOCK_API_KEY\"]\n")
    });
    let host = world.start();
    let session = world.create(&host, "codex", "RUN env ;; SAY done");
    let follower = follow_turn(&host.client(), &session);
    assert!(follower.events.iter().any(|event| event.to_string().contains("MOCK_API_KEY=")), "not seen");
    world.end(host);
}

#[test]
fn what_the_user_keeps_from_commands_stays_kept_beside_what_the_host_keeps() {
    let world = World::new();
    configure(&world, |config| {
        let given = "command_env = [\"USERS_WORD\", \"OTHER_WORD\"]\n";
        let config = config.replace("[agents.codex]\n", &format!("[agents.codex]\n{given}"));
        config.replacen("env = { ", "env = { USERS_WORD = \"seen\", OTHER_WORD = \"seen\", ", 1)
    });
    codex_config(&world, |config| format!("{config}\n[shell_environment_policy]\nexclude = [\"USERS_*\"]\n"));
    let host = world.start();
    let session = world.create(&host, "codex", "RUN env ;; SAY done");
    let mut follower = follow_turn(&host.client(), &session);
    let seen = |follower: &Follower, word: &str| {
        follower.events.iter().any(|event| event.to_string().contains(&format!("{word}=")))
    };
    assert!(seen(&follower, "OTHER_WORD"), "nothing is shown");
    assert!(!seen(&follower, "USERS_WORD"), "the user's own rule does not hold");
    assert!(!seen(&follower, "MOCK_API_KEY"), "the host's rule does not hold");
    // And in the process that takes the thread up again.
    crate::support::kill(crate::support::agent_pid(follower.of_type("process.started")[0]));
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the agent's end", is("process.exited"));
    send(&host.client(), &session, "RUN env ;; SAY done");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(!seen(&follower, "USERS_WORD") && !seen(&follower, "MOCK_API_KEY"), "lost with the process");
    world.end(host);
}

/// Why the session cannot go on.
fn held(world: &World, prompt: &str) -> Value {
    let host = world.start();
    let session = world.create(&host, "codex", prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let held = follower.until(&mut sse, "why it cannot go on", |event| {
        event["type"] == "session.recovering" && !event["failure"].is_null()
    });
    world.end(host);
    held
}

#[test]
fn a_codex_that_is_not_installed_says_how_to_install_it() {
    let world = World::new();
    let command = format!("command = [\"{}\"", mainstay_testkit::agents::codex_binary().display());
    configure(&world, |config| config.replace(&command, "command = [\"/nowhere/codex\""));
    let held = held(&world, "SAY never");
    let said = held["failure"]["message"].as_str().expect("words");
    assert!(said.contains("npm install -g @openai/codex"), "{held}");
}

#[test]
fn a_broken_configuration_of_codex_is_named_with_its_place() {
    let world = World::new();
    codex_config(&world, |config| config.replace("[features]\n", "[features\n"));
    let held = held(&world, "SAY never");
    let said = held["failure"].to_string();
    assert!(said.contains("config.toml"), "{held}");
}

#[test]
fn a_model_provider_that_does_not_exist_is_named() {
    let world = World::new();
    codex_config(&world, |config| config.replace("model_provider = \"mock\"", "model_provider = \"none\""));
    let held = held(&world, "SAY never");
    let said = held["failure"].to_string();
    assert!(said.contains("none") && said.contains("config.toml"), "{held}");
}

#[test]
fn a_missing_key_fails_the_turn_with_what_to_do() {
    let world = World::new();
    configure(&world, |config| config.replace("MOCK_API_KEY", "OTHER_KEY"));
    let host = world.start();
    let session = world.create(&host, "codex", "SAY never");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "failed", "{ended}");
    let said = ended["failure"]["message"].as_str().expect("words");
    assert!(said.contains("MOCK_API_KEY"), "{ended}");
    send(&host.client(), &session, "SAY never");
    world.end(host);
}

#[test]
fn how_the_agent_talks_is_an_option_that_is_confirmed() {
    let world = World::new();
    let host = world.start();
    let body = json!({ "agent": "codex", "cwd": world.workspace(), "prompt": "SAY hi",
                       "options": { "personality": "friendly" } });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().expect("an id").to_owned();
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    let path = format!("/v1/sessions/{session}");
    let patch = json!({ "options": { "personality": "pragmatic" } });
    host.client().patch(&path, &patch).expect("answers").expect_status(200);
    let ended = follower.until(&mut sse, "the answer", is("control.ended"));
    assert_eq!(ended["state"], "done", "{ended}");
    assert_eq!(show(&host.client(), &session)["options"]["personality"], "pragmatic");
    world.end(host);
}

#[test]
fn a_conversation_that_was_never_used_is_superseded_when_its_process_is_gone() {
    let world = World::new();
    let host = world.start();
    let body = json!({ "agent": "codex", "cwd": world.workspace() });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().expect("an id").to_owned();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let start = format!("/v1/sessions/{session}/start");
    host.client().post(&start, &json!({})).expect("answers").expect_status(202);
    let first = follower.until(&mut sse, "the thread", is("thread.linked"));
    // Codex saves a thread with its first message (measured).
    crate::support::kill(crate::support::agent_pid(follower.of_type("process.started")[0]));
    follower.until(&mut sse, "the agent's end", is("process.exited"));
    send(&host.client(), &session, "SAY one");
    let second = follower.until(&mut sse, "another thread", is("thread.linked"));
    assert_eq!((&second["how"], &second["previous"]), (&json!("superseded"), &first["thread"]), "{second}");
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    world.end(host);
}
