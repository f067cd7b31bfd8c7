//! What a lane gathers, submits as one transaction, and lets go when it is durable.

use super::lifecycle::chain;
use super::member::UnrecordedStop;
use super::{Answer, Lane, RELINK_PAUSE, Refused, STORE_PAUSE, story};
use crate::error::HostError;
use crate::fault::FaultPoint;
use crate::host::{Answered, Operation};
use crate::hub::Hub;
use crate::journal::{self, Line};
use crate::keeping::Planted;
use crate::linked::Linking;
use crate::requests;
use mainstay_agents::adapter::MAX_STATE_BYTES;
use mainstay_core::content::{Failure, FailureCode};
use mainstay_core::event::Event;
use mainstay_core::process::CloseOrder;
use mainstay_core::session::{Input, SNAPSHOT_VERSION, Session, Status};
use mainstay_core::{Command, Cursor, Fence, Reply};
use mainstay_keeper::wire::ToKeeper;
use mainstay_keeper::{KeeperFolder, ReservedFolder};
use mainstay_store::{
    CommitFuture, Committed, Conflict, FeedEntry, FenceCheck, LaneWrite, NewInput, NewOperation, ProcessKey,
    SessionKey, SessionUpdate, Urgency, WriteError, WriteOp,
};
use serde_json::json;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::time::Instant;

/// A snapshot is written when a turn ended and at least this many rows came since the last one: loading then folds
/// at most about this many rows.
const SNAPSHOT_ROWS: usize = 256;
/// And in any case after this many rows, so that a turn that never ends does not make loading slow.
const SNAPSHOT_ROWS_MOST: usize = 4_096;

/// How often the store may decide against recording a stop before that is given up: what else made its batch impossible is
/// set aside by then. A store that only fails is tried for ever.
const STOP_REFUSALS: u32 = 8;

/// A command's answer that waits for its commit.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) session: SessionKey,
    pub(super) answer: Answer,
    pub(super) reply: Reply,
    pub(super) cursor: Cursor,
    pub(super) response: Option<(u16, Vec<u8>)>,
    /// The stop that it is: if the store refuses, its effect leaves all the same and the answer says so.
    pub(super) stop: Option<Command>,
}

/// What is done when the batch is durable.
#[derive(Debug)]
pub(super) enum Then {
    /// Start the reserved keeper.
    Launch(Box<ReservedFolder>),
    /// Delete the folder of a process that is settled.
    Remove(KeeperFolder),
    /// The process is settled: nobody owns it any more.
    Disown(ProcessKey),
    /// End that process.
    Close(Option<ProcessKey>, CloseOrder),
    /// Ask that process's keeper for a new connection.
    Connect(ProcessKey),
    /// Open the line to that process's keeper.
    Relink(ProcessKey),
    /// Ask for a connection in place of the one that there is.
    Reconnect(ProcessKey),
    /// Note the thread in the keeper's folder, for readers without a database.
    NoteThread(ProcessKey, String),
    /// Make a session of a conversation that another client of the process began.
    Link(Box<Linking>),
}

/// Decided, not yet submitted.
#[derive(Debug, Default)]
pub(super) struct Batch {
    /// Operations beside the journal's.
    pub(super) ops: Vec<WriteOp>,
    pub(super) waiting: Vec<Waiting>,
    pub(super) then: Vec<Then>,
    pub(super) frames: Vec<NewInput>,
    /// Something beside streamed text is in it.
    pub(super) prompt: bool,
    pub(super) stop: bool,
    pub(super) answers_request: bool,
    pub(super) touched: bool,
    /// Records of the spool are in it.
    pub(super) has_records: bool,
    /// Which process's records they are, and where the read began: the process may be settled within this batch.
    pub(super) read_from: Option<(ProcessKey, u64)>,
    /// Stops that left unrecorded before and are recorded with it.
    pub(super) unrecorded_stops: Vec<(SessionKey, UnrecordedStop)>,
    /// When the keeper recorded the oldest of them, Unix ms.
    pub(super) read_since: Option<i64>,
}

impl Batch {
    pub(super) fn is_empty(&self) -> bool {
        !self.touched
            && self.ops.is_empty()
            && self.waiting.is_empty()
            && self.then.is_empty()
            && self.frames.is_empty()
    }
}

