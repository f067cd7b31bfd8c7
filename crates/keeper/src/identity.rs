//! Who a process is: a pid alone names nobody, because pids are given again.
//!
//! A process is named by the boot it lives in, its pid and its start time. Two processes of one boot can
//! share a pid but not a pid *and* a start tick, so a [`Matched`](IdentityCheck::Matched) check proves that
//! the process is the recorded one, and [`Absent`](IdentityCheck::Absent),
//! [`Mismatch`](IdentityCheck::Mismatch) and [`OtherBoot`](IdentityCheck::OtherBoot) each prove that it is gone.

use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

const BOOT_ID_PATH: &str = "/proc/sys/kernel/random/boot_id";

/// The name of one process life, unique over reboots and pid reuse.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// The kernel's random id of this boot.
    pub boot_id: String,
    pub pid: i32,
    /// Clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start_time: u64,
}

/// What looking for a recorded process showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdentityCheck {
    /// The recorded process lives.
    Matched,
    /// No process has the pid, or only a zombie is left of it (which runs no instruction any more).
    Absent,
    /// Another process has the pid now: the recorded one is gone.
    Mismatch { field: &'static str },
    /// The machine was started again since: the recorded process is gone.
    OtherBoot,
    /// It could not be asked; this proves nothing.
    Indeterminate { why: String },
}

impl IdentityCheck {
    /// True when the check proves that the recorded process no longer runs.
    pub fn proves_gone(&self) -> bool {
        matches!(self, Self::Absent | Self::Mismatch { .. } | Self::OtherBoot)
    }
}

#[derive(Debug, Error)]
pub enum IdentityError {
    #[error("the kernel's boot id could not be read")]
    BootId(#[source] io::Error),
    #[error("the status of process {pid} could not be read")]
    Stat { pid: i32, source: io::Error },
    #[error("the status of process {pid} has no known form")]
    Malformed { pid: i32 },
}

impl ProcessIdentity {
    /// The identity of the process that has `pid` now. The caller must know that this pid is not being given
    /// again meanwhile (it is its own, or an unreaped child, or it compares afterwards).
    pub fn of(pid: i32) -> Result<Self, IdentityError> {
        let boot_id = boot_id().map_err(IdentityError::BootId)?;
        let stat = read_stat(pid)?;
        Ok(Self { boot_id, pid, start_time: stat.start_time })
    }

    pub fn of_self() -> Result<Self, IdentityError> {
        Self::of(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// Looks whether the recorded process still lives. Never signals or waits.
    pub fn check(&self) -> IdentityCheck {
        match boot_id() {
            Ok(now) if now == self.boot_id => {}
            Ok(_) => return IdentityCheck::OtherBoot,
            Err(error) => {
                return IdentityCheck::Indeterminate { why: format!("boot id: {error}") };
            }
        }
        match read_stat(self.pid) {
            Ok(stat) if stat.start_time != self.start_time => IdentityCheck::Mismatch { field: "start_time" },
            Ok(stat) if stat.is_dead && !has_other_threads(self.pid) => IdentityCheck::Absent,
            Ok(_) => IdentityCheck::Matched,
            Err(IdentityError::Stat { source, .. }) if means_no_process(&source) => IdentityCheck::Absent,
            Err(error) => IdentityCheck::Indeterminate { why: error.to_string() },
        }
    }
}

/// The part of `/proc/PID/stat` that this crate needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessStat {
    pub(crate) comm: String,
    pub(crate) parent: i32,
    pub(crate) start_time: u64,
    /// The leading thread is a zombie or dead.
    pub(crate) is_dead: bool,
}

pub(crate) fn read_stat(pid: i32) -> Result<ProcessStat, IdentityError> {
    let bytes =
        std::fs::read(format!("/proc/{pid}/stat")).map_err(|source| IdentityError::Stat { pid, source })?;
    parse_stat(&bytes).ok_or(IdentityError::Malformed { pid })
}

/// The command name may hold spaces and parentheses, so fields are counted from the *last* `)`.
fn parse_stat(bytes: &[u8]) -> Option<ProcessStat> {
    let open = bytes.iter().position(|&byte| byte == b'(')?;
    let close = bytes.iter().rposition(|&byte| byte == b')')?;
    let comm = String::from_utf8_lossy(bytes.get(open + 1..close)?).into_owned();
    let rest = std::str::from_utf8(bytes.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    // State is field 3 and parent field 4, so field 22 is 17 further on.
    let start_time = fields.nth(17)?.parse().ok()?;
    Some(ProcessStat { comm, parent, start_time, is_dead: matches!(state, "Z" | "X" | "x") })
}

/// A process whose first thread ended shows as zombie while its other threads still run.
fn has_other_threads(pid: i32) -> bool {
    std::fs::read_dir(format!("/proc/{pid}/task")).is_ok_and(|tasks| tasks.count() > 1)
}

pub(crate) fn means_no_process(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

pub(crate) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string(Path::new(BOOT_ID_PATH))?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_command_name_with_parentheses_and_spaces_is_parsed() {
        let line = b"42 (a) b ( c)) S 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 100 200\n";
        let stat = parse_stat(line).expect("parses");
        assert_eq!(stat.comm, "a) b ( c)");
        assert_eq!((stat.parent, stat.start_time, stat.is_dead), (7, 987_654, false));
    }

    #[test]
    fn own_identity_matches_and_a_changed_one_does_not() {
        let own = ProcessIdentity::of_self().expect("own identity");
        assert_eq!(own.check(), IdentityCheck::Matched);
        let later = ProcessIdentity { start_time: own.start_time + 1, ..own.clone() };
        assert_eq!(later.check(), IdentityCheck::Mismatch { field: "start_time" });
        let elsewhere = ProcessIdentity { boot_id: "another".to_owned(), ..own };
        assert_eq!(elsewhere.check(), IdentityCheck::OtherBoot);
    }

    #[test]
    fn a_zombie_and_a_reaped_process_are_absent() {
        let mut child = Command::new("/bin/sh")
            .args(["-c", "read line"])
            .env_clear()
            .stdin(Stdio::piped())
            .spawn()
            .expect("spawn");
        let identity = ProcessIdentity::of(child.id() as i32).expect("identity");
        assert_eq!(identity.check(), IdentityCheck::Matched);
        drop(child.stdin.take());
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while identity.check() == IdentityCheck::Matched {
            assert!(std::time::Instant::now() < deadline, "the unreaped child stays matched");
            std::thread::yield_now();
        }
        assert_eq!(identity.check(), IdentityCheck::Absent);
        child.wait().expect("wait");
        assert!(identity.check().proves_gone());
    }
}
