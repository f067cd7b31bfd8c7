//! Looking at a keeper without taking or changing anything.

use crate::folder::{KeeperFolder, LockSight};
use crate::identity::{IdentityCheck, ProcessIdentity};
use crate::manifest::{ExitRecord, Manifest};

/// What a keeper's folder proves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The lock is held and the keeper in the manifest lives.
    Alive { manifest: Box<Manifest> },
    /// The lock is held and there is no manifest yet: a host or a newborn keeper is at work. No agent runs yet,
    /// but one may come.
    BeingBorn,
    /// No keeper; it recorded the end.
    Ended { exit: Box<ExitRecord> },
    /// No keeper, none to come, and no exit record.
    KeeperGone { agent: AgentTrace },
    /// No keeper, none to come, and no instruction of an agent ever ran.
    Unused,
    /// Nothing is proven.
    Indeterminate { why: String },
}

/// What is known of the agent of a keeper that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentTrace {
    /// It was named but could not be started.
    NeverRan,
    /// It is gone; others of its processes may not be (see [`sweep`](crate::sweep::sweep)).
    Gone(ProcessIdentity),
    Running(ProcessIdentity),
    Indeterminate {
        why: String,
    },
}

impl Probe {
    /// Whether it is proven that no agent of this keeper runs, and that none will.
    #[must_use]
    pub fn proves_the_agent_gone(&self) -> bool {
        match self {
            Self::Unused | Self::Ended { .. } => true,
            Self::KeeperGone { agent } => matches!(agent, AgentTrace::Gone(_) | AgentTrace::NeverRan),
            Self::Alive { .. } | Self::BeingBorn | Self::Indeterminate { .. } => false,
        }
    }
}

/// Looks at one keeper. Creates nothing and starts nothing.
///
/// The order matters: the lock is looked at *first*. An agent's process writes its identity and only then, with the
/// lock still held, becomes the agent; so a free lock with no identity afterwards proves that it never will.
pub fn probe(folder: &KeeperFolder) -> Probe {
    match folder.look_at_lock() {
        LockSight::Held => probe_held(folder),
        LockSight::Free => probe_free(folder),
        LockSight::Missing { what } => Probe::Indeterminate { why: format!("there is no {what}") },
        LockSight::Unclear { why } => Probe::Indeterminate { why },
    }
}

fn probe_held(folder: &KeeperFolder) -> Probe {
    match folder.manifest() {
        Ok(None) => Probe::BeingBorn,
        Ok(Some(manifest)) => match manifest.keeper.check() {
            IdentityCheck::Matched => Probe::Alive { manifest: Box::new(manifest) },
            // Somebody removes it, or another looker was there for an instant.
            other => Probe::Indeterminate { why: format!("the lock is held but the keeper is {other:?}") },
        },
        Err(error) => Probe::Indeterminate { why: error.to_string() },
    }
}

fn probe_free(folder: &KeeperFolder) -> Probe {
    match folder.exit_record() {
        Ok(Some(exit)) => return Probe::Ended { exit: Box::new(exit) },
        Ok(None) => {}
        // A torn exit record proves that the end had come, but not which.
        Err(error) => {
            return Probe::Indeterminate { why: error.to_string() };
        }
    }
    let identity = match folder.agent_identity() {
        Ok(Some(identity)) => identity,
        // The folder may have been removed between the two looks.
        Ok(None) if folder.path.is_dir() => return Probe::Unused,
        Ok(None) => {
            return Probe::Indeterminate { why: "there is no folder".to_owned() };
        }
        Err(error) => {
            return Probe::Indeterminate { why: error.to_string() };
        }
    };
    let agent = match folder.spawn_failure() {
        Ok(Some(_)) => AgentTrace::NeverRan,
        _ => match identity.check() {
            IdentityCheck::Matched => AgentTrace::Running(identity),
            IdentityCheck::Indeterminate { why } => AgentTrace::Indeterminate { why },
            IdentityCheck::Absent | IdentityCheck::Mismatch { .. } | IdentityCheck::OtherBoot => {
                AgentTrace::Gone(identity)
            }
        },
    };
    Probe::KeeperGone { agent }
}
