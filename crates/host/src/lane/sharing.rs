//! Many sessions, one process: how a session comes to a lane, is bound to its process, and leaves both again.
//!
//! * A session that is about to need a process is *placed*: in a lane that offers a process of its launch profile, else
//!   where it is. The registry only points; the lane that is pointed at takes the session or sends it on.
//! * A session's mailbox moves with it, so senders never look twice, and a machine is only ever in one lane.
//! * A process belongs to one lane, with all sessions that its records can be about.

use super::lifecycle::GIVEN_UP;
use super::member::{Bears, Creation, Join, Member, Moving, Parting, creation_batch};
use super::{LANE_IDLE, Lane, LaneMessage, Process, forward, refuse};
use crate::config::Isolation;
use crate::error::HostError;
use crate::keeping::Planted;
use crate::registry::{Place, Seat};
use mainstay_core::process::{CloseOrder, ProcessFact};
use mainstay_core::session::{Input, Phase, Reply};
use mainstay_core::{AgentEvent, AgentName, Command, Decision, SessionId};
use mainstay_store::{ProcessKey, ProcessUpdate, SessionKey, SessionUpdate, WriteOp};

/// A lane's offer to sessions of its profile, as the registry has it.
#[derive(Debug)]
pub(super) struct Offer {
    profile: String,
    number: u64,
    open: bool,
}

/// What became of taking the seats of all sessions of a process.
#[derive(Debug)]
pub(super) enum Seating {
    /// They are all here.
    Taken,
    /// Another lane has the process, and has this session's seat now.
    HandedOver,
    /// The record changed meanwhile: it is to be read again.
    Again(Seat),
}

impl Lane {
    /// The sessions that are bound to the process.
    pub(super) fn bound(&self) -> impl Iterator<Item = &Member> {
        let key = self.process.as_ref().map(|process| process.key);
        self.members.iter().filter(move |member| key.is_some() && member.claims == key)
    }

    pub(super) fn is_bound(&self, at: usize) -> bool {
        let key = self.process.as_ref().map(|process| process.key);
        key.is_some() && self.members[at].claims == key
    }

    /// Where the sessions stand that are bound to the process and can be decided on.
    pub(super) fn bound_places(&self) -> Vec<usize> {
        let sound = |at: &usize| self.is_bound(*at) && self.members[*at].broken.is_none();
        (0..self.members.len()).filter(sound).collect()
    }

    /// How many sessions may share a process of this lane's agent; None: none share one.
    fn shares(&self) -> Option<usize> {
        self.shares_of(&self.members.first()?.machine.launch.agent)
    }

    /// As [`Self::shares`], for a lane that has no session yet.
    fn shares_of(&self, agent: &AgentName) -> Option<usize> {
        if !self.capabilities.close_thread {
            return None;
        }
        let agent = crate::catalog::configured(&self.shared.config, agent).ok()?;
        (agent.isolation == Isolation::Profile).then_some(agent.sessions_per_process)
    }

    /// Whether a session at rest in this lane is bound to the process that runs, or is about to run, when it needs one.
    pub(super) fn serves(&self, at: usize) -> bool {
        let Some(process) = &self.process else { return false };
        let well = !process.ending
            && !process.doubted
            && !process.given_up
            && process.close.is_none()
            && process.asked_to_close.is_none()
            && process.final_exit.is_none();
        let starts_here = self.members[at].starts_in == Some(process.key);
        let fits = self.members[at].profile == process.profile
            && self.shares().is_some_and(|most| {
                // It may be leaving just now, and come back.
                self.bound().filter(|other| other.key != self.members[at].key).count() < most
            });
        well && (starts_here || fits)
    }

    /// Whether one more session may come.
    fn takes_more(&self) -> bool {
        let Some(most) = self.shares() else { return false };
        let goes = self.shutdown.is_some() || self.members.iter().any(|member| member.shutdown.is_some());
        let serves = self.process.is_none() || (0..self.members.len()).any(|at| self.serves(at));
        !goes && self.retry_at.is_none() && self.members.len() < most && serves
    }

