//! The language of scripts; one for all protocols.
//!
//! A script is a text file. A line `on …` that begins at the left edge opens a block, indented lines below it are its
//! steps, `#` begins a comment that takes the whole line.
//!
//! | block | is played |
//! |---|---|
//! | `on start` | before anything is read |
//! | `on prompt` | for every message of a user that has no block of its own; without any such block it is echoed |
//! | `on prompt TEXT` | for the message with exactly this text |
//! | `on METHOD` | for a request or notification of the client, in place of what the agent does by itself; the name is the protocol's: `thread/resume`, `session/new`, `initialize`, or the subtype of a control request |
//! | `on first N METHOD` | the same for the first N, counted over all processes with the same state folder |
//!
//! | step | does |
//! |---|---|
//! | `say TEXT` | one message, a delta for each word |
//! | `stream N SIZE` | one message of N numbered deltas of SIZE bytes |
//! | `ask TITLE` | asks for an approval and waits; says `allowed` or `denied` |
//! | `tool TITLE`, `begin-tool TITLE` | a tool call that completes, or one that stays open |
//! | `run COMMAND` | a shell command in the agent's environment, to its end, without a word to the client |
//! | `spawn COMMAND`, `spawn-holding COMMAND` | a child in a session of its own; its standard output is closed, or the agent's |
//! | `wait-for cancel`, `wait-for gate PATH`, `wait-for METHOD` | waits for a stop, for the test, for a word of the client's that was not heard when the block began |
//! | `wait-for answer:N` | waits for the client's answer to a request that was sent under the id N (`asked-N` in stream-json) |
//! | `pause MS` | lets time pass: the moment of a fault, never a way to wait for something |
//! | `heedless` | a stop does not cut the rest of this turn short |
//! | `end`, `end cancelled`, `end failed WORDS` | ends the turn; the end of the block does too |
//! | `hang` | the block ends here, and nothing is ended or answered |
//! | `default` | what the agent does by itself with what the block is for |
//! | `answer JSON`, `refuse CODE WORDS` | answers the request that the block is for |
//! | `send JSON` | any frame |
//! | `trickle MS JSON` | a frame byte by byte, MS milliseconds between two (on a pipe) |
//! | `raw TEXT` | a line or message as it stands; `\xNN` is a byte, `\\` a backslash |
//! | `part TEXT` | the same without the end of the line (on a pipe) |
//! | `garbage` | a line that is not JSON |
//! | `huge BYTES` | one message in one delta of so many bytes |
//! | `stderr TEXT`, `stderr-flood BYTES` | a line, or so many bytes of lines, on standard error |
//! | `crlf` | lines end with a carriage return from now on (on a pipe) |
//! | `deaf`, `listen` | reads nothing from now on, or reads again (on a pipe) |
//! | `close` | ends the connection (`app-server` only) |
//! | `ignore term`, `ignore int`, `ignore eof` | from now on that does not end the agent |
//! | `exit CODE`, `crash` | ends at once; `crash` by SIGSEGV |
//!
//! In the text of steps `$thread`, `$turn`, `$pid`, `$cwd` and `$new` (a name never used before) stand for their values; in
//! JSON the whole string `"$id"` stands for the id of the request that the block is for.

use serde_json::Value;

