//! The table as people read it: written from what each cell saw, and compared with the copy under version control.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// A table of cells.
pub(super) struct Report {
    /// Its name, and that of the document.
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    /// What a reader must know first.
    pub(super) about: &'static str,
    /// Names and what they mean, in their order.
    pub(super) states: Vec<(&'static str, &'static str)>,
    /// Names and what was done, in their order.
    pub(super) interventions: Vec<(&'static str, &'static str)>,
}

impl Report {
    /// `target/reports`.
    fn folder() -> PathBuf {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
        target.join("reports")
    }

    /// Keeps what a cell saw, and writes the table of all cells that are known so far.
    pub(super) fn saw(&self, state: &str, intervention: &str, seen: &Seen) {
        let parts = Self::folder().join(self.name);
        fs::create_dir_all(&parts).expect("the folder of the parts");
        // Cells run at the same time, each in a process of its own: one of them writes at a time.
        let lock = File::create(parts.join("lock")).expect("a lock");
        lock.lock().expect("locked");
        fs::write(parts.join(part(state, intervention)), seen.row()).expect("written");
        let read = |state: &str, intervention: &str| {
            let row = fs::read_to_string(parts.join(part(state, intervention)));
            row.into_iter().collect()
        };
        fs::write(Self::folder().join(format!("{}.md", self.name)), self.render(read)).expect("written");
    }

    /// The whole document from the rows of its cells.
    pub(super) fn render(&self, rows: impl Fn(&str, &str) -> Vec<String>) -> String {
        let mut text = format!("# {}\n\n{}\n\n## What was done\n\n", self.title, self.about);
        for (intervention, what) in &self.interventions {
            text.push_str(&format!("* **{intervention}**: {what}\n"));
        }
        for (state, what) in &self.states {
            text.push_str(&format!("\n## {state}\n\n{what}\n\n{HEAD}"));
            for (intervention, _) in &self.interventions {
                for (number, row) in rows(state, intervention).iter().enumerate() {
                    let name = if number == 0 { format!("**{intervention}**") } else { "or".to_owned() };
                    text.push_str(&format!("| {name} {row}\n"));
                }
            }
        }
        text
    }

    /// Compares the copy in `docs/`, or writes it anew where `UPDATE_GOLDEN=1` is set.
    #[track_caller]
    pub(super) fn compare(&self, text: &str) {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the workspace");
        let path = root.join("docs").join(format!("{}.md", self.name));
        if std::env::var_os("UPDATE_GOLDEN").is_some_and(|set| set == "1") {
            fs::write(&path, text).expect("written");
            return;
        }
        let recorded = fs::read_to_string(&path).unwrap_or_default();
        assert!(recorded == text, "{} differs from the table; run `cargo xtask golden`", path.display());
    }
}

/// The file of a cell's row.
fn part(state: &str, intervention: &str) -> String {
    format!("{state} x {intervention}").replace('/', "-")
}

const HEAD: &str = "| | journal from there on | turn | messages | asked, or run | process | next message |\n\
                    |---|---|---|---|---|---|---|\n";

/// What a cell saw, or is to see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    /// The journal in words, from the intervention until all is settled.
    pub(super) journal: String,
    /// What became of the turn.
    pub(super) turn: String,
    /// What became of the messages.
    pub(super) messages: String,
    /// What became of requests, commands, children and controls.
    pub(super) asked: String,
    /// What became of the process.
    pub(super) process: String,
    /// What became of a message sent afterwards.
    pub(super) next: String,
}

/// The wait of the message sent afterwards for a turn that goes on.
const WAITED: &str = "next queued (turn_running) · ";

impl Seen {
    /// Whether this is what a row of the table says. Whether the message that is sent afterwards finds a turn still running
    /// depends on how fast this test is, and is no part of the cell.
    pub(super) fn is(&self, expected: &Self) -> bool {
        let without_wait = |seen: &Self| Self { next: seen.next.replace(WAITED, ""), ..seen.clone() };
        without_wait(self) == without_wait(expected)
    }

    /// Whether what became of the messages and of the process is what a row of the table says.
    pub(super) fn ends_as(&self, expected: &Self) -> bool {
        self.messages == expected.messages && self.process == expected.process
    }

    /// A row of the table behind its first cell.
    pub(super) fn row(&self) -> String {
        let Self { journal, turn, messages, asked, process, next } = self;
        format!("| {journal} | {turn} | {messages} | {asked} | {process} | {next} |")
    }
}

impl From<[&str; 6]> for Seen {
    fn from(row: [&str; 6]) -> Self {
        let [journal, turn, messages, asked, process, next] = row.map(str::to_owned);
        Self { journal, turn, messages, asked, process, next }
    }
}
