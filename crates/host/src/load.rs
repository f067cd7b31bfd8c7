//! Loading a session: the newest snapshot and the tail behind it, folded by the same function as live work.

use crate::error::HostError;
use crate::journal::OpenRows;
use mainstay_core::session::SNAPSHOT_VERSION;
use mainstay_core::{Session, Stamped};
use mainstay_store::{EventRow, PageLimit, SessionRow, Store};

/// Rows per read of the tail.
const TAIL_ROWS: usize = 2_000;
/// Bytes per read of the tail.
const TAIL_BYTES: usize = 4 * 1024 * 1024;

/// A loaded session.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) session: Session,
    pub(crate) open: OpenRows,
    /// Rows behind the snapshot.
    pub(crate) tail_rows: usize,
}

/// Loads a session. Blocking.
pub(crate) fn load(store: &dyn Store, row: &SessionRow) -> Result<Loaded, HostError> {
    let unreadable = |why: String| HostError::Unreadable { session: row.id.clone(), why };
    let snapshot = store.snapshot(row.key)?.filter(|snapshot| snapshot.version == SNAPSHOT_VERSION);
    let mut session: Option<Session> = match snapshot {
        Some(snapshot) => match serde_json::from_slice(&snapshot.body) {
            Ok(session) => Some(session),
            // Written by this version and yet unreadable: the journal is the truth anyway.
            Err(error) => {
                tracing::warn!(session = row.id, %error, "a snapshot cannot be read; the journal is folded anew");
                None
            }
        },
        None => None,
    };
    let mut tail_rows = 0;
    let mut next = match &session {
        Some(session) => Some(session.epoch),
        None => store.next_epoch(row.key, 0)?,
    };
    'epochs: while let Some(epoch) = next.filter(|epoch| *epoch <= row.epoch) {
        let mut after =
            session.as_ref().filter(|session| session.epoch == epoch).map_or(0, |session| session.head);
        loop {
            let page =
                store.events(row.key, epoch, after, PageLimit { rows: TAIL_ROWS, bytes: TAIL_BYTES })?;
            if let Some(bad) = page.bad.first() {
                return Err(unreadable(format!("event {} is damaged: {}", bad.key, bad.detail)));
            }
            for event in &page.rows {
                if (event.epoch, event.seq) > (row.epoch, row.head) {
                    // Committed after the row was read: the reader asked for the state that the row names.
                    break 'epochs;
                }
                let stamped = parse(event).map_err(&unreadable)?;
                match &mut session {
                    Some(session) => session.apply(&stamped),
                    None => session = Session::from_first(&stamped),
                }
                if session.is_none() {
                    return Err(unreadable("the journal does not begin with session.created".to_owned()));
                }
                after = event.seq;
            }
            tail_rows += page.rows.len();
            if !page.more {
                break;
            }
        }
        next = store.next_epoch(row.key, epoch)?;
    }
    let session = session.ok_or_else(|| unreadable("the journal is empty".to_owned()))?;
    if (session.epoch, session.head) != (row.epoch, row.head) {
        return Err(unreadable(format!(
            "the journal ends at {}:{}, the record says {}:{}",
            session.epoch, session.head, row.epoch, row.head
        )));
    }
    let mut open = OpenRows::default();
    for item in &session.items {
        if let Some(item) = store.item(row.key, item.id.as_str())? {
            open.put(item);
        }
    }
    Ok(Loaded { session, open, tail_rows })
}

fn parse(event: &EventRow) -> Result<Stamped, String> {
    serde_json::from_slice(&event.body)
        .map_err(|error| format!("event {}:{} cannot be read: {error}", event.epoch, event.seq))
}
