//! How turns and processes end, and what the session says of it: cases 48, 132, 137, 139, 141.

use crate::played::{ALL_KINDS, Played};
use crate::support::{agent_pid, is, kill};

/// 132: the agent crashes in the middle of a turn.
#[test]
fn a_crash_settles_the_turn_with_its_signal_and_keeps_what_was_said() {
    for kind in ALL_KINDS {
        let script = "on prompt crash\n  say part\n  begin-tool look\n  stderr the last words\n  crash\n";
        let played = Played::new(kind, script);
        let mut session = played.session("crash");
        session.ended("lost");
        let exited = session.until("the exit", is("process.exited"));
        assert_eq!(exited["exit"]["signal"], 11, "{kind}: {exited}");
        assert!(exited["exit"]["stderr_tail"].to_string().contains("the last words"), "{kind}: {exited}");
        assert_eq!(session.text(), "part", "{kind}");
        // 48: every item that was begun has ended, the tool call too.
        let begun = session.all("item.started").len();
        assert_eq!(session.all("item.completed").len(), begun, "{kind}");
        session.until("the lease's end", is("lease.released"));
        played.send(&session, "next");
        session.ended("completed");
        assert_eq!(session.all("process.started").len(), 2, "{kind}");
        assert_eq!(played.world.prompts_received("crash"), 1, "{kind}");
        played.end();
    }
}

/// 137: a refusal of the provider that calls itself a success.
#[test]
fn an_error_that_calls_itself_a_success_is_a_failure_with_its_class() {
    let result = |more: &str| {
        format!(
            "  send {{\"type\": \"result\", \"subtype\": \"success\", \"session_id\": \"$thread\", \"uuid\": \"$new\", {more}}}\n  hang\n"
        )
    };
    for (more, class) in [
        ("\"is_error\": true, \"api_error_status\": 401, \"result\": \"Please sign in\"", "sign_in"),
        ("\"is_error\": true, \"api_error_status\": 429, \"result\": \"Too many\"", "limit"),
        ("\"is_error\": true, \"api_error_status\": 500, \"result\": \"Broken\"", "provider"),
    ] {
        let played = Played::new("claude", &format!("on prompt fails\n{}", result(more)));
        let mut session = played.session("fails");
        let ended = session.until("the turn's end", is("turn.ended"));
        assert!(matches!(ended["outcome"].as_str(), Some("failed" | "limit")), "{more}: {ended}");
        assert_ne!(ended["outcome"], "completed", "{more}: {ended}");
        let code = ended["failure"]["code"].as_str().unwrap_or_default();
        assert!(code == class || (class == "limit" && code == "overloaded"), "{more}: {ended}");
        assert_eq!(played.world.prompts_received("fails"), 1, "{more}: tried again by itself");
        played.end();
    }
}

/// 139: a process that several sessions share is gone; each of them, and a new one, gets one that lives.
#[test]
fn a_dead_process_is_used_by_nobody_any_more() {
    let played = Played::new("codex", "");
    let mut sessions: Vec<_> = (0..3).map(|number| played.session(&format!("first {number}"))).collect();
    for session in &mut sessions {
        session.ended("completed");
    }
    let token = |session: &crate::played::Followed| {
        session.all("process.started").last().expect("a process")["process"].clone()
    };
    let shared = token(&sessions[0]);
    assert!(sessions.iter().all(|session| token(session) == shared), "they do not share a process");
    kill(agent_pid(sessions[0].all("process.started")[0]));
    let mut fourth = played.session("fourth");
    fourth.ended("completed");
    let first = &mut sessions[0];
    first.until("the lease's end", is("lease.released"));
    played.send(first, "again");
    first.ended("completed");
    assert_ne!(token(first), shared);
    // The fourth came while the death was being settled: it may have a process of its own.
    assert_ne!(token(&fourth), shared);
    played.end();
}

/// 141: a failure of the provider ends its turn and nothing else.
#[test]
fn a_failure_of_the_provider_is_of_its_turn_alone() {
    for kind in ALL_KINDS {
        let played = Played::new(kind, "on prompt fails\n  say part\n  end failed the network is down\n");
        let mut session = played.session("fails");
        let ended = session.ended("failed");
        assert!(ended["failure"].to_string().contains("the network is down"), "{kind}: {ended}");
        played.send(&session, "next");
        session.ended("completed");
        assert_eq!(session.all("process.started").len(), 1, "{kind}");
        played.end();
    }
}
