//! How things came, how they ended, and why they wait.

use crate::content::Answer;
use crate::{Cursor, HostId, SessionId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a thread came into the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ThreadOrigin {
    /// Made for this session.
    Created,
    /// Brought by the user.
    Adopted,
    /// Taken up again in another process.
    Resumed,
    /// Branched off.
    Forked,
    /// In place of one that the agent never saved.
    Superseded,
    /// In place of one whose history is proven gone; the user chose.
    Replaced,
    /// The agent put the conversation into it (an emptied context).
    Switched,
}

/// Terminal states of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RequestEnd {
    /// Answered by one of us.
    Answered,
    /// Answered no by one of us.
    Declined,
    /// Withdrawn by a stop or with its turn.
    Cancelled,
    /// Answered elsewhere, or withdrawn by the agent.
    Superseded,
    /// Its process is gone and nobody answered.
    Lost,
}

/// Why a turn or a submission waits, or what is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum QueueReason {
    /// The agent is being started.
    Starting,
    /// The agent is being ended; the next one gets it.
    Stopping,
    /// A turn runs.
    TurnRunning,
    /// Another input is not yet taken.
    InputUntaken,
    /// The user stopped; the queue waits for `resume`.
    Paused,
    /// The running turn takes no further input; the message starts a turn of its own.
    NotSteerable,
    /// The turn that it was meant for was over; the message starts a turn of its own.
    TurnOver,
    /// The last start failed for a cause that passes; the next try has its time.
    Retrying,
    /// A budget of the session is used up.
    Budget,
    /// As many processes as may run are running.
    Capacity,
    /// The session must be recovered first.
    Recovering,
    /// The agent does something that was asked of it beside messages (it compacts, it reviews).
    Control,
    /// A request that a death cut off is asked again: a message before its answer would take it back.
    Request,
}

/// How far a stop reaches that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopReach {
    /// All that runs.
    #[default]
    Session,
    /// The turn.
    Turn,
    /// Tasks and sub-agents.
    Background,
}

/// What a stop does that the agent did not react to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StopStep {
    /// The session leaves its process, which ends with it where no other session needs it.
    #[default]
    Process,
    /// In a process that goes on with others: what runs is told to end once more, and commands, tasks and sub-agents
    /// with it.
    Background,
}

/// How far options are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OptionsState {
    /// Asked for; the agent did not say yet that it has them.
    Accepted,
    /// In force, as the agent reports it.
    #[default]
    Confirmed,
    /// The agent refused; these, the ones before, are in force again.
    Reverted,
}

/// When a request is answered by the host itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RequestDeadline {
    /// When, Unix ms.
    pub at: i64,
    /// With what, as stated beforehand.
    pub answer: Answer,
}

/// Why a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// The process is proven gone.
    ProcessGone,
    /// The reservation was never used.
    Unused,
    /// The thread could not be opened.
    ThreadRefused,
    /// A user gave it up.
    Abandoned,
    /// The process goes on with other sessions; it let this session's thread go.
    ThreadClosed,
}

/// What would settle a doubtful submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettlesBy {
    /// The provider's history, read when the thread is next opened.
    History,
    /// Only a user.
    User,
}

/// Why an epoch began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EpochReason {
    /// The database is older than what was shown.
    StoreRewound,
    /// A keeper's manifest carries a higher fence than the record.
    FenceAhead,
    /// The session came from a file; the one that the file was made of may have gone on.
    Imported,
}

/// Something that stood in a session's file and was not taken over, because it is this host's user's to allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum LeftOut {
    /// The account home; the agent's own one of this host is used.
    AccountHome,
    /// Programs and addresses that the agent would have been given as tools.
    McpServers,
    /// Instructions for the agent.
    Instructions,
    /// The agent's mode.
    Mode,
    /// The sandbox.
    Sandbox,
    /// When the agent asks.
    Approval,
    /// The default answer of requests, because it allows.
    DefaultAnswer,
}

/// Where an imported session came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImportedFrom {
    /// Its id there.
    pub session: SessionId,
    /// The host that made it.
    pub host: HostId,
    /// Where its journal stood.
    pub head: Cursor,
    /// The file's digest: `sha256:` and lower-case hex.
    pub digest: String,
}
