//! The files that an agent keeps about its conversations, read where its protocol cannot be asked: whether a
//! conversation is saved, which messages stand in it, and whether somebody else has it open. Looks only.

use mainstay_agents::claude::{files, launch};
use mainstay_agents::{AgentKind, Conversation, InHistory};
use mainstay_core::{SubmissionId, ThreadId};
use mainstay_keeper::ProcessIdentity;
use mainstay_keeper::identity::IdentityCheck;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// As much of a transcript's end is searched for a message in doubt, which is among its last. What does not stand in it
/// is absent only where that was the whole file.
const MAX_SEARCHED_BYTES: u64 = 32 << 20;
/// Folders and files of an account home that are looked through; a home with more is not understood, and nothing is
/// concluded from it.
const MAX_ENTRIES: usize = 100_000;

/// The files of one account home.
#[derive(Debug)]
pub(crate) struct Conversations {
    home: PathBuf,
}

impl Conversations {
    /// None for agents whose protocol can be asked.
    pub(crate) fn of(kind: AgentKind, account_home: Option<&str>, env: &[(String, String)]) -> Option<Self> {
        if kind != AgentKind::Claude {
            return None;
        }
        let value = |wanted: &str| env.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        let home = account_home
            .map(PathBuf::from)
            .or_else(|| value(launch::HOME_VARIABLE).map(PathBuf::from))
            .or_else(|| value("HOME").map(|home| Path::new(home).join(files::DEFAULT_HOME)))?;
        Some(Self { home })
    }

    /// How a process is started for a conversation: one that was never used and never saved begins under its own id.
    pub(crate) fn start(&self, head: Option<&ThreadId>, used: bool, fresh: String) -> Conversation {
        match head {
            None => Conversation::New(fresh),
            Some(head) if used || matches!(self.transcript(head.as_str()), Ok(Some(_)) | Err(_)) => {
                Conversation::Resume(head.to_string())
            }
            Some(head) => Conversation::New(head.to_string()),
        }
    }

