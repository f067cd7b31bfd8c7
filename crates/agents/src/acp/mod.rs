//! ACP, version 1, as its client: any agent that speaks the Agent Client Protocol over lines.
//!
//! Rules that come from how agents behave (measured with five of them):
//! * one prompt is open at a time: a second one waits, hangs, kills or merges with the first;
//! * a prompt is taken at the first update that can only belong to it, or at its answer: the protocol has no receipt;
//! * the prompt's answer ends the turn, also when it is an error;
//! * the permission mode is set before a thread is used, because some agents reset it on load;
//! * a stop is `session/cancel` and `cancelled` for each open permission request: one agent waits for the latter;
//! * each request of the agent is answered, with `-32601` where nothing is offered.
//!
//! A turn's id is made from the submission's id, which is unique for ever; request ids begin anew in each process.

mod open;
mod permissions;
mod state;
mod updates;

use crate::adapter::{Adapter, CannotTell, Incoming, Record, StateChange, ThreadContext, Translated};
use crate::rpc::{self, Dialect, Inbound, RpcError};
use crate::sessions::{Sessions, kept};
use mainstay_core::agent::{AgentInfo, NoticeLevel, TakenProof};
use mainstay_core::content::{Failure, FailureCode, ItemStatus, Origin, Outcome, StopReason};
use mainstay_core::{AgentEvent, Capabilities, Decision, ProviderTurn, SessionId};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use state::{Asked, Connection, Handshake, MAX_HELD_BYTES, Prompt, STATE_VERSION, Thread};

/// The one version that we speak.
const PROTOCOL_VERSION: u64 = 1;
const RPC: Dialect = Dialect::Marked;

/// The adapter of one ACP agent process.
#[derive(Debug)]
pub struct AcpAdapter {
    capabilities: Capabilities,
    connection: Connection,
    connection_changed: bool,
    sessions: Sessions<Thread>,
}

impl Default for AcpAdapter {
    fn default() -> Self {
        Self::new()
    }
}

