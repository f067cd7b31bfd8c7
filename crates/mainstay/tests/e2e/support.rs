//! What the tests share: a world with a home, agents and a model, and a reader that checks every event it gets.

use mainstay_testkit::claude::{ClaudeHome, claude_home};
use mainstay_testkit::codex::{CodexHome, codex_home};
use mainstay_testkit::contain::Containment;
use mainstay_testkit::http::{Client, Response, Sse, SseEvent};
use mainstay_testkit::mainstay::{Home, HostProcess, acp_config, claude_config, codex_config};
use mainstay_testkit::model::ModelServer;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Generous: nothing here waits this long unless something is broken.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The binary under test.
pub(crate) fn mainstay() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_mainstay"))
}

/// Everything that a test needs, in temporary folders and on loopback.
pub(crate) struct World {
    pub(crate) home: Home,
    pub(crate) model: ModelServer,
    codex: CodexHome,
    pub(crate) claude: ClaudeHome,
    containment: Containment,
}

impl World {
    /// Codex against the mock model, the scripted agent as `scripted`, and every timer at an hour: what happens, happens
    /// because of what was seen.
    pub(crate) fn new() -> Self {
        let containment = Containment::enter();
        let home = Home::new();
        let model = ModelServer::start();
        let codex_folder = home.root().join("codex-home");
        std::fs::create_dir_all(&codex_folder).expect("a folder for codex");
        let codex = codex_home(&codex_folder, &model.base_url());
        let claude = claude_home(&home.root().join("claude-home"), &model.root_url());
        let world = Self { home, model, codex, claude, containment };
        world.configure(&[]);
        world
    }

    /// Writes the configuration, with more environment for the scripted agent.
    pub(crate) fn configure(&self, scripted_env: &[(&str, &str)]) {
        let log = self.prompt_log().display().to_string();
        let mut env = vec![("SCRIPTED_LOG".to_owned(), log)];
        env.extend(scripted_env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let config = format!(
            "rest_after = \"1h\"\nlinger = \"1h\"\n{}{}{}",
            codex_config(&mainstay_testkit::agents::codex_binary(), &self.codex),
            claude_config(&mainstay_testkit::agents::claude_binary(), &self.claude),
            acp_config("scripted", &mainstay_testkit::agents::scripted_acp_binary(), &env),
        );
        self.home.write_config(&config);
    }

    fn prompt_log(&self) -> PathBuf {
        self.home.root().join("prompts.jsonl")
    }

    /// How often the scripted agent got this prompt.
    pub(crate) fn prompts_received(&self, prompt: &str) -> usize {
        let log = std::fs::read_to_string(self.prompt_log()).unwrap_or_default();
        log.lines()
            .filter(|line| serde_json::from_str::<Value>(line).is_ok_and(|entry| entry["prompt"] == prompt))
            .count()
    }

    pub(crate) fn start(&self) -> HostProcess {
        HostProcess::start(&self.home, mainstay(), &[])
    }

    /// A host that dies at a fault point.
    pub(crate) fn start_to_die_at(&self, point: &str) -> HostProcess {
        HostProcess::start(&self.home, mainstay(), &[("MAINSTAY_FAULT_POINT", point)])
    }

    pub(crate) fn workspace(&self) -> String {
        self.home.workspace().display().to_string()
    }

    pub(crate) fn create(&self, host: &HostProcess, agent: &str, prompt: &str) -> String {
        let body = json!({ "agent": agent, "cwd": self.workspace(), "prompt": prompt });
        let made = host.client().post("/v1/sessions", &body).expect("answers").expect_status(201).json();
        made["id"].as_str().expect("an id").to_owned()
    }

    /// Ends the host with all agents and checks that nothing is left.
    pub(crate) fn end(&self, mut host: HostProcess) {
        host.client().post("/v1/host/stop", &json!({ "mode": "kill" })).expect("answers").expect_status(202);
        host.wait(DEADLINE);
        drop(host);
        self.nothing_left();
    }

    pub(crate) fn nothing_left(&self) {
        self.containment.assert_empty(DEADLINE);
    }
}

/// Sends a message.
pub(crate) fn send(client: &Client, session: &str, content: &str) -> Response {
    let path = format!("/v1/sessions/{session}/messages");
    client.post(&path, &json!({ "content": content })).expect("answers").expect_status(202)
}

/// Answers a request with an option.
pub(crate) fn answer(client: &Client, session: &str, request: &str, option: &str) -> Response {
    try_answer(client, session, request, option).expect("answers")
}

/// As [`answer`], where the host may die meanwhile.
pub(crate) fn try_answer(
    client: &Client,
    session: &str,
    request: &str,
    option: &str,
) -> std::io::Result<Response> {
    let path = format!("/v1/sessions/{session}/requests/{request}/answer");
    client.post(&path, &json!({ "option_id": option }))
}

pub(crate) fn interrupt(client: &Client, session: &str) -> Value {
    let path = format!("/v1/sessions/{session}/interrupt");
    client.post(&path, &json!({})).expect("answers").expect_status(200).json()
}

pub(crate) fn show(client: &Client, session: &str) -> Value {
    client.get(&format!("/v1/sessions/{session}")).expect("answers").expect_status(200).json()
}

/// A reader that goes on where it was after every reconnect, and fails at once on a hole, a repetition or a delta that
/// does not continue its item.
#[derive(Default)]
pub(crate) struct Follower {
    cursor: Option<(u64, u64)>,
    texts: BTreeMap<String, String>,
    /// Events without heartbeats and markers.
    pub(crate) events: Vec<Value>,
}

impl Follower {
    pub(crate) fn open(&self, client: &Client, session: &str) -> Sse {
        self.try_open(client, session).expect("a stream")
    }

