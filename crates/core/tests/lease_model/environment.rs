//! Everything beside the host: the keeper, the process that becomes the agent, the agent, and what a user and bad luck
//! do. One function per actor; each gives every step that the actor can take now.

use crate::explore::{Kind, Steps};
use crate::world::{
    Child, Folder, Frame, Keeper, Lock, OWN_INPUT_REFUSED, Said, Slot, UNUSED_BUT_RAN, World,
};
use crate::{Plan, host};
use mainstay_core::process::CloseOrder;
use mainstay_core::session::{Command, Input};
use mainstay_core::{ContentBlock, Delivery, SubmissionId};

pub(crate) fn steps(world: &World, plan: &Plan, out: &mut Steps) {
    for index in 0..world.slots.len() {
        keeper(world, index, out);
        child(world, plan, index, out);
        agent(world, index, out);
        misfortunes(world, plan, index, out);
    }
    users(world, plan, out);
}

fn fails(world: &World) -> Option<World> {
    (world.budget.faults > 0).then(|| {
        let mut next = world.clone();
        next.budget.faults -= 1;
        next
    })
}

/// As `mainstay keeper` lives: spec, manifest, agent, exit record, end.
fn keeper(world: &World, index: usize, out: &mut Steps) {
    let slot = &world.slots[index];
    if slot.hung {
        return;
    }
    let mut step = |name, change: &dyn Fn(&mut Slot)| {
        let mut next = world.clone();
        change(&mut next.slots[index]);
        out.push(name, index, Kind::Step, next);
    };
    let leave = |slot: &mut Slot| {
        slot.keeper = Keeper::Gone;
        slot.lock = Lock::Free;
    };
    match slot.keeper {
        Keeper::Newborn if slot.has_spec => {
            step("keeper reads its spec", &|slot| slot.keeper = Keeper::HasSpec);
        }
        Keeper::Newborn => {
            let feeds = world
                .host
                .as_ref()
                .is_some_and(|host| host.spawning.is_some_and(|(spawning, _)| spawning == index));
            if !feeds {
                step("keeper meets the end of its launch channel and leaves", &leave);
            }
        }
        Keeper::HasSpec if slot.folder == Folder::Here => {
            step("keeper writes its manifest and listens", &|slot| slot.keeper = Keeper::Ready);
        }
        Keeper::HasSpec => step("keeper finds no folder and leaves", &leave),
        Keeper::Ready => step("keeper starts keeper-exec", &|slot| {
            slot.keeper = Keeper::Running;
            slot.child = Child::Started;
        }),
        Keeper::Running => {
            if slot.child == Child::Dead {
                step("keeper records the exit", &|slot| {
                    slot.keeper = Keeper::Leaving;
                    slot.exit_recorded = true;
                });
            } else if slot.closing || slot.folder != Folder::Here {
                step("keeper ends its agent", &|slot| slot.child = Child::Dead);
            }
        }
        Keeper::Leaving => step("keeper leaves", &leave),
        Keeper::Dying => {
            step("the dead keeper's children get their signal", &|slot| {
                slot.keeper = Keeper::Gone;
                if slot.child.lives() {
                    slot.child = Child::Dead;
                }
            });
            if slot.child == Child::Live
                && let Some(mut next) = fails(world)
            {
                next.slots[index].keeper = Keeper::Gone;
                out.push("the agent outlives its keeper", index, Kind::Fault, next);
            }
        }
        Keeper::None | Keeper::Gone => {}
    }
}

/// `mainstay keeper-exec`: identity, then the lock seen held, then exec.
fn child(world: &World, plan: &Plan, index: usize, out: &mut Steps) {
    let slot = &world.slots[index];
    let mut next = world.clone();
    let child = &mut next.slots[index];
    let name = match slot.child {
        Child::Started if plan.identity_after_exec => {
            become_agent(&mut next, index);
            "keeper-exec becomes the agent"
        }
        Child::Started if slot.folder == Folder::Here => {
            child.identity = true;
            child.child = Child::Named;
            "keeper-exec writes its identity"
        }
        Child::Started => {
            child.child = Child::Dead;
            "keeper-exec finds no folder and leaves"
        }
        Child::Named => {
            let held = match slot.lock {
                Lock::Free => false,
                Lock::Host | Lock::Keeper => true,
                // A shared try-lock meets an exclusive lock, whoever holds it.
                Lock::Remover => plan.remover_locks_exclusively,
            };
            if (held && slot.folder == Folder::Here) || plan.lock_not_checked {
                child.child = Child::Checked;
                "keeper-exec sees the lock held"
            } else {
                child.child = Child::Dead;
                "keeper-exec sees the lock free and leaves"
            }
        }
        Child::Checked => {
            become_agent(&mut next, index);
            "keeper-exec becomes the agent"
        }
        Child::Live if plan.identity_after_exec && !slot.identity => {
            child.identity = true;
            "the identity is written"
        }
        Child::None | Child::Live | Child::Dead => return,
    };
    out.push(name, index, Kind::Step, next);
}

