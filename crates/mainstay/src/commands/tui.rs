//! `tui`: the agent's own terminal beside a session.

use crate::background;
use crate::cli::SessionArg;
use crate::client::{Client, ClientError, EventStream, encode};
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// How long the agent may take to start and open its conversation.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How often it is started at most: it is put to rest in between only where `rest_after` is shorter than a look takes.
const MAX_STARTS: u32 = 5;
/// Pause between looks whether it has, and between tries to attach again when the host went.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// What describes the terminal itself; the agent's own environment has nothing of it.
const TERMINAL_VARIABLES: [&str; 5] =
    ["TERM", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION", "NO_COLOR"];

pub(crate) async fn open(
    settings: &Settings,
    environment: &Environment,
    args: &SessionArg,
    json: bool,
) -> Result<Exit, Failure> {
    let client = background::ensure_host(settings, environment.current_folder().as_deref()).await?;
    let path = format!("/v1/sessions/{}", encode(&args.session));
    let give_up = Instant::now() + START_DEADLINE;
    let (mut stream, plan) = loop {
        started(&client, &path, give_up).await?;
        match attach(&client, &path).await {
            Ok(attached) => break attached,
            // It was put to rest just now.
            Err(error) if error.code() == Some("submission_state") && Instant::now() < give_up => {}
            Err(error) => return Err(error.into()),
        }
    };
    if json {
        // For programs that bring a terminal of their own.
        output::json(&plan)?;
        return Ok(Exit::Completed);
    }
    let mut terminal = start(&plan, environment)?;
    // Typed for the terminal, which has the same process group: not for this program.
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut quits = signal(SignalKind::quit())?;
    let mut attached = true;
    let ended = loop {
        tokio::select! {
            ended = terminal.wait() => break ended?,
            _ = interrupts.recv() => {}
            _ = quits.recv() => {}
            event = stream.next(), if attached => match event {
                // Its process is the session's no more; it says so itself.
                Some(event) if event.event == "gone" => attached = false,
                Some(_) => {}
                None => match attach_again(&client, &path, &plan, &mut terminal).await? {
                    Attaching::Again(again) => stream = again,
                    Attaching::Gone => attached = false,
                    Attaching::Ended(status) => break status,
                },
            },
        }
    };
    output::note(&format!("the session goes on without the terminal: mainstay attach {}", args.session));
    Ok(if ended.success() { Exit::Completed } else { Exit::Other })
}

/// Starts the agent where it does not run, and waits until its conversation is open.
async fn started(client: &Client, path: &str, give_up: Instant) -> Result<(), Failure> {
    let mut starts = 0;
    loop {
        let refused = match client.get(&format!("{path}/terminal")).await {
            Ok(_) => return Ok(()),
            Err(error) if error.code() == Some("submission_state") => error,
            Err(error) => return Err(error.into()),
        };
        let session = client.get(path).await?;
        if Instant::now() >= give_up || (starts > 0 && session["status"] == "recovering") {
            let why = session["reason"].as_str().map_or_else(|| refused.to_string(), str::to_owned);
            return Err(Failure::new(Exit::Refused, why));
        }
        // Again only where it came and was put to rest between two looks. One that does not come up says why above.
        if starts == 0 || (session["process"].is_null() && starts < MAX_STARTS) {
            client.mutate("POST", &format!("{path}/start"), &json!({})).await?;
            starts += 1;
        }
        tokio::time::sleep(LOOK_EVERY).await; // poll
    }
}

async fn attach(client: &Client, path: &str) -> Result<(EventStream, Value), ClientError> {
    let mut stream = client.stream(&format!("{path}/terminal"), None).await?;
    while let Some(event) = stream.next().await {
        if event.event == "terminal" {
            let plan = serde_json::from_str(&event.data);
            return Ok((stream, plan.map_err(|error| ClientError::NotHttp(error.to_string()))?));
        }
    }
    Err(ClientError::NotHttp("the stream ended before it said how the terminal is started".to_owned()))
}

enum Attaching {
    Again(EventStream),
    /// The session's process is another one, or none.
    Gone,
    /// The terminal was closed meanwhile.
    Ended(std::process::ExitStatus),
}

/// The host went: the next one is told that somebody sits here still.
async fn attach_again(
    client: &Client,
    path: &str,
    plan: &Value,
    terminal: &mut Child,
) -> Result<Attaching, Failure> {
    loop {
        if let Some(ended) = terminal.try_wait()? {
            return Ok(Attaching::Ended(ended));
        }
        match attach(client, path).await {
            Ok((stream, now)) if now["process"] == plan["process"] => return Ok(Attaching::Again(stream)),
            // The terminal talks to one that is the session's no more.
            Ok(_) => return Ok(Attaching::Gone),
            Err(error) if error.is_lost_host() => {}
            Err(error) if is_gone(&error) => return Ok(Attaching::Gone),
            // The host says no for the moment: it is busy, or its store is.
            Err(_) => {}
        }
        tokio::time::sleep(LOOK_EVERY).await; // poll
    }
}

/// Whether the session has no process that a terminal could talk to, by the answer's code.
fn is_gone(error: &ClientError) -> bool {
    matches!(error.code(), Some("submission_state" | "session_unknown" | "unsupported"))
}

fn start(plan: &Value, environment: &Environment) -> Result<Child, Failure> {
    let argv: Vec<&str> = plan["argv"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let Some((program, arguments)) = argv.split_first() else {
        return Err(Failure::new(Exit::Other, "the host names no program for the terminal"));
    };
    let mut command = Command::new(program);
    command.args(arguments).env_clear();
    let env = plan["env"].as_object().into_iter().flatten();
    command.envs(env.filter_map(|(name, value)| Some((name, value.as_str()?))));
    command.envs(TERMINAL_VARIABLES.iter().filter_map(|name| Some((name, environment.get(name)?))));
    if let Some(folder) = plan["cwd"].as_str() {
        command.current_dir(folder);
    }
    command.spawn().map_err(|error| Failure::new(Exit::Other, format!("cannot start {program}: {error}")))
}
