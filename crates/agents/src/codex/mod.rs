//! Codex: `codex app-server` as a listener, spoken with over a WebSocket on a Unix socket.
//!
//! Rules that come from how the server behaves (measured with codex-cli 0.171.0):
//! * one process has many threads and outlives connections: a lost connection is made again, the threads are taken up
//!   again, and the history tells what was missed;
//! * a thread that was taken up again is said to be open once more, because messages may have waited for that; one that
//!   the server has unloaded or lost is asked for once more, then refused;
//! * what the history cannot tell, also in a small page, is said to be unknown: nothing waits for ever;
//! * an acknowledged `turn/start` proves nothing: an input is taken when its user message comes with our client id;
//! * an accepted `turn/steer` may be lost with its turn without a word: where the turn ends without its user message, the
//!   history tells;
//! * `turn/interrupt` before `turn/started` fails and the turn runs on: the wish is kept until the turn has started;
//! * items complete after their turn, or never; approvals come again on a new connection under another id;
//! * each request of the server is answered, because an unanswered one waits for ever.

mod absent;
mod background;
mod beside;
mod bounds;
mod catalogue;
mod children;
mod controls;
mod early;
mod errors;
mod forms;
mod goals;
mod history;
mod in_flight;
mod items;
mod launch_params;
mod notifications;
mod open_items;
mod provider_queue;
mod requests;
pub mod rollout;
mod state;
mod steer;
mod threads;
mod turns;

use crate::adapter::{Adapter, CannotTell, Incoming, Record, Shown, StateChange, ThreadContext, Translated};
use crate::catalogue::{Catalogue, Model};
use crate::rpc::{self, Dialect, Inbound, RpcError};
use crate::sessions::{Sessions, kept};
use background::BackgroundLook;
use mainstay_core::agent::{AgentInfo, NoticeLevel, TakenProof};
use mainstay_core::{AgentEvent, Capabilities, Decision, SessionId, SessionOptions, ThreadId};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use state::{Asked, Connection, Handshake, Phase, STATE_VERSION, Seen, Thread};

const RPC: Dialect = Dialect::Bare;

/// The newest version of which the frames were recorded and replayed: major, minor.
const TESTED_VERSION: [u32; 2] = [0, 171];

/// The adapter of one Codex process.
#[derive(Debug)]
pub struct CodexAdapter {
    capabilities: Capabilities,
    connection: Connection,
    connection_changed: bool,
    sessions: Sessions<Thread>,
    /// The time of the record that is read. Not saved.
    at: i64,
    /// Not saved: what was not answered is asked for again by whoever wants it.
    gathering: Catalogue,
    gathered: Option<Catalogue>,
    /// The models that were listed last. Not saved: without them options are not checked here.
    models: Vec<Model>,
}

impl Default for CodexAdapter {
    fn default() -> Self {
        Self::new()
    }
}

