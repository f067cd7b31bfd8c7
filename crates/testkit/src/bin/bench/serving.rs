//! Start, recovery, and reading a large session.

use crate::{Bench, median, row};
use mainstay_testkit::contain;
use std::time::{Duration, Instant};

const STARTS: usize = 20;
const DEADLINE: Duration = Duration::from_secs(600);

pub(crate) fn run() {
    start_time();
    tail_page();
    recovery();
}

fn start_time() {
    let bench = Bench::new();
    let times = (0..STARTS)
        .map(|_| {
            let begun = Instant::now();
            let mut host = bench.start();
            host.anonymous_client().get("/health").expect("answers").expect_status(200);
            let took = begun.elapsed().as_secs_f64() * 1e3;
            host.term();
            host.wait(DEADLINE);
            took
        })
        .collect();
    row("ms from start to healthy (median of 20)", &format!("{:.1}", median(times)), "<= 20");
}

fn tail_page() {
    let bench = Bench::new();
    let host = bench.start();
    let session = bench.create(&host, Some("FRAMES 1000000 8"));
    let path = format!("/v1/sessions/{session}/events");
    let mut sse = host.client().events(&path, &[]).expect("a stream");
    sse.until(DEADLINE, |event| event.event == "turn.ended");
    for _ in 0..50 {
        let body = serde_json::json!({ "content": "SAY a ;; TOOL b ;; SAY c" });
        host.client()
            .post(&format!("/v1/sessions/{session}/messages"), &body)
            .expect("answers")
            .expect_status(202);
        sse.until(DEADLINE, |event| event.event == "turn.ended");
    }
    let shown = host.client().get(&format!("/v1/sessions/{session}")).expect("answers").json();
    let client = host.client();
    let times = (0..30)
        .map(|_| {
            let begun = Instant::now();
            client
                .get(&format!("/v1/sessions/{session}/items?limit=50"))
                .expect("answers")
                .expect_status(200);
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    let events = shown["cursor"]["seq"].as_u64().unwrap_or(0);
    row(
        &format!("ms for the tail page of a session with {events} events"),
        &format!("{:.1}", median(times)),
        "<= 5",
    );
    bench.end(host);
}

fn recovery() {
    let bench = Bench::new();
    let mut host = bench.start();
    contain::own(host.pid());
    for _ in 0..1_000 {
        bench.create(&host, None);
    }
    let running: Vec<String> = (0..4).map(|_| bench.create(&host, Some("SAY hi ;; HOLD"))).collect();
    for session in &running {
        let path = format!("/v1/sessions/{session}/events");
        let mut sse = host.client().events(&path, &[]).expect("a stream");
        sse.until(DEADLINE, |event| event.event == "item.delta");
    }
    host.kill9();
    let begun = Instant::now();
    let host = bench.start();
    let client = host.client();
    let adopted = |session: &String| {
        let shown =
            client.get(&format!("/v1/sessions/{session}/events?after=1:0&limit=1000")).expect("answers");
        shown.text().contains("process.adopted")
    };
    while !running.iter().all(adopted) {
        std::thread::yield_now();
    }
    let took = begun.elapsed().as_secs_f64() * 1e3;
    row(
        "ms from start after kill -9 to all right (1,000 at rest, 4 running)",
        &format!("{took:.0}"),
        "<= 1,000",
    );
    bench.end(host);
}
