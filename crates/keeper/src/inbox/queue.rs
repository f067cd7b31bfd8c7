//! The order in which inputs are written, and the marks that follow from it. Pure but for the state file.

use std::collections::VecDeque;
use std::io;
use std::path::Path;

use super::state::StateFile;
use super::{EARLY_LIMIT, INBOX_COUNT_LIMIT, INBOX_LIMIT, InboxState};
use crate::record::RefusedWhy;

/// One input that the host offers.
#[derive(Debug)]
pub(crate) struct Offer {
    pub(crate) n: u64,
    pub(crate) connection: u32,
    pub(crate) urgent: bool,
    pub(crate) payload: Vec<u8>,
}

/// What became of an offer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Taken over now.
    Recorded,
    /// Taken over before; nothing changes. It says whether it is settled already.
    Known { settled: bool },
    /// Not taken over; the number stays free.
    Refused(RefusedWhy),
}

/// An input that is to be written now. `n` is `None` for an unnumbered urgent one, which has an `id` instead.
#[derive(Debug)]
pub(crate) struct NextInput {
    pub(crate) n: Option<u64>,
    pub(crate) id: u64,
    pub(crate) payload: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Inbox {
    state: InboxState,
    file: StateFile,
    ordinary: VecDeque<Offer>,
    urgent: VecDeque<Offer>,
    unnumbered: VecDeque<(u64, Vec<u8>)>,
    waiting_bytes: usize,
    /// Begun and not settled.
    current: Option<u64>,
    last_written_in_full: u64,
    cut: Vec<u64>,
}

impl Inbox {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            state: InboxState { is_of_this_boot: true, ..InboxState::default() },
            file: StateFile::create(path)?,
            ordinary: VecDeque::new(),
            urgent: VecDeque::new(),
            unnumbered: VecDeque::new(),
            waiting_bytes: 0,
            current: None,
            last_written_in_full: 0,
            cut: Vec::new(),
        })
    }

    pub(crate) fn state(&self) -> &InboxState {
        &self.state
    }

    pub(crate) fn last_written_in_full(&self) -> u64 {
        self.last_written_in_full
    }

    /// Begun, and never to be completed.
    pub(crate) fn cut(&self) -> Vec<u64> {
        self.cut.iter().copied().chain(self.current).collect()
    }

    /// Taken over and never begun, ascending.
    pub(crate) fn undelivered(&self) -> Vec<u64> {
        let mut numbers: Vec<u64> = self.ordinary.iter().chain(&self.urgent).map(|offer| offer.n).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Takes a numbered input over, or says why not. The caller checks the connection first with
    /// [`is_known`](Self::is_known) and refuses by [`record_refused`](Self::record_refused).
    pub(crate) fn take(&mut self, offer: Offer) -> Taken {
        if let Some(answer) = self.answer_known_or_gap(offer.n) {
            return answer;
        }
        let count = self.ordinary.len() + self.urgent.len();
        if count >= INBOX_COUNT_LIMIT || (count > 0 && self.waiting_bytes + offer.payload.len() > INBOX_LIMIT)
        {
            return Taken::Refused(RefusedWhy::InboxFull);
        }
        if let Err(error) = self.update(|state| state.recorded = offer.n) {
            return Taken::Refused(RefusedWhy::StateNotRecorded { what: error.to_string() });
        }
        self.waiting_bytes += offer.payload.len();
        if offer.urgent {
            self.urgent.push_back(offer);
        } else {
            self.ordinary.push_back(offer);
        }
        Taken::Recorded
    }

    /// The answer to a number that is not the next one; `None` for the next one.
    pub(crate) fn answer_known_or_gap(&self, n: u64) -> Option<Taken> {
        if n <= self.state.recorded {
            let settled = n <= self.state.written || self.state.early_written.contains(&n);
            return Some(Taken::Known { settled });
        }
        let expected = self.state.recorded + 1;
        (n != expected).then_some(Taken::Refused(RefusedWhy::Gap { expected }))
    }

    /// Takes a number over without queueing it; [`record_refused`](Self::record_refused) must follow.
    pub(crate) fn record_only(&mut self, n: u64) -> io::Result<()> {
        self.update(|state| state.recorded = state.recorded.max(n))
    }

    /// Settles a number that will never be written. Call it after the record that says so is in the spool.
    pub(crate) fn record_refused(&mut self, n: u64) -> io::Result<()> {
        self.update(|state| {
            state.recorded = state.recorded.max(n);
            settle(state, n);
        })
    }

    /// An input outside the numbers, for stops. Bounded like the others, by count.
    pub(crate) fn take_unnumbered(&mut self, id: u64, payload: Vec<u8>) -> Result<(), RefusedWhy> {
        if self.unnumbered.len() >= INBOX_COUNT_LIMIT
            || (!self.unnumbered.is_empty() && self.waiting_bytes + payload.len() > 2 * INBOX_LIMIT)
        {
            return Err(RefusedWhy::InboxFull);
        }
        self.waiting_bytes += payload.len();
        self.unnumbered.push_back((id, payload));
        Ok(())
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !(self.unnumbered.is_empty() && self.urgent.is_empty() && self.ordinary.is_empty())
    }

    /// Begins the next input: unnumbered ones first, then urgent ones, then in order. Its number is marked as
    /// started before this returns. An error leaves everything as it was.
    pub(crate) fn begin_next(&mut self) -> io::Result<Option<NextInput>> {
        if let Some((id, payload)) = self.unnumbered.pop_front() {
            self.waiting_bytes -= payload.len();
            return Ok(Some(NextInput { n: None, id, payload }));
        }
        let may_overtake = self.state.early_started.len() < EARLY_LIMIT;
        let takes_urgent = match (self.urgent.front(), self.ordinary.front()) {
            (Some(_), None) => true,
            (Some(urgent), Some(ordinary)) => may_overtake || urgent.n < ordinary.n,
            (None, _) => false,
        };
        let source = if takes_urgent { &mut self.urgent } else { &mut self.ordinary };
        let Some(offer) = source.pop_front() else {
            return Ok(None);
        };
        if let Err(error) = self.update(|state| start(state, offer.n)) {
            let source = if takes_urgent { &mut self.urgent } else { &mut self.ordinary };
            source.push_front(offer);
            return Err(error);
        }
        self.waiting_bytes -= offer.payload.len();
        self.current = Some(offer.n);
        Ok(Some(NextInput { n: Some(offer.n), id: 0, payload: offer.payload }))
    }

    /// The begun input was written in full.
    pub(crate) fn finish_current(&mut self) -> io::Result<()> {
        let Some(n) = self.current.take() else {
            return Ok(());
        };
        self.last_written_in_full = self.last_written_in_full.max(n);
        self.update(|state| settle(state, n))
    }

    /// The begun input can never be completed. Call [`record_refused`](Self::record_refused) for it after the
    /// record that says so is in the spool.
    pub(crate) fn cut_current(&mut self) -> Option<u64> {
        let n = self.current.take()?;
        self.cut.push(n);
        Some(n)
    }

    /// Removes all inputs that wait, because their connection is gone: numbers to refuse, and ids.
    pub(crate) fn drop_waiting(&mut self) -> (Vec<u64>, Vec<u64>) {
        let numbers = self.undelivered();
        let ids = self.unnumbered.iter().map(|(id, _)| *id).collect();
        self.ordinary.clear();
        self.urgent.clear();
        self.unnumbered.clear();
        self.waiting_bytes = 0;
        (numbers, ids)
    }

    /// Changes the marks in memory and on disk, or in neither.
    fn update(&mut self, change: impl FnOnce(&mut InboxState)) -> io::Result<()> {
        let mut next = self.state.clone();
        change(&mut next);
        self.file.write(&next)?;
        self.state = next;
        Ok(())
    }
}

