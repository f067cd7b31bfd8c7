//! Adapters: pure translators between an agent's protocol and the session's words.
//!
//! Invariants of this crate (`demo`, which is an agent and no adapter, stands apart):
//! * no process, no I/O, no clock: a record in gives events and frames out, a decision in gives frames out;
//! * an adapter's state is a few small values that commit with the transaction that changed them; streamed text changes none;
//! * code outside an adapter asks [`Capabilities`](mainstay_core::Capabilities), never an agent's name;
//! * what an adapter does not model it passes on (`Unmodelled`), never drops.

pub mod acp;
pub mod adapter;
pub mod catalogue;
pub mod claude;
pub mod codex;
pub mod demo;
pub mod launch;
pub mod rpc;
mod sessions;

pub use adapter::{
    Adapter, Appeared, CannotTell, Frame, InHistory, Incoming, KnownHistory, Record, Said, SavedChild,
    SavedHistory, Shown, StateChange, ThreadContext, Translated, UnansweredCall,
};
pub use catalogue::{Catalogue, Model};
pub use launch::{
    AgentKind, AtSpoolLimit, Conversation, LaunchPlan, LaunchRequest, PlanError, PlannedStep,
    PlannedTransport,
};

/// Makes the adapter of a protocol.
#[must_use]
pub fn adapter(kind: AgentKind) -> Box<dyn Adapter> {
    match kind {
        AgentKind::Codex => Box::new(codex::CodexAdapter::new()),
        AgentKind::Claude => Box::new(claude::ClaudeAdapter::new()),
        AgentKind::Acp | AgentKind::Demo => Box::new(acp::AcpAdapter::new()),
    }
}
