//! One seed: a schedule of commands, steps of the world and faults, judged after every step.

use crate::alarm;
use crate::chance::Chance;
use crate::clients::Clients;
use crate::disk::Disk;
use crate::judging::Reader;
use crate::keeper::BadKeeper;
use crate::oracle::Judge;
use crate::replay::Watch;
use crate::world::{ACCOUNT_HOME, Handle, World};
use mainstay_agents::AgentKind;
use mainstay_core::{AgentName, HostId, SessionId};
use mainstay_host::fault::FaultPlan;
use mainstay_host::host::lock_home;
use mainstay_host::keeping::{Blocking, Planted, Seams};
use mainstay_host::{AgentConfig, Host, HostConfig, Isolation, ShutdownMode, StartError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Sessions of a run.
pub(crate) const SESSIONS: usize = 3;
/// Rounds after which a host must have ended: longer than it waits for its lanes.
const SHUTDOWN_ROUNDS: usize = 200;
/// Bytes of a spool that is soon full.
const SMALL_SPOOL: u64 = 2_000;
/// What was wrong.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
}

/// How a seed is run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Options {
    /// A fault of the host that is there on purpose.
    pub(crate) planted: Option<Planted>,
    /// A fault of the keepers that is there on purpose.
    pub(crate) bad: Option<BadKeeper>,
    pub(crate) watch: Watch,
    /// Journals fail and are repaired also while the host lives, not only between two lives.
    pub(crate) journal_fails: bool,
}

impl Options {
    pub(crate) fn traced() -> Self {
        Self { watch: Watch::Trace, ..Self::default() }
    }
}

/// What a run covered.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Covered {
    pub(crate) steps: usize,
    pub(crate) crashes: usize,
    pub(crate) events: usize,
    pub(crate) processes: usize,
    pub(crate) taken: usize,
    pub(crate) answers: usize,
}

impl Covered {
    pub(crate) fn add(&mut self, other: &Self) {
        self.steps += other.steps;
        self.crashes += other.crashes;
        self.events += other.events;
        self.processes += other.processes;
        self.taken += other.taken;
        self.answers += other.answers;
    }
}

pub(crate) struct Run {
    pub(crate) world: Handle,
    /// The driver's own chance, so that what agents do does not change with the schedule alone.
    pub(crate) chance: Chance,
    pub(crate) clients: Arc<Mutex<Clients>>,
    pub(crate) judges: Vec<Option<Judge>>,
    /// How many rows each session's reader has seen.
    pub(crate) read: Vec<usize>,
    pub(crate) planted: Option<Planted>,
    pub(crate) config: HostConfig,
    pub(crate) covered: Covered,
    pub(crate) left: usize,
    pub(crate) kind: AgentKind,
    pub(crate) watch: Watch,
    /// Lines of the trace that somebody who steps through was shown.
    pub(crate) told: usize,
    /// The position up to which a reader of the feed has read it, over all lives of the host.
    pub(crate) feed_read: u64,
    /// The session whose journal cannot be read, until it is repaired, or for ever: it stops no other.
    pub(crate) damaged: Option<usize>,
    /// Journals fail and are repaired also while the host lives.
    pub(crate) journal_fails: bool,
}

enum LifeEnd {
    Crash,
    Shutdown,
    Rest,
}

pub(crate) fn session_id(index: usize) -> SessionId {
    SessionId(format!("s{index}"))
}

/// Runs one seed.
pub(crate) fn seed(seed: u64, home: &Path, kind: AgentKind, options: &Options) -> Result<Covered, Failure> {
    traced_seed(seed, home, kind, options).0
}

/// Runs one seed; gives how it came about too, where that is wanted.
pub(crate) fn traced_seed(
    seed: u64,
    home: &Path,
    kind: AgentKind,
    options: &Options,
) -> (Result<Covered, Failure>, Vec<String>) {
    let home = home.join(format!("seed-{seed}"));
    std::fs::create_dir_all(&home).expect("a folder for the seed");
    let traced = options.watch != Watch::No;
    let world = World::new(seed.wrapping_mul(2) + 1, &home, kind, options.bad, traced);
    let world = Handle(Arc::new(Mutex::new(world)));
    let mut chance = Chance::new(seed);
    let left = 60 + chance.below(240);
    let mut run = Run {
        world: world.clone(),
        chance,
        clients: Arc::default(),
        judges: (0..SESSIONS).map(|_| None).collect(),
        read: vec![0; SESSIONS],
        planted: options.planted,
        config: config(&home, kind, seed),
        covered: Covered::default(),
        left,
        kind,
        watch: options.watch,
        told: 0,
        feed_read: 0,
        damaged: None,
        journal_fails: options.journal_fails,
    };
    alarm::clear();
    let outcome = run.lives();
    run.show_step();
    // Where it ran is no part of what happened.
    let place = home.display().to_string();
    let trace = world.lock().trace.take().unwrap_or_default();
    let trace = trace.into_iter().map(|line| line.replace(&place, "HOME")).collect();
    run.covered.processes = world.lock().keepers.len();
    world.lock().keepers.clear();
    std::fs::remove_dir_all(&home).expect("the seed's folder goes");
    (outcome.map(|()| run.covered).map_err(|why| Failure { why }), trace)
}

