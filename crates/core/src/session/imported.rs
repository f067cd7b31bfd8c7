//! A session that came from a file: what stood open where it came from is ended here.

use super::state::{Phase, Session};
use super::{DefaultAnswer, Limits};
use super::{Moment, Out};
use crate::event::{EpochReason, Event, ImportedFrom, LeftOut, OptionsState, SettlesBy};
use crate::process::{ExitCause, ProcessExit};
use crate::work::Provenance;
use crate::{LaunchSnapshot, SessionId, SessionOptions};

impl Session {
    /// Makes a session that was folded from a file's journal one of this host, in a new epoch, `at_least` this one.
    /// Everything that was open ends: the process, if there is one, goes on elsewhere, and with it what it was given. What
    /// waits in the queue is paused, because the session that the file was made of may have sent it. What loosens a session is
    /// not taken over, since the file is not its new user's word: no sandbox, no mode, no approval policy, no default
    /// answer that allows.
    pub fn become_imported(
        &mut self,
        session: SessionId,
        launch: LaunchSnapshot,
        from: ImportedFrom,
        at_least: u64,
        moment: &Moment<'_>,
        out: &mut Out,
    ) {
        self.begin_epoch(EpochReason::Imported, at_least, moment.now, out);
        let left_out = self.left_out(&launch);
        self.emit(out, moment.now, Event::SessionImported { session, launch, from, left_out });
        if self.phase != Phase::Free {
            self.settle_exit(ProcessExit::of(ExitCause::Abandoned), moment, out);
        }
        self.cancel_waiting_controls(moment, out);
        self.tighten(moment, out);
        // Only a process's history could have settled these, and it is not read here.
        self.give_up_on_history(moment, out);
        debug_assert!(
            self.submissions.iter().all(|open| !matches!(
                open.state,
                super::SubmissionState::Doubtful { settles_by: SettlesBy::History, .. }
            )),
            "a message waits for a history that nobody reads"
        );
        if self.submissions.iter().any(super::OpenSubmission::waits) {
            let paused = Event::SessionUpdated {
                name: None,
                options: None,
                archived: None,
                queue_paused: Some(true),
                by: Provenance::Unknown,
            };
            self.emit(out, moment.now, paused);
        }
    }

    /// What of the file does not stand in the launch that pins the session here, and what [`Self::tighten`] takes away.
    fn left_out(&self, launch: &LaunchSnapshot) -> Vec<LeftOut> {
        let there = &self.launch;
        let options = self.options_before.as_ref().map_or(self.options.clone(), |before| {
            // Either may be in force later: the wish, or what it was before where the agent refuses the wish.
            before.overlaid(&self.options)
        });
        let left_out = [
            (LeftOut::AccountHome, there.account_home.is_some() && there.account_home != launch.account_home),
            (LeftOut::McpServers, there.mcp_servers != launch.mcp_servers),
            (LeftOut::Instructions, there.instructions != launch.instructions),
            (LeftOut::Mode, options.mode.is_some()),
            (LeftOut::Sandbox, options.sandbox.is_some()),
            (LeftOut::Approval, options.approval.is_some()),
            (LeftOut::DefaultAnswer, allows(&self.limits)),
        ];
        left_out.into_iter().filter_map(|(what, left)| left.then_some(what)).collect()
    }

    fn tighten(&mut self, moment: &Moment<'_>, out: &mut Out) {
        let harmless = |options: &SessionOptions| SessionOptions {
            model: options.model.clone(),
            effort: options.effort.clone(),
            tier: options.tier.clone(),
            thinking: options.thinking.clone(),
            ..SessionOptions::default()
        };
        let options = harmless(&self.options);
        if options != self.options || self.options_before.as_ref().is_some_and(|old| harmless(old) != *old) {
            let state = OptionsState::Confirmed;
            let by = Provenance::Host;
            self.emit(out, moment.now, Event::OptionsUpdated { options, state, failure: None, by });
        }
        if allows(&self.limits) {
            let limits = Limits { requests: None, ..self.limits.clone() };
            self.emit(out, moment.now, Event::LimitsUpdated { limits });
        }
    }
}

fn allows(limits: &Limits) -> bool {
    limits.requests.is_some_and(|policy| policy.answer == DefaultAnswer::AllowOnce)
}
