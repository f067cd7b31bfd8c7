//! `ps`: every keeper and agent process, host or no host.

use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use mainstay_keeper::ps::PsRow;
use serde_json::Value;

pub(crate) fn print(settings: &Settings, json: bool) -> Result<Exit, Failure> {
    let rows = mainstay_keeper::ps(&settings.home).map_err(|error| Failure::other(&error))?;
    if json {
        for row in &rows {
            let value = serde_json::to_value(row).map_err(|error| Failure::other(&error))?;
            output::json(&value)?;
        }
        return Ok(Exit::Completed);
    }
    let mut table = vec![
        ["TOKEN", "AGENT", "KEEPER", "PID", "PROCESS", "PID", "SINCE", "FOLDER"].map(str::to_owned).to_vec(),
    ];
    table.extend(rows.iter().map(columns));
    output::text(&output::table(&table))?;
    for row in &rows {
        if let Some(why) = &row.why {
            output::note(&format!("{}: {why}", row.token));
        }
    }
    Ok(Exit::Completed)
}

fn columns(row: &PsRow) -> Vec<String> {
    let pid = |identity: &Option<mainstay_keeper::ProcessIdentity>| {
        identity.as_ref().map_or_else(|| "-".to_owned(), |identity| identity.pid.to_string())
    };
    vec![
        row.token.clone(),
        row.label.clone(),
        word(&row.keeper),
        pid(&row.keeper_identity),
        word(&row.agent),
        pid(&row.agent_identity),
        row.since_ms.map_or_else(|| "-".to_owned(), output::time),
        row.cwd.as_ref().map_or_else(|| "-".to_owned(), |cwd| cwd.display().to_string()),
    ]
}

/// A state by its public word.
fn word(state: &impl serde::Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(Value::String(word)) => word,
        _ => "unknown".to_owned(),
    }
}
