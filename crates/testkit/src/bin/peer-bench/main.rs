//! `cargo xtask bench --peers`: the same scripted agent under Mainstay and under each peer that installs from the
//! registries, in one run. Writes one JSON line for each cell and a page for readers.
//!
//! ```text
//! peer-bench --peers FOLDER --agents FOLDER --json FILE [--page FILE] [--lock FILE] [--quick] [--runs N]
//!            [--host NAME]... [--row ROW]...
//! ```
//!
//! Each host has a temporary home and an environment of constants, listens on loopback, and is ended by process id
//! with all that it has started. The figures are of the machine as it is while the run lasts, so hosts take turns:
//! the first run of each, then the second.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program for people at a terminal")]

mod feed;
mod figures;
mod hosts;
mod lab;
mod limits;
mod machine;
mod measure;
mod model;
mod problem;
mod processes;
mod report;
mod stream_json;
mod ws;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use figures::{Figures, ROWS};
use hosts::{ALL, Facts};
use lab::Programs;
use measure::{Plan, Run};
use problem::Problem;

const USAGE: &str = "\
usage: peer-bench --peers FOLDER --agents FOLDER --json FILE [--page FILE] [--quick] [--runs N]
                  [--isolated] [--host NAME]... [--row ROW]...
";

#[derive(Debug)]
struct Options {
    programs: Programs,
    json: PathBuf,
    page: Option<PathBuf>,
    isolated: bool,
    quick: bool,
    plan: Plan,
    hosts: Vec<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match words.first().map(String::as_str) {
        Some("copier") => copier(&words),
        Some(processes::STREAM_JSON_AGENT) => stream_json::serve().map_err(Problem::io("the agent")),
        _ => match options(words) {
            Ok(options) => bench(&options),
            Err(problem) => {
                eprint!("peer-bench: {problem}\n{USAGE}");
                return ExitCode::from(2);
            }
        },
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("peer-bench: {}", problem.line());
            ExitCode::FAILURE
        }
    }
}

fn copier(words: &[String]) -> Result<(), Problem> {
    let (Some(port), Some(agent)) = (words.get(1).and_then(|port| port.parse().ok()), words.get(2)) else {
        return Err(Problem::Unsupported("copier PORT AGENT"));
    };
    hosts::run_copier(port, Path::new(agent)).map_err(Problem::io("the copier"))
}

fn options(words: Vec<String>) -> Result<Options, String> {
    let own = std::env::current_exe().map_err(|error| format!("our own folder: {error}"))?;
    let own = own.parent().map(Path::to_path_buf).unwrap_or_default();
    let (mut peers, mut agents, mut json, mut page) = (None, None, None, None);
    let (mut quick, mut isolated, mut runs, mut hosts, mut rows) =
        (false, false, None, Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} takes a value"));
        match word.as_str() {
            "--peers" => peers = Some(PathBuf::from(value()?)),
            "--agents" => agents = Some(PathBuf::from(value()?)),
            "--json" => json = Some(PathBuf::from(value()?)),
            "--page" => page = Some(PathBuf::from(value()?)),
            "--runs" => runs = Some(value()?.parse().map_err(|_| "--runs takes a number".to_owned())?),
            "--host" => hosts.push(known(value()?, ALL.iter().map(|(name, _)| *name))?),
            "--row" => rows.push(known(value()?, ROWS.iter().map(|row| row.id))?),
            "--quick" => quick = true,
            "--isolated" => isolated = true,
            other => return Err(format!("what is {other:?}?")),
        }
    }
    let mut plan = if quick { Plan::quick() } else { Plan::full() };
    plan.runs = runs.unwrap_or(plan.runs);
    plan.rows = rows;
    let missing = |what: &str| format!("{what} is missing");
    let programs = Programs {
        peers: absolute(peers.ok_or_else(|| missing("--peers"))?)?,
        agents: absolute(agents.ok_or_else(|| missing("--agents"))?)?,
        own,
    };
    let json = json.ok_or_else(|| missing("--json"))?;
    Ok(Options { programs, json, page, isolated, quick, plan, hosts })
}

/// Hosts run in folders of their own.
fn absolute(path: PathBuf) -> Result<PathBuf, String> {
    std::path::absolute(&path).map_err(|error| format!("{}: {error}", path.display()))
}

fn known(name: String, names: impl Iterator<Item = &'static str>) -> Result<String, String> {
    let names: Vec<&str> = names.collect();
    if names.contains(&name.as_str()) {
        Ok(name)
    } else {
        Err(format!("{name:?} is none of {}", names.join(", ")))
    }
}

/// Shown while it runs.
pub(crate) fn progress(line: &str) {
    println!("{line}");
}

fn bench(options: &Options) -> Result<(), Problem> {
    let machine = machine::describe(options.isolated, options.quick);
    let mut figures = Figures::default();
    let mut known: Vec<Option<Facts>> = vec![None; ALL.len()];
    let mut left_out = left_out_by_setup(&options.programs.peers);
    for run in 0..options.plan.runs {
        progress(&format!("run {} of {}", run + 1, options.plan.runs));
        for (number, (name, make)) in ALL.iter().enumerate() {
            if !options.hosts.is_empty() && !options.hosts.iter().any(|wanted| wanted == name) {
                continue;
            }
            match make(&options.programs) {
                Ok(mut host) => {
                    known[number] = Some(host.facts());
                    Run::new(&options.plan, &mut figures, host.facts(), number).all(host.as_mut());
                    if let Err(problem) = host.lab().clear() {
                        progress(&format!("  {name}: {}", problem.line()));
                    }
                }
                Err(problem) if run == 0 => {
                    progress(&format!("  {name}: {}", problem.line()));
                    // Set-up says more about what it could not install.
                    if !left_out.iter().any(|known| known.name == *name) {
                        left_out.push(report::LeftOut { name: (*name).to_owned(), why: problem.line() });
                    }
                }
                Err(_) => {}
            }
        }
        if options.hosts.is_empty() {
            limits::measure(&options.plan, &mut figures, ALL.len())?;
        }
    }
    let mut hosts: Vec<Facts> = known.into_iter().flatten().collect();
    if options.hosts.is_empty() {
        hosts.push(limits::facts());
    }
    let result = report::Result { machine, hosts, left_out, figures: figures.into_list() };
    write(options, &result)
}

/// What set-up has found not to install, and what is not to be had; nothing where set-up has not run.
fn left_out_by_setup(peers: &Path) -> Vec<report::LeftOut> {
    let text = fs::read_to_string(peers.join("left-out.json")).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

fn write(options: &Options, result: &report::Result) -> Result<(), Problem> {
    if let Some(folder) = options.json.parent() {
        fs::create_dir_all(folder).map_err(Problem::io("the folder of the report"))?;
    }
    let mut file = fs::File::create(&options.json).map_err(Problem::io("the report"))?;
    for line in result.json_lines() {
        writeln!(file, "{line}").map_err(Problem::io("the report"))?;
    }
    let page = report::page(result);
    if let Some(path) = &options.page {
        fs::write(path, &page).map_err(Problem::io("the page"))?;
    } else {
        progress(&page);
    }
    Ok(())
}
