//! What the API is told by the binary.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Gives the pids of living keepers and agents of this home, for telling where a request comes from. Blocking.
#[derive(Clone)]
pub struct AgentPids(Arc<dyn Fn() -> Vec<i32> + Send + Sync>);

impl AgentPids {
    /// Wraps a reader of the keepers' folders.
    pub fn new(read: impl Fn() -> Vec<i32> + Send + Sync + 'static) -> Self {
        Self(Arc::new(read))
    }

    /// Reads them now. Blocking.
    #[must_use]
    pub fn read(&self) -> Vec<i32> {
        (self.0)()
    }
}

impl std::fmt::Debug for AgentPids {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AgentPids")
    }
}

/// How the API is served.
#[derive(Clone)]
pub struct ApiConfig {
    /// The bearer token of TCP clients. Never empty; never logged.
    pub token: String,
    /// The TCP address; port 0 picks one. None: the socket only.
    pub listen: Option<SocketAddr>,
    /// Whether an address that other machines can reach may be bound.
    pub allow_remote: bool,
    /// Further names by which clients may call this host, beside the loopback ones: values of the Host header without
    /// the port.
    pub allowed_hosts: Vec<String>,
    /// Where the Unix socket may stand: the first place that no other host holds is taken; none: TCP only. A path may
    /// be longer than a socket address.
    pub sockets: Vec<PathBuf>,
    /// The version to tell clients.
    pub version: String,
    /// Where agents' processes are known from.
    pub agent_pids: AgentPids,
}

impl std::fmt::Debug for ApiConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ApiConfig")
            .field("listen", &self.listen)
            .field("allow_remote", &self.allow_remote)
            .field("allowed_hosts", &self.allowed_hosts)
            .field("sockets", &self.sockets)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}
