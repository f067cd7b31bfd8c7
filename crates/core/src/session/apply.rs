//! The fold: how each event changes the state. The same function for live work and for recovery.

use super::leaving::{LeaveStep, Leaving};
use super::limits::Spent;
use super::state::{
    ClosedRequest, EndedChild, EndedTask, Link, OpenChild, OpenControl, OpenItem, OpenRequest,
    OpenSubmission, OpenTask, OpenTurn, PastTurn, Phase, RequestState, Retrying, RewoundTurns, Session,
    StartRetry, SubmissionState,
};
use super::{CHAIN_LINKS, ENDED_WORK_SHOWN, PAST_TURNS, REMEMBERED, REWOUND_RUNS};
use crate::content::{ContentBlock, Delivery, DeliveryTaken, ItemKind, Outcome};
use crate::digest::TextDigest;
use crate::event::{
    Event, LeaseEnd, OptionsState, QueueReason, RequestEnd, StopReach, StopStep, ThreadOrigin,
};
use crate::process::CloseOrder;
use crate::work::{Control, ControlEnd, HistoryPoint, Provenance};
use crate::{ControlId, Cursor, Fence, ItemId, ItemKey, RequestId, SessionOptions, SubmissionId, TurnId};
use std::collections::VecDeque;

fn remember<T>(memory: &mut VecDeque<T>, value: T) {
    if memory.len() == REMEMBERED {
        memory.pop_front();
    }
    memory.push_back(value);
}

/// Keeps what ended for people, the latest.
fn show_ended<T>(shown: &mut VecDeque<T>, value: T) {
    if shown.len() == ENDED_WORK_SHOWN {
        shown.pop_front();
    }
    shown.push_back(value);
}

/// Turns are numbered by us, from 1 on.
fn turn_number(turn: &TurnId) -> u64 {
    turn.as_str().trim_start_matches('t').parse().unwrap_or(u64::MAX)
}

