//! The line to one keeper: a socket, a task that reads and one that writes. The data itself is read from the spool; only
//! bells, acknowledgements, inputs and orders go over the socket.

use mainstay_keeper::RefusedWhy;
use mainstay_keeper::folder::KeeperFolder;
use mainstay_keeper::wire::{Decoder, Message, RejectedWhy, Status, ToHost, ToKeeper};
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Messages to a keeper that may wait here. At the limit the lane keeps further ones itself and goes on when
/// acknowledgements come; the bound keeps a stopped keeper from costing the host more than these.
const TO_KEEPER: usize = 256;
/// Orders and stops that may wait; they overtake the others. At the limit the oldest are already on their way to a
/// keeper that does not read, and one more changes nothing: it is dropped and the caller told.
const URGENT_TO_KEEPER: usize = 64;
/// Messages from a keeper that may wait for the lane. At the limit the socket is not read: the keeper coalesces its
/// bells and never blocks on us.
const FROM_KEEPER: usize = 256;

/// What a keeper tells the lane.
#[derive(Debug)]
pub enum LinkEvent {
    Status(Box<Status>),
    Recorded {
        n: u64,
    },
    Written,
    /// An answer to a ping.
    Alive,
    /// The keeper did not take an input over: it is sent again when there is room.
    NotTaken {
        n: u64,
    },
    Doorbell,
    Rejected {
        why: RejectedWhy,
    },
    Closed,
}

/// An open line.
#[derive(Debug)]
pub struct Link {
    pub(crate) events: mpsc::Receiver<LinkEvent>,
    messages: mpsc::Sender<ToKeeper>,
    urgent: mpsc::Sender<ToKeeper>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl Link {
    /// Connects and says hello; the keeper's answer comes as an event.
    pub(crate) fn open(folder: &KeeperFolder, hello: ToKeeper) -> io::Result<Self> {
        let socket = mainstay_keeper::link::connect_socket(folder)?;
        socket.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(socket)?.into_split();
        let (mut link, far) = Self::pair();
        let reader = tokio::spawn(read_events(read, far.events));
        let writer = tokio::spawn(write_messages(write, hello, far.messages, far.urgent));
        link.tasks = vec![reader, writer];
        Ok(link)
    }

    /// A line and its far end, without a socket between them.
    #[must_use]
    pub fn pair() -> (Self, FarEnd) {
        let (event_sender, events) = mpsc::channel(FROM_KEEPER);
        let (messages, message_queue) = mpsc::channel(TO_KEEPER);
        let (urgent, urgent_queue) = mpsc::channel(URGENT_TO_KEEPER);
        let far = FarEnd { events: event_sender, messages: message_queue, urgent: urgent_queue };
        (Self { events, messages, urgent, tasks: Vec::new() }, far)
    }

    /// Hands a message to the writer; gives it back where the queue is full or the line is closed.
    pub(crate) fn send(&self, message: ToKeeper) -> Result<(), ToKeeper> {
        self.messages.try_send(message).map_err(mpsc::error::TrySendError::into_inner)
    }

    /// Hands an order or a stop to the writer; it overtakes what waits.
    pub fn send_urgent(&self, message: ToKeeper) -> bool {
        self.urgent.try_send(message).is_ok()
    }
}

/// What the other side of a line holds.
#[derive(Debug)]
pub struct FarEnd {
    /// Towards the lane.
    pub events: mpsc::Sender<LinkEvent>,
    /// From the lane, in order.
    pub messages: mpsc::Receiver<ToKeeper>,
    /// From the lane, before all others.
    pub urgent: mpsc::Receiver<ToKeeper>,
}

async fn read_events(mut read: OwnedReadHalf, events: mpsc::Sender<LinkEvent>) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 16 * 1024];
    'reading: loop {
        let count = match read.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(count) => count,
        };
        decoder.feed(&buffer[..count]);
        let mut bell = false;
        loop {
            let event = match decoder.next_message::<ToHost>() {
                Ok(Some(ToHost::Status(status))) => LinkEvent::Status(status),
                Ok(Some(ToHost::Recorded { n })) => LinkEvent::Recorded { n },
                Ok(Some(ToHost::Written { .. })) => LinkEvent::Written,
                Ok(Some(ToHost::Rejected { why })) => LinkEvent::Rejected { why },
                Ok(Some(ToHost::Pong)) => LinkEvent::Alive,
                Ok(Some(ToHost::Refused {
                    n,
                    why: RefusedWhy::InboxFull | RefusedWhy::Gap { .. } | RefusedWhy::StateNotRecorded { .. },
                })) => LinkEvent::NotTaken { n },
                // Any other refused input and the exit stand in the spool as records: the bell is enough.
                Ok(Some(ToHost::Doorbell { .. } | ToHost::Refused { .. } | ToHost::Exited { .. })) => {
                    bell = true;
                    continue;
                }
                Ok(Some(
                    ToHost::UrgentWritten { .. } | ToHost::UrgentRefused { .. } | ToHost::Unknown { .. },
                )) => continue,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "a keeper said something that is not understood; the line is closed");
                    break 'reading;
                }
            };
            if events.send(event).await.is_err() {
                return;
            }
        }
        if bell && events.send(LinkEvent::Doorbell).await.is_err() {
            return;
        }
    }
    // The lane may be gone already; then nobody needs to know.
    let _told = events.send(LinkEvent::Closed).await;
}

async fn write_messages(
    mut write: OwnedWriteHalf,
    hello: ToKeeper,
    mut messages: mpsc::Receiver<ToKeeper>,
    mut urgent: mpsc::Receiver<ToKeeper>,
) {
    let mut buffer = Vec::new();
    hello.encode(&mut buffer);
    loop {
        if write.write_all(&buffer).await.is_err() {
            return;
        }
        buffer.clear();
        let message = tokio::select! {
            biased;
            Some(message) = urgent.recv() => message,
            Some(message) = messages.recv() => message,
            else => return,
        };
        message.encode(&mut buffer);
    }
}
