//! The high-water mark: a tiny file that remembers the newest commit number outside the database.
//!
//! A database whose own number is lower than the mark was rewound: somebody restored a backup, or the disk had
//! acknowledged a sync that it did not perform. Then every session that was not at rest needs a new epoch before it
//! is served (clients may have seen what is gone).
//!
//! The mark is written after the commit and before its acknowledgement, and is *not* synced. When the process dies
//! the system still has it; when the machine dies the mark may be older than the database, which only means that
//! this one check says nothing. A mark that is *newer* than a synced database cannot come from losing writes, so
//! the check never raises a false alarm, and a second sync per commit would buy nothing but half the speed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// Decimal digits and a line feed: fixed width, so that a write never changes the length and is always within one
/// sector.
const WIDTH: usize = 21;

/// What stood in the mark's file when the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// No file: a new store, or the mark was lost. Nothing can be said about a rewind.
    Absent,
    /// A file that holds no mark. Nothing can be said about a rewind.
    Unreadable,
    At(u64),
}

/// The database is older than what was acknowledged from it. It is reported at every opening until a write with
/// [`crate::WriteOp::AcknowledgeRewind`] is committed; put that in the transaction that starts the new epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewound {
    /// The commit number that was acknowledged.
    pub mark: u64,
    /// The commit number found in the database.
    pub found: u64,
}

#[derive(Debug)]
pub(super) struct HighWater {
    file: File,
    mark: u64,
}

impl HighWater {
    pub(super) fn open(path: &Path) -> io::Result<(Self, Mark)> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        // One byte more than a mark has, to see that the file ends there.
        let mut text = Vec::with_capacity(WIDTH + 1);
        file.by_ref().take(WIDTH as u64 + 1).read_to_end(&mut text)?;
        let found =
            if text.is_empty() { Mark::Absent } else { parse(&text).map_or(Mark::Unreadable, Mark::At) };
        if found == Mark::Unreadable {
            file.set_len(0)?;
        }
        let mark = if let Mark::At(mark) = found { mark } else { 0 };
        Ok((Self { file, mark }, found))
    }

    /// Moves the mark up; never down, so that an unacknowledged rewind stays visible.
    pub(super) fn raise(&mut self, commit: u64) -> io::Result<()> {
        if commit > self.mark {
            self.file.write_all_at(format!("{commit:020}\n").as_bytes(), 0)?;
            self.mark = commit;
        }
        Ok(())
    }
}

/// Reads the mark without making the file.
pub(super) fn look(path: &Path) -> io::Result<Mark> {
    match std::fs::read(path) {
        Ok(text) if text.is_empty() => Ok(Mark::Absent),
        Ok(text) => Ok(parse(&text).map_or(Mark::Unreadable, Mark::At)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Mark::Absent),
        Err(error) => Err(error),
    }
}

fn parse(text: &[u8]) -> Option<u64> {
    let digits = text.strip_suffix(b"\n").filter(|digits| digits.len() == WIDTH - 1)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_read_back_and_never_goes_down() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let (mut water, found) = HighWater::open(&path).unwrap();
        assert_eq!(found, Mark::Absent);
        water.raise(7).unwrap();
        water.raise(3).unwrap();
        assert_eq!(look(&path).unwrap(), Mark::At(7));
        let (mut again, found) = HighWater::open(&path).unwrap();
        assert_eq!(found, Mark::At(7));
        again.raise(5).unwrap();
        assert_eq!(look(&path).unwrap(), Mark::At(7));
    }

    #[test]
    fn what_is_no_mark_is_unreadable_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        for text in ["garbage", "00000000000000000001", "000000000000000000001\n", "-0000000000000000001\n"] {
            std::fs::write(&path, text).unwrap();
            let (mut water, found) = HighWater::open(&path).unwrap();
            assert_eq!(found, Mark::Unreadable, "{text:?}");
            water.raise(9).unwrap();
            assert_eq!(look(&path).unwrap(), Mark::At(9));
        }
    }
}
