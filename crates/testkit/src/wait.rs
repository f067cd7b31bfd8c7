//! Waiting for a condition that gives no signal.

use std::time::{Duration, Instant};

/// How often a condition is looked at. Short beside every deadline in use (seconds), long enough
/// that ten waiting tests cost two cores nothing.
const POLL_EVERY: Duration = Duration::from_millis(5);

/// Polls `condition` until it holds.
///
/// # Panics
/// When `deadline` passes first; the message names `what` was waited for.
#[track_caller]
pub fn wait_until(deadline: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let held = wait_for(deadline, || condition().then_some(())).is_some();
    assert!(held, "not within {deadline:?}: {what}");
}

/// Polls `probe` until it gives a value; `None` when `deadline` passes first. The probe is asked at
/// least once, and once more after the deadline.
pub fn wait_for<T>(deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let give_up_at = Instant::now() + deadline;
    loop {
        let late = Instant::now() >= give_up_at;
        if let Some(value) = probe() {
            return Some(value);
        }
        if late {
            return None;
        }
        std::thread::sleep(POLL_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_the_value_as_soon_as_there_is_one() {
        let mut asked = 0;
        let value = wait_for(Duration::from_secs(30), || {
            asked += 1;
            (asked == 3).then_some("third")
        });
        assert_eq!(value, Some("third"));
        assert_eq!(asked, 3);
    }

    #[test]
    #[should_panic(expected = "the moon to turn green")]
    fn names_what_never_happened() {
        wait_until(Duration::ZERO, "the moon to turn green", || false);
    }
}
