//! Sub-agents of the real Codex, of both kinds.

use crate::harness::select;
use crate::support::{AGENTS_V1, AGENTS_V2, Real, model};
use mainstay_core::work::Control;

fn child_of(line: &str) -> String {
    line.split(' ').nth(2).expect("a thread").to_owned()
}

fn approved_under_the_child(name: &str) {
    let mut real = Real::start();
    real.open("s1", model(name));
    real.send("s1", "m1", "SPAWN RUNESC echo from-child :: SAY child done ;; WAITAGENT ;; SAY parent done");
    let (key, opened) = real.request("s1");
    assert!(opened.contains(" of child "), "{opened}");
    let child =
        child_of(real.said.iter().find(|line| line.starts_with("s1: ChildStarted")).expect("a child"));
    real.answer("s1", &key, select("accept"));
    real.until("the child's end", |line| line.starts_with(&format!("s1: ChildEnded {child} Completed")));
    if !real.has_said("s1: TurnEnded") {
        real.turn_ended("s1");
    }
    let told = format!(r#"child="{child}""#);
    let command = |line: &String| {
        line.starts_with("s1: ItemCompleted") && line.contains("from-child") && line.contains(&told)
    };
    assert!(real.said.iter().any(command), "{:#?}", real.said);
    real.end();
}

#[test]
fn a_childs_approval_is_answered_through_its_session_v1() {
    approved_under_the_child(AGENTS_V1);
}

#[test]
fn a_childs_approval_is_answered_through_its_session_v2() {
    approved_under_the_child(AGENTS_V2);
}

fn stopped(name: &str) {
    let mut real = Real::start();
    real.open("s1", model(name));
    real.send("s1", "m1", "SPAWN GATE never ;; SAY parent done");
    let started = real.until("the child", |line| line.starts_with("s1: ChildStarted"));
    let child = child_of(&started);
    // It goes on after the turn that made it.
    real.turn_ended("s1");
    let control = Control::StopChild { thread: child.as_str().into() };
    assert_eq!(real.control("s1", "k1", control)["state"], "done");
    let ended = format!("s1: ChildEnded {child} Stopped");
    if !real.has_said(&ended) {
        real.until("the child's end", |line| line.starts_with(&ended));
    }
    real.end();
}

#[test]
fn a_child_that_outlives_its_turn_is_stopped_v1() {
    stopped(AGENTS_V1);
}

#[test]
fn a_child_that_outlives_its_turn_is_stopped_v2() {
    stopped(AGENTS_V2);
}
