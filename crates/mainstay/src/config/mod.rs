//! The configuration: layers, each value with where it came from.

pub(crate) mod keys;
mod layers;
pub(crate) mod units;

pub(crate) use layers::{Layers, Source};

use crate::environment::Environment;
use crate::otlp::Endpoint;
use keys::{AGENT_KEYS, KEYS, Key};
use mainstay_agents::AgentKind;
use mainstay_core::AgentName;
use mainstay_core::session::Limits;
use mainstay_host::config::SESSIONS_PER_PROCESS;
use mainstay_host::{AgentConfig, Isolation, Retention};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use units::UnitError;

/// Why the configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The home is unknown.
    #[error("set MAINSTAY_HOME or HOME to an absolute path: the state folder is unknown without them")]
    NoHome,
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is no TOML.
    #[error("{} is not valid TOML", path.display())]
    Malformed {
        /// Which.
        path: PathBuf,
        /// Why.
        source: Box<toml::de::Error>,
    },
    /// A value is not what its key takes.
    #[error("{key} (from {source_text}): {why}")]
    BadValue {
        /// Which key.
        key: String,
        /// From where.
        source_text: String,
        /// What is wrong.
        why: String,
    },
}

/// How a line of the log is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The configuration in force.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) home: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) allow_remote: bool,
    pub(crate) allowed_hosts: Vec<String>,
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) rest_after: Duration,
    pub(crate) linger: Duration,
    pub(crate) spool_limit: u64,
    pub(crate) stream_flush: Duration,
    pub(crate) max_processes: usize,
    pub(crate) max_starting: usize,
    pub(crate) retention: Retention,
    pub(crate) limits: Limits,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    #[cfg_attr(not(feature = "otlp"), expect(dead_code, reason = "always None: reading the key fails"))]
    pub(crate) otlp_endpoint: Option<Endpoint>,
    pub(crate) agents: BTreeMap<AgentName, AgentConfig>,
    /// Every value with its source.
    pub(crate) layers: Layers,
}

/// The user's home, and the folder that the host is started in: whoever starts it there means it. Never the whole
/// machine, which is where a service manager starts things.
fn default_roots(environment: &Environment) -> Vec<PathBuf> {
    let home = environment.get("HOME").map(PathBuf::from);
    let here = environment.current_folder().filter(|folder| folder.parent().is_some());
    let mut roots: Vec<PathBuf> = home.into_iter().collect();
    roots.extend(here.filter(|here| !roots.iter().any(|root| here.starts_with(root))));
    roots
}

/// Reads all layers. `flags` are (key, value) from the command line.
pub(crate) fn load(environment: &Environment, flags: &[(&str, String)]) -> Result<Settings, ConfigError> {
    let home = environment.state_folder().ok_or(ConfigError::NoHome)?;
    let layers = Layers::read(environment, &home, flags)?;
    let reader = Reader { layers: &layers };
    let roots = match layers.get("roots") {
        Some(_) => reader.folders("roots")?,
        None => default_roots(environment),
    };
    Ok(Settings {
        listen: reader.parsed("listen", |text| {
            text.parse().map_err(|_| format!("an address and a port, got {text:?}"))
        })?,
        allow_remote: reader.flag("allow_remote")?,
        allowed_hosts: reader.texts("allowed_hosts")?.unwrap_or_default(),
        roots,
        rest_after: reader.duration("rest_after")?,
        linger: reader.duration("linger")?,
        spool_limit: reader
            .parsed("spool_limit", |text| units::size(text).map_err(|error| error.to_string()))?,
        stream_flush: reader.duration("stream_flush")?,
        max_processes: reader.count("max_processes")?,
        max_starting: reader.count("max_starting")?,
        retention: Retention {
            archive_after: reader.age("archive_after")?,
            delete_archived_after: reader.age("delete_archived_after")?,
            keep_feed: reader.duration("keep_feed")?,
        },
        limits: Limits {
            max_turns: reader.bound("max_turns", units::count)?,
            max_turn_ms: reader.bound("max_turn_time", units::milliseconds)?,
            max_tokens: reader.bound("max_tokens", units::count)?,
            max_cost_micros: reader.bound("max_cost", units::micros)?,
            // A matter of each agent: `agents.X.stall_limit`.
            max_stall_ms: None,
            requests: None,
        },
        log: reader.parsed("log", |text| Ok(text.to_owned()))?,
        log_format: reader.parsed("log_format", |text| match text {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            other => Err(format!("`text` or `json`, not {other:?}")),
        })?,
        otlp_endpoint: match reader.text("otlp_endpoint")? {
            Some(text) => {
                Some(Endpoint::parse(&text).map_err(|error| reader.bad("otlp_endpoint", error.to_string()))?)
            }
            None => None,
        },
        agents: agents(&reader)?,
        home,
        layers,
    })
}

