//! The seam between a lane and the world: keepers, the clock and blocking work. A running host uses the real ones; the
//! simulator (`tests/sim`) puts others in their place and so decides when and how everything outside of a lane happens.
//! Not a public interface: it is visible only for that test.

use crate::lane::RELINK_PAUSE;
pub use crate::link::{FarEnd, Link, LinkEvent};
pub use crate::processes::{exit as exit_fact, exit_without_record};
use mainstay_agents::launch::THREAD_VARIABLES;
use mainstay_core::ProcessToken;
use mainstay_core::process::{ExitCause, ProcessExit};
use mainstay_keeper::launch::READY_PATIENCE;
use mainstay_keeper::wire::ToKeeper;
use mainstay_keeper::{
    AgentTrace, BirthError, FolderError, KeeperFolder, KeepersDir, LaunchSpec, Probe, ReservedFolder, probe,
};
use mainstay_store::Store;
use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How long a killed agent may take to leave the process table before it is looked at again later.
const PROOF_PATIENCE: Duration = Duration::from_secs(2);
/// How often that is looked at.
const PROOF_LOOK_EVERY: Duration = Duration::from_millis(20);

/// What looking after a process showed.
#[derive(Debug)]
pub enum Settled {
    /// It lives.
    Alive,
    /// A keeper is being born, or it could not be told just now.
    NotYet,
    /// It is proven gone; what it said before is still to be read.
    Gone(ProcessExit),
    /// Nothing is proven.
    Unverifiable(String),
}

/// Everything that a host does with keepers, beside reading their spools.
pub trait Keeping: std::fmt::Debug + Send + Sync {
    /// The folder of a token; says nothing about what exists.
    fn folder(&self, token: &str) -> KeeperFolder;
    /// Makes a keeper's folder, locked.
    ///
    /// # Errors
    /// [`FolderError`]; nothing was made.
    fn reserve(&self, token: &str) -> Result<ReservedFolder, FolderError>;
    /// Starts a keeper in its folder and waits until it answers. Blocking.
    ///
    /// # Errors
    /// [`BirthError`] says whether a process may have come to be.
    fn start(&self, reserved: ReservedFolder, spec: &LaunchSpec) -> Result<(), BirthError>;
    /// Opens the line to a keeper and says hello.
    ///
    /// # Errors
    /// Its socket does not answer.
    fn open_link(&self, folder: &KeeperFolder, hello: ToKeeper) -> io::Result<Link>;
    /// Looks after a keeper whose line is closed. Blocking. Death is only ever proven.
    fn look(&self, folder: &KeeperFolder) -> Settled;
    /// Deletes a settled keeper's folder. Blocking.
    ///
    /// # Errors
    /// [`FolderError`]; the folder stays.
    fn remove(&self, folder: &KeeperFolder) -> Result<(), FolderError>;
    /// Notes a thread in its keeper's folder, for readers without a database.
    ///
    /// # Errors
    /// [`FolderError`].
    fn note_thread(&self, folder: &KeeperFolder, thread: &str) -> Result<(), FolderError>;
    /// Tokens of folders that no record claims; those of settled ones are deleted. Blocking.
    fn unclaimed(&self, claimed: &BTreeSet<String>) -> Vec<String>;
    /// How many processes outlived what started them below a keeper, and live. Blocking, briefly.
    fn left_running(&self, _folder: &KeeperFolder) -> usize {
        0
    }
    /// Ends what commands of this thread left running below its keeper, and nothing of another thread. Blocking.
    fn end_left_running(&self, _folder: &KeeperFolder, _thread: &str) {}
    /// A keeper, other than these, whose agent lives, or may live, and holds this thread.
    fn holder_of(&self, thread: &str, except: &dyn Fn(&str) -> bool) -> Option<String>;
}

/// Time and tokens.
pub trait Clock: std::fmt::Debug + Send + Sync {
    /// Unix time in milliseconds: the one place where the host reads the clock for what it records.
    fn now(&self) -> i64;
    /// A token never used before.
    fn fresh_token(&self) -> ProcessToken;
}

/// Where blocking work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blocking {
    /// On threads for it.
    Pool,
    /// In the runtime's own order, for work that does not really block.
    Inline,
}

impl Blocking {
    /// Does the work as a task.
    pub fn run<T: Send + 'static>(self, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        match self {
            Self::Pool => tokio::task::spawn_blocking(work),
            Self::Inline => tokio::spawn(async move { work() }),
        }
    }
}

