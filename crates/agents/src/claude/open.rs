//! Opening the conversation that the process was started for, and its settings.

use super::state::{Handshake, MAX_EFFORTS, MAX_ID_BYTES, MAX_MODELS, Model, Opening, Setting};
use super::wire::Asked;
use super::{ClaudeAdapter, text, warn};
use crate::adapter::{CannotTell, InHistory, Translated};
use crate::catalogue::{self, Catalogue};
use crate::sessions::kept;
use mainstay_core::agent::{AgentInfo, NoticeLevel, TakenProof};
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::{AgentEvent, SessionOptions, SubmissionId, ThreadId};
use serde_json::{Map, Value, json};

/// The permission modes that the program has. It accepts any other word and does nothing (measured), so they are
/// checked here: the mode decides whether a person is asked.
const MODES: [&str; 6] = [DEFAULT_MODE, "acceptEdits", "plan", "dontAsk", "auto", "bypassPermissions"];
/// The mode that the program begins in where it is told none.
const DEFAULT_MODE: &str = "default";

impl ClaudeAdapter {
    pub(super) fn initialized(&mut self, at: usize, answer: &Value, out: &mut Translated) {
        if self.connection.handshake != Handshake::Asked {
            return;
        }
        if let Some(error) = text(answer, "error") {
            self.handshake_failed(Failure::new(FailureCode::AgentRefused, error), out);
            return;
        }
        let response = answer.get("response").cloned().unwrap_or_default();
        let connection = self.change_connection();
        connection.handshake = Handshake::Done;
        connection.models = models(&response);
        out.say_all(AgentEvent::Ready(AgentInfo {
            name: "claude".to_owned(),
            version: self.connection.version.clone(),
            resumable: Some(true),
        }));
        if let Some(commands) = response.get("commands") {
            self.say(at, AgentEvent::Commands(commands.clone()), out);
        }
    }

    pub(super) fn version_told(&mut self, answer: &Value) {
        let version = answer.pointer("/response/version").and_then(Value::as_str).unwrap_or_default();
        self.change_connection().version = version.chars().take(MAX_ID_BYTES).collect();
    }

    pub(super) fn catalogue_told(&mut self, answer: &Value) {
        let Some(response) = answer.get("response") else { return };
        let offered = |model: &Value| {
            let id = text(model, "value")?.to_owned();
            let efforts = model.get("supportedEffortLevels").and_then(Value::as_array);
            let efforts = efforts.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
            Some(catalogue::Model {
                name: text(model, "displayName").unwrap_or(&id).to_owned(),
                description: text(model, "description").map(str::to_owned),
                default: id == "default",
                efforts: efforts.collect(),
                id,
                ..catalogue::Model::default()
            })
        };
        let models = response.get("models").and_then(Value::as_array);
        self.catalogue = Some(Catalogue {
            models: models.map(|models| models.iter().filter_map(offered).collect()),
            account: response.get("account").cloned(),
            ..Catalogue::default()
        });
    }

    /// A result before the handshake: there is no such conversation, and the process ends.
    pub(super) fn refused_at_start(&mut self, at: usize, line: &Value, out: &mut Translated) {
        if self.connection.handshake != Handshake::Asked {
            self.unmodelled(at, "result", line.clone(), out);
            return;
        }
        let errors = line.get("errors").and_then(Value::as_array);
        let words: Vec<&str> = errors.into_iter().flatten().filter_map(Value::as_str).collect();
        let message = if words.is_empty() {
            "the agent does not have this conversation".to_owned()
        } else {
            words.join("; ")
        };
        self.handshake_failed(Failure::new(FailureCode::ThreadMissing, message), out);
    }

    fn handshake_failed(&mut self, failure: Failure, out: &mut Translated) {
        out.say_all(AgentEvent::Notice {
            level: NoticeLevel::Error,
            message: failure.message.clone(),
            provider: failure.provider.clone(),
        });
        self.change_connection().handshake = Handshake::Failed(kept(&failure));
        // Ready all the same: the session then asks for its conversation and is told why it gets none.
        out.say_all(AgentEvent::Ready(AgentInfo::default()));
    }

