//! Conversations that an agent keeps in its own files, for people who want to go on with one here. Looks at files only:
//! nothing is started and nothing is written.

use crate::catalog;
use crate::config::HostConfig;
use crate::conversations::Conversations;
use crate::error::HostError;
use crate::lane::thread_scope;
use mainstay_agents::AgentKind;
use mainstay_agents::claude::files;
use mainstay_core::{AgentName, Refusal, SessionId, ThreadId};
use mainstay_store::Store;
use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

/// Conversations that are looked at for one page. Where more would have to be (few lie in the wanted folder) the page ends
/// early and says where to go on.
const MAX_LOOKED_AT: usize = 2_000;
/// As much of a transcript's beginning, and of its end, is read for its title and folder. What stands between is not
/// needed to recognise a conversation.
const READ_BYTES: u64 = 64 << 10;

/// What is asked for.
#[derive(Debug, Clone, Default)]
pub struct ThreadQuery {
    /// Only those of this working folder.
    pub cwd: Option<String>,
    /// Behind this one.
    pub after: Option<Place>,
    /// At most so many.
    pub limit: usize,
}

/// A place in the list: newest first, then by id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// When the conversation was written to last, Unix ms.
    pub updated_at: i64,
    /// Which.
    pub thread: ThreadId,
}

impl Place {
    /// As clients hand it back.
    #[must_use]
    pub fn to_text(&self) -> String {
        format!("{}:{}", self.updated_at, self.thread)
    }

    /// None: this is no place.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (updated_at, thread) = text.split_once(':')?;
        Some(Self { updated_at: updated_at.parse().ok()?, thread: ThreadId::parse(thread).ok()? })
    }
}

/// A conversation in the agent's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedThread {
    /// The agent's id of it.
    pub thread: ThreadId,
    /// Its name, or its first message; None: it has none, or it could not be read.
    pub title: Option<String>,
    /// The folder that it works in, which an adopting session must name; None: not readable.
    pub cwd: Option<String>,
    /// When it was begun, as the agent wrote it.
    pub started: Option<String>,
    /// When it was written to last, Unix ms.
    pub updated_at: i64,
    /// The size of its record.
    pub bytes: u64,
    /// The session of this host that has it; that one goes on with it, and no other can.
    pub session: Option<SessionId>,
    /// A living process that has it open: while it lives, the conversation is not taken up beside it.
    pub open_in: Option<i32>,
}

/// One page of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedThreads {
    /// Newest first.
    pub threads: Vec<SavedThread>,
    /// Where the next page begins; None: this is the end.
    pub after: Option<Place>,
    /// Records that could not be read; they are in `threads` where at least their names are known.
    pub unreadable: usize,
}

/// Lists what an agent has saved.
///
/// # Errors
/// [`HostError::AgentUnknown`]; [`HostError::Refused`] with `unsupported` where the agent keeps no files that are
/// understood; [`HostError::Unlistable`]; [`HostError::Read`].
pub fn list(
    config: &HostConfig,
    name: &AgentName,
    store: &dyn Store,
    query: &ThreadQuery,
) -> Result<SavedThreads, HostError> {
    let agent = catalog::configured(config, name)?;
    let account_home = agent.home.as_ref().map(|home| home.display().to_string());
    let env = config.agent_environment(agent);
    let mut page = match agent.kind {
        AgentKind::Claude => of_claude(Conversations::of(agent.kind, account_home.as_deref(), &env), query)?,
        AgentKind::Codex | AgentKind::Acp | AgentKind::Demo => {
            return Err(HostError::Refused(Refusal::unsupported("list_threads")));
        }
    };
    let scope = thread_scope(name, account_home.as_deref());
    for saved in &mut page.threads {
        let Some(owner) = store.thread_owner(&scope, saved.thread.as_str())? else { continue };
        saved.session = store.session(owner)?.filter(|row| !row.deleted).map(|row| SessionId(row.id));
    }
    Ok(page)
}

/// A transcript that was found.
struct Found {
    place: Place,
    path: PathBuf,
    bytes: u64,
}

