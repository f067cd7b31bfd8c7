//! A session as one file: written by [`Export`], read and checked by [`verify`] and [`Host::import`](crate::Host::import).
//!
//! The file is text, one JSON object a line: a header, the journal's events exactly as they are stored and served, and at
//! the end a line with their number, the journal's head and the SHA-256 of everything before that line. The same journal
//! always gives the same bytes. A file without its last line is not whole, whatever it was cut by.

mod export;
mod import;
mod read;

pub use export::Export;
pub(crate) use import::drop_staged;
pub use import::{ImportError, ImportRequest, Spooled};
pub use read::{FileError, Verified, verify};

use mainstay_core::{AgentName, SessionId};
use serde::{Deserialize, Serialize};

/// What the header calls the format.
pub const FORMAT: &str = "mainstay-session";
/// The version that is written. A file of a greater one is refused: what it says may mean something else.
pub const VERSION: u32 = 1;
/// The media type.
pub const MEDIA_TYPE: &str = "application/x-ndjson";
/// Bytes of one line. No stored event is larger (a single write of the store is bounded by as much), so a longer line is
/// damage; it is refused before it is in memory.
pub const MAX_LINE_BYTES: usize = mainstay_store::MAX_QUEUED_BYTES;

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub format: String,
    /// Of the format.
    pub version: u32,
    /// The session's id where the file was made.
    pub session: SessionId,
    /// Its agent.
    pub agent: AgentName,
    /// When it was made, Unix ms.
    pub created_at: i64,
    /// Where its journal stands: `epoch:seq`.
    pub head: String,
}

/// The last line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Trailer {
    end: End,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct End {
    /// Lines between the first and this one.
    rows: u64,
    /// As in the header.
    head: String,
    /// `sha256:` and lower-case hex, of every byte before this line.
    digest: String,
}
