//! A lane: the task that owns an agent process, its adapter and the machines of the sessions bound to it.
//!
//! It works on the state as it will be; what it decided leaves with the commit. At most one batch is in flight; what
//! is decided meanwhile gathers for the next. If a commit fails, machines and adapter are dropped and loaded again:
//! position and outbox make that safe.

mod batch;
mod decide;
mod ingest;
mod lifecycle;

use crate::config::HostConfig;
use crate::error::HostError;
use crate::host::{Answered, Operation};
use crate::hub::{Hub, Hubs};
use crate::journal::OpenRows;
use crate::keeping::{Blocking, Clock, Keeping, Planted, Settled};
use crate::link::{Link, LinkEvent};
use crate::registry::{Registry, Seat};
use batch::{Batch, InFlight};
pub(crate) use lifecycle::Created;
use lifecycle::SpawnOutcome;
pub(crate) use lifecycle::chain;
use mainstay_agents::{Adapter, AgentKind};
use mainstay_core::process::{CloseOrder, ProcessExit};
use mainstay_core::session::Out;
use mainstay_core::{Capabilities, Command, ProcessToken, Session};
use mainstay_keeper::{KeeperFolder, ReservedFolder, SpoolReader};
use mainstay_store::{NewInput, ProcessKey, SessionKey, SessionRow, Store};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A lane without a process ends after this long without a message: a session at rest costs no task.
const LANE_IDLE: Duration = Duration::from_millis(50);
/// How long to wait before trying to reach a keeper again whose socket does not answer though its lock is held.
pub(crate) const RELINK_PAUSE: Duration = Duration::from_millis(200);
/// Looks that prove nothing are repeated this often before the process is called unverifiable: a keeper that is just
/// leaving, or a machine short of descriptors, is clear a moment later. Nothing is ever settled by this count.
const UNCLEAR_LOOKS: u32 = 15;
/// A keeper answers a hello or a ping in microseconds. One that has not after this long is shown as unverifiable, so that
/// a user can decide; nothing is settled by it, and its late answer makes all well again.
const ANSWER_DEADLINE: Duration = Duration::from_secs(15);
/// How often a keeper is asked for a sign of life, while something is owed. At rest nobody is woken.
const PING_EVERY: Duration = Duration::from_secs(10);
/// How often an unverifiable process is looked at again.
const UNVERIFIABLE_PAUSE: Duration = Duration::from_secs(5);
/// How long to wait before the store is tried again after it failed.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// What all lanes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: HostConfig,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keeping: Arc<dyn Keeping>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) blocking: Blocking,
    pub(crate) planted: Option<Planted>,
    pub(crate) registry: Registry,
    pub(crate) hubs: Arc<Hubs>,
    /// Asks for a look for what may go.
    pub(crate) housekeeping: Arc<tokio::sync::Notify>,
    pub(crate) processes: Arc<Semaphore>,
    pub(crate) starting: Arc<Semaphore>,
}

impl Shared {
    /// Unix time in milliseconds.
    pub(crate) fn now(&self) -> i64 {
        self.clock.now()
    }

    /// Deletes a settled keeper's folder; the keeper may take a moment to let its lock go.
    pub(crate) fn remove_folder(&self, folder: KeeperFolder) {
        let keeping = self.keeping.clone();
        self.blocking.run(move || {
            if let Err(error) = keeping.remove(&folder) {
                // The next host finds it settled and removes it.
                tracing::debug!(token = folder.token, %error, "a keeper's folder stays for now");
            }
        });
    }

    /// Whether this fault was planted, for the test that must find it.
    pub(crate) fn has_planted(&self, fault: Planted) -> bool {
        self.planted == Some(fault)
    }
}

/// Gives the answer to a command when it is durable.
pub(crate) type Answer = oneshot::Sender<Result<Answered, HostError>>;

