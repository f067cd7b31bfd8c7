//! A lane's beginning and end, and its process's: created, loaded, started, looked after, settled.

use super::batch::{Batch, Then};
use super::{Answer, Bound, FromLost, Lane, Process, STORE_PAUSE, Shared, Spawning, stored_row};
use crate::catalog;
use crate::error::HostError;
use crate::host::{NewSessionRequest, Operation};
use crate::journal::OpenRows;
use crate::keeping::{Planted, Settled};
use crate::load;
use crate::processes::{self, Launch};
use mainstay_agents::ThreadContext;
use mainstay_agents::launch::AgentKind;
use mainstay_core::digest::sha256_hex;
use mainstay_core::event::EpochReason;
use mainstay_core::process::{CloseOrder, ExitCause, ProcessExit, ProcessFact};
use mainstay_core::session::{Input, Moment, Out, Phase, Reply, StatusReport};
use mainstay_core::{Command, Cursor, LaunchSnapshot, ProcessToken, Session, SessionId};
use mainstay_keeper::wire::ToKeeper;
use mainstay_keeper::{KeeperFolder, ReservedFolder, SpoolReader};
use mainstay_store::{
    IdRegistration, NewSession, ProcessKey, ProcessRow, ProcessUpdate, SessionKey, SessionRow, SessionUpdate,
    WriteOp,
};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::path::PathBuf;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

/// A session that is being created: decided, not yet durable.
#[derive(Debug)]
pub(crate) struct Created {
    pub(super) bound: Bound,
    pub(super) batch: Batch,
    answer: Answer,
    reply: Reply,
    operation: Option<Operation>,
}

impl Created {
    /// Decides the creation and the first message. Refused: nothing exists.
    pub(crate) fn new(
        shared: &Shared,
        id: SessionId,
        launch: LaunchSnapshot,
        request: NewSessionRequest,
        fingerprint: Vec<u8>,
        operation: Option<Operation>,
        answer: Answer,
    ) -> Result<Self, HostError> {
        let now = shared.now();
        let key = shared.store.allocate_session_key();
        let kind = catalog::configured(&shared.config, &launch.agent)?.kind;
        let mut batch = Batch { prompt: true, touched: true, ..Batch::default() };
        batch.ops.push(WriteOp::CreateSession(NewSession {
            key,
            id: id.0.clone(),
            agent: launch.agent.0.clone(),
            name: request.name.clone(),
            cwd: launch.cwd.clone(),
            created_at: now,
            launch: serde_json::to_vec(&launch).unwrap_or_default(),
        }));
        let register = |kind: &'static str, id: String, fingerprint: Vec<u8>| {
            WriteOp::RegisterId(IdRegistration { kind: Cow::Borrowed(kind), id, session: key, fingerprint })
        };
        batch.ops.push(register("session", id.0.clone(), fingerprint));
        let mut out = Out::default();
        let mut machine = Session::create(id, request.name, launch, request.options, now, &mut out);
        let mut reply = Reply::Done;
        if machine.epoch < shared.store.epoch_floor() {
            // The id may have been that of a session that is gone with a rewind.
            machine.begin_epoch(EpochReason::StoreRewound, shared.store.epoch_floor(), now, &mut out);
        }
        if let Some((submission, content)) = request.prompt {
            let adapter = mainstay_agents::adapter(kind);
            let fresh = shared.clock.fresh_token();
            let moment = Moment { now, capabilities: adapter.capabilities(), fresh: &fresh };
            let delivery = mainstay_core::Delivery::Auto;
            let fingerprint = crate::host::message_fingerprint(&content, delivery);
            batch.ops.push(register("submission", submission.0.clone(), fingerprint));
            let send = Command::Send { submission, content, delivery, resends: None };
            reply = machine.handle(Input::Command(send), &moment, &mut out)?;
        }
        let hub = shared.hubs.of(key, Cursor { epoch: 1, seq: 0 });
        let bound = Bound {
            key,
            scope: scope_of(&machine.launch),
            agent: machine.launch.agent.0.clone(),
            machine,
            open: OpenRows::default(),
            hub,
            out,
            submitted: (1, 0),
            fence: 0,
            stored: false,
            shown: None,
            since_snapshot: 0,
        };
        Ok(Self { bound, batch, answer, reply, operation })
    }

    pub(crate) const fn key(&self) -> SessionKey {
        self.bound.key
    }

    pub(super) fn split(self) -> (Bound, Batch, (Answer, Reply, Option<Operation>)) {
        (self.bound, self.batch, (self.answer, self.reply, self.operation))
    }
}

