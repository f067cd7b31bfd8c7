//! Somebody sets the wall clock of the machine under a host: an hour back, a day forward. What is measured goes on as time
//! does: nothing is late by the step or early by it, nothing is lost or comes twice, and a stop works at once.

use crate::support::{
    DEADLINE, Follower, World, answer, follow_turn, interrupt, is, mainstay, send, show, try_answer,
};
use mainstay_testkit::agents::open_gate;
use mainstay_testkit::altered_machine::AlteredMachine;
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::skipped;
use mainstay_testkit::wait::wait_until;
use serde_json::{Value, json};

const HOUR: i64 = 3_600;
const DAY: i64 = 24 * HOUR;
/// The longest that a test here takes, far below every step.
const LONGEST_TEST_MS: i64 = 10 * 60 * 1_000;

/// A world whose machine's clock can be set for its hosts. Keepers and agents keep the machine's own.
pub(crate) fn alterable(test: &str) -> Option<(World, AlteredMachine)> {
    let world = World::new();
    let machine = AlteredMachine::new(world.home.root());
    if machine.is_none() {
        skipped::say(test, "this machine has no C compiler");
    }
    Some((world, machine?))
}

pub(crate) fn start(world: &World, machine: &AlteredMachine) -> HostProcess {
    let env = machine.env();
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    HostProcess::start(&world.home, mainstay(), &env)
}

fn create_limited(world: &World, host: &HostProcess, prompt: &str, limits: &Value) -> String {
    let body = json!({ "agent": "scripted", "cwd": world.workspace(), "prompt": prompt, "limits": limits });
    let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
    made["id"].as_str().expect("an id").to_owned()
}

fn at(event: &Value) -> i64 {
    event["at"].as_i64().expect("a time")
}

#[test]
fn a_turn_that_streams_while_the_clock_is_set_is_whole_in_order_and_within_its_budget() {
    let Some((world, machine)) = alterable("clock steps: a turn") else { return };
    let host = start(&world, &machine);
    let gates = ["back", "forward"].map(|name| world.home.root().join(name));
    let prompt = format!(
        "SAY begun ;; GATE {} ;; DELTAS 200 8 ;; TOOL t ;; GATE {} ;; SAY done",
        gates[0].display(),
        gates[1].display()
    );
    // Half an hour of turns: a day that does not pass uses up nothing of it.
    let session = create_limited(&world, &host, &prompt, &json!({ "max_turn_ms": 1_800_000 }));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    machine.set_clock_ahead(-HOUR);
    open_gate(&gates[0]);
    follower.until(&mut sse, "the tool", |event| {
        event["type"] == "item.started" && event["kind"] != "agent_message"
    });
    // A reader that comes back meanwhile finds its place.
    drop(sse);
    machine.set_clock_ahead(DAY);
    let mut sse = follower.open(&host.client(), &session);
    open_gate(&gates[1]);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert!(follower.of_type("budget.reached").is_empty());
    let text = follower.agent_text();
    assert!(text.starts_with("begun") && text.ends_with("done") && text.len() == 1_609, "{}", text.len());
    assert_eq!((follower.of_type("turn.started").len(), world.prompts_received(&prompt)), (1, 1));
    // One scale for the whole turn.
    let of_turn: Vec<i64> =
        follower.events.iter().skip_while(|event| event["type"] != "turn.started").map(at).collect();
    assert!(of_turn.is_sorted(), "times go back within a turn: {of_turn:?}");
    assert!(of_turn[of_turn.len() - 1] - of_turn[0] < LONGEST_TEST_MS, "the step became time of the turn");
    // Once nothing is measured, the clock counts as it is, and what came before stays as it was.
    send(&host.client(), &session, "SAY next");
    let next = follower.until(&mut sse, "the next turn", is("turn.started"));
    assert!(at(&next) - at(&ended) > (DAY - HOUR) * 1_000, "{next}");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    world.end(host);
}

