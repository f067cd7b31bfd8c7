//! The minutes that CI has, on two cores, and what each step may take of them.

use std::fmt::Write as _;
use std::time::Duration;

/// All steps together.
const ALL_MINUTES: f64 = 25.0;

/// Steps of `cargo xtask test` on a machine that has built the dependencies before. What grows beyond goes to the long
/// mode.
const MINUTES: [(&str, f64); 11] = [
    ("setup", 0.5),
    ("tidy", 0.1),
    ("dependencies", 0.2),
    ("format", 0.2),
    ("build", 3.5),
    ("clippy", 1.5),
    ("golden", 3.0),
    ("nextest", 11.5),
    ("doc tests", 0.5),
    ("fuzz", 3.0),
    ("api-fuzz", 1.0),
];

/// The table.
pub(crate) fn table() -> String {
    let mut text = format!("{:<14} {:>8}\n", "step", "minutes");
    for (step, minutes) in MINUTES {
        // Writing to a string does not fail.
        let _written = writeln!(text, "{step:<14} {minutes:>8.2}");
    }
    let _written = writeln!(text, "{:<14} {ALL_MINUTES:>8.2}", "all");
    text
}

/// What the steps took, beside what they may.
pub(crate) fn compare(times: &[(&'static str, Duration)]) -> String {
    let mut text = format!("{:<14} {:>8} {:>8}\n", "step", "minutes", "budget");
    let (mut within, mut beyond) = (0.0, 0.0);
    for (step, time) in times {
        let took = time.as_secs_f64() / 60.0;
        let line = match MINUTES.iter().find(|(known, _)| known == step) {
            Some((_, budget)) => {
                within += took;
                let over = if took > *budget { "  over" } else { "" };
                format!("{step:<14} {took:>8.2} {budget:>8.2}{over}")
            }
            None => {
                beyond += took;
                format!("{step:<14} {took:>8.2}")
            }
        };
        let _written = writeln!(text, "{line}");
    }
    let over = if within > ALL_MINUTES { "  over" } else { "" };
    let _written = writeln!(text, "{:<14} {within:>8.2} {ALL_MINUTES:>8.2}{over}", "all");
    if beyond > 0.0 {
        let _written = writeln!(text, "{:<14} {beyond:>8.2}", "long mode");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_fit_into_the_whole() {
        let sum: f64 = MINUTES.iter().map(|(_, minutes)| minutes).sum();
        assert!(sum <= ALL_MINUTES + 0.001, "{sum} minutes");
    }

    #[test]
    fn what_takes_too_long_is_marked() {
        let times = [
            ("tidy", Duration::from_secs(1)),
            ("build", Duration::from_secs(600)),
            ("nextest", Duration::from_secs(1_000)),
            ("long: seeds", Duration::from_secs(60)),
        ];
        let text = compare(&times);
        let line =
            |start: &str| text.lines().find(|line| line.starts_with(start)).expect("a line").to_owned();
        assert!(!line("tidy").contains("over") && line("build").contains("over"), "{text}");
        assert!(line("all").contains("over") && line("long mode").contains("1.00"), "{text}");
    }
}
