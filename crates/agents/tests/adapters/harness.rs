//! An adapter under test, with what a lane does around it: bind, save after each step, and, if asked, load anew from
//! what was saved before each next step.

use crate::render;
use mainstay_agents::{
    Adapter, AgentKind, Appeared, CannotTell, Catalogue, InHistory, Incoming, Record, SavedHistory, Shown,
    ThreadContext, Translated, UnansweredCall, adapter,
};
use mainstay_core::agent::Decision;
use mainstay_core::content::{Answer, PermissionOption};
use mainstay_core::work::Control;
use mainstay_core::{AgentEvent, ContentBlock, SessionId, SessionOptions, SubmissionId, ThreadId};
use serde_json::Value;
use std::collections::BTreeMap;

/// Whether the adapter lives on from step to step, or is made anew from its saved state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    OneLife,
    NewEachStep,
}

pub(crate) struct Harness {
    kind: AgentKind,
    life: Life,
    adapter: Box<dyn Adapter>,
    saved: BTreeMap<String, Vec<u8>>,
    bound: Vec<(SessionId, ThreadContext)>,
    connection: u32,
    /// The keeper's clock, ms.
    pub(crate) now: i64,
    /// The conversation that the process was started for.
    pub(crate) conversation: Option<String>,
    /// Scopes that the last step changed.
    pub(crate) changed: Vec<String>,
    /// The failures that were said in the last step, whole.
    pub(crate) failures: Vec<Value>,
    /// The frames of the last step, as values.
    pub(crate) sent: Vec<Value>,
    /// Conversations of other clients that were told in the last step.
    pub(crate) appeared: Vec<Appeared>,
}

/// What sessions pin that pin nothing special.
pub(crate) fn context() -> ThreadContext {
    ThreadContext { cwd: "/work".to_owned(), ..ThreadContext::default() }
}

impl Harness {
    pub(crate) fn new(kind: AgentKind, life: Life) -> Self {
        Self {
            kind,
            life,
            adapter: adapter(kind),
            saved: BTreeMap::new(),
            bound: Vec::new(),
            connection: 0,
            now: 1_000,
            conversation: None,
            changed: Vec::new(),
            failures: Vec::new(),
            sent: Vec::new(),
            appeared: Vec::new(),
        }
    }

    fn context(&self) -> ThreadContext {
        let conversation = self.conversation.clone();
        ThreadContext { conversation, ..context() }
    }

    pub(crate) fn bind(&mut self, session: &str) {
        self.bind_in(session, self.context());
    }

    /// With a context of its own.
    pub(crate) fn bind_in(&mut self, session: &str, context: ThreadContext) {
        self.bound.push((SessionId::from(session), context.clone()));
        self.adapter.bind(&SessionId::from(session), context);
    }

    /// What the agent offers, where all of it was answered.
    pub(crate) fn catalogue(&mut self) -> Option<Catalogue> {
        self.adapter.take_catalogue()
    }

    pub(crate) fn ask_catalogue(&mut self) -> bool {
        let mut out = Translated::default();
        let asked = self.adapter.ask_catalogue(&mut out);
        self.after_step(&out);
        asked
    }

    pub(crate) fn unbind(&mut self, session: &str) {
        self.bound.retain(|(bound, _)| bound.as_str() != session);
        self.adapter.unbind(&SessionId::from(session));
        self.after_step(&Translated::default());
    }

    /// A new adapter from what was saved, in which a session is not bound yet.
    pub(crate) fn reload_without(&mut self, session: &str) {
        self.bound.retain(|(bound, _)| bound.as_str() != session);
        self.reload();
    }

    /// As a lane does with a process that another host opened.
    pub(crate) fn take_over(&mut self, session: &str, thread: &str, shown: Shown) -> Result<(), CannotTell> {
        self.bind(session);
        let (session, thread) = (SessionId::from(session), ThreadId::from(thread));
        self.adapter.take_over(&session, &thread, &SessionOptions::default(), shown)?;
        self.after_step(&Translated::default());
        Ok(())
    }

