//! How things stand, for metrics: what takes a look at the store and at files.

use crate::host::DATABASE;
use mainstay_keeper::{KeepersDir, SpoolReader};
use mainstay_store::{ReadError, Store};
use std::collections::BTreeMap;
use std::path::Path;

/// What [`look`] found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gauges {
    /// Sessions by status; `at_rest` are those that a starting host need not look at.
    pub sessions: BTreeMap<String, u64>,
    /// Sessions with a request that somebody has to answer.
    pub needing_answer: u64,
    /// Agent processes without an end, by agent.
    pub processes: BTreeMap<String, u64>,
    /// Bytes that their keepers recorded and that are not committed, by agent.
    pub behind: BTreeMap<String, u64>,
    /// Size of the database, bytes.
    pub database: u64,
    /// Size of its write-ahead log, bytes.
    pub wal: u64,
    /// Room on the disk, bytes.
    pub free: u64,
    /// Memory of this process, bytes.
    pub resident: u64,
    /// Open descriptors of this process.
    pub open_files: u64,
}

/// Looks. Blocking; costs what is not at rest, however much is stored.
///
/// # Errors
/// [`ReadError`]. Files that cannot be looked at count nothing.
pub fn look(store: &dyn Store, home: &Path) -> Result<Gauges, ReadError> {
    let unrested = store.unrested_sessions()?.rows;
    let mut sessions: BTreeMap<String, u64> = BTreeMap::new();
    for row in &unrested {
        *sessions.entry(row.status.clone()).or_default() += 1;
    }
    let at_rest = store.session_count()?.saturating_sub(unrested.len() as u64);
    sessions.insert("at_rest".to_owned(), at_rest);
    let keepers = KeepersDir::new(home.join("keepers"));
    let (mut processes, mut behind) = (BTreeMap::new(), BTreeMap::new());
    for process in store.processes(true)?.rows {
        *processes.entry(process.agent.clone()).or_default() += 1;
        let spool = SpoolReader::open(keepers.folder(&process.token).spool_path());
        // A keeper that is being born has none yet.
        let end = spool.end().unwrap_or(process.position);
        *behind.entry(process.agent).or_default() += end.saturating_sub(process.position);
    }
    let size = |name: String| home.join(name).metadata().map_or(0, |meta| meta.len());
    Ok(Gauges {
        sessions,
        needing_answer: unrested.iter().filter(|row| row.needs).count() as u64,
        processes,
        behind,
        database: size(DATABASE.to_owned()),
        wal: size(format!("{DATABASE}-wal")),
        free: rustix::fs::statvfs(home).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
        resident: resident_bytes().unwrap_or(0),
        open_files: std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64),
    })
}

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
