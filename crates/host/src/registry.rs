//! Which lane has which session, which process and which launch profile. A hint for senders and joiners; binding is
//! decided inside the lanes.

use crate::lane::{Join, LaneMessage};
use mainstay_store::{ProcessKey, SessionKey};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// Messages that may wait for one lane. At the limit senders wait: they are clients' requests, each with its own
/// deadline.
pub(crate) const MAILBOX: usize = 256;

/// Sessions that may be on their way to one lane. At the limit one more gets a lane, and a process, of its own; a seat
/// that the lane must have is brought again.
pub(crate) const JOINS: usize = 256;

/// How a session comes to a lane.
pub(crate) type JoinSender = mpsc::Sender<Join>;

/// The lanes that run.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    lanes: Mutex<Lanes>,
}

#[derive(Debug, Default)]
struct Lanes {
    /// In order, so that what concerns all of them comes to them in the same order each time.
    seats: BTreeMap<SessionKey, (u64, mpsc::Sender<LaneMessage>)>,
    /// Whose the processes are.
    owners: HashMap<ProcessKey, JoinSender>,
    /// Lanes that take, or took, sessions of a profile.
    offers: HashMap<String, Vec<Offer>>,
    /// Numbers seats and offers, so that a lane can only ever give up its own.
    last: u64,
}

#[derive(Debug)]
struct Offer {
    number: u64,
    open: bool,
    joins: JoinSender,
}

/// A session's place in a lane: its mailbox and the number of its registration.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) key: SessionKey,
    number: u64,
    pub(crate) mailbox: mpsc::Receiver<LaneMessage>,
}

/// Where a session is to get its process.
#[derive(Debug)]
pub(crate) enum Place {
    /// In the lane that asked: it offers itself to others of the profile from now on, under this number.
    Here(u64),
    /// In this lane, if that one agrees.
    There(JoinSender),
}

impl Registry {
    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // Every operation on the maps is a single step, so a panic elsewhere cannot have left them half changed.
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

    /// Makes a lane the owner of a process.
    ///
    /// # Errors
    /// The owner, where there is one already.
    pub(crate) fn own(&self, process: ProcessKey, joins: &JoinSender) -> Result<(), JoinSender> {
        let mut lanes = self.lanes();
        match lanes.owners.get(&process) {
            Some(owner) if !owner.is_closed() => Err(owner.clone()),
            _ => {
                lanes.owners.insert(process, joins.clone());
                Ok(())
            }
        }
    }

    /// The lane that has a process.
    pub(crate) fn owner(&self, process: ProcessKey) -> Option<JoinSender> {
        self.lanes().owners.get(&process).filter(|owner| !owner.is_closed()).cloned()
    }

    /// The process is settled, durably: nobody owns it any more.
    pub(crate) fn disown(&self, process: ProcessKey, joins: &JoinSender) {
        let mut lanes = self.lanes();
        if lanes.owners.get(&process).is_some_and(|owner| owner.same_channel(joins)) {
            lanes.owners.remove(&process);
        }
    }

    /// Where a session of this profile is to get its process: in a lane that offers itself, else in the one that asks,
    /// which offers itself by that. In one step, so that two sessions of a profile never start two processes where one
    /// would do.
    pub(crate) fn place(&self, profile: &str, joins: &JoinSender) -> Place {
        let mut lanes = self.lanes();
        lanes.last += 1;
        let number = lanes.last;
        let offers = lanes.offers.entry(profile.to_owned()).or_default();
        offers.retain(|offer| !offer.joins.is_closed());
        match offers.iter().find(|offer| offer.open && !offer.joins.same_channel(joins)) {
            Some(offer) => Place::There(offer.joins.clone()),
            None => {
                offers.push(Offer { number, open: true, joins: joins.clone() });
                Place::Here(number)
            }
        }
    }

    /// A lane offers itself beside those that do already.
    pub(crate) fn offer(&self, profile: &str, joins: &JoinSender) -> u64 {
        let mut lanes = self.lanes();
        lanes.last += 1;
        let number = lanes.last;
        let offer = Offer { number, open: true, joins: joins.clone() };
        lanes.offers.entry(profile.to_owned()).or_default().push(offer);
        number
    }

    /// Whether a lane's offer stands just now.
    pub(crate) fn open_offer(&self, profile: &str, number: u64, open: bool) {
        let mut lanes = self.lanes();
        let offers = lanes.offers.get_mut(profile).into_iter().flatten();
        for offer in offers.filter(|offer| offer.number == number) {
            offer.open = open;
        }
    }

    /// Takes a lane's offer back.
    pub(crate) fn withdraw(&self, profile: &str, number: u64) {
        let mut lanes = self.lanes();
        if let Some(offers) = lanes.offers.get_mut(profile) {
            offers.retain(|offer| offer.number != number);
            if offers.is_empty() {
                lanes.offers.remove(profile);
            }
        }
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

    #[test]
    fn a_process_has_one_owner_as_long_as_its_lane_lives() {
        let registry = Registry::default();
        let (first, listens) = mpsc::channel(JOINS);
        let (second, _also) = mpsc::channel(JOINS);
        registry.own(ProcessKey(1), &first).expect("free");
        let owner = registry.own(ProcessKey(1), &second).expect_err("owned");
        assert!(owner.same_channel(&first));
        registry.disown(ProcessKey(1), &second);
        registry.own(ProcessKey(1), &second).expect_err("another lane's word changes nothing");
        drop(listens);
        registry.own(ProcessKey(1), &second).expect("the first lane is gone");
    }

    #[test]
    fn the_second_session_of_a_profile_is_sent_to_the_first_ones_lane() {
        let registry = Registry::default();
        let (first, _listens) = mpsc::channel(JOINS);
        let (second, _also) = mpsc::channel(JOINS);
        let Place::Here(number) = registry.place("profile", &first) else { panic!("nobody offers") };
        assert!(matches!(registry.place("profile", &second), Place::There(to) if to.same_channel(&first)));
        assert!(matches!(registry.place("another", &second), Place::Here(_)));
        registry.open_offer("profile", number, false);
        assert!(matches!(registry.place("profile", &second), Place::Here(_)), "the first one is full");
        registry.open_offer("profile", number, true);
        registry.withdraw("profile", number);
        let (third, _too) = mpsc::channel(JOINS);
        assert!(matches!(registry.place("profile", &third), Place::There(to) if to.same_channel(&second)));
    }
}
