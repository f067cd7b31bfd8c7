//! The registered agents, as far as their files tell.

use super::finding::{self as kind, Finding};
use crate::config::{Settings, Source};
use mainstay_agents::AgentKind;
use mainstay_host::catalog::AgentEntry;
use mainstay_host::{HostConfig, installed};

pub(super) fn look(settings: &Settings, config: &HostConfig) -> Vec<Finding> {
    let entries = mainstay_host::catalog::agents(config);
    let names: Vec<String> = entries
        .iter()
        .map(|entry| match entry.installed {
            true => entry.name.to_string(),
            false => format!("{} (not installed)", entry.name),
        })
        .collect();
    let mut found = vec![Finding::new(kind::AGENTS_OK, names.join(", "), &[])];
    for entry in &entries {
        found.extend(agent(settings, entry));
    }
    found
}

fn agent(settings: &Settings, entry: &AgentEntry) -> Vec<Finding> {
    let name = &entry.name;
    let Some(path) = entry.path.as_ref().filter(|_| entry.installed) else {
        let command = settings.layers.get(&format!("agents.{name}.command"));
        let is_configured = command.is_some_and(|command| command.source != Source::Default);
        let kind = if is_configured { kind::AGENT_MISSING } else { kind::AGENT_NOT_INSTALLED };
        let install = entry.install.as_deref().unwrap_or("install its program");
        return vec![Finding::new(
            kind,
            format!("{name}: its program is not found"),
            &[("install", install)],
        )];
    };
    if entry.kind == AgentKind::Demo {
        return Vec::new();
    }
    let shown = path.display();
    let mut found = Vec::new();
    found.push(match (installed::version(entry.kind, path), installed::measured_with(entry.kind)) {
        (Some(version), Some(known)) if version == known => {
            Finding::new(kind::AGENT_OK, format!("{name}: {version}, {shown}"), &[])
        }
        (Some(version), Some(known)) => {
            let detail = format!("{name}: found {version}, measured {known}, {shown}");
            Finding::new(kind::AGENT_VERSION, detail, &[])
        }
        _ => Finding::new(kind::AGENT_VERSION_UNKNOWN, format!("{name}: {shown}"), &[]),
    });
    if let Some(home) = settings.agents.get(name).and_then(|agent| agent.home.as_ref())
        && !home.is_dir()
    {
        let folder = home.display().to_string();
        let words = [("folder", folder.as_str()), ("agent", name.as_str())];
        found.push(Finding::new(kind::AGENT_HOME, format!("{name}: {folder} is no folder"), &words));
    }
    if matches!(entry.kind, AgentKind::Codex | AgentKind::Claude) {
        found.push(Finding::new(kind::AGENT_SIGN_IN, format!("{name}: unknown"), &[]));
    }
    found
}
