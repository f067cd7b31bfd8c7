//! Problem documents (RFC 9457) with stable codes, and the one table from refusals and errors to statuses.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use mainstay_core::{InvalidCursor, InvalidId, Refusal, RefusalCode};
use mainstay_host::HostError;
use mainstay_store::{Conflict, WriteError};
use serde_json::{Map, Value, json};
use std::error::Error;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal, $title:literal, retryable: $retryable:literal;)*) => {
        /// Stable codes of problems. Their texts are part of the contract.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code {
            $($(#[$doc])* $name,)*
        }

        impl Code {
            /// Every code.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// As in the `code` member.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The HTTP status.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$name => $status,)* }
            }

            /// The `title` member.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$name => $title,)* }
            }

            /// Whether the same request may succeed later without anybody changing anything.
            #[must_use]
            pub const fn retryable(self) -> bool {
                match self { $(Self::$name => $retryable,)* }
            }
        }
    };
}

codes! {
    /// The body is not what this route takes.
    InvalidBody = "invalid_body", 400, "The body is not valid", retryable: false;
    /// A query parameter is unknown or malformed.
    InvalidQuery = "invalid_query", 400, "The query is not valid", retryable: false;
    /// A header is malformed.
    InvalidHeader = "invalid_header", 400, "A header is not valid", retryable: false;
    /// An id is malformed.
    InvalidId = "invalid_id", 400, "The id is not valid", retryable: false;
    /// A cursor is malformed.
    InvalidCursor = "invalid_cursor", 400, "The cursor is not valid", retryable: false;
    /// No token, or another one.
    Unauthorized = "unauthorized", 401, "The token is missing or wrong", retryable: false;
    /// The Host header names somebody else.
    ForbiddenHost = "forbidden_host", 403, "The Host header is not one of this host's", retryable: false;
    /// The request comes from a web page that is not ours.
    ForbiddenOrigin = "forbidden_origin", 403, "The Origin is not one of this host's", retryable: false;
    /// Another user is at the socket.
    ForbiddenPeer = "forbidden_peer", 403, "Another user's process", retryable: false;
    /// The request comes from inside an agent's process tree.
    FromAgent = "from_agent", 403, "An agent may not do this", retryable: false;
    /// The folder lies outside the roots.
    OutsideRoots = "outside_roots", 403, "The folder lies outside the roots", retryable: false;
    /// No such route.
    NotFound = "not_found", 404, "There is no such route", retryable: false;
    /// No such session.
    SessionUnknown = "session_unknown", 404, "There is no such session", retryable: false;
    /// No such agent.
    AgentUnknown = "agent_unknown", 404, "There is no such agent", retryable: false;
    /// No such keeper.
    KeeperUnknown = "keeper_unknown", 404, "There is no such keeper", retryable: false;
    /// No such turn, or one so old that it is not remembered.
    TurnUnknown = "turn_unknown", 404, "There is no such turn", retryable: false;
    /// No such request.
    RequestUnknown = "request_unknown", 404, "There is no such request", retryable: false;
    /// No such submission.
    SubmissionUnknown = "submission_unknown", 404, "There is no such message", retryable: false;
    /// The route has other methods.
    MethodNotAllowed = "method_not_allowed", 405, "The route does not take this method", retryable: false;
    /// The session is deleted or archived.
    SessionClosed = "session_closed", 409, "The session is closed", retryable: false;
    /// The session must be recovered first.
    SessionRecovering = "session_recovering", 409, "The session must be recovered first", retryable: false;
    /// The id is taken by another content.
    IdConflict = "id_conflict", 409, "The id is taken", retryable: false;
    /// The idempotency key belongs to another request.
    OperationConflict = "operation_conflict", 409, "The Idempotency-Key is taken", retryable: false;
    /// As many messages as may wait are waiting.
    QueueFull = "queue_full", 409, "The queue is full", retryable: true;
    /// No turn is running.
    NoTurn = "no_turn", 409, "No turn is running", retryable: false;
    /// The request changed since it was read.
    RevisionMismatch = "revision_mismatch", 409, "The request has changed", retryable: false;
    /// Somebody else's answer won.
    AlreadyAnswered = "already_answered", 409, "The request is answered", retryable: false;
    /// The request ended without an answer.
    RequestClosed = "request_closed", 409, "The request is closed", retryable: false;
    /// The message is not in a state in which this can be done.
    SubmissionState = "submission_state", 409, "This cannot be done now", retryable: false;
    /// The writer's fence is old.
    StaleFence = "stale_fence", 409, "The writer's fence is old", retryable: true;
    /// The process can be proven neither alive nor gone.
    ProcessUnverifiable = "process_unverifiable", 409, "The process cannot be verified", retryable: false;
    /// A record has this keeper.
    KeeperClaimed = "keeper_claimed", 409, "The keeper belongs to a session", retryable: false;
    /// Sessions are busy and nobody said what is to become of them.
    Busy = "busy", 409, "Sessions are busy", retryable: false;
    /// The body or the content is over the bound.
    TooLarge = "too_large", 413, "The content is too large", retryable: false;
    /// The body is not JSON.
    UnsupportedMediaType = "unsupported_media_type", 415, "The body must be JSON", retryable: false;
    /// The files that the agent keeps about its conversations cannot be read.
    AgentFiles = "agent_files_unreadable", 500, "The agent's files cannot be read", retryable: false;
    /// The agent, or this version, cannot do this.
    Unsupported = "unsupported", 422, "This is not supported", retryable: false;
    /// The folder cannot be used.
    BadFolder = "bad_folder", 422, "The folder cannot be used", retryable: false;
    /// No such option.
    OptionUnknown = "option_unknown", 422, "There is no such option", retryable: false;
    /// What was sent is no whole session's file.
    InvalidFile = "invalid_file", 422, "The file cannot be taken", retryable: false;
    /// The file was written by a newer version.
    NewerFile = "newer_file", 422, "The file needs a newer version", retryable: false;
    /// The content is empty.
    EmptyContent = "empty_content", 422, "The content is empty", retryable: false;
    /// The agent was asked and did not answer.
    AgentFailed = "agent_failed", 502, "The agent did not answer", retryable: true;
    /// A defect of this program.
    Internal = "internal", 500, "A defect of the host", retryable: false;
    /// The session's records cannot be read.
    SessionUnreadable = "session_unreadable", 500, "The session cannot be read", retryable: false;
    /// The store did not take the write, or could not be read.
    Storage = "storage", 503, "The store does not work", retryable: true;
    /// The disk is full.
    StorageFull = "storage_full", 503, "The disk is full", retryable: true;
    /// Too much is waiting for the disk.
    Overloaded = "overloaded", 503, "The host is overloaded", retryable: true;
    /// The host is shutting down.
    ShuttingDown = "shutting_down", 503, "The host is shutting down", retryable: true;
}

