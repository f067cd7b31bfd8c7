//! The prompt language of the scripted agent.
//!
//! | step | does |
//! |---|---|
//! | `SAY text` | one chunk a word, one message |
//! | `THINK text` | one thought chunk |
//! | `DELTAS n size` | n numbered chunks of `size` bytes, each written on its own |
//! | `BURST n size`, `FRAMES n size` | the same as fast as the pipe takes; `BURST` without, `FRAMES` with one message id |
//! | `STAMPS n µs` | n chunks, one every so many µs, each the time of its writing in ns since 1970 |
//! | `GATE path` | waits until the test opens `path` (`testkit::agents::open_gate`) |
//! | `HOLD` | waits until the turn is cancelled |
//! | `ASK title` | asks for permission with all four kinds of option; says `allowed:<optionId>` or `denied` |
//! | `TOOL title` | a tool call that completes |
//! | `RUN cmd` | runs a shell command in the agent's environment and streams its output as a tool call |
//! | `SPAWN cmd`, `SPAWN_HOLD cmd` | a child in a session of its own, standard output closed or kept open; says `spawned:<pid> ` |
//! | `IGNORE_TERM`, `IGNORE_EOF` | from now on SIGTERM, or end of input, does not end the agent |
//! | `DIE code`, `SEGV` | the agent ends at once |
//! | `BADLINE`, `BIGLINE n`, `UNKNOWN_UPDATE`, `RAW json` | odd output: no JSON, n bytes in one chunk, an unknown update, any line |
//! | `NEVER` | the prompt is never answered, not even when cancelled |
//! | `ERROR code message` | the prompt is answered with that error |
//! | `LATE` | the answer is followed by one more chunk, `late` |
//!
//! Anything else is echoed: `echo: <text>`.

/// Between two steps.
const SEPARATOR: &str = " ;; ";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Say(String),
    Think(String),
    Deltas { count: usize, size: usize },
    Burst { count: usize, size: usize, one_message: bool },
    Stamps { count: usize, every_us: usize },
    Gate(String),
    Hold,
    Ask(String),
    Tool(String),
    Run(String),
    Spawn { command: String, holds_output: bool },
    IgnoreTerm,
    IgnoreEof,
    Die(i32),
    Segv,
    BadLine,
    BigLine(usize),
    UnknownUpdate,
    Raw(String),
    Never,
    Error { code: i64, message: String },
    Late,
}

pub(crate) fn parse(script: &str) -> Vec<Step> {
    script
        .trim()
        .split(SEPARATOR)
        .map(|text| text.trim())
        .map(|text| known_step(text).unwrap_or_else(|| Step::Say(format!("echo: {text}"))))
        .collect()
}

fn known_step(text: &str) -> Option<Step> {
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    let rest_given = || (!rest.is_empty()).then(|| rest.to_owned());
    let step = match verb {
        "SAY" => Step::Say(rest.to_owned()),
        "THINK" => Step::Think(rest.to_owned()),
        "DELTAS" => {
            let (count, size) = count_and_size(rest)?;
            Step::Deltas { count, size }
        }
        "BURST" | "FRAMES" => {
            let (count, size) = count_and_size(rest)?;
            Step::Burst { count, size, one_message: verb == "FRAMES" }
        }
        "STAMPS" => {
            let (count, every_us) = count_and_size(rest)?;
            Step::Stamps { count, every_us }
        }
        "GATE" => Step::Gate(rest_given()?),
        "HOLD" => Step::Hold,
        "ASK" => Step::Ask(rest_given()?),
        "TOOL" => Step::Tool(rest_given()?),
        "RUN" => Step::Run(rest_given()?),
        "SPAWN" | "SPAWN_HOLD" => Step::Spawn { command: rest_given()?, holds_output: verb == "SPAWN_HOLD" },
        "IGNORE_TERM" => Step::IgnoreTerm,
        "IGNORE_EOF" => Step::IgnoreEof,
        "DIE" => Step::Die(rest.parse().ok()?),
        "SEGV" => Step::Segv,
        "BADLINE" => Step::BadLine,
        "BIGLINE" => Step::BigLine(rest.parse().ok()?),
        "UNKNOWN_UPDATE" => Step::UnknownUpdate,
        "RAW" => Step::Raw(rest_given()?),
        "NEVER" => Step::Never,
        "ERROR" => {
            let (code, message) = rest.split_once(' ').unwrap_or((rest, "scripted error"));
            Step::Error { code: code.parse().ok()?, message: message.to_owned() }
        }
        "LATE" => Step::Late,
        _ => return None,
    };
    Some(step)
}

fn count_and_size(rest: &str) -> Option<(usize, usize)> {
    let mut words = rest.split_whitespace();
    let count = words.next()?.parse().ok()?;
    let default = mainstay_testkit::stream_text::DEFAULT_DELTA_BYTES;
    let size = words.next().map_or(Some(default), |size| size.parse().ok())?;
    Some((count, size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_echo() {
        assert_eq!(
            parse("SAY a b ;; BURST 5 ;; FRAMES 5 32 ;; ERROR -32000 sign in ;; DELTAS x"),
            [
                Step::Say("a b".to_owned()),
                Step::Burst { count: 5, size: 8, one_message: false },
                Step::Burst { count: 5, size: 32, one_message: true },
                Step::Error { code: -32000, message: "sign in".to_owned() },
                Step::Say("echo: DELTAS x".to_owned()),
            ]
        );
    }
}
