//! Agents that misbehave: odd and huge output, deaths and silence before the first word.

use crate::keepers;
use crate::support::{DEADLINE, Follower, World, follow_turn, interrupt, is, send, show};
use mainstay_testkit::agents::open_gate;
use mainstay_testkit::http::Client;
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::stream_text;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};

fn post(client: &Client, session: &str, what: &str, body: &Value) {
    client.post(&format!("/v1/sessions/{session}/{what}"), body).expect("answers").expect_status(202);
}

/// A scripted agent with this fault, and a session of it that was given a prompt.
fn faulty(fault: &[(&str, &str)], prompt: &str) -> (World, HostProcess, String) {
    let world = World::new();
    world.configure(fault);
    let host = world.start();
    let session = world.create(&host, "scripted", prompt);
    (world, host, session)
}

#[test]
fn a_line_of_five_megabytes_is_text_like_any_other() {
    const BYTES: usize = 5_000_000;
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", &format!("BIGLINE {BYTES} ;; TOOL t ;; SAY after"));
    let follower = follow_turn(&host.client(), &session);
    assert_eq!(follower.of_type("turn.ended")[0]["outcome"], "completed");
    let text = follower.agent_text();
    assert_eq!(text.len(), BYTES + "after".len());
    assert!(text.ends_with("xxxafter") && text[..BYTES].bytes().all(|byte| byte == b'x'));
    // A page gives no more of it than of any other text.
    let page = host.client().get(&format!("/v1/sessions/{session}/items")).unwrap().expect_status(200).json();
    assert!(page.to_string().len() < 6_000_000);
    world.end(host);
}

#[test]
fn a_message_longer_than_a_record_is_named_as_lost_and_the_turn_goes_on() {
    let world = World::new();
    let host = world.start();
    let session = world.create(&host, "scripted", "SAY before ;; BIGLINE 70000000 ;; SAY after");
    let follower = follow_turn(&host.client(), &session);
    assert_eq!(follower.of_type("turn.ended")[0]["outcome"], "completed");
    assert_eq!(follower.agent_text(), "beforeafter");
    let notice =
        follower.of_type("notice").iter().any(|notice| notice["message"].to_string().contains("too long"));
    assert!(notice, "the loss was not told: {:?}", follower.of_type("notice"));
    world.end(host);
}

#[test]
fn an_agent_on_a_pipe_is_held_back_at_the_spool_limit_and_nothing_is_lost() {
    const LIMIT: u64 = 256 * 1024;
    const FRAMES: usize = 100_000;
    let world = World::new();
    crate::host_keys::set(&world, "spool_limit", "\"256KiB\"");
    let mut host = world.start();
    let gate = world.home.root().join("gate");
    let prompt = format!("SAY before ;; GATE {} ;; FRAMES {FRAMES} 32 ;; BIGLINE 1000000", gate.display());
    let session = world.create(&host, "scripted", &prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the first text", is("item.delta"));
    let folder = keepers::folder(&world, &host.client(), &session);
    host.kill9();
    open_gate(&gate);
    let full = wait_for(DEADLINE, || (keepers::spooled(&folder) >= LIMIT).then_some(()));
    assert!(full.is_some(), "the spool did not fill up: {} bytes", keepers::spooled(&folder));
    // Far less than what the agent has to say, which is more than 15 MB: it stands at its full pipe.
    assert!(keepers::spooled(&folder) < 2 * LIMIT, "the limit does not hold: {}", keepers::spooled(&folder));

    let host = world.start();
    let mut sse = follower.open(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    let expected = format!("before{}{}", stream_text::whole(FRAMES, 32), "x".repeat(1_000_000));
    assert!(follower.agent_text() == expected, "the text is not what the agent wrote");
    assert_eq!(follower.of_type("process.started").len(), 1);
    assert_eq!(world.prompts_received(&prompt), 1);
    world.end(host);
}

#[test]
fn lines_that_mean_nothing_are_kept_to_be_seen_and_end_nothing() {
    let world = World::new();
    let host = world.start();
    let odd = [
        "BADLINE",
        "UNKNOWN_UPDATE",
        "RAW null",
        "RAW []",
        "RAW {}",
        "RAW {\"jsonrpc\":\"2.0\",\"id\":4711,\"result\":{}}",
        "RAW {\"jsonrpc\":\"2.0\",\"id\":\"theirs\",\"method\":\"fs/read_text_file\",\"params\":{\"path\":\"/etc/passwd\"}}",
        "RAW {\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":\"another\",\"update\":{}}}",
        "RAW {\"jsonrpc\":\"2.0\",\"method\":\"session/update\"}",
    ];
    let session =
        world.create(&host, "scripted", &format!("SAY before ;; {} ;; SAY after", odd.join(" ;; ")));
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!(follower.agent_text(), "beforeafter");
    let seen: String = follower.events.iter().map(Value::to_string).collect();
    for mark in ["this line is not JSON", "mystery_update", "fs/read_text_file", "4711"] {
        assert!(seen.contains(mark), "{mark} was dropped silently");
    }
    send(&host.client(), &session, "SAY next");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert!(follower.agent_text().ends_with("next"));
    world.end(host);
}

#[test]
fn bytes_that_are_no_text_are_named_and_end_nothing() {
    let world = World::new();
    let host = world.start();
    // The command writes to the agent's own output: once bytes alone, once inside of a message.
    let message = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"text":"\377\376"}}}"#;
    let prompt = format!(
        "SAY before ;; RUN printf '\\377\\376 odd\\n' > /proc/$PPID/fd/1 ;; RUN printf '{message}\\n' > /proc/$PPID/fd/1 ;; SAY after"
    );
    let session = world.create(&host, "scripted", &prompt);
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    assert_eq!(follower.agent_text(), "beforeafter");
    let told =
        follower.of_type("notice").iter().filter(|notice| notice.to_string().contains('\u{fffd}')).count();
    assert_eq!(told, 2, "{:?}", follower.of_type("notice"));
    world.end(host);
}

