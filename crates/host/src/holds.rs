//! What holds a session's agent from rest though nothing is owed in its journal: terminals that are attached to it, and
//! processes that its agent left running.

use crate::error::HostError;
use crate::host::Host;
use mainstay_core::Session;
use mainstay_core::session::{Owed, OwedKind};
use mainstay_store::SessionRow;
use std::sync::Arc;

impl Host {
    /// What keeps a session's agent from rest: what the session owes, and what holds it beside that.
    ///
    /// # Errors
    /// [`HostError::Read`].
    pub async fn owed(self: &Arc<Self>, row: &SessionRow, session: &Session) -> Result<Vec<Owed>, HostError> {
        let mut owed = session.owed();
        let terminals = self.shared().terminals.count(row.key);
        if terminals > 0 {
            owed.push(Owed { what: OwedKind::Terminal, count: terminals });
        }
        let Some(process) = session.process.clone() else { return Ok(owed) };
        let key = row.process;
        let left = self.blocking_read(move |host| {
            // In a process with others nobody can tell whose they are: they hold the process, and no session in it.
            let rows = host.store().unrested_sessions()?.rows;
            let alone = key.is_some() && rows.iter().filter(|row| row.process == key).count() <= 1;
            let folder = host.keeping().folder(process.as_str());
            Ok(if alone { host.keeping().left_running(&folder) } else { 0 })
        });
        let left = left.await?;
        if left > 0 {
            owed.push(Owed { what: OwedKind::Descendants, count: left });
        }
        Ok(owed)
    }
}