fn of_claude(conversations: Option<Conversations>, query: &ThreadQuery) -> Result<SavedThreads, HostError> {
    let Some(conversations) = conversations else {
        return Err(HostError::Refused(Refusal::unsupported("list_threads")));
    };
    let unlistable = |error: std::io::Error| HostError::Unlistable { why: error.to_string() };
    let (mut found, mut unreadable) = (Vec::new(), 0);
    for path in conversations.all_transcripts().map_err(unlistable)? {
        match found_at(path) {
            Ok(Some(one)) => found.push(one),
            Ok(None) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(_) => unreadable += 1,
        }
    }
    // Newest first; of copies in several folders the one that was written last.
    found.sort_by(|one, other| other.place.cmp(&one.place));
    let mut seen = std::collections::HashSet::new();
    found.retain(|one| seen.insert(one.place.thread.clone()));
    let mut behind = found
        .into_iter()
        .filter(|one| query.after.as_ref().is_none_or(|after| one.place < *after))
        .peekable();
    let open = conversations.open_conversations();
    let (mut threads, mut last) = (Vec::new(), None);
    for _ in 0..MAX_LOOKED_AT {
        if threads.len() >= query.limit {
            break;
        }
        let Some(one) = behind.next() else { break };
        let about = match conversations.ends_of(&one.path, READ_BYTES) {
            Ok((head, tail, whole)) => {
                let about = files::about(&head, &tail);
                if whole && !about.has_messages {
                    // Begun and never used: the program does not take it up.
                    last = Some(one.place);
                    continue;
                }
                about
            }
            Err(_) => {
                unreadable += 1;
                files::About::default()
            }
        };
        last = Some(one.place.clone());
        if query.cwd.is_some() && about.cwd != query.cwd {
            continue;
        }
        threads.push(SavedThread {
            open_in: open
                .iter()
                .find(|(thread, _)| *thread == one.place.thread.as_str())
                .map(|(_, pid)| *pid),
            thread: one.place.thread,
            title: about.title,
            cwd: about.cwd,
            started: about.started,
            updated_at: one.place.updated_at,
            bytes: one.bytes,
            session: None,
        });
    }
    let after = last.filter(|_| behind.peek().is_some());
    Ok(SavedThreads { threads, after, unreadable })
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
    let place = Place { updated_at: i64::try_from(updated).unwrap_or(i64::MAX), thread };
    Ok(Some(Found { place, path, bytes: metadata.len() }))
}

#[cfg(test)]
mod tests {
    use super::*;
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

    fn listed(folder: &tempfile::TempDir, query: &ThreadQuery) -> SavedThreads {
        let home = folder.path().to_str().expect("plain");
        of_claude(Conversations::of(AgentKind::Claude, Some(home), &[]), query).expect("listed")
    }

    fn ids(page: &SavedThreads) -> Vec<&str> {
        page.threads.iter().map(|saved| saved.thread.as_str()).collect()
    }

    #[test]
    fn the_newest_conversations_come_first_page_by_page() {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, age) in [("c-1", 30), ("c-2", 20), ("c-3", 10)] {
            save(&folder, &format!("{name}.jsonl"), age, &row("/w", name));
        }
        save(&folder, "notes.txt", 1, "x");
        save(&folder, "-p.jsonl", 1, &row("/w", "an option"));
        save(&folder, "c-0.jsonl", 1, "{\"type\":\"mode\"}\n");
        let first = listed(&folder, &ThreadQuery { limit: 2, ..ThreadQuery::default() });
        assert_eq!(ids(&first), ["c-3", "c-2"], "and nothing that the program does not take up");
        let saved = &first.threads[0];
        let about = (saved.title.as_deref(), saved.cwd.as_deref(), saved.started.as_deref());
        assert_eq!(about, (Some("c-3"), Some("/w"), Some("2026-01-01T00:00:00Z")));
        let after = first.after.expect("there is more");
        assert_eq!(Place::parse(&after.to_text()), Some(after.clone()));
        let rest = listed(&folder, &ThreadQuery { after: Some(after), limit: 2, ..ThreadQuery::default() });
        assert_eq!(ids(&rest), ["c-1"]);
        assert_eq!(rest.after, None);
    }

    #[test]
    fn only_those_of_a_folder_and_each_once() {
        let folder = tempfile::tempdir().expect("a folder");
        save(&folder, "c-1.jsonl", 10, &row("/w", "here"));
        save(&folder, "c-2.jsonl", 20, &row("/other", "there"));
        let copy = folder.path().join("projects/-copy");
        fs::create_dir_all(&copy).expect("made");
        fs::write(copy.join("c-1.jsonl"), row("/w", "here")).expect("written");
        let query = ThreadQuery { cwd: Some("/w".to_owned()), limit: 9, ..ThreadQuery::default() };
        assert_eq!(ids(&listed(&folder, &query)), ["c-1"]);
    }

    #[test]
    fn what_cannot_be_read_is_counted_and_a_home_without_conversations_is_empty() {
        let folder = tempfile::tempdir().expect("a folder");
        let query = ThreadQuery { limit: 9, ..ThreadQuery::default() };
        let empty = SavedThreads { threads: Vec::new(), after: None, unreadable: 0 };
        assert_eq!(listed(&folder, &query), empty);
        save(&folder, "c-1.jsonl", 10, &row("/w", "here"));
        // A loop of links: also root cannot follow it.
        let project = folder.path().join("projects/-w");
        std::os::unix::fs::symlink("c-2.jsonl", project.join("c-2.jsonl")).expect("linked");
        let page = listed(&folder, &query);
        assert_eq!((ids(&page), page.unreadable), (vec!["c-1"], 1));
    }
}
