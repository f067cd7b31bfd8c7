//! Requests of the server: asked, asked again on a new connection, answered, settled.
//!
//! Each is answered, or known to be open with somebody: an unanswered one waits for ever. After a lost connection a
//! request that is not asked again is unconfirmed, and can be answered all the same.

use super::bounds::{MAX_ANSWER_BYTES, MAX_KEPT_ANSWER_BYTES, MAX_OPEN_REQUESTS, MAX_REQUEST_BYTES};
use super::forms::{self, CLIENT_TOOL, Said};
use super::state::{Form, OpenRequest, RequestIdentity};
use super::{CodexAdapter, RPC, warn};
use crate::adapter::{CannotTell, Translated};
use crate::rpc;
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::Answer;
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, RequestKey, ThreadId};
use serde_json::Value;
use serde_json::value::RawValue;

impl CodexAdapter {
    /// The server asks something.
    pub(super) fn asked(
        &mut self,
        bytes: &[u8],
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
        out: &mut Translated,
    ) {
        let details = rpc::body(params);
        let thread = details.get("threadId").and_then(Value::as_str).unwrap_or_default();
        let Some(at) = self.sessions.of_thread(thread) else {
            // Of a thread that no session has: it may be a sub-agent's that is not named yet.
            if thread.is_empty() || !self.keep_stranger(thread, bytes) {
                self.unanswerable(None, id, method, details, out);
            }
            return;
        };
        if !self.can_be_told(at) && self.keep_early_request(at, bytes) {
            return;
        }
        let child = self.child_of(at, thread);
        let text = |name: &str| details.get(name).and_then(Value::as_str);
        let identity = RequestIdentity {
            method: method.to_owned(),
            turn: text("turnId").map(ProviderTurn::from),
            item: text("itemId").or(text("callId")).map(|item| self.item_key(child.as_ref(), item)),
            part: text("approvalId").or(text("elicitationId")).or(text("serverName")).map(str::to_owned),
            child,
        };
        let Some((mut asked, form)) = forms::put(method, &details, self.at) else {
            self.unanswerable(Some(at), id, method, details, out);
            return;
        };
        asked.turn = identity.turn.clone().filter(|_| identity.child.is_none());
        asked.item = identity.item.clone();
        asked.child = identity.child.clone();
        asked.details = details;
        let session = self.sessions.slot(at).session.clone();
        let again = |open: &OpenRequest| open.id.is_none() && open.identity == identity;
        let requests = &self.sessions.slot(at).state.requests;
        if let Some(key) = requests.iter().find(|(_, open)| again(open)).map(|(key, _)| key.clone()) {
            asked.key = RequestKey(key.clone());
            if self.asked_again(at, &key, id, out) {
                out.say(&session, AgentEvent::RequestOpened(asked));
            }
            return;
        }
        let taken: usize = requests.values().map(|open| size_of_form(&open.form)).sum();
        if requests.len() >= MAX_OPEN_REQUESTS || taken + size_of_form(&form) > MAX_REQUEST_BYTES {
            let declined = forms::answer(&form, &Answer::Decline { message: None });
            if let Some(Said { result, .. }) = declined {
                out.send(&RPC.answer(id.get(), result));
            }
            let message = "too many requests are open; one more was declined".to_owned();
            warn(out, &session, message, Some(asked.details));
            return;
        }
        let key = self.request_key(id);
        asked.key = RequestKey(key.clone());
        let open = OpenRequest {
            id: Some(id.get().to_owned()),
            identity,
            form,
            answer: None,
            answered: false,
            unconfirmed: false,
        };
        self.sessions.change(at).requests.insert(key, open);
        out.say(&session, AgentEvent::RequestOpened(asked));
    }

    /// Ids of the server begin anew with each of its lives, and a request gets another one on another connection.
    fn request_key(&self, id: &RawValue) -> String {
        format!("{}:{}", self.connection.number.unwrap_or_default(), id.get())
    }

    /// A request that was open when the connection was lost comes again under another id. It keeps its key; what was
    /// answered is answered again, because the answer did not arrive. True: it had been said that it may be void.
    fn asked_again(&mut self, at: usize, key: &str, id: &RawValue, out: &mut Translated) -> bool {
        let Some(open) = self.sessions.change(at).requests.get_mut(key) else { return false };
        open.id = Some(id.get().to_owned());
        if let Some(answer) = open.answer.clone() {
            out.send(&RPC.answer(id.get(), answer));
        }
        std::mem::take(&mut open.unconfirmed)
    }

    /// The thread was taken up again, and all that it asks was asked: what was not may be void.
    pub(super) fn mark_unconfirmed(&mut self, at: usize, child: Option<&ThreadId>, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let not_asked = |open: &OpenRequest| {
            open.id.is_none() && !open.unconfirmed && open.identity.child.as_ref() == child
        };
        if !self.sessions.slot(at).state.requests.values().any(not_asked) {
            return;
        }
        for (key, open) in &mut self.sessions.change(at).requests {
            if not_asked(open) {
                open.unconfirmed = true;
                out.say(&session, AgentEvent::RequestUnconfirmed { key: RequestKey::from(key.as_str()) });
            }
        }
    }

