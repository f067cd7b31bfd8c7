//! The tables in memory and what is read from them.

use std::collections::BTreeMap;

use crate::read::{
    AdapterStateRow, Counts, EventPage, EventRow, FeedRow, IdOwner, InputRow, ItemEventPage, ItemEventQuery,
    OperationRow, PageLimit, QuarantineRow, SessionFilter, SessionRow, SnapshotRow,
};
use crate::write::{ItemRow, ProcessKey, ProcessRow, SessionKey};

/// Where a journal stands, and under which fence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub(super) epoch: u64,
    pub(super) head: u64,
    pub(super) fence: u64,
}

/// Everything that outlives a crash.
#[derive(Clone, Debug, Default)]
pub(super) struct Durable {
    pub(super) commit: u64,
    /// `epoch`, `head` and `fence` of these rows are not kept up: see `heads`.
    pub(super) sessions: BTreeMap<SessionKey, SessionRow>,
    pub(super) session_ids: BTreeMap<String, SessionKey>,
    pub(super) heads: BTreeMap<SessionKey, Head>,
    /// By session, epoch and last seq.
    pub(super) events: BTreeMap<(SessionKey, u64, u64), EventRow>,
    pub(super) items: BTreeMap<(SessionKey, i64), ItemRow>,
    pub(super) item_ids: BTreeMap<(SessionKey, String), i64>,
    pub(super) snapshots: BTreeMap<SessionKey, SnapshotRow>,
    pub(super) threads: BTreeMap<(String, String), SessionKey>,
    pub(super) processes: BTreeMap<ProcessKey, ProcessRow>,
    pub(super) tokens: BTreeMap<String, ProcessKey>,
    pub(super) trimmed: BTreeMap<ProcessKey, u64>,
    pub(super) adapter_states: BTreeMap<(ProcessKey, String), AdapterStateRow>,
    pub(super) inputs: BTreeMap<(ProcessKey, u64), InputRow>,
    pub(super) ids: BTreeMap<(String, String), IdOwner>,
    /// With the order of arrival.
    pub(super) operations: BTreeMap<String, (u64, OperationRow)>,
    pub(super) feed: BTreeMap<u64, FeedRow>,
    pub(super) feed_floor: u64,
    /// 0: none, which is 1.
    pub(super) epoch_floor: u64,
    /// By session and order of arrival.
    pub(super) quarantine: BTreeMap<(SessionKey, u64), QuarantineRow>,
    pub(super) quarantine_dropped: BTreeMap<SessionKey, u64>,
    /// Order of arrival of whatever needs one; may have gaps.
    pub(super) arrivals: u64,
}

impl Durable {
    pub(super) fn last_session_key(&self) -> i64 {
        self.sessions.last_key_value().map_or(0, |(key, _)| key.0)
    }

    pub(super) fn last_process_key(&self) -> i64 {
        self.processes.last_key_value().map_or(0, |(key, _)| key.0)
    }

    pub(super) fn feed_head(&self) -> u64 {
        self.feed.last_key_value().map_or(0, |(position, _)| *position).max(self.feed_floor)
    }

    pub(super) fn epoch_floor(&self) -> u64 {
        self.epoch_floor.max(1)
    }

    pub(super) fn unpurged_sessions(&self, limit: usize) -> Vec<SessionKey> {
        let unpurged = |row: &SessionRow| {
            let (first, last) = ((row.key, 0, 0), (row.key, u64::MAX, u64::MAX));
            row.deleted
                && row.process.is_none()
                && row.status != crate::STAGED_STATUS
                && self.events.range(first..=last).next().is_some()
        };
        let keys = self.sessions.values().filter(|row| unpurged(row)).map(|row| row.key);
        keys.take(limit).collect()
    }

    pub(super) fn session(&self, key: SessionKey) -> Option<SessionRow> {
        let head = self.heads.get(&key)?;
        let row = self.sessions.get(&key)?.clone();
        Some(SessionRow { epoch: head.epoch, head: head.head, fence: head.fence, ..row })
    }

    pub(super) fn sessions(
        &self,
        filter: &SessionFilter,
        after: Option<SessionKey>,
        limit: usize,
    ) -> Vec<SessionRow> {
        let wanted = |row: &SessionRow| {
            filter.status.as_ref().is_none_or(|status| *status == row.status)
                && filter.agent.as_ref().is_none_or(|agent| *agent == row.agent)
                && filter.archived.is_none_or(|archived| archived == row.archived)
                && filter.process.is_none_or(|process| Some(process) == row.process)
                && (filter.include_deleted || !row.deleted)
        };
        let before = after.unwrap_or(SessionKey(i64::MAX));
        let newest_first = self.sessions.range(..before).rev().filter(|(_, row)| wanted(row));
        newest_first.take(limit).filter_map(|(key, _)| self.session(*key)).collect()
    }

    pub(super) fn unrested_sessions(&self) -> Vec<SessionRow> {
        let unrested = |row: &SessionRow| {
            row.process.is_some() || (!row.deleted && !matches!(row.status.as_str(), "idle" | "closed"))
        };
        let keys = self.sessions.iter().filter(|(_, row)| unrested(row));
        keys.filter_map(|(key, _)| self.session(*key)).collect()
    }

    pub(super) fn events(
        &self,
        session: SessionKey,
        epoch: u64,
        after_seq: u64,
        limit: PageLimit,
    ) -> EventPage {
        let mut page = EventPage::default();
        let mut used = 0_usize;
        let from = (session, epoch, after_seq.saturating_add(1));
        for event in self.events.range(from..=(session, epoch, u64::MAX)).map(|(_, event)| event) {
            used = used.saturating_add(event.body.len());
            let full = page.rows.len() >= limit.rows || used > limit.bytes;
            if full && !page.rows.is_empty() {
                page.more = true;
                break;
            }
            page.rows.push(event.clone());
        }
        page
    }

    pub(super) fn events_of_item(&self, query: ItemEventQuery) -> ItemEventPage {
        let mut page = ItemEventPage::default();
        if query.from > query.to {
            return page;
        }
        let mut used = 0_usize;
        let place = |(epoch, seq): (u64, u64)| (query.session, epoch, seq);
        let range = self.events.range(place(query.from)..=place(query.to)).map(|(_, event)| event);
        let ordered: Box<dyn Iterator<Item = &EventRow>> =
            if query.backwards { Box::new(range.rev()) } else { Box::new(range) };
        for event in ordered.filter(|event| event.item == Some(query.ordinal)) {
            used = used.saturating_add(event.body.len());
            if used > query.limit_bytes && !page.rows.is_empty() {
                page.resume = Some((event.epoch, event.seq));
                break;
            }
            page.rows.push(event.clone());
        }
        page
    }

    /// Oldest first.
    pub(super) fn quarantined(
        &self,
        session: SessionKey,
    ) -> impl DoubleEndedIterator<Item = (&(SessionKey, u64), &QuarantineRow)> {
        self.quarantine.range((session, 0)..=(session, u64::MAX))
    }

    pub(super) fn counts(&self) -> Counts {
        Counts {
            sessions: self.sessions.len() as u64,
            events: self.events.len() as u64,
            items: self.items.len() as u64,
            processes: self.processes.len() as u64,
            inputs: self.inputs.len() as u64,
            operations: self.operations.len() as u64,
            ids: self.ids.len() as u64,
            feed: self.feed.len() as u64,
            quarantined: self.quarantine.len() as u64,
        }
    }
}
