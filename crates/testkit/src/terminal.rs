//! A program on a terminal of its own, for tests of what draws a screen: what it shows as text, and what is typed.

use crate::contain;
use crate::wait::{wait_for, wait_until};
use rustix::fs::{Mode, OFlags};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Where the cursor is said to be: programs that ask wait for an answer.
const CURSOR: (&[u8], &[u8]) = (b"\x1b[6n", b"\x1b[1;1R");
/// What kind of terminal it is said to be.
const KIND: (&[u8], &[u8]) = (b"\x1b[c", b"\x1b[?62;c");
/// A line is entered again after this long, where it shows no effect: a program may take what is typed very fast for
/// pasted text, and the end of the line with it.
const ENTER_AGAIN: Duration = Duration::from_secs(2);

/// A program and its terminal. Dropped, the program is ended.
#[derive(Debug)]
pub struct Terminal {
    child: Child,
    keyboard: File,
    shown: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts a program with a new terminal as its controlling one.
    ///
    /// # Panics
    /// When there are no terminals to be had, or the program cannot be started.
    pub fn start(command: &Command) -> Self {
        let master =
            openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).expect("a terminal of ours");
        unlockpt(&master).expect("an open terminal");
        let size = Winsize { ws_row: 40, ws_col: 120, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("a size");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let screen =
            File::from(rustix::fs::open(name.as_c_str(), flags, Mode::empty()).expect("the terminal"));
        // `setsid` makes the terminal on its input the controlling one, which the standard library cannot.
        let mut started = Command::new("setsid");
        started.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args()).env_clear();
        started.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        started.env("TERM", "xterm-256color");
        if let Some(folder) = command.get_current_dir() {
            started.current_dir(folder);
        }
        let stdio = |screen: &File| Stdio::from(screen.try_clone().expect("one more descriptor"));
        started.stdin(stdio(&screen)).stdout(stdio(&screen)).stderr(stdio(&screen));
        let child = started.spawn().expect("started on a terminal (util-linux `setsid`)");
        contain::own(child.id());
        let keyboard = File::from(master);
        let shown = Arc::new(Mutex::new(Vec::new()));
        let reader = {
            let (keyboard, shown) = (keyboard.try_clone().expect("one more descriptor"), shown.clone());
            std::thread::spawn(move || watch(keyboard, &shown))
        };
        Self { child, keyboard, shown, reader: Some(reader) }
    }

    /// What was shown so far, without what only moves and colours, and without white space: a screen is drawn in pieces.
    pub fn text(&self) -> String {
        plain(&self.shown.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until a text was shown, white space aside, after the first `from` bytes of [`Self::text`].
    ///
    /// # Panics
    /// When it is not shown in time.
    #[track_caller]
    pub fn wait_for(&self, deadline: Duration, wanted: &str, from: usize) {
        let wanted: String = wanted.split_whitespace().collect();
        let shows = || self.text().get(from..).is_some_and(|text| text.contains(&wanted)).then_some(());
        if wait_for(deadline, shows).is_none() {
            let text = self.text();
            panic!("the terminal does not show {wanted:?}; it shows: {text}");
        }
    }

    /// Types a text, without its end.
    ///
    /// # Panics
    /// When the terminal is gone.
    pub fn keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("the terminal takes keys");
    }

    /// Types a text and waits a moment until it is shown whole; a screen that is drawn anew meanwhile may show it in pieces.
    fn type_out(&mut self, text: &str) {
        let (from, wanted) = (self.text().len(), text.split_whitespace().collect::<String>());
        self.keys(text);
        wait_for(ENTER_AGAIN, || {
            self.text().get(from..).is_some_and(|shown| shown.contains(&wanted)).then_some(())
        });
    }

    /// Types a line, and enters it until it shows its effect.
    ///
    /// # Panics
    /// When there is no effect in time.
    #[track_caller]
    pub fn enter(&mut self, deadline: Duration, line: &str, mut effect: impl FnMut() -> bool) {
        self.type_out(line);
        let mut entered: Option<std::time::Instant> = None;
        wait_until(deadline, &format!("the effect of {line:?}"), || {
            if effect() {
                return true;
            }
            if entered.is_none_or(|at| at.elapsed() >= ENTER_AGAIN) {
                self.keys("\r");
                entered = Some(std::time::Instant::now());
            }
            false
        });
    }

    /// Types a line that ends the program, and enters it until that has.
    ///
    /// # Panics
    /// When it has not in time.
    #[track_caller]
    pub fn leave(&mut self, deadline: Duration, line: &str) -> ExitStatus {
        self.type_out(line);
        let mut entered: Option<std::time::Instant> = None;
        wait_until(deadline, "the program's end", || {
            if self.child.try_wait().expect("can be waited for").is_some() {
                return true;
            }
            if entered.is_none_or(|at| at.elapsed() >= ENTER_AGAIN) {
                // It may be just ending, with its terminal.
                let _taken = self.keyboard.write_all(b"\r");
                entered = Some(std::time::Instant::now());
            }
            false
        });
        self.wait(deadline)
    }

    /// Waits until the program has ended.
    ///
    /// # Panics
    /// When it has not in time.
    #[track_caller]
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let ended = wait_for(deadline, || self.child.try_wait().expect("can be waited for"));
        ended.unwrap_or_else(|| panic!("the program on the terminal goes on; it shows: {}", self.text()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The session on the terminal ends with it; what is left of a failed test is seen by its containment.
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
        contain::disown(self.child.id());
        drop(self.reader.take());
    }
}

/// Reads what is shown and answers what is asked of a terminal.
fn watch(mut terminal: File, shown: &Mutex<Vec<u8>>) {
    let mut piece = [0; 8192];
    // An error is the end: nobody has the terminal open any more.
    while let Ok(read @ 1..) = terminal.read(&mut piece) {
        let piece = &piece[..read];
        shown.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(piece);
        for (question, answer) in [CURSOR, KIND] {
            if piece.windows(question.len()).any(|part| part == question) {
                let _answered = terminal.write_all(answer);
            }
        }
    }
}

/// Without escape sequences and white space.
fn plain(shown: &[u8]) -> String {
    let text = String::from_utf8_lossy(shown);
    let mut plain = String::new();
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\x1b' {
            plain.extend(Some(letter).filter(|letter| !letter.is_whitespace() && !letter.is_control()));
            continue;
        }
        match letters.next() {
            Some('[') => drop(letters.find(|letter| ('@'..='~').contains(letter))),
            Some(']') => drop(letters.find(|letter| matches!(letter, '\x07' | '\x1b'))),
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_without_what_moves_and_colours() {
        assert_eq!(plain(b"\x1b[1;31mhel\x1b[0mlo \x1b]0;title\x07wor\r\nld"), "helloworld");
    }

    #[test]
    fn a_program_on_a_terminal_is_shown_and_typed_to() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "test -t 0 && test -t 1 && read line && echo got-$line"]);
        let mut terminal = Terminal::start(&command);
        let deadline = Duration::from_secs(60);
        terminal.keys("words\r");
        terminal.wait_for(deadline, "got-words", 0);
        assert!(terminal.wait(deadline).success());
    }
}
