//! Refusals: a command that changed nothing, with a stable code and what the caller needs next.

use crate::content::Answer;
use crate::event::RequestEnd;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Stable codes. Their texts are part of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// No such session.
    SessionUnknown,
    /// The session is deleted or archived.
    SessionClosed,
    /// The session must be recovered first.
    SessionRecovering,
    /// An id is malformed.
    InvalidId,
    /// An id or a key is taken by another content.
    IdConflict,
    /// The idempotency key belongs to another request.
    OperationConflict,
    /// The content is empty.
    EmptyContent,
    /// The content is too large.
    TooLarge,
    /// As many messages as may wait are waiting.
    QueueFull,
    /// No turn is running.
    NoTurn,
    /// The agent cannot do this.
    Unsupported,
    /// No such request.
    RequestUnknown,
    /// The request changed since it was read.
    RevisionMismatch,
    /// Somebody else's answer won.
    AlreadyAnswered,
    /// The request ended without an answer.
    RequestClosed,
    /// No such option.
    OptionUnknown,
    /// No such turn, or one so old that it is not remembered.
    TurnUnknown,
    /// No such submission.
    SubmissionUnknown,
    /// The submission is not in a state in which this can be done.
    SubmissionState,
    /// The writer's fence is old.
    StaleFence,
    /// The process can be proven neither alive nor gone.
    ProcessUnverifiable,
    /// A state and an input that do not belong together; a fault of the host or the adapter.
    IllegalInput,
}

/// A command was not carried out; nothing changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{detail}")]
pub struct Refusal {
    /// The stable code.
    pub code: RefusalCode,
    /// What, where, what to do.
    pub detail: String,
    /// The request's revision now, where that is what the caller needs.
    pub revision: Option<u64>,
    /// The capability that the agent lacks.
    pub capability: Option<&'static str>,
    /// How the request ended, where it did.
    pub ended: Option<RequestEnd>,
    /// The answer that won, and who gave it.
    pub winner: Option<Box<(Answer, String)>>,
}

impl Refusal {
    /// A refusal with a code and a sentence.
    #[must_use]
    pub fn new(code: RefusalCode, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), revision: None, capability: None, ended: None, winner: None }
    }

    /// What an agent without this capability cannot do.
    #[must_use]
    pub fn unsupported(capability: &'static str) -> Self {
        let detail = format!("this agent cannot do this (capability {capability})");
        Self { capability: Some(capability), ..Self::new(RefusalCode::Unsupported, detail) }
    }

    /// An input that does not belong to the state; both are named.
    #[must_use]
    pub fn illegal(state: &str, input: &str) -> Self {
        Self::new(RefusalCode::IllegalInput, format!("{input} does not belong to the state {state}"))
    }
}
