//! The host's lane around the real session machine: deciding, committing, starting, looking, adopting, settling. As
//! `crates/host/src/lane` does it, step by step, with a crash possible between any two.

use crate::Plan;
use crate::environment::send;
use crate::explore::{Kind, Steps};
use crate::world::{
    Budget, Child, FOLDER_LOST, Folder, Frame, GIVEN_TWICE, Gone, Host, Keeper, Lock, Look, Machine,
    OWN_INPUT_REFUSED, Process, SLOTS, STALE_INPUT, Said, Slot, Spawning, Store, Then, World, token_of,
};
use mainstay_core::agent::{AgentInfo, TakenProof};
use mainstay_core::process::{CloseOrder, ExitCause, ProcessExit, ProcessFact};
use mainstay_core::session::{Effect, Input, Moment, Out, Phase};
use mainstay_core::{
    AgentEvent, AgentName, Capabilities, Decision, HostId, LaunchSnapshot, Session, SessionId,
    SessionOptions, SubmissionId, ThreadId,
};

const CAPABILITIES: Capabilities =
    Capabilities { resume: true, confirms_answers: true, ..Capabilities::bare(TakenProof::ClientId) };

/// Decides one input and carries its effects as far as they go before the commit. False: it was refused.
pub(crate) fn decide(world: &mut World, plan: &Plan, input: Input) -> bool {
    let fresh = world.slots.iter().position(|slot| slot.folder == Folder::Never);
    let token = token_of(fresh.unwrap_or(SLOTS));
    let moment = Moment { now: 0, capabilities: &CAPABILITIES, fresh: &token };
    let Some(host) = &mut world.host else { return false };
    let mut session = (*host.machine.session).clone();
    let mut out = Out::default();
    if session.handle(input, &moment, &mut out).is_err() {
        world.broken = Some(OWN_INPUT_REFUSED);
        return false;
    }
    let pending = host.pending.get_or_insert_default();
    for effect in std::mem::take(&mut out.effects) {
        match effect {
            Effect::Tell(Decision::OpenThread { resume, .. }) => {
                if let Some(process) = &host.process {
                    let frame = Frame::OpenThread { resume: resume.is_some() };
                    pending.frames.push((process.slot, frame));
                }
            }
            Effect::Tell(Decision::StartTurn { submission, .. }) => {
                let Some(process) = &host.process else { continue };
                let message = if submission.as_str() == "m1" { 1 } else { 2 };
                pending.frames.push((process.slot, Frame::Message(message)));
                let here = pending.frames.iter().filter(|(slot, _)| *slot == process.slot).count();
                let number = world.store.frames[process.slot].len() + here;
                let handed = Input::Handed { submission, input: number as u64 };
                if session.handle(handed, &moment, &mut out).is_err() {
                    world.broken = Some(OWN_INPUT_REFUSED);
                }
            }
            Effect::Tell(_) => {}
            Effect::Acquire { .. } => {
                let Some(slot) = fresh else {
                    world.cut = true;
                    return true;
                };
                if let Some(abandoned) = host.process.take() {
                    pending.abandoned = Some(abandoned.slot);
                    host.looking = None;
                }
                if !plan.reserve_after_commit {
                    world.slots[slot].folder = Folder::Here;
                    world.slots[slot].lock = Lock::Host;
                }
                pending.row = Some(Some(slot));
                host.process = Some(bare_process(slot, 0));
                if plan.start_before_commit {
                    host.spawning = Some((slot, Spawning::Queued));
                } else {
                    pending.then.push(Then::Launch(slot));
                }
            }
            Effect::Close { .. } => {
                if let Some(process) = &host.process {
                    pending.then.push(Then::Close(process.slot));
                }
            }
        }
    }
    if session.process.is_none()
        && let Some(abandoned) = host.process.take_if(|process| process.final_exit.is_none())
    {
        pending.abandoned = Some(abandoned.slot);
        pending.row = Some(None);
        host.looking = None;
    }
    host.machine = Machine::new(session);
    true
}

const fn bare_process(slot: usize, position: usize) -> Process {
    Process {
        slot,
        greeted: false,
        adopting: false,
        position,
        close: false,
        final_exit: None,
        given_up: false,
    }
}

