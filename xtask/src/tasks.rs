//! The tasks that run Cargo, and the table of what each step took.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use crate::api_fuzz::{self, ApiFuzzError};
use crate::budget;
use crate::crash_matrix::{self, MatrixError};
use crate::dependencies::{self, DependencyError};
use crate::fuzz::{self, FuzzError};
use crate::setup::{self, SetupError};
use crate::sim;
use crate::tidy::{self, TidyError};

/// Set for tests named `golden`: they write their files instead of comparing.
const UPDATE_GOLDEN: &str = "UPDATE_GOLDEN";

/// Why a command did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    #[error("cannot start `{command}`")]
    Start { command: String, source: io::Error },
    #[error("`{command}` ended with {status}")]
    Failed { command: String, status: ExitStatus },
}

/// Seeds of the simulator in the long mode.
const LONG_SEEDS: u64 = 20_000;

/// Ignored tests that no other step of the long mode runs.
const IGNORED_REST: &str = "package(mainstay-core) or package(mainstay-store)";

/// Why `test` failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TestError {
    #[error("set-up")]
    Setup(#[source] SetupError),
    #[error("tidy")]
    Tidy(#[source] TidyError),
    #[error("fuzz")]
    Fuzz(#[source] FuzzError),
    #[error("api-fuzz")]
    ApiFuzz(#[source] ApiFuzzError),
    #[error("dependencies")]
    Dependencies(#[source] DependencyError),
    #[error("crash matrix")]
    Crashes(#[source] MatrixError),
    #[error("{step}")]
    Step { step: &'static str, source: StepError },
}

/// What to do with golden files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Golden {
    Write,
    Check,
}

/// Runs a command with our own output and input.
pub(crate) fn run_command(command: &mut Command) -> Result<(), StepError> {
    let shown = shown(command);
    match command.status() {
        Err(source) => Err(StepError::Start { command: shown, source }),
        Ok(status) if !status.success() => Err(StepError::Failed { command: shown, status }),
        Ok(_) => Ok(()),
    }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(arguments);
    command
}

/// Compares or writes the golden files: they belong to the tests whose names hold `golden`.
pub(crate) fn golden(root: &Path, what: Golden) -> Result<(), StepError> {
    let mut command =
        cargo(root, &["nextest", "run", "--workspace", "--no-tests=pass", "-E", "test(golden)"]);
    match what {
        Golden::Write => command.env(UPDATE_GOLDEN, "1"),
        Golden::Check => command.env_remove(UPDATE_GOLDEN),
    };
    run_command(&mut command)
}

/// Prints the measured figures; `rest` goes to the bench itself.
pub(crate) fn bench(root: &Path, rest: &[&str]) -> Result<(), StepError> {
    // The journal's own figures need no host process and no agent.
    if rest.is_empty() || rest.contains(&"journal") {
        let example = ["run", "--release", "-p", "mainstay-host", "--example", "journal_numbers"];
        run_command(&mut cargo(root, &example))?;
    }
    let others: Vec<&&str> = rest.iter().filter(|word| **word != "journal").collect();
    if others.is_empty() && !rest.is_empty() {
        return Ok(());
    }
    run_command(&mut cargo(
        root,
        &["build", "--release", "-p", "mainstay", "-p", "mainstay-testkit", "--bins"],
    ))?;
    let mut bench = cargo(root, &["run", "--release", "-p", "mainstay-testkit", "--bin", "bench"]);
    if !others.is_empty() {
        bench.arg("--").args(others);
    }
    run_command(&mut bench)
}

/// How much is tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// What fits into the minutes of `budget`.
    Ci,
    /// And what does not.
    Long,
}

/// Everything CI checks, quick refusals first; stops at the first failure and prints what each step took.
pub(crate) fn test(root: &Path, length: Length) -> Result<(), TestError> {
    let mut times = Vec::new();
    let outcome = steps(root, &mut times).and_then(|()| match length {
        Length::Ci => Ok(()),
        Length::Long => long_steps(root, &mut times),
    });
    print_times(&times, outcome.is_ok());
    outcome
}

/// Does a step, and notes what it took.
fn timed(
    times: &mut Vec<(&'static str, Duration)>,
    step: &'static str,
    work: &mut dyn FnMut() -> Result<(), TestError>,
) -> Result<(), TestError> {
    println!("\n== {step}");
    let begun = Instant::now();
    let outcome = work();
    times.push((step, begun.elapsed()));
    outcome
}

fn steps(root: &Path, times: &mut Vec<(&'static str, Duration)>) -> Result<(), TestError> {
    let mut timed = |step, work: &mut dyn FnMut() -> Result<(), TestError>| timed(times, step, work);
    let run = |step: &'static str, arguments: &[&str]| {
        run_command(&mut cargo(root, arguments)).map_err(|source| TestError::Step { step, source })
    };
    timed("setup", &mut || setup::run(root).map_err(TestError::Setup))?;
    timed("tidy", &mut || tidy::run(root).map_err(TestError::Tidy))?;
    timed("dependencies", &mut || dependencies::run(root).map_err(TestError::Dependencies))?;
    timed("format", &mut || run("format", &["fmt", "--all", "--check"]))?;
    timed("build", &mut || run("build", &["build", "--workspace", "--bins"]))?;
    timed("clippy", &mut || {
        run("clippy", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    })?;
    timed("golden", &mut || {
        golden(root, Golden::Check).map_err(|source| TestError::Step { step: "golden", source })
    })?;
    let skipped = root.join("target/skipped-tests.txt");
    // Of an earlier run.
    let _absent = std::fs::remove_file(&skipped);
    let tested = timed("nextest", &mut || run("nextest", &["nextest", "run", "--workspace"]));
    if let Ok(list) = std::fs::read_to_string(&skipped) {
        println!("\nThese were not run on this machine:\n{list}");
    }
    tested?;
    timed("doc tests", &mut || run("doc tests", &["test", "--workspace", "--doc"]))?;
    timed("fuzz", &mut || fuzz::fuzz(root, fuzz::SECONDS_IN_TEST, &[]).map_err(TestError::Fuzz))?;
    timed("api-fuzz", &mut || api_fuzz::run(root, false).map_err(TestError::ApiFuzz))
}

/// What does not fit into CI's minutes.
fn long_steps(root: &Path, times: &mut Vec<(&'static str, Duration)>) -> Result<(), TestError> {
    let mut timed = |step, work: &mut dyn FnMut() -> Result<(), TestError>| timed(times, step, work);
    timed("long: seeds", &mut || {
        let many = sim::Asked::Run { seeds: LONG_SEEDS, first: 0, flavour: None };
        sim::run(root, &many).map_err(|source| TestError::Step { step: "long: seeds", source })
    })?;
    timed("long: crashes", &mut || crash_matrix::run(root, true).map_err(TestError::Crashes))?;
    timed("long: api-fuzz", &mut || api_fuzz::run(root, true).map_err(TestError::ApiFuzz))?;
    timed("long: ignored", &mut || {
        // What the simulator ignores is run above, or replays one seed.
        let rest = [
            "nextest",
            "run",
            "--profile",
            "long",
            "--workspace",
            "--run-ignored",
            "only",
            "-E",
            IGNORED_REST,
        ];
        run_command(&mut cargo(root, &rest))
            .map_err(|source| TestError::Step { step: "long: ignored", source })
    })
}

fn print_times(times: &[(&'static str, Duration)], passed: bool) {
    print!("\n{}", budget::compare(times));
    println!("{}", if passed { "passed" } else { "FAILED in the last step above" });
}
