//! A conversation that another client of an agent's process (its own terminal) began there becomes a session of its own,
//! bound to the same process.

use crate::catalog;
use crate::error::HostError;
use crate::host::{Host, NewSessionRequest, creation_fingerprint};
use crate::lane::{Created, Lane, Shared, scope_of};
use crate::rollouts::Rollouts;
use mainstay_agents::Appeared;
use mainstay_core::work::ThreadSource;
use mainstay_core::{LaunchSnapshot, SessionId, SessionOptions};
use mainstay_store::ProcessKey;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How often it is tried where the store does not take it.
const TRIES: u32 = 5;
/// Pause between these tries: a store that is busy, or whose disk is full, is seldom well again sooner.
const TRY_EVERY: Duration = Duration::from_secs(2);

/// A conversation that is to become a session.
#[derive(Debug)]
pub(crate) struct Linking {
    /// The process that has it.
    pub(crate) process: ProcessKey,
    /// What a session of that process is pinned to.
    pub(crate) like: LaunchSnapshot,
    /// The session in whose terminal it was begun.
    pub(crate) beside: Option<SessionId>,
    /// What was told of it.
    pub(crate) appeared: Appeared,
}

impl Linking {
    /// Makes the session. Where that fails, it is logged.
    pub(crate) async fn run(self, shared: Arc<Shared>) {
        let Self { process, like, beside, appeared } = self;
        let mut tries = 1;
        loop {
            let linked = link(&shared, process, like.clone(), beside.clone(), appeared.clone()).await;
            let error = match linked {
                Ok(()) => return,
                Err(error) => error,
            };
            let may_pass = matches!(error, HostError::Storage(_) | HostError::Read(_));
            if !may_pass || tries == TRIES {
                let thread = &appeared.thread;
                tracing::warn!(%thread, %error, "a conversation of another client becomes no session");
                return;
            }
            tries += 1;
            tokio::time::sleep(TRY_EVERY).await;
        }
    }
}

/// Makes the session. `like` is what a session of the same process is pinned to; of it agent and account home are taken,
/// because they are the process's. Where a session has the conversation already, nothing is done.
///
/// # Errors
/// [`HostError`]; nothing was made.
async fn link(
    shared: &Arc<Shared>,
    process: ProcessKey,
    like: LaunchSnapshot,
    beside: Option<SessionId>,
    appeared: Appeared,
) -> Result<(), HostError> {
    let thread = appeared.thread;
    let request = NewSessionRequest {
        id: None,
        agent: like.agent,
        cwd: appeared.cwd.unwrap_or(like.cwd),
        name: None,
        options: SessionOptions::default(),
        limits: shared.config.limits.clone(),
        additional_directories: Vec::new(),
        mcp_servers: Vec::new(),
        instructions: None,
        account_home: like.account_home,
        source: Some(ThreadSource::Adopt { thread: thread.clone() }),
        prompt: None,
    };
    let reading = {
        let (shared, request) = (shared.clone(), request.clone());
        move || -> Result<_, HostError> {
            let mut launch = catalog::pin(&shared.config, &request)?;
            launch.beside = beside;
            if shared.store.thread_owner(&scope_of(&launch), thread.as_str())?.is_some() {
                return Ok(None);
            }
            let agent = catalog::configured(&shared.config, &launch.agent)?;
            let env = shared.config.agent_environment(agent);
            let rollouts = Rollouts::of(agent.kind, launch.account_home.as_deref(), &env);
            Ok(Some((launch, rollouts.map(|rollouts| rollouts.past(&thread)))))
        }
    };
    let read = shared.blocking.run(reading).await.map_err(|_| HostError::ShuttingDown)??;
    let Some((launch, past)) = read else { return Ok(()) };
    let id = SessionId(Host::fresh_id("ses"));
    let fingerprint = creation_fingerprint(&request);
    let (answer, answered) = oneshot::channel();
    let created =
        Created::new(shared, id, launch, request, fingerprint, past, None, answer)?.starting_in(process);
    let key = created.key();
    let lane = shared.clone();
    let _lane = shared.registry.lane(key, |seat| {
        tokio::spawn(Lane::run_new(lane, created, seat));
    });
    answered.await.unwrap_or(Err(HostError::ShuttingDown)).map(|_| ())
}