/// A new session whose first message is decided and not committed.
pub(crate) fn first_world(plan: &Plan, budget: Budget) -> World {
    let mut out = Out::default();
    let launch = LaunchSnapshot {
        host: HostId("h".to_owned()),
        agent: AgentName("a".to_owned()),
        cwd: "/w".to_owned(),
        additional_directories: Vec::new(),
        account_home: None,
        mcp_servers: Vec::new(),
        instructions: None,
        env_names: Vec::new(),
        command: None,
        source: None,
        beside: None,
    };
    let options = SessionOptions::default();
    let session = Session::create(SessionId("s".to_owned()), None, launch, options, 0, &mut out);
    let store = Store {
        machine: Machine::new(session),
        row: None,
        recorded: [false; SLOTS],
        frames: std::array::from_fn(|_| Vec::new()),
        position: [0; SLOTS],
    };
    let slots = [Slot::EMPTY; SLOTS];
    let mut world = World { store, host: None, slots, budget, given: 0, broken: None, cut: false };
    start(&mut world, plan);
    decide(&mut world, plan, Input::Command(send("m1")));
    world
}

pub(crate) fn steps(world: &World, plan: &Plan, out: &mut Steps) {
    let Some(host) = &world.host else {
        let mut next = world.clone();
        start(&mut next, plan);
        out.push("a host starts", 0, Kind::Step, next);
        return;
    };
    if world.budget.faults > 0 {
        let mut next = world.clone();
        next.budget.faults -= 1;
        crash(&mut next);
        out.push("host crashes", 0, Kind::Fault, next);
    }
    commit_steps(world, plan, host, out);
    if host.reload {
        let mut next = world.clone();
        reload(&mut next, plan);
        out.push("host loads the session again", 0, Kind::Step, next);
    }
    spawn_steps(world, plan, host, out);
    process_steps(world, plan, host, out);
    look_steps(world, plan, host, out);
    for &slot in &host.removing {
        remove_step(world, slot, out);
    }
    let looked_after = host.looking.is_none()
        && host.pending.is_none()
        && !host.reload
        && host.process.as_ref().is_none_or(|process| {
            process.final_exit.is_none()
                && (process.greeted || host.spawning.is_some() || host.machine.session.unverifiable.is_some())
        });
    if host.wake && looked_after {
        let mut next = world.clone();
        if let Some(host) = &mut next.host {
            host.wake = false;
        }
        decide(&mut next, plan, Input::Wake);
        out.push("host wakes the session", 0, Kind::Step, next);
    }
}

// --- a host's beginning and end ---------------------------------------------------------------------------------

fn start(world: &mut World, plan: &Plan) {
    world.host = Some(Host {
        machine: world.store.machine.clone(),
        process: None,
        pending: None,
        spawning: None,
        looking: None,
        removing: Vec::new(),
        doubtful_launch: None,
        reload: false,
        wake: true,
    });
    remove_what_nobody_claims(world);
    begin(world, plan);
}

/// Folders without a record: of which nothing ran and nothing will, or whose end is recorded, go; others stay.
fn remove_what_nobody_claims(world: &mut World) {
    for (index, slot) in world.slots.iter_mut().enumerate() {
        let over = slot.exit_recorded || !slot.identity;
        let claimed = world.store.row == Some(index);
        if slot.folder == Folder::Here && slot.lock == Lock::Free && over && !claimed {
            slot.seen_unused |= !slot.identity;
            if let Some(host) = &mut world.host {
                host.removing.push(index);
            }
        }
    }
}

fn crash(world: &mut World) {
    world.host = None;
    for slot in &mut world.slots {
        if matches!(slot.lock, Lock::Host | Lock::Remover) {
            slot.lock = Lock::Free;
        }
    }
}

/// Takes up the process that the row names.
fn begin(world: &mut World, plan: &Plan) {
    let (row, positions) = (world.store.row, world.store.position);
    let Some(host) = &mut world.host else { return };
    let Some(slot) = row else {
        host.process = None;
        if host.machine.session.process.is_some() {
            let exit = ProcessExit::of(ExitCause::ReservationUnused);
            exited(world, plan, exit);
        }
        return;
    };
    let kept = host.process.take().filter(|kept| kept.slot == slot);
    let mut taken = bare_process(slot, positions[slot]);
    taken.close = host.machine.session.stopping.is_some() || kept.is_some_and(|kept| kept.close);
    let reserved = host.machine.session.phase == Phase::Reserved;
    let launch = host.doubtful_launch.take_if(|launch| *launch == slot && reserved);
    let spawning = host.spawning.is_some();
    taken.adopting = launch.is_none() && !spawning && !reserved;
    host.process = Some(taken);
    if launch.is_some() {
        host.spawning = Some((slot, Spawning::Queued));
    } else if !spawning && host.looking.is_none() {
        host.looking = Some(Look::Lock);
    }
}

