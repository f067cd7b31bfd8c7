//! Everything outside of the host: keepers, agents, the clock.

use crate::acp::Acp;
use crate::agent::{Agent, Truth};
use crate::chance::Chance;
use crate::claude::Claude;
use crate::codex::Codex;
use crate::disk::Disk;
use crate::keeper::{Around, BadKeeper, Bounds, Keeper, Life};
use mainstay_agents::AgentKind;
use mainstay_core::ProcessToken;
use mainstay_core::process::ExitCause;
use mainstay_host::keeping::{Clock, Keeping, Link, Settled, exit_fact, exit_without_record};
use mainstay_keeper::launch::{AfterBirth, BeforeBirth};
use mainstay_keeper::wire::ToKeeper;
use mainstay_keeper::{
    AgentTrace, BirthError, FolderError, KeeperFolder, KeepersDir, LaunchSpec, Probe, ReservedFolder, probe,
};
use mainstay_store::{SessionFilter, SessionKey, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The agents' account home, below the host's.
pub(crate) const ACCOUNT_HOME: &str = "account";

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) chance: Chance,
    pub(crate) truth: Truth,
    pub(crate) keepers: BTreeMap<String, Keeper>,
    /// Unix ms.
    pub(crate) now: i64,
    /// By how much the clock went back in all.
    pub(crate) went_back: i64,
    tokens: u64,
    pub(crate) disk: Arc<Disk>,
    dir: KeepersDir,
    /// Faults are over.
    pub(crate) calm: bool,
    kind: AgentKind,
    /// How many inputs wait at a keeper at most.
    inbox: usize,
    /// Where agents keep their own files.
    account_home: PathBuf,
    pub(crate) bad: Option<BadKeeper>,
    /// Nothing about keepers can be found out just now: no line opens, every look is unclear.
    pub(crate) blind: bool,
    /// What happened, where it is wanted: None costs nothing.
    pub(crate) trace: Option<Vec<String>>,
}

/// Shared with the host as its world.
#[derive(Debug, Clone)]
pub(crate) struct Handle(pub(crate) Arc<Mutex<World>>);

impl Handle {
    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl World {
    pub(crate) fn new(seed: u64, home: &Path, kind: AgentKind, bad: Option<BadKeeper>, traced: bool) -> Self {
        Self {
            chance: Chance::new(seed),
            truth: Truth::default(),
            keepers: BTreeMap::new(),
            now: 1_700_000_000_000,
            went_back: 0,
            tokens: 0,
            disk: Arc::new(Disk::default()),
            dir: KeepersDir::new(home.join("keepers")),
            calm: false,
            kind,
            inbox: if seed % 14 == 7 && kind != AgentKind::Codex { 1 } else { 3 },
            account_home: home.join(ACCOUNT_HOME),
            bad,
            blind: false,
            trace: traced.then(Vec::new),
        }
    }

    pub(crate) fn note(&mut self, what: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(what());
        }
    }

    pub(crate) fn violated(&mut self, what: String) {
        self.truth.violations.push(what);
    }

