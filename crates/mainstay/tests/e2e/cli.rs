//! The command line: what each command prints for scripts, and the exit code of every kind of end.

use crate::command_line::{command, run};
use crate::support::{DEADLINE, Follower, World, agent_pid, follow_turn, interrupt, is, kill, show};
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};

/// The only session of the host, once it is there.
fn only_session(world: &World) -> String {
    let listed =
        wait_for(DEADLINE, || run(world, &["ls", "--json"]).lines().first().map(|row| row["id"].clone()));
    listed.expect("a session").as_str().expect("its id").to_owned()
}

/// The test's own umask may leave the home open to others, which `doctor` minds.
fn set_home_mode(world: &World, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(world.home.mainstay_home(), permissions).expect("its mode is set");
}

/// A running command with its lines of standard output.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Running {
    fn start(world: &World, arguments: &[&str]) -> Self {
        let mut child =
            command(world, arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Self { child, lines }
    }

    /// Reads until an event of this type; the runner's own limit ends a test whose event never comes.
    fn until(&mut self, kind: &str) -> Value {
        loop {
            let line = self.lines.next().unwrap_or_else(|| panic!("the output ended before {kind}")).unwrap();
            let value: Value = serde_json::from_str(&line).expect("JSON");
            if value["type"] == kind {
                return value;
            }
        }
    }

    fn press_ctrl_c(&self) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    }

    fn code(mut self) -> Option<i32> {
        // To the end: a full pipe would hold it.
        self.lines.by_ref().for_each(drop);
        self.child.wait().unwrap().code()
    }
}

#[test]
fn a_completed_turn_is_zero_and_a_failed_one_five() {
    let world = World::new();
    let host = world.start();
    let done = run(&world, &["run", "--agent", "scripted", "--json", "SAY all is well"]).expect_code(0);
    let events = done.lines();
    assert_eq!(events[0]["type"], "session.created");
    assert_eq!(events.last().unwrap()["outcome"], "completed", "it did not end with the turn");
    let text: String = events
        .iter()
        .filter(|event| event["type"] == "item.delta")
        .filter_map(|event| event["text"].as_str())
        .collect();
    assert_eq!(text, "all is well");
    let plain = run(&world, &["run", "--agent", "scripted", "SAY all is well"]).expect_code(0);
    assert!(plain.out.contains("all is well"), "{plain:?}");

    let failed = run(&world, &["run", "--agent", "codex", "ERR 400"]).expect_code(5);
    assert!(failed.out.contains("400") || failed.err.contains("400"), "the failure is not shown: {failed:?}");
    run(&world, &["run", "--agent", "scripted", "ERROR -32603 out of order"]).expect_code(5);
    world.end(host);
}

#[test]
fn what_cannot_be_meant_is_two_and_changes_nothing() {
    let world = World::new();
    let host = world.start();
    for arguments in [
        &["run"][..],
        &["sing"],
        &["run", "--yes", "--deny", "hi"],
        &["answer", "s", "r"],
        &["stop"],
        &["send", "s", "hi", "--delivery", "carrier-pigeon"],
        &["ls", "--limit", "0"],
        &["run", "--cwd", "/not/there", "hi"],
    ] {
        let done = run(&world, arguments).expect_code(2);
        assert!(!done.err.is_empty() && done.out.is_empty(), "{done:?}");
    }
    for arguments in [&["--help"][..], &["--version"], &["completions", "bash"], &["config", "reference"]] {
        assert!(!run(&world, arguments).expect_code(0).out.is_empty());
    }
    assert!(run(&world, &["ls", "--json"]).expect_code(0).lines().is_empty());
    world.end(host);
}

#[test]
fn without_a_host_it_is_three_and_nothing_is_started() {
    let world = World::new();
    for arguments in [
        &["ls"][..],
        &["show", "s"],
        &["send", "s", "hi"],
        &["interrupt", "s"],
        &["events", "s"],
        &["agents"],
        &["stop", "s"],
    ] {
        let done = run(&world, arguments).expect_code(3);
        assert!(done.err.contains("host"), "{done:?}");
    }
    // These need none.
    assert!(run(&world, &["ps", "--json"]).expect_code(0).lines().is_empty());
    run(&world, &["config", "show"]).expect_code(0);
    set_home_mode(&world, 0o700);
    run(&world, &["doctor"]).expect_code(0);
    world.nothing_left();
}

