//! How requests ended, for ever: a late or repeated answer gets the result, however long ago that was.

use crate::error::HostError;
use crate::host::Host;
use mainstay_core::content::Answer;
use mainstay_core::session::ClosedRequest;
use mainstay_core::{Cursor, Event, Refusal, RequestId, Stamped};
use mainstay_store::{IdRegistration, PageLimit, ReadError, SessionKey, SessionRow, Store, WriteOp};
use std::borrow::Cow;
use std::sync::Arc;

/// The kind under which the ids of ended requests are registered, each with the place of its end in the journal.
const KIND: &str = "request";

/// Notes where the requests ended that end in these events.
pub(crate) fn closed_in(session: SessionKey, events: &[Stamped]) -> impl Iterator<Item = WriteOp> {
    events.iter().filter_map(move |stamped| {
        let Event::RequestClosed { request, .. } = &stamped.event else { return None };
        let place = Cursor { epoch: stamped.epoch, seq: stamped.seq };
        Some(WriteOp::RegisterId(IdRegistration {
            kind: Cow::Borrowed(KIND),
            id: request.0.clone(),
            session,
            fingerprint: place.to_string().into_bytes(),
        }))
    })
}

impl Host {
    /// The refusal that tells how a request of this session ended; None: it never was one, or ended in a journal that came
    /// from a file.
    pub(crate) async fn ended_request(
        self: &Arc<Self>,
        row: &SessionRow,
        request: &RequestId,
    ) -> Result<Option<Refusal>, HostError> {
        let (session, request) = (row.key, request.clone());
        let ended = self.read(move |store| ended(store, session, &request)).await?;
        Ok(ended.map(|closed| closed.refusal()))
    }
}

fn ended(
    store: &dyn Store,
    session: SessionKey,
    request: &RequestId,
) -> Result<Option<ClosedRequest>, ReadError> {
    let owner = store.id_owner(KIND, request.as_str())?.filter(|owner| owner.session == session);
    let place = owner.and_then(|owner| String::from_utf8(owner.fingerprint).ok()?.parse::<Cursor>().ok());
    let Some(place) = place else { return Ok(None) };
    let Some(Event::RequestClosed { revision, state, answered, .. }) = event_at(store, session, place)?
    else {
        return Ok(None);
    };
    let winner: Option<(Answer, String)> = match answered {
        Some(place) => event_at(store, session, place)?.and_then(|event| match event {
            Event::RequestAnswered { answer, by, .. } => Some((answer, by)),
            _ => None,
        }),
        None => None,
    };
    Ok(Some(ClosedRequest { id: request.clone(), end: state, revision, winner }))
}

fn event_at(store: &dyn Store, session: SessionKey, place: Cursor) -> Result<Option<Event>, ReadError> {
    // The journal gives one event whole, whatever its size.
    let page =
        store.events(session, place.epoch, place.seq.saturating_sub(1), PageLimit { rows: 1, bytes: 1 })?;
    let stamped = page.rows.first().and_then(|row| serde_json::from_slice::<Stamped>(&row.body).ok());
    Ok(stamped.filter(|stamped| stamped.seq == place.seq).map(|stamped| stamped.event))
}
