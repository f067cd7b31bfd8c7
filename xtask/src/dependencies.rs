//! What may be linked into Mainstay: `deny.toml`, read and checked over `cargo metadata`. The same rules as `cargo deny
//! check bans licenses sources`, which is run too where it is installed; advisories need the network and are its alone.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::tasks::{StepError, run_command};

/// The one registry that packages may come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Why the dependencies did not pass.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DependencyError {
    #[error("cannot read deny.toml")]
    Rules(#[source] std::io::Error),
    #[error("deny.toml is not what it should be")]
    Parse(#[source] Box<toml::de::Error>),
    #[error("cannot ask cargo for the packages")]
    Cargo(#[source] std::io::Error),
    #[error("cargo could not list the packages: {0}")]
    CargoFailed(String),
    #[error("what cargo lists is not understood")]
    Metadata(#[source] serde_json::Error),
    #[error("{0} complaints, listed above")]
    Complaints(usize),
    #[error("cargo deny")]
    Deny(#[source] StepError),
}

#[derive(Debug, Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
}

#[derive(Debug, Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Bans {
    #[serde(default)]
    deny: Vec<Banned>,
}

#[derive(Debug, Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None: of this workspace.
    source: Option<String>,
}

pub(crate) fn run(root: &Path) -> Result<(), DependencyError> {
    let text = std::fs::read_to_string(root.join("deny.toml")).map_err(DependencyError::Rules)?;
    let rules: Rules = toml::from_str(&text).map_err(|error| DependencyError::Parse(Box::new(error)))?;
    let output = Command::new("cargo")
        .current_dir(root)
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .output()
        .map_err(DependencyError::Cargo)?;
    if !output.status.success() {
        return Err(DependencyError::CargoFailed(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).map_err(DependencyError::Metadata)?;
    let complaints = check(&rules, &metadata.packages);
    for complaint in &complaints {
        println!("dependencies: {complaint}");
    }
    if !complaints.is_empty() {
        return Err(DependencyError::Complaints(complaints.len()));
    }
    println!("dependencies: {} packages, nothing to complain about", metadata.packages.len());
    cargo_deny(root)
}

/// Its own reading of the same rules, where it is installed: setting it up takes longer than a whole test run.
fn cargo_deny(root: &Path) -> Result<(), DependencyError> {
    let found = Command::new("cargo").args(["deny", "--version"]).current_dir(root).output();
    if !found.is_ok_and(|output| output.status.success()) {
        println!("dependencies: cargo-deny is not installed; its rules were checked without it");
        return Ok(());
    }
    let mut deny = Command::new("cargo");
    deny.current_dir(root).args(["deny", "--offline", "check", "bans", "licenses", "sources"]);
    run_command(&mut deny).map_err(DependencyError::Deny)
}

fn check(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let banned: BTreeMap<&str, &str> =
        rules.bans.deny.iter().map(|banned| (banned.name.as_str(), banned.reason.as_str())).collect();
    let mut complaints = Vec::new();
    for package in packages {
        let shown = format!("{} {}", package.name, package.version);
        if let Some(reason) = banned.get(package.name.as_str()) {
            complaints.push(format!("{shown} is banned: {reason}"));
        }
        if let Some(source) = package.source.as_deref().filter(|source| *source != REGISTRY) {
            complaints.push(format!("{shown} comes from {source}"));
        }
        match &package.license {
            None => complaints.push(format!("{shown} names no license")),
            Some(expression) if !is_allowed(expression, &rules.licenses.allow) => {
                complaints.push(format!("{shown} has license {expression:?}"));
            }
            Some(_) => {}
        }
    }
    complaints
}

/// Whether an SPDX expression can be met with the allowed licenses. What is not understood is not allowed.
fn is_allowed(expression: &str, allowed: &[String]) -> bool {
    // `MIT/Apache-2.0` is how it was written before there were expressions.
    let text = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut at = 0;
    let met = either(&words, &mut at, allowed);
    met && at == words.len()
}

fn either(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = both(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= both(words, at, allowed);
    }
    met
}

fn both(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(word) = words.get(*at) else { return false };
    *at += 1;
    if *word == "(" {
        let met = either(words, at, allowed);
        let is_closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && is_closed;
    }
    if words.get(*at) == Some(&"WITH") {
        let exception = words.get(*at + 1).copied().unwrap_or_default();
        *at += 2;
        // Where the license itself will do, an exception only allows more.
        return allowed.iter().any(|known| *known == format!("{word} WITH {exception}") || known == word);
    }
    allowed.iter().any(|known| known == word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_met_or_not() {
        let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned);
        for (expression, met) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT/Apache-2.0", true),
            ("(MIT OR GPL-2.0-only) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND LicenseRef-x", false),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0-only", true),
            ("GPL-2.0-only WITH Classpath-exception-2.0", false),
            ("", false),
            ("(MIT", false),
            ("MIT OR", true),
            ("MIT MIT", false),
        ] {
            assert_eq!(is_allowed(expression, &allowed), met, "{expression:?}");
        }
    }

    #[test]
    fn each_rule_bites() {
        let rules: Rules = toml::from_str(
            "[licenses]\nallow = [\"MIT\"]\n[bans]\ndeny = [{ crate = \"bad\", reason = \"because\" }]\n",
        )
        .expect("rules");
        let package = |name: &str, license: Option<&str>, source: Option<&str>| Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            source: source.map(str::to_owned),
        };
        let packages = [
            package("fine", Some("MIT"), Some(REGISTRY)),
            package("ours", Some("MIT"), None),
            package("bad", Some("MIT"), Some(REGISTRY)),
            package("unlicensed", None, Some(REGISTRY)),
            package("copyleft", Some("GPL-3.0-only"), Some(REGISTRY)),
            package("elsewhere", Some("MIT"), Some("git+https://example.org/x")),
        ];
        let complaints = check(&rules, &packages);
        let named: Vec<&str> =
            complaints.iter().filter_map(|complaint| complaint.split(' ').next()).collect();
        assert_eq!(named, ["bad", "unlicensed", "copyleft", "elsewhere"], "{complaints:?}");
    }
}
