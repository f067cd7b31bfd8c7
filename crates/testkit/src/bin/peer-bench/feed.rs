//! Readers of a host's stream: they count what arrives and parse as little of it as they can, because they share the
//! machine with what is measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use mainstay_testkit::http::Sse;
use mainstay_testkit::stream_text::stamps_in;

use crate::problem::Problem;

/// How long one look at a stream may wait, so that a reader sees that it is to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Where a stream is to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// With what comes after the reader.
    Now,
    /// With the oldest that the host has.
    Beginning,
}

/// What one reader has seen.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// The agent's frames, also those that the host has merged into one event.
    pub(crate) frames: u64,
    /// Turns that ended.
    pub(crate) turns: u64,
    pub(crate) last_frame: Option<Instant>,
    /// Milliseconds from the agent's writing to here, one for each stamp.
    pub(crate) waits: Vec<f64>,
    /// Bytes of the stream as they came.
    pub(crate) bytes: u64,
    pub(crate) over: bool,
}

impl Seen {
    /// Notes `count` frames whose text stands in `line`.
    pub(crate) fn frames(&mut self, count: u64, line: &str) {
        self.frames += count;
        self.last_frame = Some(Instant::now());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        // A frame of a burst holds no digits that look like a stamp.
        self.waits.extend(stamps_in(line).map(|stamp| now.saturating_sub(u128::from(stamp)) as f64 / 1e6));
    }
}

/// One open stream.
pub(crate) trait Feed: Send {
    /// Notes what comes within `limit`.
    fn pull(&mut self, limit: Duration, seen: &mut Seen);
}

/// Takes one line of a stream.
pub(crate) type ReadLine = fn(&str, &mut Seen);

/// A stream of lines over HTTP; server-sent events are lines too.
pub(crate) struct Lines {
    stream: Sse,
    buffer: Vec<u8>,
    read: ReadLine,
}

impl Lines {
    pub(crate) fn new(stream: Sse, read: ReadLine) -> Self {
        Self { stream, buffer: Vec::new(), read }
    }
}

impl Feed for Lines {
    fn pull(&mut self, limit: Duration, seen: &mut Seen) {
        let before = self.buffer.len();
        self.stream.bytes(&mut self.buffer, limit);
        seen.bytes += (self.buffer.len() - before) as u64;
        seen.over = self.stream.ended();
        take_lines(&mut self.buffer, self.read, seen);
    }
}

/// Hands every complete line on and keeps the rest.
pub(crate) fn take_lines(buffer: &mut Vec<u8>, read: ReadLine, seen: &mut Seen) {
    let Some(end) = buffer.iter().rposition(|byte| *byte == b'\n') else { return };
    for line in buffer[..=end].split(|byte| *byte == b'\n') {
        if let Ok(line) = std::str::from_utf8(line) {
            read(line, seen);
        }
    }
    buffer.drain(..=end);
}

/// Several readers of one session, each in a thread of its own.
pub(crate) struct Readers {
    seen: Vec<Arc<Mutex<Seen>>>,
    threads: Vec<JoinHandle<()>>,
    stop: Arc<AtomicBool>,
}

impl Readers {
    pub(crate) fn start(feeds: Vec<Box<dyn Feed>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut readers = Self { seen: Vec::new(), threads: Vec::new(), stop: Arc::clone(&stop) };
        for mut feed in feeds {
            let seen = Arc::new(Mutex::new(Seen::default()));
            readers.seen.push(Arc::clone(&seen));
            let stop = Arc::clone(&stop);
            readers.threads.push(std::thread::spawn(move || {
                let mut own = Seen::default();
                while !stop.load(Ordering::Relaxed) && !own.over {
                    feed.pull(LOOK, &mut own);
                    let mut shown = lock(&seen);
                    // The samples stay here until the end; the counts are what is looked at meanwhile.
                    let waits = std::mem::take(&mut own.waits);
                    shown.waits.extend(waits);
                    let waits = std::mem::take(&mut shown.waits);
                    *shown = Seen { waits, ..own.clone() };
                }
            }));
        }
        readers
    }

    /// Waits until each has `frames`, or none has got anything for `quiet` after `turn_over` says that no more is to
    /// come, or `limit` passes.
    pub(crate) fn wait(&self, frames: u64, quiet: Duration, limit: Duration, turn_over: &AtomicBool) {
        let give_up = Instant::now() + limit;
        let mut newest = (0, Instant::now());
        while Instant::now() < give_up {
            let counts: Vec<u64> = self.seen.iter().map(|seen| lock(seen).frames).collect();
            if counts.iter().all(|count| *count >= frames) {
                return;
            }
            let sum = counts.iter().sum();
            if sum != newest.0 || !turn_over.load(Ordering::SeqCst) {
                newest = (sum, Instant::now());
            }
            if newest.1.elapsed() > quiet {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the first reader has seen this many ends of turns.
    pub(crate) fn wait_turns(&self, turns: u64, limit: Duration) -> Result<(), Problem> {
        let give_up = Instant::now() + limit;
        while self.seen.first().is_some_and(|seen| lock(seen).turns < turns) {
            if Instant::now() > give_up {
                return Err(Problem::Late { what: "the end of a turn in the stream", limit });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Vec<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A panic over there has been printed, and its counts are what they were.
            thread.join().ok();
        }
        self.seen.iter().map(|seen| lock(seen).clone()).collect()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_the_rest_waits() {
        let mut buffer = b"one\ntwo\nhal".to_vec();
        let mut seen = Seen::default();
        take_lines(&mut buffer, |line, seen| seen.frames += u64::from(!line.is_empty()), &mut seen);
        assert_eq!((seen.frames, buffer.as_slice()), (2, b"hal".as_slice()));
    }

    #[test]
    fn a_merged_event_gives_a_sample_for_every_stamp() {
        let text: String = mainstay_testkit::stream_text::stamps(4, Duration::ZERO).collect();
        let mut seen = Seen::default();
        seen.frames(4, &format!("data: {{\"text\":\"{text}\"}}"));
        assert_eq!((seen.frames, seen.waits.len()), (4, 4));
        assert!(seen.waits.iter().all(|wait| *wait < 60_000.0), "{:?}", seen.waits);
    }
}
