//! The project's own rules about its files, those that no lint knows.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{arrows, cases};

/// Hard limit of a source file; 150 to 500 lines is what we aim at.
const MAX_LINES: usize = 900;

/// Packages in `Cargo.lock`: each one is code that we ship, build and trust.
const MAX_LOCKED_PACKAGES: usize = 350;

/// Module names that say nothing about what is inside.
const EMPTY_NAMES: [&str; 6] = ["utils.rs", "util.rs", "helpers.rs", "misc.rs", "common.rs", "utils"];

/// Marks of unfinished work, put together here so that this file does not find itself.
const UNFINISHED: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("to", "do!("), concat!("unimple", "mented!(")];

/// Folders of somebody's machine.
const MACHINE_PATHS: [&str; 3] = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

/// Waiting for time instead of for what should happen.
const SLEEPS: [&str; 2] = [concat!("thread::sl", "eep("), concat!("time::sl", "eep(")];

/// The files that may hold unsafe code: where the kernel's interface, or counting what is allocated, leaves no other way. At most two.
const UNSAFE_FILES: &[&str] = &["crates/keeper/src/run/descriptors.rs", "crates/core/tests/memory.rs"];

/// The keyword, put together here so that this file does not find itself.
const UNSAFE: &str = concat!("un", "safe");

/// What a sleep in a test must say it is: the step of a poll with a deadline, or the chosen moment of a fault.
const EXPLAINED_SLEEPS: [&str; 2] = ["// poll", "// fault"];

/// Whether the folder stands at the beginning of a path, and not somewhere below another folder.
fn names_a_machine(line: &str, folder: &str) -> bool {
    line.match_indices(folder).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '$' | '}'))
    })
}

/// Whether a line of code has the word by itself: not in a comment, a text, or a longer name.
fn uses_keyword(line: &str, word: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + word.len()..]);
        before.matches('"').count() % 2 == 0
            && !before.ends_with(is_name)
            && after.starts_with([' ', '{', '('])
    })
}

/// Why tidy did not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TidyError {
    #[error("cannot ask git for the repository's files")]
    Git(#[source] io::Error),
    #[error("git could not list the repository's files")]
    GitFailed,
    #[error("{0} complaints, listed above")]
    Complaints(usize),
}

pub(crate) fn run(root: &Path) -> Result<(), TidyError> {
    let files = tracked_files(root)?;
    let mut complaints = Vec::new();
    for file in &files {
        // Binary files, and files deleted but not yet committed, have no lines to look at.
        if let Ok(text) = fs::read_to_string(root.join(file)) {
            complaints.extend(check_file(file, &text));
        }
    }
    complaints.extend(arrows::check(root));
    complaints.extend(cases::check(root));
    complaints.extend(check_lock_size(root));
    for complaint in &complaints {
        println!("tidy: {complaint}");
    }
    if complaints.is_empty() {
        println!("tidy: {} files, nothing to complain about", files.len());
        return Ok(());
    }
    Err(TidyError::Complaints(complaints.len()))
}

