//! The keeper of the simulation: the real rules of the numbered inbox and the spool, in memory, but for the spool's
//! bytes, which the real reader reads from a file.

use crate::agent::{Agent, Truth};
use crate::chance::Chance;
use mainstay_host::keeping::{FarEnd, LinkEvent};
use mainstay_keeper::wire::{RejectedWhy, Status, ToKeeper};
use mainstay_keeper::{
    AtLimit, Control, DisconnectReason, ExitCause, ExitRecord, InboxState, Order, ProcessIdentity,
    RecordKind, RefusedWhy, ReservedFolder,
};
use mainstay_store::{ProcessKey, SessionKey, Store};
use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;

#[derive(Debug)]
struct Waiting {
    n: u64,
    payload: Vec<u8>,
}

/// What a keeper has room for, and what a full spool means, as the launch spec says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) bytes: u64,
    pub(crate) at_limit: AtLimit,
    /// How many inputs may wait: few, so that there is no room for one now and then.
    pub(crate) inbox: usize,
}

/// How far a keeper is.
#[derive(Debug)]
pub(crate) enum Life {
    Runs,
    /// Ordered to end.
    Ends(Order),
    /// Ends because its spool was full for too long.
    Full,
    /// Its exit record is written.
    Ended(Box<ExitRecord>),
    /// Killed, its agent with it.
    Killed,
}

/// A fault in the keeper, there on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadKeeper {
    /// It takes a number again that it has taken.
    TakesNumbersAgain,
}

#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) token: String,
    pub(crate) process: ProcessKey,
    pub(crate) session: SessionKey,
    /// Its lock.
    pub(crate) reserved: Option<ReservedFolder>,
    pub(crate) life: Life,
    pub(crate) agent: Agent,
    pub(crate) marks: InboxState,
    fence: u64,
    /// The open connection.
    connection: Option<u32>,
    /// The number of the present or last one.
    number: u32,
    wants_connection: bool,
    spool: File,
    end: u64,
    /// Up to where the host has committed.
    committed: u64,
    bound: Bounds,
    ordinary: VecDeque<Waiting>,
    urgent: VecDeque<Waiting>,
    unnumbered: VecDeque<Vec<u8>>,
    pub(crate) far: Option<FarEnd>,
    /// Stopped, as by SIGSTOP: it lives, holds its lock and does nothing.
    pub(crate) stopped: bool,
    /// Threads that hosts noted in its folder.
    pub(crate) noted: Vec<String>,
    /// To be told to the host.
    out: VecDeque<LinkEvent>,
    bad: Option<BadKeeper>,
}

/// What a keeper sees of the world while it works.
pub(crate) struct Around<'a> {
    pub(crate) now: i64,
    pub(crate) truth: &'a mut Truth,
    pub(crate) chance: &'a mut Chance,
    pub(crate) store: &'a dyn Store,
    pub(crate) trace: &'a mut Option<Vec<String>>,
}

impl Around<'_> {
    fn note(&mut self, token: &str, way: &str, bytes: &[u8]) {
        if let Some(trace) = self.trace {
            trace.push(format!("   {token} {way} {}", String::from_utf8_lossy(bytes)));
        }
    }
}

impl Keeper {
    #[expect(clippy::too_many_arguments, reason = "everything that a keeper of this world is born with")]
    pub(crate) fn born(
        (token, process, session): (String, ProcessKey, SessionKey),
        reserved: ReservedFolder,
        spool: File,
        agent: Agent,
        fence: u64,
        bound: Bounds,
        bad: Option<BadKeeper>,
        now: i64,
    ) -> Self {
        let mut keeper = Self {
            token,
            process,
            session,
            reserved: Some(reserved),
            life: Life::Runs,
            agent,
            marks: InboxState { is_of_this_boot: true, ..InboxState::default() },
            fence,
            connection: None,
            number: 0,
            wants_connection: true,
            spool,
            end: 0,
            committed: 0,
            bound,
            ordinary: VecDeque::new(),
            urgent: VecDeque::new(),
            unnumbered: VecDeque::new(),
            far: None,
            stopped: false,
            noted: Vec::new(),
            out: VecDeque::new(),
            bad,
        };
        if !keeper.agent.reconnects() {
            keeper.connect(now);
        }
        keeper
    }

