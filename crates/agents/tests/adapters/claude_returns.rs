//! The Claude adapter where a conversation is come back to: what a death cut off is asked again, what was rewound is left
//! out, what the files hold is shown.

use crate::claude_rules::{answered, brief, connected, init, open, refused, result};
use crate::harness::{Harness, select};
use mainstay_agents::{SavedChild, SavedHistory, UnansweredCall};
use mainstay_core::content::Answer;
use mainstay_core::question::Elicitation;
use mainstay_core::work::{Control, HistoryPoint};
use mainstay_core::{SessionOptions, ThreadId};
use serde_json::{Value, json};

fn unanswered(tool: &str, input: Value) -> UnansweredCall {
    UnansweredCall { request: "old".into(), call: "toolu_1".into(), tool: tool.to_owned(), input }
}

/// A conversation that is taken up again, with a call of the process before that nobody answered.
fn asked_again(call: UnansweredCall) -> (Harness, Vec<String>) {
    let mut harness = connected();
    harness.learn_unanswered("s1", vec![call]);
    let lines = harness.open("s1", Some("c-1"));
    (harness, lines)
}

/// The program takes the call up: it prints it again, before the turn shows itself.
fn taken_up(harness: &mut Harness) -> Vec<String> {
    let block = json!({"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "ls"}});
    let message = json!({"id": "msg_1", "content": [block]});
    harness.message(&json!({"type": "assistant", "uuid": "a1", "message": message}))
}

#[test]
fn a_call_without_an_answer_is_asked_about_before_the_conversation_is_open() {
    let (mut harness, lines) = asked_again(unanswered("Bash", json!({"command": "ls"})));
    let lines = brief(&lines);
    assert!(lines[0].starts_with("RequestOpened again:toolu_1"), "{lines:?}");
    assert!(lines.last().unwrap().starts_with("ThreadOpened"), "{lines:?}");
    harness.answer("s1", "again:toolu_1", select("allow"), Vec::new()).expect("is open");
    let sent = &harness.sent[0]["response"]["response"];
    assert_eq!(
        sent,
        &json!({"behavior": "allow", "updatedInput": {"command": "ls"}, "toolUseID": "toolu_1"})
    );
    let lines = brief(&taken_up(&mut harness));
    assert!(lines[0].starts_with("TurnStarted a1"), "{lines:?}");
    assert!(lines[1].starts_with("RequestSettled again:toolu_1 confirmed"), "{lines:?}");
    assert!(lines[2].starts_with("ItemStarted toolu_1 in a1"), "{lines:?}");
    // Its `init` comes behind, and begins no second turn.
    let lines = brief(&init(&mut harness, "t1"));
    assert!(!lines.iter().any(|line| line.starts_with("TurnStarted")), "{lines:?}");
    let lines = brief(&result(&mut harness, json!({})));
    assert!(lines.iter().any(|line| line.starts_with("TurnEnded a1 Completed")), "{lines:?}");
}

#[test]
fn an_input_too_large_to_keep_is_left_to_the_transcript() {
    let (mut harness, _) = asked_again(unanswered("Write", json!({"content": "x".repeat(40_000)})));
    harness.answer("s1", "again:toolu_1", select("allow"), Vec::new()).expect("is open");
    let sent = &harness.sent[0]["response"]["response"];
    assert_eq!(sent, &json!({"behavior": "allow", "toolUseID": "toolu_1"}));
}

#[test]
fn one_of_several_calls_goes_on_and_the_others_are_given_up() {
    let mut harness = connected();
    let call = |number: u8| UnansweredCall {
        request: format!("old{number}").into(),
        call: format!("toolu_{number}").into(),
        ..unanswered("Bash", json!({"command": "ls"}))
    };
    harness.learn_unanswered("s1", vec![call(1), call(2), call(3)]);
    let lines = brief(&harness.open("s1", Some("c-1")));
    assert_eq!(lines.iter().filter(|line| line.starts_with("RequestOpened")).count(), 3, "{lines:?}");
    let lines = brief(&harness.answer("s1", "again:toolu_2", select("allow"), Vec::new()).expect("is open"));
    assert!(lines[0].contains("2 more did not run"), "{lines:?}");
    assert!(
        lines[1].starts_with("RequestSettled again:toolu_1") && !lines[1].contains("confirmed"),
        "{lines:?}"
    );
    assert!(lines[2].starts_with("RequestSettled again:toolu_3"), "{lines:?}");
    assert_eq!(harness.sent.len(), 1);
    assert!(harness.answer("s1", "again:toolu_1", select("allow"), Vec::new()).is_err());
}

#[test]
fn a_denial_names_the_call_too() {
    let (mut harness, _) = asked_again(unanswered("Bash", json!({"command": "ls"})));
    let answer = Answer::Decline { message: Some("no".to_owned()) };
    harness.answer("s1", "again:toolu_1", answer, Vec::new()).expect("is open");
    let sent = &harness.sent[0]["response"]["response"];
    assert_eq!((&sent["behavior"], &sent["toolUseID"]), (&json!("deny"), &json!("toolu_1")));
}

#[test]
fn a_new_message_takes_back_what_was_asked_again() {
    let (mut harness, _) = asked_again(unanswered("Bash", json!({"command": "ls"})));
    harness.start("s1", "m1", "something else").expect("can be told");
    assert!(harness.answer("s1", "again:toolu_1", select("allow"), Vec::new()).is_err());
}

fn rewind(files: bool) -> Control {
    let before = HistoryPoint { turn: "t2".into(), submission: Some("m2".into()), last_item: None };
    Control::Rewind { before, files }
}

#[test]
fn going_back_names_the_row_at_which_the_next_process_begins() {
    let mut harness = open();
    harness.learn_way_back("s1", Ok("a1".to_owned()));
    assert_eq!(brief(&harness.control("s1", "c1", rewind(false))), ["GoesBack c1 at a1"]);
    assert!(harness.sent.is_empty(), "the living process has no part in it");
    harness.learn_way_back("s1", Err("nothing stands before it".to_owned()));
    let lines = brief(&harness.control("s1", "c2", rewind(false)));
    assert!(lines[0].contains("c2") && lines[0].contains("nothing stands before it"), "{lines:?}");
}

#[test]
fn files_are_put_back_first_and_where_they_cannot_be_nothing_is_rewound() {
    let mut harness = open();
    harness.learn_way_back("s1", Ok("a1".to_owned()));
    assert!(harness.control("s1", "c1", rewind(true)).iter().all(|line| !line.contains("GoesBack")));
    let sent = harness.sent[0].clone();
    assert_eq!(sent["request"], json!({"subtype": "rewind_files", "user_message_id": "m2"}));
    let id = sent["request_id"].as_str().expect("an id").to_owned();
    assert_eq!(brief(&answered(&mut harness, &id, &json!({"canRewind": true}))), ["GoesBack c1 at a1"]);
    let lines = brief(&refused(&mut harness, &id, "not enabled"));
    assert!(lines[0].contains("refused") && lines[0].contains("not enabled"), "{lines:?}");
}

#[test]
fn thinking_is_set_in_the_programs_words_and_a_wrong_word_opens_nothing() {
    let options =
        |word: &str| SessionOptions { thinking: Some(word.to_owned()), ..SessionOptions::default() };
    for (word, tokens) in [("off", json!(0)), ("on", Value::Null), ("2048", json!(2048))] {
        let mut harness = connected();
        harness.open_with("s1", None, options(word), &[]);
        assert_eq!(harness.sent[0]["request"]["max_thinking_tokens"], tokens, "{word}");
        let lines = brief(&answered(&mut harness, "set-thinking", &json!({})));
        assert!(lines.iter().any(|line| line.starts_with("ThreadOpened")), "{lines:?}");
    }
    let lines = brief(&connected().open_with("s1", None, options("perhaps"), &[]));
    assert!(lines[0].starts_with("ThreadRefused"), "{lines:?}");
}

#[test]
fn what_is_taken_back_is_left_to_the_program() {
    let mut harness = open();
    let wish = SessionOptions {
        thinking: Some("off".to_owned()),
        effort: Some("low".to_owned()),
        model: Some("small".to_owned()),
        mode: Some("plan".to_owned()),
        ..SessionOptions::default()
    };
    let set = |options: &SessionOptions, changed: &SessionOptions| Control::SetOptions {
        options: Box::new(options.clone()),
        changed: Box::new(changed.clone()),
    };
    harness.control("s1", "k1", set(&wish, &wish));
    assert_eq!(harness.sent.len(), 4);
    for setting in ["set-mode", "set-model", "set-effort", "set-thinking"] {
        answered(&mut harness, setting, &json!({}));
    }
    // One goes, the others stay.
    let without = SessionOptions { thinking: None, ..wish };
    harness.control("s1", "k2", set(&without, &SessionOptions::default()));
    let asked = |harness: &Harness| -> Vec<Value> {
        harness.sent.iter().map(|frame| frame["request"].clone()).collect()
    };
    assert_eq!(asked(&harness), [json!({"subtype": "set_max_thinking_tokens", "max_thinking_tokens": null})]);
    let lines = brief(&answered(&mut harness, "set-thinking", &json!({})));
    assert_eq!(lines.last().map(String::as_str), Some(r#"ControlEnded k2 {"state":"done"}"#));
    harness.control("s1", "k3", set(&SessionOptions::default(), &SessionOptions::default()));
    let back = [
        json!({"subtype": "set_permission_mode", "mode": "default"}),
        json!({"subtype": "set_model", "model": null}),
        json!({"subtype": "apply_flag_settings", "settings": {"effortLevel": null}}),
    ];
    assert_eq!(asked(&harness), back);
    for (setting, answer) in [("set-mode", json!({"mode": "default"})), ("set-model", json!({}))] {
        answered(&mut harness, setting, &answer);
    }
    let lines = brief(&answered(&mut harness, "set-effort", &json!({})));
    assert_eq!(lines.last().map(String::as_str), Some(r#"ControlEnded k3 {"state":"done"}"#));
    harness.control("s1", "k4", set(&SessionOptions::default(), &SessionOptions::default()));
    assert!(harness.sent.is_empty(), "it is so already");
}

#[test]
fn a_link_of_an_mcp_server_is_shown_as_a_link() {
    let mut harness = open();
    let request = json!({
        "subtype": "elicitation", "mcp_server_name": "m", "message": "Sign in", "mode": "url",
        "url": "https://example.test/sign-in",
    });
    let asked = json!({"type": "control_request", "request_id": "r1", "request": request});
    let lines = harness.message(&asked);
    let link = Elicitation::Url { url: "https://example.test/sign-in".to_owned() };
    assert!(lines[0].contains("Elicitation"), "{lines:?}");
    assert!(format!("{link:?}").contains("sign-in") && lines[0].contains("example.test"), "{lines:?}");
    harness.answer("s1", "r1", Answer::Submit { content: None }, Vec::new()).expect("is open");
    assert_eq!(harness.sent[0]["response"]["response"], json!({"action": "accept"}));
}

#[test]
fn a_history_shows_sub_agents_and_says_what_was_left_out() {
    let row = |row: Value| format!("{row}\n");
    let transcript = row(json!({"type": "user", "uuid": "u1", "message": {"content": "first"}}));
    let call = json!({"type": "tool_use", "id": "toolu_9", "name": "Bash", "input": {"command": "ls"}});
    let child = [
        row(json!({"type": "user", "uuid": "s1", "isSidechain": true, "message": {"content": "its orders"}})),
        row(
            json!({"type": "assistant", "uuid": "s2", "isSidechain": true, "message": {"id": "msg_s", "content": [call]}}),
        ),
        row(json!({"type": "assistant", "uuid": "s3", "isSidechain": true,
            "message": {"id": "msg_t", "content": [{"type": "text", "text": "done"}]}})),
    ];
    let about = json!({"agentType": "helper", "description": "looks", "toolUseId": "toolu_1"});
    let history = SavedHistory {
        transcript: transcript.into_bytes(),
        cut: true,
        children: vec![SavedChild {
            thread: ThreadId::from("a7"),
            about: about.to_string().into_bytes(),
            transcript: child.concat().into_bytes(),
        }],
        children_left_out: 2,
    };
    let lines = brief(&open().show_history("s1", &history));
    assert!(lines[0].contains("larger than what is read"), "{lines:?}");
    assert!(lines[1].contains("UserMessage"), "{lines:?}");
    let of_child: Vec<&String> = lines.iter().filter(|line| line.contains("a7")).collect();
    assert!(of_child[0].starts_with("ChildStarted a7"), "{lines:?}");
    assert!(of_child.last().unwrap().starts_with("ChildEnded a7"), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("ItemStarted toolu_9")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("msg_t.0") && line.contains("AgentMessage")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("its orders")), "{lines:?}");
    assert!(lines.last().unwrap().contains("2 more sub-agents"), "{lines:?}");
}
