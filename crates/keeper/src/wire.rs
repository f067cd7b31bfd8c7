//! The control socket's language, without any I/O.
//!
//! ```text
//! length u32 | kind u8 | header length u32 | header (JSON) | body (raw bytes)
//! ```
//!
//! Little-endian; `length` counts everything behind itself. The header's unknown fields are ignored and missing
//! ones take a default; a message of an unknown kind is reported as such and skipped. Payloads travel as raw bytes.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::identity::ProcessIdentity;
use crate::manifest::Order;
use crate::record::RefusedWhy;

/// Longest frame: the longest input with room for its header. A longer one ends the connection.
pub const FRAME_LIMIT: usize = (64 << 20) + (64 << 10);
const PREFIX_LEN: usize = 9;
/// What a decoder keeps allocated when it holds nothing.
const IDLE_BUFFER: usize = 16 * 1024;

/// Host to keeper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToKeeper {
    /// Always first. Answered by `Status` or `Rejected`.
    Hello {
        version: u32,
        host_id: String,
        process_fence: u64,
    },
    /// A numbered input. Answered by `Recorded`, then `Written` or `Refused`.
    Input {
        n: u64,
        connection: u32,
        urgent: bool,
        payload: Vec<u8>,
    },
    /// An input outside the numbers, before all others. Answered by `UrgentWritten` or `UrgentRefused`
    /// with the same `id`, which is the host's own.
    Urgent {
        id: u64,
        connection: u32,
        payload: Vec<u8>,
    },
    /// Everything before `position` is durable elsewhere.
    Committed {
        position: u64,
    },
    /// Make a new connection (`ws+unix`); the answer is a record in the spool and a new `Status`.
    Connect,
    /// Make a new connection (`ws+unix`) in place of the open one, which a host made that nobody knows any more. Where
    /// another one than that is open, nothing happens.
    Reconnect {
        instead_of: u32,
    },
    Close {
        order: Order,
    },
    Ping,
    /// Of a newer host; ignored.
    Unknown {
        kind: u8,
    },
}

/// Keeper to host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHost {
    Status(Box<Status>),
    Recorded {
        n: u64,
    },
    /// Written in full, or settled long ago (as answer to a repeated number).
    Written {
        n: u64,
    },
    Refused {
        n: u64,
        why: RefusedWhy,
    },
    UrgentWritten {
        id: u64,
    },
    UrgentRefused {
        id: u64,
        why: RefusedWhy,
    },
    /// The spool now ends at `end`. Coalesced: one bell may stand for many records.
    Doorbell {
        end: u64,
    },
    /// The exit record is in the spool, which ends at `end`; the keeper leaves.
    Exited {
        end: u64,
    },
    Pong,
    Rejected {
        why: RejectedWhy,
    },
    /// Of a newer keeper; ignored.
    Unknown {
        kind: u8,
    },
}

