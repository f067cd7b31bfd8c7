//! Stops: how far each reaches, what it found, and what follows where the agent does not react.

use super::state::{OpenRequest, OpenSubmission, Phase, RequestState, Session};
use super::{Effect, INTERRUPT_PATIENCE_MS, Moment, Out, Reply};
use crate::agent::Decision;
use crate::content::Answer;
use crate::event::{Event, RequestEnd, StopReach, StopStep};
use crate::process::CloseOrder;
use crate::work::{Control, GoalState, Provenance};
use crate::{ProviderTurn, RequestId, SubmissionId, TaskKey, ThreadId, TurnId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How far a stop reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopScope {
    /// All that runs: goal, turns, requests, sub-agents, background work; what waits is paused.
    Session,
    /// The turn that runs, or this one; what waits goes on after it.
    Turn(Option<TurnId>),
    /// One request, which is answered with "no, and stop".
    Request(RequestId),
    /// One task or one sub-agent's thread, by its id.
    Task(String),
    /// All tasks and sub-agents.
    Tasks,
}

/// What kind of thing a stop found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopKind {
    /// A goal, which is paused first.
    Goal,
    /// A turn.
    Turn,
    /// A message.
    Message,
    /// A request of the agent.
    Request,
    /// A background task.
    Task,
    /// A sub-agent's thread.
    Child,
    /// Commands that were left running.
    Background,
    /// Something asked of the agent beside messages.
    Control,
}

/// What a stop did to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopState {
    /// The agent is told; its own end event confirms it.
    Asked,
    /// It ended with the stop.
    Ended,
    /// It is not running.
    NotRunning,
    /// The agent cannot stop this by itself; ending the process would.
    Unsupported,
}

/// One thing that a stop found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StopTarget {
    /// What kind of thing.
    pub kind: StopKind,
    /// Its id; absent where it has none (the goal, or a turn that is not known yet).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What was done.
    pub state: StopState,
}

/// What a stop did, gathered.
#[derive(Debug, Default)]
pub(super) struct Stopped {
    turn: Option<TurnId>,
    withdrawn: Vec<SubmissionId>,
    pending: bool,
    targets: Vec<StopTarget>,
}

impl Stopped {
    fn found(&mut self, kind: StopKind, id: Option<&str>, state: StopState) {
        self.targets.push(StopTarget { kind, id: id.map(str::to_owned), state });
    }
}

impl Session {
    /// Stops: never refused, also with no turn id known yet.
    pub(super) fn stop(&mut self, scope: StopScope, moment: &Moment<'_>, out: &mut Out) -> Reply {
        let mut stopped = Stopped::default();
        match scope {
            StopScope::Session => {
                self.pause_goal(&mut stopped, moment, out);
                self.withdraw_controls(&mut stopped, moment, out);
                self.cancel_pending_requests(|open| open.recovers.is_some(), &mut stopped, moment, out);
                let cut_off: Vec<RequestId> =
                    self.cut_off_requests.iter().map(|(request, _)| request.clone()).collect();
                self.stop_turns(None, StopReach::Session, &mut stopped, moment, out);
                self.close_answered_again(&mut stopped, moment, out);
                self.stop_cut_off(moment, out);
                for request in cut_off {
                    stopped.found(StopKind::Request, Some(request.as_str()), StopState::Ended);
                }
                self.stop_background_work(StopReach::Session, &mut stopped, moment, out);
                self.stop_agents_queue(moment, out);
                self.withdraw_head(&mut stopped, moment, out);
                if self.submissions.iter().any(OpenSubmission::waits) {
                    self.emit(out, moment.now, super::commands::queue_paused(true));
                }
            }
            StopScope::Turn(turn) => {
                self.pause_goal(&mut stopped, moment, out);
                self.stop_turns(turn.as_ref(), StopReach::Turn, &mut stopped, moment, out);
            }
            StopScope::Request(request) => self.stop_request(&request, &mut stopped, moment, out),
            StopScope::Task(task) => self.stop_one(&task, &mut stopped, moment, out),
            StopScope::Tasks => self.stop_background_work(StopReach::Background, &mut stopped, moment, out),
        }
        let Stopped { turn, withdrawn, pending, targets } = stopped;
        Reply::Interrupted { turn, withdrawn, pending, queue_paused: self.queue_paused, targets }
    }

