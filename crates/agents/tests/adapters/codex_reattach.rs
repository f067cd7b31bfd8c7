//! One test for each rule of the Codex adapter about what a connection, a process or a turn left open: threads taken up
//! again, and what the history tells.

use crate::codex_bench::*;
use crate::harness::{Harness, Life, context, select};
use mainstay_agents::{AgentKind, CannotTell, Shown, ThreadContext};
use mainstay_core::SessionOptions;
use serde_json::{Value, json};

#[test]
fn a_resumed_thread_is_open_when_its_history_was_looked_at() {
    let mut harness = connected();
    harness.open_with("s1", Some("T"), SessionOptions::default(), &["m1", "m2", "m3"]);
    assert_eq!(answer(&mut harness, "thread/resume", &thread("T")).len(), 1, "only the question");
    let turn = |id: &str, item: Value| json!({ "id": id, "status": "interrupted", "items": [item] });
    let said = history(&mut harness, &json!([turn("U9", user_message("x", Some("m2")))]), &json!("older"));
    assert_eq!(said[0], "s1: InputTaken m2 History");
    assert_eq!(harness.sent[0]["params"]["cursor"], "older");
    let said = history(&mut harness, &json!([turn("U8", user_message("y", Some("m1")))]), &Value::Null);
    assert_eq!(said, ["s1: InputTaken m1 History", "s1: InputAbsent m3", "s1: ThreadOpened T resumed"]);
}

