//! The framing of one spool record:
//!
//! ```text
//! length u32 | crc32 u32 | kind u8 | time i64 | connection u32 | payload (length bytes)
//! ```
//!
//! All numbers are little-endian; the time is Unix milliseconds; the checksum covers everything behind it. A record of
//! kind [`Message`](RecordKind::Message) carries the agent's bytes verbatim, all others carry JSON
//! ([`Control`]).

use serde::{Deserialize, Serialize};

use crate::manifest::ExitRecord;

/// Bytes before the payload.
pub const HEADER_LEN: usize = 21;
/// No record is longer than this; a longer length field is corruption.
pub const PAYLOAD_MAX: u32 = 1 << 30;
/// Bytes that are kept of a message that is over the record limit.
pub const OVERSIZE_HEAD: usize = 4096;
/// Bytes that are kept of an unterminated last line.
pub const FRAGMENT_HEAD: usize = 64 * 1024;

/// What a record is. Numbers are part of the file format; unknown ones are kept and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecordKind {
    Message,
    Connected,
    Disconnected,
    Fragment,
    Oversize,
    EndOfOutput,
    InputRefused,
    Exit,
    Unknown(u8),
}

impl RecordKind {
    pub const fn number(self) -> u8 {
        match self {
            Self::Message => 1,
            Self::Connected => 2,
            Self::Disconnected => 3,
            Self::Fragment => 4,
            Self::Oversize => 5,
            Self::EndOfOutput => 6,
            Self::InputRefused => 7,
            Self::Exit => 8,
            Self::Unknown(number) => number,
        }
    }

    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Message,
            2 => Self::Connected,
            3 => Self::Disconnected,
            4 => Self::Fragment,
            5 => Self::Oversize,
            6 => Self::EndOfOutput,
            7 => Self::InputRefused,
            8 => Self::Exit,
            other => Self::Unknown(other),
        }
    }
}

/// The payload of every record that is not a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "control", rename_all = "snake_case")]
pub enum Control {
    /// The record's connection number is open from here on.
    Connected,
    Disconnected {
        reason: DisconnectReason,
    },
    /// An unterminated piece at the end of the output.
    Fragment {
        length: u64,
        head: String,
    },
    /// A message over the record limit, dropped but for its head.
    Oversize {
        length: u64,
        head: String,
    },
    EndOfOutput,
    /// A numbered input that was taken over and will not be written (any more).
    InputRefused {
        n: u64,
        why: RefusedWhy,
    },
    Exit {
        record: Box<ExitRecord>,
    },
    /// Written by a newer keeper.
    #[serde(other)]
    Unknown,
}

/// Why a connection ended, or could not be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum DisconnectReason {
    /// The agent ended it in order.
    Closed {
        code: Option<u16>,
        text: String,
    },
    /// It ended without a word.
    Dropped,
    /// The agent broke the WebSocket protocol.
    Protocol {
        what: String,
    },
    Io {
        what: String,
    },
    /// The spool was full and this agent does not wait.
    SpoolLimit,
    /// No connection could be made before the deadline; the record's connection number is the one it would have had.
    ConnectDeadline {
        what: String,
    },
    /// The keeper ended it on an order.
    Ordered,
    /// The agent's process is gone.
    AgentExited,
    #[serde(other)]
    Unknown,
}

/// Why an input was not written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RefusedWhy {
    /// Made for another connection than the current one. Never written.
    WrongConnection { current: Option<u32> },
    /// Its connection ended before its first byte was written. Never written.
    ConnectionEnded,
    /// Its connection ended when a part was written: in doubt.
    Cut,
    /// A line transport cannot carry a payload with a line break. Never written.
    NotOneLine,
    /// Not taken over: the number is not the next one.
    Gap { expected: u64 },
    /// Not taken over: the inbox is full; send it again when others are written.
    InboxFull,
    /// Not taken over: its state could not be recorded.
    StateNotRecorded { what: String },
    /// Not taken over: the agent's input or the agent has ended.
    Ended,
    #[serde(other)]
    Unknown,
}

