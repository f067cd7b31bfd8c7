//! A conversation that is brought here with its past, read from the agent's own
//! files while no agent runs.

use super::{Moment, Out, Session};
use crate::agent::{AgentEvent, NoticeLevel};
use crate::event::{Event, ThreadOrigin};
use crate::{ProviderTurn, ThreadId};

/// What became of reading the past of a conversation that is brought here.
#[derive(Debug, Clone, PartialEq)]
pub enum Past {
    /// All of it, as an adapter would have said it: whole turns with whole items, in order.
    Whole(Vec<AgentEvent>),
    /// Nothing of it is taken over: why, for people.
    LeftOut(String),
}

impl Session {
    /// Takes over the past of the conversation that the session is created with. Only for a session that has no process
    /// and no conversation yet; what is not about turns and items is left alone.
    pub fn begin_with_past(&mut self, thread: ThreadId, past: Past, moment: &Moment<'_>, out: &mut Out) {
        let said = match past {
            Past::Whole(said) => said,
            Past::LeftOut(why) => {
                let message = format!("the past of the conversation is not shown here: {why}");
                return self.notice(NoticeLevel::Warning, message, moment, out);
            }
        };
        // Before its turns, which belong to it.
        let turns = said.iter().filter(|event| matches!(event, AgentEvent::TurnStarted { .. })).count();
        let (how, brought_turns) = (ThreadOrigin::Adopted, turns as u64);
        let linked = Event::ThreadLinked { thread, how, previous: None, cut: 0, brought_turns };
        self.emit(out, moment.now, linked);
        for event in said {
            match event {
                AgentEvent::TurnStarted { turn, origin, submission } => {
                    self.turn_started(turn, origin, submission, moment, out);
                }
                AgentEvent::TurnEnded { turn, outcome, stop_reason, failure, usage } => {
                    self.turn_ended(&turn, outcome, stop_reason, failure, usage, moment, out);
                }
                AgentEvent::ItemCompleted { key, turn, kind, status, text, fields } => {
                    self.item_completed(&key, turn.as_ref(), kind, status, text, fields, moment, out);
                }
                _ => {}
            }
        }
    }

    /// The last turn of its conversation that the journal shows, where one ended.
    #[must_use]
    pub fn last_shown_turn(&self) -> Option<&ProviderTurn> {
        self.past_turns.back().map(|past| &past.point.turn)
    }
}
