//! Turns, messages into them, and stops: cases 5, 63 to 74, 131, 138.

use crate::played::{ALL_KINDS, Played};
use crate::support::{DEADLINE, agent_pid, interrupt, is, is_alive};
use mainstay_testkit::agents::open_gate;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};

/// 5: nothing but KILL ends it, and that comes at the end of the ladder.
#[test]
fn an_agent_that_traps_every_signal_is_killed_and_its_turn_settled_once() {
    for kind in ALL_KINDS {
        let script =
            "on prompt\n  ignore term\n  ignore int\n  ignore eof\n  heedless\n  stream 2 8\n  hang\n";
        let played = Played::new(kind, script);
        let mut session = played.session("go");
        session.until("text", is("item.delta"));
        played.post(&session, "stop", &json!({}));
        session.ended("interrupted");
        let exited = session.until("the exit", is("process.exited"));
        assert_eq!(exited["exit"]["signal"], 9, "{kind}: {exited}");
        assert!(!is_alive(agent_pid(session.all("process.started")[0])), "{kind}");
        assert_eq!(session.all("turn.ended").len(), 1, "{kind}");
        played.end();
    }
}

/// 63: the turn ends, and the message that was to go into it crosses its end. Whatever words refuse it, it becomes the next
/// turn, once.
#[test]
fn a_message_into_a_turn_that_just_ended_becomes_the_next_turn() {
    for words in ["no active turn to steer", "Invalid request"] {
        let script = format!(
            "on prompt first\n  say part\n  hang\non turn/steer\n  end\n  refuse -32600 {words}\non prompt second\n  say more\n"
        );
        let played = Played::new("codex", &script);
        let mut session = played.session("first");
        session.until("text", is("item.delta"));
        played.send(&session, "second");
        session.ended("completed");
        session.ended("completed");
        assert_eq!(session.text(), "partmore", "{words}");
        assert_eq!(played.world.prompts_received("second"), 1, "{words}");
        assert_eq!(session.all("submission.taken").len(), 2, "{words}");
        assert_eq!(session.all("submission.rejected").len(), 0, "{words}");
        played.end();
    }
}

/// 64 and 74: the agent accepts a message and never shows it. Nothing pretends that it was taken, the session says what it
/// waits for, and a stop is a way out after which the next message works.
#[test]
fn a_message_that_the_agent_swallows_is_never_called_taken_and_a_stop_is_a_way_out() {
    let swallow = "  answer {\"turn\": {\"id\": \"phantom\", \"items\": [], \"status\": \"inProgress\"}}\n";
    for (kind, script) in [
        ("codex", format!("on first 1 turn/start\n  default\non first 2 turn/start\n{swallow}")),
        ("claude", "on first 1 user\n  default\non first 2 user\n  hang\n".to_owned()),
        ("acp", "on first 1 session/prompt\n  default\non first 2 session/prompt\n  hang\n".to_owned()),
    ] {
        let played = Played::new(kind, &script);
        let mut session = played.session("one");
        session.ended("completed");
        played.send(&session, "two");
        let delivered = session.until("the delivery", is("submission.delivered"));
        let swallowed = delivered["submission"].clone();
        assert_ne!(played.show(&session)["status"], "idle", "{kind}: it was given and has no end");
        played.post(&session, "stop", &json!({}));
        session.until("the lease's end", is("lease.released"));
        assert!(
            !session.all("submission.taken").iter().any(|taken| taken["submission"] == swallowed),
            "{kind}: called taken"
        );
        assert_eq!(session.all("turn.ended").len(), 1, "{kind}: a turn that never was has ended");
        // What may be in doubt is settled by its user.
        let queue = played.client().get(&format!("/v1/sessions/{}/queue", session.id)).unwrap().json();
        for open in queue["queue"].as_array().unwrap() {
            let path = format!("/v1/sessions/{}/queue/{}", session.id, open["id"].as_str().unwrap());
            played.client().delete(&path).unwrap().expect_status(200);
        }
        played.send(&session, "three");
        session.ended("completed");
        assert!(session.text().ends_with("echo: three"), "{kind}: {}", session.text());
        assert_eq!(played.world.prompts_received("two"), 0, "{kind}: given again by itself");
        played.end();
    }
}

