//! Which lane has which session. A hint for senders; binding is decided inside the lanes.

use crate::lane::LaneMessage;
use mainstay_store::SessionKey;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Messages that may wait for one lane. At the limit senders wait: they are clients' requests, each with its own
/// deadline.
pub(crate) const MAILBOX: usize = 256;

/// The lanes that run.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    seats: HashMap<SessionKey, (u64, mpsc::Sender<LaneMessage>)>,
    /// Numbers seats, so that a lane can only ever give up its own.
    last: u64,
}

/// A lane's place: its mailbox and the number of its registration.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) key: SessionKey,
    number: u64,
    pub(crate) mailbox: mpsc::Receiver<LaneMessage>,
}

impl Registry {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // Every operation on the map is a single step, so a panic elsewhere cannot have left it half changed.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session's lane, started by `start` if there is none.
    pub(crate) fn lane(&self, key: SessionKey, start: impl FnOnce(Seat)) -> mpsc::Sender<LaneMessage> {
        let mut lanes = self.lanes();
        if let Some((_, lane)) = lanes.seats.get(&key)
            && !lane.is_closed()
        {
            return lane.clone();
        }
        lanes.last += 1;
        let number = lanes.last;
        let (sender, mailbox) = mpsc::channel(MAILBOX);
        lanes.seats.insert(key, (number, sender.clone()));
        start(Seat { key, number, mailbox });
        sender
    }

    /// Gives a seat up, unless something waits in its mailbox.
    ///
    /// # Errors
    /// The seat, where a message waits: the lane goes on.
    pub(crate) fn leave(&self, seat: Seat) -> Result<Vec<LaneMessage>, Seat> {
        if !seat.mailbox.is_empty() {
            return Err(seat);
        }
        Ok(self.give_up(seat))
    }

    /// Gives a seat up in any case. What senders that had found the lane before put into its mailbox is given back: it
    /// belongs to the next lane.
    pub(crate) fn give_up(&self, mut seat: Seat) -> Vec<LaneMessage> {
        let mut lanes = self.lanes();
        if lanes.seats.get(&seat.key).is_some_and(|(number, _)| *number == seat.number) {
            lanes.seats.remove(&seat.key);
        }
        drop(lanes);
        seat.mailbox.close();
        let mut left = Vec::new();
        while let Ok(message) = seat.mailbox.try_recv() {
            left.push(message);
        }
        left
    }

    /// Everybody, for a shutdown.
    pub(crate) fn all(&self) -> Vec<mpsc::Sender<LaneMessage>> {
        self.lanes().seats.values().map(|(_, lane)| lane.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    fn wake() -> LaneMessage {
        LaneMessage::Wake { done: oneshot::channel().0 }
    }

    #[test]
    fn a_lane_gives_up_only_its_own_seat_and_no_message_is_lost() {
        let registry = Registry::default();
        let key = SessionKey(1);
        let mut first = None;
        let early = registry.lane(key, |seat| first = Some(seat));
        let first = first.expect("started");
        early.try_send(wake()).expect("room");
        let first = registry.leave(first).expect_err("a message waits");
        assert_eq!(registry.give_up(first).len(), 1, "the message is given back");
        assert!(early.is_closed());
        let mut second = None;
        let later = registry.lane(key, |seat| second = Some(seat));
        later.try_send(wake()).expect("the second lane takes it");
        assert_eq!(registry.all().len(), 1);
        assert!(second.is_some_and(|seat| !seat.mailbox.is_empty()));
    }
}
