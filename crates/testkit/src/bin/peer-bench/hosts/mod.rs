//! The hosts under measurement: how each is started, told and read. What they have in common is [`Host`]; what one
//! does not have, it answers with [`Problem::Unsupported`], and the report says so.

mod acp_http;
mod acpx;
mod agentd;
mod codex;
mod copier;
mod mainstay;
mod opencode;
mod qwen;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::feed::{Feed, From};
use crate::lab::{Lab, Programs, Running};
use crate::problem::Problem;

/// What is safe when a host shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Durable {
    /// Synced to the disk before a client sees it.
    Synced,
    /// In a file or database of the host, not known to be synced before it is shown.
    Written,
    /// In memory alone.
    No,
}

impl Durable {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Synced => "synced",
            Self::Written => "written",
            Self::No => "no",
        }
    }
}

/// What a host is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) durable: Durable,
    /// What stands behind it, in a few words.
    pub(crate) agent: String,
    /// Frames of one burst: as many as it takes in a few seconds.
    pub(crate) burst: u64,
    /// Only these rows are measured; empty: all.
    #[serde(skip)]
    pub(crate) only: &'static [&'static str],
}

/// What became of a turn that was running when the host was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on and the host says so.
    GoesOn,
    /// The host says that it ended.
    Ended,
    /// The host does not know the session.
    Unknown,
    /// The host says that it runs, and cannot reach it.
    ClaimedToRun,
}

impl Fate {
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::GoesOn => "the running turn goes on",
            Self::Ended => "the running turn is ended and said to be",
            Self::Unknown => "the session is not known any more",
            Self::ClaimedToRun => "the turn is said to run and cannot be reached",
        }
    }
}

pub(crate) trait Host: Sync {
    fn facts(&self) -> Facts;

    fn lab(&self) -> &Lab;

    /// Whether it is a process that is started once and serves; else `start` and idle memory mean nothing.
    fn serves(&self) -> bool {
        true
    }

    /// Starts its process and does not wait.
    fn launch(&mut self) -> Result<(), Problem>;

    /// One question whether it is ready for work.
    fn healthy(&self) -> bool;

    fn process(&mut self) -> &mut Option<Running>;

    /// A session without an agent.
    fn rest(&self) -> Result<(), Problem> {
        Err(Problem::Unsupported("a session always has its agent"))
    }

    /// A session whose agent runs and has ended one turn.
    fn open(&self) -> Result<String, Problem>;

    /// Gives the session's agent this script and waits until the host says that the turn is over, without a stream.
    fn turn(&self, session: &str, script: &str) -> Result<(), Problem>;

    /// One short turn as a client waits for it.
    fn round_trip(&self, session: &str) -> Result<(), Problem> {
        self.turn(session, "SAY hi")
    }

    fn feed(&self, session: &str, from: From) -> Result<Box<dyn Feed>, Problem>;

    /// Where it keeps what it keeps.
    fn data(&self) -> Option<PathBuf>;

    /// The newest page of the session, read once.
    fn tail(&self, _session: &str) -> Result<(), Problem> {
        Err(Problem::Unsupported("no page from the end"))
    }

    /// What it says, started anew, of a session that had a turn running when it was killed. `Ok(None)`: not yet right.
    fn fate(&self, session: &str) -> Result<Option<Fate>, Problem>;

    /// Whether a reader can begin before now.
    fn replays(&self) -> bool {
        true
    }

    /// Bytes of the agent's line around so many bytes of text.
    fn line_bytes(&self, text: u64) -> u64 {
        ACP_LINE_BYTES + text
    }

    /// Kills its process (-9).
    fn kill(&self) -> Result<(), Problem>;

    /// Most readers of one session at once.
    fn most_readers(&self) -> usize {
        usize::MAX
    }
}

/// Bytes of the scripted ACP agent's line around a text: the envelope with its ids.
const ACP_LINE_BYTES: u64 = 205;

/// Hosts with bursts of at least this many frames take a million in a minute.
pub(crate) const FAST: u64 = 100_000;

/// How long one turn may take.
pub(crate) const TURN_LIMIT: Duration = Duration::from_secs(110);

/// Makes one.
pub(crate) type Make = fn(&Programs) -> Result<Box<dyn Host>, Problem>;

/// Every host of the bench, in the order of the report: Mainstay first, then the peers, then the bare machine.
pub(crate) const ALL: &[(&str, Make)] = &[
    ("mainstay", mainstay::standard),
    ("mainstay-flush-0", mainstay::at_once),
    ("agentd", agentd::make),
    ("sandbox-agent", acp_http::sandbox_agent),
    ("acp-http-adapter", acp_http::adapter),
    ("acpx", acpx::make),
    ("codex-app-server", codex::make),
    ("opencode", opencode::make),
    ("qwen-serve", qwen::make),
    ("copier", copier::make),
];

pub(crate) use copier::run as run_copier;
