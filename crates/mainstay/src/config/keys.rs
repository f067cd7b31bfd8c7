//! The table of keys: what there is, what it takes, what it is when nobody says. The reference is generated from it.

use std::fmt::Write as _;

/// What a key takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `host:port` of an IP address.
    Address,
    /// A list of absolute folders.
    Folders,
    /// A whole number with a unit of time.
    Duration,
    /// A duration, or `never`.
    Age,
    /// A whole number above zero, or `none`.
    Bound,
    /// A duration, or `none`.
    TimeBound,
    /// An amount of money with at most six decimals, or `none`.
    CostBound,
    /// A whole number with a unit of size.
    Size,
    /// A whole number above zero.
    Count,
    /// True or false.
    Flag,
    /// A text.
    Text,
    /// A list of texts.
    Texts,
    /// A table of texts.
    Table,
    /// One of some words.
    Word(&'static [&'static str]),
}

impl Kind {
    fn describe(self) -> String {
        match self {
            Self::Address => "address and port".to_owned(),
            Self::Folders => "list of absolute folders".to_owned(),
            Self::Duration => "duration (`ms`, `s`, `m`, `h`, `d`)".to_owned(),
            Self::Age => "duration, or `never`".to_owned(),
            Self::Bound => "number, or `none`".to_owned(),
            Self::TimeBound => "duration, or `none`".to_owned(),
            Self::CostBound => "amount in the account's currency (`2.50`), or `none`".to_owned(),
            Self::Size => "size (`B`, `KiB`, `MiB`, `GiB`, `KB`, `MB`, `GB`)".to_owned(),
            Self::Count => "number".to_owned(),
            Self::Flag => "`true` or `false`".to_owned(),
            Self::Text => "text".to_owned(),
            Self::Texts => "list of texts".to_owned(),
            Self::Table => "table of texts".to_owned(),
            Self::Word(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
            }
        }
    }
}

/// Whether a project file may set a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InProject {
    /// Never.
    No,
    /// Only to a smaller value.
    Lower,
    /// Only to folders within those allowed.
    Within,
}

/// One key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// As TOML; None: it depends, `help` says on what.
    pub(crate) default: Option<&'static str>,
    pub(crate) project: InProject,
    pub(crate) help: &'static str,
}

const fn key(
    name: &'static str,
    kind: Kind,
    default: Option<&'static str>,
    project: InProject,
    help: &'static str,
) -> Key {
    Key { name, kind, default, project, help }
}

/// Keys of the host.
pub(crate) const KEYS: &[Key] = &[
    key(
        "listen",
        Kind::Address,
        Some("\"127.0.0.1:4747\""),
        InProject::No,
        "The TCP address of the API. Port 0 picks one; `serve --json` prints it first.",
    ),
    key(
        "allow_remote",
        Kind::Flag,
        Some("false"),
        InProject::No,
        "Whether `listen` may be an address that other machines can reach. The token is then all that protects the host.",
    ),
    key(
        "allowed_hosts",
        Kind::Texts,
        Some("[]"),
        InProject::No,
        "Further names by which clients may call this host (the Host header), for example behind a proxy.",
    ),
    key(
        "roots",
        Kind::Folders,
        None,
        InProject::Within,
        "Folders that sessions may use. Default: the user's home, and the folder that the host is started in.",
    ),
    key(
        "rest_after",
        Kind::Duration,
        Some("\"30m\""),
        InProject::Lower,
        "After this long with nothing owed, a session's agent is put to rest.",
    ),
    key(
        "linger",
        Kind::Duration,
        Some("\"24h\""),
        InProject::Lower,
        "How long a keeper lets its agent work on without a host.",
    ),
    key(
        "spool_limit",
        Kind::Size,
        Some("\"1GiB\""),
        InProject::Lower,
        "Output of one process that may wait for the host. What happens then depends on the agent.",
    ),
    key(
        "stream_flush",
        Kind::Duration,
        Some("\"5ms\""),
        InProject::No,
        "How long a batch of streamed text alone may gather before it is synced and shown.",
    ),
    key(
        "max_processes",
        Kind::Count,
        Some("40"),
        InProject::Lower,
        "Agent processes at once. Over it messages wait, with reason `capacity`.",
    ),
    key("max_starting", Kind::Count, Some("2"), InProject::Lower, "Agent processes starting at once."),
    key(
        "archive_after",
        Kind::Age,
        Some("\"never\""),
        InProject::No,
        "Sessions at rest that nothing happened to for this long are archived.",
    ),
    key(
        "delete_archived_after",
        Kind::Age,
        Some("\"never\""),
        InProject::No,
        "Archived sessions that nothing happened to for this long are deleted.",
    ),
    key(
        "keep_feed",
        Kind::Duration,
        Some("\"30d\""),
        InProject::No,
        "How long entries of the host's feed are kept. The newest 10,000 stay in any case; a reader that comes later begins \
         anew.",
    ),
    key(
        "max_turns",
        Kind::Bound,
        Some("\"none\""),
        InProject::No,
        "Turns of a session that is created without its own bound. Over a budget, messages wait (reason `budget`).",
    ),
    key(
        "max_turn_time",
        Kind::TimeBound,
        Some("\"none\""),
        InProject::No,
        "Time that the turns of such a session may run, together. A turn that uses it up is stopped.",
    ),
    key(
        "max_tokens",
        Kind::Bound,
        Some("\"none\""),
        InProject::No,
        "Tokens that such a session may use, as its agent counts them. A turn that uses them up is stopped.",
    ),
    key(
        "max_cost",
        Kind::CostBound,
        Some("\"none\""),
        InProject::No,
        "What such a session may cost, as its agent counts it. A turn that uses it up is stopped.",
    ),
    key(
        "log",
        Kind::Text,
        Some("\"info\""),
        InProject::No,
        "What the host logs, on standard error or, in the background, in `logs/host.log` (two files of 8 MiB at most): a level (`error`, `warn`, `info`, `debug`, `trace`), or directives as \
         tracing's filters take them.",
    ),
    key(
        "log_format",
        Kind::Word(&["text", "json"]),
        Some("\"text\""),
        InProject::No,
        "How a line of the log is written: for people, or as one JSON object.",
    ),
    key(
        "otlp_endpoint",
        Kind::Text,
        None,
        InProject::No,
        "The plain http URL of an OpenTelemetry collector beside the host (`http://127.0.0.1:4318`), which gets spans of ids and \
         outcomes. Only a build with the cargo feature `otlp` takes it. Default: none.",
    ),
];