/// A script that was read.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Script {
    pub(crate) blocks: Vec<Block>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) when: When,
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum When {
    Start,
    AnyPrompt,
    Prompt(String),
    Event { method: String, first: Option<usize> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Awaited {
    Cancel,
    Gate(String),
    Method(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ending {
    Completed,
    Cancelled,
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ignored {
    Term,
    Int,
    Eof,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Say(String),
    Stream { count: usize, size: usize },
    Ask(String),
    Tool { title: String, completes: bool },
    Run(String),
    Spawn { command: String, holds_output: bool },
    WaitFor(Awaited),
    Pause(u64),
    Heedless,
    End(Ending),
    Hang,
    Default,
    Answer(Value),
    Refuse { code: i64, words: String },
    Send(Value),
    Trickle { pause_ms: u64, frame: Value },
    Raw(Vec<u8>),
    Part(Vec<u8>),
    Garbage,
    Huge(usize),
    Stderr(String),
    StderrFlood(usize),
    Crlf,
    Deaf,
    Listen,
    Close,
    Ignore(Ignored),
    Exit(i32),
    Crash,
}

/// What is wrong with a script: where, at which word, and what would have been right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, word {word} ({found:?}): {wrong}")]
pub(crate) struct BadScript {
    /// From 1.
    pub(crate) line: usize,
    /// From 1.
    pub(crate) word: usize,
    found: String,
    wrong: String,
}

const VERBS: &str = "say, stream, ask, tool, begin-tool, run, spawn, spawn-holding, wait-for, pause, heedless, end, hang, \
    default, answer, refuse, send, trickle, raw, part, garbage, huge, stderr, stderr-flood, crlf, deaf, listen, close, ignore, exit, crash";

/// A line while it is read.
struct Line<'a> {
    number: usize,
    rest: &'a str,
    /// Words taken so far.
    taken: usize,
}

impl<'a> Line<'a> {
    fn new(number: usize, text: &'a str) -> Self {
        Self { number, rest: text.trim(), taken: 0 }
    }

    /// The next word.
    fn word(&mut self, wanted: &str) -> Result<&'a str, BadScript> {
        let (word, rest) = self.rest.split_once(char::is_whitespace).unwrap_or((self.rest, ""));
        self.taken += 1;
        if word.is_empty() {
            return Err(self.bad("", format!("{wanted} is missing")));
        }
        self.rest = rest.trim_start();
        Ok(word)
    }

    fn number<N: std::str::FromStr>(&mut self, wanted: &str) -> Result<N, BadScript> {
        let word = self.word(wanted)?;
        word.parse().map_err(|_| self.bad(word, format!("{wanted} must be a number")))
    }

    /// All that is left, at least one word.
    fn text(&mut self, wanted: &str) -> Result<&'a str, BadScript> {
        let text = std::mem::take(&mut self.rest);
        self.taken += 1;
        if text.is_empty() { Err(self.bad("", format!("{wanted} is missing"))) } else { Ok(text) }
    }

    fn json(&mut self) -> Result<Value, BadScript> {
        let text = self.text("JSON")?;
        serde_json::from_str(text).map_err(|error| self.bad(text, format!("this is no JSON: {error}")))
    }

    /// Text with `\xNN` and `\\`.
    fn bytes(&mut self) -> Result<Vec<u8>, BadScript> {
        let text = self.text("a text")?;
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('\\') {
            bytes.extend_from_slice(before.as_bytes());
            let hex = after.strip_prefix('x').and_then(|digits| digits.get(..2));
            if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                bytes.push(byte);
                rest = &after[3..];
            } else if let Some(after) = after.strip_prefix('\\') {
                bytes.push(b'\\');
                rest = after;
            } else {
                let found: String = std::iter::once('\\').chain(after.chars().take(3)).collect();
                return Err(self.bad(&found, "a backslash begins \\xNN or \\\\".to_owned()));
            }
        }
        bytes.extend_from_slice(rest.as_bytes());
        Ok(bytes)
    }

    fn nothing_more(&mut self) -> Result<(), BadScript> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let found = self.rest;
        self.taken += 1;
        Err(self.bad(found, "nothing more belongs here".to_owned()))
    }

    fn bad(&self, found: &str, wrong: String) -> BadScript {
        let found = found.chars().take(40).collect();
        BadScript { line: self.number, word: self.taken, found, wrong }
    }
}

