//! What a starting host owes to what a former one left: living agents are taken over, dead ones settled, each session on
//! its own.

use crate::config::HostConfig;
use crate::host::send_to_lane;
use crate::keeping::Keeping;
use crate::lane::{LaneMessage, Shared};
use crate::retention::unfinished_imports;
use mainstay_store::{LaneWrite, ReadError, Rewound, SessionKey, Store, Urgency, WriteError, WriteOp};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What is to be looked after.
#[derive(Debug)]
pub(crate) struct Plan {
    sessions: Vec<SessionKey>,
    pub(crate) unclaimed: Vec<String>,
    /// Imports that nobody goes on with.
    pub(crate) unfinished: Vec<SessionKey>,
    /// Sessions of which an unclaimed keeper knows a later owner, and the fence it knows.
    ahead: Vec<(SessionKey, u64)>,
}

/// Makes the plan from the records and the folders. Blocking; takes nothing and starts nothing.
pub(crate) fn plan(config: &HostConfig, store: &dyn Store, keeping: &dyn Keeping) -> Result<Plan, ReadError> {
    let rows = store.unrested_sessions()?;
    for bad in &rows.bad {
        tracing::error!(
            table = bad.table,
            key = bad.key,
            detail = bad.detail,
            "a record cannot be read; the others are served"
        );
    }
    let live = store.processes(true)?;
    let claimed: BTreeSet<String> = live.rows.iter().map(|process| process.token.clone()).collect();
    let unclaimed = keeping.unclaimed(&claimed);
    let ahead = crate::unclaimed::fences_ahead(config, store, keeping, &unclaimed)?;
    let unfinished = unfinished_imports(store)?;
    Ok(Plan { sessions: rows.rows.into_iter().map(|row| row.key).collect(), unclaimed, unfinished, ahead })
}

/// Wakes every session that is owed something, all at once; one that fails stops no other.
pub(crate) async fn recover(shared: &Arc<Shared>, plan: Plan) {
    let mut woken = Vec::with_capacity(plan.sessions.len());
    shared.metrics.recoveries.add(u64::try_from(plan.sessions.len()).unwrap_or(u64::MAX));
    for (key, known) in plan.ahead {
        let (done, settled) = oneshot::channel();
        send_to_lane(shared, key, LaneMessage::FenceAhead { known, done }).await;
        woken.push(settled);
    }
    for key in plan.sessions {
        let (done, settled) = oneshot::channel();
        send_to_lane(shared, key, LaneMessage::Wake { done }).await;
        woken.push(settled);
    }
    for settled in woken {
        // A lane that could not load has said so and dropped its sender.
        drop(settled.await);
    }
}

/// Takes note of a rewind, before anything is served or added: from here on every session begins a new epoch, when it is
/// next loaded, above all that anybody can have seen. Blocking.
///
/// # Errors
/// The store did not take it; nothing may be served then, because a reader could be given other events than those it
/// knows under the same numbers.
pub(crate) fn acknowledge(store: &dyn Store, rewound: Rewound) -> Result<(), WriteError> {
    tracing::error!(
        mark = rewound.mark,
        found = rewound.found,
        "the database is older than what was shown: every session begins a new epoch"
    );
    let op = WriteOp::AcknowledgeRewind { mark: rewound.mark, feed: rewound.feed };
    store.commit_blocking(LaneWrite::new(Urgency::Command, vec![op])).map(drop)
}
