//! Reading server-sent events.

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SseEvent {
    /// Its id; markers have none.
    pub(crate) id: Option<String>,
    /// Its type.
    pub(crate) event: String,
    /// Its data.
    pub(crate) data: String,
}

/// The longest single event that is read, in bytes. A longer one is an error of the host.
const MAX_EVENT_BYTES: usize = 64 * 1024 * 1024;

/// An event longer than [`MAX_EVENT_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream has an event of more than {MAX_EVENT_BYTES} bytes")]
pub(crate) struct TooLong;

/// Takes bytes as they come and gives whole events. Understands what our host sends: `\n` line ends.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    buffer: Vec<u8>,
    /// Where the not yet parsed part begins.
    begin: usize,
    /// Where the search for the end of the event goes on.
    searched: usize,
}

impl Parser {
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.begin > 0 {
            self.buffer.drain(..self.begin);
            self.searched -= self.begin;
            self.begin = 0;
        }
        if self.buffer.len() + bytes.len() > MAX_EVENT_BYTES && self.buffer.len() > MAX_EVENT_BYTES / 2 {
            return Err(TooLong);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Option<SseEvent> {
        loop {
            let from = self.searched.max(self.begin);
            let Some(found) = self.buffer.get(from..)?.windows(2).position(|pair| pair == b"\n\n") else {
                // The first of the two line feeds may be the last byte here.
                self.searched = self.buffer.len().saturating_sub(1).max(self.begin);
                return None;
            };
            let end = from + found;
            let event = parse(&String::from_utf8_lossy(&self.buffer[self.begin..end]));
            self.begin = end + 2;
            self.searched = self.begin;
            if event.is_some() {
                return event;
            }
        }
    }
}

fn parse(block: &str) -> Option<SseEvent> {
    let (mut id, mut kind, mut data) = (None, None, None::<String>);
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "id" => id = Some(value.to_owned()),
            "event" => kind = Some(value.to_owned()),
            "data" => match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            },
            _ => {}
        }
    }
    Some(SseEvent { id, event: kind.unwrap_or_else(|| "message".to_owned()), data: data? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_whole_however_the_bytes_are_cut() {
        let stream = b"id: 1:1\nevent: notice\ndata: {\"a\":1}\n\nevent: caught_up\ndata: {}\n\n: comment\n\nid: 1:2\ndata: x\ndata: y\n\n";
        for size in 1..stream.len() {
            let mut parser = Parser::default();
            let mut events = Vec::new();
            for part in stream.chunks(size) {
                parser.push(part).expect("short");
                while let Some(event) = parser.next() {
                    events.push(event);
                }
            }
            assert_eq!(events.len(), 3, "{events:?}");
            assert_eq!((events[0].id.as_deref(), events[0].event.as_str()), (Some("1:1"), "notice"));
            assert_eq!((events[1].id.as_deref(), events[1].data.as_str()), (None, "{}"));
            assert_eq!(events[2].data, "x\ny");
        }
    }
}
