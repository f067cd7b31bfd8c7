//! The state of the model: what is durable, what lives, what a host remembers, and what may still go wrong.

use mainstay_core::session::{Phase, SubmissionState};
use mainstay_core::{ProcessToken, Session};
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// Acquisitions of one run whose reservation commits. A run that needs one more is cut there.
pub(crate) const SLOTS: usize = 2;

/// The real machine. Two are the same here when everything that their behaviour depends on is: journal numbers, times
/// and texts are left out, so that the space is finite.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) session: Rc<Session>,
    digest: u128,
}

impl Machine {
    pub(crate) fn new(session: Session) -> Self {
        let mut digest = Digest::default();
        session.phase.name().hash(&mut digest);
        for open in &session.submissions {
            let state = match &open.state {
                SubmissionState::Accepted { waits } => (u8::from(waits.is_some()), 0),
                SubmissionState::Delivered { input, .. } => (2, *input),
                SubmissionState::Doubtful { .. } => (3, 0),
            };
            (open.id.as_str(), state, open.paused).hash(&mut digest);
        }
        session.process.as_ref().and_then(slot_of).hash(&mut digest);
        (session.unverifiable.is_some(), session.stopping.is_some(), session.recovering.is_some())
            .hash(&mut digest);
        (session.queue_paused, session.chain.len(), session.thread_used, session.first_turn_deaths)
            .hash(&mut digest);
        (session.interrupt_pending, session.replace_thread, session.turns_of_process).hash(&mut digest);
        session.asked_to_replace.as_ref().and_then(slot_of).hash(&mut digest);
        Self { session: Rc::new(session), digest: digest.value() }
    }

    pub(crate) fn slot(&self) -> Option<usize> {
        self.session.process.as_ref().and_then(slot_of)
    }

    /// Whether a message waits that the session would give to an agent by itself.
    pub(crate) fn wants_to_go_on(&self) -> bool {
        self.session.recovering.is_none()
            && (self.session.input_untaken() || self.session.submissions.iter().any(|open| open.waits()))
    }
}

impl Hash for Machine {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.digest);
    }
}

/// 128 bits over everything hashed, quick in a debug build. With some millions of states the chance that two share
/// one is below 10^-24.
#[derive(Default)]
pub(crate) struct Digest(u64, u64);

impl Digest {
    pub(crate) fn value(&self) -> u128 {
        (u128::from(self.0) << 64) | u128::from(self.1)
    }

    fn mix(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 ^= self.0 >> 29;
        self.1 = (self.1.rotate_left(31) ^ word).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.1 ^= self.1 >> 32;
    }
}

impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.mix(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_u128(&mut self, word: u128) {
        self.mix(word as u64);
        self.mix((word >> 64) as u64);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.1
    }
}

pub(crate) fn token_of(slot: usize) -> ProcessToken {
    ProcessToken(format!("p{slot}"))
}

fn slot_of(token: &ProcessToken) -> Option<usize> {
    token.as_str().strip_prefix('p').and_then(|number| number.parse().ok())
}

/// A numbered input for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Frame {
    /// Take the session's thread up, or make one.
    OpenThread {
        resume: bool,
    },
    Message(u8),
}

/// What the agent said, in its spool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Said {
    Ready,
    ThreadOpened { resumed: bool },
    Taken(u8),
}

