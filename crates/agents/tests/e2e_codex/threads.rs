//! Threads of the real Codex: many in one process, branched, taken back, left, held elsewhere.

use crate::harness::context;
use crate::support::Real;
use mainstay_agents::ThreadContext;
use mainstay_core::work::{Control, ForkPoint, HistoryPoint};
use mainstay_core::{Decision, SessionOptions};

fn point(turn: &str) -> HistoryPoint {
    HistoryPoint { turn: turn.into(), submission: None, last_item: None }
}

#[test]
fn a_thread_is_branched_at_a_turn_and_taken_back() {
    let mut real = Real::start();
    let thread = real.open("s1", SessionOptions::default());
    let first = real.turn("s1", "m1", "SAY one");
    let second = real.turn("s1", "m2", "SAY two");
    real.bind("s2");
    let fork =
        ForkPoint { session: "s1".into(), thread: thread.as_str().into(), last_turn: Some(point(&first)) };
    let decision = Decision::OpenThread {
        resume: None,
        fork: Some(Box::new(fork)),
        options: SessionOptions::default(),
        doubtful: Vec::new(),
    };
    let branch = real.open_thread("s2", decision);
    assert_ne!(branch, thread);
    real.turn("s2", "m3", "SAY three");
    let asked = real.model.requests().last().expect("a request").body.to_string();
    assert!(
        asked.contains("SAY one") && !asked.contains("SAY two"),
        "the branch begins after the first turn: {asked}"
    );
    let control = Control::Rewind { before: point(&second), files: false };
    assert_eq!(real.control("s1", "k1", control)["state"], "done");
    real.turn("s1", "m4", "SAY four");
    let asked = real.model.requests().last().expect("a request").body.to_string();
    assert!(asked.contains("SAY one") && !asked.contains("SAY two") && asked.contains("SAY four"), "{asked}");
    real.end();
}

#[test]
fn ten_sessions_share_a_process_while_one_is_wedged() {
    let mut real = Real::start();
    for number in 1..=10 {
        real.open(&format!("s{number}"), SessionOptions::default());
    }
    real.send("s1", "w1", "HOLD never ;; SAY never");
    for number in 2..=10 {
        real.send(&format!("s{number}"), &format!("m{number}"), &format!("SAY this is {number}"));
    }
    let mut ended: Vec<String> = Vec::new();
    while ended.len() < 9 {
        let line =
            real.until("a turn's end", |line| line.contains(": TurnEnded ") && line.contains("Completed"));
        ended.push(line.split(':').next().expect("a session").to_owned());
    }
    assert!(!ended.contains(&"s1".to_owned()), "{ended:?}");
    real.tell("s1", &Decision::Interrupt { turn: None });
    assert!(real.turn_ended("s1").contains("Interrupted"));
    real.end();
}

#[test]
fn a_session_leaves_and_the_others_go_on() {
    let mut real = Real::start();
    let thread = real.open("s1", SessionOptions::default());
    real.open("s2", SessionOptions::default());
    real.turn("s1", "m1", "SAY one");
    real.tell("s1", &Decision::CloseThread);
    real.until("the end of the subscription", |line| line == "s1: ThreadClosed");
    real.turn("s2", "m2", "SAY two");
    let resume = Decision::OpenThread {
        resume: Some(thread.as_str().into()),
        fork: None,
        options: SessionOptions::default(),
        doubtful: Vec::new(),
    };
    assert_eq!(real.open_thread("s1", resume), thread, "and comes back");
    real.turn("s1", "m3", "SAY three");
    real.end();
}

#[test]
fn a_thread_that_another_process_holds_is_refused_by_name() {
    let mut holder = Real::start();
    let thread = holder.open("s1", SessionOptions::default());
    holder.turn("s1", "m1", "SAY one");
    let mut other = holder.beside();
    other.bind("s9");
    let resume = Decision::OpenThread {
        resume: Some(thread.as_str().into()),
        fork: None,
        options: SessionOptions::default(),
        doubtful: Vec::new(),
    };
    other.tell("s9", &resume);
    let refused = other.until("the refusal", |line| line.starts_with("s9: ThreadRefused"));
    assert!(refused.contains("active_writer") && refused.contains(&thread), "{refused}");
    other.stop();
    holder.end();
}

