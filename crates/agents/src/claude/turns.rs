//! Turns: begun by `init`, ended by `result`; messages given, echoed, withdrawn and stopped.

use super::state::{Input, Turn};
use super::wire::{self, Asked};
use super::{ClaudeAdapter, text};
use crate::adapter::{CannotTell, Translated};
use mainstay_core::agent::{NoticeLevel, SteerRefusal, TakenProof};
use mainstay_core::content::{
    ContentBlock, Failure, FailureCode, ItemFields, ItemKind, ItemStatus, Origin, Outcome, StopReason,
};
use mainstay_core::session::Spent;
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, SessionOptions, SubmissionId};
use serde_json::{Value, json};

impl ClaudeAdapter {
    pub(super) fn start_turn(
        &mut self,
        at: usize,
        submission: &SubmissionId,
        content: &[ContentBlock],
        options: &SessionOptions,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        self.may_give(at)?;
        // Read strictly in order: they are in force when the message is.
        let frames = self.settings(at, options, None);
        // No control's, and in line with those of controls.
        self.await_settings(at, None, options, &frames);
        for frame in &frames {
            out.send(frame);
        }
        self.give(at, submission, content, None, out);
        Ok(())
    }

    pub(super) fn steer(
        &mut self,
        at: usize,
        turn: &ProviderTurn,
        submission: &SubmissionId,
        content: &[ContentBlock],
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        self.may_give(at)?;
        // Where that turn is over the message starts the next one.
        let into = self.sessions.slot(at).state.turn_id().filter(|running| running == turn);
        self.give(at, submission, content, into, out);
        Ok(())
    }

    fn may_give(&self, at: usize) -> Result<(), CannotTell> {
        let slot = self.sessions.slot(at);
        if !slot.state.open {
            return Err(CannotTell::NoThread(slot.session.clone()));
        }
        match (&slot.state.input, &slot.state.command) {
            (None, None) => Ok(()),
            _ => Err(CannotTell::InputUntaken(slot.session.clone())),
        }
    }

    fn give(
        &mut self,
        at: usize,
        submission: &SubmissionId,
        content: &[ContentBlock],
        into: Option<ProviderTurn>,
        out: &mut Translated,
    ) {
        if into.is_none() {
            // It takes back what was asked again: a new message drops calls without a result (measured).
            let thread = self.sessions.change(at);
            thread.requests.retain(|_, request| !request.of_transcript);
            thread.taken_up = None;
        }
        let submission = submission.clone();
        out.send_message(&wire::user_message(&submission, content), &submission);
        self.sessions.change(at).input = Some(Input { submission, into, echoed: false, stopped: false });
    }

    pub(super) fn interrupt(&mut self, at: usize, out: &mut Translated) -> Result<(), CannotTell> {
        let slot = self.sessions.slot(at);
        if !slot.state.open {
            return Err(CannotTell::NoThread(slot.session.clone()));
        }
        let thread = self.sessions.change(at);
        if let Some(input) = &mut thread.input {
            // What waits in the agent's own queue would be run at once after the stop.
            input.stopped = true;
            let request = json!({ "message_uuid": input.submission });
            let withdraw = Asked::Withdraw(input.submission.clone());
            out.send_urgent(&withdraw.frame(request, "cancel_async_message"));
        }
        if let Some(turn) = &mut thread.turn {
            turn.stopped = true;
        }
        out.send_urgent(&Asked::Interrupt.frame(json!({}), "interrupt"));
        Ok(())
    }

    /// The agent says whether a message could be taken out of its queue. Where not, the message was taken or is not
    /// read yet, and its turn is stopped when it begins.
    pub(super) fn withdrawal_answered(
        &mut self,
        at: usize,
        submission: SubmissionId,
        answer: &Value,
        out: &mut Translated,
    ) {
        let cancelled = answer.pointer("/response/cancelled") == Some(&Value::Bool(true));
        let thread = &self.sessions.slot(at).state;
        let Some(input) = thread.input.as_ref().filter(|input| cancelled && input.submission == submission)
        else {
            return;
        };
        let event = match input.into {
            Some(_) => AgentEvent::SteerRefused { submission, why: SteerRefusal::TurnOver },
            None => AgentEvent::InputAbsent { submission },
        };
        self.sessions.change(at).input = None;
        self.say(at, event, out);
    }

