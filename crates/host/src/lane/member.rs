//! A session in a lane: its machine, its mailbox, and what is on its way to or from it.

use super::batch::Batch;
use super::{Answer, LaneMessage, Shared};
use crate::catalog;
use crate::error::HostError;
use crate::host::{NewSessionRequest, Operation};
use crate::hub::Hub;
use crate::journal::OpenRows;
use crate::load;
use crate::registry::{JoinSender, Seat};
use mainstay_agents::{Shown, ThreadContext};
use mainstay_core::digest::sha256_hex;
use mainstay_core::event::EpochReason;
use mainstay_core::process::CloseOrder;
use mainstay_core::session::{Limits, Moment, Out, Past, Phase, StatusReport};
use mainstay_core::work::ThreadSource;
use mainstay_core::{AgentName, Command, Cursor, Fence, LaunchSnapshot, Session, SessionId};
use mainstay_store::{IdRegistration, NewSession, ProcessKey, SessionKey, SessionRow, Store, WriteOp};
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A session in a lane.
#[derive(Debug)]
pub(crate) struct Member {
    pub(super) key: SessionKey,
    pub(super) machine: Session,
    /// MCP servers with their credentials, which stand in the session's record alone.
    mcp_servers: Vec<serde_json::Value>,
    /// Variables that are the agent's alone.
    kept_from_commands: Vec<String>,
    pub(super) open: OpenRows,
    pub(super) hub: Arc<Hub>,
    /// What the machine decided since the last batch was submitted.
    pub(super) out: Out,
    /// (epoch, head) as last submitted.
    pub(super) submitted: (u64, u64),
    /// The fence as last submitted; checked inside the transaction.
    pub(super) fence: u64,
    /// Its record exists: the fence can be checked.
    pub(super) stored: bool,
    /// The status as last submitted.
    pub(super) shown: Option<StatusReport>,
    /// Rows since the last snapshot.
    pub(super) since_snapshot: usize,
    pub(super) agent: String,
    /// The thread scope: agent and account home.
    pub(super) scope: String,
    /// See [`Self::profile_of`].
    pub(super) profile: String,
    /// Something of it was decided since the last batch was submitted.
    pub(super) touched: bool,
    /// The process that its record names.
    pub(super) claims: Option<ProcessKey>,
    /// There until the lane gives it up, or hands the session on.
    pub(super) seat: Option<Seat>,
    /// Whether the machine was woken, and whom to tell when that is done.
    pub(super) wake: Vec<(bool, oneshot::Sender<()>)>,
    /// The host goes. With an order, the process is ended first.
    pub(super) shutdown: Option<(Option<CloseOrder>, oneshot::Sender<()>)>,
    /// Stops that left though the store refused to record them: they are journaled as soon as it takes writes again.
    pub(super) unrecorded_stops: Vec<Command>,
    /// The fence of a write that was refused as stale: to be journaled.
    pub(super) stale_write: Option<Fence>,
    /// Why the session cannot be loaded again just now: commands are answered with it.
    pub(super) broken: Option<HostError>,
    /// Since when nothing is owed to it.
    pub(super) idle_since: Option<Instant>,
    /// The agent was asked for its thread and has not answered.
    pub(super) opening: bool,
    /// The agent was told to close its thread, on the connection that lives now.
    pub(super) told_to_leave: bool,
    /// It leaves this lane as soon as nothing of it is on its way to the store.
    pub(super) parting: Option<Parting>,
    /// The process that has its conversation in memory, of another client: it is bound to that one, and to no other.
    pub(super) starts_in: Option<ProcessKey>,
}

/// How a session leaves a lane. Its mailbox is not read any more.
#[derive(Debug)]
pub(super) enum Parting {
    /// To this lane, with what it was asked.
    To(JoinSender, Box<LaneMessage>),
    /// To a lane of its own, with what it was asked: the process here takes no more.
    Alone(Box<LaneMessage>),
    /// To a lane of its own that loads it again: what it decided cannot be carried out here.
    Anew,
    /// Nothing is owed to it: it needs no lane, unless somebody asks it something just now.
    AtRest,
    /// Its creation was refused or did not become durable: there is no such session.
    NeverWas,
}

/// A session on its way to a lane.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(super) member: Member,
    pub(super) bears: Bears,
}