#[test]
fn an_unreadable_history_proves_nothing() {
    let mut harness = connected();
    harness.open_with("s1", Some("T"), SessionOptions::default(), &["m1"]);
    answer(&mut harness, "thread/resume", &thread("T"));
    refuse(&mut harness, "thread/turns/list", "no");
    refuse(&mut harness, "thread/turns/list", "no");
    let said = refuse(&mut harness, "thread/turns/list", "no");
    assert!(said.iter().all(|line| !line.contains("InputAbsent")), "{said:?}");
    assert_eq!(said[said.len() - 2..], ["s1: InputUnknown m1", "s1: ThreadOpened T resumed"]);
    // The same where the answer was too long to keep.
    let mut harness = connected();
    harness.open_with("s1", Some("T"), SessionOptions::default(), &["m1"]);
    answer(&mut harness, "thread/resume", &thread("T"));
    let mut oversize = || {
        let id = harness.sent_id("thread/turns/list");
        harness.oversize(99_000_000, format!(r#"{{"id":{id},"result":{{"data":["#).as_bytes())
    };
    oversize();
    oversize();
    let said = oversize();
    assert!(said.iter().all(|line| !line.contains("InputAbsent")), "{said:?}");
    assert_eq!(said[said.len() - 2..], ["s1: InputUnknown m1", "s1: ThreadOpened T resumed"]);
}

#[test]
fn a_thread_that_runs_when_it_is_taken_up_shows_its_turn() {
    let mut harness = connected();
    harness.open("s1", Some("T"));
    answer(&mut harness, "thread/resume", &thread("T"));
    let turns = json!([{ "id": "U2", "status": "inProgress", "items": [] }, { "id": "U1", "status": "completed", "items": [] }]);
    assert_eq!(
        history(&mut harness, &turns, &Value::Null),
        ["s1: ThreadOpened T resumed", "s1: TurnStarted U2 Unknown -"]
    );
    assert!(harness.interrupt("s1", Some("U2"))[0].contains("turn/interrupt"));
}

#[test]
fn a_lost_connection_is_made_good_from_the_history() {
    let mut harness = running();
    let asked = reconnect(&mut harness);
    assert!(asked[0].contains("thread/turns/list"), "{asked:?}");
    let answer = json!({ "type": "agentMessage", "id": "a1", "text": "done", "completedAtMs": 3 });
    let open_item = json!({ "type": "agentMessage", "id": "a2", "text": "", "completedAtMs": null });
    let turns = json!([
        { "id": "U2", "status": "inProgress", "items": [user_message("u2", Some("theirs")), open_item] },
        { "id": "U1", "status": "completed", "items": [user_message("u1", Some("m1")), answer] },
    ]);
    assert_eq!(
        history(&mut harness, &turns, &Value::Null),
        [
            r#"s1: ItemCompleted a1 in U1 AgentMessage Completed "done""#,
            "s1: TurnEnded U1 Completed -",
            "s1: TurnStarted U2 Unknown -",
            "s1: TurnStarted U2 Client -",
            r#"s1: ItemCompleted u2 in U2 UserMessage Completed content=[{"text":"hello","type":"text"}]"#,
            "s1: ThreadOpened T resumed",
        ]
    );
    assert_eq!(harness.message(&ended("U2", "completed")), ["s1: TurnEnded U2 Completed -"]);
}

#[test]
fn a_turn_that_ends_while_its_history_is_being_read_ends_after_what_the_history_has_of_it() {
    let mut harness = running();
    let asked = reconnect(&mut harness);
    assert!(asked[0].contains("thread/turns/list"), "{asked:?}");
    assert_eq!(harness.message(&ended("U1", "completed")), Vec::<String>::new(), "it waits for the page");
    let answer = json!({ "type": "agentMessage", "id": "a1", "text": "all of it", "completedAtMs": 3 });
    let turns =
        json!([{ "id": "U1", "status": "inProgress", "items": [user_message("u1", Some("m1")), answer] }]);
    let json_begins = asked[0].find('{').expect("a frame");
    let request: Value = serde_json::from_str(&asked[0][json_begins..]).expect("JSON");
    let page = json!({ "id": request["id"], "result": { "data": turns, "nextCursor": null } });
    assert_eq!(
        harness.message(&page),
        [
            r#"s1: ItemCompleted a1 in U1 AgentMessage Completed "all of it""#,
            "s1: TurnEnded U1 Completed -",
            "s1: ThreadOpened T resumed",
        ]
    );
}

#[test]
fn turns_that_were_seen_to_end_are_not_shown_again() {
    let mut harness = running();
    harness.message(&ended("U1", "completed"));
    reconnect(&mut harness);
    let turns = json!([{ "id": "U1", "status": "completed", "items": [user_message("u1", Some("m1"))] }]);
    assert_eq!(history(&mut harness, &turns, &Value::Null), ["s1: ThreadOpened T resumed"]);
}

#[test]
fn a_message_that_came_while_there_was_no_connection_can_be_given_after_it() {
    let mut harness = running();
    harness.message(&ended("U1", "completed"));
    harness.disconnect();
    assert_eq!(harness.start("s1", "m2", "x"), Err(CannotTell::NotConnected));
    handshake(&mut harness);
    answer(&mut harness, "thread/resume", &thread("T"));
    let turns = json!([{ "id": "U1", "status": "completed", "items": [user_message("u1", Some("m1"))] }]);
    assert_eq!(history(&mut harness, &turns, &Value::Null), ["s1: ThreadOpened T resumed"]);
    assert!(harness.start("s1", "m2", "x").is_ok());
}

#[test]
fn a_session_that_comes_while_there_is_no_connection_is_opened_on_the_next_one() {
    let mut harness = running();
    harness.disconnect();
    harness.bind("s2");
    assert_eq!(harness.open("s2", None), [""; 0]);
    handshake(&mut harness);
    answer(&mut harness, "thread/start", &thread("T2"));
    assert!(harness.start("s2", "m1", "x").is_ok());
}

#[test]
fn an_input_that_was_in_flight_when_the_connection_was_lost_is_found_or_in_doubt() {
    let in_flight = || {
        let mut harness = open();
        harness.start("s1", "m1", "hello").expect("can be told");
        reconnect(&mut harness);
        harness
    };
    let mut harness = in_flight();
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [user_message("u1", Some("m1"))] }]);
    assert_eq!(
        history(&mut harness, &turns, &Value::Null),
        ["s1: TurnStarted U1 Message m1", "s1: InputTaken m1 History", "s1: ThreadOpened T resumed"]
    );
    // Not there yet proves nothing: the agent may still read what was written to the lost connection.
    let mut harness = in_flight();
    assert_eq!(
        history(&mut harness, &json!([]), &Value::Null),
        ["s1: InputUnknown m1", "s1: ThreadOpened T resumed"]
    );
    assert!(harness.start("s1", "m2", "x").is_ok(), "what comes after it is not held back");

    // Something runs: it may still come. Settled when the turn has ended.
    let mut harness = in_flight();
    let turns = json!([{ "id": "V", "status": "inProgress", "items": [] }]);
    assert_eq!(
        history(&mut harness, &turns, &Value::Null),
        ["s1: TurnStarted V Unknown -", "s1: ThreadOpened T resumed"]
    );
    assert_eq!(harness.start("s1", "m2", "x"), Err(CannotTell::InputUntaken("s1".into())));
    let said = harness.message(&ended("V", "completed"));
    assert!(said[1].contains("thread/turns/list"), "{said:?}");
    let turns = json!([{ "id": "V", "status": "completed", "items": [] }]);
    assert_eq!(history(&mut harness, &turns, &Value::Null), ["s1: InputAbsent m1"]);
}

