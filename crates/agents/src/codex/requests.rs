//! Approvals: asked, asked again on a new connection, answered, settled.

use super::state::{MAX_AMENDMENT_BYTES, MAX_OPEN_REQUESTS, OpenRequest};
use super::{CodexAdapter, RPC};
use crate::adapter::{CannotTell, Translated};
use crate::rpc;
use mainstay_core::agent::{AskedByAgent, NoticeLevel};
use mainstay_core::content::{Answer, OptionKind, PermissionOption, RequestKind};
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, RequestKey};
use serde_json::value::RawValue;
use serde_json::{Value, json};

pub(super) const COMMAND_APPROVAL: &str = "item/commandExecution/requestApproval";
pub(super) const FILE_APPROVAL: &str = "item/fileChange/requestApproval";

const ACCEPT: &str = "accept";
const ACCEPT_FOR_SESSION: &str = "acceptForSession";
const ACCEPT_FOR_EVER: &str = "acceptWithExecpolicyAmendment";
const DECLINE: &str = "decline";
const CANCEL: &str = "cancel";

impl CodexAdapter {
    pub(super) fn approval_asked(
        &mut self,
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
        out: &mut Translated,
    ) {
        let details = rpc::body(params);
        let text = |name: &str| details.get(name).and_then(Value::as_str);
        let (Some(thread), Some(turn), Some(item)) = (text("threadId"), text("turnId"), text("itemId"))
        else {
            self.unanswerable(id, method, details, out);
            return;
        };
        let Some(at) = self.sessions.of_thread(thread) else {
            // Of a thread that no session has (a sub-agent's): unanswered it would wait for ever.
            self.unanswerable(id, method, details, out);
            return;
        };
        let (turn, item) = (ProviderTurn::from(turn), ItemKey::from(item));
        let approval = text("approvalId").map(str::to_owned);
        let again = |open: &OpenRequest| {
            open.id.is_none()
                && open.method == method
                && open.turn == turn
                && open.item == item
                && open.approval == approval
        };
        if self.asked_again(at, id, again, out) {
            return;
        }
        let session = self.sessions.slot(at).session.clone();
        if self.sessions.slot(at).state.requests.len() >= MAX_OPEN_REQUESTS {
            out.send(&RPC.answer(id.get(), json!({ "decision": DECLINE })));
            let message = "too many approvals are open; one more was declined".to_owned();
            out.say(
                &session,
                AgentEvent::Notice { level: NoticeLevel::Warning, message, provider: Some(details) },
            );
            return;
        }
        let amendment = details
            .get("proposedExecpolicyAmendment")
            .filter(|rule| rule.is_array() && rule.to_string().len() <= MAX_AMENDMENT_BYTES)
            .cloned();
        let key = self.request_key(id);
        self.sessions.change(at).requests.insert(
            key.clone(),
            OpenRequest {
                id: Some(id.get().to_owned()),
                method: method.to_owned(),
                turn: turn.clone(),
                item: item.clone(),
                approval,
                amendment: amendment.clone(),
                answer: None,
            },
        );
        let title = match (method, text("command")) {
            (COMMAND_APPROVAL, Some(command)) => command.to_owned(),
            (COMMAND_APPROVAL, None) => "Run a command".to_owned(),
            _ => "Change files".to_owned(),
        };
        let asked = AskedByAgent {
            turn: Some(turn),
            item: Some(item),
            options: options(method, amendment.as_ref()),
            details,
            ..AskedByAgent::new(RequestKey(key), RequestKind::Approval, title)
        };
        out.say(&session, AgentEvent::RequestOpened(asked));
    }

    /// Ids of the server begin anew with each of its lives, and a request gets another one on another connection.
    fn request_key(&self, id: &RawValue) -> String {
        format!("{}:{}", self.connection.number.unwrap_or_default(), id.get())
    }

    /// A request that was open when the connection was lost comes again under another id. It keeps its key; what was
    /// answered is answered again, because the answer did not arrive.
    fn asked_again(
        &mut self,
        at: usize,
        id: &RawValue,
        is_it: impl Fn(&OpenRequest) -> bool,
        out: &mut Translated,
    ) -> bool {
        if !self.sessions.slot(at).state.requests.values().any(&is_it) {
            return false;
        }
        let Some(open) = self.sessions.change(at).requests.values_mut().find(|open| is_it(open)) else {
            return false;
        };
        open.id = Some(id.get().to_owned());
        if let Some(answer) = &open.answer {
            out.send(&RPC.answer(id.get(), json!({ "decision": answer })));
        }
        true
    }

