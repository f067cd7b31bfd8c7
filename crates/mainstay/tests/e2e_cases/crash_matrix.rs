//! The crash matrix: at each point, each part is killed with -9, with each kind of agent and one or several clients; then
//! everything goes on, and what was promised is looked at from outside.
//!
//! `MAINSTAY_CRASH_MATRIX=folder` makes each test leave its rows there (`cargo xtask crash-matrix` puts them together);
//! `MAINSTAY_CRASH_LONG=1` runs every point with one, two and four clients and more counts.

use crate::played::register;
use crate::support::{DEADLINE, Follower, World, agent_pid, is_alive, kill, try_answer};
use mainstay_testkit::agents::open_gate;
use mainstay_testkit::http::{Client, Sse};
use mainstay_testkit::mainstay::HostProcess;
use mainstay_testkit::wait::wait_for;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

const SESSION: &str = "the-session";
const SCRIPT: &str = "
on initialize
  run touch $root/starting
  wait-for gate $root/may-start
  default
on prompt work
  stream 10 8
  wait-for gate $root/may-go-on
  ask may I
  stream 10 8
";

/// What is killed, and when.
#[derive(Debug, Clone)]
enum Point {
    /// The host, by itself, at a place of its own and the n-th time it is passed.
    HostAt(String),
    Kill(Part, Moment),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Host,
    Keeper,
    Agent,
    HostAndKeeper,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Starting,
    Streaming,
    Asking,
    Idle,
}

fn points(long: bool) -> Vec<Point> {
    let places = [
        ("reserved_not_spawned", 1, 1),
        ("spawned_not_recorded", 1, 1),
        ("recorded_no_frame", 1, 1),
        ("read_not_committed", 5, 24),
        ("committed_not_delivered", 4, 8),
        ("delivered_not_acknowledged", 4, 8),
        ("answered_not_delivered", 1, 1),
    ];
    let counted = places.iter().flat_map(|(name, few, many)| {
        (1..=if long { *many } else { *few }).map(move |count| Point::HostAt(format!("{name}:{count}")))
    });
    let moments = [Moment::Starting, Moment::Streaming, Moment::Asking, Moment::Idle];
    let parts = [Part::Host, Part::Keeper, Part::Agent, Part::HostAndKeeper];
    let kills = parts.into_iter().flat_map(|part| moments.map(|moment| Point::Kill(part, moment)));
    counted.chain(kills).collect()
}

/// One run.
struct Run<'world> {
    world: &'world World,
    host: HostProcess,
    follower: Follower,
    sse: Sse,
    others: Vec<(Follower, Sse)>,
    deaths: usize,
    give_up: Instant,
    what: String,
}

fn create(client: &Client, world: &World, agent: &str) -> bool {
    let body = json!({ "agent": agent, "cwd": world.workspace(), "id": SESSION, "prompt": "work" });
    client.post("/v1/sessions", &body).is_ok_and(|answer| answer.status == 201)
}

/// A stream from where the follower is; None: the host is gone.
fn open(follower: &Follower, client: &Client) -> Option<Sse> {
    let last = follower.events.last().map(|event| format!("{}:{}", event["epoch"], event["seq"]));
    let headers: Vec<(&str, &str)> = last.iter().map(|id| ("Last-Event-ID", id.as_str())).collect();
    client.events(&format!("/v1/sessions/{SESSION}/events"), &headers).ok()
}