impl CodexAdapter {
    /// An adapter for a process that was not spoken with yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            capabilities: Capabilities {
                steers_carry_over: false,
                tools_outlive_turns: true,
                steer: true,
                resume: true,
                confirms_answers: true,
                settles_by_history: true,
                list_threads: true,
                images: true,
                set_options: true,
                goals: true,
                compact: true,
                fork: true,
                rewind: true,
                review: true,
                shell: true,
                rename: true,
                stop_tasks: true,
                stop_children: true,
                stop_background: true,
                terminal: true,
                close_thread: true,
                ..Capabilities::bare(TakenProof::ClientId)
            },
            connection: Connection::default(),
            connection_changed: false,
            sessions: Sessions::default(),
            at: 0,
            gathering: Catalogue::default(),
            gathered: None,
            models: Vec::new(),
        }
    }

    fn change_connection(&mut self) -> &mut Connection {
        self.connection_changed = true;
        &mut self.connection
    }

    /// Whether threads can be spoken with now.
    fn ready(&self) -> bool {
        self.connection.number.is_some() && self.connection.handshake == Handshake::Done
    }

    fn connected(&mut self, number: u32, out: &mut Translated) {
        // A connection that ended without a word is as lost as one that said so.
        self.disconnected(out);
        let connection = self.change_connection();
        connection.number = Some(number);
        connection.handshake = Handshake::Asked;
        let params = json!({
            "clientInfo": { "name": "mainstay", "title": "Mainstay", "version": env!("CARGO_PKG_VERSION") },
            "capabilities": { "experimentalApi": true },
        });
        let frame = self.ask(Asked::Initialize, "initialize", params);
        out.send(&frame);
    }

    fn disconnected(&mut self, out: &mut Translated) {
        self.forget_strangers(out);
        let connection = self.change_connection();
        for beside in &mut connection.beside {
            (beside.looks, beside.told) = (0, false);
        }
        connection.number = None;
        connection.handshake = Handshake::Unsaid;
        let asked = std::mem::take(&mut connection.asked).into_values().map(|in_flight| in_flight.what);
        let waited = std::mem::take(&mut connection.waiting).into_iter().map(|waiting| waiting.what);
        let lost = asked.chain(waited).collect();
        self.controls_lost(lost, out);
        for at in self.sessions.positions() {
            let thread = self.sessions.change(at);
            if let Some(input) = &mut thread.input {
                input.lost = true;
            }
            if let Some(interrupt) = &mut thread.interrupt {
                interrupt.due = false;
            }
            for open in thread.requests.values_mut() {
                open.id = None;
            }
            // Asked under an id of that connection: the agent asks it again, under another.
            thread.early.retain(|frame| !matches!(rpc::read(frame.as_bytes()), Some(Inbound::Request { .. })));
            thread.detached = None;
        }
    }

    fn message(&mut self, bytes: &[u8], out: &mut Translated) {
        if self.connection.number.is_none() {
            // The end of what was said to a host whose state is lost: the history has all of it, and a part of a turn would
            // pass for the whole.
            return;
        }
        match rpc::read(bytes) {
            Some(Inbound::Notification { method, params }) => self.notification(bytes, &method, params, out),
            Some(Inbound::Request { id, method, params }) => self.asked(bytes, id, &method, params, out),
            Some(Inbound::Answer { id, result }) => self.answer(bytes, id, result, out),
            None => notice_all(out, "the agent sent a message that is none", &rpc::head(bytes)),
        }
    }

    fn answer(
        &mut self,
        bytes: &[u8],
        id: &RawValue,
        result: Result<Option<&RawValue>, RpcError>,
        out: &mut Translated,
    ) {
        let Some(id) = rpc::own_id(id).filter(|id| self.connection.asked.contains_key(id)) else {
            // Answered twice, or never asked.
            out.say_all(AgentEvent::Unmodelled { name: "answer".to_owned(), frame: rpc::whole(bytes) });
            return;
        };
        self.answered(id, result.map(rpc::body), out);
    }

    fn answered(&mut self, id: u64, result: Result<Value, RpcError>, out: &mut Translated) {
        let Some(in_flight) = self.change_connection().asked.remove(&id) else { return };
        self.settle(in_flight.what, result, out);
        self.let_waiting_go(out);
    }

    /// What an answer means.
    fn settle(&mut self, asked: Asked, result: Result<Value, RpcError>, out: &mut Translated) {
        if let Asked::Catalogue(read) = asked {
            self.catalogue_answered(read, result);
            return;
        }
        if let Asked::Beside { thread } = &asked {
            self.beside_looked_at(thread, &result, out);
            return;
        }
        if asked == Asked::Initialize {
            self.initialized(result, out);
            return;
        }
        let Some(session) = asked.session() else { return };
        let Some(at) = self.sessions.position(session) else { return self.missed(asked) };
        match asked {
            Asked::Initialize | Asked::Catalogue(_) | Asked::Beside { .. } | Asked::Forgotten => {}
            Asked::Control { control, after, .. } => self.control_answered(at, control, after, result, out),
            Asked::RevertProof { control, turn, .. } => self.revert_proven(at, control, &turn, &result, out),
            Asked::Close { .. } => self.thread_left(at, out),
            Asked::Queue { .. } => self.queue_listed(at, &result, out),
            Asked::Withdraw { message, .. } => self.withdrawal_answered(at, &message, result, out),
            Asked::ReattachChild { child, .. } => self.child_reattached(at, &child, &result, out),
            Asked::ChildHistory { child, .. } => self.child_history(at, &child, &result, out),
            Asked::Open { .. } => self.opened(at, result, out),
            Asked::Unarchive { .. } => self.unarchived(at, result, out),
            Asked::Reattach { .. } => self.reattached(at, result, out),
            Asked::Status { .. } => self.status_told(at, &result, out),
            Asked::StillRuns { turn, .. } => self.told_whether_it_runs(at, &turn, &result, out),
            Asked::History { look, .. } => self.history(at, &look, result, out),
            Asked::StartTurn { submission, into, .. } => {
                self.start_answered(at, submission, into.as_ref(), result, out);
            }
            Asked::Steer { submission, turn, again, .. } => {
                self.steer_answered(at, submission, &turn, again, result, out);
            }
            Asked::Interrupt { turn, .. } => self.interrupt_answered(at, &turn, result, out),
            Asked::Background { turn, child, looks, page, .. } => {
                let look = BackgroundLook { turn, child, looks, page };
                self.background_told(at, look, &result, out);
            }
        }
    }

    fn initialized(&mut self, result: Result<Value, RpcError>, out: &mut Translated) {
        let info = match result {
            Ok(result) => {
                self.change_connection().handshake = Handshake::Done;
                let version =
                    result.get("userAgent").and_then(Value::as_str).and_then(version).unwrap_or_default();
                AgentInfo { name: "codex".to_owned(), version: version.to_owned(), resumable: Some(true) }
            }
            Err(error) => {
                let failure = errors::refusal_failure(&error);
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
        };
        out.send(&RPC.notification("initialized", Value::Null));
        let version = info.version.clone();
        out.say_all(AgentEvent::Ready(info));
        self.tell_newer(&version, out);
        for at in self.sessions.positions() {
            if !self.is_taken_up(at) {
                continue;
            }
            match self.sessions.slot(at).state.phase {
                Phase::Open => self.reattach(at, out),
                Phase::Opening => self.send_open(at, out),
                Phase::Closed => {}
            }
        }
        self.look_at_all_beside(out);
    }

    /// Says once of each process that it is newer than what was tested: it is spoken with all the same.
    fn tell_newer(&mut self, version: &str, out: &mut Translated) {
        let mut parts = version.split('.').map(|part| part.parse::<u32>().ok());
        let (Some(Some(major)), Some(Some(minor))) = (parts.next(), parts.next()) else { return };
        if [major, minor] <= TESTED_VERSION || self.connection.newer_told {
            return;
        }
        self.change_connection().newer_told = true;
        let [known_major, known_minor] = TESTED_VERSION;
        let message = format!(
            "Codex {version} is newer than the versions this host was tested with (up to {known_major}.{known_minor}); \
             what is not understood is kept and shown as it came"
        );
        out.say_all(AgentEvent::Notice { level: NoticeLevel::Info, message, provider: None });
    }

    /// An answer that was too long to keep is an answer without a content: whoever waits for it must not wait for ever.
    fn oversize(&mut self, length: u64, head: &[u8], out: &mut Translated) {
        notice_all(
            out,
            &format!("the agent sent a message of {length} bytes; it was too long and is lost"),
            &rpc::head(head),
        );
        let digits: Vec<u8> = head
            .strip_prefix(b"{\"id\":".as_slice())
            .unwrap_or_default()
            .iter()
            .copied()
            .take_while(u8::is_ascii_digit)
            .collect();
        let id = std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
        if let Some(id) = id.filter(|id| self.connection.asked.contains_key(id)) {
            let error =
                RpcError { code: 0, message: "the answer was too long".to_owned(), body: Value::Null };
            self.answered(id, Err(error), out);
        }
    }
}