/// Appends one framed record to `buffer`.
///
/// A payload longer than [`PAYLOAD_MAX`] cannot be framed; the record limit of every keeper is far below it, so that
/// is reported as `false` and nothing is appended.
#[must_use]
pub(crate) fn append_record(
    buffer: &mut Vec<u8>,
    kind: RecordKind,
    at_ms: i64,
    connection: u32,
    payload: &[u8],
) -> bool {
    let Ok(length) = u32::try_from(payload.len()) else {
        return false;
    };
    if length > PAYLOAD_MAX {
        return false;
    }
    let mut covered = [0_u8; HEADER_LEN - 8];
    covered[0] = kind.number();
    covered[1..9].copy_from_slice(&at_ms.to_le_bytes());
    covered[9..13].copy_from_slice(&connection.to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&covered);
    hasher.update(payload);
    buffer.reserve(HEADER_LEN + payload.len());
    buffer.extend_from_slice(&length.to_le_bytes());
    buffer.extend_from_slice(&hasher.finalize().to_le_bytes());
    buffer.extend_from_slice(&covered);
    buffer.extend_from_slice(payload);
    true
}

/// One record as it stands in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParsedRecord {
    pub(crate) kind: RecordKind,
    pub(crate) at_ms: i64,
    pub(crate) connection: u32,
    pub(crate) payload_len: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parse {
    Record(ParsedRecord),
    /// The record goes on behind the buffer's end; `needed` bytes hold it whole (or its header, if that is torn).
    Torn {
        needed: usize,
    },
    Corrupt,
}

pub(crate) fn parse_record(bytes: &[u8]) -> Parse {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER_LEN>() else {
        return Parse::Torn { needed: HEADER_LEN };
    };
    let [l0, l1, l2, l3, c0, c1, c2, c3, covered @ ..] = header;
    let length = u32::from_le_bytes([*l0, *l1, *l2, *l3]);
    if length > PAYLOAD_MAX {
        return Parse::Corrupt;
    }
    let payload_len = length as usize;
    let Some(payload) = rest.get(..payload_len) else {
        return Parse::Torn { needed: HEADER_LEN + payload_len };
    };
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(covered);
    hasher.update(payload);
    if hasher.finalize() != u32::from_le_bytes([*c0, *c1, *c2, *c3]) {
        return Parse::Corrupt;
    }
    let [kind, time @ .., n0, n1, n2, n3] = covered;
    Parse::Record(ParsedRecord {
        kind: RecordKind::from_number(*kind),
        at_ms: i64::from_le_bytes(*time),
        connection: u32::from_le_bytes([*n0, *n1, *n2, *n3]),
        payload_len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_framed_is_parsed(
            kind in any::<u8>(), at in any::<i64>(), connection in any::<u32>(),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut buffer = Vec::new();
            prop_assert!(append_record(&mut buffer, RecordKind::from_number(kind), at, connection, &payload));
            let expected = ParsedRecord {
                kind: RecordKind::from_number(kind), at_ms: at, connection, payload_len: payload.len(),
            };
            prop_assert_eq!(parse_record(&buffer), Parse::Record(expected));
            for cut in 0..buffer.len() {
                let torn = matches!(parse_record(&buffer[..cut]), Parse::Torn { needed } if needed > cut);
                prop_assert!(torn);
            }
        }

        #[test]
        fn a_changed_byte_is_never_taken_for_the_record(
            payload in proptest::collection::vec(any::<u8>(), 0..100), at in 0_usize..121, flip in 1_u8..=255,
        ) {
            let mut buffer = Vec::new();
            prop_assert!(append_record(&mut buffer, RecordKind::Message, 5, 1, &payload));
            let at = at % buffer.len();
            buffer[at] ^= flip;
            prop_assert!(!matches!(parse_record(&buffer), Parse::Record(_)));
        }
    }

    #[test]
    fn zeros_are_corrupt_not_an_empty_record() {
        assert_eq!(parse_record(&[0; 64]), Parse::Corrupt);
    }

    #[test]
    fn words_of_a_newer_keeper_are_unknown_not_an_error() {
        let control: Control = serde_json::from_str(r#"{"control":"teleported","x":1}"#).expect("tolerant");
        assert_eq!(control, Control::Unknown);
        let reason: DisconnectReason = serde_json::from_str(r#"{"kind":"bored"}"#).expect("tolerant");
        assert_eq!(reason, DisconnectReason::Unknown);
    }
}
