//! Terminals of an agent's own user interface that are attached to sessions. While one is, the agent's process is not put
//! to rest: somebody sits before it. Kept in memory alone: a terminal whose host went attaches itself again.

use crate::host::{Host, send_to_lane, unsupported};
use crate::lane::{LaneMessage, Shared};
use crate::{HostError, catalog};
use mainstay_agents::launch::{account_home_variable, terminal_arguments};
use mainstay_core::session::Phase;
use mainstay_core::{Refusal, RefusalCode, Session, ThreadId};
use mainstay_store::SessionKey;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// Terminals of one session at once. One more is refused: each is a connection of the agent's.
const MAX_TERMINALS: usize = 16;

/// How many terminals each session has.
#[derive(Debug, Default)]
pub(crate) struct Terminals {
    attached: Mutex<HashMap<SessionKey, usize>>,
}

impl Terminals {
    pub(crate) fn has(&self, session: SessionKey) -> bool {
        self.count(session) > 0
    }

    pub(crate) fn count(&self, session: SessionKey) -> usize {
        let attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        attached.get(&session).copied().unwrap_or_default()
    }

    fn attach(&self, session: SessionKey) -> bool {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        let count = attached.entry(session).or_default();
        let room = *count < MAX_TERMINALS;
        if room {
            *count += 1;
        }
        room
    }

    fn detach(&self, session: SessionKey) {
        let mut attached = self.attached.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = attached.get_mut(&session) {
            *count -= 1;
            if *count == 0 {
                attached.remove(&session);
            }
        }
    }
}

/// How the agent's own terminal is started beside a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalPlan {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// The whole environment, but for what describes the terminal itself.
    pub env: Vec<(String, String)>,
    /// The folder to start it in.
    pub cwd: String,
    /// The conversation that it shows.
    pub thread: ThreadId,
    /// The process that it talks to.
    pub process: String,
}

/// A terminal is attached for as long as this lives.
#[derive(Debug)]
pub struct Attached {
    shared: Arc<Shared>,
    session: SessionKey,
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.shared.terminals.detach(self.session);
        wake(&self.shared, self.session);
    }
}

/// Whether nothing ever happened in a conversation that was begun here.
fn has_no_message(session: &Session) -> bool {
    let begun_here = session.launch.source.is_none();
    let quiet =
        session.turns.is_empty() && session.finished_turns.is_empty() && session.past_turns.is_empty();
    begun_here && !session.thread_used && quiet
}

/// Has the lane look anew whether somebody needs the process.
fn wake(shared: &Arc<Shared>, session: SessionKey) {
    let shared = shared.clone();
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(async move {
            let (done, _nobody_waits) = oneshot::channel();
            send_to_lane(&shared, session, LaneMessage::Wake { done }).await;
        });
    }
}

impl Host {
    /// How the agent's own terminal is started beside a session whose agent runs. Starts nothing.
    ///
    /// # Errors
    /// A refusal: the agent has no such terminal (`unsupported`), its conversation has no message yet (`no_turn`), or its
    /// process does not run with the conversation open (`submission_state`); [`HostError`].
    pub async fn terminal(self: &Arc<Self>, session: &str) -> Result<TerminalPlan, HostError> {
        let (_, state) = self.state(session).await?;
        self.blocking_read(move |host| host.terminal_plan(&state)).await
    }

    fn terminal_plan(&self, session: &Session) -> Result<TerminalPlan, HostError> {
        let config = self.config();
        let agent = catalog::configured(config, &session.launch.agent)?;
        if !self.capabilities(&session.launch.agent)?.terminal {
            return Err(unsupported("terminal"));
        }
        if has_no_message(session) {
            // The agent has not saved it, so its terminal would find none (measured for Codex). Before anything is started.
            let detail = "the conversation has no message yet, and the agent's terminal opens none that is empty; send a \
                          message first";
            return Err(HostError::Refused(Refusal::new(RefusalCode::NoTurn, detail.to_owned())));
        }
        let refused =
            |detail: &str| HostError::Refused(Refusal::new(RefusalCode::SubmissionState, detail.to_owned()));
        let (Phase::Held, Some(process), Some(thread)) =
            (session.phase, &session.process, session.thread().cloned())
        else {
            return Err(refused(
                "the agent does not run, or its conversation is not open yet; start it first",
            ));
        };
        if session.stopping.is_some() {
            return Err(refused("the agent's process is being closed; start it again first"));
        }
        let manifest = self.keeping().folder(process.as_str()).manifest().ok().flatten();
        let socket = manifest.and_then(|manifest| manifest.agent_socket);
        let socket = socket.ok_or_else(|| refused("the agent's process cannot be reached by a terminal"))?;
        let command = catalog::command(config, agent)
            .ok_or_else(|| refused("the agent's program is not found any more"))?;
        let argv = terminal_arguments(agent.kind, command, thread.as_str(), &socket)
            .ok_or_else(|| unsupported("terminal"))?;
        // Nothing of what is configured for the agent: its process has the keys, the terminal needs none.
        let mut env = config.agent_environment(agent);
        let named = |name: &String| crate::config::PASSED_VARIABLES.contains(&name.as_str());
        let home = account_home_variable(agent.kind);
        env.retain(|(name, _)| named(name) || Some(name.as_str()) == home);
        if let (Some(home), Some(variable)) = (&session.launch.account_home, home) {
            env.retain(|(name, _)| name != variable);
            env.push((variable.to_owned(), home.clone()));
        }
        let (cwd, process) = (session.launch.cwd.clone(), process.0.clone());
        Ok(TerminalPlan { argv, env, cwd, thread, process })
    }

    /// Notes that a terminal is attached: the agent's process is not put to rest until it goes.
    ///
    /// # Errors
    /// As [`Self::terminal`]; a refusal (`queue_full`) where as many are attached as may be.
    pub async fn attach_terminal(
        self: &Arc<Self>,
        session: &str,
    ) -> Result<(TerminalPlan, Attached), HostError> {
        let row = self.session(session).await?;
        let shared = self.shared();
        if !shared.terminals.attach(row.key) {
            let detail = format!("{MAX_TERMINALS} terminals are attached to session {session} already");
            return Err(HostError::Refused(Refusal::new(RefusalCode::QueueFull, detail)));
        }
        let attached = Attached { shared: shared.clone(), session: row.key };
        // Looked at after it is noted: a rest that began before shows as a process that does not run.
        let plan = self.terminal(session).await?;
        wake(&shared, row.key);
        Ok((plan, attached))
    }
}
