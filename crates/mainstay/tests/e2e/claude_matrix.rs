//! What happens to Claude Code in each state under each intervention, as one table, each row on the real CLI.
//!
//! | state | interrupt | message | host killed | agent killed | stop |
//! |---|---|---|---|---|---|
//! | text streams | turn interrupted | starts the next turn | turn completes | turn lost, next message resumes | turn interrupted, next message resumes |
//! | command runs | turn interrupted | goes into the turn | turn completes | as above | as above |
//! | approval open | turn interrupted | goes into the turn | answered after, turn completes | turn lost, request asked again, the next message after it | request lost, turn interrupted, next message resumes |
//! | model silent | turn interrupted | starts the next turn | turn completes | as above | as above |
//! | background command | task ends | turn of its own beside it | task completes | task lost, next message resumes | task ends, next message resumes |
//! | idle | nothing | a turn | next message: a turn | next message resumes | next message resumes |

use crate::support::{DEADLINE, Follower, World, agent_pid, answer, interrupt, is, kill, send};
use mainstay_testkit::http::Sse;
use mainstay_testkit::mainstay::HostProcess;
use serde_json::{Value, json};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Text,
    Command,
    Approval,
    Silent,
    Background,
    Idle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intervention {
    Interrupt,
    Message,
    HostKilled,
    AgentKilled,
    Stop,
}

/// The outcome of the first turn; whether it is over before the intervention; what becomes of a background task.
struct Expected {
    first_turn: &'static str,
    task: Option<&'static str>,
}

fn expected(state: State, intervention: Intervention) -> Expected {
    use Intervention::{AgentKilled, HostKilled, Interrupt, Message, Stop};
    let task = match (state, intervention) {
        (State::Background, Interrupt) => Some("stopped"),
        (State::Background, AgentKilled | Stop) => Some("lost"),
        (State::Background, HostKilled) => Some("completed"),
        _ => None,
    };
    let first_turn = match (state, intervention) {
        (State::Background | State::Idle, _) | (_, Message | HostKilled) => "completed",
        (_, AgentKilled) => "lost",
        (_, Interrupt | Stop) => "interrupted",
    };
    Expected { first_turn, task }
}

const WAITING: &str = "while [ ! -e go ]; do sleep 0.1; done";

struct Cell {
    world: World,
    host: HostProcess,
    session: String,
    follower: Follower,
    sse: Sse,
    pid: i32,
    request: Option<String>,
}

impl Cell {
    fn reach(state: State) -> Self {
        let world = World::new();
        let host = world.start();
        let prompt = match state {
            State::Text => "GATED 4 g".to_owned(),
            State::Command => format!("RUN {WAITING} ;; SAY after"),
            State::Approval => "RUN touch made ;; SAY after".to_owned(),
            State::Silent => "HOLD door ;; SAY after".to_owned(),
            State::Background => {
                let input = json!({"command": WAITING, "run_in_background": true, "description": "waits"});
                format!("TOOL Bash {input} ;; SAY after")
            }
            State::Idle => "SAY after".to_owned(),
        };
        let session = world.create(&host, "claude", &prompt);
        let mut follower = Follower::default();
        let mut sse = follower.open(&host.client(), &session);
        let started = follower.until(&mut sse, "the process", is("process.started"));
        let pid = agent_pid(&started);
        let mut request = None;
        match state {
            State::Text => {
                world.model.release("g", 2);
                follower.until(&mut sse, "text", is("item.delta"));
            }
            State::Command => {
                follower.until(&mut sse, "the command", |event| {
                    event["type"] == "item.updated" && event["raw_input"]["command"] == WAITING
                });
            }
            State::Approval => {
                let opened = follower.until(&mut sse, "the request", is("request.opened"));
                request = opened["request"].as_str().map(str::to_owned);
                crate::claude_asked_again::call_is_saved(&world, &opened);
            }
            State::Silent => {
                world.model.wait_requests(1, DEADLINE);
                follower.until(&mut sse, "the turn", is("turn.started"));
            }
            State::Background | State::Idle => {
                follower.until(&mut sse, "the turn's end", is("turn.ended"));
            }
        }
        Self { world, host, session, follower, sse, pid, request }
    }

    fn intervene(&mut self, intervention: Intervention) {
        match intervention {
            Intervention::Interrupt => {
                interrupt(&self.host.client(), &self.session);
            }
            Intervention::Message => {
                send(&self.host.client(), &self.session, "SAY second");
                self.follower.until(&mut self.sse, "its acceptance", |event| {
                    event["type"] == "submission.accepted" && event["content"][0]["text"] == "SAY second"
                });
            }
            Intervention::HostKilled => {
                self.host.kill9();
                self.follower.until_broken(&mut self.sse);
                self.host = self.world.start();
                self.sse = self.follower.open(&self.host.client(), &self.session);
            }
            Intervention::AgentKilled => {
                kill(self.pid);
                self.follower.until(&mut self.sse, "its end", is("process.exited"));
            }
            Intervention::Stop => {
                let path = format!("/v1/sessions/{}/stop", self.session);
                self.host.client().post(&path, &json!({})).expect("answers");
                self.follower.until(&mut self.sse, "its end", is("process.exited"));
            }
        }
    }

    /// Lets go of what holds the state, for work that is to go on.
    fn let_go(&self) {
        self.world.model.open("g");
        self.world.model.release("g", 10);
        self.world.model.open("door");
        std::fs::write(self.world.home.workspace().join("go"), "").expect("written");
        if let Some(request) = &self.request {
            answer(&self.host.client(), &self.session, request, "allow").expect_status(200);
        }
    }

