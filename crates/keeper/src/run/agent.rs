//! The agent's process: how it is started, signalled and reaped.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process_group, pidfd_open, pidfd_send_signal, wait,
};

use super::exec::ExecSpec;
use crate::identity::ProcessIdentity;
use crate::spec::SignalTarget;

/// What the agent's output pipe may hold, in bytes; a larger pipe lets a fast agent run on while the keeper writes.
const OUTPUT_PIPE: usize = 256 * 1024;

/// The one argument that makes this program become an agent.
const EXEC_ARGUMENT: &str = "keeper-exec";

#[derive(Debug)]
pub(super) struct Agent {
    pub(super) identity: ProcessIdentity,
    pid: Pid,
    pidfd: OwnedFd,
    status: Option<WaitStatus>,
}

/// The keeper's ends of the agent's standard streams, none of which blocks.
#[derive(Debug)]
pub(super) struct Streams {
    pub(super) stdin: ChildStdin,
    pub(super) stdout: ChildStdout,
    pub(super) stderr: ChildStderr,
}

impl Agent {
    /// Starts the process. Must be called on the main thread, and that must live on: the agent's parent-death
    /// signal fires when the *thread* that started it ends.
    pub(super) fn spawn(spec: &ExecSpec) -> io::Result<(Self, Streams)> {
        let mut child = Command::new("/proc/self/exe")
            .arg(EXEC_ARGUMENT)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let taken = Self::take_over(&mut child, spec);
        if taken.is_err() {
            // It has not read its spec, or cannot be watched: it must not become an agent.
            let _ = child.kill();
            let _ = child.wait();
        }
        taken
    }

    fn take_over(child: &mut Child, spec: &ExecSpec) -> io::Result<(Self, Streams)> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        // The child is not reaped yet, so its pid means nobody else.
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        let identity = ProcessIdentity::of(pid.as_raw_nonzero().get()).map_err(io::Error::other)?;
        let taken = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = taken else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let encoded = spec.encode()?;
        // A process that died before it read its spec shows as an exit; that is the better report.
        let _ = stdin.write_all(&encoded);
        for end in [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()] {
            set_nonblocking(end)?;
        }
        // Only speed depends on the size.
        let _ = rustix::pipe::fcntl_setpipe_size(&stdout, OUTPUT_PIPE);
        Ok((Self { identity, pid, pidfd, status: None }, Streams { stdin, stdout, stderr }))
    }

    /// Readable when the process has ended.
    pub(super) fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.status.is_some()
    }

    pub(super) fn exit_code(&self) -> Option<i32> {
        self.status.and_then(WaitStatus::exit_status)
    }

    pub(super) fn exit_signal(&self) -> Option<i32> {
        self.status.and_then(WaitStatus::terminating_signal)
    }

    /// Does nothing once the process was reaped: its pid, and so its group's number, may mean others then.
    pub(super) fn signal(&self, signal: Signal, to: SignalTarget) {
        if self.has_ended() {
            return;
        }
        // What has ended meanwhile needs no signal.
        let _ = match to {
            SignalTarget::Leader => pidfd_send_signal(&self.pidfd, signal),
            SignalTarget::Group => kill_process_group(self.pid, signal),
        };
    }
}

/// Reaps every child that has ended. The only place that does, for the agent and for orphans that the keeper, as their
/// subreaper, adopted.
pub(super) fn reap(agent: Option<&mut Agent>) {
    let mut agent = agent;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        if let Some(agent) = agent.as_deref_mut()
            && agent.pid == pid
            && (status.exited() || status.signaled())
        {
            agent.status = Some(status);
        }
    }
}

pub(super) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
    Ok(())
}
