//! The sessions of one process: what each pins, its thread's state, and which of it changed.

use crate::adapter::{InHistory, StateChange, ThreadContext, UnansweredCall};
use mainstay_core::content::Failure;
use mainstay_core::{SessionId, SubmissionId};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt;

/// The scope of what belongs to the connection and to no session.
const CONNECTION_SCOPE: &str = "connection";
/// What the scope of a session's thread begins with.
const THREAD_SCOPE: &str = "thread:";

/// The state of one session's thread.
pub(crate) trait ThreadState: Default + Serialize + DeserializeOwned + fmt::Debug {
    /// The provider's id of the thread, where it is known.
    fn thread_id(&self) -> Option<&str>;

    /// Further threads whose frames belong to the session.
    fn other_thread_ids(&self) -> Vec<&str> {
        Vec::new()
    }
}

/// One session.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    pub(crate) session: SessionId,
    pub(crate) context: ThreadContext,
    /// What the agent's files say about messages in doubt; not saved, it is learned before it is used.
    pub(crate) history: Vec<(SubmissionId, InHistory)>,
    /// Calls that the agent is to ask about again; as the history.
    pub(crate) unanswered: Vec<UnansweredCall>,
    /// Where a rewind goes back to, or why it cannot; as the history.
    pub(crate) way_back: Option<Result<String, String>>,
    pub(crate) state: T,
    bound: bool,
    /// It was bound and has left.
    left: bool,
    dirty: bool,
}

/// All sessions that are or were bound.
#[derive(Debug)]
pub(crate) struct Sessions<T> {
    slots: Vec<Slot<T>>,
    by_thread: HashMap<String, usize>,
    /// Saved states to be dropped.
    gone: Vec<String>,
}

impl<T> Default for Sessions<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), by_thread: HashMap::new(), gone: Vec::new() }
    }
}

impl<T: ThreadState> Sessions<T> {
    pub(crate) fn bind(&mut self, session: &SessionId, context: ThreadContext) {
        let at = self.position_or_new(session);
        self.slots[at].context = context;
        (self.slots[at].bound, self.slots[at].left) = (true, false);
    }

    fn position_or_new(&mut self, session: &SessionId) -> usize {
        if let Some(at) = self.slots.iter().position(|slot| slot.session == *session) {
            return at;
        }
        let slot = Slot {
            session: session.clone(),
            context: ThreadContext::default(),
            history: Vec::new(),
            unanswered: Vec::new(),
            way_back: None,
            state: T::default(),
            bound: false,
            left: false,
            dirty: false,
        };
        // The places of sessions that left are taken again, so that a process that serves many does not grow with them.
        if let Some(at) = self.slots.iter().position(|slot| slot.left) {
            self.slots[at] = slot;
            return at;
        }
        self.slots.push(slot);
        self.slots.len() - 1
    }

    /// Forgets a session: its thread and its saved state are nobody's any more.
    pub(crate) fn unbind(&mut self, session: &SessionId) {
        let Some(at) = self.slots.iter().position(|slot| slot.session == *session && !slot.left) else {
            return;
        };
        self.by_thread.retain(|_, of| *of != at);
        self.gone.push(format!("{THREAD_SCOPE}{session}"));
        let slot = &mut self.slots[at];
        slot.state = T::default();
        slot.context = ThreadContext::default();
        (slot.bound, slot.dirty, slot.left) = (false, false, true);
    }

    /// Whether the session was bound since its state was restored.
    pub(crate) fn is_bound(&self, at: usize) -> bool {
        self.slots[at].bound
    }

    /// Where a bound session stands.
    pub(crate) fn position(&self, session: &SessionId) -> Option<usize> {
        self.slots.iter().position(|slot| slot.bound && slot.session == *session)
    }

    /// Where a session stands, bound or not, that has not left.
    pub(crate) fn place(&self, session: &SessionId) -> Option<usize> {
        self.slots.iter().position(|slot| !slot.left && slot.session == *session)
    }

    /// The first bound session, where a process has only one.
    pub(crate) fn first_bound(&self) -> Option<usize> {
        self.slots.iter().position(|slot| slot.bound)
    }

