//! What clients do: they send, answer, stop, race each other, and ask again where no answer came.

use crate::oracle::text_of;
use crate::run::{Run, SESSIONS, session_id};
use mainstay_agents::AgentKind;
use mainstay_core::content::{Answer, ContentBlock, Delivery};
use mainstay_core::operation::Fingerprint;
use mainstay_core::process::CloseOrder;
use mainstay_core::session::{DefaultAnswer, Limits, Place, RequestPolicy, StopScope};
use mainstay_core::work::{Control, ForkPoint, ThreadSource};
use mainstay_core::{AgentName, Command, Cursor, RequestId, SessionOptions, SubmissionId};
use mainstay_host::{Host, HostError, NewSessionRequest, Operation};
use mainstay_store::Store;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};

/// What clients know.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    pub(crate) sent: usize,
    /// Sent, with the session it went to, and not yet known to be accepted or refused.
    pub(crate) unknown: BTreeMap<SubmissionId, (usize, Delivery)>,
    pub(crate) accepted: Vec<(usize, SubmissionId)>,
    pub(crate) won: Vec<(usize, RequestId, String)>,
    pub(crate) answers: usize,
    /// Sessions that somebody stopped.
    stopped: BTreeSet<usize>,
}

impl Run {
    /// The options of the agents' requests: yes and no.
    pub(crate) fn words(&self) -> (String, String) {
        let words = match self.kind {
            AgentKind::Codex => ("accept", "decline"),
            AgentKind::Claude => ("allow", "deny"),
            AgentKind::Acp | AgentKind::Demo => ("yes", "no"),
        };
        (words.0.to_owned(), words.1.to_owned())
    }

    pub(crate) fn fold(&self, session: usize) -> Option<&mainstay_core::Session> {
        self.judges.get(session)?.as_ref()?.fold.as_ref()
    }

    /// A client asks for something; its answer comes when it comes.
    pub(crate) fn command(&mut self, host: &Arc<Host>) {
        let session = self.chance.below(SESSIONS);
        if self.judges[session].is_none() {
            return self.create(host, session);
        }
        let command = match self.chance.below(34) {
            0..=6 => return self.send(host, session),
            7..=11 => return self.answer(host, session),
            12 => Command::Interrupt(StopScope::Turn(None)),
            13 => Command::Interrupt(StopScope::Session),
            14 => Command::Stop {
                order: if self.chance.hits(1, 2) { CloseOrder::User } else { CloseOrder::Kill },
            },
            15 => Command::Start,
            16 => {
                let open: Vec<SubmissionId> = self
                    .fold(session)
                    .map(|fold| fold.submissions.iter().map(|open| open.id.clone()).collect())
                    .unwrap_or_default();
                let Some(submission) = self.chance.pick(&open) else { return };
                Command::Withdraw { submission: submission.clone() }
            }
            17 | 18 => Command::ResumeQueue,
            19 if self.fold(session).is_some_and(|fold| fold.unverifiable.is_some()) => Command::Abandon,
            19 => Command::StartFresh,
            23 | 24 => Command::Update {
                name: None,
                options: Some(SessionOptions {
                    model: Some(format!("model {}", self.chance.below(3))),
                    ..SessionOptions::default()
                }),
                archived: None,
                limits: None,
            },
            25 => Command::Control(if self.chance.hits(1, 2) {
                Control::ClearGoal
            } else {
                Control::SetGoal { objective: "all green".to_owned(), token_budget: None }
            }),
            26 => Command::Update {
                name: None,
                options: None,
                archived: None,
                limits: Some(Limits {
                    max_turns: self.chance.hits(1, 8).then_some(2),
                    requests: self
                        .chance
                        .hits(1, 2)
                        .then_some(RequestPolicy { after_ms: 2_000, answer: DefaultAnswer::Decline }),
                    ..Limits::default()
                }),
            },
            27..=33 => match self.rarer_command(session) {
                Some(command) => command,
                None => return,
            },
            20 if self.chance.hits(1, 6) => Command::Delete,
            20 | 21 => Command::Update {
                name: Some(self.chance.hits(1, 2).then(|| "named".to_owned())),
                options: None,
                archived: None,
                limits: None,
            },
            _ => Command::Update {
                name: None,
                options: None,
                archived: Some(self.chance.hits(1, 3)),
                limits: None,
            },
        };
        self.ask(host, session, command);
    }