/// The version in `name/0.171.0 (…)`.
fn version(user_agent: &str) -> Option<&str> {
    user_agent.split_once('/')?.1.split_whitespace().next()
}

fn notice_all(out: &mut Translated, message: &str, head: &str) {
    out.say_all(AgentEvent::Notice {
        level: NoticeLevel::Warning,
        message: message.to_owned(),
        provider: Some(json!({ "head": head })),
    });
}

fn warn(out: &mut Translated, session: &SessionId, message: String, provider: Option<Value>) {
    out.say(session, AgentEvent::Notice { level: NoticeLevel::Warning, message, provider });
}

impl Adapter for CodexAdapter {
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
        let of_it = |asked: &Asked| asked.session() == Some(session);
        let connection = self.change_connection();
        connection.waiting.retain(|waiting| !of_it(&waiting.what));
        // What is unanswered stays: its id must not look like a stranger's. But its answer concerns nobody any more, also
        // where the session is bound again by then.
        for in_flight in connection.asked.values_mut().filter(|in_flight| of_it(&in_flight.what)) {
            in_flight.what = Asked::Forgotten;
        }
        self.sessions.unbind(session);
    }

    fn ingest(&mut self, record: Record<'_>, out: &mut Translated) {
        self.at = record.at;
        self.overdue(record.at, out);
        self.read_early(out);
        match record.incoming {
            Incoming::Connected => self.connected(record.connection, out),
            Incoming::Disconnected => self.disconnected(out),
            Incoming::Message(bytes) => self.message(bytes, out),
            Incoming::Oversize { length, head } => self.oversize(length, head, out),
            Incoming::Fragment(bytes) => {
                notice_all(out, "the agent's last message was cut off and is lost", &rpc::head(bytes));
            }
        }
        // What came before a thread was open, where this record opened it.
        self.read_early(out);
    }

    fn tell(
        &mut self,
        session: &SessionId,
        decision: &Decision,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let at =
            self.sessions.position(session).ok_or_else(|| CannotTell::UnknownSession(session.clone()))?;
        match decision {
            Decision::OpenThread { resume, fork, options, doubtful } => {
                self.open_thread(at, resume.as_ref(), fork.as_deref(), options, doubtful, out)
            }
            Decision::StartTurn { submission, content, options } => {
                self.start_turn(at, submission, content, options, out)
            }
            Decision::Steer { turn, submission, content } => self.steer(at, turn, submission, content, out),
            Decision::Interrupt { turn } => self.interrupt(at, turn.as_ref(), out),
            Decision::Answer { key, answer, .. } => self.answer_request(at, key, answer, out),
            Decision::Control { id, control } => self.control(at, id, control, out),
            Decision::CloseThread => self.close_thread(at, out),
        }
    }

    fn take_over(
        &mut self,
        session: &SessionId,
        thread: &ThreadId,
        options: &SessionOptions,
        shown: Shown,
    ) -> Result<(), CannotTell> {
        let at =
            self.sessions.position(session).ok_or_else(|| CannotTell::UnknownSession(session.clone()))?;
        *self.sessions.change(at) = Thread {
            thread: Some(thread.clone()),
            phase: Phase::Open,
            options: options.clone(),
            seen: match shown {
                Shown::Nothing => Seen::FromTheStart,
                Shown::UpTo(turn) => Seen::UpTo(turn),
                Shown::Unknown => Seen::Unsure,
            },
            ..Thread::default()
        };
        self.sessions.index_thread(at);
        Ok(())
    }

    fn ask_catalogue(&mut self, out: &mut Translated) -> bool {
        self.read_catalogue(&catalogue::ALL, out)
    }

    fn ask_models(&mut self, out: &mut Translated) -> bool {
        self.read_catalogue(&catalogue::IN_MEMORY, out)
    }

    fn know_models(&mut self, models: &[Model]) {
        self.models = models.to_vec();
    }

    fn take_catalogue(&mut self) -> Option<Catalogue> {
        self.gathered.take()
    }

    fn needs_new_connection(&self) -> bool {
        self.somebody_missed_something()
    }

    fn changes(&mut self) -> Vec<StateChange> {
        let changed = std::mem::take(&mut self.connection_changed);
        self.sessions.changes(changed.then_some(&self.connection))
    }

    fn restore(&mut self, scope: &str, body: &[u8]) -> bool {
        self.sessions.restore(&mut self.connection, scope, body)
    }
}
