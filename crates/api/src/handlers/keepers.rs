//! Keepers: every one with who has it, and the two ways to deal with one that no record claims.

use super::NoQuery;
use crate::call::{Answer, Call, json, raw_json};
use crate::mutation::{self, apart, mark_replay};
use crate::origin;
use crate::problem::{Code, Problem};
use mainstay_core::process::ProcessExit;
use mainstay_core::{Cursor, Session, SessionId, ThreadId};
use mainstay_host::{Claim, EndAnswered, EndOperation, KeeperEnded, KeeperEntry, Operation};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// All keepers of this home.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeeperList {
    /// By token.
    keepers: Vec<KeeperView>,
}

/// A keeper's folder.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeeperView {
    /// Its name.
    token: String,
    /// The registered agent that it was started for.
    agent: String,
    /// `alive`, `being_born`, `ended`, `gone` (without an exit record), `unused` or `indeterminate`.
    keeper: String,
    /// `running`, `not_started`, `gone` or `indeterminate`.
    process: String,
    /// The keeper's process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    keeper_pid: Option<i32>,
    /// The agent's process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    process_pid: Option<i32>,
    /// The folder that the agent works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    /// The provider's conversations that were opened in it, oldest first.
    threads: Vec<String>,
    /// The highest fence that it knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    fence: Option<u64>,
    /// Its birth, Unix ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    since: Option<i64>,
    /// Whether a record has it. One that no record has can be recovered.
    claimed: bool,
    /// The sessions that have it.
    sessions: Vec<String>,
    /// Why something is indeterminate.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

impl From<KeeperEntry> for KeeperView {
    fn from(KeeperEntry { row, claim }: KeeperEntry) -> Self {
        Self {
            keeper: word(&row.keeper),
            process: word(&row.agent),
            token: row.token,
            agent: row.label,
            keeper_pid: row.keeper_identity.map(|identity| identity.pid),
            process_pid: row.agent_identity.map(|identity| identity.pid),
            cwd: row.cwd.map(|cwd| cwd.display().to_string()),
            threads: row.threads,
            fence: row.fence,
            since: row.since_ms,
            claimed: claim != Claim::Nobody,
            sessions: match claim {
                Claim::Sessions(sessions) => sessions,
                Claim::Record | Claim::Nobody => Vec::new(),
            },
            why: row.why,
        }
    }
}

/// A state by its public word.
fn word(state: &impl Serialize) -> String {
    match serde_json::to_value(state) {
        Ok(serde_json::Value::String(word)) => word,
        _ => "unknown".to_owned(),
    }
}

pub(crate) async fn list(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let keepers = call.app.host.keepers().await?;
    json(200, &KeeperList { keepers: keepers.into_iter().map(KeeperView::from).collect() })
}

/// What to do with a keeper that no record claims.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RecoverKeeperBody {
    /// What.
    action: KeeperAction,
    /// With `end`: at once, without the gentle steps.
    #[serde(default)]
    kill: bool,
}

/// Ways to deal with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KeeperAction {
    /// Its conversation becomes the session's again that has it, or a new session's. The agent is not interrupted.
    Adopt,
    /// The agent and the keeper are ended, and the folder is removed.
    End,
}

/// What was done with it.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct KeeperRecovered {
    /// Which.
    token: String,
    /// What.
    action: KeeperAction,
    /// The session that has it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    /// The conversation.
    #[serde(skip_serializing_if = "Option::is_none")]
    thread: Option<ThreadId>,
    /// `epoch:seq` behind the binding.
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<String>,
    /// The end, as proven.
    #[serde(skip_serializing_if = "Option::is_none")]
    exit: Option<ProcessExit>,
    /// Whether the folder is gone. One that stays is removed by the next host.
    #[serde(skip_serializing_if = "Option::is_none")]
    folder_removed: Option<bool>,
}

/// These plain values serialize always.
fn body(view: &KeeperRecovered) -> Vec<u8> {
    serde_json::to_vec(view).unwrap_or_default()
}

fn adopted(token: &str, session: &Session, cursor: Cursor) -> Vec<u8> {
    body(&KeeperRecovered {
        token: token.to_owned(),
        action: KeeperAction::Adopt,
        session: Some(session.id.clone()),
        thread: session.thread().cloned(),
        cursor: Some(cursor.to_string()),
        exit: None,
        folder_removed: None,
    })
}

fn ended(ended: &KeeperEnded) -> Vec<u8> {
    body(&KeeperRecovered {
        token: ended.token.clone(),
        action: KeeperAction::End,
        session: None,
        thread: None,
        cursor: None,
        exit: Some(ended.exit.clone()),
        folder_removed: Some(ended.folder_removed),
    })
}

pub(crate) async fn recover(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    origin::refuse_agents(&call).await?;
    let asked: RecoverKeeperBody = call.json()?;
    let token = call.param("token")?.to_owned();
    match asked.action {
        KeeperAction::Adopt if asked.kill => {
            Err(Problem::new(Code::InvalidBody, "`kill` goes with `end` only"))
        }
        KeeperAction::Adopt => adopt(&call, token).await,
        KeeperAction::End => end(&call, token, asked.kill).await,
    }
}

async fn adopt(call: &Call, token: String) -> Answer {
    let named = mutation::named(call)?;
    // The response is made in the transaction also where nobody named the request.
    let (key, fingerprint) = match named {
        Some((key, fingerprint)) => (key, fingerprint),
        None => (mainstay_host::Host::fresh_id("unnamed"), mutation::fingerprint(call)),
    };
    let of = token.clone();
    let respond =
        Box::new(move |_: &_, session: &Session, cursor: Cursor| (200, adopted(&of, session, cursor)));
    let operation = Operation { key, fingerprint, respond };
    let host = call.app.host.clone();
    let answered =
        apart(&call.app, async move { host.adopt_keeper(&token, Some(operation)).await }).await??;
    let (status, body) =
        answered.response.ok_or_else(|| Problem::new(Code::Internal, "the binding made no response"))?;
    let mut response = raw_json(status, body);
    if answered.replayed {
        mark_replay(&mut response);
    }
    Ok(response)
}

async fn end(call: &Call, token: String, kill: bool) -> Answer {
    let operation = mutation::named(call)?.map(|(key, fingerprint)| EndOperation {
        key,
        fingerprint,
        respond: Box::new(|done| (200, ended(done))),
    });
    let host = call.app.host.clone();
    let answered = apart(&call.app, async move { host.end_keeper(&token, kill, operation).await }).await??;
    match answered {
        EndAnswered::Ended(done) => Ok(raw_json(200, ended(&done))),
        EndAnswered::Replayed(status, body) => {
            let mut response = raw_json(status, body);
            mark_replay(&mut response);
            Ok(response)
        }
    }
}