impl<'world> Run<'world> {
    fn begin(world: &'world World, point: &Point, clients: usize, what: String) -> Self {
        let mut host = match point {
            Point::HostAt(plan) => world.start_to_die_at(plan),
            Point::Kill(..) => world.start(),
        };
        let give_up = Instant::now() + DEADLINE * 2;
        let mut deaths = 0;
        let (follower, mut others) = (Follower::default(), Vec::new());
        let sse = loop {
            // The host may die before its answer arrives: then its caller asks again under the same id.
            if create(&host.client(), world, "played")
                && let Some(sse) = open(&follower, &host.client())
            {
                break sse;
            }
            assert!(Instant::now() < give_up, "{what}: no session; {}", host.stderr());
            host.wait(DEADLINE);
            deaths += 1;
            host = world.start();
        };
        for _ in 1..clients {
            let other = Follower::default();
            if let Some(sse) = open(&other, &host.client()) {
                others.push((other, sse));
            }
        }
        Self { world, host, follower, sse, others, deaths, give_up, what }
    }

    /// A host in place of one that is gone. What its clients asked and got no answer to is asked again.
    fn revive(&mut self) {
        self.deaths += 1;
        self.host = self.world.start();
        assert!(create(&self.host.client(), self.world, "played"), "{}: the session is gone", self.what);
        self.sse = open(&self.follower, &self.host.client()).expect("a stream");
        self.answer_what_is_open();
    }

    /// The next event; a host that died at its own place is followed by another one.
    fn next(&mut self) -> Value {
        loop {
            if let Some(event) = self.sse.next(Duration::from_millis(500)) {
                if let Some(value) = self.follower.take(event) {
                    return value;
                }
                continue;
            }
            if self.sse.ended() {
                self.host.wait(DEADLINE);
                self.revive();
            }
            let last: Vec<String> =
                self.follower.events.iter().rev().take(12).rev().map(Value::to_string).collect();
            assert!(
                Instant::now() < self.give_up,
                "{}: nothing more came after\n{}",
                self.what,
                last.join("\n")
            );
        }
    }

    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let event = self.next();
            if event["type"] == "request.opened" {
                self.answer_what_is_open();
            }
            if wanted(&event) {
                return event;
            }
        }
    }

    /// Allows what is asked. Whoever was faster, or a host that dies meanwhile, is no fault: what stays open is answered
    /// after the revival.
    fn answer_what_is_open(&self) {
        if !self.world.home.root().join("may-answer").exists() {
            return;
        }
        for opened in self.follower.of_type("request.opened") {
            let (request, options) =
                (opened["request"].as_str().unwrap(), opened["options"].as_array().unwrap());
            let allow = options.iter().find(|option| option["kind"] == "allow_once").unwrap();
            let option = allow["id"].as_str().or(allow["option_id"].as_str()).unwrap();
            let _settled_or_broken = try_answer(&self.host.client(), SESSION, request, option);
        }
    }

    fn gate(&self, name: &str) {
        open_gate(&self.world.home.root().join(name));
    }

    fn keeper(&self) -> i32 {
        let shown = crate::support::show(&self.host.client(), SESSION);
        let folder = self
            .world
            .home
            .mainstay_home()
            .join("keepers")
            .join(shown["process"].as_str().expect("a process"));
        let manifest = wait_for(DEADLINE, || std::fs::read(folder.join("manifest.json")).ok());
        let manifest: Value = serde_json::from_slice(&manifest.expect("a manifest")).expect("JSON");
        i32::try_from(manifest["keeper"]["pid"].as_i64().expect("a pid")).expect("a pid")
    }

    fn strike(&mut self, part: Part) {
        let agent = self.follower.of_type("process.started").last().map(|started| agent_pid(started));
        match part {
            Part::Host => {
                self.host.kill9();
                self.revive();
            }
            Part::Keeper => kill(self.keeper()),
            Part::Agent => kill(agent.expect("an agent")),
            Part::HostAndKeeper => {
                let keeper = self.keeper();
                self.host.kill9();
                kill(keeper);
                self.revive();
            }
        }
        if part != Part::Host {
            let gone = wait_for(DEADLINE, || (!agent.is_some_and(is_alive)).then_some(()));
            assert!(gone.is_some(), "{}: the agent lives", self.what);
        }
    }
}

