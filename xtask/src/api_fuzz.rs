//! The API under a fuzzer that reads its document: requests that fit the document and requests that do not, each answer
//! checked against what the document says. The host has no agent but the demo and a home in the target folder.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::tasks::{StepError, run_command};

/// Versions of the fuzzer and of everything below it.
const REQUIREMENTS: &str = include_str!("../schemathesis.txt");
/// The same requests each time.
const SEED: &str = "20261130";
/// Requests per route and kind: what fits into about a minute.
const EXAMPLES: &str = "12";
/// In the long mode.
const EXAMPLES_LONG: &str = "200";
/// The session that half of the requests are about.
const SESSION: &str = "fuzz";

/// Routes that are not asked: one would end what is fuzzed, the other takes a file that this fuzzer cannot write (`cargo
/// xtask fuzz` has a target for it).
const LEFT_OUT: [&str; 2] = ["/v1/host/stop", "/v1/import"];

/// No agent of the machine may be started.
const AGENTS_ABSENT: &str = "\
[agents.codex]\ncommand = [\"/nonexistent/codex\"]\n\
[agents.claude]\ncommand = [\"/nonexistent/claude\"]\n";

/// These ask an agent, which is not there: that is a documented answer, and one of a server.
const ASKS_AN_AGENT: &str = "\
[[operations]]\n\
include-path-regex = \"^/v1/agents/\"\n\
checks.not_a_server_error.enabled = false\n";

/// All of the fuzzer's checks of one answer but this: a document cannot say which sessions there are or what an agent can do.
const CHECKS: &str = "[checks]\npositive_data_acceptance.enabled = false\n";

/// Why the fuzzing did not pass, or did not begin.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiFuzzError {
    #[error("cannot prepare {path}")]
    Folder { path: PathBuf, source: io::Error },
    #[error("python3 with venv is needed; `apt-get install python3-venv` as root installs it")]
    Python(#[source] StepError),
    #[error("cannot install the fuzzer")]
    Install(#[source] StepError),
    #[error("cannot start the host; `cargo build --workspace --bins` builds it")]
    Host(#[source] io::Error),
    #[error("the host did not say where it listens")]
    NoAddress,
    #[error("the session that is to be fuzzed was not made: {0}")]
    NoSession(String),
    #[error("the fuzzer has complaints; the host's log is {log}")]
    Complaints { log: PathBuf, source: StepError },
}

/// Python as the fuzzer needs it; from apt where it is missing.
fn ensure_python() -> Result<(), ApiFuzzError> {
    let python = Command::new("python3").args(["-c", "import venv, ensurepip"]).output();
    if python.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let mut apt = Command::new("apt-get");
    apt.args(["install", "--yes", "--no-install-recommends", "python3", "python3-venv"]);
    run_command(&mut apt).map_err(ApiFuzzError::Python)
}

/// A host that ends with this value.
struct Host {
    child: Child,
    address: String,
    token: String,
}

impl Drop for Host {
    fn drop(&mut self) {
        // Both fail only for one that has ended.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

pub(crate) fn run(root: &Path, long: bool) -> Result<(), ApiFuzzError> {
    let folder = root.join("target/schemathesis");
    let program = install(&folder)?;
    let home = folder.join("home");
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ApiFuzzError::Folder { path, source }
    };
    match fs::remove_dir_all(&home) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&home)(error)),
        _ => {}
    }
    let work = home.join("work");
    fs::create_dir_all(&work).map_err(failed(&work))?;
    let config =
        format!("listen = \"127.0.0.1:0\"\nroots = [{:?}]\n{AGENTS_ABSENT}", work.display().to_string());
    fs::write(home.join("config.toml"), config).map_err(failed(&home))?;
    let log = home.join("host.stderr");
    let host = start(root, &home, &log)?;
    make_session(&host, &work)?;
    let settings = home.join("schemathesis.toml");
    for about_session in [false, true] {
        let parameters = if about_session {
            format!("[parameters]\n\"path.session\" = \"{SESSION}\"\n")
        } else {
            String::new()
        };
        fs::write(&settings, parameters + CHECKS + ASKS_AN_AGENT).map_err(failed(&settings))?;
        let mut fuzz = Command::new(&program);
        fuzz.current_dir(&home).arg("--config-file").arg(&settings).arg("run");
        fuzz.arg(format!("http://{}/openapi.json", host.address));
        fuzz.args(["--header", &format!("Authorization: Bearer {}", host.token)]);
        fuzz.args(["--seed", SEED, "--no-shrink", "--continue-on-failure"]);
        fuzz.args(["--max-examples", if long { EXAMPLES_LONG } else { EXAMPLES }]);
        // No links between routes are documented; streams never end by themselves, so none is asked for.
        fuzz.args(["--phases", "examples,coverage,fuzzing", "--request-timeout", "30"]);
        fuzz.args(["--suppress-health-check", "all", "--warnings", "off"]);
        for path in LEFT_OUT {
            fuzz.args(["--exclude-path", path]);
        }
        if about_session {
            // It would be gone for all requests behind it.
            fuzz.args(["--include-path-regex", r"\{session\}", "--exclude-method", "DELETE"]);
        }
        run_command(&mut fuzz).map_err(|source| ApiFuzzError::Complaints { log: log.clone(), source })?;
    }
    Ok(())
}

