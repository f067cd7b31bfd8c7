//! The prompt language: text in, typed steps out. Pure.

use std::time::Duration;

use crate::stream_text;

/// Between two steps.
const SEPARATOR: &str = " ;; ";
/// Between two steps of a sub-agent's script, which stands in one step of its parent's.
const NESTED: &str = " :: ";
/// Stands for [`SEPARATOR`] inside the input of `TOOL`, where a script for a sub-agent may be.
const NESTED_SEPARATOR: &str = " ~~ ";
/// Between two commands of `PRUN`.
const PARALLEL: &str = " || ";
/// How long `HANG` without a number stays silent: longer than any test waits.
const HANG_BY_DEFAULT: Duration = Duration::from_secs(600);
/// Deltas before the cut of a `DISC` without a number.
const DELTAS_BEFORE_CUT: usize = 3;

/// When the deltas of an item leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Pace {
    AtOnce,
    /// This long before each delta.
    Every(Duration),
    /// One permit of this gate before each delta.
    Gated(String),
}

/// One step of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Message {
        chunks: Vec<String>,
        pace: Pace,
    },
    Reasoning {
        chunks: Vec<String>,
        pace: Pace,
    },
    Shell {
        commands: Vec<String>,
        escalated: bool,
    },
    Patch(String),
    /// Asks the user a question with two choices.
    Ask(String),
    /// Starts a sub-agent with this script.
    Spawn(String),
    /// Waits for the sub-agents.
    WaitAgent,
    /// Any tool, by name with an optional namespace before the last dot, and its arguments as JSON.
    Tool {
        namespace: Option<String>,
        name: String,
        arguments: String,
    },
    /// Ends the message for this reason (Messages API).
    StopWith(String),
    Gate(String),
    /// Like `Gate`, before the HTTP header.
    Hold(String),
    Hang(Duration),
    Wait(Duration),
    HttpError {
        status: u16,
        kind: Option<String>,
    },
    HttpErrorFirst {
        attempts: usize,
        status: u16,
    },
    Failed(String),
    Cut {
        chunks: Vec<String>,
    },
    CutFirst {
        attempts: usize,
    },
    NoComplete,
    Empty,
}

impl Step {
    /// How many tool calls this step makes, that is how many outputs the next request brings.
    pub(crate) fn tool_calls(&self) -> usize {
        match self {
            Self::Shell { commands, .. } => commands.len(),
            Self::Patch(_) | Self::Ask(_) | Self::Spawn(_) | Self::WaitAgent | Self::Tool { .. } => 1,
            _ => 0,
        }
    }
}

/// Parses a whole script. Never fails: what is not a step, or has bad arguments, is echoed.
pub(crate) fn parse(script: &str) -> Vec<Step> {
    script.trim().split(SEPARATOR).map(|text| parse_step(text.trim())).collect()
}

fn parse_step(text: &str) -> Step {
    known_step(text).unwrap_or_else(|| said(&format!("echo: {text}")))
}

fn said(text: &str) -> Step {
    Step::Message { chunks: stream_text::words(text), pace: Pace::AtOnce }
}