fn reload(world: &mut World, plan: &Plan) {
    let machine = world.store.machine.clone();
    let Some(host) = &mut world.host else { return };
    host.machine = machine;
    host.pending = None;
    host.reload = false;
    host.wake = true;
    begin(world, plan);
    if let Some(slot) = world.host.as_mut().and_then(|host| host.doubtful_launch.take()) {
        // Its reservation did not commit.
        let entry = &mut world.slots[slot];
        entry.lock = Lock::Free;
        if let Some(host) = &mut world.host {
            host.removing.push(slot);
        }
    }
}

// --- commits ----------------------------------------------------------------------------------------------------

fn commit_steps(world: &World, plan: &Plan, host: &Host, out: &mut Steps) {
    if host.pending.is_none() || host.reload {
        return;
    }
    let mut durable = world.clone();
    make_durable(&mut durable);
    if durable.budget.faults > 0 {
        let mut next = durable.clone();
        next.budget.faults -= 1;
        crash(&mut next);
        out.push("commit is durable and the host crashes", 0, Kind::Fault, next);
    }
    if durable.budget.faults > 0 {
        let mut next = durable.clone();
        next.budget.faults -= 1;
        undo(&mut next, plan);
        out.push("commit is durable and its acknowledgement lost", 0, Kind::Fault, next);
    }
    if world.budget.faults > 0 {
        let mut next = world.clone();
        next.budget.faults -= 1;
        if plan.keep_memory_after_failure {
            let_go(&mut next, plan);
        } else {
            undo(&mut next, plan);
        }
        out.push("commit fails", 0, Kind::Fault, next);
    }
    let_go(&mut durable, plan);
    out.push("commit", 0, Kind::Step, durable);
}

fn make_durable(world: &mut World) {
    let Some(host) = &world.host else { return };
    let Some(pending) = &host.pending else { return };
    world.store.machine = host.machine.clone();
    if let Some(row) = pending.row {
        world.store.row = row;
        if let Some(slot) = row {
            world.store.recorded[slot] = true;
        }
    }
    for (slot, frame) in &pending.frames {
        world.store.frames[*slot].push(*frame);
    }
    if let Some((slot, position)) = pending.position {
        world.store.position[slot] = position;
    }
    if let Some(slot) = pending.abandoned {
        world.slots[slot].abandoned = true;
    }
}

fn let_go(world: &mut World, plan: &Plan) {
    let Some(host) = &mut world.host else { return };
    let Some(pending) = host.pending.take() else { return };
    for then in pending.then {
        let Some(host) = &mut world.host else { return };
        match then {
            Then::Launch(slot) => {
                if plan.reserve_after_commit {
                    // The folder is made when the commit is acknowledged.
                    world.slots[slot].folder = Folder::Here;
                    world.slots[slot].lock = Lock::Host;
                }
                host.spawning = Some((slot, Spawning::Queued));
            }
            Then::Remove(slot) => host.removing.push(slot),
            Then::Close(slot) => order_close(world, plan, slot),
        }
    }
}

/// The store did not take the batch, or did not say that it did.
fn undo(world: &mut World, plan: &Plan) {
    let Some(host) = &mut world.host else { return };
    let Some(pending) = host.pending.take() else { return };
    host.reload = true;
    for then in pending.then {
        match then {
            Then::Launch(slot) => {
                if let Some(host) = &mut world.host
                    && !plan.reserve_after_commit
                {
                    host.doubtful_launch = Some(slot);
                }
            }
            Then::Close(slot) => order_close(world, plan, slot),
            Then::Remove(_) => {}
        }
    }
}

