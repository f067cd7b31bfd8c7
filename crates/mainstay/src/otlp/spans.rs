//! From what is told to spans. Ids of spans are made from the ids of what they are about, so that two hosts, one after the
//! other, tell one story: a child names its parent without having seen it.

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

/// Spans that are begun and not ended. What begins beyond is told at its end alone, without its parent.
const MOST_OPEN: usize = 4_096;

/// A line of the story.
#[derive(Debug, Default)]
pub(super) struct Story {
    pub(super) kind: String,
    pub(super) session: String,
    pub(super) cursor: String,
    pub(super) process: Option<String>,
    pub(super) submission: Option<String>,
    pub(super) turn: Option<String>,
    pub(super) approval: Option<String>,
    pub(super) outcome: Option<String>,
    pub(super) agent_pid: Option<i64>,
    /// When what ends began, Unix ms, where the end tells it.
    pub(super) started_at: Option<i64>,
}

/// An ended span. (Boxed: it is several hundred bytes.)
#[derive(Debug)]
pub(super) struct Made(pub(super) Box<SpanData>);

/// What a span is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum About {
    Request,
    Message,
    Turn,
    Approval,
    Process,
}

impl About {
    fn name(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Message => "message",
            Self::Turn => "turn",
            Self::Approval => "approval",
            Self::Process => "process",
        }
    }

    fn attribute(self) -> &'static str {
        match self {
            Self::Request => "mainstay.request",
            Self::Message => "mainstay.submission",
            Self::Turn => "mainstay.turn",
            Self::Approval => "mainstay.approval",
            Self::Process => "mainstay.process",
        }
    }
}

fn digest(parts: &[&str]) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.len().to_be_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

fn first<const N: usize>(bytes: [u8; 32]) -> [u8; N] {
    std::array::from_fn(|at| bytes[at])
}

/// The trace of a message and what comes of it, of a process, or of a turn that nobody asked for.
fn trace_of(about: About, session: &str, id: &str) -> TraceId {
    // A process may be several sessions'.
    let session = if about == About::Process { "" } else { session };
    TraceId::from_bytes(first(digest(&["trace", about.name(), session, id])))
}

fn span_of(about: About, session: &str, id: &str) -> SpanId {
    SpanId::from_bytes(first(digest(&["span", about.name(), session, id])))
}

fn context(trace: TraceId, span: SpanId) -> SpanContext {
    SpanContext::new(trace, span, TraceFlags::SAMPLED, false, TraceState::default())
}

/// A span that is begun.
#[derive(Debug, Clone)]
struct Open {
    began: SystemTime,
    trace: TraceId,
    parent: SpanId,
    attributes: Vec<KeyValue>,
    links: Vec<SpanContext>,
}

impl Open {
    fn ended(self, about: About, span: SpanId, now: SystemTime, failed: bool) -> Made {
        let mut links = SpanLinks::default();
        links.links.extend(self.links.into_iter().map(|context| Link::new(context, Vec::new(), 0)));
        Made(Box::new(SpanData {
            span_context: context(self.trace, span),
            parent_span_id: self.parent,
            parent_span_is_remote: false,
            span_kind: if about == About::Request { SpanKind::Server } else { SpanKind::Internal },
            name: about.name().into(),
            start_time: self.began.min(now),
            end_time: now,
            attributes: self.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: if failed { Status::error("") } else { Status::Unset },
            instrumentation_scope: InstrumentationScope::builder("mainstay").build(),
        }))
    }
}

type Key = (About, String, String);

/// What is begun.
#[derive(Debug, Default)]
pub(super) struct Spans {
    open: HashMap<Key, Open>,
    /// The process of each session that has one.
    processes: HashMap<String, String>,
}

