//! What goes, and when: deleted journals, sessions that are kept too long, old entries of the feed, old idempotency keys.
//! Everything goes in small batches, so that nobody waits for it, and all of it can be cut short and begun again.

use crate::error::HostError;
use crate::host::send_to_lane;
use crate::lane::{LaneMessage, Shared};
use crate::transfer::drop_staged;
use mainstay_core::{Command, Cursor};
use mainstay_store::{
    LaneWrite, ReadError, STAGED_STATUS, SessionFilter, SessionKey, SessionRow, Store, Urgency, WriteError,
    WriteOp,
};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::{Notify, oneshot};

/// How often a host looks for what may go.
const PURGE_EVERY: Duration = Duration::from_secs(30);
/// How soon after a deletion: its lane and its readers are gone then, most of the time.
const SOON: Duration = Duration::from_secs(1);
/// Looks that follow a deletion so soon. A session whose agent takes longer to end is found by the regular ones.
const SOON_LOOKS: u32 = 4;
/// How often it looks at what only age decides.
const ROUND: Duration = Duration::from_secs(600);
/// Deleted sessions that one look purges; the next one goes on.
const PURGED_AT_ONCE: usize = 64;
/// Sessions that one round archives or deletes by age; the next one goes on.
const AGED_AT_ONCE: usize = 256;
/// Sessions read at once.
const PAGE: usize = 256;
/// The newest entries of the feed stay, however old: a phone that was away for long misses nothing where little happened.
pub const FEED_KEEP_ROWS: u64 = 10_000;
/// Entries of the feed looked at in one step.
const FEED_PAGE: usize = 1_000;
/// Steps of one round through the feed.
const FEED_STEPS: u32 = 100;

/// How long what is kept. Ages are told by the host's clock: one that is set forward lets things go early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Sessions at rest that nothing happened to for this long are archived; None: never.
    pub archive_after: Option<Duration>,
    /// Archived sessions that nothing happened to for this long are deleted; None: never.
    pub delete_archived_after: Option<Duration>,
    /// Entries of the host feed older than this are forgotten, beside the newest [`FEED_KEEP_ROWS`].
    pub keep_feed: Duration,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            archive_after: None,
            delete_archived_after: None,
            keep_feed: Duration::from_secs(30 * 24 * 60 * 60),
        }
    }
}

/// Imports that a former host did not finish.
pub(crate) fn unfinished_imports(store: &dyn Store) -> Result<Vec<SessionKey>, ReadError> {
    let filter = SessionFilter {
        status: Some(STAGED_STATUS.to_owned()),
        include_deleted: true,
        ..SessionFilter::default()
    };
    let rows = store.sessions(&filter, None, usize::MAX)?.rows;
    Ok(rows.into_iter().filter(|row| row.deleted).map(|row| row.key).collect())
}

/// Removes what may go, as long as the host lives.
pub(crate) async fn keep_house(shared: Weak<Shared>, unfinished: Vec<SessionKey>, asked: Arc<Notify>) {
    if let Some(shared) = shared.upgrade() {
        let store = shared.store.clone();
        let dropping = shared
            .blocking
            .run(move || unfinished.into_iter().try_for_each(|session| drop_staged(store.as_ref(), session)));
        said("an import that a former host did not finish", dropping.await.unwrap_or(Ok(())));
    }
    let mut soon = 0_u32;
    let mut round = tokio::time::Instant::now() + ROUND;
    loop {
        tokio::select! {
            () = tokio::time::sleep(if soon > 0 { SOON } else { PURGE_EVERY }) => soon = soon.saturating_sub(1),
            () = asked.notified() => {
                soon = SOON_LOOKS;
                continue;
            }
        }
        let Some(shared) = shared.upgrade() else { return };
        said("deleted sessions", purge(&shared).await);
        if tokio::time::Instant::now() >= round {
            round = tokio::time::Instant::now() + ROUND;
            said("old entries of the feed", trim_feed(&shared).await);
            said("old sessions", let_age(&shared).await);
            let prune = WriteOp::PruneOperations { now: shared.no_later_than_passed() };
            said("old idempotency keys", write(&shared, prune).await.map_err(HostError::Storage));
        }
    }
}

fn said(what: &str, done: Result<(), HostError>) {
    match done {
        Ok(()) | Err(HostError::ShuttingDown) => {}
        Err(HostError::Storage(WriteError::Closed | WriteError::ReadOnly { .. })) => {}
        Err(HostError::Read(ReadError::Closed)) => {}
        Err(error) => tracing::warn!(%error, "{what} could not be removed; the next round tries again"),
    }
}

