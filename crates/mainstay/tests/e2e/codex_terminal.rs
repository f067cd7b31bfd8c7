//! Codex's own terminal beside a session, on a real terminal: what is done there shows here, and the other way round.

use crate::support::{DEADLINE, Follower, World, answer, follow_turn, interrupt, is, mainstay, send, show};
use mainstay_testkit::http::{Client, Sse};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::terminal::Terminal;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A world in which Codex's terminal asks nothing before it shows the conversation: neither whether the folder is trusted,
/// nor whether a newer model is wanted.
fn world() -> World {
    let world = World::new();
    let path = world.home.root().join("codex-home/codex/config.toml");
    let config = std::fs::read_to_string(&path).expect("the configuration");
    let config = config.replace("model = \"gpt-5.5\"", "model = \"gpt-5.4\"");
    let trusted = format!("{config}\n[projects.\"{}\"]\ntrust_level = \"trusted\"\n", world.workspace());
    std::fs::write(path, trusted).expect("written");
    world
}

fn terminal(world: &World, session: &str) -> Terminal {
    let terminal = Terminal::start(&world.home.command(mainstay(), &["tui", session]));
    terminal.wait_for(DEADLINE, "Ask Codex to do anything", 0);
    terminal
}

fn sessions(client: &Client) -> Vec<Value> {
    let list = client.get("/v1/sessions").expect("answers").expect_status(200).json();
    list["sessions"].as_array().expect("sessions").clone()
}

/// The session that came of something done in the terminal, when there is one beside these.
fn linked(client: &Client, known: &[&str]) -> Option<Value> {
    let new = sessions(client)
        .into_iter()
        .find(|session| !known.contains(&session["id"].as_str().unwrap_or("")))?;
    Some(new)
}

/// Types a line and enters it until something that it makes happens; gives the first such event.
fn enter(
    terminal: &mut Terminal,
    line: &str,
    follower: &mut Follower,
    sse: &mut Sse,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let from = follower.events.len();
    terminal.enter(DEADLINE, line, || {
        while let Some(event) = sse.next(Duration::from_millis(50)) {
            follower.take(event);
        }
        follower.events[from..].iter().any(&wanted)
    });
    follower.events[from..].iter().find(|event| wanted(event)).expect("it was seen").clone()
}

/// The end of this turn, also where it was read already.
fn end_of(follower: &mut Follower, sse: &mut Sse, turn: &Value) -> Value {
    let ends = |event: &Value| event["type"] == "turn.ended" && event["turn"] == *turn;
    match follower.events.iter().find(|event| ends(event)) {
        Some(ended) => ended.clone(),
        None => follower.until(sse, "the turn's end", ends),
    }
}

#[test]
fn turns_steers_and_approvals_go_both_ways_and_closing_changes_nothing() {
    let world = world();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY from-here");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    let mut terminal = terminal(&world, &session);
    terminal.wait_for(DEADLINE, "from-here", 0);

    // A turn of theirs, with where it comes from.
    enter(&mut terminal, "SAY typed-there", &mut follower, &mut sse, is("turn.ended"));
    let origins: Vec<&Value> = ["turn.started", "turn.updated"]
        .iter()
        .flat_map(|kind| follower.of_type(kind))
        .map(|event| &event["origin"])
        .collect();
    assert!(origins.contains(&&json!("client")), "{origins:?}");
    assert!(follower.agent_text().ends_with("typed-there"));

    // A turn of ours, with a steer of theirs.
    let from = terminal.text().len();
    send(&host.client(), &session, "GATED 2 g");
    world.model.release("g", 1);
    follower.until(&mut sse, "our turn's text", is("item.delta"));
    terminal.wait_for(DEADLINE, "GATED 2 g", from);
    let steered = enter(&mut terminal, "SAY steered-there", &mut follower, &mut sse, |event| {
        event["type"] == "item.started" && event["kind"] == "user_message"
    });
    let ended = end_of(&mut follower, &mut sse, &steered["turn"]);
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert!(follower.agent_text().ends_with("steered-there"), "{}", follower.agent_text());

    // Asked in both, answered here.
    let from = terminal.text().len();
    send(&host.client(), &session, "RUNESC echo asked ;; SAY thanks");
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    terminal.wait_for(DEADLINE, "echo asked", from);
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "accept").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("thanks"));

    // Asked in both, answered there: somebody else's answer.
    let from = terminal.text().len();
    send(&host.client(), &session, "RUNESC echo again ;; SAY thanks");
    follower.until(&mut sse, "the approval", is("request.opened"));
    terminal.wait_for(DEADLINE, "Yes, proceed", from);
    terminal.keys("y");
    let closed = follower.until(&mut sse, "the request's end", is("request.closed"));
    assert_eq!(closed["state"], "superseded", "{closed}");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));

    // A stop of ours reaches a turn of theirs.
    let held = enter(&mut terminal, "HOLD h ;; SAY never", &mut follower, &mut sse, is("turn.started"));
    assert_eq!(interrupt(&host.client(), &session)["recorded"], true);
    let ended = end_of(&mut follower, &mut sse, &held["turn"]);
    assert_eq!(ended["outcome"], "interrupted", "{ended}");

    let process = show(&host.client(), &session)["process"].clone();
    assert!(terminal.leave(DEADLINE, "/exit").success());
    send(&host.client(), &session, "SAY still-here");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("still-here"));
    assert_eq!(show(&host.client(), &session)["process"], process, "the same process");
    world.end(host);
}

