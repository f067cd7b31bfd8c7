//! Room for processes: as many run as may run, and where one more is wanted, the one that has been idle longest rests.

use mainstay_store::ProcessKey;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How often a start that waits for room asks again for a process to rest: the one that was asked may have become busy in
/// the meantime, and ending one takes as long as its ladder.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(1);

/// Processes to which nothing is owed.
#[derive(Debug, Default)]
pub(crate) struct Room {
    idle: Mutex<BTreeMap<ProcessKey, (Instant, Arc<Notify>)>>,
}

impl Room {
    fn idle(&self) -> MutexGuard<'_, BTreeMap<ProcessKey, (Instant, Arc<Notify>)>> {
        // Every operation on the map is a single step, so a panic elsewhere cannot have left it half changed.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing is owed to this process since then; `rest` wakes its lane. None: it is needed, or gone.
    pub(crate) fn note(&self, process: ProcessKey, since: Option<Instant>, rest: &Arc<Notify>) {
        match since {
            Some(since) => drop(self.idle().insert(process, (since, rest.clone()))),
            None => drop(self.idle().remove(&process)),
        }
    }

    /// Asks the process that has been idle longest to rest. False: none is idle.
    pub(crate) fn ask(&self) -> bool {
        let mut idle = self.idle();
        let longest = idle.iter().min_by_key(|(key, (since, _))| (*since, **key)).map(|(key, _)| *key);
        // Its lane notes it again if it stays idle all the same.
        match longest.and_then(|key| idle.remove(&key)) {
            Some((_, rest)) => {
                rest.notify_one();
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_one_that_is_idle_longest_is_asked_once() {
        let room = Room::default();
        let [first, second] = [Arc::new(Notify::new()), Arc::new(Notify::new())];
        assert!(!room.ask());
        let began = Instant::now();
        room.note(ProcessKey(1), Some(began + Duration::from_secs(1)), &first);
        room.note(ProcessKey(2), Some(began), &second);
        room.note(ProcessKey(3), Some(began), &first);
        room.note(ProcessKey(3), None, &first);
        assert!(room.ask());
        second.notified().await;
        assert!(room.ask());
        first.notified().await;
        assert!(!room.ask());
    }
}
