//! `stop`: a session's agent, or the host.

use super::client;
use crate::cli::StopArgs;
use crate::client::{Client, encode};
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::json;
use std::fs::File;
use std::io::BufRead;
use std::time::Duration;
use tokio::time::Instant;

/// How long a host may take to end. Killed agents have deadlines of their own in the keeper's ladder.
const END_DEADLINE: Duration = Duration::from_secs(60);
/// Pause between looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(20);

pub(crate) async fn stop(settings: &Settings, args: &StopArgs, json: bool) -> Result<Exit, Failure> {
    let client = client(settings);
    if let Some(session) = &args.session {
        let path = format!("/v1/sessions/{}/stop", encode(session));
        let stopping = client.mutate("POST", &path, &json!({ "kill": args.kill })).await?;
        if json {
            output::json(&stopping)?;
        } else {
            output::line("stopping the agent")?;
        }
        return Ok(Exit::Completed);
    }
    let mode = match (args.detach, args.kill) {
        (true, _) => Some("detach"),
        (_, true) => Some("kill"),
        _ => None,
    };
    let mode = stop_host(&client, mode, json).await?;
    wait_for_end(settings).await?;
    if json {
        output::json(&json!({ "stopped": true, "mode": mode }))?;
    } else {
        output::line("the host has ended")?;
    }
    Ok(Exit::Completed)
}

/// Orders the end; asks where sessions are busy and somebody can be asked.
async fn stop_host(client: &Client, mode: Option<&str>, json: bool) -> Result<String, Failure> {
    let order = async |mode: Option<&str>| {
        let body = mode.map_or_else(|| json!({}), |mode| json!({ "mode": mode }));
        client.mutate("POST", "/v1/host/stop", &body).await
    };
    let given = match order(mode).await {
        Err(error) if error.code() == Some("busy") && output::can_ask() && !json => {
            let failure = Failure::from(error);
            for session in failure.problem.iter().flat_map(|problem| problem["busy"].as_array()).flatten() {
                let text = |member: &str| session[member].as_str().unwrap_or("-");
                output::note(&format!("  {} {} ({})", text("id"), text("name"), text("status")));
            }
            output::ask(
                "these sessions are busy: d) agents work on, k) end them, anything else) leave the host: ",
            );
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            match line.trim() {
                "d" => order(Some("detach")).await?,
                "k" => order(Some("kill")).await?,
                _ => return Err(failure),
            }
        }
        other => other?,
    };
    Ok(given["mode"].as_str().unwrap_or_default().to_owned())
}

/// The host's lock is free when its process is gone. Looking takes the lock for a moment, and only here, where a host
/// was just ended on purpose.
async fn wait_for_end(settings: &Settings) -> Result<(), Failure> {
    let give_up = Instant::now() + END_DEADLINE;
    while Instant::now() < give_up {
        let free = match File::open(settings.home.join("host.lock")) {
            Ok(lock) => lock.try_lock_shared().is_ok(),
            Err(_) => true,
        };
        if free {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(Failure::new(
        Exit::InDoubt,
        format!("the host has not ended within {} seconds", END_DEADLINE.as_secs()),
    ))
}
