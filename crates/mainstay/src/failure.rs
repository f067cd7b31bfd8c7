//! Exit codes, and why a command did not succeed.

use crate::client::ClientError;
use crate::config::ConfigError;
use std::error::Error;

/// Exit codes of the contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done; the turn completed.
    Completed,
    /// Anything that has no code of its own.
    Other,
    /// The command line is not valid.
    Usage,
    /// No host can be reached.
    NoHost,
    /// The host refused, or something conflicts.
    Refused,
    /// The turn failed.
    TurnFailed,
    /// The turn was interrupted or cancelled.
    Interrupted,
    /// An answer is needed and nobody here can give it.
    NeedsAnswer,
    /// What became of it is not known.
    InDoubt,
}

impl Exit {
    /// Its number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::Other => 1,
            Self::Usage => 2,
            Self::NoHost => 3,
            Self::Refused => 4,
            Self::TurnFailed => 5,
            Self::Interrupted => 6,
            Self::NeedsAnswer => 7,
            Self::InDoubt => 8,
        }
    }
}

/// Why a command did not succeed, for people, with its exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) message: String,
    /// The host's problem document, for `--json`.
    pub(crate) problem: Option<serde_json::Value>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into(), problem: None }
    }

    /// From an error, with everything that caused it.
    pub(crate) fn of(exit: Exit, error: &dyn Error) -> Self {
        Self::new(exit, chain(error))
    }

    /// From an error that has no code of its own.
    pub(crate) fn other(error: &dyn Error) -> Self {
        Self::of(Exit::Other, error)
    }
}

/// An error with everything that caused it, each said once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::of(Exit::Usage, &error)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let exit = match &error {
            ClientError::NoHost(_) | ClientError::Lost(_) => Exit::NoHost,
            ClientError::Refused { status, .. } if *status < 500 => Exit::Refused,
            ClientError::Refused { .. } | ClientError::NotHttp(_) => Exit::Other,
        };
        let mut failure = Self::of(exit, &error);
        if let ClientError::Refused { problem, .. } = error {
            failure.problem = Some(problem);
        }
        failure
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::other(&error)
    }
}