/// Submitted, not yet durable.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) outcome: CommitFuture,
    waiting: Vec<Waiting>,
    then: Vec<Then>,
    frames: Vec<NewInput>,
    /// What the readers of each session see then.
    shows: Vec<Shows>,
    position: Option<(ProcessKey, u64)>,
    read_from: Option<(ProcessKey, u64)>,
    read_since: Option<i64>,
    submitted_at: Instant,
    answers_request: bool,
    records_start: bool,
    unrecorded_stops: Vec<(SessionKey, UnrecordedStop)>,
}

/// Lines for the readers of one session, and where its journal ends behind them.
#[derive(Debug)]
struct Shows {
    session: SessionKey,
    hub: Arc<Hub>,
    lines: Vec<Line>,
    head: Cursor,
    /// For the log, with the session's id.
    told: Vec<story::Told>,
    id: String,
}

impl InFlight {
    /// Whether something of the session is in it.
    pub(super) fn is_about(&self, session: SessionKey) -> bool {
        self.shows.iter().any(|shows| shows.session == session)
    }
}

impl Lane {
    pub(super) const fn can_submit(&self) -> bool {
        self.in_flight.is_none() && self.retry_at.is_none()
    }

    /// Whether anything is decided and not submitted.
    pub(super) fn has_gathered(&self) -> bool {
        !self.pending.is_empty() || self.members.iter().any(|member| !member.out.events.is_empty())
    }

    /// Submits what was gathered, if nothing is in flight.
    pub(super) fn submit(&mut self) {
        if !self.can_submit() {
            return;
        }
        self.gather_adapter_state();
        if !self.has_gathered() {
            for member in &mut self.members {
                member.touched = false;
            }
            return;
        }
        let mut batch = std::mem::take(&mut self.pending);
        let now = self.shared.now();
        let mut ops = std::mem::take(&mut batch.ops);
        let mut only_text = !batch.prompt;
        let mut status_changed = false;
        let mut records_start = false;
        let (mut shows, mut fences) = (Vec::new(), Vec::new());
        let process = self.process.as_ref().map(|process| process.key);
        for member in &mut self.members {
            let bound = process.is_some() && member.claims == process;
            let idle = !member.touched && !bound && member.out.events.is_empty();
            if idle || member.broken.is_some() {
                continue;
            }
            let events = std::mem::take(&mut member.out.events);
            let journaled =
                journal::rows(member.key, &member.machine, member.submitted, &events, &mut member.open);
            member.since_snapshot += journaled.lines.len();
            ops.extend(journaled.ops);
            for stamped in &events {
                if let Event::ThreadLinked { thread, .. } = &stamped.event {
                    let (scope, thread) = (member.scope.clone(), thread.0.clone());
                    batch.then.extend(member.claims.map(|process| Then::NoteThread(process, thread.clone())));
                    if !self.shared.has_planted(Planted::ClaimForgotten) {
                        ops.push(WriteOp::ClaimThread { scope, thread, session: member.key });
                    }
                }
            }
            ops.extend(requests::closed_in(member.key, &events));
            only_text &= journaled.only_text;
            status_changed |= push_session_update(member, &events, now, &mut ops);
            ops.extend(snapshot_due(member, &events));
            records_start |=
                events.iter().any(|stamped| matches!(stamped.event, Event::ProcessStarted { .. }));
            if member.stored {
                fences.push(FenceCheck { session: member.key, fence: member.fence });
            }
            member.stored = true;
            member.touched = false;
            member.fence = member.machine.fence.0;
            member.submitted = (member.machine.epoch, member.machine.head);
            shows.push(Shows {
                session: member.key,
                hub: member.hub.clone(),
                lines: journaled.lines,
                head: member.head(),
                told: events.iter().filter_map(story::told).collect(),
                id: member.machine.id.0.clone(),
            });
        }
        let position = self.push_process_update(&mut batch, only_text, &mut ops);
        let urgency = match (batch.stop, only_text && !status_changed) {
            (true, _) => Urgency::Stop,
            (false, true) => Urgency::Stream,
            (false, false) => Urgency::Command,
        };
        if batch.has_records {
            self.shared.config.fault.pass(FaultPoint::ReadNotCommitted);
        }
        self.carry_out_planted(&mut batch, &mut shows);
        self.in_flight = Some(InFlight {
            outcome: self.shared.store.commit(LaneWrite { urgency, fences, ops }),
            waiting: batch.waiting,
            then: batch.then,
            frames: batch.frames,
            shows,
            position,
            read_from: batch.read_from,
            read_since: batch.read_since,
            submitted_at: Instant::now(),
            answers_request: batch.answers_request,
            records_start,
            unrecorded_stops: batch.unrecorded_stops,
        });
    }