fn known_step(text: &str) -> Option<Step> {
    let (verb, rest) = text.split_once(' ').unwrap_or((text, ""));
    let mut words = rest.split_whitespace();
    let step = match verb {
        "SAY" => match repeated(rest) {
            Some((text, times)) => {
                Step::Message { chunks: vec![format!("{text} "); times], pace: Pace::AtOnce }
            }
            None => said(rest),
        },
        "DELTAS" => {
            let count = words.next()?.parse().ok()?;
            let size =
                words.next().map_or(Some(stream_text::DEFAULT_DELTA_BYTES), |size| size.parse().ok())?;
            Step::Message { chunks: stream_text::deltas(count, size).collect(), pace: Pace::AtOnce }
        }
        "SLOW" => {
            let count: usize = words.next()?.parse().ok()?;
            let chunks = (0..count).map(|index| format!("w{index} ")).collect();
            Step::Message { chunks, pace: Pace::Every(milliseconds(words.next()?)?) }
        }
        "GATED" => {
            let count = words.next()?.parse().ok()?;
            let chunks = stream_text::deltas(count, stream_text::DEFAULT_DELTA_BYTES).collect();
            Step::Message { chunks, pace: Pace::Gated(words.next()?.to_owned()) }
        }
        "GATE" => Step::Gate(words.next()?.to_owned()),
        "HOLD" => Step::Hold(words.next()?.to_owned()),
        "BIG" => Step::Message { chunks: vec!["x".repeat(words.next()?.parse().ok()?)], pace: Pace::AtOnce },
        "THINK" => {
            let mut chunks = vec!["**Thinking**\n\n".to_owned()];
            chunks.extend(stream_text::words(rest));
            Step::Reasoning { chunks, pace: Pace::AtOnce }
        }
        "THINKSLOW" => {
            let count: usize = words.next()?.parse().ok()?;
            let chunks = (0..count)
                .map(|index| if index == 0 { "**Slow**\n\n".to_owned() } else { format!("t{index} ") })
                .collect();
            Step::Reasoning { chunks, pace: Pace::Every(milliseconds(words.next()?)?) }
        }
        "RUN" | "RUNESC" if !rest.is_empty() => {
            Step::Shell { commands: vec![rest.to_owned()], escalated: verb == "RUNESC" }
        }
        "PRUN" if !rest.is_empty() => Step::Shell {
            commands: rest.split(PARALLEL).map(|command| command.trim().to_owned()).collect(),
            escalated: false,
        },
        "PATCH" if !rest.is_empty() => Step::Patch(add_file_patch(rest)),
        "PATCHUPD" => Step::Patch(update_line_patch(rest)?),
        "ASK" if !rest.is_empty() => Step::Ask(rest.to_owned()),
        "SPAWN" if !rest.is_empty() => Step::Spawn(rest.replace(NESTED, SEPARATOR)),
        "WAITAGENT" => Step::WaitAgent,
        "TOOL" if !rest.is_empty() => {
            let (name, arguments) = rest.split_once(' ').unwrap_or((rest, "{}"));
            let (namespace, name) = match name.rsplit_once('.') {
                Some((namespace, name)) => (Some(namespace.to_owned()), name.to_owned()),
                None => (None, name.to_owned()),
            };
            Step::Tool { namespace, name, arguments: arguments.replace(NESTED_SEPARATOR, SEPARATOR) }
        }
        "STOPWITH" => Step::StopWith(words.next()?.to_owned()),
        "WAIT" => Step::Wait(seconds(words.next()?)?),
        "HANG" => Step::Hang(words.next().map_or(Some(HANG_BY_DEFAULT), seconds)?),
        "ERR" => {
            Step::HttpError { status: words.next()?.parse().ok()?, kind: words.next().map(str::to_owned) }
        }
        "ERRN" => Step::HttpErrorFirst {
            attempts: words.next()?.parse().ok()?,
            status: words.next()?.parse().ok()?,
        },
        "FAILED" => Step::Failed(words.next().unwrap_or("server_error").to_owned()),
        "DISC" => {
            let count = words.next().map_or(Some(DELTAS_BEFORE_CUT), |count| count.parse().ok())?;
            Step::Cut { chunks: (0..count).map(|index| format!("d{index} ")).collect() }
        }
        "DISCN" => Step::CutFirst { attempts: words.next()?.parse().ok()? },
        "NOCOMPLETE" => Step::NoComplete,
        "EMPTY" => Step::Empty,
        _ => return None,
    };
    Some(step)
}

/// `text xN` → (text, N).
fn repeated(rest: &str) -> Option<(&str, usize)> {
    let (text, times) = rest.rsplit_once(" x")?;
    Some((text, times.parse().ok()?))
}

