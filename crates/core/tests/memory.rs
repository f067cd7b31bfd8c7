//! What a session holds in memory is bounded and does not grow with its length: turns, items, requests, threads and text
//! come and go, and what is remembered of them has an end.
#![expect(unsafe_code, reason = "an allocator that counts can only be written so")]
#![expect(clippy::expect_used, reason = "this is a test, and so are its helpers")]

use mainstay_core::agent::{AgentInfo, AskedByAgent, Capabilities, TakenProof};
use mainstay_core::content::{
    Answer, ContentBlock, Delivery, ItemFields, ItemKind, ItemStatus, OptionKind, Origin, Outcome,
    PermissionOption, RequestKind,
};
use mainstay_core::process::ProcessFact;
use mainstay_core::session::{Command, Effect, Input, Moment, Out, Session};
use mainstay_core::work::{TaskFields, TaskKind, WorkEnd};
use mainstay_core::{
    AgentEvent, AgentName, Decision, HostId, ItemKey, LaunchSnapshot, ProcessToken, ProviderTurn, RequestKey,
    SessionId, SessionOptions, SubmissionId, TaskKey, ThreadId,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};

/// Bytes that live. The only test of this file is alone with it.
static LIVE: AtomicIsize = AtomicIsize::new(0);

struct Counting;

// SAFETY: everything is the system allocator's; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A session at work, and a lane's part of it.
struct Bench {
    session: Session,
    capabilities: Capabilities,
    input: u64,
    now: i64,
}

impl Bench {
    fn new() -> Self {
        let launch = LaunchSnapshot {
            host: HostId::from("h"),
            agent: AgentName::from("a"),
            cwd: "/w".to_owned(),
            additional_directories: Vec::new(),
            account_home: None,
            mcp_servers: Vec::new(),
            instructions: None,
            env_names: Vec::new(),
            command: None,
            source: None,
            beside: None,
        };
        let (id, options) = (SessionId::from("s"), SessionOptions::default());
        let session = Session::create(id, None, launch, options, 1, &mut Out::default());
        let capabilities = Capabilities {
            resume: true,
            confirms_answers: true,
            settles_by_history: true,
            tools_outlive_turns: true,
            ..Capabilities::bare(TakenProof::ClientId)
        };
        Self { session, capabilities, input: 0, now: 10 }
    }

    /// Handles an input; what it decided goes to the store and to the agent, and is not held.
    fn handle(&mut self, input: Input) {
        self.now += 1;
        let fresh = ProcessToken(format!("p{}", self.now));
        let moment = Moment { now: self.now, capabilities: &self.capabilities, fresh: &fresh };
        let mut out = Out::default();
        self.session.handle(input, &moment, &mut out).expect("taken");
        for effect in std::mem::take(&mut out.effects) {
            if let Effect::Tell(Decision::StartTurn { submission, .. }) = effect {
                self.input += 1;
                let handed = Input::Handed { submission, input: self.input };
                self.session.handle(handed, &moment, &mut out).expect("handed");
            }
        }
    }

    fn agent(&mut self, event: AgentEvent) {
        self.handle(Input::Agent(event));
    }

    fn send(&mut self, number: usize) -> SubmissionId {
        let submission = SubmissionId(format!("message-{number}"));
        let content = vec![ContentBlock::text("please do something that takes a while")];
        let delivery = Delivery::Auto;
        self.handle(Input::Command(Command::Send {
            submission: submission.clone(),
            content,
            delivery,
            resends: None,
        }));
        submission
    }

    fn start(&mut self) {
        let process = self.session.process.clone().expect("reserved");
        self.handle(Input::Process(ProcessFact::Started { process, agent: None }));
        self.agent(AgentEvent::Ready(AgentInfo::default()));
        self.agent(AgentEvent::ThreadOpened { thread: ThreadId::from("thread-0"), resumed: false });
    }

    fn text(&mut self, turn: &ProviderTurn, key: &ItemKey, text: &str) {
        let (key, turn) = (key.clone(), Some(turn.clone()));
        let (kind, text) = (ItemKind::AgentMessage, text.to_owned());
        self.agent(AgentEvent::ItemDelta { key, turn, kind, text });
    }

