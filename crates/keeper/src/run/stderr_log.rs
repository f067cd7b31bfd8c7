//! The agent's standard error, in a log of two files of bounded size.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::redact::Redactor;

/// At this size the log becomes the old log, and a new one begins: together at most twice this, in bytes.
const ROTATE_AT: u64 = 256 * 1024;
/// A line is kept back up to this; of a longer one the parts are looked at one by one.
const MAX_UNFINISHED: usize = 8 * 1024;
/// Bytes of the log's end that the exit record carries.
pub(super) const TAIL: usize = 8 * 1024;

#[derive(Debug)]
pub(super) struct StderrLog {
    file: Option<File>,
    length: u64,
    redactor: Redactor,
    /// The line that is not complete yet: a credential may be cut between two reads.
    unfinished: Vec<u8>,
}

impl StderrLog {
    pub(super) fn new() -> Self {
        Self { file: None, length: 0, redactor: Redactor::default(), unfinished: Vec::new() }
    }

    /// Appends to the log, without what looks like a credential. The line that is not complete waits for its rest, or for
    /// [`flush`](Self::flush).
    pub(super) fn append(&mut self, folder: &Path, bytes: &[u8]) {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let (lines, rest) = bytes.split_at(whole);
        if !lines.is_empty() {
            let mut complete = std::mem::take(&mut self.unfinished);
            complete.extend_from_slice(lines);
            self.write_redacted(folder, &complete);
        }
        self.unfinished.extend_from_slice(rest);
        if self.unfinished.len() > MAX_UNFINISHED {
            self.flush(folder);
        }
    }

    /// Writes the line that is not complete.
    pub(super) fn flush(&mut self, folder: &Path) {
        let rest = std::mem::take(&mut self.unfinished);
        if !rest.is_empty() {
            self.write_redacted(folder, &rest);
        }
    }

    fn write_redacted(&mut self, folder: &Path, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes);
        let mut redacted = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            redacted.push_str(&self.redactor.line(line));
        }
        self.write(folder, redacted.as_bytes());
    }

    /// Appends to the log in the current folder. What cannot be written (a full disk) is dropped: an agent must not
    /// stop because nobody can keep its complaints.
    fn write(&mut self, folder: &Path, bytes: &[u8]) {
        use crate::folder::names::{STDERR, STDERR_OLD};
        if self.length >= ROTATE_AT {
            self.file = None;
            let _ = std::fs::rename(folder.join(STDERR), folder.join(STDERR_OLD));
        }
        if self.file.is_none() {
            let opened =
                OpenOptions::new().append(true).create(true).mode(0o600).open(folder.join(STDERR)).ok();
            self.length = opened.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |meta| meta.len());
            self.file = opened;
        }
        if let Some(file) = &mut self.file
            && file.write_all(bytes).is_ok()
        {
            self.length += bytes.len() as u64;
        }
    }
}

/// The last [`TAIL`] bytes of the log as text, over both files.
pub(super) fn tail(folder: &Path) -> String {
    use crate::folder::names::{STDERR, STDERR_OLD};
    let mut bytes = last_bytes(&folder.join(STDERR), TAIL).unwrap_or_default();
    if bytes.len() < TAIL
        && let Ok(mut older) = last_bytes(&folder.join(STDERR_OLD), TAIL - bytes.len())
    {
        older.append(&mut bytes);
        bytes = older;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn last_bytes(path: &Path, count: usize) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(count as u64)))?;
    let mut bytes = Vec::new();
    file.take(count as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::names::{STDERR, STDERR_OLD};

    #[test]
    fn the_log_is_bounded_and_its_tail_spans_both_files() {
        let folder = tempfile::tempdir().expect("temp folder");
        let mut log = StderrLog::new();
        let line = [b'x'; 1023];
        for _ in 0..(3 * ROTATE_AT / 1024) {
            log.append(folder.path(), &line);
            log.append(folder.path(), b"\n");
        }
        log.append(folder.path(), b"last words");
        log.flush(folder.path());
        let size = |name| std::fs::metadata(folder.path().join(name)).map(|meta| meta.len()).unwrap_or(0);
        assert!(size(STDERR_OLD) > 0);
        assert!(size(STDERR) + size(STDERR_OLD) <= 2 * (ROTATE_AT + 1024));
        let tail = tail(folder.path());
        assert_eq!(tail.len(), TAIL);
        assert!(tail.ends_with("x\nlast words"));
    }

    #[test]
    fn a_credential_that_is_cut_between_reads_is_left_out_too() {
        let folder = tempfile::tempdir().expect("temp folder");
        let mut log = StderrLog::new();
        for piece in ["refused: sk-a1B2c3", "D4e5F6g7H8", "i9J0 (401)\nand the rea", "son"] {
            log.append(folder.path(), piece.as_bytes());
        }
        log.flush(folder.path());
        assert_eq!(tail(folder.path()), "refused: [redacted] (401)\nand the reason");
    }
}