#[test]
fn absence_is_claimed_only_where_the_page_reaches_back_far_enough() {
    let mut harness = running();
    harness.message(&ended("U1", "completed"));
    harness.start("s1", "m2", "more").expect("can be told");
    reconnect(&mut harness);
    let turns = json!([{ "id": "W", "status": "completed", "items": [] }]);
    let said = history(&mut harness, &turns, &json!("older"));
    assert!(said.iter().all(|line| !line.contains("InputAbsent")), "{said:?}");
    assert!(said[0].starts_with("s1: Notice Warning"), "what is not shown is said: {said:?}");
    assert_eq!(said[said.len() - 2..], ["s1: InputUnknown m2", "s1: ThreadOpened T resumed"]);
    assert!(harness.start("s1", "m3", "x").is_ok(), "it holds nothing back");
}

#[test]
fn an_input_is_given_up_when_the_history_cannot_be_read_also_in_a_smaller_page() {
    for oversize in [false, true] {
        let unreadable = |harness: &mut Harness| {
            if oversize {
                let id = harness.sent_id("thread/turns/list");
                harness.oversize(99_000_000, format!(r#"{{"id":{id},"result":{{"data":["#).as_bytes())
            } else {
                refuse(harness, "thread/turns/list", "no")
            }
        };
        // After a lost connection.
        let mut harness = open();
        harness.start("s1", "m1", "hello").expect("can be told");
        reconnect(&mut harness);
        assert_eq!(harness.sent[0]["params"]["limit"], 10);
        unreadable(&mut harness);
        assert_eq!(harness.sent[0]["params"]["limit"], 2);
        unreadable(&mut harness);
        assert_eq!(harness.sent[0]["params"]["itemsView"], "summary");
        let said = unreadable(&mut harness);
        assert!(harness.sent.is_empty(), "not for ever");
        assert_eq!(said[said.len() - 2..], ["s1: InputUnknown m1", "s1: ThreadOpened T resumed"]);
        assert!(said[said.len() - 3].contains("could not be read"), "{said:?}");
        assert!(harness.start("s1", "m2", "x").is_ok());
        // Its user message comes all the same.
        let late = completed("U1", &user_message("u1", Some("m1")));
        assert_eq!(harness.message(&late), ["s1: InputTaken m1 ClientId"]);
        assert_eq!(harness.message(&late), Vec::<String>::new(), "taken once");

        // After a turn that ended without it.
        let mut harness = named();
        harness.message(&started("U1"));
        harness.message(&ended("U1", "failed"));
        unreadable(&mut harness);
        unreadable(&mut harness);
        assert_eq!(unreadable(&mut harness).last().map(String::as_str), Some("s1: InputUnknown m1"));
        assert!(harness.start("s1", "m2", "x").is_ok());
    }
}

#[test]
fn a_smaller_page_that_can_be_read_settles_the_input() {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    reconnect(&mut harness);
    refuse(&mut harness, "thread/turns/list", "no");
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [user_message("u1", Some("m1"))] }]);
    let said = history(&mut harness, &turns, &json!("older"));
    assert!(said.contains(&"s1: InputTaken m1 History".to_owned()), "{said:?}");
    assert_eq!(said.last().map(String::as_str), Some("s1: ThreadOpened T resumed"));
}

