//! The simulator, beside what the tests run of it: long runs, and one seed step by step.

use crate::tasks::{self, StepError};
use std::path::Path;

/// Flavours of the simulation.
const FLAVOURS: [&str; 3] = ["codex", "acp", "claude"];
/// Seeds of a run that does not say how many.
const SEEDS: u64 = 10_000;

/// What is asked of the simulator.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Many seeds.
    Run { seeds: u64, first: u64, flavour: Option<String> },
    /// One seed.
    Replay { seed: u64, flavour: Option<String>, step: bool },
}

/// Reads the words behind `sim`. None: they ask for nothing that there is.
pub(crate) fn parse(words: &[&str]) -> Option<Asked> {
    let (task, rest) = words.split_first()?;
    let mut asked = match *task {
        "run" => Asked::Run { seeds: SEEDS, first: 0, flavour: None },
        "replay" => Asked::Replay { seed: rest.first()?.parse().ok()?, flavour: None, step: false },
        _ => return None,
    };
    let mut rest = rest.iter().skip(usize::from(*task == "replay"));
    while let Some(word) = rest.next() {
        match (&mut asked, *word) {
            (Asked::Run { flavour, .. } | Asked::Replay { flavour, .. }, "--flavour") => {
                let named = rest.next().filter(|named| FLAVOURS.contains(*named))?;
                *flavour = Some((*named).to_owned());
            }
            (Asked::Run { seeds, .. }, "--seeds") => *seeds = rest.next()?.parse().ok()?,
            (Asked::Run { first, .. }, "--first") => *first = rest.next()?.parse().ok()?,
            (Asked::Replay { step, .. }, "--step") => *step = true,
            _ => return None,
        }
    }
    Some(asked)
}

/// Runs the test that does it, with our own input and output.
pub(crate) fn run(root: &Path, asked: &Asked) -> Result<(), StepError> {
    let test = match asked {
        Asked::Run { .. } => "sweep::long_run",
        Asked::Replay { .. } => "replay::replay",
    };
    let arguments = ["test", "-q", "-p", "mainstay-host", "--test", "sim", "--"];
    let mut command = tasks::cargo(root, &arguments);
    command.args(["--ignored", "--exact", test, "--nocapture"]);
    let flavour = match asked {
        Asked::Run { seeds, first, flavour } => {
            command.env("SIM_SEEDS", seeds.to_string()).env("SIM_FIRST", first.to_string());
            flavour
        }
        Asked::Replay { seed, flavour, step } => {
            command.env("SIM_SEED", seed.to_string()).env("SIM_STEP", u8::from(*step).to_string());
            flavour
        }
    };
    if let Some(flavour) = flavour {
        command.env("SIM_FLAVOUR", flavour);
    }
    tasks::run_command(&mut command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_ask_for_a_run_or_a_replay() {
        let run = Asked::Run { seeds: 500, first: 7, flavour: Some("acp".to_owned()) };
        assert_eq!(parse(&["run", "--seeds", "500", "--flavour", "acp", "--first", "7"]), Some(run));
        let replay = Asked::Replay { seed: 162, flavour: None, step: true };
        assert_eq!(parse(&["replay", "162", "--step"]), Some(replay));
        for unfit in [&["replay"][..], &["replay", "x"], &["run", "--flavour", "pi"], &["run", "--step"], &[]]
        {
            assert_eq!(parse(unfit), None, "{unfit:?}");
        }
    }
}
