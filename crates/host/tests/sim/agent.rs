//! The agents of the simulation: they speak their real protocols and keep their own truth, against which the journal is
//! held.

use crate::acp::Acp;
use crate::chance::Chance;
use crate::claude::Claude;
use crate::codex::Codex;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// A turn in an agent's own history.
#[derive(Debug, Clone)]
pub(crate) struct Turn {
    id: String,
    pub(crate) status: String,
    items: Vec<Value>,
}

impl Turn {
    pub(crate) fn begun(id: &str) -> Self {
        Self { id: id.to_owned(), status: "inProgress".to_owned(), items: Vec::new() }
    }

    pub(crate) fn json(&self) -> Value {
        json!({ "id": self.id, "status": self.status, "items": self.items, "error": null })
    }
}

/// What is true outside of any host: what agents took, said and saved.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    /// How often each prompt was taken, by its text.
    pub(crate) received: BTreeMap<String, usize>,
    /// What agents said, by the agent's name of the turn.
    pub(crate) said: BTreeMap<String, String>,
    /// The marks of what agents said that nobody models, by the agent's name of the turn.
    pub(crate) odd: BTreeMap<String, Vec<String>>,
    /// Conversations whose history was asked for and not given (Codex): what was said unheard is lost, and that is said.
    pub(crate) unread: BTreeSet<String>,
    /// Answers that chose an option, by process and the key of the request.
    pub(crate) chosen: BTreeMap<(String, String), Vec<String>>,
    /// Under which further keys such a request was asked (Codex).
    pub(crate) also_asked: BTreeMap<(String, String), Vec<String>>,
    /// Conversations that another process can take up (ACP).
    pub(crate) saved: BTreeSet<String>,
    /// Conversations with a history (Codex).
    pub(crate) histories: BTreeMap<String, Vec<Turn>>,
    /// Which process has each thread in its memory (Codex), or each conversation (Claude).
    pub(crate) holders: BTreeMap<String, String>,
    names: u64,
    pub(crate) violations: Vec<String>,
}

impl Truth {
    /// A name that was never given before.
    pub(crate) fn name(&mut self, prefix: &str) -> String {
        self.names += 1;
        format!("{prefix}{}", self.names)
    }

    pub(crate) fn new_thread(&mut self) -> String {
        self.name("th-")
    }

    pub(crate) fn new_turn(&mut self) -> String {
        self.name("tu-")
    }

    /// Makes a branch of a thread's history, up to a turn; None: there is no such history.
    pub(crate) fn branch(&mut self, thread: &str, last: Option<&str>) -> Option<String> {
        let turns = self.histories.get(thread)?;
        let kept = match last {
            Some(last) => turns.iter().position(|turn| turn.id == last)? + 1,
            None => turns.len(),
        };
        let turns = turns[..kept].to_vec();
        let branch = self.new_thread();
        self.histories.insert(branch.clone(), turns);
        Some(branch)
    }

    /// Drops a turn and all later ones. False: there is no such turn.
    pub(crate) fn revert(&mut self, thread: &str, before: &str) -> bool {
        let Some(turns) = self.histories.get_mut(thread) else { return false };
        let Some(place) = turns.iter().position(|turn| turn.id == before) else { return false };
        turns.truncate(place);
        true
    }

    pub(crate) fn turn(&mut self, thread: &str, turn: &str) -> Option<&mut Turn> {
        self.histories.get_mut(thread)?.iter_mut().find(|of| of.id == turn)
    }

    pub(crate) fn complete(&mut self, thread: &str, turn: &str, item: Value) {
        if let Some(turn) = self.turn(thread, turn) {
            turn.items.push(item);
        }
    }

    /// A prompt is taken: once, for ever.
    pub(crate) fn receive(&mut self, text: &str) {
        let times = self.received.entry(text.to_owned()).or_default();
        *times += 1;
        if *times > 1 {
            let times = *times;
            self.violations.push(format!("the agents received {text:?} {times} times"));
        }
    }
}

/// One agent process.
#[derive(Debug)]
pub(crate) enum Agent {
    Acp(Acp),
    Codex(Codex),
    Claude(Box<Claude>),
}

impl Agent {
    pub(crate) const fn alive(&self) -> bool {
        match self {
            Self::Acp(agent) => agent.alive,
            Self::Codex(agent) => agent.alive,
            Self::Claude(agent) => agent.alive,
        }
    }

    /// Whether connections to it come and go.
    pub(crate) const fn reconnects(&self) -> bool {
        matches!(self, Self::Codex(_))
    }

    pub(crate) fn die(&mut self, truth: &mut Truth) {
        match self {
            Self::Acp(agent) => agent.alive = false,
            Self::Codex(agent) => agent.die(truth),
            Self::Claude(agent) => agent.die(truth),
        }
    }

    pub(crate) fn works(&self) -> bool {
        match self {
            Self::Acp(agent) => agent.works(),
            Self::Codex(agent) => agent.works(),
            Self::Claude(agent) => agent.works(),
        }
    }

    pub(crate) fn connect(&mut self, number: u32) {
        if let Self::Codex(agent) = self {
            agent.connect(number);
        }
    }

    pub(crate) fn disconnect(&mut self) {
        if let Self::Codex(agent) = self {
            agent.disconnect();
        }
    }

    /// Takes one message.
    pub(crate) fn hear(&mut self, payload: &[u8], truth: &mut Truth, chance: &mut Chance) {
        match self {
            Self::Acp(agent) => agent.hear(payload, truth, chance),
            Self::Codex(agent) => agent.hear(payload, truth, chance),
            Self::Claude(agent) => agent.hear(payload, truth),
        }
    }

    /// Goes one step on. Gives the next line of output, if there is one now.
    pub(crate) fn step(&mut self, calm: bool, truth: &mut Truth) -> Option<String> {
        match self {
            Self::Acp(agent) => agent.step(calm, truth),
            Self::Codex(agent) => agent.step(calm, truth),
            Self::Claude(agent) => agent.step(calm, truth),
        }
    }
}
