//! A conversation whose record was restored from before its living process, or lost: bound to a session again, without
//! a word to the agent that it did not expect.

use crate::command_line::run;
use crate::support::{DEADLINE, Follower, World, agent_pid, follow_turn, is, is_alive, send, show};
use crate::unclaimed::{back_up, recover, restore, restored_under, stop, unclaimed};
use mainstay_testkit::http::Client;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};

fn adopt(client: &Client, token: &str) -> Value {
    recover(client, token, &json!({ "action": "adopt" })).expect_status(200).json()
}

/// The chain of a session's conversations, as its journal has it in this epoch.
fn linked(follower: &Follower) -> Vec<(String, String)> {
    let links = follower.of_type("thread.linked");
    links.iter().map(|link| (link["how"].to_string(), link["thread"].to_string())).collect()
}

/// The completed texts of the agent, oldest first.
fn agent_texts(client: &Client, session: &str) -> Vec<String> {
    let page = client.get(&format!("/v1/sessions/{session}/items?limit=100")).expect("answers").json();
    let items = page["items"].as_array().expect("items").iter().rev();
    let said = items.filter(|item| item["kind"] == "agent_message" && item["state"] == "completed");
    said.map(|item| item["text"].as_str().unwrap_or_default().to_owned()).collect()
}

const SECOND: &str = "SAY two ;; GATE g ;; SAY after";

#[test]
fn a_restored_session_has_its_running_turn_again() {
    let world = World::new();
    let (host, session, token, agent) = restored_under(&world, "codex", "SAY one", SECOND);
    world.model.wait_at_gate("g", DEADLINE);
    let client = host.client();
    let thread = unclaimed(&client)["threads"][0].clone();
    let path = format!("/v1/keepers/{token}/recover");
    let order = json!({ "action": "adopt" });
    let told = client.post_once(&path, "adopt-1", &order).expect("answers").expect_status(200).json();
    assert_eq!((&told["session"], &told["thread"]), (&json!(session), &thread), "{told}");
    let again = client.post_once(&path, "adopt-1", &order).expect("answers").expect_status(200);
    assert_eq!((again.header("idempotent-replay"), again.json()), (Some("true"), told));
    assert_eq!(recover(&client, &token, &order).expect_status(409).json()["code"], "keeper_claimed");

    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let running = follower.until(&mut sse, "the turn that runs", is("turn.started"));
    assert_eq!(running["origin"], "unknown", "nobody here knows whose it is");
    follower.until(&mut sse, "what was said before", |event| {
        event["type"] == "item.completed" && event["text"] == "two"
    });
    assert_eq!(show(&client, &session)["status"], "running");
    world.model.open("g");
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!(follower.agent_text(), "twoafter");
    let started = follower.of_type("process.started");
    assert_eq!((started.len(), agent_pid(started[0])), (1, agent), "it is the same process");
    assert_eq!(linked(&follower), [("\"resumed\"".to_owned(), thread.to_string())]);
    let user: Vec<&Value> = follower.events.iter().filter(|event| event["kind"] == "user_message").collect();
    assert!(user.iter().any(|item| item.to_string().contains("SAY two")), "its prompt is shown: {user:?}");
    let said = follower.of_type("notice").iter().any(|notice| notice.to_string().contains(&token));
    assert!(said, "where it comes from is not said");
    let fences: Vec<u64> = follower.events.iter().filter_map(|event| event["fence"].as_u64()).collect();
    assert!(fences.is_sorted() && *fences.last().unwrap() > 2, "{fences:?}");

    send(&client, &session, "SAY three");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("three"));
    for prompt in ["SAY one", SECOND, "SAY three"] {
        assert_eq!(world.model.user_messages_seen(prompt), 1, "{prompt}");
    }
    assert!(is_alive(agent));
    world.end(host);
}

