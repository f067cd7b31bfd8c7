//! Where lane writes wait for the writer thread: bounded by count and bytes, the urgent ones first.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::lock;
use crate::error::WriteError;
use crate::store::{
    Committed, MAX_QUEUED_BYTES, MAX_QUEUED_WRITES, STOP_HEADROOM_BYTES, STOP_HEADROOM_WRITES,
};
use crate::write::{LaneWrite, Urgency};

/// Lane writes in one transaction. Enough to share a sync among all lanes; few enough that trying each alone
/// after a failure stays short.
const GROUP_WRITES: usize = 256;
/// Bytes in one transaction: about what fits in 10 ms of writing, and one checkpoint.
const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// A write with somebody waiting for its outcome.
pub(super) struct Pending {
    pub(super) write: LaneWrite,
    weight: usize,
    arrived: Instant,
    answer: oneshot::Sender<Result<Committed, WriteError>>,
}

impl Pending {
    pub(super) fn settle(self, outcome: Result<Committed, WriteError>) {
        // A caller that stopped waiting has withdrawn nothing and needs no answer.
        let _ = self.answer.send(outcome);
    }
}

#[derive(Default)]
struct Waiting {
    stop: VecDeque<Pending>,
    command: VecDeque<Pending>,
    stream: VecDeque<Pending>,
    writes: usize,
    bytes: usize,
    closed: bool,
}

pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// How long writes may gather when only streamed ones wait.
    stream_flush: Duration,
}

/// What the writer thread has to do next.
pub(super) enum Turn {
    /// At least one write, urgent ones first.
    Commit(Vec<Pending>),
    /// Nothing waited until the given moment.
    Idle,
    /// Closed, and everything that waited was handed out.
    End,
}

impl Queue {
    pub(super) fn new(stream_flush: Duration) -> Self {
        Self { waiting: Mutex::default(), changed: Condvar::new(), stream_flush }
    }

    /// The second value is false when the queue had no room (the receiver already holds the answer).
    pub(super) fn push(&self, write: LaneWrite) -> (oneshot::Receiver<Result<Committed, WriteError>>, bool) {
        let (answer, receiver) = oneshot::channel();
        let weight = write.weight();
        let urgency = write.urgency;
        let pending = Pending { write, weight, arrived: Instant::now(), answer };
        let (max_writes, max_bytes) = match urgency {
            Urgency::Stop => {
                (MAX_QUEUED_WRITES + STOP_HEADROOM_WRITES, MAX_QUEUED_BYTES + STOP_HEADROOM_BYTES)
            }
            Urgency::Command | Urgency::Stream => (MAX_QUEUED_WRITES, MAX_QUEUED_BYTES),
        };
        let mut waiting = lock(&self.waiting);
        let refusal = if waiting.closed {
            Some(WriteError::Closed)
        } else if weight > MAX_QUEUED_BYTES {
            Some(WriteError::TooLarge { bytes: weight, limit: MAX_QUEUED_BYTES })
        } else if waiting.writes >= max_writes || waiting.bytes + weight > max_bytes {
            Some(WriteError::Overloaded)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            drop(waiting);
            let overloaded = refusal == WriteError::Overloaded;
            pending.settle(Err(refusal));
            return (receiver, !overloaded);
        }
        waiting.writes += 1;
        waiting.bytes += weight;
        match urgency {
            Urgency::Stop => waiting.stop.push_back(pending),
            Urgency::Command => waiting.command.push_back(pending),
            Urgency::Stream => waiting.stream.push_back(pending),
        }
        drop(waiting);
        self.changed.notify_one();
        (receiver, true)
    }

    /// (writes, bytes)
    pub(super) fn waiting(&self) -> (usize, usize) {
        let waiting = lock(&self.waiting);
        (waiting.writes, waiting.bytes)
    }

    pub(super) fn close(&self) {
        lock(&self.waiting).closed = true;
        self.changed.notify_all();
    }

    /// Closes, and tells everybody who waits: for a writer that cannot go on.
    pub(super) fn abandon(&self) {
        let abandoned = {
            let mut waiting = lock(&self.waiting);
            std::mem::replace(&mut *waiting, Waiting { closed: true, ..Waiting::default() })
        };
        for pending in abandoned.stop.into_iter().chain(abandoned.command).chain(abandoned.stream) {
            pending.settle(Err(WriteError::Closed));
        }
    }

    /// Blocks until there is something to do; not longer than `idle_until`.
    pub(super) fn next(&self, idle_until: Option<Instant>) -> Turn {
        let mut waiting = lock(&self.waiting);
        loop {
            let now = Instant::now();
            let until = if waiting.writes > 0 {
                match waiting.gather_until(self.stream_flush) {
                    Some(until) if until > now => Some(until),
                    _ => return Turn::Commit(waiting.take_group()),
                }
            } else if waiting.closed {
                return Turn::End;
            } else {
                match idle_until {
                    Some(until) if until <= now => return Turn::Idle,
                    other => other,
                }
            };
            waiting = match until {
                Some(until) => {
                    let waited = self.changed.wait_timeout(waiting, until - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Waiting {
    /// Until when the writes that wait may gather; `None`: not at all.
    fn gather_until(&self, stream_flush: Duration) -> Option<Instant> {
        let full = self.writes >= GROUP_WRITES || self.bytes >= GROUP_BYTES;
        if full || self.closed || !self.stop.is_empty() || !self.command.is_empty() {
            return None;
        }
        self.stream.front().map(|oldest| oldest.arrived + stream_flush)
    }

    fn take_group(&mut self) -> Vec<Pending> {
        let mut group = Vec::new();
        let mut bytes = 0;
        for queue in [&mut self.stop, &mut self.command, &mut self.stream] {
            while let Some(next) = queue.front() {
                let full = group.len() >= GROUP_WRITES || bytes + next.weight > GROUP_BYTES;
                if full && !group.is_empty() {
                    break;
                }
                bytes += next.weight;
                group.extend(queue.pop_front());
            }
        }
        self.writes -= group.len();
        self.bytes -= bytes;
        group
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_abandoned_queue_answers_everybody() {
        let queue = Queue::new(Duration::from_secs(600));
        let (waiting, _) = queue.push(LaneWrite::new(Urgency::Stream, vec![]));
        queue.abandon();
        assert_eq!(waiting.blocking_recv().unwrap(), Err(WriteError::Closed));
        let (late, _) = queue.push(LaneWrite::new(Urgency::Stop, vec![]));
        assert_eq!(late.blocking_recv().unwrap(), Err(WriteError::Closed));
        assert!(matches!(queue.next(None), Turn::End));
    }
}
