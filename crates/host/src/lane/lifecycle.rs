//! A lane's beginning and end, and its process's: created, loaded, started, looked after, settled.

use super::batch::Then;
use super::{FromLost, Lane, Member, Process, STORE_PAUSE, Spawning};
use crate::catalog;
use crate::config::AgentConfig;
use crate::conversations::Conversations;
use crate::error::HostError;
use crate::keeping::{Planted, Settled};
use crate::processes::{self, Launch};
use crate::room::ASK_EVERY;
use mainstay_agents::Conversation;
use mainstay_agents::launch::AgentKind;
use mainstay_core::process::{CloseOrder, ExitCause, ProcessExit, ProcessFact};
use mainstay_core::session::{Input, Phase};
use mainstay_core::{Command, LaunchSnapshot, ProcessToken, Session, ThreadId};
use mainstay_keeper::wire::ToKeeper;
use mainstay_keeper::{KeeperFolder, ReservedFolder, SpoolReader};
use mainstay_store::{ProcessKey, ProcessRow, ProcessUpdate, SessionKey, SessionUpdate, WriteOp};
use std::collections::VecDeque;
use std::path::PathBuf;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

/// How a process comes to a lane that never had it.
pub(super) enum Start {
    /// Its keeper is to be started.
    Reserved,
    /// It lives: where its spool is read from, and the adapter that knows its thread.
    Adopted {
        /// In the spool.
        position: u64,
        /// Its session is bound there.
        adapter: Box<dyn mainstay_agents::Adapter>,
    },
}

/// The state of a process that a user gave up for one of its sessions, while others go on with it.
pub(super) const GIVEN_UP: &str = "given_up";

/// What became of starting a keeper.
#[derive(Debug)]
pub(super) enum SpawnOutcome {
    /// It answers.
    Started(Option<OwnedSemaphorePermit>),
    /// No process came to be.
    Failed(Box<ProcessExit>),
    /// It was started and did not come up: the folder tells what became of it.
    Unclear(String),
    /// It was called off before anything was started.
    CalledOff(CloseOrder),
}

impl FromLost for SpawnOutcome {
    fn lost() -> Self {
        Self::Unclear("the start was cut off".to_owned())
    }
}

impl FromLost for Settled {
    fn lost() -> Self {
        Self::NotYet
    }
}

impl Lane {
    /// A session whose reservation has no process recorded with it: nothing was started.
    pub(super) fn settle_unused(&mut self, at: usize) {
        let member = &self.members[at];
        if member.claims.is_none()
            && let Some(process) = member.machine.process.clone()
        {
            self.read_clock();
            let exit = ProcessExit::of(ExitCause::ReservationUnused);
            self.decide_own(at, Input::Process(ProcessFact::Exited { process, exit }));
        }
    }

