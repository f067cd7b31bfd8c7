//! The judge: reads the durable journal from outside and holds it against the rules (design, section 2) and against what
//! the agents know to be true.

use crate::agent::Truth;
use mainstay_core::content::{Answer, ItemKind, Outcome};
use mainstay_core::{Event, ItemId, ProcessToken, RequestId, Session, Stamped, SubmissionId, TurnId};
use mainstay_store::{EventRow, PageLimit, SessionKey, Store};
use std::collections::{BTreeMap, BTreeSet};

/// The message of a submission: its text names it, so that the agents' truth can be told by it.
pub(crate) fn text_of(submission: &SubmissionId) -> String {
    format!("do {submission}")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Open,
    Delivered,
    Doubtful,
    Taken,
    Cancelled,
    Dropped,
    Rejected,
}

/// One session's journal, as read so far.
#[derive(Debug)]
pub(crate) struct Judge {
    pub(crate) key: SessionKey,
    pub(crate) fold: Option<Session>,
    pub(crate) rows: Vec<EventRow>,
    fates: BTreeMap<SubmissionId, Fate>,
    /// Open or not, and the agent's name of it.
    turns: BTreeMap<TurnId, (bool, String)>,
    items: BTreeMap<ItemId, (bool, ItemKind, Option<TurnId>)>,
    /// Items in the order of their beginning.
    order: Vec<ItemId>,
    item_texts: BTreeMap<ItemId, u64>,
    /// The text of each item.
    pub(crate) shown: BTreeMap<ItemId, String>,
    requests: BTreeMap<RequestId, bool>,
    /// Answers by process and the agent's own request number.
    pub(crate) answers: BTreeMap<(ProcessToken, String), Answer>,
    asked: BTreeMap<RequestId, (ProcessToken, String)>,
    /// Who won each request.
    pub(crate) winners: BTreeMap<RequestId, String>,
    exited: BTreeSet<ProcessToken>,
    /// Frames that nobody models, as counted so far.
    odd: u64,
    /// The marks of those, in their order.
    marks: Vec<String>,
    /// Records were set aside: the agent's words are not whole any more.
    set_aside: bool,
    fence: u64,
}

impl Judge {
    pub(crate) fn of(key: SessionKey) -> Self {
        Self {
            key,
            fold: None,
            rows: Vec::new(),
            fates: BTreeMap::new(),
            turns: BTreeMap::new(),
            items: BTreeMap::new(),
            order: Vec::new(),
            item_texts: BTreeMap::new(),
            requests: BTreeMap::new(),
            answers: BTreeMap::new(),
            asked: BTreeMap::new(),
            winners: BTreeMap::new(),
            exited: BTreeSet::new(),
            odd: 0,
            marks: Vec::new(),
            set_aside: false,
            shown: BTreeMap::new(),
            fence: 0,
        }
    }

    fn head(&self) -> u64 {
        self.rows.last().map_or(0, |row| row.seq)
    }

    /// Reads what is new and judges it.
    pub(crate) fn read(
        &mut self,
        store: &dyn Store,
        truth: &Truth,
        log: &mut Option<Vec<String>>,
    ) -> Result<(), String> {
        let limit = PageLimit { rows: 1_000_000, bytes: usize::MAX };
        let page = store
            .events(self.key, 1, self.head(), limit)
            .map_err(|error| format!("the journal cannot be read: {error}"))?;
        if let Some(bad) = page.bad.first() {
            return Err(format!("a damaged row: {bad:?}"));
        }
        self.set_aside |= store.quarantine(self.key).is_ok_and(|aside| !aside.rows.is_empty());
        for row in page.rows {
            let expected = self.head() + 1;
            if row.first_seq != expected || row.seq < row.first_seq {
                return Err(format!("event {}..{} follows {}", row.first_seq, row.seq, self.head()));
            }
            let stamped: Stamped = serde_json::from_slice(&row.body)
                .map_err(|error| format!("event {} cannot be parsed: {error}", row.seq))?;
            if let Some(log) = log {
                log.push(format!("   {} #{} {}", self.key, row.seq, brief(&stamped)));
            }
            self.rows.push(row);
            match &mut self.fold {
                Some(fold) => fold.apply(&stamped),
                None => self.fold = Session::from_first(&stamped),
            }
            self.judge(&stamped, truth).map_err(|why| format!("{} #{}: {why}", self.key, stamped.seq))?;
        }
        Ok(())
    }

