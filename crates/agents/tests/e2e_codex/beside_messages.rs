//! What is asked of the real Codex beside messages.

use crate::support::{Real, model};
use mainstay_core::work::Control;
use mainstay_core::{ContentBlock, Decision, SessionOptions};
use serde_json::json;

fn set_options(changed: SessionOptions) -> Control {
    Control::SetOptions { options: Box::new(changed.clone()), changed: Box::new(changed) }
}

#[test]
fn options_are_accepted_and_confirmed() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    let changed = SessionOptions {
        effort: Some("high".to_owned()),
        tier: Some("priority".to_owned()),
        approval: Some("never".to_owned()),
        sandbox: Some("read-only".to_owned()),
        ..model("gpt-6.2-sol")
    };
    assert_eq!(real.control("s1", "k1", set_options(changed))["state"], "done");
    let options = real.said.iter().rfind(|line| line.starts_with("s1: Options")).expect("told");
    for part in [
        r#""approval":"never""#,
        r#""effort":"high""#,
        r#""model":"gpt-6.2-sol""#,
        r#""sandbox":"read-only""#,
    ] {
        assert!(options.contains(part), "{part} in {options}");
    }
    // The same again: nothing changes, and it is confirmed all the same.
    assert_eq!(real.control("s1", "k2", set_options(model("gpt-6.2-sol")))["state"], "done");
    real.end();
}

#[test]
fn a_goal_makes_turns_by_itself_until_the_agent_reaches_it() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    let goal = Control::SetGoal { objective: "win".to_owned(), token_budget: None };
    assert_eq!(real.control("s1", "k1", goal)["state"], "done");
    assert!(real.has_said("s1: Goal User"), "{:?}", real.said);
    real.until("the goal's end", |line| line.starts_with("s1: Goal Agent") && line.contains("complete"));
    real.turn_ended("s1");
    let turns =
        real.said.iter().filter(|line| line.contains("TurnStarted") && line.ends_with(" Goal -")).count();
    assert_eq!(turns, 3, "{:?}", real.said);
    assert_eq!(real.control("s1", "k2", Control::ClearGoal)["state"], "done");
    assert!(real.has_said("s1: Goal User null"));
    real.end();
}

#[test]
fn a_paused_goal_starts_no_turn() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "SAY first");
    // Set while a turn runs, so that none of its own has begun when it is paused.
    real.send("s1", "m2", "GATE g ;; SAY second");
    real.until("the turn", |line| line.starts_with("s1: TurnStarted"));
    let goal = Control::SetGoal { objective: "win".to_owned(), token_budget: None };
    assert_eq!(real.control("s1", "k1", goal)["state"], "done");
    assert_eq!(real.control("s1", "k2", Control::PauseGoal)["state"], "done");
    assert!(real.said.iter().any(|line| line.contains(r#""state":"paused""#)), "{:?}", real.said);
    real.model.open("g");
    real.turn_ended("s1");
    real.turn("s1", "m3", "SAY third");
    assert!(!real.said.iter().any(|line| line.ends_with(" Goal -")), "{:?}", real.said);
    // Lifted on purpose, it goes on by itself.
    assert_eq!(real.control("s1", "k3", Control::ResumeGoal)["state"], "done");
    let goes_on = |line: &str| line.starts_with("s1: TurnStarted") && line.ends_with(" Goal -");
    if !real.said.iter().any(|line| goes_on(line)) {
        real.until("a turn for the goal", goes_on);
    }
    real.until("the goal's end", |line| line.starts_with("s1: Goal Agent") && line.contains("complete"));
    real.turn_ended("s1");
    real.end();
}

#[test]
fn output_that_is_too_much_for_the_server_is_marked_to_have_a_gap() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "RUN seq 1 400000 ;; SAY done");
    let command =
        real.said.iter().find(|line| line.starts_with("s1: ItemCompleted") && line.contains("ToolCall"));
    let command = command.expect("the command");
    assert!(command.contains(" gap=true"), "{}", &command[..command.len().min(300)]);
    real.end();
}

/// Puts a message into the agent's own queue, while the session's turn m2 streams.
fn queue_beside(real: &mut Real, thread: &str, text: &str) {
    real.send("s1", "m2", "GATED 2 g");
    real.model.release("g", 1);
    real.until("our turn's text", |line| line.starts_with("s1: ItemDelta"));
    let input = json!([{ "type": "text", "text": text }]);
    real.another_asks(
        "thread/queue/add",
        &json!({ "threadId": thread, "input": input, "clientUserMessageId": "theirs" }),
    );
    real.until("the queue", |line| line.contains("wait in the agent's own queue"));
}

