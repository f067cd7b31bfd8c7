//! The host: what the API and the command line talk to.

use crate::catalog;
use crate::catalogues::Catalogues;
use crate::config::HostConfig;
use crate::error::{HostError, StartError};
use crate::hub::Hubs;
use crate::keeping::{Blocking, Keepers, MachineClock, Planted, Seams};
use crate::lane::{Created, Lane, LaneMessage, RegisterId, Shared};
use crate::metrics::Metrics;
use crate::recovery;
use crate::registry::Registry;
use crate::retention;
use crate::rollouts::Rollouts;
use crate::subscription::{FeedSubscription, Subscription};
use mainstay_core::content::{ContentBlock, Delivery};
use mainstay_core::operation::{Admission, Fingerprint, admit};
use mainstay_core::process::CloseOrder;
use mainstay_core::session::{Limits, Past};
use mainstay_core::work::ThreadSource;
use mainstay_core::{
    AgentName, Capabilities, Command, Cursor, LaunchSnapshot, Refusal, RefusalCode, Reply, Session,
    SessionId, SessionOptions, SubmissionId,
};
use mainstay_keeper::KeepersDir;
use mainstay_store::{
    Rows, SessionFilter, SessionKey, SessionRow, SqliteOptions, SqliteStore, Store, StoreMode,
};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{Semaphore, oneshot};

/// The database's name in its home.
pub const DATABASE: &str = "mainstay.db";
/// How long a host waits for its lanes when it ends: longer than every ladder, so that only what cannot be ended is left.
const SHUTDOWN_DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);

/// Makes the response to an operation, so that it can be recorded in the transaction that carries it out. It gets the
/// reply, the session as it will be, and the cursor behind its events.
pub type Respond = Box<dyn FnOnce(&Reply, &Session, Cursor) -> (u16, Vec<u8>) + Send + Sync>;

/// A client's idempotency key with the request that it names.
pub struct Operation {
    /// The key.
    pub key: String,
    /// The request.
    pub fingerprint: Fingerprint,
    /// The response.
    pub respond: Respond,
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation").field("key", &self.key).finish_non_exhaustive()
    }
}

/// What became of a command.
#[derive(Debug)]
pub struct Answered {
    /// The session's reply; `Done` for a replay.
    pub reply: Reply,
    /// Where its events end. A reader after this cursor sees what follows.
    pub cursor: Cursor,
    /// The response of its operation.
    pub response: Option<(u16, Vec<u8>)>,
    /// The operation was carried out before; nothing was done now.
    pub replayed: bool,
    /// False for a stop that was carried out though the store refused to record it.
    pub recorded: bool,
}

/// A session to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewSessionRequest {
    /// The caller's id for it.
    pub id: Option<SessionId>,
    /// The agent.
    pub agent: AgentName,
    /// The folder.
    pub cwd: String,
    /// For people.
    pub name: Option<String>,
    /// To begin with.
    pub options: SessionOptions,
    /// Budgets and default answers; what is absent is what the host's configuration says.
    pub limits: Limits,
    /// Further folders.
    pub additional_directories: Vec<String>,
    /// As ACP names them.
    pub mcp_servers: Vec<Value>,
    /// For the agent.
    pub instructions: Option<String>,
    /// The account home.
    pub account_home: Option<String>,
    /// Where the first conversation comes from; None: it is made anew.
    pub source: Option<ThreadSource>,
    /// The first message.
    pub prompt: Option<(SubmissionId, Vec<ContentBlock>)>,
}

/// How a host ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Agents work on; the next host takes them over.
    Detach,
    /// Idle agents are closed, busy ones work on.
    CloseIdle,
    /// Every agent is ended.
    Kill,
}

/// What a starting host found.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// Keeper folders that no record claims: their tokens.
    pub unclaimed: Vec<String>,
}

/// A running host.
#[derive(Debug)]
pub struct Host {
    shared: Arc<Shared>,
    /// Held for life: one host per home.
    _lock: Option<HomeLock>,
    operations: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    unclaimed: Mutex<Vec<String>>,
    recovered: tokio::sync::watch::Receiver<bool>,
}

