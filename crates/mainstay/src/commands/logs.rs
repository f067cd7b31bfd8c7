//! `logs`: the host's log, and what agents and keepers wrote on standard error. Reads files; needs no host, except to find
//! a session's keeper.

use super::client;
use crate::cli::LogsArgs;
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::logging;
use crate::output;
use mainstay_keeper::KeepersDir;
use mainstay_keeper::folder::names;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a followed file is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Bytes of a file's end that are searched for its last lines.
const TAIL_BYTES: u64 = 4 * 1024 * 1024;
/// Bytes read of a followed file at once.
const PIECE: usize = 256 * 1024;

pub(crate) async fn print(settings: &Settings, args: &LogsArgs) -> Result<Exit, Failure> {
    let (older, file) = match (&args.session, &args.keeper) {
        (Some(session), _) => agent_files(settings, &keeper_of(settings, session).await?)?,
        (None, Some(token)) if args.own => {
            let file = keeper_folder(settings, token)?.join(names::KEEPER_LOG);
            (file.with_extension("none"), file)
        }
        (None, Some(token)) => agent_files(settings, token)?,
        (None, None) => {
            let file = logging::file_of(&settings.home);
            (logging::older(&file), file)
        }
    };
    let wanted = usize::try_from(args.lines).unwrap_or(usize::MAX);
    let mut lines = last_lines(&file, wanted)?;
    if lines.len() < wanted {
        let more = last_lines(&older, wanted - lines.len())?;
        lines.splice(0..0, more);
    }
    for line in &lines {
        output::line(line)?;
    }
    if lines.is_empty() && !args.follow {
        let hint = match (&args.session, &args.keeper) {
            (None, None) => "; a host that runs in a terminal logs there",
            _ => "; what an agent said last stands in its `process.exited` event",
        };
        output::note(&format!("{} holds nothing{hint}", file.display()));
    }
    if args.follow {
        follow(&file).await?;
    }
    Ok(Exit::Completed)
}

fn keeper_folder(settings: &Settings, token: &str) -> Result<PathBuf, Failure> {
    let folders = KeepersDir::new(settings.home.join("keepers")).list();
    let folders = folders.map_err(|error| Failure::other(&error))?;
    // Among those that are there: a token is no path.
    match folders.into_iter().find(|folder| folder.token == token) {
        Some(folder) => Ok(folder.path),
        None => Err(Failure::new(
            Exit::Refused,
            format!("there is no keeper {token:?}; `mainstay ps` lists them"),
        )),
    }
}

/// What the agent wrote on standard error, the older part first.
fn agent_files(settings: &Settings, token: &str) -> Result<(PathBuf, PathBuf), Failure> {
    let folder = keeper_folder(settings, token)?;
    Ok((folder.join(names::STDERR_OLD), folder.join(names::STDERR)))
}

async fn keeper_of(settings: &Settings, session: &str) -> Result<String, Failure> {
    let listed = client(settings).get("/v1/keepers").await?;
    let keepers = listed["keepers"].as_array().into_iter().flatten();
    let has = |keeper: &&serde_json::Value| {
        keeper["session"] == session
            || keeper["sessions"].as_array().is_some_and(|sessions| sessions.iter().any(|one| one == session))
    };
    match keepers.filter(has).find_map(|keeper| keeper["token"].as_str()) {
        Some(token) => Ok(token.to_owned()),
        None => Err(Failure::new(
            Exit::Refused,
            format!(
                "session {session} has no agent process now; what one said last stands in its `process.exited` event"
            ),
        )),
    }
}

/// The last lines of a file; none of one that is not there.
fn last_lines(path: &Path, count: usize) -> io::Result<Vec<String>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines[lines.len().saturating_sub(count)..].iter().map(|line| (*line).to_owned()).collect())
}

/// Prints what is added, also when the file begins anew, until nobody reads any more.
async fn follow(path: &Path) -> Result<(), Failure> {
    let mut at = path.metadata().map_or((0, 0), |meta| (meta.ino(), meta.len()));
    let mut open: Option<File> = File::open(path).ok();
    let mut piece = vec![0; PIECE];
    loop {
        let mut heard = false;
        if let Some(file) = &mut open {
            file.seek(SeekFrom::Start(at.1))?;
            let read = file.read(&mut piece)?;
            at.1 += read as u64;
            heard = read > 0;
            match output::text(&String::from_utf8_lossy(&piece[..read])) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                printed => printed?,
            }
        }
        if heard {
            continue;
        }
        // The one that was open is read to its end: another in its place is begun.
        match path.metadata() {
            Ok(meta) if meta.ino() != at.0 || meta.len() < at.1 => {
                at = (meta.ino(), 0);
                open = File::open(path).ok();
            }
            _ => tokio::time::sleep(LOOK_EVERY).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole_and_few() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.log");
        assert_eq!(last_lines(&path, 3).expect("reads"), Vec::<String>::new());
        std::fs::write(&path, b"one\ntwo\xff\nthree\nfour").expect("write");
        assert_eq!(last_lines(&path, 3).expect("reads"), ["two\u{fffd}", "three", "four"]);
        assert_eq!(last_lines(&path, 0).expect("reads"), Vec::<String>::new());
        assert_eq!(last_lines(&path, 30).expect("reads").len(), 4);
    }
}
