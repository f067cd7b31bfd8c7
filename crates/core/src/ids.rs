//! Identifiers. Identity is an id, never a text, an order or a pid; each kind has its own type so that two kinds
//! cannot be mixed up.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest identifier accepted from outside, in bytes. Longer ones are refused (`invalid_id`): ids stand in
/// indexes, paths and headers.
pub const MAX_ID_BYTES: usize = 128;

/// Why a text is not an identifier.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    /// The text is empty.
    #[error("an id must not be empty")]
    Empty,
    /// The text is longer than [`MAX_ID_BYTES`].
    #[error("an id has at most {MAX_ID_BYTES} bytes, this one has {0}")]
    TooLong(usize),
    /// A character outside `A-Z a-z 0-9 . _ : -` stands in it.
    #[error("an id consists of A-Z a-z 0-9 . _ : - only; found {0:?}")]
    Character(char),
    /// It begins with a dot, which would make it a hidden file or a path step.
    #[error("an id must not begin with a dot")]
    LeadingDot,
}

fn check(text: &str) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty);
    }
    if text.len() > MAX_ID_BYTES {
        return Err(InvalidId::TooLong(text.len()));
    }
    if text.starts_with('.') {
        return Err(InvalidId::LeadingDot);
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | ':' | '-'))) {
        Some(bad) => Err(InvalidId::Character(bad)),
        None => Ok(()),
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl $name {
            /// Checks a text from outside.
            ///
            /// # Errors
            /// [`InvalidId`] says what is wrong with it.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                check(text)?;
                Ok(Self(text.to_owned()))
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
    };
}

id!(
    /// A session: ours, unique for ever.
    SessionId
);
id!(
    /// A user message handed to a session: ours or the caller's, unique for ever.
    SubmissionId
);
id!(
    /// A request of the agent (approval, question): ours, unique for ever.
    RequestId
);
id!(
    /// One unit of agent work within its session (`t1`, `t2`, …).
    TurnId
);
id!(
    /// One item of the timeline within its session (`i1`, `i2`, …).
    ItemId
);
id!(
    /// One life of one agent process: the name of its keeper's folder.
    ProcessToken
);
id!(
    /// The provider's own conversation id. Opaque.
    ThreadId
);
id!(
    /// The provider's own turn id, or one that the adapter makes where the protocol has none. Opaque.
    ProviderTurn
);
id!(
    /// The provider's stable identity of an item, or one that the adapter makes where the protocol has none. Opaque.
    ItemKey
);
impl ItemKey {
    /// The key of the item that shows a message of ours before the agent proved that it has it. An adapter may begin
    /// such an item, so that the message stands before what the agent answers; the proof completes it.
    #[must_use]
    pub fn of_message(submission: &SubmissionId) -> Self {
        Self(format!("message:{submission}"))
    }
}

id!(
    /// The provider's identity of a request, within one connection of one process. Opaque.
    RequestKey
);
id!(
    /// One background task within its session (`k1`, `k2`, …).
    TaskId
);
id!(
    /// The provider's own id of a background task. Opaque.
    TaskKey
);
id!(
    /// One thing asked of the agent beside messages, within its session (`c1`, `c2`, …).
    ControlId
);
id!(
    /// A client's idempotency key.
    OperationKey
);
id!(
    /// A registered kind of agent: `codex`, `demo`, a configured name.
    AgentName
);
id!(
    /// The host, as written into manifests and launch snapshots.
    HostId
);

/// Who may write: grows with every won acquisition, and makes older writers harmless.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl Fence {
    /// The fence of the next acquisition.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A position in a session's journal. `seq` is dense from 1 in each epoch.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema,
)]
pub struct Cursor {
    /// The journal's epoch; grows when the journal was rewound or lost.
    pub epoch: u64,
    /// The last event seen, 0 for none.
    pub seq: u64,
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.epoch, self.seq)
    }
}

/// A text that is no cursor (`epoch:seq`, both whole numbers).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a cursor has the form epoch:seq, for example 1:42; got {0:?}")]
pub struct InvalidCursor(pub String);

impl std::str::FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let bad = || InvalidCursor(text.chars().take(64).collect());
        let (epoch, seq) = text.split_once(':').ok_or_else(bad)?;
        let number = |part: &str| {
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return Err(bad());
            }
            part.parse::<u64>().map_err(|_| bad())
        };
        Ok(Self { epoch: number(epoch)?, seq: number(seq)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_from_outside_are_checked() {
        assert_eq!(SessionId::parse(""), Err(InvalidId::Empty));
        assert_eq!(SessionId::parse("../x"), Err(InvalidId::LeadingDot));
        assert_eq!(SessionId::parse("a/b"), Err(InvalidId::Character('/')));
        assert_eq!(SessionId::parse(&"a".repeat(129)), Err(InvalidId::TooLong(129)));
        assert!(SessionId::parse("ses_01-x.y:z").is_ok());
    }

    #[test]
    fn cursors_round_trip_and_refuse_nonsense() {
        let cursor = Cursor { epoch: 2, seq: 17 };
        assert_eq!(cursor.to_string().parse::<Cursor>(), Ok(cursor));
        for bad in ["", "1", "1:", ":1", "a:1", "1:-1", "1:2:3", "+1:2", "1: 2", "99999999999999999999:1"] {
            assert!(bad.parse::<Cursor>().is_err(), "{bad} was taken");
        }
    }
}
