//! Which crate may depend on which: the arrows of `ARCHITECTURE.md`, checked against each `Cargo.toml`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

/// What a crate of ours may depend on.
struct Allowed {
    folder: &'static str,
    /// Crates of this workspace.
    own: &'static [&'static str],
    /// Crates of others that must not be there, with the reason.
    never: &'static [(&'static str, &'static str)],
}

const PURE: &str = "the core has no I/O, no clock and no async";
const SMALL: &str = "the keeper stays small: blocking code, one per agent process";
const TRANSLATES: &str = "adapters translate; they touch no process and no socket";

const CORE: &str = "mainstay-core";
const STORE: &str = "mainstay-store";
const KEEPER: &str = "mainstay-keeper";
const AGENTS: &str = "mainstay-agents";
const HOST: &str = "mainstay-host";
const API: &str = "mainstay-api";

/// Dev-dependencies are free, except that nothing below the binary may need what stands above it.
const ARROWS: [Allowed; 7] = [
    Allowed {
        folder: "core",
        own: &[],
        never: &[("tokio", PURE), ("rustix", PURE), ("rusqlite", PURE), ("jiff", PURE), ("tracing", PURE)],
    },
    Allowed { folder: "store", own: &[CORE], never: &[("axum", "the store serves nobody")] },
    Allowed {
        folder: "keeper",
        own: &[],
        never: &[
            ("tokio", SMALL),
            ("tracing", SMALL),
            ("rusqlite", SMALL),
            ("hyper", SMALL),
            ("clap", SMALL),
        ],
    },
    Allowed { folder: "agents", own: &[CORE], never: &[("tokio", TRANSLATES), ("rustix", TRANSLATES)] },
    Allowed {
        folder: "host",
        own: &[CORE, STORE, KEEPER, AGENTS],
        never: &[("axum", "HTTP belongs to the api crate"), ("rusqlite", "SQL belongs to the store crate")],
    },
    Allowed {
        folder: "api",
        own: &[CORE, STORE, AGENTS, HOST],
        never: &[("rusqlite", "SQL belongs to the store crate")],
    },
    Allowed { folder: "mainstay", own: &[CORE, STORE, KEEPER, AGENTS, HOST, API], never: &[] },
];

#[derive(Debug, Deserialize)]
struct Manifest {
    #[serde(default)]
    dependencies: BTreeMap<String, toml::Value>,
}

/// Complaints about all crates, one a line.
pub(crate) fn check(root: &Path) -> Vec<String> {
    let mut complaints = Vec::new();
    for allowed in &ARROWS {
        let path = root.join("crates").join(allowed.folder).join("Cargo.toml");
        match fs::read_to_string(&path) {
            Ok(text) => complaints.extend(check_manifest(allowed, &text)),
            Err(error) => complaints.push(format!("crates/{}/Cargo.toml: {error}", allowed.folder)),
        }
    }
    complaints
}

fn check_manifest(allowed: &Allowed, text: &str) -> Vec<String> {
    let file = format!("crates/{}/Cargo.toml", allowed.folder);
    let manifest: Manifest = match toml::from_str(text) {
        Ok(manifest) => manifest,
        Err(error) => return vec![format!("{file}: {error}")],
    };
    let mut complaints = Vec::new();
    for name in manifest.dependencies.keys() {
        if name.starts_with("mainstay-") && !allowed.own.contains(&name.as_str()) {
            complaints.push(format!("{file}: {name} is against the arrows of ARCHITECTURE.md"));
        }
        if let Some((_, reason)) = allowed.never.iter().find(|(never, _)| never == name) {
            complaints.push(format!("{file}: no {name} here: {reason}"));
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrow_the_wrong_way_is_named() {
        let core = &ARROWS[0];
        assert_eq!(check_manifest(core, "[dependencies]\nserde = \"1\"\n"), Vec::<String>::new());
        let complaints =
            check_manifest(core, "[dependencies]\nmainstay-host.workspace = true\ntokio = \"1\"\n");
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].contains("mainstay-host"), "{complaints:?}");
        assert!(complaints[1].contains("no clock"), "{complaints:?}");
    }

    #[test]
    fn dev_dependencies_are_free() {
        assert_eq!(check_manifest(&ARROWS[0], "[dev-dependencies]\ntokio = \"1\"\n"), Vec::<String>::new());
    }
}