/// A classic fault, planted on purpose: the simulator must find each (`tests/sim`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The position does not commit with what was made from the records.
    PositionForgotten,
    /// Frames leave before the transaction that decided them is durable.
    EffectsBeforeCommit,
    /// Clients are answered before the transaction is durable.
    AnswersBeforeCommit,
    /// Readers see events before they are durable.
    EventsBeforeCommit,
    /// The lane goes on with its memory after a commit failed.
    MemoryKept,
    /// An answer is given to the agent twice.
    AnsweredTwice,
    /// What cannot be proven gone is taken for gone.
    DeathByGuess,
    /// Frames that the keeper has recorded are given new numbers after a restart.
    NumbersForgotten,
    /// What was made for one connection is given on the next.
    ConnectionForgotten,
    /// The outbox is not given to the keeper again after a restart.
    OutboxForgotten,
    /// When a process is lost, only one of the sessions that share it is settled.
    NeighbourForgotten,
    /// A returning host takes a process up with one of the sessions that share it.
    OneTakenUp,
    /// A keeper is started under the fence before the one that was won.
    FormerFence,
    /// A session's thread is not claimed for it.
    ClaimForgotten,
    /// A process is started before the session is durably bound to it.
    BoundLate,
    /// A keeper that does not answer is taken for gone, and its agent with it.
    SilenceIsDeath,
    /// A turn's end is not heard.
    EndForgotten,
    /// What is said to one of the sessions of a process goes to the first of them.
    MatchedByOrder,
    /// An input that nobody knows about is taken for one that the agent never had.
    UnknownIsAbsent,
    /// What nobody models is dropped, and nobody is told.
    UnmodelledIsDropped,
    /// An input for which the keeper's inbox had no room is dropped, and nobody is told.
    NoRoomIsSilent,
    /// A session that cannot be loaded keeps the others of its process from being taken up.
    OneStopsAll,
    /// Where the session that had heard the agent's handshake is not there, the others wait for it for ever.
    HandshakeForgotten,
    /// Looking at a session starts its agent.
    ReadingStarts,
    /// A stop that the store refuses is not carried out.
    StopNeedsStore,
}

/// What a host stands on.
#[derive(Debug)]
pub struct Seams {
    /// The store.
    pub store: Arc<dyn Store>,
    /// Keepers.
    pub keeping: Arc<dyn Keeping>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Blocking work.
    pub blocking: Blocking,
    /// A fault that is there on purpose.
    pub planted: Option<Planted>,
}

/// The machine's clock.
#[derive(Debug)]
pub(crate) struct MachineClock;

impl Clock for MachineClock {
    fn now(&self) -> i64 {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn fresh_token(&self) -> ProcessToken {
        ProcessToken(format!("p-{}", uuid::Uuid::now_v7().simple()))
    }
}

/// Real keepers, each a process of its own.
#[derive(Debug)]
pub(crate) struct Keepers {
    pub(crate) dir: KeepersDir,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
}

impl Keeping for Keepers {
    fn folder(&self, token: &str) -> KeeperFolder {
        self.dir.folder(token)
    }

    fn reserve(&self, token: &str) -> Result<ReservedFolder, FolderError> {
        self.dir.reserve(token)
    }

    fn start(&self, reserved: ReservedFolder, spec: &LaunchSpec) -> Result<(), BirthError> {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let mut newborn = mainstay_keeper::start(reserved, spec, &self.program, &args)?;
        let ready = newborn.wait_ready(READY_PATIENCE);
        let _folder = newborn.reap_in_background();
        ready.map_err(BirthError::After)
    }

    fn open_link(&self, folder: &KeeperFolder, hello: ToKeeper) -> io::Result<Link> {
        Link::open(folder, hello)
    }

    fn look(&self, folder: &KeeperFolder) -> Settled {
        match probe(folder) {
            Probe::Alive { .. } => {
                // Its lock is held: it lives, or it is just leaving and its exit record follows.
                std::thread::sleep(RELINK_PAUSE / 8);
                match probe(folder) {
                    Probe::Alive { .. } => Settled::Alive,
                    other => settle(folder, other),
                }
            }
            other => settle(folder, other),
        }
    }

    fn remove(&self, folder: &KeeperFolder) -> Result<(), FolderError> {
        folder.remove()
    }

    fn note_thread(&self, folder: &KeeperFolder, thread: &str) -> Result<(), FolderError> {
        folder.append_thread(thread)
    }

    fn left_running(&self, folder: &KeeperFolder) -> usize {
        match mainstay_keeper::left_running(folder) {
            Ok(left) => left.len(),
            Err(error) => {
                // Nothing that could be told holds it.
                tracing::warn!(
                    token = folder.token,
                    error = crate::lane::chain(&error),
                    "what it left running cannot be told"
                );
                0
            }
        }
    }

    fn end_left_running(&self, folder: &KeeperFolder, thread: &str) {
        match mainstay_keeper::end_left_running(folder, &thread_marks(&[thread.to_owned()])) {
            Ok(ended) => {
                for stray in ended {
                    let (token, pid, comm) = (&folder.token, stray.pid, &stray.comm);
                    tracing::info!(token, thread, pid, comm, outcome = ?stray.outcome, "a process that a left conversation had left running");
                }
            }
            Err(error) => tracing::warn!(
                token = folder.token,
                thread,
                error = crate::lane::chain(&error),
                "what a left conversation had left running cannot be told"
            ),
        }
    }

