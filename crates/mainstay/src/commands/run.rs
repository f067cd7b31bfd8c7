//! `run`: a prompt in a new session, and its turn.

use super::approvals;
use crate::background;
use crate::cli::RunArgs;
use crate::client::{Client, encode, fresh_key};
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::follow::{Following, Until, follow};
use crate::output;
use mainstay_core::session::Limits;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

/// How long the creation is tried again after the host was lost.
const CREATE_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between these tries.
const RETRY_EVERY: Duration = Duration::from_millis(100);

pub(crate) async fn run(
    settings: &Settings,
    environment: &Environment,
    args: RunArgs,
    json: bool,
) -> Result<Exit, Failure> {
    let mut cwd = folder(&args, environment)?;
    if args.adopt.is_none() || args.cwd.is_some() {
        check_roots(settings, &cwd)?;
    }
    let approvals = approvals(&args.approvals, environment, json);
    let client = background::ensure_host(settings, environment.current_folder().as_deref()).await?;
    let agent = match args.agent {
        Some(agent) => agent,
        None => default_agent(&client).await?,
    };
    if let (Some(thread), None) = (&args.adopt, &args.cwd) {
        let why = || {
            format!(
                "the folder of conversation {thread} is not known: it is not in {agent}'s list; name --cwd"
            )
        };
        cwd =
            folder_of(&client, &agent, thread, cwd).await?.ok_or_else(|| Failure::new(Exit::Usage, why()))?;
        check_roots(settings, &cwd)?;
    }
    let mut body = json!({ "agent": agent, "cwd": cwd });
    match &args.adopt {
        // Its past comes first, and the message by itself, so that what is followed begins behind both.
        Some(thread) => body["adopt"] = json!({ "thread": thread }),
        None => body["prompt"] = json!(args.prompt),
    }
    if let Some(name) = args.name {
        body["name"] = name.into();
    }
    if let Some(model) = args.model {
        body["options"] = json!({ "model": model });
    }
    let limits = args.limits.limits();
    if limits != Limits::default() {
        body["limits"] = json!(limits);
    }
    let session = create(&client, &body).await?;
    let id = session["id"].as_str().unwrap_or_default().to_owned();
    let (mut after, mut until) = ("1:0".to_owned(), Until::FirstTurn);
    let follows = !args.detach && args.prompt.is_some();
    if follows && !json {
        output::note(&format!("session {id} ({agent})"));
    }
    if let (Some(_), Some(prompt)) = (&args.adopt, &args.prompt) {
        let path = format!("/v1/sessions/{}/messages", encode(&id));
        let accepted = client.mutate("POST", &path, &json!({ "content": prompt })).await;
        if accepted.is_err() && (json || !follows) {
            // The session stands all the same: whoever reads this can send the message again.
            output::note(&format!("session {id} ({agent}) was made, and its message was not taken"));
        }
        let accepted = accepted?;
        let text = |member: &str| accepted[member].as_str().unwrap_or_default().to_owned();
        (after, until) = (text("cursor"), Until::TurnOf(text("submission")));
    }
    if !follows {
        if json {
            output::json(&session)?;
        } else {
            output::line(&id)?;
        }
        return Ok(Exit::Completed);
    }
    follow(Following {
        client,
        session: id,
        after,
        until,
        approvals,
        json,
        open: Vec::new(),
        shown: Vec::new(),
    })
    .await
}

fn folder(args: &RunArgs, environment: &Environment) -> Result<PathBuf, Failure> {
    let current = environment.current_folder();
    let folder = match (&args.cwd, current) {
        (Some(folder), Some(current)) => current.join(folder),
        (Some(folder), None) => folder.clone(),
        (None, Some(current)) => current,
        (None, None) => return Err(Failure::new(Exit::Usage, "the current folder is unknown; give --cwd")),
    };
    folder
        .canonicalize()
        .map_err(|error| Failure::new(Exit::Usage, format!("--cwd {}: {error}", folder.display())))
}

/// The folder that a conversation was in, where the agent's files say it; `current` where the agent has no such list.
async fn folder_of(
    client: &Client,
    agent: &str,
    thread: &str,
    current: PathBuf,
) -> Result<Option<PathBuf>, Failure> {
    let known = client.get(&format!("/v1/agents/{}/threads?limit=500", encode(agent))).await;
    let known = match known {
        Ok(known) => known,
        Err(error) if error.code() == Some("unsupported") => return Ok(Some(current)),
        Err(error) => return Err(error.into()),
    };
    let mut threads = known["threads"].as_array().into_iter().flatten();
    let found = threads.find(|known| known["thread"] == thread);
    Ok(found.and_then(|found| found["cwd"].as_str()).map(PathBuf::from))
}

/// The host checks this too; here the project's narrower roots count as well, and no host is started in vain.
fn check_roots(settings: &Settings, cwd: &std::path::Path) -> Result<(), Failure> {
    let inside =
        settings.roots.iter().any(|root| root.canonicalize().is_ok_and(|root| cwd.starts_with(root)));
    if inside {
        return Ok(());
    }
    let roots: Vec<String> = settings.roots.iter().map(|root| root.display().to_string()).collect();
    Err(Failure::new(
        Exit::Refused,
        format!(
            "{} lies outside the folders that sessions may use ({}); add it to `roots` in {}, or give --cwd",
            cwd.display(),
            roots.join(", "),
            settings.home.join("config.toml").display()
        ),
    ))
}

/// Codex where it is installed; else the built-in agent, which needs no key.
async fn default_agent(client: &Client) -> Result<String, Failure> {
    let known = client.get("/v1/agents").await?;
    let agents = known["agents"].as_array();
    let codex =
        agents.into_iter().flatten().any(|agent| agent["name"] == "codex" && agent["installed"] == true);
    Ok(if codex { "codex" } else { "demo" }.to_owned())
}

/// Creates the session, once, however often the host is lost meanwhile.
async fn create(client: &Client, body: &Value) -> Result<Value, Failure> {
    let key = fresh_key();
    let give_up = Instant::now() + CREATE_DEADLINE;
    loop {
        match client.once("POST", "/v1/sessions", &key, body).await {
            Ok(session) => return Ok(session),
            Err(error) if error.is_lost_host() && Instant::now() < give_up => {
                tokio::time::sleep(RETRY_EVERY).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
