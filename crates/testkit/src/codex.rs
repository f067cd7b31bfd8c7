//! A `CODEX_HOME` in a temporary folder that points the real Codex at the mock model.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{CLEAN_LANG, CLEAN_PATH};

/// The model the mock's scripts are written for: it offers plain `exec_command` and `apply_patch`
/// tools instead of the code mode of newer models.
pub const CODEX_MODEL: &str = "gpt-5.5";

/// What a test may want to set otherwise.
#[derive(Debug, Clone)]
pub struct CodexOptions {
    /// How long Codex waits for the next stream event before it retries. The default is long: a
    /// gated stream may stand still for as long as a host takes to be killed and started again.
    pub stream_idle_timeout: Duration,
    /// Retries of a request that got no stream.
    pub request_max_retries: u32,
    /// Retries of a stream that broke.
    pub stream_max_retries: u32,
}

impl Default for CodexOptions {
    fn default() -> Self {
        Self { stream_idle_timeout: Duration::from_secs(300), request_max_retries: 1, stream_max_retries: 2 }
    }
}

/// Two folders and the environment that make a Codex of one's own.
#[derive(Debug, Clone)]
pub struct CodexHome {
    /// `HOME` of the agent.
    pub home: PathBuf,
    /// `CODEX_HOME` of the agent; holds `config.toml`.
    pub codex_home: PathBuf,
}

impl CodexHome {
    /// The complete environment for this Codex; start it with nothing else.
    pub fn env(&self) -> Vec<(String, String)> {
        [
            ("PATH", CLEAN_PATH.to_owned()),
            ("LANG", CLEAN_LANG.to_owned()),
            ("HOME", self.home.to_string_lossy().into_owned()),
            ("CODEX_HOME", self.codex_home.to_string_lossy().into_owned()),
            ("MOCK_API_KEY", "dummy".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

/// Makes `dir/home` and `dir/codex` for the model server at `base_url` (which ends in `/v1`).
///
/// # Panics
/// When the folders cannot be written.
pub fn codex_home(dir: &Path, base_url: &str) -> CodexHome {
    codex_home_with(dir, base_url, &CodexOptions::default())
}

/// [`codex_home`] with other time-outs and retries.
///
/// # Panics
/// When the folders cannot be written.
pub fn codex_home_with(dir: &Path, base_url: &str, options: &CodexOptions) -> CodexHome {
    let home = CodexHome { home: dir.join("home"), codex_home: dir.join("codex") };
    fs::create_dir_all(&home.home).expect("create the agent's HOME");
    fs::create_dir_all(&home.codex_home).expect("create CODEX_HOME");
    fs::write(home.codex_home.join("config.toml"), config(base_url, options))
        .expect("write Codex's config.toml");
    home
}

/// `plugins = false` keeps Codex from asking hosts on the internet at start-up.
fn config(base_url: &str, options: &CodexOptions) -> String {
    let CodexOptions { stream_idle_timeout, request_max_retries, stream_max_retries } = options;
    let idle_ms = stream_idle_timeout.as_millis();
    format!(
        r#"model = "{CODEX_MODEL}"
model_provider = "mock"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false

[model_providers.mock]
name = "mock"
base_url = "{base_url}"
wire_api = "responses"
env_key = "MOCK_API_KEY"
requires_openai_auth = false
request_max_retries = {request_max_retries}
stream_max_retries = {stream_max_retries}
stream_idle_timeout_ms = {idle_ms}
"#
    )
}
