//! Folders and an environment that point the real Claude Code at the mock model.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{CLEAN_LANG, CLEAN_PATH};

/// Two folders and the environment that make a Claude Code of one's own.
#[derive(Debug, Clone)]
pub struct ClaudeHome {
    /// `HOME` of the agent.
    pub home: PathBuf,
    /// `CLAUDE_CONFIG_DIR` of the agent.
    pub config_dir: PathBuf,
    /// The model server without a path.
    root_url: String,
}

impl ClaudeHome {
    /// The environment for this Claude Code, without the config folder. It speaks with nobody but the mock model.
    pub fn env(&self) -> Vec<(String, String)> {
        [
            ("PATH", CLEAN_PATH.to_owned()),
            ("LANG", CLEAN_LANG.to_owned()),
            ("SHELL", "/bin/bash".to_owned()),
            ("HOME", self.home.to_string_lossy().into_owned()),
            ("TMPDIR", self.home.join("tmp").to_string_lossy().into_owned()),
            ("ANTHROPIC_BASE_URL", self.root_url.clone()),
            ("ANTHROPIC_API_KEY", "dummy".to_owned()),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1".to_owned()),
            ("CLAUDE_CODE_MAX_RETRIES", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// Makes `dir/home` and `dir/config` for the model server at `root_url` (an address without a path).
///
/// # Panics
/// When the folders cannot be made.
pub fn claude_home(dir: &Path, root_url: &str) -> ClaudeHome {
    let home =
        ClaudeHome { home: dir.join("home"), config_dir: dir.join("config"), root_url: root_url.to_owned() };
    fs::create_dir_all(home.home.join("tmp")).expect("create the agent's HOME");
    fs::create_dir_all(&home.config_dir).expect("create the agent's config folder");
    home
}
