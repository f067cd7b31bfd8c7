//! What a long journal costs: deciding an event, loading a session, replaying it, keeping it. Each figure stands beside
//! what the machine itself needs for the same bytes.
//!
//! `cargo run --release -p mainstay-host --example journal_numbers [EVENTS]` (default: a million); `cargo xtask bench journal`
//! does the same.
#![expect(clippy::expect_used, clippy::print_stdout, reason = "a program for people at a terminal")]

use mainstay_core::agent::{AgentInfo, TakenProof};
use mainstay_core::content::{ContentBlock, ItemKind, Origin};
use mainstay_core::process::ProcessFact;
use mainstay_core::session::SNAPSHOT_VERSION;
use mainstay_core::{
    AgentEvent, AgentName, Capabilities, Command, Cursor, Decision, Delivery, Effect, HostId, Input, ItemKey,
    LaunchSnapshot, Moment, Out, ProcessToken, ProviderTurn, Session, SessionId, SessionOptions, Stamped,
    SubmissionId, ThreadId,
};
use mainstay_host::fault::FaultPlan;
use mainstay_host::{AgentConfig, DATABASE, Delivered, Host, HostConfig, Retention, ShutdownMode};
use mainstay_store::{
    LaneWrite, NewEvent, NewSession, PageLimit, SessionKey, SessionUpdate, SqliteOptions, SqliteStore, Store,
    Urgency, WriteOp,
};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// A delta of some words.
const TEXT: &str = "and some words, ";
/// Rows of one transaction, as a busy lane gathers them.
const BATCH: usize = 500;
/// A lane writes a snapshot at least this often (`SNAPSHOT_ROWS_MOST` of the host): this much is folded at the worst.
const TAIL: u64 = 4_096;
const LOADS: usize = 21;
const ID: &str = "long";

fn row(what: &str, figure: &str, target: &str) {
    println!("{what:<66} {figure:>34}   {target}");
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let events: u64 = std::env::args().nth(1).map_or(1_000_000, |number| number.parse().expect("a number"));
    deciding();
    let folder = tempfile::tempdir().expect("a folder");
    let home = folder.path().join("state");
    std::fs::create_dir(&home).expect("a folder");
    let written = write(&home.join(DATABASE), events);
    disk(&home, &written);
    let whole = fold_all(&home.join(DATABASE));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(serving(folder.path(), &home, &written, whole));
}

struct Machine {
    session: Session,
    capabilities: Capabilities,
    fresh: ProcessToken,
    /// What was decided before the stream begins.
    begun: Vec<Stamped>,
}

impl Machine {
    /// A session whose turn streams.
    fn streaming(cwd: &str) -> Self {
        let launch = LaunchSnapshot {
            host: HostId::from("bench"),
            agent: AgentName::from("absent"),
            cwd: cwd.to_owned(),
            additional_directories: Vec::new(),
            account_home: None,
            mcp_servers: Vec::new(),
            instructions: None,
            env_names: Vec::new(),
            command: None,
            source: None,
            beside: None,
        };
        let mut out = Out::default();
        let options = SessionOptions::default();
        let session = Session::create(SessionId::from(ID), None, launch, options, 1, &mut out);
        let mut machine = Self {
            session,
            capabilities: mainstay_agents::adapter(mainstay_agents::AgentKind::Acp).capabilities().clone(),
            fresh: ProcessToken::from("p-1"),
            begun: Vec::new(),
        };
        machine.input(
            Input::Command(Command::Send {
                submission: SubmissionId::from("m1"),
                content: vec![ContentBlock::text("go on")],
                delivery: Delivery::Auto,
                resends: None,
            }),
            &mut out,
        );
        let process = machine.session.process.clone().expect("acquired");
        machine.input(Input::Process(ProcessFact::Started { process, agent: None }), &mut out);
        machine.input(Input::Agent(AgentEvent::Ready(AgentInfo::default())), &mut out);
        let opened = AgentEvent::ThreadOpened { thread: ThreadId::from("t"), resumed: false };
        machine.input(Input::Agent(opened), &mut out);
        let submission = SubmissionId::from("m1");
        let taken = AgentEvent::InputTaken { submission: submission.clone(), proof: TakenProof::SolePrompt };
        machine.input(Input::Agent(taken), &mut out);
        let started = AgentEvent::TurnStarted {
            turn: ProviderTurn::from("turn"),
            origin: Origin::Message,
            submission: Some(submission),
        };
        machine.input(Input::Agent(started), &mut out);
        machine.begun = out.events;
        machine
    }

    fn input(&mut self, input: Input, out: &mut Out) {
        let moment = Moment { now: 1, capabilities: &self.capabilities, fresh: &self.fresh };
        self.session.handle(input, &moment, out).expect("taken");
        for effect in std::mem::take(&mut out.effects) {
            if let Effect::Tell(Decision::StartTurn { submission, .. }) = effect {
                let handed = Input::Handed { submission, input: 1 };
                self.session.handle(handed, &moment, out).expect("handed");
            }
        }
    }