#[test]
fn new_threads_and_branches_of_the_terminal_become_sessions_and_the_session_keeps_its_own() {
    let world = world();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY first");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    let thread = show(&host.client(), &session)["thread"].clone();
    let mut terminal = terminal(&world, &session);
    terminal.wait_for(DEADLINE, "first", 0);

    let mut known = vec![session.clone()];
    let mut beside = Vec::new();
    for (command, shown, prompt) in [
        ("/fork", "Fork created", "SAY in-the-fork"),
        ("/new", "OpenAI Codex", "SAY in-the-new-one"),
        ("/clear", "OpenAI Codex", "SAY after-clear"),
    ] {
        let from = terminal.text().len();
        let shows = |text: &str| {
            let wanted: String = shown.split_whitespace().collect();
            text.get(from..).is_some_and(|text| text.contains(&wanted))
        };
        // Seen by the test's own eyes: the terminal is borrowed while it is typed to.
        terminal.keys(command);
        terminal.wait_for(DEADLINE, command, from);
        let mut entered = Instant::now();
        terminal.keys("\r");
        let done = wait_for(DEADLINE, || {
            if entered.elapsed() > Duration::from_secs(5) && !shows(&terminal.text()) {
                // The terminal refuses it as long as it shows a turn, also one whose end the host has seen.
                terminal.keys(command);
                terminal.keys("\r");
                entered = Instant::now();
            }
            shows(&terminal.text()).then_some(())
        });
        assert!(done.is_some(), "{command} was not done: {}", &terminal.text()[from..]);
        let client = host.client();
        let ids: Vec<String> = known.clone();
        terminal.enter(DEADLINE, prompt, || {
            let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
            linked(&client, &ids).is_some_and(|new| {
                let events =
                    client.get(&format!("/v1/sessions/{}/events?limit=5000", new["id"].as_str().unwrap()));
                let events = events.expect("answers").expect_status(200).json();
                events["events"].as_array().is_some_and(|events| {
                    let said = prompt.trim_start_matches("SAY ");
                    let text = events.iter().any(|event| {
                        matches!(event["type"].as_str(), Some("item.delta" | "item.completed"))
                            && event["text"].as_str().is_some_and(|text| text.contains(said))
                    });
                    text && events.iter().filter(|event| event["type"] == "turn.ended").count() > 0
                })
            })
        });
        let ids: Vec<&str> = known.iter().map(String::as_str).collect();
        let new = linked(&host.client(), &ids).expect("a linked session");
        assert_eq!(new["launch"]["beside"], json!(session), "{command}: {new}");
        known.push(new["id"].as_str().expect("an id").to_owned());
        beside.push(new);
    }
    // The branch has what was said before it.
    let fork = beside[0]["id"].as_str().expect("an id");
    let events = host.client().get(&format!("/v1/sessions/{fork}/events?limit=5000")).expect("answers");
    assert!(events.expect_status(200).json().to_string().contains("\"first\""), "the branch's past");

    let client = host.client();
    let mine = show(&client, &session);
    assert_eq!(mine["thread"], thread, "the session keeps its thread");
    let processes: Vec<Value> = known.iter().map(|id| show(&client, id)["process"].clone()).collect();
    assert!(processes.iter().all(|process| *process == mine["process"]), "one process: {processes:?}");
    // And it is spoken with from here, too, while the terminal sits in the last of them.
    send(&client, &session, "SAY mine");
    let ended = |event: &Value| event["type"] == "turn.ended";
    follower.until(&mut sse, "the session's turn", ended);
    assert!(follower.agent_text().ends_with("mine"));
    let last = known.last().expect("linked").clone();
    let from = terminal.text().len();
    send(&client, &last, "SAY said-from-here");
    terminal.wait_for(DEADLINE, "said-from-here", from);
    terminal.leave(DEADLINE, "/exit");
    world.end(host);
}

