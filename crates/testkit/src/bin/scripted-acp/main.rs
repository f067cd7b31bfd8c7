//! A scripted ACP v1 agent on standard input and output: what it does is chosen by the prompt.
//!
//! The prompt is a script of steps joined by ` ;; `; see [`script`] for the language. Faults that no
//! prompt can ask for because they come before any are switched on by the environment:
//!
//! | variable | effect |
//! |---|---|
//! | `SCRIPTED_DIE_AT=initialize\|new\|load\|prompt` | exits with code 3 on that request |
//! | `SCRIPTED_HANG_AT=…` | never answers that request |
//! | `SCRIPTED_IGNORE=term,eof` | as the steps `IGNORE_TERM` and `IGNORE_EOF`, from the start |
//! | `SCRIPTED_LOG=file` | appends one JSON line `{pid, session, prompt}` per prompt received |
//! | `SCRIPTED_STATE=folder` | where conversations are kept, instead of `.scripted` in the session's folder |
//!
//! Prompts are logged before anything else happens to them, so a test that counts deliveries also
//! counts those that are never answered. At end of input it exits with 0 at once, also in a turn.

mod memory;
mod output;
mod script;
mod turn;

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use memory::Memory;
use output::Output;
use turn::{Agent, Turn};

/// The first argument that turns this program into the start of a detached process.
pub(crate) const DETACHED: &str = "--detached";

/// The exit code of `SCRIPTED_DIE_AT`.
const DIED_AS_TOLD: i32 = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, command] = arguments.as_slice()
        && first == DETACHED
    {
        return run_detached(command);
    }
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // With standard error gone too there is nobody left to tell.
            writeln!(io::stderr(), "scripted-acp: {error}").ok();
            ExitCode::FAILURE
        }
    }
}

/// Becomes `command` in a session of its own.
fn run_detached(command: &str) -> ExitCode {
    let error = match rustix::process::setsid() {
        Ok(_) => Command::new("sh").args(["-c", command]).exec(),
        Err(error) => error.into(),
    };
    writeln!(io::stderr(), "scripted-acp: detach: {error}").ok();
    ExitCode::FAILURE
}

struct Session {
    memory: Memory,
    turn: Option<Arc<Turn>>,
}

/// Reads requests until the end of input.
fn serve() -> io::Result<()> {
    let agent = Arc::new(Agent::new(Output::default()));
    let ignored = std::env::var("SCRIPTED_IGNORE").unwrap_or_default();
    for switch in ignored.split(',') {
        match switch {
            "term" => agent.ignore_term()?,
            "eof" => agent.ignore_eof.store(true, Ordering::SeqCst),
            _ => {}
        }
    }
    let mut server = Server { agent: Arc::clone(&agent), sessions: HashMap::new(), made: 0 };
    for line in io::stdin().lock().lines() {
        let line = line?;
        match serde_json::from_str::<Value>(&line) {
            Ok(message) => server.handle(&message)?,
            Err(error) => {
                writeln!(io::stderr(), "scripted-acp: not JSON: {error}").ok();
            }
        }
    }
    while agent.ignore_eof.load(Ordering::SeqCst) {
        // Only a signal ends it now.
        std::thread::park();
    }
    // Not a return: a turn in another thread must not delay the end.
    std::process::exit(0);
}

struct Server {
    agent: Arc<Agent>,
    sessions: HashMap<String, Session>,
    made: usize,
}