    /// A request that this version cannot put to anybody: refused, never left unanswered.
    pub(super) fn unanswerable(&mut self, id: &RawValue, method: &str, details: Value, out: &mut Translated) {
        out.send(&RPC.refusal(id.get(), rpc::METHOD_NOT_FOUND, "this client cannot answer that"));
        let at = details
            .get("threadId")
            .and_then(Value::as_str)
            .and_then(|thread| self.sessions.of_thread(thread));
        let event = AgentEvent::Notice {
            level: NoticeLevel::Warning,
            message: format!(
                "the agent asked for something that cannot be answered here yet ({method}); it was refused"
            ),
            provider: Some(details),
        };
        match at {
            Some(at) => out.say(&self.sessions.slot(at).session, event),
            None => out.say_all(event),
        }
    }

    pub(super) fn answer_request(
        &mut self,
        at: usize,
        key: &RequestKey,
        answer: &Answer,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let unknown = || CannotTell::UnknownRequest(key.to_string());
        let open = self.sessions.slot(at).state.requests.get(key.as_str()).ok_or_else(unknown)?;
        let decision = decision(answer, open).ok_or_else(unknown)?;
        // Without an id it waits for the request to come again on the new connection.
        if let Some(id) = &open.id {
            out.send(&RPC.answer(id, json!({ "decision": decision })));
        }
        if let Some(open) = self.sessions.change(at).requests.get_mut(key.as_str()) {
            open.answer = Some(decision);
        }
        Ok(())
    }

    pub(super) fn request_resolved(&mut self, at: usize, params: &Value, out: &mut Translated) {
        let id = params.get("requestId").cloned().unwrap_or_default().to_string();
        let found =
            self.sessions.slot(at).state.requests.iter().find(|(_, open)| open.id.as_ref() == Some(&id));
        // Not ours: one that was refused at once, or one of before this process knew the thread.
        let Some(key) = found.map(|(key, _)| key.clone()) else { return };
        let answered =
            self.sessions.change(at).requests.remove(&key).is_some_and(|open| open.answer.is_some());
        let session = &self.sessions.slot(at).session;
        out.say(session, AgentEvent::RequestSettled { key: RequestKey(key), confirmed: answered });
    }
}

fn options(method: &str, amendment: Option<&Value>) -> Vec<PermissionOption> {
    let option = |id: &str, name: String, kind| PermissionOption { option_id: id.to_owned(), name, kind };
    let files = method == FILE_APPROVAL;
    let reach = if files { "these files" } else { "exactly this command" };
    let mut options = vec![
        option(ACCEPT, "Allow once".to_owned(), OptionKind::AllowOnce),
        option(ACCEPT_FOR_SESSION, format!("Allow {reach} in this session"), OptionKind::AllowAlways),
    ];
    if let Some(rule) = amendment.filter(|_| !files) {
        let words: Vec<&str> =
            rule.as_array().map_or(&[][..], Vec::as_slice).iter().filter_map(Value::as_str).collect();
        let name = format!("Allow commands that begin with `{}` for ever, in all sessions", words.join(" "));
        options.push(option(ACCEPT_FOR_EVER, name, OptionKind::AllowAlways));
    }
    options.push(option(DECLINE, "Reject; the turn goes on".to_owned(), OptionKind::RejectOnce));
    options.push(option(CANCEL, "Reject and stop the turn".to_owned(), OptionKind::Other));
    options
}

/// The decision in the server's form; None for an option that was not offered.
fn decision(answer: &Answer, open: &OpenRequest) -> Option<Value> {
    let word = match answer {
        Answer::Select { option_id } => option_id.as_str(),
        Answer::Decline { .. } => DECLINE,
        Answer::Cancel { .. } => CANCEL,
        // Nothing that is asked here takes these.
        Answer::Answers { .. } | Answer::Submit { .. } => return None,
    };
    match word {
        ACCEPT | ACCEPT_FOR_SESSION | DECLINE | CANCEL => Some(Value::from(word)),
        ACCEPT_FOR_EVER => {
            let rule = open.amendment.as_ref()?;
            Some(json!({ ACCEPT_FOR_EVER: { "execpolicy_amendment": rule } }))
        }
        _ => None,
    }
}
