//! The control socket: who may connect, and one host at a time. Nothing here ever waits for a peer.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

use rustix::net::sockopt::socket_peercred;

use crate::folder::names;
use crate::process_table::descends_from;
use crate::wire::{Decoder, Message, RejectedWhy, ToHost, ToKeeper};

/// Peers that have connected and not said hello yet; one more drops the oldest.
const PENDING_LIMIT: usize = 8;
/// How long a peer may take to say hello.
const HELLO_PATIENCE: Duration = Duration::from_secs(5);
/// Bytes that wait for a host that does not read. Over it the host is dropped: it reconnects, and learns all that
/// matters from the status and the spool.
const OUT_LIMIT: usize = 1 << 20;
/// Bytes that are read from a peer before the other duties get their turn.
const READ_LIMIT: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Peer {
    stream: UnixStream,
    decoder: Decoder,
    out: Vec<u8>,
    since: Instant,
    /// Nothing more can be said or heard.
    has_failed: bool,
}

impl Peer {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn has_out(&self) -> bool {
        !self.out.is_empty()
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Says something as soon as the socket takes it.
    pub(super) fn send(&mut self, message: &ToHost) {
        if self.has_failed {
            return;
        }
        message.encode(&mut self.out);
        self.flush();
        if self.out.len() > OUT_LIMIT {
            self.has_failed = true;
        }
    }

    pub(super) fn flush(&mut self) {
        while !self.out.is_empty() && !self.has_failed {
            match self.stream.write(&self.out) {
                Ok(count) => {
                    self.out.drain(..count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.has_failed = true,
            }
        }
    }

    /// Reads what there is. The peer may have failed afterwards, with messages still to be taken.
    pub(super) fn read(&mut self, buffer: &mut [u8]) {
        let mut taken = 0;
        while taken < READ_LIMIT && !self.has_failed {
            match self.stream.read(buffer) {
                Ok(0) => self.has_failed = true,
                Ok(count) => {
                    taken += count;
                    self.decoder.feed(buffer.get(..count).unwrap_or_default());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.has_failed = true,
            }
        }
    }

    /// The next message that was read. What cannot be understood ends the peer.
    pub(super) fn next_message(&mut self) -> Option<ToKeeper> {
        match self.decoder.next_message() {
            Ok(message) => message,
            Err(error) => {
                self.reject(RejectedWhy::BadFrame { what: error.to_string() });
                None
            }
        }
    }

    /// Last words.
    pub(super) fn reject(&mut self, why: RejectedWhy) {
        self.send(&ToHost::Rejected { why });
        self.has_failed = true;
    }
}

#[derive(Debug)]
pub(super) struct ControlSocket {
    listener: UnixListener,
    pending: Vec<Peer>,
    pub(super) host: Option<Peer>,
}

impl ControlSocket {
    /// Binds in the current folder, so the folder's own path may have any length.
    pub(super) fn bind() -> io::Result<Self> {
        let listener = UnixListener::bind(names::SOCKET)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, pending: Vec::new(), host: None })
    }

    pub(super) fn listener_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    pub(super) fn pending(&self) -> &[Peer] {
        &self.pending
    }

    /// Takes in every peer that waits and may talk to this keeper.
    pub(super) fn accept(&mut self, now: Instant, own_pid: i32) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            let mut peer =
                Peer { stream, decoder: Decoder::default(), out: Vec::new(), since: now, has_failed: false };
            match refusal(&peer.stream, own_pid) {
                Some(why) => peer.reject(why),
                None => self.pending.push(peer),
            }
            if self.pending.len() > PENDING_LIMIT {
                self.pending.remove(0);
            }
        }
    }

    /// Reads from every peer that has not said hello. Answers those whose first message came.
    pub(super) fn take_first_messages(&mut self, now: Instant, buffer: &mut [u8]) -> Vec<(Peer, ToKeeper)> {
        let mut first = Vec::new();
        for mut peer in std::mem::take(&mut self.pending) {
            peer.read(buffer);
            match peer.next_message() {
                Some(message) => first.push((peer, message)),
                None if peer.has_failed || now - peer.since > HELLO_PATIENCE => {}
                None => self.pending.push(peer),
            }
        }
        first
    }

    /// Says something to the host if there is one.
    pub(super) fn tell(&mut self, message: &ToHost) {
        if let Some(host) = &mut self.host {
            host.send(message);
        }
    }
}

/// Why this peer may not talk to the keeper: another user's process, or one that the agent (or anything below it)
/// started. Orphans of the agent are this keeper's children, so descent from the keeper covers them all.
fn refusal(stream: &UnixStream, own_pid: i32) -> Option<RejectedWhy> {
    let Ok(peer) = socket_peercred(stream) else {
        return Some(RejectedWhy::OtherUser);
    };
    if peer.uid != rustix::process::geteuid() {
        return Some(RejectedWhy::OtherUser);
    }
    match descends_from(peer.pid.as_raw_nonzero().get(), own_pid) {
        Some(false) => None,
        // Whoever cannot be placed (because it is gone already) is not given the benefit of the doubt.
        Some(true) | None => Some(RejectedWhy::FromAgent),
    }
}
