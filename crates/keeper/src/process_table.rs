//! What `/proc` says about processes: parents, descendants, marks in the environment.

use std::collections::{HashMap, HashSet};
use std::io;

use crate::identity::{ProcessStat, read_stat};
use crate::spec::TOKEN_VARIABLE;

/// Deeper ancestries are cut off; it only guards against a loop made by pids that change while being read.
const ANCESTRY_LIMIT: usize = 4096;

/// Every process that could be read, by pid. Processes come and go meanwhile, so whatever follows from a
/// table is checked again before it is acted on.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    processes: HashMap<i32, ProcessStat>,
}

impl ProcessTable {
    pub(crate) fn read() -> io::Result<Self> {
        let mut processes = HashMap::new();
        for entry in std::fs::read_dir("/proc")? {
            let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if let Ok(stat) = read_stat(pid) {
                processes.insert(pid, stat);
            }
        }
        Ok(Self { processes })
    }

    pub(crate) fn get(&self, pid: i32) -> Option<&ProcessStat> {
        self.processes.get(&pid)
    }

    pub(crate) fn pids(&self) -> impl Iterator<Item = i32> {
        self.processes.keys().copied()
    }

    /// Whether nobody that lives has started `pid`, as far as it is not one of `together` itself: what is above them is the
    /// machine's first process, or a gatherer of orphans, which stands just below that and above `us`.
    pub(crate) fn is_orphan(&self, pid: i32, together: &HashSet<i32>, us: &[i32]) -> bool {
        let mut at = pid;
        for _ in 0..ANCESTRY_LIMIT {
            let Some(stat) = self.get(at) else { return false };
            let parent = stat.parent;
            if parent <= 1 {
                return true;
            }
            if !together.contains(&parent) {
                let gathers = |parent_stat: &ProcessStat| parent_stat.parent <= 1 && us.contains(&parent);
                // One that is not there any more has left its children to somebody else.
                return self.get(parent).is_none_or(|stat| stat.is_dead || gathers(stat));
            }
            at = parent;
        }
        false
    }

    /// All processes below `root`, without it.
    pub(crate) fn descendants(&self, root: i32) -> Vec<i32> {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for (&pid, stat) in &self.processes {
            children.entry(stat.parent).or_default().push(pid);
        }
        let mut found = Vec::new();
        let mut seen = HashSet::from([root]);
        let mut open = vec![root];
        while let Some(parent) = open.pop() {
            for &child in children.get(&parent).into_iter().flatten() {
                if seen.insert(child) {
                    found.push(child);
                    open.push(child);
                }
            }
        }
        found
    }
}

/// Whether `pid` is `ancestor` or descends from it. `None` when the chain could not be followed.
pub(crate) fn descends_from(pid: i32, ancestor: i32) -> Option<bool> {
    let mut at = pid;
    for _ in 0..ANCESTRY_LIMIT {
        if at == ancestor {
            return Some(true);
        }
        if at <= 1 {
            return Some(false);
        }
        at = read_stat(at).ok()?.parent;
    }
    None
}

/// This process and everything above it; a sweep must never touch these.
pub(crate) fn self_and_ancestors() -> Vec<i32> {
    let mut chain = Vec::new();
    let mut at = rustix::process::getpid().as_raw_nonzero().get();
    while at > 0 && chain.len() < ANCESTRY_LIMIT {
        chain.push(at);
        let Ok(stat) = read_stat(at) else { break };
        at = stat.parent;
    }
    chain
}

/// Whose a process is, by its environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It has the keeper's token.
    Token,
    /// It has a provider's variable, and no keeper's token. Other programs of this user may have started it.
    Provider,
    /// Neither, or it belongs to another keeper.
    None,
}

/// Environment variables that mark the processes of one agent.
#[derive(Clone, Debug)]
pub(crate) struct Marks {
    /// `NAME=value`, as it stands in `/proc/PID/environ`.
    token: Vec<u8>,
    provider: Vec<Vec<u8>>,
}

impl Marks {
    pub(crate) fn new(token: &str, provider_vars: &[(String, String)]) -> Self {
        // A variable without a value would mark strangers.
        let provider = provider_vars
            .iter()
            .filter(|(name, value)| !name.is_empty() && !value.is_empty())
            .map(|(name, value)| format!("{name}={value}").into_bytes())
            .collect();
        Self { token: format!("{TOKEN_VARIABLE}={token}").into_bytes(), provider }
    }

    /// What the environment that `pid` was started with says. Processes of other users cannot be read and cannot be ours.
    pub(crate) fn on(&self, pid: i32) -> Mark {
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else {
            return Mark::None;
        };
        let mut mark = Mark::None;
        for entry in environment.split(|&byte| byte == 0) {
            if entry.starts_with(TOKEN_VARIABLE.as_bytes()) && entry.get(TOKEN_VARIABLE.len()) == Some(&b'=')
            {
                return if entry == self.token { Mark::Token } else { Mark::None };
            }
            if self.provider.iter().any(|mark| mark == entry) {
                mark = Mark::Provider;
            }
        }
        mark
    }

    /// Whether it carries a provider's variable, whatever else.
    pub(crate) fn are_of_provider_on(&self, pid: i32) -> bool {
        let Ok(environment) = std::fs::read(format!("/proc/{pid}/environ")) else { return false };
        environment.split(|&byte| byte == 0).any(|entry| self.provider.iter().any(|mark| mark == entry))
    }

    /// Whether it carries a mark of either kind.
    pub(crate) fn are_on(&self, pid: i32) -> bool {
        self.on(pid) != Mark::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// `spawn` returns while the exec is still putting the new environment in place.
    fn wait_for_environment(pid: i32) {
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| environment.is_empty()) {
            assert!(std::time::Instant::now() < deadline, "the child has no environment");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_providers_variable_marks_a_process_without_any_token() {
        let mut child = Command::new("/bin/cat")
            .env_clear()
            .env("PROVIDER_HOME", "/somewhere/else")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("spawn");
        let pid = i32::try_from(child.id()).expect("pid");
        wait_for_environment(pid);
        let marked =
            |value: &str| Marks::new("t", &[("PROVIDER_HOME".to_owned(), value.to_owned())]).are_on(pid);
        assert!(marked("/somewhere/else"));
        assert!(!marked("/somewhere"));
        assert!(!marked(""));
        child.kill().expect("kill");
        child.wait().expect("wait");
    }

    #[test]
    fn a_child_is_found_by_descent_and_by_its_marks() {
        let mut child = Command::new("/bin/cat")
            .env_clear()
            .env("PROVIDER_HOME", "/somewhere/unique")
            .env(TOKEN_VARIABLE, "table-test")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("spawn");
        let pid = i32::try_from(child.id()).expect("pid");
        let own = rustix::process::getpid().as_raw_nonzero().get();
        wait_for_environment(pid);
        assert!(Marks::new("table-test", &[]).are_on(pid));
        assert!(!Marks::new("table", &[]).are_on(pid), "a prefix is no match");
        let provider = [("PROVIDER_HOME".to_owned(), "/somewhere/unique".to_owned())];
        assert!(!Marks::new("other", &provider).are_on(pid), "it belongs to another keeper");
        let table = ProcessTable::read().expect("table");
        assert!(table.descendants(own).contains(&pid));
        assert!(!table.descendants(pid).contains(&own));
        assert_eq!(descends_from(pid, own), Some(true));
        assert_eq!(descends_from(own, pid), Some(false));
        assert!(self_and_ancestors().contains(&own));
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}
