//! A minimal WebSocket client (RFC 6455) without any I/O: the upgrade, a decoder that is fed bytes, and an encoder.
//!
//! No extensions are offered. Text is passed on verbatim and not checked for UTF-8: what a message means is not
//! the keeper's business.

mod decoder;
mod encoder;
mod handshake;

#[cfg(test)]
use decoder::ProtocolError;
pub(crate) use decoder::{Decoder, Event};
pub(crate) use encoder::{Encoder, close_code};
pub(crate) use handshake::{Handshake, HandshakeProgress};

pub(crate) const OPCODE_CONTINUATION: u8 = 0x0;
pub(crate) const OPCODE_TEXT: u8 = 0x1;
pub(crate) const OPCODE_BINARY: u8 = 0x2;
pub(crate) const OPCODE_CLOSE: u8 = 0x8;
pub(crate) const OPCODE_PING: u8 = 0x9;
pub(crate) const OPCODE_PONG: u8 = 0xa;

/// The protocol's own bound for the payload of a control frame.
pub(crate) const CONTROL_PAYLOAD_MAX: usize = 125;

#[cfg(test)]
mod tests;
