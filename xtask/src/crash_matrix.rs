//! The crash matrix, run and written down: `docs/crash-matrix.md` is made by the run that it tells of.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::tasks::{StepError, run_command};

/// The page.
const PAGE: &str = "docs/crash-matrix.md";
/// Tests that leave their rows where this variable says.
const ROWS: &str = "MAINSTAY_CRASH_MATRIX";
/// Makes them run every point with more clients and more counts.
const LONG: &str = "MAINSTAY_CRASH_LONG";

#[derive(Debug, thiserror::Error)]
pub(crate) enum MatrixError {
    #[error("a run of the matrix failed")]
    Run(#[source] StepError),
    #[error("cannot use {path}")]
    File { path: PathBuf, source: io::Error },
}

/// Runs every point in every protocol and writes the page. `long`: with more clients and more counts, about 600 runs in place
/// of about 100.
pub(crate) fn run(root: &Path, long: bool) -> Result<(), MatrixError> {
    let rows = root.join("target/crash-matrix");
    let failed = |path: PathBuf| move |source| MatrixError::File { path, source };
    // Of an earlier run.
    let _absent = fs::remove_dir_all(&rows);
    fs::create_dir_all(&rows).map_err(failed(rows.clone()))?;
    let mut bins = Command::new("cargo");
    bins.current_dir(root).args(["build", "--workspace", "--bins"]);
    run_command(&mut bins).map_err(MatrixError::Run)?;
    let mut tests = Command::new("cargo");
    tests.current_dir(root).env(ROWS, &rows);
    tests.args(["nextest", "run", "-p", "mainstay", "-E", "test(crash_matrix::)"]);
    if long {
        // The long mode takes longer than a hanging test may; the runner's own limit is in its profile.
        tests.env(LONG, "1").args(["--profile", "long"]);
    }
    run_command(&mut tests).map_err(MatrixError::Run)?;
    let mut lines = Vec::new();
    for entry in fs::read_dir(&rows).map_err(failed(rows))?.flatten() {
        let text = fs::read_to_string(entry.path()).map_err(failed(entry.path()))?;
        lines.extend(text.lines().map(str::to_owned));
    }
    lines.sort();
    let page = root.join(PAGE);
    fs::write(&page, written(&lines)).map_err(failed(page))?;
    println!("{PAGE}: {} runs", lines.len());
    Ok(())
}

fn written(rows: &[String]) -> String {
    let intro = "# Crash matrix\n\nWritten by `cargo xtask crash-matrix`; do not edit. Each row is a run on the real binary with an agent \
        that plays a script in its protocol: the part is killed with -9 at that point, everything goes on, and then it is checked that each \
        message reached the agent once, that every turn, item and request has one end, that the text is whole (or says that its turn was lost with its agent), \
        that an answer was given once, that all clients have the same history without a hole, and that no process is left.\n\n";
    let head = "| killed | when | agent | clients | hosts that died | agent processes | first turn |\n|---|---|---|---|---|---|---|\n";
    format!("{intro}{} runs.\n\n{head}{}\n", rows.len(), rows.join("\n"))
}