    pub(super) fn open_thread(
        &mut self,
        at: usize,
        resume: Option<&ThreadId>,
        options: &SessionOptions,
        doubtful: &[SubmissionId],
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let slot = self.sessions.slot(at);
        let session = slot.session.clone();
        let failure = match &self.connection.handshake {
            Handshake::Unsaid | Handshake::Asked => return Err(CannotTell::NotConnected),
            Handshake::Failed(failure) => Some(failure.clone()),
            Handshake::Done => unusable(options),
        };
        // A process has one conversation, named when it was started.
        let started_with = slot.context.conversation.clone().map(ThreadId);
        let thread = resume.cloned().or_else(|| started_with.clone());
        let other = thread != started_with && started_with.is_some();
        let failure = failure.or_else(|| match (&thread, other) {
            (None, _) => Some(Failure::new(
                FailureCode::Other,
                "the agent was started without the name of a conversation",
            )),
            (Some(wanted), true) => Some(Failure::new(
                FailureCode::ThreadMissing,
                format!("the agent was started for another conversation than {wanted}"),
            )),
            (Some(_), false) => None,
        });
        if let Some(failure) = failure {
            out.say(&session, AgentEvent::ThreadRefused { failure });
            return Ok(());
        }
        let servers = mcp_servers(&slot.context.mcp_servers);
        for (submission, found) in self.settled(at, doubtful) {
            let event = match found {
                InHistory::There => AgentEvent::InputTaken { submission, proof: TakenProof::History },
                InHistory::NotThere => AgentEvent::InputAbsent { submission },
                InHistory::Unknown => AgentEvent::InputUnknown { submission },
            };
            self.say(at, event, out);
        }
        let thread_state = self.sessions.change(at);
        thread_state.thread = thread;
        thread_state.open = false;
        thread_state.options = SessionOptions::default();
        thread_state.wanted = SessionOptions::default();
        self.sessions.index_thread(at);
        self.ask_again(at, out);
        let mut frames = self.settings(at, options, None);
        let mut waits_for: Vec<Setting> =
            frames.iter().filter_map(|frame| Setting::of_request(text(frame, "request_id")?)).collect();
        if !servers.is_empty() {
            waits_for.push(Setting::McpServers);
            let request = json!({ "servers": servers });
            frames.push(Asked::Set(Setting::McpServers).frame(request, "mcp_set_servers"));
        }
        for frame in &frames {
            out.send(frame);
        }
        self.sessions.change(at).opening = Some(Opening { resumed: resume.is_some(), waits_for });
        self.go_on_opening(at, out);
        Ok(())
    }

    /// What the history says about each message in doubt.
    fn settled(&self, at: usize, doubtful: &[SubmissionId]) -> Vec<(SubmissionId, InHistory)> {
        let history = &self.sessions.slot(at).history;
        let found = |submission: &SubmissionId| {
            let told = history.iter().find(|(told, _)| told == submission);
            told.map_or(InHistory::Unknown, |(_, found)| *found)
        };
        doubtful.iter().map(|submission| (submission.clone(), found(submission))).collect()
    }

    /// The frames that put in force what is wanted and not so already. `whole`: all that is wished, where what it has no
    /// word on goes back to what the agent does by itself; None: that stays as it is.
    pub(super) fn settings(
        &mut self,
        at: usize,
        options: &SessionOptions,
        whole: Option<&SessionOptions>,
    ) -> Vec<Value> {
        let before = self.sessions.slot(at).state.wanted.clone();
        let taken_back = whole.map_or_else(SessionOptions::default, |whole| before.without(whole));
        let differs = |wanted: &Option<String>, before: &Option<String>| {
            wanted.clone().filter(|wanted| Some(wanted) != before.as_ref())
        };
        let mode = differs(&options.mode, &before.mode);
        let model = differs(&options.model, &before.model);
        let effort = differs(&options.effort, &before.effort);
        let thinking = differs(&options.thinking, &before.thinking);
        let mut frames = Vec::new();
        // `null` is what the program does by itself (measured); of a mode it wants the name.
        if mode.is_some() || taken_back.mode.as_ref().is_some_and(|mode| mode != DEFAULT_MODE) {
            let request = json!({ "mode": mode.as_deref().unwrap_or(DEFAULT_MODE) });
            frames.push(Asked::Set(Setting::Mode).frame(request, "set_permission_mode"));
        }
        if model.is_some() || taken_back.model.is_some() {
            frames.push(Asked::Set(Setting::Model).frame(json!({ "model": model }), "set_model"));
        }
        if effort.is_some() || taken_back.effort.is_some() {
            let request = json!({ "settings": { "effortLevel": effort } });
            frames.push(Asked::Set(Setting::Effort).frame(request, "apply_flag_settings"));
        }
        if thinking.is_some() || taken_back.thinking.is_some() {
            let tokens = thinking.as_deref().and_then(thinking_tokens);
            let request = json!({ "max_thinking_tokens": tokens });
            frames.push(Asked::Set(Setting::Thinking).frame(request, "set_max_thinking_tokens"));
        }
        if frames.is_empty() {
            return frames;
        }
        let stays = before.without(&taken_back);
        let wanted = &mut self.sessions.change(at).wanted;
        wanted.thinking = thinking.or(stays.thinking);
        wanted.mode = mode.or(stays.mode);
        wanted.model = model.or(stays.model);
        wanted.effort = effort.or(stays.effort);
        frames
    }

