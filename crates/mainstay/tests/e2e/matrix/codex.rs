//! Codex: how each state is reached, how each intervention is made, and what is then seen.

use super::codex_table;
use super::invariants;
use super::journal::{Names, Told, tell};
use super::report::{Report, Seen};
use crate::keepers::{self, Stopped};
use crate::support::{DEADLINE, Follower, World, agent_pid, answer, interrupt, is, kill, send, show};
use mainstay_testkit::agents::codex_binary;
use mainstay_testkit::codex::CodexHome;
use mainstay_testkit::http::{Client, Response, Sse};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::peer::Peer;
use mainstay_testkit::wait::{wait_for, wait_until};
use serde_json::{Value, json};
use std::process::{Command, Stdio};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    NotStarted,
    Streaming,
    Command,
    Approval,
    Question,
    Compacting,
    Child,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Intervention {
    Interrupt,
    Steer,
    Queue,
    HostKilled,
    KeeperKilled,
    AgentKilled,
    Elsewhere,
    TakenElsewhere,
}

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::NotStarted => "before turn/started",
            Self::Streaming => "streaming",
            Self::Command => "command running",
            Self::Approval => "approval open",
            Self::Question => "user input open",
            Self::Compacting => "compacting",
            Self::Child => "child running",
        }
    }

    const fn about(self) -> &'static str {
        match self {
            Self::Idle => "`t1` is over, the agent waits.",
            Self::NotStarted => {
                "`work` is written to Codex, which has not read it (the process is stopped until after the \
                                 intervention)."
            }
            Self::Streaming => "Codex says a part of its answer.",
            Self::Command => "A command runs in the sandbox, and waits for a file.",
            Self::Approval => "A command asks to leave the sandbox.",
            Self::Question => "In plan mode, the model asks a question.",
            Self::Compacting => "The user asked for a compaction; the model works on the summary.",
            Self::Child => "A sub-agent says a part of its answer; its parent waits for it.",
        }
    }

    /// What the work is that the session is in the middle of; none: no message asks for it.
    const fn prompt(self) -> Option<&'static str> {
        match self {
            Self::Idle | Self::Compacting => None,
            Self::NotStarted => Some("HOLD door ;; SAY worked"),
            Self::Streaming => Some("GATED 4 text"),
            Self::Command => Some(COMMAND),
            Self::Approval => Some("RUNESC echo ran >> ran ;; SAY worked"),
            Self::Question => Some("ASK which colour? ;; SAY worked"),
            Self::Child => Some("SPAWN GATED 4 text :: SAY child done ;; WAITAGENT ;; SAY worked"),
        }
    }
}

impl Intervention {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Steer => "steer",
            Self::Queue => "queue",
            Self::HostKilled => "host kill -9",
            Self::KeeperKilled => "keeper kill -9",
            Self::AgentKilled => "agent kill -9",
            Self::Elsewhere => "resume elsewhere",
            Self::TakenElsewhere => "agent kill -9, resume elsewhere",
        }
    }

    const fn about(self) -> &'static str {
        match self {
            Self::Interrupt => "a stop of the session; nothing is let go on or answered.",
            Self::Steer => {
                "`extra` with `delivery: steer`; then the work is let go on, and what is asked is answered."
            }
            Self::Queue => "`extra` with `delivery: queue`; then as before.",
            Self::HostKilled => "the host is killed and started again; then as before.",
            Self::KeeperKilled => "the keeper of the agent is killed; `next` goes to a new process.",
            Self::AgentKilled => "the agent is killed; `next` goes to a new process.",
            Self::Elsewhere => {
                "another Codex process asks for the thread (`thread/resume`) and is refused, and so is another \
                                session that wants to adopt it; then the work is let go on."
            }
            Self::TakenElsewhere => {
                "the agent is killed and another Codex process takes the thread: `next` is held until \
                                     that one is gone and the user says `recover`."
            }
        }
    }
}

const STATES: [State; 8] = [
    State::Idle,
    State::NotStarted,
    State::Streaming,
    State::Command,
    State::Approval,
    State::Question,
    State::Compacting,
    State::Child,
];

const INTERVENTIONS: [Intervention; 8] = [
    Intervention::Interrupt,
    Intervention::Steer,
    Intervention::Queue,
    Intervention::HostKilled,
    Intervention::KeeperKilled,
    Intervention::AgentKilled,
    Intervention::Elsewhere,
    Intervention::TakenElsewhere,
];

const FIRST: &str = "SAY first";
const EXTRA: &str = "SAY extra";
const NEXT: &str = "SAY next";

