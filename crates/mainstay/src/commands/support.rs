//! `support`: one file for a report. It holds what a stranger needs to understand a fault, and nothing that only the user
//! should know: no texts of conversations, no values of environments, no tokens.

use super::{client, config, doctor};
use crate::cli::SupportArgs;
use crate::client::{Client, encode};
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::logging;
use crate::output;
use crate::tar::Archive;
use http_body_util::BodyExt;
use mainstay_keeper::KeepersDir;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Sessions that are listed: the newest.
const MOST_SESSIONS: usize = 500;
/// Bytes of each log's end.
const LOG_BYTES: u64 = 1024 * 1024;
/// Pages of a session's journal. Each holds up to 1,000 rows; what is beyond is said to be left out.
const MOST_PAGES: usize = 200;
/// A secret shorter than this would blank ordinary words.
const SHORTEST_SECRET: usize = 6;
/// In place of a secret.
const BLANK: &str = "(secret)";

pub(crate) async fn write(
    settings: &Settings,
    environment: &Environment,
    args: &SupportArgs,
    json: bool,
) -> Result<Exit, Failure> {
    let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(format!("mainstay-support-{at}.tar")));
    let client = client(settings);
    let mut members = Members { secrets: secrets(settings), found: Vec::new() };
    members.json("versions.json", &versions(&client).await);
    let findings = doctor::findings(environment).await;
    members.lines("doctor.jsonl", findings.iter().map(|finding| without_snippets(finding.json())));
    members.json("config.json", &configuration(settings));
    members.text("metrics.txt", &metrics(&client).await);
    members.lines("keepers.jsonl", keepers(&settings.home));
    members.lines("sessions.jsonl", sessions(&client).await);
    let log = logging::file_of(&settings.home);
    for (name, file) in [("logs/host.log", log.clone()), ("logs/host.log.1", logging::older(&log))] {
        if let Some(text) = log_end(&file)? {
            members.text(name, &text);
        }
    }
    if let Some(session) = &args.session {
        members.lines("journal.jsonl", journal(&client, session).await?);
    }
    let names: Vec<String> = members.found.iter().map(|(name, _)| name.clone()).collect();
    let file = File::options().write(true).create_new(true).mode(0o600).open(&path);
    let file = file.map_err(|error| {
        let exit = if error.kind() == io::ErrorKind::AlreadyExists { Exit::Refused } else { Exit::Other };
        Failure::new(exit, format!("{}: {error}", path.display()))
    })?;
    let mut archive = Archive::new(io::BufWriter::new(file), at);
    for (name, bytes) in &members.found {
        archive.add(name, bytes)?;
    }
    archive.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    if json {
        output::json(&json!({ "file": path, "members": names }))?;
    } else {
        output::line(&format!("{}: {}", path.display(), names.join(", ")))?;
        output::note("look into it before you give it away: it names folders, sessions and processes");
    }
    Ok(Exit::Completed)
}

/// The archive's members, each cleared of known secrets on its way in.
struct Members {
    secrets: BTreeSet<String>,
    found: Vec<(String, Vec<u8>)>,
}

impl Members {
    fn text(&mut self, name: &str, text: &str) {
        let mut text = text.to_owned();
        // Longer ones first, so that no part of one is left of another.
        let mut secrets: Vec<&String> = self.secrets.iter().collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        for secret in secrets {
            text = text.replace(secret, BLANK);
        }
        self.found.push((name.to_owned(), text.into_bytes()));
    }

    fn json(&mut self, name: &str, value: &Value) {
        self.text(name, &format!("{value:#}\n"));
    }

    fn lines(&mut self, name: &str, values: impl IntoIterator<Item = Value>) {
        let lines: Vec<String> = values.into_iter().map(|value| format!("{value}\n")).collect();
        self.text(name, &lines.concat());
    }
}

/// Everything that is known to be a secret: the API's token, and what agents are given in their environments.
fn secrets(settings: &Settings) -> BTreeSet<String> {
    let token = std::fs::read_to_string(settings.home.join("token")).unwrap_or_default();
    let values = settings.agents.values().flat_map(|agent| agent.env.values().cloned());
    let all = values.chain([token.trim().to_owned()]);
    let mut secrets = BTreeSet::new();
    for secret in all.filter(|secret| secret.len() >= SHORTEST_SECRET) {
        // As it stands within JSON too.
        let quoted = Value::from(secret.as_str()).to_string();
        secrets.insert(quoted.trim_matches('"').to_owned());
        secrets.insert(secret);
    }
    secrets
}