impl Script {
    pub(crate) fn parse(text: &str) -> Result<Self, BadScript> {
        let mut script = Self::default();
        for (index, text) in text.lines().enumerate() {
            let indented = text.starts_with([' ', '\t']);
            let mut line = Line::new(index + 1, text);
            if line.rest.is_empty() || line.rest.starts_with('#') {
                continue;
            }
            if indented {
                let step = step(&mut line)?;
                let Some(block) = script.blocks.last_mut() else {
                    let wrong = "a step stands below a line that begins with `on`".to_owned();
                    return Err(BadScript { word: 1, ..line.bad(text.trim(), wrong) });
                };
                block.steps.push(step);
            } else {
                script.blocks.push(Block { when: when(&mut line)?, steps: Vec::new() });
            }
        }
        Ok(script)
    }

    /// The block for what happens before anything is read.
    pub(crate) fn at_start(&self) -> Option<&Block> {
        self.blocks.iter().find(|block| block.when == When::Start)
    }

    /// The block for a message of a user.
    pub(crate) fn for_prompt(&self, text: &str) -> Option<&Block> {
        let exact = |block: &&Block| matches!(&block.when, When::Prompt(wanted) if wanted == text.trim());
        let any = || self.blocks.iter().find(|block| block.when == When::AnyPrompt);
        self.blocks.iter().find(exact).or_else(any)
    }

    /// The block for the `nth` request or notification of this name, from 1.
    pub(crate) fn for_event(&self, name: &str, nth: usize) -> Option<&Block> {
        self.blocks.iter().find(|block| match &block.when {
            When::Event { method, first } => method == name && first.is_none_or(|first| nth <= first),
            _ => false,
        })
    }
}

fn when(line: &mut Line<'_>) -> Result<When, BadScript> {
    let word = line.word("`on`")?;
    if word != "on" {
        return Err(line.bad(word, "a line at the left edge begins with `on`; steps are indented".to_owned()));
    }
    let when = match line.word("what the block is for")? {
        "start" => When::Start,
        "prompt" if line.rest.is_empty() => When::AnyPrompt,
        "prompt" => When::Prompt(line.text("a text")?.to_owned()),
        "first" => {
            let first = line.number("how many")?;
            When::Event { method: line.word("a method")?.to_owned(), first: Some(first) }
        }
        method => When::Event { method: method.to_owned(), first: None },
    };
    line.nothing_more()?;
    Ok(when)
}

