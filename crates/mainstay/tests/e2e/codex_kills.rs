//! Twenty sessions in three Codex processes under mixed work, and the host killed twenty times in the middle of it: nothing
//! is lost, nothing is done twice, every approval is answered once, and both readers see the same.

use crate::chance::Chance;
use crate::feed::FeedReader;
use crate::matrix::invariants;
use crate::support::{DEADLINE, Follower, World, agent_pid, is, is_alive, show};
use mainstay_testkit::http::{Client, Response, Sse};
use mainstay_testkit::mainstay::{HostProcess, StartError};
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const SESSIONS: usize = 20;
const PROCESSES: usize = 3;
/// So that twenty sessions need three processes.
const SESSIONS_PER_PROCESS: &str = "7";
const KILLS: usize = 20;
/// What is done between two kills, at most: the host may die before.
const ACTIONS: usize = 20;
/// Changes which schedule runs where nobody says so.
const SEED: u64 = 20;

/// Where a host dies by itself, beside the kills from outside between two actions.
const POINTS: [&str; 4] =
    ["committed_not_delivered", "delivered_not_acknowledged", "read_not_committed", "answered_not_delivered"];

struct Session {
    id: String,
    follower: Follower,
    sse: Sse,
    /// Messages that are certainly accepted, in order.
    sent: Vec<String>,
}

/// What a client asked and got no answer for: it asks again under the same key.
struct Unanswered {
    session: usize,
    path: String,
    key: String,
    body: Value,
}

struct Storm {
    world: World,
    chance: Chance,
    host: HostProcess,
    sessions: Vec<Session>,
    feed: FeedReader,
    feed_stream: Sse,
    unanswered: Vec<Unanswered>,
    /// Numbers messages and keys.
    count: usize,
    /// How often what was done.
    done: BTreeMap<&'static str, usize>,
    /// Approvals that were accepted, by what they let run.
    gates: Vec<String>,
}

impl Storm {
    fn begin() -> Self {
        let chance = Chance::new(SEED);
        let world = World::new();
        crate::host_keys::set_for_agent(&world, "codex", "sessions_per_process", SESSIONS_PER_PROCESS);
        let host = world.start();
        let feed = FeedReader::default();
        let feed_stream = feed.open(&host.client());
        let mut sessions: Vec<Session> = (0..SESSIONS)
            .map(|number| {
                let first = format!("SAY born {number}");
                let id = world.create(&host, "codex", &first);
                let follower = Follower::default();
                let sse = follower.open(&host.client(), &id);
                Session { id, follower, sse, sent: vec![first] }
            })
            .collect();
        for session in &mut sessions {
            session.follower.until(&mut session.sse, "the first turn's end", is("turn.ended"));
        }
        Self {
            world,
            chance,
            host,
            sessions,
            feed,
            feed_stream,
            unanswered: Vec::new(),
            count: 0,
            done: BTreeMap::new(),
            gates: Vec::new(),
        }
    }

    fn client(&self) -> Client {
        self.host.client()
    }

