//! What must never be said or happen inside of the host: panics, and inputs of its own that its machines refuse.

use std::cell::RefCell;
use std::fmt::Write;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// The host says this where host or adapter broke their part towards the core.
const BROKEN_PART: &str = "an input of the host's own was refused";

thread_local! {
    static RAISED: RefCell<Option<String>> = const { RefCell::new(None) };
    static SAID: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

pub(crate) fn clear() {
    RAISED.with_borrow_mut(|raised| *raised = None);
}

/// What the host said since the last call.
pub(crate) fn said() -> Vec<String> {
    SAID.take()
}

pub(crate) fn raised() -> Option<String> {
    RAISED.with_borrow(Clone::clone)
}

fn raise(what: String) {
    RAISED.with_borrow_mut(|raised| {
        raised.get_or_insert(what);
    });
}

/// Listens for panics of this thread's tasks, which a runtime would swallow.
pub(crate) fn listen_for_panics() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        raise(format!("a task panicked: {panic}"));
        before(panic);
    }));
}

/// Listens for what the host says.
#[derive(Debug)]
pub(crate) struct Ear;

#[derive(Default)]
struct Words(String);

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a string cannot fail.
        let _written = write!(self.0, "{}={value:?} ", field.name());
    }
}

impl Subscriber for Ear {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        if words.0.contains(BROKEN_PART) {
            raise(words.0.clone());
        }
        SAID.with_borrow_mut(|said| said.push(words.0));
    }
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}
