//! The marks and their file: one fixed-size block that is overwritten in place, so that recording an input needs no
//! space on a full disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use thiserror::Error;

use super::EARLY_LIMIT;
use crate::folder::{KeeperFolder, names};
use crate::identity::boot_id;

const MAGIC: [u8; 8] = *b"MSINBOX1";
const BOOT_ID_LEN: usize = 64;
const LIST_LEN: usize = 8 + EARLY_LIMIT * 8;
/// magic, boot id, three marks, two lists, checksum.
const BLOCK_LEN: usize = 8 + BOOT_ID_LEN + 24 + 2 * LIST_LEN + 4;
/// A reader may meet a write in progress; it is over in microseconds.
const READ_ATTEMPTS: usize = 50;

/// How far the numbered inputs of one keeper have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InboxState {
    /// Every number up to this one was taken over.
    pub recorded: u64,
    /// Every number up to this one was begun, or refused for good.
    pub started: u64,
    /// Every number up to this one is settled: written in full, or refused by a record in the spool.
    pub written: u64,
    /// Begun ahead of `started`, ascending.
    pub early_started: Vec<u64>,
    /// Settled ahead of `written`, ascending.
    pub early_written: Vec<u64>,
    /// False when the machine was started again since: the marks may then be older than the truth.
    pub is_of_this_boot: bool,
}

/// What is certain about one input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputFate {
    /// Not one byte was given to the agent.
    NeverBegun,
    /// A part, or all, may have been given to the agent.
    Doubtful,
    /// Written in full, unless an `InputRefused` record names it.
    Settled,
}

#[derive(Debug, Error)]
pub enum InboxStateError {
    #[error("the inbox's state could not be read")]
    Read(#[source] io::Error),
    #[error("the inbox's state is damaged")]
    Damaged,
}

impl InboxState {
    pub fn fate(&self, n: u64) -> InputFate {
        if n <= self.written || self.early_written.contains(&n) {
            InputFate::Settled
        } else if !self.is_of_this_boot || n <= self.started || self.early_started.contains(&n) {
            InputFate::Doubtful
        } else {
            InputFate::NeverBegun
        }
    }

    fn to_block(&self, boot: &[u8; BOOT_ID_LEN]) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_LEN);
        block.extend_from_slice(&MAGIC);
        block.extend_from_slice(boot);
        for mark in [self.recorded, self.started, self.written] {
            block.extend_from_slice(&mark.to_le_bytes());
        }
        for list in [&self.early_started, &self.early_written] {
            let count = list.len().min(EARLY_LIMIT);
            block.extend_from_slice(&(count as u64).to_le_bytes());
            for index in 0..EARLY_LIMIT {
                block.extend_from_slice(&list.get(index).copied().unwrap_or(0).to_le_bytes());
            }
        }
        block.extend_from_slice(&crc32fast::hash(&block).to_le_bytes());
        block
    }

    fn from_block(block: &[u8], boot_now: &[u8; BOOT_ID_LEN]) -> Option<Self> {
        let (covered, checksum) = block.split_last_chunk::<4>()?;
        if block.len() != BLOCK_LEN || crc32fast::hash(covered) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let rest = covered.strip_prefix(&MAGIC)?;
        let (boot, rest) = rest.split_first_chunk::<BOOT_ID_LEN>()?;
        let mut numbers =
            rest.chunks_exact(8).filter_map(|chunk| chunk.try_into().ok().map(u64::from_le_bytes));
        let (recorded, started, written) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let mut read_list = || {
            let count = usize::try_from(numbers.next()?).ok()?;
            let mut list: Vec<u64> = numbers.by_ref().take(EARLY_LIMIT).collect();
            list.truncate(count);
            Some(list)
        };
        let (early_started, early_written) = (read_list()?, read_list()?);
        let is_of_this_boot = boot == boot_now;
        Some(Self { recorded, started, written, early_started, early_written, is_of_this_boot })
    }
}

/// Padded with zeros to a fixed length.
fn padded_boot_id() -> io::Result<[u8; BOOT_ID_LEN]> {
    let text = boot_id()?;
    let mut padded = [0; BOOT_ID_LEN];
    for (to, from) in padded.iter_mut().zip(text.bytes()) {
        *to = from;
    }
    Ok(padded)
}

