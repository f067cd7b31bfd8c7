//! What is asked of the agent beside messages and answers: asked once, under an id, and ended once.

use super::state::{Phase, Session};
use super::{Effect, MAX_OPEN_CONTROLS, Moment, Out, Reply};
use crate::agent::Decision;
use crate::content::{Failure, FailureCode};
use crate::event::{Event, OptionsState};
use crate::process::CloseOrder;
use crate::work::{Control, ControlEnd, HistoryPoint, Provenance};
use crate::{ControlId, Refusal, RefusalCode, SessionOptions, TurnId};

impl Session {
    /// Refuses what the agent cannot do, and what cannot be asked of it now.
    pub(super) fn check_control(&self, control: &Control, moment: &Moment<'_>) -> Result<(), Refusal> {
        if !moment.capabilities.can(control) {
            return Err(Refusal::unsupported(control.capability()));
        }
        if self.controls.len() >= MAX_OPEN_CONTROLS {
            return Err(Refusal::new(
                RefusalCode::QueueFull,
                format!("the agent has not answered {MAX_OPEN_CONTROLS} of our requests; stop it or wait"),
            ));
        }
        Ok(())
    }

    /// Whether the agent can be asked something now.
    pub(super) fn may_ask(&self) -> bool {
        self.phase == Phase::Held && self.stopping.is_none() && self.unverifiable.is_none()
    }

    /// A client's control: accepted at once, told when the agent runs and, where it needs that, is idle.
    pub(super) fn control(
        &mut self,
        what: Control,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        self.refuse_closed()?;
        self.check_control(&what, moment)?;
        self.clear_recovering(moment, out);
        let control = self.ask(what, Provenance::User, moment, out);
        self.advance(moment, out);
        Ok(Reply::Asked { control })
    }

    /// Whether the agent keeps the session's name and can be told a new one now.
    pub(super) fn may_rename(&self, moment: &Moment<'_>) -> bool {
        moment.capabilities.rename && self.may_ask() && self.controls.len() < MAX_OPEN_CONTROLS
    }