impl AcpAdapter {
    /// An adapter for a process that was not spoken with yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            capabilities: Capabilities { resume: true, ..Capabilities::bare(TakenProof::SolePrompt) },
            connection: Connection::default(),
            connection_changed: false,
            sessions: Sessions::default(),
        }
    }

    fn change_connection(&mut self) -> &mut Connection {
        self.connection_changed = true;
        &mut self.connection
    }

    /// The request frame of something we ask, remembered under its id.
    fn ask(&mut self, asked: Asked, method: &str, params: Value) -> Value {
        let connection = self.change_connection();
        let id = connection.next_id;
        connection.next_id += 1;
        connection.asked.insert(id, asked);
        RPC.request(id, method, params)
    }

    fn connected(&mut self, number: u32, at: i64, out: &mut Translated) {
        let next_id = self.connection.next_id;
        *self.change_connection() = Connection {
            number: Some(number),
            born: at,
            next_id,
            handshake: Handshake::Asked,
            ..Connection::default()
        };
        let params = json!({
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": { "fs": { "readTextFile": false, "writeTextFile": false }, "terminal": false },
            "clientInfo": { "name": "mainstay", "title": "Mainstay", "version": env!("CARGO_PKG_VERSION") },
        });
        let frame = self.ask(Asked::Initialize, "initialize", params);
        out.send(&frame);
    }

    /// Everything in flight is void: over stdio the process is gone, and its exit settles the sessions.
    fn disconnected(&mut self) {
        let connection = self.change_connection();
        connection.number = None;
        connection.handshake = Handshake::Unsaid;
        connection.asked.clear();
        connection.held.clear();
        for at in self.sessions.positions() {
            let thread = self.sessions.change(at);
            let kept = (thread.thread.take(), std::mem::take(&mut thread.options), thread.runs);
            *thread = Thread { thread: kept.0, options: kept.1, runs: kept.2, ..Thread::default() };
        }
    }

    fn message(&mut self, bytes: &[u8], out: &mut Translated) {
        match rpc::read(bytes) {
            Some(Inbound::Notification { method, params }) => match &*method {
                "session/update" => self.update(bytes, params, out),
                "$/cancel_request" => self.withdrawn(params, out),
                _ => out
                    .say_all(AgentEvent::Unmodelled { name: method.into_owned(), frame: rpc::whole(bytes) }),
            },
            Some(Inbound::Request { id, method, params }) => self.request(bytes, id, &method, params, out),
            Some(Inbound::Answer { id, result }) => self.answer(bytes, id, result, out),
            None => notice_all(out, "the agent wrote a line that is no message", &rpc::head(bytes)),
        }
    }

    fn request(
        &mut self,
        bytes: &[u8],
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
        out: &mut Translated,
    ) {
        if method == "session/request_permission" {
            self.permission_asked(bytes, id, params, out);
            return;
        }
        out.send(&RPC.refusal(id.get(), rpc::METHOD_NOT_FOUND, "this client does not offer that method"));
        out.say_all(AgentEvent::Unmodelled { name: method.to_owned(), frame: rpc::whole(bytes) });
    }

    fn answer(
        &mut self,
        bytes: &[u8],
        id: &RawValue,
        result: Result<Option<&RawValue>, RpcError>,
        out: &mut Translated,
    ) {
        let Some((id, asked)) =
            rpc::own_id(id).and_then(|id| Some((id, self.connection.asked.get(&id)?.clone())))
        else {
            // Answered twice, or never asked.
            out.say_all(AgentEvent::Unmodelled { name: "answer".to_owned(), frame: rpc::whole(bytes) });
            return;
        };
        self.change_connection().asked.remove(&id);
        let result = result.map(rpc::body);
        let Some(session) = asked.session().cloned() else {
            self.initialized(result, out);
            return;
        };
        let Some(at) = self.sessions.position(&session) else { return };
        match asked {
            Asked::Initialize => {}
            Asked::Open { resume, options, .. } => self.opened(at, resume, &options, result, out),
            Asked::Set { setting, .. } => self.set(at, setting, result, out),
            Asked::Prompt { .. } => self.prompt_answered(at, result, out),
        }
    }

    fn initialized(&mut self, result: Result<Value, RpcError>, out: &mut Translated) {
        let failure = match &result {
            Ok(result) if result.get("protocolVersion").and_then(Value::as_u64) == Some(PROTOCOL_VERSION) => {
                None
            }
            Ok(result) => Some(Failure {
                code: FailureCode::Protocol,
                message: "the agent does not speak version 1 of ACP".to_owned(),
                provider: result.get("protocolVersion").cloned(),
                resets_at: None,
            }),
            Err(error) => Some(refusal_failure(error, FailureCode::AgentRefused)),
        };
        if let Some(failure) = failure {
            out.say_all(AgentEvent::Notice {
                level: NoticeLevel::Error,
                message: failure.message.clone(),
                provider: failure.provider.clone(),
            });
            self.change_connection().handshake = Handshake::Failed(kept(&failure));
            // Ready all the same: the sessions then ask for their threads and are told why they get none.
            out.say_all(AgentEvent::Ready(AgentInfo::default()));
            return;
        }
        let result = result.unwrap_or_default();
        let offered = |pointer: &str| result.pointer(pointer).is_some_and(|offer| !offer.is_null());
        let connection = self.change_connection();
        connection.handshake = Handshake::Done;
        connection.load = result.pointer("/agentCapabilities/loadSession") == Some(&Value::Bool(true));
        connection.resume = offered("/agentCapabilities/sessionCapabilities/resume");
        connection.directories = offered("/agentCapabilities/sessionCapabilities/additionalDirectories");
        let resumable = Some(connection.load || connection.resume);
        let text =
            |pointer: &str| result.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        out.say_all(AgentEvent::Ready(AgentInfo {
            name: text("/agentInfo/name"),
            version: text("/agentInfo/version"),
            resumable,
        }));
    }

    /// A message about a thread that no session has: kept while the agent may be about to name that thread as ours.
    fn of_unknown_thread(&mut self, bytes: &[u8], name: &str, out: &mut Translated) -> bool {
        let making =
            self.connection.asked.values().any(|asked| matches!(asked, Asked::Open { resume: None, .. }));
        let held: usize = self.connection.held.iter().map(String::len).sum();
        if making
            && held + bytes.len() <= MAX_HELD_BYTES
            && let Ok(text) = std::str::from_utf8(bytes)
        {
            self.change_connection().held.push(text.to_owned());
            return true;
        }
        if self.sessions.only_one_bound() {
            out.say_all(AgentEvent::Unmodelled { name: name.to_owned(), frame: rpc::whole(bytes) });
        }
        false
    }

    fn start_turn(&mut self, at: usize, decision: &Decision, out: &mut Translated) -> Result<(), CannotTell> {
        let Decision::StartTurn { submission, content, .. } = decision else { return Ok(()) };
        let session = self.sessions.slot(at).session.clone();
        let thread = &self.sessions.slot(at).state;
        let Some(id) = thread.thread.clone().filter(|_| thread.open) else {
            return Err(CannotTell::NoThread(session));
        };
        if thread.prompt.is_some() {
            return Err(CannotTell::InputUntaken(session));
        }
        let params = json!({ "sessionId": id, "prompt": content });
        let frame = self.ask(Asked::Prompt { session }, "session/prompt", params);
        self.sessions.change(at).prompt = Some(Prompt {
            submission: submission.clone(),
            turn: ProviderTurn(format!("p.{submission}")),
            taken: false,
            interrupted: false,
        });
        out.send_message(&frame, submission);
        Ok(())
    }

    fn interrupt(&mut self, at: usize, out: &mut Translated) -> Result<(), CannotTell> {
        let slot = self.sessions.slot(at);
        let Some(id) = slot.state.thread.clone().filter(|_| slot.state.open) else {
            return Err(CannotTell::NoThread(slot.session.clone()));
        };
        out.send_urgent(&cancel(id.as_str()));
        let thread = self.sessions.change(at);
        if let Some(prompt) = &mut thread.prompt {
            prompt.interrupted = true;
        }
        for key in std::mem::take(&mut thread.requests).into_keys() {
            out.send_urgent(&permissions::cancelled(&key));
        }
        Ok(())
    }

    /// Says that the open prompt is taken, once; an update that only it can have caused was seen.
    fn prove_taken(&mut self, at: usize, out: &mut Translated) {
        if self.sessions.slot(at).state.prompt.as_ref().is_none_or(|prompt| prompt.taken) {
            return;
        }
        // What was open belonged to no turn.
        self.complete_messages(at, ItemStatus::Completed, out);
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let Some(prompt) = &mut thread.prompt else { return };
        prompt.taken = true;
        out.say(
            &session,
            AgentEvent::TurnStarted {
                turn: prompt.turn.clone(),
                origin: Origin::Message,
                submission: Some(prompt.submission.clone()),
            },
        );
        let submission = prompt.submission.clone();
        out.say(&session, AgentEvent::InputTaken { submission, proof: TakenProof::SolePrompt });
        if prompt.interrupted
            && let Some(id) = &thread.thread
        {
            // The urgent cancel may have overtaken the prompt that it was meant for.
            out.send_urgent(&cancel(id.as_str()));
        }
    }

    fn prompt_answered(&mut self, at: usize, result: Result<Value, RpcError>, out: &mut Translated) {
        self.prove_taken(at, out);
        let end = TurnEnd::of(result);
        let whole = !matches!(end.outcome, Outcome::Cancelled | Outcome::Failed);
        self.complete_messages(at, if whole { ItemStatus::Completed } else { ItemStatus::Incomplete }, out);
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let Some(prompt) = thread.prompt.take() else { return };
        // The agent ended the turn without our answers; the session closes the requests with the turn.
        thread.requests.retain(|key, turn| {
            let ends = turn.as_ref() == Some(&prompt.turn);
            if ends {
                out.send(&permissions::cancelled(key));
            }
            !ends
        });
        out.say(
            &session,
            AgentEvent::TurnEnded {
                turn: prompt.turn,
                outcome: end.outcome,
                stop_reason: end.stop_reason,
                failure: end.failure,
                usage: end.usage,
            },
        );
    }
}

