//! Keepers that no record claims, after the database was restored from a copy or lost: what they hold, whose it is,
//! and the two ways to deal with one, ending it or binding its conversation to a session again. Nothing is done to
//! one by itself.

use crate::catalog;
use crate::config::HostConfig;
use crate::error::HostError;
use crate::host::{Answered, Host, NewSessionRequest, Operation};
use crate::keeping::{Keeping, Settled};
use crate::lane::{Adoption, LaneMessage, chain};
use crate::processes;
use mainstay_agents::Shown;
use mainstay_agents::launch::account_home_variable;
use mainstay_core::operation::Fingerprint;
use mainstay_core::process::{CloseOrder, ProcessExit};
use mainstay_core::session::Takeover;
use mainstay_core::{AgentName, Fence, ProcessToken, ProviderTurn, SessionId, SessionOptions, ThreadId};
use mainstay_keeper::link::LinkError;
use mainstay_keeper::wire::{RejectedWhy, Status, ToHost, ToKeeper};
use mainstay_keeper::{IdentityCheck, KeeperFolder, KeepersDir, Link, Manifest, Probe, PsRow, probe};
use mainstay_store::{
    LaneWrite, NewOperation, PageLimit, ProcessKey, ReadError, SessionFilter, SessionKey, SessionRow, Store,
    Urgency, WriteOp,
};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// A keeper answers a hello in microseconds. One that has not after this long is not waited for: the user is told.
const HELLO_PATIENCE: Duration = Duration::from_secs(15);
/// Longer than every ladder that is planned for an agent, with the grace for its output and its strays.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// Looks that prove nothing are repeated for this long, before a user is told so. Nothing is settled by it.
const CLEAR_PATIENCE: Duration = Duration::from_secs(3);
/// How often the folder of a keeper that has said good-bye is looked at until its lock is free.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Sessions of one process that are named; configured bounds on sharing are far below.
const SESSIONS_SHOWN: usize = 1_000;
/// Rows of a journal that are read at once.
const JOURNAL_ROWS: usize = 2_000;
/// Bytes of a journal that are read at once.
const JOURNAL_BYTES: usize = 4 * 1024 * 1024;

/// Who has a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Claim {
    /// These sessions, one at least.
    Sessions(Vec<String>),
    /// A record without a session that could be read.
    Record,
    /// Nobody.
    Nobody,
}

/// A keeper's folder, and who has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperEntry {
    /// What its folder says.
    pub row: PsRow,
    /// Who has it.
    pub claim: Claim,
}

/// A keeper that was ended.
#[derive(Debug, Clone, PartialEq)]
pub struct KeeperEnded {
    /// Which.
    pub token: String,
    /// How, as proven.
    pub exit: ProcessExit,
    /// Its folder is gone. One that stays is removed by the next host.
    pub folder_removed: bool,
}

/// Makes the response to an operation that concerns no session.
pub type RespondEnded = Box<dyn FnOnce(&KeeperEnded) -> (u16, Vec<u8>) + Send + Sync>;

/// A client's idempotency key for ending a keeper.
pub struct EndOperation {
    /// The key.
    pub key: String,
    /// The request.
    pub fingerprint: Fingerprint,
    /// The response.
    pub respond: RespondEnded,
}

impl std::fmt::Debug for EndOperation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndOperation").field("key", &self.key).finish_non_exhaustive()
    }
}

/// What became of ending a keeper.
#[derive(Debug)]
pub enum EndAnswered {
    /// It is ended now.
    Ended(KeeperEnded),
    /// The response that was given before; nothing was done now.
    Replayed(u16, Vec<u8>),
}

/// What is known of a keeper that a session is to be bound to.
struct Survey {
    manifest: Manifest,
    /// What its agent holds, never empty: the conversation that it opened last comes first.
    conversations: Vec<Conversation>,
    account_home: Option<String>,
    folder: KeeperFolder,
    known: u64,
    status: Status,
}