fn order_close(world: &mut World, plan: &Plan, slot: usize) {
    let Some(host) = &mut world.host else { return };
    let Some(process) = host.process.as_mut().filter(|process| process.slot == slot) else { return };
    if process.greeted {
        world.slots[slot].closing = true;
        return;
    }
    process.close = true;
    if host.spawning == Some((slot, Spawning::Queued)) {
        // Called off before anything was started.
        host.spawning = None;
        world.slots[slot].lock = Lock::Free;
        if host.reload {
            return;
        }
        settle(world, plan, Gone::CalledOff);
    }
}

// --- starting ---------------------------------------------------------------------------------------------------

fn spawn_steps(world: &World, plan: &Plan, host: &Host, out: &mut Steps) {
    let Some((slot, stage)) = host.spawning else { return };
    let mut next = world.clone();
    let Some(next_host) = &mut next.host else { return };
    match stage {
        Spawning::Queued => {
            let entry = &mut next.slots[slot];
            entry.keeper = Keeper::Newborn;
            entry.lock = Lock::Keeper;
            next_host.spawning = Some((slot, Spawning::Forked));
            out.push("host starts the keeper", slot, Kind::Step, next);
        }
        Spawning::Forked => {
            next.slots[slot].has_spec = true;
            next_host.spawning = Some((slot, Spawning::SpecGiven));
            out.push("host hands the spec over", slot, Kind::Step, next);
        }
        Spawning::SpecGiven => {
            if host.pending.is_some() {
                return;
            }
            let entry = &world.slots[slot];
            let ended = matches!(entry.keeper, Keeper::Dying | Keeper::Gone);
            if !ended && !matches!(entry.keeper, Keeper::Ready | Keeper::Running | Keeper::Leaving) {
                return;
            }
            next_host.spawning = None;
            let same = next_host.process.as_ref().is_some_and(|process| process.slot == slot);
            if same && ended {
                next_host.looking.get_or_insert(Look::Lock);
            } else if same {
                link(&mut next, plan);
            }
            out.push("host learns what became of the start", slot, Kind::Step, next);
        }
    }
}

/// Opens the line; the keeper answers with its status, or there is none and the folder is looked at.
fn link(world: &mut World, plan: &Plan) {
    let Some(host) = &mut world.host else { return };
    let Some(process) = &mut host.process else { return };
    let slot = process.slot;
    if !world.slots[slot].answers() {
        host.looking.get_or_insert(Look::Lock);
        return;
    }
    if world.slots[slot].hung {
        // The line is open and nobody answers on it.
        if plan.hello_waits_for_ever {
            process.given_up = true;
        } else {
            let why = "no answer".to_owned();
            own(world, plan, Input::Process(ProcessFact::Unverifiable { process: token_of(slot), why }));
        }
        return;
    }
    process.greeted = true;
    let adopting = std::mem::take(&mut process.adopting);
    if std::mem::take(&mut process.close) {
        world.slots[slot].closing = true;
    }
    if host.machine.session.phase == Phase::Reserved {
        own(world, plan, Input::Process(ProcessFact::Started { process: token_of(slot), agent: None }));
    }
    let unverifiable = world.host.as_ref().is_some_and(|host| host.machine.session.unverifiable.is_some());
    if adopting || (unverifiable && !plan.greeting_leaves_unverifiable) {
        own(world, plan, Input::Process(ProcessFact::Adopted { process: token_of(slot) }));
    }
    if let Some(host) = &mut world.host {
        host.pending.get_or_insert_default();
    }
}

/// An input of the host's own: a refusal is a fault of ours.
fn own(world: &mut World, plan: &Plan, input: Input) {
    decide(world, plan, input);
}

// --- a process that is held -------------------------------------------------------------------------------------

