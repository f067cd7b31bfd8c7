//! The small files that say what a keeper is and how it ended. Readers of every version ignore fields that they
//! do not know and take a default for those that are missing.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::folder::{FolderError, KeeperFolder, names};
use crate::identity::ProcessIdentity;

/// What a living keeper is. Never holds a secret: the command's arguments are there as a digest only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub protocol_version: u32,
    pub token: String,
    pub home: PathBuf,
    /// The host that last took the keeper over.
    pub host_id: String,
    /// The highest process fence that any accepted host named.
    pub process_fence: u64,
    pub keeper: ProcessIdentity,
    pub program: String,
    /// SHA-1 of all arguments, each with its length. It tells commands apart; it is no protection.
    pub argv_digest: String,
    pub cwd: PathBuf,
    #[serde(default)]
    pub agent_label: String,
    #[serde(default)]
    pub versions: String,
    /// Unix milliseconds of the keeper's birth.
    pub since_ms: i64,
    /// Where the agent listens, for a second client on this machine; only while the keeper lives.
    #[serde(default)]
    pub agent_socket: Option<String>,
    /// The agent's own control group, where there is one.
    #[serde(default)]
    pub cgroup: Option<PathBuf>,
}

/// Who ordered an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Host,
    User,
    Idle,
    /// At once: straight to the last step of the ladder.
    Kill,
    /// A newer host's word that this version does not know; obeyed like `Host`.
    #[serde(other)]
    Other,
}

/// Why the agent ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ExitCause {
    AgentLeft,
    Ordered {
        order: Order,
    },
    /// No instruction of the agent ran.
    SpawnFailed {
        errno: i32,
        what: String,
    },
    FolderDeleted,
    Linger,
    SpoolLimit,
    /// Written by a newer keeper.
    #[serde(other)]
    Unknown,
}

/// The last word of a keeper, in `exit.json` and in the spool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitRecord {
    pub cause: ExitCause,
    #[serde(default)]
    pub exit_code: Option<i32>,
    #[serde(default)]
    pub signal: Option<i32>,
    /// Highest input number that was written in full.
    pub last_input_written: u64,
    /// Every number up to this one was begun or refused.
    pub inputs_started: u64,
    /// Every number up to this one was taken over by the keeper.
    pub inputs_recorded: u64,
    /// Taken over and provably never begun.
    #[serde(default)]
    pub inputs_undelivered: Vec<u64>,
    /// Begun and not written in full: in doubt.
    #[serde(default)]
    pub inputs_cut: Vec<u64>,
    /// The ladder step (from 0) after which the agent was gone; steps beyond the spec's are the final KILL.
    #[serde(default)]
    pub killed_by_ladder_step: Option<usize>,
    #[serde(default)]
    pub strays: Vec<StrayReport>,
    /// There were more strays than are listed.
    #[serde(default)]
    pub strays_left_off: u64,
    /// The last bytes of the agent's standard error, as text.
    #[serde(default)]
    pub stderr_tail: String,
    /// Bytes that the agent had written and nobody took, because the drain's bounds were reached.
    #[serde(default)]
    pub output_cut: bool,
    pub at_ms: i64,
}

/// A process that outlived its agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrayReport {
    pub pid: i32,
    /// Clock ticks since boot.
    pub start_time: u64,
    pub comm: String,
    pub outcome: StrayOutcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StrayOutcome {
    Killed,
    /// It went before it was signalled.
    Gone,
    /// It could not be shown that it is gone.
    Unproven,
    #[serde(other)]
    Unknown,
}

/// Why the process that was to become the agent did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpawnFailure {
    pub errno: i32,
    pub what: String,
}

impl KeeperFolder {
    pub fn manifest(&self) -> Result<Option<Manifest>, FolderError> {
        self.read_json(names::MANIFEST)
    }

    /// The identity that the agent's process wrote before its first own instruction.
    pub fn agent_identity(&self) -> Result<Option<ProcessIdentity>, FolderError> {
        self.read_json(names::AGENT)
    }

    pub fn spawn_failure(&self) -> Result<Option<SpawnFailure>, FolderError> {
        self.read_json(names::SPAWN_FAILED)
    }

    pub fn exit_record(&self) -> Result<Option<ExitRecord>, FolderError> {
        self.read_json(names::EXIT)
    }
}
