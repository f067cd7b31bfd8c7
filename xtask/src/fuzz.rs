//! `fuzz`: every fuzz target for a while, led by coverage, on stable Rust.
//!
//! libFuzzer needs the counters that a sanitizer's compiler pass puts into the code it is to lead through. Cargo runs this
//! program in front of the compiler (`RUSTC_WORKSPACE_WRAPPER`) for the crates of this workspace and for no other, so all
//! dependencies are those that are built anyway.

use crate::tasks::{StepError, cargo, run_command};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How long each target runs, unless asked otherwise.
const SECONDS: u64 = 60;
/// How long each target runs within `cargo xtask test`: long enough for some ten thousand inputs.
pub(crate) const SECONDS_IN_TEST: u64 = 10;
/// A single input that takes longer is a finding. A loaded machine needs some of it.
const INPUT_SECONDS: u64 = 25;
/// Memory of a target. What it reads says how long its parts are, and must not be believed.
const MEMORY_MIB: u64 = 2_048;
/// Bytes of an input at most: frames and files are small where they are odd.
const INPUT_BYTES: u64 = 16 * 1024;
/// Set while Cargo runs this program in front of the compiler.
const WRAPS_COMPILER: &str = "MAINSTAY_XTASK_WRAPS_COMPILER";
/// Counters for libFuzzer. The code is not optimized beside that: it is built in every CI run, and checks its arithmetic.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];

/// Why fuzzing did not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FuzzError {
    #[error("usage: cargo xtask fuzz [--seconds N] [TARGET…], or cargo xtask fuzz --replay TARGET FILE")]
    Usage,
    #[error("there is no fuzz target {0:?}")]
    Unknown(String),
    #[error("cannot use {path}")]
    Folder { path: PathBuf, source: io::Error },
    #[error("the targets cannot be built")]
    Build(#[source] StepError),
    #[error("{target} found something; once more: cargo xtask fuzz --replay {target} {}", input.display())]
    Found { target: String, input: PathBuf, source: StepError },
    #[error("{target} ended without an input that shows why")]
    Broken { target: String, source: StepError },
}

/// Runs in the compiler's place where Cargo asks for that.
pub(crate) fn wrap_compiler() -> Option<io::Error> {
    std::env::var_os(WRAPS_COMPILER)?;
    let mut arguments = std::env::args_os().skip(1);
    let compiler = arguments.next()?;
    let arguments: Vec<OsString> = arguments.collect();
    let asks = |what: &str| arguments.iter().any(|argument| argument == what);
    let mut command = Command::new(compiler);
    // Cargo asks what the compiler is before it compiles anything.
    if asks("--crate-name") && !asks("build_script_build") {
        command.args(COVERAGE);
    }
    Some(command.args(arguments).exec())
}

pub(crate) fn run(root: &Path, words: &[&str]) -> Result<(), FuzzError> {
    match words {
        ["--replay", target, input] => {
            let known = targets(root)?;
            let target = known.iter().find(|known| known == target).ok_or_else(|| unknown(target))?;
            build(root)?;
            let mut command = program(root, target);
            run_command(command.arg(input)).map_err(|source| FuzzError::Found {
                target: target.clone(),
                input: PathBuf::from(input),
                source,
            })
        }
        ["--seconds", seconds, wanted @ ..] => {
            fuzz(root, seconds.parse().map_err(|_| FuzzError::Usage)?, wanted)
        }
        [first, ..] if first.starts_with('-') => Err(FuzzError::Usage),
        wanted => fuzz(root, SECONDS, wanted),
    }
}

fn unknown(target: &str) -> FuzzError {
    FuzzError::Unknown(target.to_owned())
}

/// Runs these targets, or all, one after the other.
pub(crate) fn fuzz(root: &Path, seconds: u64, wanted: &[&str]) -> Result<(), FuzzError> {
    let known = targets(root)?;
    if let Some(target) = wanted.iter().find(|target| !known.iter().any(|known| known == *target)) {
        return Err(unknown(target));
    }
    build(root)?;
    for target in known.iter().filter(|target| wanted.is_empty() || wanted.contains(&target.as_str())) {
        println!("\n-- {target}, {seconds} s");
        fuzz_one(root, target, seconds)?;
    }
    Ok(())
}

/// The targets are the files of their folder.
fn targets(root: &Path) -> Result<Vec<String>, FuzzError> {
    let folder = root.join("fuzz/targets");
    let failed = |source| FuzzError::Folder { path: folder.clone(), source };
    let mut targets = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        targets.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
    }
    targets.sort();
    Ok(targets)
}

fn build(root: &Path) -> Result<(), FuzzError> {
    let mut command = cargo(root, &["build", "-p", "mainstay-fuzz", "--features", "fuzz", "--bins"]);
    command.env("RUSTC_WORKSPACE_WRAPPER", own_copy(root)?).env(WRAPS_COMPILER, "1");
    run_command(&mut command).map_err(FuzzError::Build)
}

/// A copy of this program: its own file may be gone, since what `test` built before this may have built it anew.
fn own_copy(root: &Path) -> Result<PathBuf, FuzzError> {
    let folder = root.join("target/fuzz");
    let copy = folder.join("compiler-wrapper");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| FuzzError::Folder { path, source }
    };
    fs::create_dir_all(&folder).map_err(failed(&folder))?;
    // One that runs cannot be written over.
    match fs::remove_file(&copy) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&copy)(error)),
        _ => {}
    }
    fs::copy("/proc/self/exe", &copy).map_err(failed(&copy))?;
    Ok(copy)
}

fn program(root: &Path, target: &str) -> Command {
    let mut command =
        Command::new(root.join("target/debug").join(format!("fuzz-{}", target.replace('_', "-"))));
    command.current_dir(root);
    command
}

fn fuzz_one(root: &Path, target: &str, seconds: u64) -> Result<(), FuzzError> {
    // What was found to lead somewhere is kept for the next run; the seeds stand in the repository.
    let corpus = root.join("target/fuzz/corpus").join(target);
    let found = root.join("target/fuzz/found").join(target);
    for folder in [&corpus, &found] {
        fs::create_dir_all(folder).map_err(|source| FuzzError::Folder { path: folder.clone(), source })?;
    }
    let before = files(&found);
    let mut command = program(root, target);
    command.arg(&corpus).arg(root.join("fuzz/seeds").join(target)).args([
        format!("-max_total_time={seconds}"),
        format!("-timeout={INPUT_SECONDS}"),
        format!("-rss_limit_mb={MEMORY_MIB}"),
        format!("-max_len={INPUT_BYTES}"),
        format!("-artifact_prefix={}/", found.display()),
        "-print_final_stats=1".to_owned(),
        // What it discovers on its way is of no use in a log.
        "-print_funcs=0".to_owned(),
        "-verbosity=0".to_owned(),
    ]);
    run_command(&mut command).map_err(|source| {
        let target = target.to_owned();
        match files(&found).into_iter().find(|file| !before.contains(file)) {
            Some(input) => FuzzError::Found { target, input, source },
            None => FuzzError::Broken { target, source },
        }
    })
}

fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