    /// Offers the lane to others of the profile, for as long as it takes more.
    pub(super) fn keep_offer(&mut self) {
        let open = self.takes_more();
        match &mut self.offer {
            Some(offer) if offer.open != open => {
                offer.open = open;
                self.shared.registry.open_offer(&offer.profile, offer.number, open);
            }
            Some(_) => {}
            None if open => {
                let Some(process) = &self.process else { return };
                let number = self.shared.registry.offer(&process.profile, &self.joined_by);
                self.offer = Some(Offer { profile: process.profile.clone(), number, open });
            }
            None => {}
        }
    }

    pub(super) fn withdraw_offer(&mut self) {
        if let Some(offer) = self.offer.take() {
            self.shared.registry.withdraw(&offer.profile, offer.number);
        }
    }

    /// Takes the process and the seats of all sessions that are bound to it: what the agent says can be about any of
    /// them, so nothing is read before they are all here.
    pub(super) async fn take_seats(&mut self, process: ProcessKey, member: Member, seat: Seat) -> Seating {
        if let Err(owner) = self.shared.registry.own(process, &self.joined_by) {
            return match owner.try_send(Join::Seat(seat)) {
                Ok(()) => Seating::HandedOver,
                Err(unsent) => match unsent.into_inner() {
                    Join::Seat(seat) => Seating::Again(seat),
                    // It is what was sent.
                    Join::Member(_) => Seating::HandedOver,
                },
            };
        }
        let own = member.key;
        let shared = self.shared.clone();
        let loading = self.shared.blocking.run(move || {
            let rows = shared.store.unrested_sessions()?.rows;
            let bound = rows.into_iter().filter(|row| row.process == Some(process));
            Ok::<_, HostError>(bound.map(|row| (row.key, Member::load(&shared, row.key))).collect::<Vec<_>>())
        });
        let (mut own_is_bound, mut all_read) = (false, true);
        match loading.await.unwrap_or(Err(HostError::ShuttingDown)) {
            Ok(loaded) => {
                for (key, loaded) in loaded {
                    if key != own && self.shared.has_planted(Planted::OneTakenUp) {
                        continue;
                    }
                    match loaded {
                        // Settled by its former lane between two reads.
                        Ok(member) if member.claims != Some(process) => {}
                        Ok(member) => {
                            own_is_bound |= key == own;
                            self.members.push(member);
                        }
                        Err(error) => {
                            // One that is damaged stops no other; what fails for now may be about all of them.
                            all_read &= matches!(error, HostError::Unreadable { .. })
                                && !self.shared.has_planted(Planted::OneStopsAll);
                            tracing::error!(session = %key, %error, "a session of a shared process cannot be loaded");
                        }
                    }
                }
            }
            Err(error) => {
                all_read = false;
                tracing::error!(session = %own, %error, "the sessions of a process cannot be read");
            }
        }
        if !own_is_bound || !all_read {
            self.members.clear();
            self.shared.registry.disown(process, &self.joined_by);
            return Seating::Again(seat);
        }
        self.seat(seat);
        loop {
            for member in self.members.iter_mut().filter(|member| member.seat.is_none()) {
                // Where somebody has it already, that one finds out whose the process is and sends it.
                let _to = self.shared.registry.lane(member.key, |seat| member.seat = Some(seat));
            }
            if self.members.iter().all(|member| member.seat.is_some()) {
                return Seating::Taken;
            }
            match tokio::time::timeout(LANE_IDLE, self.joins.recv()).await {
                Ok(Some(Join::Seat(seat))) => self.seat(seat),
                Ok(Some(join @ Join::Member(_))) => self.send_on(join),
                Ok(None) | Err(_) => {}
            }
        }
    }

    fn seat(&mut self, seat: Seat) {
        match self.members.iter_mut().find(|member| member.key == seat.key && member.seat.is_none()) {
            Some(member) => member.seat = Some(seat),
            None => self.send_on(Join::Seat(seat)),
        }
    }

    pub(super) fn on_join(&mut self, join: Join) {
        match join {
            Join::Seat(seat) => self.seat(seat),
            Join::Member(moving) if self.takes_more() || self.is_to_be_adopted_here(&moving) => {
                self.admit(*moving);
            }
            join @ Join::Member(_) => self.send_on(join),
        }
    }