#[test]
fn further_folders_and_instructions_reach_the_model() {
    let mut real = Real::start();
    let more = real.folder.path().join("more");
    std::fs::create_dir(&more).expect("a folder");
    let context = ThreadContext {
        cwd: real.work().display().to_string(),
        additional_directories: vec![more.display().to_string()],
        instructions: Some("always be kind to cats".to_owned()),
        ..context()
    };
    real.open_in("s1", context, SessionOptions::default());
    real.turn("s1", "m1", "SAY ok");
    let asked = real.model.requests().last().expect("a request").body.to_string();
    assert!(asked.contains("always be kind to cats"));
    // The temporary folder is writable in any case, so a patch there would show nothing: what the model is told does.
    assert!(asked.contains(&format!("<root>{}</root>", more.display())), "{asked}");
    real.end();
}

#[test]
fn a_thread_comes_back_in_another_process_with_its_history_settled() {
    let mut real = Real::start();
    let thread = real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "SAY one");
    real.kill();
    real.launch();
    let resume = Decision::OpenThread {
        resume: Some(thread.as_str().into()),
        fork: None,
        options: SessionOptions::default(),
        doubtful: vec!["m1".into(), "never-sent".into()],
    };
    assert_eq!(real.open_thread("s1", resume), thread);
    assert!(
        real.has_said("s1: InputTaken m1 History") && real.has_said("s1: InputAbsent never-sent"),
        "{:?}",
        real.said
    );
    real.turn("s1", "m2", "SAY two");
    real.end();
}

#[test]
fn the_record_of_a_thread_says_what_was_said_live() {
    let mut real = Real::start();
    let thread = real.open("s1", SessionOptions::default());
    real.turn("s1", "m1", "THINK hm ;; RUN echo hi ;; PATCH note.txt hello ;; SAY done");
    real.turn("s1", "m2", "ERR 400");
    let live: Vec<String> =
        real.said.iter().filter_map(|line| item_line(line.strip_prefix("s1: ")?)).collect();
    let record =
        std::fs::read(record_of(&real.folder.path().join("codex/sessions"), &thread)).expect("its record");
    let history = mainstay_agents::codex::rollout::read(&record, |_| None).expect("readable");
    assert_eq!(history.head.thread.as_str(), thread);
    let recorded: Vec<String> =
        history.said.iter().filter_map(|event| item_line(&crate::render::event(event))).collect();
    assert_eq!(recorded, live);
    real.end();
}

/// What is the same live and recorded: the agent's items with their texts, and how turns ended.
fn item_line(line: &str) -> Option<String> {
    let (what, rest) = line.split_once(' ')?;
    let words: Vec<&str> = rest.split(' ').collect();
    match what {
        "ItemCompleted" if words[3] != "UserMessage" => Some(words[..6.min(words.len())].join(" ")),
        "TurnEnded" => Some(words[..2].join(" ")),
        _ => None,
    }
}

fn record_of(folder: &std::path::Path, thread: &str) -> std::path::PathBuf {
    let mut folders = vec![folder.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("readable").flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.display().to_string().ends_with(&format!("{thread}.jsonl")) {
                return path;
            }
        }
    }
    panic!("no record of {thread}");
}

#[test]
fn a_thread_is_put_away_at_the_agent_and_taken_out_again() {
    let mut real = Real::start();
    let thread = real.open("s1", SessionOptions::default());
    real.open("s2", SessionOptions::default());
    real.turn("s1", "m1", "SAY one");
    assert_eq!(real.control("s1", "k1", Control::ArchiveThread)["state"], "done");
    real.tell("s1", &Decision::CloseThread);
    assert_eq!(real.said.last().map(String::as_str), Some("s1: ThreadClosed"));
    let archived = real.folder.path().join("codex/archived_sessions");
    assert!(record_of(&archived, &thread).is_file());
    real.turn("s2", "m2", "SAY two");
    let refused = |line: &String| line.contains("ThreadRefused") || line.contains("another client");
    assert!(!real.said.iter().any(refused), "{:?}", real.said);
    let resume = Decision::OpenThread {
        resume: Some(thread.as_str().into()),
        fork: None,
        options: SessionOptions::default(),
        doubtful: Vec::new(),
    };
    assert_eq!(real.open_thread("s1", resume), thread);
    real.turn("s1", "m3", "SAY three");
    let asked = real.model.requests().last().expect("a request").body.to_string();
    assert!(asked.contains("SAY one") && asked.contains("SAY three"), "{asked}");
    real.end();
}