/// Waits for a file; yields after the longest time that Codex allows, which no cell takes.
const COMMAND: &str = concat!(
    r#"TOOL exec_command {"cmd": "echo ran >> ran; while [ ! -e go ]; do sleep 0.1; done", "#,
    r#""yield_time_ms": 30000} ;; SAY worked"#
);

/// What Codex asks of the model to compact a conversation.
const SUMMARIZE: &str = "HOLD summary ;; SAY summary";

/// The model that offers sub-agents whose parent waits for them.
const MODEL_WITH_CHILDREN: &str = "gpt-5.4";

/// A session in a state.
struct Cell {
    state: State,
    world: World,
    host: HostProcess,
    session: String,
    follower: Follower,
    sse: Sse,
    pid: i32,
    /// Accepted messages, in order.
    sent: Vec<&'static str>,
    request: Option<String>,
    /// The agent stands still until this is dropped.
    still: Option<Stopped>,
    /// Another process of Codex that has the conversation, until this is dropped.
    elsewhere: Option<Peer>,
}

impl Cell {
    /// A session after its first turn, and then in the middle of what the state says.
    fn reach(state: State) -> Self {
        let world = World::new();
        let codex = world.home.root().join("codex-home/codex/config.toml");
        let config = std::fs::read_to_string(&codex).expect("a configuration");
        std::fs::write(&codex, format!("compact_prompt = \"{SUMMARIZE}\"\n{config}")).expect("written");
        let host = world.start();
        let mut body = json!({ "agent": "codex", "cwd": world.workspace(), "prompt": FIRST });
        if state == State::Child {
            body["options"] = json!({ "model": MODEL_WITH_CHILDREN });
        }
        let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
        let session = made["id"].as_str().expect("an id").to_owned();
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        follower.until(&mut sse, "the first turn's end", is("turn.ended"));
        let pid = agent_pid(follower.of_type("process.started")[0]);
        let mut cell = Self {
            state,
            world,
            host,
            session,
            follower,
            sse,
            pid,
            sent: vec![FIRST],
            request: None,
            still: None,
            elsewhere: None,
        };
        cell.go_into_it();
        cell
    }

    fn go_into_it(&mut self) {
        match self.state {
            State::NotStarted => {
                self.still = Some(Stopped::stop(self.pid));
            }
            State::Question => {
                let path = format!("/v1/sessions/{}", self.session);
                let plan = json!({ "options": { "mode": "plan" } });
                self.client().patch(&path, &plan).expect("answers").expect_status(200);
            }
            State::Compacting => {
                self.post("compact", &json!({})).expect_status(202);
            }
            _ => {}
        }
        if let Some(prompt) = self.state.prompt() {
            send(&self.client(), &self.session, prompt);
            self.sent.push(prompt);
        }
        match self.state {
            State::Idle => {}
            State::NotStarted => {
                self.until("the message given", |event| {
                    event["type"] == "submission.delivered" && event["submission"] != Value::Null
                });
            }
            State::Streaming => {
                self.world.model.release("text", 2);
                self.until("text", is("item.delta"));
                self.world.model.wait_at_gate("text", DEADLINE);
            }
            State::Command => {
                let ran = self.world.home.workspace().join("ran");
                self.until("the command", |event| {
                    event["type"] == "item.started" && event["tool_kind"] == "execute"
                });
                wait_until(DEADLINE, "the command runs", || ran.exists());
            }
            State::Approval | State::Question => {
                let opened = self.until("the request", is("request.opened"));
                self.request = opened["request"].as_str().map(str::to_owned);
            }
            State::Compacting => {
                self.until("its turn", is("turn.started"));
                wait_until(DEADLINE, "the summary is asked for", || {
                    self.world.model.requests_prompted_by(SUMMARIZE) == 1
                });
            }
            State::Child => {
                self.world.model.release("text", 2);
                self.until("the child", is("child.started"));
                self.world.model.wait_at_gate("text", DEADLINE);
                // The parent waits for it: the call is with Codex.
                self.until("the wait", |event| {
                    event["type"] == "item.started" && event.to_string().contains("wait")
                });
            }
        }
    }

    fn client(&self) -> Client {
        self.host.client()
    }

    #[track_caller]
    fn until(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.follower.until(&mut self.sse, what, wanted)
    }

    /// As [`until`](Self::until), where it may have come already.
    #[track_caller]
    fn until_there(&mut self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        match self.follower.events.iter().find(|event| wanted(event)) {
            Some(event) => event.clone(),
            None => self.until(what, wanted),
        }
    }

    fn post(&self, what: &str, body: &Value) -> Response {
        let path = format!("/v1/sessions/{}/{what}", self.session);
        self.client().post(&path, body).expect("answers")
    }

