//! The agent's channel, whichever its transport.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::stdio::{self, StdioChannel};
use super::websocket::WsChannel;
use crate::record::{Control, DisconnectReason, RecordKind};
use crate::spool::SpoolWriter;

/// Bytes that are read from the agent before the other duties get their turn.
pub(super) const BURST_LIMIT: usize = 256 * 1024;

/// What one reading burst brought.
#[derive(Debug, Default)]
pub(super) struct ReadOutcome {
    pub(super) progress: bool,
    pub(super) connected: bool,
    pub(super) disconnected: Option<DisconnectReason>,
    /// The output has ended for good (`stdio`).
    pub(super) ended: bool,
}

#[derive(Debug)]
pub(super) enum Channel {
    Stdio(StdioChannel),
    Ws(WsChannel),
}

impl Channel {
    /// The connection that inputs can be written on.
    pub(super) fn connection(&self) -> Option<u32> {
        match self {
            Self::Stdio(channel) => channel.is_open().then_some(stdio::CONNECTION),
            Self::Ws(channel) => channel.is_open().then(|| channel.number()),
        }
    }

    /// The number for records about the present or last connection.
    pub(super) fn number(&self) -> u32 {
        match self {
            Self::Stdio(_) => stdio::CONNECTION,
            Self::Ws(channel) => channel.number(),
        }
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self, Self::Ws(channel) if channel.is_connecting())
    }

    pub(super) fn is_line_based(&self) -> bool {
        matches!(self, Self::Stdio(_))
    }

    pub(super) fn read_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Stdio(channel) => channel.read_fd(),
            Self::Ws(channel) => channel.read_fd(),
        }
    }

    pub(super) fn write_fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Stdio(channel) => channel.write_fd(),
            Self::Ws(channel) => channel.write_fd(),
        }
    }

    pub(super) fn wake_at(&self) -> Option<Instant> {
        match self {
            Self::Stdio(_) => None,
            Self::Ws(channel) => channel.wake_at(),
        }
    }

    pub(super) fn read(&mut self, spool: &mut SpoolWriter, buffer: &mut [u8], at_ms: i64) -> ReadOutcome {
        match self {
            Self::Stdio(channel) => channel.read(spool, buffer, at_ms),
            Self::Ws(channel) => channel.read(spool, buffer, at_ms),
        }
    }

    /// A payload as the bytes that are written.
    pub(super) fn encode(&mut self, mut payload: Vec<u8>) -> Vec<u8> {
        match self {
            Self::Stdio(_) => {
                payload.push(b'\n');
                payload
            }
            Self::Ws(channel) => channel.encode(&payload),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdio(channel) => channel.write(bytes),
            Self::Ws(channel) => channel.write(bytes),
        }
    }

    /// Sends what goes out between messages; an error also when it does not all fit now.
    pub(super) fn write_control(&mut self) -> io::Result<()> {
        match self {
            Self::Stdio(_) => Ok(()),
            Self::Ws(channel) => channel.write_control(),
        }
    }

    pub(super) fn has_control_out(&self) -> bool {
        matches!(self, Self::Ws(channel) if channel.has_control_out())
    }

    pub(super) fn close_input(&mut self) {
        match self {
            Self::Stdio(channel) => channel.close_input(),
            Self::Ws(channel) => channel.close_input(),
        }
    }

    /// Stops reading for good; what was left of a message becomes a fragment.
    pub(super) fn end_output(&mut self, spool: &mut SpoolWriter, at_ms: i64) {
        match self {
            Self::Stdio(channel) => channel.end_output(spool, at_ms),
            Self::Ws(channel) => channel.disconnect(spool, at_ms),
        }
    }
}

pub(super) fn push_control(
    spool: &mut SpoolWriter,
    kind: RecordKind,
    at_ms: i64,
    connection: u32,
    control: &Control,
) {
    // These plain values always serialize, and their texts are bounded far below what can be framed.
    let payload = serde_json::to_vec(control).unwrap_or_default();
    let is_framed = spool.push(kind, at_ms, connection, &payload);
    debug_assert!(is_framed, "a control record is small");
}
