//! What the server's errors mean. Its refusals share one code, so their words are all there is; they are read here and
//! nowhere else, and never to identify anything.

use super::state::TurnFailure;
use super::{CodexAdapter, warn};
use crate::adapter::Translated;
use crate::rpc::RpcError;
use crate::sessions;
use mainstay_core::content::{Failure, FailureCode, Outcome};
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn};
use serde_json::{Value, json};

/// The server's code for `Server overloaded; retry later.`.
const OVERLOADED: i64 = -32001;
/// The longest report of the account's limits that is kept, in bytes of JSON; a longer one is not.
const MAX_LIMITS_BYTES: usize = 4 * 1024;

/// The longest id of a turn that is taken from a refusal, in bytes; a longer one is none.
const MAX_TURN_ID_BYTES: usize = 128;

/// Refusals that we act on (texts measured with codex-cli 0.171.0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refused {
    /// `no active turn to interrupt`: not started yet, or over.
    NoActiveTurn,
    /// `expected active turn id X but found Y`.
    OtherActiveTurn,
    /// `no active turn to steer`: over.
    NoTurnToSteer,
    /// `codexErrorInfo.activeTurnNotSteerable`, and of `turn/start` only the words `… ActiveTurnNotSteerable { turn_kind:
    /// Compact }`: it compacts or reviews.
    NotSteerable,
    /// `no rollout found for thread id X`.
    NoRollout,
    /// `thread X is not materialized yet; …`: it has no message.
    NotMaterialized,
    /// `thread X already has an active writer`.
    ActiveWriter,
    /// `session X is archived. Run …`.
    Archived,
    /// `… authentication required …`.
    SignIn,
    /// Code -32001: too much was asked at once.
    Overloaded,
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
    } else if error.body.pointer("/data/codexErrorInfo/activeTurnNotSteerable").is_some()
        || has("ActiveTurnNotSteerable")
    {
        Refused::NotSteerable
    } else if has("expected active turn id") {
        Refused::OtherActiveTurn
    } else if has("no rollout found") {
        Refused::NoRollout
    } else if has("is not materialized yet") {
        Refused::NotMaterialized
    } else if has("already has an active writer") {
        Refused::ActiveWriter
    } else if has(" is archived") {
        Refused::Archived
    } else if has("authentication required") {
        Refused::SignIn
    } else if error.code == OVERLOADED {
        Refused::Overloaded
    } else {
        Refused::Other
    }
}

/// The turn that runs, where a refusal names it in place of the one that was asked for: `… but found X`, with or without
/// backticks (measured).
pub(super) fn other_active_turn(error: &RpcError) -> Option<ProviderTurn> {
    if classify(error) != Refused::OtherActiveTurn {
        return None;
    }
    let (_, named) = error.message.rsplit_once("but found ")?;
    let named = named.trim().trim_matches('`');
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let fits = !named.is_empty() && named.len() <= MAX_TURN_ID_BYTES && named.bytes().all(is_id);
    fits.then(|| ProviderTurn::from(named))
}

/// The failure of a refused request, in the server's own words.
pub(super) fn refusal_failure(error: &RpcError) -> Failure {
    let code = match classify(error) {
        Refused::NoRollout => FailureCode::ThreadMissing,
        Refused::ActiveWriter => FailureCode::ActiveWriter,
        Refused::SignIn => FailureCode::SignIn,
        Refused::Overloaded => FailureCode::Overloaded,
        Refused::NoActiveTurn
        | Refused::OtherActiveTurn
        | Refused::NoTurnToSteer
        | Refused::NotSteerable
        | Refused::NotMaterialized
        | Refused::Archived
        | Refused::Other => FailureCode::AgentRefused,
    };
    let message = advised(code, &error.message);
    Failure { provider: Some(error.body.clone()), ..Failure::new(code, message) }
}

impl CodexAdapter {
    /// An `error` notification: of a turn that will be tried again, or of one that is about to end.
    pub(super) fn error(&mut self, at: usize, params: &Value, out: &mut Translated) {
        let error = params.get("error").unwrap_or(&Value::Null);
        let turn = params.get("turnId").and_then(Value::as_str);
        let session = self.sessions.slot(at).session.clone();
        match turn {
            Some(turn) if params.get("willRetry") != Some(&Value::Bool(true)) => {
                // Without the provider's own object: the end of the turn carries it, and the state stays small.
                let failure = sessions::kept(&self.turn_failure(error));
                self.sessions.change(at).failure = Some(TurnFailure { turn: turn.into(), failure });
            }
            Some(turn) => {
                let repeated = self.answer_abandoned(at, turn, out);
                let tries = self.sessions.slot(at).state.retries;
                out.say(&session, retrying(Some(turn), tries, error, &repeated));
            }
            None => {
                let failure = self.turn_failure(error);
                warn(out, &session, failure.message, failure.provider);
            }
        }
    }

