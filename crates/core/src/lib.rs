//! The pure heart of Mainstay: ids, events, commands, refusals, and the session as a state machine.
//!
//! Invariants of this crate:
//! * no I/O, no clock, no async, no randomness, no global state: time and fresh tokens are arguments;
//! * `Session` is the fold of its journal: every change of state goes through `Session::apply`;
//! * the same inputs give the same events, byte for byte (the simulator rests on it);
//! * a refused command changes nothing: all checks come before the first event.

pub mod agent;
pub mod content;
pub mod digest;
pub mod event;
pub mod ids;
pub mod launch;
pub mod operation;
pub mod process;
pub mod question;
pub mod refusal;
pub mod session;
pub mod work;

pub use agent::{AgentEvent, Capabilities, Decision};
pub use content::{ContentBlock, Delivery};
pub use event::{Event, Stamped};
pub use ids::*;
pub use launch::{LaunchSnapshot, SessionOptions};
pub use refusal::{Refusal, RefusalCode};
pub use session::{Command, Effect, Input, Moment, Out, Reply, Session, Status};
