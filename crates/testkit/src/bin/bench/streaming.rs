//! An agent that emits as fast as the pipe takes, with one SSE reader that gets all of it.

use crate::{Bench, median, rivals, row};
use mainstay_testkit::http::SseEvent;
use serde_json::Value;
use std::time::{Duration, Instant};

const FRAMES: usize = 300_000;
const SIZE: usize = 24;
const ROUNDS: usize = 5;
const DEADLINE: Duration = Duration::from_secs(300);

struct Round {
    seconds: f64,
    frames: u64,
    rows: u64,
    text_bytes: u64,
}

fn round(bench: &Bench) -> Round {
    let host = bench.start();
    // The process is started first, so that the figure is the stream alone.
    let session = bench.create(&host, Some("SAY warm"));
    let path = format!("/v1/sessions/{session}/events");
    let mut sse = host.client().events(&path, &[]).expect("a stream");
    sse.until(DEADLINE, |event| event.event == "turn.ended");
    let body = serde_json::json!({ "content": format!("BURST {FRAMES} {SIZE}") });
    let begun = Instant::now();
    host.client()
        .post(&format!("/v1/sessions/{session}/messages"), &body)
        .expect("answers")
        .expect_status(202);
    let (mut frames, mut rows, mut text_bytes) = (0, 0, 0);
    let mut count = |event: &SseEvent| {
        if event.event == "item.delta" {
            let seq = event.data["seq"].as_u64().unwrap_or(0);
            frames += seq - event.data["first_seq"].as_u64().unwrap_or(seq) + 1;
            rows += 1;
            text_bytes += event.data["text"].as_str().map_or(0, str::len) as u64;
        }
        event.event == "turn.ended"
    };
    loop {
        let event = sse.next(DEADLINE).expect("the stream goes on");
        if count(&event) {
            break;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    bench.end(host);
    Round { seconds, frames, rows, text_bytes }
}

pub(crate) fn run() {
    let bench = Bench::new();
    let rounds: Vec<Round> = (0..ROUNDS).map(|_| round(&bench)).collect();
    let rate = median(rounds.iter().map(|round| round.frames as f64 / round.seconds).collect());
    let Some(last) = rounds.last() else { return };
    let lost = FRAMES as u64 - last.frames;
    row("frames/s into the journal, synced, one SSE reader (durable)", &format!("{rate:.0}"), ">= 50,000");
    row(
        "  frames lost by the reader, of its text",
        &format!("{lost}, {} bytes short", (FRAMES * SIZE) as u64 - last.text_bytes),
        "0",
    );
    row("  rows they were merged into", &last.rows.to_string(), "");
    // A line of the scripted agent is about 200 bytes around its text.
    let bytes = FRAMES * (200 + SIZE);
    let piped = median((0..ROUNDS).map(|_| rivals::pipe(bytes)).collect());
    let synced =
        median((0..ROUNDS).map(|_| rivals::append_and_sync(bench.home.root(), bytes, 512 * 1024)).collect());
    let ours = FRAMES as f64 / rate;
    row(
        "  time beside a bare pipe reader of the same bytes (not durable)",
        &format!("{:.1} x", ours / piped),
        "",
    );
    row(
        "  time beside a bare append-and-fdatasync of the same bytes",
        &format!("{:.1} x", ours / synced),
        "",
    );
    latency(&bench);
}

/// From the agent's write to the reader's event, at a steady thousand frames a second.
fn latency(bench: &Bench) {
    const COUNT: usize = 3_000;
    let host = bench.start();
    let session = bench.create(&host, Some("SAY warm"));
    let path = format!("/v1/sessions/{session}/events");
    let mut sse = host.client().events(&path, &[]).expect("a stream");
    sse.until(DEADLINE, |event| event.event == "turn.ended");
    let script = format!("RUN i=0; while [ $i -lt {COUNT} ]; do date +%s%N; sleep 0.001; i=$((i+1)); done");
    let body = serde_json::json!({ "content": script });
    host.client()
        .post(&format!("/v1/sessions/{session}/messages"), &body)
        .expect("answers")
        .expect_status(202);
    let mut waits = Vec::new();
    loop {
        let event = sse.next(DEADLINE).expect("the stream goes on");
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .expect("after 1970")
            .as_nanos();
        if event.event == "turn.ended" {
            break;
        }
        collect(&event.data, now, &mut waits);
    }
    bench.end(host);
    waits.sort_by(f64::total_cmp);
    let at = |share: f64| waits.get((waits.len() as f64 * share) as usize).copied().unwrap_or(f64::NAN);
    row(
        "ms from an agent's command's byte to the reader (durable), p50 / p99",
        &format!("{:.1} / {:.1} ({} samples)", at(0.5), at(0.99), waits.len()),
        "p50 <= 8 (stream_flush 5 ms)",
    );
}

/// Every event that shows the command's newest line gives one sample.
fn collect(event: &Value, now: u128, waits: &mut Vec<f64>) {
    let text = event.to_string();
    let newest = text.split(|c: char| !c.is_ascii_digit()).rfind(|digits| digits.len() == 19);
    if let Some(sent) = newest.and_then(|digits| digits.parse::<u128>().ok()) {
        waits.push(now.saturating_sub(sent) as f64 / 1e6);
    }
}
