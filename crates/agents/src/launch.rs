//! How an agent is started: a plan, made of values, carried out by the host through a keeper.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Protocols that we speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentKind {
    /// `codex app-server`.
    Codex,
    /// Claude Code, `claude -p` with stream-json.
    Claude,
    /// Any ACP agent.
    Acp,
    /// The built-in one; speaks ACP.
    Demo,
}

/// The conversation that a process is started for, where the protocol names it at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Conversation {
    /// It begins one with this id.
    New(String),
    /// It takes this one up.
    Resume(String),
    /// It takes this one up at a point within its history; what came behind stands in the file and not in the context.
    ResumeAt {
        /// Which.
        id: String,
        /// The last row that it has, as its history names it.
        at: String,
    },
    /// It begins one with an id of its own as a branch of another.
    Fork {
        /// The other one; it is not changed.
        source: String,
        /// The branch.
        branch: String,
        /// The last message of the source that the branch has, as its history names it; None: all of it.
        up_to: Option<String>,
    },
}

/// What the host knows when it asks for a plan.
#[derive(Debug, Clone, Default)]
pub struct LaunchRequest {
    /// The resolved command: an absolute program and its arguments.
    pub command: Vec<String>,
    /// The account home, where pinned.
    pub account_home: Option<PathBuf>,
    /// The environment the agent is allowed: allow-listed variables of the host, then configured ones.
    pub env: Vec<(String, String)>,
    /// The conversation that it is started for; of use to Claude alone.
    pub conversation: Option<Conversation>,
    /// Further folders; absolute. Of use to Claude alone, the others are told over their protocol.
    pub additional_directories: Vec<String>,
}

/// How the keeper speaks with the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedTransport {
    /// Lines over stdin and stdout.
    Stdio,
    /// The agent listens on a Unix socket; `{socket}` in an argument stands for its address.
    WsUnix,
}

/// What a stopped reader means for this agent (design section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AtSpoolLimit {
    /// The pipe pushes back.
    Blocks,
    /// The agent drops a slow reader: the connection ends, typed.
    Cuts,
    /// The agent grows without limit: the turn is ended.
    Buffers,
}

/// One step of the way to end it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlannedStep {
    /// Close its input.
    EndInput {
        /// How long to wait before the next step, ms.
        wait_ms: u64,
    },
    /// SIGTERM to the agent alone.
    Terminate {
        /// How long to wait before the next step, ms.
        wait_ms: u64,
    },
    /// SIGINT to the agent alone.
    Interrupt {
        /// How long to wait before the next step, ms.
        wait_ms: u64,
    },
}

/// Everything that is particular about starting and ending one agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: Vec<(String, String)>,
    /// How it is spoken with.
    pub transport: PlannedTransport,
    /// How it is ended; KILL to the group always follows.
    pub ladder: Vec<PlannedStep>,
    /// What a full spool means.
    pub at_limit: AtSpoolLimit,
}

/// Why no plan can be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The command is empty.
    #[error("the agent's command is empty")]
    EmptyCommand,
}

/// The variable of the agent's environment that names its account home, where the protocol has one.
#[must_use]
pub const fn account_home_variable(kind: AgentKind) -> Option<&'static str> {
    match kind {
        AgentKind::Codex => Some("CODEX_HOME"),
        AgentKind::Claude => Some(crate::claude::launch::HOME_VARIABLE),
        AgentKind::Acp | AgentKind::Demo => None,
    }
}

/// Variables that agents set in the environment of the commands that they run, each with the conversation's id (measured
/// for Codex and Claude Code). They mark what an agent left behind also where nothing else of its environment was passed on.
pub const THREAD_VARIABLES: &[&str] = &["CODEX_THREAD_ID", "CLAUDE_CODE_SESSION_ID"];

/// Program and arguments of the agent's own terminal, attached to a conversation in a process that listens on a socket;
/// None: the protocol has none.
#[must_use]
pub fn terminal_arguments(
    kind: AgentKind,
    command: Vec<String>,
    thread: &str,
    socket: &str,
) -> Option<Vec<String>> {
    match kind {
        AgentKind::Codex => {
            let mut argv = command;
            argv.extend(["resume".to_owned(), thread.to_owned(), "--remote".to_owned()]);
            argv.push(format!("unix://{socket}"));
            Some(argv)
        }
        AgentKind::Claude | AgentKind::Acp | AgentKind::Demo => None,
    }
}

/// The arguments with which an agent speaks over standard input and output for a look at what it offers; None: it cannot
/// be asked without a session.
#[must_use]
pub const fn glimpse_arguments(kind: AgentKind) -> Option<&'static [&'static str]> {
    match kind {
        AgentKind::Codex => Some(&["app-server"]),
        AgentKind::Claude | AgentKind::Acp | AgentKind::Demo => None,
    }
}

/// The whole environment of an agent: what it is allowed, with its account home.
#[must_use]
pub fn environment(kind: AgentKind, request: &LaunchRequest) -> Vec<(String, String)> {
    let mut env = request.env.clone();
    if let (Some(home), Some(variable)) = (&request.account_home, account_home_variable(kind)) {
        env.retain(|(name, _)| name != variable);
        env.push((variable.to_owned(), home.display().to_string()));
    }
    env
}

/// Makes the plan of a protocol.
///
/// # Errors
/// [`PlanError`].
pub fn plan(kind: AgentKind, request: &LaunchRequest) -> Result<LaunchPlan, PlanError> {
    if request.command.is_empty() {
        return Err(PlanError::EmptyCommand);
    }
    let env = environment(kind, request);
    let mut argv = request.command.clone();
    Ok(match kind {
        AgentKind::Codex => {
            argv.extend(["app-server", "--listen", "unix://{socket}"].map(str::to_owned));
            LaunchPlan {
                argv,
                env,
                transport: PlannedTransport::WsUnix,
                // The listener drains on a first TERM (an open approval holds it for ever) and leaves on a second, measured.
                ladder: vec![
                    PlannedStep::Terminate { wait_ms: 500 },
                    PlannedStep::Terminate { wait_ms: 2_000 },
                ],
                at_limit: AtSpoolLimit::Cuts,
            }
        }
        AgentKind::Claude => crate::claude::launch::plan(request),
        AgentKind::Acp | AgentKind::Demo => LaunchPlan {
            argv,
            env,
            transport: PlannedTransport::Stdio,
            // End of input is the best cleaner of ACP agents (acp.md 3.1); two of five ignore it.
            ladder: vec![PlannedStep::EndInput { wait_ms: 3_000 }, PlannedStep::Terminate { wait_ms: 2_000 }],
            at_limit: AtSpoolLimit::Blocks,
        },
    })
}
