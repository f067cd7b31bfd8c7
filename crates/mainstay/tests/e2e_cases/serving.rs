//! Clients that come, go, repeat themselves and read slowly: cases 102, 103, 165, 168, 169.

use crate::played::{Followed, Played};
use crate::support::{DEADLINE, Follower, is};
use mainstay_testkit::agents::open_gate;
use mainstay_testkit::stream_text;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// 102 and 103: the same message under the same key, many times, over a death of the host: one turn.
#[test]
fn a_message_that_is_sent_again_and_again_is_one_turn_also_after_the_hosts_death() {
    let mut played = Played::new("acp", "on prompt once\n  say part\n  wait-for gate $root/gate\n");
    let body = json!({ "agent": "played", "cwd": played.world.workspace(), "id": "the-session" });
    played.client().post("/v1/sessions", &body).unwrap().expect_status(201);
    let message = json!({ "content": "once", "id": "the-message" });
    let path = "/v1/sessions/the-session/messages";
    let senders: Vec<_> = (0..10)
        .map(|_| {
            let (client, message) = (played.client(), message.clone());
            // Some see the host die: their answer is lost, their message may be taken.
            std::thread::spawn(move || {
                client.post_once(path, "the-key", &message).map(|answer| answer.status)
            })
        })
        .collect();
    let mut follower = Follower::default();
    let mut sse = follower.open(&played.client(), "the-session");
    follower.until(&mut sse, "it is taken in", is("submission.accepted"));
    played.host.kill9();
    for sender in senders {
        if let Ok(status) = sender.join().unwrap() {
            assert_eq!(status, 202);
        }
    }
    played.host = played.world.start();
    for _ in 0..5 {
        let again = played.client().post_once(path, "the-key", &message).unwrap().expect_status(202);
        assert_eq!(again.header("idempotent-replay"), Some("true"));
    }
    // Also under another key: the id is the message's for ever.
    played.client().post_once(path, "another-key", &message).unwrap().expect_status(202);
    let other = json!({ "content": "other", "id": "the-message" });
    assert_eq!(played.client().post(path, &other).unwrap().status, 409);
    let sse = follower.open(&played.client(), "the-session");
    let mut session = Followed { id: "the-session".to_owned(), follower, sse };
    session.until("text", is("item.delta"));
    open_gate(&played.root("gate"));
    session.ended("completed");
    assert_eq!(session.all("turn.started").len(), 1);
    assert_eq!(session.all("submission.accepted").len(), 1);
    let of_user = session.all("item.started").iter().filter(|item| item["kind"] == "user_message").count();
    assert_eq!(of_user, 1);
    assert_eq!(played.world.prompts_received("once"), 1);
    played.end();
}

/// 168: readers come at every moment of a stream; each sees all of it, once.
#[test]
fn readers_that_come_in_the_middle_of_a_stream_see_all_of_it_once() {
    const ROUNDS: usize = 300;
    let played = Played::new("acp", "on prompt go\n  wait-for gate $root/gate\n  stream 60000 32\n");
    let mut session = played.session("go");
    session.until("the delivery", is("submission.delivered"));
    open_gate(&played.root("gate"));
    let over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..3)
        .map(|number| {
            let (client, id, over) = (played.client(), session.id.clone(), over.clone());
            std::thread::spawn(move || {
                let mut rounds = 0;
                while rounds < ROUNDS && !over.load(Ordering::SeqCst) {
                    // A new reader from the beginning, or one that goes on where it stopped, at another place each time.
                    let mut follower = Follower::default();
                    for _ in 0..2 {
                        let mut sse = follower.open(&client, &id);
                        for _ in 0..(20 + rounds * (number + 1) % 50) {
                            let Some(event) = sse.next(Duration::from_secs(30)) else { break };
                            follower.take(event);
                        }
                    }
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    session.ended("completed");
    over.store(true, Ordering::SeqCst);
    let rounds: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
    assert!(rounds > 10, "{rounds} rounds are too few to show anything");
    assert!(session.text() == stream_text::whole(60_000, 32), "the text is not what the agent wrote");
    played.end();
}

/// 169: a stream of an idle session says that it is there, more often than a client's usual patience of 30 s.
#[test]
fn an_idle_stream_says_that_it_is_there() {
    let played = Played::new("acp", "");
    let mut session = played.session("hello");
    session.ended("completed");
    let path = format!("/v1/sessions/{}/events", session.id);
    for path in [path.as_str(), "/v1/events"] {
        let mut sse = played.client().events(path, &[]).unwrap();
        for _ in 0..2 {
            let patience = std::time::Instant::now();
            let seen = sse.until(DEADLINE, |event| event.event == "heartbeat");
            assert!(patience.elapsed() < Duration::from_secs(30), "{path}");
            assert!(seen.last().unwrap().data["at"].is_i64(), "{path}: not to be parsed");
        }
    }
    played.end();
}

/// 165: the connection stands still without an end, as through a dead proxy, while the turn ends. The command line's own reader
/// notices and sees the end.
#[test]
fn a_reader_notices_a_host_that_stands_still_and_goes_on_when_it_does() {
    let played = Played::new("acp", "on prompt go\n  say part\n  wait-for gate $root/gate\n  say whole\n");
    let mut session = played.session("go");
    session.until("text", is("item.delta"));
    let mut attach =
        crate::command_line::command(&played.world, &["events", "--follow", "--json", &session.id]);
    attach.stdout(std::process::Stdio::piped());
    let mut attach = attach.spawn().unwrap();
    // fault: the host takes part in nothing for a while, and its connections stay open.
    played.host.signal(rustix::process::Signal::STOP);
    open_gate(&played.root("gate"));
    std::thread::sleep(Duration::from_secs(3)); // fault
    played.host.signal(rustix::process::Signal::CONT);
    session.ended("completed");
    use std::io::BufRead;
    let lines = std::io::BufReader::new(attach.stdout.take().unwrap()).lines();
    let ended = lines.map_while(Result::ok).any(|line| line.contains("\"turn.ended\""));
    assert!(ended, "the reader never saw the end");
    attach.kill().unwrap();
    attach.wait().unwrap();
    played.end();
}
