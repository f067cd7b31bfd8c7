//! Messages that go into the running turn.

use super::CodexAdapter;
use super::bounds::MAX_STEER_BYTES;
use super::errors::{self, Refused};
use super::state::{Asked, Input, Look, Lookup, Phase};
use super::turns::input_block;
use crate::adapter::{CannotTell, Translated};
use crate::rpc::RpcError;
use mainstay_core::agent::SteerRefusal;
use mainstay_core::content::ContentBlock;
use mainstay_core::{AgentEvent, ProviderTurn, SubmissionId, ThreadId};
use serde_json::{Value, json};

impl CodexAdapter {
    pub(super) fn steer(
        &mut self,
        at: usize,
        turn: &ProviderTurn,
        submission: &SubmissionId,
        content: &[ContentBlock],
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
        let after = state.seen.up_to().cloned();
        let blocks = Value::Array(content.iter().map(input_block).collect());
        let kept = (blocks.to_string().len() <= MAX_STEER_BYTES).then(|| blocks.clone());
        let request = self.connection.next_id;
        self.sessions.change(at).input = Some(Input {
            submission: submission.clone(),
            request,
            turn: Some(turn.clone()),
            steers: true,
            kept,
            lost: false,
            after,
        });
        let frame = self.steer_frame(at, &thread, turn, submission, &blocks, false);
        out.send_message(&frame, submission);
        Ok(())
    }

    fn steer_frame(
        &mut self,
        at: usize,
        thread: &ThreadId,
        turn: &ProviderTurn,
        submission: &SubmissionId,
        blocks: &Value,
        again: bool,
    ) -> Value {
        let session = self.sessions.slot(at).session.clone();
        let params = json!({
            "threadId": thread,
            "input": blocks,
            "expectedTurnId": turn,
            "clientUserMessageId": submission,
        });
        let asked = Asked::Steer { session, submission: submission.clone(), turn: turn.clone(), again };
        self.ask(asked, "turn/steer", params)
    }

    pub(super) fn steer_answered(
        &mut self,
        at: usize,
        submission: SubmissionId,
        turn: &ProviderTurn,
        again: bool,
        result: Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let state = &self.sessions.slot(at).state;
        if state.input.as_ref().is_none_or(|input| input.submission != submission) {
            // Taken, or given up, before the answer came.
            return;
        }
        let Err(error) = result else {
            if !state.runs(turn.as_str()) {
                // Its turn ended before the answer: if it was lost with it, nothing live will tell.
                self.ask_history(at, Look::first(Lookup::Settle), out);
            }
            return;
        };
        let refused = errors::classify(&error);
        if refused == Refused::OtherActiveTurn && !again {
            let runs = errors::other_active_turn(&error);
            if self.steer_again(at, turn, runs, &submission, out) {
                return;
            }
        }
        self.sessions.change(at).input = None;
        let event = match refused {
            Refused::OtherActiveTurn | Refused::NoTurnToSteer => {
                AgentEvent::SteerRefused { submission, why: SteerRefusal::TurnOver }
            }
            // Whatever the words: the turn is known to be over, and a refused message was not taken.
            _ if !self.sessions.slot(at).state.runs(turn.as_str()) => {
                AgentEvent::SteerRefused { submission, why: SteerRefusal::TurnOver }
            }
            Refused::NotSteerable => AgentEvent::SteerRefused { submission, why: SteerRefusal::NotSteerable },
            _ => AgentEvent::InputRejected { submission, failure: errors::refusal_failure(&error) },
        };
        out.say(&self.sessions.slot(at).session, event);
    }

    /// Gives the message into the turn that runs in place of the one that was named: the one that the refusal names, else
    /// the one that is known to run. False: none is known, or the message was too long to be kept.
    fn steer_again(
        &mut self,
        at: usize,
        named: &ProviderTurn,
        runs: Option<ProviderTurn>,
        submission: &SubmissionId,
        out: &mut Translated,
    ) -> bool {
        let state = &self.sessions.slot(at).state;
        let running = runs.or_else(|| state.running.as_ref().map(|running| running.turn.clone()));
        let blocks = state.input.as_ref().and_then(|input| input.kept.clone());
        let (Some(turn), Some(blocks), Some(thread)) =
            (running.filter(|turn| turn != named), blocks, state.thread.clone())
        else {
            return false;
        };
        let request = self.connection.next_id;
        if let Some(input) = &mut self.sessions.change(at).input {
            input.request = request;
            input.turn = Some(turn.clone());
        }
        // The frame that carried the message is the first one; this one says the same again.
        let frame = self.steer_frame(at, &thread, &turn, submission, &blocks, true);
        out.send(&frame);
        true
    }
}
