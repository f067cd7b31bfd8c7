//! An agent process that a test speaks to itself, in JSON lines over its standard input and output.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::wait::wait_for;

/// A line the agent wrote.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    /// A JSON value.
    Json(Value),
    /// Anything else, as text.
    Other(String),
}

/// A running agent. Dropping it kills it. Its output is read as fast as it comes and held until asked for;
/// the only bound is what the test makes the agent say.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<Line>,
    /// Passed over while something else was waited for; still to be received, oldest first.
    kept: VecDeque<Line>,
    next_id: u64,
}

impl Peer {
    /// Starts `command` with piped standard input and output. The caller sets arguments and a **clean**
    /// environment.
    ///
    /// # Panics
    /// When it cannot be started.
    #[track_caller]
    pub fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start the agent");
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().expect("standard output is piped");
        let (write, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                let line = serde_json::from_str(&line).map_or(Line::Other(line), Line::Json);
                if write.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, stdin, lines, kept: VecDeque::new(), next_id: 1 }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes one message.
    ///
    /// # Panics
    /// When the agent no longer reads.
    #[track_caller]
    pub fn send(&mut self, message: &Value) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        stdin.write_all(format!("{message}\n").as_bytes()).expect("write to the agent");
    }

    /// Sends a notification.
    #[track_caller]
    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Sends a request and gives its id.
    #[track_caller]
    pub fn ask(&mut self, method: &str, params: Value) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        id
    }

    /// Sends a request and waits for its answer, the whole message. What comes in between is kept for
    /// later calls.
    ///
    /// # Panics
    /// When no answer comes before `deadline`.
    #[track_caller]
    pub fn request(&mut self, method: &str, params: Value, deadline: Duration) -> Value {
        let id = self.ask(method, params);
        self.wait_for(deadline, &format!("the answer to {method}"), |message| is_answer(message, id))
    }

    /// The first message, kept or new, that `wanted` accepts; others are kept in their order.
    ///
    /// # Panics
    /// When none comes before `deadline`.
    #[track_caller]
    pub fn wait_for(
        &mut self,
        deadline: Duration,
        what: &str,
        mut wanted: impl FnMut(&Value) -> bool,
    ) -> Value {
        let mut accepts = |line: &Line| matches!(line, Line::Json(message) if wanted(message));
        if let Some(at) = self.kept.iter().position(&mut accepts)
            && let Some(Line::Json(message)) = self.kept.remove(at)
        {
            return message;
        }
        let give_up_at = Instant::now() + deadline;
        loop {
            let left = give_up_at.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("{what} did not come within {deadline:?}; kept: {:#?}", self.kept);
            };
            match line {
                line if !accepts(&line) => self.kept.push_back(line),
                Line::Json(message) => return message,
                other @ Line::Other(_) => self.kept.push_back(other),
            }
        }
    }

    /// The next line in order, kept or new; `None` at the deadline or at the end of output.
    pub fn next(&mut self, deadline: Duration) -> Option<Line> {
        self.kept.pop_front().or_else(|| self.lines.recv_timeout(deadline).ok())
    }

    /// Closes the agent's standard input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Waits for the agent's end.
    ///
    /// # Panics
    /// When it has not ended at `deadline`.
    #[track_caller]
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        match wait_for(deadline, || self.child.try_wait().expect("ask for the exit status")) {
            Some(status) => status,
            None => panic!("the agent still runs after {deadline:?}"),
        }
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_none())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Both fail only for a child that is already reaped.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Whether `message` answers request `id`.
pub fn is_answer(message: &Value, id: u64) -> bool {
    message.get("method").is_none() && message.get("id").and_then(Value::as_u64) == Some(id)
}