    /// What is asked now and then; None: there is nothing to ask it about.
    fn rarer_command(&mut self, session: usize) -> Option<Command> {
        let choice = self.chance.below(10);
        let fold = self.judges[session].as_ref()?.fold.as_ref()?;
        let command = match choice {
            0 => Command::Interrupt(StopScope::Tasks),
            1 => {
                let tasks: Vec<String> = fold.tasks.iter().map(|task| task.id.to_string()).collect();
                Command::Interrupt(StopScope::Task(self.chance.pick(&tasks)?.clone()))
            }
            2 => Command::Interrupt(StopScope::Request(fold.requests.first()?.id.clone())),
            3 => Command::Control(Control::Compact { instructions: None }),
            4 => Command::Control(Control::Clear),
            5 => Command::SendNow { submission: fold.submissions.last()?.id.clone() },
            6 => {
                let open = fold.submissions.last()?;
                let content = self.chance.hits(1, 2).then(|| vec![ContentBlock::text(text_of(&open.id))]);
                let (submission, revision) = (open.id.clone(), open.revision);
                Command::Edit { submission, revision, content, place: Some(Place::Last) }
            }
            7 => Command::Age { seen: Cursor { epoch: fold.epoch, seq: fold.head } },
            8 => {
                let past: Vec<_> = fold.past_turns.iter().map(|past| past.id.clone()).collect();
                Command::Rewind { before: self.chance.pick(&past)?.clone(), files: false }
            }
            _ => Command::Control(if self.chance.hits(1, 2) {
                Control::PauseGoal
            } else {
                Control::ResumeGoal
            }),
        };
        Some(command)
    }

    fn ask(&self, host: &Arc<Host>, session: usize, command: Command) {
        self.world.lock().note(|| format!("client: s{session} {command:?}"));
        let stops = matches!(command, Command::Interrupt(StopScope::Turn(None) | StopScope::Session));
        let first_stop = stops && {
            let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            clients.stopped.insert(session)
        };
        let (host, world) = (host.clone(), self.world.clone());
        tokio::spawn(async move {
            // Refusals are answers too; what was done stands in the journal.
            let answer = host.command(session_id(session).as_str(), command, None).await;
            // A second stop has nothing left to do, whatever the store says.
            if first_stop && matches!(answer, Err(HostError::Storage(_))) {
                world.lock().judge_refused_stop(session);
            }
        });
    }

    fn create(&mut self, host: &Arc<Host>, session: usize) {
        let prompt = self.chance.hits(1, 2).then(|| {
            let submission = SubmissionId(format!("first-{session}"));
            let content = vec![ContentBlock::text(text_of(&submission))];
            (submission, content)
        });
        let request = NewSessionRequest {
            id: Some(session_id(session)),
            agent: AgentName::from("sim"),
            cwd: self.config.home.display().to_string(),
            name: None,
            options: SessionOptions::default(),
            limits: Default::default(),
            additional_directories: Vec::new(),
            mcp_servers: Vec::new(),
            instructions: None,
            account_home: None,
            source: self.source(session),
            prompt,
        };
        self.world.lock().note(|| format!("client: creates s{session} from {:?}", request.source));
        let host = host.clone();
        let (world, clients) = (self.world.clone(), self.clients.clone());
        tokio::spawn(async move {
            let submission = request.prompt.as_ref().map(|(submission, _)| submission.clone());
            if host.create(request, None).await.is_ok() {
                let durable = world.lock().disk.session_by_id(session_id(session).as_str());
                if !durable.is_ok_and(|row| row.is_some()) {
                    world.lock().violated(format!("s{session} was answered and is not durable"));
                }
                if let Some(submission) = submission {
                    let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
                    clients.accepted.push((session, submission));
                }
            }
        });
    }

    /// Where a session's conversation comes from: some branch off another session's, some would take it away.
    fn source(&mut self, session: usize) -> Option<ThreadSource> {
        let other = self.chance.below(SESSIONS);
        let choice = self.chance.below(6);
        let (thread, of) = self
            .fold(other)
            .filter(|_| other != session)
            .and_then(|fold| Some((fold.thread()?.clone(), fold.id.clone())))?;
        match (choice, self.kind) {
            (0, _) => Some(ThreadSource::Adopt { thread }),
            (1 | 2, AgentKind::Codex | AgentKind::Claude) => {
                Some(ThreadSource::Fork(ForkPoint { session: of, thread, last_turn: None }))
            }
            _ => None,
        }
    }