fn become_agent(world: &mut World, index: usize) {
    let slot = &mut world.slots[index];
    slot.child = Child::Live;
    if slot.seen_unused {
        world.broken = Some(UNUSED_BUT_RAN);
    }
}

fn agent(world: &World, index: usize, out: &mut Steps) {
    let slot = &world.slots[index];
    if slot.child != Child::Live || slot.keeper != Keeper::Running || slot.hung {
        return;
    }
    let frames = world.store.frames[index].get(..slot.taken).unwrap_or_default();
    let next_said = if slot.said.is_empty() {
        Some(Said::Ready)
    } else {
        frames.get(slot.said.len() - 1).map(|frame| match frame {
            Frame::OpenThread { resume } => Said::ThreadOpened { resumed: *resume },
            Frame::Message(number) => Said::Taken(*number),
        })
    };
    if let Some(said) = next_said {
        let mut next = world.clone();
        next.slots[index].said.push(said);
        out.push("agent speaks", index, Kind::Step, next);
    }
}

fn misfortunes(world: &World, plan: &Plan, index: usize, out: &mut Steps) {
    let slot = &world.slots[index];
    let keeper_lives = matches!(
        slot.keeper,
        Keeper::Newborn | Keeper::HasSpec | Keeper::Ready | Keeper::Running | Keeper::Leaving
    );
    if keeper_lives && let Some(mut next) = fails(world) {
        let slot = &mut next.slots[index];
        slot.keeper = Keeper::Dying;
        slot.hung = false;
        if slot.lock == Lock::Keeper {
            slot.lock = Lock::Free;
        }
        out.push("keeper is killed", index, Kind::Fault, next);
    }
    if plan.keepers_may_hang
        && matches!(slot.keeper, Keeper::Ready | Keeper::Running)
        && let Some(mut next) = fails(world)
    {
        next.slots[index].hung = true;
        out.push("keeper hangs", index, Kind::Fault, next);
    }
    let greeted = world.host.as_ref().is_some_and(|host| {
        host.looking.is_none()
            && host.pending.is_none()
            && host.process.as_ref().is_some_and(|process| process.greeted && process.slot == index)
    });
    if greeted
        && keeper_lives
        && let Some(mut next) = fails(world)
    {
        host::line_closes(&mut next);
        out.push("the line breaks though the keeper lives", index, Kind::Fault, next);
    }
    if slot.child.lives()
        && let Some(mut next) = fails(world)
    {
        next.slots[index].child = Child::Dead;
        out.push("agent ends or is killed", index, Kind::Fault, next);
    }
    if slot.folder == Folder::Here
        && let Some(mut next) = fails(world)
    {
        next.slots[index].folder = Folder::Deleted;
        out.push("a user deletes the folder", index, Kind::Fault, next);
    }
}

fn users(world: &World, plan: &Plan, out: &mut Steps) {
    let Some(host) = &world.host else { return };
    if host.reload || host.pending.is_some() {
        return;
    }
    let mut ask = |name, command: Command, kind, spend: &dyn Fn(&mut World)| {
        let mut next = world.clone();
        spend(&mut next);
        // A user's command may be refused; then nothing happened.
        if host::decide(&mut next, plan, Input::Command(command)) {
            out.push(name, 0, kind, next);
        } else if next.broken == Some(OWN_INPUT_REFUSED) {
            next.broken = None;
        }
    };
    if world.budget.sends > 0 {
        ask("a user sends a message", send("m2"), Kind::User, &|next| next.budget.sends -= 1);
    }
    if world.budget.stops > 0 {
        let stop = Command::Stop { order: CloseOrder::User };
        ask("a user stops the agent", stop, Kind::User, &|next| next.budget.stops -= 1);
    }
    if host.machine.session.unverifiable.is_some() {
        ask("a user gives the process up", Command::Abandon, Kind::WayOut, &|_| ());
    }
}

pub(crate) fn send(id: &str) -> Command {
    Command::Send {
        submission: SubmissionId(id.to_owned()),
        content: vec![ContentBlock::text("hello")],
        delivery: Delivery::Auto,
        resends: None,
    }
}
