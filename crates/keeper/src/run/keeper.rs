//! The living keeper: one thread, one loop, and nothing in it that waits for a peer.
//!
//! Every descriptor is non-blocking, so reading the agent, writing to it, the control socket and the ladder never wait
//! for one another. Only disk writes (and the kill of strays, when the agent is gone) take the thread's time.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::agent::{Agent, reap};
use super::channel::{Channel, push_control};
use super::control::ControlSocket;
use super::finish::Leaving;
use super::inputs::Outgoing;
use super::ladder::Ladder;
use super::stderr_log::StderrLog;
use super::{log, now_ms};
use crate::cgroup::Cgroup;
use crate::folder::KeeperFolder;
use crate::inbox::Inbox;
use crate::manifest::{ExitCause, Manifest, Order};
use crate::record::{Control, DisconnectReason, RecordKind, RefusedWhy};
use crate::spec::{AtLimit, LadderAction, LaunchSpec, PROTOCOL_VERSION, SignalName, SignalTarget};
use crate::spool::SpoolWriter;
use crate::wire::{Status, ToHost};

/// The pace of what no descriptor announces: orphans to reap, the folder's deletion, a host that stays away.
const TICK: Duration = Duration::from_secs(1);
/// How long after a refused disk write the next one is tried.
pub(super) const DISK_RETRY: Duration = Duration::from_secs(1);
/// Output after the agent's exit is taken until its end, or until none came for this long ...
const DRAIN_IDLE: Duration = Duration::from_millis(500);
/// ... or for this long altogether: a grandchild may hold the pipe and go on for ever.
const DRAIN_MAX: Duration = Duration::from_secs(3);
/// What a drain may add to a spool that is at its limit: more than any pipe holds.
const DRAIN_OVERSHOOT: u64 = 4 << 20;
/// One buffer for all reading.
const BUFFER: usize = 64 * 1024;

/// What a newborn hands over.
pub(super) struct KeeperParts {
    pub(super) spec: LaunchSpec,
    pub(super) folder: KeeperFolder,
    pub(super) directory: File,
    pub(super) lock: File,
    pub(super) manifest: Manifest,
    pub(super) spool: SpoolWriter,
    pub(super) inbox: Inbox,
    pub(super) control: ControlSocket,
    /// `None` when none could be started; then `spawn_failure` says why.
    pub(super) agent: Option<Agent>,
    pub(super) channel: Option<Channel>,
    /// Streams of the agent whose bytes go to the log.
    pub(super) logged: Vec<File>,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) spawn_failure: Option<ExitCause>,
}

pub(super) struct Keeper {
    pub(super) spec: LaunchSpec,
    pub(super) folder: KeeperFolder,
    /// The folder held open: its link count says whether it was deleted.
    directory: File,
    /// Held until this process ends; everybody else reads "a keeper lives" from it.
    _lock: File,
    pub(super) manifest: Manifest,
    pub(super) spool: SpoolWriter,
    pub(super) inbox: Inbox,
    pub(super) control: ControlSocket,
    pub(super) agent: Option<Agent>,
    pub(super) channel: Option<Channel>,
    /// `None` where it has ended.
    logged: Vec<Option<File>>,
    pub(super) stderr_log: StderrLog,
    pub(super) cgroup: Option<Cgroup>,
    pub(super) spawn_failure: Option<ExitCause>,
    pub(super) phase: Phase,
    /// Set with the first order; the agent's end is then its effect.
    pub(super) ending: Option<Ending>,
    /// The input that is being written.
    pub(super) outgoing: Option<Outgoing>,
    /// Refused inputs whose record is not on disk yet.
    pub(super) unsettled_refusals: Vec<u64>,
    /// A host asked for a new connection.
    pub(super) wants_connection: bool,
    pub(super) host_away_since: Option<Instant>,
    spool_fault: Option<Fault>,
    pub(super) inbox_retry_at: Option<Instant>,
    /// Records were appended that the host was not told of.
    bell_due: bool,
    full_since: Option<Instant>,
    next_tick: Instant,
    buffer: Vec<u8>,
}