    pub(super) fn set(&mut self, at: usize, setting: Setting, answer: &Value, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let (control, wanted) = match self.answered_control(at, setting) {
            Some((place, asked)) => (Some(place), asked),
            None => (None, self.sessions.slot(at).state.wanted.clone()),
        };
        let error = text(answer, "error").map(str::to_owned);
        if let Some(error) = &error
            && setting == Setting::Mode
            && self.sessions.slot(at).state.opening.is_some()
        {
            // The mode decides whether a person is asked: a conversation in another mode is not used.
            self.sessions.change(at).opening = None;
            let mode = wanted.mode.unwrap_or_default();
            let failure = Failure::new(
                FailureCode::AgentRefused,
                format!("the agent refused the permission mode {mode:?}: {error}"),
            );
            out.say(&session, AgentEvent::ThreadRefused { failure });
            return;
        }
        let mut options = self.sessions.slot(at).state.options.clone();
        match (setting, &error) {
            (_, Some(error)) => {
                warn(out, &session, format!("the agent refused a setting: {error}"));
                let in_force = options.clone();
                self.sessions.change(at).no_longer_wanted(setting, in_force);
            }
            (Setting::Mode, None) => {
                let reported = answer.pointer("/response/mode").and_then(Value::as_str);
                options.mode = reported.map(str::to_owned).or(wanted.mode);
            }
            (Setting::Model, None) => {
                let effort = wanted.effort.as_deref().or(options.effort.as_deref());
                self.check_model(at, wanted.model.as_deref(), effort, out);
                options.model = wanted.model;
            }
            (Setting::Effort, None) => options.effort = wanted.effort,
            (Setting::Thinking, None) => options.thinking = wanted.thinking,
            (Setting::McpServers, None) => self.mcp_servers_set(at, answer, out),
        }
        self.options_are(at, options, out);
        if let Some(control) = control {
            self.setting_answered(at, control, error.as_deref(), out);
        }
        if let Some(opening) = &mut self.sessions.change(at).opening {
            opening.waits_for.retain(|waited| *waited != setting);
        }
        self.go_on_opening(at, out);
    }

    /// The program takes any name for a model; one that its own list does not have is said.
    fn check_model(&self, at: usize, model: Option<&str>, effort: Option<&str>, out: &mut Translated) {
        let (Some(model), models) = (model, &self.connection.models) else { return };
        if models.is_empty() {
            return;
        }
        match models.iter().find(|known| known.value == model || known.resolved == model) {
            None => self.warn_at(
                at,
                format!("the agent does not list the model {model:?}; it takes the name unchecked"),
                out,
            ),
            Some(known) => {
                if let Some(effort) = effort
                    && !known.efforts.iter().any(|offered| offered == effort)
                {
                    self.warn_at(
                        at,
                        format!("the model {model:?} does not offer the effort {effort:?}"),
                        out,
                    );
                }
            }
        }
    }

    fn mcp_servers_set(&self, at: usize, answer: &Value, out: &mut Translated) {
        let errors = answer.pointer("/response/errors").and_then(Value::as_object);
        for (server, error) in errors.into_iter().flatten() {
            let error = error.as_str().map_or_else(|| error.to_string(), str::to_owned);
            self.warn_at(at, format!("the MCP server {server:?} could not be set: {error}"), out);
        }
    }

    fn go_on_opening(&mut self, at: usize, out: &mut Translated) {
        let state = &self.sessions.slot(at).state;
        let waits = state.opening.as_ref().is_none_or(|opening| !opening.waits_for.is_empty());
        if waits {
            return;
        }
        let thread = self.sessions.change(at);
        let (Some(opening), Some(id)) = (thread.opening.take(), thread.thread.clone()) else { return };
        thread.open = true;
        self.say(at, AgentEvent::ThreadOpened { thread: id, resumed: opening.resumed }, out);
    }

    /// What the agent reports to be in force.
    pub(super) fn reported(
        &mut self,
        at: usize,
        model: Option<&str>,
        mode: Option<&str>,
        out: &mut Translated,
    ) {
        let mut options = self.sessions.slot(at).state.options.clone();
        if let Some(mode) = mode {
            options.mode = Some(mode.to_owned());
        }
        if let Some(model) = model.filter(|model| model.len() <= MAX_ID_BYTES) {
            let alias = |asked: &String| {
                let known = self.connection.models.iter().find(|known| known.value == *asked);
                known.is_some_and(|known| known.resolved == model)
            };
            // Asked for by another name: that name stays.
            if !options.model.as_ref().is_some_and(alias) {
                options.model = Some(model.to_owned());
            }
        }
        self.options_are(at, options, out);
    }