/// Gives way to everything that somebody waits for.
async fn write(shared: &Shared, op: WriteOp) -> Result<(), WriteError> {
    shared.store.commit(LaneWrite::new(Urgency::Stream, vec![op])).await.map(drop)
}

async fn read<T: Send + 'static>(
    shared: &Shared,
    read: impl FnOnce(&dyn Store) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, HostError> {
    let store = shared.store.clone();
    let done = shared.blocking.run(move || read(store.as_ref())).await;
    Ok(done.map_err(|_| HostError::ShuttingDown)??)
}

/// Removes the rows of deleted sessions whose process is gone. Their ids stay taken. Whoever reads one yet is given the rest
/// first, up to its deletion; a new reader is refused.
pub(crate) async fn purge(shared: &Shared) -> Result<(), HostError> {
    for session in read(shared, |store| store.unpurged_sessions(PURGED_AT_ONCE)).await? {
        if shared.hubs.has(session) {
            continue;
        }
        while read(shared, move |store| store.has_events(session)).await? {
            write(shared, WriteOp::PurgeSession { session }).await.map_err(HostError::Storage)?;
        }
    }
    Ok(())
}

/// Forgets feed entries that are older than they are kept.
pub(crate) async fn trim_feed(shared: &Shared) -> Result<(), HostError> {
    let oldest_kept = cutoff(shared.no_later_than_passed(), shared.config.retention.keep_feed);
    for _ in 0..FEED_STEPS {
        let (rows, head) =
            read(shared, |store| Ok((store.feed(store.feed_floor()?, FEED_PAGE)?.rows, store.feed_head()?)))
                .await?;
        let stays = head.saturating_sub(FEED_KEEP_ROWS);
        let old = rows.iter().take_while(|row| row.at < oldest_kept && row.position <= stays);
        let Some(up_to) = old.last().map(|row| row.position) else { break };
        write(shared, WriteOp::TrimFeed { up_to }).await.map_err(HostError::Storage)?;
    }
    Ok(())
}

/// Archives and deletes what is old enough, each through its session, as a user would.
pub(crate) async fn let_age(shared: &Arc<Shared>) -> Result<(), HostError> {
    let retention = shared.config.retention;
    let now = shared.no_later_than_passed();
    if let Some(age) = retention.delete_archived_after {
        for row in aged(shared, true, cutoff(now, age)).await? {
            let_go(shared, &row).await?;
        }
        purge(shared).await?;
    }
    if let Some(age) = retention.archive_after {
        for row in aged(shared, false, cutoff(now, age)).await? {
            let_go(shared, &row).await?;
        }
    }
    Ok(())
}

/// Sessions without a process that nothing happened to since `before`: the first of them, in no order of age.
async fn aged(shared: &Shared, archived: bool, before: i64) -> Result<Vec<SessionRow>, HostError> {
    let mut found = Vec::new();
    let mut after = None;
    while found.len() < AGED_AT_ONCE {
        let filter = SessionFilter { archived: Some(archived), ..SessionFilter::default() };
        let page = read(shared, move |store| store.sessions(&filter, after, PAGE)).await?.rows;
        let Some(last) = page.last().map(|row| row.key) else { break };
        after = Some(last);
        let at_rest = |row: &SessionRow| {
            row.process.is_none()
                && row.updated_at < before
                && matches!(row.status.as_str(), "idle" | "closed")
        };
        found.extend(page.into_iter().filter(at_rest));
    }
    found.truncate(AGED_AT_ONCE);
    Ok(found)
}

/// Archives a session or, where it is archived, deletes it, unless something happened to it since its row was read.
async fn let_go(shared: &Arc<Shared>, row: &SessionRow) -> Result<(), HostError> {
    let command = Command::Age { seen: Cursor { epoch: row.epoch, seq: row.head } };
    let (answer, answered) = oneshot::channel();
    let message =
        LaneMessage::Command { command: Box::new(command), register: None, operation: None, answer };
    send_to_lane(shared, row.key, message).await;
    match answered.await.unwrap_or(Err(HostError::ShuttingDown)) {
        // What somebody did to it meanwhile counts more.
        Ok(_) | Err(HostError::Refused(_)) => Ok(()),
        Err(HostError::Unreadable { session, why }) => {
            tracing::warn!(session, why, "a session that cannot be loaded stays, however old");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn cutoff(now: i64, age: Duration) -> i64 {
    now.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
}
