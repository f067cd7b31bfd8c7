//! A temporary home and the host process itself, as the end-to-end tests use them.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::claude::ClaudeHome;
use crate::codex::CodexHome;
use crate::http::{Addr, Client};
use crate::wait::wait_for;
use crate::{CLEAN_LANG, CLEAN_PATH};

/// How long a host may take to say where it listens. It should take milliseconds; this is for a busy machine.
const START_DEADLINE: Duration = Duration::from_secs(60);

/// Everything a host and its agents may touch, in one temporary folder that goes with this value.
#[derive(Debug)]
pub struct Home {
    root: TempDir,
    hosts_started: AtomicUsize,
}

impl Default for Home {
    fn default() -> Self {
        Self::new()
    }
}

impl Home {
    /// Makes the folders.
    ///
    /// # Panics
    /// When that fails.
    pub fn new() -> Self {
        let root = tempfile::Builder::new().prefix("mainstay-test-").tempdir().expect("a temporary folder");
        let home = Self { root, hosts_started: AtomicUsize::new(0) };
        for folder in [home.mainstay_home(), home.user_home(), home.runtime_dir(), home.workspace()] {
            fs::create_dir_all(&folder).expect("a folder in the temporary home");
        }
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(home.runtime_dir(), fs::Permissions::from_mode(0o700))
            .expect("a private runtime folder");
        home
    }

    /// The temporary folder that holds all the others.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// `MAINSTAY_HOME`.
    pub fn mainstay_home(&self) -> PathBuf {
        self.root.path().join("state")
    }

    /// `HOME`.
    pub fn user_home(&self) -> PathBuf {
        self.root.path().join("user")
    }

    /// `XDG_RUNTIME_DIR`.
    pub fn runtime_dir(&self) -> PathBuf {
        self.root.path().join("run")
    }

    /// A folder for sessions to work in; below [`user_home`](Self::user_home), the default root for sessions.
    pub fn workspace(&self) -> PathBuf {
        self.user_home().join("work")
    }

    /// Writes `config.toml` in place of the one before.
    ///
    /// # Panics
    /// When that fails.
    pub fn write_config(&self, toml: &str) {
        fs::write(self.mainstay_home().join("config.toml"), toml).expect("write config.toml");
    }

    /// The host's bearer token.
    ///
    /// # Panics
    /// When no host has made one yet.
    pub fn token(&self) -> String {
        let token = fs::read_to_string(self.mainstay_home().join("token")).expect("the host's token file");
        token.trim().to_owned()
    }

    /// A complete environment for a `mainstay` process of this home; nothing of the machine's own.
    pub fn env(&self) -> Vec<(String, String)> {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        [
            ("PATH", CLEAN_PATH.to_owned()),
            ("LANG", CLEAN_LANG.to_owned()),
            ("HOME", text(self.user_home())),
            ("MAINSTAY_HOME", text(self.mainstay_home())),
            ("XDG_RUNTIME_DIR", text(self.runtime_dir())),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// A `mainstay` command of this home with a clean environment: for the command line under test.
    pub fn command(&self, binary: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(binary);
        command.args(arguments).env_clear().envs(self.env()).current_dir(self.workspace());
        command.stdin(Stdio::null());
        command
    }
}

/// The part of `config.toml` that makes `codex` this binary with this home and nothing else in its environment.
pub fn codex_config(binary: &Path, codex: &CodexHome) -> String {
    let env: Vec<(String, String)> =
        codex.env().into_iter().filter(|(name, _)| name != "CODEX_HOME").collect();
    format!(
        "{}home = {}\n",
        agent_table("codex", None, binary, &env),
        quoted(&codex.codex_home.to_string_lossy())
    )
}

/// The part of `config.toml` that makes `claude` this binary with this home and nothing else in its environment.
pub fn claude_config(binary: &Path, claude: &ClaudeHome) -> String {
    format!(
        "{}home = {}\n",
        agent_table("claude", None, binary, &claude.env()),
        quoted(&claude.config_dir.to_string_lossy())
    )
}

/// The part of `config.toml` that registers an ACP agent under `name`, with these variables added to its
/// environment and none of the host's let through.
pub fn acp_config(name: &str, binary: &Path, env: &[(String, String)]) -> String {
    agent_table(name, Some("acp"), binary, env)
}

fn agent_table(name: &str, kind: Option<&str>, binary: &Path, env: &[(String, String)]) -> String {
    let kind = kind.map_or_else(String::new, |kind| format!("kind = {}\n", quoted(kind)));
    let pairs: Vec<String> = env.iter().map(|(name, value)| format!("{name} = {}", quoted(value))).collect();
    format!(
        "[agents.{name}]\n{kind}command = [{}]\nenv = {{ {} }}\nenv_pass = []\n",
        quoted(&binary.to_string_lossy()),
        pairs.join(", ")
    )
}

/// A JSON string is a TOML string too.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A host that did not come up.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// It ended before it said where it listens.
    #[error("the host ended with {status} before it listened; it said: {stderr}")]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// Its standard error.
        stderr: String,
    },
    /// Its first line was not the announced JSON object.
    #[error("the host's first line is not its address: {line:?}")]
    NotAnAddress {
        /// That line.
        line: String,
    },
    /// It said nothing in time; it has been killed.
    #[error("the host said nothing in time; it said on standard error: {stderr}")]
    Silent {
        /// Its standard error.
        stderr: String,
    },
}