/// A conversation of a keeper's agent.
struct Conversation {
    thread: ThreadId,
    /// Its place among all that the agent ever opened.
    number: usize,
    owner: Option<SessionRow>,
    shown: Shown,
    gone: Option<ProcessToken>,
}

impl Conversation {
    /// Whether its session can be bound, as far as its record tells. Its lane decides.
    fn seems_free(&self) -> bool {
        self.owner
            .as_ref()
            .is_none_or(|row| !row.deleted && !row.archived && (row.process.is_none() || self.gone.is_some()))
    }
}

impl Host {
    /// Every keeper's folder with who has it. Starts and changes nothing.
    ///
    /// # Errors
    /// [`HostError::Read`]; [`HostError::BadFolder`] where the folders cannot be listed.
    pub async fn keepers(self: &Arc<Self>) -> Result<Vec<KeeperEntry>, HostError> {
        self.blocking_read(|host| {
            // The folders first: a keeper that is seen has its record already.
            let rows = mainstay_keeper::ps(&host.config().home).map_err(|error| HostError::BadFolder {
                path: "keepers".to_owned(),
                why: chain(&error),
                outside_roots: false,
            })?;
            let store = host.store();
            let entry = |row: PsRow| {
                let claim = claim_of(store.as_ref(), &row.token)?;
                Ok(KeeperEntry { row, claim })
            };
            rows.into_iter().map(entry).collect()
        })
        .await
    }

    /// Ends a keeper that no record claims, with its agent, and removes its folder.
    ///
    /// # Errors
    /// [`HostError::KeeperUnknown`], [`HostError::KeeperClaimed`]; [`HostError::KeeperUnverifiable`] where its end cannot
    /// be proven: what was done then may still take effect.
    pub async fn end_keeper(
        self: &Arc<Self>,
        token: &str,
        kill: bool,
        operation: Option<EndOperation>,
    ) -> Result<EndAnswered, HostError> {
        let _alone = match &operation {
            Some(operation) => Some(self.turn(&format!("operation {}", operation.key)).await),
            None => None,
        };
        if let Some(operation) = &operation
            && let Some((status, body)) = self.recorded(&operation.key, &operation.fingerprint).await?
        {
            return Ok(EndAnswered::Replayed(status, body));
        }
        let _same_keeper = self.turn(&format!("keeper {token}")).await;
        let wanted = token.to_owned();
        let ended = self
            .blocking_read(move |host| {
                let folder = unclaimed_folder(host, &wanted)?;
                end(host.keeping(), &folder, &host.config().host_id.0, kill)
            })
            .await?;
        self.forget_unclaimed(token);
        if let Some(operation) = operation {
            let (status, response) = (operation.respond)(&ended);
            let recorded = WriteOp::PutOperation(NewOperation {
                key: operation.key,
                fingerprint: operation.fingerprint.0.into_bytes(),
                at: self.now(),
                status,
                response,
            });
            if let Err(error) = self.store().commit(LaneWrite::new(Urgency::Command, vec![recorded])).await {
                // It is ended all the same; the same key again would be told that there is no such keeper.
                tracing::warn!(%error, token, "the end of a keeper could not be recorded under its key");
            }
        }
        Ok(EndAnswered::Ended(ended))
    }

