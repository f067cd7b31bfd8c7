//! What the server's errors mean. Its refusals share one code, so their words are all there is; they are read here and
//! nowhere else, and never to identify anything.

use crate::rpc::RpcError;
use mainstay_core::content::{Failure, FailureCode, Outcome};
use serde_json::Value;

/// Refusals that we act on (texts measured with codex-cli 0.171.0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// `no active turn to interrupt`: not started yet, or over.
    NoActiveTurn,
    /// `expected active turn id X but found Y`.
    OtherActiveTurn,
    /// `no active turn to steer`: over.
    NoTurnToSteer,
    /// `codexErrorInfo.activeTurnNotSteerable`: it compacts or reviews.
    NotSteerable,
    /// `no rollout found for thread id X`.
    NoRollout,
    /// `thread X is not materialized yet; …`: it has no message.
    NotMaterialized,
    /// `thread X already has an active writer`.
    ActiveWriter,
    /// Anything else.
    Other,
}

/// Reads a refusal.
pub(super) fn classify(error: &RpcError) -> Refused {
    let has = |words: &str| error.message.contains(words);
    if has("no active turn to interrupt") {
        Refused::NoActiveTurn
    } else if has("no active turn to steer") {
        Refused::NoTurnToSteer
    } else if error.body.pointer("/data/codexErrorInfo/activeTurnNotSteerable").is_some() {
        Refused::NotSteerable
    } else if has("expected active turn id") {
        Refused::OtherActiveTurn
    } else if has("no rollout found") {
        Refused::NoRollout
    } else if has("is not materialized yet") {
        Refused::NotMaterialized
    } else if has("already has an active writer") {
        Refused::ActiveWriter
    } else {
        Refused::Other
    }
}

/// The failure of a refused request, in the server's own words.
pub(super) fn refusal_failure(error: &RpcError) -> Failure {
    let code = match classify(error) {
        Refused::NoRollout => FailureCode::ThreadMissing,
        Refused::ActiveWriter => FailureCode::ActiveWriter,
        Refused::NoActiveTurn
        | Refused::OtherActiveTurn
        | Refused::NoTurnToSteer
        | Refused::NotSteerable
        | Refused::NotMaterialized
        | Refused::Other => FailureCode::AgentRefused,
    };
    Failure { code, message: error.message.clone(), provider: Some(error.body.clone()), resets_at: None }
}

/// The failure in a turn's `error`, or in an `error` notification.
pub(super) fn turn_failure(error: &Value) -> Failure {
    let info = error.get("codexErrorInfo");
    // Either a word, or an object whose only key is the word.
    let word =
        info.and_then(|info| info.as_str().or_else(|| info.as_object()?.keys().next().map(String::as_str)));
    let code = match word {
        Some("usageLimitExceeded" | "contextWindowExceeded") => FailureCode::Limit,
        Some("unauthorized") => FailureCode::SignIn,
        _ => FailureCode::Provider,
    };
    let message = error.get("message").and_then(Value::as_str).unwrap_or("the turn failed without a reason");
    Failure { code, message: message.to_owned(), provider: Some(error.clone()), resets_at: None }
}

/// How a failed turn ended.
pub(super) const fn failed_outcome(failure: &Failure) -> Outcome {
    match failure.code {
        FailureCode::Limit => Outcome::Limit,
        _ => Outcome::Failed,
    }
}
