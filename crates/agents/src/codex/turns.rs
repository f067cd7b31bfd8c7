//! Turns: started, interrupted, ended, and what streams in between.

use super::bounds::{MAX_INTERRUPT_TRIES, MAX_START_RETURNS};
use super::state::{Asked, Input, Interrupt, Look, Lookup, Named, Phase, Review, Running};
use super::{CodexAdapter, errors, items, threads, warn};
use crate::adapter::{CannotTell, Translated};
use crate::rpc::RpcError;
use mainstay_core::agent::{SteerRefusal, TakenProof};
use mainstay_core::content::{ContentBlock, Failure, FailureCode, Origin, Outcome};
use mainstay_core::{AgentEvent, ProviderTurn, SessionOptions, SubmissionId};
use serde_json::{Value, json};

impl CodexAdapter {
    /// A user message of the thread: our input, which is taken with it, or somebody else's.
    pub(super) fn user_message(
        &mut self,
        at: usize,
        turn: &str,
        item: &Value,
        proof: TakenProof,
        out: &mut Translated,
    ) {
        let session = self.sessions.slot(at).session.clone();
        let state = &self.sessions.slot(at).state;
        let client_id = item.get("clientId").and_then(Value::as_str);
        let is = |known: Option<&SubmissionId>| {
            client_id.is_some() && client_id == known.map(SubmissionId::as_str)
        };
        if is(state.input.as_ref().map(|input| &input.submission)) {
            let thread = self.sessions.change(at);
            let Some(input) = thread.input.take() else { return };
            thread.last_taken = Some(input.submission.clone());
            out.say(&session, AgentEvent::InputTaken { submission: input.submission, proof });
        } else if is(state.given_up.as_ref()) {
            let thread = self.sessions.change(at);
            let Some(submission) = thread.given_up.take() else { return };
            thread.last_taken = Some(submission.clone());
            out.say(&session, AgentEvent::InputTaken { submission, proof });
        } else if !is(state.last_taken.as_ref())
            && let Some(event) = items::foreign_user_message(turn, item)
        {
            let whose = self.whose_message(at, client_id);
            self.turn_shows_whose(at, turn, Some(whose), out);
            out.say(&session, event);
        }
    }

    pub(super) fn start_turn(
        &mut self,
        at: usize,
        submission: &SubmissionId,
        content: &[ContentBlock],
        options: &SessionOptions,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        if !self.ready() {
            return Err(CannotTell::NotConnected);
        }
        let session = self.sessions.slot(at).session.clone();
        let state = &self.sessions.slot(at).state;
        let Some(thread) = state.thread.clone().filter(|_| state.phase == Phase::Open) else {
            return Err(CannotTell::NoThread(session));
        };
        if state.input.is_some() {
            return Err(CannotTell::InputUntaken(session));
        }
        let input: Vec<Value> = content.iter().map(input_block).collect();
        let mut params = json!({ "threadId": thread, "input": input, "clientUserMessageId": submission });
        let (into, after) =
            (state.running.as_ref().map(|running| running.turn.clone()), state.seen.up_to().cloned());
        let changed = threads::take_over(&mut self.sessions.change(at).in_force, options);
        let slot = self.sessions.slot(at);
        match threads::changed_settings(&changed, &slot.state.in_force, &slot.context) {
            Ok(Value::Object(settings)) => {
                for (name, value) in settings {
                    params[name] = value;
                }
            }
            Ok(_) => {}
            Err(failure) => warn(out, &session, failure.message, None),
        }
        let request = self.connection.next_id;
        let thread = self.sessions.change(at);
        thread.interrupt = None;
        thread.input = Some(Input {
            submission: submission.clone(),
            request,
            turn: None,
            steers: false,
            kept: None,
            lost: false,
            after,
        });
        let asked = Asked::StartTurn { session, submission: submission.clone(), into };
        let frame = self.ask(asked, "turn/start", params);
        out.send_message(&frame, submission);
        Ok(())
    }

