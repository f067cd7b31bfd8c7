//! What outlives a process: conversations, and how often something was asked.

use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The folder of `SCRIPTED_STATE`; None: nothing is kept.
#[derive(Debug)]
pub(crate) struct Kept(Option<PathBuf>);

/// A file name that stays in its folder whatever the name is.
fn plain(name: &str) -> String {
    name.chars().map(|of| if of.is_ascii_alphanumeric() || of == '-' { of } else { '_' }).collect()
}

impl Kept {
    pub(crate) fn open() -> io::Result<Self> {
        let folder = std::env::var_os("SCRIPTED_STATE").map(PathBuf::from);
        if let Some(folder) = &folder {
            fs::create_dir_all(folder)?;
        }
        Ok(Self(folder))
    }

    /// What a conversation holds; None: it was never kept.
    pub(crate) fn conversation(&self, thread: &str) -> Option<Vec<Value>> {
        let path = self.0.as_ref()?.join(plain(thread)).with_extension("json");
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    pub(crate) fn keep(&self, thread: &str, entries: &[Value]) -> io::Result<()> {
        let Some(folder) = &self.0 else { return Ok(()) };
        let path = folder.join(plain(thread)).with_extension("json");
        let whole = path.with_extension("new");
        fs::write(&whole, serde_json::to_vec(entries)?)?;
        fs::rename(whole, path)
    }

    /// Counts one more of these over all processes, and gives the number, from 1.
    pub(crate) fn count(&self, name: &str) -> io::Result<Option<usize>> {
        let Some(folder) = &self.0 else { return Ok(None) };
        let path = folder.join(plain(name)).with_extension("count");
        append(&path, b".")?;
        let length = fs::metadata(path)?.len();
        Ok(usize::try_from(length).ok())
    }
}

/// Appends to a file, in one write.
pub(crate) fn append(path: &Path, bytes: &[u8]) -> io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(bytes)
}
