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
    lanes: Mutex<HashMap<SessionKey, mpsc::Sender<LaneMessage>>>,
}

impl Registry {
    fn lanes(&self) -> MutexGuard<'_, HashMap<SessionKey, mpsc::Sender<LaneMessage>>> {
        // Every operation on the map is a single step, so a panic elsewhere cannot have left it half changed.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The session's lane, started by `start` if there is none.
    pub(crate) fn lane(
        &self,
        key: SessionKey,
        start: impl FnOnce(mpsc::Receiver<LaneMessage>),
    ) -> mpsc::Sender<LaneMessage> {
        let mut lanes = self.lanes();
        if let Some(lane) = lanes.get(&key)
            && !lane.is_closed()
        {
            return lane.clone();
        }
        let (sender, mailbox) = mpsc::channel(MAILBOX);
        start(mailbox);
        lanes.insert(key, sender.clone());
        sender
    }

    /// Ends a lane's registration if nothing waits for it. After `true` the mailbox takes no more: a sender that came
    /// too late gets its message back and asks again.
    pub(crate) fn leave(
        &self,
        key: SessionKey,
        mailbox: &mut mpsc::Receiver<LaneMessage>,
        force: bool,
    ) -> bool {
        let mut lanes = self.lanes();
        if !force && !mailbox.is_empty() {
            return false;
        }
        mailbox.close();
        if !force && !mailbox.is_empty() {
            // Somebody sent between the look and the close: that message is still ours to handle, and it is the last.
            return false;
        }
        lanes.remove(&key);
        true
    }

    /// Everybody, for a shutdown.
    pub(crate) fn all(&self) -> Vec<mpsc::Sender<LaneMessage>> {
        self.lanes().values().cloned().collect()
    }
}
