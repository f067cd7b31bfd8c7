//! Memory and processor time of a host with all its helpers; the scripted agents are not the host.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mainstay_testkit::contain::Proc;

use crate::lab::Lab;

/// The first argument that makes this program a stream-json agent.
pub(crate) const STREAM_JSON_AGENT: &str = "stream-json-agent";

/// Ticks of `/proc/<pid>/stat` in a second: `USER_HZ`, which Linux keeps at 100 on every machine it runs on.
const TICKS: f64 = 100.0;

fn is_agent(process: &Proc) -> bool {
    process.comm == "scripted-acp" || process.cmdline.contains(STREAM_JSON_AGENT)
}

pub(crate) fn of_host(lab: &Lab) -> Vec<Proc> {
    let mut processes = lab.processes();
    processes.retain(|process| !is_agent(process));
    processes
}

pub(crate) fn agents(lab: &Lab) -> Vec<Proc> {
    let mut processes = lab.processes();
    processes.retain(is_agent);
    processes
}

/// MB resident: what is shared between two processes counts twice.
pub(crate) fn resident(lab: &Lab) -> f64 {
    of_host(lab).iter().map(|process| field(process.pid, "status", "VmRSS:")).sum::<f64>() / 1024.0
}

/// MB of the proportional set: what is shared counts once.
pub(crate) fn proportional(lab: &Lab) -> f64 {
    of_host(lab).iter().map(|process| field(process.pid, "smaps_rollup", "Pss:")).sum::<f64>() / 1024.0
}

/// Seconds of processor time used so far by the processes that are there.
pub(crate) fn processor(lab: &Lab) -> f64 {
    of_host(lab).iter().map(|process| ticks(process.pid)).sum::<f64>() / TICKS
}

/// The same for the processes of each name: where it is spent.
pub(crate) fn processor_by_name(lab: &Lab) -> BTreeMap<String, f64> {
    let mut spent = BTreeMap::new();
    for process in of_host(lab) {
        *spent.entry(process.comm).or_default() += ticks(process.pid) / TICKS;
    }
    spent
}

fn ticks(pid: i32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    // User and system time are fields 14 and 15 of the line, 11 and 12 behind the name.
    after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum()
}

/// KiB.
fn field(pid: i32, file: &str, name: &str) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.split_ascii_whitespace().nth(1)).and_then(|kib| kib.parse().ok()).unwrap_or(0.0)
}

/// Bytes that a folder takes on the disk, blocks and not lengths.
pub(crate) fn disk_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(metadata) = fs::symlink_metadata(folder) else { return 0 };
    let own = metadata.blocks() * 512;
    if !metadata.is_dir() {
        return own;
    }
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    own + entries.map(|entry| disk_bytes(&entry.path())).sum::<u64>()
}
