//! Opening a thread: made or taken up again, then its settings, then it is proven.

use super::state::{Asked, Handshake, Opening, Setting, SettingKind};
use super::{AcpAdapter, refusal_failure};
use crate::adapter::{CannotTell, Translated};
use crate::rpc::{self, RpcError};
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::{AgentEvent, SessionOptions, ThreadId};
use serde_json::{Value, json};

impl AcpAdapter {
    pub(super) fn open_thread(
        &mut self,
        at: usize,
        resume: Option<&ThreadId>,
        options: &SessionOptions,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let refused = match (&self.connection.handshake, resume) {
            (Handshake::Unsaid | Handshake::Asked, _) => return Err(CannotTell::NotConnected),
            (Handshake::Failed(failure), _) => Some(failure.clone()),
            (Handshake::Done, Some(_)) if !(self.connection.resume || self.connection.load) => {
                Some(Failure::new(
                    FailureCode::ThreadMissing,
                    "the agent cannot take up a conversation in another process",
                ))
            }
            (Handshake::Done, _) => None,
        };
        let slot = self.sessions.slot(at);
        let (session, context) = (slot.session.clone(), slot.context.clone());
        if let Some(failure) = refused {
            out.say(&session, AgentEvent::ThreadRefused { failure });
            return Ok(());
        }
        let mut params = json!({ "cwd": context.cwd, "mcpServers": context.mcp_servers });
        if !context.additional_directories.is_empty() {
            if self.connection.directories {
                params["additionalDirectories"] = json!(context.additional_directories);
            } else {
                warn(out, &session, "the agent does not offer further folders; it works in its one folder");
            }
        }
        if context.instructions.is_some() {
            warn(out, &session, "the session's instructions are not handed to agents of this kind yet");
        }
        let (method, muted) = match resume {
            None => ("session/new", false),
            Some(_) if self.connection.resume => ("session/resume", false),
            Some(_) => ("session/load", true),
        };
        if let Some(thread) = resume {
            params["sessionId"] = json!(thread);
        }
        let thread = self.sessions.change(at);
        thread.thread = resume.cloned();
        thread.open = false;
        thread.muted = muted;
        self.sessions.index_thread(at);
        let asked = Asked::Open { session, resume: resume.cloned(), options: options.clone() };
        let frame = self.ask(asked, method, params);
        out.send(&frame);
        Ok(())
    }

    pub(super) fn opened(
        &mut self,
        at: usize,
        resume: Option<ThreadId>,
        wanted: &SessionOptions,
        result: Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        thread.muted = false;
        let resumed = resume.is_some();
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                thread.thread = None;
                self.sessions.index_thread(at);
                let failure = open_failure(&error, resumed);
                out.say(&session, AgentEvent::ThreadRefused { failure });
                return;
            }
        };
        // Said as it is also where it is not the one that was asked for: the session compares.
        let named = result.get("sessionId").and_then(Value::as_str).map(ThreadId::from).or(resume);
        let Some(named) = named else {
            let failure = Failure {
                code: FailureCode::Protocol,
                message: "the agent made a session without an id".to_owned(),
                provider: Some(result),
                resets_at: None,
            };
            out.say(&session, AgentEvent::ThreadRefused { failure });
            return;
        };
        let offer = Offer::read(&result);
        let mut in_force = wanted.clone();
        let mut settings = Vec::new();
        for kind in SettingKind::ALL {
            let current = offer.current(kind);
            if let Some(current) = &current {
                kind.put(&mut in_force, current.clone());
            }
            let Some(value) = kind.of(wanted).filter(|value| current.as_ref() != Some(value)) else {
                continue;
            };
            match offer.way(kind) {
                Some(config) => settings.push(Setting { kind, value: value.clone(), config }),
                None => warn(
                    out,
                    &session,
                    &format!(
                        "the agent offers no way to set its {}; {value:?} is not in force",
                        kind.category()
                    ),
                ),
            }
        }
        thread.thread = Some(named);
        thread.options = in_force;
        thread.opening = Some(Opening { resumed, settings });
        self.sessions.index_thread(at);
        self.go_on_opening(at, out);
        let held = std::mem::take(&mut self.change_connection().held);
        for message in held {
            self.message(message.as_bytes(), out);
        }
    }

    /// Makes the next setting, or says that the thread is open.
    fn go_on_opening(&mut self, at: usize, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let (Some(opening), Some(id)) = (&mut thread.opening, thread.thread.clone()) else { return };
        if opening.settings.is_empty() {
            let resumed = opening.resumed;
            thread.opening = None;
            thread.open = true;
            out.say(&session, AgentEvent::Options(thread.options.clone()));
            out.say(&session, AgentEvent::ThreadOpened { thread: id, resumed });
            return;
        }
        let setting = opening.settings.remove(0);
        let (method, params) = match &setting.config {
            None => ("session/set_mode", json!({ "sessionId": id, "modeId": setting.value })),
            Some(config) => (
                "session/set_config_option",
                json!({ "sessionId": id, "configId": config, "value": setting.value }),
            ),
        };
        let frame = self.ask(Asked::Set { session, setting }, method, params);
        out.send(&frame);
    }

    pub(super) fn set(
        &mut self,
        at: usize,
        setting: Setting,
        result: Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let session = self.sessions.slot(at).session.clone();
        match result {
            Ok(_) => setting.kind.put(&mut self.sessions.change(at).options, setting.value),
            // The mode decides whether a person is asked: a thread in another mode is not used.
            Err(error) if setting.kind == SettingKind::Mode => {
                let thread = self.sessions.change(at);
                thread.opening = None;
                thread.thread = None;
                self.sessions.index_thread(at);
                let mut failure = refusal_failure(&error, FailureCode::AgentRefused);
                failure.message =
                    format!("the agent refused the mode {:?}: {}", setting.value, failure.message);
                out.say(&session, AgentEvent::ThreadRefused { failure });
                return;
            }
            Err(error) => out.say(
                &session,
                AgentEvent::Notice {
                    level: NoticeLevel::Warning,
                    message: format!(
                        "the agent refused the {} {:?}: {}",
                        setting.kind.category(),
                        setting.value,
                        error.message
                    ),
                    provider: Some(error.body),
                },
            ),
        }
        self.go_on_opening(at, out);
    }

    /// What the agent says is in force now; said only where it differs from what was.
    pub(super) fn options_changed(
        &mut self,
        at: usize,
        change: impl FnOnce(&mut SessionOptions),
        out: &mut Translated,
    ) {
        let mut options = self.sessions.slot(at).state.options.clone();
        change(&mut options);
        if options == self.sessions.slot(at).state.options {
            return;
        }
        self.sessions.change(at).options = options.clone();
        let slot = self.sessions.slot(at);
        if slot.state.open {
            out.say(&slot.session, AgentEvent::Options(options));
        }
    }
}