#[test]
fn a_turn_that_ended_while_nobody_knew_is_read_from_the_history_once() {
    let world = World::new();
    let (mut host, session, token, agent) = restored_under(&world, "codex", "SAY one", SECOND);
    world.model.wait_at_gate("g", DEADLINE);
    world.model.open("g");
    // Whatever the host was about to do when it is killed is done by the next one.
    let told = run(&world, &["recover", "--keeper", &token, "--adopt", "--json"]).expect_code(0).lines();
    assert_eq!(told[0]["session"], session.as_str());
    host.kill9();
    let host = world.start();
    let client = host.client();
    // Read from the timeline, which has no epochs: the killed host may not have come to acknowledge the rewind.
    let says = |expected: &[&str]| {
        let shown = wait_for(DEADLINE, || (agent_texts(&client, &session) == expected).then_some(()));
        assert!(shown.is_some(), "{:?}", agent_texts(&client, &session));
    };
    says(&["one", "two", "after"]);
    send(&client, &session, "SAY three");
    says(&["one", "two", "after", "three"]);
    assert_eq!(show(&client, &session)["process"], token.as_str(), "no other process was started");
    assert!(is_alive(agent));
    assert_eq!(world.model.user_messages_seen(SECOND), 1);
    world.end(host);
}

#[test]
fn an_open_approval_is_answerable_again() {
    let world = World::new();
    let marker = world.home.workspace().join("made-by-agent");
    let (host, session, token, _) =
        restored_under(&world, "codex", "SAY one", "SAY two ;; RUNESC touch made-by-agent ;; SAY after");
    let client = host.client();
    adopt(&client, &token);
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    assert!(!marker.exists());
    let request = opened["request"].as_str().expect("an id").to_owned();
    crate::support::answer(&client, &session, &request, "accept").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(marker.exists(), "the answer did not reach the agent");
    world.end(host);
}

#[test]
fn a_lost_databases_conversation_becomes_a_new_session() {
    let world = World::new();
    let mut host = world.start();
    let lost = world.create(&host, "codex", "SAY one");
    let follower = follow_turn(&host.client(), &lost);
    let agent = agent_pid(follower.of_type("process.started")[0]);
    send(&host.client(), &lost, SECOND);
    world.model.wait_at_gate("g", DEADLINE);
    host.kill9();
    restore(&world, None);
    let host = world.start();
    let client = host.client();
    let found = unclaimed(&client);
    let told = adopt(&client, found["token"].as_str().expect("a token"));
    let session = told["session"].as_str().expect("a session").to_owned();
    assert_ne!(session, lost);
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    follower.until(&mut sse, "what was said before", |event| {
        event["type"] == "item.completed" && event["text"] == "two"
    });
    world.model.open("g");
    follower.until(&mut sse, "the running turn's end", is("turn.ended"));
    assert_eq!(follower.agent_text(), "onetwoafter");
    assert_eq!(linked(&follower), [("\"adopted\"".to_owned(), told["thread"].to_string())]);
    let shown = show(&client, &session);
    assert_eq!((&shown["cwd"], &shown["agent"]), (&json!(world.workspace()), &json!("codex")), "{shown}");

    // It is a session like any other: its conversation is taken up again in another process.
    client.post(&format!("/v1/sessions/{session}/stop"), &json!({})).expect("answers").expect_status(202);
    follower.until(&mut sse, "the process's end", is("lease.released"));
    assert!(wait_for(DEADLINE, || (!is_alive(agent)).then_some(())).is_some());
    send(&client, &session, "SAY three");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("three"));
    assert_eq!(world.model.user_messages_seen("SAY one"), 1, "the model sees one conversation, once");
    assert_eq!(linked(&follower).len(), 2);
    assert_eq!(linked(&follower)[1], ("\"resumed\"".to_owned(), told["thread"].to_string()));
    world.end(host);
}

#[test]
fn a_record_that_names_an_earlier_process_gives_it_up_for_the_later_one() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY one");
    follow_turn(&host.client(), &session);
    // Copied while the first process lived: the record names it.
    let mut host = host;
    host.kill9();
    let backup = back_up(&world);
    let host = world.start();
    stop(host);
    let mut host = world.start();
    send(&host.client(), &session, SECOND);
    world.model.wait_at_gate("g", DEADLINE);
    let token = show(&host.client(), &session)["process"].as_str().expect("a process").to_owned();
    host.kill9();
    restore(&world, Some(&backup));
    let host = world.start();
    let client = host.client();
    let recovering = wait_for(DEADLINE, || (show(&client, &session)["status"] == "recovering").then_some(()));
    assert!(recovering.is_some(), "its process cannot be proven gone: {}", show(&client, &session));
    assert_eq!(adopt(&client, &token)["session"], session.as_str());
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let gone = follower.until(&mut sse, "the earlier one's end", is("process.exited"));
    assert_eq!(gone["exit"]["cause"], "keeper_lost", "{gone}");
    // What was said before comes from the history: the turn goes on when that is read.
    follower.until(&mut sse, "what was said before", |event| {
        event["type"] == "item.completed" && event["text"] == "two"
    });
    world.model.open("g");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(follower.agent_text(), "twoafter");
    world.end(host);
}

