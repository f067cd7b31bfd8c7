//! A scripted agent for hosts to be tested with, in three protocols: ACP and stream-json on standard input and output, and
//! an app-server that speaks WebSocket on a Unix socket. It behaves as the recorded agents do, except where its
//! [`script`] says otherwise: faults that real agents do not show on demand are shown by it.
//!
//! The protocol follows from the arguments, which are those of the real programs: `app-server --listen unix://PATH`;
//! `-p … --session-id=ID` or `--resume=ID`; anything else is ACP.
//!
//! | variable | meaning |
//! |---|---|
//! | `SCRIPT` | the script's file; without it every message is echoed |
//! | `SCRIPTED_STATE` | the folder in which conversations and counts are kept over processes |
//! | `SCRIPTED_LOG` | one JSON line `{pid, session, prompt}` is appended for each message of a user that arrives |
//!
//! A script that cannot be read ends it with code 2, and its line and word on standard error.

mod acp;
mod app_server;
mod flavour;
mod kept;
mod output;
mod play;
mod script;
mod stage;
mod stream_json;

use flavour::Flavour;
use output::Output;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use script::Script;
use stage::Stage;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The first argument that turns this program into the start of a detached process.
pub(crate) const DETACHED: &str = "--detached";

/// How often it is looked whether the script lets something be read.
const LOOK_EVERY: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, command] = arguments.as_slice()
        && first == DETACHED
    {
        return run_detached(command);
    }
    let outcome =
        read_script().and_then(|script| serve(&arguments, script).map_err(|error| error.to_string()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(words) => {
            complain(&words);
            ExitCode::from(2)
        }
    }
}

/// Standard error is all there is to complain on; with that gone too there is nobody left to tell.
pub(crate) fn complain(words: &str) {
    writeln!(io::stderr(), "scripted-agent: {words}").ok();
}

/// Becomes `command` in a session of its own.
fn run_detached(command: &str) -> ExitCode {
    let error = match rustix::process::setsid() {
        Ok(_) => Command::new("sh").args(["-c", command]).exec(),
        Err(error) => error.into(),
    };
    complain(&format!("detach: {error}"));
    ExitCode::FAILURE
}

fn read_script() -> Result<Script, String> {
    let Some(path) = std::env::var_os("SCRIPT").map(PathBuf::from) else { return Ok(Script::default()) };
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Script::parse(&text).map_err(|bad| format!("{}: {bad}", path.display()))
}

fn serve(arguments: &[String], script: Script) -> io::Result<()> {
    let value = |name: &str| {
        let joined = arguments.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        let next = || arguments.iter().skip_while(|word| *word != name).nth(1).map(String::as_str);
        joined.or_else(next).map(str::to_owned)
    };
    if arguments.iter().any(|word| word == "app-server") {
        let listen = value("--listen").unwrap_or_default();
        let Some(path) = listen.strip_prefix("unix://") else {
            return Err(io::Error::other("app-server wants --listen unix://PATH"));
        };
        let stage = Stage::new(script, Box::new(app_server::AppServer), Output::socket())?;
        stage.open();
        return app_server::listen(&stage, path.as_ref());
    }
    let flavour: Box<dyn Flavour> = if arguments.iter().any(|word| word == "-p") {
        let fork = arguments.iter().any(|word| word == "--fork-session");
        Box::new(stream_json::StreamJson::new(value("--session-id"), value("--resume").filter(|_| !fork))?)
    } else {
        Box::new(acp::Acp)
    };
    let stage = Stage::new(script, flavour, Output::stdio())?;
    stage.open();
    let mut stdin = BufReader::new(File::from(rustix::stdio::stdin().try_clone_to_owned()?));
    let mut line = Vec::new();
    loop {
        line.clear();
        if stdin.buffer().is_empty() {
            wait_until_heard(&stage, stdin.get_ref())?;
        }
        if stdin.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        match serde_json::from_slice(&line) {
            Ok(message) => stage.hear(message),
            Err(error) => complain(&format!("not JSON: {error}")),
        }
    }
    while stage.ignore_eof.load(Ordering::SeqCst) {
        // Only a signal ends it now.
        std::thread::park();
    }
    // Not a return: a turn in another thread must not delay the end.
    std::process::exit(0);
}

/// Waits until there is something to read and the script does not say `deaf`. What is read is read whole, so nothing may be
/// begun before.
fn wait_until_heard(stage: &Stage, stdin: &File) -> io::Result<()> {
    loop {
        if stage.deaf.load(Ordering::SeqCst) {
            std::thread::sleep(LOOK_EVERY);
            continue;
        }
        let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(LOOK_EVERY.subsec_nanos()) };
        match poll(&mut [PollFd::new(stdin, PollFlags::IN)], Some(&patience)) {
            // A step may have said `deaf` meanwhile.
            Ok(1..) if !stage.deaf.load(Ordering::SeqCst) => return Ok(()),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

impl Stage {
    /// Plays what comes before anything is read.
    fn open(self: &Arc<Self>) {
        if let Some(block) = self.script.at_start() {
            self.play_block(&block.steps.clone(), &stage::Scene::default());
        }
        self.flavour.opened(self);
    }
}
