//! What is asked of an agent beside messages: `fork`, `rewind`, `compact`, `clear`, `goal`, `archive --at-agent`; and `tasks`.

use super::client;
use crate::cli::{CompactArgs, ForkArgs, GoalArgs, RewindArgs, SessionArg};
use crate::client::encode;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::output;
use serde_json::{Value, json};

fn path(session: &str, what: &str) -> String {
    format!("/v1/sessions/{}/{what}", encode(session))
}

/// Prints what was asked, or the whole answer.
fn asked(answer: &Value, words: &str, json: bool) -> Result<Exit, Failure> {
    if json {
        output::json(answer)?;
    } else {
        output::line(words)?;
    }
    Ok(Exit::Completed)
}

pub(crate) async fn fork(settings: &Settings, args: ForkArgs, json: bool) -> Result<Exit, Failure> {
    let mut body = json!({});
    for (member, value) in [("last_turn", args.last_turn), ("name", args.name), ("prompt", args.prompt)] {
        if let Some(value) = value {
            body[member] = value.into();
        }
    }
    let made = client(settings).mutate("POST", &path(&args.session, "fork"), &body).await?;
    asked(&made, made["id"].as_str().unwrap_or_default(), json)
}

pub(crate) async fn rewind(settings: &Settings, args: &RewindArgs, json: bool) -> Result<Exit, Failure> {
    let body = json!({ "before": args.before, "files": args.files });
    let answer = client(settings).mutate("POST", &path(&args.session, "rewind"), &body).await?;
    asked(&answer, "asked; the journal says what became of it", json)
}

pub(crate) async fn compact(settings: &Settings, args: CompactArgs, json: bool) -> Result<Exit, Failure> {
    let mut body = json!({});
    if let Some(instructions) = args.instructions {
        body["instructions"] = instructions.into();
    }
    let answer = client(settings).mutate("POST", &path(&args.session, "compact"), &body).await?;
    asked(&answer, "asked; the journal says what became of it", json)
}

/// Archives the conversation at the agent, and with it the session.
pub(crate) async fn archive(settings: &Settings, session: &str, json: bool) -> Result<Exit, Failure> {
    let answer = client(settings).mutate("POST", &path(session, "archive"), &json!({})).await?;
    asked(&answer, "asked; the journal says what became of it", json)
}

pub(crate) async fn clear(settings: &Settings, args: &SessionArg, json: bool) -> Result<Exit, Failure> {
    let answer = client(settings).mutate("POST", &path(&args.session, "clear"), &json!({})).await?;
    asked(&answer, "asked; the journal says what became of it", json)
}

pub(crate) async fn goal(settings: &Settings, args: GoalArgs, json: bool) -> Result<Exit, Failure> {
    let (client, path) = (client(settings), path(&args.session, "goal"));
    if args.clear {
        let answer = client.mutate("DELETE", &path, &json!({})).await?;
        return asked(&answer, "asked; the journal says what became of it", json);
    }
    let body = match (args.objective, args.pause, args.resume) {
        (Some(objective), _, _) => json!({ "objective": objective, "token_budget": args.token_budget }),
        (None, true, _) => json!({ "state": "paused" }),
        (None, false, true) => json!({ "state": "active" }),
        (None, false, false) => {
            let shown = client.get(&path).await?;
            let goal = &shown["goal"];
            let words = match goal["objective"].as_str() {
                Some(objective) => format!("{}: {objective}", goal["state"].as_str().unwrap_or("unknown")),
                None => "no goal".to_owned(),
            };
            return asked(&shown, &words, json);
        }
    };
    let answer = client.mutate("PUT", &path, &body).await?;
    asked(&answer, "asked; the journal says what became of it", json)
}

pub(crate) async fn tasks(settings: &Settings, args: &SessionArg, json: bool) -> Result<Exit, Failure> {
    let client = client(settings);
    let mut shown = client.get(&path(&args.session, "tasks")).await?;
    let children = client.get(&path(&args.session, "children")).await?;
    shown["children"] = children["children"].clone();
    if json {
        output::json(&shown)?;
        return Ok(Exit::Completed);
    }
    for task in shown["tasks"].as_array().into_iter().flatten() {
        output::line(&row(task, &task["id"]))?;
    }
    let mut open: Vec<(usize, &Value)> =
        shown["children"].as_array().into_iter().flatten().rev().map(|child| (0, child)).collect();
    while let Some((depth, child)) = open.pop() {
        output::line(&format!("{}{}", "  ".repeat(depth), row(child, &child["thread"])))?;
        open.extend(child["children"].as_array().into_iter().flatten().rev().map(|below| (depth + 1, below)));
    }
    Ok(Exit::Completed)
}

fn row(work: &Value, id: &Value) -> String {
    let state = work["outcome"].as_str().or(work["state"].as_str()).unwrap_or("running");
    let tokens = work["tokens"].as_u64().map(|tokens| format!("  {tokens} tokens")).unwrap_or_default();
    let title = work["title"].as_str().unwrap_or_default();
    format!("{}  {state}  {title}{tokens}", id.as_str().unwrap_or_default())
}
