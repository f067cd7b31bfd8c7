//! A session whose agent is brought into a state, whichever agent it is, and how its journal is waited for and told.

use super::invariants;
use super::journal::{Names, Told, tell};
use super::report::Seen;
use crate::support::{DEADLINE, Follower, World, agent_pid, is, send, show};
use mainstay_testkit::http::{Client, Response, Sse};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};

/// What each session was told before it came into its state.
pub(super) const FIRST: &str = "SAY first";
/// What is sent by an intervention.
pub(super) const EXTRA: &str = "SAY extra";
/// What is sent when all is settled.
pub(super) const NEXT: &str = "SAY next";

/// What the session is in the middle of.
pub(super) struct Work<'a> {
    /// The message that brought it there; none: something else did.
    pub(super) prompt: Option<&'a str>,
    /// Its turn.
    pub(super) turn: &'a str,
}

/// A session after its first turn.
pub(super) struct Seat {
    pub(super) world: World,
    pub(super) host: HostProcess,
    pub(super) session: String,
    pub(super) follower: Follower,
    pub(super) sse: Sse,
    pub(super) pid: i32,
    /// Accepted messages, in order.
    pub(super) sent: Vec<&'static str>,
}

impl Seat {
    /// Creates the session as `body` says, and waits for the end of its first turn.
    pub(super) fn take(world: World, mut body: Value) -> Self {
        let host = world.start();
        body["cwd"] = world.workspace().into();
        body["prompt"] = FIRST.into();
        let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
        let session = made["id"].as_str().expect("an id").to_owned();
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        follower.until(&mut sse, "the first turn's end", is("turn.ended"));
        let pid = agent_pid(follower.of_type("process.started")[0]);
        Self { world, host, session, follower, sse, pid, sent: vec![FIRST] }
    }

    /// Sends a message that is to be accepted.
    pub(super) fn send(&mut self, content: &'static str) {
        send(&self.client(), &self.session, content);
        self.sent.push(content);
    }

    /// Sends [`EXTRA`]; gives the code where it is refused.
    pub(super) fn send_extra(&mut self, delivery: &str) -> Option<String> {
        let reply = self.post("messages", &json!({ "content": EXTRA, "delivery": delivery }));
        if reply.status == 409 {
            return Some(reply.json()["code"].as_str().expect("a code").to_owned());
        }
        reply.expect_status(202);
        self.sent.push(EXTRA);
        None
    }

    /// Kills the host; the next one takes the process over.
    pub(super) fn kill_host(&mut self) {
        self.host.kill9();
        self.follower.until_broken(&mut self.sse);
        self.host = self.world.start();
        self.sse = self.follower.open(&self.host.client(), &self.session);
        self.until("the process taken over", is("process.adopted"));
    }

    /// Another session wants to adopt the conversation, and does not get it.
    pub(super) fn refused_to_another_session(&self, agent: &str) {
        let thread = &self.follower.of_type("thread.linked")[0]["thread"];
        let body = json!({ "agent": agent, "cwd": self.world.workspace(), "prompt": "SAY stolen",
                           "adopt": { "thread": thread } });
        let refused = self.client().post("/v1/sessions", &body).expect("answers");
        assert_eq!(refused.status, 409, "{}", refused.text());
    }

    pub(super) fn client(&self) -> Client {
        self.host.client()
    }

    #[track_caller]
    pub(super) fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.follower.until(&mut self.sse, what, wanted)
    }

    /// As [`until`](Self::until), where it may have come already.
    #[track_caller]
    pub(super) fn until_there(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        match self.follower.events.iter().find(|event| wanted(event)) {
            Some(event) => event.clone(),
            None => self.until(what, wanted),
        }
    }

    pub(super) fn post(&self, what: &str, body: &Value) -> Response {
        let path = format!("/v1/sessions/{}/{what}", self.session);
        self.client().post(&path, body).expect("answers")
    }

    /// Waits until the message is taken; gives how.
    pub(super) fn taken(&mut self, message: &str) -> Value {
        let accepted = self.until_there("the message", |event| {
            event["type"] == "submission.accepted" && event["content"][0]["text"] == message
        });
        let submission = accepted["submission"].clone();
        self.until_there("the message taken", |event| {
            event["type"] == "submission.taken" && event["submission"] == submission
        })
    }

    /// Waits until the turn that took the message is over; gives its end.
    pub(super) fn answered(&mut self, message: &str) -> Value {
        let turn = self.taken(message)["turn"].clone();
        self.until_there("its turn's end", |event| event["type"] == "turn.ended" && event["turn"] == turn)
    }

    /// Waits until nothing runs, and has read the journal up to there.
    pub(super) fn until_idle(&mut self) {
        let mut last = Value::Null;
        let there = wait_for(DEADLINE, || {
            last = show(&self.host.client(), &self.session);
            (last["status"] == "idle").then_some(())
        });
        if there.is_none() {
            let events: Vec<String> = self.follower.events.iter().map(Value::to_string).collect();
            panic!("it does not become idle: {last}\n{}", events.join("\n"));
        }
        let head = last["cursor"].clone();
        while self.follower.events.last().expect("a journal")["seq"].as_u64() < head["seq"].as_u64() {
            self.until("the head", |_| true);
        }
    }

    /// What the cell saw: from the intervention (`before`) to the moment when all was settled, and from there to the end
    /// of the `next` message's turn.
    pub(super) fn see(
        &self,
        work: &Work<'_>,
        places: (usize, usize),
        next: &Value,
        refusal: Option<String>,
    ) -> Seen {
        let (before, settled) = places;
        let names: Names<'_> =
            &[(FIRST, "first"), (work.prompt.unwrap_or("no work"), "work"), (EXTRA, "extra"), (NEXT, "next")];
        let events = &self.follower.events;
        let told = tell(events, names);
        let over = events.iter().position(|event| event == next).expect("its turn's end");
        let mut journal = told.between(before..settled);
        if let Some(code) = refusal {
            journal.insert(0, format!("refused ({code})"));
        }
        let processes = self.follower.of_type("process.started").len();
        let process =
            if processes == 1 { "the same".to_owned() } else { told.last("process gone", 0..settled) };
        Seen {
            journal: Told::line(&journal),
            turn: told.last(&format!("{} ", work.turn), 0..settled),
            messages: Told::line(&[told.ends_of("work"), told.ends_of("extra")].concat()),
            asked: Told::line(&told.ends_of_asked(0..settled)),
            process,
            next: Told::line(&told.between(settled..over + 1)),
        }
    }

    /// What the agent was to run in the workspace, it ran once at most.
    pub(super) fn ran_once(&self) {
        let ran = std::fs::read_to_string(self.world.home.workspace().join("ran")).unwrap_or_default();
        assert!(ran.lines().count() <= 1, "a command ran more than once");
    }

    /// Stops the session, and checks what holds in every cell.
    pub(super) fn end(&mut self) {
        self.post("stop", &json!({})).expect_status(202);
        self.until("the end", is("lease.released"));
        invariants::check(&self.world, &self.client(), &self.session, &self.follower, &self.sent);
        self.ran_once();
    }
}
