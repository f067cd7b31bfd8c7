//! Deciding: an input into the machine, its effects into frames, reservations and orders.

use super::batch::Then;
use super::lifecycle::Start;
use super::{Lane, LaneMessage, Parting, Process};
use crate::catalog;
use crate::error::HostError;
use crate::keeping::Planted;
use crate::linked::Linking;
use mainstay_agents::claude::files;
use mainstay_agents::{Appeared, CannotTell, Frame, KnownHistory, Said, Translated};
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::{Failure, FailureCode, ItemKind};
use mainstay_core::process::ProcessFact;
use mainstay_core::session::{Effect, Input, Moment, Phase, Reply};
use mainstay_core::work::{Control, ControlEnd, HistoryPoint, ThreadSource};
use mainstay_core::{
    AgentEvent, Command, Decision, ProcessToken, Refusal, SessionId, SubmissionId, ThreadId,
};
use mainstay_store::{IdRegistration, NewInput, SessionKey, Store, WriteOp};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The kind under which the messages of somebody else are registered that a session showed.
const SHOWN_MESSAGE: &str = "shown message";
/// Messages of a transcript that are looked up, the latest. Of older ones is said that somebody else sent them, which takes
/// more of them since the session's last turn than anybody sends.
const MAX_LOOKED_UP: usize = 2_000;

/// A branch has the messages of its source under the same ids, so they are noted for each session.
fn shown_message(session: &SessionId, message: &str) -> String {
    format!("{session}:{message}")
}

/// The messages of a transcript that are this session's, or that it showed before. Where the store cannot be read they are
/// shown once more.
fn known_messages(
    store: &dyn Store,
    key: SessionKey,
    session: &SessionId,
    transcript: &[u8],
) -> BTreeSet<String> {
    let mut messages = Vec::new();
    files::user_messages(transcript, |message| messages.push(message.to_owned()));
    let is_ours = |kind: &str, id: &str| {
        store.id_owner(kind, id).is_ok_and(|owner| owner.is_some_and(|owner| owner.session == key))
    };
    let latest = messages.into_iter().rev().take(MAX_LOOKED_UP);
    latest
        .filter(|message| {
            is_ours("submission", message) || is_ours(SHOWN_MESSAGE, &shown_message(session, message))
        })
        .collect()
}

impl Lane {
    /// Gives a session's machine an input and carries its effects as far as they go before the commit.
    pub(super) fn decide(&mut self, at: usize, input: Input) -> Result<Reply, Refusal> {
        // What an agent says makes no session need a process that has one.
        // But one that has just left one may come back for what waits.
        let said = matches!(&input, Input::Agent(event) if !matches!(event, AgentEvent::ThreadClosed));
        let may_acquire = !said || self.members[at].machine.phase == Phase::Free;
        let serves = may_acquire && self.serves(at);
        let Self { members, process, fresh, capabilities, now, .. } = self;
        let fresh = process.as_ref().filter(|_| serves).map_or(&*fresh, |process| &process.token);
        let member = &mut members[at];
        let moment = Moment { now: *now, capabilities, fresh };
        let reply = member.machine.handle(input, &moment, &mut member.out)?;
        member.touched = true;
        self.absorb(at);
        Ok(reply)
    }

    /// As [`Self::decide`], for inputs of ours: a refusal means that host or adapter broke their part. It is said
    /// loudly and changes nothing.
    pub(super) fn decide_own(&mut self, at: usize, input: Input) {
        if self.members[at].broken.is_some() {
            // What it was is not what the store has. It is decided on when it was loaded.
            return;
        }
        if let Err(refusal) = self.decide(at, input) {
            tracing::error!(session = %self.members[at].machine.id, %refusal, "an input of the host's own was refused");
        }
    }

    /// The same for every session that is bound to the process.
    pub(super) fn decide_for_all(&mut self, input: &Input) {
        for at in self.bound_places() {
            self.decide_own(at, input.clone());
        }
    }