#[test]
fn an_input_is_looked_up_again_after_a_turn_that_it_did_not_name() {
    let mut harness = named();
    harness.message(&started("U1"));
    harness.message(&ended("U1", "failed"));
    // Another client's turn runs already: the message may be in it.
    let turns = json!([{ "id": "V", "status": "inProgress", "items": [] }]);
    assert_eq!(history(&mut harness, &turns, &Value::Null), Vec::<String>::new());
    harness.message(&started("V"));
    let said = harness.message(&ended("V", "completed"));
    assert!(said[1].contains("thread/turns/list"), "{said:?}");
    assert_eq!(history(&mut harness, &json!([]), &Value::Null), ["s1: InputAbsent m1"]);
}

#[test]
fn a_turn_that_ends_without_its_input_is_looked_up_also_one_that_was_stopped() {
    let mut harness = named();
    harness.message(&started("U1"));
    let said = harness.message(&ended("U1", "failed"));
    assert!(said[1].contains("thread/turns/list"), "{said:?}");
    let turns = json!([{ "id": "U1", "status": "failed", "items": [] }]);
    assert_eq!(history(&mut harness, &turns, &Value::Null), ["s1: InputAbsent m1"]);

    let mut harness = named();
    harness.interrupt("s1", None);
    harness.message(&started("U1"));
    // The session knows that it was stopped, and does not give it again.
    let said = harness.message(&ended("U1", "interrupted"));
    assert!(said[1].contains("thread/turns/list"), "{said:?}");
    let turns = json!([{ "id": "U1", "status": "interrupted", "items": [] }]);
    assert_eq!(history(&mut harness, &turns, &Value::Null), ["s1: InputAbsent m1"]);
    assert!(harness.start("s1", "m2", "x").is_ok());
}

#[test]
fn an_approval_keeps_its_key_over_a_lost_connection() {
    let mut harness = running();
    harness.message(&approval(0));
    reconnect(&mut harness);
    let asked = harness.sent_id("thread/turns/list");
    // Measured: it is asked again between the answer to the resumption and the answer to what follows.
    assert_eq!(harness.message(&approval(7)), Vec::<String>::new(), "it is the same request");
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [] }]);
    let said = harness.message(&json!({ "id": asked, "result": { "data": turns, "nextCursor": null } }));
    assert_eq!(said, ["s1: ThreadOpened T resumed"]);
    harness.answer("s1", "1:0", select("accept"), Vec::new()).expect("is open");
    assert_eq!(harness.sent, [json!({ "id": 7, "result": { "decision": "accept" } })]);
    let resolved = event("serverRequest/resolved", json!({ "requestId": 7 }));
    assert_eq!(harness.message(&resolved), ["s1: RequestSettled 1:0 confirmed"]);
}

#[test]
fn two_approvals_of_one_item_are_two() {
    let mut harness = running();
    harness.message(&approval(0));
    assert!(harness.message(&approval(1))[0].starts_with("s1: RequestOpened 1:1"));
    let mut other = approval(2);
    other["params"]["approvalId"] = json!("second");
    assert!(harness.message(&other)[0].starts_with("s1: RequestOpened 1:2"));
    reconnect(&mut harness);
    assert_eq!(harness.message(&other), Vec::<String>::new());
    harness.answer("s1", "1:2", select("accept"), Vec::new()).expect("is open");
    assert_eq!(harness.sent, [json!({ "id": 2, "result": { "decision": "accept" } })]);
    harness.answer("s1", "1:0", select("accept"), Vec::new()).expect("is open");
    assert!(harness.sent.is_empty(), "it was not asked again yet");
}

