//! `attach`: the past of a session, and what comes.

use super::approvals;
use crate::background;
use crate::cli::AttachArgs;
use crate::client::encode;
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::follow::{Following, Until, follow};
use crate::output;
use serde_json::Value;

pub(crate) async fn attach(
    settings: &Settings,
    environment: &Environment,
    args: &AttachArgs,
    json: bool,
) -> Result<Exit, Failure> {
    let client = background::ensure_host(settings, environment.current_folder().as_deref()).await?;
    let path = format!("/v1/sessions/{}", encode(&args.session));
    // The cursor first: what comes between it and the page is shown twice rather than not at all.
    let session = client.get(&path).await?;
    let after = format!("{}:{}", session["cursor"]["epoch"], session["cursor"]["seq"]);
    let page = client.get(&format!("{path}/items?limit={}", args.items)).await?;
    let mut requests = client.get(&format!("{path}/requests")).await?;
    let open = requests["requests"].as_array_mut().map(std::mem::take).unwrap_or_default();
    let items = page["items"].as_array().map_or(&[] as &[Value], Vec::as_slice);
    let mut shown = Vec::new();
    for item in items.iter().rev() {
        if item["kind"] == "agent_message" && item["state"] == "open" {
            let text = item["text"].as_str().unwrap_or_default();
            let bytes = item["text_from"].as_u64().unwrap_or(0) + text.len() as u64;
            shown.push((item["id"].as_str().unwrap_or_default().to_owned(), bytes));
            if !json {
                // What comes goes on behind it.
                output::text(text)?;
                continue;
            }
        }
        if json {
            output::json(item)?;
        } else {
            output::text(&describe(item))?;
        }
    }
    if !json {
        output::note(&format!(
            "-- {} ({}); Ctrl-C leaves --",
            args.session,
            session["status"].as_str().unwrap_or("unknown")
        ));
    }
    let approvals = approvals(&args.approvals, environment, json);
    follow(Following {
        client,
        session: args.session.clone(),
        after,
        until: Until::Left,
        approvals,
        json,
        open,
        shown,
    })
    .await
}

fn describe(item: &Value) -> String {
    let text = |member: &str| item[member].as_str().unwrap_or_default();
    let said = text("text").trim_end();
    match text("kind") {
        "user_message" => format!("> {}\n", said_or_content(item).replace('\n', "\n> ")),
        "agent_message" => format!("{said}\n"),
        "tool_call" => {
            format!("• {} ({})\n", text("title"), item["status"].as_str().unwrap_or(text("state")))
        }
        "agent_thought" => String::new(),
        other if said.is_empty() => format!("[{other}] {}\n", text("title")),
        other => format!("[{other}] {said}\n"),
    }
}

/// A user's message stands in its text or in its content blocks.
fn said_or_content(item: &Value) -> String {
    let said = item["text"].as_str().unwrap_or_default();
    if !said.is_empty() {
        return said.to_owned();
    }
    let blocks = item["content"].as_array().into_iter().flatten();
    blocks.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
}
