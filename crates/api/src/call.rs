//! A request on its way to its handler.

use crate::app::App;
use crate::body;
use crate::peer::Peer;
use crate::problem::{Code, Problem};
use axum::body::{Body, Bytes};
use axum::extract::{Query, RawPathParams};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use mainstay_core::SessionId;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::{Arc, Mutex, PoisonError};

/// What a handler gets. The body is read already, so a handler never waits for its client.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) peer: Peer,
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) params: Vec<(String, String)>,
    /// Empty where the route takes an upload.
    pub(crate) body: Bytes,
    /// What the route takes piece by piece.
    pub(crate) upload: Mutex<Option<Body>>,
}

/// What a handler gives.
pub(crate) type Answer = Result<Response<Body>, Problem>;

impl Call {
    pub(crate) fn params_of(raw: &RawPathParams) -> Vec<(String, String)> {
        raw.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// A part of the path.
    pub(crate) fn param(&self, name: &str) -> Result<&str, Problem> {
        self.params
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.as_str())
            .ok_or_else(|| Problem::new(Code::Internal, format!("the route has no parameter {name}")))
    }

    /// The session that the path names. A malformed id names no session.
    pub(crate) fn session(&self) -> Result<&str, Problem> {
        let id = self.param("session")?;
        SessionId::parse(id).map_err(|error| Problem::new(Code::InvalidId, format!("session: {error}")))?;
        Ok(id)
    }

    /// The query, unknown parameters refused.
    pub(crate) fn query<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        match Query::<T>::try_from_uri(&self.uri) {
            Ok(Query(query)) => Ok(query),
            Err(rejection) => Err(Problem::new(Code::InvalidQuery, rejection.body_text())),
        }
    }

    /// The body, unknown fields refused.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        body::parse(&self.headers, &self.body)
    }

    /// The body of a route that takes it piece by piece; empty the second time.
    pub(crate) fn take_upload(&self) -> Body {
        self.upload.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Result<Option<&str>, Problem> {
        match self.headers.get(name) {
            None => Ok(None),
            Some(value) => value
                .to_str()
                .map(Some)
                .map_err(|_| Problem::new(Code::InvalidHeader, format!("{name} must be visible ASCII"))),
        }
    }

    /// Whether the client asked for a stream of events.
    pub(crate) fn wants_stream(&self) -> bool {
        self.headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .any(|value| value.contains("text/event-stream"))
    }
}

/// A JSON response.
pub(crate) fn json(status: u16, body: &impl Serialize) -> Answer {
    let body = serde_json::to_vec(body)
        .map_err(|error| Problem::new(Code::Internal, format!("the answer cannot be written: {error}")))?;
    Ok(raw_json(status, body))
}

/// A response of JSON that is written already.
pub(crate) fn raw_json(status: u16, body: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
