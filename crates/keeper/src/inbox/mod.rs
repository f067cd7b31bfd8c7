//! Numbered inputs: each is taken over once, begun at most once, and written on the connection it was made for or
//! not at all.
//!
//! Three marks say how far the numbers have come, and stand in a small file so that they outlive the keeper:
//!
//! * *recorded*: taken over. The payload itself is only in the keeper's memory: if the keeper dies, what was not
//!   begun is lost here and provably undelivered, and the host still has it.
//! * *started*: the first byte may have been written (or it was refused for good).
//! * *written*: settled: written in full, or named by an `InputRefused` record in the spool.
//!
//! An urgent input overtakes others, so single numbers may be ahead of a mark; they are listed.

mod queue;
mod state;

pub(crate) use queue::{Inbox, Offer, Taken};
pub use state::{InboxState, InboxStateError, InputFate};

/// Payload bytes that wait to be written. Over it a numbered input is refused as `inbox_full` and not taken over:
/// the socket goes on being read, so that a stop never waits behind inputs.
pub const INBOX_LIMIT: usize = 64 << 20;
/// Inputs that wait to be written; it bounds every list of numbers. At the limit: as above.
pub const INBOX_COUNT_LIMIT: usize = 4096;
/// Numbers that may be ahead of a mark. An urgent input that would make one more waits in order instead.
pub const EARLY_LIMIT: usize = 32;