#[test]
fn an_answer_that_was_lost_with_its_connection_is_given_again() {
    for while_away in [false, true] {
        let mut harness = running();
        harness.message(&approval(0));
        if while_away {
            harness.disconnect();
            harness.answer("s1", "1:0", select("decline"), Vec::new()).expect("is open");
            assert!(harness.sent.is_empty());
            handshake(&mut harness);
            answer(&mut harness, "thread/resume", &active_thread_that("waitingOnApproval"));
        } else {
            harness.answer("s1", "1:0", select("decline"), Vec::new()).expect("is open");
            reconnect(&mut harness);
        }
        assert_eq!(harness.message(&approval(3)), [r#"send {"id":3,"result":{"decision":"decline"}}"#]);
    }
}

#[test]
fn a_stop_while_there_is_no_connection_is_sent_on_the_next() {
    let mut harness = running();
    harness.disconnect();
    assert_eq!(harness.interrupt("s1", Some("U1")), Vec::<String>::new());
    handshake(&mut harness);
    answer(&mut harness, "thread/resume", &thread("T"));
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [] }]);
    let said = history(&mut harness, &turns, &Value::Null);
    assert_eq!(said[0], "s1: ThreadOpened T resumed");
    assert!(said[1].starts_with("send urgent") && said[1].contains("turn/interrupt"), "{said:?}");
}

#[test]
fn a_thread_that_was_being_opened_is_asked_for_again() {
    let mut harness = connected();
    harness.open("s1", None);
    harness.disconnect();
    let sent = handshake(&mut harness);
    assert!(sent[2].contains("thread/start"), "{sent:?}");
    assert_eq!(answer(&mut harness, "thread/start", &thread("T")), ["s1: ThreadOpened T"]);
}

#[test]
fn late_answers_of_a_lost_connection_meet_nobody() {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    let id = harness.sent_id("turn/start");
    reconnect(&mut harness);
    let late = json!({ "id": id, "result": { "turn": { "id": "U1" } } });
    assert!(harness.message(&late)[0].starts_with("all: Unmodelled answer"));
}

/// A session whose never used thread T could not be taken up on a new connection.
fn detached(in_flight: bool) -> Harness {
    let mut harness = open();
    if in_flight {
        harness.start("s1", "m1", "hello").expect("can be told");
    }
    harness.disconnect();
    handshake(&mut harness);
    let said = refuse(&mut harness, "thread/resume", NO_ROLLOUT);
    let can_be_written_to = said.contains(&"s1: ThreadOpened T resumed".to_owned());
    assert_eq!(can_be_written_to, !in_flight, "{said:?}");
    harness
}

#[test]
fn a_thread_without_a_message_is_written_to_as_it_is_and_taken_up_at_its_first_word() {
    let mut harness = detached(false);
    assert!(harness.sent.is_empty());
    let sent = harness.start("s1", "m1", "hello").expect("can be told");
    assert!(sent[0].starts_with("send carries m1"), "{sent:?}");
    answer(&mut harness, "turn/start", &json!({ "turn": { "id": "U1" } }));
    let active = event("thread/status/changed", json!({ "status": { "type": "active" } }));
    assert!(harness.message(&active)[0].contains("thread/resume"));
    let id = harness.sent_id("thread/resume");
    assert_eq!(harness.message(&active), Vec::<String>::new(), "one at a time");
    // Measured: the first try may come while the first message is being taken.
    let busy = json!({ "id": id, "error": { "code": -32601, "message": "list_turns is not supported yet" } });
    // A word of it came in the meantime: it is tried again at once.
    assert!(harness.message(&busy)[0].contains("thread/resume"));
    let id = harness.sent_id("thread/resume");
    let busy = json!({ "id": id, "error": { "code": -32601, "message": "list_turns is not supported yet" } });
    assert!(harness.message(&busy)[0].starts_with("s1: Notice Warning"));
    assert_eq!(answer(&mut harness, "thread/read", &active_thread()), Vec::<String>::new(), "it is there");
    harness.message(&active);
    answer(&mut harness, "thread/resume", &thread("T"));
    let turns = json!([{ "id": "U1", "status": "inProgress", "items": [] }]);
    assert_eq!(
        history(&mut harness, &turns, &Value::Null),
        ["s1: TurnStarted U1 Message m1", "s1: ThreadOpened T resumed"]
    );
    let taken = completed("U1", &user_message("u1", Some("m1")));
    assert_eq!(harness.message(&taken), ["s1: InputTaken m1 ClientId"]);
}

