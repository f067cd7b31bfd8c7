//! What an operator sees of a running host: metrics, the log, and how one id leads to the next.

use crate::command_line::{command, run};
use crate::support::{DEADLINE, Follower, World, answer, is, send};
use mainstay_testkit::http::Client;
use mainstay_testkit::wait::{wait_for, wait_until};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

/// A strict reading of the text format: everything that is not exactly as it should be is a failure.
#[derive(Debug, Default)]
struct Scrape {
    /// Kind by name of metric.
    kinds: BTreeMap<String, String>,
    /// Values by name of sample and labels as written.
    samples: BTreeMap<String, f64>,
}

impl Scrape {
    #[track_caller]
    fn of(client: &Client) -> Self {
        let answer = client.get("/metrics").expect("answers").expect_status(200);
        assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        let text = answer.text();
        assert!(text.ends_with('\n'), "the last line is not ended");
        let mut scrape = Self::default();
        let mut current: Option<(String, String)> = None;
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').expect("a name and a text");
                assert!(!help.is_empty() && !scrape.kinds.contains_key(name), "{line}");
                current = Some((name.to_owned(), String::new()));
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a kind");
                assert_eq!(
                    current,
                    Some((name.to_owned(), String::new())),
                    "TYPE does not follow its HELP: {line}"
                );
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                scrape.kinds.insert(name.to_owned(), kind.to_owned());
                current = Some((name.to_owned(), kind.to_owned()));
            } else {
                let (name, kind) = current.clone().expect("a sample follows its head");
                scrape.sample(line, &name, &kind);
            }
        }
        scrape.check_histograms();
        scrape
    }

    #[track_caller]
    fn sample(&mut self, line: &str, metric: &str, kind: &str) {
        let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value: {line:?}"));
        let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number: {line:?}"));
        let (name, labels) = match series.split_once('{') {
            None => (series, ""),
            Some((name, labels)) => (name, labels.strip_suffix('}').unwrap_or_else(|| panic!("{line:?}"))),
        };
        let belongs = match kind {
            "histogram" => [format!("{metric}_bucket"), format!("{metric}_sum"), format!("{metric}_count")]
                .iter()
                .any(|of| of == name),
            _ => name == metric,
        };
        assert!(belongs, "{line:?} stands below {metric}");
        for label in labels.split("\",").filter(|label| !label.is_empty()) {
            let (name, value) = label.split_once("=\"").unwrap_or_else(|| panic!("no label: {line:?}"));
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{line:?}");
            assert!(!value.trim_end_matches('"').contains('"'), "{line:?}");
        }
        assert!(value >= 0.0, "{line:?}");
        assert!(self.samples.insert(series.to_owned(), value).is_none(), "{series} twice");
    }

    fn check_histograms(&self) {
        for name in self.kinds.iter().filter(|(_, kind)| *kind == "histogram").map(|(name, _)| name) {
            let prefix = format!("{name}_bucket{{le=\"");
            let mut buckets: Vec<(f64, f64)> = self
                .samples
                .iter()
                .filter_map(|(series, count)| {
                    let end = series.strip_prefix(&prefix)?.strip_suffix("\"}")?;
                    Some((if end == "+Inf" { f64::INFINITY } else { end.parse().expect("a number") }, *count))
                })
                .collect();
            buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
            assert!(
                buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1),
                "{name} is not cumulative: {buckets:?}"
            );
            let (end, all) = *buckets.last().expect("buckets");
            assert!(
                end.is_infinite() && (all - self.samples[&format!("{name}_count")]).abs() < 0.5,
                "{name}"
            );
        }
    }

    /// The sum over all series of a metric (of a histogram: how many).
    fn sum(&self, name: &str) -> f64 {
        let of_name = |series: &str| series == name || series.starts_with(&format!("{name}{{"));
        let count = self.samples.get(&format!("{name}_count"));
        count.copied().unwrap_or_else(|| {
            self.samples.iter().filter(|(series, _)| of_name(series)).map(|(_, value)| value).sum()
        })
    }

    #[track_caller]
    fn get(&self, series: &str) -> f64 {
        *self.samples.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.samples))
    }
}

/// The names in the reference.
fn documented() -> BTreeSet<String> {
    let reference = include_str!("../../../../docs/metrics.md");
    let names =
        reference.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()));
    names.collect()
}

/// What needs a fault that this test does not make, or that stands still here.
const STILL: &[&str] = &[
    "mainstay_info",
    "mainstay_quarantined_records_total",
    "mainstay_store_groups_undone_total",
    "mainstay_store_reserves_spent_total",
    "mainstay_store_mark_failures_total",
    "mainstay_store_queued_writes",
    "mainstay_store_queued_bytes",
    "mainstay_store_degraded",
    "mainstay_spool_behind_bytes",
];