impl Session {
    pub(super) fn apply_event(&mut self, seq: u64, at: i64, fence: Fence, event: &Event) {
        self.head = seq;
        self.fence = fence;
        match event {
            Event::SessionCreated { name, options, .. } => {
                self.name.clone_from(name);
                self.options.clone_from(options);
                self.created_at = at;
            }
            Event::SessionUpdated { name, options, archived, queue_paused, .. } => {
                if let Some(name) = name {
                    self.name.clone_from(name);
                }
                if let Some(options) = options {
                    self.options.clone_from(options);
                }
                if let Some(archived) = archived {
                    self.archived = *archived;
                    if *archived {
                        self.cut_off_requests.clear();
                    }
                }
                if let Some(paused) = queue_paused {
                    self.queue_paused = *paused;
                    for open in &mut self.submissions {
                        if matches!(open.state, SubmissionState::Accepted { .. }) {
                            open.paused = *paused;
                        }
                    }
                }
            }
            Event::SessionImported { session, launch, from, .. } => {
                self.imported = Some(from.clone());
                self.id = session.clone();
                self.launch = launch.clone();
                self.recovering = None;
                // Its thread belongs to the session that the file was made of.
                self.replace_thread = true;
                self.first_turn_deaths = 0;
            }
            Event::SessionDeleted {} => {
                self.deleted = true;
                self.cut_off_requests.clear();
            }
            Event::LeaseReserved { process } => {
                self.phase = Phase::Reserved;
                if let Some(retry) = &mut self.start_retry {
                    retry.next_at = None;
                }
                self.process = Some(process.clone());
                self.unverifiable = None;
                self.turns_of_process = 0;
                // Everything the former process said has been read: none of its frames can still come, and the next
                // one may count its keys from the beginning.
                self.finished_items.clear();
                self.finished_turns.clear();
                for ended in &mut self.ended_tasks {
                    ended.key = None;
                }
                self.options_told = None;
                if self.counts_by_process {
                    self.counter = Spent::default();
                }
            }
            Event::LeaseHeld { .. } => {
                self.phase = Phase::Held;
                self.start_retry = None;
                // What could be asked again was, before the thread was said to be open.
                self.cut_off_requests.clear();
            }
            Event::LeaseReleased { reason } => {
                self.phase = Phase::Free;
                self.process = None;
                self.awaits_capacity = false;
                self.unverifiable = None;
                self.stopping = None;
                self.leaving = None;
                self.interrupt_pending = None;
                self.work_stopped = false;
                if *reason == LeaseEnd::Abandoned {
                    self.first_turn_deaths = 0;
                    self.cut_off_requests.clear();
                }
            }
            Event::ProcessStarted { .. } => {
                self.phase = Phase::Spawned;
                self.awaits_capacity = false;
                self.unverifiable = None;
            }
            Event::ProcessReady { info, .. } => {
                self.agent = Some(info.clone());
                self.phase = Phase::Opening;
                self.options_told = Some(self.options.clone());
            }
            Event::ProcessAdopted { .. } => self.unverifiable = None,
            Event::ProcessUnverifiable { why, .. } => self.unverifiable = Some(why.clone()),
            Event::ProcessStopping { order, .. } => {
                self.stopping = Some(*order);
                if matches!(order, CloseOrder::User | CloseOrder::Kill) {
                    // Who ends the process does not want another one for what the one before it had asked.
                    self.cut_off_requests.clear();
                }
            }
            Event::ProcessLeaving { others, .. } => {
                let (since, step) =
                    self.leaving.as_ref().map_or((at, LeaveStep::Told), |before| (before.since, before.step));
                self.leaving = Some(Leaving { since, step, others: others.clone() });
            }
            Event::LeaseRefused { carried } => self.stale_refused = Some(*carried),
            Event::ProcessExited { exit, .. } => {
                if !exit.cause.ordered() && self.stopping.is_none() && self.turns_of_process == 0 {
                    self.first_turn_deaths += 1;
                }
            }
            Event::ThreadLinked { thread, how, brought_turns, .. } => {
                self.brought_turns = self.brought_turns.saturating_add(*brought_turns);
                self.replace_thread = false;
                self.asked_to_replace = None;
                if self.thread() != Some(thread) {
                    // What was brought here has a life before this session: it is never taken for one that can be made anew.
                    self.thread_used = *how == ThreadOrigin::Adopted;
                    self.past_turns.clear();
                    self.resume_at = None;
                    self.chain.push(Link { thread: thread.clone(), how: *how });
                    if self.chain.len() > CHAIN_LINKS {
                        self.chain.remove(1);
                        self.chain_cut += 1;
                    }
                }
            }
            Event::SubmissionAccepted { submission, content, delivery, taken_as, .. } => {
                // What is queued behind a pause waits with those before it.
                let paused = *delivery == Delivery::Queue && self.submissions.iter().any(|open| open.paused);
                self.submissions.push(OpenSubmission {
                    id: submission.clone(),
                    content: content.clone(),
                    state: SubmissionState::Accepted { waits: None },
                    paused,
                    revision: 1,
                    steers: *taken_as == DeliveryTaken::Steer,
                    given_into: None,
                });
            }
            Event::SubmissionQueued { submission, reason } => self.apply_queued(submission, *reason),
            Event::SubmissionChanged { submission, revision, content, position, paused } => {
                self.apply_changed(submission, *revision, content.as_deref(), *position, *paused);
            }
            Event::SubmissionDelivered { submission, process, input, steers } => {
                self.work_stopped = false;
                if steers.is_none() {
                    self.options_told = Some(self.options.clone());
                }
                let state = SubmissionState::Delivered { process: process.clone(), input: *input };
                self.set_submission(submission, state);
                if let Some(open) = self.submission_mut(submission) {
                    open.given_into.clone_from(steers);
                }
            }
            Event::SubmissionDoubtful { submission, settles_by, stopped } => {
                self.set_submission(
                    submission,
                    SubmissionState::Doubtful { settles_by: *settles_by, stopped: *stopped },
                );
            }
            Event::SubmissionTaken { submission, .. } => {
                self.thread_used = true;
                self.resume_at = None;
                self.forget_submission(submission, true);
            }
            Event::SubmissionRejected { submission, .. }
            | Event::SubmissionCancelled { submission }
            | Event::SubmissionDropped { submission } => self.forget_submission(submission, false),
            Event::InputRefused { submission, .. } => {
                if let Some(submission) = submission {
                    self.set_submission(submission, SubmissionState::Accepted { waits: None });
                }
            }
            Event::TurnStarted { turn, provider_turn, origin, submission } => {
                // One that a stop was meant for is no new work.
                self.work_stopped &= self.interrupt_pending.is_some();
                self.turn_count += 1;
                if self.stopping.is_none() {
                    // The conversation has gone on from there; what a process says that ends is of before.
                    self.resume_at = None;
                }
                self.turns.push(OpenTurn {
                    id: turn.clone(),
                    provider: provider_turn.clone(),
                    origin: *origin,
                    submission: submission.clone(),
                    started_at: at,
                    waiting: false,
                    interrupted_at: self.interrupt_pending.take(),
                    retrying: None,
                    budget: None,
                    last_item: None,
                });
            }
            Event::TurnUpdated { turn, origin, submission } => {
                if let Some(open) = self.turn_mut(turn) {
                    open.origin = *origin;
                    open.submission.clone_from(submission);
                }
            }
            Event::TurnWaiting { turn } => {
                if let Some(open) = self.turn_mut(turn) {
                    open.waiting = true;
                }
            }
            Event::TurnResumed { turn } => {
                if let Some(open) = self.turn_mut(turn) {
                    open.waiting = false;
                }
            }
            Event::TurnEnded { turn, outcome, .. } => self.apply_turn_ended(turn, *outcome, at),
            Event::ItemStarted { item, key, turn, kind, fields } => {
                self.shows_work(turn.as_ref());
                self.item_count += 1;
                let ordinal = self.item_count;
                self.items.push(OpenItem {
                    id: item.clone(),
                    ordinal,
                    key: key.clone(),
                    turn: turn.clone(),
                    child: fields.child.clone(),
                    kind: *kind,
                    text: TextDigest::default(),
                });
            }
            Event::ItemDelta { item, offset, text } => {
                if let Some(open) = self.item_mut(item) {
                    // A row of several deltas may begin before what was folded already.
                    let known =
                        usize::try_from(open.text.bytes().saturating_sub(*offset)).unwrap_or(usize::MAX);
                    open.text.push(text.get(known..).unwrap_or_default());
                }
            }
            Event::ItemUpdated { .. } => {}
            Event::ItemCompleted { item, .. } => self.apply_item_completed(item),
            Event::RequestOpened {
                request,
                key,
                revision,
                turn,
                options,
                child,
                questions,
                elicitation,
                deadline,
                item,
                recovers,
                ..
            } => {
                self.request_count += 1;
                let call = self.call_of(item.as_ref(), recovers.as_ref());
                // From here on this one is what would be asked again.
                self.cut_off_requests.retain(|(before, _)| Some(before) != recovers.as_ref());
                self.requests.push(OpenRequest {
                    id: request.clone(),
                    key: key.clone(),
                    revision: *revision,
                    opened: Cursor { epoch: self.epoch, seq },
                    turn: turn.clone(),
                    call,
                    recovers: recovers.clone(),
                    child: child.clone(),
                    options: options.clone(),
                    questions: questions.clone(),
                    elicits: elicitation.is_some(),
                    unconfirmed: false,
                    deadline: deadline.clone(),
                    answered: None,
                    state: RequestState::Pending,
                });
            }
            Event::RequestUpdated { request, unconfirmed, .. } => {
                if let Some(open) = self.requests.iter_mut().find(|open| open.id == *request) {
                    open.unconfirmed = *unconfirmed;
                }
            }
            Event::RequestAnswered { request, revision, answer, by } => {
                let answered = Cursor { epoch: self.epoch, seq };
                if let Some(open) = self.requests.iter_mut().find(|open| open.id == *request) {
                    open.answered = Some(answered);
                    open.revision = *revision;
                    open.state = RequestState::Answering { answer: answer.clone(), by: by.clone() };
                }
            }
            Event::RequestClosed { request, revision, state, asked_again, .. } => {
                self.apply_request_closed(request, *revision, *state, *asked_again);
            }
            Event::InterruptRequested { turn, reach } => {
                self.work_stopped |=
                    self.phase != Phase::Free && matches!(reach, StopReach::Session | StopReach::Background);
                if *reach == StopReach::Session {
                    self.cut_off_requests.clear();
                }
                match turn {
                    Some(turn) => {
                        if let Some(open) = self.turn_mut(turn) {
                            open.interrupted_at.get_or_insert(at);
                        }
                    }
                    None if *reach == StopReach::Background => {}
                    // Else it was for requests alone that were to be asked again.
                    None => self.interrupt_pending = self.begins_unseen().then_some(at),
                }
            }
            Event::OptionsUpdated { options, state, by, .. } => self.apply_options(options, *state, *by),
            Event::TurnRetrying { turn, attempt, failure, .. } => {
                if let Some(open) = turn.as_ref().and_then(|turn| self.turn_mut(turn)) {
                    let since = open.retrying.as_ref().map_or(at, |retrying| retrying.since);
                    open.retrying = Some(Retrying {
                        since,
                        attempt: *attempt,
                        message: failure.message.clone(),
                        resets_at: failure.resets_at,
                    });
                }
            }
            Event::TaskStarted { task, key, kind, turn, fields } => {
                self.task_count += 1;
                self.tasks.push(OpenTask {
                    id: task.clone(),
                    key: key.clone(),
                    kind: *kind,
                    turn: turn.clone(),
                    fields: fields.clone(),
                    started_at: at,
                });
            }
            Event::TaskUpdated { task, fields } => {
                if let Some(open) = self.tasks.iter_mut().find(|open| open.id == *task) {
                    open.fields.merge(fields);
                }
            }
            Event::TaskEnded { task, outcome, fields, .. } => {
                if let Some(place) = self.tasks.iter().position(|open| open.id == *task) {
                    let mut open = self.tasks.remove(place);
                    open.fields.merge(fields);
                    show_ended(
                        &mut self.ended_tasks,
                        EndedTask {
                            id: open.id,
                            key: Some(open.key),
                            kind: open.kind,
                            fields: open.fields,
                            outcome: *outcome,
                            started_at: open.started_at,
                            ended_at: at,
                        },
                    );
                }
            }
            Event::ChildStarted { child, turn, fields } => {
                self.ended_children.retain(|ended| ended.thread != *child);
                self.children.push(OpenChild {
                    thread: child.clone(),
                    turn: turn.clone(),
                    fields: fields.clone(),
                    started_at: at,
                });
            }
            Event::ChildUpdated { child, fields } => {
                if let Some(open) = self.children.iter_mut().find(|open| open.thread == *child) {
                    open.fields.merge(fields);
                }
            }
            Event::ChildEnded { child, outcome, fields, .. } => {
                if let Some(place) = self.children.iter().position(|open| open.thread == *child) {
                    let mut open = self.children.remove(place);
                    open.fields.merge(fields);
                    show_ended(
                        &mut self.ended_children,
                        EndedChild {
                            thread: open.thread,
                            fields: open.fields,
                            outcome: *outcome,
                            started_at: open.started_at,
                            ended_at: at,
                        },
                    );
                }
            }
            Event::GoalUpdated { goal, .. } => self.goal.clone_from(goal),
            Event::StartRetrying { attempt, failure, next_at, .. } => {
                self.start_retry =
                    Some(StartRetry { attempt: *attempt, next_at: Some(*next_at), failure: failure.clone() });
            }
            Event::LimitsUpdated { limits } => self.limits.clone_from(limits),
            Event::SpentUpdated { spent, counter, of_process } => {
                (self.spent, self.counter) = (*spent, *counter);
                self.counts_by_process = *of_process;
            }
            Event::BudgetReached { budget, turn } => {
                if let Some(open) = self.turn_mut(turn) {
                    open.budget = Some(*budget);
                }
            }
            Event::ThreadRewound { before, last, resume_at } => {
                self.resume_at.clone_from(resume_at);
                self.apply_rewound(before, last.as_ref());
            }
            Event::StopEscalated { step: StopStep::Background, .. } => {
                self.leave_step(LeaveStep::Pressed, at);
            }
            Event::StopBlocked { others, .. } => {
                self.leave_step(LeaveStep::Blocked, at);
                if let Some(leaving) = &mut self.leaving {
                    leaving.others.clone_from(others);
                }
            }
            Event::ControlAsked { control, what, .. } => {
                self.control_count += 1;
                let (id, what) = (control.clone(), what.clone());
                self.controls.push(OpenControl { id, what, asked_at: at, told: false });
            }
            Event::ControlTold { control } => {
                if let Some(open) = self.controls.iter_mut().find(|open| open.id == *control) {
                    open.told = true;
                    if let Control::SetOptions { options, .. } = &open.what {
                        self.options_told = Some((**options).clone());
                    }
                }
            }
            Event::ControlEnded { control, end } => self.apply_control_ended(control, end),
            Event::SessionRecovering { never_saved: true, .. } => {
                self.replace_thread = true;
                self.asked_to_replace.clone_from(&self.process);
            }
            Event::SessionRecovering { failure, start_fresh, .. } => {
                self.recovering.clone_from(failure);
                self.replace_thread |= *start_fresh;
                if *start_fresh {
                    self.asked_to_replace = None;
                }
                self.start_retry = None;
                if failure.is_none() {
                    self.first_turn_deaths = 0;
                }
            }
            Event::ProviderFrame { frame, count, .. } => {
                self.unmodelled_count = *count;
                if let Some(frame) = frame {
                    self.unmodelled_bytes += frame.to_string().len() as u64;
                }
            }
            Event::StraysFound { .. }
            | Event::StopEscalated { step: StopStep::Process, .. }
            | Event::PlanUpdated { .. }
            | Event::UsageUpdated { .. }
            | Event::CommandsUpdated { .. }
            | Event::Notice { .. }
            | Event::EpochStarted { .. } => {}
        }
    }