impl Host {
    /// Takes the home, opens the store, and begins to look after what a former host left. Must run on a tokio runtime.
    ///
    /// # Errors
    /// [`StartError`]; another host's home is left alone.
    pub async fn start(config: HostConfig) -> Result<Arc<Self>, StartError> {
        tokio::task::spawn_blocking(move || Self::open(config))
            .await
            .map_err(|_| StartError::Home {
                path: PathBuf::new(),
                source: std::io::Error::other("the start was cancelled"),
            })?
            .map(Opening::begin)
    }

    fn open(config: HostConfig) -> Result<Opening, StartError> {
        let lock = lock_home(&config.home)?;
        let options = SqliteOptions { stream_flush: config.stream_flush, ..SqliteOptions::default() };
        let opened = SqliteStore::open(config.home.join(DATABASE), options)?;
        let store: Arc<dyn Store> = Arc::new(opened.store);
        // A store that takes no writes adds nothing to any journal either.
        if let Some(rewound) = opened.rewound.filter(|_| store.mode() == StoreMode::ReadWrite) {
            recovery::acknowledge(store.as_ref(), rewound).map_err(StartError::Rewound)?;
        }
        let feed_head = store.feed_head()?;
        let keeping = Keepers {
            dir: KeepersDir::new(config.home.join("keepers")),
            program: config.keeper_program.clone(),
            args: config.keeper_args.clone(),
        };
        let seams = Seams {
            store,
            keeping: Arc::new(keeping),
            clock: Arc::new(MachineClock),
            blocking: Blocking::Pool,
            planted: None,
        };
        Opening::new(config, seams, feed_head, Some(lock))
    }

    /// Begins on another world than this machine, for the simulator: no home is taken and no file opened here.
    ///
    /// # Errors
    /// [`StartError::Read`].
    #[doc(hidden)]
    pub fn with(config: HostConfig, seams: Seams) -> Result<Arc<Self>, StartError> {
        let feed_head = seams.store.feed_head()?;
        Ok(Opening::new(config, seams, feed_head, None)?.begin())
    }

    /// Every session that a former host left with a process or with something owed has been looked after.
    pub async fn recovered(&self) {
        let mut recovered = self.recovered.clone();
        // The sender lives until it has said so.
        let _said = recovered.wait_for(|done| *done).await;
    }

