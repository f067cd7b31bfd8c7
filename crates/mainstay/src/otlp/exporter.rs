//! The queue of ended spans, and its end.

use super::Endpoint;
use super::layer::SpanLayer;
use super::plain_http::{EXCHANGE, PlainHttp};
use opentelemetry::KeyValue;
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanProcessor};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;

/// Spans that wait for the collector; more are lost, and nothing else is.
const WAITING: usize = 2_048;
/// Spans of one exchange.
const BATCH: usize = 512;
/// How long a span waits for others.
const GATHERED: Duration = Duration::from_secs(1);
/// What the end of the host gives the collector; what it has not taken then is lost.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Sends spans, from a thread of its own.
#[derive(Debug)]
pub(crate) struct Exporter(Arc<BatchSpanProcessor>);

impl Exporter {
    /// Begins; connects to nothing before there is a span.
    pub(crate) fn begin(endpoint: &Endpoint, runtime: Handle) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(PlainHttp { runtime })
            .with_endpoint(&endpoint.url)
            .with_protocol(Protocol::HttpJson)
            .with_timeout(EXCHANGE)
            .build()?;
        let batches = BatchConfigBuilder::default()
            .with_max_queue_size(WAITING)
            .with_max_export_batch_size(BATCH)
            .with_scheduled_delay(GATHERED)
            .build();
        let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        // Not from the environment: what stands there is nobody's statement about this host.
        let itself = Resource::builder_empty()
            .with_attributes([
                KeyValue::new("service.name", "mainstay"),
                KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                KeyValue::new("process.pid", i64::from(rustix::process::getpid().as_raw_nonzero().get())),
            ])
            .build();
        processor.set_resource(&itself);
        Ok(Self(Arc::new(processor)))
    }

    /// What makes the spans of what is logged.
    pub(crate) fn layer(&self) -> SpanLayer {
        SpanLayer::new(self.0.clone())
    }

    /// Sends what waits, within a bound. Spans that are not ended are not sent: whoever sees their end sends them.
    pub(crate) fn end(&self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST_WORDS) {
            tracing::warn!(%error, "the collector did not take the last spans");
        }
    }
}