    fn leave_step(&mut self, step: LeaveStep, at: i64) {
        if let Some(leaving) = &mut self.leaving {
            (leaving.step, leaving.since) = (step, at);
        }
    }

    fn apply_rewound(&mut self, before: &TurnId, last: Option<&TurnId>) {
        let to = last.cloned().unwrap_or_else(|| TurnId(format!("t{}", self.turn_count)));
        let kept = self.past_turns.iter().position(|past| past.id == *before);
        self.past_turns.truncate(kept.unwrap_or(self.past_turns.len()));
        // What was dropped before and lies within is dropped once.
        let within = |run: &RewoundTurns| turn_number(&run.from) >= turn_number(before);
        self.rewound.retain(|run| !within(run));
        if self.rewound.len() == REWOUND_RUNS {
            self.rewound.pop_front();
        }
        self.rewound.push_back(RewoundTurns { from: before.clone(), to });
    }

    fn apply_options(&mut self, options: &SessionOptions, state: OptionsState, by: Provenance) {
        let told = self.options_told.take();
        self.options_told = match (state, by) {
            // A wish, which the agent is still to be told.
            (OptionsState::Accepted, Provenance::User) => told,
            // The agent's own report beside a wish: what changed is so with the agent.
            (OptionsState::Accepted, _) => {
                told.map(|told| told.overlaid(&options.differing_from(&self.options)))
            }
            (OptionsState::Confirmed | OptionsState::Reverted, _) => told.map(|_| options.clone()),
        };
        match state {
            OptionsState::Accepted => {
                self.options_before.get_or_insert_with(|| self.options.clone());
            }
            OptionsState::Confirmed | OptionsState::Reverted => self.options_before = None,
        }
        self.options.clone_from(options);
    }