    fn turns_ended(&self) -> Vec<&Value> {
        self.follower.of_type("turn.ended")
    }
}

/// Brings a session into the state, intervenes, and checks what the table says; then that the next message is answered, in
/// the same conversation.
fn check(state: State, intervention: Intervention) {
    let what = format!("{state:?} × {intervention:?}");
    let expected = expected(state, intervention);
    let mut cell = Cell::reach(state);
    cell.intervene(intervention);
    let goes_on = matches!(intervention, Intervention::Message | Intervention::HostKilled);
    if goes_on {
        cell.let_go();
    }
    if cell.turns_ended().is_empty() {
        cell.follower.until(&mut cell.sse, "the first turn's end", is("turn.ended"));
    }
    let first = cell.turns_ended()[0];
    assert_eq!(first["outcome"], expected.first_turn, "{what}: {first}");
    if let Some(task) = expected.task {
        if cell.follower.of_type("task.ended").is_empty() {
            cell.follower.until(&mut cell.sse, "the task's end", is("task.ended"));
        }
        let ended = cell.follower.of_type("task.ended")[0];
        assert_eq!(ended["outcome"], task, "{what}: {ended}");
    }
    if (state, intervention) == (State::Approval, Intervention::AgentKilled) {
        // A message before its answer would take it back.
        let again = cell.follower.until(&mut cell.sse, "the request again", is("request.opened"));
        answer(&cell.host.client(), &cell.session, again["request"].as_str().expect("an id"), "allow")
            .expect_status(200);
        cell.follower.until(&mut cell.sse, "its turn's end", is("turn.ended"));
    }
    if intervention != Intervention::Message {
        send(&cell.host.client(), &cell.session, "SAY second");
    }
    let accepted = cell.follower.of_type("submission.accepted");
    let second = accepted.iter().find(|event| event["content"][0]["text"] == "SAY second");
    let second = match second {
        Some(accepted) => accepted["submission"].clone(),
        None => {
            let accepted = cell.follower.until(&mut cell.sse, "its acceptance", is("submission.accepted"));
            accepted["submission"].clone()
        }
    };
    let taken = |follower: &Follower| {
        let taken = follower.of_type("submission.taken");
        taken.into_iter().find(|taken| taken["submission"] == second).map(|taken| taken["turn"].clone())
    };
    while taken(&cell.follower).is_none() {
        cell.follower.until(&mut cell.sse, "the next message taken", is("submission.taken"));
    }
    let turn = taken(&cell.follower).expect("it is taken");
    let over = |follower: &Follower| {
        let ended = follower.of_type("turn.ended");
        ended.into_iter().find(|ended| ended["turn"] == turn).map(|ended| ended["outcome"].clone())
    };
    while over(&cell.follower).is_none() {
        cell.follower.until(&mut cell.sse, "its turn's end", is("turn.ended"));
    }
    assert_eq!(over(&cell.follower).expect("it is over"), "completed", "{what}");
    let in_first_turn =
        matches!((state, intervention), (State::Command | State::Approval, Intervention::Message));
    assert_eq!(turn == "t1", in_first_turn, "{what}: taken into {turn}");
    let threads: Vec<&Value> =
        cell.follower.of_type("thread.linked").iter().map(|link| &link["thread"]).collect();
    assert!(threads.iter().all(|thread| *thread == threads[0]), "{what}: another conversation: {threads:?}");
    let resumed = matches!(intervention, Intervention::AgentKilled | Intervention::Stop);
    assert_eq!(threads.len(), if resumed { 2 } else { 1 }, "{what}");
    // Each message came to the model once.
    let seen = cell.world.model.requests().last().map(|last| last.user_messages()).unwrap_or_default();
    assert_eq!(seen.iter().filter(|message| *message == "SAY second").count(), 1, "{what}: {seen:?}");
    let Cell { world, host, .. } = cell;
    world.end(host);
}

macro_rules! matrix {
    ($($test:ident: $state:ident $intervention:ident;)*) => {$(
        #[test]
        fn $test() {
            check(State::$state, Intervention::$intervention);
        }
    )*};
}

matrix! {
    claude_text_interrupted: Text Interrupt;
    claude_text_message: Text Message;
    claude_text_host_killed: Text HostKilled;
    claude_text_agent_killed: Text AgentKilled;
    claude_text_stopped: Text Stop;
    claude_command_interrupted: Command Interrupt;
    claude_command_message: Command Message;
    claude_command_host_killed: Command HostKilled;
    claude_command_agent_killed: Command AgentKilled;
    claude_command_stopped: Command Stop;
    claude_approval_interrupted: Approval Interrupt;
    claude_approval_message: Approval Message;
    claude_approval_host_killed: Approval HostKilled;
    claude_approval_agent_killed: Approval AgentKilled;
    claude_approval_stopped: Approval Stop;
    claude_silent_interrupted: Silent Interrupt;
    claude_silent_message: Silent Message;
    claude_silent_host_killed: Silent HostKilled;
    claude_silent_agent_killed: Silent AgentKilled;
    claude_silent_stopped: Silent Stop;
    claude_background_interrupted: Background Interrupt;
    claude_background_message: Background Message;
    claude_background_host_killed: Background HostKilled;
    claude_background_agent_killed: Background AgentKilled;
    claude_background_stopped: Background Stop;
    claude_idle_message: Idle Message;
    claude_idle_host_killed: Idle HostKilled;
    claude_idle_agent_killed: Idle AgentKilled;
    claude_idle_stopped: Idle Stop;
}
