//! Reading a session's file: nothing of it is believed before all of it is checked.

use super::{FORMAT, Header, MAX_LINE_BYTES, Trailer, VERSION};
use mainstay_core::digest::TextDigest;
use mainstay_core::event::Event;
use mainstay_core::{Cursor, Session, Stamped};
use serde::Deserialize;
use std::io::{self, BufRead, Read};

/// Why a file is not taken. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Something else.
    #[error("this is no session's file: {why}")]
    NotASession {
        /// What was met in place of its header.
        why: String,
    },
    /// Written by a newer version.
    #[error(
        "the file has version {version} of the format, and this program understands {VERSION}; use a newer one"
    )]
    Newer {
        /// Its version.
        version: u32,
    },
    /// It ends before its last line.
    #[error("the file is not whole: it ends behind {rows} events, without its last line")]
    Truncated {
        /// What there was.
        rows: u64,
    },
    /// Its bytes are not those that were written.
    #[error("the file is damaged: {why}")]
    Damaged {
        /// How that shows.
        why: String,
    },
    /// A line that is no event of this version, or none that may stand there.
    #[error("line {line} of the file cannot be taken: {why}")]
    BadLine {
        /// Counted from 1.
        line: u64,
        /// Why.
        why: String,
    },
    /// It could not be read.
    #[error("the file cannot be read")]
    Read(#[source] io::Error),
}

/// What a checked file holds.
#[derive(Debug)]
pub struct Verified {
    /// Its first line.
    pub header: Header,
    /// The session, folded from all of its events.
    pub session: Session,
    /// Events.
    pub rows: u64,
    /// `sha256:` and lower-case hex, as its last line says.
    pub digest: String,
}

/// One event of a file, with the line it was read from.
#[derive(Debug)]
pub(super) struct FileRow<'a> {
    pub(super) stamped: &'a Stamped,
    /// Without the line's end.
    pub(super) line: &'a [u8],
}

/// Checks a file to its last byte. As much of it is in memory as its longest line.
///
/// # Errors
/// See [`FileError`].
pub fn verify(file: impl BufRead) -> Result<Verified, FileError> {
    read(file, |_| Ok(()))
}