    fn judge(&mut self, stamped: &Stamped, truth: &Truth) -> Result<(), String> {
        let fence = stamped.fence.0;
        let expected = self.fence + u64::from(matches!(stamped.event, Event::LeaseReserved { .. }));
        if fence != expected {
            return Err(format!(
                "the fence went from {} to {fence} with {}",
                self.fence,
                stamped.event.kind()
            ));
        }
        self.fence = fence;
        match &stamped.event {
            Event::SubmissionAccepted { submission, .. } => {
                once(self.fates.insert(submission.clone(), Fate::Open).is_none(), || {
                    format!("{submission} was accepted twice")
                })?;
            }
            Event::SubmissionQueued { submission, .. } => {
                // Given again by itself: if the agents had it after all, they take it twice, which is seen there.
                self.go(submission, &[Fate::Open, Fate::Delivered, Fate::Doubtful], Fate::Open)?;
            }
            Event::SubmissionDelivered { submission, .. } => {
                self.go(submission, &[Fate::Open], Fate::Delivered)?;
            }
            Event::SubmissionTaken { submission, .. } => {
                self.go(submission, &[Fate::Delivered, Fate::Doubtful], Fate::Taken)?;
                self.expect_received(submission, 1, truth)?;
            }
            Event::SubmissionDoubtful { submission, .. } => {
                self.go(submission, &[Fate::Delivered, Fate::Doubtful], Fate::Doubtful)?;
            }
            Event::SubmissionCancelled { submission } => {
                self.go(submission, &[Fate::Open, Fate::Doubtful, Fate::Delivered], Fate::Cancelled)?;
                self.expect_received(submission, 0, truth)?;
            }
            Event::SubmissionDropped { submission } => {
                self.go(submission, &[Fate::Doubtful], Fate::Dropped)?;
            }
            Event::SubmissionRejected { submission, .. } => {
                self.go(submission, &[Fate::Open, Fate::Delivered], Fate::Rejected)?;
            }
            Event::InputRefused { submission: Some(submission), .. } => {
                self.go(submission, &[Fate::Delivered], Fate::Open)?;
            }
            Event::TurnStarted { turn, provider_turn, .. } => {
                let name = provider_turn.to_string();
                once(self.turns.insert(turn.clone(), (true, name)).is_none(), || {
                    format!("turn {turn} started twice")
                })?;
            }
            Event::TurnEnded { turn, outcome, .. } => self.turn_ended(turn, *outcome, truth)?,
            Event::ItemStarted { item, turn, kind, .. } => {
                if self.items.insert(item.clone(), (true, *kind, turn.clone())).is_some() {
                    return Err(format!("item {item} started twice"));
                }
                self.order.push(item.clone());
            }
            Event::ItemDelta { item, offset, text } => self.item_text(item, *offset, text, truth)?,
            Event::ItemCompleted { item, text, replaces, .. } => {
                let open =
                    self.items.get_mut(item).ok_or_else(|| format!("item {item} was never started"))?;
                if !std::mem::take(&mut open.0) {
                    return Err(format!("item {item} completed twice"));
                }
                if let Some(text) = text.as_ref().filter(|_| *replaces) {
                    self.shown.insert(item.clone(), text.clone());
                }
            }
            Event::RequestOpened { request, process, key, .. } => {
                if self.requests.insert(request.clone(), true).is_some() {
                    return Err(format!("request {request} opened twice"));
                }
                self.asked.insert(request.clone(), (process.clone(), key.to_string()));
            }
            Event::RequestAnswered { request, answer, by, .. } => {
                if self.requests.get(request) != Some(&true) {
                    return Err(format!("request {request} was answered and is not open"));
                }
                if self.winners.insert(request.clone(), by.clone()).is_some() {
                    return Err(format!("request {request} was answered twice"));
                }
                if let Some(asked) = self.asked.get(request) {
                    self.answers.insert(asked.clone(), answer.clone());
                }
            }
            Event::RequestClosed { request, .. } => match self.requests.get_mut(request) {
                Some(open) if *open => *open = false,
                _ => return Err(format!("request {request} closed and is not open")),
            },
            Event::ProviderFrame { frame, count, .. } => {
                self.odd += 1;
                once(*count == self.odd, || {
                    format!("frame {} that nobody models is counted {count}", self.odd)
                })?;
                let mark = frame.as_ref().and_then(|frame| frame.pointer("/params/update/sky"));
                self.marks.extend(mark.and_then(|mark| mark.as_str()).map(str::to_owned));
            }
            Event::ProcessExited { process, .. } => {
                once(self.exited.insert(process.clone()), || format!("process {process} exited twice"))?;
            }
            Event::ProcessStarted { process, .. } | Event::ProcessAdopted { process } => {
                once(!self.exited.contains(process), || format!("process {process} is back from the dead"))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn fate(&self, submission: &SubmissionId) -> Result<Fate, String> {
        self.fates.get(submission).copied().ok_or_else(|| format!("{submission} was never accepted"))
    }

    fn go(&mut self, submission: &SubmissionId, from: &[Fate], to: Fate) -> Result<(), String> {
        let now = self.fate(submission)?;
        if !from.contains(&now) {
            return Err(format!("{submission} went from {now:?} to {to:?}"));
        }
        self.fates.insert(submission.clone(), to);
        Ok(())
    }

    fn expect_received(&self, submission: &SubmissionId, times: usize, truth: &Truth) -> Result<(), String> {
        let received = truth.received.get(&text_of(submission)).copied().unwrap_or(0);
        if received != times {
            return Err(format!("{submission}: the agents received it {received} times, not {times}"));
        }
        Ok(())
    }

    fn turn_ended(&mut self, turn: &TurnId, outcome: Outcome, truth: &Truth) -> Result<(), String> {
        let Some((open, name)) = self.turns.get_mut(turn) else {
            return Err(format!("turn {turn} ended and never started"));
        };
        if !std::mem::take(open) {
            return Err(format!("turn {turn} ended twice"));
        }
        let left: Vec<&ItemId> = self
            .items
            .iter()
            .filter(|(_, (open, kind, of))| *open && kind.ends_with_turn() && of.as_ref() == Some(turn))
            .map(|(item, _)| item)
            .collect();
        if !left.is_empty() {
            return Err(format!("turn {turn} ended and left {left:?} open"));
        }
        let by_agent = matches!(outcome, Outcome::Completed | Outcome::Refused);
        let name = name.clone();
        if by_agent && !self.set_aside {
            let odd = truth.odd.get(&name).map_or(&[][..], Vec::as_slice);
            let kept: Vec<&String> = self.marks.iter().filter(|mark| odd.contains(mark)).collect();
            // Kept and shown, each once and in its order: what nobody models is never dropped.
            if !kept.iter().copied().eq(odd) {
                return Err(format!("turn {turn} ({name}): nobody models {odd:?}, kept is {kept:?}"));
            }
            let unread = self.fold.as_ref().and_then(Session::thread);
            if unread.is_some_and(|thread| truth.unread.contains(thread.as_str())) {
                return Ok(());
            }
            let said = truth.said.get(&name).cloned().unwrap_or_default();
            let shown = self.text_of_turn(turn);
            // Also what was said while nobody listened: the agent's history tells it.
            if said != shown {
                return Err(format!("turn {turn} ({name}): the agent said {said:?}, shown is {shown:?}"));
            }
        }
        Ok(())
    }

    /// What the agent said in a turn, as the journal shows it.
    fn text_of_turn(&self, turn: &TurnId) -> String {
        let of_turn = |item: &&ItemId| matches!(self.items.get(*item), Some((_, ItemKind::AgentMessage, of)) if of.as_ref() == Some(turn));
        self.order
            .iter()
            .filter(of_turn)
            .filter_map(|item| self.shown.get(item))
            .map(String::as_str)
            .collect()
    }

    fn item_text(&mut self, item: &ItemId, offset: u64, text: &str, truth: &Truth) -> Result<(), String> {
        let Some((open, kind, turn)) = self.items.get(item) else {
            return Err(format!("text of item {item}, which never started"));
        };
        if !open {
            return Err(format!("text of item {item} after its end"));
        }
        let length = self.item_texts.entry(item.clone()).or_default();
        if *length != offset {
            return Err(format!("text of item {item} at {offset}, its length is {length}"));
        }
        *length += text.len() as u64;
        self.shown.entry(item.clone()).or_default().push_str(text);
        let (ItemKind::AgentMessage, Some(turn)) = (*kind, turn.clone()) else { return Ok(()) };
        // Over lines nothing is lost on the way: what is shown begins what was said, at any time.
        if let Some((_, name)) = self.turns.get(&turn)
            && (name.starts_with("p.") || name.starts_with("k."))
            && !self.set_aside
        {
            let said = truth.said.get(name).cloned().unwrap_or_default();
            let shown = self.text_of_turn(&turn);
            if !said.starts_with(&shown) {
                return Err(format!("turn {turn} ({name}): the agent said {said:?}, shown is {shown:?}"));
            }
        }
        Ok(())
    }

    /// Whether the journal holds this submission.
    pub(crate) fn knows(&self, submission: &SubmissionId) -> bool {
        self.fates.contains_key(submission)
    }

    /// Judges what must be true when nothing is left to happen.
    /// With `room_is_taken` a process of a session that cannot be loaded is there, which nobody can put to rest: another
    /// start may wait for its room.
    pub(crate) fn judge_rest(
        &self,
        status: &str,
        reason: Option<&str>,
        room_is_taken: bool,
    ) -> Result<(), String> {
        let Some(fold) = &self.fold else { return Err("no journal".to_owned()) };
        let report = fold.status();
        if report.status.as_str() != status || report.reason.as_deref() != reason {
            return Err(format!("the record says {status} ({reason:?}), the journal {report:?}"));
        }
        let paused_or_held = fold.queue_paused || fold.recovering.is_some();
        let awaits_room = room_is_taken && fold.awaits_capacity;
        for (submission, fate) in &self.fates {
            let settled = match fate {
                Fate::Taken | Fate::Cancelled | Fate::Dropped | Fate::Rejected => true,
                Fate::Doubtful => matches!(status, "requires_action" | "recovering" | "closed"),
                Fate::Open => {
                    let paused = fold.submissions.iter().any(|open| open.id == *submission && open.paused);
                    let over_budget = fold.budget_used_up().is_some();
                    paused || fold.recovering.is_some() || over_budget || awaits_room || status == "closed"
                }
                Fate::Delivered => false,
            };
            if !settled {
                return Err(format!(
                    "{submission} is left {fate:?} ({status}, {reason:?}, {paused_or_held})"
                ));
            }
        }
        if let Some((turn, _)) = self.turns.iter().find(|(_, (open, _))| *open) {
            return Err(format!("turn {turn} is left open"));
        }
        if let Some((item, _)) = self.items.iter().find(|(_, (open, ..))| *open) {
            return Err(format!("item {item} is left open"));
        }
        if let Some((request, _)) = self.requests.iter().find(|(_, open)| **open) {
            return Err(format!("request {request} is left open"));
        }
        if let Some(open) = fold.controls.iter().find(|open| open.told) {
            return Err(format!("control {} is left open", open.id));
        }
        if let Some(why) = &fold.unverifiable {
            return Err(format!("everything can be seen and the process is left unverifiable ({why})"));
        }
        if !matches!(fold.phase.name(), "free" | "held") && !awaits_room {
            return Err(format!("the lease is left {}", fold.phase.name()));
        }
        Ok(())
    }
}

/// What happens once only.
fn once(first: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if first { Ok(()) } else { Err(why()) }
}

fn brief(stamped: &Stamped) -> String {
    let text = format!("{:?}", stamped.event);
    let mut end = text.len().min(170);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}