    /// Takes up the process that the records of the sessions here name.
    pub(super) async fn take_up(&mut self, key: ProcessKey) {
        self.read_clock();
        let shared = self.shared.clone();
        let read = self.shared.blocking.run(move || {
            let process = shared.store.process(key)?;
            let states = shared.store.adapter_states(key)?;
            let inputs = shared.store.inputs(key, 0)?;
            Ok::<_, mainstay_store::ReadError>((process, states, inputs))
        });
        let (row, states, inputs) = match read.await {
            Ok(Ok((Some(row), states, inputs))) => (row, states, inputs),
            Ok(Ok((None, ..))) => return self.process_unrecorded(key),
            Ok(Err(error)) => {
                tracing::error!(process = key.0, %error, "the process's record cannot be read");
                self.retry_at = Some(Instant::now() + STORE_PAUSE);
                return;
            }
            Err(_) => {
                self.retry_at = Some(Instant::now() + STORE_PAUSE);
                return;
            }
        };
        let folder = self.shared.keeping.folder(&row.token);
        let mut kept = self.process.take().filter(|kept| kept.token.as_str() == row.token);
        let launch = self.doubtful_launch.take_if(|reserved| reserved.folder().token == row.token);
        let profile = String::from_utf8_lossy(&row.profile).into_owned();
        let mut taken = self.bare_process(ProcessToken(row.token), folder, key, row.fence, profile);
        taken.given_up = row.state == GIVEN_UP;
        taken.position = row.position;
        taken.committed = row.position;
        taken.connection = row.connection;
        taken.last_input = row.last_input;
        if !self.shared.has_planted(Planted::OutboxForgotten) {
            taken.unrecorded = inputs.rows.into();
        }
        let mut whole = true;
        for state in &states.rows {
            whole &= state.version == taken.adapter.state_version()
                && taken.adapter.restore(&state.scope, &state.body);
        }
        for member in self.members.iter().filter(|member| member.claims == Some(key)) {
            taken.adapter.bind(&member.machine.id, member.context());
            taken.doubted |= member.machine.unverifiable.is_some();
            if matches!(member.machine.phase, Phase::Opening | Phase::Held) {
                taken.ready.clone_from(&member.machine.agent);
            }
        }
        if let Some(kept) = &mut kept {
            taken.permit = kept.permit.take();
            taken.close = kept.close.take();
            taken.ending = kept.ending;
            taken.identity = kept.identity.take();
            taken.did_not_come_up = kept.did_not_come_up.take();
        }
        if !whole {
            // Of another version: it cannot be spoken with on the connection that its former state belongs to.
            tracing::warn!(
                process = key.0,
                "an adapter's state is of another version; the agent is ended and taken up again"
            );
            taken.close = Some(CloseOrder::Host);
        }
        if let Some(exit) = row.ended_at.and(row.exit).and_then(|exit| serde_json::from_slice(&exit).ok()) {
            // Settled for others while the record of a session here could not be read.
            self.process = Some(taken);
            return self.settle_process(exit);
        }
        self.process = Some(taken);
        let standing = self.close_order();
        let reserved = self.bound().any(|member| member.machine.phase == Phase::Reserved);
        let unstarted = self.bound().all(|member| member.machine.phase == Phase::Reserved);
        let hello = self.hello();
        let Some(taken) = &mut self.process else { return };
        taken.close = taken.close.or(standing);
        match kept {
            // A reload after a failed commit: the line is still good, only what was decided is gone.
            Some(mut kept) if kept.link.is_some() => {
                // The keeper answers a second hello with where it stands.
                taken.link = kept.link.take();
                let greeted = taken.link.as_ref().is_some_and(|link| link.send_urgent(hello));
                self.answer_by = Some(Instant::now() + super::ANSWER_DEADLINE);
                if !greeted {
                    taken.link = None;
                    self.relink_at = Some(Instant::now() + super::RELINK_PAUSE);
                }
            }
            _ if launch.is_some() && reserved => {
                if let Some(reserved) = launch {
                    self.launch(*reserved);
                }
            }
            _ if self.spawning.is_some() => {}
            _ => {
                taken.adopting = !unstarted;
                if taken.permit.is_none() {
                    taken.permit = self.shared.processes.clone().try_acquire_owned().ok();
                }
                self.look_at_process();
            }
        }
    }

    /// Sessions name a process that has no record: nothing can be proven about it.
    fn process_unrecorded(&mut self, key: ProcessKey) {
        for at in 0..self.members.len() {
            let member = &self.members[at];
            if member.claims == Some(key)
                && let Some(process) = member.machine.process.clone()
            {
                let why = "its record is missing".to_owned();
                self.decide_own(at, Input::Process(ProcessFact::Unverifiable { process, why }));
            }
        }
    }

