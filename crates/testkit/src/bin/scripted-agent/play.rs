//! Steps as they are played.

use crate::script::{Awaited, Ending, Ignored, Step};
use crate::stage::{Scene, Stage, State};
use crate::{DETACHED, complain};
use mainstay_testkit::stream_text;
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::Value;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How a step left its block.
enum Next {
    Step,
    /// The block is over; nothing is ended by that.
    Hang,
}

impl Stage {
    /// Plays a block that is for no turn.
    pub(crate) fn play_block(self: &Arc<Self>, steps: &[Step], scene: &Scene) {
        for step in steps {
            match self.step(step, scene) {
                Ok(Next::Step) => {}
                Ok(Next::Hang) => return,
                Err(error) => return self.survive(Err(error)),
            }
        }
    }

    /// Plays a block and ends its turn.
    pub(crate) fn play_turn(self: &Arc<Self>, steps: &[Step], scene: &Scene) {
        for step in steps {
            if scene.is_cut() {
                break;
            }
            match self.step(step, scene) {
                Ok(Next::Step) => {}
                Ok(Next::Hang) => return,
                Err(error) => return self.survive(Err(error)),
            }
        }
        let ending = if scene.is_cut() { Ending::Cancelled } else { Ending::Completed };
        self.survive(self.end(scene, &ending));
    }

    fn end(self: &Arc<Self>, scene: &Scene, ending: &Ending) -> io::Result<()> {
        let Some(turn) = scene.turn.clone().or_else(|| self.running(&scene.thread)) else { return Ok(()) };
        if !self.over(&turn) {
            return Ok(());
        }
        self.flavour.end(self, &turn, ending)?;
        let waiting = self.state().waiting.pop_front();
        waiting.map_or(Ok(()), |prompt| self.prompted(prompt))
    }

    fn step(self: &Arc<Self>, step: &Step, scene: &Scene) -> io::Result<Next> {
        let text = |text: &str| self.spelled_out(text, scene);
        match step {
            Step::Say(words) => {
                let pieces = stream_text::words(&text(words));
                self.flavour.say(self, scene, &mut pieces.into_iter())?;
            }
            Step::Stream { count, size } => {
                self.flavour.say(self, scene, &mut stream_text::deltas(*count, *size))?;
            }
            Step::Huge(bytes) => {
                self.flavour.say(self, scene, &mut std::iter::once("x".repeat(*bytes)))?;
            }
            Step::Ask(title) => self.ask(scene, &text(title))?,
            Step::Tool { title, completes } => self.flavour.tool(self, scene, &text(title), *completes)?,
            Step::Run(command) => run(&text(command))?,
            Step::Spawn { command, holds_output } => spawn(&text(command), *holds_output)?,
            Step::WaitFor(awaited) => self.await_it(awaited, scene),
            Step::Pause(ms) => std::thread::sleep(Duration::from_millis(*ms)),
            Step::Heedless => {
                if let Some(turn) = &scene.turn {
                    turn.heedless.store(true, Ordering::SeqCst);
                }
            }
            Step::End(ending) => self.end(scene, ending)?,
            Step::Hang => return Ok(Next::Hang),
            Step::Default => self.by_itself(&scene.about),
            Step::Answer(result) => {
                self.flavour.answer(self, &scene.about, self.filled_in(result, scene))?;
            }
            Step::Refuse { code, words } => self.flavour.refuse(self, &scene.about, *code, &text(words))?,
            Step::Send(frame) => self.output.frame(&self.filled_in(frame, scene))?,
            Step::Trickle { pause_ms, frame } => {
                for byte in format!("{}\n", self.filled_in(frame, scene)).bytes() {
                    self.output.part(&[byte])?;
                    std::thread::sleep(Duration::from_millis(*pause_ms));
                }
            }
            Step::Raw(bytes) => self.output.message(&self.spelled_out_bytes(bytes, scene))?,
            Step::Part(bytes) => self.output.part(&self.spelled_out_bytes(bytes, scene))?,
            Step::Garbage => self.output.message(b"this line is not JSON")?,
            Step::Stderr(words) => writeln!(io::stderr(), "{}", text(words))?,
            Step::StderrFlood(bytes) => flood(*bytes)?,
            Step::Crlf => self.output.crlf.store(true, Ordering::SeqCst),
            Step::Deaf => self.deaf.store(true, Ordering::SeqCst),
            Step::Listen => self.deaf.store(false, Ordering::SeqCst),
            Step::Close => self.output.close()?,
            Step::Ignore(ignored) => self.ignore(ignored)?,
            Step::Exit(code) => std::process::exit(*code),
            // Rust's own handler takes the first one, sees no stack overflow, and restores the default.
            Step::Crash => loop {
                kill_process(getpid(), Signal::SEGV)?;
            },
        }
        Ok(Next::Step)
    }

    fn ignore(&self, ignored: &Ignored) -> io::Result<()> {
        let signal = match ignored {
            Ignored::Eof => {
                self.ignore_eof.store(true, Ordering::SeqCst);
                return Ok(());
            }
            Ignored::Term => signal_hook::consts::SIGTERM,
            Ignored::Int => signal_hook::consts::SIGINT,
        };
        // From now on it sets a flag that nobody reads.
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
        Ok(())
    }

    fn ask(self: &Arc<Self>, scene: &Scene, title: &str) -> io::Result<()> {
        let key = self.fresh();
        self.state().answers.insert(key, None);
        self.flavour.ask(self, scene, title, key)?;
        let answer = self.wait(scene, |state| state.answers.get_mut(&key).and_then(Option::take));
        self.state().answers.remove(&key);
        // Without an answer the turn was stopped.
        let Some(answer) = answer else { return Ok(()) };
        let allowed = self.flavour.answered(self, scene, title, key, &answer)?;
        let word = if allowed { "allowed" } else { "denied" };
        self.flavour.say(self, scene, &mut std::iter::once(word.to_owned()))
    }

