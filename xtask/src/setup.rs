//! Installing what tests need: the pinned agents and the test runner. Does nothing that is done already.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::lock::{AgentsLock, LockError, Package};
use crate::tasks::{StepError, run_command};

/// Where agents go; ignored by git.
const AGENTS_FOLDER: &str = ".agents";

/// Installed where none is; an installed one of another version is taken as it is.
const NEXTEST_VERSION: &str = "0.9.143";

/// Why set-up failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SetupError {
    #[error(transparent)]
    Lock(#[from] LockError),
    #[error("cannot make {AGENTS_FOLDER}/")]
    Folder(#[source] io::Error),
    #[error("npm is needed to install agents")]
    Npm(#[source] StepError),
    #[error("cannot install cargo-nextest")]
    Nextest(#[source] StepError),
    #[error("after installing {package}: {problem}")]
    NotAsPinned { package: String, problem: String },
}

pub(crate) fn run(root: &Path) -> Result<(), SetupError> {
    let lock = AgentsLock::read(root)?;
    let prefix = root.join(AGENTS_FOLDER);
    fs::create_dir_all(&prefix).map_err(SetupError::Folder)?;
    let missing: Vec<&Package> =
        lock.package.iter().filter(|package| check_installed(&prefix, package).is_err()).collect();
    if missing.is_empty() {
        println!("agents: all {} as pinned", lock.package.len());
    } else {
        install(root, &prefix, &lock.package)?;
    }
    ensure_nextest(root)
}

/// One command for all, because npm removes what it is not told about.
fn install(root: &Path, prefix: &Path, packages: &[Package]) -> Result<(), SetupError> {
    // Anew: beside packages that are there already, npm notes no digest of what it leaves as it is.
    match fs::remove_dir_all(prefix.join("node_modules")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(SetupError::Folder(error)),
        _ => {}
    }
    let mut npm = Command::new("npm");
    npm.current_dir(root).arg("install").arg("--prefix").arg(prefix);
    npm.args(["--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]);
    npm.args(packages.iter().map(|package| format!("{}@{}", package.name, package.version)));
    run_command(&mut npm).map_err(SetupError::Npm)?;
    for package in packages {
        check_installed(prefix, package)
            .map_err(|problem| SetupError::NotAsPinned { package: package.name.clone(), problem })?;
        println!("agents: {} {} installed", package.name, package.version);
    }
    Ok(())
}

/// What npm notes about what it has installed.
#[derive(Debug, Deserialize)]
struct InstalledTree {
    packages: BTreeMap<String, InstalledPackage>,
}

#[derive(Debug, Deserialize)]
struct InstalledPackage {
    #[serde(default)]
    version: String,
    #[serde(default)]
    integrity: String,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    version: String,
}

/// Compares versions and digests with the pinned ones; the manifests on disk must agree with npm's notes.
fn check_installed(prefix: &Path, package: &Package) -> Result<(), String> {
    let modules = prefix.join("node_modules");
    let tree: InstalledTree = read_json(&modules.join(".package-lock.json"))?;
    check_one(&tree, &modules, &package.name, &package.version, &package.integrity)?;
    if package.platform.is_empty() {
        return Ok(());
    }
    let natives: Vec<_> =
        package.platform.iter().filter(|native| modules.join(&native.name).is_dir()).collect();
    if natives.is_empty() {
        return Err("none of its native builds is installed".to_owned());
    }
    natives
        .into_iter()
        .try_for_each(|native| check_one(&tree, &modules, &native.name, &native.version, &native.integrity))
}

/// One package below `prefix`, against its pins.
pub(crate) fn installed_as_pinned(
    prefix: &Path,
    name: &str,
    version: &str,
    integrity: &str,
) -> Result<(), String> {
    let modules = prefix.join("node_modules");
    let tree: InstalledTree = read_json(&modules.join(".package-lock.json"))?;
    check_one(&tree, &modules, name, version, integrity)
}

fn check_one(
    tree: &InstalledTree,
    modules: &Path,
    name: &str,
    version: &str,
    integrity: &str,
) -> Result<(), String> {
    let noted =
        tree.packages.get(&format!("node_modules/{name}")).ok_or(format!("{name} is not installed"))?;
    if noted.integrity != integrity {
        return Err(format!("{name} has integrity {:?}, pinned is {integrity:?}", noted.integrity));
    }
    let manifest: Manifest = read_json(&modules.join(name).join("package.json"))?;
    for found in [&noted.version, &manifest.version] {
        if found != version {
            return Err(format!("{name} has version {found}, pinned is {version}"));
        }
    }
    Ok(())
}

fn read_json<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))
}

fn ensure_nextest(root: &Path) -> Result<(), SetupError> {
    let found = Command::new("cargo").args(["nextest", "--version"]).current_dir(root).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let mut install = Command::new("cargo");
    // Outside the workspace's target folder and lints.
    install.args(["install", "cargo-nextest", "--locked", "--version", NEXTEST_VERSION]);
    run_command(&mut install).map_err(SetupError::Nextest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Pinned;

    fn package() -> Package {
        Package {
            name: "@x/agent".to_owned(),
            version: "1.2.3".to_owned(),
            integrity: "sha512-a".to_owned(),
            platform: vec![Pinned {
                name: "@x/agent-linux".to_owned(),
                version: "1.2.3-linux".to_owned(),
                integrity: "sha512-b".to_owned(),
            }],
        }
    }

    fn install_fake(prefix: &Path, native_integrity: &str, manifest_version: &str) {
        let modules = prefix.join("node_modules");
        for (name, version) in [("@x/agent", manifest_version), ("@x/agent-linux", "1.2.3-linux")] {
            fs::create_dir_all(modules.join(name)).expect("package folder");
            fs::write(modules.join(name).join("package.json"), format!("{{\"version\":\"{version}\"}}"))
                .expect("manifest");
        }
        let tree = serde_json::json!({"packages": {
            "node_modules/@x/agent": {"version": "1.2.3", "integrity": "sha512-a"},
            "node_modules/@x/agent-linux": {"version": "1.2.3-linux", "integrity": native_integrity},
        }});
        fs::write(modules.join(".package-lock.json"), tree.to_string()).expect("npm's notes");
    }

    #[test]
    fn only_what_is_pinned_passes() {
        let prefix = tempfile::tempdir().expect("temporary folder");
        assert!(check_installed(prefix.path(), &package()).is_err(), "nothing installed");
        install_fake(prefix.path(), "sha512-b", "1.2.3");
        assert_eq!(check_installed(prefix.path(), &package()), Ok(()));
        install_fake(prefix.path(), "sha512-other", "1.2.3");
        let problem = check_installed(prefix.path(), &package()).expect_err("another archive");
        assert!(problem.contains("integrity"), "{problem}");
        install_fake(prefix.path(), "sha512-b", "1.2.4");
        let problem = check_installed(prefix.path(), &package()).expect_err("another version on disk");
        assert!(problem.contains("version 1.2.4"), "{problem}");
    }
}