    /// What the start found, without what was dealt with since.
    #[must_use]
    pub fn found(&self) -> Found {
        Found { unclaimed: self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner).clone() }
    }

    /// A user dealt with this keeper.
    pub(crate) fn forget_unclaimed(&self, token: &str) {
        self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| known != token);
    }

    pub(crate) fn keeping(&self) -> &dyn crate::keeping::Keeping {
        self.shared.keeping.as_ref()
    }

    /// Runs blocking work that needs the host off the async threads.
    pub(crate) async fn blocking_read<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, HostError> + Send + 'static,
    ) -> Result<T, HostError> {
        let host = self.clone();
        self.shared.blocking.run(move || work(&host)).await.map_err(|_| HostError::ShuttingDown)?
    }

    /// The configuration in force.
    #[must_use]
    pub fn config(&self) -> &HostConfig {
        &self.shared.config
    }

    /// The store, for reads.
    #[must_use]
    pub fn store(&self) -> Arc<dyn Store> {
        self.shared.store.clone()
    }

    pub(crate) fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Unix time in milliseconds, as the host records it.
    #[must_use]
    pub fn now(&self) -> i64 {
        self.shared.now()
    }

    /// A new unique id with a prefix.
    #[must_use]
    pub fn fresh_id(prefix: &str) -> String {
        format!("{prefix}_{}", uuid::Uuid::now_v7().simple())
    }

    /// Runs a blocking read of the store off the async threads.
    ///
    /// # Errors
    /// What the read gives.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&dyn Store) -> Result<T, mainstay_store::ReadError> + Send + 'static,
    ) -> Result<T, HostError> {
        let store = self.store();
        let done = self.shared.blocking.run(move || read(store.as_ref())).await;
        Ok(done.map_err(|_| HostError::ShuttingDown)??)
    }

    /// The record of a session.
    ///
    /// # Errors
    /// [`HostError::SessionUnknown`] for one that never was or is deleted.
    pub async fn session(&self, id: &str) -> Result<SessionRow, HostError> {
        let wanted = id.to_owned();
        let row = self.read(move |store| store.session_by_id(&wanted)).await?;
        row.filter(|row| !row.deleted).ok_or_else(|| HostError::SessionUnknown(id.to_owned()))
    }

    /// Records of sessions, newest first.
    ///
    /// # Errors
    /// [`HostError::Read`].
    pub async fn sessions(
        &self,
        filter: SessionFilter,
        after: Option<SessionKey>,
        limit: usize,
    ) -> Result<Rows<SessionRow>, HostError> {
        self.read(move |store| store.sessions(&filter, after, limit)).await
    }

    /// The session's whole state, folded from the store (committed state only). Starts nothing.
    ///
    /// # Errors
    /// [`HostError`] where there is no such session or it cannot be read.
    pub async fn state(&self, id: &str) -> Result<(SessionRow, Session), HostError> {
        let wanted = id.to_owned();
        let store = self.store();
        let folding = self.shared.blocking.run(move || {
            // A commit between the two reads shows as a head that does not match: read again.
            let mut tries = 0;
            loop {
                let row = store.session_by_id(&wanted)?.filter(|row| !row.deleted);
                let row = row.ok_or_else(|| HostError::SessionUnknown(wanted.clone()))?;
                match crate::load::load(store.as_ref(), &row) {
                    Ok(loaded) => return Ok((row, loaded.session)),
                    Err(HostError::Unreadable { .. }) if tries < 20 => tries += 1,
                    Err(error) => return Err(error),
                }
            }
        });
        let read = folding.await.map_err(|_| HostError::ShuttingDown)?;
        if let Ok((row, _)) = &read
            && self.shared.has_planted(Planted::ReadingStarts)
        {
            let (answer, _unread) = oneshot::channel();
            let command = Box::new(Command::Start);
            let start = LaneMessage::Command { command, register: None, operation: None, answer };
            send_to_lane(&self.shared, row.key, start).await;
        }
        read
    }

    /// Makes a session, and hands it its first message if there is one.
    ///
    /// # Errors
    /// [`HostError`]; nothing was made.
    pub async fn create(
        self: &Arc<Self>,
        request: NewSessionRequest,
        operation: Option<Operation>,
    ) -> Result<(SessionId, Answered), HostError> {
        let submission = request.prompt.as_ref().map(|(submission, _)| submission.to_string());
        let made = self.make(request, operation).await;
        let id = made.as_ref().map_or("", |(id, _)| id.as_str());
        log_command(id, submission.as_deref(), made.as_ref().map(|(_, answered)| answered));
        self.count_command(made.as_ref().map(|(_, answered)| answered));
        made
    }

    async fn make(
        self: &Arc<Self>,
        request: NewSessionRequest,
        operation: Option<Operation>,
    ) -> Result<(SessionId, Answered), HostError> {
        let _alone = self.alone(operation.as_ref()).await;
        if let Some(replay) = self.replay(operation.as_ref()).await? {
            return Ok((SessionId(String::new()), replay));
        }
        let launch = catalog::pin(&self.shared.config, &request)?;
        let request = NewSessionRequest { limits: request.limits.or(&self.shared.config.limits), ..request };
        let id = request.id.clone().unwrap_or_else(|| SessionId(Self::fresh_id("ses")));
        let _same_session = self.turn(&format!("session {id}")).await;
        let fingerprint = creation_fingerprint(&request);
        if request.id.is_some()
            && let Some(owner) = {
                let wanted = id.0.clone();
                self.read(move |store| store.id_owner("session", &wanted)).await?
            }
        {
            if owner.fingerprint != fingerprint {
                return Err(HostError::IdConflict { what: "session", id: id.0 });
            }
            let row = self.session(&id.0).await?;
            let cursor = Cursor { epoch: row.epoch, seq: row.head };
            let answered =
                Answered { reply: Reply::Done, cursor, response: None, replayed: true, recorded: true };
            return Ok((id, answered));
        }
        // Only now: the session of a creation that is asked for again has the conversation itself.
        self.refuse_taken_thread(&launch).await?;
        let past = self.past_of(&launch).await?;
        let (answer, answered) = oneshot::channel();
        let created =
            Created::new(&self.shared, id.clone(), launch, request, fingerprint, past, operation, answer)?;
        let key = created.key();
        let shared = self.shared.clone();
        let _lane = self.shared.registry.lane(key, |seat| {
            tokio::spawn(Lane::run_new(shared, created, seat));
        });
        let answered = answered.await.unwrap_or(Err(HostError::ShuttingDown))?;
        Ok((id, answered))
    }

    /// A conversation that a session has is not brought to another one.
    async fn refuse_taken_thread(&self, launch: &LaunchSnapshot) -> Result<(), HostError> {
        let Some(ThreadSource::Adopt { thread }) = &launch.source else { return Ok(()) };
        let (scope, wanted) = (crate::lane::scope_of(launch), thread.0.clone());
        match self.read(move |store| store.thread_owner(&scope, &wanted)).await? {
            Some(_) => Err(HostError::IdConflict { what: "thread", id: thread.0.clone() }),
            None => Ok(()),
        }
    }

    /// The past of the conversation that a session is made for, where the agent's files have it. No agent is started.
    async fn past_of(&self, launch: &LaunchSnapshot) -> Result<Option<Past>, HostError> {
        let Some(ThreadSource::Adopt { thread }) = launch.source.clone() else { return Ok(None) };
        let agent = catalog::configured(&self.shared.config, &launch.agent)?;
        let env = self.shared.config.agent_environment(agent);
        let Some(rollouts) = Rollouts::of(agent.kind, launch.account_home.as_deref(), &env) else {
            return Ok(None);
        };
        let read = self.shared.blocking.run(move || rollouts.past(&thread));
        Ok(Some(read.await.map_err(|_| HostError::ShuttingDown)?))
    }

    /// What the agent of this name can do.
    ///
    /// # Errors
    /// [`HostError::AgentUnknown`].
    pub fn capabilities(&self, agent: &AgentName) -> Result<Capabilities, HostError> {
        Ok(catalog::agent(&self.shared.config, agent)?.capabilities)
    }

    /// Gives a session a command.
    ///
    /// # Errors
    /// [`HostError`]; nothing changed.
    pub async fn command(
        self: &Arc<Self>,
        session: &str,
        command: Command,
        operation: Option<Operation>,
    ) -> Result<Answered, HostError> {
        let submission = match &command {
            Command::Send { submission, .. } => Some(submission.to_string()),
            _ => None,
        };
        let outcome = self.carry_out(session, command, operation).await;
        log_command(session, submission.as_deref(), outcome.as_ref());
        self.count_command(outcome.as_ref());
        outcome
    }

    async fn carry_out(
        self: &Arc<Self>,
        session: &str,
        command: Command,
        operation: Option<Operation>,
    ) -> Result<Answered, HostError> {
        let _alone = self.alone(operation.as_ref()).await;
        if let Some(replay) = self.replay(operation.as_ref()).await? {
            return Ok(replay);
        }
        let row = self.session(session).await?;
        let _same_message = match &command {
            Command::Send { submission, .. } => Some(self.turn(&format!("message {submission}")).await),
            _ => None,
        };
        let register = match &command {
            Command::Send { submission, content, delivery, .. } => {
                let fingerprint = message_fingerprint(content, *delivery);
                let wanted = submission.0.clone();
                if let Some(owner) = self.read(move |store| store.id_owner("submission", &wanted)).await? {
                    if owner.session != row.key || owner.fingerprint != fingerprint {
                        return Err(HostError::IdConflict { what: "message", id: submission.0.clone() });
                    }
                    let reply = Reply::Accepted {
                        submission: submission.clone(),
                        taken_as: mainstay_core::content::DeliveryTaken::Queue,
                    };
                    let cursor = Cursor { epoch: row.epoch, seq: row.head };
                    return Ok(Answered { reply, cursor, response: None, replayed: true, recorded: true });
                }
                Some(RegisterId { kind: "submission", id: submission.0.clone(), fingerprint })
            }
            _ => None,
        };
        let (answer, answered) = oneshot::channel();
        let deletes = matches!(command, Command::Delete);
        let answers = match &command {
            Command::Answer { request, .. } => Some(request.clone()),
            _ => None,
        };
        self.send(row.key, LaneMessage::Command { command: Box::new(command), register, operation, answer })
            .await;
        let answered = match (answered.await.unwrap_or(Err(HostError::ShuttingDown)), answers) {
            // So long ago that the session's own record does not know any more.
            (Err(HostError::Refused(refusal)), Some(request))
                if refusal.code == RefusalCode::RequestUnknown =>
            {
                let ended = self.ended_request(&row, &request).await?;
                return Err(HostError::Refused(ended.unwrap_or(refusal)));
            }
            (answered, _) => answered?,
        };
        if deletes {
            self.shared.housekeeping.notify_one();
        }
        Ok(answered)
    }

    pub(crate) async fn send(&self, key: SessionKey, message: LaneMessage) {
        send_to_lane(&self.shared, key, message).await;
    }

    /// Operations with the same key are carried out one after the other, so that the second finds the first's answer.
    pub(crate) async fn alone(
        &self,
        operation: Option<&Operation>,
    ) -> Option<tokio::sync::OwnedMutexGuard<()>> {
        match operation {
            Some(operation) => Some(self.turn(&format!("operation {}", operation.key)).await),
            None => None,
        }
    }

    /// Waits until nobody else carries out something under this name.
    pub(crate) async fn turn(&self, name: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
            operations.retain(|_, turn| Arc::strong_count(turn) > 1);
            operations.entry(name.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }

    pub(crate) async fn replay(&self, operation: Option<&Operation>) -> Result<Option<Answered>, HostError> {
        let Some(operation) = operation else {
            return Ok(None);
        };
        let response = self.recorded(&operation.key, &operation.fingerprint).await?;
        Ok(response.map(|response| Answered {
            reply: Reply::Done,
            cursor: Cursor::default(),
            response: Some(response),
            replayed: true,
            recorded: true,
        }))
    }

    /// The response that is recorded under a key, where the request is the same.
    pub(crate) async fn recorded(
        &self,
        key: &str,
        fingerprint: &Fingerprint,
    ) -> Result<Option<(u16, Vec<u8>)>, HostError> {
        let wanted = key.to_owned();
        let recorded = self.read(move |store| store.operation(&wanted)).await?;
        let before = recorded
            .as_ref()
            .map(|recorded| Fingerprint(String::from_utf8_lossy(&recorded.fingerprint).into_owned()));
        match (admit(before.as_ref(), fingerprint), recorded) {
            (Admission::New, _) | (_, None) => Ok(None),
            (Admission::Conflict, _) => Err(HostError::OperationConflict(key.to_owned())),
            (Admission::Replay, Some(recorded)) => Ok(Some((recorded.status, recorded.response))),
        }
    }

    /// Follows a session after a cursor; None: from its beginning.
    ///
    /// # Errors
    /// [`HostError::SessionUnknown`].
    pub async fn subscribe(&self, session: &str, after: Option<Cursor>) -> Result<Subscription, HostError> {
        let row = self.session(session).await?;
        let hub = self.shared.hubs.of(row.key, Cursor { epoch: row.epoch, seq: row.head });
        // Read again now that every lane publishes to this hub: nothing can be committed unseen in between.
        let row = self.session(session).await?;
        let committed = Cursor { epoch: row.epoch, seq: row.head };
        let after = after.unwrap_or(Cursor { epoch: row.epoch, seq: 0 });
        let (store, hubs) = ((self.store(), self.shared.blocking), self.shared.hubs.clone());
        let metrics = self.shared.metrics.clone();
        Ok(Subscription::new(store, (hubs, metrics), row.key, hub, committed, after))
    }

    /// Follows the host feed after a position.
    #[must_use]
    pub fn feed(&self, after: u64) -> FeedSubscription {
        FeedSubscription::new((self.store(), self.shared.blocking), self.shared.hubs.watch_feed(), after)
    }

    /// Looks at once for what age lets go, instead of at the next round.
    ///
    /// # Errors
    /// [`HostError`]; the next round goes on.
    #[doc(hidden)]
    pub async fn let_age(&self) -> Result<(), HostError> {
        retention::trim_feed(&self.shared).await?;
        retention::let_age(&self.shared).await
    }

    /// What this host counts.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// Sessions that have a lane now.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.shared.registry.all().len()
    }

    /// Notes what became of a command.
    fn count_command(&self, outcome: Result<&Answered, &HostError>) {
        let metrics = &self.shared.metrics;
        match outcome {
            Ok(Answered { replayed: true, .. }) => metrics.commands_replayed.one(),
            Ok(Answered { recorded: false, .. }) => metrics.commands_unrecorded.one(),
            Ok(_) => metrics.commands_done.one(),
            Err(
                HostError::Storage(_)
                | HostError::Read(_)
                | HostError::Unreadable { .. }
                | HostError::ShuttingDown,
            ) => metrics.commands_failed.one(),
            Err(_) => metrics.commands_refused.one(),
        }
    }

    /// The feed's newest position.
    #[must_use]
    pub fn feed_head(&self) -> u64 {
        *self.shared.hubs.watch_feed().borrow()
    }

    /// Sessions that run, wait or are being started: what a detaching stop leaves to the next host.
    ///
    /// # Errors
    /// [`HostError::Read`].
    pub async fn busy_sessions(&self) -> Result<Vec<SessionRow>, HostError> {
        let rows = self.read(|store| store.unrested_sessions()).await?.rows;
        Ok(rows.into_iter().filter(|row| !matches!(row.status.as_str(), "idle" | "closed")).collect())
    }

    /// Ends the host's work: lanes finish what is in flight, processes are left or ended, the store is closed.
    pub async fn shutdown(&self, mode: ShutdownMode) {
        let order = match mode {
            ShutdownMode::Detach => None,
            ShutdownMode::CloseIdle => Some(CloseOrder::Idle),
            ShutdownMode::Kill => Some(CloseOrder::Kill),
        };
        let mut lanes = tokio::task::JoinSet::new();
        for lane in self.shared.registry.all() {
            lanes.spawn(async move {
                let (done, ended) = oneshot::channel();
                // A lane that is gone has nothing left to end.
                if lane.send(LaneMessage::Shutdown { order, done }).await.is_ok() {
                    drop(ended.await);
                }
            });
        }
        if tokio::time::timeout(SHUTDOWN_DEADLINE, lanes.join_all()).await.is_err() {
            tracing::error!(
                "some agents could not be ended in time; the next host looks after them (`mainstay ps`)"
            );
        }
        let store = self.store();
        let closed = self.shared.blocking.run(move || store.close()).await;
        if closed.is_err() {
            tracing::error!(
                "the store could not be closed in order; what was acknowledged is on disk all the same"
            );
        }
    }
}

