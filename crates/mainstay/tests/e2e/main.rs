//! The whole thing on real parts: the `mainstay` binary, real keepers, the real Codex CLI against a mock model on
//! loopback, and the scripted ACP agent for faults that a real one does not show on demand. Every test checks at its
//! end that no process is left that was not there before.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "these are tests, and so are their helpers")]

mod bad_input;
mod codex_turns;
mod fault_points;
mod first_run;
mod host_death;
mod once;
mod origin;
mod process_death;
mod support;
