//! What a host does after a keeper ended without proof: find everything of that agent and end it.

use std::collections::HashSet;
use std::io;

use thiserror::Error;

use crate::cgroup::Cgroup;
use crate::folder::{FolderError, KeeperFolder, LockSight};
use crate::identity::IdentityCheck;
use crate::manifest::{StrayOutcome, StrayReport};
use crate::process_table::{Mark, Marks, ProcessTable, self_and_ancestors};
use crate::strays::end_all;

/// What a sweep did. Nothing in `unproven` means: no process of this agent is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SweepReport {
    pub killed: Vec<StrayReport>,
    /// Found, and gone before they were signalled.
    pub gone: Vec<StrayReport>,
    pub unproven: Vec<StrayReport>,
}

#[derive(Debug, Error)]
pub enum SweepError {
    #[error("the agent's recorded identity could not be read")]
    Identity(#[source] FolderError),
    #[error("the processes of this machine could not be listed")]
    Processes(#[source] io::Error),
    #[error("the keeper's lock is held: a living keeper ends its agent itself")]
    KeeperLives,
}

/// Ends every process of a dead keeper's agent: the recorded one with all below it, and every process that carries
/// the keeper's token in its environment, or one of `provider_vars` (name and value) and no other keeper's token, where no
/// living process beside these has started it and it began after the agent did. This process and its ancestors are never
/// touched.
///
/// Variables that other programs of this user may carry too, such as a shared account folder, must not be given.
pub fn sweep(folder: &KeeperFolder, provider_vars: &[(String, String)]) -> Result<SweepReport, SweepError> {
    if matches!(folder.look_at_lock(), LockSight::Held) {
        return Err(SweepError::KeeperLives);
    }
    let agent = folder.agent_identity().map_err(SweepError::Identity)?;
    // Without a readable manifest the group is not known; descent and marks find the processes as well.
    let cgroup =
        folder.manifest().ok().flatten().and_then(|it| it.cgroup).and_then(|it| Cgroup::existing(&it));
    let marks = Marks::new(&folder.token, provider_vars);
    let us = self_and_ancestors();
    // The agent's conversation may have been somebody else's before: what was left running then is not the agent's. Where
    // no agent ever ran, or on another boot of the machine, it left nothing.
    let begun = agent.as_ref().filter(|agent| agent.check() != IdentityCheck::OtherBoot);
    let begun = begun.map(|agent| agent.start_time);
    let is_later = |table: &ProcessTable, pid: i32| {
        begun.is_some_and(|begun| table.get(pid).is_some_and(|stat| stat.start_time >= begun))
    };
    let find = |table: &ProcessTable| {
        let (mut pids, mut marked) = (Vec::new(), Vec::new());
        for pid in table.pids() {
            match marks.on(pid) {
                Mark::Token => pids.push(pid),
                Mark::Provider if is_later(table, pid) => marked.push(pid),
                Mark::Provider | Mark::None => {}
            }
        }
        if let Some(agent) = &agent
            && agent.check() == IdentityCheck::Matched
        {
            pids.push(agent.pid);
            pids.extend(table.descendants(agent.pid));
        }
        pids.extend(cgroup.iter().flat_map(Cgroup::members));
        // The same conversation may be open in a program of the user's own: what that started has it above it.
        let together: HashSet<i32> = pids.iter().chain(&marked).copied().collect();
        pids.extend(marked.into_iter().filter(|&pid| table.is_orphan(pid, &together, &us)));
        pids
    };
    let reports = end_all(&us, find, || ()).map_err(SweepError::Processes)?;
    if let Some(cgroup) = &cgroup {
        cgroup.kill();
        cgroup.remove();
    }
    let mut sweep = SweepReport::default();
    for report in reports {
        match report.outcome {
            StrayOutcome::Killed => sweep.killed.push(report),
            StrayOutcome::Gone => sweep.gone.push(report),
            StrayOutcome::Unproven | StrayOutcome::Unknown => sweep.unproven.push(report),
        }
    }
    Ok(sweep)
}