/// What can be sent to a lane.
#[derive(Debug)]
pub(crate) enum LaneMessage {
    /// A command for the session.
    Command {
        command: Box<Command>,
        register: Option<RegisterId>,
        operation: Option<Operation>,
        answer: Answer,
    },
    /// The host is there: look after the process and go on with what is owed. Answered when that is settled.
    Wake { done: oneshot::Sender<()> },
    /// The host goes. With an order, the process is ended first.
    Shutdown { order: Option<CloseOrder>, done: oneshot::Sender<()> },
}

/// An id that the command takes for ever.
#[derive(Debug)]
pub(crate) struct RegisterId {
    pub(crate) kind: &'static str,
    pub(crate) id: String,
    pub(crate) fingerprint: Vec<u8>,
}

/// A session bound to the lane.
#[derive(Debug)]
struct Bound {
    key: SessionKey,
    machine: Session,
    open: OpenRows,
    hub: Arc<Hub>,
    /// What the machine decided since the last batch was submitted.
    out: Out,
    /// (epoch, head) as last submitted.
    submitted: (u64, u64),
    /// The fence as last submitted; checked inside the transaction.
    fence: u64,
    /// Its record exists: the fence can be checked.
    stored: bool,
    /// The status as last submitted.
    shown: Option<mainstay_core::session::StatusReport>,
    /// Rows since the last snapshot.
    since_snapshot: usize,
    agent: String,
    /// The thread scope: agent and account home.
    scope: String,
}

/// The process of a lane.
struct Process {
    key: ProcessKey,
    token: ProcessToken,
    folder: KeeperFolder,
    adapter: Box<dyn Adapter>,
    reader: SpoolReader,
    /// Where the next read begins.
    position: u64,
    /// The position as last committed; told to the keeper.
    committed: u64,
    /// The connection that frames are made for.
    connection: u32,
    last_input: u64,
    /// Committed frames that the keeper has not recorded.
    unrecorded: VecDeque<NewInput>,
    /// How many of them are on their way.
    sent: usize,
    /// The keeper's inbox is full: nothing is sent until it has written something.
    stalled: bool,
    /// How often in a row looking at it proved nothing.
    unclear: u32,
    /// It was told to end, or says that it is ending.
    ending: bool,
    /// The keeper recorded all inputs up to this number.
    recorded: u64,
    trimmed: u64,
    link: Option<Link>,
    /// The keeper has answered our hello.
    greeted: bool,
    /// There may be records that were not read.
    bell: bool,
    /// To be told to the keeper as soon as it can be.
    close: Option<CloseOrder>,
    /// A returning host has not told the session yet.
    adopting: bool,
    /// The transport can be connected again (`ws+unix`).
    reconnects: bool,
    /// Proven gone; settled when everything it said is read.
    final_exit: Option<ProcessExit>,
    permit: Option<tokio::sync::OwnedSemaphorePermit>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process")
            .field("token", &self.token)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

/// A keeper that is being started.
#[derive(Debug)]
struct Spawning {
    task: JoinHandle<SpawnOutcome>,
    cancel: Option<oneshot::Sender<CloseOrder>>,
}

/// The task's own state.
#[derive(Debug)]
pub(crate) struct Lane {
    shared: Arc<Shared>,
    /// There until the lane gives it up.
    seat: Option<Seat>,
    bound: Bound,
    process: Option<Process>,
    /// Reserved in the batch that is being gathered; started by its commit.
    spawning: Option<Spawning>,
    settling: Option<JoinHandle<Settled>>,
    relink_at: Option<Instant>,
    retry_at: Option<Instant>,
    pending: Batch,
    in_flight: Option<InFlight>,
    idle_since: Option<Instant>,
    shutdown: Option<(Option<CloseOrder>, oneshot::Sender<()>)>,
    /// Whether the machine was woken, and whom to tell when that is done.
    wake: Vec<(bool, oneshot::Sender<()>)>,
    leaving: bool,
    /// Stops that left though the store refused to record them: they are journaled as soon as it takes writes again.
    unrecorded_stops: Vec<Command>,
    /// The position whose records the store refused, and how often in a row.
    refused: Option<(u64, u32, String)>,
    /// Why the session cannot be loaded again just now: commands are answered with it.
    broken: Option<HostError>,
    /// A reservation whose commit may or may not have happened.
    doubtful_launch: Option<Box<ReservedFolder>>,
    unstall_at: Option<Instant>,
    /// When the keeper's answer, to a hello or a ping, is missed.
    answer_by: Option<Instant>,
    /// When the keeper is asked for a sign of life, while something is owed.
    ping_at: Option<Instant>,
    /// Unix ms, read once per input or batch.
    now: i64,
    kind: AgentKind,
    capabilities: Capabilities,
    /// The token of the next process.
    fresh: ProcessToken,
}

/// What woke the lane.
enum Woken {
    Committed(Result<mainstay_store::Committed, mainstay_store::WriteError>),
    Message(Option<LaneMessage>),
    Link(Option<LinkEvent>),
    Spawned(SpawnOutcome),
    Settled(Settled),
    Relink,
    Unstall,
    Unanswered,
    Ping,
    Retry,
    Idle,
}

impl Lane {
    /// Runs the lane of a stored session until it has nothing to do.
    pub(crate) async fn run(shared: Arc<Shared>, seat: Seat) {
        let key = seat.key;
        let loading = {
            let shared = shared.clone();
            let blocking = shared.blocking;
            blocking.run(move || Self::load_bound(&shared, key)).await
        };
        let loaded = loading.unwrap_or_else(|_| Err(HostError::ShuttingDown));
        match loaded {
            Ok((bound, row)) => match Self::new(shared.clone(), bound) {
                Ok(new) => {
                    let mut lane = new(seat);
                    lane.begin(row).await;
                    lane.work().await;
                    lane.retire();
                }
                Err(error) => Self::refuse_all(&shared, seat, &error).await,
            },
            Err(error) => {
                tracing::error!(session = %key, %error, "a session cannot be loaded; it waits for repair");
                Self::refuse_all(&shared, seat, &error).await;
            }
        }
    }