/// What a prompt's answer says about its turn.
struct TurnEnd {
    outcome: Outcome,
    stop_reason: Option<StopReason>,
    failure: Option<Failure>,
    usage: Option<Value>,
}

impl TurnEnd {
    fn of(result: Result<Value, RpcError>) -> Self {
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                let failure = refusal_failure(&error, FailureCode::Provider);
                return Self {
                    outcome: Outcome::Failed,
                    stop_reason: None,
                    failure: Some(failure),
                    usage: None,
                };
            }
        };
        let word = result.get("stopReason").and_then(Value::as_str).unwrap_or_default();
        let (outcome, stop_reason) = match word {
            "end_turn" => (Outcome::Completed, Some(StopReason::EndTurn)),
            "max_tokens" => (Outcome::Limit, Some(StopReason::MaxTokens)),
            "max_turn_requests" => (Outcome::Limit, Some(StopReason::MaxTurnRequests)),
            "refusal" => (Outcome::Refused, Some(StopReason::Refusal)),
            "cancelled" => (Outcome::Cancelled, Some(StopReason::Cancelled)),
            _ => (Outcome::Failed, None),
        };
        let failure = stop_reason.is_none().then(|| Failure {
            code: FailureCode::Protocol,
            message: format!("the agent ended the turn with an unknown stop reason: {word:?}"),
            provider: Some(result.clone()),
            resets_at: None,
        });
        let usage = result.get("usage").or_else(|| result.pointer("/_meta/quota"));
        Self { outcome, stop_reason, failure, usage: usage.filter(|usage| !usage.is_null()).cloned() }
    }
}

