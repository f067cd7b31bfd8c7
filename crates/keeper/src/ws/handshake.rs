//! The HTTP upgrade, client side.

use thiserror::Error;

use crate::sha1::sha1;

const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Longest answer to the upgrade; a longer one fails the handshake.
const RESPONSE_LIMIT: usize = 16 * 1024;

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum HandshakeError {
    #[error("the answer is longer than {RESPONSE_LIMIT} bytes")]
    TooLong,
    #[error("the answer is no HTTP")]
    NotHttp,
    #[error("the upgrade was answered with status {0}")]
    Status(u16),
    #[error("the answer does not accept this upgrade")]
    NotAccepted,
    #[error("an extension or subprotocol was chosen that was not offered")]
    NotOffered,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum HandshakeProgress {
    NeedsMore,
    /// The connection is open; these bytes came behind the answer already.
    Done {
        rest: Vec<u8>,
    },
}

#[derive(Debug)]
pub(crate) struct Handshake {
    key: String,
    received: Vec<u8>,
}

impl Handshake {
    pub(crate) fn new(nonce: [u8; 16]) -> Self {
        Self { key: base64(&nonce), received: Vec::new() }
    }

    pub(crate) fn request(&self) -> Vec<u8> {
        format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {}\r\nSec-WebSocket-Version: 13\r\n\r\n",
            self.key
        )
        .into_bytes()
    }

    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<HandshakeProgress, HandshakeError> {
        self.received.extend_from_slice(bytes);
        let end = self.received.windows(4).position(|window| window == b"\r\n\r\n");
        let Some(end) = end else {
            return if self.received.len() > RESPONSE_LIMIT {
                Err(HandshakeError::TooLong)
            } else {
                Ok(HandshakeProgress::NeedsMore)
            };
        };
        let rest = self.received.split_off(end + 4);
        self.check_response()?;
        Ok(HandshakeProgress::Done { rest })
    }

    fn check_response(&self) -> Result<(), HandshakeError> {
        let text = std::str::from_utf8(&self.received).map_err(|_| HandshakeError::NotHttp)?;
        let mut lines = text.split("\r\n");
        let status = lines
            .next()
            .filter(|line| line.starts_with("HTTP/1.1 "))
            .and_then(|line| line.get(9..12))
            .and_then(|status| status.parse::<u16>().ok())
            .ok_or(HandshakeError::NotHttp)?;
        if status != 101 {
            return Err(HandshakeError::Status(status));
        }
        let headers: Vec<(&str, &str)> =
            lines.filter_map(|line| line.split_once(':')).map(|(name, value)| (name, value.trim())).collect();
        let find = |wanted: &str| {
            headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| *value)
        };
        if find("sec-websocket-extensions").is_some() || find("sec-websocket-protocol").is_some() {
            return Err(HandshakeError::NotOffered);
        }
        let is_upgrade = find("upgrade").is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
            && find("connection").is_some_and(|value| {
                value.split(',').any(|option| option.trim().eq_ignore_ascii_case("upgrade"))
            });
        let expected = expected_accept(&self.key);
        if is_upgrade && find("sec-websocket-accept") == Some(expected.as_str()) {
            Ok(())
        } else {
            Err(HandshakeError::NotAccepted)
        }
    }
}

fn expected_accept(key: &str) -> String {
    base64(&sha1(&[key.as_bytes(), ACCEPT_GUID].concat()))
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_usize, |value, &byte| (value << 8) | usize::from(byte))
            << (8 * (3 - chunk.len()));
        for index in 0..4 {
            let digit = ALPHABET.get((group >> (18 - 6 * index)) & 63).copied().unwrap_or(b'=');
            text.push(char::from(if index <= chunk.len() { digit } else { b'=' }));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        assert_eq!(expected_accept("dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn base64_pads() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    fn answer(handshake: &Handshake, status: &str, extra: &str) -> Vec<u8> {
        format!(
            "HTTP/1.1 {status} X\r\nupgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\n{extra}\r\n",
            expected_accept(&handshake.key)
        )
        .into_bytes()
    }

    #[test]
    fn an_answer_in_pieces_is_accepted_and_what_follows_is_kept() {
        let mut handshake = Handshake::new([3; 16]);
        let mut bytes = answer(&handshake, "101", "");
        bytes.extend_from_slice(b"\x81\x01x");
        let (last, first) = bytes.split_last().expect("not empty");
        for byte in &first[..first.len() - 2] {
            assert_eq!(handshake.feed(&[*byte]), Ok(HandshakeProgress::NeedsMore));
            if handshake.received.ends_with(b"\r\n\r") {
                break;
            }
        }
        let rest = &bytes[handshake.received.len()..];
        assert_eq!(handshake.feed(rest), Ok(HandshakeProgress::Done { rest: b"\x81\x01x".to_vec() }));
        assert_eq!(*last, b'x');
    }

    #[test]
    fn other_answers_are_refused() {
        let refused = |status: &str, extra: &str| {
            let mut handshake = Handshake::new([3; 16]);
            let bytes = answer(&handshake, status, extra);
            handshake.feed(&bytes).expect_err("refused")
        };
        assert_eq!(refused("403", ""), HandshakeError::Status(403));
        assert_eq!(
            refused("101", "Sec-WebSocket-Extensions: permessage-deflate\r\n"),
            HandshakeError::NotOffered
        );
        let mut handshake = Handshake::new([3; 16]);
        let other = answer(&Handshake::new([4; 16]), "101", "");
        assert_eq!(handshake.feed(&other), Err(HandshakeError::NotAccepted));
        assert_eq!(Handshake::new([0; 16]).feed(b"hello\r\n\r\n"), Err(HandshakeError::NotHttp));
        assert_eq!(Handshake::new([0; 16]).feed(&[b'x'; RESPONSE_LIMIT + 1]), Err(HandshakeError::TooLong));
    }
}
