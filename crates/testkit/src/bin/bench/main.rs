//! `cargo xtask bench`: measured figures, with something run beside them where there is a fair rival. No test reads
//! them; a reader does. Every figure says whether it is durable.
#![expect(clippy::expect_used, clippy::print_stdout, reason = "a program for people at a terminal")]

mod memory;
mod rivals;
mod serving;
mod streaming;

use mainstay_testkit::mainstay::{Home, HostProcess, acp_config};
use std::path::PathBuf;

/// A host with the scripted agent, as every measurement uses it.
struct Bench {
    home: Home,
    binary: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let home = Home::new();
        let scripted = mainstay_testkit::agents::scripted_acp_binary();
        home.write_config(&acp_config("scripted", &scripted, &[]));
        Self { home, binary: mainstay_testkit::agents::sibling_binary("mainstay") }
    }

    fn start(&self) -> HostProcess {
        HostProcess::start(&self.home, &self.binary, &[])
    }

    fn create(&self, host: &HostProcess, prompt: Option<&str>) -> String {
        let mut body = serde_json::json!({ "agent": "scripted", "cwd": self.home.workspace() });
        if let Some(prompt) = prompt {
            body["prompt"] = prompt.into();
        }
        let made = host.client().post("/v1/sessions", &body).expect("the host answers");
        made.expect_status(201).json()["id"].as_str().expect("an id").to_owned()
    }

    fn end(&self, mut host: HostProcess) {
        let stop = serde_json::json!({ "mode": "kill" });
        host.client().post("/v1/host/stop", &stop).expect("the host answers").expect_status(202);
        host.wait(std::time::Duration::from_secs(60));
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn row(what: &str, figure: &str, target: &str) {
    println!("{what:<66} {figure:>34}   {target}");
}

fn main() {
    let only: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| only.is_empty() || only.iter().any(|given| given == name);
    row("measurement", "figure", "target");
    if wanted("streaming") {
        streaming::run();
    }
    if wanted("serving") {
        serving::run();
    }
    if wanted("memory") {
        memory::run();
    }
}
