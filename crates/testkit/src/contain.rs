//! "No process is left that was not there before": a check around one test.
//!
//! [`Containment::enter`] makes the test process a *child subreaper*: whatever a test starts, and
//! whatever that starts, detached or not, stays a descendant of the test process, because orphans
//! are handed to it. So walking parent ids finds every process, without any token, name or group.
//!
//! The test process then also has init's duty towards those orphans. A zombie is not alive, but
//! programs under test look at process identities and would see it for ever; a background thread
//! reaps zombies that are children of the test process **in another session than the test's own**.
//! Children made by [`std::process::Command`] share the test's session and are left to their owner;
//! one that is put into a session of its own must be named with [`own`] before it can end.
//!
//! nextest runs each test in a process of its own; with other runners, tests in one binary would
//! see each other's processes.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};

use crate::wait::wait_for;

/// How often adopted zombies are collected. A test that waits for an identity to be gone waits this much
/// longer; there is no signal to wait on without a handler for SIGCHLD, which would belong to the whole process.
const REAP_EVERY: Duration = Duration::from_millis(10);

/// Children whose owner waits for them although they have a session of their own.
static OWNED: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// Keeps the reaper away from a child that somebody waits for by itself.
pub fn own(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        OWNED.lock().unwrap_or_else(PoisonError::into_inner).insert(pid);
    }
}

/// Takes back [`own`] once the child has been waited for: its number may be given to another process.
pub fn disown(pid: u32) {
    if let Ok(pid) = i32::try_from(pid) {
        OWNED.lock().unwrap_or_else(PoisonError::into_inner).remove(&pid);
    }
}

fn is_owned(pid: i32) -> bool {
    OWNED.lock().unwrap_or_else(PoisonError::into_inner).contains(&pid)
}

/// A live descendant of the test process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proc {
    /// Its process id.
    pub pid: i32,
    /// Its parent's process id.
    pub parent: i32,
    /// Start time in clock ticks since boot; with the pid, its identity.
    pub started: u64,
    /// The kernel's short name.
    pub comm: String,
    /// Arguments, joined with spaces; empty when the process is past reading them.
    pub cmdline: String,
}

impl fmt::Display for Proc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, parent, comm, cmdline, .. } = self;
        write!(formatter, "{pid} (parent {parent}) {comm}: {cmdline}")
    }
}

/// What `/proc/<pid>/stat` says that matters here.
#[derive(Debug, Clone)]
struct Stat {
    pid: i32,
    parent: i32,
    session: i32,
    started: u64,
    comm: String,
    zombie: bool,
}

