//! The bare machine: a program that copies an agent's pipe to a socket and back, and does nothing else.
//!
//! It is started as any host is, as a process of its own, so that its figures stand beside theirs.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{Durable, Facts, Fate, Host, TURN_LIMIT};
use crate::feed::{Feed, From, Seen, take_lines};
use crate::lab::{self, Lab, Programs, Running, free_port};
use crate::problem::Problem;

/// The first argument that makes this program the copier.
pub(crate) const COPIER: &str = "copier";

/// Bytes of one copy: what a pipe holds.
const PIECE_BYTES: usize = 64 << 10;

/// Serves one agent to each connection, both ways.
pub(crate) fn run(port: u16, agent: &Path) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    for connection in listener.incoming() {
        let connection = connection?;
        connection.set_nodelay(true)?;
        let mut agent = Command::new(agent).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (agent.stdin.take(), agent.stdout.take());
        let incoming = connection.try_clone()?;
        if let (Some(input), Some(output)) = (input, output) {
            std::thread::spawn(move || copy(incoming, input));
            std::thread::spawn(move || copy(output, connection));
        }
    }
    Ok(())
}

/// An end of either side ends it; nobody needs to know which.
fn copy(mut from: impl Read, mut to: impl Write) {
    let mut piece = vec![0; PIECE_BYTES];
    while let Ok(count) = from.read(&mut piece) {
        if count == 0 || to.write_all(&piece[..count]).is_err() {
            return;
        }
    }
}

struct Copier {
    lab: Lab,
    port: u16,
    process: Option<Running>,
    open: Mutex<HashMap<String, TcpStream>>,
}

pub(super) fn make(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    let lab = Lab::new(programs)?;
    Ok(Box::new(Copier { lab, port: free_port()?, process: None, open: Mutex::default() }))
}

impl Copier {
    fn open_ones(&self) -> MutexGuard<'_, HashMap<String, TcpStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(mut connection: &TcpStream, id: u64, method: &str, params: &Value) -> Result<(), Problem> {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        connection.write_all(format!("{line}\n").as_bytes()).map_err(Problem::io("the copier's socket"))
    }

    fn answer(connection: &TcpStream) -> Result<Value, Problem> {
        let mut line = Vec::new();
        let mut byte = [0];
        let mut reader = connection;
        while byte != *b"\n" {
            reader.read_exact(&mut byte).map_err(Problem::io("the copier's socket"))?;
            line.extend(byte);
        }
        let unreadable = |_| Problem::Unexpected { what: "an answer", answer: "no JSON".to_owned() };
        serde_json::from_slice(&line).map_err(unreadable)
    }

    fn connection(&self, session: &str) -> Result<TcpStream, Problem> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let open = self.open_ones();
        let connection = open.get(session).ok_or_else(gone).and_then(TcpStream::try_clone);
        connection.map_err(Problem::io("the copier's socket"))
    }
}

impl Host for Copier {
    fn facts(&self) -> Facts {
        Facts {
            name: "bare copier".to_owned(),
            version: String::new(),
            durable: Durable::No,
            agent: "scripted ACP agent".to_owned(),
            burst: 300_000,
            only: &["frames_1", "arrived_1", "latency_p50", "latency_p99", "turn", "cpu", "start"],
        }
    }

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn launch(&mut self) -> Result<(), Problem> {
        let own = std::env::current_exe().map_err(Problem::io("our own program"))?;
        let mut command = self.lab.command(&own)?;
        command.args([COPIER, &self.port.to_string()]).arg(self.lab.programs.own("scripted-acp"));
        self.process = Some(Running::start(&mut command)?);
        Ok(())
    }

    /// By the kernel's list, because a connection would start an agent.
    fn healthy(&self) -> bool {
        let listening = format!(":{:04X} 00000000:0000 0A", self.port);
        std::fs::read_to_string("/proc/net/tcp").is_ok_and(|table| table.contains(&listening))
    }

    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn open(&self) -> Result<String, Problem> {
        let connection = TcpStream::connect(("127.0.0.1", self.port)).map_err(Problem::io("the copier"))?;
        connection.set_nodelay(true).map_err(Problem::io("the copier"))?;
        Self::write(&connection, 1, "initialize", &json!({ "protocolVersion": 1 }))?;
        Self::answer(&connection)?;
        let folder = json!({ "cwd": self.lab.workspace(), "mcpServers": [] });
        Self::write(&connection, 2, "session/new", &folder)?;
        let made = Self::answer(&connection)?;
        let session = made["result"]["sessionId"].as_str().unwrap_or_default().to_owned();
        self.open_ones().insert(session.clone(), connection);
        self.round_trip(&session)?;
        Ok(session)
    }

    /// The stream is the only answer there is, so whoever reads it sees the end.
    fn turn(&self, session: &str, script: &str) -> Result<(), Problem> {
        let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": script }] });
        Self::write(&self.connection(session)?, 3, "session/prompt", &params)
    }

    fn round_trip(&self, session: &str) -> Result<(), Problem> {
        self.turn(session, "SAY hi")?;
        let mut feed = self.feed(session, From::Now)?;
        let mut seen = Seen::default();
        let give_up = Instant::now() + TURN_LIMIT;
        while seen.turns == 0 {
            if seen.over || Instant::now() > give_up {
                return Err(Problem::Late { what: "the end of a turn", limit: TURN_LIMIT });
            }
            feed.pull(TURN_LIMIT, &mut seen);
        }
        Ok(())
    }

    fn feed(&self, session: &str, _from: From) -> Result<Box<dyn Feed>, Problem> {
        Ok(Box::new(Raw { connection: self.connection(session)?, buffer: Vec::new() }))
    }

    fn kill(&self) -> Result<(), Problem> {
        lab::kill_process_of(self.process.as_ref())
    }

    fn data(&self) -> Option<PathBuf> {
        None
    }

    fn fate(&self, _session: &str) -> Result<Option<Fate>, Problem> {
        Err(Problem::Unsupported("it keeps nothing"))
    }

    fn replays(&self) -> bool {
        false
    }

    fn most_readers(&self) -> usize {
        1
    }
}

struct Raw {
    connection: TcpStream,
    buffer: Vec<u8>,
}

impl Feed for Raw {
    fn pull(&mut self, limit: Duration, seen: &mut Seen) {
        let before = self.buffer.len();
        self.buffer.resize(before + PIECE_BYTES * 4, 0);
        let limited = self.connection.set_read_timeout(Some(limit));
        let outcome = limited.and_then(|()| self.connection.read(&mut self.buffer[before..]));
        let count = *outcome.as_ref().unwrap_or(&0);
        self.buffer.truncate(before + count);
        seen.over = matches!(outcome, Ok(0));
        seen.bytes += count as u64;
        take_lines(&mut self.buffer, read_line, seen);
    }
}

fn read_line(line: &str, seen: &mut Seen) {
    if line.contains("agent_message_chunk") {
        seen.frames(1, line);
    } else if line.contains("stopReason") {
        seen.turns += 1;
    }
}
