//! JSON-RPC, as agents speak it: the envelope of a message, and the envelopes we write.
//!
//! What a message is is decided by its keys (`id`, `method`, `result`, `error`), never by trying shapes in turn. The
//! bodies stay unread until somebody knows what they are. `jsonrpc` is written for ACP, left out for Codex, and
//! required of nobody.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// The code for a method that we do not offer.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The code for parameters that we cannot use.
pub const INVALID_PARAMS: i64 = -32602;
/// ACP: sign-in is needed.
pub const SIGN_IN_NEEDED: i64 = -32000;
/// ACP: not found; for a session, `data.sessionId` names it.
pub const NOT_FOUND: i64 = -32002;
/// ACP: the request was cancelled.
pub const REQUEST_CANCELLED: i64 = -32800;

/// The most characters of an unreadable message that are shown in a notice.
pub const HEAD_CHARS: usize = 200;

/// A text that is borrowed from the message where it has no escapes.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct Text<'a>(#[serde(borrow)] pub Cow<'a, str>);

/// An error of the other side.
#[derive(Debug, Clone, PartialEq)]
pub struct RpcError {
    /// Its code; 0 where it gave none that is a whole number.
    pub code: i64,
    /// Its words.
    pub message: String,
    /// The whole error object as it came.
    pub body: Value,
}

impl RpcError {
    fn read(raw: &RawValue) -> Self {
        let body: Value = serde_json::from_str(raw.get()).unwrap_or(Value::Null);
        let code = body.get("code").and_then(Value::as_i64).unwrap_or(0);
        let message = match body.get("message").and_then(Value::as_str) {
            Some(message) => message.to_owned(),
            None => "the agent gave no reason".to_owned(),
        };
        Self { code, message, body }
    }
}

/// One message of the other side.
#[derive(Debug)]
pub enum Inbound<'a> {
    /// It asks, and waits for an answer with this id.
    Request {
        /// The id, as it came: an opaque JSON value.
        id: &'a RawValue,
        /// What it asks.
        method: Cow<'a, str>,
        /// With what; None where it gave none.
        params: Option<&'a RawValue>,
    },
    /// It tells.
    Notification {
        /// What it tells.
        method: Cow<'a, str>,
        /// With what.
        params: Option<&'a RawValue>,
    },
    /// It answers a request of ours.
    Answer {
        /// The id that it names.
        id: &'a RawValue,
        /// The result (None: an empty or null one), or the error.
        result: Result<Option<&'a RawValue>, RpcError>,
    },
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Text<'a>>,
    #[serde(borrow, default)]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

/// Keeps `null` apart from a key that is not there.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// A message without the byte order mark that some programs write before their first line. (A carriage return at its end
/// is white space of JSON.)
#[must_use]
pub fn without_mark(message: &[u8]) -> &[u8] {
    message.strip_prefix(b"\xef\xbb\xbf").unwrap_or(message)
}

/// Reads the envelope of a message. None: it is no JSON-RPC message.
#[must_use]
pub fn read(message: &[u8]) -> Option<Inbound<'_>> {
    let envelope: Envelope<'_> = serde_json::from_slice(without_mark(message)).ok()?;
    match (envelope.id, envelope.method) {
        (Some(id), Some(method)) if id.get() != "null" => {
            Some(Inbound::Request { id, method: method.0, params: envelope.params })
        }
        (_, Some(method)) => Some(Inbound::Notification { method: method.0, params: envelope.params }),
        (Some(id), None) => match (envelope.result, envelope.error) {
            (_, Some(error)) => Some(Inbound::Answer { id, result: Err(RpcError::read(error)) }),
            (Some(result), None) => {
                let result = (result.get() != "null").then_some(result);
                Some(Inbound::Answer { id, result: Ok(result) })
            }
            (None, None) => None,
        },
        (None, None) => None,
    }
}

/// The id of an answer as the number that we gave our request; None where it is not one that we could have given.
#[must_use]
pub fn own_id(id: &RawValue) -> Option<u64> {
    id.get().parse().ok()
}

/// Reads a body; null where it is absent. The envelope was JSON, so its bodies are.
#[must_use]
pub fn body(raw: Option<&RawValue>) -> Value {
    raw.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or(Value::Null)
}

