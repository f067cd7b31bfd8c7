//! The time that a lane decides by. Deadlines are stored as wall clock times; somebody may set that clock.

use crate::keeping::Clock;

/// A wall clock that is not set while something is measured by it: from then on it goes on as the machine's own time
/// does, whatever becomes of the wall clock, and takes the wall clock again once nothing is measured. So a step of an
/// hour back makes no deadline an hour late, and a step of a day forward ends no turn and answers no request a day early;
/// the price is that what is recorded meanwhile carries the times of the clock as it was.
///
/// A new host knows nothing of the clock before it: where it was set between two hosts, the wall clock counts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Both clocks when they were last taken together, Unix ms and ms of the machine's own time.
    taken: (i64, i64),
    /// What is to be added to a wall clock time of now.
    ahead: i64,
}

impl Pace {
    pub(super) fn new(clock: &dyn Clock) -> Self {
        Self { taken: (clock.now(), clock.steady()), ahead: 0 }
    }

    /// Unix time in ms. `measures`: whether a stored time is waited for, or what runs is timed.
    pub(super) fn now(&mut self, clock: &dyn Clock, measures: bool) -> i64 {
        let (wall, steady) = (clock.now(), clock.steady());
        if !measures {
            self.taken = (wall, steady);
        }
        let now = self.taken.0.saturating_add(steady.saturating_sub(self.taken.1));
        self.ahead = now.saturating_sub(wall);
        now
    }

    /// When a keeper recorded something, in the lane's time. Keepers read the wall clock; nothing is recorded later than `now`.
    pub(super) fn of_record(&self, at: i64, now: i64) -> i64 {
        at.saturating_add(self.ahead).min(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_core::ProcessToken;
    use std::sync::atomic::{AtomicI64, Ordering};

    const HOUR: i64 = 3_600_000;

    #[derive(Debug)]
    struct Hand {
        wall: AtomicI64,
        steady: AtomicI64,
    }

    impl Hand {
        fn new() -> Self {
            Self { wall: AtomicI64::new(100 * HOUR), steady: AtomicI64::new(5_000) }
        }

        fn passes(&self, ms: i64) {
            self.wall.fetch_add(ms, Ordering::SeqCst);
            self.steady.fetch_add(ms, Ordering::SeqCst);
        }

        fn is_set(&self, by: i64) {
            self.wall.fetch_add(by, Ordering::SeqCst);
        }
    }

    impl Clock for Hand {
        fn now(&self) -> i64 {
            self.wall.load(Ordering::SeqCst)
        }

        fn steady(&self) -> i64 {
            self.steady.load(Ordering::SeqCst)
        }

        fn fresh_token(&self) -> ProcessToken {
            ProcessToken(String::new())
        }
    }

    #[test]
    fn a_clock_that_is_set_while_something_is_measured_changes_nothing_and_counts_afterwards() {
        for step in [-HOUR, 24 * HOUR] {
            let clock = Hand::new();
            let mut pace = Pace::new(&clock);
            clock.passes(10);
            let began = pace.now(&clock, false);
            assert_eq!(began, 100 * HOUR + 10);
            clock.is_set(step);
            clock.passes(1_000);
            assert_eq!(pace.now(&clock, true), began + 1_000);
            // What a keeper wrote half a second ago, by the clock as it is now.
            assert_eq!(pace.of_record(clock.now() - 500, began + 1_000), began + 500);
            clock.passes(2_000);
            assert_eq!(pace.now(&clock, true), began + 3_000);
            assert_eq!(pace.now(&clock, false), clock.now(), "at rest the wall clock counts");
            clock.passes(7);
            assert_eq!(pace.now(&clock, true), clock.now());
            assert_eq!(pace.of_record(clock.now() + HOUR, clock.now()), clock.now(), "nothing is of later");
        }
    }
}