    /// Binds the conversations of a keeper that no record claims to the sessions that have them, or to new ones. The agent
    /// is not interrupted. The answer is about the conversation that was opened last.
    ///
    /// # Errors
    /// [`HostError::CannotAdopt`] where only ending it is possible, and as [`Self::end_keeper`].
    pub async fn adopt_keeper(
        self: &Arc<Self>,
        token: &str,
        operation: Option<Operation>,
    ) -> Result<Answered, HostError> {
        let _alone = self.alone(operation.as_ref()).await;
        if let Some(replay) = self.replay(operation.as_ref()).await? {
            return Ok(replay);
        }
        let _same_keeper = self.turn(&format!("keeper {token}")).await;
        let wanted = token.to_owned();
        let mut survey = self.blocking_read(move |host| survey(host, &wanted)).await?;
        // The first one that can be bound makes the record; one that cannot (its session has another process) stops no other.
        let (able, unable): (Vec<_>, Vec<_>) =
            std::mem::take(&mut survey.conversations).into_iter().partition(Conversation::seems_free);
        let mut conversations = able.into_iter().chain(unable);
        let Some(first) = conversations.next() else {
            let why = "its agent had no conversation yet".to_owned();
            return Err(HostError::CannotAdopt { token: token.to_owned(), why });
        };
        let answered = self.adopt(&survey, first, None, operation).await?;
        self.forget_unclaimed(token);
        let wanted = token.to_owned();
        let live = self.read(move |store| store.processes(true)).await?.rows;
        let process = live.into_iter().find(|process| process.token == wanted).map(|process| process.key);
        for conversation in conversations {
            let thread = conversation.thread.clone();
            if let Err(error) = self.adopt(&survey, conversation, process, None).await {
                // It has another process, or was deleted. The keeper has an owner now; what was refused changed nothing.
                tracing::warn!(%thread, token, error = chain(&error), "a conversation of an adopted keeper stays as it was");
            }
        }
        Ok(answered)
    }

    /// Binds one conversation.
    async fn adopt(
        self: &Arc<Self>,
        survey: &Survey,
        conversation: Conversation,
        beside: Option<ProcessKey>,
        operation: Option<Operation>,
    ) -> Result<Answered, HostError> {
        let token = &survey.folder.token;
        let key = match &conversation.owner {
            Some(row) => row.key,
            None => {
                // Named after the keeper: a host that dies before the binding finds the same session again.
                let id = match conversation.number {
                    0 => SessionId(format!("ses_{token}")),
                    number => SessionId(format!("ses_{token}_{number}")),
                };
                let request = NewSessionRequest {
                    id: Some(id.clone()),
                    agent: AgentName(survey.manifest.agent_label.clone()),
                    cwd: survey.manifest.cwd.display().to_string(),
                    name: Some(format!("adopted from keeper {token}")),
                    options: SessionOptions::default(),
                    limits: Default::default(),
                    additional_directories: Vec::new(),
                    mcp_servers: Vec::new(),
                    instructions: None,
                    account_home: survey.account_home.clone(),
                    source: None,
                    prompt: None,
                };
                self.create(request, None).await?;
                self.session(&id.0).await?.key
            }
        };
        let adoption = Adoption {
            takeover: Takeover {
                process: ProcessToken(token.to_owned()),
                agent: survey.status.agent.as_ref().map(processes::identity),
                known: Fence(survey.known),
                thread: conversation.thread,
                gone: conversation.gone,
            },
            folder: survey.folder.clone(),
            position: survey.status.spool_end,
            shown: conversation.shown,
            beside,
        };
        let (answer, answered) = oneshot::channel();
        let message = LaneMessage::TakeOver { adoption: Box::new(adoption), operation, answer };
        self.send(key, message).await;
        answered.await.unwrap_or(Err(HostError::ShuttingDown))
    }
}

/// Sessions whose record is older than what an unclaimed keeper's folder says: their key, and the fence known there.
pub(crate) fn fences_ahead(
    config: &HostConfig,
    store: &dyn Store,
    keeping: &dyn Keeping,
    unclaimed: &[String],
) -> Result<Vec<(SessionKey, u64)>, ReadError> {
    let mut ahead = Vec::new();
    for token in unclaimed {
        let folder = keeping.folder(token);
        let Ok(Some(manifest)) = folder.manifest() else { continue };
        let home = account_home(config, &folder, &manifest);
        let mut owners = BTreeSet::new();
        for thread in folder.threads().unwrap_or_default() {
            owners.extend(owner(config, store, &manifest, home.as_deref(), &thread)?);
        }
        for key in owners {
            if store.session(key)?.is_some_and(|row| row.fence < manifest.process_fence) {
                ahead.push((key, manifest.process_fence));
            }
        }
    }
    Ok(ahead)
}

