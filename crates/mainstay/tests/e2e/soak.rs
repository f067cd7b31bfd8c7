//! Hours of mixed work compressed by the mock model: commands, approvals, questions of nobody, compactions, sub-agents, rests
//! and wakes, in one host and one Codex process that lives all the while. What the host and the keeper take stays flat.
//!
//! `MAINSTAY_SOAK_ROUNDS=400` makes it an hour or more; a round is 31 turns of five sessions.

use crate::footprint::{self, Process};
use crate::keepers;
use crate::support::{DEADLINE, Follower, World, answer, is, send, show};
use mainstay_testkit::http::{Client, Sse};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_until;
use serde_json::json;

/// Rounds where nobody says so: about a minute.
const ROUNDS: usize = WARM_UP + 2 * WINDOW;
/// After these everything has been used: caches are full, pools have their threads.
const WARM_UP: usize = 5;
/// A figure is the least of so many rounds: what is taken for a moment is no growth.
const WINDOW: usize = 3;

/// What may grow, in KiB of the host's private memory: the allocator's arenas and the database's caches fill up slowly.
/// Measured: 12 MiB after the warm-up, 19.5 MiB after 20 rounds, and the same after 40.
const HOST_GROWTH_KIB: u64 = 12 * 1024;
/// As above, for the keeper: it holds nothing but what it moves.
const KEEPER_GROWTH_KIB: u64 = 1024;
/// Connections of the round before may still be closing.
const DESCRIPTOR_GROWTH: u64 = 8;
/// The runtime's pool for blocking work makes threads as they are needed, and lets them go after ten seconds.
const THREAD_GROWTH: u64 = 8;
/// The journal is in one file, and a write-ahead log beside it; logs are rotated.
const FILE_GROWTH: u64 = 4;
/// What is read and committed is deleted in whole segments (of 16 MiB): one is open, and one may just be read to its end.
const SPOOL_BYTES: u64 = 32 << 20;

/// What a session does in a round.
const CODEX_WORK: [&str; 8] = [
    "SAY short",
    "DELTAS 6000 8 ;; SAY streamed",
    "RUN echo one; echo two ;; SAY ran",
    "RUNESC true ;; SAY allowed",
    "THINK about it ;; SAY thought",
    "PRUN echo a || echo b || echo c ;; SAY three at once",
    "PATCH made.txt some text ;; RUN rm made.txt ;; SAY patched",
    "ERRN 1 500 ;; SAY tried again",
];
const PARENT_WORK: [&str; 3] = [
    "SPAWN RUN echo child :: SAY child done ;; WAITAGENT ;; SAY parent done",
    "SAY short",
    "DELTAS 600 8 ;; SAY streamed",
];
const SCRIPTED_WORK: [&str; 3] = ["SAY one ;; SAY two", "FRAMES 500 16", "ASK may I ;; SAY done"];

/// The first model whose sub-agents are waited for.
const MODEL_WITH_CHILDREN: &str = "gpt-5.4";

struct Worker {
    session: String,
    follower: Follower,
    work: &'static [&'static str],
    /// The option that lets an approval through.
    allow: &'static str,
    /// Compacts its context at the end of each round.
    compacts: bool,
}

impl Worker {
    /// One round: all of its work, one after the other, then its rest.
    fn round(&mut self, client: &Client) {
        let mut sse = self.follower.open(client, &self.session);
        for prompt in self.work {
            send(client, &self.session, prompt);
            self.turn(client, &mut sse);
        }
        if self.compacts {
            let path = format!("/v1/sessions/{}/compact", self.session);
            client.post(&path, &json!({})).expect("answers").expect_status(202);
            self.turn(client, &mut sse);
        }
        self.follower.until(&mut sse, "its rest", is("lease.released"));
        // Only the beginning of the journal is kept here: this test's own memory is not what is measured.
        self.follower.events.clear();
    }

    fn turn(&mut self, client: &Client, sse: &mut Sse) {
        loop {
            let event = self.follower.until(sse, "the turn's end", |event| {
                event["type"] == "turn.ended" || event["type"] == "request.opened"
            });
            if event["type"] == "turn.ended" {
                assert_eq!(event["outcome"], "completed", "{event}");
                return;
            }
            let request = event["request"].as_str().expect("its id");
            answer(client, &self.session, request, self.allow).expect_status(200);
        }
    }
}

/// What is taken when all workers rest.
#[derive(Debug, Clone, Copy)]
struct Sample {
    host: Process,
    keeper: Process,
    files: u64,
    keepers: u64,
    spool: u64,
}

impl Sample {
    fn take(world: &World, host: &HostProcess, holder: &str) -> Self {
        let client = host.client();
        let home = world.home.mainstay_home();
        let folder = keepers::folder(world, &client, holder);
        let keepers = std::fs::read_dir(home.join("keepers")).expect("the keepers' folder");
        Self {
            host: Process::of(i32::try_from(host.pid()).expect("a pid")),
            keeper: Process::of(keepers::pid(world, &client, holder)),
            files: footprint::files_below(&home),
            keepers: u64::try_from(keepers.count()).expect("small"),
            spool: keepers::spooled(&folder),
        }
    }
}

