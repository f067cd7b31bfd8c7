//! Conversations that are taken up again, and those that cannot be: cases 45 to 54.

use crate::played::{ALL_KINDS, Followed, Played, rewrite};
use crate::support::{agent_pid, is, kill};
use serde_json::json;

/// Kills the agent and waits until that is settled.
fn agent_dies(session: &mut Followed) {
    kill(agent_pid(session.all("process.started").last().expect("a process")));
    session.until("the lease's end", is("lease.released"));
}

/// 45: the provider saves a conversation with its first turn only; its process is gone before that.
#[test]
fn a_conversation_that_was_never_saved_begins_anew_without_an_error() {
    for kind in ALL_KINDS {
        let mut played = Played::new(kind, "");
        let body = json!({ "agent": "played", "cwd": played.world.workspace(), "id": "early" });
        played.client().post("/v1/sessions", &body).unwrap().expect_status(201);
        let follower = crate::support::Follower::default();
        let sse = follower.open(&played.client(), "early");
        let mut session = Followed { id: "early".to_owned(), follower, sse };
        played.post(&session, "start", &json!({}));
        session.until("the thread", is("thread.linked"));
        agent_dies(&mut session);
        played.restart();
        session.reopen(&played);
        played.send(&session, "hello");
        session.ended("completed");
        assert_eq!(session.text(), "echo: hello", "{kind}");
        assert_eq!(played.world.prompts_received("hello"), 1, "{kind}");
        let failed = session.all("session.recovering").iter().any(|event| !event["failure"].is_null());
        assert!(!failed, "{kind}: {:?}", session.all("session.recovering"));
        played.end();
    }
}

/// 46: the provider's history is gone, and it says so in words that nobody knows. The message is kept, the session says what
/// is wrong, nothing is tried without end; a fresh start is the user's choice and is seen between the turns.
#[test]
fn a_lost_history_is_said_in_any_words_and_a_fresh_start_is_seen() {
    for (kind, script) in [
        ("codex", "on thread/resume\n  refuse -32600 the scroll has been eaten\n"),
        ("acp", "on session/load\n  refuse -32099 the scroll has been eaten\n"),
    ] {
        let played = Played::new(kind, script);
        let mut session = played.session("one");
        session.ended("completed");
        agent_dies(&mut session);
        played.send(&session, "two");
        let recovering = session.until("the reason", is("session.recovering"));
        assert!(recovering.to_string().contains("the scroll has been eaten"), "{kind}: {recovering}");
        let shown = played.show(&session);
        assert_eq!(
            (&shown["status"], &shown["queue_length"]),
            (&json!("recovering"), &json!(1)),
            "{kind}: {shown}"
        );
        assert_eq!(played.world.prompts_received("two"), 0, "{kind}");
        played.post(&session, "recover", &json!({ "action": "start_fresh" }));
        session.ended("completed");
        assert!(session.text().ends_with("echo: two"), "{kind}: {}", session.text());
        assert_eq!(played.world.prompts_received("two"), 1, "{kind}");
        let links = session.all("thread.linked");
        assert_eq!(links.last().unwrap()["how"], "replaced", "{kind}: {links:?}");
        assert_ne!(links.last().unwrap()["thread"], links[0]["thread"], "{kind}");
        // The break stands between the two turns.
        let place = |wanted: &str| session.follower.events.iter().rposition(|event| event["type"] == wanted);
        assert!(place("thread.linked") < place("turn.started"), "{kind}");
        played.end();
    }
}

/// 47: the history is empty for a moment. Nothing is lost by that, and one message to go on is enough.
#[test]
fn a_history_that_is_empty_for_a_moment_costs_no_message_and_no_conversation() {
    let played = Played::new("codex", "on first 2 thread/resume\n  refuse -32600 history is empty\n");
    let mut session = played.session("one");
    session.ended("completed");
    agent_dies(&mut session);
    played.send(&session, "two");
    for _ in 0..2 {
        session.until("the reason", |event| {
            event["type"] == "session.recovering" && !event["failure"].is_null()
        });
        session.until("the lease's end", is("lease.released"));
        played.post(&session, "start", &json!({}));
    }
    session.ended("completed");
    assert!(session.text().ends_with("echo: two"), "{}", session.text());
    assert_eq!(played.world.prompts_received("two"), 1);
    let links = session.all("thread.linked");
    assert_eq!(links.last().unwrap()["thread"], links[0]["thread"], "another conversation in silence");
    played.end();
}

