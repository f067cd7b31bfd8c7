//! Permission requests: asked, answered, withdrawn.

use super::state::{MAX_OPEN_REQUESTS, MAX_REQUEST_ID_BYTES};
use super::{AcpAdapter, RPC};
use crate::adapter::{CannotTell, Translated};
use crate::rpc;
use mainstay_core::agent::{AskedByAgent, NoticeLevel};
use mainstay_core::content::{Answer, OptionKind, PermissionOption, RequestKind};
use mainstay_core::{AgentEvent, ItemKey, RequestKey};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// The answer `cancelled` to a permission request, by the JSON text of its id.
pub(super) fn cancelled(id: &str) -> Value {
    RPC.answer(id, json!({ "outcome": { "outcome": "cancelled" } }))
}

fn selected(id: &str, option: &str) -> Value {
    RPC.answer(id, json!({ "outcome": { "outcome": "selected", "optionId": option } }))
}

impl AcpAdapter {
    pub(super) fn permission_asked(
        &mut self,
        bytes: &[u8],
        id: &RawValue,
        params: Option<&RawValue>,
        out: &mut Translated,
    ) {
        let details = rpc::body(params);
        let thread = details.get("sessionId").and_then(Value::as_str).unwrap_or_default();
        let Some(at) = self.sessions.of_thread(thread) else {
            if !self.of_unknown_thread(bytes, "session/request_permission", out) {
                out.send(&RPC.refusal(id.get(), rpc::INVALID_PARAMS, "no such session"));
            }
            return;
        };
        let session = self.sessions.slot(at).session.clone();
        self.prove_taken(at, out);
        if id.get().len() > MAX_REQUEST_ID_BYTES {
            out.send(&RPC.refusal(id.get(), rpc::INVALID_PARAMS, "the request's id is too long"));
            out.say(&session, notice("a permission request with too long an id was refused", details));
            return;
        }
        let state = &self.sessions.slot(at).state;
        let stopping = state.prompt.as_ref().is_some_and(|prompt| prompt.interrupted);
        let refused = if state.requests.contains_key(id.get()) {
            // Not answered: the answer would settle the one that is open under this id.
            out.say(&session, notice("the agent used the id of an open request again", details));
            return;
        } else if stopping {
            Some("a permission request that came after the stop was answered with cancelled")
        } else if state.requests.len() >= MAX_OPEN_REQUESTS {
            Some("too many permission requests are open; one more was answered with cancelled")
        } else {
            None
        };
        if let Some(why) = refused {
            out.send_urgent(&cancelled(id.get()));
            out.say(&session, notice(why, details));
            return;
        }
        let turn = state.turn().cloned();
        self.sessions.change(at).requests.insert(id.get().to_owned(), turn.clone());
        let text = |pointer: &str| details.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let title = text("/toolCall/title").unwrap_or_else(|| "The agent asks for permission".to_owned());
        out.say(
            &session,
            AgentEvent::RequestOpened(AskedByAgent {
                turn,
                item: text("/toolCall/toolCallId").map(ItemKey),
                options: offered(&details),
                details,
                ..AskedByAgent::new(RequestKey::from(id.get()), RequestKind::Approval, title)
            }),
        );
    }

    pub(super) fn answer_permission(
        &mut self,
        at: usize,
        key: &RequestKey,
        answer: &Answer,
        options: &[PermissionOption],
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        if !self.sessions.slot(at).state.requests.contains_key(key.as_str()) {
            return Err(CannotTell::UnknownRequest(key.to_string()));
        }
        self.sessions.change(at).requests.remove(key.as_str());
        let of_kind = |kind: OptionKind| options.iter().find(|option| option.kind == kind);
        let frame = match answer {
            Answer::Select { option_id } => selected(key.as_str(), option_id),
            // By kind, never by place: some agents list "always" first.
            Answer::Decline { .. } => {
                match of_kind(OptionKind::RejectOnce).or_else(|| of_kind(OptionKind::RejectAlways)) {
                    Some(option) => selected(key.as_str(), &option.option_id),
                    None => cancelled(key.as_str()),
                }
            }
            Answer::Cancel { .. } => cancelled(key.as_str()),
            // Never offered by this protocol's requests.
            Answer::Answers { .. } | Answer::Submit { .. } => cancelled(key.as_str()),
        };
        out.send(&frame);
        Ok(())
    }

    /// The agent takes a request of its own back.
    pub(super) fn withdrawn(&mut self, params: Option<&RawValue>, out: &mut Translated) {
        let body = rpc::body(params);
        let id = body.get("requestId").cloned().unwrap_or_default().to_string();
        let of =
            self.sessions.positions().find(|at| self.sessions.slot(*at).state.requests.contains_key(&id));
        // Unknown: it was settled before, so there is nothing left to take back.
        let Some(at) = of else { return };
        self.sessions.change(at).requests.remove(&id);
        out.send(&RPC.refusal(&id, rpc::REQUEST_CANCELLED, "cancelled"));
        let session = self.sessions.slot(at).session.clone();
        out.say(&session, AgentEvent::RequestSettled { key: RequestKey(id), confirmed: false });
    }
}

fn notice(message: &str, details: Value) -> AgentEvent {
    AgentEvent::Notice { level: NoticeLevel::Info, message: message.to_owned(), provider: Some(details) }
}

/// The options, in the agent's order. One without an id could not be chosen and is left out.
fn offered(details: &Value) -> Vec<PermissionOption> {
    let options = details.get("options").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    options
        .iter()
        .filter_map(|option| {
            let text = |name: &str| option.get(name).and_then(Value::as_str);
            let option_id = text("optionId")?.to_owned();
            let name = text("name").unwrap_or(&option_id).to_owned();
            let kind = match text("kind").unwrap_or_default() {
                "allow_once" => OptionKind::AllowOnce,
                "allow_always" => OptionKind::AllowAlways,
                "reject_once" => OptionKind::RejectOnce,
                "reject_always" => OptionKind::RejectAlways,
                _ => OptionKind::Other,
            };
            Some(PermissionOption { option_id, name, kind })
        })
        .collect()
}