    pub(crate) fn learn_history(&mut self, session: &SessionId, found: Vec<(SubmissionId, InHistory)>) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.session == *session) {
            slot.history = found;
        }
    }

    pub(crate) fn learn_unanswered(&mut self, session: &SessionId, calls: Vec<UnansweredCall>) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.session == *session) {
            slot.unanswered = calls;
        }
    }

    pub(crate) fn learn_way_back(&mut self, session: &SessionId, way: Result<String, String>) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.session == *session) {
            slot.way_back = Some(way);
        }
    }

    /// What was learned of the way back, once.
    pub(crate) fn take_way_back(&mut self, at: usize) -> Option<Result<String, String>> {
        self.slots[at].way_back.take()
    }

    /// What was learned of calls without an answer, once.
    pub(crate) fn take_unanswered(&mut self, at: usize) -> Vec<UnansweredCall> {
        std::mem::take(&mut self.slots[at].unanswered)
    }

    /// Whose thread it is.
    pub(crate) fn of_thread(&self, thread: &str) -> Option<usize> {
        self.by_thread.get(thread).copied()
    }

    pub(crate) fn slot(&self, at: usize) -> &Slot<T> {
        &self.slots[at]
    }

    /// The state of a thread, to be changed: it will be saved.
    pub(crate) fn change(&mut self, at: usize) -> &mut T {
        self.slots[at].dirty = true;
        &mut self.slots[at].state
    }

    /// Finds the threads of a session by their ids from now on.
    pub(crate) fn index_thread(&mut self, at: usize) {
        self.by_thread.retain(|_, of| *of != at);
        let state = &self.slots[at].state;
        for thread in state.thread_id().into_iter().chain(state.other_thread_ids()) {
            self.by_thread.insert(thread.to_owned(), at);
        }
    }

    pub(crate) fn positions(&self) -> std::ops::Range<usize> {
        0..self.slots.len()
    }

    /// Whether what belongs to no known thread can only concern one session.
    pub(crate) fn only_one_bound(&self) -> bool {
        self.slots.iter().filter(|slot| slot.bound).count() == 1
    }

    /// What is to be saved: the connection's state, where it changed, and the threads that changed since the last call.
    pub(crate) fn changes(&mut self, connection: Option<&impl Serialize>) -> Vec<StateChange> {
        let of_connection = |state| StateChange { scope: CONNECTION_SCOPE.to_owned(), body: encode(state) };
        let mut into: Vec<StateChange> = connection.map(of_connection).into_iter().collect();
        into.extend(self.gone.drain(..).map(|scope| StateChange { scope, body: None }));
        for slot in self.slots.iter_mut().filter(|slot| slot.dirty) {
            slot.dirty = false;
            into.push(StateChange {
                scope: format!("{THREAD_SCOPE}{}", slot.session),
                body: encode(&slot.state),
            });
        }
        into
    }

    /// Takes a saved state back, the connection's or a thread's; false where the scope or the body cannot be read.
    pub(crate) fn restore<C: DeserializeOwned>(
        &mut self,
        connection: &mut C,
        scope: &str,
        body: &[u8],
    ) -> bool {
        if scope == CONNECTION_SCOPE {
            let Ok(saved) = serde_json::from_slice(body) else { return false };
            *connection = saved;
            return true;
        }
        let Some(session) = scope.strip_prefix(THREAD_SCOPE) else { return false };
        let Ok(state) = serde_json::from_slice::<T>(body) else { return false };
        let at = self.position_or_new(&SessionId::from(session));
        self.slots[at].state = state;
        self.index_thread(at);
        true
    }
}

/// The longest message of a failure that is kept in a state, in characters; the event that carries it has it whole.
const MAX_KEPT_MESSAGE_CHARS: usize = 1_000;

/// A failure as it is kept in a state: in words only, and bounded.
pub(crate) fn kept(failure: &Failure) -> Failure {
    Failure::new(failure.code, failure.message.chars().take(MAX_KEPT_MESSAGE_CHARS).collect::<String>())
}

/// The saved form of a state.
pub(crate) fn encode<S: Serialize>(state: &S) -> Option<Vec<u8>> {
    // States are plain values with text keys: they always have a JSON form. Without one the lane would re-attach.
    serde_json::to_vec(state).ok()
}