    /// Loads everything again after a failed commit.
    pub(super) async fn reload(&mut self) {
        self.retry_at = None;
        let keys: Vec<SessionKey> = self.members.iter().map(|member| member.key).collect();
        let shared = self.shared.clone();
        let loading = self
            .shared
            .blocking
            .run(move || keys.into_iter().map(|key| (key, Member::load(&shared, key))).collect::<Vec<_>>());
        let Ok(loaded) = loading.await else {
            self.retry_at = Some(Instant::now() + STORE_PAUSE);
            return;
        };
        let dropped = std::mem::take(&mut self.pending);
        self.keep_unrecorded(dropped.unrecorded_stops.into_iter());
        let mut whole = true;
        for (key, loaded) in loaded {
            let Some(at) = self.place_of(key) else { continue };
            let alone = self.members.len() == 1;
            let member = &mut self.members[at];
            match loaded {
                Ok(loaded) => member.replace(loaded),
                // Its creation did not commit: there is no such session.
                Err(HostError::SessionUnknown(_)) => {
                    let unborn = self.members.remove(at);
                    self.release(unborn);
                }
                Err(error) => {
                    tracing::error!(session = %member.machine.id, %error, "the session cannot be loaded again yet");
                    for (_, done) in member.wake.drain(..) {
                        // What cannot be loaded cannot be looked after; the others must not wait for it.
                        let _told = done.send(());
                    }
                    // One that is damaged stops no other; what fails for now is tried again for all.
                    whole &= matches!(error, HostError::Unreadable { .. }) && !alone;
                    member.out = mainstay_core::session::Out::default();
                    member.touched = false;
                    member.broken = Some(error);
                }
            }
        }
        if !whole {
            self.retry_at = Some(Instant::now() + STORE_PAUSE);
            return;
        }
        let sound = self.members.iter().filter(|member| member.broken.is_none());
        match sound.into_iter().find_map(|member| member.claims) {
            Some(process) => self.take_up(process).await,
            None => self.process = None,
        }
        if self.retry_at.is_some() {
            return;
        }
        for at in 0..self.members.len() {
            // One that was leaving may be bound now: it is asked here what it was to be asked elsewhere.
            if self.members[at].broken.is_some() {
                continue;
            }
            let asked = self.members[at].stay();
            self.settle_unused(at);
            if let Some(message) = asked {
                self.on_message(at, message);
            }
        }
        if let Some(reserved) = self.doubtful_launch.take() {
            // Its reservation did not commit: nothing was started.
            let folder = reserved.folder().clone();
            drop(reserved);
            self.shared.remove_folder(folder);
        }
        self.read_clock();
        for at in 0..self.members.len() {
            if let Some(carried) = self.members[at].stale_write.take() {
                self.decide_own(at, Input::StaleWrite { carried });
            }
        }
        self.journal_unrecorded_stops();
    }

    /// Decides stops again that left unrecorded, on the state that they were decided on before: nothing could be recorded
    /// meanwhile. What they tell the agent again is aimed at ids and changes nothing.
    fn journal_unrecorded_stops(&mut self) {
        for at in 0..self.members.len() {
            if self.members[at].broken.is_some() {
                continue;
            }
            for stop in std::mem::take(&mut self.members[at].unrecorded_stops) {
                let command = stop.stop.clone();
                self.pending.unrecorded_stops.push((self.members[at].key, stop));
                self.decide_own(at, Input::Command(command));
                self.pending.stop = true;
                self.pending.touched = true;
            }
        }
    }

    /// Ends the process by the machine's own decision, so that messages wait for the next one from now on.
    pub(super) fn close_in_order(&mut self, at: usize, order: CloseOrder) {
        self.read_clock();
        if self.decide(at, Input::Command(Command::Stop { order })).is_err() && self.bound().count() <= 1 {
            // A deleted session takes no commands; its process ends all the same.
            self.order_close(order);
        }
    }

    fn bare_process(
        &self,
        token: ProcessToken,
        folder: KeeperFolder,
        key: ProcessKey,
        fence: u64,
        profile: String,
    ) -> Process {
        let kind = self.kind;
        let reconnects = matches!(kind, AgentKind::Codex);
        Process {
            key,
            token,
            fence,
            profile,
            doubted: false,
            given_up: false,
            identity: None,
            ready: None,
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
            did_not_come_up: None,
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
            asked_to_close: None,
            permit: None,
        }
    }

