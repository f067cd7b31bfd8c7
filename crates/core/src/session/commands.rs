//! What clients ask.

use super::state::{ClosedRequest, OpenRequest, OpenSubmission, Phase, RequestState, Session};
use super::{Command, Effect, Moment, Out, Reply};
use crate::agent::Decision;
use crate::content::{Answer, MAX_CONTENT_BYTES, OptionKind};
use crate::event::{Event, RequestEnd};
use crate::process::{CloseOrder, ExitCause, ProcessExit};
use crate::question;
use crate::work::{Control, HistoryPoint, Provenance};
use crate::{Cursor, Refusal, RefusalCode, RequestId, TurnId};

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
            Command::Interrupt(scope) => Ok(self.stop(scope, moment, out)),
            Command::Answer { request, revision, answer, by } => {
                self.answer(&request, revision, answer, by, moment, out)
            }
            Command::Withdraw { submission } => self.withdraw(submission, moment, out),
            Command::Edit { submission, revision, content, place } => {
                self.edit(submission, revision, content, place.as_ref(), moment, out)
            }
            Command::SendNow { submission } => self.send_now(submission, moment, out),
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
                if self.phase == super::Phase::Free && matches!(order, CloseOrder::User | CloseOrder::Kill) {
                    // The next start would be made for these.
                    self.stop_cut_off(moment, out);
                }
                Ok(Reply::Done)
            }
            Command::Update { name, options, archived, limits } => {
                if let Some(limits) = limits {
                    self.set_limits(limits, moment.now, out);
                }
                let told_name = name.clone().flatten();
                if name.is_some() || archived.is_some() {
                    let by = if name.is_some() { Provenance::User } else { Provenance::Unknown };
                    let updated =
                        Event::SessionUpdated { name, options: None, archived, queue_paused: None, by };
                    self.emit(out, moment.now, updated);
                }
                if archived == Some(true) {
                    // Nothing is asked of an agent for a session that is put away.
                    self.cancel_waiting_controls(moment, out);
                }
                if let Some(name) = told_name.filter(|_| self.may_rename(moment)) {
                    self.ask(Control::Rename { name }, Provenance::User, moment, out);
                }
                if let Some(options) = options {
                    self.set_options(options, moment, out);
                }
                self.advance(moment, out);
                Ok(Reply::Done)
            }
            Command::Control(what) => self.control(what, moment, out),
            Command::Rewind { before, files } => {
                if !moment.capabilities.rewind {
                    return Err(Refusal::unsupported("rewind"));
                }
                let point = self.past_turn(&before)?;
                self.control(Control::Rewind { before: point, files }, moment, out)
            }
            Command::Delete => {
                if self.unverifiable.is_some() {
                    // Nobody will come back to a deleted session to decide about its process.
                    self.settle_exit(ProcessExit::of(ExitCause::Abandoned), moment, out);
                }
                self.stop_process(CloseOrder::User, moment, out);
                self.cancel_waiting_controls(moment, out);
                self.emit(out, moment.now, Event::SessionDeleted {});
                Ok(Reply::Done)
            }
            Command::Age { seen } => {
                let stands = Cursor { epoch: self.epoch, seq: self.head };
                if stands != seen || self.phase != Phase::Free || !self.nothing_owed() {
                    return Err(Refusal::new(
                        RefusalCode::SubmissionState,
                        format!(
                            "session {} is in use: it stands at {stands}, not at {seen} any more, or owes something",
                            self.id
                        ),
                    ));
                }
                let aged = if self.archived {
                    Command::Delete
                } else {
                    Command::Update { name: None, options: None, archived: Some(true), limits: None }
                };
                self.on_command(aged, moment, out)
            }
            Command::Abandon => {
                if self.phase != Phase::Free && !self.refused_and_ending() {
                    if self.unverifiable.is_none() {
                        return Err(Refusal::new(
                            RefusalCode::SubmissionState,
                            "the process is known to be alive; stop it instead of giving it up",
                        ));
                    }
                    self.settle_exit(ProcessExit::of(ExitCause::Abandoned), moment, out);
                    // The given-up agent may live and write to its thread: the session goes on in another one.
                    self.emit(
                        out,
                        moment.now,
                        Event::SessionRecovering { failure: None, start_fresh: true, never_saved: false },
                    );
                    self.give_up_on_history(moment, out);
                }
                self.clear_recovering(moment, out);
                self.advance(moment, out);
                Ok(Reply::Done)
            }
            Command::StartFresh => {
                self.refuse_closed()?;
                if self.phase != Phase::Free && !self.refused_and_ending() {
                    return Err(Refusal::new(
                        RefusalCode::SubmissionState,
                        "the agent still holds the conversation; stop it first",
                    ));
                }
                self.emit(
                    out,
                    moment.now,
                    Event::SessionRecovering { failure: None, start_fresh: true, never_saved: false },
                );
                self.give_up_on_history(moment, out);
                self.advance(moment, out);
                Ok(Reply::Done)
            }
        }
    }

    /// The agent refused the conversation, and its process is on its way out because of that: what the user decides counts
    /// for the next one.
    fn refused_and_ending(&self) -> bool {
        let ending = self.stopping.is_some() && self.unverifiable.is_none();
        self.recovering.is_some() && ending && self.turns.is_empty()
    }

    /// Orders the end of the process, durably: a host that dies before it is told is followed by one that tells it.
    pub(super) fn stop_process(&mut self, order: CloseOrder, moment: &Moment<'_>, out: &mut Out) {
        let Some(process) = self.process.clone().filter(|_| self.phase != Phase::Free) else { return };
        if self.stopping.is_none_or(|standing| order.rank() > standing.rank()) {
            self.emit(out, moment.now, Event::ProcessStopping { process, order });
            // A user's stop pauses what waits now, and nothing that comes after it.
            if matches!(order, CloseOrder::User | CloseOrder::Kill) {
                self.cancel_waiting_controls(moment, out);
                if self.submissions.iter().any(OpenSubmission::waits) {
                    self.emit(out, moment.now, queue_paused(true));
                }
            }
        }
        out.effects.push(Effect::Close { order });
    }

    /// A turn that ended, as the provider's history knows it.
    ///
    /// # Errors
    /// `turn_unknown`.
    pub fn past_turn(&self, turn: &TurnId) -> Result<HistoryPoint, Refusal> {
        let known = self.past_turns.iter().find(|past| past.id == *turn);
        known.map(|past| past.point.clone()).ok_or_else(|| {
            Refusal::new(
                RefusalCode::TurnUnknown,
                format!("session {} has no ended turn {turn} that it remembers", self.id),
            )
        })
    }

    pub(super) fn refuse_closed(&self) -> Result<(), Refusal> {
        if self.archived {
            return Err(Refusal::new(
                RefusalCode::SessionClosed,
                format!("session {} is archived; take it out of the archive first", self.id),
            ));
        }
        Ok(())
    }

    pub(super) fn clear_recovering(&mut self, moment: &Moment<'_>, out: &mut Out) {
        // A user's command tries at once.
        if self.recovering.is_some() || self.waits_to_retry(moment) {
            self.emit(
                out,
                moment.now,
                Event::SessionRecovering { failure: None, start_fresh: false, never_saved: false },
            );
        }
    }

    pub(super) fn acquire(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let fence = self.fence.next();
        let process = moment.fresh.clone();
        self.emit(out, moment.now, Event::LeaseReserved { process: process.clone() });
        out.effects.push(Effect::Acquire { process, fence });
    }

    pub(super) fn answer(
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
            refusal.winner = Some(Box::new((answer.clone(), by.clone())));
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
        check_answer(open, &answer)?;
        check_answer_size(&answer)?;
        if self.unverifiable.is_some() {
            return Err(Refusal::new(
                RefusalCode::ProcessUnverifiable,
                "the agent's process can be proven neither alive nor gone; recover the session first",
            ));
        }
        let (key, options, revision) = (open.key.clone(), open.options.clone(), open.revision + 1);
        let shown = question::without_secrets(&open.questions, &answer);
        let answered = Event::RequestAnswered { request: request.clone(), revision, answer: shown, by };
        self.emit(out, moment.now, answered);
        let end = end_of_answer(&answer, &options);
        out.effects.push(Effect::Tell(Decision::Answer { key, answer, options }));
        if !moment.capabilities.confirms_answers {
            let closed = Event::RequestClosed {
                request: request.clone(),
                revision: revision + 1,
                state: end,
                confirmed: None,
                answered: self.answered_at(request),
                asked_again: false,
            };
            self.emit(out, moment.now, closed);
            self.resume_turn_without_requests(moment, out);
        }
        Ok(Reply::Answered { request: request.clone(), revision })
    }

    /// Where the answer that won stands.
    fn answered_at(&self, request: &RequestId) -> Option<Cursor> {
        self.requests.iter().find(|open| open.id == *request).and_then(|open| open.answered)
    }

    fn closed_refusal(&self, request: &RequestId) -> Refusal {
        let Some(closed) = self.closed_requests.iter().rev().find(|closed| closed.id == *request) else {
            return Refusal::new(
                RefusalCode::RequestUnknown,
                format!("session {} has no request {request} that could still be answered", self.id),
            );
        };
        closed.refusal()
    }
}

