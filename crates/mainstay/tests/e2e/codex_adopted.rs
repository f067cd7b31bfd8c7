//! Threads that the real Codex made without us: listed, adopted with their past, gone on with. And what Codex offers, read
//! at rest.

use crate::support::{DEADLINE, Follower, World, interrupt, is, mainstay, send, show};
use mainstay_testkit::agents::codex_binary;
use mainstay_testkit::codex::CodexHome;
use mainstay_testkit::contain::live_descendants;
use mainstay_testkit::peer::Peer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn codex_home(world: &World) -> CodexHome {
    let folder = world.home.root().join("codex-home");
    CodexHome { home: folder.join("home"), codex_home: folder.join("codex") }
}

/// Codex by itself, spoken with over its standard input and output.
fn codex(world: &World) -> Peer {
    let mut command = Command::new(codex_binary());
    command
        .arg("app-server")
        .env_clear()
        .envs(codex_home(world).env())
        .current_dir(world.home.workspace())
        .stderr(Stdio::null());
    let mut codex = Peer::start(command);
    let client = json!({ "name": "other", "title": "Other", "version": "0" });
    codex.request("initialize", json!({ "clientInfo": client, "capabilities": {} }), DEADLINE);
    codex.notify("initialized", json!({}));
    codex
}

fn turn(codex: &mut Peer, thread: &str, prompt: &str) {
    let input = json!([{ "type": "text", "text": prompt }]);
    codex.request("turn/start", json!({ "threadId": thread, "input": input }), DEADLINE);
    codex.wait_for(DEADLINE, "the turn's end", |message| message["method"] == "turn/completed");
}

/// A thread that Codex made by itself, without us: one turn for each prompt, and the process is gone.
fn foreign_thread(world: &World, prompts: &[&str]) -> String {
    let mut codex = codex(world);
    let started = codex.request("thread/start", json!({ "cwd": world.workspace() }), DEADLINE);
    let thread = started["result"]["thread"]["id"].as_str().expect("a thread").to_owned();
    for prompt in prompts {
        turn(&mut codex, &thread, prompt);
    }
    codex.close_input();
    codex.wait(DEADLINE);
    thread
}

fn adopt(world: &World, host: &mainstay_testkit::mainstay::HostProcess, thread: &str) -> String {
    let body = json!({ "agent": "codex", "cwd": world.workspace(), "adopt": { "thread": thread } });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    made["id"].as_str().expect("an id").to_owned()
}

/// Every event up to now.
fn journal(host: &mainstay_testkit::mainstay::HostProcess, session: &str) -> Vec<Value> {
    let path = format!("/v1/sessions/{session}/events?limit=5000");
    let page = host.client().get(&path).expect("answers").expect_status(200).json();
    page["events"].as_array().expect("events").clone()
}

fn texts(events: &[Value], kind: &str) -> Vec<String> {
    let started: BTreeMap<&str, &str> = events
        .iter()
        .filter(|event| event["type"] == "item.started")
        .filter_map(|event| Some((event["item"].as_str()?, event["kind"].as_str()?)))
        .collect();
    let completed = events.iter().filter(|event| {
        event["type"] == "item.completed"
            && event["item"].as_str().and_then(|item| started.get(item)) == Some(&kind)
    });
    completed.filter_map(|event| event["text"].as_str()).map(str::to_owned).collect()
}

/// All files below a folder, with what is in them, but for those that the agent's databases are.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let kind = entry.file_type().expect("a kind");
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.insert(entry.path(), std::fs::read(entry.path()).expect("readable"));
            }
        }
    }
    found
}

