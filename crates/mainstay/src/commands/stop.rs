//! `stop`: a session's agent, or the host.

use super::client;
use crate::cli::StopArgs;
use crate::client::{Client, encode};
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use mainstay_keeper::ps::AgentState;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;
use std::io::BufRead;
use std::os::fd::OwnedFd;

/// How long a host may take to end. Killed agents have deadlines of their own in the keeper's ladder.
const END_DEADLINE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

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
    let host = HostProcess::find(&client).await?;
    let mode = stop_host(&client, mode, json).await?;
    host.ended().await?;
    if mode == "kill" {
        refuse_survivors(settings)?;
    }
    if json {
        output::json(&json!({ "stopped": true, "mode": mode }))?;
    } else {
        output::line("the host has ended")?;
    }
    Ok(Exit::Completed)
}

/// Says what a host could not end (a stopped keeper, say), rather than that all is over.
fn refuse_survivors(settings: &Settings) -> Result<(), Failure> {
    let rows = mainstay_keeper::ps(&settings.home).map_err(|error| Failure::other(&error))?;
    let alive: Vec<String> = rows
        .into_iter()
        .filter(|row| !matches!(row.agent, AgentState::Gone | AgentState::NotStarted))
        .map(|row| row.token)
        .collect();
    if alive.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::InDoubt,
        format!(
            "the host has ended, but these agents could not be ended: {} (see `mainstay ps`)",
            alive.join(", ")
        ),
    ))
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

/// A running host's process, held so that its number cannot come to mean another.
struct HostProcess(OwnedFd);

impl HostProcess {
    async fn find(client: &Client) -> Result<Self, Failure> {
        let address = client.find().await?;
        let pid = Pid::from_raw(address.pid)
            .ok_or_else(|| Failure::new(Exit::NoHost, "the host's process is unknown"))?;
        // It may end before this; then it does not answer the order either.
        pidfd_open(pid, PidfdFlags::empty()).map(Self).map_err(|error| Failure::of(Exit::NoHost, &error))
    }

    /// Waits until it is gone.
    async fn ended(self) -> Result<(), Failure> {
        let waited = tokio::task::spawn_blocking(move || {
            // A process that ended makes its descriptor readable.
            let mut gone = [PollFd::new(&self.0, PollFlags::IN)];
            rustix::io::retry_on_intr(|| poll(&mut gone, Some(&END_DEADLINE)))
        });
        match waited.await {
            Ok(Ok(0)) | Err(_) => Err(Failure::new(
                Exit::InDoubt,
                format!("the host has not ended within {} seconds", END_DEADLINE.tv_sec),
            )),
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Failure::other(&error)),
        }
    }
}
