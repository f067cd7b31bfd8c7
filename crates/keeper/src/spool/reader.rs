//! The reading side. One buffer per batch; records are ranges in it, so a small record costs no allocation.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::record::{Control, HEADER_LEN, Parse, RecordKind, parse_record};

/// Reads the records of one spool from any position. Needs no living keeper.
#[derive(Debug)]
pub struct SpoolReader {
    folder: PathBuf,
    /// The segment of the last read.
    open: Option<OpenSegment>,
}

#[derive(Debug)]
struct OpenSegment {
    start: u64,
    file: File,
}

#[derive(Debug, Error)]
pub enum SpoolReadError {
    #[error("the spool could not be read at {position}")]
    Io { position: u64, source: io::Error },
    /// The bytes at this position are no record, or this position is no record boundary.
    #[error("the spool is damaged at {position}")]
    Corrupt { position: u64 },
    /// Committed and deleted.
    #[error("the spool begins at {start} only")]
    Gone { start: u64 },
    #[error("the spool ends at {end} already")]
    Ahead { end: u64 },
}

/// Some records in order, and the position to go on from.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    buffer: Vec<u8>,
    start: u64,
    heads: Vec<Head>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    kind: RecordKind,
    connection: u32,
    at_ms: i64,
    /// Where the record begins in the buffer.
    begin: usize,
    end: usize,
}

/// One record of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'batch> {
    pub position: u64,
    /// The position behind this record: what to commit once its effects are durable.
    pub next: u64,
    pub kind: RecordKind,
    /// Unix milliseconds at which the keeper read it.
    pub at_ms: i64,
    pub connection: u32,
    pub payload: &'batch [u8],
}

impl Record<'_> {
    /// The parsed payload of a control record; `None` for messages. JSON of an unknown form is an error of
    /// that record only.
    pub fn control(&self) -> Option<Result<Control, serde_json::Error>> {
        (self.kind != RecordKind::Message).then(|| serde_json::from_slice(self.payload))
    }
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Where the next read goes on.
    pub fn next(&self) -> u64 {
        self.start + self.heads.last().map_or(0, |head| head.end as u64)
    }

    pub fn get(&self, index: usize) -> Option<Record<'_>> {
        self.heads.get(index).map(|head| self.record(head))
    }

    pub fn records(&self) -> impl ExactSizeIterator<Item = Record<'_>> + DoubleEndedIterator {
        self.heads.iter().map(|head| self.record(head))
    }

    fn record(&self, head: &Head) -> Record<'_> {
        Record {
            position: self.start + head.begin as u64,
            next: self.start + head.end as u64,
            kind: head.kind,
            at_ms: head.at_ms,
            connection: head.connection,
            payload: self.buffer.get(head.begin + HEADER_LEN..head.end).unwrap_or_default(),
        }
    }

    fn reset(&mut self, start: u64) {
        self.buffer.clear();
        self.heads.clear();
        self.start = start;
    }
}

