//! Subscriptions pull: a cursor and a wake-up. A reader that follows closely gets shared lines, one that is behind
//! reads the store, and none is ever skipped.

use crate::error::HostError;
use crate::hub::{FromRing, Hub, Hubs};
use crate::journal::Line;
use crate::keeping::Blocking;
use crate::metrics::Metrics;
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
    /// Entries of the feed behind the cursor are gone: they were too old, or the database was rewound.
    CursorExpired,
}

/// What a pull of the feed gives.
#[derive(Debug)]
pub enum FeedDelivered {
    /// The next entries, empty where there are none.
    Entries(Vec<FeedRow>),
    /// The reader looks at what there is and goes on from this position.
    Reset {
        /// Why.
        reason: ResetReason,
        /// The feed's newest position.
        head: u64,
    },
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
    metrics: Arc<Metrics>,
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
        self.metrics.subscribers.down();
        if let Some(hub) = self.hub.take() {
            self.hubs.give_back(self.key, hub);
        }
    }
}

impl Subscription {
    /// `committed` was read from the store after the hub was in place.
    pub(crate) fn new(
        (store, blocking): (Arc<dyn Store>, Blocking),
        (hubs, metrics): (Arc<Hubs>, Arc<Metrics>),
        key: SessionKey,
        hub: Arc<Hub>,
        committed: Cursor,
        after: Cursor,
    ) -> Self {
        hub.raise(committed);
        let head = hub.watch();
        let ahead = after > hub.head();
        metrics.subscribers.up();
        Self { store, blocking, hubs, metrics, key, hub: Some(hub), head, cursor: after, ahead }
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
            Some(FromRing::Lines(lines)) => {
                self.metrics.ring_reads.one();
                lines
            }
            Some(FromRing::Behind) => {
                self.metrics.stored_reads.one();
                self.read_store().await?
            }
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

    /// Gives what is next, without waiting, and no silent gap.
    ///
    /// # Errors
    /// [`HostError::Read`]; the position has not moved.
    pub async fn pull(&mut self) -> Result<FeedDelivered, HostError> {
        let head = *self.head.borrow_and_update();
        let (store, after) = (self.store.clone(), self.position);
        let reading = self.blocking.run(move || feed_page(store.as_ref(), after, head, PULL_ROWS));
        let delivered = reading.await.map_err(|_| HostError::ShuttingDown)??;
        match &delivered {
            FeedDelivered::Entries(rows) => self.position = rows.last().map_or(after, |last| last.position),
            FeedDelivered::Reset { head, .. } => self.position = *head,
        }
        Ok(delivered)
    }

    /// Waits until there may be more.
    pub async fn changed(&mut self) {
        let _changed = self.head.changed().await;
    }
}

/// The entries behind a position, at most `limit`; `head` was read before. A reader that has seen nothing begins with what
/// there is; one that missed some must begin anew. Blocking.
///
/// # Errors
/// [`ReadError`].
pub fn feed_page(
    store: &dyn Store,
    after: u64,
    head: u64,
    limit: usize,
) -> Result<FeedDelivered, mainstay_store::ReadError> {
    // The store may be ahead of what was read before, never behind it.
    if after > head && after > store.feed_head()? {
        return Ok(FeedDelivered::Reset { reason: ResetReason::CursorAhead, head });
    }
    let rows = store.feed(after, limit)?.rows;
    // Read behind the rows: what was trimmed meanwhile shows.
    if after != 0 && after < store.feed_floor()? {
        return Ok(FeedDelivered::Reset { reason: ResetReason::CursorExpired, head });
    }
    Ok(FeedDelivered::Entries(rows))
}
