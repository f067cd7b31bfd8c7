//! `cargo xtask <task>`: everything a contributor or CI runs, without a shell script.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool: its output is its purpose"
)]

mod api_fuzz;
mod arrows;
mod budget;
mod cases;
mod crash_matrix;
mod dependencies;
mod fuzz;
mod lock;
mod peers;
mod setup;
mod sim;
mod tasks;
mod tidy;

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask <task>

  setup            install the pinned agents into .agents/, and cargo-nextest where it is missing
  test             everything CI checks: set-up, tidy, dependencies, format, build, lints, golden files, tests, spans, doc tests, fuzzed API
  test --long      the same, then what does not fit into CI's minutes: more seeds, larger models, ignored tests, more fuzzing
  budget           print the minutes that each step may take
  golden           write the golden files anew
  golden --check   compare them
  bench            build with optimisation and print the measured figures
  bench --peers    measure beside other hosts; --setup installs them, --quick takes a look, --write makes docs/benchmarks.md
  fuzz [--seconds N] [TARGET…]
                   run the fuzz targets, each for N seconds (60), and say how to run again what they find
  fuzz --replay TARGET FILE
                   run one input
  api-fuzz         ask the API what its document allows and what it does not (schemathesis); --long: more
  sim run          more seeds of the simulator, on all cores: --seeds N [--first S] [--flavour codex|acp|claude]
  sim replay SEED  how one seed comes about: [--flavour F] [--step], which waits for Enter after each step
  crash-matrix     kill each part at each point, and write docs/crash-matrix.md; --long: 600 runs
  tidy             the project's own rules about its files
  dependencies     licenses, bans and sources of everything that is linked
";

fn main() -> ExitCode {
    if let Some(error) = fuzz::wrap_compiler() {
        eprintln!("xtask: the compiler cannot be run: {error}");
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let root = workspace_root();
    let outcome = match words.as_slice() {
        ["setup"] => setup::run(&root).map_err(Into::into),
        ["test"] => tasks::test(&root, tasks::Length::Ci).map_err(Into::into),
        ["test", "--long"] => tasks::test(&root, tasks::Length::Long).map_err(Into::into),
        ["budget"] => {
            print!("{}", budget::table());
            return ExitCode::SUCCESS;
        }
        ["dependencies"] => dependencies::run(&root).map_err(Into::into),
        ["golden"] => tasks::golden(&root, tasks::Golden::Write).map_err(Into::into),
        ["golden", "--check"] => tasks::golden(&root, tasks::Golden::Check).map_err(Into::into),
        ["bench", "--peers", "--setup"] => peers::setup(&root).map_err(Into::into),
        ["bench", "--peers", rest @ ..] => peers::bench(&root, rest).map_err(Into::into),
        ["bench", rest @ ..] => tasks::bench(&root, rest).map_err(Into::into),
        ["fuzz", rest @ ..] => fuzz::run(&root, rest).map_err(Into::into),
        ["api-fuzz"] => api_fuzz::run(&root, false).map_err(Into::into),
        ["api-fuzz", "--long"] => api_fuzz::run(&root, true).map_err(Into::into),
        ["sim", rest @ ..] => match sim::parse(rest) {
            Some(asked) => sim::run(&root, &asked).map_err(Into::into),
            None => {
                eprint!("{USAGE}");
                return ExitCode::from(2);
            }
        },
        ["crash-matrix"] => crash_matrix::run(&root, false).map_err(Into::into),
        ["crash-matrix", "--long"] => crash_matrix::run(&root, true).map_err(Into::into),
        ["tidy"] => tidy::run(&root).map_err(Into::into),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_chain(error);
            ExitCode::FAILURE
        }
    }
}

/// The error and what caused it, each once.
fn print_chain(error: Box<dyn Error>) {
    eprintln!("xtask: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprintln!("  because: {error}");
        cause = error.source();
    }
}

fn workspace_root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own).to_path_buf()
}
