//! Reading a response body, however it is framed, in pieces and with a deadline.

use std::io::{self, Read};
use std::time::Instant;

use super::{Head, Stream, invalid};

/// Bytes asked of the socket at once: enough that a fast event stream is not read in crumbs.
const READ_BYTES: usize = 256 << 10;

/// How the end of the body is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    /// So many bytes are still to come.
    Length(usize),
    /// Chunked; so many bytes of the current chunk are still to come.
    Chunk(usize),
    /// Chunked; between chunks.
    BetweenChunks,
    /// Until the server closes.
    UntilClosed,
    Over,
}

/// A body that is still being received.
#[derive(Debug)]
pub(super) struct Body {
    stream: Stream,
    /// Received and not yet taken apart.
    raw: Vec<u8>,
    framing: Framing,
}

impl Body {
    pub(super) fn new(stream: Stream, received: Vec<u8>, head: &Head, method: &str) -> io::Result<Self> {
        let chunked = head.header("transfer-encoding").is_some_and(|value| value.contains("chunked"));
        let framing = if method == "HEAD" || matches!(head.status, 204 | 304) {
            Framing::Over
        } else if chunked {
            Framing::BetweenChunks
        } else if let Some(length) = head.header("content-length") {
            Framing::Length(length.parse().map_err(|_| invalid("content-length is no number"))?)
        } else {
            Framing::UntilClosed
        };
        let mut body = Self { stream, raw: received, framing };
        if body.framing == Framing::Length(0) {
            body.framing = Framing::Over;
        }
        Ok(body)
    }

    pub(super) fn is_over(&self) -> bool {
        self.framing == Framing::Over
    }

    /// Appends what has arrived to `content`; waits for something if nothing has. May append nothing
    /// although the body is not over (half of a chunk header).
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] at `give_up_at`, after which reading can go on;
    /// [`io::ErrorKind::UnexpectedEof`] when the server closes early.
    pub(super) fn read_more(&mut self, content: &mut Vec<u8>, give_up_at: Instant) -> io::Result<()> {
        if self.decode(content)? || self.is_over() {
            return Ok(());
        }
        if read_some(&mut self.stream, &mut self.raw, give_up_at)? == 0 {
            if self.framing == Framing::UntilClosed {
                self.framing = Framing::Over;
                return Ok(());
            }
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "closed inside the body"));
        }
        self.decode(content)?;
        Ok(())
    }

    /// Takes apart what has been received; whether any content came of it.
    fn decode(&mut self, content: &mut Vec<u8>) -> io::Result<bool> {
        let length_before = content.len();
        let mut used = 0;
        loop {
            let available = &self.raw[used..];
            match self.framing {
                Framing::Over => break,
                Framing::UntilClosed => {
                    content.extend_from_slice(available);
                    used += available.len();
                    break;
                }
                Framing::Length(left) | Framing::Chunk(left) => {
                    let taken = left.min(available.len());
                    content.extend_from_slice(&available[..taken]);
                    used += taken;
                    let left = left - taken;
                    self.framing = match self.framing {
                        Framing::Length(_) if left == 0 => Framing::Over,
                        Framing::Length(_) => Framing::Length(left),
                        _ if left == 0 => Framing::BetweenChunks,
                        _ => Framing::Chunk(left),
                    };
                    if left > 0 || self.framing == Framing::Over {
                        break;
                    }
                }
                Framing::BetweenChunks => {
                    let Some((size, header)) = chunk_header(available)? else {
                        break;
                    };
                    used += header;
                    self.framing = if size == 0 { Framing::Over } else { Framing::Chunk(size) };
                }
            }
        }
        self.raw.drain(..used);
        Ok(content.len() > length_before)
    }
}

/// The size of the next chunk and the bytes its header takes, with the line end of the chunk before it;
/// `None` while the header is incomplete. Trailers are left unread: the connection is not used again.
fn chunk_header(raw: &[u8]) -> io::Result<Option<(usize, usize)>> {
    let skipped = if raw.starts_with(b"\r\n") { 2 } else { 0 };
    let Some(line_end) = raw[skipped..].windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let line = &raw[skipped..skipped + line_end];
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    let size = std::str::from_utf8(digits)
        .ok()
        .and_then(|digits| usize::from_str_radix(digits.trim(), 16).ok())
        .ok_or_else(|| invalid("a chunk size is no number"))?;
    Ok(Some((size, skipped + line_end + 2)))
}

/// One read from the socket, appended to `raw`; 0 means closed.
pub(super) fn read_some(stream: &mut Stream, raw: &mut Vec<u8>, give_up_at: Instant) -> io::Result<usize> {
    loop {
        let Some(left) = give_up_at.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
        else {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the deadline passed"));
        };
        stream.set_read_timeout(left)?;
        let length = raw.len();
        raw.resize(length + READ_BYTES, 0);
        let outcome = stream.read(&mut raw[length..]);
        raw.truncate(length + *outcome.as_ref().unwrap_or(&0));
        match outcome {
            Ok(received) => return Ok(received),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
}
