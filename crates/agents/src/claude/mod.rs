//! Claude Code: `claude -p` with stream-json in and out, one process for one conversation.
//!
//! Rules that come from how the program behaves (measured with 2.1.197):
//! * it is ready when `initialize` is answered; its `init` line comes with every turn and begins one;
//! * results and messages do not pair up: a turn ends with its `result`, and an input is taken by the echo that carries
//!   its uuid, never by counting. The echo comes late, after the first text of the turn;
//! * a message given into a running turn is taken at the next tool boundary, or starts the next turn by itself;
//! * local slash commands and turns that were stopped at once are not echoed: where the only input that is untaken was to
//!   start a turn, and a turn that nobody else caused ends, that input caused it;
//! * a message that was cut off looks complete but for its missing `message_stop`;
//! * an answer to a permission request is confirmed by its echo; each request is answered, because one waits for ever;
//! * `allow` needs `updatedInput`, `deny` needs a message;
//! * a line that it cannot read ends it, so every line is made here, from values.

mod controls;
pub mod files;
mod history;
mod items;
pub mod launch;
mod open;
mod requests;
mod state;
mod stream;
mod tasks;
mod turns;
mod wire;

use crate::adapter::{
    Adapter, CannotTell, InHistory, Incoming, KnownHistory, Record, SavedHistory, StateChange, ThreadContext,
    Translated, UnansweredCall,
};
use crate::catalogue::Catalogue;
use crate::rpc;
use crate::sessions::Sessions;
use mainstay_core::agent::{NoticeLevel, TakenProof};
use mainstay_core::content::Failure;
use mainstay_core::{AgentEvent, Capabilities, Decision, SessionId, SubmissionId};
use serde_json::{Value, json};
use state::{Connection, Handshake, STATE_VERSION, Thread};
use wire::{Asked, Envelope};

/// The adapter of one Claude Code process.
#[derive(Debug)]
pub struct ClaudeAdapter {
    capabilities: Capabilities,
    connection: Connection,
    connection_changed: bool,
    sessions: Sessions<Thread>,
    /// What the agent offers, told and not taken.
    catalogue: Option<Catalogue>,
}

impl Default for ClaudeAdapter {
    fn default() -> Self {
        Self::new()
    }
}