#[test]
fn a_refusal_or_a_conflict_is_four_with_its_problem() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY hi");
    follow_turn(&host.client(), &session);
    let problem = |arguments: &[&str], code: &str| {
        let done = run(&world, arguments).expect_code(4);
        assert_eq!(done.lines()[0]["code"], code, "{done:?}");
        assert!(!done.err.is_empty(), "nothing for people: {done:?}");
    };
    problem(&["show", "nobody", "--json"], "session_unknown");
    problem(&["send", &session, "hi", "--delivery", "steer", "--json"], "no_turn");
    problem(&["run", "--agent", "nobody", "hi", "--json"], "agent_unknown");
    run(&world, &["send", &session, "SAY one", "--id", "mine"]).expect_code(0);
    run(&world, &["send", &session, "SAY one", "--id", "mine"]).expect_code(0);
    problem(&["send", &session, "SAY two", "--id", "mine", "--json"], "id_conflict");
    problem(&["answer", &session, "r1", "--yes", "--json"], "request_unknown");
    let outside = run(&world, &["run", "--agent", "scripted", "--cwd", "/usr", "hi"]).expect_code(4);
    assert!(outside.err.contains("roots"), "{outside:?}");
    world.end(host);
}

#[test]
fn a_turn_that_another_client_interrupts_is_six() {
    let world = World::new();
    let host = world.start();
    let mut running = Running::start(&world, &["run", "--agent", "scripted", "--json", "SAY part ;; HOLD"]);
    running.until("item.delta");
    let session = only_session(&world);
    let stopped = run(&world, &["interrupt", &session, "--json"]).expect_code(0).lines();
    assert_eq!(stopped[0]["recorded"], true, "{stopped:?}");
    assert!(stopped[0]["turn"].is_string(), "{stopped:?}");
    let ended = running.until("turn.ended");
    assert!(ended["outcome"] == "interrupted" || ended["outcome"] == "cancelled", "{ended}");
    assert_eq!(running.code(), Some(6));
    let nothing = run(&world, &["interrupt", &session]).expect_code(0);
    assert!(nothing.out.contains("nothing was running"), "{nothing:?}");
    world.end(host);
}

#[test]
fn ctrl_c_interrupts_the_turn_and_is_six() {
    let world = World::new();
    let host = world.start();
    let mut running = Running::start(&world, &["run", "--agent", "scripted", "--json", "SAY part ;; HOLD"]);
    running.until("item.delta");
    running.press_ctrl_c();
    let ended = running.until("turn.ended");
    assert!(ended["outcome"] == "interrupted" || ended["outcome"] == "cancelled", "{ended}");
    assert_eq!(running.code(), Some(6));
    world.end(host);
}

#[test]
fn a_request_that_nobody_can_answer_is_seven_and_stays_open() {
    let world = World::new();
    let host = world.start();
    let done = run(&world, &["run", "--agent", "scripted", "SAY hm ;; ASK may I"]).expect_code(7);
    let session = only_session(&world);
    assert!(done.err.contains("mainstay answer") && done.err.contains(&session), "{done:?}");
    let shown = run(&world, &["show", &session, "--json"]).expect_code(0).lines();
    assert_eq!(shown[0]["session"]["status"], "requires_action", "{shown:?}");
    let request = shown[0]["requests"][0]["id"].as_str().expect("an open request").to_owned();
    assert!(run(&world, &["show", &session]).expect_code(0).out.contains("may I"));
    run(&world, &["answer", &session, &request, "reject_once"]).expect_code(0);
    run(&world, &["answer", &session, &request, "--yes"]).expect_code(4);

    // Those who were told what to say say it.
    run(&world, &["run", "--agent", "scripted", "--deny", "ASK may I"]).expect_code(0);
    let yes = run(&world, &["run", "--agent", "scripted", "--yes", "ASK may I"]).expect_code(0);
    assert!(yes.out.contains("allowed:allow_once"), "{yes:?}");
    world.end(host);
}

#[test]
fn a_turn_lost_with_its_agent_is_eight() {
    let world = World::new();
    let host = world.start();
    let mut running = Running::start(&world, &["run", "--agent", "scripted", "--json", "SAY part ;; HOLD"]);
    let started = running.until("process.started");
    running.until("item.delta");
    kill(agent_pid(&started));
    assert_eq!(running.until("turn.ended")["outcome"], "lost");
    assert_eq!(running.code(), Some(8));
    world.end(host);
}

#[test]
fn run_goes_on_over_a_host_that_dies_and_comes_back() {
    let world = World::new();
    let mut host = world.start();
    let gate = world.home.root().join("gate");
    let prompt = format!("SAY before ;; GATE {} ;; SAY after", gate.display());
    let mut running = Running::start(&world, &["run", "--agent", "scripted", "--json", &prompt]);
    running.until("item.delta");
    host.kill9();
    let host = world.start();
    mainstay_testkit::agents::open_gate(&gate);
    assert_eq!(running.until("turn.ended")["outcome"], "completed");
    assert_eq!(running.code(), Some(0));
    assert_eq!(world.prompts_received(&prompt), 1);
    world.end(host);
}

