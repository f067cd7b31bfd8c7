//! Where clients come in: a TCP address and a Unix socket.

use crate::config::ApiConfig;
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::{TcpListener, UnixListener};

/// The longest path that a Unix socket address holds on Linux, the closing zero not counted.
const MAX_ADDRESS_BYTES: usize = 107;

/// Why the host cannot listen. Nothing is served.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The address can be reached from other machines and nobody allowed that.
    #[error(
        "{0} can be reached from other machines; listen on a loopback address, or set `allow_remote = true`"
    )]
    NotLoopback(SocketAddr),
    /// The host has no token, so nobody could be told from anybody.
    #[error("the host has no token; without one nothing is served over TCP")]
    NoToken,
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Tcp {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The socket cannot be bound.
    #[error("cannot listen on {}", path.display())]
    Unix {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Other hosts hold every place that the socket may have.
    #[error("other hosts hold {}", places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and "))]
    SocketTaken {
        /// The places.
        places: Vec<PathBuf>,
    },
}

/// Bound and not yet served. Dropping it takes the socket file away.
#[derive(Debug)]
pub struct Listeners {
    pub(crate) tcp: Option<TcpListener>,
    pub(crate) unix: Option<BoundSocket>,
    bound: Option<SocketAddr>,
}

/// A bound Unix socket, its file and the lock that says that it is ours.
#[derive(Debug)]
pub(crate) struct BoundSocket {
    pub(crate) listener: UnixListener,
    path: PathBuf,
    _lock: File,
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        // The next host removes what is left here.
        let _removed = std::fs::remove_file(&self.path);
    }
}

impl Listeners {
    /// Binds what the configuration names. Must run on a tokio runtime.
    ///
    /// # Errors
    /// [`ListenError`].
    pub async fn bind(config: &ApiConfig) -> Result<Self, ListenError> {
        let tcp = match config.listen {
            Some(address) => Some(bind_tcp(config, address).await?),
            None => None,
        };
        let bound = tcp.as_ref().and_then(|listener| listener.local_addr().ok());
        let unix = bind_first(&config.sockets)?;
        Ok(Self { tcp, unix, bound })
    }

    /// The TCP address, with the port that was picked.
    #[must_use]
    pub const fn tcp_address(&self) -> Option<SocketAddr> {
        self.bound
    }

    /// The Unix socket.
    #[must_use]
    pub fn socket(&self) -> Option<&Path> {
        self.unix.as_ref().map(|unix| unix.path.as_path())
    }
}

async fn bind_tcp(config: &ApiConfig, address: SocketAddr) -> Result<TcpListener, ListenError> {
    if !address.ip().is_loopback() && !config.allow_remote {
        return Err(ListenError::NotLoopback(address));
    }
    if config.token.is_empty() {
        return Err(ListenError::NoToken);
    }
    TcpListener::bind(address).await.map_err(|source| ListenError::Tcp { address, source })
}

fn bind_first(places: &[PathBuf]) -> Result<Option<BoundSocket>, ListenError> {
    for path in places {
        match bind_unix(path) {
            Ok(Some(bound)) => return Ok(Some(bound)),
            Ok(None) => {}
            Err(source) => return Err(ListenError::Unix { path: path.clone(), source }),
        }
    }
    if places.is_empty() {
        return Ok(None);
    }
    Err(ListenError::SocketTaken { places: places.to_vec() })
}

/// Binds one place; None where another host holds it. Several homes may share a runtime folder, so the home's own lock
/// does not say whose a socket file is: a lock beside the socket does, and only its holder removes a file left behind.
fn bind_unix(path: &Path) -> io::Result<Option<BoundSocket>> {
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut lock_name = path.as_os_str().to_owned();
    lock_name.push(".lock");
    let lock = File::options().write(true).create(true).truncate(false).mode(0o600).open(&lock_name)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
        Err(std::fs::TryLockError::Error(error)) => return Err(error),
    }
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let address = connectable(path)?;
    let listener = UnixListener::bind(address.path())?;
    // Until here another user could connect; the peer's user is checked for every request.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(Some(BoundSocket { listener, path: path.to_owned(), _lock: lock }))
}

/// A path by which a Unix socket can be addressed, valid while this value lives.
#[derive(Debug)]
pub struct Connectable {
    path: PathBuf,
    _folder: Option<OwnedFd>,
}

impl Connectable {
    /// The path to bind or to connect to.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes a path that fits into a socket address: a longer one goes through its opened folder.
///
/// # Errors
/// Where the folder of a long path cannot be opened.
pub fn connectable(path: &Path) -> io::Result<Connectable> {
    if path.as_os_str().len() <= MAX_ADDRESS_BYTES {
        return Ok(Connectable { path: path.to_owned(), _folder: None });
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket path has no folder"));
    };
    let folder = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let path = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok(Connectable { path, _folder: Some(folder) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::AgentPids;

    fn config(listen: &str, sockets: Vec<PathBuf>) -> ApiConfig {
        ApiConfig {
            token: "t".to_owned(),
            listen: listen.parse().ok(),
            allow_remote: false,
            allowed_hosts: Vec::new(),
            sockets,
            version: String::new(),
            agent_pids: AgentPids::new(Vec::new),
        }
    }

    #[tokio::test]
    async fn an_address_for_other_machines_needs_leave_and_a_token() {
        let mut config = config("0.0.0.0:0", Vec::new());
        assert!(matches!(Listeners::bind(&config).await, Err(ListenError::NotLoopback(_))));
        config.allow_remote = true;
        config.token.clear();
        assert!(matches!(Listeners::bind(&config).await, Err(ListenError::NoToken)));
    }

    #[tokio::test]
    async fn a_socket_with_a_long_path_is_private_and_goes_with_its_listener() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x".repeat(120)).join("mainstay.sock");
        let listeners = Listeners::bind(&config("", vec![path.clone()])).await.expect("binds");
        assert_eq!(listeners.socket(), Some(path.as_path()));
        assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
        let address = connectable(&path).expect("an address");
        tokio::net::UnixStream::connect(address.path()).await.expect("connects");
        drop(listeners);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_place_that_another_host_holds_is_left_alone_and_a_stale_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let (first, second) = (folder.path().join("a.sock"), folder.path().join("b.sock"));
        std::fs::write(&first, "left behind").expect("a stale file");
        let places = vec![first.clone(), second.clone()];
        let one = Listeners::bind(&config("", places.clone())).await.expect("binds");
        assert_eq!(one.socket(), Some(first.as_path()));
        let two = Listeners::bind(&config("", places.clone())).await.expect("binds");
        assert_eq!(two.socket(), Some(second.as_path()));
        assert!(matches!(Listeners::bind(&config("", places)).await, Err(ListenError::SocketTaken { .. })));
        tokio::net::UnixStream::connect(&first).await.expect("the first still listens");
    }
}
