//! What is asked of the server beside messages and answers: settings, goals, compaction, reviews, commands, stops of
//! what runs beside the turn, going back. Each has one answer, and ends once.

use super::state::{Asked, Handshake, PendingSettings, Phase};
use super::{CodexAdapter, catalogue, errors, goals, threads};
use crate::adapter::{CannotTell, Translated};
use crate::rpc::RpcError;
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::work::{Control, ControlEnd};
use mainstay_core::{AgentEvent, ControlId, ProviderTurn, SessionOptions, ThreadId};
use serde_json::{Value, json};

/// What the answer to a control means beside yes or no.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) enum After {
    /// Nothing.
    Nothing,
    /// The server tells the settings in force soon after: they decide.
    Settings(SessionOptions),
    /// Which goal there is; true: none.
    Goal { cleared: bool },
    /// The history is read: it must not have this turn any more.
    Reverted(ProviderTurn),
}

/// What is asked, and what its answer means.
struct Question {
    method: &'static str,
    params: Value,
    after: After,
}

impl CodexAdapter {
    pub(super) fn control(
        &mut self,
        at: usize,
        id: &ControlId,
        control: &Control,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let session = self.sessions.slot(at).session.clone();
        if !self.ready() {
            return match &self.connection.handshake {
                Handshake::Failed(failure) => {
                    let end = ControlEnd::Refused { failure: failure.clone() };
                    out.say(&session, AgentEvent::ControlEnded { control: id.clone(), end });
                    Ok(())
                }
                _ => Err(CannotTell::NotConnected),
            };
        }
        let state = &self.sessions.slot(at).state;
        let Some(thread) = state.thread.clone().filter(|_| state.phase == Phase::Open) else {
            return Err(CannotTell::NoThread(session));
        };
        let question = match self.question(at, &thread, control) {
            Ok(question) => question,
            Err(failure) => {
                let end = ControlEnd::Refused { failure };
                out.say(&session, AgentEvent::ControlEnded { control: id.clone(), end });
                return Ok(());
            }
        };
        if matches!(control, Control::PauseGoal) {
            self.sessions.change(at).goal_pausing = true;
        }
        if let Control::SetOptions { changed, .. } = control
            && changed.thinking.is_some()
        {
            let message = "this agent has no `thinking`: it has no effect here".to_owned();
            out.say(&session, AgentEvent::Notice { level: NoticeLevel::Warning, message, provider: None });
        }
        let asked = Asked::Control { session, control: id.clone(), after: question.after };
        let frame = self.ask(asked, question.method, question.params);
        if control.stops() {
            out.send_urgent(&frame);
        } else {
            out.send(&frame);
        }
        Ok(())
    }