#[test]
fn a_first_message_that_was_lost_is_absent_only_when_the_thread_did_nothing_and_still_has_none() {
    let mut harness = detached(true);
    let read = thread("T");
    let sent = answer(&mut harness, "thread/read", &read);
    assert!(sent[0].contains("thread/resume"), "being idle alone proves nothing: {sent:?}");
    let said = refuse(&mut harness, "thread/resume", NO_ROLLOUT);
    assert_eq!(said, ["s1: InputAbsent m1", "s1: ThreadOpened T resumed"]);

    // After an error it does nothing either.
    let mut harness = detached(true);
    answer(&mut harness, "thread/read", &json!({ "thread": { "status": { "type": "systemError" } } }));
    assert_eq!(refuse(&mut harness, "thread/resume", NO_ROLLOUT)[0], "s1: InputAbsent m1");

    let mut harness = detached(true);
    answer(&mut harness, "thread/read", &active_thread());
    let said = refuse(&mut harness, "thread/resume", NO_ROLLOUT);
    assert!(said[0].contains("thread/read"), "{said:?}");
}

#[test]
fn a_first_message_whose_thread_never_comes_to_rest_is_given_up() {
    let mut harness = detached(true);
    let mut tries = 1;
    let said = loop {
        assert!(answer(&mut harness, "thread/read", &active_thread())[0].contains("thread/resume"));
        tries += 1;
        let said = refuse(&mut harness, "thread/resume", NO_ROLLOUT);
        if harness.sent.is_empty() {
            break said;
        }
    };
    assert_eq!(tries, 20);
    assert_eq!(said[0], "s1: InputUnknown m1");
    assert!(said[1].starts_with("s1: Notice Warning"), "{said:?}");
    assert_eq!(said[2], "s1: ThreadOpened T resumed");
    assert!(harness.start("s1", "m2", "x").is_ok());
}

#[test]
fn a_thread_that_is_not_loaded_any_more_is_asked_for_once_more_and_then_refused() {
    for by_error in [false, true] {
        let mut harness = detached(true);
        let asked = if by_error {
            refuse(&mut harness, "thread/read", "thread not found: T")
        } else {
            answer(&mut harness, "thread/read", &json!({ "thread": { "status": { "type": "notLoaded" } } }))
        };
        assert!(asked.len() == 1 && asked[0].contains("thread/resume"), "{asked:?}");
        let said = refuse(&mut harness, "thread/resume", NO_ROLLOUT);
        assert_eq!(said[0], "s1: InputAbsent m1");
        assert!(said[1].starts_with("s1: ThreadRefused") && said[1].contains("thread_missing"), "{said:?}");
        assert_eq!(said.len(), 2);
        assert_eq!(harness.start("s1", "m1", "x"), Err(CannotTell::NoThread("s1".into())));

        // It is taken up after all.
        let mut harness = detached(true);
        refuse(&mut harness, "thread/read", "thread not found: T");
        assert!(answer(&mut harness, "thread/resume", &thread("T"))[0].contains("thread/turns/list"));
    }
}

#[test]
fn a_thread_that_another_process_took_is_refused_and_its_input_is_unknown() {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    harness.disconnect();
    handshake(&mut harness);
    let said = refuse(&mut harness, "thread/resume", "thread T already has an active writer");
    assert_eq!(said[0], "s1: InputUnknown m1");
    assert!(said[1].starts_with("s1: ThreadRefused") && said[1].contains("active_writer"), "{said:?}");
}

#[test]
fn a_thread_that_the_server_closed_is_taken_up_again_or_refused() {
    let not_loaded = event("thread/status/changed", json!({ "status": { "type": "notLoaded" } }));
    let closed = event("thread/closed", json!({}));
    let closing = || {
        let mut harness = running();
        harness.message(&ended("U1", "completed"));
        assert!(harness.message(&not_loaded)[0].contains("thread/resume"));
        let id = harness.sent_id("thread/resume");
        assert_eq!(harness.message(&closed), Vec::<String>::new(), "it is being asked for");
        (harness, id)
    };
    let (mut harness, id) = closing();
    let idle = event("thread/status/changed", json!({ "status": { "type": "idle" } }));
    assert_eq!(harness.message(&idle), Vec::<String>::new());
    harness.message(&json!({ "id": id, "result": thread("T") }));
    let turns = json!([{ "id": "U1", "status": "completed", "items": [] }]);
    assert_eq!(history(&mut harness, &turns, &Value::Null), ["s1: ThreadOpened T resumed"]);

    let (mut harness, id) = closing();
    let archived = json!({ "id": id, "error": { "code": -32600, "message": "session T is archived" } });
    let said = harness.message(&archived);
    assert!(said[0].starts_with("s1: ThreadRefused") && said[0].contains("archived"), "{said:?}");
    assert_eq!(said.len(), 1);
    assert_eq!(harness.start("s1", "m2", "x"), Err(CannotTell::NoThread("s1".into())));
    assert_eq!(harness.message(&closed), Vec::<String>::new(), "it was told");
}