fn start(state: &mut InboxState, n: u64) {
    advance(&mut state.started, &mut state.early_started, n);
}

fn settle(state: &mut InboxState, n: u64) {
    start(state, n);
    advance(&mut state.written, &mut state.early_written, n);
}

/// Adds `n` to the set {1..=mark} ∪ early.
fn advance(mark: &mut u64, early: &mut Vec<u64>, n: u64) {
    if n <= *mark || early.contains(&n) {
        return;
    }
    early.push(n);
    early.sort_unstable();
    while early.first() == Some(&(*mark + 1)) {
        *mark += 1;
        early.remove(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inbox() -> (tempfile::TempDir, Inbox) {
        let folder = tempfile::tempdir().expect("temp folder");
        let inbox = Inbox::create(&folder.path().join("inbox")).expect("inbox");
        (folder, inbox)
    }

    fn offer(n: u64, urgent: bool) -> Offer {
        Offer { n, connection: 1, urgent, payload: format!("input {n}").into_bytes() }
    }

    fn next_number(inbox: &mut Inbox) -> Option<u64> {
        inbox.begin_next().expect("begin").and_then(|input| input.n)
    }

    #[test]
    fn a_known_number_changes_nothing_and_a_gap_is_refused() {
        let (_folder, mut inbox) = inbox();
        assert_eq!(inbox.take(offer(2, false)), Taken::Refused(RefusedWhy::Gap { expected: 1 }));
        assert_eq!(inbox.take(offer(1, false)), Taken::Recorded);
        assert_eq!(inbox.take(offer(1, false)), Taken::Known { settled: false });
        assert_eq!(next_number(&mut inbox), Some(1));
        inbox.finish_current().expect("finish");
        assert_eq!(inbox.take(offer(1, false)), Taken::Known { settled: true });
        assert_eq!(next_number(&mut inbox), None, "the duplicate was not queued");
        assert_eq!(inbox.last_written_in_full(), 1);
    }

    #[test]
    fn an_urgent_input_overtakes_and_the_marks_wait_for_the_overtaken() {
        let (_folder, mut inbox) = inbox();
        for (n, urgent) in [(1, false), (2, false), (3, true)] {
            assert_eq!(inbox.take(offer(n, urgent)), Taken::Recorded);
        }
        assert_eq!(next_number(&mut inbox), Some(3));
        inbox.finish_current().expect("finish");
        assert_eq!((inbox.state().started, inbox.state().written), (0, 0));
        assert_eq!(inbox.state().early_written, [3]);
        assert_eq!(inbox.undelivered(), [1, 2]);
        for n in [1, 2] {
            assert_eq!(next_number(&mut inbox), Some(n));
            inbox.finish_current().expect("finish");
        }
        assert_eq!((inbox.state().started, inbox.state().written), (3, 3));
        assert!(inbox.state().early_written.is_empty());
    }

    #[test]
    fn an_unnumbered_input_goes_before_all_and_moves_no_mark() {
        let (_folder, mut inbox) = inbox();
        assert_eq!(inbox.take(offer(1, true)), Taken::Recorded);
        inbox.take_unnumbered(77, b"stop".to_vec()).expect("taken");
        let first = inbox.begin_next().expect("begin").expect("one waits");
        assert_eq!((first.n, first.id, first.payload), (None, 77, b"stop".to_vec()));
        inbox.finish_current().expect("nothing numbered is current");
        assert_eq!(inbox.state().started, 0);
        assert_eq!(next_number(&mut inbox), Some(1));
    }

    #[test]
    fn overtaking_is_bounded_and_then_goes_in_order() {
        let (_folder, mut inbox) = inbox();
        assert_eq!(inbox.take(offer(1, false)), Taken::Recorded);
        for n in 2..=EARLY_LIMIT as u64 + 3 {
            assert_eq!(inbox.take(offer(n, true)), Taken::Recorded);
        }
        for n in 2..=EARLY_LIMIT as u64 + 1 {
            assert_eq!(next_number(&mut inbox), Some(n));
            inbox.finish_current().expect("finish");
        }
        assert_eq!(next_number(&mut inbox), Some(1), "no further one may overtake");
    }

    #[test]
    fn bytes_that_wait_are_bounded_and_the_refused_number_stays_free() {
        let (_folder, mut inbox) = inbox();
        let big = |n| Offer { n, connection: 1, urgent: false, payload: vec![0; INBOX_LIMIT / 2 + 1] };
        assert_eq!(inbox.take(big(1)), Taken::Recorded);
        assert_eq!(inbox.take(big(2)), Taken::Refused(RefusedWhy::InboxFull));
        inbox.take_unnumbered(5, b"stop".to_vec()).expect("a stop still fits");
        assert!(inbox.begin_next().expect("begin").is_some_and(|input| input.n.is_none()));
        assert_eq!(next_number(&mut inbox), Some(1));
        assert_eq!(inbox.take(big(2)), Taken::Recorded);
    }

    #[test]
    fn what_a_lost_connection_leaves_is_refused_or_cut() {
        let (_folder, mut inbox) = inbox();
        for n in 1..=3 {
            assert_eq!(inbox.take(offer(n, false)), Taken::Recorded);
        }
        assert_eq!(next_number(&mut inbox), Some(1));
        assert_eq!(inbox.cut_current(), Some(1));
        let (numbers, ids) = inbox.drop_waiting();
        assert_eq!((numbers, ids), (vec![2, 3], vec![]));
        for n in 1..=3 {
            inbox.record_refused(n).expect("refused");
        }
        assert_eq!((inbox.state().recorded, inbox.state().written), (3, 3));
        assert_eq!(inbox.last_written_in_full(), 0, "refused is not written");
        assert_eq!(inbox.cut(), [1]);
        assert_eq!(inbox.take(offer(4, false)), Taken::Recorded);
    }

    #[test]
    fn the_file_follows_every_step() {
        let (home, mut inbox) = inbox();
        let folder = crate::folder::KeeperFolder { path: home.path().to_owned(), token: "t".to_owned() };
        let on_disk = || folder.inbox_state().expect("readable").expect("there");
        assert_eq!(on_disk().recorded, 0);
        assert_eq!(inbox.take(offer(1, false)), Taken::Recorded);
        assert_eq!((on_disk().recorded, on_disk().started), (1, 0));
        assert_eq!(next_number(&mut inbox), Some(1));
        assert_eq!((on_disk().started, on_disk().written), (1, 0));
        inbox.finish_current().expect("finish");
        assert_eq!(on_disk().written, 1);
        assert!(on_disk().is_of_this_boot);
    }
}
