//! The files that an agent keeps about its conversations, read where its protocol cannot be asked: whether a
//! conversation is saved, which messages stand in it, and whether somebody else has it open. Looks only.

use mainstay_agents::claude::{files, launch};
use mainstay_agents::{AgentKind, Conversation, InHistory, SavedChild, SavedHistory, UnansweredCall};
use mainstay_core::session::{OpenSubmission, SubmissionState};
use mainstay_core::work::{ForkPoint, HistoryPoint, ThreadSource};
use mainstay_core::{ItemKey, RequestId, Session, SubmissionId, ThreadId};
use mainstay_keeper::ProcessIdentity;
use mainstay_keeper::identity::IdentityCheck;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// As much of a transcript's end is searched for a message in doubt, which is among its last. What does not stand in it
/// is absent only where that was the whole file.
const MAX_SEARCHED_BYTES: u64 = 32 << 20;
/// As much of a transcript's end is compared with what the session knows, at every start: the latest turns stand in it. Where
/// somebody else wrote more than this since, nothing is said of it.
const MAX_COMPARED_BYTES: u64 = 4 << 20;
/// Folders and files of an account home that are looked through; a home with more is not understood, and nothing is
/// concluded from it.
const MAX_ENTRIES: usize = 100_000;
/// The largest transcript of which a branch is made at a point within it; the point may be anywhere, so all of it is
/// read. Of a larger one the branch is refused.
const MAX_SOURCE_BYTES: u64 = 128 << 20;
/// Sub-agents of a conversation whose files are read when a session begins with it; it says how many more there are.
const MAX_SUB_AGENTS: usize = 64;
/// The largest file of a sub-agent that is read.
const MAX_SUB_AGENT_BYTES: u64 = 4 << 20;
/// The largest file that lists a living process; they have under 1 KiB. A larger one lists none.
const MAX_PROCESS_BYTES: u64 = 64 << 10;

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

    /// How a process is started for a session's conversation. One that is saved is taken up; one that never took a
    /// message and is not saved begins, or is branched off, under the same id as before, should that have been tried.
    ///
    /// A transcript without a message counts as saved: the program neither takes it up nor begins another of its name
    /// (measured), and says only of the first that the conversation is missing, upon which the session takes a new name.
    ///
    /// # Errors
    /// The point at which a branch is to begin is not in the source's history, or an id is none of this agent.
    pub(crate) fn start(&self, session: &Session) -> Result<Conversation, String> {
        let wanted = conversation(session).ok_or("the session has no process")?;
        named(&wanted).map_err(|error| error.to_string())?;
        let saved = !self.transcripts(&wanted).is_ok_and(|found| found.is_empty());
        let used = session.thread_used && !session.replace_thread;
        let source = session.launch.source.as_ref().filter(|_| !session.replace_thread);
        match source {
            _ if saved || used => Ok(match self.resume_at(session) {
                Some(at) => Conversation::ResumeAt { id: wanted, at },
                None => Conversation::Resume(wanted),
            }),
            // Somebody else made it, so it is there or it is lost.
            Some(ThreadSource::Adopt { .. }) => Ok(Conversation::Resume(wanted)),
            Some(ThreadSource::Fork(point)) => {
                let up_to = point.last_turn.as_ref().map(|last| self.row(point, last)).transpose()?;
                Ok(Conversation::Fork { source: point.thread.to_string(), branch: wanted, up_to })
            }
            None => Ok(Conversation::New(wanted)),
        }
    }

    /// Where a conversation that was rewound is taken up. A message in doubt that stands in it was taken there: then the
    /// branch that it is on is the last one, and is taken up as a whole.
    fn resume_at(&self, session: &Session) -> Option<String> {
        let at = session.resume_at.clone()?;
        let in_doubt = |open: &&OpenSubmission| matches!(open.state, SubmissionState::Doubtful { .. });
        let doubtful: Vec<SubmissionId> =
            session.submissions.iter().filter(in_doubt).map(|open| open.id.clone()).collect();
        let found = self.look_for(session.thread()?, &doubtful);
        (!found.iter().any(|(_, found)| *found == InHistory::There)).then_some(at)
    }

    /// Where a conversation is taken up so that this turn is not in it.
    ///
    /// # Errors
    /// A sentence that says why there is no such place, for people.
    pub(crate) fn row_before(&self, conversation: &ThreadId, turn: &HistoryPoint) -> Result<String, String> {
        let message =
            turn.submission.as_ref().ok_or("the turn was not begun by a message of this session")?;
        let unread = |error: io::Error| format!("the agent's history cannot be read: {error}");
        let mut before = files::Before::Unknown;
        for path in self.transcripts(conversation.as_str()).map_err(unread)? {
            let transcript = whole_file(&path, MAX_SOURCE_BYTES).map_err(unread)?;
            before = files::row_before(&transcript, message.as_str());
            if before != files::Before::Unknown {
                break;
            }
        }
        match before {
            files::Before::Row(row) => Ok(row),
            files::Before::Beginning => {
                Err("nothing stands before this turn; `clear` begins with an empty context".to_owned())
            }
            files::Before::Unknown => Err(format!("message {message} is not in the agent's history")),
        }
    }

    /// The row of the source's transcript that a branch has last.
    fn row(&self, point: &ForkPoint, last: &HistoryPoint) -> Result<String, String> {
        let missing = || format!("turn {} is not in the history of {}", last.turn, point.thread);
        let unread = |error: io::Error| format!("{}: {error}", missing());
        for path in self.transcripts(point.thread.as_str()).map_err(unread)? {
            let transcript = whole_file(&path, MAX_SOURCE_BYTES).map_err(unread)?;
            let by_message = last.submission.as_ref();
            let row = by_message
                .and_then(|message| files::last_row_after(&transcript, message.as_str()))
                .or_else(|| files::row_of_item(&transcript, last.last_item.as_ref()?.as_str()));
            if let Some(row) = row {
                return Ok(row);
            }
        }
        Err(missing())
    }

    /// Where a conversation is saved. Its folder is named after the working folder, by a rule that long names bend: so
    /// it is looked for under its id. Several have it where a user copied or moved folders.
    ///
    /// # Errors
    /// Something could not be looked at, is no regular file, or the id is none that names a transcript: then nothing is
    /// known of it.
    fn transcripts(&self, conversation: &str) -> io::Result<Vec<PathBuf>> {
        let name = named(conversation)?;
        let folders = match fs::read_dir(self.home.join(files::PROJECTS)) {
            Ok(folders) => folders,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for (number, folder) in folders.enumerate() {
            if number >= MAX_ENTRIES {
                return Err(io::Error::other("the account home has too many folders"));
            }
            let transcript = folder?.path().join(&name);
            match fs::metadata(&transcript) {
                Ok(metadata) if metadata.is_file() => found.push(transcript),
                Ok(_) => return Err(not_regular()),
                // No such file, or a file beside the folders.
                Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Every file that may be a transcript.
    ///
    /// # Errors
    /// The folders cannot be listed, or there are more than are looked through.
    pub(crate) fn all_transcripts(&self) -> io::Result<Vec<PathBuf>> {
        let folders = match fs::read_dir(self.home.join(files::PROJECTS)) {
            Ok(folders) => folders,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut found = Vec::new();
        for folder in folders {
            let Ok(inside) = fs::read_dir(folder?.path()) else { continue };
            for file in inside {
                let path = file?.path();
                found.extend((path.extension() == Some("jsonl".as_ref())).then_some(path));
                if found.len() > MAX_ENTRIES {
                    return Err(io::Error::other(format!(
                        "the account home has more than {MAX_ENTRIES} conversations"
                    )));
                }
            }
        }
        Ok(found)
    }

    /// The first and the last so many bytes of a transcript, and whether that is all of it.
    pub(crate) fn ends_of(&self, path: &Path, most: u64) -> io::Result<(Vec<u8>, Vec<u8>, bool)> {
        let (mut file, length) = open_regular(path)?;
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        (&mut file).take(most).read_to_end(&mut head)?;
        if length > most {
            file.seek(SeekFrom::Start(most.max(length.saturating_sub(most))))?;
            file.take(most).read_to_end(&mut tail)?;
        }
        Ok((head, tail, length <= 2 * most))
    }

    /// Conversations that living processes have open, with their pids.
    pub(crate) fn open_conversations(&self) -> Vec<(String, i32)> {
        let (Ok(listed), Ok(own)) =
            (fs::read_dir(self.home.join(files::PROCESSES)), ProcessIdentity::of_self())
        else {
            return Vec::new();
        };
        let living = |file: fs::DirEntry| {
            let text = String::from_utf8(whole_file(&file.path(), MAX_PROCESS_BYTES).ok()?).ok()?;
            let (conversation, process) = files::listed(&text)?;
            let (boot_id, pid, start_time) = (own.boot_id.clone(), process.pid, process.start_time);
            let identity = ProcessIdentity { boot_id, pid, start_time };
            matches!(identity.check(), IdentityCheck::Matched).then_some((conversation, pid))
        };
        listed.take(MAX_ENTRIES).flatten().filter_map(living).collect()
    }

    /// Which of the messages in doubt stand in the conversation. Only of use when the process that may have had them is
    /// gone: until then they may still be written.
    pub(crate) fn look_for(
        &self,
        conversation: &ThreadId,
        messages: &[SubmissionId],
    ) -> Vec<(SubmissionId, InHistory)> {
        let (found, whole) = self.search(conversation, messages).unwrap_or_else(|error| {
            tracing::warn!(%error, home = %self.home.display(), "the agent's transcripts could not be read");
            (BTreeSet::new(), false)
        });
        let verdict = |message: &SubmissionId| match found.contains(message.as_str()) {
            true => InHistory::There,
            false if whole => InHistory::NotThere,
            false => InHistory::Unknown,
        };
        messages.iter().map(|message| (message.clone(), verdict(message))).collect()
    }

    /// Which messages stand in the conversation's transcripts, and whether all of each was searched. Where
    /// there is none, nothing came as far as that: it is made with its first message.
    fn search(
        &self,
        conversation: &ThreadId,
        messages: &[SubmissionId],
    ) -> io::Result<(BTreeSet<String>, bool)> {
        let (mut found, mut all) = (BTreeSet::new(), true);
        for path in self.transcripts(conversation.as_str())? {
            match end_of(&path, MAX_SEARCHED_BYTES) {
                Ok((end, whole)) => {
                    all &= whole;
                    files::user_messages(&end, |uuid| {
                        if messages.iter().any(|message| message.as_str() == uuid) {
                            found.insert(uuid.to_owned());
                        }
                    });
                }
                Err(error) => {
                    // What another one has is known all the same.
                    tracing::warn!(%error, path = %path.display(), "a transcript could not be read");
                    all = false;
                }
            }
        }
        Ok((found, all))
    }

    /// The end of a conversation's transcript, as far back as is searched, and whether that is all of it; None where there
    /// is none or it cannot be read. Of several, that which was written last.
    pub(crate) fn read(&self, conversation: &ThreadId) -> Option<(Vec<u8>, bool)> {
        self.read_end(conversation, MAX_SEARCHED_BYTES)
    }

    /// A conversation with its sub-agents, for a session that begins with it.
    pub(crate) fn history(&self, conversation: &ThreadId) -> Option<SavedHistory> {
        let (transcript, whole) = self.read(conversation)?;
        let mut history = SavedHistory { transcript, cut: !whole, ..SavedHistory::default() };
        for path in self.transcripts(conversation.as_str()).unwrap_or_default() {
            let folder = path.with_extension("").join(files::SUB_AGENTS);
            let mut names: Vec<String> = fs::read_dir(&folder)
                .into_iter()
                .flatten()
                .take(MAX_ENTRIES)
                .filter_map(|file| file.ok()?.file_name().into_string().ok())
                .collect();
            names.sort();
            for name in names {
                let Some(id) = files::sub_agent_of(&name) else { continue };
                let room = history.children.len() < MAX_SUB_AGENTS;
                let read = room.then(|| whole_file(&folder.join(&name), MAX_SUB_AGENT_BYTES));
                let Some(Ok(transcript)) = read else {
                    history.children_left_out += 1;
                    continue;
                };
                let about = folder.join(files::about_sub_agent(id));
                let about = whole_file(&about, MAX_PROCESS_BYTES).unwrap_or_default();
                history.children.push(SavedChild { thread: ThreadId::from(id), about, transcript });
            }
        }
        Some(history)
    }

    /// As [`Self::read`], of the last so many bytes that are looked at at every start.
    pub(crate) fn read_latest(&self, conversation: &ThreadId) -> Option<Vec<u8>> {
        self.read_end(conversation, MAX_COMPARED_BYTES).map(|(end, _)| end)
    }

    fn read_end(&self, conversation: &ThreadId, most: u64) -> Option<(Vec<u8>, bool)> {
        let found = self.transcripts(conversation.as_str()).map_err(|error| {
            tracing::warn!(%error, home = %self.home.display(), "the agent's transcripts could not be listed");
        });
        let written = |path: &PathBuf| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let path = found.ok()?.into_iter().max_by_key(written)?;
        let read = end_of(&path, most);
        read.map_err(|error| tracing::warn!(%error, "a transcript could not be read")).ok()
    }

    /// Which of the calls that requests were about stand in the conversation without a result. What cannot be read tells
    /// nothing, so nothing is asked again.
    pub(crate) fn without_result(
        &self,
        conversation: &ThreadId,
        requests: &[(RequestId, ItemKey)],
    ) -> Vec<UnansweredCall> {
        let wanted: Vec<&str> = requests.iter().map(|(_, call)| call.as_str()).collect();
        let (transcript, _) = self.read(conversation).unwrap_or_default();
        let found = files::calls_without_result(&transcript, &wanted);
        let named = |(id, tool, input): (String, String, serde_json::Value)| {
            let (request, call) = requests.iter().find(|(_, call)| call.as_str() == id)?;
            Some(UnansweredCall { request: request.clone(), call: call.clone(), tool, input })
        };
        found.into_iter().filter_map(named).collect()
    }

    /// The pid of a living process that has the conversation open. To be asked while no process of ours has it.
    pub(crate) fn holder(&self, conversation: &ThreadId) -> Option<i32> {
        let open = self.open_conversations().into_iter();
        open.filter(|(id, _)| id == conversation.as_str()).map(|(_, pid)| pid).next()
    }
}

/// The conversation that a session's process is started for: the one it has, was told to take up, or begins. None: it
/// has no process.
pub(crate) fn conversation(session: &Session) -> Option<String> {
    match (session.thread(), &session.launch.source) {
        // In place of one that is lost: under a name that was not used for that.
        _ if session.replace_thread => Some(launch::conversation_of(session.process.as_ref()?.as_str())),
        (Some(head), _) => Some(head.to_string()),
        (None, Some(ThreadSource::Adopt { thread })) => Some(thread.to_string()),
        (None, _) => Some(launch::conversation_of(session.id.as_str())),
    }
}

/// The file name of a conversation's transcript.
fn named(conversation: &str) -> io::Result<String> {
    let unusable = || {
        let words = format!("{conversation:?} is no id of a conversation of this agent");
        io::Error::new(ErrorKind::InvalidInput, words)
    };
    files::transcript_name(conversation).ok_or_else(unusable)
}

fn not_regular() -> io::Error {
    io::Error::other("this is no regular file")
}

/// A regular file, and its length. Whatever else has the name (a pipe, a device) blocks nothing.
fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err(not_regular()) }
}

/// A file of at most so many bytes.
fn whole_file(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let (file, _) = open_regular(path)?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= most) {
        return Ok(bytes);
    }
    Err(io::Error::new(ErrorKind::FileTooLarge, format!("the file has more than {most} bytes")))
}

/// The last so many bytes of a file, and whether that is all of it.
fn end_of(path: &Path, most: u64) -> io::Result<(Vec<u8>, bool)> {
    let (mut file, length) = open_regular(path)?;
    file.seek(SeekFrom::Start(length.saturating_sub(most)))?;
    let mut end = Vec::new();
    file.take(most).read_to_end(&mut end)?;
    Ok((end, length <= most))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_core::SessionOptions;
    use mainstay_core::session::Out;

    fn home() -> (tempfile::TempDir, Conversations) {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().to_str().expect("plain").to_owned();
        let conversations = Conversations::of(AgentKind::Claude, Some(&home), &[]).expect("has files");
        (folder, conversations)
    }

    fn session(source: Option<ThreadSource>) -> Session {
        let launch = serde_json::json!({
            "host": "h", "agent": "claude", "cwd": "/w", "source": source,
        });
        let launch = serde_json::from_value(launch).expect("a snapshot");
        let id = mainstay_core::SessionId::from("s-1");
        Session::create(id, None, launch, SessionOptions::default(), 1, &mut Out::default())
    }

    fn save(folder: &tempfile::TempDir, conversation: &str, text: &str) {
        fs::create_dir_all(folder.path().join("projects/-w")).expect("made");
        let path = folder.path().join("projects/-w").join(format!("{conversation}.jsonl"));
        fs::write(path, text).expect("written");
    }

    #[test]
    fn a_conversation_begins_once_also_where_its_first_process_died() {
        let (folder, conversations) = home();
        let new = session(None);
        let id = launch::conversation_of("s-1");
        assert_eq!(conversations.start(&new), Ok(Conversation::New(id.clone())));
        assert_eq!(conversations.start(&new), Ok(Conversation::New(id.clone())), "the same again");
        save(&folder, &id, "");
        assert_eq!(conversations.start(&new), Ok(Conversation::Resume(id)));
    }

    #[test]
    fn a_branch_is_made_once_and_begins_where_it_was_asked_to() {
        let (folder, conversations) = home();
        let row = r#"{"type":"assistant","uuid":"a1","message":{"id":"msg_1","content":[]}}"#;
        save(&folder, "source", row);
        let point = |item: Option<&str>| ForkPoint {
            session: mainstay_core::SessionId::from("s-0"),
            thread: ThreadId::from("source"),
            last_turn: item.map(|item| HistoryPoint {
                turn: "t".into(),
                submission: None,
                last_item: Some(item.into()),
            }),
        };
        let fork = |item| conversations.start(&session(Some(ThreadSource::Fork(point(item)))));
        let branch = launch::conversation_of("s-1");
        let made = |up_to: Option<&str>| Conversation::Fork {
            source: "source".to_owned(),
            branch: branch.clone(),
            up_to: up_to.map(str::to_owned),
        };
        assert_eq!(fork(None), Ok(made(None)));
        assert_eq!(fork(Some("msg_1.0")), Ok(made(Some("a1"))));
        assert!(fork(Some("msg_2.0")).expect_err("no such point").contains("history"));
        save(&folder, &branch, "");
        assert_eq!(fork(None), Ok(Conversation::Resume(branch.clone())), "it is there already");
    }

    #[test]
    fn an_adopted_conversation_is_taken_up_also_where_it_is_not_found() {
        let (_folder, conversations) = home();
        let adopted = session(Some(ThreadSource::Adopt { thread: ThreadId::from("c-9") }));
        assert_eq!(conversations.start(&adopted), Ok(Conversation::Resume("c-9".to_owned())));
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

    /// Waits for a reader in another thread, which a pipe would block for ever.
    fn in_time<T: Send + 'static>(read: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(read()));
        result.recv_timeout(std::time::Duration::from_secs(60)).expect("nothing blocks")
    }

    fn pipe(path: &Path) {
        rustix::fs::mkfifoat(rustix::fs::CWD, path, Mode::RUSR | Mode::WUSR).expect("made");
    }

    #[test]
    fn a_message_is_absent_only_where_all_was_looked_at() {
        let (folder, conversations) = home();
        let message = [SubmissionId::from("m1")];
        let verdict = |thread: &str| conversations.look_for(&ThreadId::from(thread), &message)[0].1;
        save(&folder, "c-1", "{\"type\":\"user\",\"uuid\":\"m0\"}\n");
        let other = folder.path().join("projects/-other");
        fs::create_dir_all(&other).expect("made");
        assert_eq!(verdict("c-1"), InHistory::NotThere);
        // A second one of the same id has it, whichever is found first.
        fs::write(other.join("c-1.jsonl"), "{\"type\":\"user\",\"uuid\":\"m1\"}\n").expect("written");
        assert_eq!(verdict("c-1"), InHistory::There);
        // One of two is larger than what is searched.
        let long = File::create(other.join("c-1.jsonl")).expect("made");
        long.set_len(MAX_SEARCHED_BYTES + 1).expect("grown");
        assert_eq!(verdict("c-1"), InHistory::Unknown);
        // An id that names no file was not looked for.
        assert_eq!(verdict("../c-1"), InHistory::Unknown);
        // What cannot be looked at is not absent (a loop of links: also root cannot).
        std::os::unix::fs::symlink("c-2.jsonl", other.join("c-2.jsonl")).expect("linked");
        assert_eq!(verdict("c-2"), InHistory::Unknown);
        assert_eq!(verdict("c-3"), InHistory::NotThere);
    }

    #[test]
    fn a_pipe_blocks_nobody_and_tells_nothing() {
        let (folder, conversations) = home();
        save(&folder, "c-0", "");
        pipe(&folder.path().join("projects/-w/c-1.jsonl"));
        fs::create_dir_all(folder.path().join("sessions")).expect("made");
        pipe(&folder.path().join("sessions/1.json"));
        let own = ProcessIdentity::of_self().expect("our own");
        let listed = format!(r#"{{"pid":{},"procStart":"{}","sessionId":"c-1"}}"#, own.pid, own.start_time);
        let padded = format!("{listed}{}", " ".repeat(usize::try_from(MAX_PROCESS_BYTES).expect("small")));
        fs::write(folder.path().join("sessions/2.json"), padded).expect("written");
        let (verdict, read, holder) = in_time(move || {
            let thread = ThreadId::from("c-1");
            let verdict = conversations.look_for(&thread, &[SubmissionId::from("m1")])[0].1;
            (verdict, conversations.read(&thread), conversations.holder(&thread))
        });
        assert_eq!((verdict, read, holder), (InHistory::Unknown, None, None));
    }

    #[test]
    fn an_id_that_could_be_an_option_starts_nothing() {
        let (_folder, conversations) = home();
        let adopted = session(Some(ThreadSource::Adopt { thread: ThreadId::from("--x") }));
        assert!(conversations.start(&adopted).expect_err("refused").contains("no id"));
    }
}
