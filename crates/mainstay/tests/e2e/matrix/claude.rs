//! Claude Code: how each state is reached, how each intervention is made, and what is then seen.

use super::claude_table;
use super::report::{Report, Seen};
use super::seat::{EXTRA, NEXT, Seat, Work};
use crate::claude_asked_again::call_is_saved;
use crate::keepers::{self, Stopped};
use crate::support::{DEADLINE, World, answer, interrupt, is, kill};
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    NotRead,
    Silent,
    Streaming,
    Command,
    Approval,
    Question,
    Compacting,
    Background,
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
    Stop,
    Elsewhere,
    TakenElsewhere,
}

const STATES: [State; 10] = [
    State::Idle,
    State::NotRead,
    State::Silent,
    State::Streaming,
    State::Command,
    State::Approval,
    State::Question,
    State::Compacting,
    State::Background,
    State::Child,
];

const INTERVENTIONS: [Intervention; 9] = [
    Intervention::Interrupt,
    Intervention::Steer,
    Intervention::Queue,
    Intervention::HostKilled,
    Intervention::KeeperKilled,
    Intervention::AgentKilled,
    Intervention::Stop,
    Intervention::Elsewhere,
    Intervention::TakenElsewhere,
];

impl State {
    const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::NotRead => "message not read",
            Self::Silent => "model silent",
            Self::Streaming => "streaming",
            Self::Command => "command running",
            Self::Approval => "approval open",
            Self::Question => "user input open",
            Self::Compacting => "compacting",
            Self::Background => "background command",
            Self::Child => "child running",
        }
    }

    const fn about(self) -> &'static str {
        match self {
            Self::Idle => "`t1` is over, the agent waits.",
            Self::NotRead => {
                "`work` is written to the agent, which has not read it (the process is stopped until after the intervention)."
            }
            Self::Silent => "The model was asked and has not begun to answer.",
            Self::Streaming => "The agent says a part of its answer.",
            Self::Command => "A command runs, and waits for a file.",
            Self::Approval => "A command asks to be allowed.",
            Self::Question => "The agent asks the user a question.",
            Self::Compacting => "The user asked for a compaction; the model works on the summary.",
            Self::Background => "`t2` is over, and a command that it began runs in the background.",
            Self::Child => "A sub-agent says a part of its answer; its parent waits for it.",
        }
    }

    /// What the work is that the session is in the middle of; none: no message asks for it.
    const fn prompt(self) -> Option<&'static str> {
        match self {
            Self::Idle | Self::Compacting => None,
            Self::NotRead | Self::Silent => Some("HOLD door ;; SAY worked"),
            Self::Streaming => Some("GATED 4 text"),
            Self::Command => Some("RUN while [ ! -e go ]; do sleep 0.1; done ;; SAY worked"),
            Self::Approval => Some("RUN echo ran >> ran ;; SAY worked"),
            Self::Question => Some(QUESTION),
            Self::Background => Some(BACKGROUND),
            Self::Child => Some(CHILD),
        }
    }

    /// The turn that the session is in the middle of.
    const fn turn(self) -> &'static str {
        match self {
            // The agent compacts nothing shorter than three turns.
            Self::Compacting => "t4",
            _ => "t2",
        }
    }
}

impl Intervention {
    const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "interrupt",
            Self::Steer => "steer",
            Self::Queue => "queue",
            Self::HostKilled => "host kill -9",
            Self::KeeperKilled => "keeper kill -9",
            Self::AgentKilled => "agent kill -9",
            Self::Stop => "stop of the process",
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
            Self::KeeperKilled => {
                "the keeper of the agent is killed. What was asked is asked again by the next process, and answered."
            }
            Self::AgentKilled => "the agent is killed; then as before.",
            Self::Stop => "the user ends the session's process; `next` goes to a new one.",
            Self::Elsewhere => {
                "another session wants to adopt the conversation and is refused; then the work is let go on."
            }
            Self::TakenElsewhere => {
                "the agent is killed while another process has the conversation open, as the agent's own list says: `next` is held \
                 until that one is gone and the user says `recover`."
            }
        }
    }
}

