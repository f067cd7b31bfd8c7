//! `queue`: the messages that wait.

use super::client;
use crate::cli::{MessageArg, QueueCommand};
use crate::client::{Client, encode};
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::{Value, json};

/// Characters of a message that a list shows.
const SHOWN_CHARS: usize = 60;

pub(crate) async fn queue(settings: &Settings, what: QueueCommand, json: bool) -> Result<Exit, Failure> {
    let client = client(settings);
    let (answered, said) = match what {
        QueueCommand::Ls(args) => {
            let listed = client.get(&of_session(&args.session)).await?;
            if !json {
                return list(&listed);
            }
            (listed, String::new())
        }
        QueueCommand::Edit { message, text, revision } => {
            let revision = current(&client, &message, revision).await?;
            let body = json!({ "revision": revision, "content": text });
            changed(client.mutate("PATCH", &of_message(&message), &body).await?)
        }
        QueueCommand::Move { message, before, last: _, revision } => {
            let revision = current(&client, &message, revision).await?;
            let body = json!({ "revision": revision, "before": before });
            changed(client.mutate("PATCH", &of_message(&message), &body).await?)
        }
        QueueCommand::Send(message) => {
            let path = format!("{}/send", of_message(&message));
            changed(client.mutate("POST", &path, &json!({})).await?)
        }
        QueueCommand::Rm(message) => {
            let done = client.mutate("DELETE", &of_message(&message), &json!({})).await?;
            (done, "withdrawn".to_owned())
        }
        QueueCommand::Resume(args) => {
            let path = format!("{}/resume", of_session(&args.session));
            (client.mutate("POST", &path, &json!({})).await?, "resumed".to_owned())
        }
    };
    if json {
        output::json(&answered)?;
    } else {
        output::line(&said)?;
    }
    Ok(Exit::Completed)
}

fn of_session(session: &str) -> String {
    format!("/v1/sessions/{}/queue", encode(session))
}

fn of_message(message: &MessageArg) -> String {
    format!("{}/{}", of_session(&message.session), encode(&message.message))
}

/// The revision to name: the one that was seen, else the one that is.
async fn current(client: &Client, message: &MessageArg, seen: Option<u64>) -> Result<u64, Failure> {
    if let Some(seen) = seen {
        return Ok(seen);
    }
    let queued = client.get(&of_message(message)).await?;
    Ok(queued["revision"].as_u64().unwrap_or_default())
}

fn changed(answered: Value) -> (Value, String) {
    let said = format!("revision {}", answered["revision"]);
    (answered, said)
}

fn list(listed: &Value) -> Result<Exit, Failure> {
    for queued in listed["queue"].as_array().map_or(&[] as &[Value], Vec::as_slice) {
        output::line(&line(queued))?;
    }
    if listed["paused"] == true {
        output::note("the queue is paused; `mainstay queue resume` lifts the pause");
    }
    Ok(Exit::Completed)
}

/// `ID  rREVISION  STATE  TEXT`.
fn line(queued: &Value) -> String {
    let text = |member: &str| queued[member].as_str().unwrap_or_default();
    let state = match (queued["paused"] == true, queued["waits"].as_str()) {
        (true, _) => "paused",
        (false, Some(waits)) => waits,
        (false, None) => text("state"),
    };
    let content: String = queued["content"]
        .as_array()
        .map_or(&[] as &[Value], Vec::as_slice)
        .iter()
        .filter_map(|block| block["text"].as_str())
        .collect::<Vec<_>>()
        .join(" ")
        .replace(char::is_control, " ");
    let mut shown: String = content.chars().take(SHOWN_CHARS).collect();
    if content.chars().nth(SHOWN_CHARS).is_some() {
        shown.push('…');
    }
    format!("{}  r{}  {state}  {shown}", text("id"), queued["revision"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_a_message_waits_for() {
        let mut queued = json!({ "id": "m1", "revision": 2, "state": "accepted", "waits": "turn_running",
            "paused": false, "content": [{ "type": "text", "text": "a\nb" }] });
        assert_eq!(line(&queued), "m1  r2  turn_running  a b");
        queued["paused"] = true.into();
        assert_eq!(line(&queued), "m1  r2  paused  a b");
        queued["content"][0]["text"] = "x".repeat(SHOWN_CHARS + 1).into();
        assert!(line(&queued).ends_with("x…"));
    }
}
