//! Where values come from: flags, variables, the project's file, the host's file, defaults.

use super::keys::{AGENT_KEYS, InProject, KEYS, Key, Kind, OTHER_VARIABLES, nearest};
use super::{ConfigError, key_of, units};
use crate::environment::Environment;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// The project's file, looked for in the current folder and above.
const PROJECT_FILE: &str = ".mainstay.toml";

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Source {
    Default,
    File(PathBuf),
    Project(PathBuf),
    Variable(String),
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) | Self::Project(path) => path.display().fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// A value and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Value {
    pub(crate) value: toml::Value,
    pub(crate) source: Source,
}

/// All values, the nearest layer's for each key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Layers {
    values: BTreeMap<String, Value>,
    /// What was not understood, one sentence each.
    pub(crate) warnings: Vec<String>,
}

impl Layers {
    pub(crate) fn read(
        environment: &Environment,
        home: &Path,
        flags: &[(&str, String)],
    ) -> Result<Self, ConfigError> {
        let mut layers = Self::default();
        for key in KEYS {
            if let Some(default) = key.default {
                layers.put(key.name.to_owned(), from_text(key.kind, default), Source::Default);
            }
        }
        let file = home.join("config.toml");
        if let Some(table) = read_file(&file)? {
            for (name, value) in layers.flatten(table, &file) {
                layers.put(name, value, Source::File(file.clone()));
            }
        }
        if let Some(folder) = environment.current_folder() {
            layers.read_project(&folder, environment.get("HOME"))?;
        }
        layers.read_variables(environment);
        for (name, value) in flags {
            let kind = key_of(name).map_or(Kind::Text, |key| key.kind);
            layers.put((*name).to_owned(), from_text(kind, value), Source::Flag((*name).to_owned()));
        }
        Ok(layers)
    }

    fn put(&mut self, name: String, value: toml::Value, source: Source) {
        self.values.insert(name, Value { value, source });
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.values.get(name)
    }

    /// Every value by its name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Names of configured agents.
    pub(crate) fn agents(&self) -> BTreeSet<String> {
        let names = self.values.keys().filter_map(|name| name.strip_prefix("agents.")?.split_once('.'));
        names.map(|(name, _)| name.to_owned()).collect()
    }

    /// A file's table as keys with their levels; unknown ones are warned about and left out.
    fn flatten(&mut self, table: toml::Table, file: &Path) -> Vec<(String, toml::Value)> {
        let mut found = Vec::new();
        for (name, value) in table {
            match (name.as_str(), value) {
                ("agents", toml::Value::Table(agents)) => {
                    for (agent, value) in agents {
                        let toml::Value::Table(members) = value else {
                            self.warnings.push(format!("{}: agents.{agent} is no table", file.display()));
                            continue;
                        };
                        for (member, value) in members {
                            if AGENT_KEYS.iter().any(|key| key.name == member) {
                                found.push((format!("agents.{agent}.{member}"), value));
                            } else {
                                self.warn_unknown(&file.display().to_string(), &member, AGENT_KEYS);
                            }
                        }
                    }
                }
                (_, value) if KEYS.iter().any(|key| key.name == name) => found.push((name, value)),
                _ => self.warn_unknown(&file.display().to_string(), &name, KEYS),
            }
        }
        found
    }

    fn warn_unknown(&mut self, source: &str, name: &str, keys: &'static [Key]) {
        let hint = match nearest(name, keys.iter().map(|key| key.name)) {
            Some(near) => format!("; did you mean {near}?"),
            None => String::new(),
        };
        self.warnings.push(format!("{source}: unknown key {name}{hint}"));
    }

    /// A project may only narrow: folders within the allowed ones, numbers below the allowed ones.
    fn read_project(&mut self, folder: &Path, user_home: Option<&str>) -> Result<(), ConfigError> {
        let Some(file) =
            folder.ancestors().map(|folder| folder.join(PROJECT_FILE)).find(|file| file.is_file())
        else {
            return Ok(());
        };
        let Some(table) = read_file(&file)? else { return Ok(()) };
        for (name, value) in self.flatten(table, &file) {
            let project = key_of(&name).map_or(InProject::No, |key| key.project);
            let narrows = match project {
                InProject::No => false,
                InProject::Lower => self.is_lower(&name, &value),
                InProject::Within => self.is_within(&name, &value, user_home),
            };
            if narrows {
                self.put(name, value, Source::Project(file.clone()));
            } else {
                self.warnings.push(format!(
                    "{}: {name} is ignored: a project may only narrow what is allowed",
                    file.display()
                ));
            }
        }
        Ok(())
    }

    fn is_lower(&self, name: &str, value: &toml::Value) -> bool {
        let kind = key_of(name).map(|key| key.kind);
        let magnitude = |value: &toml::Value| match (kind, value) {
            (Some(Kind::Duration), toml::Value::String(text)) => {
                units::duration(text).ok().and_then(|duration| u64::try_from(duration.as_millis()).ok())
            }
            (Some(Kind::Size), toml::Value::String(text)) => units::size(text).ok(),
            (Some(Kind::Count), toml::Value::Integer(count)) => u64::try_from(*count).ok(),
            _ => None,
        };
        let before = self.get(name).and_then(|before| magnitude(&before.value));
        magnitude(value).zip(before).is_some_and(|(new, old)| new <= old)
    }

