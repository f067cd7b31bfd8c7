//! Who is at the other end of a connection.

use std::net::SocketAddr;

/// The other end, as the kernel names it when the connection is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A TCP client.
    Tcp(SocketAddr),
    /// A client of the Unix socket.
    Unix(UnixPeer),
}

/// A client of the Unix socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnixPeer {
    /// Its user.
    pub(crate) uid: u32,
    /// Its pid; None where it lives outside our process namespace, and so not below any of our processes.
    pub(crate) pid: Option<i32>,
    /// Its start time when it was accepted, so that another process with the same pid is not taken for it. None where
    /// it was gone already.
    pub(crate) start_time: Option<u64>,
}
