//! The simulator: the real core, the real lanes and the real adapters (Codex, Claude, ACP) in a world of their own, where
//! a seed decides what happens when: commands of racing clients, single steps of store, keepers and agents, and faults of
//! all of them, a crash of the host between any two tasks included. After every step the durable journal is judged from
//! outside (`oracle`) against the rules and against what the agents know to be true.
//!
//! `cargo xtask sim run` runs more seeds than the tests here, `cargo xtask sim replay SEED` tells how one came about.
#![expect(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests, and their report")]

mod acp;
mod agent;
mod alarm;
mod chance;
mod chaos;
mod claude;
mod clients;
mod codex;
mod disk;
mod judging;
mod keeper;
mod oracle;
mod planted;
mod replay;
mod run;
mod sweep;
mod transcript;
mod views;
mod world;
