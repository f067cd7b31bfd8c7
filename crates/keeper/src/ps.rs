//! Every keeper of a home with its agent, read from the folders alone: no host is needed.

use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::folder::{FolderError, KeeperFolder, KeepersDir};
use crate::identity::{IdentityCheck, ProcessIdentity};
use crate::probe::{AgentTrace, Probe, probe};

/// One line of `ps`. What could not be read is absent or says so; it is never left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PsRow {
    pub token: String,
    pub label: String,
    pub cwd: Option<PathBuf>,
    pub keeper: KeeperState,
    pub keeper_identity: Option<ProcessIdentity>,
    pub agent: AgentState,
    pub agent_identity: Option<ProcessIdentity>,
    pub threads: Vec<String>,
    pub fence: Option<u64>,
    pub host_id: Option<String>,
    /// Unix milliseconds of the keeper's birth.
    pub since_ms: Option<i64>,
    /// Why something is indeterminate.
    pub why: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum KeeperState {
    Alive,
    BeingBorn,
    /// Gone, with an exit record.
    Ended,
    /// Gone without one.
    Gone,
    /// Never started an agent.
    Unused,
    Indeterminate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentState {
    Running,
    NotStarted,
    Gone,
    Indeterminate,
}

/// Rows for all keepers below `home`, in the order of their tokens.
pub fn ps(home: &Path) -> Result<Vec<PsRow>, FolderError> {
    Ok(KeepersDir::new(home.join("keepers")).list()?.iter().map(row).collect())
}

fn row(folder: &KeeperFolder) -> PsRow {
    let seen = probe(folder);
    let manifest = match &seen {
        Probe::Alive { manifest } => Some((**manifest).clone()),
        _ => folder.manifest().ok().flatten(),
    };
    let identity = folder.agent_identity();
    let mut why = None;
    let (keeper, agent) = match seen {
        Probe::Alive { .. } => {
            let agent = match &identity {
                Ok(Some(identity)) => match identity.check() {
                    IdentityCheck::Matched => AgentState::Running,
                    IdentityCheck::Indeterminate { why: reason } => {
                        why = Some(reason);
                        AgentState::Indeterminate
                    }
                    _ => AgentState::Gone,
                },
                Ok(None) => AgentState::NotStarted,
                Err(error) => {
                    why = Some(error.to_string());
                    AgentState::Indeterminate
                }
            };
            (KeeperState::Alive, agent)
        }
        Probe::BeingBorn => (KeeperState::BeingBorn, AgentState::NotStarted),
        Probe::Ended { .. } => (KeeperState::Ended, AgentState::Gone),
        Probe::Unused => (KeeperState::Unused, AgentState::NotStarted),
        Probe::KeeperGone { agent } => {
            let agent = match agent {
                AgentTrace::NeverRan => AgentState::NotStarted,
                AgentTrace::Gone(_) => AgentState::Gone,
                AgentTrace::Running(_) => AgentState::Running,
                AgentTrace::Indeterminate { why: reason } => {
                    why = Some(reason);
                    AgentState::Indeterminate
                }
            };
            (KeeperState::Gone, agent)
        }
        Probe::Indeterminate { why: reason } => {
            why = Some(reason);
            (KeeperState::Indeterminate, AgentState::Indeterminate)
        }
    };
    PsRow {
        token: folder.token.clone(),
        label: manifest.as_ref().map(|manifest| manifest.agent_label.clone()).unwrap_or_default(),
        cwd: manifest.as_ref().map(|manifest| manifest.cwd.clone()),
        keeper,
        keeper_identity: manifest.as_ref().map(|manifest| manifest.keeper.clone()),
        agent,
        agent_identity: identity.ok().flatten(),
        threads: folder.threads().unwrap_or_default(),
        fence: manifest.as_ref().map(|manifest| manifest.process_fence),
        host_id: manifest.as_ref().map(|manifest| manifest.host_id.clone()),
        since_ms: manifest.as_ref().map(|manifest| manifest.since_ms),
        why,
    }
}
