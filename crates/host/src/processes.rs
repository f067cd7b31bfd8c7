//! Between the host's words for processes and the keeper's.

use crate::config::{AgentConfig, HostConfig};
use mainstay_agents::{
    AtSpoolLimit, Conversation, LaunchPlan, LaunchRequest, PlanError, PlannedStep, PlannedTransport,
};
use mainstay_core::process::{CloseOrder, ExitCause, ProcessExit, ProcessId, Stray};
use mainstay_keeper as keeper;
use mainstay_keeper::manifest::{StrayOutcome, StrayReport};
use mainstay_keeper::spec::DEFAULT_BUFFER_GRACE_MS;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Agents' own variables that mark the processes they start, beside the keeper's token (measured: codex.md 8,
/// claude.md 8).
const NO_PROVIDER_MARKS: Vec<(String, String)> = Vec::new();

/// What differs from one launch to the next.
pub(crate) struct Launch<'a> {
    pub(crate) token: &'a str,
    pub(crate) process_fence: u64,
    pub(crate) agent_name: &'a str,
    pub(crate) agent: &'a AgentConfig,
    pub(crate) command: Vec<String>,
    pub(crate) account_home: Option<PathBuf>,
    pub(crate) cwd: PathBuf,
    pub(crate) conversation: Option<Conversation>,
    pub(crate) additional_directories: Vec<String>,
}

/// Makes the keeper's launch spec.
pub(crate) fn launch_spec(config: &HostConfig, launch: Launch<'_>) -> Result<keeper::LaunchSpec, PlanError> {
    let request = LaunchRequest {
        command: launch.command,
        account_home: launch.account_home,
        env: config.agent_environment(launch.agent),
        conversation: launch.conversation,
        additional_directories: launch.additional_directories,
    };
    let LaunchPlan { argv, env, transport, ladder, at_limit } =
        mainstay_agents::launch::plan(launch.agent.kind, &request)?;
    Ok(keeper::LaunchSpec {
        protocol_version: keeper::spec::PROTOCOL_VERSION,
        token: launch.token.to_owned(),
        home: config.home.clone(),
        host_id: config.host_id.0.clone(),
        process_fence: launch.process_fence,
        argv,
        env,
        cwd: launch.cwd,
        transport: match transport {
            PlannedTransport::Stdio => keeper::Transport::Stdio,
            PlannedTransport::WsUnix => keeper::Transport::WsUnix { socket: keeper::SocketPlace::default() },
        },
        ladder: ladder.into_iter().map(step).collect(),
        spool_limit: config.spool_limit,
        at_limit: match at_limit {
            AtSpoolLimit::Blocks => keeper::AtLimit::Blocks,
            AtSpoolLimit::Cuts => keeper::AtLimit::Cuts,
            AtSpoolLimit::Buffers => keeper::AtLimit::Buffers,
        },
        buffer_grace_ms: DEFAULT_BUFFER_GRACE_MS,
        segment_size: keeper::spec::DEFAULT_SEGMENT_SIZE,
        record_limit: keeper::spec::DEFAULT_RECORD_LIMIT,
        linger_ms: u64::try_from(config.linger.as_millis()).unwrap_or(u64::MAX),
        cgroup_parent: delegated_cgroup(),
        provider_vars: NO_PROVIDER_MARKS,
        agent_label: launch.agent_name.to_owned(),
        versions: concat!("mainstay ", env!("CARGO_PKG_VERSION")).to_owned(),
    })
}

fn step(step: PlannedStep) -> keeper::LadderStep {
    let signal = |name| keeper::LadderAction::Signal { name, to: keeper::SignalTarget::Leader };
    let (action, deadline_ms) = match step {
        PlannedStep::EndInput { wait_ms } => (keeper::LadderAction::EndInput, wait_ms),
        PlannedStep::Terminate { wait_ms } => (signal(keeper::SignalName::Term), wait_ms),
        PlannedStep::Interrupt { wait_ms } => (signal(keeper::SignalName::Int), wait_ms),
    };
    keeper::LadderStep { action, deadline_ms }
}

pub(crate) fn order(order: CloseOrder) -> keeper::Order {
    match order {
        CloseOrder::Host => keeper::Order::Host,
        CloseOrder::User => keeper::Order::User,
        CloseOrder::Idle => keeper::Order::Idle,
        CloseOrder::Kill => keeper::Order::Kill,
    }
}

pub(crate) fn identity(identity: &keeper::ProcessIdentity) -> ProcessId {
    ProcessId { boot_id: identity.boot_id.clone(), pid: identity.pid, start_time: identity.start_time }
}

/// Whether the machine had no room for a process: none to be had, or no memory, descriptors or disk for it.
fn is_lack_of_room(errno: i32) -> bool {
    let room = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::NOSPC, Errno::DQUOT];
    room.iter().any(|lack| lack.raw_os_error() == errno)
}

