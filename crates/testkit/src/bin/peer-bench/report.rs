//! The page for readers: ratios first, then every figure, then what could not be measured.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::figures::{Better, Figure, ROWS, Row, row_named};
use crate::hosts::{Durable, Facts};
use crate::machine::Machine;

/// The host that all others are compared with.
const OURS: &str = "mainstay";

/// What the time goes on, found with a profiler; not measured by the run.
const NOTES: &str = include_str!("notes.md");

/// A host that was not measured.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct LeftOut {
    #[serde(alias = "peer")]
    pub(crate) name: String,
    pub(crate) why: String,
}

/// Everything that a run gave.
#[derive(Debug)]
pub(crate) struct Result {
    pub(crate) machine: Machine,
    pub(crate) hosts: Vec<Facts>,
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) figures: Vec<Figure>,
}

/// One line of the report for machines.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Machine(Machine),
    Host(Facts),
    LeftOut(LeftOut),
    Figure(Figure),
}

impl Result {
    /// One JSON object a line: the machine, the hosts, then the cells.
    pub(crate) fn json_lines(&self) -> Vec<String> {
        let machine = std::iter::once(Line::Machine(self.machine.clone()));
        let hosts = self.hosts.iter().cloned().map(Line::Host);
        let left_out = self
            .left_out
            .iter()
            .map(|left| Line::LeftOut(LeftOut { name: left.name.clone(), why: left.why.clone() }));
        let figures = self.figures.iter().cloned().map(Line::Figure);
        machine
            .chain(hosts)
            .chain(left_out)
            .chain(figures)
            .filter_map(|line| serde_json::to_string(&line).ok())
            .collect()
    }

    fn figure(&self, row: &str, host: &str) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.row == row && figure.host == host)
    }

    fn median(&self, row: &str, host: &str) -> Option<f64> {
        self.figure(row, host)?.median()
    }
}

/// The whole page.
pub(crate) fn page(result: &Result) -> String {
    let mut page = String::new();
    head(&mut page, result);
    ratios(&mut page, result);
    targets(&mut page, result);
    figures(&mut page, result);
    missing(&mut page, result);
    page.push_str("\n## Where the time goes\n\n");
    page.push_str(NOTES);
    page
}

fn line(page: &mut String, text: &str) {
    page.push_str(text);
    page.push('\n');
}

fn head(page: &mut String, result: &Result) {
    let machine = &result.machine;
    line(page, "# Benchmarks\n");
    line(
        page,
        "Written by `cargo xtask bench --peers`; not by hand. The same scripted agent (or, behind hosts that are",
    );
    line(
        page,
        "agents themselves, a scripted model on loopback) under each host, in one run, hosts taking turns.\n",
    );
    if machine.quick {
        line(page, "**Quick mode**: small counts and few runs; for a look, not for the record.\n");
    }
    if !machine.quiet() {
        line(
            page,
            &format!(
                "**Taken on a busy machine** (load {:.1} before the run): ratios say something, absolute figures little.\n",
                machine.load_before
            ),
        );
    }
    line(page, "| | |\n|---|---|");
    line(page, &format!("| date | {} |", machine.date));
    line(page, &format!("| processor | {}, {} cores |", machine.processor, machine.cores));
    line(page, &format!("| memory | {} GB |", machine.memory_gb));
    line(page, &format!("| system | Linux {}, {} |", machine.kernel, machine.file_system));
    line(page, &format!("| load before | {:.1} |", machine.load_before));
    let network = if machine.isolated { "a namespace of its own, loopback alone" } else { "the machine's" };
    line(page, &format!("| network | {network} |\n"));
    line(page, "| host | version | what stands behind it | durable |\n|---|---|---|---|");
    for host in &result.hosts {
        let Facts { name, version, agent, durable, .. } = host;
        line(page, &format!("| {name} | {version} | {agent} | {} |", durable.word()));
    }
    line(
        page,
        "\n*Durable* is what is safe when a client sees it: *synced* to the disk, *written* to a file that is not known to",
    );
    line(
        page,
        "be synced, or *no*: in memory alone. A durable figure and one that is not are not the same work.",
    );
}