/// Keys of an agent, in `[agents.<name>]`.
pub(crate) const AGENT_KEYS: &[Key] = &[
    key(
        "kind",
        Kind::Word(&["acp", "claude", "codex"]),
        None,
        InProject::No,
        "The protocol. Needed for agents that are not built in (built in: `claude`, `codex`, `demo`).",
    ),
    key(
        "command",
        Kind::Texts,
        None,
        InProject::No,
        "Program and arguments. A bare program name is looked up on PATH. Needed for agents that are not built in.",
    ),
    key(
        "home",
        Kind::Text,
        None,
        InProject::No,
        "The account home (CODEX_HOME and its like): absolute. Pinned in each session at creation.",
    ),
    key("env", Kind::Table, Some("{}"), InProject::No, "Added to the agent's environment."),
    key(
        "env_pass",
        Kind::Texts,
        Some("[]"),
        InProject::No,
        "Variables let through from the host's environment, beside a short default list.",
    ),
    key(
        "isolation",
        Kind::Word(&["profile", "session"]),
        Some("\"profile\""),
        InProject::No,
        "`profile`: sessions with the same launch profile (agent, command, environment, account home) share a process, where the agent can hold many conversations in one (Codex). `session`: each session gets its own.",
    ),
    key(
        "sessions_per_process",
        Kind::Count,
        Some("16"),
        InProject::No,
        "How many sessions may share a process. One more gets another process.",
    ),
    key(
        "command_env",
        Kind::Texts,
        Some("[]"),
        InProject::No,
        "Variables of `env` and `env_pass` that the commands which the agent runs get too. Without it those of `env` are the agent's alone, and so are those of `env_pass` that are named like secrets, where the agent can keep them apart (Codex).",
    ),
    key(
        "stall_limit",
        Kind::Duration,
        None,
        InProject::No,
        "How long the agent may try the same thing again within a turn (an unreachable provider) before the turn is stopped. Set as the limit `max_stall_ms` of each new session. Default: without end.",
    ),
];

/// Variables of ours that are no keys.
pub(crate) const OTHER_VARIABLES: &[(&str, &str)] = &[
    ("MAINSTAY_HOME", "The state folder. Default: `mainstay` in the XDG state folder."),
    (
        "MAINSTAY_FAULT_POINT",
        "For tests only: where the host kills itself, for example `read_not_committed:3`.",
    ),
    ("MAINSTAY_KEEPER_TOKEN", "Set by keepers for agents; a command with it may not answer requests."),
];

/// The known key nearest to an unknown one, if one is near.
pub(crate) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|name| (distance(unknown, name), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 3)
        .min()
        .map(|(_, name)| name)
}

/// Edits between two texts (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// The reference, as Markdown.
pub(crate) fn reference() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Generated from the program; do not edit. `config.toml` in the state folder. Precedence: flag, `MAINSTAY_…` \
         variable, the project's `.mainstay.toml` (may only narrow), `config.toml`, default; `mainstay config show` says \
         where each value came from. Every key is also a variable: `MAINSTAY_` and the key in capitals, a double \
         underscore for each level (`MAINSTAY_AGENTS__CODEX__HOME`). Lists and tables are written as in TOML. Unknown keys \
         are warned about.\n\n## The host\n\n",
    );
    table(&mut text, KEYS);
    text.push_str("\n## Agents: `[agents.<name>]`\n\n");
    table(&mut text, AGENT_KEYS);
    text.push_str("\n## Further variables\n\n| variable | what |\n|---|---|\n");
    for (name, help) in OTHER_VARIABLES {
        // Writing to a string does not fail.
        let _written = writeln!(text, "| `{name}` | {help} |");
    }
    text
}

fn table(text: &mut String, keys: &[Key]) {
    text.push_str("| key | takes | default | project file | what |\n|---|---|---|---|---|\n");
    for key in keys {
        let default = key.default.map_or_else(String::new, |default| format!("`{default}`"));
        let project = match key.project {
            InProject::No => "",
            InProject::Lower => "lower",
            InProject::Within => "within",
        };
        let _written = writeln!(
            text,
            "| `{}` | {} | {default} | {project} | {} |",
            key.name,
            key.kind.describe(),
            key.help
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen_are_recognized() {
        let names = || KEYS.iter().map(|key| key.name);
        assert_eq!(nearest("max_process", names()), Some("max_processes"));
        assert_eq!(nearest("listne", names()), Some("listen"));
        assert_eq!(nearest("completely_else", names()), None);
    }

    #[test]
    fn golden_config_reference() {
        crate::golden::compare("config-reference.md", &reference());
    }
}
