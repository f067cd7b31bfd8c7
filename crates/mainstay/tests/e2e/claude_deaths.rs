//! The real Claude Code through deaths: of the host, which it does not notice, and of itself, after which its transcript
//! tells what it had.

use crate::footprint::Process;
use crate::keepers;
use crate::support::{DEADLINE, Follower, World, agent_pid, answer, is, is_alive, kill, send, show};
use mainstay_testkit::http::Sse;
use mainstay_testkit::model::expected_text;
use mainstay_testkit::wait::wait_until;
use serde_json::{Value, json};

#[test]
fn claude_works_on_when_the_host_is_killed_in_the_middle_of_a_stream() {
    const PROMPT: &str = "GATED 200 g";
    let world = World::new();
    let mut host = world.start();
    let session = world.create(&host, "claude", PROMPT);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let started = follower.until(&mut sse, "the process", is("process.started"));
    let pid = agent_pid(&started);
    for more in [50, 50, 50] {
        world.model.release("g", more);
        follower.until(&mut sse, "text", is("item.delta"));
        host.kill9();
        follower.until_broken(&mut sse);
        host = world.start();
        sse = follower.open(&host.client(), &session);
    }
    world.model.release("g", 50);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(follower.agent_text(), expected_text(PROMPT));
    assert!(is_alive(pid), "the agent died with a host");
    assert_eq!(follower.of_type("turn.started").len(), 1);
    assert_eq!(follower.of_type("submission.taken").len(), 1);
    assert_eq!(world.model.requests_prompted_by(PROMPT), 1);
    world.end(host);
}

#[test]
fn claude_an_open_approval_survives_a_kill_of_the_host_also_one_too_large_to_keep() {
    let world = World::new();
    let mut host = world.start();
    let content = "x".repeat(40_000);
    let path = world.home.workspace().join("large.txt");
    let input = json!({ "file_path": path, "content": content });
    let session = world.create(&host, "claude", &format!("TOOL Write {input} ;; SAY after"));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    host.kill9();
    follower.until_broken(&mut sse);
    host = world.start();
    sse = follower.open(&host.client(), &session);
    assert_eq!(show(&host.client(), &session)["status"], "requires_action");
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "allow").expect_status(200);
    let closed = follower.until(&mut sse, "the request's end", is("request.closed"));
    assert_eq!((&closed["state"], &closed["confirmed"]), (&"answered".into(), &true.into()));
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(std::fs::read_to_string(path).unwrap(), content);
    assert_eq!(follower.agent_text(), "after");
    world.end(host);
}

/// Kills the agent and waits for its end in the journal.
fn kill_agent(follower: &mut Follower, sse: &mut mainstay_testkit::http::Sse) -> Value {
    let started = follower.of_type("process.started").last().map(|started| agent_pid(started));
    kill(started.expect("a process"));
    follower.until(sse, "the process's end", is("process.exited"))
}

#[test]
fn claude_killed_in_a_turn_is_taken_up_again_with_its_conversation() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the first turn's end", is("turn.ended"));
    send(&host.client(), &session, "GATED 10 g");
    world.model.release("g", 3);
    follower.until(&mut sse, "text", is("item.delta"));
    kill_agent(&mut follower, &mut sse);
    let lost = follower.of_type("turn.ended").last().unwrap()["outcome"].clone();
    assert_eq!(lost, "lost");
    send(&host.client(), &session, "SAY third");
    let resumed = follower.until(&mut sse, "the conversation again", is("thread.linked"));
    assert_eq!(resumed["how"], "resumed");
    assert_eq!(resumed["thread"], follower.of_type("thread.linked")[0]["thread"]);
    follower.until(&mut sse, "the third message's turn", |event| {
        event["type"] == "turn.ended" && event["outcome"] == "completed"
    });
    let fences: Vec<u64> =
        follower.of_type("lease.reserved").iter().map(|event| event["fence"].as_u64().unwrap()).collect();
    assert_eq!(fences, [1, 2]);
    let last = world.model.requests().last().unwrap().user_messages();
    assert_eq!(last.iter().filter(|message| *message == "SAY first").count(), 1, "{last:?}");
    world.end(host);
}

#[test]
fn claude_a_message_it_had_before_it_was_killed_is_settled_by_the_transcript() {
    let world = World::new();
    let host = world.start();
    // The request is with the model and unanswered: no echo has come, and the row is in the transcript.
    let session = world.create(&host, "claude", "HOLD door");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn", is("turn.started"));
    world.model.wait_requests(1, DEADLINE);
    kill_agent(&mut follower, &mut sse);
    let doubtful = follower.of_type("submission.doubtful")[0].clone();
    assert_eq!(doubtful["settles_by"], "history");
    world.model.open("door");
    send(&host.client(), &session, "SAY second");
    let taken = follower.until(&mut sse, "the first message", is("submission.taken"));
    assert_eq!((&taken["submission"], &taken["proof"]), (&doubtful["submission"], &"history".into()));
    follower.until(&mut sse, "the second message's turn", |event| {
        event["type"] == "turn.ended" && event["outcome"] == "completed"
    });
    assert_eq!(world.model.requests_prompted_by("HOLD door"), 1, "it was given twice");
    assert_eq!(follower.of_type("submission.taken").len(), 2);
    world.end(host);
}

