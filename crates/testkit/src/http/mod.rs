//! A small blocking HTTP/1.1 client and a reader of server-sent events, over TCP or a Unix socket.
//!
//! It exists so that the end-to-end tests share no code with the server they test. One connection per
//! request; no redirects, no TLS, no compression.

mod body;
mod sse;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use body::Body;
pub use sse::{Sse, SseEvent};

/// How long a request may take when the test does not say. Long: on two busy cores a host under test
/// may be starting agents; a test that means to wait less says so.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Longest response header; more is an error of the server under test.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Longest path a Unix socket address holds on Linux, the closing zero not counted.
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Addr {
    /// A TCP port.
    Tcp(SocketAddr),
    /// A Unix socket; the path may be longer than a socket address allows.
    Unix(PathBuf),
}

/// A connected stream of either kind.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn connect(addr: &Addr) -> io::Result<Self> {
        match addr {
            Addr::Tcp(addr) => {
                let stream = TcpStream::connect(addr)?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Addr::Unix(path) => connect_unix(path).map(Self::Unix),
        }
    }

    fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        // Zero would mean "for ever".
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(timeout),
            Self::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(buffer),
            Self::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.flush(),
            Self::Unix(stream) => stream.flush(),
        }
    }
}

/// Connects to a Unix socket also where its path is too long for an address: through the open folder.
fn connect_unix(path: &Path) -> io::Result<UnixStream> {
    if path.as_os_str().len() <= MAX_SOCKET_PATH_BYTES {
        return UnixStream::connect(path);
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the socket path has no folder"));
    };
    let folder = File::open(folder)?;
    UnixStream::connect(Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name))
}

/// What a server answered.
#[derive(Debug, Clone)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Names in lower case, in the order they came.
    pub headers: Vec<(String, String)>,
    /// The whole body.
    pub body: Vec<u8>,
}

impl Response {
    /// The first header of that name (lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The body as text; bad bytes become U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// When it is none; the message shows status and body.
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => {
                panic!("status {} with a body that is no JSON ({error}): {:?}", self.status, self.text())
            }
        }
    }

    /// The same response, if it has this status.
    ///
    /// # Panics
    /// When it has another one; the message shows the body.
    #[track_caller]
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "body: {}", self.text());
        self
    }
}

/// A client of one server; cheap to clone and to use from many threads.
#[derive(Debug, Clone)]
pub struct Client {
    addr: Addr,
    headers: Vec<(String, String)>,
    timeout: Duration,
}

impl Client {
    /// A client without any header of its own.
    pub fn new(addr: Addr) -> Self {
        Self { addr, headers: Vec::new(), timeout: DEFAULT_TIMEOUT }
    }

    /// Sends this header with every request, in place of an earlier one of the same name.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends `Authorization: Bearer <token>` with every request.
    #[must_use]
    pub fn bearer(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    /// How long each request may take in all.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Where this client connects to.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// `GET path`.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn get(&self, path: &str) -> io::Result<Response> {
        self.request("GET", path, &[], None)
    }

    /// `POST path` with a JSON body.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn post(&self, path: &str, body: &Value) -> io::Result<Response> {
        self.request("POST", path, &[], Some(body.to_string().as_bytes()))
    }

    /// `POST path` with a JSON body and an `Idempotency-Key`.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn post_once(&self, path: &str, key: &str, body: &Value) -> io::Result<Response> {
        self.request("POST", path, &[("idempotency-key", key)], Some(body.to_string().as_bytes()))
    }

    /// `PATCH path` with a JSON body.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn patch(&self, path: &str, body: &Value) -> io::Result<Response> {
        self.request("PATCH", path, &[], Some(body.to_string().as_bytes()))
    }

    /// `PUT path` with a JSON body.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn put(&self, path: &str, body: &Value) -> io::Result<Response> {
        self.request("PUT", path, &[], Some(body.to_string().as_bytes()))
    }

    /// `DELETE path`.
    ///
    /// # Errors
    /// As [`request`](Self::request).
    pub fn delete(&self, path: &str) -> io::Result<Response> {
        self.request("DELETE", path, &[], None)
    }

    /// Any request. `headers` come after, and replace, the client's own. A body is sent as
    /// `application/json` unless a header says otherwise.
    ///
    /// # Errors
    /// When the connection fails, the answer is no HTTP, or the client's time-out passes
    /// ([`io::ErrorKind::TimedOut`]). Any status is an answer, not an error.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
    ) -> io::Result<Response> {
        let give_up_at = Instant::now() + self.timeout;
        let (head, mut incoming) = self.exchange(method, path, headers, body, give_up_at)?;
        let mut content = Vec::new();
        while !incoming.is_over() {
            incoming.read_more(&mut content, give_up_at)?;
        }
        Ok(Response { status: head.status, headers: head.headers, body: content })
    }

    /// Sends a request and reads the head of the answer.
    fn exchange(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<&[u8]>,
        give_up_at: Instant,
    ) -> io::Result<(Head, Body)> {
        let mut stream = Stream::connect(&self.addr)?;
        let mut all = Self { addr: self.addr.clone(), headers: Vec::new(), timeout: self.timeout };
        all = all.header("host", &self.host()).header("connection", "close");
        if let Some(body) = body {
            all = all.header("content-type", "application/json");
            all = all.header("content-length", &body.len().to_string());
        }
        for (name, value) in &self.headers {
            all = all.header(name, value);
        }
        for (name, value) in headers {
            all = all.header(name, value);
        }
        let mut message = format!("{method} {path} HTTP/1.1\r\n");
        for (name, value) in &all.headers {
            message.push_str(&format!("{name}: {value}\r\n"));
        }
        message.push_str("\r\n");
        stream.write_all(message.as_bytes())?;
        if let Some(body) = body
            && let Err(error) = stream.write_all(body)
            && !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
        {
            // A server may refuse a large body by its header alone; its answer is then already there.
            return Err(error);
        }
        let mut raw = Vec::new();
        let head_end = loop {
            if let Some(at) = raw.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            if raw.len() > MAX_HEAD_BYTES {
                return Err(invalid("the response header has no end"));
            }
            if body::read_some(&mut stream, &mut raw, give_up_at)? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "closed before the response header",
                ));
            }
        };
        let rest = raw.split_off(head_end);
        let head = Head::parse(&raw)?;
        let body = Body::new(stream, rest, &head, method)?;
        Ok((head, body))
    }

    fn host(&self) -> String {
        match &self.addr {
            Addr::Tcp(addr) => addr.to_string(),
            Addr::Unix(_) => "localhost".to_owned(),
        }
    }
}

/// Status line and headers.
#[derive(Debug)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    fn parse(raw: &[u8]) -> io::Result<Self> {
        let text = std::str::from_utf8(raw).map_err(|_| invalid("the response header is not UTF-8"))?;
        let mut lines = text.split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.split(' ').nth(1))
            .and_then(|word| word.parse().ok())
            .ok_or_else(|| invalid("no status line"))?;
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        Ok(Self { status, headers })
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