    fn delta(&mut self, out: &mut Out) {
        let delta = AgentEvent::ItemDelta {
            key: ItemKey::from("k"),
            turn: Some(ProviderTurn::from("turn")),
            kind: ItemKind::AgentMessage,
            text: TEXT.to_owned(),
        };
        let moment = Moment { now: 1, capabilities: &self.capabilities, fresh: &self.fresh };
        self.session.handle(Input::Agent(delta), &moment, out).expect("taken");
    }
}

/// Deciding and folding one delta: `handle` stamps, folds (`apply`) and merges.
fn deciding() {
    const DELTAS: u32 = 1_000_000;
    let mut machine = Machine::streaming("/");
    let mut out = Out::default();
    let begun = Instant::now();
    for n in 0..DELTAS {
        machine.delta(&mut out);
        if n % 64 == 63 {
            out.events.clear();
        }
    }
    let ours = begun.elapsed().as_secs_f64() * 1e6 / f64::from(DELTAS);
    // What cannot be left out: the text is copied once and hashed once.
    let mut digest = mainstay_core::digest::TextDigest::default();
    let begun = Instant::now();
    for _ in 0..DELTAS {
        let text = std::hint::black_box(TEXT.to_owned());
        digest.push(&text);
    }
    std::hint::black_box(digest.finish());
    let bare = begun.elapsed().as_secs_f64() * 1e6 / f64::from(DELTAS);
    row("us to decide and fold one delta (nothing is durable here)", &format!("{ours:.2}"), "<= 1");
    row("  beside copying and hashing its text alone", &format!("{:.1} x", ours / bare), "");
}

struct Written {
    events: u64,
    /// Bytes of the events' lines.
    lines: u64,
    seconds: f64,
}

/// Writes a journal as a lane does: in synced batches, with a snapshot now and then.
fn write(database: &Path, events: u64) -> Written {
    let options = SqliteOptions { reserve_bytes: 0, ..SqliteOptions::default() };
    let store = SqliteStore::open(database, options).expect("opens").store;
    let cwd = database.parent().expect("a folder").display().to_string();
    let mut machine = Machine::streaming(&cwd);
    let key = store.allocate_session_key();
    let create = WriteOp::CreateSession(NewSession {
        key,
        id: ID.to_owned(),
        agent: "absent".to_owned(),
        name: None,
        cwd,
        created_at: 1,
        launch: serde_json::to_vec(&machine.session.launch).expect("JSON"),
    });
    commit(&store, vec![create]);
    let mut lines = 0_u64;
    let mut head = 0;
    let begun = Instant::now();
    let mut batch = std::mem::take(&mut machine.begun);
    while head < events {
        while batch.len() < BATCH && machine.session.head < events {
            // Each delta a row of its own: the longest journal there can be.
            let mut out = Out::default();
            machine.delta(&mut out);
            batch.append(&mut out.events);
        }
        let rows: Vec<NewEvent> = batch.drain(..).map(|stamped| event(&stamped)).collect();
        lines += rows.iter().map(|row| row.body.len() as u64).sum::<u64>();
        let mut ops = vec![WriteOp::AppendEvents { session: key, epoch: 1, expect_head: head, events: rows }];
        head = machine.session.head;
        if head + TAIL >= events && head + TAIL < events + BATCH as u64 {
            ops.push(snapshot(key, &machine.session));
        }
        commit(&store, ops);
    }
    let seconds = begun.elapsed().as_secs_f64();
    let update = SessionUpdate { fence: Some(machine.session.fence.0), ..SessionUpdate::new(key, 1) };
    commit(&store, vec![WriteOp::UpdateSession(update)]);
    Written { events, lines, seconds }
}

fn event(stamped: &Stamped) -> NewEvent {
    NewEvent {
        first_seq: stamped.first_seq.unwrap_or(stamped.seq),
        seq: stamped.seq,
        at: stamped.at,
        fence: stamped.fence.0,
        kind: Cow::Borrowed(stamped.event.kind()),
        item: None,
        body: serde_json::to_vec(stamped).expect("JSON"),
    }
}

fn snapshot(session: SessionKey, machine: &Session) -> WriteOp {
    let body = serde_json::to_vec(machine).expect("JSON");
    let (epoch, seq) = (machine.epoch, machine.head);
    WriteOp::PutSnapshot { session, epoch, seq, version: SNAPSHOT_VERSION, body }
}

fn commit(store: &SqliteStore, ops: Vec<WriteOp>) {
    store.commit_blocking(LaneWrite::new(Urgency::Command, ops)).expect("stored");
}