    /// Makes the intervention; gives what it was answered where that is all there is.
    fn intervene(&mut self, intervention: Intervention) -> Option<String> {
        match intervention {
            Intervention::Interrupt => {
                let reply = interrupt(&self.client(), &self.session);
                assert_eq!(reply["recorded"], true, "{reply}");
                self.still = None;
            }
            Intervention::Steer | Intervention::Queue => {
                let delivery = if intervention == Intervention::Steer { "steer" } else { "queue" };
                let reply = self.post("messages", &json!({ "content": EXTRA, "delivery": delivery }));
                if reply.status == 409 {
                    return Some(reply.json()["code"].as_str().expect("a code").to_owned());
                }
                reply.expect_status(202);
                self.sent.push(EXTRA);
                if intervention == Intervention::Steer && self.state == State::Streaming {
                    // It cuts what the model says; let go before, that would be over.
                    self.taken(EXTRA);
                }
                self.let_go();
            }
            Intervention::HostKilled => {
                self.host.kill9();
                self.follower.until_broken(&mut self.sse);
                self.host = self.world.start();
                self.sse = self.follower.open(&self.host.client(), &self.session);
                self.until("the process taken over", is("process.adopted"));
                self.let_go();
            }
            Intervention::KeeperKilled => {
                kill(keepers::pid(&self.world, &self.client(), &self.session));
                self.settled_as_gone();
            }
            Intervention::AgentKilled => {
                kill(self.pid);
                self.settled_as_gone();
            }
            Intervention::TakenElsewhere => {
                kill(self.pid);
                self.settled_as_gone();
                self.elsewhere = Some(self.resumed_elsewhere());
            }
            Intervention::Elsewhere => {
                self.refused_elsewhere();
                self.let_go();
            }
        }
        None
    }

    fn settled_as_gone(&mut self) {
        self.still = None;
        self.until("the lease's end", is("lease.released"));
        self.open_gates();
    }

    /// Another process of Codex, which asks for the conversation; and what it is answered.
    fn resume_elsewhere(&self) -> (Peer, Value) {
        let thread = self.follower.of_type("thread.linked")[0]["thread"].clone();
        let folder = self.world.home.root().join("codex-home");
        let home = CodexHome { home: folder.join("home"), codex_home: folder.join("codex") };
        let mut command = Command::new(codex_binary());
        command.arg("app-server").env_clear().envs(home.env());
        command.current_dir(self.world.home.workspace()).stderr(Stdio::null());
        let mut codex = Peer::start(command);
        let client = json!({ "name": "other", "title": "Other", "version": "0" });
        codex.request("initialize", json!({ "clientInfo": client, "capabilities": {} }), DEADLINE);
        codex.notify("initialized", json!({}));
        let answer = codex.request("thread/resume", json!({ "threadId": thread }), DEADLINE);
        (codex, answer)
    }

    fn resumed_elsewhere(&self) -> Peer {
        let (codex, answer) = self.resume_elsewhere();
        assert!(answer["result"]["thread"].is_object(), "{answer}");
        codex
    }

    /// Another process of Codex and another session of the host ask for the conversation, and do not get it.
    fn refused_elsewhere(&self) {
        let (_codex, answer) = self.resume_elsewhere();
        let said = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(said.contains("active writer"), "Codex let another process have it: {answer}");
        let thread = &self.follower.of_type("thread.linked")[0]["thread"];
        let body = json!({ "agent": "codex", "cwd": self.world.workspace(), "prompt": "SAY stolen",
                           "adopt": { "thread": thread } });
        let refused = self.client().post("/v1/sessions", &body).expect("answers");
        assert_eq!(refused.status, 409, "{}", refused.text());
    }

    fn open_gates(&self) {
        for gate in ["door", "text", "summary"] {
            self.world.model.open(gate);
        }
    }

    /// Lets the work go on to its end.
    fn let_go(&mut self) {
        self.still = None;
        self.open_gates();
        std::fs::write(self.world.home.workspace().join("go"), "").expect("written");
        let Some(request) = &self.request else { return };
        if self.state == State::Question {
            let answers = json!({ "answers": { "q1": { "selected": ["Beta"] } } });
            self.post(&format!("requests/{request}/answer"), &answers).expect_status(200);
        } else {
            answer(&self.client(), &self.session, request, "accept").expect_status(200);
        }
    }

