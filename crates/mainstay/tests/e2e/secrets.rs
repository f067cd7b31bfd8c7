//! A value in `agents.<name>.env` reaches the agent and nothing else.

use crate::command_line::run;
use crate::support::{Follower, World, answer, is, kill, send};
use mainstay_testkit::contain::live_descendants;
use std::path::Path;

const SECRET: &str = "sk-4f1d-the-value-that-nobody-may-see";

fn holds(bytes: &[u8], secret: &str) -> bool {
    bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
}

/// Files below a folder that hold the secret.
fn files_that_hold(folder: &Path, secret: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        let kind = entry.file_type().expect("its type");
        if kind.is_dir() {
            files_that_hold(&path, secret, found);
        } else if kind.is_file() && std::fs::read(&path).is_ok_and(|bytes| holds(&bytes, secret)) {
            found.push(path.display().to_string());
        }
    }
}

#[test]
fn a_secret_of_the_agents_environment_stands_nowhere_but_with_the_agent() {
    let world = World::new();
    world.configure(&[("API_SECRET", SECRET)]);
    let path = world.home.mainstay_home().join("config.toml");
    let config = std::fs::read_to_string(&path).unwrap();
    // An agent that cannot be started has secrets too, and its failure is told at length.
    let broken = format!(
        "[agents.broken]\nkind = \"acp\"\ncommand = [\"/nowhere/agent\"]\nenv = {{ API_SECRET = \"{SECRET}\" }}\n"
    );
    world.home.write_config(&format!("log = \"trace\"\n{config}{broken}"));
    let host = world.start();
    let client = host.client();

    let session = world.create(
        &host,
        "scripted",
        "RUN test \"$API_SECRET\" = sk-4f1d-$(echo the)-value-that-nobody-may-see && echo it has it ;; ASK may I",
    );
    let mut follower = Follower::default();
    let mut sse = follower.open(&client, &session);
    let opened = follower.until(&mut sse, "the request", is("request.opened"));
    let said: String = follower.events.iter().map(ToString::to_string).collect();
    assert!(said.contains("it has it"), "the agent did not get its environment: {said}");
    answer(&client, &session, opened["request"].as_str().unwrap(), "allow_once").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let broken = world.create(&host, "broken", "SAY never");
    let mut unlucky = Follower::default();
    let mut unlucky_sse = unlucky.open(&client, &broken);
    unlucky.until(&mut unlucky_sse, "the failure", is("session.recovering"));
    // A second life, after a death, which is told with its last words.
    kill(crate::support::agent_pid(follower.of_type("process.started")[0]));
    follower.until(&mut sse, "the lease's end", is("lease.released"));
    send(&client, &session, "SAY part ;; HOLD");
    follower.until(&mut sse, "text", |event| event["text"] == "part");

    let mut shown: Vec<(String, String)> = Vec::new();
    for path in [
        "/v1/info".to_owned(),
        "/v1/agents".to_owned(),
        "/v1/agents/scripted".to_owned(),
        "/v1/sessions".to_owned(),
        "/v1/events".to_owned(),
        "/metrics".to_owned(),
        format!("/v1/sessions/{session}"),
        format!("/v1/sessions/{session}/events"),
        format!("/v1/sessions/{session}/items"),
        format!("/v1/sessions/{broken}"),
        format!("/v1/sessions/{broken}/events"),
    ] {
        shown.push((path.clone(), client.get(&path).unwrap().expect_status(200).text()));
    }
    for arguments in [
        &["ps"][..],
        &["ps", "--json"],
        &["show", &session, "--json"],
        &["show", &broken],
        &["agents", "--json"],
        &["doctor", "--json"],
        &["run", "--agent", "broken", "hi"],
    ] {
        let done = run(&world, arguments);
        shown.push((arguments.join(" "), done.out + &done.err));
    }
    for (what, text) in &shown {
        assert!(!text.contains(SECRET), "{what} shows it: {text}");
    }

    let mut found = Vec::new();
    files_that_hold(&world.home.mainstay_home(), SECRET, &mut found);
    files_that_hold(&world.home.runtime_dir(), SECRET, &mut found);
    assert_eq!(found, [path.display().to_string()], "files that hold it");
    assert!(host.stderr().len() > 100, "nothing was logged, so the log shows nothing");
    assert!(!host.stderr().contains(SECRET), "the log holds it");

    // The agent's own environment is the one place; the processes' arguments and the keeper's environment are not.
    let mut with_it = Vec::new();
    let processes = live_descendants(i32::try_from(std::process::id()).unwrap());
    assert!(processes.len() >= 3, "host, keeper and agent: {processes:?}");
    for process in processes {
        assert!(!process.cmdline.contains(SECRET), "{process}");
        let environment = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
        if holds(&environment, SECRET) {
            with_it.push(process.pid);
        }
    }
    let agent = crate::support::agent_pid(follower.of_type("process.started")[1]);
    assert_eq!(with_it, [agent], "processes that have it in their environment");
    world.end(host);
}
