use std::io::{self, Read, Write};

use proptest::prelude::*;
use tungstenite::protocol::{Role, WebSocket, WebSocketConfig};

use super::*;
use crate::record::OVERSIZE_HEAD;

/// An in-memory stream: reads from `input`, writes to `output`.
#[derive(Default)]
struct Memory {
    input: io::Cursor<Vec<u8>>,
    output: Vec<u8>,
}

impl Read for Memory {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.input.read(buffer)? {
            0 => Err(io::ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.output.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn server(input: Vec<u8>) -> WebSocket<Memory> {
    let memory = Memory { input: io::Cursor::new(input), output: Vec::new() };
    WebSocket::from_raw_socket(memory, Role::Server, None::<WebSocketConfig>)
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Message(Vec<u8>),
    Oversize(u64, Vec<u8>),
    Ping(Vec<u8>),
    Pong,
    Close(Option<u16>, String),
}

fn decode(decoder: &mut Decoder, bytes: &[u8], piece: usize) -> Result<Vec<Seen>, ProtocolError> {
    let mut seen = Vec::new();
    for part in bytes.chunks(piece) {
        decoder.feed(part, &mut |event| {
            seen.push(match event {
                Event::Message(payload) => Seen::Message(payload.to_vec()),
                Event::Oversize { length, head } => Seen::Oversize(length, head.to_vec()),
                Event::Ping(payload) => Seen::Ping(payload.to_vec()),
                Event::Pong => Seen::Pong,
                Event::Close { code, text } => Seen::Close(code, text),
            });
        })?;
    }
    Ok(seen)
}

/// A server's frame, made by hand so that fragments and mistakes are possible.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match payload.len() {
        short @ 0..=125 => bytes.push(u8::try_from(short).expect("short")),
        middle @ 126..=0xffff => {
            bytes.push(126);
            bytes.extend_from_slice(&u16::try_from(middle).expect("middle").to_be_bytes());
        }
        long => {
            bytes.push(127);
            bytes.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    bytes
}

proptest! {
    #[test]
    fn tungstenite_understands_our_frames(
        texts in proptest::collection::vec(".{0,200}", 1..6), seed in any::<u64>(),
    ) {
        let mut encoder = Encoder::new(seed);
        let mut stream = Vec::new();
        for text in &texts {
            encoder.text(&mut stream, text.as_bytes());
        }
        encoder.close(&mut stream, close_code::NORMAL);
        let mut server = server(stream);
        for text in &texts {
            let message = server.read().expect("a message");
            prop_assert_eq!(message.to_text().expect("text"), text);
        }
        let closed = matches!(server.read().expect("close"), tungstenite::Message::Close(Some(frame))
            if u16::from(frame.code) == close_code::NORMAL);
        prop_assert!(closed);
    }

    #[test]
    fn we_understand_tungstenites_frames(
        texts in proptest::collection::vec(".{0,300}", 1..6), piece in 1_usize..40,
    ) {
        let mut server = server(Vec::new());
        for text in &texts {
            server.write(tungstenite::Message::text(text.clone())).expect("write");
            server.write(tungstenite::Message::Ping(text.as_bytes()[..text.len().min(20)].to_vec().into()))
                .expect("write");
        }
        server.flush().expect("flush");
        let stream = std::mem::take(&mut server.get_mut().output);
        let seen = decode(&mut Decoder::new(1 << 20), &stream, piece).expect("valid");
        let expected: Vec<Seen> = texts.iter().flat_map(|text| [
            Seen::Message(text.as_bytes().to_vec()),
            Seen::Ping(text.as_bytes()[..text.len().min(20)].to_vec()),
        ]).collect();
        prop_assert_eq!(seen, expected);
    }

    #[test]
    fn any_bytes_decode_to_events_or_a_typed_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let whole = decode(&mut Decoder::new(100), &bytes, usize::MAX);
        let pieces = decode(&mut Decoder::new(100), &bytes, 1);
        prop_assert_eq!(whole, pieces, "how the stream is cut must not matter");
    }
}

#[test]
fn all_length_forms_reach_tungstenite_and_come_back() {
    for length in [0, 1, 125, 126, 127, 65_535, 65_536, 200_000] {
        let payload = vec![b'y'; length];
        let mut stream = Vec::new();
        Encoder::new(1).text(&mut stream, &payload);
        assert_eq!(server(stream).read().expect("message").into_data(), payload);
        let seen = decode(&mut Decoder::new(1 << 20), &frame(0x81, &payload), 4096).expect("valid");
        assert_eq!(seen, [Seen::Message(payload)]);
    }
}

#[test]
fn fragments_with_a_ping_between_them_become_one_message() {
    let stream =
        [frame(0x01, b"one "), frame(0x89, b"alive?"), frame(0x00, b"and "), frame(0x80, b"two")].concat();
    for piece in [1, 3, stream.len()] {
        let seen = decode(&mut Decoder::new(1 << 20), &stream, piece).expect("valid");
        assert_eq!(seen, [Seen::Ping(b"alive?".to_vec()), Seen::Message(b"one and two".to_vec())]);
    }
}

#[test]
fn a_message_over_the_limit_keeps_its_length_and_a_bounded_head() {
    let payload: Vec<u8> = (0..=255).cycle().take(50_000).collect();
    let stream =
        [frame(0x01, &payload[..20_000]), frame(0x80, &payload[20_000..]), frame(0x81, b"next")].concat();
    for piece in [7, 4096, stream.len()] {
        let seen = decode(&mut Decoder::new(10_000), &stream, piece).expect("valid");
        let head = payload[..OVERSIZE_HEAD].to_vec();
        assert_eq!(seen, [Seen::Oversize(50_000, head), Seen::Message(b"next".to_vec())], "piece {piece}");
    }
}

#[test]
fn broken_rules_are_named() {
    let error = |bytes: &[u8]| decode(&mut Decoder::new(100), bytes, 1).expect_err("refused");
    assert_eq!(error(&frame(0xc1, b"x")), ProtocolError::ReservedBits);
    assert_eq!(error(&[0x81, 0x81]), ProtocolError::Masked);
    assert_eq!(error(&frame(0x83, b"x")), ProtocolError::UnknownOpcode(3));
    assert_eq!(error(&frame(0x80, b"x")), ProtocolError::LoneContinuation);
    assert_eq!(error(&[frame(0x01, b"a"), frame(0x81, b"b")].concat()), ProtocolError::InterruptedMessage);
    assert_eq!(error(&frame(0x09, b"x")), ProtocolError::BadControlFrame);
    assert_eq!(error(&frame(0x89, &[0; 126])), ProtocolError::BadControlFrame);
    assert_eq!(error(&[frame(0x88, b""), frame(0x81, b"x")].concat()), ProtocolError::AfterClose);
    assert_eq!(error(&[0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]), ProtocolError::BadLength);
}

#[test]
fn a_close_frame_says_why() {
    let stream = frame(0x88, &[&1011_u16.to_be_bytes()[..], b"overloaded"].concat());
    let seen = decode(&mut Decoder::new(100), &stream, 5).expect("valid");
    assert_eq!(seen, [Seen::Close(Some(1011), "overloaded".to_owned())]);
    assert_eq!(
        decode(&mut Decoder::new(100), &frame(0x88, b""), 5),
        Ok(vec![Seen::Close(None, String::new())])
    );
    assert_eq!(decode(&mut Decoder::new(100), &frame(0x8a, b"x"), 5), Ok(vec![Seen::Pong]));
}