/// What a blocking start hands to the async one.
struct Opening {
    shared: Arc<Shared>,
    lock: Option<HomeLock>,
    plan: recovery::Plan,
}

impl Opening {
    fn new(
        config: HostConfig,
        seams: Seams,
        feed_head: u64,
        lock: Option<HomeLock>,
    ) -> Result<Self, StartError> {
        // A host without a home of its own keeps nothing beside its store.
        let catalogues = lock.as_ref().map(|_| Catalogues::below(&config.home)).unwrap_or_default();
        let Seams { store, keeping, clock, blocking, planted } = seams;
        let plan = recovery::plan(&config, store.as_ref(), keeping.as_ref())?;
        let began = (clock.now(), clock.steady());
        let shared = Arc::new(Shared {
            processes: Arc::new(Semaphore::new(config.max_processes)),
            starting: Arc::new(Semaphore::new(config.max_starting)),
            config,
            store,
            keeping,
            clock,
            began,
            blocking,
            planted,
            registry: Registry::default(),
            room: crate::room::Room::default(),
            catalogues,
            terminals: crate::terminals::Terminals::default(),
            hubs: Arc::new(Hubs::new(feed_head)),
            metrics: Arc::default(),
            housekeeping: Arc::default(),
        });
        Ok(Self { shared, lock, plan })
    }

