//! Keepers that no record claims, after the database was restored from an older copy under them: what is shown, whose
//! fence counts, and ending one.

use crate::command_line::run;
use crate::keepers::Stopped;
use crate::support::{DEADLINE, Follower, World, agent_pid, follow_turn, is, is_alive, send, show};
use mainstay_keeper::KeepersDir;
use mainstay_testkit::http::{Client, Response};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::path::PathBuf;

/// A copy of the database, with its side files.
pub(crate) struct Backup(Vec<(PathBuf, Vec<u8>)>);

/// The files of the database, and none of what stands beside it (the mark of how far it had come stays).
fn database_files(world: &World) -> Vec<PathBuf> {
    ["mainstay.db", "mainstay.db-wal", "mainstay.db-shm"]
        .map(|name| world.home.mainstay_home().join(name))
        .into_iter()
        .filter(|path| path.exists())
        .collect()
}

/// Copies the database while no host has it.
pub(crate) fn back_up(world: &World) -> Backup {
    let files = database_files(world).into_iter();
    Backup(files.map(|path| (path.clone(), std::fs::read(path).expect("a copy"))).collect())
}

/// Removes the database; `Some` puts that copy in its place.
pub(crate) fn restore(world: &World, backup: Option<&Backup>) {
    for path in database_files(world) {
        std::fs::remove_file(path).expect("removed");
    }
    for (path, bytes) in backup.into_iter().flat_map(|backup| &backup.0) {
        std::fs::write(path, bytes).expect("restored");
    }
}

/// Ends the host with its agents, without asking what is left.
pub(crate) fn stop(mut host: HostProcess) {
    host.client().post("/v1/host/stop", &json!({ "mode": "kill" })).expect("answers").expect_status(202);
    host.wait(DEADLINE);
}

/// The only keeper that nobody claims.
pub(crate) fn unclaimed(client: &Client) -> Value {
    let known = client.get("/v1/keepers").expect("answers").expect_status(200).json();
    let keepers = known["keepers"].as_array().expect("a list");
    let mut unclaimed = keepers.iter().filter(|keeper| keeper["claimed"] == false);
    let only = unclaimed.next().unwrap_or_else(|| panic!("none is unclaimed: {known}")).clone();
    assert!(unclaimed.next().is_none(), "{known}");
    only
}

pub(crate) fn recover(client: &Client, token: &str, body: &Value) -> Response {
    client.post(&format!("/v1/keepers/{token}/recover"), body).expect("answers")
}

/// A session whose record was restored from before its living process. Gives the host that found it, the session, the
/// keeper's token and the agent's process.
pub(crate) fn restored_under(
    world: &World,
    agent: &str,
    first: &str,
    second: &str,
) -> (HostProcess, String, String, i32) {
    let host = world.start();
    let session = world.create(&host, agent, first);
    follow_turn(&host.client(), &session);
    stop(host);
    let backup = back_up(world);
    let mut host = world.start();
    send(&host.client(), &session, second);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let first_end = follower.until(&mut sse, "the first turn's end", is("turn.ended"));
    assert_eq!(first_end["turn"], "t1");
    let started = follower.until(&mut sse, "the second process", is("process.started"));
    follower.until(&mut sse, "some text of the second turn", is("item.delta"));
    let token = show(&host.client(), &session)["process"].as_str().expect("a process").to_owned();
    drop(sse);
    host.kill9();
    restore(world, Some(&backup));
    (world.start(), session, token, agent_pid(&started))
}

/// A turn that does not end before its gate is opened, and nobody opens it.
fn held_turn(world: &World) -> String {
    format!("SAY two ;; GATE {}", world.home.root().join("never").display())
}

/// Waits until the journal is in a later epoch than its first: a reader of the first one gets a reset instead.
fn second_epoch(client: &Client, session: &str) {
    let begun = || show(client, session)["cursor"]["epoch"].as_u64() > Some(1);
    assert!(wait_for(DEADLINE, || begun().then_some(())).is_some(), "{}", show(client, session));
}

fn is_gone(pid: i32) {
    assert!(wait_for(DEADLINE, || (!is_alive(pid)).then_some(())).is_some(), "process {pid} lives on");
}