fn short_rest(world: &World) {
    let path = world.home.mainstay_home().join("config.toml");
    let config = std::fs::read_to_string(&path).expect("the configuration");
    std::fs::write(path, config.replace("rest_after = \"1h\"", "rest_after = \"1s\"")).expect("written");
}

fn phase(host: &HostProcess, session: &str) -> Value {
    show(&host.client(), session)["process"].clone()
}

#[test]
fn an_agent_at_rest_is_started_for_the_terminal_and_stays_while_it_is_attached() {
    let world = world();
    short_rest(&world);
    let host = world.start();
    let session = world.create(&host, "codex", "SAY before-the-rest");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the rest", is("process.exited"));
    let plan = host.client().get(&format!("/v1/sessions/{session}/terminal")).expect("answers");
    assert_eq!(plan.expect_status(409).json()["code"], "submission_state");

    let mut terminal = terminal(&world, &session);
    terminal.wait_for(DEADLINE, "before-the-rest", 0);
    follower.until(&mut sse, "the start", is("process.started"));
    let attached = phase(&host, &session);
    // Longer than it takes to rest, nothing ends; then a turn shows that it is the same process still.
    let watched_until = Instant::now() + Duration::from_secs(4);
    while let Some(event) = sse.next(watched_until.saturating_duration_since(Instant::now())) {
        let event = follower.take(event);
        assert!(event.is_none_or(|event| event["type"] != "process.exited"), "it rested under the terminal");
    }
    enter(&mut terminal, "SAY on-time", &mut follower, &mut sse, is("turn.ended"));
    assert_eq!(phase(&host, &session), attached, "it rested under the terminal");
    let owed = show(&host.client(), &session)["owed"].clone();
    assert_eq!(owed, serde_json::json!([{ "what": "terminal", "count": 1 }]), "what holds it is shown");
    let exits = follower.of_type("process.exited").len();
    assert_eq!(exits, 1, "only the first rest");
    terminal.leave(DEADLINE, "/exit");
    follower.until(&mut sse, "the rest after the terminal", is("process.exited"));
    world.end(host);
}

#[test]
fn a_conversation_without_a_message_has_no_terminal_yet_and_nothing_is_started_for_it() {
    let world = world();
    let host = world.start();
    let body = json!({ "agent": "codex", "cwd": world.workspace() });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().expect("an id").to_owned();
    let refused = |when: &str| {
        let plan = host.client().get(&format!("/v1/sessions/{session}/terminal")).expect("answers");
        let problem = plan.expect_status(409).json();
        assert_eq!(problem["code"], "no_turn", "{when}: {problem}");
        assert!(
            problem["detail"].as_str().is_some_and(|detail| detail.contains("send a message first")),
            "{problem}"
        );
    };
    refused("at rest");
    let shown = Terminal::start(&world.home.command(mainstay(), &["tui", &session]));
    shown.wait_for(DEADLINE, "send a message first", 0);
    assert_eq!(show(&host.client(), &session)["process"], Value::Null, "an agent was started for nothing");
    let path = format!("/v1/sessions/{session}/start");
    host.client().post(&path, &json!({})).expect("answers");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the conversation", is("thread.linked"));
    refused("running");
    send(&host.client(), &session, "SAY first");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let plan = host.client().get(&format!("/v1/sessions/{session}/terminal")).expect("answers");
    plan.expect_status(200);
    world.end(host);
}

#[test]
fn the_terminal_gets_no_key_and_its_own_home_and_is_attached_again_after_the_host_died() {
    let world = world();
    let mut host = world.start();
    let session = world.create(&host, "codex", "SAY hello-there");
    follow_turn(&host.client(), &session);
    let plan = host.client().get(&format!("/v1/sessions/{session}/terminal")).expect("answers");
    let plan = plan.expect_status(200).json();
    let env = plan["env"].as_object().expect("an environment");
    assert!(!env.contains_key("MOCK_API_KEY"), "{plan}");
    let home = world.home.root().join("codex-home/codex");
    assert_eq!(env["CODEX_HOME"], json!(home), "{plan}");
    assert_eq!(plan["cwd"], json!(world.workspace()));

    let mut terminal = terminal(&world, &session);
    terminal.wait_for(DEADLINE, "hello-there", 0);
    host.kill9();
    let host = world.start();
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    enter(&mut terminal, "SAY after-the-host", &mut follower, &mut sse, is("turn.ended"));
    assert!(follower.agent_text().ends_with("after-the-host"), "{}", follower.agent_text());
    terminal.leave(DEADLINE, "/exit");
    world.end(host);
}
