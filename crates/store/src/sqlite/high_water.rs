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

/// Two numbers of 20 digits, a space between them and a line feed behind: fixed width, so that a write never changes
/// the length and is always within one sector.
const WIDTH: usize = 2 * DIGITS + 2;
/// Digits of a number.
const DIGITS: usize = 20;

/// What stood in the mark's file when the store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// No file: a new store, or the mark was lost. Nothing can be said about a rewind.
    Absent,
    /// A file that holds no mark. Nothing can be said about a rewind.
    Unreadable,
    At {
        commit: u64,
        /// The newest position of the host feed.
        feed: u64,
    },
}

/// The database is older than what was acknowledged from it. It is reported at every opening until a write with
/// [`crate::WriteOp::AcknowledgeRewind`] is committed, which has to come before anything else is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewound {
    /// The commit number that was acknowledged.
    pub mark: u64,
    /// The position of the host feed that was acknowledged.
    pub feed: u64,
    /// The commit number found in the database.
    pub found: u64,
}

#[derive(Debug)]
pub(super) struct HighWater {
    file: File,
    mark: u64,
    feed: u64,
}

impl HighWater {
    pub(super) fn open(path: &Path) -> io::Result<(Self, Mark)> {
        let mut file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        // One byte more than a mark has, to see that the file ends there.
        let mut text = Vec::with_capacity(WIDTH + 1);
        file.by_ref().take(WIDTH as u64 + 1).read_to_end(&mut text)?;
        let found = if text.is_empty() { Mark::Absent } else { parse(&text) };
        if found == Mark::Unreadable {
            file.set_len(0)?;
        }
        let (mark, feed) = if let Mark::At { commit, feed } = found { (commit, feed) } else { (0, 0) };
        Ok((Self { file, mark, feed }, found))
    }

    /// Moves the mark up; never down, so that an unacknowledged rewind stays visible.
    pub(super) fn raise(&mut self, commit: u64, feed: u64) -> io::Result<()> {
        if commit > self.mark {
            let feed = feed.max(self.feed);
            self.file.write_all_at(format!("{commit:020} {feed:020}\n").as_bytes(), 0)?;
            (self.mark, self.feed) = (commit, feed);
        }
        Ok(())
    }
}

impl HighWater {
    /// Makes the mark outlive a loss of power.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Reads the mark without making the file.
pub(super) fn look(path: &Path) -> io::Result<Mark> {
    match std::fs::read(path) {
        Ok(text) if text.is_empty() => Ok(Mark::Absent),
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Mark::Absent),
        Err(error) => Err(error),
    }
}

fn parse(text: &[u8]) -> Mark {
    let numbers = || {
        let (commit, feed) = std::str::from_utf8(text).ok()?.strip_suffix('\n')?.split_once(' ')?;
        let number = |digits: &str| {
            let whole = digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_digit());
            if whole { digits.parse().ok() } else { None }
        };
        Some(Mark::At { commit: number(commit)?, feed: number(feed)? })
    };
    numbers().unwrap_or(Mark::Unreadable)
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
        let at = |commit, feed| Mark::At { commit, feed };
        water.raise(7, 2).unwrap();
        water.raise(3, 9).unwrap();
        assert_eq!(look(&path).unwrap(), at(7, 2));
        let (mut again, found) = HighWater::open(&path).unwrap();
        assert_eq!(found, at(7, 2));
        again.raise(5, 9).unwrap();
        assert_eq!(look(&path).unwrap(), at(7, 2));
        again.raise(8, 1).unwrap();
        assert_eq!(look(&path).unwrap(), at(8, 2));
    }

    #[test]
    fn what_is_no_mark_is_unreadable_and_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mark");
        let one = "00000000000000000001";
        for text in [
            "garbage".to_owned(),
            one.to_owned(),
            format!("{one}\n"),
            format!("{one} {one}"),
            format!("0{one} {one}\n"),
            format!("-{} {one}\n", &one[1..]),
        ] {
            std::fs::write(&path, &text).unwrap();
            let (mut water, found) = HighWater::open(&path).unwrap();
            assert_eq!(found, Mark::Unreadable, "{text:?}");
            water.raise(9, 4).unwrap();
            assert_eq!(look(&path).unwrap(), Mark::At { commit: 9, feed: 4 });
        }
    }
}
