//! What host and keeper read from each other.

use mainstay_keeper::SpoolReader;
use mainstay_keeper::wire::{Decoder, Message, ToHost, ToKeeper};

/// A stream of any bytes, in pieces of any size, is cut into messages or refused; what was read can be written.
pub(crate) fn check(data: &[u8]) {
    let (piece, rest) = data.split_first().map_or((1, data), |(first, rest)| (usize::from(*first) + 1, rest));
    messages::<ToKeeper>(rest, piece);
    messages::<ToHost>(rest, piece);
    spool(rest);
}

fn messages<M: Message + PartialEq + std::fmt::Debug>(data: &[u8], piece: usize) {
    let all = read::<M>(data, data.len().max(1));
    assert_eq!(read::<M>(data, piece), all, "the size of the pieces matters");
    for message in all {
        let mut written = Vec::new();
        message.encode(&mut written);
        assert_eq!(read::<M>(&written, piece), [message], "what was read cannot be written");
    }
}

fn read<M: Message>(data: &[u8], piece: usize) -> Vec<M> {
    let mut decoder = Decoder::default();
    let mut messages = Vec::new();
    for piece in data.chunks(piece) {
        decoder.feed(piece);
        loop {
            match decoder.next_message::<M>() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                // The connection ends here.
                Err(_) => return messages,
            }
        }
    }
    messages
}

/// As a spool's only segment: reading ends, and goes forward only.
fn spool(data: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let segment = folder.path().join(format!("{:020}.log", 0));
    if std::fs::write(segment, data).is_err() {
        return;
    }
    let mut reader = SpoolReader::open(folder.path());
    let mut at = 0;
    while let Ok(batch) = reader.read(at, 256) {
        if batch.is_empty() {
            break;
        }
        for record in batch.records() {
            assert!(record.next > record.position && record.position >= at);
            assert!(record.next <= data.len() as u64, "a record that is not there");
            // An unknown form is that record's alone.
            let _control = record.control();
        }
        at = batch.next();
    }
}
