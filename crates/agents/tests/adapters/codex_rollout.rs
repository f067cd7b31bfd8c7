//! Codex's own records of threads, read without an agent.

use crate::{recordings, render};
use mainstay_agents::codex::rollout::{self, Rollout, RolloutError};
use std::fmt::Write;

fn record(name: &str) -> Vec<u8> {
    recordings::bytes("codex", &format!("rollout-{name}.jsonl"))
}

fn lines(history: &Rollout) -> Vec<String> {
    history.said.iter().map(render::event).collect()
}

fn messages(history: &Rollout) -> Vec<String> {
    let said = lines(history).into_iter().filter(|line| line.contains(" AgentMessage "));
    said.map(|line| line.rsplit('"').nth(1).unwrap_or_default().to_owned()).collect()
}

#[test]
fn golden_codex_rollout() {
    let history = rollout::read(&record("whole"), |_| None).expect("whole");
    let mut text = format!("{:?}\n", history.head);
    for line in lines(&history) {
        writeln!(text, "{line}").expect("a string takes text");
    }
    recordings::compare("codex-rollout", &text);
}

#[test]
fn a_branch_and_a_thread_that_was_taken_back_go_on_from_another_record() {
    for (name, expected) in [("forked", ["one", "three"]), ("reverted-after", ["one", "four"])] {
        let newest = record(name);
        let history = rollout::read(&newest, |base| {
            assert_eq!(base.before_ordinal, 14);
            Some(record("reverted-before"))
        })
        .expect("all records are there");
        assert_eq!(messages(&history), expected, "{name}");
        let missing = rollout::read(&newest, |_| None);
        assert!(matches!(missing, Err(RolloutError::BaseMissing(_))), "{missing:?}");
    }
}

#[test]
fn a_history_is_read_whole_or_not_at_all() {
    let whole = record("whole");
    let text = String::from_utf8(whole.clone()).expect("text");
    let all = rollout::read(&whole, |_| None).expect("whole").said.len();
    // The last line is being written.
    let cut = rollout::read(&whole[..whole.len() - 20], |_| None).expect("the last line may be cut");
    assert!(cut.said.len() <= all);
    let damaged = text.replacen(r#""ordinal": 9"#, r#""ordinal": 9x"#, 1);
    assert_eq!(rollout::read(damaged.as_bytes(), |_| None), Err(RolloutError::Unreadable(10)));
    assert_eq!(rollout::read(b"{}\n", |_| None), Err(RolloutError::NoHead));
    assert_eq!(rollout::read(b"", |_| None), Err(RolloutError::NoHead));
}

#[test]
fn a_record_that_goes_on_from_itself_for_ever_is_refused() {
    let newest = record("forked");
    let endless = rollout::read(&newest, |_| Some(record("forked")));
    assert_eq!(endless, Err(RolloutError::TooLarge("records")));
}

#[test]
fn a_turn_that_was_cut_with_its_process_is_interrupted() {
    let text = String::from_utf8(record("reverted-before")).expect("text");
    let cut: Vec<&str> = text.lines().filter(|line| !line.contains("task_complete")).collect();
    let history = rollout::read(cut.join("\n").as_bytes(), |_| None).expect("readable");
    let ends = lines(&history).into_iter().filter(|line| line.starts_with("TurnEnded")).collect::<Vec<_>>();
    assert!(ends.len() == 1 && ends[0].contains("Interrupted"), "the last one may run still: {ends:?}");
    assert!(!lines(&history).iter().any(|line| line.contains("two")), "nothing of the last one is told");
}

#[test]
fn the_first_line_says_what_there_is_to_be_adopted() {
    let head = |name: &str| rollout::head(record(name).split(|byte| *byte == b'\n').next().expect("a line"));
    let whole = head("whole").expect("a head");
    assert_eq!((whole.cwd.as_deref(), whole.base), (Some("$LAB/work"), None));
    let forked = head("forked").expect("a head");
    assert!(forked.base.is_some_and(|base| base.thread != forked.thread));
    let child = br#"{"type":"session_meta","payload":{"id":"C","parent_thread_id":"T","cwd":"/w"}}"#;
    assert_eq!(rollout::head(child).and_then(|head| head.parent), Some("T".into()), "a sub-agent's");
    assert_eq!(rollout::head(b"{\"type\":\"event_msg\"}"), None);
}