    fn holder_of(&self, thread: &str, except: &dyn Fn(&str) -> bool) -> Option<String> {
        let holds = |folder: &KeeperFolder| {
            // A keeper that has recorded its agent's end lives on for a moment, to tell it.
            let is_over = || folder.exit_record().is_ok_and(|exit| exit.is_some());
            !except(&folder.token)
                && folder.threads().is_ok_and(|threads| threads.iter().any(|bound| bound == thread))
                && !is_over()
                && !probe(folder).proves_the_agent_gone()
        };
        self.dir.list().ok()?.into_iter().find(holds).map(|folder| folder.token)
    }

    fn unclaimed(&self, claimed: &BTreeSet<String>) -> Vec<String> {
        let mut unclaimed = Vec::new();
        if let Err(error) = self.dir.remove_leftovers() {
            tracing::warn!(%error, "what an interrupted clean-up left stays for now");
        }
        let folders = match self.dir.list() {
            Ok(folders) => folders,
            Err(error) => {
                tracing::error!(%error, "the keepers' folder cannot be read");
                return unclaimed;
            }
        };
        for folder in folders.into_iter().filter(|folder| !claimed.contains(&folder.token)) {
            match probe(&folder) {
                // Nothing ran and nothing will, or its end was settled before: only the folder is left.
                Probe::Unused | Probe::Ended { .. } => {
                    if let Err(error) = folder.remove() {
                        tracing::debug!(token = folder.token, %error, "an old keeper's folder stays for now");
                    }
                }
                Probe::Alive { .. }
                | Probe::BeingBorn
                | Probe::KeeperGone { .. }
                | Probe::Indeterminate { .. } => {
                    tracing::warn!(
                        token = folder.token,
                        "a keeper's folder belongs to no record: it is left alone"
                    );
                    unclaimed.push(folder.token);
                }
            }
        }
        unclaimed
    }
}

/// What commands of these conversations have in their environment, beside the keeper's token.
fn thread_marks(threads: &[String]) -> Vec<(String, String)> {
    let marks = |thread: &String| {
        THREAD_VARIABLES.iter().map(|variable| ((*variable).to_owned(), thread.clone())).collect::<Vec<_>>()
    };
    threads.iter().flat_map(marks).collect()
}

/// Looks until the agent is proven gone: one that was just killed stays in the process table until somebody reaps it. What
/// was ended with it is known here only, and would be missing from its exit if this were left to a later look.
fn proven(folder: &KeeperFolder) -> Probe {
    let give_up = Instant::now() + PROOF_PATIENCE;
    loop {
        let seen = probe(folder);
        if seen.proves_the_agent_gone() || Instant::now() >= give_up {
            return seen;
        }
        std::thread::sleep(PROOF_LOOK_EVERY);
    }
}

fn settle(folder: &KeeperFolder, seen: Probe) -> Settled {
    let without_record = |cause| exit_without_record(cause, folder.inbox_state().ok().flatten());
    match seen {
        Probe::Alive { .. } | Probe::BeingBorn => Settled::NotYet,
        Probe::Ended { exit } => Settled::Gone(exit_fact(&exit)),
        Probe::Unused => Settled::Gone(ProcessExit::of(ExitCause::ReservationUnused)),
        Probe::KeeperGone { agent: AgentTrace::Indeterminate { why } } | Probe::Indeterminate { why } => {
            Settled::Unverifiable(why)
        }
        Probe::KeeperGone { agent } => {
            let marks = thread_marks(&folder.threads().unwrap_or_default());
            let swept = match mainstay_keeper::sweep(folder, &marks) {
                Ok(swept) => swept,
                Err(error) => return Settled::Unverifiable(crate::lane::chain(&error)),
            };
            let mut exit = match agent {
                AgentTrace::NeverRan => ProcessExit::of(ExitCause::ReservationUnused),
                _ => without_record(ExitCause::KeeperLost),
            };
            let unproven = swept.unproven.len();
            exit.strays = swept
                .killed
                .iter()
                .chain(&swept.gone)
                .chain(&swept.unproven)
                .map(crate::processes::stray)
                .collect();
            // The agent itself must be proven gone; what else could not be is listed, not assumed.
            match proven(folder) {
                Probe::KeeperGone { agent: AgentTrace::Gone(_) | AgentTrace::NeverRan } => {
                    Settled::Gone(exit)
                }
                Probe::Ended { exit } => Settled::Gone(exit_fact(&exit)),
                seen => Settled::Unverifiable(format!(
                    "the agent's process is not proven gone after the sweep ({unproven} unproven): {seen:?}"
                )),
            }
        }
    }
}