fn step(line: &mut Line<'_>) -> Result<Step, BadScript> {
    let verb = line.word("a step")?;
    let step = match verb {
        "say" => Step::Say(line.text("what to say")?.to_owned()),
        "stream" => Step::Stream { count: line.number("how many")?, size: line.number("the size")? },
        "ask" => Step::Ask(line.text("a title")?.to_owned()),
        "tool" | "begin-tool" => {
            Step::Tool { title: line.text("a title")?.to_owned(), completes: verb == "tool" }
        }
        "run" => Step::Run(line.text("a command")?.to_owned()),
        "spawn" | "spawn-holding" => {
            Step::Spawn { command: line.text("a command")?.to_owned(), holds_output: verb == "spawn-holding" }
        }
        "wait-for" => Step::WaitFor(match line.word("what to wait for")? {
            "cancel" => Awaited::Cancel,
            "gate" => Awaited::Gate(line.text("a path")?.to_owned()),
            method => Awaited::Method(method.to_owned()),
        }),
        "pause" => Step::Pause(line.number("milliseconds")?),
        "heedless" => Step::Heedless,
        "end" => Step::End(match line.rest {
            "" => Ending::Completed,
            _ => match line.word("how")? {
                "completed" => Ending::Completed,
                "cancelled" => Ending::Cancelled,
                "failed" => Ending::Failed(line.text("the provider's words")?.to_owned()),
                word => {
                    return Err(
                        line.bad(word, "a turn ends completed, cancelled, or failed WORDS".to_owned())
                    );
                }
            },
        }),
        "hang" => Step::Hang,
        "default" => Step::Default,
        "answer" => Step::Answer(line.json()?),
        "refuse" => Step::Refuse { code: line.number("a code")?, words: line.text("the words")?.to_owned() },
        "send" => Step::Send(line.json()?),
        "trickle" => Step::Trickle { pause_ms: line.number("milliseconds")?, frame: line.json()? },
        "raw" => Step::Raw(line.bytes()?),
        "part" => Step::Part(line.bytes()?),
        "garbage" => Step::Garbage,
        "huge" => Step::Huge(line.number("how many bytes")?),
        "stderr" => Step::Stderr(line.text("a text")?.to_owned()),
        "stderr-flood" => Step::StderrFlood(line.number("how many bytes")?),
        "crlf" => Step::Crlf,
        "deaf" => Step::Deaf,
        "listen" => Step::Listen,
        "close" => Step::Close,
        "ignore" => Step::Ignore(match line.word("what to ignore")? {
            "term" => Ignored::Term,
            "int" => Ignored::Int,
            "eof" => Ignored::Eof,
            word => return Err(line.bad(word, "term, int and eof can be ignored".to_owned())),
        }),
        "exit" => Step::Exit(line.number("a code")?),
        "crash" => Step::Crash,
        unknown => return Err(line.bad(unknown, format!("no such step; there are {VERBS}"))),
    };
    line.nothing_more()?;
    Ok(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn blocks_and_steps() {
        let script = Script::parse(
            "# a comment\non start\n  raw \\xef\\xbb\\xbf{}\\\\\n\non prompt one two\n\tsay  a b \n  end failed no more\n\
             on prompt\n  stream 3 8\non first 2 thread/resume\n  refuse -32600 not yet\non turn/start\n  answer {\"a\": [1]}\n  exit 3\n",
        )
        .unwrap();
        assert_eq!(script.at_start().unwrap().steps, [Step::Raw(b"\xef\xbb\xbf{}\\".to_vec())]);
        assert_eq!(
            script.for_prompt("one two").unwrap().steps,
            [Step::Say("a b".to_owned()), Step::End(Ending::Failed("no more".to_owned()))]
        );
        assert_eq!(script.for_prompt("other").unwrap().steps, [Step::Stream { count: 3, size: 8 }]);
        let refusal = Step::Refuse { code: -32600, words: "not yet".to_owned() };
        assert_eq!(script.for_event("thread/resume", 2).unwrap().steps, [refusal]);
        assert_eq!(script.for_event("thread/resume", 3), None);
        let steps = [Step::Answer(json!({ "a": [1] })), Step::Exit(3)];
        assert_eq!(script.for_event("turn/start", 9).unwrap().steps, steps);
        assert_eq!(script.for_event("initialize", 1), None);
    }

    #[test]
    fn a_bad_script_is_named_with_its_line_and_word() {
        for (text, line, word, says) in [
            ("say x", 1, 1, "left edge begins with `on`"),
            ("  say x", 1, 1, "below a line that begins with `on`"),
            ("on", 1, 2, "what the block is for is missing"),
            ("on start\n  sya x", 2, 1, "no such step; there are say,"),
            ("on start\n\n  stream 3 big", 3, 3, "the size must be a number"),
            ("on start\n  stream 3", 2, 3, "the size is missing"),
            ("on start\n  say", 2, 2, "what to say is missing"),
            ("on start\n  hang on", 2, 2, "nothing more belongs here"),
            ("on start\n  send {\"a\":", 2, 2, "this is no JSON"),
            ("on start\n  raw a\\n", 2, 2, "a backslash begins"),
            ("on start\n  ignore hup", 2, 2, "term, int and eof"),
            ("on start\n  end badly", 2, 2, "a turn ends completed"),
            ("on first x initialize", 1, 3, "how many must be a number"),
            ("on initialize twice", 1, 3, "nothing more belongs here"),
        ] {
            let bad = Script::parse(text).expect_err(text);
            assert_eq!((bad.line, bad.word), (line, word), "{text:?}: {bad}");
            assert!(bad.to_string().contains(says), "{text:?}: {bad}");
        }
    }
}