    fn send(&mut self, host: &Arc<Host>, session: usize) {
        let again: Vec<(SubmissionId, (usize, Delivery))> = {
            let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            clients.unknown.iter().map(|(id, to)| (id.clone(), *to)).collect()
        };
        let (submission, session, delivery) = match self.chance.pick(&again) {
            // Whoever did not get an answer asks again under the same id.
            Some((id, (session, delivery))) if self.chance.hits(1, 2) => (id.clone(), *session, *delivery),
            _ => {
                let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
                clients.sent += 1;
                let delivery = match self.chance.below(5) {
                    0 => Delivery::Interrupt,
                    1 => Delivery::Queue,
                    _ => Delivery::Auto,
                };
                let id = SubmissionId(format!("m{}", clients.sent));
                clients.unknown.insert(id.clone(), (session, delivery));
                (id, session, delivery)
            }
        };
        self.world.lock().note(|| format!("client: s{session} sends {submission} ({delivery:?})"));
        let content = vec![ContentBlock::text(text_of(&submission))];
        let send = Command::Send { submission: submission.clone(), content, delivery, resends: None };
        let (host, world, clients) = (host.clone(), self.world.clone(), self.clients.clone());
        let keyed = self.chance.hits(1, 2);
        tokio::spawn(async move {
            let operation = keyed.then(|| Operation {
                key: format!("op-{submission}"),
                fingerprint: Fingerprint(submission.to_string()),
                respond: Box::new(|_, _, cursor| (202, format!("{cursor:?}").into_bytes())),
            });
            let answer = host.command(session_id(session).as_str(), send, operation).await;
            let durable = world.lock().disk.id_owner("submission", submission.as_str());
            let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
            match answer {
                Ok(_) => {
                    if !durable.is_ok_and(|owner| owner.is_some()) {
                        world.lock().violated(format!("{submission} was answered and is not durable"));
                    }
                    clients.unknown.remove(&submission);
                    clients.accepted.push((session, submission));
                }
                Err(HostError::IdConflict { .. }) => {
                    world.lock().violated(format!("{submission}: sent again and called a conflict"));
                }
                Err(HostError::Refused(_)) => {
                    clients.unknown.remove(&submission);
                }
                // Not known: it may be asked again.
                Err(_) => {}
            }
        });
    }

    fn answer(&mut self, host: &Arc<Host>, session: usize) {
        let Some(fold) = self.fold(session) else { return };
        let mut requests: Vec<(RequestId, u64)> =
            fold.requests.iter().map(|open| (open.id.clone(), open.revision)).collect();
        // Late answers too.
        requests.extend(fold.closed_requests.iter().rev().take(1).map(|closed| (closed.id.clone(), 1)));
        let Some((request, revision)) = self.chance.pick(&requests).cloned() else { return };
        // Two clients at once.
        for client in ["ann", "bob"] {
            let answer = match self.chance.below(4) {
                0 => Answer::Select { option_id: self.words().1 },
                1 => Answer::Decline { message: None },
                _ => Answer::Select { option_id: self.words().0 },
            };
            self.answer_as(host, session, request.clone(), Some(revision), answer, client);
        }
    }

    pub(crate) fn answer_as(
        &self,
        host: &Arc<Host>,
        session: usize,
        request: RequestId,
        revision: Option<u64>,
        answer: Answer,
        client: &str,
    ) {
        let by = {
            let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
            clients.answers += 1;
            format!("{client}-{}", clients.answers)
        };
        self.world.lock().note(|| format!("client: {by} answers {request} with {answer:?}"));
        let command = Command::Answer { request: request.clone(), revision, answer, by: by.clone() };
        let (host, clients) = (host.clone(), self.clients.clone());
        tokio::spawn(async move {
            if host.command(session_id(session).as_str(), command, None).await.is_ok() {
                let mut clients = clients.lock().unwrap_or_else(PoisonError::into_inner);
                clients.won.push((session, request, by));
            }
        });
    }
}
