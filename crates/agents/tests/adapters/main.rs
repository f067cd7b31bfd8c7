//! Adapters, tried through their trait only: recorded conversations of real agents, and one test for each rule.

#![expect(clippy::expect_used, reason = "helpers of tests: what cannot go on fails the test")]

mod acp_rules;
mod claude_returns;
mod claude_rules;
mod codex_bench;
mod codex_beside;
mod codex_children;
mod codex_controls;
mod codex_items;
mod codex_many;
mod codex_reattach;
mod codex_requests;
mod codex_rollout;
mod codex_rules;
mod codex_steer;
mod codex_takeover;
mod demo_agent;
mod harness;
mod recordings;
mod render;
mod replay_acp;
mod replay_claude;
mod replay_codex;