#[test]
fn a_keeper_of_a_later_fence_raises_the_records_and_is_ended_on_order() {
    let world = World::new();
    let (host, session, token, agent) = restored_under(&world, "scripted", "SAY one", &held_turn(&world));
    let client = host.client();
    let found = unclaimed(&client);
    assert_eq!((&found["token"], &found["process_pid"]), (&json!(token), &json!(agent)));
    assert_eq!(client.get("/v1/info").expect("answers").json()["unclaimed"], json!([token]));
    let doctor = run(&world, &["doctor"]);
    assert!(doctor.out.contains(&token) && doctor.out.contains("recover --keeper"), "{doctor:?}");
    let listed = run(&world, &["recover", "--json"]).expect_code(0).lines();
    assert_eq!(listed[0]["token"], token.as_str());

    second_epoch(&client, &session);
    // What was made under the later fence is not mixed up with what is made from now on.
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let epoch = follower.until(&mut sse, "a new epoch", is("epoch.started"));
    assert_eq!((&epoch["reason"], &epoch["seq"]), (&json!("fence_ahead"), &json!(1)));
    // The database was rewound as well: epochs are left out then.
    assert!(epoch["epoch"].as_u64().unwrap() > 1, "{epoch}");
    let (fence, known) = (epoch["fence"].as_u64().unwrap(), found["fence"].as_u64().unwrap());
    assert_eq!((known, fence), (2, 3), "above the keeper's");

    // It holds the conversation: nothing writes beside it.
    send(&client, &session, "SAY three");
    follower.until(&mut sse, "the reason", |event| {
        event["type"] == "session.recovering" && event["failure"].to_string().contains(&token)
    });

    follower.until(&mut sse, "its own process's end", is("lease.released"));

    // Its agent's state was the lost host's alone.
    let refused = recover(&client, &token, &json!({ "action": "adopt" })).expect_status(422).json();
    assert_eq!(
        (&refused["code"], &refused["offered"]),
        (&json!("unsupported"), &json!(["end"])),
        "{refused}"
    );
    assert!(is_alive(agent));

    let path = format!("/v1/keepers/{token}/recover");
    let order = json!({ "action": "end" });
    let ended = client.post_once(&path, "end-1", &order).expect("answers").expect_status(200);
    let told = ended.json();
    assert_eq!((&told["action"], &told["folder_removed"]), (&json!("end"), &json!(true)), "{told}");
    assert_eq!(told["exit"]["cause"], json!({ "ordered": { "order": "user" } }));
    is_gone(agent);
    assert!(!world.home.mainstay_home().join("keepers").join(&token).exists());
    let again = client.post_once(&path, "end-1", &order).expect("answers").expect_status(200);
    assert_eq!(again.header("idempotent-replay"), Some("true"));
    assert_eq!(again.json(), told);
    let other = client.post_once(&path, "end-1", &json!({ "action": "adopt" })).expect("answers");
    assert_eq!(other.expect_status(409).json()["code"], "operation_conflict");
    let gone = recover(&client, &token, &order).expect_status(404).json();
    assert_eq!(gone["code"], "keeper_unknown");
    assert_eq!(client.get("/v1/info").expect("answers").json()["unclaimed"], json!([]));

    // The session goes on in its conversation, under a fence that nobody had.
    run(&world, &["recover", &session, "--abandon"]).expect_code(0);
    let reserved = follower.until(&mut sse, "the next process", is("lease.reserved"));
    assert!(reserved["fence"].as_u64().unwrap() > fence);
    let done = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(done["outcome"], "completed", "{done}");

    // A keeper that a session has is that session's to end.
    let own = show(&client, &session)["process"].as_str().expect("a process").to_owned();
    for action in ["adopt", "end"] {
        let refused = recover(&client, &own, &json!({ "action": action })).expect_status(409).json();
        assert_eq!((&refused["code"], &refused["session"]), (&json!("keeper_claimed"), &json!(session)));
    }
    let refused = run(&world, &["recover", "--keeper", &own, "--end"]).expect_code(4);
    assert!(refused.err.contains(&session), "{refused:?}");
    recover(&client, "../keepers", &order).expect_status(404);
    recover(&client, &own, &json!({ "action": "adopt", "kill": true })).expect_status(400);
    world.end(host);
}

#[test]
fn what_cannot_be_proven_is_said_and_nothing_is_done_to_it_until_it_can() {
    let world = World::new();
    let (host, _, token, agent) = restored_under(&world, "scripted", "SAY one", &held_turn(&world));
    let client = host.client();
    let keeper = i32::try_from(unclaimed(&client)["keeper_pid"].as_i64().expect("a pid")).expect("a pid");
    let stopped = Stopped::stop(keeper);
    let told = run(&world, &["recover", "--keeper", &token, "--end", "--json"]).expect_code(8);
    assert!(told.err.contains("nothing is proven") || told.out.contains("nothing is proven"), "{told:?}");
    assert!(is_alive(agent));
    assert_eq!(unclaimed(&client)["token"], token.as_str());
    drop(stopped);
    run(&world, &["recover", "--keeper", &token, "--end", "--kill"]).expect_code(0);
    is_gone(agent);
    world.end(host);
}