/// 66: the agent is alive and does nothing. The stop has a deadline of its own, and what waited goes on in a fresh process, in
/// its order.
#[test]
fn a_silent_agent_is_ended_after_its_time_and_the_queue_goes_on_in_order() {
    let played =
        Played::new("acp", "on prompt wedged\n  say part\n  ignore eof\n  ignore term\n  heedless\n  hang\n");
    let mut session = played.session("wedged");
    session.until("text", is("item.delta"));
    played.send(&session, "second");
    played.send(&session, "third");
    interrupt(&played.client(), &session.id);
    session.ended("interrupted");
    session.until("the lease's end", is("lease.released"));
    // A stop pauses the queue; its user lifts that.
    let resume = format!("/v1/sessions/{}/queue/resume", session.id);
    played.client().post(&resume, &json!({})).unwrap().expect_status(200);
    session.ended("completed");
    session.ended("completed");
    assert_eq!(session.text(), "partecho: secondecho: third");
    assert_eq!(session.all("process.started").len(), 2);
    assert_eq!(played.world.prompts_received("wedged"), 1);
    played.end();
}

/// 67 and 71: a stop is acknowledged at once and the turn goes on for a while. The next message waits for the turn's own end,
/// and neither end is taken for the other's.
#[test]
fn what_a_stopped_turn_still_says_is_its_own_and_the_next_message_waits_for_its_end() {
    for kind in ALL_KINDS {
        let script = "on prompt one\n  heedless\n  say part\n  wait-for cancel\n  stream 5 8\n  wait-for gate $root/gate\n  \
                      stream 3 8\n  run echo over > $root/over\n  end cancelled\non prompt two\n  run test -e $root/over && echo yes > $root/after\n  say two\n";
        let played = Played::new(kind, script);
        let mut session = played.session("one");
        session.until("text", |event| event["text"].to_string().contains("part"));
        interrupt(&played.client(), &session.id);
        // Sent while the old turn still runs; `interrupt` as its delivery would say the same.
        played
            .client()
            .post(
                &format!("/v1/sessions/{}/messages", session.id),
                &json!({ "content": "two", "delivery": "queue" }),
            )
            .unwrap()
            .expect_status(202);
        session.until("what comes after the stop", |event| event["text"].to_string().contains("0000004"));
        open_gate(&played.root("gate"));
        let first = session.until("the first turn's end", is("turn.ended"));
        assert_ne!(first["outcome"], "completed", "{kind}: {first}");
        if session.all("turn.started").len() < 2 {
            // The stop paused what waited behind it, where it came first.
            let resume = format!("/v1/sessions/{}/queue/resume", session.id);
            played.client().post(&resume, &json!({})).unwrap();
        }
        session.ended("completed");
        assert!(session.text().ends_with("two"), "{kind}: {}", session.text());
        assert!(played.root("after").exists(), "{kind}: the next message left before the turn was over");
        let ended: Vec<&Value> = session.all("turn.ended");
        assert_eq!(ended.len(), 2, "{kind}");
        assert_ne!(ended[0]["turn"], ended[1]["turn"], "{kind}");
        played.end();
    }
}

/// 68: the agent accepts a turn and dies before it says so.
#[test]
fn a_death_between_the_answer_and_the_start_leaves_the_message_in_doubt_or_settles_it() {
    let script = "on first 1 turn/start\n  default\non first 2 turn/start\n  answer {\"turn\": {\"id\": \"t\", \"items\": []}}\n  exit 0\n";
    let played = Played::new("codex", script);
    let mut session = played.session("one");
    session.ended("completed");
    played.send(&session, "two");
    session.until("the lease's end", is("lease.released"));
    // Its history, asked by the next process, says that it never came: then, and only then, it is given again.
    played.send(&session, "three");
    let shown = played.until_shown(&session, "settled", |shown| {
        shown["status"] == "idle" || shown["status"] == "requires_action"
    });
    assert_eq!(shown["status"], "idle", "{shown}");
    session.until("the answer to the last one", |event| event["text"].to_string().contains("three"));
    assert_eq!(played.world.prompts_received("two"), 1);
    assert_eq!(session.text(), "echo: oneecho: twoecho: three");
    played.end();
}

/// 68, the other way: the message stands in the agent's history when it dies without a word. It is taken, and not given again.
#[test]
fn a_message_that_stands_in_the_history_of_a_dead_agent_is_not_given_again() {
    let turn = r#"{"id":"the-turn","status":"completed","items":[{"type":"userMessage","id":"u","clientId":"the-second","content":[{"type":"text","text":"two"}]}]}"#;
    let script = format!(
        "on first 1 turn/start\n  default\non first 2 turn/start\n  run sed -i 's|]$|,{turn}]|' $root/played-state/$thread.json\n  exit 0\n"
    );
    let played = Played::new("codex", &script);
    let mut session = played.session("one");
    session.ended("completed");
    played.post(&session, "messages", &json!({ "content": "two", "id": "the-second" }));
    session.until("the lease's end", is("lease.released"));
    played.send(&session, "three");
    session.until("the answer to the last one", |event| event["text"].to_string().contains("three"));
    let taken = |event: &Value| event["submission"] == "the-second";
    assert_eq!(session.all("submission.taken").into_iter().filter(|event| taken(event)).count(), 1);
    assert_eq!(played.world.prompts_received("two"), 0, "it was given again");
    assert_eq!(session.text(), "echo: oneecho: three");
    played.end();
}

