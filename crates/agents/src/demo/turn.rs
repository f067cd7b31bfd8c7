//! What the demo agent does with a prompt.

use super::serve::{Shared, Stopped};
use serde_json::{Value, json};
use std::io::Write;
use std::time::Duration;

/// The longest `run for N`, seconds: a demonstration, not a load.
const MAX_RUN_SECONDS: u64 = 3_600;
/// How often the counter of `run for N` moves.
const TICK: Duration = Duration::from_millis(200);
/// What the one tool call of a turn says it would do.
const TOOL_TITLE: &str = "Show the current folder's name";

const GREETING: &str = "Hello! I am the demo agent of Mainstay. I need no key and no network, and I change nothing on \
                        this machine. Everything you see here went through the same road as a real agent's work: \
                        kept on disk before it is shown, and still there if the host is killed in the middle of a word.\n\n\
                        Let me ask you for something, as agents do.";
const ALLOWED: &str = "Thank you. If I were a real agent, the folder's name would stand here; I only wanted to see your \
                       answer arrive. Try `run for 20` and kill the host while I count.";
const REFUSED: &str =
    "You said no, and that is fine: the work goes on without it. Try `run for 20` and stop me while I count.";

pub(super) fn run<W: Write>(shared: &Shared<W>, session: &str, params: &Value) -> Result<(), Stopped> {
    let prompt = prompt_text(params);
    match seconds_to_run(&prompt) {
        Some(seconds) => count(shared, session, seconds),
        None => greet(shared, session),
    }
}

fn prompt_text(params: &Value) -> String {
    let blocks = params.get("prompt").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let texts: Vec<&str> = blocks.iter().filter_map(|block| block.get("text")?.as_str()).collect();
    texts.join("\n")
}

/// N of `run for N`.
fn seconds_to_run(prompt: &str) -> Option<u64> {
    let prompt = prompt.to_lowercase();
    let (_, after) = prompt.split_once("run for")?;
    let digits: String = after.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(|seconds: u64| seconds.min(MAX_RUN_SECONDS))
}

fn say<W: Write>(shared: &Shared<W>, session: &str, text: &str) {
    let content = json!({ "type": "text", "text": text });
    shared.update(session, &json!({ "sessionUpdate": "agent_message_chunk", "content": content }));
}

fn speak<W: Write>(shared: &Shared<W>, session: &str, text: &str) -> Result<(), Stopped> {
    for word in text.split_inclusive(' ') {
        shared.pause(session, shared.pace)?;
        say(shared, session, word);
    }
    Ok(())
}

fn greet<W: Write>(shared: &Shared<W>, session: &str) -> Result<(), Stopped> {
    speak(shared, session, GREETING)?;
    let call = json!({
        "sessionUpdate": "tool_call",
        "toolCallId": shared.tool_call_id(),
        "title": TOOL_TITLE,
        "kind": "read",
        "status": "pending",
        "rawInput": { "command": "basename \"$PWD\"" },
    });
    shared.update(session, &call);
    let finish = |status: &str, text: &str| {
        shared.update(
            session,
            &json!({
                "sessionUpdate": "tool_call_update",
                "toolCallId": call["toolCallId"],
                "status": status,
                "content": [{ "type": "content", "content": { "type": "text", "text": text } }],
            }),
        );
    };
    let asked = json!({
        "sessionId": session,
        "toolCall": { "toolCallId": call["toolCallId"], "title": TOOL_TITLE, "kind": "read" },
        "options": [
            { "optionId": "allow", "name": "Allow once", "kind": "allow_once" },
            { "optionId": "reject", "name": "Reject", "kind": "reject_once" },
        ],
    });
    let answer = match shared.ask(session, "session/request_permission", asked) {
        Ok(answer) => answer,
        Err(stopped) => {
            finish("failed", "stopped");
            return Err(stopped);
        }
    };
    if answer.pointer("/outcome/optionId").and_then(Value::as_str) == Some("allow") {
        finish("completed", "allowed; the demo agent does not look at the disk");
        speak(shared, session, ALLOWED)
    } else {
        finish("failed", "not allowed");
        speak(shared, session, REFUSED)
    }
}

fn count<W: Write>(shared: &Shared<W>, session: &str, seconds: u64) -> Result<(), Stopped> {
    say(shared, session, &format!("Counting for {seconds} seconds.\n"));
    let ticks_per_second = 1_000 / u64::try_from(TICK.as_millis()).unwrap_or(1_000);
    for tick in 1..=seconds * ticks_per_second {
        shared.pause(session, TICK)?;
        say(shared, session, &format!("{tick} "));
    }
    say(shared, session, "\nDone.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_run_for_with_a_number_runs() {
        assert_eq!(seconds_to_run("please run for 12 s"), Some(12));
        assert_eq!(seconds_to_run("Run for3"), Some(3));
        assert_eq!(seconds_to_run("run for 99999999"), Some(MAX_RUN_SECONDS));
        assert_eq!(seconds_to_run("run for a while"), None);
        assert_eq!(seconds_to_run("hello"), None);
    }
}