    fn apply_control_ended(&mut self, control: &ControlId, end: &ControlEnd) {
        let Some(place) = self.controls.iter().position(|open| open.id == *control) else { return };
        let ended = self.controls.remove(place);
        if ended.told && ended.what.needs_idle() {
            // A stop that was meant for it. What was taken may still show the turn that it begins; going back has none.
            let may_begin = matches!(end, ControlEnd::Done) && !matches!(ended.what, Control::Rewind { .. });
            self.interrupt_pending = self.interrupt_pending.filter(|_| may_begin || self.begins_unseen());
        }
        if let (Control::SetOptions { options, .. }, ControlEnd::Done) = (ended.what, end)
            && self.options_before.is_some()
        {
            // In force now, until a later change is confirmed too.
            self.options_before = Some(*options);
        }
    }

    /// New work of a turn: what was tried again has succeeded.
    fn shows_work(&mut self, turn: Option<&TurnId>) {
        if let Some(open) = turn.and_then(|turn| self.turn_mut(turn)) {
            open.retrying = None;
        }
    }

    fn apply_turn_ended(&mut self, turn: &TurnId, outcome: Outcome, ended_at: i64) {
        self.interrupt_pending = None;
        if outcome != Outcome::Lost {
            self.turns_of_process += 1;
            self.first_turn_deaths = 0;
        }
        if let Some(at) = self.turns.iter().position(|open| open.id == *turn) {
            let ended = self.turns.remove(at);
            // A clock that went backwards counts for nothing.
            let ran = u64::try_from(ended_at.saturating_sub(ended.started_at)).unwrap_or(0);
            self.turn_ms = self.turn_ms.saturating_add(ran);
            if self.past_turns.len() == PAST_TURNS {
                self.past_turns.pop_front();
            }
            let (turn, submission, last_item) = (ended.provider.clone(), ended.submission, ended.last_item);
            let point = HistoryPoint { turn, submission, last_item };
            self.past_turns.push_back(PastTurn { id: ended.id, point });
            remember(&mut self.finished_turns, ended.provider);
        }
    }