/// A running host. Dropping it kills it (-9); its keepers and agents live on, as they must.
#[derive(Debug)]
pub struct HostProcess {
    child: Child,
    stderr_path: PathBuf,
    token_path: PathBuf,
    /// The TCP address it listens on.
    pub listening: SocketAddr,
    /// Its Unix socket.
    pub socket: PathBuf,
}

impl HostProcess {
    /// Starts `mainstay serve --json` on a free port and waits until it says where it listens.
    ///
    /// # Panics
    /// When it does not come up; the message holds its standard error.
    #[track_caller]
    pub fn start(home: &Home, binary: &Path, extra_env: &[(&str, &str)]) -> Self {
        match Self::try_start(home, binary, extra_env) {
            Ok(host) => host,
            Err(error) => panic!("{error}"),
        }
    }

    /// [`start`](Self::start) for tests of a start that is to be refused. The port is free to choose for the
    /// host (`MAINSTAY_LISTEN` is `127.0.0.1:0`) unless `extra_env` or the configuration says otherwise.
    ///
    /// # Errors
    /// [`StartError`] when it does not come up.
    ///
    /// # Panics
    /// When the binary cannot be started at all.
    pub fn try_start(home: &Home, binary: &Path, extra_env: &[(&str, &str)]) -> Result<Self, StartError> {
        let number = home.hosts_started.fetch_add(1, Ordering::SeqCst) + 1;
        let stderr_path = home.root().join(format!("host-{number}.stderr"));
        let stderr_file = File::create(&stderr_path).expect("a file for the host's standard error");
        let mut command = home.command(binary, &["serve", "--json"]);
        command.env("MAINSTAY_LISTEN", "127.0.0.1:0").envs(extra_env.iter().copied());
        command.stdout(Stdio::piped()).stderr(stderr_file);
        let mut child = command.spawn().expect("start the mainstay binary");
        crate::contain::own(child.id());

        let stdout = child.stdout.take().expect("standard output is piped");
        let (say, said) = mpsc::channel();
        // Reads on after the first line, so that the host never blocks on a full pipe.
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let Ok(line) = line else { break };
                // Nobody listens after the first line.
                say.send(line).ok();
            }
        });
        let first = said.recv_timeout(START_DEADLINE);
        let stderr = || fs::read_to_string(&stderr_path).unwrap_or_default();
        let line = match first {
            Ok(line) => line,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let status = child.wait().expect("the host's exit status");
                crate::contain::disown(child.id());
                return Err(StartError::Ended { status, stderr: stderr() });
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                end(&mut child);
                return Err(StartError::Silent { stderr: stderr() });
            }
        };
        let Some((listening, socket)) = parse_address(&line) else {
            end(&mut child);
            return Err(StartError::NotAnAddress { line });
        };
        let token_path = home.mainstay_home().join("token");
        Ok(Self { child, stderr_path, token_path, listening, socket })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A client over TCP with the host's token.
    ///
    /// # Panics
    /// When the token file cannot be read.
    pub fn client(&self) -> Client {
        let token = fs::read_to_string(&self.token_path).expect("the host's token file");
        self.anonymous_client().bearer(token.trim())
    }

    /// A client over TCP without a token.
    pub fn anonymous_client(&self) -> Client {
        Client::new(Addr::Tcp(self.listening))
    }

    /// A client over the Unix socket, which needs no token.
    pub fn socket_client(&self) -> Client {
        Client::new(Addr::Unix(self.socket.clone()))
    }

    /// What the host has said on standard error so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr_path).unwrap_or_default()
    }

    /// Kills it with SIGKILL and waits for its end.
    pub fn kill9(&mut self) -> ExitStatus {
        self.signal(Signal::KILL);
        let status = self.child.wait().expect("the host's exit status");
        crate::contain::disown(self.child.id());
        status
    }

    /// Sends SIGTERM; does not wait.
    pub fn term(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends any signal. A host that has ended, and is not yet waited for, takes it without effect.
    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, signal).expect("signal the host");
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// When it has not ended at `deadline`.
    #[track_caller]
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        match wait_for(deadline, || self.child.try_wait().expect("ask for the exit status")) {
            Some(status) => status,
            None => panic!("the host still runs after {deadline:?}; it said: {}", self.stderr()),
        }
    }
}

