//! What clients ask, and how queued messages go on.

use super::state::{OpenRequest, OpenSubmission, Phase, RequestState, Session, SubmissionState};
use super::{Command, Effect, MAX_QUEUED, Moment, Out, Reply};
use crate::agent::Decision;
use crate::content::{Answer, ContentBlock, Delivery, DeliveryTaken, MAX_CONTENT_BYTES, OptionKind};
use crate::event::{Event, QueueReason, RequestEnd};
use crate::process::{CloseOrder, ExitCause, ProcessExit};
use crate::{Refusal, RefusalCode, RequestId, SubmissionId};

impl Session {
    pub(super) fn on_command(
        &mut self,
        command: Command,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        if self.deleted {
            return Err(Refusal::new(RefusalCode::SessionClosed, format!("session {} is deleted", self.id)));
        }
        match command {
            Command::Send { submission, content, delivery, resends } => {
                self.send(submission, content, delivery, resends, moment, out)
            }
            Command::Interrupt => Ok(self.interrupt(moment, out)),
            Command::Answer { request, revision, answer, by } => {
                self.answer(&request, revision, answer, by, moment, out)
            }
            Command::Withdraw { submission } => self.withdraw(submission, moment, out),
            Command::ResumeQueue => {
                if self.queue_paused {
                    self.emit(out, moment.now, queue_paused(false));
                    self.advance(moment, out);
                }
                Ok(Reply::Done)
            }
            Command::Start => {
                self.refuse_closed()?;
                self.clear_recovering(moment, out);
                if self.phase == Phase::Free {
                    self.acquire(moment, out);
                }
                Ok(Reply::Done)
            }
            Command::Stop { order } => {
                self.stop_process(order, moment, out);
                Ok(Reply::Done)
            }
            Command::Update { name, options, archived } => {
                self.emit(
                    out,
                    moment.now,
                    Event::SessionUpdated { name, options, archived, queue_paused: None },
                );
                Ok(Reply::Done)
            }
            Command::Delete => {
                self.stop_process(CloseOrder::User, moment, out);
                self.emit(out, moment.now, Event::SessionDeleted {});
                Ok(Reply::Done)
            }
            Command::Abandon => {
                if self.phase != Phase::Free {
                    if self.unverifiable.is_none() {
                        return Err(Refusal::new(
                            RefusalCode::SubmissionState,
                            "the process is known to be alive; stop it instead of giving it up",
                        ));
                    }
                    self.settle_exit(ProcessExit::of(ExitCause::Abandoned), moment, out);
                }
                self.clear_recovering(moment, out);
                self.advance(moment, out);
                Ok(Reply::Done)
            }
            Command::StartFresh => {
                self.refuse_closed()?;
                if self.phase != Phase::Free {
                    return Err(Refusal::new(
                        RefusalCode::SubmissionState,
                        "the agent still holds the conversation; stop it first",
                    ));
                }
                self.emit(out, moment.now, Event::SessionRecovering { failure: None, start_fresh: true });
                self.advance(moment, out);
                Ok(Reply::Done)
            }
        }
    }

    /// Orders the end of the process, durably: a host that dies before it is told is followed by one that tells it.
    pub(super) fn stop_process(&mut self, order: CloseOrder, moment: &Moment<'_>, out: &mut Out) {
        let Some(process) = self.process.clone().filter(|_| self.phase != Phase::Free) else { return };
        if self.stopping != Some(order) {
            self.emit(out, moment.now, Event::ProcessStopping { process, order });
        }
        out.effects.push(Effect::Close { order });
    }

    fn refuse_closed(&self) -> Result<(), Refusal> {
        if self.archived {
            return Err(Refusal::new(
                RefusalCode::SessionClosed,
                format!("session {} is archived; take it out of the archive first", self.id),
            ));
        }
        Ok(())
    }

    fn clear_recovering(&mut self, moment: &Moment<'_>, out: &mut Out) {
        if self.recovering.is_some() {
            self.emit(out, moment.now, Event::SessionRecovering { failure: None, start_fresh: false });
        }
    }

