//! Starting a keeper.
//!
//! 1. [`reserve`]: its folder appears, with the lock held by this process.
//! 2. [`start`]: the keeper process is started. It inherits three descriptors and no other: standard input is the
//!    launch channel, standard output *is the lock* (so handing it over needs no unsafe code and no race with other
//!    threads that spawn), standard error is its log. Nothing of the host's environment
//!    reaches it.
//! 3. The spec is written to the launch channel, which is then closed for writing. A keeper that meets the end before
//!    the whole spec exits without spawning anything.
//! 4. The keeper answers on the launch channel when its control socket can be connected to.
//!
//! A host that dies at any point leaves either a free lock without an agent identity (nothing ran, nothing will) or a
//! living keeper.
//!
//! The keeper is this process's child until this process ends, so somebody must reap it:
//! [`Newborn::reap_in_background`] does, with a small thread; a host that collects its children otherwise takes
//! [`Newborn::child`].

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use thiserror::Error;

use crate::folder::{FolderError, KeeperFolder, KeepersDir, ReservedFolder, names};
use crate::spec::LaunchSpec;

/// Longest launch spec, encoded. An environment can hold 2 MiB (the kernel's limit for one exec is near that).
pub const SPEC_LIMIT: usize = 8 << 20;
/// How long [`birth`] waits for the keeper's answer.
pub const READY_PATIENCE: Duration = Duration::from_secs(20);
/// A keeper's whole environment. By default glibc keeps up to twice the largest block ever freed (so one large message
/// would cost its keeper megabytes for ever); fixed thresholds give memory back. Other C libraries ignore it.
const ALLOCATOR_VARIABLE: (&str, &str) =
    ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536:glibc.malloc.trim_threshold=65536");
/// The keeper writes this on the launch channel when its socket listens.
pub(crate) const READY: u8 = b'R';