    /// Interrupts what runs for a message that is to come after it; what waits is paused.
    pub(super) fn interrupt_for_message(&mut self, moment: &Moment<'_>, out: &mut Out) {
        self.cancel_pending_requests(|open| open.recovers.is_some(), &mut Stopped::default(), moment, out);
        self.stop_turns(None, StopReach::Turn, &mut Stopped::default(), moment, out);
        if self.submissions.iter().any(OpenSubmission::waits) {
            self.emit(out, moment.now, super::commands::queue_paused(true));
        }
    }

    /// A goal that goes on would start the next turn at once.
    pub(super) fn pause_goal(&mut self, stopped: &mut Stopped, moment: &Moment<'_>, out: &mut Out) {
        if self.goal.as_ref().is_none_or(|goal| goal.state != GoalState::Active) {
            return;
        }
        if !moment.capabilities.goals || !self.may_ask_to_stop() {
            return stopped.found(StopKind::Goal, None, StopState::Unsupported);
        }
        if !self.controls.iter().any(|open| matches!(open.what, Control::PauseGoal)) {
            self.ask_stop(Control::PauseGoal, Provenance::Host, moment, out);
        }
        stopped.found(StopKind::Goal, None, StopState::Asked);
    }

    fn withdraw_controls(&mut self, stopped: &mut Stopped, moment: &Moment<'_>, out: &mut Out) {
        for open in self.controls.iter().filter(|open| !open.told) {
            stopped.found(StopKind::Control, Some(open.id.as_str()), StopState::Ended);
        }
        self.cancel_waiting_controls(moment, out);
    }

    /// Interrupts turns: all, or this one. With none known, the one that the untaken input, or a control that the agent
    /// was told, starts.
    pub(super) fn stop_turns(
        &mut self,
        only: Option<&TurnId>,
        reach: StopReach,
        stopped: &mut Stopped,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let running: Vec<(TurnId, ProviderTurn, bool)> = self
            .turns
            .iter()
            .filter(|turn| only.is_none_or(|only| turn.id == *only))
            .map(|turn| (turn.id.clone(), turn.provider.clone(), turn.interrupted_at.is_some()))
            .collect();
        if running.is_empty() {
            if let Some(only) = only {
                return stopped.found(StopKind::Turn, Some(only.as_str()), StopState::NotRunning);
            }
            if self.turns.is_empty() && self.begins_unseen() {
                stopped.pending = true;
                if self.interrupt_pending.is_none() {
                    self.emit(out, moment.now, Event::InterruptRequested { turn: None, reach });
                }
                out.effects.push(Effect::Tell(Decision::Interrupt { turn: None }));
                stopped.found(StopKind::Turn, None, StopState::Asked);
            }
        }
        for (turn, provider, already) in running {
            if !already {
                let requested = Event::InterruptRequested { turn: Some(turn.clone()), reach };
                self.emit(out, moment.now, requested);
            }
            let of_turn = |open: &OpenRequest| match &open.turn {
                Some(of) => *of == turn,
                // Not known to be of another turn, and not of a sub-agent.
                None => open.child.is_none(),
            };
            let all = reach == StopReach::Session;
            self.cancel_pending_requests(|open| all || of_turn(open), stopped, moment, out);
            out.effects.push(Effect::Tell(Decision::Interrupt { turn: Some(provider) }));
            stopped.found(StopKind::Turn, Some(turn.as_str()), StopState::Asked);
            stopped.turn = Some(turn);
        }
    }

    /// Where nothing runs, nothing else reaches what other clients left in the agent's own queue; it would begin by itself.
    pub(super) fn stop_agents_queue(&self, moment: &Moment<'_>, out: &mut Out) {
        let told = !self.turns.is_empty() || self.begins_unseen();
        if moment.capabilities.own_queue && !told && self.may_ask_to_stop() {
            out.effects.push(Effect::Tell(Decision::Interrupt { turn: None }));
        }
    }