    /// The echo of the untaken input: the proof that the agent has it.
    pub(super) fn echoed(&mut self, at: usize, out: &mut Translated) {
        let thread = &self.sessions.slot(at).state;
        if thread.turn.is_none() && thread.works {
            // Between two turns: the next one takes it, and says so.
            if let Some(input) = &mut self.sessions.change(at).input {
                input.echoed = true;
            }
            return;
        }
        self.taken(at, TakenProof::ReplayEcho, out);
    }

    /// The untaken input is with the agent: in the running turn, if one runs.
    fn taken(&mut self, at: usize, proof: TakenProof, out: &mut Translated) {
        let thread = self.sessions.change(at);
        let Some(input) = thread.input.take() else { return };
        let begins = thread.turn.as_mut().filter(|turn| !turn.origin_known && input.into.is_none());
        let shown = begins.map(|turn| {
            turn.origin_known = true;
            AgentEvent::TurnStarted {
                turn: turn.id.clone(),
                origin: Origin::Message,
                submission: Some(input.submission.clone()),
            }
        });
        if let Some(shown) = shown {
            self.say(at, shown, out);
        }
        self.say(at, AgentEvent::InputTaken { submission: input.submission, proof }, out);
    }

    /// `init`: a turn begins. It also says what is in force.
    pub(super) fn turn_begins(&mut self, at: usize, line: &Value, record_at: i64, out: &mut Translated) {
        self.session_named(at, text(line, "session_id"), out);
        self.open_turn(at, text(line, "uuid"), record_at, out);
        self.reported(at, text(line, "model"), text(line, "permissionMode"), out);
    }

    /// Begins a turn if none runs. Its id is the id of the line that shows it.
    pub(super) fn open_turn(&mut self, at: usize, uuid: Option<&str>, record_at: i64, out: &mut Translated) {
        if self.sessions.slot(at).state.turn.is_some() {
            return;
        }
        let id = uuid.map_or_else(|| ProviderTurn(format!("turn.{record_at}")), ProviderTurn::from);
        let thread = self.sessions.change(at);
        let notified = std::mem::take(&mut thread.notified);
        let echoed = thread.input.as_ref().is_some_and(|input| input.echoed);
        let awaited = thread.input.as_ref().filter(|input| input.into.is_none() && !echoed && !notified);
        let awaited = awaited.map(|input| (input.submission.clone(), input.stopped));
        // With a message on its way it may be either's turn: the echo, or the result, tells.
        let on_its_way = thread.input.as_ref().is_some_and(|input| input.into.is_none());
        let origin = if notified && !on_its_way { Origin::Task } else { Origin::Unknown };
        let turn = Turn { id: id.clone(), origin_known: origin == Origin::Task, stopped: false, error: None };
        thread.turn = Some(turn);
        if !echoed {
            self.say(at, AgentEvent::TurnStarted { turn: id.clone(), origin, submission: None }, out);
        }
        // The agent reads in order, and nothing is given behind a command that has not begun: with a message on its way, or
        // after a task's word, the turn is theirs and the command's is still to come.
        let of_command = !notified && self.sessions.slot(at).state.input.is_none();
        if echoed {
            self.taken(at, TakenProof::ReplayEcho, out);
        }
        if of_command {
            self.command_begun(at, out);
        }
        let Some((submission, stopped)) = awaited else { return };
        // The proof comes after the turn's first words; the message stands before them, as not yet proven.
        let fields = ItemFields {
            status: Some(ItemStatus::Pending),
            submission: Some(submission.clone()),
            ..ItemFields::default()
        };
        let key = ItemKey::of_message(&submission);
        self.say(
            at,
            AgentEvent::ItemStarted { key, turn: Some(id), kind: ItemKind::UserMessage, fields },
            out,
        );
        if stopped {
            // The stop may have overtaken the message that it was meant for.
            out.send_urgent(&Asked::Interrupt.frame(json!({}), "interrupt"));
            if let Some(turn) = &mut self.sessions.change(at).turn {
                turn.stopped = true;
            }
        }
    }

