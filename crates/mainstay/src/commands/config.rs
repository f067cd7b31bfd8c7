//! `config`: each value with where it came from, and the reference of all keys.

use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::json;

pub(crate) fn show(settings: &Settings, json: bool) -> Result<Exit, Failure> {
    if json {
        output::json(&serde_json::Value::Object(shown_with_sources(settings)))?;
        return Ok(Exit::Completed);
    }
    let mut rows = vec![["KEY", "VALUE", "FROM"].map(str::to_owned).to_vec()];
    rows.push(vec![
        "home".to_owned(),
        settings.home.display().to_string(),
        "MAINSTAY_HOME or its default".to_owned(),
    ]);
    if settings.layers.get("roots").is_none() {
        let roots: Vec<String> = settings.roots.iter().map(|root| root.display().to_string()).collect();
        rows.push(vec!["roots".to_owned(), format!("{roots:?}"), "default".to_owned()]);
    }
    for (name, value) in settings.layers.iter() {
        rows.push(vec![name.to_owned(), shown(name, &value.value).to_string(), value.source.to_string()]);
    }
    output::text(&output::table(&rows))?;
    Ok(Exit::Completed)
}

/// Every value with its source, without what may be a secret.
pub(crate) fn shown_with_sources(settings: &Settings) -> serde_json::Map<String, serde_json::Value> {
    let mut all = serde_json::Map::new();
    all.insert(
        "home".to_owned(),
        json!({ "value": settings.home, "source": "MAINSTAY_HOME or its default" }),
    );
    if settings.layers.get("roots").is_none() {
        all.insert("roots".to_owned(), json!({ "value": settings.roots, "source": "default" }));
    }
    for (name, value) in settings.layers.iter() {
        let shown = shown(name, &value.value);
        all.insert(name.to_owned(), json!({ "value": shown, "source": value.source.to_string() }));
    }
    all
}

/// Values of agents' environments may be secrets: only their names are shown.
fn shown(name: &str, value: &toml::Value) -> toml::Value {
    let hidden = || toml::Value::String("(set)".to_owned());
    let is_environment = name.starts_with("agents.") && name.split('.').nth(2) == Some("env");
    match value {
        toml::Value::Table(table) if is_environment => {
            toml::Value::Table(table.iter().map(|(name, _)| (name.clone(), hidden())).collect())
        }
        _ if is_environment => hidden(),
        other => other.clone(),
    }
}

pub(crate) fn reference() -> Result<Exit, Failure> {
    output::text(&crate::config::keys::reference())?;
    Ok(Exit::Completed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_an_agents_environment_are_not_shown() {
        let table: toml::Value = toml::from_str("KEY = \"secret\"").expect("parses");
        assert!(!shown("agents.codex.env", &table).to_string().contains("secret"));
        assert!(shown("agents.codex.env", &table).to_string().contains("KEY"));
        let single = toml::Value::String("secret".to_owned());
        assert!(!shown("agents.codex.env.KEY", &single).to_string().contains("secret"));
        assert!(shown("agents.codex.command", &single).to_string().contains("secret"));
    }
}
