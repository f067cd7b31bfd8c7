//! Where a reply stream is written, and what makes it wait: the same for every protocol that the server speaks.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use super::gates::Passage;
use super::reply::Shared;
use super::script::Pace;
use super::wire::{EventStream, peer_is_there};

/// Between two keep-alive comments of a hanging stream.
const KEEP_ALIVE_EVERY: Duration = Duration::from_millis(200);

/// Why a stream stops before its last step.
pub(crate) enum Stop {
    Scripted,
    Abandoned,
    Io(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A reply stream that has begun.
pub(crate) struct Stage<'a> {
    pub(crate) events: EventStream<'a>,
    pub(crate) shared: &'a Shared,
}

impl<'a> Stage<'a> {
    pub(crate) fn begin(stream: &'a TcpStream, shared: &'a Shared) -> io::Result<Self> {
        Ok(Self { events: EventStream::begin(stream)?, shared })
    }

    pub(crate) fn keep_pace(&mut self, pace: &Pace) -> Result<(), Stop> {
        match pace {
            Pace::AtOnce => Ok(()),
            Pace::Every(time) => self.pause(*time),
            Pace::Gated(name) => self.stand_at(name, true),
        }
    }

    /// Everything before the gate is with the client before the stream stands still.
    pub(crate) fn stand_at(&mut self, name: &str, takes_permit: bool) -> Result<(), Stop> {
        self.events.flush()?;
        let connection = self.events.connection();
        match self.shared.gates.pass(name, takes_permit, || peer_is_there(connection)) {
            Passage::Passed => Ok(()),
            Passage::Abandoned => Err(Stop::Abandoned),
        }
    }

    pub(crate) fn pause(&mut self, time: Duration) -> Result<(), Stop> {
        self.events.flush()?;
        let connection = self.events.connection();
        match self.shared.gates.pause(time, || peer_is_there(connection)) {
            Passage::Passed => Ok(()),
            Passage::Abandoned => Err(Stop::Abandoned),
        }
    }

    pub(crate) fn hang(&mut self, time: Duration) -> Result<(), Stop> {
        let mut left = time;
        while !left.is_zero() {
            let slice = left.min(KEEP_ALIVE_EVERY);
            self.pause(slice)?;
            self.events.keep_alive()?;
            left -= slice;
        }
        Ok(())
    }
}