/// Why a thread could not be opened: by what was asked and what is known, because codes differ between agents.
fn open_failure(error: &RpcError, resuming: bool) -> Failure {
    let mut failure = refusal_failure(error, FailureCode::AgentRefused);
    if failure.code == FailureCode::SignIn {
        return failure;
    }
    if held_by_another_writer(&error.body) {
        failure.code = FailureCode::ActiveWriter;
    } else if resuming && matches!(error.code, rpc::NOT_FOUND | rpc::INVALID_PARAMS | INTERNAL_ERROR) {
        // Five agents have three codes for a conversation that they do not have; its id was all we gave them.
        failure.code = FailureCode::ThreadMissing;
    }
    failure
}

/// The code of an inside failure.
const INTERNAL_ERROR: i64 = -32603;

/// Measured: one agent names the reason, another has it only in its words.
fn held_by_another_writer(error: &Value) -> bool {
    let text = |pointer: &str| error.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    text("/data/reason") == "thread_active_writer"
        || text("/data/details").contains("already has an active writer")
}

fn warn(out: &mut Translated, session: &mainstay_core::SessionId, message: &str) {
    let (level, message) = (NoticeLevel::Warning, message.to_owned());
    out.say(session, AgentEvent::Notice { level, message, provider: None });
}

/// The modes and config options of a thread, as the agent lists them.
pub(super) struct Offer<'a> {
    modes: Option<&'a Value>,
    config: &'a [Value],
}

impl<'a> Offer<'a> {
    pub(super) fn read(result: &'a Value) -> Self {
        Self {
            modes: result.get("modes").filter(|modes| modes.is_object()),
            config: result.get("configOptions").and_then(Value::as_array).map_or(&[], Vec::as_slice),
        }
    }

    fn option(&self, kind: SettingKind) -> Option<&'a Value> {
        self.config
            .iter()
            .find(|option| option.get("category").and_then(Value::as_str) == Some(kind.category()))
    }

    /// What is in force.
    pub(super) fn current(&self, kind: SettingKind) -> Option<String> {
        let mode =
            self.modes.filter(|_| kind == SettingKind::Mode).and_then(|modes| modes.get("currentModeId"));
        let current = mode.or_else(|| self.option(kind)?.get("currentValue"))?;
        current.as_str().map(str::to_owned)
    }

    /// How it can be set: None not at all, `Some(None)` by `session/set_mode`.
    fn way(&self, kind: SettingKind) -> Option<Option<String>> {
        if kind == SettingKind::Mode && self.modes.is_some() {
            return Some(None);
        }
        let id = self.option(kind)?.get("id")?.as_str()?;
        Some(Some(id.to_owned()))
    }
}
