//! What a starting host owes to what a former one left: living agents are taken over, dead ones settled, each session on
//! its own.

use crate::config::HostConfig;
use crate::host::send_to_lane;
use crate::keeping::Keeping;
use crate::lane::{LaneMessage, Shared};
use mainstay_store::{LaneWrite, ReadError, Rewound, SessionKey, Store, Urgency, WriteOp};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::oneshot;

/// What is to be looked after.
#[derive(Debug)]
pub(crate) struct Plan {
    sessions: Vec<SessionKey>,
    pub(crate) unclaimed: Vec<String>,
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
    Ok(Plan { sessions: rows.rows.into_iter().map(|row| row.key).collect(), unclaimed, ahead })
}

/// Wakes every session that is owed something, all at once; one that fails stops no other.
pub(crate) async fn recover(shared: &Arc<Shared>, plan: Plan, rewound: Option<Rewound>) {
    if let Some(rewound) = rewound {
        tracing::error!(
            mark = rewound.mark,
            found = rewound.found,
            "the database is older than what was shown"
        );
    }
    let mut woken = Vec::with_capacity(plan.sessions.len());
    for (key, known) in plan.ahead {
        let (done, settled) = oneshot::channel();
        send_to_lane(shared, key, LaneMessage::FenceAhead { known, done }).await;
        woken.push(settled);
    }
    for key in plan.sessions {
        let (done, settled) = oneshot::channel();
        send_to_lane(shared, key, LaneMessage::Wake { rewound: rewound.is_some(), done }).await;
        woken.push(settled);
    }
    for settled in woken {
        // A lane that could not load has said so and dropped its sender.
        drop(settled.await);
    }
    // Last: a host that dies before this finds the rewind again, and one epoch more harms nobody.
    if let Some(rewound) = rewound {
        let write = LaneWrite::new(Urgency::Command, vec![WriteOp::AcknowledgeRewind { mark: rewound.mark }]);
        if let Err(error) = shared.store.commit(write).await {
            tracing::error!(%error, "the rewind could not be acknowledged; the next start deals with it again");
        }
    }
}

/// How often old idempotency keys are removed. The store keeps what the contract promises, whatever this is.
const HOUSEKEEPING_EVERY: std::time::Duration = std::time::Duration::from_secs(600);

/// Removes what may go, as long as the host lives.
pub(crate) async fn keep_house(shared: std::sync::Weak<Shared>) {
    loop {
        tokio::time::sleep(HOUSEKEEPING_EVERY).await;
        let Some(shared) = shared.upgrade() else { return };
        let write = LaneWrite::new(Urgency::Command, vec![WriteOp::PruneOperations { now: shared.now() }]);
        if let Err(error) = shared.store.commit(write).await {
            tracing::warn!(%error, "old idempotency keys could not be removed; the next round tries again");
        }
    }
}
