//! One seed: a schedule of commands, steps of the world and faults, judged after every step.

use crate::alarm;
use crate::chance::Chance;
use crate::disk::Disk;
use crate::keeper::BadKeeper;
use crate::oracle::{Judge, text_of};
use crate::world::{Handle, World};
use mainstay_agents::AgentKind;
use mainstay_core::content::{Answer, ContentBlock, Delivery};
use mainstay_core::operation::Fingerprint;
use mainstay_core::process::CloseOrder;
use mainstay_core::session::RequestState;
use mainstay_core::{AgentName, Command, Cursor, HostId, ItemId, RequestId, SessionId, SessionOptions, SubmissionId};
use mainstay_host::fault::FaultPlan;
use mainstay_host::keeping::{Blocking, Planted, Seams};
use mainstay_host::{
    AgentConfig, Delivered, Host, HostConfig, HostError, NewSessionRequest, Operation, ShutdownMode, Subscription,
};
use mainstay_keeper::DisconnectReason;
use mainstay_store::{Fault, SessionFilter, SessionKey, Store, WriteError};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Sessions of a run.
const SESSIONS: usize = 2;
/// Rounds without any change after which everything is at rest. With the time that passes in each, longer than every
/// pause of a lane.
const QUIET_ROUNDS: usize = 8;
/// Rounds after which a host must have ended: longer than it waits for its lanes.
const SHUTDOWN_ROUNDS: usize = 200;
/// Rounds after which a world that is not at rest never will be.
const MOST_ROUNDS: usize = 600;

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

/// What clients know.
#[derive(Debug, Default)]
struct Clients {
    sent: usize,
    /// Sent, with the session it went to, and not yet known to be accepted or refused.
    unknown: BTreeMap<SubmissionId, (usize, Delivery)>,
    accepted: Vec<(usize, SubmissionId)>,
    won: Vec<(usize, RequestId, String)>,
    answers: usize,
}

struct Reader {
    subscription: Subscription,
    session: usize,
}

struct Run {
    world: Handle,
    /// The driver's own chance, so that what agents do does not change with the schedule alone.
    chance: Chance,
    clients: Arc<Mutex<Clients>>,
    judges: Vec<Option<Judge>>,
    /// How many rows each session's reader has seen.
    read: Vec<usize>,
    planted: Option<Planted>,
    config: HostConfig,
    covered: Covered,
    left: usize,
    codex: bool,
}

enum LifeEnd {
    Crash,
    Shutdown,
    Rest,
}

