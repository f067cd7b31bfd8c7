//! Clients that come, go, repeat themselves and read slowly: cases 102, 103, 165, 168, 169.

use crate::played::{Followed, Played};
use crate::support::{DEADLINE, Follower, is};
use mainstay_testkit::agents::open_gate;
use mainstay_testkit::stream_text;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the command line ends with where no host can be reached.
const NO_HOST: i32 = 3;

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

/// Carries connections to a host's socket, until those that there are stand still: nothing more comes, and no end.
struct Relay {
    path: PathBuf,
    carried: Arc<Mutex<Vec<Arc<AtomicBool>>>>,
}

impl Relay {
    fn before(socket: &Path, path: PathBuf) -> Self {
        let listener = UnixListener::bind(&path).unwrap();
        let carried = Arc::new(Mutex::new(Vec::new()));
        let (socket, all) = (socket.to_path_buf(), carried.clone());
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = UnixStream::connect(&socket) else { continue };
                let still = Arc::new(AtomicBool::new(false));
                all.lock().unwrap().push(still.clone());
                for (from, to) in [
                    (near.try_clone().unwrap(), far.try_clone().unwrap()),
                    (far.try_clone().unwrap(), near.try_clone().unwrap()),
                ] {
                    let still = still.clone();
                    std::thread::spawn(move || carry(from, to, &still));
                }
            }
        });
        Self { path, carried }
    }

    /// The connections that there are carry nothing any more; later ones do.
    fn stand_still(&self) {
        self.carried.lock().unwrap().iter().for_each(|still| still.store(true, Ordering::SeqCst));
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, still: &AtomicBool) {
    let mut buffer = [0; 4096];
    while let Ok(count) = from.read(&mut buffer) {
        if still.load(Ordering::SeqCst) {
            if count == 0 {
                // What stands still does not end either.
                std::mem::forget(to);
                return;
            }
        } else if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Whoever waited at the other end is told.
    to.shutdown(std::net::Shutdown::Both).ok();
}

/// 165: the connection stands still without an end, as through a dead proxy, while the turn ends. The command line's own reader
/// notices that nothing comes, not even a heartbeat, and sees the end on another connection.
#[test]
fn a_reader_leaves_a_connection_that_stands_still_and_sees_the_end() {
    let script = "on prompt go\n  say part\n  wait-for gate $root/first\n  say more\n  wait-for gate $root/second\n  say whole\n";
    let played = Played::new("acp", script);
    let mut session = played.session("go");
    session.until("text", is("item.delta"));
    let relay = Relay::before(&played.host.socket, played.root("relay"));
    let listening = played.world.home.mainstay_home().join("listening.json");
    let mut address: Value = serde_json::from_slice(&std::fs::read(&listening).unwrap()).unwrap();
    address["socket"] = json!(relay.path);
    address["pid"] = json!(std::process::id());
    std::fs::write(&listening, address.to_string()).unwrap();

    let mut attached = reader(&played, &["attach", "--json", &session.id]);
    let mut printed = reader(&played, &["events", "--follow", "--json", &session.id]);
    let mut of_attached = lines(&mut attached);
    let mut of_printed = lines(&mut printed);
    let watch = end_at_the_deadline(&[&attached, &printed]);
    // It shows what there is once it knows where to go on from.
    assert!(of_attached.next().is_some(), "it shows what there is");
    open_gate(&played.root("first"));
    let more = |line: String| line.contains("\"item.delta\"") && line.contains("more");
    assert!(of_attached.any(more), "it reads what comes");
    assert!(of_printed.any(more), "it reads what comes");
    relay.stand_still();
    open_gate(&played.root("second"));
    session.ended("completed");
    // Until the one that stays is ended here, or at the deadline.
    let mut seen = Vec::new();
    for line in of_attached {
        let over = line.contains("\"turn.ended\"");
        seen.push(line);
        if over {
            break;
        }
    }
    let ended = seen.iter().filter(|line| line.contains("\"turn.ended\"")).count();
    assert_eq!(ended, 1, "the reader never saw the end: {seen:?}");
    assert!(!seen.iter().any(|line| line.contains("\"turn.started\"")), "it began anew: {seen:?}");
    attached.kill().unwrap();
    attached.wait().unwrap();
    // The plain printer says that it was cut off, and where to go on.
    assert_eq!(of_printed.count(), 0);
    assert_eq!(printed.wait().unwrap().code(), Some(NO_HOST));
    watch.join().unwrap();
    played.end();
}

fn reader(played: &Played, arguments: &[&str]) -> Child {
    crate::command_line::command(&played.world, arguments).stdout(Stdio::piped()).spawn().unwrap()
}

fn lines(reader: &mut Child) -> impl Iterator<Item = String> + use<> {
    BufReader::new(reader.stdout.take().unwrap()).lines().map_while(Result::ok)
}

/// Ends readers that wait for ever, so that it shows as the end of their lines.
fn end_at_the_deadline(readers: &[&Child]) -> JoinHandle<()> {
    let pids: Vec<i32> = readers.iter().map(|reader| i32::try_from(reader.id()).unwrap()).collect();
    std::thread::spawn(move || {
        let all_gone = || (!pids.iter().any(|pid| crate::support::is_alive(*pid))).then_some(());
        if wait_for(DEADLINE * 2, all_gone).is_none() {
            pids.iter()
                .filter(|pid| crate::support::is_alive(**pid))
                .for_each(|pid| crate::support::kill(*pid));
        }
    })
}
