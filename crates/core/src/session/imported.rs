//! A session that came from a file: what stood open where it came from is ended here.

use super::state::{Phase, Session};
use super::{Moment, Out};
use crate::event::{EpochReason, Event, ImportedFrom, SettlesBy};
use crate::process::{ExitCause, ProcessExit};
use crate::work::Provenance;
use crate::{LaunchSnapshot, SessionId};

impl Session {
    /// Makes a session that was folded from a file's journal one of this host, in a new epoch, `at_least` this one.
    /// Everything that was open ends: the process, if there is one, goes on elsewhere, and with it what it was given. What
    /// waits in the queue is paused, because the session that the file was made of may have sent it.
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
        self.emit(out, moment.now, Event::SessionImported { session, launch, from });
        if self.phase != Phase::Free {
            self.settle_exit(ProcessExit::of(ExitCause::Abandoned), moment, out);
        }
        self.cancel_waiting_controls(moment, out);
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
}