    /// A process that is being reserved: its record goes into the batch that holds the reservation.
    pub(super) fn new_process(
        &mut self,
        at: usize,
        token: ProcessToken,
        folder: KeeperFolder,
        fence: u64,
        start: Start,
    ) {
        let (state, position, adapter) = match start {
            Start::Reserved => ("reserved", 0, None),
            Start::Adopted { position, adapter } => ("adopted", position, Some(adapter)),
        };
        let key = self.shared.store.allocate_process_key();
        let member = &self.members[at];
        let profile = member.profile.clone();
        self.pending.ops.push(WriteOp::CreateProcess(ProcessRow {
            key,
            token: token.0.clone(),
            agent: member.agent.clone(),
            profile: profile.clone().into_bytes(),
            state: state.to_owned(),
            fence,
            created_at: self.now,
            position,
            connection: 0,
            last_input: 0,
            ended_at: None,
            exit: None,
        }));
        if self.shared.registry.own(key, &self.joined_by).is_err() {
            // The store never gives a key twice.
            tracing::error!(process = key.0, "a new process has an owner already");
        }
        let mut process = self.bare_process(token, folder, key, fence, profile);
        (process.position, process.committed) = (position, position);
        let adopted = adapter.is_some();
        if let Some(adapter) = adapter {
            process.adapter = adapter;
        }
        self.process = Some(process);
        if adopted {
            self.claim(at);
        } else {
            self.bind(at);
        }
    }

    /// As many processes run as may run: the sessions say so, and the process that was idle longest is asked to rest.
    fn say_if_no_room(&mut self) {
        if self.shared.processes.available_permits() > 0 {
            return;
        }
        let _somebody_rests = self.shared.room.ask();
        let Some(token) = self.process.as_ref().map(|process| process.token.clone()) else { return };
        for at in self.bound_places() {
            let fact = ProcessFact::AwaitsCapacity { process: token.clone() };
            self.decide_own(at, Input::Process(fact));
        }
    }

