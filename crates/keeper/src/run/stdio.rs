//! The line transport: one message per line on the agent's standard input and output.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{ChildStdin, ChildStdout};

use super::channel::{BURST_LIMIT, ReadOutcome, push_control};
use super::lines::{LineSplitter, Piece};
use crate::record::{Control, RecordKind};
use crate::spool::SpoolWriter;

/// A stdio agent has exactly one connection in its life.
pub(super) const CONNECTION: u32 = 1;

#[derive(Debug)]
pub(super) struct StdioChannel {
    stdin: Option<ChildStdin>,
    stdout: Option<ChildStdout>,
    splitter: LineSplitter,
}

impl StdioChannel {
    pub(super) fn new(stdin: ChildStdin, stdout: ChildStdout, record_limit: u64) -> Self {
        Self { stdin: Some(stdin), stdout: Some(stdout), splitter: LineSplitter::new(record_limit) }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stdin.is_some()
    }

    pub(super) fn read_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stdout.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn write_fd(&self) -> Option<BorrowedFd<'_>> {
        self.stdin.as_ref().map(AsFd::as_fd)
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write(bytes)
    }

    pub(super) fn close_input(&mut self) {
        self.stdin = None;
    }

    /// Reads one burst and pushes a record for every line that it completes.
    pub(super) fn read(&mut self, spool: &mut SpoolWriter, buffer: &mut [u8], at_ms: i64) -> ReadOutcome {
        let Some(stdout) = &mut self.stdout else {
            return ReadOutcome::default();
        };
        let mut outcome = ReadOutcome::default();
        let mut taken = 0;
        while taken < BURST_LIMIT {
            match stdout.read(buffer) {
                Ok(0) => {
                    outcome.ended = true;
                    break;
                }
                Ok(count) => {
                    taken += count;
                    let part = buffer.get(..count).unwrap_or_default();
                    self.splitter.feed(part, &mut |piece| push_piece(spool, at_ms, piece));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An unreadable pipe is an ended one.
                Err(_) => {
                    outcome.ended = true;
                    break;
                }
            }
        }
        outcome.progress = taken > 0;
        if outcome.ended {
            self.end_output(spool, at_ms);
        }
        outcome
    }

    /// Stops reading; what was left of a line becomes a fragment.
    pub(super) fn end_output(&mut self, spool: &mut SpoolWriter, at_ms: i64) {
        self.stdout = None;
        if let Some((length, head)) = self.splitter.take_rest() {
            let head = String::from_utf8_lossy(&head).into_owned();
            push_control(spool, RecordKind::Fragment, at_ms, CONNECTION, &Control::Fragment { length, head });
        }
    }
}

fn push_piece(spool: &mut SpoolWriter, at_ms: i64, piece: Piece<'_>) {
    let (length, head) = match piece {
        Piece::Line(line) if spool.push(RecordKind::Message, at_ms, CONNECTION, line) => return,
        // A record limit above what can be framed.
        Piece::Line(line) => (line.len() as u64, line.get(..crate::record::OVERSIZE_HEAD).unwrap_or(line)),
        Piece::Oversize { length, head } => (length, head),
    };
    let head = String::from_utf8_lossy(head).into_owned();
    push_control(spool, RecordKind::Oversize, at_ms, CONNECTION, &Control::Oversize { length, head });
}
