//! Cuts a byte stream into lines, in bounded memory.

use std::io::BufRead;

use crate::record::{FRAGMENT_HEAD, OVERSIZE_HEAD};

/// What a kept buffer may hold between lines; a larger one is given back.
const IDLE_LINE: usize = 16 * 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'input> {
    /// A line without its line feed.
    Line(&'input [u8]),
    /// A line over the limit; only its beginning was kept.
    Oversize { length: u64, head: &'input [u8] },
}

#[derive(Debug)]
pub(super) struct LineSplitter {
    limit: u64,
    /// The unfinished line, or the head of one that is over the limit.
    line: Vec<u8>,
    line_len: u64,
}

impl LineSplitter {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, line: Vec::new(), line_len: 0 }
    }

    /// Takes bytes and reports every line that they complete. A line that arrives in one piece is not copied.
    pub(super) fn feed(&mut self, mut input: &[u8], report: &mut dyn FnMut(Piece<'_>)) {
        while !input.is_empty() {
            let mut rest = input;
            // Reading from memory cannot fail. This finds the line feed with the fastest search std has.
            let taken = rest.skip_until(b'\n').unwrap_or(input.len());
            let part = input.get(..taken).unwrap_or(input);
            input = rest;
            match part.split_last() {
                Some((b'\n', part)) => self.finish(part, report),
                _ => self.keep(part),
            }
        }
    }

    fn finish(&mut self, part: &[u8], report: &mut dyn FnMut(Piece<'_>)) {
        if self.line_len == 0 && part.len() as u64 <= self.limit {
            report(Piece::Line(part));
            return;
        }
        self.keep(part);
        if self.line_len <= self.limit {
            report(Piece::Line(&self.line));
        } else {
            report(Piece::Oversize { length: self.line_len, head: &self.line });
        }
        self.line.clear();
        self.line.shrink_to(IDLE_LINE);
        self.line_len = 0;
    }

    fn keep(&mut self, part: &[u8]) {
        self.line_len += part.len() as u64;
        let room = if self.line_len <= self.limit {
            part.len()
        } else {
            self.line.truncate(OVERSIZE_HEAD);
            OVERSIZE_HEAD - self.line.len()
        };
        self.line.extend_from_slice(part.get(..room).unwrap_or(part));
        if self.line_len > self.limit {
            self.line.shrink_to(IDLE_LINE);
        }
    }

    /// The unterminated rest at the end of the stream: its length, and a bounded head.
    pub(super) fn take_rest(&mut self) -> Option<(u64, Vec<u8>)> {
        if self.line_len == 0 {
            return None;
        }
        let mut head = std::mem::take(&mut self.line);
        head.truncate(FRAGMENT_HEAD);
        Some((std::mem::take(&mut self.line_len), head))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn split(splitter: &mut LineSplitter, bytes: &[u8], piece: usize) -> Vec<(u64, Vec<u8>)> {
        let mut lines = Vec::new();
        for part in bytes.chunks(piece) {
            splitter.feed(part, &mut |piece| {
                lines.push(match piece {
                    Piece::Line(line) => (line.len() as u64, line.to_vec()),
                    Piece::Oversize { length, head } => (length, head.to_vec()),
                });
            });
        }
        lines
    }

    proptest! {
        #[test]
        fn lines_do_not_depend_on_how_the_stream_is_cut(
            lines in proptest::collection::vec("[a-zé]{0,40}", 0..20), rest in "[a-z]{0,10}", piece in 1_usize..50,
        ) {
            let stream: String = lines.iter().map(|line| format!("{line}\n")).collect::<String>() + &rest;
            let mut splitter = LineSplitter::new(1000);
            let seen = split(&mut splitter, stream.as_bytes(), piece);
            let expected: Vec<_> =
                lines.iter().map(|line| (line.len() as u64, line.clone().into_bytes())).collect();
            prop_assert_eq!(seen, expected);
            let kept = splitter.take_rest();
            prop_assert_eq!(kept, (!rest.is_empty()).then(|| (rest.len() as u64, rest.into_bytes())));
        }
    }

    #[test]
    fn a_line_over_the_limit_keeps_its_length_and_head_and_the_next_is_whole() {
        let long = vec![b'l'; 20_000];
        let stream = [&long[..], b"\nshort\n"].concat();
        for piece in [1, 5000, stream.len()] {
            let mut splitter = LineSplitter::new(10_000);
            let seen = split(&mut splitter, &stream, piece);
            assert_eq!(seen, [(20_000, vec![b'l'; OVERSIZE_HEAD]), (5, b"short".to_vec())], "piece {piece}");
            assert_eq!(splitter.take_rest(), None);
        }
        let exact = [&vec![b'e'; 10_000][..], b"\n"].concat();
        assert_eq!(split(&mut LineSplitter::new(10_000), &exact, 999), [(10_000, vec![b'e'; 10_000])]);
    }
}
