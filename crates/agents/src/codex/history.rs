//! The thread's own history, asked where the live stream cannot tell: after a connection was lost, when a thread is
//! taken up in another process, and when a turn ended without its input.

use super::bounds::MAX_HISTORY_PAGES;
use super::state::{Asked, Input, Look, Lookup, Named, Phase, Running, Seen};
use super::threads::NOT_LOADED;
use super::{CodexAdapter, errors, items, warn};
use crate::adapter::{Shown, Translated};
use crate::rpc::RpcError;
use mainstay_core::agent::TakenProof;
use mainstay_core::content::{Failure, FailureCode, Origin, Outcome};
use mainstay_core::{AgentEvent, ProviderTurn, SubmissionId};
use serde_json::{Value, json};

/// Ends of turns held while a page is read: more than one turn can hardly end in that time.
const MAX_HELD_ENDS: usize = 8;

impl CodexAdapter {
    /// Asks for a page of turns, the newest first.
    pub(super) fn ask_history(&mut self, at: usize, mut look: Look, out: &mut Translated) {
        look.asked = self.connection.next_id;
        let slot = self.sessions.slot(at);
        let Some(thread) = &slot.state.thread else { return };
        let view = if look.ends_only { "summary" } else { "full" };
        let mut params =
            json!({ "threadId": thread, "sortDirection": "desc", "itemsView": view, "limit": look.limit });
        if let Some(cursor) = &look.cursor {
            params["cursor"] = cursor.clone();
        }
        let asked = Asked::History { session: slot.session.clone(), look };
        self.read(asked, "thread/turns/list", params, out);
    }

    pub(super) fn history(
        &mut self,
        at: usize,
        look: &Look,
        result: Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let (page, why_not) = match result {
            Ok(result) => (Page::read(&result, look.ends_only), None),
            // No message, so no turn: that is all of its history.
            Err(error) if errors::classify(&error) == errors::Refused::NotMaterialized => {
                (Page { turns: Vec::new(), next: None, readable: true, whole: true }, None)
            }
            Err(error) => (Page::unreadable(), Some(error)),
        };
        if !page.readable {
            if let Some(smaller) = look.smaller() {
                self.ask_history(at, smaller, out);
                return;
            }
            let session = self.sessions.slot(at).session.clone();
            let (message, provider) = match why_not {
                Some(error) => {
                    (format!("the thread's history could not be read: {}", error.message), Some(error.body))
                }
                None => ("the thread's history has an unknown form".to_owned(), None),
            };
            warn(out, &session, message, provider);
            if look.why == Lookup::Reattach {
                self.ask_whether_it_runs(at, out);
            }
        } else if look.ends_only {
            let session = self.sessions.slot(at).session.clone();
            let message =
                "the thread's history is too long to be read whole; items of its last turns may be missing";
            warn(out, &session, message.to_owned(), None);
        }
        match look.why {
            Lookup::Opening => self.opening_page(at, look, &page, out),
            Lookup::Reattach => self.missed_page(at, look, &page, out),
            Lookup::Settle => self.settle_input(at, look, &page, out),
        }
    }