    /// The account's limits, which say when one resets.
    pub(super) fn took_rate_limits(&mut self, params: &Value) {
        let limits = params.get("rateLimits").filter(|limits| limits.to_string().len() <= MAX_LIMITS_BYTES);
        if limits.is_some() && self.connection.rate_limits.as_ref() != limits {
            let limits = limits.cloned();
            self.gathered.get_or_insert_default().rate_limits.clone_from(&limits);
            self.change_connection().rate_limits = limits;
        }
    }

    /// The failure in a turn's `error`, or in an `error` notification. A usage limit carries when it resets, where the
    /// account's limits tell.
    pub(super) fn turn_failure(&self, error: &Value) -> Failure {
        let code = match error_word(error) {
            Some(
                "usageLimitExceeded"
                | "contextWindowExceeded"
                | "sessionBudgetExceeded"
                | "rateLimitExceeded",
            ) => FailureCode::Limit,
            Some("unauthorized") => FailureCode::SignIn,
            Some("serverOverloaded") => FailureCode::Overloaded,
            _ if matches!(http_status(error), Some(401 | 403)) => FailureCode::SignIn,
            _ => FailureCode::Provider,
        };
        let message =
            error.get("message").and_then(Value::as_str).unwrap_or("the turn failed without a reason");
        let message = advised(code, message);
        let mut failure = Failure { provider: Some(error.clone()), ..Failure::new(code, message) };
        if error_word(error) == Some("usageLimitExceeded")
            && let Some(limits) = &self.connection.rate_limits
        {
            failure.resets_at = resets_at(limits).map(|seconds| seconds.saturating_mul(1_000));
            failure.provider = Some(json!({ "error": error, "rateLimits": limits }));
        }
        failure
    }
}

/// The word of a `codexErrorInfo`: either a word, or an object whose only key is the word.
fn error_word(error: &Value) -> Option<&str> {
    let info = error.get("codexErrorInfo")?;
    info.as_str().or_else(|| info.as_object()?.keys().next().map(String::as_str))
}

/// The HTTP status that an error names.
fn http_status(error: &Value) -> Option<u64> {
    error.get("codexErrorInfo")?.as_object()?.values().next()?.get("httpStatusCode")?.as_u64()
}

/// A failure's words, with what a person can do about it.
fn advised(code: FailureCode, message: &str) -> String {
    match code {
        FailureCode::SignIn => {
            format!("{message} (sign in with `codex login`, or check the key of the model provider)")
        }
        FailureCode::AgentRefused if message.contains("config") => {
            format!("{message} (check `config.toml` in the agent's home)")
        }
        _ => message.to_owned(),
    }
}

/// When the limit that is used up resets, Unix seconds: of several the latest, because all of them hold.
fn resets_at(limits: &Value) -> Option<i64> {
    let used_up = ["primary", "secondary"].into_iter().filter_map(|name| {
        let window = limits.get(name)?;
        let full = window.get("usedPercent").and_then(Value::as_f64).is_some_and(|used| used >= 100.0);
        full.then(|| window.get("resetsAt")?.as_i64()).flatten()
    });
    used_up.max()
}

/// A failure that the agent tries to get over by itself.
pub(super) fn retrying(turn: Option<&str>, tries: u32, error: &Value, repeated: &[ItemKey]) -> AgentEvent {
    let words = error.get("message").and_then(Value::as_str).unwrap_or("the agent tries again");
    let reason = error.get("additionalDetails").and_then(Value::as_str).unwrap_or(words);
    let code = match http_status(error) {
        Some(429 | 503 | 529) => FailureCode::Overloaded,
        Some(401 | 403) => FailureCode::SignIn,
        Some(_) => FailureCode::Provider,
        None => FailureCode::Network,
    };
    let (attempt, of) = match attempt(words) {
        Some([attempt, of]) => (attempt, Some(of)),
        // It waits for the network, without end.
        None => (tries, None),
    };
    let mut provider = json!({ "error": error });
    if !repeated.is_empty() {
        // Said whole in the answer that broke off: the model says them again.
        provider["abandoned_items"] = json!(repeated);
    }
    let failure = Failure { provider: Some(provider), ..Failure::new(code, reason) };
    AgentEvent::Retrying { turn: turn.map(Into::into), attempt, of, failure, next_at: None }
}

/// `Reconnecting... 1/2`: which attempt of how many; None where it has no such words (it waits for the network, without
/// end).
fn attempt(words: &str) -> Option<[u32; 2]> {
    let (attempt, of) = words.rsplit_once(' ')?.1.split_once('/')?;
    Some([attempt.parse().ok()?, of.parse().ok()?])
}

/// How a failed turn ended.
pub(super) const fn failed_outcome(failure: &Failure) -> Outcome {
    match failure.code {
        FailureCode::Limit => Outcome::Limit,
        _ => Outcome::Failed,
    }
}