impl ClaudeAdapter {
    /// An adapter for a process that was not spoken with yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            capabilities: Capabilities {
                steer: true,
                steers_carry_over: true,
                resume: true,
                confirms_answers: true,
                settles_by_history: true,
                asks_again: true,
                images: true,
                set_options: true,
                compact: true,
                clear: true,
                fork: true,
                rewind: true,
                rewind_files: true,
                list_threads: true,
                rename: true,
                stop_tasks: true,
                stop_children: true,
                ..Capabilities::bare(TakenProof::ReplayEcho)
            },
            connection: Connection::default(),
            connection_changed: false,
            sessions: Sessions::default(),
            catalogue: None,
        }
    }

    fn change_connection(&mut self) -> &mut Connection {
        self.connection_changed = true;
        &mut self.connection
    }

    /// The conversation of the process: it has one.
    fn at(&self) -> Option<usize> {
        self.sessions.first_bound()
    }

    fn say(&self, at: usize, event: AgentEvent, out: &mut Translated) {
        out.say(&self.sessions.slot(at).session, event);
    }

    fn connected(&mut self, number: u32, out: &mut Translated) {
        *self.change_connection() =
            Connection { number: Some(number), handshake: Handshake::Asked, ..Connection::default() };
        // Answered in order: with `initialize` the version is there.
        out.send(&Asked::Version.frame(json!({}), "get_binary_version"));
        out.send(&self.initialize(&Asked::Initialize));
    }

    fn initialize(&self, asked: &Asked) -> Value {
        let mut request = json!({});
        let instructions = self.at().and_then(|at| self.sessions.slot(at).context.instructions.clone());
        if let Some(instructions) = instructions {
            request["appendSystemPrompt"] = Value::from(instructions);
        }
        asked.frame(request, "initialize")
    }

    /// Everything in flight is void: over stdio the process is gone, and its exit settles the session.
    fn disconnected(&mut self) {
        let connection = self.change_connection();
        connection.number = None;
        connection.handshake = Handshake::Unsaid;
        for at in self.sessions.positions() {
            let thread = self.sessions.change(at);
            *thread = Thread { thread: thread.thread.take(), ..Thread::default() };
        }
    }

    fn message(&mut self, bytes: &[u8], record_at: i64, out: &mut Translated) {
        let bytes = rpc::without_mark(bytes);
        let unreadable = |out: &mut Translated| {
            notice_all(out, "the agent wrote a line that is no message", &rpc::head(bytes));
        };
        let Ok(envelope) = serde_json::from_slice::<Envelope<'_>>(bytes) else {
            unreadable(out);
            return;
        };
        if envelope.kind == "stream_event" && self.delta(bytes, out) {
            return;
        }
        // The envelope is read without looking into the rest, which may still be no text.
        let Ok(line) = serde_json::from_slice::<Value>(bytes) else {
            unreadable(out);
            return;
        };
        let Some(at) = self.at() else { return };
        let subtype = envelope.subtype.as_ref().map_or("", |subtype| &*subtype.0);
        match &*envelope.kind {
            "stream_event" => self.stream_event(at, &line, out),
            "assistant" => {
                self.call_taken_up(at, &line, record_at, out);
                self.assistant(at, &line, out);
            }
            "user" => self.user(at, &line, out),
            "result" => self.result(at, &line, out),
            "system" => self.system(at, subtype, line, record_at, out),
            "control_request" => self.control_request(at, line, out),
            "control_response" => self.control_response(at, &line, out),
            "control_cancel_request" => self.withdrawn(at, &line, out),
            // Signs of life.
            "keep_alive" | "tool_progress" => {}
            kind => self.unmodelled(at, kind, line, out),
        }
    }

    fn unmodelled(&self, at: usize, name: &str, frame: Value, out: &mut Translated) {
        self.say(at, AgentEvent::Unmodelled { name: name.to_owned(), frame }, out);
    }

    fn system(&mut self, at: usize, subtype: &str, line: Value, record_at: i64, out: &mut Translated) {
        match subtype {
            "init" => self.turn_begins(at, &line, record_at, out),
            "status" => self.status(at, &line, record_at, out),
            "session_state_changed" => self.state_changed(at, &line, out),
            "compact_boundary" => self.compacted(at, &line, out),
            "api_retry" => self.retried(at, line, record_at, out),
            "permission_denied" => self.notice(at, NoticeLevel::Warning, "message", line, out),
            "notification" | "informational" => self.notice(at, NoticeLevel::Info, "message", line, out),
            "commands_changed" => {
                let commands = line.get("commands").cloned().unwrap_or_default();
                self.say(at, AgentEvent::Commands(commands), out);
            }
            "task_started" => self.task_started(at, &line, out),
            "task_progress" => self.task_progressed(at, &line, out),
            "task_updated" => self.task_updated(at, &line, out),
            "task_notification" => self.task_notified(at, &line, out),
            // A count beside the thinking itself.
            "thinking_tokens" => {}
            _ => self.unmodelled(at, &format!("system/{subtype}"), line, out),
        }
    }

    fn retried(&self, at: usize, line: Value, record_at: i64, out: &mut Translated) {
        let count = |name: &str| line.get(name).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
        let status = line.get("error_status").and_then(Value::as_u64);
        let error = text(&line, "error");
        let words = match (status, error) {
            (Some(status), Some(error)) => format!("{error}, {status}"),
            (None, Some(error)) => error.to_owned(),
            (Some(status), None) => status.to_string(),
            (None, None) => "no answer".to_owned(),
        };
        let code = turns::failure_code(error, status.or(Some(0)));
        let delay = line.get("retry_delay_ms").and_then(Value::as_f64);
        let (attempt, of) = (count("attempt").unwrap_or(1), count("max_retries"));
        let failure = Failure {
            provider: Some(line),
            ..Failure::new(code, format!("the model provider failed ({words})"))
        };
        #[expect(clippy::cast_possible_truncation, reason = "milliseconds of a short delay")]
        let next_at = delay.map(|delay| record_at + delay as i64);
        let turn = self.sessions.slot(at).state.turn_id();
        self.say(at, AgentEvent::Retrying { turn, attempt, of, failure, next_at }, out);
    }

    fn notice(&self, at: usize, level: NoticeLevel, field: &str, line: Value, out: &mut Translated) {
        let message =
            text(&line, field).or_else(|| text(&line, "content")).unwrap_or("the agent gave a notice");
        let message = message.to_owned();
        self.say(at, AgentEvent::Notice { level, message, provider: Some(line) }, out);
    }
}