    /// Settles doubtful inputs; the thread is opened when nothing is left to ask.
    fn opening_page(&mut self, at: usize, look: &Look, page: &Page, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let Some(opening) = &mut thread.opening else { return };
        if look.page == 0 {
            let ended = page.turns.iter().find(|turn| !turn.running);
            thread.seen = match ended {
                Some(turn) => Seen::UpTo(turn.id.clone()),
                None if page.readable && page.next.is_none() => Seen::FromTheStart,
                None => Seen::Unsure,
            };
            thread.running = page
                .turns
                .first()
                .filter(|turn| turn.running)
                .map(|turn| Running { turn: turn.id.clone(), known: false });
        }
        opening.doubtful.retain(|doubtful| {
            let Some(turn) = page.turns.iter().find(|turn| turn.has_input(doubtful)) else { return true };
            if let Some(running) = thread.running.as_mut().filter(|running| running.turn == turn.id) {
                running.known = true;
                thread.named = Some(Named { turn: turn.id.clone(), submission: doubtful.clone() });
            }
            // Shown with it, and not once more as somebody's.
            thread.last_taken = Some(doubtful.clone());
            out.say(
                &session,
                AgentEvent::InputTaken { submission: doubtful.clone(), proof: TakenProof::History },
            );
            false
        });
        if !opening.doubtful.is_empty() {
            match &page.next {
                Some(cursor) if look.page + 1 < MAX_HISTORY_PAGES => {
                    self.ask_history(at, look.next(cursor.clone()), out);
                    return;
                }
                None if page.readable && page.whole => {
                    for submission in std::mem::take(&mut opening.doubtful) {
                        out.say(&session, AgentEvent::InputAbsent { submission });
                    }
                }
                _ => {
                    for submission in std::mem::take(&mut opening.doubtful) {
                        out.say(&session, AgentEvent::InputUnknown { submission });
                    }
                }
            }
        }
        self.open_for_use(at, true, out);
        let newer = if look.page == 0 { self.newer_than_past(at, page, out) } else { &[] };
        if look.page > 0
            && matches!(self.sessions.slot(at).context.past, Some(Shown::Nothing | Shown::UpTo(_)))
        {
            // The pages before are gone; what they had cannot be told from what was shown.
            let message = "turns that ran since the conversation's past was read may not be shown";
            warn(out, &session, message.to_owned(), None);
        }
        // Told last, and not to be taken for over meanwhile.
        let runs = self.sessions.change(at).running.take();
        for turn in newer.iter().rev().filter(|turn| !turn.running) {
            self.missed_turn(at, turn, out);
        }
        self.sessions.change(at).running = runs;
        let thread = &self.sessions.slot(at).state;
        if let Some(running) = &thread.running {
            let submission = thread.named.as_ref().map(|named| named.submission.clone());
            let origin = if submission.is_some() { Origin::Message } else { Origin::Unknown };
            out.say(&session, AgentEvent::TurnStarted { turn: running.turn.clone(), origin, submission });
        }
        for turn in newer.iter().filter(|turn| turn.running) {
            self.missed_items(at, turn, out);
        }
    }