pub(super) enum Phase {
    Running,
    /// The agent is gone; its last words are taken.
    Draining {
        began: Instant,
        since: Instant,
        last_progress: Instant,
    },
    /// The exit record is made; it is being put on disk and announced.
    Leaving(Leaving),
}

pub(super) struct Ending {
    pub(super) cause: ExitCause,
    pub(super) ladder: Ladder,
}

struct Fault {
    what: String,
    retry_at: Instant,
}

#[derive(Clone, Copy)]
enum Source {
    Listener,
    Host,
    Pending,
    AgentEnd,
    Output,
    Input,
    Logged(usize),
}

impl Keeper {
    pub(super) fn new(parts: KeeperParts, now: Instant) -> Self {
        let mut keeper = Self {
            spec: parts.spec,
            folder: parts.folder,
            directory: parts.directory,
            _lock: parts.lock,
            manifest: parts.manifest,
            spool: parts.spool,
            inbox: parts.inbox,
            control: parts.control,
            agent: parts.agent,
            channel: parts.channel,
            logged: parts.logged.into_iter().map(Some).collect(),
            stderr_log: StderrLog::new(),
            cgroup: parts.cgroup,
            spawn_failure: parts.spawn_failure,
            phase: Phase::Running,
            ending: None,
            outgoing: None,
            unsettled_refusals: Vec::new(),
            wants_connection: true,
            host_away_since: Some(now),
            spool_fault: None,
            inbox_retry_at: None,
            bell_due: false,
            full_since: None,
            next_tick: now + TICK,
            buffer: vec![0; BUFFER],
        };
        // Nothing of the spec's secrets is needed again.
        keeper.spec.env = Vec::new();
        keeper.spec.argv = Vec::new();
        if let Some(Channel::Stdio(_)) = &keeper.channel {
            let number = super::stdio::CONNECTION;
            push_control(&mut keeper.spool, RecordKind::Connected, now_ms(), number, &Control::Connected);
        }
        keeper
    }

    /// Lives until the agent's end is recorded.
    pub(super) fn live(mut self) {
        loop {
            let now = Instant::now();
            self.do_what_is_due(now);
            if matches!(&self.phase, Phase::Leaving(leaving) if leaving.is_done(&self.control, now)) {
                return;
            }
            let ready = self.wait(now);
            let now = Instant::now();
            for source in ready {
                self.handle(source, now);
            }
        }
    }

    /// Everything that does not begin with a readable descriptor.
    fn do_what_is_due(&mut self, now: Instant) {
        if now >= self.next_tick {
            self.next_tick = now + TICK;
            self.tick(now);
        }
        self.advance_connection(now);
        self.check_limit(now);
        self.walk_ladder(now);
        self.pump_inputs(now);
        self.flush_spool(now);
        self.check_end(now);
        self.leave_when_recorded(now);
        self.ring();
    }

    fn tick(&mut self, now: Instant) {
        reap(self.agent.as_mut());
        let linger = Duration::from_millis(self.spec.linger_ms);
        if self.directory.metadata().is_ok_and(|meta| meta.nlink() == 0) {
            self.begin_ending(ExitCause::FolderDeleted, now);
        } else if self.host_away_since.is_some_and(|since| now - since >= linger) {
            self.begin_ending(ExitCause::Linger, now);
        }
    }