    fn begin(self) -> Arc<Host> {
        let (sender, recovered) = tokio::sync::watch::channel(false);
        let unclaimed = Mutex::new(self.plan.unclaimed.clone());
        let shared = self.shared.clone();
        tokio::spawn(retention::keep_house(
            Arc::downgrade(&shared),
            self.plan.unfinished.clone(),
            shared.housekeeping.clone(),
        ));
        tokio::spawn(async move {
            recovery::recover(&shared, self.plan).await;
            sender.send_replace(true);
        });
        Arc::new(Host {
            shared: self.shared,
            _lock: self.lock,
            operations: Mutex::default(),
            unclaimed,
            recovered,
        })
    }
}

/// Hands a message to a session's lane, started if there is none; asks again where the lane was just leaving.
pub(crate) async fn send_to_lane(shared: &Arc<Shared>, key: SessionKey, message: LaneMessage) {
    let mut message = message;
    loop {
        let lane = shared.registry.lane(key, |seat| {
            tokio::spawn(Lane::run(shared.clone(), seat));
        });
        match lane.send(message).await {
            Ok(()) => return,
            Err(returned) => message = returned.0,
        }
        tokio::task::yield_now().await;
    }
}

/// Within the request's span, if a request asked: its id and the session's in one line.
fn log_command(session: &str, submission: Option<&str>, outcome: Result<&Answered, &HostError>) {
    match outcome {
        Ok(answered) => {
            let Answered { cursor, replayed, recorded, .. } = answered;
            tracing::info!(session, submission, %cursor, replayed, recorded, "carried out");
        }
        Err(error) => tracing::info!(session, submission, %error, "not carried out"),
    }
}

