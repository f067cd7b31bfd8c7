//! The adapter against the real Codex CLI and a mock model on loopback, with nothing between them: every frame that the
//! adapter makes goes to the real one, every word of the real one through an adapter that is made anew from its saved
//! state before each step.
#![expect(clippy::expect_used, reason = "helpers of tests: what cannot go on fails the test")]

#[path = "../adapters/harness.rs"]
#[allow(dead_code, reason = "shared with the rule tests, which use all of it")]
mod harness;
#[path = "../adapters/render.rs"]
#[allow(dead_code, reason = "shared with the rule tests, which use all of it")]
mod render;

mod beside_messages;
mod requests;
mod subagents;
mod support;
mod threads;
