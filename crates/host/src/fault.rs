//! Fault points: named places at which a test can make the host die as by `kill -9`. Off unless a plan is given.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// The places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPoint {
    /// The reservation is committed; nothing is spawned.
    ReservedNotSpawned,
    /// The keeper runs; its start is not recorded.
    SpawnedNotRecorded,
    /// The start is recorded; no frame of the agent was read.
    RecordedNoFrame,
    /// A record was read; what it made is not committed.
    ReadNotCommitted,
    /// A batch is committed; its frames were not given to the keeper.
    CommittedNotDelivered,
    /// A frame was given to the keeper; its acknowledgement was not seen.
    DeliveredNotAcknowledged,
    /// An answer to an approval is committed; it was not given to the keeper.
    AnsweredNotDelivered,
}

impl FaultPoint {
    /// All of them, for tests that must cover each.
    pub const ALL: [Self; 7] = [
        Self::ReservedNotSpawned,
        Self::SpawnedNotRecorded,
        Self::RecordedNoFrame,
        Self::ReadNotCommitted,
        Self::CommittedNotDelivered,
        Self::DeliveredNotAcknowledged,
        Self::AnsweredNotDelivered,
    ];

    /// Its name in a plan.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReservedNotSpawned => "reserved_not_spawned",
            Self::SpawnedNotRecorded => "spawned_not_recorded",
            Self::RecordedNoFrame => "recorded_no_frame",
            Self::ReadNotCommitted => "read_not_committed",
            Self::CommittedNotDelivered => "committed_not_delivered",
            Self::DeliveredNotAcknowledged => "delivered_not_acknowledged",
            Self::AnsweredNotDelivered => "answered_not_delivered",
        }
    }
}

/// A text that is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a fault plan is a point's name and a count, for example read_not_committed:3; got {0:?}")]
pub struct InvalidFaultPlan(String);

/// Die at a point, the n-th time it is passed.
#[derive(Debug, Clone, Default)]
pub struct FaultPlan(Option<(FaultPoint, Arc<AtomicI64>)>);

impl std::str::FromStr for FaultPlan {
    type Err = InvalidFaultPlan;

    fn from_str(text: &str) -> Result<Self, InvalidFaultPlan> {
        let bad = || InvalidFaultPlan(text.to_owned());
        let (name, count) = text.split_once(':').unwrap_or((text, "1"));
        let point = FaultPoint::ALL.into_iter().find(|point| point.name() == name).ok_or_else(bad)?;
        let count: i64 = count.parse().map_err(|_| bad())?;
        Ok(Self(Some((point, Arc::new(AtomicI64::new(count))))))
    }
}

impl FaultPlan {
    /// Passes a point: dies here if the plan says so.
    pub fn pass(&self, point: FaultPoint) {
        if let Some((planned, left)) = &self.0
            && *planned == point
            && left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            // As `kill -9` does: no destructor, no flush, no exit handler.
            let own = rustix::process::getpid();
            let killed = rustix::process::kill_process(own, rustix::process::Signal::KILL);
            tracing::error!(?killed, "a fault point could not end this process");
        }
    }
}
