//! A real Codex with an adapter in front of it.

use crate::harness::{Harness, Life, context};
use mainstay_agents::{AgentKind, Catalogue, ThreadContext};
use mainstay_core::content::Answer;
use mainstay_core::work::Control;
use mainstay_core::{ContentBlock, Decision, SessionOptions};
use mainstay_testkit::peer::{Line, Peer};
use mainstay_testkit::{Containment, ModelServer, agents, codex_home, wait_until};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Generous: nothing here waits this long unless something is broken.
const DEADLINE: Duration = Duration::from_secs(60);

/// The model whose sub-agents are of the first kind.
pub(crate) const AGENTS_V1: &str = "gpt-5.4";
/// The model whose sub-agents are of the second kind.
pub(crate) const AGENTS_V2: &str = "gpt-6.2-sol";

pub(crate) struct Real {
    pub(crate) model: ModelServer,
    pub(crate) folder: tempfile::TempDir,
    harness: Harness,
    peer: Option<Peer>,
    /// Everything that was said, in order.
    pub(crate) said: Vec<String>,
    /// What failed, whole, in order.
    pub(crate) failures: Vec<Value>,
    containment: Containment,
}

impl Real {
    pub(crate) fn start() -> Self {
        Self::start_with("")
    }

    /// With more lines in Codex's own configuration.
    pub(crate) fn start_with(config: &str) -> Self {
        let containment = Containment::enter();
        let model = ModelServer::start();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let home = codex_home(folder.path(), &model.base_url());
        if !config.is_empty() {
            let path = home.codex_home.join("config.toml");
            let text = std::fs::read_to_string(&path).expect("Codex's configuration");
            std::fs::write(&path, text.replace("[features]\n", &format!("[features]\n{config}\n")))
                .expect("written");
        }
        let work = folder.path().join("work");
        std::fs::create_dir(&work).expect("a workspace");
        let mut real = Self {
            model,
            folder,
            harness: Harness::new(AgentKind::Codex, Life::NewEachStep),
            peer: None,
            said: Vec::new(),
            failures: Vec::new(),
            containment,
        };
        real.launch();
        real
    }

    /// A process of its own, on the same home.
    pub(crate) fn launch(&mut self) {
        let home = codex_home_of(self.folder.path());
        let mut command = Command::new(agents::codex_binary());
        command.arg("app-server").env_clear().envs(home).current_dir(self.work()).stderr(Stdio::null());
        self.peer = Some(Peer::start(command));
        let lines = self.harness.connect();
        self.went(lines);
        self.until("the handshake", |line| line.starts_with("all: Ready codex"));
    }

    /// The process is gone; the adapter sees its connection lost.
    pub(crate) fn kill(&mut self) {
        self.peer = None;
        let lines = self.harness.disconnect();
        self.went(lines);
    }

