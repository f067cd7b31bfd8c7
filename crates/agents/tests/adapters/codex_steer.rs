//! One test for each rule of messages that go into the running turn.

use crate::codex_bench::*;
use crate::harness::Harness;
use mainstay_agents::CannotTell;
use serde_json::{Value, json};

const NO_TURN_TO_STEER: &str = "no active turn to steer";
const OTHER_TURN: &str = "expected active turn id U1 but found U2";

/// As [`running`], with the message m2 given into the turn and not answered.
fn steering() -> Harness {
    let mut harness = running();
    let sent = harness.steer("s1", "U1", "m2", "more").expect("can be told");
    assert!(sent[0].starts_with("send carries m2"), "{sent:?}");
    harness
}

fn history_of(client_ids: &[&str], status: &str) -> Value {
    let items: Vec<Value> = client_ids.iter().map(|id| user_message(id, Some(id))).collect();
    json!([{ "id": "U1", "status": status, "items": items }])
}

#[test]
fn a_steer_names_its_turn_and_the_user_message_is_the_proof() {
    let mut harness = steering();
    assert_eq!(harness.sent[0]["method"], "turn/steer");
    assert_eq!(
        harness.sent[0]["params"],
        json!({ "threadId": "T", "clientUserMessageId": "m2", "expectedTurnId": "U1",
                "input": [{ "type": "text", "text": "more" }] })
    );
    assert_eq!(answer(&mut harness, "turn/steer", &json!({ "turnId": "U1" })), Vec::<String>::new());
    assert_eq!(harness.steer("s1", "U1", "m3", "x"), Err(CannotTell::InputUntaken("s1".into())));
    let taken = completed("U1", &user_message("u2", Some("m2")));
    assert_eq!(harness.message(&taken), ["s1: InputTaken m2 ClientId"]);
    assert_eq!(harness.message(&ended("U1", "completed")), ["s1: TurnEnded U1 Completed -"]);
}

#[test]
fn a_steer_that_came_too_late_can_start_a_turn() {
    let mut harness = steering();
    let said = refuse(&mut harness, "turn/steer", NO_TURN_TO_STEER);
    assert_eq!(said, ["s1: SteerRefused m2 TurnOver"]);
    assert!(harness.start("s1", "m2", "more").is_ok());
}

#[test]
fn a_turn_that_takes_no_input_says_so() {
    let mut harness = steering();
    let id = harness.sent_id("turn/steer");
    let data = json!({ "codexErrorInfo": { "activeTurnNotSteerable": { "turnKind": "compact" } } });
    let error = json!({ "code": -32600, "message": "cannot steer a compact turn", "data": data });
    assert_eq!(harness.message(&json!({ "id": id, "error": error })), ["s1: SteerRefused m2 NotSteerable"]);
}

/// The answer to what compacts comes before its turn does, and a message in between is refused (measured).
#[test]
fn a_message_that_meets_a_compaction_waits_for_it_but_is_not_tried_for_ever() {
    const COMPACTS: &str = "failed to submit turn input: ActiveTurnNotSteerable { turn_kind: Compact }";
    let mut harness = open();
    for _ in 0..20 {
        harness.start("s1", "m1", "go on").expect("can be told");
        assert_eq!(refuse(&mut harness, "turn/start", COMPACTS), ["s1: SteerRefused m1 NotSteerable"]);
    }
    harness.start("s1", "m1", "go on").expect("can be told");
    let said = refuse(&mut harness, "turn/start", COMPACTS);
    assert!(said[0].starts_with("s1: InputRejected m1"), "{said:?}");
    // A turn that is told is what the next one waits for.
    harness.message(&started("U1"));
    harness.message(&ended("U1", "completed"));
    harness.start("s1", "m2", "go on").expect("can be told");
    assert_eq!(refuse(&mut harness, "turn/start", COMPACTS), ["s1: SteerRefused m2 NotSteerable"]);
}

#[test]
fn any_other_refusal_of_a_steer_rejects_the_message() {
    let mut harness = steering();
    let said = refuse(&mut harness, "turn/steer", "input must not be empty");
    assert!(said[0].starts_with("s1: InputRejected m2"), "{said:?}");
}

