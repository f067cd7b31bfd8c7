//! `support`: what is in the file, and above all what is not.

use crate::command_line::run;
use crate::support::{Follower, World, answer, is};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// One value for each place where a secret may stand; none of them may leave the machine.
const CANARIES: [(&str, &str); 6] = [
    ("the agent's environment", "sk-canary-environment-1"),
    ("a message", "sk-canary-message-2"),
    ("what the agent says", "sk-canary-answer-3"),
    ("what the agent writes on standard error", "sk-canary-stderr-4"),
    ("a command's argument", "sk-canary-argument-5"),
    ("the session's name", "sk-canary-name-6"),
];

fn unpack(file: &Path, folder: &Path) {
    let done = Command::new("tar").arg("-xf").arg(file).current_dir(folder).status().expect("tar");
    assert!(done.success());
}

fn member(folder: &Path, name: &str) -> String {
    std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn a_bundle_says_what_is_needed_and_nothing_secret() {
    let world = World::new();
    world.configure(&[("API_SECRET", CANARIES[0].1)]);
    let config = std::fs::read_to_string(world.home.mainstay_home().join("config.toml")).unwrap();
    let more = format!(
        "[agents.keyed]\nkind = \"acp\"\ncommand = [\"/nowhere/agent\", \"--api-key={}\"]\n",
        CANARIES[4].1
    );
    // The most talkative log there is.
    world.home.write_config(&format!("log = \"trace\"\n{config}{more}"));
    let prompt = format!(
        "SAY {} ;; RUN echo {} > /proc/$PPID/fd/2 ;; RUN echo {} ;; ASK may I",
        CANARIES[1].1, CANARIES[3].1, CANARIES[2].1
    );
    let made = run(&world, &["run", "--agent", "scripted", "--name", CANARIES[5].1, "--detach", &prompt]);
    let session = made.expect_code(0).out.trim().to_owned();
    let address: Value = serde_json::from_str(
        &std::fs::read_to_string(world.home.mainstay_home().join("listening.json")).unwrap(),
    )
    .unwrap();
    let client = mainstay_testkit::http::Client::new(mainstay_testkit::http::Addr::Unix(
        address["socket"].as_str().unwrap().into(),
    ));
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let opened = follower.until(&mut sse, "a request", is("request.opened"));
    answer(&client, &session, opened["request"].as_str().unwrap(), "allow_once").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let said: String = follower.events.iter().map(ToString::to_string).collect();
    for (what, canary) in &CANARIES[1..3] {
        assert!(said.contains(canary), "{what} is not even in the journal");
    }

    let file = world.home.root().join("report.tar");
    let shown = file.display().to_string();
    let done = run(&world, &["support", "--output", &shown, "--session", &session, "--json"]).expect_code(0);
    assert!(done.lines()[0]["members"].as_array().unwrap().len() >= 8, "{done:?}");
    run(&world, &["support", "--output", &shown]).expect_code(4);

    let token = world.home.token();
    let bytes = std::fs::read(&file).unwrap();
    let holds = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    for (what, canary) in CANARIES.iter().copied().chain([("the API's token", token.as_str())]) {
        assert!(!holds(canary), "the bundle holds {what}");
    }
    let folder = world.home.root().join("unpacked");
    std::fs::create_dir(&folder).unwrap();
    unpack(&file, &folder);
    let versions: Value = serde_json::from_str(&member(&folder, "versions.json")).unwrap();
    assert_eq!(versions["mainstay"], versions["host"]);
    assert!(versions["sqlite"].as_str().unwrap().starts_with("3."));
    let findings = member(&folder, "doctor.jsonl");
    assert!(findings.lines().any(|line| line.contains("\"host.ok\"")), "{findings}");
    let config: Value = serde_json::from_str(&member(&folder, "config.json")).unwrap();
    assert_eq!(config["agents.scripted.env"]["value"]["API_SECRET"], "(set)");
    assert_eq!(config["agents.keyed.command"]["value"]["arguments"], 1);
    assert!(member(&folder, "metrics.txt").contains("mainstay_batches_total"));
    let sessions = member(&folder, "sessions.jsonl");
    let listed: Value = serde_json::from_str(sessions.lines().next().unwrap()).unwrap();
    assert_eq!((&listed["id"], &listed["agent"]), (&session.as_str().into(), &"scripted".into()), "{listed}");
    assert!(member(&folder, "keepers.jsonl").contains("process_fence"));
    let log = member(&folder, "logs/host.log");
    assert!(log.contains("turn.ended") && log.contains("are left out"), "{log}");
    // The journal has every event with its shape: type, ids, numbers and the lengths of texts.
    let journal: Vec<Value> =
        member(&folder, "journal.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = journal.last().unwrap();
    let seen = follower.events.last().unwrap();
    assert_eq!((&last["seq"], &last["type"]), (&seen["seq"], &seen["type"]));
    let asked = journal.iter().find(|event| event["type"] == "request.opened").unwrap();
    assert_eq!(asked["request"], opened["request"]);
    let text = journal.iter().find(|event| event["type"] == "item.delta").unwrap();
    assert!(text["text"]["text_bytes"].as_u64().unwrap() > 0, "{text}");

    run(&world, &["stop", "--host", "--kill"]).expect_code(0);
    // Without a host there is a bundle all the same.
    let other = world.home.root().join("other.tar").display().to_string();
    run(&world, &["support", "-o", &other]).expect_code(0);
    world.nothing_left();
}
