//! The end: strays, the exit record, and leaving.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::agent::reap;
use super::channel::{Channel, push_control};
use super::control::{ControlSocket, Peer};
use super::keeper::{DISK_RETRY, Keeper, Phase};
use super::{describe, log, now_ms, stderr_log};
use crate::cgroup::Cgroup;
use crate::folder::names;
use crate::manifest::{ExitCause, ExitRecord, SpawnFailure, StrayReport};
use crate::process_table::{Marks, ProcessTable, self_and_ancestors};
use crate::record::{Control, DisconnectReason, RecordKind};
use crate::strays::end_all;
use crate::wire::ToHost;

/// How long the host may take to read the last messages; everything in them stands in files too.
const GOODBYE: Duration = Duration::from_secs(1);
/// Strays that are listed singly; more are ended all the same, and counted.
const STRAYS_LISTED: usize = 256;

/// An end that is recorded as soon as the disk takes it.
pub(super) struct Leaving {
    exit: Box<ExitRecord>,
    /// A disk that stays full keeps the keeper this long, with everything in memory.
    give_up_at: Instant,
    next_try: Instant,
    announced_at: Option<Instant>,
}

impl Leaving {
    pub(super) fn due(&self) -> Instant {
        self.announced_at.map_or(self.next_try, |at| at + GOODBYE)
    }

    pub(super) fn is_done(&self, control: &ControlSocket, now: Instant) -> bool {
        let Some(announced_at) = self.announced_at else {
            return now >= self.give_up_at;
        };
        !control.host.as_ref().is_some_and(Peer::has_out) || now - announced_at >= GOODBYE
    }
}

impl Keeper {
    /// The agent is gone and its output taken: ends what it left behind and makes the exit record.
    pub(super) fn finish(&mut self, now: Instant) {
        let output_cut = self.end_channel();
        let (strays, strays_left_off) = self.end_strays();
        self.stderr_log.flush(Path::new("."));
        let exit = Box::new(self.exit_record(strays, strays_left_off, output_cut));
        log(&format!("the agent has ended: {:?}", exit.cause));
        let number = self.channel.as_ref().map_or(0, Channel::number);
        let control = Control::Exit { record: exit.clone() };
        push_control(&mut self.spool, RecordKind::Exit, exit.at_ms, number, &control);
        let give_up_at = now + Duration::from_millis(self.spec.linger_ms);
        self.phase = Phase::Leaving(Leaving { exit, give_up_at, next_try: now, announced_at: None });
        self.flush_spool(now);
    }

