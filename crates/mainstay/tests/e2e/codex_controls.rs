//! What is asked of the real Codex beside messages, over HTTP: goals, compaction, reviews, going back, branching,
//! questions and forms.

use crate::support::{Follower, World, answer, follow_turn, interrupt, is, send, show};
use mainstay_testkit::agents::sibling_binary;
use mainstay_testkit::http::{Client, Sse};
use serde_json::{Value, json};

fn post(client: &Client, session: &str, what: &str, body: &Value, status: u16) -> Value {
    let path = format!("/v1/sessions/{session}/{what}");
    client.post(&path, body).expect("answers").expect_status(status).json()
}

fn put_goal(client: &Client, session: &str, body: &Value) {
    let path = format!("/v1/sessions/{session}/goal");
    client.put(&path, body).expect("answers").expect_status(202);
}

fn done(follower: &mut Follower, sse: &mut Sse) -> Value {
    let ended = follower.until(sse, "the end of what was asked", is("control.ended"));
    assert_eq!(ended["state"], "done", "{ended}");
    ended
}

#[test]
fn a_goal_makes_turns_by_itself_and_says_whose_they_are() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY first");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    put_goal(&host.client(), &session, &json!({ "objective": "win" }));
    follower.until(&mut sse, "the goal's end", |event| {
        event["type"] == "goal.updated" && event["goal"]["state"] == "complete"
    });
    follower.until(&mut sse, "the last turn's end", is("turn.ended"));
    let origins = ["turn.started", "turn.updated"].iter().flat_map(|kind| follower.of_type(kind));
    assert_eq!(origins.filter(|event| event["origin"] == "goal").count(), 3);
    let by: Vec<&Value> = follower.of_type("goal.updated").iter().map(|event| &event["by"]).collect();
    assert!(by.first() == Some(&&json!("user")) && by.contains(&&json!("agent")), "{by:?}");
    world.end(host);
}

#[test]
fn a_stop_pauses_the_goal_so_that_it_starts_no_further_turn() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY first");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    send(&host.client(), &session, "GATED 3 g");
    follower.until(&mut sse, "the turn", is("turn.started"));
    put_goal(&host.client(), &session, &json!({ "objective": "win" }));
    done(&mut follower, &mut sse);
    interrupt(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let paused = |event: &Value| event["type"] == "goal.updated" && event["goal"]["state"] == "paused";
    if !follower.events.iter().any(paused) {
        follower.until(&mut sse, "the pause", paused);
    }
    send(&host.client(), &session, "SAY on");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(
        !follower.events.iter().any(|event| event["origin"] == "goal"),
        "a turn started for a goal that was stopped"
    );
    world.end(host);
}

#[test]
fn the_context_is_compacted_and_work_reviewed_in_turns_of_their_own() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY first");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    post(&host.client(), &session, "compact", &json!({}), 202);
    // What is sent meanwhile is not lost, and has a turn of its own when that is over.
    send(&host.client(), &session, "SAY meanwhile");
    follower.until(&mut sse, "the compaction", |event| event["title"] == "The conversation was compacted");
    follower.until(&mut sse, "its turn's end", is("turn.ended"));
    follower.until(&mut sse, "the message taken", is("submission.taken"));
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("meanwhile"), "{}", follower.agent_text());
    assert!(follower.of_type("submission.rejected").is_empty());
    post(&host.client(), &session, "review", &json!({ "instructions": "SAY looks good" }), 202);
    follower.until(&mut sse, "the review", |event| event["title"] == "A review began");
    follower.until(&mut sse, "its turn's end", is("turn.ended"));
    send(&host.client(), &session, "SAY after");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("after"), "{}", follower.agent_text());
    world.end(host);
}

#[test]
fn a_session_goes_back_and_is_branched() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY one");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    send(&host.client(), &session, "SAY two");
    follower.until(&mut sse, "the second turn's end", is("turn.ended"));
    let turns: Vec<String> = follower
        .of_type("turn.ended")
        .iter()
        .map(|event| event["turn"].as_str().expect("a turn").to_owned())
        .collect();
    let body = json!({ "last_turn": turns[0], "prompt": "SAY three" });
    let branch = post(&host.client(), &session, "fork", &body, 201);
    let branch = branch["id"].as_str().expect("an id").to_owned();
    let of_branch = follow_turn(&host.client(), &branch);
    assert_eq!(
        of_branch.of_type("thread.linked")[0]["how"],
        "forked",
        "{:?}",
        of_branch.of_type("thread.linked")
    );
    let asked = world.model.requests().last().expect("a request").body.to_string();
    assert!(asked.contains("SAY one") && !asked.contains("SAY two"), "{asked}");
    post(&host.client(), &session, "rewind", &json!({ "before": turns[1] }), 202);
    follower.until(&mut sse, "the way back", is("thread.rewound"));
    send(&host.client(), &session, "SAY four");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    let asked = world.model.requests().last().expect("a request").body.to_string();
    assert!(asked.contains("SAY one") && !asked.contains("SAY two") && asked.contains("SAY four"), "{asked}");
    world.end(host);
}

