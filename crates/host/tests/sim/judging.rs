//! After each step and at rest: what must hold.

use crate::alarm;
use crate::oracle::Judge;
use crate::run::{Run, SESSIONS, session_id};
use mainstay_core::content::Answer;
use mainstay_core::session::RequestState;
use mainstay_core::{Cursor, ProcessToken, RequestId};
use mainstay_host::{Delivered, Host, HostError, Subscription};
use mainstay_store::{SessionFilter, Store};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

/// Rounds without any change after which everything is at rest. With the time that passes in each, longer than every
/// pause of a lane.
const QUIET_ROUNDS: usize = 8;
/// Rounds after which a world that is not at rest never will be.
const MOST_ROUNDS: usize = 600;

/// A client that follows a session.
pub(crate) struct Reader {
    subscription: Subscription,
    session: usize,
}

impl Run {
    /// Readers read: what they get is durable, in order, without a hole.
    pub(crate) async fn follow(
        &mut self,
        host: &Arc<Host>,
        readers: &mut Vec<Reader>,
        all: bool,
    ) -> Result<(), String> {
        readers.retain(|reader| !self.is_damaged(reader.session));
        for session in 0..SESSIONS {
            // Nobody can begin to read a session that is deleted.
            let known = self.fold(session).is_some_and(|fold| !fold.deleted) && !self.is_damaged(session);
            if known && !readers.iter().any(|reader| reader.session == session) {
                let seen = self.read[session];
                let seq = match seen {
                    0 => 0,
                    seen => self.judges[session].as_ref().map_or(0, |judge| judge.rows[seen - 1].seq),
                };
                let after = Some(Cursor { epoch: 1, seq });
                let subscription = match host.subscribe(session_id(session).as_str(), after).await {
                    Ok(subscription) => subscription,
                    // Deleted a moment ago.
                    Err(HostError::SessionUnknown(_)) => continue,
                    Err(error) => return Err(format!("no subscription: {error}")),
                };
                readers.push(Reader { subscription, session });
            }
        }
        for reader in readers.iter_mut() {
            if !all && self.chance.hits(2, 3) {
                continue;
            }
            loop {
                let lines = match reader.subscription.pull().await {
                    Ok(Delivered::Events(lines)) => lines,
                    Ok(Delivered::CaughtUp) => break,
                    Ok(Delivered::Reset(reset)) => return Err(format!("a reader was reset: {reset:?}")),
                    Err(error) => return Err(format!("a reader cannot read: {error}")),
                };
                self.judge()?;
                let Some(Some(judge)) = self.judges.get(reader.session) else { continue };
                for line in lines {
                    let at = self.read[reader.session];
                    match judge.rows.get(at) {
                        Some(row) if row.seq == line.seq && row.body == line.json.as_ref() => {
                            self.read[reader.session] += 1;
                        }
                        Some(row) => {
                            return Err(format!("a reader got #{} where #{} is durable", line.seq, row.seq));
                        }
                        // Its journal may be purged as soon as its deletion is durable.
                        None if self.is_deleted(reader.session) => {}
                        None => return Err(format!("a reader got #{}, which is not durable", line.seq)),
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the host cannot read the session's journal just now.
    pub(crate) fn is_damaged(&self, session: usize) -> bool {
        self.damaged == Some(session)
    }

    /// Whether a process lives that serves the session whose journal cannot be read.
    fn damaged_has_process(&self) -> bool {
        let Some(judge) = self.damaged.and_then(|session| self.judges[session].as_ref()) else {
            return false;
        };
        let world = self.world.lock();
        world.keepers.values().any(|keeper| keeper.lives() && world.serves(keeper, judge.key))
    }

    /// Whether the session's deletion is durable.
    fn is_deleted(&self, session: usize) -> bool {
        let world = self.world.lock();
        let row = world.disk.session_by_id(session_id(session).as_str());
        row.is_ok_and(|row| row.is_none_or(|row| row.deleted))
    }

    /// Everything that must always hold.
    pub(crate) fn judge(&mut self) -> Result<(), String> {
        let mut world = self.world.lock();
        let world = &mut *world;
        for said in alarm::said() {
            world.note(|| format!("   host: {said}"));
        }
        if let Some(violation) = world.truth.violations.first() {
            return Err(violation.clone());
        }
        if let Some(alarm) = alarm::raised() {
            return Err(alarm);
        }
        for (index, judge) in self.judges.iter_mut().enumerate() {
            if judge.is_none()
                && let Ok(Some(row)) = world.disk.session_by_id(session_id(index).as_str())
            {
                *judge = Some(Judge::of(row.key));
            }
            if let Some(judge) = judge {
                judge.read(&world.disk.durable, &world.truth, &mut world.trace)?;
            }
        }
        // No two sessions have one conversation.
        let mut heads: BTreeMap<&str, &str> = BTreeMap::new();
        for fold in self.judges.iter().flatten().filter_map(|judge| judge.fold.as_ref()) {
            let Some(thread) = fold.thread() else { continue };
            if let Some(other) = heads.insert(thread.as_str(), fold.id.as_str()) {
                return Err(format!("{thread} is the conversation of {} and of {other}", fold.id));
            }
        }
        for ((token, number), chosen) in &world.truth.chosen {
            let of = (token.clone(), number.clone());
            let more = world.truth.also_asked.get(&of).into_iter().flatten();
            let keys: Vec<(ProcessToken, String)> = std::iter::once(number)
                .chain(more)
                .map(|number| (ProcessToken(token.clone()), number.clone()))
                .collect();
            let answer = |judge: &Judge| keys.iter().find_map(|key| judge.answers.get(key)).cloned();
            let journaled = self.judges.iter().flatten().find_map(answer);
            let agrees = match &journaled {
                Some(Answer::Select { option_id }) => chosen.first() == Some(option_id),
                Some(Answer::Decline { .. }) => chosen
                    .first()
                    .is_some_and(|option| option == "no" || option == "decline" || option == "deny"),
                Some(Answer::Cancel { .. }) => chosen.first().is_some_and(|option| option == "cancel"),
                Some(Answer::Answers { .. } | Answer::Submit { .. }) | None => false,
            };
            if !agrees {
                return Err(format!("request {number} of {token} got {chosen:?}, durable is {journaled:?}"));
            }
        }
        let clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        for (session, submission) in &clients.accepted {
            if !self.judges[*session].as_ref().is_some_and(|judge| judge.knows(submission)) {
                return Err(format!("{submission} was accepted and the journal does not hold it"));
            }
        }
        for (session, request, by) in &clients.won {
            let winner = self.judges[*session].as_ref().and_then(|judge| judge.winners.get(request));
            if winner != Some(by) {
                return Err(format!("{by} was told to have won {request}; the journal says {winner:?}"));
            }
        }
        Ok(())
    }

    /// Faults are over and time passes: everything comes to rest, and nothing is open without a reason.
    pub(crate) async fn rest(&mut self, host: &Arc<Host>, readers: &mut Vec<Reader>) -> Result<(), String> {
        {
            let mut world = self.world.lock();
            world.calm = true;
            world.hide_transcripts(false);
            world.keepers.values_mut().for_each(|keeper| keeper.stopped = false);
            world.note(|| "-- faults are over".to_owned());
        }
        let mut quiet = 0;
        let mut rounds = 0;
        let mut last = (0, 0);
        while quiet < QUIET_ROUNDS {
            rounds += 1;
            if rounds > MOST_ROUNDS {
                self.show_keepers();
                return Err("it does not come to rest".to_owned());
            }
            self.settle(4).await;
            self.judge()?;
            self.show_step();
            for session in 0..SESSIONS {
                let pending: Vec<RequestId> = self
                    .fold(session)
                    .map(|fold| {
                        let waits = fold.requests.iter().filter(|open| open.state == RequestState::Pending);
                        waits.map(|open| open.id.clone()).collect()
                    })
                    .unwrap_or_default();
                for request in pending {
                    let answer = Answer::Select { option_id: self.words().0 };
                    self.answer_as(host, session, request, None, answer, "cleo");
                }
            }
            self.follow(host, readers, true).await?;
            let stands = {
                let world = self.world.lock();
                let events: usize = self.judges.iter().flatten().map(|judge| judge.rows.len()).sum();
                // What was given up by a user may wait for ever.
                let damaged = self.damaged.and_then(|session| Some(self.judges[session].as_ref()?.key));
                let busy = world.keepers.values().any(|keeper| {
                    let works = keeper.is_busy() || (keeper.lives() && keeper.agent.works());
                    works
                        && !world.is_abandoned(&keeper.token)
                        && damaged.is_none_or(|key| !world.serves(keeper, key))
                });
                // Faults that were ordered before still come.
                (events + usize::try_from(world.disk.stats().failed).unwrap_or(0), usize::from(busy))
            };
            if stands == last && stands.1 == 0 {
                quiet += 1;
                // Together longer than any deadline after which a stop goes further.
                self.pass(5_000).await;
            } else {
                quiet = 0;
                self.pass(210).await;
            }
            last = stands;
        }
        let judged = self.judge_rest(host, readers).await;
        if judged.is_err() {
            self.show_keepers();
        }
        judged
    }

    fn show_keepers(&self) {
        let mut world = self.world.lock();
        let world = &mut *world;
        for keeper in world.keepers.values().filter(|keeper| keeper.lives()) {
            let text = format!("{keeper:?}");
            world.trace.iter_mut().for_each(|trace| trace.push(text.clone()));
        }
    }

    async fn judge_rest(&mut self, host: &Arc<Host>, readers: &mut Vec<Reader>) -> Result<(), String> {
        self.follow(host, readers, true).await?;
        for session in 0..SESSIONS {
            if self.is_damaged(session) {
                continue;
            }
            let Some(judge) = &self.judges[session] else { continue };
            if judge.fold.as_ref().is_some_and(|fold| fold.deleted) || self.is_deleted(session) {
                continue;
            }
            let id = session_id(session);
            let (row, state) =
                host.state(id.as_str()).await.map_err(|error| format!("{id} cannot be loaded: {error}"))?;
            if judge.fold.as_ref() != Some(&state) {
                return Err(format!("{id}: the fold of the journal is not the state that the host loads"));
            }
            judge
                .judge_rest(&row.status, row.reason.as_deref(), self.damaged_has_process())
                .map_err(|why| format!("at rest, {id}: {why}"))?;
            if self.read[session] != judge.rows.len() {
                return Err(format!(
                    "{id}: a reader saw {} of {} rows",
                    self.read[session],
                    judge.rows.len()
                ));
            }
            let rows = judge.rows.len();
            self.read[session] = 0;
            let mut fresh = Vec::new();
            self.follow(host, &mut fresh, true).await?;
            drop(fresh);
            if self.read[session] != rows {
                return Err(format!(
                    "{id}: a reader from the beginning saw {} of {rows}",
                    self.read[session]
                ));
            }
            self.covered.events += rows;
        }
        self.judge_views(host).await?;
        self.reading_starts_nothing(host).await?;
        let rows = host
            .sessions(SessionFilter { include_deleted: true, ..SessionFilter::default() }, None, 10)
            .await
            .map_err(|error| error.to_string())?;
        let world = self.world.lock();
        let ours = |token: &String| !world.is_abandoned(token);
        for keeper in world.keepers.values().filter(|keeper| keeper.lives() && ours(&keeper.token)) {
            if !rows.rows.iter().any(|row| row.process == Some(keeper.process)) {
                return Err(format!("{} lives and belongs to no session", keeper.token));
            }
        }
        self.covered.taken = world.truth.received.len();
        self.covered.answers = world.truth.chosen.len();
        Ok(())
    }
}