/// A text field of a line.
fn text<'a>(line: &'a Value, name: &str) -> Option<&'a str> {
    line.get(name).and_then(Value::as_str)
}

fn notice_all(out: &mut Translated, message: &str, head: &str) {
    out.say_all(AgentEvent::Notice {
        level: NoticeLevel::Warning,
        message: message.to_owned(),
        provider: Some(json!({ "head": head })),
    });
}

fn warn(out: &mut Translated, session: &SessionId, message: String) {
    out.say(session, AgentEvent::Notice { level: NoticeLevel::Warning, message, provider: None });
}

impl Adapter for ClaudeAdapter {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn state_version(&self) -> u32 {
        STATE_VERSION
    }

    fn bind(&mut self, session: &SessionId, context: ThreadContext) {
        self.sessions.bind(session, context);
    }

    fn learn_history(&mut self, session: &SessionId, found: Vec<(SubmissionId, InHistory)>) {
        self.sessions.learn_history(session, found);
    }

    fn learn_unanswered(&mut self, session: &SessionId, calls: Vec<UnansweredCall>) {
        self.sessions.learn_unanswered(session, calls);
    }

    fn learn_way_back(&mut self, session: &SessionId, way: Result<String, String>) {
        self.sessions.learn_way_back(session, way);
    }

    fn unbind(&mut self, session: &SessionId) {
        self.sessions.unbind(session);
    }

    fn show_history(&mut self, session: &SessionId, history: &SavedHistory, out: &mut Translated) {
        if let Some(at) = self.sessions.position(session) {
            self.show_transcript(at, history, out);
        }
    }

    fn show_changes(
        &mut self,
        session: &SessionId,
        transcript: &[u8],
        known: &KnownHistory,
        out: &mut Translated,
    ) {
        if let Some(at) = self.sessions.position(session) {
            self.show_what_changed(at, transcript, known, out);
        }
    }

    fn ingest(&mut self, record: Record<'_>, out: &mut Translated) {
        match record.incoming {
            Incoming::Connected => self.connected(record.connection, out),
            Incoming::Disconnected => self.disconnected(),
            Incoming::Message(bytes) => self.message(bytes, record.at, out),
            Incoming::Oversize { length, head } => notice_all(
                out,
                &format!("the agent wrote a line of {length} bytes; it was too long and is lost"),
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
            // A branch is made at the process's start: the conversation that it was started for is the branch.
            Decision::OpenThread { resume, options, doubtful, fork: _ } => {
                self.open_thread(at, resume.as_ref(), options, doubtful, out)
            }
            Decision::StartTurn { submission, content, options } => {
                self.start_turn(at, submission, content, options, out)
            }
            Decision::Steer { turn, submission, content } => self.steer(at, turn, submission, content, out),
            Decision::Interrupt { .. } => self.interrupt(at, out),
            Decision::Answer { key, answer, .. } => self.answer_request(at, key, answer, out),
            Decision::Control { id, control } => self.control(at, id, control, out),
            Decision::CloseThread => Err(CannotTell::Unsupported("close_thread")),
        }
    }

    fn ask_catalogue(&mut self, out: &mut Translated) -> bool {
        let may = self.connection.number.is_some() && self.connection.handshake == Handshake::Done;
        if may {
            // A second one changes nothing and tells all again (measured).
            out.send(&self.initialize(&Asked::Catalogue));
        }
        may
    }

    fn take_catalogue(&mut self) -> Option<Catalogue> {
        self.catalogue.take()
    }

    fn changes(&mut self) -> Vec<StateChange> {
        let changed = std::mem::take(&mut self.connection_changed);
        self.sessions.changes(changed.then_some(&self.connection))
    }

    fn restore(&mut self, scope: &str, body: &[u8]) -> bool {
        self.sessions.restore(&mut self.connection, scope, body)
    }
}