    /// Waits until something is ready or due.
    fn wait(&self, now: Instant) -> Vec<Source> {
        let mut sources = vec![Source::Listener];
        let mut fds = vec![PollFd::from_borrowed_fd(self.control.listener_fd(), PollFlags::IN)];
        let mut watch = |source, fd, flags| {
            sources.push(source);
            fds.push(PollFd::from_borrowed_fd(fd, flags));
        };
        if let Some(host) = &self.control.host {
            let flags = if host.has_out() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            watch(Source::Host, host.fd(), flags);
        }
        for peer in self.control.pending() {
            watch(Source::Pending, peer.fd(), PollFlags::IN);
        }
        if let Some(agent) = self.agent.as_ref().filter(|agent| !agent.has_ended()) {
            watch(Source::AgentEnd, agent.pidfd(), PollFlags::IN);
        }
        if let Some(channel) = &self.channel {
            if let Some(fd) = channel.read_fd().filter(|_| self.may_read_output()) {
                watch(Source::Output, fd, PollFlags::IN);
            }
            if let Some(fd) = channel.write_fd().filter(|_| self.has_something_to_write(now)) {
                watch(Source::Input, fd, PollFlags::OUT);
            }
        }
        for (index, stream) in self.logged.iter().enumerate() {
            if let Some(stream) = stream {
                watch(Source::Logged(index), stream.as_fd(), PollFlags::IN);
            }
        }
        let wait = self.next_due().saturating_duration_since(now);
        let timeout =
            Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: i64::from(wait.subsec_nanos()) };
        if poll(&mut fds, Some(&timeout)).is_err() {
            // Interrupted, or out of kernel memory for an instant: nothing is known to be ready.
            return Vec::new();
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        sources.into_iter().zip(&fds).filter(|(_, fd)| is_ready(fd)).map(|(source, _)| source).collect()
    }

    fn next_due(&self) -> Instant {
        let mut due = self.next_tick;
        let mut consider = |at: Option<Instant>| {
            if let Some(at) = at {
                due = due.min(at);
            }
        };
        consider(self.channel.as_ref().and_then(Channel::wake_at));
        consider(self.spool_fault.as_ref().map(|fault| fault.retry_at));
        consider(self.inbox_retry_at);
        if let Some(ending) = self.ending.as_ref().filter(|_| matches!(self.phase, Phase::Running)) {
            consider(Some(ending.ladder.due()));
        }
        match &self.phase {
            Phase::Running => {}
            Phase::Draining { since, last_progress, .. } => {
                consider(Some((*since + DRAIN_MAX).min(*last_progress + DRAIN_IDLE)));
            }
            Phase::Leaving(leaving) => consider(Some(leaving.due())),
        }
        if let Some(since) = self.full_since {
            consider(Some(since + Duration::from_millis(self.spec.buffer_grace_ms)));
        }
        due
    }

    fn handle(&mut self, source: Source, now: Instant) {
        match source {
            Source::Listener => self.control.accept(now, self.manifest.keeper.pid),
            Source::Pending => self.greet_peers(now),
            Source::Host => self.hear_host(now),
            Source::AgentEnd => {
                reap(self.agent.as_mut());
            }
            Source::Output => self.read_output(now),
            Source::Input => self.pump_inputs(now),
            Source::Logged(index) => self.read_logged(index),
        }
    }

