//! Reads what the log is told. Only fields that are named here get into a span: ids, outcomes, places in a journal.

use super::spans::{Made, Request, Spans, Story};
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanProcessor};
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id};
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

/// Lines of what is durable.
const STORY: &str = "mainstay::story";
/// The longest value: ids are at most this long. A longer text is cut.
const LONGEST: usize = 128;

/// What the layer needs to hear, whatever `log` says.
pub(crate) fn heard() -> Targets {
    Targets::new()
        .with_target(STORY, LevelFilter::INFO)
        .with_target("mainstay_api::serve", LevelFilter::INFO)
        .with_target("mainstay_host::host", LevelFilter::INFO)
}

/// Makes spans of what is logged.
#[derive(Debug)]
pub(crate) struct SpanLayer {
    spans: Mutex<Spans>,
    queue: Arc<BatchSpanProcessor>,
}

impl SpanLayer {
    pub(super) fn new(queue: Arc<BatchSpanProcessor>) -> Self {
        Self { spans: Mutex::default(), queue }
    }
}

impl<S> Layer<S> for SpanLayer
where
    S: Subscriber + for<'lookup> LookupSpan<'lookup>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        if attributes.metadata().name() != "request" {
            return;
        }
        let Some(span) = context.span(id) else { return };
        let mut read = Fields::default();
        attributes.record(&mut read);
        span.extensions_mut().insert(Request::begun(read.id, read.method));
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut read = Fields::default();
        if event.metadata().target() == STORY {
            event.record(&mut read);
            let made = {
                let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner);
                spans.tell(&read.story, SystemTime::now())
            };
            if let Some(Made(span)) = made {
                self.queue.on_end(*span);
            }
            return;
        }
        let Some(scope) = context.event_scope(event) else { return };
        for span in scope {
            let mut extensions = span.extensions_mut();
            if let Some(request) = extensions.get_mut::<Request>() {
                event.record(&mut read);
                request.note(&read.story, read.status, read.replayed);
                return;
            }
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let request = context.span(&id).and_then(|span| span.extensions_mut().remove::<Request>());
        if let Some(Made(span)) = request.and_then(|request| request.ended(SystemTime::now())) {
            self.queue.on_end(*span);
        }
    }
}

/// The fields that may be read.
#[derive(Debug, Default)]
struct Fields {
    story: Story,
    id: String,
    method: String,
    status: Option<u64>,
    replayed: bool,
}

impl Fields {
    fn place(&mut self, field: &Field) -> Option<&mut String> {
        let story = &mut self.story;
        Some(match field.name() {
            "message" => &mut story.kind,
            "session" => &mut story.session,
            "cursor" => &mut story.cursor,
            "process" => story.process.get_or_insert_default(),
            "submission" => story.submission.get_or_insert_default(),
            "turn" => story.turn.get_or_insert_default(),
            "approval" => story.approval.get_or_insert_default(),
            "outcome" => story.outcome.get_or_insert_default(),
            "id" => &mut self.id,
            "method" => &mut self.method,
            _ => return None,
        })
    }
}

/// Takes what fits, and no more than that.
struct Bounded<'a>(&'a mut String);

impl fmt::Write for Bounded<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LONGEST.saturating_sub(self.0.len());
        self.0.push_str(&text[..text.floor_char_boundary(room)]);
        Ok(())
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if let Some(place) = self.place(field) {
            // Writing there does not fail.
            let _written = write!(Bounded(place), "{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if let Some(place) = self.place(field) {
            let _written = Bounded(place).write_str(value);
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "agent_pid" => self.story.agent_pid = Some(value),
            "started_at" => self.story.started_at = Some(value),
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "status" {
            self.status = Some(value);
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        if field.name() == "replayed" {
            self.replayed = value;
        }
    }
}
