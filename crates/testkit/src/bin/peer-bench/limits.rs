//! What the disk itself can do: a writer that appends and syncs, and nothing else.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use crate::figures::Figures;
use crate::hosts::{Durable, Facts};
use crate::measure::{FRAME_TEXT, Plan, share};
use crate::problem::Problem;

/// Bytes of one append: about what 5 ms of a hundred thousand frames a second are.
const BATCH_BYTES: usize = 128 << 10;

/// Bytes of the agent's line that the writer takes for a frame.
const LINE_BYTES: usize = 205 + FRAME_TEXT as usize;

const NAME: &str = "bare append + fdatasync";

pub(crate) fn facts() -> Facts {
    Facts {
        name: NAME.to_owned(),
        version: String::new(),
        durable: Durable::Synced,
        agent: "none: the same bytes from memory".to_owned(),
        burst: 300_000,
        only: &["frames_0", "latency_p50", "latency_p99", "disk"],
    }
}

/// Adds the figures of one run as those of host number `number`.
pub(crate) fn measure(plan: &Plan, figures: &mut Figures, number: usize) -> Result<(), Problem> {
    let key = (number, NAME, Durable::Synced);
    let folder = tempfile::tempdir().map_err(Problem::io("a temporary folder"))?;
    let mut file = File::create(folder.path().join("log")).map_err(Problem::io("a file"))?;
    let frames = facts().burst / plan.divisor;
    let total = frames as usize * LINE_BYTES;
    let bytes = vec![b'x'; BATCH_BYTES];
    let begun = Instant::now();
    let mut written = 0;
    while written < total {
        let count = BATCH_BYTES.min(total - written);
        append(&mut file, &bytes[..count])?;
        written += count;
    }
    figures.add("frames_0", key, frames as f64 / begun.elapsed().as_secs_f64());
    figures.note("frames_0", key, format!("batches of {} KiB", BATCH_BYTES >> 10));
    let mut waits = Vec::new();
    for _ in 0..plan.stamps.min(1_000) {
        let begun = Instant::now();
        append(&mut file, &bytes[..LINE_BYTES])?;
        waits.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    figures.add("latency_p50", key, share(&mut waits, 0.5));
    figures.add("latency_p99", key, share(&mut waits, 0.99));
    figures.note("latency_p50", key, "one frame, appended and synced; no reader".to_owned());
    Ok(())
}

fn append(file: &mut File, bytes: &[u8]) -> Result<(), Problem> {
    file.write_all(bytes).and_then(|()| file.sync_data()).map_err(Problem::io("an append"))
}
