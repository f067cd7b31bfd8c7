//! How the program is started for one conversation.

use crate::launch::{AtSpoolLimit, Conversation, LaunchPlan, LaunchRequest, PlannedStep, PlannedTransport};

/// Variables that make the program say when it works and write its transcript before it says that a turn is over; and
/// that keep it from changing itself or speaking with anybody but the model.
const FIXED: [(&str, &str); 3] = [
    ("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS", "1"),
    ("CLAUDE_CODE_EAGER_FLUSH", "1"),
    ("DISABLE_AUTOUPDATER", "1"),
];

/// What a command of the program finds in its environment. A host that was itself started by such a command must not
/// hand it on: the program would take itself for a child of that conversation.
const OF_A_CHILD: [&str; 5] = [
    "CLAUDECODE",
    "CLAUDE_CODE_SESSION_ID",
    "CLAUDE_CODE_CHILD_SESSION",
    "CLAUDE_CODE_ENTRYPOINT",
    "AI_AGENT",
];

/// Where the account home is named.
pub const HOME_VARIABLE: &str = "CLAUDE_CONFIG_DIR";

pub(crate) fn plan(request: &LaunchRequest) -> LaunchPlan {
    let mut env = request.env.clone();
    let fixed = |name: &str| FIXED.iter().any(|(fixed, _)| *fixed == name);
    env.retain(|(name, _)| !OF_A_CHILD.contains(&name.as_str()) && !fixed(name));
    env.extend(FIXED.map(|(name, value)| (name.to_owned(), value.to_owned())));
    if let Some(home) = &request.account_home {
        env.retain(|(name, _)| name != HOME_VARIABLE);
        env.push((HOME_VARIABLE.to_owned(), home.display().to_string()));
    }
    let mut argv = request.command.clone();
    let fixed = [
        "-p",
        "--input-format",
        "stream-json",
        "--output-format",
        "stream-json",
        "--verbose",
        "--include-partial-messages",
        "--permission-prompt-tool",
        "stdio",
        "--replay-user-messages",
    ];
    argv.extend(fixed.map(str::to_owned));
    // In one word with its option: a value that looks like an option is refused and never taken for one (measured).
    match &request.conversation {
        Some(Conversation::New(id)) => argv.push(format!("--session-id={id}")),
        Some(Conversation::Resume(id)) => argv.push(format!("--resume={id}")),
        Some(Conversation::ResumeAt { id, at }) => {
            argv.extend([format!("--resume={id}"), format!("--resume-session-at={at}")]);
        }
        Some(Conversation::Fork { source, branch, up_to }) => {
            argv.extend([format!("--resume={source}"), "--fork-session".to_owned()]);
            argv.push(format!("--session-id={branch}"));
            if let Some(message) = up_to {
                argv.push(format!("--resume-session-at={message}"));
            }
        }
        None => {}
    }
    for folder in &request.additional_directories {
        argv.extend(["--add-dir".to_owned(), folder.clone()]);
    }
    LaunchPlan {
        argv,
        env,
        transport: PlannedTransport::Stdio,
        // End of input lets a running turn go on to its end, so INT comes soon: it ends the turn, its tools and the
        // program, and writes the transcript. TERM leaves young commands running (all measured).
        ladder: vec![
            PlannedStep::EndInput { wait_ms: 300 },
            PlannedStep::Interrupt { wait_ms: 3_000 },
            PlannedStep::Terminate { wait_ms: 2_000 },
        ],
        at_limit: AtSpoolLimit::Buffers,
    }
}

/// The id of the conversation that a session begins: a UUID (the program wants one), made from a name that is never
/// used again. The same name gives the same conversation, so that a process which died while it began one is followed
/// by one that begins, or takes up, the same: nothing is begun or branched off twice.
#[must_use]
pub fn conversation_of(name: &str) -> String {
    let hex = mainstay_core::digest::sha256_hex(name.as_bytes());
    // Version 8, "made by a rule of one's own", and the variant of RFC 9562.
    format!("{}-{}-8{}-8{}-{}", &hex[..8], &hex[8..12], &hex[13..16], &hex[17..20], &hex[20..32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn request() -> LaunchRequest {
        LaunchRequest {
            command: vec!["/bin/claude".to_owned()],
            account_home: Some(PathBuf::from("/home/a")),
            env: [("PATH", "/bin"), ("CLAUDECODE", "1"), ("CLAUDE_CONFIG_DIR", "/other")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .to_vec(),
            conversation: Some(Conversation::Resume("c-1".to_owned())),
            additional_directories: vec!["/more".to_owned()],
        }
    }

    #[test]
    fn a_conversation_is_named_in_the_arguments_and_the_home_in_the_environment() {
        let plan = plan(&request());
        let argv = plan.argv.join(" ");
        assert!(argv.starts_with("/bin/claude -p --input-format stream-json"), "{argv}");
        assert!(argv.ends_with(" --resume=c-1 --add-dir /more"), "{argv}");
        let of = |name: &str| -> Vec<&str> {
            plan.env.iter().filter(|(is, _)| is == name).map(|(_, value)| value.as_str()).collect()
        };
        assert_eq!(of("CLAUDE_CONFIG_DIR"), ["/home/a"]);
        assert_eq!(of("CLAUDE_CODE_EMIT_SESSION_STATE_EVENTS"), ["1"]);
        assert!(of("CLAUDECODE").is_empty(), "marks of a child are not handed on");
    }

    #[test]
    fn a_name_begins_one_conversation_with_a_uuid() {
        let id = conversation_of("p-1");
        assert_eq!(id, conversation_of("p-1"));
        assert_ne!(id, conversation_of("p-2"));
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!((&id[14..15], &id[19..20]), ("8", "8"));
    }
}
