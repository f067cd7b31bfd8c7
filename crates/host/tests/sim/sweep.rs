//! Many seeds: the ranges that every run of the tests covers, and longer runs on demand.

use crate::run::{self, Covered, Failure, Options};
use crate::{alarm, replay};
use mainstay_agents::AgentKind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once, PoisonError};
use std::time::Instant;

/// Seeds of one test. Together the tests run 20,000 of them, which is what it takes to find the rarest planted fault
/// several times over; a part is small enough that two cores share the work well, and that a loaded machine ends it
/// within the time that a test has.
const SEEDS_OF_A_PART: u64 = 1_000;

/// Failures of one run that are told by their seeds; the first of them is told in full.
const TOLD: usize = 20;

/// Flavours of the simulation, by their names on a command line.
pub(crate) const FLAVOURS: [(&str, AgentKind); 3] =
    [("codex", AgentKind::Codex), ("acp", AgentKind::Acp), ("claude", AgentKind::Claude)];

pub(crate) const fn name_of(kind: AgentKind) -> &'static str {
    match kind {
        AgentKind::Codex => "codex",
        AgentKind::Claude => "claude",
        AgentKind::Acp | AgentKind::Demo => "acp",
    }
}

/// A number, or a flavour, that a command line gave.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

pub(crate) fn flavour() -> Option<AgentKind> {
    let wanted = std::env::var("SIM_FLAVOUR").ok()?;
    FLAVOURS.iter().find(|(name, _)| *name == wanted).map(|(_, kind)| *kind)
}

/// Gives a folder for keepers and spools, in memory where there is one, and hears what the host says.
pub(crate) fn prepared<T>(work: impl FnOnce(&Path) -> T) -> T {
    static PANICS: Once = Once::new();
    PANICS.call_once(alarm::listen_for_panics);
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let home = folder.expect("a temp folder");
    tracing::subscriber::with_default(alarm::Ear, || work(home.path()))
}

/// One of the parts that every run of the tests covers.
pub(crate) fn part(kind: AgentKind, number: u64) {
    let first = number * SEEDS_OF_A_PART;
    sweep(kind, &AtomicU64::new(first), first + SEEDS_OF_A_PART);
}

/// Runs seeds until there are none left, and tells which failed.
fn sweep(kind: AgentKind, next: &AtomicU64, end: u64) {
    let options = Options { journal_fails: journal_fails(), ..Options::default() };
    prepared(|home| {
        let begun = Instant::now();
        let (mut all, mut seeds) = (Covered::default(), 0_u32);
        let mut failed: Vec<(u64, Failure)> = Vec::new();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end || failed.len() == TOLD {
                break;
            }
            match run::seed(seed, home, kind, &options) {
                Ok(covered) => {
                    seeds += 1;
                    all.add(&covered);
                }
                Err(failure) => failed.push((seed, failure)),
            }
        }
        if let Some((seed, failure)) = failed.first() {
            for (seed, failure) in &failed {
                eprintln!("failed: {} {seed}: {}", name_of(kind), failure.why);
            }
            fail(*seed, home, kind, failure);
        }
        let took = begun.elapsed();
        let rate = f64::from(seeds) / took.as_secs_f64();
        eprintln!("{}: {seeds} seeds in {took:?} ({rate:.0} a second): {all:?}", name_of(kind));
    });
}

/// `SIM_JOURNAL_FAILS=1`: journals fail and are repaired also while the host lives. About one in a thousand of these
/// schedules is not clean yet; those of the tests let journals fail, and be repaired, between two lives of the host.
pub(crate) fn journal_fails() -> bool {
    number("SIM_JOURNAL_FAILS") == Some(1)
}

/// Runs a seed that failed once more, to tell how it came about.
fn fail(seed: u64, home: &Path, kind: AgentKind, failure: &Failure) -> ! {
    // Two that fail at once tell one after the other.
    static TELLS: Mutex<()> = Mutex::new(());
    let _alone = TELLS.lock().unwrap_or_else(PoisonError::into_inner);
    replay::tell(seed, home, kind, &Options { journal_fails: journal_fails(), ..Options::traced() });
    let flavour = name_of(kind);
    panic!("seed {seed}: {}\nreplay: cargo xtask sim replay {seed} --flavour {flavour}", failure.why);
}

/// As many seeds as `SIM_SEEDS` says, from `SIM_FIRST` on, of one flavour or of all, on all cores.
#[test]
#[ignore = "a long run: cargo xtask sim run --seeds N"]
fn long_run() {
    let first = number("SIM_FIRST").unwrap_or(0);
    let end = first + number("SIM_SEEDS").unwrap_or(SEEDS_OF_A_PART);
    let wanted = flavour();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    for (_, kind) in FLAVOURS.into_iter().filter(|(_, kind)| wanted.is_none_or(|wanted| wanted == *kind)) {
        let next = AtomicU64::new(first);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| sweep(kind, &next, end));
            }
        });
    }
}

macro_rules! parts {
    ($($kind:ident: $($name:ident $number:literal)*;)*) => {$($(
        #[test]
        fn $name() {
            part(AgentKind::$kind, $number);
        }
    )*)*};
}

parts! {
    Codex: codex_0 0 codex_1 1 codex_2 2 codex_3 3 codex_4 4 codex_5 5 codex_6 6 codex_7 7;
    Acp: acp_0 0 acp_1 1 acp_2 2 acp_3 3 acp_4 4 acp_5 5;
    Claude: claude_0 0 claude_1 1 claude_2 2 claude_3 3 claude_4 4 claude_5 5;
}