/// The status as the record shows it, so that the feed tells changes only.
fn shown_in(row: &SessionRow) -> Option<StatusReport> {
    let status = serde_json::from_value(serde_json::Value::String(row.status.clone())).ok()?;
    Some(StatusReport { status, reason: row.reason.clone() })
}

/// The scope in which a thread belongs to one session: agent and account home.
fn scope_of(launch: &LaunchSnapshot) -> String {
    format!("{}:{}", launch.agent, launch.account_home.as_deref().unwrap_or("default"))
}

/// What became of starting a keeper.
#[derive(Debug)]
pub(super) enum SpawnOutcome {
    /// It answers.
    Started(Option<OwnedSemaphorePermit>),
    /// No process came to be.
    Failed(String),
    /// It was started and did not come up: the folder tells.
    Unclear,
    /// It was called off before anything was started.
    CalledOff(CloseOrder),
}

impl FromLost for SpawnOutcome {
    fn lost() -> Self {
        Self::Unclear
    }
}

impl FromLost for Settled {
    fn lost() -> Self {
        Self::NotYet
    }
}

impl Lane {
    pub(super) fn load_bound(shared: &Shared, key: SessionKey) -> Result<(Bound, SessionRow), HostError> {
        let row = stored_row(shared.store.as_ref(), key)?;
        let loaded = load::load(shared.store.as_ref(), &row)?;
        let mut machine = loaded.session;
        let submitted = (machine.epoch, machine.head);
        let mut out = Out::default();
        if machine.epoch < shared.store.epoch_floor() {
            // The database was rewound: readers may know other events under the numbers that would come next.
            machine.begin_epoch(
                EpochReason::StoreRewound,
                shared.store.epoch_floor(),
                shared.now(),
                &mut out,
            );
        }
        let hub = shared.hubs.of(key, Cursor { epoch: row.epoch, seq: row.head });
        let bound = Bound {
            key,
            submitted,
            fence: row.fence,
            stored: true,
            shown: shown_in(&row),
            since_snapshot: loaded.tail_rows,
            scope: scope_of(&machine.launch),
            agent: machine.launch.agent.0.clone(),
            open: loaded.open,
            hub,
            out,
            machine,
        };
        Ok((bound, row))
    }

