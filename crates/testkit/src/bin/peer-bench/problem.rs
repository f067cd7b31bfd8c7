//! Why a figure could not be taken.

use std::io;
use std::time::Duration;

use mainstay_testkit::http::Response;

/// Shown in the report beside the row that has no figure.
const SHOWN_BYTES: usize = 160;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Problem {
    /// Not a fault: the host has no such thing.
    #[error("{0}")]
    Unsupported(&'static str),
    #[error("not installed: {0}")]
    NotInstalled(String),
    #[error("{what}")]
    Io { what: &'static str, source: io::Error },
    #[error("{what}: answered {status} {body}")]
    Refused { what: &'static str, status: u16, body: String },
    #[error("{what}: not within {limit:?}")]
    Late { what: &'static str, limit: Duration },
    #[error("{what}: {answer}")]
    Unexpected { what: &'static str, answer: String },
}

impl Problem {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { what, source }
    }

    /// The error and what caused it, on one line and not too long.
    pub(crate) fn line(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(&format!(": {error}"));
            cause = error.source();
        }
        shortened(&text)
    }
}

/// One line of at most [`SHOWN_BYTES`] bytes or so.
pub(crate) fn shortened(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN_BYTES).collect();
    if line.len() < text.len() { format!("{line}…") } else { line }
}

/// The answer, if its status says that it went well.
pub(crate) fn accepted(what: &'static str, response: io::Result<Response>) -> Result<Response, Problem> {
    let response = response.map_err(Problem::io(what))?;
    if (200..300).contains(&response.status) {
        return Ok(response);
    }
    Err(Problem::Refused { what, status: response.status, body: shortened(&response.text()) })
}
