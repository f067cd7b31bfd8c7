//! What every handler shares.

use crate::config::ApiConfig;
use crate::metrics::HttpMetrics;
use crate::stop::Stop;
use mainstay_host::Host;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;

/// One serving host.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) host: Arc<Host>,
    pub(crate) config: ApiConfig,
    /// The bound TCP address.
    pub(crate) bound: Option<SocketAddr>,
    /// The bound Unix socket.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) stop: Stop,
    pub(crate) metrics: HttpMetrics,
    pub(crate) since: Instant,
    /// Held while options are read, changed and written, so that two changes at once are both made.
    pub(crate) changing: tokio::sync::Mutex<()>,
    /// Room for commands under way.
    pub(crate) commands: Arc<Semaphore>,
    /// Room for files on their way in.
    pub(crate) uploads: Arc<Semaphore>,
}
