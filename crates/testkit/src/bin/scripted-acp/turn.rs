//! One prompt being worked on, in a thread of its own so that the agent goes on reading.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainstay_testkit::stream_text;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::{Value, json};

use crate::DETACHED;
use crate::memory::Memory;
use crate::output::{Output, text_chunk};
use crate::script::{self, Step};

/// What all turns of this process share.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) output: Output,
    pub(crate) ignore_eof: AtomicBool,
    next_id: AtomicUsize,
    /// Answers to our own requests, by request id; `None` until they come.
    answers: Mutex<HashMap<usize, Option<Value>>>,
    /// Something a turn may be waiting for has happened.
    happened: Condvar,
}

impl Agent {
    pub(crate) fn new(output: Output) -> Self {
        Self {
            output,
            ignore_eof: AtomicBool::new(false),
            next_id: AtomicUsize::new(0),
            answers: Mutex::default(),
            happened: Condvar::new(),
        }
    }

    /// A number never used before in this process.
    fn fresh(&self) -> usize {
        self.next_id.fetch_add(1, Ordering::SeqCst)
    }

    fn answers(&self) -> MutexGuard<'_, HashMap<usize, Option<Value>>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client answered request `id`; an error counts as null. Answers to what was never asked, or is
    /// no longer waited for, are ignored.
    pub(crate) fn settle(&self, id: &Value, result: Option<Value>) {
        let number = id.as_u64().and_then(|number| usize::try_from(number).ok());
        let mut answers = self.answers();
        if let Some(slot) = number.and_then(|number| answers.get_mut(&number)) {
            slot.get_or_insert(result.unwrap_or(Value::Null));
        }
        self.happened.notify_all();
    }

    fn wake(&self) {
        // Under the lock: a turn that has just looked and is about to wait must not miss it.
        let _answers = self.answers();
        self.happened.notify_all();
    }

    /// From now on SIGTERM sets a flag that nobody reads.
    pub(crate) fn ignore_term(&self) -> io::Result<()> {
        signal_hook::flag::register(signal_hook::consts::SIGTERM, Arc::new(AtomicBool::new(false)))?;
        Ok(())
    }
}

/// How the prompt is answered.
enum Answer {
    Ended,
    Error { code: i64, message: String },
    Never,
}

/// One prompt.
#[derive(Debug)]
pub(crate) struct Turn {
    session: String,
    request: Value,
    memory: Memory,
    agent: Arc<Agent>,
    cancelled: AtomicBool,
    over: AtomicBool,
}

