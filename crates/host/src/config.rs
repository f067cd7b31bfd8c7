//! What a host is told when it starts. The library reads no environment and no file of its own: the binary does.

use crate::fault::FaultPlan;
use crate::retention::Retention;
use mainstay_agents::AgentKind;
use mainstay_core::session::Limits;
use mainstay_core::{AgentName, HostId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// Variables of the host's environment that every agent gets, where they are set. Short on purpose: keys and the
/// marks of other agents must not leak from one agent to another.
pub const PASSED_VARIABLES: &[&str] =
    &["PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "USER", "LOGNAME", "SHELL", "TZ", "TMPDIR"];

/// A registered agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// The protocol.
    pub kind: AgentKind,
    /// Program and arguments; a bare program name is looked up on PATH.
    pub command: Vec<String>,
    /// The account home; pinned in each session at creation.
    pub home: Option<PathBuf>,
    /// Added to the agent's environment.
    pub env: BTreeMap<String, String>,
    /// Let through from the host's environment, beside [`PASSED_VARIABLES`].
    pub env_pass: Vec<String>,
    /// Whether sessions with the same launch profile may share a process, where the agent can.
    pub isolation: Isolation,
    /// How many may share one.
    pub sessions_per_process: usize,
    /// Variables of `env` and `env_pass` that the commands which the agent runs get too, where it tells its own environment
    /// and theirs apart.
    pub command_env: Vec<String>,
    /// How long an agent may try the same thing again; set as a limit of each session at its creation. None: without end.
    pub stall_limit: Option<Duration>,
}

impl AgentConfig {
    /// An agent with nothing configured beside its protocol and its command.
    #[must_use]
    pub fn new(kind: AgentKind, command: Vec<String>) -> Self {
        Self {
            kind,
            command,
            home: None,
            env: BTreeMap::new(),
            env_pass: Vec::new(),
            isolation: Isolation::default(),
            sessions_per_process: SESSIONS_PER_PROCESS,
            command_env: Vec::new(),
            stall_limit: None,
        }
    }

    /// Variables of the agent's environment that are the agent's alone: all that are configured for it, and of those that
    /// are let through those that name a secret. Sorted.
    #[must_use]
    pub fn kept_from_commands(&self) -> Vec<String> {
        let secret = |name: &&String| {
            let name = name.to_ascii_uppercase();
            ["KEY", "SECRET", "TOKEN", "PASSWORD", "CREDENTIAL"].iter().any(|word| name.contains(word))
        };
        let own = self.env.keys().chain(self.env_pass.iter().filter(secret));
        let given = |name: &&String| {
            PASSED_VARIABLES.contains(&name.as_str()) || self.command_env.iter().any(|given| given == *name)
        };
        let mut kept: Vec<String> = own.filter(|name| !given(name)).cloned().collect();
        kept.sort();
        kept.dedup();
        kept
    }
}

/// Sessions that share a process, unless configured otherwise.
pub const SESSIONS_PER_PROCESS: usize = 16;

/// Who shares a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Isolation {
    /// Sessions with the same launch profile, where the agent holds many threads in one process.
    #[default]
    Profile,
    /// Nobody.
    Session,
}

/// Everything a host needs to know.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// The state folder.
    pub home: PathBuf,
    /// This host's name in manifests and snapshots.
    pub host_id: HostId,
    /// Folders that sessions may use.
    pub roots: Vec<PathBuf>,
    /// After this long with nothing owed, the agent is put to rest.
    pub rest_after: Duration,
    /// How long a keeper works on without a host.
    pub linger: Duration,
    /// Bytes of spool per process.
    pub spool_limit: u64,
    /// How long a batch of streamed text alone may gather.
    pub stream_flush: Duration,
    /// Agent processes at once.
    pub max_processes: usize,
    /// Agent processes starting at once.
    pub max_starting: usize,
    /// How long what is kept.
    pub retention: Retention,
    /// Budgets and default answers of sessions that are created without their own.
    pub limits: Limits,
    /// Agents by name.
    pub agents: BTreeMap<AgentName, AgentConfig>,
    /// The host's environment, from which allow-listed variables are passed on.
    pub environment: Vec<(String, String)>,
    /// The program that keepers are started from: normally `/proc/self/exe`, which is the running binary also after an
    /// upgrade on disk.
    pub keeper_program: PathBuf,
    /// Its arguments.
    pub keeper_args: Vec<String>,
    /// Where a test wants this host to die.
    pub fault: FaultPlan,
}

impl HostConfig {
    /// The environment of an agent: allow-listed variables, then configured ones.
    #[must_use]
    pub fn agent_environment(&self, agent: &AgentConfig) -> Vec<(String, String)> {
        let passed = |name: &str| {
            PASSED_VARIABLES.contains(&name) || agent.env_pass.iter().any(|allowed| allowed == name)
        };
        let mut env: BTreeMap<String, String> =
            self.environment.iter().filter(|(name, _)| passed(name)).cloned().collect();
        env.extend(agent.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        env.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_get_what_is_no_secret_or_named_for_them() {
        let mut agent = AgentConfig::new(AgentKind::Codex, vec!["codex".to_owned()]);
        agent.env = ["API_KEY", "HOME", "GOPATH"].map(|name| (name.to_owned(), "x".to_owned())).into();
        agent.env_pass = ["SSH_AUTH_SOCK", "GITHUB_TOKEN", "API_KEY"].map(str::to_owned).to_vec();
        assert_eq!(agent.kept_from_commands(), ["API_KEY", "GITHUB_TOKEN", "GOPATH"]);
        agent.command_env = vec!["GOPATH".to_owned()];
        assert_eq!(agent.kept_from_commands(), ["API_KEY", "GITHUB_TOKEN"]);
    }
}