    pub(super) fn status(&mut self, at: usize, line: &Value, record_at: i64, out: &mut Translated) {
        if text(line, "status") == Some("compacting") {
            // Comes before the turn's `init`, and may take long.
            self.open_turn(at, text(line, "uuid"), record_at, out);
        }
        self.reported(at, None, text(line, "permissionMode"), out);
    }

    pub(super) fn state_changed(&mut self, at: usize, line: &Value, out: &mut Translated) {
        let works = text(line, "state") != Some("idle");
        if self.sessions.slot(at).state.works != works {
            self.sessions.change(at).works = works;
        }
        if works {
            return;
        }
        if self.sessions.slot(at).state.turn.is_some() {
            let failure = Failure {
                provider: Some(line.clone()),
                ..Failure::new(FailureCode::Protocol, "the agent stopped working without a result")
            };
            self.end_turn(at, End::failed(failure), None, out);
        }
        if self.sessions.slot(at).state.input.as_ref().is_some_and(|input| input.echoed) {
            // Echoed, and no turn came of it: the agent knew it already.
            self.taken(at, TakenProof::ReplayEcho, out);
        }
    }

    pub(super) fn result(&mut self, at: usize, line: &Value, out: &mut Translated) {
        if !self.sessions.slot(at).state.open && self.sessions.slot(at).state.turn.is_none() {
            self.refused_at_start(at, line, out);
            return;
        }
        self.open_turn(at, text(line, "uuid"), 0, out);
        let by_task = line.pointer("/origin/kind").and_then(Value::as_str) == Some("task-notification");
        let thread = &self.sessions.slot(at).state;
        let Some(turn) = thread.turn.clone() else { return };
        if by_task && !turn.origin_known {
            let shown =
                AgentEvent::TurnStarted { turn: turn.id.clone(), origin: Origin::Task, submission: None };
            self.say(at, shown, out);
        } else if !turn.origin_known && thread.input.as_ref().is_some_and(|input| input.into.is_none()) {
            // Not echoed, and nobody else caused it: a local command, or stopped before the first word.
            self.taken(at, TakenProof::SolePrompt, out);
        }
        let cut = self.cut_streaming(at, out);
        let end = End::of(line, &turn, cut);
        let usage = json!({
            "usage": line.get("usage"),
            "modelUsage": line.get("modelUsage"),
            "total_cost_usd": line.get("total_cost_usd"),
        });
        let counter = counted(line);
        if counter != Spent::default() {
            self.say(at, AgentEvent::Spent { counter, of_process: true }, out);
        }
        self.end_turn(at, end, Some(usage), out);
    }

    fn end_turn(&mut self, at: usize, end: End, usage: Option<Value>, out: &mut Translated) {
        self.cut_streaming(at, out);
        let thread = self.sessions.change(at);
        let Some(turn) = thread.turn.take() else { return };
        if let Some(input) = &mut thread.input {
            // It stays in the agent's queue and starts the next turn.
            input.into = None;
        }
        // An open form of an MCP server is not withdrawn by a stop (measured); the session closes requests of a turn.
        thread.requests.retain(|_, request| request.turn.as_ref() != Some(&turn.id));
        thread.waiting.retain(|waiting| waiting.request.turn.as_ref() != Some(&turn.id));
        let End { outcome, stop_reason, failure } = end;
        self.say(at, AgentEvent::TurnEnded { turn: turn.id, outcome, stop_reason, failure, usage }, out);
    }

    /// Says something about the session's options where a request of ours failed.
    pub(super) fn warn_at(&self, at: usize, message: String, out: &mut Translated) {
        self.say(at, AgentEvent::Notice { level: NoticeLevel::Warning, message, provider: None }, out);
    }
}

/// What a result says about its turn.
struct End {
    outcome: Outcome,
    stop_reason: Option<StopReason>,
    failure: Option<Failure>,
}

impl End {
    fn failed(failure: Failure) -> Self {
        Self { outcome: Outcome::Failed, stop_reason: None, failure: Some(failure) }
    }

    fn plain(outcome: Outcome, stop_reason: Option<StopReason>) -> Self {
        Self { outcome, stop_reason, failure: None }
    }

