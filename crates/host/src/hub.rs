//! Where subscribers look first: the newest committed lines of a session, shared, and a wake-up.

use crate::journal::Line;
use mainstay_core::Cursor;
use mainstay_store::SessionKey;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// Bytes of lines kept per session for readers that follow closely. A reader further behind reads the store.
const RING_BYTES: usize = 1024 * 1024;

/// Committed lines of one session.
#[derive(Debug)]
pub(crate) struct Hub {
    head: watch::Sender<Cursor>,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    epoch: u64,
    lines: VecDeque<Line>,
    bytes: usize,
}

/// What the ring has for a reader.
#[derive(Debug)]
pub(crate) enum FromRing {
    /// The next lines, whole.
    Lines(Vec<Line>),
    /// The reader has everything.
    UpToDate,
    /// The reader is further behind than the ring reaches, or in another epoch.
    Behind,
}

impl Hub {
    pub(crate) fn new(head: Cursor) -> Self {
        Self {
            head: watch::Sender::new(head),
            ring: Mutex::new(Ring { epoch: head.epoch, ..Ring::default() }),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // A panic while the ring was held can at worst have left fewer lines in it: readers then read the store.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts committed lines out and wakes the readers. Without readers only the head moves.
    pub(crate) fn publish(&self, head: Cursor, lines: Vec<Line>) {
        {
            let mut ring = self.ring();
            if ring.epoch != head.epoch {
                *ring = Ring { epoch: head.epoch, ..Ring::default() };
            }
            let follows = match (ring.lines.back(), lines.first()) {
                (Some(last), Some(first)) => last.seq + 1 == first.first_seq,
                _ => true,
            };
            if !follows {
                // Lines between these were committed without being published here (a lost acknowledgement).
                ring.lines.clear();
                ring.bytes = 0;
            }
            if self.head.receiver_count() == 0 {
                ring.lines.clear();
                ring.bytes = 0;
            } else {
                for line in lines {
                    ring.bytes += line.json.len();
                    ring.lines.push_back(line);
                }
                while ring.bytes > RING_BYTES
                    && let Some(oldest) = ring.lines.pop_front()
                {
                    ring.bytes -= oldest.json.len();
                }
            }
        }
        self.head.send_replace(head);
    }

    /// Learns from the store what was committed while no lane published here.
    pub(crate) fn raise(&self, committed: Cursor) {
        self.head.send_if_modified(|head| {
            let newer = committed > *head;
            if newer {
                *head = committed;
            }
            newer
        });
    }

    pub(crate) fn watch(&self) -> watch::Receiver<Cursor> {
        self.head.subscribe()
    }

    pub(crate) fn head(&self) -> Cursor {
        *self.head.borrow()
    }

    /// The lines behind a cursor, at most about `bytes`.
    pub(crate) fn after(&self, cursor: Cursor, bytes: usize) -> FromRing {
        let ring = self.ring();
        if ring.epoch != cursor.epoch {
            return FromRing::Behind;
        }
        if self.head.borrow().seq <= cursor.seq {
            return FromRing::UpToDate;
        }
        let begin = ring.lines.partition_point(|line| line.seq <= cursor.seq);
        let Some(first) = ring.lines.get(begin) else {
            return FromRing::Behind;
        };
        if first.first_seq > cursor.seq + 1 {
            return FromRing::Behind;
        }
        let mut total = 0;
        let lines = ring
            .lines
            .range(begin..)
            .take_while(|line| {
                let fits = total == 0 || total + line.json.len() <= bytes;
                total += line.json.len();
                fits
            })
            .cloned()
            .collect();
        FromRing::Lines(lines)
    }
}

/// The hubs of all sessions that have a lane or readers, and the feed's head.
#[derive(Debug)]
pub(crate) struct Hubs {
    sessions: Mutex<HashMap<SessionKey, Arc<Hub>>>,
    feed: watch::Sender<u64>,
}

impl Hubs {
    pub(crate) fn new(feed_head: u64) -> Self {
        Self { sessions: Mutex::new(HashMap::new()), feed: watch::Sender::new(feed_head) }
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<SessionKey, Arc<Hub>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hub of a session, made with what the caller knows to be committed.
    pub(crate) fn of(&self, key: SessionKey, committed: Cursor) -> Arc<Hub> {
        let hub = self.sessions().entry(key).or_insert_with(|| Arc::new(Hub::new(committed))).clone();
        hub.raise(committed);
        hub
    }

    /// Gives a hub back; the last one to do so makes it forgotten.
    pub(crate) fn give_back(&self, key: SessionKey, hub: Arc<Hub>) {
        let mut sessions = self.sessions();
        drop(hub);
        if sessions.get(&key).is_some_and(|hub| Arc::strong_count(hub) == 1) {
            sessions.remove(&key);
        }
    }

    /// Whether a lane or a reader has the session.
    pub(crate) fn has(&self, key: SessionKey) -> bool {
        self.sessions().contains_key(&key)
    }

    pub(crate) fn feed_moved(&self, head: u64) {
        self.feed.send_if_modified(|known| {
            let moved = head > *known;
            *known = head.max(*known);
            moved
        });
    }

    pub(crate) fn watch_feed(&self) -> watch::Receiver<u64> {
        self.feed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    fn line(first_seq: u64, seq: u64) -> Line {
        Line { seq, first_seq, kind: Cow::Borrowed("notice"), json: vec![b'x'; 100].into() }
    }

    fn at(seq: u64) -> Cursor {
        Cursor { epoch: 1, seq }
    }

    #[test]
    fn a_close_reader_is_served_from_the_ring_and_a_late_one_is_sent_to_the_store() {
        let hub = Hub::new(at(0));
        let _reader = hub.watch();
        hub.publish(at(6), vec![line(1, 4), line(5, 5), line(6, 6)]);
        let FromRing::Lines(lines) = hub.after(at(2), 10_000) else { panic!("not served") };
        assert_eq!(lines.iter().map(|line| line.seq).collect::<Vec<_>>(), [4, 5, 6]);
        assert!(matches!(hub.after(at(6), 10_000), FromRing::UpToDate));
        let many = 2 * RING_BYTES as u64 / 100;
        hub.publish(at(6 + many), (7..=6 + many).map(|seq| line(seq, seq)).collect());
        assert!(matches!(hub.after(at(6), 10_000), FromRing::Behind));
        assert!(matches!(hub.after(Cursor { epoch: 2, seq: 1 }, 10_000), FromRing::Behind));
    }

    #[test]
    fn lines_published_before_a_reader_came_are_not_taken_for_all_there_is() {
        let hub = Hub::new(at(3));
        hub.publish(at(5), vec![line(4, 4), line(5, 5)]);
        let _reader = hub.watch();
        assert!(matches!(hub.after(at(3), 10_000), FromRing::Behind));
        hub.publish(at(6), vec![line(6, 6)]);
        assert!(matches!(hub.after(at(3), 10_000), FromRing::Behind));
        assert!(matches!(hub.after(at(5), 10_000), FromRing::Lines(_)));
    }
}