    /// Does something with one keeper and what is around it.
    pub(crate) fn with<T>(
        &mut self,
        token: &str,
        work: impl FnOnce(&mut Keeper, &mut Around<'_>) -> T,
    ) -> Option<T> {
        let keeper = self.keepers.get_mut(token)?;
        let store: &dyn Store = &self.disk.durable;
        let mut around = Around {
            now: self.now,
            truth: &mut self.truth,
            chance: &mut self.chance,
            store,
            trace: &mut self.trace,
        };
        Some(work(keeper, &mut around))
    }

    /// Whether a user gave it up though nothing proved its end: what it does from then on is the user's affair.
    pub(crate) fn is_abandoned(&self, token: &str) -> bool {
        let process = self.keepers.get(token).map(|keeper| self.disk.process(keeper.process));
        matches!(process, Some(Ok(Some(row))) if row.state == "abandoned")
    }

    /// Whether a keeper's process serves this session.
    pub(crate) fn serves(&self, keeper: &Keeper, session: SessionKey) -> bool {
        let row = self.disk.durable.session(session);
        keeper.session == session
            || row.is_ok_and(|row| row.and_then(|row| row.process) == Some(keeper.process))
    }

    /// The store refused a stop, and it was not carried out: right only where there was nothing to stop.
    pub(crate) fn judge_refused_stop(&mut self, session: usize) {
        let row = self.disk.durable.session_by_id(&format!("s{session}"));
        let process = row.ok().flatten().and_then(|row| row.process);
        let runs = self.keepers.values().find(|keeper| Some(keeper.process) == process);
        if let Some(keeper) = runs.filter(|keeper| keeper.could_be_stopped() && !keeper.stopped) {
            let token = keeper.token.clone();
            self.violated(format!("a stop of s{session} was refused by the store, and {token} was not told"));
        }
    }

    fn give_birth(&mut self, reserved: ReservedFolder, spec: &LaunchSpec) -> Result<(), BirthError> {
        let durable = &self.disk.durable;
        let row =
            durable.processes(true).unwrap_or_default().rows.into_iter().find(|row| row.token == spec.token);
        let sessions =
            durable.sessions(&SessionFilter { include_deleted: true, ..SessionFilter::default() }, None, 100);
        let sessions = sessions.unwrap_or_default().rows;
        // Of those that share it, the one that acquired it.
        let owner = row.as_ref().and_then(|row| {
            let mut bound = sessions.iter().filter(|session| session.process == Some(row.key));
            bound.clone().find(|session| session.fence == row.fence).or_else(|| bound.next()).cloned()
        });
        let (Some(row), Some(owner)) = (row, owner) else {
            self.violated(format!("keeper {} was started and no durable record names it", spec.token));
            return Ok(());
        };
        // A process that goes on for others is no rival; who writes to a thread is seen by the agents.
        let shared = |process| sessions.iter().any(|session| session.process == Some(process));
        let rival = self.keepers.values().find(|other| {
            other.session == owner.key
                && other.lives()
                && !self.is_abandoned(&other.token)
                && !shared(other.process)
        });
        if let Some(other) = rival {
            let (other, token) = (other.token.clone(), &spec.token);
            self.violated(format!("{token} was started while {other} lives, both for {}", owner.id));
        }
        // One that joined the process has a fence of its own, and may be the only one left.
        let joins = self.kind == AgentKind::Codex;
        if row.fence != spec.process_fence || (row.fence != owner.fence && !joins) {
            let (of, fences) = (owner.id.clone(), (row.fence, spec.process_fence, owner.fence));
            self.violated(format!(
                "{} was started for {of} under another fence: record, keeper, session: {fences:?}",
                spec.token
            ));
        }
        if !self.calm {
            match self.chance.below(24) {
                0 => {
                    let source = io::Error::other("simulated");
                    let before = BeforeBirth::Io { doing: "start the keeper", source };
                    return Err(BirthError::Before(before));
                }
                // It existed and ended before it spawned anything.
                1 => return Err(BirthError::After(AfterBirth::Died)),
                _ => {}
            }
        }
        let path = reserved.folder().spool_path().join(format!("{:020}.log", 0));
        let spool = File::create(path)
            .map_err(|source| BirthError::Before(BeforeBirth::Io { doing: "make the spool", source }))?;
        let agent = match self.kind {
            AgentKind::Codex => Agent::Codex(Codex::new(&spec.token)),
            AgentKind::Claude => {
                let home = self.account_home.clone();
                let claude = Claude::new(&spec.token, &spec.argv, home, &mut self.truth, &mut self.chance);
                Agent::Claude(Box::new(claude))
            }
            AgentKind::Acp | AgentKind::Demo => Agent::Acp(Acp::new(&spec.token, &mut self.chance)),
        };
        let names = (spec.token.clone(), row.key, owner.key);
        let bound = Bounds { bytes: spec.spool_limit, at_limit: spec.at_limit, inbox: self.inbox };
        let keeper =
            Keeper::born(names, reserved, spool, agent, spec.process_fence, bound, self.bad, self.now);
        self.note(|| format!("   {} is born for {}", spec.token, owner.id));
        self.keepers.insert(spec.token.clone(), keeper);
        // It is up and its answer is late.
        if !self.calm && self.chance.hits(1, 24) {
            return Err(BirthError::After(AfterBirth::Timeout));
        }
        Ok(())
    }

    fn look(&mut self, folder: &KeeperFolder) -> Settled {
        let unclear = !self.calm && (self.blind || self.chance.hits(1, 6));
        if unclear {
            return Settled::Unverifiable("simulated: no descriptors".to_owned());
        }
        let Some(keeper) = self.keepers.get(&folder.token) else {
            return match probe(folder) {
                Probe::Unused => {
                    Settled::Gone(mainstay_core::process::ProcessExit::of(ExitCause::ReservationUnused))
                }
                Probe::Alive { .. } | Probe::BeingBorn => Settled::NotYet,
                Probe::KeeperGone { agent: AgentTrace::Indeterminate { why } }
                | Probe::Indeterminate { why } => Settled::Unverifiable(why),
                other => Settled::Unverifiable(format!("unexpected: {other:?}")),
            };
        };
        match &keeper.life {
            Life::Runs | Life::Ends(_) | Life::Full => Settled::Alive,
            Life::Ended(record) => Settled::Gone(exit_fact(record)),
            Life::Killed => {
                Settled::Gone(exit_without_record(ExitCause::KeeperLost, Some(keeper.marks.clone())))
            }
        }
    }
}

impl Keeping for Handle {
    fn folder(&self, token: &str) -> KeeperFolder {
        self.lock().dir.folder(token)
    }

