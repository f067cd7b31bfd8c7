//! What holds a session's agent from rest though nothing is owed in its journal: terminals that are attached to it, and
//! processes that its agent left running.

use crate::error::HostError;
use crate::host::Host;
use mainstay_core::Session;
use mainstay_core::session::{Owed, OwedKind};
use mainstay_store::{SessionKey, SessionRow};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Terminals that are attached, by session.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    terminals: Mutex<HashMap<SessionKey, usize>>,
}

impl Holds {
    fn of_terminals(&self) -> MutexGuard<'_, HashMap<SessionKey, usize>> {
        // Every operation on the map is a single step, so a panic elsewhere cannot have left it half changed.
        self.terminals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many terminals are attached to a session.
    pub(crate) fn terminals(&self, session: SessionKey) -> usize {
        self.of_terminals().get(&session).copied().unwrap_or_default()
    }

    fn attach(self: &Arc<Self>, session: SessionKey) -> AttachedTerminal {
        *self.of_terminals().entry(session).or_default() += 1;
        AttachedTerminal { holds: self.clone(), session }
    }
}

/// A terminal that somebody uses beside this host on the same agent process: as long as it is attached, the agent is not
/// put to rest. It is detached when this is dropped.
#[derive(Debug)]
pub struct AttachedTerminal {
    holds: Arc<Holds>,
    session: SessionKey,
}

impl Drop for AttachedTerminal {
    fn drop(&mut self) {
        let mut terminals = self.holds.of_terminals();
        if let Some(count) = terminals.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                terminals.remove(&self.session);
            }
        }
    }
}

impl Host {
    /// Counts a terminal as attached to a session for as long as the answer is kept. Starts nothing.
    ///
    /// # Errors
    /// [`HostError::SessionUnknown`], [`HostError::Read`].
    pub async fn attach_terminal(&self, session: &str) -> Result<AttachedTerminal, HostError> {
        let row = self.session(session).await?;
        Ok(self.shared().holds.attach(row.key))
    }

    /// What keeps a session's agent from rest: what the session owes, and what holds it beside that.
    ///
    /// # Errors
    /// [`HostError::Read`].
    pub async fn owed(self: &Arc<Self>, row: &SessionRow, session: &Session) -> Result<Vec<Owed>, HostError> {
        let mut owed = session.owed();
        let terminals = self.shared().holds.terminals(row.key);
        if terminals > 0 {
            owed.push(Owed { what: OwedKind::Terminal, count: terminals });
        }
        let Some(process) = session.process.clone() else { return Ok(owed) };
        let key = row.process;
        let left = self.blocking_read(move |host| {
            let left = host.keeping().left_running(&host.keeping().folder(process.as_str()));
            if left == 0 {
                return Ok(0);
            }
            // In a process with others nobody can tell whose they are: they hold the process, and no session in it.
            let rows = host.store().unrested_sessions()?.rows;
            let alone = key.is_some() && rows.iter().filter(|row| row.process == key).count() <= 1;
            Ok(if alone { left } else { 0 })
        });
        let left = left.await?;
        if left > 0 {
            owed.push(Owed { what: OwedKind::Descendants, count: left });
        }
        Ok(owed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_counts_until_it_is_dropped() {
        let holds = Arc::new(Holds::default());
        let first = holds.attach(SessionKey(1));
        let second = holds.attach(SessionKey(1));
        assert_eq!((holds.terminals(SessionKey(1)), holds.terminals(SessionKey(2))), (2, 0));
        drop(first);
        assert_eq!(holds.terminals(SessionKey(1)), 1);
        drop(second);
        assert_eq!(holds.terminals(SessionKey(1)), 0);
        assert!(holds.of_terminals().is_empty(), "a session that nobody is attached to costs nothing");
    }
}