/// The built-in agents, with what is configured over them, and further ones.
fn agents(reader: &Reader<'_>) -> Result<BTreeMap<AgentName, AgentConfig>, ConfigError> {
    let own = std::env::current_exe().ok().and_then(|path| path.to_str().map(str::to_owned));
    let mut agents = BTreeMap::new();
    let demo = vec![own.unwrap_or_else(|| "mainstay".to_owned()), crate::DEMO_AGENT.to_owned()];
    agents.insert(AgentName::from("demo"), AgentConfig::new(AgentKind::Demo, demo));
    agents.insert(AgentName::from("codex"), AgentConfig::new(AgentKind::Codex, vec!["codex".to_owned()]));
    agents.insert(AgentName::from("claude"), AgentConfig::new(AgentKind::Claude, vec!["claude".to_owned()]));
    for name in reader.layers.agents() {
        let key = |member: &str| format!("agents.{name}.{member}");
        let id = AgentName::parse(&name)
            .map_err(|error| reader.bad(&key("command"), format!("the agent's name: {error}")))?;
        let kind = match reader.text(&key("kind"))?.as_deref() {
            Some("acp") => Some(AgentKind::Acp),
            Some("codex") => Some(AgentKind::Codex),
            Some("claude") => Some(AgentKind::Claude),
            Some(other) => {
                let why = format!("this version speaks `acp`, `claude` and `codex`, not {other:?}");
                return Err(reader.bad(&key("kind"), why));
            }
            None => None,
        };
        let command = reader.texts(&key("command"))?;
        let before = agents.remove(&id);
        let kind = kind.or(before.as_ref().map(|agent| agent.kind));
        let command = command.or(before.map(|agent| agent.command));
        let (Some(kind), Some(command)) = (kind, command) else {
            return Err(reader.bad(
                &key("command"),
                "an agent that is not built in needs `kind` and `command`".to_owned(),
            ));
        };
        if command.is_empty() {
            return Err(reader.bad(&key("command"), "a program, and its arguments".to_owned()));
        }
        let home = reader.text(&key("home"))?.map(PathBuf::from);
        if home.as_ref().is_some_and(|home| !home.is_absolute()) {
            return Err(reader.bad(&key("home"), "an absolute path".to_owned()));
        }
        let (env, env_pass) =
            (reader.table(&key("env"))?, reader.texts(&key("env_pass"))?.unwrap_or_default());
        let isolation = match reader.text(&key("isolation"))?.as_deref() {
            None | Some("profile") => Isolation::Profile,
            Some("session") => Isolation::Session,
            Some(other) => {
                return Err(reader.bad(&key("isolation"), format!("`profile` or `session`, not {other:?}")));
            }
        };
        let most = key("sessions_per_process");
        let sessions_per_process = match reader.text(&most)? {
            Some(_) => reader.count(&most)?,
            None => SESSIONS_PER_PROCESS,
        };
        let command_env = reader.texts(&key("command_env"))?.unwrap_or_default();
        let stall_limit = match reader.text(&key("stall_limit"))? {
            Some(_) => Some(reader.duration(&key("stall_limit"))?),
            None => None,
        };
        let agent = AgentConfig {
            kind,
            command,
            home,
            env,
            env_pass,
            isolation,
            sessions_per_process,
            command_env,
            stall_limit,
        };
        agents.insert(id, agent);
    }
    Ok(agents)
}

/// Reads typed values out of the layers.
struct Reader<'a> {
    layers: &'a Layers,
}

