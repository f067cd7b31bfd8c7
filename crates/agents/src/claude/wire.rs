//! The lines of the stream-json protocol: what is read of one, and the ones we write.
//!
//! Our own control requests carry their meaning in their id, which is a free string to the agent: nothing must be
//! remembered to understand an answer, so an answer is understood also by an adapter made anew.

use crate::rpc::Text;
use mainstay_core::content::ContentBlock;
use mainstay_core::{ControlId, SubmissionId};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;

/// What a line is.
#[derive(Deserialize)]
pub(super) struct Envelope<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) subtype: Option<Text<'a>>,
}

/// A piece of text of the main conversation. What does not fit this shape is read as a value.
#[derive(Deserialize)]
pub(super) struct DeltaLine<'a> {
    #[serde(borrow)]
    pub(super) event: DeltaEvent<'a>,
}

#[derive(Deserialize)]
pub(super) struct DeltaEvent<'a> {
    pub(super) index: u64,
    #[serde(borrow)]
    pub(super) delta: Delta<'a>,
}

#[derive(Deserialize)]
pub(super) struct Delta<'a> {
    #[serde(borrow, default)]
    pub(super) text: Option<Text<'a>>,
    #[serde(borrow, default)]
    pub(super) thinking: Option<Text<'a>>,
}

/// What one of our control requests was for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    Initialize,
    Version,
    /// Asked again for what it offers.
    Catalogue,
    /// Asked again for what is open.
    ListOpen,
    Set(super::state::Setting),
    Interrupt,
    Withdraw(SubmissionId),
    /// For a control, which its answer ends.
    Control(ControlId),
    /// Files put back for a rewind, and the row at which the conversation is then taken up.
    RewindFiles(ControlId, String),
}

impl Asked {
    pub(super) fn id(&self) -> String {
        use super::state::Setting;
        match self {
            Self::Initialize => "initialize".to_owned(),
            Self::Version => "version".to_owned(),
            Self::Catalogue => "catalogue".to_owned(),
            Self::ListOpen => "list-open".to_owned(),
            Self::Set(Setting::Mode) => "set-mode".to_owned(),
            Self::Set(Setting::Model) => "set-model".to_owned(),
            Self::Set(Setting::Effort) => "set-effort".to_owned(),
            Self::Set(Setting::McpServers) => "set-mcp-servers".to_owned(),
            Self::Set(Setting::Thinking) => "set-thinking".to_owned(),
            Self::Interrupt => "interrupt".to_owned(),
            Self::Withdraw(submission) => format!("withdraw:{submission}"),
            Self::Control(control) => format!("control:{control}"),
            // The row first: it is the program's, and has no colon.
            Self::RewindFiles(control, row) => format!("rewind-files:{row}:{control}"),
        }
    }

    pub(super) fn of_id(id: &str) -> Option<Self> {
        use super::state::Setting;
        Some(match id {
            "initialize" => Self::Initialize,
            "version" => Self::Version,
            "catalogue" => Self::Catalogue,
            "list-open" => Self::ListOpen,
            "set-mode" => Self::Set(Setting::Mode),
            "set-model" => Self::Set(Setting::Model),
            "set-effort" => Self::Set(Setting::Effort),
            "set-mcp-servers" => Self::Set(Setting::McpServers),
            "set-thinking" => Self::Set(Setting::Thinking),
            "interrupt" => Self::Interrupt,
            other => {
                if let Some(control) = other.strip_prefix("control:") {
                    return Some(Self::Control(ControlId::from(control)));
                }
                if let Some(files) = other.strip_prefix("rewind-files:") {
                    let (row, control) = files.split_once(':')?;
                    return Some(Self::RewindFiles(ControlId::from(control), row.to_owned()));
                }
                Self::Withdraw(SubmissionId::from(other.strip_prefix("withdraw:")?))
            }
        })
    }

    /// The control request.
    pub(super) fn frame(&self, mut request: Value, subtype: &str) -> Value {
        if let Some(fields) = request.as_object_mut() {
            fields.insert("subtype".to_owned(), Value::from(subtype));
        }
        json!({ "type": "control_request", "request_id": self.id(), "request": request })
    }
}

/// The answer to a request of the agent.
pub(super) fn answer(request: &str, response: Value) -> Value {
    json!({
        "type": "control_response",
        "response": { "subtype": "success", "request_id": request, "response": response },
    })
}

/// The refusal of a request of the agent.
pub(super) fn refusal(request: &str, why: &str) -> Value {
    json!({
        "type": "control_response",
        "response": { "subtype": "error", "request_id": request, "error": why },
    })
}

/// A message of the user. Its `uuid` is the submission's id: the agent echoes it, keeps it in its transcript and drops a
/// second one, and does not ask for a UUID (measured).
pub(super) fn user_message(submission: &SubmissionId, content: &[ContentBlock]) -> Value {
    let content = match content {
        [ContentBlock::Text { text }] => Value::from(text.as_str()),
        blocks => Value::Array(blocks.iter().map(block).collect()),
    };
    json!({
        "type": "user",
        "uuid": submission,
        "message": { "role": "user", "content": content },
        "parent_tool_use_id": null,
    })
}

fn block(block: &ContentBlock) -> Value {
    match block {
        ContentBlock::Text { text } => json!({ "type": "text", "text": text }),
        ContentBlock::Image { data, mime_type } => json!({
            "type": "image",
            "source": { "type": "base64", "media_type": mime_type, "data": data },
        }),
        ContentBlock::ResourceLink { uri, name } => {
            json!({ "type": "text", "text": format!("[{name}]({uri})") })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claude::state::Setting;

    #[test]
    fn the_id_of_a_request_says_what_it_was_for() {
        let all = [
            Asked::Initialize,
            Asked::Version,
            Asked::Catalogue,
            Asked::ListOpen,
            Asked::Set(Setting::Mode),
            Asked::Set(Setting::Model),
            Asked::Set(Setting::Effort),
            Asked::Set(Setting::McpServers),
            Asked::Set(Setting::Thinking),
            Asked::Interrupt,
            Asked::Withdraw(SubmissionId::from("withdraw:m1")),
            Asked::Control(ControlId::from("withdraw:c1")),
            Asked::RewindFiles(ControlId::from("c:1"), "a1-b2".to_owned()),
        ];
        for asked in all {
            assert_eq!(Asked::of_id(&asked.id()), Some(asked));
        }
        assert_eq!(Asked::of_id("4711"), None);
    }
}