#[test]
fn claude_rests_and_wakes_with_the_next_message() {
    let world = World::new();
    crate::host_keys::set(&world, "rest_after", "\"200ms\"");
    let host = world.start();
    let session = world.create(&host, "claude", "SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let exited = follower.until(&mut sse, "the rest", is("process.exited"));
    assert_eq!(exited["exit"]["exit_code"], 0, "{exited}");
    send(&host.client(), &session, "SAY second");
    follower.until(&mut sse, "the second turn's end", |event| {
        event["type"] == "turn.ended" && event["turn"] == "t2"
    });
    assert_eq!(follower.agent_text(), "firstsecond");
    world.end(host);
}

#[test]
fn claude_stopped_in_a_command_leaves_no_process() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "RUN touch begun; sleep 1000");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let opened = follower.until(&mut sse, "the approval", is("request.opened"));
    answer(&host.client(), &session, opened["request"].as_str().unwrap(), "allow").expect_status(200);
    let begun = world.home.workspace().join("begun");
    wait_until(DEADLINE, "the command runs", || begun.exists());
    host.client().post(&format!("/v1/sessions/{session}/stop"), &json!({})).expect("answers");
    follower.until(&mut sse, "the process's end", is("process.exited"));
    assert_eq!(follower.of_type("turn.ended")[0]["outcome"], "interrupted");
    world.end(host);
}

/// What the host and eight keepers may take at once, in KiB of private memory: 2 MiB for each keeper, the rest for a host
/// that streams for eight.
const EIGHT_AT_ONCE_KIB: u64 = 64 * 1024;

#[test]
fn claude_eight_sessions_work_at_once_rest_and_are_woken() {
    let world = World::new();
    crate::host_keys::set(&world, "rest_after", "\"500ms\"");
    let host = world.start();
    let client = host.client();
    let sessions: Vec<String> = (0..8)
        .map(|number| {
            world.model.release(&format!("g{number}"), 10);
            world.create(&host, "claude", &format!("GATED 20 g{number}"))
        })
        .collect();
    let mut followed: Vec<(Follower, Sse)> = sessions
        .iter()
        .map(|session| {
            let mut follower = Follower::default();
            let mut sse = follower.open(&client, session);
            follower.until(&mut sse, "text", is("item.delta"));
            (follower, sse)
        })
        .collect();
    // All eight are in the middle of a turn.
    let keepers =
        sessions.iter().map(|session| Process::of(keepers::pid(&world, &client, session)).private_kib);
    let host_kib = Process::of(i32::try_from(host.pid()).unwrap()).private_kib;
    let taken: u64 = keepers.sum::<u64>() + host_kib;
    assert!(taken <= EIGHT_AT_ONCE_KIB, "the host takes {host_kib} KiB, with its keepers {taken} KiB");
    (0..8).for_each(|number| world.model.open(&format!("g{number}")));
    for (follower, sse) in &mut followed {
        let ended = follower.until(sse, "the turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "completed", "{ended}");
        assert_eq!(follower.agent_text(), expected_text("GATED 20 g"));
    }
    for (follower, sse) in &mut followed {
        follower.until(sse, "its rest", is("lease.released"));
    }
    for (session, (follower, sse)) in sessions.iter().zip(&mut followed) {
        send(&client, session, "SAY woken");
        follower.until(sse, "the next turn's end", is("turn.ended"));
        assert!(follower.agent_text().ends_with("woken"), "{}", follower.agent_text());
    }
    world.end(host);
}

#[test]
fn claude_a_conversation_that_somebody_else_has_open_is_not_taken_up() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    host.client().post(&format!("/v1/sessions/{session}/stop"), &json!({})).expect("answers");
    follower.until(&mut sse, "the process's end", is("process.exited"));
    // Somebody else: this test's own process, listed as the program lists itself.
    let thread = follower.of_type("thread.linked")[0]["thread"].as_str().unwrap().to_owned();
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let start = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().to_owned();
    let listed = json!({ "pid": std::process::id(), "procStart": start, "sessionId": thread });
    let list = world.claude.config_dir.join("sessions/other.json");
    std::fs::write(&list, listed.to_string()).unwrap();
    send(&host.client(), &session, "SAY second");
    let held = follower.until(&mut sse, "the refusal", is("session.recovering"));
    assert_eq!(held["failure"]["code"], "active_writer", "{held}");
    let named = format!("thread {thread} already has an active writer: process {}", std::process::id());
    assert!(held["failure"]["message"].as_str().unwrap().contains(&named), "{held}");
    let exit = &follower.of_type("process.exited").last().unwrap()["exit"];
    assert_eq!((&exit["cause"], &exit["spawn_failure"]), (&"spawn_failed".into(), &"active_writer".into()));
    let shown = show(&host.client(), &session);
    assert_eq!((&shown["status"], &shown["needs"]), (&"recovering".into(), &true.into()), "{shown}");
    assert_eq!(world.model.requests_prompted_by("SAY second"), 0);
    world.end(host);
}

#[test]
fn claude_a_lost_conversation_is_said_and_nothing_is_sent() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "claude", "SAY first");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    host.client().post(&format!("/v1/sessions/{session}/stop"), &json!({})).expect("answers");
    follower.until(&mut sse, "the process's end", is("process.exited"));
    std::fs::remove_dir_all(world.claude.config_dir.join("projects")).unwrap();
    send(&host.client(), &session, "SAY second");
    let held = follower.until(&mut sse, "the refusal", is("session.recovering"));
    assert_eq!(held["failure"]["code"], "thread_missing", "{held}");
    assert_eq!(world.model.requests_prompted_by("SAY second"), 0);
    world.end(host);
}
