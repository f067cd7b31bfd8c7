//! Frames of a thread that cannot be told yet: it is being opened, or its session is not bound again. They are kept as
//! they came, within a bound, and read in their order.

use super::bounds::MAX_EARLY_BYTES;
use super::state::{Asked, Lookup, Phase};
use super::{CodexAdapter, warn};
use crate::adapter::Translated;

impl CodexAdapter {
    /// Whether what comes of this thread can be told to its session now.
    pub(super) fn can_be_told(&self, at: usize) -> bool {
        self.sessions.is_bound(at) && self.sessions.slot(at).state.phase != Phase::Opening
    }

    /// Whether what is told of items of this thread can be told on at once. Not while the newest page of its history is being read
    /// after a lost connection: what happened meanwhile comes before what happens now. All that is kept until then
    /// was told before that page was made, so that a loss over the bound loses nothing that the page has.
    pub(super) fn is_told_at_once(&self, at: usize) -> bool {
        let session = &self.sessions.slot(at).session;
        let reads = |asked: &Asked| {
            matches!(asked, Asked::History { session: of, look }
                if of == session && look.why == Lookup::Reattach && look.page == 0)
        };
        self.can_be_told(at) && !self.connection.asked.values().any(|in_flight| reads(&in_flight.what))
    }

    /// Keeps what was told, for later.
    pub(super) fn keep_early(&mut self, at: usize, bytes: &[u8]) {
        let state = &self.sessions.slot(at).state;
        if state.early_lost {
            // After a first loss nothing more is kept: a later frame without the one before would mislead.
            return;
        }
        if !self.keep_within(at, bytes, MAX_EARLY_BYTES) {
            let bound = self.sessions.is_bound(at);
            let state = self.sessions.change(at);
            (state.early_lost, state.missed) = (true, state.missed || !bound);
        }
    }

    /// Keeps what was asked, which has room of its own; false: there is none left.
    pub(super) fn keep_early_request(&mut self, at: usize, bytes: &[u8]) -> bool {
        self.keep_within(at, bytes, 2 * MAX_EARLY_BYTES)
    }

    fn keep_within(&mut self, at: usize, bytes: &[u8], most: usize) -> bool {
        let kept: usize = self.sessions.slot(at).state.early.iter().map(String::len).sum();
        match std::str::from_utf8(bytes) {
            Ok(frame) if kept + frame.len() <= most => {
                self.sessions.change(at).early.push(frame.to_owned());
                true
            }
            _ => false,
        }
    }

    /// Reads what was kept for threads that can be told now.
    pub(super) fn read_early(&mut self, out: &mut Translated) {
        for at in self.sessions.positions() {
            let state = &self.sessions.slot(at).state;
            if (state.early.is_empty() && !state.early_lost) || !self.is_told_at_once(at) {
                continue;
            }
            let thread = self.sessions.change(at);
            let (early, lost) = (std::mem::take(&mut thread.early), std::mem::take(&mut thread.early_lost));
            for frame in early {
                self.message(frame.as_bytes(), out);
            }
            if lost {
                let session = self.sessions.slot(at).session.clone();
                let message = "more was said than can be kept while the thread was being taken up; \
                               what is not shown here stands in the agent's own history";
                warn(out, &session, message.to_owned(), None);
            }
        }
    }
}