impl Stat {
    fn read(pid: i32) -> Option<Self> {
        Self::parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// The name stands in parentheses and may itself contain parentheses and spaces.
    fn parse(pid: i32, line: &str) -> Option<Self> {
        let (before, after) = line.rsplit_once(')')?;
        let comm = before.split_once('(')?.1.to_owned();
        let fields: Vec<&str> = after.split_whitespace().collect();
        Some(Self {
            pid,
            zombie: matches!(*fields.first()?, "Z" | "X"),
            parent: fields.get(1)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
            comm,
        })
    }
}

fn all_processes() -> Vec<Stat> {
    let entries = fs::read_dir("/proc").expect("read /proc");
    entries.flatten().filter_map(|entry| Stat::read(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// Live descendants of the process `root`, `root` not included.
pub fn live_descendants(root: i32) -> Vec<Proc> {
    let processes = all_processes();
    let mut family = BTreeSet::from([root]);
    loop {
        let before = family.len();
        family.extend(
            processes
                .iter()
                .filter(|stat| family.contains(&stat.parent))
                .map(|stat| stat.pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    let descendants = processes.into_iter().filter(|stat| stat.pid != root && family.contains(&stat.pid));
    descendants
        .filter(|stat| !stat.zombie)
        .map(|stat| {
            let arguments = fs::read(format!("/proc/{}/cmdline", stat.pid)).unwrap_or_default();
            let cmdline = String::from_utf8_lossy(&arguments).replace('\0', " ").trim_end().to_owned();
            Proc { pid: stat.pid, parent: stat.parent, started: stat.started, comm: stat.comm, cmdline }
        })
        .collect()
}

/// The harness around one test. Dropping it ends the reaping; it kills nothing.
#[derive(Debug)]
pub struct Containment {
    /// Descendants that were there before, by identity.
    before: BTreeSet<(i32, u64)>,
    stop_reaping: Arc<AtomicBool>,
    reaper: Option<JoinHandle<()>>,
}

impl Containment {
    /// Makes the test process a child subreaper and notes the descendants it already has.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn enter() -> Self {
        set_child_subreaper(Some(getpid())).expect("become a child subreaper");
        let own_pid = getpid().as_raw_nonzero().get();
        let before = live_descendants(own_pid).into_iter().map(|proc| (proc.pid, proc.started)).collect();
        let stop_reaping = Arc::new(AtomicBool::new(false));
        let reaper = std::thread::spawn({
            let stop = Arc::clone(&stop_reaping);
            move || {
                while !stop.load(Ordering::SeqCst) {
                    reap_adopted_zombies();
                    std::thread::park_timeout(REAP_EVERY);
                }
            }
        });
        Self { before, stop_reaping, reaper: Some(reaper) }
    }

    /// Live descendants of the test process that were not there on entering.
    pub fn leftovers(&self) -> Vec<Proc> {
        let mut processes = live_descendants(getpid().as_raw_nonzero().get());
        processes.retain(|proc| !self.before.contains(&(proc.pid, proc.started)));
        processes
    }

    /// Waits until no such process is left.
    ///
    /// # Panics
    /// When some are alive at `deadline`; the message lists them.
    #[track_caller]
    pub fn assert_empty(&self, deadline: Duration) {
        if wait_for(deadline, || self.leftovers().is_empty().then_some(())).is_some() {
            return;
        }
        let left = self.leftovers();
        let lines: Vec<String> = left.iter().map(Proc::to_string).collect();
        assert!(left.is_empty(), "processes left after {deadline:?}:\n  {}", lines.join("\n  "));
    }
}

impl Drop for Containment {
    fn drop(&mut self) {
        self.stop_reaping.store(true, Ordering::SeqCst);
        if let Some(reaper) = self.reaper.take() {
            reaper.thread().unpark();
            // A panic over there has already been printed.
            drop(reaper.join());
        }
    }
}

fn reap_adopted_zombies() {
    let own_pid = getpid().as_raw_nonzero().get();
    // Read, not asked by `getsid`: where the session's leader is outside our pid namespace the number is 0, and
    // that is a session like any other here, but no `Pid`.
    let Some(Stat { session: own_session, .. }) = Stat::read(own_pid) else { return };
    for child in children_of(own_pid) {
        let Some(stat) = Stat::read(child) else { continue };
        let adopted = stat.session != own_session && !is_owned(child);
        if stat.zombie && adopted && stat.parent == own_pid {
            // Another thread may have been faster; both outcomes are fine.
            waitpid(Pid::from_raw(child), WaitOptions::NOHANG).ok();
        }
    }
}

/// Children of all threads of a process, zombies included. The kernel's list costs a fraction of walking
/// `/proc`; where it is not compiled in, the walk does.
fn children_of(pid: i32) -> Vec<i32> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let mut children = Vec::new();
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => children.extend(list.split_whitespace().filter_map(|word| word.parse::<i32>().ok())),
            Err(_) if !task.path().exists() => {}
            Err(_) => {
                return all_processes()
                    .into_iter()
                    .filter(|stat| stat.parent == pid)
                    .map(|stat| stat.pid)
                    .collect();
            }
        }
    }
    children
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    const GENEROUS: Duration = Duration::from_secs(30);

    #[test]
    fn names_with_parentheses_are_parsed() {
        let line = "42 (a) b (c)) S 7 42 40 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        let stat = Stat::parse(42, line).expect("a stat line");
        assert_eq!((stat.comm.as_str(), stat.parent, stat.session, stat.started), ("a) b (c)", 7, 40, 12345));
        assert!(!stat.zombie);
    }

    #[test]
    fn sees_a_detached_orphan_and_reaps_it() {
        let containment = Containment::enter();
        // The shell ends at once; its child lives on in a session of its own, until its input closes.
        let mut shell = Command::new("sh")
            .args(["-c", "exec 3<&0; setsid sh -c 'read line <&3' >/dev/null 2>&1 & echo started"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh");
        let hold = shell.stdin.take().expect("piped");
        let output = shell.wait_with_output().expect("the shell ends");
        assert_eq!(output.stdout, b"started\n");

        let orphan = wait_for(GENEROUS, || {
            containment.leftovers().into_iter().find(|proc| proc.cmdline.contains("read line"))
        })
        .expect("the orphan is seen");
        let own_pid = getpid().as_raw_nonzero().get();
        crate::wait_until(GENEROUS, "the orphan to be adopted", || {
            Stat::read(orphan.pid).is_some_and(|stat| stat.parent == own_pid)
        });

        drop(hold);
        containment.assert_empty(GENEROUS);
        crate::wait_until(GENEROUS, "the zombie to be reaped", || Stat::read(orphan.pid).is_none());
    }

    #[test]
    #[should_panic(expected = "processes left")]
    fn a_survivor_fails_the_test() {
        /// Ends the survivor also while the test panics.
        struct EndIt(std::process::Child);
        impl Drop for EndIt {
            fn drop(&mut self) {
                self.0.kill().expect("kill own child");
                self.0.wait().expect("reap own child");
            }
        }
        let containment = Containment::enter();
        let survivor = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let _end = EndIt(survivor);
        containment.assert_empty(Duration::ZERO);
    }
}
