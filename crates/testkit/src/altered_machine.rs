//! A machine that changes under a running program: its wall clock is set, it gives no new processes. Only the program that
//! is started with [`AlteredMachine::env`] sees it. A small C library, compiled where a test needs it, comes between the
//! program and its C library.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::CLEAN_PATH;

const SOURCE: &str = include_str!("altered_machine/preloaded.c");
/// Where `no_new_processes` stands in the library's struct.
const NO_NEW_PROCESSES_AT: u64 = 8;

/// What a program sees in place of the machine's own.
#[derive(Debug)]
pub struct AlteredMachine {
    library: PathBuf,
    state_path: PathBuf,
    state: File,
}

impl AlteredMachine {
    /// Compiles the library below `folder`, `None` where there is no C compiler. Nothing is altered at first.
    ///
    /// # Panics
    /// When the folder cannot be written, or the library does not compile.
    pub fn new(folder: &Path) -> Option<Self> {
        let (source, library) = (folder.join("preloaded.c"), folder.join("preloaded.so"));
        fs::write(&source, SOURCE).expect("the library's source");
        let mut compile = Command::new("cc");
        compile.env_clear().env("PATH", CLEAN_PATH).args(["-shared", "-fPIC", "-O1", "-o"]);
        let compiled = compile.arg(&library).arg(&source).arg("-ldl").output().ok()?;
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let state_path = folder.join("altered-machine");
        fs::write(&state_path, [0; 16]).expect("what is altered");
        let state = File::options().write(true).open(&state_path).expect("opened");
        Some(Self { library, state_path, state })
    }

    /// The environment of a program that is to see it.
    pub fn env(&self) -> [(&'static str, String); 2] {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        [("LD_PRELOAD", text(&self.library)), ("ALTERED_MACHINE", text(&self.state_path))]
    }

    /// Sets the wall clock to so many seconds ahead of the machine's (behind it, where negative).
    ///
    /// # Panics
    /// When that cannot be written.
    pub fn set_clock_ahead(&self, seconds: i64) {
        self.state.write_all_at(&seconds.to_ne_bytes(), 0).expect("the clock is set");
    }

    /// Whether new processes are refused (`EAGAIN`).
    ///
    /// # Panics
    /// When that cannot be written.
    pub fn refuse_processes(&self, refuse: bool) {
        let word = i64::from(refuse).to_ne_bytes();
        self.state.write_all_at(&word, NO_NEW_PROCESSES_AT).expect("it is written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{SystemTime, UNIX_EPOCH};

    #[test]
    fn a_program_sees_the_clock_that_was_set_and_starts_nothing_that_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(machine) = AlteredMachine::new(folder.path()) else { return };
        let run = |script: &str| {
            let mut shell = Command::new("/bin/sh");
            shell.env_clear().env("PATH", CLEAN_PATH).envs(machine.env()).args(["-c", script]);
            shell.output().expect("a shell")
        };
        machine.set_clock_ahead(-7_200);
        let said = String::from_utf8(run("date +%s").stdout).expect("text");
        let seen: u64 = said.trim().parse().expect("seconds");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs();
        assert!((now - 7_260..=now - 7_200).contains(&seen), "{seen} at {now}");
        machine.refuse_processes(true);
        assert!(!run("/bin/true; /bin/true").status.success());
    }
}