const BACKGROUND: &str = concat!(
    r#"TOOL Bash {"command":"while [ ! -e go ]; do sleep 0.1; done","run_in_background":true,"#,
    r#""description":"waits"} ;; SAY worked"#
);
const QUESTION: &str = concat!(
    r#"TOOL AskUserQuestion {"questions":[{"question":"Which colour?","header":"Colour","multiSelect":false,"#,
    r#""options":[{"label":"Red","description":"warm"},{"label":"Blue","description":"cold"}]}]} ;; SAY worked"#
);
const CHILD: &str = concat!(
    r#"TOOL Agent {"description":"helper","prompt":"GATED 4 text ~~ SAY child done","#,
    r#""subagent_type":"general-purpose"} ;; SAY worked"#
);

/// A session in a state.
struct Cell {
    state: State,
    seat: Seat,
    request: Option<String>,
    /// The agent stands still until this is dropped.
    still: Option<Stopped>,
    /// The agent's note of another process that has the conversation.
    elsewhere: Option<PathBuf>,
}

impl Cell {
    /// A session after its first turn, and then in the middle of what the state says.
    fn reach(state: State) -> Self {
        let seat = Seat::take(World::new(), json!({ "agent": "claude" }));
        let mut cell = Self { state, seat, request: None, still: None, elsewhere: None };
        cell.go_into_it();
        cell
    }