/// The writer's hold on the file.
#[derive(Debug)]
pub(super) struct StateFile {
    file: File,
    boot: [u8; BOOT_ID_LEN],
}

impl StateFile {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let created = Self { file, boot: padded_boot_id()? };
        created.write(&InboxState::default())?;
        Ok(created)
    }

    pub(super) fn write(&self, state: &InboxState) -> io::Result<()> {
        self.file.write_all_at(&state.to_block(&self.boot), 0)
    }
}

impl KeeperFolder {
    /// The marks as last written; `None` when the keeper never came that far.
    pub fn inbox_state(&self) -> Result<Option<InboxState>, InboxStateError> {
        let boot = padded_boot_id().map_err(InboxStateError::Read)?;
        for _ in 0..READ_ATTEMPTS {
            match std::fs::read(self.at(names::INBOX)) {
                Ok(block) => {
                    if let Some(state) = InboxState::from_block(&block, &boot) {
                        return Ok(Some(state));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(InboxStateError::Read(error)),
            }
            std::thread::yield_now();
        }
        Err(InboxStateError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_block_comes_back_as_it_was() {
        let boot = [7; BOOT_ID_LEN];
        let state = InboxState {
            recorded: 9,
            started: 4,
            written: 3,
            early_started: vec![6, 8],
            early_written: vec![6],
            is_of_this_boot: true,
        };
        let block = state.to_block(&boot);
        assert_eq!(block.len(), BLOCK_LEN);
        assert_eq!(InboxState::from_block(&block, &boot), Some(state.clone()));
        let elsewhere = InboxState::from_block(&block, &[8; BOOT_ID_LEN]).expect("parses");
        assert!(!elsewhere.is_of_this_boot);
        let fates = |state: &InboxState| [3, 4, 5, 6, 8, 9, 10].map(|n| state.fate(n));
        use InputFate::{Doubtful, NeverBegun, Settled};
        assert_eq!(fates(&state), [Settled, Doubtful, NeverBegun, Settled, Doubtful, NeverBegun, NeverBegun]);
        assert_eq!(
            fates(&elsewhere),
            [Settled, Doubtful, Doubtful, Settled, Doubtful, Doubtful, Doubtful],
            "after a loss of power the marks may be too old to prove that nothing was begun"
        );
    }

    #[test]
    fn a_damaged_block_is_refused() {
        let boot = [1; BOOT_ID_LEN];
        let mut block = InboxState::default().to_block(&boot);
        block[90] ^= 1;
        assert_eq!(InboxState::from_block(&block, &boot), None);
        assert_eq!(InboxState::from_block(&block[..50], &boot), None);
    }

    /// The block is overwritten in place and never synced: a disk may keep any of the sectors of any of its versions.
    #[test]
    fn a_block_of_which_the_disk_kept_a_part_is_an_older_one_or_damaged() {
        const SECTOR: usize = 128;
        let boot = [1; BOOT_ID_LEN];
        let version = |n: u64| {
            let early: Vec<u64> = (n + 2..n + 30).collect();
            InboxState {
                recorded: n + 30,
                started: n,
                written: n - 1,
                early_started: early.clone(),
                early_written: early,
                is_of_this_boot: true,
            }
        };
        let blocks: Vec<Vec<u8>> = (1..6).map(|n| version(n).to_block(&boot)).collect();
        let mut damaged = 0;
        for first in 0..blocks.len() {
            for second in 0..blocks.len() {
                for kept in 0..1_u32 << BLOCK_LEN.div_ceil(SECTOR) {
                    let mut disk = blocks[first].clone();
                    for (sector, bytes) in disk.chunks_mut(SECTOR).enumerate() {
                        if kept >> sector & 1 == 1 {
                            let from = sector * SECTOR;
                            bytes.copy_from_slice(&blocks[second][from..from + bytes.len()]);
                        }
                    }
                    match InboxState::from_block(&disk, &boot) {
                        Some(state) => assert!(
                            state == version(first as u64 + 1) || state == version(second as u64 + 1),
                            "a state that never was: {state:?}"
                        ),
                        None => damaged += 1,
                    }
                }
            }
        }
        assert!(damaged > 100, "{damaged}");
    }
}