    /// Takes up the process that the record names, if there is one.
    pub(super) async fn begin(&mut self, row: SessionRow) {
        let Some(key) = row.process else {
            self.process = None;
            if let Some(token) = self.bound.machine.process.clone() {
                // Reserved, and no process was ever recorded with it: nothing was started.
                self.now = self.shared.now();
                let exit = ProcessExit::of(ExitCause::ReservationUnused);
                self.decide_own(Input::Process(ProcessFact::Exited { process: token, exit }));
            }
            return;
        };
        let shared = self.shared.clone();
        let read = self.shared.blocking.run(move || {
            let process = shared.store.process(key)?;
            let states = shared.store.adapter_states(key)?;
            let inputs = shared.store.inputs(key, 0)?;
            Ok::<_, mainstay_store::ReadError>((process, states, inputs))
        });
        let (process, states, inputs) = match read.await {
            Ok(Ok((Some(process), states, inputs))) => (process, states, inputs),
            Ok(Ok((None, ..))) => {
                // The session names a process that has no record: nothing can be proven about it.
                if let Some(process) = self.bound.machine.process.clone() {
                    self.now = self.shared.now();
                    let why = "its record is missing".to_owned();
                    self.decide_own(Input::Process(ProcessFact::Unverifiable { process, why }));
                }
                return;
            }
            Ok(Err(error)) => {
                tracing::error!(session = %self.bound.machine.id, %error, "the process's record cannot be read");
                self.retry_at = Some(Instant::now() + STORE_PAUSE);
                return;
            }
            Err(_) => {
                self.retry_at = Some(Instant::now() + STORE_PAUSE);
                return;
            }
        };
        let folder = self.shared.keeping.folder(&process.token);
        let mut kept = self.process.take().filter(|kept| kept.token.as_str() == process.token);
        let launch = self.doubtful_launch.take_if(|reserved| reserved.folder().token == process.token);
        let mut taken = self.bare_process(ProcessToken(process.token.clone()), folder, process.key);
        taken.position = process.position;
        taken.committed = process.position;
        taken.connection = process.connection;
        taken.last_input = process.last_input;
        if !self.shared.has_planted(Planted::OutboxForgotten) {
            taken.unrecorded = inputs.rows.into();
        }
        let mut whole = true;
        for state in &states.rows {
            whole &= state.version == taken.adapter.state_version()
                && taken.adapter.restore(&state.scope, &state.body);
        }
        taken.adapter.bind(&self.bound.machine.id, context(&self.bound.machine));
        taken.close = self.bound.machine.stopping;
        if let Some(kept) = &mut kept {
            taken.permit = kept.permit.take();
            taken.close = kept.close.take().or(taken.close);
            taken.ending = kept.ending;
        }
        if !whole {
            // Of another version: it cannot be spoken with on the connection that its former state belongs to.
            tracing::warn!(session = %self.bound.machine.id, "an adapter's state is of another version; the agent is ended and taken up again");
            taken.close = Some(CloseOrder::Host);
        }
        match kept {
            // A reload after a failed commit: the line is still good, only what was decided is gone.
            Some(mut kept) if kept.link.is_some() => {
                // The keeper answers a second hello with where it stands.
                taken.link = kept.link.take();
                let greeted = taken.link.as_ref().is_some_and(|link| link.send_urgent(self.hello()));
                self.answer_by = Some(Instant::now() + super::ANSWER_DEADLINE);
                if !greeted {
                    taken.link = None;
                    self.relink_at = Some(Instant::now() + super::RELINK_PAUSE);
                }
                self.process = Some(taken);
            }
            _ if launch.is_some() && self.bound.machine.phase == Phase::Reserved => {
                self.process = Some(taken);
                if let Some(reserved) = launch {
                    self.launch(*reserved);
                }
            }
            _ if self.spawning.is_some() => self.process = Some(taken),
            _ => {
                taken.adopting = self.bound.machine.phase != Phase::Reserved;
                taken.permit =
                    taken.permit.or_else(|| self.shared.processes.clone().try_acquire_owned().ok());
                self.process = Some(taken);
                self.look_at_process();
            }
        }
    }

