//! Ending processes for certain: by pidfd, after the process behind it was identified.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::identity::{IdentityError, means_no_process, read_stat};
use crate::manifest::{StrayOutcome, StrayReport};
use crate::process_table::ProcessTable;

/// How long killed processes are waited for in one round. KILL acts at once unless a process hangs in the kernel.
const KILL_WAIT: Duration = Duration::from_secs(3);
/// A killed process may have started another one meanwhile, so the search is repeated until it finds nothing, but
/// not for ever: what forks faster than it is killed is reported as unproven.
const ROUNDS: usize = 10;

/// Kills everything that `find` names until it names nothing that lives, and reports each process once. `spared`
/// are never touched; `after_round` is called when a round's processes have ended (to reap them).
pub(crate) fn end_all(
    spared: &[i32],
    mut find: impl FnMut(&ProcessTable) -> Vec<i32>,
    mut after_round: impl FnMut(),
) -> io::Result<Vec<StrayReport>> {
    let mut reports: BTreeMap<(i32, u64), StrayReport> = BTreeMap::new();
    for round in 0..=ROUNDS {
        let table = ProcessTable::read()?;
        let mut pids = find(&table);
        pids.sort_unstable();
        pids.dedup();
        let mut held = Vec::new();
        for pid in pids {
            let Some(stat) = table.get(pid).filter(|stat| !stat.is_dead && !spared.contains(&pid)) else {
                continue;
            };
            let key = (pid, stat.start_time);
            let report =
                |outcome| StrayReport { pid, start_time: stat.start_time, comm: stat.comm.clone(), outcome };
            if round == ROUNDS {
                reports.insert(key, report(StrayOutcome::Unproven));
                continue;
            }
            match hold(pid, stat.start_time) {
                Hold::Held(process) => held.push(process),
                Hold::Gone => {
                    reports.entry(key).or_insert_with(|| report(StrayOutcome::Gone));
                }
                Hold::Unclear => {
                    reports.insert(key, report(StrayOutcome::Unproven));
                }
            }
        }
        if held.is_empty() {
            break;
        }
        for report in kill_all(held) {
            reports.insert((report.pid, report.start_time), report);
        }
        after_round();
    }
    Ok(reports.into_values().collect())
}

/// A process held by descriptor, so that its pid cannot come to mean another one.
#[derive(Debug)]
struct HeldProcess {
    pid: i32,
    start_time: u64,
    comm: String,
    pidfd: OwnedFd,
}

enum Hold {
    Held(HeldProcess),
    Gone,
    Unclear,
}

/// Holds the process that has `pid` if it is the one that started at `start_time`.
fn hold(pid: i32, start_time: u64) -> Hold {
    let Some(raw) = Pid::from_raw(pid) else {
        return Hold::Gone;
    };
    let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(rustix::io::Errno::SRCH) => return Hold::Gone,
        Err(_) => return Hold::Unclear,
    };
    // Looked at after the descriptor was opened: either the descriptor holds the process that has this start time, or
    // that one is gone.
    match read_stat(pid) {
        Ok(stat) if stat.start_time == start_time => {
            Hold::Held(HeldProcess { pid, start_time, comm: stat.comm, pidfd })
        }
        Ok(_) => Hold::Gone,
        Err(IdentityError::Stat { source, .. }) if means_no_process(&source) => Hold::Gone,
        Err(_) => Hold::Unclear,
    }
}

/// Kills every held process and waits until they are gone, at most [`KILL_WAIT`] for all.
fn kill_all(held: Vec<HeldProcess>) -> Vec<StrayReport> {
    let mut signalled = Vec::with_capacity(held.len());
    for process in held {
        let outcome = match pidfd_send_signal(&process.pidfd, Signal::KILL) {
            Ok(()) => StrayOutcome::Killed,
            Err(rustix::io::Errno::SRCH) => StrayOutcome::Gone,
            Err(_) => StrayOutcome::Unproven,
        };
        signalled.push((process, outcome));
    }
    let deadline = Instant::now() + KILL_WAIT;
    let report = |(process, outcome): (HeldProcess, StrayOutcome)| {
        let is_unproven = outcome == StrayOutcome::Killed && !wait_until_exited(&process.pidfd, deadline);
        let outcome = if is_unproven { StrayOutcome::Unproven } else { outcome };
        StrayReport { pid: process.pid, start_time: process.start_time, comm: process.comm, outcome }
    };
    signalled.into_iter().map(report).collect()
}

/// True when the process has ended (it may still be a zombie) before the deadline.
fn wait_until_exited(pidfd: &OwnedFd, deadline: Instant) -> bool {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}
