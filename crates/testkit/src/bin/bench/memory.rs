//! Resident and private memory.

use crate::{Bench, row};
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
    for _ in 0..200 {
        // What a host touches once, whoever asks, is not what a session costs.
        host.client().get("/v1/sessions").expect("answers");
    }
    let before = resident(host.pid());
    for _ in 0..1_000 {
        bench.create(&host, None);
    }
    // Lanes of sessions at rest end by themselves; until then they are counted.
    let give_up = std::time::Instant::now() + Duration::from_secs(20);
    let mut after = resident(host.pid());
    while std::time::Instant::now() < give_up {
        after = after.min(resident(host.pid()));
        std::thread::yield_now();
    }
    row("MB more with 1,000 sessions at rest", &format!("{:.1}", (after - before) / 1024.0), "<= 2");
    bench.end(host);
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
