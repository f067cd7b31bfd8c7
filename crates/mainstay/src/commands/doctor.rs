//! `doctor`: what is wrong, and what to do about it.

use super::client;
use crate::client::ClientError;
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::{Exit, Failure, chain};
use crate::output;
use mainstay_keeper::ps::{AgentState, KeeperState};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

/// Sessions that cannot go on, one line each; of more it is said that there are more.
const STUCK_SHOWN: usize = 20;

/// How a thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Good,
    /// To know, nothing to do.
    Note,
    Bad,
}

impl Verdict {
    const fn word(self) -> &'static str {
        match self {
            Self::Good => "ok",
            Self::Note => "note",
            Self::Bad => "bad",
        }
    }
}

struct Finding {
    what: &'static str,
    verdict: Verdict,
    detail: String,
}

fn finding(what: &'static str, verdict: Verdict, detail: impl Into<String>) -> Finding {
    Finding { what, verdict, detail: detail.into() }
}

pub(crate) async fn look(
    settings: &Settings,
    environment: &Environment,
    json: bool,
) -> Result<Exit, Failure> {
    let mut findings = vec![home(settings), token(settings), config(settings)];
    findings.extend(host(settings, environment).await);
    findings.extend(keepers(settings));
    for finding in &findings {
        if json {
            output::json(
                &json!({ "what": finding.what, "verdict": finding.verdict.word(), "detail": finding.detail }),
            )?;
        } else {
            output::line(&format!("{:<5} {}: {}", finding.verdict.word(), finding.what, finding.detail))?;
        }
    }
    let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if bad { Exit::Other } else { Exit::Completed })
}

fn home(settings: &Settings) -> Finding {
    let home = settings.home.display();
    match settings.home.metadata() {
        Ok(meta) if !meta.is_dir() => finding("home", Verdict::Bad, format!("{home} is no folder")),
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => {
            finding("home", Verdict::Bad, format!("{home} can be read by others; chmod 700 it"))
        }
        Ok(_) => finding("home", Verdict::Good, home.to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            finding("home", Verdict::Note, format!("{home} is not there yet; the first host makes it"))
        }
        Err(error) => finding("home", Verdict::Bad, format!("{home}: {error}")),
    }
}

fn token(settings: &Settings) -> Finding {
    match settings.home.join("token").metadata() {
        Ok(meta) if meta.permissions().mode() & 0o077 != 0 => {
            finding("token", Verdict::Bad, "the token file can be read by others; chmod 600 it")
        }
        Ok(_) => finding("token", Verdict::Good, "private"),
        Err(_) => finding("token", Verdict::Note, "not made yet"),
    }
}

fn config(settings: &Settings) -> Finding {
    match settings.layers.warnings.as_slice() {
        [] => finding("config", Verdict::Good, "understood"),
        warnings => finding("config", Verdict::Bad, warnings.join("; ")),
    }
}

