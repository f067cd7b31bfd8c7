//! What an agent left running below its keeper.

use crate::folder::{FolderError, KeeperFolder};
use crate::identity::ProcessIdentity;
use crate::process_table::ProcessTable;
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
    let table = ProcessTable::read().map_err(LeftRunningError::Table)?;
    Ok(below(&table, &manifest.keeper, agent.as_ref()))
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