fn session_id(index: usize) -> SessionId {
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
        codex: kind == AgentKind::Codex,
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
        kind,
        // Never run: it only has to be there.
        command: vec!["/bin/sh".to_owned()],
        home: None,
        env: BTreeMap::new(),
        env_pass: Vec::new(),
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
                let ms = [1, 5, 60, 250, 600][self.chance.below(5)];
                self.pass(ms).await;
            }
            32..=36 => self.settle(3).await,
            _ => self.fault(),
        }
    }

    async fn pass(&mut self, ms: u64) {
        {
            let mut world = self.world.lock();
            world.now += i64::try_from(ms).unwrap_or(0);
            world.note(|| format!("time: {ms} ms"));
        }
        tokio::time::advance(Duration::from_millis(ms)).await;
    }

    /// Lets the host and the world run for some rounds without anything from outside.
    async fn settle(&mut self, rounds: usize) {
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
        let tokens: Vec<String> =
            world.keepers.values().filter(|keeper| keeper.lives() || keeper.is_busy()).map(|keeper| keeper.token.clone()).collect();
        let Some(token) = self.chance.pick(&tokens) else { return };
        let calm = world.calm;
        let choice = self.chance.below(6);
        let (what, done) = match choice {
            0 => ("hears", world.with(token, |keeper, around| keeper.hear(around))),
            1 => ("writes", world.with(token, |keeper, around| keeper.write_one(around))),
            2 | 3 => ("its agent goes on", world.with(token, |keeper, around| keeper.run_agent(calm, around))),
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
        let tokens: Vec<String> =
            world.keepers.values().filter(|keeper| keeper.lives()).map(|keeper| keeper.token.clone()).collect();
        let choice = self.chance.below(if self.codex { 18 } else { 14 });
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
            14.. => {
                world.with(token, |keeper, around| keeper.disconnect(around.now, DisconnectReason::Dropped));
                "loses its connection to the agent"
            }
            _ => {
                world.with(token, |keeper, _| keeper.tell_status());
                "says once more where it stands"
            }
        };
        world.note(|| format!("fault: {token} {what}"));
    }

    /// The options of the agents' requests: yes and no.
    fn words(&self) -> (String, String) {
        let words = if self.codex { ("accept", "decline") } else { ("yes", "no") };
        (words.0.to_owned(), words.1.to_owned())
    }

    fn fold(&self, session: usize) -> Option<&mainstay_core::Session> {
        self.judges.get(session)?.as_ref()?.fold.as_ref()
    }

    /// A client asks for something; its answer comes when it comes.
    fn command(&mut self, host: &Arc<Host>) {
        let session = self.chance.below(SESSIONS);
        if self.judges[session].is_none() {
            return self.create(host, session);
        }
        let command = match self.chance.below(23) {
            0..=6 => return self.send(host, session),
            7..=11 => return self.answer(host, session),
            12 | 13 => Command::Interrupt,
            14 => Command::Stop {
                order: if self.chance.hits(1, 2) { CloseOrder::User } else { CloseOrder::Kill },
            },
            15 => Command::Start,
            16 => {
                let open: Vec<SubmissionId> = self
                    .fold(session)
                    .map(|fold| fold.submissions.iter().map(|open| open.id.clone()).collect())
                    .unwrap_or_default();
                let Some(submission) = self.chance.pick(&open) else { return };
                Command::Withdraw { submission: submission.clone() }
            }
            17 | 18 => Command::ResumeQueue,
            19 if self.fold(session).is_some_and(|fold| fold.unverifiable.is_some()) => Command::Abandon,
            19 => Command::StartFresh,
            20 if self.chance.hits(1, 6) => Command::Delete,
            20 | 21 => Command::Update {
                name: Some(self.chance.hits(1, 2).then(|| "named".to_owned())),
                options: None,
                archived: None,
            },
            _ => Command::Update { name: None, options: None, archived: Some(self.chance.hits(1, 3)) },
        };
        self.ask(host, session, command);
    }

    fn ask(&self, host: &Arc<Host>, session: usize, command: Command) {
        self.world.lock().note(|| format!("client: s{session} {command:?}"));
        let host = host.clone();
        tokio::spawn(async move {
            // Refusals are answers too; what was done stands in the journal.
            drop(host.command(session_id(session).as_str(), command, None).await);
        });
    }

    fn create(&mut self, host: &Arc<Host>, session: usize) {
        let prompt = self.chance.hits(1, 2).then(|| {
            let submission = SubmissionId(format!("first-{session}"));
            let content = vec![ContentBlock::text(&text_of(&submission))];
            (submission, content)
        });
        let request = NewSessionRequest {
            id: Some(session_id(session)),
            agent: AgentName::from("sim"),
            cwd: self.config.home.display().to_string(),
            name: None,
            options: SessionOptions::default(),
            additional_directories: Vec::new(),
            mcp_servers: Vec::new(),
            instructions: None,
            account_home: None,
            prompt,
        };
        self.world.lock().note(|| format!("client: creates s{session}"));
        let host = host.clone();
        let (world, clients) = (self.world.clone(), self.clients.clone());
        tokio::spawn(async move {
            let submission = request.prompt.as_ref().map(|(submission, _)| submission.clone());
            if host.create(request, None).await.is_ok() {
                let durable = world.lock().disk.session_by_id(session_id(session).as_str());
                if !durable.is_ok_and(|row| row.is_some()) {
                    world.lock().violated(format!("s{session} was answered and is not durable"));
                }
                if let Some(submission) = submission {
                    let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
                    clients.accepted.push((session, submission));
                }
            }
        });
    }

    fn send(&mut self, host: &Arc<Host>, session: usize) {
        let again: Vec<(SubmissionId, (usize, Delivery))> = {
            let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            clients.unknown.iter().map(|(id, to)| (id.clone(), *to)).collect()
        };
        let (submission, session, delivery) = match self.chance.pick(&again) {
            // Whoever did not get an answer asks again under the same id.
            Some((id, (session, delivery))) if self.chance.hits(1, 2) => (id.clone(), *session, *delivery),
            _ => {
                let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
                clients.sent += 1;
                let delivery = match self.chance.below(5) {
                    0 => Delivery::Interrupt,
                    1 => Delivery::Queue,
                    _ => Delivery::Auto,
                };
                let id = SubmissionId(format!("m{}", clients.sent));
                clients.unknown.insert(id.clone(), (session, delivery));
                (id, session, delivery)
            }
        };
        self.world.lock().note(|| format!("client: s{session} sends {submission} ({delivery:?})"));
        let content = vec![ContentBlock::text(&text_of(&submission))];
        let send = Command::Send { submission: submission.clone(), content, delivery, resends: None };
        let (host, world, clients) = (host.clone(), self.world.clone(), self.clients.clone());
        let keyed = self.chance.hits(1, 2);
        tokio::spawn(async move {
            let operation = keyed.then(|| Operation {
                key: format!("op-{submission}"),
                fingerprint: Fingerprint(submission.to_string()),
                respond: Box::new(|_, _, cursor| (202, format!("{cursor:?}").into_bytes())),
            });
            let answer = host.command(session_id(session).as_str(), send, operation).await;
            let durable = world.lock().disk.id_owner("submission", submission.as_str());
            let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(_) => {
                    if !durable.is_ok_and(|owner| owner.is_some()) {
                        world.lock().violated(format!("{submission} was answered and is not durable"));
                    }
                    clients.unknown.remove(&submission);
                    clients.accepted.push((session, submission));
                }
                Err(HostError::IdConflict { .. }) => {
                    world.lock().violated(format!("{submission}: sent again and called a conflict"));
                }
                Err(HostError::Refused(_)) => {
                    clients.unknown.remove(&submission);
                }
                // Not known: it may be asked again.
                Err(_) => {}
            }
        });
    }

    fn answer(&mut self, host: &Arc<Host>, session: usize) {
        let Some(fold) = self.fold(session) else { return };
        let mut requests: Vec<(RequestId, u64)> =
            fold.requests.iter().map(|open| (open.id.clone(), open.revision)).collect();
        // Late answers too.
        requests.extend(fold.closed_requests.iter().rev().take(1).map(|closed| (closed.id.clone(), 1)));
        let Some((request, revision)) = self.chance.pick(&requests).cloned() else { return };
        // Two clients at once.
        for client in ["ann", "bob"] {
            let answer = match self.chance.below(4) {
                0 => Answer::Select { option_id: self.words().1 },
                1 => Answer::Decline { message: None },
                _ => Answer::Select { option_id: self.words().0 },
            };
            self.answer_as(host, session, request.clone(), Some(revision), answer, client);
        }
    }

    fn answer_as(
        &self,
        host: &Arc<Host>,
        session: usize,
        request: RequestId,
        revision: Option<u64>,
        answer: Answer,
        client: &str,
    ) {
        let by = {
            let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            clients.answers += 1;
            format!("{client}-{}", clients.answers)
        };
        self.world.lock().note(|| format!("client: {by} answers {request} with {answer:?}"));
        let command = Command::Answer { request: request.clone(), revision, answer, by: by.clone() };
        let (host, clients) = (host.clone(), self.clients.clone());
        tokio::spawn(async move {
            if host.command(session_id(session).as_str(), command, None).await.is_ok() {
                let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
                clients.won.push((session, request, by));
            }
        });
    }

    /// Readers read: what they get is durable, in order, without a hole.
    async fn follow(
        &mut self,
        host: &Arc<Host>,
        readers: &mut Vec<Reader>,
        all: bool,
    ) -> Result<(), String> {
        for session in 0..SESSIONS {
            // Nobody can begin to read a session that is deleted.
            let known = self.fold(session).is_some_and(|fold| !fold.deleted);
            if known && !readers.iter().any(|reader| reader.session == session) {
                let seen = self.read[session];
                let seq = match seen {
                    0 => 0,
                    seen => self.judges[session].as_ref().map_or(0, |judge| judge.rows[seen - 1].seq),
                };
                let after = Some(Cursor { epoch: 1, seq });
                let subscription = match host.subscribe(session_id(session).as_str(), after).await {
                    Ok(subscription) => subscription,
                    // Deleted a moment ago.
                    Err(HostError::SessionUnknown(_)) => continue,
                    Err(error) => return Err(format!("no subscription: {error}")),
                };
                readers.push(Reader { subscription, session });
            }
        }
        for reader in readers.iter_mut() {
            if !all && self.chance.hits(2, 3) {
                continue;
            }
            loop {
                let lines = match reader.subscription.pull().await {
                    Ok(Delivered::Events(lines)) => lines,
                    Ok(Delivered::CaughtUp) => break,
                    Ok(Delivered::Reset(reset)) => return Err(format!("a reader was reset: {reset:?}")),
                    Err(error) => return Err(format!("a reader cannot read: {error}")),
                };
                self.judge()?;
                let Some(Some(judge)) = self.judges.get(reader.session) else { continue };
                for line in lines {
                    let at = self.read[reader.session];
                    match judge.rows.get(at) {
                        Some(row) if row.seq == line.seq && row.body == line.json.as_ref() => {
                            self.read[reader.session] += 1;
                        }
                        Some(row) => {
                            return Err(format!("a reader got #{} where #{} is durable", line.seq, row.seq));
                        }
                        None => return Err(format!("a reader got #{}, which is not durable", line.seq)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Everything that must always hold.
    fn judge(&mut self) -> Result<(), String> {
        let mut world = self.world.lock();
        let world = &mut *world;
        for said in alarm::said() {
            world.note(|| format!("   host: {said}"));
        }
        if let Some(violation) = world.truth.violations.first() {
            return Err(violation.clone());
        }
        if let Some(alarm) = alarm::raised() {
            return Err(alarm);
        }
        for (index, judge) in self.judges.iter_mut().enumerate() {
            if judge.is_none()
                && let Ok(Some(row)) = world.disk.session_by_id(session_id(index).as_str())
            {
                *judge = Some(Judge::of(row.key));
            }
            if let Some(judge) = judge {
                judge.read(&world.disk.durable, &world.truth, &mut world.trace)?;
            }
        }
        for ((token, number), chosen) in &world.truth.chosen {
            let key = (mainstay_core::ProcessToken(token.clone()), number.clone());
            let journaled = self.judges.iter().flatten().find_map(|judge| judge.answers.get(&key));
            let agrees = match journaled {
                Some(Answer::Select { option_id }) => chosen.first() == Some(option_id),
                Some(Answer::Decline { .. }) => chosen.first().is_some_and(|option| option == "no" || option == "decline"),
                Some(Answer::Cancel { .. }) | None => false,
            };
            if !agrees {
                return Err(format!("request {number} of {token} got {chosen:?}, durable is {journaled:?}"));
            }
        }
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        for (session, submission) in &clients.accepted {
            if !self.judges[*session].as_ref().is_some_and(|judge| judge.knows(submission)) {
                return Err(format!("{submission} was accepted and the journal does not hold it"));
            }
        }
        for (session, request, by) in &clients.won {
            let winner = self.judges[*session].as_ref().and_then(|judge| judge.winners.get(request));
            if winner != Some(by) {
                return Err(format!("{by} was told to have won {request}; the journal says {winner:?}"));
            }
        }
        Ok(())
    }

    /// Faults are over and time passes: everything comes to rest, and nothing is open without a reason.
    async fn rest(&mut self, host: &Arc<Host>, readers: &mut Vec<Reader>) -> Result<(), String> {
        {
            let mut world = self.world.lock();
            world.calm = true;
            world.note(|| "-- faults are over".to_owned());
        }
        let mut quiet = 0;
        let mut rounds = 0;
        let mut last = (0, 0);
        while quiet < QUIET_ROUNDS {
            rounds += 1;
            if rounds > MOST_ROUNDS {
                return Err("it does not come to rest".to_owned());
            }
            self.settle(4).await;
            self.judge()?;
            for session in 0..SESSIONS {
                let pending: Vec<RequestId> = self
                    .fold(session)
                    .map(|fold| {
                        let waits = fold.requests.iter().filter(|open| open.state == RequestState::Pending);
                        waits.map(|open| open.id.clone()).collect()
                    })
                    .unwrap_or_default();
                for request in pending {
                    let answer = Answer::Select { option_id: self.words().0 };
                    self.answer_as(host, session, request, None, answer, "cleo");
                }
            }
            self.follow(host, readers, true).await?;
            let stands = {
                let world = self.world.lock();
                let events: usize = self.judges.iter().flatten().map(|judge| judge.rows.len()).sum();
                let busy = world.keepers.values().any(|keeper| keeper.is_busy() || (keeper.lives() && keeper.agent.works()));
                // Faults that were ordered before still come.
                (events + usize::try_from(world.disk.stats().failed).unwrap_or(0), usize::from(busy))
            };
            if stands == last && stands.1 == 0 {
                quiet += 1;
                self.pass(2_500).await;
            } else {
                quiet = 0;
                self.pass(210).await;
            }
            last = stands;
        }
        let judged = self.judge_rest(host, readers).await;
        if judged.is_err() {
            let mut world = self.world.lock();
            let world = &mut *world;
            for keeper in world.keepers.values().filter(|keeper| keeper.lives()) {
                let text = format!("{keeper:?}");
                world.trace.iter_mut().for_each(|trace| trace.push(text.clone()));
            }
        }
        judged
    }

    /// The feed's last word on each session is its status, and the timeline shows what the journal holds.
    async fn judge_views(&self, host: &Arc<Host>) -> Result<(), String> {
        let mut feed = host.feed(0);
        let mut last: BTreeMap<SessionKey, serde_json::Value> = BTreeMap::new();
        loop {
            let rows = feed.pull().await.map_err(|error| format!("the feed cannot be read: {error}"))?;
            if rows.is_empty() {
                break;
            }
            for row in rows.into_iter().filter(|row| row.kind == "session.status") {
                last.insert(row.session, serde_json::from_slice(&row.body).unwrap_or_default());
            }
        }
        for judge in self.judges.iter().flatten() {
            let store = host.store();
            let Ok(Some(row)) = store.session(judge.key) else { return Err("a row is gone".to_owned()) };
            let told = last.get(&row.key).and_then(|body| body.get("status")).and_then(|told| told.as_str());
            if told != Some(row.status.as_str()) {
                return Err(format!("{}: the feed says {told:?}, the record {}", row.id, row.status));
            }
            let page = mainstay_host::timeline::page(store.as_ref(), &row, None, 1_000)
                .map_err(|error| format!("the timeline cannot be read: {error}"))?;
            for item in page.items {
                let shown = judge.shown.get(&ItemId(item.id.clone())).cloned().unwrap_or_default();
                if item.text != shown {
                    return Err(format!("item {}: the timeline shows {:?}, not {shown:?}", item.id, item.text));
                }
            }
        }
        Ok(())
    }

    async fn judge_rest(&mut self, host: &Arc<Host>, readers: &mut Vec<Reader>) -> Result<(), String> {
        self.follow(host, readers, true).await?;
        for session in 0..SESSIONS {
            let Some(judge) = &self.judges[session] else { continue };
            if judge.fold.as_ref().is_some_and(|fold| fold.deleted) {
                continue;
            }
            let id = session_id(session);
            let (row, state) =
                host.state(id.as_str()).await.map_err(|error| format!("{id} cannot be loaded: {error}"))?;
            if judge.fold.as_ref() != Some(&state) {
                return Err(format!("{id}: the fold of the journal is not the state that the host loads"));
            }
            judge.judge_rest(&row.status, row.reason.as_deref()).map_err(|why| format!("at rest, {id}: {why}"))?;
            if self.read[session] != judge.rows.len() {
                return Err(format!("{id}: a reader saw {} of {} rows", self.read[session], judge.rows.len()));
            }
            let rows = judge.rows.len();
            self.read[session] = 0;
            let mut fresh = Vec::new();
            self.follow(host, &mut fresh, true).await?;
            drop(fresh);
            if self.read[session] != rows {
                return Err(format!("{id}: a reader from the beginning saw {} of {rows}", self.read[session]));
            }
            self.covered.events += rows;
        }
        self.judge_views(host).await?;
        let rows = host.sessions(SessionFilter { include_deleted: true, ..SessionFilter::default() }, None, 10).await.map_err(|error| error.to_string())?;
        let world = self.world.lock();
        let ours = |token: &String| !world.is_abandoned(token);
        for keeper in world.keepers.values().filter(|keeper| keeper.lives() && ours(&keeper.token)) {
            if !rows.rows.iter().any(|row| row.process == Some(keeper.process)) {
                return Err(format!("{} lives and belongs to no session", keeper.token));
            }
        }
        self.covered.taken = world.truth.received.len();
        self.covered.answers = world.truth.chosen.len();
        Ok(())
    }
}
