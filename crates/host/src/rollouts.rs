//! The records that Codex keeps of its threads, read without an agent: which there are, and the past of one. Looks only;
//! the agent's files are never written.

use mainstay_agents::AgentKind;
use mainstay_agents::codex::rollout::{self, Base, Head, MAX_RECORD_BYTES};
use mainstay_core::ThreadId;
use mainstay_core::agent::AgentEvent;
use mainstay_core::session::Past;
use serde::Deserialize;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// The variable that names the home.
const HOME_VARIABLE: &str = "CODEX_HOME";
/// The home below `HOME`, where nothing names one.
const DEFAULT_HOME: &str = ".codex";
/// Where records stand, by year, month and day.
const RECORDS: &str = "sessions";
/// Where those of archived threads stand.
const ARCHIVED: &str = "archived_sessions";
/// The names of threads, a line for each time that one was given.
const NAMES: &str = "session_index.jsonl";
/// Folders and files that are looked through. A home with more is listed in part, and says so.
const MAX_ENTRIES: usize = 100_000;
/// The most of a record that is read to list it: its first line alone holds the agent's instructions.
const MAX_LISTED_BYTES: u64 = 512 << 10;
/// The most of the file of names that is read, from its end.
const MAX_NAMES_BYTES: u64 = 4 << 20;
/// The most text of a past that is taken over. It becomes events in one transaction; of a longer one nothing is shown, and
/// that is said.
const MAX_PAST_BYTES: usize = 16 << 20;
/// The longest preview, in characters.
const MAX_PREVIEW_CHARS: usize = 160;

/// A thread that stands in a home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) head: Head,
    /// As it was named last.
    pub(crate) name: Option<String>,
    /// The beginning of the first message.
    pub(crate) preview: Option<String>,
    /// When its record was written last, Unix ms.
    pub(crate) updated_at: Option<i64>,
    pub(crate) archived: bool,
}

/// Threads of a home, the newest first.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) threads: Vec<Listed>,
    /// There are more, or something could not be read.
    pub(crate) incomplete: bool,
}

/// The records of one home.
#[derive(Debug)]
pub(crate) struct Rollouts {
    home: PathBuf,
}

/// A record's place. They sort by their names, which begin with the time of their beginning.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    name: String,
    path: PathBuf,
    archived: bool,
}

/// How many bytes of one history may still be read, and why a record was not.
struct Reading {
    left: usize,
    failed: Option<io::Error>,
}

impl Reading {
    fn take(&mut self, place: &Place) -> Option<Vec<u8>> {
        let read = whole(&place.path, self.left);
        let bytes = read.map_err(|error| self.failed = Some(error)).ok()?;
        self.left -= bytes.len();
        Some(bytes)
    }
}

impl Rollouts {
    /// None for agents that keep no such records, or where no home is known.
    pub(crate) fn of(kind: AgentKind, account_home: Option<&str>, env: &[(String, String)]) -> Option<Self> {
        if kind != AgentKind::Codex {
            return None;
        }
        let value = |wanted: &str| env.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        let home = account_home
            .map(PathBuf::from)
            .or_else(|| value(HOME_VARIABLE).map(PathBuf::from))
            .or_else(|| value("HOME").map(|home| Path::new(home).join(DEFAULT_HOME)))?;
        Some(Self { home })
    }

    /// The whole past of a thread, or why there is none to be had.
    pub(crate) fn past(&self, thread: &ThreadId) -> Past {
        self.read_past(thread).unwrap_or_else(Past::LeftOut)
    }

