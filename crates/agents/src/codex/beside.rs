//! Threads that another client of the same process began: the agent's own terminal, with `/new`, `/clear` or `/fork`.
//! They are told to the host as soon as they can be taken up, which is when they have a message (measured).
//!
//! The server announces every thread to all connections, ours too, before or after the answer that names it. So nothing
//! is taken for another client's as long as an answer is to come that may name it.

use super::bounds::{MAX_BESIDE, MAX_BESIDE_LOOKS};
use super::errors::Refused;
use super::state::{Asked, Beside};
use super::threads::NOT_LOADED;
use super::{CodexAdapter, errors, notice_all};
use crate::adapter::{Appeared, Translated};
use crate::rpc::RpcError;
use mainstay_core::ThreadId;
use serde_json::{Value, json};

impl CodexAdapter {
    /// `thread/started` of a thread that no session has.
    pub(super) fn thread_began(&mut self, params: &Value, out: &mut Translated) {
        let Some(thread) = params.get("thread") else { return };
        let text = |name: &str| thread.get(name).and_then(Value::as_str);
        let Some(id) = text("id") else { return };
        // The server's own (it names threads in one that is never saved), and sub-agents', which have no announcement in
        // this version.
        let passing = thread.get("ephemeral") == Some(&Value::Bool(true));
        let child = thread.get("parentThreadId").is_some_and(|parent| !parent.is_null());
        if passing || child || self.sessions.of_thread(id).is_some() {
            return;
        }
        let began = Beside {
            thread: ThreadId::from(id),
            forked_from: text("forkedFromId").map(ThreadId::from),
            cwd: text("cwd").map(str::to_owned),
            looks: 0,
            told: false,
        };
        let forked = began.forked_from.is_some();
        let beside = &mut self.change_connection().beside;
        if beside.iter().any(|known| known.thread == began.thread) {
            return;
        }
        if beside.len() >= MAX_BESIDE {
            let oldest = beside.remove(0);
            let message =
                "more threads were begun by other clients than can be watched; one becomes no session";
            notice_all(out, message, oldest.thread.as_str());
        }
        self.change_connection().beside.push(began);
        if forked {
            // It begins with the messages of the other one.
            self.look_at_beside(id, out);
        }
    }

    /// A word of the status of a thread that no session has.
    pub(super) fn beside_changed(&mut self, method: &str, params: &Value, out: &mut Translated) {
        let Some(thread) = params.get("threadId").and_then(Value::as_str) else { return };
        let closed = method == "thread/closed"
            || params.pointer("/status/type").and_then(Value::as_str) == Some(NOT_LOADED);
        if closed {
            self.is_not_beside(thread);
            return;
        }
        let Some(beside) = self.beside(thread) else { return };
        beside.looks = 0;
        self.look_at_beside(thread, out);
    }

    /// A session has it, or nobody has it any more.
    pub(super) fn is_not_beside(&mut self, thread: &str) {
        if self.beside(thread).is_some() {
            self.change_connection().beside.retain(|known| known.thread.as_str() != thread);
        }
    }

    pub(super) fn look_at_all_beside(&mut self, out: &mut Translated) {
        let threads: Vec<ThreadId> =
            self.connection.beside.iter().map(|beside| beside.thread.clone()).collect();
        for thread in threads {
            self.look_at_beside(thread.as_str(), out);
        }
    }

    fn beside(&mut self, thread: &str) -> Option<&mut Beside> {
        let at = self.connection.beside.iter().position(|known| known.thread.as_str() == thread)?;
        self.connection_changed = true;
        self.connection.beside.get_mut(at)
    }

    /// Looks whether it has a message.
    fn look_at_beside(&mut self, thread: &str, out: &mut Translated) {
        let makes_one = |asked: &Asked| match asked {
            Asked::Open { session } => {
                let at = self.sessions.position(session);
                let opening = at.and_then(|at| self.sessions.slot(at).state.opening.as_ref());
                opening.is_some_and(|opening| opening.resume.is_none())
            }
            _ => false,
        };
        let looks = |asked: &Asked| matches!(asked, Asked::Beside { thread: of } if of.as_str() == thread);
        if !self.ready() || self.asking().any(|asked| makes_one(asked) || looks(asked)) {
            // The answer that is to come looks again.
            return;
        }
        if self.sessions.of_thread(thread).is_some() {
            self.is_not_beside(thread);
            return;
        }
        let Some(beside) = self.beside(thread) else { return };
        if beside.told || beside.looks >= MAX_BESIDE_LOOKS {
            return;
        }
        beside.looks += 1;
        let asked = Asked::Beside { thread: ThreadId::from(thread) };
        let params =
            json!({ "threadId": thread, "sortDirection": "desc", "itemsView": "summary", "limit": 1 });
        self.read(asked, "thread/turns/list", params, out);
    }

    pub(super) fn beside_looked_at(
        &mut self,
        thread: &ThreadId,
        result: &Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let begun = result.as_ref().is_ok_and(|result| {
            result.get("data").and_then(Value::as_array).is_some_and(|turns| !turns.is_empty())
        });
        if !begun {
            let unwritten = |error: &RpcError| {
                matches!(errors::classify(error), Refused::NotMaterialized | Refused::NoRollout)
            };
            if result.as_ref().is_err_and(unwritten) {
                self.look_at_beside(thread.as_str(), out);
            }
            return;
        }
        let Some(beside) = self.beside(thread.as_str()) else { return };
        beside.told = true;
        let appeared = Appeared {
            thread: beside.thread.clone(),
            forked_from: beside.forked_from.clone(),
            cwd: beside.cwd.clone(),
        };
        out.appeared.push(appeared);
    }
}
