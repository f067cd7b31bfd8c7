//! A thread that another host opened, whose adapter's state is lost: taken over on a connection of our own.

use crate::codex_bench::*;
use crate::harness::{Harness, Life};
use mainstay_agents::{AgentKind, CannotTell, Shown};
use mainstay_core::ProviderTurn;
use serde_json::{Value, json};

fn taken_over(shown: Shown) -> Harness {
    let mut harness = Harness::new(AgentKind::Codex, Life::NewEachStep);
    harness.take_over("s1", "T", shown).expect("this protocol can");
    harness
}

fn turns() -> Value {
    let item = |id: &str| json!({ "type": "agentMessage", "id": id, "text": "said", "completedAtMs": 3 });
    json!([
        { "id": "U3", "status": "inProgress", "items": [item("a3")] },
        { "id": "U2", "status": "completed", "items": [item("a2")] },
        { "id": "U1", "status": "completed", "items": [item("a1")] },
    ])
}

/// What is said once the history is there.
fn re_attached(harness: &mut Harness) -> Vec<String> {
    harness.connect();
    assert_eq!(harness.sent[0]["method"], "initialize");
    answer(harness, "initialize", &json!({ "userAgent": "codex/0.171.0 (test)" }));
    let resume = harness.sent.iter().find(|frame| frame["method"] == "thread/resume").expect("taken up");
    // What it says of sandbox and policy is ignored by the server as long as the thread is loaded (measured).
    assert_eq!(
        (&resume["params"]["threadId"], &resume["params"]["excludeTurns"]),
        (&json!("T"), &json!(true))
    );
    let reported = json!({
        "thread": { "id": "T" }, "model": "m", "approvalPolicy": "never", "sandbox": { "type": "readOnly" },
    });
    let said = answer(harness, "thread/resume", &reported);
    assert!(said.iter().any(|line| line.contains("Options") && line.contains("read-only")), "{said:?}");
    history(harness, &turns(), &Value::Null)
}

#[test]
fn what_is_not_shown_yet_is_read_from_the_history_and_the_running_turn_goes_on() {
    let mut harness = taken_over(Shown::UpTo(ProviderTurn::from("U1")));
    // Before there is a connection of ours, nothing can be given to it, and nothing is lost by that.
    assert!(matches!(harness.start("s1", "m1", "hello"), Err(CannotTell::NotConnected)));
    let said = re_attached(&mut harness);
    assert!(said.iter().all(|line| !line.contains("U1")), "shown before: {said:?}");
    assert_eq!(
        said,
        [
            "s1: TurnStarted U2 Unknown -",
            r#"s1: ItemCompleted a2 in U2 AgentMessage Completed "said""#,
            "s1: TurnEnded U2 Completed -",
            "s1: TurnStarted U3 Unknown -",
            r#"s1: ItemCompleted a3 in U3 AgentMessage Completed "said""#,
            "s1: ThreadOpened T resumed",
        ]
    );
    assert_eq!(harness.message(&ended("U3", "completed")), ["s1: TurnEnded U3 Completed -"]);
    assert!(harness.start("s1", "m1", "hello").is_ok());
}

#[test]
fn a_thread_of_which_nothing_is_known_is_shown_from_its_beginning() {
    let said = re_attached(&mut taken_over(Shown::Nothing));
    let begun: Vec<&String> = said.iter().filter(|line| line.contains("TurnStarted")).collect();
    assert_eq!(begun.len(), 3, "{said:?}");
}

#[test]
fn the_last_words_on_the_lost_connection_are_left_to_the_history() {
    let mut harness = taken_over(Shown::UpTo(ProviderTurn::from("U1")));
    // The end of U2, of which the beginning was said to the lost host: taken for the whole, it would hide the rest.
    for word in [ended("U2", "completed"), json!({ "id": 3, "result": {} }), approval(7)] {
        assert!(harness.message(&word).is_empty() && harness.sent.is_empty(), "{word}");
    }
    let said = re_attached(&mut harness);
    assert!(said.iter().any(|line| line.contains("ItemCompleted a2")), "{said:?}");
}

#[test]
fn an_agent_on_a_pipe_cannot_be_taken_over() {
    let mut harness = Harness::new(AgentKind::Acp, Life::OneLife);
    assert_eq!(harness.take_over("s1", "T", Shown::Unknown), Err(CannotTell::Unsupported("adopt")));
}