impl Drop for HostProcess {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Kills and reaps; both fail only for a child that is already reaped.
fn end(child: &mut Child) {
    child.kill().ok();
    child.wait().ok();
    crate::contain::disown(child.id());
}

fn parse_address(line: &str) -> Option<(SocketAddr, PathBuf)> {
    let object: Value = serde_json::from_str(line).ok()?;
    let listening = object.get("listening")?.as_str()?.parse().ok()?;
    let socket = PathBuf::from(object.get("socket")?.as_str()?);
    Some((listening, socket))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const GENEROUS: Duration = Duration::from_secs(30);

    /// A script in place of the binary.
    fn fake(home: &Home, body: &str) -> PathBuf {
        let path = home.root().join("fake-mainstay");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("write the script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make it executable");
        path
    }

    #[test]
    fn reads_the_address_and_gives_a_clean_environment() {
        let home = Home::new();
        home.write_config("log = \"info\"\n");
        let binary = fake(
            &home,
            r#"env | cut -d= -f1 | sort | tr '\n' ' ' >&2
echo t0ken > "$MAINSTAY_HOME/token"
echo '{"listening": "127.0.0.1:7", "socket": "/nowhere/s"}'
exec sleep 1000"#,
        );
        let mut host = HostProcess::start(&home, &binary, &[("EXTRA", "1")]);
        assert_eq!(host.listening, "127.0.0.1:7".parse().expect("address"));
        assert_eq!(host.socket, PathBuf::from("/nowhere/s"));
        assert_eq!(home.token(), "t0ken");
        // The shell adds PWD (and some shells more of their own); nothing of this test's environment is there.
        let names: Vec<String> = host.stderr().split_whitespace().map(str::to_owned).collect();
        for name in ["EXTRA", "HOME", "LANG", "MAINSTAY_HOME", "MAINSTAY_LISTEN", "PATH", "XDG_RUNTIME_DIR"] {
            assert!(names.iter().any(|found| found == name), "{name} in {names:?}");
        }
        assert!(!names.iter().any(|name| name.starts_with("CARGO")), "{names:?}");
        let status = host.kill9();
        assert!(!status.success());
    }

    #[test]
    fn a_refused_start_shows_what_was_said() {
        let home = Home::new();
        let binary = fake(&home, "echo 'another host has this home' >&2; exit 4");
        match HostProcess::try_start(&home, &binary, &[]) {
            Err(StartError::Ended { status, stderr }) => {
                assert_eq!(status.code(), Some(4));
                assert_eq!(stderr, "another host has this home\n");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn agent_tables_quote_what_they_hold() {
        let env = [("NOTE".to_owned(), "a \"b\"".to_owned())];
        assert_eq!(
            acp_config("mine", Path::new("/x/agent"), &env),
            "[agents.mine]\nkind = \"acp\"\ncommand = [\"/x/agent\"]\nenv = { NOTE = \"a \\\"b\\\"\" }\nenv_pass = []\n"
        );
    }

    #[test]
    fn term_ends_it() {
        let home = Home::new();
        let binary = fake(&home, r#"echo '{"listening": "127.0.0.1:7", "socket": "s"}'; exec sleep 1000"#);
        let mut host = HostProcess::start(&home, &binary, &[]);
        host.term();
        assert!(!host.wait(GENEROUS).success());
    }
}
