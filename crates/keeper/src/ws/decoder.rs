//! Frames from a server, fed in pieces of any size. A message that arrives in one piece is passed on without a copy.

use thiserror::Error;

use super::{
    CONTROL_PAYLOAD_MAX, OPCODE_BINARY, OPCODE_CLOSE, OPCODE_CONTINUATION, OPCODE_PING, OPCODE_PONG,
    OPCODE_TEXT,
};
use crate::record::OVERSIZE_HEAD;

/// What arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<'input> {
    /// A whole text or binary message.
    Message(&'input [u8]),
    /// A whole message over the limit; only its beginning was kept.
    Oversize {
        length: u64,
        head: &'input [u8],
    },
    Ping(&'input [u8]),
    Pong,
    Close {
        code: Option<u16>,
        text: String,
    },
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum ProtocolError {
    #[error("a frame uses reserved bits though no extension was agreed on")]
    ReservedBits,
    #[error("a frame has the unknown opcode {0}")]
    UnknownOpcode(u8),
    #[error("a server's frame is masked")]
    Masked,
    #[error("a control frame is fragmented or too long")]
    BadControlFrame,
    #[error("a new message began inside a fragmented one")]
    InterruptedMessage,
    #[error("a continuation came without a message to continue")]
    LoneContinuation,
    #[error("a frame's length has its highest bit set")]
    BadLength,
    #[error("a frame came after the close frame")]
    AfterClose,
}

#[derive(Clone, Copy, Debug)]
struct FrameHeader {
    is_final: bool,
    opcode: u8,
    payload_len: u64,
}

#[derive(Debug)]
pub(crate) struct Decoder {
    limit: u64,
    header: Vec<u8>,
    /// The frame whose payload is being read, and how much of it is missing.
    frame: Option<(FrameHeader, u64)>,
    /// Payload so far of the message being put together (or of a control frame in `control`).
    message: Vec<u8>,
    message_len: u64,
    /// A data message has begun and its final frame has not come.
    in_message: bool,
    control: Vec<u8>,
    is_closed: bool,
}

/// What a message buffer keeps allocated between messages.
const IDLE_MESSAGE: usize = 16 * 1024;

impl Decoder {
    /// `limit` is the longest message that is passed on whole.
    pub(crate) fn new(limit: u64) -> Self {
        Self {
            limit,
            header: Vec::with_capacity(10),
            frame: None,
            message: Vec::new(),
            message_len: 0,
            in_message: false,
            control: Vec::new(),
            is_closed: false,
        }
    }

    /// A message, or a frame, has begun and is not complete.
    pub(crate) fn is_inside_message(&self) -> bool {
        self.in_message || self.frame.is_some() || !self.header.is_empty()
    }

    /// The part of an incomplete message that has arrived.
    pub(crate) fn incomplete(&self) -> (u64, &[u8]) {
        (self.message_len, &self.message)
    }

    /// Takes bytes and reports what they complete. After an error the stream cannot go on.
    pub(crate) fn feed(
        &mut self,
        mut input: &[u8],
        report: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), ProtocolError> {
        loop {
            let Some((frame, missing)) = self.frame else {
                let Some(&byte) = input.first() else { return Ok(()) };
                if self.is_closed {
                    return Err(ProtocolError::AfterClose);
                }
                input = input.get(1..).unwrap_or_default();
                self.header.push(byte);
                if let Some(frame) = parse_header(&self.header)? {
                    self.header.clear();
                    self.begin_frame(frame)?;
                }
                continue;
            };
            let available = usize::try_from(missing).unwrap_or(usize::MAX).min(input.len());
            if available == 0 && missing > 0 {
                return Ok(());
            }
            let (part, rest) = input.split_at(available);
            input = rest;
            let left = missing - available as u64;
            self.frame = (left > 0).then_some((frame, left));
            self.take_payload(frame, part, left == 0, report);
        }
    }

    fn begin_frame(&mut self, frame: FrameHeader) -> Result<(), ProtocolError> {
        match frame.opcode {
            OPCODE_TEXT | OPCODE_BINARY if self.in_message => return Err(ProtocolError::InterruptedMessage),
            OPCODE_TEXT | OPCODE_BINARY => {
                self.in_message = true;
                self.message_len = 0;
                self.message.clear();
            }
            OPCODE_CONTINUATION if !self.in_message => return Err(ProtocolError::LoneContinuation),
            OPCODE_CONTINUATION => {}
            OPCODE_CLOSE | OPCODE_PING | OPCODE_PONG => {
                if !frame.is_final || frame.payload_len > CONTROL_PAYLOAD_MAX as u64 {
                    return Err(ProtocolError::BadControlFrame);
                }
                self.control.clear();
            }
            unknown => return Err(ProtocolError::UnknownOpcode(unknown)),
        }
        self.frame = Some((frame, frame.payload_len));
        Ok(())
    }

    fn take_payload(
        &mut self,
        frame: FrameHeader,
        part: &[u8],
        is_frame_end: bool,
        report: &mut dyn FnMut(Event<'_>),
    ) {
        if frame.opcode & 0x8 != 0 {
            self.control.extend_from_slice(part);
            if is_frame_end {
                self.report_control(frame.opcode, report);
            }
            return;
        }
        self.message_len += part.len() as u64;
        let is_message_end = is_frame_end && frame.is_final;
        if is_message_end && self.message_len == part.len() as u64 && self.message_len <= self.limit {
            self.in_message = false;
            report(Event::Message(part));
            return;
        }
        // Over the limit only the head is kept; below it everything is.
        let room = if self.message_len <= self.limit {
            part.len()
        } else {
            self.message.truncate(OVERSIZE_HEAD);
            OVERSIZE_HEAD - self.message.len()
        };
        self.message.extend_from_slice(part.get(..room).unwrap_or(part));
        if is_message_end {
            self.in_message = false;
            if self.message_len <= self.limit {
                report(Event::Message(&self.message));
            } else {
                report(Event::Oversize { length: self.message_len, head: &self.message });
            }
            self.message.clear();
            self.message.shrink_to(IDLE_MESSAGE);
        }
    }

    fn report_control(&mut self, opcode: u8, report: &mut dyn FnMut(Event<'_>)) {
        match opcode {
            OPCODE_PING => report(Event::Ping(&self.control)),
            OPCODE_PONG => report(Event::Pong),
            _ => {
                self.is_closed = true;
                let (code, text) = match self.control.split_first_chunk::<2>() {
                    Some((code, text)) => (Some(u16::from_be_bytes(*code)), String::from_utf8_lossy(text)),
                    None => (None, String::new().into()),
                };
                report(Event::Close { code, text: text.into_owned() });
            }
        }
    }
}

/// `None` until the header is whole.
fn parse_header(bytes: &[u8]) -> Result<Option<FrameHeader>, ProtocolError> {
    let &[first, second, ref extended @ ..] = bytes else {
        return Ok(None);
    };
    if first & 0x70 != 0 {
        return Err(ProtocolError::ReservedBits);
    }
    if second & 0x80 != 0 {
        return Err(ProtocolError::Masked);
    }
    let payload_len = match (second, extended) {
        (0..=125, _) => u64::from(second),
        (126, &[high, low]) => u64::from(u16::from_be_bytes([high, low])),
        (127, extended) if extended.len() == 8 => {
            let length = extended.iter().fold(0, |value, &byte| (value << 8) | u64::from(byte));
            if length >> 63 != 0 {
                return Err(ProtocolError::BadLength);
            }
            length
        }
        _ => return Ok(None),
    };
    Ok(Some(FrameHeader { is_final: first & 0x80 != 0, opcode: first & 0x0f, payload_len }))
}