    /// Whether a session comes to be bound to the living process of this lane: that is no question of room.
    fn is_to_be_adopted_here(&self, moving: &Moving) -> bool {
        let own = self.process.as_ref().map(|process| process.key);
        if moving.member.starts_in.is_some() && moving.member.starts_in == own {
            return true;
        }
        let Bears::Message(message) = &moving.bears else { return false };
        let LaneMessage::TakeOver { adoption, .. } = &**message else { return false };
        adoption.beside.is_some() && adoption.beside == self.process.as_ref().map(|process| process.key)
    }

    /// Starts a lane of its own for a session that cannot be served here.
    pub(super) fn send_on(&self, join: Join) {
        let shared = self.shared.clone();
        match join {
            Join::Seat(seat) => drop(tokio::spawn(Self::run(shared, seat))),
            Join::Member(mut moving) => {
                moving.member.starts_in = None;
                drop(tokio::spawn(Self::run_moving(shared, *moving, false)));
            }
        }
    }

    /// Finds the lane for a session that has none yet; None: it went there.
    pub(super) fn place_moving(&mut self, moving: Moving, may_join: bool) -> Option<Moving> {
        if let Some(process) = moving.member.starts_in {
            return self.place_beside(process, moving);
        }
        let needs = match &moving.bears {
            Bears::Message(message) => moving.member.may_acquire(message),
            Bears::Creation(creation) => creation.prompt.is_some(),
        };
        if !needs || self.shares_of(&moving.member.machine.launch.agent).is_none() {
            return Some(moving);
        }
        let profile = moving.member.profile.clone();
        let registry = &self.shared.registry;
        let (mut moving, mut may_join) = (moving, may_join);
        loop {
            let place = if may_join {
                registry.place(&profile, &self.joined_by)
            } else {
                Place::Here(registry.offer(&profile, &self.joined_by))
            };
            match place {
                Place::Here(number) => {
                    self.offer = Some(Offer { profile, number, open: true });
                    return Some(moving);
                }
                Place::There(lane) => match lane.try_send(Join::Member(Box::new(moving))) {
                    Ok(()) => return None,
                    Err(unsent) => match unsent.into_inner() {
                        Join::Member(returned) => {
                            // It was just ending, or too many are on their way to it.
                            may_join = false;
                            moving = *returned;
                        }
                        // It is what was sent.
                        Join::Seat(_) => return None,
                    },
                },
            }
        }
    }

    /// Brings a session to the lane of the process that has its conversation in memory. Where that is gone, it stays at rest.
    fn place_beside(&self, process: ProcessKey, mut moving: Moving) -> Option<Moving> {
        if let Some(lane) = self.shared.registry.owner(process) {
            match lane.try_send(Join::Member(Box::new(moving))) {
                Ok(()) => return None,
                Err(unsent) => match unsent.into_inner() {
                    Join::Member(returned) => moving = *returned,
                    // It is what was sent.
                    Join::Seat(_) => return None,
                },
            }
        }
        moving.member.starts_in = None;
        Some(moving)
    }

    /// Takes a session in, with what it was asked.
    pub(super) fn admit(&mut self, moving: Moving) {
        let Moving { mut member, bears } = moving;
        member.parting = None;
        member.idle_since = None;
        self.read_clock();
        let at = self.members.len();
        self.members.push(member);
        match bears {
            Bears::Message(message) => self.on_message(at, *message),
            Bears::Creation(creation) => self.create(at, *creation),
        }
    }

    fn create(&mut self, at: usize, creation: Creation) {
        let Creation { mut ops, prompt, answer, operation } = creation;
        let decided = match prompt {
            Some((send, taken)) => {
                ops.push(taken);
                self.decide(at, Input::Command(send))
            }
            None if self.members[at].starts_in.is_some() => self.decide(at, Input::Command(Command::Start)),
            None => Ok(Reply::Done),
        };
        match decided {
            Ok(reply) => {
                creation_batch(&mut self.pending, ops);
                self.members[at].touched = true;
                self.wait_for_commit(at, answer, reply, operation, None);
            }
            Err(refusal) => {
                self.members[at].out = mainstay_core::session::Out::default();
                self.members[at].parting = Some(Parting::NeverWas);
                // Whoever asked may be gone.
                drop(answer.send(Err(HostError::Refused(refusal))));
            }
        }
    }

