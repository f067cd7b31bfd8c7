//! Threads: made, taken up again in a new process, taken up again on a new connection.

use super::state::{Asked, Handshake, Lookup, Opening, Phase, Seen, Thread};
use super::{CodexAdapter, errors, warn};
use crate::adapter::{CannotTell, Translated};
use crate::rpc::RpcError;
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::{AgentEvent, SessionOptions, SubmissionId, ThreadId};
use serde_json::{Value, json};

/// When the agent asks, where the session says nothing: only to leave the sandbox.
const DEFAULT_APPROVAL: &str = "on-request";
/// What commands may touch, where the session says nothing.
const DEFAULT_SANDBOX: &str = "workspace-write";

impl CodexAdapter {
    pub(super) fn open_thread(
        &mut self,
        at: usize,
        resume: Option<&ThreadId>,
        options: &SessionOptions,
        doubtful: &[SubmissionId],
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let session = self.sessions.slot(at).session.clone();
        match &self.connection.handshake {
            Handshake::Failed(failure) => {
                out.say(&session, AgentEvent::ThreadRefused { failure: failure.clone() });
                return Ok(());
            }
            _ if !self.ready() => return Err(CannotTell::NotConnected),
            _ => {}
        }
        let context = &self.sessions.slot(at).context;
        for (given, what) in [
            (!context.mcp_servers.is_empty(), "MCP servers"),
            (!context.additional_directories.is_empty(), "further folders"),
        ] {
            if given {
                let message =
                    format!("the session's {what} are not handed to Codex yet; its own configuration holds");
                warn(out, &session, message, None);
            }
        }
        *self.sessions.change(at) = Thread {
            phase: Phase::Opening,
            opening: Some(Opening {
                resume: resume.cloned(),
                options: options.clone(),
                doubtful: doubtful.to_vec(),
            }),
            options: options.clone(),
            ..Thread::default()
        };
        self.sessions.index_thread(at);
        self.send_open(at, out);
        Ok(())
    }

    /// Asks for the thread; again on each new connection until it is open.
    pub(super) fn send_open(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let Some(opening) = &slot.state.opening else { return };
        let options = &opening.options;
        let mut params = json!({
            "cwd": slot.context.cwd,
            "approvalPolicy": options.approval.as_deref().unwrap_or(DEFAULT_APPROVAL),
            // Given also on resume: in a new process the sandbox falls back to the configured one.
            "sandbox": options.sandbox.as_deref().unwrap_or(DEFAULT_SANDBOX),
        });
        for (name, value) in [
            ("model", options.model.as_ref()),
            ("serviceTier", options.tier.as_ref()),
            ("developerInstructions", slot.context.instructions.as_ref()),
        ] {
            if let Some(value) = value {
                params[name] = json!(value);
            }
        }
        let method = match &opening.resume {
            None => "thread/start",
            Some(thread) => {
                params["threadId"] = json!(thread);
                params["excludeTurns"] = json!(true);
                "thread/resume"
            }
        };
        let asked = Asked::Open { session: slot.session.clone() };
        let frame = self.ask(asked, method, params);
        out.send(&frame);
    }