impl Spans {
    /// Takes a line; gives the span that it ends.
    pub(super) fn tell(&mut self, told: &Story, now: SystemTime) -> Option<Made> {
        match told.kind.as_str() {
            "submission.accepted" => self.begin_message(told, now),
            "submission.delivered" => self.delivered(told),
            "submission.taken" => {
                let id = told.submission.as_deref()?;
                if let (Some(turn), Some(open)) = (&told.turn, self.find(About::Message, told, id)) {
                    open.attributes.push(KeyValue::new(About::Turn.attribute(), turn.clone()));
                }
                return self.end(About::Message, told, id, "taken", now);
            }
            "submission.rejected" => {
                return self.end(About::Message, told, told.submission.as_deref()?, "rejected", now);
            }
            "submission.cancelled" => {
                return self.end(About::Message, told, told.submission.as_deref()?, "cancelled", now);
            }
            "submission.dropped" => {
                return self.end(About::Message, told, told.submission.as_deref()?, "dropped", now);
            }
            "turn.started" => self.begin_turn(told, now),
            "turn.ended" => return self.end(About::Turn, told, told.turn.as_deref()?, outcome(told), now),
            "request.opened" => self.begin_approval(told, now),
            "request.answered" => {
                if let Some(open) = self.find(About::Approval, told, told.approval.as_deref()?) {
                    // The request that answered ends at this place of the journal or a few events behind it.
                    open.attributes.push(KeyValue::new("mainstay.answer_cursor", told.cursor.clone()));
                }
            }
            "request.closed" => {
                return self.end(About::Approval, told, told.approval.as_deref()?, outcome(told), now);
            }
            "lease.reserved" | "process.started" | "process.adopted" => self.begin_process(told, now),
            "process.exited" => {
                self.processes.remove(&told.session);
                return self.end(About::Process, told, told.process.as_deref()?, outcome(told), now);
            }
            "session.deleted" => {
                self.open.retain(|(_, session, _), _| *session != told.session);
                self.processes.remove(&told.session);
            }
            _ => {}
        }
        None
    }

    fn find(&mut self, about: About, told: &Story, id: &str) -> Option<&mut Open> {
        self.open.get_mut(&(about, told.session.clone(), id.to_owned()))
    }

    fn begin(&mut self, about: About, told: &Story, id: &str, open: Open) {
        if self.open.len() < MOST_OPEN {
            self.open.entry((about, told.session.clone(), id.to_owned())).or_insert(open);
        }
    }

    /// A root in a trace of its own.
    fn root(about: About, told: &Story, id: &str, now: SystemTime) -> Open {
        Open {
            began: now,
            trace: trace_of(about, &told.session, id),
            parent: SpanId::INVALID,
            attributes: vec![
                KeyValue::new("mainstay.session", told.session.clone()),
                KeyValue::new(about.attribute(), id.to_owned()),
            ],
            links: Vec::new(),
        }
    }

    /// Joins a span to the process that it is about.
    fn join_process(open: &mut Open, session: &str, process: &str) {
        open.attributes.push(KeyValue::new(About::Process.attribute(), process.to_owned()));
        open.links.push(context(
            trace_of(About::Process, session, process),
            span_of(About::Process, session, process),
        ));
    }

    fn begin_message(&mut self, told: &Story, now: SystemTime) {
        let Some(id) = &told.submission else { return };
        let mut open = Self::root(About::Message, told, id, now);
        open.parent = span_of(About::Request, &told.session, id);
        self.begin(About::Message, told, id, open);
    }

    fn delivered(&mut self, told: &Story) {
        let (Some(id), Some(process)) = (&told.submission, &told.process) else { return };
        if let Some(open) = self.find(About::Message, told, id) {
            Self::join_process(open, &told.session, process);
        }
    }

    fn begin_turn(&mut self, told: &Story, now: SystemTime) {
        let Some(id) = &told.turn else { return };
        let mut open = Self::root(About::Turn, told, id, now);
        if let Some(submission) = &told.submission {
            open.trace = trace_of(About::Message, &told.session, submission);
            open.parent = span_of(About::Message, &told.session, submission);
            open.attributes.push(KeyValue::new(About::Message.attribute(), submission.clone()));
        }
        if let Some(process) = self.processes.get(&told.session) {
            Self::join_process(&mut open, &told.session, process);
        }
        self.begin(About::Turn, told, id, open);
    }

    fn begin_approval(&mut self, told: &Story, now: SystemTime) {
        let Some(id) = &told.approval else { return };
        let mut open = Self::root(About::Approval, told, id, now);
        if let Some(turn) = &told.turn {
            open.parent = span_of(About::Turn, &told.session, turn);
            open.trace = match self.find(About::Turn, told, turn) {
                Some(turn) => turn.trace,
                // Of a turn from before this host: its end is a root.
                None => trace_of(About::Turn, &told.session, turn),
            };
            open.attributes.push(KeyValue::new(About::Turn.attribute(), turn.clone()));
        }
        if let Some(process) = &told.process {
            Self::join_process(&mut open, &told.session, process);
        }
        self.begin(About::Approval, told, id, open);
    }