    /// What to ask for a control; the failure says why it cannot be asked now.
    fn question(&self, at: usize, thread: &ThreadId, control: &Control) -> Result<Question, Failure> {
        let state = &self.sessions.slot(at).state;
        let plain = |method, params| Ok(Question { method, params, after: After::Nothing });
        let refused = |message: &str| Err(Failure::new(FailureCode::AgentRefused, message));
        match control {
            Control::SetOptions { changed, .. } => {
                let model = changed.model.as_ref().or(state.in_force.model.as_ref());
                catalogue::check_options(&self.models, model, changed)?;
                let mut params =
                    threads::changed_settings(changed, &state.in_force, &self.sessions.slot(at).context)?;
                params["threadId"] = json!(thread);
                let after = After::Settings(SessionOptions::clone(changed));
                Ok(Question { method: "thread/settings/update", params, after })
            }
            Control::SetGoal { objective, token_budget } => {
                let params = json!({ "threadId": thread, "objective": objective, "status": "active", "tokenBudget": token_budget });
                Ok(Question { method: goals::SET, params, after: After::Goal { cleared: false } })
            }
            Control::PauseGoal | Control::ResumeGoal => {
                let status = if matches!(control, Control::PauseGoal) { "paused" } else { "active" };
                let params = json!({ "threadId": thread, "status": status });
                Ok(Question { method: goals::SET, params, after: After::Goal { cleared: false } })
            }
            Control::ClearGoal => Ok(Question {
                method: goals::CLEAR,
                params: json!({ "threadId": thread }),
                after: After::Goal { cleared: true },
            }),
            Control::StopTask { key } => match state.background_process(key) {
                Some(process) => plain(
                    "thread/backgroundTerminals/terminate",
                    json!({ "threadId": thread, "processId": process }),
                ),
                None => refused("the command is over, or the agent gave it no id to stop it by"),
            },
            Control::StopChild { thread: child } => {
                let turn =
                    state.children.iter().find(|of| of.thread == *child).and_then(|of| of.turn.clone());
                match turn {
                    Some(turn) => plain("turn/interrupt", json!({ "threadId": child, "turnId": turn })),
                    None => refused("nothing runs in the sub-agent's thread"),
                }
            }
            Control::StopBackground => {
                plain("thread/backgroundTerminals/clean", json!({ "threadId": thread }))
            }
            // Both would interrupt a running turn without a word (measured).
            Control::Compact { .. } | Control::Review { .. }
                if state.running.is_some() || state.input.is_some() =>
            {
                refused("a turn runs; it would be interrupted")
            }
            Control::Compact { .. } => plain("thread/compact/start", json!({ "threadId": thread })),
            Control::Review { instructions } => {
                let target = match instructions {
                    Some(instructions) => json!({ "type": "custom", "instructions": instructions }),
                    None => json!({ "type": "uncommittedChanges" }),
                };
                plain("review/start", json!({ "threadId": thread, "target": target, "delivery": "inline" }))
            }
            Control::Shell { command } => {
                plain("thread/shellCommand", json!({ "threadId": thread, "command": command }))
            }
            Control::Rename { name } => plain("thread/name/set", json!({ "threadId": thread, "name": name })),
            Control::Rewind { files: true, .. } => refused("the agent does not put files back"),
            Control::Rewind { before, .. } => {
                let params = json!({ "threadId": thread, "beforeTurnId": before.turn });
                Ok(Question { method: "thread/revert", params, after: After::Reverted(before.turn.clone()) })
            }
            Control::Clear => refused("the agent empties no context; begin a new session"),
        }
    }

    pub(super) fn control_answered(
        &mut self,
        at: usize,
        control: ControlId,
        after: After,
        result: Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let session = self.sessions.slot(at).session.clone();
        if self.sessions.slot(at).state.goal_pausing && matches!(after, After::Goal { .. }) {
            self.sessions.change(at).goal_pausing = false;
        }
        let result = match result {
            Ok(result) => result,
            Err(error) => {
                let end = ControlEnd::Refused { failure: errors::refusal_failure(&error) };
                out.say(&session, AgentEvent::ControlEnded { control, end });
                return;
            }
        };
        match after {
            After::Nothing => {}
            After::Goal { cleared } => self.goal_answered(at, cleared, &result, out),
            After::Settings(wanted) => {
                if !wanted.is_in(&self.sessions.slot(at).state.in_force) {
                    // The settings in force come with a word of their own, right after (measured).
                    self.sessions.change(at).settings.push(PendingSettings { control, wanted });
                    return;
                }
            }
            After::Reverted(turn) => {
                self.prove_reverted(at, control, turn, out);
                return;
            }
        }
        out.say(&session, AgentEvent::ControlEnded { control, end: ControlEnd::Done });
    }

    /// The settings in force were told: what was asked for is confirmed, or was not taken.
    pub(super) fn settle_settings(&mut self, at: usize, out: &mut Translated) {
        if self.sessions.slot(at).state.settings.is_empty() {
            return;
        }
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let pending = std::mem::take(&mut thread.settings);
        let in_force = thread.in_force.clone();
        for PendingSettings { control, wanted } in pending {
            let end = if wanted.is_in(&in_force) {
                ControlEnd::Done
            } else {
                let message = "the agent took the options and has others in force";
                ControlEnd::Refused { failure: Failure::new(FailureCode::AgentRefused, message) }
            };
            out.say(&session, AgentEvent::ControlEnded { control, end });
        }
    }

