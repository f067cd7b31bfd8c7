//! The whole thing on real parts: the `mainstay` binary, real keepers, the real Codex CLI against a mock model on
//! loopback, and the scripted ACP agent for faults that a real one does not show on demand. Every test checks at its
//! end that no process is left that was not there before.
#![expect(clippy::expect_used, clippy::unwrap_used, reason = "these are tests, and so are their helpers")]

mod bad_input;
mod cgroups;
mod chance;
mod claude_asked_again;
mod claude_branches;
mod claude_deaths;
mod claude_rewind;
mod claude_turns;
mod claude_work;
mod cli;
mod clock_steps;
mod codex_adopted;
mod codex_breadth;
mod codex_controls;
mod codex_kills;
mod codex_leftovers;
mod codex_lost_connection;
mod codex_starts;
mod codex_stopped_early;
mod codex_terminal;
mod codex_turns;
mod command_line;
mod doctor;
mod fault_points;
mod feed;
mod first_run;
mod footprint;
mod host_death;
mod host_keys;
mod keepers;
mod limits;
mod machine_faults;
mod many;
mod many_sessions;
mod matrix;
mod observability;
mod once;
mod origin;
mod pages;
mod process_death;
mod queue;
mod reattach;
mod rest;
mod secrets;
mod sharing;
mod short_of_memory;
mod soak;
mod support;
mod support_bundle;
mod transfer;
mod unclaimed;
mod unclaimed_adopted;