    /// Waits until `look` finds something, or the turn is cut short.
    fn wait<T>(&self, scene: &Scene, look: impl Fn(&mut State) -> Option<T>) -> Option<T> {
        let mut state = self.state();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            if scene.is_cut() {
                return None;
            }
            state = self.happened.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn await_it(self: &Arc<Self>, awaited: &Awaited, scene: &Scene) {
        match awaited {
            Awaited::Cancel => {
                let stopped = || scene.turn.as_ref().is_none_or(|turn| turn.cancelled.load(Ordering::SeqCst));
                self.wait(scene, |_| stopped().then_some(()));
            }
            Awaited::Gate(path) => self.stand_at(PathBuf::from(self.spelled_out(path, scene)), scene),
            Awaited::Method(method) => {
                let before = scene.heard.get(method).copied().unwrap_or_default();
                self.wait(scene, |state| {
                    (state.heard.get(method).copied().unwrap_or_default() > before).then_some(())
                });
            }
        }
    }

    /// A thread of its own blocks on the gate, so that a stop is still seen.
    fn stand_at(self: &Arc<Self>, gate: PathBuf, scene: &Scene) {
        let open = Arc::new(Mutex::new(false));
        std::thread::spawn({
            let (open, stage) = (Arc::clone(&open), Arc::clone(self));
            move || {
                if let Err(error) = wait_at_gate(&gate) {
                    complain(&format!("{}: {error}", gate.display()));
                }
                *open.lock().unwrap_or_else(PoisonError::into_inner) = true;
                stage.wake();
            }
        });
        self.wait(scene, |_| open.lock().unwrap_or_else(PoisonError::into_inner).then_some(()));
    }

    /// The values of `$…` in a text of the script.
    fn spelled_out(&self, text: &str, scene: &Scene) -> String {
        if !text.contains('$') {
            return text.to_owned();
        }
        let cwd = std::env::current_dir().unwrap_or_default();
        let mut spelled = text
            .replace("$thread", &self.thread(scene))
            .replace("$turn", scene.turn_id())
            .replace("$pid", &std::process::id().to_string())
            .replace("$cwd", &cwd.to_string_lossy());
        while let Some((before, after)) = spelled.split_once("$new") {
            spelled = format!("{before}{}{after}", self.fresh_name("new"));
        }
        spelled
    }

    fn thread(&self, scene: &Scene) -> String {
        if scene.thread.is_empty() { self.state().last_thread.clone() } else { scene.thread.clone() }
    }

    fn spelled_out_bytes(&self, bytes: &[u8], scene: &Scene) -> Vec<u8> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.spelled_out(text, scene).into_bytes(),
            // Around bytes that are no text there are no values to spell out but the thread's.
            Err(_) => replaced(bytes, b"$thread", self.thread(scene).as_bytes()),
        }
    }

    fn filled_in(&self, value: &Value, scene: &Scene) -> Value {
        match value {
            Value::String(text) if text == "$id" => request_id(&scene.about),
            Value::String(text) => Value::String(self.spelled_out(text, scene)),
            Value::Array(all) => all.iter().map(|of| self.filled_in(of, scene)).collect(),
            Value::Object(all) => {
                let filled = |(name, of): (&String, &Value)| (name.clone(), self.filled_in(of, scene));
                Value::Object(all.iter().map(filled).collect())
            }
            other => other.clone(),
        }
    }
}

fn request_id(about: &Value) -> Value {
    about.get("id").or_else(|| about.get("request_id")).cloned().unwrap_or_default()
}

fn replaced(bytes: &[u8], what: &[u8], by: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some(at) = rest.windows(what.len()).position(|window| window == what) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(by);
        rest = &rest[at + what.len()..];
    }
    out.extend_from_slice(rest);
    out
}

fn run(command: &str) -> io::Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).stdin(Stdio::null()).stdout(Stdio::null());
    let status = shell.status()?;
    if !status.success() {
        complain(&format!("{command:?} ended with {status}"));
    }
    Ok(())
}

fn spawn(command: &str, holds_output: bool) -> io::Result<()> {
    let mut detached = Command::new(std::env::current_exe()?);
    detached.args([DETACHED, command]).stdin(Stdio::null()).stderr(Stdio::null());
    if !holds_output {
        detached.stdout(Stdio::null());
    }
    // Never waited for: outliving the agent is what it is there for.
    detached.spawn().map(|_child| ())
}

/// Lines of 100 bytes.
fn flood(bytes: usize) -> io::Result<()> {
    let line = format!("{}\n", "e".repeat(99));
    let mut stderr = io::stderr().lock();
    for _ in 0..bytes.div_ceil(line.len()) {
        stderr.write_all(line.as_bytes())?;
    }
    Ok(())
}

/// Blocks until there is a plain file at `gate`, or somebody opens the fifo there for writing; makes that fifo when
/// there is nothing. Once open, a gate stays open: the fifo becomes a plain file.
fn wait_at_gate(gate: &Path) -> io::Result<()> {
    match mkfifoat(CWD, gate, Mode::RUSR | Mode::WUSR) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    // Of a plain file this returns at once; of a fifo when a writer has opened and closed it.
    std::fs::read(gate)?;
    let mut opened = gate.to_path_buf();
    opened.as_mut_os_string().push(".opened");
    std::fs::write(&opened, b"open\n")?;
    std::fs::rename(&opened, gate)
}
