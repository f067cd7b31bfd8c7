//! Threads: made, taken up again in a new process, taken up again on a new connection.

use super::state::{Asked, Handshake, Lookup, MAX_REATTACH_TRIES, Opening, Phase, Seen, Thread};
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
        let Err(error) = result else {
            self.sessions.change(at).detached = None;
            self.ask_history(at, Lookup::Reattach, 0, None, out);
            return;
        };
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let detached = thread.detached.get_or_insert_default();
        detached.tries += 1;
        let (tries, idle) = (detached.tries, detached.idle);
        let no_message = errors::classify(&error) == errors::Refused::NoRollout;
        if thread.input.as_ref().is_some_and(|input| input.lost) {
            if no_message && idle {
                // It did nothing, and after that it still had no message: the input never came.
                if let Some(input) = thread.input.take() {
                    out.say(&session, AgentEvent::InputAbsent { submission: input.submission });
                }
                return;
            }
            if tries < MAX_REATTACH_TRIES {
                self.ask_status(at, out);
                return;
            }
        }
        // A thread without a message has nothing to be taken up; it can be written to as it is.
        if !no_message || tries == MAX_REATTACH_TRIES {
            let message = format!("the thread could not be taken up again: {}", error.message);
            warn(out, &session, message, Some(error.body));
        }
    }

    fn ask_status(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let params = json!({ "threadId": slot.state.thread, "includeTurns": false });
        let asked = Asked::Status { session: slot.session.clone() };
        let frame = self.ask(asked, "thread/read", params);
        out.send(&frame);
    }

    pub(super) fn status_told(&mut self, at: usize, result: &Result<Value, RpcError>, out: &mut Translated) {
        let status = result.as_ref().ok().and_then(|result| result.pointer("/thread/status/type")?.as_str());
        match status {
            Some(status @ ("idle" | "active")) => {
                if let Some(detached) = &mut self.sessions.change(at).detached {
                    detached.idle = status == "idle";
                }
                self.reattach(at, out);
            }
            _ => {
                let session = self.sessions.slot(at).session.clone();
                let failure = Failure::new(FailureCode::ThreadMissing, "the agent has the thread no more");
                let thread = self.sessions.change(at);
                thread.phase = Phase::Closed;
                let untaken = thread.input.take();
                let (level, message) = (NoticeLevel::Error, failure.message.clone());
                out.say(&session, AgentEvent::Notice { level, message, provider: None });
                if let Some(input) = untaken {
                    out.say(&session, AgentEvent::InputRejected { submission: input.submission, failure });
                }
            }
        }
    }

    /// A word of a thread's status comes also to a connection that has not taken it up: the moment to try again.
    pub(super) fn status_changed(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let tries = slot.state.detached.as_ref().map(|detached| detached.tries);
        if !self.ready() || tries.is_none_or(|tries| tries >= MAX_REATTACH_TRIES) {
            return;
        }
        let asking = |asked: &Asked| matches!(asked, Asked::Reattach { session } | Asked::Status { session } if *session == slot.session);
        let already = self.connection.asked.values().any(asking);
        if let Some(detached) = &mut self.sessions.change(at).detached {
            detached.idle = false;
        }
        if !already {
            self.reattach(at, out);
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
