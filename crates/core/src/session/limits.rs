//! Budgets of a session, and what a request is answered by itself after. Off unless set.

use super::state::{Phase, Session, SubmissionState};
use super::{Moment, Out};
use crate::content::{Answer, OptionKind, PermissionOption};
use crate::event::{Event, RequestDeadline};
use crate::{RequestId, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a session may use, from its creation on, and what is answered for people who do not answer. Absent: no bound.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Turns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turns: Option<u64>,
    /// Time that turns ran, in milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_turn_ms: Option<u64>,
    /// Tokens, as the agent counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Cost in millionths of the account's currency, as the agent counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_micros: Option<u64>,
    /// How long an agent may try the same thing again in a turn, without any new work in between, in milliseconds. Over it
    /// the turn is stopped: some agents wait for the network without end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_stall_ms: Option<u64>,
    /// What requests are answered by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<RequestPolicy>,
}

/// What a request that nobody answers gets, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestPolicy {
    /// How long people have, in milliseconds.
    pub after_ms: u64,
    /// What is answered then.
    pub answer: DefaultAnswer,
}

/// What is answered for people who do not answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DefaultAnswer {
    /// No; the work goes on without it.
    Decline,
    /// No, and stop.
    Cancel,
    /// Yes, once, where an option says just that; else no.
    AllowOnce,
}

/// What was used so far, as the agent counts it; absent: it did not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Spent {
    /// Tokens, since the session began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Cost in millionths of the account's currency, since the session began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_micros: Option<u64>,
}

/// A budget that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Budget {
    /// `max_turns`.
    Turns,
    /// `max_turn_ms`.
    TurnTime,
    /// `max_tokens`.
    Tokens,
    /// `max_cost_micros`.
    Cost,
    /// `max_stall_ms`: the agent tried the same thing again for that long. It keeps no later turn from starting.
    Stall,
}

impl Limits {
    /// These, and where they say nothing, `others`.
    #[must_use]
    pub fn or(self, others: &Self) -> Self {
        Self {
            max_turns: self.max_turns.or(others.max_turns),
            max_turn_ms: self.max_turn_ms.or(others.max_turn_ms),
            max_tokens: self.max_tokens.or(others.max_tokens),
            max_cost_micros: self.max_cost_micros.or(others.max_cost_micros),
            max_stall_ms: self.max_stall_ms.or(others.max_stall_ms),
            requests: self.requests.or(others.requests),
        }
    }
}

impl Budget {
    /// As it is set.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Turns => "max_turns",
            Self::TurnTime => "max_turn_ms",
            Self::Tokens => "max_tokens",
            Self::Cost => "max_cost_micros",
            Self::Stall => "max_stall_ms",
        }
    }
}

impl DefaultAnswer {
    /// As an answer to a request with these options.
    fn of(self, options: &[PermissionOption]) -> Answer {
        let message = Some("nobody answered in time".to_owned());
        match self {
            Self::Decline => Answer::Decline { message },
            Self::Cancel => Answer::Cancel { message },
            Self::AllowOnce => match options.iter().find(|option| option.kind == OptionKind::AllowOnce) {
                Some(option) => Answer::Select { option_id: option.option_id.clone() },
                None => Answer::Decline { message },
            },
        }
    }
}

fn reached(used: Option<u64>, most: Option<u64>) -> bool {
    used.zip(most).is_some_and(|(used, most)| used >= most)
}

/// A sum that goes on with what a counter shows. One that shows less than before began anew.
fn summed(sum: Option<u64>, before: Option<u64>, now: Option<u64>) -> Option<u64> {
    let now = now?;
    let before = before.filter(|before| *before <= now).unwrap_or(0);
    Some(sum.unwrap_or(0).saturating_add(now - before))
}

impl Session {
    /// The budget that keeps the next turn from starting.
    #[must_use]
    pub fn budget_used_up(&self) -> Option<Budget> {
        let limits = &self.limits;
        // What came with an adopted conversation ran elsewhere.
        let own_turns = self.turn_count.saturating_sub(self.brought_turns);
        let used_up = [
            (Budget::Turns, reached(Some(own_turns), limits.max_turns)),
            (Budget::TurnTime, reached(Some(self.turn_ms), limits.max_turn_ms)),
            (Budget::Tokens, reached(self.spent.tokens, limits.max_tokens)),
            (Budget::Cost, reached(self.spent.cost_micros, limits.max_cost_micros)),
        ];
        used_up.into_iter().find_map(|(budget, used)| used.then_some(budget))
    }

    /// Sets the limits, whole.
    pub fn set_limits(&mut self, limits: Limits, now: i64, out: &mut Out) {
        if limits != self.limits {
            self.emit(out, now, Event::LimitsUpdated { limits });
        }
    }

    /// What the agent's counters show. A budget that they show to be used up stops the turn.
    pub(super) fn count(&mut self, counter: Spent, of_process: bool, moment: &Moment<'_>, out: &mut Out) {
        let counter = Spent {
            tokens: counter.tokens.or(self.counter.tokens),
            cost_micros: counter.cost_micros.or(self.counter.cost_micros),
        };
        if counter == self.counter {
            return;
        }
        let spent = Spent {
            tokens: summed(self.spent.tokens, self.counter.tokens, counter.tokens),
            cost_micros: summed(self.spent.cost_micros, self.counter.cost_micros, counter.cost_micros),
        };
        self.emit(out, moment.now, Event::SpentUpdated { spent, counter, of_process });
        let budget = match self.budget_used_up() {
            Some(budget @ (Budget::Tokens | Budget::Cost)) => budget,
            _ => return,
        };
        self.stop_for_budget(budget, moment, out);
    }