#[test]
fn an_agent_that_outlived_its_keeper_is_ended_by_what_is_known_of_it() {
    let world = World::new();
    let (host, _, token, agent) = restored_under(&world, "scripted", "SAY one", &held_turn(&world));
    let client = host.client();
    let keeper = i32::try_from(unclaimed(&client)["keeper_pid"].as_i64().expect("a pid")).expect("a pid");
    crate::support::kill(keeper);
    let gone = wait_for(DEADLINE, || (unclaimed(&client)["keeper"] == "gone").then_some(()));
    assert!(gone.is_some(), "{}", unclaimed(&client));
    let ended = recover(&client, &token, &json!({ "action": "end" })).expect_status(200).json();
    assert_eq!(ended["exit"]["cause"], "keeper_lost", "{ended}");
    is_gone(agent);
    world.end(host);
}

#[test]
fn a_sessions_own_keeper_that_knows_a_later_owner_is_taken_over_under_a_new_fence() {
    let world = World::new();
    let mut host = world.start();
    let gate = world.home.root().join("gate");
    let prompt = format!("SAY before ;; GATE {} ;; SAY after", gate.display());
    let session = world.create(&host, "scripted", &prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let started = follower.until(&mut sse, "the process", is("process.started"));
    follower.until(&mut sse, "text", is("item.delta"));
    let token = show(&host.client(), &session)["process"].as_str().expect("a process").to_owned();
    drop(sse);
    host.kill9();
    // A later host of which this database has nothing: its keeper has heard from it.
    let folder = KeepersDir::new(world.home.mainstay_home().join("keepers")).folder(&token);
    let mut link = mainstay_keeper::Link::connect(&folder).expect("connects");
    let answer = link.hello("a later host", 7, DEADLINE).expect("answers");
    assert!(matches!(answer, mainstay_keeper::wire::ToHost::Status(_)), "{answer:?}");
    drop(link);

    let host = world.start();
    let client = host.client();
    second_epoch(&client, &session);
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let epoch = follower.until(&mut sse, "a new epoch", is("epoch.started"));
    assert_eq!((&epoch["reason"], &epoch["fence"]), (&json!("fence_ahead"), &json!(8)));
    follower.until(&mut sse, "the take-over", is("process.adopted"));
    let manifest = folder.manifest().expect("readable").expect("there");
    assert_eq!(manifest.process_fence, 8, "the keeper hears from nobody below that any more");
    mainstay_testkit::agents::open_gate(&gate);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert!(is_alive(agent_pid(&started)), "the agent was not disturbed");
    assert_eq!(world.prompts_received(&prompt), 1);
    world.end(host);
}

#[test]
fn claude_whose_keeper_nobody_claims_is_ended_on_order_and_its_conversation_goes_on() {
    let world = World::new();
    world.model.release("text", 2);
    let (host, session, token, agent) = restored_under(&world, "claude", "SAY one", "GATED 6 text");
    let client = host.client();
    second_epoch(&client, &session);
    let refused = recover(&client, &token, &json!({ "action": "adopt" })).expect_status(422).json();
    assert_eq!((&refused["code"], &refused["offered"]), (&json!("unsupported"), &json!(["end"])));
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("mainstay recover --keeper {token} --end")), "what to do: {detail}");
    assert!(detail.contains("can be taken up by its session"), "what then: {detail}");
    // Until then nothing is started beside it.
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    send(&client, &session, "SAY three");
    let held = follower.until(&mut sse, "the reason", |event| {
        event["type"] == "session.recovering" && event["failure"].is_object()
    });
    assert_eq!(held["failure"]["code"], "active_writer", "{held}");
    let message = held["failure"]["message"].as_str().unwrap();
    assert!(message.contains(&format!("mainstay recover --keeper {token} --end`")), "{message}");
    assert!(is_alive(agent));
    recover(&client, &token, &json!({ "action": "end" })).expect_status(200);
    is_gone(agent);
    world.model.open("text");
    run(&world, &["recover", &session, "--abandon"]).expect_code(0);
    let done = follower.until(&mut sse, "the turn's end", |event| {
        event["type"] == "turn.ended" && event["outcome"] == "completed"
    });
    assert_eq!(done["outcome"], "completed", "{done}");
    assert!(follower.agent_text().ends_with("three"), "{}", follower.agent_text());
    let known = world.model.requests().last().unwrap().user_messages();
    assert!(known.iter().any(|message| message == "SAY one"), "the conversation is the same: {known:?}");
    world.end(host);
}