/// What survives a host.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Store {
    pub(crate) machine: Machine,
    /// The process that the session's row names.
    pub(crate) row: Option<usize>,
    /// Which reservations ever committed.
    pub(crate) recorded: [bool; SLOTS],
    pub(crate) frames: [Vec<Frame>; SLOTS],
    pub(crate) position: [usize; SLOTS],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Folder {
    Never,
    Here,
    /// By a user, under a living keeper perhaps.
    Deleted,
    /// By the host, after its process was settled.
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Lock {
    Free,
    Host,
    Keeper,
    /// A host that deletes the folder.
    Remover,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Keeper {
    None,
    /// Waits for its spec.
    Newborn,
    HasSpec,
    /// Manifest and socket are there; the agent's process is not.
    Ready,
    Running,
    /// The agent is gone and its exit recorded.
    Leaving,
    /// Killed: its lock is free, its children have not been told yet.
    Dying,
    Gone,
}

/// The process that becomes the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Child {
    None,
    /// It has its parent-death signal and saw that its parent lives.
    Started,
    /// Its identity is written.
    Named,
    /// It saw the keeper's lock held.
    Checked,
    /// It is the agent.
    Live,
    Dead,
}

impl Child {
    pub(crate) const fn lives(self) -> bool {
        matches!(self, Self::Started | Self::Named | Self::Checked | Self::Live)
    }
}

/// One acquisition's folder and processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) folder: Folder,
    pub(crate) lock: Lock,
    pub(crate) keeper: Keeper,
    pub(crate) has_spec: bool,
    pub(crate) child: Child,
    /// The identity stands in the folder.
    pub(crate) identity: bool,
    pub(crate) exit_recorded: bool,
    /// Closing on an order.
    pub(crate) closing: bool,
    /// Frames that the keeper took.
    pub(crate) taken: usize,
    pub(crate) said: Vec<Said>,
    /// The keeper is stopped, or hangs: it does nothing and answers nothing.
    pub(crate) hung: bool,
    /// A user gave it up, durably.
    pub(crate) abandoned: bool,
    /// Somebody saw a free lock and no identity.
    pub(crate) seen_unused: bool,
}

impl Slot {
    pub(crate) const EMPTY: Self = Self {
        folder: Folder::Never,
        lock: Lock::Free,
        keeper: Keeper::None,
        has_spec: false,
        child: Child::None,
        identity: false,
        exit_recorded: false,
        closing: false,
        taken: 0,
        said: Vec::new(),
        hung: false,
        abandoned: false,
        seen_unused: false,
    };

    /// Whether an agent lives that nobody gave up.
    pub(crate) fn may_write(&self) -> bool {
        self.child == Child::Live && !self.abandoned
    }

    /// Whether the keeper's socket answers.
    pub(crate) fn answers(&self) -> bool {
        self.folder == Folder::Here
            && matches!(self.keeper, Keeper::Ready | Keeper::Running | Keeper::Leaving)
    }
}

/// How a host came to know that a process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Gone {
    Recorded { ordered: bool },
    KeeperLost,
    Unused,
    CalledOff,
}

/// What a host remembers of the process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) slot: usize,
    pub(crate) greeted: bool,
    pub(crate) adopting: bool,
    pub(crate) position: usize,
    pub(crate) close: bool,
    pub(crate) final_exit: Option<Gone>,
    /// Nothing brings the host to look again: only where something was planted.
    pub(crate) given_up: bool,
}

/// Starting a keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Spawning {
    Queued,
    Forked,
    SpecGiven,
}

/// Looking at a folder, step by step: the world moves in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Look {
    Lock,
    SawFree,
    Sweep,
    Again { unproven: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Then {
    Launch(usize),
    Remove(usize),
    Close(usize),
}

/// Decided and not committed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    pub(crate) row: Option<Option<usize>>,
    pub(crate) frames: Vec<(usize, Frame)>,
    pub(crate) then: Vec<Then>,
    pub(crate) position: Option<(usize, usize)>,
    pub(crate) abandoned: Option<usize>,
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct Host {
    pub(crate) machine: Machine,
    pub(crate) process: Option<Process>,
    pub(crate) pending: Option<Pending>,
    pub(crate) spawning: Option<(usize, Spawning)>,
    pub(crate) looking: Option<Look>,
    pub(crate) removing: Vec<usize>,
    pub(crate) doubtful_launch: Option<usize>,
    /// A commit failed: everything is loaded again.
    pub(crate) reload: bool,
    pub(crate) wake: bool,
}

/// What may still happen by bad luck or by a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Faults of all kinds together.
    pub(crate) faults: u8,
    pub(crate) sends: u8,
    pub(crate) stops: u8,
}

