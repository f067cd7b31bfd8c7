//! The host's end of a control socket: connecting, and a blocking client for tools and tests.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::folder::{KeeperFolder, names, open_directory};
use crate::wire::{DecodeError, Decoder, Message, ToHost, ToKeeper};

/// Connects to a keeper's control socket. Works for folders of any path length. The stream is blocking.
pub fn connect_socket(folder: &KeeperFolder) -> io::Result<UnixStream> {
    let directory = open_directory(&folder.path)?;
    UnixStream::connect(format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), names::SOCKET))
}

#[derive(Debug, Error)]
pub enum LinkError {
    #[error("the keeper's socket could not be reached")]
    Connect(#[source] io::Error),
    #[error("the keeper's socket failed")]
    Io(#[source] io::Error),
    #[error("the keeper closed the connection")]
    Closed,
    #[error("the keeper did not answer in time")]
    Timeout,
    #[error("the keeper's answer is not understood")]
    Decode(#[source] DecodeError),
}

/// A blocking connection to one keeper.
#[derive(Debug)]
pub struct Link {
    stream: UnixStream,
    decoder: Decoder,
}

impl Link {
    /// Connects; says nothing yet.
    pub fn connect(folder: &KeeperFolder) -> Result<Self, LinkError> {
        let stream = connect_socket(folder).map_err(LinkError::Connect)?;
        Ok(Self { stream, decoder: Decoder::default() })
    }

    pub fn send(&mut self, message: &ToKeeper) -> Result<(), LinkError> {
        let mut frame = Vec::new();
        message.encode(&mut frame);
        self.stream.write_all(&frame).map_err(LinkError::Io)
    }

    /// The next message that this version knows, waiting at most `patience`.
    pub fn receive(&mut self, patience: Duration) -> Result<ToHost, LinkError> {
        let deadline = Instant::now() + patience;
        let mut bytes = [0; 16 * 1024];
        loop {
            match self.decoder.next_message().map_err(LinkError::Decode)? {
                Some(ToHost::Unknown { .. }) => continue,
                Some(message) => return Ok(message),
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(LinkError::Timeout);
            }
            self.stream.set_read_timeout(Some(left)).map_err(LinkError::Io)?;
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => self.decoder.feed(bytes.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(LinkError::Timeout),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Err(LinkError::Closed);
                }
                Err(error) => return Err(LinkError::Io(error)),
            }
        }
    }

    /// Says hello and waits for the answer, a `Status` or a `Rejected`.
    pub fn hello(
        &mut self,
        host_id: &str,
        process_fence: u64,
        patience: Duration,
    ) -> Result<ToHost, LinkError> {
        self.send(&ToKeeper::Hello {
            version: crate::spec::PROTOCOL_VERSION,
            host_id: host_id.to_owned(),
            process_fence,
        })?;
        self.receive(patience)
    }

    pub fn into_stream(self) -> UnixStream {
        self.stream
    }
}
