//! A session is bound to a living process that its record did not know, and a record that is older than what a keeper
//! knows is raised above it.

use super::batch::Then;
use super::lifecycle::context;
use super::{Answer, Lane};
use crate::error::HostError;
use crate::host::Operation;
use mainstay_agents::Shown;
use mainstay_core::session::{Input, Takeover};
use mainstay_core::{Fence, ThreadId};
use mainstay_keeper::KeeperFolder;
use mainstay_store::WriteOp;
use tokio::sync::oneshot;

/// What the host found out about a keeper that no record claims.
#[derive(Debug)]
pub(crate) struct Adoption {
    pub(crate) takeover: Takeover,
    pub(crate) folder: KeeperFolder,
    /// Where its spool ended: what was said before is read from the agent's own history.
    pub(crate) position: u64,
    /// How much of that the journal has.
    pub(crate) shown: Shown,
}

impl Lane {
    /// Binds the session in one transaction. The line to the keeper is opened when that is durable, under the new
    /// fence; the agent's connection is then replaced by one of ours.
    pub(super) fn take_over(&mut self, adoption: Adoption, operation: Option<Operation>, answer: Answer) {
        let Adoption { takeover, folder, position, shown } = adoption;
        let (token, thread): (_, ThreadId) = (takeover.process.clone(), takeover.thread.clone());
        let mut adapter = mainstay_agents::adapter(self.kind);
        adapter.bind(&self.bound.machine.id, context(&self.bound.machine));
        let options = self.bound.machine.options.clone();
        if let Err(cannot) = adapter.take_over(&self.bound.machine.id, &thread, &options, shown) {
            let why = cannot.to_string();
            // Whoever asked may be gone.
            drop(answer.send(Err(HostError::CannotAdopt { token: token.0, why })));
            return;
        }
        let reply = match self.decide(Input::TakeOver(takeover)) {
            Ok(reply) => reply,
            Err(refusal) => return drop(answer.send(Err(HostError::Refused(refusal)))),
        };
        if let Some(former) = self.process.take() {
            self.end_abandoned(former);
        }
        let mut process = self.new_process(token, folder, self.bound.machine.fence.0);
        for op in &mut self.pending.ops {
            if let WriteOp::CreateProcess(row) = op
                && row.key == process.key
            {
                row.state = "adopted".to_owned();
                row.position = position;
            }
        }
        process.adapter = adapter;
        (process.position, process.committed) = (position, position);
        process.permit = self.shared.processes.clone().try_acquire_owned().ok();
        self.pending.then.push(Then::Relink(process.key));
        self.process = Some(process);
        self.wait_for_commit(answer, reply, operation, None);
    }

    /// Raises the fence where the record is older than `known`.
    pub(super) fn fence_ahead(&mut self, known: u64) {
        tracing::warn!(session = %self.bound.machine.id, known, "a keeper knows a later owner than the record: the database is older than it was");
        self.decide_own(Input::FenceAhead { known: Fence(known) });
        self.pending.touched = true;
        self.pending.prompt = true;
    }

    /// As [`Self::fence_ahead`], where the session's own keeper said so: the line is opened again under the new fence.
    pub(super) fn own_keeper_is_ahead(&mut self, known: u64) {
        let Some(process) = &mut self.process else { return };
        process.link = None;
        process.greeted = false;
        self.answer_by = None;
        let key = process.key;
        self.fence_ahead(known);
        self.pending.then.push(Then::Relink(key));
    }

    /// A starting host found an unclaimed keeper that knows a later owner of the session.
    pub(super) fn found_ahead(&mut self, known: u64, done: oneshot::Sender<()>) {
        self.fence_ahead(known);
        self.wake.push((true, done));
    }
}
