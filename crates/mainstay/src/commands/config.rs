//! `config`: each value with where it came from, and the reference of all keys.

use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::json;

pub(crate) fn show(settings: &Settings, json: bool) -> Result<Exit, Failure> {
    if json {
        let mut all = serde_json::Map::new();
        all.insert(
            "home".to_owned(),
            json!({ "value": settings.home, "source": "MAINSTAY_HOME or its default" }),
        );
        if settings.layers.get("roots").is_none() {
            all.insert("roots".to_owned(), json!({ "value": settings.roots, "source": "default" }));
        }
        for (name, value) in settings.layers.iter() {
            all.insert(name.to_owned(), json!({ "value": value.value, "source": value.source.to_string() }));
        }
        output::json(&serde_json::Value::Object(all))?;
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
        rows.push(vec![name.to_owned(), value.value.to_string(), value.source.to_string()]);
    }
    output::text(&output::table(&rows))?;
    Ok(Exit::Completed)
}

pub(crate) fn reference() -> Result<Exit, Failure> {
    output::text(&crate::config::keys::reference())?;
    Ok(Exit::Completed)
}
