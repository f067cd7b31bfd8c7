//! The process that becomes the agent.
//!
//! It writes its identity into the keeper's folder before it executes the agent, so "no identity in the folder" means
//! that no instruction of the agent ever ran. That this also holds when the keeper is killed at any moment follows
//! from the order of steps: identity written, *then* the keeper's lock seen held, then exec. Whoever sees a free lock
//! and afterwards no identity looked before the identity was written, hence before the lock was checked here, and a
//! free lock is never held again.

use std::fs::{File, TryLockError};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use crate::folder::{KeeperFolder, names};
use crate::identity::ProcessIdentity;
use crate::launch::SPEC_LIMIT;
use crate::manifest::SpawnFailure;

/// The exit code when the agent could not be executed; the reason stands in the folder.
const EXIT_SPAWN_FAILED: u8 = 127;
/// The exit code when the keeper is gone and so nothing may run.
const EXIT_ORPHANED: u8 = 126;

/// What the keeper tells this process, over the pipe that becomes the agent's standard input: in no argument, no
/// environment and no file.
#[derive(Serialize, Deserialize)]
pub(super) struct ExecSpec {
    pub(super) keeper_pid: i32,
    pub(super) argv: Vec<String>,
    pub(super) env: Vec<(String, String)>,
    pub(super) cwd: PathBuf,
    /// The agent gets no input pipe: its messages travel otherwise.
    pub(super) null_input: bool,
    pub(super) cgroup: Option<PathBuf>,
}

impl ExecSpec {
    /// A length (u32, little-endian) and JSON.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        let json = serde_json::to_vec(self)?;
        let length = u32::try_from(json.len()).map_err(io::Error::other)?;
        let mut encoded = length.to_le_bytes().to_vec();
        encoded.extend_from_slice(&json);
        Ok(encoded)
    }

    /// Reads exactly the spec and not one byte of what follows, which is the agent's.
    fn read() -> io::Result<Self> {
        let mut input = File::from(rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?);
        let mut length = [0; 4];
        input.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > SPEC_LIMIT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut json = vec![0; length];
        input.read_exact(&mut json)?;
        Ok(serde_json::from_slice(&json)?)
    }
}

struct Failure {
    /// What was tried, with what it was tried on.
    what: String,
    error: io::Error,
}

fn failure(what: &'static str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure { what: what.to_owned(), error }
}

/// Becomes the agent, or writes why not and returns.
pub(super) fn exec() -> ExitCode {
    let Ok(spec) = ExecSpec::read() else {
        return ExitCode::from(EXIT_ORPHANED);
    };
    let folder = KeeperFolder { path: PathBuf::from("."), token: String::new() };
    // Before anything else: from here on the keeper's death is this process's death.
    if set_parent_process_death_signal(Some(Signal::KILL)).is_err() || !is_child_of(spec.keeper_pid) {
        return ExitCode::from(EXIT_ORPHANED);
    }
    // The working folder changes below, so failures are written by way of the folder held open here.
    let home = match File::open(".") {
        Ok(home) => home,
        Err(_) => return ExitCode::from(EXIT_ORPHANED),
    };
    let failed = match become_agent(&spec, &folder) {
        Step::Orphaned => return ExitCode::from(EXIT_ORPHANED),
        Step::Failed(failed) => failed,
    };
    let record = SpawnFailure { errno: failed.error.raw_os_error().unwrap_or(0), what: told(&failed) };
    let written = rustix::process::fchdir(&home)
        .map_err(io::Error::from)
        .and_then(|()| folder.write_json(names::SPAWN_FAILED, &record).map_err(io::Error::other));
    drop(written);
    ExitCode::from(EXIT_SPAWN_FAILED)
}

enum Step {
    Orphaned,
    Failed(Failure),
}

fn become_agent(spec: &ExecSpec, folder: &KeeperFolder) -> Step {
    let prepared = prepare(spec, folder);
    let mut command = match prepared {
        Ok(command) => command,
        Err(failed) => return Step::Failed(failed),
    };
    if !is_lock_held() {
        return Step::Orphaned;
    }
    if let Err(error) = std::env::set_current_dir(&spec.cwd) {
        let what = format!("enter the working folder {}", spec.cwd.display());
        return Step::Failed(Failure { what, error });
    }
    let error = command.exec();
    let program = Path::new(command.get_program());
    let mut what = format!("execute the agent's program {}", program.display());
    if error.kind() == io::ErrorKind::NotFound
        && let Some(interpreter) = missing_interpreter(program)
    {
        // The system says the same of both.
        what = format!("{what}, whose interpreter {interpreter} is not there");
    }
    Step::Failed(Failure { what, error })
}

/// What a script is to be run with, where the script is there: then its interpreter is what is missing.
fn missing_interpreter(program: &Path) -> Option<String> {
    let mut head = [0; 256];
    let length = File::open(program).and_then(|mut script| script.read(&mut head)).ok()?;
    let line = head.get(..length)?.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.trim_ascii().split(u8::is_ascii_whitespace).next()?;
    Some(String::from_utf8_lossy(name).into_owned())
}

/// What was tried and why it did not go, in one line.
fn told(failed: &Failure) -> String {
    // Without the number, which is recorded beside it.
    let why = failed.error.to_string();
    let why = why.split(" (os error").next().unwrap_or(&why);
    format!("{}: {why}", failed.what)
}

fn prepare(spec: &ExecSpec, folder: &KeeperFolder) -> Result<Command, Failure> {
    let (program, arguments) = spec.argv.split_first().ok_or_else(|| Failure {
        what: "find a program in the command".to_owned(),
        error: io::ErrorKind::InvalidInput.into(),
    })?;
    if let Some(cgroup) = &spec.cgroup {
        // Without the group the agent still runs, and its processes are found by descent and token.
        let _ = std::fs::write(cgroup.join("cgroup.procs"), "0");
    }
    if spec.null_input {
        let null = File::open("/dev/null").map_err(failure("open the empty input"))?;
        rustix::stdio::dup2_stdin(&null).map_err(|errno| failure("set the empty input")(errno.into()))?;
    }
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    for (name, value) in &spec.env {
        command.env(name, value);
    }
    let identity = ProcessIdentity::of_self()
        .map_err(|error| failure("read its own identity")(io::Error::other(error)))?;
    folder
        .write_json(names::AGENT, &identity)
        .map_err(|error| failure("write its identity")(io::Error::other(error)))?;
    Ok(command)
}

fn is_child_of(keeper_pid: i32) -> bool {
    getppid().is_some_and(|parent| parent.as_raw_nonzero().get() == keeper_pid)
        && getpid().as_raw_nonzero().get() != keeper_pid
}

fn is_lock_held() -> bool {
    File::open(names::LOCK).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
}
