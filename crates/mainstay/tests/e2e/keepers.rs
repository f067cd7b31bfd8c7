//! The keeper of a session: its folder, its process, and stopping that process for a while.

use crate::support::{World, show};
use mainstay_testkit::http::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The folder of the keeper that has the session's agent.
pub(crate) fn folder(world: &World, client: &Client, session: &str) -> PathBuf {
    let shown = show(client, session);
    let token = shown["process"].as_str().expect("the session has a process");
    world.home.mainstay_home().join("keepers").join(token)
}

/// Bytes that stand in the spool of a keeper's folder.
pub(crate) fn spooled(folder: &Path) -> u64 {
    let segments = std::fs::read_dir(folder.join("spool")).into_iter().flatten().flatten();
    segments.filter_map(|segment| segment.metadata().ok()).map(|metadata| metadata.len()).sum()
}

/// The keeper's own process id.
pub(crate) fn pid(world: &World, client: &Client, session: &str) -> i32 {
    let manifest = std::fs::read(folder(world, client, session).join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_slice(&manifest).expect("JSON");
    i32::try_from(manifest["keeper"]["pid"].as_i64().expect("the keeper's pid")).expect("a pid")
}

/// A keeper that runs no instruction until this is dropped. Dropping wakes it also while a test panics: a stopped
/// process would outlive the test.
pub(crate) struct Stopped(Pid);

impl Stopped {
    pub(crate) fn stop(pid: i32) -> Self {
        let pid = Pid::from_raw(pid).expect("a pid");
        kill_process(pid, Signal::STOP).expect("stopped");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // It may have ended meanwhile.
        let _gone = kill_process(self.0, Signal::CONT);
    }
}
