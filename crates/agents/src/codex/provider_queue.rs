//! The server's own queue of messages, which other clients of the process fill. We keep ours and leave that one alone: a
//! stop leaves what waits there waiting (measured), and its turns say where they come from.

use super::CodexAdapter;
use super::bounds::MAX_QUEUED;
use super::state::Asked;
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
            return;
        };
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let ids = waiting.iter().filter_map(|of| of.get("clientUserMessageId")?.as_str());
        for id in ids {
            // One that left the queue stays known: its turn comes after.
            if !thread.queued.iter().any(|known| known == id) {
                thread.queued.push(id.to_owned());
            }
        }
        let over = thread.queued.len().saturating_sub(MAX_QUEUED);
        thread.queued.drain(..over);
        if waiting.len() > thread.queued_told {
            let message = format!(
                "{} message(s) of another client wait in the agent's own queue; a stop leaves them there",
                waiting.len()
            );
            out.say(&session, AgentEvent::Notice { level: NoticeLevel::Info, message, provider: None });
        }
        thread.queued_told = waiting.len();
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
