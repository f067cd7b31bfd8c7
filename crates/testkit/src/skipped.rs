//! A test that this machine cannot run is no test that passed: it says so where it can be seen, and in a list that
//! `cargo xtask test` prints at its end (a runner hides what a passing test prints).

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The list's name in the target folder; `cargo xtask test` empties it first.
pub const LIST: &str = "skipped-tests.txt";

/// Says that a test was not run, and why.
pub fn say(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    let mut shown = std::io::stderr();
    // Seen or not, it also stands in the list.
    shown.write_all(line.as_bytes()).ok();
    if let Some(list) = list() {
        // One write of one whole line: tests run at the same time.
        let file = OpenOptions::new().create(true).append(true).open(list);
        file.and_then(|mut file| file.write_all(line.as_bytes())).ok();
    }
}

/// `target/skipped-tests.txt`, from where this test's binary stands: `target/<profile>/deps/test-<hash>`.
fn list() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    own.ancestors().nth(3).map(|target: &Path| target.join(LIST))
}