/// A request that was not carried out, as the client is told.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    pub(crate) detail: String,
    pub(crate) retryable: bool,
    /// Whether something may have happened all the same.
    pub(crate) side_effect_possible: bool,
    /// What the caller needs next.
    pub(crate) extra: Map<String, Value>,
}

impl Problem {
    pub(crate) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            retryable: code.retryable(),
            side_effect_possible: false,
            extra: Map::new(),
        }
    }

    #[must_use]
    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.extra.insert(name.to_owned(), value.into());
        self
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut document = Map::new();
        document.insert("type".to_owned(), format!("urn:mainstay:problem:{}", self.code.as_str()).into());
        document.insert("title".to_owned(), self.code.title().into());
        document.insert("status".to_owned(), self.code.status().into());
        document.insert("code".to_owned(), self.code.as_str().into());
        document.insert("detail".to_owned(), self.detail.clone().into());
        document.insert("retryable".to_owned(), self.retryable.into());
        document.insert("side_effect_possible".to_owned(), self.side_effect_possible.into());
        document.extend(self.extra.clone());
        Value::Object(document)
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(Body::from(self.to_json().to_string()));
        *response.status_mut() =
            StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code == Code::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<InvalidId> for Problem {
    fn from(error: InvalidId) -> Self {
        Self::new(Code::InvalidId, error.to_string())
    }
}

impl From<InvalidCursor> for Problem {
    fn from(error: InvalidCursor) -> Self {
        Self::new(Code::InvalidCursor, error.to_string())
    }
}

