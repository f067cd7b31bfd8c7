//! The queue: messages accepted, steered, started, edited, moved and withdrawn.

use super::state::{Handing, OpenSubmission, OpenTurn, Phase, RequestState, Session, SubmissionState};
use super::{Effect, MAX_QUEUED, Moment, Out, Place, Reply};
use crate::agent::Decision;
use crate::content::{ContentBlock, Delivery, DeliveryTaken, MAX_CONTENT_BYTES};
use crate::event::{Event, QueueReason};
use crate::{Refusal, RefusalCode, SubmissionId};

impl Session {
    pub(super) fn send(
        &mut self,
        submission: SubmissionId,
        content: Vec<ContentBlock>,
        delivery: Delivery,
        resends: Option<SubmissionId>,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        self.refuse_closed()?;
        check_content(&content, moment)?;
        if self.submission(&submission).is_some() {
            return Err(Refusal::new(
                RefusalCode::IdConflict,
                format!("message id {submission} is taken by another message of this session"),
            ));
        }
        if self.submissions.len() >= MAX_QUEUED {
            return Err(Refusal::new(
                RefusalCode::QueueFull,
                format!("{MAX_QUEUED} messages wait already; withdraw some or let the agent work them off"),
            ));
        }
        let taken_as = self.taken_as(delivery, moment)?;
        self.clear_recovering(moment, out);
        if taken_as == DeliveryTaken::Interrupt {
            self.interrupt_for_message(moment, out);
        }
        let accepted = Event::SubmissionAccepted {
            submission: submission.clone(),
            content,
            delivery,
            taken_as,
            resends,
        };
        self.emit(out, moment.now, accepted);
        self.advance(moment, out);
        Ok(Reply::Accepted { submission, taken_as })
    }

    /// The row of the delivery table (contract section 3) that holds now.
    fn taken_as(&self, delivery: Delivery, moment: &Moment<'_>) -> Result<DeliveryTaken, Refusal> {
        let works = !self.turns.is_empty() || self.input_untaken() || self.asked_again();
        let runs = works || self.control_occupies();
        Ok(match (delivery, runs) {
            (Delivery::Steer, false) => {
                return Err(Refusal::new(RefusalCode::NoTurn, "no turn runs that could be steered"));
            }
            (Delivery::Auto | Delivery::Steer, true) if self.will_steer(moment) => DeliveryTaken::Steer,
            (Delivery::Interrupt, true) if works => DeliveryTaken::Interrupt,
            (_, true) => DeliveryTaken::Queue,
            (Delivery::Queue, false) if self.submissions.iter().any(|open| open.paused) => {
                DeliveryTaken::Queue
            }
            (_, false) if self.submissions.iter().any(OpenSubmission::waits) => DeliveryTaken::Queue,
            (_, false) => DeliveryTaken::Start,
        })
    }

    /// Whether the turn that runs, or that the untaken input starts, is one for further messages. One that a stop was
    /// asked for is not: a message sent after a stop is not swept away by it.
    fn will_steer(&self, moment: &Moment<'_>) -> bool {
        self.may_steer(moment)
            && match self.turns.last() {
                Some(turn) => turn.interrupted_at.is_none(),
                None => self.input_untaken() && self.interrupt_pending.is_none(),
            }
    }

    fn may_steer(&self, moment: &Moment<'_>) -> bool {
        moment.capabilities.steer
            && self.phase == Phase::Held
            && self.stopping.is_none()
            && self.unverifiable.is_none()
            && self.recovering.is_none()
    }

    /// The message that goes into the running turn now, and that turn.
    fn next_to_steer(&self, moment: &Moment<'_>) -> Option<(&OpenSubmission, &OpenTurn)> {
        if !self.may_steer(moment) || self.input_untaken() {
            return None;
        }
        let turn = self.turns.last().filter(|turn| turn.interrupted_at.is_none())?;
        let next = self.submissions.iter().find(|open| open.waits() && open.steers)?;
        Some((next, turn))
    }

