//! The agent's standard error, in a log of two files of bounded size.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// At this size the log becomes the old log, and a new one begins: together at most twice this, in bytes.
const ROTATE_AT: u64 = 256 * 1024;
/// Bytes of the log's end that the exit record carries.
pub(super) const TAIL: usize = 8 * 1024;

#[derive(Debug)]
pub(super) struct StderrLog {
    file: Option<File>,
    length: u64,
}

impl StderrLog {
    pub(super) fn new() -> Self {
        Self { file: None, length: 0 }
    }

    /// Appends to the log in the current folder. What cannot be written (a full disk) is dropped: an agent must not
    /// stop because nobody can keep its complaints.
    pub(super) fn append(&mut self, folder: &Path, bytes: &[u8]) {
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
        let size = |name| std::fs::metadata(folder.path().join(name)).map(|meta| meta.len()).unwrap_or(0);
        assert!(size(STDERR_OLD) > 0);
        assert!(size(STDERR) + size(STDERR_OLD) <= 2 * (ROTATE_AT + 1024));
        let tail = tail(folder.path());
        assert_eq!(tail.len(), TAIL);
        assert!(tail.ends_with("x\nlast words"));
    }
}