    fn apply_item_completed(&mut self, item: &ItemId) {
        if let Some(at) = self.items.iter().position(|open| open.id == *item) {
            let done = self.items.remove(at);
            if let Some(open) = done.turn.clone().and_then(|turn| self.turn_mut(&turn))
                && done.child.is_none()
                && done.key.is_some()
            {
                open.last_item.clone_from(&done.key);
            }
            if let Some(key) = done.key {
                remember(&mut self.finished_items, (key, done.turn));
            }
        }
    }

    /// The provider's key of the call that a request is about: of an open item, or of what the request before it was about.
    fn call_of(&self, item: Option<&ItemId>, recovers: Option<&RequestId>) -> Option<ItemKey> {
        let before = self.cut_off_requests.iter().find(|(request, _)| Some(request) == recovers);
        let open = || self.items.iter().find(|open| Some(&open.id) == item)?.key.clone();
        before.map(|(_, call)| call.clone()).or_else(open)
    }

    fn apply_request_closed(
        &mut self,
        request: &RequestId,
        revision: u64,
        end: RequestEnd,
        asked_again: bool,
    ) {
        if let Some(at) = self.requests.iter().position(|open| open.id == *request) {
            let open = self.requests.remove(at);
            if let Some(call) = open.call.filter(|_| asked_again) {
                self.cut_off_requests.push((open.id.clone(), call));
            }
            let winner = match open.state {
                RequestState::Pending => None,
                RequestState::Answering { answer, by } => Some((answer, by)),
            };
            remember(&mut self.closed_requests, ClosedRequest { id: open.id, end, revision, winner });
        }
    }