    /// What the batch changes in the process's record.
    fn push_process_update(
        &mut self,
        batch: &mut Batch,
        only_text: bool,
        ops: &mut Vec<WriteOp>,
    ) -> Option<(ProcessKey, u64)> {
        let process = self.process.as_mut()?;
        let mut position = None;
        let mut update = mainstay_store::ProcessUpdate::new(process.key);
        if batch.has_records {
            let forgotten = self.shared.has_planted(Planted::PositionForgotten);
            update.position = (!forgotten).then_some(process.position);
            update.connection = Some(process.connection);
            position = Some((process.key, process.position));
        }
        if !batch.frames.is_empty() {
            update.last_input = Some(process.last_input);
        }
        if update.position.is_some() || update.last_input.is_some() {
            ops.push(WriteOp::UpdateProcess(update));
        }
        if process.recorded > process.trimmed && !only_text {
            process.trimmed = process.recorded;
            ops.push(WriteOp::TrimInputs { process: process.key, up_to: process.recorded });
        }
        position
    }

    fn carry_out_planted(&mut self, batch: &mut Batch, shows: &mut [Shows]) {
        match self.shared.planted {
            Some(Planted::EventsBeforeCommit) => {
                for shows in shows {
                    shows.hub.publish(shows.head, std::mem::take(&mut shows.lines));
                }
            }
            Some(Planted::EffectsBeforeCommit) => {
                if let Some(process) = &mut self.process {
                    process.unrecorded.extend(batch.frames.drain(..));
                }
            }
            Some(Planted::AnswersBeforeCommit) => {
                for waiting in batch.waiting.drain(..) {
                    drop(waiting.answer.send(Ok(answered(waiting.reply, waiting.cursor, waiting.response))));
                }
            }
            _ => {}
        }
    }

    fn gather_adapter_state(&mut self) {
        let Some(process) = &mut self.process else { return };
        let version = process.adapter.state_version();
        let mut over = Vec::new();
        for change in process.adapter.changes() {
            let op = match change.body {
                Some(body) if body.len() > MAX_STATE_BYTES => {
                    tracing::error!(
                        scope = change.scope,
                        bytes = body.len(),
                        "an adapter's state is over its bound; the process is ended"
                    );
                    over.push(change.scope);
                    continue;
                }
                Some(body) => {
                    WriteOp::PutAdapterState { process: process.key, scope: change.scope, version, body }
                }
                None => WriteOp::DropAdapterState { process: process.key, scope: Some(change.scope) },
            };
            self.pending.ops.push(op);
        }
        if over.is_empty() {
            return;
        }
        let message =
            format!("the adapter's state is over its bound of {MAX_STATE_BYTES} bytes; the agent is ended");
        for at in self.bound_places() {
            // A thread's state is its session's matter, the connection's is everybody's.
            let thread = format!("thread:{}", self.members[at].machine.id);
            if over.iter().any(|scope| *scope == thread || !scope.starts_with("thread:")) {
                self.decide_own(at, Input::Hold(Failure::new(FailureCode::Other, message.clone())));
            }
        }
    }

    /// The batch in flight is durable, or it is not.
    pub(super) async fn on_outcome(&mut self, outcome: Result<Committed, WriteError>) {
        let Some(done) = self.in_flight.take() else { return };
        match outcome {
            Ok(committed) => self.let_go(done, committed),
            Err(error) => self.undo(done, error).await,
        }
    }