    fn after_step(&mut self, translated: &Translated) {
        self.sent = translated
            .frames
            .iter()
            .map(|frame| serde_json::from_slice(&frame.payload).expect("a frame is JSON"))
            .collect();
        self.appeared.clone_from(&translated.appeared);
        self.failures = translated.said.iter().filter_map(|said| failure(&said.event)).collect();
        self.changed.clear();
        for change in self.adapter.changes() {
            self.changed.push(change.scope.clone());
            match change.body {
                Some(body) => {
                    assert!(
                        body.len() <= mainstay_agents::adapter::MAX_STATE_BYTES,
                        "{} is too large",
                        change.scope
                    );
                    self.saved.insert(change.scope, body)
                }
                None => self.saved.remove(&change.scope),
            };
        }
        if self.life == Life::NewEachStep {
            self.reload();
        }
    }

    /// From now on the adapter lives on: for what it gathers and does not save.
    pub(crate) fn live_on(&mut self) {
        self.life = Life::OneLife;
    }

    /// A new adapter from what was saved, as after a crash of the host.
    pub(crate) fn reload(&mut self) {
        self.adapter = adapter(self.kind);
        for (scope, body) in &self.saved {
            assert!(self.adapter.restore(scope, body), "{scope} could not be restored");
        }
        for (session, context) in &self.bound {
            self.adapter.bind(session, context.clone());
        }
    }

    /// What is saved now.
    pub(crate) fn saved(&self) -> BTreeMap<String, Vec<u8>> {
        self.saved.clone()
    }

    /// A new adapter from what was saved then, as where the store refused what came since.
    pub(crate) fn go_back_to(&mut self, saved: BTreeMap<String, Vec<u8>>) {
        self.saved = saved;
        self.reload();
    }

    fn ingest(&mut self, incoming: Incoming<'_>) -> Vec<String> {
        let mut out = Translated::default();
        self.adapter.ingest(Record { connection: self.connection, at: self.now, incoming }, &mut out);
        self.after_step(&out);
        render::lines(&out)
    }

    /// What the adapter does when the time has come that it waits for.
    pub(crate) fn wait(&mut self) -> Vec<String> {
        let Some(until) = self.adapter.waits_until() else { return Vec::new() };
        self.now = self.now.max(until);
        self.time()
    }

    /// Tells the adapter the time.
    pub(crate) fn time(&mut self) -> Vec<String> {
        let mut out = Translated::default();
        self.adapter.on_time(self.now, &mut out);
        self.after_step(&out);
        render::lines(&out)
    }

    pub(crate) fn connect(&mut self) -> Vec<String> {
        self.connection += 1;
        self.ingest(Incoming::Connected)
    }

    pub(crate) fn disconnect(&mut self) -> Vec<String> {
        self.ingest(Incoming::Disconnected)
    }

    pub(crate) fn message(&mut self, message: &Value) -> Vec<String> {
        self.raw(message.to_string().as_bytes())
    }

    pub(crate) fn raw(&mut self, message: &[u8]) -> Vec<String> {
        self.ingest(Incoming::Message(message))
    }

    pub(crate) fn oversize(&mut self, length: u64, head: &[u8]) -> Vec<String> {
        self.ingest(Incoming::Oversize { length, head })
    }

    pub(crate) fn fragment(&mut self, bytes: &[u8]) -> Vec<String> {
        self.ingest(Incoming::Fragment(bytes))
    }

    pub(crate) fn learn_history(&mut self, session: &str, found: &[(&str, InHistory)]) {
        let found = found.iter().map(|(id, found)| (SubmissionId::from(*id), *found)).collect();
        self.adapter.learn_history(&SessionId::from(session), found);
    }

    pub(crate) fn learn_unanswered(&mut self, session: &str, calls: Vec<UnansweredCall>) {
        self.adapter.learn_unanswered(&SessionId::from(session), calls);
    }