    /// Starts the keeper of a committed reservation.
    pub(super) fn launch(&mut self, reserved: ReservedFolder) {
        if self.process.as_ref().is_none_or(|process| process.token.as_str() != reserved.folder().token) {
            // Settled before its reservation was durable. Without its lock the folder says that it was never used.
            return;
        }
        let spec = self.launch_spec(&reserved.folder().token);
        self.say_if_no_room();
        let (cancel, called_off) = oneshot::channel();
        let shared = self.shared.clone();
        let task = tokio::spawn(async move {
            let spec = match spec {
                Ok(spec) => spec,
                Err(why) => {
                    let exit =
                        ProcessExit { spawn_error: Some(why), ..ProcessExit::of(ExitCause::SpawnFailed) };
                    return SpawnOutcome::Failed(Box::new(exit));
                }
            };
            let (running, starting) = (shared.processes.clone(), shared.starting.clone());
            let permits = async {
                let mut running = std::pin::pin!(running.acquire_owned());
                let running = loop {
                    tokio::select! {
                        biased;
                        permit = &mut running => break permit,
                        () = tokio::time::sleep(ASK_EVERY) => {
                            let _somebody_rests = shared.room.ask();
                        }
                    }
                };
                (running, starting.acquire_owned().await)
            };
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
                    SpawnOutcome::Failed(Box::new(processes::failed_start(&error, chain(&error))))
                }
                Ok(Err(error)) => {
                    let error = chain(&error);
                    tracing::warn!(error, "a keeper did not come up");
                    SpawnOutcome::Unclear(format!("its keeper did not come up: {error}"))
                }
                Err(_) => SpawnOutcome::lost(),
            }
        });
        self.spawning = Some(Spawning { task, cancel: Some(cancel) });
    }

    fn launch_spec(&self, token: &str) -> Result<mainstay_keeper::LaunchSpec, String> {
        let config = &self.shared.config;
        let Some(first) = self.bound().next() else {
            return Err("the session that it was for is gone".to_owned());
        };
        let pinned = &first.machine.launch;
        let agent = catalog::configured(config, &pinned.agent).map_err(|error| error.to_string())?;
        let command = catalog::command(config, agent).ok_or_else(|| {
            let program = agent.command.first().map_or("", String::as_str);
            let known = catalog::agent(config, &pinned.agent).ok().and_then(|entry| entry.install);
            let install = known.unwrap_or_else(|| "see `mainstay agents`".to_owned());
            format!("its program {program:?} is not there; to install it: {install}")
        })?;
        let conversation = self.conversation(agent, &first.machine)?;
        let launch = Launch {
            token,
            process_fence: self.process.as_ref().map_or(0, |process| process.fence).saturating_sub(
                // The fence before the one that was won.
                u64::from(self.shared.has_planted(Planted::FormerFence)),
            ),
            agent_name: pinned.agent.as_str(),
            agent,
            command,
            account_home: pinned.account_home.as_ref().map(PathBuf::from),
            // Of the session that it is started for. Each thread has its own; that of the process matters to none.
            cwd: PathBuf::from(&pinned.cwd),
            conversation,
            additional_directories: pinned.additional_directories.clone(),
        };
        processes::launch_spec(config, launch).map_err(|error| error.to_string())
    }

    /// The files that the agent keeps about its conversations, where its protocol cannot be asked.
    pub(super) fn conversations(
        &self,
        agent: &AgentConfig,
        launch: &LaunchSnapshot,
    ) -> Option<Conversations> {
        let env = self.shared.config.agent_environment(agent);
        Conversations::of(agent.kind, launch.account_home.as_deref(), &env)
    }

    /// The conversation that a process is started for, where that is decided at its start.
    fn conversation(&self, agent: &AgentConfig, machine: &Session) -> Result<Option<Conversation>, String> {
        let Some(conversations) = self.conversations(agent, &machine.launch) else { return Ok(None) };
        let start = conversations.start(machine)?;
        // No process of ours has it now: whoever has is somebody else. The source of a branch is only read.
        if let Conversation::Resume(id) | Conversation::ResumeAt { id, .. } | Conversation::New(id) = &start
            && let Some(pid) = conversations.holder(&ThreadId::from(id.as_str()))
        {
            return Err(format!(
                "its conversation {id} is open in process {pid}, which is not ours; end that first"
            ));
        }
        Ok(Some(start))
    }

    pub(super) fn on_spawned(&mut self, outcome: SpawnOutcome) {
        self.spawning = None;
        self.read_clock();
        let metrics = &self.shared.metrics;
        match &outcome {
            SpawnOutcome::Started(_) => metrics.starts_done.one(),
            SpawnOutcome::Failed(_) => metrics.starts_failed.one(),
            SpawnOutcome::Unclear(_) => metrics.starts_unclear.one(),
            SpawnOutcome::CalledOff(_) => metrics.starts_called_off.one(),
        }
        let Some(process) = &mut self.process else { return };
        match outcome {
            SpawnOutcome::Started(permit) => {
                process.permit = permit;
                self.relink();
            }
            SpawnOutcome::Failed(exit) => self.settle_process(*exit),
            SpawnOutcome::Unclear(why) => {
                process.did_not_come_up = Some(why);
                self.look_at_process();
            }
            SpawnOutcome::CalledOff(order) => {
                self.settle_process(ProcessExit::of(ExitCause::Ordered { order }));
            }
        }
    }

    fn hello(&self) -> ToKeeper {
        ToKeeper::Hello {
            version: mainstay_keeper::spec::PROTOCOL_VERSION,
            host_id: self.shared.config.host_id.0.clone(),
            process_fence: self.process.as_ref().map_or(0, |process| process.fence),
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

    /// Everything of a process that is proven gone is settled, in one batch, for every session that was bound to it.
    pub(super) fn settle_process(&mut self, exit: ProcessExit) {
        let mut bound = self.bound_places();
        if self.shared.has_planted(Planted::NeighbourForgotten) {
            bound.truncate(1);
        }
        let Some(process) = self.process.take() else {
            return;
        };
        self.forget_waits();
        self.pending.touched = true;
        self.pending.prompt = true;
        let mut ended = ProcessUpdate::new(process.key);
        ended.state = Some("ended".to_owned());
        ended.position = Some(process.position);
        ended.ended_at = Some(self.now);
        ended.exit = serde_json::to_vec(&exit).ok();
        self.forget_process(&process, ended);
        self.pending.then.push(Then::Remove(process.folder.clone()));
        self.pending.then.push(Then::Disown(process.key));
        for at in &bound {
            // Before any of them decides: one may acquire the next process, and others join it there.
            let member = &mut self.members[*at];
            member.claims = None;
            let mut freed = SessionUpdate::new(member.key, self.now);
            freed.process = Some(None);
            self.pending.ops.push(WriteOp::UpdateSession(freed));
        }
        for at in bound {
            if self.members[at].machine.process.as_ref() == Some(&process.token) {
                let fact = ProcessFact::Exited { process: process.token.clone(), exit: exit.clone() };
                self.decide_own(at, Input::Process(fact));
            }
        }
    }

    /// A process that a user gave up: its record ends, its folder stays and is unclaimed from now on.
    pub(super) fn end_abandoned(&mut self, process: Process) {
        let mut ended = ProcessUpdate::new(process.key);
        ended.state = Some("abandoned".to_owned());
        ended.ended_at = Some(self.now);
        self.forget_process(&process, ended);
        self.pending.then.push(Then::Disown(process.key));
        for member in self.members.iter_mut().filter(|member| member.claims == Some(process.key)) {
            member.claims = None;
            let mut freed = SessionUpdate::new(member.key, self.now);
            freed.process = Some(None);
            self.pending.ops.push(WriteOp::UpdateSession(freed));
        }
        self.pending.touched = true;
        self.forget_waits();
    }

    /// What was waited for concerns a process that is not the lane's any more: its word is not for the next one.
    fn forget_waits(&mut self) {
        self.settling = None;
        self.relink_at = None;
        self.unstall_at = None;
        self.answer_by = None;
        self.ping_at = None;
    }

    fn forget_process(&mut self, process: &Process, ended: ProcessUpdate) {
        self.pending.frames.retain(|frame| frame.process != process.key);
        self.pending.ops.extend([
            WriteOp::UpdateProcess(ended),
            WriteOp::DropAdapterState { process: process.key, scope: None },
            WriteOp::TrimInputs { process: process.key, up_to: process.last_input },
        ]);
    }

    /// The host goes. Decided once every session of the lane was told.
    pub(super) fn begin_shutdown(&mut self) {
        let untold = self.members.iter().any(|member| member.shutdown.is_none());
        if self.shutdown.is_some() || self.members.is_empty() || untold || self.retry_at.is_some() {
            return;
        }
        let asked = self.members.iter().find_map(|member| member.shutdown.as_ref()?.0);
        let at_rest = || {
            self.bound().all(|member| member.machine.nothing_owed() && member.is_resumable())
                && !self.process_is_held()
        };
        let order = match asked {
            // Only idle agents are closed, and only those that can take their conversations up again.
            Some(CloseOrder::Idle) if at_rest() => Some(CloseOrder::Host),
            Some(CloseOrder::Idle) | None => None,
            Some(order) => Some(order),
        };
        self.shutdown = Some(order);
        match order {
            Some(order) => {
                for at in self.bound_places() {
                    self.close_in_order(at, order);
                }
            }
            None => {
                // What is not started yet is for the next host to start.
                if let Some(cancel) = self.spawning.as_mut().and_then(|spawning| spawning.cancel.take()) {
                    let _called_off = cancel.send(CloseOrder::Host);
                }
            }
        }
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