impl SpoolReader {
    /// `folder` is the keeper folder's `spool`. Nothing is opened before the first read.
    pub fn open(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), open: None }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The whole records from `from` on, at most about `max_bytes` of them but at least one where there is one.
    /// An empty batch means: nothing (whole) there yet.
    pub fn read(&mut self, from: u64, max_bytes: usize) -> Result<Batch, SpoolReadError> {
        let mut batch = Batch::default();
        self.read_into(from, max_bytes, &mut batch)?;
        Ok(batch)
    }

    /// Like [`read`](Self::read), into a batch whose memory is used again.
    pub fn read_into(
        &mut self,
        from: u64,
        max_bytes: usize,
        batch: &mut Batch,
    ) -> Result<(), SpoolReadError> {
        batch.reset(from);
        let io_error = |source| SpoolReadError::Io { position: from, source };
        self.seek_segment(from)?;
        // Two rounds at most: the segment's end may be the next one's beginning.
        for _ in 0..2 {
            let Some(segment) = &self.open else { return Ok(()) };
            let offset = from - segment.start;
            let mut wanted = max_bytes.max(HEADER_LEN);
            loop {
                fill(&segment.file, offset, wanted, &mut batch.buffer).map_err(io_error)?;
                let needed = parse_all(batch);
                if batch.heads.is_empty()
                    && let Stop::Torn { needed } = needed
                    && needed > wanted
                {
                    // One record larger than was asked for: it is read whole, or not at all yet.
                    wanted = needed;
                    continue;
                }
                if let Stop::Corrupt = needed
                    && batch.heads.is_empty()
                {
                    return Err(SpoolReadError::Corrupt { position: from });
                }
                break;
            }
            if !batch.heads.is_empty() {
                return Ok(());
            }
            let is_torn = !batch.buffer.is_empty();
            if !self.advance(from, is_torn)? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The end of the last segment as the file system has it; a torn last record counts.
    pub fn end(&self) -> io::Result<u64> {
        let Some(&last) = super::segment_starts(&self.folder)?.last() else {
            return Ok(0);
        };
        Ok(last + std::fs::metadata(self.folder.join(super::segment_name(last)))?.len())
    }

    /// Makes `self.open` the segment that holds `from`.
    fn seek_segment(&mut self, from: u64) -> Result<(), SpoolReadError> {
        let io_error = |source| SpoolReadError::Io { position: from, source };
        if let Some(segment) = &self.open
            && segment.start <= from
            && segment.file.metadata().map_err(io_error)?.len() >= from - segment.start
        {
            return self.check_not_deleted(from);
        }
        self.open = None;
        let starts = super::segment_starts(&self.folder).map_err(io_error)?;
        let Some(&first) = starts.first() else {
            return if from == 0 { Ok(()) } else { Err(SpoolReadError::Ahead { end: 0 }) };
        };
        let Some(&start) = starts.iter().rev().find(|&&start| start <= from) else {
            return Err(SpoolReadError::Gone { start: first });
        };
        let file = match File::open(self.folder.join(super::segment_name(start))) {
            Ok(file) => file,
            // Deleted between listing and opening: it was committed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SpoolReadError::Gone { start: starts.get(1).copied().unwrap_or(first) });
            }
            Err(error) => return Err(io_error(error)),
        };
        let length = file.metadata().map_err(io_error)?.len();
        if from - start > length {
            return Err(SpoolReadError::Ahead { end: start + length });
        }
        self.open = Some(OpenSegment { start, file });
        Ok(())
    }

    /// An open descriptor would go on reading a deleted segment, and make an answer depend on luck.
    fn check_not_deleted(&mut self, from: u64) -> Result<(), SpoolReadError> {
        use std::os::unix::fs::MetadataExt;
        let Some(segment) = &self.open else { return Ok(()) };
        let links =
            segment.file.metadata().map_err(|source| SpoolReadError::Io { position: from, source })?.nlink();
        if links == 0 {
            self.open = None;
            return self.seek_segment(from);
        }
        Ok(())
    }

    /// Goes on to the segment that begins at `from`, if there is one. A torn record that another segment
    /// follows is damage: a writer begins a segment only when the one before is whole.
    fn advance(&mut self, from: u64, is_torn: bool) -> Result<bool, SpoolReadError> {
        let io_error = |source| SpoolReadError::Io { position: from, source };
        let Some(current) = self.open.as_ref().map(|segment| segment.start) else {
            return Ok(false);
        };
        if is_torn {
            let later = super::segment_starts(&self.folder).map_err(io_error)?.last().copied();
            if later.is_some_and(|start| start > current) && self.is_still_torn(from)? {
                return Err(SpoolReadError::Corrupt { position: from });
            }
            return Ok(false);
        }
        if from == current {
            return Ok(false);
        }
        match File::open(self.folder.join(super::segment_name(from))) {
            Ok(file) => {
                self.open = Some(OpenSegment { start: from, file });
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error(error)),
        }
    }

    /// Reads the torn record once more: its rest may have been appended, and the next segment begun, between the
    /// first read and the listing.
    fn is_still_torn(&self, from: u64) -> Result<bool, SpoolReadError> {
        let io_error = |source| SpoolReadError::Io { position: from, source };
        let Some(segment) = &self.open else {
            return Ok(false);
        };
        let mut bytes = Vec::new();
        let mut wanted = HEADER_LEN;
        loop {
            fill(&segment.file, from - segment.start, wanted, &mut bytes).map_err(io_error)?;
            match parse_record(&bytes) {
                Parse::Torn { needed } if needed > wanted => wanted = needed,
                Parse::Torn { .. } | Parse::Corrupt => return Ok(true),
                Parse::Record(_) => return Ok(false),
            }
        }
    }
}

enum Stop {
    End,
    Torn { needed: usize },
    Corrupt,
}

fn parse_all(batch: &mut Batch) -> Stop {
    batch.heads.clear();
    let mut at = 0;
    while let Some(rest) = batch.buffer.get(at..).filter(|rest| !rest.is_empty()) {
        match parse_record(rest) {
            Parse::Record(record) => {
                let end = at + HEADER_LEN + record.payload_len;
                batch.heads.push(Head {
                    kind: record.kind,
                    connection: record.connection,
                    at_ms: record.at_ms,
                    begin: at,
                    end,
                });
                at = end;
            }
            Parse::Torn { needed } => return Stop::Torn { needed },
            Parse::Corrupt => return Stop::Corrupt,
        }
    }
    Stop::End
}

/// Makes `buffer` the file's bytes from `offset` on, as many of `wanted` as there are.
fn fill(file: &File, offset: u64, wanted: usize, buffer: &mut Vec<u8>) -> io::Result<()> {
    let available = file.metadata()?.len().saturating_sub(offset);
    let target = usize::try_from(available).unwrap_or(usize::MAX).min(wanted);
    let mut have = buffer.len().min(target);
    buffer.resize(target, 0);
    while let Some(rest) = buffer.get_mut(have..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + have as u64) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer.truncate(have);
    Ok(())
}
