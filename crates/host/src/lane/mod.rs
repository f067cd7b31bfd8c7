//! A lane: the task that owns an agent process, its adapter and the machines of the sessions bound to it.
//!
//! It works on the state as it will be; what it decided leaves with the commit. At most one batch is in flight; what
//! is decided meanwhile gathers for the next. If a commit fails, machines and adapter are dropped and loaded again:
//! position and outbox make that safe.

mod batch;
mod decide;
mod ingest;
mod lifecycle;
mod member;
mod pace;
mod sharing;
mod story;
mod takeover;

use crate::config::HostConfig;
use crate::error::HostError;
use crate::host::{Answered, Operation};
use crate::hub::Hubs;
use crate::keeping::{Blocking, Clock, Keeping, Planted, Settled};
use crate::link::{Link, LinkEvent};
use crate::metrics::Metrics;
use crate::registry::{JOINS, JoinSender, Registry, Seat};
use crate::room::Room;
use batch::{Batch, InFlight};
use lifecycle::SpawnOutcome;
pub(crate) use lifecycle::chain;
use mainstay_agents::{Adapter, AgentKind, Translated};
use mainstay_core::agent::AgentInfo;
use mainstay_core::process::{CloseOrder, ProcessExit, ProcessId};
use mainstay_core::session::{Input, Phase};
use mainstay_core::{Capabilities, Command, ProcessToken};
use mainstay_keeper::{KeeperFolder, ReservedFolder, SpoolReader};
use mainstay_store::{NewInput, ProcessKey, SessionKey, Store};
pub(crate) use member::{Created, Join};
use member::{Member, Moving, Parting};
pub(crate) use member::{scope_of, thread_scope};
use sharing::{Offer, Seating};
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
pub(crate) use takeover::Adoption;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A session at rest needs no lane after this long without a message: it costs no task.
const LANE_IDLE: Duration = Duration::from_millis(50);
/// A session that left a shared process stays in its lane for this long: Codex lets a thread go about 65 seconds after
/// its last subscriber (measured, codex.md 8), and until then only this process can take it up again.
const RELEASE_WAIT: Duration = Duration::from_secs(90);
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
/// A process that was asked to make room and is held by what it left running is asked again after this long: until then
/// those are asked that have been idle for less.
const HELD_LOOK_EVERY: Duration = Duration::from_secs(30);
/// How often the time is compared with what a session waits for: timers stand still while the machine sleeps, deadlines do not.
const CLOCK_LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long to wait before the store is tried again after it failed.
const STORE_PAUSE: Duration = Duration::from_millis(500);

/// What all lanes share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: HostConfig,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) keeping: Arc<dyn Keeping>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Both clocks when the host began: Unix ms, and ms of the machine's own time.
    pub(crate) began: (i64, i64),
    pub(crate) blocking: Blocking,
    pub(crate) planted: Option<Planted>,
    pub(crate) registry: Registry,
    pub(crate) hubs: Arc<Hubs>,
    pub(crate) metrics: Arc<Metrics>,
    /// Asks for a look for what may go.
    pub(crate) housekeeping: Arc<tokio::sync::Notify>,
    pub(crate) processes: Arc<Semaphore>,
    pub(crate) starting: Arc<Semaphore>,
    pub(crate) room: Room,
    pub(crate) catalogues: crate::catalogues::Catalogues,
    pub(crate) terminals: crate::terminals::Terminals,
}

impl Shared {
    /// Unix time in milliseconds.
    pub(crate) fn now(&self) -> i64 {
        self.clock.now()
    }