    fn go_into_it(&mut self) {
        match self.state {
            State::NotRead => self.still = Some(Stopped::stop(self.seat.pid)),
            State::Compacting => {
                for more in ["SAY more", "SAY and more"] {
                    self.seat.send(more);
                    self.seat.until("another turn's end", is("turn.ended"));
                }
                self.seat.post("compact", &json!({ "instructions": "HOLD summary" })).expect_status(202);
            }
            _ => {}
        }
        if let Some(prompt) = self.state.prompt() {
            self.seat.send(prompt);
        }
        match self.state {
            State::Idle => {}
            State::NotRead => {
                self.seat.until("the message given", is("submission.delivered"));
            }
            State::Silent => {
                self.seat.until("its turn", is("turn.started"));
                self.seat.world.model.wait_at_gate("door", DEADLINE);
            }
            State::Streaming => {
                self.seat.world.model.release("text", 2);
                self.seat.until("text", is("item.delta"));
                self.seat.world.model.wait_at_gate("text", DEADLINE);
            }
            State::Command => {
                self.seat.until("the command", |event| {
                    event["type"] == "item.updated" && event["raw_input"]["command"].is_string()
                });
            }
            State::Approval | State::Question => {
                let opened = self.seat.until("the request", is("request.opened"));
                self.request = opened["request"].as_str().map(str::to_owned);
                call_is_saved(&self.seat.world, &opened);
            }
            State::Compacting => {
                self.seat.world.model.wait_at_gate("summary", DEADLINE);
                self.seat.until_there("its turn", |event| {
                    event["type"] == "turn.started" && event["turn"] == "t4"
                });
            }
            State::Background => {
                self.seat.until("the task", is("task.started"));
                self.seat.until_there("the turn's end", |event| {
                    event["type"] == "turn.ended" && event["turn"] == "t2"
                });
            }
            State::Child => {
                self.seat.world.model.release("text", 2);
                self.seat.until("the child", is("child.started"));
                self.seat.world.model.wait_at_gate("text", DEADLINE);
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
                    self.let_go();
                    return refusal;
                }
                if self.state == State::Background {
                    // Else the end of the command would begin a turn at the same time.
                    self.seat.answered(EXTRA);
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
                self.asked_again();
            }
            Intervention::AgentKilled => {
                kill(self.seat.pid);
                self.settled_as_gone();
                self.asked_again();
            }
            Intervention::Stop => {
                self.still = None;
                self.seat.post("stop", &json!({})).expect_status(202);
                self.settled_as_gone();
            }
            Intervention::TakenElsewhere => {
                self.elsewhere = Some(self.listed_elsewhere());
                kill(self.seat.pid);
                self.settled_as_gone();
                if matches!(self.state, State::Approval | State::Question) {
                    // It is to be asked again by a process that is refused; no message is needed for that.
                    self.recovered();
                    self.asked_again();
                }
            }
            Intervention::Elsewhere => {
                self.seat.refused_to_another_session("claude");
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

    /// What nobody had answered is asked by the next process, and answered now.
    fn asked_again(&mut self) {
        if matches!(self.state, State::Approval | State::Question) {
            let again = self.seat.until("the request again", is("request.opened"));
            self.request = again["request"].as_str().map(str::to_owned);
            self.seat.until_there("the conversation again", |event| {
                event["type"] == "thread.linked" && event["how"] == "resumed"
            });
            self.let_go();
            self.seat.until("its turn's end", is("turn.ended"));
        }
    }

    /// This test's own process, listed as the program lists itself.
    fn listed_elsewhere(&self) -> PathBuf {
        let thread = &self.seat.follower.of_type("thread.linked")[0]["thread"];
        let stat = std::fs::read_to_string("/proc/self/stat").expect("our own");
        let start = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(19));
        let listed = json!({ "pid": std::process::id(), "procStart": start, "sessionId": thread });
        let list = self.seat.world.claude.config_dir.join("sessions/other.json");
        std::fs::write(&list, listed.to_string()).expect("written");
        list
    }

    /// Waits until the session is held because of the other, which then goes; and says that it may go on.
    fn recovered(&mut self) {
        let Some(list) = self.elsewhere.take() else { return };
        self.seat.until_there("word of the other", is("session.recovering"));
        std::fs::remove_file(list).expect("removed");
        self.seat.post("recover", &json!({ "action": "abandon" })).expect_status(200);
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
            let answers = json!({ "answers": { "0": { "selected": ["Blue"] } } });
            self.seat.post(&format!("requests/{request}/answer"), &answers).expect_status(200);
        } else {
            answer(&self.seat.client(), &self.seat.session, request, "allow").expect_status(200);
        }
    }

    /// Whether the message is in doubt: the agent had not proven that it has it. The next start settles that.
    fn in_doubt(&self, lost: bool) -> bool {
        lost && matches!(self.state, State::NotRead | State::Silent | State::Streaming)
    }

    /// Waits until nothing of what the intervention found is open.
    fn settle(&mut self, lost: bool) {
        if self.state != State::Idle {
            let turn = self.state.turn();
            self.seat.until_there("the turn's end", |event| {
                event["type"] == "turn.ended" && event["turn"] == turn
            });
        }
        if self.seat.sent.contains(&EXTRA) {
            self.seat.answered(EXTRA);
        }
        if self.state == State::Child {
            self.seat.until_there("the child's end", is("child.ended"));
        }
        if self.state == State::Background {
            let ended = self.seat.until_there("the task's end", is("task.ended"));
            if ended["outcome"] == "completed" {
                // Its end begins a turn.
                let about = |event: &Value| event["type"] == "turn.started" && event["origin"] == "task";
                let turn = self.seat.until_there("a turn about it", about)["turn"].clone();
                self.seat
                    .until_there("its end", |event| event["type"] == "turn.ended" && event["turn"] == turn);
            }
        }
        if !self.in_doubt(lost) {
            self.seat.until_idle();
        }
    }
}

/// Brings a session into the state, intervenes, and compares what is seen with the table.
fn check(state: State, intervention: Intervention) {
    let mut cell = Cell::reach(state);
    let before = cell.seat.follower.events.len();
    let lost = matches!(
        intervention,
        Intervention::KeeperKilled
            | Intervention::AgentKilled
            | Intervention::TakenElsewhere
            | Intervention::Stop
    );
    let refusal = cell.intervene(intervention);
    // A message that was not read has no turn yet.
    if !(lost && state == State::NotRead) {
        cell.settle(lost);
    }
    let settled = cell.seat.follower.events.len();
    cell.seat.send(NEXT);
    cell.recovered();
    let next = cell.seat.answered(NEXT);
    cell.open_gates();
    let work = Work { prompt: state.prompt(), turn: state.turn() };
    let seen = cell.seat.see(&work, (before, settled), &next, refusal);
    report().saw(state.name(), intervention.name(), &seen);
    cell.seat.end();
    let expected = claude_table::expected(state, intervention);
    // Where the program races with itself, what becomes of messages and of the process is ours and is compared; the order is
    // reported. `invariants` has checked that everything ended, once.
    let races = claude_table::race(state, intervention).is_some();
    assert!(
        expected.iter().any(|row| if races { seen.ends_as(row) } else { seen.is(row) }),
        "{state:?} x {intervention:?}\nsaw {seen:#?}\nnot {expected:#?}"
    );
    let Seat { world, host, .. } = cell.seat;
    world.end(host);
}

const ABOUT: &str = "\
What becomes of a Claude Code session in each state when something is done to it, as its journal tells it. Each row is a test\n\
on the real CLI (`crates/mainstay/tests/e2e/matrix`); this page is generated from the table that those tests compare with.\n\
`first` is a message that was answered in turn `t1` before all this; `work` is the message that brought the session into the\n\
state, in turn `t2`; `extra` is sent by the intervention, and `next` after all is settled. In every cell it also holds that each\n\
message stands in what the model was given once if it was taken and never if not, that no command ran twice, that a reader who\n\
comes late and one who takes pages see the same history without a hole, that everything that began ended once when the session\n\
is stopped, and that no process is left. The agent proves that it has a message with its first answer: until then a death\n\
leaves the message in doubt, and its transcript settles that when the next process starts. A row is compared as a whole, but\n\
in the cells that are named at the end of this page.";

/// The cells of which less is compared, with what races there.
fn races() -> String {
    let mut text = "\n## Where only the ends are compared\n\nThe program races with itself in these cells: of their rows, what \
        became of messages and of the process is compared; the\nrest is what was seen, and another order may be.\n\n"
        .to_owned();
    for state in STATES {
        for intervention in INTERVENTIONS {
            if let Some(why) = claude_table::race(state, intervention) {
                text.push_str(&format!("* {}, **{}**: {why}\n", state.name(), intervention.name()));
            }
        }
    }
    text
}

fn report() -> Report {
    Report {
        name: "claude-matrix",
        title: "Claude Code: each state under each intervention",
        about: ABOUT,
        states: STATES.iter().map(|state| (state.name(), state.about())).collect(),
        interventions: INTERVENTIONS.iter().map(|of| (of.name(), of.about())).collect(),
    }
}

#[test]
fn golden_document_of_the_claude_matrix() {
    let report = report();
    let text = report.render(|state, intervention| {
        let state = STATES.into_iter().find(|of| of.name() == state).expect("a state");
        let of = INTERVENTIONS.into_iter().find(|of| of.name() == intervention).expect("an intervention");
        let rows = claude_table::expected(state, of);
        assert!(!rows.is_empty(), "nothing is said of {state:?} x {of:?}");
        rows.iter().map(Seen::row).collect()
    });
    report.compare(&format!("{text}{}", races()));
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
    claude_idle_interrupt: Idle Interrupt;
    claude_idle_steer: Idle Steer;
    claude_idle_queue: Idle Queue;
    claude_idle_host_killed: Idle HostKilled;
    claude_idle_keeper_killed: Idle KeeperKilled;
    claude_idle_agent_killed: Idle AgentKilled;
    claude_idle_stopped: Idle Stop;
    claude_idle_resumed_elsewhere: Idle Elsewhere;
    claude_idle_taken_elsewhere: Idle TakenElsewhere;
    claude_not_read_interrupt: NotRead Interrupt;
    claude_not_read_steer: NotRead Steer;
    claude_not_read_queue: NotRead Queue;
    claude_not_read_host_killed: NotRead HostKilled;
    claude_not_read_keeper_killed: NotRead KeeperKilled;
    claude_not_read_agent_killed: NotRead AgentKilled;
    claude_not_read_stopped: NotRead Stop;
    claude_not_read_resumed_elsewhere: NotRead Elsewhere;
    claude_not_read_taken_elsewhere: NotRead TakenElsewhere;
    claude_silent_interrupt: Silent Interrupt;
    claude_silent_steer: Silent Steer;
    claude_silent_queue: Silent Queue;
    claude_silent_host_killed: Silent HostKilled;
    claude_silent_keeper_killed: Silent KeeperKilled;
    claude_silent_agent_killed: Silent AgentKilled;
    claude_silent_stopped: Silent Stop;
    claude_silent_resumed_elsewhere: Silent Elsewhere;
    claude_silent_taken_elsewhere: Silent TakenElsewhere;
    claude_streaming_interrupt: Streaming Interrupt;
    claude_streaming_steer: Streaming Steer;
    claude_streaming_queue: Streaming Queue;
    claude_streaming_host_killed: Streaming HostKilled;
    claude_streaming_keeper_killed: Streaming KeeperKilled;
    claude_streaming_agent_killed: Streaming AgentKilled;
    claude_streaming_stopped: Streaming Stop;
    claude_streaming_resumed_elsewhere: Streaming Elsewhere;
    claude_streaming_taken_elsewhere: Streaming TakenElsewhere;
    claude_command_interrupt: Command Interrupt;
    claude_command_steer: Command Steer;
    claude_command_queue: Command Queue;
    claude_command_host_killed: Command HostKilled;
    claude_command_keeper_killed: Command KeeperKilled;
    claude_command_agent_killed: Command AgentKilled;
    claude_command_stopped: Command Stop;
    claude_command_resumed_elsewhere: Command Elsewhere;
    claude_command_taken_elsewhere: Command TakenElsewhere;
    claude_approval_interrupt: Approval Interrupt;
    claude_approval_steer: Approval Steer;
    claude_approval_queue: Approval Queue;
    claude_approval_host_killed: Approval HostKilled;
    claude_approval_keeper_killed: Approval KeeperKilled;
    claude_approval_agent_killed: Approval AgentKilled;
    claude_approval_stopped: Approval Stop;
    claude_approval_resumed_elsewhere: Approval Elsewhere;
    claude_approval_taken_elsewhere: Approval TakenElsewhere;
    claude_question_interrupt: Question Interrupt;
    claude_question_steer: Question Steer;
    claude_question_queue: Question Queue;
    claude_question_host_killed: Question HostKilled;
    claude_question_keeper_killed: Question KeeperKilled;
    claude_question_agent_killed: Question AgentKilled;
    claude_question_stopped: Question Stop;
    claude_question_resumed_elsewhere: Question Elsewhere;
    claude_question_taken_elsewhere: Question TakenElsewhere;
    claude_compacting_interrupt: Compacting Interrupt;
    claude_compacting_steer: Compacting Steer;
    claude_compacting_queue: Compacting Queue;
    claude_compacting_host_killed: Compacting HostKilled;
    claude_compacting_keeper_killed: Compacting KeeperKilled;
    claude_compacting_agent_killed: Compacting AgentKilled;
    claude_compacting_stopped: Compacting Stop;
    claude_compacting_resumed_elsewhere: Compacting Elsewhere;
    claude_compacting_taken_elsewhere: Compacting TakenElsewhere;
    claude_background_interrupt: Background Interrupt;
    claude_background_steer: Background Steer;
    claude_background_queue: Background Queue;
    claude_background_host_killed: Background HostKilled;
    claude_background_keeper_killed: Background KeeperKilled;
    claude_background_agent_killed: Background AgentKilled;
    claude_background_stopped: Background Stop;
    claude_background_resumed_elsewhere: Background Elsewhere;
    claude_background_taken_elsewhere: Background TakenElsewhere;
    claude_child_interrupt: Child Interrupt;
    claude_child_steer: Child Steer;
    claude_child_queue: Child Queue;
    claude_child_host_killed: Child HostKilled;
    claude_child_keeper_killed: Child KeeperKilled;
    claude_child_agent_killed: Child AgentKilled;
    claude_child_stopped: Child Stop;
    claude_child_resumed_elsewhere: Child Elsewhere;
    claude_child_taken_elsewhere: Child TakenElsewhere;
}