/// The session that has this thread. Threads belong to sessions by agent and account home.
fn owner(
    config: &HostConfig,
    store: &dyn Store,
    manifest: &Manifest,
    account_home: Option<&str>,
    thread: &str,
) -> Result<Option<SessionKey>, ReadError> {
    let agent = AgentName(manifest.agent_label.clone());
    let configured =
        config.agents.get(&agent).and_then(|agent| agent.home.as_ref()).and_then(|home| home.to_str());
    for home in [account_home, configured, None] {
        if let Some(key) = store.thread_owner(&crate::lane::thread_scope(&agent, home), thread)? {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// The account home that the living agent was started with; None where it has none, or cannot be asked.
fn account_home(config: &HostConfig, folder: &KeeperFolder, manifest: &Manifest) -> Option<String> {
    let kind = config.agents.get(&AgentName(manifest.agent_label.clone()))?.kind;
    let variable = account_home_variable(kind)?;
    let agent = folder.agent_identity().ok().flatten()?;
    let environment = std::fs::read(format!("/proc/{}/environ", agent.pid)).ok()?;
    // Looked at after the read: it was this process's environment.
    if agent.check() != IdentityCheck::Matched {
        return None;
    }
    let prefix = format!("{variable}=");
    environment
        .split(|byte| *byte == 0)
        .filter_map(|pair| std::str::from_utf8(pair).ok())
        .find_map(|pair| pair.strip_prefix(&prefix))
        .filter(|home| Path::new(home).is_absolute())
        .map(str::to_owned)
}

fn claim_of(store: &dyn Store, token: &str) -> Result<Claim, HostError> {
    let Some(process) = store.processes(true)?.rows.into_iter().find(|process| process.token == token) else {
        return Ok(Claim::Nobody);
    };
    let filter =
        SessionFilter { process: Some(process.key), include_deleted: true, ..SessionFilter::default() };
    let bound: Vec<String> =
        store.sessions(&filter, None, SESSIONS_SHOWN)?.rows.into_iter().map(|row| row.id).collect();
    Ok(if bound.is_empty() { Claim::Record } else { Claim::Sessions(bound) })
}

/// The folder of a keeper that nobody has. The token comes from outside: it is looked for among those that there are.
fn unclaimed_folder(host: &Host, token: &str) -> Result<KeeperFolder, HostError> {
    let listed = KeepersDir::new(host.config().home.join("keepers")).list();
    let folder = listed.ok().and_then(|folders| folders.into_iter().find(|folder| folder.token == token));
    let folder = folder.ok_or_else(|| HostError::KeeperUnknown(token.to_owned()))?;
    match claim_of(host.store().as_ref(), token)? {
        Claim::Nobody => Ok(folder),
        Claim::Sessions(sessions) => {
            Err(HostError::KeeperClaimed { token: token.to_owned(), session: sessions.into_iter().next() })
        }
        Claim::Record => Err(HostError::KeeperClaimed { token: token.to_owned(), session: None }),
    }
}

/// Says hello under the fence that the keeper knows. Gives its answer and that fence.
fn greet(folder: &KeeperFolder, host_id: &str, fence: u64) -> Result<(Link, Status, u64), String> {
    let mut fence = fence;
    for _ in 0..2 {
        let mut link = Link::connect(folder).map_err(|error| chain(&error))?;
        match link.hello(host_id, fence, HELLO_PATIENCE) {
            Ok(ToHost::Status(status)) => return Ok((link, *status, fence)),
            Ok(ToHost::Rejected { why: RejectedWhy::StaleFence { known } }) => fence = known,
            Ok(other) => return Err(format!("its keeper refused the host: {other:?}")),
            Err(error) => return Err(chain(&error)),
        }
    }
    Err("its keeper has another owner".to_owned())
}

/// Ends a keeper and its agent. Blocking.
fn end(
    keeping: &dyn Keeping,
    folder: &KeeperFolder,
    host_id: &str,
    kill: bool,
) -> Result<KeeperEnded, HostError> {
    let unverifiable = |why: String| HostError::KeeperUnverifiable { token: folder.token.clone(), why };
    let deadline = Instant::now() + END_PATIENCE;
    match probe(folder) {
        Probe::Alive { manifest } => {
            let (mut link, ..) = greet(folder, host_id, manifest.process_fence).map_err(&unverifiable)?;
            let order = processes::order(if kill { CloseOrder::Kill } else { CloseOrder::User });
            link.send(&ToKeeper::Close { order }).map_err(|error| unverifiable(chain(&error)))?;
            loop {
                match link.receive(deadline.saturating_duration_since(Instant::now())) {
                    Ok(ToHost::Exited { .. }) | Err(LinkError::Closed) => break,
                    Ok(_) => {}
                    Err(error) => return Err(unverifiable(chain(&error))),
                }
            }
        }
        // A host is just making it; there is only one, so it becomes claimed or goes.
        Probe::BeingBorn => return Err(unverifiable("it is just being born".to_owned())),
        Probe::Ended { .. } | Probe::KeeperGone { .. } | Probe::Unused | Probe::Indeterminate { .. } => {}
    }
    let clear_by = Instant::now() + CLEAR_PATIENCE;
    let exit = loop {
        match keeping.look(folder) {
            Settled::Gone(exit) => break exit,
            // poll: a keeper that is just leaving lets its lock go a moment after it looks gone.
            Settled::Unverifiable(_) if Instant::now() < clear_by => std::thread::sleep(LOOK_EVERY),
            Settled::Unverifiable(why) => return Err(unverifiable(why)),
            Settled::Alive | Settled::NotYet if Instant::now() >= deadline => {
                return Err(unverifiable("it was told to end and has not ended yet".to_owned()));
            }
            // poll: its lock becomes free without a signal.
            Settled::Alive | Settled::NotYet => std::thread::sleep(LOOK_EVERY),
        }
    };
    let removed = keeping.remove(folder);
    if let Err(error) = &removed {
        tracing::warn!(token = folder.token, %error, "an ended keeper's folder stays for now");
    }
    Ok(KeeperEnded { token: folder.token.clone(), exit, folder_removed: removed.is_ok() })
}

/// Finds out what a session needs to be bound to this keeper, or why none can be. Blocking; changes nothing.
fn survey(host: &Host, token: &str) -> Result<Survey, HostError> {
    let folder = unclaimed_folder(host, token)?;
    let (config, store) = (host.config(), host.store());
    let cannot = |why: String| HostError::CannotAdopt { token: token.to_owned(), why };
    let manifest = match probe(&folder) {
        Probe::Alive { manifest } => *manifest,
        Probe::BeingBorn | Probe::Indeterminate { .. } => {
            let why = "whether it lives cannot be told just now".to_owned();
            return Err(HostError::KeeperUnverifiable { token: token.to_owned(), why });
        }
        Probe::Ended { .. } | Probe::KeeperGone { .. } | Probe::Unused => {
            return Err(cannot("it lives no more, and with it went the line to its agent".to_owned()));
        }
    };
    let agent = catalog::configured(config, &AgentName(manifest.agent_label.clone()))
        .map_err(|error| cannot(error.to_string()))?;
    if !mainstay_agents::adapter(agent.kind).can_take_over() {
        let why = "what its agent has open was known to the lost host alone: this protocol has no second connection to a living conversation; once the agent is ended, its conversation can be taken up by its session, or adopted by its id".to_owned();
        return Err(cannot(why));
    }
    if store.processes(false)?.rows.iter().any(|process| process.token == token) {
        return Err(cannot("a user gave it up, and its conversation with it".to_owned()));
    }
    let threads = folder.threads().map_err(|error| cannot(chain(&error)))?;
    let account_home = account_home(config, &folder, &manifest);
    // Of each session the conversation that it opened last; each that nobody has is a session of its own.
    let mut latest: Vec<(usize, &String, Option<SessionKey>)> = Vec::new();
    for (number, thread) in threads.iter().enumerate().rev() {
        let owner = owner(config, store.as_ref(), &manifest, account_home.as_deref(), thread)?;
        if owner.is_none() || latest.iter().all(|(_, _, of)| *of != owner) {
            latest.push((number, thread, owner));
        }
    }
    if latest.is_empty() {
        return Err(cannot("its agent had no conversation yet".to_owned()));
    }
    let (_link, status, known) = greet(&folder, &config.host_id.0, manifest.process_fence)
        .map_err(|why| HostError::KeeperUnverifiable { token: token.to_owned(), why })?;
    if status.exited || status.ending {
        return Err(cannot("it is ending".to_owned()));
    }
    let mut conversations = Vec::with_capacity(latest.len());
    for (number, thread, owner) in latest {
        let owner = owner.map(|key| store.session(key)).transpose()?.flatten();
        let (shown, gone) = match &owner {
            Some(row) => {
                (shown(store.as_ref(), row, thread)?, superseded(host, store.as_ref(), row, &manifest)?)
            }
            None => (Shown::Nothing, None),
        };
        conversations.push(Conversation { thread: ThreadId(thread.clone()), number, owner, shown, gone });
    }
    Ok(Survey { conversations, manifest, account_home, folder, known, status })
}

/// The process that the record names, where this keeper proves it gone: it was reserved for the same session under a
/// later fence, which happens only when the end of the one before is proven. Not where it is seen to live.
fn superseded(
    host: &Host,
    store: &dyn Store,
    row: &SessionRow,
    manifest: &Manifest,
) -> Result<Option<ProcessToken>, HostError> {
    let Some(key) = row.process else { return Ok(None) };
    let Some(former) = store.process(key)? else { return Ok(None) };
    let lives =
        matches!(probe(&host.keeping().folder(&former.token)), Probe::Alive { .. } | Probe::BeingBorn);
    Ok((former.fence < manifest.process_fence && !lives).then_some(ProcessToken(former.token)))
}

/// How much of the thread's history the session's journal has.
fn shown(store: &dyn Store, row: &SessionRow, wanted: &str) -> Result<Shown, HostError> {
    let (mut thread, mut seen_before, mut last): (Option<String>, bool, Option<String>) = (None, false, None);
    for epoch in 1..=row.epoch {
        let mut after = 0;
        loop {
            let limit = PageLimit { rows: JOURNAL_ROWS, bytes: JOURNAL_BYTES };
            let page = store.events(row.key, epoch, after, limit)?;
            if !page.bad.is_empty() {
                return Ok(Shown::Unknown);
            }
            for event in &page.rows {
                after = event.seq;
                if !matches!(event.kind.as_str(), "thread.linked" | "turn.started") {
                    continue;
                }
                let Ok(body) = serde_json::from_slice::<serde_json::Value>(&event.body) else {
                    return Ok(Shown::Unknown);
                };
                let text = |name: &str| body.get(name).and_then(|value| value.as_str()).map(str::to_owned);
                if event.kind == "turn.started" {
                    last = text("provider_turn");
                } else if text("thread") != thread {
                    thread = text("thread");
                    last = None;
                    seen_before |= thread.as_deref() == Some(wanted);
                }
            }
            if !page.more {
                break;
            }
        }
    }
    Ok(match (thread.as_deref() == Some(wanted), seen_before, last) {
        (true, _, Some(turn)) => Shown::UpTo(ProviderTurn(turn)),
        (true, _, None) | (false, false, _) => Shown::Nothing,
        (false, true, _) => Shown::Unknown,
    })
}
