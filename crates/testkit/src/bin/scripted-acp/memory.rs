//! The conversation as the agent keeps it: one file of JSON lines per session.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// One message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Kept {
    role: Role,
    text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Agent,
}

impl Kept {
    /// As it is replayed on load.
    pub(crate) fn as_update(&self) -> Value {
        let kind = match self.role {
            Role::User => "user_message_chunk",
            Role::Agent => "agent_message_chunk",
        };
        json!({"sessionUpdate": kind, "content": {"type": "text", "text": self.text}})
    }
}

/// Where one session is kept.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    path: PathBuf,
}

impl Memory {
    pub(crate) fn create(folder: &Path, session: &str) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let memory = Self { path: folder.join(format!("{session}.jsonl")) };
        File::create(&memory.path)?;
        Ok(memory)
    }

    /// `None` when this session was never kept here. An id that is no plain name is never looked for.
    pub(crate) fn load(folder: &Path, session: &str) -> io::Result<Option<(Self, Vec<Kept>)>> {
        let plain = session.chars().all(|character| character.is_ascii_alphanumeric() || character == '-');
        if session.is_empty() || !plain {
            return Ok(None);
        }
        let memory = Self { path: folder.join(format!("{session}.jsonl")) };
        let file = match File::open(&memory.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut kept = Vec::new();
        for line in BufReader::new(file).lines() {
            // A line cut short by a kill is the last one and was never finished.
            if let Ok(entry) = serde_json::from_str(&line?) {
                kept.push(entry);
            }
        }
        Ok(Some((memory, kept)))
    }

    pub(crate) fn keep_prompt(&self, text: &str) -> io::Result<()> {
        self.keep(Role::User, text)
    }

    pub(crate) fn keep_reply(&self, text: &str) -> io::Result<()> {
        self.keep(Role::Agent, text)
    }

    fn keep(&self, role: Role, text: &str) -> io::Result<()> {
        let line = serde_json::to_string(&Kept { role, text: text.to_owned() })?;
        OpenOptions::new().append(true).open(&self.path)?.write_all(format!("{line}\n").as_bytes())
    }
}
