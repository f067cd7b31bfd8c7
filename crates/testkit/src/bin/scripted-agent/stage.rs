//! What all that happens in one process shares: what was heard, what runs, and who waits for what.

use crate::complain;
use crate::flavour::{Flavour, Said};
use crate::kept::{Kept, append};
use crate::output::Output;
use crate::script::{Script, Step};
use serde_json::{Value, json};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A message of a user.
#[derive(Debug, Clone, Default)]
pub(crate) struct Prompt {
    pub(crate) thread: String,
    pub(crate) text: String,
    /// The client's own id of it; empty where the protocol has none.
    pub(crate) client_id: String,
    /// The message that brought it.
    pub(crate) message: Value,
}

/// A turn.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) id: String,
    pub(crate) prompt: Prompt,
    pub(crate) cancelled: AtomicBool,
    pub(crate) heedless: AtomicBool,
    /// The message was shown to the client as taken.
    pub(crate) echoed: AtomicBool,
    over: AtomicBool,
}

impl Turn {
    /// Whether a stop cuts it short.
    pub(crate) fn is_cut(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst) && !self.heedless.load(Ordering::SeqCst)
    }
}

/// What a block is played for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Scene {
    pub(crate) thread: String,
    pub(crate) turn: Option<Arc<Turn>>,
    /// The request or notification that it is played for.
    pub(crate) about: Value,
    /// What had been heard when it began.
    pub(crate) heard: HashMap<String, usize>,
}

impl Scene {
    pub(crate) fn turn_id(&self) -> &str {
        self.turn.as_ref().map_or("", |turn| turn.id.as_str())
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| turn.is_cut())
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// Answers to our own requests; None until they come.
    pub(crate) answers: HashMap<u64, Option<Value>>,
    /// How often each request and notification was heard.
    pub(crate) heard: HashMap<String, usize>,
    /// The running turn of each thread.
    turns: HashMap<String, Arc<Turn>>,
    /// Messages that wait for the running turn's end.
    pub(crate) waiting: VecDeque<Prompt>,
    /// Conversations that are loaded.
    pub(crate) threads: HashMap<String, Vec<Value>>,
    pub(crate) last_thread: String,
}

pub(crate) struct Stage {
    pub(crate) script: Script,
    pub(crate) flavour: Box<dyn Flavour>,
    pub(crate) output: Output,
    pub(crate) kept: Kept,
    pub(crate) ignore_eof: AtomicBool,
    /// Nothing is read while this is set.
    pub(crate) deaf: AtomicBool,
    pub(crate) happened: Condvar,
    state: Mutex<State>,
    numbers: AtomicU64,
}

