//! One seed again: the same schedule to the letter, told as a trace, at one go or step by step.

use crate::run::{self, Options, Run};
use crate::sweep;
use mainstay_agents::AgentKind;
use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::Path;

/// How a run is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Watch {
    /// Nobody looks: nothing is written down.
    #[default]
    No,
    /// What happens is written down.
    Trace,
    /// And told as it happens, with how everything stands, waiting for Enter after each step.
    Step,
}

/// Runs a seed and prints how it came about, and what was wrong.
pub(crate) fn tell(seed: u64, home: &Path, kind: AgentKind, options: &Options) {
    let (outcome, trace) = run::traced_seed(seed, home, kind, options);
    if options.watch != Watch::Step {
        for line in &trace {
            eprintln!("{line}");
        }
    }
    match outcome {
        Ok(covered) => eprintln!("seed {seed}: all is well: {covered:?}"),
        Err(failure) => eprintln!("seed {seed}: {}", failure.why),
    }
}

impl Run {
    /// Where somebody steps through: what happened since the last step, how things stand, and a wait for Enter.
    pub(crate) fn show_step(&mut self) {
        if self.watch != Watch::Step {
            return;
        }
        {
            let world = self.world.lock();
            let trace = world.trace.as_deref().unwrap_or_default();
            for line in trace.get(self.told..).unwrap_or_default() {
                eprintln!("{line}");
            }
            self.told = trace.len();
        }
        eprint!("{}", self.standing());
        if io::stdin().is_terminal() {
            eprint!("step {} [Enter] ", self.covered.steps);
        }
        let mut line = String::new();
        // At the end of the input nobody waits any more.
        let _read = io::stdin().read_line(&mut line);
    }

    /// Each session and each process, a line each.
    fn standing(&self) -> String {
        let mut lines = String::new();
        for fold in self.judges.iter().flatten().filter_map(|judge| judge.fold.as_ref()) {
            let status = fold.status();
            let open = |ids: Vec<String>| if ids.is_empty() { "-".to_owned() } else { ids.join(" ") };
            let submissions = fold.submissions.iter().map(|open| format!("{}:{:?}", open.id, open.state));
            let requests = fold.requests.iter().map(|open| open.id.to_string());
            // Writing to a string cannot fail.
            let _written = writeln!(
                lines,
                "  = {} {} ({}) lease {} fence {} messages {} requests {}",
                fold.id,
                status.status.as_str(),
                status.reason.as_deref().unwrap_or("-"),
                fold.phase.name(),
                fold.fence.0,
                open(submissions.collect()),
                open(requests.collect()),
            );
        }
        for keeper in self.world.lock().keepers.values().filter(|keeper| keeper.lives()) {
            let _written = writeln!(lines, "  = {}", keeper.standing());
        }
        lines
    }
}

/// `SIM_SEED`, of `SIM_FLAVOUR` or of all; `SIM_STEP=1` steps through.
#[test]
#[ignore = "for one seed: cargo xtask sim replay SEED"]
fn replay() {
    let seed = sweep::number("SIM_SEED").expect("SIM_SEED says which seed");
    let watch = if sweep::number("SIM_STEP") == Some(1) { Watch::Step } else { Watch::Trace };
    let wanted = sweep::flavour();
    sweep::prepared(|home| {
        for (name, kind) in sweep::FLAVOURS {
            if wanted.is_none_or(|wanted| wanted == kind) {
                eprintln!("== {name} {seed}");
                tell(
                    seed,
                    home,
                    kind,
                    &Options { watch, journal_fails: sweep::journal_fails(), ..Options::default() },
                );
            }
        }
    });
}

/// Seeds of which two runs are compared, for each flavour.
const COMPARED: u64 = 40;

fn the_same_seed_gives_the_same_trace(kind: AgentKind) {
    sweep::prepared(|home| {
        for seed in 0..COMPARED {
            let trace = || run::traced_seed(seed, home, kind, &Options::traced()).1;
            let (first, second) = (trace(), trace());
            assert!(first.len() > 10, "a trace is written");
            for (number, (one, other)) in first.iter().zip(&second).enumerate() {
                assert_eq!(one, other, "seed {seed}, line {number}");
            }
            assert_eq!(first.len(), second.len(), "seed {seed}");
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_trace_codex() {
    the_same_seed_gives_the_same_trace(AgentKind::Codex);
}

#[test]
fn the_same_seed_gives_the_same_trace_acp() {
    the_same_seed_gives_the_same_trace(AgentKind::Acp);
}

#[test]
fn the_same_seed_gives_the_same_trace_claude() {
    the_same_seed_gives_the_same_trace(AgentKind::Claude);
}
