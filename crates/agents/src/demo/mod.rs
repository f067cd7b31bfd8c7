//! The built-in agent: speaks ACP over lines, needs no key and no network, and touches no file.
//!
//! It shows what a session can do. A prompt is answered word by word, with one tool call that asks for permission; a
//! prompt with `run for N` counts for N seconds, and stops at once when it is told to. It keeps nothing: a conversation
//! that it could have made is resumed in any process, because there is nothing to forget.

mod serve;
mod turn;

use std::io::{self, BufRead, Write};
use std::time::Duration;

/// Names the pause between words in ms; 0 for none.
const PACE_VARIABLE: &str = "DEMO_PACE_MS";
/// The pause between words where nothing else is said: fast enough to read along, slow enough to see it stream.
const DEFAULT_PACE: Duration = Duration::from_millis(40);

/// Serves ACP until the end of input. Blocking; one thread per running turn, all ended when it returns.
///
/// # Errors
/// When the input cannot be read. An output that nobody reads any more ends the turns, and the end of input follows.
pub fn run(input: impl BufRead, output: impl Write + Send) -> io::Result<()> {
    let pace =
        std::env::var(PACE_VARIABLE).ok().and_then(|text| text.parse().ok()).map(Duration::from_millis);
    run_paced(input, output, pace.unwrap_or(DEFAULT_PACE))
}

/// As [`run`], with the pause between words given.
///
/// # Errors
/// As [`run`].
pub fn run_paced(input: impl BufRead, output: impl Write + Send, pace: Duration) -> io::Result<()> {
    serve::serve(input, output, pace)
}
