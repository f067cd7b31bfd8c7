//! From the start of a keeper process to the start of its agent.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use thiserror::Error;

use super::control::ControlSocket;
use super::keeper::{Keeper, KeeperParts};
use super::{descriptors, log, now_ms};
use crate::cgroup::Cgroup;
use crate::folder::{FolderError, KeeperFolder, names};
use crate::identity::{IdentityError, ProcessIdentity};
use crate::inbox::Inbox;
use crate::launch::{READY, SPEC_LIMIT};
use crate::manifest::{ExitCause, Manifest};
use crate::sha1::{hex, sha1};
use crate::spec::{LaunchSpec, PROTOCOL_VERSION, SOCKET_PLACEHOLDER, TOKEN_VARIABLE, Transport};
use crate::spool::SpoolWriter;

use super::agent::Agent;
use super::channel::Channel;
use super::exec::ExecSpec;
use super::stdio::StdioChannel;
use super::websocket::WsChannel;

/// Longest path that a Unix socket address can hold, without its terminating zero.
const SOCKET_PATH_MAX: usize = 107;

#[derive(Debug, Error)]
pub(super) enum NewbornError {
    #[error("could not {doing}")]
    Io { doing: &'static str, source: io::Error },
    #[error("the working folder is not the folder whose lock was handed over")]
    NotInFolder,
    #[error("the launch channel ended before the spec was complete")]
    NoSpec,
    #[error("the launch spec is too long")]
    SpecTooLong,
    #[error("the launch spec is not understood")]
    BadSpec(#[source] serde_json::Error),
    #[error("the agent's socket must be a plain file name")]
    BadSocketName,
    #[error("own identity")]
    Identity(#[source] IdentityError),
    #[error("the manifest")]
    Manifest(#[source] FolderError),
}

fn failed(doing: &'static str) -> impl FnOnce(io::Error) -> NewbornError {
    move |source| NewbornError::Io { doing, source }
}

/// Everything up to the living keeper. No agent was started when this fails.
pub(super) fn be_born() -> Result<Keeper, NewbornError> {
    descriptors::close_inherited().map_err(failed("close inherited descriptors"))?;
    // A session of its own: no terminal's signals reach it. It is a session leader already only when started by hand.
    let _ = rustix::process::setsid();
    let _ = rustix::thread::set_name(c"mainstay-keeper");
    let handed_over = descriptors::take_handed_over().map_err(failed("take what was handed over"))?;
    check_in_folder(&handed_over.lock)?;
    let mut launch_channel = UnixStream::from(handed_over.launch_channel);
    let spec = read_spec(&mut launch_channel)?;
    if let Transport::WsUnix { socket } = &spec.transport
        && (socket.name.is_empty() || socket.name.contains('/') || socket.name == names::SOCKET)
    {
        return Err(NewbornError::BadSocketName);
    }
    // Orphans of the agent become this process's children instead of init's, and so stay findable.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|errno| failed("become a subreaper")(errno.into()))?;
    let folder = KeeperFolder { path: PathBuf::from("."), token: spec.token.clone() };
    let directory = File::open(".").map_err(failed("hold the folder open"))?;
    let own = ProcessIdentity::of_self().map_err(NewbornError::Identity)?;
    let cgroup = spec.cgroup_parent.as_deref().and_then(|parent| {
        let made = Cgroup::create(parent, &spec.token);
        if made.is_none() {
            log("no control group could be made for the agent");
        }
        made
    });
    let agent_socket = agent_socket_address(&spec, own.pid).map_err(failed("name the agent's socket"))?;
    let manifest = Manifest {
        protocol_version: PROTOCOL_VERSION,
        token: spec.token.clone(),
        home: spec.home.clone(),
        host_id: spec.host_id.clone(),
        process_fence: spec.process_fence,
        keeper: own.clone(),
        program: spec.argv.first().cloned().unwrap_or_default(),
        argv_digest: argv_digest(&spec.argv),
        cwd: spec.cwd.clone(),
        agent_label: spec.agent_label.clone(),
        versions: spec.versions.clone(),
        since_ms: now_ms(),
        agent_socket: agent_socket.clone(),
        cgroup: cgroup.as_ref().map(|cgroup| cgroup.path().to_owned()),
    };
    let spool =
        SpoolWriter::create(Path::new(names::SPOOL), spec.segment_size).map_err(failed("begin the spool"))?;
    let inbox = Inbox::create(Path::new(names::INBOX)).map_err(failed("begin the inbox"))?;
    folder.write_json(names::MANIFEST, &manifest).map_err(NewbornError::Manifest)?;
    let control = ControlSocket::bind().map_err(failed("bind the control socket"))?;
    // A host that is gone already needs no answer.
    let _ = launch_channel.write_all(&[READY]);
    drop(launch_channel);

    let exec_spec = exec_spec(&spec, own.pid, agent_socket.as_deref(), cgroup.as_ref());
    let mut logged = Vec::new();
    let (agent, channel, spawn_failure) = match Agent::spawn(&exec_spec) {
        Ok((agent, streams)) => {
            logged.push(File::from(OwnedFd::from(streams.stderr)));
            let channel = match &spec.transport {
                Transport::Stdio => {
                    Channel::Stdio(StdioChannel::new(streams.stdin, streams.stdout, spec.record_limit))
                }
                // Standard output of a socket agent is chatter; it goes the way of its standard error.
                Transport::WsUnix { socket } => {
                    logged.push(File::from(OwnedFd::from(streams.stdout)));
                    Channel::Ws(WsChannel::new(socket.clone(), spec.record_limit))
                }
            };
            (Some(agent), Some(channel), None)
        }
        Err(error) => {
            let what = "start a process".to_owned();
            (None, None, Some(ExitCause::SpawnFailed { errno: error.raw_os_error().unwrap_or(0), what }))
        }
    };
    let parts = KeeperParts {
        spec,
        folder,
        directory,
        lock: handed_over.lock,
        manifest,
        spool,
        inbox,
        control,
        agent,
        channel,
        logged,
        cgroup,
        spawn_failure,
    };
    Ok(Keeper::new(parts, Instant::now()))
}

/// The lock that was handed over must be the one in the working folder.
fn check_in_folder(lock: &File) -> Result<(), NewbornError> {
    let held = lock.metadata().map_err(failed("look at the lock"))?;
    let named = std::fs::symlink_metadata(names::LOCK).map_err(failed("look for the lock"))?;
    let is_same = (held.dev(), held.ino()) == (named.dev(), named.ino());
    if is_same { Ok(()) } else { Err(NewbornError::NotInFolder) }
}

fn read_spec(channel: &mut UnixStream) -> Result<LaunchSpec, NewbornError> {
    let mut length = [0; 4];
    channel.read_exact(&mut length).map_err(|_| NewbornError::NoSpec)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > SPEC_LIMIT {
        return Err(NewbornError::SpecTooLong);
    }
    let mut json = vec![0; length];
    channel.read_exact(&mut json).map_err(|_| NewbornError::NoSpec)?;
    serde_json::from_slice(&json).map_err(NewbornError::BadSpec)
}

/// See [`SocketPlace`](crate::spec::SocketPlace).
fn agent_socket_address(spec: &LaunchSpec, own_pid: i32) -> io::Result<Option<String>> {
    let Transport::WsUnix { socket } = &spec.transport else {
        return Ok(None);
    };
    let plain = std::env::current_dir()?.join(&socket.name);
    let short = format!("/proc/{own_pid}/cwd/{}", socket.name);
    Ok(Some(match plain.to_str() {
        Some(plain) if plain.len() <= SOCKET_PATH_MAX => plain.to_owned(),
        _ => short,
    }))
}

fn exec_spec(spec: &LaunchSpec, own_pid: i32, socket: Option<&str>, cgroup: Option<&Cgroup>) -> ExecSpec {
    let argv = match socket {
        Some(socket) => spec.argv.iter().map(|part| part.replace(SOCKET_PLACEHOLDER, socket)).collect(),
        None => spec.argv.clone(),
    };
    let mut env: Vec<_> = spec.env.iter().filter(|(name, _)| name != TOKEN_VARIABLE).cloned().collect();
    env.push((TOKEN_VARIABLE.to_owned(), spec.token.clone()));
    ExecSpec {
        keeper_pid: own_pid,
        argv,
        env,
        cwd: spec.cwd.clone(),
        null_input: matches!(spec.transport, Transport::WsUnix { .. }),
        cgroup: cgroup.map(|cgroup| cgroup.path().to_owned()),
    }
}

fn argv_digest(argv: &[String]) -> String {
    let mut bytes = Vec::new();
    for part in argv {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    hex(&sha1(&bytes))
}
