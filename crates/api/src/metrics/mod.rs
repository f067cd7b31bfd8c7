//! `GET /metrics`: what the host, its store and this API count, in the Prometheus text format.

mod exposition;
mod table;

use crate::app::App;
use crate::call::{Answer, Call};
use crate::handlers::NoQuery;
use axum::body::Body;
use axum::http::{HeaderValue, Method, Response, header};
use exposition::Exposition;
use mainstay_host::Host;
use mainstay_host::gauges::{self, Gauges};
use mainstay_host::metrics::Durations;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What this API counts.
#[derive(Debug, Default)]
pub(crate) struct HttpMetrics {
    /// By method, route and status: all three are from fixed lists.
    requests: Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>,
    took: Durations,
}

impl HttpMetrics {
    pub(crate) fn note(&self, method: &Method, route: Option<&'static str>, status: u16, took: Duration) {
        // A client can make up methods; their number is bounded here.
        let method = match *method {
            Method::GET => "GET",
            Method::HEAD => "HEAD",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::PATCH => "PATCH",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        let key = (method, route.unwrap_or("other"), status);
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default() += 1;
        self.took.note(took);
    }
}

pub(crate) async fn metrics(call: Call) -> Answer {
    call.query::<NoQuery>()?;
    let host = call.app.host.clone();
    let home = host.config().home.clone();
    let looked = host.read(move |store| gauges::look(store, &home)).await?;
    let text = write(&call.app, &host, &looked);
    let mut response = Response::new(Body::from(text));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    Ok(response)
}

fn write(app: &App, host: &Host, looked: &Gauges) -> String {
    let (counted, stats) = (host.metrics(), host.store().stats());
    let mut out = Exposition::default();
    out.labelled(table::INFO, [(app.config.version.as_str(), 1)]);
    out.value(table::UPTIME, app.since.elapsed().as_secs());
    out.map(table::SESSIONS, &looked.sessions);
    out.value(table::NEEDS_ANSWER, looked.needing_answer);
    out.value(table::LANES, host.lanes() as u64);
    out.map(table::PROCESSES, &looked.processes);
    out.map(table::SPOOL_BEHIND, &looked.behind);
    out.value(table::SUBSCRIBERS, counted.subscribers.get());
    out.value(table::FEED_POSITION, host.feed_head());
    out.labelled(
        table::COMMANDS,
        [
            ("done", counted.commands_done.get()),
            ("replayed", counted.commands_replayed.get()),
            ("unrecorded", counted.commands_unrecorded.get()),
            ("refused", counted.commands_refused.get()),
            ("failed", counted.commands_failed.get()),
        ],
    );
    out.map(table::EVENTS, &counted.events());
    out.labelled(
        table::BATCHES,
        [
            ("committed", counted.batches_committed.get()),
            ("refused", counted.batches_refused.get()),
            ("failed", counted.batches_failed.get()),
        ],
    );
    out.value(table::RECORDS, counted.records_read.get());
    out.value(table::OUTPUT_BYTES, counted.output_bytes.get());
    out.value(table::INPUTS, counted.inputs.get());
    out.value(table::QUARANTINED, counted.quarantined.get());
    out.labelled(
        table::STARTS,
        [
            ("done", counted.starts_done.get()),
            ("failed", counted.starts_failed.get()),
            ("unclear", counted.starts_unclear.get()),
            ("called_off", counted.starts_called_off.get()),
        ],
    );
    out.value(table::RECOVERIES, counted.recoveries.get());
    out.value(table::RING_READS, counted.ring_reads.get());
    out.value(table::STORED_READS, counted.stored_reads.get());
    out.durations(table::COMMIT, &counted.commit.get());
    out.durations(table::AGENT_TO_COMMIT, &counted.agent_to_commit.get());
    let requests = app.metrics.requests.lock().unwrap_or_else(PoisonError::into_inner).clone();
    out.rows(
        table::HTTP_REQUESTS,
        requests.iter().map(|((method, route, status), count)| {
            (vec![Cow::from(*method), Cow::from(*route), Cow::from(status.to_string())], *count)
        }),
    );
    out.durations(table::HTTP_SECONDS, &app.metrics.took.get());
    out.value(table::STORE_TRANSACTIONS, stats.transactions);
    out.labelled(
        table::STORE_WRITES,
        [
            ("committed", stats.committed_writes),
            ("fenced", stats.fenced),
            ("refused", stats.refused),
            ("failed", stats.failed),
            ("overloaded", stats.overloaded),
        ],
    );
    out.value(table::STORE_GROUPS_UNDONE, stats.groups_undone);
    out.value(table::STORE_RESERVES_SPENT, stats.reserves_spent);
    out.value(table::STORE_MARK_FAILURES, stats.mark_failures);
    out.value(table::STORE_QUEUED_WRITES, stats.queued_writes as u64);
    out.value(table::STORE_QUEUED_BYTES, stats.queued_bytes as u64);
    out.value(table::STORE_DEGRADED, u64::from(host.store().degraded().is_some()));
    out.labelled(table::DATABASE_BYTES, [("database", looked.database), ("wal", looked.wal)]);
    out.value(table::DISK_FREE, looked.free);
    out.value(table::RESIDENT, looked.resident);
    out.value(table::OPEN_FILES, looked.open_files);
    out.text()
}
