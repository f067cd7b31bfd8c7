//! `interrupt`, `start`, `archive`, `unarchive` and `rm`.

use super::client;
use crate::cli::{InterruptArgs, RmArgs, SessionArg};
use crate::client::encode;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use clap::ValueEnum;
use serde_json::{Value, json};

pub(crate) async fn interrupt(
    settings: &Settings,
    args: &InterruptArgs,
    json: bool,
) -> Result<Exit, Failure> {
    let scope = args.scope.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let mut body = json!({ "scope": scope });
    if let Some(target) = &args.target {
        body["target"] = json!(target);
    }
    let path = format!("/v1/sessions/{}/interrupt", encode(&args.session));
    let stopped = client(settings).mutate("POST", &path, &body).await?;
    if json {
        output::json(&stopped)?;
        return Ok(Exit::Completed);
    }
    let withdrawn = stopped["withdrawn"].as_array().map_or(0, Vec::len);
    let targets = stopped["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let what = match (stopped["turn"].as_str(), stopped["pending"] == true, withdrawn) {
        (Some(turn), _, _) => format!("interrupting turn {turn}"),
        (None, true, _) => "interrupting as soon as the turn is known".to_owned(),
        (None, false, 0) if targets.is_empty() => "nothing was running".to_owned(),
        (None, false, 0) => String::new(),
        (None, false, withdrawn) => format!("withdrew {withdrawn} waiting message(s)"),
    };
    if !what.is_empty() {
        output::line(&what)?;
    }
    for target in targets.iter().filter(|target| target["kind"] != "turn" && target["kind"] != "message") {
        let word = |member: &str| target[member].as_str().unwrap_or_default().to_owned();
        let done = match word("state").as_str() {
            "asked" => "told to stop",
            "ended" => "ended",
            "not_running" => "is not running",
            _ => "cannot be stopped by itself; `stop` ends the agent",
        };
        let what = format!("{} {}", word("kind"), word("id"));
        output::line(&format!("{}: {done}", what.trim_end()))?;
    }
    if stopped["recorded"] == false {
        output::note("the store could not record it; the stop is under way all the same");
    }
    Ok(Exit::Completed)
}

pub(crate) async fn start(settings: &Settings, args: &SessionArg, json: bool) -> Result<Exit, Failure> {
    let started = post(settings, &args.session, "start").await?;
    if json {
        output::json(&started)?;
    } else {
        output::line("starting")?;
    }
    Ok(Exit::Completed)
}

/// Deletes one after the other; the first that cannot be deleted ends it.
pub(crate) async fn remove(settings: &Settings, args: &RmArgs, json: bool) -> Result<Exit, Failure> {
    for session in &args.sessions {
        let path = format!("/v1/sessions/{}", encode(session));
        let deleted = client(settings).mutate("DELETE", &path, &json!({})).await?;
        if json {
            output::json(&deleted)?;
        } else {
            output::line(&format!("deleted {session}"))?;
        }
    }
    Ok(Exit::Completed)
}

pub(crate) async fn archive(
    settings: &Settings,
    session: &str,
    archived: bool,
    json: bool,
) -> Result<Exit, Failure> {
    let path = format!("/v1/sessions/{}", encode(session));
    let changed = client(settings).mutate("PATCH", &path, &json!({ "archived": archived })).await?;
    if json {
        output::json(&changed)?;
    } else {
        output::line(&format!("{} {session}", if archived { "archived" } else { "took out" }))?;
    }
    Ok(Exit::Completed)
}

async fn post(settings: &Settings, session: &str, what: &str) -> Result<Value, Failure> {
    let path = format!("/v1/sessions/{}/{what}", encode(session));
    Ok(client(settings).mutate("POST", &path, &json!({})).await?)
}