impl Reader<'_> {
    fn bad(&self, key: &str, why: String) -> ConfigError {
        let source_text =
            self.layers.get(key).map_or_else(|| "nowhere".to_owned(), |value| value.source.to_string());
        ConfigError::BadValue { key: key.to_owned(), source_text, why }
    }

    fn parsed<T>(&self, key: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<T, ConfigError> {
        let text = self.text(key)?.ok_or_else(|| self.bad(key, "a value is needed".to_owned()))?;
        parse(&text).map_err(|why| self.bad(key, why))
    }

    fn text(&self, key: &str) -> Result<Option<String>, ConfigError> {
        match self.layers.get(key).map(|value| &value.value) {
            None => Ok(None),
            Some(toml::Value::String(text)) => Ok(Some(text.clone())),
            // A bare number where a unit is needed is refused by the parser, with what it should have been.
            Some(toml::Value::Integer(number)) => Ok(Some(number.to_string())),
            Some(other) => Err(self.bad(key, format!("a text, not {}", other.type_str()))),
        }
    }

    fn duration(&self, key: &str) -> Result<Duration, ConfigError> {
        self.parsed(key, |text| units::duration(text).map_err(|error| error.to_string()))
    }

    /// A duration, or `never`.
    fn age(&self, key: &str) -> Result<Option<Duration>, ConfigError> {
        self.parsed(key, |text| match text {
            "never" => Ok(None),
            text => {
                units::duration(text).map(Some).map_err(|error| format!("`never`, or a duration: {error}"))
            }
        })
    }

    /// A bound, or `none`.
    fn bound(
        &self,
        key: &str,
        parse: impl Fn(&str) -> Result<u64, UnitError>,
    ) -> Result<Option<u64>, ConfigError> {
        self.parsed(key, |text| match text {
            "none" => Ok(None),
            text => parse(text).map(Some).map_err(|error| format!("`none`, or a bound: {error}")),
        })
    }

    fn count(&self, key: &str) -> Result<usize, ConfigError> {
        self.parsed(key, |text| match text.parse() {
            Ok(count) if count > 0 => Ok(count),
            _ => Err(format!("a whole number above zero, got {text:?}")),
        })
    }

    fn flag(&self, key: &str) -> Result<bool, ConfigError> {
        match self.layers.get(key).map(|value| &value.value) {
            Some(toml::Value::Boolean(flag)) => Ok(*flag),
            _ => Err(self.bad(key, "true or false".to_owned())),
        }
    }

    fn texts(&self, key: &str) -> Result<Option<Vec<String>>, ConfigError> {
        let Some(value) = self.layers.get(key) else { return Ok(None) };
        let texts = value.value.as_array().and_then(|values| {
            values.iter().map(|value| value.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        });
        texts.map(Some).ok_or_else(|| self.bad(key, "a list of texts".to_owned()))
    }

    fn folders(&self, key: &str) -> Result<Vec<PathBuf>, ConfigError> {
        let folders: Vec<PathBuf> =
            self.texts(key)?.unwrap_or_default().into_iter().map(PathBuf::from).collect();
        match folders.iter().find(|folder| !folder.is_absolute()) {
            Some(relative) => Err(self.bad(key, format!("absolute folders; {} is not", relative.display()))),
            None => Ok(folders),
        }
    }

    fn table(&self, key: &str) -> Result<BTreeMap<String, String>, ConfigError> {
        let Some(value) = self.layers.get(key) else { return Ok(BTreeMap::new()) };
        let table = value.value.as_table().and_then(|table| {
            table.iter().map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
        });
        table.ok_or_else(|| self.bad(key, "a table of texts".to_owned()))
    }
}

/// The key of a name, with its level.
pub(crate) fn key_of(name: &str) -> Option<&'static Key> {
    match name.strip_prefix("agents.").and_then(|rest| rest.split_once('.')) {
        Some((_, member)) => AGENT_KEYS.iter().find(|key| key.name == member),
        None => KEYS.iter().find(|key| key.name == name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(home: &std::path::Path, more: &[(&str, &str)]) -> Environment {
        let mut variables = vec![
            ("MAINSTAY_HOME".to_owned(), home.display().to_string()),
            ("HOME".to_owned(), "/u".to_owned()),
        ];
        variables.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Environment::new(variables)
    }

    #[test]
    fn the_nearer_layer_wins_and_says_so() {
        let home = tempfile::tempdir().expect("a folder");
        std::fs::write(home.path().join("config.toml"), "rest_after = \"1m\"\nmax_processes = 7\n")
            .expect("write");
        let settings =
            load(&environment(home.path(), &[("MAINSTAY_MAX_PROCESSES", "9")]), &[]).expect("loads");
        assert_eq!(settings.rest_after, Duration::from_secs(60));
        assert_eq!(settings.max_processes, 9);
        assert_eq!(settings.roots, [PathBuf::from("/u")]);
        let elsewhere = environment(home.path(), &[]).in_folder(std::path::Path::new("/src/project"));
        let roots = load(&elsewhere, &[]).expect("loads").roots;
        assert_eq!(roots, [PathBuf::from("/u"), PathBuf::from("/src/project")]);
        let everywhere = environment(home.path(), &[]).in_folder(std::path::Path::new("/"));
        assert_eq!(load(&everywhere, &[]).expect("loads").roots, [PathBuf::from("/u")]);
        let source =
            |key: &str| settings.layers.get(key).map(|value| value.source.to_string()).expect("a value");
        assert!(source("rest_after").ends_with("config.toml"), "{}", source("rest_after"));
        assert_eq!(source("max_processes"), "MAINSTAY_MAX_PROCESSES");
        assert_eq!(source("linger"), "default");
        let flagged =
            load(&environment(home.path(), &[]), &[("listen", "127.0.0.1:1".to_owned())]).expect("loads");
        assert_eq!(flagged.listen.port(), 1);
    }

    #[test]
    fn agents_are_added_and_overridden() {
        let home = tempfile::tempdir().expect("a folder");
        let text =
            "[agents.mine]\nkind = \"acp\"\ncommand = [\"/bin/mine\", \"--acp\"]\nenv = { A = \"b\" }\n";
        std::fs::write(home.path().join("config.toml"), text).expect("write");
        let environment =
            environment(home.path(), &[("MAINSTAY_AGENTS__CODEX__COMMAND", "[\"/opt/codex\"]")]);
        let settings = load(&environment, &[]).expect("loads");
        let mine = &settings.agents[&AgentName::from("mine")];
        assert_eq!((mine.kind, mine.command.len(), mine.env["A"].as_str()), (AgentKind::Acp, 2, "b"));
        let codex = &settings.agents[&AgentName::from("codex")];
        assert_eq!(
            (codex.kind, codex.command.as_slice()),
            (AgentKind::Codex, ["/opt/codex".to_owned()].as_slice())
        );
        assert_eq!(settings.agents[&AgentName::from("demo")].kind, AgentKind::Demo);
    }

    #[test]
    fn a_second_agent_can_be_of_each_protocol() {
        let home = tempfile::tempdir().expect("a folder");
        for (word, kind) in
            [("acp", AgentKind::Acp), ("claude", AgentKind::Claude), ("codex", AgentKind::Codex)]
        {
            let text = format!("[agents.second]\nkind = \"{word}\"\ncommand = [\"/opt/other\"]\n");
            std::fs::write(home.path().join("config.toml"), text).expect("write");
            let settings = load(&environment(home.path(), &[]), &[]).expect("loads");
            assert_eq!(settings.agents[&AgentName::from("second")].kind, kind);
        }
    }

    #[test]
    fn bad_values_name_their_key_and_source() {
        let home = tempfile::tempdir().expect("a folder");
        for (text, part) in [
            ("rest_after = 30\n", "rest_after"),
            ("max_processes = 0\n", "max_processes"),
            ("roots = [\"here\"]\n", "absolute"),
            ("max_cost = \"a lot\"\n", "max_cost"),
            ("max_turns = \"0\"\n", "max_turns"),
            ("[agents.mine]\ncommand = [\"x\"]\n", "kind"),
            ("[agents.mine]\nkind = \"smoke\"\ncommand = [\"x\"]\n", "smoke"),
        ] {
            std::fs::write(home.path().join("config.toml"), text).expect("write");
            let error = load(&environment(home.path(), &[]), &[]).expect_err("refused").to_string();
            assert!(error.contains(part) && error.contains("config.toml"), "{error}");
        }
    }
}
