//! Pipes that are full, closed or slow: cases 121 to 124.

use crate::played::{ALL_KINDS, Played};
use crate::support::{is, is_alive};
use mainstay_testkit::agents::open_gate;
use mainstay_testkit::stream_text;

/// 121: nobody waits for anybody because standard error is full.
#[test]
fn five_megabytes_on_standard_error_hold_nothing_up() {
    for kind in ALL_KINDS {
        let played = Played::new(kind, "on prompt\n  stderr-flood 5000000\n  say done\n");
        let mut session = played.session("go");
        session.ended("completed");
        assert_eq!(session.text(), "done", "{kind}");
        let folder = crate::keepers::folder(&played.world, &played.client(), &session.id);
        let kept: u64 = std::fs::read_dir(folder)
            .unwrap()
            .flatten()
            .filter(|entry| entry.file_name().to_string_lossy().starts_with("stderr"))
            .map(|entry| entry.metadata().unwrap().len())
            .sum();
        assert!(kept > 0 && kept < 1_000_000, "{kind}: {kept} bytes kept");
        played.end();
    }
}

/// 122: the last words are in the record of the end, however much came before them.
#[test]
fn the_last_words_stand_in_the_record_of_the_end() {
    for kind in ALL_KINDS {
        let script = "on prompt\n  stderr first words\n  stderr-flood 1000000\n  stderr permission denied: the reason\n  exit 1\n";
        let played = Played::new(kind, script);
        let mut session = played.session("go");
        let exited = session.until("the exit", is("process.exited"));
        assert_eq!(exited["exit"]["exit_code"], 1, "{kind}: {exited}");
        let tail = exited["exit"]["stderr_tail"].as_str().unwrap();
        assert!(tail.contains("permission denied: the reason") && tail.len() <= 16 << 10, "{kind}");
        played.end();
    }
}

/// 123: a long message is written while the agent writes and reads nothing.
#[test]
fn a_long_message_and_a_burst_do_not_block_each_other() {
    let script =
        "on prompt first\n  say part\n  deaf\n  wait-for gate $root/gate\n  stream 10000 64\n  listen\n";
    let played = Played::new("claude", script);
    let mut session = played.session("first");
    session.until("text", is("item.delta"));
    let long = "y".repeat(128 << 10);
    played.send(&session, &long);
    session.until("the delivery", |event| event["type"] == "submission.delivered");
    open_gate(&played.root("gate"));
    session.ended("completed");
    session.ended("completed");
    assert_eq!(session.text(), format!("part{}echo: {long}", stream_text::whole(10_000, 64)));
    played.end();
}

/// 124: agents that die while a long message is written to them. Each is one session's matter, the host lives, and a message
/// that was never written whole is given again, once.
#[test]
fn agents_that_die_under_a_long_message_cost_no_message() {
    const SESSIONS: usize = 10;
    let script = "on session/new\n  default\n  deaf\n  pause 300\n  exit 3\non prompt\n  say got it\n";
    let played = Played::new("acp", script);
    let long = "z".repeat(900 << 10);
    let mut sessions: Vec<_> = (0..SESSIONS).map(|_| played.session(&long)).collect();
    for session in &mut sessions {
        session.ended("completed");
        assert_eq!(session.text(), "got it");
        let exits = session.all("process.exited");
        assert_eq!(exits[0]["exit"]["exit_code"], 3, "{exits:?}");
        assert_eq!(session.all("submission.taken").len(), 1);
    }
    assert_eq!(played.world.prompts_received(&long), SESSIONS);
    assert!(is_alive(i32::try_from(played.host.pid()).unwrap()));
    played.end();
}
