//! What the figures were taken on, without anything that names the machine.

use std::fs;

use serde::{Deserialize, Serialize};

/// Above this many runnable processes at the start, the figures say more about the others than about the hosts.
const QUIET_LOAD: f64 = 1.0;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) date: String,
    pub(crate) processor: String,
    pub(crate) cores: usize,
    pub(crate) memory_gb: u64,
    pub(crate) kernel: String,
    pub(crate) file_system: String,
    /// The mean number of runnable processes in the minute before the run.
    pub(crate) load_before: f64,
    /// In a network namespace with loopback alone.
    pub(crate) isolated: bool,
    pub(crate) quick: bool,
}

impl Machine {
    pub(crate) fn quiet(&self) -> bool {
        self.load_before <= QUIET_LOAD
    }
}

pub(crate) fn describe(isolated: bool, quick: bool) -> Machine {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let value = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or_else(String::new, |(_, value)| value.trim().to_owned())
    };
    let memory = value(&read("/proc/meminfo"), "MemTotal");
    let kib: u64 = memory.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
    Machine {
        date: today(),
        processor: value(&read("/proc/cpuinfo"), "model name"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        memory_gb: kib / (1 << 20),
        kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
        file_system: file_system(&read("/proc/self/mounts")),
        load_before: read("/proc/loadavg")
            .split(' ')
            .next()
            .and_then(|load| load.parse().ok())
            .unwrap_or(f64::NAN),
        isolated,
        quick,
    }
}

/// The kind of file system that temporary folders are on: the mount whose folder is the longest above theirs.
fn file_system(mounts: &str) -> String {
    let folder = std::env::temp_dir();
    let above = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (place, kind) = (fields.next()?, fields.next()?);
        folder.starts_with(place).then_some((place.len(), kind))
    });
    above.max_by_key(|(length, _)| *length).map_or_else(String::new, |(_, kind)| kind.to_owned())
}

/// The date by the calendar, from the days since 1970.
fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    date(i64::try_from(now.as_secs() / 86_400).unwrap_or(0))
}

/// After Howard Hinnant's public description of the civil calendar: years begin in March, eras have 400 of them.
fn date(days: i64) -> String {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(20_787), "2026-11-30");
    }

    #[test]
    fn the_longest_mount_above_wins() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /somewhere tmpfs rw 0 0\n";
        assert_eq!(file_system(mounts), "ext4");
    }
}
