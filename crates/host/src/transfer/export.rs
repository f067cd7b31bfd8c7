//! Writing a session as a file, page by page.

use super::{End, FORMAT, Header, MAX_LINE_BYTES, Trailer, VERSION};
use crate::error::HostError;
use crate::host::Host;
use crate::keeping::Blocking;
use mainstay_core::digest::TextDigest;
use mainstay_core::{AgentName, Cursor, SessionId};
use mainstay_store::{EventPage, PageLimit, SessionRow, Store};
use std::sync::Arc;

/// Rows read at once.
const PAGE_ROWS: usize = 1_000;
/// Bytes read at once, beside a single larger row.
const PAGE_BYTES: usize = 512 * 1024;

/// A session's file in the making: as much of it in memory as one page, however long the session is.
#[derive(Debug)]
pub struct Export {
    store: Arc<dyn Store>,
    blocking: Blocking,
    row: SessionRow,
    digest: TextDigest,
    rows: u64,
    next: Next,
}

#[derive(Debug, Clone, Copy)]
enum Next {
    Header,
    /// The events of this epoch behind this seq.
    Events(Cursor),
    Done,
}

impl Host {
    /// Begins the file of a session as it is now. Events that come meanwhile do not belong to it.
    ///
    /// # Errors
    /// [`HostError::SessionUnknown`], [`HostError::Read`].
    pub async fn export(&self, session: &str) -> Result<Export, HostError> {
        let row = self.session(session).await?;
        Ok(Export {
            store: self.store(),
            blocking: self.shared().blocking,
            row,
            digest: TextDigest::default(),
            rows: 0,
            next: Next::Header,
        })
    }
}

impl Export {
    /// The session's id.
    #[must_use]
    pub fn session(&self) -> &str {
        &self.row.id
    }

    /// The next bytes; None behind the last line.
    ///
    /// # Errors
    /// The journal cannot be read, or is being deleted meanwhile: what was written so far is no whole file, and must not be
    /// made to look like one.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, HostError> {
        match self.next {
            Next::Header => {
                let header = Header {
                    format: FORMAT.to_owned(),
                    version: VERSION,
                    session: SessionId(self.row.id.clone()),
                    agent: AgentName(self.row.agent.clone()),
                    created_at: self.row.created_at,
                    head: self.head().to_string(),
                };
                let line = self.line(&header)?;
                self.digest.push_bytes(&line);
                let first = self.next_epoch(0).await?;
                let epoch = first.ok_or_else(|| self.unreadable("its journal is empty".to_owned()))?;
                self.next = Next::Events(Cursor { epoch, seq: 0 });
                Ok(Some(line))
            }
            Next::Events(after) => self.events(after).await.map(Some),
            Next::Done => Ok(None),
        }
    }

    async fn events(&mut self, after: Cursor) -> Result<Vec<u8>, HostError> {
        let (store, key) = (self.store.clone(), self.row.key);
        let limit = PageLimit { rows: PAGE_ROWS, bytes: PAGE_BYTES };
        let reading = self.blocking.run(move || store.events(key, after.epoch, after.seq, limit));
        let page = reading.await.map_err(|_| HostError::ShuttingDown)??;
        let mut bytes = Vec::with_capacity(PAGE_BYTES.min(64 * 1024));
        let at = self.write_page(&page, after, &mut bytes)?;
        self.digest.push_bytes(&bytes);
        let head = self.head();
        if at == head {
            let end = End { rows: self.rows, head: head.to_string(), digest: self.digest.finish() };
            bytes.extend_from_slice(&self.line(&Trailer { end })?);
            self.next = Next::Done;
        } else if page.more {
            self.next = Next::Events(at);
        } else {
            let epoch = self.next_epoch(at.epoch).await?.filter(|epoch| *epoch <= head.epoch);
            let epoch =
                epoch.ok_or_else(|| self.unreadable(format!("its journal ends at {at}, not at {head}")))?;
            self.next = Next::Events(Cursor { epoch, seq: 0 });
        }
        Ok(bytes)
    }

    /// Writes a page's lines up to the head; gives where they end.
    fn write_page(
        &mut self,
        page: &EventPage,
        after: Cursor,
        bytes: &mut Vec<u8>,
    ) -> Result<Cursor, HostError> {
        if let Some(bad) = page.bad.first() {
            return Err(self.unreadable(format!("event {} is damaged: {}", bad.key, bad.detail)));
        }
        let (head, mut at) = (self.head(), after);
        for row in &page.rows {
            let place = Cursor { epoch: row.epoch, seq: row.seq };
            if place > head {
                break;
            }
            if row.first_seq != at.seq + 1 {
                return Err(self.unreadable(format!("events are missing behind {at}")));
            }
            if row.body.contains(&b'\n') || row.body.len() >= MAX_LINE_BYTES {
                return Err(self.unreadable(format!("event {place} is not one line")));
            }
            bytes.extend_from_slice(&row.body);
            bytes.push(b'\n');
            self.rows += 1;
            at = place;
        }
        Ok(at)
    }

    async fn next_epoch(&self, after: u64) -> Result<Option<u64>, HostError> {
        let (store, key) = (self.store.clone(), self.row.key);
        let reading = self.blocking.run(move || store.next_epoch(key, after));
        Ok(reading.await.map_err(|_| HostError::ShuttingDown)??)
    }

    fn head(&self) -> Cursor {
        Cursor { epoch: self.row.epoch, seq: self.row.head }
    }

    fn line(&self, value: &impl serde::Serialize) -> Result<Vec<u8>, HostError> {
        let mut line = serde_json::to_vec(value).map_err(|error| self.unreadable(error.to_string()))?;
        line.push(b'\n');
        Ok(line)
    }

    fn unreadable(&self, why: String) -> HostError {
        HostError::Unreadable { session: self.row.id.clone(), why }
    }
}