/// 70: the provider ends a turn as interrupted, and nobody asked for it; it is not shown as a user's stop.
#[test]
fn a_turn_that_the_provider_interrupted_is_not_called_a_users_stop() {
    for kind in ALL_KINDS {
        let script = "on prompt alone\n  say part\n  end cancelled\non prompt stopped\n  say part\n  wait-for cancel\n";
        let played = Played::new(kind, script);
        let mut session = played.session("alone");
        let ended = session.until("the turn's end", is("turn.ended"));
        // Codex has one word for both; whether a user asked stands beside it.
        let word = if kind == "codex" { "interrupted" } else { "cancelled" };
        assert_eq!(ended["outcome"], word, "{kind}: {ended}");
        assert_eq!(session.all("interrupt.requested").len(), 0, "{kind}");
        played.send(&session, "stopped");
        session.until("the next turn", is("turn.started"));
        session.until("text", is("item.delta"));
        interrupt(&played.client(), &session.id);
        session.ended("interrupted");
        assert_eq!(session.all("interrupt.requested").len(), 1, "{kind}");
        played.end();
    }
}

/// 72: a stop of the turn keeps the process, a stop of the agent ends it, and the conversation goes on after both.
#[test]
fn a_stopped_turn_keeps_its_process_and_a_stopped_agent_is_gone() {
    for kind in ALL_KINDS {
        let played = Played::new(kind, "on prompt hold\n  say part\n  wait-for cancel\n");
        let mut session = played.session("hold");
        session.until("text", is("item.delta"));
        let pid = agent_pid(session.all("process.started")[0]);
        interrupt(&played.client(), &session.id);
        session.ended("interrupted");
        played.send(&session, "again");
        session.ended("completed");
        assert_eq!(session.all("process.started").len(), 1, "{kind}");
        assert!(is_alive(pid), "{kind}");
        played.post(&session, "stop", &json!({}));
        session.until("the lease's end", is("lease.released"));
        assert!(!is_alive(pid), "{kind}");
        played.send(&session, "and again");
        session.ended("completed");
        let links = session.all("thread.linked");
        assert_eq!(links.last().unwrap()["thread"], links[0]["thread"], "{kind}: another conversation");
        played.end();
    }
}

/// 73 and 138: agents that never come up hold nobody else back, say that they start, and take a message or a stop at once.
#[test]
fn agents_that_never_come_up_hold_nobody_back() {
    for kind in ALL_KINDS {
        let played = Played::new(kind, "on initialize\n  hang\n");
        crate::host_keys::set_for_agent(&played.world, "played", "isolation", "\"session\"");
        let mut hung: Vec<_> = (0..4).map(|number| played.session(&format!("never {number}"))).collect();
        for session in &mut hung {
            session.until("the process", is("process.started"));
            assert_eq!(played.show(session)["status"], "starting", "{kind}");
            let began = std::time::Instant::now();
            played.send(session, "more");
            assert!(began.elapsed() < DEADLINE / 4, "{kind}: a send waited for the agent");
        }
        let mut other = played.session_of("scripted", "SAY hello");
        other.ended("completed");
        for session in &mut hung {
            played.post(session, "stop", &json!({}));
            session.until("the lease's end", is("lease.released"));
            assert_eq!(played.show(session)["status"], "idle", "{kind}");
        }
        played.end();
    }
}

/// 131: the host dies while it ends an agent that takes its time.
#[test]
fn a_host_that_dies_while_it_stops_an_agent_leaves_no_ghost() {
    for kind in ALL_KINDS {
        let script =
            "on prompt stubborn\n  ignore eof\n  ignore term\n  ignore int\n  say part\n  heedless\n  hang\n";
        let mut played = Played::new(kind, script);
        let mut session = played.session("stubborn");
        session.until("text", is("item.delta"));
        played.post(&session, "stop", &json!({}));
        played.restart();
        session.reopen(&played);
        session.ended("interrupted");
        session.until("the lease's end", is("lease.released"));
        let idle = wait_for(DEADLINE, || (played.show(&session)["status"] == "idle").then_some(()));
        assert!(idle.is_some(), "{kind}: {}", played.show(&session));
        played.send(&session, "next");
        session.ended("completed");
        assert!(session.text().ends_with("echo: next"), "{kind}: {}", session.text());
        played.end();
    }
}