#[derive(Debug, Error)]
pub enum BirthError {
    /// No keeper process exists or existed.
    #[error("no keeper was started")]
    Before(#[source] BeforeBirth),
    /// A keeper process existed. Whether an agent does, only a probe can tell.
    #[error("the keeper was started but did not come up")]
    After(#[source] AfterBirth),
}

#[derive(Debug, Error)]
pub enum BeforeBirth {
    #[error("its folder could not be reserved")]
    Reserve(#[source] FolderError),
    #[error("the launch spec is longer than {SPEC_LIMIT} bytes")]
    SpecTooLong,
    #[error("the launch spec cannot be encoded")]
    SpecEncoding(#[source] serde_json::Error),
    #[error("the token of the spec is not the folder's")]
    OtherToken,
    #[error("could not {doing}")]
    Io { doing: &'static str, source: io::Error },
}

#[derive(Debug, Error)]
pub enum AfterBirth {
    #[error("the launch spec could not be handed over")]
    HandOver(#[source] io::Error),
    #[error("it ended before it was ready")]
    Died,
    #[error("it did not answer in time")]
    Timeout,
    #[error("its answer could not be read")]
    Answer(#[source] io::Error),
}

/// A keeper process that has just been started.
#[derive(Debug)]
pub struct Newborn {
    folder: KeeperFolder,
    child: Child,
    channel: UnixStream,
}

impl Newborn {
    pub fn folder(&self) -> &KeeperFolder {
        &self.folder
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The host's end of the launch channel, for tests that break off in the middle of it.
    #[doc(hidden)]
    pub fn channel(&mut self) -> &mut UnixStream {
        &mut self.channel
    }

    /// Waits until the control socket can be connected to.
    pub fn wait_ready(&mut self, patience: Duration) -> Result<(), AfterBirth> {
        self.channel.set_read_timeout(Some(patience)).map_err(AfterBirth::Answer)?;
        let mut answer = [0; 1];
        loop {
            return match self.channel.read(&mut answer) {
                Ok(1) if answer == [READY] => Ok(()),
                Ok(_) => Err(AfterBirth::Died),
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => continue,
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Err(AfterBirth::Timeout),
                    io::ErrorKind::ConnectionReset => Err(AfterBirth::Died),
                    _ => Err(AfterBirth::Answer(error)),
                },
            };
        }
    }

    /// The child to be reaped by the caller.
    pub fn child(self) -> Child {
        self.child
    }

    /// Reaps the keeper when it ends. When no thread can be started the keeper stays a zombie until this process
    /// ends, which harms nothing else.
    pub fn reap_in_background(self) -> KeeperFolder {
        let mut child = self.child;
        let _ = std::thread::Builder::new()
            .name("keeper-reaper".to_owned())
            .stack_size(64 * 1024)
            .spawn(move || child.wait());
        self.folder
    }
}

/// Makes the keeper's folder with its lock held by this process.
pub fn reserve(dir: &KeepersDir, token: &str) -> Result<ReservedFolder, FolderError> {
    dir.reserve(token)
}

/// Starts the keeper process and hands it the lock and the spec. `program` with `args` must end in
/// [`keeper_main`](crate::keeper_main), and `program` with the one argument `keeper-exec` in
/// [`exec_main`](crate::exec_main).
pub fn start(
    reserved: ReservedFolder,
    spec: &LaunchSpec,
    program: &Path,
    args: &[&str],
) -> Result<Newborn, BirthError> {
    if spec.token != reserved.folder.token {
        return Err(BirthError::Before(BeforeBirth::OtherToken));
    }
    let encoded = encode_spec(spec).map_err(BirthError::Before)?;
    let mut newborn = start_process(reserved, program, args).map_err(BirthError::Before)?;
    let handed_over = newborn
        .channel
        .write_all(&encoded)
        .and_then(|()| newborn.channel.shutdown(std::net::Shutdown::Write));
    match handed_over {
        Ok(()) => Ok(newborn),
        Err(source) => {
            newborn.reap_in_background();
            Err(BirthError::After(AfterBirth::HandOver(source)))
        }
    }
}

/// The launch channel carries the length (u32, little-endian) and the spec as JSON.
fn encode_spec(spec: &LaunchSpec) -> Result<Vec<u8>, BeforeBirth> {
    let json = serde_json::to_vec(spec).map_err(BeforeBirth::SpecEncoding)?;
    let length = u32::try_from(json.len())
        .ok()
        .filter(|_| json.len() <= SPEC_LIMIT)
        .ok_or(BeforeBirth::SpecTooLong)?;
    let mut encoded = length.to_le_bytes().to_vec();
    encoded.extend_from_slice(&json);
    Ok(encoded)
}

/// Starts the keeper process, which then waits for its spec. Public for tests that crash a host in between: dropping
/// the newborn closes the channel, and the keeper leaves without having spawned anything.
pub fn start_process(
    reserved: ReservedFolder,
    program: &Path,
    args: &[&str],
) -> Result<Newborn, BeforeBirth> {
    let failed = |doing| move |source| BeforeBirth::Io { doing, source };
    let ReservedFolder { folder, lock } = reserved;
    let (ours, theirs) = UnixStream::pair().map_err(failed("make the launch channel"))?;
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(folder.at(names::KEEPER_LOG))
        .map_err(failed("open the keeper's log"))?;
    let child = Command::new(program)
        .args(args)
        .env_clear()
        .env(ALLOCATOR_VARIABLE.0, ALLOCATOR_VARIABLE.1)
        .current_dir(&folder.path)
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(lock))
        .stderr(Stdio::from(log))
        .spawn()
        .map_err(failed("start the keeper's process"))?;
    Ok(Newborn { folder, child, channel: ours })
}

/// Reserves, starts, waits until the keeper can be connected to, and has it reaped when it ends.
pub fn birth(
    dir: &KeepersDir,
    spec: &LaunchSpec,
    program: &Path,
    args: &[&str],
) -> Result<KeeperFolder, BirthError> {
    let reserved =
        reserve(dir, &spec.token).map_err(|error| BirthError::Before(BeforeBirth::Reserve(error)))?;
    let mut newborn = start(reserved, spec, program, args)?;
    let ready = newborn.wait_ready(READY_PATIENCE);
    let folder = newborn.reap_in_background();
    ready.map(|()| folder).map_err(BirthError::After)
}