    fn of(line: &Value, turn: &Turn, cut: bool) -> Self {
        let subtype = text(line, "subtype").unwrap_or_default();
        let is_error = line.get("is_error") == Some(&Value::Bool(true));
        let aborted = text(line, "terminal_reason").is_some_and(|reason| reason.starts_with("aborted"));
        if aborted {
            return Self::plain(Outcome::Cancelled, Some(StopReason::Cancelled));
        }
        let failure = |code, fallback: &str| Failure {
            provider: Some(provider_words(line, turn)),
            ..Failure::new(code, result_words(line).unwrap_or_else(|| fallback.to_owned()))
        };
        match subtype {
            "error_max_turns" => {
                return Self {
                    failure: Some(failure(FailureCode::Limit, "the limit of requests in a turn was reached")),
                    ..Self::plain(Outcome::Limit, Some(StopReason::MaxTurnRequests))
                };
            }
            "error_max_budget_usd" => {
                return Self {
                    failure: Some(failure(FailureCode::Budget, "the process's budget is used up")),
                    ..Self::plain(Outcome::Limit, None)
                };
            }
            "success" if !is_error && cut => {
                let message = "the connection to the model was lost in the middle of its message";
                return Self::failed(Failure {
                    provider: Some(provider_words(line, turn)),
                    ..Failure::new(FailureCode::Network, message)
                });
            }
            "success" if !is_error => {}
            _ => {
                let status = line.get("api_error_status").and_then(Value::as_u64);
                let code = failure_code(turn.error.as_deref(), status);
                return Self::failed(failure(code, "the agent gave no reason"));
            }
        }
        match text(line, "stop_reason") {
            Some("max_tokens") => Self::plain(Outcome::Limit, Some(StopReason::MaxTokens)),
            Some("refusal") => Self::plain(Outcome::Refused, Some(StopReason::Refusal)),
            _ => Self::plain(Outcome::Completed, Some(StopReason::EndTurn)),
        }
    }
}

/// What an API error is to us, by the agent's word for it and the HTTP status; status 0: there was no answer.
pub(super) fn failure_code(error: Option<&str>, status: Option<u64>) -> FailureCode {
    match (error, status) {
        (Some("authentication_failed" | "oauth_org_not_allowed"), _) | (_, Some(401)) => FailureCode::SignIn,
        (Some("rate_limit" | "billing_error"), _) | (_, Some(429)) => FailureCode::Limit,
        (Some("overloaded"), _) | (_, Some(529 | 503)) => FailureCode::Overloaded,
        (_, Some(0)) => FailureCode::Network,
        _ => FailureCode::Provider,
    }
}

/// What went wrong, in the agent's words.
fn result_words(line: &Value) -> Option<String> {
    let errors = line.get("errors").and_then(Value::as_array);
    let errors: Vec<&str> = errors.into_iter().flatten().filter_map(Value::as_str).collect();
    let words = text(line, "result").map_or_else(|| errors.join("; "), str::to_owned);
    (!words.is_empty()).then_some(words)
}

/// The parts of a result that say why.
fn provider_words(line: &Value, turn: &Turn) -> Value {
    json!({
        "subtype": line.get("subtype"),
        "error": turn.error,
        "api_error_status": line.get("api_error_status"),
        "terminal_reason": line.get("terminal_reason"),
        "errors": line.get("errors"),
    })
}

/// What this process used so far: both counters go on from turn to turn and begin with the process (measured).
fn counted(line: &Value) -> Spent {
    const TOKENS: [&str; 4] =
        ["inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens"];
    let models = line.get("modelUsage").and_then(Value::as_object);
    let of_model = |model: &Value| TOKENS.iter().filter_map(|name| model.get(name)?.as_u64()).sum::<u64>();
    let tokens = models.filter(|models| !models.is_empty()).map(|models| models.values().map(of_model).sum());
    let dollars = line.get("total_cost_usd").and_then(Value::as_f64).filter(|dollars| *dollars >= 0.0);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and a cost beyond u64 is the largest there is"
    )]
    let cost_micros = dollars.map(|dollars| (dollars * 1_000_000.0).round() as u64);
    Spent { tokens, cost_micros }
}
