//! Mainstay itself, over the same HTTP that any client uses.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use mainstay_testkit::http::{Addr, Client};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Durable, Facts, Fate, Host, TURN_LIMIT};
use crate::feed::{Feed, From, Lines, Readers, Seen};
use crate::lab::{self, Lab, Programs, Running, free_port};
use crate::problem::{Problem, accepted};

/// Between two looks at a session where no stream is open: short beside a burst, and rare enough to cost it nothing.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What is measured of the variant that differs only in when it syncs.
const FLUSH_ROWS: &[&str] = &["latency_p50", "latency_p99", "frames_1", "arrived_1", "cpu", "turn"];

struct Mainstay {
    lab: Lab,
    port: u16,
    process: Option<Running>,
    at_once: bool,
}

pub(super) fn standard(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    make(programs, false)
}

/// With `stream_flush = 0`: text is synced and shown as soon as it comes.
pub(super) fn at_once(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    make(programs, true)
}

fn make(programs: &Programs, at_once: bool) -> Result<Box<dyn Host>, Problem> {
    let lab = Lab::new(programs)?;
    let agent = mainstay_testkit::mainstay::acp_config("scripted", &programs.own("scripted-acp"), &[]);
    let flush = if at_once { "stream_flush = \"0ms\"\n" } else { "" };
    lab.write(&lab.path("mainstay/config.toml"), &format!("{flush}{agent}"))?;
    Ok(Box::new(Mainstay { lab, port: free_port()?, process: None, at_once }))
}

impl Mainstay {
    fn client(&self) -> Result<Client, Problem> {
        let token =
            std::fs::read_to_string(self.lab.path("mainstay/token")).map_err(Problem::io("the token"))?;
        let addr = Addr::Tcp(([127, 0, 0, 1], self.port).into());
        Ok(Client::new(addr).bearer(token.trim()).timeout(TURN_LIMIT))
    }

    fn create(&self, prompt: Option<&str>) -> Result<String, Problem> {
        let mut body = json!({ "agent": "scripted", "cwd": self.lab.workspace() });
        if let Some(prompt) = prompt {
            body["prompt"] = prompt.into();
        }
        let made = accepted("making a session", self.client()?.post("/v1/sessions", &body))?.json();
        let id = made["id"].as_str().map(str::to_owned);
        id.ok_or_else(|| Problem::Unexpected { what: "a made session has no id", answer: made.to_string() })
    }

    fn shown(&self, client: &Client, session: &str) -> Result<Value, Problem> {
        Ok(accepted("a session", client.get(&format!("/v1/sessions/{session}")))?.json())
    }

    fn wait_idle(&self, session: &str) -> Result<(), Problem> {
        let client = self.client()?;
        let give_up = Instant::now() + TURN_LIMIT;
        while self.shown(&client, session)?["status"] != "idle" {
            if Instant::now() > give_up {
                return Err(Problem::Late { what: "the end of a turn", limit: TURN_LIMIT });
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(())
    }

    fn send(&self, session: &str, script: &str) -> Result<(), Problem> {
        let path = format!("/v1/sessions/{session}/messages");
        accepted("a message", self.client()?.post(&path, &json!({ "content": script })))?;
        Ok(())
    }
}

impl Host for Mainstay {
    fn facts(&self) -> Facts {
        let name = if self.at_once { "mainstay, stream_flush 0" } else { "mainstay" };
        Facts {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            durable: Durable::Synced,
            agent: "scripted ACP agent".to_owned(),
            burst: 300_000,
            only: if self.at_once { FLUSH_ROWS } else { &[] },
        }
    }

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn launch(&mut self) -> Result<(), Problem> {
        let mut command = self.lab.command(&self.lab.programs.own("mainstay"))?;
        command.arg("serve").env("MAINSTAY_HOME", self.lab.path("mainstay"));
        command.env("MAINSTAY_LISTEN", format!("127.0.0.1:{}", self.port));
        self.process = Some(Running::start(&mut command)?);
        Ok(())
    }

    fn healthy(&self) -> bool {
        let client = Client::new(Addr::Tcp(([127, 0, 0, 1], self.port).into()));
        client.get("/health").is_ok_and(|answer| answer.status == 200)
    }

    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn rest(&self) -> Result<(), Problem> {
        self.create(None).map(drop)
    }

    fn open(&self) -> Result<String, Problem> {
        let session = self.create(Some("SAY hi"))?;
        self.wait_idle(&session)?;
        Ok(session)
    }

    fn turn(&self, session: &str, script: &str) -> Result<(), Problem> {
        self.send(session, script)?;
        self.wait_idle(session)
    }

    fn round_trip(&self, session: &str) -> Result<(), Problem> {
        let readers = Readers::start(vec![self.feed(session, From::Now)?]);
        self.send(session, "SAY hi")?;
        let outcome = readers.wait_turns(1, TURN_LIMIT);
        readers.finish();
        outcome
    }

    fn feed(&self, session: &str, from: From) -> Result<Box<dyn Feed>, Problem> {
        let client = self.client()?;
        let after = match from {
            From::Beginning => String::new(),
            From::Now => {
                let cursor = &self.shown(&client, session)?["cursor"];
                format!("?after={}:{}", cursor["epoch"], cursor["seq"])
            }
        };
        let path = format!("/v1/sessions/{session}/events{after}");
        let stream = client.events(&path, &[]).map_err(Problem::io("the event stream"))?;
        Ok(Box::new(Lines::new(stream, read_line)))
    }

    fn kill(&self) -> Result<(), Problem> {
        lab::kill_process_of(self.process.as_ref())
    }

    fn data(&self) -> Option<PathBuf> {
        Some(self.lab.path("mainstay"))
    }

    fn tail(&self, session: &str) -> Result<(), Problem> {
        let path = format!("/v1/sessions/{session}/items?limit=50");
        accepted("the tail page", self.client()?.get(&path)).map(drop)
    }

    fn fate(&self, session: &str) -> Result<Option<Fate>, Problem> {
        let shown = self.shown(&self.client()?, session)?;
        match shown["status"].as_str() {
            Some("running") => Ok(Some(Fate::GoesOn)),
            Some("idle") => Ok(Some(Fate::Ended)),
            _ => Ok(None),
        }
    }
}

/// Several frames of one message are one event with a range of numbers.
#[derive(Deserialize)]
struct Delta {
    seq: u64,
    #[serde(default)]
    first_seq: Option<u64>,
}

fn read_line(line: &str, seen: &mut Seen) {
    let Some(data) = line.strip_prefix("data:") else { return };
    if data.contains("\"item.delta\"") {
        if let Ok(delta) = serde_json::from_str::<Delta>(data) {
            seen.frames(delta.seq - delta.first_seq.unwrap_or(delta.seq) + 1, data);
        }
    } else if data.contains("\"turn.ended\"") {
        seen.turns += 1;
    }
}
