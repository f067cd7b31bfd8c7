//! Journals as real sessions write them, made by the real core.

use mainstay_core::agent::{AgentInfo, AskedByAgent, TakenProof};
use mainstay_core::content::{ContentBlock, ItemFields, ItemKind, ItemStatus, Origin, Outcome, RequestKind};
use mainstay_core::process::ProcessFact;
use mainstay_core::{
    AgentEvent, AgentName, Command, Decision, Delivery, Effect, HostId, Input, ItemKey, LaunchSnapshot,
    Moment, Out, ProcessToken, ProviderTurn, RequestKey, Session, SessionId, SessionOptions, Stamped,
    SubmissionId, ThreadId,
};
use mainstay_store::{LaneWrite, NewEvent, NewSession, SessionKey, SessionUpdate, Store, Urgency, WriteOp};
use std::borrow::Cow;

/// A session with all its events.
pub(crate) struct Written {
    pub(crate) session: Session,
    pub(crate) events: Vec<Stamped>,
    inputs: u64,
}

impl Written {
    pub(crate) fn new(id: &str, cwd: &str) -> Self {
        let launch = LaunchSnapshot {
            host: HostId::from("that-host"),
            agent: AgentName::from("absent"),
            cwd: cwd.to_owned(),
            additional_directories: Vec::new(),
            account_home: Some("/accounts/there".to_owned()),
            mcp_servers: Vec::new(),
            instructions: Some("be brief".to_owned()),
            env_names: Vec::new(),
            command: None,
            source: None,
            beside: None,
        };
        let mut out = Out::default();
        let options = SessionOptions { model: Some("m".to_owned()), ..SessionOptions::default() };
        let name = Some("a name".to_owned());
        let session = Session::create(SessionId::from(id), name, launch, options, 1_000, &mut out);
        Self { session, events: out.events, inputs: 0 }
    }

    pub(crate) fn input(&mut self, input: Input) {
        let capabilities = mainstay_agents::adapter(mainstay_agents::AgentKind::Acp).capabilities().clone();
        let fresh = ProcessToken(format!("p{}", self.events.len()));
        let now = 1_000 + i64::try_from(self.events.len()).expect("small");
        let moment = Moment { now, capabilities: &capabilities, fresh: &fresh };
        let mut out = Out::default();
        self.session.handle(input, &moment, &mut out).expect("taken");
        for effect in std::mem::take(&mut out.effects) {
            if let Effect::Tell(Decision::StartTurn { submission, .. }) = effect {
                self.inputs += 1;
                let handed = Input::Handed { submission, input: self.inputs };
                self.session.handle(handed, &moment, &mut out).expect("handed");
            }
        }
        self.events.extend(out.events);
    }

    pub(crate) fn send(&mut self, id: &str, text: &str) {
        self.input(Input::Command(Command::Send {
            submission: SubmissionId::from(id),
            content: vec![ContentBlock::text(text)],
            delivery: Delivery::Queue,
            resends: None,
        }));
    }

    pub(crate) fn agent(&mut self, event: AgentEvent) {
        self.input(Input::Agent(event));
    }

    pub(crate) fn start(&mut self) {
        let process = self.session.process.clone().expect("acquired");
        self.input(Input::Process(ProcessFact::Started { process, agent: None }));
        self.agent(AgentEvent::Ready(AgentInfo::default()));
        self.agent(AgentEvent::ThreadOpened { thread: ThreadId::from("thread"), resumed: false });
    }

    pub(crate) fn begin_turn(&mut self, turn: &str, submission: &str) {
        let submission = SubmissionId::from(submission);
        self.agent(AgentEvent::InputTaken { submission: submission.clone(), proof: TakenProof::SolePrompt });
        self.agent(AgentEvent::TurnStarted {
            turn: ProviderTurn::from(turn),
            origin: Origin::Message,
            submission: Some(submission),
        });
    }

    pub(crate) fn text(&mut self, turn: &str, key: &str, text: &str) {
        self.agent(AgentEvent::ItemDelta {
            key: ItemKey::from(key),
            turn: Some(ProviderTurn::from(turn)),
            kind: ItemKind::AgentMessage,
            text: text.to_owned(),
        });
    }

    pub(crate) fn complete(&mut self, key: &str) {
        self.agent(AgentEvent::ItemCompleted {
            key: ItemKey::from(key),
            turn: None,
            kind: ItemKind::AgentMessage,
            status: ItemStatus::Completed,
            text: None,
            fields: ItemFields::default(),
        });
    }

    pub(crate) fn end_turn(&mut self, turn: &str) {
        self.agent(AgentEvent::TurnEnded {
            turn: ProviderTurn::from(turn),
            outcome: Outcome::Completed,
            stop_reason: None,
            failure: None,
            usage: None,
        });
    }

    /// One turn that is over, one that runs with a text and a request open, and a message that waits behind it.
    pub(crate) fn busy(id: &str, cwd: &str) -> Self {
        let mut written = Self::new(id, cwd);
        written.send(&format!("{id}.m1"), "first");
        written.start();
        written.begin_turn("t1", &format!("{id}.m1"));
        written.text("t1", "k1", "grüße ");
        written.text("t1", "k1", "to the world");
        written.complete("k1");
        written.end_turn("t1");
        written.send(&format!("{id}.m2"), "second");
        written.begin_turn("t2", &format!("{id}.m2"));
        written.text("t2", "k2", "half a sen");
        written.agent(AgentEvent::RequestOpened(AskedByAgent {
            turn: Some(ProviderTurn::from("t2")),
            ..AskedByAgent::new(RequestKey::from("r1"), RequestKind::Approval, "may I?")
        }));
        written.send(&format!("{id}.m3"), "third");
        written
    }

    /// Puts the session into a store, as a lane would have.
    pub(crate) fn store(&self, store: &dyn Store) -> SessionKey {
        let key = store.allocate_session_key();
        let create = WriteOp::CreateSession(NewSession {
            key,
            id: self.session.id.0.clone(),
            agent: self.session.launch.agent.0.clone(),
            name: self.session.name.clone(),
            cwd: self.session.launch.cwd.clone(),
            created_at: self.session.created_at,
            launch: serde_json::to_vec(&self.session.launch).expect("serializes"),
        });
        let mut ops = vec![create];
        let (mut epoch, mut head) = (1, 0);
        for stamped in &self.events {
            if stamped.epoch != epoch {
                (epoch, head) = (stamped.epoch, 0);
                ops.push(WriteOp::StartEpoch { session: key, epoch });
            }
            let event = NewEvent {
                first_seq: stamped.first_seq.unwrap_or(stamped.seq),
                seq: stamped.seq,
                at: stamped.at,
                fence: stamped.fence.0,
                kind: Cow::Borrowed(stamped.event.kind()),
                item: None,
                body: serde_json::to_vec(stamped).expect("serializes"),
            };
            ops.push(WriteOp::AppendEvents { session: key, epoch, expect_head: head, events: vec![event] });
            head = stamped.seq;
        }
        ops.push(WriteOp::UpdateSession(SessionUpdate {
            fence: Some(self.session.fence.0),
            ..SessionUpdate::new(key, 2_000)
        }));
        let write = LaneWrite::new(Urgency::Command, ops);
        tokio::task::block_in_place(|| store.commit_blocking(write)).expect("stored");
        key
    }
}
