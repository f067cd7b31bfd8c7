//! A host in the background, for commands that need one.

use crate::client::{Client, ClientError};
use crate::config::Settings;
use crate::failure::{Exit, Failure};
use crate::logging;
use crate::output;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::Instant;

/// How long a starting host may take to listen. It takes milliseconds; a large recovery on a slow disk takes longer.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// How long to wait for a host that another command is starting at this moment.
const OTHER_DEADLINE: Duration = Duration::from_secs(10);
/// Pause between looks for that host.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What is shown of the log of a host that did not start.
const LOG_TAIL_BYTES: u64 = 2_000;

/// A client of a running host, started if there is none.
pub(crate) async fn ensure_host(settings: &Settings, started_in: Option<&Path>) -> Result<Client, Failure> {
    let client = Client::new(&settings.home);
    match client.find().await {
        Ok(_) => return Ok(client),
        Err(ClientError::NoHost(_)) => {}
        Err(error) => return Err(error.into()),
    }
    let log = logging::file_of(&settings.home);
    let (begin, home_taken) = match start(&settings.home, started_in, &log).await {
        Ok(Started::Listening) => {
            output::note(&format!("started a host in the background (log: {})", log.display()));
            return Ok(client);
        }
        Ok(Started::Ended { log_begin, home_taken }) => (log_begin, home_taken),
        Err(error) => return Err(Failure::new(Exit::NoHost, format!("cannot start a host: {error}"))),
    };
    // Another command has just started one: it listens soon.
    let give_up = Instant::now() + OTHER_DEADLINE;
    while home_taken && Instant::now() < give_up {
        if client.find().await.is_ok() {
            return Ok(client);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    Err(Failure::new(
        Exit::NoHost,
        format!("the host did not start; its log says: {}", tail(&log, begin).trim()),
    ))
}

enum Started {
    Listening,
    Ended { log_begin: u64, home_taken: bool },
}

async fn start(home: &Path, started_in: Option<&Path>, log: &Path) -> std::io::Result<Started> {
    if let Some(folder) = log.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let stderr = File::options().create(true).append(true).mode(0o600).open(log)?;
    let log_begin = stderr.metadata()?.len();
    let mut command = Command::new("/proc/self/exe");
    // Its name for people who look at processes; the program is the running one also after an upgrade on disk.
    command.arg0("mainstay").args(["serve", "--json", "--background"]);
    if let Some(folder) = started_in {
        command.arg("--started-in").arg(folder);
    }
    let mut child = command
        .env("MAINSTAY_HOME", home)
        // The host is nobody's agent, whoever started it.
        .env_remove(mainstay_api::KEEPER_TOKEN_VARIABLE)
        .current_dir(home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()?;
    let Some(stdout) = child.stdout.take() else {
        return Ok(Started::Ended { log_begin, home_taken: false });
    };
    let mut lines = BufReader::new(stdout).lines();
    match tokio::time::timeout(START_DEADLINE, lines.next_line()).await {
        Ok(Ok(Some(_address))) => Ok(Started::Listening),
        Ok(_) => {
            let status = child.wait().await?;
            Ok(Started::Ended {
                log_begin,
                home_taken: status.code() == Some(i32::from(Exit::Refused.code())),
            })
        }
        Err(_) => Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it said nothing in time")),
    }
}

fn tail(log: &Path, begin: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(log)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(begin.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().unwrap_or_default()
}