    /// The turns of the newest page that came after the past with which the conversation was brought here.
    fn newer_than_past<'a>(&self, at: usize, page: &'a Page, out: &mut Translated) -> &'a [PageTurn] {
        let slot = self.sessions.slot(at);
        let newer = match &slot.context.past {
            Some(Shown::Nothing) => None,
            Some(Shown::UpTo(shown)) => page.turns.iter().position(|turn| turn.id == *shown),
            Some(Shown::Unknown) | None => return &[],
        };
        if newer.is_none() && page.next.is_some() {
            let message = "more turns ran since the conversation's past was read than can be shown";
            warn(out, &slot.session, message.to_owned(), None);
        }
        &page.turns[..newer.unwrap_or(page.turns.len())]
    }

    /// Shows what happened while there was no connection, in its order, and settles the input that was in flight.
    fn missed_page(&mut self, at: usize, look: &Look, page: &Page, out: &mut Translated) {
        let state = &self.sessions.slot(at).state;
        let seen = state.seen.clone();
        let was_running = state.running.as_ref().map(|running| running.turn.clone());
        let newer: Vec<&PageTurn> = match &seen {
            Seen::FromTheStart => page.turns.iter().collect(),
            Seen::UpTo(last) => page.turns.iter().take_while(|turn| turn.id != *last).collect(),
            Seen::Unsure => page.turns.iter().filter(|turn| Some(&turn.id) == was_running.as_ref()).collect(),
        };
        let reached = page.reaches(seen.up_to());
        if page.readable && !reached && seen != Seen::Unsure {
            let session = self.sessions.slot(at).session.clone();
            let message = "more turns ran while the connection was lost than can be shown".to_owned();
            warn(out, &session, message, None);
        }
        for turn in newer.into_iter().rev() {
            self.missed_turn(at, turn, out);
        }
        self.settle_input(at, look, page, out);
        for end in std::mem::take(&mut self.sessions.change(at).held_ends) {
            self.turn_completed(at, &end, out);
        }
        // What the server asks again it asks before it answers this (measured).
        self.mark_unconfirmed(at, None, out);
        let slot = self.sessions.slot(at);
        // Not where the server closed it in the meantime: then it is being asked for again.
        if slot.state.phase == Phase::Open && slot.state.detached.is_none() {
            self.say_reattached(at, out);
            self.look_at_background_again(at, out);
        }
        // A stop that was asked for while there was no connection, or whose answer was lost with it.
        let state = &self.sessions.slot(at).state;
        if let (Some(interrupt), Some(running)) = (&state.interrupt, &state.running) {
            let turn = interrupt.turn.clone().unwrap_or_else(|| running.turn.clone());
            // Cannot fail: the thread is open.
            self.interrupt(at, Some(&turn), out).ok();
        }
    }

    fn missed_turn(&mut self, at: usize, turn: &PageTurn, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        // A turn answers the message that started it, not one that went into it.
        let starts = thread.input.as_ref().filter(|input| !input.steers);
        let input = starts.filter(|input| turn.has_input(&input.submission));
        let named = thread.named.as_ref().filter(|named| named.turn == turn.id);
        let ours = input.map(|input| &input.submission).or(named.map(|named| &named.submission)).cloned();
        let known =
            thread.running.as_ref().filter(|running| running.turn == turn.id).map(|running| running.known);
        if known != Some(true) && (known.is_none() || ours.is_some()) {
            thread.running = Some(Running { turn: turn.id.clone(), known: ours.is_some() });
            let origin = if ours.is_some() { Origin::Message } else { Origin::Unknown };
            out.say(&session, AgentEvent::TurnStarted { turn: turn.id.clone(), origin, submission: ours });
        }
        self.missed_items(at, turn, out);
        if !turn.running {
            // What is known of its input is settled by the page, not by a further look.
            self.turn_completed_in_history(at, &turn.body, out);
        }
    }

    fn missed_items(&mut self, at: usize, turn: &PageTurn, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        for item in &turn.items {
            let kind = item.get("type").and_then(Value::as_str);
            if kind == Some("userMessage") {
                self.user_message(at, turn.id.as_str(), item, TakenProof::History, out);
            } else if is_done(item)
                && let Some(event) = items::completed(turn.id.as_str(), item)
            {
                // The session leaves out what it has: an item completes once.
                self.note_item(at, false, &event, item);
                self.ended_after_all(at, &event, item, out);
                out.say(&session, event);
            }
        }
    }

    fn turn_completed_in_history(&mut self, at: usize, turn: &Value, out: &mut Translated) {
        let input = self.sessions.change(at).input.take();
        self.turn_completed(at, turn, out);
        self.sessions.change(at).input = input;
    }

    /// Decides by the page about an input that was never seen taken.
    fn settle_input(&mut self, at: usize, look: &Look, page: &Page, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let state = &self.sessions.slot(at).state;
        // Still in flight on this connection, or given after the page was asked for (which may be answered late): its own
        // answer and user message tell.
        let settles = |input: &Input| {
            // One given on this connection is no loss of the one before: its own answer and user message tell.
            let concerns_it = look.why != Lookup::Reattach || input.lost;
            concerns_it && !self.in_flight(&input.submission) && input.request <= look.asked
        };
        let Some(input) = state.input.clone().filter(settles) else {
            return;
        };
        if let Some(turn) = page.turns.iter().find(|turn| turn.has_input(&input.submission)) {
            let thread = self.sessions.change(at);
            thread.input = None;
            thread.last_taken = Some(input.submission.clone());
            if turn.running && !input.steers {
                thread.named = Some(Named { turn: turn.id.clone(), submission: input.submission.clone() });
            }
            out.say(
                &session,
                AgentEvent::InputTaken { submission: input.submission, proof: TakenProof::History },
            );
            return;
        }
        let busy = page.turns.iter().any(|turn| turn.running) || state.running.is_some();
        let thread = self.sessions.change(at);
        if busy && page.readable {
            if let Some(input) = &mut thread.input {
                // Asked again when that turn ends, whichever it is.
                input.lost = true;
            }
            return;
        }
        thread.input = None;
        let submission = input.submission;
        // What was written to a connection that was just lost may still be read by the agent: that it is not there yet
        // proves nothing. (The keeper proves what was never written, and says so apart.)
        let may_still_come = look.why == Lookup::Reattach && !input.steers;
        if page.whole && page.reaches(input.after.as_ref()) && !may_still_come {
            out.say(&session, AgentEvent::InputAbsent { submission });
        } else {
            // Kept, it would hold every later message back.
            thread.given_up = Some(submission.clone());
            out.say(&session, AgentEvent::InputUnknown { submission });
        }
    }

    /// Nothing tells how the turn ended that ran when the connection was lost, or in whose place another one ended: the
    /// thread's status tells whether it did.
    pub(super) fn ask_whether_it_runs(&mut self, at: usize, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let (Some(running), Some(thread)) = (&slot.state.running, &slot.state.thread) else { return };
        let asked = Asked::StillRuns { session: slot.session.clone(), turn: running.turn.clone() };
        let params = json!({ "threadId": thread, "includeTurns": false });
        self.read(asked, "thread/read", params, out);
    }

    pub(super) fn told_whether_it_runs(
        &mut self,
        at: usize,
        turn: &ProviderTurn,
        result: &Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let status = result.as_ref().ok().and_then(|result| result.pointer("/thread/status/type")?.as_str());
        // Where it runs, its end comes live; where nothing is known, it is not said to be over.
        if !matches!(status, Some("idle" | "systemError" | NOT_LOADED))
            || !self.sessions.slot(at).state.runs(turn.as_str())
        {
            return;
        }
        let failure = Failure::new(
            FailureCode::Protocol,
            "the turn is over, and neither the agent nor the thread's history tells how it ended",
        );
        self.say_turn_over(at, turn.as_str(), Outcome::Lost, Some(failure), out);
    }

    /// Whether the history of the time without a connection is being read.
    pub(super) fn reads_what_was_missed(&self, at: usize) -> bool {
        let session = &self.sessions.slot(at).session;
        self.asking().any(|asked| {
            matches!(asked, Asked::History { session: of, look } if of == session && look.why == Lookup::Reattach)
        })
    }

    /// Keeps the end of a turn until that is read; false where there is no room, and it is told at once.
    pub(super) fn hold_end(&mut self, at: usize, turn: &Value) -> bool {
        let thread = self.sessions.change(at);
        if thread.held_ends.len() >= MAX_HELD_ENDS {
            return false;
        }
        let mut end = turn.clone();
        if let Some(end) = end.as_object_mut() {
            // What it carries of its items is in the history too.
            end.remove("items");
        }
        thread.held_ends.push(end);
        true
    }

    /// Whether the request that carries the input is unanswered on this connection.
    pub(super) fn in_flight(&self, submission: &SubmissionId) -> bool {
        self.asking()
            .any(|asked| matches!(asked, Asked::StartTurn { submission: of, .. } | Asked::Steer { submission: of, .. } if of == submission))
    }
}