#[test]
fn the_turn_that_runs_in_place_of_the_named_one_is_steered_and_only_once() {
    let mut unknown = steering();
    refuse(&mut unknown, "turn/steer", OTHER_TURN);
    assert_eq!(
        unknown.sent[0]["params"]["expectedTurnId"], "U2",
        "named by the refusal, never seen to begin"
    );
    assert_eq!(refuse(&mut unknown, "turn/steer", OTHER_TURN), ["s1: SteerRefused m2 TurnOver"], "only once");

    let mut unnamed = steering();
    let said = refuse(&mut unnamed, "turn/steer", "expected active turn id U1");
    assert_eq!(said, ["s1: SteerRefused m2 TurnOver"], "nothing says which turn runs");

    let mut harness = steering();
    let id = harness.sent_id("turn/steer");
    harness.message(&started("U2"));
    let sent = harness.message(&json!({ "id": id, "error": { "code": -32600, "message": OTHER_TURN } }));
    assert!(sent[0].starts_with(r#"send {"#), "the message is carried once: {sent:?}");
    assert_eq!(harness.sent[0]["params"]["expectedTurnId"], "U2");
    assert_eq!(harness.sent[0]["params"]["clientUserMessageId"], "m2");
    let again = harness.sent_id("turn/steer");
    harness.message(&started("U3"));
    let refused = json!({ "id": again, "error": { "code": -32600, "message": OTHER_TURN } });
    assert_eq!(harness.message(&refused), ["s1: SteerRefused m2 TurnOver"]);
}

#[test]
fn a_long_message_is_not_kept_for_a_second_try() {
    let mut harness = running();
    harness.steer("s1", "U1", "m2", &"x".repeat(40_000)).expect("can be told");
    let id = harness.sent_id("turn/steer");
    harness.message(&started("U2"));
    let refused = json!({ "id": id, "error": { "code": -32600, "message": OTHER_TURN } });
    assert_eq!(harness.message(&refused), ["s1: SteerRefused m2 TurnOver"]);
}

/// As [`steering`], accepted, then stopped before it was taken.
fn stopped_before_it_was_taken() -> Harness {
    let mut harness = steering();
    answer(&mut harness, "turn/steer", &json!({ "turnId": "U1" }));
    let sent = harness.interrupt("s1", Some("U1"));
    assert!(sent[0].contains("turn/interrupt"), "{sent:?}");
    answer(&mut harness, "turn/interrupt", &json!({}));
    let said = harness.message(&ended("U1", "interrupted"));
    assert_eq!(said[0], "s1: TurnEnded U1 Interrupted -");
    assert!(said[1].contains("thread/turns/list"), "only the history can tell: {said:?}");
    harness
}

#[test]
fn a_steer_that_was_lost_with_its_turn_is_proven_absent_by_the_history() {
    let mut harness = stopped_before_it_was_taken();
    let said = history(&mut harness, &history_of(&["m1"], "interrupted"), &Value::Null);
    assert_eq!(said, ["s1: InputAbsent m2"]);
    assert!(harness.start("s1", "m3", "x").is_ok());
}

#[test]
fn nothing_else_is_given_before_a_lost_steer_is_settled() {
    let mut harness = stopped_before_it_was_taken();
    assert_eq!(harness.start("s1", "m3", "x"), Err(CannotTell::InputUntaken("s1".into())));
}

#[test]
fn a_steer_that_the_history_shows_is_taken() {
    let mut harness = stopped_before_it_was_taken();
    let said = history(&mut harness, &history_of(&["m1", "m2"], "interrupted"), &Value::Null);
    assert_eq!(said, ["s1: InputTaken m2 History"]);
}

#[test]
fn a_steer_whose_answer_comes_after_the_end_of_its_turn_is_looked_up() {
    let mut accepted = steering();
    let id = accepted.sent_id("turn/steer");
    accepted.message(&ended("U1", "completed"));
    let early = history(&mut accepted, &history_of(&["m1"], "completed"), &Value::Null);
    assert_eq!(early, Vec::<String>::new(), "its own answer is still to come");
    let sent = accepted.message(&json!({ "id": id, "result": { "turnId": "U1" } }));
    assert!(sent[0].contains("thread/turns/list"), "{sent:?}");
    let said = history(&mut accepted, &history_of(&["m1"], "completed"), &Value::Null);
    assert_eq!(said, ["s1: InputAbsent m2"]);

    let mut refused = steering();
    let id = refused.sent_id("turn/steer");
    refused.message(&ended("U1", "completed"));
    let error = json!({ "id": id, "error": { "code": -32600, "message": NO_TURN_TO_STEER } });
    assert_eq!(refused.message(&error), ["s1: SteerRefused m2 TurnOver"]);
}

#[test]
fn the_answer_to_a_stop_that_was_never_recorded_meets_no_message() {
    let mut harness = running();
    let saved = harness.saved();
    harness.interrupt("s1", Some("U1"));
    let stop = harness.sent_id("turn/interrupt");
    // The store refused: the stop is with the agent, and what was decided with it is forgotten.
    harness.go_back_to(saved);
    harness.steer("s1", "U1", "m2", "more").expect("can be told");
    let error = json!({ "code": -32600, "message": NO_ACTIVE_TURN });
    let said = harness.message(&json!({ "id": stop, "error": error }));
    assert!(said.iter().all(|line| !line.contains("m2")), "{said:?}");
}

#[test]
fn a_page_that_was_asked_for_before_an_input_says_nothing_of_it() {
    let mut harness = steering();
    let steer = harness.sent_id("turn/steer");
    harness.message(&ended("U1", "completed"));
    let page = harness.sent_id("thread/turns/list");
    harness.message(&json!({ "id": steer, "error": { "code": -32600, "message": NO_TURN_TO_STEER } }));
    harness.start("s1", "m2", "more").expect("can be told");
    answer(&mut harness, "turn/start", &json!({ "turn": { "id": "U2" } }));
    let late =
        json!({ "id": page, "result": { "data": history_of(&["m1"], "completed"), "nextCursor": null } });
    assert_eq!(harness.message(&late), Vec::<String>::new(), "it may still be taken");
    harness.message(&started("U2"));
    let taken = completed("U2", &user_message("u2", Some("m2")));
    assert_eq!(harness.message(&taken), ["s1: InputTaken m2 ClientId"]);
}

#[test]
fn a_steer_that_was_in_flight_when_the_connection_was_lost_is_settled_at_the_end_of_its_turn() {
    let mut harness = steering();
    reconnect(&mut harness);
    let running = history(&mut harness, &history_of(&["m1"], "inProgress"), &Value::Null);
    assert_eq!(running, ["s1: ThreadOpened T resumed"], "the turn may still take it");
    let said = harness.message(&ended("U1", "completed"));
    assert!(said[1].contains("thread/turns/list"), "{said:?}");
    let said = history(&mut harness, &history_of(&["m1"], "completed"), &Value::Null);
    assert_eq!(said, ["s1: InputAbsent m2"]);
}

#[test]
fn a_turn_does_not_answer_the_message_that_went_into_it() {
    let mut harness = open();
    harness.message(&started("V"));
    harness.steer("s1", "V", "m1", "x").expect("can be told");
    reconnect(&mut harness);
    let turns = json!([{ "id": "V", "status": "inProgress", "items": [user_message("u1", Some("m1"))] }]);
    let said = history(&mut harness, &turns, &Value::Null);
    assert_eq!(said, ["s1: InputTaken m1 History", "s1: ThreadOpened T resumed"]);
}

#[test]
fn nothing_is_steered_without_a_connection_or_a_thread() {
    let mut harness = running();
    harness.disconnect();
    assert_eq!(harness.steer("s1", "U1", "m2", "x"), Err(CannotTell::NotConnected));
    let mut closed = connected();
    assert_eq!(closed.steer("s1", "U1", "m2", "x"), Err(CannotTell::NoThread("s1".into())));
}