    /// Loads everything again after a failed commit.
    pub(super) async fn reload(&mut self) {
        self.retry_at = None;
        let (shared, key) = (self.shared.clone(), self.bound.key);
        let loading = self.shared.blocking.run(move || Self::load_bound(&shared, key)).await;
        match loading.unwrap_or(Err(HostError::ShuttingDown)) {
            Ok((bound, row)) => {
                self.bound = bound;
                self.broken = None;
                self.pending = Batch::default();
                for (woken, _) in &mut self.wake {
                    *woken = false;
                }
                self.begin(row).await;
                if self.retry_at.is_some() {
                    return;
                }
                if let Some(reserved) = self.doubtful_launch.take() {
                    // Its reservation did not commit: nothing was started.
                    let folder = reserved.folder().clone();
                    drop(reserved);
                    self.shared.remove_folder(folder);
                }
                self.journal_unrecorded_stops();
            }
            // Its creation did not commit: there is no such session.
            Err(HostError::SessionUnknown(_)) => self.leaving = true,
            Err(error) => {
                tracing::error!(session = %self.bound.machine.id, %error, "the session cannot be loaded again yet");
                for (_, done) in self.wake.drain(..) {
                    // What cannot be loaded cannot be looked after; the others must not wait for it.
                    let _told = done.send(());
                }
                self.broken = Some(error);
                self.retry_at = Some(Instant::now() + STORE_PAUSE);
            }
        }
    }

    /// Decides stops again that left unrecorded. What they tell the agent again is aimed at ids and changes nothing.
    fn journal_unrecorded_stops(&mut self) {
        for stop in std::mem::take(&mut self.unrecorded_stops) {
            let machine = &self.bound.machine;
            let runs = !machine.turns.is_empty() || machine.input_untaken();
            if runs || matches!(stop, Command::Stop { .. }) {
                self.now = self.shared.now();
                self.decide_own(Input::Command(stop));
                self.pending.stop = true;
            }
        }
    }

    /// Ends the process by the machine's own decision, so that messages wait for the next one from now on.
    pub(super) fn close_in_order(&mut self, order: CloseOrder) {
        self.now = self.shared.now();
        if self.decide(Input::Command(Command::Stop { order })).is_err() {
            // A deleted session takes no commands; its process ends all the same.
            self.order_close(order);
        }
    }

    fn bare_process(&self, token: ProcessToken, folder: KeeperFolder, key: ProcessKey) -> Process {
        let kind = self.kind;
        let reconnects = matches!(kind, AgentKind::Codex);
        Process {
            key,
            token,
            adapter: mainstay_agents::adapter(kind),
            reader: SpoolReader::open(folder.spool_path()),
            folder,
            position: 0,
            committed: 0,
            connection: 0,
            last_input: 0,
            unrecorded: VecDeque::new(),
            sent: 0,
            stalled: false,
            unclear: 0,
            ending: false,
            recorded: 0,
            trimmed: 0,
            link: None,
            greeted: false,
            bell: false,
            adopting: false,
            reconnects,
            final_exit: None,
            close: None,
            permit: None,
        }
    }

    /// A process that is being reserved: its record goes into the batch that holds the reservation.
    pub(super) fn new_process(&mut self, token: ProcessToken, folder: KeeperFolder, fence: u64) -> Process {
        let key = self.shared.store.allocate_process_key();
        self.pending.ops.push(WriteOp::CreateProcess(ProcessRow {
            key,
            token: token.0.clone(),
            agent: self.bound.agent.clone(),
            profile: sha256_hex(self.bound.scope.as_bytes()).into_bytes(),
            state: "reserved".to_owned(),
            fence,
            created_at: self.now,
            position: 0,
            connection: 0,
            last_input: 0,
            ended_at: None,
            exit: None,
        }));
        let mut update = SessionUpdate::new(self.bound.key, self.now);
        update.process = Some(Some(key));
        self.pending.ops.push(WriteOp::UpdateSession(update));
        let mut process = self.bare_process(token, folder, key);
        process.adapter.bind(&self.bound.machine.id, context(&self.bound.machine));
        process
    }