#[test]
fn three_deaths_before_the_first_turn_are_a_crash_loop_with_a_way_out() {
    const PROMPT: &str = "SAY at last";
    for (at, last_words) in [("initialize", "dies at initialize"), ("new", "dies at session/new")] {
        let (world, mut host, session) = faulty(&[("SCRIPTED_DIE_AT", at)], PROMPT);
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        let recovering = follower.until(&mut sse, "the crash loop", is("session.recovering"));
        assert_eq!(recovering["failure"]["code"], "crash_loop", "{recovering}");
        let exits = follower.of_type("process.exited");
        assert_eq!(exits.len(), 3, "{exits:?}");
        for exited in exits {
            assert_eq!(exited["exit"]["exit_code"], 3, "{exited}");
            assert!(
                exited["exit"]["stderr_tail"].as_str().is_some_and(|tail| tail.contains(last_words)),
                "{exited}"
            );
        }
        let shown = show(&host.client(), &session);
        assert_eq!((&shown["status"], &shown["queue_length"]), (&json!("recovering"), &json!(1)), "{shown}");
        assert!(shown["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{shown}");
        assert_eq!(world.prompts_received(PROMPT), 0);

        // A new host does not try again by itself; with the cause gone, a user does.
        host.kill9();
        world.configure(&[]);
        let host = world.start();
        let mut sse = follower.open(&host.client(), &session);
        assert_eq!(show(&host.client(), &session)["status"], "recovering");
        post(&host.client(), &session, "start", &json!({}));
        let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
        assert_eq!(ended["outcome"], "completed", "{ended}");
        assert_eq!(follower.agent_text(), "at last");
        assert_eq!(world.prompts_received(PROMPT), 1);
        world.end(host);
    }
}

#[test]
fn an_agent_that_never_answers_its_first_request_can_be_stopped() {
    for (fault, kill) in [
        (&[("SCRIPTED_HANG_AT", "initialize")][..], false),
        (&[("SCRIPTED_HANG_AT", "new")], false),
        (&[("SCRIPTED_HANG_AT", "initialize"), ("SCRIPTED_IGNORE", "term,eof")], true),
    ] {
        let (world, host, session) = faulty(fault, "SAY never");
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        follower.until(&mut sse, "the process", is("process.started"));
        let runs = || crate::command_line::run(&world, &["ps", "--json"]).lines()[0]["agent"] == "running";
        assert!(wait_for(DEADLINE, || runs().then_some(())).is_some(), "the agent does not run");
        assert_eq!(show(&host.client(), &session)["status"], "starting");
        post(&host.client(), &session, "stop", &json!({ "kill": kill }));
        let exited = follower.until(&mut sse, "the process's end", is("process.exited"));
        let order = if kill { "kill" } else { "user" };
        assert_eq!(exited["exit"]["cause"]["ordered"]["order"], order, "{exited}");
        follower.until(&mut sse, "the lease's end", is("lease.released"));
        assert_eq!(follower.of_type("process.started").len(), 1);
        // The message is not lost and not given to anybody by itself.
        let queue = host.client().get(&format!("/v1/sessions/{session}/queue")).unwrap().json();
        assert_eq!(queue["paused"], true, "{queue}");
        assert_eq!(queue["queue"][0]["state"], "accepted", "{queue}");
        assert_eq!(world.prompts_received("SAY never"), 0);
        assert_eq!(show(&host.client(), &session)["status"], "idle");
        world.end(host);
    }
}

#[test]
fn an_interrupt_before_anything_was_delivered_withdraws_the_message() {
    let (world, host, session) = faulty(&[("SCRIPTED_HANG_AT", "initialize")], "SAY withdrawn");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let accepted = follower.until(&mut sse, "the message", is("submission.accepted"));
    follower.until(&mut sse, "the process", is("process.started"));
    let stopped = interrupt(&host.client(), &session);
    assert_eq!(stopped["withdrawn"], json!([accepted["submission"]]), "{stopped}");
    assert_eq!((&stopped["turn"], &stopped["pending"]), (&Value::Null, &json!(false)), "{stopped}");
    let cancelled = follower.until(&mut sse, "the message's end", is("submission.cancelled"));
    assert_eq!(cancelled["submission"], accepted["submission"]);
    assert_eq!(show(&host.client(), &session)["queue_length"], 0);
    let again = interrupt(&host.client(), &session);
    assert_eq!(again["withdrawn"], json!([]), "{again}");
    assert_eq!(world.prompts_received("SAY withdrawn"), 0);
    world.end(host);
}

#[test]
fn an_agent_that_dies_of_a_prompt_leaves_it_in_doubt_and_the_session_usable() {
    let (world, host, session) = faulty(&[], "SAY part ;; DIE 9");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(
        (&ended["outcome"], &ended["failure"]["code"]),
        (&json!("lost"), &json!("agent_exited")),
        "{ended}"
    );
    let exited = follower.until(&mut sse, "the exit", is("process.exited"));
    assert_eq!(exited["exit"]["exit_code"], 9, "{exited}");
    follower.until(&mut sse, "the lease's end", is("lease.released"));
    send(&host.client(), &session, "SEGV");
    let exited = follower.until(&mut sse, "the next exit", is("process.exited"));
    assert_eq!(exited["exit"]["signal"], 11, "{exited}");
    assert_eq!(world.prompts_received("SAY part ;; DIE 9"), 1, "the prompt was given again");
    let idle = wait_for(DEADLINE, || (show(&host.client(), &session)["status"] != "running").then_some(()));
    assert!(idle.is_some());
    world.end(host);
}

#[test]
fn a_prompt_that_is_never_answered_ends_with_a_stop_and_the_next_message_works() {
    let (world, host, session) = faulty(&[], "SAY part ;; NEVER");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    // The agent does not heed the cancel: nothing is settled by that alone.
    interrupt(&host.client(), &session);
    assert_eq!(show(&host.client(), &session)["status"], "running");
    post(&host.client(), &session, "stop", &json!({}));
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    assert_eq!(
        (&ended["outcome"], &ended["failure"]["code"]),
        (&json!("interrupted"), &json!("stopped")),
        "{ended}"
    );
    follower.until(&mut sse, "the lease's end", is("lease.released"));
    send(&host.client(), &session, "SAY again");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert_eq!(follower.agent_text(), "partagain");
    assert_eq!(world.prompts_received("SAY part ;; NEVER"), 1);
    world.end(host);
}

#[test]
fn a_word_after_the_turns_end_is_shown_and_belongs_to_no_turn() {
    let (world, host, session) = faulty(&[], "SAY part ;; LATE");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let late = follower.until(&mut sse, "the late word", |event| event["text"] == "late");
    let item =
        follower.events.iter().find(|event| event["type"] == "item.started" && event["item"] == late["item"]);
    assert!(item.is_some_and(|item| item["turn"].is_null()), "{item:?}");
    send(&host.client(), &session, "SAY more");
    follower.until(&mut sse, "the next turn's end", is("turn.ended"));
    assert_eq!(follower.agent_text(), "partlatemore");
    assert_eq!(follower.of_type("turn.started").len(), 2);
    world.end(host);
}