    fn cancel_pending_requests(
        &mut self,
        which: impl Fn(&OpenRequest) -> bool,
        stopped: &mut Stopped,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let pending: Vec<(RequestId, u64)> = self
            .requests
            .iter()
            .filter(|open| open.state == RequestState::Pending && which(open))
            .map(|open| (open.id.clone(), open.revision + 1))
            .collect();
        for (request, revision) in pending {
            stopped.found(StopKind::Request, Some(request.as_str()), StopState::Ended);
            let state = RequestEnd::Cancelled;
            let (confirmed, answered, asked_again) = (None, None, false);
            let closed = Event::RequestClosed { request, revision, state, confirmed, answered, asked_again };
            self.emit(out, moment.now, closed);
        }
    }

    /// What was asked again and answered: the agent was told to stop, and need not take the answer up any more.
    fn close_answered_again(&mut self, stopped: &mut Stopped, moment: &Moment<'_>, out: &mut Out) {
        let answered = |open: &OpenRequest| open.recovers.is_some() && open.state != RequestState::Pending;
        for open in self.requests.iter().filter(|open| answered(open)) {
            stopped.found(StopKind::Request, Some(open.id.as_str()), StopState::Ended);
        }
        self.close_requests(answered, RequestEnd::Cancelled, &[], moment, out);
    }

    /// What was cut off and waits to be asked again is not asked again.
    pub(super) fn stop_cut_off(&mut self, moment: &Moment<'_>, out: &mut Out) {
        if !self.cut_off_requests.is_empty() {
            let reach = StopReach::Session;
            self.emit(out, moment.now, Event::InterruptRequested { turn: None, reach });
        }
    }

    /// Where nothing runs, the stop is for the message that would run next.
    fn withdraw_head(&mut self, stopped: &mut Stopped, moment: &Moment<'_>, out: &mut Out) {
        let of_request = |target: &StopTarget| target.kind == StopKind::Request;
        if stopped.turn.is_some() || stopped.pending || stopped.targets.iter().any(of_request) {
            return;
        }
        let head = self.submissions.iter().find(|open| open.waits()).map(|open| open.id.clone());
        if let Some(submission) = head {
            self.emit(out, moment.now, Event::SubmissionCancelled { submission: submission.clone() });
            stopped.found(StopKind::Message, Some(submission.as_str()), StopState::Ended);
            stopped.withdrawn.push(submission);
        }
    }

    fn stop_request(
        &mut self,
        request: &RequestId,
        stopped: &mut Stopped,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let (answer, by) = (Answer::Cancel { message: None }, "stop".to_owned());
        let state = match self.answer(request, None, answer, by, moment, out) {
            Ok(_) => StopState::Asked,
            Err(_) => StopState::NotRunning,
        };
        stopped.found(StopKind::Request, Some(request.as_str()), state);
    }

    fn stop_one(&mut self, task: &str, stopped: &mut Stopped, moment: &Moment<'_>, out: &mut Out) {
        if let Some(open) = self.tasks.iter().find(|open| open.id.as_str() == task) {
            let key = open.key.clone();
            let state = self.stop_task(key, moment, out);
            return stopped.found(StopKind::Task, Some(task), state);
        }
        let child = ThreadId::from(task);
        if self.children.iter().any(|open| open.thread == child) {
            let state = self.stop_child(child, moment, out);
            return stopped.found(StopKind::Child, Some(task), state);
        }
        stopped.found(StopKind::Task, Some(task), StopState::NotRunning);
    }

    fn stop_task(&mut self, key: TaskKey, moment: &Moment<'_>, out: &mut Out) -> StopState {
        self.ask_to_stop(Control::StopTask { key }, moment, out)
    }

    fn stop_child(&mut self, thread: ThreadId, moment: &Moment<'_>, out: &mut Out) -> StopState {
        self.ask_to_stop(Control::StopChild { thread }, moment, out)
    }