pub(crate) fn creation_fingerprint(request: &NewSessionRequest) -> Vec<u8> {
    let text = format!(
        "{:?}",
        (
            &request.agent,
            &request.cwd,
            &request.additional_directories,
            &request.mcp_servers,
            &request.instructions,
            &request.account_home,
            &request.source,
            &request.prompt.as_ref().map(|(_, content)| content),
        )
    );
    Fingerprint::of("create", "session", text.as_bytes()).0.into_bytes()
}

pub(crate) fn message_fingerprint(content: &[ContentBlock], delivery: Delivery) -> Vec<u8> {
    let body = serde_json::to_vec(&(content, delivery)).unwrap_or_default();
    Fingerprint::of("send", "message", &body).0.into_bytes()
}

/// A home that no other host has. Both locks are the kernel's: they go when the process does.
#[derive(Debug)]
pub struct HomeLock {
    /// Holds the pid too.
    _file: File,
    /// The folder itself, which cannot be deleted under a host as a file in it can: whoever deletes that and makes it anew
    /// does not have the home. None where the file system locks no folders.
    _folder: Option<File>,
}

/// Takes a home, so that no host serves it while the lock is held.
///
/// # Errors
/// [`StartError::HomeTaken`], [`StartError::Home`].
pub fn lock_home(home: &Path) -> Result<HomeLock, StartError> {
    use std::fs::TryLockError;
    use std::io::{Read, Seek, Write};
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let failed = |path: PathBuf| move |source| StartError::Home { path, source };
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(failed(home.to_owned()))?;
    let path = home.join("host.lock");
    let open = || File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
    let folder = File::open(home).map_err(failed(home.to_owned()))?;
    // Before the lock file is made: where it was deleted, a new one would hide who has the home.
    let folder = match folder.try_lock() {
        Ok(()) => Some(folder),
        Err(TryLockError::WouldBlock) => {
            return Err(taken(home, &std::fs::read_to_string(&path).unwrap_or_default()));
        }
        Err(TryLockError::Error(error)) => {
            tracing::debug!(%error, "the file system locks no folders");
            None
        }
    };
    let mut file = open().map_err(failed(path.clone()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut said = String::new();
            // Without it the other host is there all the same.
            let _unread = file.read_to_string(&mut said);
            return Err(taken(home, &said));
        }
        Err(TryLockError::Error(source)) => return Err(StartError::Home { path, source }),
    }
    let own = std::process::id();
    file.set_len(0)
        .and_then(|()| file.rewind())
        .and_then(|()| writeln!(file, "{own}"))
        .map_err(failed(path))?;
    Ok(HomeLock { _file: file, _folder: folder })
}

fn taken(home: &Path, said: &str) -> StartError {
    let pid = if said.trim().is_empty() { "unknown" } else { said.trim() };
    StartError::HomeTaken { home: home.to_owned(), pid: pid.to_owned() }
}

/// The refusal of a command that needs the agent's own word first.
#[must_use]
pub fn unsupported(capability: &str) -> HostError {
    HostError::Refused(Refusal::new(
        RefusalCode::Unsupported,
        format!("this agent cannot do that (capability {capability})"),
    ))
}