async fn versions(client: &Client) -> Value {
    let system = rustix::system::uname();
    let info = client.get("/v1/info").await.unwrap_or_default();
    json!({
        "mainstay": env!("CARGO_PKG_VERSION"),
        "host": info["version"],
        "host_uptime_ms": info["uptime_ms"],
        "store": info["store"],
        "limits": info["limits"],
        "sqlite": mainstay_store::sqlite_version(),
        "system": system.sysname().to_string_lossy(),
        "release": system.release().to_string_lossy(),
        "machine": system.machine().to_string_lossy(),
        "processors": std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
    })
}

/// A parser's message quotes the line that it did not understand.
fn without_snippets(mut finding: Value) -> Value {
    if finding["code"] == "config.unusable" {
        finding["detail"] = "(left out: it quotes the file)".into();
    }
    finding
}

/// Each value with its source. Of commands the program alone: arguments may be keys.
fn configuration(settings: &Settings) -> Value {
    let mut all = config::shown_with_sources(settings);
    for (name, entry) in &mut all {
        if name.ends_with(".command")
            && let Some(words) = entry["value"].as_array()
        {
            let more = words.len().saturating_sub(1);
            entry["value"] = json!({ "program": words.first(), "arguments": more });
        }
    }
    Value::Object(all)
}

