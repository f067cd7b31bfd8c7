//! The steps of an orderly end, as a pure machine: it is asked what to do now and when to ask again.

use std::time::{Duration, Instant};

use crate::spec::{LadderAction, LadderStep, SignalName, SignalTarget};

/// How often the last KILL is repeated for a process that hangs in the kernel.
const KILL_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Ladder {
    steps: Vec<LadderStep>,
    /// The step that was taken last.
    taken: Option<usize>,
    due: Instant,
}

impl Ladder {
    /// The spec's steps, and then a KILL to the whole group whatever the spec says.
    pub(super) fn new(spec: &[LadderStep], now: Instant) -> Self {
        let mut steps = spec.to_vec();
        steps.push(LadderStep {
            action: LadderAction::Signal { name: SignalName::Kill, to: SignalTarget::Group },
            deadline_ms: u64::try_from(KILL_AGAIN.as_millis()).unwrap_or(u64::MAX),
        });
        Self { steps, taken: None, due: now }
    }

    /// Goes straight to the final KILL.
    pub(super) fn skip_to_kill(&mut self, now: Instant) {
        let last = self.steps.len() - 1;
        if self.taken != Some(last) {
            self.taken = last.checked_sub(1);
            self.due = now;
        }
    }

    /// The action that is due now, at most one per call. The final KILL comes again and again.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<LadderAction> {
        if now < self.due {
            return None;
        }
        let index = self.taken.map_or(0, |taken| taken + 1).min(self.steps.len() - 1);
        let step = self.steps.get(index)?;
        self.taken = Some(index);
        self.due = now + Duration::from_millis(step.deadline_ms);
        Some(step.action.clone())
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Index of the last step taken.
    pub(super) fn taken(&self) -> Option<usize> {
        self.taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILL: LadderAction = LadderAction::Signal { name: SignalName::Kill, to: SignalTarget::Group };

    #[test]
    fn steps_follow_at_their_deadlines_and_kill_is_always_last() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let term = LadderAction::Signal { name: SignalName::Term, to: SignalTarget::Leader };
        let spec = [
            LadderStep { action: LadderAction::EndInput, deadline_ms: 100 },
            LadderStep { action: term.clone(), deadline_ms: 50 },
        ];
        let mut ladder = Ladder::new(&spec, start);
        assert_eq!(ladder.taken(), None);
        assert_eq!(ladder.take_due(start), Some(LadderAction::EndInput));
        assert_eq!(ladder.take_due(after(99)), None);
        assert_eq!(ladder.take_due(after(100)), Some(term));
        assert_eq!(ladder.take_due(after(149)), None);
        assert_eq!((ladder.take_due(after(150)), ladder.taken()), (Some(KILL), Some(2)));
        assert_eq!(ladder.take_due(after(151)), None);
        assert_eq!((ladder.take_due(after(6000)), ladder.taken()), (Some(KILL), Some(2)));
    }

    #[test]
    fn an_empty_spec_and_an_order_to_kill_go_to_kill_at_once() {
        let start = Instant::now();
        assert_eq!(Ladder::new(&[], start).take_due(start), Some(KILL));
        let patient = [LadderStep { action: LadderAction::EndInput, deadline_ms: 1_000_000 }];
        let mut ladder = Ladder::new(&patient, start);
        assert_eq!(ladder.take_due(start), Some(LadderAction::EndInput));
        ladder.skip_to_kill(start);
        assert_eq!((ladder.take_due(start), ladder.taken()), (Some(KILL), Some(1)));
        ladder.skip_to_kill(start);
        assert_eq!(ladder.take_due(start), None, "already there: not twice");
    }
}
