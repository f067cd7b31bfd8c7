//! What is asked of the agent beside messages and answers.

use super::state::{Command, OpenControl, Setting};
use super::wire::{self, Asked};
use super::{ClaudeAdapter, text};
use crate::adapter::{CannotTell, Translated};
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::work::{Control, ControlEnd};
use mainstay_core::{AgentEvent, ControlId, SubmissionId};
use serde_json::{Value, json};

impl ClaudeAdapter {
    pub(super) fn control(
        &mut self,
        at: usize,
        id: &ControlId,
        control: &Control,
        out: &mut Translated,
    ) -> Result<(), CannotTell> {
        let slot = self.sessions.slot(at);
        if !slot.state.open {
            return Err(CannotTell::NoThread(slot.session.clone()));
        }
        match control {
            Control::SetOptions { changed, .. } => {
                if let Some(failure) = super::open::unknown_mode(changed) {
                    let end = ControlEnd::Refused { failure };
                    self.say(at, AgentEvent::ControlEnded { control: id.clone(), end }, out);
                    return Ok(());
                }
                let frames = self.settings(at, changed);
                let waits_for: Vec<Setting> = frames
                    .iter()
                    .filter_map(|frame| Setting::of_request(text(frame, "request_id")?))
                    .collect();
                if waits_for.is_empty() {
                    // In force already, or nothing that this agent has.
                    self.end_control(at, id.clone(), ControlEnd::Done, out);
                    return Ok(());
                }
                self.sessions.change(at).controls.push(OpenControl { id: id.clone(), waits_for });
                for frame in &frames {
                    out.send(frame);
                }
            }
            Control::StopTask { key } => self.stop_task(id, key.as_str(), out),
            Control::StopChild { thread } => self.stop_task(id, thread.as_str(), out),
            Control::Compact { instructions } => {
                let words = instructions.as_deref().map(|instructions| format!(" {instructions}"));
                self.command(at, id, &format!("/compact{}", words.unwrap_or_default()), out);
            }
            Control::Clear => self.command(at, id, "/clear", out),
            Control::Rename { name } => {
                out.send(&Asked::Control(id.clone()).frame(json!({ "title": name }), "rename_session"));
            }
            other => return Err(CannotTell::Unsupported(other.capability())),
        }
        Ok(())
    }

    fn stop_task(&self, id: &ControlId, task: &str, out: &mut Translated) {
        out.send_urgent(&Asked::Control(id.clone()).frame(json!({ "task_id": task }), "stop_task"));
    }

    /// A local command of the agent, given as a message is. It is not echoed; the turn that it begins shows it.
    fn command(&mut self, at: usize, id: &ControlId, words: &str, out: &mut Translated) {
        let uuid = SubmissionId(format!("control:{id}"));
        out.send(&wire::user_message(&uuid, &[mainstay_core::ContentBlock::text(words)]));
        self.sessions.change(at).command = Some(Command { control: id.clone() });
    }

    /// The turn of a command has begun.
    pub(super) fn command_begun(&mut self, at: usize, out: &mut Translated) {
        if self.sessions.slot(at).state.command.is_none() {
            return;
        }
        if let Some(command) = self.sessions.change(at).command.take() {
            self.end_control(at, command.control, ControlEnd::Done, out);
        }
    }

    pub(super) fn control_answered(&self, at: usize, id: ControlId, answer: &Value, out: &mut Translated) {
        let end = match text(answer, "error") {
            None => ControlEnd::Done,
            Some(error) => ControlEnd::Refused { failure: Failure::new(FailureCode::AgentRefused, error) },
        };
        self.end_control(at, id, end, out);
    }

    /// A setting is answered: those who waited for it go on.
    pub(super) fn setting_answered(
        &mut self,
        at: usize,
        setting: Setting,
        error: Option<&str>,
        out: &mut Translated,
    ) {
        if self.sessions.slot(at).state.controls.is_empty() {
            return;
        }
        let mut ended = Vec::new();
        self.sessions.change(at).controls.retain_mut(|open| {
            let waited = open.waits_for.iter().position(|waited| *waited == setting);
            let Some(place) = waited else { return true };
            open.waits_for.remove(place);
            let over = error.is_some() || open.waits_for.is_empty();
            if over {
                ended.push(open.id.clone());
            }
            !over
        });
        for id in ended {
            let end = match error {
                None => ControlEnd::Done,
                Some(error) => {
                    ControlEnd::Refused { failure: Failure::new(FailureCode::AgentRefused, error) }
                }
            };
            self.end_control(at, id, end, out);
        }
    }

    fn end_control(&self, at: usize, control: ControlId, end: ControlEnd, out: &mut Translated) {
        self.say(at, AgentEvent::ControlEnded { control, end }, out);
    }
}