    fn let_go(&mut self, done: InFlight, committed: Committed) {
        self.count_committed(&done);
        if done.read_from.is_some() {
            self.refused = None;
        }
        for shows in done.shows {
            for told in &shows.told {
                told.log(&shows.id);
            }
            if !shows.lines.is_empty() || shows.hub.head() != shows.head {
                shows.hub.publish(shows.head, shows.lines);
            }
        }
        self.shared.hubs.feed_moved(committed.feed_head);
        for waiting in done.waiting {
            // Whoever asked may be gone; what was decided stands all the same.
            drop(waiting.answer.send(Ok(answered(waiting.reply, waiting.cursor, waiting.response))));
        }
        if done.records_start {
            self.shared.config.fault.pass(FaultPoint::RecordedNoFrame);
        }
        if !done.frames.is_empty() {
            self.shared.config.fault.pass(FaultPoint::CommittedNotDelivered);
            if done.answers_request {
                self.shared.config.fault.pass(FaultPoint::AnsweredNotDelivered);
            }
        }
        if let Some(process) = &mut self.process {
            let key = process.key;
            process.unrecorded.extend(done.frames.into_iter().filter(|frame| frame.process == key));
            if let Some((_, position)) = done.position.filter(|(of, _)| *of == key) {
                process.committed = position;
                if let Some(link) = &process.link {
                    // A full queue means that a later, larger position follows.
                    let _later = link.send(ToKeeper::Committed { position });
                }
            }
        }
        for then in done.then {
            self.carry_out(then);
        }
    }

    fn count_committed(&self, done: &InFlight) {
        let metrics = &self.shared.metrics;
        metrics.batches_committed.one();
        metrics.commit.note(done.submitted_at.elapsed());
        if let Some(since) = done.read_since {
            // A clock that was set back meanwhile makes it nothing.
            let took = u64::try_from(self.shared.now().saturating_sub(since)).unwrap_or(0);
            metrics.agent_to_commit.note(std::time::Duration::from_millis(took));
        }
        if let (Some((_, to)), Some((_, from))) = (done.position, done.read_from) {
            metrics.output_bytes.add(to.saturating_sub(from));
        }
        metrics.inputs.add(u64::try_from(done.frames.len()).unwrap_or(u64::MAX));
        let lines = done.shows.iter().flat_map(|shows| &shows.lines);
        metrics.note_events(lines.map(|line| &*line.kind));
    }

    fn carry_out(&mut self, then: Then) {
        match then {
            Then::Launch(reserved) => {
                self.shared.config.fault.pass(FaultPoint::ReservedNotSpawned);
                self.launch(*reserved);
            }
            Then::Remove(folder) => self.shared.remove_folder(folder),
            Then::Link(linking) => drop(tokio::spawn(linking.run(self.shared.clone()))),
            Then::Close(of, order) => {
                if self.process.as_ref().map(|process| process.key) == of {
                    self.order_close(order);
                }
            }
            Then::Connect(of) => {
                let process = self.process.as_ref().filter(|process| process.key == of && !process.ending);
                if let Some(link) = process.and_then(|process| process.link.as_ref()) {
                    let _sent = link.send_urgent(ToKeeper::Connect);
                }
            }
            Then::Disown(process) => self.shared.registry.disown(process, &self.joined_by),
            Then::Relink(of) => {
                if self.process.as_ref().is_some_and(|process| process.key == of) {
                    self.relink();
                }
            }
            Then::Reconnect(of) => {
                let process = self.process.as_ref().filter(|process| process.key == of && !process.ending);
                if let Some((link, instead_of)) =
                    process.and_then(|process| Some((process.link.as_ref()?, process.connection)))
                {
                    let _sent = link.send_urgent(ToKeeper::Reconnect { instead_of });
                }
            }
            Then::NoteThread(of, thread) => {
                if let Some(process) = self.process.as_ref().filter(|process| process.key == of)
                    && let Err(error) = self.shared.keeping.note_thread(&process.folder, &thread)
                {
                    tracing::warn!(%error, "a thread could not be noted in its keeper's folder");
                }
            }
        }
    }