#[test]
fn all_conversations_of_one_process_are_their_sessions_again() {
    const PROMPTS: [&str; 2] = ["SAY two ;; GATE g ;; SAY after", "SAY zwei ;; GATE h ;; SAY danach"];
    let world = World::new();
    let host = world.start();
    let sessions = ["SAY one", "SAY eins"].map(|prompt| world.create(&host, "codex", prompt));
    for session in &sessions {
        follow_turn(&host.client(), session);
    }
    stop(host);
    let backup = back_up(&world);
    let mut host = world.start();
    for (session, prompt) in sessions.iter().zip(PROMPTS) {
        send(&host.client(), session, prompt);
    }
    for gate in ["g", "h"] {
        world.model.wait_at_gate(gate, DEADLINE);
    }
    let tokens = sessions.clone().map(|session| show(&host.client(), &session)["process"].clone());
    assert_eq!(tokens[0], tokens[1], "they share a process");
    host.kill9();
    restore(&world, Some(&backup));
    let host = world.start();
    let client = host.client();
    let found = unclaimed(&client);
    assert_eq!(found["threads"].as_array().map(Vec::len), Some(2), "{found}");
    adopt(&client, found["token"].as_str().expect("a token"));
    let listed = client.get("/v1/keepers").expect("answers").json();
    let mut named: Vec<&str> = listed["keepers"][0]["sessions"]
        .as_array()
        .expect("sessions")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    named.sort_unstable();
    let mut expected = sessions.each_ref().map(String::as_str);
    expected.sort_unstable();
    assert_eq!(named, expected, "{listed}");
    let says = |session: &str, expected: &[&str]| {
        let shown = wait_for(DEADLINE, || (agent_texts(&client, session) == expected).then_some(()));
        assert!(shown.is_some(), "{:?}", agent_texts(&client, session));
    };
    says(&sessions[0], &["one", "two"]);
    says(&sessions[1], &["eins", "zwei"]);
    for gate in ["g", "h"] {
        world.model.open(gate);
    }
    says(&sessions[0], &["one", "two", "after"]);
    says(&sessions[1], &["eins", "zwei", "danach"]);
    for (session, token) in sessions.iter().zip(tokens) {
        assert_eq!(show(&client, session)["process"], token);
    }
    world.end(host);
}

#[test]
fn a_crash_at_any_step_of_an_adoption_loses_and_repeats_nothing() {
    for point in ["read_not_committed", "committed_not_delivered", "delivered_not_acknowledged"] {
        let world = World::new();
        let (mut host, session, token, agent) = restored_under(&world, "codex", "SAY one", SECOND);
        world.model.wait_at_gate("g", DEADLINE);
        host.kill9();
        let mut host = world.start_to_die_at(point);
        let path = format!("/v1/keepers/{token}/recover");
        // It may die before it answers.
        let _answered_or_broken = host.client().post(&path, &json!({ "action": "adopt" }));
        host.wait(DEADLINE);
        world.model.open("g");
        let host = world.start();
        let client = host.client();
        if client.get("/v1/info").expect("answers").json()["unclaimed"] == json!([token]) {
            adopt(&client, &token);
        }
        let says = |expected: &[&str]| {
            let shown = wait_for(DEADLINE, || (agent_texts(&client, &session) == expected).then_some(()));
            assert!(shown.is_some(), "{point}: {:?}", agent_texts(&client, &session));
        };
        says(&["one", "two", "after"]);
        send(&client, &session, "SAY three");
        says(&["one", "two", "after", "three"]);
        assert_eq!(show(&client, &session)["process"], token.as_str(), "{point}");
        assert!(is_alive(agent), "{point}");
        assert_eq!(world.model.user_messages_seen(SECOND), 1, "{point}");
        world.end(host);
    }
}
