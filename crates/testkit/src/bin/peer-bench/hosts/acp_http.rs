//! sandbox-agent and acp-http-adapter: ACP over HTTP, one ring of messages in memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mainstay_testkit::http::{Addr, Client};
use serde_json::{Value, json};

use super::{Durable, Facts, Fate, Host, TURN_LIMIT};
use crate::feed::{Feed, From, Lines, Seen};
use crate::lab::{self, Lab, Programs, Running, free_port};
use crate::problem::{Problem, accepted};

/// Beyond every id that one of these rings can have given: a reader with it gets only what is new.
const AFTER_ALL: &str = "1000000000";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    SandboxAgent,
    Adapter,
}

struct AcpHttp {
    lab: Lab,
    kind: Kind,
    port: u16,
    process: Option<Running>,
    next: AtomicU64,
    /// The adapter has one agent process, which is greeted once.
    greeted: Mutex<bool>,
}

pub(super) fn sandbox_agent(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    let lab = Lab::new(programs)?;
    programs.npm("@sandbox-agent/cli-linux-x64/bin/sandbox-agent")?;
    let installed = lab.path("data/sandbox-agent/bin");
    lab.script(&installed.join("claude"), "echo 'claude 9.9.9'")?;
    let agent = programs.own("scripted-acp");
    lab.script(&installed.join("agent_processes/claude-acp"), &format!("exec '{}'", agent.display()))?;
    make(lab, Kind::SandboxAgent)
}

pub(super) fn adapter(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    programs.peer("cargo/bin/acp-http-adapter")?;
    make(Lab::new(programs)?, Kind::Adapter)
}

fn make(lab: Lab, kind: Kind) -> Result<Box<dyn Host>, Problem> {
    let (port, next, greeted) = (free_port()?, AtomicU64::new(1), Mutex::new(false));
    Ok(Box::new(AcpHttp { lab, kind, port, process: None, next, greeted }))
}

impl AcpHttp {
    fn client(&self) -> Client {
        Client::new(Addr::Tcp(([127, 0, 0, 1], self.port).into())).timeout(TURN_LIMIT)
    }

    fn path(&self, session: &str) -> String {
        match self.kind {
            Kind::SandboxAgent => format!("/v1/acp/{}", session.split('/').next().unwrap_or_default()),
            Kind::Adapter => "/v1/rpc".to_owned(),
        }
    }

    fn call(&self, path: &str, method: &str, params: &Value) -> Result<Value, Problem> {
        let id = self.next.fetch_add(1, Ordering::SeqCst);
        let body = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let answer =
            accepted("an ACP request", self.client().header("accept", "application/json").post(path, &body))?;
        let answer = answer.json();
        match answer.get("result") {
            Some(result) => Ok(result.clone()),
            None => Err(Problem::Unexpected { what: "an ACP request", answer: answer.to_string() }),
        }
    }

    fn new_session(&self, path: &str) -> Result<String, Problem> {
        let params = json!({ "cwd": self.lab.workspace(), "mcpServers": [] });
        let made = self.call(path, "session/new", &params)?;
        Ok(made["sessionId"].as_str().unwrap_or_default().to_owned())
    }
}

const HELLO: &str = r#"{"protocolVersion": 1, "clientCapabilities": {}}"#;

impl Host for AcpHttp {
    fn facts(&self) -> Facts {
        let (name, version) = match self.kind {
            Kind::SandboxAgent => ("sandbox-agent", "0.4.2"),
            Kind::Adapter => ("acp-http-adapter", "0.5.5"),
        };
        Facts {
            name: name.to_owned(),
            version: version.to_owned(),
            durable: Durable::No,
            agent: "scripted ACP agent".to_owned(),
            burst: 300_000,
            only: &[],
        }
    }

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn launch(&mut self) -> Result<(), Problem> {
        let port = self.port.to_string();
        let programs = &self.lab.programs;
        let mut command = match self.kind {
            Kind::SandboxAgent => {
                let binary = programs.npm("@sandbox-agent/cli-linux-x64/bin/sandbox-agent")?;
                let mut command = self.lab.command(&binary)?;
                command.args(["server", "--no-token", "--no-telemetry"]);
                command.env("SANDBOX_AGENT_REQUIRE_PREINSTALL", "true").env("SANDBOX_AGENT_LOG_STDOUT", "1");
                command
            }
            Kind::Adapter => {
                let distribution =
                    json!({ "linux-x86_64": { "cmd": programs.own("scripted-acp"), "args": [] } });
                let registry = json!({
                    "id": "scripted", "name": "scripted", "version": "1", "distribution": { "binary": distribution },
                });
                let mut command = self.lab.command(&programs.peer("cargo/bin/acp-http-adapter")?)?;
                command.args(["--registry-json", &registry.to_string()]);
                command
            }
        };
        command.args(["--host", "127.0.0.1", "--port", &port]).env("RUST_LOG", "error");
        *self.greeted.lock().unwrap_or_else(PoisonError::into_inner) = false;
        self.process = Some(Running::start(&mut command)?);
        Ok(())
    }

    fn healthy(&self) -> bool {
        self.client()
            .timeout(Duration::from_secs(2))
            .get("/v1/health")
            .is_ok_and(|answer| answer.status == 200)
    }

    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn open(&self) -> Result<String, Problem> {
        let hello: Value = serde_json::from_str(HELLO).unwrap_or_default();
        let session = match self.kind {
            Kind::SandboxAgent => {
                let server = format!("s{}", self.next.fetch_add(1, Ordering::SeqCst));
                let path = self.path(&server);
                self.call(&format!("{path}?agent=claude"), "initialize", &hello)?;
                format!("{server}/{}", self.new_session(&path)?)
            }
            Kind::Adapter => {
                let path = self.path("");
                let mut greeted = self.greeted.lock().unwrap_or_else(PoisonError::into_inner);
                if !*greeted {
                    self.call(&path, "initialize", &hello)?;
                    *greeted = true;
                }
                format!("/{}", self.new_session(&path)?)
            }
        };
        self.turn(&session, "SAY hi")?;
        Ok(session)
    }

    fn turn(&self, session: &str, script: &str) -> Result<(), Problem> {
        let id = session.rsplit('/').next().unwrap_or_default();
        let params = json!({ "sessionId": id, "prompt": [{ "type": "text", "text": script }] });
        self.call(&self.path(session), "session/prompt", &params).map(drop)
    }

    fn feed(&self, session: &str, from: From) -> Result<Box<dyn Feed>, Problem> {
        let after = if from == From::Now { AFTER_ALL } else { "0" };
        let stream = self.client().events(&self.path(session), &[("last-event-id", after)]);
        Ok(Box::new(Lines::new(stream.map_err(Problem::io("the event stream"))?, read_line)))
    }

    fn kill(&self) -> Result<(), Problem> {
        lab::kill_process_of(self.process.as_ref())
    }

    fn data(&self) -> Option<PathBuf> {
        None
    }

    fn fate(&self, session: &str) -> Result<Option<Fate>, Problem> {
        match self.turn(session, "SAY again") {
            Ok(()) => Ok(Some(Fate::Ended)),
            Err(Problem::Refused { .. } | Problem::Unexpected { .. }) => Ok(Some(Fate::Unknown)),
            Err(other) => Err(other),
        }
    }
}

fn read_line(line: &str, seen: &mut Seen) {
    if line.starts_with("data:") && line.contains("agent_message_chunk") {
        seen.frames(1, line);
    }
}
