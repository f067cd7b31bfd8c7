//! `threads`: conversations that an agent keeps in its own files.

use super::client;
use crate::cli::ThreadsArgs;
use crate::client::encode;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::Value;

pub(crate) async fn print(settings: &Settings, args: &ThreadsArgs, json: bool) -> Result<Exit, Failure> {
    let mut path = format!("/v1/agents/{}/threads?limit={}", encode(&args.agent), args.limit);
    let cwd = args.cwd.as_ref().map(|cwd| cwd.display().to_string());
    for (name, value) in [("cwd", &cwd), ("after", &args.after)] {
        if let Some(value) = value {
            path.push_str(&format!("&{name}={}", encode(value)));
        }
    }
    let page = client(settings).get(&path).await?;
    let threads = page["threads"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    if json {
        for thread in threads {
            output::json(thread)?;
        }
        return Ok(Exit::Completed);
    }
    let mut rows = vec![["CONVERSATION", "UPDATED", "STATE", "FOLDER", "TITLE"].map(str::to_owned).to_vec()];
    for thread in threads {
        let text = |member: &str| thread[member].as_str().unwrap_or("-").to_owned();
        let updated = thread["updated_at"].as_i64().map_or_else(|| "-".to_owned(), output::time);
        let state = match (thread["session"].as_str(), thread["open_in"].as_i64()) {
            (Some(session), _) => session.to_owned(),
            (None, Some(pid)) => format!("open in process {pid}"),
            (None, None) => "-".to_owned(),
        };
        rows.push(vec![text("thread"), updated, state, text("cwd"), text("title")]);
    }
    output::text(&output::table(&rows))?;
    if let Some(after) = page["after"].as_str() {
        output::note(&format!("there are more: --after {after}"));
    }
    if let Some(bad) = page["unreadable"].as_u64().filter(|bad| *bad > 0) {
        output::note(&format!("{bad} records cannot be read"));
    }
    Ok(Exit::Completed)
}