    fn is_within(&self, name: &str, value: &toml::Value, user_home: Option<&str>) -> bool {
        let folders = |value: &toml::Value| -> Vec<PathBuf> {
            value
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|folder| folder.as_str().map(PathBuf::from))
                .collect()
        };
        let allowed = match self.get(name) {
            Some(before) => folders(&before.value),
            None => user_home.map(PathBuf::from).into_iter().collect(),
        };
        // Links are followed, so that a link within is not a way out.
        let real = |folder: &PathBuf| folder.canonicalize().ok();
        let allowed: Vec<PathBuf> = allowed.iter().filter_map(real).collect();
        let wanted = folders(value);
        !wanted.is_empty()
            && wanted.iter().all(|folder| {
                real(folder).is_some_and(|folder| allowed.iter().any(|root| folder.starts_with(root)))
            })
    }

    fn read_variables(&mut self, environment: &Environment) {
        for (variable, text) in environment.iter() {
            let Some(rest) = variable.strip_prefix("MAINSTAY_") else { continue };
            if OTHER_VARIABLES.iter().any(|(name, _)| *name == variable) {
                continue;
            }
            let name = rest.to_lowercase().replace("__", ".");
            match key_of(&name) {
                Some(key) => self.put(name, from_text(key.kind, text), Source::Variable(variable.to_owned())),
                None => self.warn_unknown(variable, &name, KEYS),
            }
        }
    }
}

fn read_file(path: &Path) -> Result<Option<toml::Table>, ConfigError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        // What stands in the way of the folder is said by whoever is to use it.
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(source) => return Err(ConfigError::Unreadable { path: path.to_owned(), source }),
    };
    match text.parse::<toml::Table>() {
        Ok(table) => Ok(Some(table)),
        Err(source) => Err(ConfigError::Malformed { path: path.to_owned(), source: Box::new(source) }),
    }
}

/// A text from a flag, a variable or the table of defaults as the value that its key takes: TOML where it is TOML of
/// that kind, else the text itself; a single text stands for a list of one.
fn from_text(kind: Kind, text: &str) -> toml::Value {
    let parsed =
        format!("value = {text}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("value"));
    let plain = || toml::Value::String(text.to_owned());
    match (kind, parsed) {
        (Kind::Folders | Kind::Texts, Some(list @ toml::Value::Array(_))) => list,
        (Kind::Folders, _) => toml::Value::Array(
            std::env::split_paths(text).map(|path| path.display().to_string().into()).collect(),
        ),
        (Kind::Texts, _) => toml::Value::Array(vec![plain()]),
        (Kind::Table, Some(table @ toml::Value::Table(_))) => table,
        (Kind::Count, Some(count @ toml::Value::Integer(_))) => count,
        (Kind::Flag, Some(flag @ toml::Value::Boolean(_))) => flag,
        (_, Some(toml::Value::String(unquoted))) => unquoted.into(),
        _ => plain(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(home: &Path, folder: &Path, more: &[(&str, &str)]) -> Environment {
        let mut variables = vec![("HOME".to_owned(), home.display().to_string())];
        variables.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Environment::new(variables).in_folder(folder)
    }

    #[test]
    fn a_project_narrows_and_never_widens() {
        let home = tempfile::tempdir().expect("a folder");
        let project = home.path().join("project/deep");
        std::fs::create_dir_all(&project).expect("folders");
        let inside = project.display().to_string();
        let text =
            format!("roots = [{inside:?}]\nmax_processes = 3\nlinger = \"48h\"\nlisten = \"0.0.0.0:1\"\n");
        std::fs::write(home.path().join("project").join(PROJECT_FILE), text).expect("write");
        let layers = Layers::read(&environment(home.path(), &project, &[]), home.path(), &[]).expect("reads");
        let source = |name: &str| layers.get(name).map(|value| value.source.clone());
        assert!(matches!(source("roots"), Some(Source::Project(_))));
        assert!(matches!(source("max_processes"), Some(Source::Project(_))));
        assert_eq!(source("linger"), Some(Source::Default));
        assert_eq!(source("listen"), Some(Source::Default));
        assert_eq!(layers.warnings.len(), 2, "{:?}", layers.warnings);
    }

    #[test]
    fn unknown_keys_are_warned_about_with_the_nearest() {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::write(home.path().join("config.toml"), "listn = \"x\"\n[agents.a]\ncomand = []\n")
            .expect("write");
        let environment =
            environment(home.path(), home.path(), &[("MAINSTAY_ROTS", "/"), ("MAINSTAY_HOME", "/x")]);
        let layers = Layers::read(&environment, home.path(), &[]).expect("reads");
        for near in ["listen", "command", "roots"] {
            assert!(
                layers.warnings.iter().any(|warning| warning.contains(near)),
                "{near}: {:?}",
                layers.warnings
            );
        }
        assert_eq!(layers.warnings.len(), 3, "{:?}", layers.warnings);
    }

    #[test]
    fn texts_become_what_their_key_takes() {
        assert_eq!(from_text(Kind::Texts, "codex"), toml::Value::Array(vec!["codex".into()]));
        assert_eq!(
            from_text(Kind::Texts, "[\"a\", \"b\"]"),
            toml::Value::Array(vec!["a".into(), "b".into()])
        );
        assert_eq!(from_text(Kind::Folders, "/a:/b"), toml::Value::Array(vec!["/a".into(), "/b".into()]));
        assert_eq!(from_text(Kind::Count, "7"), toml::Value::Integer(7));
        assert_eq!(from_text(Kind::Flag, "true"), toml::Value::Boolean(true));
        assert_eq!(from_text(Kind::Duration, "\"30m\""), toml::Value::String("30m".to_owned()));
        assert_eq!(from_text(Kind::Address, "127.0.0.1:0"), toml::Value::String("127.0.0.1:0".to_owned()));
    }
}
