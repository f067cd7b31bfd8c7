//! What is read beside a session's own stream: the host's feed, the timeline, the lists. Reading starts nothing.

use crate::run::{Run, SESSIONS, session_id};
use mainstay_core::ItemId;
use mainstay_host::{FeedDelivered, Host};
use mainstay_store::{SessionFilter, SessionKey, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Run {
    /// A client that follows the feed with a cursor of its own, over all lives of the host: it gets every entry once, in
    /// order, and only what is durable.
    pub(crate) async fn follow_feed(&mut self, host: &Arc<Host>) -> Result<(), String> {
        let mut feed = host.feed(self.feed_read);
        let pulled = feed.pull().await.map_err(|error| format!("the feed cannot be read: {error}"))?;
        let FeedDelivered::Entries(rows) = pulled else {
            return Err(format!("a reader of the feed at {} is told {pulled:?}", self.feed_read));
        };
        let durable = self.world.lock().disk.feed(self.feed_read, rows.len().max(1));
        let durable = durable.map_err(|error| format!("the feed cannot be read: {error}"))?.rows;
        if rows != durable[..rows.len().min(durable.len())] {
            return Err(format!("behind {} the feed gave {rows:?}, durable is {durable:?}", self.feed_read));
        }
        self.feed_read = rows.last().map_or(self.feed_read, |last| last.position);
        Ok(())
    }

    /// Everything can be looked at where all is at rest, and nothing comes of it.
    pub(crate) async fn reading_starts_nothing(&mut self, host: &Arc<Host>) -> Result<(), String> {
        let stands = |run: &Self| {
            let world = run.world.lock();
            let rows: usize = run.judges.iter().flatten().map(|judge| judge.rows.len()).sum();
            (rows, world.keepers.len())
        };
        let before = stands(self);
        for session in 0..SESSIONS {
            // One that is deleted, or damaged, is refused.
            drop(host.state(session_id(session).as_str()).await);
            drop(host.subscribe(session_id(session).as_str(), None).await);
        }
        let filter = SessionFilter { include_deleted: true, ..SessionFilter::default() };
        let listed = host.sessions(filter, None, 10).await.map_err(|error| error.to_string())?;
        drop(listed);
        drop(host.keepers().await.map_err(|error| format!("keepers cannot be listed: {error}"))?);
        drop(mainstay_host::catalog::agents(&self.config));
        self.settle(4).await;
        self.judge()?;
        if stands(self) != before {
            return Err(format!("reading made (events, processes) of {before:?} {:?}", stands(self)));
        }
        Ok(())
    }

    /// The feed's last word on each session is its status, and the timeline shows what the journal holds.
    pub(crate) async fn judge_views(&self, host: &Arc<Host>) -> Result<(), String> {
        let mut feed = host.feed(0);
        let mut last: BTreeMap<SessionKey, serde_json::Value> = BTreeMap::new();
        loop {
            let pulled = feed.pull().await.map_err(|error| format!("the feed cannot be read: {error}"))?;
            let FeedDelivered::Entries(rows) = pulled else {
                return Err(format!("a reader from the beginning is told {pulled:?}"));
            };
            if rows.is_empty() {
                break;
            }
            for row in rows.into_iter().filter(|row| row.kind == "session.status") {
                last.insert(row.session, serde_json::from_slice(&row.body).unwrap_or_default());
            }
        }
        let sound = |(session, judge)| (Some(session) != self.damaged).then_some(judge);
        for judge in self.judges.iter().enumerate().filter_map(sound).flatten() {
            let store = host.store();
            let Ok(Some(row)) = store.session(judge.key) else { return Err("a row is gone".to_owned()) };
            let told = last.get(&row.key).and_then(|body| body.get("status")).and_then(|told| told.as_str());
            if told != Some(row.status.as_str()) {
                return Err(format!("{}: the feed says {told:?}, the record {}", row.id, row.status));
            }
            let page = mainstay_host::timeline::page(store.as_ref(), &row, None, 1_000)
                .map_err(|error| format!("the timeline cannot be read: {error}"))?;
            for item in page.items {
                let shown = judge.shown.get(&ItemId(item.id.clone())).cloned().unwrap_or_default();
                if item.text != shown {
                    return Err(format!(
                        "item {}: the timeline shows {:?}, not {shown:?}",
                        item.id, item.text
                    ));
                }
            }
        }
        Ok(())
    }
}