    /// Where a conversation is saved. Its folder is named after the working folder, by a rule that long names bend: so
    /// it is looked for under its id, which is unique.
    fn transcript(&self, conversation: &str) -> io::Result<Option<PathBuf>> {
        let Some(name) = files::transcript_name(conversation) else { return Ok(None) };
        let folders = match fs::read_dir(self.home.join(files::PROJECTS)) {
            Ok(folders) => folders,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        for (number, folder) in folders.enumerate() {
            if number >= MAX_ENTRIES {
                return Err(io::Error::other("the account home has too many folders"));
            }
            let transcript = folder?.path().join(&name);
            if transcript.is_file() {
                return Ok(Some(transcript));
            }
        }
        Ok(None)
    }

    /// Which of the messages in doubt stand in the conversation. Only of use when the process that may have had them is
    /// gone: until then they may still be written.
    pub(crate) fn look_for(
        &self,
        conversation: &ThreadId,
        messages: &[SubmissionId],
    ) -> Vec<(SubmissionId, InHistory)> {
        let (found, whole) = match self.transcript(conversation.as_str()) {
            Ok(Some(path)) => search(&path, messages).unwrap_or_else(|error| {
                tracing::warn!(%error, path = %path.display(), "a transcript could not be read");
                (BTreeSet::new(), false)
            }),
            // Made with its first message: nothing came as far as that.
            Ok(None) => (BTreeSet::new(), true),
            Err(error) => {
                tracing::warn!(%error, home = %self.home.display(), "the agent's transcripts could not be listed");
                (BTreeSet::new(), false)
            }
        };
        let verdict = |message: &SubmissionId| match found.contains(message.as_str()) {
            true => InHistory::There,
            false if whole => InHistory::NotThere,
            false => InHistory::Unknown,
        };
        messages.iter().map(|message| (message.clone(), verdict(message))).collect()
    }

    /// The pid of a living process that has the conversation open. To be asked while no process of ours has it.
    pub(crate) fn holder(&self, conversation: &ThreadId) -> Option<i32> {
        let listed = fs::read_dir(self.home.join(files::PROCESSES)).ok()?;
        let boot_id = ProcessIdentity::of_self().ok()?.boot_id;
        listed.take(MAX_ENTRIES).flatten().find_map(|file| {
            let text = fs::read_to_string(file.path()).ok()?;
            let process = files::listed_process(&text, conversation.as_str())?;
            let identity = ProcessIdentity {
                boot_id: boot_id.clone(),
                pid: process.pid,
                start_time: process.start_time,
            };
            matches!(identity.check(), IdentityCheck::Matched).then_some(process.pid)
        })
    }
}

/// The messages that stand in a transcript's end, and whether that was all of it.
fn search(path: &Path, messages: &[SubmissionId]) -> io::Result<(BTreeSet<String>, bool)> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_SEARCHED_BYTES)))?;
    let mut end = Vec::new();
    file.take(MAX_SEARCHED_BYTES).read_to_end(&mut end)?;
    let mut found = BTreeSet::new();
    files::user_messages(&end, |uuid| {
        if messages.iter().any(|message| message.as_str() == uuid) {
            found.insert(uuid.to_owned());
        }
    });
    Ok((found, length <= MAX_SEARCHED_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn home() -> (tempfile::TempDir, Conversations) {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().to_str().expect("plain").to_owned();
        let conversations = Conversations::of(AgentKind::Claude, Some(&home), &[]).expect("has files");
        (folder, conversations)
    }

    #[test]
    fn a_conversation_that_was_never_saved_begins_under_its_own_id() {
        let (folder, conversations) = home();
        let head = ThreadId::from("c-1");
        let fresh = || "fresh".to_owned();
        assert_eq!(conversations.start(None, false, fresh()), Conversation::New("fresh".to_owned()));
        assert_eq!(conversations.start(Some(&head), false, fresh()), Conversation::New("c-1".to_owned()));
        assert_eq!(conversations.start(Some(&head), true, fresh()), Conversation::Resume("c-1".to_owned()));
        fs::create_dir_all(folder.path().join("projects/-w")).expect("made");
        fs::write(folder.path().join("projects/-w/c-1.jsonl"), "").expect("written");
        assert_eq!(conversations.start(Some(&head), false, fresh()), Conversation::Resume("c-1".to_owned()));
    }

    #[test]
    fn a_message_is_there_or_it_is_not() {
        let (folder, conversations) = home();
        let thread = ThreadId::from("c-1");
        let messages = [SubmissionId::from("m1"), SubmissionId::from("m2")];
        let verdicts = |of: &Conversations| -> Vec<InHistory> {
            of.look_for(&thread, &messages).into_iter().map(|(_, verdict)| verdict).collect()
        };
        assert_eq!(verdicts(&conversations), [InHistory::NotThere, InHistory::NotThere]);
        fs::create_dir_all(folder.path().join("projects/-w")).expect("made");
        let row = "{\"type\":\"user\",\"uuid\":\"m1\"}\n";
        fs::write(folder.path().join("projects/-w/c-1.jsonl"), row).expect("written");
        assert_eq!(verdicts(&conversations), [InHistory::There, InHistory::NotThere]);
        // A file where the folder should be: nothing can be said.
        fs::remove_dir_all(folder.path().join("projects")).expect("removed");
        fs::write(folder.path().join("projects"), "").expect("written");
        assert_eq!(verdicts(&conversations), [InHistory::Unknown, InHistory::Unknown]);
    }

    #[test]
    fn only_a_living_process_holds_a_conversation() {
        let (folder, conversations) = home();
        let thread = ThreadId::from("c-1");
        fs::create_dir_all(folder.path().join("sessions")).expect("made");
        let own = ProcessIdentity::of_self().expect("our own");
        let list = |start_time: u64| {
            let text = format!(r#"{{"pid":{},"procStart":"{start_time}","sessionId":"c-1"}}"#, own.pid);
            fs::write(folder.path().join("sessions/1.json"), text).expect("written");
        };
        list(own.start_time + 1);
        assert_eq!(conversations.holder(&thread), None, "a killed process leaves its file");
        list(own.start_time);
        assert_eq!(conversations.holder(&thread), Some(own.pid));
        assert_eq!(conversations.holder(&ThreadId::from("c-2")), None);
    }
}