fn ratios(page: &mut String, result: &Result) {
    line(page, "\n## Ratios\n");
    line(
        page,
        "How many times better Mainstay is than each host (below 1: the host is better). – is no figure.\n",
    );
    let others: Vec<&Facts> = result.hosts.iter().filter(|host| host.name != OURS).collect();
    let names: Vec<String> =
        others.iter().map(|host| format!("{} ({})", host.name, host.durable.word())).collect();
    line(page, &format!("| row | mainstay | {} |", names.join(" | ")));
    line(page, &format!("|---|---:|{}", "---:|".repeat(others.len())));
    for row in ROWS {
        if !result.figures.iter().any(|figure| figure.row == row.id && !figure.values.is_empty()) {
            continue;
        }
        let ours = result.median(row.id, OURS);
        let cells: Vec<String> = others
            .iter()
            .map(|host| match (ours, result.median(row.id, &host.name)) {
                (Some(ours), Some(theirs)) => ratio(row, ours, theirs),
                _ => "–".to_owned(),
            })
            .collect();
        let own = ours.map_or_else(|| "–".to_owned(), |value| format!("{} {}", number(value), row.unit));
        line(page, &format!("| {} | {own} | {} |", row.title, cells.join(" | ")));
    }
}

/// How many times better `ours` is.
fn ratio(row: &Row, ours: f64, theirs: f64) -> String {
    let (better, worse) = match row.better {
        Better::Less => (theirs, ours),
        Better::More => (ours, theirs),
    };
    let ratio = better / worse;
    if !ratio.is_finite() || worse <= 0.0 || better < 0.0 {
        // Zero or, by what a memory reading varies, below: there is no ratio to it.
        return format!("{} {}", number(theirs), row.unit);
    }
    if ratio >= 100.0 { format!("{ratio:.0} ×") } else { format!("{} ×", two_digits(ratio)) }
}