#[test]
fn a_thread_that_is_closed_while_its_history_is_asked_for_is_not_said_to_be_open() {
    for refused in [false, true] {
        let mut harness = running();
        harness.message(&ended("U1", "completed"));
        reconnect(&mut harness);
        let history_id = harness.sent_id("thread/turns/list");
        harness.message(&event("thread/closed", json!({})));
        if refused {
            refuse(&mut harness, "thread/resume", NO_ROLLOUT);
        }
        let turns = json!([{ "id": "U1", "status": "completed", "items": [] }]);
        let listed = json!({ "id": history_id, "result": { "data": turns, "nextCursor": null } });
        assert_eq!(harness.message(&listed), Vec::<String>::new());
    }
}

#[test]
fn a_refusal_is_final_only_while_the_thread_is_not_loaded() {
    let mut harness = running();
    harness.message(&ended("U1", "completed"));
    harness.message(&event("thread/closed", json!({})));
    let id = harness.sent_id("thread/resume");
    harness.message(&event("thread/status/changed", json!({ "status": { "type": "idle" } })));
    let refusal = json!({ "id": id, "error": { "code": -32600, "message": "not now" } });
    let said = harness.message(&refusal);
    assert!(said.len() == 1 && said[0].contains("thread/resume"), "{said:?}");
}

#[test]
fn a_word_that_comes_while_the_status_is_asked_for_is_not_missed() {
    let mut harness = running();
    harness.disconnect();
    handshake(&mut harness);
    let said = refuse(&mut harness, "thread/resume", "not now");
    assert!(said[0].starts_with("s1: Notice Warning") && said[1].contains("thread/read"), "{said:?}");
    let id = harness.sent_id("thread/read");
    harness.message(&event("thread/status/changed", json!({ "status": { "type": "idle" } })));
    assert!(harness.message(&json!({ "id": id, "result": active_thread() }))[0].contains("thread/resume"));
}

#[test]
fn nothing_is_asked_before_the_handshake_is_answered() {
    let mut harness = running();
    harness.disconnect();
    harness.connect();
    assert_eq!(harness.message(&event("thread/closed", json!({}))), Vec::<String>::new());
}

#[test]
fn an_unreadable_history_holds_nothing_back_also_where_a_turn_ran() {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    harness.message(&started("V"));
    reconnect(&mut harness);
    refuse(&mut harness, "thread/turns/list", "no");
    refuse(&mut harness, "thread/turns/list", "no");
    let said = refuse(&mut harness, "thread/turns/list", "no");
    assert!(said.contains(&"s1: InputUnknown m1".to_owned()), "{said:?}");
}

#[test]
fn a_turn_whose_end_the_history_cannot_tell_does_not_stay_open_where_the_thread_is_idle() {
    for (status, ended) in [("idle", true), ("systemError", true), ("active", false)] {
        let mut harness = running();
        reconnect(&mut harness);
        refuse(&mut harness, "thread/turns/list", "no");
        refuse(&mut harness, "thread/turns/list", "no");
        let said = refuse(&mut harness, "thread/turns/list", "no");
        assert!(said.iter().all(|line| !line.contains("TurnEnded")), "{said:?}");
        let said = answer(
            &mut harness,
            "thread/read",
            &json!({ "thread": { "id": "T", "status": { "type": status } } }),
        );
        assert_eq!(
            said.iter().any(|line| line.starts_with("s1: TurnEnded U1 Lost")),
            ended,
            "{status}: {said:?}"
        );
        if !ended {
            assert_eq!(
                harness.message(&ended_turn()),
                ["s1: TurnEnded U1 Completed -"],
                "its end comes live"
            );
        }
    }
}

