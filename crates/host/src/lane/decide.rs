//! Deciding: an input into the machine, its effects into frames, reservations and orders.

use super::batch::Then;
use super::{Lane, LaneMessage, Process};
use crate::error::HostError;
use crate::keeping::Planted;
use mainstay_agents::{CannotTell, Frame, Translated};
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::process::{ExitCause, ProcessExit, ProcessFact};
use mainstay_core::session::{Effect, Input, Moment, Phase, Reply};
use mainstay_core::{AgentEvent, Command, Decision, ProcessToken, Refusal};
use mainstay_store::{IdRegistration, NewInput, WriteOp};
use std::borrow::Cow;

impl Lane {
    /// Gives the machine an input and carries its effects as far as they go before the commit.
    pub(super) fn decide(&mut self, input: Input) -> Result<Reply, Refusal> {
        let moment = Moment { now: self.now, capabilities: &self.capabilities, fresh: &self.fresh };
        let reply = self.bound.machine.handle(input, &moment, &mut self.bound.out)?;
        self.absorb();
        Ok(reply)
    }

    /// As [`Self::decide`], for inputs of ours: a refusal means that host or adapter broke their part. It is said
    /// loudly and changes nothing.
    pub(super) fn decide_own(&mut self, input: Input) {
        if let Err(refusal) = self.decide(input) {
            tracing::error!(session = %self.bound.machine.id, %refusal, "an input of the host's own was refused");
        }
    }