    fn reserve(&self, token: &str) -> Result<ReservedFolder, FolderError> {
        self.lock().dir.reserve(token)
    }

    fn start(&self, reserved: ReservedFolder, spec: &LaunchSpec) -> Result<(), BirthError> {
        self.lock().give_birth(reserved, spec)
    }

    fn open_link(&self, folder: &KeeperFolder, hello: ToKeeper) -> io::Result<Link> {
        let mut world = self.lock();
        let refused = !world.calm && (world.blind || world.chance.hits(1, 10));
        let keeper = world.keepers.get(&folder.token).filter(|keeper| keeper.lives() && !refused);
        if keeper.is_none() {
            return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        }
        let (link, far) = Link::pair();
        link.send_urgent(hello);
        world.with(&folder.token, |keeper, _| keeper.greet(far));
        Ok(link)
    }

    fn look(&self, folder: &KeeperFolder) -> Settled {
        self.lock().look(folder)
    }

    fn remove(&self, folder: &KeeperFolder) -> Result<(), FolderError> {
        let mut world = self.lock();
        let stays = !world.calm && world.chance.hits(1, 6);
        if let Some(keeper) = world.keepers.get_mut(&folder.token) {
            if keeper.lives() {
                world.violated(format!("the folder of {}, which lives, was removed", folder.token));
                return Err(FolderError::Busy);
            }
            keeper.reserved = None;
        }
        if stays {
            return Err(FolderError::Busy);
        }
        std::fs::remove_dir_all(&folder.path)
            .map_err(|source| FolderError::Io { doing: "delete the keeper's folder", source })
    }

    fn note_thread(&self, folder: &KeeperFolder, thread: &str) -> Result<(), FolderError> {
        if let Some(keeper) = self.lock().keepers.get_mut(&folder.token) {
            keeper.noted.push(thread.to_owned());
        }
        Ok(())
    }

    fn holder_of(&self, thread: &str, except: &dyn Fn(&str) -> bool) -> Option<String> {
        let world = self.lock();
        let holds = |keeper: &&Keeper| {
            keeper.lives() && !except(&keeper.token) && keeper.noted.iter().any(|noted| noted == thread)
        };
        world.keepers.values().find(holds).map(|keeper| keeper.token.clone())
    }

    fn unclaimed(&self, claimed: &BTreeSet<String>) -> Vec<String> {
        let mut world = self.lock();
        let lost: Vec<String> = world
            .keepers
            .values()
            .filter(|keeper| keeper.lives() && !claimed.contains(&keeper.token))
            .map(|keeper| keeper.token.clone())
            .collect();
        for token in &lost {
            if !world.is_abandoned(token) {
                world.violated(format!("{token} lives and no record claims it"));
            }
        }
        lost
    }
}

impl Clock for Handle {
    fn now(&self) -> i64 {
        self.lock().now
    }

    fn steady(&self) -> i64 {
        let world = self.lock();
        world.now + world.went_back
    }

    fn fresh_token(&self) -> ProcessToken {
        let mut world = self.lock();
        world.tokens += 1;
        ProcessToken(format!("p-{}", world.tokens))
    }
}
