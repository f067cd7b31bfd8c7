//! Sessions whose journals could not be read. Each that is owed something is looked at again from time to time, so that
//! one whose journal was repaired goes on without anybody asking.

use crate::host::send_to_lane;
use crate::lane::{LaneMessage, Shared};
use mainstay_store::{ReadError, SessionKey};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::oneshot;

/// How often. A repair is the work of a person: half a minute after it is soon, and a damaged journal, which is read up to
/// its first bad row each time, costs next to nothing.
pub(crate) const LOOK_AGAIN_EVERY: Duration = Duration::from_secs(30);

/// Those that are to be looked at again. At most one task waits for the time.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Mutex<BTreeSet<SessionKey>>);

impl Unreadable {
    fn add(&self, session: SessionKey) -> bool {
        let mut sessions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = sessions.is_empty();
        sessions.insert(session);
        first
    }

    fn take(&self) -> BTreeSet<SessionKey> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The session could not be loaded.
pub(crate) fn look_again(shared: &Arc<Shared>, session: SessionKey) {
    if shared.unreadable.add(session) {
        tokio::spawn(wake_later(Arc::downgrade(shared)));
    }
}

/// Wakes those that are owed something; which fails where they still cannot be loaded, and then they stand here again.
async fn wake_later(shared: Weak<Shared>) {
    tokio::time::sleep(LOOK_AGAIN_EVERY).await;
    let Some(shared) = shared.upgrade() else { return };
    let unreadable = shared.unreadable.take();
    let store = shared.store.clone();
    let owed = match shared.blocking.run(move || store.unrested_sessions()).await {
        Ok(Ok(rows)) => rows.rows,
        // The host goes.
        Err(_) | Ok(Err(ReadError::Closed)) => return,
        Ok(Err(error)) => {
            tracing::warn!(%error, "whether sessions can be loaded again cannot be found out now");
            unreadable.into_iter().for_each(|session| look_again(&shared, session));
            return;
        }
    };
    for row in owed.iter().filter(|row| unreadable.contains(&row.key)) {
        // Nobody waits for it.
        let (done, _) = oneshot::channel();
        send_to_lane(&shared, row.key, LaneMessage::Wake { done }).await;
    }
}