#[test]
fn every_documented_metric_is_there_and_moves() {
    let world = World::new();
    let first = world.start();
    let session = world.create(&first, "scripted", "SAY part ;; HOLD");
    let mut follower = Follower::default();
    let mut sse = follower.open(&first.client(), &session);
    follower.until(&mut sse, "text", is("item.delta"));
    // What a former host left is a recovery for the next.
    first.term();
    drop(sse);
    drop(first);
    let host = world.start();
    let client = host.client();
    let before = Scrape::of(&client);
    let names = documented();
    assert_eq!(
        before.kinds.keys().cloned().collect::<BTreeSet<_>>(),
        names,
        "the reference and what is served"
    );
    assert!(names.len() > 30, "{names:?}");

    let mut sse = follower.open(&client, &session);
    wait_until(DEADLINE, "the session is taken up", || {
        Scrape::of(&client).get("mainstay_recoveries_total") >= 1.0
    });
    assert!(Scrape::of(&client).get("mainstay_subscribers") >= 1.0);
    crate::support::interrupt(&client, &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    send(&client, &session, "SAY more words ;; ASK may I");
    let opened = follower.until(&mut sse, "a request", is("request.opened"));
    let asked = Scrape::of(&client);
    assert!(asked.get("mainstay_sessions{status=\"requires_action\"}") >= 1.0);
    assert!(asked.get("mainstay_sessions_needing_answer") >= 1.0);
    assert!(asked.get("mainstay_agent_processes{agent=\"scripted\"}") >= 1.0);
    assert!(asked.get("mainstay_lanes") >= 1.0);
    answer(&client, &session, opened["request"].as_str().unwrap(), "allow_once").expect_status(200);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let other = world.create(&host, "scripted", "SAY hello");
    crate::support::follow_turn(&client, &other);
    // A reader from the beginning is behind the ring.
    let mut late = Follower::default();
    let mut late_sse = late.open(&client, &session);
    late.until(&mut late_sse, "the past", is("turn.ended"));
    client.get("/v1/sessions/nothing").expect("answers").expect_status(404);
    client.get("/no/such/route").expect("answers").expect_status(404);

    // It counts whole seconds, and all of the above may take less than one.
    wait_until(DEADLINE, "a second of uptime", || Scrape::of(&client).get("mainstay_uptime_seconds") >= 1.0);
    let after = Scrape::of(&client);
    for (series, more) in [
        ("mainstay_events_total{type=\"turn.ended\"}", 3.0),
        ("mainstay_events_total{type=\"request.opened\"}", 1.0),
        ("mainstay_http_requests_total{method=\"GET\",route=\"/v1/sessions/{session}\",status=\"404\"}", 1.0),
        ("mainstay_http_requests_total{method=\"GET\",route=\"other\",status=\"404\"}", 1.0),
        ("mainstay_process_starts_total{outcome=\"done\"}", 1.0),
        ("mainstay_batches_total{outcome=\"committed\"}", 5.0),
        ("mainstay_commands_total{outcome=\"done\"}", 4.0),
    ] {
        assert!(after.get(series) >= more, "{series} is {}", after.get(series));
    }
    let still: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|name| !STILL.contains(name))
        // Of what goes up and down: that it was something at some time.
        .filter(|name| after.sum(name) <= 0.0 && before.sum(name) <= 0.0 && asked.sum(name) <= 0.0)
        .collect();
    assert_eq!(still, Vec::<&str>::new(), "metrics that never moved");
    let counters = after.kinds.iter().filter(|(_, kind)| *kind == "counter").map(|(name, _)| name);
    for name in counters {
        assert!(after.sum(name) >= before.sum(name), "{name} went back");
    }
    assert!(
        (after.get("mainstay_commit_seconds_count")
            - after.get("mainstay_batches_total{outcome=\"committed\"}"))
        .abs()
            < 0.5
    );
    world.end(host);
}