/// The whole of a message that was read before, for passing it on unmodelled.
#[must_use]
pub fn whole(message: &[u8]) -> Value {
    serde_json::from_slice(without_mark(message)).unwrap_or(Value::Null)
}

/// The beginning of something unreadable, bounded by [`HEAD_CHARS`].
#[must_use]
pub fn head(message: &[u8]) -> String {
    // Four bytes are the most a character has; what is cut in two shows as a replacement character.
    let end = message.len().min(HEAD_CHARS * 4);
    String::from_utf8_lossy(&message[..end]).chars().take(HEAD_CHARS).collect()
}

/// Whether `jsonrpc` stands in what we write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// `"jsonrpc":"2.0"` in each message (ACP).
    Marked,
    /// No such field (Codex).
    Bare,
}

impl Dialect {
    /// A request.
    #[must_use]
    pub fn request(self, id: u64, method: &str, params: Value) -> Value {
        self.marked(json!({ "id": id, "method": method, "params": params }))
    }

    /// A notification; without `params` where they are null.
    #[must_use]
    pub fn notification(self, method: &str, params: Value) -> Value {
        self.marked(match params {
            Value::Null => json!({ "method": method }),
            params => json!({ "method": method, "params": params }),
        })
    }

    /// The answer to a request, by the JSON text of its id.
    #[must_use]
    pub fn answer(self, id: &str, result: Value) -> Value {
        self.marked(json!({ "id": id_value(id), "result": result }))
    }

    /// The refusal of a request, by the JSON text of its id.
    #[must_use]
    pub fn refusal(self, id: &str, code: i64, message: &str) -> Value {
        self.marked(json!({ "id": id_value(id), "error": { "code": code, "message": message } }))
    }

    fn marked(self, mut message: Value) -> Value {
        if self == Self::Marked
            && let Some(fields) = message.as_object_mut()
        {
            fields.insert("jsonrpc".to_owned(), Value::from("2.0"));
        }
        message
    }
}

fn id_value(id: &str) -> Value {
    serde_json::from_str(id).unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_say_what_a_message_is() {
        let kind = |text: &'static str| match read(text.as_bytes()) {
            Some(Inbound::Request { id, method, .. }) => format!("request {} {method}", id.get()),
            Some(Inbound::Notification { method, .. }) => format!("notification {method}"),
            Some(Inbound::Answer { id, result: Ok(result) }) => {
                format!("answer {} {}", id.get(), result.map_or("-", RawValue::get))
            }
            Some(Inbound::Answer { id, result: Err(error) }) => {
                format!("error {} {} {}", id.get(), error.code, error.message)
            }
            None => "nothing".to_owned(),
        };
        assert_eq!(kind(r#"{"id":0,"method":"a","params":{}}"#), "request 0 a");
        assert_eq!(kind(r#"{"id":"x\u0041","method":"a\u0062"}"#), r#"request "x\u0041" ab"#);
        assert_eq!(kind(r#"{"method":"a","id":null}"#), "notification a");
        assert_eq!(kind(r#"{"id":1,"result":{"ok":true}}"#), r#"answer 1 {"ok":true}"#);
        assert_eq!(kind(r#"{"id":1,"result":null}"#), "answer 1 -");
        assert_eq!(kind(r#"{"error":{"code":-32600,"message":"no"},"id":3}"#), "error 3 -32600 no");
        assert_eq!(kind(r#"{"id":3,"error":{"code":"odd"}}"#), "error 3 0 the agent gave no reason");
        assert_eq!(kind(r#"{"id":1}"#), "nothing");
        assert_eq!(kind("[1,2]"), "nothing");
        assert_eq!(kind("Ripgrep is not available."), "nothing");
    }

    #[test]
    fn an_unreadable_head_is_bounded_and_valid_text() {
        assert_eq!(head("ä".repeat(1_000).as_bytes()).chars().count(), HEAD_CHARS);
        assert_eq!(head(&[0xff, b'a']), "\u{fffd}a");
    }

    #[test]
    fn both_dialects_keep_opaque_ids() {
        assert_eq!(Dialect::Bare.answer(r#""7""#, json!(1)).to_string(), r#"{"id":"7","result":1}"#);
        let marked = Dialect::Marked.refusal("7", METHOD_NOT_FOUND, "no");
        assert_eq!(marked["jsonrpc"], "2.0");
        assert_eq!(marked["id"], 7);
    }
}