async fn host(settings: &Settings, environment: &Environment) -> Vec<Finding> {
    let client = client(settings);
    let info = match client.get("/v1/info").await {
        Ok(info) => info,
        Err(ClientError::NoHost(error)) => {
            let places: Vec<String> = environment
                .socket_places(&settings.home)
                .iter()
                .map(|path| path.display().to_string())
                .collect();
            let detail = format!("no host runs ({error}); it would listen at {}", places.join(" or "));
            return vec![finding("host", Verdict::Note, detail)];
        }
        Err(error) => return vec![finding("host", Verdict::Bad, chain(&error))],
    };
    let text = |member: &str| info[member].as_str().unwrap_or("-");
    let mut findings = vec![finding(
        "host",
        Verdict::Good,
        format!(
            "version {}, pid {}, http://{}, {}",
            text("version"),
            info["pid"],
            text("listening"),
            text("socket")
        ),
    )];
    if text("version") != env!("CARGO_PKG_VERSION") {
        let detail =
            format!("the host is {}, this program is {}", text("version"), env!("CARGO_PKG_VERSION"));
        findings.push(finding("version", Verdict::Note, detail));
    }
    findings.push(match (info["degraded"].as_str(), text("store")) {
        (None, "read_write") => finding("store", Verdict::Good, "takes writes"),
        (degraded, mode) => finding("store", Verdict::Bad, degraded.unwrap_or(mode)),
    });
    let unclaimed = info["unclaimed"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    if !unclaimed.is_empty() {
        let tokens: Vec<&str> = unclaimed.iter().filter_map(Value::as_str).collect();
        findings.push(finding(
            "unclaimed",
            Verdict::Bad,
            format!(
                "keepers that no session claims: {}; adopt or end them (`mainstay recover --keeper TOKEN`)",
                tokens.join(", ")
            ),
        ));
    }
    findings.extend(stuck_sessions(&client).await);
    findings.push(agents(&client).await);
    findings
}

/// Sessions that cannot go on by themselves: a process that can be proven neither alive nor gone is looked at again all the
/// time and blocks its own session only, which is easily overlooked.
async fn stuck_sessions(client: &crate::client::Client) -> Vec<Finding> {
    let path = format!("/v1/sessions?status=recovering&limit={STUCK_SHOWN}");
    let stuck = match client.get(&path).await {
        Ok(stuck) => stuck,
        Err(error) => return vec![finding("sessions", Verdict::Bad, chain(&error))],
    };
    let rows = stuck["sessions"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let shown = |row: &Value| {
        let text = |member: &str| row[member].as_str().unwrap_or("unknown");
        let id = text("id");
        let detail = format!(
            "{id} cannot go on by itself: {}; ways out: `mainstay recover {id} --abandon`, or `--start-fresh`",
            text("reason")
        );
        finding("session", Verdict::Bad, detail)
    };
    let mut findings: Vec<Finding> = rows.iter().map(shown).collect();
    if stuck["after"].is_string() {
        findings.push(finding("sessions", Verdict::Bad, "more of them: `mainstay ls --status recovering`"));
    }
    for unreadable in stuck["unreadable"].as_array().into_iter().flatten() {
        let detail = format!("the record {unreadable} cannot be read; the others are served");
        findings.push(finding("session", Verdict::Bad, detail));
    }
    findings
}

async fn agents(client: &crate::client::Client) -> Finding {
    let known = match client.get("/v1/agents").await {
        Ok(known) => known,
        Err(error) => return finding("agents", Verdict::Bad, chain(&error)),
    };
    let described: Vec<String> = known["agents"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|agent| {
            let name = agent["name"].as_str().unwrap_or("?");
            match (agent["installed"] == true, agent["install"].as_str()) {
                (true, _) => name.to_owned(),
                (false, Some(install)) => format!("{name} (not installed: {install})"),
                (false, None) => format!("{name} (not installed)"),
            }
        })
        .collect();
    finding("agents", Verdict::Good, described.join(", "))
}

fn keepers(settings: &Settings) -> Vec<Finding> {
    let rows = match mainstay_keeper::ps(&settings.home) {
        Ok(rows) => rows,
        Err(error) => return vec![finding("keepers", Verdict::Bad, chain(&error))],
    };
    let alive = rows.iter().filter(|row| row.keeper == KeeperState::Alive).count();
    let mut findings =
        vec![finding("keepers", Verdict::Good, format!("{alive} alive, {} folders", rows.len()))];
    for row in &rows {
        let why = row.why.as_deref().unwrap_or("unknown");
        if row.keeper == KeeperState::Indeterminate || row.agent == AgentState::Indeterminate {
            findings.push(finding("keeper", Verdict::Bad, format!("{}: cannot be told: {why}", row.token)));
        }
        if row.keeper == KeeperState::Gone && row.agent == AgentState::Running {
            findings.push(finding(
                "keeper",
                Verdict::Bad,
                format!("{}: the agent runs without its keeper", row.token),
            ));
        }
    }
    findings
}