fn process_steps(world: &World, plan: &Plan, host: &Host, out: &mut Steps) {
    let Some(process) = &host.process else { return };
    let slot = process.slot;
    let entry = &world.slots[slot];
    if host.reload {
        return;
    }
    let keeper_ended = matches!(entry.keeper, Keeper::Dying | Keeper::Gone);
    if process.greeted && !keeper_ended {
        pump(world, plan, slot, out);
    }
    // The next decision waits for the commit of the last one.
    if host.pending.is_some() {
        return;
    }
    if process.greeted
        && entry.keeper == Keeper::Running
        && entry.hung
        && !plan.hello_waits_for_ever
        && host.machine.session.unverifiable.is_none()
    {
        let mut next = world.clone();
        let fact = ProcessFact::Unverifiable { process: token_of(slot), why: "no answer".to_owned() };
        own(&mut next, plan, Input::Process(fact));
        out.push("host misses the keeper's answer", slot, Kind::Step, next);
    }
    if !process.greeted && process.final_exit.is_none() && host.spawning.is_none() && host.looking.is_none() {
        if !process.given_up {
            let mut next = world.clone();
            link(&mut next, plan);
            out.push("host opens the line", slot, Kind::Step, next);
        }
        return;
    }
    if process.greeted && keeper_ended && host.looking.is_none() {
        let mut next = world.clone();
        line_closes(&mut next);
        out.push("the line closes", slot, Kind::Step, next);
    }
    let may_read =
        (process.greeted || process.final_exit.is_some()) && host.machine.session.phase != Phase::Reserved;
    if may_read {
        read(world, plan, process, out);
    }
}

pub(crate) fn line_closes(world: &mut World) {
    if let Some(host) = &mut world.host
        && let Some(process) = &mut host.process
    {
        process.greeted = false;
        host.looking = Some(Look::Lock);
    }
}

/// Durable frames go to the keeper in order.
fn pump(world: &World, plan: &Plan, slot: usize, out: &mut Steps) {
    let entry = &world.slots[slot];
    if entry.keeper != Keeper::Running || entry.hung {
        return;
    }
    if let Some(frame) = world.store.frames[slot].get(entry.taken) {
        let mut next = world.clone();
        if world.store.machine.slot() != Some(slot) {
            next.broken = Some(STALE_INPUT);
        }
        if let Frame::Message(number) = frame {
            if next.given & (1 << number) != 0 {
                next.broken = Some(GIVEN_TWICE);
            }
            next.given |= 1 << number;
        }
        next.slots[slot].taken += 1;
        out.push("keeper takes an input", slot, Kind::Step, next);
    }
    if plan.fence_is_reused {
        // What carries the same fence is meant for this process, as far as anybody can tell.
        for older in 0..slot {
            if world.slots[older].abandoned && world.store.frames[older].len() > world.slots[older].taken {
                let mut next = world.clone();
                next.slots[older].taken += 1;
                next.broken = Some(STALE_INPUT);
                out.push("keeper takes an input of an older acquisition", slot, Kind::Step, next);
            }
        }
    }
}

/// One record of the spool, or its end.
fn read(world: &World, plan: &Plan, process: &Process, out: &mut Steps) {
    let slot = process.slot;
    let entry = &world.slots[slot];
    let mut next = world.clone();
    if let Some(said) = entry.said.get(process.position) {
        let position = process.position + 1;
        if let Some(host) = &mut next.host {
            if let Some(process) = &mut host.process {
                process.position = position;
            }
            let pending = host.pending.get_or_insert_default();
            pending.position = Some((slot, position));
        }
        let event = match said {
            Said::Ready => AgentEvent::Ready(AgentInfo::default()),
            Said::ThreadOpened { resumed } => {
                let head = world.host.as_ref().and_then(|host| host.machine.session.thread().cloned());
                let made = ThreadId(format!("thread-{slot}"));
                let thread = head.filter(|_| *resumed).unwrap_or(made);
                AgentEvent::ThreadOpened { thread, resumed: *resumed }
            }
            Said::Taken(number) => AgentEvent::InputTaken {
                submission: SubmissionId(format!("m{number}")),
                proof: TakenProof::ClientId,
            },
        };
        let free = world.host.as_ref().is_some_and(|host| host.machine.session.phase == Phase::Free);
        if !free {
            own(&mut next, plan, Input::Agent(event));
        }
        out.push("host reads what the agent said", slot, Kind::Step, next);
    } else if let Some(gone) = process.final_exit {
        settle(&mut next, plan, gone);
        out.push("host settles the process", slot, Kind::Step, next);
    } else if entry.exit_recorded {
        settle(&mut next, plan, Gone::Recorded { ordered: entry.closing });
        out.push("host reads the exit", slot, Kind::Step, next);
    }
}

// --- looking and settling ---------------------------------------------------------------------------------------

/// What a look proved.
enum Seen {
    Alive,
    NotYet,
    Gone(Gone),
    Unverifiable,
}

