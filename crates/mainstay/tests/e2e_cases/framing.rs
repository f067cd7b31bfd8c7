//! What comes over pipes and sockets: cases 99, 101, 111 to 116.

use crate::played::{ALL_KINDS, Played};
use crate::support::is;
use serde_json::Value;

/// 111: separators of Unicode, and control characters, are text like any other.
#[test]
fn only_a_newline_ends_a_line() {
    let odd = "a\u{2028}b\u{2029}c\u{85}d\u{c}e\u{b}f\u{1e}g";
    for kind in ALL_KINDS {
        let played = Played::new(kind, &format!("on prompt odd\n  say {odd}\n"));
        let mut session = played.session("odd");
        session.ended("completed");
        assert_eq!(session.text(), odd, "{kind}");
        // And the other way.
        played.send(&session, odd);
        session.ended("completed");
        assert!(session.text().ends_with(&format!("echo: {odd}")), "{kind}: {:?}", session.text());
        played.end();
    }
}

/// A frame that carries `text` as the agent's own words, for the protocols on a pipe.
fn words(kind: &str, text: &str) -> Vec<String> {
    if kind == "acp" {
        let update = format!(
            r#"{{"sessionUpdate": "agent_message_chunk", "messageId": "m", "content": {{"type": "text", "text": "{text}"}}}}"#
        );
        return vec![format!(
            r#"{{"jsonrpc": "2.0", "method": "session/update", "params": {{"sessionId": "$thread", "update": {update}}}}}"#
        )];
    }
    let event = |event: String| {
        format!(r#"{{"type": "stream_event", "event": {event}, "session_id": "$thread", "uuid": "$new"}}"#)
    };
    vec![
        event(r#"{"type": "message_start", "message": {"id": "m"}}"#.to_owned()),
        event(
            r#"{"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}"#
                .to_owned(),
        ),
        event(format!(
            r#"{{"type": "content_block_delta", "index": 0, "delta": {{"type": "text_delta", "text": "{text}"}}}}"#
        )),
        event(r#"{"type": "content_block_stop", "index": 0}"#.to_owned()),
        event(r#"{"type": "message_stop"}"#.to_owned()),
    ]
}

/// 112: a line that comes byte by byte, with characters of two, three and four bytes.
#[test]
fn characters_that_are_cut_between_reads_come_whole() {
    const TEXT: &str = "é → 𝄞 ü€😀";
    for kind in ["acp", "claude"] {
        let steps: Vec<String> =
            words(kind, TEXT).iter().map(|frame| format!("  trickle 2 {frame}\n")).collect();
        let played = Played::new(kind, &format!("on prompt slow\n{}", steps.concat()));
        let mut session = played.session("slow");
        session.ended("completed");
        assert_eq!(session.text(), TEXT, "{kind}");
        played.end();
    }
}

/// 112: a line that is no text is said and costs nothing else.
#[test]
fn a_line_that_is_no_text_is_said_and_the_next_is_read() {
    for kind in ["acp", "claude"] {
        let script = "on prompt bad\n  raw {\"type\": \"x\", \"method\": \"\\xe2\"}\n  say fine\n";
        let played = Played::new(kind, script);
        let mut session = played.session("bad");
        session.ended("completed");
        assert_eq!(session.text(), "fine", "{kind}");
        let told = session.all("notice").iter().any(|notice| notice.to_string().contains('\u{fffd}'));
        assert!(told, "{kind}: {:?}", session.all("notice"));
        played.end();
    }
}

/// 113: lines of any length up to the bound are text like any other, in every protocol.
#[test]
fn long_lines_are_text_like_any_other() {
    for kind in ALL_KINDS {
        let lengths = [65_537, 1_048_577, 20 << 20];
        let steps: Vec<String> = lengths.iter().map(|bytes| format!("  huge {bytes}\n")).collect();
        let played = Played::new(kind, &format!("on prompt long\n{}  say end\n", steps.concat()));
        let mut session = played.session("long");
        session.ended("completed");
        let text = session.text();
        assert_eq!(text.len(), lengths.iter().sum::<usize>() + 3, "{kind}");
        assert!(text.ends_with("xend"), "{kind}");
        played.end();
    }
}

/// 114: what a wrapper prints before the first message is noise; a broken message is said.
#[test]
fn banners_before_the_first_message_are_passed_over_and_broken_messages_are_said() {
    for kind in ["acp", "claude"] {
        let banners: Vec<String> =
            (0..12).map(|line| format!("  raw \\x1b[3{}mbanner {line}\\x1b[0m\n", line % 8)).collect();
        let script =
            format!("on start\n{}on prompt broken\n  raw {{\"id\":1,\n  say fine\n", banners.concat());
        let played = Played::new(kind, &script);
        let mut session = played.session("hello");
        session.ended("completed");
        assert_eq!(session.text(), "echo: hello", "{kind}");
        played.send(&session, "broken");
        session.ended("completed");
        let told = session.all("notice").iter().any(|notice| notice.to_string().contains("{\\\"id\\\":1,"));
        assert!(told, "{kind}: {:?}", session.all("notice"));
        played.end();
    }
}

/// 115: a byte order mark before the first line, and carriage returns at the ends of all.
#[test]
fn a_byte_order_mark_and_carriage_returns_are_no_part_of_a_message() {
    for kind in ["acp", "claude"] {
        let script = "on start\n  crlf\n  part \\xef\\xbb\\xbf\non prompt cr\n  raw {}\n  say ends with\\r\n";
        let script = script.replace("say ends with\\r", "say ends with \\r kept\n  say x");
        let played = Played::new(kind, &script);
        let mut session = played.session("cr");
        session.ended("completed");
        assert_eq!(session.text(), "ends with \\r keptx", "{kind}");
        let unread = session.all("notice").iter().any(|notice| notice.to_string().contains("initialize"));
        assert!(!unread, "{kind}: {:?}", session.all("notice"));
        played.end();
    }
}

/// 116: what is newer than the host is kept to be seen and ends nothing.
#[test]
fn unknown_kinds_are_kept_and_end_nothing() {
    for (kind, frames) in [
        (
            "acp",
            [
                r#"{"jsonrpc": "2.0", "method": "brand/new", "params": {"mark": "one"}}"#,
                r#"{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "$thread", "update": {"sessionUpdate": "mystery", "mark": "two"}}}"#,
                r#"{"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "$thread", "update": {"sessionUpdate": "tool_call_update", "mark": "three"}}}"#,
            ],
        ),
        (
            "codex",
            [
                r#"{"method": "brand/new", "params": {"threadId": "$thread", "mark": "one"}}"#,
                r#"{"method": "item/started", "params": {"threadId": "$thread", "turnId": "$turn", "item": {"type": "mystery", "id": "i1", "mark": "two"}}}"#,
                r#"{"method": "item/completed", "params": {"threadId": "$thread", "turnId": "$turn", "item": {"type": "agentMessage", "mark": "three"}}}"#,
            ],
        ),
        (
            "claude",
            [
                r#"{"type": "brand_new", "session_id": "$thread", "mark": "one"}"#,
                r#"{"type": "system", "subtype": "mystery", "session_id": "$thread", "mark": "two"}"#,
                r#"{"type": "stream_event", "session_id": "$thread", "event": {"type": "mystery", "mark": "three"}}"#,
            ],
        ),
    ] {
        let steps: Vec<String> = frames.iter().map(|frame| format!("  send {frame}\n")).collect();
        let played = Played::new(kind, &format!("on prompt new\n{}  say done\n", steps.concat()));
        let mut session = played.session("new");
        session.ended("completed");
        assert!(session.text().ends_with("done"), "{kind}: {}", session.text());
        let seen: String = session.follower.events.iter().map(Value::to_string).collect();
        for mark in ["one", "two", "three"] {
            assert!(seen.contains(&format!("\"mark\":\"{mark}\"")), "{kind}: {mark} was dropped: {seen}");
        }
        played.end();
    }
}

/// 99 and 101: what comes before the conversation has its name, and what comes between turns.
#[test]
fn what_comes_before_the_name_and_between_turns_is_kept() {
    let commands = |name: &str| {
        format!(
            r#"  send {{"jsonrpc": "2.0", "method": "session/update", "params": {{"sessionId": "S", "update": {{"sessionUpdate": "available_commands_update", "availableCommands": [{{"name": "{name}", "description": "d"}}]}}}}}}"#
        )
    };
    let script = format!(
        "on session/new\n{}\n  answer {{\"sessionId\": \"S\"}}\non prompt one\n  say first\n  end\n  wait-for gate $root/gate\n{}\n",
        commands("early"),
        commands("between"),
    );
    let played = Played::new("acp", &script);
    let mut session = played.session("one");
    session.ended("completed");
    let early = session.all("commands.updated").iter().any(|event| event.to_string().contains("early"));
    assert!(early, "what came before the name was lost");
    mainstay_testkit::agents::open_gate(&played.root("gate"));
    session.until("what came between turns", |event| {
        event["type"] == "commands.updated" && event.to_string().contains("between")
    });
    assert_eq!(session.all("turn.started").len(), 1, "a phantom turn");
    played.send(&session, "two");
    session.ended("completed");
    played.end();
}

/// 98, for every protocol that can: what is said after the turn's end is shown, and opens no phantom turn.
#[test]
fn words_after_the_end_of_a_turn_are_shown() {
    let frame = &words("acp", "late")[0];
    let played =
        Played::new("acp", &format!("on prompt late\n  say part\n  end\n  pause 100\n  send {frame}\n"));
    let mut session = played.session("late");
    session.ended("completed");
    session.until("the late word", |event| event["text"] == "late");
    played.send(&session, "next");
    session.until("the next turn", is("turn.started"));
    session.ended("completed");
    assert_eq!(session.all("turn.started").len(), 2);
    assert_eq!(session.text(), "partlateecho: next");
    played.end();
}