impl Server {
    fn handle(&mut self, message: &Value) -> io::Result<()> {
        let id = message.get("id").filter(|id| !id.is_null());
        let Some(method) = message.get("method").and_then(Value::as_str) else {
            if let Some(id) = id {
                self.agent.settle(id, message.get("result").cloned());
            }
            return Ok(());
        };
        let params = message.get("params").unwrap_or(&Value::Null);
        let Some(id) = id else {
            if method == "session/cancel"
                && let Some(turn) = self.session(params).and_then(|session| session.turn.as_ref())
            {
                turn.cancel();
            }
            return Ok(());
        };
        let short_name = method.rsplit('/').next().unwrap_or(method);
        if method == "session/prompt" {
            log_prompt(params)?;
        }
        if switched("SCRIPTED_DIE_AT", short_name) {
            writeln!(io::stderr(), "scripted-acp: dies at {method} as it was told").ok();
            std::process::exit(DIED_AS_TOLD);
        }
        if switched("SCRIPTED_HANG_AT", short_name) {
            return Ok(());
        }
        match method {
            "initialize" => self.agent.output.answer(
                id,
                json!({
                    "protocolVersion": 1,
                    "agentCapabilities": {"loadSession": true, "promptCapabilities": {}},
                    "agentInfo": {"name": "scripted-acp", "version": env!("CARGO_PKG_VERSION")},
                    "authMethods": [],
                }),
            ),
            "session/new" => self.new_session(id, params),
            "session/load" => self.load_session(id, params),
            "session/prompt" => self.prompt(id, params),
            _ => self.agent.output.refuse(id, -32601, &format!("no method {method}")),
        }
    }

    fn session(&self, params: &Value) -> Option<&Session> {
        self.sessions.get(params.get("sessionId")?.as_str()?)
    }

    fn new_session(&mut self, id: &Value, params: &Value) -> io::Result<()> {
        self.made += 1;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        let session_id = format!("scripted-{now:x}-{}-{}", std::process::id(), self.made);
        let memory = Memory::create(&state_folder(params), &session_id)?;
        self.sessions.insert(session_id.clone(), Session { memory, turn: None });
        self.agent.output.answer(id, json!({"sessionId": session_id}))
    }

    fn load_session(&mut self, id: &Value, params: &Value) -> io::Result<()> {
        let session_id = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some((memory, kept)) = Memory::load(&state_folder(params), &session_id)? else {
            return self.agent.output.refuse(id, -32002, &format!("no session {session_id}"));
        };
        for entry in kept {
            self.agent.output.update(&session_id, entry.as_update())?;
        }
        self.sessions.insert(session_id, Session { memory, turn: None });
        self.agent.output.answer(id, json!({}))
    }

    fn prompt(&mut self, id: &Value, params: &Value) -> io::Result<()> {
        let session_id = params.get("sessionId").and_then(Value::as_str).unwrap_or_default().to_owned();
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return self.agent.output.refuse(id, -32002, &format!("no session {session_id}"));
        };
        if session.turn.as_ref().is_some_and(|turn| !turn.is_over()) {
            // Real agents differ here; a host that prompts twice has a fault that tests should see.
            return self.agent.output.refuse(id, -32600, "a prompt of this session is still open");
        }
        let text = prompt_text(params);
        session.memory.keep_prompt(&text)?;
        let agent = Arc::clone(&self.agent);
        let turn = Arc::new(Turn::new(session_id, id.clone(), session.memory.clone(), agent));
        session.turn = Some(Arc::clone(&turn));
        std::thread::spawn(move || turn.run(&text));
        Ok(())
    }
}

fn switched(variable: &str, method: &str) -> bool {
    std::env::var(variable).is_ok_and(|value| value == method)
}

fn state_folder(params: &Value) -> PathBuf {
    std::env::var_os("SCRIPTED_STATE").map(PathBuf::from).unwrap_or_else(|| {
        PathBuf::from(params.get("cwd").and_then(Value::as_str).unwrap_or(".")).join(".scripted")
    })
}

fn prompt_text(params: &Value) -> String {
    let blocks = params.get("prompt").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block.get("text")?.as_str()).collect();
    texts.join("\n")
}

/// One whole line in one write: several agents may log to one file.
fn log_prompt(params: &Value) -> io::Result<()> {
    let Some(path) = std::env::var_os("SCRIPTED_LOG") else {
        return Ok(());
    };
    let entry = json!({
        "pid": std::process::id(),
        "session": params.get("sessionId"),
        "prompt": prompt_text(params),
    });
    OpenOptions::new().create(true).append(true).open(path)?.write_all(format!("{entry}\n").as_bytes())
}