fn disk(home: &Path, written: &Written) {
    let occupied = std::fs::metadata(home.join(DATABASE)).expect("there").len();
    row(
        &format!("bytes on disk per byte of event ({} events, each a row)", written.events),
        &format!("{:.2}", occupied as f64 / written.lines as f64),
        "",
    );
    row(
        "events/s written in synced batches of 500 (durable)",
        &format!("{:.0}", written.events as f64 / written.seconds),
        "",
    );
}

/// Seconds to fold the whole journal, which is what loading without a snapshot would take.
fn fold_all(database: &Path) -> f64 {
    let store = SqliteStore::open(database, SqliteOptions::default()).expect("opens").store;
    let session = store.session_by_id(ID).expect("read").expect("there");
    let begun = Instant::now();
    let (mut folded, mut after): (Option<Session>, u64) = (None, 0);
    loop {
        let page =
            store.events(session.key, 1, after, PageLimit { rows: 2_000, bytes: 4 << 20 }).expect("read");
        for event in &page.rows {
            let stamped: Stamped = serde_json::from_slice(&event.body).expect("an event");
            match &mut folded {
                Some(session) => session.apply(&stamped),
                None => folded = Session::from_first(&stamped),
            }
            after = event.seq;
        }
        if !page.more {
            return begun.elapsed().as_secs_f64();
        }
    }
}

async fn serving(folder: &Path, home: &Path, written: &Written, whole: f64) {
    let host = Host::start(config(folder, home)).await.expect("starts");
    let mut loads = Vec::new();
    for _ in 0..LOADS {
        let begun = Instant::now();
        host.state(ID).await.expect("loads");
        loads.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    let load = median(loads);
    let what = format!("ms to load a session of {} events ({TAIL} behind its snapshot)", written.events);
    row(&what, &format!("{load:.1}"), "<= 10");
    row("  beside folding its whole journal", &format!("1 / {:.0}", whole * 1e3 / load), "");

    let begun = Instant::now();
    let mut subscription = host.subscribe(ID, Some(Cursor { epoch: 1, seq: 0 })).await.expect("a stream");
    let (mut events, mut bytes) = (0_u64, 0_u64);
    loop {
        match subscription.pull().await.expect("read") {
            Delivered::Events(lines) => {
                events += lines.len() as u64;
                bytes += lines.iter().map(|line| line.json.len() as u64).sum::<u64>();
                if subscription.cursor().seq >= written.events {
                    break;
                }
            }
            Delivered::CaughtUp => break,
            Delivered::Reset(reset) => panic!("the journal began anew: {reset:?}"),
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    assert!(events + 1_000 > written.events, "{events} events came of {}", written.events);
    row(
        "events/s replayed from a cursor at the beginning, in the host",
        &format!("{:.0} ({:.0} MB/s)", events as f64 / seconds, bytes as f64 / seconds / 1e6),
        "",
    );
    let bare = lines_of_a_file(folder, events, bytes);
    row("  time beside reading as many lines from a file", &format!("{:.1} x", seconds / bare), "");
    host.shutdown(ShutdownMode::Detach).await;
}

/// Seconds to read a file of as many lines with as many bytes.
fn lines_of_a_file(folder: &Path, lines: u64, bytes: u64) -> f64 {
    let path = folder.join("lines");
    let line = vec![b'x'; usize::try_from(bytes / lines.max(1)).expect("small")];
    let mut file = std::io::BufWriter::new(std::fs::File::create(&path).expect("a file"));
    for _ in 0..lines {
        file.write_all(&line).and_then(|()| file.write_all(b"\n")).expect("written");
    }
    drop(file);
    let begun = Instant::now();
    let mut reader = BufReader::with_capacity(512 * 1024, std::fs::File::open(&path).expect("a file"));
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).expect("read") > 0 {
        // Owned, as the host's lines are.
        std::hint::black_box(line.clone());
        line.clear();
    }
    begun.elapsed().as_secs_f64()
}

fn config(folder: &Path, home: &Path) -> HostConfig {
    let agent = AgentConfig::new(mainstay_agents::AgentKind::Acp, vec!["/nowhere/agent".to_owned()]);
    HostConfig {
        home: home.to_owned(),
        host_id: HostId::from("bench"),
        roots: vec![folder.to_owned()],
        rest_after: Duration::from_secs(3_600),
        linger: Duration::from_secs(3_600),
        spool_limit: 1 << 20,
        stream_flush: Duration::ZERO,
        max_processes: 1,
        max_starting: 1,
        retention: Retention::default(),
        limits: Default::default(),
        agents: BTreeMap::from([(AgentName::from("absent"), agent)]),
        environment: Vec::new(),
        keeper_program: "/nowhere/keeper".into(),
        keeper_args: Vec::new(),
        fault: FaultPlan::default(),
    }
}