#[test]
fn events_and_show_and_send_print_what_the_api_says() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY one ;; TOOL t");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));

    let sent = run(&world, &["send", &session, "SAY two", "--json"]).expect_code(0).lines();
    assert_eq!(sent[0]["taken_as"], "start", "{sent:?}");
    assert!(sent[0]["submission"].is_string() && sent[0]["cursor"].is_string(), "{sent:?}");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    let waited = run(&world, &["send", &session, "SAY three", "--wait", "--json"]).expect_code(0).lines();
    assert_eq!(waited.last().unwrap()["type"], "turn.ended");
    follower.until(&mut sse, "the third turn's end", is("turn.ended"));
    run(&world, &["send", &session, "ERROR -32603 no", "--wait"]).expect_code(5);

    let all = run(&world, &["events", &session, "--json"]).expect_code(0).lines();
    assert!(all.len() >= follower.events.len());
    assert!(all[..follower.events.len()] == follower.events[..], "`events` is not what the stream gave");
    let third = all[2]["seq"].as_u64().unwrap();
    let rest =
        run(&world, &["events", &session, "--after", &format!("1:{third}"), "--json"]).expect_code(0).lines();
    assert_eq!(rest[..], all[3..]);
    run(&world, &["events", &session, "--after", "1:100000"]).expect_code(8);
    let feed = run(&world, &["events", "--host", "--json"]).expect_code(0).lines();
    assert_eq!(feed.iter().filter(|entry| entry["type"] == "turn.ended").count(), 4);

    let shown = run(&world, &["show", &session, "--json"]).expect_code(0).lines();
    assert_eq!(shown[0]["session"], show(&host.client(), &session));
    assert_eq!((&shown[0]["queue"], &shown[0]["requests"]), (&json!([]), &json!([])));
    world.end(host);
}

#[test]
fn attach_shows_the_past_and_what_comes_and_leaves_without_a_stop() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY the past");
    follow_turn(&host.client(), &session);
    let gate = world.home.root().join("gate");
    crate::support::send(&host.client(), &session, &format!("GATE {} ;; SAY what comes", gate.display()));
    let mut attached = Running::start(&world, &["attach", &session, "--json"]);
    // The past comes as items, newest last.
    let past = attached.lines.next().unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&past).unwrap()["kind"], "user_message", "{past}");
    let past = attached.lines.next().unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&past).unwrap()["text"], "the past", "{past}");
    mainstay_testkit::agents::open_gate(&gate);
    assert_eq!(attached.until("turn.ended")["outcome"], "completed");

    crate::support::send(&host.client(), &session, "SAY more ;; HOLD");
    attached.until("item.delta");
    attached.press_ctrl_c();
    assert_eq!(attached.code(), Some(0));
    assert_eq!(show(&host.client(), &session)["status"], "running", "leaving stopped the turn");
    interrupt(&host.client(), &session);
    world.end(host);
}

#[test]
fn attach_starts_a_host_again_after_a_kill_and_nothing_is_missing() {
    let world = World::new();
    let mut host = world.start();
    let gate = world.home.root().join("gate");
    let session =
        world.create(&host, "scripted", &format!("SAY part ;; GATE {} ;; SAY rest", gate.display()));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", crate::support::is("item.delta"));
    host.kill9();
    let mut attached = Running::start(&world, &["attach", &session, "--json"]);
    attached.lines.next().unwrap().unwrap();
    mainstay_testkit::agents::open_gate(&gate);
    assert_eq!(attached.until("turn.ended")["outcome"], "completed");
    attached.press_ctrl_c();
    assert_eq!(attached.code(), Some(0));
    let items = run(&world, &["show", &session, "--json"]).expect_code(0);
    assert!(!items.out.is_empty());
    run(&world, &["stop", "--host", "--kill"]).expect_code(0);
    world.nothing_left();
}

#[test]
fn ps_and_agents_and_doctor_say_what_there_is() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let started = follower.until(&mut sse, "the process", is("process.started"));
    follower.until(&mut sse, "text", is("item.delta"));

    let ps = run(&world, &["ps", "--json"]).expect_code(0).lines();
    assert_eq!(ps.len(), 1, "{ps:?}");
    assert_eq!(ps[0]["token"], started["process"]);
    assert_eq!(ps[0]["agent_identity"], started["agent"], "{}", ps[0]);
    assert_eq!((&ps[0]["keeper"], &ps[0]["agent"]), (&json!("alive"), &json!("running")));
    assert_eq!(ps[0]["cwd"], world.workspace());
    assert_eq!(ps[0]["threads"][0], follower.of_type("thread.linked")[0]["thread"]);

    let agents = run(&world, &["agents", "--json"]).expect_code(0).lines();
    let named =
        |name: &str| agents.iter().find(|agent| agent["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    for name in ["codex", "demo", "scripted"] {
        assert_eq!(named(name)["installed"], true, "{}", named(name));
        assert!(named(name)["capabilities"].is_object());
    }
    assert_eq!(named("scripted")["kind"], "acp");

    set_home_mode(&world, 0o700);
    let doctor = run(&world, &["doctor", "--json"]).expect_code(0).lines();
    let found =
        |what: &str| doctor.iter().find(|row| row["what"] == what).unwrap_or_else(|| panic!("no {what}"));
    for what in ["home", "token", "config", "host", "store", "agents", "keepers"] {
        assert_eq!(found(what)["verdict"], "ok", "{}", found(what));
    }
    assert!(found("host")["detail"].as_str().unwrap().contains(&host.pid().to_string()));
    set_home_mode(&world, 0o755);
    let doctor = run(&world, &["doctor", "--json"]).expect_code(1).lines();
    assert!(doctor.iter().any(|row| row["what"] == "home" && row["verdict"] == "bad"), "{doctor:?}");
    set_home_mode(&world, 0o700);
    world.end(host);
}