/// As [`verify`], and gives each event away once it is known to fit behind those before. Whether the file is whole is
/// known only at the end.
pub(super) fn read<E: From<FileError>>(
    file: impl BufRead,
    mut take: impl FnMut(FileRow<'_>) -> Result<(), E>,
) -> Result<Verified, E> {
    let mut lines = Lines { file, line: Vec::new(), number: 0, digest: TextDigest::default() };
    let header = lines.header()?;
    let mut session: Option<Session> = None;
    let mut rows = 0_u64;
    let digest = loop {
        if !lines.next()? {
            return Err(FileError::Truncated { rows }.into());
        }
        if lines.line.starts_with(b"{\"end\":") {
            break lines.trailer(&header, rows)?;
        }
        let stamped: Stamped =
            serde_json::from_slice(&lines.line).map_err(|error| lines.bad(error.to_string()))?;
        match &mut session {
            None => {
                if (stamped.epoch, stamped.seq, stamped.first_seq) != (1, 1, None) {
                    return Err(lines.bad("the journal does not begin at 1:1".to_owned()).into());
                }
                session = Session::from_first(&stamped);
                if session.is_none() {
                    return Err(lines
                        .bad("the journal does not begin with session.created".to_owned())
                        .into());
                }
            }
            Some(session) => {
                check_follows(session, &stamped).map_err(|why| lines.bad(why))?;
                session.apply(&stamped);
            }
        }
        rows += 1;
        lines.take_in();
        take(FileRow { stamped: &stamped, line: &lines.line })?;
    };
    let damaged = |why: &str| E::from(FileError::Damaged { why: why.to_owned() });
    let session = session.ok_or_else(|| damaged("it holds no event"))?;
    if (Cursor { epoch: session.epoch, seq: session.head }).to_string() != header.head {
        return Err(damaged("its events do not end where its header says"));
    }
    if session.id != header.session || session.launch.agent != header.agent {
        return Err(damaged("its events are another session's than its header says"));
    }
    if session.deleted {
        return Err(damaged("the session in it is deleted"));
    }
    Ok(Verified { header, session, rows, digest })
}

/// Whether an event may stand behind those that were folded.
fn check_follows(session: &Session, stamped: &Stamped) -> Result<(), String> {
    let first_seq = stamped.first_seq.unwrap_or(stamped.seq);
    let begins_epoch = matches!(stamped.event, Event::EpochStarted { .. });
    let follows = if begins_epoch {
        stamped.epoch > session.epoch && (first_seq, stamped.seq) == (1, 1)
    } else {
        stamped.epoch == session.epoch && first_seq == session.head + 1 && stamped.seq >= first_seq
    };
    // Numbers beyond what a journal can reach in any time would overflow somewhere later.
    if !follows || stamped.seq > MAX_NUMBER || stamped.epoch > MAX_NUMBER || stamped.fence.0 > MAX_NUMBER {
        return Err(format!(
            "{}:{} does not follow {}:{}",
            stamped.epoch, first_seq, session.epoch, session.head
        ));
    }
    if stamped.fence < session.fence {
        return Err(format!("fence {} goes back behind {}", stamped.fence.0, session.fence.0));
    }
    if matches!(stamped.event, Event::SessionCreated { .. }) {
        return Err("a session is created once".to_owned());
    }
    Ok(())
}

/// Greater numbers are taken for damage: a store holds them as signed ones, and they are counted on.
const MAX_NUMBER: u64 = 1 << 62;

/// The lines of a file. Each is hashed when it is taken in.
struct Lines<R> {
    file: R,
    /// The newest, without its end.
    line: Vec<u8>,
    number: u64,
    digest: TextDigest,
}

impl<R: BufRead> Lines<R> {
    /// Reads the next line. False at the end of the file, also where it ends within a line.
    fn next(&mut self) -> Result<bool, FileError> {
        self.line.clear();
        self.number += 1;
        let limit = MAX_LINE_BYTES as u64 + 1;
        let read = self.file.by_ref().take(limit).read_until(b'\n', &mut self.line);
        read.map_err(FileError::Read)?;
        if self.line.pop_if(|last| *last == b'\n').is_some() {
            return Ok(true);
        }
        if self.line.len() > MAX_LINE_BYTES {
            return Err(FileError::Damaged {
                why: format!("line {} is longer than {MAX_LINE_BYTES} bytes", self.number),
            });
        }
        Ok(false)
    }

    fn take_in(&mut self) {
        self.digest.push_bytes(&self.line);
        self.digest.push_bytes(b"\n");
    }

    fn header(&mut self) -> Result<Header, FileError> {
        let not_ours = |why: String| FileError::NotASession { why };
        if !self.next()? {
            return Err(not_ours("it has no first line".to_owned()));
        }
        // The version first: the rest of a newer header may look different.
        let name: Name = serde_json::from_slice(&self.line).map_err(|error| not_ours(error.to_string()))?;
        if name.format != FORMAT {
            return Err(not_ours(format!("its format is {:?}", name.format)));
        }
        if name.version != VERSION {
            return Err(match name.version {
                0 => not_ours("there is no version 0 of the format".to_owned()),
                version => FileError::Newer { version },
            });
        }
        let header = serde_json::from_slice(&self.line).map_err(|error| not_ours(error.to_string()))?;
        self.take_in();
        Ok(header)
    }

    /// Checks the last line; gives the digest.
    fn trailer(&mut self, header: &Header, rows: u64) -> Result<String, FileError> {
        let damaged = |why: String| FileError::Damaged { why };
        let Trailer { end } =
            serde_json::from_slice(&self.line).map_err(|error| damaged(format!("its last line: {error}")))?;
        if end.digest != self.digest.finish() {
            return Err(damaged("its bytes do not have the digest that its last line gives".to_owned()));
        }
        if end.rows != rows || end.head != header.head {
            return Err(damaged("its last line does not fit the others".to_owned()));
        }
        if self.next()? || !self.line.is_empty() {
            return Err(damaged("something stands behind its last line".to_owned()));
        }
        Ok(end.digest)
    }

    fn bad(&self, why: String) -> FileError {
        FileError::BadLine { line: self.number, why }
    }
}

/// What is the same in the header of every version.
#[derive(Debug, Deserialize)]
struct Name {
    format: String,
    version: u32,
}