    /// Connects to the agent if that is wanted. False: it is not.
    pub(crate) fn connect(&mut self, now: i64) -> bool {
        let may = matches!(self.life, Life::Runs) && self.agent.alive() && self.connection.is_none();
        if !may || !std::mem::take(&mut self.wants_connection) {
            return false;
        }
        self.number += 1;
        self.connection = Some(self.number);
        self.agent.connect(self.number);
        self.record_control(RecordKind::Connected, now, &Control::Connected);
        self.tell_status();
        true
    }

    /// The connection to the agent ends; what waited for it is never written.
    pub(crate) fn disconnect(&mut self, reason: DisconnectReason, around: &mut Around<'_>) {
        let now = around.now;
        if !self.agent.reconnects() || self.connection.take().is_none() {
            return;
        }
        self.agent.disconnect();
        self.record_control(RecordKind::Disconnected, now, &Control::Disconnected { reason });
        let mut waiting: Vec<u64> =
            self.ordinary.drain(..).chain(self.urgent.drain(..)).map(|waiting| waiting.n).collect();
        waiting.sort_unstable();
        self.unnumbered.clear();
        for n in waiting {
            settle(&mut self.marks, n);
            let why = RefusedWhy::ConnectionEnded;
            self.record_control(RecordKind::InputRefused, now, &Control::InputRefused { n, why });
        }
        self.tell_status();
    }

    pub(crate) const fn lives(&self) -> bool {
        matches!(self.life, Life::Runs | Life::Ends(_) | Life::Full)
    }

    /// Whether anything is still to come from it without somebody else.
    pub(crate) fn is_busy(&self) -> bool {
        let writes = matches!(self.life, Life::Runs) && self.has_waiting();
        !self.out.is_empty()
            || writes
            || matches!(self.life, Life::Ends(_) | Life::Full)
            || (self.lives() && !self.agent.alive())
            || self.may_connect()
    }

    fn may_connect(&self) -> bool {
        self.wants_connection
            && self.agent.alive()
            && self.connection.is_none()
            && matches!(self.life, Life::Runs)
    }

    fn has_waiting(&self) -> bool {
        !(self.ordinary.is_empty() && self.urgent.is_empty() && self.unnumbered.is_empty())
    }

    fn record_control(&mut self, kind: RecordKind, now: i64, control: &Control) {
        let payload = serde_json::to_vec(control).unwrap_or_default();
        self.record(kind, now, &payload);
    }

    /// Appends a record, framed as `mainstay_keeper::record` says.
    fn record(&mut self, kind: RecordKind, now: i64, payload: &[u8]) {
        let mut covered = vec![kind.number()];
        covered.extend(now.to_le_bytes());
        covered.extend(self.number.to_le_bytes());
        covered.extend(payload);
        let length = u32::try_from(payload.len()).unwrap_or(0);
        let mut framed = length.to_le_bytes().to_vec();
        framed.extend(crc32fast::hash(&covered).to_le_bytes());
        framed.extend(covered);
        self.spool.write_all(&framed).expect("the simulated spool takes writes");
        self.end += framed.len() as u64;
        self.tell(LinkEvent::Doorbell);
    }

    fn tell(&mut self, event: LinkEvent) {
        if self.far.is_none() {
            return;
        }
        // Bells are told once.
        if matches!(event, LinkEvent::Doorbell) && matches!(self.out.back(), Some(LinkEvent::Doorbell)) {
            return;
        }
        self.out.push_back(event);
    }

    /// A host opens a line; it takes the place of the one before.
    pub(crate) fn greet(&mut self, far: FarEnd) {
        self.out.clear();
        self.far = Some(far);
    }

    pub(crate) fn cut_line(&mut self) {
        if let Some(far) = self.far.take() {
            let _told = far.events.try_send(LinkEvent::Closed);
        }
        self.out.clear();
    }

    pub(crate) fn forget_host(&mut self) {
        self.far = None;
        self.out.clear();
    }