/// Runs a point; gives what became of it, for the table.
fn run(kind: &str, point: &Point, clients: usize) -> String {
    let what = format!("{kind}, {point:?}, {clients} clients");
    let world = World::new();
    register(&world, "played", kind, SCRIPT);
    let mut run = Run::begin(&world, point, clients, what.clone());
    let strikes = |moment: Moment| match point {
        Point::Kill(part, when) if *when == moment => Some(*part),
        _ => None,
    };
    if let Some(part) = strikes(Moment::Starting) {
        let starting = world.home.root().join("starting");
        assert!(
            wait_for(DEADLINE, || starting.exists().then_some(())).is_some(),
            "{what}: it does not start"
        );
        run.until(|event| event["type"] == "process.started");
        run.strike(part);
    }
    run.gate("may-start");
    if let Some(part) = strikes(Moment::Streaming) {
        run.until(|event| event["type"] == "item.delta");
        run.strike(part);
    }
    run.gate("may-go-on");
    if let Some(part) = strikes(Moment::Asking) {
        run.until(|event| event["type"] == "request.opened");
        run.strike(part);
    }
    std::fs::write(world.home.root().join("may-answer"), "").unwrap();
    run.answer_what_is_open();
    let first = match run.follower.of_type("turn.ended").first() {
        Some(ended) => (*ended).clone(),
        None => run.until(|event| event["type"] == "turn.ended"),
    };
    if let Some(part) = strikes(Moment::Idle) {
        run.strike(part);
    }
    // What is sent afterwards is done, once; its sender repeats it until it is told.
    let body = json!({ "content": "after", "id": "the-second" });
    let path = format!("/v1/sessions/{SESSION}/messages");
    while !run.host.client().post(&path, &body).is_ok_and(|answer| answer.status == 202) {
        assert!(Instant::now() < run.give_up, "{what}: the next message is not accepted");
        run.host.wait(DEADLINE);
        run.revive();
    }
    let taken = run.until(|event| event["type"] == "submission.taken" && event["submission"] == "the-second");
    let second = run.until(|event| event["type"] == "turn.ended" && event["turn"] == taken["turn"]);
    assert_eq!(second["outcome"], "completed", "{what}: {second}");
    look_at(&world, &mut run, point, &first, &what);
    let (processes, deaths) = (run.follower.of_type("process.started").len(), run.deaths);
    let (host, outcome) = (run.host, first["outcome"].as_str().unwrap().to_owned());
    world.end(host);
    format!("| {} | {kind} | {clients} | {deaths} | {processes} | {outcome} |", shown(point))
}

/// What was promised.
fn look_at(world: &World, run: &mut Run<'_>, point: &Point, first: &Value, what: &str) {
    // Given once: a message that the agent had is never given again, nor one that came after the crash.
    assert_eq!(world.prompts_received("work"), 1, "{what}");
    assert_eq!(world.prompts_received("after"), 1, "{what}");
    // A host's death costs nothing at all; the agent's own costs its turn, and nothing else.
    let agent_died_in_turn = matches!(
        point,
        Point::Kill(Part::Keeper | Part::Agent | Part::HostAndKeeper, Moment::Streaming | Moment::Asking)
    );
    assert_eq!(first["outcome"], if agent_died_in_turn { "lost" } else { "completed" }, "{what}: {first}");
    let ends = |kind: &str| run.follower.of_type(kind).len();
    // What nobody had answered when the agent died, it asks again where it can, and goes on in a turn of its own.
    let taken_up = run.follower.of_type("request.opened").iter().any(|asked| asked["recovers"].is_string());
    let turns = if taken_up { 3 } else { 2 };
    assert_eq!((ends("turn.started"), ends("turn.ended")), (turns, turns), "{what}");
    assert_eq!(ends("submission.taken"), 2, "{what}");
    assert_eq!(ends("item.started"), ends("item.completed"), "{what}: an item has no end, or two");
    assert!(ends("request.answered") <= 1, "{what}: answered twice");
    assert!(!taken_up || agent_died_in_turn, "{what}: asked twice");
    assert_eq!(ends("request.opened"), ends("request.closed"), "{what}");
    let text = run.follower.agent_text();
    let streamed = mainstay_testkit::stream_text::whole(10, 8);
    let whole = if agent_died_in_turn {
        assert!(text.starts_with(&streamed[..8]), "{what}: what was said is gone: {text}");
        text.ends_with("echo: after")
    } else {
        text == format!("{streamed}allowed{streamed}echo: after")
    };
    assert!(whole, "{what}: {text}");
    // Every client has the same history, without a hole (the follower checks that) and to the same end.
    let end = run.follower.events.len();
    let client = run.host.client();
    for (other, sse) in &mut run.others {
        while other.events.len() < end {
            match sse.next(Duration::from_millis(500)) {
                Some(event) => drop(other.take(event)),
                None => {
                    assert!(Instant::now() < run.give_up, "{what}: a client is behind");
                    if sse.ended() {
                        *sse = open(other, &client).expect("a stream");
                    }
                }
            }
        }
        assert!(other.agent_text() == text, "{what}: two clients see two texts");
    }
}