/// Whether an item of the history is over.
pub(super) fn is_done(item: &Value) -> bool {
    let over = |name: &str| item.get(name).is_some_and(|time| !time.is_null());
    over("completedAtMs") && item.get("status").and_then(Value::as_str) != Some("inProgress")
}

/// A page of the history.
struct Page {
    /// The newest first.
    turns: Vec<PageTurn>,
    /// Where the next page begins; None: this is the last one.
    next: Option<Value>,
    readable: bool,
    /// With all items of its turns: what is not in it is not there.
    whole: bool,
}

struct PageTurn {
    id: ProviderTurn,
    running: bool,
    items: Vec<Value>,
    body: Value,
}

impl Page {
    const fn unreadable() -> Self {
        Self { turns: Vec::new(), next: None, readable: false, whole: false }
    }

    fn read(result: &Value, ends_only: bool) -> Self {
        let turns = result.get("data").and_then(Value::as_array);
        Self {
            whole: !ends_only,
            readable: turns.is_some(),
            turns: turns.map_or(&[][..], Vec::as_slice).iter().filter_map(PageTurn::read).collect(),
            next: result.get("nextCursor").filter(|cursor| !cursor.is_null()).cloned(),
        }
    }

    /// Whether everything after that turn stands in this page.
    fn reaches(&self, turn: Option<&ProviderTurn>) -> bool {
        self.readable
            && (self.next.is_none() || turn.is_some_and(|turn| self.turns.iter().any(|of| of.id == *turn)))
    }
}

impl PageTurn {
    fn read(turn: &Value) -> Option<Self> {
        Some(Self {
            id: ProviderTurn::from(turn.get("id")?.as_str()?),
            running: turn.get("status").and_then(Value::as_str) == Some("inProgress"),
            items: turn.get("items").and_then(Value::as_array).cloned().unwrap_or_default(),
            body: turn.clone(),
        })
    }

    fn has_input(&self, submission: &SubmissionId) -> bool {
        self.items.iter().any(|item| {
            item.get("type").and_then(Value::as_str) == Some("userMessage")
                && item.get("clientId").and_then(Value::as_str) == Some(submission.as_str())
        })
    }
}
