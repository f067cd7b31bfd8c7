//! Standard output and error of the commands. A reader that went away ends the output, not the work.

use std::io::{self, IsTerminal, Write};

/// Writes a line to standard output.
pub(crate) fn line(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush())
}

/// Writes text to standard output as it comes.
pub(crate) fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Writes JSON to standard output, one value a line.
pub(crate) fn json(value: &serde_json::Value) -> io::Result<()> {
    line(&value.to_string())
}

/// Says something beside the output. Nothing depends on it.
pub(crate) fn note(text: &str) {
    let mut out = io::stderr().lock();
    let _said = writeln!(out, "{text}");
}

/// Asks on standard error, without a line end.
pub(crate) fn ask(text: &str) {
    let mut out = io::stderr().lock();
    let _said = write!(out, "{text}").and_then(|()| out.flush());
}

/// Whether a person can be asked.
pub(crate) fn can_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Rows as columns, each as wide as its widest cell; the last one is not padded.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            let pad = width.saturating_sub(cell.chars().count()) + 2;
            line.extend(std::iter::repeat_n(' ', pad));
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Unix milliseconds as a time for people, in UTC.
pub(crate) fn time(ms: i64) -> String {
    match jiff::Timestamp::from_millisecond(ms) {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M:%SZ").to_string(),
        Err(_) => format!("{ms} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let row = |a: &str, b: &str| vec![a.to_owned(), b.to_owned()];
        assert_eq!(table(&[row("ID", "NAME"), row("longer", "x")]), "ID      NAME\nlonger  x\n");
        assert_eq!(table(&[]), "");
    }
}
