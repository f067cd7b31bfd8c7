//! opencode serve: an agent with an HTTP face, sessions in its own database, one stream of events for everything.

use std::path::PathBuf;
use std::time::Duration;

use mainstay_testkit::http::{Addr, Client};
use serde_json::json;

use super::{Durable, Facts, Fate, Host, TURN_LIMIT};
use crate::feed::{Feed, From, Lines, Seen};
use crate::lab::{self, Lab, Programs, Running, free_port};
use crate::model;
use crate::problem::{Problem, accepted};

const PROGRAM: &str = "opencode-linux-x64/bin/opencode";

struct Opencode {
    lab: Lab,
    port: u16,
    process: Option<Running>,
}

pub(super) fn make(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    programs.npm(PROGRAM)?;
    let lab = Lab::new(programs)?;
    let options = json!({ "baseURL": format!("http://127.0.0.1:{}/v1", model::start()?), "apiKey": "dummy" });
    let provider = json!({
        "npm": "@ai-sdk/openai-compatible", "name": "mock", "options": options,
        "models": { "mock": { "name": "mock" } },
    });
    let config = json!({
        "model": "mock/mock", "small_model": "mock/mock", "autoupdate": false, "share": "disabled",
        "provider": { "mock": provider },
    });
    lab.write(&lab.path("config/opencode/opencode.json"), &config.to_string())?;
    Ok(Box::new(Opencode { lab, port: free_port()?, process: None }))
}

impl Opencode {
    fn client(&self) -> Client {
        Client::new(Addr::Tcp(([127, 0, 0, 1], self.port).into())).timeout(TURN_LIMIT)
    }

    fn create(&self) -> Result<String, Problem> {
        let made =
            accepted("making a session", self.client().post("/session", &json!({ "title": "bench" })))?
                .json();
        Ok(made["id"].as_str().unwrap_or_default().to_owned())
    }
}

impl Host for Opencode {
    fn facts(&self) -> Facts {
        Facts {
            name: "opencode serve".to_owned(),
            version: "1.18.33".to_owned(),
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
        let mut command = self.lab.command(&self.lab.programs.npm(PROGRAM)?)?;
        command.args(["serve", "--hostname", "127.0.0.1", "--port", &self.port.to_string(), "--pure"]);
        for name in ["AUTOUPDATE", "MODELS_FETCH", "SHARE", "LSP_DOWNLOAD"] {
            command.env(format!("OPENCODE_DISABLE_{name}"), "1");
        }
        self.process = Some(Running::start(&mut command)?);
        Ok(())
    }

    fn healthy(&self) -> bool {
        let client = self.client().timeout(Duration::from_secs(5));
        client.get("/global/health").is_ok_and(|answer| answer.status == 200)
    }

    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn rest(&self) -> Result<(), Problem> {
        self.create().map(drop)
    }

    fn open(&self) -> Result<String, Problem> {
        let session = self.create()?;
        self.turn(&session, "SAY hi")?;
        Ok(session)
    }

    fn turn(&self, session: &str, script: &str) -> Result<(), Problem> {
        let parts = json!([{ "type": "text", "text": model::marked(script) }]);
        let path = format!("/session/{session}/message");
        accepted("a message", self.client().post(&path, &json!({ "parts": parts }))).map(drop)
    }

    /// One stream for all sessions, without a cursor.
    fn feed(&self, _session: &str, _from: From) -> Result<Box<dyn Feed>, Problem> {
        let stream = self.client().events("/event", &[]).map_err(Problem::io("the event stream"))?;
        Ok(Box::new(Lines::new(stream, read_line)))
    }

    fn data(&self) -> Option<PathBuf> {
        Some(self.lab.path("data/opencode"))
    }

    fn tail(&self, session: &str) -> Result<(), Problem> {
        let path = format!("/session/{session}/message?limit=50");
        accepted("the tail page", self.client().get(&path)).map(drop)
    }

    fn fate(&self, session: &str) -> Result<Option<Fate>, Problem> {
        match accepted("a session", self.client().get(&format!("/session/{session}"))) {
            Ok(_) => Ok(Some(Fate::Ended)),
            Err(Problem::Refused { status: 404, .. }) => Ok(Some(Fate::Unknown)),
            Err(other) => Err(other),
        }
    }

    fn replays(&self) -> bool {
        false
    }

    fn kill(&self) -> Result<(), Problem> {
        lab::kill_process_of(self.process.as_ref())
    }
}

fn read_line(line: &str, seen: &mut Seen) {
    if line.starts_with("data:") && line.contains("\"message.part.delta\"") {
        seen.frames(1, line);
    }
}
