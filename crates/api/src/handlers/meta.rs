//! Liveness, version, metrics, the document.

use super::NoQuery;
use crate::body::MAX_BODY_BYTES;
use crate::call::{Answer, Call, json};
use crate::document;
use axum::body::Body;
use axum::http::{HeaderValue, Response, header};
use mainstay_store::{Degraded, StoreMode};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;

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

pub(crate) async fn metrics(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let stats = call.app.host.store().stats();
    let counts = call.app.host.read(|store| store.counts()).await?;
    let mut text = String::new();
    let mut put = |name: &str, kind: &str, help: &str, value: u64| {
        // Writing to a string does not fail.
        let _written = write!(
            text,
            "# HELP mainstay_{name} {help}\n# TYPE mainstay_{name} {kind}\nmainstay_{name} {value}\n"
        );
    };
    put("sessions", "gauge", "Sessions on record, deleted ones too.", counts.sessions);
    put("events", "gauge", "Journal rows.", counts.events);
    put("items", "gauge", "Timeline items.", counts.items);
    put("processes", "gauge", "Agent processes on record, ended ones too.", counts.processes);
    put("feed_position", "gauge", "The feed's newest position.", call.app.host.feed_head());
    put("store_transactions_total", "counter", "Transactions committed.", stats.transactions);
    put("store_writes_total", "counter", "Lane writes committed.", stats.committed_writes);
    put("store_fenced_total", "counter", "Lane writes refused because of a fence.", stats.fenced);
    put("store_refused_total", "counter", "Lane writes refused for another reason.", stats.refused);
    put("store_failed_total", "counter", "Lane writes that failed.", stats.failed);
    put(
        "store_overloaded_total",
        "counter",
        "Lane writes not taken because the queue was full.",
        stats.overloaded,
    );
    put(
        "store_queued_writes",
        "gauge",
        "Lane writes waiting.",
        u64::try_from(stats.queued_writes).unwrap_or(u64::MAX),
    );
    let mut response = Response::new(Body::from(text));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    Ok(response)
}

pub(crate) async fn openapi(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    json(200, &document::openapi())
}