    fn send(
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
        let turn_runs = !self.turns.is_empty() || self.input_untaken();
        let taken_as = match (delivery, turn_runs) {
            (Delivery::Steer, false) => {
                return Err(Refusal::new(RefusalCode::NoTurn, "no turn runs that could be steered"));
            }
            (Delivery::Interrupt, true) => DeliveryTaken::Interrupt,
            (_, true) => DeliveryTaken::Queue,
            (_, false) if self.submissions.iter().any(OpenSubmission::waits) => DeliveryTaken::Queue,
            (_, false) => DeliveryTaken::Start,
        };
        self.clear_recovering(moment, out);
        if taken_as == DeliveryTaken::Interrupt {
            self.interrupt(moment, out);
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

    /// Drives the queue: gives the agent the next message if it may have it, else says once what it waits for. Every
    /// gate is derived anew each time.
    pub(super) fn advance(&mut self, moment: &Moment<'_>, out: &mut Out) {
        if self.deleted || self.archived {
            return;
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
        } else {
            match self.phase {
                Phase::Held => {
                    self.handing = Some(id.clone());
                    out.effects.push(Effect::Tell(Decision::StartTurn {
                        submission: id,
                        content: next.content.clone(),
                        options: self.options.clone(),
                    }));
                    return;
                }
                Phase::Free => {
                    self.acquire(moment, out);
                    QueueReason::Starting
                }
                Phase::Reserved | Phase::Spawned | Phase::Opening => QueueReason::Starting,
            }
        };
        let told = self.submission(&id).is_some_and(
            |open| matches!(&open.state, SubmissionState::Accepted { waits } if *waits == Some(reason)),
        );
        if !told {
            self.emit(out, moment.now, Event::SubmissionQueued { submission: id, reason });
        }
    }

    fn acquire(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let fence = self.fence.next();
        let process = moment.fresh.clone();
        self.emit(out, moment.now, Event::LeaseReserved { process: process.clone() });
        out.effects.push(Effect::Acquire { process, fence });
    }

    /// Stops what runs: never refused, also with no turn id known yet.
    fn interrupt(&mut self, moment: &Moment<'_>, out: &mut Out) -> Reply {
        let mut withdrawn = Vec::new();
        let mut pending = false;
        let turn = self.turns.last().map(|turn| (turn.id.clone(), turn.provider.clone(), turn.interrupted));
        let stopped = match turn {
            Some((turn, provider, already)) => {
                if !already {
                    self.emit(out, moment.now, Event::InterruptRequested { turn: Some(turn.clone()) });
                }
                self.cancel_pending_requests(moment, out);
                out.effects.push(Effect::Tell(Decision::Interrupt { turn: Some(provider) }));
                Some(turn)
            }
            None if self.input_untaken() => {
                pending = true;
                if !self.interrupt_pending {
                    self.emit(out, moment.now, Event::InterruptRequested { turn: None });
                }
                out.effects.push(Effect::Tell(Decision::Interrupt { turn: None }));
                None
            }
            None => {
                let head = self.submissions.iter().find(|open| open.waits()).map(|open| open.id.clone());
                if let Some(submission) = head {
                    self.emit(out, moment.now, Event::SubmissionCancelled { submission: submission.clone() });
                    withdrawn.push(submission);
                }
                None
            }
        };
        let waiting = self.submissions.iter().any(OpenSubmission::waits);
        if waiting {
            self.emit(out, moment.now, queue_paused(true));
        }
        Reply::Interrupted { turn: stopped, withdrawn, pending, queue_paused: waiting || self.queue_paused }
    }

    fn cancel_pending_requests(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let pending: Vec<(RequestId, u64)> = self
            .requests
            .iter()
            .filter(|open| open.state == RequestState::Pending)
            .map(|open| (open.id.clone(), open.revision + 1))
            .collect();
        for (request, revision) in pending {
            let state = RequestEnd::Cancelled;
            self.emit(out, moment.now, Event::RequestClosed { request, revision, state, confirmed: None });
        }
    }

    fn answer(
        &mut self,
        request: &RequestId,
        revision: Option<u64>,
        answer: Answer,
        by: String,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        let Some(open) = self.requests.iter().find(|open| open.id == *request) else {
            return Err(self.closed_refusal(request));
        };
        if let RequestState::Answering { answer, by } = &open.state {
            let mut refusal = Refusal::new(
                RefusalCode::AlreadyAnswered,
                format!("request {request} was answered by {by}; the first answer wins"),
            );
            refusal.revision = Some(open.revision);
            refusal.winner = Some((answer.clone(), by.clone()));
            return Err(refusal);
        }
        if let Some(seen) = revision
            && seen != open.revision
        {
            let mut refusal = Refusal::new(
                RefusalCode::RevisionMismatch,
                format!(
                    "request {request} is at revision {}, the answer names {seen}; read it again",
                    open.revision
                ),
            );
            refusal.revision = Some(open.revision);
            return Err(refusal);
        }
        check_option(open, &answer)?;
        if self.unverifiable.is_some() {
            return Err(Refusal::new(
                RefusalCode::ProcessUnverifiable,
                "the agent's process can be proven neither alive nor gone; recover the session first",
            ));
        }
        let (key, options, revision) = (open.key.clone(), open.options.clone(), open.revision + 1);
        let answered =
            Event::RequestAnswered { request: request.clone(), revision, answer: answer.clone(), by };
        self.emit(out, moment.now, answered);
        let end = end_of_answer(&answer, &options);
        out.effects.push(Effect::Tell(Decision::Answer { key, answer, options }));
        if !moment.capabilities.confirms_answers {
            let closed = Event::RequestClosed {
                request: request.clone(),
                revision: revision + 1,
                state: end,
                confirmed: None,
            };
            self.emit(out, moment.now, closed);
            self.resume_turn_without_requests(moment, out);
        }
        Ok(Reply::Answered { request: request.clone(), revision })
    }

    fn closed_refusal(&self, request: &RequestId) -> Refusal {
        let Some(closed) = self.closed_requests.iter().rev().find(|closed| closed.id == *request) else {
            return Refusal::new(
                RefusalCode::RequestUnknown,
                format!("session {} has no request {request} that could still be answered", self.id),
            );
        };
        let mut refusal = match &closed.winner {
            Some((_, by)) => Refusal::new(
                RefusalCode::AlreadyAnswered,
                format!("request {request} was answered by {by}; the first answer wins"),
            ),
            None => Refusal::new(
                RefusalCode::RequestClosed,
                format!("request {request} ended without an answer ({})", request_end_name(closed.end)),
            ),
        };
        refusal.revision = Some(closed.revision);
        refusal.winner.clone_from(&closed.winner);
        refusal
    }

    fn withdraw(
        &mut self,
        submission: SubmissionId,
        moment: &Moment<'_>,
        out: &mut Out,
    ) -> Result<Reply, Refusal> {
        let Some(open) = self.submission(&submission) else {
            return Err(Refusal::new(
                RefusalCode::SubmissionUnknown,
                format!("session {} has no open message {submission}", self.id),
            ));
        };
        let event = match open.state {
            SubmissionState::Accepted { .. } => Event::SubmissionCancelled { submission },
            SubmissionState::Doubtful { .. } => Event::SubmissionDropped { submission },
            SubmissionState::Delivered { .. } => {
                return Err(Refusal::new(
                    RefusalCode::SubmissionState,
                    format!("message {submission} is with the agent; interrupt the turn instead"),
                ));
            }
        };
        self.emit(out, moment.now, event);
        self.advance(moment, out);
        Ok(Reply::Done)
    }
}

const fn queue_paused(paused: bool) -> Event {
    Event::SessionUpdated { name: None, options: None, archived: None, queue_paused: Some(paused) }
}

const fn request_end_name(end: RequestEnd) -> &'static str {
    match end {
        RequestEnd::Answered => "answered",
        RequestEnd::Declined => "declined",
        RequestEnd::Cancelled => "cancelled",
        RequestEnd::Superseded => "superseded",
        RequestEnd::Lost => "lost",
    }
}

/// How a request ends that got this answer.
pub(super) fn end_of_answer(answer: &Answer, options: &[crate::content::PermissionOption]) -> RequestEnd {
    match answer {
        Answer::Cancel { .. } => RequestEnd::Cancelled,
        Answer::Decline { .. } => RequestEnd::Declined,
        Answer::Select { option_id } => {
            let kind = options.iter().find(|option| option.option_id == *option_id).map(|option| option.kind);
            match kind {
                Some(OptionKind::RejectOnce | OptionKind::RejectAlways) => RequestEnd::Declined,
                _ => RequestEnd::Answered,
            }
        }
    }
}

fn check_option(open: &OpenRequest, answer: &Answer) -> Result<(), Refusal> {
    let Answer::Select { option_id } = answer else {
        return Ok(());
    };
    if open.options.iter().any(|option| option.option_id == *option_id) {
        return Ok(());
    }
    let offered: Vec<&str> = open.options.iter().map(|option| option.option_id.as_str()).collect();
    Err(Refusal::new(
        RefusalCode::OptionUnknown,
        format!("request {} has no option {option_id:?}; it offers {}", open.id, offered.join(", ")),
    ))
}

fn check_content(content: &[ContentBlock], moment: &Moment<'_>) -> Result<(), Refusal> {
    let mut bytes = 0;
    for block in content {
        bytes += match block {
            ContentBlock::Text { text } => text.len(),
            ContentBlock::Image { .. } if !moment.capabilities.images => {
                return Err(Refusal::new(
                    RefusalCode::Unsupported,
                    "this agent takes no images (capability images)",
                ));
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