fn look_steps(world: &World, plan: &Plan, host: &Host, out: &mut Steps) {
    let (Some(look), Some(process)) = (host.looking, &host.process) else { return };
    if host.pending.is_some() {
        return;
    }
    let slot = process.slot;
    let entry = &world.slots[slot];
    if world.budget.faults > 0 {
        let mut next = world.clone();
        next.budget.faults -= 1;
        match look {
            // What could not end, and what could not even be listed.
            Look::Sweep => {
                let mut blind = next.clone();
                go_on(&mut blind, Look::Again { unproven: false });
                out.push("the sweep sees nothing", slot, Kind::Fault, blind);
                go_on(&mut next, Look::Again { unproven: true });
                out.push("the sweep cannot end the agent", slot, Kind::Fault, next);
            }
            Look::Again { .. } if plan.second_look_in_doubt_is_gone => {
                seen(&mut next, plan, slot, Seen::Gone(Gone::KeeperLost), Kind::Fault, out);
            }
            Look::Lock | Look::SawFree | Look::Again { .. } => {
                seen(&mut next, plan, slot, Seen::Unverifiable, Kind::Fault, out);
            }
        }
    }
    let mut next = world.clone();
    let here = entry.folder == Folder::Here;
    match look {
        Look::Lock if !here && plan.probe_creates_the_lock => {
            // It made folder and lock anew, and found nobody holding it and no identity beside it.
            seen(&mut next, plan, slot, Seen::Gone(Gone::Unused), Kind::Step, out);
        }
        Look::Lock if !here => {
            if entry.folder != Folder::Deleted {
                next.broken = Some(FOLDER_LOST);
            }
            seen(&mut next, plan, slot, Seen::Unverifiable, Kind::Step, out);
        }
        Look::Lock => match entry.lock {
            Lock::Free => {
                go_on(&mut next, Look::SawFree);
                out.push("host sees the lock free", slot, Kind::Step, next);
            }
            Lock::Remover => seen(&mut next, plan, slot, Seen::Unverifiable, Kind::Step, out),
            Lock::Host | Lock::Keeper => {
                let manifest = matches!(entry.keeper, Keeper::Ready | Keeper::Running | Keeper::Leaving);
                let lives = if manifest { Seen::Alive } else { Seen::NotYet };
                seen(&mut next, plan, slot, lives, Kind::Step, out);
            }
        },
        Look::SawFree if !here => seen(&mut next, plan, slot, Seen::Unverifiable, Kind::Step, out),
        Look::SawFree if entry.exit_recorded => {
            let gone = Gone::Recorded { ordered: entry.closing };
            seen(&mut next, plan, slot, Seen::Gone(gone), Kind::Step, out);
        }
        Look::SawFree if !entry.identity => {
            next.slots[slot].seen_unused = true;
            seen(&mut next, plan, slot, Seen::Gone(Gone::Unused), Kind::Step, out);
        }
        Look::SawFree if plan.no_sweep => {
            seen(&mut next, plan, slot, Seen::Gone(Gone::KeeperLost), Kind::Step, out);
        }
        Look::SawFree => {
            go_on(&mut next, Look::Sweep);
            out.push("host sees that the keeper is gone", slot, Kind::Step, next);
        }
        Look::Sweep => {
            if entry.child.lives() {
                next.slots[slot].child = Child::Dead;
            }
            go_on(&mut next, Look::Again { unproven: false });
            out.push("host ends what the keeper left", slot, Kind::Step, next);
        }
        Look::Again { unproven } => {
            let proof = if plan.second_look_in_doubt_is_gone {
                !(unproven && here && entry.child.lives())
            } else {
                here && !entry.child.lives()
            };
            let result = if proof { Seen::Gone(Gone::KeeperLost) } else { Seen::Unverifiable };
            seen(&mut next, plan, slot, result, Kind::Step, out);
        }
    }
}

fn go_on(world: &mut World, look: Look) {
    if let Some(host) = &mut world.host {
        host.looking = Some(look);
    }
}