fn shown(point: &Point) -> String {
    match point {
        Point::HostAt(place) => format!("host | at `{place}`"),
        Point::Kill(part, moment) => {
            let part = match part {
                Part::Host => "host",
                Part::Keeper => "keeper",
                Part::Agent => "agent",
                Part::HostAndKeeper => "host and keeper",
            };
            let moment = match moment {
                Moment::Starting => "while the agent starts",
                Moment::Streaming => "in the middle of text",
                Moment::Asking => "while an approval is open",
                Moment::Idle => "between two turns",
            };
            format!("{part} | {moment}")
        }
    }
}

/// One part of the matrix: points are dealt to `parts` tests, so that none takes too long.
fn part(kind: &str, number: usize, parts: usize) {
    let long = std::env::var_os("MAINSTAY_CRASH_LONG").is_some();
    let mut rows = Vec::new();
    for (index, point) in points(long).iter().enumerate().filter(|(index, _)| index % parts == number) {
        let clients: &[usize] = if long { &[1, 2, 4] } else { &[[1, 3][index / parts % 2]] };
        rows.extend(clients.iter().map(|clients| run(kind, point, *clients)));
    }
    if let Some(folder) = std::env::var_os("MAINSTAY_CRASH_MATRIX") {
        let path = std::path::Path::new(&folder).join(format!("{kind}-{number}"));
        std::fs::write(path, rows.join("\n") + "\n").expect("the rows");
    }
}

/// Tests for each kind of agent; a test must end within three minutes on a busy machine.
const PARTS: usize = 9;

macro_rules! parts {
    ($($name:ident: $kind:literal $number:literal;)*) => {
        $(
            #[test]
            fn $name() {
                part($kind, $number, PARTS);
            }
        )*
    };
}

parts! {
    acp_one: "acp" 0;
    acp_two: "acp" 1;
    acp_three: "acp" 2;
    acp_four: "acp" 3;
    acp_five: "acp" 4;
    acp_six: "acp" 5;
    acp_seven: "acp" 6;
    acp_eight: "acp" 7;
    acp_nine: "acp" 8;
    codex_one: "codex" 0;
    codex_two: "codex" 1;
    codex_three: "codex" 2;
    codex_four: "codex" 3;
    codex_five: "codex" 4;
    codex_six: "codex" 5;
    codex_seven: "codex" 6;
    codex_eight: "codex" 7;
    codex_nine: "codex" 8;
    claude_one: "claude" 0;
    claude_two: "claude" 1;
    claude_three: "claude" 2;
    claude_four: "claude" 3;
    claude_five: "claude" 4;
    claude_six: "claude" 5;
    claude_seven: "claude" 6;
    claude_eight: "claude" 7;
    claude_nine: "claude" 8;
}
