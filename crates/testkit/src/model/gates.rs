//! Named gates that hold a stream until the test lets it go on.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a stream at a gate looks whether its client is still there: a connection that closes
/// cannot wake a condition variable.
const CLIENT_CHECK_EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Gate {
    /// Open for good.
    open: bool,
    /// Deltas that may still pass.
    permits: usize,
    /// Streams that stand here.
    waiting: usize,
}

#[derive(Debug, Default)]
struct State {
    gates: HashMap<String, Gate>,
    closed: bool,
}

/// All gates of one server.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    state: Mutex<State>,
    changed: Condvar,
}

/// How a stream left a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Passage {
    Passed,
    /// The client went away or the server is being dropped.
    Abandoned,
}

impl Gates {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panicking test thread must not hide its own message behind a poisoned lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, name: &str) {
        self.lock().gates.entry(name.to_owned()).or_default().open = true;
        self.changed.notify_all();
    }

    pub(crate) fn release(&self, name: &str, permits: usize) {
        self.lock().gates.entry(name.to_owned()).or_default().permits += permits;
        self.changed.notify_all();
    }

    /// Lets every stream go, for good.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Whether a stream stood at the gate with nothing left to let it pass, before `deadline`.
    pub(crate) fn wait_blocked(&self, name: &str, deadline: Duration) -> bool {
        let give_up_at = Instant::now() + deadline;
        let mut state = self.lock();
        loop {
            if state.gates.get(name).is_some_and(|gate| gate.waiting > 0 && gate.permits == 0 && !gate.open) {
                return true;
            }
            let Some(left) = give_up_at.checked_duration_since(Instant::now()) else {
                return false;
            };
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Stands at the gate until it is open, or (`takes_permit`) a permit is there.
    pub(crate) fn pass(
        &self,
        name: &str,
        takes_permit: bool,
        mut client_is_there: impl FnMut() -> bool,
    ) -> Passage {
        let mut state = self.lock();
        state.gates.entry(name.to_owned()).or_default().waiting += 1;
        self.changed.notify_all();
        let passage = loop {
            if state.closed {
                break Passage::Abandoned;
            }
            let gate = state.gates.entry(name.to_owned()).or_default();
            if gate.open {
                break Passage::Passed;
            }
            if takes_permit && gate.permits > 0 {
                gate.permits -= 1;
                break Passage::Passed;
            }
            let (next, waited) =
                self.changed.wait_timeout(state, CLIENT_CHECK_EVERY).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() && !client_is_there() {
                break Passage::Abandoned;
            }
        };
        if let Some(gate) = state.gates.get_mut(name) {
            gate.waiting -= 1;
        }
        passage
    }

    /// Waits `time`, unless the client goes away or the server is dropped first.
    pub(crate) fn pause(&self, time: Duration, mut client_is_there: impl FnMut() -> bool) -> Passage {
        let end = Instant::now() + time;
        let mut state = self.lock();
        loop {
            if state.closed {
                return Passage::Abandoned;
            }
            let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
                return Passage::Passed;
            };
            let slice = left.min(CLIENT_CHECK_EVERY);
            state = self.changed.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
            if !client_is_there() {
                return Passage::Abandoned;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::mpsc;

    const GENEROUS: Duration = Duration::from_secs(30);

    #[test]
    fn permits_let_exactly_so_many_pass() {
        let gates = Arc::new(Gates::default());
        let (passed, passes) = mpsc::channel();
        let stream = std::thread::spawn({
            let gates = Arc::clone(&gates);
            move || {
                for index in 0..3 {
                    assert_eq!(gates.pass("door", true, || true), Passage::Passed);
                    passed.send(index).expect("test listens");
                }
            }
        });
        assert!(gates.wait_blocked("door", GENEROUS));
        gates.release("door", 2);
        assert_eq!(passes.recv_timeout(GENEROUS), Ok(0));
        assert_eq!(passes.recv_timeout(GENEROUS), Ok(1));
        assert!(gates.wait_blocked("door", GENEROUS), "the third stands");
        assert_eq!(passes.try_recv(), Err(mpsc::TryRecvError::Empty));
        gates.open("door");
        assert_eq!(passes.recv_timeout(GENEROUS), Ok(2));
        stream.join().expect("stream thread");
    }

    #[test]
    fn a_stream_without_a_client_leaves_the_gate() {
        let gates = Gates::default();
        assert_eq!(gates.pass("door", false, || false), Passage::Abandoned);
        gates.close();
        assert_eq!(gates.pass("door", false, || true), Passage::Abandoned);
    }
}
