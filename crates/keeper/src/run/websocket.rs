//! The socket transport: the agent listens in the keeper's folder and speaks WebSocket.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::channel::{BURST_LIMIT, ReadOutcome, push_control};
use crate::record::{Control, DisconnectReason, OVERSIZE_HEAD, RecordKind};
use crate::spec::SocketPlace;
use crate::spool::SpoolWriter;
use crate::ws::{Decoder, Encoder, Event, Handshake, HandshakeProgress, close_code};

/// How long to wait before the next try while the agent does not listen yet.
const RETRY: Duration = Duration::from_millis(10);
/// Answers to pings that may wait for the socket to take them. An agent that pings without reading is cut off.
const CONTROL_OUT_LIMIT: usize = 64 * 1024;

#[derive(Debug)]
pub(super) struct WsChannel {
    place: SocketPlace,
    record_limit: u64,
    state: State,
    /// Number of the last connection that was opened or attempted.
    last_number: u32,
}

#[derive(Debug)]
enum State {
    Idle,
    Waiting { until: Instant, next_try: Instant, last_error: String },
    Handshaking { stream: UnixStream, handshake: Handshake, request: Vec<u8>, until: Instant },
    Open(Box<Open>),
}

#[derive(Debug)]
struct Open {
    stream: UnixStream,
    decoder: Decoder,
    encoder: Encoder,
    /// Control frames, sent between messages.
    control_out: Vec<u8>,
    input_closed: bool,
}

impl WsChannel {
    pub(super) fn new(place: SocketPlace, record_limit: u64) -> Self {
        Self { place, record_limit, state: State::Idle, last_number: 0 }
    }

    /// Begins to make the next connection unless there is one or one is being made.
    pub(super) fn start_connecting(&mut self, now: Instant) {
        if matches!(self.state, State::Idle) {
            self.last_number += 1;
            let until = now + Duration::from_millis(self.place.connect_deadline_ms);
            self.state = State::Waiting { until, next_try: now, last_error: "not tried yet".to_owned() };
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.last_number
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(&self.state, State::Open(open) if !open.input_closed)
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.state, State::Waiting { .. } | State::Handshaking { .. })
    }

