//! Everything that leaves towards the client: whole messages, one writer at a time.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{Data, OpCode};
use tungstenite::{Message, WebSocket};

/// Where messages go.
#[derive(Debug)]
pub(crate) struct Output {
    sink: Mutex<Sink>,
    /// Lines end with a carriage return.
    pub(crate) crlf: AtomicBool,
}

#[derive(Debug)]
enum Sink {
    Stdio,
    /// The connection that is open, if one is; what is said without one is said to nobody.
    Socket(Option<Box<WebSocket<UnixStream>>>),
}

impl Output {
    pub(crate) const fn stdio() -> Self {
        Self { sink: Mutex::new(Sink::Stdio), crlf: AtomicBool::new(false) }
    }

    pub(crate) const fn socket() -> Self {
        Self { sink: Mutex::new(Sink::Socket(None)), crlf: AtomicBool::new(false) }
    }

    fn sink(&self) -> MutexGuard<'_, Sink> {
        self.sink.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Messages go to this connection from now on.
    pub(crate) fn connect(&self, connection: WebSocket<UnixStream>) {
        *self.sink() = Sink::Socket(Some(Box::new(connection)));
    }

    pub(crate) fn frame(&self, message: &Value) -> io::Result<()> {
        self.message(message.to_string().as_bytes())
    }

    /// A message of any bytes.
    pub(crate) fn message(&self, bytes: &[u8]) -> io::Result<()> {
        let mut sink = self.sink();
        let Sink::Socket(connection) = &mut *sink else {
            let mut line = bytes.to_vec();
            line.extend_from_slice(if self.crlf.load(Ordering::SeqCst) { b"\r\n" } else { b"\n" });
            return write_out(&line);
        };
        let Some(open) = connection else { return Ok(()) };
        let frame = Frame::message(bytes.to_vec(), OpCode::Data(Data::Text), true);
        if open.send(Message::Frame(frame)).is_err() {
            // The client left; it may come back.
            *connection = None;
        }
        Ok(())
    }

    /// A part of a line.
    pub(crate) fn part(&self, bytes: &[u8]) -> io::Result<()> {
        let sink = self.sink();
        match &*sink {
            Sink::Stdio => write_out(bytes),
            Sink::Socket(_) => Err(io::Error::other("a socket has no lines to write parts of")),
        }
    }

    /// Ends the connection without a word.
    pub(crate) fn close(&self) -> io::Result<()> {
        let mut sink = self.sink();
        match &mut *sink {
            Sink::Stdio => Err(io::Error::other("only an app-server has a connection to close")),
            Sink::Socket(connection) => match connection.take() {
                Some(open) => open.get_ref().shutdown(std::net::Shutdown::Both),
                None => Ok(()),
            },
        }
    }
}

fn write_out(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}