    fn ask_to_stop(&mut self, what: Control, moment: &Moment<'_>, out: &mut Out) -> StopState {
        if !moment.capabilities.can(&what) || !self.may_ask_to_stop() {
            return StopState::Unsupported;
        }
        if !self.controls.iter().any(|open| open.what == what) {
            self.ask_stop(what, Provenance::User, moment, out);
        }
        StopState::Asked
    }

    /// Whether the agent can be told to stop something: also while the session leaves a process that goes on.
    fn may_ask_to_stop(&self) -> bool {
        let leaves = self.leaving.is_some() && self.phase == Phase::Held && self.unverifiable.is_none();
        self.may_ask() || leaves
    }

    fn ask_stop(&mut self, what: Control, by: Provenance, moment: &Moment<'_>, out: &mut Out) {
        let control = self.ask(what.clone(), by, moment, out);
        if !self.may_ask() {
            // Nothing else is told to an agent that is being left.
            self.emit(out, moment.now, Event::ControlTold { control: control.clone() });
            out.effects.push(Effect::Tell(Decision::Control { id: control, control: what }));
        }
    }

    /// Sub-agents, tasks, and commands that were left running.
    pub(super) fn stop_background_work(
        &mut self,
        reach: StopReach,
        stopped: &mut Stopped,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let children: Vec<ThreadId> = self.children.iter().map(|open| open.thread.clone()).collect();
        let tasks: Vec<_> = self.tasks.iter().map(|open| (open.id.clone(), open.key.clone())).collect();
        let works = !children.is_empty() || !tasks.is_empty();
        if works && reach == StopReach::Background {
            self.emit(out, moment.now, Event::InterruptRequested { turn: None, reach });
        }
        let of_these = |open: &OpenRequest| open.child.as_ref().is_some_and(|child| children.contains(child));
        self.cancel_pending_requests(of_these, stopped, moment, out);
        for child in children {
            let state = self.stop_child(child.clone(), moment, out);
            stopped.found(StopKind::Child, Some(child.as_str()), state);
        }
        for (task, key) in tasks {
            let state = self.stop_task(key, moment, out);
            stopped.found(StopKind::Task, Some(task.as_str()), state);
        }
        // A command may run on though its turn is interrupted, without being a task of its own.
        let left_running = works || !self.items.is_empty() || !self.turns.is_empty();
        if left_running && moment.capabilities.stop_background {
            let state = self.ask_to_stop(Control::StopBackground, moment, out);
            stopped.found(StopKind::Background, None, state);
        }
    }

    /// Work that shows itself after a stop that was meant for it too.
    pub(super) fn stop_late_child(&mut self, child: ThreadId, moment: &Moment<'_>, out: &mut Out) {
        if self.work_stopped {
            self.stop_child(child, moment, out);
        }
    }

    /// The same for a task.
    pub(super) fn stop_late_task(&mut self, key: TaskKey, moment: &Moment<'_>, out: &mut Out) {
        if self.work_stopped {
            self.stop_task(key, moment, out);
        }
    }

    /// When a stop that the agent did not react to is taken further: the first one asked for.
    pub(super) fn escalates_at(&self) -> Option<i64> {
        let can_be_told = matches!(self.phase, Phase::Opening | Phase::Held);
        if !can_be_told || self.stopping.is_some() || self.unverifiable.is_some() {
            return None;
        }
        let asked = self.turns.iter().filter_map(|turn| turn.interrupted_at);
        asked.chain(self.interrupt_pending).min().map(|at| at.saturating_add(INTERRUPT_PATIENCE_MS))
    }

    /// The agent had its time: its process is ended, by its keeper's ladder, or left, where others need it. What was sent
    /// after the stop is for the next.
    pub(super) fn escalate(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let turn = self.turns.iter().find(|turn| turn.interrupted_at.is_some()).map(|turn| turn.id.clone());
        let (waited_ms, step) = (INTERRUPT_PATIENCE_MS.unsigned_abs(), StopStep::Process);
        let escalated = Event::StopEscalated { turn, waited_ms, step };
        self.emit(out, moment.now, escalated);
        self.stop_process(CloseOrder::Host, moment, out);
    }
}