    fn read_past(&self, thread: &ThreadId) -> Result<Past, String> {
        let (places, _) =
            self.places().map_err(|error| format!("the agent's home cannot be read: {error}"))?;
        let of = |thread: &str| -> Vec<&Place> {
            let end = format!("-{thread}.jsonl");
            places.iter().filter(|place| place.name.ends_with(&end)).collect()
        };
        let mine = of(thread.as_str());
        let newest =
            mine.last().ok_or_else(|| format!("no record of thread {thread} is in the agent's home"))?;
        let mut reading = Reading { left: MAX_RECORD_BYTES, failed: None };
        let record = reading.take(newest);
        let mut newer = newest.name.clone();
        let read = rollout::read(&record.unwrap_or_default(), |base: &Base| {
            // Of several of that thread, the newest that was begun before the one that goes on from it.
            let before = of(base.thread.as_str()).into_iter().rfind(|place| place.name < newer)?;
            newer.clone_from(&before.name);
            reading.take(before)
        });
        if let Some(error) = reading.failed {
            return Err(format!("its record cannot be read: {error}"));
        }
        match read {
            Ok(read) if read.head.thread != *thread => {
                Err(format!("the record of thread {thread} is that of {}", read.head.thread))
            }
            Ok(read) if text_of(&read.said) > MAX_PAST_BYTES => {
                Err(format!("it has more than {MAX_PAST_BYTES} bytes of text"))
            }
            Ok(read) => Ok(Past::Whole(read.said)),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The threads of the home that are nobody's sub-agents, at most so many of them.
    pub(crate) fn list(&self, most: usize) -> Listing {
        let mut listing = Listing::default();
        let Ok((places, all)) = self.places() else { return Listing { incomplete: true, ..listing } };
        listing.incomplete = !all;
        let names = self.names();
        for place in places.iter().rev() {
            // A thread that was taken back has several; the newest says how it stands.
            let end = |known: &Listed| place.name.ends_with(&format!("-{}.jsonl", known.head.thread));
            if listing.threads.iter().any(end) {
                continue;
            }
            let Some((head, preview)) = beginning(&place.path) else {
                listing.incomplete = true;
                continue;
            };
            if head.parent.is_some() {
                continue;
            }
            if listing.threads.len() == most {
                listing.incomplete = true;
                break;
            }
            let name = names.get(head.thread.as_str()).cloned();
            let updated_at = written_at(&place.path);
            listing.threads.push(Listed { head, name, preview, updated_at, archived: place.archived });
        }
        listing
    }

    /// All records, by name, and whether these are all.
    fn places(&self) -> io::Result<(Vec<Place>, bool)> {
        let (mut places, mut looked_at, mut all) = (Vec::new(), 0, true);
        for (root, archived) in [(RECORDS, false), (ARCHIVED, true)] {
            let mut folders = vec![(self.home.join(root), 0)];
            while let Some((folder, depth)) = folders.pop() {
                let entries = match fs::read_dir(&folder) {
                    Ok(entries) => entries,
                    Err(error) if error.kind() == ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                };
                for entry in entries {
                    looked_at += 1;
                    if looked_at > MAX_ENTRIES {
                        all = false;
                        break;
                    }
                    let entry = entry?;
                    // Not what a link points to: it could lead anywhere.
                    let kind = entry.file_type()?;
                    let Ok(name) = entry.file_name().into_string() else { continue };
                    if kind.is_dir() && depth < 3 {
                        folders.push((entry.path(), depth + 1));
                    } else if kind.is_file() && name.starts_with("rollout-") && name.ends_with(".jsonl") {
                        places.push(Place { name, path: entry.path(), archived });
                    }
                }
            }
        }
        places.sort();
        Ok((places, all))
    }

    /// The newest name of each thread. A file that cannot be read names none.
    fn names(&self) -> HashMap<String, String> {
        #[derive(Deserialize)]
        struct Named {
            id: String,
            thread_name: Option<String>,
        }
        let mut names = HashMap::new();
        let Ok(mut file) = File::open(self.home.join(NAMES)) else { return names };
        let length = file.metadata().map_or(0, |meta| meta.len());
        // The names that were given last stand at its end; a line that is cut in half there is none.
        if file.seek(SeekFrom::Start(length.saturating_sub(MAX_NAMES_BYTES))).is_err() {
            return names;
        }
        for line in BufReader::new(file.take(MAX_NAMES_BYTES)).split(b'\n').map_while(Result::ok) {
            if let Ok(Named { id, thread_name: Some(name) }) = serde_json::from_slice(&line) {
                names.insert(id, name);
            }
        }
        names
    }
}

/// How many bytes of text a past has.
fn text_of(said: &[AgentEvent]) -> usize {
    let of = |event: &AgentEvent| match event {
        AgentEvent::ItemCompleted { text, fields, .. } => {
            let fields = serde_json::to_vec(fields).map_or(0, |fields| fields.len());
            text.as_ref().map_or(0, String::len).saturating_add(fields)
        }
        _ => 0,
    };
    said.iter().map(of).fold(0, usize::saturating_add)
}

/// The head of a record and the beginning of its first message.
fn beginning(path: &Path) -> Option<(Head, Option<String>)> {
    let mut lines = BufReader::new(File::open(path).ok()?.take(MAX_LISTED_BYTES));
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).ok()?;
    let head = rollout::head(&line)?;
    loop {
        line.clear();
        if lines.read_until(b'\n', &mut line).ok()? == 0 {
            return Some((head, None));
        }
        if let Some(message) = rollout::user_message(&line) {
            return Some((head, Some(message.chars().take(MAX_PREVIEW_CHARS).collect())));
        }
    }
}

fn written_at(path: &Path) -> Option<i64> {
    let written = fs::metadata(path).ok()?.modified().ok()?;
    let since = written.duration_since(std::time::UNIX_EPOCH).ok()?;
    i64::try_from(since.as_millis()).ok()
}

/// A file of at most so many bytes.
fn whole(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let most = u64::try_from(most).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length <= most) {
        return Ok(bytes);
    }
    let words = format!("the conversation's records have more than {MAX_RECORD_BYTES} bytes");
    Err(io::Error::new(ErrorKind::FileTooLarge, words))
}
