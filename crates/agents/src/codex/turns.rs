//! Turns: started, interrupted, ended, and what streams in between.

use super::state::{
    Asked, Input, Interrupt, Look, Lookup, MAX_INTERRUPT_TRIES, Named, Phase, Running, TurnFailure,
};
use super::{CodexAdapter, errors, items, threads, warn};
use crate::adapter::{CannotTell, Translated};
use crate::rpc::{self, RpcError};
use crate::sessions;
use mainstay_core::agent::{NoticeLevel, TakenProof};
use mainstay_core::content::{ContentBlock, Failure, FailureCode, ItemFields, ItemKind, Origin, Outcome};
use mainstay_core::{AgentEvent, ItemKey, ProviderTurn, SessionOptions, SubmissionId};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// A piece of streamed text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeltaParams<'a> {
    #[serde(borrow)]
    thread_id: Cow<'a, str>,
    #[serde(borrow)]
    turn_id: Cow<'a, str>,
    #[serde(borrow)]
    item_id: Cow<'a, str>,
    #[serde(borrow)]
    delta: Cow<'a, str>,
}

fn delta_kind(method: &str) -> Option<ItemKind> {
    match method {
        "item/agentMessage/delta" => Some(ItemKind::AgentMessage),
        "item/reasoning/summaryTextDelta" | "item/reasoning/textDelta" => Some(ItemKind::AgentThought),
        "item/plan/delta" => Some(ItemKind::Plan),
        "item/commandExecution/outputDelta" | "item/fileChange/outputDelta" => Some(ItemKind::ToolCall),
        _ => None,
    }
}

/// Notifications that say nothing which is not said otherwise: lists of other clients, counters of what was read, the
/// whole diff of a turn whose changes are items.
const SILENT: [&str; 8] = [
    "thread/started",
    "thread/status/changed",
    "thread/readState/changed",
    "thread/goal/cleared",
    "account/rateLimits/updated",
    "remoteControl/status/changed",
    "turn/diff/updated",
    "mcpServer/startupStatus/updated",
];

impl CodexAdapter {
    pub(super) fn notification(
        &mut self,
        bytes: &[u8],
        method: &str,
        params: Option<&RawValue>,
        out: &mut Translated,
    ) {
        if let Some(kind) = delta_kind(method)
            && let Ok(delta) = serde_json::from_str::<DeltaParams<'_>>(params.map_or("null", RawValue::get))
            && let Some(at) = self.sessions.of_thread(&delta.thread_id)
        {
            self.retry_interrupt(at, out);
            let event = AgentEvent::ItemDelta {
                key: ItemKey(delta.item_id.into_owned()),
                turn: Some(ProviderTurn(delta.turn_id.into_owned())),
                kind,
                text: delta.delta.into_owned(),
            };
            out.say(&self.sessions.slot(at).session, event);
            return;
        }
        let params = rpc::body(params);
        let thread = params.get("threadId").and_then(Value::as_str);
        if let Some(at) = thread.and_then(|thread| self.sessions.of_thread(thread)) {
            if self.of_thread(at, method, params, out) == Modelled::No {
                let frame = rpc::whole(bytes);
                out.say(
                    &self.sessions.slot(at).session,
                    AgentEvent::Unmodelled { name: method.to_owned(), frame },
                );
            }
            // After the record: it may have started the turn, or ended it.
            self.retry_interrupt(at, out);
            return;
        }
        match method {
            "configWarning" | "deprecationNotice" if thread.is_none() => {
                let message = params.get("summary").and_then(Value::as_str).unwrap_or(method).to_owned();
                out.say_all(AgentEvent::Notice { level: NoticeLevel::Info, message, provider: Some(params) });
            }
            _ if SILENT.contains(&method) => {}
            // Of a thread that no session has (a sub-agent's, another client's): told to the only session there is, or
            // to nobody, because it cannot be known whom it concerns.
            _ if thread.is_none() || self.sessions.only_one_bound() => {
                out.say_all(AgentEvent::Unmodelled { name: method.to_owned(), frame: rpc::whole(bytes) });
            }
            _ => {}
        }
    }

