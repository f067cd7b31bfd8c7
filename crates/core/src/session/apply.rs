//! The fold: how each event changes the state. The same function for live work and for recovery.

use super::state::{
    ClosedRequest, Link, OpenItem, OpenRequest, OpenSubmission, OpenTurn, Phase, RequestState, Session,
    SubmissionState,
};
use super::{CHAIN_LINKS, REMEMBERED};
use crate::content::{ContentBlock, Delivery, DeliveryTaken, ItemKind, Outcome};
use crate::digest::TextDigest;
use crate::event::{Event, LeaseEnd, QueueReason, RequestEnd};
use crate::{Cursor, Fence, ItemId, RequestId, SubmissionId, TurnId};
use std::collections::VecDeque;

fn remember<T>(memory: &mut VecDeque<T>, value: T) {
    if memory.len() == REMEMBERED {
        memory.pop_front();
    }
    memory.push_back(value);
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
            Event::SessionUpdated { name, options, archived, queue_paused } => {
                if let Some(name) = name {
                    self.name.clone_from(name);
                }
                if let Some(options) = options {
                    self.options.clone_from(options);
                }
                if let Some(archived) = archived {
                    self.archived = *archived;
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
            Event::SessionImported { session, launch, .. } => {
                self.id = session.clone();
                self.launch = launch.clone();
                self.recovering = None;
                // Its thread belongs to the session that the file was made of.
                self.replace_thread = true;
                self.first_turn_deaths = 0;
            }
            Event::SessionDeleted {} => self.deleted = true,
            Event::LeaseReserved { process } => {
                self.phase = Phase::Reserved;
                self.process = Some(process.clone());
                self.unverifiable = None;
                self.turns_of_process = 0;
                // Everything the former process said has been read: none of its frames can still come, and the next
                // one may count its keys from the beginning.
                self.finished_items.clear();
                self.finished_turns.clear();
            }
            Event::LeaseHeld { .. } => self.phase = Phase::Held,
            Event::LeaseReleased { reason } => {
                self.phase = Phase::Free;
                self.process = None;
                self.unverifiable = None;
                self.stopping = None;
                self.interrupt_pending = false;
                if *reason == LeaseEnd::Abandoned {
                    self.first_turn_deaths = 0;
                }
            }
            Event::ProcessStarted { .. } => {
                self.phase = Phase::Spawned;
                self.unverifiable = None;
            }
            Event::ProcessReady { info, .. } => {
                self.agent = Some(info.clone());
                self.phase = Phase::Opening;
            }
            Event::ProcessAdopted { .. } => self.unverifiable = None,
            Event::ProcessUnverifiable { why, .. } => self.unverifiable = Some(why.clone()),
            Event::ProcessStopping { order, .. } => self.stopping = Some(*order),
            Event::ProcessExited { exit, .. } => {
                if !exit.cause.ordered() && self.stopping.is_none() && self.turns_of_process == 0 {
                    self.first_turn_deaths += 1;
                }
            }
            Event::ThreadLinked { thread, how, .. } => {
                self.replace_thread = false;
                if self.thread() != Some(thread) {
                    self.thread_used = false;
                    self.chain.push(Link { thread: thread.clone(), how: *how });
                    if self.chain.len() > CHAIN_LINKS {
                        self.chain.remove(1);
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
                self.turn_count += 1;
                self.turns.push(OpenTurn {
                    id: turn.clone(),
                    provider: provider_turn.clone(),
                    origin: *origin,
                    submission: submission.clone(),
                    started_at: at,
                    waiting: false,
                    interrupted: std::mem::take(&mut self.interrupt_pending),
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
            Event::TurnEnded { turn, outcome, .. } => self.apply_turn_ended(turn, *outcome),
            Event::ItemStarted { item, key, turn, kind, .. } => {
                self.item_count += 1;
                let ordinal = self.item_count;
                self.items.push(OpenItem {
                    id: item.clone(),
                    ordinal,
                    key: key.clone(),
                    turn: turn.clone(),
                    kind: *kind,
                    text: TextDigest::default(),
                });
            }
            Event::ItemDelta { item, text, .. } => {
                if let Some(open) = self.item_mut(item) {
                    open.text.push(text);
                }
            }
            Event::ItemUpdated { .. } => {}
            Event::ItemCompleted { item, .. } => self.apply_item_completed(item),
            Event::RequestOpened { request, key, revision, turn, options, .. } => {
                self.request_count += 1;
                self.requests.push(OpenRequest {
                    id: request.clone(),
                    key: key.clone(),
                    revision: *revision,
                    opened: Cursor { epoch: self.epoch, seq },
                    turn: turn.clone(),
                    options: options.clone(),
                    state: RequestState::Pending,
                });
            }
            Event::RequestAnswered { request, revision, answer, by } => {
                if let Some(open) = self.requests.iter_mut().find(|open| open.id == *request) {
                    open.revision = *revision;
                    open.state = RequestState::Answering { answer: answer.clone(), by: by.clone() };
                }
            }
            Event::RequestClosed { request, revision, state, .. } => {
                self.apply_request_closed(request, *revision, *state);
            }
            Event::InterruptRequested { turn } => match turn {
                Some(turn) => {
                    if let Some(open) = self.turn_mut(turn) {
                        open.interrupted = true;
                    }
                }
                None => self.interrupt_pending = true,
            },
            Event::OptionsUpdated { options } => self.options.clone_from(options),
            Event::SessionRecovering { failure, start_fresh } => {
                self.recovering.clone_from(failure);
                self.replace_thread |= *start_fresh;
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
            | Event::PlanUpdated { .. }
            | Event::UsageUpdated { .. }
            | Event::CommandsUpdated { .. }
            | Event::Notice { .. }
            | Event::EpochStarted { .. } => {}
        }
    }

    fn apply_turn_ended(&mut self, turn: &TurnId, outcome: Outcome) {
        self.interrupt_pending = false;
        if outcome != Outcome::Lost {
            self.turns_of_process += 1;
            self.first_turn_deaths = 0;
        }
        if let Some(at) = self.turns.iter().position(|open| open.id == *turn) {
            let ended = self.turns.remove(at);
            remember(&mut self.finished_turns, ended.provider);
        }
    }

    fn apply_item_completed(&mut self, item: &ItemId) {
        if let Some(at) = self.items.iter().position(|open| open.id == *item) {
            let done = self.items.remove(at);
            if let Some(key) = done.key {
                remember(&mut self.finished_items, (key, done.turn));
            }
        }
    }

    fn apply_request_closed(&mut self, request: &RequestId, revision: u64, end: RequestEnd) {
        if let Some(at) = self.requests.iter().position(|open| open.id == *request) {
            let open = self.requests.remove(at);
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
            self.interrupt_pending = false;
        }
        if let Some(open) = self.submission_mut(id) {
            open.state = state;
        }
        self.interrupt_pending &= self.input_untaken();
    }

    /// A taken one keeps a pending stop alive: its turn is still to be shown.
    fn forget_submission(&mut self, id: &SubmissionId, taken: bool) {
        self.submissions.retain(|open| open.id != *id);
        // A pause of nothing would hold back what is queued later, which nobody stopped.
        self.queue_paused &= self.submissions.iter().any(|open| open.paused);
        self.interrupt_pending &= taken || self.input_untaken();
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
