//! The host over its Unix socket.

use crate::sse::{Parser, SseEvent};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::client::conn::http1;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use mainstay_api::connectable;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::UnixStream;

/// How this program calls itself; the host tells it to those whose answers come too late.
const USER_AGENT: &str = concat!("mainstay-cli/", env!("CARGO_PKG_VERSION"));
/// Where a serving host writes how it can be reached, in the home.
const ADDRESS_FILE: &str = "listening.json";

/// How a serving host can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Address {
    /// The TCP address.
    pub(crate) listening: String,
    /// The Unix socket.
    pub(crate) socket: PathBuf,
    /// The host's process.
    pub(crate) pid: i32,
}

impl Address {
    /// Writes it where clients look.
    pub(crate) fn publish(&self, home: &Path) -> io::Result<()> {
        let text = serde_json::to_string(self)?;
        let path = home.join(ADDRESS_FILE);
        let temporary = home.join(format!("{ADDRESS_FILE}.new"));
        std::fs::write(&temporary, text)?;
        std::fs::rename(temporary, path)
    }

    /// Takes it away when the host ends.
    pub(crate) fn withdraw(home: &Path) {
        // A file that stays names a process that is gone, which clients notice.
        let _removed = std::fs::remove_file(home.join(ADDRESS_FILE));
    }

    /// Where it is written.
    pub(crate) fn file(home: &Path) -> PathBuf {
        home.join(ADDRESS_FILE)
    }

    /// What the last host that published has written; it may be gone.
    pub(crate) fn read(home: &Path) -> io::Result<Self> {
        Ok(serde_json::from_str(&std::fs::read_to_string(Self::file(home))?)?)
    }
}

/// Why the host did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// Nobody serves this home.
    #[error("no host serves this home; `mainstay serve` starts one")]
    NoHost(#[source] io::Error),
    /// The connection ended before the answer did. What was asked may have been done.
    #[error("the connection to the host ended")]
    Lost(#[source] hyper::Error),
    /// The host refused.
    #[error("{}", describe(problem))]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The problem document.
        problem: Value,
    },
    /// What is at the socket does not speak as the host does.
    #[error("the host's answer is not understood: {0}")]
    NotHttp(String),
}

fn describe(problem: &Value) -> String {
    let text = |member: &str| problem[member].as_str().unwrap_or_default();
    format!("{} ({})", text("detail"), text("code"))
}

impl ClientError {
    /// The stable code of a refusal.
    pub(crate) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused { problem, .. } => problem["code"].as_str(),
            _ => None,
        }
    }

    /// Whether the host may come back and answer.
    pub(crate) fn is_lost_host(&self) -> bool {
        match self {
            Self::NoHost(_) | Self::Lost(_) => true,
            Self::Refused { .. } => self.code() == Some("shutting_down"),
            Self::NotHttp(_) => false,
        }
    }
}

/// A client of one home's host, whichever process that is now. One connection per request: over a Unix socket it costs
/// less than looking after one.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    home: PathBuf,
}

impl Client {
    pub(crate) fn new(home: &Path) -> Self {
        Self { home: home.to_owned() }
    }

    /// Whether a host answers.
    pub(crate) async fn find(&self) -> Result<Address, ClientError> {
        let address = Address::read(&self.home).map_err(ClientError::NoHost)?;
        self.connect().await?;
        Ok(address)
    }

    async fn connect(&self) -> Result<UnixStream, ClientError> {
        let address = Address::read(&self.home).map_err(ClientError::NoHost)?;
        let place = connectable(&address.socket).map_err(ClientError::NoHost)?;
        let stream = UnixStream::connect(place.path()).await.map_err(ClientError::NoHost)?;
        // A host that died may have left its address, and another home's host may have taken its socket's place.
        let pid = stream.peer_cred().map_err(ClientError::NoHost)?.pid();
        if pid.is_some_and(|pid| pid > 0 && pid != address.pid) {
            return Err(ClientError::NoHost(io::Error::other("another home's host has the socket")));
        }
        Ok(stream)
    }

    async fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Response<Incoming>, ClientError> {
        let mut headers = headers.to_vec();
        if body.is_some() {
            headers.push(("content-type", "application/json"));
        }
        let bytes = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        self.exchange_body(method, path, &headers, Full::new(bytes)).await
    }

