//! Codex app-server as a host: several clients on one WebSocket port, threads in files. It is the agent too, so the
//! figures hold the agent's own work; a scripted model stands behind it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use mainstay_testkit::{CodexHome, codex_home};
use serde_json::{Value, json};

use super::{Durable, Facts, Fate, Host, TURN_LIMIT};
use crate::feed::{Feed, From, Seen};
use crate::lab::{self, Lab, Programs, Running, free_port};
use crate::model;
use crate::problem::{Problem, shortened};
use crate::ws::{Texts, Ws};

struct Codex {
    lab: Lab,
    home: CodexHome,
    binary: PathBuf,
    port: u16,
    process: Option<Running>,
    next: AtomicU64,
}

pub(super) fn make(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    let scope = programs.agents.join("node_modules/@openai/codex-linux-x64/vendor");
    let targets = std::fs::read_dir(scope).into_iter().flatten().flatten();
    let binary = targets.map(|target| target.path().join("bin/codex")).find(|binary| binary.is_file());
    let binary = binary.ok_or_else(|| Problem::NotInstalled("run `cargo xtask setup`".to_owned()))?;
    let lab = Lab::new(programs)?;
    let home = codex_home(&lab.path("codex-home"), &format!("http://127.0.0.1:{}/v1", model::start()?));
    Ok(Box::new(Codex { lab, home, binary, port: free_port()?, process: None, next: AtomicU64::new(1) }))
}

/// A client: a connection that has said hello.
struct Connection<'a> {
    ws: Ws,
    next: &'a AtomicU64,
}

impl Connection<'_> {
    fn call(&mut self, method: &str, params: &Value) -> Result<Value, Problem> {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        self.ws.send(json!({ "id": id, "method": method, "params": params }).to_string())?;
        let mut answer = Value::Null;
        self.ws.until("an answer", TURN_LIMIT, |text| {
            if !text.contains("\"id\"") {
                return false;
            }
            answer = serde_json::from_str(text).unwrap_or_default();
            answer["id"] == id && answer.get("method").is_none()
        })?;
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => Err(Problem::Unexpected { what: "a request", answer: shortened(&answer.to_string()) }),
        }
    }
}

impl Codex {
    fn connect(&self) -> Result<Connection<'_>, Problem> {
        let mut connection = Connection { ws: Ws::connect(self.port, "/", "")?, next: &self.next };
        let client = json!({ "name": "bench", "title": "bench", "version": "1" });
        let capabilities = json!({ "experimentalApi": true });
        connection.call("initialize", &json!({ "clientInfo": client, "capabilities": capabilities }))?;
        connection.ws.send(json!({ "method": "initialized" }).to_string())?;
        Ok(connection)
    }

    fn start_thread(&self) -> Result<(String, Connection<'_>), Problem> {
        let mut connection = self.connect()?;
        let made = connection.call("thread/start", &json!({ "cwd": self.lab.workspace() }))?;
        Ok((made["thread"]["id"].as_str().unwrap_or_default().to_owned(), connection))
    }
}

/// A turn, on a connection that has the thread.
fn play(connection: &mut Connection<'_>, thread: &str, script: &str) -> Result<(), Problem> {
    let input = json!([{ "type": "text", "text": model::marked(script) }]);
    connection.call("turn/start", &json!({ "threadId": thread, "input": input }))?;
    connection.ws.until("the end of a turn", TURN_LIMIT, |text| text.contains("\"turn/completed\""))?;
    Ok(())
}

impl Host for Codex {
    fn facts(&self) -> Facts {
        Facts {
            name: "codex app-server".to_owned(),
            version: "0.171.0".to_owned(),
            durable: Durable::Written,
            agent: "itself, with a scripted model".to_owned(),
            burst: 30_000,
            only: &[],
        }
    }

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn launch(&mut self) -> Result<(), Problem> {
        let mut command = self.lab.command(&self.binary)?;
        command.args(["app-server", "--listen", &format!("ws://127.0.0.1:{}", self.port)]);
        command.envs(self.home.env());
        self.process = Some(Running::start(&mut command)?);
        Ok(())
    }

    fn healthy(&self) -> bool {
        self.connect().is_ok()
    }

    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn rest(&self) -> Result<(), Problem> {
        self.start_thread().map(drop)
    }

    fn open(&self) -> Result<String, Problem> {
        let (thread, mut connection) = self.start_thread()?;
        play(&mut connection, &thread, "SAY hi")?;
        Ok(thread)
    }

    /// The client that gives the turn is a reader too: there is no other way.
    fn turn(&self, session: &str, script: &str) -> Result<(), Problem> {
        let mut connection = self.connect()?;
        connection.call("thread/resume", &json!({ "threadId": session, "excludeTurns": true }))?;
        play(&mut connection, session, script)
    }

    fn round_trip(&self, session: &str) -> Result<(), Problem> {
        self.turn(session, "SAY hi")
    }

    fn feed(&self, session: &str, _from: From) -> Result<Box<dyn Feed>, Problem> {
        let mut connection = self.connect()?;
        connection.call("thread/resume", &json!({ "threadId": session, "excludeTurns": true }))?;
        Ok(Box::new(Texts { ws: connection.ws, read: read_text }))
    }

    fn data(&self) -> Option<PathBuf> {
        Some(self.home.codex_home.clone())
    }

    fn fate(&self, session: &str) -> Result<Option<Fate>, Problem> {
        let mut connection = self.connect()?;
        match connection.call("thread/resume", &json!({ "threadId": session, "excludeTurns": true })) {
            Ok(_) => Ok(Some(Fate::Ended)),
            Err(Problem::Unexpected { .. }) => Ok(Some(Fate::Unknown)),
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

fn read_text(text: &str, seen: &mut Seen) {
    if text.contains("\"item/agentMessage/delta\"") {
        seen.frames(1, text);
    } else if text.contains("\"turn/completed\"") {
        seen.turns += 1;
    }
}