impl Host {
    fn names(&self, slot: usize) -> bool {
        self.machine.slot() == Some(slot)
            || self.process.as_ref().is_some_and(|process| process.slot == slot)
            || self.spawning.is_some_and(|(spawning, _)| spawning == slot)
            || self.doubtful_launch == Some(slot)
            || self.removing.contains(&slot)
            || self.pending.as_ref().is_some_and(|pending| pending.names(slot))
    }
}

impl Pending {
    fn names(&self, slot: usize) -> bool {
        self.row == Some(Some(slot))
            || self.abandoned == Some(slot)
            || self.then.iter().any(|then| match then {
                Then::Launch(of) | Then::Remove(of) | Then::Close(of) => *of == slot,
            })
    }
}

#[derive(Clone, Debug, Hash)]
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) host: Option<Host>,
    pub(crate) slots: [Slot; SLOTS],
    pub(crate) budget: Budget,
    /// Which messages a keeper took, one bit each.
    pub(crate) given: u8,
    /// A property that the last step broke.
    pub(crate) broken: Option<&'static str>,
    /// One more acquisition than is explored was wanted.
    pub(crate) cut: bool,
}

pub(crate) const TWO_AGENTS: &str = "two agents live that may write one thread";
pub(crate) const GONE_BUT_LIVES: &str = "settled as gone while its agent lives";
pub(crate) const UNUSED_BUT_RAN: &str = "an agent began after its folder proved that none would";
pub(crate) const NOT_RECORDED: &str = "an agent runs whose reservation never committed";
pub(crate) const FOLDER_LOST: &str = "a committed reservation has no folder though nobody deleted it";
pub(crate) const STALE_INPUT: &str = "an input of an older acquisition reached a newer process";
pub(crate) const GIVEN_TWICE: &str = "a message was given to two agents";
/// Only looked for where a test asks for it: a user took that upon themselves.
pub(crate) const BESIDE_GIVEN_UP: &str = "an agent writes a thread beside one that was given up and lives";
pub(crate) const UNVERIFIABLE_BUT_KNOWN: &str = "a process that answers is called unverifiable";
pub(crate) const OWN_INPUT_REFUSED: &str = "the session refused what its own host found out";

/// Every situation of [`World::landmarks`].
pub(crate) const ALL_LANDMARKS: u16 = (1 << 10) - 1;

