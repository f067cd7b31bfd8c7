//! The conversations that an agent keeps by itself, with which a session can begin. Reads files; starts nothing.

use crate::catalog;
use crate::conversations::Conversations;
use crate::error::HostError;
use crate::host::{Host, unsupported};
use crate::lane::thread_scope;
use crate::rollouts::{Listed, Rollouts};
use crate::saved_threads::{self, SavedThread};
use mainstay_core::{AgentName, ThreadId};
use std::sync::Arc;

/// A conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptThread {
    /// The agent's id of it.
    pub thread: ThreadId,
    /// Its folder.
    pub cwd: Option<String>,
    /// As it was named last.
    pub name: Option<String>,
    /// The beginning of its first message.
    pub preview: Option<String>,
    /// When it was begun, as the agent wrote it.
    pub started: Option<String>,
    /// When its record was written last, Unix ms.
    pub updated_at: Option<i64>,
    /// What made it.
    pub originator: Option<String>,
    /// The agent has put it away: it is to be taken out before it can be gone on with.
    pub archived: bool,
    /// The session that has it: then it can be adopted by no other.
    pub session: Option<String>,
    /// A living process of somebody else that has it open, where the agent lists those: it cannot be gone on with beside it.
    pub open_in: Option<i32>,
}

/// Conversations, the newest first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeptThreads {
    /// They.
    pub threads: Vec<KeptThread>,
    /// There are more, or some could not be read.
    pub incomplete: bool,
}

impl Host {
    /// At most so many conversations in an agent's configured home, the newest first.
    ///
    /// # Errors
    /// [`HostError::AgentUnknown`]; a refusal where the agent keeps no files that list them; [`HostError::Read`].
    pub async fn threads(self: &Arc<Self>, agent: &AgentName, most: usize) -> Result<KeptThreads, HostError> {
        let configured = catalog::configured(self.config(), agent)?;
        let home = configured.home.as_ref().map(|home| home.display().to_string());
        let env = self.config().agent_environment(configured);
        let scope = thread_scope(agent, home.as_deref());
        if let Some(conversations) = Conversations::of(configured.kind, home.as_deref(), &env) {
            return self.blocking_read(move |host| saved(&conversations, host, &scope, most)).await;
        }
        let rollouts = Rollouts::of(configured.kind, home.as_deref(), &env);
        let rollouts = rollouts.ok_or_else(|| unsupported("list_threads"))?;
        self.blocking_read(move |host| {
            let listing = rollouts.list(most);
            let store = host.store();
            let kept = |listed: Listed| {
                let owner = store.thread_owner(&scope, listed.head.thread.as_str())?;
                let session = owner.map(|key| store.session(key)).transpose()?.flatten().map(|row| row.id);
                Ok(kept(listed, session))
            };
            let threads = listing.threads.into_iter().map(kept).collect::<Result<_, HostError>>()?;
            Ok(KeptThreads { threads, incomplete: listing.incomplete })
        })
        .await
    }
}

fn saved(
    conversations: &Conversations,
    host: &Host,
    scope: &str,
    most: usize,
) -> Result<KeptThreads, HostError> {
    let page = saved_threads::of_claude(conversations, most)?;
    let store = host.store();
    let kept = |saved: SavedThread| {
        let owner = store.thread_owner(scope, saved.thread.as_str())?;
        let session = owner.map(|key| store.session(key)).transpose()?.flatten().map(|row| row.id);
        Ok(KeptThread {
            thread: saved.thread,
            cwd: saved.cwd,
            name: saved.name,
            preview: saved.first,
            started: saved.started,
            updated_at: Some(saved.updated_at),
            originator: None,
            archived: false,
            session,
            open_in: saved.open_in,
        })
    };
    let threads = page.threads.into_iter().map(kept).collect::<Result<_, HostError>>()?;
    Ok(KeptThreads { threads, incomplete: page.incomplete })
}

fn kept(listed: Listed, session: Option<String>) -> KeptThread {
    let Listed { head, name, preview, updated_at, archived } = listed;
    KeptThread {
        thread: head.thread,
        cwd: head.cwd,
        name,
        preview,
        started: head.started,
        updated_at,
        originator: head.originator,
        archived,
        session,
        open_in: None,
    }
}