#[test]
fn config_shows_each_value_with_its_source_and_warns_with_the_nearest_key() {
    let world = World::new();
    crate::host_keys::set(&world, "rest_afetr", "\"2h\"");
    crate::host_keys::set(&world, "linger", "\"3h\"");
    let mut show = command(&world, &["config", "show", "--json"]);
    let output = show.env("MAINSTAY_MAX_PROCESSES", "7").output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{err}");
    let shown: Value = serde_json::from_str(&out).expect("JSON");
    let file = world.home.mainstay_home().join("config.toml").display().to_string();
    for (key, value, source) in [
        ("linger", json!("3h"), file.as_str()),
        ("max_processes", json!(7), "MAINSTAY_MAX_PROCESSES"),
        ("max_starting", json!(2), "default"),
        ("stream_flush", json!("5ms"), "default"),
        ("agents.scripted.kind", json!("acp"), file.as_str()),
    ] {
        assert_eq!(shown[key], json!({ "value": value, "source": source }), "{key}");
    }
    assert!(shown.as_object().unwrap().values().all(|entry| entry["source"].is_string()), "{shown}");
    assert!(
        err.contains("rest_afetr") && err.contains("rest_after"),
        "the nearest key is not named: {err:?}"
    );
    let doctor = run(&world, &["doctor", "--json"]).expect_code(1).lines();
    assert!(doctor.iter().any(|row| row["what"] == "config" && row["verdict"] == "bad"), "{doctor:?}");

    // A value that cannot be meant stops the command, with the key.
    crate::host_keys::set(&world, "linger", "\"soon\"");
    let refused = run(&world, &["config", "show"]).expect_code(2);
    assert!(refused.err.contains("linger") && refused.err.contains("soon"), "{refused:?}");
    world.nothing_left();
}

#[test]
fn the_token_is_made_once_and_lets_its_bearer_in() {
    let world = World::new();
    let made = run(&world, &["token"]).expect_code(0).out.trim().to_owned();
    assert_eq!(run(&world, &["token", "--json"]).expect_code(0).lines()[0]["token"], made.as_str());
    let host = world.start();
    let client = host.anonymous_client().bearer(&made);
    client.get("/v1/sessions").unwrap().expect_status(200);
    assert_eq!(world.home.token(), made, "the host made another one");
    world.end(host);
}

#[test]
fn budgets_come_from_the_command_line_and_from_the_configuration() {
    let world = World::new();
    crate::host_keys::set(&world, "max_tokens", "5000");
    let host = world.start();
    let asked = ["run", "--agent", "scripted", "--max-turns", "1", "--max-time", "30m", "--max-cost", "2.50"];
    run(&world, &[asked.as_slice(), &["SAY one"]].concat()).expect_code(0);
    let session = only_session(&world);
    let shown = show(&host.client(), &session);
    assert_eq!(
        shown["limits"],
        json!({ "max_turns": 1, "max_turn_ms": 1_800_000, "max_tokens": 5_000, "max_cost_micros": 2_500_000 })
    );
    crate::support::send(&host.client(), &session, "SAY two").expect_status(202);
    let held_back = || {
        let shown = show(&host.client(), &session);
        let reason = shown["reason"].as_str().unwrap_or_default();
        (shown["status"] == "requires_action" && reason.contains("max_turns")).then_some(())
    };
    assert!(wait_for(DEADLINE, held_back).is_some(), "{}", show(&host.client(), &session));
    for (flag, value) in [("--max-cost", "much"), ("--max-turns", "0"), ("--max-time", "30")] {
        run(&world, &["run", "--agent", "scripted", flag, value, "SAY no"]).expect_code(2);
    }
    assert_eq!(run(&world, &["ls", "--json"]).lines().len(), 1, "a session was made of what cannot be meant");
    world.end(host);
}