/// What a session on its way brings.
#[derive(Debug)]
pub(super) enum Bears {
    /// What it was asked.
    Message(Box<LaneMessage>),
    /// Its creation.
    Creation(Box<Creation>),
}

/// A session's creation: the machine has decided it, nothing is durable yet.
#[derive(Debug)]
pub(super) struct Creation {
    /// Its rows.
    pub(super) ops: Vec<WriteOp>,
    /// The first message, and the id that it takes.
    pub(super) prompt: Option<(Command, WriteOp)>,
    pub(super) answer: Answer,
    pub(super) operation: Option<Operation>,
}

/// How a session comes to a lane.
#[derive(Debug)]
pub(crate) enum Join {
    /// Its mailbox only: the session is bound to a process of the lane.
    Seat(Seat),
    /// All of it: it is about to need a process.
    Member(Box<Moving>),
}

/// A session that is being created, without its mailbox.
#[derive(Debug)]
pub(crate) struct Created {
    member: Member,
    creation: Creation,
}

impl Created {
    /// Decides the creation. The first message is decided in the lane that the session comes to; if it is refused there,
    /// nothing exists.
    #[expect(clippy::too_many_arguments, reason = "everything that a session begins with, and whom to tell")]
    pub(crate) fn new(
        shared: &Shared,
        id: SessionId,
        launch: LaunchSnapshot,
        request: NewSessionRequest,
        fingerprint: Vec<u8>,
        past: Option<Past>,
        operation: Option<Operation>,
        answer: Answer,
    ) -> Result<Self, HostError> {
        let now = shared.now();
        let key = shared.store.allocate_session_key();
        // An agent that is not registered is refused here, before anything exists.
        let agent = catalog::configured(&shared.config, &launch.agent)?;
        let kind = agent.kind;
        let stall = agent.stall_limit.map(|most| u64::try_from(most.as_millis()).unwrap_or(u64::MAX));
        let of_agent = Limits { max_stall_ms: stall, ..Limits::default() };
        let register = |kind: &'static str, id: String, fingerprint: Vec<u8>| {
            WriteOp::RegisterId(IdRegistration { kind: Cow::Borrowed(kind), id, session: key, fingerprint })
        };
        let mut ops = vec![
            WriteOp::CreateSession(NewSession {
                key,
                id: id.0.clone(),
                agent: launch.agent.0.clone(),
                name: request.name.clone(),
                cwd: launch.cwd.clone(),
                created_at: now,
                launch: serde_json::to_vec(&launch).unwrap_or_default(),
            }),
            register("session", id.0.clone(), fingerprint),
        ];
        if let Some(ThreadSource::Adopt { thread }) = &launch.source {
            // Claimed with the creation, so that of two sessions that want it one is refused.
            let (scope, thread) = (scope_of(&launch), thread.0.clone());
            ops.push(WriteOp::ClaimThread { scope, thread, session: key });
        }
        let mut out = Out::default();
        let mcp_servers = launch.mcp_servers.clone();
        let shown = launch.without_secrets();
        let mut machine = Session::create(id, request.name, shown, request.options, now, &mut out);
        machine.set_limits(request.limits.or(&of_agent), now, &mut out);
        let floor = shared.store.epoch_floor();
        if machine.epoch < floor {
            // The id may have been that of a session that is gone with a rewind.
            machine.begin_epoch(EpochReason::StoreRewound, floor, now, &mut out);
        }
        if let (Some(past), Some(ThreadSource::Adopt { thread })) = (past, machine.launch.source.clone()) {
            let capabilities = mainstay_agents::adapter(kind).capabilities().clone();
            let moment = Moment { now, capabilities: &capabilities, fresh: &shared.clock.fresh_token() };
            machine.begin_with_past(thread, past, &moment, &mut out);
        }
        let prompt = request.prompt.map(|(submission, content)| {
            let delivery = mainstay_core::Delivery::Auto;
            let fingerprint = crate::host::message_fingerprint(&content, delivery);
            let taken = register("submission", submission.0.clone(), fingerprint);
            (Command::Send { submission, content, delivery, resends: None }, taken)
        });
        let hub = shared.hubs.of(key, Cursor { epoch: 1, seq: 0 });
        let mut member = Member::new(shared, key, machine, mcp_servers, hub);
        member.out = out;
        member.submitted = (1, 0);
        // The id may have been that of a session that is gone with a rewind.
        member.pass_epoch_floor(shared);
        Ok(Self { member, creation: Creation { ops, prompt, answer, operation } })
    }

    pub(crate) const fn key(&self) -> SessionKey {
        self.member.key
    }

    /// It is bound to this process, which has its conversation in memory, as soon as it is made.
    pub(crate) const fn starting_in(mut self, process: ProcessKey) -> Self {
        self.member.starts_in = Some(process);
        self
    }

    pub(super) fn seated(self, seat: Seat) -> Moving {
        let mut member = self.member;
        member.seat = Some(seat);
        Moving { member, bears: Bears::Creation(Box::new(self.creation)) }
    }
}