fn two_digits(value: f64) -> String {
    if value >= 10.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

/// Three digits that mean something, with separators where it is long.
fn number(value: f64) -> String {
    let size = value.abs();
    if size >= 1_000.0 {
        let digits = format!("{size:.0}");
        let mut grouped = String::new();
        for (index, digit) in digits.chars().enumerate() {
            if index > 0 && (digits.len() - index).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        let sign = if value < 0.0 { "-" } else { "" };
        return format!("{sign}{grouped}");
    }
    match size {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A promise and the row that shows whether it is kept.
struct Target {
    what: &'static str,
    row: &'static str,
    host: &'static str,
    limit: f64,
}

const TARGETS: &[Target] = &[
    Target { what: "frames/s with one reader, at least", row: "frames_1", host: OURS, limit: 100_000.0 },
    Target { what: "% of them that arrive, at least", row: "arrived_1", host: OURS, limit: 100.0 },
    Target { what: "% that arrive at 100 readers, at least", row: "arrived_100", host: OURS, limit: 100.0 },
    Target { what: "ms p50 by default, at most", row: "latency_p50", host: OURS, limit: 8.0 },
    Target { what: "ms p50 with `stream_flush = 0`, at most", row: "latency_p50", host: FLUSHED, limit: 1.0 },
    Target {
        what: "µs of processor time per frame, host and keeper, at most",
        row: "cpu",
        host: OURS,
        limit: 15.0,
    },
    Target { what: "ms from start to healthy, at most", row: "start", host: OURS, limit: 20.0 },
    Target { what: "MB resident, idle, at most", row: "idle_rss", host: OURS, limit: 15.0 },
    Target { what: "ms for the tail page, at most", row: "tail", host: OURS, limit: 5.0 },
    Target { what: "ms to right after kill -9, at most", row: "recovery", host: OURS, limit: 1_000.0 },
];

/// The variant of ours that syncs and shows text as soon as it comes.
const FLUSHED: &str = "mainstay, stream_flush 0";

fn targets(page: &mut String, result: &Result) {
    line(page, "\n## Targets\n\n| target | limit | measured | |\n|---|---:|---:|---|");
    for target in TARGETS {
        let Some(row) = row_named(target.row) else { continue };
        let (measured, word) = match result.median(target.row, target.host) {
            None => ("–".to_owned(), "not measured"),
            Some(value) => {
                let met = match row.better {
                    Better::Less => value <= target.limit,
                    Better::More => value >= target.limit,
                };
                (number(value), if met { "met" } else { "**missed**" })
            }
        };
        line(page, &format!("| {} | {} | {measured} | {word} |", target.what, number(target.limit)));
    }
    let behind = behind(result);
    if behind.is_empty() {
        line(page, "\nNo peer is ahead of Mainstay in any row.");
        return;
    }
    line(page, "\nWhere a peer is ahead of Mainstay:\n");
    for text in behind {
        line(page, &format!("* {text}"));
    }
}

/// The bare machine is ahead everywhere, by its nature; it is no peer.
fn is_peer(host: &Facts) -> bool {
    !host.name.starts_with(OURS) && !host.name.starts_with("bare ")
}

fn behind(result: &Result) -> Vec<String> {
    let mut found = Vec::new();
    for row in ROWS {
        let Some(ours) = result.median(row.id, OURS) else { continue };
        for host in result.hosts.iter().filter(|host| is_peer(host)) {
            let Some(theirs) = result.median(row.id, &host.name) else { continue };
            let ahead = match row.better {
                Better::Less => theirs < ours,
                Better::More => theirs > ours,
            };
            if ahead {
                let durable = if host.durable == Durable::No { "not durable" } else { host.durable.word() };
                let (theirs, ours) = (number(theirs), number(ours));
                found.push(format!(
                    "{}: {} has {theirs} {unit}, Mainstay {ours} ({durable})",
                    row.title,
                    host.name,
                    unit = row.unit
                ));
            }
        }
    }
    found
}

fn figures(page: &mut String, result: &Result) {
    line(page, "\n## Figures\n\nMedian, and from the least to the most of the runs.");
    for row in ROWS {
        let cells: Vec<&Figure> = result
            .figures
            .iter()
            .filter(|figure| figure.row == row.id && !figure.values.is_empty())
            .collect();
        if cells.is_empty() {
            continue;
        }
        line(page, &format!("\n### {} ({})\n\n{}\n", row.title, row.unit, row.how));
        line(page, "| host | median | least – most | runs | durable | |\n|---|---:|---:|---:|---|---|");
        for figure in cells {
            let (Some(median), Some((least, most))) = (figure.median(), figure.spread()) else { continue };
            let mut text = String::new();
            // Writing to a string cannot fail.
            let _infallible = write!(
                text,
                "| {} | {} | {} – {} | {} | {} | {} |",
                figure.host,
                number(median),
                number(least),
                number(most),
                figure.values.len(),
                figure.durable.word(),
                figure.note,
            );
            line(page, &text);
        }
    }
}

fn missing(page: &mut String, result: &Result) {
    line(page, "\n## What could not be measured\n");
    let mut none = true;
    for left in &result.left_out {
        none = false;
        line(page, &format!("* **{}**: {}", left.name, left.why));
    }
    for host in &result.hosts {
        let mut whys: Vec<(&str, Vec<&str>)> = Vec::new();
        for figure in result.figures.iter().filter(|figure| figure.host == host.name) {
            let Some(why) = &figure.absent else { continue };
            let row = row_named(&figure.row).map_or(figure.row.as_str(), |row| row.title);
            match whys.iter_mut().find(|(known, _)| known == why) {
                Some((_, rows)) => rows.push(row),
                None => whys.push((why, vec![row])),
            }
        }
        for (why, rows) in whys {
            none = false;
            line(page, &format!("* {}, {}: {why}", host.name, rows.join(", ").to_lowercase()));
        }
    }
    if none {
        line(page, "Nothing.");
    }
}

#[cfg(test)]
mod tests;
