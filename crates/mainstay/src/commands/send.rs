//! `send`: a message.

use super::{approvals, client};
use crate::cli::SendArgs;
use crate::client::encode;
use crate::config::Settings;
use crate::environment::Environment;
use crate::failure::{Exit, Failure};
use crate::follow::{Following, Until, follow};
use crate::output;
use serde_json::json;

pub(crate) async fn send(
    settings: &Settings,
    environment: &Environment,
    args: SendArgs,
    json: bool,
) -> Result<Exit, Failure> {
    let client = client(settings);
    let mut body = json!({ "content": args.text, "delivery": args.delivery });
    if let Some(fallback) = &args.fallback {
        body["fallback"] = fallback.as_str().into();
    }
    if let Some(id) = &args.id {
        body["id"] = id.as_str().into();
    }
    let path = format!("/v1/sessions/{}/messages", encode(&args.session));
    let accepted = client.mutate("POST", &path, &body).await?;
    let text = |member: &str| accepted[member].as_str().unwrap_or_default().to_owned();
    if !args.wait {
        if json {
            output::json(&accepted)?;
        } else {
            output::line(&format!("{} ({})", text("submission"), text("taken_as")))?;
        }
        return Ok(Exit::Completed);
    }
    let approvals = approvals(&args.approvals, environment, json);
    let until = Until::TurnOf(text("submission"));
    follow(Following {
        client,
        session: args.session,
        after: text("cursor"),
        until,
        approvals,
        json,
        open: Vec::new(),
        shown: Vec::new(),
    })
    .await
}