    /// The store did not take the batch: nothing of it happened, nor of what was decided on top of it. Stops leave all
    /// the same, unnumbered.
    async fn undo(&mut self, done: InFlight, error: WriteError) {
        let sessions: Vec<&str> = self.members.iter().map(|member| member.machine.id.as_str()).collect();
        tracing::warn!(?sessions, %error, "the store did not take a batch; the lane loads again");
        let pending = std::mem::take(&mut self.pending);
        let known = !error.is_refusal();
        let metrics = &self.shared.metrics;
        if known {
            metrics.batches_failed.one();
        } else {
            metrics.batches_refused.one();
        }
        // Also where the store decided against another session's part of the batch. Not where a newer owner has taken over.
        let stops_leave =
            !matches!(error, WriteError::Fenced { .. }) && !self.shared.has_planted(Planted::StopNeedsStore);
        let only_records = done.waiting.is_empty();
        let closes = done
            .waiting
            .iter()
            .chain(&pending.waiting)
            .any(|waiting| matches!(waiting.stop, Some(Command::Stop { .. })));
        if stops_leave {
            self.send_unrecorded_stops(&done.frames, &pending.frames);
        }
        for then in done.then.into_iter().chain(pending.then) {
            match then {
                // Refused: never committed, never started, it goes without a trace. Else the reload tells.
                Then::Launch(reserved) if known => self.doubtful_launch = Some(reserved),
                Then::Launch(reserved) => {
                    let folder = reserved.folder().clone();
                    drop(reserved);
                    self.shared.remove_folder(folder);
                }
                Then::Close(of, order) => {
                    if stops_leave && closes && self.process.as_ref().map(|process| process.key) == of {
                        self.order_close(order);
                    }
                }
                Then::Remove(_)
                | Then::Disown(_)
                | Then::Connect(_)
                | Then::Reconnect(_)
                | Then::Relink(_)
                | Then::NoteThread(..)
                // What said so is read again.
                | Then::Link(_) => {}
            }
        }
        // Not durable this time either.
        let again = done.unrecorded_stops.into_iter().chain(pending.unrecorded_stops);
        let refused = u32::from(error.is_refusal());
        self.keep_unrecorded(
            again.map(|(of, stop)| (of, UnrecordedStop { refusals: stop.refusals + refused, ..stop })),
        );
        if let WriteError::Fenced { session, expected, .. } = &error
            && let Some(at) = self.place_of(*session)
        {
            self.members[at].stale_write = Some(Fence(*expected));
        }
        if let Some(order) = self.shutdown.flatten().filter(|_| known) {
            // A host that ends its agents does so also with a full disk.
            self.order_close(order);
        }
        for waiting in done.waiting.into_iter().chain(pending.waiting) {
            let at = self.place_of(waiting.session);
            let answer = if let (Some(stop), Some(at)) = (waiting.stop.filter(|_| stops_leave), at) {
                self.members[at].unrecorded_stops.push(UnrecordedStop { stop, refusals: 0 });
                Ok(Answered {
                    reply: waiting.reply,
                    cursor: self.members[at].hub.head(),
                    response: None,
                    replayed: false,
                    recorded: false,
                })
            } else {
                Err(HostError::Storage(error.clone()))
            };
            drop(waiting.answer.send(answer));
        }
        if self.shared.has_planted(Planted::MemoryKept) {
            return;
        }
        if error.is_refusal()
            && let Some((_, from)) = done.read_from
        {
            let before = self.refused.take().filter(|refused| refused.position == from);
            self.refused = Some(Refused {
                position: from,
                // A command beside them may have been the reason.
                times: before.map_or(0, |refused| refused.times) + u32::from(only_records),
                why: chain(&error),
                culprit: self.culprit(&error),
            });
        }
        self.retry_at = Some(Instant::now() + if error.is_refusal() { RELINK_PAUSE } else { STORE_PAUSE });
    }

    /// The session because of which the store refused, where that can be said.
    fn culprit(&self, error: &WriteError) -> Option<SessionKey> {
        if let WriteError::Conflict(Conflict::Thread { thread, owner }) = error {
            let claims = |member: &&super::Member| {
                member.key != *owner && member.machine.thread().is_some_and(|own| own.as_str() == thread)
            };
            return self.members.iter().find(claims).map(|member| member.key);
        }
        error.session()
    }

    /// What cannot be told now is told when the stop is recorded.
    fn send_unrecorded_stops(&self, batches: &[NewInput], more: &[NewInput]) {
        let Some(link) = self.process.as_ref().and_then(|process| process.link.as_ref()) else { return };
        for stop in batches.iter().chain(more).filter(|frame| frame.urgent) {
            let urgent =
                ToKeeper::Urgent { id: stop.n, connection: stop.connection, payload: stop.payload.clone() };
            let _told = link.send_urgent(urgent);
        }
    }

