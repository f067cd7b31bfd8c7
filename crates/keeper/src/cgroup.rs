//! The agent's own control group, where the host's user was given one (version 2 only).

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long killed members may take to leave.
const EMPTY_WAIT: Duration = Duration::from_secs(3);
/// Lists the processes of a group; every group has it.
const MEMBERS: &str = "cgroup.procs";
/// Groups looked at, its own with those below it. An agent that made more has its processes found by descent and token.
const GROUPS_MOST: usize = 1_000;

#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes the group. `None` when it cannot be made; descent and token still find the agent's processes then.
    pub(crate) fn create(parent: &Path, token: &str) -> Option<Self> {
        let path = parent.join(format!("mainstay-{token}"));
        std::fs::create_dir(&path).ok()?;
        let cgroup = Self { path };
        if cgroup.path.join(MEMBERS).exists() {
            Some(cgroup)
        } else {
            // A folder of another kind of file system.
            cgroup.remove();
            None
        }
    }

    /// A group that a dead keeper had made; `None` when it is not there any more.
    pub(crate) fn existing(path: &Path) -> Option<Self> {
        path.join(MEMBERS).exists().then(|| Self { path: path.to_owned() })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The processes in it, and in groups that the agent made below it.
    pub(crate) fn members(&self) -> Vec<i32> {
        let mut members = Vec::new();
        for group in self.groups() {
            let listed = std::fs::read_to_string(group.join(MEMBERS)).unwrap_or_default();
            members.extend(listed.lines().filter_map(|line| line.parse::<i32>().ok()));
        }
        members
    }

    /// It and all groups below, each before those in it.
    fn groups(&self) -> Vec<PathBuf> {
        let mut groups = vec![self.path.clone()];
        let mut next = 0;
        while let Some(group) = groups.get(next) {
            let below: Vec<PathBuf> = std::fs::read_dir(group)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
                .map(|entry| entry.path())
                .collect();
            groups.extend(below.into_iter().take(GROUPS_MOST.saturating_sub(groups.len())));
            next += 1;
        }
        groups
    }

    /// Kills every member, also in groups below, before any of them can fork again. A kernel that cannot (before 5.14)
    /// has no such file: then members are ended one by one, by whoever lists them.
    pub(crate) fn kill(&self) {
        // A group without members, or one that is gone already, needs no killing.
        let _ = std::fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Removes the group once it is empty; one that does not become empty stays, with its members listed as strays.
    pub(crate) fn remove(&self) {
        let deadline = Instant::now() + EMPTY_WAIT;
        loop {
            for group in self.groups().iter().rev() {
                // Refused while it has members; asked again below.
                let _ = std::fs::remove_dir(group);
            }
            if !self.path.exists() || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