#[test]
fn a_stop_withdraws_what_waits_in_the_agents_own_queue_though_nothing_runs() {
    let mut real = Real::start();
    let thread = real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "SAY first");
    queue_beside(&mut real, &thread, "SAY from-the-queue");
    let started = real.said.iter().rfind(|line| line.starts_with("s1: TurnStarted")).expect("a turn");
    let turn = started.split(' ').nth(2).expect("its id").to_owned();
    // Another client ends the turn: what waits goes on waiting.
    real.another_asks("turn/interrupt", &json!({ "threadId": thread, "turnId": turn }));
    assert!(real.turn_ended("s1").contains("Interrupted"));
    real.tell("s1", &Decision::Interrupt { turn: None });
    real.until("what is kept of it", |line| {
        line.contains("withdrawn") && line.contains("SAY from-the-queue")
    });
    real.turn("s1", "m3", "SAY third");
    real.kill();
    real.launch();
    real.until("the thread", |line| line.starts_with("s1: ThreadOpened"));
    real.turn("s1", "m4", "SAY fourth");
    assert!(!real.said.iter().any(|line| line.contains(r#""from-the-queue""#)), "{:?}", real.said);
    real.end();
}

#[test]
fn a_message_in_the_agents_own_queue_begins_a_turn_that_says_so() {
    let mut real = Real::start();
    let thread = real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "SAY first");
    queue_beside(&mut real, &thread, "SAY from-the-queue");
    real.model.release("g", 1);
    real.turn_ended("s1");
    real.until("its turn", |line| line.starts_with("s1: TurnStarted") && line.ends_with(" Queue -"));
    real.turn_ended("s1");
    assert!(real.said.iter().any(|line| line.contains(r#"AgentMessage Completed "from-the-queue""#)));
    real.end();
}

#[test]
fn a_stop_withdraws_what_waits_in_the_agents_own_queue_and_the_next_process_starts_nothing() {
    let mut real = Real::start();
    let thread = real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "SAY first");
    queue_beside(&mut real, &thread, "SAY from-the-queue");
    real.tell("s1", &Decision::Interrupt { turn: None });
    assert!(real.turn_ended("s1").contains("Interrupted"));
    let kept = |line: &str| line.contains("withdrawn") && line.contains("SAY from-the-queue");
    if !real.said.iter().any(|line| kept(line)) {
        real.until("what is kept of it", kept);
    }
    // Deleted before the process goes: a turn later it is.
    real.turn("s1", "m3", "SAY third");
    real.kill();
    real.launch();
    real.until("the thread", |line| line.starts_with("s1: ThreadOpened"));
    real.turn("s1", "m4", "SAY fourth");
    assert!(!real.said.iter().any(|line| line.ends_with(" Queue -")), "{:?}", real.said);
    assert!(!real.said.iter().any(|line| line.contains(r#""from-the-queue""#)), "{:?}", real.said);
    real.end();
}

#[test]
fn the_context_is_compacted_in_a_turn_of_its_own_and_never_within_another() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    real.send("s1", "m1", "GATE g ;; SAY first");
    real.until("the turn", |line| line.starts_with("s1: TurnStarted"));
    let refused = real.control("s1", "k1", Control::Compact { instructions: None });
    assert_eq!(refused["state"], "refused", "{refused}");
    real.model.open("g");
    real.turn_ended("s1");
    assert_eq!(real.control("s1", "k2", Control::Compact { instructions: None })["state"], "done");
    real.turn_ended("s1");
    assert!(real.said.iter().any(|line| line.contains("The conversation was compacted")), "{:?}", real.said);
    real.end();
}

#[test]
fn a_review_and_a_command_of_the_user_are_turns_of_their_own() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    let review = Control::Review { instructions: Some("SAY looks good".to_owned()) };
    assert_eq!(real.control("s1", "k1", review)["state"], "done");
    real.turn_ended("s1");
    assert!(real.said.iter().any(|line| line.contains("A review began")), "{:?}", real.said);
    let shell = Control::Shell { command: "echo from-the-user".to_owned() };
    assert_eq!(real.control("s1", "k2", shell)["state"], "done");
    let done =
        real.until("the command", |line| line.starts_with("s1: ItemCompleted") && line.contains("ToolCall"));
    assert!(done.contains("from-the-user"), "{done}");
    assert_eq!(real.control("s1", "k3", Control::Rename { name: "mine".to_owned() })["state"], "done");
    real.until("the name", |line| line == r#"s1: Name Unknown Some("mine")"#);
    real.end();
}

#[test]
fn a_command_that_outlives_its_turn_is_a_task_until_the_background_is_stopped() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    real.send("s1", "m1", "RUN sleep 1000 ;; SAY never");
    real.until("the command", |line| line.starts_with("s1: ItemStarted") && line.contains("execute"));
    real.until_runs("sleep 1000");
    real.tell("s1", &Decision::Interrupt { turn: None });
    real.turn_ended("s1");
    assert!(real.has_said("s1: TaskStarted"), "{:?}", real.said);
    assert_eq!(real.control("s1", "k1", Control::StopBackground)["state"], "done");
    if !real.has_said("s1: TaskEnded") {
        real.until("the task's end", |line| line.starts_with("s1: TaskEnded"));
    }
    real.end();
}

#[test]
fn one_task_of_several_is_stopped() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    real.send("s1", "m1", "PRUN sleep 1001 || sleep 1002 ;; SAY never");
    for _ in 0..2 {
        real.until("a command", |line| line.starts_with("s1: ItemStarted") && line.contains("execute"));
    }
    real.until_runs("sleep 1001");
    real.until_runs("sleep 1002");
    real.tell("s1", &Decision::Interrupt { turn: None });
    real.turn_ended("s1");
    let started = real.said.iter().find(|line| line.starts_with("s1: TaskStarted") && line.contains("1001"));
    let key = started.expect("a task").split(' ').nth(2).expect("a key").to_owned();
    let control = Control::StopTask { key: key.as_str().into() };
    assert_eq!(real.control("s1", "k1", control)["state"], "done");
    let ended = format!("s1: TaskEnded {key} ");
    if !real.has_said(&ended) {
        real.until("the task's end", |line| line.starts_with(&ended));
    }
    assert_eq!(real.said.iter().filter(|line| line.starts_with("s1: TaskEnded")).count(), 1);
    assert_eq!(real.control("s1", "k2", Control::StopBackground)["state"], "done");
    real.until("the other's end", |line| line.starts_with("s1: TaskEnded"));
    real.end();
}

#[test]
fn a_retried_answer_abandons_what_it_began() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "DISCN 1 ;; SAY recovered");
    let abandoned = real.said.iter().position(|line| line.contains("AgentMessage Abandoned"));
    let retried = real.said.iter().position(|line| line.starts_with("s1: Retrying"));
    assert!(abandoned.is_some() && abandoned < retried, "{:?}", real.said);
    assert!(
        real.said.iter().any(|line| line.contains(r#"AgentMessage Completed "recovered""#)),
        "{:?}",
        real.said
    );
    real.end();
}

#[test]
fn a_usage_limit_ends_the_turn_as_a_limit() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    real.send("s1", "m1", "ERR 429 usage_limit_reached");
    let ended = real.turn_ended("s1");
    assert!(ended.contains(" Limit ") && ended.contains(r#""code":"limit""#), "{ended}");
    assert!(ended.contains(r#""resets_at":"#), "it does not say when the account may go on: {ended}");
    real.end();
}

#[test]
fn a_picture_reaches_the_model() {
    const PIXEL: &str =
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    let content = vec![
        ContentBlock::text("SAY seen"),
        ContentBlock::Image { data: PIXEL.to_owned(), mime_type: "image/png".to_owned() },
    ];
    real.tell(
        "s1",
        &Decision::StartTurn { submission: "m1".into(), content, options: SessionOptions::default() },
    );
    real.turn_ended("s1");
    let asked = real.model.requests().last().expect("a request").body.to_string();
    assert!(asked.contains("input_image") && asked.contains("data:image/png;base64,"), "{asked}");
    real.end();
}

#[test]
fn a_review_is_interrupted() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    let review = Control::Review { instructions: Some("GATED 9 g".to_owned()) };
    assert_eq!(real.control("s1", "k1", review)["state"], "done");
    real.model.release("g", 1);
    real.until("its text", |line| line.starts_with("s1: ItemDelta") || line.contains("AgentMessage"));
    real.tell("s1", &Decision::Interrupt { turn: None });
    assert!(real.turn_ended("s1").contains("Interrupted"));
    real.turn("s1", "m1", "SAY on");
    real.end();
}

#[test]
fn what_the_agent_offers_is_listed() {
    let mut real = Real::start();
    real.open("s1", SessionOptions::default());
    let catalogue = real.catalogue();
    let models = catalogue.models.expect("models");
    assert!(models.iter().any(|model| model.default), "{models:?}");
    let known = models.iter().find(|model| model.id == "gpt-5.5").expect("the model of the tests");
    assert!(!known.efforts.is_empty(), "{known:?}");
    assert!(catalogue.account.is_some_and(|account| account["requiresOpenaiAuth"] == false));
    assert!(catalogue.rate_limits.is_none(), "without a sign-in nobody can tell");
    real.end();
}