    /// Where a session that is about to need a process gets it; None: it leaves for there, with the message.
    pub(super) fn place(&mut self, at: usize, message: LaneMessage) -> Option<LaneMessage> {
        let message = self.place_adoption(at, message)?;
        let member = &self.members[at];
        if !member.may_acquire(&message) || member.shutdown.is_some() || self.shutdown.is_some() {
            return Some(message);
        }
        if self.process.is_some() {
            if self.serves(at) {
                return Some(message);
            }
            self.members[at].parting = Some(Parting::Alone(Box::new(message)));
            return None;
        }
        if self.offer.is_some() || self.spawning.is_some() || self.shares().is_none() {
            return Some(message);
        }
        let profile = member.profile.clone();
        match self.shared.registry.place(&profile, &self.joined_by) {
            Place::Here(number) => {
                self.offer = Some(Offer { profile, number, open: true });
                Some(message)
            }
            Place::There(lane) => {
                self.members[at].parting = Some(Parting::To(lane, Box::new(message)));
                None
            }
        }
    }

    /// Lets those sessions go that are to leave and of which nothing is on its way to the store.
    pub(super) fn part(&mut self) {
        if self.retry_at.is_some() {
            return;
        }
        let mut at = 0;
        while at < self.members.len() {
            let member = &self.members[at];
            let on_its_way = self.in_flight.as_ref().is_some_and(|batch| batch.is_about(member.key));
            if member.parting.is_none() || on_its_way || member.touched || !member.is_still() {
                at += 1;
                continue;
            }
            let mut member = self.members.remove(at);
            match member.parting.take() {
                Some(Parting::AtRest) => match self.rest(member) {
                    None => {}
                    Some(stays) => {
                        self.members.insert(at, stays);
                        at += 1;
                    }
                },
                Some(Parting::To(lane, message)) => {
                    let moving = Box::new(Moving { member, bears: Bears::Message(message) });
                    if let Err(unsent) = lane.try_send(Join::Member(moving)) {
                        self.place_again(unsent.into_inner());
                    }
                }
                Some(Parting::Alone(message)) => {
                    self.send_on(Join::Member(Box::new(Moving { member, bears: Bears::Message(message) })));
                }
                Some(Parting::Anew) => self.load_elsewhere(member),
                Some(Parting::NeverWas) | None => self.release(member),
            }
        }
    }

    fn place_again(&self, join: Join) {
        match join {
            Join::Member(moving) => drop(tokio::spawn(Self::run_moving(self.shared.clone(), *moving, true))),
            seat @ Join::Seat(_) => self.send_on(seat),
        }
    }

    /// A session at rest needs no lane; one that was just asked something stays.
    fn rest(&self, mut member: Member) -> Option<Member> {
        if member.machine.phase != Phase::Free || member.claims.is_some() {
            return Some(member);
        }
        let Some(seat) = member.seat.take() else {
            self.release(member);
            return None;
        };
        match self.shared.registry.leave(seat) {
            Ok(left) => {
                forward(&self.shared, member.key, left);
                self.release(member);
                None
            }
            Err(seat) => {
                member.seat = Some(seat);
                Some(member)
            }
        }
    }

    /// Hands a session to a lane that loads it again, with those who wait for it.
    fn load_elsewhere(&self, mut member: Member) {
        let mut messages: Vec<LaneMessage> = Vec::new();
        for (_, done) in member.wake.drain(..) {
            messages.push(LaneMessage::Wake { done });
        }
        if let Some((order, done)) = member.shutdown.take() {
            messages.push(LaneMessage::Shutdown { order, done });
        }
        if let Some(seat) = member.seat.take() {
            self.send_on(Join::Seat(seat));
        }
        forward(&self.shared, member.key, messages);
        self.shared.hubs.give_back(member.key, member.hub);
    }

