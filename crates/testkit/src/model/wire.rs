//! The bytes of the mock server: just enough HTTP/1.1, and the event stream.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

/// Largest request body: a whole conversation with a few 5 MB tool outputs in it. A larger one gets
/// its connection closed.
const MAX_BODY_BYTES: usize = 64 << 20;

/// Events are collected up to this many bytes before they are written, unless something waits for them.
const EVENT_BATCH_BYTES: usize = 64 << 10;

/// One request as it came.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    pub(crate) method: String,
    /// Without the query.
    pub(crate) path: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// Reads the next request of a connection; `None` when the client closed it.
pub(crate) fn read_request(reader: &mut BufReader<TcpStream>) -> io::Result<Option<HttpRequest>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no request line"));
    };
    let method = method.to_owned();
    let path = target.split('?').next().unwrap_or_default().to_owned();

    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    let length: usize = headers.get("content-length").and_then(|value| value.parse().ok()).unwrap_or(0);
    if length > MAX_BODY_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "request body over the mock's limit"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(HttpRequest { method, path, headers, body }))
}

/// Answers with JSON and keeps the connection.
pub(crate) fn write_json(
    mut stream: &TcpStream,
    status: u16,
    extra_headers: &[(&str, String)],
    body: &Value,
) -> io::Result<()> {
    let body = body.to_string();
    let mut head = format!(
        "HTTP/1.1 {status} mock\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
        body.len()
    );
    for (name, value) in extra_headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    stream.write_all(format!("{head}\r\n{body}").as_bytes())
}

/// Answers a `HEAD` and keeps the connection.
pub(crate) fn write_head(mut stream: &TcpStream, status: u16) -> io::Result<()> {
    stream.write_all(format!("HTTP/1.1 {status} mock\r\ncontent-length: 0\r\n\r\n").as_bytes())
}

/// Whether the other end still holds the connection open.
pub(crate) fn peer_is_there(stream: &TcpStream) -> bool {
    let mut byte = [0];
    if stream.set_read_timeout(Some(Duration::from_millis(1))).is_err() {
        return false;
    }
    match stream.peek(&mut byte) {
        Ok(received) => received > 0,
        Err(error) => matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
    }
}

/// A response stream being written.
#[derive(Debug)]
pub(crate) struct EventStream<'a> {
    stream: &'a TcpStream,
    buffer: Vec<u8>,
}

impl<'a> EventStream<'a> {
    /// Sends the HTTP header. The stream ends with the connection.
    pub(crate) fn begin(stream: &'a TcpStream) -> io::Result<Self> {
        let mut header = stream;
        header.write_all(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\n\
              connection: close\r\n\r\n",
        )?;
        Ok(Self { stream, buffer: Vec::new() })
    }

    /// Appends an event; it leaves with the next [`flush`](Self::flush) or a full batch.
    pub(crate) fn event(&mut self, kind: &str, mut payload: Value) -> io::Result<()> {
        payload["type"] = json!(kind);
        write!(self.buffer, "event: {kind}\ndata: {payload}\n\n")?;
        if self.buffer.len() >= EVENT_BATCH_BYTES { self.flush() } else { Ok(()) }
    }

    /// A comment, which clients skip; tells whether they are still there.
    pub(crate) fn keep_alive(&mut self) -> io::Result<()> {
        self.buffer.extend_from_slice(b": keepalive\n\n");
        self.flush()
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }

    pub(crate) fn connection(&self) -> &'a TcpStream {
        self.stream
    }
}
