//! What is measured, and what came of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::hosts::Durable;

/// Which way a figure is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Better {
    Less,
    More,
}

/// One row of the report.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) id: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) better: Better,
    pub(crate) how: &'static str,
}

const fn row(
    id: &'static str,
    title: &'static str,
    unit: &'static str,
    better: Better,
    how: &'static str,
) -> Row {
    Row { id, title, unit, better, how }
}

/// All rows, in the order of the report.
pub(crate) const ROWS: &[Row] = &[
    row(
        "start",
        "Start to healthy",
        "ms",
        Better::Less,
        "From the start of the process to the first good answer of its health route, asked without a pause.",
    ),
    row(
        "idle_rss",
        "Idle memory, resident",
        "MB",
        Better::Less,
        "The least within a second after the start, all processes of the host, before any session.",
    ),
    row(
        "idle_pss",
        "Idle memory, proportional",
        "MB",
        Better::Less,
        "As above; pages that two processes share count once.",
    ),
    row(
        "session_rest",
        "Memory of a session at rest",
        "MB",
        Better::Less,
        "Growth of the proportional memory by sessions without an agent process, divided by their number.",
    ),
    row(
        "session_idle",
        "Memory of a session with an idle agent",
        "MB",
        Better::Less,
        "The same for sessions whose agent runs and waits; the scripted agent itself is not counted.",
    ),
    row(
        "session_streaming",
        "Memory of a streaming session",
        "MB",
        Better::Less,
        "The same while every session streams 1,000 frames/s.",
    ),
    row(
        "frames_0",
        "Frames without a reader",
        "frames/s",
        Better::More,
        "One turn of frames of 24 bytes of text, as fast as the pipe takes, to the host's word that it is over.",
    ),
    row(
        "frames_1",
        "Frames with one reader",
        "frames/s",
        Better::More,
        "Frames that the slowest reader got, by the time to its last one.",
    ),
    row("frames_10", "Frames with 10 readers", "frames/s", Better::More, "As above."),
    row("frames_100", "Frames with 100 readers", "frames/s", Better::More, "As above."),
    row(
        "arrived_1",
        "Share that arrived, one reader",
        "%",
        Better::More,
        "Of the frames that the agent wrote, over all readers.",
    ),
    row("arrived_10", "Share that arrived, 10 readers", "%", Better::More, "As above."),
    row("arrived_100", "Share that arrived, 100 readers", "%", Better::More, "As above."),
    row(
        "latency_p50",
        "Agent byte to client byte, p50",
        "ms",
        Better::Less,
        "A steady 1,000 frames/s, each with the time of its writing in its text; one reader.",
    ),
    row("latency_p99", "Agent byte to client byte, p99", "ms", Better::Less, "As above."),
    row(
        "turn",
        "Turn round trip",
        "ms",
        Better::Less,
        "A turn with one word, from the client's request to its knowledge that the turn is over; median of a series.",
    ),
    row(
        "cpu",
        "Processor time per frame",
        "µs",
        Better::Less,
        "User and system time of all processes of the host in the turn with one reader.",
    ),
    row(
        "replay",
        "Replay from the first cursor",
        "frames/s",
        Better::More,
        "A new reader from the beginning of a session that has had one burst.",
    ),
    row(
        "held",
        "Held for replay",
        "%",
        Better::More,
        "What that reader got, of what the agent wrote in the session.",
    ),
    row(
        "tail",
        "Tail page of a large session",
        "ms",
        Better::Less,
        "The newest 50 items over HTTP; median of a series. The size of the session stands in the note.",
    ),
    row(
        "recovery",
        "Recovery after kill -9",
        "ms",
        Better::Less,
        "From the new start to the first right answer about a session whose turn was running.",
    ),
    row(
        "kept",
        "Frames kept over kill -9",
        "%",
        Better::More,
        "Of what the agent had said before, what a reader from the beginning gets after.",
    ),
    row(
        "disk",
        "Disk per byte of event",
        "B/B",
        Better::Less,
        "Growth of the host's folder by a burst, by the bytes of the agent's lines; two seconds after its end.",
    ),
];

pub(crate) fn row_named(id: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.id == id)
}

/// One cell: what all runs gave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) row: String,
    pub(crate) host: String,
    pub(crate) unit: String,
    pub(crate) durable: Durable,
    /// One for each run, in order.
    pub(crate) values: Vec<f64>,
    #[serde(default)]
    pub(crate) note: String,
    /// Why some or all runs have none.
    #[serde(default)]
    pub(crate) absent: Option<String>,
}

impl Figure {
    pub(crate) fn median(&self) -> Option<f64> {
        let mut values = self.values.clone();
        values.sort_by(f64::total_cmp);
        let half = values.len() / 2;
        match values.len() {
            0 => None,
            odd if odd % 2 == 1 => values.get(half).copied(),
            _ => Some(f64::midpoint(values[half - 1], values[half])),
        }
    }

    pub(crate) fn spread(&self) -> Option<(f64, f64)> {
        let least = self.values.iter().copied().min_by(f64::total_cmp)?;
        let most = self.values.iter().copied().max_by(f64::total_cmp)?;
        Some((least, most))
    }
}

/// All cells.
#[derive(Debug, Default)]
pub(crate) struct Figures(BTreeMap<(usize, usize), Figure>);

impl Figures {
    /// The cell of this row (an index into [`ROWS`]) and host.
    fn cell(&mut self, row: &str, host: (usize, &str, Durable)) -> Option<&mut Figure> {
        let index = ROWS.iter().position(|known| known.id == row)?;
        Some(self.0.entry((index, host.0)).or_insert_with(|| Figure {
            row: row.to_owned(),
            host: host.1.to_owned(),
            unit: ROWS[index].unit.to_owned(),
            durable: host.2,
            values: Vec::new(),
            note: String::new(),
            absent: None,
        }))
    }

    pub(crate) fn add(&mut self, row: &str, host: (usize, &str, Durable), value: f64) {
        if let Some(cell) = self.cell(row, host) {
            cell.values.push(value);
        }
    }

    /// The newest note of a cell is shown.
    pub(crate) fn note(&mut self, row: &str, host: (usize, &str, Durable), note: String) {
        if let Some(cell) = self.cell(row, host) {
            cell.note = note;
        }
    }

    pub(crate) fn absent(&mut self, row: &str, host: (usize, &str, Durable), why: String) {
        if let Some(cell) = self.cell(row, host) {
            cell.absent = Some(why);
        }
    }

    /// By row, then by host.
    pub(crate) fn into_list(self) -> Vec<Figure> {
        self.0.into_values().collect()
    }
}