    fn apply_queued(&mut self, id: &SubmissionId, reason: QueueReason) {
        self.set_submission(id, SubmissionState::Accepted { waits: Some(reason) });
        self.queue_paused |= reason == QueueReason::Paused;
        self.awaits_capacity |= reason == QueueReason::Capacity;
        if let Some(open) = self.submission_mut(id) {
            open.paused |= reason == QueueReason::Paused;
            open.steers &= !matches!(reason, QueueReason::NotSteerable | QueueReason::TurnOver);
        }
    }

    fn apply_changed(
        &mut self,
        id: &SubmissionId,
        revision: u64,
        content: Option<&[ContentBlock]>,
        position: Option<usize>,
        paused: Option<bool>,
    ) {
        let Some(at) = self.submissions.iter().position(|open| open.id == *id) else { return };
        let mut open = self.submissions.remove(at);
        open.revision = revision;
        if let Some(content) = content {
            open.content = content.to_vec();
        }
        if let Some(paused) = paused {
            open.paused = paused;
        }
        let at = position.unwrap_or(at).min(self.submissions.len());
        self.submissions.insert(at, open);
        self.queue_paused &= self.submissions.iter().any(|open| open.paused);
    }

    fn set_submission(&mut self, id: &SubmissionId, state: SubmissionState) {
        if matches!(state, SubmissionState::Delivered { .. }) {
            // A stop was meant for what was with the agent when it was asked for, never for what comes after it.
            self.interrupt_pending = None;
        }
        if let Some(open) = self.submission_mut(id) {
            open.state = state;
        }
        self.interrupt_pending = self.interrupt_pending.filter(|_| self.begins_unseen());
    }

    /// A taken one keeps a pending stop alive: its turn is still to be shown.
    fn forget_submission(&mut self, id: &SubmissionId, taken: bool) {
        self.submissions.retain(|open| open.id != *id);
        // A pause of nothing would hold back what is queued later, which nobody stopped.
        self.queue_paused &= self.submissions.iter().any(|open| open.paused);
        self.interrupt_pending = self.interrupt_pending.filter(|_| taken || self.begins_unseen());
    }

    fn submission_mut(&mut self, id: &SubmissionId) -> Option<&mut OpenSubmission> {
        self.submissions.iter_mut().find(|open| open.id == *id)
    }

    fn turn_mut(&mut self, id: &TurnId) -> Option<&mut OpenTurn> {
        self.turns.iter_mut().find(|turn| turn.id == *id)
    }

    fn item_mut(&mut self, id: &ItemId) -> Option<&mut OpenItem> {
        // The item that streams is nearly always the newest one.
        self.items.iter_mut().rev().find(|item| item.id == *id)
    }

    /// Whether text of this kind is folded (every kind that has deltas).
    #[must_use]
    pub const fn folds_text(kind: ItemKind) -> bool {
        !matches!(kind, ItemKind::Plan | ItemKind::Notice)
    }
}