    fn read_logged(&mut self, index: usize) {
        let Some(slot) = self.logged.get_mut(index) else {
            return;
        };
        let Some(stream) = slot else { return };
        match stream.read(&mut self.buffer) {
            Ok(count) if count > 0 => {
                let bytes = self.buffer.get(..count).unwrap_or_default();
                self.stderr_log.append(Path::new("."), bytes);
                if let Phase::Draining { last_progress, .. } = &mut self.phase {
                    *last_progress = Instant::now();
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Its end.
            _ => *slot = None,
        }
    }

    // --- output -------------------------------------------------------------------------------------------------

    /// Bytes that the host has not committed may grow to this.
    fn limit_now(&self) -> u64 {
        match self.phase {
            Phase::Running => self.spec.spool_limit,
            Phase::Draining { .. } | Phase::Leaving(_) => {
                self.spec.spool_limit.saturating_add(DRAIN_OVERSHOOT)
            }
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.spool.uncommitted() >= self.limit_now()
    }

    pub(super) fn has_spool_fault(&self) -> bool {
        self.spool_fault.is_some()
    }

    fn may_read_output(&self) -> bool {
        !self.is_full() && self.spool_fault.is_none() && !matches!(self.phase, Phase::Leaving(_))
    }

    fn read_output(&mut self, now: Instant) {
        if !self.may_read_output() {
            return;
        }
        let Some(channel) = &mut self.channel else { return };
        let outcome = channel.read(&mut self.spool, &mut self.buffer, now_ms());
        if outcome.progress
            && let Phase::Draining { last_progress, .. } = &mut self.phase
        {
            *last_progress = now;
        }
        if let Some(reason) = outcome.disconnected {
            self.record_disconnected(reason);
        }
        self.flush_spool(now);
        if outcome.connected {
            self.tell_status();
        }
    }

    fn check_limit(&mut self, now: Instant) {
        if !self.is_full() || !matches!(self.phase, Phase::Running) {
            self.full_since = None;
            return;
        }
        match self.spec.at_limit {
            AtLimit::Blocks => {}
            AtLimit::Cuts => {
                // A host that is here takes what waits in a moment (one answer alone may be larger than a small limit):
                // it gets the grace. Without one nobody will, and the agent must not be made to wait.
                let since = *self.full_since.get_or_insert(now);
                let grace = Duration::from_millis(self.spec.buffer_grace_ms);
                let host_takes = self.control.host.is_some() && now - since < grace;
                if !host_takes
                    && let Some(Channel::Ws(channel)) = &mut self.channel
                    && channel.read_fd().is_some()
                {
                    self.full_since = None;
                    channel.disconnect(&mut self.spool, now_ms());
                    self.record_disconnected(DisconnectReason::SpoolLimit);
                }
            }
            AtLimit::Buffers => {
                let since = *self.full_since.get_or_insert(now);
                if now - since >= Duration::from_millis(self.spec.buffer_grace_ms) {
                    self.full_since = None;
                    self.begin_ending(ExitCause::SpoolLimit, now);
                }
            }
        }
    }

    /// Puts pending records on disk. While that is impossible the agent is not read, and nothing is lost.
    pub(super) fn flush_spool(&mut self, now: Instant) {
        if self.spool_fault.as_ref().is_some_and(|fault| now < fault.retry_at) {
            return;
        }
        let had_pending = self.spool.has_pending();
        match self.spool.flush() {
            Ok(()) => {
                self.bell_due |= had_pending;
                for n in std::mem::take(&mut self.unsettled_refusals) {
                    if self.inbox.record_refused(n).is_err() {
                        self.unsettled_refusals.push(n);
                    }
                }
                if self.spool_fault.take().is_some() {
                    log("records can be put on disk again");
                    self.tell_status();
                }
            }
            Err(error) => {
                let is_new = self.spool_fault.is_none();
                let what = error.to_string();
                self.spool_fault = Some(Fault { what: what.clone(), retry_at: now + DISK_RETRY });
                if is_new {
                    log(&format!("records cannot be put on disk: {what}"));
                    self.tell_status();
                }
            }
        }
    }

    /// Rings the host, at most as often as it listens.
    fn ring(&mut self) {
        let end = self.spool.end();
        if self.bell_due
            && let Some(host) = &mut self.control.host
            && !host.has_out()
        {
            self.bell_due = false;
            host.send(&ToHost::Doorbell { end });
        }
    }

    // --- connections --------------------------------------------------------------------------------------------

    fn advance_connection(&mut self, now: Instant) {
        // While the agent is being ended a new connection would only prolong its drain.
        let may_connect = matches!(self.phase, Phase::Running) && self.ending.is_none() && !self.is_full();
        let Some(Channel::Ws(channel)) = &mut self.channel else {
            return;
        };
        if self.wants_connection && may_connect {
            self.wants_connection = false;
            channel.start_connecting(now);
        }
        if let Some(reason) = channel.advance(now) {
            self.record_disconnected(reason);
        }
    }

    /// Records that the connection is gone, and what that means for its inputs. The channel knows already.
    pub(super) fn record_disconnected(&mut self, reason: DisconnectReason) {
        let number = self.channel.as_ref().map_or(0, Channel::number);
        let control = Control::Disconnected { reason };
        push_control(&mut self.spool, RecordKind::Disconnected, now_ms(), number, &control);
        self.drop_outgoing();
        self.refuse_waiting(&RefusedWhy::ConnectionEnded);
        self.flush_spool(Instant::now());
        self.tell_status();
    }

    // --- the end ------------------------------------------------------------------------------------------------

    /// Begins to end the agent. A second order changes nothing, except that `kill` goes to the last step at once.
    pub(super) fn begin_ending(&mut self, cause: ExitCause, now: Instant) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        let is_kill = cause == ExitCause::Ordered { order: Order::Kill };
        match &mut self.ending {
            None => {
                log(&format!("ending the agent: {cause:?}"));
                self.ending = Some(Ending { cause, ladder: Ladder::new(&self.spec.ladder, now) });
                self.tell_status();
            }
            Some(ending) if is_kill => ending.cause = cause,
            Some(_) => {}
        }
        if let Some(ending) = self.ending.as_mut().filter(|_| is_kill) {
            ending.ladder.skip_to_kill(now);
        }
    }

    fn walk_ladder(&mut self, now: Instant) {
        if self.has_agent_ended() || !matches!(self.phase, Phase::Running) {
            return;
        }
        let Some(action) = self.ending.as_mut().and_then(|ending| ending.ladder.take_due(now)) else {
            return;
        };
        match action {
            LadderAction::EndInput => self.end_input(),
            LadderAction::Signal { name, to } => {
                if let Some(agent) = &self.agent {
                    agent.signal(name.to_signal(), to);
                }
                if (name, to) == (SignalName::Kill, SignalTarget::Group)
                    && let Some(cgroup) = &self.cgroup
                {
                    cgroup.kill();
                }
            }
        }
    }

    fn end_input(&mut self) {
        let is_line_based = match &mut self.channel {
            Some(channel) if channel.connection().is_some() => {
                channel.close_input();
                channel.is_line_based()
            }
            _ => return,
        };
        if is_line_based {
            self.record_disconnected(DisconnectReason::Ordered);
        } else {
            // The agent ends the connection; a message that is half written is still completed.
            self.refuse_waiting(&RefusedWhy::ConnectionEnded);
            self.tell_status();
        }
    }

    pub(super) fn has_agent_ended(&self) -> bool {
        self.agent.as_ref().is_none_or(Agent::has_ended)
    }

    /// From the agent's exit to the exit record.
    fn check_end(&mut self, now: Instant) {
        if matches!(self.phase, Phase::Running) && self.has_agent_ended() {
            self.phase = Phase::Draining { began: now, since: now, last_progress: now };
        }
        let linger = Duration::from_millis(self.spec.linger_ms);
        let has_fault = self.spool_fault.is_some();
        let Phase::Draining { began, since, last_progress } = &mut self.phase else { return };
        if has_fault && now - *began < linger {
            // What the agent said waits in its pipe until the disk takes it; the grace begins anew then.
            (*since, *last_progress) = (now, now);
        }
        let (since, last_progress) = (*since, *last_progress);
        let has_output = self.channel.as_ref().is_some_and(|channel| channel.read_fd().is_some());
        let has_log = self.logged.iter().any(Option::is_some);
        let is_over = !has_output && !has_log;
        if is_over || now - last_progress >= DRAIN_IDLE || now - since >= DRAIN_MAX {
            self.finish(now);
        }
    }

    /// The one buffer for reading; its contents mean nothing between two uses.
    pub(super) fn read_buffer(&mut self) -> &mut [u8] {
        &mut self.buffer
    }

    // --- what the host is told ----------------------------------------------------------------------------------

    pub(super) fn status(&self) -> Status {
        let state = self.inbox.state();
        Status {
            version: PROTOCOL_VERSION,
            keeper: self.manifest.keeper.clone(),
            agent: self.agent.as_ref().map(|agent| agent.identity.clone()),
            recorded: state.recorded,
            started: state.started,
            written: state.written,
            early_written: state.early_written.clone(),
            connection: self.channel.as_ref().and_then(Channel::connection),
            connecting: self.channel.as_ref().is_some_and(Channel::is_connecting),
            spool_start: self.spool.start(),
            spool_end: self.spool.end(),
            exited: self.has_agent_ended(),
            ending: self.ending.is_some(),
            spool_fault: self.spool_fault.as_ref().map(|fault| fault.what.clone()),
        }
    }

    pub(super) fn tell_status(&mut self) {
        if self.control.host.is_some() {
            let status = Box::new(self.status());
            self.control.tell(&ToHost::Status(status));
        }
    }
}
