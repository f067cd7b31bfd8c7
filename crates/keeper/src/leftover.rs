//! What is left of agents whose keepers are gone, looked for and not touched: [`mod@crate::sweep`] ends it.

use std::io;
use std::path::Path;

use serde::Serialize;
use thiserror::Error;

use crate::folder::{FolderError, KeepersDir, LockSight};
use crate::identity::{IdentityError, means_no_process, read_stat};
use crate::manifest::StrayOutcome;
use crate::process_table::{Marks, ProcessTable, self_and_ancestors};

/// A process that carries the mark of a keeper of this home which does not live.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leftover {
    pub pid: i32,
    pub comm: String,
    /// The keeper's token.
    pub token: String,
    /// The exit record names it as one that could not be ended; else it was found by its environment.
    pub reported: bool,
}

#[derive(Debug, Error)]
pub enum LeftoverError {
    #[error("the keepers' folders could not be listed")]
    Folders(#[source] FolderError),
    #[error("the processes of this machine could not be listed")]
    Processes(#[source] io::Error),
}

/// Processes of agents of this home that outlived both their keeper and its successors, in the order of tokens and pids.
/// Nothing is signalled. What belongs to keepers whose folders are gone cannot be told from another home's.
pub fn leftovers(home: &Path) -> Result<Vec<Leftover>, LeftoverError> {
    let folders = KeepersDir::new(home.join("keepers")).list().map_err(LeftoverError::Folders)?;
    let dead: Vec<_> =
        folders.into_iter().filter(|folder| matches!(folder.look_at_lock(), LockSight::Free)).collect();
    if dead.is_empty() {
        return Ok(Vec::new());
    }
    let table = ProcessTable::read().map_err(LeftoverError::Processes)?;
    let own = self_and_ancestors();
    let mut found = Vec::new();
    for folder in dead {
        let marks = Marks::new(&folder.token, &[]);
        let marked = table.pids().filter(|pid| !own.contains(pid) && marks.are_on(*pid));
        let mut seen: Vec<Leftover> = marked
            .filter_map(|pid| {
                let stat = table.get(pid).filter(|stat| !stat.is_dead)?;
                let (comm, token) = (stat.comm.clone(), folder.token.clone());
                Some(Leftover { pid, comm, token, reported: false })
            })
            .collect();
        let reported = folder.exit_record().ok().flatten().map(|exit| exit.strays).unwrap_or_default();
        for stray in reported.iter().filter(|stray| stray.outcome == StrayOutcome::Unproven) {
            match read_stat(stray.pid) {
                Ok(stat) if stat.start_time == stray.start_time && !stat.is_dead => {
                    seen.retain(|known| known.pid != stray.pid);
                    let (comm, token) = (stat.comm, folder.token.clone());
                    seen.push(Leftover { pid: stray.pid, comm, token, reported: true });
                }
                Err(IdentityError::Stat { source, .. }) if !means_no_process(&source) => {
                    let (comm, token) = (stray.comm.clone(), folder.token.clone());
                    seen.push(Leftover { pid: stray.pid, comm, token, reported: true });
                }
                _ => {}
            }
        }
        seen.sort_by_key(|leftover| leftover.pid);
        found.extend(seen);
    }
    Ok(found)
}