fn config(home: &Path, kind: AgentKind, seed: u64) -> HostConfig {
    // Some hosts are short of processes and put agents to rest soon.
    let scarce = seed % 5 == 4;
    let agent = AgentConfig {
        isolation: if seed.is_multiple_of(4) { Isolation::Session } else { Isolation::Profile },
        sessions_per_process: [2, 3, 16][usize::try_from(seed % 3).unwrap_or(0)],
        home: (kind == AgentKind::Claude).then(|| home.join(ACCOUNT_HOME)),
        // Never run: it only has to be there.
        ..AgentConfig::new(kind, vec!["/bin/sh".to_owned()])
    };
    HostConfig {
        home: home.to_path_buf(),
        host_id: HostId::from("sim"),
        roots: vec![home.to_path_buf()],
        rest_after: Duration::from_secs(if scarce { 3 } else { 3600 }),
        linger: Duration::from_secs(3600),
        // Some spools are small, so that a host that is away long enough meets their limit.
        spool_limit: if seed % 6 == 5 { SMALL_SPOOL } else { 64 << 20 },
        stream_flush: Duration::from_millis(5),
        max_processes: if scarce { 1 } else { 8 },
        max_starting: if scarce { 1 } else { 2 },
        retention: mainstay_host::Retention::default(),
        limits: Default::default(),
        agents: BTreeMap::from([(AgentName::from("sim"), agent)]),
        environment: Vec::new(),
        keeper_program: home.to_path_buf(),
        keeper_args: Vec::new(),
        fault: FaultPlan::default(),
    }
}

impl Run {
    /// Lives of the host, one after the other, until everything is at rest.
    fn lives(&mut self) -> Result<(), String> {
        loop {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                // One task at a time, so that a crash can come between any two.
                .event_interval(1)
                .build()
                .expect("a runtime");
            let end = runtime.block_on(self.life());
            // As by `kill -9`: nothing of the host runs on.
            drop(runtime);
            self.judge()?;
            match end? {
                LifeEnd::Rest => return Ok(()),
                LifeEnd::Crash => self.crash(),
                LifeEnd::Shutdown => self.next_disk(),
            }
        }
    }

    fn crash(&mut self) {
        self.covered.crashes += 1;
        let mut world = self.world.lock();
        world.note(|| "-- the host is killed".to_owned());
        // What it had submitted may have reached the disk.
        while self.chance.hits(1, 2) && world.disk.commit_one() {}
        drop(world);
        self.next_disk();
    }

    /// What is durable goes on; nothing else of the former host does.
    fn next_disk(&mut self) {
        let mut world = self.world.lock();
        world.disk = Arc::new(Disk::on(world.disk.durable.crash()));
        if let Some(session) = self.damaged.take_if(|_| self.chance.hits(1, 3)) {
            world.note(|| format!("-- the journal of s{session} can be read again"));
        }
        if let Some(judge) = self.damaged.and_then(|session| self.judges[session].as_ref()) {
            world.disk.damage(judge.key);
        } else if !world.calm && self.chance.hits(1, 10) {
            let session = self.chance.below(SESSIONS);
            if let Some(judge) = &self.judges[session] {
                world.note(|| format!("-- the journal of s{session} is damaged"));
                world.disk.damage(judge.key);
                self.damaged = Some(session);
            }
        }
        for keeper in world.keepers.values_mut() {
            keeper.forget_host();
            keeper.leave();
        }
    }

    async fn life(&mut self) -> Result<LifeEnd, String> {
        let disk = self.world.lock().disk.clone();
        let seams = Seams {
            store: disk,
            keeping: Arc::new(self.world.clone()),
            clock: Arc::new(self.world.clone()),
            blocking: Blocking::Inline,
            planted: self.planted,
        };
        let lock = lock_home(&self.config.home).map_err(|error| format!("the home is not free: {error}"))?;
        let host = Host::with(self.config.clone(), seams).map_err(|error| format!("no start: {error}"))?;
        if self.chance.hits(1, 8)
            && !matches!(lock_home(&self.config.home), Err(StartError::HomeTaken { .. }))
        {
            return Err("a second host takes the home beside the first".to_owned());
        }
        let mut readers: Vec<Reader> = Vec::new();
        while self.left > 0 {
            self.left -= 1;
            self.covered.steps += 1;
            if self.chance.hits(1, 60) {
                return Ok(LifeEnd::Crash);
            }
            if self.chance.hits(1, 150) {
                self.shut_down(&host).await?;
                return Ok(LifeEnd::Shutdown);
            }
            self.step(&host).await;
            for _ in 0..self.chance.below(5) {
                tokio::task::yield_now().await;
                if self.chance.hits(1, 400) {
                    return Ok(LifeEnd::Crash);
                }
            }
            self.follow(&host, &mut readers, false).await?;
            if self.chance.hits(1, 6) {
                self.follow_feed(&host).await?;
            }
            self.judge()?;
            self.show_step();
        }
        self.rest(&host, &mut readers).await?;
        drop(lock);
        Ok(LifeEnd::Rest)
    }