    /// Runs the lane of a session that is being created by its first message.
    pub(crate) async fn run_new(shared: Arc<Shared>, created: Created, seat: Seat) {
        let (bound, batch, (answer, reply, operation)) = created.split();
        match Self::new(shared.clone(), bound) {
            Ok(new) => {
                let mut lane = new(seat);
                lane.pending = batch;
                lane.absorb();
                lane.wait_for_commit(answer, reply, operation, None);
                lane.work().await;
                lane.retire();
            }
            Err(error) => {
                // Whoever asked may be gone.
                drop(answer.send(Err(error.clone())));
                Self::refuse_all(&shared, seat, &error).await;
            }
        }
    }

    /// A lane around a session, given its mailbox last, so that a session of an agent that is not registered any more
    /// leaves the mailbox to who answers why.
    fn new(shared: Arc<Shared>, bound: Bound) -> Result<impl FnOnce(Seat) -> Self, HostError> {
        let kind = crate::catalog::configured(&shared.config, &bound.machine.launch.agent)?.kind;
        let capabilities = mainstay_agents::adapter(kind).capabilities().clone();
        let (now, fresh) = (shared.now(), shared.clock.fresh_token());
        Ok(move |seat| Self {
            shared,
            seat: Some(seat),
            bound,
            now,
            kind,
            capabilities,
            fresh,
            process: None,
            spawning: None,
            settling: None,
            relink_at: None,
            retry_at: None,
            pending: Batch::default(),
            in_flight: None,
            idle_since: None,
            shutdown: None,
            wake: Vec::new(),
            leaving: false,
            unrecorded_stops: Vec::new(),
            refused: None,
            broken: None,
            doubtful_launch: None,
            unstall_at: None,
            answer_by: None,
            ping_at: None,
        })
    }

