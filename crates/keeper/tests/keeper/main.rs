//! Real keepers with real agents. Every process that a test starts is ended by pid when the test ends.
#![expect(clippy::expect_used, reason = "a test fails by panicking, in its helper functions too")]

mod birth;
mod ends;
mod helper_processes;
mod hygiene;
mod limits;
mod stdio;
mod support;
mod websocket;