    /// Asks, and tells the agent at once where that may be. The caller has checked that the agent can.
    pub(super) fn ask(
        &mut self,
        what: Control,
        by: Provenance,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> ControlId {
        let control = ControlId(format!("c{}", self.control_count + 1));
        self.emit(out, moment.now, Event::ControlAsked { control: control.clone(), what, by });
        self.tell_controls(moment, out);
        control
    }

    /// Whether the agent does something for which its thread must have nothing else.
    pub(super) fn control_occupies(&self) -> bool {
        self.controls.iter().any(|open| open.told && open.what.needs_idle())
    }

    /// Whether the agent has something that begins a turn, or does its work without one, and shows none yet: a stop is
    /// for that.
    pub(super) fn begins_unseen(&self) -> bool {
        self.input_untaken() || self.control_occupies() || self.answered_again()
    }

    /// Whether something waits to be told.
    pub(super) fn control_waits(&self) -> bool {
        self.controls.iter().any(|open| !open.told)
    }

    /// Tells the agent what waited, as far as it may be told now.
    pub(super) fn tell_controls(&mut self, moment: &Moment<'_>, out: &mut Out) {
        if !self.may_ask() {
            return;
        }
        loop {
            let idle = self.turns.is_empty() && !self.input_untaken() && !self.control_occupies();
            let next = self.controls.iter().find(|open| !open.told && (idle || !open.what.needs_idle()));
            let Some((id, control)) = next.map(|open| (open.id.clone(), open.what.clone())) else { return };
            self.emit(out, moment.now, Event::ControlTold { control: id.clone() });
            out.effects.push(Effect::Tell(Decision::Control { id, control }));
        }
    }

    /// Withdraws what the agent was not told.
    pub(super) fn cancel_waiting_controls(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let waiting: Vec<ControlId> =
            self.controls.iter().filter(|open| !open.told).map(|open| open.id.clone()).collect();
        for control in waiting {
            self.emit(out, moment.now, Event::ControlEnded { control, end: ControlEnd::Cancelled });
        }
    }

    pub(super) fn control_ended(
        &mut self,
        control: ControlId,
        end: ControlEnd,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some(open) = self.controls.iter().find(|open| open.id == control) else { return };
        let sets_options = matches!(open.what, Control::SetOptions { .. });
        let archives = open.what == Control::ArchiveThread;
        let (rewound, end) = match (&open.what, end) {
            (Control::Rewind { before, .. }, ControlEnd::Done) => match self.turn_at(before) {
                Some(before) => (Some(before), ControlEnd::Done),
                None => (None, no_way_back()),
            },
            (_, end) => (None, end),
        };
        self.emit(out, moment.now, Event::ControlEnded { control, end: end.clone() });
        if let Some(before) = rewound {
            // Nothing runs while the agent goes back: all turns so far from this one on are gone.
            let last = Some(TurnId(format!("t{}", self.turn_count)));
            self.emit(out, moment.now, Event::ThreadRewound { before, last, resume_at: None });
        }
        if sets_options {
            self.options_settled(end, moment, out);
        } else if archives && end == ControlEnd::Done {
            self.put_away(moment, out);
        }
        self.advance(moment, out);
    }

    /// The agent has put the thread away and let it go: nothing more can be asked of it there.
    fn put_away(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let archived = Event::SessionUpdated {
            name: None,
            options: None,
            archived: Some(true),
            queue_paused: None,
            by: Provenance::User,
        };
        self.emit(out, moment.now, archived);
        self.cancel_waiting_controls(moment, out);
        self.stop_process(CloseOrder::Host, moment, out);
    }

    /// The agent goes back by its next start.
    pub(super) fn goes_back(&mut self, control: &ControlId, at: String, moment: &Moment<'_>, out: &mut Out) {
        let open = self.controls.iter().find(|open| open.id == *control);
        let Some(Control::Rewind { before, .. }) = open.map(|open| &open.what) else { return };
        let before = self.turn_at(before);
        let end = if before.is_some() { ControlEnd::Done } else { no_way_back() };
        let control = control.clone();
        self.emit(out, moment.now, Event::ControlEnded { control, end });
        if let Some(before) = before {
            let last = Some(TurnId(format!("t{}", self.turn_count)));
            self.emit(out, moment.now, Event::ThreadRewound { before, last, resume_at: Some(at) });
            // What this process has in memory is what was before.
            self.stop_process(CloseOrder::Host, moment, out);
        }
        self.advance(moment, out);
    }

    /// The turn that stands there in the provider's history, as far as it is known still.
    fn turn_at(&self, point: &HistoryPoint) -> Option<TurnId> {
        self.past_turns.iter().find(|past| past.point == *point).map(|past| past.id.clone())
    }

    /// What a process was asked that is gone.
    pub(super) fn lose_controls(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let told: Vec<ControlId> =
            self.controls.iter().filter(|open| open.told).map(|open| open.id.clone()).collect();
        for control in told {
            self.emit(out, moment.now, Event::ControlEnded { control, end: ControlEnd::Lost });
        }
    }

    fn setting_options(&self) -> bool {
        self.controls.iter().any(|open| matches!(open.what, Control::SetOptions { .. }))
    }

    /// The latest change of options ended; an earlier one says nothing of the wish that stands.
    fn options_settled(&mut self, end: ControlEnd, moment: &Moment<'_>, out: &mut Out) {
        if self.setting_options() || self.options_told.as_ref() != Some(&self.options) {
            return;
        }
        let Some(before) = self.options_before.clone() else { return };
        let event = match end {
            ControlEnd::Done => Event::OptionsUpdated {
                options: self.options.clone(),
                state: OptionsState::Confirmed,
                failure: None,
                by: Provenance::User,
            },
            ControlEnd::Refused { failure } => Event::OptionsUpdated {
                options: before,
                state: OptionsState::Reverted,
                failure: Some(failure),
                by: Provenance::Agent,
            },
            // Not known: the next start restores the wish.
            ControlEnd::Lost | ControlEnd::Cancelled => return,
        };
        self.emit(out, moment.now, event);
    }

    /// New options of a user: accepted at once, put in force as soon as that may be, the newer wish winning.
    pub(super) fn set_options(&mut self, options: SessionOptions, moment: &Moment<'_>, out: &mut Out) {
        if options == self.options {
            return;
        }
        let accepted = Event::OptionsUpdated {
            options,
            state: OptionsState::Accepted,
            failure: None,
            by: Provenance::User,
        };
        self.emit(out, moment.now, accepted);
        self.tell_options(moment, out);
    }

    /// Tells the agent the options that it was not told, where it takes them without a message.
    pub(super) fn tell_options(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let Some(told) = &self.options_told else { return };
        if !moment.capabilities.set_options
            || !self.may_ask()
            || *told == self.options
            || self.controls.len() >= MAX_OPEN_CONTROLS
        {
            return;
        }
        let changed = Box::new(self.options.differing_from(told));
        let options = Box::new(self.options.clone());
        let what = Control::SetOptions { options, changed };
        self.ask(what, Provenance::User, moment, out);
    }

    /// What the agent says is in force. It confirms a wish, or shows that the agent did not take it; what it says of
    /// the time before the wish reached it changes nothing of the wish.
    pub(super) fn options_reported(&mut self, reported: &SessionOptions, moment: &Moment<'_>, out: &mut Out) {
        let Some(before) = &self.options_before else {
            let merged = self.options.overlaid(reported);
            if merged != self.options {
                let event = Event::OptionsUpdated {
                    options: merged,
                    state: OptionsState::Confirmed,
                    failure: None,
                    by: Provenance::Unknown,
                };
                self.emit(out, moment.now, event);
            }
            return;
        };
        let told = self.options_told.as_ref() == Some(&self.options);
        // What was taken back and is still reported is of the time before, while the agent has not answered.
        let answered = told && !self.setting_options();
        let taken_back = if answered { SessionOptions::default() } else { before.without(&self.options) };
        let takes_back = taken_back != SessionOptions::default();
        let reported = &reported.differing_from(&taken_back);
        let merged = self.options.overlaid(reported);
        let wish = self.options.differing_from(before);
        // What the report says of the wished options; it may say nothing of some.
        let said = reported.without(&reported.without(&wish));
        let denied = said.differing_from(&wish) != SessionOptions::default();
        let event = if told && said == wish && !takes_back {
            Event::OptionsUpdated {
                options: merged,
                state: OptionsState::Confirmed,
                failure: None,
                by: Provenance::User,
            }
        } else if told && denied && !self.setting_options() {
            Event::OptionsUpdated {
                options: merged,
                state: OptionsState::Reverted,
                failure: Some(Failure::new(
                    FailureCode::AgentRefused,
                    "the agent has other options in force than those that were asked for",
                )),
                by: Provenance::Agent,
            }
        } else {
            let others = self.options.overlaid(&reported.without(&wish));
            if others == self.options {
                return;
            }
            Event::OptionsUpdated {
                options: others,
                state: OptionsState::Accepted,
                failure: None,
                by: Provenance::Unknown,
            }
        };
        self.emit(out, moment.now, event);
    }
}

/// Going back to a turn that the session has meanwhile lost sight of.
fn no_way_back() -> ControlEnd {
    ControlEnd::Refused {
        failure: Failure::new(
            FailureCode::AgentRefused,
            "the turn to go back to is not one of the conversation's known turns any more",
        ),
    }
}