/// Where a keeper stands; the answer to `Hello`, and sent again when the connection changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub version: u32,
    pub keeper: ProcessIdentity,
    pub agent: Option<ProcessIdentity>,
    pub recorded: u64,
    pub started: u64,
    pub written: u64,
    #[serde(default)]
    pub early_written: Vec<u64>,
    /// The open connection, if there is one.
    pub connection: Option<u32>,
    /// A connection is being made.
    #[serde(default)]
    pub connecting: bool,
    pub spool_start: u64,
    pub spool_end: u64,
    pub exited: bool,
    /// The ladder is being walked.
    #[serde(default)]
    pub ending: bool,
    /// Why records cannot be put on disk just now; the agent is not read until they can.
    #[serde(default)]
    pub spool_fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum RejectedWhy {
    /// A newer owner's fence is known here.
    StaleFence {
        known: u64,
    },
    /// The peer's process descends from the agent.
    FromAgent,
    OtherUser,
    /// The first message was no `Hello`.
    NoHello,
    /// A newer connection took over.
    Replaced,
    BadFrame {
        what: String,
    },
    #[serde(other)]
    Unknown,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    #[error("a frame of {length} bytes is longer than any may be")]
    TooLong { length: usize },
    #[error("a frame's lengths contradict each other")]
    BadLengths,
    #[error("the header of a message of kind {kind} is not understood: {what}")]
    BadHeader { kind: u8, what: String },
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Header {
    #[serde(skip_serializing_if = "is_default")]
    version: u32,
    #[serde(skip_serializing_if = "is_default")]
    host_id: String,
    #[serde(skip_serializing_if = "is_default")]
    process_fence: u64,
    #[serde(skip_serializing_if = "is_default")]
    n: u64,
    #[serde(skip_serializing_if = "is_default")]
    id: u64,
    #[serde(skip_serializing_if = "is_default")]
    connection: u32,
    #[serde(skip_serializing_if = "is_default")]
    urgent: bool,
    #[serde(skip_serializing_if = "is_default")]
    position: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    order: Option<Order>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<RefusedWhy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rejected: Option<RejectedWhy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Box<Status>>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

mod kind {
    pub(super) const HELLO: u8 = 1;
    pub(super) const INPUT: u8 = 2;
    pub(super) const URGENT: u8 = 3;
    pub(super) const COMMITTED: u8 = 4;
    pub(super) const CONNECT: u8 = 5;
    pub(super) const CLOSE: u8 = 6;
    pub(super) const PING: u8 = 7;
    pub(super) const RECONNECT: u8 = 8;
    pub(super) const STATUS: u8 = 64;
    pub(super) const RECORDED: u8 = 65;
    pub(super) const WRITTEN: u8 = 66;
    pub(super) const REFUSED: u8 = 67;
    pub(super) const URGENT_WRITTEN: u8 = 68;
    pub(super) const URGENT_REFUSED: u8 = 69;
    pub(super) const DOORBELL: u8 = 70;
    pub(super) const EXITED: u8 = 71;
    pub(super) const PONG: u8 = 72;
    pub(super) const REJECTED: u8 = 73;
}

/// Both directions' messages: what a peer encodes and the other one decodes.
pub trait Message: Sized {
    /// Appends this message as one frame.
    fn encode(&self, out: &mut Vec<u8>);
    #[doc(hidden)]
    fn from_parts(kind: u8, header: &[u8], body: &[u8]) -> Result<Self, DecodeError>;
}

impl Message for ToKeeper {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut header = Header::default();
        let mut body: &[u8] = &[];
        let kind = match self {
            Self::Hello { version, host_id, process_fence } => {
                header.version = *version;
                header.host_id.clone_from(host_id);
                header.process_fence = *process_fence;
                kind::HELLO
            }
            Self::Input { n, connection, urgent, payload } => {
                header.n = *n;
                header.connection = *connection;
                header.urgent = *urgent;
                body = payload;
                kind::INPUT
            }
            Self::Urgent { id, connection, payload } => {
                header.id = *id;
                header.connection = *connection;
                body = payload;
                kind::URGENT
            }
            Self::Committed { position } => {
                header.position = *position;
                kind::COMMITTED
            }
            Self::Connect => kind::CONNECT,
            Self::Reconnect { instead_of } => {
                header.connection = *instead_of;
                kind::RECONNECT
            }
            Self::Close { order } => {
                header.order = Some(*order);
                kind::CLOSE
            }
            Self::Ping => kind::PING,
            Self::Unknown { kind } => *kind,
        };
        append_frame(out, kind, &header, body);
    }

    fn from_parts(kind: u8, header: &[u8], body: &[u8]) -> Result<Self, DecodeError> {
        let parse = || parse_header(kind, header);
        Ok(match kind {
            kind::HELLO => {
                let header = parse()?;
                Self::Hello {
                    version: header.version,
                    host_id: header.host_id,
                    process_fence: header.process_fence,
                }
            }
            kind::INPUT => {
                let header = parse()?;
                Self::Input {
                    n: header.n,
                    connection: header.connection,
                    urgent: header.urgent,
                    payload: body.to_vec(),
                }
            }
            kind::URGENT => {
                let header = parse()?;
                Self::Urgent { id: header.id, connection: header.connection, payload: body.to_vec() }
            }
            kind::COMMITTED => Self::Committed { position: parse()?.position },
            kind::CONNECT => Self::Connect,
            kind::RECONNECT => Self::Reconnect { instead_of: parse()?.connection },
            kind::CLOSE => Self::Close { order: parse()?.order.unwrap_or(Order::Other) },
            kind::PING => Self::Ping,
            kind => Self::Unknown { kind },
        })
    }
}

impl Message for ToHost {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut header = Header::default();
        let kind = match self {
            Self::Status(status) => {
                header.status = Some(status.clone());
                kind::STATUS
            }
            Self::Recorded { n } => {
                header.n = *n;
                kind::RECORDED
            }
            Self::Written { n } => {
                header.n = *n;
                kind::WRITTEN
            }
            Self::Refused { n, why } => {
                header.n = *n;
                header.refused = Some(why.clone());
                kind::REFUSED
            }
            Self::UrgentWritten { id } => {
                header.id = *id;
                kind::URGENT_WRITTEN
            }
            Self::UrgentRefused { id, why } => {
                header.id = *id;
                header.refused = Some(why.clone());
                kind::URGENT_REFUSED
            }
            Self::Doorbell { end } => {
                header.position = *end;
                kind::DOORBELL
            }
            Self::Exited { end } => {
                header.position = *end;
                kind::EXITED
            }
            Self::Pong => kind::PONG,
            Self::Rejected { why } => {
                header.rejected = Some(why.clone());
                kind::REJECTED
            }
            Self::Unknown { kind } => *kind,
        };
        append_frame(out, kind, &header, &[]);
    }

    fn from_parts(kind: u8, header: &[u8], _body: &[u8]) -> Result<Self, DecodeError> {
        let parse = || parse_header(kind, header);
        Ok(match kind {
            kind::STATUS => match parse()?.status {
                Some(status) => Self::Status(status),
                None => {
                    return Err(DecodeError::BadHeader { kind, what: "no status".to_owned() });
                }
            },
            kind::RECORDED => Self::Recorded { n: parse()?.n },
            kind::WRITTEN => Self::Written { n: parse()?.n },
            kind::REFUSED => {
                let header = parse()?;
                Self::Refused { n: header.n, why: header.refused.unwrap_or(RefusedWhy::Unknown) }
            }
            kind::URGENT_WRITTEN => Self::UrgentWritten { id: parse()?.id },
            kind::URGENT_REFUSED => {
                let header = parse()?;
                Self::UrgentRefused { id: header.id, why: header.refused.unwrap_or(RefusedWhy::Unknown) }
            }
            kind::DOORBELL => Self::Doorbell { end: parse()?.position },
            kind::EXITED => Self::Exited { end: parse()?.position },
            kind::PONG => Self::Pong,
            kind::REJECTED => Self::Rejected { why: parse()?.rejected.unwrap_or(RejectedWhy::Unknown) },
            kind => Self::Unknown { kind },
        })
    }
}

