//! The transcripts of the simulated Claude Code: real files, which the host reads, below an account home.

use mainstay_agents::claude::files;
use serde_json::{Value, json};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

/// The transcripts of one account home.
#[derive(Debug)]
pub(crate) struct Transcripts {
    folder: PathBuf,
    /// Where those are that the agent alone can read just now.
    hidden: PathBuf,
}

impl Transcripts {
    pub(crate) fn of(home: PathBuf) -> Self {
        Self { folder: home.join(files::PROJECTS).join("-w"), hidden: home.join("hidden") }
    }

    fn path(&self, conversation: &str) -> PathBuf {
        let name = format!("{conversation}.jsonl");
        let hidden = self.hidden.join(&name);
        if hidden.is_file() { hidden } else { self.folder.join(name) }
    }

    /// None that is there now can be read by anybody else than the agent: in its place stands what is no file.
    pub(crate) fn hide(&self) {
        let Ok(listed) = fs::read_dir(&self.folder) else { return };
        fs::create_dir_all(&self.hidden).expect("a folder for what is hidden");
        for file in listed.flatten().filter(|file| file.path().is_file()) {
            fs::rename(file.path(), self.hidden.join(file.file_name())).expect("a transcript is hidden");
            fs::create_dir(file.path()).expect("what is no file");
        }
    }

    /// All can be read again.
    pub(crate) fn show(&self) {
        let Ok(listed) = fs::read_dir(&self.hidden) else { return };
        for file in listed.flatten() {
            let place = self.folder.join(file.file_name());
            fs::remove_dir(&place).expect("what is no file goes");
            fs::rename(file.path(), place).expect("a transcript is back");
        }
    }

    pub(crate) fn exist(&self, conversation: &str) -> bool {
        self.path(conversation).is_file()
    }

    fn text(&self, conversation: &str) -> String {
        fs::read_to_string(self.path(conversation)).unwrap_or_default()
    }

    fn append(&self, conversation: &str, row: &Value) {
        fs::create_dir_all(&self.folder).expect("a folder for transcripts");
        let path = self.path(conversation);
        let mut file = OpenOptions::new().create(true).append(true).open(path).expect("a transcript");
        writeln!(file, "{row}").expect("a row");
    }

    /// Makes an empty conversation.
    pub(crate) fn begin(&self, conversation: &str) {
        self.append(conversation, &json!({ "type": "mode", "mode": "normal" }));
    }

    /// Whether the conversation has a row of its own for this message.
    pub(crate) fn has(&self, conversation: &str, uuid: &str) -> bool {
        let text = self.text(conversation);
        let rows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        rows.into_iter().any(|row| row["uuid"] == uuid)
    }

    /// A message that begins a turn.
    pub(crate) fn add(&self, conversation: &str, uuid: &str, text: &str) {
        let row = json!({ "type": "user", "uuid": uuid, "message": { "role": "user", "content": text } });
        self.append(conversation, &row);
    }

    /// A message that goes into a running turn: it stands in a row with a uuid of its own, behind the row before.
    pub(crate) fn add_steered(&self, conversation: &str, row: &str, uuid: &str, text: &str) {
        let written = self.text(conversation);
        let rows = written.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let parent = rows.into_iter().find_map(|row| row["uuid"].as_str().map(str::to_owned));
        let attachment = json!({ "type": "queued_command", "prompt": text, "source_uuid": uuid });
        let row =
            json!({ "type": "attachment", "uuid": row, "parentUuid": parent, "attachment": attachment });
        self.append(conversation, &row);
    }

    /// A message of the model; gives its row's uuid.
    pub(crate) fn answer(&self, conversation: &str, uuid: String, message: &str) -> String {
        let message = json!({ "id": message, "content": [{ "type": "text", "text": "..." }] });
        self.append(conversation, &json!({ "type": "assistant", "uuid": uuid, "message": message }));
        uuid
    }

    /// A branch of another conversation, up to one of its rows.
    pub(crate) fn branch(&self, source: &str, branch: &str, up_to: Option<&str>) {
        let mut text = String::new();
        for line in self.text(source).lines() {
            text.push_str(line);
            text.push('\n');
            let row = serde_json::from_str::<Value>(line).unwrap_or_default();
            if up_to.is_some() && row["uuid"].as_str() == up_to {
                break;
            }
        }
        fs::write(self.path(branch), text).expect("a branch");
    }
}
