//! `show`: one session.

use super::client;
use crate::cli::SessionArg;
use crate::client::encode;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::{Value, json};

pub(crate) async fn print(settings: &Settings, args: &SessionArg, json: bool) -> Result<Exit, Failure> {
    let client = client(settings);
    let path = format!("/v1/sessions/{}", encode(&args.session));
    let session = client.get(&path).await?;
    let queue = client.get(&format!("{path}/queue")).await?;
    let requests = client.get(&format!("{path}/requests")).await?;
    if json {
        output::json(
            &json!({ "session": session, "queue": queue["queue"], "requests": requests["requests"] }),
        )?;
        return Ok(Exit::Completed);
    }
    let text = |member: &str| session[member].as_str().unwrap_or("-").to_owned();
    let mut rows = vec![
        vec!["session".to_owned(), text("id")],
        vec!["name".to_owned(), text("name")],
        vec!["agent".to_owned(), text("agent")],
        vec!["folder".to_owned(), text("cwd")],
        vec!["status".to_owned(), status(&session)],
        vec!["created".to_owned(), session["created_at"].as_i64().map_or_else(String::new, output::time)],
        vec!["cursor".to_owned(), format!("{}:{}", session["cursor"]["epoch"], session["cursor"]["seq"])],
    ];
    for (name, value) in session["options"].as_object().into_iter().flatten() {
        rows.push(vec![name.clone(), value.as_str().unwrap_or_default().to_owned()]);
    }
    output::text(&output::table(&rows))?;
    for message in queue["queue"].as_array().into_iter().flatten() {
        let (id, state) = (message["id"].as_str().unwrap_or("?"), message["state"].as_str().unwrap_or("?"));
        let waits = message["waits"].as_str().map_or_else(String::new, |waits| format!(", waits: {waits}"));
        output::line(&format!("message {id}: {state}{waits}"))?;
    }
    for request in requests["requests"].as_array().into_iter().flatten() {
        output::text(&describe_request(request))?;
    }
    Ok(Exit::Completed)
}

fn status(session: &Value) -> String {
    let status = session["status"].as_str().unwrap_or("unknown");
    match session["reason"].as_str() {
        Some(reason) => format!("{status} ({reason})"),
        None => status.to_owned(),
    }
}

fn describe_request(request: &Value) -> String {
    let text = |value: &Value, member: &str| value[member].as_str().unwrap_or("-").to_owned();
    let mut lines =
        format!("request {}: {} ({})\n", text(request, "id"), text(request, "title"), text(request, "state"));
    for (number, option) in request["options"].as_array().into_iter().flatten().enumerate() {
        lines.push_str(&format!(
            "  {}) {} [{}]\n",
            number + 1,
            text(option, "name"),
            text(option, "option_id")
        ));
    }
    lines
}
