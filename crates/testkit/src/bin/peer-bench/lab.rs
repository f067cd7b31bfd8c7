//! Where one host runs: a temporary folder that is its whole world, and what is left of it ended by process id.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use mainstay_testkit::contain::Proc;
use mainstay_testkit::{CLEAN_LANG, CLEAN_PATH, Containment};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::problem::Problem;

/// How long ended processes may take to be gone; they are sent SIGKILL, so this is for a busy machine.
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Where the programs are.
#[derive(Debug, Clone)]
pub(crate) struct Programs {
    /// What `--setup` has installed.
    pub(crate) peers: PathBuf,
    /// What `cargo xtask setup` has installed.
    pub(crate) agents: PathBuf,
    /// Our own binaries.
    pub(crate) own: PathBuf,
}

impl Programs {
    pub(crate) fn own(&self, name: &str) -> PathBuf {
        self.own.join(name)
    }

    /// A file below the peers' folder, which must be there.
    pub(crate) fn peer(&self, path: &str) -> Result<PathBuf, Problem> {
        existing(self.peers.join(path))
    }

    pub(crate) fn npm(&self, path: &str) -> Result<PathBuf, Problem> {
        existing(self.peers.join("npm/node_modules").join(path))
    }
}

fn existing(path: PathBuf) -> Result<PathBuf, Problem> {
    if path.is_file() {
        return Ok(path);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Err(Problem::NotInstalled(format!("no {name}; run `cargo xtask bench --peers --setup`")))
}

/// One host's folder, and everything that descends from us while it is there.
#[derive(Debug)]
pub(crate) struct Lab {
    root: TempDir,
    containment: Containment,
    pub(crate) programs: Programs,
}

impl Lab {
    pub(crate) fn new(programs: &Programs) -> Result<Self, Problem> {
        let root = tempfile::Builder::new()
            .prefix("mainstay-peer-")
            .tempdir()
            .map_err(Problem::io("a temporary folder"))?;
        let lab = Self { root, containment: Containment::enter(), programs: programs.clone() };
        for folder in [lab.workspace(), lab.bin(), lab.path("run"), lab.path("tmp"), lab.path("data")] {
            fs::create_dir_all(&folder).map_err(Problem::io("a folder in the temporary home"))?;
        }
        fs::set_permissions(lab.path("run"), fs::Permissions::from_mode(0o700))
            .map_err(Problem::io("a private runtime folder"))?;
        Ok(lab)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.path("user")
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.home().join("work")
    }

    /// First in `PATH`.
    pub(crate) fn bin(&self) -> PathBuf {
        self.path("bin")
    }

    pub(crate) fn write(&self, path: &Path, text: &str) -> Result<(), Problem> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(Problem::io("a folder for a file of the host"))?;
        }
        fs::write(path, text).map_err(Problem::io("a file of the host"))
    }

    /// A program made of a few shell words.
    pub(crate) fn script(&self, path: &Path, body: &str) -> Result<(), Problem> {
        self.write(path, &format!("#!/bin/sh\n{body}\n"))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))
            .map_err(Problem::io("a program of the host"))
    }

    /// A command with nothing of this machine's environment; its output goes to a file of the lab.
    pub(crate) fn command(&self, program: &Path) -> Result<Command, Problem> {
        let log: File = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .map_err(Problem::io("a log file"))?;
        let errors = log.try_clone().map_err(Problem::io("a log file"))?;
        let mut command = Command::new(program);
        command.env_clear().current_dir(self.workspace()).stdin(Stdio::null()).stdout(log).stderr(errors);
        command.env("PATH", format!("{}:{CLEAN_PATH}", self.bin().display())).env("LANG", CLEAN_LANG);
        command.env("HOME", self.home()).env("TMPDIR", self.path("tmp"));
        command.env("XDG_RUNTIME_DIR", self.path("run")).env("XDG_DATA_HOME", self.path("data"));
        command.env("XDG_CONFIG_HOME", self.path("config")).env("XDG_CACHE_HOME", self.path("cache"));
        command.env("XDG_STATE_HOME", self.path("state"));
        command.env("DO_NOT_TRACK", "1");
        Ok(command)
    }

    /// The last words of the host.
    pub(crate) fn log(&self) -> String {
        let text = fs::read(self.path("log")).unwrap_or_default();
        let tail = &text[text.len().saturating_sub(2_000)..];
        String::from_utf8_lossy(tail).into_owned()
    }

    /// Every live process that came after us, whoever its parent is now.
    pub(crate) fn processes(&self) -> Vec<Proc> {
        self.containment.leftovers()
    }

    /// Ends everything that still runs.
    pub(crate) fn clear(&self) -> Result<(), Problem> {
        let give_up = Instant::now() + GONE_WITHIN;
        loop {
            let left = self.processes();
            if left.is_empty() {
                return Ok(());
            }
            if Instant::now() > give_up {
                return Err(Problem::Late { what: "the end of a host's processes", limit: GONE_WITHIN });
            }
            for process in left {
                kill(process.pid);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Kills (-9) one process by its id.
pub(crate) fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // It may have ended by itself.
        kill_process(pid, Signal::KILL).ok();
    }
}

/// Kills (-9) a process of a host that is still to be waited for.
pub(crate) fn kill_process_of(running: Option<&Running>) -> Result<(), Problem> {
    let pid = running.and_then(|running| i32::try_from(running.pid()).ok());
    pid.map(kill).ok_or(Problem::Unsupported("it does not run"))
}

/// A port that was free a moment ago.
pub(crate) fn free_port() -> Result<u16, Problem> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Problem::io("a free port"))?;
    Ok(listener.local_addr().map_err(Problem::io("a free port"))?.port())
}

/// A process of a host. Dropping it kills and reaps it.
#[derive(Debug)]
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Result<Self, Problem> {
        Ok(Self(command.spawn().map_err(Problem::io("the host's program"))?))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    /// `Some` once it has ended.
    pub(crate) fn ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a child that is already reaped.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}
