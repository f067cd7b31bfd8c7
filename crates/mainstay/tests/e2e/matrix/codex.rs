//! Codex: how each state is reached, how each intervention is made, and what is then seen.

use super::codex_table;
use super::report::{Report, Seen};
use super::seat::{EXTRA, NEXT, Seat, Work};
use crate::keepers::{self, Stopped};
use crate::support::{DEADLINE, World, answer, interrupt, is, kill};
use mainstay_testkit::agents::codex_binary;
use mainstay_testkit::codex::CodexHome;
use mainstay_testkit::peer::Peer;
use mainstay_testkit::wait::wait_until;
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
    seat: Seat,
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
        let mut body = json!({ "agent": "codex" });
        if state == State::Child {
            body["options"] = json!({ "model": MODEL_WITH_CHILDREN });
        }
        let seat = Seat::take(world, body);
        let mut cell = Self { state, seat, request: None, still: None, elsewhere: None };
        cell.go_into_it();
        cell
    }

    fn go_into_it(&mut self) {
        match self.state {
            State::NotStarted => {
                self.still = Some(Stopped::stop(self.seat.pid));
            }
            State::Question => {
                let path = format!("/v1/sessions/{}", self.seat.session);
                let plan = json!({ "options": { "mode": "plan" } });
                self.seat.client().patch(&path, &plan).expect("answers").expect_status(200);
            }
            State::Compacting => {
                self.seat.post("compact", &json!({})).expect_status(202);
            }
            _ => {}
        }
        if let Some(prompt) = self.state.prompt() {
            self.seat.send(prompt);
        }
        match self.state {
            State::Idle => {}
            State::NotStarted => {
                self.seat.until("the message given", |event| {
                    event["type"] == "submission.delivered" && event["submission"] != Value::Null
                });
            }
            State::Streaming => {
                self.seat.world.model.release("text", 2);
                self.seat.until("text", is("item.delta"));
                self.seat.world.model.wait_at_gate("text", DEADLINE);
            }
            State::Command => {
                let ran = self.seat.world.home.workspace().join("ran");
                self.seat.until("the command", |event| {
                    event["type"] == "item.started" && event["tool_kind"] == "execute"
                });
                wait_until(DEADLINE, "the command runs", || ran.exists());
            }
            State::Approval | State::Question => {
                let opened = self.seat.until("the request", is("request.opened"));
                self.request = opened["request"].as_str().map(str::to_owned);
            }
            State::Compacting => {
                self.seat.until("its turn", is("turn.started"));
                wait_until(DEADLINE, "the summary is asked for", || {
                    self.seat.world.model.requests_prompted_by(SUMMARIZE) == 1
                });
            }
            State::Child => {
                self.seat.world.model.release("text", 2);
                self.seat.until("the child", is("child.started"));
                self.seat.world.model.wait_at_gate("text", DEADLINE);
                // The parent waits for it: the call is with Codex.
                self.seat.until_there("the wait", |event| {
                    event["type"] == "item.started" && event["title"] == "wait"
                });
                self.seat.until_there("what the child says", |event| {
                    event["type"] == "item.started"
                        && event["kind"] == "agent_message"
                        && event["child"].is_string()
                });
            }
        }
    }

    /// Makes the intervention; gives what it was answered where that is all there is.
    fn intervene(&mut self, intervention: Intervention) -> Option<String> {
        match intervention {
            Intervention::Interrupt => {
                let reply = interrupt(&self.seat.client(), &self.seat.session);
                assert_eq!(reply["recorded"], true, "{reply}");
                self.still = None;
            }
            Intervention::Steer | Intervention::Queue => {
                let delivery = if intervention == Intervention::Steer { "steer" } else { "queue" };
                let refusal = self.seat.send_extra(delivery);
                if refusal.is_some() {
                    return refusal;
                }
                if intervention == Intervention::Steer && self.state == State::Streaming {
                    // It cuts what the model says; let go before, that would be over.
                    self.seat.taken(EXTRA);
                }
                self.let_go();
            }
            Intervention::HostKilled => {
                self.seat.kill_host();
                self.let_go();
            }
            Intervention::KeeperKilled => {
                kill(keepers::pid(&self.seat.world, &self.seat.client(), &self.seat.session));
                self.settled_as_gone();
            }
            Intervention::AgentKilled => {
                kill(self.seat.pid);
                self.settled_as_gone();
            }
            Intervention::TakenElsewhere => {
                kill(self.seat.pid);
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
        self.seat.until("the lease's end", is("lease.released"));
        self.open_gates();
    }

    /// Another process of Codex, which asks for the conversation; and what it is answered.
    fn resume_elsewhere(&self) -> (Peer, Value) {
        let thread = self.seat.follower.of_type("thread.linked")[0]["thread"].clone();
        let folder = self.seat.world.home.root().join("codex-home");
        let home = CodexHome { home: folder.join("home"), codex_home: folder.join("codex") };
        let mut command = Command::new(codex_binary());
        command.arg("app-server").env_clear().envs(home.env());
        command.current_dir(self.seat.world.home.workspace()).stderr(Stdio::null());
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
        self.seat.refused_to_another_session("codex");
    }

    fn open_gates(&self) {
        for gate in ["door", "text", "summary"] {
            self.seat.world.model.open(gate);
        }
    }

    /// Lets the work go on to its end.
    fn let_go(&mut self) {
        self.still = None;
        self.open_gates();
        std::fs::write(self.seat.world.home.workspace().join("go"), "").expect("written");
        let Some(request) = &self.request else { return };
        if self.state == State::Question {
            let answers = json!({ "answers": { "q1": { "selected": ["Beta"] } } });
            self.seat.post(&format!("requests/{request}/answer"), &answers).expect_status(200);
        } else {
            answer(&self.seat.client(), &self.seat.session, request, "accept").expect_status(200);
        }
    }

    /// Waits until nothing of what the intervention found is open.
    fn settle(&mut self) {
        if self.state != State::Idle {
            self.seat.until_there("the turn's end", |event| {
                event["type"] == "turn.ended" && event["turn"] == "t2"
            });
        }
        if self.seat.sent.contains(&EXTRA) {
            self.seat.answered(EXTRA);
        }
        if self.state == State::Child {
            self.seat.until_there("the child's end", is("child.ended"));
        }
        self.seat.until_idle();
    }
}

/// Brings a session into the state, intervenes, and compares what is seen with the table.
fn check(state: State, intervention: Intervention) {
    let mut cell = Cell::reach(state);
    let before = cell.seat.follower.events.len();
    let lost = matches!(
        intervention,
        Intervention::KeeperKilled | Intervention::AgentKilled | Intervention::TakenElsewhere
    );
    let refusal = cell.intervene(intervention);
    // What was not known to be taken is settled by the next message's start.
    if !(lost && state == State::NotStarted) {
        cell.settle();
    }
    let settled = cell.seat.follower.events.len();
    cell.seat.send(NEXT);
    if cell.elsewhere.is_some() {
        cell.seat.until("word of the other", is("session.recovering"));
        cell.seat.until("the end of the process that was refused", is("lease.released"));
        cell.elsewhere = None;
        cell.seat.post("recover", &json!({ "action": "abandon" })).expect_status(200);
    }
    let next = cell.seat.answered(NEXT);
    cell.open_gates();
    let work = Work { prompt: state.prompt(), turn: "t2" };
    let seen = cell.seat.see(&work, (before, settled), &next, refusal);
    report().saw(state.name(), intervention.name(), &seen);
    let expected = codex_table::expected(state, intervention);
    assert!(
        expected.iter().any(|row| seen.is(row)),
        "{state:?} x {intervention:?}\nsaw {seen:#?}\nnot {expected:#?}"
    );
    cell.seat.end();
    let Seat { world, host, .. } = cell.seat;
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