    fn prove_reverted(&mut self, at: usize, control: ControlId, turn: ProviderTurn, out: &mut Translated) {
        let slot = self.sessions.slot(at);
        let params = json!({ "threadId": slot.state.thread, "sortDirection": "desc", "itemsView": "summary", "limit": 1 });
        let asked = Asked::RevertProof { session: slot.session.clone(), control, turn };
        self.read(asked, "thread/turns/list", params, out);
    }

    pub(super) fn revert_proven(
        &mut self,
        at: usize,
        control: ControlId,
        turn: &ProviderTurn,
        result: &Result<Value, RpcError>,
        out: &mut Translated,
    ) {
        let newest = match result {
            Ok(result) => result.pointer("/data/0/id").and_then(Value::as_str).map(ProviderTurn::from),
            Err(error) if errors::classify(error) == errors::Refused::NotMaterialized => None,
            Err(error) => {
                let failure = Failure::new(
                    FailureCode::Protocol,
                    format!("the agent went back, and its history cannot be read: {}", error.message),
                );
                let session = &self.sessions.slot(at).session;
                out.say(session, AgentEvent::ControlEnded { control, end: ControlEnd::Refused { failure } });
                return;
            }
        };
        let session = self.sessions.slot(at).session.clone();
        let thread = self.sessions.change(at);
        let end = if newest.as_ref() == Some(turn) {
            let message = "the agent says that it went back, and its history still has the turn";
            ControlEnd::Refused { failure: Failure::new(FailureCode::Protocol, message) }
        } else {
            match newest {
                Some(newest) => thread.saw_end_of(newest.as_str()),
                None => thread.seen = super::state::Seen::FromTheStart,
            }
            ControlEnd::Done
        };
        out.say(&session, AgentEvent::ControlEnded { control, end });
    }

    /// The connection is gone: whether what was asked on it was done is not known.
    pub(super) fn controls_lost(&mut self, asked: Vec<Asked>, out: &mut Translated) {
        let mut lost: Vec<_> = asked
            .into_iter()
            .filter_map(|asked| match asked {
                Asked::Control { session, control, .. } | Asked::RevertProof { session, control, .. } => {
                    Some((session, control))
                }
                _ => None,
            })
            .collect();
        for at in self.sessions.positions() {
            if self.sessions.slot(at).state.settings.is_empty() {
                continue;
            }
            let session = self.sessions.slot(at).session.clone();
            let settings = std::mem::take(&mut self.sessions.change(at).settings);
            lost.extend(settings.into_iter().map(|pending| (session.clone(), pending.control)));
        }
        self.say_lost(lost, out);
    }

    /// Leaves the thread: its process goes on with others.
    pub(super) fn close_thread(&mut self, at: usize, out: &mut Translated) -> Result<(), CannotTell> {
        let slot = self.sessions.slot(at);
        let (session, thread) = (slot.session.clone(), slot.state.thread.clone());
        let Some(thread) = thread.filter(|_| slot.state.phase == Phase::Open && self.ready()) else {
            // Nothing that could be left: not open, or open on a connection that is gone.
            self.thread_left(at, out);
            return Ok(());
        };
        let asked = Asked::Close { session };
        let frame = self.ask(asked, "thread/unsubscribe", json!({ "threadId": thread }));
        out.send(&frame);
        Ok(())
    }

    pub(super) fn thread_left(&mut self, at: usize, out: &mut Translated) {
        let session = self.sessions.slot(at).session.clone();
        // A refusal says that it is not loaded: it is left all the same.
        *self.sessions.change(at) = super::state::Thread::default();
        self.sessions.index_thread(at);
        out.say(&session, AgentEvent::ThreadClosed);
    }
}

/// Whether all options that are named are in force.
trait Wanted {
    fn is_in(&self, in_force: &SessionOptions) -> bool;
}

impl Wanted for SessionOptions {
    fn is_in(&self, in_force: &SessionOptions) -> bool {
        [
            (&self.model, &in_force.model),
            (&self.effort, &in_force.effort),
            (&self.tier, &in_force.tier),
            (&self.mode, &in_force.mode),
            (&self.sandbox, &in_force.sandbox),
            (&self.approval, &in_force.approval),
            (&self.personality, &in_force.personality),
        ]
        .into_iter()
        .all(|(wanted, in_force)| wanted.is_none() || wanted == in_force)
    }
}
