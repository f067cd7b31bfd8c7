//! The real Claude Code: conversations brought in, branched off, emptied and shortened, and what is asked of it beside
//! messages.

use crate::support::{Follower, World, follow_turn, is, send, show};
use mainstay_testkit::http::Sse;
use mainstay_testkit::mainstay::HostProcess;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

fn post(host: &HostProcess, session: &str, what: &str, body: &Value, status: u16) -> Value {
    let path = format!("/v1/sessions/{session}/{what}");
    host.client().post(&path, body).expect("answers").expect_status(status).json()
}

fn ended(event: &Value, control: &Value) -> bool {
    event["type"] == "control.ended" && event["control"] == *control
}

/// A conversation that somebody had with the program before, without a host.
fn had_before(world: &World, id: &str, prompt: &str) {
    let mut command = Command::new(mainstay_testkit::agents::claude_binary());
    command.args(["-p", "--session-id", id, prompt]).env_clear().envs(world.claude.env());
    command.env("CLAUDE_CONFIG_DIR", &world.claude.config_dir).env("DISABLE_AUTOUPDATER", "1");
    command.current_dir(world.home.workspace()).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(command.status().expect("it runs").success());
}

#[test]
fn claude_a_conversation_is_adopted_with_its_history() {
    const ID: &str = "5d0c3d5e-8a57-4c43-9d2c-0b8d4c1f7a11";
    let world = World::new();
    had_before(&world, ID, "RUN ls ;; SAY before");
    let host = world.start();
    let body = json!({
        "agent": "claude", "cwd": world.workspace(), "adopt": { "thread": ID }, "prompt": "SAY after",
    });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let follower = follow_turn(&host.client(), made["id"].as_str().unwrap());
    let link = follower.of_type("thread.linked")[0];
    assert_eq!((&link["how"], &link["thread"]), (&"adopted".into(), &ID.into()));
    assert_eq!(follower.agent_text(), "beforeafter", "what was said before is shown, once");
    let kinds: Vec<&str> =
        follower.of_type("item.started").iter().filter_map(|item| item["kind"].as_str()).collect();
    assert_eq!(kinds, ["user_message", "tool_call", "agent_message", "user_message", "agent_message"]);
    let seen = world.model.requests().last().unwrap().user_messages();
    assert_eq!(seen, ["RUN ls ;; SAY before", "SAY after"]);
    world.end(host);
}

#[test]
fn claude_a_conversation_is_adopted_with_what_its_sub_agents_did() {
    const ID: &str = "5d0c3d5e-8a57-4c43-9d2c-0b8d4c1f7a15";
    let world = World::new();
    let helper = json!({
        "description": "helper", "prompt": "RUN ls ~~ SAY sub done", "subagent_type": "general-purpose",
    });
    had_before(&world, ID, &format!("TOOL Agent {helper} ;; SAY main done"));
    let requests = world.model.requests().len();
    let host = world.start();
    let body = json!({
        "agent": "claude", "cwd": world.workspace(), "adopt": { "thread": ID }, "prompt": "SAY after",
    });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let follower = follow_turn(&host.client(), made["id"].as_str().unwrap());
    let children = follower.of_type("child.started");
    assert_eq!(children.len(), 1, "{children:?}");
    let child = &children[0]["child"];
    assert_eq!((&children[0]["title"], &children[0]["role"]), (&"helper".into(), &"general-purpose".into()));
    let ended = follower.of_type("child.ended");
    assert!(ended.len() == 1 && ended[0]["child"] == *child, "{ended:?}");
    let of_child = follower.of_type("item.started").into_iter().filter(|item| item["child"] == *child);
    let of_child: Vec<(&str, &str)> = of_child
        .map(|item| (item["kind"].as_str().unwrap(), follower.text_of(item["item"].as_str().unwrap())))
        .collect();
    let kinds: Vec<&str> = of_child.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, ["tool_call", "agent_message"], "{of_child:?}");
    assert_eq!(of_child[1].1, "sub done");
    assert_eq!(world.model.requests().len(), requests + 1, "only the new message was asked of the model");
    world.end(host);
}

