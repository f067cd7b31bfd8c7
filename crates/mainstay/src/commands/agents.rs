//! `agents`, `models` and `threads`: what is registered, and what an agent offers and keeps.

use super::client;
use crate::cli::{ModelsArgs, ThreadsArgs};
use crate::client::encode;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::{Value, json};

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

pub(crate) async fn models(settings: &Settings, args: &ModelsArgs, json: bool) -> Result<Exit, Failure> {
    let path = format!("/v1/agents/{}/models", encode(&args.agent));
    let client = client(settings);
    if args.refresh {
        client.mutate("POST", &format!("{path}/refresh"), &json!({})).await?;
    }
    let known = client.get(&format!("{path}?hidden={}", args.hidden)).await?;
    if json {
        output::json(&known)?;
        return Ok(Exit::Completed);
    }
    let Some(models) = known["models"].as_array() else {
        output::note("not known: the agent has not run under this host yet; --refresh asks it");
        return Ok(Exit::Completed);
    };
    let mut rows = vec![["MODEL", "EFFORTS", "TIERS", "NAME"].map(str::to_owned).to_vec()];
    for model in models {
        let words = |member: &str| {
            let words = model[member].as_array().into_iter().flatten().filter_map(Value::as_str);
            words.collect::<Vec<_>>().join(",")
        };
        let mark = if model["default"] == true { " (default)" } else { "" };
        let id = model["id"].as_str().unwrap_or_default();
        let name = model["name"].as_str().unwrap_or_default();
        rows.push(vec![format!("{id}{mark}"), words("efforts"), words("tiers"), name.to_owned()]);
    }
    output::text(&output::table(&rows))?;
    if let Some(as_of) = known["as_of"].as_i64() {
        output::note(&format!("as of {}", output::time(as_of)));
    }
    Ok(Exit::Completed)
}

pub(crate) async fn threads(settings: &Settings, args: &ThreadsArgs, json: bool) -> Result<Exit, Failure> {
    let path = format!("/v1/agents/{}/threads?limit={}", encode(&args.agent), args.limit);
    let known = client(settings).get(&path).await?;
    let threads = known["threads"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    if json {
        for thread in threads {
            output::json(thread)?;
        }
        return Ok(Exit::Completed);
    }
    let mut rows = vec![["THREAD", "UPDATED", "SESSION", "FOLDER", "NAME"].map(str::to_owned).to_vec()];
    for thread in threads {
        let text = |member: &str| thread[member].as_str().unwrap_or_default().to_owned();
        let named = if text("name").is_empty() { text("preview") } else { text("name") };
        rows.push(vec![
            text("thread"),
            thread["updated_at"].as_i64().map_or_else(String::new, output::time),
            if thread["archived"] == true { "(archived)".to_owned() } else { text("session") },
            text("cwd"),
            named.lines().next().unwrap_or_default().to_owned(),
        ]);
    }
    output::text(&output::table(&rows))?;
    if known["incomplete"] == true {
        output::note("there are more, or some could not be read");
    }
    Ok(Exit::Completed)
}