    pub(super) fn absorb(&mut self) {
        loop {
            let effects = std::mem::take(&mut self.bound.out.effects);
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                self.pending.touched = true;
                let process = self.process.as_ref().map(|process| process.key);
                match effect {
                    Effect::Tell(decision) => self.tell(&decision),
                    Effect::Acquire { process, fence } => self.acquire(process, fence.0),
                    Effect::Close { order } => self.pending.then.push(Then::Close(process, order)),
                }
            }
        }
        if self.bound.machine.process.is_none()
            && let Some(abandoned) = self.process.take_if(|process| process.final_exit.is_none())
        {
            self.end_abandoned(abandoned);
        }
    }

    fn tell(&mut self, decision: &Decision) {
        if let Some(failure) = self.held_elsewhere(decision) {
            self.decide_own(Input::Agent(AgentEvent::ThreadRefused { failure }));
            return;
        }
        let mut translated = Translated::default();
        let told = match &mut self.process {
            Some(process) => process.adapter.tell(&self.bound.machine.id, decision, &mut translated),
            None => Err(CannotTell::NotConnected),
        };
        match told {
            Ok(()) => {
                self.pending.answers_request |= matches!(decision, Decision::Answer { .. });
                if self.pending.answers_request && self.shared.has_planted(Planted::AnsweredTwice) {
                    translated.frames.extend(translated.frames.clone());
                }
                self.route(&mut translated);
            }
            Err(cannot) => self.cannot_tell(decision, &cannot),
        }
    }

    /// A thread that another living keeper's agent holds (a restored database forgot it) is not taken up beside it.
    fn held_elsewhere(&self, decision: &Decision) -> Option<Failure> {
        let Decision::OpenThread { resume: Some(thread), .. } = decision else { return None };
        let own = self.process.as_ref().map_or("", |process| process.token.as_str());
        let holder = self.shared.keeping.holder_of(thread.as_str(), own)?;
        let message = format!(
            "thread {thread} is held by the agent of keeper {holder}, which no record claims; end that one first (`mainstay ps`)"
        );
        Some(Failure::new(FailureCode::ActiveWriter, message))
    }

    fn cannot_tell(&mut self, decision: &Decision, cannot: &CannotTell) {
        let failure = Failure::new(FailureCode::Protocol, cannot.to_string());
        match decision {
            Decision::StartTurn { submission, .. } | Decision::Steer { submission, .. } => {
                let failure = match cannot {
                    CannotTell::NotConnected | CannotTell::NoThread(_) | CannotTell::InputUntaken(_) => None,
                    CannotTell::UnknownSession(_)
                    | CannotTell::UnknownRequest(_)
                    | CannotTell::Unsupported(_) => Some(failure),
                };
                self.decide_own(Input::NotHanded { submission: submission.clone(), failure });
            }
            Decision::OpenThread { .. } => {
                self.decide_own(Input::Agent(AgentEvent::ThreadRefused { failure }));
            }
            Decision::Answer { key, .. } => {
                let settled = AgentEvent::RequestSettled { key: key.clone(), confirmed: false };
                self.decide_own(Input::Agent(settled));
            }
            Decision::Interrupt { .. } => {
                tracing::warn!(session = %self.bound.machine.id, %cannot, "a stop could not be told to the agent");
            }
        }
    }

    /// Brings what an adapter translated to the outbox and to the machine.
    pub(super) fn route(&mut self, translated: &mut Translated) {
        for frame in translated.frames.drain(..) {
            let carries = frame.carries.clone();
            let Some(n) = self.push_frame(frame) else { continue };
            if let Some(submission) = carries {
                self.decide_own(Input::Handed { submission, input: n });
            }
        }
        // What the agent never had is decided first: an event beside it could give the same message again, and this word,
        // which is about the time before, would then be taken for one about the new time.
        let never_had = |event: &AgentEvent| {
            matches!(event, AgentEvent::InputAbsent { .. } | AgentEvent::InputUnknown { .. })
        };
        translated.said.sort_by_key(|said| !never_had(&said.event));
        for said in translated.said.drain(..) {
            let ours = said.session.as_ref().is_none_or(|session| *session == self.bound.machine.id);
            if !ours {
                tracing::error!(session = ?said.session, "an adapter spoke of a session that is not bound here");
                continue;
            }
            if self.bound.machine.phase == Phase::Free {
                // Frames of a process whose end is settled already: they belong to nothing any more.
                continue;
            }
            self.decide_own(Input::Agent(said.event));
        }
    }

    fn push_frame(&mut self, frame: Frame) -> Option<u64> {
        let process = self.process.as_mut()?;
        process.last_input += 1;
        let input = NewInput {
            process: process.key,
            n: process.last_input,
            connection: process.connection,
            urgent: frame.urgent,
            payload: frame.payload,
        };
        self.pending.ops.push(WriteOp::PushInput(input.clone()));
        self.pending.frames.push(input);
        self.pending.prompt = true;
        Some(process.last_input)
    }

    /// Reserves the keeper's folder before the reservation commits: so "no folder" never means "never used".
    fn acquire(&mut self, token: ProcessToken, fence: u64) {
        self.fresh = self.shared.clock.fresh_token();
        if let Some(abandoned) = self.process.take() {
            self.end_abandoned(abandoned);
        }
        if self.shutdown.is_some() {
            // The host goes: the reservation stands, with no process to it, and the next host finds it unused.
            return;
        }
        match self.shared.keeping.reserve(token.as_str()) {
            Ok(reserved) => {
                let process = self.new_process(token, reserved.folder().clone(), fence);
                self.process = Some(process);
                self.pending.then.push(Then::Launch(Box::new(reserved)));
                self.pending.prompt = true;
            }
            Err(error) => {
                let exit = ProcessExit {
                    spawn_error: Some(format!("the keeper's folder could not be made: {error}")),
                    ..ProcessExit::of(ExitCause::SpawnFailed)
                };
                self.decide_own(Input::Process(ProcessFact::Exited { process: token, exit }));
            }
        }
    }

    pub(super) fn on_message(&mut self, message: LaneMessage) {
        if let Some(error) = &self.broken {
            match message {
                LaneMessage::Shutdown { order, done } => self.shutdown = Some((order, done)),
                message => super::refuse(message, error),
            }
            return;
        }
        self.now = self.shared.now();
        self.idle_since = None;
        match message {
            LaneMessage::Command { command, register, operation, answer } => {
                let stop = Some((*command).clone())
                    .filter(|command| matches!(command, Command::Interrupt | Command::Stop { .. }));
                match self.decide(Input::Command(*command)) {
                    Ok(reply) => {
                        if let Some(register) = register {
                            self.pending.ops.push(WriteOp::RegisterId(IdRegistration {
                                kind: Cow::Borrowed(register.kind),
                                id: register.id,
                                session: self.bound.key,
                                fingerprint: register.fingerprint,
                            }));
                        }
                        self.wait_for_commit(answer, reply, operation, stop);
                    }
                    // Nothing changed, so there is nothing to wait for. Whoever asked may be gone.
                    Err(refusal) => drop(answer.send(Err(HostError::Refused(refusal)))),
                }
            }
            LaneMessage::Wake { done } => self.wake.push((false, done)),
            LaneMessage::Shutdown { order, done } => self.begin_shutdown(order, done),
        }
    }

    /// Wakes are answered when the process is looked after and nothing is left to commit.
    pub(super) fn answer_wakes(&mut self) {
        if self.wake.is_empty() || self.retry_at.is_some() || !self.looked_after() {
            return;
        }
        if self.wake.iter().any(|(woken, _)| !woken) {
            for (woken, _) in &mut self.wake {
                *woken = true;
            }
            self.now = self.shared.now();
            self.decide_own(Input::Wake);
            if !self.pending.is_empty() || !self.bound.out.events.is_empty() {
                self.submit();
                return;
            }
        }
        for (_, done) in self.wake.drain(..) {
            // The host may have stopped waiting.
            let _told = done.send(());
        }
    }

    fn looked_after(&self) -> bool {
        let process_known = match &self.process {
            None => true,
            Some(process) => {
                process.greeted || self.spawning.is_some() || self.bound.machine.unverifiable.is_some()
            }
        };
        process_known
            && self.settling.is_none()
            && self.in_flight.is_none()
            && self.pending.is_empty()
            && self.bound.out.events.is_empty()
            && self.process.as_ref().is_none_or(|process| process.final_exit.is_none())
    }
}

impl Process {
    /// The keeper has these; they are never sent again.
    pub(super) fn recorded_up_to(&mut self, n: u64) {
        while self.unrecorded.front().is_some_and(|input| input.n <= n) {
            self.unrecorded.pop_front();
            self.sent = self.sent.saturating_sub(1);
        }
        self.recorded = self.recorded.max(n);
    }

    /// Frames that are committed and not with the keeper go to it, in order.
    pub(super) fn pump(&mut self) {
        let Some(link) = self.link.as_ref().filter(|_| self.greeted && !self.stalled) else {
            return;
        };
        while let Some(input) = self.unrecorded.get(self.sent) {
            let message = mainstay_keeper::wire::ToKeeper::Input {
                n: input.n,
                connection: input.connection,
                urgent: input.urgent,
                payload: input.payload.clone(),
            };
            if link.send(message).is_err() {
                // The queue is full: acknowledgements make room.
                break;
            }
            self.sent += 1;
        }
    }
}