/// The failure of an error answer, in the agent's own words; `otherwise` where its code says nothing more.
fn refusal_failure(error: &RpcError, otherwise: FailureCode) -> Failure {
    let code = if error.code == rpc::SIGN_IN_NEEDED { FailureCode::SignIn } else { otherwise };
    Failure { code, message: error.message.clone(), provider: Some(error.body.clone()), resets_at: None }
}

fn cancel(thread: &str) -> Value {
    RPC.notification("session/cancel", json!({ "sessionId": thread }))
}

fn notice_all(out: &mut Translated, message: &str, head: &str) {
    out.say_all(AgentEvent::Notice {
        level: NoticeLevel::Warning,
        message: message.to_owned(),
        provider: Some(json!({ "head": head })),
    });
}

impl Adapter for AcpAdapter {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn state_version(&self) -> u32 {
        STATE_VERSION
    }

    fn bind(&mut self, session: &SessionId, context: ThreadContext) {
        self.sessions.bind(session, context);
    }

    fn unbind(&mut self, session: &SessionId) {
        self.sessions.unbind(session);
    }

    fn ingest(&mut self, record: Record<'_>, out: &mut Translated) {
        match record.incoming {
            Incoming::Connected => self.connected(record.connection, record.at, out),
            Incoming::Disconnected => self.disconnected(),
            Incoming::Message(bytes) => self.message(bytes, out),
            Incoming::Oversize { length, head } => notice_all(
                out,
                &format!("the agent wrote a message of {length} bytes; it was too long and is lost"),
                &rpc::head(head),
            ),
            Incoming::Fragment(bytes) => {
                notice_all(out, "the agent's last line was cut off and is lost", &rpc::head(bytes));
            }
        }
    }

    fn tell(
        &mut self,
        session: &SessionId,
        decision: &Decision,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let at =
            self.sessions.position(session).ok_or_else(|| CannotTell::UnknownSession(session.clone()))?;
        if self.connection.number.is_none() {
            return Err(CannotTell::NotConnected);
        }
        match decision {
            Decision::OpenThread { resume, options, .. } => {
                self.open_thread(at, resume.as_ref(), options, out)
            }
            Decision::StartTurn { .. } => self.start_turn(at, decision, out),
            Decision::Steer { .. } => Err(CannotTell::Unsupported("steer")),
            Decision::Interrupt { .. } => self.interrupt(at, out),
            Decision::Answer { key, answer, options } => {
                self.answer_permission(at, key, answer, options, out)
            }
            Decision::Control { control, .. } => Err(CannotTell::Unsupported(control.capability())),
            Decision::CloseThread => Err(CannotTell::Unsupported("close_thread")),
        }
    }

    fn changes(&mut self) -> Vec<StateChange> {
        let changed = std::mem::take(&mut self.connection_changed);
        self.sessions.changes(changed.then_some(&self.connection))
    }

    fn restore(&mut self, scope: &str, body: &[u8]) -> bool {
        self.sessions.restore(&mut self.connection, scope, body)
    }
}
