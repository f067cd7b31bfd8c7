//! What is asked of the agent beside messages and answers.

use super::state::{Command, OpenControl, Setting};
use super::wire::{self, Asked};
use super::{ClaudeAdapter, text};
use crate::adapter::{CannotTell, Translated};
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::work::{Control, ControlEnd};
use mainstay_core::{AgentEvent, ControlId, SessionOptions, SubmissionId};
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
            Control::SetOptions { changed, options } => {
                if let Some(failure) = super::open::unusable(changed) {
                    let end = ControlEnd::Refused { failure };
                    self.say(at, AgentEvent::ControlEnded { control: id.clone(), end }, out);
                    return Ok(());
                }
                if changed.personality.is_some() {
                    let message = "this agent has no `personality`: it has no effect here";
                    self.warn_at(at, message.to_owned(), out);
                }
                let frames = self.settings(at, changed, Some(options));
                if !self.await_settings(at, Some(id), changed, &frames) {
                    // In force already, or nothing that this agent has.
                    self.end_control(at, id.clone(), ControlEnd::Done, out);
                    return Ok(());
                }
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
            Control::Rewind { before, files } => {
                let message = before.submission.clone().filter(|_| *files);
                self.go_back(at, id, message.as_ref(), out);
            }
            Control::Rename { name } => {
                out.send(&Asked::Control(id.clone()).frame(json!({ "title": name }), "rename_session"));
            }
            other => return Err(CannotTell::Unsupported(other.capability())),
        }
        Ok(())
    }

    /// Goes back: the files first, where that is asked, since only this process knows what it changed; then the program
    /// is started anew at the point.
    fn go_back(&mut self, at: usize, id: &ControlId, files: Option<&SubmissionId>, out: &mut Translated) {
        let unknown = || "where the agent's history is to be taken up is not known".to_owned();
        let way = self.sessions.take_way_back(at).unwrap_or_else(|| Err(unknown()));
        match (way, files) {
            (Err(why), _) => {
                let failure = Failure::new(FailureCode::AgentRefused, why);
                self.end_control(at, id.clone(), ControlEnd::Refused { failure }, out);
            }
            (Ok(row), None) => {
                self.say(at, AgentEvent::GoesBack { control: id.clone(), at: row }, out);
            }
            (Ok(row), Some(message)) => {
                let request = json!({ "user_message_id": message });
                out.send(&Asked::RewindFiles(id.clone(), row).frame(request, "rewind_files"));
            }
        }
    }

    /// The files are as they were, or cannot be made so: then nothing is rewound.
    pub(super) fn files_rewound(
        &self,
        at: usize,
        control: ControlId,
        row: String,
        answer: &Value,
        out: &mut Translated,
    ) {
        let can = answer.pointer("/response/canRewind") == Some(&Value::Bool(true));
        if can {
            return self.say(at, AgentEvent::GoesBack { control, at: row }, out);
        }
        let words = text(answer, "error").or_else(|| answer.pointer("/response/error")?.as_str());
        let failure = Failure {
            provider: Some(answer.clone()),
            ..Failure::new(
                FailureCode::AgentRefused,
                format!(
                    "the agent cannot put the files back ({}); it keeps what they were only where its environment has CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING=1",
                    words.unwrap_or("no reason given")
                ),
            )
        };
        self.end_control(at, control, ControlEnd::Refused { failure }, out);
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

    /// Remembers which settings are asked for, and for which control. False: for none.
    pub(super) fn await_settings(
        &mut self,
        at: usize,
        control: Option<&ControlId>,
        asked: &SessionOptions,
        frames: &[Value],
    ) -> bool {
        let setting = |frame: &Value| Setting::of_request(text(frame, "request_id")?);
        let waits_for: Vec<Setting> = frames.iter().filter_map(setting).collect();
        if waits_for.is_empty() {
            return false;
        }
        let (id, ended) = (control.cloned().unwrap_or_else(|| ControlId::from("")), control.is_none());
        self.sessions.change(at).controls.push(OpenControl { id, waits_for, asked: asked.clone(), ended });
        true
    }

    /// The control that an answer about a setting is for, and what it asked: the first that waits for one, since the agent
    /// answers in order. It waits for that no longer. None: it was asked when the conversation was opened.
    pub(super) fn answered_control(
        &mut self,
        at: usize,
        setting: Setting,
    ) -> Option<(usize, SessionOptions)> {
        let waits = |open: &OpenControl| open.waits_for.contains(&setting);
        let place = self.sessions.slot(at).state.controls.iter().position(waits)?;
        let open = self.sessions.change(at).controls.get_mut(place)?;
        open.waits_for.retain(|waited| *waited != setting);
        Some((place, open.asked.clone()))
    }

    /// Ends the control that one of its settings was answered for, with the first refusal or the last answer.
    pub(super) fn setting_answered(
        &mut self,
        at: usize,
        place: usize,
        error: Option<&str>,
        out: &mut Translated,
    ) {
        let controls = &mut self.sessions.change(at).controls;
        let Some(open) = controls.get_mut(place) else { return };
        let all_answered = open.waits_for.is_empty();
        let ends = !open.ended && (error.is_some() || all_answered);
        open.ended |= ends;
        let control = open.id.clone();
        if all_answered {
            controls.remove(place);
        }
        if ends {
            let refused =
                |error| ControlEnd::Refused { failure: Failure::new(FailureCode::AgentRefused, error) };
            let end = error.map_or(ControlEnd::Done, refused);
            self.end_control(at, control, end, out);
        }
    }

    fn end_control(&self, at: usize, control: ControlId, end: ControlEnd, out: &mut Translated) {
        self.say(at, AgentEvent::ControlEnded { control, end }, out);
    }
}