    /// Drives the queue: gives the agent the next message if it may have it, else says once what it waits for. Every
    /// gate is derived anew each time.
    pub(super) fn advance(&mut self, moment: &Moment<'_>, out: &mut Out) {
        if self.deleted || self.archived {
            return;
        }
        self.tell_controls(moment, out);
        if let Some((next, turn)) = self.next_to_steer(moment) {
            let (submission, content) = (next.id.clone(), next.content.clone());
            let (steers, turn) = (Some(turn.id.clone()), turn.provider.clone());
            self.handing = Some(Handing { submission: submission.clone(), steers });
            out.effects.push(Effect::Tell(Decision::Steer { turn, submission, content }));
            return;
        }
        let wanted = self.control_waits() || !self.cut_off_requests.is_empty();
        if wanted && self.may_start() && !self.waits_to_retry(moment) {
            self.acquire(moment, out);
        }
        let Some(next) = self.submissions.iter().find(|open| open.waits()) else {
            return;
        };
        let id = next.id.clone();
        let reason = if self.unverifiable.is_some() || self.recovering.is_some() {
            QueueReason::Recovering
        } else if self.stopping.is_some() {
            QueueReason::Stopping
        } else if !self.turns.is_empty() {
            QueueReason::TurnRunning
        } else if self.input_untaken() {
            QueueReason::InputUntaken
        } else if self.control_occupies() {
            QueueReason::Control
        } else if self.asked_again() {
            QueueReason::Request
        } else if self.budget_used_up().is_some() {
            QueueReason::Budget
        } else {
            match self.phase {
                Phase::Held => {
                    self.handing = Some(Handing { submission: id.clone(), steers: None });
                    out.effects.push(Effect::Tell(Decision::StartTurn {
                        submission: id,
                        content: next.content.clone(),
                        options: self.options.clone(),
                    }));
                    return;
                }
                Phase::Free if self.waits_to_retry(moment) => QueueReason::Retrying,
                Phase::Free => {
                    self.acquire(moment, out);
                    QueueReason::Starting
                }
                Phase::Reserved if self.awaits_capacity => QueueReason::Capacity,
                Phase::Reserved | Phase::Spawned | Phase::Opening => QueueReason::Starting,
            }
        };
        let told = match self.submission(&id).map(|open| &open.state) {
            Some(SubmissionState::Accepted { waits: Some(told) }) => {
                // Why it does not steer says more than that a turn runs.
                let refused = matches!(told, QueueReason::NotSteerable | QueueReason::TurnOver);
                *told == reason || (refused && reason == QueueReason::TurnRunning)
            }
            _ => false,
        };
        if !told {
            self.emit(out, moment.now, Event::SubmissionQueued { submission: id, reason });
        }
    }

    /// Whether a request that a death cut off is open again. The agent would take it back with the next message.
    pub(super) fn asked_again(&self) -> bool {
        self.requests.iter().any(|open| open.recovers.is_some())
    }

    /// Whether such a request was answered and the agent has not gone on from the answer yet.
    pub(super) fn answered_again(&self) -> bool {
        let answered = |state: &RequestState| matches!(state, RequestState::Answering { .. });
        self.requests.iter().any(|open| open.recovers.is_some() && answered(&open.state))
    }

    /// Whether a process may be started by itself.
    fn may_start(&self) -> bool {
        self.phase == Phase::Free
            && self.unverifiable.is_none()
            && self.recovering.is_none()
            && self.stopping.is_none()
    }

    /// An open message that the agent does not have.
    fn in_queue(&self, submission: &SubmissionId) -> Result<&OpenSubmission, Refusal> {
        let open = self.submission(submission).ok_or_else(|| self.no_such(submission))?;
        match open.state {
            SubmissionState::Accepted { .. } => Ok(open),
            SubmissionState::Delivered { .. } => Err(with_the_agent(submission)),
            SubmissionState::Doubtful { .. } => Err(Refusal::new(
                RefusalCode::SubmissionState,
                format!("whether the agent has message {submission} is not known; drop it or send it again"),
            )),
        }
    }