fn seen(world: &mut World, plan: &Plan, slot: usize, seen: Seen, kind: Kind, out: &mut Steps) {
    let Some(host) = &mut world.host else { return };
    host.looking = None;
    let Some(process) = &mut host.process else { return };
    match seen {
        Seen::Alive => {
            if !host.reload {
                link(world, plan);
            }
            out.push("host sees it alive", slot, kind, world.clone());
        }
        Seen::NotYet => {
            process.given_up = plan.not_yet_is_final;
            out.push("host sees it being born", slot, kind, world.clone());
        }
        Seen::Unverifiable if plan.settles_by_timeout => {
            gone(world, plan, Gone::KeeperLost);
            out.push("host has waited long enough", slot, kind, world.clone());
        }
        Seen::Unverifiable => {
            // It is looked at some more times before anything is said.
            let may_decide = !host.reload;
            out.push("host cannot tell and looks again", slot, kind, world.clone());
            if may_decide {
                let fact = ProcessFact::Unverifiable { process: token_of(slot), why: "unclear".to_owned() };
                own(world, plan, Input::Process(fact));
                out.push("host cannot tell and says so", slot, kind, world.clone());
            }
        }
        Seen::Gone(how) => {
            gone(world, plan, how);
            out.push("host sees that it is gone", slot, kind, world.clone());
        }
    }
}

fn gone(world: &mut World, plan: &Plan, how: Gone) {
    let Some(host) = &mut world.host else { return };
    let reserved = host.machine.session.phase == Phase::Reserved;
    let Some(process) = &mut host.process else { return };
    process.final_exit = Some(how);
    process.greeted = false;
    if !reserved || host.reload {
        return;
    }
    if how == Gone::Unused {
        settle(world, plan, how);
    } else {
        // It may have run though its start was never recorded.
        let process = token_of(process.slot);
        own(world, plan, Input::Process(ProcessFact::Started { process, agent: None }));
    }
}

/// Everything of a process that is proven gone is settled in one batch.
fn settle(world: &mut World, plan: &Plan, how: Gone) {
    let Some(host) = &mut world.host else { return };
    let Some(process) = host.process.take() else { return };
    let slot = process.slot;
    let pending = host.pending.get_or_insert_default();
    pending.row = Some(None);
    pending.frames.retain(|(of, _)| *of != slot);
    pending.then.push(Then::Remove(slot));
    if host.machine.slot() != Some(slot) {
        return;
    }
    let cause = match how {
        Gone::Recorded { ordered: true } | Gone::CalledOff => ExitCause::Ordered { order: CloseOrder::User },
        Gone::Recorded { ordered: false } => ExitCause::AgentLeft,
        Gone::KeeperLost if !plan.lost_keeper_counts_as_unused => ExitCause::KeeperLost,
        Gone::KeeperLost | Gone::Unused => ExitCause::ReservationUnused,
    };
    let taken = world.slots[slot].taken as u64;
    let exit = ProcessExit { last_started: Some(taken), last_written: Some(taken), ..ProcessExit::of(cause) };
    exited(world, plan, exit);
}

fn exited(world: &mut World, plan: &Plan, exit: ProcessExit) {
    let Some(token) = world.host.as_ref().and_then(|host| host.machine.session.process.clone()) else {
        return;
    };
    own(world, plan, Input::Process(ProcessFact::Exited { process: token, exit }));
}

/// The folder goes: the lock is taken, the folder set aside and deleted.
fn remove_step(world: &World, slot: usize, out: &mut Steps) {
    let mut next = world.clone();
    let entry = &mut next.slots[slot];
    let name = match entry.lock {
        // Another holds it: the next host removes it.
        Lock::Keeper | Lock::Host if entry.folder == Folder::Here => {
            forget_removal(&mut next, slot);
            "the folder stays for now"
        }
        Lock::Free if entry.folder == Folder::Here => {
            entry.lock = Lock::Remover;
            "host locks the folder to remove it"
        }
        Lock::Remover if entry.folder == Folder::Here => {
            entry.lock = Lock::Free;
            entry.folder = Folder::Removed;
            forget_removal(&mut next, slot);
            "host removes the folder"
        }
        _ => {
            if entry.lock == Lock::Remover {
                entry.lock = Lock::Free;
            }
            forget_removal(&mut next, slot);
            "there is no folder to remove"
        }
    };
    out.push(name, slot, Kind::Step, next);
}

fn forget_removal(world: &mut World, slot: usize) {
    if let Some(host) = &mut world.host {
        host.removing.retain(|removing| *removing != slot);
    }
}