/// How a start ended that failed with this error before a process came to be.
pub(crate) fn failed_start(error: &(dyn std::error::Error + 'static), why: String) -> ProcessExit {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let errno = causes.find_map(|error| error.downcast_ref::<std::io::Error>()?.raw_os_error());
    ProcessExit {
        spawn_error: Some(why),
        may_pass: errno.is_some_and(is_lack_of_room),
        ..ProcessExit::of(ExitCause::SpawnFailed)
    }
}

/// A keeper's exit record as a fact for the session.
#[must_use]
pub fn exit(record: &keeper::ExitRecord) -> ProcessExit {
    let (mut spawn_error, mut may_pass) = (None, false);
    let cause = match &record.cause {
        // A newer keeper's word: what it says for certain is that the agent is gone.
        keeper::ExitCause::AgentLeft | keeper::ExitCause::Unknown => ExitCause::AgentLeft,
        keeper::ExitCause::Ordered { order } => ExitCause::Ordered {
            order: match order {
                keeper::Order::Host | keeper::Order::Other => CloseOrder::Host,
                keeper::Order::User => CloseOrder::User,
                keeper::Order::Idle => CloseOrder::Idle,
                keeper::Order::Kill => CloseOrder::Kill,
            },
        },
        keeper::ExitCause::SpawnFailed { what, errno } => {
            may_pass = is_lack_of_room(*errno);
            spawn_error = Some(what.clone());
            ExitCause::SpawnFailed
        }
        keeper::ExitCause::FolderDeleted => ExitCause::FolderDeleted,
        keeper::ExitCause::Linger => ExitCause::Linger,
        keeper::ExitCause::SpoolLimit => ExitCause::SpoolLimit,
    };
    ProcessExit {
        exit_code: record.exit_code,
        signal: record.signal,
        last_written: Some(record.last_input_written),
        last_started: Some(record.inputs_recorded),
        undelivered: record.inputs_undelivered.clone(),
        stderr_tail: record.stderr_tail.clone(),
        strays: record.strays.iter().map(stray).collect(),
        spawn_error,
        may_pass,
        ..ProcessExit::of(cause)
    }
}

pub(crate) fn stray(report: &StrayReport) -> Stray {
    Stray {
        pid: report.pid,
        comm: report.comm.clone(),
        gone: matches!(report.outcome, StrayOutcome::Killed | StrayOutcome::Gone),
    }
}

/// What a kept inbox says after a keeper's unproven end.
#[must_use]
pub fn exit_without_record(cause: ExitCause, inbox: Option<keeper::InboxState>) -> ProcessExit {
    let mut exit = ProcessExit::of(cause);
    if let Some(inbox) = inbox.filter(|inbox| inbox.is_of_this_boot) {
        let begun = inbox.started.max(inbox.early_started.last().copied().unwrap_or(0));
        exit.last_written = Some(inbox.written);
        exit.last_started = Some(begun);
        exit.undelivered =
            (inbox.started + 1..begun).filter(|n| inbox.fate(*n) == keeper::InputFate::NeverBegun).collect();
    }
    exit
}

/// The mark that systemd sets on the cgroup which it hands over to a service (`Delegate=yes`).
const DELEGATED: &str = "user.delegate";

/// The cgroup below which each keeper may make one for its agent, where one is delegated to this host: the marked one
/// that this host is in, else its own, if it is not the root and may be written to. Then `cgroup.kill` ends everything
/// that an agent started.
pub(crate) fn delegated_cgroup() -> Option<PathBuf> {
    let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let folder = place_of_keepers(&own, &mounts, is_marked)?;
    let writable = |path: &Path| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    // A process is moved by whoever may write to the list of the nearest group that both places share.
    (writable(&folder) && writable(&folder.join("cgroup.procs"))).then_some(folder)
}

fn is_marked(folder: &Path) -> bool {
    let mut value = [0; 1];
    rustix::fs::getxattr(folder, DELEGATED, &mut value).is_ok_and(|length| value[..length] == *b"1")
}

/// Where the unified hierarchy shows the group that is delegated to this process, from the texts of `/proc/self/cgroup`
/// and `/proc/self/mounts`. The host may stand in a leaf of it; the agents' groups then stand beside that. None at
/// the root: that is the machine's, not ours.
fn place_of_keepers(own: &str, mounts: &str, is_marked: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/")).filter(|path| !path.is_empty())?;
    let mount = mounts.lines().find_map(|line| {
        let mut fields = line.split(' ');
        let (place, kind) = (fields.nth(1)?, fields.next()?);
        (kind == "cgroup2").then_some(Path::new(place))
    })?;
    let folder = mount.join(path);
    let marked = folder.ancestors().take_while(|group| *group != mount).find(|group| is_marked(group));
    Some(marked.map_or_else(|| folder.clone(), Path::to_path_buf))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";

    #[test]
    fn the_own_cgroup_is_found_and_the_root_is_never_taken() {
        let own = "4:memory:/legacy\n0::/user.slice/user-1000.slice/app\n";
        let nothing_marked = |_: &Path| false;
        assert_eq!(
            place_of_keepers(own, MOUNTS, nothing_marked),
            Some(PathBuf::from("/sys/fs/cgroup/user.slice/user-1000.slice/app"))
        );
        for (own, mounts) in
            [("0::/\n", MOUNTS), ("4:memory:/legacy\n", MOUNTS), (own, "proc /proc proc rw 0 0\n"), ("", "")]
        {
            assert_eq!(place_of_keepers(own, mounts, |_| true), None, "{own:?}");
        }
    }

    #[test]
    fn a_host_in_a_leaf_puts_agents_beside_itself_and_never_above_what_it_was_given() {
        let own = "0::/system.slice/mainstay.service/host\n";
        let unit = Path::new("/sys/fs/cgroup/system.slice/mainstay.service");
        assert_eq!(place_of_keepers(own, MOUNTS, |group| group == unit), Some(unit.to_path_buf()));
        let user = Path::new("/sys/fs/cgroup/user.slice");
        let own = "0::/user.slice/user@1000.service/app.slice/mainstay.service/host\n";
        let inner = Path::new("/sys/fs/cgroup/user.slice/user@1000.service/app.slice/mainstay.service");
        // Delegated within delegated: the nearest one is this service's.
        assert_eq!(
            place_of_keepers(own, MOUNTS, |group| group == user || group == inner),
            Some(inner.to_path_buf())
        );
        // The root carries no mark that counts.
        let root = Path::new("/sys/fs/cgroup");
        assert_eq!(place_of_keepers(own, MOUNTS, |group| group == root), Some(inner.join("host")));
    }
}
