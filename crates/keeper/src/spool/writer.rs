//! The writing side: frames are gathered in memory and appended with one write per burst.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::record::{RecordKind, append_record};

/// What the gathering buffer keeps allocated between bursts; a larger one is given back.
const IDLE_BUFFER: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct SpoolWriter {
    folder: PathBuf,
    segment_size: u64,
    /// Starts of the segments on disk; the last one is being written.
    segments: VecDeque<u64>,
    file: File,
    /// Position behind the last byte on disk.
    end: u64,
    committed: u64,
    /// Whole records that are not on disk yet.
    pending: Vec<u8>,
    /// The last append failed in the middle; the file must be cut back to `end` before the next one.
    must_cut_back: bool,
}

impl SpoolWriter {
    /// Begins an empty log in an existing folder.
    pub(crate) fn create(folder: &Path, segment_size: u64) -> io::Result<Self> {
        Ok(Self {
            folder: folder.to_owned(),
            segment_size: segment_size.max(1),
            segments: VecDeque::from([0]),
            file: create_segment(folder, 0)?,
            end: 0,
            committed: 0,
            pending: Vec::new(),
            must_cut_back: false,
        })
    }

    /// First position that can still be read.
    pub(crate) fn start(&self) -> u64 {
        self.segments.front().copied().unwrap_or(self.end)
    }

    /// Position behind the last record on disk.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    #[cfg(test)]
    pub(crate) fn committed(&self) -> u64 {
        self.committed
    }

    /// Bytes that the host has not committed, with those that are not on disk yet.
    pub(crate) fn uncommitted(&self) -> u64 {
        self.end - self.committed + self.pending.len() as u64
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Adds a record to the burst; [`flush`](Self::flush) puts it on disk. False when it is too long to frame.
    #[must_use]
    pub(crate) fn push(&mut self, kind: RecordKind, at_ms: i64, connection: u32, payload: &[u8]) -> bool {
        append_record(&mut self.pending, kind, at_ms, connection, payload)
    }

    /// Appends the burst. After an error (a full disk) nothing of it counts, it stays pending, and calling again
    /// tries again.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let segment_start = self.segments.back().copied().unwrap_or(0);
        if self.must_cut_back {
            self.file.set_len(self.end - segment_start)?;
            self.must_cut_back = false;
        }
        if self.end - segment_start >= self.segment_size {
            self.file = create_segment(&self.folder, self.end)?;
            self.segments.push_back(self.end);
        }
        if let Err(error) = self.file.write_all(&self.pending) {
            self.must_cut_back = true;
            return Err(error);
        }
        self.end += self.pending.len() as u64;
        self.pending.clear();
        if self.pending.capacity() > IDLE_BUFFER * 16 {
            self.pending.shrink_to(IDLE_BUFFER);
        }
        Ok(())
    }

    /// Takes the host's word that everything before `position` is safe elsewhere and deletes whole segments
    /// behind it. A position that goes back or beyond the end moves nothing past either bound.
    pub(crate) fn commit(&mut self, position: u64) {
        self.committed = position.clamp(self.committed, self.end.max(self.committed));
        while let (Some(&first), Some(&second)) = (self.segments.front(), self.segments.get(1)) {
            if second > self.committed {
                break;
            }
            // A file that cannot be deleted costs space, not correctness, and goes with the folder.
            let _ = std::fs::remove_file(self.folder.join(super::segment_name(first)));
            self.segments.pop_front();
        }
    }
}

fn create_segment(folder: &Path, start: u64) -> io::Result<File> {
    let path = folder.join(super::segment_name(start));
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}
