//! What an agent offers, as it lists it: models with efforts and tiers, who is signed in, what is left of the account.
//!
//! The value is the host's to keep, with the time at which it was seen: reading it later starts nothing.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What was listed. An absent part could not be asked, or was refused; an empty one is empty.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Catalogue {
    /// The models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub models: Option<Vec<Model>>,
    /// Who is signed in, in the agent's shape; null: nobody, or nobody needs to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Value>,
    /// What is left of the account's limits, in the agent's shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_limits: Option<Value>,
    /// Skills by folder, in the agent's shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skills: Option<Value>,
    /// MCP servers by name with their state, in the agent's shape.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mcp_servers: Option<Value>,
}

/// One model.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Model {
    /// What an option names.
    pub id: String,
    /// For people.
    pub name: String,
    /// More for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Not shown in lists by the agent itself.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hidden: bool,
    /// The one that is taken where none is named.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// Reasoning efforts that it takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub efforts: Vec<String>,
    /// The one that is taken where none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_effort: Option<String>,
    /// Service tiers that it takes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<String>,
}
