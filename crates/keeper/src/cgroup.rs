//! The agent's own control group, where the host's user was given one (version 2 only).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long killed members may take to leave.
const EMPTY_WAIT: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes the group. `None` when it cannot be made, or cannot be killed as a whole; descent and token still
    /// find the agent's processes then.
    pub(crate) fn create(parent: &Path, token: &str) -> Option<Self> {
        let path = parent.join(format!("mainstay-{token}"));
        std::fs::create_dir(&path).ok()?;
        let cgroup = Self { path };
        if cgroup.path.join("cgroup.kill").exists() {
            Some(cgroup)
        } else {
            cgroup.remove();
            None
        }
    }

    /// A group that a dead keeper had made; `None` when it is not there any more.
    pub(crate) fn existing(path: &Path) -> Option<Self> {
        path.join("cgroup.kill").exists().then(|| Self { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn members(&self) -> Vec<i32> {
        std::fs::read_to_string(self.path.join("cgroup.procs"))
            .map(|text| text.lines().filter_map(|line| line.parse().ok()).collect())
            .unwrap_or_default()
    }

    /// Kills every member, also in groups below.
    pub(crate) fn kill(&self) {
        // A group without members, or one that is gone already, needs no killing.
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Removes the group once it is empty; one that does not become empty stays, with its members listed as strays.
    pub(crate) fn remove(&self) {
        let deadline = Instant::now() + EMPTY_WAIT;
        while std::fs::remove_dir(&self.path).is_err() && self.path.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