    /// Hears one message of the host. False: there is none.
    pub(crate) fn hear(&mut self, around: &mut Around<'_>) -> bool {
        if !self.lives() || self.stopped {
            return false;
        }
        let Some(far) = &mut self.far else { return false };
        let message = match far.urgent.try_recv() {
            Ok(message) => message,
            Err(_) => match far.messages.try_recv() {
                Ok(message) => message,
                Err(tokio::sync::mpsc::error::TryRecvError::Empty) => return false,
                Err(tokio::sync::mpsc::error::TryRecvError::Disconnected) => {
                    self.forget_host();
                    return false;
                }
            },
        };
        self.obey(message, around);
        true
    }

    fn obey(&mut self, message: ToKeeper, around: &mut Around<'_>) {
        match message {
            ToKeeper::Hello { process_fence, .. } if process_fence < self.fence => {
                self.tell(LinkEvent::Rejected { why: RejectedWhy::StaleFence { known: self.fence } });
            }
            ToKeeper::Hello { process_fence, .. } => {
                self.fence = process_fence;
                self.tell_status();
            }
            ToKeeper::Input { n, connection, urgent, payload } => {
                self.take(n, connection, urgent, payload, around);
            }
            ToKeeper::Urgent { payload, connection, .. } => {
                if matches!(self.life, Life::Runs) && self.connection == Some(connection) {
                    self.unnumbered.push_back(payload);
                }
            }
            ToKeeper::Committed { position } => {
                let durable = around.store.process(self.process).ok().flatten().map_or(0, |row| row.position);
                self.committed = self.committed.max(position);
                if position > durable {
                    around.truth.violations.push(format!(
                        "{} was told that {position} is committed; durable is {durable}",
                        self.token
                    ));
                }
            }
            ToKeeper::Close { order } => {
                if matches!(self.life, Life::Runs) {
                    self.life = Life::Ends(order);
                }
            }
            ToKeeper::Connect => self.wants_connection = true,
            ToKeeper::Ping => self.tell(LinkEvent::Alive),
            ToKeeper::Reconnect { instead_of } => {
                if matches!(self.life, Life::Runs) && self.connection == Some(instead_of) {
                    self.disconnect(DisconnectReason::Ordered, around);
                    self.wants_connection = true;
                }
            }
            ToKeeper::Unknown { .. } => {}
        }
    }

    fn take(&mut self, n: u64, connection: u32, urgent: bool, payload: Vec<u8>, around: &mut Around<'_>) {
        let known = n <= self.marks.recorded;
        if known && self.bad != Some(BadKeeper::TakesNumbersAgain) {
            self.tell(LinkEvent::Recorded { n });
            if n <= self.marks.written || self.marks.early_written.contains(&n) {
                self.tell(LinkEvent::Written);
            }
            return;
        }
        if n > self.marks.recorded + 1 {
            return self.tell(LinkEvent::NotTaken { n });
        }
        let outbox = around.store.inputs(self.process, 0).map(|rows| rows.rows).unwrap_or_default();
        let given_up = around
            .store
            .process(self.process)
            .is_ok_and(|row| row.is_some_and(|row| row.state == "abandoned"));
        // What was on its way when a user gave the process up is not in the records any more.
        if !known
            && !given_up
            && !outbox
                .iter()
                .any(|input| (input.n, input.connection) == (n, connection) && input.payload == payload)
        {
            around.truth.violations.push(format!("{} was given input {n}, which is not durable", self.token));
        }
        if !matches!(self.life, Life::Runs) {
            return self.tell(LinkEvent::Doorbell);
        }
        if self.connection != Some(connection) {
            self.marks.recorded = n;
            settle(&mut self.marks, n);
            let why = RefusedWhy::WrongConnection { current: self.connection };
            self.record_control(RecordKind::InputRefused, around.now, &Control::InputRefused { n, why });
            return self.tell(LinkEvent::Recorded { n });
        }
        if self.ordinary.len() + self.urgent.len() >= self.bound.inbox {
            return self.tell(LinkEvent::NotTaken { n });
        }
        self.marks.recorded = self.marks.recorded.max(n);
        let queue = if urgent { &mut self.urgent } else { &mut self.ordinary };
        queue.push_back(Waiting { n, payload });
        self.tell(LinkEvent::Recorded { n });
    }