async fn metrics(client: &Client) -> String {
    let body = match client.download("/metrics").await {
        Ok(body) => body.collect().await.map(|body| body.to_bytes()),
        Err(error) => return format!("# {error}\n"),
    };
    body.map_or_else(|error| format!("# {error}\n"), |bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// What keepers say of themselves; they never write a secret.
fn keepers(home: &Path) -> Vec<Value> {
    let folders = match KeepersDir::new(home.join("keepers")).list() {
        Ok(folders) => folders,
        Err(error) => return vec![json!({ "error": error.to_string() })],
    };
    let of = |folder: &mainstay_keeper::KeeperFolder| {
        let exit = folder.exit_record().ok().flatten().map(|exit| {
            json!({
                "cause": exit.cause, "exit_code": exit.exit_code, "signal": exit.signal,
                "strays": exit.strays.len(), "at_ms": exit.at_ms, "stderr_bytes": exit.stderr_tail.len(),
            })
        });
        json!({
            "token": folder.token, "manifest": folder.manifest().ok().flatten(),
            "agent": folder.agent_identity().ok().flatten(), "exit": exit,
        })
    };
    folders.iter().map(of).collect()
}

async fn sessions(client: &Client) -> Vec<Value> {
    const SHOWN: &[&str] = &[
        "id",
        "agent",
        "status",
        "created_at",
        "updated_at",
        "archived",
        "epoch",
        "head",
        "cursor",
        "fence",
        "process",
        "open_requests",
        "queued",
        "turn",
        "needs",
    ];
    let listed = match client.get(&format!("/v1/sessions?limit={MOST_SESSIONS}")).await {
        Ok(listed) => listed,
        Err(error) => return vec![json!({ "error": error.to_string() })],
    };
    let of = |session: &Value| {
        let members = session.as_object().into_iter().flatten();
        let shown = members.filter(|(name, _)| SHOWN.contains(&name.as_str()));
        let mut shown: serde_json::Map<String, Value> =
            shown.map(|(name, value)| (name.clone(), cleared(name, value))).collect();
        shown.insert("reason_bytes".to_owned(), session["reason"].as_str().map_or(0, str::len).into());
        Value::Object(shown)
    };
    listed["sessions"].as_array().into_iter().flatten().map(of).collect()
}

/// The end of a log, without what is logged for developers: levels below `info` may tell what was said.
fn log_end(path: &Path) -> io::Result<Option<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let (mut kept, mut left_out) = (String::new(), 0_usize);
    for line in text.lines() {
        if is_for_users(line) {
            kept.push_str(line);
            kept.push('\n');
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        kept.push_str(&format!("({left_out} lines below `info`, or without a level, are left out)\n"));
    }
    Ok(Some(kept))
}

fn is_for_users(line: &str) -> bool {
    const LEVELS: [&str; 3] = ["INFO", "WARN", "ERROR"];
    match serde_json::from_str::<Value>(line) {
        Ok(object) => object["level"].as_str().is_some_and(|level| LEVELS.contains(&level)),
        Err(_) => line.split_whitespace().nth(1).is_some_and(|level| LEVELS.contains(&level)),
    }
}

/// A session's journal, all texts replaced by their lengths.
async fn journal(client: &Client, session: &str) -> Result<Vec<Value>, Failure> {
    let base = format!("/v1/sessions/{}/events", encode(session));
    let mut rows = Vec::new();
    let mut path = format!("{base}?limit=1000");
    for _page in 0..MOST_PAGES {
        let page = client.get(&path).await?;
        let events = page["events"].as_array().map_or(&[] as &[Value], Vec::as_slice);
        rows.extend(events.iter().map(|event| cleared("", event)));
        match page["cursor"].as_str().filter(|_| page["more"] == true) {
            Some(cursor) => path = format!("{base}?limit=1000&after={}", encode(cursor)),
            None => return Ok(rows),
        }
    }
    rows.push(json!({ "left_out": "what is beyond" }));
    Ok(rows)
}

/// Members whose texts are words and ids of ours, and objects that hold such members.
const OURS: &[&str] = &[
    "type",
    "session",
    "process",
    "thread",
    "submission",
    "turn",
    "request",
    "item",
    "task",
    "child",
    "control",
    "parent",
    "kind",
    "state",
    "status",
    "outcome",
    "origin",
    "delivery",
    "taken_as",
    "proof",
    "level",
    "code",
    "order",
    "cause",
    "role",
    "boot_id",
    "agent",
    "exit",
    "key",
    "id",
    "cursor",
    "provider_turn",
    "steers",
    "resends",
    "usage",
    "strays",
];

/// The value with every other text and object replaced by its size.
fn cleared(name: &str, value: &Value) -> Value {
    let is_ours = name.is_empty() || OURS.contains(&name);
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        Value::String(text) if is_ours && is_word(text) => value.clone(),
        Value::String(text) => json!({ "text_bytes": text.len() }),
        Value::Array(values) if is_ours => values.iter().map(|value| cleared(name, value)).collect(),
        Value::Object(members) if is_ours => {
            members.iter().map(|(name, value)| (name.clone(), cleared(name, value))).collect()
        }
        Value::Array(_) | Value::Object(_) => json!({ "json_bytes": value.to_string().len() }),
    }
}

/// An id, or a word of ours: nothing with blanks, and nothing long.
fn is_word(text: &str) -> bool {
    text.len() <= 128
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_keeps_its_shape_and_loses_its_texts() {
        let event = json!({
            "epoch": 1, "seq": 7, "type": "item.completed", "item": "itm_1", "kind": "agent_message",
            "text": "the secret plan", "usage": { "input_tokens": 5, "note": "for you" },
            "provider": { "whatever": "it says" }, "turn": "two words",
        });
        assert_eq!(
            cleared("", &event),
            json!({
                "epoch": 1, "seq": 7, "type": "item.completed", "item": "itm_1", "kind": "agent_message",
                "text": { "text_bytes": 15 }, "usage": { "input_tokens": 5, "note": { "text_bytes": 7 } },
                "provider": { "json_bytes": 22 }, "turn": { "text_bytes": 9 },
            })
        );
    }

    #[test]
    fn only_lines_for_users_are_taken() {
        for (line, taken) in [
            ("2026-11-30T17:00:00Z  INFO mainstay: begins", true),
            ("2026-11-30T17:00:00Z DEBUG mainstay: the prompt was INFO", false),
            (r#"{"timestamp":"x","level":"WARN","message":"m"}"#, true),
            (r#"{"timestamp":"x","level":"TRACE","message":"m"}"#, false),
            ("thread 'main' panicked: the content", false),
        ] {
            assert_eq!(is_for_users(line), taken, "{line}");
        }
    }

    #[test]
    fn known_secrets_are_blanked_also_as_json() {
        let secrets =
            BTreeSet::from(["se\\\"cret".to_owned(), "se\"cret".to_owned(), "longer-one".to_owned()]);
        let mut members = Members { secrets, found: Vec::new() };
        members.json("a", &json!({ "x": "se\"cret", "y": "longer-one" }));
        let text = String::from_utf8(members.found[0].1.clone()).expect("text");
        assert!(!text.contains("cret\"") && !text.contains("longer-one"), "{text}");
    }
}
