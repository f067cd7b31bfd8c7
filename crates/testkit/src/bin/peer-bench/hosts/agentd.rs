//! agentd: sessions in SQLite, a stream-json agent behind each, events by sequence over a WebSocket.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mainstay_testkit::http::{Addr, Client};
use serde_json::{Value, json};

use super::{Durable, Facts, Fate, Host, TURN_LIMIT};
use crate::feed::{Feed, From, Seen};
use crate::lab::{self, Lab, Programs, Running, free_port};
use crate::problem::{Problem, accepted};
use crate::processes::STREAM_JSON_AGENT;
use crate::stream_json;
use crate::ws::{Texts, Ws};

/// Between two looks at a session: short beside a burst, and rare enough to cost it little.
const LOOK_EVERY: Duration = Duration::from_millis(10);

const PROGRAM: &str = "pip/agentruntime_agentd/bin/agentd";

struct Agentd {
    lab: Lab,
    port: u16,
    process: Option<Running>,
    next: AtomicU64,
}

pub(super) fn make(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    programs.peer(PROGRAM)?;
    let lab = Lab::new(programs)?;
    let agent = std::env::current_exe().map_err(Problem::io("our own program"))?;
    lab.script(&lab.bin().join("claude"), &format!("exec '{}' {STREAM_JSON_AGENT}", agent.display()))?;
    // It asks for Docker at its start and goes on without.
    lab.script(&lab.bin().join("docker"), "exit 1")?;
    Ok(Box::new(Agentd { lab, port: free_port()?, process: None, next: AtomicU64::new(1) }))
}

impl Agentd {
    fn token(&self) -> Result<String, Problem> {
        let token = std::fs::read_to_string(self.lab.path("agentd/auth.token"));
        Ok(token.map_err(Problem::io("the token"))?.trim().to_owned())
    }

    fn client(&self) -> Result<Client, Problem> {
        let addr = Addr::Tcp(([127, 0, 0, 1], self.port).into());
        Ok(Client::new(addr).bearer(&self.token()?).timeout(TURN_LIMIT))
    }

    fn key(&self) -> String {
        format!("key-{}-{}", std::process::id(), self.next.fetch_add(1, Ordering::SeqCst))
    }

    fn shown(&self, client: &Client, session: &str) -> Result<Value, Problem> {
        let shown = accepted("a session", client.get(&format!("/api/v1/sessions/{session}")))?.json();
        Ok(shown["data"].clone())
    }