    fn did(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    /// Asks, and remembers to ask again where no answer comes.
    fn ask(&mut self, session: usize, what: &str, body: Value) -> io::Result<Response> {
        self.count += 1;
        let path = format!("/v1/sessions/{}/{what}", self.sessions[session].id);
        let key = format!("key-{}", self.count);
        let answer = self.client().post_once(&path, &key, &body);
        match &answer {
            Ok(answer) => self.answered(session, &path, &body, answer),
            Err(_) => self.unanswered.push(Unanswered { session, path, key, body }),
        }
        answer
    }

    fn answered(&mut self, session: usize, path: &str, body: &Value, answer: &Response) {
        if path.ends_with("/messages") {
            assert_eq!(answer.status, 202, "{}", answer.text());
            let text = body["content"].as_str().expect("a text").to_owned();
            self.sessions[session].sent.push(text);
        } else {
            // What it was about may be over by now.
            assert!(matches!(answer.status, 200 | 202 | 404 | 409), "{path}: {}", answer.text());
        }
    }

    fn message(&mut self, session: usize, what: &'static str, content: &str) -> io::Result<()> {
        let sent = self.ask(session, "messages", json!({ "content": content }));
        self.did(what);
        sent.map(drop)
    }

    /// Does something to a session, by what it is doing.
    fn act(&mut self) -> io::Result<()> {
        let session = self.chance.below(self.sessions.len());
        let path = format!("/v1/sessions/{}", self.sessions[session].id);
        let shown = self.client().get(&path)?.expect_status(200).json();
        let number = self.count;
        if shown["open_requests"] != 0 {
            return match self.chance.below(10) {
                0..6 => self.answer_one(session),
                6..8 => self.message(session, "steer an approval", &format!("SAY steered {number}")),
                _ => self.stop(session),
            };
        }
        if !shown["turn"].is_null() {
            return match self.chance.below(10) {
                0..5 => self.message(session, "steer", &format!("SAY steered {number}")),
                5..7 => self.stop(session),
                _ => {
                    self.let_go();
                    Ok(())
                }
            };
        }
        let (what, content) = match self.chance.below(10) {
            0..2 => ("short", format!("SAY word {number}")),
            2..4 => ("stream", format!("DELTAS 400 8 ;; SAY streamed {number}")),
            4..6 => {
                let gate = format!("gate-{number}");
                let content = format!("GATED 6 {gate} ;; SAY gated {number}");
                self.world.model.release(&gate, 2);
                self.gates.push(gate);
                ("held stream", content)
            }
            6..8 => ("command", format!("RUN echo ran-{number} >> ran ;; SAY ran {number}")),
            _ => ("approval", format!("RUNESC echo ran-{number} >> ran ;; SAY allowed {number}")),
        };
        self.message(session, what, &content)
    }

    fn answer_one(&mut self, session: usize) -> io::Result<()> {
        let path = format!("/v1/sessions/{}/requests", self.sessions[session].id);
        let open = self.client().get(&path)?.expect_status(200).json();
        let open = open["requests"].as_array().and_then(|open| {
            let pending = open.iter().find(|request| request["state"] == "pending")?;
            pending["id"].as_str().map(str::to_owned)
        });
        let Some(request) = open else { return Ok(()) };
        let option = if self.chance.percent(80) { "accept" } else { "decline" };
        self.did("answer");
        self.ask(session, &format!("requests/{request}/answer"), json!({ "option_id": option })).map(drop)
    }

    fn stop(&mut self, session: usize) -> io::Result<()> {
        self.did("stop");
        self.ask(session, "interrupt", json!({})).map(drop)
    }

    /// Lets all streams that are held go on.
    fn let_go(&mut self) {
        for gate in std::mem::take(&mut self.gates) {
            self.world.model.open(&gate);
        }
    }

    /// Works on until the host is gone: by itself at a point within it, or killed after so many actions.
    fn work_until_killed(&mut self) {
        let actions = 1 + self.chance.below(ACTIONS);
        for _ in 0..actions {
            if self.act().is_err() {
                self.did("died at a point");
                break;
            }
        }
        self.host.kill9();
        for session in &mut self.sessions {
            session.follower.until_broken(&mut session.sse);
        }
        self.feed.until_broken(&mut self.feed_stream);
    }

    /// Starts the next host, which may be one that is to die at a point; and asks again what was not answered.
    fn come_back(&mut self, to_die: bool) {
        let point = format!("{}:{}", self.chance.pick(&POINTS), 1 + self.chance.below(12));
        let env: &[(&str, &str)] = if to_die { &[("MAINSTAY_FAULT_POINT", &point)] } else { &[] };
        self.host = match HostProcess::try_start(&self.world.home, crate::support::mainstay(), env) {
            Ok(host) => host,
            Err(StartError::Ended { .. }) if to_die => {
                // It died while it took the agents over: that is a kill too.
                self.did("died while it came back");
                self.world.start()
            }
            Err(error) => panic!("{error}"),
        };
        self.reopen();
        for again in std::mem::take(&mut self.unanswered) {
            match self.client().post_once(&again.path, &again.key, &again.body) {
                Ok(answer) => self.answered(again.session, &again.path, &again.body, &answer),
                Err(_) => self.unanswered.push(again),
            }
        }
    }

    /// Opens the streams of a host that may be dying: what cannot be opened is opened at the next.
    fn reopen(&mut self) {
        let client = self.client();
        for session in &mut self.sessions {
            let Ok(sse) = session.follower.try_open(&client, &session.id) else { continue };
            session.sse = sse;
        }
        if let Ok(stream) = self.feed.try_open(&client) {
            self.feed_stream = stream;
        }
    }

    /// Lets everything come to its end.
    fn settle(&mut self) {
        self.let_go();
        for session in 0..self.sessions.len() {
            let id = self.sessions[session].id.clone();
            let idle = wait_for(DEADLINE, || {
                let shown = show(&self.client(), &id);
                if shown["open_requests"] != 0 {
                    self.answer_one(session).expect("answers");
                }
                if shown["reason"] == "queue paused" {
                    // By a stop, also one whose turn ended only now.
                    self.ask(session, "queue/resume", json!({})).expect("answers");
                }
                let quiet = shown["status"] == "idle" && shown["queue_length"] == 0;
                quiet.then(|| shown["cursor"]["seq"].as_u64().expect("the head"))
            });
            let Some(head) = idle else {
                panic!("{} does not come to rest: {}", id, show(&self.client(), &id))
            };
            let Session { follower, sse, .. } = &mut self.sessions[session];
            while follower.events.last().and_then(|event| event["seq"].as_u64()) < Some(head) {
                follower.until(sse, "the head", |_| true);
            }
        }
    }
}

#[test]
fn twenty_kills_of_the_host_under_twenty_sessions_in_three_processes_lose_nothing() {
    let mut storm = Storm::begin();
    let tokens: BTreeSet<String> = storm
        .sessions
        .iter()
        .map(|session| session.follower.of_type("process.started")[0]["process"].to_string())
        .collect();
    assert_eq!(tokens.len(), PROCESSES);
    for kill in 0..KILLS {
        storm.work_until_killed();
        let last = kill + 1 == KILLS;
        let to_die = !last && storm.chance.percent(50);
        storm.come_back(to_die);
    }
    storm.settle();
    println!("{:?}", storm.done);

    // A last word in each conversation: the model's request for it has all of the conversation.
    for number in 0..SESSIONS {
        storm.message(number, "last", &format!("SAY last {number}")).expect("answers");
    }
    storm.settle();
    for session in &mut storm.sessions {
        let started = session.follower.of_type("process.started");
        assert_eq!(started.len(), 1, "{} got a second process", session.id);
        assert!(is_alive(agent_pid(started[0])), "an agent was ended");
    }
    for number in 0..SESSIONS {
        storm.ask(number, "stop", json!({})).expect("answers").expect_status(202);
    }
    for session in &mut storm.sessions {
        session.follower.until(&mut session.sse, "the end", is("lease.released"));
    }
    judge(&mut storm);
    let Storm { world, host, .. } = storm;
    world.end(host);
}

fn judge(storm: &mut Storm) {
    let client = storm.client();
    let conversations = invariants::conversations(&storm.world);
    for session in &storm.sessions {
        let sent: Vec<&str> = session.sent.iter().map(String::as_str).collect();
        invariants::check_given(&conversations, &client, &session.id, &session.follower, &sent);
    }
    // Each command ran once at most, and once where it is said to have run.
    let ran = std::fs::read_to_string(storm.world.home.workspace().join("ran")).unwrap_or_default();
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for line in ran.lines() {
        *times.entry(line).or_default() += 1;
    }
    assert!(times.values().all(|times| *times == 1), "a command ran twice: {times:?}");
    let mut completed = 0;
    for session in &storm.sessions {
        let items = session.follower.of_type("item.completed");
        for item in items.iter().filter(|item| item["status"] == "completed") {
            let started = session.follower.of_type("item.started");
            let started = started.iter().find(|event| event["item"] == item["item"]);
            let title = started.and_then(|event| event["title"].as_str()).unwrap_or_default();
            let Some(command) = title.split_whitespace().find(|word| word.starts_with("ran-")) else {
                continue;
            };
            assert!(times.contains_key(command), "{command} is said to have run, and did not");
            completed += 1;
        }
    }
    // The feed, read across all kills, is the feed as pages have it, and says of each session what its journal says.
    let feed = &mut storm.feed;
    let paged = FeedReader::pages(&client, 100);
    while feed.entries.len() < paged.len() {
        feed.until(&mut storm.feed_stream, "the rest of the feed", |_| true);
    }
    assert_eq!(feed.entries[..paged.len()], paged[..]);
    for session in &storm.sessions {
        for kind in ["session.created", "request.opened", "request.closed", "turn.ended"] {
            let told: Vec<&Value> = feed.of(&session.id, kind).iter().map(|entry| &entry["event"]).collect();
            assert_eq!(told, session.follower.of_type(kind), "{kind} of {}", session.id);
        }
    }
    let answers: usize = storm.sessions.iter().map(|of| of.follower.of_type("request.answered").len()).sum();
    let messages: usize = storm.sessions.iter().map(|of| of.sent.len()).sum();
    println!("{messages} messages, {completed} commands, {answers} answers, {} feed entries", paged.len());
}
