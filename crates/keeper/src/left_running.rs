//! What an agent left running below its keeper, and the end of what one of its conversations left there.

use crate::folder::{FolderError, KeeperFolder};
use crate::identity::ProcessIdentity;
use crate::manifest::StrayReport;
use crate::process_table::{Marks, ProcessTable, self_and_ancestors};
use crate::strays::end_all;
use std::io;
use thiserror::Error;

/// Why it could not be told.
#[derive(Debug, Error)]
pub enum LeftRunningError {
    #[error("the keeper's folder could not be read")]
    Folder(#[source] FolderError),
    #[error("the processes could not be listed")]
    Table(#[source] io::Error),
}

/// Processes that outlived what started them: their parent is gone, so they belong to the keeper now, which is the
/// subreaper, and with them what they started. What the agent itself has below it is not among them: its helpers and
/// tool servers live and end with it, and what it runs for a turn it reports itself.
///
/// Pids come and go meanwhile; nothing may be signalled on the strength of this list.
pub fn left_running(folder: &KeeperFolder) -> Result<Vec<i32>, LeftRunningError> {
    let Some(manifest) = folder.manifest().map_err(LeftRunningError::Folder)? else { return Ok(Vec::new()) };
    let agent = folder.agent_identity().map_err(LeftRunningError::Folder)?;
    let only_agent =
        |children: Vec<i32>| children.iter().all(|pid| agent.as_ref().is_some_and(|agent| agent.pid == *pid));
    if children_of(manifest.keeper.pid).is_some_and(only_agent) {
        // Nearly always: no need to look at every process of the machine.
        return Ok(Vec::new());
    }
    let table = ProcessTable::read().map_err(LeftRunningError::Table)?;
    Ok(below(&table, &manifest.keeper, agent.as_ref()))
}

/// Ends what was left running below a living keeper ([`left_running`]) and carries one of these variables (name and value)
/// in its environment, with all that is below it. What the agent itself has below it is not touched, nor what carries
/// none of them: it is another conversation's.
///
/// # Errors
/// [`LeftRunningError`]; something may have been ended.
pub fn end_left_running(
    folder: &KeeperFolder,
    provider_vars: &[(String, String)],
) -> Result<Vec<StrayReport>, LeftRunningError> {
    if left_running(folder)?.is_empty() {
        return Ok(Vec::new());
    }
    let Some(manifest) = folder.manifest().map_err(LeftRunningError::Folder)? else { return Ok(Vec::new()) };
    let agent = folder.agent_identity().map_err(LeftRunningError::Folder)?;
    let marks = Marks::new(&folder.token, provider_vars);
    let find = |table: &ProcessTable| {
        let left = below(table, &manifest.keeper, agent.as_ref());
        let mut pids: Vec<i32> = left.into_iter().filter(|pid| marks.are_of_provider_on(*pid)).collect();
        for pid in pids.clone() {
            pids.extend(table.descendants(pid));
        }
        pids
    };
    end_all(&self_and_ancestors(), find, || ()).map_err(LeftRunningError::Table)
}

/// The children of all threads of a process, where the kernel lists them; none where it is gone.
fn children_of(pid: i32) -> Option<Vec<i32>> {
    let mut children = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let listed = std::fs::read_to_string(thread.ok()?.path().join("children")).ok()?;
        children.extend(listed.split_ascii_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    Some(children)
}

fn below(table: &ProcessTable, keeper: &ProcessIdentity, agent: Option<&ProcessIdentity>) -> Vec<i32> {
    let is_keeper = table.get(keeper.pid).is_some_and(|stat| stat.start_time == keeper.start_time);
    let Some(agent) = agent.filter(|_| is_keeper) else { return Vec::new() };
    let with_agent = table.descendants(agent.pid);
    let left = |pid: &i32| {
        *pid != agent.pid && !with_agent.contains(pid) && table.get(*pid).is_some_and(|stat| !stat.is_dead)
    };
    table.descendants(keeper.pid).into_iter().filter(left).collect()
}
