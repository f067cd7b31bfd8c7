//! Reading what the agent said: records by position, each translated, each decided, all of a batch committed with the
//! position behind them.

use super::batch::Then;
use super::{Lane, LeavesOut, Refused};
use crate::fault::FaultPoint;
use crate::keeping::{Planted, Settled};
use crate::link::LinkEvent;
use crate::processes;
use mainstay_agents::{Incoming, Record, Translated};
use mainstay_core::agent::NoticeLevel;
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::process::{CloseOrder, ExitCause, ProcessExit, ProcessFact};
use mainstay_core::session::{Input, Phase};
use mainstay_core::{AgentEvent, ProcessToken};
use mainstay_keeper::wire::{RejectedWhy, Status, ToKeeper};
use mainstay_keeper::{Batch, Control, RecordKind};
use mainstay_store::{QuarantinedRecord, SessionKey, WriteOp};

/// Bytes of spool read and decided as one batch: large enough to spread a commit over thousands of small frames, small
/// enough that a command waits a few milliseconds at most behind it.
const READ_BYTES: usize = 512 * 1024;

/// How often the store must refuse the same records before they are set aside: the second time nothing else was in the
/// batch that could have been the reason.
const REFUSALS: u32 = 2;
/// Bytes kept of each record that is set aside.
const QUARANTINED_BYTES: usize = 16 * 1024;