    /// Waits until no turn runs and the session has gone beyond `sequence`.
    fn wait_idle(&self, session: &str, sequence: u64) -> Result<(), Problem> {
        let client = self.client()?;
        let give_up = Instant::now() + TURN_LIMIT;
        loop {
            let shown = self.shown(&client, session)?;
            let newest = shown["last_sequence"].as_u64().unwrap_or(0);
            if newest > sequence && shown["running_turn"] == false && shown["continuable"] == true {
                return Ok(());
            }
            if Instant::now() > give_up {
                return Err(Problem::Late { what: "the end of a turn", limit: TURN_LIMIT });
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Host for Agentd {
    fn facts(&self) -> Facts {
        Facts {
            name: "agentd".to_owned(),
            version: "2.5.0".to_owned(),
            durable: Durable::Synced,
            agent: "scripted stream-json agent".to_owned(),
            burst: 3_000,
            only: &[],
        }
    }

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn launch(&mut self) -> Result<(), Problem> {
        let mut command = self.lab.command(&self.lab.programs.peer(PROGRAM)?)?;
        command.args(["-port", &self.port.to_string()]).arg("-data-dir").arg(self.lab.path("agentd"));
        self.process = Some(Running::start(&mut command)?);
        Ok(())
    }

    /// Its health route says 503 where there is no Docker; that it answers is what counts.
    fn healthy(&self) -> bool {
        let client = Client::new(Addr::Tcp(([127, 0, 0, 1], self.port).into()));
        client.timeout(Duration::from_secs(2)).get("/health").is_ok()
    }

    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn open(&self) -> Result<String, Problem> {
        let body = json!({
            "agent": "claude", "prompt": "SAY hi", "work_dir": self.lab.workspace(), "interactive": true,
            "idempotency_key": self.key(),
        });
        let made = accepted("making a session", self.client()?.post("/api/v1/sessions", &body))?.json();
        let session = made["data"]["session_id"].as_str().unwrap_or_default().to_owned();
        self.wait_idle(&session, 0)?;
        Ok(session)
    }

    fn turn(&self, session: &str, script: &str) -> Result<(), Problem> {
        let client = self.client()?;
        let before = self.shown(&client, session)?["last_sequence"].as_u64().unwrap_or(0);
        let path = format!("/api/v1/sessions/{session}/input");
        let body = json!({ "idempotency_key": self.key(), "kind": "prompt", "text": script });
        accepted("a prompt", client.post(&path, &body))?;
        self.wait_idle(session, before)
    }

    fn round_trip(&self, session: &str) -> Result<(), Problem> {
        let mut feed = self.feed(session, From::Now)?;
        let mut seen = Seen::default();
        let path = format!("/api/v1/sessions/{session}/input");
        let body = json!({ "idempotency_key": self.key(), "kind": "prompt", "text": "SAY hi" });
        accepted("a prompt", self.client()?.post(&path, &body))?;
        let give_up = Instant::now() + TURN_LIMIT;
        while seen.turns == 0 {
            if seen.over || Instant::now() > give_up {
                return Err(Problem::Late { what: "the end of a turn", limit: TURN_LIMIT });
            }
            feed.pull(Duration::from_secs(1), &mut seen);
        }
        // The event comes before the session takes the next prompt.
        self.wait_idle(session, 0)
    }

    fn feed(&self, session: &str, from: From) -> Result<Box<dyn Feed>, Problem> {
        let after = match from {
            From::Beginning => 0,
            From::Now => self.shown(&self.client()?, session)?["last_sequence"].as_u64().unwrap_or(0),
        };
        let path = format!("/api/v1/ws/sessions/{session}/events?after_sequence={after}");
        let ws = Ws::connect(self.port, &path, &format!("agentd.v1, agentd.auth.{}", self.token()?))?;
        Ok(Box::new(Texts { ws, read: read_text }))
    }

    fn data(&self) -> Option<PathBuf> {
        Some(self.lab.path("agentd"))
    }

    fn tail(&self, session: &str) -> Result<(), Problem> {
        let client = self.client()?;
        let newest = self.shown(&client, session)?["last_sequence"].as_u64().unwrap_or(0);
        let after = newest.saturating_sub(50);
        let path = format!("/api/v1/sessions/{session}/events?after_sequence={after}");
        accepted("the tail page", client.get(&path)).map(drop)
    }

    fn fate(&self, session: &str) -> Result<Option<Fate>, Problem> {
        let shown = self.shown(&self.client()?, session)?;
        let lost = shown["generation_state"] == "lost";
        Ok(Some(match (shown["running_turn"].as_bool(), lost) {
            (Some(true), true) => Fate::ClaimedToRun,
            (Some(true), false) => Fate::GoesOn,
            _ => Fate::Ended,
        }))
    }

    fn line_bytes(&self, text: u64) -> u64 {
        stream_json::LINE_BYTES + text
    }

    fn kill(&self) -> Result<(), Problem> {
        lab::kill_process_of(self.process.as_ref())
    }
}

fn read_text(text: &str, seen: &mut Seen) {
    // The payload stands before the raw line, which is in base64 and holds no such names.
    if text.contains("\"type\":\"content.delta\"") {
        seen.frames(1, text);
    } else if text.contains("\"type\":\"turn.completed\"") {
        seen.turns += 1;
    }
}
