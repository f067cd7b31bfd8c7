//! What processes and folders take: private memory, descriptors, threads, files.

use std::fs;
use std::path::Path;

/// Of one process.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Process {
    /// Memory that nobody shares, in KiB.
    pub(crate) private_kib: u64,
    pub(crate) descriptors: u64,
    pub(crate) threads: u64,
}

impl Process {
    pub(crate) fn of(pid: i32) -> Self {
        let entries = |name: &str| {
            let entries = fs::read_dir(format!("/proc/{pid}/{name}")).expect("a process of ours");
            u64::try_from(entries.count()).expect("small")
        };
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("a process of ours");
        let private = rollup.lines().filter(|line| line.starts_with("Private_"));
        let kib = private.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        Self { private_kib: kib.sum(), descriptors: entries("fd"), threads: entries("task") }
    }
}

/// Files below a folder; what goes while it is read is not there.
pub(crate) fn files_below(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { 1 }).sum()
}