    pub(super) fn start_answered(
        &mut self,
        at: usize,
        submission: SubmissionId,
        into: Option<&ProviderTurn>,
        result: Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let untaken = thread.input.as_mut().filter(|input| input.submission == submission);
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                if untaken.is_some() {
                    thread.input = None;
                    thread.interrupt = None;
                    // The answer to what compacts or reviews comes before its turn: the message waits for the end of that.
                    let waits = errors::classify(&error) == errors::Refused::NotSteerable
                        && thread.start_returns < MAX_START_RETURNS;
                    let event = if waits {
                        thread.start_returns += 1;
                        AgentEvent::SteerRefused { submission, why: SteerRefusal::NotSteerable }
                    } else {
                        AgentEvent::InputRejected { submission, failure: errors::refusal_failure(&error) }
                    };
                    out.say(&session, event);
                }
                return;
            }
        };
        let Some(turn) = result.pointer("/turn/id").and_then(Value::as_str).map(ProviderTurn::from) else {
            warn(out, &session, "the agent took a message without naming a turn".to_owned(), Some(result));
            return;
        };
        if let Some(input) = untaken {
            input.turn = Some(turn.clone());
        }
        if into == Some(&turn) {
            // It joined a turn that somebody else started.
            return;
        }
        if let Some(interrupt) = thread.interrupt.as_mut().filter(|interrupt| interrupt.turn.is_none()) {
            interrupt.turn = Some(turn.clone());
        }
        thread.named = Some(Named { turn: turn.clone(), submission: submission.clone() });
        if let Some(running) =
            thread.running.as_mut().filter(|running| running.turn == turn && !running.known)
        {
            running.known = true;
            let (origin, submission) = (Origin::Message, Some(submission));
            out.say(&session, AgentEvent::TurnStarted { turn, origin, submission });
        }
    }

    pub(super) fn turn_started(&mut self, at: usize, turn: &str, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let turn = ProviderTurn::from(turn);
        let submission =
            thread.named.as_ref().filter(|named| named.turn == turn).map(|named| named.submission.clone());
        let known = submission.is_some();
        thread.running = Some(Running { turn: turn.clone(), known });
        thread.start_returns = 0;
        if let Some(interrupt) = &mut thread.interrupt
            && interrupt.turn.as_ref().is_none_or(|wanted| *wanted == turn)
        {
            interrupt.turn = Some(turn.clone());
            interrupt.due = true;
        }
        let pausing = thread.goal_pausing || thread.queue_stopping;
        if pausing && !known && thread.input.is_none() {
            // Started for the goal, or for what waited in the server's queue, although that is being stopped.
            thread.interrupt = Some(Interrupt::of(Some(turn.clone()), true));
        }
        let origin = if known { Origin::Message } else { Origin::Unknown };
        out.say(&session, AgentEvent::TurnStarted { turn, origin, submission });
    }

    /// A review shows itself before its turn begins.
    pub(super) fn review_began(&mut self, at: usize, turn: &str, out: &mut Translated) {
        self.sessions.change(at).review = Some(Review { turn: ProviderTurn::from(turn), inner: None });
        if !self.sessions.slot(at).state.runs(turn) {
            self.turn_started(at, turn, out);
        }
        if let Some(running) = &mut self.sessions.change(at).running {
            // Nobody's message: what it is about stands in it as one.
            running.known = true;
        }
    }

    /// Whether a turn that begins is the one within a review, which has begun already.
    pub(super) fn is_within_review(&mut self, at: usize, turn: &str, root: Option<&str>) -> bool {
        let review = self.sessions.slot(at).state.review.as_ref();
        let within = review.is_some_and(|review| Some(review.turn.as_str()) == root && root != Some(turn));
        if within && let Some(review) = &mut self.sessions.change(at).review {
            review.inner = Some(ProviderTurn::from(turn));
        }
        within
    }

    /// The end of a turn, live or found in the history.
    pub(super) fn turn_completed(&mut self, at: usize, turn: &Value, out: &mut Translated) {
        let id = turn.get("id").and_then(Value::as_str).unwrap_or_default();
        let thread = self.sessions.change(at);
        let kept = thread.failure.take().filter(|kept| kept.turn.as_str() == id).map(|kept| kept.failure);
        let failure =
            turn.get("error").filter(|error| !error.is_null()).map(|error| self.turn_failure(error)).or(kept);
        let word = turn.get("status").and_then(Value::as_str).unwrap_or_default();
        let (outcome, failure) = match word {
            "completed" => (Outcome::Completed, failure),
            "interrupted" => (Outcome::Interrupted, failure),
            "failed" => {
                let outcome = failure.as_ref().map_or(Outcome::Failed, errors::failed_outcome);
                (outcome, failure)
            }
            _ => {
                let failure = Failure {
                    code: FailureCode::Protocol,
                    message: format!("the agent ended the turn with an unknown status: {word:?}"),
                    provider: None,
                    resets_at: None,
                };
                (Outcome::Failed, Some(failure))
            }
        };
        self.say_turn_over(at, id, outcome, failure, out);
    }

    /// Says that a turn is over, and looks for the input that it was to take.
    pub(super) fn say_turn_over(
        &mut self,
        at: usize,
        id: &str,
        outcome: Outcome,
        failure: Option<Failure>,
        out: &mut Translated,
    ) {
        self.close_items_of(at, id, out);
        self.tell_tasks(at, id, None, out);
        self.forget_requests_of(at, None, id);
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        thread.saw_end_of(id);
        // The turn that ran in place of the one that was to stop.
        let in_place = thread.interrupt.as_ref().is_some_and(|wanted| {
            wanted.found.as_ref().is_some_and(|found| found.as_str() == id)
                && wanted.turn.as_ref().is_some_and(|of| of.as_str() != id)
        });
        thread.interrupt.take_if(|wanted| wanted.turn.as_ref().is_some_and(|of| of.as_str() == id));
        thread.running.take_if(|running| running.turn.as_str() == id);
        thread.review.take_if(|review| review.turn.as_str() == id);
        thread.named.take_if(|named| named.turn.as_str() == id);
        let never_seen = thread
            .input
            .as_ref()
            .is_some_and(|input| input.lost || input.turn.as_ref().is_some_and(|turn| turn.as_str() == id));
        out.say(
            &session,
            AgentEvent::TurnEnded { turn: id.into(), outcome, stop_reason: None, failure, usage: None },
        );
        // Also where it was stopped before it was taken: it is lost with its turn, or the history has it all the same.
        if never_seen && self.ready() {
            self.ask_history(at, Look::first(Lookup::Settle), out);
        } else if in_place && self.ready() {
            // Whether the other one is over too, nothing else tells.
            self.ask_whether_it_runs(at, out);
        }
        if outcome == Outcome::Interrupted {
            self.look_at_background(at, &id.into(), None, out);
        }
    }

    pub(super) fn interrupt(
        &mut self,
        at: usize,
        turn: Option<&ProviderTurn>,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let slot = self.sessions.slot(at);
        if slot.state.phase != Phase::Open {
            return Err(CannotTell::NoThread(slot.session.clone()));
        }
        self.stop_queue(at, out);
        let slot = self.sessions.slot(at);
        let running = slot.state.running.as_ref().map(|running| running.turn.clone());
        let is_wanted = |at: &ProviderTurn| turn.is_none_or(|wanted| wanted == at);
        if let Some(running) = running.filter(is_wanted) {
            self.sessions.change(at).interrupt = Some(Interrupt::of(Some(running), true));
            self.retry_interrupt(at, out);
            return Ok(());
        }
        // The turn of our input has not started: the wish waits for it.
        let named = slot.state.named.as_ref().map(|named| named.turn.clone());
        let coming = match turn {
            Some(turn) => named.as_ref() == Some(turn),
            None => slot.state.input.is_some() || named.is_some(),
        };
        if coming {
            let turn = turn.cloned().or(named);
            let thread = self.sessions.change(at);
            thread.interrupt = Some(Interrupt::of(turn, false));
            let lost = thread.input.as_ref().is_some_and(|input| input.lost);
            // A thread that is not taken up is being asked for already.
            let attached = thread.detached.is_none();
            if lost && attached && self.ready() {
                // What became of it could not be told before; a person is waiting now.
                self.ask_history(at, Look::first(Lookup::Reattach), out);
            }
        }
        Ok(())
    }

    /// Sends an interrupt that is due: at once, when its turn has started, or once more because the last try came too
    /// early. Each try but the first is caused by a record of the thread, never by a clock.
    pub(super) fn retry_interrupt(&mut self, at: usize, out: &mut Translated) {
        let state = &self.sessions.slot(at).state;
        let due = state
            .interrupt
            .as_ref()
            .filter(|interrupt| interrupt.due)
            .and_then(|interrupt| interrupt.turn.clone());
        let Some(turn) = due.filter(|turn| state.runs(turn.as_str())) else { return };
        if !self.ready() {
            return;
        }
        let Some(thread) = state.thread.clone() else { return };
        // A review is stopped by the turn within it, which its beginning names (measured).
        let found = state.interrupt.as_ref().and_then(|interrupt| interrupt.found.clone());
        let named = match state.review.as_ref().filter(|review| review.turn == turn) {
            _ if found.is_some() => found,
            Some(review) => review.inner.clone(),
            None => Some(turn.clone()),
        };
        let Some(named) = named else { return };
        let session = self.sessions.slot(at).session.clone();
        if let Some(interrupt) = &mut self.sessions.change(at).interrupt {
            interrupt.due = false;
            interrupt.tries += 1;
        }
        let params = json!({ "threadId": thread, "turnId": named });
        let frame = self.ask(Asked::Interrupt { session, turn }, "turn/interrupt", params);
        out.send_urgent(&frame);
    }

    pub(super) fn interrupt_answered(
        &mut self,
        at: usize,
        turn: &ProviderTurn,
        result: Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let Err(error) = result else { return };
        let state = &self.sessions.slot(at).state;
        let wanted = state.interrupt.as_ref().filter(|interrupt| interrupt.turn.as_ref() == Some(turn));
        // Over, or wanted no more: nothing is left to stop.
        let Some((tries, looked)) = wanted
            .filter(|_| state.runs(turn.as_str()))
            .map(|interrupt| (interrupt.tries, interrupt.found.is_some()))
        else {
            return;
        };
        if let Some(found) = errors::other_active_turn(&error).filter(|found| !looked && found != turn) {
            // The same work under another id: what was asked for still runs as far as the server has told.
            if let Some(interrupt) = &mut self.sessions.change(at).interrupt {
                interrupt.found = Some(found);
                interrupt.due = true;
            }
            self.retry_interrupt(at, out);
            return;
        }
        let again = errors::classify(&error) == errors::Refused::NoActiveTurn && tries < MAX_INTERRUPT_TRIES;
        let thread = self.sessions.change(at);
        if again {
            if let Some(interrupt) = &mut thread.interrupt {
                interrupt.due = true;
            }
            return;
        }
        thread.interrupt = None;
        let session = self.sessions.slot(at).session.clone();
        let message = format!("the agent did not stop the turn: {}", error.message);
        warn(out, &session, message, Some(error.body));
    }
}

/// A content block as `turn/start` takes it. What Codex has no word for is told in words: nothing is left out unseen.
pub(super) fn input_block(block: &ContentBlock) -> Value {
    match block {
        ContentBlock::Text { text } => json!({ "type": "text", "text": text }),
        ContentBlock::Image { data, mime_type } => {
            json!({ "type": "image", "url": format!("data:{mime_type};base64,{data}") })
        }
        ContentBlock::ResourceLink { uri, name } => {
            json!({ "type": "text", "text": format!("[{name}]({uri})") })
        }
    }
}