    /// Another process on the same home, with an adapter of its own.
    pub(crate) fn beside(&self) -> Beside {
        let home = codex_home_of(self.folder.path());
        let mut command = Command::new(agents::codex_binary());
        command.arg("app-server").env_clear().envs(home).current_dir(self.work()).stderr(Stdio::null());
        let mut beside = Beside {
            work: self.work(),
            harness: Harness::new(AgentKind::Codex, Life::NewEachStep),
            peer: Peer::start(command),
        };
        beside.harness.connect();
        beside.send();
        beside.until("the handshake", |line| line.starts_with("all: Ready codex"));
        beside
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    fn went(&mut self, lines: Vec<String>) -> Vec<String> {
        let said: Vec<String> = lines.into_iter().filter(|line| !line.starts_with("send")).collect();
        self.said.extend(said.clone());
        self.failures.append(&mut self.harness.failures);
        if let Some(peer) = &mut self.peer {
            for frame in &self.harness.sent {
                peer.send(frame);
            }
        }
        said
    }

    /// Reads on until something is said that satisfies; what was said before the call does not count.
    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let line = self.peer.as_mut().and_then(|peer| peer.next(left));
            let Some(line) = line else {
                let tail = self.said.iter().rev().take(30).rev().cloned().collect::<Vec<_>>().join("\n");
                panic!("{what} did not come; said last:\n{tail}");
            };
            let Line::Json(message) = line else { continue };
            let lines = self.harness.message(&message);
            let said = self.went(lines);
            if let Some(found) = said.into_iter().find(|line| wanted(line)) {
                return found;
            }
        }
    }

    pub(crate) fn open(&mut self, session: &str, options: SessionOptions) -> String {
        let context = ThreadContext { cwd: self.work().display().to_string(), ..context() };
        self.open_in(session, context, options)
    }

    pub(crate) fn open_in(
        &mut self,
        session: &str,
        context: ThreadContext,
        options: SessionOptions,
    ) -> String {
        self.harness.bind_in(session, context);
        self.open_thread(
            session,
            Decision::OpenThread { resume: None, fork: None, options, doubtful: Vec::new() },
        )
    }

    /// Gives the thread.
    #[track_caller]
    pub(crate) fn open_thread(&mut self, session: &str, decision: Decision) -> String {
        self.tell(session, &decision);
        let head = format!("{session}: ThreadOpened ");
        let opened = self.until("the thread", |line| line.starts_with(&head));
        opened[head.len()..].trim_end_matches(" resumed").to_owned()
    }

    pub(crate) fn bind(&mut self, session: &str) {
        let context = ThreadContext { cwd: self.work().display().to_string(), ..context() };
        self.harness.bind_in(session, context);
    }

    /// What is said at once.
    #[track_caller]
    pub(crate) fn tell(&mut self, session: &str, decision: &Decision) -> Vec<String> {
        let lines = self.harness.tell(session, decision).expect("can be told");
        self.went(lines)
    }

    #[track_caller]
    pub(crate) fn send(&mut self, session: &str, submission: &str, text: &str) {
        let content = vec![ContentBlock::text(text)];
        let options = SessionOptions::default();
        self.tell(session, &Decision::StartTurn { submission: submission.into(), content, options });
    }

    /// Sends, and reads to the end of the turn; gives the turn.
    #[track_caller]
    pub(crate) fn turn(&mut self, session: &str, submission: &str, text: &str) -> String {
        self.send(session, submission, text);
        let ended = self.turn_ended(session);
        ended.split(' ').nth(2).expect("a turn").to_owned()
    }

    #[track_caller]
    pub(crate) fn turn_ended(&mut self, session: &str) -> String {
        let head = format!("{session}: TurnEnded ");
        self.until("the turn's end", |line| line.starts_with(&head))
    }

    /// Asks for something, and reads until it has ended; gives how.
    #[track_caller]
    pub(crate) fn control(&mut self, session: &str, id: &str, control: Control) -> Value {
        let head = format!("{session}: ControlEnded {id} ");
        let at_once = self.tell(session, &Decision::Control { id: id.into(), control });
        let ended = match at_once.into_iter().find(|line| line.starts_with(&head)) {
            Some(line) => line,
            None => self.until("the end of what was asked", |line| line.starts_with(&head)),
        };
        serde_json::from_str(&ended[head.len()..]).unwrap_or_else(|_| json!({ "cut": ended }))
    }

    #[track_caller]
    pub(crate) fn request(&mut self, session: &str) -> (String, String) {
        let head = format!("{session}: RequestOpened ");
        let opened = self.until("a request", |line| line.starts_with(&head));
        let key = opened[head.len()..].split(' ').next().expect("a key").to_owned();
        (key, opened)
    }

    /// Answers, and reads until the agent confirms.
    #[track_caller]
    pub(crate) fn answer(&mut self, session: &str, key: &str, answer: Answer) {
        let decision = Decision::Answer { key: key.into(), answer, options: Vec::new() };
        self.tell(session, &decision);
        let settled = format!("{session}: RequestSettled {key} confirmed");
        self.until("the confirmation", |line| line == settled);
    }

    /// What the agent offers.
    #[track_caller]
    pub(crate) fn catalogue(&mut self) -> Catalogue {
        self.harness.live_on();
        assert!(self.harness.ask_catalogue(), "it can be asked");
        self.went(Vec::new());
        let give_up = Instant::now() + DEADLINE;
        loop {
            if let Some(catalogue) = self.harness.catalogue() {
                return catalogue;
            }
            let left = give_up.saturating_duration_since(Instant::now());
            let line = self.peer.as_mut().and_then(|peer| peer.next(left));
            let Some(Line::Json(message)) = line else { continue };
            let lines = self.harness.message(&message);
            self.went(lines);
        }
    }

    /// A request of another client of the process; its answer is nobody's.
    pub(crate) fn another_asks(&mut self, method: &str, params: &Value) {
        let request = json!({ "id": format!("another/{method}"), "method": method, "params": params });
        self.peer.as_mut().expect("a process").send(&request);
    }

    pub(crate) fn has_said(&self, head: &str) -> bool {
        self.said.iter().any(|line| line.starts_with(head))
    }

    /// Waits until a command runs for itself, and not the sandbox that is about to become it: Codex, told to end one in
    /// between, may leave it behind (a keeper sweeps it; here there is none).
    #[track_caller]
    pub(crate) fn until_runs(&self, command: &str) {
        let runs = || self.containment.leftovers().iter().any(|process| process.cmdline == command);
        wait_until(DEADLINE, command, runs);
    }

    pub(crate) fn end(mut self) {
        self.peer = None;
        self.containment.assert_empty(DEADLINE);
    }
}

/// See [`Real::beside`].
pub(crate) struct Beside {
    work: PathBuf,
    harness: Harness,
    peer: Peer,
}

impl Beside {
    fn send(&mut self) {
        for frame in &self.harness.sent {
            self.peer.send(frame);
        }
    }

    pub(crate) fn bind(&mut self, session: &str) {
        self.harness.bind_in(session, ThreadContext { cwd: self.work.display().to_string(), ..context() });
    }

    #[track_caller]
    pub(crate) fn tell(&mut self, session: &str, decision: &Decision) {
        self.harness.tell(session, decision).expect("can be told");
        self.send();
    }

    #[track_caller]
    pub(crate) fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let Some(line) = self.peer.next(left) else { panic!("{what} did not come") };
            let Line::Json(message) = line else { continue };
            let said = self.harness.message(&message);
            self.send();
            if let Some(found) = said.into_iter().find(|line| wanted(line)) {
                return found;
            }
        }
    }

    pub(crate) fn stop(self) {
        drop(self.peer);
    }
}

fn codex_home_of(folder: &std::path::Path) -> Vec<(String, String)> {
    mainstay_testkit::codex::CodexHome { home: folder.join("home"), codex_home: folder.join("codex") }.env()
}

pub(crate) fn model(name: &str) -> SessionOptions {
    SessionOptions { model: Some(name.to_owned()), ..SessionOptions::default() }
}