#[test]
fn claude_conversations_are_listed_without_starting_it_and_one_is_adopted_from_the_list() {
    const FIRST: &str = "5d0c3d5e-8a57-4c43-9d2c-0b8d4c1f7a12";
    const SECOND: &str = "5d0c3d5e-8a57-4c43-9d2c-0b8d4c1f7a13";
    let world = World::new();
    had_before(&world, FIRST, "SAY one");
    had_before(&world, SECOND, "SAY two");
    let host = world.start();
    let requests = world.model.requests().len();
    let list = |query: &str| {
        let path = format!("/v1/agents/claude/threads{query}");
        host.client().get(&path).expect("answers").expect_status(200).json()
    };
    let ids = |page: &Value| -> Vec<String> {
        let threads = page["threads"].as_array().expect("a list").iter();
        threads.map(|thread| thread["thread"].as_str().expect("an id").to_owned()).collect()
    };
    let page = list("?limit=1");
    assert_eq!(ids(&page), [SECOND], "the newest first");
    assert_eq!(page["incomplete"], true, "there is another");
    let shown = &page["threads"][0];
    assert_eq!((&shown["preview"], &shown["cwd"]), (&"SAY two".into(), &world.workspace().into()), "{shown}");
    assert!(shown["session"].is_null() && shown["open_in"].is_null(), "{shown}");
    assert_eq!(ids(&list("")), [SECOND, FIRST]);
    assert_eq!(world.model.requests().len(), requests, "nothing was started");

    let printed =
        world.home.command(crate::support::mainstay(), &["threads", "claude"]).output().expect("runs");
    let printed = String::from_utf8(printed.stdout).expect("text");
    assert!(printed.contains(FIRST) && printed.contains("SAY two"), "{printed}");

    let body = json!({ "agent": "claude", "cwd": world.workspace(), "adopt": { "thread": FIRST }, "prompt": "SAY on" });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    follow_turn(&host.client(), made["id"].as_str().unwrap());
    let page = list("");
    let adopted =
        page["threads"].as_array().unwrap().iter().find(|thread| thread["thread"] == FIRST).unwrap();
    assert_eq!(adopted["session"], made["id"], "{adopted}");
    let other = host.client().get("/v1/agents/scripted/threads").expect("answers").expect_status(422).json();
    assert_eq!(other["code"], "unsupported", "{other}");
    world.end(host);
}

/// Goes on with a conversation in the program, without a host.
fn goes_on_elsewhere(world: &World, id: &str, prompt: &str) {
    let mut command = Command::new(mainstay_testkit::agents::claude_binary());
    command.args(["-p", "--resume", id, prompt]).env_clear().envs(world.claude.env());
    command.env("CLAUDE_CONFIG_DIR", &world.claude.config_dir).env("DISABLE_AUTOUPDATER", "1");
    command.current_dir(world.home.workspace()).stdin(Stdio::null()).stdout(Stdio::null());
    assert!(command.status().expect("it runs").success());
}

fn end_process(
    host: &HostProcess,
    session: &str,
    follower: &mut Follower,
    sse: &mut mainstay_testkit::http::Sse,
) {
    host.client().post(&format!("/v1/sessions/{session}/stop"), &json!({})).expect("answers");
    follower.until(sse, "the process's end", is("process.exited"));
}

#[test]
fn claude_what_was_said_elsewhere_is_shown_when_the_conversation_is_taken_up_again() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY one");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let thread = follower.of_type("thread.linked")[0]["thread"].as_str().unwrap().to_owned();
    end_process(&host, &session, &mut follower, &mut sse);
    send(&host.client(), &session, "SAY two");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(follower.of_type("notice").is_empty(), "nothing happened elsewhere");
    end_process(&host, &session, &mut follower, &mut sse);
    goes_on_elsewhere(&world, &thread, "SAY elsewhere");
    send(&host.client(), &session, "SAY three");
    let notice = follower.until(&mut sse, "a notice", is("notice"));
    assert!(notice["message"].as_str().unwrap().contains("somebody else went on"), "{notice}");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(follower.agent_text(), "onetwoelsewherethree");
    let seen = world.model.requests().last().unwrap().user_messages();
    assert_eq!(seen, ["SAY one", "SAY two", "SAY elsewhere", "SAY three"]);
    end_process(&host, &session, &mut follower, &mut sse);
    let notices = follower.of_type("notice").len();
    send(&host.client(), &session, "SAY four");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(follower.of_type("notice").len(), notices, "it is said once");
    world.end(host);
}

#[test]
fn claude_the_variant_of_a_model_is_kept_over_a_resume() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY one");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let model = show(&host.client(), &session)["options"]["model"].clone();
    assert!(model.as_str().unwrap().ends_with("[1m]"), "the default has the large context: {model}");
    end_process(&host, &session, &mut follower, &mut sse);
    send(&host.client(), &session, "SAY two");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(show(&host.client(), &session)["options"]["model"], model);
    let usage = &follower.of_type("turn.ended")[1]["usage"]["modelUsage"];
    assert!(usage[model.as_str().unwrap()].is_object(), "it worked with another: {usage}");
    world.end(host);
}

