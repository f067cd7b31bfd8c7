//! Goals: what the agent works towards over several turns, which it starts by itself.

use super::CodexAdapter;
use crate::adapter::Translated;
use mainstay_core::content::Origin;
use mainstay_core::work::{Goal, GoalState, Provenance};
use mainstay_core::{AgentEvent, ProviderTurn};
use serde_json::Value;

pub(super) const SET: &str = "thread/goal/set";
pub(super) const CLEAR: &str = "thread/goal/clear";

impl CodexAdapter {
    /// `thread/goal/updated`: by our order where one is unanswered, by the agent where it says in which turn it reached
    /// or gave up the goal, else by nobody that is named.
    pub(super) fn goal_updated(&mut self, at: usize, params: &Value, out: &mut Translated) -> bool {
        let Some(goal) = params.get("goal").and_then(read) else { return false };
        let turn = params.get("turnId").and_then(Value::as_str);
        if let Some(turn) = turn {
            // A turn with a message would have shown it by now.
            self.turn_shows_origin(at, turn, false, out);
        }
        let by = match goal.state {
            _ if self.orders_goal(at) => Provenance::User,
            GoalState::Complete | GoalState::Blocked if turn.is_some() => Provenance::Agent,
            _ => Provenance::Unknown,
        };
        self.goal_is(at, Some(goal), by, out);
        true
    }

    pub(super) fn goal_cleared(&mut self, at: usize, out: &mut Translated) {
        let by = if self.orders_goal(at) { Provenance::User } else { Provenance::Unknown };
        self.goal_is(at, None, by, out);
    }

    /// The answer to an order about the goal carries it, unless it is gone.
    pub(super) fn goal_answered(&mut self, at: usize, cleared: bool, result: &Value, out: &mut Translated) {
        let goal = result.get("goal").and_then(read);
        if cleared || goal.is_some() {
            self.goal_is(at, goal.filter(|_| !cleared), Provenance::User, out);
        }
    }

    fn goal_is(&mut self, at: usize, goal: Option<Goal>, by: Provenance, out: &mut Translated) {
        let active = goal.as_ref().is_some_and(|goal| goal.state == GoalState::Active);
        let session = self.sessions.slot(at).session.clone();
        let digest = goal.as_ref().map(|goal| serde_json::to_string(goal).unwrap_or_default());
        let digest = digest.map(|text| mainstay_core::digest::TextDigest::of(&text).finish());
        let state = &self.sessions.slot(at).state;
        if state.goal_told == digest && state.goal_active == active {
            return;
        }
        let thread = self.sessions.change(at);
        thread.goal_active = active;
        thread.goal_told = digest;
        out.say(&session, AgentEvent::Goal { goal, by });
    }

    fn orders_goal(&self, at: usize) -> bool {
        let session = &self.sessions.slot(at).session;
        self.asking().any(|asked| asked.orders_goal_of(session))
    }

    /// The first thing that a turn does shows whose it is: a turn for the goal has no message.
    pub(super) fn turn_shows_origin(&mut self, at: usize, turn: &str, message: bool, out: &mut Translated) {
        self.turn_shows_whose(at, turn, message.then_some(Origin::Client), out);
    }

    /// As [`Self::turn_shows_origin`]; with whose the message is, where it is one.
    pub(super) fn turn_shows_whose(
        &mut self,
        at: usize,
        turn: &str,
        message: Option<Origin>,
        out: &mut Translated,
    ) {
        let state = &self.sessions.slot(at).state;
        let unknown = state.running.as_ref().is_some_and(|of| of.turn.as_str() == turn && !of.known);
        if !unknown {
            return;
        }
        let ours = state.input.as_ref().is_some_and(|input| !input.steers && input.turn.is_none());
        let origin = match (message, state.goal_active) {
            // Our own message is named by the answer to it.
            _ if ours => return,
            (Some(whose), _) => whose,
            (None, true) => Origin::Goal,
            (None, false) => return,
        };
        let session = self.sessions.slot(at).session.clone();
        if let Some(running) = &mut self.sessions.change(at).running {
            running.known = true;
        }
        let turn = ProviderTurn::from(turn);
        out.say(&session, AgentEvent::TurnStarted { turn, origin, submission: None });
    }
}

fn read(goal: &Value) -> Option<Goal> {
    let number = |name: &str| goal.get(name).and_then(Value::as_u64);
    Some(Goal {
        objective: goal.get("objective")?.as_str()?.to_owned(),
        state: match goal.get("status")?.as_str()? {
            "active" => GoalState::Active,
            "paused" => GoalState::Paused,
            "blocked" => GoalState::Blocked,
            "usageLimited" | "budgetLimited" => GoalState::Limited,
            "complete" => GoalState::Complete,
            _ => GoalState::Other,
        },
        token_budget: number("tokenBudget"),
        tokens_used: number("tokensUsed"),
        seconds_used: number("timeUsedSeconds"),
    })
}
