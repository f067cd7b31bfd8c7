//! Threads: made, taken up again in a new process, taken up again on a new connection.

use super::errors::Refused;
use super::state::{Asked, Handshake, Input, Look, Lookup, MAX_REATTACH_TRIES, Opening, Phase, Seen, Thread};
use super::{CodexAdapter, errors, warn};
use crate::adapter::{CannotTell, Translated};
use crate::rpc::RpcError;
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::{AgentEvent, SessionOptions, SubmissionId, ThreadId};
use serde_json::{Value, json};

/// When the agent asks, where the session says nothing: only to leave the sandbox.
const DEFAULT_APPROVAL: &str = "on-request";
/// What commands may touch, where the session says nothing.
const DEFAULT_SANDBOX: &str = "workspace-write";
/// The status of a thread that is not in the server's memory.
pub(super) const NOT_LOADED: &str = "notLoaded";

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

    /// Leaves the thread: its process goes on with others.
    pub(super) fn close_thread(&mut self, at: usize, out: &mut Translated) -> Result<(), CannotTell> {
        let slot = self.sessions.slot(at);
        let (session, thread) = (slot.session.clone(), slot.state.thread.clone());
        let Some(thread) = thread.filter(|_| slot.state.phase == Phase::Open && self.ready()) else {
            // Nothing that could be left: not open, or open on a connection that is gone.
            self.thread_left(at, out);
            return Ok(());
        };
        let asked = Asked::Close { session };
        let frame = self.ask(asked, "thread/unsubscribe", json!({ "threadId": thread }));
        out.send(&frame);
        Ok(())
    }

    pub(super) fn thread_left(&mut self, at: usize, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        // A refusal says that it is not loaded: it is left all the same.
        *self.sessions.change(at) = Thread::default();
        self.sessions.index_thread(at);
        out.say(&session, AgentEvent::ThreadClosed);
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
                resets_at: None,
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
            self.ask_history(at, Look::first(Lookup::Opening), out);
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
        let error = match result {
            Ok(answer) => {
                if self.sessions.slot(at).state.in_force == SessionOptions::default() {
                    // Opened by another host: what it set is in force, and not known here yet.
                    self.took_options(at, &answer, "sandbox", "reasoningEffort", out);
                }
                self.sessions.change(at).detached = None;
                self.ask_history(at, Look::first(Lookup::Reattach), out);
                return;
            }
            Err(error) => error,
        };
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let detached = thread.detached.get_or_insert_default();
        detached.tries += 1;
        let word = std::mem::take(&mut detached.word);
        let (tries, idle, gone) = (detached.tries, detached.idle, detached.gone);
        let refused = errors::classify(&error);
        if gone || refused == Refused::ActiveWriter {
            // Another writer has it only where this server has it no more.
            self.thread_lost(at, &error, out);
            return;
        }
        let no_message = refused == Refused::NoRollout;
        if thread.input.as_ref().is_some_and(|input| input.lost) {
            if !(no_message && idle) && tries < MAX_REATTACH_TRIES {
                self.ask_status(at, out);
                return;
            }
            if let Some(Input { submission, .. }) = thread.input.take() {
                out.say(
                    &session,
                    if no_message && idle {
                        // It did nothing, and after that it still had no message: the input never came.
                        AgentEvent::InputAbsent { submission }
                    } else {
                        thread.given_up = Some(submission.clone());
                        AgentEvent::InputUnknown { submission }
                    },
                );
            }
        } else if word && tries < MAX_REATTACH_TRIES {
            self.reattach(at, out);
            return;
        }
        if !no_message || tries >= MAX_REATTACH_TRIES {
            let message = format!("the thread could not be taken up again: {}", error.message);
            warn(out, &session, message, Some(error.body));
        }
        if no_message {
            // A thread without a message has nothing to be taken up; it can be written to as it is.
            self.say_reattached(at, out);
        } else if tries < MAX_REATTACH_TRIES {
            self.ask_status(at, out);
        }
    }

    /// The thread may be written to again: what waited for a connection goes on.
    pub(super) fn say_reattached(&self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        if let Some(thread) = slot.state.thread.clone() {
            out.say(&slot.session, AgentEvent::ThreadOpened { thread, resumed: true });
        }
    }

    /// The server has the thread no more and does not take it up again.
    fn thread_lost(&mut self, at: usize, error: &RpcError, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let in_flight = self
            .sessions
            .slot(at)
            .state
            .input
            .as_ref()
            .is_some_and(|input| self.in_flight(&input.submission));
        let thread = self.sessions.change(at);
        thread.phase = Phase::Closed;
        thread.detached = None;
        // One that is in flight has an answer to come.
        if let Some(Input { submission, .. }) = thread.input.take_if(|_| !in_flight) {
            out.say(
                &session,
                // Without a message, and nothing that could still write one: the input never came.
                if errors::classify(error) == Refused::NoRollout {
                    AgentEvent::InputAbsent { submission }
                } else {
                    AgentEvent::InputUnknown { submission }
                },
            );
        }
        out.say(&session, AgentEvent::ThreadRefused { failure: errors::refusal_failure(error) });
    }

    fn ask_status(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let params = json!({ "threadId": slot.state.thread, "includeTurns": false });
        let asked = Asked::Status { session: slot.session.clone() };
        let frame = self.ask(asked, "thread/read", params);
        out.send(&frame);
    }

    /// What a thread does that could not be taken up again.
    pub(super) fn status_told(&mut self, at: usize, result: &Result<Value, RpcError>, out: &mut Translated) {
        let status = result.as_ref().ok().and_then(|result| result.pointer("/thread/status/type")?.as_str());
        let thread = self.sessions.change(at);
        let in_doubt = thread.input.as_ref().is_some_and(|input| input.lost);
        let Some(detached) = &mut thread.detached else { return };
        match status {
            None | Some(NOT_LOADED) => detached.gone = true,
            // After an error it does nothing, and goes on with the next message (measured).
            Some(status) => detached.idle = matches!(status, "idle" | "systemError") && !detached.word,
        }
        let again = in_doubt || detached.gone || detached.word;
        detached.word = false;
        if again {
            self.reattach(at, out);
        }
    }

    /// A word of a thread's status comes also to a connection that has not taken it up: the moment to try again. A
    /// closed thread is taken up again, because the session was told that it is open.
    pub(super) fn status_changed(&mut self, at: usize, closed: bool, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let due = match &slot.state.detached {
            None => closed,
            Some(detached) => closed || detached.tries < MAX_REATTACH_TRIES,
        };
        if !due || !self.ready() || slot.state.phase != Phase::Open {
            return;
        }
        let asking = |asked: &Asked| matches!(asked, Asked::Reattach { session } | Asked::Status { session } if *session == slot.session);
        let already = self.connection.asked.values().any(asking);
        let detached = self.sessions.change(at).detached.get_or_insert_default();
        detached.idle = false;
        detached.gone = closed;
        detached.word = already;
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
