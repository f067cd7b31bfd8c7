//! What can go wrong, one enum per operation.

use mainstay_core::Refusal;
use mainstay_store::{OpenError, ReadError, WriteError};
use std::path::PathBuf;

/// Why a host did not start. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another host has this home.
    #[error(
        "another host (pid {pid}) serves {home}; stop it first (`mainstay stop --host`), or use another MAINSTAY_HOME"
    )]
    HomeTaken {
        /// The home.
        home: PathBuf,
        /// The other host's pid, `unknown` where it could not be read.
        pid: String,
    },
    /// The home cannot be used.
    #[error("cannot use {path}; MAINSTAY_HOME names another state folder")]
    Home {
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The store cannot be opened.
    #[error("cannot open the store")]
    Store(#[from] OpenError),
    /// The store cannot be read.
    #[error("cannot read the store")]
    Read(#[from] ReadError),
    /// The database is older than what was shown, and the store does not take note of that.
    #[error("the database is older than what was shown to clients, and that cannot be recorded")]
    Rewound(#[source] WriteError),
}

/// Why a request was not carried out.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// The session decided against it; nothing changed.
    #[error("refused")]
    Refused(#[source] Refusal),
    /// No such session.
    #[error("there is no session {0:?}")]
    SessionUnknown(String),
    /// No such agent.
    #[error("there is no agent {name:?}; registered are {known}")]
    AgentUnknown {
        /// The asked one.
        name: String,
        /// The registered ones.
        known: String,
    },
    /// The agent's files cannot be listed.
    #[error("the agent's conversations cannot be listed: {why}")]
    Unlistable {
        /// Why.
        why: String,
    },
    /// The folder cannot be used.
    #[error("{path}: {why}")]
    BadFolder {
        /// Which.
        path: String,
        /// Why, and what to do.
        why: String,
        /// Whether it lies outside the roots.
        outside_roots: bool,
    },
    /// The idempotency key belongs to another request.
    #[error("the Idempotency-Key {0:?} was used for another request")]
    OperationConflict(String),
    /// The id belongs to another content.
    #[error("the {what} id {id:?} is taken by another content")]
    IdConflict {
        /// Of what.
        what: &'static str,
        /// Which.
        id: String,
    },
    /// The store did not take the write; nothing changed.
    #[error("the store did not take the write")]
    Storage(#[source] WriteError),
    /// The store could not be read.
    #[error("the store could not be read")]
    Read(#[source] ReadError),
    /// An agent that was started for a look did not answer.
    #[error("agent {agent} could not be asked: {why}")]
    AgentFailed {
        /// Which.
        agent: String,
        /// Why, and what to do.
        why: String,
    },
    /// The session's records cannot be read.
    #[error("session {session} cannot be loaded: {why}")]
    Unreadable {
        /// Which.
        session: String,
        /// Why.
        why: String,
    },
    /// No such keeper.
    #[error("there is no keeper {0:?} in this home")]
    KeeperUnknown(String),
    /// A session has this keeper: its own commands end it.
    #[error("keeper {token} is not unclaimed: {}", claimed_by(session.as_deref()))]
    KeeperClaimed {
        /// Which.
        token: String,
        /// Whose.
        session: Option<String>,
    },
    /// The end of this keeper, or its state, could not be proven.
    #[error(
        "keeper {token}: nothing is proven ({why}); `mainstay ps` names its processes: once it answers, or they are gone, try again; a folder of which nothing can ever be proven may be deleted by hand by who knows that nothing of it runs"
    )]
    KeeperUnverifiable {
        /// Which.
        token: String,
        /// Why not.
        why: String,
    },
    /// No session can be bound to this keeper.
    #[error(
        "keeper {token} cannot be adopted, only ended (`mainstay recover --keeper {token} --end`): {why}"
    )]
    CannotAdopt {
        /// Which.
        token: String,
        /// Why not.
        why: String,
    },
    /// The host is shutting down.
    #[error("the host is shutting down")]
    ShuttingDown,
}

fn claimed_by(session: Option<&str>) -> String {
    session.map_or_else(
        || "a record has it".to_owned(),
        |session| format!("session {session} has it; use that session's stop or recover"),
    )
}

impl From<Refusal> for HostError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ReadError> for HostError {
    fn from(error: ReadError) -> Self {
        Self::Read(error)
    }
}