    fn absorb(&mut self, at: usize) {
        loop {
            let effects = std::mem::take(&mut self.members[at].out.effects);
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                self.pending.touched = true;
                match effect {
                    Effect::Tell(decision) => {
                        self.tell(at, &decision);
                    }
                    Effect::Acquire { process, fence } => self.acquire(at, process, fence.0),
                    // The order stands in the machine.
                    Effect::Close { .. } => self.close_or_leave(at),
                }
            }
        }
        self.unbind(at);
    }

    /// Tells the agent. False: it could not be told, and the machine knows.
    pub(super) fn tell(&mut self, at: usize, decision: &Decision) -> bool {
        if let Some(failure) = self.held_elsewhere(decision) {
            self.decide_own(at, Input::Agent(AgentEvent::ThreadRefused { failure }));
            return false;
        }
        if let Decision::OpenThread { doubtful, resume: Some(thread), .. } = decision {
            self.teach_history(at, thread, doubtful);
            self.teach_unanswered(at, thread);
            self.show_history(at, thread);
            self.show_changes(at, thread);
        }
        if let Decision::Control { control: Control::Rewind { before, .. }, .. } = decision {
            self.teach_way_back(at, before);
        }
        let mut translated = Translated::default();
        let bound = self.is_bound(at);
        let session = &self.members[at].machine.id;
        let told = match self.process.as_mut().filter(|_| bound) {
            Some(process) => process.adapter.tell(session, decision, &mut translated),
            None => Err(CannotTell::NotConnected),
        };
        match told {
            Ok(()) => {
                self.members[at].opening |= matches!(decision, Decision::OpenThread { .. });
                self.pending.answers_request |= matches!(decision, Decision::Answer { .. });
                if self.pending.answers_request && self.shared.has_planted(Planted::AnsweredTwice) {
                    translated.frames.extend(translated.frames.clone());
                }
                self.route(&mut translated);
                true
            }
            Err(cannot) => {
                self.cannot_tell(at, decision, &cannot);
                false
            }
        }
    }

    /// What an adopted conversation holds already is shown once, before it is opened.
    fn show_history(&mut self, at: usize, thread: &ThreadId) {
        let machine = &self.members[at].machine;
        let adopts = matches!(machine.launch.source, Some(ThreadSource::Adopt { .. }));
        if !adopts || machine.thread().is_some() || machine.item_count > 0 {
            return;
        }
        let agent = catalog::configured(&self.shared.config, &machine.launch.agent).ok();
        let conversations = agent.and_then(|agent| self.conversations(agent, &machine.launch));
        let Some(history) = conversations.and_then(|conversations| conversations.history(thread)) else {
            return;
        };
        let mut shown = Translated::default();
        if let Some(process) = &mut self.process {
            process.adapter.show_history(&self.members[at].machine.id, &history, &mut shown);
        }
        self.route(&mut shown);
    }

    /// What became of the conversation while no process of ours had it is said before it is taken up again. What was
    /// rewound is no branch of somebody else.
    fn show_changes(&mut self, at: usize, thread: &ThreadId) {
        let machine = &self.members[at].machine;
        if machine.past_turns.is_empty() || machine.thread() != Some(thread) || machine.resume_at.is_some() {
            return;
        }
        let agent = catalog::configured(&self.shared.config, &machine.launch.agent).ok();
        let conversations = agent.and_then(|agent| self.conversations(agent, &machine.launch));
        let transcript = conversations.and_then(|conversations| conversations.read_latest(thread));
        let (Some(transcript), Some(process)) = (transcript, &mut self.process) else { return };
        let key = self.members[at].key;
        let mut messages = known_messages(&*self.shared.store, key, &machine.id, &transcript);
        // Those of a session that came from a file are not registered here.
        messages.extend(machine.submissions.iter().map(|open| open.id.0.clone()));
        let known = KnownHistory {
            turns: machine.past_turns.iter().rev().map(|past| past.point.clone()).collect(),
            messages,
        };
        let mut shown = Translated::default();
        process.adapter.show_changes(&machine.id, &transcript, &known, &mut shown);
        // Noted together with what is shown, so that it is shown once.
        let noted = shown.said.iter().filter_map(|said| match &said.event {
            AgentEvent::ItemCompleted { key: message, kind: ItemKind::UserMessage, .. } => {
                Some(WriteOp::RegisterId(IdRegistration {
                    kind: Cow::Borrowed(SHOWN_MESSAGE),
                    id: shown_message(&machine.id, message.as_str()),
                    session: key,
                    fingerprint: Vec::new(),
                }))
            }
            _ => None,
        });
        self.pending.ops.extend(noted);
        self.route(&mut shown);
    }

    /// Where the agent's protocol cannot be asked about messages in doubt, its files tell: the process that may have had
    /// them is gone.
    fn teach_history(&mut self, at: usize, thread: &ThreadId, doubtful: &[SubmissionId]) {
        let launch = &self.members[at].machine.launch;
        let agent = catalog::configured(&self.shared.config, &launch.agent).ok();
        let Some(conversations) =
            agent.filter(|_| !doubtful.is_empty()).and_then(|agent| self.conversations(agent, launch))
        else {
            return;
        };
        let found = conversations.look_for(thread, doubtful);
        if let Some(process) = &mut self.process {
            process.adapter.learn_history(&self.members[at].machine.id, found);
        }
    }

    /// Where the agent's files have the end of what is left after a rewind.
    fn teach_way_back(&mut self, at: usize, before: &HistoryPoint) {
        let machine = &self.members[at].machine;
        let agent = catalog::configured(&self.shared.config, &machine.launch.agent).ok();
        let conversations = agent.and_then(|agent| self.conversations(agent, &machine.launch));
        let (Some(conversations), Some(thread)) = (conversations, machine.thread()) else { return };
        let way = conversations.row_before(thread, before);
        if let Some(process) = &mut self.process {
            process.adapter.learn_way_back(&self.members[at].machine.id, way);
        }
    }

    /// Requests that a death cut off are asked again where the agent's files have their calls without a result.
    fn teach_unanswered(&mut self, at: usize, thread: &ThreadId) {
        let machine = &self.members[at].machine;
        if machine.cut_off_requests.is_empty() {
            return;
        }
        let agent = catalog::configured(&self.shared.config, &machine.launch.agent).ok();
        let Some(conversations) = agent.and_then(|agent| self.conversations(agent, &machine.launch)) else {
            return;
        };
        let calls = conversations.without_result(thread, &machine.cut_off_requests);
        if let Some(process) = &mut self.process {
            process.adapter.learn_unanswered(&self.members[at].machine.id, calls);
        }
    }

    /// A thread that another living keeper's agent holds (a restored database forgot it) is not taken up beside it.
    fn held_elsewhere(&self, decision: &Decision) -> Option<Failure> {
        let Decision::OpenThread { resume: Some(thread), .. } = decision else { return None };
        let own = self.process.as_ref().map_or("", |process| process.token.as_str());
        // Those that a record claims are ours; what they still have in memory the agent itself refuses.
        let claimed = self.shared.store.processes(true).map(|live| live.rows).unwrap_or_default();
        let ours = |token: &str| token == own || claimed.iter().any(|process| process.token == token);
        let holder = self.shared.keeping.holder_of(thread.as_str(), &ours)?;
        let message = format!(
            "thread {thread} is held by the agent of keeper {holder}, which no record claims; adopt or end that one first (`mainstay recover --keeper {holder} --adopt`, or `--end`)"
        );
        Some(Failure::new(FailureCode::ActiveWriter, message))
    }

    fn cannot_tell(&mut self, at: usize, decision: &Decision, cannot: &CannotTell) {
        let failure = Failure::new(FailureCode::Protocol, cannot.to_string());
        match decision {
            Decision::StartTurn { submission, .. } | Decision::Steer { submission, .. } => {
                let failure = match cannot {
                    CannotTell::NotConnected | CannotTell::NoThread(_) | CannotTell::InputUntaken(_) => None,
                    CannotTell::UnknownSession(_)
                    | CannotTell::UnknownRequest(_)
                    | CannotTell::Unsupported(_) => Some(failure),
                };
                self.decide_own(at, Input::NotHanded { submission: submission.clone(), failure });
            }
            Decision::OpenThread { .. } => {
                self.decide_own(at, Input::Agent(AgentEvent::ThreadRefused { failure }));
            }
            Decision::Answer { key, .. } => {
                let settled = AgentEvent::RequestSettled { key: key.clone(), confirmed: false };
                self.decide_own(at, Input::Agent(settled));
            }
            Decision::Control { id, .. } => {
                let end = ControlEnd::Refused { failure };
                self.decide_own(at, Input::Agent(AgentEvent::ControlEnded { control: id.clone(), end }));
            }
            Decision::Interrupt { .. } => {
                tracing::warn!(session = %self.members[at].machine.id, %cannot, "a stop could not be told to the agent");
            }
            // Told again on the next connection.
            Decision::CloseThread => {}
        }
    }

    /// Brings what an adapter translated to the outbox and to the machines.
    pub(super) fn route(&mut self, translated: &mut Translated) {
        for frame in translated.frames.drain(..) {
            let carries = frame.carries.clone();
            let Some(n) = self.push_frame(frame) else { continue };
            if let Some(submission) = carries
                && let Some(at) = self
                    .bound_places()
                    .into_iter()
                    .find(|at| self.members[*at].machine.submissions.iter().any(|open| open.id == submission))
            {
                self.decide_own(at, Input::Handed { submission, input: n });
            }
        }
        // What the agent never had is decided first: an event beside it could give the same message again, and this word,
        // which is about the time before, would then be taken for one about the new time.
        let never_had = |event: &AgentEvent| {
            matches!(event, AgentEvent::InputAbsent { .. } | AgentEvent::InputUnknown { .. })
        };
        translated.said.sort_by_key(|said| !never_had(&said.event));
        let ready = translated.said.iter().any(|said| matches!(said.event, AgentEvent::Ready(_)));
        for mut said in translated.said.drain(..) {
            self.carry_out_planted_hearing(&mut said);
            let Some(session) = said.session else {
                if let (AgentEvent::Ready(info), Some(process)) = (&said.event, &mut self.process) {
                    process.ready = Some(info.clone());
                }
                for at in self.bound_places() {
                    self.hear(at, said.event.clone());
                }
                continue;
            };
            // Found by a few comparisons: a process has at most tens of sessions, mostly one.
            match self.members.iter().position(|member| member.machine.id == session) {
                Some(at) if self.is_bound(at) => self.hear(at, said.event),
                Some(_) => {}
                None => tracing::error!(%session, "an adapter spoke of a session that is not bound here"),
            }
        }
        for appeared in translated.appeared.drain(..) {
            self.link(appeared);
        }
        if ready && self.shared.catalogues.wanted() {
            let mut asked = Translated::default();
            if let Some(process) = &mut self.process {
                process.adapter.ask_models(&mut asked);
            }
            self.route(&mut asked);
        }
        self.keep_catalogue();
    }

    /// Another client of the process began a conversation: it becomes a session, which is bound here.
    fn link(&mut self, appeared: Appeared) {
        let Some(process) = self.process.as_ref().map(|process| process.key) else { return };
        let of_source = |at: &usize| {
            appeared.forked_from.is_some()
                && self.members[*at].machine.thread() == appeared.forked_from.as_ref()
        };
        let bound = self.bound_places();
        let watched = |at: &&usize| self.shared.terminals.has(self.members[**at].key);
        let source = bound.iter().copied().find(of_source).or_else(|| {
            // Where terminals are attached to several, whose it is cannot be told.
            let mut watched = bound.iter().filter(watched);
            watched.next().copied().filter(|_| watched.next().is_none())
        });
        let Some(like) = source.or_else(|| bound.first().copied()) else { return };
        let like = self.members[like].machine.launch.clone();
        let beside = source.map(|at| self.members[at].machine.id.clone());
        let thread = appeared.thread.clone();
        if let Some(at) = source {
            let message = format!(
                "another conversation ({thread}) was begun in the agent's own terminal; it becomes a session of its own"
            );
            let notice = AgentEvent::Notice { level: NoticeLevel::Info, message, provider: None };
            self.decide_own(at, Input::Agent(notice));
        }
        // Not before it is stored that this was heard: else it is heard again.
        self.pending.then.push(Then::Link(Box::new(Linking { process, like, beside, appeared })));
    }

    /// What the agent told of what it offers is kept for readers.
    fn keep_catalogue(&mut self) {
        let Some(process) = &mut self.process else { return };
        let Some(told) = process.adapter.take_catalogue() else { return };
        let Some(member) = self.members.first() else { return };
        let version = process.ready.as_ref().map(|info| info.version.clone()).filter(|of| !of.is_empty());
        let (scope, shared, now) = (member.scope.clone(), self.shared.clone(), self.shared.now());
        self.shared.blocking.run(move || shared.catalogues.learn(&scope, told, version, now));
    }

    fn carry_out_planted_hearing(&self, said: &mut Said) {
        match (self.shared.planted, &said.event) {
            (Some(Planted::MatchedByOrder), _) if said.session.is_some() => {
                said.session = self.bound().next().map(|first| first.machine.id.clone());
            }
            (Some(Planted::UnknownIsAbsent), AgentEvent::InputUnknown { submission }) => {
                said.event = AgentEvent::InputAbsent { submission: submission.clone() };
            }
            _ => {}
        }
    }

    fn hear(&mut self, at: usize, event: AgentEvent) {
        match (self.shared.planted, &event) {
            (Some(Planted::EndForgotten), AgentEvent::TurnEnded { .. })
            | (Some(Planted::UnmodelledIsDropped), AgentEvent::Unmodelled { .. }) => return,
            _ => {}
        }
        let member = &mut self.members[at];
        member.idle_since = None;
        if matches!(event, AgentEvent::ThreadOpened { .. } | AgentEvent::ThreadRefused { .. }) {
            member.opening = false;
        }
        let left_out = self.leaves_out.as_ref().is_some_and(|left| left.session == member.key);
        if left_out || member.broken.is_some() {
            self.keep_for_repair(at, &event);
            return;
        }
        if member.machine.phase == Phase::Free {
            // Frames of a process whose end is settled already: they belong to nothing any more.
            return;
        }
        if matches!(event, AgentEvent::ThreadClosed) {
            return self.leave_now(at);
        }
        self.decide_own(at, Input::Agent(event));
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

    /// Binds the session to the process that it was given; or reserves one, its keeper's folder before the reservation
    /// commits: so "no folder" never means "never used".
    fn acquire(&mut self, at: usize, token: ProcessToken, fence: u64) {
        if self.process.as_ref().is_some_and(|process| process.token == token) {
            return self.bind(at);
        }
        self.fresh = self.shared.clock.fresh_token();
        if self.shutdown.is_some() || self.members[at].shutdown.is_some() {
            // The host goes: the reservation stands, with no process to it, and the next host finds it unused.
            return;
        }
        if self.process.as_ref().is_some_and(|process| !process.doubted)
            || self.bound().any(|member| member.key != self.members[at].key)
        {
            // The process here is not for it: the reservation is found unused in another lane, which makes its own.
            self.members[at].parting = Some(Parting::Anew);
            return;
        }
        if let Some(abandoned) = self.process.take() {
            self.end_abandoned(abandoned);
        }
        match self.shared.keeping.reserve(token.as_str()) {
            Ok(reserved) => {
                self.new_process(at, token, reserved.folder().clone(), fence, Start::Reserved);
                if self.shared.has_planted(Planted::BoundLate) {
                    self.launch(reserved);
                } else {
                    self.pending.then.push(Then::Launch(Box::new(reserved)));
                }
                self.pending.prompt = true;
            }
            Err(error) => {
                let why = format!("the keeper's folder could not be made: {}", super::chain(&error));
                let exit = crate::processes::failed_start(&error, why);
                self.decide_own(at, Input::Process(ProcessFact::Exited { process: token, exit }));
            }
        }
    }

    pub(super) fn on_message(&mut self, at: usize, message: LaneMessage) {
        if let Some(error) = &self.members[at].broken {
            match message {
                LaneMessage::Shutdown { order, done } => self.members[at].shutdown = Some((order, done)),
                message => super::refuse(message, error),
            }
            return;
        }
        self.read_clock();
        self.members[at].idle_since = None;
        let Some(message) = self.place(at, message) else { return };
        match message {
            LaneMessage::Command { command, register, operation, answer } => {
                let stop = Some((*command).clone())
                    .filter(|command| matches!(command, Command::Interrupt(_) | Command::Stop { .. }));
                match self.decide(at, Input::Command(*command)) {
                    Ok(reply) => {
                        if let Some(register) = register {
                            self.pending.ops.push(WriteOp::RegisterId(IdRegistration {
                                kind: Cow::Borrowed(register.kind),
                                id: register.id,
                                session: self.members[at].key,
                                fingerprint: register.fingerprint,
                            }));
                        }
                        self.wait_for_commit(at, answer, reply, operation, stop);
                    }
                    // Nothing changed, so there is nothing to wait for. Whoever asked may be gone.
                    Err(refusal) => drop(answer.send(Err(HostError::Refused(refusal)))),
                }
            }
            LaneMessage::Wake { done } => self.members[at].wake.push((false, done)),
            LaneMessage::Shutdown { order, done } => {
                self.members[at].shutdown = Some((order, done));
                self.begin_shutdown();
            }
            LaneMessage::TakeOver { adoption, operation, answer } => {
                self.take_over(at, *adoption, operation, answer);
            }
            LaneMessage::FenceAhead { known, done } => self.found_ahead(at, known, done),
        }
    }

    /// Wakes are answered when the process is looked after and nothing is left to commit.
    pub(super) fn answer_wakes(&mut self) {
        if self.retry_at.is_some()
            || self.members.iter().all(|member| member.wake.is_empty())
            || !self.looked_after()
        {
            return;
        }
        for at in 0..self.members.len() {
            if self.members[at].wake.iter().any(|(woken, _)| !woken) {
                for (woken, _) in &mut self.members[at].wake {
                    *woken = true;
                }
                self.read_clock();
                self.decide_own(at, Input::Wake);
            }
        }
        if self.has_gathered() {
            return;
        }
        for (_, done) in self.members.iter_mut().flat_map(|member| member.wake.drain(..)) {
            // The host may have stopped waiting.
            let _told = done.send(());
        }
    }

    fn looked_after(&self) -> bool {
        let process_known = match &self.process {
            None => true,
            Some(process) => {
                process.greeted
                    || self.spawning.is_some()
                    || self.bound().any(|member| member.machine.unverifiable.is_some())
            }
        };
        process_known
            && self.settling.is_none()
            && self.in_flight.is_none()
            && !self.has_gathered()
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