    /// Closes the channel and records the end of the output. True when the agent had said more than was taken.
    fn end_channel(&mut self) -> bool {
        let at_ms = now_ms();
        let Some(channel) = &mut self.channel else {
            return false;
        };
        let is_cut = channel.read_fd().is_some_and(|fd| {
            let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
            let is_ready =
                poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|count| count > 0);
            is_ready && fds.iter().any(|fd| fd.revents().contains(PollFlags::IN))
        });
        let has_socket =
            matches!(channel, Channel::Ws(_)) && (channel.read_fd().is_some() || channel.is_connecting());
        channel.end_output(&mut self.spool, at_ms);
        let number = channel.number();
        if has_socket {
            let control = Control::Disconnected { reason: DisconnectReason::AgentExited };
            push_control(&mut self.spool, RecordKind::Disconnected, at_ms, number, &control);
        }
        push_control(&mut self.spool, RecordKind::EndOfOutput, at_ms, number, &Control::EndOfOutput);
        is_cut
    }

    /// Ends every process that the agent left: all below this keeper (orphans come to it as their subreaper), all with
    /// its token in their environment, all in its control group.
    fn end_strays(&mut self) -> (Vec<StrayReport>, u64) {
        let own_pid = self.manifest.keeper.pid;
        let marks = Marks::new(&self.spec.token, &[]);
        let cgroup = self.cgroup.take();
        let find = |table: &ProcessTable| {
            let mut pids = table.descendants(own_pid);
            pids.extend(table.pids().filter(|&pid| marks.are_on(pid)));
            pids.extend(cgroup.iter().flat_map(Cgroup::members));
            pids
        };
        let ended = end_all(&self_and_ancestors(), find, || reap(None));
        reap(None);
        if let Some(cgroup) = cgroup {
            // Members that came after the last look.
            cgroup.kill();
            cgroup.remove();
        }
        match ended {
            Ok(mut strays) => {
                let left_off = strays.len().saturating_sub(STRAYS_LISTED) as u64;
                strays.truncate(STRAYS_LISTED);
                (strays, left_off)
            }
            Err(error) => {
                log(&format!("strays could not be looked for: {error}"));
                (Vec::new(), 0)
            }
        }
    }

    fn exit_record(&self, strays: Vec<StrayReport>, strays_left_off: u64, output_cut: bool) -> ExitRecord {
        let ending = self.ending.as_ref();
        let cause = self
            .recorded_spawn_failure()
            .or_else(|| ending.map(|ending| ending.cause.clone()))
            .or_else(|| self.never_became_the_agent())
            .unwrap_or(ExitCause::AgentLeft);
        let state = self.inbox.state();
        ExitRecord {
            cause,
            exit_code: self.agent.as_ref().and_then(super::agent::Agent::exit_code),
            signal: self.agent.as_ref().and_then(super::agent::Agent::exit_signal),
            last_input_written: self.inbox.last_written_in_full(),
            inputs_started: state.started,
            inputs_recorded: state.recorded,
            inputs_undelivered: self.inbox.undelivered(),
            inputs_cut: self.inbox.cut(),
            killed_by_ladder_step: ending.and_then(|ending| ending.ladder.taken()),
            strays,
            strays_left_off,
            stderr_tail: stderr_log::tail(Path::new(".")),
            output_cut,
            at_ms: now_ms(),
        }
    }

    /// Why no instruction of the agent ran, as recorded by who tried.
    fn recorded_spawn_failure(&self) -> Option<ExitCause> {
        if let Some(failure) = &self.spawn_failure {
            return Some(failure.clone());
        }
        if let Ok(Some(SpawnFailure { errno, what })) = self.folder.spawn_failure() {
            return Some(ExitCause::SpawnFailed { errno, what });
        }
        None
    }

    /// It was gone before it ran, and nobody recorded why. Where its end was ordered, the order is why.
    fn never_became_the_agent(&self) -> Option<ExitCause> {
        // Gone before it wrote its identity, and so before it became the agent. (In a deleted folder nothing can be
        // found, and nothing follows from that.)
        let is_unnamed =
            self.folder.at(names::LOCK).exists() && matches!(self.folder.agent_identity(), Ok(None));
        is_unnamed.then(|| ExitCause::SpawnFailed { errno: 0, what: "become the agent".to_owned() })
    }

    /// Announces the end once it stands in the spool and in its own file.
    pub(super) fn leave_when_recorded(&mut self, now: Instant) {
        let is_recorded = !self.spool.has_pending();
        let Phase::Leaving(leaving) = &mut self.phase else {
            return;
        };
        if leaving.announced_at.is_some() || now < leaving.next_try {
            return;
        }
        leaving.next_try = now + DISK_RETRY;
        if !is_recorded {
            return;
        }
        let is_deleted = !self.folder.at(names::LOCK).exists();
        match self.folder.write_json(names::EXIT, &leaving.exit) {
            Ok(()) => leaving.announced_at = Some(now),
            // Nobody can read it there.
            Err(_) if is_deleted => leaving.announced_at = Some(now),
            Err(error) => {
                log(&format!("the exit record cannot be written: {}", describe(&error)));
                return;
            }
        }
        let end = self.spool.end();
        self.control.tell(&ToHost::Exited { end });
    }
}