fn append_frame(out: &mut Vec<u8>, kind: u8, header: &Header, body: &[u8]) {
    // Serializing these plain structs cannot fail; should it ever, the peer sees a header it cannot understand.
    let header = serde_json::to_vec(header).unwrap_or_default();
    let length = PREFIX_LEN - 4 + header.len() + body.len();
    // Lengths beyond u32 would be refused by the frame limit anyway.
    out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    out.push(kind);
    out.extend_from_slice(&u32::try_from(header.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&header);
    out.extend_from_slice(body);
}

fn parse_header(kind: u8, header: &[u8]) -> Result<Header, DecodeError> {
    serde_json::from_slice(header).map_err(|error| DecodeError::BadHeader { kind, what: error.to_string() })
}

/// Cuts a stream of bytes into messages.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes at the front that were consumed.
    taken: usize,
}

impl Decoder {
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message; `None` when more bytes are needed. After an error the stream cannot go on.
    pub fn next_message<M: Message>(&mut self) -> Result<Option<M>, DecodeError> {
        if self.taken > 0 && self.taken == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(IDLE_BUFFER);
            self.taken = 0;
        }
        let waiting = self.buffer.get(self.taken..).unwrap_or_default();
        let Some((prefix, rest)) = waiting.split_first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*prefix) as usize;
        if length > FRAME_LIMIT {
            return Err(DecodeError::TooLong { length });
        }
        let Some(frame) = rest.get(..length) else {
            return Ok(None);
        };
        let (&kind, frame) = frame.split_first().ok_or(DecodeError::BadLengths)?;
        let (header_len, frame) = frame.split_first_chunk::<4>().ok_or(DecodeError::BadLengths)?;
        let header_len = u32::from_le_bytes(*header_len) as usize;
        let (header, body) = frame.split_at_checked(header_len).ok_or(DecodeError::BadLengths)?;
        let message = M::from_parts(kind, header, body)?;
        self.taken += 4 + length;
        if self.taken > 256 * 1024 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn arbitrary_to_keeper() -> impl Strategy<Value = ToKeeper> {
        prop_oneof![
            (any::<u32>(), ".{0,20}", any::<u64>()).prop_map(|(version, host_id, process_fence)| {
                ToKeeper::Hello { version, host_id, process_fence }
            }),
            (any::<u64>(), any::<u32>(), any::<bool>(), proptest::collection::vec(any::<u8>(), 0..200))
                .prop_map(|(n, connection, urgent, payload)| ToKeeper::Input {
                    n,
                    connection,
                    urgent,
                    payload
                }),
            (any::<u64>(), any::<u32>(), proptest::collection::vec(any::<u8>(), 0..50))
                .prop_map(|(id, connection, payload)| ToKeeper::Urgent { id, connection, payload }),
            any::<u64>().prop_map(|position| ToKeeper::Committed { position }),
            Just(ToKeeper::Connect),
            any::<u32>().prop_map(|instead_of| ToKeeper::Reconnect { instead_of }),
            Just(ToKeeper::Close { order: Order::User }),
            Just(ToKeeper::Ping),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_any_cutting_of_the_stream(
            messages in proptest::collection::vec(arbitrary_to_keeper(), 1..12), piece in 1_usize..64,
        ) {
            let mut stream = Vec::new();
            for message in &messages {
                message.encode(&mut stream);
            }
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for part in stream.chunks(piece) {
                decoder.feed(part);
                while let Some(message) = decoder.next_message::<ToKeeper>().expect("valid") {
                    seen.push(message);
                }
            }
            prop_assert_eq!(seen, messages);
        }
    }

    #[test]
    fn unknown_kinds_and_fields_are_passed_over() {
        let mut stream = Vec::new();
        let header = br#"{"n":3,"colour":"red"}"#;
        for kind in [200, kind::RECORDED] {
            stream.extend_from_slice(&u32::try_from(5 + header.len()).expect("small").to_le_bytes());
            stream.push(kind);
            stream.extend_from_slice(&u32::try_from(header.len()).expect("small").to_le_bytes());
            stream.extend_from_slice(header);
        }
        let mut decoder = Decoder::default();
        decoder.feed(&stream);
        assert_eq!(decoder.next_message(), Ok(Some(ToHost::Unknown { kind: 200 })));
        assert_eq!(decoder.next_message(), Ok(Some(ToHost::Recorded { n: 3 })));
        assert_eq!(decoder.next_message::<ToHost>(), Ok(None));
    }

    #[test]
    fn impossible_lengths_are_errors() {
        let mut decoder = Decoder::default();
        decoder.feed(&u32::MAX.to_le_bytes());
        assert!(matches!(decoder.next_message::<ToHost>(), Err(DecodeError::TooLong { .. })));
        let mut decoder = Decoder::default();
        decoder.feed(&[5, 0, 0, 0, kind::PONG, 99, 0, 0, 0]);
        assert_eq!(decoder.next_message::<ToHost>(), Err(DecodeError::BadLengths));
    }
}
