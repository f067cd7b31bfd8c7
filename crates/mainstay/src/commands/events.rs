//! `events`: a session's journal, or the host's feed.

use super::client;
use crate::cli::EventsArgs;
use crate::client::{Client, encode};
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::follow::SILENCE;
use crate::output;
use serde_json::Value;

pub(crate) async fn print(settings: &Settings, args: &EventsArgs, json: bool) -> Result<Exit, Failure> {
    let client = client(settings);
    let path = match &args.session {
        Some(session) => format!("/v1/sessions/{}/events", encode(session)),
        None => "/v1/events".to_owned(),
    };
    if args.follow {
        return stream(&client, &path, args.after.as_deref(), json).await;
    }
    let mut after = args.after.clone();
    loop {
        let from = after.map_or_else(String::new, |after| format!("?after={}", encode(&after)));
        let page = client.get(&format!("{path}{from}")).await?;
        if page["reset"].is_object() {
            output::note(&format!("the cursor does not belong to this history: {}", page["reset"]["reason"]));
            return Ok(Exit::InDoubt);
        }
        for event in page["events"].as_array().into_iter().flatten() {
            print_event(event, json)?;
        }
        if page["more"] != true {
            return Ok(Exit::Completed);
        }
        after = page["cursor"]
            .as_str()
            .map(str::to_owned)
            .or_else(|| page["position"].as_u64().map(|at| at.to_string()));
    }
}

async fn stream(client: &Client, path: &str, after: Option<&str>, json: bool) -> Result<Exit, Failure> {
    let mut stream = client.stream(path, after).await?;
    loop {
        let event = tokio::select! {
            event = stream.next() => event.ok_or("the stream ended"),
            () = tokio::time::sleep(SILENCE) => Err("the host says nothing any more, not even that it is there"),
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Completed),
        };
        let event = event
            .map_err(|why| Failure::new(Exit::NoHost, format!("{why}; begin again after the last cursor")))?;
        let data: Value = serde_json::from_str(&event.data)
            .map_err(|error| Failure::new(Exit::Other, format!("an event is no JSON: {error}")))?;
        if event.id.is_some() || event.event == "reset" {
            print_event(&data, json)?;
        }
    }
}

fn print_event(event: &Value, json: bool) -> std::io::Result<()> {
    if json {
        return output::json(event);
    }
    let place = match (&event["epoch"], &event["seq"], &event["position"]) {
        (Value::Number(epoch), Value::Number(seq), _) => format!("{epoch}:{seq}"),
        (_, _, Value::Number(position)) => position.to_string(),
        _ => "-".to_owned(),
    };
    let at = event["at"].as_i64().map_or_else(|| "-".to_owned(), output::time);
    let kind = event["type"].as_str().unwrap_or("?");
    let mut rest = event.clone();
    if let Some(members) = rest.as_object_mut() {
        members.retain(|name, _| {
            !["epoch", "seq", "position", "at", "type", "fence", "first_seq"].contains(&name.as_str())
        });
    }
    output::line(&format!("{place}  {at}  {kind}  {rest}"))
}
