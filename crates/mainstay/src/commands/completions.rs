//! `completions`: a script for a shell.

use crate::cli::{Cli, CompletionsArgs};
use crate::failure::{Exit, Failure};
use crate::output;
use clap::CommandFactory;

pub(crate) fn print(args: &CompletionsArgs) -> Result<Exit, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "mainstay", &mut script);
    output::text(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Completed)
}
