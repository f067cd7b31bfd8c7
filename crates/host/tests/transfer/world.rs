//! A host on a store of choice, with a clock that stands still and no keepers.

use mainstay_core::{AgentName, HostId, ProcessToken};
use mainstay_host::fault::FaultPlan;
use mainstay_host::keeping::{Blocking, Clock, Keeping, Link, Seams, Settled};
use mainstay_host::transfer::Spooled;
use mainstay_host::{AgentConfig, Host, HostConfig, Retention};
use mainstay_keeper::wire::ToKeeper;
use mainstay_keeper::{BirthError, FolderError, KeeperFolder, KeepersDir, LaunchSpec, ReservedFolder};
use mainstay_store::{MemoryStore, SqliteOptions, SqliteStore, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

/// When everything happens, unless a test says otherwise, Unix ms.
pub(crate) const NOW: i64 = 1_800_000_000_000;
/// Reached only by a defect.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// There are none.
#[derive(Debug)]
struct NoKeepers(KeepersDir);

impl Keeping for NoKeepers {
    fn folder(&self, token: &str) -> KeeperFolder {
        self.0.folder(token)
    }

    fn reserve(&self, token: &str) -> Result<ReservedFolder, FolderError> {
        panic!("no agent is started here, and {token} was to be");
    }

    fn start(&self, _: ReservedFolder, _: &LaunchSpec) -> Result<(), BirthError> {
        panic!("no agent is started here");
    }

    fn open_link(&self, _: &KeeperFolder, _: ToKeeper) -> std::io::Result<Link> {
        panic!("there is no keeper here");
    }

    fn look(&self, _: &KeeperFolder) -> Settled {
        panic!("there is no keeper here");
    }

    fn remove(&self, _: &KeeperFolder) -> Result<(), FolderError> {
        Ok(())
    }

    fn holder_of(&self, _: &str, _: &dyn Fn(&str) -> bool) -> Option<String> {
        None
    }

    fn note_thread(&self, _: &KeeperFolder, _: &str) -> Result<(), FolderError> {
        Ok(())
    }

    fn unclaimed(&self, _: &BTreeSet<String>) -> Vec<String> {
        Vec::new()
    }
}

/// Stands still until it is moved.
#[derive(Debug)]
pub(crate) struct HandClock {
    now: AtomicI64,
    /// By how much somebody set it, while no time passed.
    set_by: AtomicI64,
    tokens: AtomicU64,
}

impl HandClock {
    pub(crate) fn set(&self, now: i64) {
        self.now.store(now, Ordering::SeqCst);
    }

    /// Sets the wall clock; no time passes.
    pub(crate) fn step(&self, by: i64) {
        self.set_by.fetch_add(by, Ordering::SeqCst);
        self.now.fetch_add(by, Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> i64 {
        self.now.load(Ordering::SeqCst)
    }

    fn steady(&self) -> i64 {
        self.now() - self.set_by.load(Ordering::SeqCst)
    }

    fn fresh_token(&self) -> ProcessToken {
        ProcessToken(format!("p-{}", self.tokens.fetch_add(1, Ordering::SeqCst)))
    }
}

pub(crate) struct World {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) host: Arc<Host>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<HandClock>,
}

impl World {
    pub(crate) fn on(store: Arc<dyn Store>) -> Self {
        Self::with(store, "this-host", Retention::default())
    }

    pub(crate) fn with(store: Arc<dyn Store>, name: &str, retention: Retention) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("state")).expect("a folder");
        let config = config(folder.path(), name, retention);
        let clock = Arc::new(HandClock {
            now: AtomicI64::new(NOW),
            set_by: AtomicI64::new(0),
            tokens: AtomicU64::new(1),
        });
        let seams = Seams {
            store: store.clone(),
            keeping: Arc::new(NoKeepers(KeepersDir::new(folder.path().join("keepers")))),
            clock: clock.clone(),
            blocking: Blocking::Pool,
            planted: None,
        };
        let host = Host::with(config, seams).expect("a host");
        Self { folder, host, store, clock }
    }

    /// A folder that sessions may work in.
    pub(crate) fn work(&self) -> String {
        let work = self.folder.path().join("work");
        std::fs::create_dir_all(&work).expect("a folder");
        work.display().to_string()
    }

    pub(crate) fn spooled(&self, bytes: &[u8]) -> Spooled {
        let mut file = Spooled::new(self.folder.path()).expect("a file");
        // In pieces, as it comes from a client.
        bytes.chunks(7_001).for_each(|piece| file.write(piece).expect("written"));
        file
    }
}

pub(crate) fn config(folder: &Path, name: &str, retention: Retention) -> HostConfig {
    let agent = AgentConfig::new(mainstay_agents::AgentKind::Acp, vec!["/nowhere/agent".to_owned()]);
    HostConfig {
        home: folder.join("state"),
        host_id: HostId::from(name),
        roots: vec![folder.to_path_buf()],
        rest_after: Duration::from_secs(3_600),
        linger: Duration::from_secs(3_600),
        spool_limit: 1 << 20,
        stream_flush: Duration::ZERO,
        max_processes: 1,
        max_starting: 1,
        retention,
        limits: Default::default(),
        agents: BTreeMap::from([(AgentName::from("absent"), agent)]),
        environment: Vec::new(),
        keeper_program: "/nowhere/keeper".into(),
        keeper_args: Vec::new(),
        fault: FaultPlan::default(),
    }
}

pub(crate) fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// The store's files go with the folder.
pub(crate) fn sqlite(folder: &tempfile::TempDir) -> Arc<dyn Store> {
    sqlite_with(folder, SqliteOptions::default())
}

pub(crate) fn sqlite_with(folder: &tempfile::TempDir, options: SqliteOptions) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(folder.path().join("test.db"), options).expect("opens").store)
}