#[test]
fn one_id_leads_to_the_whole_story() {
    let world = World::new();
    crate::host_keys::set(&world, "log_format", "\"json\"");
    let host = world.start();
    let client = host.client().header("x-request-id", "trace-4711");
    let session = world.create(&host, "scripted", "SAY hello");
    let mut follower = Follower::default();
    let mut sse = follower.open(&host.client(), &session);
    follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let path = format!("/v1/sessions/{session}/messages");
    let body = serde_json::json!({ "content": "ASK may I", "id": "msg-of-the-story" });
    let answered = client.post(&path, &body).expect("answers").expect_status(202);
    assert_eq!(answered.header("x-request-id"), Some("trace-4711"));
    let opened = follower.until(&mut sse, "a request", is("request.opened"));
    let approval = opened["request"].as_str().unwrap().to_owned();
    answer(&host.client(), &session, &approval, "allow_once").expect_status(200);
    let ended = follower.until(&mut sse, "the turn's end", is("turn.ended"));
    let turn = ended["turn"].as_str().unwrap();
    let made_up = host.client().get("/health").expect("answers");
    assert!(made_up.header("x-request-id").expect("an id").starts_with("req_"));

    let lines = || -> Vec<Value> {
        let text = host.stderr();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
            .collect()
    };
    let found = |line: &&Value, member: &str, value: &str| line[member] == value;
    let told = || lines().iter().any(|line| line["message"] == "turn.ended" && line["turn"] == turn);
    wait_until(DEADLINE, "the log tells", told);
    let lines = lines();
    // The request's id gives the message, the message its turn, the turn the approval, the approval the process.
    let of_request = lines
        .iter()
        .find(|line| line["span"]["id"] == "trace-4711" && line["message"] == "carried out")
        .expect("the request's line");
    assert_eq!(
        (&of_request["session"], &of_request["submission"]),
        (&session.as_str().into(), &"msg-of-the-story".into())
    );
    let of_turn = lines
        .iter()
        .filter(|line| found(line, "submission", "msg-of-the-story"))
        .find_map(|line| line["turn"].as_str())
        .expect("the message's turn");
    assert_eq!(of_turn, turn);
    let of_approval =
        lines.iter().find(|line| found(line, "turn", turn) && found(line, "approval", &approval));
    let process =
        of_approval.expect("the turn's approval")["process"].as_str().expect("the approval's process");
    assert!(lines.iter().any(|line| line["process"] == process && line["agent_pid"].is_i64()), "{process}");
    assert!(!host.stderr().contains("may I"), "the log tells what was said");
    world.end(host);
}

#[test]
fn logs_shows_the_hosts_file_and_an_agents_standard_error() {
    let world = World::new();
    crate::host_keys::set(&world, "log", "\"debug\"");
    // In the background, as a command starts it.
    let made = run(
        &world,
        &["run", "--agent", "scripted", "--detach", "RUN echo on standard error > /proc/$PPID/fd/2 ;; HOLD"],
    );
    let session = made.expect_code(0).out.trim().to_owned();
    let log = wait_for(DEADLINE, || {
        let shown = run(&world, &["logs", "-n", "1000"]).expect_code(0).out;
        (shown.contains("process.started") && shown.contains(&session)).then_some(shown)
    });
    let log = log.expect("the host's log");
    let two: Vec<String> =
        run(&world, &["logs", "--host", "--lines", "2"]).out.lines().map(str::to_owned).collect();
    assert_eq!(two.len(), 2, "{two:?}\n{log}");

    let said = wait_for(DEADLINE, || {
        let shown = run(&world, &["logs", "--session", &session]);
        (shown.out.contains("on standard error")).then_some(shown)
    });
    said.expect("what the agent wrote");
    let token = run(&world, &["ps", "--json"]).lines()[0]["token"].as_str().unwrap().to_owned();
    assert!(run(&world, &["logs", "--keeper", &token]).expect_code(0).out.contains("on standard error"));
    run(&world, &["logs", "--keeper", &token, "--own"]).expect_code(0);
    assert!(run(&world, &["logs", "--keeper", "../../x"]).expect_code(4).err.contains("no keeper"));

    // What is added comes, also when the file began anew meanwhile.
    let mut follow =
        command(&world, &["logs", "--follow", "-n", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follow.stdout.take().unwrap()).lines();
    let file = world.home.mainstay_home().join("logs/host.log");
    // It has begun to follow once it shows what was added behind its start.
    let seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (added, seen) = (file.clone(), &seen);
        scope.spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                let mut log = std::fs::File::options().append(true).open(&added).unwrap();
                log.write_all(b"a line in the old file\n").unwrap();
                std::thread::sleep(std::time::Duration::from_millis(50)); // poll
            }
        });
        let shown = lines.by_ref().any(|line| line.is_ok_and(|line| line == "a line in the old file"));
        seen.store(true, Ordering::Relaxed);
        assert!(shown, "nothing was followed");
    });
    std::fs::rename(&file, file.with_extension("log.1")).unwrap();
    std::fs::write(&file, "the first line of a new file\n").unwrap();
    assert!(lines.by_ref().any(|line| line.is_ok_and(|line| line == "the first line of a new file")));
    follow.kill().unwrap();
    follow.wait().unwrap();
    run(&world, &["stop", "--host", "--kill"]).expect_code(0);
    world.nothing_left();
}
