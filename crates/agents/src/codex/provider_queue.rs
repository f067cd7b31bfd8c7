//! The server's own queue of messages, which other clients of the process fill. We keep ours and put nothing there; its
//! turns say where they come from.
//!
//! An interrupted turn leaves what waits there waiting, but the next process starts it as soon as the thread is taken up,
//! without a user (measured), and the protocol has no pause that lasts. So a stop of ours withdraws what waits: first the
//! journal has each message whole, then it is deleted there.

use super::bounds::{MAX_QUEUED, MAX_QUEUED_ID_BYTES, MAX_WITHDRAWN_BYTES};
use super::state::Asked;
use super::{CodexAdapter, warn};
use crate::adapter::Translated;
use crate::rpc::RpcError;
use mainstay_core::AgentEvent;
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::Origin;
use serde_json::{Value, json};

impl CodexAdapter {
    /// Something about the queue changed; it is not said what.
    pub(super) fn ask_queue(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let asks = |asked: &Asked| matches!(asked, Asked::Queue { session } if *session == slot.session);
        if !self.ready() || self.connection.waiting.iter().any(|waiting| asks(&waiting.what)) {
            // One that is not sent yet tells of this change too.
            return;
        }
        let params = json!({ "threadId": slot.state.thread, "limit": MAX_QUEUED });
        let asked = Asked::Queue { session: slot.session.clone() };
        self.read(asked, "thread/queue/list", params, out);
    }

    pub(super) fn queue_listed(&mut self, at: usize, result: &Result<Value, RpcError>, out: &mut Translated) {
        let Some(waiting) = result.as_ref().ok().and_then(|result| result.get("data")?.as_array()) else {
            if std::mem::take(&mut self.sessions.change(at).queue_stopping) {
                self.sessions.change(at).withdrawn.clear();
                let message =
                    "the agent's own queue cannot be read: what other clients put there may start by itself";
                warn(out, &self.sessions.slot(at).session, message.to_owned(), None);
            }
            return;
        };
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let ids = waiting.iter().filter_map(|of| of.get("clientUserMessageId")?.as_str());
        let ids = ids.filter(|id| id.len() <= MAX_QUEUED_ID_BYTES);
        for id in ids {
            // One that left the queue stays known: its turn comes after.
            if !thread.queued.iter().any(|known| known == id) {
                thread.queued.push(id.to_owned());
            }
        }
        let over = thread.queued.len().saturating_sub(MAX_QUEUED);
        thread.queued.drain(..over);
        if thread.queue_stopping {
            thread.queued_told = waiting.len();
            self.withdraw(at, waiting, out);
            return;
        }
        if waiting.len() > thread.queued_told {
            let message = format!(
                "{} message(s) of another client wait in the agent's own queue; a stop withdraws them, and keeps what they say here",
                waiting.len()
            );
            out.say(&session, AgentEvent::Notice { level: NoticeLevel::Info, message, provider: None });
        }
        thread.queued_told = waiting.len();
    }

    /// Somebody stops the session: what waits must not start by itself, neither now nor in the next process.
    pub(super) fn stop_queue(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let asked = |asked: &Asked| matches!(asked, Asked::Queue { session } if *session == slot.session);
        if slot.state.queued_told == 0 && !self.asking().any(asked) {
            return;
        }
        self.sessions.change(at).queue_stopping = true;
        self.ask_queue(at, out);
    }

    fn withdraw(&mut self, at: usize, waiting: &[Value], out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.slot(at).state.thread.clone();
        let (mut asked, mut too_long) = (false, 0_usize);
        for message in waiting {
            let Some(id) = message.get("id").and_then(Value::as_str) else { continue };
            if self.sessions.slot(at).state.withdrawn.iter().any(|known| known == id) {
                // It is being deleted, or this answer is older than its deletion.
                asked = true;
                continue;
            }
            if message.to_string().len() > MAX_WITHDRAWN_BYTES {
                too_long += 1;
                continue;
            }
            asked = true;
            let state = self.sessions.change(at);
            if state.withdrawn.len() >= MAX_QUEUED {
                state.withdrawn.remove(0);
            }
            state.withdrawn.push(id.to_owned());
            out.say(
                &session,
                AgentEvent::Notice {
                    level: NoticeLevel::Warning,
                    message:
                        "a message of another client is withdrawn from the agent's own queue by the stop; \
                              it is kept here, to be sent again on purpose"
                            .to_owned(),
                    provider: Some(message.clone()),
                },
            );
            let params = json!({ "threadId": thread, "queuedSubmissionId": id });
            let withdraw = Asked::Withdraw { session: session.clone(), message: id.to_owned() };
            let frame = self.ask(withdraw, "thread/queue/delete", params);
            out.send(&frame);
        }
        if asked {
            return;
        }
        let state = self.sessions.change(at);
        state.queue_stopping = false;
        state.withdrawn.clear();
        if too_long > 0 {
            let message = format!(
                "{too_long} message(s) in the agent's own queue are too long to be kept here and stay there; they start \
                 when the agent's next process takes the thread up"
            );
            warn(out, &session, message, None);
        }
    }

    pub(super) fn withdrawal_answered(
        &mut self,
        at: usize,
        message: &str,
        result: Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let Err(error) = result else {
            // The word of the change comes as well; without it the queue would count as being stopped.
            self.ask_queue(at, out);
            return;
        };
        let session = self.sessions.slot(at).session.clone();
        let state = self.sessions.change(at);
        state.withdrawn.retain(|known| known != message);
        state.queue_stopping = false;
        let said = format!("the agent did not withdraw a message from its own queue: {}", error.message);
        warn(out, &session, said, Some(error.body));
    }

    /// Whose a message is that is not ours.
    pub(super) fn whose_message(&mut self, at: usize, client_id: Option<&str>) -> Origin {
        let queued = |of: &String| Some(of.as_str()) == client_id;
        match self.sessions.slot(at).state.queued.iter().position(queued) {
            Some(place) => {
                self.sessions.change(at).queued.remove(place);
                Origin::Queue
            }
            None => Origin::Client,
        }
    }
}
