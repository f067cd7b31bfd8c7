//! Threads: made, taken up again in a new process, taken up again on a new connection.

use super::bounds::MAX_REATTACH_TRIES;
use super::errors::Refused;
use super::launch_params::{self, sandbox_policy, thread_params};
use super::state::{Asked, Handshake, Input, Look, Lookup, Opening, Phase, Seen, Thread};
use super::{CodexAdapter, errors, requests, warn};
use crate::adapter::{CannotTell, ThreadContext, Translated};
use crate::rpc::RpcError;
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::work::ForkPoint;
use mainstay_core::{AgentEvent, SessionOptions, SubmissionId, ThreadId};
use serde_json::{Value, json};

/// The mode that holds where none is chosen.
const DEFAULT_MODE: &str = "default";
/// The status of a thread that is not in the server's memory.
pub(super) const NOT_LOADED: &str = "notLoaded";

impl CodexAdapter {
    pub(super) fn open_thread(
        &mut self,
        at: usize,
        resume: Option<&ThreadId>,
        fork: Option<&ForkPoint>,
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
            // The connection was lost since the process was said to be ready. The thread is asked for on the next one, or
            // the process's end is told.
            Handshake::Unsaid | Handshake::Asked | Handshake::Done => {}
        }
        let left_out = launch_params::left_out(&self.sessions.slot(at).context);
        if !left_out.is_empty() {
            let message = format!("Codex takes no MCP servers of this kind: {}", left_out.join(", "));
            warn(out, &session, message, None);
        }
        *self.sessions.change(at) = Thread {
            phase: Phase::Opening,
            opening: Some(Opening {
                resume: resume.cloned(),
                fork: fork.cloned(),
                options: options.clone(),
                unarchived: false,
                doubtful: doubtful.to_vec(),
            }),
            options: options.clone(),
            // Known from now on: what comes of it before the answer is kept for when it is open.
            thread: resume.cloned(),
            ..Thread::default()
        };
        self.sessions.index_thread(at);
        if self.ready() {
            self.send_open(at, out);
        }
        Ok(())
    }

    /// Asks for the thread.
    pub(super) fn ask_to_open(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let Some(opening) = &slot.state.opening else { return };
        let mut params = thread_params(&slot.context, &opening.options, &slot.state.kept_by_user);
        let method = match (&opening.resume, &opening.fork) {
            (Some(thread), _) => {
                params["threadId"] = json!(thread);
                params["excludeTurns"] = json!(true);
                "thread/resume"
            }
            (None, Some(point)) => {
                params["threadId"] = json!(point.thread);
                params["excludeTurns"] = json!(true);
                if let Some(last) = &point.last_turn {
                    params["lastTurnId"] = json!(last.turn);
                }
                "thread/fork"
            }
            (None, None) => "thread/start",
        };
        let asked = Asked::Open { session: slot.session.clone() };
        let frame = self.ask(asked, method, params);
        out.send(&frame);
    }

    pub(super) fn opened(&mut self, at: usize, result: Result<Value, RpcError>, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let result = match result {
            Ok(result) => result,
            Err(error) if errors::classify(&error) == Refused::Archived && self.may_unarchive(at) => {
                // Put away by another client. Somebody wants to go on with it.
                if let Some(opening) = &mut self.sessions.change(at).opening {
                    opening.unarchived = true;
                }
                let params = json!({ "threadId": self.sessions.slot(at).state.thread });
                let frame = self.ask(Asked::Unarchive { session }, "thread/unarchive", params);
                out.send(&frame);
                return;
            }
            Err(error) => {
                *self.sessions.change(at) = Thread::default();
                self.sessions.index_thread(at);
                out.say(&session, AgentEvent::ThreadRefused { failure: errors::refusal_failure(&error) });
                self.look_at_all_beside(out);
                return;
            }
        };
        let Some(id) = result.pointer("/thread/id").and_then(Value::as_str).map(str::to_owned) else {
            *self.sessions.change(at) = Thread::default();
            self.sessions.index_thread(at);
            let failure = Failure {
                provider: Some(result),
                ..Failure::new(FailureCode::Protocol, "the agent opened a thread without an id")
            };
            out.say(&session, AgentEvent::ThreadRefused { failure });
            return;
        };
        let thread = self.sessions.change(at);
        thread.thread = Some(ThreadId::from(id.as_str()));
        let resumed = thread.opening.as_ref().is_some_and(|opening| opening.resume.is_some());
        // A branch begins with the turns that it was given: they are not shown again.
        let branched = thread.opening.as_ref().is_some_and(|opening| opening.fork.is_some()) && !resumed;
        if branched {
            thread.seen = Seen::Unsure;
        }
        self.sessions.index_thread(at);
        // It may have been announced before it was answered for, and is nobody else's.
        self.is_not_beside(&id);
        self.took_options(at, &result, "sandbox", "reasoningEffort", out);
        self.look_at_all_beside(out);
        if resumed {
            // Where its history ends, whether a turn runs, and what became of doubtful inputs.
            self.ask_history(at, Look::first(Lookup::Opening), out);
        } else {
            self.open_for_use(at, false, out);
        }
    }

    fn may_unarchive(&self, at: usize) -> bool {
        let opening = self.sessions.slot(at).state.opening.as_ref();
        opening.is_some_and(|opening| opening.resume.is_some() && !opening.unarchived)
    }

    /// The thread was taken out of the agent's archive: it is asked for again.
    pub(super) fn unarchived(&mut self, at: usize, result: Result<Value, RpcError>, out: &mut Translated) {
        match result {
            Ok(_) => self.ask_to_open(at, out),
            Err(_) => self.opened(at, result, out),
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
        // On a loaded thread the server ignores all of it (measured); one that it has unloaded in the meantime comes back
        // with it, and not with the configured sandbox. Nothing is given where it is not known what was in force.
        let known = slot.state.in_force != SessionOptions::default();
        let mut params = if known {
            thread_params(&slot.context, &slot.state.options, &slot.state.kept_by_user)
        } else {
            json!({})
        };
        params["threadId"] = json!(thread);
        params["excludeTurns"] = json!(true);
        let asked = Asked::Reattach { session: slot.session.clone() };
        self.read(asked, "thread/resume", params, out);
    }

    pub(super) fn reattached(&mut self, at: usize, result: Result<Value, RpcError>, out: &mut Translated) {
        let error = match result {
            Ok(result) => {
                if self.sessions.slot(at).state.in_force == SessionOptions::default() {
                    // Opened by another host: what it set is in force, and not known here yet.
                    self.took_options(at, &result, "sandbox", "reasoningEffort", out);
                }
                self.sessions.change(at).detached = None;
                if result.pointer("/thread/status").is_some_and(requests::waits_for_nobody) {
                    self.nothing_is_asked(at, out);
                }
                self.ask_history(at, Look::first(Lookup::Reattach), out);
                if self.sessions.slot(at).state.queue_stopping {
                    // What was asked on the connection before may not have been done.
                    self.sessions.change(at).withdrawn.clear();
                    self.ask_queue(at, out);
                }
                self.reattach_children(at, out);
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
        self.read(asked, "thread/read", params, out);
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
        if !due || !self.ready() || slot.state.phase != Phase::Open || self.is_archiving(&slot.session) {
            return;
        }
        let asking = |asked: &Asked| matches!(asked, Asked::Reattach { session } | Asked::Status { session } if *session == slot.session);
        let already = self.asking().any(asking);
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
            mode: report.pointer("/collaborationMode/mode").and_then(Value::as_str).map(str::to_owned),
            sandbox: report
                .get(sandbox_name)
                .and_then(|sandbox| sandbox_word(sandbox.get("type")?.as_str()?)),
            approval: text("approvalPolicy"),
            personality: text("personality"),
            thinking: None,
        };
        let mut options = self.sessions.slot(at).state.options.clone();
        let default_mode = in_force.mode.as_deref() == Some(DEFAULT_MODE) && options.mode.is_none();
        for (ours, reported) in [
            (&mut options.model, &in_force.model),
            (&mut options.effort, &in_force.effort),
            (&mut options.tier, &in_force.tier),
            (&mut options.mode, &in_force.mode),
            (&mut options.sandbox, &in_force.sandbox),
            (&mut options.approval, &in_force.approval),
            (&mut options.personality, &in_force.personality),
        ] {
            if reported.is_some() {
                ours.clone_from(reported);
            }
        }
        if default_mode {
            // Nobody chose one: it is said only where it takes the place of another.
            options.mode = None;
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

/// Takes over what is wanted and not in force, and gives it.
pub(super) fn take_over(in_force: &mut SessionOptions, wanted: &SessionOptions) -> SessionOptions {
    let mut changed = SessionOptions::default();
    for (wanted, in_force, changed) in [
        (&wanted.model, &mut in_force.model, &mut changed.model),
        (&wanted.effort, &mut in_force.effort, &mut changed.effort),
        (&wanted.tier, &mut in_force.tier, &mut changed.tier),
        (&wanted.mode, &mut in_force.mode, &mut changed.mode),
        (&wanted.sandbox, &mut in_force.sandbox, &mut changed.sandbox),
        (&wanted.approval, &mut in_force.approval, &mut changed.approval),
        (&wanted.personality, &mut in_force.personality, &mut changed.personality),
    ] {
        // The mode is reported only after it was changed: none is the default one.
        let same = wanted == in_force || (in_force.is_none() && wanted.as_deref() == Some(DEFAULT_MODE));
        if wanted.is_some() && !same {
            changed.clone_from(wanted);
            in_force.clone_from(wanted);
        }
    }
    changed
}

/// The parameters of `thread/settings/update` for options that are to change. The failure names what the server has no
/// word for.
pub(super) fn changed_settings(
    changed: &SessionOptions,
    in_force: &SessionOptions,
    context: &ThreadContext,
) -> Result<Value, Failure> {
    let mut params = json!({});
    for (name, value) in [
        ("model", &changed.model),
        ("effort", &changed.effort),
        ("serviceTier", &changed.tier),
        ("approvalPolicy", &changed.approval),
        ("personality", &changed.personality),
    ] {
        if let Some(value) = value {
            params[name] = json!(value);
        }
    }
    if let Some(sandbox) = &changed.sandbox {
        let policy = sandbox_policy(sandbox, context).ok_or_else(|| {
            let message = format!(
                "the agent has no sandbox {sandbox:?}; it has read-only, workspace-write, danger-full-access"
            );
            Failure::new(FailureCode::AgentRefused, message)
        })?;
        params["sandboxPolicy"] = policy;
    }
    if let Some(mode) = &changed.mode {
        // A mode comes with the model and the effort that hold in it.
        let model = changed.model.as_ref().or(in_force.model.as_ref());
        let effort = changed.effort.as_ref().or(in_force.effort.as_ref());
        params["collaborationMode"] = json!({
            "mode": mode,
            "settings": { "model": model, "reasoning_effort": effort, "developer_instructions": null },
        });
    }
    Ok(params)
}

impl Thread {
    /// Everything up to the end of this turn was shown.
    pub(super) fn saw_end_of(&mut self, turn: &str) {
        self.seen = Seen::UpTo(turn.into());
    }
}
