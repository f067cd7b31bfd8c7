//! The command line as a user or a script runs it.

use crate::support::{World, mainstay};
use serde_json::Value;
use std::process::Command;

/// What a command left.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    /// Standard output as one JSON value a line.
    #[track_caller]
    pub(crate) fn lines(&self) -> Vec<Value> {
        let parse = |line: &str| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}\n{self:?}"))
        };
        self.out.lines().map(parse).collect()
    }

    /// The same, if it ended with this code.
    #[track_caller]
    pub(crate) fn expect_code(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{self:?}");
        self
    }
}

/// A command of the world's home; a host that it starts picks its port.
pub(crate) fn command(world: &World, arguments: &[&str]) -> Command {
    let mut command = world.home.command(mainstay(), arguments);
    command.env("MAINSTAY_LISTEN", "127.0.0.1:0");
    command
}

/// Runs a command to its end.
pub(crate) fn run(world: &World, arguments: &[&str]) -> Done {
    let output = command(world, arguments).output().expect("runs");
    Done {
        code: output.status.code(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