    fn stop_for_budget(&mut self, budget: Budget, moment: &Moment<'_>, out: &mut Out) {
        let within: Vec<TurnId> =
            self.turns.iter().filter(|turn| turn.budget.is_none()).map(|turn| turn.id.clone()).collect();
        if within.is_empty() {
            return;
        }
        for turn in within {
            self.emit(out, moment.now, Event::BudgetReached { budget, turn });
        }
        self.stop(super::StopScope::Turn(None), moment, out);
    }

    /// When the time of the running turn is used up.
    pub(super) fn turn_time_over_at(&self) -> Option<i64> {
        let left = self.limits.max_turn_ms?.saturating_sub(self.turn_ms);
        let left = i64::try_from(left).unwrap_or(i64::MAX);
        let running = self.turns.iter().filter(|turn| turn.budget.is_none());
        running.map(|turn| turn.started_at.saturating_add(left)).min()
    }

    /// When a turn has been tried again for too long.
    pub(super) fn stalled_at(&self) -> Option<i64> {
        let most = i64::try_from(self.limits.max_stall_ms?).unwrap_or(i64::MAX);
        let trying = self.turns.iter().filter(|turn| turn.budget.is_none());
        trying.filter_map(|turn| Some(turn.retrying.as_ref()?.since.saturating_add(most))).min()
    }

    pub(super) fn end_stalled(&mut self, moment: &Moment<'_>, out: &mut Out) {
        self.stop_for_budget(Budget::Stall, moment, out);
    }

    pub(super) fn end_turn_time(&mut self, moment: &Moment<'_>, out: &mut Out) {
        self.stop_for_budget(Budget::TurnTime, moment, out);
    }

    /// The deadline of a request that is asked now.
    pub(super) fn request_deadline(
        &self,
        options: &[PermissionOption],
        moment: &Moment<'_>,
    ) -> Option<RequestDeadline> {
        let policy = self.limits.requests?;
        let after = i64::try_from(policy.after_ms).unwrap_or(i64::MAX);
        Some(RequestDeadline { at: moment.now.saturating_add(after), answer: policy.answer.of(options) })
    }

    fn awaited(&self) -> impl Iterator<Item = (&RequestId, &RequestDeadline)> {
        let pending = self.requests.iter().filter(|open| open.state == super::RequestState::Pending);
        pending.filter_map(|open| open.deadline.as_ref().map(|deadline| (&open.id, deadline)))
    }

    /// When a request is answered by itself next. Not while nobody could be told.
    pub(super) fn request_due_at(&self) -> Option<i64> {
        if self.unverifiable.is_some() || self.phase == Phase::Free {
            return None;
        }
        self.awaited().map(|(_, deadline)| deadline.at).min()
    }

    pub(super) fn answer_overdue(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let due: Vec<(RequestId, Answer)> = self
            .awaited()
            .filter(|(_, deadline)| deadline.at <= moment.now)
            .map(|(request, deadline)| (request.clone(), deadline.answer.clone()))
            .collect();
        for (request, answer) in due {
            // Checked when it was asked: the answer is one of those that the request takes.
            let _answered = self.answer(&request, None, answer, "deadline".to_owned(), moment, out);
        }
    }

    /// What keeps the agent from being put to rest, or a session from being at rest: one line each.
    #[must_use]
    pub fn owed(&self) -> Vec<Owed> {
        let mut owed = Vec::new();
        let mut add = |what, count: usize| {
            if count > 0 {
                owed.push(Owed { what, count });
            }
        };
        let doubtful = |state: &SubmissionState| matches!(state, SubmissionState::Doubtful { .. });
        add(OwedKind::Turn, self.turns.len());
        add(OwedKind::Message, self.submissions.iter().filter(|open| open.waits()).count());
        let delivered =
            self.submissions.iter().filter(|open| matches!(open.state, SubmissionState::Delivered { .. }));
        add(OwedKind::UntakenMessage, delivered.count());
        add(OwedKind::DoubtfulMessage, self.submissions.iter().filter(|open| doubtful(&open.state)).count());
        add(OwedKind::Request, self.requests.len());
        add(OwedKind::Task, self.tasks.len());
        add(OwedKind::Child, self.children.len());
        add(OwedKind::Item, self.items.len());
        add(OwedKind::Control, self.controls.len());
        owed
    }
}

/// Something that is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owed {
    /// What.
    pub what: OwedKind,
    /// How many.
    pub count: usize,
}

/// What kind of thing is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OwedKind {
    /// A turn runs.
    Turn,
    /// A message waits for the agent.
    Message,
    /// A message is with the agent and not proven to be taken.
    UntakenMessage,
    /// Whether the agent has a message is not known; it waits for history or a user. The agent may rest beside it.
    DoubtfulMessage,
    /// A request is open.
    Request,
    /// A background task runs.
    Task,
    /// A sub-agent works.
    Child,
    /// An item (a command) is open.
    Item,
    /// The agent was asked something beside messages.
    Control,
    /// A terminal is attached to the agent's process, beside this host.
    Terminal,
    /// Processes that outlived what the agent started them with run on.
    Descendants,
}