    /// A session that cannot be loaded answers why, and stops nobody else.
    async fn refuse_all(shared: &Arc<Shared>, seat: Seat, error: &HostError) {
        let (key, mut seat) = (seat.key, seat);
        loop {
            match tokio::time::timeout(LANE_IDLE, seat.mailbox.recv()).await {
                Ok(Some(message)) => refuse(message, error),
                Ok(None) => break,
                Err(_) => match shared.registry.leave(seat) {
                    Ok(left) => return forward(shared, key, left),
                    Err(kept) => seat = kept,
                },
            }
        }
        shared.registry.give_up(seat);
    }

    async fn work(&mut self) {
        loop {
            self.submit();
            if self.may_read() && self.ingest() {
                // A batch was read and decided; let others run before the next turn.
                tokio::task::yield_now().await;
                continue;
            }
            self.pump();
            self.answer_wakes();
            if self.finished() {
                break;
            }
            match self.wait().await {
                Woken::Committed(outcome) => self.on_outcome(outcome).await,
                Woken::Message(Some(message)) => self.on_message(message),
                // The registry holds a sender as long as the seat is ours.
                Woken::Message(None) => self.leaving = self.process.is_none() && self.spawning.is_none(),
                Woken::Link(event) => self.on_link(event.unwrap_or(LinkEvent::Closed)),
                Woken::Spawned(outcome) => self.on_spawned(outcome),
                Woken::Settled(settled) => self.on_settled(settled),
                Woken::Relink => self.relink(),
                Woken::Unstall => {
                    self.unstall_at = None;
                    if let Some(process) = &mut self.process {
                        process.stalled = false;
                    }
                }
                Woken::Unanswered => self.on_unanswered(),
                Woken::Ping => self.ping(),
                Woken::Retry => self.reload().await,
                Woken::Idle => self.on_idle(),
            }
        }
    }

    /// Gives back what the lane shared with readers, and tells who waited for its end.
    fn retire(mut self) {
        let left = self.seat.take().map(|seat| self.shared.registry.give_up(seat)).unwrap_or_default();
        if self.shutdown.is_some() {
            for message in left {
                refuse(message, &HostError::ShuttingDown);
            }
        } else {
            forward(&self.shared, self.bound.key, left);
        }
        self.shared.hubs.give_back(self.bound.key, self.bound.hub);
        if let Some((_, done)) = self.shutdown {
            // Nobody waits where the host did not wait for its lanes.
            let _told = done.send(());
        }
    }

    /// Waits for the next thing. Every arm is cancel-safe: it takes nothing that it does not return.
    async fn wait(&mut self) -> Woken {
        let idle_at = self.idle_deadline();
        let live = self.retry_at.is_none();
        // While a reload is due nothing is decided on the state that it will drop: everything waits where it is.
        let heeds_messages = live || self.broken.is_some();
        let Self {
            in_flight,
            seat,
            process,
            spawning,
            settling,
            relink_at,
            retry_at,
            unstall_at,
            answer_by,
            ping_at,
            ..
        } = self;
        let link = process.as_mut().and_then(|process| process.link.as_mut());
        tokio::select! {
            biased;
            outcome = outcome_of(in_flight) => Woken::Committed(outcome),
            event = next_event(link), if live => Woken::Link(event),
            outcome = join_or_pending(spawning.as_mut().map(|spawning| &mut spawning.task)), if live => {
                Woken::Spawned(outcome)
            }
            settled = join_or_pending(settling.as_mut()), if live => Woken::Settled(settled),
            message = next_message(seat), if heeds_messages => Woken::Message(message),
            () = until(*relink_at), if live => Woken::Relink,
            () = until(*unstall_at), if live => Woken::Unstall,
            () = until(*answer_by), if live => Woken::Unanswered,
            () = until(*ping_at), if live => Woken::Ping,
            () = until(*retry_at) => Woken::Retry,
            () = until(idle_at), if live => Woken::Idle,
        }
    }

    fn idle_deadline(&self) -> Option<Instant> {
        let since = self.idle_since?;
        let process_lives = self.process.is_some();
        Some(since + if process_lives { self.shared.config.rest_after } else { LANE_IDLE })
    }