impl Turn {
    pub(crate) fn new(session: String, request: Value, memory: Memory, agent: Arc<Agent>) -> Self {
        Self {
            session,
            request,
            memory,
            agent,
            cancelled: AtomicBool::new(false),
            over: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        self.agent.wake();
    }

    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Plays the script. A client that no longer reads ends the process, as it ends real agents.
    pub(crate) fn run(&self, script: &str) {
        if let Err(error) = self.play(&script::parse(script)) {
            use std::io::Write;
            writeln!(io::stderr(), "scripted-acp: {error}").ok();
            if !self.agent.ignore_eof.load(Ordering::SeqCst) {
                std::process::exit(1);
            }
        }
    }

    fn play(&self, steps: &[Step]) -> io::Result<()> {
        let mut late = false;
        let mut answer = Answer::Ended;
        for step in steps {
            if self.is_cancelled() {
                break;
            }
            match step {
                Step::Late => late = true,
                Step::Never => {
                    answer = Answer::Never;
                    break;
                }
                Step::Error { code, message } => {
                    answer = Answer::Error { code: *code, message: message.clone() };
                    break;
                }
                other => self.step(other)?,
            }
        }
        // Before the answer: a client may prompt again as soon as it has it.
        self.over.store(!matches!(answer, Answer::Never), Ordering::SeqCst);
        let output = &self.agent.output;
        match answer {
            Answer::Never => return Ok(()),
            Answer::Error { code, message } => output.refuse(&self.request, code, &message)?,
            Answer::Ended => {
                let reason = if self.is_cancelled() { "cancelled" } else { "end_turn" };
                output.answer(&self.request, json!({"stopReason": reason}))?;
            }
        }
        if late { output.update(&self.session, text_chunk("late", None)) } else { Ok(()) }
    }

    fn update(&self, update: Value) -> io::Result<()> {
        self.agent.output.update(&self.session, update)
    }

    fn step(&self, step: &Step) -> io::Result<()> {
        match step {
            Step::Say(text) => self.say(stream_text::words(text).into_iter()),
            Step::Think(text) => self.update(json!({
                "sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text},
            })),
            Step::Deltas { count, size } => self.say(stream_text::deltas(*count, *size)),
            Step::Burst { count, size, one_message } => {
                let id = format!("message-{}", self.agent.fresh());
                let message_id = one_message.then_some(id.as_str());
                self.agent.output.burst(&self.session, message_id, stream_text::deltas(*count, *size))?;
                self.memory.keep_reply(&stream_text::whole(*count, *size))
            }
            Step::Stamps { count, every_us } => {
                let every = Duration::from_micros(*every_us as u64);
                self.say(stream_text::stamps(*count, every))
            }
            Step::Gate(path) => self.stand_at(Path::new(path)),
            Step::Hold => {
                self.wait_for(|_| None::<()>);
                Ok(())
            }
            Step::Ask(title) => self.ask(title),
            Step::Tool(title) => self.tool(title),
            Step::Run(command) => self.run_command(command),
            Step::Spawn { command, holds_output } => self.spawn(command, *holds_output),
            Step::IgnoreTerm => self.agent.ignore_term(),
            Step::IgnoreEof => {
                self.agent.ignore_eof.store(true, Ordering::SeqCst);
                Ok(())
            }
            Step::Die(code) => std::process::exit(*code),
            // Rust's own handler takes the first one, sees no stack overflow, and restores the default.
            Step::Segv => loop {
                kill_process(getpid(), Signal::SEGV)?;
            },
            Step::BadLine => self.agent.output.bytes(b"this line is not JSON\n"),
            Step::BigLine(bytes) => self.update(text_chunk(&"x".repeat(*bytes), None)),
            Step::UnknownUpdate => {
                self.update(json!({"sessionUpdate": "mystery_update", "mystery": {"depth": 1}}))
            }
            Step::Raw(line) => self.agent.output.bytes(format!("{line}\n").as_bytes()),
            // Handled where the prompt is answered.
            Step::Never | Step::Error { .. } | Step::Late => Ok(()),
        }
    }

    /// One message, a chunk for each piece; stops between two when cancelled.
    fn say(&self, pieces: impl Iterator<Item = String>) -> io::Result<()> {
        let id = format!("message-{}", self.agent.fresh());
        let mut said = String::new();
        for piece in pieces {
            if self.is_cancelled() {
                break;
            }
            self.update(text_chunk(&piece, Some(&id)))?;
            said.push_str(&piece);
        }
        self.memory.keep_reply(&said)
    }

    /// Waits until `look` finds something in the answers, or the turn is cancelled.
    fn wait_for<T>(&self, look: impl Fn(&mut HashMap<usize, Option<Value>>) -> Option<T>) -> Option<T> {
        let mut answers = self.agent.answers();
        loop {
            if let Some(found) = look(&mut answers) {
                return Some(found);
            }
            if self.is_cancelled() {
                return None;
            }
            answers = self.agent.happened.wait(answers).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// A thread of its own blocks on the gate, so that a cancel is still seen; when the turn is cancelled
    /// that thread stays behind until the gate opens.
    fn stand_at(&self, gate: &Path) -> io::Result<()> {
        let open = Arc::new(Mutex::new(None));
        std::thread::spawn({
            let open = Arc::clone(&open);
            let agent = Arc::clone(&self.agent);
            let gate = gate.to_path_buf();
            move || {
                let outcome = wait_at_gate(&gate);
                *open.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                agent.wake();
            }
        });
        self.wait_for(|_| open.lock().unwrap_or_else(PoisonError::into_inner).take()).unwrap_or(Ok(()))
    }

    fn ask(&self, title: &str) -> io::Result<()> {
        let request = self.agent.fresh();
        self.agent.answers().insert(request, None);
        let option = |id: &str, name: &str| json!({"optionId": id, "name": name, "kind": id});
        self.agent.output.line(&json!({
            "jsonrpc": "2.0", "id": request, "method": "session/request_permission",
            "params": {
                "sessionId": self.session,
                "toolCall": {
                    "toolCallId": format!("tool-{request}"), "title": title, "kind": "execute", "status": "pending",
                },
                "options": [
                    option("allow_once", "Allow"), option("allow_always", "Always allow"),
                    option("reject_once", "Reject"), option("reject_always", "Always reject"),
                ],
            },
        }))?;
        let answer = self.wait_for(|answers| answers.get_mut(&request).and_then(Option::take));
        self.agent.answers().remove(&request);
        let Some(answer) = answer else { return Ok(()) }; // cancelled: the prompt's answer says so
        let outcome = answer.get("outcome");
        let chosen = outcome.and_then(|outcome| outcome.get("optionId")).and_then(Value::as_str);
        match chosen {
            Some(option) if option.starts_with("allow") => {
                self.say([format!("allowed:{option}")].into_iter())
            }
            _ => self.say(["denied".to_owned()].into_iter()),
        }
    }

    fn tool(&self, title: &str) -> io::Result<()> {
        let id = format!("tool-{}", self.agent.fresh());
        self.update(json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": title, "kind": "other",
            "status": "in_progress",
        }))?;
        self.update(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed",
            "content": [tool_text(&format!("{title}: done"))],
        }))
    }

    /// Each update carries the whole output so far: in ACP an update's content replaces the one before.
    fn run_command(&self, command: &str) -> io::Result<()> {
        let id = format!("tool-{}", self.agent.fresh());
        self.update(json!({
            "sessionUpdate": "tool_call", "toolCallId": id, "title": command, "kind": "execute",
            "status": "in_progress", "rawInput": {"command": command},
        }))?;
        let (mut reader, writer) = io::pipe()?;
        let mut child = Command::new("sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .spawn()?;
        let mut output = Vec::new();
        let mut piece = [0; 8192];
        loop {
            let received = reader.read(&mut piece)?;
            if received == 0 {
                break;
            }
            output.extend_from_slice(&piece[..received]);
            self.update(json!({
                "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "in_progress",
                "content": [tool_text(&String::from_utf8_lossy(&output))],
            }))?;
        }
        let status = child.wait()?;
        self.update(json!({
            "sessionUpdate": "tool_call_update", "toolCallId": id,
            "status": if status.success() { "completed" } else { "failed" },
            "content": [tool_text(&String::from_utf8_lossy(&output))],
            "rawOutput": {"exitCode": status.code()},
        }))
    }

    fn spawn(&self, command: &str, holds_output: bool) -> io::Result<()> {
        let mut detached = Command::new(std::env::current_exe()?);
        detached.args([DETACHED, command]).stdin(Stdio::null()).stderr(Stdio::null());
        if !holds_output {
            detached.stdout(Stdio::null());
        }
        let child = detached.spawn()?;
        self.say([format!("spawned:{} ", child.id())].into_iter())
        // Never waited for: outliving the agent is what it is there for.
    }
}

fn tool_text(text: &str) -> Value {
    json!({"type": "content", "content": {"type": "text", "text": text}})
}

/// Blocks until there is a plain file at `gate`, or somebody opens the fifo there for writing; makes that
/// fifo when there is nothing. Once open, a gate stays open: the fifo becomes a plain file.
fn wait_at_gate(gate: &Path) -> io::Result<()> {
    match mkfifoat(CWD, gate, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // Of a plain file this returns at once; of a fifo when a writer has opened and closed it.
    fs::read(gate)?;
    let mut opened: PathBuf = gate.to_path_buf();
    opened.as_mut_os_string().push(".opened");
    fs::write(&opened, b"open\n")?;
    fs::rename(&opened, gate)
}