    /// Stops wait until a batch that holds them is durable. The first one asked for stays first.
    pub(super) fn keep_unrecorded(&mut self, stops: impl Iterator<Item = (SessionKey, UnrecordedStop)>) {
        for (session, stop) in stops {
            if stop.refusals >= STOP_REFUSALS {
                tracing::error!(%session, stop = ?stop.stop, "the store refuses to record a stop; what it did stands");
            } else if let Some(at) = self.place_of(session) {
                self.members[at].unrecorded_stops.push(stop);
            }
        }
    }

    /// Gathers a command's answer.
    pub(super) fn wait_for_commit(
        &mut self,
        at: usize,
        answer: Answer,
        reply: Reply,
        operation: Option<Operation>,
        stop: Option<Command>,
    ) {
        let member = &mut self.members[at];
        member.touched = true;
        let (session, cursor) = (member.key, member.head());
        let response = operation.map(|operation| {
            let (status, body) = (operation.respond)(&reply, &member.machine, cursor);
            self.pending.ops.push(WriteOp::PutOperation(NewOperation {
                key: operation.key,
                fingerprint: operation.fingerprint.0.into_bytes(),
                at: self.shared.now(),
                status,
                response: body.clone(),
            }));
            (status, body)
        });
        let stop_is_asked = stop.is_some();
        self.pending.waiting.push(Waiting { session, answer, reply, cursor, response, stop });
        self.pending.prompt = true;
        self.pending.stop |= stop_is_asked;
        self.pending.touched = true;
    }
}

/// The answer to a command that was carried out.
fn answered(reply: Reply, cursor: Cursor, response: Option<(u16, Vec<u8>)>) -> Answered {
    Answered { reply, cursor, response, replayed: false, recorded: true }
}

fn push_session_update(
    member: &mut super::Member,
    events: &[mainstay_core::Stamped],
    now: i64,
    ops: &mut Vec<WriteOp>,
) -> bool {
    let status = member.machine.status();
    let status_changed = member.shown.as_ref() != Some(&status);
    let renamed = events.iter().any(|stamped| {
        matches!(
            stamped.event,
            Event::SessionCreated { .. } | Event::SessionUpdated { .. } | Event::SessionDeleted {}
        )
    });
    let fence_changed = member.fence != member.machine.fence.0;
    if status_changed || renamed || fence_changed {
        let mut update = SessionUpdate::new(member.key, now);
        update.status = Some(status.status.as_str().to_owned());
        update.reason = Some(status.reason.clone());
        update.name = Some(member.machine.name.clone());
        update.archived = Some(member.machine.archived);
        update.deleted = Some(member.machine.deleted);
        update.fence = Some(member.machine.fence.0);
        update.needs = Some(matches!(status.status, Status::RequiresAction | Status::Recovering));
        ops.push(WriteOp::UpdateSession(update));
    }
    if status_changed {
        let body = json!({ "session": member.machine.id, "status": status.status, "reason": status.reason });
        ops.push(WriteOp::AppendFeed(FeedEntry {
            at: now,
            session: member.key,
            epoch: member.machine.epoch,
            seq: member.machine.head,
            kind: Cow::Borrowed("session.status"),
            body: body.to_string().into_bytes(),
        }));
        member.shown = Some(status);
    }
    status_changed
}

fn snapshot_due(member: &mut super::Member, events: &[mainstay_core::Stamped]) -> Option<WriteOp> {
    let turn_ended = events.iter().any(|stamped| matches!(stamped.event, Event::TurnEnded { .. }));
    let due =
        member.since_snapshot >= SNAPSHOT_ROWS_MOST || (turn_ended && member.since_snapshot >= SNAPSHOT_ROWS);
    if !due {
        return None;
    }
    member.since_snapshot = 0;
    snapshot(member.key, &member.machine)
}

fn snapshot(session: mainstay_store::SessionKey, machine: &Session) -> Option<WriteOp> {
    match serde_json::to_vec(machine) {
        Ok(body) => Some(WriteOp::PutSnapshot {
            session,
            epoch: machine.epoch,
            seq: machine.head,
            version: SNAPSHOT_VERSION,
            body,
        }),
        Err(error) => {
            // Loading then folds more of the journal; nothing is lost.
            tracing::error!(%error, "a session could not be written as a snapshot");
            None
        }
    }
}
