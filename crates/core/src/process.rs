//! What the host knows of an agent process, as facts the session can settle by. Every fact is proven or says why not.

use crate::{ProcessToken, SessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The identity of a process: three things that no other process ever shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessId {
    /// The boot of the machine.
    pub boot_id: String,
    /// The process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
}

/// Whose order ended a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CloseOrder {
    /// The host is shutting down.
    Host,
    /// A user asked.
    User,
    /// Nothing was owed for a while.
    Idle,
    /// At once, without the gentle steps.
    Kill,
}

impl CloseOrder {
    /// How strong it is: a stronger one takes the place of a weaker one that stands.
    #[must_use]
    pub const fn rank(self) -> u8 {
        match self {
            Self::Idle => 1,
            Self::Host => 2,
            Self::User => 3,
            Self::Kill => 4,
        }
    }
}

/// Why a process is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExitCause {
    /// It ended by itself.
    AgentLeft,
    /// It was ended on an order.
    Ordered {
        /// Whose.
        order: CloseOrder,
    },
    /// It never ran.
    SpawnFailed,
    /// The keeper's folder was deleted.
    FolderDeleted,
    /// No host came for the keeper's linger time.
    Linger,
    /// The spool limit ended it.
    SpoolLimit,
    /// The keeper ended without an exit record; the agent is proven gone.
    KeeperLost,
    /// The reservation was never used: no instruction of the agent ever ran.
    ReservationUnused,
    /// The machine was started anew.
    Rebooted,
    /// A user gave the process up though its end is not proven.
    Abandoned,
    /// The process goes on with other sessions; it let this session's thread go.
    ThreadClosed,
}

impl ExitCause {
    /// Whether somebody ordered this end.
    #[must_use]
    pub const fn ordered(self) -> bool {
        matches!(self, Self::Ordered { .. } | Self::Linger)
    }
}

/// The proven end of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessExit {
    /// Why.
    pub cause: ExitCause,
    /// Its exit code, where it exited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// The signal that ended it, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The last input number that was written to the agent in full; None where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_written: Option<u64>,
    /// The last input number of which any byte may have been written: later ones are proven undelivered. None: unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_started: Option<u64>,
    /// Numbers up to `last_started` that are proven undelivered all the same (others overtook them).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub undelivered: Vec<u64>,
    /// The agent's last words on stderr, bounded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stderr_tail: String,
    /// Processes it left that were ended, or could not be proven gone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub strays: Vec<Stray>,
    /// Why it could not be started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawn_error: Option<String>,
    /// Where it could not be started: whether that may pass by itself, so that it is tried again (the machine had no room).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_pass: bool,
}

impl ProcessExit {
    /// An exit of which only the cause is known.
    #[must_use]
    pub const fn of(cause: ExitCause) -> Self {
        Self {
            cause,
            exit_code: None,
            signal: None,
            last_written: None,
            last_started: None,
            undelivered: Vec::new(),
            stderr_tail: String::new(),
            strays: Vec::new(),
            spawn_error: None,
            may_pass: false,
        }
    }

    /// Whether input `n` is proven never to have reached the agent.
    #[must_use]
    pub fn proves_undelivered(&self, n: u64) -> bool {
        match self.cause {
            ExitCause::ReservationUnused | ExitCause::SpawnFailed => true,
            _ => self.last_started.is_some_and(|started| n > started) || self.undelivered.contains(&n),
        }
    }
}

/// A process that an agent left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stray {
    /// Its pid at that time.
    pub pid: i32,
    /// Its name.
    pub comm: String,
    /// Whether it is proven gone.
    pub gone: bool,
}

/// What the host tells a session about its process.
#[derive(Debug, Clone, PartialEq)]
pub enum ProcessFact {
    /// The keeper runs and the agent's identity is recorded.
    Started {
        /// Which.
        process: ProcessToken,
        /// The agent.
        agent: Option<ProcessId>,
    },
    /// A returning host took the living process over.
    Adopted {
        /// Which.
        process: ProcessToken,
    },
    /// It was to be ended for this session and goes on with others.
    GoesOn {
        /// Which.
        process: ProcessToken,
        /// With these.
        others: Vec<SessionId>,
    },
    /// It can be proven neither alive nor gone.
    Unverifiable {
        /// Which.
        process: ProcessToken,
        /// Why.
        why: String,
    },
    /// It is proven gone.
    Exited {
        /// Which.
        process: ProcessToken,
        /// How.
        exit: ProcessExit,
    },
    /// The connection that inputs were made for is gone (`ws+unix`), or a new one is there.
    Connection {
        /// Which.
        process: ProcessToken,
        /// The number of the living connection, None while there is none.
        connection: Option<u32>,
    },
    /// Its start waits until another process ends: as many run as may run.
    AwaitsCapacity {
        /// Which.
        process: ProcessToken,
    },
    /// The keeper refused an input: it was never written, and never will be.
    InputRefused {
        /// Which.
        process: ProcessToken,
        /// The input.
        n: u64,
        /// Why.
        why: String,
    },
}