fn milliseconds(word: &str) -> Option<Duration> {
    word.trim_end_matches("ms").parse().ok().map(Duration::from_millis)
}

fn seconds(word: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(word.parse().ok()?).ok()
}

fn add_file_patch(rest: &str) -> String {
    let (path, text) = rest.split_once(' ').unwrap_or((rest, "hello from the mock"));
    let lines: String = text.replace("\\n", "\n").split('\n').map(|line| format!("+{line}\n")).collect();
    format!("*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch")
}

fn update_line_patch(rest: &str) -> Option<String> {
    let (path, change) = rest.split_once(' ')?;
    let (old, new) = change.split_once(" => ")?;
    Some(format!("*** Begin Patch\n*** Update File: {path}\n@@\n-{old}\n+{new}\n*** End Patch"))
}

/// The text of each agent message that `script` makes, in order, for an agent that runs it to its
/// end without a retry. The closing words after a script that ends in a tool call depend on the
/// tool's output and are not included, nor is text that `DISC`, `DISCN` or `NOCOMPLETE` leave behind.
pub fn expected_messages(script: &str) -> Vec<String> {
    parse(script)
        .into_iter()
        .filter_map(|step| match step {
            Step::Message { chunks, .. } => Some(chunks.concat()),
            _ => None,
        })
        .collect()
}

/// [`expected_messages`] in one string.
pub fn expected_text(script: &str) -> String {
    expected_messages(script).concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_every_verb_that_speaks() {
        assert_eq!(expected_text("SAY hello world"), "hello world");
        assert_eq!(expected_text("SAY hi x3"), "hi hi hi ");
        assert_eq!(expected_text("DELTAS 2"), "0000000 0000001 ");
        assert_eq!(expected_text("DELTAS 2 4"), "000 001 ");
        assert_eq!(expected_text("SLOW 3 10ms"), "w0 w1 w2 ");
        assert_eq!(expected_text("GATED 2 door"), "0000000 0000001 ");
        assert_eq!(expected_text("BIG 5"), "xxxxx");
        assert_eq!(expected_text("what is this"), "echo: what is this");
        assert_eq!(expected_messages("THINK hm ;; SAY a ;; GATE g ;; RUN ls ;; SAY b"), ["a", "b"]);
    }

    #[test]
    fn bad_arguments_are_echoed_not_guessed() {
        for text in ["DELTAS many", "SLOW 3", "GATE", "PATCHUPD file no-arrow", "ERR x", "RUN", "WAIT -1"] {
            assert_eq!(parse(text), [said(&format!("echo: {text}"))], "{text}");
        }
    }

    #[test]
    fn tool_calls_are_counted_as_outputs_come_back() {
        let counts: Vec<_> =
            parse("SAY x ;; RUN ls ;; PRUN a || b || c ;; PATCH f t").iter().map(Step::tool_calls).collect();
        assert_eq!(counts, [0, 1, 3, 1]);
    }

    #[test]
    fn tools_are_named_and_a_sub_agents_script_is_nested() {
        let tool = Step::Tool {
            namespace: Some("mcp__mm".to_owned()),
            name: "echo".to_owned(),
            arguments: r#"{"a":1}"#.to_owned(),
        };
        assert_eq!(parse(r#"TOOL mcp__mm.echo {"a":1}"#), [tool]);
        assert_eq!(
            parse("SPAWN RUN ls :: SAY x ;; WAITAGENT"),
            [Step::Spawn("RUN ls ;; SAY x".to_owned()), Step::WaitAgent]
        );
    }

    #[test]
    fn patches_have_codex_form() {
        assert_eq!(
            parse("PATCH a.txt one\\ntwo"),
            [Step::Patch("*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch".to_owned())]
        );
        assert_eq!(
            parse("PATCHUPD a.txt one => 1"),
            [Step::Patch("*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+1\n*** End Patch".to_owned())]
        );
    }
}
