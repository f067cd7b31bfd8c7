//! What a host counts while it works: plain atomics, added to where the thing happens and read when somebody asks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        // Nothing is read together with it.
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    /// The sum so far.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How many there are now.
#[derive(Debug, Default)]
pub struct Level(AtomicU64);

impl Level {
    pub(crate) fn up(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Never without an [`up`](Self::up) before it.
    pub(crate) fn down(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Upper ends of a histogram's buckets, in microseconds: from less than a sync takes to more than anybody waits.
pub const BUCKETS_US: [u64; 14] = [
    250, 500, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 125_000, 250_000, 1_000_000, 5_000_000,
    30_000_000,
];

/// How long something took, by how often.
#[derive(Debug, Default)]
pub struct Durations {
    /// One more than there are ends: the last is for everything longer.
    buckets: [AtomicU64; BUCKETS_US.len() + 1],
    total_us: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DurationCounts {
    /// How many took at most as long as the end of this place in [`BUCKETS_US`].
    pub up_to: [u64; BUCKETS_US.len()],
    /// How many there were.
    pub count: u64,
    /// How long all took together, in microseconds.
    pub total_us: u64,
}

impl Durations {
    /// Notes one.
    pub fn note(&self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let place = BUCKETS_US.partition_point(|end| *end < us);
        self.buckets[place].fetch_add(1, Ordering::Relaxed);
        self.total_us.fetch_add(us, Ordering::Relaxed);
    }

    /// How it stands. Its count is that of its buckets, also while others note more.
    #[must_use]
    pub fn get(&self) -> DurationCounts {
        let mut up_to = [0; BUCKETS_US.len()];
        let mut count = 0;
        for (place, bucket) in self.buckets.iter().enumerate() {
            count += bucket.load(Ordering::Relaxed);
            if let Some(up_to) = up_to.get_mut(place) {
                *up_to = count;
            }
        }
        DurationCounts { up_to, count, total_us: self.total_us.load(Ordering::Relaxed) }
    }
}

/// Everything that a host counts. The store counts for itself, see [`mainstay_store::StoreStats`].
#[derive(Debug, Default)]
pub struct Metrics {
    /// Batches of lanes that were committed.
    pub batches_committed: Counter,
    /// Batches that the store decided against.
    pub batches_refused: Counter,
    /// Batches that the store could not write.
    pub batches_failed: Counter,
    /// Records of agents' output that were read and decided.
    pub records_read: Counter,
    /// Bytes of agents' output that were committed.
    pub output_bytes: Counter,
    /// Frames for agents that were committed.
    pub inputs: Counter,
    /// Records set aside.
    pub quarantined: Counter,
    /// Agent processes whose keeper came up.
    pub starts_done: Counter,
    /// Starts of which no process came to be.
    pub starts_failed: Counter,
    /// Starts of which it had to be found out what became of them.
    pub starts_unclear: Counter,
    /// Starts called off before anything was started.
    pub starts_called_off: Counter,
    /// Sessions that this host looked after because of what a former one left.
    pub recoveries: Counter,
    /// Readers of sessions now.
    pub subscribers: Level,
    /// Pulls of readers that memory served.
    pub ring_reads: Counter,
    /// Pulls of readers that the store served.
    pub stored_reads: Counter,
    /// Commands carried out.
    pub commands_done: Counter,
    /// Commands that had been carried out before.
    pub commands_replayed: Counter,
    /// Stops carried out though the store did not record them.
    pub commands_unrecorded: Counter,
    /// Commands refused.
    pub commands_refused: Counter,
    /// Commands that failed, on the store's or the host's side.
    pub commands_failed: Counter,
    /// From a lane's submission to its commit.
    pub commit: Durations,
    /// From when the keeper recorded an agent's oldest byte of a batch to the batch's commit, by the wall clock.
    pub agent_to_commit: Durations,
    events: Mutex<BTreeMap<String, u64>>,
}

impl Metrics {
    /// Notes lines of journals that were committed, by their types.
    pub(crate) fn note_events<'a>(&self, types: impl Iterator<Item = &'a str>) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        for kind in types {
            match events.get_mut(kind) {
                Some(count) => *count += 1,
                None => drop(events.insert(kind.to_owned(), 1)),
            }
        }
    }

    /// Lines of journals that were committed, by their types: there are a few dozen.
    #[must_use]
    pub fn events(&self) -> BTreeMap<String, u64> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_bucket_that_holds_it() {
        let durations = Durations::default();
        for us in [1, 250, 251, 40_000_000] {
            durations.note(Duration::from_micros(us));
        }
        let counts = durations.get();
        assert_eq!((counts.up_to[0], counts.up_to[1]), (2, 3));
        assert_eq!((counts.up_to[BUCKETS_US.len() - 1], counts.count), (3, 4));
        assert_eq!(counts.total_us, 40_000_502);
    }

    #[test]
    fn events_are_counted_by_type() {
        let metrics = Metrics::default();
        metrics.note_events(["a", "b", "a"].into_iter());
        assert_eq!(metrics.events(), BTreeMap::from([("a".to_owned(), 2), ("b".to_owned(), 1)]));
    }
}
