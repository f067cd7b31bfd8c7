//! `ls`: sessions.

use super::client;
use crate::cli::LsArgs;
use crate::client::encode;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::Value;

pub(crate) async fn print(settings: &Settings, args: &LsArgs, json: bool) -> Result<Exit, Failure> {
    let mut path = format!("/v1/sessions?limit={}", args.limit);
    for (name, value) in [("status", &args.status), ("agent", &args.agent)] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encode(value)));
        }
    }
    if !args.all {
        path.push_str("&archived=false");
    }
    let page = client(settings).get(&path).await?;
    let sessions = page["sessions"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    if json {
        for session in sessions {
            output::json(session)?;
        }
        return Ok(Exit::Completed);
    }
    let mut rows =
        vec![["SESSION", "AGENT", "STATUS", "UPDATED", "NAME", "FOLDER"].map(str::to_owned).to_vec()];
    for session in sessions {
        let text = |member: &str| session[member].as_str().unwrap_or("-").to_owned();
        let updated = session["updated_at"].as_i64().map_or_else(|| "-".to_owned(), output::time);
        rows.push(vec![text("id"), text("agent"), text("status"), updated, text("name"), text("cwd")]);
    }
    output::text(&output::table(&rows))?;
    if page["after"].is_string() {
        output::note("there are more; raise --limit");
    }
    for bad in page["unreadable"].as_array().into_iter().flatten() {
        output::note(&format!("session record {bad} cannot be read"));
    }
    Ok(Exit::Completed)
}
