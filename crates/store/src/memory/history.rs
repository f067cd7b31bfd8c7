//! What is done to journals and feed as a whole: imports that nobody sees before they are complete, rewinds, retention.

use super::apply::{Applied, Transaction};
use super::durable::Head;
use crate::error::Conflict;
use crate::read::SessionRow;
use crate::write::{FEED_TRIM_BATCH, STAGED_STATUS, SessionKey, WriteOp};

impl Transaction<'_> {
    pub(super) fn stage(&mut self, session: SessionKey) {
        if let Some(row) = self.durable.sessions.get(&session).cloned() {
            let row = SessionRow { deleted: true, status: STAGED_STATUS.to_owned(), ..row };
            self.set(|durable| &mut durable.sessions, session, Some(row));
        }
    }

    pub(super) fn publish(&mut self, op: &WriteOp) -> Applied {
        let WriteOp::PublishSession { session, at, name, cwd, archived, fence, launch } = op else {
            return Ok(());
        };
        let head = self.head(*session)?;
        let Some(row) = self.durable.sessions.get(session).filter(|row| is_staged(row)).cloned() else {
            return Err(Conflict::NotStaged { session: *session }.into());
        };
        let row = SessionRow {
            deleted: false,
            status: "idle".to_owned(),
            updated_at: *at,
            name: name.clone(),
            cwd: cwd.clone(),
            archived: *archived,
            launch: launch.clone(),
            ..row
        };
        self.set(|durable| &mut durable.sessions, *session, Some(row));
        self.set(|durable| &mut durable.heads, *session, Some(Head { fence: *fence, ..head }));
        Ok(())
    }

    pub(super) fn drop_staged(&mut self, session: SessionKey) -> Applied {
        let Some(row) = self.durable.sessions.get(&session) else { return Ok(()) };
        if !is_staged(row) {
            return Err(Conflict::NotStaged { session }.into());
        }
        let id = row.id.clone();
        self.purge_session(session);
        let whole = (session, 0, 0)..=(session, u64::MAX, u64::MAX);
        if self.durable.events.range(whole).next().is_none() {
            self.set(|durable| &mut durable.session_ids, id, None);
            self.set(|durable| &mut durable.heads, session, None);
            self.set(|durable| &mut durable.sessions, session, None);
        }
        Ok(())
    }

    pub(super) fn trim_feed(&mut self, up_to: u64) {
        let up_to = up_to.min(self.durable.feed_head());
        let oldest = self.durable.feed.first_key_value().map(|(position, _)| *position);
        let last = oldest.map_or(up_to, |oldest| up_to.min(oldest.saturating_add(FEED_TRIM_BATCH - 1)));
        let places: Vec<u64> = self.durable.feed.range(..=last).map(|(position, _)| *position).collect();
        for place in places {
            self.set(|durable| &mut durable.feed, place, None);
        }
        self.raise_floors(self.durable.epoch_floor, last);
    }

    pub(super) fn acknowledge_rewind(&mut self, mark: u64, feed: u64) {
        // Taken back by `apply`.
        self.durable.commit = self.durable.commit.max(mark);
        let highest = self.durable.heads.values().map(|head| head.epoch).max().unwrap_or(0);
        let floor = (self.durable.commit + 1).max(highest + 1).max(self.durable.epoch_floor() + 1);
        let feed = self.durable.feed_head().max(feed) + 1;
        self.remove_where(|durable| &mut durable.feed, |_| true);
        self.raise_floors(floor, feed);
    }

    fn raise_floors(&mut self, epoch: u64, feed: u64) {
        let before = (self.durable.epoch_floor, self.durable.feed_floor);
        self.durable.epoch_floor = before.0.max(epoch);
        self.durable.feed_floor = before.1.max(feed);
        self.undo.push(Box::new(move |durable| (durable.epoch_floor, durable.feed_floor) = before));
    }
}

fn is_staged(row: &SessionRow) -> bool {
    row.deleted && row.status == STAGED_STATUS
}