    fn of_thread(&mut self, at: usize, method: &str, params: Value, out: &mut Translated) -> Modelled {
        let session = self.sessions.slot(at).session.clone();
        let text = |name: &str| params.get(name).and_then(Value::as_str).unwrap_or_default();
        match method {
            "turn/started" => match params.pointer("/turn/id").and_then(Value::as_str) {
                Some(turn) => self.turn_started(at, turn, out),
                None => return Modelled::No,
            },
            "turn/completed" => match params.get("turn").filter(|turn| turn.get("id").is_some()) {
                Some(turn) if self.reads_what_was_missed(at) && self.hold_end(at, turn) => {}
                Some(turn) => self.turn_completed(at, turn, out),
                None => return Modelled::No,
            },
            "item/started" | "item/completed" => {
                let Some(item) = params.get("item") else { return Modelled::No };
                return self.item(at, method == "item/started", text("turnId"), item, out);
            }
            "item/reasoning/summaryPartAdded" => {
                // Written as it stands in the whole text, so that both are the same.
                if params.get("summaryIndex").and_then(Value::as_u64).is_some_and(|index| index > 0) {
                    let (key, turn) =
                        (ItemKey::from(text("itemId")), Some(ProviderTurn::from(text("turnId"))));
                    let (kind, text) = (ItemKind::AgentThought, items::SUMMARY_SEPARATOR.to_owned());
                    out.say(&session, AgentEvent::ItemDelta { key, turn, kind, text });
                }
            }
            "item/fileChange/patchUpdated" => {
                let content = params.get("changes").and_then(items::change_blocks);
                let fields = ItemFields { content, ..ItemFields::default() };
                out.say(&session, AgentEvent::ItemUpdated { key: ItemKey::from(text("itemId")), fields });
            }
            "thread/status/changed" => {
                let closed =
                    params.pointer("/status/type").and_then(Value::as_str) == Some(threads::NOT_LOADED);
                self.status_changed(at, closed, out);
            }
            "thread/closed" => self.status_changed(at, true, out),
            "serverRequest/resolved" => self.request_resolved(at, &params, out),
            "error" => self.error(at, &params, out),
            "warning" => {
                let message = text("message").to_owned();
                warn(out, &session, message, None);
            }
            "thread/tokenUsage/updated" => {
                let usage = params.get("tokenUsage").cloned().unwrap_or_default();
                out.say(&session, AgentEvent::Usage(usage));
            }
            "thread/settings/updated" => {
                let Some(settings) = params.get("threadSettings") else { return Modelled::No };
                self.took_options(at, settings, "sandboxPolicy", "effort", out);
            }
            "mcpServer/startupStatus/updated" if text("status") == "failed" => {
                let message = format!("the MCP server {} could not be started", text("name"));
                warn(out, &session, message, Some(params));
            }
            _ if SILENT.contains(&method) => {}
            _ => return Modelled::No,
        }
        Modelled::Yes
    }

    fn item(&mut self, at: usize, begins: bool, turn: &str, item: &Value, out: &mut Translated) -> Modelled {
        if item.get("type").and_then(Value::as_str) == Some("userMessage") {
            // It begins and ends at once; only the end is proof.
            if !begins {
                self.user_message(at, turn, item, TakenProof::ClientId, out);
            }
            return Modelled::Yes;
        }
        let event = if begins { items::started(turn, item) } else { items::completed(turn, item) };
        let Some(event) = event else { return Modelled::No };
        out.say(&self.sessions.slot(at).session, event);
        Modelled::Yes
    }

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
        let in_force = &mut self.sessions.change(at).in_force;
        for (name, wanted, known) in [
            ("model", &options.model, &mut in_force.model),
            ("effort", &options.effort, &mut in_force.effort),
            ("serviceTier", &options.tier, &mut in_force.tier),
            ("approvalPolicy", &options.approval, &mut in_force.approval),
        ] {
            if wanted.is_some() && wanted != known {
                params[name] = json!(wanted);
                known.clone_from(wanted);
            }
        }
        if options.sandbox.is_some()
            && options.sandbox != in_force.sandbox
            && let Some(policy) = options.sandbox.as_deref().and_then(threads::sandbox_policy)
        {
            params["sandboxPolicy"] = policy;
            in_force.sandbox.clone_from(&options.sandbox);
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
                    let failure = errors::refusal_failure(&error);
                    out.say(&session, AgentEvent::InputRejected { submission, failure });
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
        if let Some(interrupt) = &mut thread.interrupt
            && interrupt.turn.as_ref().is_none_or(|wanted| *wanted == turn)
        {
            interrupt.turn = Some(turn.clone());
            interrupt.due = true;
        }
        let origin = if known { Origin::Message } else { Origin::Unknown };
        out.say(&session, AgentEvent::TurnStarted { turn, origin, submission });
    }

