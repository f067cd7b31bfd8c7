//! What goes wrong: faults of the store, of keepers, of agents, of lines and of the clock, as a seed chooses.

use crate::run::Run;
use mainstay_agents::AgentKind;
use mainstay_keeper::DisconnectReason;
use mainstay_store::{Fault, Store, WriteError};

impl Run {
    /// Something goes wrong.
    pub(crate) fn fault(&mut self) {
        // Only Codex is spoken with over connections that come and go.
        match self.chance.below(if self.kind == AgentKind::Codex { 22 } else { 18 }) {
            0..=5 => self.store_fails(),
            6 => {
                let back = self.chance.below(5_000);
                let mut world = self.world.lock();
                let by = i64::try_from(back).unwrap_or(0);
                world.now -= by;
                world.went_back += by;
                world.note(|| format!("fault: the clock goes back by {back} ms"));
            }
            7 => {
                let mut world = self.world.lock();
                world.blind = !world.blind && self.chance.hits(1, 2);
                let blind = world.blind;
                world.note(|| format!("fault: nothing can be seen: {blind}"));
            }
            choice => self.keeper_fails(choice),
        }
    }

    /// The next writes fail, each in the same way.
    fn store_fails(&mut self) {
        let detail = || "simulated".to_owned();
        let fault = match self.chance.below(9) {
            0 | 1 => Fault::LoseAcknowledgement,
            2 | 3 => Fault::FailCommit(WriteError::DiskFull),
            4 => Fault::FailCommit(WriteError::Invalid { detail: detail() }),
            5 => Fault::FailCommit(WriteError::Overloaded),
            6 => Fault::EndTransaction(WriteError::Io { detail: detail() }),
            7 => Fault::EndTransaction(WriteError::DiskFull),
            _ => Fault::FailCommit(WriteError::Io { detail: detail() }),
        };
        let world = &mut *self.world.lock();
        world.note(|| format!("fault: {fault:?}"));
        for _ in 0..[1, 1, 1, 2, 4][self.chance.below(5)] {
            world.disk.inject(fault.clone());
        }
    }

    fn keeper_fails(&mut self, choice: usize) {
        let mut world = self.world.lock();
        let living = world.keepers.values().filter(|keeper| keeper.lives());
        let tokens: Vec<String> = living.map(|keeper| keeper.token.clone()).collect();
        let Some(token) = self.chance.pick(&tokens) else { return };
        let what = match choice {
            8 => {
                world.with(token, |keeper, around| keeper.agent.die(around.truth));
                "its agent dies"
            }
            9 => {
                world.with(token, |keeper, around| keeper.kill(around.truth));
                "is killed"
            }
            10 => {
                world.with(token, |keeper, around| keeper.die_writing(around));
                "is killed while it writes"
            }
            11 => {
                world.with(token, |keeper, _| keeper.cut_line());
                "loses its line"
            }
            12 | 13 => {
                world.with(token, |keeper, _| keeper.stopped = choice == 12 && !keeper.stopped);
                "is stopped, or goes on"
            }
            14 => {
                world.with(token, |keeper, _| keeper.stutter(true));
                "says twice what it says next"
            }
            15 => {
                world.with(token, |keeper, _| keeper.stutter(false));
                "says two things in the other order"
            }
            18.. => {
                world.with(token, |keeper, around| keeper.disconnect(DisconnectReason::Dropped, around));
                "loses its connection to the agent"
            }
            _ => {
                world.with(token, |keeper, _| keeper.tell_status());
                "says once more where it stands"
            }
        };
        world.note(|| format!("fault: {token} {what}"));
    }
}
