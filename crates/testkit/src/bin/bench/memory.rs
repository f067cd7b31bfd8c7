//! Resident and private memory.

use crate::{Bench, row};
use mainstay_testkit::mainstay::HostProcess;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) fn run() {
    let bench = Bench::new();
    let host = bench.start();
    host.client().get("/v1/info").expect("answers").expect_status(200);
    let idle = resident(host.pid());
    row("MB resident, idle host", &format!("{:.1}", idle / 1024.0), "<= 15");
    let session = bench.create(&host, Some("SAY hi ;; HOLD"));
    let path = format!("/v1/sessions/{session}/events");
    let mut sse = host.client().events(&path, &[]).expect("a stream");
    sse.until(DEADLINE, |event| event.event == "item.delta");
    let keepers: Vec<u32> = children(host.pid());
    let private: Vec<String> = keepers.iter().map(|pid| format!("{:.2}", private(*pid) / 1024.0)).collect();
    row("MB private, one keeper with its agent at work", &private.join(" "), "<= 2");
    bench.end(host);

    let bench = Bench::new();
    let host = bench.start();
    touch(&host);
    let none = resident(host.pid());
    for _ in 0..SESSIONS {
        bench.create(&host, None);
    }
    let just_made = settled(host.pid());
    bench.end(host);
    let host = bench.start();
    touch(&host);
    let at_rest = settled(host.pid());
    bench.end(host);
    let more = |kib: f64| format!("{:.1}", (kib - none) / 1024.0);
    row("MB more with 1,000 sessions at rest, host started anew", &more(at_rest), "<= 2");
    row("MB more in the host that has just made 1,000 (page caches are full)", &more(just_made), "");
}

const SESSIONS: usize = 1_000;

/// What a host touches once, whoever asks, is not what a session costs.
fn touch(host: &HostProcess) {
    for _ in 0..50 {
        host.client().get("/v1/sessions?limit=200").expect("answers");
    }
}

/// The least of a while: tasks that are about to end are not what rests.
fn settled(pid: u32) -> f64 {
    let give_up = std::time::Instant::now() + Duration::from_secs(3);
    let mut least = resident(pid);
    while std::time::Instant::now() < give_up {
        least = least.min(resident(pid));
        std::thread::yield_now();
    }
    least
}

fn field(path: &str, name: &str) -> f64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_ascii_whitespace().nth(1)).and_then(|kib| kib.parse().ok()).unwrap_or(0.0)
}

/// KiB.
fn resident(pid: u32) -> f64 {
    field(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// KiB.
fn private(pid: u32) -> f64 {
    let path = format!("/proc/{pid}/smaps_rollup");
    field(&path, "Private_Clean:") + field(&path, "Private_Dirty:")
}

fn children(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(list.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}
