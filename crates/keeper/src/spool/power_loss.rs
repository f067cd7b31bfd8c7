//! The machine loses power. Nothing of the spool was ever synced, so the disk may have kept any of its sectors: a reader
//! gets what the agent said up to the first place where something is missing, never anything behind it, and never anything
//! that the agent did not say.

use std::fs;
use std::path::Path;

use super::{SpoolReadError, SpoolReader, SpoolWriter};
use crate::record::RecordKind;

/// What a disk writes at once or not at all.
const SECTOR: usize = 512;
const RECORDS: u64 = 150;
const DISKS: u64 = 250;

struct Choice(u64);

impl Choice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ (word >> 31)) % end
    }
}

/// Every record of the log, with its position, and how reading ended.
fn read_all(folder: &Path, from: u64) -> (Vec<(u64, Vec<u8>)>, Option<SpoolReadError>) {
    let mut reader = SpoolReader::open(folder);
    let (mut at, mut records) = (from, Vec::new());
    loop {
        match reader.read(at, 4_000) {
            Ok(batch) if batch.is_empty() => return (records, None),
            Ok(batch) => {
                records.extend(batch.records().map(|record| (record.position, record.payload.to_vec())));
                assert!(batch.next() > at, "reading does not go on");
                at = batch.next();
            }
            Err(error) => return (records, Some(error)),
        }
    }
}

/// Changes what the disk has of one segment. True when something is missing.
fn lose_some(path: &Path, choice: &mut Choice) -> bool {
    let whole = fs::read(path).expect("a segment");
    let mut kept = whole.clone();
    match choice.below(8) {
        0 => {
            fs::remove_file(path).expect("removed");
            return true;
        }
        1 => kept.truncate(usize::try_from(choice.below(whole.len() as u64 + 1)).expect("small")),
        2 => kept.clear(),
        3 | 4 => {}
        _ => {
            for sector in kept.chunks_mut(SECTOR) {
                if choice.below(12) == 0 {
                    sector.fill(0);
                }
            }
        }
    }
    fs::write(path, &kept).expect("written");
    kept != whole
}

#[test]
fn whatever_the_disk_kept_a_reader_gets_a_beginning_of_what_was_said() {
    let original = tempfile::tempdir().expect("temp folder");
    let mut choice = Choice(3);
    let mut writer = SpoolWriter::create(original.path(), 6_000).expect("writer");
    for n in 0..RECORDS {
        let size = usize::try_from(choice.below(900)).expect("small");
        let payload = [format!("{n}:").into_bytes(), vec![b'z'; size]].concat();
        assert!(writer.push(RecordKind::Message, 7, 1, &payload));
        if n % 3 == 0 {
            writer.flush().expect("flushed");
        }
    }
    writer.flush().expect("flushed");
    let (said, end) = read_all(original.path(), 0);
    assert!(said.len() as u64 == RECORDS && end.is_none());

    let (mut cut, mut reported) = (0, 0);
    for _ in 0..DISKS {
        let crashed = tempfile::tempdir().expect("temp folder");
        let mut lost = false;
        for segment in fs::read_dir(original.path()).expect("a folder") {
            let segment = segment.expect("an entry");
            let copy = crashed.path().join(segment.file_name());
            fs::copy(segment.path(), &copy).expect("copied");
            if choice.below(3) == 0 {
                lost |= lose_some(&copy, &mut choice);
            }
        }
        // From the beginning, and from what a host had committed.
        let committed = usize::try_from(choice.below(said.len() as u64)).expect("small");
        for first in [0, committed] {
            let from = said[first].0;
            let (read, end) = read_all(crashed.path(), from);
            assert_eq!(read, said[first..first + read.len()], "from {from}: not what was said");
            cut += u32::from(first + read.len() < said.len());
            reported += u32::from(end.is_some());
            assert!(lost || (first + read.len() == said.len() && end.is_none()), "nothing was lost");
        }
    }
    // Else this shows little.
    assert!(cut > 100 && reported > 30, "{cut} cut short, {reported} reported");
}

/// The tail that was being written: it is cut, and what stands before it is whole. This is no damage.
#[test]
fn a_torn_tail_is_no_damage() {
    let folder = tempfile::tempdir().expect("temp folder");
    let mut writer = SpoolWriter::create(folder.path(), 1 << 20).expect("writer");
    for n in 0..9_u8 {
        assert!(writer.push(RecordKind::Message, 7, 1, &[n; 100]));
    }
    writer.flush().expect("flushed");
    let (said, _) = read_all(folder.path(), 0);
    let path = folder.path().join(super::segment_name(0));
    let whole = fs::read(&path).expect("a segment");
    for length in (0..whole.len()).rev() {
        fs::write(&path, &whole[..length]).expect("written");
        let (read, end) = read_all(folder.path(), 0);
        assert!(end.is_none(), "cut at {length}: {end:?}");
        assert_eq!(read, said[..read.len()]);
        assert_eq!(read.len(), length / (whole.len() / 9), "cut at {length}");
    }
}
