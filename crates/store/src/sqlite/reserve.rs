//! Space that belongs to the store before the disk is full, and is given up on the first full disk: what is
//! waiting then (a stop, an exit record, the end of a turn) can still be written.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Default size of the reserve: some thousand commands, and the WAL's own growth.
pub const RESERVE_BYTES: u64 = 4 * 1024 * 1024;
/// Free space below which an unspecific I/O error is taken for a full disk (SQLite reports some of them so, for
/// example when its shared-memory file cannot grow).
const SHORT_BYTES: u64 = 256 * 1024;
/// When a store that was just opened makes its first reserve: a starting host has more urgent commits.
const FIRST_TRY: Duration = Duration::from_secs(1);
/// Bytes written at once while the reserve is made.
const BLOCK: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
    /// 0: no reserve is wanted.
    bytes: u64,
    retry: Duration,
    present: bool,
    next_try: Option<Instant>,
}

impl Reserve {
    /// Looks whether the reserve of an earlier life is there; makes none (that takes a sync, and opening is quick).
    pub(super) fn find(path: PathBuf, bytes: u64, retry: Duration) -> Self {
        let present = fs::metadata(&path).is_ok_and(|found| found.is_file() && found.len() >= bytes);
        let next_try = (!present && bytes > 0).then(|| Instant::now() + retry.min(FIRST_TRY));
        Self { path, bytes, retry, present, next_try }
    }

    /// When [`Reserve::restore`] is due; `None` while the reserve is there.
    pub(super) fn next_try(&self) -> Option<Instant> {
        self.next_try
    }

    /// Gives the space back to the disk. False when there was none to give.
    pub(super) fn give_up(&mut self) -> io::Result<bool> {
        if !self.present {
            return Ok(false);
        }
        fs::remove_file(&self.path)?;
        self.present = false;
        self.next_try = Some(Instant::now() + self.retry);
        Ok(true)
    }

    /// Makes the reserve again if the disk has twice its size: it must not take the last space from those it is
    /// meant for. True when it is there afterwards.
    pub(super) fn restore(&mut self) -> bool {
        match self.make() {
            Ok(true) => {
                self.present = true;
                self.next_try = None;
            }
            Ok(false) => self.next_try = Some(Instant::now() + self.retry),
            Err(error) => {
                tracing::warn!(path = %self.path.display(), %error, "cannot reserve space for a full disk");
                self.next_try = Some(Instant::now() + self.retry);
            }
        }
        self.present
    }

    /// True when the file system has next to nothing left.
    pub(super) fn disk_is_short(&self) -> bool {
        free_bytes(&self.path).is_ok_and(|free| free < SHORT_BYTES)
    }

    fn make(&self) -> io::Result<bool> {
        if free_bytes(&self.path)? < self.bytes.saturating_mul(2) {
            return Ok(false);
        }
        let unfinished = self.path.with_extension("reserve-unfinished");
        let made = self.fill(&unfinished).and_then(|()| fs::rename(&unfinished, &self.path));
        if made.is_err() {
            // What is left of it would occupy the space that is missing; the first error is the one to tell.
            let _ = fs::remove_file(&unfinished);
        }
        made.map(|()| true)
    }

    fn fill(&self, path: &Path) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        // Bytes that no file system stores as a hole or as one shared block: each block differs.
        let mut block = vec![0_u8; BLOCK];
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut left = self.bytes;
        while left > 0 {
            for word in block.chunks_exact_mut(8) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            let part = usize::try_from(left).unwrap_or(BLOCK).min(BLOCK);
            file.write_all(&block[..part])?;
            left -= part as u64;
        }
        file.sync_all()
    }
}

/// What an unprivileged writer may still use on the file system of `path`.
fn free_bytes(path: &Path) -> io::Result<u64> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let found = rustix::fs::statvfs(folder)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}