impl ClosedRequest {
    /// What a late or repeated answer gets.
    #[must_use]
    pub fn refusal(&self) -> Refusal {
        let request = &self.id;
        let mut refusal = match &self.winner {
            Some((_, by)) => Refusal::new(
                RefusalCode::AlreadyAnswered,
                format!("request {request} was answered by {by}; the first answer wins"),
            ),
            None => Refusal::new(
                RefusalCode::RequestClosed,
                format!("request {request} ended without an answer ({})", request_end_name(self.end)),
            ),
        };
        refusal.revision = Some(self.revision);
        refusal.ended = Some(self.end);
        refusal.winner = self.winner.clone().map(Box::new);
        refusal
    }
}

pub(super) const fn queue_paused(paused: bool) -> Event {
    Event::SessionUpdated {
        name: None,
        options: None,
        archived: None,
        queue_paused: Some(paused),
        by: Provenance::Unknown,
    }
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
        Answer::Answers { .. } | Answer::Submit { .. } => RequestEnd::Answered,
        Answer::Select { option_id } => {
            let kind = options.iter().find(|option| option.option_id == *option_id).map(|option| option.kind);
            match kind {
                Some(OptionKind::RejectOnce | OptionKind::RejectAlways) => RequestEnd::Declined,
                _ => RequestEnd::Answered,
            }
        }
    }
}

