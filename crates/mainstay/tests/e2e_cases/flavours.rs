//! The scripted agent is accepted by the real adapters in all its protocols, and a bad script says where it is bad.

use crate::played::{ALL_KINDS, Played};
use crate::support::{answer, interrupt, is, kill};
use serde_json::json;

const SCRIPT: &str = "
on prompt text
  say one two  three
on prompt ask
  ask may I
on prompt hold
  say part
  wait-for cancel
on prompt tool
  tool look
  say seen
";

#[test]
fn turns_approvals_stops_deaths_and_hosts_that_die() {
    for kind in ALL_KINDS {
        let mut played = Played::new(kind, SCRIPT);
        let mut session = played.session("text");
        session.ended("completed");
        assert_eq!(session.text(), "one two  three", "{kind}");
        assert_eq!(session.all("submission.taken").len(), 1, "{kind}");

        played.send(&session, "ask");
        let opened = session.until("the request", is("request.opened"));
        let request = opened["request"].as_str().unwrap();
        let options = opened["options"].as_array().unwrap();
        let allow = options.iter().find(|option| option["kind"] == "allow_once").expect("an option");
        let option = allow["id"].as_str().or(allow["option_id"].as_str()).unwrap();
        answer(&played.client(), &session.id, request, option).expect_status(200);
        session.ended("completed");
        assert!(session.text().ends_with("allowed"), "{kind}: {}", session.text());

        played.send(&session, "tool");
        session.ended("completed");
        assert!(session.text().ends_with("seen"), "{kind}: {}", session.text());

        played.send(&session, "hold");
        session.until("text", |event| event["text"].to_string().contains("part"));
        played.restart();
        session.reopen(&played);
        interrupt(&played.client(), &session.id);
        let ended = session.until("the turn's end", is("turn.ended"));
        assert_ne!(ended["outcome"], "lost", "{kind}: {ended}");
        assert_eq!(session.all("process.started").len(), 1, "{kind}: the agent was started again");

        kill(crate::support::agent_pid(session.all("process.started")[0]));
        session.until("the lease's end", is("lease.released"));
        // What the agent tells of the past when it takes it up is not shown again.
        let before = session.text();
        played.send(&session, "unknown words");
        session.ended("completed");
        assert_eq!(session.text(), format!("{before}echo: unknown words"), "{kind}");
        let links = session.all("thread.linked");
        assert_eq!(links.last().unwrap()["how"], "resumed", "{kind}");
        assert_eq!(links.last().unwrap()["thread"], links[0]["thread"], "{kind}");
        played.end();
    }
}

#[test]
fn a_bad_script_is_told_with_its_line_and_word() {
    let played = Played::new("acp", "on start\n  sya hello\n");
    let session = played.session("never");
    let shown = played.until_shown(&session, "recovering", |shown| shown["status"] == "recovering");
    let reason = shown["reason"].as_str().unwrap();
    assert!(reason.contains("line 2, word 1 (\"sya\"): no such step"), "{reason}");
    assert_eq!(played.world.prompts_received("never"), 0);
    assert_eq!(shown["queue_length"], json!(1));
    played.end();
}