impl Member {
    fn new(
        shared: &Shared,
        key: SessionKey,
        machine: Session,
        mcp_servers: Vec<serde_json::Value>,
        hub: Arc<Hub>,
    ) -> Self {
        Self {
            key,
            profile: Self::profile_of(shared, &machine),
            kept_from_commands: catalog::configured(&shared.config, &machine.launch.agent)
                .map(crate::config::AgentConfig::kept_from_commands)
                .unwrap_or_default(),
            touched: false,
            open: OpenRows::default(),
            hub,
            out: Out::default(),
            submitted: (machine.epoch, machine.head),
            fence: 0,
            stored: false,
            shown: None,
            since_snapshot: 0,
            agent: machine.launch.agent.0.clone(),
            scope: scope_of(&machine.launch),
            machine,
            mcp_servers,
            claims: None,
            seat: None,
            wake: Vec::new(),
            shutdown: None,
            unrecorded_stops: Vec::new(),
            stale_write: None,
            broken: None,
            idle_since: None,
            opening: false,
            told_to_leave: false,
            parting: None,
            starts_in: None,
        }
    }

    /// Loads a stored session, without a mailbox. Blocking.
    pub(super) fn load(shared: &Shared, key: SessionKey) -> Result<Self, HostError> {
        let row = stored_row(shared.store.as_ref(), key)?;
        let loaded = load::load(shared.store.as_ref(), &row)?;
        let hub = shared.hubs.of(key, Cursor { epoch: row.epoch, seq: row.head });
        let mcp_servers = match catalog::pinned(&row) {
            Ok(launch) => launch.mcp_servers,
            Err(error) => {
                // It can still be read, stopped and deleted; its servers are started without their credentials.
                tracing::warn!(session = row.id, %error, "what the session is pinned to is taken from its journal");
                loaded.session.launch.mcp_servers.clone()
            }
        };
        let mut member = Self::new(shared, key, loaded.session, mcp_servers, hub);
        let floor = shared.store.epoch_floor();
        if member.machine.epoch < floor {
            // The database was rewound: readers may know other events under the numbers that would come next.
            member.machine.begin_epoch(EpochReason::StoreRewound, floor, shared.now(), &mut member.out);
        }
        member.fence = row.fence;
        member.stored = true;
        member.shown = shown_in(&row);
        member.since_snapshot = loaded.tail_rows;
        member.open = loaded.open;
        member.claims = row.process;
        member.pass_epoch_floor(shared);
        Ok(member)
    }

    /// Begins a new epoch where the database was rewound since the session's last one: readers may know other events under
    /// the numbers that would come next.
    fn pass_epoch_floor(&mut self, shared: &Shared) {
        let floor = shared.store.epoch_floor();
        if self.machine.epoch < floor {
            self.machine.begin_epoch(EpochReason::StoreRewound, floor, shared.now(), &mut self.out);
        }
    }

    /// Takes the place of the same session before its batch was lost, with all who wait for it.
    pub(super) fn replace(&mut self, loaded: Self) {
        self.machine = loaded.machine;
        self.open = loaded.open;
        self.out = loaded.out;
        self.submitted = loaded.submitted;
        self.fence = loaded.fence;
        self.stored = true;
        self.shown = loaded.shown;
        self.since_snapshot = loaded.since_snapshot;
        self.claims = loaded.claims;
        self.touched = false;
        self.told_to_leave = false;
        self.opening = false;
        self.broken = None;
        for (woken, _) in &mut self.wake {
            *woken = false;
        }
    }

    /// Stays after all. What it was asked is to be decided anew.
    pub(super) fn stay(&mut self) -> Option<LaneMessage> {
        match self.parting.take()? {
            Parting::To(_, message) | Parting::Alone(message) => Some(*message),
            Parting::Anew | Parting::AtRest | Parting::NeverWas => None,
        }
    }

