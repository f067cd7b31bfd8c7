//! `agents.lock`: which agents, at which versions, with which content.

use std::fs;
use std::io;
use std::path::Path;

use serde::Deserialize;

/// Why the lock file could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LockError {
    #[error("cannot read agents.lock")]
    Read(#[source] io::Error),
    #[error("agents.lock is not what it should be")]
    Parse(#[source] Box<toml::de::Error>),
}

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentsLock {
    #[serde(default)]
    pub(crate) package: Vec<Package>,
}

/// One npm package and the native builds it brings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) integrity: String,
    /// Of these npm installs the one that fits the machine.
    #[serde(default)]
    pub(crate) platform: Vec<Pinned>,
}

/// A name, a version and the digest of the archive, as npm writes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pinned {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) integrity: String,
}

impl AgentsLock {
    pub(crate) fn read(root: &Path) -> Result<Self, LockError> {
        let text = fs::read_to_string(root.join("agents.lock")).map_err(LockError::Read)?;
        toml::from_str(&text).map_err(|error| LockError::Parse(Box::new(error)))
    }
}
