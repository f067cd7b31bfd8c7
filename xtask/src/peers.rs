//! `cargo xtask bench --peers`: installing the hosts that are measured beside ours, and running the measurement.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::setup::installed_as_pinned;
use crate::tasks::{StepError, cargo, run_command};

/// Where peers go; ignored by git.
const PEERS_FOLDER: &str = ".peers";

/// What could not be installed, for the report.
const LEFT_OUT: &str = "left-out.json";

/// Writes the page also where not everything is measured.
const WRITE: &str = "--write";

/// Why peers could not be installed or measured. What one peer lacks is no error: it is left out, with the reason.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PeersError {
    #[error("cannot read peers.lock")]
    Read(#[source] io::Error),
    #[error("peers.lock is not what it should be")]
    Parse(#[source] Box<toml::de::Error>),
    #[error("cannot make or write {PEERS_FOLDER}/")]
    Folder(#[source] io::Error),
    #[error("cannot build the bench")]
    Build(#[source] StepError),
    #[error("the bench")]
    Bench(#[source] StepError),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeersLock {
    #[serde(default)]
    npm: Vec<Npm>,
    #[serde(default, rename = "crate")]
    crates: Vec<Crate>,
    #[serde(default)]
    wheel: Vec<Wheel>,
    #[serde(default)]
    absent: Vec<LeftOut>,
}

/// A package of npm; the digest is as npm writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Npm {
    peer: String,
    name: String,
    version: String,
    integrity: String,
    /// Programs in it: npm leaves the mark away where install scripts are off.
    #[serde(default)]
    executable: Vec<String>,
}

/// A program of crates.io; its own lock file pins what it is built from.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Crate {
    peer: String,
    name: String,
    version: String,
}

/// A binary package of PyPI.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wheel {
    peer: String,
    name: String,
    version: String,
    sha256: String,
    #[serde(default)]
    executable: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LeftOut {
    peer: String,
    why: String,
}

fn read(root: &Path) -> Result<PeersLock, PeersError> {
    let text = fs::read_to_string(root.join("peers.lock")).map_err(PeersError::Read)?;
    toml::from_str(&text).map_err(|error| PeersError::Parse(Box::new(error)))
}

/// Installs what is missing; says what cannot be.
pub(crate) fn setup(root: &Path) -> Result<(), PeersError> {
    let lock = read(root)?;
    let folder = root.join(PEERS_FOLDER);
    fs::create_dir_all(&folder).map_err(PeersError::Folder)?;
    let mut left_out = lock.absent;
    let mut note = |peer: &str, outcome: Result<(), String>| match outcome {
        Ok(()) => println!("peers: {peer} as pinned"),
        Err(why) => {
            println!("peers: {peer} is left out: {why}");
            left_out.push(LeftOut { peer: peer.to_owned(), why });
        }
    };
    let npm = folder.join("npm");
    if lock.npm.iter().any(|package| check_npm(&npm, package).is_err())
        && let Err(error) = install_npm(&npm, &lock.npm)
    {
        println!("peers: npm: {error}");
    }
    for package in &lock.npm {
        note(&package.peer, check_npm(&npm, package));
    }
    for package in &lock.crates {
        note(&package.peer, install_crate(root, &folder.join("cargo"), package));
    }
    for package in &lock.wheel {
        note(&package.peer, install_wheel(&folder.join("pip"), package));
    }
    let text = serde_json::to_string_pretty(&left_out).unwrap_or_default();
    fs::write(folder.join(LEFT_OUT), text).map_err(PeersError::Folder)
}

/// One command for all, because npm removes what it is not told about.
fn install_npm(prefix: &Path, packages: &[Npm]) -> Result<(), StepError> {
    // Anew: beside packages that are there already, npm notes no digest of what it leaves as it is.
    let _absent = fs::remove_dir_all(prefix.join("node_modules"));
    let mut npm = Command::new("npm");
    npm.arg("install").arg("--prefix").arg(prefix);
    npm.args(["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    npm.args(packages.iter().map(|package| format!("{}@{}", package.name, package.version)));
    run_command(&mut npm)
}

fn check_npm(prefix: &Path, package: &Npm) -> Result<(), String> {
    installed_as_pinned(prefix, &package.name, &package.version, &package.integrity)?;
    let modules = prefix.join("node_modules").join(&package.name);
    package.executable.iter().try_for_each(|file| make_executable(&modules.join(file)))
}

fn make_executable(file: &Path) -> Result<(), String> {
    fs::set_permissions(file, fs::Permissions::from_mode(0o755)).map_err(|error| {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!("{name}: {error}")
    })
}

/// Cargo checks the archive against the registry's digest and, with `--locked`, everything it is built from.
fn install_crate(root: &Path, prefix: &Path, package: &Crate) -> Result<(), String> {
    let noted = fs::read_to_string(prefix.join(".crates.toml")).unwrap_or_default();
    if noted.contains(&format!("\"{} {} ", package.name, package.version)) {
        return Ok(());
    }
    let mut install = cargo(root, &["install", &package.name, "--locked", "--version", &package.version]);
    install.arg("--root").arg(prefix);
    run_command(&mut install).map_err(|error| error.to_string())
}

fn install_wheel(prefix: &Path, package: &Wheel) -> Result<(), String> {
    let pinned = format!("{}=={} --hash=sha256:{}\n", package.name, package.version, package.sha256);
    let note = prefix.join("installed.txt");
    if fs::read_to_string(&note).is_ok_and(|installed| installed == pinned) {
        return Ok(());
    }
    let text = |error: io::Error| error.to_string();
    fs::create_dir_all(prefix).map_err(text)?;
    let requirements = prefix.join("requirements.txt");
    fs::write(&requirements, &pinned).map_err(text)?;
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-compile",
        "--require-hashes",
        "--upgrade",
    ]);
    pip.args(["--only-binary", ":all:", "--disable-pip-version-check"]);
    pip.arg("--target").arg(prefix).arg("-r").arg(&requirements);
    run_command(&mut pip).map_err(|error| error.to_string())?;
    package.executable.iter().try_for_each(|file| make_executable(&prefix.join(file)))?;
    fs::write(note, pinned).map_err(text)
}

/// Builds with optimisation and measures; `rest` goes to the bench itself. The page is written by a whole run alone:
/// a quick one, or one of some hosts or rows, is shown.
pub(crate) fn bench(root: &Path, rest: &[&str]) -> Result<(), PeersError> {
    read(root)?;
    let build = ["build", "--release", "-p", "mainstay", "-p", "mainstay-testkit", "--bins"];
    run_command(&mut cargo(root, &build)).map_err(PeersError::Build)?;
    let release = root.join("target/release/peer-bench");
    let mut bench = isolated(&release);
    bench.arg("--peers").arg(root.join(PEERS_FOLDER)).arg("--agents").arg(root.join(".agents"));
    bench.arg("--json").arg(root.join("target/reports/peers.jsonl"));
    if rest.is_empty() || rest.contains(&WRITE) {
        bench.arg("--page").arg(root.join("docs/benchmarks.md"));
    }
    bench.args(rest.iter().filter(|word| **word != WRITE));
    run_command(&mut bench).map_err(PeersError::Bench)
}

/// In a network namespace of its own, with loopback alone, where this user may make one.
fn isolated(program: &PathBuf) -> Command {
    const UP: &str = "ip link set lo up && exec \"$0\" --isolated \"$@\"";
    let may = Command::new("unshare")
        .args(["--net", "sh", "-c", "ip link set lo up"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !may {
        println!("peers: no network namespace may be made here; the peers get the machine's network");
        return Command::new(program);
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", UP]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_is_read_and_names_each_peer_once() {
        let root = crate::workspace_root();
        let lock = read(&root).expect("peers.lock");
        let mut names: Vec<&str> = lock.npm.iter().map(|package| package.peer.as_str()).collect();
        names.extend(lock.crates.iter().map(|package| package.peer.as_str()));
        names.extend(lock.wheel.iter().map(|package| package.peer.as_str()));
        names.extend(lock.absent.iter().map(|peer| peer.peer.as_str()));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "{names:?}");
        assert!(lock.npm.iter().all(|package| package.integrity.starts_with("sha512-")));
        assert!(lock.wheel.iter().all(|package| package.sha256.len() == 64));
    }

    #[test]
    fn a_package_that_is_not_there_is_not_as_pinned() {
        let prefix = tempfile::tempdir().expect("temporary folder");
        let lock = read(&crate::workspace_root()).expect("peers.lock");
        let package = lock.npm.first().expect("a package");
        assert!(check_npm(prefix.path(), package).is_err());
    }
}