#[test]
fn claude_thinking_is_switched_and_a_wrong_word_is_refused() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY one");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let thinking = |world: &World| world.model.requests().last().unwrap().body["thinking"].clone();
    let path = format!("/v1/sessions/{session}");
    let by_default = thinking(&world);
    let set = |word: Option<&str>, follower: &mut Follower, sse: &mut Sse| {
        let options = json!({ "options": { "thinking": word } });
        host.client().patch(&path, &options).expect("answers").expect_status(200);
        follower.until(sse, "the control's end", is("control.ended"))
    };
    assert_eq!(set(Some("off"), &mut follower, &mut sse)["state"], "done");
    assert_eq!(set(Some("perhaps"), &mut follower, &mut sse)["state"], "refused");
    assert_eq!(show(&host.client(), &session)["options"]["thinking"], "off");
    send(&host.client(), &session, "SAY two");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let off = thinking(&world);
    assert!(off.is_null() || off["type"] == "disabled", "{off}");
    assert_ne!(off, by_default);
    // Taken back: the living process does what it does by itself.
    assert_eq!(set(None, &mut follower, &mut sse)["state"], "done");
    send(&host.client(), &session, "SAY three");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(thinking(&world), by_default);
    assert_eq!(show(&host.client(), &session)["options"]["thinking"], Value::Null);
    world.end(host);
}

#[test]
fn claude_options_that_are_taken_back_are_what_it_does_by_itself() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY one");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let asked = |world: &World| {
        let body = world.model.requests().last().unwrap().body.clone();
        json!({ "model": body["model"], "effort": body["output_config"] })
    };
    let by_itself = asked(&world);
    let path = format!("/v1/sessions/{session}");
    let mut set = |options: Value, follower: &mut Follower| {
        host.client().patch(&path, &json!({ "options": options })).expect("answers").expect_status(200);
        let ended = follower.until(&mut sse, "the control's end", is("control.ended"));
        assert_eq!(ended["state"], "done", "{ended}");
        send(&host.client(), &session, "SAY more");
        follower.until(&mut sse, "the turn's end", is("turn.ended"));
    };
    set(json!({ "model": "sonnet", "effort": "low", "mode": "acceptEdits" }), &mut follower);
    assert_ne!(asked(&world), by_itself);
    set(json!({ "model": null, "effort": null, "mode": null }), &mut follower);
    assert_eq!(asked(&world), by_itself);
    let shown = show(&host.client(), &session)["options"].clone();
    assert_eq!((&shown["mode"], &shown["effort"]), (&"default".into(), &Value::Null), "{shown}");
    assert!(shown["model"].as_str().unwrap().contains("opus"), "what it reports: {shown}");
    world.end(host);
}

#[test]
fn claude_an_unknown_conversation_is_not_adopted() {
    let world = World::new();
    let host = world.start();
    let thread = "00000000-0000-4000-8000-000000000000";
    let body = json!({
        "agent": "claude", "cwd": world.workspace(), "adopt": { "thread": thread }, "prompt": "SAY never",
    });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), made["id"].as_str().unwrap());
    let held = follower.until(&mut sse, "the refusal", is("session.recovering"));
    assert_eq!(held["failure"]["code"], "thread_missing", "{held}");
    assert!(world.model.requests().is_empty());
    world.end(host);
}

#[test]
fn claude_a_branch_has_the_history_and_its_source_is_not_changed() {
    let world = World::new();
    let host = world.start();
    let source = world.create(&host, "claude", "SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &source);
    follower.until(&mut sse, "the first turn's end", is("turn.ended"));
    send(&host.client(), &source, "SAY second");
    follower.until(&mut sse, "the second turn's end", is("turn.ended"));

    let whole = post(&host, &source, "fork", &json!({ "prompt": "SAY of the whole" }), 201);
    let branch = follow_turn(&host.client(), whole["id"].as_str().unwrap());
    assert_eq!(branch.of_type("thread.linked")[0]["how"], "forked");
    let seen = world.model.requests().last().unwrap().user_messages();
    assert_eq!(seen, ["SAY first", "SAY second", "SAY of the whole"]);

    let body = json!({ "last_turn": "t1", "prompt": "SAY of a part" });
    let part = post(&host, &source, "fork", &body, 201);
    follow_turn(&host.client(), part["id"].as_str().unwrap());
    let seen = world.model.requests().last().unwrap().user_messages();
    assert_eq!(seen, ["SAY first", "SAY of a part"]);

    send(&host.client(), &source, "SAY third");
    follower.until(&mut sse, "the third turn's end", is("turn.ended"));
    let seen = world.model.requests().last().unwrap().user_messages();
    assert_eq!(seen, ["SAY first", "SAY second", "SAY third"]);
    world.end(host);
}

#[test]
fn claude_a_branch_whose_process_dies_before_its_first_message_is_the_same_branch_afterwards() {
    let world = World::new();
    let host = world.start();
    let source = world.create(&host, "claude", "SAY first");
    follow_turn(&host.client(), &source);
    let made = post(&host, &source, "fork", &json!({}), 201);
    let session = made["id"].as_str().unwrap();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), session);
    post(&host, session, "start", &json!({}), 202);
    let first = follower.until(&mut sse, "the branch", is("thread.linked"));
    let pid = crate::support::agent_pid(follower.of_type("process.started")[0]);
    crate::support::kill(pid);
    follower.until(&mut sse, "the process's end", is("process.exited"));
    send(&host.client(), session, "SAY on the branch");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let threads = follower.of_type("thread.linked");
    assert!(threads.iter().all(|link| link["thread"] == first["thread"]), "{threads:?}");
    let seen = world.model.requests().last().unwrap().user_messages();
    assert_eq!(seen, ["SAY first", "SAY on the branch"]);
    world.end(host);
}

