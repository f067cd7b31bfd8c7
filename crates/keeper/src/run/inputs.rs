//! The down road: what a host says, and how inputs reach the agent.

use std::io;
use std::time::Instant;

use super::channel::{Channel, push_control};
use super::control::Peer;
use super::keeper::{DISK_RETRY, Keeper, Phase};
use super::{log, now_ms};
use crate::folder::names;
use crate::inbox::{Offer, Taken};
use crate::manifest::ExitCause;
use crate::record::{Control, DisconnectReason, RecordKind, RefusedWhy};
use crate::wire::{RejectedWhy, ToHost, ToKeeper};

/// An input that is being written; it has begun and is finished, or its connection is.
pub(super) struct Outgoing {
    /// `None` for an unnumbered one.
    n: Option<u64>,
    id: u64,
    bytes: Vec<u8>,
    written: usize,
}

impl Keeper {
    // --- peers --------------------------------------------------------------------------------------------------

    /// A peer's first message must be a hello; it then is the host, and whoever was it before is not any more.
    pub(super) fn greet_peers(&mut self, now: Instant) {
        let mut buffer = vec![0; 4096];
        for (mut peer, message) in self.control.take_first_messages(now, &mut buffer) {
            let ToKeeper::Hello { host_id, process_fence, .. } = message else {
                peer.reject(RejectedWhy::NoHello);
                continue;
            };
            let known = self.manifest.process_fence;
            if process_fence < known {
                peer.reject(RejectedWhy::StaleFence { known });
                continue;
            }
            self.take_host(peer, host_id, process_fence);
            // Its next messages may have come in the same packet as its hello.
            self.hear_host(now);
        }
    }

    fn take_host(&mut self, peer: Peer, host_id: String, process_fence: u64) {
        if self.manifest.host_id != host_id || self.manifest.process_fence != process_fence {
            self.manifest.host_id = host_id;
            self.manifest.process_fence = process_fence;
            // On a full disk the older manifest stays; this process still knows the newer fence.
            if let Err(error) = self.folder.write_json(names::MANIFEST, &self.manifest) {
                log(&format!("the manifest cannot be written: {}", super::describe(&error)));
            }
        }
        if let Some(mut replaced) = self.control.host.replace(peer) {
            replaced.reject(RejectedWhy::Replaced);
        }
        self.host_away_since = None;
        self.tell_status();
    }

    pub(super) fn hear_host(&mut self, now: Instant) {
        let Some(mut host) = self.control.host.take() else {
            return;
        };
        host.flush();
        host.read(self.read_buffer());
        let mut messages = Vec::new();
        while let Some(message) = host.next_message() {
            messages.push(message);
        }
        self.control.host = Some(host);
        for message in messages {
            self.obey(message, now);
        }
        if self.control.host.as_ref().is_some_and(Peer::has_failed) {
            self.control.host = None;
            self.host_away_since = Some(now);
        }
    }

    fn obey(&mut self, message: ToKeeper, now: Instant) {
        match message {
            ToKeeper::Input { n, connection, urgent, payload } => {
                self.take_input(Offer { n, connection, urgent, payload });
            }
            ToKeeper::Urgent { id, connection, payload } => {
                if let Err(why) = self.take_urgent(id, connection, payload) {
                    self.control.tell(&ToHost::UrgentRefused { id, why });
                }
            }
            ToKeeper::Committed { position } => self.spool.commit(position),
            ToKeeper::Connect => self.wants_connection = true,
            ToKeeper::Reconnect { instead_of } => self.reconnect(instead_of),
            ToKeeper::Close { order } => self.begin_ending(ExitCause::Ordered { order }, now),
            ToKeeper::Ping => self.control.tell(&ToHost::Pong),
            // A second hello changes nothing but is answered; what a newer host says is passed over.
            ToKeeper::Hello { .. } => self.tell_status(),
            ToKeeper::Unknown { .. } => {}
        }
    }

