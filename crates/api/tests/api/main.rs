//! The API over real connections, with a host in this process and no agent.
#![expect(clippy::expect_used, reason = "a test: a broken precondition is a failed test")]

mod controls;
mod odd_streams;
mod queue;
mod refusals;
mod served;
mod sessions;
mod transfer;