impl Lane {
    pub(super) fn may_read(&self) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        (process.greeted || process.final_exit.is_some())
            && process.bell
            && !self.pending.has_records
            && self.retry_at.is_none()
            && !self.bound().any(|member| member.machine.phase == Phase::Reserved)
    }

    /// Reads and decides one batch. False: there was nothing.
    pub(super) fn ingest(&mut self) -> bool {
        let Some(process) = &mut self.process else {
            return false;
        };
        let from = process.position;
        let batch = match process.reader.read(from, READ_BYTES) {
            Ok(batch) => batch,
            Err(error) => {
                process.bell = false;
                self.unreadable_spool(&error.to_string());
                return true;
            }
        };
        self.read_clock();
        let Some(process) = &mut self.process else {
            return false;
        };
        if batch.is_empty() {
            process.bell = false;
            if let Some(exit) = process.final_exit.take() {
                self.settle_process(exit);
                return true;
            }
            return false;
        }
        self.pending.has_records = true;
        self.pending.touched = true;
        self.pending.read_from = self.process.as_ref().map(|process| (process.key, from));
        self.pending.read_since = batch.get(0).map(|record| record.at_ms);
        self.shared.metrics.records_read.add(u64::try_from(batch.len()).unwrap_or(u64::MAX));
        let refused = self.refused.take_if(|refused| refused.position == from && refused.times >= REFUSALS);
        match refused {
            None => self.decide_records(&batch),
            Some(Refused { why, culprit: Some(culprit), .. }) if self.bound().count() > 1 => {
                self.decide_without(culprit, &why, &batch);
            }
            Some(refused) => self.set_aside(&refused.why, &batch),
        }
        true
    }

    /// The store decided against what these records make, twice: they are set aside, the position moves on, and the
    /// session says why it cannot go on by itself. Others never notice.
    fn set_aside(&mut self, why: &str, batch: &Batch) {
        let bound = self.bound_places();
        for at in &bound {
            tracing::error!(session = %self.members[*at].machine.id, why, "records are set aside");
            for record in batch.records() {
                self.quarantine(*at, record.position, record.at_ms, why, record.payload);
            }
        }
        let Some(process) = &mut self.process else { return };
        process.position = batch.next();
        for at in bound {
            self.hold_after_refusal(at, why);
        }
    }

    /// One of several sessions is why the store decided against these records, twice: those that are about it are set
    /// aside for it, and the others go on with theirs.
    fn decide_without(&mut self, culprit: SessionKey, why: &str, batch: &Batch) {
        let Some(at) = self.place_of(culprit).filter(|at| self.is_bound(*at)) else {
            return self.decide_records(batch);
        };
        tracing::error!(session = %self.members[at].machine.id, why, "records of a session are set aside");
        self.hold_after_refusal(at, why);
        self.leaves_out = Some(LeavesOut { session: self.members[at].key, why: why.to_owned() });
        self.decide_records(batch);
        self.leaves_out = None;
    }

    fn hold_after_refusal(&mut self, at: usize, why: &str) {
        let message = format!(
            "what the agent said could not be recorded ({why}); it is set aside and the agent is ended"
        );
        self.decide_own(at, Input::Hold(Failure::new(FailureCode::Other, message)));
    }

    fn quarantine(&mut self, at: usize, position: u64, recorded_at: i64, reason: &str, record: &[u8]) {
        let Some(process) = &self.process else { return };
        self.shared.metrics.quarantined.one();
        self.pending.ops.push(WriteOp::Quarantine(QuarantinedRecord {
            session: self.members[at].key,
            process: process.key,
            position,
            at: recorded_at,
            reason: reason.to_owned(),
            record: record.iter().copied().take(QUARANTINED_BYTES).collect(),
        }));
    }

    /// What the agent said about a session that cannot be loaded, or because of which the store refused, is kept beside
    /// it.
    pub(super) fn keep_for_repair(&mut self, at: usize, event: &AgentEvent) {
        let reason = match (&self.leaves_out, &self.members[at].broken) {
            (Some(left), _) => left.why.clone(),
            (None, Some(error)) => error.to_string(),
            (None, None) => return,
        };
        let position = self.process.as_ref().map_or(0, |process| process.position);
        let said = format!("{event:?}");
        self.quarantine(at, position, self.now, &reason, said.as_bytes());
    }

    fn decide_records(&mut self, batch: &Batch) {
        let mut translated = Translated::default();
        for record in batch.records() {
            let Some(process) = &mut self.process else { return };
            process.position = record.next;
            let at = self.pace.of_record(record.at_ms, self.now);
            let control = match record.kind {
                RecordKind::Message => {
                    let incoming = Incoming::Message(record.payload);
                    let record = Record { connection: record.connection, at, incoming };
                    process.adapter.ingest(record, &mut translated);
                    self.route(&mut translated);
                    continue;
                }
                _ => record.control(),
            };
            let token = process.token.clone();
            match control {
                Some(Ok(control)) => self.decide_control(&token, record.connection, at, control),
                Some(Err(error)) => {
                    tracing::error!(%error, kind = ?record.kind, "a keeper's record is not understood");
                }
                None => {}
            }
        }
    }

    fn decide_control(&mut self, token: &ProcessToken, connection: u32, at: i64, control: Control) {
        let mut translated = Translated::default();
        let Some(process) = &mut self.process else { return };
        let mut ingest = |incoming: Incoming<'_>| {
            process.adapter.ingest(Record { connection, at, incoming }, &mut translated);
        };
        match control {
            Control::Connected => {
                ingest(Incoming::Connected);
                process.connection = connection;
                for member in &mut self.members {
                    member.told_to_leave = false;
                }
                self.route(&mut translated);
                let fact = ProcessFact::Connection { process: token.clone(), connection: Some(connection) };
                self.decide_for_all(&Input::Process(fact));
            }
            Control::Disconnected { reason } => {
                ingest(Incoming::Disconnected);
                let (reconnects, ending, key) = (process.reconnects, process.ending, process.key);
                self.route(&mut translated);
                tracing::info!(?reason, "an agent's connection ended");
                if reconnects && !ending && !matches!(reason, mainstay_keeper::DisconnectReason::AgentExited)
                {
                    let fact = ProcessFact::Connection { process: token.clone(), connection: None };
                    self.decide_for_all(&Input::Process(fact));
                    self.pending.then.push(Then::Connect(key));
                }
            }
            Control::Fragment { head, .. } => {
                ingest(Incoming::Fragment(head.as_bytes()));
                self.route(&mut translated);
            }
            Control::Oversize { length, head } => {
                ingest(Incoming::Oversize { length, head: head.as_bytes() });
                self.route(&mut translated);
            }
            Control::InputRefused { n, why } => {
                let fact = ProcessFact::InputRefused { process: token.clone(), n, why: format!("{why:?}") };
                // It carried the message of one of them; to the others it says nothing.
                let whose = self
                    .bound_places()
                    .into_iter()
                    .find(|at| self.members[*at].machine.submissions.iter().any(|open| open.delivered_as(n)));
                match whose {
                    Some(at) => self.decide_own(at, Input::Process(fact)),
                    None => self.decide_for_all(&Input::Process(fact)),
                }
            }
            Control::Exit { record } => self.settle_process(processes::exit(&record)),
            Control::EndOfOutput | Control::Unknown => {}
        }
    }

    fn unreadable_spool(&mut self, why: &str) {
        let process = self.process.as_ref().map(|process| &process.token);
        tracing::error!(?process, why, "the spool cannot be read; the process is ended");
        let message =
            format!("what the agent said cannot be read any more ({why}); its process is being ended");
        self.decide_for_all(&Input::Agent(AgentEvent::Notice {
            level: NoticeLevel::Error,
            message,
            provider: None,
        }));
        let process = self.process.as_ref().map(|process| process.key);
        self.pending.then.push(Then::Close(process, CloseOrder::Kill));
        if let Some(process) = &mut self.process
            && process.link.is_none()
            && let Some(exit) = process.final_exit.take()
        {
            self.settle_process(exit);
        }
    }

    pub(super) fn pump(&mut self) {
        if let Some(process) = &mut self.process {
            if self.shared.has_planted(Planted::ConnectionForgotten) {
                let connection = process.connection;
                process.unrecorded.iter_mut().for_each(|input| input.connection = connection);
            }
            process.pump();
        }
    }

    pub(super) fn on_link(&mut self, event: LinkEvent) {
        self.read_clock();
        if !matches!(event, LinkEvent::Closed | LinkEvent::Status(_) | LinkEvent::Rejected { .. }) {
            self.heard();
        }
        let Some(process) = &mut self.process else { return };
        match event {
            LinkEvent::Alive => {}
            LinkEvent::Status(status) => self.on_status(&status),
            LinkEvent::Recorded { n } => {
                self.shared.config.fault.pass(FaultPoint::DeliveredNotAcknowledged);
                process.recorded_up_to(n);
            }
            LinkEvent::Written => process.stalled = false,
            LinkEvent::NotTaken { n } if self.shared.has_planted(Planted::NoRoomIsSilent) => {
                process.recorded_up_to(n);
            }
            LinkEvent::NotTaken { n } => {
                // Those behind it are refused as gaps; all are sent again in order once something was written.
                let at = process.unrecorded.iter().position(|input| input.n >= n).unwrap_or(process.sent);
                process.sent = process.sent.min(at);
                process.stalled = true;
                self.unstall_at = Some(tokio::time::Instant::now() + super::RELINK_PAUSE);
            }
            LinkEvent::Doorbell => process.bell = true,
            LinkEvent::Rejected { why: RejectedWhy::StaleFence { known } } => {
                self.own_keeper_is_ahead(known);
            }
            LinkEvent::Rejected { why } => tracing::warn!(?why, "a keeper refused something"),
            LinkEvent::Closed => {
                process.link = None;
                if std::mem::take(&mut process.greeted) {
                    self.look_at_process();
                } else {
                    // It did not even greet: not at once again.
                    self.relink_at = Some(tokio::time::Instant::now() + super::RELINK_PAUSE);
                }
            }
        }
    }

    /// Asks the keeper for a sign of life.
    pub(super) fn ping(&mut self) {
        self.ping_at = None;
        let link =
            self.process.as_ref().filter(|process| process.greeted).and_then(|process| process.link.as_ref());
        if let Some(link) = link
            && link.send_urgent(ToKeeper::Ping)
        {
            self.answer_by = Some(tokio::time::Instant::now() + super::ANSWER_DEADLINE);
        }
    }

    pub(super) fn on_unanswered(&mut self) {
        self.answer_by = None;
        self.read_clock();
        if let Some(process) = &mut self.process
            && process.link.is_some()
            && process.final_exit.is_none()
        {
            if self.shared.planted == Some(Planted::SilenceIsDeath) {
                process.final_exit = Some(ProcessExit::of(ExitCause::KeeperLost));
                process.bell = true;
                process.link = None;
                return;
            }
            process.doubted = true;
            let why = "its keeper does not answer".to_owned();
            let process = process.token.clone();
            self.decide_for_all(&Input::Process(ProcessFact::Unverifiable { process, why }));
            self.pending.touched = true;
        }
    }

    /// The keeper has said something on a line that it has greeted: it lives.
    fn heard(&mut self) {
        self.answer_by = None;
        let Some(process) = self.process.as_mut().filter(|process| process.greeted) else { return };
        process.doubted = false;
        let process = process.token.clone();
        for at in self.bound_places() {
            if self.members[at].machine.unverifiable.is_some() {
                let process = process.clone();
                self.decide_own(at, Input::Process(ProcessFact::Adopted { process }));
                self.pending.touched = true;
            }
        }
    }

    fn on_status(&mut self, status: &Status) {
        self.answer_by = None;
        let standing = self.close_order();
        let Some(process) = &mut self.process else { return };
        let first = !std::mem::replace(&mut process.greeted, true);
        if first && self.shared.has_planted(Planted::NumbersForgotten) {
            let behind = process
                .unrecorded
                .front()
                .map_or(0, |input| status.recorded + 1 - input.n.min(status.recorded + 1));
            process.unrecorded.iter_mut().for_each(|input| input.n += behind);
        }
        process.recorded_up_to(status.recorded);
        process.stalled = false;
        process.unclear = 0;
        if first {
            process.sent = 0;
        }
        // A database that was restored may know fewer inputs than the keeper: those numbers are taken.
        process.last_input = process.last_input.max(status.recorded);
        process.bell = true;
        let token = process.token.clone();
        let adopting = std::mem::take(&mut process.adopting);
        if let Some(link) = &process.link {
            // An order may have been lost between the queue and the keeper, with the line or with a former host.
            let order = process.close.take().or(standing).filter(|_| !status.ending);
            let told = order
                .is_some_and(|order| link.send_urgent(ToKeeper::Close { order: processes::order(order) }));
            process.close = order.filter(|_| !told);
            process.ending = status.ending || order.is_some();
            let unconnected =
                status.connection.is_none() && !status.connecting && !status.exited && !status.ending;
            if process.reconnects && unconnected && (process.connection > 0 || process.position > 0) {
                // The order to connect again was lost with the former host.
                let _sent = link.send_urgent(ToKeeper::Connect);
            }
            // Said of this process, and never by us: another host made the connection, and its state is lost. Or nobody here
            // knows what the agent said when it was greeted: the session that heard it is gone, or cannot be loaded.
            let lost = process.connection == 0 && process.position > 0;
            let unheard = process.connection > 0
                && process.ready.is_none()
                && !self.shared.has_planted(Planted::HandshakeForgotten);
            if first
                && process.reconnects
                && (lost || unheard)
                && !status.ending
                && let Some(instead_of) = status.connection
            {
                let _sent = link.send_urgent(ToKeeper::Reconnect { instead_of });
            }
            let _later = link.send(ToKeeper::Committed { position: process.committed });
        }
        process.doubted = false;
        process.identity = status.agent.as_ref().map(processes::identity);
        if self.bound().any(|member| member.machine.phase == Phase::Reserved) {
            self.shared.config.fault.pass(FaultPoint::SpawnedNotRecorded);
        }
        for at in self.bound_places() {
            let machine = &self.members[at].machine;
            if machine.phase == Phase::Reserved {
                self.bring_up(at);
            } else if adopting || machine.unverifiable.is_some() {
                let process = token.clone();
                self.decide_own(at, Input::Process(ProcessFact::Adopted { process }));
                self.bring_up(at);
            }
        }
        self.pending.touched = true;
    }

    pub(super) fn on_settled(&mut self, settled: Settled) {
        self.settling = None;
        self.read_clock();
        let Some(process) = &mut self.process else { return };
        let settled = match settled {
            Settled::Unverifiable(_) if self.shared.has_planted(Planted::DeathByGuess) => {
                Settled::Gone(ProcessExit::of(ExitCause::KeeperLost))
            }
            settled => settled,
        };
        match settled {
            Settled::Alive => self.relink(),
            Settled::NotYet => {
                self.relink_at = Some(tokio::time::Instant::now() + super::RELINK_PAUSE);
            }
            Settled::Gone(exit) => {
                process.final_exit = Some(exit);
                process.bell = true;
                process.link = None;
                let reserved = self.bound().any(|member| member.machine.phase == Phase::Reserved);
                if reserved && self.retry_at.is_none() {
                    self.settle_unstarted();
                }
            }
            Settled::Unverifiable(_) if process.unclear < super::UNCLEAR_LOOKS => {
                process.unclear += 1;
                self.relink_at = Some(tokio::time::Instant::now() + super::RELINK_PAUSE);
            }
            Settled::Unverifiable(why) => {
                self.relink_at = Some(tokio::time::Instant::now() + super::UNVERIFIABLE_PAUSE);
                process.doubted = true;
                let process = process.token.clone();
                self.decide_for_all(&Input::Process(ProcessFact::Unverifiable { process, why }));
                self.pending.touched = true;
            }
        }
    }

    /// It may have run though its start was never recorded: what it said is read before it is settled.
    fn settle_unstarted(&mut self) {
        let Some(process) = &mut self.process else { return };
        match process.final_exit.take() {
            Some(exit) if exit.cause == ExitCause::ReservationUnused => {
                let failed = |why| ProcessExit {
                    spawn_error: Some(why),
                    may_pass: true,
                    ..ProcessExit::of(ExitCause::SpawnFailed)
                };
                let exit = process.did_not_come_up.take().map_or(exit, failed);
                self.settle_process(exit);
            }
            Some(exit) => {
                process.final_exit = Some(exit);
                let token = process.token.clone();
                for at in self.bound_places() {
                    if self.members[at].machine.phase == Phase::Reserved {
                        let process = token.clone();
                        let fact = ProcessFact::Started { process, agent: None };
                        self.decide_own(at, Input::Process(fact));
                    }
                }
            }
            None => {}
        }
    }
}