    pub(crate) fn tell_status(&mut self) {
        let identity = ProcessIdentity { boot_id: "sim".to_owned(), pid: 1, start_time: 1 };
        let status = Status {
            version: mainstay_keeper::spec::PROTOCOL_VERSION,
            keeper: identity.clone(),
            agent: Some(identity),
            recorded: self.marks.recorded,
            started: self.marks.started,
            written: self.marks.written,
            early_written: self.marks.early_written.clone(),
            connection: self.connection,
            connecting: self.wants_connection,
            spool_start: 0,
            spool_end: self.end,
            exited: false,
            ending: matches!(self.life, Life::Ends(_) | Life::Full),
            spool_fault: None,
        };
        self.tell(LinkEvent::Status(Box::new(status)));
    }

    /// Writes the next input to the agent. False: there is none.
    pub(crate) fn write_one(&mut self, around: &mut Around<'_>) -> bool {
        if !matches!(self.life, Life::Runs) || self.stopped {
            return false;
        }
        if let Some(payload) = self.unnumbered.pop_front() {
            if self.agent.alive() {
                self.agent.hear(&payload, around.truth, around.chance);
            }
            return true;
        }
        let Some(next) = self.urgent.pop_front().or_else(|| self.ordinary.pop_front()) else { return false };
        start(&mut self.marks, next.n);
        around.note(&self.token, "<", &next.payload);
        if self.agent.alive() {
            self.agent.hear(&next.payload, around.truth, around.chance);
        }
        settle(&mut self.marks, next.n);
        self.tell(LinkEvent::Written);
        true
    }

    /// Begins to write the next input and is killed in it: whether the agent read it is open.
    pub(crate) fn die_writing(&mut self, around: &mut Around<'_>) {
        if let Some(next) = self.urgent.pop_front().or_else(|| self.ordinary.pop_front()) {
            start(&mut self.marks, next.n);
            if self.agent.alive() && around.chance.hits(1, 2) {
                self.agent.hear(&next.payload, around.truth, around.chance);
            }
        }
        self.kill(around.truth);
    }

    /// `kill -9`: the lock is free, the agent gone with it.
    pub(crate) fn kill(&mut self, truth: &mut Truth) {
        self.life = Life::Killed;
        self.agent.die(truth);
        self.reserved = None;
        self.cut_line();
    }

    /// Lets the agent go a step on. False: nothing happened.
    pub(crate) fn run_agent(&mut self, calm: bool, around: &mut Around<'_>) -> bool {
        if !self.lives() || self.stopped || self.meets_limit(around) {
            return false;
        }
        match self.agent.step(calm, around.truth) {
            Some(line) => {
                around.note(&self.token, ">", line.as_bytes());
                self.record(RecordKind::Message, around.now, line.as_bytes());
                true
            }
            None => false,
        }
    }

    /// Whether the spool is full; then what the launch spec says of this agent happens.
    fn meets_limit(&mut self, around: &mut Around<'_>) -> bool {
        if self.end - self.committed < self.bound.bytes || !matches!(self.life, Life::Runs) {
            return false;
        }
        // A host that is here takes what waits in a moment: an agent that does not wait gets some time.
        let patient = self.far.is_some() || around.chance.hits(3, 4);
        match self.bound.at_limit {
            AtLimit::Cuts if !patient => self.disconnect(DisconnectReason::SpoolLimit, around),
            AtLimit::Buffers if !patient => {
                self.life = Life::Full;
            }
            AtLimit::Blocks | AtLimit::Cuts | AtLimit::Buffers => {}
        }
        true
    }

    /// Whether a host that is here, and has read and recorded everything, could stop something here.
    pub(crate) fn could_be_stopped(&self) -> bool {
        let Agent::Acp(agent) = &self.agent else { return false };
        let told = self.far.is_some() && self.out.is_empty() && !self.has_waiting();
        matches!(self.life, Life::Runs) && told && self.committed == self.end && agent.runs_uncancelled()
    }

    /// How it stands, in a line.
    pub(crate) fn standing(&self) -> String {
        format!(
            "{} {:?} connection {:?} recorded {} written {} spool {} (committed {}) waiting {} host {}{}",
            self.token,
            self.life,
            self.connection,
            self.marks.recorded,
            self.marks.written,
            self.end,
            self.committed,
            self.ordinary.len() + self.urgent.len() + self.unnumbered.len(),
            if self.far.is_some() { "here" } else { "away" },
            if self.stopped { " STOPPED" } else { "" },
        )
    }

