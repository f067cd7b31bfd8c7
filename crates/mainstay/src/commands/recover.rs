//! `recover`: the ways out for a session that cannot go on by itself, and for a keeper that no session claims.

use super::client;
use crate::cli::RecoverArgs;
use crate::client::{Client, encode};
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::{Value, json};

pub(crate) async fn recover(settings: &Settings, args: &RecoverArgs, json: bool) -> Result<Exit, Failure> {
    let client = client(settings);
    if let Some(session) = &args.session {
        // The command line takes exactly one of the two.
        let action = if args.start_fresh { "start_fresh" } else { "abandon" };
        let path = format!("/v1/sessions/{}/recover", encode(session));
        let done = client.mutate("POST", &path, &json!({ "action": action })).await?;
        if json {
            output::json(&done)?;
        } else {
            output::line("the session goes on")?;
        }
        return Ok(Exit::Completed);
    }
    match &args.keeper {
        Some(token) => keeper(&client, token, args, json).await,
        None => unclaimed(&client, json).await,
    }
}

async fn keeper(client: &Client, token: &str, args: &RecoverArgs, json: bool) -> Result<Exit, Failure> {
    let path = format!("/v1/keepers/{}/recover", encode(token));
    let body =
        if args.adopt { json!({ "action": "adopt" }) } else { json!({ "action": "end", "kill": args.kill }) };
    let done = match client.mutate("POST", &path, &body).await {
        Ok(done) => done,
        Err(error) if error.code() == Some("process_unverifiable") => {
            return Err(Failure { exit: Exit::InDoubt, ..Failure::from(error) });
        }
        Err(error) => return Err(error.into()),
    };
    if json {
        output::json(&done)?;
    } else if args.adopt {
        let text = |member: &str| done[member].as_str().unwrap_or("-").to_owned();
        output::line(&format!(
            "session {} has the agent and its conversation {}",
            text("session"),
            text("thread")
        ))?;
    } else {
        output::line("the keeper and its agent have ended")?;
        for stray in
            done["exit"]["strays"].as_array().into_iter().flatten().filter(|stray| stray["gone"] != true)
        {
            output::note(&format!("  not proven gone: {} {}", stray["pid"], stray["comm"]));
        }
    }
    Ok(Exit::Completed)
}

/// Shows what there is to recover.
async fn unclaimed(client: &Client, json: bool) -> Result<Exit, Failure> {
    let known = client.get("/v1/keepers").await?;
    let keepers: Vec<&Value> = known["keepers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|keeper| keeper["claimed"] == false)
        .collect();
    if json {
        for keeper in keepers {
            output::json(keeper)?;
        }
        return Ok(Exit::Completed);
    }
    if keepers.is_empty() {
        output::line("every keeper belongs to a session")?;
        return Ok(Exit::Completed);
    }
    let mut rows =
        vec![["TOKEN", "AGENT", "KEEPER", "PROCESS", "THREADS", "FOLDER"].map(str::to_owned).to_vec()];
    for keeper in keepers {
        let text = |member: &str| keeper[member].as_str().unwrap_or("-").to_owned();
        let threads: Vec<&str> =
            keeper["threads"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        rows.push(vec![
            text("token"),
            text("agent"),
            text("keeper"),
            text("process"),
            if threads.is_empty() { "-".to_owned() } else { threads.join(",") },
            text("cwd"),
        ]);
    }
    output::text(&output::table(&rows))?;
    output::note("recover --keeper TOKEN --adopt makes its conversation a session's again; --end ends it");
    Ok(Exit::Completed)
}