    /// Binds a session to the process that runs, or is about to.
    pub(super) fn bind(&mut self, at: usize) {
        let Some(process) = &mut self.process else { return };
        let member = &self.members[at];
        process.adapter.bind(&member.machine.id, member.context());
        if let Some(models) = self.shared.catalogues.of(&member.scope).models {
            process.adapter.know_models(&models.value);
        }
        self.claim(at);
        self.bring_up(at);
    }

    /// The session's record names the process from now on.
    pub(super) fn claim(&mut self, at: usize) {
        let Some(process) = &self.process else { return };
        let member = &mut self.members[at];
        member.claims = Some(process.key);
        member.starts_in = None;
        member.told_to_leave = false;
        let mut update = SessionUpdate::new(member.key, self.now);
        update.process = Some(Some(process.key));
        self.pending.ops.push(WriteOp::UpdateSession(update));
        self.pending.prompt = true;
    }

    /// Tells a bound session how far its process is.
    pub(super) fn bring_up(&mut self, at: usize) {
        let Some(process) = &self.process else { return };
        if process.greeted && self.members[at].machine.phase == Phase::Reserved {
            let (process, agent) = (process.token.clone(), process.identity.clone());
            self.decide_own(at, Input::Process(ProcessFact::Started { process, agent }));
        }
        if let Some(process) = &self.process
            && let Some(info) = process.ready.clone()
            && self.members[at].machine.phase == Phase::Spawned
        {
            self.decide_own(at, Input::Agent(AgentEvent::Ready(info)));
        }
    }

    /// Where the session's machine is bound to the process no more, its record is not either.
    pub(super) fn unbind(&mut self, at: usize) {
        let member = &mut self.members[at];
        let own = member.machine.process.as_ref();
        let is_bound = |key: &ProcessKey| match &self.process {
            Some(process) if process.key == *key => own == Some(&process.token),
            _ => own.is_some(),
        };
        let Some(key) = member.claims.take_if(|key| !is_bound(key)) else { return };
        member.told_to_leave = false;
        let mut update = SessionUpdate::new(member.key, self.now);
        update.process = Some(None);
        self.pending.ops.push(WriteOp::UpdateSession(update));
        self.pending.touched = true;
        let id = member.machine.id.clone();
        if let Some(process) = self.process.as_mut().filter(|process| process.key == key) {
            process.adapter.unbind(&id);
        }
        if self.bound().next().is_some() {
            if let Some(process) =
                self.process.as_mut().filter(|process| process.key == key && process.doubted)
            {
                process.given_up = true;
                let mut update = ProcessUpdate::new(key);
                update.state = Some(GIVEN_UP.to_owned());
                self.pending.ops.push(WriteOp::UpdateProcess(update));
            }
            return;
        }
        let given_up = |process: &mut Process| process.key == key && process.final_exit.is_none();
        if let Some(process) = self.process.take_if(|process| given_up(process) && process.doubted) {
            self.end_abandoned(process);
        } else if let Some(process) = self.process.as_mut().filter(|process| process.key == key) {
            // Nobody needs it any more.
            process.asked_to_close = Some(CloseOrder::Host);
            self.pending.then.push(super::batch::Then::Close(Some(key), CloseOrder::Host));
        }
    }

    /// How the process is to be ended: on an order to kill it, or when every session that is bound to it is to leave.
    pub(super) fn close_order(&self) -> Option<CloseOrder> {
        let orders: Option<Vec<CloseOrder>> = self.bound().map(|member| member.machine.stopping).collect();
        let kill = self.bound().any(|member| member.machine.stopping == Some(CloseOrder::Kill));
        if kill {
            return Some(CloseOrder::Kill);
        }
        orders?.into_iter().max_by_key(|order| order.rank())
    }

    /// An order to end the session's process: it is carried out where no other session needs the process, else the session
    /// stops its work and leaves.
    pub(super) fn close_or_leave(&mut self, at: usize) {
        let key = self.process.as_ref().map(|process| process.key);
        if !self.is_bound(at) {
            // It has none; what it has reserved elsewhere is found unused there.
            return;
        }
        let Some(whole) = self.close_order() else {
            return self.go_on_leaving();
        };
        if let Some(process) = &mut self.process {
            process.asked_to_close = Some(whole);
        }
        self.pending.then.push(super::batch::Then::Close(key, whole));
    }