    fn reconnect(&mut self, instead_of: u32) {
        let Some(Channel::Ws(channel)) =
            self.channel.as_mut().filter(|_| matches!(self.phase, Phase::Running))
        else {
            return;
        };
        if !channel.is_open() || channel.number() != instead_of {
            return;
        }
        channel.disconnect(&mut self.spool, now_ms());
        self.record_disconnected(DisconnectReason::Ordered);
        self.wants_connection = true;
    }

    // --- taking inputs over -------------------------------------------------------------------------------------

    fn take_input(&mut self, offer: Offer) {
        let n = offer.n;
        let answer = match self.inbox.answer_known_or_gap(n) {
            Some(answer) => answer,
            None if !matches!(self.phase, Phase::Running) => Taken::Refused(RefusedWhy::Ended),
            None => match self.never_writable(offer.connection, &offer.payload) {
                Some(why) => return self.refuse_for_good(n, why),
                None => self.inbox.take(offer),
            },
        };
        match answer {
            Taken::Recorded => self.control.tell(&ToHost::Recorded { n }),
            Taken::Known { settled } => {
                self.control.tell(&ToHost::Recorded { n });
                if settled {
                    self.control.tell(&ToHost::Written { n });
                }
            }
            Taken::Refused(why) => self.control.tell(&ToHost::Refused { n, why }),
        }
    }

    fn take_urgent(&mut self, id: u64, connection: u32, payload: Vec<u8>) -> Result<(), RefusedWhy> {
        if !matches!(self.phase, Phase::Running) {
            return Err(RefusedWhy::Ended);
        }
        match self.never_writable(connection, &payload) {
            Some(why) => Err(why),
            None => self.inbox.take_unnumbered(id, payload),
        }
    }

    fn never_writable(&self, connection: u32, payload: &[u8]) -> Option<RefusedWhy> {
        let current = self.channel.as_ref().and_then(Channel::connection);
        if current != Some(connection) {
            return Some(RefusedWhy::WrongConnection { current });
        }
        let is_line_based = self.channel.as_ref().is_some_and(Channel::is_line_based);
        (is_line_based && payload.contains(&b'\n')).then_some(RefusedWhy::NotOneLine)
    }

    /// Takes the number over and records that it will not be written. While the record cannot be put on disk the number
    /// is not taken over either: its state must never run ahead of the record that explains it.
    fn refuse_for_good(&mut self, n: u64, why: RefusedWhy) {
        if self.has_spool_fault() {
            let what = "the spool cannot be written".to_owned();
            return self.control.tell(&ToHost::Refused { n, why: RefusedWhy::StateNotRecorded { what } });
        }
        if let Err(error) = self.inbox.record_only(n) {
            let what = error.to_string();
            return self.control.tell(&ToHost::Refused { n, why: RefusedWhy::StateNotRecorded { what } });
        }
        self.push_refusal(n, why.clone());
        self.flush_spool(Instant::now());
        self.control.tell(&ToHost::Recorded { n });
        self.control.tell(&ToHost::Refused { n, why });
    }

    fn push_refusal(&mut self, n: u64, why: RefusedWhy) {
        let number = self.channel.as_ref().map_or(0, Channel::number);
        let control = Control::InputRefused { n, why };
        push_control(&mut self.spool, RecordKind::InputRefused, now_ms(), number, &control);
        self.unsettled_refusals.push(n);
    }

    /// The inputs that wait will not be written: their connection takes none any more.
    pub(super) fn refuse_waiting(&mut self, why: &RefusedWhy) {
        let (numbers, ids) = self.inbox.drop_waiting();
        for n in numbers {
            self.push_refusal(n, why.clone());
            self.control.tell(&ToHost::Refused { n, why: why.clone() });
        }
        for id in ids {
            self.control.tell(&ToHost::UrgentRefused { id, why: why.clone() });
        }
    }

