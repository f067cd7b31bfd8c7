//! What a host tells a newborn keeper. The spec travels over the launch pipe only: it holds the agent's whole
//! environment, so it stands in no file, no argument and no log.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Version of the launch pipe and the control socket. Raised only when an older peer could misunderstand;
/// additions are optional fields.
pub const PROTOCOL_VERSION: u32 = 1;
/// Default longest message, in bytes; longer ones become an `oversize` record.
pub const DEFAULT_RECORD_LIMIT: u64 = 64 << 20;
/// Default size at which a spool segment is closed and the next one begun, in bytes.
pub const DEFAULT_SEGMENT_SIZE: u64 = 16 << 20;
/// How long, by default, an agent that buffers without limit may go on after its spool is full.
pub const DEFAULT_BUFFER_GRACE_MS: u64 = 30_000;
/// How long, by default, an agent has to listen on its socket.
pub const DEFAULT_CONNECT_DEADLINE_MS: u64 = 30_000;
/// The argument text that is replaced by the address of the agent's socket.
pub const SOCKET_PLACEHOLDER: &str = "{socket}";
/// The environment variable that names its keeper to every process of an agent.
pub const TOKEN_VARIABLE: &str = "MAINSTAY_KEEPER_TOKEN";

/// Everything one keeper needs to know.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchSpec {
    pub protocol_version: u32,
    pub token: String,
    pub home: PathBuf,
    pub host_id: String,
    pub process_fence: u64,
    /// The agent's command; with [`Transport::WsUnix`] every `{socket}` is replaced.
    pub argv: Vec<String>,
    /// The agent's complete environment; the keeper only adds [`TOKEN_VARIABLE`].
    pub env: Vec<(String, String)>,
    pub cwd: PathBuf,
    pub transport: Transport,
    /// Steps of an orderly end. A KILL to the whole group always follows the last one.
    pub ladder: Vec<LadderStep>,
    /// Bytes of records that the host has not committed; reaching it is what `at_limit` answers.
    pub spool_limit: u64,
    pub at_limit: AtLimit,
    /// For [`AtLimit::Buffers`]: how long the spool may stay full before the agent is ended.
    #[serde(default = "default_buffer_grace")]
    pub buffer_grace_ms: u64,
    #[serde(default = "default_segment_size")]
    pub segment_size: u64,
    #[serde(default = "default_record_limit")]
    pub record_limit: u64,
    /// How long the agent works on without a connected host.
    pub linger_ms: u64,
    /// A cgroup (version 2) folder that is delegated to this user; the keeper makes its agent's group in it.
    #[serde(default)]
    pub cgroup_parent: Option<PathBuf>,
    /// Environment variables that mark this agent's processes, besides the token.
    #[serde(default)]
    pub provider_vars: Vec<(String, String)>,
    /// What `ps` calls the agent.
    #[serde(default)]
    pub agent_label: String,
    /// Versions worth knowing later, in the host's own words.
    #[serde(default)]
    pub versions: String,
}

fn default_buffer_grace() -> u64 {
    DEFAULT_BUFFER_GRACE_MS
}

fn default_segment_size() -> u64 {
    DEFAULT_SEGMENT_SIZE
}

fn default_record_limit() -> u64 {
    DEFAULT_RECORD_LIMIT
}

/// Shows no argument and no environment value: either may hold a secret.
impl fmt::Debug for LaunchSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LaunchSpec")
            .field("token", &self.token)
            .field("program", &self.argv.first())
            .field("arguments", &self.argv.len().saturating_sub(1))
            .field("environment", &self.env.len())
            .field("cwd", &self.cwd)
            .field("transport", &self.transport)
            .field("process_fence", &self.process_fence)
            .finish_non_exhaustive()
    }
}

/// How messages travel between keeper and agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// One message per line on the agent's standard input and output.
    Stdio,
    /// The agent listens on a Unix socket and speaks WebSocket.
    WsUnix { socket: SocketPlace },
}

/// Where the agent is told to listen: a socket of this name in the keeper's folder.
///
/// The address that replaces `{socket}` is the plain path where it fits into a socket address. Where it does not,
/// it is `/proc/KEEPER_PID/cwd/NAME`: the keeper's working folder is its own folder, so this names the same
/// place in a few bytes, needs no second folder to clean up, and ends with the keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketPlace {
    /// A file name without any folder.
    pub name: String,
    /// How long the agent has to listen before the connection attempt ends as failed.
    #[serde(default = "default_connect_deadline")]
    pub connect_deadline_ms: u64,
}

fn default_connect_deadline() -> u64 {
    DEFAULT_CONNECT_DEADLINE_MS
}

impl Default for SocketPlace {
    fn default() -> Self {
        Self { name: "agent.sock".to_owned(), connect_deadline_ms: DEFAULT_CONNECT_DEADLINE_MS }
    }
}

/// What this kind of agent does when nobody reads it, and so what a full spool means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtLimit {
    /// It waits: the keeper stops reading until the host commits.
    Blocks,
    /// It drops a slow reader: the keeper ends the connection itself, with a record that says so.
    Cuts,
    /// It buffers without limit: after `buffer_grace_ms` the keeper ends the agent.
    Buffers,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LadderStep {
    pub action: LadderAction,
    /// How long this step may take before the next one follows.
    pub deadline_ms: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LadderAction {
    /// Ends the agent's input: the end of the pipe, or a WebSocket close frame.
    EndInput,
    Signal {
        name: SignalName,
        to: SignalTarget,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SignalName {
    #[serde(rename = "INT")]
    Int,
    #[serde(rename = "TERM")]
    Term,
    #[serde(rename = "HUP")]
    Hup,
    #[serde(rename = "KILL")]
    Kill,
}

impl SignalName {
    pub(crate) fn to_signal(self) -> rustix::process::Signal {
        match self {
            Self::Int => rustix::process::Signal::INT,
            Self::Term => rustix::process::Signal::TERM,
            Self::Hup => rustix::process::Signal::HUP,
            Self::Kill => rustix::process::Signal::KILL,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalTarget {
    Leader,
    Group,
}