    /// Whether nothing of it is gathered for the store.
    pub(super) fn is_still(&self) -> bool {
        self.out.events.is_empty() && self.out.effects.is_empty()
    }

    /// Whether its mailbox is read. While a reload is due nothing is decided on the state that it will drop: everything
    /// waits where it is.
    pub(super) const fn heeds(&self, live: bool) -> bool {
        self.parting.is_none() && (live || self.broken.is_some())
    }

    /// Whether an agent that is ended can take the conversation up again, as far as is known.
    pub(super) fn is_resumable(&self) -> bool {
        self.machine.agent.as_ref().is_none_or(|agent| agent.resumable != Some(false))
    }

    /// Whether this command may make the session need a process.
    pub(super) fn may_acquire(&self, message: &LaneMessage) -> bool {
        if self.machine.phase != Phase::Free {
            return false;
        }
        let owed = || self.machine.submissions.iter().any(mainstay_core::session::OpenSubmission::waits);
        match message {
            LaneMessage::Command { command, .. } => match **command {
                Command::Send { .. }
                | Command::SendNow { .. }
                | Command::ResumeQueue
                | Command::Start
                | Command::Abandon
                | Command::StartFresh => true,
                _ => owed(),
            },
            LaneMessage::Wake { .. } => owed(),
            LaneMessage::TakeOver { .. } | LaneMessage::FenceAhead { .. } | LaneMessage::Shutdown { .. } => {
                false
            }
        }
    }

    pub(super) fn head(&self) -> Cursor {
        Cursor { epoch: self.machine.epoch, seq: self.machine.head }
    }

    /// What its thread is opened with.
    pub(super) fn context(&self) -> ThreadContext {
        let launch = &self.machine.launch;
        ThreadContext {
            cwd: launch.cwd.clone(),
            additional_directories: launch.additional_directories.clone(),
            mcp_servers: self.mcp_servers.clone(),
            instructions: launch.instructions.clone(),
            conversation: crate::conversations::conversation(&self.machine),
            past: self.past_shown(),
            kept_from_commands: self.kept_from_commands.clone(),
        }
    }

    /// How much the journal has of a conversation that was brought here.
    fn past_shown(&self) -> Option<Shown> {
        let adopted = matches!(self.machine.launch.source, Some(ThreadSource::Adopt { .. }));
        match self.machine.last_shown_turn() {
            _ if !adopted || self.machine.thread().is_none() => None,
            Some(turn) => Some(Shown::UpTo(turn.clone())),
            // Its past was read and had no turn that was over.
            None => self.machine.agent.is_none().then_some(Shown::Nothing),
        }
    }

    /// Sessions with the same profile can share a process: same agent with the same command and environment, same
    /// account home. A digest, since the environment may hold secrets.
    fn profile_of(shared: &Shared, machine: &Session) -> String {
        let config = &shared.config;
        let launched = catalog::configured(config, &machine.launch.agent)
            .map(|agent| (catalog::command(config, agent), config.agent_environment(agent)));
        sha256_hex(format!("{}|{:?}", scope_of(&machine.launch), launched.ok()).as_bytes())
    }
}

/// The row of a stored session, or why there is none.
pub(super) fn stored_row(store: &dyn Store, key: SessionKey) -> Result<SessionRow, HostError> {
    store.session(key)?.ok_or_else(|| HostError::SessionUnknown(key.to_string()))
}

/// The status as the record shows it, so that the feed tells changes only.
fn shown_in(row: &SessionRow) -> Option<StatusReport> {
    let status = serde_json::from_value(serde_json::Value::String(row.status.clone())).ok()?;
    Some(StatusReport { status, reason: row.reason.clone() })
}

/// The scope in which a thread belongs to one session: agent and account home.
pub(crate) fn scope_of(launch: &LaunchSnapshot) -> String {
    thread_scope(&launch.agent, launch.account_home.as_deref())
}

/// As it stands in the store.
pub(crate) fn thread_scope(agent: &AgentName, account_home: Option<&str>) -> String {
    format!("{agent}:{}", account_home.unwrap_or("default"))
}

/// A batch begun by a creation.
pub(super) fn creation_batch(batch: &mut Batch, ops: Vec<WriteOp>) {
    // Before all others: they name the session.
    batch.ops.splice(0..0, ops);
    batch.prompt = true;
    batch.touched = true;
}