fn rounds() -> usize {
    let set = std::env::var("MAINSTAY_SOAK_ROUNDS").ok();
    set.map_or(ROUNDS, |rounds| rounds.parse().expect("a number of rounds"))
}

#[test]
fn soak_mixed_work_leaves_memory_descriptors_threads_and_files_flat() {
    let world = World::new();
    crate::host_keys::set(&world, "rest_after", "\"400ms\"");
    let config = world.home.root().join("codex-home/codex/config.toml");
    let text = std::fs::read_to_string(&config).expect("a configuration");
    std::fs::write(&config, format!("compact_prompt = \"SAY summary\"\n{text}")).expect("written");
    let host = world.start();
    let client = host.client();

    // It waits for an answer all the while: its process, and with it the keeper, never rests.
    let holder = world.create(&host, "codex", "RUNESC true ;; SAY held");
    let mut holding = Follower::default();
    let mut held = holding.open(&client, &holder);
    let opened = holding.until(&mut held, "the request", is("request.opened"));
    drop(held);

    let mut workers: Vec<Worker> = ["codex", "codex", "parent", "scripted", "scripted"]
        .into_iter()
        .map(|kind| {
            let agent = if kind == "scripted" { "scripted" } else { "codex" };
            let mut body = json!({ "agent": agent, "cwd": world.workspace() });
            let (work, allow): (&[&str], &str) = match kind {
                "codex" => (&CODEX_WORK, "accept"),
                "parent" => {
                    body["options"] = json!({ "model": MODEL_WITH_CHILDREN });
                    (&PARENT_WORK, "accept")
                }
                _ => (&SCRIPTED_WORK, "allow_once"),
            };
            let made = client.post("/v1/sessions", &body).expect("answers").expect_status(201).json();
            let session = made["id"].as_str().expect("an id").to_owned();
            Worker { session, follower: Follower::default(), work, allow, compacts: agent == "codex" }
        })
        .collect();

    let mut samples = Vec::new();
    for _ in 0..rounds().max(WARM_UP + 2 * WINDOW) {
        std::thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| worker.round(&client));
            }
        });
        // One keeper is left, that of the one that waits.
        let folder = world.home.mainstay_home().join("keepers");
        wait_until(DEADLINE, "the others' keepers are gone", || {
            std::fs::read_dir(&folder).is_ok_and(|entries| entries.count() == 1)
        });
        let sample = Sample::take(&world, &host, &holder);
        println!("{sample:?}");
        samples.push(sample);
    }
    println!("{}", flat(&samples));

    let path =
        format!("/v1/sessions/{holder}/requests/{}/answer", opened["request"].as_str().expect("its id"));
    client.post(&path, &json!({ "option_id": "accept" })).expect("answers").expect_status(200);
    let mut held = holding.open(&client, &holder);
    let ended = holding.until(&mut held, "the end of what waited all the while", is("turn.ended"));
    assert_eq!(ended["outcome"], "completed", "{ended}");
    for worker in &workers {
        assert_eq!(show(&client, &worker.session)["status"], "idle");
    }
    world.end(host);
}

/// Compares early and late; gives the figures.
fn flat(samples: &[Sample]) -> String {
    let mut figures = String::new();
    let early = &samples[WARM_UP..WARM_UP + WINDOW];
    let late = &samples[samples.len() - WINDOW..];
    let least = |of: &[Sample], figure: fn(&Sample) -> u64| of.iter().map(figure).min().expect("samples");
    let mut grows = |what: &str, bound: u64, figure: fn(&Sample) -> u64| {
        let (before, after) = (least(early, figure), least(late, figure));
        figures.push_str(&format!("{what}: {before} to {after}, {bound} more are allowed\n"));
        assert!(after <= before + bound, "{what} grew from {before} to {after}");
    };
    grows("KiB of the host", HOST_GROWTH_KIB, |of| of.host.private_kib);
    grows("KiB of the keeper", KEEPER_GROWTH_KIB, |of| of.keeper.private_kib);
    grows("descriptors of the host", DESCRIPTOR_GROWTH, |of| of.host.descriptors);
    grows("descriptors of the keeper", 0, |of| of.keeper.descriptors);
    grows("threads of the host", THREAD_GROWTH, |of| of.host.threads);
    grows("threads of the keeper", 0, |of| of.keeper.threads);
    grows("files in the home", FILE_GROWTH, |of| of.files);
    grows("keepers", 0, |of| of.keepers);
    let spooled: Vec<u64> = samples.iter().map(|of| of.spool).collect();
    figures.push_str(&format!("bytes in the spool: {spooled:?}\n"));
    assert!(spooled.windows(2).any(|pair| pair[1] < pair[0]), "no segment was deleted: {spooled:?}");
    assert!(spooled.iter().all(|bytes| *bytes <= SPOOL_BYTES), "the spool is not emptied: {spooled:?}");
    figures
}