    /// Starts the keeper of a committed reservation.
    pub(super) fn launch(&mut self, reserved: ReservedFolder) {
        let spec = self.launch_spec(&reserved);
        let (cancel, called_off) = oneshot::channel();
        let shared = self.shared.clone();
        let task = tokio::spawn(async move {
            let spec = match spec {
                Ok(spec) => spec,
                Err(why) => return SpawnOutcome::Failed(why),
            };
            let (running, starting) = (shared.processes.clone(), shared.starting.clone());
            let permits = async { (running.acquire_owned().await, starting.acquire_owned().await) };
            let (running, _starting) = tokio::select! {
                // An order that came before anything was started wins.
                biased;
                Ok(order) = called_off => return SpawnOutcome::CalledOff(order),
                permits = permits => permits,
            };
            let keeping = shared.keeping.clone();
            let started = shared.blocking.run(move || keeping.start(reserved, &spec));
            match started.await {
                Ok(Ok(())) => SpawnOutcome::Started(running.ok()),
                Ok(Err(error @ mainstay_keeper::BirthError::Before(_))) => {
                    SpawnOutcome::Failed(chain(&error))
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = chain(&error), "a keeper did not come up");
                    SpawnOutcome::Unclear
                }
                Err(_) => SpawnOutcome::Unclear,
            }
        });
        self.spawning = Some(Spawning { task, cancel: Some(cancel) });
    }

    fn launch_spec(&self, reserved: &ReservedFolder) -> Result<mainstay_keeper::LaunchSpec, String> {
        let config = &self.shared.config;
        let launch = &self.bound.machine.launch;
        let agent = catalog::configured(config, &launch.agent).map_err(|error| error.to_string())?;
        let command = catalog::command(config, agent).ok_or_else(|| {
            format!(
                "its program {:?} is not there; `mainstay agents` says how to install it",
                agent.command.first()
            )
        })?;
        let launch = Launch {
            token: &reserved.folder().token,
            process_fence: self.bound.machine.fence.0,
            agent_name: launch.agent.as_str(),
            agent,
            command,
            account_home: launch.account_home.as_ref().map(PathBuf::from),
            cwd: PathBuf::from(&launch.cwd),
        };
        processes::launch_spec(config, launch).map_err(|error| error.to_string())
    }

    pub(super) fn on_spawned(&mut self, outcome: SpawnOutcome) {
        self.spawning = None;
        self.now = self.shared.now();
        let Some(process) = &mut self.process else { return };
        match outcome {
            SpawnOutcome::Started(permit) => {
                process.permit = permit;
                self.relink();
            }
            SpawnOutcome::Failed(why) => {
                let exit = ProcessExit { spawn_error: Some(why), ..ProcessExit::of(ExitCause::SpawnFailed) };
                self.settle_process(exit);
            }
            SpawnOutcome::Unclear => self.look_at_process(),
            SpawnOutcome::CalledOff(order) => {
                self.settle_process(ProcessExit::of(ExitCause::Ordered { order }));
            }
        }
    }

    fn hello(&self) -> ToKeeper {
        ToKeeper::Hello {
            version: mainstay_keeper::spec::PROTOCOL_VERSION,
            host_id: self.shared.config.host_id.0.clone(),
            process_fence: self.bound.machine.fence.0,
        }
    }

    /// Opens the line to the keeper.
    pub(super) fn relink(&mut self) {
        self.relink_at = None;
        let hello = self.hello();
        let Some(process) = &mut self.process else { return };
        match self.shared.keeping.open_link(&process.folder, hello) {
            Ok(link) => {
                process.link = Some(link);
                process.greeted = false;
                self.answer_by = Some(Instant::now() + super::ANSWER_DEADLINE);
            }
            Err(error) => {
                tracing::debug!(%error, token = %process.token, "a keeper's socket does not answer");
                self.look_at_process();
            }
        }
    }

    /// Looks, off this task, whether the process lives.
    pub(super) fn look_at_process(&mut self) {
        let Some(process) = &self.process else { return };
        if self.settling.is_some() || process.final_exit.is_some() {
            return;
        }
        let folder = process.folder.clone();
        let keeping = self.shared.keeping.clone();
        self.settling = Some(self.shared.blocking.run(move || keeping.look(&folder)));
    }

    /// Ends the process on an order, at once or as soon as it can be told.
    pub(super) fn order_close(&mut self, order: CloseOrder) {
        if let Some(spawning) = &mut self.spawning
            && let Some(cancel) = spawning.cancel.take()
            && cancel.send(order).is_err()
        {
            tracing::debug!("a keeper is being started already; the order follows");
        }
        let Some(process) = &mut self.process else { return };
        process.ending = true;
        let told = process.greeted
            && process
                .link
                .as_ref()
                .is_some_and(|link| link.send_urgent(ToKeeper::Close { order: processes::order(order) }));
        if !told {
            process.close = Some(order);
        }
    }

    /// Everything of a process that is proven gone is settled, in one batch.
    pub(super) fn settle_process(&mut self, exit: ProcessExit) {
        let Some(process) = self.process.take() else {
            return;
        };
        self.pending.touched = true;
        self.pending.prompt = true;
        let mut ended = ProcessUpdate::new(process.key);
        ended.state = Some("ended".to_owned());
        ended.position = Some(process.position);
        ended.ended_at = Some(self.now);
        ended.exit = serde_json::to_vec(&exit).ok();
        let mut freed = SessionUpdate::new(self.bound.key, self.now);
        freed.process = Some(None);
        self.pending.ops.extend([
            WriteOp::UpdateProcess(ended),
            WriteOp::DropAdapterState { process: process.key, scope: None },
            WriteOp::TrimInputs { process: process.key, up_to: process.last_input },
            WriteOp::UpdateSession(freed),
        ]);
        self.pending.frames.retain(|frame| frame.process != process.key);
        self.pending.then.push(Then::Remove(process.folder.clone()));
        if self.bound.machine.process.as_ref() == Some(&process.token) {
            let fact = ProcessFact::Exited { process: process.token.clone(), exit };
            self.decide_own(Input::Process(fact));
        }
    }

    /// A process that a user gave up: its record ends, its folder stays and is unclaimed from now on.
    pub(super) fn end_abandoned(&mut self, process: Process) {
        let mut ended = ProcessUpdate::new(process.key);
        ended.state = Some("abandoned".to_owned());
        ended.ended_at = Some(self.now);
        let mut freed = SessionUpdate::new(self.bound.key, self.now);
        freed.process = Some(None);
        self.pending.frames.retain(|frame| frame.process != process.key);
        self.pending.ops.extend([
            WriteOp::UpdateProcess(ended),
            WriteOp::DropAdapterState { process: process.key, scope: None },
            WriteOp::TrimInputs { process: process.key, up_to: process.last_input },
            WriteOp::UpdateSession(freed),
        ]);
        self.pending.touched = true;
        self.settling = None;
        self.relink_at = None;
    }

    pub(super) fn begin_shutdown(&mut self, order: Option<CloseOrder>, done: oneshot::Sender<()>) {
        let resumable = self.bound.machine.agent.as_ref().is_none_or(|agent| agent.resumable != Some(false));
        let order = match order {
            // Only idle agents are closed, and only those that can take their conversation up again.
            Some(CloseOrder::Idle) if self.bound.machine.nothing_owed() && resumable => {
                Some(CloseOrder::Host)
            }
            Some(CloseOrder::Idle) | None => None,
            Some(order) => Some(order),
        };
        self.shutdown = Some((order, done));
        match order {
            Some(order) => self.close_in_order(order),
            None => {
                // What is not started yet is for the next host to start.
                if let Some(cancel) = self.spawning.as_mut().and_then(|spawning| spawning.cancel.take()) {
                    let _called_off = cancel.send(CloseOrder::Host);
                }
            }
        }
    }
}

fn context(session: &Session) -> ThreadContext {
    let launch = &session.launch;
    ThreadContext {
        cwd: launch.cwd.clone(),
        additional_directories: launch.additional_directories.clone(),
        mcp_servers: launch.mcp_servers.clone(),
        instructions: launch.instructions.clone(),
    }
}

/// An error with its sources, once.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
