//! What pins a session at its creation.

use crate::work::ThreadSource;
use crate::{AgentName, HostId, SessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Everything that is decided once, when the session is created, and never again. Command and version are read
/// anew at each start; a difference is a journaled notice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LaunchSnapshot {
    /// The host that made it.
    pub host: HostId,
    /// The agent's registered name.
    pub agent: AgentName,
    /// The folder the agent works in; absolute.
    pub cwd: String,
    /// Further folders; absolute.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub additional_directories: Vec<String>,
    /// The account home (CODEX_HOME and its like); absolute. None: the agent's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account_home: Option<String>,
    /// MCP servers, as ACP names them. Where this is journaled or shown, without what may be secret
    /// ([`LaunchSnapshot::without_secrets`]).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mcp_servers: Vec<Value>,
    /// Instructions for the agent, beside its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Names (never values) of the environment variables added for this session.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_names: Vec<String>,
    /// The command as resolved at creation, for the notice when it differs later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Where the first thread comes from; absent: it is made anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ThreadSource>,
    /// The session in whose agent another client (the agent's own terminal) began this one's conversation, where shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<SessionId>,
}

impl LaunchSnapshot {
    /// As it may be journaled, exported and shown: of MCP servers the names of their variables and headers without the
    /// values, addresses without user, query and fragment, and nothing that is not known to be harmless. Arguments stay:
    /// they are as public as a process's command line.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        Self { mcp_servers: self.mcp_servers.iter().map(server_without_secrets).collect(), ..self.clone() }
    }
}

fn server_without_secrets(server: &Value) -> Value {
    let Value::Object(fields) = server else { return Value::Null };
    let shown = fields.iter().filter_map(|(field, value)| {
        let shown = match (field.as_str(), value) {
            ("name" | "type" | "command" | "args", value) => value.clone(),
            ("url", Value::String(url)) => Value::String(bare_address(url)),
            ("env" | "headers", Value::Array(entries)) => entries.iter().map(name_alone).collect(),
            ("env" | "headers", Value::Object(entries)) => {
                Value::Object(entries.keys().map(|name| (name.clone(), Value::Null)).collect())
            }
            _ => return None,
        };
        Some((field.clone(), shown))
    });
    Value::Object(shown.collect())
}

fn name_alone(entry: &Value) -> Value {
    let name = entry.get("name").filter(|name| name.is_string());
    name.map_or(Value::Null, |name| serde_json::json!({ "name": name }))
}

fn bare_address(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}{path}")
}

/// What may change during a session's life.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct SessionOptions {
    /// The model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The reasoning effort.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effort: Option<String>,
    /// The service tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tier: Option<String>,
    /// The agent's mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The sandbox, in the agent's own words (`read-only`, `workspace-write`, `danger-full-access` for Codex).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Extended thinking: `off`, `on` (as much as the agent takes by itself), or the most tokens of one thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thinking: Option<String>,
    /// When the agent asks, in its own words (`untrusted`, `on-request`, `never` for Codex).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<String>,
    /// How the agent talks, in its own words (`friendly`, `pragmatic`, `none` for Codex).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub personality: Option<String>,
}

impl SessionOptions {
    /// These, with everything that `newer` has in its place.
    #[must_use]
    pub fn overlaid(&self, newer: &Self) -> Self {
        let of = |old: &Option<String>, new: &Option<String>| new.clone().or_else(|| old.clone());
        Self {
            model: of(&self.model, &newer.model),
            effort: of(&self.effort, &newer.effort),
            tier: of(&self.tier, &newer.tier),
            mode: of(&self.mode, &newer.mode),
            sandbox: of(&self.sandbox, &newer.sandbox),
            thinking: of(&self.thinking, &newer.thinking),
            approval: of(&self.approval, &newer.approval),
            personality: of(&self.personality, &newer.personality),
        }
    }

    /// Those of these that are not so in `other`.
    #[must_use]
    pub fn differing_from(&self, other: &Self) -> Self {
        let of = |own: &Option<String>, other: &Option<String>| own.clone().filter(|_| own != other);
        Self {
            model: of(&self.model, &other.model),
            effort: of(&self.effort, &other.effort),
            tier: of(&self.tier, &other.tier),
            mode: of(&self.mode, &other.mode),
            sandbox: of(&self.sandbox, &other.sandbox),
            thinking: of(&self.thinking, &other.thinking),
            approval: of(&self.approval, &other.approval),
            personality: of(&self.personality, &other.personality),
        }
    }

    /// Those of these that `other` has no word on.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let of = |own: &Option<String>, other: &Option<String>| own.clone().filter(|_| other.is_none());
        Self {
            model: of(&self.model, &other.model),
            effort: of(&self.effort, &other.effort),
            tier: of(&self.tier, &other.tier),
            mode: of(&self.mode, &other.mode),
            sandbox: of(&self.sandbox, &other.sandbox),
            thinking: of(&self.thinking, &other.thinking),
            approval: of(&self.approval, &other.approval),
            personality: of(&self.personality, &other.personality),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_of_variables_and_headers_are_shown_and_no_value() {
        let servers = [
            json!({ "name": "a", "command": "/bin/a", "args": ["-v"], "env": [{ "name": "KEY", "value": "hidden" }] }),
            json!({
                "type": "http", "name": "b", "url": "https://hidden:hidden@host:1/mcp?key=hidden#hidden",
                "headers": [{ "name": "Authorization", "value": "hidden" }, "hidden"],
            }),
            json!({ "name": "c", "env": { "KEY": "hidden" }, "_meta": { "x": "hidden" } }),
            json!("hidden"),
        ];
        let shown: Vec<Value> = servers.iter().map(server_without_secrets).collect();
        assert_eq!(
            shown,
            [
                json!({ "name": "a", "command": "/bin/a", "args": ["-v"], "env": [{ "name": "KEY" }] }),
                json!({
                    "type": "http", "name": "b", "url": "https://host:1/mcp",
                    "headers": [{ "name": "Authorization" }, null],
                }),
                json!({ "name": "c", "env": { "KEY": null } }),
                json!(null),
            ]
        );
    }
}