    async fn exchange_body<B>(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: B,
    ) -> Result<Response<Incoming>, ClientError>
    where
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let stream = self.connect().await?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(ClientError::Lost)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the host ended early");
            }
        });
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("user-agent", USER_AGENT);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(body).map_err(|error| ClientError::NotHttp(error.to_string()))?;
        sender.send_request(request).await.map_err(ClientError::Lost)
    }

    /// Any request.
    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Value, ClientError> {
        Self::answer(self.exchange(method, path, headers, body).await?).await
    }

    async fn answer(response: Response<Incoming>) -> Result<Value, ClientError> {
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.map_err(ClientError::Lost)?.to_bytes();
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ClientError::NotHttp(format!("status {status}, no JSON: {error}")))?;
        if status >= 400 {
            return Err(ClientError::Refused { status, problem: value });
        }
        Ok(value)
    }

    /// A file from the host, as it comes.
    pub(crate) async fn download(&self, path: &str) -> Result<Incoming, ClientError> {
        let response = self.exchange("GET", path, &[], None).await?;
        if response.status().as_u16() == 200 {
            return Ok(response.into_body());
        }
        match Self::answer(response).await {
            Ok(other) => Err(ClientError::NotHttp(format!("no file, but {other}"))),
            Err(error) => Err(error),
        }
    }

    /// A file for the host, as much of it in memory as one piece.
    pub(crate) async fn upload(
        &self,
        path: &str,
        media: &str,
        key: &str,
        file: FileBody,
    ) -> Result<Value, ClientError> {
        let headers = [("content-type", media), ("idempotency-key", key)];
        Self::answer(self.exchange_body("POST", path, &headers, file).await?).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, ClientError> {
        self.request("GET", path, &[], None).await
    }

    /// A mutation that is carried out once, however often it is sent under this key.
    pub(crate) async fn once(
        &self,
        method: &str,
        path: &str,
        key: &str,
        body: &Value,
    ) -> Result<Value, ClientError> {
        self.request(method, path, &[("idempotency-key", key)], Some(body)).await
    }

    /// A mutation under a key of its own.
    pub(crate) async fn mutate(&self, method: &str, path: &str, body: &Value) -> Result<Value, ClientError> {
        self.once(method, path, &fresh_key(), body).await
    }

    /// An event stream after an event.
    pub(crate) async fn stream(
        &self,
        path: &str,
        last_event: Option<&str>,
    ) -> Result<EventStream, ClientError> {
        let mut headers = vec![("accept", "text/event-stream")];
        if let Some(last) = last_event {
            headers.push(("last-event-id", last));
        }
        let response = self.exchange("GET", path, &headers, None).await?;
        let status = response.status().as_u16();
        if status != 200 {
            let bytes = response.into_body().collect().await.map_err(ClientError::Lost)?.to_bytes();
            let problem = serde_json::from_slice(&bytes).unwrap_or_default();
            return Err(ClientError::Refused { status, problem });
        }
        Ok(EventStream { body: response.into_body(), parser: Parser::default() })
    }
}

/// A key that no request had before.
pub(crate) fn fresh_key() -> String {
    format!("cli-{}", uuid::Uuid::now_v7().simple())
}

/// A part of a path, percent-encoded.
pub(crate) fn encode(part: &str) -> String {
    use std::fmt::Write as _;
    let mut text = String::with_capacity(part.len());
    for byte in part.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~' | b':') {
            text.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _written = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Bytes read from a file at once.
const PIECE: usize = 256 * 1024;

/// A file on its way to the host. It is read where it is needed: the command has nothing else to do meanwhile.
pub(crate) struct FileBody(Box<dyn io::Read + Send>);

impl FileBody {
    pub(crate) fn new(file: Box<dyn io::Read + Send>) -> Self {
        Self(file)
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut piece = vec![0; PIECE];
        Poll::Ready(match self.0.read(&mut piece) {
            Ok(0) => None,
            Ok(read) => {
                piece.truncate(read);
                Some(Ok(Frame::data(piece.into())))
            }
            Err(error) => Some(Err(error)),
        })
    }
}

/// An open event stream.
#[derive(Debug)]
pub(crate) struct EventStream {
    body: Incoming,
    parser: Parser,
}

impl EventStream {
    /// The next event; None when the stream is over, in order or not.
    pub(crate) async fn next(&mut self) -> Option<SseEvent> {
        loop {
            if let Some(event) = self.parser.next() {
                return Some(event);
            }
            let data = self.body.frame().await?.ok()?.into_data().ok()?;
            if let Err(error) = self.parser.push(&data) {
                tracing::error!(%error, "the stream is given up");
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_paths_are_encoded() {
        assert_eq!(encode("ses_1.r2"), "ses_1.r2");
        assert_eq!(encode("a/b c"), "a%2Fb%20c");
    }

    #[test]
    fn an_address_is_published_and_withdrawn() {
        let home = tempfile::tempdir().expect("a folder");
        let address = Address { listening: "127.0.0.1:1".to_owned(), socket: "/s".into(), pid: 7 };
        address.publish(home.path()).expect("publish");
        assert_eq!(Address::read(home.path()).expect("read"), address);
        Address::withdraw(home.path());
        assert!(Address::read(home.path()).is_err());
    }
}