    /// The end of a turn, live or found in the history.
    pub(super) fn turn_completed(&mut self, at: usize, turn: &Value, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        let id = turn.get("id").and_then(Value::as_str).unwrap_or_default();
        let thread = self.sessions.change(at);
        let kept = thread.failure.take().filter(|kept| kept.turn.as_str() == id).map(|kept| kept.failure);
        let failure = turn.get("error").filter(|error| !error.is_null()).map(errors::turn_failure).or(kept);
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
        thread.saw_end_of(id);
        let ours = thread
            .interrupt
            .take_if(|wanted| wanted.turn.as_ref().is_some_and(|of| of.as_str() == id))
            .is_some();
        thread.running.take_if(|running| running.turn.as_str() == id);
        thread.named.take_if(|named| named.turn.as_str() == id);
        // The session closes them with the turn; the server settles them without a word, or with one that comes late.
        thread.requests.retain(|_, open| open.turn.as_str() != id);
        let never_seen = thread
            .input
            .as_ref()
            .is_some_and(|input| input.lost || input.turn.as_ref().is_some_and(|turn| turn.as_str() == id));
        out.say(
            &session,
            AgentEvent::TurnEnded { turn: id.into(), outcome, stop_reason: None, failure, usage: None },
        );
        let steered = self.sessions.slot(at).state.input.as_ref().is_some_and(|input| input.steers);
        if never_seen && ours && outcome == Outcome::Interrupted && !steered {
            // Stopped before it was taken, and lost with it: only a person may want it sent again.
            self.sessions.change(at).input = None;
        } else if never_seen && self.ready() {
            self.ask_history(at, Look::first(Lookup::Settle), out);
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
        let running = slot.state.running.as_ref().map(|running| running.turn.clone());
        let is_wanted = |at: &ProviderTurn| turn.is_none_or(|wanted| wanted == at);
        if let Some(running) = running.filter(is_wanted) {
            self.sessions.change(at).interrupt = Some(Interrupt { turn: Some(running), tries: 0, due: true });
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
            thread.interrupt = Some(Interrupt { turn, tries: 0, due: false });
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
    fn retry_interrupt(&mut self, at: usize, out: &mut Translated) {
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
        let session = self.sessions.slot(at).session.clone();
        if let Some(interrupt) = &mut self.sessions.change(at).interrupt {
            interrupt.due = false;
            interrupt.tries += 1;
        }
        let params = json!({ "threadId": thread, "turnId": turn });
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
        let Some(tries) = wanted.map(|interrupt| interrupt.tries).filter(|_| state.runs(turn.as_str()))
        else {
            return;
        };
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

    fn error(&mut self, at: usize, params: &Value, out: &mut Translated) {
        let failure = errors::turn_failure(params.get("error").unwrap_or(&Value::Null));
        let turn = params.get("turnId").and_then(Value::as_str);
        match turn {
            Some(turn) if params.get("willRetry") != Some(&Value::Bool(true)) => {
                // Without the provider's own object: the end of the turn carries it, and the state stays small.
                let failure = sessions::kept(&failure);
                self.sessions.change(at).failure = Some(TurnFailure { turn: turn.into(), failure });
            }
            _ => {
                let session = self.sessions.slot(at).session.clone();
                warn(out, &session, failure.message, failure.provider);
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum Modelled {
    Yes,
    No,
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
