//! One seed: a schedule of commands, steps of the world and faults, judged after every step.

use crate::alarm;
use crate::chance::Chance;
use crate::clients::Clients;
use crate::disk::Disk;
use crate::judging::Reader;
use crate::keeper::BadKeeper;
use crate::oracle::Judge;
use crate::world::{ACCOUNT_HOME, Handle, World};
use mainstay_agents::AgentKind;
use mainstay_core::{AgentName, HostId, SessionId};
use mainstay_host::fault::FaultPlan;
use mainstay_host::keeping::{Blocking, Planted, Seams};
use mainstay_host::{AgentConfig, Host, HostConfig, Isolation, ShutdownMode};
use mainstay_keeper::DisconnectReason;
use mainstay_store::{Fault, Store, WriteError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Sessions of a run.
pub(crate) const SESSIONS: usize = 3;
/// Rounds after which a host must have ended: longer than it waits for its lanes.
const SHUTDOWN_ROUNDS: usize = 200;
/// What was wrong, and how it came about.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) trace: Vec<String>,
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
pub(crate) fn seed(
    seed: u64,
    home: &Path,
    kind: AgentKind,
    planted: Option<Planted>,
    bad: Option<BadKeeper>,
    traced: bool,
) -> Result<Covered, Failure> {
    let home = home.join(format!("seed-{seed}"));
    std::fs::create_dir_all(&home).expect("a folder for the seed");
    let world = Handle(Arc::new(Mutex::new(World::new(seed.wrapping_mul(2) + 1, &home, kind, bad, traced))));
    let mut chance = Chance::new(seed);
    let left = 60 + chance.below(240);
    let mut run = Run {
        world: world.clone(),
        chance,
        clients: Arc::default(),
        judges: (0..SESSIONS).map(|_| None).collect(),
        read: vec![0; SESSIONS],
        planted,
        config: config(&home, kind, seed),
        covered: Covered::default(),
        left,
        kind,
    };
    alarm::clear();
    let outcome = run.lives();
    let trace = world.lock().trace.take().unwrap_or_default();
    run.covered.processes = world.lock().keepers.len();
    world.lock().keepers.clear();
    std::fs::remove_dir_all(&home).expect("the seed's folder goes");
    match outcome {
        Ok(()) => Ok(run.covered),
        Err(why) => Err(Failure { why, trace }),
    }
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
        spool_limit: 64 << 20,
        stream_flush: Duration::from_millis(5),
        max_processes: if scarce { 1 } else { 8 },
        max_starting: if scarce { 1 } else { 2 },
        retention: mainstay_host::Retention::default(),
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
    fn next_disk(&self) {
        let mut world = self.world.lock();
        world.disk = Arc::new(Disk::on(world.disk.durable.crash()));
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
        let host = Host::with(self.config.clone(), seams).map_err(|error| format!("no start: {error}"))?;
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
            self.judge()?;
        }
        self.rest(&host, &mut readers).await?;
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
            while world.disk.acknowledge_one() {}
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
                if world.disk.acknowledge_one() {
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

    fn fault(&mut self) {
        let mut world = self.world.lock();
        let tokens: Vec<String> = world
            .keepers
            .values()
            .filter(|keeper| keeper.lives())
            .map(|keeper| keeper.token.clone())
            .collect();
        let choice = self.chance.below(if self.kind == AgentKind::Codex { 20 } else { 16 });
        if matches!(choice, 12 | 13) {
            world.blind = !world.blind && choice == 12;
            let blind = world.blind;
            world.note(|| format!("fault: nothing can be seen: {blind}"));
            return;
        }
        if choice < 6 {
            let fault = match choice {
                0 | 1 => Fault::LoseAcknowledgement,
                2 => Fault::FailCommit(WriteError::DiskFull),
                3 => Fault::FailCommit(WriteError::Invalid { detail: "simulated".to_owned() }),
                _ => Fault::FailCommit(WriteError::Io { detail: "simulated".to_owned() }),
            };
            world.note(|| format!("fault: {fault:?}"));
            for _ in 0..[1, 1, 1, 2, 4][self.chance.below(5)] {
                world.disk.inject(fault.clone());
            }
            return;
        }
        if choice == 6 {
            let back = self.chance.below(5_000);
            world.now -= i64::try_from(back).unwrap_or(0);
            world.note(|| format!("fault: the clock goes back by {back} ms"));
            return;
        }
        let Some(token) = self.chance.pick(&tokens) else { return };
        let what = match choice {
            7 => {
                world.with(token, |keeper, around| keeper.agent.die(around.truth));
                "its agent dies"
            }
            8 => {
                world.with(token, |keeper, around| keeper.kill(around.truth));
                "is killed"
            }
            9 => {
                world.with(token, |keeper, around| keeper.die_writing(around));
                "is killed while it writes"
            }
            10 => {
                world.with(token, |keeper, _| keeper.cut_line());
                "loses its line"
            }
            14 | 15 => {
                world.with(token, |keeper, _| keeper.stopped = choice == 14 && !keeper.stopped);
                "is stopped, or goes on"
            }
            16.. => {
                world.with(token, |keeper, around| keeper.disconnect(DisconnectReason::Dropped, around));
                "loses its connection to the agent"
            }
            _ => {
                world.with(token, |keeper, _| keeper.tell_status());
                "says once more where it stands"
            }
        };
        world.note(|| format!("fault: {token} {what}"));
    }
}
