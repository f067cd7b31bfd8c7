//! What Mainstay's tests stand on: a mock model server, real and scripted agents, a containment
//! check for processes, and small blocking clients for the host's HTTP surface.
//!
//! Everything here is blocking and runs on loopback only. Helpers **panic** when a precondition of
//! the test fails (no binary, a deadline passed): in a test that is the right outcome, and the
//! message says what to do about it. Functions whose failure a test may want to look at return
//! `Result` instead.
//!
//! | module | for |
//! |---|---|
//! | [`model`] | a mock OpenAI Responses API whose prompt text is a script |
//! | [`codex`] | a `CODEX_HOME` that points the real Codex at that server |
//! | [`agents`] | where the real and the scripted agents are installed; gates for the scripted one |
//! | [`altered_machine`] | a wall clock that is set, and no new processes, for one program |
//! | [`contain`] | "no process is left that was not there before" |
//! | [`http`] | HTTP/1.1 and server-sent events over TCP or a Unix socket |
//! | [`mainstay`] | a temporary home and the host process itself |
//! | [`peer`] | an agent process spoken to in JSON lines, without a host |
//! | [`skipped`] | a test that this machine cannot run, said loudly |
//! | [`stream_text`] | the text that scripted streams consist of, to compare byte for byte |
//! | [`terminal`] | a program on a terminal of its own |
//! | [`wait`] | waiting on a condition with a deadline |
#![expect(
    clippy::expect_used,
    reason = "a test harness: a broken precondition is a failed test, and the message names it"
)]

pub mod agents;
pub mod altered_machine;
pub mod claude;
pub mod codex;
pub mod contain;
pub mod http;
pub mod mainstay;
pub mod model;
pub mod peer;
pub mod skipped;
pub mod small_disk;
pub mod stream_text;
pub mod terminal;
pub mod wait;

pub use claude::{ClaudeHome, claude_home};
pub use codex::{CodexHome, codex_home};
pub use contain::Containment;
pub use model::ModelServer;
pub use wait::wait_until;

/// The `PATH` every process started by a test gets: a constant, so that no tool of the machine the
/// tests happen to run on (an installed agent, a wrapper) changes what is tested.
pub const CLEAN_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The locale every process started by a test gets.
pub const CLEAN_LANG: &str = "C.UTF-8";
