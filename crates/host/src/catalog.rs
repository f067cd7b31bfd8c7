//! Which agents there are and what a session pins. Looks at files only; reading starts no agent.

use crate::config::{AgentConfig, HostConfig};
use crate::error::HostError;
use crate::host::NewSessionRequest;
use mainstay_agents::AgentKind;
use mainstay_agents::claude::files;
use mainstay_core::work::ThreadSource;
use mainstay_core::{AgentName, LaunchSnapshot, Refusal, RefusalCode};
use mainstay_store::SessionRow;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// What is known of a registered agent without starting it.
#[derive(Debug, Clone, Serialize)]
pub struct AgentEntry {
    /// Its name.
    pub name: AgentName,
    /// Its protocol.
    pub kind: AgentKind,
    /// Whether its program is there.
    pub installed: bool,
    /// The program that would be started.
    pub path: Option<PathBuf>,
    /// How to install it, where it is missing.
    pub install: Option<String>,
    /// What its adapter can do.
    pub capabilities: mainstay_core::Capabilities,
}

/// The registered agents.
#[must_use]
pub fn agents(config: &HostConfig) -> Vec<AgentEntry> {
    config.agents.iter().map(|(name, agent)| entry(config, name, agent)).collect()
}

/// One of them.
///
/// # Errors
/// [`HostError::AgentUnknown`].
pub fn agent(config: &HostConfig, name: &AgentName) -> Result<AgentEntry, HostError> {
    Ok(entry(config, name, configured(config, name)?))
}

fn entry(config: &HostConfig, name: &AgentName, agent: &AgentConfig) -> AgentEntry {
    let command = command(config, agent);
    let install = match (&command, agent.kind) {
        (Some(_), _) => None,
        (None, AgentKind::Codex) => Some("npm install -g @openai/codex".to_owned()),
        (None, AgentKind::Claude) => Some("npm install -g @anthropic-ai/claude-code".to_owned()),
        (None, AgentKind::Acp | AgentKind::Demo) => {
            Some(format!("install the program {:?} or set agents.{name}.command", agent.command.first()))
        }
    };
    AgentEntry {
        name: name.clone(),
        kind: agent.kind,
        installed: command.is_some(),
        path: command.and_then(|command| command.first().map(PathBuf::from)),
        install,
        capabilities: mainstay_agents::adapter(agent.kind).capabilities().clone(),
    }
}

/// The configuration of a registered agent.
pub(crate) fn configured<'a>(config: &'a HostConfig, name: &AgentName) -> Result<&'a AgentConfig, HostError> {
    config.agents.get(name).ok_or_else(|| HostError::AgentUnknown {
        name: name.0.clone(),
        known: config.agents.keys().map(AgentName::as_str).collect::<Vec<_>>().join(", "),
    })
}

/// The command with its program resolved: absolute, and for Codex and Claude the native binary behind the npm wrapper. None
/// where it is not installed.
pub(crate) fn command(config: &HostConfig, agent: &AgentConfig) -> Option<Vec<String>> {
    let (program, arguments) = agent.command.split_first()?;
    let found = find_program(config, agent, program)?;
    let found = match agent.kind {
        AgentKind::Codex => native_codex(&found).unwrap_or(found),
        AgentKind::Claude => native_claude(&found).unwrap_or(found),
        AgentKind::Acp | AgentKind::Demo => found,
    };
    let mut command = vec![found.to_str()?.to_owned()];
    command.extend_from_slice(arguments);
    Some(command)
}

fn find_program(config: &HostConfig, agent: &AgentConfig, program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        let path = PathBuf::from(program);
        return (path.is_absolute() && is_executable(&path)).then_some(path);
    }
    let environment = config.agent_environment(agent);
    let path = environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_str())?;
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(program))
        .find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// The npm package `@openai/codex` is a Node wrapper around a native binary in a sibling package: one process less, and
/// signals that arrive.
fn native_codex(wrapper: &Path) -> Option<PathBuf> {
    let real = wrapper.canonicalize().ok()?;
    let package = real.parent()?.parent()?;
    let scope = package.parent()?;
    for packages in [scope.to_path_buf(), package.join("node_modules/@openai")] {
        for sibling in packages.read_dir().ok()?.flatten() {
            if !sibling.file_name().to_string_lossy().starts_with("codex-") {
                continue;
            }
            for target in sibling.path().join("vendor").read_dir().into_iter().flatten().flatten() {
                let binary = target.path().join("bin/codex");
                if is_executable(&binary) {
                    return Some(binary);
                }
            }
        }
    }
    None
}