fn ended_turn() -> Value {
    ended("U1", "completed")
}

#[test]
fn ends_of_turns_alone_end_a_turn_and_prove_no_absence() {
    let mut harness = running();
    harness.message(&ended("U1", "completed"));
    harness.start("s1", "m2", "hello").expect("can be told");
    reconnect(&mut harness);
    refuse(&mut harness, "thread/turns/list", "no");
    refuse(&mut harness, "thread/turns/list", "no");
    let turns =
        json!([{ "id": "U2", "status": "completed", "items": [] }, { "id": "U1", "status": "completed" }]);
    let said = history(&mut harness, &turns, &Value::Null);
    assert!(said.iter().any(|line| line.contains("too long to be read whole")), "{said:?}");
    assert!(said.contains(&"s1: TurnEnded U2 Completed -".to_owned()), "{said:?}");
    assert!(said.contains(&"s1: InputUnknown m2".to_owned()), "{said:?}");
}

#[test]
fn a_stop_of_a_first_message_asks_nothing_that_could_call_it_absent_too_early() {
    let mut harness = detached(true);
    assert_eq!(harness.interrupt("s1", None), Vec::<String>::new());
}

#[test]
fn a_refused_input_of_a_closed_thread_is_rejected_by_its_own_answer() {
    let mut harness = open();
    harness.start("s1", "m1", "hello").expect("can be told");
    let id = harness.sent_id("turn/start");
    harness.message(&event("thread/closed", json!({})));
    let said = refuse(&mut harness, "thread/resume", NO_ROLLOUT);
    assert!(said.len() == 1 && said[0].starts_with("s1: ThreadRefused"), "{said:?}");
    let answer = json!({ "id": id, "error": { "code": -32600, "message": "thread not found: T" } });
    assert!(harness.message(&answer)[0].starts_with("s1: InputRejected m1"));
}

#[test]
fn a_thread_without_a_message_has_an_empty_history() {
    let mut harness = named();
    harness.message(&started("U1"));
    harness.message(&ended("U1", "failed"));
    let said = refuse(
        &mut harness,
        "thread/turns/list",
        "thread T is not materialized yet; thread/turns/list is unavailable",
    );
    assert_eq!(said, ["s1: InputAbsent m1"]);
}

#[test]
fn what_was_said_since_the_past_was_read_is_shown_when_the_conversation_is_opened() {
    let answer_item =
        |id: &str, text: &str| json!({ "type": "agentMessage", "id": id, "text": text, "completedAtMs": 3 });
    let turns = json!([
        { "id": "U3", "status": "inProgress", "items": [user_message("u3", Some("theirs"))] },
        { "id": "U2", "status": "completed", "items": [answer_item("a2", "later")] },
        { "id": "U1", "status": "completed", "items": [answer_item("a1", "shown")] },
    ]);
    let opened = |past: Option<Shown>| {
        let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
        harness.bind_in("s1", ThreadContext { past, ..context() });
        handshake(&mut harness);
        harness.open("s1", Some("T"));
        answer(&mut harness, "thread/resume", &active_thread());
        history(&mut harness, &turns, &Value::Null)
    };
    let said = opened(Some(Shown::UpTo("U1".into())));
    assert_eq!(
        said,
        [
            "s1: ThreadOpened T resumed",
            "s1: TurnStarted U2 Unknown -",
            r#"s1: ItemCompleted a2 in U2 AgentMessage Completed "later""#,
            "s1: TurnEnded U2 Completed -",
            "s1: TurnStarted U3 Unknown -",
            "s1: TurnStarted U3 Client -",
            r#"s1: ItemCompleted u3 in U3 UserMessage Completed content=[{"text":"hello","type":"text"}]"#,
        ]
    );
    let said = opened(Some(Shown::Nothing));
    assert!(said.iter().any(|line| line.contains("shown")), "{said:?}");
    let said = opened(None);
    assert!(!said.iter().any(|line| line.contains("later")), "{said:?}");
}