    pub(crate) fn learn_way_back(&mut self, session: &str, way: Result<String, String>) {
        self.adapter.learn_way_back(&SessionId::from(session), way);
    }

    pub(crate) fn show_history(&mut self, session: &str, history: &SavedHistory) -> Vec<String> {
        let mut out = Translated::default();
        self.adapter.show_history(&SessionId::from(session), history, &mut out);
        render::lines(&out)
    }

    pub(crate) fn tell(&mut self, session: &str, decision: &Decision) -> Result<Vec<String>, CannotTell> {
        let mut out = Translated::default();
        let told = self.adapter.tell(&SessionId::from(session), decision, &mut out);
        if told.is_err() {
            assert!(out.said.is_empty() && out.frames.is_empty(), "a refused decision makes nothing");
            assert!(self.adapter.changes().is_empty(), "a refused decision changes nothing");
        }
        self.after_step(&out);
        told.map(|()| render::lines(&out))
    }

    pub(crate) fn open(&mut self, session: &str, resume: Option<&str>) -> Vec<String> {
        self.open_with(session, resume, SessionOptions::default(), &[])
    }

    pub(crate) fn open_with(
        &mut self,
        session: &str,
        resume: Option<&str>,
        options: SessionOptions,
        doubtful: &[&str],
    ) -> Vec<String> {
        let resume = resume.map(ThreadId::from);
        let doubtful = doubtful.iter().map(|id| SubmissionId::from(*id)).collect();
        self.tell(session, &Decision::OpenThread { resume, options, doubtful, fork: None })
            .expect("can be told")
    }

    pub(crate) fn start(
        &mut self,
        session: &str,
        submission: &str,
        text: &str,
    ) -> Result<Vec<String>, CannotTell> {
        let decision = Decision::StartTurn {
            submission: submission.into(),
            content: vec![ContentBlock::text(text)],
            options: SessionOptions::default(),
        };
        self.tell(session, &decision)
    }

    pub(crate) fn steer(
        &mut self,
        session: &str,
        turn: &str,
        submission: &str,
        text: &str,
    ) -> Result<Vec<String>, CannotTell> {
        let content = vec![ContentBlock::text(text)];
        self.tell(session, &Decision::Steer { turn: turn.into(), submission: submission.into(), content })
    }

    pub(crate) fn interrupt(&mut self, session: &str, turn: Option<&str>) -> Vec<String> {
        self.tell(session, &Decision::Interrupt { turn: turn.map(Into::into) }).expect("can be told")
    }

    pub(crate) fn answer(
        &mut self,
        session: &str,
        key: &str,
        answer: Answer,
        options: Vec<PermissionOption>,
    ) -> Result<Vec<String>, CannotTell> {
        self.tell(session, &Decision::Answer { key: key.into(), answer, options })
    }

    pub(crate) fn control(&mut self, session: &str, id: &str, control: Control) -> Vec<String> {
        self.tell(session, &Decision::Control { id: id.into(), control }).expect("can be told")
    }

    /// The id of the request with this method among the frames of the last step.
    pub(crate) fn sent_id(&self, method: &str) -> u64 {
        let frame = self.sent.iter().find(|frame| frame["method"] == method);
        let frame = frame.unwrap_or_else(|| panic!("no {method} was sent, but {:?}", self.sent));
        frame["id"].as_u64().expect("our ids are numbers")
    }
}

fn failure(event: &AgentEvent) -> Option<Value> {
    let failure = match event {
        AgentEvent::TurnEnded { failure: Some(failure), .. }
        | AgentEvent::ThreadRefused { failure }
        | AgentEvent::InputRejected { failure, .. }
        | AgentEvent::Retrying { failure, .. } => failure,
        _ => return None,
    };
    Some(serde_json::to_value(failure).expect("has a JSON form"))
}

pub(crate) fn select(option: &str) -> Answer {
    Answer::Select { option_id: option.to_owned() }
}