/// Files in git, and new ones that git would not ignore: a rule must hold before the commit.
fn tracked_files(root: &Path) -> Result<Vec<PathBuf>, TidyError> {
    let output = Command::new("git")
        .current_dir(root)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(TidyError::Git)?;
    if !output.status.success() {
        return Err(TidyError::GitFailed);
    }
    let names = String::from_utf8_lossy(&output.stdout);
    Ok(names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}

fn check_file(file: &Path, text: &str) -> Vec<String> {
    let shown = file.display();
    let mut complaints = Vec::new();
    let is_rust = file.extension().is_some_and(|extension| extension == "rs");
    if file.components().any(|part| EMPTY_NAMES.iter().any(|name| part.as_os_str() == *name)) {
        complaints.push(format!("{shown}: a name that does not say what is inside"));
    }
    if is_rust && text.lines().count() > MAX_LINES {
        complaints.push(format!("{shown}: {} lines, the limit is {MAX_LINES}", text.lines().count()));
    }
    let mut in_tests = file.components().any(|part| part.as_os_str() == "tests")
        || file.file_name().is_some_and(|name| name == "tests.rs");
    for (index, line) in text.lines().enumerate() {
        let place = format!("{shown}:{}", index + 1);
        for path in MACHINE_PATHS {
            if names_a_machine(line, path) {
                complaints.push(format!("{place}: a path of some machine ({path})"));
            }
        }
        if !is_rust {
            continue;
        }
        if uses_keyword(line, UNSAFE) && !UNSAFE_FILES.iter().any(|allowed| file == Path::new(allowed)) {
            complaints.push(format!("{place}: {UNSAFE} code stands in the named files only"));
        }
        // By convention test modules are the last thing in a file.
        in_tests |= line.trim_start().starts_with("#[cfg(test)]");
        for mark in UNFINISHED {
            if line.contains(mark) {
                complaints.push(format!("{place}: unfinished work ({mark}) belongs into an issue"));
            }
        }
        let explained = EXPLAINED_SLEEPS.iter().any(|why| line.contains(why));
        if in_tests && !explained && SLEEPS.iter().any(|sleep| line.contains(sleep)) {
            complaints.push(format!("{place}: a test waits on a condition or a signal, never for a time"));
        }
    }
    complaints
}

fn check_lock_size(root: &Path) -> Option<String> {
    let lock = match fs::read_to_string(root.join("Cargo.lock")) {
        Ok(lock) => lock,
        Err(error) => return Some(format!("Cargo.lock: {error}")),
    };
    let packages = lock.lines().filter(|line| *line == "[[package]]").count();
    (packages > MAX_LOCKED_PACKAGES)
        .then(|| format!("Cargo.lock: {packages} packages, the budget is {MAX_LOCKED_PACKAGES}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(file: &str, text: &str) -> Vec<String> {
        check_file(Path::new(file), text)
    }

    #[test]
    fn each_rule_bites() {
        let long = "\n".repeat(MAX_LINES + 1);
        assert_eq!(complaints("crates/a/src/x.rs", &long).len(), 1);
        assert_eq!(complaints("crates/a/src/utils.rs", "").len(), 1);
        assert_eq!(complaints("crates/a/src/utils/mod.rs", "").len(), 1);
        assert_eq!(complaints("crates/a/src/x.rs", &format!("// {} later", UNFINISHED[0])).len(), 1);
        assert_eq!(complaints("README.md", &format!("see {}x", MACHINE_PATHS[0])).len(), 1);
        assert_eq!(complaints("crates/a/tests/x.rs", &format!("std::{}d);", SLEEPS[0])).len(), 1);
        let unit = format!("fn a() {{}}\n#[cfg(test)]\nmod tests {{ fn b() {{ std::{}d); }} }}", SLEEPS[0]);
        assert_eq!(complaints("crates/a/src/x.rs", &unit).len(), 1);
        for code in ["{ x() }", "fn f() {}", "impl Send for X {}"] {
            assert_eq!(complaints("crates/a/src/x.rs", &format!("{UNSAFE} {code}")).len(), 1, "{code}");
            assert_eq!(complaints(UNSAFE_FILES[0], &format!("{UNSAFE} {code}")), Vec::<String>::new());
        }
        assert!(UNSAFE_FILES.len() <= 2);
    }

    #[test]
    fn what_is_fine_passes() {
        let polling = format!("fn wait() {{ std::{}POLL_EVERY); }}", SLEEPS[0]);
        assert_eq!(complaints("crates/a/src/x.rs", &polling), Vec::<String>::new());
        let explained = format!("std::{}POLL_EVERY); // poll", SLEEPS[0]);
        assert_eq!(complaints("crates/a/tests/x.rs", &explained), Vec::<String>::new());
        for fine in [format!("// {UNSAFE} code"), format!("let {UNSAFE}_ = 1;"), format!("\"{UNSAFE} x\"")] {
            assert_eq!(complaints("crates/a/src/x.rs", &fine), Vec::<String>::new());
        }
        let below = format!("\"$LAB/homes/x{}a.txt\"", MACHINE_PATHS[0]);
        assert_eq!(complaints("golden.txt", &below), Vec::<String>::new());
        assert_eq!(complaints("docs/common.md", "a list of what to do"), Vec::<String>::new());
    }
}