#[test]
fn the_past_of_an_existing_thread_is_there_before_an_agent_runs_and_its_files_stay_as_they_are() {
    let world = World::new();
    let thread = foreign_thread(&world, &["SAY one", "RUN echo made ;; SAY two"]);
    let home = codex_home(&world).codex_home;
    let before = files(&home);
    let host = world.start();
    let session = adopt(&world, &host, &thread);
    let events = journal(&host, &session);
    assert_eq!(texts(&events, "agent_message"), ["one", "two"]);
    let ends = events.iter().filter(|event| event["type"] == "turn.ended" && event["outcome"] == "completed");
    assert_eq!(ends.count(), 2);
    let commands = events.iter().filter(|event| event["kind"] == "tool_call").count();
    assert_eq!(commands, 1, "the command of the second turn");
    let linked: Vec<&Value> = events.iter().filter(|event| event["type"] == "thread.linked").collect();
    assert_eq!((linked.len(), &linked[0]["how"]), (1, &json!("adopted")), "{linked:?}");
    assert!(!events.iter().any(|event| event["type"] == "process.started"), "no agent was started");
    assert_eq!(show(&host.client(), &session)["status"], "idle");
    assert_eq!(files(&home), before, "the agent's own files were written");
    // The feed tells what happens, and not what happened before there was a session.
    let feed = host.client().get("/v1/events").expect("answers").expect_status(200).json();
    assert!(!feed.to_string().contains("turn.ended"), "{feed}");

    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    send(&host.client(), &session, "SAY three");
    let started = follower
        .until(&mut sse, "the turn", |event| event["type"] == "turn.started" && event["origin"] == "message");
    follower.until(&mut sse, "the turn's end", |event| {
        event["type"] == "turn.ended" && event["turn"] == started["turn"]
    });
    assert_eq!(texts(&follower.events, "agent_message"), ["one", "two"], "shown once");
    assert!(follower.agent_text().ends_with("three"));
    let asked = world.model.requests().last().expect("a request").body.to_string();
    assert!(asked.contains("SAY one") && asked.contains("SAY three"), "{asked}");
    world.end(host);
}

#[test]
fn what_was_said_elsewhere_after_the_adoption_is_shown_when_the_agent_runs() {
    let world = World::new();
    let thread = foreign_thread(&world, &["SAY one"]);
    let host = world.start();
    let session = adopt(&world, &host, &thread);
    let mut other = codex(&world);
    other.request("thread/resume", json!({ "threadId": thread, "excludeTurns": true }), DEADLINE);
    turn(&mut other, &thread, "SAY meanwhile");
    other.close_input();
    other.wait(DEADLINE);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    send(&host.client(), &session, "SAY two");
    follower
        .until(&mut sse, "our turn", |event| event["type"] == "turn.started" && event["origin"] == "message");
    follower.until(&mut sse, "its end", is("turn.ended"));
    let ended = follower.of_type("turn.ended").len();
    assert_eq!(ended, 3, "the past, what came meanwhile, and ours");
    assert_eq!(texts(&follower.events, "agent_message")[..2], ["one", "meanwhile"]);
    world.end(host);
}

#[test]
fn a_record_that_cannot_be_read_whole_gives_no_past_and_says_so() {
    let world = World::new();
    let thread = foreign_thread(&world, &["SAY one"]);
    let home = codex_home(&world).codex_home;
    let name = format!("-{thread}.jsonl");
    let all = files(&home.join("sessions"));
    let record = all.keys().find(|path| path.to_string_lossy().ends_with(&name)).expect("a record").clone();
    let text = String::from_utf8(all[&record].clone()).expect("text");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.insert(3, "{\"cut");
    std::fs::write(&record, lines.join("\n")).expect("written");
    let host = world.start();
    let session = adopt(&world, &host, &thread);
    let events = journal(&host, &session);
    let notice = events.iter().find(|event| event["type"] == "notice").expect("a notice");
    assert!(notice["message"].as_str().expect("words").contains("line 4"), "{notice}");
    assert!(!events.iter().any(|event| event["type"] == "turn.ended"), "nothing of it is shown");
    world.end(host);
}

#[test]
fn a_thread_that_was_put_away_is_listed_so_and_taken_out_when_it_is_gone_on_with() {
    let world = World::new();
    let thread = foreign_thread(&world, &["SAY one"]);
    let mut other = codex(&world);
    other.request("thread/archive", json!({ "threadId": thread }), DEADLINE);
    other.close_input();
    other.wait(DEADLINE);
    let host = world.start();
    let known = host.client().get("/v1/agents/codex/threads").expect("answers").expect_status(200).json();
    assert_eq!(known["threads"][0]["archived"], true, "{known}");
    let session = adopt(&world, &host, &thread);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    send(&host.client(), &session, "SAY two");
    follower
        .until(&mut sse, "our turn", |event| event["type"] == "turn.started" && event["origin"] == "message");
    follower.until(&mut sse, "its end", is("turn.ended"));
    assert_eq!(texts(&follower.events, "agent_message"), ["one"], "the past, read in the archive");
    assert!(follower.agent_text().ends_with("two"));
    world.end(host);
}

