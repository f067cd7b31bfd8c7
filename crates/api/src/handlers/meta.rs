//! Liveness, version, the document.

use super::NoQuery;
use crate::body::MAX_BODY_BYTES;
use crate::call::{Answer, Call, json};
use crate::document;
use mainstay_store::{Degraded, StoreMode};
use schemars::JsonSchema;
use serde::Serialize;

/// The host answers.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Health {
    /// Always `ok`.
    status: &'static str,
}

pub(crate) async fn health(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    json(200, &Health { status: "ok" })
}

/// This host.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Info {
    /// `mainstay`.
    name: &'static str,
    /// The program's version.
    version: String,
    /// The API's version.
    api: &'static str,
    /// The host's name in launch snapshots.
    host: String,
    /// The host's process.
    pid: u32,
    /// Unix ms, by the host's clock.
    now: i64,
    /// How long the host has served, ms.
    uptime_ms: u64,
    /// The TCP address.
    #[serde(skip_serializing_if = "Option::is_none")]
    listening: Option<String>,
    /// The Unix socket.
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<String>,
    /// Bounds of what is accepted.
    limits: Limits,
    /// Whether the store takes writes: `read_write` or `read_only`.
    store: &'static str,
    /// What is wrong with the store, where something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    degraded: Option<String>,
    /// Keeper folders that no record claims.
    unclaimed: Vec<String>,
    /// What this version serves.
    capabilities: Vec<&'static str>,
}

/// Bounds of what is accepted.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Limits {
    /// Of a request body.
    body_bytes: usize,
    /// Of one message.
    content_bytes: usize,
    /// Of an id or a key.
    id_bytes: usize,
    /// Messages that may wait in one session.
    queue: usize,
    /// Agent processes at once.
    processes: usize,
}

pub(crate) async fn info(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let host = &call.app.host;
    let store = host.store();
    let info = Info {
        name: "mainstay",
        version: call.app.config.version.clone(),
        api: "v1",
        host: host.config().host_id.0.clone(),
        pid: std::process::id(),
        now: host.now(),
        uptime_ms: u64::try_from(call.app.since.elapsed().as_millis()).unwrap_or(u64::MAX),
        listening: call.app.bound.map(|bound| bound.to_string()),
        socket: call.app.socket.as_ref().map(|socket| socket.display().to_string()),
        limits: Limits {
            body_bytes: MAX_BODY_BYTES,
            content_bytes: mainstay_core::content::MAX_CONTENT_BYTES,
            id_bytes: mainstay_core::MAX_ID_BYTES,
            queue: mainstay_core::session::MAX_QUEUED,
            processes: host.config().max_processes,
        },
        store: match store.mode() {
            StoreMode::ReadWrite => "read_write",
            StoreMode::ReadOnly { .. } => "read_only",
        },
        degraded: store.degraded().map(|degraded| match degraded {
            Degraded::Failing(error) => error.to_string(),
            Degraded::NoReserve => "the reserve for a full disk is missing".to_owned(),
            Degraded::ReadOnly { why } => why,
        }),
        unclaimed: host.found().unclaimed,
        capabilities: vec!["sse", "idempotency", "feed", "items"],
    };
    json(200, &info)
}

pub(crate) async fn openapi(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    json(200, &document::openapi())
}