/// The fuzzer in a folder of its own, installed anew where its versions changed.
fn install(folder: &Path) -> Result<PathBuf, ApiFuzzError> {
    let (venv, stamp) = (folder.join("venv"), folder.join("installed.txt"));
    let program = venv.join("bin/schemathesis");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == REQUIREMENTS) && program.exists() {
        return Ok(program);
    }
    ensure_python()?;
    let failed = |source| ApiFuzzError::Folder { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(failed)?;
    run_command(Command::new("python3").args(["-m", "venv"]).arg(&venv)).map_err(ApiFuzzError::Install)?;
    let versions = folder.join("requirements.txt");
    fs::write(&versions, REQUIREMENTS).map_err(failed)?;
    let mut pip = Command::new(venv.join("bin/pip"));
    pip.args(["install", "--quiet", "--no-deps", "--disable-pip-version-check", "-r"]).arg(&versions);
    run_command(&mut pip).map_err(ApiFuzzError::Install)?;
    fs::write(&stamp, REQUIREMENTS).map_err(failed)?;
    Ok(program)
}

fn start(root: &Path, home: &Path, log: &Path) -> Result<Host, ApiFuzzError> {
    let stderr = fs::File::create(log).map_err(ApiFuzzError::Host)?;
    let mut command = Command::new(root.join("target/debug/mainstay"));
    command.args(["serve", "--json"]).env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home);
    command.env("MAINSTAY_HOME", home).env("XDG_RUNTIME_DIR", home);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr);
    let mut child = command.spawn().map_err(ApiFuzzError::Host)?;
    let mut line = String::new();
    let read = child.stdout.take().map(|stdout| BufReader::new(stdout).read_line(&mut line));
    let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_default();
    let token = fs::read_to_string(home.join("token")).unwrap_or_default().trim().to_owned();
    let address = said["listening"].as_str().unwrap_or_default().to_owned();
    let host = Host { child, address, token };
    match read {
        Some(Ok(_)) if !host.address.is_empty() => Ok(host),
        _ => Err(ApiFuzzError::NoAddress),
    }
}

fn make_session(host: &Host, work: &Path) -> Result<(), ApiFuzzError> {
    let body =
        serde_json::json!({ "agent": "demo", "cwd": work, "id": SESSION, "prompt": "hello" }).to_string();
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect(&host.address)?;
        write!(
            stream,
            "POST /v1/sessions HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n{body}",
            host.address,
            host.token,
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    match ask() {
        Ok(answer) if answer.starts_with("HTTP/1.1 201") => Ok(()),
        Ok(answer) => Err(ApiFuzzError::NoSession(answer)),
        Err(error) => Err(ApiFuzzError::NoSession(error.to_string())),
    }
}
