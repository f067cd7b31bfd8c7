//! `agents`: what is registered.

use super::client;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::Value;

pub(crate) async fn print(settings: &Settings, json: bool) -> Result<Exit, Failure> {
    let known = client(settings).get("/v1/agents").await?;
    let agents = known["agents"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    if json {
        for agent in agents {
            output::json(agent)?;
        }
        return Ok(Exit::Completed);
    }
    let mut rows = vec![["AGENT", "PROTOCOL", "INSTALLED", "PROGRAM"].map(str::to_owned).to_vec()];
    for agent in agents {
        let text = |member: &str| agent[member].as_str().map(str::to_owned);
        let installed = if agent["installed"] == true { "yes" } else { "no" };
        let program = text("path").or_else(|| text("install")).unwrap_or_default();
        rows.push(vec![
            text("name").unwrap_or_default(),
            text("kind").unwrap_or_default(),
            installed.to_owned(),
            program,
        ]);
    }
    output::text(&output::table(&rows))?;
    Ok(Exit::Completed)
}