const fn code_of(refusal: RefusalCode) -> Code {
    match refusal {
        RefusalCode::SessionUnknown => Code::SessionUnknown,
        RefusalCode::SessionClosed => Code::SessionClosed,
        RefusalCode::SessionRecovering => Code::SessionRecovering,
        RefusalCode::InvalidId => Code::InvalidId,
        RefusalCode::IdConflict => Code::IdConflict,
        RefusalCode::OperationConflict => Code::OperationConflict,
        RefusalCode::EmptyContent => Code::EmptyContent,
        RefusalCode::TooLarge => Code::TooLarge,
        RefusalCode::QueueFull => Code::QueueFull,
        RefusalCode::NoTurn => Code::NoTurn,
        RefusalCode::Unsupported => Code::Unsupported,
        RefusalCode::TurnUnknown => Code::TurnUnknown,
        RefusalCode::RequestUnknown => Code::RequestUnknown,
        RefusalCode::RevisionMismatch => Code::RevisionMismatch,
        RefusalCode::AlreadyAnswered => Code::AlreadyAnswered,
        RefusalCode::RequestClosed => Code::RequestClosed,
        RefusalCode::OptionUnknown => Code::OptionUnknown,
        RefusalCode::SubmissionUnknown => Code::SubmissionUnknown,
        RefusalCode::SubmissionState => Code::SubmissionState,
        RefusalCode::StaleFence => Code::StaleFence,
        RefusalCode::ProcessUnverifiable => Code::ProcessUnverifiable,
        RefusalCode::IllegalInput => Code::Internal,
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Self {
        let mut problem = Self::new(code_of(refusal.code), refusal.detail);
        if let Some(revision) = refusal.revision {
            problem = problem.with("revision", revision);
        }
        if let Some(capability) = refusal.capability {
            problem = problem.with("capability", capability);
        }
        if let Some(ended) = refusal.ended {
            problem = problem.with("state", json!(ended));
        }
        if let Some((answer, by)) = refusal.winner.map(|winner| *winner) {
            problem = problem.with("winner", json!({ "answer": answer, "by": by }));
        }
        if problem.code == Code::ProcessUnverifiable {
            problem = problem.with("verdict", "unverifiable");
        }
        problem
    }
}

impl From<HostError> for Problem {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Refused(refusal) => refusal.into(),
            HostError::SessionUnknown(_) => Self::new(Code::SessionUnknown, error.to_string()),
            HostError::AgentUnknown { .. } => Self::new(Code::AgentUnknown, error.to_string()),
            HostError::Unlistable { .. } => Self::new(Code::AgentFiles, error.to_string()),
            HostError::BadFolder { outside_roots, .. } => {
                let code = if outside_roots { Code::OutsideRoots } else { Code::BadFolder };
                Self::new(code, error.to_string())
            }
            HostError::OperationConflict(_) => Self::new(Code::OperationConflict, error.to_string()),
            HostError::IdConflict { .. } => Self::new(Code::IdConflict, error.to_string()),
            HostError::Storage(ref write) => Self { detail: chain(&error), ..Self::from_write(write) },
            HostError::Read(_) => Self::new(Code::Storage, chain(&error)),
            HostError::AgentFailed { .. } => Self::new(Code::AgentFailed, error.to_string()),
            HostError::Unreadable { .. } => Self::new(Code::SessionUnreadable, error.to_string()),
            HostError::KeeperUnknown(_) => Self::new(Code::KeeperUnknown, error.to_string()),
            HostError::KeeperClaimed { ref session, .. } => {
                Self::new(Code::KeeperClaimed, error.to_string()).with("session", session.clone())
            }
            HostError::KeeperUnverifiable { .. } => Self {
                side_effect_possible: true,
                ..Self::new(Code::ProcessUnverifiable, error.to_string()).with("verdict", "unverifiable")
            },
            HostError::CannotAdopt { .. } => Self::new(Code::Unsupported, error.to_string())
                .with("capability", "adopt")
                .with("offered", json!(["end"])),
            HostError::ShuttingDown => {
                Self { side_effect_possible: true, ..Self::new(Code::ShuttingDown, error.to_string()) }
            }
        }
    }
}

impl Problem {
    fn from_write(error: &WriteError) -> Self {
        let plain = |code| Self::new(code, String::new());
        match error {
            WriteError::DiskFull => plain(Code::StorageFull),
            WriteError::Overloaded => plain(Code::Overloaded),
            // A write that was under way may be on disk though it was not acknowledged.
            WriteError::Io { .. } => Self { side_effect_possible: true, ..plain(Code::Storage) },
            WriteError::Closed => plain(Code::ShuttingDown),
            WriteError::Fenced { .. } => plain(Code::StaleFence),
            WriteError::Conflict(Conflict::SessionId { .. } | Conflict::Id { .. }) => plain(Code::IdConflict),
            WriteError::Conflict(Conflict::Operation { .. }) => plain(Code::OperationConflict),
            WriteError::TooLarge { .. } => plain(Code::TooLarge),
            WriteError::Corrupt { .. } | WriteError::ReadOnly { .. } | WriteError::ForeignWriter { .. } => {
                Self { retryable: false, ..plain(Code::Storage) }
            }
            WriteError::Conflict(_) | WriteError::Missing { .. } | WriteError::Invalid { .. } => {
                plain(Code::Internal)
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_core::content::Answer;

    #[test]
    fn codes_are_distinct_and_have_error_statuses() {
        let mut texts: Vec<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        texts.sort_unstable();
        texts.dedup();
        assert_eq!(texts.len(), Code::ALL.len());
        for code in Code::ALL {
            assert!(StatusCode::from_u16(code.status()).is_ok_and(|status| !status.is_success()), "{code:?}");
        }
    }

    #[test]
    fn a_lost_race_names_the_winner() {
        let mut refusal = Refusal::new(RefusalCode::AlreadyAnswered, "too late");
        refusal.revision = Some(3);
        refusal.winner = Some(Box::new((Answer::Select { option_id: "yes".to_owned() }, "phone".to_owned())));
        let document = Problem::from(HostError::Refused(refusal)).to_json();
        assert_eq!(document["status"], 409);
        assert_eq!(document["code"], "already_answered");
        assert_eq!(document["revision"], 3);
        assert_eq!(document["winner"]["by"], "phone");
        assert_eq!(document["winner"]["answer"]["option_id"], "yes");
    }

    #[test]
    fn what_may_have_happened_is_said() {
        let io = Problem::from(HostError::Storage(WriteError::Io { detail: "gone".to_owned() }));
        assert!(io.retryable && io.side_effect_possible);
        assert!(io.detail.ends_with("gone"), "{}", io.detail);
        let full = Problem::from(HostError::Storage(WriteError::DiskFull));
        assert_eq!(full.code, Code::StorageFull);
        assert!(full.retryable && !full.side_effect_possible);
    }
}
