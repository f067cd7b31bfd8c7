//! Faults that real hosts had (`docs/cases.md`), each on the whole thing: the `mainstay` binary, real keepers, real files and
//! sockets, and an agent that plays a script in the protocol that the fault belongs to.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "these are tests, and so are their helpers")]

#[path = "../e2e/command_line.rs"]
#[allow(dead_code, reason = "shared with the other tests, which use more of it")]
mod command_line;
#[path = "../e2e/host_keys.rs"]
#[allow(dead_code, reason = "shared with the other tests, which use more of it")]
mod host_keys;
#[path = "../e2e/keepers.rs"]
#[allow(dead_code, reason = "shared with the other tests, which use more of it")]
mod keepers;
#[path = "../e2e/support.rs"]
#[allow(dead_code, reason = "shared with the other tests, which use more of it")]
mod support;

mod approvals;
mod flavours;
mod framing;
mod launches;
mod leases;
mod outcomes;
mod pipes;
mod played;
mod processes;
mod resumes;
mod serving;
mod stops;
mod storage;