    /// Waits until the message is taken; gives how.
    fn taken(&mut self, message: &str) -> Value {
        let accepted = self.until_there("the message", |event| {
            event["type"] == "submission.accepted" && event["content"][0]["text"] == message
        });
        let submission = accepted["submission"].clone();
        self.until_there("the message taken", |event| {
            event["type"] == "submission.taken" && event["submission"] == submission
        })
    }

    /// Waits until the turn that took the message is over; gives its end.
    fn answered(&mut self, message: &str) -> Value {
        let turn = self.taken(message)["turn"].clone();
        self.until_there("its turn's end", |event| event["type"] == "turn.ended" && event["turn"] == turn)
    }

    /// Waits until nothing runs, and has read the journal up to there.
    fn until_idle(&mut self) {
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
    fn see(&self, before: usize, settled: usize, next: &Value, refusal: Option<String>) -> Seen {
        let names: Names<'_> = &[
            (FIRST, "first"),
            (self.state.prompt().unwrap_or("no work"), "work"),
            (EXTRA, "extra"),
            (NEXT, "next"),
        ];
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
            turn: told.last("t2 ", 0..settled),
            messages: Told::line(&[told.ends_of("work"), told.ends_of("extra")].concat()),
            asked: Told::line(&told.ends_of_asked(0..settled)),
            process,
            next: Told::line(&told.between(settled..over + 1)),
        }
    }

    /// What the agent was to run in the workspace, it ran once at most.
    fn ran_once(&self) {
        let ran = std::fs::read_to_string(self.world.home.workspace().join("ran")).unwrap_or_default();
        assert!(ran.lines().count() <= 1, "a command ran more than once");
    }

    /// Waits until nothing of what the intervention found is open.
    fn settle(&mut self) {
        if self.state != State::Idle {
            self.until_there("the turn's end", |event| {
                event["type"] == "turn.ended" && event["turn"] == "t2"
            });
        }
        if self.sent.contains(&EXTRA) {
            self.answered(EXTRA);
        }
        if self.state == State::Child {
            self.until_there("the child's end", is("child.ended"));
        }
        self.until_idle();
    }
}

/// Brings a session into the state, intervenes, and compares what is seen with the table.
fn check(state: State, intervention: Intervention) {
    let mut cell = Cell::reach(state);
    let before = cell.follower.events.len();
    let lost = matches!(
        intervention,
        Intervention::KeeperKilled | Intervention::AgentKilled | Intervention::TakenElsewhere
    );
    let refusal = cell.intervene(intervention);
    // What was not known to be taken is settled by the next message's start.
    if !(lost && state == State::NotStarted) {
        cell.settle();
    }
    let settled = cell.follower.events.len();
    send(&cell.client(), &cell.session, NEXT);
    cell.sent.push(NEXT);
    if cell.elsewhere.is_some() {
        cell.until("word of the other", is("session.recovering"));
        cell.until("the end of the process that was refused", is("lease.released"));
        cell.elsewhere = None;
        cell.post("recover", &json!({ "action": "abandon" })).expect_status(200);
    }
    let next = cell.answered(NEXT);
    cell.open_gates();
    cell.post("stop", &json!({})).expect_status(202);
    let gone = |event: &Value| event["type"] == "lease.released";
    cell.follower.until(&mut cell.sse, "the end", gone);

    let seen = cell.see(before, settled, &next, refusal);
    report().saw(state.name(), intervention.name(), &seen);
    invariants::check(&cell.world, &cell.client(), &cell.session, &cell.follower, &cell.sent);
    cell.ran_once();
    let expected = codex_table::expected(state, intervention);
    assert!(expected.contains(&seen), "{state:?} x {intervention:?}\nsaw {seen:#?}\nnot {expected:#?}");
    let Cell { world, host, .. } = cell;
    world.end(host);
}

const ABOUT: &str = "\
What becomes of a Codex session in each state when something is done to it, as its journal tells it. Each row is a test on the\n\
real CLI (`crates/mainstay/tests/e2e/matrix`); this page is generated from the table that those tests compare with. `first` is a\n\
message that was answered in turn `t1` before all this; `work` is the message that brought the session into the state, in turn\n\
`t2`; `extra` is sent by the intervention, and `next` after all is settled. A cell with two rows has a race in it that is\n\
Codex's own. In every cell it also holds that each message stands in what the model was given once if it was taken and never if\n\
not, that no command ran twice, that a reader who comes late and one who takes pages see the same history without a hole, that\n\
everything that began ended once when the session is stopped, and that no process is left.";

fn report() -> Report {
    Report {
        name: "codex-matrix",
        title: "Codex: each state under each intervention",
        about: ABOUT,
        states: STATES.iter().map(|state| (state.name(), state.about())).collect(),
        interventions: INTERVENTIONS.iter().map(|of| (of.name(), of.about())).collect(),
    }
}

