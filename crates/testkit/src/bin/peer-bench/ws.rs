//! A WebSocket client that waits no longer than it is told.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use mainstay_testkit::http::Addr;
use tungstenite::client::IntoClientRequest;
use tungstenite::http::HeaderValue;
use tungstenite::protocol::{Message, WebSocket, WebSocketConfig};

use crate::feed::{Feed, ReadLine, Seen};
use crate::problem::Problem;

/// Longest message taken: an answer may hold a whole conversation.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// How long a connection may take to be made, on a busy machine.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Ws(WebSocket<TcpStream>);

impl Ws {
    /// Connects to a port of loopback; `protocols` are offered as sub-protocols.
    pub(crate) fn connect(port: u16, path: &str, protocols: &str) -> Result<Self, Problem> {
        let failed = |error: tungstenite::Error| Problem::Io {
            what: "a WebSocket",
            source: io::Error::other(error.to_string()),
        };
        let Addr::Tcp(address) = Addr::Tcp(([127, 0, 0, 1], port).into()) else {
            return Err(Problem::Unsupported("no address"));
        };
        let mut request = format!("ws://{address}{path}").into_client_request().map_err(failed)?;
        if let Ok(value) = HeaderValue::from_str(protocols)
            && !protocols.is_empty()
        {
            request.headers_mut().insert("sec-websocket-protocol", value);
        }
        let stream = TcpStream::connect(address).map_err(Problem::io("a WebSocket"))?;
        stream.set_nodelay(true).map_err(Problem::io("a WebSocket"))?;
        stream.set_read_timeout(Some(CONNECT_WITHIN)).map_err(Problem::io("a WebSocket"))?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        match tungstenite::client::client_with_config(request, stream, Some(config)) {
            Ok((socket, _)) => Ok(Self(socket)),
            Err(error) => {
                Err(Problem::Io { what: "a WebSocket", source: io::Error::other(error.to_string()) })
            }
        }
    }

    pub(crate) fn send(&mut self, text: String) -> Result<(), Problem> {
        let sent = self.0.send(Message::text(text));
        sent.map_err(|error| Problem::Io { what: "a WebSocket", source: io::Error::other(error.to_string()) })
    }

    /// The next text; `Ok(None)` when `limit` passes first.
    pub(crate) fn next(&mut self, limit: Duration) -> Result<Option<String>, Problem> {
        let limit = Some(limit.max(Duration::from_millis(1)));
        self.0.get_ref().set_read_timeout(limit).map_err(Problem::io("a WebSocket"))?;
        match self.0.read() {
            Ok(Message::Text(text)) => Ok(Some(text.as_str().to_owned())),
            Ok(Message::Close(_)) => Err(Problem::Unsupported("the stream was closed")),
            Ok(_) => Ok(None),
            Err(tungstenite::Error::Io(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Ok(None)
            }
            Err(error) => {
                Err(Problem::Io { what: "a WebSocket", source: io::Error::other(error.to_string()) })
            }
        }
    }

    /// Texts until one that `wanted` takes.
    pub(crate) fn until(
        &mut self,
        what: &'static str,
        limit: Duration,
        mut wanted: impl FnMut(&str) -> bool,
    ) -> Result<String, Problem> {
        let give_up = Instant::now() + limit;
        loop {
            let left = give_up.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Problem::Late { what, limit });
            }
            if let Some(text) = self.next(left)?
                && wanted(&text)
            {
                return Ok(text);
            }
        }
    }
}

/// A stream of texts.
pub(crate) struct Texts {
    pub(crate) ws: Ws,
    pub(crate) read: ReadLine,
}

impl Feed for Texts {
    fn pull(&mut self, limit: Duration, seen: &mut Seen) {
        let mut limit = limit;
        // All that is there already, so that a look at the counts does not cost as much as a frame.
        for _ in 0..256 {
            match self.ws.next(limit) {
                Ok(Some(text)) => {
                    seen.bytes += text.len() as u64;
                    (self.read)(&text, seen);
                }
                Ok(None) => return,
                Err(_) => {
                    seen.over = true;
                    return;
                }
            }
            limit = Duration::from_millis(1);
        }
    }
}