    pub(super) fn opened(&mut self, at: usize, result: Result<Value, RpcError>, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                *self.sessions.change(at) = Thread::default();
                out.say(&session, AgentEvent::ThreadRefused { failure: errors::refusal_failure(&error) });
                return;
            }
        };
        let Some(id) = result.pointer("/thread/id").and_then(Value::as_str) else {
            *self.sessions.change(at) = Thread::default();
            let failure = Failure {
                code: FailureCode::Protocol,
                message: "the agent opened a thread without an id".to_owned(),
                provider: Some(result),
            };
            out.say(&session, AgentEvent::ThreadRefused { failure });
            return;
        };
        let thread = self.sessions.change(at);
        thread.thread = Some(ThreadId::from(id));
        let resumed = thread.opening.as_ref().is_some_and(|opening| opening.resume.is_some());
        self.sessions.index_thread(at);
        self.took_options(at, &result, "sandbox", "reasoningEffort", out);
        if resumed {
            // Where its history ends, whether a turn runs, and what became of doubtful inputs.
            self.ask_history(at, Lookup::Opening, 0, None, out);
        } else {
            self.open_for_use(at, false, out);
        }
    }

    /// The thread is proven.
    pub(super) fn open_for_use(&mut self, at: usize, resumed: bool, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        thread.opening = None;
        thread.phase = Phase::Open;
        if let Some(id) = thread.thread.clone() {
            out.say(&session, AgentEvent::ThreadOpened { thread: id, resumed });
        }
    }

    /// Takes an open thread up again on a new connection.
    pub(super) fn reattach(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let Some(thread) = &slot.state.thread else { return };
        let params = json!({ "threadId": thread, "excludeTurns": true });
        let asked = Asked::Reattach { session: slot.session.clone() };
        let frame = self.ask(asked, "thread/resume", params);
        out.send(&frame);
    }

    pub(super) fn reattached(&mut self, at: usize, result: Result<Value, RpcError>, out: &mut Translated) {
        match result {
            Ok(_) => self.ask_history(at, Lookup::Reattach, 0, None, out),
            Err(error) => {
                let failure = errors::refusal_failure(&error);
                let session = self.sessions.slot(at).session.clone();
                let thread = self.sessions.change(at);
                thread.phase = Phase::Closed;
                let untaken = thread.input.take();
                let message = format!("the thread could not be taken up again: {}", failure.message);
                let provider = failure.provider.clone();
                out.say(&session, AgentEvent::Notice { level: NoticeLevel::Error, message, provider });
                // A thread without a history never saw an input.
                if let Some(input) = untaken.filter(|_| failure.code == FailureCode::ThreadMissing) {
                    out.say(&session, AgentEvent::InputRejected { submission: input.submission, failure });
                }
            }
        }
    }

    /// What the server reports as in force, in an answer or in `thread/settings/updated`.
    pub(super) fn took_options(
        &mut self,
        at: usize,
        report: &Value,
        sandbox_name: &str,
        effort_name: &str,
        out: &mut Translated,
    ) {
        let text = |name: &str| report.get(name).and_then(Value::as_str).map(str::to_owned);
        let in_force = SessionOptions {
            model: text("model"),
            effort: text(effort_name),
            tier: text("serviceTier"),
            mode: None,
            sandbox: report
                .get(sandbox_name)
                .and_then(|sandbox| sandbox_word(sandbox.get("type")?.as_str()?)),
            approval: text("approvalPolicy"),
        };
        let mut options = self.sessions.slot(at).state.options.clone();
        for (ours, reported) in [
            (&mut options.model, &in_force.model),
            (&mut options.effort, &in_force.effort),
            (&mut options.tier, &in_force.tier),
            (&mut options.sandbox, &in_force.sandbox),
            (&mut options.approval, &in_force.approval),
        ] {
            if reported.is_some() {
                ours.clone_from(reported);
            }
        }
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        thread.in_force = in_force;
        if thread.options != options {
            thread.options = options.clone();
            out.say(&session, AgentEvent::Options(options));
        }
    }
}

/// The sandbox as `thread/start` takes it, from the type of a policy; None for a type that has no such word.
fn sandbox_word(policy: &str) -> Option<String> {
    let word = match policy {
        "readOnly" => "read-only",
        "workspaceWrite" => "workspace-write",
        "dangerFullAccess" => "danger-full-access",
        _ => return None,
    };
    Some(word.to_owned())
}

/// The type of a policy from the word that `thread/start` takes.
pub(super) fn sandbox_policy(word: &str) -> Option<Value> {
    let policy = match word {
        "read-only" => "readOnly",
        "workspace-write" => "workspaceWrite",
        "danger-full-access" => "dangerFullAccess",
        _ => return None,
    };
    Some(json!({ "type": policy }))
}

impl Thread {
    /// Everything up to the end of this turn was shown.
    pub(super) fn saw_end_of(&mut self, turn: &str) {
        self.seen = Seen::UpTo(turn.into());
    }
}
