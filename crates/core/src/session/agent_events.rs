//! What the agent says, decided.

use super::commands::end_of_answer;
use super::limits::Budget;
use super::process_facts::failure_of;
use super::state::{OpenRequest, OpenSubmission, Phase, RequestState, Session, SubmissionState};
use super::{CHAIN_LINKS, Effect, Moment, Out, UNMODELLED_BYTES};
use crate::agent::{AgentEvent, AskedByAgent, Decision, NoticeLevel, SteerRefusal, TakenProof};
use crate::content::{Failure, FailureCode, Origin, Outcome, StopReason};
use crate::event::{Event, QueueReason, RequestEnd, SettlesBy, ThreadOrigin};
use crate::process::{CloseOrder, ExitCause, ProcessExit};
use crate::work::{Provenance, ThreadSource};
use crate::{ProviderTurn, Refusal, RequestId, RequestKey, SubmissionId, ThreadId, TurnId};
use serde_json::Value;

impl Session {
    pub(super) fn on_agent(
        &mut self,
        event: AgentEvent,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<(), Refusal> {
        if self.phase == Phase::Free {
            return Err(Refusal::illegal("free (no process may speak)", "an agent event"));
        }
        match event {
            AgentEvent::Ready(info) => {
                if matches!(self.phase, Phase::Reserved | Phase::Spawned)
                    && let Some(process) = self.process.clone()
                {
                    self.emit(out, moment.now, Event::ProcessReady { process, info });
                    self.open_thread(out);
                }
            }
            AgentEvent::ThreadOpened { thread, resumed } => self.thread_opened(thread, resumed, moment, out),
            AgentEvent::ThreadRefused { failure } => self.thread_refused(failure, moment, out),
            AgentEvent::InputTaken { submission, proof } => self.input_taken(&submission, proof, moment, out),
            AgentEvent::InputRejected { submission, failure } => {
                if self.submission(&submission).is_some() {
                    self.emit(out, moment.now, Event::SubmissionRejected { submission, failure });
                }
                self.advance(moment, out);
            }
            AgentEvent::SteerRefused { submission, why } => {
                let reason = match why {
                    SteerRefusal::TurnOver => QueueReason::TurnOver,
                    SteerRefusal::NotSteerable => QueueReason::NotSteerable,
                };
                self.returned(submission, reason, moment, out);
            }
            AgentEvent::InputAbsent { submission } => {
                self.returned(submission, QueueReason::Starting, moment, out);
            }
            AgentEvent::InputUnknown { submission } => {
                let stopped = self
                    .submission(&submission)
                    .filter(|open| !matches!(open.state, SubmissionState::Accepted { .. }))
                    .map(|open| self.stop_meant(open));
                if let Some(stopped) = stopped {
                    let event =
                        Event::SubmissionDoubtful { submission, settles_by: SettlesBy::User, stopped };
                    self.emit(out, moment.now, event);
                }
                self.advance(moment, out);
            }
            AgentEvent::TurnStarted { turn, origin, submission } => {
                self.turn_started(turn, origin, submission, moment, out);
            }
            AgentEvent::TurnEnded { turn, outcome, stop_reason, failure, usage } => {
                self.turn_ended(&turn, outcome, stop_reason, failure, usage, moment, out);
            }
            AgentEvent::ItemStarted { key, turn, kind, fields } => {
                self.item_started(&key, turn.as_ref(), kind, fields, moment, out);
            }
            AgentEvent::ItemDelta { key, turn, kind, text } => {
                self.item_delta(&key, turn.as_ref(), kind, text, moment, out);
            }
            AgentEvent::ItemUpdated { key, fields } => self.item_updated(&key, fields, moment, out),
            AgentEvent::ItemCompleted { key, turn, kind, status, text, fields } => {
                self.item_completed(&key, turn.as_ref(), kind, status, text, fields, moment, out);
            }
            AgentEvent::RequestOpened(asked) => self.request_opened(asked, moment, out),
            AgentEvent::RequestSettled { key, confirmed } => {
                self.request_settled(&key, confirmed, moment, out);
            }
            AgentEvent::RequestUnconfirmed { key } => self.mark_request(&key, true, moment, out),
            AgentEvent::TaskStarted { key, kind, title, fields } => {
                self.task_started(key, kind, title, fields, moment, out);
            }
            AgentEvent::TaskUpdated { key, fields } => self.task_updated(&key, fields, moment, out),
            AgentEvent::TaskEnded { key, end, fields } => self.task_ended(&key, end, fields, moment, out),
            AgentEvent::ChildStarted { thread, fields } => self.child_started(thread, fields, moment, out),
            AgentEvent::ChildUpdated { thread, fields } => self.child_updated(thread, fields, moment, out),
            AgentEvent::ChildEnded { thread, end, fields } => {
                self.child_ended(&thread, end, fields, moment, out);
                self.advance(moment, out);
            }
            AgentEvent::Goal { goal, by } => self.goal_reported(goal, by, moment, out),
            AgentEvent::Name { name, by } => {
                if name != self.name {
                    let event = Event::SessionUpdated {
                        name: Some(name),
                        options: None,
                        archived: None,
                        queue_paused: None,
                        by,
                    };
                    self.emit(out, moment.now, event);
                }
            }
            AgentEvent::Retrying { turn, attempt, of, failure, next_at } => {
                let turn = turn.as_ref().and_then(|turn| self.turn_of(turn)).map(|turn| turn.id.clone());
                self.emit(out, moment.now, Event::TurnRetrying { turn, attempt, of, failure, next_at });
            }
            AgentEvent::ControlEnded { control, end } => self.control_ended(control, end, moment, out),
            AgentEvent::GoesBack { control, at } => self.goes_back(&control, at, moment, out),
            AgentEvent::ThreadSwitched { thread } => self.thread_switched(thread, moment, out),
            AgentEvent::ThreadClosed => self.thread_closed(moment, out),
            AgentEvent::Plan(entries) => {
                self.emit(out, moment.now, Event::PlanUpdated { entries, by: Provenance::Agent });
            }
            AgentEvent::Usage(usage) => self.emit(out, moment.now, Event::UsageUpdated { usage }),
            AgentEvent::Spent { counter, of_process } => self.count(counter, of_process, moment, out),
            AgentEvent::Options(options) => self.options_reported(&options, moment, out),
            AgentEvent::Commands(commands) => self.emit(out, moment.now, Event::CommandsUpdated { commands }),
            AgentEvent::Notice { level, message, provider } => {
                self.emit(out, moment.now, Event::Notice { level, message, provider });
            }
            AgentEvent::Unmodelled { name, frame } => {
                let fits = self.unmodelled_bytes + frame.to_string().len() as u64 <= UNMODELLED_BYTES;
                let event = Event::ProviderFrame {
                    name,
                    frame: fits.then_some(frame),
                    count: self.unmodelled_count + 1,
                };
                self.emit(out, moment.now, event);
            }
        }
        Ok(())
    }

    fn open_thread(&self, out: &mut Out) {
        let doubtful = self
            .submissions
            .iter()
            .filter(|open| {
                matches!(open.state, SubmissionState::Doubtful { settles_by: SettlesBy::History, .. })
            })
            .map(|open| open.id.clone())
            .collect();
        let (resume, fork) = match (self.thread(), &self.launch.source) {
            _ if self.replace_thread => (None, None),
            (Some(head), _) => (Some(head.clone()), None),
            (None, Some(ThreadSource::Adopt { thread })) => (Some(thread.clone()), None),
            (None, Some(ThreadSource::Fork(point))) => (None, Some(Box::new(point.clone()))),
            (None, None) => (None, None),
        };
        let options = self.options.clone();
        out.effects.push(Effect::Tell(Decision::OpenThread { resume, options, doubtful, fork }));
    }

    fn thread_opened(&mut self, thread: ThreadId, resumed: bool, moment: &Moment<'_>, out: &mut Out) {
        if self.phase == Phase::Held {
            // Re-attached after a lost connection: what had to wait goes on.
            self.advance(moment, out);
        }
        if self.phase != Phase::Opening {
            return;
        }
        let (Some(process), head) = (self.process.clone(), self.thread().cloned()) else {
            return;
        };
        let asked_for = match (&head, &self.launch.source) {
            (Some(head), _) => Some(head.clone()),
            (None, Some(ThreadSource::Adopt { thread })) if !self.replace_thread => Some(thread.clone()),
            (None, _) => None,
        };
        let how = match (&head, resumed) {
            _ if resumed && asked_for.as_ref().is_some_and(|asked| *asked != thread) => {
                let failure = Failure::new(
                    FailureCode::ThreadMissing,
                    format!(
                        "the agent was asked to take up thread {} and answered with {thread}; nothing was sent to it",
                        asked_for.as_ref().map_or("", ThreadId::as_str)
                    ),
                );
                self.hold(failure, moment, out);
                return;
            }
            (Some(_), true) => ThreadOrigin::Resumed,
            (None, true) => ThreadOrigin::Adopted,
            (Some(_), false) if self.replace_thread && self.asked_to_replace.is_none() => {
                ThreadOrigin::Replaced
            }
            (Some(_), false) => ThreadOrigin::Superseded,
            (None, false) if self.forks() => ThreadOrigin::Forked,
            (None, false) => ThreadOrigin::Created,
        };
        let linked = self.linked(thread.clone(), how, head);
        self.emit(out, moment.now, linked);
        self.emit(out, moment.now, Event::LeaseHeld { process, thread });
        // Changed while it started: the newer wish wins.
        self.tell_options(moment, out);
        self.advance(moment, out);
    }

    /// A new head of the chain. Where that cuts a link, the event says how many are cut by then.
    pub(super) fn linked(&self, thread: ThreadId, how: ThreadOrigin, previous: Option<ThreadId>) -> Event {
        let cuts = self.thread() != Some(&thread) && self.chain.len() >= CHAIN_LINKS;
        Event::ThreadLinked { thread, how, previous, cut: self.chain_cut + u64::from(cuts), brought_turns: 0 }
    }

    /// Whether the first thread is to be a branch of another session's.
    fn forks(&self) -> bool {
        matches!(self.launch.source, Some(ThreadSource::Fork(_)))
    }

    fn thread_switched(&mut self, thread: ThreadId, moment: &Moment<'_>, out: &mut Out) {
        let previous = self.thread().cloned();
        if self.phase != Phase::Held || previous.as_ref() == Some(&thread) {
            return;
        }
        let linked = self.linked(thread, ThreadOrigin::Switched, previous);
        self.emit(out, moment.now, linked);
    }

    /// The thread is let go: everything of it ends as with a process, but the process is not ours to end.
    fn thread_closed(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let exit = ProcessExit::of(ExitCause::ThreadClosed);
        let (stopping, failure) = (self.stopping, failure_of(&exit));
        self.settle_exit(exit, moment, out);
        self.go_on_after_exit(ExitCause::ThreadClosed, failure, stopping, moment, out);
    }

    /// The history that was to settle these is not going to be read.
    pub(super) fn give_up_on_history(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let waiting: Vec<(SubmissionId, bool)> = self
            .submissions
            .iter()
            .filter_map(|open| match open.state {
                SubmissionState::Doubtful { settles_by: SettlesBy::History, stopped } => {
                    Some((open.id.clone(), stopped))
                }
                _ => None,
            })
            .collect();
        for (submission, stopped) in waiting {
            let settles_by = SettlesBy::User;
            self.emit(out, moment.now, Event::SubmissionDoubtful { submission, settles_by, stopped });
        }
    }

    fn thread_refused(&mut self, failure: Failure, moment: &Moment<'_>, out: &mut Out) {
        if self.phase == Phase::Held {
            // Lost while it was held (re-attached after a broken connection): nothing can be written to it.
            self.hold(failure, moment, out);
            return;
        }
        if self.phase != Phase::Opening {
            return;
        }
        let missing = failure.code == FailureCode::ThreadMissing;
        if missing && self.asked_to_replace.is_some() && self.asked_to_replace == self.process {
            // It has one conversation, named at its start, and not this one: another process is started for a new one.
            // That one is refused for good if it is refused.
            self.stop_process(CloseOrder::Host, moment, out);
            return self.advance(moment, out);
        }
        let made_here = self.thread().is_some() || self.launch.source.is_none();
        if missing && made_here && !self.thread_used && !self.replace_thread {
            // Made by us, never used, so never saved by the agent: nothing is lost by making another. Recorded first:
            // an agent that refuses that too is not asked again.
            let recovering =
                Event::SessionRecovering { failure: None, start_fresh: false, never_saved: true };
            self.emit(out, moment.now, recovering);
            self.give_up_on_history(moment, out);
            let options = self.options.clone();
            out.effects.push(Effect::Tell(Decision::OpenThread {
                resume: None,
                options,
                doubtful: Vec::new(),
                fork: None,
            }));
            return;
        }
        self.hold(failure, moment, out);
    }

    /// The session cannot go on by itself: says why, and ends the process that cannot be used.
    pub(super) fn hold(&mut self, failure: Failure, moment: &Moment<'_>, out: &mut Out) {
        if self.retry_start(&failure, moment, out) {
            // The next try is another process's; this one gets nothing any more.
            self.stop_process(CloseOrder::Host, moment, out);
            return self.advance(moment, out);
        }
        let recovering =
            Event::SessionRecovering { failure: Some(failure), start_fresh: false, never_saved: false };
        self.emit(out, moment.now, recovering);
        self.advance(moment, out);
        self.stop_process(CloseOrder::Host, moment, out);
    }

    fn input_taken(
        &mut self,
        submission: &SubmissionId,
        proof: TakenProof,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let Some(open) = self.submission(submission) else {
            // Dropped in the meantime; what waited behind it goes on.
            return self.advance(moment, out);
        };
        // Also one that had returned to the queue: what was taken for lost arrived all the same, and is not given again.
        let content = open.content.clone();
        let turn = self
            .turns
            .iter()
            .find(|turn| turn.submission.as_ref() == Some(submission))
            .map(|turn| turn.id.clone())
            .or_else(|| open.given_into.clone());
        let taken = Event::SubmissionTaken { submission: submission.clone(), proof, turn: turn.clone() };
        self.emit(out, moment.now, taken);
        self.show_user_message(submission, &content, turn, moment, out);
        self.advance(moment, out);
    }

    /// The agent does not have the message: it returns to its place in the queue. A stop that was meant for it takes
    /// it back where it was to start the turn, and pauses it where it was to go into one: that was lost with the
    /// turn, and nobody asked for that.
    fn returned(
        &mut self,
        submission: SubmissionId,
        reason: QueueReason,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let with_agent = self
            .submission(&submission)
            .filter(|open| !matches!(open.state, SubmissionState::Accepted { .. }))
            .map(|open| (self.stop_meant(open), open.given_into.is_some()));
        let event = match with_agent {
            Some((true, true)) => Event::SubmissionQueued { submission, reason: QueueReason::Paused },
            Some((true, false)) => Event::SubmissionCancelled { submission },
            Some((false, _)) => Event::SubmissionQueued { submission, reason },
            None => return self.advance(moment, out),
        };
        self.emit(out, moment.now, event);
        self.advance(moment, out);
    }

    /// Whether a stop was asked for while the agent had, or may have had, this message.
    pub(super) fn stop_meant(&self, open: &OpenSubmission) -> bool {
        let turn_stopped = || {
            let into = self.turns.iter().find(|turn| Some(&turn.id) == open.given_into.as_ref());
            into.is_some_and(|turn| turn.interrupted_at.is_some())
        };
        match open.state {
            SubmissionState::Accepted { .. } => false,
            SubmissionState::Delivered { .. } => self.interrupt_pending.is_some() || turn_stopped(),
            SubmissionState::Doubtful { stopped, .. } => stopped,
        }
    }

    pub(super) fn turn_started(
        &mut self,
        provider_turn: ProviderTurn,
        origin: Origin,
        submission: Option<SubmissionId>,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        if let Some(open) = self.turn_of(&provider_turn) {
            if open.origin == Origin::Unknown && origin != Origin::Unknown {
                let turn = open.id.clone();
                self.emit(out, moment.now, Event::TurnUpdated { turn, origin, submission });
            }
            return;
        }
        if self.finished_turns.contains(&provider_turn) {
            return;
        }
        let turn = TurnId(format!("t{}", self.turn_count + 1));
        let arrived = submission.clone().filter(|id| {
            self.submission(id).is_some_and(|open| matches!(open.state, SubmissionState::Accepted { .. }))
        });
        let stopped_control =
            self.interrupt_pending.is_some() && submission.is_none() && !self.input_untaken();
        let again = stopped_control.then(|| provider_turn.clone());
        self.emit(out, moment.now, Event::TurnStarted { turn, provider_turn, origin, submission });
        if let Some(turn) = again {
            // The agent was told while it showed no turn to stop, as that of a control: now it has one.
            out.effects.push(Effect::Tell(Decision::Interrupt { turn: Some(turn) }));
        }
        if let Some(submission) = arrived {
            // It had returned to the queue, and now the agent works on it: it must not be given again.
            self.input_taken(&submission, moment.capabilities.proof, moment, out);
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one agent event, and where they go")]
    pub(super) fn turn_ended(
        &mut self,
        provider_turn: &ProviderTurn,
        outcome: Outcome,
        stop_reason: Option<StopReason>,
        failure: Option<Failure>,
        usage: Option<Value>,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        if self.finished_turns.contains(provider_turn) {
            return;
        }
        if self.turn_of(provider_turn).is_none() {
            // Its beginning was never seen (a connection was lost): shown as what it is, a turn of unknown origin.
            self.turn_started(provider_turn.clone(), Origin::Unknown, None, moment, out);
        }
        let Some(open) = self.turn_of(provider_turn) else {
            return;
        };
        let (turn, asked_to_stop) = (open.id.clone(), open.interrupted_at.is_some());
        // The message that it answers, and one that was to go into it.
        let unproven: Vec<SubmissionId> = self
            .submissions
            .iter()
            .filter(|of| matches!(of.state, SubmissionState::Delivered { .. }))
            .filter(|of| {
                let into_this = || of.given_into.as_ref() == Some(&turn);
                open.submission.as_ref() == Some(&of.id)
                    || (into_this() && !moment.capabilities.steers_carry_over)
            })
            .map(|of| of.id.clone())
            .collect();
        let over_budget = open.budget.is_some();
        // Why it was stopped, in the words that the agent had for it.
        let stalled = open.retrying.as_ref().filter(|_| open.budget == Some(Budget::Stall));
        let failure = failure.or_else(|| {
            let words = format!("nothing came of trying again for too long: {}", stalled?.message);
            Some(Failure::new(FailureCode::Network, words))
        });
        let outcome = match outcome {
            Outcome::Cancelled | Outcome::Interrupted if over_budget => Outcome::Limit,
            Outcome::Cancelled if asked_to_stop => Outcome::Interrupted,
            other => other,
        };
        let settles_by =
            if moment.capabilities.settles_by_history { SettlesBy::History } else { SettlesBy::User };
        for submission in unproven {
            let event = Event::SubmissionDoubtful { submission, settles_by, stopped: asked_to_stop };
            self.emit(out, moment.now, event);
        }
        self.end_turn(&turn, outcome, stop_reason, failure, usage, moment, out);
        self.advance(moment, out);
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one event, and where they go")]
    pub(super) fn end_turn(
        &mut self,
        turn: &TurnId,
        outcome: Outcome,
        stop_reason: Option<StopReason>,
        failure: Option<Failure>,
        usage: Option<Value>,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        self.cut_items(Some(turn), moment, out);
        let end = if outcome == Outcome::Lost { RequestEnd::Lost } else { RequestEnd::Cancelled };
        self.close_requests(|open| open.turn.as_ref() == Some(turn), end, &[], moment, out);
        let started_at =
            self.turns.iter().find(|open| open.id == *turn).map_or(moment.now, |open| open.started_at);
        let ended = Event::TurnEnded { turn: turn.clone(), outcome, stop_reason, failure, usage, started_at };
        self.emit(out, moment.now, ended);
    }

    /// Closes these open requests: pending ones as `pending_end`, answered ones as answered, unconfirmed. Lost ones among
    /// `again` are to be asked again.
    pub(super) fn close_requests(
        &mut self,
        which: impl Fn(&OpenRequest) -> bool,
        pending_end: RequestEnd,
        again: &[RequestId],
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        let closed = |open: &OpenRequest| {
            let (state, confirmed) = match &open.state {
                RequestState::Pending => (pending_end, None),
                RequestState::Answering { answer, .. } => (end_of_answer(answer, &open.options), Some(false)),
            };
            Event::RequestClosed {
                request: open.id.clone(),
                revision: open.revision + 1,
                state,
                confirmed,
                answered: open.answered,
                asked_again: state == RequestEnd::Lost && again.contains(&open.id),
            }
        };
        let ends: Vec<Event> = self.requests.iter().filter(|open| which(open)).map(closed).collect();
        for end in ends {
            self.emit(out, moment.now, end);
        }
    }

    fn request_opened(&mut self, asked: AskedByAgent, moment: &Moment<'_>, out: &mut Out) {
        let Some(process) = self.process.clone() else {
            return;
        };
        if self.requests.iter().any(|open| open.key == asked.key) {
            // Asked again, on another connection.
            return self.mark_request(&asked.key, false, moment, out);
        }
        let turn = asked.turn.as_ref().and_then(|turn| self.turn_of(turn)).map(|turn| turn.id.clone());
        let item = asked.item.as_ref().and_then(|key| self.item_by_key(key)).map(|item| item.id.clone());
        let deadline = self.request_deadline(&asked.options, moment);
        // The agent was told what to ask again before a stop that was meant for it.
        let waits = |before: &RequestId| self.cut_off_requests.iter().any(|(request, _)| request == before);
        let taken_back = self.work_stopped
            && self.phase == Phase::Opening
            && asked.recovers.as_ref().is_some_and(|before| !waits(before));
        let opened = Event::RequestOpened {
            request: self.next_request(),
            key: asked.key,
            revision: 1,
            process,
            turn: turn.clone(),
            item,
            kind: asked.kind,
            title: asked.title,
            options: asked.options,
            details: asked.details,
            child: asked.child,
            tool_kind: asked.tool_kind,
            questions: asked.questions,
            elicitation: asked.elicitation,
            expires_at: asked.expires_at,
            deadline,
            recovers: asked.recovers,
        };
        self.emit(out, moment.now, opened);
        if taken_back && let Some(request) = self.requests.last().map(|open| open.id.clone()) {
            let taken_back = |open: &OpenRequest| open.id == request;
            self.close_requests(taken_back, RequestEnd::Cancelled, &[], moment, out);
        }
        if let Some(turn) = turn
            && self.turns.iter().any(|open| open.id == turn && !open.waiting)
        {
            self.emit(out, moment.now, Event::TurnWaiting { turn });
        }
    }

    /// An id that no other request ever has: the count alone begins anew where the journal was rewound.
    fn next_request(&self) -> RequestId {
        let (id, number) = (&self.id, self.request_count + 1);
        RequestId(match self.epoch {
            1 => format!("{id}.r{number}"),
            epoch => format!("{id}.e{epoch}.r{number}"),
        })
    }

    fn mark_request(&mut self, key: &RequestKey, unconfirmed: bool, moment: &Moment<'_>, out: &mut Out) {
        let Some(open) = self.requests.iter().find(|open| open.key == *key) else { return };
        if open.unconfirmed != unconfirmed {
            let (request, revision) = (open.id.clone(), open.revision);
            self.emit(out, moment.now, Event::RequestUpdated { request, revision, unconfirmed });
        }
    }

    fn request_settled(&mut self, key: &RequestKey, confirmed: bool, moment: &Moment<'_>, out: &mut Out) {
        let Some(open) = self.requests.iter().find(|open| open.key == *key) else {
            return;
        };
        let (state, confirmed) = match &open.state {
            RequestState::Pending => (RequestEnd::Superseded, None),
            RequestState::Answering { answer, .. } => (end_of_answer(answer, &open.options), Some(confirmed)),
        };
        let (request, revision, answered) = (open.id.clone(), open.revision + 1, open.answered);
        let asked_again = false;
        let closed = Event::RequestClosed { request, revision, state, confirmed, answered, asked_again };
        self.emit(out, moment.now, closed);
        self.resume_turn_without_requests(moment, out);
    }

    pub(super) fn resume_turn_without_requests(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let free: Vec<TurnId> = self
            .turns
            .iter()
            .filter(|turn| {
                turn.waiting && !self.requests.iter().any(|open| open.turn.as_ref() == Some(&turn.id))
            })
            .map(|turn| turn.id.clone())
            .collect();
        for turn in free {
            self.emit(out, moment.now, Event::TurnResumed { turn });
        }
    }

    pub(super) fn notice(&mut self, level: NoticeLevel, message: String, moment: &Moment<'_>, out: &mut Out) {
        self.emit(out, moment.now, Event::Notice { level, message, provider: None });
    }
}