    /// A turn with text, a request, a task, a frame that nobody models, and now and then another thread.
    fn turn(&mut self, number: usize) {
        let submission = self.send(number);
        if number == 0 {
            self.start();
        }
        let turn = ProviderTurn(format!("provider-turn-{number}"));
        self.agent(AgentEvent::TurnStarted {
            turn: turn.clone(),
            origin: Origin::Message,
            submission: Some(submission.clone()),
        });
        self.agent(AgentEvent::InputTaken { submission, proof: TakenProof::ClientId });
        let key = ItemKey(format!("provider-item-{number}"));
        for _ in 0..4 {
            self.text(&turn, &key, "some words of an answer ");
        }
        self.agent(AgentEvent::ItemCompleted {
            key,
            turn: Some(turn.clone()),
            kind: ItemKind::AgentMessage,
            status: ItemStatus::Completed,
            text: None,
            fields: ItemFields::default(),
        });
        let key = RequestKey(format!("1:{number}"));
        let (option_id, name) = ("yes".to_owned(), "Yes".to_owned());
        self.agent(AgentEvent::RequestOpened(AskedByAgent {
            turn: Some(turn.clone()),
            options: vec![PermissionOption { option_id, name, kind: OptionKind::AllowOnce }],
            ..AskedByAgent::new(key.clone(), RequestKind::Approval, "may I do this")
        }));
        let request = self.session.requests.last().expect("open").id.clone();
        let answer = Answer::Select { option_id: "yes".to_owned() };
        let by = "somebody".to_owned();
        self.handle(Input::Command(Command::Answer { request, revision: None, answer, by }));
        self.agent(AgentEvent::RequestSettled { key, confirmed: true });
        let key = TaskKey(format!("task-{number}"));
        let fields = TaskFields::default();
        let (kind, title) = (TaskKind::Shell, "sleep".to_owned());
        self.agent(AgentEvent::TaskStarted { key: key.clone(), kind, title, fields: fields.clone() });
        self.agent(AgentEvent::TaskEnded { key, end: WorkEnd::Completed, fields });
        let frame = serde_json::json!({ "method": "unknown", "number": number });
        self.agent(AgentEvent::Unmodelled { name: "unknown".to_owned(), frame });
        let (outcome, stop_reason, failure, usage) = (Outcome::Completed, None, None, None);
        self.agent(AgentEvent::TurnEnded { turn, outcome, stop_reason, failure, usage });
        if number.is_multiple_of(20) {
            self.agent(AgentEvent::ThreadSwitched { thread: ThreadId(format!("thread-{number}")) });
        }
    }
}

fn live() -> isize {
    LIVE.load(Ordering::Relaxed)
}

/// More would be a leak in disguise: everything remembered, with ids as long as here, is well below it.
const MOST: isize = 512 * 1024;

#[test]
fn memory_of_an_active_session_is_bounded_and_independent_of_its_length() {
    let before = live();
    let mut bench = Bench::new();
    // By then all that is remembered has reached its end.
    (0..2_000).for_each(|number| bench.turn(number));
    let after_some = live() - before;
    (2_000..20_000).for_each(|number| bench.turn(number));
    let after_many = live() - before;
    assert!(after_some < MOST, "{after_some} bytes after 2,000 turns");
    // Longer numbers in ids take a byte here and there, and a table may have grown once more.
    assert!(
        after_many < after_some + after_some / 5,
        "{after_some} bytes after 2,000 turns, {after_many} after 20,000"
    );

    // A turn that says very much, in the middle of it.
    let submission = bench.send(20_000);
    let turn = ProviderTurn::from("last");
    let (origin, key) = (Origin::Message, ItemKey::from("long"));
    bench.agent(AgentEvent::TurnStarted { turn: turn.clone(), origin, submission: Some(submission.clone()) });
    bench.agent(AgentEvent::InputTaken { submission, proof: TakenProof::ClientId });
    let words = "sixteen bytes... ".repeat(64);
    bench.text(&turn, &key, &words);
    let early = live() - before;
    (0..20_000).for_each(|_| bench.text(&turn, &key, &words));
    let late = live() - before;
    assert!(late <= early + 4_096, "{early} bytes at the beginning of a text of 20 MB, {late} at its end");
}
