//! What can be told about an installed agent from its files: nothing is started.

use mainstay_agents::AgentKind;
use serde::Deserialize;
use std::path::Path;

/// Folders above a program that are looked through for its package's description: the native builds lie deepest.
const FOLDERS_ABOVE: usize = 6;
/// A package's description is a few kilobytes; a longer file is not one.
const LONGEST_DESCRIPTION: u64 = 1024 * 1024;

/// The version that the adapter's rules were measured with; None: no certain one.
#[must_use]
pub const fn measured_with(kind: AgentKind) -> Option<&'static str> {
    match kind {
        AgentKind::Codex => Some("0.171.0"),
        AgentKind::Claude => Some("2.1.197"),
        AgentKind::Acp | AgentKind::Demo => None,
    }
}

#[derive(Deserialize)]
struct Description {
    name: String,
    version: String,
}

/// The version of a program that npm installed, as its package says; None where it cannot be told without starting it.
#[must_use]
pub fn version(kind: AgentKind, program: &Path) -> Option<String> {
    let scope = match kind {
        AgentKind::Codex => "@openai/codex",
        AgentKind::Claude => "@anthropic-ai/claude-code",
        AgentKind::Acp | AgentKind::Demo => return None,
    };
    let real = program.canonicalize().ok()?;
    for folder in real.ancestors().skip(1).take(FOLDERS_ABOVE) {
        let file = folder.join("package.json");
        if !file.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= LONGEST_DESCRIPTION) {
            continue;
        }
        let description: Description = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
        if !description.name.starts_with(scope) {
            return None;
        }
        // Native builds of Codex carry the platform behind the version: `0.171.0-linux-x64`.
        let version = description.version.split('-').next().unwrap_or_default();
        return (!version.is_empty()).then(|| version.to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_what_is_pinned() {
        let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agents.lock");
        let lock = std::fs::read_to_string(lock).expect("the pinned agents");
        for kind in [AgentKind::Codex, AgentKind::Claude] {
            let version = measured_with(kind).expect("a version");
            assert!(lock.contains(&format!("version = \"{version}\"")), "{version} is not pinned");
        }
    }

    #[test]
    fn the_packages_description_gives_the_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let bin = folder.path().join("codex-linux-x64/vendor/x/bin");
        std::fs::create_dir_all(&bin).expect("folders");
        std::fs::write(bin.join("codex"), "").expect("a program");
        assert_eq!(version(AgentKind::Codex, &bin.join("codex")), None);
        let description = folder.path().join("codex-linux-x64/package.json");
        std::fs::write(&description, r#"{"name":"@openai/codex","version":"0.9.1-linux-x64"}"#)
            .expect("write");
        assert_eq!(version(AgentKind::Codex, &bin.join("codex")).as_deref(), Some("0.9.1"));
        assert_eq!(version(AgentKind::Claude, &bin.join("codex")), None, "another program's package");
    }
}