#[test]
fn a_question_in_plan_mode_is_answered() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY first");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    let path = format!("/v1/sessions/{session}");
    host.client()
        .patch(&path, &json!({ "options": { "mode": "plan" } }))
        .expect("answers")
        .expect_status(200);
    send(&host.client(), &session, "ASK which colour? ;; SAY ok");
    let opened = follower.until(&mut sse, "the question", is("request.opened"));
    assert_eq!(
        (&opened["kind"], &opened["questions"][0]["text"]),
        (&json!("question"), &json!("which colour?"))
    );
    let request = opened["request"].as_str().unwrap();
    let answers = json!({ "answers": { "q1": { "selected": ["Beta"] } } });
    post(&host.client(), &session, &format!("requests/{request}/answer"), &answers, 200);
    let closed = follower.until(&mut sse, "its end", is("request.closed"));
    assert_eq!(closed["confirmed"], true, "{closed}");
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let told = world.model.requests().iter().any(|request| request.body.to_string().contains("Beta\\\""));
    assert!(told, "the model was not told the answer");
    world.end(host);
}

#[test]
fn a_form_of_an_mcp_server_is_filled_in_after_the_host_died() {
    let world = World::new();
    let mut host = world.start();
    let server = sibling_binary("scripted-mcp").display().to_string();
    let body = json!({ "agent": "codex", "cwd": world.workspace(), "prompt": "TOOL mcp__mm.ask {} ;; SAY ok",
                       "mcp_servers": [{ "name": "mm", "command": server, "args": [], "env": [] }] });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    let session = made["id"].as_str().expect("an id").to_owned();
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "accept").expect_status(200);
    let opened = follower.until(&mut sse, "the form", |event| {
        event["type"] == "request.opened" && event["kind"] == "elicitation"
    });
    host.kill9();
    follower.until_broken(&mut sse);
    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    let request = opened["request"].as_str().unwrap();
    let filled = json!({ "accept": true, "content": { "name": "Ada" } });
    post(&host.client(), &session, &format!("requests/{request}/answer"), &filled, 200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let told = follower
        .events
        .iter()
        .any(|event| event["type"] == "item.completed" && event.to_string().contains("Ada"));
    assert!(told, "the server was not told the answer");
    world.end(host);
}

#[test]
fn a_session_is_archived_at_the_agent_too_whether_it_runs_or_rests() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "codex", "SAY one");
    let mut follower = follow_turn(&host.client(), &session);
    let mut sse = follower.open(&host.client(), &session);
    let path = format!("/v1/sessions/{session}");
    let at_agent = || {
        let known = host.client().get("/v1/agents/codex/threads").expect("answers").expect_status(200).json();
        known["threads"][0]["archived"].clone()
    };
    let mark = |archived: bool| {
        let patch = json!({ "archived": archived });
        host.client().patch(&path, &patch).expect("answers").expect_status(200);
    };
    // The mark alone is the host's own: nothing is done at the agent.
    mark(true);
    assert_eq!((show(&host.client(), &session)["archived"].clone(), at_agent()), (json!(true), json!(false)));
    mark(false);

    for rests in [false, true] {
        if rests {
            post(&host.client(), &session, "stop", &json!({}), 202);
            follower.until(&mut sse, "the process's end", is("process.exited"));
        }
        post(&host.client(), &session, "archive", &json!({}), 202);
        done(&mut follower, &mut sse);
        follower.until(&mut sse, "the end of its process", is("process.exited"));
        assert_eq!(
            (show(&host.client(), &session)["archived"].clone(), at_agent()),
            (json!(true), json!(true))
        );
        post(&host.client(), &session, "archive", &json!({}), 409);
        mark(false);
        assert_eq!(at_agent(), true, "it is taken out when it is gone on with");
        send(&host.client(), &session, "SAY on");
        follower.until(&mut sse, "the next turn's end", is("turn.ended"));
        assert_eq!(at_agent(), false);
    }
    let links = follower.of_type("thread.linked");
    assert!(links.iter().all(|link| link["thread"] == links[0]["thread"]), "the same each time: {links:?}");
    assert!(follower.agent_text().ends_with("onon"), "{}", follower.agent_text());
    world.end(host);
}