/// Answers stand in the journal and in frames, as messages do.
fn check_answer_size(answer: &Answer) -> Result<(), Refusal> {
    let bytes = match answer {
        Answer::Select { option_id } => option_id.len(),
        Answer::Decline { message } | Answer::Cancel { message } => message.as_ref().map_or(0, String::len),
        Answer::Submit { content } => content.as_ref().map_or(0, |content| content.to_string().len()),
        Answer::Answers { answers } => answers
            .iter()
            .map(|(id, chosen)| {
                let words = chosen.selected.iter().map(String::len).sum::<usize>();
                id.len() + words + chosen.text.as_ref().map_or(0, String::len)
            })
            .sum(),
    };
    if bytes > MAX_CONTENT_BYTES {
        return Err(Refusal::new(
            RefusalCode::TooLarge,
            format!("the answer has {bytes} bytes; at most {MAX_CONTENT_BYTES} can be given"),
        ));
    }
    Ok(())
}

/// An answer must be of the kind that the request takes. No is taken by every request.
fn check_answer(open: &OpenRequest, answer: &Answer) -> Result<(), Refusal> {
    let unfit = |detail: String| Err(Refusal::new(RefusalCode::OptionUnknown, detail));
    let option_id = match answer {
        Answer::Decline { .. } | Answer::Cancel { .. } => return Ok(()),
        Answer::Submit { .. } if open.elicits => return Ok(()),
        Answer::Submit { .. } => return unfit(format!("request {} asks for no form", open.id)),
        Answer::Answers { .. } if open.questions.is_empty() => {
            return unfit(format!("request {} asks no questions; choose one of its options", open.id));
        }
        Answer::Answers { answers } => {
            return question::check(&open.questions, answers)
                .or_else(|mismatch| unfit(format!("request {}: {mismatch}", open.id)));
        }
        Answer::Select { option_id } => option_id,
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