    /// Sees the agent's end, or brings the ordered one about. False: neither.
    pub(crate) fn end(&mut self, around: &mut Around<'_>) -> bool {
        let cause = match &self.life {
            _ if self.stopped => return false,
            Life::Ends(order) => ExitCause::Ordered { order: *order },
            Life::Full => ExitCause::SpoolLimit,
            Life::Runs if !self.agent.alive() => ExitCause::AgentLeft,
            _ => return false,
        };
        self.agent.die(around.truth);
        if self.agent.reconnects() {
            if self.connection.take().is_some() {
                let reason = DisconnectReason::AgentExited;
                self.record_control(RecordKind::Disconnected, around.now, &Control::Disconnected { reason });
            }
        } else {
            self.record_control(RecordKind::EndOfOutput, around.now, &Control::EndOfOutput);
        }
        let mut undelivered: Vec<u64> =
            self.ordinary.iter().chain(&self.urgent).map(|waiting| waiting.n).collect();
        undelivered.sort_unstable();
        let last_written =
            self.marks.written.max(self.marks.early_written.last().copied().unwrap_or_default());
        let record = ExitRecord {
            cause,
            exit_code: Some(0),
            signal: None,
            last_input_written: last_written,
            inputs_started: self.marks.started,
            inputs_recorded: self.marks.recorded,
            inputs_undelivered: undelivered,
            inputs_cut: Vec::new(),
            killed_by_ladder_step: None,
            strays: Vec::new(),
            strays_left_off: 0,
            stderr_tail: String::new(),
            output_cut: false,
            at_ms: around.now,
        };
        let control = Control::Exit { record: Box::new(record.clone()) };
        self.record_control(RecordKind::Exit, around.now, &control);
        self.life = Life::Ended(Box::new(record));
        self.tell(LinkEvent::Closed);
        true
    }

    /// Tells the host the next thing. False: there is none.
    pub(crate) fn deliver_one(&mut self) -> bool {
        if self.stopped {
            return false;
        }
        let (Some(far), Some(event)) = (&self.far, self.out.pop_front()) else { return false };
        let closes = matches!(event, LinkEvent::Closed);
        match far.events.try_send(event) {
            Ok(()) => {}
            Err(tokio::sync::mpsc::error::TrySendError::Full(event)) => {
                self.out.push_front(event);
                return false;
            }
            Err(tokio::sync::mpsc::error::TrySendError::Closed(_)) => self.forget_host(),
        }
        if closes {
            self.far = None;
        }
        true
    }

    /// Says the next thing twice, or after what follows it: the host must bear both.
    pub(crate) fn stutter(&mut self, twice: bool) -> bool {
        let acknowledges =
            |event: &LinkEvent| matches!(event, LinkEvent::Recorded { .. } | LinkEvent::Written);
        match (self.out.front(), self.out.get(1)) {
            (Some(LinkEvent::Recorded { n }), _) if twice => {
                let again = LinkEvent::Recorded { n: *n };
                self.out.push_front(again);
                true
            }
            (Some(LinkEvent::Written), _) if twice => {
                self.out.push_front(LinkEvent::Written);
                true
            }
            (Some(one), Some(other)) if acknowledges(one) && acknowledges(other) => {
                self.out.swap(0, 1);
                true
            }
            _ => false,
        }
    }

    /// A keeper that wrote its exit record leaves, and its lock with it.
    pub(crate) fn leave(&mut self) {
        if matches!(self.life, Life::Ended(_)) {
            self.reserved = None;
        }
    }
}

fn start(marks: &mut InboxState, n: u64) {
    advance(&mut marks.started, &mut marks.early_started, n);
}

fn settle(marks: &mut InboxState, n: u64) {
    start(marks, n);
    advance(&mut marks.written, &mut marks.early_written, n);
}

fn advance(mark: &mut u64, early: &mut Vec<u64>, n: u64) {
    if n <= *mark || early.contains(&n) {
        return;
    }
    early.push(n);
    early.sort_unstable();
    while early.first() == Some(&(*mark + 1)) {
        *mark += 1;
        early.remove(0);
    }
}
