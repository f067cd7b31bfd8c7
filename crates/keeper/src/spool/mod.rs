//! The spool: one log of framed records, cut into segment files that are named by the position they start at.
//!
//! A *position* is a byte offset in the whole log, so it only grows and never names two things. Records are never
//! split over two segments. One process writes; any process may read.

#[cfg(test)]
mod power_loss;
mod reader;
mod writer;

pub use reader::{Batch, Record, SpoolReadError, SpoolReader};
pub(crate) use writer::SpoolWriter;

use std::io;
use std::path::Path;

/// Zero-padded, so that the order of names is the order of positions.
fn segment_name(start: u64) -> String {
    format!("{start:020}.log")
}

fn parse_segment_name(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".log")?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// Starts of all segments, in order.
fn segment_starts(folder: &Path) -> io::Result<Vec<u64>> {
    let mut starts = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        if let Some(start) = entry?.file_name().to_str().and_then(parse_segment_name) {
            starts.push(start);
        }
    }
    starts.sort_unstable();
    Ok(starts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::RecordKind;
    use std::io::Write;

    fn spool(segment_size: u64) -> (tempfile::TempDir, SpoolWriter, SpoolReader) {
        let folder = tempfile::tempdir().expect("temp folder");
        let writer = SpoolWriter::create(folder.path(), segment_size).expect("writer");
        let reader = SpoolReader::open(folder.path());
        (folder, writer, reader)
    }

    fn push(writer: &mut SpoolWriter, payload: &[u8]) {
        assert!(writer.push(RecordKind::Message, 7, 1, payload));
    }

    fn payloads(batch: &Batch) -> Vec<Vec<u8>> {
        batch.records().map(|record| record.payload.to_vec()).collect()
    }

    #[test]
    fn records_are_read_in_order_over_segments_with_their_positions() {
        let (folder, mut writer, mut reader) = spool(64);
        let mut expected = Vec::new();
        for number in 0..50_u32 {
            let payload = format!("record number {number}").into_bytes();
            push(&mut writer, &payload);
            writer.flush().expect("flush");
            expected.push(payload);
        }
        assert!(segment_starts(folder.path()).expect("starts").len() > 10);
        let mut position = 0;
        let mut seen = Vec::new();
        loop {
            let batch = reader.read(position, 100).expect("read");
            if batch.is_empty() {
                break;
            }
            let mut at = position;
            for record in batch.records() {
                assert_eq!(record.position, at);
                at = record.next;
            }
            assert_eq!(at, batch.next());
            seen.extend(payloads(&batch));
            position = batch.next();
        }
        assert_eq!(seen, expected);
        assert_eq!(position, writer.end());
    }

    #[test]
    fn a_record_larger_than_asked_for_is_still_read_whole() {
        let (_folder, mut writer, mut reader) = spool(1 << 20);
        let large = vec![b'x'; 300_000];
        push(&mut writer, &large);
        writer.flush().expect("flush");
        let batch = reader.read(0, 10).expect("read");
        assert_eq!(payloads(&batch), vec![large]);
    }

    #[test]
    fn a_torn_tail_is_the_end_and_becomes_a_record_when_it_is_complete() {
        let (folder, mut writer, mut reader) = spool(1 << 20);
        push(&mut writer, b"whole");
        writer.flush().expect("flush");
        let whole = writer.end();
        let mut framed = Vec::new();
        assert!(crate::record::append_record(&mut framed, RecordKind::Message, 7, 1, b"in two pieces"));
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(folder.path().join(segment_name(0)))
            .expect("segment");
        for cut in [4, 25] {
            file.set_len(whole).expect("back to the whole record");
            file.write_all(&framed[..cut]).expect("torn");
            let batch = reader.read(0, 1 << 16).expect("read");
            assert_eq!((payloads(&batch), batch.next()), (vec![b"whole".to_vec()], whole), "cut at {cut}");
            assert!(reader.read(whole, 1 << 16).expect("read").is_empty());
        }
        file.write_all(&framed[25..]).expect("the rest");
        assert_eq!(payloads(&reader.read(whole, 1 << 16).expect("read")), vec![b"in two pieces".to_vec()]);
    }

    #[test]
    fn a_damaged_record_is_a_typed_error_at_its_position_and_the_ones_before_it_are_read() {
        let (folder, mut writer, mut reader) = spool(1 << 20);
        push(&mut writer, b"first");
        writer.flush().expect("flush");
        let second = writer.end();
        push(&mut writer, b"second");
        push(&mut writer, b"third");
        writer.flush().expect("flush");
        let path = folder.path().join(segment_name(0));
        let mut bytes = std::fs::read(&path).expect("read");
        let at = usize::try_from(second).expect("small") + crate::record::HEADER_LEN;
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).expect("write");
        let batch = reader.read(0, 1 << 16).expect("the records before the damage");
        assert_eq!((payloads(&batch), batch.next()), (vec![b"first".to_vec()], second));
        match reader.read(second, 1 << 16) {
            Err(SpoolReadError::Corrupt { position }) => assert_eq!(position, second),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_torn_record_before_a_later_segment_is_corruption_not_the_end() {
        let (folder, mut writer, mut reader) = spool(10);
        push(&mut writer, b"first segment");
        writer.flush().expect("flush");
        push(&mut writer, b"second segment");
        writer.flush().expect("flush");
        let path = folder.path().join(segment_name(0));
        let length = std::fs::metadata(&path).expect("meta").len();
        std::fs::OpenOptions::new().write(true).open(path).expect("open").set_len(length - 1).expect("cut");
        assert!(matches!(reader.read(0, 1 << 16), Err(SpoolReadError::Corrupt { position: 0 })));
    }

    #[test]
    fn committed_segments_are_deleted_and_older_positions_are_gone() {
        let (folder, mut writer, mut reader) = spool(40);
        let mut ends = Vec::new();
        for _ in 0..6 {
            push(&mut writer, b"thirty bytes of payload here..");
            writer.flush().expect("flush");
            ends.push(writer.end());
        }
        assert_eq!(writer.start(), 0);
        writer.commit(ends[2]);
        assert_eq!(writer.start(), ends[2]);
        assert_eq!(segment_starts(folder.path()).expect("starts").first(), Some(&ends[2]));
        assert!(matches!(reader.read(0, 100), Err(SpoolReadError::Gone { start }) if start == ends[2]));
        assert_eq!(reader.read(ends[2], 1 << 16).expect("read").next(), ends[3]);
        writer.commit(ends[1]);
        assert_eq!(writer.committed(), ends[2], "a commit never goes back");
        writer.commit(u64::MAX);
        assert_eq!(writer.committed(), writer.end(), "nor beyond what exists");
        assert!(matches!(reader.read(writer.end() + 1, 100), Err(SpoolReadError::Ahead { .. })));
    }

    #[test]
    fn segment_names_sort_as_numbers() {
        assert_eq!(parse_segment_name(&segment_name(u64::MAX)), Some(u64::MAX));
        assert!(segment_name(9) < segment_name(10));
        assert_eq!(parse_segment_name("12.log"), None);
        assert_eq!(parse_segment_name(".tmp"), None);
    }
}
