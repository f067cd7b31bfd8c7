//! What agents offered when they were last asked, part by part: kept in files of the home, so that reading it starts no
//! agent. Losing one loses nothing but the memory of it.

use mainstay_agents::{Catalogue, Model};
use mainstay_core::digest::sha256_hex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The folder in the home.
const FOLDER: &str = "catalogues";
/// The largest part that is kept, in bytes of JSON: lists of skills and tools can be long. A larger one is not, and stays
/// as it was.
const MAX_PART_BYTES: usize = 1 << 20;
/// Agents with their homes that are remembered in memory; another one is read from its file each time.
const MAX_REMEMBERED: usize = 64;

/// A part of a catalogue, and when it was seen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen<T> {
    /// Unix ms.
    pub as_of: i64,
    /// It.
    pub value: T,
}

/// What is known of one agent with one account home. An absent part was never told.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct KnownCatalogue {
    /// Agent and account home.
    scope: String,
    /// The agent's version when it was asked last.
    #[serde(default)]
    pub version: Option<String>,
    /// The models.
    #[serde(default)]
    pub models: Option<Seen<Vec<Model>>>,
    /// Who is signed in, in the agent's shape.
    #[serde(default)]
    pub account: Option<Seen<Value>>,
    /// What is left of the account's limits, in the agent's shape.
    #[serde(default)]
    pub rate_limits: Option<Seen<Value>>,
    /// Skills, in the agent's shape.
    #[serde(default)]
    pub skills: Option<Seen<Value>>,
    /// MCP servers with their state, in the agent's shape.
    #[serde(default)]
    pub mcp_servers: Option<Seen<Value>>,
}

impl KnownCatalogue {
    /// Takes over what was told, and leaves the rest.
    fn learn(&mut self, told: Catalogue, version: Option<String>, as_of: i64) {
        let Catalogue { models, account, rate_limits, skills, mcp_servers } = told;
        take(&mut self.models, models, as_of);
        take(&mut self.account, account, as_of);
        take(&mut self.rate_limits, rate_limits, as_of);
        take(&mut self.skills, skills, as_of);
        take(&mut self.mcp_servers, mcp_servers, as_of);
        self.version = version.or(self.version.take());
    }
}

fn take<T: Serialize>(known: &mut Option<Seen<T>>, told: Option<T>, as_of: i64) {
    let fits = |value: &T| serde_json::to_vec(value).is_ok_and(|body| body.len() <= MAX_PART_BYTES);
    if let Some(value) = told.filter(fits) {
        *known = Some(Seen { as_of, value });
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Catalogues {
    /// None: nothing is asked for and nothing kept.
    folder: Option<PathBuf>,
    known: Mutex<HashMap<String, KnownCatalogue>>,
    /// Held while something is learnt: of two at once neither is to be lost.
    learning: Mutex<()>,
}

impl Catalogues {
    pub(crate) fn below(home: &std::path::Path) -> Self {
        Self { folder: Some(home.join(FOLDER)), known: Mutex::default(), learning: Mutex::default() }
    }

    /// Whether anybody wants to know.
    pub(crate) const fn wanted(&self) -> bool {
        self.folder.is_some()
    }

    /// What is known. Blocking.
    pub(crate) fn of(&self, scope: &str) -> KnownCatalogue {
        let mut remembered = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = remembered.get(scope) {
            return known.clone();
        }
        let read = self.path(scope).and_then(|path| fs::read(path).ok());
        let known: Option<KnownCatalogue> = read.and_then(|body| serde_json::from_slice(&body).ok());
        let known = known
            .filter(|known| known.scope == scope)
            .unwrap_or_else(|| KnownCatalogue { scope: scope.to_owned(), ..KnownCatalogue::default() });
        if remembered.len() < MAX_REMEMBERED {
            remembered.insert(scope.to_owned(), known.clone());
        }
        known
    }

    /// Keeps what an agent told. Blocking.
    pub(crate) fn learn(&self, scope: &str, told: Catalogue, version: Option<String>, as_of: i64) {
        let _alone = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = self.of(scope);
        known.learn(told, version, as_of);
        if let Err(error) = self.write(scope, &known) {
            tracing::warn!(%error, scope, "what an agent offers could not be kept");
        }
        let mut remembered = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered.len() < MAX_REMEMBERED || remembered.contains_key(scope) {
            remembered.insert(scope.to_owned(), known);
        }
    }

    fn path(&self, scope: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{}.json", sha256_hex(scope.as_bytes()))))
    }

    fn write(&self, scope: &str, known: &KnownCatalogue) -> std::io::Result<()> {
        use std::io::Write;
        let (Some(folder), Some(path)) = (&self.folder, self.path(scope)) else { return Ok(()) };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // One for each writer, so that two at once leave one of both and no mixture.
        let temporary = path.with_extension(format!("{}.new", uuid::Uuid::now_v7().simple()));
        let body = serde_json::to_vec(known)?;
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&temporary)?;
        let written = file.write_all(&body).and_then(|()| fs::rename(&temporary, path));
        if written.is_err() {
            let _stays_at_worst = fs::remove_file(&temporary);
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_was_told_last_is_known_part_by_part_and_after_a_restart() {
        let home = tempfile::tempdir().expect("a folder");
        let catalogues = Catalogues::below(home.path());
        assert_eq!(catalogues.of("codex:default").models, None, "nothing was told");
        let model = Model { id: "m".to_owned(), ..Model::default() };
        let told = Catalogue { models: Some(vec![model.clone()]), ..Catalogue::default() };
        catalogues.learn("codex:default", told, Some("1".to_owned()), 5);
        let told = Catalogue { account: Some(json!({ "a": 1 })), ..Catalogue::default() };
        catalogues.learn("codex:default", told, None, 6);
        let again = Catalogues::below(home.path()).of("codex:default");
        assert_eq!(again.models, Some(Seen { as_of: 5, value: vec![model] }));
        assert_eq!(again.account.map(|seen| seen.as_of), Some(6));
        assert_eq!(again.version.as_deref(), Some("1"));
        assert_eq!(Catalogues::below(home.path()).of("codex:/other").models, None);
    }

    #[test]
    fn a_part_that_is_too_long_stays_as_it_was() {
        let home = tempfile::tempdir().expect("a folder");
        let catalogues = Catalogues::below(home.path());
        let skills = |text: String| Catalogue { skills: Some(json!(text)), ..Catalogue::default() };
        catalogues.learn("c", skills("short".to_owned()), None, 1);
        catalogues.learn("c", skills("x".repeat(MAX_PART_BYTES)), None, 2);
        assert_eq!(catalogues.of("c").skills, Some(Seen { as_of: 1, value: json!("short") }));
    }
}
