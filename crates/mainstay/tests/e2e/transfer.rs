//! Sessions and databases as files: `export`, `import`, `rm`, `backup` and `restore` as a user runs them, with real agents
//! under them.

use crate::command_line::run;
use crate::support::{Follower, World, follow_turn, is, send, show};
use mainstay_testkit::model::expected_text;
use serde_json::{Value, json};

fn file(world: &World, name: &str) -> String {
    world.home.root().join(name).display().to_string()
}

#[test]
fn a_session_that_was_exported_while_it_ran_goes_on_elsewhere_in_its_own_conversation() {
    let (here, there) = (World::new(), World::new());
    let host = here.start();
    let session = here.create(&host, "scripted", "SAY first ;; TOOL a tool");
    follow_turn(&host.client(), &session);
    send(&host.client(), &session, "SAY half ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the second turn's text", |event| event["text"] == "half");
    let target = file(&here, "session.mainstay");
    let exported = run(&here, &["export", &session, "--output", &target, "--json"]).expect_code(0);
    assert_eq!(exported.lines()[0]["session"], session.as_str());
    let again = run(&here, &["export", &session, "--output", &target]).expect_code(4);
    assert!(again.err.contains("exists"), "{again:?}");
    let streamed = run(&here, &["export", &session, "--output", "-"]).expect_code(0);
    assert!(streamed.out.lines().count() > 10);

    // The other home has no host yet.
    let imported = run(&there, &["import", &target, "--cwd", &there.workspace(), "--json"]).expect_code(0);
    assert_eq!(imported.lines()[0]["id"], session.as_str());
    let timeline = run(&there, &["show", &session, "--json"]).expect_code(0).lines();
    assert_eq!(timeline[0]["session"]["status"], "idle", "{timeline:?}");
    // It goes on, and the agent there knows nothing of a conversation here.
    let sent = run(&there, &["send", &session, "SAY there", "--wait"]).expect_code(0);
    assert!(sent.out.contains("there"), "{sent:?}");
    assert_eq!(here.prompts_received("SAY there"), 0);
    assert_eq!(there.prompts_received("SAY half ;; HOLD"), 0, "what was given here is given nowhere else");
    // Here nothing happened to it.
    assert_eq!(show(&host.client(), &session)["status"], "running");
    run(&there, &["stop", "--host", "--kill"]).expect_code(0);
    here.end(host);
}

#[test]
fn a_damaged_file_is_refused_with_its_reason() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY hello");
    follow_turn(&host.client(), &session);
    let target = file(&world, "session.mainstay");
    run(&world, &["export", &session, "--output", &target]).expect_code(0);
    let whole = std::fs::read(&target).expect("a file");
    let text = String::from_utf8(whole.clone()).expect("text");
    for (changed, why) in [
        (whole[..whole.len() - 9].to_vec(), "not whole"),
        (text.replacen("hello", "hallo", 1).into_bytes(), "digest"),
        (text.replacen("\"version\":1", "\"version\":2", 1).into_bytes(), "version 2"),
        (b"hello".to_vec(), "no session's file"),
    ] {
        std::fs::write(&target, changed).expect("written");
        let refused = run(&world, &["import", &target]).expect_code(4);
        assert!(refused.err.contains(why), "{why}: {refused:?}");
    }
    assert_eq!(run(&world, &["ls", "--json"]).lines().len(), 1);
    run(&world, &["rm", &session]).expect_code(0);
    run(&world, &["rm", &session]).expect_code(4);
    assert_eq!(run(&world, &["ls", "--json"]).lines().len(), 0);
    world.end(host);
}

#[test]
fn a_restored_backup_is_served_and_its_readers_are_told() {
    let world = World::new();
    let mut host = world.start();
    let session = world.create(&host, "scripted", "SAY first");
    let mut follower = follow_turn(&host.client(), &session);
    // At rest, so that the backup names no process.
    let mut sse = follower.open(&host.client(), &session);
    run(&world, &["stop", &session]).expect_code(0);
    follower.until(&mut sse, "the agent's end", is("lease.released"));
    let backup = file(&world, "backup.db");
    run(&world, &["backup", &backup]).expect_code(0);
    run(&world, &["backup", &backup]).expect_code(4);
    send(&host.client(), &session, "SAY lost");
    follower.until(&mut sse, "the lost turn's end", is("turn.ended"));
    let lost = show(&host.client(), &session)["cursor"].clone();
    let served = run(&world, &["restore", &backup]).expect_code(4);
    assert!(served.err.contains("stop --host"), "{served:?}");
    host.client().post("/v1/host/stop", &json!({ "mode": "kill" })).expect("answers").expect_status(202);
    host.wait(crate::support::DEADLINE);
    drop(host);
    let restored = run(&world, &["restore", &backup, "--json"]).expect_code(0).lines();
    assert!(restored[0]["lost_commits"].as_u64().expect("a number") > 0, "{restored:?}");
    assert!(restored[0]["replaced"].is_string(), "{restored:?}");

    let host = world.start();
    let client = host.client();
    let events = |after: &str| -> Value {
        let path = format!("/v1/sessions/{session}/events?after={after}");
        client.get(&path).expect("answers").expect_status(200).json()
    };
    let after = format!("{}:{}", lost["epoch"], lost["seq"]);
    // Whoever saw what is gone is told, before and after the session goes on.
    assert!(events(&after)["reset"].is_object());
    send(&client, &session, "SAY second");
    let mut next = Follower::default();
    let mut sse = next.open(&client, &session);
    next.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(events(&after)["reset"].is_object());
    assert_eq!(world.prompts_received("SAY second"), 1);
    assert!(show(&client, &session)["cursor"]["epoch"].as_u64() > lost["epoch"].as_u64());
    world.end(host);
}

#[test]
fn a_database_that_is_deleted_under_living_keepers_ends_nothing_and_hides_nothing() {
    let world = World::new();
    let mut host = world.start();
    let session = world.create(&host, "codex", "GATED 20 text");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    world.model.release("text", 1);
    follower.until(&mut sse, "a delta", is("item.delta"));
    let seen = show(&host.client(), &session)["cursor"].clone();
    host.kill9();
    for side in ["", "-wal", "-shm"] {
        let _removed = std::fs::remove_file(world.home.mainstay_home().join(format!("mainstay.db{side}")));
    }
    let host = world.start();
    let client = host.client();
    // The session is unknown, and its agent is not: it is shown, it lives, and nothing was ended by itself.
    client.get(&format!("/v1/sessions/{session}")).expect("answers").expect_status(404);
    let shown = run(&world, &["ps", "--json"]).lines();
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert_eq!((&shown[0]["keeper"], &shown[0]["agent"]), (&json!("alive"), &json!("running")), "{shown:?}");
    // The same id again is another session: a reader of the one that is gone gets none of its events for its own.
    let body = json!({ "agent": "scripted", "cwd": world.workspace(), "id": session, "prompt": "SAY other" });
    client.post("/v1/sessions", &body).expect("answers").expect_status(201);
    follow_turn(&client, &session);
    let path = format!("/v1/sessions/{session}/events?after={}:{}", seen["epoch"], seen["seq"]);
    let page = client.get(&path).expect("answers").expect_status(200).json();
    assert!(page["reset"].is_object(), "{page}");
    // What is unclaimed works on, and is ended by whoever looks after it.
    world.model.open("text");
    assert_ne!(expected_text("GATED 20 text"), "");
    for row in &shown {
        crate::support::kill(
            i32::try_from(row["keeper_identity"]["pid"].as_i64().expect("a pid")).expect("small"),
        );
    }
    world.end(host);
}
