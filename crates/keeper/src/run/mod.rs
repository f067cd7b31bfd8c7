//! The processes themselves: the keeper, and the one that becomes the agent.

mod agent;
mod channel;
mod control;
mod descriptors;
mod exec;
mod finish;
mod inputs;
mod keeper;
mod ladder;
mod lines;
mod newborn;
mod stderr_log;
mod stdio;
mod websocket;

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

/// The whole life of a keeper process. Must be the first thing that the process does, on its main thread: it closes
/// every descriptor that it was not handed on purpose, and the agent dies with this thread.
pub fn keeper_main() -> ExitCode {
    match newborn::be_born() {
        Ok(keeper) => {
            keeper.live();
            ExitCode::SUCCESS
        }
        Err(error) => {
            log(&format!("not born: {}", describe(&error)));
            ExitCode::FAILURE
        }
    }
}

/// Becomes the agent, as a child of a keeper. Returns only when that is impossible.
pub fn exec_main() -> ExitCode {
    exec::exec()
}

/// Lines that a keeper may log in its life; further ones are dropped, so that the log stays small.
const LOG_LINES: u32 = 1000;

/// One line in the keeper's log, which is its standard error. Nothing depends on it.
fn log(line: &str) {
    static LOGGED: AtomicU32 = AtomicU32::new(0);
    if LOGGED.fetch_add(1, Ordering::Relaxed) >= LOG_LINES {
        return;
    }
    let _ = writeln!(std::io::stderr(), "{} {line}", now_ms());
}

/// An error with everything that caused it.
fn describe(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Unix milliseconds.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
