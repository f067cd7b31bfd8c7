//! What every handler shares.

use crate::config::ApiConfig;
use crate::stop::Stop;
use mainstay_host::Host;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

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
    pub(crate) since: Instant,
}