/// 51: the agent answers with another conversation than it was asked for.
#[test]
fn another_conversation_than_the_one_asked_for_is_not_used() {
    let answer = "  answer {\"thread\": {\"id\": \"somebody-elses\", \"status\": {\"type\": \"idle\"}}, \"model\": \"scripted\"}\n";
    let played = Played::new("codex", &format!("on thread/resume\n{answer}"));
    let mut session = played.session("one");
    session.ended("completed");
    agent_dies(&mut session);
    played.send(&session, "two");
    let recovering = session.until("the reason", is("session.recovering"));
    assert!(recovering.to_string().contains("thread"), "{recovering}");
    assert_eq!(played.world.prompts_received("two"), 0, "it was given to another conversation");
    assert_eq!(session.all("turn.started").len(), 1);
    played.end();
}

/// 50: the agent goes on under another id; that is a link of the chain, and the next process takes that one up.
#[test]
fn a_conversation_that_changes_its_name_is_followed() {
    let played = Played::new("claude", "");
    let mut session = played.session("one");
    session.ended("completed");
    agent_dies(&mut session);
    let renamed = "on user\n  run cp $root/played-home/projects/scripted/*.jsonl $root/played-home/projects/scripted/other-name.jsonl\n  \
        send {\"type\": \"system\", \"subtype\": \"session_state_changed\", \"state\": \"running\", \"session_id\": \"other-name\", \"uuid\": \"$new\"}\n  \
        send {\"type\": \"system\", \"subtype\": \"init\", \"session_id\": \"other-name\", \"uuid\": \"$new\", \"model\": \"scripted\", \"permissionMode\": \"default\"}\n  \
        send {\"type\": \"result\", \"subtype\": \"success\", \"is_error\": false, \"session_id\": \"other-name\", \"uuid\": \"$new\"}\n  \
        send {\"type\": \"system\", \"subtype\": \"session_state_changed\", \"state\": \"idle\", \"session_id\": \"other-name\", \"uuid\": \"$new\"}\n";
    rewrite(&played.world, "played", renamed);
    played.send(&session, "two");
    session.ended("completed");
    let last = session.all("thread.linked").last().unwrap()["thread"].clone();
    assert_eq!(last, "other-name");
    agent_dies(&mut session);
    rewrite(&played.world, "played", "on prompt three\n  say $thread\n");
    played.send(&session, "three");
    session.ended("completed");
    assert!(session.text().ends_with("other-name"), "{}", session.text());
    played.end();
}

/// 53: the agent cannot take anything up again. That its context is gone is said before anything is sent, and seen.
#[test]
fn an_agent_that_takes_nothing_up_again_does_not_go_on_in_silence() {
    let script =
        "on initialize\n  answer {\"protocolVersion\": 1, \"agentCapabilities\": {\"loadSession\": false}}\n";
    let played = Played::new("acp", script);
    let mut session = played.session("one");
    session.ended("completed");
    agent_dies(&mut session);
    played.send(&session, "two");
    session.until("the reason", is("session.recovering"));
    assert_eq!(played.world.prompts_received("two"), 0);
    played.post(&session, "recover", &json!({ "action": "start_fresh" }));
    session.ended("completed");
    assert_eq!(session.all("thread.linked").last().unwrap()["how"], "replaced");
    assert_eq!(played.world.prompts_received("two"), 1);
    played.end();
}

/// 54: each resume ends the agent with the same words. It is not tried for ever, and the words are told.
#[test]
fn a_resume_that_ends_the_agent_each_time_is_given_up_with_its_words() {
    let script = "on thread/resume\n  stderr a prompt is required with resume\n  exit 1\n";
    let played = Played::new("codex", script);
    let mut session = played.session("one");
    session.ended("completed");
    agent_dies(&mut session);
    let before = session.all("process.started").len();
    played.send(&session, "two");
    let recovering = session.until("the reason", is("session.recovering"));
    assert!(recovering.to_string().contains("a prompt is required with resume"), "{recovering}");
    assert!(session.all("process.started").len() <= before + 3, "tried too often");
    assert_eq!(played.show(&session)["queue_length"], 1);
    assert_eq!(played.world.prompts_received("two"), 0);
    played.end();
}