    /// The host ends in order, while the world goes on.
    async fn shut_down(&mut self, host: &Arc<Host>) -> Result<(), String> {
        let mode = [ShutdownMode::Detach, ShutdownMode::CloseIdle, ShutdownMode::Kill][self.chance.below(3)];
        self.world.lock().note(|| format!("-- the host shuts down: {mode:?}"));
        let ending = tokio::spawn({
            let host = host.clone();
            async move { host.shutdown(mode).await }
        });
        for _ in 0..SHUTDOWN_ROUNDS {
            self.settle(2).await;
            self.judge()?;
            if ending.is_finished() {
                return Ok(());
            }
            self.pass(250).await;
        }
        Err("the host does not end".to_owned())
    }

    /// One step of somebody.
    async fn step(&mut self, host: &Arc<Host>) {
        match self.chance.below(40) {
            0..=6 => self.command(host),
            7..=27 => self.world_step(),
            28..=31 => {
                let ms = [1, 5, 60, 250, 600, 600, 3_000, 16_000][self.chance.below(8)];
                self.pass(ms).await;
            }
            32..=36 => self.settle(3).await,
            _ => self.fault(),
        }
    }

    pub(crate) async fn pass(&mut self, ms: u64) {
        {
            let mut world = self.world.lock();
            world.now += i64::try_from(ms).unwrap_or(0);
            world.note(|| format!("time: {ms} ms"));
        }
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    /// Lets the host and the world run for some rounds without anything from outside.
    pub(crate) async fn settle(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for _ in 0..6 {
                tokio::task::yield_now().await;
            }
            let tokens: Vec<String> = self.world.lock().keepers.keys().cloned().collect();
            let mut world = self.world.lock();
            while world.disk.commit_one() {}
            while world.disk.acknowledge(0) {}
            for token in tokens {
                world.with(&token, |keeper, around| while keeper.hear(around) {});
                world.with(&token, |keeper, around| keeper.connect(around.now));
                world.with(&token, |keeper, around| while keeper.write_one(around) {});
                let calm = world.calm;
                for _ in 0..3 {
                    world.with(&token, |keeper, around| keeper.run_agent(calm, around));
                }
                world.with(&token, |keeper, around| keeper.end(around));
                world.with(&token, |keeper, _| {
                    while keeper.deliver_one() {}
                    keeper.leave();
                });
            }
        }
    }

    /// One small step of the store, a keeper or an agent.
    fn world_step(&mut self) {
        let mut world = self.world.lock();
        match self.chance.below(9) {
            0 | 1 => {
                if world.disk.commit_one() {
                    world.note(|| "store: one write is durable".to_owned());
                }
                return;
            }
            2 | 3 => {
                // Lanes are told in any order.
                let place = self.chance.below(3);
                if world.disk.acknowledge(place) {
                    world.note(|| "store: one write is acknowledged".to_owned());
                }
                return;
            }
            _ => {}
        }
        let tokens: Vec<String> = world
            .keepers
            .values()
            .filter(|keeper| keeper.lives() || keeper.is_busy())
            .map(|keeper| keeper.token.clone())
            .collect();
        let Some(token) = self.chance.pick(&tokens) else { return };
        let calm = world.calm;
        let choice = self.chance.below(6);
        let (what, done) = match choice {
            0 => ("hears", world.with(token, |keeper, around| keeper.hear(around))),
            1 => ("writes", world.with(token, |keeper, around| keeper.write_one(around))),
            2 | 3 => {
                ("its agent goes on", world.with(token, |keeper, around| keeper.run_agent(calm, around)))
            }
            4 if self.chance.hits(1, 3) => {
                ("connects", world.with(token, |keeper, around| keeper.connect(around.now)))
            }
            4 => ("tells", world.with(token, |keeper, _| keeper.deliver_one())),
            _ => (
                "ends",
                world.with(token, |keeper, around| {
                    let ended = keeper.end(around);
                    keeper.leave();
                    ended
                }),
            ),
        };
        if done == Some(true) {
            world.note(|| format!("{token}: {what}"));
        }
    }
}