    fn options_are(&mut self, at: usize, options: SessionOptions, out: &mut Translated) {
        if options == self.sessions.slot(at).state.options {
            return;
        }
        let thread = self.sessions.change(at);
        thread.options = options.clone();
        // What a newer wish is on its way for stays wanted.
        let settled = |setting, of: &Option<String>| of.clone().filter(|_| !thread.on_its_way(setting));
        let model = settled(Setting::Model, &options.model);
        let mode = settled(Setting::Mode, &options.mode);
        let effort = settled(Setting::Effort, &options.effort);
        let thinking = settled(Setting::Thinking, &options.thinking);
        thread.wanted = SessionOptions {
            thinking: thinking.or(thread.wanted.thinking.take()),
            model: model.or(thread.wanted.model.take()),
            mode: mode.or(thread.wanted.mode.take()),
            effort: effort.or(thread.wanted.effort.take()),
            ..SessionOptions::default()
        };
        self.say(at, AgentEvent::Options(options), out);
    }

    /// The conversation has another id now: `/clear` begins a new one in the same process.
    pub(super) fn session_named(&mut self, at: usize, id: Option<&str>, out: &mut Translated) {
        let Some(id) = id.filter(|id| id.len() <= MAX_ID_BYTES) else { return };
        let known = self.sessions.slot(at).state.thread.as_ref().map(ThreadId::as_str) == Some(id);
        if known {
            return;
        }
        self.sessions.change(at).thread = Some(ThreadId::from(id));
        self.sessions.index_thread(at);
        self.say(at, AgentEvent::ThreadSwitched { thread: ThreadId::from(id) }, out);
    }
}

impl Setting {
    /// The setting that a request of ours makes.
    pub(super) fn of_request(request_id: &str) -> Option<Self> {
        match Asked::of_id(request_id)? {
            Asked::Set(setting) => Some(setting),
            _ => None,
        }
    }
}

/// The most tokens of one thought, as the program takes them: 0 is off, null its own default. None: no such word.
fn thinking_tokens(thinking: &str) -> Option<Value> {
    match thinking {
        "off" => Some(Value::from(0)),
        "on" => Some(Value::Null),
        tokens => tokens.parse::<u32>().ok().map(Value::from),
    }
}

/// Why options cannot be put in force: the program takes any word and does nothing, or something else, with it.
pub(super) fn unusable(options: &SessionOptions) -> Option<Failure> {
    if let Some(thinking) = options.thinking.as_ref().filter(|words| thinking_tokens(words).is_none()) {
        let message = format!("thinking is `on`, `off` or a number of tokens, not {thinking:?}");
        return Some(Failure::new(FailureCode::AgentRefused, message));
    }
    let mode = options.mode.as_ref().filter(|mode| !MODES.contains(&mode.as_str()))?;
    let message = format!("the agent has no permission mode {mode:?}; it has {}", MODES.join(", "));
    Some(Failure::new(FailureCode::AgentRefused, message))
}

fn models(response: &Value) -> Vec<Model> {
    let listed = response.get("models").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let short = |name: &&str| name.len() <= MAX_ID_BYTES;
    let read = |model: &Value| {
        let value = text(model, "value").filter(short)?.to_owned();
        let efforts = model.get("supportedEffortLevels").and_then(Value::as_array);
        let efforts = efforts.into_iter().flatten().filter_map(Value::as_str);
        let efforts = efforts.filter(|effort| effort.len() <= MAX_EFFORTS.1);
        Some(Model {
            resolved: text(model, "resolvedModel").filter(short).unwrap_or(&value).to_owned(),
            efforts: efforts.map(str::to_owned).take(MAX_EFFORTS.0).collect(),
            value,
        })
    };
    listed.iter().take(MAX_MODELS).filter_map(read).collect()
}

/// MCP servers as ACP names them, in the program's form: by name, environment and headers as maps.
fn mcp_servers(servers: &[Value]) -> Map<String, Value> {
    let map = |list: Option<&Value>| -> Map<String, Value> {
        let entries = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let pair = |entry: &Value| Some((text(entry, "name")?.to_owned(), entry.get("value")?.clone()));
        entries.iter().filter_map(pair).collect()
    };
    let translate = |server: &Value| {
        let name = text(server, "name")?.to_owned();
        let translated = match text(server, "type") {
            Some(kind @ ("http" | "sse")) => json!({
                "type": kind,
                "url": server.get("url"),
                "headers": map(server.get("headers")),
            }),
            _ => json!({
                "type": "stdio",
                "command": server.get("command"),
                "args": server.get("args").cloned().unwrap_or_else(|| json!([])),
                "env": map(server.get("env")),
            }),
        };
        Some((name, translated))
    };
    servers.iter().filter_map(translate).collect()
}
