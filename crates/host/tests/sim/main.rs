//! The simulator: the real core, the real lanes and the real adapters (ACP and Codex) in a world of their own, where a
//! seed decides what happens when: commands of racing clients, single steps of store, keepers and agents, and faults of
//! all of them, a crash of the host between any two tasks included. After every step the durable journal is judged from
//! outside (`oracle`) against the rules and against what the agents know to be true.
//!
//! `SIM_SEED=n` replays one seed (with the test of its kind of agent) and prints how it came about; `SIM_SEEDS=n` runs
//! that many, from `SIM_FIRST` on.
#![expect(clippy::expect_used, clippy::print_stderr, reason = "helpers of tests, and their report")]

mod acp;
mod agent;
mod alarm;
mod chance;
mod claude;
mod clients;
mod codex;
mod disk;
mod judging;
mod keeper;
mod oracle;
mod run;
mod transcript;
mod world;

use keeper::BadKeeper;
use mainstay_agents::AgentKind;
use mainstay_host::keeping::Planted;
use run::{Covered, Failure};
use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

/// How long a run over many seeds takes, where no number is given. There are two, one for each kind of agent.
const BUDGET: Duration = Duration::from_secs(28);
/// Seeds within which a planted fault must be found.
const FOUND_WITHIN: u64 = 5_000;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// A folder for the spools: in memory where there is one.
fn home() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    folder.expect("a temp folder")
}

fn prepared<T>(work: impl FnOnce(&Path) -> T) -> T {
    static PANICS: Once = Once::new();
    PANICS.call_once(alarm::listen_for_panics);
    let home = home();
    tracing::subscriber::with_default(alarm::Ear, || work(home.path()))
}

/// Runs a seed that failed once more and prints how it came about.
fn report(seed: u64, home: &Path, kind: AgentKind, failure: &Failure) {
    let again = run::seed(seed, home, kind, None, None, true).err();
    for line in again.iter().flat_map(|again| &again.trace) {
        eprintln!("{line}");
    }
    eprintln!("seed {seed}: {}\nreplay with SIM_SEED={seed} and the test of {kind:?}", failure.why);
}

#[test]
fn sim_many_seeds_acp() {
    many_seeds(AgentKind::Acp);
}

#[test]
fn sim_many_seeds_codex() {
    many_seeds(AgentKind::Codex);
}

#[test]
fn sim_many_seeds_claude() {
    many_seeds(AgentKind::Claude);
}

fn many_seeds(kind: AgentKind) {
    prepared(|home| {
        let (first, last) = match number("SIM_SEED") {
            Some(seed) => (seed, seed + 1),
            None => (number("SIM_FIRST").unwrap_or(0), u64::MAX),
        };
        let most = number("SIM_SEEDS");
        let begun = Instant::now();
        let mut all = Covered::default();
        let mut seeds = 0;
        for seed in first..last {
            match most {
                Some(most) if seeds >= most => break,
                None if begun.elapsed() > BUDGET => break,
                _ => {}
            }
            match run::seed(seed, home, kind, None, None, false) {
                Ok(covered) => {
                    seeds += 1;
                    all.steps += covered.steps;
                    all.crashes += covered.crashes;
                    all.events += covered.events;
                    all.processes += covered.processes;
                    all.taken += covered.taken;
                    all.answers += covered.answers;
                }
                Err(failure) => {
                    report(seed, home, kind, &failure);
                    panic!("seed {seed}: {}", failure.why);
                }
            }
        }
        let took = begun.elapsed();
        let rate = f64::from(u32::try_from(seeds).unwrap_or(0)) / took.as_secs_f64();
        eprintln!("{kind:?}: {seeds} seeds in {took:?} ({rate:.0} a second): {all:?}");
    });
}

#[test]
fn the_same_seed_gives_the_same_run() {
    prepared(|home| {
        let outcome = |seed, kind| {
            format!("{:?}", run::seed(seed, home, kind, None, None, false).map_err(|failure| failure.why))
        };
        for seed in 0..10 {
            for kind in [AgentKind::Acp, AgentKind::Codex] {
                assert_eq!(outcome(seed, kind), outcome(seed, kind), "seed {seed} {kind:?}");
            }
        }
    });
}

/// Runs seeds until the planted fault is found; says which and why.
fn is_found(kind: AgentKind, planted: Option<Planted>, bad: Option<BadKeeper>) {
    prepared(|home| {
        for seed in 0..FOUND_WITHIN {
            if let Err(failure) = run::seed(seed, home, kind, planted, bad, false) {
                eprintln!("{planted:?} {bad:?}: found by seed {seed}: {}", failure.why);
                return;
            }
        }
        panic!("{planted:?} {bad:?} was not found within {FOUND_WITHIN} seeds");
    });
}

macro_rules! planted {
    ($($name:ident: $kind:expr, $fault:expr;)*) => {$(
        #[test]
        fn $name() {
            is_found($kind, Some($fault), None);
        }
    )*};
}

planted! {
    a_forgotten_position_is_found: AgentKind::Acp, Planted::PositionForgotten;
    effects_before_the_commit_are_found: AgentKind::Acp, Planted::EffectsBeforeCommit;
    answers_before_the_commit_are_found: AgentKind::Acp, Planted::AnswersBeforeCommit;
    events_before_the_commit_are_found: AgentKind::Acp, Planted::EventsBeforeCommit;
    memory_kept_after_a_failed_commit_is_found: AgentKind::Acp, Planted::MemoryKept;
    an_answer_given_twice_is_found: AgentKind::Acp, Planted::AnsweredTwice;
    a_guessed_death_is_found: AgentKind::Acp, Planted::DeathByGuess;
    forgotten_numbers_are_found: AgentKind::Acp, Planted::NumbersForgotten;
    a_forgotten_connection_is_found: AgentKind::Codex, Planted::ConnectionForgotten;
    a_forgotten_outbox_is_found: AgentKind::Acp, Planted::OutboxForgotten;
    a_forgotten_neighbour_is_found: AgentKind::Codex, Planted::NeighbourForgotten;
    a_process_taken_up_with_one_of_its_sessions_is_found: AgentKind::Codex, Planted::OneTakenUp;
}

#[test]
fn a_keeper_that_takes_numbers_again_is_found() {
    is_found(AgentKind::Acp, None, Some(BadKeeper::TakesNumbersAgain));
}