    fn begin_process(&mut self, told: &Story, now: SystemTime) {
        let Some(id) = &told.process else { return };
        if self.processes.len() < MOST_OPEN {
            self.processes.insert(told.session.clone(), id.clone());
        }
        let mut open = Self::root(About::Process, told, id, now);
        if told.kind == "process.adopted" {
            open.attributes.push(KeyValue::new("mainstay.partial", true));
        }
        self.begin(About::Process, told, id, open);
        if let (Some(pid), Some(open)) = (told.agent_pid, self.find(About::Process, told, id)) {
            open.attributes.push(KeyValue::new("mainstay.agent_pid", pid));
        }
    }

    fn end(&mut self, about: About, told: &Story, id: &str, outcome: &str, now: SystemTime) -> Option<Made> {
        let key = (about, told.session.clone(), id.to_owned());
        let mut open = self.open.remove(&key).unwrap_or_else(|| {
            // Begun before this host: what it hung from is not known here.
            let mut open = Self::root(about, told, id, now);
            open.attributes.push(KeyValue::new("mainstay.partial", true));
            open
        });
        if let Some(began) = told.started_at.and_then(|ms| u64::try_from(ms).ok()) {
            open.began = SystemTime::UNIX_EPOCH + Duration::from_millis(began);
        }
        open.attributes.push(KeyValue::new("mainstay.outcome", outcome.to_owned()));
        let failed = about == About::Turn && outcome == "Failed";
        Some(open.ended(about, span_of(about, &told.session, id), now, failed))
    }
}

/// The outcome's name, without what is inside.
fn outcome(told: &Story) -> &str {
    let whole = told.outcome.as_deref().unwrap_or("");
    whole.split(|letter: char| !letter.is_ascii_alphanumeric()).next().unwrap_or("")
}

/// A request on its way.
#[derive(Debug)]
pub(super) struct Request {
    began: SystemTime,
    id: String,
    method: String,
    session: String,
    submission: Option<String>,
    cursor: String,
    /// None: it was no command.
    carried_out: Option<bool>,
    replayed: bool,
    status: Option<u64>,
}

impl Request {
    pub(super) fn begun(id: String, method: String) -> Self {
        Self {
            began: SystemTime::now(),
            id,
            method,
            session: String::new(),
            submission: None,
            cursor: String::new(),
            carried_out: None,
            replayed: false,
            status: None,
        }
    }

    /// Something was logged of it.
    pub(super) fn note(&mut self, told: &Story, status: Option<u64>, replayed: bool) {
        match told.kind.as_str() {
            "carried out" => self.carried_out = Some(true),
            "not carried out" => self.carried_out = Some(false),
            _ => {
                self.status = status.or(self.status);
                return;
            }
        }
        self.session.clone_from(&told.session);
        self.submission.clone_from(&told.submission);
        self.cursor.clone_from(&told.cursor);
        self.replayed = replayed;
    }

    /// The span, if it was a command.
    pub(super) fn ended(self, now: SystemTime) -> Option<Made> {
        let carried_out = self.carried_out?;
        let random = uuid::Uuid::new_v4().into_bytes();
        let mut trace = TraceId::from_bytes(random);
        let mut span = SpanId::from_bytes(std::array::from_fn(|at| random[at]));
        if let Some(submission) = &self.submission {
            trace = trace_of(About::Message, &self.session, submission);
            if carried_out && !self.replayed {
                span = span_of(About::Request, &self.session, submission);
            }
        }
        let mut attributes = vec![
            KeyValue::new(About::Request.attribute(), self.id),
            KeyValue::new("mainstay.session", self.session),
            KeyValue::new("http.request.method", self.method),
            KeyValue::new("mainstay.outcome", if carried_out { "carried out" } else { "not carried out" }),
        ];
        if let Some(submission) = self.submission {
            attributes.push(KeyValue::new(About::Message.attribute(), submission));
        }
        if carried_out {
            attributes.push(KeyValue::new("mainstay.cursor", self.cursor));
            attributes.push(KeyValue::new("mainstay.replayed", self.replayed));
        }
        if let Some(status) = self.status.and_then(|status| i64::try_from(status).ok()) {
            attributes.push(KeyValue::new("http.response.status_code", status));
        }
        let open = Open { began: self.began, trace, parent: SpanId::INVALID, attributes, links: Vec::new() };
        Some(open.ended(About::Request, span, now, false))
    }
}
