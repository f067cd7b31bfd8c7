//! Keepers, agents, what agents left, and what this machine allows.

use super::finding::{self as kind, Finding};
use crate::failure::chain;
use mainstay_keeper::ps::{AgentState, KeeperState};
use mainstay_keeper::{KeepersDir, leftovers};
use rustix::process::{Resource, getrlimit};
use std::path::Path;

/// What a host writes into the manifests of its keepers.
const OWN_VERSION: &str = concat!("mainstay ", env!("CARGO_PKG_VERSION"));
/// A host has a descriptor per connection, a few per agent, and some for the store.
const FEW_FILES: u64 = 256;
/// What the remedy names: more than a host ever has open.
const ENOUGH_FILES: u64 = 4_096;

pub(super) fn keepers(home: &Path) -> Vec<Finding> {
    let folder = home.join("keepers");
    let shown = folder.display().to_string();
    let rows = match mainstay_keeper::ps(home) {
        Ok(rows) => rows,
        Err(error) => {
            return vec![Finding::new(kind::KEEPERS_UNREADABLE, chain(&error), &[("folder", &shown)])];
        }
    };
    let alive = rows.iter().filter(|row| row.keeper == KeeperState::Alive).count();
    let mut found =
        vec![Finding::new(kind::KEEPERS_OK, format!("{alive} alive, {} folders", rows.len()), &[])];
    for row in &rows {
        let why = row.why.as_deref().unwrap_or("unknown");
        if row.keeper == KeeperState::Indeterminate || row.agent == AgentState::Indeterminate {
            found.push(Finding::new(kind::KEEPER_UNCLEAR, format!("{}: {why}", row.token), &[]));
        }
        if row.keeper == KeeperState::Gone && row.agent == AgentState::Running {
            let pid = row.agent_identity.as_ref().map(|identity| identity.pid).filter(|pid| *pid > 0);
            found.push(match pid.map(|pid| pid.to_string()) {
                Some(pid) => {
                    let detail = format!("{}: the agent is process {pid}", row.token);
                    Finding::new(kind::KEEPER_GONE, detail, &[("pid", &pid)])
                }
                None => {
                    let detail = format!("{}: the agent's process is not known", row.token);
                    Finding::new(kind::KEEPER_GONE, detail, &[]).without_mend()
                }
            });
        }
        let version = KeepersDir::new(&folder)
            .folder(&row.token)
            .manifest()
            .ok()
            .flatten()
            .map(|manifest| manifest.versions)
            .filter(|version| row.keeper == KeeperState::Alive && version != OWN_VERSION);
        if let Some(version) = version {
            let detail = format!("{}: {version}, this is {OWN_VERSION}", row.token);
            found.push(Finding::new(kind::KEEPER_VERSION, detail, &[]));
        }
    }
    found.extend(strays(home, &rows));
    found
}

fn strays(home: &Path, rows: &[mainstay_keeper::PsRow]) -> Vec<Finding> {
    let left = match leftovers(home) {
        Ok(left) => left,
        Err(error) => return vec![Finding::new(kind::KEEPER_UNCLEAR, chain(&error), &[])],
    };
    let is_agent = |pid: i32| {
        rows.iter().any(|row| row.agent_identity.as_ref().is_some_and(|identity| identity.pid == pid))
    };
    let of = |leftover: mainstay_keeper::Leftover| {
        let kind = if leftover.reported { kind::STRAY_UNPROVEN } else { kind::STRAY };
        let detail = format!("process {} ({}) of keeper {}", leftover.pid, leftover.comm, leftover.token);
        Finding::new(kind, detail, &[("pid", &leftover.pid.to_string())])
    };
    // An agent without its keeper is a finding of its own.
    left.into_iter().filter(|leftover| !is_agent(leftover.pid)).map(of).collect()
}

/// What this process was allowed, and with it every host that is started from here.
pub(super) fn limits() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    match limit.current {
        Some(current) if current < FEW_FILES => Finding::new(
            kind::NOFILE_LOW,
            format!("{current} files may be open"),
            &[("wanted", &ENOUGH_FILES.to_string())],
        ),
        Some(current) => Finding::new(kind::NOFILE_OK, format!("{current} files may be open"), &[]),
        None => Finding::new(kind::NOFILE_OK, "any number of files may be open", &[]),
    }
}
