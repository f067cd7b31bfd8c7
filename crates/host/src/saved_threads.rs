//! Conversations in the files of Claude Code, for people who want to go on with one here. Looks at files only: nothing is
//! started and nothing is written.

use crate::conversations::Conversations;
use crate::error::HostError;
use mainstay_agents::claude::files;
use mainstay_core::ThreadId;
use std::collections::HashSet;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// As much of a transcript's beginning, and of its end, is read for its name and folder. What stands between is not
/// needed to recognise a conversation.
const READ_BYTES: u64 = 64 << 10;

/// A conversation in the agent's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedThread {
    pub(crate) thread: ThreadId,
    /// Its name; None: it has none, or it could not be read.
    pub(crate) name: Option<String>,
    /// The beginning of its first message.
    pub(crate) first: Option<String>,
    /// The folder that it works in, which an adopting session must name; None: not readable.
    pub(crate) cwd: Option<String>,
    /// When it was begun, as the agent wrote it.
    pub(crate) started: Option<String>,
    /// When it was written to last, Unix ms.
    pub(crate) updated_at: i64,
    /// A living process that has it open: while it lives, the conversation is not taken up beside it.
    pub(crate) open_in: Option<i32>,
}

/// The newest of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SavedThreads {
    pub(crate) threads: Vec<SavedThread>,
    /// There are more, or some could not be read.
    pub(crate) incomplete: bool,
}

/// A transcript that was found.
struct Found {
    thread: ThreadId,
    updated_at: i64,
    path: PathBuf,
}

/// At most so many, the newest first.
///
/// # Errors
/// [`HostError::Unlistable`].
pub(crate) fn of_claude(conversations: &Conversations, most: usize) -> Result<SavedThreads, HostError> {
    let unlistable = |error: std::io::Error| HostError::Unlistable { why: error.to_string() };
    let (mut found, mut incomplete) = (Vec::new(), false);
    for path in conversations.all_transcripts().map_err(unlistable)? {
        match found_at(path) {
            Ok(one) => found.extend(one),
            Err(error) => incomplete |= error.kind() != ErrorKind::NotFound,
        }
    }
    found.sort_by(|one, other| (other.updated_at, &other.thread).cmp(&(one.updated_at, &one.thread)));
    // Of copies in several folders the one that was written last.
    let mut seen = HashSet::new();
    found.retain(|one| seen.insert(one.thread.clone()));
    let open = conversations.open_conversations();
    let mut threads = Vec::new();
    for one in found {
        let about = match conversations.ends_of(&one.path, READ_BYTES) {
            Ok((head, tail, whole)) => {
                let about = files::about(&head, &tail);
                if whole && !about.has_messages {
                    // Begun and never used: the program does not take it up.
                    continue;
                }
                about
            }
            Err(_) => {
                incomplete = true;
                files::About::default()
            }
        };
        if threads.len() >= most {
            incomplete = true;
            break;
        }
        let holder = open.iter().find(|(thread, _)| thread == one.thread.as_str());
        threads.push(SavedThread {
            open_in: holder.map(|(_, pid)| *pid),
            thread: one.thread,
            name: about.name,
            first: about.first,
            cwd: about.cwd,
            started: about.started,
            updated_at: one.updated_at,
        });
    }
    Ok(SavedThreads { threads, incomplete })
}

/// What a path of a transcript says without being opened; None: it is none.
fn found_at(path: PathBuf) -> std::io::Result<Option<Found>> {
    let name = path.file_stem().and_then(|stem| stem.to_str());
    let Some(thread) = name.filter(|name| files::transcript_name(name).is_some()) else { return Ok(None) };
    let thread = ThreadId::from(thread);
    let metadata = fs::metadata(&path)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let updated = metadata.modified()?.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
    Ok(Some(Found { thread, updated_at: i64::try_from(updated).unwrap_or(i64::MAX), path }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_agents::AgentKind;
    use std::time::{Duration, SystemTime};

    fn save(folder: &tempfile::TempDir, name: &str, age: u64, text: &str) {
        let project = folder.path().join("projects/-w");
        fs::create_dir_all(&project).expect("made");
        let path = project.join(name);
        fs::write(&path, text).expect("written");
        let file = fs::File::options().write(true).open(path).expect("opened");
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("aged");
    }

    fn row(cwd: &str, words: &str) -> String {
        let row = serde_json::json!({
            "type": "user", "uuid": "m", "cwd": cwd, "timestamp": "2026-01-01T00:00:00Z",
            "message": { "role": "user", "content": words },
        });
        format!("{row}\n")
    }

    fn listed(folder: &tempfile::TempDir, most: usize) -> SavedThreads {
        let home = folder.path().to_str().expect("plain");
        let conversations = Conversations::of(AgentKind::Claude, Some(home), &[]).expect("has files");
        of_claude(&conversations, most).expect("listed")
    }

    fn ids(page: &SavedThreads) -> Vec<&str> {
        page.threads.iter().map(|saved| saved.thread.as_str()).collect()
    }

    #[test]
    fn the_newest_conversations_come_first_each_once() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, age) in [("c-1", 30), ("c-2", 20), ("c-3", 10)] {
            save(&folder, &format!("{name}.jsonl"), age, &row("/w", name));
        }
        save(&folder, "notes.txt", 1, "x");
        save(&folder, "-p.jsonl", 1, &row("/w", "an option"));
        save(&folder, "c-0.jsonl", 1, "{\"type\":\"mode\"}\n");
        let first = listed(&folder, 2);
        assert_eq!(ids(&first), ["c-3", "c-2"], "and nothing that the program does not take up");
        assert!(first.incomplete, "there is more");
        let saved = &first.threads[0];
        let about = (saved.first.as_deref(), saved.cwd.as_deref(), saved.started.as_deref());
        assert_eq!(about, (Some("c-3"), Some("/w"), Some("2026-01-01T00:00:00Z")));
        let copy = folder.path().join("projects/-copy");
        fs::create_dir_all(&copy).expect("made");
        fs::write(copy.join("c-1.jsonl"), row("/w", "c-1")).expect("written");
        let all = listed(&folder, 9);
        assert_eq!((ids(&all), all.incomplete), (vec!["c-1", "c-3", "c-2"], false));
    }

    #[test]
    fn what_cannot_be_read_is_said_and_a_home_without_conversations_is_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(listed(&folder, 9), SavedThreads { threads: Vec::new(), incomplete: false });
        save(&folder, "c-1.jsonl", 10, &row("/w", "here"));
        // A loop of links: also root cannot follow it.
        let project = folder.path().join("projects/-w");
        std::os::unix::fs::symlink("c-2.jsonl", project.join("c-2.jsonl")).expect("linked");
        let page = listed(&folder, 9);
        assert_eq!((ids(&page), page.incomplete), (vec!["c-1"], true));
    }
}