#[test]
fn threads_that_can_be_adopted_are_listed_with_whose_they_are() {
    let world = World::new();
    let first = foreign_thread(&world, &["SAY the first one"]);
    let second = foreign_thread(&world, &["SAY the second one"]);
    let host = world.start();
    let session = adopt(&world, &host, &first);
    let known = host.client().get("/v1/agents/codex/threads").expect("answers").expect_status(200).json();
    let threads = known["threads"].as_array().expect("threads");
    assert_eq!((threads.len(), &known["incomplete"]), (2, &json!(false)), "{known}");
    assert_eq!(
        (&threads[0]["thread"], &threads[1]["thread"]),
        (&json!(second), &json!(first)),
        "newest first"
    );
    assert_eq!((&threads[0]["session"], &threads[1]["session"]), (&Value::Null, &json!(session)));
    assert_eq!(threads[0]["preview"], "SAY the second one");
    assert_eq!(threads[0]["cwd"], json!(world.workspace()));
    let few =
        host.client().get("/v1/agents/codex/threads?limit=1").expect("answers").expect_status(200).json();
    assert_eq!((few["threads"].as_array().map(Vec::len), &few["incomplete"]), (Some(1), &json!(true)));
    host.client().get("/v1/agents/scripted/threads").expect("answers").expect_status(422);

    // On the command line: found by its id, in its own folder.
    let run = |arguments: &[&str]| {
        let ran = world.home.command(mainstay(), arguments).output().expect("runs");
        (ran.status.code(), String::from_utf8_lossy(&ran.stdout).into_owned())
    };
    let (code, shown) = run(&["threads"]);
    assert_eq!(code, Some(0));
    assert!(shown.contains(&second) && shown.contains(&session), "{shown}");
    let (code, said) = run(&["run", "--adopt", &second, "SAY and on", "--deny"]);
    assert_eq!((code, said.trim()), (Some(0), "and on"), "the past is not said again");
    let (code, _) = run(&["run", "--adopt", &second, "SAY again", "--deny"]);
    assert_eq!(code, Some(4), "a session has it");
    world.end(host);
}

#[test]
fn models_and_account_are_known_at_rest_after_the_agent_ran_or_was_asked() {
    let world = World::new();
    let host = world.start();
    let get = |host: &mainstay_testkit::mainstay::HostProcess, path: &str| {
        host.client().get(path).expect("answers").expect_status(200).json()
    };
    let known = get(&host, "/v1/agents/codex/models");
    assert_eq!((&known["source"], &known["models"]), (&json!("unknown"), &Value::Null), "{known}");
    let asked = host.client().post("/v1/agents/codex/models/refresh", &json!({}));
    let refreshed = asked.expect("answers").expect_status(200).json();
    assert_eq!(refreshed["version"], "0.171.0", "{refreshed}");
    // Gone with its answer: nothing of it is left, and no session was made.
    let host_pid = i32::try_from(host.pid()).expect("a pid");
    assert!(live_descendants(host_pid).is_empty(), "its process is left");
    let known = get(&host, "/v1/agents/codex/models");
    let models = known["models"].as_array().expect("models");
    assert!(models.iter().any(|model| model["default"] == true), "{known}");
    assert!(models.iter().all(|model| model["hidden"] == false), "{known}");
    let efforts = models.iter().find(|model| model["id"] == "gpt-5.5").map(|model| &model["efforts"]);
    assert!(efforts.and_then(Value::as_array).is_some_and(|efforts| efforts.len() > 2), "{known}");
    let all = get(&host, "/v1/agents/codex/models?hidden=true");
    assert!(all["models"].as_array().map(Vec::len) > Some(models.len()), "hidden ones too");
    let account = get(&host, "/v1/agents/codex/account");
    assert_eq!(account["account"]["source"], "agent", "{account}");
    assert_eq!(get(&host, "/v1/agents/codex/tools")["mcp_servers"]["source"], "agent");
    host.client().post("/v1/agents/demo/models/refresh", &json!({})).expect("answers").expect_status(422);

    // What is known checks options, also before the agent has listed its models in this process.
    let options = json!({ "effort": "enormous" });
    let body = json!({ "agent": "codex", "cwd": world.workspace(), "prompt": "SAY hi" });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().expect("an id").to_owned();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let path = format!("/v1/sessions/{session}");
    host.client().patch(&path, &json!({ "options": options })).expect("answers").expect_status(200);
    let ended = follower.until(&mut sse, "the answer", is("control.ended"));
    assert_eq!(ended["state"], "refused", "{ended}");
    assert!(ended.to_string().contains("takes the efforts"), "{ended}");
    interrupt(&host.client(), &session);
    world.end(host);
    // Read from where it is kept.
    let host = world.start();
    assert!(get(&host, "/v1/agents/codex/models")["models"].is_array());
    world.end(host);
}