/// The npm package `@anthropic-ai/claude-code` starts a native binary of a sibling package, unless its install script
/// put the binary in the wrapper's place.
fn native_claude(wrapper: &Path) -> Option<PathBuf> {
    let real = wrapper.canonicalize().ok()?;
    let package = real.parent()?.parent()?;
    let scope = package.parent()?;
    let name = package.file_name()?.to_str()?;
    let siblings = scope.read_dir().ok()?.flatten().filter(|sibling| {
        let sibling = sibling.file_name();
        sibling
            .to_str()
            .and_then(|sibling| sibling.strip_prefix(name))
            .is_some_and(|rest| rest.starts_with('-'))
    });
    let mut binaries: Vec<PathBuf> = siblings.map(|sibling| sibling.path().join("claude")).collect();
    // The C library that most machines have comes first, should both be there.
    binaries.sort();
    binaries.into_iter().find(|binary| is_executable(binary))
}

/// Checks and pins what a session is created with.
pub(crate) fn pin(config: &HostConfig, request: &NewSessionRequest) -> Result<LaunchSnapshot, HostError> {
    let agent = configured(config, &request.agent)?;
    refuse_unusable_thread(agent.kind, request.source.as_ref())?;
    let cwd = usable_folder(config, &request.cwd)?;
    let additional_directories = request
        .additional_directories
        .iter()
        .map(|folder| usable_folder(config, folder))
        .collect::<Result<_, _>>()?;
    let account_home =
        request.account_home.clone().or_else(|| agent.home.as_ref().map(|home| home.display().to_string()));
    Ok(LaunchSnapshot {
        host: config.host_id.clone(),
        agent: request.agent.clone(),
        cwd,
        additional_directories,
        account_home,
        mcp_servers: request.mcp_servers.clone(),
        instructions: request.instructions.clone(),
        env_names: agent.env.keys().cloned().collect(),
        command: command(config, agent).map(|command| command.join(" ")),
        source: request.source.clone(),
        beside: None,
    })
}

/// A conversation that is brought here, where its id goes into a command line and names a file.
fn refuse_unusable_thread(kind: AgentKind, source: Option<&ThreadSource>) -> Result<(), Refusal> {
    let Some(ThreadSource::Adopt { thread }) = source else { return Ok(()) };
    if kind != AgentKind::Claude || files::transcript_name(thread.as_str()).is_some() {
        return Ok(());
    }
    let detail = format!(
        "{thread:?} is no id of a conversation of this agent; it is the name of its transcript, without \".jsonl\""
    );
    Err(Refusal::new(RefusalCode::InvalidId, detail))
}

/// What a session is pinned to, with the credentials that only its record holds: nothing to show. A purged session has none.
///
/// # Errors
/// [`HostError::Unreadable`].
pub fn pinned(row: &SessionRow) -> Result<LaunchSnapshot, HostError> {
    serde_json::from_slice(&row.launch).map_err(|error| HostError::Unreadable {
        session: row.id.clone(),
        why: format!("what it was launched with cannot be read: {error}"),
    })
}

/// A folder that exists and lies within the roots, links followed.
fn usable_folder(config: &HostConfig, folder: &str) -> Result<String, HostError> {
    let bad =
        |why: String, outside_roots| HostError::BadFolder { path: folder.to_owned(), why, outside_roots };
    let path = Path::new(folder);
    if !path.is_absolute() {
        return Err(bad("the folder must be an absolute path".to_owned(), false));
    }
    let real =
        path.canonicalize().map_err(|error| bad(format!("the folder cannot be used: {error}"), false))?;
    if !real.is_dir() {
        return Err(bad("this is not a folder".to_owned(), false));
    }
    let inside = config.roots.iter().any(|root| root.canonicalize().is_ok_and(|root| real.starts_with(root)));
    if !inside {
        let roots: Vec<String> = config.roots.iter().map(|root| root.display().to_string()).collect();
        let why = format!(
            "the folder lies outside the roots that sessions may use ({}); add it to `roots`",
            roots.join(", ")
        );
        return Err(bad(why, true));
    }
    real.to_str().map(str::to_owned).ok_or_else(|| bad("the path is not UTF-8".to_owned(), false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_core::ThreadId;

    #[test]
    fn an_id_that_could_be_an_option_or_another_file_is_not_adopted() {
        let refused = |kind, thread: &str| {
            let source = ThreadSource::Adopt { thread: ThreadId::from(thread) };
            refuse_unusable_thread(kind, Some(&source)).err().map(|refusal| refusal.code)
        };
        for id in ["--dangerously-skip-permissions", "-p", "../../x", "a/b", ""] {
            assert_eq!(refused(AgentKind::Claude, id), Some(RefusalCode::InvalidId), "{id}");
        }
        assert_eq!(refused(AgentKind::Claude, "0aee81d0-8de0-4e6e-b8be-f9f9c9d1c4b0"), None);
        assert_eq!(refused(AgentKind::Codex, "-p"), None, "it stands in no command line");
    }
}
