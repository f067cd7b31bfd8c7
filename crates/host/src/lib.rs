//! The host: lanes, ingest, outbox, recovery, subscriptions, catalogues. The one crate that knows them all.
//!
//! Invariants of this crate:
//! * a *lane* is the only holder of its sessions' machines, its process and its adapter; there is no lock around one;
//! * one transaction covers a batch: journal events, changed records, adapter state, outbox rows and the position;
//! * nothing leaves (reply, event, frame, spawn) before the transaction that decided it is durable; the one exception
//!   is a stop that the store refused to record;
//! * a process is only ever settled as gone by proof;
//! * a subscriber is a cursor and a wake-up; nobody buffers for it.

pub mod catalog;
pub mod catalogues;
pub mod config;
mod conversations;
pub mod error;
pub mod fault;
pub mod gauges;
mod glimpse;
mod holds;
pub mod host;
mod hub;
pub mod installed;
mod journal;
#[doc(hidden)]
pub mod keeping;
mod lane;
mod link;
mod linked;
mod load;
pub mod metrics;
mod processes;
mod recovery;
mod registry;
mod requests;
pub mod retention;
mod rollouts;
mod room;
mod saved_threads;
pub mod subscription;
pub mod terminals;
pub mod threads;
pub mod timeline;
pub mod transfer;
pub mod unclaimed;
mod unreadable;

pub use catalogues::{KnownCatalogue, Seen};
pub use config::{AgentConfig, HostConfig, Isolation};
pub use error::{HostError, StartError};
pub use host::{Answered, DATABASE, Host, NewSessionRequest, Operation, ShutdownMode};
pub use retention::Retention;
pub use subscription::{Delivered, FeedDelivered, FeedSubscription, Reset, ResetReason, Subscription};
pub use terminals::{Attached, TerminalPlan};
pub use threads::{KeptThread, KeptThreads};
pub use unclaimed::{Claim, EndAnswered, EndOperation, KeeperEnded, KeeperEntry};
