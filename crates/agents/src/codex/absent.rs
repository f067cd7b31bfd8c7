//! Sessions that are bound to the process by their record and are not here: their journals cannot be read just now. What
//! their threads say is kept (`early`). What was asked for them is answered to nobody: once they are back, the host makes
//! a new connection, on which they are taken up as after a lost one.

use super::CodexAdapter;
use super::state::{Asked, Phase};
use crate::adapter::Translated;
use mainstay_core::work::ControlEnd;
use mainstay_core::{AgentEvent, ControlId, SessionId};

impl CodexAdapter {
    /// An answer came for a session that is not here.
    pub(super) fn missed(&mut self, asked: Asked) {
        let Some(at) = asked.session().and_then(|session| self.sessions.place(session)) else { return };
        self.sessions.change(at).missed = true;
        if let Asked::Control { session, control, .. } | Asked::RevertProof { session, control, .. } = asked {
            self.change_connection().unheard.push((session, control));
        }
    }

    /// A new connection is there: whether the thread's session takes it up on it now. One that is not here does later.
    pub(super) fn is_taken_up(&mut self, at: usize) -> bool {
        let bound = self.sessions.is_bound(at);
        let has_thread = self.sessions.slot(at).state.phase != Phase::Closed;
        if self.sessions.slot(at).state.missed == bound && (bound || has_thread) {
            self.sessions.change(at).missed = !bound;
        }
        bound
    }

    /// The ends of these orders, and of those that were kept, will not be heard any more.
    pub(super) fn say_lost(&mut self, mut lost: Vec<(SessionId, ControlId)>, out: &mut Translated) {
        if lost.is_empty() && self.connection.unheard.is_empty() {
            return;
        }
        lost.extend(std::mem::take(&mut self.change_connection().unheard));
        for (session, control) in lost {
            if self.sessions.position(&session).is_some() {
                out.say(&session, AgentEvent::ControlEnded { control, end: ControlEnd::Lost });
            } else if self.sessions.place(&session).is_some() {
                self.change_connection().unheard.push((session, control));
            }
        }
    }

    /// Whether a session that is here now has missed something that only a new connection tells again.
    pub(super) fn somebody_missed_something(&self) -> bool {
        self.sessions.positions().any(|at| self.sessions.is_bound(at) && self.sessions.slot(at).state.missed)
    }
}
