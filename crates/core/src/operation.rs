//! Idempotency: a client's key with the fingerprint of its request.

use crate::digest::sha256_hex;
use serde::{Deserialize, Serialize};

/// What is kept of a request: enough to know it again, nothing of its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint(pub String);

impl Fingerprint {
    /// The fingerprint of method, path and body. The parts are length-prefixed, so that they cannot run together.
    #[must_use]
    pub fn of(method: &str, path: &str, body: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(method.len() + path.len() + body.len() + 24);
        for part in [method.as_bytes(), path.as_bytes(), body] {
            bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
            bytes.extend_from_slice(part);
        }
        Self(sha256_hex(&bytes))
    }
}

/// What to do with a request whose key was (or was not) seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// The key is new: decide and record.
    New,
    /// The same request again: give the recorded answer.
    Replay,
    /// Another request under the same key: `operation_conflict`.
    Conflict,
}

/// Decides from what is recorded under the key.
#[must_use]
pub fn admit(recorded: Option<&Fingerprint>, request: &Fingerprint) -> Admission {
    match recorded {
        None => Admission::New,
        Some(before) if before == request => Admission::Replay,
        Some(_) => Admission::Conflict,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_key_same_request_is_a_replay_and_another_request_a_conflict() {
        let a = Fingerprint::of("POST", "/v1/sessions", b"{}");
        let b = Fingerprint::of("POST", "/v1/sessions", b"{ }");
        assert_eq!(admit(None, &a), Admission::New);
        assert_eq!(admit(Some(&a), &a), Admission::Replay);
        assert_eq!(admit(Some(&a), &b), Admission::Conflict);
    }

    #[test]
    fn parts_of_a_request_cannot_run_together() {
        assert_ne!(Fingerprint::of("POST", "/a", b"b"), Fingerprint::of("POST", "/ab", b""));
    }
}
