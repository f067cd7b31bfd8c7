//! The keeper: one small process per agent process that owns the agent's channel and outlives the host.
//!
//! A host uses this crate as a library: [`launch`] starts a keeper, [`link`] and [`wire`] talk to it,
//! [`spool`] reads what the agent said, [`mod@probe`] and [`mod@sweep`] settle what is left of a dead one, [`mod@ps`]
//! lists all. The keeper process itself is [`keeper_main`]; the process that becomes the agent is [`exec_main`].
//!
//! Blocking code on one thread, no async runtime: a keeper is measured in hundreds of kilobytes.

mod cgroup;
pub mod folder;
pub mod identity;
pub mod inbox;
pub mod launch;
mod left_running;
pub mod leftover;
pub mod link;
pub mod manifest;
pub mod probe;
mod process_table;
pub mod ps;
pub mod record;
pub mod redact;
mod run;
mod sha1;
pub mod spec;
pub mod spool;
mod strays;
pub mod sweep;
pub mod wire;
mod ws;

pub use folder::{FolderError, KeeperFolder, KeepersDir, ReservedFolder};
pub use identity::{IdentityCheck, ProcessIdentity};
pub use inbox::{InboxState, InputFate};
pub use launch::{BirthError, Newborn, birth, reserve, start};
pub use left_running::{LeftRunningError, end_left_running, left_running};
pub use leftover::{Leftover, LeftoverError, leftovers};
pub use link::{Link, connect_socket};
pub use manifest::{ExitCause, ExitRecord, Manifest, Order};
pub use probe::{AgentTrace, Probe, probe};
pub use ps::{PsRow, ps};
pub use record::{Control, DisconnectReason, RecordKind, RefusedWhy};
pub use run::{exec_main, keeper_main};
pub use spec::{
    AtLimit, LadderAction, LadderStep, LaunchSpec, SignalName, SignalTarget, SocketPlace, Transport,
};
pub use spool::{Batch, Record, SpoolReadError, SpoolReader};
pub use sweep::{SweepReport, sweep};