    /// Unix time in milliseconds, but no later than the host's own time says: what is removed by its age is not removed
    /// because somebody set the clock forward.
    pub(crate) fn no_later_than_passed(&self) -> i64 {
        let (wall, steady) = self.began;
        self.now().min(wall.saturating_add(self.clock.steady().saturating_sub(steady)))
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
    /// Bind the session to a living process that its record does not know.
    TakeOver { adoption: Box<Adoption>, operation: Option<Operation>, answer: Answer },
    /// An unclaimed keeper knows a later owner of the session than its record does. Answered when that is settled.
    FenceAhead { known: u64, done: oneshot::Sender<()> },
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

/// The process of a lane.
struct Process {
    key: ProcessKey,
    token: ProcessToken,
    /// The fence of the acquisition that it was started for.
    fence: u64,
    /// The launch profile that sessions must have to share it.
    profile: String,
    /// It can be proven neither alive nor gone.
    doubted: bool,
    /// A user gave it up for one of its sessions: no session is bound to it any more that is not.
    given_up: bool,
    /// Who it is, once its keeper has said so.
    identity: Option<ProcessId>,
    /// What its handshake said, for sessions that come later.
    ready: Option<AgentInfo>,
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
    /// Why its keeper, started by this lane, did not come up. Where it is proven unused then, the start failed: one that is
    /// tried again at once would fail in the same way, without end.
    did_not_come_up: Option<String>,
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
    /// The order that stands, or waits for its commit.
    asked_to_close: Option<CloseOrder>,
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
    members: Vec<Member>,
    /// Where the next look for messages begins, so that no session's mailbox starves another's.
    heard: usize,
    /// By which sessions come.
    joins: mpsc::Receiver<Join>,
    /// Handed to the registry, so that they find here.
    joined_by: JoinSender,
    /// The lane's offer to sessions of the same profile.
    offer: Option<Offer>,
    process: Option<Process>,
    /// Reserved in the batch that is being gathered; started by its commit.
    spawning: Option<Spawning>,
    settling: Option<JoinHandle<Settled>>,
    relink_at: Option<Instant>,
    retry_at: Option<Instant>,
    pending: Batch,
    in_flight: Option<InFlight>,
    /// All sessions were told that the host goes: how the process is ended first, if it is.
    shutdown: Option<Option<CloseOrder>>,
    /// The records that the store refused.
    refused: Option<Refused>,
    /// While records are decided that one session may have nothing of.
    leaves_out: Option<LeavesOut>,
    /// A reservation whose commit may or may not have happened.
    doubtful_launch: Option<Box<ReservedFolder>>,
    unstall_at: Option<Instant>,
    /// When the keeper's answer, to a hello or a ping, is missed.
    answer_by: Option<Instant>,
    /// When the keeper is asked for a sign of life, while something is owed.
    ping_at: Option<Instant>,
    /// Another start waits for room, and this lane's process was idle longest.
    rest_asked: Arc<Notify>,
    /// The process, and since when it is idle, as those who look for room know it.
    idle_noted: Option<(ProcessKey, Option<Instant>)>,
    /// Until then the process is not offered to those who look for room.
    held_until: Option<Instant>,
    /// Unix ms, read once per input or batch ([`Lane::read_clock`]).
    now: i64,
    pace: pace::Pace,
    kind: AgentKind,
    capabilities: Capabilities,
    /// The token of the next process.
    fresh: ProcessToken,
}

/// Records that the store refused.
#[derive(Debug)]
struct Refused {
    /// Where they begin.
    position: u64,
    /// How often in a row.
    times: u32,
    why: String,
    /// The session because of which, where the store could say.
    culprit: Option<SessionKey>,
}

/// The session that is left out of what is being decided, and why.
#[derive(Debug)]
struct LeavesOut {
    session: SessionKey,
    why: String,
}

/// What woke the lane.
enum Woken {
    Committed(Result<mainstay_store::Committed, mainstay_store::WriteError>),
    Message(usize, Option<LaneMessage>),
    Joined(Option<Join>),
    Link(Option<LinkEvent>),
    Spawned(SpawnOutcome),
    Settled(Settled),
    Relink,
    Unstall,
    Unanswered,
    Ping,
    Retry,
    RestAsked,
    Due,
    Idle,
}

impl Lane {
    /// Runs the lane of a stored session until it has nothing to do, or brings the session to the lane of its process.
    pub(crate) async fn run(shared: Arc<Shared>, seat: Seat) {
        let mut seat = seat;
        loop {
            let key = seat.key;
            let loading = {
                let shared = shared.clone();
                shared.blocking.run(move || Member::load(&shared, key))
            };
            let loaded = loading.await.unwrap_or_else(|_| Err(HostError::ShuttingDown));
            let lane = loaded.and_then(|member| Ok((Self::new(shared.clone(), &member)?, member)));
            let (mut lane, mut member) = match lane {
                Ok(loaded) => loaded,
                Err(error) => {
                    tracing::error!(session = %key, %error, "a session cannot be loaded; it waits for repair");
                    return Self::refuse_all(&shared, seat, &error).await;
                }
            };
            match member.claims {
                None => {
                    member.seat = Some(seat);
                    lane.members.push(member);
                    lane.settle_unused(0);
                }
                Some(process) => match lane.take_seats(process, member, seat).await {
                    Seating::Taken => lane.take_up(process).await,
                    // Its lane was just ending: the session is read again.
                    Seating::Again(returned) => {
                        seat = returned;
                        tokio::time::sleep(LANE_IDLE).await;
                        continue;
                    }
                    Seating::HandedOver => return,
                },
            }
            lane.work().await;
            return lane.retire().await;
        }
    }

    /// Runs the lane of a session that is being created.
    pub(crate) async fn run_new(shared: Arc<Shared>, created: Created, seat: Seat) {
        Self::run_moving(shared, created.seated(seat), true).await;
    }

    /// A lane around a session that brings what it was asked. It may go on to a lane that has its profile's process.
    async fn run_moving(shared: Arc<Shared>, moving: Moving, may_join: bool) {
        match Self::new(shared.clone(), &moving.member) {
            Ok(mut lane) => {
                let Some(moving) = lane.place_moving(moving, may_join) else { return };
                lane.admit(moving);
                lane.work().await;
                lane.retire().await;
            }
            Err(error) => {
                let Moving { member, bears } = moving;
                sharing::refuse_bearer(bears, &error);
                if let Some(seat) = member.seat {
                    Self::refuse_all(&shared, seat, &error).await;
                }
            }
        }
    }

    /// An empty lane for sessions like this one. A session of an agent that is not registered any more gets none.
    fn new(shared: Arc<Shared>, member: &Member) -> Result<Self, HostError> {
        let kind = crate::catalog::configured(&shared.config, &member.machine.launch.agent)?.kind;
        let capabilities = mainstay_agents::adapter(kind).capabilities().clone();
        let (now, fresh) = (shared.now(), shared.clock.fresh_token());
        let pace = pace::Pace::new(shared.clock.as_ref());
        let (joined_by, joins) = mpsc::channel(JOINS);
        Ok(Self {
            shared,
            members: Vec::new(),
            heard: 0,
            joins,
            joined_by,
            offer: None,
            now,
            pace,
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
            shutdown: None,
            refused: None,
            leaves_out: None,
            doubtful_launch: None,
            unstall_at: None,
            answer_by: None,
            ping_at: None,
            rest_asked: Arc::default(),
            idle_noted: None,
            held_until: None,
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
            self.go_on_leaving();
            // Also where the last one that was not told has just left.
            self.begin_shutdown();
            self.answer_wakes();
            if self.can_submit() {
                if self.has_gathered() {
                    continue;
                }
                // What was decided came to nothing.
                self.members.iter_mut().for_each(|member| member.touched = false);
            }
            self.part();
            self.keep_offer();
            if self.finished() {
                break;
            }
            match self.wait().await {
                Woken::Committed(outcome) => self.on_outcome(outcome).await,
                Woken::Message(at, Some(message)) => self.on_message(at, message),
                // The registry holds a sender as long as the seat is ours.
                Woken::Message(at, None) => self.members[at].parting = Some(Parting::AtRest),
                Woken::Joined(Some(join)) => self.on_join(join),
                // The lane holds a sender itself.
                Woken::Joined(None) => {}
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
                Woken::RestAsked => self.on_rest_asked(),
                Woken::Due => self.on_due(),
                Woken::Idle => self.on_idle(),
            }
        }
    }

    /// Gives back what the lane shared with readers, and tells who waited for its end.
    async fn retire(mut self) {
        self.withdraw_offer();
        if let Some(process) = &self.process {
            self.shared.registry.disown(process.key, &self.joined_by);
        }
        if let Some((process, _)) = self.idle_noted {
            self.shared.room.note(process, None, &self.rest_asked);
        }
        for member in std::mem::take(&mut self.members) {
            self.release(member);
        }
        self.joins.close();
        while let Some(join) = self.joins.recv().await {
            self.send_on(join);
        }
    }

    /// Gives a session's place up: what still waits in its mailbox goes to its next lane.
    fn release(&self, mut member: Member) {
        let left = member.seat.take().map(|seat| self.shared.registry.give_up(seat)).unwrap_or_default();
        match member.shutdown.take() {
            Some((_, done)) => {
                for message in left {
                    refuse(message, &HostError::ShuttingDown);
                }
                // Nobody waits where the host did not wait for its lanes.
                let _told = done.send(());
            }
            None => forward(&self.shared, member.key, left),
        }
        self.shared.hubs.give_back(member.key, member.hub);
    }

    /// Waits for the next thing. Every arm is cancel-safe: it takes nothing that it does not return.
    async fn wait(&mut self) -> Woken {
        let due_at = self.due_at();
        let rests = self.members.iter().filter_map(|member| self.idle_deadline(member));
        let idle_at = rests.chain(self.held_until).min();
        let live = self.retry_at.is_none();
        let Self {
            in_flight,
            members,
            heard,
            joins,
            process,
            spawning,
            settling,
            relink_at,
            retry_at,
            unstall_at,
            answer_by,
            ping_at,
            rest_asked,
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
            (at, message) = next_message(members, heard, live) => Woken::Message(at, message),
            join = joins.recv(), if live => Woken::Joined(join),
            () = until(*relink_at), if live => Woken::Relink,
            () = until(*unstall_at), if live => Woken::Unstall,
            () = until(*answer_by), if live => Woken::Unanswered,
            () = until(*ping_at), if live => Woken::Ping,
            () = until(*retry_at) => Woken::Retry,
            () = rest_asked.notified(), if live => Woken::RestAsked,
            () = until(due_at), if live => Woken::Due,
            () = until(idle_at), if live => Woken::Idle,
        }
    }

    /// Takes the time for what is decided next. The wall clock is not followed while a session waits for a time or a turn
    /// runs: it may be set meanwhile.
    fn read_clock(&mut self) {
        let of_session = |member: &Member| {
            member.broken.is_none()
                && (!member.machine.turns.is_empty() || member.machine.next_deadline().is_some())
        };
        let of_adapter = |process: &Process| process.adapter.waits_until().is_some();
        let measures = self.members.iter().any(of_session) || self.process.as_ref().is_some_and(of_adapter);
        self.now = self.pace.now(self.shared.clock.as_ref(), measures);
    }

    /// When a session or the adapter wants to know the time next. The machine may sleep meanwhile, so it is looked at again in between.
    fn due_at(&mut self) -> Option<Instant> {
        let wanted = self.members.iter().filter(|member| member.broken.is_none());
        let of_adapter = self.process.as_ref().and_then(|process| process.adapter.waits_until());
        let at = wanted.filter_map(|member| member.machine.next_deadline()).chain(of_adapter).min()?;
        self.read_clock();
        let away = u64::try_from(at.saturating_sub(self.now)).unwrap_or(0);
        Some(Instant::now() + Duration::from_millis(away).min(CLOCK_LOOK_EVERY))
    }

    fn on_due(&mut self) {
        self.read_clock();
        for at in 0..self.members.len() {
            let member = &self.members[at];
            let due = member.machine.next_deadline().is_some_and(|deadline| deadline <= self.now);
            if due && member.broken.is_none() {
                self.decide_own(at, Input::Tick);
            }
        }
        if let Some(process) = self.process.as_mut().filter(|process| process.adapter.waits_until().is_some())
        {
            let mut translated = Translated::default();
            process.adapter.on_time(self.now, &mut translated);
            self.route(&mut translated);
            self.pending.touched = true;
        }
    }

    /// When a session has been idle for long enough.
    fn idle_deadline(&self, member: &Member) -> Option<Instant> {
        let since = member.idle_since?;
        let patience = match (member.machine.phase, &self.process) {
            (Phase::Free, Some(_)) => RELEASE_WAIT,
            (Phase::Free, None) => LANE_IDLE,
            _ => self.shared.config.rest_after,
        };
        Some(since + patience)
    }

    /// Whether the lane has ended. Sets when its sessions began to be idle.
    fn finished(&mut self) -> bool {
        let committing = self.in_flight.is_some() || !self.pending.is_empty();
        if self.members.is_empty() && self.process.is_none() && self.spawning.is_none() && !committing {
            return true;
        }
        let busy =
            committing || self.spawning.is_some() || self.settling.is_some() || self.retry_at.is_some();
        if let Some(order) = self.shutdown {
            let beyond_us = self
                .members
                .iter()
                .any(|member| member.broken.is_some() || member.machine.unverifiable.is_some());
            let over = self.process.is_none() || order.is_none() || beyond_us;
            if order.is_none() && self.retry_at.is_some() && self.in_flight.is_none() {
                // What would be gathered would be dropped by the reload anyway; the next host reads it again.
                return true;
            }
            if over && (!busy || (beyond_us && self.in_flight.is_none())) {
                return true;
            }
        }
        if self.retry_at.is_none()
            && !self.members.is_empty()
            && self.members.iter().all(|member| member.broken.is_some())
        {
            self.retry_at = Some(Instant::now() + STORE_PAUSE);
        }
        let owed =
            self.bound().any(|member| !member.machine.nothing_owed() || member.machine.stopping.is_some());
        if !owed || !self.process.as_ref().is_some_and(|process| process.greeted) {
            self.ping_at = None;
        } else if self.ping_at.is_none() && self.answer_by.is_none() {
            self.ping_at = Some(Instant::now() + PING_EVERY);
        }
        let waiting = self.spawning.is_some() || self.settling.is_some() || self.retry_at.is_some();
        // Somebody sits before the agent's own terminal, which may be at work in any of the process's conversations.
        let watched = self.bound().any(|member| self.shared.terminals.has(member.key));
        for member in &mut self.members {
            let needed = watched && member.claims.is_some();
            let idle = !waiting && !needed && member.is_still() && member.machine.nothing_owed();
            if !idle {
                member.idle_since = None;
            } else if member.idle_since.is_none() {
                member.idle_since = Some(Instant::now());
            }
        }
        self.note_idleness();
        false
    }

    /// Tells who looks for room since when the process is needed by nobody.
    fn note_idleness(&mut self) {
        let noted = self.process.as_ref().map(|process| (process.key, self.process_idle_since(process)));
        if noted == self.idle_noted {
            return;
        }
        if let Some((former, _)) = self.idle_noted
            && noted.is_none_or(|(key, _)| key != former)
        {
            self.shared.room.note(former, None, &self.rest_asked);
        }
        if let Some((key, since)) = noted {
            self.shared.room.note(key, since, &self.rest_asked);
        }
        self.idle_noted = noted;
    }

    /// None: a session needs it, or it is ending already.
    fn process_idle_since(&self, process: &Process) -> Option<Instant> {
        let rests = |member: &Member| {
            let held = self.shared.terminals.count(member.key) > 0;
            let may_rest = member.is_resumable() && member.machine.stopping.is_none() && !held;
            member.idle_since.filter(|_| may_rest)
        };
        let since: Option<Vec<Instant>> = self.bound().map(rests).collect();
        since?.into_iter().max().filter(|_| process.final_exit.is_none() && self.held_until.is_none())
    }

    /// Another start waits for room: this process rests, if nobody needs it still.
    fn on_rest_asked(&mut self) {
        let Some(process) = &self.process else { return };
        // Noted again, if it stays.
        self.idle_noted = Some((process.key, None));
        let needed = |member: &Member| member.idle_since.is_none() || !member.is_resumable();
        if self.bound().any(needed) {
            return;
        }
        if self.process_is_held() {
            self.held_until = Some(Instant::now() + HELD_LOOK_EVERY);
            return;
        }
        for at in self.bound_places() {
            self.members[at].idle_since = None;
            self.close_in_order(at, CloseOrder::Idle);
        }
    }

    fn on_idle(&mut self) {
        let now = Instant::now();
        self.held_until = self.held_until.filter(|until| *until > now);
        for at in 0..self.members.len() {
            if self.idle_deadline(&self.members[at]).is_none_or(|deadline| deadline > now) {
                continue;
            }
            let member = &mut self.members[at];
            member.idle_since = None;
            if member.machine.phase == Phase::Free {
                member.parting.get_or_insert(Parting::AtRest);
            } else if member.is_resumable() && !self.is_held(at) {
                // Another agent is not put to rest: that would end the conversation. One that is held is looked at again
                // after the same time.
                self.close_in_order(at, CloseOrder::Idle);
            }
        }
    }

    /// Whether something holds a session's agent to which nothing is owed. What the agent left running is nobody's in a
    /// process with others: it holds the last one that stays, with which the process would end. Reads `/proc`: only for
    /// an agent that is to be closed otherwise.
    fn is_held(&self, at: usize) -> bool {
        if self.shared.terminals.count(self.members[at].key) > 0 {
            return true;
        }
        let key = self.members[at].key;
        let stays = |member: &Member| member.key != key && member.machine.stopping.is_none();
        self.is_bound(at) && !self.bound().any(stays) && self.left_running()
    }

    /// Whether something holds the process though nothing is owed in any of its sessions. Reads `/proc`, as above.
    pub(super) fn process_is_held(&self) -> bool {
        self.bound().any(|member| self.shared.terminals.count(member.key) > 0) || self.left_running()
    }

    fn left_running(&self) -> bool {
        self.process.as_ref().is_some_and(|process| self.shared.keeping.left_running(&process.folder) > 0)
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
        LaneMessage::Command { answer, .. } | LaneMessage::TakeOver { answer, .. } => {
            drop(answer.send(Err(error.clone())));
        }
        LaneMessage::Wake { done, .. }
        | LaneMessage::FenceAhead { done, .. }
        | LaneMessage::Shutdown { done, .. } => {
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

/// The next message of any session, and whose it is: each in its turn.
async fn next_message(members: &mut [Member], heard: &mut usize, live: bool) -> (usize, Option<LaneMessage>) {
    std::future::poll_fn(|context| {
        for step in 1..=members.len() {
            let at = (*heard + step) % members.len();
            let member = &mut members[at];
            if member.heeds(live)
                && let Some(seat) = &mut member.seat
                && let Poll::Ready(message) = seat.mailbox.poll_recv(context)
            {
                *heard = at;
                return Poll::Ready((at, message));
            }
        }
        Poll::Pending
    })
    .await
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
