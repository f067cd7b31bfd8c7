//! Each state of an agent under each intervention, on the real CLIs: what the journal tells, what became of the turn, of
//! the messages, of what was asked or ran and of the process, and whether the next message works.
//!
//! What is to be seen stands in a table in code (`codex_table`); every cell is a test, and compares. What holds in every
//! cell is checked in every cell (`invariants`). `docs/codex-matrix.md` is the table for people; a run also writes
//! `target/reports/codex-matrix.md` from what its cells saw.

mod codex;
mod codex_table;
pub(crate) mod invariants;
mod journal;
mod report;