#[test]
fn golden_document_of_the_codex_matrix() {
    let report = report();
    let text = report.render(|state, intervention| {
        let state = STATES.into_iter().find(|of| of.name() == state).expect("a state");
        let of = INTERVENTIONS.into_iter().find(|of| of.name() == intervention).expect("an intervention");
        let rows = codex_table::expected(state, of);
        assert!(!rows.is_empty(), "nothing is said of {state:?} x {of:?}");
        rows.iter().map(Seen::row).collect()
    });
    report.compare(&text);
}

macro_rules! cells {
    ($($test:ident: $state:ident $intervention:ident;)*) => {$(
        #[test]
        fn $test() {
            check(State::$state, Intervention::$intervention);
        }
    )*};
}

cells! {
    codex_idle_interrupt: Idle Interrupt;
    codex_idle_steer: Idle Steer;
    codex_idle_queue: Idle Queue;
    codex_idle_host_killed: Idle HostKilled;
    codex_idle_keeper_killed: Idle KeeperKilled;
    codex_idle_agent_killed: Idle AgentKilled;
    codex_idle_resumed_elsewhere: Idle Elsewhere;
    codex_idle_taken_elsewhere: Idle TakenElsewhere;
    codex_not_started_interrupt: NotStarted Interrupt;
    codex_not_started_steer: NotStarted Steer;
    codex_not_started_queue: NotStarted Queue;
    codex_not_started_host_killed: NotStarted HostKilled;
    codex_not_started_keeper_killed: NotStarted KeeperKilled;
    codex_not_started_agent_killed: NotStarted AgentKilled;
    codex_not_started_resumed_elsewhere: NotStarted Elsewhere;
    codex_not_started_taken_elsewhere: NotStarted TakenElsewhere;
    codex_streaming_interrupt: Streaming Interrupt;
    codex_streaming_steer: Streaming Steer;
    codex_streaming_queue: Streaming Queue;
    codex_streaming_host_killed: Streaming HostKilled;
    codex_streaming_keeper_killed: Streaming KeeperKilled;
    codex_streaming_agent_killed: Streaming AgentKilled;
    codex_streaming_resumed_elsewhere: Streaming Elsewhere;
    codex_streaming_taken_elsewhere: Streaming TakenElsewhere;
    codex_command_interrupt: Command Interrupt;
    codex_command_steer: Command Steer;
    codex_command_queue: Command Queue;
    codex_command_host_killed: Command HostKilled;
    codex_command_keeper_killed: Command KeeperKilled;
    codex_command_agent_killed: Command AgentKilled;
    codex_command_resumed_elsewhere: Command Elsewhere;
    codex_command_taken_elsewhere: Command TakenElsewhere;
    codex_approval_interrupt: Approval Interrupt;
    codex_approval_steer: Approval Steer;
    codex_approval_queue: Approval Queue;
    codex_approval_host_killed: Approval HostKilled;
    codex_approval_keeper_killed: Approval KeeperKilled;
    codex_approval_agent_killed: Approval AgentKilled;
    codex_approval_resumed_elsewhere: Approval Elsewhere;
    codex_approval_taken_elsewhere: Approval TakenElsewhere;
    codex_question_interrupt: Question Interrupt;
    codex_question_steer: Question Steer;
    codex_question_queue: Question Queue;
    codex_question_host_killed: Question HostKilled;
    codex_question_keeper_killed: Question KeeperKilled;
    codex_question_agent_killed: Question AgentKilled;
    codex_question_resumed_elsewhere: Question Elsewhere;
    codex_question_taken_elsewhere: Question TakenElsewhere;
    codex_compacting_interrupt: Compacting Interrupt;
    codex_compacting_steer: Compacting Steer;
    codex_compacting_queue: Compacting Queue;
    codex_compacting_host_killed: Compacting HostKilled;
    codex_compacting_keeper_killed: Compacting KeeperKilled;
    codex_compacting_agent_killed: Compacting AgentKilled;
    codex_compacting_resumed_elsewhere: Compacting Elsewhere;
    codex_compacting_taken_elsewhere: Compacting TakenElsewhere;
    codex_child_interrupt: Child Interrupt;
    codex_child_steer: Child Steer;
    codex_child_queue: Child Queue;
    codex_child_host_killed: Child HostKilled;
    codex_child_keeper_killed: Child KeeperKilled;
    codex_child_agent_killed: Child AgentKilled;
    codex_child_resumed_elsewhere: Child Elsewhere;
    codex_child_taken_elsewhere: Child TakenElsewhere;
}
