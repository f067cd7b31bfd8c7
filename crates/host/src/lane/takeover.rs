//! A session is bound to a living process that its record did not know, and a record that is older than what a keeper
//! knows is raised above it.

use super::batch::Then;
use super::lifecycle::Start;
use super::{Answer, Lane, LaneMessage, Parting};
use crate::error::HostError;
use crate::host::Operation;
use mainstay_agents::Shown;
use mainstay_core::session::{Input, Phase, Takeover};
use mainstay_core::{Fence, ThreadId};
use mainstay_keeper::KeeperFolder;
use mainstay_store::{ProcessKey, ProcessUpdate, WriteOp};
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
    /// The process's record, where another session was bound to it just before.
    pub(crate) beside: Option<ProcessKey>,
}

impl Lane {
    /// Where a session is to be bound to a living process; None: it leaves for the lane that has it.
    pub(super) fn place_adoption(&mut self, at: usize, message: LaneMessage) -> Option<LaneMessage> {
        let LaneMessage::TakeOver { adoption, .. } = &message else { return Some(message) };
        let Some(process) = adoption.beside else { return Some(message) };
        if self.process.as_ref().is_some_and(|own| own.key == process) {
            return Some(message);
        }
        match self.shared.registry.owner(process) {
            Some(lane) if self.members[at].machine.phase == Phase::Free => {
                self.members[at].parting = Some(Parting::To(lane, Box::new(message)));
                None
            }
            _ => Some(message),
        }
    }

    /// Binds the session in one transaction. The line to the keeper is opened when that is durable, under the new
    /// fence; the agent's connection is then replaced by one of ours.
    pub(super) fn take_over(
        &mut self,
        at: usize,
        adoption: Adoption,
        operation: Option<Operation>,
        answer: Answer,
    ) {
        let Adoption { takeover, folder, position, shown, .. } = adoption;
        let (token, thread): (_, ThreadId) = (takeover.process.clone(), takeover.thread.clone());
        let joins = self.process.as_ref().is_some_and(|process| process.token == token);
        if !joins && self.bound().any(|other| other.key != self.members[at].key) {
            let why = "its session shares another process just now; stop it first".to_owned();
            // Whoever asked may be gone.
            drop(answer.send(Err(HostError::CannotAdopt { token: token.0, why })));
            return;
        }
        let (id, context) = (self.members[at].machine.id.clone(), self.members[at].context());
        let options = self.members[at].machine.options.clone();
        let mut fresh = (!joins).then(|| mainstay_agents::adapter(self.kind));
        let adapter = match (&mut fresh, &mut self.process) {
            (Some(fresh), _) => fresh,
            (None, Some(process)) => &mut process.adapter,
            (None, None) => return,
        };
        adapter.bind(&id, context);
        if let Err(cannot) = adapter.take_over(&id, &thread, &options, shown) {
            adapter.unbind(&id);
            let why = cannot.to_string();
            drop(answer.send(Err(HostError::CannotAdopt { token: token.0, why })));
            return;
        }
        let former = if joins { None } else { self.process.take() };
        let reply = match self.decide(at, Input::TakeOver(takeover)) {
            Ok(reply) => reply,
            Err(refusal) => {
                match fresh {
                    Some(_) => self.process = former,
                    None => {
                        if let Some(process) = &mut self.process {
                            process.adapter.unbind(&id);
                        }
                    }
                }
                return drop(answer.send(Err(HostError::Refused(refusal))));
            }
        };
        if let Some(former) = former {
            self.end_abandoned(former);
        }
        match fresh {
            None => {
                self.claim(at);
                let then = self.process.as_ref().map(|process| Then::Reconnect(process.key));
                self.pending.then.extend(then);
            }
            Some(adapter) => {
                let fence = self.members[at].machine.fence.0;
                self.new_process(at, token, folder, fence, Start::Adopted { position, adapter });
                if let Some(process) = &mut self.process {
                    process.permit = self.shared.processes.clone().try_acquire_owned().ok();
                    self.pending.then.push(Then::Relink(process.key));
                }
            }
        }
        self.wait_for_commit(at, answer, reply, operation, None);
    }

    /// Raises the fence where the record is older than `known`.
    fn fence_ahead(&mut self, at: usize, known: u64) {
        tracing::warn!(session = %self.members[at].machine.id, known, "a keeper knows a later owner than the record: the database is older than it was");
        self.decide_own(at, Input::FenceAhead { known: Fence(known) });
        self.pending.touched = true;
        self.pending.prompt = true;
    }

    /// As [`Self::fence_ahead`], where the sessions' own keeper said so: the line is opened again under the new fence.
    pub(super) fn own_keeper_is_ahead(&mut self, known: u64) {
        let Some(process) = &mut self.process else { return };
        process.link = None;
        process.greeted = false;
        process.fence = known.saturating_add(1);
        let (key, mut update) = (process.key, ProcessUpdate::new(process.key));
        update.fence = Some(process.fence);
        self.answer_by = None;
        for at in self.bound_places() {
            // Each session counts its own acquisitions, and its record is as old as the process's.
            self.fence_ahead(at, known.max(self.members[at].machine.fence.0));
        }
        self.pending.ops.push(WriteOp::UpdateProcess(update));
        self.pending.then.push(Then::Relink(key));
    }

    /// A starting host found an unclaimed keeper that knows a later owner of the session.
    pub(super) fn found_ahead(&mut self, at: usize, known: u64, done: oneshot::Sender<()>) {
        self.fence_ahead(at, known);
        self.members[at].wake.push((true, done));
    }
}