    /// When [`advance`](Self::advance) has something to do even if nothing is readable.
    pub(super) fn wake_at(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting { until, next_try, .. } => Some((*next_try).min(*until)),
            State::Handshaking { until, .. } => Some(*until),
            State::Idle | State::Open(_) => None,
        }
    }

    pub(super) fn read_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Handshaking { stream, .. } => Some(stream.as_fd()),
            State::Open(open) => Some(open.stream.as_fd()),
            State::Idle | State::Waiting { .. } => None,
        }
    }

    pub(super) fn write_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Open(open) => Some(open.stream.as_fd()),
            State::Idle | State::Waiting { .. } | State::Handshaking { .. } => None,
        }
    }

    pub(super) fn has_control_out(&self) -> bool {
        matches!(&self.state, State::Open(open) if !open.control_out.is_empty())
    }

    /// Works on a connection that is being made. An answer ends the attempt.
    pub(super) fn advance(&mut self, now: Instant) -> Option<DisconnectReason> {
        match &mut self.state {
            State::Waiting { until, next_try, last_error } => {
                if now >= *until {
                    let what = std::mem::take(last_error);
                    self.state = State::Idle;
                    return Some(DisconnectReason::ConnectDeadline { what });
                }
                if now < *next_try {
                    return None;
                }
                match connect_now(&self.place.name) {
                    Ok(stream) => {
                        let mut nonce = [0; 16];
                        // The nonce only has to differ; without the kernel's randomness the time does.
                        if rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::NONBLOCK)
                            .is_err()
                        {
                            nonce = super::now_ms().to_le_bytes().repeat(2).try_into().unwrap_or(nonce);
                        }
                        let handshake = Handshake::new(nonce);
                        let request = handshake.request();
                        self.state = State::Handshaking { stream, handshake, request, until: *until };
                    }
                    Err(error) => {
                        *last_error = error.to_string();
                        *next_try = now + RETRY;
                        return None;
                    }
                }
                self.advance(now)
            }
            State::Handshaking { stream, request, until, .. } => {
                if now >= *until {
                    self.state = State::Idle;
                    let what = "the upgrade was not answered".to_owned();
                    return Some(DisconnectReason::ConnectDeadline { what });
                }
                // The request is smaller than any socket buffer: it goes in one write.
                if !request.is_empty() {
                    if let Err(error) = stream.write_all(request) {
                        self.state = State::Idle;
                        return Some(DisconnectReason::Io { what: error.to_string() });
                    }
                    request.clear();
                }
                None
            }
            State::Idle | State::Open(_) => None,
        }
    }

    /// Reads one burst: the rest of the upgrade, or messages. Pushes a record for each, and one when the connection
    /// opens.
    pub(super) fn read(&mut self, spool: &mut SpoolWriter, buffer: &mut [u8], at_ms: i64) -> ReadOutcome {
        let mut outcome = ReadOutcome::default();
        let mut taken = 0;
        while taken < BURST_LIMIT && outcome.disconnected.is_none() {
            let stream = match &mut self.state {
                State::Handshaking { stream, .. } => stream,
                State::Open(open) => &mut open.stream,
                State::Idle | State::Waiting { .. } => break,
            };
            match stream.read(buffer) {
                Ok(0) => outcome.disconnected = Some(DisconnectReason::Dropped),
                Ok(count) => {
                    taken += count;
                    let part = buffer.get(..count).unwrap_or_default();
                    self.take_bytes(part, spool, at_ms, &mut outcome);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    outcome.disconnected = Some(DisconnectReason::Dropped);
                }
                Err(error) => outcome.disconnected = Some(DisconnectReason::Io { what: error.to_string() }),
            }
        }
        outcome.progress = taken > 0;
        if outcome.disconnected.is_some() {
            self.disconnect(spool, at_ms);
        }
        outcome
    }

    fn take_bytes(&mut self, bytes: &[u8], spool: &mut SpoolWriter, at_ms: i64, outcome: &mut ReadOutcome) {
        let rest;
        let mut bytes = bytes;
        if let State::Handshaking { handshake, .. } = &mut self.state {
            match handshake.feed(bytes) {
                Ok(HandshakeProgress::NeedsMore) => return,
                Ok(HandshakeProgress::Done { rest: behind }) => rest = behind,
                Err(error) => {
                    outcome.disconnected = Some(DisconnectReason::Protocol { what: error.to_string() });
                    return;
                }
            }
            bytes = &rest;
            let State::Handshaking { stream, .. } = std::mem::replace(&mut self.state, State::Idle) else {
                return;
            };
            self.state = State::Open(Box::new(Open {
                stream,
                decoder: Decoder::new(self.record_limit),
                encoder: Encoder::new(at_ms.cast_unsigned()),
                control_out: Vec::new(),
                input_closed: false,
            }));
            push_control(spool, RecordKind::Connected, at_ms, self.last_number, &Control::Connected);
            outcome.connected = true;
        }
        let State::Open(open) = &mut self.state else {
            return;
        };
        let number = self.last_number;
        let Open { stream, decoder, encoder, control_out, .. } = &mut **open;
        let mut closed = None;
        let decoded = decoder.feed(bytes, &mut |event| match event {
            Event::Message(payload) => {
                if !spool.push(RecordKind::Message, at_ms, number, payload) {
                    let head = payload.get(..OVERSIZE_HEAD).unwrap_or(payload);
                    push_oversize(spool, at_ms, number, payload.len() as u64, head);
                }
            }
            Event::Oversize { length, head } => push_oversize(spool, at_ms, number, length, head),
            Event::Ping(payload) => encoder.pong(control_out, payload),
            Event::Pong => {}
            Event::Close { code, text } => closed = Some(DisconnectReason::Closed { code, text }),
        });
        if let Err(error) = decoded {
            outcome.disconnected = Some(DisconnectReason::Protocol { what: error.to_string() });
        } else if closed.is_some() {
            // The answering close frame is a courtesy that nobody waits for.
            encoder.close(control_out, close_code::NORMAL);
            let _ = stream.write(control_out);
            outcome.disconnected = closed;
        } else if control_out.len() > CONTROL_OUT_LIMIT {
            let what = "it pings without reading the answers".to_owned();
            outcome.disconnected = Some(DisconnectReason::Protocol { what });
        }
    }

    /// Drops the connection; an unfinished message becomes a fragment. The caller pushes the reason.
    pub(super) fn disconnect(&mut self, spool: &mut SpoolWriter, at_ms: i64) {
        if let State::Open(open) = &self.state
            && open.decoder.is_inside_message()
        {
            let (length, head) = open.decoder.incomplete();
            if length > 0 {
                let head = head.get(..crate::record::FRAGMENT_HEAD).unwrap_or(head);
                let head = String::from_utf8_lossy(head).into_owned();
                let control = Control::Fragment { length, head };
                push_control(spool, RecordKind::Fragment, at_ms, self.last_number, &control);
            }
        }
        self.state = State::Idle;
    }

    pub(super) fn encode(&mut self, payload: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        if let State::Open(open) = &mut self.state {
            open.encoder.text(&mut frame, payload);
        }
        frame
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.state {
            State::Open(open) => open.stream.write(bytes),
            _ => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends waiting control frames; only to be called between messages.
    pub(super) fn write_control(&mut self) -> io::Result<()> {
        let State::Open(open) = &mut self.state else {
            return Ok(());
        };
        while !open.control_out.is_empty() {
            let count = open.stream.write(&open.control_out)?;
            open.control_out.drain(..count);
        }
        Ok(())
    }

    /// Takes no more input: the agent does not read any more. What it wrote before is still read.
    pub(super) fn close_input_now(&mut self) {
        if let State::Open(open) = &mut self.state {
            open.input_closed = true;
            open.control_out.clear();
            // Only a hint to the agent; the read side shows the end.
            let _ = open.stream.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Says goodbye; the agent ends the connection.
    pub(super) fn close_input(&mut self) {
        if let State::Open(open) = &mut self.state
            && !open.input_closed
        {
            open.input_closed = true;
            let Open { encoder, control_out, .. } = &mut **open;
            encoder.close(control_out, close_code::GOING_AWAY);
        }
    }
}

fn push_oversize(spool: &mut SpoolWriter, at_ms: i64, number: u32, length: u64, head: &[u8]) {
    let head = String::from_utf8_lossy(head).into_owned();
    push_control(spool, RecordKind::Oversize, at_ms, number, &Control::Oversize { length, head });
}

/// One attempt that never waits. The keeper's working folder is its own, so the bare name is the address.
fn connect_now(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(name)?)?;
    Ok(UnixStream::from(socket))
}