#[test]
fn claude_is_emptied_and_shortened_on_request() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    for more in ["SAY more", "SAY and more"] {
        send(&host.client(), &session, more);
        follower.until(&mut sse, "another turn's end", is("turn.ended"));
    }
    let compact = post(&host, &session, "compact", &json!({ "instructions": "the plan" }), 202);
    let over = follower.until(&mut sse, "the control's end", |event| ended(event, &compact["control"]));
    assert_eq!(over["state"], "done", "{over}");
    follower.until(&mut sse, "its turn's end", is("turn.ended"));
    assert!(follower.of_type("item.started").iter().any(|item| item["provider_type"] == "compact_boundary"));

    let clear = post(&host, &session, "clear", &json!({}), 202);
    let over = follower.until(&mut sse, "the control's end", |event| ended(event, &clear["control"]));
    assert_eq!(over["state"], "done", "{over}");
    let links = follower.of_type("thread.linked");
    assert_eq!((links.len(), &links[1]["how"]), (2, &"switched".into()));
    follower.until(&mut sse, "its turn's end", is("turn.ended"));
    send(&host.client(), &session, "SAY anew");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert_eq!(world.model.requests().last().unwrap().user_messages(), ["SAY anew"]);
    world.end(host);
}

#[test]
fn claude_questions_are_answered() {
    let world = World::new();
    let host = world.start();
    let question = json!({"question": "Which colour?", "header": "Colour", "multiSelect": false, "options": [
        {"label": "Red", "description": "warm"}, {"label": "Blue", "description": "cold"}]});
    let more = json!({"question": "Which toppings?", "header": "Toppings", "multiSelect": true, "options": [
        {"label": "Salt", "description": "s"}, {"label": "Mint", "description": "m"}]});
    let input = json!({ "questions": [question, more] });
    let session = world.create(&host, "claude", &format!("TOOL AskUserQuestion {input} ;; SAY done"));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let asked = follower.until(&mut sse, "the questions", is("request.opened"));
    assert_eq!(asked["kind"], "question", "{asked}");
    assert_eq!(asked["questions"][1]["multi_select"], true, "{asked}");
    let answers = json!({ "0": { "selected": ["Blue"] }, "1": { "selected": ["Salt", "Mint"] } });
    let path = format!("requests/{}/answer", asked["request"].as_str().unwrap());
    post(&host, &session, &path, &json!({ "answers": answers }), 200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let results = follower.of_type("item.completed").iter().map(ToString::to_string).collect::<String>();
    assert!(results.contains("Blue") && results.contains("Salt, Mint"), "{results}");
    world.end(host);
}

#[test]
fn claude_options_are_changed_between_and_during_turns() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let path = format!("/v1/sessions/{session}");
    let options = json!({ "options": { "model": "haiku", "mode": "acceptEdits" } });
    host.client().patch(&path, &options).expect("answers").expect_status(200);
    follower.until(&mut sse, "the control's end", is("control.ended"));
    send(&host.client(), &session, "RUN touch unasked ;; SAY second");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(world.home.workspace().join("unasked").exists());
    let model = world.model.requests().last().unwrap().body["model"].clone();
    assert!(model.as_str().unwrap().contains("haiku"), "{model}");
    let shown = show(&host.client(), &session);
    assert_eq!(
        (&shown["options"]["model"], &shown["options"]["mode"]),
        (&"haiku".into(), &"acceptEdits".into())
    );
    world.end(host);
}