    /// As [`open`](Self::open), where the host may die meanwhile.
    pub(crate) fn try_open(&self, client: &Client, session: &str) -> std::io::Result<Sse> {
        let path = format!("/v1/sessions/{session}/events");
        let last = self.cursor.map(|(epoch, seq)| format!("{epoch}:{seq}"));
        let headers: Vec<(&str, &str)> = last.iter().map(|id| ("Last-Event-ID", id.as_str())).collect();
        client.events(&path, &headers)
    }

    /// Reads until an event satisfies; gives it.
    #[track_caller]
    pub(crate) fn until(&mut self, sse: &mut Sse, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            let Some(event) = sse.next(left) else {
                let seen: Vec<String> =
                    self.events.iter().rev().take(25).rev().map(Value::to_string).collect();
                panic!(
                    "{what} did not come (stream ended: {}); last events:\n{}",
                    sse.ended(),
                    seen.join("\n")
                );
            };
            if let Some(value) = self.take(event)
                && wanted(&value)
            {
                return value;
            }
        }
    }

    /// Reads whatever comes until the stream ends (the host died).
    pub(crate) fn until_broken(&mut self, sse: &mut Sse) {
        let give_up = Instant::now() + DEADLINE;
        while let Some(event) = sse.next(give_up.saturating_duration_since(Instant::now())) {
            self.take(event);
        }
        assert!(sse.ended(), "the host did not die");
    }

    #[track_caller]
    pub(crate) fn take(&mut self, event: SseEvent) -> Option<Value> {
        let kind = event.event.as_str();
        assert_ne!(kind, "reset", "a reset came: {}", event.data);
        if matches!(kind, "heartbeat" | "caught_up") {
            return None;
        }
        let value = event.data;
        let (epoch, seq) = (value["epoch"].as_u64().expect("epoch"), value["seq"].as_u64().expect("seq"));
        let first = value["first_seq"].as_u64().unwrap_or(seq);
        if let Some((known_epoch, known)) = self.cursor {
            assert_eq!(epoch, known_epoch, "the epoch changed: {value}");
            assert!(seq > known, "an event came twice (cursor {known}): {value}");
            assert!(first <= known + 1, "events are missing behind {known}: {value}");
        }
        self.cursor = Some((epoch, seq));
        match value["type"].as_str().expect("type") {
            "item.delta" => {
                let text = self.texts.entry(value["item"].as_str().expect("item").to_owned()).or_default();
                let offset = usize::try_from(value["offset"].as_u64().expect("offset")).expect("small");
                assert!(offset <= text.len(), "a gap in a text: {value}");
                text.truncate(offset);
                text.push_str(value["text"].as_str().expect("text"));
            }
            "item.completed" if value["replaces"] == true => {
                let text = value["text"].as_str().expect("text").to_owned();
                self.texts.insert(value["item"].as_str().expect("item").to_owned(), text);
            }
            _ => {}
        }
        self.events.push(value.clone());
        Some(value)
    }

    /// The texts of all agent messages, in order.
    pub(crate) fn agent_text(&self) -> String {
        let messages = self
            .events
            .iter()
            .filter(|event| event["type"] == "item.started" && event["kind"] == "agent_message");
        messages.filter_map(|event| self.texts.get(event["item"].as_str()?)).map(String::as_str).collect()
    }

    pub(crate) fn text_of(&self, item: &str) -> &str {
        self.texts.get(item).map_or("", String::as_str)
    }

    pub(crate) fn of_type(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["type"] == kind).collect()
    }
}

/// Follows a session from its beginning until its running turn ended.
#[track_caller]
pub(crate) fn follow_turn(client: &Client, session: &str) -> Follower {
    let mut follower = Follower::default();
    let mut sse = follower.open(client, session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    follower
}

pub(crate) fn is(kind: &'static str) -> impl Fn(&Value) -> bool {
    move |event| event["type"] == kind
}

/// The identity of the agent in `process.started`: pid and start time.
pub(crate) fn agent_pid(started: &Value) -> i32 {
    i32::try_from(started["agent"]["pid"].as_i64().expect("the agent's pid")).expect("a pid")
}

pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.trim_start().starts_with(['Z', 'X']) && !rest.is_empty())
}

/// Ends a process that this test's host started.
pub(crate) fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
}