    fn no_such(&self, submission: &SubmissionId) -> Refusal {
        Refusal::new(
            RefusalCode::SubmissionUnknown,
            format!("session {} has no open message {submission}", self.id),
        )
    }

    pub(super) fn edit(
        &mut self,
        submission: SubmissionId,
        revision: u64,
        content: Option<Vec<ContentBlock>>,
        place: Option<&Place>,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        let open = self.in_queue(&submission)?;
        if open.revision != revision {
            let mut refusal = Refusal::new(
                RefusalCode::RevisionMismatch,
                format!(
                    "message {submission} is at revision {}, the edit names {revision}; read it again",
                    open.revision
                ),
            );
            refusal.revision = Some(open.revision);
            return Err(refusal);
        }
        if let Some(content) = &content {
            check_content(content, moment)?;
        }
        let position = place.map(|place| self.position(&submission, place)).transpose()?;
        let revision = revision + 1;
        let changed = Event::SubmissionChanged {
            submission: submission.clone(),
            revision,
            content,
            position,
            paused: None,
        };
        self.emit(out, moment.now, changed);
        self.advance(moment, out);
        Ok(Reply::Changed { submission, revision })
    }

    /// Where a message comes to stand, counted without it.
    fn position(&self, submission: &SubmissionId, place: &Place) -> Result<usize, Refusal> {
        let mut others = self.submissions.iter().filter(|open| open.id != *submission);
        match place {
            Place::Last => Ok(others.count()),
            Place::Before(before) if before == submission => {
                Err(Refusal::new(RefusalCode::SubmissionState, "a message cannot stand before itself"))
            }
            Place::Before(before) => {
                others.position(|open| open.id == *before).ok_or_else(|| self.no_such(before))
            }
        }
    }

    pub(super) fn send_now(
        &mut self,
        submission: SubmissionId,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        self.refuse_closed()?;
        let open = self.in_queue(&submission)?;
        let revision = open.revision + 1;
        let paused = open.paused.then_some(false);
        // What the agent has, or may have, keeps its place: it was first.
        let front = self
            .submissions
            .iter()
            .position(|open| matches!(open.state, SubmissionState::Accepted { .. }))
            .unwrap_or_default();
        let changed = Event::SubmissionChanged {
            submission: submission.clone(),
            revision,
            content: None,
            position: Some(front),
            paused,
        };
        self.emit(out, moment.now, changed);
        self.advance(moment, out);
        Ok(Reply::Changed { submission, revision })
    }

    pub(super) fn withdraw(
        &mut self,
        submission: SubmissionId,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        let open = self.submission(&submission).ok_or_else(|| self.no_such(&submission))?;
        let event = match open.state {
            SubmissionState::Accepted { .. } => Event::SubmissionCancelled { submission },
            SubmissionState::Doubtful { .. } => Event::SubmissionDropped { submission },
            SubmissionState::Delivered { .. } => return Err(with_the_agent(&submission)),
        };
        self.emit(out, moment.now, event);
        self.advance(moment, out);
        Ok(Reply::Done)
    }
}

fn with_the_agent(submission: &SubmissionId) -> Refusal {
    Refusal::new(
        RefusalCode::SubmissionState,
        format!("message {submission} is with the agent; interrupt the turn instead"),
    )
}

fn check_content(content: &[ContentBlock], moment: &Moment<'_>) -> Result<(), Refusal> {
    let mut bytes = 0;
    for block in content {
        bytes += match block {
            ContentBlock::Text { text } => text.len(),
            ContentBlock::Image { .. } if !moment.capabilities.images => {
                return Err(Refusal::unsupported("images"));
            }
            ContentBlock::Image { data, .. } => data.len(),
            ContentBlock::ResourceLink { uri, name } => uri.len() + name.len(),
        };
    }
    if bytes == 0 {
        return Err(Refusal::new(RefusalCode::EmptyContent, "the message has no content"));
    }
    if bytes > MAX_CONTENT_BYTES {
        return Err(Refusal::new(
            RefusalCode::TooLarge,
            format!("the message has {bytes} bytes; at most {MAX_CONTENT_BYTES} can be sent"),
        ));
    }
    Ok(())
}