impl Stage {
    pub(crate) fn new(script: Script, flavour: Box<dyn Flavour>, output: Output) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            script,
            flavour,
            output,
            kept: Kept::open()?,
            ignore_eof: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            happened: Condvar::new(),
            state: Mutex::default(),
            numbers: AtomicU64::new(0),
        }))
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number never used before in this process.
    pub(crate) fn fresh(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::SeqCst)
    }

    /// A name never used before by any process.
    pub(crate) fn fresh_name(&self, what: &str) -> String {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        format!("{what}-{:x}-{}-{}", now.map_or(0, |time| time.as_nanos()), std::process::id(), self.fresh())
    }

    /// Something that may be waited for has happened.
    pub(crate) fn wake(&self) {
        // Under the lock: whoever has just looked and is about to wait must not miss it.
        let _state = self.state();
        self.happened.notify_all();
    }

    /// Takes in a message of the client.
    pub(crate) fn hear(self: &Arc<Self>, message: Value) {
        let name = match self.flavour.read(&message) {
            Said::Answer { key, body } => {
                {
                    let mut state = self.state();
                    if let Some(slot) = state.answers.get_mut(&key) {
                        slot.get_or_insert(body);
                    }
                    *state.heard.entry(format!("answer:{key}")).or_default() += 1;
                }
                self.wake();
                return;
            }
            Said::Prompt { name, .. } | Said::Other { name } => name,
        };
        let thread = self.flavour.thread_of(&message);
        let heard = {
            let mut state = self.state();
            if let Some(thread) = &thread {
                state.last_thread.clone_from(thread);
            }
            let heard = state.heard.clone();
            *state.heard.entry(name.clone()).or_default() += 1;
            heard
        };
        let here = heard.get(&name).copied().unwrap_or_default() + 1;
        let nth = self.kept.count(&name).ok().flatten().unwrap_or(here);
        self.wake();
        let Some(block) = self.script.for_event(&name, nth) else {
            self.by_itself(&message);
            return;
        };
        let (stage, steps) = (Arc::clone(self), block.steps.clone());
        let thread = thread.unwrap_or_else(|| self.state().last_thread.clone());
        let turn = self.running(&thread);
        let scene = Scene { thread, turn, about: message, heard };
        std::thread::spawn(move || stage.play_block(&steps, &scene));
    }

    /// What the agent does with a message when no script says otherwise.
    pub(crate) fn by_itself(self: &Arc<Self>, message: &Value) {
        let outcome = match self.flavour.read(message) {
            Said::Answer { .. } => Ok(()),
            Said::Prompt { prompt, .. } => self.prompted(prompt),
            Said::Other { name } => self.flavour.react(self, &name, message),
        };
        self.survive(outcome);
    }

    /// A client that no longer reads ends the process, as it ends real agents.
    pub(crate) fn survive(&self, outcome: io::Result<()>) {
        if let Err(error) = outcome {
            complain(&error.to_string());
            if !self.ignore_eof.load(Ordering::SeqCst) {
                std::process::exit(1);
            }
        }
    }

    /// A message of a user begins a turn, or meets a running one.
    pub(crate) fn prompted(self: &Arc<Self>, prompt: Prompt) -> io::Result<()> {
        if prompt.message != Value::Null {
            log_prompt(&prompt)?;
        }
        if let Some(running) = self.running(&prompt.thread) {
            return self.flavour.beside(self, &running, prompt);
        }
        let turn = Arc::new(Turn {
            id: self.fresh_name("turn"),
            cancelled: AtomicBool::new(false),
            heedless: AtomicBool::new(false),
            echoed: AtomicBool::new(false),
            over: AtomicBool::new(false),
            prompt,
        });
        self.state().turns.insert(turn.prompt.thread.clone(), Arc::clone(&turn));
        self.flavour.begin(self, &turn)?;
        if turn.over.load(Ordering::SeqCst) {
            // Refused.
            return Ok(());
        }
        let heard = self.state().heard.clone();
        let text = &turn.prompt.text;
        let echo = || vec![Step::Say(format!("echo: {text}"))];
        let steps = self.script.for_prompt(text).map_or_else(echo, |block| block.steps.clone());
        let thread = turn.prompt.thread.clone();
        let scene = Scene { thread, about: turn.prompt.message.clone(), turn: Some(turn), heard };
        let stage = Arc::clone(self);
        std::thread::spawn(move || stage.play_turn(&steps, &scene));
        Ok(())
    }

    pub(crate) fn running(&self, thread: &str) -> Option<Arc<Turn>> {
        self.state().turns.get(thread).cloned()
    }

    /// A stop for the turn of a thread; whether one runs.
    pub(crate) fn cancel(&self, thread: &str) -> bool {
        let running = self.running(thread);
        if let Some(turn) = &running {
            turn.cancelled.store(true, Ordering::SeqCst);
        }
        self.wake();
        running.is_some()
    }

    /// Takes a turn off the stage, once; a client may send the next message as soon as it is told.
    pub(crate) fn over(&self, turn: &Turn) -> bool {
        let first = !turn.over.swap(true, Ordering::SeqCst);
        if first {
            self.state().turns.remove(&turn.prompt.thread);
        }
        first
    }
}

fn log_prompt(prompt: &Prompt) -> io::Result<()> {
    let Some(log) = std::env::var_os("SCRIPTED_LOG").map(PathBuf::from) else { return Ok(()) };
    let entry = json!({ "pid": std::process::id(), "session": prompt.thread, "prompt": prompt.text });
    append(&log, format!("{entry}\n").as_bytes())
}
