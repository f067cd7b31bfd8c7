//! Mainstay: the one binary. Host, command line, keeper.

mod background;
mod cli;
mod client;
mod commands;
mod config;
mod environment;
mod failure;
mod follow;
#[cfg(test)]
mod golden;
mod logging;
mod otlp;
mod output;
mod sse;
mod tar;

use std::process::ExitCode;

/// The word by which the binary becomes the demo agent.
const DEMO_AGENT: &str = "demo-agent";

fn main() -> ExitCode {
    // Before anything else: a keeper lives as long as its agent, and what it never touches costs it no memory.
    match std::env::args_os().nth(1).as_deref().and_then(|word| word.to_str()) {
        Some("keeper") => return mainstay_keeper::keeper_main(),
        Some("keeper-exec") => return mainstay_keeper::exec_main(),
        Some(DEMO_AGENT) => return demo_agent(),
        _ => {}
    }
    cli::main()
}

fn demo_agent() -> ExitCode {
    match mainstay_agents::demo::run(std::io::stdin().lock(), std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