impl World {
    /// The properties of one state that do not hold; what a step breaks is noted by the step.
    pub(crate) fn violations(&self) -> impl Iterator<Item = &'static str> {
        [self.broken, self.two_agents(), self.wrong_agent(), self.wrong_doubt()].into_iter().flatten()
    }

    /// One agent has taken up the thread that another, given up and alive, has.
    pub(crate) fn beside_given_up(&self) -> Option<&'static str> {
        let lives_with = |slot: &Slot, said: &dyn Fn(&Said) -> bool| {
            slot.child == Child::Live && slot.said.iter().any(said)
        };
        let given_up = self.slots.iter().any(|slot| {
            slot.abandoned && lives_with(slot, &|said| matches!(said, Said::ThreadOpened { .. }))
        });
        let next = self.slots.iter().any(|slot| {
            !slot.abandoned && lives_with(slot, &|said| matches!(said, Said::ThreadOpened { resumed: true }))
        });
        (given_up && next).then_some(BESIDE_GIVEN_UP)
    }

    fn two_agents(&self) -> Option<&'static str> {
        (self.slots.iter().filter(|slot| slot.may_write()).count() > 1).then_some(TWO_AGENTS)
    }

    fn wrong_agent(&self) -> Option<&'static str> {
        for (index, _) in self.slots.iter().enumerate().filter(|(_, slot)| slot.may_write()) {
            if !self.store.recorded[index] {
                return Some(NOT_RECORDED);
            }
            if self.store.machine.slot() != Some(index) {
                return Some(GONE_BUT_LIVES);
            }
        }
        None
    }

    fn wrong_doubt(&self) -> Option<&'static str> {
        if let Some(host) = &self.host
            && host.pending.is_none()
            && !host.reload
            && host.machine.session.unverifiable.is_some()
            && host.process.as_ref().is_some_and(|process| process.greeted && !self.slots[process.slot].hung)
        {
            return Some(UNVERIFIABLE_BUT_KNOWN);
        }
        None
    }

    /// Which of the situations that the check is about this state shows: an exploration that misses one is too small.
    pub(crate) fn landmarks(&self) -> u16 {
        let Some(host) = &self.host else { return 0 };
        let session = &host.machine.session;
        let held = session.phase == Phase::Held;
        let doubtful =
            session.submissions.iter().any(|open| matches!(open.state, SubmissionState::Doubtful { .. }));
        let adopting = host.process.as_ref().is_some_and(|process| process.adopting);
        let orphan = |slot: &Slot| slot.child == Child::Live && slot.keeper == Keeper::Gone;
        [
            held && host.machine.slot() == Some(1),
            held && adopting,
            session.phase == Phase::Reserved && host.wake && host.process.is_some(),
            session.unverifiable.is_some(),
            self.slots.iter().any(|slot| slot.abandoned && slot.child == Child::Live),
            self.slots.iter().any(orphan),
            doubtful,
            host.doubtful_launch.is_some(),
            self.slots.iter().any(|slot| slot.lock == Lock::Remover),
            self.slots.iter().any(|slot| slot.keeper == Keeper::Dying && slot.child == Child::Checked),
        ]
        .into_iter()
        .enumerate()
        .fold(0, |seen, (bit, is_so)| seen | (u16::from(is_so) << bit))
    }

    /// Forgets what no step can depend on any more: the remains of a slot that nobody names and in which nothing lives.
    /// One whose reservation never committed can be used again, as its token would be another one.
    pub(crate) fn tidy(&mut self) {
        for index in 0..SLOTS {
            let slot = &self.slots[index];
            let over = matches!(slot.keeper, Keeper::None | Keeper::Gone)
                && !slot.child.lives()
                && matches!(slot.folder, Folder::Deleted | Folder::Removed);
            let named = self.store.row == Some(index)
                || self.store.machine.slot() == Some(index)
                || self.host.as_ref().is_some_and(|host| host.names(index));
            if over && !named {
                let recorded = self.store.recorded[index];
                let folder = if recorded { Folder::Removed } else { Folder::Never };
                self.slots[index] = Slot { folder, ..Slot::EMPTY };
                self.store.frames[index].clear();
                self.store.position[index] = 0;
            }
        }
    }

    /// Nothing is under way and nothing is owed: either nobody holds the lease and nothing waits for one, or the agent
    /// holds the thread and has every message; or the session says why it waits for a user.
    pub(crate) fn is_quiet(&self) -> bool {
        if self.cut {
            return true;
        }
        let Some(host) = &self.host else { return false };
        let busy = host.pending.is_some()
            || host.spawning.is_some()
            || host.looking.is_some()
            || host.doubtful_launch.is_some()
            || host.reload
            || host.wake
            || !host.removing.is_empty();
        let rests = match (host.machine.session.phase, &host.process) {
            (Phase::Free, None) => !host.machine.wants_to_go_on(),
            (Phase::Held, Some(process)) => {
                process.greeted
                    && host.machine.session.unverifiable.is_none()
                    && host.machine.session.stopping.is_none()
                    && !host.machine.wants_to_go_on()
            }
            _ => false,
        };
        !busy && rests
    }
}
