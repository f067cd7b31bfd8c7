//! Every metric: one table, from which the exposition and its reference are made.

/// How a value behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows while the host lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How often something took how long.
    Histogram,
}

impl Kind {
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// What it is counted in.
    pub(crate) unit: &'static str,
    /// Labels that tell its values apart; each has few values.
    pub(crate) labels: &'static [&'static str],
    pub(crate) help: &'static str,
}

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] in $unit:literal: $help:literal;)*) => {
        $(pub(crate) const $id: &Metric = &Metric {
            name: $name, kind: Kind::$kind, unit: $unit, labels: &[$($label),*], help: $help,
        };)*
        /// Every metric, in the order of the exposition.
        #[cfg(test)]
        pub(crate) const METRICS: &[&Metric] = &[$($id),*];
    };
}

metrics! {
    INFO = Gauge "mainstay_info" ["version"] in "1": "Always 1; the version is the label.";
    UPTIME = Gauge "mainstay_uptime_seconds" [] in "seconds": "How long the host has served.";
    SESSIONS = Gauge "mainstay_sessions" ["status"] in "sessions":
        "Sessions by status, deleted ones left out where they have a status; at_rest stands for idle and closed ones without a process, archived and deleted ones.";
    NEEDS_ANSWER = Gauge "mainstay_sessions_needing_answer" [] in "sessions": "Sessions with an open request that somebody has to answer.";
    LANES = Gauge "mainstay_lanes" [] in "sessions": "Sessions that have a task now.";
    PROCESSES = Gauge "mainstay_agent_processes" ["agent"] in "processes": "Agent processes on record without an end, by agent.";
    SPOOL_BEHIND = Gauge "mainstay_spool_behind_bytes" ["agent"] in "bytes": "Output that keepers have recorded and the host has not committed, by agent.";
    SUBSCRIBERS = Gauge "mainstay_subscribers" [] in "readers": "Readers that follow a session now.";
    FEED_POSITION = Gauge "mainstay_feed_position" [] in "entries": "The host feed's newest position.";
    COMMANDS = Counter "mainstay_commands_total" ["outcome"] in "commands":
        "Commands by what became of them: done, replayed (carried out before under the same key or id), unrecorded (a stop that the store refused to record), refused, failed.";
    EVENTS = Counter "mainstay_events_total" ["type"] in "rows": "Rows of journals committed, by type of event; neighbouring deltas are one row.";
    BATCHES = Counter "mainstay_batches_total" ["outcome"] in "batches": "Batches of lanes: committed, refused (a fence or a conflict), failed (disk, damage).";
    RECORDS = Counter "mainstay_records_read_total" [] in "records": "Records of agents' output that were read; after a failed commit the same ones are read again.";
    OUTPUT_BYTES = Counter "mainstay_output_bytes_total" [] in "bytes": "Bytes of agents' output committed.";
    INPUTS = Counter "mainstay_inputs_total" [] in "frames": "Frames for agents committed.";
    QUARANTINED = Counter "mainstay_quarantined_records_total" [] in "records": "Records set aside because the store refused what they made.";
    STARTS = Counter "mainstay_process_starts_total" ["outcome"] in "starts":
        "Starts of agent processes: done, failed (no process came to be), unclear (looked into), called_off.";
    RECOVERIES = Counter "mainstay_recoveries_total" [] in "sessions": "Sessions looked after because of what a former host left.";
    RING_READS = Counter "mainstay_ring_reads_total" [] in "pulls": "Pulls of readers that memory served.";
    STORED_READS = Counter "mainstay_stored_reads_total" [] in "pulls": "Pulls of readers that were behind and that the store served.";
    COMMIT = Histogram "mainstay_commit_seconds" [] in "seconds": "From a lane's submission of a batch to its commit.";
    AGENT_TO_COMMIT = Histogram "mainstay_agent_to_commit_seconds" [] in "seconds":
        "From when a keeper recorded the oldest output in a batch to the batch's commit, by the wall clock in milliseconds; long after a time without a host.";
    HTTP_REQUESTS = Counter "mainstay_http_requests_total" ["method", "route", "status"] in "requests":
        "Answered requests by route of the API document (other where there is none) and status.";
    HTTP_SECONDS = Histogram "mainstay_http_request_seconds" [] in "seconds": "From a request's head to the head of its answer.";
    STORE_TRANSACTIONS = Counter "mainstay_store_transactions_total" [] in "transactions": "Transactions committed.";
    STORE_WRITES = Counter "mainstay_store_writes_total" ["outcome"] in "writes":
        "Lane writes: committed, fenced (a stale fence), refused (another conflict), failed, overloaded (the queue was full).";
    STORE_GROUPS_UNDONE = Counter "mainstay_store_groups_undone_total" [] in "groups": "Groups of writes that were undone and tried again one by one.";
    STORE_RESERVES_SPENT = Counter "mainstay_store_reserves_spent_total" [] in "times": "Times the reserve for a full disk was given up.";
    STORE_MARK_FAILURES = Counter "mainstay_store_mark_failures_total" [] in "times": "Times the high-water mark could not be written.";
    STORE_QUEUED_WRITES = Gauge "mainstay_store_queued_writes" [] in "writes": "Lane writes waiting.";
    STORE_QUEUED_BYTES = Gauge "mainstay_store_queued_bytes" [] in "bytes": "Bytes of lane writes waiting.";
    STORE_DEGRADED = Gauge "mainstay_store_degraded" [] in "1": "1 where the store does not take writes, or has no reserve for a full disk.";
    DATABASE_BYTES = Gauge "mainstay_database_bytes" ["file"] in "bytes": "Size of the database and of its write-ahead log.";
    DISK_FREE = Gauge "mainstay_disk_free_bytes" [] in "bytes": "Room on the disk of the state folder.";
    RESIDENT = Gauge "process_resident_memory_bytes" [] in "bytes": "Memory of the host's process.";
    OPEN_FILES = Gauge "process_open_fds" [] in "descriptors": "Open descriptors of the host's process.";
}

/// The reference, as Markdown.
#[cfg(test)]
pub(crate) fn reference() -> String {
    use std::fmt::Write as _;
    let mut text = String::from(
        "# Metrics\n\n\
         Generated from the program; do not edit. `GET /metrics` gives them in the Prometheus text format (with the token over TCP, as \
         every route but `/health`). Counters begin at 0 with each host. Reading them costs one look at the sessions that are not \
         at rest; it starts nothing.\n\nA scrape configuration:\n\n\
         ```yaml\nscrape_configs:\n  - job_name: mainstay\n    authorization: { credentials_file: <state folder>/token }\n    \
         static_configs: [{ targets: [\"127.0.0.1:4747\"] }]\n```\n\n\
         | name | kind | unit | labels | what |\n|---|---|---|---|---|\n",
    );
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        // Writing to a string does not fail.
        let _written = writeln!(
            text,
            "| `{}` | {} | {} | {} | {} |",
            metric.name,
            metric.kind.word(),
            metric.unit,
            labels.join(", "),
            metric.help
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn golden_metrics_reference() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
        let text = reference();
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|set| set == "1") {
            std::fs::write(&path, &text).expect("write the reference");
        }
        let recorded = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(recorded == text, "{} differs; run `cargo xtask golden`", path.display());
    }

    #[test]
    fn names_follow_the_rules_of_the_format() {
        for (place, metric) in METRICS.iter().enumerate() {
            let name = metric.name;
            assert!(METRICS[..place].iter().all(|other| other.name != name), "{name} twice");
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert_eq!(metric.kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(metric.kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
            assert!(!metric.help.contains(['\n', '\\']), "{name}");
        }
    }
}
