//! Subscriptions pull: a cursor and a wake-up. A reader that follows closely gets shared lines, one that is behind
//! reads the store, and none is ever skipped.

use crate::error::HostError;
use crate::hub::{FromRing, Hub, Hubs};
use crate::journal::Line;
use crate::keeping::Blocking;
use mainstay_core::Cursor;
use mainstay_store::{FeedRow, PageLimit, SessionKey, Store};
use serde::Serialize;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::watch;

/// Rows that one pull reads from the store at most.
const PULL_ROWS: usize = 2_000;
/// Bytes that one pull gives at most, beside a single larger event.
const PULL_BYTES: usize = 512 * 1024;

/// Why a reader must begin anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResetReason {
    /// The cursor is of an older epoch.
    EpochChanged,
    /// The cursor is ahead of everything that is known.
    CursorAhead,
}

/// What a reader is told instead of a silent gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    /// Why.
    pub reason: ResetReason,
    /// Where the journal stands. The reader reads a page of the timeline and goes on from here.
    pub head: Cursor,
}

/// What a pull gives.
#[derive(Debug)]
pub enum Delivered {
    /// The next events, in order, without a hole.
    Events(Vec<Line>),
    /// Everything there is was given.
    CaughtUp,
    /// Begin anew.
    Reset(Reset),
}

/// One reader of one session.
#[derive(Debug)]
pub struct Subscription {
    store: Arc<dyn Store>,
    blocking: Blocking,
    hubs: Arc<Hubs>,
    key: SessionKey,
    /// Always there until the drop, which gives it back.
    hub: Option<Arc<Hub>>,
    head: watch::Receiver<Cursor>,
    cursor: Cursor,
    /// The reader's cursor was ahead of the journal when it came.
    ahead: bool,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.take() {
            self.hubs.give_back(self.key, hub);
        }
    }
}

impl Subscription {
    /// `committed` was read from the store after the hub was in place.
    pub(crate) fn new(
        (store, blocking): (Arc<dyn Store>, Blocking),
        hubs: Arc<Hubs>,
        key: SessionKey,
        hub: Arc<Hub>,
        committed: Cursor,
        after: Cursor,
    ) -> Self {
        hub.raise(committed);
        let head = hub.watch();
        let ahead = after > hub.head();
        Self { store, blocking, hubs, key, hub: Some(hub), head, cursor: after, ahead }
    }

    /// The last event given.
    #[must_use]
    pub const fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Gives what is next, without waiting.
    ///
    /// # Errors
    /// [`HostError::Read`] where the store cannot be read; the cursor has not moved.
    pub async fn pull(&mut self) -> Result<Delivered, HostError> {
        let head = *self.head.borrow_and_update();
        if std::mem::take(&mut self.ahead) {
            self.cursor = head;
            return Ok(Delivered::Reset(Reset { reason: ResetReason::CursorAhead, head }));
        }
        if self.cursor.epoch != head.epoch {
            self.cursor = head;
            return Ok(Delivered::Reset(Reset { reason: ResetReason::EpochChanged, head }));
        }
        let lines = match self.hub.as_ref().map(|hub| hub.after(self.cursor, PULL_BYTES)) {
            Some(FromRing::UpToDate) | None => return Ok(Delivered::CaughtUp),
            Some(FromRing::Lines(lines)) => lines,
            Some(FromRing::Behind) => self.read_store().await?,
        };
        match lines.last() {
            Some(last) => {
                self.cursor.seq = last.seq;
                Ok(Delivered::Events(lines))
            }
            // Only where the journal's rows cannot be read: the head says that there is more.
            None => Ok(Delivered::CaughtUp),
        }
    }

    async fn read_store(&self) -> Result<Vec<Line>, HostError> {
        let (store, key, after) = (self.store.clone(), self.key, self.cursor);
        let limit = PageLimit { rows: PULL_ROWS, bytes: PULL_BYTES };
        let reading = self.blocking.run(move || store.events(key, after.epoch, after.seq, limit));
        let page = reading.await.map_err(|_| HostError::ShuttingDown)??;
        Ok(page.rows.into_iter().map(row_line).collect())
    }

    /// Waits until there may be more.
    pub async fn changed(&mut self) {
        // An error means that the session's hub is gone, which it is not while this subscription holds it.
        let _changed = self.head.changed().await;
    }
}

/// A stored row as a line.
pub(crate) fn row_line(row: mainstay_store::EventRow) -> Line {
    Line { seq: row.seq, first_seq: row.first_seq, kind: Cow::Owned(row.kind), json: row.body.into() }
}

/// One reader of the host feed.
#[derive(Debug)]
pub struct FeedSubscription {
    store: Arc<dyn Store>,
    blocking: Blocking,
    head: watch::Receiver<u64>,
    position: u64,
}

impl FeedSubscription {
    pub(crate) fn new(
        (store, blocking): (Arc<dyn Store>, Blocking),
        head: watch::Receiver<u64>,
        after: u64,
    ) -> Self {
        Self { store, blocking, head, position: after }
    }

    /// The position of the last entry given.
    #[must_use]
    pub const fn position(&self) -> u64 {
        self.position
    }

    /// Whether the position is ahead of the feed: the reader must begin anew at the head given.
    pub fn ahead(&mut self) -> Option<u64> {
        let head = *self.head.borrow_and_update();
        (self.position > head).then(|| {
            self.position = head;
            head
        })
    }

    /// The next entries, empty where there are none.
    ///
    /// # Errors
    /// [`HostError::Read`].
    pub async fn pull(&mut self) -> Result<Vec<FeedRow>, HostError> {
        let _seen = *self.head.borrow_and_update();
        let (store, after) = (self.store.clone(), self.position);
        let reading = self.blocking.run(move || store.feed(after, PULL_ROWS));
        let rows = reading.await.map_err(|_| HostError::ShuttingDown)??.rows;
        if let Some(last) = rows.last() {
            self.position = last.position;
        }
        Ok(rows)
    }

    /// Waits until there may be more.
    pub async fn changed(&mut self) {
        let _changed = self.head.changed().await;
    }
}
