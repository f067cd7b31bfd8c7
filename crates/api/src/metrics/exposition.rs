//! The text format, version 0.0.4.

use super::table::{Kind, Metric};
use mainstay_host::metrics::{BUCKETS_US, DurationCounts};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Metrics as they are written, each once.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
}

impl Exposition {
    pub(super) fn text(self) -> String {
        self.text
    }

    fn head(&mut self, metric: &Metric) {
        let Metric { name, kind, help, .. } = metric;
        // Writing to a string does not fail, here and below.
        let _written = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.word());
    }

    /// A metric without labels.
    pub(super) fn value(&mut self, metric: &Metric, value: u64) {
        self.head(metric);
        let _written = writeln!(self.text, "{} {value}", metric.name);
    }

    /// A metric with one label.
    pub(super) fn labelled<'a>(&mut self, metric: &Metric, values: impl IntoIterator<Item = (&'a str, u64)>) {
        self.rows(metric, values.into_iter().map(|(label, value)| (vec![Cow::Borrowed(label)], value)));
    }

    /// The same, from a map.
    pub(super) fn map(&mut self, metric: &Metric, values: &BTreeMap<String, u64>) {
        self.labelled(metric, values.iter().map(|(label, value)| (label.as_str(), *value)));
    }

    /// A metric with the labels that its table names.
    pub(super) fn rows<'a>(
        &mut self,
        metric: &Metric,
        rows: impl IntoIterator<Item = (Vec<Cow<'a, str>>, u64)>,
    ) {
        debug_assert!(metric.kind != Kind::Histogram, "{} has buckets", metric.name);
        self.head(metric);
        for (labels, value) in rows {
            let named: Vec<String> = metric
                .labels
                .iter()
                .zip(&labels)
                .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
                .collect();
            let _written = writeln!(self.text, "{}{{{}}} {value}", metric.name, named.join(","));
        }
    }

    /// A histogram of seconds.
    pub(super) fn durations(&mut self, metric: &Metric, counts: &DurationCounts) {
        self.head(metric);
        let name = metric.name;
        for (end, up_to) in BUCKETS_US.iter().zip(counts.up_to) {
            let _written = writeln!(self.text, "{name}_bucket{{le=\"{}\"}} {up_to}", seconds(*end));
        }
        let _written = writeln!(self.text, "{name}_bucket{{le=\"+Inf\"}} {}", counts.count);
        let _written = writeln!(self.text, "{name}_sum {}", seconds(counts.total_us));
        let _written = writeln!(self.text, "{name}_count {}", counts.count);
    }
}

/// Microseconds as seconds, exactly.
fn seconds(us: u64) -> String {
    let text = format!("{}.{:06}", us / 1_000_000, us % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(label: &str) -> String {
    label.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_exact() {
        assert_eq!(
            [seconds(0), seconds(250), seconds(1_500_000), seconds(30_000_000)],
            ["0", "0.00025", "1.5", "30"]
        );
    }

    #[test]
    fn a_label_cannot_break_out() {
        let mut out = Exposition::default();
        let metric = Metric { name: "m", kind: Kind::Gauge, unit: "1", labels: &["l"], help: "h" };
        out.labelled(&metric, [("a\"} 1\nx\\", 2)]);
        assert_eq!(out.text(), "# HELP m h\n# TYPE m gauge\nm{l=\"a\\\"} 1\\nx\\\\\"} 2\n");
    }
}