    /// A request that this version cannot put to anybody: refused, never left unanswered.
    fn unanswerable(
        &mut self,
        at: Option<usize>,
        id: &RawValue,
        method: &str,
        details: Value,
        out: &mut Translated,
    ) {
        out.send(&RPC.refusal(id.get(), rpc::METHOD_NOT_FOUND, "this client cannot answer that"));
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
        let Said { result, declines, stops } = forms::answer(&open.form, answer).ok_or_else(unknown)?;
        let (identity, form) = (open.identity.clone(), open.form.clone());
        // Without an id it waits for the request to come again on the new connection.
        if let Some(id) = &open.id {
            out.send(&RPC.answer(id, result.clone()));
        }
        let others = self.sessions.slot(at).state.requests.values().filter_map(|open| open.answer.as_ref());
        let kept: usize = others.map(|answer| answer.to_string().len()).sum();
        let length = result.to_string().len();
        let keep = length <= MAX_KEPT_ANSWER_BYTES && kept + length <= MAX_ANSWER_BYTES;
        if let Some(open) = self.sessions.change(at).requests.get_mut(key.as_str()) {
            open.answered = true;
            open.answer = keep.then_some(result);
        }
        if declines
            && matches!(form, Form::Decision { .. })
            && let Some(item) = &identity.item
        {
            self.item_declined(at, item);
        }
        if stops
            && identity.child.is_none()
            && let Some(turn) = &identity.turn
        {
            // Cannot fail: the thread is open, because it asked.
            self.interrupt(at, Some(turn), out).ok();
        }
        Ok(())
    }

    pub(super) fn request_resolved(&mut self, at: usize, params: &Value, out: &mut Translated) {
        let id = params.get("requestId").cloned().unwrap_or_default().to_string();
        let found =
            self.sessions.slot(at).state.requests.iter().find(|(_, open)| open.id.as_ref() == Some(&id));
        // Not ours: one that was refused at once, or one of before this process knew the thread.
        let Some(key) = found.map(|(key, _)| key.clone()) else { return };
        self.settle_request(at, &key, true, out);
    }

    fn settle_request(&mut self, at: usize, key: &str, told: bool, out: &mut Translated) {
        let Some(open) = self.sessions.change(at).requests.remove(key) else { return };
        let session = &self.sessions.slot(at).session;
        let confirmed = told && open.answered;
        out.say(session, AgentEvent::RequestSettled { key: RequestKey::from(key), confirmed });
    }

    /// An item is over, and with it what was asked about it: a tool of a client, whose answer is never confirmed
    /// otherwise (measured), and what was not asked again after a lost connection.
    pub(super) fn item_over(&mut self, at: usize, item: &ItemKey, out: &mut Translated) {
        let over: Vec<(String, bool)> = self
            .sessions
            .slot(at)
            .state
            .requests
            .iter()
            .filter(|(_, open)| open.identity.item.as_ref() == Some(item))
            .filter(|(_, open)| open.id.is_none() || open.identity.method == CLIENT_TOOL)
            .map(|(key, open)| (key.clone(), open.identity.method == CLIENT_TOOL))
            .collect();
        for (key, told) in over {
            self.settle_request(at, &key, told, out);
        }
    }

    /// A read shows that the thread waits for nobody: what was not asked again is gone.
    pub(super) fn nothing_is_asked(&mut self, at: usize, out: &mut Translated) {
        let gone = |open: &OpenRequest| {
            open.id.is_none()
                && open.identity.child.is_none()
                && matches!(open.form, Form::Decision { .. } | Form::Answers | Form::Permissions(_))
        };
        let gone: Vec<String> = self
            .sessions
            .slot(at)
            .state
            .requests
            .iter()
            .filter(|(_, open)| gone(open))
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            self.settle_request(at, &key, false, out);
        }
    }

    /// The requests of a turn end with it: the session closes them, and the server settles them without a word, or with
    /// one that comes late.
    pub(super) fn forget_requests_of(&mut self, at: usize, child: Option<&ThreadId>, turn: &str) {
        let of_turn = |open: &OpenRequest| {
            open.identity.child.as_ref() == child
                && open.identity.turn.as_ref().is_some_and(|of| of.as_str() == turn)
        };
        if self.sessions.slot(at).state.requests.values().any(of_turn) {
            self.sessions.change(at).requests.retain(|_, open| !of_turn(open));
        }
    }
}

/// What a form takes in the state, in bytes, with what stands around it.
fn size_of_form(form: &Form) -> usize {
    /// Names and ids of a request.
    const AROUND: usize = 256;
    let held = match form {
        Form::Decision { amendment, network } => {
            amendment.iter().chain(network).map(|rule| rule.to_string().len()).sum()
        }
        Form::Permissions(wanted) => wanted.to_string().len(),
        Form::Answers | Form::Elicitation | Form::McpTool | Form::ClientTool => 0,
    };
    AROUND + held
}

/// Whether a thread's status, as a read shows it, says that it waits for no answer.
pub(super) fn waits_for_nobody(status: &Value) -> bool {
    let waits = |flag: &Value| flag == "waitingOnApproval" || flag == "waitingOnUserInput";
    match status.get("type").and_then(Value::as_str) {
        Some("active") => {
            status.get("activeFlags").and_then(Value::as_array).is_some_and(|flags| !flags.iter().any(waits))
        }
        Some("idle") => true,
        _ => false,
    }
}
