//! From SQLite's codes to our typed errors: decided here only, and by code, never by message.

use rusqlite::ErrorCode;

use crate::error::{Conflict, ReadError, WriteError};

/// Why one lane write could not be applied.
pub(super) enum ApplyError {
    /// This write is refused; the transaction and its other writes are fine.
    Refused(WriteError),
    /// The database failed: nothing can be assumed about the transaction.
    Database(WriteError),
}

impl From<WriteError> for ApplyError {
    fn from(error: WriteError) -> Self {
        Self::Refused(error)
    }
}

impl From<Conflict> for ApplyError {
    fn from(conflict: Conflict) -> Self {
        Self::Refused(WriteError::Conflict(conflict))
    }
}

impl From<rusqlite::Error> for ApplyError {
    fn from(error: rusqlite::Error) -> Self {
        match &error {
            rusqlite::Error::SqliteFailure(failure, detail)
                if failure.code == ErrorCode::ConstraintViolation =>
            {
                let detail = detail.clone().unwrap_or_else(|| failure.to_string());
                Conflict::Constraint { detail }.into()
            }
            // A number or a body that the database cannot hold: the fault of this write alone.
            rusqlite::Error::ToSqlConversionFailure(_) => {
                WriteError::Invalid { detail: error.to_string() }.into()
            }
            rusqlite::Error::SqliteFailure(failure, _) if failure.code == ErrorCode::TooBig => {
                WriteError::Invalid { detail: error.to_string() }.into()
            }
            _ => Self::Database(write_error(&error)),
        }
    }
}

pub(super) fn write_error(error: &rusqlite::Error) -> WriteError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => WriteError::DiskFull,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            WriteError::Corrupt { detail: describe(error) }
        }
        Some(ErrorCode::ReadOnly) => WriteError::ReadOnly { why: describe(error) },
        None if is_unreadable_value(error) => WriteError::Corrupt { detail: describe(error) },
        _ => WriteError::Io { detail: describe(error) },
    }
}

pub(super) fn read_error(error: &rusqlite::Error) -> ReadError {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            ReadError::Corrupt { detail: describe(error) }
        }
        None if is_unreadable_value(error) => ReadError::Corrupt { detail: describe(error) },
        _ => ReadError::Io { detail: describe(error) },
    }
}

/// True for errors that say the file itself is damaged.
pub(super) fn is_damage(error: &rusqlite::Error) -> bool {
    matches!(read_error(error), ReadError::Corrupt { .. })
}

/// A stored value of a type or range that the schema never had.
fn is_unreadable_value(error: &rusqlite::Error) -> bool {
    matches!(
        error,
        rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::Utf8Error(..)
    )
}

fn describe(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(failure, detail) => {
            let detail = detail.as_deref().unwrap_or("no detail");
            format!("{detail} (SQLite code {})", failure.extended_code)
        }
        other => other.to_string(),
    }
}