    /// Sessions that are to leave a process which others need go step by step: their work ends, their threads are closed,
    /// then they are free. What does not end in its time is the machine's to press and to say.
    pub(super) fn go_on_leaving(&mut self) {
        let Some(process) = &self.process else { return };
        if process.final_exit.is_some() || self.retry_at.is_some() {
            return;
        }
        let (key, asked) = (process.key, process.asked_to_close.is_some() || process.ending);
        if !self.bound().any(|member| member.machine.stopping.is_some()) {
            return;
        }
        if let Some(order) = self.close_order() {
            if !asked {
                // Those who needed it are gone.
                if let Some(process) = &mut self.process {
                    process.asked_to_close = Some(order);
                }
                self.pending.then.push(super::batch::Then::Close(Some(key), order));
            }
            return;
        }
        for at in self.bound_places() {
            let machine = &self.members[at].machine;
            if machine.stopping.is_none() || machine.unverifiable.is_some() {
                continue;
            }
            self.say_who_stays(at);
            let machine = &self.members[at].machine;
            match machine.phase {
                Phase::Reserved | Phase::Spawned => self.leave_now(at),
                // Its answer tells whether there is a thread to be closed.
                Phase::Opening if self.members[at].opening => {}
                Phase::Opening | Phase::Held if !machine.works_on() => {
                    if !self.members[at].told_to_leave {
                        self.members[at].told_to_leave = self.tell(at, &Decision::CloseThread);
                    }
                }
                Phase::Opening | Phase::Held | Phase::Free => {}
            }
        }
    }

    /// Tells a session that leaves with whom the process goes on.
    fn say_who_stays(&mut self, at: usize) {
        let member = &self.members[at];
        let others: Vec<SessionId> = self
            .bound()
            .filter(|other| other.key != member.key)
            .map(|other| other.machine.id.clone())
            .collect();
        let known = member.machine.leaving.as_ref().is_some_and(|leaving| leaving.others == others);
        if !known && let Some(process) = member.machine.process.clone() {
            self.decide_own(at, Input::Process(ProcessFact::GoesOn { process, others }));
        }
    }

    /// The agent has let the session's thread go, or never had it.
    pub(super) fn leave_now(&mut self, at: usize) {
        if self.bound().count() <= 1 {
            // The process was for this one: it ends with it.
            if self.members[at].machine.stopping.is_none() {
                self.close_in_order(at, CloseOrder::Host);
            }
            return;
        }
        self.end_what_it_left_running(at);
        if let Some(process) = &mut self.process {
            process.adapter.unbind(&self.members[at].machine.id);
        }
        self.decide_own(at, Input::Agent(AgentEvent::ThreadClosed));
    }

    /// A user's stop that ends a process ends all that was left below it; one that leaves it to others ends what carries
    /// the mark of the thread that is left. What the stop's host did not come to holds the process from rest, and is shown.
    fn end_what_it_left_running(&self, at: usize) {
        let machine = &self.members[at].machine;
        let by_user = matches!(machine.stopping, Some(CloseOrder::User | CloseOrder::Kill));
        let (Some(process), Some(thread)) = (&self.process, machine.thread()) else { return };
        if by_user {
            let (keeping, folder) = (self.shared.keeping.clone(), process.folder.clone());
            let thread = thread.as_str().to_owned();
            self.shared.blocking.run(move || keeping.end_left_running(&folder, &thread));
        }
    }

    pub(super) fn place_of(&self, key: SessionKey) -> Option<usize> {
        self.members.iter().position(|member| member.key == key)
    }
}

/// Answers what a session brought that cannot be served.
pub(super) fn refuse_bearer(bears: Bears, error: &HostError) {
    match bears {
        Bears::Message(message) => refuse(*message, error),
        // Whoever asked may be gone.
        Bears::Creation(creation) => drop(creation.answer.send(Err(error.clone()))),
    }
}