    /// Whether the lane has ended. Sets when it began to be idle.
    fn finished(&mut self) -> bool {
        let committing = self.in_flight.is_some() || !self.pending.is_empty();
        if self.leaving && !committing {
            return true;
        }
        let busy =
            committing || self.spawning.is_some() || self.settling.is_some() || self.retry_at.is_some();
        if let Some((order, _)) = &self.shutdown {
            let beyond_us = self.broken.is_some() || self.bound.machine.unverifiable.is_some();
            let over = self.process.is_none() || order.is_none() || beyond_us;
            if order.is_none() && self.retry_at.is_some() && self.in_flight.is_none() {
                // What would be gathered would be dropped by the reload anyway; the next host reads it again.
                return true;
            }
            if over && (!busy || (beyond_us && self.in_flight.is_none())) {
                return true;
            }
        }
        let owed = !self.bound.machine.nothing_owed() || self.bound.machine.stopping.is_some();
        if !owed || !self.process.as_ref().is_some_and(|process| process.greeted) {
            self.ping_at = None;
        } else if self.ping_at.is_none() && self.answer_by.is_none() {
            self.ping_at = Some(Instant::now() + PING_EVERY);
        }
        let idle = !busy && self.bound.machine.nothing_owed();
        if !idle {
            self.idle_since = None;
        } else if self.idle_since.is_none() {
            self.idle_since = Some(Instant::now());
        }
        false
    }

    fn on_idle(&mut self) {
        self.idle_since = None;
        if self.process.is_some() {
            // An agent that cannot take its conversation up again is not put to rest: that would end the conversation.
            let resumable =
                self.bound.machine.agent.as_ref().is_none_or(|agent| agent.resumable != Some(false));
            if resumable {
                self.close_in_order(CloseOrder::Idle);
            }
            return;
        }
        let Some(seat) = self.seat.take() else { return };
        match self.shared.registry.leave(seat) {
            Ok(left) => {
                forward(&self.shared, self.bound.key, left);
                self.leaving = true;
            }
            Err(seat) => self.seat = Some(seat),
        }
    }
}

/// Hands messages that came too late for one lane to the next.
fn forward(shared: &Arc<Shared>, key: SessionKey, messages: Vec<LaneMessage>) {
    if messages.is_empty() {
        return;
    }
    let shared = shared.clone();
    tokio::spawn(async move {
        for message in messages {
            crate::host::send_to_lane(&shared, key, message).await;
        }
    });
}

/// Answers a message that cannot be carried out. Whoever asked may be gone.
fn refuse(message: LaneMessage, error: &HostError) {
    match message {
        LaneMessage::Command { answer, .. } => drop(answer.send(Err(error.clone()))),
        LaneMessage::Wake { done, .. } | LaneMessage::Shutdown { done, .. } => {
            let _told = done.send(());
        }
    }
}

async fn next_event(link: Option<&mut Link>) -> Option<LinkEvent> {
    match link {
        Some(link) => link.events.recv().await,
        None => std::future::pending().await,
    }
}

async fn next_message(seat: &mut Option<Seat>) -> Option<LaneMessage> {
    match seat {
        Some(seat) => seat.mailbox.recv().await,
        None => std::future::pending().await,
    }
}

async fn outcome_of(
    in_flight: &mut Option<InFlight>,
) -> Result<mainstay_store::Committed, mainstay_store::WriteError> {
    match in_flight {
        Some(in_flight) => (&mut in_flight.outcome).await,
        None => std::future::pending().await,
    }
}

async fn join_or_pending<T: FromLost>(task: Option<&mut JoinHandle<T>>) -> T {
    match task {
        Some(task) => task.await.unwrap_or_else(|_| T::lost()),
        None => std::future::pending().await,
    }
}

/// What a background step gave that panicked or was cancelled.
trait FromLost {
    fn lost() -> Self;
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The row of a stored session, or why there is none.
fn stored_row(store: &dyn Store, key: SessionKey) -> Result<SessionRow, HostError> {
    store.session(key)?.ok_or_else(|| HostError::SessionUnknown(key.to_string()))
}