    /// The input that is being written will never be complete.
    pub(super) fn drop_outgoing(&mut self) {
        let Some(outgoing) = self.outgoing.take() else {
            return;
        };
        match outgoing.n {
            Some(_) => {
                if let Some(n) = self.inbox.cut_current() {
                    self.push_refusal(n, RefusedWhy::Cut);
                    self.control.tell(&ToHost::Refused { n, why: RefusedWhy::Cut });
                }
            }
            None => {
                self.control.tell(&ToHost::UrgentRefused { id: outgoing.id, why: RefusedWhy::Cut });
            }
        }
    }

    // --- writing ------------------------------------------------------------------------------------------------

    pub(super) fn has_something_to_write(&self, now: Instant) -> bool {
        let may_begin = self.inbox_retry_at.is_none_or(|at| now >= at);
        self.outgoing.is_some()
            || (self.inbox.has_waiting() && may_begin)
            || self.channel.as_ref().is_some_and(Channel::has_control_out)
    }

    /// Writes as much as the agent takes now.
    pub(super) fn pump_inputs(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        loop {
            let written = match &mut self.outgoing {
                Some(outgoing) => write_on(self.channel.as_mut(), outgoing),
                None => match self.begin_next(now) {
                    Ok(true) => continue,
                    Ok(false) => return,
                    Err(error) => Err(error),
                },
            };
            match written {
                Ok(()) => self.finish_outgoing(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.lose_input(&error),
            }
        }
    }

    /// Begins the next input that waits, at a message boundary. False when there is none.
    fn begin_next(&mut self, now: Instant) -> io::Result<bool> {
        let Some(channel) = &mut self.channel else {
            return Ok(false);
        };
        channel.write_control()?;
        if self.inbox_retry_at.is_some_and(|at| now < at) {
            return Ok(false);
        }
        match self.inbox.begin_next() {
            Ok(Some(next)) => {
                self.inbox_retry_at = None;
                let bytes = channel.encode(next.payload);
                self.outgoing = Some(Outgoing { n: next.n, id: next.id, bytes, written: 0 });
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => {
                // Not to be begun before it is recorded as begun.
                log(&format!("the inbox cannot be written: {error}"));
                self.inbox_retry_at = Some(now + DISK_RETRY);
                Ok(false)
            }
        }
    }

    fn finish_outgoing(&mut self) {
        let Some(outgoing) = self.outgoing.take() else {
            return;
        };
        match outgoing.n {
            Some(n) => {
                if let Err(error) = self.inbox.finish_current() {
                    // The marks on disk are behind, which errs on the side of doubt.
                    log(&format!("the inbox cannot be written: {error}"));
                }
                self.control.tell(&ToHost::Written { n });
            }
            None => self.control.tell(&ToHost::UrgentWritten { id: outgoing.id }),
        }
    }

    /// The agent takes no more input.
    fn lose_input(&mut self, error: &io::Error) {
        let reason = match error.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => DisconnectReason::Dropped,
            _ => DisconnectReason::Io { what: error.to_string() },
        };
        match &mut self.channel {
            Some(Channel::Stdio(channel)) => {
                channel.close_input();
                self.record_disconnected(reason);
            }
            // What the agent had sent before stands in the socket still: reading it to its end records the rest.
            Some(Channel::Ws(channel)) => {
                channel.close_input_now();
                self.drop_outgoing();
                self.refuse_waiting(&RefusedWhy::ConnectionEnded);
            }
            None => {}
        }
    }
}

fn write_on(channel: Option<&mut Channel>, outgoing: &mut Outgoing) -> io::Result<()> {
    let channel = channel.ok_or(io::ErrorKind::NotConnected)?;
    while let Some(rest) = outgoing.bytes.get(outgoing.written..).filter(|rest| !rest.is_empty()) {
        outgoing.written += channel.write(rest)?;
    }
    Ok(())
}