#[test]
fn a_request_is_answered_by_itself_once_its_time_has_passed_whatever_the_clock_says() {
    let Some((world, machine)) = alterable("clock steps: a request") else { return };
    let host = start(&world, &machine);
    let client = host.client();
    let asked = |after_ms: i64| {
        let limits = json!({ "requests": { "after_ms": after_ms, "answer": "decline" } });
        let session = create_limited(&world, &host, "ASK may I ;; SAY went on", &limits);
        let mut follower = Follower::default();
        let mut sse = follower.open(&client, &session);
        let opened = follower.until(&mut sse, "the request", is("request.opened"));
        (session, follower, sse, opened["request"].as_str().expect("a request").to_owned())
    };
    // People have ten minutes: a day on the clock does not take them away.
    let (patient, mut told, mut patient_sse, open) = asked(600_000);
    machine.set_clock_ahead(DAY);
    // Twice through its lane, so that the time was looked at in between.
    send(&client, &patient, "SAY one");
    send(&client, &patient, "SAY two");
    answer(&client, &patient, &open, "allow_once").expect_status(200);
    let closed = told.until(&mut patient_sse, "its end", is("request.closed"));
    assert_ne!(told.of_type("request.answered")[0]["by"], "deadline", "{closed}");
    machine.set_clock_ahead(0);

    // They have two seconds: the clock that goes back gives them no hour more.
    let (session, mut follower, mut sse, request) = asked(2_000);
    machine.set_clock_ahead(-HOUR);
    let answered = follower.until(&mut sse, "the answer", is("request.answered"));
    assert_eq!(answered["by"], "deadline", "{answered}");
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!(follower.of_type("request.answered").len(), 1);
    let late = try_answer(&client, &session, &request, "allow_once").expect("answers");
    assert_eq!(late.status, 409, "{}", late.text());
    world.end(host);
}

#[test]
fn a_stop_works_at_once_and_gives_the_agent_its_time_whatever_the_clock_says() {
    let Some((world, machine)) = alterable("clock steps: a stop") else { return };
    let host = start(&world, &machine);
    let client = host.client();
    for step in [-HOUR, DAY] {
        machine.set_clock_ahead(0);
        let session = world.create(&host, "scripted", "SAY part ;; HOLD");
        let mut follower = Follower::default();
        let mut sse = follower.open(&client, &session);
        follower.until(&mut sse, "text", is("item.delta"));
        machine.set_clock_ahead(step);
        assert_eq!(interrupt(&client, &session)["recorded"], true);
        let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "interrupted", "{ended}");
        assert!(follower.of_type("stop.escalated").is_empty());
    }
    // One that does not react has 30 seconds for it; a day on the clock is none of them.
    machine.set_clock_ahead(0);
    let session = world.create(&host, "scripted", "SAY part ;; NEVER");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    follower.until(&mut sse, "text", is("item.delta"));
    interrupt(&client, &session);
    machine.set_clock_ahead(DAY);
    send(&client, &session, "SAY one");
    send(&client, &session, "SAY two");
    let shown = show(&client, &session);
    assert_eq!(shown["status"], "running", "{shown}");
    let path = format!("/v1/sessions/{session}/stop");
    client.post(&path, &json!({ "kill": true })).expect("answers").expect_status(202);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert!(follower.of_type("stop.escalated").is_empty(), "{ended}");
    world.end(host);
}

#[test]
fn a_start_that_was_refused_is_tried_again_in_time_and_rest_comes_though_the_clock_goes_back() {
    let Some((world, machine)) = alterable("clock steps: a start") else { return };
    crate::host_keys::set(&world, "rest_after", "\"200ms\"");
    let host = start(&world, &machine);
    let client = host.client();
    // No process is to be had.
    machine.refuse_processes(true);
    let session = world.create(&host, "scripted", "SAY at last");
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let retrying = follower.until(&mut sse, "the plan", is("start.retrying"));
    assert_eq!((&retrying["attempt"], &retrying["failure"]["code"]), (&json!(1), &json!("spawn_failed")));
    let shown = show(&client, &session);
    assert_eq!((&shown["status"], &shown["queue_length"]), (&json!("starting"), &json!(1)), "{shown}");
    machine.set_clock_ahead(-HOUR);
    machine.refuse_processes(false);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!((follower.agent_text().as_str(), world.prompts_received("SAY at last")), ("at last", 1));
    // A session waits for its rest by the machine's own time.
    machine.set_clock_ahead(-2 * HOUR);
    let exited = follower.until(&mut sse, "the rest", is("process.exited"));
    assert_eq!(exited["exit"]["cause"]["ordered"]["order"], "idle", "{exited}");
    machine.set_clock_ahead(DAY);
    let next = world.create(&host, "scripted", "SAY another");
    assert_eq!(follow_turn(&client, &next).agent_text(), "another");
    wait_until(DEADLINE, "both rest", || {
        [&session, &next].iter().all(|session| show(&client, session)["process"].is_null())
    });
    world.end(host);
}
