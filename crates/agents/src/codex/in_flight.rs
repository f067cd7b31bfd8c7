//! Requests of ours: made, bounded in number, answered, overdue.

use super::bounds::{ANSWER_WITHIN_MS, INTERRUPT_IDS, MAX_IN_FLIGHT, MAX_WAITING};
use super::state::{Asked, InFlight, Waiting};
use super::{CodexAdapter, RPC, warn};
use crate::adapter::Translated;
use crate::rpc::RpcError;
use serde_json::Value;

impl CodexAdapter {
    /// The request frame of something we ask, remembered under its id. For what must not wait: it carries a message, a
    /// stop, or somebody's command.
    pub(super) fn ask(&mut self, asked: Asked, method: &str, params: Value) -> Value {
        let connection = self.change_connection();
        let counter = match asked {
            Asked::Interrupt { .. } => &mut connection.interrupts,
            _ => &mut connection.next_id,
        };
        let first = if matches!(asked, Asked::Interrupt { .. }) { INTERRUPT_IDS } else { 0 };
        let id = first + *counter;
        *counter += 1;
        connection.asked.insert(id, InFlight { what: asked, since: None, late: false });
        RPC.request(id, method, params)
    }

    /// Asks for something that may wait: at once where few requests are in flight, else when one of them is answered.
    pub(super) fn read(&mut self, asked: Asked, method: &str, params: Value, out: &mut Translated) {
        if self.connection.asked.len() < MAX_IN_FLIGHT {
            let frame = self.ask(asked, method, params);
            out.send(&frame);
            return;
        }
        if self.connection.waiting.len() < MAX_WAITING {
            let waiting = Waiting { what: asked, method: method.to_owned(), params };
            self.change_connection().waiting.push_back(waiting);
            return;
        }
        self.settle(asked, Err(no_answer("too many requests wait for an answer")), out);
    }

    /// After an answer: what waited goes out.
    pub(super) fn let_waiting_go(&mut self, out: &mut Translated) {
        while self.connection.asked.len() < MAX_IN_FLIGHT && !self.connection.waiting.is_empty() {
            let Some(waiting) = self.change_connection().waiting.pop_front() else { return };
            let mut what = waiting.what;
            if let Asked::History { look, .. } = &mut what {
                // It says nothing of what was given before it was asked.
                look.asked = self.connection.next_id;
            }
            let frame = self.ask(what, &waiting.method, waiting.params);
            out.send(&frame);
        }
    }

    /// What is unanswered or waits for its turn.
    pub(super) fn asking(&self) -> impl Iterator<Item = &Asked> {
        let connection = &self.connection;
        connection
            .asked
            .values()
            .map(|in_flight| &in_flight.what)
            .chain(connection.waiting.iter().map(|waiting| &waiting.what))
    }

    /// Looks for answers that are overdue at the time of a record.
    pub(super) fn overdue(&mut self, now: i64, out: &mut Translated) {
        let latest = now.saturating_sub(ANSWER_WITHIN_MS);
        let mut late = Vec::new();
        let mut unseen = false;
        for (id, in_flight) in &self.connection.asked {
            match in_flight.since {
                None => unseen = true,
                Some(since) if since < latest && !in_flight.late => late.push(*id),
                Some(_) => {}
            }
        }
        if unseen {
            // An hour may lie between the record before and the request: it counts from here.
            for in_flight in self.change_connection().asked.values_mut() {
                in_flight.since.get_or_insert(now);
            }
        }
        for id in late {
            let Some(in_flight) = self.change_connection().asked.get_mut(&id) else { continue };
            if in_flight.what.may_be_given_up() {
                self.answered(id, Err(no_answer("the agent did not answer in time")), out);
                continue;
            }
            in_flight.late = true;
            let what = in_flight.what.name();
            let session = in_flight.what.session().cloned();
            let message = format!("the agent has not answered for {} s ({what})", ANSWER_WITHIN_MS / 1_000);
            if let Some(session) = session {
                warn(out, &session, message, None);
            }
        }
    }
}

fn no_answer(message: &str) -> RpcError {
    RpcError { code: 0, message: message.to_owned(), body: Value::Null }
}
